//! Requests that are counted by an estimate, and corrected by what they have really cost.

use std::thread;

use proptest::prelude::*;

use super::*;

fn ask_of(policy: &Arc<Policy>, name: u64, cost: u64, now: Tick) -> Option<Permit> {
    let asks = [Ask { key: Some(key(name)), cost, counting: Counting::Corrected, ..Ask::default() }; MAX_LIMITS];
    match policy.check(&asks, Span::MAX, now, &mut Report::default()) {
        Verdict::Admitted(permit) => Some(permit),
        _ => None,
    }
}

fn ask(policy: &Arc<Policy>, cost: u64, now: Tick) -> Permit {
    ask_of(policy, 1, cost, now).unwrap()
}

fn has_cost(mut permit: Permit, real: u64, now: Tick) {
    permit.settle(now, |_, _| Spent::Cost(real));
}

/// How many of cost 1 remain, by the report of a request that costs nothing.
fn left(policy: &Arc<Policy>, now: Tick) -> u64 {
    let mut report = Report::default();
    let _ = policy.check(&asks(1, 0), Span::MAX, now, &mut report);
    report.lines()[0].remaining
}

fn no_accounts(limit: &Limit) -> bool {
    limit.lock(key(1)).holds_no_accounts()
}

#[test]
fn the_estimate_is_reserved_and_the_real_cost_is_what_counts() {
    let (limit, policy) = one(spec("10/1h"));
    let permit = ask(&policy, 6, at(0));
    assert!(!permit.is_empty() && ask_of(&policy, 1, 5, at(0)).is_none(), "six are reserved");
    has_cost(permit, 2, at(1));
    assert_eq!(left(&policy, at(1)), 8);
    has_cost(ask(&policy, 1, at(2)), 4, at(3));
    assert_eq!(left(&policy, at(3)), 4, "what is missing is counted too");
    has_cost(ask(&policy, 3, at(4)), 0, at(5));
    has_cost(ask(&policy, 3, at(4)), 3, at(5));
    assert_eq!(left(&policy, at(5)), 1);
    let mut nothing = ask(&policy, 1, at(6));
    nothing.settle(at(6), |_, _| Spent::Nothing);
    assert_eq!(left(&policy, at(6)), 1);
    has_cost(ask(&policy, 1, at(7)), 1_000_000, at(7));
    assert_eq!(left(&policy, at(8)), 0, "more than there is, and more than it holds");
    assert_eq!(left(&policy, at(3_600_000 + 60_000)), 10);
    assert!(no_accounts(&limit));
}

#[test]
fn an_estimate_stands_when_nothing_is_said_and_is_corrected_once() {
    let (limit, policy) = one(spec("10/1h"));
    drop(ask(&policy, 2, at(0)));
    assert_eq!(left(&policy, at(0)), 8);
    ask(&policy, 2, at(0)).settle(at(1), |_, _| Spent::AsAsked);
    assert_eq!(left(&policy, at(1)), 6);
    let mut permit = ask(&policy, 4, at(2));
    permit.settle(at(3), |_, _| Spent::Cost(3));
    permit.settle(at(3), |_, _| Spent::Cost(0));
    permit.settle(at(3), |_, _| Spent::Cost(9));
    drop(permit);
    assert_eq!(left(&policy, at(3)), 3);
    assert!(no_accounts(&limit));
}

#[test]
fn what_is_not_known_yet_is_asked_again_and_given_back_at_once() {
    let (limit, policy) = one(spec("10/1h"));
    let mut permit = ask(&policy, 8, at(0));
    permit.settle(at(1), |_, estimate| {
        assert_eq!(estimate, 8);
        Spent::Unknown
    });
    assert_eq!(left(&policy, at(1)), 2, "the estimate is held");
    permit.settle(at(2), |_, _| Spent::Cost(3));
    assert_eq!(left(&policy, at(2)), 7);
    permit.settle(at(3), |_, _| panic!("it has said what it has cost"));
    let mut cut = ask(&policy, 2, at(3));
    cut.settle(at(3), |_, _| Spent::Unknown);
    drop(cut);
    assert_eq!(left(&policy, at(3)), 5, "and stands when nothing more is said");
    assert!(no_accounts(&limit));
}

#[test]
fn a_cost_that_comes_later_counts_only_if_it_counts() {
    let (_, policy) = one(spec("10/1h"));
    let asks = [Ask { key: Some(key(1)), cost: 4, counting: Counting::Later, ..Ask::default() }];
    for (spent, remains) in [(Spent::Nothing, 10), (Spent::Cost(0), 10), (Spent::Cost(3), 7), (Spent::AsAsked, 3)] {
        let Verdict::Admitted(mut permit) = policy.check(&asks, Span::MAX, at(0), &mut Report::default()) else {
            panic!()
        };
        permit.settle(at(1), |_, _| spent);
        assert_eq!(left(&policy, at(1)), remains, "{spent:?}");
    }
}

#[test]
fn all_rates_and_all_limits_are_corrected_each_by_its_own() {
    let several = LimitSpec { algorithm: wheel(&["9/1h", "20/2h"], None, Bound::Sliding), ..spec("9/1h") };
    let (first, second) = (Limit::new(several), Limit::new(spec("30/1h")));
    let policy = policy(&[&first, &second]);
    let corrected = Ask { key: Some(key(1)), cost: 8, counting: Counting::Corrected, ..Ask::default() };
    let mut report = Report::default();
    let mut remaining = |asks: &[Ask], now| {
        let verdict = policy.check(asks, Span::MAX, now, &mut report);
        (verdict, report.lines().iter().map(|line| line.remaining).collect::<Vec<_>>())
    };
    let (verdict, left) = remaining(&[corrected; 2], at(0));
    assert_eq!(left, [1, 12, 22]);
    let Verdict::Admitted(mut permit) = verdict else { panic!() };
    permit.settle(at(1), |place, _| Spent::Cost([2, 10][place]));
    let free = Ask { cost: 0, counting: Counting::AtOnce, ..corrected };
    assert_eq!(remaining(&[free; 2], at(1)).1, [7, 18, 20]);
}

#[test]
fn a_shadow_limit_counts_likewise() {
    let (_, policy) = one(LimitSpec { mode: Mode::Shadow, ..spec("10/1h") });
    has_cost(ask(&policy, 8, at(0)), 3, at(1));
    let mut report = Report::default();
    let _ = policy.check(&asks(1, 1), Span::MAX, at(1), &mut report);
    assert_eq!(report.lines()[0].remaining, 6);
}

#[test]
fn a_limit_of_what_is_in_flight_holds_it_until_the_end() {
    let algorithm = Algorithm::Concurrency(Concurrency::new(5).unwrap());
    let (limit, policy) = one(LimitSpec { algorithm, ..spec("1/s") });
    let mut permit = ask(&policy, 4, at(0));
    permit.settle(at(1), |_, _| Spent::Cost(0));
    assert!(ask_of(&policy, 1, 2, at(2)).is_none());
    drop(permit);
    assert!(ask_of(&policy, 1, 5, at(3)).is_some());
    assert!(no_accounts(&limit));
}

#[test]
fn the_head_of_the_queue_looks_again_when_something_is_given_back() {
    let (_, policy) = one(waiting("10/1h", 3_600_000));
    let permit = ask(&policy, 9, at(0));
    let mut head = queued(check(&policy, 1, 3, at(1)));
    let mut next = queued(check(&policy, 1, 3, at(1)));
    assert!(head.wake_at(at(1)) > at(3_000_000));
    next.wake_at(at(1));
    has_cost(permit, 4, at(2));
    assert_eq!((head.times_woken(), next.times_woken()), (1, 0));
    assert!(matches!(head.attempt(at(2)), Attempt::Admitted(_)));
    assert_eq!(next.times_woken(), 1);
    assert!(matches!(next.attempt(at(2)), Attempt::Admitted(_)), "3 and 3 and 4");
    assert_eq!(left(&policy, at(3)), 0);
}

#[test]
fn a_head_that_was_due_a_little_earlier_is_corrected_as_of_then() {
    let algorithm = Algorithm::Gcra(Gcra::new(&["1/s".parse().unwrap()], Some(4)).unwrap());
    let (_, policy) = one(LimitSpec { algorithm, max_wait: Span::from_secs(10), ..spec("1/s") });
    let now = 1_000_000;
    has_cost(ask(&policy, 4, at(now)), 4, at(now));
    let asks = [Ask { key: Some(key(1)), cost: 3, counting: Counting::Corrected, ..Ask::default() }];
    let mut report = Report::default();
    let Verdict::Queued(mut ticket) = policy.check(&asks, Span::MAX, at(now), &mut report) else { panic!() };
    let late = at(now + 3_000) + Span::from_millis(1);
    let Attempt::Pending { wake_at } = ticket.attempt(at(now), Waker::noop(), &mut report) else { panic!() };
    assert_eq!(wake_at, at(now + 3_000));
    let Attempt::Admitted(permit) = ticket.attempt(late, Waker::noop(), &mut report) else { panic!() };
    has_cost(permit, 1, late);
    // One of the four and one of the three: the first leaves at 1 s after it was due, as if it had been in time.
    assert_eq!(left(&policy, at(now + 3_999)), 2);
    assert_eq!(left(&policy, at(now + 4_000)), 3);
}

/// The count that is left after a request of 5 was taken, something happened, another one of 5 came if it could, and
/// the first is found to have cost nothing: before that is known, and after.
fn left_around(happens: impl Fn(&Arc<Limit>, &Arc<Policy>)) -> (u64, u64) {
    let (limit, policy) = one(LimitSpec { max_keys: 1, ..spec("10/1h") });
    let permit = ask(&policy, 5, at(0));
    happens(&limit, &policy);
    let other = ask_of(&policy, 1, 5, at(2));
    let before = left(&policy, at(2));
    has_cost(permit, 0, at(3));
    drop(other);
    assert!(no_accounts(&limit));
    (before, left(&policy, at(3)))
}

#[test]
fn what_time_or_others_have_had_back_is_not_given_again() {
    let gcra = |burst| {
        let algorithm = Algorithm::Gcra(Gcra::new(&["1/s".parse().unwrap()], Some(burst)).unwrap());
        one(LimitSpec { algorithm, ..spec("1/s") }).1
    };
    let policy = gcra(10);
    let permit = ask(&policy, 5, at(10_000));
    drop(ask(&policy, 1, at(13_000)));
    has_cost(permit, 1, at(13_500));
    assert_eq!(left(&policy, at(14_000)), 9, "one and a half of the four are left to be given back at 13.5 s");
    assert_eq!(left(&policy, at(14_500)), 10);
    let policy = gcra(20);
    let (first, second) = (ask(&policy, 10, at(10_000)), ask(&policy, 5, at(10_000)));
    has_cost(first, 0, at(11_000));
    drop(ask(&policy, 3, at(15_500)));
    has_cost(second, 0, at(15_500));
    assert_eq!(left(&policy, at(15_500)), 16, "three have just been taken");
}

#[test]
fn a_key_that_was_forgotten_or_rebuilt_gets_nothing_back() {
    let with = |algorithm: Algorithm| {
        move |limit: &Arc<Limit>, _: &Arc<Policy>| {
            limit.reconfigure(LimitSpec { algorithm: algorithm.clone(), ..limit.spec() });
        }
    };
    assert_eq!(left_around(|_, _| {}), (0, 5));
    assert_eq!(left_around(with(wheel(&["20/1h"], None, Bound::Sliding))), (10, 15), "its counts are where they were");
    assert_eq!(left_around(with(wheel(&["300/1h"], None, Bound::Sliding))), (290, 295), "in wider lanes");
    let penalty = |limit: &Arc<Limit>, _: &Arc<Policy>| {
        let penalty = Penalty::new(5, Span::from_secs(1), Span::from_secs(1)).ok();
        limit.reconfigure(LimitSpec { penalty, ..limit.spec() });
    };
    assert_eq!(left_around(penalty), (0, 5), "with words of a penalty behind");
    assert_eq!(left_around(with(wheel(&["10/1h"], Some(30), Bound::Sliding))), (0, 0), "other slots");
    let counter = Algorithm::SlidingCounter(SlidingCounter::new(&["10/1h".parse().unwrap()]).unwrap());
    assert_eq!(left_around(with(counter)), (5, 5), "another algorithm");
    let evicted = |_: &Arc<Limit>, policy: &Arc<Policy>| drop(ask_of(policy, 2, 1, at(1)).unwrap());
    assert_eq!(left_around(evicted), (5, 5), "another key took its place");
    let released = |limit: &Arc<Limit>, _: &Arc<Policy>| {
        let spec = limit.spec();
        limit.release();
        limit.reconfigure(spec);
    };
    assert_eq!(left_around(released), (5, 5), "released, and put back");
}

#[test]
fn who_is_let_in_uncounted_corrects_nothing() {
    let (limit, policy) = one(LimitSpec { max_keys: 1, on_full: OnFull::Allow, ..spec("10/1h") });
    drop(ask_of(&policy, 2, 3, at(0)));
    let permit = ask(&policy, 5, at(0));
    assert!(permit.is_empty());
    has_cost(permit, 9, at(1));
    assert_eq!(limit.stats().keys, 1);
}

#[test]
fn threads_that_correct_the_same_keys_leave_just_what_was_spent() {
    const THREADS: u64 = 4;
    const EACH: u64 = 2_000;
    let rates: Vec<Rate> = vec!["1000000/1h".parse().unwrap()];
    let gcra = Algorithm::Gcra(Gcra::new(&rates, Some(1_000_000)).unwrap());
    for algorithm in [wheel(&["1000000/1h"], None, Bound::Sliding), gcra] {
        let name = algorithm.name();
        let (limit, policy) = one(LimitSpec { algorithm, ..spec("1/s") });
        // Enough that time, which stands still here, has nothing to do with what is given back.
        drop(ask(&policy, 500_000, at(0)));
        let spent = thread::scope(|scope| {
            let work = |seed: u64| {
                let policy = &policy;
                move || {
                    let (mut random, mut spent, mut held) = (seed | 1, 0, Vec::new());
                    for _ in 0..EACH {
                        // xorshift64
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let (estimate, real) = (random % 20 + 1, random / 32 % 30);
                        held.push((ask(policy, estimate, at(0)), estimate, real));
                        if held.len() > 8 || random.is_multiple_of(3) {
                            let (permit, estimate, real) = held.swap_remove(random as usize % held.len());
                            if random.is_multiple_of(5) {
                                spent += estimate;
                            } else {
                                has_cost(permit, real, at(0));
                                spent += real;
                            }
                        }
                    }
                    spent + held.iter().map(|(_, estimate, _)| estimate).sum::<u64>()
                }
            };
            let workers: Vec<_> = (1..=THREADS).map(|seed| scope.spawn(work(seed * 0x9e37_79b9))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
        });
        assert_eq!(left(&policy, at(0)), 500_000 - spent, "{name}");
        assert!(no_accounts(&limit), "{name}");
    }
}

/// Every algorithm with what it may admit at once; bursts above and below the rate, and rooms further away than a window.
fn each_with_its_most() -> Vec<(Algorithm, u64)> {
    let hourly = &["100/1h".parse().unwrap()][..];
    let fast = &["10/s".parse().unwrap()][..];
    let bucket = |rate, burst, refill| Algorithm::TokenBucket(TokenBucket::new(rate, Some(burst), refill).unwrap());
    vec![
        (wheel(&["100/1h"], None, Bound::Sliding), 100),
        (wheel(&["100/1h"], None, Bound::Strict), 100),
        (wheel(&["100/1h"], None, Bound::Slot), 100),
        (wheel(&["100/1h", "90/2h"], None, Bound::Strict), 90),
        (bucket(hourly, 100, Refill::Greedy), 100),
        (bucket(fast, 1_000, Refill::Greedy), 1_000),
        (bucket(fast, 1_000, Refill::Interval), 1_000),
        (Algorithm::Gcra(Gcra::new(hourly, Some(100)).unwrap()), 100),
        (Algorithm::Gcra(Gcra::new(hourly, None).unwrap()), 100),
        (Algorithm::FixedWindow(FixedWindow::new(hourly, Align::Epoch).unwrap()), 100),
        (Algorithm::FixedWindow(FixedWindow::new(hourly, Align::First).unwrap()), 100),
        (Algorithm::SlidingWindow(SlidingWindow::new(hourly, None, None).unwrap()), 100),
        (Algorithm::SlidingCounter(SlidingCounter::new(hourly).unwrap()), 100),
        (Algorithm::SlidingLog(SlidingLog::new(hourly, Span::ZERO, false).unwrap()), 100),
        (Algorithm::LeakyBucket(LeakyBucket::new(hourly, None).unwrap()), 100),
        (Algorithm::SmoothBursty(SmoothBursty::new(hourly, None).unwrap()), 100),
        (Algorithm::WarmUp(WarmUp::new(hourly, Span::from_secs(3_600), None).unwrap()), 100),
    ]
}

#[test]
fn what_turns_out_dearer_keeps_the_next_ones_out_whatever_the_algorithm() {
    for (algorithm, most) in each_with_its_most() {
        for counting in [Counting::Corrected, Counting::Later] {
            let (_, policy) = one(LimitSpec { algorithm: algorithm.clone(), ..spec("1/s") });
            let asks = [Ask { key: Some(key(1)), cost: 1, counting, ..Ask::default() }; MAX_LIMITS];
            let mut spent = 0;
            for step in 0..50 {
                let now = at(2 * 3_600_000 + 370_000 + step * 10);
                let verdict = policy.check(&asks, Span::MAX, now, &mut Report::default());
                let Verdict::Admitted(permit) = verdict else { continue };
                let real = if step == 0 { most * 45 / 100 } else { most * 90 / 100 };
                has_cost(permit, real, now);
                spent += real;
            }
            // The one with which the limit is reached is let in, and in half a second hardly anything comes back.
            assert!((most * 45 / 100..=most * 136 / 100).contains(&spent), "{algorithm:?} {counting:?}: {spent} spent");
        }
    }
}

#[test]
fn a_key_owes_a_window_and_one_request_at_most() {
    for (algorithm, most) in each_with_its_most() {
        let window = algorithm.rates().iter().map(|rate| rate.window()).max().unwrap();
        let (_, policy) = one(LimitSpec { algorithm: algorithm.clone(), ..spec("1/s") });
        let later = [Ask { key: Some(key(1)), cost: 1, counting: Counting::Later, ..Ask::default() }; MAX_LIMITS];
        let now = at(2 * 3_600_000 + 370_000);
        let permits: Vec<_> = (0..500)
            .map(|_| match policy.check(&later, Span::MAX, now, &mut Report::default()) {
                Verdict::Admitted(permit) => permit,
                other => panic!("{other:?}: none has been counted yet"),
            })
            .collect();
        for permit in permits {
            has_cost(permit, most, now);
        }
        let retry_at = refused(check(&policy, 1, 1, now)).retry_at.unwrap();
        let pace = algorithm.rates().iter().map(|rate| rate.window().as_nanos() / rate.limit()).max().unwrap();
        let owed = Span::from_nanos(window.as_nanos() + (most + 1) * pace);
        // A sliding counter's room for a count of its limit is up to two windows away, a warm-up's turn up to three.
        let far = if matches!(algorithm, Algorithm::SlidingCounter(_) | Algorithm::WarmUp(_)) { 3 } else { 1 };
        assert!(retry_at.since(now).as_nanos() <= owed.as_nanos() * far, "{algorithm:?}: {:?}", retry_at.since(now));
    }
}

#[test]
fn counts_that_would_fill_their_bytes_are_given_back_all_the_same() {
    for limit in [127, 128, 200, 255, 256, 2_000, 65_535, 65_536] {
        let (_, policy) = one(spec(&format!("{limit}/1h")));
        has_cost(ask(&policy, limit, at(0)), 1, at(1));
        assert_eq!(left(&policy, at(2)), limit - 1);
        // Of four in flight the first turns out dearer than all of them may be.
        let (_, policy) = one(spec(&format!("{limit}/1h")));
        let share = limit / 4;
        let permits: Vec<_> = (0..4).map(|_| ask(&policy, share, at(0))).collect();
        for (permit, real) in permits.into_iter().zip([3 * share, 1, 1, 1]) {
            has_cost(permit, real, at(1));
        }
        assert_eq!(left(&policy, at(2)), limit - 3 * share - 3, "{limit}");
    }
}

/// One stream: its estimate, its real cost, how long after the one before it comes, and how long it lasts.
type DrawnStream = (u64, u64, u64, u64);

fn drawn_stream() -> impl Strategy<Value = DrawnStream> {
    (1_u64..60, 0_u64..60, 0_u64..50, 0_u64..2_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// A thousand streams within one window: at each instant the limit holds the estimates of those that are open and the real
    /// costs of those that have ended, and lets in what fits beside them. The last of them come when some are open.
    #[test]
    fn sums_are_exact_over_a_thousand_streams(streams in prop::collection::vec(drawn_stream(), 1_000)) {
        let algorithms = [
            wheel(&["5000/10h"], None, Bound::Sliding),
            Algorithm::FixedWindow(FixedWindow::new(&["5000/10h".parse().unwrap()], Align::Epoch).unwrap()),
        ];
        for algorithm in algorithms {
            let (limit, policy) = one(LimitSpec { algorithm, ..spec("1/s") });
            let mut open: Vec<(u64, u64, u64, Permit)> = Vec::new();
            let (mut now, mut held) = (0, 0_u64);
            for (estimate, real, gap, lasts) in &streams {
                now += gap;
                open.sort_by_key(|(ends, ..)| *ends);
                while let Some((ends, ..)) = open.first().filter(|(ends, ..)| *ends <= now) {
                    let at_end = at(*ends);
                    let (_, estimate, real, permit) = open.remove(0);
                    has_cost(permit, real, at_end);
                    held = held - estimate + real;
                }
                let admitted = ask_of(&policy, 1, *estimate, at(now));
                prop_assert_eq!(admitted.is_some(), held + estimate <= 5_000, "{} held, {} asked", held, estimate);
                if let Some(permit) = admitted {
                    held += estimate;
                    open.push((now + lasts, *estimate, *real, permit));
                }
                prop_assert_eq!(left(&policy, at(now)), 5_000_u64.saturating_sub(held));
            }
            drop(open);
            prop_assert!(no_accounts(&limit));
        }
    }
}
