//! The rate fields of a response. One file writes them, because the draft that names them still moves:
//! draft-ietf-httpapi-ratelimit-headers (`RateLimit-Policy`, `RateLimit`, structured fields, RFC 9651) and the older
//! `X-RateLimit-*` family.

use std::fmt::Write as _;

use super::headers::Sink;
use crate::config::RateHeaders;
use crate::limiter::{QuotaLine, Report};
use crate::time::Span;

const SECOND_NANOS: u64 = 1_000_000_000;

/// What a refusal adds to the rate fields.
#[derive(Clone, Copy, Debug)]
pub struct RefusedBy {
    /// The limit that refused, by its index in the route.
    pub limit: usize,
    /// Seconds until a retry can succeed; `None` when it never can.
    pub retry_after_secs: Option<u64>,
}

/// Writes the rate fields that `families` asks for. `names` are the route's limits in the file's order.
pub fn write<'a>(
    families: RateHeaders,
    report: &Report,
    name_of: impl Fn(usize) -> &'a str,
    refused: Option<RefusedBy>,
    sink: &mut impl Sink,
) {
    // A limit in shadow mode refuses nobody: clients need not keep to it.
    let lines = || report.lines().iter().filter(|line| !line.shadow);
    if families == RateHeaders::Off || lines().next().is_none() {
        return;
    }
    if matches!(families, RateHeaders::Auto | RateHeaders::Ietf | RateHeaders::Both) {
        write_ietf(lines(), &name_of, sink);
    }
    let legacy = match families {
        RateHeaders::Auto => refused.is_some(),
        RateHeaders::Legacy | RateHeaders::Both => true,
        RateHeaders::Ietf | RateHeaders::Off => false,
    };
    // An origin that counts for itself has the stricter word on it; a second line would only be misread.
    if legacy && !sink.has("x-ratelimit-limit") {
        write_legacy(lines, refused, sink);
    }
}

fn write_ietf<'a, 'l>(
    lines: impl Iterator<Item = &'l QuotaLine>,
    name_of: &impl Fn(usize) -> &'a str,
    sink: &mut impl Sink,
) {
    let mut policy = String::with_capacity(64);
    let mut state = String::with_capacity(64);
    for line in lines {
        for list in [&mut policy, &mut state] {
            if !list.is_empty() {
                list.push_str(", ");
            }
            write_item_name(list, name_of(line.limit), line.rate);
        }
        // Writing into a String cannot fail.
        let _ = write!(policy, ";q={}", line.quota);
        if is_whole_seconds(line.window) {
            let _ = write!(policy, ";w={}", line.window.as_nanos() / SECOND_NANOS);
        }
        let _ = write!(state, ";r={}", line.remaining);
        if let Some(reset) = line.reset {
            let _ = write!(state, ";t={}", reset.as_secs_ceil());
        }
    }
    sink.put("ratelimit-policy", policy.as_bytes());
    sink.put("ratelimit", state.as_bytes());
}

/// A structured-field string: names hold no quote or backslash, the configuration sees to it.
fn write_item_name(list: &mut String, name: &str, rate: usize) {
    list.push('"');
    list.push_str(name);
    if rate > 0 {
        let _ = write!(list, "-{}", rate + 1);
    }
    list.push('"');
}

fn is_whole_seconds(window: Span) -> bool {
    window.as_nanos() >= SECOND_NANOS && window.as_nanos().is_multiple_of(SECOND_NANOS)
}

/// Of the limit that refused, else of the one with the fewest remaining.
fn write_legacy<'l, L: Iterator<Item = &'l QuotaLine>>(
    lines: impl Fn() -> L,
    refused: Option<RefusedBy>,
    sink: &mut impl Sink,
) {
    let of_refusing = lines().filter(|line| refused.is_some_and(|by| by.limit == line.limit));
    let Some(line) =
        of_refusing.min_by_key(|line| line.remaining).or_else(|| lines().min_by_key(|line| line.remaining))
    else {
        return;
    };
    sink.put("x-ratelimit-limit", line.quota.to_string().as_bytes());
    sink.put("x-ratelimit-remaining", line.remaining.to_string().as_bytes());
    sink.put("x-ratelimit-reset", line.reset.unwrap_or_default().as_secs_ceil().to_string().as_bytes());
    if let Some(secs) = refused.and_then(|by| by.retry_after_secs) {
        sink.put("x-ratelimit-retry-after", secs.to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{
        Algorithm, Ask, Bound, KeyHasher, Limit, LimitSpec, Mode, OnFull, Policy, TimerWheel, Verdict,
    };
    use crate::time::Tick;

    #[derive(Default)]
    struct Lines(Vec<(String, String)>);

    impl Sink for Lines {
        fn put(&mut self, name: &str, value: &[u8]) {
            self.0.push((name.to_owned(), String::from_utf8(value.to_vec()).unwrap()));
        }

        fn has(&self, name: &str) -> bool {
            self.0.iter().any(|(known, _)| known == name)
        }
    }

    fn limit(name: &str, rates: &[&str]) -> std::sync::Arc<Limit> {
        let rates: Vec<_> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
        Limit::new(LimitSpec {
            name: name.into(),
            algorithm: Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()),
            mode: Mode::Enforce,
            max_wait: Span::ZERO,
            max_queue: None,
            max_keys: 10,
            on_full: OnFull::EvictOldest,
        })
    }

    /// The fields after `times` requests at tick 0.
    fn fields(families: RateHeaders, times: usize, refused: Option<RefusedBy>) -> Vec<(String, String)> {
        let policy = Policy::new(vec![limit("one", &["5/1s", "20/250ms"]), limit("two", &["9/1m"])]).unwrap();
        let ask = Ask { key: Some(KeyHasher::fixed().start().finish()), cost: 1 };
        let mut report = Report::default();
        for _ in 0..times {
            let verdict = policy.check(&[ask, ask], Span::MAX, Tick::ZERO, &mut report);
            assert!(matches!(verdict, Verdict::Admitted));
        }
        let mut lines = Lines::default();
        write(families, &report, |limit| ["one", "two"][limit], refused, &mut lines);
        lines.0
    }

    fn pairs(fields: &[(String, String)]) -> Vec<(&str, &str)> {
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn one_item_per_rate_and_no_window_below_a_second() {
        assert_eq!(
            pairs(&fields(RateHeaders::Ietf, 2, None)),
            [
                ("ratelimit-policy", "\"one\";q=5;w=1, \"one-2\";q=20, \"two\";q=9;w=60"),
                ("ratelimit", "\"one\";r=3;t=1, \"one-2\";r=18;t=1, \"two\";r=7;t=60"),
            ]
        );
    }

    #[test]
    fn legacy_is_of_the_fewest_remaining_or_of_the_refusing_limit() {
        assert_eq!(
            pairs(&fields(RateHeaders::Legacy, 2, None)),
            [("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1")]
        );
        let by = RefusedBy { limit: 1, retry_after_secs: Some(60) };
        assert_eq!(
            pairs(&fields(RateHeaders::Legacy, 2, Some(by))),
            [
                ("x-ratelimit-limit", "9"),
                ("x-ratelimit-remaining", "7"),
                ("x-ratelimit-reset", "60"),
                ("x-ratelimit-retry-after", "60")
            ]
        );
    }

    #[test]
    fn a_shadow_limit_is_not_shown() {
        let shadow = limit("one", &["5/1s"]);
        shadow.reconfigure(LimitSpec { mode: Mode::Shadow, ..shadow.spec() });
        let policy = Policy::new(vec![shadow]).unwrap();
        let ask = Ask { key: Some(KeyHasher::fixed().start().finish()), cost: 1 };
        let mut report = Report::default();
        let _ = policy.check(&[ask], Span::MAX, Tick::ZERO, &mut report);
        assert_eq!(report.lines().len(), 1);
        let mut lines = Lines::default();
        write(RateHeaders::Both, &report, |_| "one", None, &mut lines);
        assert_eq!(lines.0, []);
    }

    #[test]
    fn auto_adds_legacy_on_a_refusal_only_and_off_is_off() {
        let by = Some(RefusedBy { limit: 0, retry_after_secs: None });
        assert_eq!(fields(RateHeaders::Auto, 1, None).len(), 2);
        assert_eq!(fields(RateHeaders::Auto, 1, by).len(), 5);
        assert_eq!(fields(RateHeaders::Off, 1, by), []);
    }
}
