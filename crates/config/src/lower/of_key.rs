//! Numbers of a single key in the place of a limit's: an exception that an operator makes while the gateway runs.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::numbers::{self, NUMBERS};
use crate::certificates::{CertificateFiles, Certificates};
use crate::findings::{Findings, quoted};
use crate::kind::{Context, Deciding};
use crate::model::{LimitRule, Model};
use crate::nearest::nearest;
use crate::reader::Node;
use crate::report;
use crate::sections::fleet::Fleet;
use sluicegate_admission::Cost;
use sluicegate_limiter::LimitSpec;

/// The longest text of such numbers, in bytes.
const MAX_BYTES: usize = 512;

/// The parameters of the limit called `name` with the numbers of a single key. `text` is TOML, with the keys that a plan may
/// override, such as `rate = "500/s"`; but for `mode`, which is the limit's.
///
/// # Errors
/// There is no such limit, or the numbers do not fit it: in words, with how to mend it.
pub fn numbers_of_key(model: &Model, name: &str, text: &str) -> Result<LimitSpec, String> {
    let rule = model.limits.iter().find(|rule| *rule.spec.name == *name);
    let rule = rule.ok_or_else(|| {
        let near = nearest(name, model.limits.iter().map(|rule| &*rule.spec.name));
        let near = near.map(|near| format!(" Did you mean {}?", quoted(near))).unwrap_or_default();
        format!("There is no limit {}.{near}", quoted(name))
    })?;
    if text.len() > MAX_BYTES {
        return Err(format!("The numbers of a key take at most {MAX_BYTES} bytes: this is {}.", text.len()));
    }
    let own = DeTable::parse(text).map_err(|error| format!("This cannot be read: {}", error.message()))?;
    let base = DeTable::parse(&rule.settings).map_err(|error| error.message().to_owned())?;
    let findings = Findings::default();
    let spec = read(model, rule, own.get_ref(), base.get_ref(), &findings);
    if !findings.has_error()
        && let Some(spec) = spec
    {
        return Ok(spec);
    }
    let errors = report::failure(Path::new("numbers"), text, findings);
    let words = errors.diagnostics().iter().map(|found| match &found.help {
        Some(help) => format!("{}: {help}", found.message),
        None => found.message.clone(),
    });
    Err(words.collect::<Vec<_>>().join("; "))
}

fn read(
    model: &Model,
    rule: &LimitRule,
    own: &DeTable<'_>,
    base: &DeTable<'_>,
    findings: &Findings,
) -> Option<LimitSpec> {
    let nothing = DeValue::Boolean(false);
    let place = Node::by_default("the key", &nothing, findings);
    let known = || NUMBERS.into_iter().filter(|key| *key != "mode");
    for key in own.keys().filter(|key| !known().any(|known| known == *key.get_ref())) {
        let message = format!("{} of a limit cannot be another for a single key", quoted(key.get_ref()));
        place.error(message, format!("a key may have another {}", known().collect::<Vec<_>>().join(", ")));
    }
    if own.is_empty() {
        place.error("the key gets no other number", "write what is another, such as rate = \"500/s\"");
        return None;
    }
    let files = CertificateFiles::new(Path::new(""), Certificates::Unread);
    let fleet = model.fleet.as_ref().map(Fleet::terms);
    let context = Context {
        files: &files,
        asks_for_clients: false,
        trusts_proxies: false,
        address_header: None,
        has_jwt: true,
        deciding: Deciding::default(),
        has_dead_letter: false,
        has_overload: true,
        fleet,
    };
    let costs = model.routes.iter().filter(|route| route.limits.iter().any(|own| own.spec.name == rule.spec.name));
    let costs = costs.filter_map(|route| if let Cost::Fixed(cost) = route.cost { Some(cost) } else { None }).collect();
    // An empty place would be that of a value which a syntax error has damaged.
    let merged = numbers::merged(own, base, &(0..1));
    let spec = numbers::read(&merged, &place, rule, costs, (&context, findings)).ok()?;
    // It is the only one.
    Some(LimitSpec { max_keys: 1, ..spec })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::parse;
    use sluicegate_limiter::{Algorithm, Mode};
    use sluicegate_time::Span;

    fn model(limit: &str) -> Model {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {{}}\nlimits = [\"a\"]\ncost = 3\n\
             [[limit]]\nname = \"a\"\n{limit}\n"
        );
        parse(&text, Path::new("/g.toml"), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model
    }

    fn numbers(limit: &str, text: &str) -> Result<LimitSpec, String> {
        numbers_of_key(&model(limit), "a", text)
    }

    #[test]
    fn what_the_key_does_not_say_is_as_the_limit_has_it() {
        let limit = "algorithm = \"token-bucket\"\nrate = [\"100/s\", \"1000/1m\"]\nburst = 7\nmax_wait = \"2s\"\nmode = \"shadow\"";
        let spec = numbers(limit, "rate = [\"500/s\"]").unwrap();
        let Algorithm::TokenBucket(bucket) = &spec.algorithm else { panic!("another algorithm") };
        assert_eq!((bucket.burst(), spec.max_wait, spec.mode), (Some(7), Span::from_secs(2), Mode::Shadow));
        assert_eq!(spec.algorithm.rates().iter().map(ToString::to_string).collect::<Vec<_>>(), ["500/s"]);
        assert_eq!((spec.max_keys, &*spec.name), (1, "a"));
        let spec = numbers(limit, "burst = 9").unwrap();
        let Algorithm::TokenBucket(bucket) = &spec.algorithm else { panic!("another algorithm") };
        assert_eq!((bucket.burst(), spec.algorithm.rates().len()), (Some(9), 2));
        assert_eq!(numbers("algorithm = \"concurrency\"\nmax_in_flight = 4", "max_in_flight = 5").unwrap().max_keys, 1);
    }

    #[test]
    fn numbers_that_do_not_fit_say_why_and_how_to_mend_it() {
        for (text, words) in [
            ("rate = \"500\"", "invalid rate \"500\""),
            ("rate = \"2/s\"", "3"),
            ("burst = 5", "`burst` is no setting of the algorithm timer-wheel"),
            ("mode = \"off\"", "\"mode\" of a limit cannot be another for a single key: a key may have another burst"),
            ("name = \"b\"", "\"name\" of a limit cannot be another"),
            ("", "the key gets no other number: write what is another, such as rate = \"500/s\""),
            ("rate = ", "This cannot be read"),
            ("rate = 5", "`rate`"),
        ] {
            let error = numbers("rate = \"9/s\"", text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(
            numbers_of_key(&model("rate = \"9/s\""), "b", "rate = \"9/s\"").unwrap_err().contains("no limit \"b\"")
        );
        let long = format!("rate = \"{}\"", "9".repeat(3_000));
        assert!(numbers("rate = \"9/s\"", &long).unwrap_err().contains("at most 512 bytes"));
    }
}
