//! Limits are asked without a trace.

use proptest::prelude::*;

use super::persist::algorithms;
use super::*;

/// Everything that a limit has, in words.
fn all_of(limits: &[Arc<Limit>]) -> String {
    format!("{limits:?}")
}

fn peek(policy: &Arc<Policy>, asks: &[Ask], timeout: Span, now: Tick) -> Peeked {
    policy.peek(asks, timeout, now, &mut Report::default())
}

#[test]
fn tells_the_room_and_the_next_instant_and_changes_nothing() {
    let (limit, policy) = one(spec("3/s"));
    let lines = |now| {
        let mut report = Report::default();
        let peeked = policy.peek(&asks(1, 1), Span::MAX, now, &mut report);
        (peeked, report.lines().iter().map(|line| (line.remaining, line.reset)).collect::<Vec<_>>())
    };
    assert_eq!(lines(at(0)), (Peeked::Admitted, vec![(3, None)]));
    assert_eq!(limit.stats(), LimitStats::default());
    for left in [2, 1, 0] {
        assert!(admitted(&policy, 1, at(10)));
        assert_eq!(lines(at(10)).1[0].0, left);
    }
    let (Peeked::Refused(refusal), lines) = lines(at(20)) else { panic!("three a second") };
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::Rate, Some(at(1_000))));
    assert_eq!(lines, [(0, Some(Span::from_millis(980)))]);
}

#[test]
fn who_waits_is_seen_and_not_woken() {
    let (limit, policy) = one(waiting("1/s", 2_500));
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(first.wake_at(at(0)), at(1_000));
    let before = all_of(&[Arc::clone(&limit)]);
    assert_eq!(peek(&policy, &asks(1, 1), Span::MAX, at(1)), Peeked::Waits { limit: Some(0), until: at(2_000) });
    let impatient = peek(&policy, &asks(1, 1), Span::from_millis(500), at(1));
    assert!(matches!(impatient, Peeked::Refused(_)), "{impatient:?}");
    assert_eq!((all_of(&[limit]), first.times_woken()), (before, 0));
}

#[test]
fn a_table_that_is_full_says_so_and_evicts_nobody() {
    for (on_full, expected) in [(OnFull::Refuse, Some(RefusalReason::TableFull)), (OnFull::EvictOldest, None)] {
        let (limit, policy) = one(LimitSpec { max_keys: 2, on_full, ..spec("1/m") });
        assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 2, at(0)));
        let before = all_of(&[Arc::clone(&limit)]);
        let why = match peek(&policy, &asks(3, 1), Span::MAX, at(1)) {
            Peeked::Refused(refusal) => Some(refusal.why),
            _ => None,
        };
        assert_eq!((why, all_of(&[limit])), (expected, before));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_peek_is_what_the_next_check_says_and_leaves_the_tables_byte_for_byte(
        (which, other) in (0usize..13, 0usize..13),
        shadow in any::<bool>(),
        max_wait in prop_oneof![Just(0u64), Just(700)],
        with_penalty in any::<bool>(),
        steps in prop::collection::vec((0u64..4, 1u64..5, 0u64..400, any::<bool>()), 1..60),
    ) {
        let penalty = Penalty::new(2, Span::from_secs(5), Span::from_secs(3)).unwrap();
        let in_flight = Algorithm::Concurrency(Concurrency::new(2).unwrap());
        let of = |which: usize| LimitSpec {
            algorithm: algorithms().get(which).unwrap_or(&in_flight).clone(),
            max_wait: Span::from_millis(max_wait),
            max_keys: 3,
            ..spec("3/s")
        };
        let first = of(which);
        let first = LimitSpec { penalty: (with_penalty && !matches!(first.algorithm, Algorithm::Concurrency(_))).then_some(penalty), ..first };
        let second = LimitSpec { mode: if shadow { Mode::Shadow } else { Mode::Enforce }, ..of(other) };
        let limits = [Limit::new(first), Limit::new(second)];
        let policy = policy(&[&limits[0], &limits[1]]);
        let mut millis = 1_700_000_000_000;
        let (mut permits, mut tickets) = (Vec::new(), Vec::new());
        for (name, cost, wait, ends) in steps {
            millis += wait;
            if ends {
                permits.pop();
                tickets.pop();
            }
            let (asks, now) = ([0, 1].map(|_| Ask { key: Some(key(name)), cost, counting: Counting::AtOnce, ..Ask::default() }), at(millis));
            let before = all_of(&limits);
            let peeked = peek(&policy, &asks, Span::MAX, now);
            prop_assert_eq!(all_of(&limits), before);
            let checked = match policy.check(&asks, Span::MAX, now, &mut Report::default()) {
                Verdict::Admitted(permit) => {
                    permits.push(permit);
                    Peeked::Admitted
                }
                Verdict::Refused(refusal) => Peeked::Refused(refusal),
                Verdict::Queued(ticket) => {
                    let limit = ticket.waits_for();
                    let until = ticket.planned().unwrap();
                    tickets.push(ticket);
                    Peeked::Waits { limit, until }
                }
            };
            prop_assert_eq!(peeked, checked);
        }
    }
}
