//! Requests of a shared limit whose cost is known later, keys that a table has forgotten, and limits that change, on a driven
//! clock.

use super::fleet_outage::{Fleet, all_messages, bucket, leased, shared};
use super::*;

fn asking(name: u64, cost: u64, counting: Counting) -> [Ask; MAX_LIMITS] {
    [Ask { key: Some(key(name)), cost, counting, ..Ask::default() }; MAX_LIMITS]
}

/// A request to the only gateway; the store answers at once.
fn let_in(fleet: &mut Fleet, cost: u64, counting: Counting, now: Tick) -> Option<Permit> {
    match fleet.gateways[0].1.check(&asking(1, cost, counting), Span::MAX, now, &mut Report::default()) {
        Verdict::Admitted(permit) => Some(permit),
        Verdict::Refused(_) => None,
        verdict @ Verdict::Queued(_) => {
            let mut waiting = queued(verdict);
            let _ = waiting.wake_at(now);
            fleet.talk(0, now);
            match waiting.attempt(now) {
                Attempt::Admitted(permit) => Some(permit),
                _ => None,
            }
        }
    }
}

/// How many of sixty requests, one after the other, are let in, each of which counts once it is answered.
fn counted_later(fleet: &mut Fleet, first: u64) -> usize {
    let passes = |millis| {
        let Some(mut permit) = let_in(fleet, 1, Counting::Later, at(millis)) else { return false };
        permit.settle(at(millis), |_, _| Spent::AsAsked);
        fleet.talk(0, at(millis));
        true
    };
    (first..first + 60).map(passes).filter(|passes| *passes).count()
}

#[test]
fn what_counts_once_it_is_answered_is_limited_with_the_store_and_without() {
    for (sharing, is_up, most) in [
        (shared(OnFailure::Fair), true, 5),
        // Four more on credit: a quarter of sixteen.
        (leased(OnFailure::Fair), true, 20),
        (shared(OnFailure::Full), false, 5),
        (shared(OnFailure::Fair), false, 5),
        (leased(OnFailure::Full), false, 16),
    ] {
        let burst = if sharing.overshoot_ppm > 0 { 16 } else { 5 };
        let mut fleet = Fleet::new(1, &bucket("5/h", burst), sharing);
        fleet.see(is_up);
        let passed = counted_later(&mut fleet, 0);
        assert!(passed as u64 >= burst && passed <= most, "{passed} with {sharing:?}, up: {is_up}");
    }
    let mut fleet = Fleet::new(1, &bucket("5/h", 5), shared(OnFailure::Full));
    assert!(let_in(&mut fleet, 1, Counting::AtOnce, at(0)).is_some());
    fleet.see(false);
    assert_eq!(counted_later(&mut fleet, 1), 4, "the store has counted one before it was away");
}

#[test]
fn what_costs_more_than_it_seemed_is_counted_without_the_store_too() {
    let mut fleet = Fleet::new(1, &bucket("1/h", 100), shared(OnFailure::Full));
    fleet.see(false);
    let passes = |millis| {
        let Some(mut permit) = let_in(&mut fleet, 1, Counting::Corrected, at(millis)) else { return false };
        permit.settle(at(millis), |_, _| Spent::Cost(50));
        true
    };
    assert_eq!((0..20).map(passes).filter(|passes| *passes).count(), 2);
}

#[test]
fn an_outage_gives_nothing_back_that_was_never_charged() {
    let mut fleet = Fleet::new(1, &bucket("1/h", 100), shared(OnFailure::Open));
    for millis in 0..9 {
        let mut permit = let_in(&mut fleet, 10, Counting::Corrected, at(millis)).unwrap();
        permit.settle(at(millis), |_, _| Spent::Cost(10));
    }
    fleet.see(false);
    let permits: Vec<_> = (0..40).map(|_| let_in(&mut fleet, 10, Counting::Corrected, at(20)).unwrap()).collect();
    fleet.see(true);
    for mut permit in permits {
        permit.settle(at(30), |_, _| Spent::Cost(1));
    }
    fleet.talk_in(0, Turn::All, at(40));
    assert!(let_in(&mut fleet, 10, Counting::Corrected, at(50)).is_none(), "90 were counted, and 40 at least");
    assert!(let_in(&mut fleet, 1, Counting::AtOnce, at(60)).is_none());
}

#[test]
fn nobody_shuts_a_key_for_long_by_many_requests_at_once() {
    let mut fleet = Fleet::new(1, &bucket("10/s", 10), shared(OnFailure::Fair));
    let permits: Vec<_> = (0..200).filter_map(|_| let_in(&mut fleet, 1, Counting::Later, at(0))).collect();
    assert_eq!(permits.len(), 200, "none has counted yet");
    for (mut permit, millis) in permits.into_iter().zip((0..).step_by(10)) {
        permit.settle(at(millis), |_, _| Spent::AsAsked);
        fleet.talk(0, at(millis));
        fleet.talk_in(0, Turn::All, at(millis));
    }
    let now = at(2_000);
    let until = refused(check(&fleet.gateways[0].1, 1, 1, now)).retry_at.unwrap();
    assert!(until.since(now) < Span::from_millis(2_200), "{}", until.since(now));
}

#[test]
fn a_refusal_of_the_store_does_not_outlive_another_limit_or_another_store() {
    let asks_again = |change: fn(&Arc<Limit>)| {
        let mut fleet = Fleet::new(1, &bucket("3/h", 3), shared(OnFailure::Fair));
        let passed = (0..5).filter(|millis| fleet.passes(0, at(*millis))).count();
        let (limit, policy) = &fleet.gateways[0];
        assert!(passed == 3 && matches!(check(policy, 1, 1, at(9)), Verdict::Refused(_)));
        change(limit);
        matches!(check(policy, 1, 1, at(10)), Verdict::Queued(_))
    };
    assert!(asks_again(|limit| {
        limit.reconfigure(LimitSpec { algorithm: bucket("3/h", 10), ..limit.spec() });
    }));
    assert!(asks_again(|limit| limit.forget_refusals()));
    assert!(!asks_again(|limit| {
        limit.reconfigure(LimitSpec { max_keys: 77, ..limit.spec() });
    }));
}

#[test]
fn another_number_gives_a_full_key_no_credit_anew() {
    let of = |limit: u64| wheel(&[&format!("{limit}/h")], None, Bound::Sliding);
    let mut fleet = Fleet::new(1, &of(100), leased(OnFailure::Fair));
    let mut passed = 0;
    for change in 0..7 {
        let limit = Arc::clone(&fleet.gateways[0].0);
        limit.reconfigure(LimitSpec { algorithm: of(100 + change % 2), ..limit.spec() });
        passed += (0..200).filter(|millis| fleet.passes(0, at(change * 1_000 + millis))).count();
        fleet.talk_in(0, Turn::All, at(change * 1_000 + 500));
    }
    assert!((100..=125).contains(&passed), "{passed}: 100, and c is 25");
}

#[test]
fn a_key_that_the_table_has_forgotten_asks_before_it_has_credit() {
    let sharing = Some(Sharing::Store(leased(OnFailure::Fair)));
    let (limit, policy) = one(LimitSpec { sharing, max_keys: 8, on_full: OnFull::EvictOldest, ..spec("100/s") });
    limit.set_view(FleetView { live: 1, is_known: true, is_up: true });
    let makes = |name, millis| matches!(check(&policy, name, 1, at(millis)), Verdict::Admitted(_));
    assert!((0..25).all(|_| makes(1, 0)) && !makes(1, 0), "c is 25");
    for name in 2..40 {
        drop(check(&policy, name, 1, at(1)));
    }
    assert!(limit.stats().evicted_live > 0);
    assert!(!makes(1, 2), "it was forgotten, with what it had spent");
    assert!(makes(1, 1_100), "a window after the last key was forgotten");
}

#[test]
fn a_full_table_that_lets_new_keys_pass_lets_those_pass_that_would_have_to_ask() {
    let sharing = Some(Sharing::Store(shared(OnFailure::Fair)));
    let (limit, policy) = one(LimitSpec { sharing, max_keys: 2, on_full: OnFull::Allow, ..spec("5/s") });
    limit.set_view(FleetView { live: 1, is_known: true, is_up: true });
    let waiting: Vec<_> = (1..=2).map(|name| queued(check(&policy, name, 1, at(0)))).collect();
    for name in 3..=6 {
        assert!(admitted(&policy, name, at(0)), "{name}");
    }
    assert_eq!((limit.stats().allowed_full, limit.stats().refused_full), (4, 0));
    drop(waiting);
}

/// The message that brings it back is quicker than the one that asked for it.
#[test]
fn a_rest_goes_back_to_the_window_that_its_grant_has_opened_and_to_no_later_one() {
    let window = FixedWindow::new(&["10/s".parse().unwrap()], Align::First).unwrap();
    let mut fleet = Fleet::new(1, &Algorithm::FixedWindow(window), leased(OnFailure::Fair));
    let (limit, policy) = fleet.gateways[0].clone();
    // A request of 3 asks for all there is. The store hears of it after 3 ms, and of the rest at once.
    let mut take_and_give_back = |sent: u64, over: u64| {
        let mut waiting = queued(check(&policy, 1, 3, at(sent)));
        let _ = waiting.wake_at(at(sent));
        let asked = all_messages(&limit, at(sent));
        assert_eq!(asked.len(), 1);
        let answer = fleet.account.settle(&asked[0].settle, LEASE_HOLD, at(sent + 3));
        limit.answered(&asked[0], at(sent), &answer, at(sent + 3));
        assert!(matches!(waiting.attempt(at(sent + 3)), Attempt::Admitted(_)));
        if over == 1_104 {
            let other = Settle { spent: 4, ..Settle::default() };
            assert_eq!(fleet.account.settle(&other, LEASE_HOLD, at(over)).remaining[0], 6, "it opens a window");
        }
        limit.begin(Turn::Round);
        let [back] = all_messages(&limit, at(over))[..] else { panic!("one rest") };
        assert!(back.settle.back > 0);
        let answer = fleet.account.settle(&back.settle, LEASE_HOLD, at(over));
        limit.answered(&back, at(over), &answer, at(over));
        answer.remaining[0]
    };
    assert_eq!(take_and_give_back(100, 200), 7);
    assert_eq!(take_and_give_back(1_096, 1_104), 6, "the window has ended at 1,103 ms");
}
