//! A limit that is taken over while it still admits: the gateway that takes it over counts both.

use std::convert::Infallible;

use proptest::prelude::*;

use super::fleet_outage::{Fleet, bucket, shared};
use super::persist::{algorithms, said};
use super::*;

/// A limit with the keys of another one, which is followed from then on.
fn followed(limit: &Limit, now: Tick) -> (Arc<Limit>, Arc<Policy>) {
    let next = Limit::new(limit.spec());
    let copied = limit.copy_and_follow(now, |records| {
        next.take_over_keys(records, now);
        Ok::<_, Infallible>(())
    });
    copied.unwrap();
    let policy = policy(&[&next]);
    (next, policy)
}

fn bring(limit: &Limit, next: &Limit) -> usize {
    let mut taken = Vec::new();
    limit.take_followed(&mut taken);
    next.count_followed(&taken);
    taken.len()
}

#[test]
fn nothing_is_noted_before_the_copy_twice_or_after_the_end() {
    let (limit, policy) = one(spec("10/m"));
    let mut taken = Vec::new();
    assert!(admitted(&policy, 1, at(0)) && admitted(&policy, 2, at(0)));
    limit.take_followed(&mut taken);
    assert_eq!(taken, []);
    let (next, other) = followed(&limit, at(1));
    // Of the short way, of the long one, and of a key that is new.
    assert!(admitted(&policy, 1, at(2)) && admitted(&policy, 3, at(3)));
    assert_eq!([bring(&limit, &next), bring(&limit, &next)], [2, 0]);
    assert_eq!([1, 2, 3].map(|name| drain(&other, name, at(4))), [8, 9, 9]);
    limit.stop_following();
    assert!(admitted(&policy, 1, at(5)));
    assert_eq!(bring(&limit, &next), 0);
    // A second one that takes over gets what is in its copy, and nothing of what the first one got.
    let (again, policy_again) = followed(&limit, at(6));
    assert_eq!(bring(&limit, &again), 0);
    assert_eq!(drain(&policy_again, 1, at(7)), drain(&policy, 1, at(7)));
}

#[test]
fn keys_of_shards_that_nobody_had_asked_follow_too() {
    let (limit, policy) = one(LimitSpec { max_keys: 1_000_000, ..spec("2/m") });
    assert!(admitted(&policy, 0, at(0)));
    let (next, other) = followed(&limit, at(0));
    assert!((1..200).all(|name| admitted(&policy, name, at(1))));
    assert_eq!(bring(&limit, &next), 199);
    assert!((0..200).all(|name| drain(&other, name, at(2)) == 1));
}

#[test]
fn what_is_shared_is_told_to_the_store_and_not_to_the_next_process() {
    let mut fleet = Fleet::new(1, &bucket("10/m", 10), shared(OnFailure::Full));
    let limit = Arc::clone(&fleet.gateways[0].0);
    let _ = limit.copy_and_follow(at(0), |_| Ok::<_, Infallible>(()));
    // By the store, and while that is away.
    assert!(fleet.passes(0, at(1)));
    fleet.see(false);
    assert!(fleet.pass_alone(at(2)) > 0);
    let mut taken = Vec::new();
    limit.take_followed(&mut taken);
    assert_eq!(taken, []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// `twin` lives through it in one process.
    #[test]
    fn the_decisions_after_are_those_of_one_process(
        which in 0usize..12,
        before in prop::collection::vec((0u64..5, 1u64..3, 0u64..900), 0..60),
        between in prop::collection::vec((0u64..5, 1u64..3, 0u64..900), 0..60),
        after in prop::collection::vec((0u64..5, 1u64..3, 0u64..900), 1..60),
    ) {
        let mut algorithm = algorithms()[which].clone();
        if let Algorithm::SlidingLog(_) = algorithm {
            // Not one that counts refusals, which do not follow.
            algorithm = Algorithm::SlidingLog(SlidingLog::new(&["3/s".parse().unwrap()], Span::ZERO, false).unwrap());
        }
        let spec = LimitSpec { algorithm, ..spec("3/s") };
        let ((limit, policy), (_, twin)) = (one(spec.clone()), one(spec));
        let mut millis = 1_700_000_000_000;
        for (name, cost, wait) in before {
            millis += wait;
            prop_assert_eq!(said(&policy, name, cost, at(millis)), said(&twin, name, cost, at(millis)));
        }
        let (next, policy_of_next) = followed(&limit, at(millis));
        for (index, (name, cost, wait)) in between.into_iter().enumerate() {
            millis += wait;
            prop_assert_eq!(said(&policy, name, cost, at(millis)), said(&twin, name, cost, at(millis)));
            if index % 7 == 0 {
                bring(&limit, &next);
            }
        }
        bring(&limit, &next);
        for (name, cost, wait) in after {
            millis += wait;
            prop_assert_eq!(said(&policy_of_next, name, cost, at(millis)), said(&twin, name, cost, at(millis)));
        }
    }
}
