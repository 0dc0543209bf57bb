use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn at(millis: u64) -> Tick {
    Tick::ZERO + Span::from_millis(millis)
}

fn answer(body: &str) -> SharedAnswer {
    SharedAnswer::new(b"HTTP/1.1 200 OK\r\n".to_vec(), false, body.as_bytes().to_vec())
}

fn lead(collapse: &Arc<Collapse>, key: &str, now: u64) -> Leader {
    match collapse.join(key.as_bytes(), at(now)) {
        Joined::Lead(leader) => leader,
        other => panic!("{other:?}"),
    }
}

fn follow(collapse: &Arc<Collapse>, key: &str, now: u64) -> AnswerFollower {
    match collapse.join(key.as_bytes(), at(now)) {
        Joined::Follow(follower) => follower,
        other => panic!("{other:?}"),
    }
}

/// How a follower stands, and how often it was woken up to now and from now on.
fn look(follower: &AnswerFollower, now: u64) -> (Poll<FollowEnd>, Arc<Woken>) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    (follower.poll(&Context::from_waker(&waker), at(now)), woken)
}

fn body(polled: &Poll<FollowEnd>) -> Option<String> {
    match polled {
        Poll::Ready(FollowEnd::Answer(answer)) => Some(String::from_utf8_lossy((**answer).as_ref()).into_owned()),
        _ => None,
    }
}

fn held(collapse: &Collapse) -> usize {
    collapse.held.load(Ordering::Relaxed)
}

fn is_empty(collapse: &Collapse) -> bool {
    let state = collapse.state();
    state.by_key.is_empty() && state.flights.is_empty() && held(collapse) == 0
}

#[test]
fn a_thousand_requests_are_one_and_what_is_shared_is_gone_with_the_last() {
    let collapse = Arc::<Collapse>::default();
    let leader = lead(&collapse, "a", 0);
    let other = lead(&collapse, "b", 0);
    let followers: Vec<_> = (1..1_000).map(|now| follow(&collapse, "a", now)).collect();
    let waiting: Vec<_> = followers.iter().map(|own| look(own, 2_000)).collect();
    assert!(waiting.iter().all(|(polled, _)| polled.is_pending()));
    leader.share(answer("hello"));
    assert!(waiting.iter().all(|(_, woken)| woken.0.load(Ordering::Relaxed) == 1));
    assert!(followers.iter().all(|own| body(&look(own, 2_000).0).as_deref() == Some("hello")));
    assert!(held(&collapse) >= 5);
    // It is no cache.
    let next = lead(&collapse, "a", 2_000);
    drop((followers, waiting, other, next));
    assert!(is_empty(&collapse));
}

#[test]
fn what_cannot_be_shared_sends_each_on_its_own_and_the_key_is_left_alone_for_ten_seconds() {
    let collapse = Arc::<Collapse>::default();
    let leader = lead(&collapse, "a", 0);
    let followers = [follow(&collapse, "a", 1), follow(&collapse, "a", 1)];
    leader.miss(at(100));
    assert!(followers.iter().all(|own| matches!(look(own, 100).0, Poll::Ready(FollowEnd::Alone))));
    drop(followers);
    assert!(is_empty(&collapse));
    assert!(matches!(collapse.join(b"a", at(10_099)), Joined::Alone));
    drop(lead(&collapse, "b", 10_099));
    lead(&collapse, "a", 10_100).share(answer(""));
    assert!(is_empty(&collapse));
}

#[test]
fn keys_that_are_left_alone_are_bounded_and_the_oldest_is_forgotten() {
    let collapse = Arc::<Collapse>::default();
    for number in 0..=MOST_APART {
        lead(&collapse, &number.to_string(), 0).miss(at(0));
    }
    let state = collapse.state();
    assert_eq!((state.apart.order.len(), state.apart.until.len()), (MOST_APART, MOST_APART));
    drop(state);
    drop(lead(&collapse, "0", 1));
    assert!(matches!(collapse.join(b"1", at(1)), Joined::Alone));
    lead(&collapse, "x", 20_000).miss(at(20_000));
    assert_eq!(collapse.state().apart.until.len(), 1);
}

#[test]
fn a_leader_that_leaves_hands_over_to_the_first_that_follows_and_not_for_ever() {
    let collapse = Arc::<Collapse>::default();
    let mut leader = lead(&collapse, "a", 0);
    let mut followers: Vec<_> = (0..6).map(|_| follow(&collapse, "a", 1)).collect();
    for turn in 0..3 {
        let (_, woken) = look(&followers[0], 1);
        drop(leader);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(look(&followers[1], 1).0.is_pending(), "it is not the first");
        let Poll::Ready(FollowEnd::Lead(next)) = look(&followers[0], 1).0 else { panic!("turn {turn}") };
        drop(followers.remove(0));
        leader = next;
    }
    assert!(followers.iter().all(|own| look(own, 1).0.is_pending()));
    drop(leader);
    assert!(followers.iter().all(|own| matches!(look(own, 1).0, Poll::Ready(FollowEnd::Alone))));
    // Nobody is to blame: the next one leads.
    drop((followers, lead(&collapse, "a", 2)));
    assert!(is_empty(&collapse));
}

#[test]
fn a_lead_that_is_offered_to_one_who_leaves_is_the_next_ones() {
    let collapse = Arc::<Collapse>::default();
    drop(lead(&collapse, "a", 0));
    let leader = lead(&collapse, "a", 0);
    let [one, two] = [follow(&collapse, "a", 1), follow(&collapse, "a", 1)];
    let (polled, woken) = look(&two, 1);
    drop(leader);
    drop(one);
    assert!(polled.is_pending() && woken.0.load(Ordering::Relaxed) == 1);
    assert!(matches!(look(&two, 1).0, Poll::Ready(FollowEnd::Lead(_))), "and is dropped here");
    let again = lead(&collapse, "a", 1);
    let [three, four] = [follow(&collapse, "a", 1), follow(&collapse, "a", 1)];
    drop((again, two, three, four));
    assert!(is_empty(&collapse));
}

#[test]
fn a_leader_knows_whether_anybody_follows_and_is_woken_when_that_changes() {
    let collapse = Arc::<Collapse>::default();
    let leader = lead(&collapse, "a", 0);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let cx = Context::from_waker(&waker);
    assert!(!leader.is_followed(&cx));
    let follower = follow(&collapse, "a", 1);
    assert!(leader.is_followed(&cx) && woken.0.load(Ordering::Relaxed) == 1);
    drop(follower);
    assert!(!leader.is_followed(&cx) && woken.0.load(Ordering::Relaxed) == 2);
}

#[test]
fn a_body_that_does_not_end_in_a_second_is_a_stream_and_nobody_waits_for_it() {
    let collapse = Arc::<Collapse>::default();
    let leader = lead(&collapse, "a", 0);
    let [one, two] = [follow(&collapse, "a", 1), follow(&collapse, "a", 1)];
    assert_eq!(one.body_due(), None);
    let (_, woken) = look(&one, 4_000);
    leader.head(at(5_000));
    assert_eq!((one.body_due(), woken.0.load(Ordering::Relaxed)), (Some(at(6_000)), 1));
    let (left, own) = (Arc::new(Woken::default()), |woken: &Arc<Woken>| Waker::from(Arc::clone(woken)));
    assert!(leader.is_followed(&Context::from_waker(&own(&left))));
    let (polled, woken) = look(&two, 5_999);
    assert!(polled.is_pending());
    assert!(matches!(look(&one, 6_000).0, Poll::Ready(FollowEnd::Alone)));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(matches!(look(&two, 6_000).0, Poll::Ready(FollowEnd::Alone)));
    assert_eq!(left.0.load(Ordering::Relaxed), 1, "one whose client has left goes on for nobody");
    leader.share(answer("late"));
    assert!(matches!(collapse.join(b"a", at(6_001)), Joined::Alone));
    drop((one, two));
    assert!(is_empty(&collapse));
}

#[test]
fn who_comes_late_to_a_body_that_nobody_has_followed_leads() {
    let collapse = Arc::<Collapse>::default();
    let slow = lead(&collapse, "a", 0);
    slow.head(at(10));
    let next = lead(&collapse, "a", 1_010);
    let follower = follow(&collapse, "a", 1_011);
    slow.share(answer("of its own"));
    assert!(look(&follower, 1_011).0.is_pending());
    next.share(answer("next"));
    assert_eq!(body(&look(&follower, 1_011).0).as_deref(), Some("next"));
    drop(follower);
    let alone = lead(&collapse, "a", 2_000);
    let follower = follow(&collapse, "a", 2_000);
    alone.leave_alone();
    assert!(matches!(look(&follower, 2_000).0, Poll::Ready(FollowEnd::Alone)));
    drop((follower, lead(&collapse, "a", 2_001)));
    assert!(is_empty(&collapse));
}

#[test]
fn answers_above_the_bound_are_not_shared() {
    let collapse = Arc::<Collapse>::default();
    let large = || SharedAnswer::new(Vec::new(), false, vec![0; MOST_HELD / 2 + 1]);
    let mut kept = Vec::new();
    for (key, is_shared) in [("a", true), ("b", false)] {
        let leader = lead(&collapse, key, 0);
        let follower = follow(&collapse, key, 0);
        leader.share(large());
        assert_eq!(matches!(look(&follower, 0).0, Poll::Ready(FollowEnd::Answer(_))), is_shared, "{key}");
        kept.push(follower);
    }
    assert_eq!(held(&collapse), MOST_HELD / 2 + 1);
    drop(kept);
    drop(lead(&collapse, "b", 1));
    assert!(is_empty(&collapse));
}

/// A request of the model: its key, and the part that it has.
enum Part {
    Leads(usize, Leader),
    Follows(usize, AnswerFollower),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever leaders and followers do, in any order: an answer is of the same key, each follower ends, and nothing is left.
    #[test]
    fn each_follower_ends_with_an_answer_of_its_key_or_on_its_own(steps in prop::collection::vec((0_usize..3, 0_u8..8, any::<prop::sample::Index>()), 1..120)) {
        let collapse = Arc::<Collapse>::default();
        let mut parts: Vec<Part> = Vec::new();
        let keys = ["a", "b", "c"];
        for (now, (key, step, which)) in steps.into_iter().enumerate() {
            let now = now as u64 * 500;
            if step < 4 || parts.is_empty() {
                match collapse.join(keys[key].as_bytes(), at(now)) {
                    Joined::Lead(leader) => parts.push(Part::Leads(key, leader)),
                    Joined::Follow(follower) => parts.push(Part::Follows(key, follower)),
                    Joined::Alone => {}
                }
            } else {
                let at_index = which.index(parts.len());
                match (parts.swap_remove(at_index), step) {
                    (Part::Leads(key, leader), 4) => leader.share(answer(keys[key])),
                    (Part::Leads(_, leader), 5) => leader.miss(at(now)),
                    (Part::Leads(key, leader), 6) => {
                        leader.head(at(now));
                        parts.push(Part::Leads(key, leader));
                    }
                    _ => {}
                }
            }
            let mut next = Vec::new();
            for part in parts {
                match part {
                    Part::Follows(key, follower) => match look(&follower, now).0 {
                        Poll::Pending => next.push(Part::Follows(key, follower)),
                        Poll::Ready(FollowEnd::Lead(leader)) => next.push(Part::Leads(key, leader)),
                        Poll::Ready(FollowEnd::Alone) => {}
                        Poll::Ready(FollowEnd::Answer(shared)) => prop_assert_eq!((*shared).as_ref(), keys[key].as_bytes()),
                    },
                    leads @ Part::Leads(..) => next.push(leads),
                }
            }
            parts = next;
            // Nobody follows nobody. A flight that is over for its followers may still have its leader.
            let leading = |key: usize| parts.iter().filter(|part| matches!(part, Part::Leads(own, _) if *own == key)).count();
            for part in &parts {
                if let Part::Follows(key, _) = part {
                    prop_assert!(leading(*key) > 0);
                }
            }
        }
        drop(parts);
        prop_assert!(is_empty(&collapse));
    }
}
