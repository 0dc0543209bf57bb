//! Shared limits by hand, on a driven clock: who waits, what an outage lets pass, and what it costs afterwards.

use super::*;

pub(super) const DEADLINE: Span = Span::from_millis(10);

pub(super) fn shared(on_failure: OnFailure) -> StoreSharing {
    StoreSharing { overshoot_ppm: 0, hold: LEASE_HOLD, deadline: DEADLINE, on_failure, gives_back: false }
}

pub(super) fn leased(on_failure: OnFailure) -> StoreSharing {
    StoreSharing { overshoot_ppm: PPM / 4, ..shared(on_failure) }
}

pub(super) fn bucket(rate: &str, burst: u64) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(&[rate.parse().unwrap()], Some(burst), Refill::Greedy).unwrap())
}

/// Gateways that share a limit, and the account of its only key.
pub(super) struct Fleet {
    pub(super) gateways: Vec<(Arc<Limit>, Arc<Policy>)>,
    pub(super) account: Account,
}

/// All that a limit has to say now.
pub(super) fn all_messages(limit: &Limit, now: Tick) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for collect in [Collect::Asks, Collect::Reports] {
        limit.collect(collect, (usize::MAX, &|_| true), now, &mut wanted);
    }
    wanted
}

impl Fleet {
    pub(super) fn new(gateways: usize, algorithm: &Algorithm, sharing: StoreSharing) -> Self {
        Self::patient(gateways, algorithm, sharing, 0)
    }

    /// Where requests wait for room, so many milliseconds at most.
    pub(super) fn patient(gateways: usize, algorithm: &Algorithm, sharing: StoreSharing, max_wait: u64) -> Self {
        let start = || {
            one(LimitSpec {
                algorithm: algorithm.clone(),
                sharing: Some(Sharing::Store(sharing)),
                ..waiting("1/s", max_wait)
            })
        };
        let fleet = Self { gateways: (0..gateways).map(|_| start()).collect(), account: Account::new(algorithm) };
        fleet.see(true);
        fleet
    }

    pub(super) fn see(&self, is_up: bool) {
        for (limit, _) in &self.gateways {
            limit.set_view(FleetView { live: self.gateways.len() as u32, is_known: true, is_up });
        }
    }

    /// The store answers at once all that this gateway has to say before its next round.
    pub(super) fn talk(&mut self, gateway: usize, now: Tick) -> usize {
        if self.gateways[gateway].0.take_urgent() { self.say_all(gateway, now) } else { 0 }
    }

    /// The store answers at once all that it has to say when its keys have their turn.
    pub(super) fn talk_in(&mut self, gateway: usize, turn: Turn, now: Tick) -> usize {
        self.gateways[gateway].0.begin(turn);
        self.say_all(gateway, now)
    }

    fn say_all(&mut self, gateway: usize, now: Tick) -> usize {
        let limit = &self.gateways[gateway].0;
        let wanted = all_messages(limit, now);
        for wanted in &wanted {
            let answer = self.account.settle(&wanted.settle, LEASE_HOLD, now);
            limit.answered(wanted, now, &answer, now);
        }
        wanted.len()
    }

    /// Whether a request passes; the store answers at once.
    pub(super) fn passes(&mut self, gateway: usize, now: Tick) -> bool {
        match check(&self.gateways[gateway].1, 1, 1, now) {
            Verdict::Admitted(_) => true,
            Verdict::Refused(_) => false,
            verdict @ Verdict::Queued(_) => {
                let mut waiting = queued(verdict);
                assert_eq!(waiting.ticket.waits_for(), None, "it is in no queue");
                assert_eq!(waiting.wake_at(now), now + DEADLINE);
                assert_eq!(self.talk(gateway, now), 1);
                assert_eq!(waiting.times_woken(), 1);
                match waiting.attempt(now) {
                    Attempt::Admitted(_) => true,
                    Attempt::TimedOut(_) => false,
                    Attempt::Pending { .. } => panic!("the store has answered"),
                }
            }
        }
    }

    /// How many of twenty pass at once, without the store.
    pub(super) fn pass_alone(&self, now: Tick) -> usize {
        self.gateways.iter().map(|(_, policy)| (0..20).filter(|_| admitted(policy, 1, now)).count()).sum()
    }
}

/// The seed notes, "Synchronization": three hosts, one bucket of four tokens, refilled by four a second.
fn of_the_seeds(on_failure: OnFailure) -> Fleet {
    let mut fleet = Fleet::new(3, &bucket("4/s", 4), shared(on_failure));
    let start = at(0);
    for gateway in [0, 2, 1, 1] {
        assert!(fleet.passes(gateway, start));
    }
    for gateway in 0..3 {
        assert!(!fleet.passes(gateway, start), "none is left, whichever is asked");
    }
    fleet
}

#[test]
fn the_negative_tokens_of_the_seeds() {
    let mut fleet = of_the_seeds(OnFailure::Full);
    // A second later there are four again, and each host is on its own.
    fleet.see(false);
    assert_eq!(fleet.pass_alone(at(1_000)), 12);
    // Healed at once: 4 - 12 = -8, so nine have to come back before the next one passes.
    fleet.see(true);
    for gateway in 0..3 {
        assert_eq!(fleet.talk_in(gateway, Turn::All, at(1_000)), 1);
    }
    let ask = Settle { need: 1, want: 1, ..Settle::default() };
    let answer = fleet.account.clone().settle(&ask, LEASE_HOLD, at(1_000));
    assert_eq!((answer.granted, answer.retry), (0, Some(Span::from_millis(2_250))));
    for gateway in 0..3 {
        assert!(!fleet.passes(gateway, at(3_249)));
    }
    assert!(fleet.passes(1, at(3_250)));
    assert!(!fleet.passes(0, at(3_250)), "just one");
}

#[test]
fn an_outage_lets_pass_what_on_failure_says() {
    for (on_failure, passed, refused) in [
        (OnFailure::Full, 12, RefusalReason::Rate),
        (OnFailure::Fair, 3, RefusalReason::Rate),
        (OnFailure::Open, 60, RefusalReason::Rate),
        (OnFailure::Closed, 0, RefusalReason::StoreDown),
    ] {
        let fleet = of_the_seeds(on_failure);
        fleet.see(false);
        assert_eq!(fleet.pass_alone(at(1_000)), passed, "{on_failure:?}");
        if let Verdict::Refused(refusal) = check(&fleet.gateways[0].1, 1, 1, at(1_000)) {
            assert_eq!(refusal.why, refused, "{on_failure:?}");
        }
    }
}

#[test]
fn in_the_long_run_of_an_outage_each_has_its_part() {
    // Four a second are admitted by three gateways: 4/3 a second each, and one more in the first second.
    for (on_failure, most, least) in [(OnFailure::Fair, 4 * 30 + 4, 4 * 30 - 4), (OnFailure::Full, 12 * 31, 12 * 30)] {
        let fleet = of_the_seeds(on_failure);
        fleet.see(false);
        let passed: usize = (1..=300).map(|tenth| fleet.pass_alone(at(tenth * 100))).sum();
        assert!((least..=most).contains(&passed), "{on_failure:?}: {passed}");
    }
}

#[test]
fn what_an_outage_costs_is_bounded_by_one_limit_of_each_gateway() {
    let mut fleet = of_the_seeds(OnFailure::Open);
    fleet.see(false);
    assert_eq!(fleet.pass_alone(at(1_000)), 60);
    let owed: u64 = fleet.gateways.iter().map(|(limit, _)| limit.outstanding(at(1_000)).owed).sum();
    assert_eq!(owed, 12);
    fleet.see(true);
    for gateway in 0..3 {
        fleet.talk_in(gateway, Turn::All, at(1_000));
    }
    assert!(!fleet.passes(0, at(3_249)));
    assert!(fleet.passes(0, at(3_250)));
}

#[test]
fn a_key_that_the_store_has_called_full_stays_full_in_an_outage() {
    let fleet = of_the_seeds(OnFailure::Open);
    fleet.see(false);
    assert_eq!(fleet.pass_alone(at(249)), 0, "full until 250 ms");
    assert!(fleet.pass_alone(at(250)) > 0);
}

#[test]
fn a_quota_is_not_granted_anew_by_an_outage() {
    let month = Algorithm::FixedWindow(FixedWindow::new(&["1000/30d".parse().unwrap()], Align::Epoch).unwrap());
    let mut fleet = Fleet::new(2, &month, leased(OnFailure::Full));
    for _ in 0..990 {
        assert!(fleet.passes(0, at(5)) || fleet.talk_in(0, Turn::All, at(5)) > 0);
    }
    fleet.talk_in(0, Turn::All, at(5));
    fleet.talk_in(0, Turn::All, at(5));
    let passed = fleet.account.settle(&Settle::default(), LEASE_HOLD, at(5)).remaining[0];
    fleet.see(false);
    let left = (0..1_000).filter(|_| admitted(&fleet.gateways[0].1, 1, at(6))).count() as u64;
    assert!(left <= passed && left + 50 >= passed, "{left} of {passed}");
}

#[test]
fn one_that_waits_is_decided_at_its_deadline_and_not_before() {
    for (on_failure, passes) in [(OnFailure::Full, true), (OnFailure::Closed, false)] {
        let fleet = Fleet::new(1, &bucket("4/s", 4), shared(on_failure));
        let mut waiting = queued(check(&fleet.gateways[0].1, 1, 1, at(0)));
        let just_before = Tick::from_nanos((at(0) + DEADLINE).as_nanos() - 1);
        assert_eq!(waiting.wake_at(just_before), at(10));
        match waiting.attempt(at(10)) {
            Attempt::Admitted(_) => assert!(passes),
            Attempt::TimedOut(refusal) => assert_eq!((passes, refusal.why), (false, RefusalReason::StoreDown)),
            Attempt::Pending { .. } => panic!("its time is over"),
        }
    }
}

#[test]
fn nobody_waits_for_a_store_that_is_away_and_who_waits_is_let_go() {
    let fleet = Fleet::new(1, &bucket("4/s", 4), shared(OnFailure::Full));
    let mut waiting = queued(check(&fleet.gateways[0].1, 1, 1, at(0)));
    let _ = waiting.wake_at(at(0));
    fleet.see(false);
    assert_eq!(waiting.times_woken(), 1);
    assert!(matches!(waiting.attempt(at(1)), Attempt::Admitted(_)));
    assert!(admitted(&fleet.gateways[0].1, 1, at(1)));
}

#[test]
fn those_who_wait_are_let_in_as_they_came_and_nobody_overtakes_them() {
    let mut fleet = Fleet::new(1, &bucket("4/s", 4), shared(OnFailure::Closed));
    let policy = Arc::clone(&fleet.gateways[0].1);
    let mut line: Vec<_> = (0..5).map(|_| queued(check(&policy, 1, 1, at(0)))).collect();
    for waiting in &mut line {
        let _ = waiting.wake_at(at(0));
    }
    assert_eq!(fleet.talk(0, at(1)), 1, "one settle for all");
    let mut late = queued(check(&policy, 1, 1, at(1)));
    assert!(matches!(line[1].attempt(at(1)), Attempt::Pending { .. }), "not the front");
    for waiting in line.iter_mut().take(4) {
        assert_eq!(waiting.times_woken(), 1);
        assert!(matches!(waiting.attempt(at(1)), Attempt::Admitted(_)));
    }
    assert!(matches!(line[4].attempt(at(1)), Attempt::Pending { .. }));
    assert!(matches!(late.attempt(at(1)), Attempt::Pending { .. }));
    assert_eq!(fleet.talk(0, at(2)), 1);
    let refusal = line[4].timed_out(at(2));
    assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::Rate, Some(at(251))));
    assert_eq!(late.timed_out(at(2)).why, RefusalReason::Rate);
}

#[test]
fn a_client_that_gives_up_gives_its_place_to_the_next() {
    let mut fleet = Fleet::new(1, &bucket("4/s", 4), shared(OnFailure::Closed));
    let policy = Arc::clone(&fleet.gateways[0].1);
    let mut first = queued(check(&policy, 1, 1, at(0)));
    let mut second = queued(check(&policy, 1, 1, at(0)));
    let _ = (first.wake_at(at(0)), second.wake_at(at(0)));
    fleet.talk(0, at(1));
    drop(first);
    assert_eq!(second.times_woken(), 1);
    assert!(matches!(second.attempt(at(1)), Attempt::Admitted(_)));
    assert_eq!(fleet.gateways[0].0.outstanding(at(1)).granted, 1, "what the first one would have had");
    assert!(admitted(&policy, 1, at(1)), "serves an arrival");
}

#[test]
fn all_or_nothing_holds_beside_a_limit_that_is_not_shared() {
    let mut fleet = Fleet::new(1, &bucket("4/s", 4), shared(OnFailure::Closed));
    let (own, _) = one(LimitSpec { algorithm: bucket("1/s", 1), ..spec("1/s") });
    let policy = policy(&[&own, &fleet.gateways[0].0]);
    let mut waiting = queued(check(&policy, 1, 1, at(0)));
    let _ = waiting.wake_at(at(0));
    fleet.talk(0, at(1));
    assert!(matches!(waiting.attempt(at(1)), Attempt::Admitted(_)));
    let refusal = refused(check(&policy, 1, 1, at(1)));
    assert_eq!(
        (refusal.limit, refusal.retry_at),
        (0, Some(at(1_001))),
        "its own limit says no, and the store is not asked"
    );
    assert_eq!(fleet.talk(0, at(1)), 0);
}

#[test]
fn a_limit_that_is_no_longer_shared_reports_what_was_spent() {
    let mut fleet = Fleet::new(1, &wheel(&["100/s"], None, Bound::Sliding), leased(OnFailure::Closed));
    let (limit, policy) = (Arc::clone(&fleet.gateways[0].0), Arc::clone(&fleet.gateways[0].1));
    for _ in 0..9 {
        assert!(admitted(&policy, 1, at(0)), "on credit");
    }
    limit.reconfigure(LimitSpec { sharing: None, ..limit.spec() });
    assert_eq!(fleet.talk_in(0, Turn::All, at(1)), 1);
    assert_eq!(fleet.account.settle(&Settle::default(), LEASE_HOLD, at(1)).remaining[0], 91);
    assert_eq!(fleet.talk_in(0, Turn::All, at(2)), 0, "once");
    assert_eq!(drain(&policy, 1, at(2)), 100, "alone it begins afresh");
}

/// Somebody makes up keys while the store is away: what is kept of them is bounded by the table.
#[test]
fn keys_that_come_and_go_while_the_store_is_away_leave_no_trace_in_the_lists() {
    let sharing = leased(OnFailure::Full);
    let (limit, policy) = one(LimitSpec { sharing: Some(Sharing::Store(sharing)), max_keys: 100, ..waiting("5/s", 0) });
    limit.set_view(FleetView { live: 2, is_known: true, is_up: false });
    for key in 0..50_000 {
        let now = Tick::from_nanos(1_000_000 * key);
        drop(check(&policy, key, 1, now));
    }
    let listed = limit.outstanding(Tick::from_nanos(50_000_000_000)).listed;
    assert!(listed > 0 && listed < 20_000, "{listed}");
}
