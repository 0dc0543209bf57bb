//! The things that a worker owns, and the generation of the configuration that it goes by.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::answer::DateCell;
use crate::client::{BodyRoom, ClientLedger, H2Totals, Holdings, Room, TokenDesk, TokenMeans};
use crate::deadlines::{Alarm, Alarms, SWEEP_EVERY};
use crate::flights::Flights;
use crate::meters::ConnectionMeters;
use crate::scratch::Pool;
use crate::snapshot::{Feed, Listener, Seldom, Throttle};
use crate::view::{Servers, View};
use sluicegate_admission::address_of;
use sluicegate_config::ListenAddress;
use sluicegate_http1::HeadLimits;
use sluicegate_telemetry::Registry;
use sluicegate_time::{Clock, Span, Tick};

/// How often idle upstream connections are looked at.
const PRUNE_EVERY: std::time::Duration = std::time::Duration::from_secs(5);
/// How often buffers that are not needed any more are given back.
const SHRINK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// Two records of TLS, or what some dozens of small requests are.
const H2_ROOM: usize = 32 * 1024;

/// The gauges of a worker, which others may read at any time.
#[derive(Debug, Default)]
pub struct WorkerGauges {
    /// Open client connections.
    pub connections: AtomicU64,
    /// Requests in flight.
    pub in_flight: AtomicU64,
    /// Connections that are tunnels.
    pub tunnels: AtomicU64,
}

/// The things that one worker thread owns. Nothing in it is shared with another thread but the feed, the registry and
/// the gauges.
pub struct Worker {
    /// Its number, from 0.
    pub index: usize,
    /// The clock, read twice per exchange.
    pub clock: Clock,
    /// Deadlines of its connections.
    pub alarms: Alarms,
    /// The buffers that its exchanges work with.
    pub pool: Rc<Pool>,
    /// Where connections of HTTP/2 read what comes, one after the other: they take what they want of it at once.
    pub h2_room: RefCell<Box<[u8]>>,
    /// How many bytes bodies hold that are kept or read ahead.
    pub bodies: BodyRoom,
    /// The date of responses.
    pub date: DateCell,
    /// The account of each client: how much it holds of the worker.
    pub ledger: Rc<ClientLedger>,
    /// Makes room for connections.
    pub room: Room,
    /// Counters that no configuration changes.
    pub connections: ConnectionMeters,
    /// The tokens that it has judged.
    tokens: TokenDesk,
    /// Log lines about connections without the PROXY header that they should have.
    pub proxy_reports: Throttle,
    /// Log lines about upstreams.
    pub upstream_reports: Throttle,
    /// Log lines about connects that have failed.
    pub connect_reports: Throttle,
    /// Log lines about answers that do not state their costs.
    pub usage_reports: Seldom,
    pub(super) feed: Arc<Feed>,
    registry: Arc<Registry>,
    pub(super) gauges: Arc<WorkerGauges>,
    pub(super) view: RefCell<Rc<View>>,
    servers: RefCell<Servers>,
    pub(super) max_connections: u64,
    last_connection: Cell<u64>,
    pub(super) in_flight: Cell<u64>,
    pub(super) handshakes: RefCell<Holdings<Rc<Alarm>>>,
    /// The requests in flight, for the caller that asks.
    pub flights: RefCell<Flights>,
    /// Requests of HTTP/2 that are under way.
    pub h2: H2Totals,
    random: Cell<u64>,
    turn: Cell<u64>,
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
            bodies: BodyRoom::default(),
            date: DateCell::default(),
            last_connection: Cell::new(0),
            in_flight: Cell::new(0),
            flights: RefCell::default(),
            handshakes: RefCell::default(),
            // Each may need a connection to an upstream, as a client's connection may.
            h2: H2Totals::new(usize::try_from(max_connections).unwrap_or(usize::MAX)),
            ledger: ClientLedger::new(),
            connections: ConnectionMeters::new(&registry),
            tokens: TokenDesk::new(&registry),
            proxy_reports: Throttle::default(),
            upstream_reports: Throttle::default(),
            connect_reports: Throttle::default(),
            usage_reports: Seldom::default(),
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

    /// The means to verify tokens by a view at a moment; `None`: no key asks for one.
    #[inline]
    pub fn tokens<'a>(&'a self, view: &'a View, now: Tick) -> Option<TokenMeans<'a>> {
        let rules = view.snapshot.tokens.as_ref()?;
        Some(TokenMeans { desk: &self.tokens, rules, now: (now, self.clock.offset()) })
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

    /// The listener that the configuration calls `address`; `None`: it has none any more.
    pub fn listener(&self, address: &ListenAddress) -> Option<Arc<Listener>> {
        self.follow();
        self.view.borrow().snapshot.listeners.get(address).cloned()
    }

    /// How long a handshake may take, by the view that the worker has.
    pub fn handshake_timeout(&self) -> Span {
        self.view.borrow().snapshot.server().handshake_timeout
    }

    /// Requests that an HTTP/2 connection may have in flight, by the view that the worker has.
    pub fn max_streams(&self) -> u32 {
        self.h2.most_of_connection(self.view.borrow().snapshot.server().max_streams)
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
    pub async fn run_maintenance(self: Rc<Self>) {
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
