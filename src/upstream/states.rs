use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::balance::{Event, Gate, Member, Roster, ServerState, Service, Terms};
use crate::time::Tick;

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
    /// Whether a request is under way that tries an ejected server, server by server.
    tried: Box<[AtomicBool]>,
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
        let tried = (0..roster.len()).map(|_| AtomicBool::new(false)).collect();
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

    /// The operator's will. `false`: there is no such server.
    pub fn set_service(&self, name: &str, service: Service, now: Tick) -> bool {
        let server = self.roster().place_of(name);
        let Some(server) = server else { return false };
        self.change(|roster| roster.set_service(server, service, now));
        true
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

    /// Takes the place of the one request that may try an ejected server.
    fn try_one(self: &Arc<Self>, server: usize) -> Option<Trial> {
        let tried = self.tried.get(server)?;
        let is_free = tried.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        is_free.then(|| Trial { states: Arc::clone(self), server })
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
                tracing::warn!(%upstream, %server, from, to, reason, "server out of service");
            }
            _ => tracing::info!(%upstream, %server, from, to, reason, "server changed its state"),
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
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(tried) = self.states.tried.get(self.server) {
            tried.store(false, Ordering::Release);
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

    /// Which servers may be chosen; `None`: each.
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

    /// Whether the end of a request to this server tells whether it works again.
    pub fn wants_verdict(&self, server: usize) -> bool {
        self.gate.borrow().as_ref().is_some_and(|gate| gate.wants_verdict(server))
    }

    /// The place of the one request that may try an ejected server.
    pub fn try_one(&self, server: usize) -> Option<Trial> {
        self.states.try_one(server)
    }

    /// The states themselves.
    pub fn states(&self) -> &Arc<ServerStates> {
        &self.states
    }

    fn is_fresh(&self, now: Tick) -> bool {
        self.version.get() == self.states.version.load(Ordering::Acquire) && now < self.until.get()
    }
}
