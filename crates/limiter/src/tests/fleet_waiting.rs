//! Requests that wait for their turn at a shared limit, by hand, on a driven clock.

use super::fleet_outage::{DEADLINE, Fleet, all_messages, bucket, leased, shared};
use super::*;

/// 4/s in a bucket of 4 that requests wait for, so many milliseconds; none is left at 0 ms.
fn empty(gateways: usize, sharing: StoreSharing, max_wait: u64) -> Fleet {
    let mut fleet = Fleet::patient(gateways, &bucket("4/s", 4), sharing, max_wait);
    for _ in 0..4 {
        assert!(fleet.passes(0, at(0)));
    }
    fleet
}

impl Fleet {
    fn arrives(&self, gateway: usize, now: Tick) -> Waiting {
        queued(check(&self.gateways[gateway].1, 1, 1, now))
    }

    /// A request that the store has been asked for, and that waits for its turn now; when that is.
    fn waits(&mut self, gateway: usize, now: Tick) -> (Waiting, Tick) {
        let mut waiting = self.arrives(gateway, now);
        if waiting.ticket.waits_for().is_none() {
            assert_eq!(waiting.wake_at(now), now + DEADLINE, "for the store");
            assert_eq!(self.talk(gateway, now), 1);
            assert_eq!(waiting.wake_at(now), now, "at once again");
        }
        assert_eq!(waiting.ticket.waits_for(), Some(0), "in the queue");
        let wake_at = waiting.wake_at(now);
        (waiting, wake_at)
    }

    fn waiting(&self, gateway: usize) -> (u64, u64) {
        let (limit, _) = &self.gateways[gateway];
        (limit.stats().waiting, limit.outstanding(at(0)).waiting)
    }
}

fn is_admitted(waiting: &mut Waiting, now: Tick) -> bool {
    matches!(waiting.attempt(now), Attempt::Admitted(_))
}

fn just_before(at: Tick) -> Tick {
    Tick::from_nanos(at.as_nanos() - 1)
}

#[test]
fn a_request_waits_until_the_store_has_room_and_asks_again() {
    let mut fleet = empty(1, shared(OnFailure::Closed), 2_000);
    let (mut first, wake_at) = fleet.waits(0, at(0));
    assert_eq!((wake_at, fleet.waiting(0)), (at(250), (1, 0)));
    assert_eq!(first.wake_at(just_before(at(250))), at(250));
    assert_eq!(fleet.talk(0, at(249)), 0, "nothing is asked until then");
    assert_eq!(first.wake_at(at(250)), at(260), "it asks");
    assert_eq!(fleet.waiting(0), (1, 1));
    assert_eq!(fleet.talk(0, at(251)), 1);
    assert!(first.times_woken() > 0);
    assert!(is_admitted(&mut first, at(251)));
    assert_eq!(fleet.waiting(0), (0, 0));
    // Just one was taken.
    assert_eq!(fleet.account.settle(&Settle { need: 1, want: 1, ..Settle::default() }, LEASE_HOLD, at(499)).granted, 0);
}

#[test]
fn requests_are_let_in_as_they_came_and_nobody_overtakes_them() {
    for sharing in [shared(OnFailure::Closed), leased(OnFailure::Closed)] {
        let mut fleet = empty(3, sharing, 2_000);
        let mut line: Vec<_> = (0..3).map(|_| fleet.waits(0, at(0)).0).collect();
        for turn in 1..=3 {
            let now = at(250 * turn);
            let [first, rest @ ..] = &mut line[..] else { panic!("somebody waits") };
            assert_eq!(first.wake_at(now), now + DEADLINE);
            // One that comes while it asks goes behind all others.
            let mut late = fleet.arrives(0, now);
            assert_eq!(late.ticket.waits_for(), Some(0));
            let _ = late.wake_at(now);
            let woken: Vec<_> = rest.iter().map(Waiting::times_woken).collect();
            assert_eq!(fleet.talk(0, now), 1);
            for waiting in rest.iter_mut() {
                assert!(matches!(waiting.attempt(now), Attempt::Pending { .. }), "not its turn");
            }
            assert!(is_admitted(first, now), "turn {turn}");
            if let Some(next) = rest.first() {
                assert_eq!(next.times_woken(), woken[0] + 1, "the next one looks");
            }
            line.remove(0);
            drop(late);
        }
    }
}

/// While one goes from the line of those who wait for the store to the queue, those behind it in the line are before
/// a request that comes then.
#[test]
fn whoever_comes_while_a_line_moves_into_the_queue_goes_behind_it() {
    let mut fleet = empty(1, shared(OnFailure::Closed), 2_000);
    let mut line: Vec<_> = (0..3).map(|_| fleet.arrives(0, at(0))).collect();
    for waiting in &mut line {
        assert_eq!(waiting.wake_at(at(0)), at(10));
    }
    assert_eq!(fleet.talk(0, at(1)), 1);
    let mut late = vec![fleet.arrives(0, at(1))];
    let mut moved = Vec::new();
    for (place, mut waiting) in line.into_iter().enumerate() {
        assert_eq!(waiting.times_woken(), 1, "{place}");
        assert_eq!(waiting.wake_at(at(1)), at(1));
        assert_eq!(waiting.ticket.waits_for(), Some(0));
        late.push(fleet.arrives(0, at(1)));
        let _ = waiting.wake_at(at(1));
        moved.push(waiting);
    }
    for waiting in &mut late {
        let _ = waiting.wake_at(at(1));
        let _ = waiting.wake_at(at(1));
        assert_eq!(waiting.ticket.waits_for(), Some(0));
    }
    let mut order = moved.into_iter().chain(late);
    for turn in 1..=7 {
        let now = at(250 * turn);
        let mut first = order.next().unwrap();
        assert_eq!(first.wake_at(now), now + DEADLINE, "turn {turn}");
        assert_eq!(fleet.talk(0, now), 1);
        assert!(is_admitted(&mut first, now), "turn {turn}");
    }
    assert_eq!(fleet.waiting(0), (0, 0));
}

#[test]
fn patience_is_kept_exactly() {
    // Too impatient for the first room: it is not let wait, and told when it would be.
    let mut fleet = empty(1, shared(OnFailure::Closed), 249);
    let mut waiting = fleet.arrives(0, at(0));
    let _ = waiting.wake_at(at(0));
    fleet.talk(0, at(0));
    let refusal = waiting.timed_out(at(0));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::Rate, Some(at(1))));
    // Others take its room: it waits on until its patience ends, and no longer.
    let mut fleet = empty(2, shared(OnFailure::Closed), 300);
    let (mut waiting, wake_at) = fleet.waits(0, at(0));
    assert_eq!(wake_at, at(250));
    assert!(fleet.passes(1, at(250)));
    assert_eq!(waiting.wake_at(at(250)), at(260));
    assert_eq!(fleet.talk(0, at(252)), 1);
    assert_eq!(waiting.wake_at(at(252)), at(300), "the next room is at 500 ms");
    assert_eq!(waiting.wake_at(just_before(at(300))), at(300));
    let refusal = waiting.timed_out(at(300));
    assert_eq!(
        (refusal.why, refusal.retry_at),
        (RefusalReason::WaitTimeout, Some(at(300))),
        "it would wait until 500 ms then"
    );
    assert_eq!(fleet.waiting(0), (0, 0));
}

#[test]
fn one_whose_turn_comes_at_the_end_of_its_patience_is_answered_within_the_deadline() {
    for (on_failure, answers, passes) in [
        (OnFailure::Closed, Some(259), true),
        (OnFailure::Closed, None, false),
        (OnFailure::Full, None, true),
        (OnFailure::Open, None, true),
    ] {
        let mut fleet = empty(1, shared(on_failure), 250);
        let (mut waiting, wake_at) = fleet.waits(0, at(0));
        assert_eq!(wake_at, at(250));
        assert_eq!(waiting.wake_at(at(250)), at(260));
        assert_eq!(waiting.wake_at(just_before(at(260))), at(260));
        let now = match answers {
            Some(millis) => {
                fleet.talk(0, at(millis));
                at(millis)
            }
            None => at(260),
        };
        match waiting.attempt(now) {
            Attempt::Admitted(_) => assert!(passes, "{on_failure:?}"),
            Attempt::TimedOut(refusal) => {
                assert_eq!((passes, refusal.why), (false, RefusalReason::StoreDown), "{on_failure:?}");
            }
            Attempt::Pending { .. } => panic!("{on_failure:?}: its time is over"),
        }
        assert_eq!(fleet.waiting(0), (0, 0));
    }
    // The store says no to it then: its patience has been over.
    let mut fleet = empty(2, shared(OnFailure::Closed), 250);
    let (mut waiting, _) = fleet.waits(0, at(0));
    let _ = waiting.wake_at(at(250));
    assert!(fleet.passes(1, at(250)));
    fleet.talk(0, at(255));
    let refusal = waiting.timed_out(at(255));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::WaitTimeout, Some(at(255))));
}

#[test]
fn the_timeout_of_a_request_counts_the_wait_for_the_store() {
    let mut fleet = empty(1, shared(OnFailure::Closed), 2_000);
    let policy = Arc::clone(&fleet.gateways[0].1);
    let timeout = Span::from_millis(255);
    let mut waiting = queued(policy.check(&asks(1, 1), timeout, at(0), &mut Report::default()));
    let _ = waiting.wake_at(at(0));
    fleet.talk(0, at(0));
    assert_eq!((waiting.wake_at(at(0)), waiting.wake_at(at(0))), (at(0), at(250)));
    assert_eq!(waiting.wake_at(at(250)), at(255), "not for the whole deadline");
    assert_eq!(waiting.timed_out(at(255)).why, RefusalReason::StoreDown);
}

/// The deadline is of one turn: a store that answers each time is not given up because it says no for long.
#[test]
fn a_store_that_says_no_in_time_is_asked_at_each_turn() {
    let mut fleet = empty(2, shared(OnFailure::Full), 10_000);
    let (mut waiting, mut wake_at) = fleet.waits(0, at(0));
    for turn in 1..=30 {
        assert_eq!(wake_at, at(250 * turn));
        // The other one is faster each time.
        assert!(fleet.passes(1, wake_at));
        assert_eq!(waiting.wake_at(wake_at), wake_at + DEADLINE, "turn {turn}");
        let answered = wake_at + Span::from_millis(9);
        assert_eq!(fleet.talk(0, answered), 1);
        wake_at = waiting.wake_at(answered);
    }
    assert_eq!(waiting.wake_at(wake_at), wake_at + DEADLINE);
    fleet.talk(0, wake_at);
    assert!(is_admitted(&mut waiting, wake_at));
}

#[test]
fn a_client_that_gives_up_frees_its_place() {
    let mut fleet = empty(1, shared(OnFailure::Closed), 2_000);
    let (mut first, _) = fleet.waits(0, at(0));
    let (mut second, _) = fleet.waits(0, at(0));
    let (third, _) = fleet.waits(0, at(0));
    let _ = first.wake_at(at(250));
    assert_eq!(fleet.waiting(0), (3, 1));
    drop(third);
    drop(first);
    assert_eq!((fleet.waiting(0), second.times_woken()), ((1, 0), 1), "from the head while it asks, and from the tail");
    assert_eq!(second.wake_at(at(251)), at(261));
    assert_eq!(fleet.talk(0, at(252)), 1, "one settle for both");
    assert!(is_admitted(&mut second, at(252)));
    assert_eq!(fleet.waiting(0), (0, 0));
    // While the answer for the first is on its way.
    let (mut first, _) = fleet.waits(0, at(260));
    let (mut second, _) = fleet.waits(0, at(260));
    let _ = first.wake_at(at(500));
    let limit = Arc::clone(&fleet.gateways[0].0);
    let wanted = all_messages(&limit, at(500));
    drop(first);
    assert_eq!(second.wake_at(at(501)), at(511));
    let answer = fleet.account.settle(&wanted[0].settle, LEASE_HOLD, at(501));
    limit.answered(&wanted[0], at(500), &answer, at(502));
    assert!(is_admitted(&mut second, at(502)), "takes what the first one asked for");
}

#[test]
fn a_queue_has_its_bound_and_says_when_to_come_back() {
    let mut fleet = empty(1, shared(OnFailure::Closed), 500);
    // By default what the rate admits in the wait.
    let mut line = vec![fleet.waits(0, at(0)).0, fleet.waits(0, at(0)).0];
    let refusal = refused(check(&fleet.gateways[0].1, 1, 1, at(0)));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::Rate, Some(at(250))), "half a second before 750 ms");
    for (turn, waiting) in (1..).zip(&mut line) {
        let _ = waiting.wake_at(at(250 * turn));
        fleet.talk(0, at(250 * turn));
        assert!(is_admitted(waiting, at(250 * turn)));
    }
}

/// Of a wheel the store says until when it is full, and not which slots are: a request that may be let in waits.
#[test]
fn a_wheel_whose_slots_end_one_by_one_lets_requests_wait() {
    let mut fleet = Fleet::patient(2, &wheel(&["10/s"], None, Bound::Sliding), shared(OnFailure::Closed), 300);
    for tenth in 0..10 {
        assert!(fleet.passes(1, at(tenth * 100)));
    }
    let (mut first, wake_at) = fleet.waits(0, at(950));
    assert_eq!(wake_at, at(1_000));
    // By what this gateway was shown, all ten were taken just now, and the next room were in a second.
    let (mut second, _) = fleet.waits(0, at(950));
    let _ = first.wake_at(at(1_000));
    fleet.talk(0, at(1_000));
    assert!(is_admitted(&mut first, at(1_000)));
    assert_eq!(second.wake_at(at(1_000)), at(1_010));
    fleet.talk(0, at(1_001));
    assert_eq!(second.wake_at(at(1_001)), at(1_100));
    let _ = second.wake_at(at(1_100));
    fleet.talk(0, at(1_100));
    assert!(is_admitted(&mut second, at(1_100)));
}

#[test]
fn a_store_that_goes_away_leaves_those_in_the_queue_to_on_failure() {
    // Three gateways: alone each has a third of the rate, or all of it.
    for (on_failure, admitted_at) in [
        (OnFailure::Fair, Some([750, 1_500])),
        (OnFailure::Full, Some([250, 500])),
        (OnFailure::Open, Some([250, 250])),
        (OnFailure::Closed, None),
    ] {
        let mut fleet = empty(3, shared(on_failure), 2_000);
        let mut line = [fleet.waits(0, at(0)).0, fleet.waits(0, at(0)).0];
        let woken = line[0].times_woken();
        fleet.see(false);
        assert_eq!(line[0].times_woken(), woken + 1, "{on_failure:?}: it looks again");
        assert_eq!(line[0].wake_at(at(1)), at(250), "{on_failure:?}: full until then, whatever happens");
        for (place, waiting) in line.iter_mut().enumerate() {
            let Some(admitted_at) = admitted_at else {
                let refusal = waiting.timed_out(at(250));
                assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::StoreDown, None), "{on_failure:?}");
                continue;
            };
            let (mut now, end) = (at(250), at(admitted_at[place]));
            while now < end {
                now = waiting.wake_at(now);
                assert!(now <= end, "{on_failure:?}: {now:?}");
            }
            assert!(is_admitted(waiting, now), "{on_failure:?} {place}: {now:?}");
        }
        assert_eq!(fleet.waiting(0), (0, 0), "{on_failure:?}");
    }
}

#[test]
fn a_store_that_goes_away_while_it_is_asked_is_not_waited_for() {
    let mut fleet = empty(1, shared(OnFailure::Full), 2_000);
    let (mut waiting, _) = fleet.waits(0, at(0));
    assert_eq!(waiting.wake_at(at(250)), at(260));
    let woken = waiting.times_woken();
    fleet.see(false);
    assert!(waiting.times_woken() > woken);
    assert!(is_admitted(&mut waiting, at(251)));
}

#[test]
fn whoever_waits_for_this_gateways_own_count_asks_a_store_that_is_back() {
    let mut fleet = empty(3, shared(OnFailure::Fair), 5_000);
    let (mut waiting, _) = fleet.waits(0, at(0));
    fleet.see(false);
    assert_eq!(waiting.wake_at(at(250)), at(750), "a third of the rate");
    let woken = waiting.times_woken();
    fleet.see(true);
    assert_eq!(waiting.times_woken(), woken + 1);
    assert_eq!(waiting.wake_at(at(300)), at(310), "it asks");
    fleet.talk(0, at(301));
    assert!(is_admitted(&mut waiting, at(301)));
}

/// A turn whose answer is late is decided by `on_failure`; the next one is asked for again.
#[test]
fn a_late_answer_ends_a_turn_and_no_more() {
    let mut fleet = empty(3, shared(OnFailure::Fair), 5_000);
    let (mut waiting, _) = fleet.waits(0, at(0));
    assert_eq!(waiting.wake_at(at(250)), at(260));
    assert_eq!(waiting.wake_at(at(260)), at(750), "by its own count");
    let limit = Arc::clone(&fleet.gateways[0].0);
    for wanted in &all_messages(&limit, at(260)) {
        limit.unanswered(wanted, false, at(270));
    }
    assert_eq!(waiting.wake_at(at(750)), at(760), "it asks");
    fleet.talk(0, at(751));
    assert!(is_admitted(&mut waiting, at(751)));
}

/// The store says that there is room before the instant that it named: the head need not wait for that.
#[test]
fn room_that_comes_early_wakes_the_head() {
    let mut fleet = Fleet::patient(1, &bucket("4/s", 4), shared(OnFailure::Closed), 2_000);
    let policy = Arc::clone(&fleet.gateways[0].1);
    let corrected = [Ask { counting: Counting::Corrected, ..asks(1, 1)[0] }];
    let mut estimated = queued(policy.check(&corrected, Span::MAX, at(0), &mut Report::default()));
    let _ = estimated.wake_at(at(0));
    fleet.talk(0, at(0));
    let Attempt::Admitted(mut permit) = estimated.attempt(at(0)) else { panic!("there is room") };
    for _ in 0..3 {
        assert!(fleet.passes(0, at(0)));
    }
    let (mut waiting, wake_at) = fleet.waits(0, at(0));
    assert_eq!(wake_at, at(250));
    let woken = waiting.times_woken();
    // Another gateway gives back two; and a request here has cost one more than was taken for it.
    fleet.account.settle(&Settle { back: 2, ..Settle::default() }, LEASE_HOLD, at(10));
    permit.settle(at(10), |_, _| Spent::Cost(2));
    assert_eq!(fleet.talk_in(0, Turn::All, at(20)), 1);
    assert_eq!(waiting.times_woken(), woken + 1);
    assert_eq!(waiting.wake_at(at(20)), at(30), "it asks");
    fleet.talk(0, at(21));
    assert!(is_admitted(&mut waiting, at(21)));
}

#[test]
fn a_limit_that_is_no_longer_shared_lets_those_who_wait_go_on() {
    let mut fleet = empty(1, shared(OnFailure::Closed), 2_000);
    let (limit, _) = fleet.gateways[0].clone();
    let (mut first, _) = fleet.waits(0, at(0));
    let (mut second, _) = fleet.waits(0, at(0));
    assert_eq!(first.wake_at(at(250)), at(260));
    limit.reconfigure(LimitSpec { sharing: None, ..limit.spec() });
    assert!(first.times_woken() > 0);
    assert!(is_admitted(&mut first, at(251)));
    assert_eq!(second.wake_at(at(251)), at(500), "by the rate of this gateway alone");
    assert!(is_admitted(&mut second, at(500)));
    assert_eq!(fleet.waiting(0), (0, 0));
    // And one that becomes shared.
    let (limit, policy) = one(LimitSpec { algorithm: bucket("4/s", 1), ..waiting("1/s", 2_000) });
    assert!(admitted(&policy, 1, at(0)));
    let mut waiting = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(waiting.wake_at(at(0)), at(250));
    limit.reconfigure(LimitSpec { sharing: Some(Sharing::Store(shared(OnFailure::Closed))), ..limit.spec() });
    assert_eq!(waiting.times_woken(), 1);
    assert_eq!(waiting.wake_at(at(1)), at(11), "it asks");
    assert_eq!(waiting.timed_out(at(11)).why, RefusalReason::StoreDown);
}

#[test]
fn a_request_waits_for_two_shared_limits_and_one_of_its_own() {
    let mut fleet = empty(1, shared(OnFailure::Closed), 2_000);
    let (own, _) = one(LimitSpec { algorithm: bucket("1/s", 1), ..waiting("1/s", 2_000) });
    let policy = policy(&[&own, &fleet.gateways[0].0]);
    assert!(admitted(&super::policy(&[&own]), 1, at(0)));
    // Its own limit says 1,000 ms, and the store has not been asked.
    let mut waiting = queued(check(&policy, 1, 1, at(0)));
    assert_eq!((waiting.ticket.waits_for(), waiting.wake_at(at(0))), (Some(0), at(1_000)));
    assert_eq!(fleet.talk(0, at(0)), 0);
    for _ in 0..4 {
        assert!(fleet.passes(0, at(1_000)));
    }
    assert_eq!(waiting.wake_at(at(1_000)), at(1_010), "now it is");
    assert_eq!(fleet.talk(0, at(1_001)), 1);
    assert!(matches!(waiting.attempt(at(1_001)), Attempt::Pending { wake_at } if wake_at == at(1_250)));
    assert_eq!(waiting.ticket.waits_for(), Some(1), "in the queue of the shared one");
    assert_eq!(waiting.wake_at(at(1_250)), at(1_260));
    assert_eq!(fleet.talk(0, at(1_251)), 1);
    assert!(is_admitted(&mut waiting, at(1_251)));
    assert!(!admitted(&super::policy(&[&own]), 1, at(1_251)), "counted there, too");
}
