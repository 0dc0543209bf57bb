//! The published numbers of each algorithm, and what it takes of a key.

use super::*;

fn rates(texts: &[&str]) -> Vec<Rate> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn with(algorithm: Algorithm, max_wait: Span) -> (Arc<Limit>, Arc<Policy>) {
    one(LimitSpec { algorithm, max_wait, ..spec("1/s") })
}

fn bucket(rate: &str, burst: u64, refill: Refill) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(&rates(&[rate]), Some(burst), refill).unwrap())
}

fn gcra(rate: &str, burst: Option<u64>) -> Algorithm {
    Algorithm::Gcra(Gcra::new(&rates(&[rate]), burst).unwrap())
}

fn fixed(rate: &str, align: Align) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(&rates(&[rate]), align).unwrap())
}

fn counter(rate: &str) -> Algorithm {
    Algorithm::SlidingCounter(SlidingCounter::new(&rates(&[rate])).unwrap())
}

/// One request at each instant, in nanoseconds: A for admitted, R for refused.
fn pattern(policy: &Arc<Policy>, instants: impl IntoIterator<Item = u64>) -> String {
    let letter = |nanos| if admitted(policy, 1, Tick::from_nanos(nanos)) { 'A' } else { 'R' };
    instants.into_iter().map(letter).collect()
}

/// The remaining count and in how many nanoseconds it grows, as a refused or unlimited request is told.
fn standing(policy: &Arc<Policy>, now: Tick) -> (u64, Option<u64>) {
    let mut report = Report::default();
    let _ = policy.check(&asks(1, MAX_COUNT), Span::ZERO, now, &mut report);
    (report.lines()[0].remaining, report.lines()[0].reset.map(Span::as_nanos))
}

#[test]
fn token_bucket_of_three_refilled_ten_a_second() {
    let (_, policy) = with(bucket("10/s", 3, Refill::Greedy), Span::ZERO);
    let every_60_ms = (0..20).map(|step| step * 60_000_000);
    let pattern = pattern(&policy, every_60_ms);
    assert_eq!(pattern, "AAAAAARARAARARAARARA");
    assert_eq!(pattern.matches('A').count(), 14);
    // 0.4 of a token is left, so the next is whole in 60 ms.
    assert_eq!(standing(&policy, at(19 * 60)), (0, Some(60_000_000)));
}

#[test]
fn token_bucket_counts_thirds_of_a_second_to_the_nanosecond() {
    let (_, policy) = with(bucket("3/s", 3, Refill::Greedy), Span::ZERO);
    assert_eq!(pattern(&policy, [0; 4]), "AAAR");
    let instants = [333_333_333, 333_333_334, 666_666_667, 999_999_999, 1_000_000_000, 1_000_000_000];
    assert_eq!(pattern(&policy, instants), "RAARAR");
}

#[test]
fn token_bucket_by_intervals_refills_a_whole_window_after_the_first_token() {
    let (_, policy) = with(bucket("3/s", 5, Refill::Interval), Span::ZERO);
    assert_eq!(drain(&policy, 1, at(700)), 5);
    assert_eq!(drain(&policy, 1, at(1_699)), 0);
    assert_eq!(drain(&policy, 1, at(1_700)), 3);
    assert_eq!(drain(&policy, 1, at(3_699)), 3);
    assert_eq!(drain(&policy, 1, at(5_700)), 5, "no more than it holds");
    assert_eq!(standing(&policy, at(5_800)), (0, Some(900_000_000)));
}

#[test]
fn gcra_lets_one_pass_every_ten_milliseconds() {
    let (_, policy) = with(gcra("100/s", None), Span::ZERO);
    assert_eq!(pattern(&policy, [0, 9_999_000, 9_999_999, 10_000_000, 10_000_000]), "ARRAR");
    assert_eq!(refused(check(&policy, 1, 1, at(10))).retry_at, Some(at(20)));
}

#[test]
fn fixed_window_admits_twice_its_limit_across_an_edge() {
    let (_, policy) = with(fixed("10/m", Align::Epoch), Span::ZERO);
    let admitted = drain(&policy, 1, at(59_000)) + drain(&policy, 1, at(61_000));
    assert_eq!(admitted, 20);
}

#[test]
fn fixed_window_of_an_hour_may_be_used_up_in_a_minute() {
    let (_, policy) = with(fixed("3000/h", Align::Epoch), Span::ZERO);
    assert_eq!((0..60_000).step_by(10).filter(|millis| admitted(&policy, 1, at(*millis))).count(), 3_000);
    assert_eq!(refused(check(&policy, 1, 1, at(60_000))).retry_at, Some(at(3_600_000)));
}

#[test]
fn fixed_window_from_the_first_request_is_never_renewed() {
    let (_, policy) = with(fixed("10/m", Align::First), Span::ZERO);
    assert_eq!(drain(&policy, 1, at(59_000)), 10);
    // There the key is touched again and again, and its end stays where it was.
    for millis in (60_000..119_000).step_by(1_000) {
        assert_eq!(refused(check(&policy, 1, 1, at(millis))).retry_at, Some(at(119_000)));
    }
    assert_eq!(drain(&policy, 1, at(119_000)), 10);
}

#[test]
fn sliding_window_of_five_seconds_lets_every_300_ms_pass() {
    let window = SlidingWindow::new(&rates(&["20/5s"]), Some(10), None).unwrap();
    let (_, policy) = with(Algorithm::SlidingWindow(window), Span::ZERO);
    assert_eq!(pattern(&policy, (0..26).map(|call| call * 300_000_000)), "A".repeat(26));
}

#[test]
fn sliding_window_caps_a_burst_in_one_room() {
    let window = SlidingWindow::new(&rates(&["20/5s"]), Some(10), None).unwrap();
    let (_, policy) = with(Algorithm::SlidingWindow(window), Span::ZERO);
    assert_eq!(pattern(&policy, (0..6).map(|call| call * 1_000_000)), "AAAARR", "2 x 20 / 10 in a room");
    assert_eq!(refused(check(&policy, 1, 1, at(6))).retry_at, Some(at(500)));
    assert_eq!(standing(&policy, at(6)), (0, Some(494_000_000)));
    assert_eq!(drain(&policy, 1, at(500)), 4, "rooms are counted from tick 0, so none is off by one");
}

#[test]
fn sliding_counter_weighs_the_window_before() {
    for (millis, room) in [(1_000, 0), (1_250, 3), (1_500, 5), (1_990, 10)] {
        let (_, policy) = with(counter("10/s"), Span::ZERO);
        assert_eq!(drain(&policy, 1, at(0)), 10);
        assert_eq!(standing(&policy, at(millis)).0, room);
        assert_eq!(drain(&policy, 1, at(millis)), room as usize, "at {millis} ms");
    }
}

#[test]
fn sliding_counter_saturates_at_its_rate() {
    let (_, policy) = with(counter("10/s"), Span::ZERO);
    let admitted = (0..110_000).filter(|millis| admitted(&policy, 1, at(*millis))).count();
    assert_eq!(admitted, 10 * 110);
}

fn leaky(rate: &str, max_waiting: u64) -> Algorithm {
    Algorithm::LeakyBucket(LeakyBucket::new(&rates(&[rate]), Some(max_waiting)).unwrap())
}

fn smooth(rate: &str, max_burst: Span) -> Algorithm {
    Algorithm::SmoothBursty(SmoothBursty::new(&rates(&[rate]), Some(max_burst)).unwrap())
}

fn log(rate: &str, min_difference: Span, count_refused: bool) -> Algorithm {
    Algorithm::SlidingLog(SlidingLog::new(&rates(&[rate]), min_difference, count_refused).unwrap())
}

fn warm(rate: &str, warm_up: Span) -> Algorithm {
    Algorithm::WarmUp(WarmUp::new(&rates(&[rate]), warm_up, None).unwrap())
}

/// How long each of these costs waits, in milliseconds, when each comes as soon as the one before has got in.
fn waits(policy: &Arc<Policy>, costs: &[u64]) -> Vec<u64> {
    let mut now = at(0);
    let wait = |cost: &u64| match check(policy, 1, *cost, now) {
        Verdict::Admitted(_) => 0,
        verdict => {
            let mut waiting = queued(verdict);
            let turn = waiting.wake_at(now);
            assert_eq!(waiting.attempt(turn - Span::from_nanos(1)), Attempt::Pending { wake_at: turn });
            assert_eq!(waiting.attempt(turn), Attempt::Admitted(Permit::default()));
            let waited = turn.since(now).as_nanos();
            now = turn;
            // To the microsecond, rounded.
            (waited + 500) / 1_000
        }
    };
    let micros: Vec<u64> = costs.iter().map(wait).collect();
    assert!(micros.iter().all(|micros| micros % 1_000 == 0), "{micros:?}");
    micros.iter().map(|micros| micros / 1_000).collect()
}

#[test]
fn leaky_bucket_drips_one_every_100_ms_and_three_wait() {
    let algorithm = leaky("1/100ms", 3);
    let max_wait = algorithm.default_max_wait();
    let (_, policy) = with(algorithm, max_wait);
    assert!(admitted(&policy, 1, at(0)));
    let mut waiters: Vec<_> = (0..3).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
    for _ in 0..3 {
        assert_eq!(refused(check(&policy, 1, 1, at(0))).why, RefusalReason::QueueFull, "strictly three");
    }
    for (waiter, turn) in waiters.iter_mut().zip([100, 200, 300]) {
        assert_eq!(waiter.wake_at(at(turn - 1)), at(turn));
        assert_eq!(waiter.attempt(at(turn)), Attempt::Admitted(Permit::default()));
    }
}

#[test]
fn leaky_bucket_tells_of_free_places_and_the_next_outflow() {
    let (_, policy) = with(leaky("1/100ms", 3), Span::from_secs(1));
    assert_eq!(standing(&policy, at(0)), (3, None));
    assert!(admitted(&policy, 1, at(0)));
    assert_eq!(standing(&policy, at(10)), (3, None), "nobody waits");
    let _waiters = [queued(check(&policy, 1, 1, at(10))), queued(check(&policy, 1, 1, at(20)))];
    assert_eq!(standing(&policy, at(30)), (1, Some(70_000_000)));
    assert_eq!(refused(check(&policy, 1, MAX_COUNT, at(30))).remaining, 1);
}

#[test]
fn leaky_bucket_holds_as_many_as_its_rate_when_nothing_is_said() {
    let bucket = LeakyBucket::new(&rates(&["20/s", "7/s"]), None).unwrap();
    assert_eq!(Algorithm::LeakyBucket(bucket).default_max_queue(Span::from_secs(9)), 20);
    let bucket = LeakyBucket::new(&rates(&["1000000000000/s"]), None).unwrap();
    assert_eq!(bucket.max_waiting(), MAX_DEFAULT_QUEUE);
}

#[test]
fn smooth_bursty_lets_the_next_one_pay() {
    let (_, policy) = with(smooth("5/s", Span::from_secs(1)), Span::from_secs(1));
    assert_eq!(waits(&policy, &[1, 1, 1]), [0, 200, 200]);
    let (_, policy) = with(smooth("1/s", Span::from_secs(1)), Span::from_secs(10));
    assert_eq!(waits(&policy, &[1, 1, 2, 4, 8, 1]), [0, 1_000, 1_000, 2_000, 4_000, 8_000]);
}

#[test]
fn smooth_bursty_saves_up_ten_seconds_of_rest() {
    let (_, policy) = with(smooth("1/s", Span::from_secs(10)), Span::ZERO);
    assert_eq!(standing(&policy, at(0)), (1, None), "a new key has saved nothing");
    assert!(admitted(&policy, 1, at(0)));
    let full = at(1_000 + 10_000);
    assert_eq!(standing(&policy, full - Span::from_nanos(1)), (10, Some(1)));
    assert_eq!(standing(&policy, full), (11, None));
    assert!(matches!(check(&policy, 1, 3, full), Verdict::Admitted(_)));
    assert_eq!(standing(&policy, full), (7 + 1, Some(1_000_000_000)));
    assert!(matches!(check(&policy, 1, 10, full), Verdict::Admitted(_)));
    assert_eq!(standing(&policy, full), (0, Some(3_000_000_000)));
    assert_eq!(refused(check(&policy, 1, 1, full)).retry_at, Some(full + Span::from_secs(3)));
}

#[test]
fn smooth_bursty_of_bytes_lets_the_next_packet_pay() {
    let (_, policy) = with(smooth("5000/s", Span::from_secs(1)), Span::ZERO);
    assert!(matches!(check(&policy, 1, 15_000, at(0)), Verdict::Admitted(_)));
    assert_eq!(refused(check(&policy, 1, 1, at(0))).retry_at, Some(at(3_000)));
}

#[test]
fn warm_up_of_four_seconds_speeds_up_to_two_a_second() {
    let (_, policy) = with(warm("2/s", Span::from_secs(4)), Span::from_secs(5));
    assert_eq!(waits(&policy, &[1; 8]), [0, 1_375, 1_125, 875, 625, 500, 500, 500]);
    let Algorithm::WarmUp(warm) = warm("2/s", Span::from_secs(4)) else { panic!() };
    assert_eq!(warm.coldest(), Span::from_millis(1_500));
}

#[test]
fn sliding_log_refuses_the_second_ten_across_an_edge() {
    let (_, policy) = with(log("10/m", Span::ZERO, false), Span::ZERO);
    assert_eq!(drain(&policy, 1, at(59_000)), 10);
    assert_eq!(drain(&policy, 1, at(61_000)), 0);
    let leaves = at(119_000);
    assert_eq!(refused(check(&policy, 1, 1, at(61_000))).retry_at, Some(leaves));
    assert!(!admitted(&policy, 1, leaves - Span::from_nanos(1)));
    assert_eq!(drain(&policy, 1, leaves), 10, "a stamp leaves at exactly t + W");
}

#[test]
fn sliding_log_counts_refusals_of_who_does_not_pause() {
    for (count_refused, passed) in [(false, 100), (true, 10)] {
        let (_, policy) = with(log("10/m", Span::ZERO, count_refused), Span::ZERO);
        assert_eq!((0..6_000).filter(|step| admitted(&policy, 1, at(step * 100))).count(), passed);
    }
}

#[test]
fn sliding_log_tells_a_refused_one_to_come_back_after_its_own_stamp() {
    let (_, policy) = with(log("2/s", Span::ZERO, true), Span::ZERO);
    assert_eq!(pattern(&policy, [0, 100_000_000]), "AA");
    // Behind it the stamps are those of 100 and 200 ms.
    let refusal = refused(check(&policy, 1, 1, at(200)));
    assert_eq!((refusal.retry_at, refusal.remaining), (Some(at(1_100)), 0));
    assert!(admitted(&policy, 1, at(1_100)));
}

#[test]
fn sliding_log_enters_only_what_it_refuses_itself() {
    let (counting, tight) =
        (Limit::new(LimitSpec { algorithm: log("2/s", Span::ZERO, true), ..spec("1/s") }), Limit::new(spec("1/s")));
    let both = policy(&[&counting, &tight]);
    assert!(admitted(&both, 1, at(0)));
    for _ in 0..5 {
        assert_eq!(refused(check(&both, 1, 1, at(1))).limit, 1);
    }
    let alone = policy(&[&counting]);
    assert_eq!(drain(&alone, 1, at(2)), 1, "refusals by the other limit are not entered");
    assert_eq!(refused(check(&alone, 1, 3, at(2))).why, RefusalReason::TooCostly);
    let _ = counting.reconfigure(LimitSpec { mode: Mode::Shadow, ..counting.spec() });
    assert!(admitted(&alone, 1, at(3)), "in shadow mode nothing is refused, and nothing entered");
    let _ = counting.reconfigure(LimitSpec { mode: Mode::Enforce, ..counting.spec() });
    assert_eq!(refused(check(&alone, 1, 1, at(4))).retry_at, Some(at(1_002)), "it entered its own just now");
}

#[test]
fn sliding_log_enters_no_refusal_of_who_might_have_waited_for_it() {
    let patient = LimitSpec { algorithm: log("1/s", Span::ZERO, true), ..waiting("1/s", 5_000) };
    let (counting, tight) = (Limit::new(patient), Limit::new(spec("1/10s")));
    let both = policy(&[&counting, &tight]);
    assert!(admitted(&both, 1, at(0)));
    // The log has no room either, but it would have let the request wait.
    assert_eq!(refused(check(&both, 1, 1, at(500))).limit, 1);
    assert!(admitted(&policy(&[&counting]), 1, at(1_000)));
}

#[test]
fn sliding_log_keeps_requests_apart() {
    let (_, policy) = with(log("10/s", Span::from_millis(50), false), Span::ZERO);
    assert_eq!(standing(&policy, at(0)), (1, None));
    assert_eq!(pattern(&policy, [0, 0, 49_999_999, 50_000_000, 99_000_000]), "ARRAR");
    assert_eq!(standing(&policy, at(60)), (0, Some(40_000_000)));
    let (_, policy) = with(log("1/ms", Span::from_millis(50), false), Span::ZERO);
    assert_eq!(pattern(&policy, [0, 49_999_999, 50_000_000]), "ARA", "apart for longer than the window");
}

#[test]
fn a_log_takes_over_its_stamps() {
    let (limit, policy) = with(log("3/s", Span::ZERO, false), Span::ZERO);
    assert_eq!(pattern(&policy, [0, 100_000_000, 200_000_000]), "AAA");
    // It keeps its places, and the stamps that are above the new limit.
    assert_eq!(
        limit.reconfigure(LimitSpec { algorithm: log("2/s", Span::ZERO, false), ..limit.spec() }),
        Reconfigured::Changed
    );
    assert_eq!(refused(check(&policy, 1, 1, at(300))).retry_at, Some(at(1_100)));
    assert_eq!(
        limit.reconfigure(LimitSpec { algorithm: log("5/2s", Span::ZERO, false), ..limit.spec() }),
        Reconfigured::Rescaled
    );
    assert_eq!(drain(&policy, 1, at(300)), 2);
    assert_eq!(refused(check(&policy, 1, 1, at(300))).retry_at, Some(at(2_000)));
}

#[test]
fn a_pacing_limit_owes_as_many_requests_after_a_reload() {
    let (limit, policy) = with(smooth("1/s", Span::from_secs(10)), Span::ZERO);
    assert!(matches!(check(&policy, 1, 4, at(0)), Verdict::Admitted(_)));
    let reload =
        |rate, burst| limit.reconfigure(LimitSpec { algorithm: smooth(rate, Span::from_secs(burst)), ..limit.spec() });
    assert_eq!(reload("10/s", 10), Reconfigured::Rescaled);
    assert_eq!(refused(check(&policy, 1, 1, at(0))).retry_at, Some(at(400)));
    assert_eq!(reload("1/s", 10), Reconfigured::Rescaled);
    assert_eq!(refused(check(&policy, 1, 1, at(0))).retry_at, Some(at(4_000)));
    assert_eq!(standing(&policy, at(9_000)).0, 5 + 1);
    assert_eq!(reload("10/s", 10), Reconfigured::Rescaled);
    assert_eq!(standing(&policy, at(9_000)).0, 5 + 1, "what was saved up is as many requests");
    assert_eq!(reload("10/s", 1), Reconfigured::Rescaled);
    assert_eq!(reload("10/s", 1), Reconfigured::Same);
    assert_eq!(reload("1/s", 2), Reconfigured::Rescaled);
    assert_eq!(standing(&policy, at(9_000)).0, 2 + 1, "at most what may be");
}

#[test]
fn waiters_of_every_algorithm_get_in_in_order() {
    for algorithm in [
        bucket("1/s", 1, Refill::Greedy),
        bucket("1/s", 1, Refill::Interval),
        gcra("1/s", None),
        fixed("1/s", Align::Epoch),
        fixed("1/s", Align::First),
        Algorithm::SlidingWindow(SlidingWindow::new(&rates(&["1/s"]), None, None).unwrap()),
        leaky("1/s", 9),
        smooth("1/s", Span::ZERO),
        log("1/s", Span::ZERO, true),
    ] {
        let (_, policy) = with(algorithm.clone(), Span::from_secs(5));
        assert!(admitted(&policy, 1, at(0)));
        let mut waiters: Vec<_> = (0..3).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
        for (index, waiter) in waiters.iter_mut().enumerate() {
            let turn = 1_000 * (index as u64 + 1);
            assert_eq!(waiter.wake_at(at(turn - 1)), at(turn), "{algorithm:?}");
            assert_eq!(waiter.attempt(at(turn)), Attempt::Admitted(Permit::default()), "{algorithm:?}");
        }
        assert!(!admitted(&policy, 1, at(3_999)));
        assert!(admitted(&policy, 1, at(4_000)));
    }
}

#[test]
fn a_timer_that_is_a_little_late_each_time_does_not_slow_an_even_pace_down() {
    for (algorithm, late_micros, drifts) in [
        (gcra("10/s", None), 1_999, false),
        (gcra("10/s", None), 2_001, true),
        (fixed("1/100ms", Align::First), 1_000, false),
    ] {
        let (_, policy) = with(algorithm, Span::from_secs(5));
        assert!(admitted(&policy, 1, at(0)));
        let mut waiters: Vec<_> = (0..10).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
        let mut now = at(0);
        for waiter in &mut waiters {
            now = waiter.wake_at(now) + Span::from_nanos(late_micros * 1_000);
            assert_eq!(waiter.attempt(now), Attempt::Admitted(Permit::default()));
        }
        assert_eq!(now > at(1_002), drifts, "{now:?}");
    }
}

#[test]
fn a_late_timer_at_the_very_deadline_still_gets_in() {
    for algorithm in [gcra("1/s", None), log("1/s", Span::ZERO, false)] {
        let (_, policy) = with(algorithm.clone(), Span::from_secs(1));
        assert!(admitted(&policy, 1, at(0)));
        let mut waiter = queued(check(&policy, 1, 1, at(0)));
        assert_eq!(waiter.wake_at(at(0)), at(1_000));
        assert!(matches!(waiter.attempt(at(1_002)), Attempt::Admitted(_)), "{algorithm:?}");
    }
}

#[test]
fn a_key_never_seen_has_its_whole_burst() {
    let (_, policy) = with(gcra("1/s", Some(7)), Span::ZERO);
    assert_eq!(standing(&policy, at(0)), (7, None));
    assert_eq!(drain(&policy, 1, at(0)), 7);
}

#[test]
fn another_algorithm_starts_afresh_and_its_waiters_wait_on() {
    let (limit, policy) = with(gcra("1/s", None), Span::from_secs(5));
    assert!(admitted(&policy, 1, at(0)));
    let mut waiter = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(waiter.wake_at(at(0)), at(1_000));
    assert_eq!(limit.reconfigure(LimitSpec { algorithm: counter("1/s"), ..limit.spec() }), Reconfigured::Restarted);
    assert_eq!((limit.stats().keys, waiter.times_woken()), (0, 1));
    assert_eq!(waiter.attempt(at(1)), Attempt::Admitted(Permit::default()));
    assert!(!admitted(&policy, 1, at(1)));
}

#[test]
fn a_key_takes_few_bytes() {
    for (algorithm, bytes) in [
        (gcra("100/s", None), 16),
        (gcra("3/s", None), 24),
        (bucket("100/s", 1_000, Refill::Greedy), 16),
        (bucket("100/s", 1_000, Refill::Interval), 24),
        (fixed("100/s", Align::Epoch), 24),
        (fixed("100/s", Align::First), 24),
        (counter("2000000000/s"), 24),
        (counter("5000000000/s"), 32),
        (wheel(&["100/s"], None, Bound::Sliding), 32),
        (leaky("100/s", 5), 16),
        (smooth("3/s", Span::ZERO), 24),
        (warm("100/s", Span::from_secs(1)), 32),
        (log("100/s", Span::ZERO, false), 816),
    ] {
        assert_eq!(algorithm.bytes_per_key(), bytes, "{algorithm:?}");
    }
}

#[test]
fn absurd_parameters_are_refused_with_a_remedy() {
    let text = |error: AlgorithmError| error.to_string();
    assert_eq!(Gcra::new(&[], None), Err(AlgorithmError::NoRates));
    assert_eq!(SlidingCounter::new(&rates(&["1/s"; 5])), Err(AlgorithmError::TooManyRates { given: 5 }));
    assert_eq!(SlidingWindow::new(&rates(&["1/s"; 5]), None, None), Err(AlgorithmError::TooManyRates { given: 5 }));
    assert!(SlidingWindow::new(&rates(&["1/s"; 4]), None, None).is_ok());
    assert_eq!(Gcra::new(&rates(&["1/s"]), Some(0)), Err(AlgorithmError::ZeroBurst));
    let error = TokenBucket::new(&rates(&["5/s", "1/d"]), Some(36_501), Refill::Greedy).unwrap_err();
    assert_eq!(text(error), "1/d takes too long to refill a burst of 36501: use burst = 36500 or less");
    assert!(TokenBucket::new(&rates(&["5/s", "1/d"]), Some(36_500), Refill::Greedy).is_ok());
    let error = TokenBucket::new(&rates(&["5/s"]), Some(MAX_COUNT + 1), Refill::Greedy).unwrap_err();
    assert!(text(error).ends_with("use burst = 15768000000 or less"), "{error}");
    let error = FixedWindow::new(&rates(&["1/36501d"]), Align::Epoch).unwrap_err();
    assert_eq!(text(error), "the window of 1/36501d is longer than 36500d: use a shorter one");
    let error = SlidingWindow::new(&rates(&["10/s"]), Some(7), None).unwrap_err();
    assert!(text(error).ends_with("use slots = 8"), "{error}");
    assert_eq!(SlidingWindow::new(&rates(&["10/s"]), None, Some(0)), Err(AlgorithmError::ZeroSlotLimit));
    assert_eq!(LeakyBucket::new(&rates(&["10/s"]), Some(0)), Err(AlgorithmError::NobodyWaits));
    let error = SlidingLog::new(&rates(&["1/s", "4097/h"]), Span::ZERO, false).unwrap_err();
    assert!(text(error).ends_with("use at most 4096, or sliding-counter for 4097/h"), "{error}");
    let century = Span::from_secs(36_500 * 86_400);
    assert!(SlidingLog::new(&rates(&["4096/h"]), century, false).is_ok());
    let longer = Span::from_secs(36_500 * 86_400 + 1);
    assert!(SlidingLog::new(&rates(&["1/s"]), longer, false).is_err());
    assert!(SmoothBursty::new(&rates(&["1/s"]), Some(Span::from_secs(86_401))).is_err());
    for (warm_up, factor) in [(0, 3), (3_601, 3), (1, 1), (1, 101)] {
        assert!(WarmUp::new(&rates(&["1/s"]), Span::from_secs(warm_up), Some(factor)).is_err(), "{warm_up} {factor}");
    }
}

#[test]
fn who_is_sent_away_is_told_that_nothing_remains() {
    let slow = rates(&["1/5s"]);
    for algorithm in [
        Algorithm::LeakyBucket(LeakyBucket::new(&slow, Some(3)).unwrap()),
        Algorithm::WarmUp(WarmUp::new(&slow, Span::from_secs(60), None).unwrap()),
        Algorithm::SmoothBursty(SmoothBursty::new(&slow, None).unwrap()),
    ] {
        let is_stored = !matches!(algorithm, Algorithm::SmoothBursty(_));
        let (_, policy) = with(algorithm, Span::from_secs(1));
        assert!(admitted(&policy, 1, at(0)));
        let mut report = Report::default();
        let verdict = policy.check(&asks(1, 1), Span::MAX, at(0), &mut report);
        let Verdict::Refused(refusal) = verdict else { panic!("{verdict:?}") };
        let line = report.lines()[0];
        assert_eq!((line.remaining, refusal.remaining), (0, 0));
        let reset = line.reset.map(|reset| at(0) + reset);
        // The turn itself, or where something else remains, when it may come again to wait for it.
        assert!(reset >= refusal.retry_at && (reset == refusal.retry_at) == is_stored, "{line:?}, {refusal:?}");
    }
}

#[test]
fn who_would_be_sent_away_in_shadow_mode_is_told_that_nothing_remains() {
    let warm = WarmUp::new(&rates(&["2/s", "4/s"]), Span::from_secs(4), None).unwrap();
    let algorithm = Algorithm::WarmUp(warm);
    let (_, policy) = one(LimitSpec { algorithm, mode: Mode::Shadow, ..spec("1/s") });
    assert!(admitted(&policy, 1, at(0)));
    let mut report = Report::default();
    let mut remaining = |cost, millis| {
        assert!(matches!(policy.check(&asks(1, cost), Span::MAX, at(millis), &mut report), Verdict::Admitted(_)));
        let lines = report.lines();
        assert!(report.shadow_refusals().eq([0]) && lines[0].reset.is_some(), "{lines:?}");
        (lines[0].remaining, lines[1].remaining)
    };
    // Of both rates seven or more are stored; the slow one's turn comes at 1.375 s, the fast one's before.
    assert_eq!(remaining(1, 0), (0, 15));
    assert_eq!(remaining(1, 1_374), (0, 17));
    assert_eq!(remaining(2, 1_374), (7, 17), "what is stored, for one that costs more");
}

/// The bucket would let it wait, but not as long as the other limit takes.
#[test]
fn who_is_kept_from_waiting_for_another_limit_is_told_that_nothing_remains() {
    let leaky = LeakyBucket::new(&rates(&["1/s"]), Some(3)).unwrap();
    let (bucket, _) = with(Algorithm::LeakyBucket(leaky), Span::from_millis(1_500));
    let slow = Limit::new(waiting("1/3s", 9_000));
    let both = policy(&[&bucket, &slow]);
    assert!(admitted(&both, 1, at(0)));
    let mut report = Report::default();
    let refusal = refused(both.check(&asks(1, 1), Span::MAX, at(0), &mut report));
    assert_eq!((refusal.limit, refusal.why, refusal.retry_at), (0, RefusalReason::Rate, Some(at(1_000))));
    let line = report.lines()[0];
    assert_eq!((refusal.remaining, line.remaining, line.reset), (0, 0, Some(Span::from_secs(1))));
    assert_eq!(refused(both.check(&asks(1, 1), Span::MAX, at(999), &mut report)).remaining, 0);
    let _ = queued(both.check(&asks(1, 1), Span::MAX, at(1_500), &mut report));
}
