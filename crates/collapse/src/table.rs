//! The requests of one route that are in flight: the one of each key that leads, and those that follow.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::answer::SharedAnswer;
use sluicegate_time::{Span, Tick};

/// How long nobody follows requests of a key whose answer could not be shared.
pub const APART_FOR: Span = Span::from_secs(10);
/// Keys of which that is known at once; of more the oldest is forgotten, and may be collapsed again.
pub const MOST_APART: usize = 16_384;
/// How long a body may take from the head of its answer: longer ones are streams, for which nobody waits.
pub const BODY_PATIENCE: Span = Span::from_secs(1);
/// Bytes of answers that followers of one route hold at once. Above, answers are not shared.
pub const MOST_HELD: usize = 64 * 1024 * 1024;
/// How many leaders may leave one after the other before those that follow go on their own.
const MAX_HANDOVERS: u32 = 3;

/// The requests of one route that are in flight, by their keys. Shared by all workers.
#[derive(Debug, Default)]
pub struct Collapse {
    state: Mutex<FlightTable>,
    /// Bytes of answers that are held.
    held: Arc<AtomicUsize>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct FlightTable {
    /// Those that can be joined.
    by_key: HashMap<Arc<[u8]>, u64>,
    /// All that have a leader or somebody who follows.
    flights: HashMap<u64, FlightState>,
    next: u64,
    apart: Apart,
}

/// A request that is sent, and those that follow it.
#[derive(Debug)]
struct FlightState {
    key: Arc<[u8]>,
    lead: Lead,
    /// In the order in which they came.
    followers: BTreeMap<u64, Option<Waker>>,
    leader: Option<Waker>,
    head_at: Option<Tick>,
    handovers: u32,
}

#[derive(Debug)]
enum Lead {
    /// Somebody leads.
    Taken,
    /// The leader has left: the first one who follows leads.
    Offered,
    /// It is over: with an answer for all, or without.
    Over(Option<Arc<SharedAnswer>>),
}

/// Keys of which nobody follows, by their hashes. Two keys of one hash do no harm: neither is collapsed.
#[derive(Debug, Default)]
struct Apart {
    until: HashMap<u64, Tick>,
    order: VecDeque<(Tick, u64)>,
}

/// The part that a request takes.
#[derive(Debug)]
pub enum Joined {
    /// It is sent, and its answer is for those that follow too.
    Lead(Leader),
    /// It waits for another one's answer.
    Follow(AnswerFollower),
    /// It is sent, for itself.
    Alone,
}

/// The end of a wait.
#[derive(Debug)]
pub enum FollowEnd {
    /// The answer.
    Answer(Arc<SharedAnswer>),
    /// The leader has left: this one is sent now.
    Lead(Leader),
    /// There is no answer for it: it is sent, for itself.
    Alone,
}

/// The one that is sent. Dropped without a word, it has left: another one leads.
#[derive(Debug)]
pub struct Leader {
    collapse: Arc<Collapse>,
    flight: u64,
    is_over: bool,
}

/// One that waits. Dropped, it has left.
#[derive(Debug)]
pub struct AnswerFollower {
    collapse: Arc<Collapse>,
    flight: u64,
    number: u64,
}

impl Collapse {
    /// The part of a request of this key.
    pub fn join(self: &Arc<Self>, key: &[u8], now: Tick) -> Joined {
        let hash = self.hasher.hash_one(key);
        let mut state = self.state();
        if state.apart.has(hash, now) {
            return Joined::Alone;
        }
        state.next += 1;
        let number = state.next;
        let table = &mut *state;
        let joined = table.by_key.get(key).copied();
        let joined = joined.and_then(|id| Some((id, table.flights.get_mut(&id)?)));
        // The body of one that no request has followed may be late because its own client is slow.
        let joined = joined.filter(|(_, flight)| !(flight.is_late(now) && flight.followers.is_empty()));
        if let Some((id, flight)) = joined {
            flight.followers.insert(number, None);
            let leader = flight.leader.take();
            drop(state);
            // It may read ahead of its client from now on.
            leader.inspect(Waker::wake_by_ref);
            return Joined::Follow(AnswerFollower { collapse: Arc::clone(self), flight: id, number });
        }
        let late = table.by_key.get(key).copied().and_then(|late| table.end(late, None));
        let key: Arc<[u8]> = key.into();
        table.by_key.insert(Arc::clone(&key), number);
        let flight = FlightState {
            key,
            lead: Lead::Taken,
            followers: BTreeMap::new(),
            leader: None,
            head_at: None,
            handovers: 0,
        };
        table.flights.insert(number, flight);
        drop(state);
        late.into_iter().flat_map(|(_, wakers)| wakers).for_each(Waker::wake);
        Joined::Lead(Leader { collapse: Arc::clone(self), flight: number, is_over: false })
    }

    fn state(&self) -> MutexGuard<'_, FlightTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a flight for all. `apart`: since when nobody is to follow requests of its key.
    fn end(&self, id: u64, answer: Option<SharedAnswer>, apart: Option<Tick>) {
        let answer = answer.and_then(|answer| answer.hold(&self.held, MOST_HELD)).map(Arc::new);
        let mut state = self.state();
        let wakers = state.end(id, answer);
        if let (Some(now), Some((key, _))) = (apart, &wakers) {
            state.apart.add(self.hasher.hash_one(&**key), now);
        }
        drop(state);
        // Outside of the lock, which those that are woken take.
        wakers.into_iter().flat_map(|(_, wakers)| wakers).for_each(Waker::wake);
    }
}

impl FlightTable {
    /// The key, and those to wake; `None`: it was over.
    fn end(&mut self, id: u64, answer: Option<Arc<SharedAnswer>>) -> Option<(Arc<[u8]>, Vec<Waker>)> {
        let flight = self.flights.get_mut(&id).filter(|flight| !matches!(flight.lead, Lead::Over(_)))?;
        flight.lead = Lead::Over(answer);
        let followers = flight.followers.values_mut().filter_map(Option::take);
        // One whose client has left has nobody to go on for.
        let wakers = followers.chain(flight.leader.take()).collect();
        let key = Arc::clone(&flight.key);
        self.by_key.remove(&key);
        self.forget_unused(id);
        Some((key, wakers))
    }

    /// Forgets a flight that nobody follows, and that has no leader.
    fn forget_unused(&mut self, id: u64) {
        let Some(flight) = self.flights.get(&id) else { return };
        if flight.followers.is_empty() && !matches!(flight.lead, Lead::Taken) {
            if matches!(flight.lead, Lead::Offered) {
                self.by_key.remove(&flight.key);
            }
            self.flights.remove(&id);
        }
    }
}

impl FlightState {
    fn is_late(&self, now: Tick) -> bool {
        self.head_at.is_some_and(|at| at + BODY_PATIENCE <= now)
    }

    fn first(&mut self) -> Option<Waker> {
        self.followers.first_entry().and_then(|mut first| first.get_mut().take())
    }
}

impl Apart {
    fn has(&self, hash: u64, now: Tick) -> bool {
        self.until.get(&hash).is_some_and(|until| *until > now)
    }

    fn add(&mut self, hash: u64, now: Tick) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) || self.order.len() >= MOST_APART {
            let Some((until, old)) = self.order.pop_front() else { break };
            if self.until.get(&old) == Some(&until) {
                self.until.remove(&old);
            }
        }
        self.until.insert(hash, now + APART_FOR);
        self.order.push_back((now + APART_FOR, hash));
    }
}

impl Leader {
    /// Whether somebody follows. The task that asks is woken when that may have changed.
    pub fn is_followed(&self, cx: &Context<'_>) -> bool {
        let mut state = self.collapse.state();
        let Some(flight) = state.flights.get_mut(&self.flight) else { return false };
        flight.leader = Some(cx.waker().clone());
        matches!(flight.lead, Lead::Taken) && !flight.followers.is_empty()
    }

    /// The head of an answer is here that may be shared. Those that follow are woken: from now on a late body is no answer for them.
    pub fn head(&self, now: Tick) {
        let mut state = self.collapse.state();
        let Some(flight) = state.flights.get_mut(&self.flight) else { return };
        flight.head_at = Some(now);
        let wakers: Vec<Waker> = flight.followers.values_mut().filter_map(Option::take).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The answer is here: whoever follows gets it.
    pub fn share(mut self, answer: SharedAnswer) {
        self.is_over = true;
        self.collapse.end(self.flight, Some(answer), None);
    }

    /// There is no answer for others: they are sent, and so are those that come in the next [`APART_FOR`].
    pub fn miss(mut self, now: Tick) {
        self.is_over = true;
        self.collapse.end(self.flight, None, Some(now));
    }

    /// The same for a reason that is of this request alone: the next one may lead.
    pub fn leave_alone(mut self) {
        self.is_over = true;
        self.collapse.end(self.flight, None, None);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.collapse.state();
        let Some(flight) = state.flights.get_mut(&self.flight).filter(|flight| matches!(flight.lead, Lead::Taken))
        else {
            return;
        };
        if flight.handovers >= MAX_HANDOVERS {
            drop(state);
            return self.collapse.end(self.flight, None, None);
        }
        (flight.lead, flight.leader, flight.head_at) = (Lead::Offered, None, None);
        let next = flight.first();
        state.forget_unused(self.flight);
        drop(state);
        next.inspect(Waker::wake_by_ref);
    }
}

impl AnswerFollower {
    /// When the body is late, if the head of its answer is here: to be polled then.
    pub fn body_due(&self) -> Option<Tick> {
        let state = self.collapse.state();
        Some(state.flights.get(&self.flight)?.head_at? + BODY_PATIENCE)
    }

    /// Waits for the end. It is not to be polled again after that.
    pub fn poll(&self, cx: &Context<'_>, now: Tick) -> Poll<FollowEnd> {
        let mut state = self.collapse.state();
        let Some(flight) = state.flights.get_mut(&self.flight) else { return Poll::Ready(FollowEnd::Alone) };
        match &flight.lead {
            Lead::Over(Some(answer)) => return Poll::Ready(FollowEnd::Answer(Arc::clone(answer))),
            Lead::Over(None) => return Poll::Ready(FollowEnd::Alone),
            Lead::Offered if flight.followers.keys().next() == Some(&self.number) => {
                flight.followers.remove(&self.number);
                flight.handovers += 1;
                flight.lead = Lead::Taken;
                let (collapse, flight) = (Arc::clone(&self.collapse), self.flight);
                return Poll::Ready(FollowEnd::Lead(Leader { collapse, flight, is_over: false }));
            }
            Lead::Taken if flight.is_late(now) => {
                drop(state);
                self.collapse.end(self.flight, None, Some(now));
                return Poll::Ready(FollowEnd::Alone);
            }
            Lead::Taken | Lead::Offered => {}
        }
        flight.followers.insert(self.number, Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for AnswerFollower {
    fn drop(&mut self) {
        let mut state = self.collapse.state();
        let Some(flight) = state.flights.get_mut(&self.flight) else { return };
        flight.followers.remove(&self.number);
        let woken = match flight.lead {
            // The lead is the next one's.
            Lead::Offered => flight.first(),
            Lead::Taken if flight.followers.is_empty() => flight.leader.take(),
            Lead::Taken | Lead::Over(_) => None,
        };
        state.forget_unused(self.flight);
        drop(state);
        woken.inspect(Waker::wake_by_ref);
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
