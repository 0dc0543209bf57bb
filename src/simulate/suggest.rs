//! The smallest rate of a limit at which it refuses no more than a part of the requests.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use toml::{Table, Value};

use super::source::RequestSource;
use super::trial::Trial;
use super::{Logs, STRIDE, SimulationProgress, lines};
use crate::config::{self, Certificates};
use crate::gateway::{Offline, redactor_offline};
use crate::time::Clock;

/// Rates that are tried in one reading of the logs.
const AT_ONCE: u64 = 12;
/// The highest rate of any.
const MAX_RATE: u64 = 1_000_000_000;
/// A rate above this number is found to within such a part of it, others exactly.
const NEAR: u64 = 500;

/// The rate that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// The limit.
    pub limit: String,
    /// The key of the file that is meant: `rate` or `max_in_flight`.
    pub key: &'static str,
    /// Its value, as the file has it.
    pub value: String,
    /// The part of its requests that it refuses then, from 0 to 1.
    pub refused_share: f64,
    /// The part that was asked for, at most.
    pub goal: f64,
}

/// A limit of a file whose rate is varied; of several rates all, in proportion to the first.
struct Varied<'f> {
    path: &'f Path,
    root: Table,
    /// Its place in the file.
    at: usize,
    key: &'static str,
    /// The numbers that are varied, and the text after each.
    rates: Vec<(u64, String)>,
    is_list: bool,
}

/// Finds it: reads the logs several times, with several rates at a time.
///
/// # Errors
/// The file has no such limit, none of its rates is enough, or a log cannot be read: in words.
pub fn suggest(
    logs: &Logs,
    (path, text): (&Path, &str),
    limit: &str,
    goal: f64,
    tell: &mut dyn FnMut(SimulationProgress),
) -> Result<Suggestion, String> {
    if logs.files.iter().any(|file| file == Path::new("-")) {
        return Err("--suggest reads the logs several times: name files in place of -".to_owned());
    }
    let varied = Varied::of(path, text, limit)?;
    let now = varied.rates.first().map_or(1, |(number, _)| *number);
    // The highest that is known to refuse too many, and the lowest that is known not to.
    let (mut below, mut enough): (u64, Option<(u64, f64)>) = (0, None);
    loop {
        let candidates = match enough {
            Some((enough, _)) if enough - below <= (enough / NEAR).max(1) => break,
            Some((enough, _)) => between(below, enough),
            None => upward(below.max(now / 64)),
        };
        let known = enough;
        for (rate, share) in varied.shares(logs, &candidates, tell)? {
            if share <= goal && enough.is_none_or(|(enough, _)| rate < enough) {
                enough = Some((rate, share));
            }
        }
        let is_below = |rate: &u64| enough.is_none_or(|(enough, _)| *rate < enough);
        let next = candidates.into_iter().filter(is_below).max().unwrap_or(below);
        if next == below && enough == known {
            return Err(format!(
                "no {} of the limit {limit} refuses at most {:.3}% of its requests: one that lacks the key is always refused, \
                 and so are those of one instant beyond the burst",
                varied.key,
                goal * 100.0
            ));
        }
        below = next;
    }
    let (rate, refused_share) = enough.unwrap_or_default();
    Ok(Suggestion {
        limit: limit.to_owned(),
        key: varied.key,
        value: varied.value(rate).to_string(),
        refused_share,
        goal,
    })
}

/// Rates that lie evenly between two.
fn between(below: u64, enough: u64) -> Vec<u64> {
    let gap = enough - below;
    let mut rates: Vec<u64> = (1..=AT_ONCE).map(|nth| below + (gap * nth).div_ceil(AT_ONCE + 1)).collect();
    rates.retain(|rate| *rate > below && *rate < enough);
    rates.dedup();
    rates
}

/// Each twice the one before.
fn upward(from: u64) -> Vec<u64> {
    let from = from.max(1);
    (0..AT_ONCE).map(|nth| from.saturating_mul(1 << nth)).filter(|rate| *rate <= MAX_RATE).collect()
}

impl<'f> Varied<'f> {
    fn of(path: &'f Path, text: &str, limit: &str) -> Result<Self, String> {
        // It was read before, and a report of it may not show its secrets.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let root: Table = text.parse().map_err(|_| format!("{}: it has changed meanwhile", path.display()))?;
        let limits = root.get("limit").and_then(Value::as_array);
        let name_of = |own: &Value| own.get("name").and_then(Value::as_str).map(str::to_owned);
        let names: Vec<_> = limits.into_iter().flatten().map(name_of).collect();
        let none = || {
            let known: Vec<_> = names.iter().flatten().map(String::as_str).collect();
            format!("{}: no [[limit]] is called {limit:?}; there are: {}", path.display(), known.join(", "))
        };
        let at = names.iter().position(|own| own.as_deref() == Some(limit)).ok_or_else(none)?;
        let own = limits.and_then(|limits| limits.get(at)).ok_or_else(none)?;
        let wrong = || format!("{}: the limit {limit:?} has no rate that could be varied", path.display());
        let rate = |value: &Value| {
            let (number, rest) = value.as_str()?.split_once('/')?;
            Some((number.trim().parse().ok()?, rest.to_owned()))
        };
        let (key, rates, is_list) = match (own.get("rate"), own.get("max_in_flight").and_then(Value::as_integer)) {
            (_, Some(number)) => {
                ("max_in_flight", Some(vec![(u64::try_from(number).map_err(|_| wrong())?, String::new())]), false)
            }
            (Some(Value::Array(rates)), _) => ("rate", rates.iter().map(rate).collect(), true),
            (Some(one), _) => ("rate", rate(one).map(|rate| vec![rate]), false),
            (None, None) => return Err(wrong()),
        };
        let rates = rates.filter(|rates| rates.first().is_some_and(|(number, _)| *number > 0)).ok_or_else(wrong)?;
        Ok(Self { path, root, at, key, rates, is_list })
    }

    /// The setting at this number of its first rate.
    fn value(&self, number: u64) -> Value {
        let first = self.rates.first().map_or(1, |(number, _)| *number);
        let scaled = |own: u64| (u128::from(own) * u128::from(number)).div_ceil(u128::from(first));
        let text = |(own, rest): &(u64, String)| Value::String(format!("{}/{rest}", scaled(*own)));
        match self.rates.as_slice() {
            [_] if self.key == "max_in_flight" => Value::Integer(i64::try_from(number).unwrap_or(i64::MAX)),
            [one] if !self.is_list => text(one),
            all => Value::Array(all.iter().map(text).collect()),
        }
    }

    /// The file with this number; `None` if it may not be so.
    fn at(&self, number: u64) -> Option<Offline> {
        let mut root = self.root.clone();
        let limit = root.get_mut("limit")?.as_array_mut()?.get_mut(self.at)?.as_table_mut()?;
        limit.insert(self.key.to_owned(), self.value(number));
        let parsed =
            config::parse(&root.to_string(), self.path, Certificates::PlansAlone(Clock::system().wall_now())).ok()?;
        Offline::new(Arc::new(parsed.model)).ok()
    }

    /// The part of its requests that the limit refuses, at each of these numbers that it may have.
    fn shares(
        &self,
        logs: &Logs,
        numbers: &[u64],
        tell: &mut dyn FnMut(SimulationProgress),
    ) -> Result<Vec<(u64, f64)>, String> {
        let trial = |number: &u64| {
            let offline = self.at(*number)?;
            let redactor = redactor_offline(&offline.model);
            Some((*number, Trial::new(offline, redactor, false)))
        };
        let mut trials: Vec<_> = numbers.iter().filter_map(trial).collect();
        let mut source = RequestSource::new(logs.files.clone(), logs.host.clone());
        let (of, mut requests) = (lines::size_of(&logs.files), 0);
        while !trials.is_empty()
            && source.next(&mut |logged| trials.iter_mut().for_each(|(_, trial)| trial.arrive(logged)))?
        {
            requests += 1;
            if requests % STRIDE == 0 {
                tell(SimulationProgress { bytes: source.taken(), of, requests });
            }
        }
        let mut shares = Vec::with_capacity(trials.len());
        for (number, mut trial) in trials {
            trial.finish();
            let own = trial.counts.limits.get(self.at);
            let (admitted, refused) = own.map_or((0, 0), |own| (own.admitted, own.refused));
            if admitted + refused == 0 {
                return Err("the limit was asked of no request of the logs: there is nothing to suggest".to_owned());
            }
            shares.push((number, refused as f64 / (admitted + refused) as f64));
        }
        Ok(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_tried_upward_and_then_between() {
        assert_eq!(upward(0)[..3], [1, 2, 4]);
        assert_eq!(upward(600_000_000), [600_000_000]);
        assert_eq!(between(10, 12), [11]);
        assert_eq!(between(0, 14), (2..14).collect::<Vec<_>>());
        assert!(between(10, 11).is_empty());
    }

    #[test]
    fn several_rates_keep_their_proportion() {
        let text =
            "[[limit]]\nname = \"a\"\nrate = [\"10/s\", \"100/m\"]\n[[limit]]\nname = \"b\"\nmax_in_flight = 5\n";
        let of = |name| Varied::of(Path::new("x"), text, name);
        assert_eq!(of("a").unwrap().value(3).to_string(), "[\"3/s\", \"30/m\"]");
        assert_eq!(of("b").unwrap().value(7).to_string(), "7");
        assert_eq!(of("c").err().unwrap(), "x: no [[limit]] is called \"c\"; there are: a, b");
    }
}
