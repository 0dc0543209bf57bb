//! Settings of algorithms, as they are written and as they are wrong.

use std::path::Path;

use crate::{Certificates, LimitRule, parse};
use sluicegate_admission::Cost;
use sluicegate_limiter::{Algorithm, Refill};
use sluicegate_time::Span;

const REST: &str = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\n\
                    respond = { body = \"x\" }\nlimits = [\"a\"]\n[[limit]]\nname = \"a\"\n";

fn limit(settings: &str) -> LimitRule {
    let parsed = parse(&format!("{REST}{settings}"), Path::new("/g.toml"), Certificates::Unread)
        .unwrap_or_else(|errors| panic!("{errors}"));
    assert!(parsed.warnings.is_empty(), "{}", parsed.warnings);
    LimitRule::clone(&parsed.model.limits[0])
}

/// The messages and remedies of each error, without the places.
fn errors(settings: &str) -> Vec<String> {
    let errors = parse(&format!("{REST}{settings}"), Path::new("/g.toml"), Certificates::Unread)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    let keep = |line: &str| {
        line.strip_prefix("error: ").or_else(|| line.trim_start().strip_prefix("= help: ")).map(str::to_owned)
    };
    errors.lines().filter_map(keep).collect()
}

#[test]
fn every_algorithm_is_read_with_its_settings() {
    for (settings, expected) in [
        ("algorithm = \"token-bucket\"\nrate = \"9/s\"", "rates 9/s burst None Greedy"),
        (
            "algorithm = \"token-bucket\"\nrate = \"9/s\"\nburst = 4\nrefill = \"interval\"",
            "rates 9/s burst Some(4) Interval",
        ),
        ("algorithm = \"gcra\"\nrate = [\"9/s\", \"20/m\"]", "rates 9/s 20/m burst 1"),
        ("algorithm = \"gcra\"\nrate = \"9/s\"\nburst = 3", "rates 9/s burst 3"),
        ("algorithm = \"leaky-bucket\"\nrate = \"9/s\"", "rates 9/s waiting 9"),
        ("algorithm = \"leaky-bucket\"\nrate = \"9/s\"\nmax_waiting = 20000", "rates 9/s waiting 20000"),
        ("algorithm = \"fixed-window\"\nrate = \"9/s\"", "rates 9/s Epoch"),
        ("algorithm = \"fixed-window\"\nrate = \"9/s\"\nalign = \"first\"", "rates 9/s First"),
        ("algorithm = \"fixed-window\"\nrate = \"9/d\"\nalign = \"calendar\"", "rates 9/d Zone(UTC) Day"),
        (
            "algorithm = \"fixed-window\"\nrate = \"9/7d\"\nalign = \"calendar\"\nzone = \"europe/berlin\"",
            "rates 9/7d Zone(Europe/Berlin) Week",
        ),
        ("algorithm = \"sliding-window\"\nrate = \"20/5s\"", "rates 20/5s slots Some(10) cap Some(4)"),
        (
            "algorithm = \"sliding-window\"\nrate = \"20/5s\"\nslots = 5\nslot_limit = 9",
            "rates 20/5s slots Some(5) cap Some(9)",
        ),
        ("algorithm = \"sliding-counter\"\nrate = \"9/h\"", "rates 9/h"),
        ("algorithm = \"sliding-log\"\nrate = \"9/s\"", "rates 9/s 0s false"),
        (
            "algorithm = \"sliding-log\"\nrate = \"9/s\"\nmin_difference = \"50ms\"\ncount_refused = true",
            "rates 9/s 50ms true",
        ),
        ("algorithm = \"smooth-bursty\"\nrate = \"9/s\"", "rates 9/s burst 1s"),
        ("algorithm = \"smooth-bursty\"\nrate = \"9/s\"\nmax_burst_seconds = 0", "rates 9/s burst 0s"),
        ("algorithm = \"warm-up\"\nrate = \"9/s\"\nwarm_up = \"4s\"", "rates 9/s 4s factor 3"),
        ("algorithm = \"warm-up\"\nrate = \"9/s\"\nwarm_up = \"4s\"\ncold_factor = 5", "rates 9/s 4s factor 5"),
        ("algorithm = \"concurrency\"\nmax_in_flight = 7", "rates  7 at once"),
    ] {
        let algorithm = limit(settings).spec.algorithm;
        assert!(settings.contains(&format!("\"{}\"", algorithm.name())), "{algorithm:?}");
        let rates: Vec<String> = algorithm.rates().iter().map(ToString::to_string).collect();
        let own = match &algorithm {
            Algorithm::TokenBucket(bucket) => format!(" burst {:?} {:?}", bucket.burst(), bucket.refill()),
            Algorithm::Gcra(gcra) => format!(" burst {}", gcra.burst()),
            Algorithm::LeakyBucket(bucket) => format!(" waiting {}", bucket.max_waiting()),
            Algorithm::FixedWindow(window) => match window.align() {
                Some(align) => format!(" {align:?}"),
                None => format!(" {:?} {:?}", window.zone().unwrap(), window.unit_of(0).unwrap()),
            },
            Algorithm::SlidingWindow(window) => {
                format!(" slots {:?} cap {:?}", window.slots_of(0), window.slot_limit_of(0))
            }
            Algorithm::SlidingLog(log) => format!(" {} {}", log.min_difference(), log.count_refused()),
            Algorithm::SmoothBursty(smooth) => format!(" burst {}", smooth.max_burst()),
            Algorithm::WarmUp(warm) => format!(" {} factor {}", warm.warm_up(), warm.cold_factor()),
            Algorithm::Concurrency(concurrency) => format!(" {} at once", concurrency.max_in_flight()),
            _ => String::new(),
        };
        assert_eq!(format!("rates {}{own}", rates.join(" ")), expected, "{settings}");
    }
}

#[test]
fn pacing_algorithms_wait_a_second_when_nothing_is_said() {
    let second = Span::from_secs(1);
    for (settings, max_wait) in [
        ("algorithm = \"leaky-bucket\"\nrate = \"9/s\"", second),
        ("algorithm = \"smooth-bursty\"\nrate = \"9/s\"", second),
        ("algorithm = \"warm-up\"\nrate = \"9/s\"\nwarm_up = \"4s\"", second),
        ("algorithm = \"smooth-bursty\"\nrate = \"9/s\"\nmax_wait = \"0s\"", Span::ZERO),
        ("algorithm = \"gcra\"\nrate = \"9/s\"", Span::ZERO),
    ] {
        assert_eq!(limit(settings).spec.max_wait, max_wait, "{settings}");
    }
    assert_eq!(limit("algorithm = \"leaky-bucket\"\nrate = \"9/s\"\nmax_waiting = 3").spec.max_queue, None);
}

#[test]
fn settings_of_another_algorithm_are_called_so() {
    assert_eq!(
        errors("rate = \"9/s\"\nburst = 5\n"),
        [
            "`burst` is no setting of the algorithm timer-wheel",
            "timer-wheel has rate, slots, bound, max_queue; `burst` is of token-bucket, gcra"
        ]
    );
    assert_eq!(
        errors("algorithm = \"leaky-bucket\"\nrate = \"9/s\"\nmax_queue = 5\n"),
        [
            "`max_queue` is no setting of the algorithm leaky-bucket",
            "leaky-bucket has rate, max_waiting; `max_queue` is of timer-wheel, token-bucket, gcra, fixed-window, \
             sliding-window, sliding-counter, sliding-log, smooth-bursty, warm-up, concurrency"
        ]
    );
    let foreign = "slots = 5\nbound = \"slot\"\nrefill = 1\nalign = 1\nslot_limit = 0\nmin_difference = 1\n\
                   count_refused = 1\nmax_burst_seconds = 1\nwarm_up = 1\ncold_factor = 1\nmax_waiting = 1\n";
    let errors = errors(&format!("algorithm = \"gcra\"\nrate = \"9/s\"\n{foreign}"));
    assert_eq!(errors.len(), 2 * foreign.lines().count(), "one each: {errors:?}");
    assert!(errors.iter().step_by(2).all(|error| error.ends_with("is no setting of the algorithm gcra")));
}

#[test]
fn of_an_unknown_algorithm_no_setting_is_wrong() {
    let found = errors("algorithm = \"token-buckets\"\nrate = 5\nburst = \"x\"\nslots = 0\n");
    assert_eq!(found, ["`algorithm` cannot be \"token-buckets\"", "did you mean \"token-bucket\"?"]);
}

#[test]
fn absurd_settings_come_with_a_remedy() {
    for (settings, message, help) in [
        (
            "algorithm = \"gcra\"\nrate = \"1/d\"\nburst = 36501",
            "1/d takes more than a hundred years to refill a burst of 36501",
            "use burst = 36500 or less, or a faster rate",
        ),
        (
            "algorithm = \"token-bucket\"\nrate = \"9/s\"\nburst = 0",
            "`burst` is out of range: `0`",
            "it goes from 1 to 1000000000000",
        ),
        (
            "algorithm = \"fixed-window\"\nrate = \"9/40000d\"",
            "`rate` makes no fixed window",
            "the window of 9/40000d is longer than 36500d: use a shorter one",
        ),
        (
            "algorithm = \"sliding-log\"\nrate = \"5000/h\"",
            "`rate` makes no sliding log",
            "a log of 5000 instants for each key is too long: use at most 4096, or sliding-counter for 5000/h",
        ),
        (
            "algorithm = \"sliding-window\"\nrate = \"9/s\"\nslots = 7",
            "7 slots do not divide the window of 9/s",
            "use slots = 8, the nearest that does (equal slots of at least 1ms)",
        ),
        ("algorithm = \"concurrency\"", "[[limit]] has no `max_in_flight`", "add max_in_flight = 100"),
        (
            "algorithm = \"concurrency\"\nmax_in_flight = 0",
            "`max_in_flight` is out of range: `0`",
            "it goes from 1 to 1000000000000",
        ),
        (
            "algorithm = \"concurrency\"\nmax_in_flight = 3\nrate = \"3/s\"",
            "`rate` is no setting of the algorithm concurrency",
            "concurrency has max_in_flight, max_queue; `rate` is of timer-wheel, token-bucket, gcra, leaky-bucket, \
             fixed-window, sliding-window, sliding-counter, sliding-log, smooth-bursty, warm-up",
        ),
        (
            "algorithm = \"concurrency\"\nmax_in_flight = 3\ncost = 4",
            "a cost of 4 never fits into a max_in_flight of 3: every request would be refused",
            "lower the cost to at most 3, or raise max_in_flight",
        ),
        ("algorithm = \"warm-up\"\nrate = \"9/s\"", "[[limit]] has no `warm_up`", "add warm_up = \"10s\""),
        (
            "algorithm = \"warm-up\"\nrate = \"2/s\"\nwarm_up = \"4s\"",
            "cold requests are up to 1500ms apart, and wait at most 1s",
            "set max_wait = \"1500ms\" or more, a smaller cold_factor, or a faster rate",
        ),
        (
            "algorithm = \"warm-up\"\nrate = \"2/s\"\nwarm_up = \"4s\"\nmax_wait = \"1499ms\"",
            "cold requests are up to 1500ms apart, and wait at most 1499ms",
            "set max_wait = \"1500ms\" or more, a smaller cold_factor, or a faster rate",
        ),
        (
            "algorithm = \"gcra\"\nrate = \"9/s\"\ncost = 2",
            "a cost of 2 never fits into a burst of 1: every request would be refused",
            "lower the cost to at most 1, or raise the burst",
        ),
        (
            "algorithm = \"sliding-window\"\nrate = \"20/5s\"\ncost = 5",
            "a cost of 5 never fits into a slot_limit of 4: every request would be refused",
            "lower the cost to at most 4, or raise slot_limit",
        ),
        (
            "algorithm = \"sliding-log\"\nrate = \"20/5s\"\ncost = 21",
            "a cost of 21 never fits into the rate 20/5s: every request would be refused",
            "lower the cost to at most 20, or raise the rate",
        ),
        (
            "algorithm = \"smooth-bursty\"\nrate = \"1/d\"\ncost = 36501",
            "a cost of 36501 never fits into a hundred years: every request would be refused",
            "lower the cost to at most 36500, or raise the rate",
        ),
    ] {
        let found = errors(settings);
        assert!(found[0].starts_with(message), "{settings}: {found:?}");
        assert!(found.len() == 2 && found[1] == help, "{settings}: {found:?}");
    }
    assert!(limit("algorithm = \"warm-up\"\nrate = \"2/s\"\nwarm_up = \"4s\"\nmax_wait = \"1500ms\"").cost.is_none());
    assert_eq!(limit("algorithm = \"smooth-bursty\"\nrate = \"5000/s\"\ncost = 15000").cost, Some(Cost::Fixed(15_000)));
    let Algorithm::TokenBucket(bucket) =
        limit("algorithm = \"token-bucket\"\nrate = \"2/s\"\nburst = 9\ncost = 9").spec.algorithm
    else {
        panic!("it is a token bucket")
    };
    assert_eq!((bucket.burst(), bucket.refill()), (Some(9), Refill::Greedy));
}

#[test]
fn what_is_hardly_meant_is_warned_of() {
    for (settings, warning) in [
        (
            "algorithm = \"leaky-bucket\"\nrate = \"9/s\"\nmax_wait = \"0s\"",
            "a leaky bucket makes requests wait: with max_wait = 0s it refuses them",
        ),
        (
            "algorithm = \"sliding-log\"\nrate = \"1000/s\"",
            "1000000 keys of 8016 bytes each may take 9.9 GiB of memory",
        ),
        (
            "algorithm = \"warm-up\"\nrate = \"9/s\"\nwarm_up = \"1s\"\ncost_from_response = \"header:x\"",
            "\"warm-up\" gives no quota back",
        ),
        (
            "algorithm = \"smooth-bursty\"\nrate = \"9/s\"\ncost_from_response = \"header:x\"",
            "makes its key wait for as long as that takes",
        ),
        (
            "algorithm = \"gcra\"\nrate = \"9/s\"\nmax_cost = 10\ncost_from_response = \"header:x\"",
            "no more than 9 is ever counted of what a response states",
        ),
        (
            "rate = \"9/s\"\ncost = 5\nmax_cost = 3\ncost_from_response = \"header:x\"",
            "no response is believed that states more than 3",
        ),
        (
            "algorithm = \"gcra\"\nrate = [\"9/s\", \"10/s\"]",
            "the rate 10/s never refuses anything: 9/s is stricter over every span",
        ),
    ] {
        let parsed = parse(&format!("{REST}{settings}"), Path::new("/g.toml"), Certificates::Unread)
            .unwrap_or_else(|errors| panic!("{errors}"));
        assert!(parsed.warnings.to_string().contains(warning), "{settings}: {}", parsed.warnings);
    }
}
