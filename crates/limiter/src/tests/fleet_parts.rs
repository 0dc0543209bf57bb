//! A store of several parts, of which one is busy or away, on a driven clock: the keys of even numbers lie in it.

use super::fleet_outage::{all_messages, bucket, leased, shared};
use super::*;

fn is_even(key: Fingerprint) -> bool {
    key.bits().is_multiple_of(2)
}

/// So many names of keys of each part: even, odd.
fn names(each: usize) -> (Vec<u64>, Vec<u64>) {
    let of = |even| (1..).filter(|name| is_even(key(*name)) == even).take(each).collect();
    (of(true), of(false))
}

fn one_of_two(sharing: StoreSharing) -> (Arc<Limit>, Arc<Policy>) {
    let (limit, policy) =
        one(LimitSpec { algorithm: bucket("4/s", 4), sharing: Some(Sharing::Store(sharing)), ..spec("4/s") });
    limit.set_view(FleetView { live: 2, is_known: true, is_up: true });
    (limit, policy)
}

fn keys(wanted: &[Wanted]) -> Vec<Fingerprint> {
    wanted.iter().map(|wanted| wanted.key).collect()
}

#[test]
fn keys_of_a_busy_part_keep_their_turns_and_the_others_do_not_wait_for_them() {
    let (limit, policy) = one_of_two(shared(OnFailure::Fair));
    let (even, odd) = names(3);
    let all: Vec<u64> = even.iter().zip(&odd).flat_map(|(even, odd)| [*even, *odd]).collect();
    let mut waiting: Vec<_> = all.iter().map(|name| queued(check(&policy, *name, 1, at(0)))).collect();
    for waiting in &mut waiting {
        let _ = waiting.wake_at(at(0));
    }
    let collect = |most, is_free: &dyn Fn(Fingerprint) -> bool| {
        let mut wanted = Vec::new();
        let has_busy = limit.collect(Collect::Asks, (most, is_free), at(0), &mut wanted);
        (keys(&wanted), has_busy)
    };
    let of = |names: &[u64]| names.iter().map(|name| key(*name)).collect::<Vec<_>>();
    let sorted = |mut keys: Vec<Fingerprint>| {
        keys.sort_unstable_by_key(|key| key.bits());
        keys
    };
    let (first, has_busy) = collect(2, &|key| !is_even(key));
    assert!(has_busy && first.len() == 2 && !first.iter().any(|key| is_even(*key)));
    let (second, has_busy) = collect(9, &|key| !is_even(key));
    assert!(has_busy, "three are left");
    assert_eq!(sorted([first, second].concat()), sorted(of(&odd)));
    assert_eq!(collect(9, &|key| !is_even(key)), (Vec::new(), true));
    let (free, has_busy) = collect(9, &|_| true);
    assert_eq!((sorted(free), has_busy), (sorted(of(&even)), false));
    assert_eq!(collect(9, &|_| true), (Vec::new(), false));
}

#[test]
fn what_a_busy_part_is_to_be_told_is_told_once_when_it_is_free() {
    let (limit, policy) =
        one(LimitSpec { sharing: Some(Sharing::Store(leased(OnFailure::Fair))), max_keys: 10_000, ..spec("100/s") });
    limit.set_view(FleetView { live: 2, is_known: true, is_up: true });
    let (even, odd) = names(200);
    for name in even.iter().chain(&odd) {
        assert!(admitted(&policy, *name, at(0)), "on credit");
    }
    limit.begin(Turn::All);
    let mut told = Vec::new();
    // Batches are small, and between them the busy part stays busy.
    while limit.collect(Collect::Reports, (16, &|key| !is_even(key)), at(1), &mut told) && told.len() < 200 {
        let most = told.len() + 16;
        limit.collect(Collect::Reports, (most, &|key| !is_even(key)), at(1), &mut told);
    }
    assert!(told.len() <= 200 && told.iter().all(|wanted| !is_even(wanted.key)));
    limit.collect(Collect::Reports, (usize::MAX, &|_| true), at(1), &mut told);
    let mut keys: Vec<u64> = keys(&told).iter().map(|key| key.bits()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((told.len(), keys.len()), (400, 400), "each once");
}

#[test]
fn keys_of_a_part_that_is_away_are_decided_alone_and_owed_to_it_and_the_others_ask() {
    let (limit, policy) = one_of_two(shared(OnFailure::Fair));
    let (even, odd) = names(1);
    let (even, odd) = (even[0], odd[0]);
    let mut waits = queued(check(&policy, even, 1, at(0)));
    let _ = waits.wake_at(at(0));
    limit.set_away(Some(Arc::new(is_even)));
    assert_eq!(waits.times_woken(), 1, "nobody waits for a part that has gone");
    assert!(matches!(waits.attempt(at(1)), Attempt::Admitted(_)));
    assert!(admitted(&policy, even, at(1)) && !admitted(&policy, even, at(1)), "L / N");
    let _other = queued(check(&policy, odd, 1, at(1)));
    limit.begin(Turn::All);
    assert_eq!(keys(&all_messages(&limit, at(2))), [key(odd)], "the part that is away is told nothing");
    assert_eq!(limit.outstanding(at(2)).unanswered, 0);
    // Back: what was spent meanwhile is charged first.
    limit.set_away(None);
    limit.begin(Turn::All);
    let messages = all_messages(&limit, at(3));
    assert_eq!((keys(&messages), messages[0].settle.spent), (vec![key(even)], 2));
}

#[test]
fn closed_refuses_what_lies_in_a_part_that_is_away_and_only_that() {
    let (limit, policy) = one_of_two(shared(OnFailure::Closed));
    let (even, odd) = names(1);
    limit.set_away(Some(Arc::new(is_even)));
    assert!(matches!(check(&policy, even[0], 1, at(0)), Verdict::Refused(_)));
    assert!(matches!(check(&policy, odd[0], 1, at(0)), Verdict::Queued(_)));
}
