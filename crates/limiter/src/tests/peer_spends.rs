//! A limit that gateways share without a store: what is counted is noted, and what peers count is owed.

use std::convert::Infallible;

use proptest::prelude::*;

use super::fleet_outage::bucket;
use super::*;

fn told(rate: &str, burst: u64) -> (Arc<Limit>, Arc<Policy>) {
    let (limit, policy) = one(LimitSpec { max_keys: 1_000, ..LimitSpec::new("told", bucket(rate, burst)) });
    limit.tell_peers(true);
    (limit, policy)
}

fn debt(cost: u64, within: Span) -> PeerDebt {
    PeerDebt { cost, within, may_be_counted: false }
}

fn taken(limit: &Limit) -> Vec<(u64, u64)> {
    let mut taken = PeerSpends::default();
    limit.take_spends(&mut taken);
    assert_eq!(taken.lost, 0);
    taken.spends.iter().map(|(key, cost)| (key.bits(), *cost)).collect()
}

/// Each gateway owes what the others have spent.
fn tell(fleet: &[(Arc<Limit>, Arc<Policy>)], now: Tick) {
    let all: Vec<_> = fleet.iter().map(|(limit, _)| taken(limit)).collect();
    for (at, (limit, _)) in fleet.iter().enumerate() {
        for (_, spends) in all.iter().enumerate().filter(|(from, _)| *from != at) {
            for (bits, cost) in spends {
                limit.owe(Fingerprint::from_bits(*bits), 0, debt(*cost, Span::from_secs(10)), now);
            }
        }
    }
}

/// The seed notes, "Synchronization": three hosts, one bucket of four tokens, refilled by four a second.
#[test]
fn the_negative_tokens_of_the_seeds() {
    let fleet = [(); 3].map(|()| told("4/s", 4));
    let passes = |gateway: usize, now| admitted(&fleet[gateway].1, 1, now);
    for gateway in [0, 2, 1, 1] {
        assert!(passes(gateway, at(0)));
        tell(&fleet, at(0));
    }
    assert!((0..3).all(|gateway| !passes(gateway, at(0))), "none is left, whichever is asked");
    // A second later there are four again, and each host is on its own.
    assert_eq!((0..3).map(|gateway| drain(&fleet[gateway].1, 1, at(1_000))).collect::<Vec<_>>(), [4, 4, 4]);
    // Healed at once: 4 - 12 = -8, so nine have to come back before the next one passes.
    tell(&fleet, at(1_000));
    assert!((0..3).all(|gateway| !passes(gateway, at(3_249))));
    assert!(passes(1, at(3_250)));
    tell(&fleet, at(3_250));
    assert!(!passes(0, at(3_250)), "just one");
}

#[test]
fn what_is_noted_is_each_cost_once_while_peers_are_told() {
    let (limit, policy) = told("5/s", 5);
    let (one, two) = (key(1).bits(), key(2).bits());
    // Of the long way, since the keys are new, and of the short one; refusals are not noted.
    assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 2, at(0)) && admitted(&policy, 2, at(0)));
    assert!(matches!(check(&policy, 2, 2, at(0)), Verdict::Admitted(_)));
    assert!(!matches!(check(&policy, 2, 3, at(0)), Verdict::Admitted(_)));
    let mut noted = taken(&limit);
    noted.sort_unstable();
    let mut expected = vec![(one, 1), (two, 4)];
    expected.sort_unstable();
    assert_eq!(noted, expected);
    assert_eq!(taken(&limit), []);
    // What peers have spent is not told back to them.
    limit.owe(key(1), 0, debt(2, Span::from_secs(1)), at(0));
    assert_eq!((taken(&limit), drain(&policy, 1, at(0))), (vec![], 2));
    assert_eq!(taken(&limit), [(one, 2)]);
    limit.tell_peers(false);
    assert!(admitted(&policy, 2, at(1_000)));
    limit.tell_peers(true);
    assert_eq!(taken(&limit), []);
}

#[test]
fn a_debt_is_at_most_what_comes_back_within_its_time() {
    let (limit, policy) = told("4/s", 4);
    limit.owe(key(1), 0, debt(100, Span::from_millis(750)), at(0));
    assert_eq!(drain(&policy, 1, at(0)), 1);
    // Of a limit with two rates each is owed by itself.
    let rates = ["4/s".parse().unwrap(), "100/m".parse().unwrap()];
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Greedy).unwrap());
    let (limit, policy) = one(LimitSpec::new("two", algorithm));
    limit.owe(key(1), 1, debt(98, Span::from_secs(60)), at(0));
    assert_eq!(drain(&policy, 1, at(0)), 2);
    limit.owe(key(1), 2, debt(98, Span::from_secs(60)), at(0));
    // Others than token buckets and gcra owe nothing.
    let (limit, policy) = one(spec("3/s"));
    limit.owe(key(1), 0, debt(3, Span::from_secs(1)), at(0));
    assert_eq!(drain(&policy, 1, at(0)), 3);
}

#[test]
fn a_debt_moves_the_turns_of_those_who_wait() {
    let waiting =
        LimitSpec { max_wait: Span::from_secs(5), max_queue: Some(10), ..LimitSpec::new("w", bucket("1/s", 1)) };
    let (limit, policy) = one(waiting);
    assert!(admitted(&policy, 1, at(0)));
    let mut first = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(first.wake_at(at(0)), at(1_000));
    limit.owe(key(1), 0, debt(1, Span::from_secs(9)), at(100));
    assert_eq!(first.times_woken(), 1);
    assert_eq!(first.wake_at(at(100)), at(2_000));
    assert!(matches!(first.attempt(at(2_000)), Attempt::Admitted(_)));
}

#[test]
fn notes_that_are_not_taken_are_bounded_and_counted() {
    let (limit, policy) = one(LimitSpec { max_keys: 20_000, ..LimitSpec::new("told", bucket("1000/s", 1000)) });
    limit.tell_peers(true);
    let noted = |limit: &Limit| {
        let mut taken = PeerSpends::default();
        limit.take_spends(&mut taken);
        (taken.spends.len(), taken.spends.iter().map(|(_, cost)| cost).sum::<u64>(), taken.lost)
    };
    // A few keys in turns are merged.
    for name in 0..40_000 {
        assert!(admitted(&policy, name % 3, at(name)));
    }
    let (entries, cost, lost) = noted(&limit);
    assert!(entries <= 16_384, "{entries}");
    assert_eq!((cost, lost), (40_000, 0));
    // Two shards have place for so many, each.
    for name in 0..40_000 {
        assert!(admitted(&policy, name, at(100_000)));
    }
    let (entries, cost, lost) = noted(&limit);
    assert_eq!((entries, cost, lost), (2 * 16_384, 2 * 16_384, 40_000 - 2 * 16_384));
    assert!(admitted(&policy, 0, at(200_000)));
    assert_eq!(noted(&limit), (1, 1, 0));
}

/// The process that is taken over tells the peers itself what it has admitted, until it gives its address up: from then on the
/// next one tells them.
#[test]
fn the_next_process_counts_debts_and_tells_only_its_own() {
    let (limit, policy) = told("4/s", 4);
    let next = Limit::new(limit.spec());
    let copied = limit.copy_and_follow(at(0), |records| {
        next.take_over_keys(records, at(0));
        Ok::<_, Infallible>(())
    });
    copied.unwrap();
    assert!(admitted(&policy, 1, at(0)));
    limit.owe(key(1), 0, debt(2, Span::from_secs(1)), at(0));
    let mut followed = Vec::new();
    limit.take_followed(&mut followed);
    next.count_followed(&followed);
    assert_eq!(taken(&limit), [(key(1).bits(), 1)]);
    next.tell_peers(true);
    let policy = super::policy(&[&next]);
    assert_eq!((taken(&next), drain(&policy, 1, at(0))), (vec![], 1));
    assert_eq!(taken(&next), [(key(1).bits(), 1)]);
    // Peers tell the next process all that they have spent, which has heard most of it already.
    let counted = PeerDebt { may_be_counted: true, ..debt(3, Span::from_secs(9)) };
    next.take_over_keys(&[], at(0));
    assert!(next.has_taken_over() && !limit.has_taken_over());
    next.owe(key(1), 0, counted, at(0));
    assert_eq!(drain(&policy, 1, at(250)), 1);
    next.owe(key(3), 0, counted, at(250));
    assert_eq!(drain(&policy, 3, at(500)), 2);
    limit.stop_following();
    assert_eq!(taken(&limit), []);
    let policy = super::policy(&[&limit]);
    assert!(admitted(&policy, 2, at(0)));
    assert_eq!(taken(&limit), [(key(2).bits(), 1)], "it is told after the end of the copy, too");
}

proptest! {
    /// Two buckets that tell each other at once are one.
    #[test]
    fn gateways_that_hear_each_other_at_once_are_one(
        asks in prop::collection::vec((0usize..2, 0u64..3, 1u64..4, 0u64..400), 1..80),
        is_gcra in any::<bool>(),
    ) {
        let algorithm = if is_gcra {
            Algorithm::Gcra(Gcra::new(&["7/s".parse().unwrap()], Some(5)).unwrap())
        } else {
            bucket("7/s", 5)
        };
        let made = || one(LimitSpec::new("told", algorithm.clone()));
        let (fleet, alone) = ([made(), made()], made());
        for (limit, _) in &fleet {
            limit.tell_peers(true);
        }
        let mut now = 0;
        for (gateway, name, cost, later) in asks {
            now += later;
            let passes = |policy: &Arc<Policy>| matches!(check(policy, name, cost, at(now)), Verdict::Admitted(_));
            prop_assert_eq!(passes(&fleet[gateway].1), passes(&alone.1));
            tell(&fleet, at(now));
        }
    }
}
