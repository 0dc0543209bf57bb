//! The rate fields of a response. One file writes them, because the draft that names them still moves:
//! draft-ietf-httpapi-ratelimit-headers (`RateLimit-Policy`, `RateLimit`, structured fields, RFC 9651) and the older
//! `X-RateLimit-*` family.

use crate::headers::Sink;
use sluicegate_config::RateHeaders;
use sluicegate_limiter::{QuotaLine, Report};
use sluicegate_time::Span;

const SECOND_NANOS: u64 = 1_000_000_000;

/// The facts of a refusal that the rate fields tell.
#[derive(Clone, Copy, Debug)]
pub struct RefusedBy {
    /// The limit that refused, by its index in the route.
    pub limit: usize,
    /// Seconds until a retry can succeed; `None` when it never can.
    pub retry_after_secs: Option<u64>,
}

/// Writes the rate fields that `families` asks for. `name_of` names a limit by its index in the route, `told_secs` says a
/// wait for it as clients are told of it; `scratch` is overwritten, and once it is warm nothing is allocated.
pub fn write<'a>(
    families: RateHeaders,
    report: &Report,
    (name_of, told_secs): (impl Fn(usize) -> &'a str, impl Fn(usize, Span) -> u64),
    refused: Option<RefusedBy>,
    scratch: &mut Vec<u8>,
    sink: &mut impl Sink,
) {
    // A limit in shadow mode refuses nobody: clients need not keep to it.
    let lines = || report.lines().iter().filter(|line| !line.shadow);
    if families == RateHeaders::Off || lines().next().is_none() {
        return;
    }
    if matches!(families, RateHeaders::Auto | RateHeaders::Ietf | RateHeaders::Both) {
        write_ietf(lines, (&name_of, &told_secs), scratch, sink);
    }
    let legacy = match families {
        RateHeaders::Auto => refused.is_some(),
        RateHeaders::Legacy | RateHeaders::Both => true,
        RateHeaders::Ietf | RateHeaders::Off => false,
    };
    // An origin that counts for itself has the stricter word on it; a second line would only be misread. No origin was
    // asked where a limit has refused.
    if legacy && (refused.is_some() || !sink.has(b"x-ratelimit-limit")) {
        write_legacy(lines, told_secs, refused, sink);
    }
}

fn write_ietf<'a, 'l, L: Iterator<Item = &'l QuotaLine>>(
    lines: impl Fn() -> L,
    (name_of, told_secs): (&impl Fn(usize) -> &'a str, &impl Fn(usize, Span) -> u64),
    scratch: &mut Vec<u8>,
    sink: &mut impl Sink,
) {
    let policy = |line: &QuotaLine| {
        let window = is_whole_seconds(line.window).then(|| (b";w=", line.window.as_nanos() / SECOND_NANOS));
        RateItem { name: name_of(line.limit), rate: line.rate, first: (b"\";q=", line.quota), second: window }
    };
    let state = |line: &QuotaLine| {
        let reset = line.reset.map(|reset| (b";t=", told_secs(line.limit, reset)));
        RateItem { name: name_of(line.limit), rate: line.rate, first: (b"\";r=", line.remaining), second: reset }
    };
    write_list(b"ratelimit-policy", lines().map(policy), scratch, sink);
    write_list(b"ratelimit", lines().map(state), scratch, sink);
}

/// An item of a structured list: a string with integers as its parameters. Names hold no quote or backslash, the
/// configuration sees to it.
struct RateItem<'a> {
    name: &'a str,
    /// The rate's index in its limit: all but the first are told apart by a number.
    rate: usize,
    /// The end of the string, then the key, then the value.
    first: (&'static [u8; 4], u64),
    second: Option<(&'static [u8; 3], u64)>,
}

impl RateItem<'_> {
    /// Hands the item on in parts.
    #[inline]
    fn write(&self, write: impl FnOnce(&[&[u8]])) {
        let (mut first, mut second, mut nth) = (itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new());
        let (end, value) = self.first;
        let (name, value) = (self.name.as_bytes(), first.format(value).as_bytes());
        match (self.rate, self.second) {
            (0, None) => write(&[b"\"", name, end, value]),
            (0, Some((key, more))) => write(&[b"\"", name, end, value, key, second.format(more).as_bytes()]),
            (rate, more) => {
                let nth = nth.format(rate + 1).as_bytes();
                let (key, more): (&[u8], _) = more.map_or((b"", ""), |(key, more)| (key, second.format(more)));
                write(&[b"\"", name, b"-", nth, end, value, key, more.as_bytes()]);
            }
        }
    }
}

/// A list of one item, as nearly all are, goes to the sink as it is; others are put together in `scratch`.
fn write_list<'a>(
    name: &[u8],
    mut items: impl Iterator<Item = RateItem<'a>>,
    scratch: &mut Vec<u8>,
    sink: &mut impl Sink,
) {
    let Some(first) = items.next() else { return };
    let Some(second) = items.next() else { return first.write(|parts| sink.put_joined(name, parts)) };
    scratch.clear();
    for item in [first, second].into_iter().chain(items) {
        if !scratch.is_empty() {
            scratch.extend_from_slice(b", ");
        }
        item.write(|parts| parts.iter().for_each(|part| scratch.extend_from_slice(part)));
    }
    sink.put(name, scratch);
}

fn is_whole_seconds(window: Span) -> bool {
    window.as_nanos() >= SECOND_NANOS && window.as_nanos().is_multiple_of(SECOND_NANOS)
}

/// Of the limit that refused, else of the one with the fewest remaining.
fn write_legacy<'l, L: Iterator<Item = &'l QuotaLine>>(
    lines: impl Fn() -> L,
    told_secs: impl Fn(usize, Span) -> u64,
    refused: Option<RefusedBy>,
    sink: &mut impl Sink,
) {
    let of_refusing = lines().filter(|line| refused.is_some_and(|by| by.limit == line.limit));
    let Some(line) =
        of_refusing.min_by_key(|line| line.remaining).or_else(|| lines().min_by_key(|line| line.remaining))
    else {
        return;
    };
    let mut put = |name: &[u8], number: u64| sink.put(name, itoa::Buffer::new().format(number).as_bytes());
    put(b"x-ratelimit-limit", line.quota);
    put(b"x-ratelimit-remaining", line.remaining);
    put(b"x-ratelimit-reset", told_secs(line.limit, line.reset.unwrap_or_default()));
    if let Some(secs) = refused.and_then(|by| by.retry_after_secs) {
        put(b"x-ratelimit-retry-after", secs);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;
    use sluicegate_limiter::{
        Algorithm, Ask, Bound, Counting, KeyHasher, Limit, LimitSpec, Mode, Policy, TimerWheel, Verdict,
    };
    use sluicegate_time::Tick;

    #[derive(Default)]
    struct Lines(Vec<(String, String)>);

    impl Sink for Lines {
        fn put(&mut self, name: &[u8], value: &[u8]) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            self.0.push((text(name), text(value)));
        }

        fn has(&self, lower_name: &[u8]) -> bool {
            self.0.iter().any(|(name, _)| name.as_bytes() == lower_name)
        }
    }

    fn limit(name: &str, rates: &[&str]) -> std::sync::Arc<Limit> {
        let rates: Vec<_> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
        Limit::new(LimitSpec {
            max_keys: 10,
            ..LimitSpec::new(name, Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()))
        })
    }

    /// The fields after `times` requests at tick 0.
    fn fields(families: RateHeaders, times: usize, refused: Option<RefusedBy>) -> Vec<(String, String)> {
        let policy = Policy::new(vec![limit("one", &["5/1s", "20/250ms"]), limit("two", &["9/1m"])]).unwrap();
        let ask = Ask {
            key: Some(KeyHasher::fixed().start().finish()),
            cost: 1,
            counting: Counting::AtOnce,
            ..Ask::default()
        };
        let mut report = Report::default();
        for _ in 0..times {
            let verdict = policy.check(&[ask, ask], Span::MAX, Tick::ZERO, &mut report);
            assert!(matches!(verdict, Verdict::Admitted(_)));
        }
        let mut lines = Lines::default();
        write(
            families,
            &report,
            (|limit| ["one", "two"][limit], |_, wait| wait.as_secs_ceil()),
            refused,
            &mut Vec::new(),
            &mut lines,
        );
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
        let ask = Ask {
            key: Some(KeyHasher::fixed().start().finish()),
            cost: 1,
            counting: Counting::AtOnce,
            ..Ask::default()
        };
        let mut report = Report::default();
        let _ = policy.check(&[ask], Span::MAX, Tick::ZERO, &mut report);
        assert_eq!(report.lines().len(), 1);
        let mut lines = Lines::default();
        write(
            RateHeaders::Both,
            &report,
            (|_| "one", |_, wait| wait.as_secs_ceil()),
            None,
            &mut Vec::new(),
            &mut lines,
        );
        assert_eq!(lines.0, []);
    }

    #[test]
    fn an_origin_that_counts_for_itself_has_the_word() {
        let mut lines = Lines(vec![("x-ratelimit-limit".to_owned(), "7".to_owned())]);
        write(
            RateHeaders::Legacy,
            &report_of(&[(&[0], false)], 1),
            (|_| "one", |_, wait| wait.as_secs_ceil()),
            None,
            &mut Vec::new(),
            &mut lines,
        );
        assert_eq!(pairs(&lines.0), [("x-ratelimit-limit", "7")]);
    }

    #[test]
    fn waits_are_told_as_the_limit_says_and_those_of_others_as_they_are() {
        let report = report_of(&[(&[3], false), (&[2], false)], 1);
        let (names, told) = (["long", "short"], |limit, wait: Span| wait.as_secs_ceil().min([40, u64::MAX][limit]));
        let by = Some(RefusedBy { limit: 0, retry_after_secs: Some(40) });
        let mut lines = Lines::default();
        write(RateHeaders::Both, &report, (|limit| names[limit], told), by, &mut Vec::new(), &mut lines);
        assert_eq!(
            pairs(&lines.0),
            [
                ("ratelimit-policy", "\"long\";q=1000000;w=3600, \"short\";q=9;w=60"),
                ("ratelimit", "\"long\";r=999999;t=40, \"short\";r=8;t=60"),
                ("x-ratelimit-limit", "1000000"),
                ("x-ratelimit-remaining", "999999"),
                ("x-ratelimit-reset", "40"),
                ("x-ratelimit-retry-after", "40"),
            ]
        );
    }

    const RATES: [&str; 5] = ["5/1s", "20/250ms", "9/1m", "1000000/1h", "700/1500ms"];

    /// How limits of these rates stand after `times` requests at tick 0; those with `true` are in shadow mode.
    fn report_of(limits: &[(&[usize], bool)], times: usize) -> Report {
        let limits = limits.iter().enumerate().map(|(nth, (rates, shadow))| {
            let limit = limit(&format!("n{nth}"), &rates.iter().map(|rate| RATES[*rate]).collect::<Vec<_>>());
            if *shadow {
                limit.reconfigure(LimitSpec { mode: Mode::Shadow, ..limit.spec() });
            }
            limit
        });
        let limits: Vec<_> = limits.collect();
        let asks = vec![
            Ask {
                key: Some(KeyHasher::fixed().start().finish()),
                cost: 1,
                counting: Counting::AtOnce,
                ..Ask::default()
            };
            limits.len()
        ];
        let policy = Policy::new(limits).unwrap();
        let mut report = Report::default();
        for _ in 0..times {
            let _ = policy.check(&asks, Span::MAX, Tick::ZERO, &mut report);
        }
        report
    }

    /// One of the two lists, said another way.
    fn list(report: &Report, parameters: impl Fn(&QuotaLine) -> String) -> String {
        let nth = |line: &QuotaLine| if line.rate == 0 { String::new() } else { format!("-{}", line.rate + 1) };
        let item = |line: &QuotaLine| format!("\"n{}{}\"{}", line.limit, nth(line), parameters(line));
        report.lines().iter().filter(|line| !line.shadow).map(item).collect::<Vec<_>>().join(", ")
    }

    proptest! {
        #[test]
        fn lists_hold_what_the_report_says(
            limits in vec((subsequence(vec![0, 1, 2, 3, 4], 1..4), any::<bool>()), 1..4),
            times in 1_usize..12,
        ) {
            let limits: Vec<_> = limits.iter().map(|(rates, shadow)| (rates.as_slice(), *shadow)).collect();
            let report = report_of(&limits, times);
            let names = ["n0", "n1", "n2"];
            let mut scratch = b"of before".to_vec();
            let mut lines = Lines::default();
            write(RateHeaders::Ietf, &report, (|limit| names[limit], |_, wait: Span| wait.as_secs_ceil()), None, &mut scratch, &mut lines);
            let policy = list(&report, |line| match line.window.as_millis_ceil() {
                millis if millis % 1000 == 0 => format!(";q={};w={}", line.quota, millis / 1000),
                _ => format!(";q={}", line.quota),
            });
            let state = list(&report, |line| match line.reset {
                Some(reset) => format!(";r={};t={}", line.remaining, reset.as_millis_ceil().div_ceil(1000)),
                None => format!(";r={}", line.remaining),
            });
            if policy.is_empty() {
                prop_assert_eq!(lines.0, []);
            } else {
                prop_assert_eq!(pairs(&lines.0), [("ratelimit-policy", &*policy), ("ratelimit", &*state)]);
            }
        }
    }

    #[test]
    fn auto_adds_legacy_on_a_refusal_only_and_off_is_off() {
        let by = Some(RefusedBy { limit: 0, retry_after_secs: None });
        assert_eq!(fields(RateHeaders::Auto, 1, None).len(), 2);
        assert_eq!(fields(RateHeaders::Auto, 1, by).len(), 5);
        assert_eq!(fields(RateHeaders::Off, 1, by), []);
    }
}
