use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use sluicegate_balance::{Event, Gate, Member, Roster, ServerState, Service, Terms};
use sluicegate_time::{Span, Tick};

/// A request that tries an ejected server for so long has no answer yet, and another one may try it, too: it may be a long
/// poll.
const TRIAL_LAPSES: Span = Span::from_secs(10);

/// How the servers of an upstream stand, for all workers.
///
/// A worker looks at one number for each request, and at the rest where that has changed ([`GateView`]).
pub struct ServerStates {
    upstream: Arc<str>,
    terms: Terms,
    members: Vec<Member>,
    /// Grows with each change.
    version: AtomicU64,
    roster: Mutex<Roster>,
    /// Since when a request is under way that tries an ejected server, in nanoseconds, server by server; 0: none is.
    tried: Box<[AtomicU64]>,
    /// Told of each change, so that somebody is there when the next one is due by time alone.
    changed: Notify,
}

impl ServerStates {
    /// All servers of a new upstream.
    pub fn new(upstream: Arc<str>, terms: Terms, members: Vec<Member>, now: Tick) -> Arc<Self> {
        let roster = Roster::new(terms, members.clone(), now);
        Self::of(upstream, terms, members, roster)
    }

    /// Those of a changed upstream: the states of servers that stay go on.
    pub fn reloaded(&self, terms: Terms, members: Vec<Member>, now: Tick) -> Arc<Self> {
        let roster = self.roster();
        // The plan of the reload tells what changes.
        let (next, _events) = roster.reloaded(terms, members.clone(), now);
        Self::of(Arc::clone(&self.upstream), terms, members, next)
    }

    fn of(upstream: Arc<str>, terms: Terms, members: Vec<Member>, roster: Roster) -> Arc<Self> {
        let tried = (0..roster.len()).map(|_| AtomicU64::new(0)).collect();
        let (version, changed) = (AtomicU64::new(1), Notify::new());
        Arc::new(Self { upstream, terms, members, version, roster: Mutex::new(roster), tried, changed })
    }

    /// Whether it was made of these.
    pub fn is_of(&self, terms: &Terms, members: &[Member]) -> bool {
        self.terms == *terms && self.members == members
    }

    /// A worker's requests have failed as often in a row as they may, or the one that tried an ejected server has.
    pub fn failed(&self, server: usize, cause: &str, now: Tick) {
        self.change(|roster| roster.failed(server, cause, now));
    }

    /// A request to an ejected server was answered.
    pub fn recovered(&self, server: usize, now: Tick) {
        self.change(|roster| roster.recovered(server, now));
    }

    /// The result of a check of its health.
    pub fn checked(&self, server: usize, result: Result<(), &str>, now: Tick) {
        self.change(|roster| roster.checked(server, result, now));
    }

    /// Whether there is a server of this name.
    pub fn has(&self, name: &str) -> bool {
        self.roster().place_of(name).is_some()
    }

    /// The operator's will about a server of this name. `false`: nothing has changed, since no server in service would be left; it
    /// changes all the same where that `is_forced`.
    pub fn set_service(&self, name: &str, service: Service, is_forced: bool, now: Tick) -> bool {
        let mut is_set = false;
        self.change(|roster| {
            let Some(server) = roster.place_of(name) else { return Vec::new() };
            if !is_forced && service != Service::Up && roster.is_last_in_service(server) {
                return Vec::new();
            }
            is_set = true;
            roster.set_service(server, service, now)
        });
        is_set
    }

    /// Changes what is due by time alone; when to do so again.
    pub fn pass_time(&self, now: Tick) -> Tick {
        self.change(|roster| roster.pass_time(now));
        self.roster().next_change(now)
    }

    /// Completes when something has changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Looks at the servers.
    pub fn with_roster<T>(&self, look: impl FnOnce(&Roster) -> T) -> T {
        look(&self.roster())
    }

    /// Takes the place of the one request that may try an ejected server, where it is free, or was taken long ago.
    fn try_one(self: &Arc<Self>, server: usize, now: Tick) -> Option<Trial> {
        let tried = self.tried.get(server)?;
        let since = now.as_nanos().max(1);
        let taken = tried.load(Ordering::Relaxed);
        let is_free = taken == 0 || now.since(Tick::from_nanos(taken)) >= TRIAL_LAPSES;
        let is_own = is_free && tried.compare_exchange(taken, since, Ordering::Acquire, Ordering::Relaxed).is_ok();
        is_own.then(|| Trial { states: Arc::clone(self), server, since })
    }

    fn change(&self, change: impl FnOnce(&mut Roster) -> Vec<Event>) {
        let mut roster = self.roster();
        let events = change(&mut roster);
        if events.is_empty() {
            return;
        }
        // Under the lock, so that lines are in the order of what they tell.
        for event in &events {
            self.tell(event, &roster);
        }
        drop(roster);
        self.version.fetch_add(1, Ordering::Release);
        self.changed.notify_one();
    }

    fn tell(&self, event: &Event, roster: &Roster) {
        let (upstream, server) = (&*self.upstream, roster.name_of(event.server));
        let (from, to, reason) = (event.from.word(), event.to.word(), &*event.reason);
        match event.to {
            ServerState::Down | ServerState::Ejected => {
                tracing::warn!(target: "sluicegate::upstream::states", %upstream, %server, from, to, reason, "server out of service");
            }
            _ => {
                tracing::info!(target: "sluicegate::upstream::states", %upstream, %server, from, to, reason, "server changed its state");
            }
        }
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of the one request that tries an ejected server, until it is dropped.
pub struct Trial {
    states: Arc<ServerStates>,
    server: usize,
    since: u64,
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(tried) = self.states.tried.get(self.server) {
            // Another one may have it by now.
            let _ = tried.compare_exchange(self.since, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// How one worker sees the states: it looks again where they have changed.
pub struct GateView {
    states: Arc<ServerStates>,
    version: Cell<u64>,
    until: Cell<Tick>,
    /// `None`: each server may be chosen.
    gate: RefCell<Option<Rc<Gate>>>,
}

impl GateView {
    /// A view of a worker that has not looked yet.
    pub fn new(states: Arc<ServerStates>) -> Self {
        Self { states, version: Cell::new(0), until: Cell::new(Tick::ZERO), gate: RefCell::default() }
    }

    /// The servers that may be chosen; `None`: each.
    pub fn gate(&self, now: Tick) -> Option<Rc<Gate>> {
        if !self.is_fresh(now) {
            // Before the look: a change meanwhile is looked at again.
            self.version.set(self.states.version.load(Ordering::Acquire));
            let gate = self.states.with_roster(|roster| roster.gate(now));
            self.until.set(gate.until());
            *self.gate.borrow_mut() = (!gate.is_plain()).then(|| Rc::new(gate));
        }
        self.gate.borrow().clone()
    }

    /// Whether the end of a request to this server tells whether it works again: of the one that tries it, or of any while
    /// all servers are out. Others were sent before it was ejected.
    pub fn wants_verdict(&self, server: usize, is_trial: bool) -> bool {
        let gate = self.gate.borrow();
        gate.as_ref().is_some_and(|gate| gate.wants_verdict(server) && (is_trial || gate.is_panic()))
    }

    /// The place of the one request that may try an ejected server.
    pub fn try_one(&self, server: usize, now: Tick) -> Option<Trial> {
        self.states.try_one(server, now)
    }

    /// The states themselves.
    pub fn states(&self) -> &Arc<ServerStates> {
        &self.states
    }

    fn is_fresh(&self, now: Tick) -> bool {
        self.version.get() == self.states.version.load(Ordering::Acquire) && now < self.until.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_balance::{EjectTerms, Eligibility};

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    /// Two servers, of which the first was ejected at second 1, for 5 s.
    fn ejected() -> Arc<ServerStates> {
        let member = |name: &str| Member { name: name.into(), service: Service::Up, is_backup: false };
        let (base, max) = (Span::from_secs(5), Span::from_secs(60));
        let eject = Some(EjectTerms { failures: 3, base, max, at_most_percent: 50 });
        let terms = Terms { eject, ..Terms::default() };
        let states = ServerStates::new("app".into(), terms, vec![member("a"), member("b")], at(0));
        states.failed(0, "refused", at(1));
        states
    }

    #[test]
    fn only_the_request_that_tries_a_server_tells_of_it() {
        let view = GateView::new(ejected());
        assert_eq!(view.gate(at(2)).unwrap().entry(0), Eligibility::Shut);
        assert!(!view.wants_verdict(0, true));
        assert_eq!(view.gate(at(6)).unwrap().entry(0), Eligibility::Probe);
        assert!(view.wants_verdict(0, true) && !view.wants_verdict(0, false), "others were sent before");
        assert!(!view.wants_verdict(1, true));
    }

    #[test]
    fn one_request_at_a_time_tries_a_server_and_another_one_if_that_takes_long() {
        let view = GateView::new(ejected());
        let first = view.try_one(0, at(10)).unwrap();
        assert!(view.try_one(0, at(19)).is_none());
        let second = view.try_one(0, at(20)).unwrap();
        drop(first);
        assert!(view.try_one(0, at(21)).is_none(), "it is the second one's now");
        drop(second);
        assert!(view.try_one(0, at(21)).is_some());
    }
}
