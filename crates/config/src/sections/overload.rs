//! `[overload]`: sensors of pressure, and how far adaptive limits are scaled by them.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::upstream::UpstreamSpec;
use crate::findings::{Reported, quoted};
use crate::form::{Form, NAME};
use crate::kind::{Context, ValueKind, by, duration, each, list, number, percent};
use crate::names;
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section, table};
use crate::token::with_causes;
use sluicegate_limiter::Rate;
use sluicegate_time::Span;

section! {
    /// `[overload]`: sensors, and how far adaptive limits are scaled by them.
    pub struct Overload, read as OverloadKeys {
        /// Share of the CPU time that this process may use, of a second: of its workers, or of its control group.
        cpu: Option<u32> = percent(SHARES).or_word("off").or("off"),
        /// Share of the memory that this process may use: of its control group (version 2), or of the machine.
        memory: Option<u32> = percent(SHARES).or_word("off").or("off"),
        /// Share of 10 s in which tasks waited for a CPU (PSI, `some avg10`).
        cpu_pressure: Option<u32> = percent(SHARES).or_word("off").or("off"),
        /// Time from a request sent to the head of its answer, of the last 10 s of an upstream.
        response_time: Vec<ResponseTime> = list(RESPONSE_TIMES, response_times, ResponseTime::to_string).or_else(Vec::new, "none"),
        /// Timeouts and failures of servers, as a rate; refusals are none.
        dead_letters: Option<Rate> = by(Form::Rate, failures, Rate::to_string).or_word("off").or("off"),
        /// Adaptive limits are never scaled below this share of theirs.
        floor: u32 = percent(SHARES).or("20%"),
        /// How much the scale goes down at once while a sensor is above, and up again.
        step: u32 = percent(STEPS).or("10%"),
    }
}

section! {
    /// One of `response_time`.
    pub struct ResponseTime, read as ResponseTimeKeys {
        /// The upstream whose servers are timed.
        upstream: Arc<str> = by(NAME, |node, _| names::read(node, "app"), ToString::to_string).required("\"app\""),
        /// The part of the answers that is faster.
        quantile: f64 = number(QUANTILES).or("0.95"),
        /// A longer time is pressure.
        above: Span = duration(ABOVE).required("\"800ms\""),
    }
}

const SHARES: RangeInclusive<u32> = 1..=100;
const STEPS: RangeInclusive<u32> = 1..=50;
const QUANTILES: RangeInclusive<f64> = 0.5..=0.999;
const ABOVE: RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(3600);

/// Each is sorted once a second.
const MAX_RESPONSE_TIMES: usize = 16;

const RESPONSE_TIME: Form = Form::Table(ResponseTime::rows);
const RESPONSE_TIMES: Form = Form::Either(&[RESPONSE_TIME, Form::List(&RESPONSE_TIME, 1, MAX_RESPONSE_TIMES)]);

const EXAMPLE: &str = "{ upstream = \"app\", above = \"800ms\" }";

/// Where names of other sections are written.
pub(crate) struct OverloadPlace<'t> {
    response_time: Option<Node<'t>>,
}

/// Reads the section.
pub(crate) fn read<'t>(reader: Reader<'t>, context: &Context<'_>) -> Result<(Overload, OverloadPlace<'t>), Reported> {
    let mut keys = Overload::read_keys(reader, context);
    let place = OverloadPlace { response_time: keys.response_time.node.take() };
    Ok((Overload::of(keys)?, place))
}

/// The section, unless it names an upstream that is not there; where upstreams are not known, it may.
pub(crate) fn checked(
    read: Option<Result<(Overload, OverloadPlace<'_>), Reported>>,
    upstreams: &[Arc<UpstreamSpec>],
    are_known: bool,
) -> Result<Option<Overload>, Reported> {
    let Some((overload, place)) = read.transpose()? else { return Ok(None) };
    if are_known {
        overload.check(&place, upstreams)?;
    }
    Ok(Some(overload))
}

impl Overload {
    /// The timeouts and failures of servers in a minute that are pressure.
    pub fn failures_per_minute(&self) -> Option<f64> {
        let rate = self.dead_letters?;
        Some(rate.limit() as f64 * Span::from_secs(60).as_nanos() as f64 / rate.window().as_nanos() as f64)
    }

    /// Reports names that no upstream has.
    fn check(&self, place: &OverloadPlace<'_>, upstreams: &[Arc<UpstreamSpec>]) -> Result<(), Reported> {
        let is_known = |name: &str| upstreams.iter().any(|upstream| &*upstream.name == name);
        let unknown = self.response_time.iter().find(|own| !is_known(&own.upstream));
        let (Some(unknown), Some(node)) = (unknown, &place.response_time) else { return Ok(()) };
        let message = format!("no [[upstream]] has the name {}", quoted(&unknown.upstream));
        Err(node.error(message, "name one that the file has, or remove the sensor"))
    }
}

fn response_times(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<ResponseTime>, Reported> {
    if !node.is_array() {
        return table(node, EXAMPLE, context).map(|own| vec![own]);
    }
    let items = node.array(EXAMPLE)?;
    if items.is_empty() || items.len() > MAX_RESPONSE_TIMES {
        let message = format!("{} has {} of them", node.label(), items.len());
        return Err(node.error(message, format!("give 1 to {MAX_RESPONSE_TIMES}, like {EXAMPLE}")));
    }
    let mut seen: HashSet<Arc<str>> = HashSet::new();
    each(&items, |item| {
        let own: ResponseTime = table(item, EXAMPLE, context)?;
        if !seen.insert(Arc::clone(&own.upstream)) {
            let message = format!("the upstream {} is in the list twice", quoted(&own.upstream));
            return Err(item.error(message, "remove one: one quantile is looked at"));
        }
        Ok(own)
    })
}

fn failures(node: &Node<'_>, _: &Context<'_>) -> Result<Rate, Reported> {
    let text = node.string("a rate in quotes", "\"5000/m\"")?;
    text.parse().map_err(|error| node.error(format!("invalid rate {}", quoted(text)), with_causes(&error)))
}

impl fmt::Display for ResponseTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, quantile, above } = self;
        write!(f, "{upstream} {quantile} above {above}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::certificates::Certificates;
    use crate::parse;

    /// Everything that is said about a file with this section, limit and route.
    fn told(overload: &str, limit: &str, route: &str) -> String {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n{overload}\n[[limit]]\nname = \"l\"\nrate = \"9/s\"\n{limit}\n\
             [[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:2\"]\n\
             [[route]]\nname = \"r\"\nlimits = [\"l\"]\n{route}\n"
        );
        match parse(&text, Path::new("/g.toml"), Certificates::Unread) {
            Ok(parsed) => parsed.warnings.to_string(),
            Err(errors) => errors.to_string(),
        }
    }

    #[test]
    fn what_has_no_effect_is_a_warning_and_what_cannot_be_is_an_error() {
        const SECTION: &str = "[overload]\ncpu = \"85%\"";
        const FORWARD: &str = "upstream = \"app\"\npriority = \"low\"";
        assert_eq!(told(SECTION, "adaptive = true", FORWARD), "");
        let twice = "[overload]\nresponse_time = [{ upstream = \"app\", above = \"1s\" }, { upstream = \"app\", above = \"2s\" }]";
        for (overload, limit, route, expected) in [
            ("", "adaptive = true", "upstream = \"app\"", "`adaptive` has no effect: the file has no [overload]"),
            ("", "", FORWARD, "`priority` has no effect: the file has no [overload]"),
            (SECTION, "", "respond = {}\npriority = \"low\"", "only requests for servers are shed"),
            (
                SECTION,
                "algorithm = \"token-bucket\"\nrefill = \"interval\"\nadaptive = true",
                FORWARD,
                "use refill = \"greedy\"",
            ),
            (
                "[overload]\nresponse_time = { upstream = \"gone\", above = \"1s\" }",
                "",
                FORWARD,
                "no [[upstream]] has the name \"gone\"",
            ),
            (twice, "", FORWARD, "the upstream \"app\" is in the list twice"),
            ("[overload]\nfloor = \"0%\"", "", FORWARD, "it goes from 1% to 100%"),
            (
                "[overload]\nresponse_time = { upstream = \"app\", above = \"1s\", quantile = 1 }",
                "",
                FORWARD,
                "it goes from 0.5 to 0.999",
            ),
        ] {
            let told = told(overload, limit, route);
            assert!(told.contains(expected), "{expected}: {told}");
        }
    }
}
