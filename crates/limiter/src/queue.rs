use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use super::algorithm::{FitTime, Moment, Rule};
use super::key::Fingerprint;
use sluicegate_time::{Span, Tick};

/// The waiting requests of one shard: a FIFO queue for each key that has any, and its plan.
///
/// The plan is greedy from the head: each waiter's instant is the first, not before its predecessor's, at which every
/// rate has room for its cost. It is kept as the key's state *at the tail*: advanced along the plan with every planned
/// admission counted, so that planning one more waiter does not walk the queue. When the head commits in just the slot
/// that was planned the plan stays good; a cancel, a late commit or a reload makes it stale, and it is made anew when
/// next asked for. A waiter whose instant would be past its deadline is planned as leaving then, uncounted; one whose
/// cost no longer fits at all, as leaving when it is its turn.
///
/// Making a plan anew walks the queue under the shard's lock. Up to [`EXACT_QUEUE`] waiters that is done whenever the
/// plan is stale. A longer queue gets a new plan at most once in [`REPLAN_EVERY`], so that a request that arrives and
/// cancels all the time does not hold up the shard; in between, a cancel may leave its instants too late by what it
/// gave up.
///
/// Only the head may commit. The task that takes the head out wakes the next with the waker it gets, after unlocking.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    by_key: HashMap<Fingerprint, Queue, BuildHasherDefault<FingerprintHasher>>,
    nodes: Vec<QueueNode>,
    free: Vec<u32>,
    generation: u64,
}

/// A waiter's place: good until it leaves, then refused everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaiterHandle {
    node: u32,
    generation: u64,
}

/// One more waiter's instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) at: Tick,
    /// The rate whose room comes last; small, since every check makes room for it.
    rate: u16,
    /// It comes when others have ended, and `at` says nothing.
    pub(super) on_release: bool,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) key: Fingerprint,
    pub(super) cost: u64,
    pub(super) deadline: Tick,
}

/// Wakers to be woken or dropped once no lock is held: both may run code of the caller.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Wakers {
    pub(super) next: Option<Waker>,
    pub(super) done: Option<Waker>,
}

#[derive(Clone, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    len: u64,
    /// The key's state at `tail_at`, with everybody in the queue admitted as planned.
    plan: Box<[u64]>,
    tail_at: Tick,
    stale: bool,
    /// When it was made anew; `None`: never, or the plan is of another layout.
    replanned_at: Option<Tick>,
}

#[derive(Clone, Debug)]
struct QueueNode {
    waiter: Waiter,
    /// Only ever grows from one waiter to the next; [`FREE`] when nobody is here.
    generation: u64,
    previous: u32,
    next: u32,
    planned: Tick,
    /// It will not be admitted, but leave at `planned`, its deadline.
    leaves: bool,
    waker: Option<Waker>,
}

const NIL: u32 = u32::MAX;
/// No place has this generation: the first is 1.
const FREE: u64 = 0;
/// The longest queue whose plan is always exact.
pub(super) const EXACT_QUEUE: u64 = 1_000;
/// How often a longer one gets a new plan, at most.
const REPLAN_EVERY: Span = Span::from_millis(10);

impl Planned {
    pub(super) fn new(room: FitTime, now: Tick) -> Self {
        match room {
            FitTime::Now => Self { at: now, rate: 0, on_release: false },
            FitTime::At { at, rate } => Self { at: at.max(now), rate: rate as u16, on_release: false },
            FitTime::OnRelease { rate } => Self { at: Tick::MAX, rate: rate as u16, on_release: true },
            FitTime::Never { rate } => Self { at: Tick::MAX, rate: rate as u16, on_release: false },
        }
    }

    /// The rate whose room comes last.
    pub(super) fn rate(self) -> usize {
        usize::from(self.rate)
    }
}

impl Wakers {
    /// Nobody to wake; `done` is to be dropped.
    pub(super) fn done(done: Option<Waker>) -> Self {
        Self { next: None, done }
    }

    pub(super) fn wake(self) {
        if let Some(next) = self.next {
            next.wake();
        }
        drop(self.done);
    }
}

impl Queues {
    /// How many wait, over all keys.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    #[inline]
    pub(super) fn has(&self, key: Fingerprint) -> bool {
        !self.by_key.is_empty() && self.by_key.contains_key(&key)
    }

    /// How many wait for this key.
    pub(super) fn waiting(&self, key: Fingerprint) -> u64 {
        self.by_key.get(&key).map_or(0, |queue| queue.len)
    }

    /// The instant of one more waiter of `cost` behind everybody who waits for `key`. `state` is the key's state as of
    /// `now`; `cost` is one that the rule can admit.
    pub(super) fn plan(&mut self, rule: &Rule, state: &[u64], key: Fingerprint, cost: u64, now: Tick) -> Planned {
        self.refresh(rule, state, key, now);
        let Some(queue) = self.by_key.get_mut(&key) else {
            return Planned::new(rule.room(state, cost, now), now);
        };
        queue.tail_at = queue.tail_at.max(now);
        rule.advance(&mut queue.plan, queue.tail_at);
        Planned::new(rule.room(&queue.plan, cost, queue.tail_at), queue.tail_at)
    }

    /// When the head of a key's queue is planned to leave it; `None` if nobody waits.
    pub(super) fn next_out(&mut self, rule: &Rule, state: &[u64], key: Fingerprint, now: Tick) -> Option<Tick> {
        self.refresh(rule, state, key, now);
        let head = self.by_key.get(&key)?.head;
        self.node(head).map(|node| node.planned.max(now))
    }

    /// When a queue that may hold `most` has a place again, if nobody cancels: the first instant if it has one, `None`
    /// if it never has. For a queue that a reload left more than [`EXACT_QUEUE`] above `most` it is later than need be.
    pub(super) fn place_at(
        &mut self,
        rule: &Rule,
        state: &[u64],
        key: Fingerprint,
        most: u64,
        now: Tick,
    ) -> Option<Tick> {
        let ahead = match self.waiting(key).checked_sub(most) {
            None => return Some(Tick::ZERO),
            Some(_) if most == 0 => return None,
            Some(ahead) => ahead,
        };
        self.refresh(rule, state, key, now);
        let queue = self.by_key.get(&key)?;
        if ahead > EXACT_QUEUE {
            return Some(queue.tail_at.max(now));
        }
        let mut at = queue.head;
        for _ in 0..ahead {
            at = self.node(at)?.next;
        }
        self.node(at).map(|node| node.planned.max(now))
    }

    /// Puts a waiter at the tail, planned for `at` as [`plan`](Self::plan) said; `None` when no place can be numbered.
    pub(super) fn push(&mut self, rule: &Rule, state: &[u64], waiter: Waiter, at: Tick) -> Option<WaiterHandle> {
        if self.nodes.len() >= NIL as usize && self.free.is_empty() {
            return None;
        }
        self.generation = self.generation.saturating_add(1);
        let generation = self.generation;
        let queue = self.by_key.entry(waiter.key).or_insert_with(|| Queue {
            head: NIL,
            tail: NIL,
            len: 0,
            plan: state.into(),
            tail_at: at,
            stale: false,
            replanned_at: None,
        });
        let previous = queue.tail;
        queue.len += 1;
        let mut node = QueueNode { waiter, generation, previous, next: NIL, planned: at, leaves: false, waker: None };
        extend_plan(rule, &mut queue.plan, &mut queue.tail_at, &mut node, Some(at));
        let index = if let Some(index) = self.free.pop() {
            if let Some(slot) = self.nodes.get_mut(index as usize) {
                *slot = node;
            }
            index
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        };
        queue.tail = index;
        if previous == NIL {
            queue.head = index;
        } else if let Some(previous) = self.nodes.get_mut(previous as usize) {
            previous.next = index;
        }
        Some(WaiterHandle { node: index, generation })
    }

    /// When a waiter is planned to be admitted; `None` if it will leave before.
    pub(super) fn planned(&self, place: WaiterHandle) -> Option<Tick> {
        self.at(place).filter(|node| !node.leaves).map(|node| node.planned)
    }

    pub(super) fn is_head(&self, place: WaiterHandle) -> bool {
        self.at(place).is_some_and(|node| node.previous == NIL)
    }

    /// Remembers whom to wake when this waiter becomes the head; hands back the waker that it replaces, if any, to be
    /// dropped once no lock is held.
    pub(super) fn listen(&mut self, place: WaiterHandle, waker: &Waker) -> Option<Waker> {
        let known = &mut self.at_mut(place)?.waker;
        match known {
            Some(known) if known.will_wake(waker) => None,
            _ => known.replace(waker.clone()),
        }
    }

    /// Room has come that nobody could foresee: the head of this key's queue has to look again.
    pub(super) fn wake_head(&mut self, key: Fingerprint) -> Wakers {
        let Some(queue) = self.by_key.get_mut(&key) else { return Wakers::default() };
        queue.stale = true;
        queue.replanned_at = None;
        let head = queue.head;
        Wakers { next: self.node_mut(head).and_then(|head| head.waker.take()), done: None }
    }

    /// The head of each queue has to look again.
    pub(super) fn wake_heads(&mut self) -> Vec<Waker> {
        let heads: Vec<u32> = self.by_key.values().map(|queue| queue.head).collect();
        heads.into_iter().filter_map(|head| self.node_mut(head)?.waker.take()).collect()
    }

    /// The key's state is another one than was planned with: its plan is stale.
    pub(super) fn mark_stale(&mut self, key: Fingerprint) {
        if let Some(queue) = self.by_key.get_mut(&key) {
            queue.stale = true;
        }
    }

    /// Gives a waiter less patience than it had.
    pub(super) fn shorten(&mut self, place: WaiterHandle, deadline: Tick) {
        let Some(node) = self.at_mut(place) else { return };
        node.waiter.deadline = node.waiter.deadline.min(deadline);
        let key = node.waiter.key;
        if let Some(queue) = self.by_key.get_mut(&key) {
            queue.stale = true;
        }
    }

    /// Takes a waiter out, in O(1). `committed`: it was admitted at `now`; else it gives up.
    pub(super) fn leave(&mut self, rule: &Rule, place: WaiterHandle, committed: bool, now: Tick) -> Wakers {
        let Some(node) = self.at_mut(place) else {
            return Wakers::default();
        };
        let (key, previous, next) = (node.waiter.key, node.previous, node.next);
        let as_planned = previous == NIL
            && if node.leaves {
                !committed && node.planned <= now
            } else {
                committed && rule.same_moment(node.planned, now)
            };
        let done = node.waker.take();
        // No place has this generation any more.
        node.generation = FREE;
        self.free.push(place.node);
        if let Some(previous) = self.node_mut(previous) {
            previous.next = next;
        }
        if let Some(next) = self.node_mut(next) {
            next.previous = previous;
        }
        let mut wakers = Wakers { next: None, done };
        let Some(queue) = self.by_key.get_mut(&key) else {
            return wakers;
        };
        queue.len -= 1;
        queue.stale |= !as_planned;
        if next == NIL {
            queue.tail = previous;
        }
        if previous == NIL {
            queue.head = next;
            wakers.next = self.node_mut(next).and_then(|next| next.waker.take());
        }
        if previous == NIL && next == NIL {
            self.by_key.remove(&key);
        }
        if self.by_key.is_empty() {
            // Nobody waits: give the memory back. The generation goes on, so an old place stays refused.
            *self = Self { generation: self.generation, ..Self::default() };
        }
        wakers
    }

    /// The rule or its layout has changed: every plan is stale, and every head has to look again. `state_words` is the
    /// new size of a key's state.
    pub(super) fn invalidate(&mut self, state_words: usize) -> Vec<Waker> {
        let mut heads = Vec::with_capacity(self.by_key.len());
        for queue in self.by_key.values_mut() {
            queue.stale = true;
            queue.replanned_at = None;
            queue.plan = vec![0; state_words].into();
            heads.push(queue.head);
        }
        heads.into_iter().filter_map(|head| self.node_mut(head)?.waker.take()).collect()
    }

    /// Makes the plan of a key anew if it is stale, or if the head has missed its instant; a long one not too often.
    fn refresh(&mut self, rule: &Rule, state: &[u64], key: Fingerprint, now: Tick) {
        let Some(queue) = self.by_key.get_mut(&key) else { return };
        let late = self
            .nodes
            .get(queue.head as usize)
            .is_some_and(|head| head.planned < now && (head.leaves || !rule.same_moment(head.planned, now)));
        if !queue.stale && !late {
            return;
        }
        let just_now = queue.replanned_at.is_some_and(|at| now < at + REPLAN_EVERY);
        if queue.len > EXACT_QUEUE && just_now {
            return;
        }
        queue.plan.copy_from_slice(state);
        queue.tail_at = now;
        queue.stale = false;
        queue.replanned_at = Some(now);
        let mut at = queue.head;
        while let Some(node) = self.nodes.get_mut(at as usize) {
            extend_plan(rule, &mut queue.plan, &mut queue.tail_at, node, None);
            at = node.next;
        }
    }

    fn at(&self, place: WaiterHandle) -> Option<&QueueNode> {
        self.node(place.node).filter(|node| node.generation == place.generation)
    }

    fn at_mut(&mut self, place: WaiterHandle) -> Option<&mut QueueNode> {
        self.node_mut(place.node).filter(|node| node.generation == place.generation)
    }

    fn node(&self, index: u32) -> Option<&QueueNode> {
        self.nodes.get(index as usize)
    }

    fn node_mut(&mut self, index: u32) -> Option<&mut QueueNode> {
        self.nodes.get_mut(index as usize)
    }
}

/// Plans one waiter behind a plan whose last instant is `tail_at`; `at` is its instant when that is known already.
fn extend_plan(rule: &Rule, plan: &mut [u64], tail_at: &mut Tick, node: &mut QueueNode, at: Option<Tick>) {
    rule.advance(plan, *tail_at);
    if rule.too_costly(node.waiter.cost).is_some() {
        // It ends when it is its turn.
        (node.leaves, node.planned) = (true, *tail_at);
        return;
    }
    let at = at.unwrap_or_else(|| Planned::new(rule.room(plan, node.waiter.cost, *tail_at), *tail_at).at);
    node.leaves = at > node.waiter.deadline;
    node.planned = if node.leaves { node.waiter.deadline.max(*tail_at) } else { at.max(*tail_at) };
    *tail_at = node.planned;
    if !node.leaves {
        rule.advance(plan, node.planned);
        rule.commit(plan, node.waiter.cost, Moment::at(node.planned));
    }
}

/// Fingerprints are hashes already, by a secret key.
#[derive(Default)]
pub(super) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, bits: u64) {
        self.0 = bits;
    }
}

#[cfg(test)]
mod tests {
    use super::super::algorithm::{Algorithm, Bound, TimerWheel};
    use super::*;

    fn rule() -> Rule {
        let rates = ["1/s".parse().unwrap()];
        Rule::new(&Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()), None, None)
    }

    fn waiter(key: u64) -> Waiter {
        Waiter { key: Fingerprint::from_bits(key), cost: 1, deadline: Tick::MAX }
    }

    #[test]
    fn an_old_place_is_refused_however_often_its_node_is_used_again() {
        let (rule, mut queues) = (rule(), Queues::default());
        let state = vec![0; rule.words()];
        let push = |queues: &mut Queues, key| queues.push(&rule, &state, waiter(key), Tick::ZERO).unwrap();
        // Somebody else waits on, so that the nodes are kept.
        let _ = push(&mut queues, 9);
        let first = push(&mut queues, 1);
        queues.leave(&rule, first, false, Tick::ZERO).wake();
        assert!(queues.at(first).is_none());
        let second = push(&mut queues, 2);
        assert_eq!(first.node, second.node);
        assert!(queues.at(first).is_none() && queues.at(second).is_some());
        queues.leave(&rule, second, false, Tick::ZERO).wake();
        assert!(queues.at(first).is_none() && queues.at(second).is_none());
        queues.leave(&rule, first, false, Tick::ZERO).wake();
        assert_eq!(queues.len(), 1, "leaving twice takes nobody else out");
    }

    #[test]
    fn a_long_queue_gets_a_new_plan_once_in_a_while_and_a_short_one_at_once() {
        for (len, at_once) in [(EXACT_QUEUE + 1, true), (EXACT_QUEUE + 3, false)] {
            let (rule, mut queues) = (rule(), Queues::default());
            let mut state = vec![0; rule.words()];
            rule.commit(&mut state, 1, Moment::at(Tick::ZERO));
            let key = waiter(1).key;
            let mut places = Vec::new();
            for _ in 0..len {
                let planned = queues.plan(&rule, &state, key, 1, Tick::ZERO);
                places.push(queues.push(&rule, &state, waiter(1), planned.at).unwrap());
            }
            let seconds = |count| Tick::ZERO + Span::from_secs(count);
            let mut plan = |queues: &mut Queues, millis| {
                let now = Tick::ZERO + Span::from_millis(millis);
                rule.advance(&mut state, now);
                queues.plan(&rule, &state, key, 1, now).at
            };
            assert_eq!(plan(&mut queues, 0), seconds(len + 1));
            queues.leave(&rule, places[1], false, Tick::ZERO).wake();
            assert_eq!(plan(&mut queues, 0), seconds(len), "the first time");
            queues.leave(&rule, places[2], false, Tick::ZERO).wake();
            assert_eq!(plan(&mut queues, 9), seconds(if at_once { len - 1 } else { len }));
            assert_eq!(plan(&mut queues, 10), seconds(len - 1));
        }
    }

    #[test]
    fn those_behind_a_waiter_that_was_given_less_time_are_planned_without_it() {
        let (rule, mut queues) = (rule(), Queues::default());
        let mut state = vec![0; rule.words()];
        rule.commit(&mut state, 1, Moment::at(Tick::ZERO));
        let (key, millis) = (waiter(1).key, |millis| Tick::ZERO + Span::from_millis(millis));
        let plan = |queues: &mut Queues| queues.plan(&rule, &state, key, 1, Tick::ZERO).at;
        let first = queues.push(&rule, &state, waiter(1), millis(1_000)).unwrap();
        let second = queues.push(&rule, &state, waiter(1), millis(2_000)).unwrap();
        assert_eq!(plan(&mut queues), millis(3_000));
        queues.shorten(first, millis(1_000));
        assert_eq!(plan(&mut queues), millis(3_000), "its room comes in time still");
        queues.shorten(first, millis(999));
        assert_eq!(plan(&mut queues), millis(2_000));
        assert_eq!((queues.planned(first), queues.planned(second)), (None, Some(millis(1_000))));
        queues.shorten(first, Tick::MAX);
        assert_eq!(plan(&mut queues), millis(2_000), "patience that is gone does not come back");
    }
}
