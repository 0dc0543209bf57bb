//! Places at the servers of an upstream: how many requests may be there at once, over all workers, and the line of those that
//! wait for a place.
//!
//! An upstream that hangs holds as many requests as it has places, and its line; whatever goes to other upstreams has
//! places of its own. A short lock is taken and given for each request of an upstream that has caps (and twice more at the head
//! of its answer, where their number is found), and none elsewhere. Places
//! are given client by client ([`Round`]), and while a request waits, newcomers join the line. A client that holds more
//! than its share while others wait gets no other place, and gives up one for each of them that a slow upload holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use sluicegate_balance::{AutoLimit, AutoTerms};
use sluicegate_fair::{Round, Waiter};
use sluicegate_limiter::Fingerprint;
use sluicegate_time::{Span, Tick};

/// How long it is known that a request was turned away: a client whose requests may not wait is given a place as well.
const TURNED_AWAY: Span = Span::from_secs(1);

/// How many requests may be at an upstream's servers, and wait for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// At all of its servers; `None`: any number.
    pub upstream: Option<u64>,
    /// At each of them; `None`: any number.
    pub server: Option<u64>,
    /// Requests in the line.
    pub pending: usize,
    /// The number at all servers is found within these bounds, in place of `upstream`. A place is held to the head of the answer
    /// then: what comes after it says nothing of how busy the servers are.
    pub auto: Option<AutoTerms>,
}

/// The places of one upstream, for all workers.
#[derive(Debug)]
pub struct Bulkhead {
    state: Mutex<BulkheadState>,
}

#[derive(Debug)]
struct BulkheadState {
    caps: Caps,
    /// The requests at the servers, and those that wait.
    line: Round<Fingerprint>,
    next: u64,
    /// Places that were given up for requests that still wait.
    given_up: usize,
    /// Finds the number of places.
    auto: Option<AutoLimit>,
    /// When a request of a client that held less than its share was turned away, if no upload has given up a place for it.
    turned_away: Option<Tick>,
}

/// How many requests are at one server. Written under the lock of its bulkhead.
#[derive(Debug, Default)]
pub struct ServerPlaces(AtomicU64);

/// The reason why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// At this server; another one may have some.
    AtServer,
    /// At the upstream, or others come first.
    AtUpstream,
}

/// A place at a server, until this is dropped.
pub struct HeldPlace {
    bulkhead: Arc<Bulkhead>,
    server: Arc<ServerPlaces>,
    client: Fingerprint,
    is_given_up: bool,
    /// The number of places was found when this one was taken.
    is_auto: bool,
    /// The place at the upstream is free for others; the one at the server is held.
    is_left: bool,
}

/// A request that waits for a place. Dropping it takes it out of the line.
pub struct Pending {
    bulkhead: Arc<Bulkhead>,
    waiter: Waiter<Fingerprint>,
    client: Fingerprint,
    joined: Tick,
}

/// How a request stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueStanding {
    /// Others come first, or all places are taken: it is woken.
    Waits,
    /// It comes next, and there is room at the upstream.
    MayTry,
    /// A request of a client that has fewer here has taken its place in the line.
    PutOut,
}

impl Bulkhead {
    /// Places that are all free.
    pub fn new(caps: Caps) -> Arc<Self> {
        let auto = caps.auto.map(AutoLimit::new);
        let state = BulkheadState { caps, line: Round::default(), next: 0, given_up: 0, turned_away: None, auto };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// The number of places from now on. Requests that are there stay, also above it.
    pub fn set_caps(&self, caps: Caps) {
        let mut state = self.state();
        state.caps = caps;
        state.auto = caps.auto.map(|terms| match state.auto.take() {
            Some(mut auto) => {
                auto.set_terms(terms);
                auto
            }
            None => AutoLimit::new(terms),
        });
        state.line.wake_first();
    }

    /// Takes a place at this server for a request of this client. `pending`: the caller's own in the line, which is left with it.
    pub fn take(
        self: &Arc<Self>,
        server: &Arc<ServerPlaces>,
        client: Fingerprint,
        pending: &mut Option<Pending>,
    ) -> Result<HeldPlace, NoPlace> {
        let mut state = self.state();
        let is_next = match pending {
            Some(pending) => state.line.is_first(pending.waiter),
            None => state.line.is_empty(),
        };
        if !is_next || !state.has_room() {
            return Err(NoPlace::AtUpstream);
        }
        if !state.admits_at(server) {
            return Err(NoPlace::AtServer);
        }
        let is_auto = state.auto.is_some();
        state.line.hold(client);
        server.0.fetch_add(1, Ordering::Relaxed);
        if let Some(pending) = pending.take() {
            let turn = state.number();
            state.line.leave(pending.waiter, Some(turn));
            state.given_up = state.given_up.saturating_sub(1);
            state.line.wake_first();
            drop(state);
            // It is out of the line, so that its drop finds nothing to do.
            drop(pending);
        }
        let (bulkhead, server) = (Arc::clone(self), Arc::clone(server));
        Ok(HeldPlace { bulkhead, server, client, is_given_up: false, is_auto, is_left: false })
    }

    /// Joins the line; `None`: it is full of others who have no more there than this client would have.
    pub fn join(self: &Arc<Self>, client: Fingerprint, now: Tick) -> Option<Pending> {
        let mut state = self.state();
        if state.line.len() >= state.caps.pending && !(state.caps.pending > 0 && state.line.make_room(client)) {
            state.turn_away(client, now);
            return None;
        }
        let number = state.number();
        let waiter = state.line.join(client, number);
        // One more client makes the shares smaller: another one may come next.
        if state.has_room() {
            state.line.wake_first();
        }
        Some(Pending { bulkhead: Arc::clone(self), waiter, client, joined: now })
    }

    /// How many places there are at all servers, where that is found: the one that was found last.
    pub fn found(&self) -> Option<u64> {
        self.state().auto.as_ref().map(AutoLimit::found)
    }

    /// Requests at the servers, and in the line.
    pub fn counts(&self) -> (u64, usize) {
        let state = self.state();
        (state.line.held(), state.line.len())
    }

    fn state(&self) -> MutexGuard<'_, BulkheadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BulkheadState {
    fn has_room(&self) -> bool {
        let most = self.auto.as_ref().map(AutoLimit::limit).or(self.caps.upstream);
        most.is_none_or(|most| self.line.held() < most)
    }

    fn turn_away(&mut self, client: Fingerprint, at: Tick) {
        if self.line.is_below_share(client) {
            self.turned_away = Some(at);
        }
    }

    fn admits_at(&self, server: &ServerPlaces) -> bool {
        self.caps.server.is_none_or(|most| server.0.load(Ordering::Relaxed) < most)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl HeldPlace {
    /// Moves to another server. `None`: there is no place at it, and nothing has changed.
    pub fn move_to(&mut self, server: &Arc<ServerPlaces>) -> Option<()> {
        if Arc::ptr_eq(&self.server, server) {
            return Some(());
        }
        let state = self.bulkhead.state();
        if !state.admits_at(server) {
            return None;
        }
        server.0.fetch_add(1, Ordering::Relaxed);
        self.server.0.fetch_sub(1, Ordering::Relaxed);
        self.server = Arc::clone(server);
        // Somebody may wait for the place that is free now.
        state.line.wake_first();
        Some(())
    }
}

impl HeldPlace {
    /// The head of an answer is here, after so long; `None`: the request was not whole when it was sent, and its client may be
    /// what was slow. `is_overloaded`: its status says that the server cannot take more. `client`: the number of its client, by the address:
    /// a key by which the line is shared may be one of which anybody has many.
    pub fn observe(&self, took: Option<Span>, is_overloaded: bool, client: u64, now: Tick) {
        self.tell(|auto, held| match took {
            _ if is_overloaded => auto.overloaded(client, now),
            Some(took) => auto.answered(took, client, held, now),
            None => false,
        });
    }

    /// The request has timed out, and the server is to blame.
    pub fn timed_out(&self, client: u64, now: Tick) {
        self.tell(|auto, _| auto.overloaded(client, now));
    }

    /// The head goes to the client: where the number of places is found, the request has one no longer.
    pub fn leave(&mut self) {
        if !self.is_auto {
            return;
        }
        let mut state = self.bulkhead.state();
        if state.auto.is_some() && !self.is_left {
            self.is_left = true;
            state.line.release(self.client);
            state.line.wake_first();
        }
    }

    /// Tells what finds the number of places, if that is found. `tell` says whether the number is another one now.
    fn tell(&self, tell: impl FnOnce(&mut AutoLimit, u64) -> bool) {
        if !self.is_auto {
            return;
        }
        let mut state = self.bulkhead.state();
        let held = state.line.held();
        if state.auto.as_mut().is_some_and(|auto| tell(auto, held)) {
            state.line.wake_first();
        }
    }

    /// Gives the place up, where its client holds more than its share while a request of a client that holds less waits, or
    /// was turned away: one place for each of them. If so, the caller ends the request.
    pub fn give_up(&mut self, now: Tick) -> bool {
        let mut guard = self.bulkhead.state();
        let state = &mut *guard;
        if self.is_given_up || self.is_left || !state.line.is_above_share(self.client) {
            return false;
        }
        let is_awaited = state.line.has_wronged(state.given_up);
        state.given_up += usize::from(is_awaited);
        self.is_given_up = is_awaited || state.turned_away.take().is_some_and(|at| now.since(at) < TURNED_AWAY);
        self.is_given_up
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        let mut state = self.bulkhead.state();
        if !self.is_left {
            state.line.release(self.client);
        }
        self.server.0.fetch_sub(1, Ordering::Relaxed);
        state.line.wake_first();
    }
}

impl Pending {
    /// How it stands; the task that asks is woken when that may have changed.
    pub fn look(&self, cx: &Context<'_>) -> QueueStanding {
        let mut state = self.bulkhead.state();
        if !state.line.has(self.waiter) {
            return QueueStanding::PutOut;
        }
        state.line.wakes(self.waiter, cx);
        if state.line.is_first(self.waiter) && state.has_room() { QueueStanding::MayTry } else { QueueStanding::Waits }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut state = self.bulkhead.state();
        if state.line.has(self.waiter) {
            state.turn_away(self.client, self.joined);
        }
        state.line.leave(self.waiter, None);
        state.given_up = state.given_up.min(state.line.len());
        state.line.wake_first();
    }
}

impl std::fmt::Debug for HeldPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldPlace").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn client(number: u64) -> Fingerprint {
        Fingerprint::known(number).unwrap()
    }

    fn look(pending: &Pending) -> (QueueStanding, Arc<Woken>) {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        (pending.look(&Context::from_waker(&waker)), woken)
    }

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn caps(upstream: u64, server: u64) -> Caps {
        Caps { upstream: Some(upstream), server: Some(server), pending: 4, auto: None }
    }

    #[test]
    fn a_place_that_comes_free_goes_to_the_first_of_the_line_and_to_no_newcomer() {
        let bulkhead = Bulkhead::new(caps(1, 9));
        let server = Arc::default();
        let first = bulkhead.take(&server, client(9), &mut None).unwrap();
        assert_eq!(bulkhead.take(&server, client(9), &mut None).unwrap_err(), NoPlace::AtUpstream);
        let mut one = bulkhead.join(client(1), at(0));
        let (standing, woken) = look(one.as_ref().unwrap());
        let mut two = bulkhead.join(client(2), at(0));
        assert_eq!((standing, bulkhead.counts()), (QueueStanding::Waits, (1, 2)));
        drop(first);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(bulkhead.take(&server, client(9), &mut None).unwrap_err(), NoPlace::AtUpstream, "a newcomer");
        assert_eq!(bulkhead.take(&server, client(2), &mut two).unwrap_err(), NoPlace::AtUpstream, "the second");
        assert_eq!(look(one.as_ref().unwrap()).0, QueueStanding::MayTry);
        let held = bulkhead.take(&server, client(1), &mut one).unwrap();
        assert!(one.is_none() && two.is_some());
        assert_eq!((look(two.as_ref().unwrap()).0, bulkhead.counts()), (QueueStanding::Waits, (1, 1)));
        drop((two, held));
        assert_eq!(bulkhead.counts(), (0, 0));
    }

    #[test]
    fn a_full_server_is_passed_over_and_a_place_moves_with_its_request() {
        let bulkhead = Bulkhead::new(caps(9, 1));
        let servers: [Arc<ServerPlaces>; 2] = Default::default();
        let mut one = bulkhead.take(&servers[0], client(9), &mut None).unwrap();
        assert_eq!(bulkhead.take(&servers[0], client(9), &mut None).unwrap_err(), NoPlace::AtServer);
        let two = bulkhead.take(&servers[1], client(9), &mut None).unwrap();
        assert!(one.move_to(&servers[1]).is_none() && one.move_to(&servers[0]).is_some());
        drop(two);
        let waiting = bulkhead.join(client(1), at(0)).unwrap();
        let (_, woken) = look(&waiting);
        assert!(one.move_to(&servers[1]).is_some());
        assert_eq!((woken.0.load(Ordering::Relaxed), bulkhead.counts().0), (1, 1));
    }

    #[test]
    fn a_full_line_refuses_who_has_most_in_it_and_makes_room_for_others() {
        let bulkhead = Bulkhead::new(caps(1, 9));
        let _held = bulkhead.take(&Arc::default(), client(9), &mut None).unwrap();
        let flood: Vec<_> = (0..9).filter_map(|_| bulkhead.join(client(1), at(0))).collect();
        assert_eq!(flood.len(), 4);
        let (standing, woken) = look(&flood[3]);
        assert_eq!(standing, QueueStanding::Waits);
        let other = bulkhead.join(client(2), at(0)).unwrap();
        assert_eq!((look(&flood[3]).0, woken.0.load(Ordering::Relaxed)), (QueueStanding::PutOut, 1));
        assert!(
            bulkhead.join(client(2), at(0)).is_some() && bulkhead.join(client(2), at(0)).is_some(),
            "the last one is gone again"
        );
        assert_eq!(look(&other).0, QueueStanding::Waits);
        drop((flood, other));
        let none = Bulkhead::new(Caps { upstream: Some(0), server: None, pending: 0, auto: None });
        assert!(none.join(client(1), at(0)).is_none());
    }

    #[test]
    fn a_client_above_its_share_gives_one_place_for_each_request_that_waits_for_one() {
        let bulkhead = Bulkhead::new(caps(4, 9));
        let server = Arc::default();
        let take = |number| bulkhead.take(&server, client(number), &mut None);
        let mut flood: Vec<_> = (0..4).map(|_| take(1).unwrap()).collect();
        let given = |flood: &mut [HeldPlace], now| flood.iter_mut().map(|held| usize::from(held.give_up(now))).sum();
        let none: usize = given(&mut flood, at(0));
        assert_eq!(none, 0, "it is alone");
        let own = bulkhead.join(client(1), at(0));
        assert_eq!(given(&mut flood, at(0)), 0, "only its own wait");
        let mut two = bulkhead.join(client(2), at(0));
        assert_eq!((given(&mut flood, at(1)), given(&mut flood, at(2))), (1, 0));
        flood.retain(|held| !held.is_given_up);
        assert_eq!(
            (look(own.as_ref().unwrap()).0, look(two.as_ref().unwrap()).0),
            (QueueStanding::Waits, QueueStanding::MayTry)
        );
        let _two = bulkhead.take(&server, client(2), &mut two).unwrap();
        assert_eq!(given(&mut flood, at(3)), 0, "only its own wait");
        drop(own);
        // Requests that may not wait are turned away.
        let waiting: Vec<_> = (0..4).map(|_| bulkhead.join(client(1), at(4)).unwrap()).collect();
        bulkhead.set_caps(Caps { pending: 0, ..caps(4, 9) });
        assert!(bulkhead.join(client(3), at(5)).is_none());
        assert_eq!((given(&mut flood, at(1_004)), given(&mut flood, at(1_004))), (1, 0));
        assert!(bulkhead.join(client(3), at(1_005)).is_none());
        assert_eq!(given(&mut flood, at(2_005)), 0, "that was long ago");
        drop(waiting);
        // A wait in vain is one, too.
        bulkhead.set_caps(caps(4, 9));
        drop(bulkhead.join(client(3), at(3_000)));
        assert_eq!((given(&mut flood, at(3_500)), given(&mut flood, at(3_500))), (1, 0));
    }

    #[test]
    fn more_places_wake_who_waits_and_fewer_hold_until_requests_have_gone() {
        let bulkhead = Bulkhead::new(caps(1, 9));
        let server = Arc::default();
        let held = bulkhead.take(&server, client(9), &mut None).unwrap();
        let mut waiting = bulkhead.join(client(1), at(0));
        let (_, woken) = look(waiting.as_ref().unwrap());
        bulkhead.set_caps(caps(2, 9));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let second = bulkhead.take(&server, client(1), &mut waiting).unwrap();
        bulkhead.set_caps(caps(1, 9));
        drop(held);
        assert_eq!(bulkhead.take(&server, client(9), &mut None).unwrap_err(), NoPlace::AtUpstream);
        drop(second);
        assert!(bulkhead.take(&server, client(9), &mut None).is_ok());
    }

    #[test]
    fn where_the_number_is_found_a_place_is_held_to_the_head_and_latency_makes_more_of_them() {
        let auto = Some(AutoTerms { min: 1, max: 64 });
        let bulkhead = Bulkhead::new(Caps { upstream: None, server: Some(99), pending: 4, auto });
        let server = Arc::default();
        let take = |number| bulkhead.take(&server, client(number), &mut None);
        let mut held: Vec<_> = (1..=16).map(|number| take(number).unwrap()).collect();
        assert_eq!((take(17).unwrap_err(), bulkhead.found()), (NoPlace::AtUpstream, Some(16)));
        let waiting = bulkhead.join(client(17), at(0)).unwrap();
        assert_eq!(look(&waiting).0, QueueStanding::Waits);
        held[0].leave();
        assert_eq!((look(&waiting).0, bulkhead.counts().0), (QueueStanding::MayTry, 15));
        held[0].leave();
        assert!(!held[0].give_up(at(1)), "it has none");
        drop((waiting, held));
        assert_eq!((bulkhead.counts(), server.0.load(Ordering::Relaxed)), ((0, 0), 0));
        for millis in 0..2_000 {
            let places: Vec<_> = (0..bulkhead.found().unwrap()).map_while(|number| take(number % 9 + 1).ok()).collect();
            places[0].observe((millis % 2 == 0).then_some(Span::from_millis(5)), false, 1, at(millis + 5));
        }
        assert_eq!(bulkhead.found(), Some(64));
        bulkhead.set_caps(Caps { auto: None, ..caps(3, 9) });
        let places: Vec<_> = (0..9).map_while(|number| take(number + 1).ok()).collect();
        assert_eq!((bulkhead.found(), places.len()), (None, 3));
    }

    /// The time that 99% of the requests of 50 clients take at most, in ms: each asks every 250 ms for what takes 20 ms, and
    /// there are 8 places, half of which they need. Beside them one client has always so many requests that wait.
    fn p99_of_others(flood: usize) -> u64 {
        let bulkhead = Bulkhead::new(Caps { upstream: Some(8), server: None, pending: 1_000, auto: None });
        let server = Arc::default();
        let (mut held, mut took) = (Vec::new(), Vec::new());
        let mut waiting: Vec<(u64, u64, Option<Pending>)> = Vec::new();
        for now in 0..3_000_u64 {
            held.retain(|(_, _, ends)| *ends > now);
            let arrivals = (1..=50).filter(|own| (now + own * 5) % 250 == 0);
            let missing = flood - waiting.iter().filter(|(own, ..)| *own == 99).count();
            for own in arrivals.chain(std::iter::repeat_n(99, missing)) {
                waiting.push((own, now, bulkhead.join(client(own), at(now))));
            }
            let cx = Context::from_waker(std::task::Waker::noop());
            while let Some(next) = waiting.iter().position(|(_, _, pending)| {
                pending.as_ref().is_some_and(|pending| pending.look(&cx) == QueueStanding::MayTry)
            }) {
                let (own, since, mut pending) = waiting.remove(next);
                held.push((own, bulkhead.take(&server, client(own), &mut pending).unwrap(), now + 20));
                took.extend((own != 99).then_some(now + 20 - since));
            }
        }
        took.sort_unstable();
        assert!(took.len() > 590, "{}", took.len());
        took[took.len() * 99 / 100]
    }

    #[test]
    fn one_client_whose_500_requests_wait_does_not_double_the_time_of_50_others() {
        assert_eq!((p99_of_others(0), p99_of_others(500)), (20, 35));
    }

    /// A task that waits, and is polled when it is woken.
    struct Task {
        pending: Option<Pending>,
        woken: Arc<Woken>,
        standing: Option<QueueStanding>,
    }

    impl Task {
        fn new(pending: Pending) -> Self {
            Self { pending: Some(pending), woken: Arc::default(), standing: None }
        }

        fn poll_if_due(&mut self) -> bool {
            let is_due = self.standing.is_none() || self.woken.0.swap(0, Ordering::Relaxed) > 0;
            if let (true, Some(pending)) = (is_due, &self.pending) {
                self.standing = Some(pending.look(&Context::from_waker(&Waker::from(Arc::clone(&self.woken)))));
            }
            is_due
        }
    }

    proptest! {
        #[test]
        fn never_more_than_the_caps_are_there_and_nobody_is_forgotten(
            steps in prop::collection::vec((0u8..6, 0u64..3, 0usize..2, any::<prop::sample::Index>()), 1..150),
            most in 1u64..5,
            of_server in 1u64..4,
        ) {
            let bulkhead = Bulkhead::new(caps(most, of_server));
            let servers: [Arc<ServerPlaces>; 2] = Default::default();
            let (mut held, mut line) = (Vec::<HeldPlace>::new(), Vec::<Task>::new());
            for (step, who, server, index) in steps {
                match step {
                    0 | 1 => match bulkhead.take(&servers[server], client(who + 1), &mut None) {
                        Ok(place) => held.push(place),
                        Err(_) => line.extend(bulkhead.join(client(who + 1), at(0)).map(Task::new)),
                    },
                    2 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    3 if !line.is_empty() => drop(line.swap_remove(index.index(line.len()))),
                    4 if !held.is_empty() => {
                        let at = index.index(held.len());
                        held[at].move_to(&servers[server]);
                    }
                    _ => {
                        if let Some(one) = line.iter_mut().find(|one| one.standing == Some(QueueStanding::MayTry)) {
                            let client = one.pending.as_ref().unwrap().client;
                            held.extend(bulkhead.take(&servers[server], client, &mut one.pending));
                        }
                    }
                }
                line.retain(|one| one.pending.is_some());
                while line.iter_mut().any(Task::poll_if_due) {}
                line.retain(|one| one.standing != Some(QueueStanding::PutOut));
                let at: Vec<u64> = servers.iter().map(|server| server.0.load(Ordering::Relaxed)).collect();
                prop_assert!(held.len() as u64 <= most && at.iter().all(|count| *count <= of_server));
                prop_assert_eq!(at.iter().sum::<u64>(), held.len() as u64);
                prop_assert_eq!(bulkhead.counts(), (held.len() as u64, line.len()));
                prop_assert!(line.len() <= 4);
                if (held.len() as u64) < most && !line.is_empty() {
                    let state = bulkhead.state();
                    let is_first = |one: &&Task| one.pending.as_ref().is_some_and(|own| state.line.is_first(own.waiter));
                    let first: Vec<_> = line.iter().filter(is_first).map(|one| one.standing).collect();
                    prop_assert_eq!(first, [Some(QueueStanding::MayTry)], "it was woken for the place that is free");
                }
            }
        }
    }
}
