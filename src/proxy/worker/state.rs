use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::admission::address_of;
use crate::http1::HeadLimits;
use crate::limiter::{Ask, Counting, Fingerprint, Permit, Report, Verdict};
use crate::proxy::answer::DateCell;
use crate::proxy::client::{
    CaptureRoom, ClientAccount, ClientLedger, Entered, H2Totals, Held as HeldThing, Holdings, Listening, Room,
};
use crate::proxy::deadlines::{Alarm, Alarms, Dismissed, SWEEP_EVERY};
use crate::proxy::flights::Flights;
use crate::proxy::meters::ConnectionMeters;
use crate::proxy::scratch::Pool;
use crate::proxy::snapshot::{Feed, ListenerPlan, Place, Snapshot, Throttle, Turned, headroom};
use crate::proxy::view::{Servers, View};
use crate::telemetry::Registry;
use crate::time::{Clock, Span, Tick};

/// How often idle upstream connections are looked at.
const PRUNE_EVERY: std::time::Duration = std::time::Duration::from_secs(5);
/// How often buffers that are not needed any more are given back.
const SHRINK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// A handshake that has gone on for so long is taken for one that stands still.
const STALLED: Span = Span::from_secs(1);

/// Two records of TLS, or what some dozens of small requests are.
const H2_ROOM: usize = 32 * 1024;

/// What one worker thread owns. Nothing in it is shared with another thread but the feed, the registry and the gauges.
pub struct Worker {
    /// Its number, from 0.
    pub index: usize,
    /// The clock, read twice per exchange.
    pub clock: Clock,
    /// Deadlines of its connections.
    pub alarms: Alarms,
    /// What its exchanges work with.
    pub pool: Rc<Pool>,
    /// Where connections of HTTP/2 read what comes, one after the other: they take what they want of it at once.
    pub h2_room: RefCell<Box<[u8]>>,
    /// How many bytes of bodies are kept for dead letters.
    pub captures: CaptureRoom,
    /// The date of responses.
    pub date: DateCell,
    /// The account of each client: how much it holds of the worker.
    pub ledger: Rc<ClientLedger>,
    /// Makes room for connections.
    pub room: Room,
    /// Counters that no configuration changes.
    pub connections: ConnectionMeters,
    /// Log lines about connections without the PROXY header that they should have.
    pub proxy_reports: Throttle,
    /// Log lines about upstreams.
    pub upstream_reports: Throttle,
    /// Log lines about connects that have failed.
    pub connect_reports: Throttle,
    feed: Arc<Feed>,
    registry: Arc<Registry>,
    gauges: Arc<WorkerGauges>,
    view: RefCell<Rc<View>>,
    servers: RefCell<Servers>,
    max_connections: u64,
    last_connection: Cell<u64>,
    in_flight: Cell<u64>,
    handshakes: RefCell<Holdings<Rc<Alarm>>>,
    /// The requests in flight, for whoever asks.
    pub flights: RefCell<Flights>,
    /// Requests of HTTP/2 that are under way.
    pub h2: H2Totals,
    random: Cell<u64>,
    turn: Cell<u64>,
}

/// What others may read of a worker at any time.
#[derive(Debug, Default)]
pub struct WorkerGauges {
    /// Open client connections.
    pub connections: AtomicU64,
    /// Requests in flight.
    pub in_flight: AtomicU64,
    /// Connections that are tunnels.
    pub tunnels: AtomicU64,
}

impl Worker {
    /// A worker that has not accepted anything yet. Of what it accepts it keeps `max_connections` at once.
    pub fn new(
        index: usize,
        clock: Clock,
        feed: Arc<Feed>,
        registry: Arc<Registry>,
        gauges: Arc<WorkerGauges>,
        max_connections: u64,
    ) -> Rc<Self> {
        let snapshot = feed.latest();
        let servers = RefCell::new(HashMap::new());
        let view = View::build(snapshot, &registry, &mut servers.borrow_mut(), index, &clock, None);
        let seed = RandomState::new().hash_one(index);
        Rc::new(Self {
            index,
            room: Room::default(),
            alarms: Alarms::new(clock.now()),
            pool: Rc::default(),
            h2_room: RefCell::new(vec![0; H2_ROOM].into()),
            captures: CaptureRoom::default(),
            date: DateCell::default(),
            last_connection: Cell::new(0),
            in_flight: Cell::new(0),
            flights: RefCell::default(),
            handshakes: RefCell::default(),
            // Each may need a connection to an upstream, as a client's connection may.
            h2: H2Totals::new(usize::try_from(max_connections).unwrap_or(usize::MAX)),
            ledger: ClientLedger::new(),
            connections: ConnectionMeters::new(&registry),
            proxy_reports: Throttle::default(),
            upstream_reports: Throttle::default(),
            connect_reports: Throttle::default(),
            clock,
            feed,
            registry,
            gauges,
            view: RefCell::new(Rc::new(view)),
            servers,
            max_connections,
            random: Cell::new(seed),
            turn: Cell::new(seed >> 32),
        })
    }

    /// The current view; taken over from the feed if its generation has moved on.
    pub fn view(&self) -> Rc<View> {
        self.follow();
        Rc::clone(&self.view.borrow())
    }

    /// Takes the feed's snapshot over if its generation has moved on.
    fn follow(&self) {
        let seen = self.view.borrow().snapshot.generation;
        if seen != self.feed.generation() {
            self.refresh();
        }
    }

    /// Whether connections from `peer` are to be closed, by the current view.
    pub fn denies(&self, peer: IpAddr) -> bool {
        self.follow();
        let snapshot = &self.view.borrow().snapshot;
        // An IPv4 client that comes by an IPv6 address is named by either.
        let client = address_of(peer);
        let is_denied = snapshot.deny.contains(peer) || snapshot.deny.contains(client);
        // Whom an address holds is no proof that it is allowed: anybody may have an address that holds another.
        is_denied || snapshot.accept.allow.as_ref().is_some_and(|allow| !allow.contains(peer))
    }

    /// Takes the latest snapshot over: servers that stay keep their connections, those that went close theirs.
    pub fn refresh(&self) {
        let snapshot = self.feed.latest();
        if snapshot.generation == self.view.borrow().snapshot.generation {
            return;
        }
        let kept = Rc::clone(&self.view.borrow());
        let servers = &mut self.servers.borrow_mut();
        let view = View::build(snapshot, &self.registry, servers, self.index, &self.clock, Some(&kept.meters));
        let old = self.view.replace(Rc::new(view));
        drop(old);
    }

    /// Counts a connection for as long as the guard lives; by which bound there are too many, if there are.
    /// Of whom it is may be known [later](ConnectionGuard::is_of).
    pub fn connection_opened(
        self: &Rc<Self>,
        client: Option<IpAddr>,
        listener: &ListenerPlan,
    ) -> Result<ConnectionGuard, Turned> {
        let snapshot = Arc::clone(&self.view.borrow().snapshot);
        let key = client.and_then(|client| snapshot.rules.key_of_peer(client));
        let held = self.take_places(&snapshot, key, listener)?;
        self.connections.accepted.inc();
        self.gauges.connections.fetch_add(1, Ordering::Relaxed);
        let place = OpenPlace { worker: Rc::clone(self), held };
        let entered = if client.is_some() { self.ledger.enter(key) } else { self.ledger.enter_unknown() };
        Ok(ConnectionGuard { place, entered })
    }

    /// Counts a connection of the gateway's own, which no bound is asked about: whoever makes it bounds how many there are.
    pub fn own_connection_opened(self: &Rc<Self>) -> ConnectionGuard {
        self.connections.accepted.inc();
        self.gauges.connections.fetch_add(1, Ordering::Relaxed);
        let place = OpenPlace { worker: Rc::clone(self), held: None };
        ConnectionGuard { place, entered: self.ledger.enter_unknown() }
    }

    fn take_places(
        &self,
        snapshot: &Snapshot,
        key: Option<Fingerprint>,
        listener: &ListenerPlan,
    ) -> Result<Option<Box<Held>>, Turned> {
        if self.open_connections() >= self.connection_bound(snapshot) {
            return Err(Turned::Worker);
        }
        let place = match &listener.places {
            Some(places) => Some(places.take().ok_or(Turned::Listener)?),
            None => None,
        };
        let permit = self.take_clients_place(snapshot, key)?;
        let is_bounded = place.is_some() || !permit.is_empty();
        Ok(is_bounded.then(|| Box::new(Held { permit, _place: place })))
    }

    fn connection_bound(&self, snapshot: &Snapshot) -> u64 {
        snapshot.server().max_connections.map_or(self.max_connections, |own| own.min(self.max_connections))
    }

    /// Asks a connection to end for one that met this bound. False if there is none, or the bound is a client's own.
    pub fn make_room(&self, by: Turned, listening: &Rc<Listening>) -> bool {
        let now = self.clock.now();
        match by {
            Turned::Worker => self.room.make(None, true, now),
            Turned::Listener => self.room.make(Some(listening), true, now),
            Turned::Client | Turned::ClientRate | Turned::Share => false,
        }
    }

    /// Asks connections to end where a bound is near, so that the next ones need not wait for that. False if there is none to
    /// end, and so few places are left that this client, who has more connections than that, is not to have one more.
    ///
    /// That is the dynamic threshold of shared buffers (see `h2_share`) with alpha 1, for the last places alone: clients
    /// whose connections are all busy leave as many to others as each of them has.
    pub fn keep_headroom(
        &self,
        listener: &ListenerPlan,
        listening: &Rc<Listening>,
        account: &ClientAccount,
        now: Tick,
    ) -> bool {
        let has_few = |free: u64| u64::from(account.connections()) <= free.max(1);
        let bound = self.connection_bound(&self.view.borrow().snapshot);
        let free = bound.saturating_sub(self.open_connections());
        if free < headroom(bound) && !self.room.make(None, false, now) && !has_few(free) {
            return false;
        }
        let free = listener.places.as_ref().and_then(|places| places.last_ones());
        free.is_none_or(|free| self.room.make(Some(listening), false, now) || has_few(free))
    }

    /// Says that a client holds more than half of the places for connections, where it does. A load balancer that nobody has
    /// named is bounded as one client, and its operator has to be told why.
    pub fn report_crowd(&self, peer: IpAddr, account: &ClientAccount, now: Tick) {
        let bound = self.connection_bound(&self.view.borrow().snapshot);
        if u64::from(account.connections()) > bound / 2 {
            self.report_crowding(peer, account, "connections", now);
        }
    }

    /// Says in the log that this address holds so much of a worker that it is bounded, unless it stands for many or somebody
    /// was told within a minute.
    pub fn report_crowding(&self, peer: IpAddr, account: &ClientAccount, what: &str, now: Tick) {
        if account.is_of_one_client() && self.feed.crowding_reports.is_due(now) {
            tracing::warn!(
                %peer,
                "one address holds much of a worker's {what}; if it is a load balancer, name it in `trusted_proxies` of [client], \
                 and it is not bounded as one client"
            );
        }
    }

    /// A place among the connections of the client with this key. A trusted proxy stands for many, and has none.
    fn take_clients_place(&self, snapshot: &Snapshot, key: Option<Fingerprint>) -> Result<Permit, Turned> {
        let (Some(bounds), Some(key)) = (&snapshot.accept.clients, key) else { return Ok(Permit::default()) };
        let asks = [Ask { key: Some(key), cost: 1, counting: Counting::AtOnce }; 2];
        let mut report = Report::default();
        match bounds.policy.check(&asks[..bounds.reasons.len().min(2)], Span::ZERO, self.clock.now(), &mut report) {
            Verdict::Admitted(permit) => Ok(permit),
            Verdict::Refused(refusal) => Err(*bounds.reasons.get(refusal.limit).unwrap_or(&Turned::Client)),
            // Neither limit lets anybody wait.
            Verdict::Queued(_) => Err(Turned::ClientRate),
        }
    }

    /// A number that no other connection of this worker has or had.
    pub fn next_connection(&self) -> u64 {
        let id = self.last_connection.get() + 1;
        self.last_connection.set(id);
        id
    }

    /// Closes idle connections to servers that were for this connection of a client alone: it has ended.
    pub fn forget(&self, owner: u64) {
        if self.view.borrow().snapshot.sends_proxy_headers {
            for server in self.servers.borrow().values().filter(|server| server.link().proxy_protocol.is_some()) {
                server.forget(owner);
            }
        }
    }

    /// Requests that a connection may carry, by the view that the worker has.
    pub fn max_requests(&self) -> u32 {
        self.view.borrow().snapshot.server().max_requests.unwrap_or(u32::MAX)
    }

    /// Counts a request as in flight for as long as the guard lives.
    pub fn enter_flight(self: &Rc<Self>) -> InFlight {
        self.count_flight(self.in_flight.get() + 1);
        InFlight(Rc::clone(self))
    }

    fn count_flight(&self, count: u64) {
        self.in_flight.set(count);
        self.gauges.in_flight.store(count, Ordering::Relaxed);
    }

    /// Counts a tunnel for as long as the guard lives.
    pub fn enter_tunnel(self: &Rc<Self>) -> Tunnel {
        self.connections.tunnels.inc();
        self.gauges.tunnels.fetch_add(1, Ordering::Relaxed);
        Tunnel(Rc::clone(self))
    }

    /// How large a head may be, by the view that the worker has.
    pub fn head_limits(&self) -> HeadLimits {
        self.view.borrow().snapshot.head_limits()
    }

    /// How long a head may take, by the view that the worker has.
    pub fn head_timeout(&self) -> Span {
        self.view.borrow().snapshot.server().head_timeout
    }

    /// How long a connection may be without a request, by the view that the worker has.
    pub fn keep_alive_timeout(&self) -> Span {
        self.view.borrow().snapshot.server().keep_alive_timeout
    }

    /// What is special about the listener that the configuration calls `address`.
    pub fn listener(&self, address: SocketAddr) -> ListenerPlan {
        self.follow();
        self.view.borrow().snapshot.listeners.get(&address).cloned().unwrap_or_default()
    }

    /// How long a handshake may take, by the view that the worker has.
    pub fn handshake_timeout(&self) -> Span {
        self.view.borrow().snapshot.server().handshake_timeout
    }

    /// Requests that an HTTP/2 connection may have in flight, by the view that the worker has.
    pub fn max_streams(&self) -> u32 {
        self.h2.most_of_connection(self.view.borrow().snapshot.server().max_streams)
    }

    /// Counts a handshake for as long as the guard lives; `None` if there are too many. The client that has most may have to
    /// give its oldest for it, whose `alarm` is then told.
    pub fn enter_handshake(
        self: &Rc<Self>,
        peer: IpAddr,
        account: &Rc<ClientAccount>,
        alarm: &Rc<Alarm>,
    ) -> Option<Handshake> {
        let max = self.view.borrow().snapshot.server().max_handshakes;
        let now = self.clock.now();
        let mut handshakes = self.handshakes.borrow_mut();
        let own = handshakes.of(account);
        if own as usize >= clients_share(max) {
            self.report_crowding(peer, account, "TLS handshakes", now);
            return None;
        }
        if handshakes.len() >= max {
            let most = handshakes.most();
            let (oldest, _, since) = handshakes.oldest_of_heaviest()?;
            // Where nobody has more than the newcomer would have, those that go on are worth more, but not if they stand still.
            if own >= most || own + 1 == most && now.since(since) < STALLED {
                return None;
            }
            handshakes.remove(oldest)?.dismiss(Dismissed::Handshake);
        }
        let held = handshakes.add(account, now, Rc::clone(alarm));
        Some(Handshake { worker: Rc::clone(self), held })
    }

    /// Open client connections.
    pub fn open_connections(&self) -> u64 {
        self.gauges.connections.load(Ordering::Relaxed)
    }

    /// Open tunnels.
    pub fn open_tunnels(&self) -> u64 {
        self.gauges.tunnels.load(Ordering::Relaxed)
    }

    /// A number that nobody outside can guess cheaply; not for secrets. `SplitMix64` (Steele, Lea, Flood 2014).
    pub fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A counter that grows by one at each call: whose turn it is.
    pub fn turn(&self) -> u64 {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }

    /// Sweeps deadlines and idle connections for as long as the worker runs.
    pub async fn keep_house(self: Rc<Self>) {
        let sweep = async {
            loop {
                self.alarms.any().await;
                tokio::time::sleep(SWEEP_EVERY.into()).await;
                #[cfg(debug_assertions)]
                Self::panic_on_demand();
                self.alarms.sweep(self.clock.now());
            }
        };
        let prune = async {
            loop {
                tokio::time::sleep(PRUNE_EVERY).await;
                let now = self.clock.now();
                for server in self.servers.borrow().values() {
                    server.prune(now);
                }
                self.ledger.prune(now);
            }
        };
        let shrink = async {
            loop {
                tokio::time::sleep(SHRINK_EVERY).await;
                self.pool.prune();
            }
        };
        tokio::join!(sweep, prune, shrink);
    }
}

/// How many of so many handshakes one client may have: half.
fn clients_share(max: usize) -> usize {
    (max / 2).max(1)
}

/// A handshake that is going on.
pub struct Handshake {
    worker: Rc<Worker>,
    held: HeldThing,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.worker.handshakes.borrow_mut().remove(self.held);
    }
}

/// A request in flight.
pub struct InFlight(Rc<Worker>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.count_flight(self.0.in_flight.get().saturating_sub(1));
    }
}

/// An open tunnel.
pub struct Tunnel(Rc<Worker>);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.gauges.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An open connection of a worker.
pub struct ConnectionGuard {
    place: OpenPlace,
    entered: Entered,
}

/// Its place among them.
pub struct OpenPlace {
    worker: Rc<Worker>,
    held: Option<Box<Held>>,
}

/// What a connection has of bounded things, given back when it ends.
struct Held {
    permit: Permit,
    _place: Option<Place>,
}

impl ConnectionGuard {
    /// Counts it among those of its client, who was not known when it came; `false`, and counted, if there are too many.
    pub fn is_of(&mut self, client: IpAddr) -> bool {
        let OpenPlace { worker, held } = &mut self.place;
        let snapshot = Arc::clone(&worker.view.borrow().snapshot);
        let key = snapshot.rules.key_of_peer(client);
        match worker.take_clients_place(&snapshot, key) {
            Err(by) => {
                worker.connections.turned_away(by);
                return false;
            }
            Ok(permit) if permit.is_empty() => {}
            Ok(permit) => match held {
                Some(held) => held.permit = permit,
                None => *held = Some(Box::new(Held { permit, _place: None })),
            },
        }
        self.entered = worker.ledger.enter(key);
        true
    }

    /// The account of its client, or its own.
    pub fn account(&self) -> &Rc<ClientAccount> {
        self.entered.account()
    }

    /// Its place, and the account that it is on until it [leaves](ClientAccount::leave) it.
    pub fn into_parts(self) -> (OpenPlace, Rc<ClientAccount>) {
        (self.place, self.entered.hand_over())
    }

    /// The worker that it is of.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.place.worker
    }
}

impl OpenPlace {
    /// The worker that it is of.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        self.worker.note_panic();
        self.worker.gauges.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
