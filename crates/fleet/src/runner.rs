//! The thread of a fleet: it collects what the limits have to say, carries it to the store, and brings the answers back.

mod ended;
mod looking;

use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::circuit::{Circuit, CircuitState, Pass};
use super::members::{HEARTBEAT, Living, Members, STAYS, member_name, members_key};
use super::notices::{Hears, LOOKS, Notices};
use super::status::{Board, Mode, Status};
use super::store::{Order, Store, StoreEndpoint, StoreError};
use super::store_clock::StoreClock;
use super::{Binding, Settings};
use looking::Looked;
use sluicegate_limiter::{Collect, FleetView, LEASE_HOLD, Turn, Wanted};
use sluicegate_telemetry::Histogram;
use sluicegate_time::{Clock, Span, Tick};

/// The most settles of a batch for which requests wait.
const ASKS: usize = 128;
/// The most of one for which nobody does. A settle takes the store some tens of microseconds, one after the other for all
/// gateways: what is asked behind many reports would be late.
const REPORTS: usize = 16;
/// Batches on their way at once, for the same reason.
const BATCHES: usize = 2;
/// How many removed limits are kept until the store knows what they have spent.
const MOST_LEAVING: usize = 16;
/// Batches of what has just come up are at least so far apart.
const APART: Span = Span::from_millis(1);
/// How long the answer to a report may take where that is longer than the deadline: no request waits for it, and one that
/// was done and whose answer is given up is charged twice.
const REPORTED: Span = Span::from_millis(250);
/// How long a connection may take to be made. No request waits for it: while there is none, `on_failure` decides.
const CONNECTS: Duration = Duration::from_secs(2);
/// From one attempt to connect to the next, at least; up to twice as long.
const RECONNECTS: Duration = Duration::from_millis(170);
/// A newcomer spends nothing that it has not been granted before all others have heard of it, and count it.
const NEWCOMER: Span = Span::from_secs(3);
/// One of whom the store has not heard for so long may have been forgotten by the others, and is a newcomer again.
const FORGOTTEN: Span = Span::from_millis(2_500);
/// Log lines about the store are so far apart.
const LOGGED: Span = Span::from_secs(1);
/// How long what is owed may take to be told when the process ends.
const LEAVES: Duration = Duration::from_millis(500);

/// How the gateway takes part. When its sender goes, the gateway leaves the fleet.
pub(super) type Participation = (Settings, Vec<Arc<Binding>>);

/// An exchange that has ended.
enum FinishedExchange {
    Connected { endpoint: Box<StoreEndpoint>, connected: Result<Store, StoreError> },
    Settled { batch: Batch, sent: Tick, results: Option<Vec<Result<Vec<i64>, StoreError>>> },
    Beaten { sent: Tick, is_probe: bool, members: Option<Result<Members, StoreError>> },
    Looked(Box<Looked>),
}

/// Settles that are sent together.
struct Batch {
    settles: Vec<(Arc<Binding>, Wanted)>,
    /// Requests wait for the answer.
    is_ask: bool,
}

/// The state of the thread.
pub(super) struct Runner {
    settings: Settings,
    bindings: Vec<Arc<Binding>>,
    /// Limits that have been removed, and still have something to say or somebody who waits.
    leaving: Vec<Arc<Binding>>,
    member: String,
    clock: Clock,
    circuit: Circuit,
    store: Option<Arc<Store>>,
    store_clock: StoreClock,
    is_connecting: bool,
    /// The first connection is being made, for no longer than an answer may take: requests wait for it.
    is_starting: bool,
    /// Whether limits may have something to send: for which requests wait, and other.
    has_asks: bool,
    has_reports: bool,
    /// The limit from which is collected first.
    turn: usize,
    batches: usize,
    on_their_way: JoinSet<FinishedExchange>,
    last_batch: Tick,
    /// When the store last heard of this gateway, and since when without a break.
    heard: Option<(Tick, Tick)>,
    living: Living,
    was_up: bool,
    /// The mode that the log knows.
    said_up: bool,
    /// When the last line was logged, and how many changes were not since.
    logged: Option<Tick>,
    unsaid: u64,
    logged_error: Option<Tick>,
    board: Arc<Board>,
    took: Histogram,
    notices: Arc<Notices>,
    hears: Hears,
    /// The version of the notices that were heard last, empty where there was no hash; `None`: none were heard yet.
    known_version: Option<Vec<u8>>,
    /// A look is on its way.
    is_looking: bool,
    /// The log knows that notices cannot be told or heard.
    said_deaf: bool,
}

impl Runner {
    pub(super) fn new(
        settings: Settings,
        bindings: Vec<Arc<Binding>>,
        clock: Clock,
        took: Histogram,
        (notices, hears): (Arc<Notices>, Hears),
    ) -> Self {
        let member = member_name(&settings.node, random());
        let board = Arc::new(Board::new(Status {
            mode: Mode::Starting,
            since: clock.now(),
            member: member.clone(),
            gateways: 1,
            names: Vec::new(),
            is_known: false,
            store: settings.endpoint.address.clone(),
            server: None,
            circuit: CircuitState::Closed,
            deadline: settings.deadline,
            on_failure: settings.on_failure,
            lost: None,
        }));
        Self {
            settings,
            bindings,
            leaving: Vec::new(),
            member,
            clock,
            circuit: Circuit::new(),
            store: None,
            store_clock: StoreClock::default(),
            is_connecting: false,
            is_starting: true,
            has_asks: false,
            has_reports: false,
            turn: 0,
            batches: 0,
            on_their_way: JoinSet::new(),
            last_batch: Tick::ZERO,
            heard: None,
            living: Living::default(),
            // So that a store that is away at the start is told as a change.
            was_up: true,
            said_up: true,
            logged: None,
            unsaid: 0,
            logged_error: None,
            board,
            took,
            notices,
            hears,
            known_version: None,
            is_looking: false,
            said_deaf: false,
        }
    }

    pub(super) fn board(&self) -> &Arc<Board> {
        &self.board
    }

    pub(super) async fn run(mut self, mut parts: watch::Receiver<Participation>) {
        let mut rounds = interval(LEASE_HOLD.into());
        let mut beats = interval(HEARTBEAT.into());
        let mut looks = interval(LOOKS.into());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let notices = Arc::clone(&self.notices);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.connect(Duration::ZERO);
        let first = sleep(self.settings.deadline.into());
        tokio::pin!(first);
        loop {
            let now = self.clock.now();
            let probe = match self.circuit.state() {
                CircuitState::Open { next_probe: due } | CircuitState::Probing { until: due }
                    if self.store.is_some() =>
                {
                    Some(due.since(now))
                }
                _ => None,
            };
            let pause = (self.last_batch + APART).since(now);
            tokio::select! {
                changed = parts.changed() => {
                    if changed.is_err() {
                        return self.leave().await;
                    }
                    let (settings, bindings) = parts.borrow_and_update().clone();
                    self.configure(settings, bindings);
                }
                () = urgent(&self.bindings, &self.leaving, pause), if self.is_up() => self.hear(now),
                _ = rounds.tick() => {
                    if self.is_up() {
                        self.begin(Turn::Round);
                    }
                    self.show();
                    self.say_mode();
                }
                _ = beats.tick() => self.beat(false),
                _ = looks.tick() => self.look(),
                () = notices.is_told() => self.look(),
                Some(done) = self.on_their_way.join_next() => {
                    if let Ok(done) = done {
                        self.done(done);
                    }
                }
                () = sleep(probe.unwrap_or_default().into()), if probe.is_some() => {
                    if self.circuit.pass(self.clock.now()) == Pass::Probe {
                        self.beat(true);
                    }
                }
                () = &mut first, if self.is_starting => {
                    self.is_starting = false;
                    self.show();
                }
            }
        }
    }

    /// Whether the store is asked.
    fn is_up(&self) -> bool {
        self.store.is_some() && self.circuit.state() == CircuitState::Closed
    }

    /// Tells the limits how the fleet stands.
    fn show(&self) {
        let now = self.clock.now();
        let is_up = self.is_up() || self.is_starting;
        let is_known = self.heard.is_some_and(|(last, since)| {
            // Others forget one of whom they have not heard.
            now.since(since) >= NEWCOMER && now.since(last) < STAYS
        });
        let view = FleetView { live: self.living.count(), is_known, is_up };
        for binding in self.bindings.iter().chain(&self.leaving) {
            binding.limit.set_view(view);
        }
        let mode = match (self.is_up(), self.is_starting) {
            (true, _) => Mode::Shared,
            (false, true) => Mode::Starting,
            (false, false) => Mode::Alone,
        };
        self.board.update(|status| {
            if mode != status.mode {
                (status.mode, status.since) = (mode, now);
            }
            (status.gateways, status.is_known) = (view.live, is_known);
            status.circuit = self.circuit.state();
        });
    }

    /// The store is asked from now on, or no more, because of `lost`.
    fn change_mode(&mut self, lost: Option<&StoreError>) {
        if self.is_up() {
            self.begin(Turn::All);
        }
        if lost.is_some() {
            self.board.update(|status| status.lost = lost.cloned());
        }
        self.show();
        let is_up = self.is_up();
        if is_up != std::mem::replace(&mut self.was_up, is_up) {
            self.unsaid += 1;
        }
        self.say_mode();
    }

    /// Says in the log which mode holds, if it does not know, at most once a second.
    fn say_mode(&mut self) {
        let (now, is_up) = (self.clock.now(), self.is_up());
        if is_up == self.said_up || self.is_starting || self.logged.is_some_and(|last| now.since(last) < LOGGED) {
            return;
        }
        (self.said_up, self.logged) = (is_up, Some(now));
        let more = std::mem::take(&mut self.unsaid).saturating_sub(1);
        let (store, live) = (&self.settings.endpoint.address, self.living.count());
        if is_up {
            tracing::info!(target: "sluicegate::fleet::runner", %store, gateways = live, more, "fleet store answers; shared limits are shared again");
            return;
        }
        let on_failure = self.settings.on_failure.word();
        let error = self.board.status().lost.map(|lost| lost.to_string()).unwrap_or_default();
        tracing::warn!(target: "sluicegate::fleet::runner", %store, on_failure, more, error, "fleet store lost; each gateway decides alone");
    }

    fn connect(&mut self, after: Duration) {
        if std::mem::replace(&mut self.is_connecting, true) {
            return;
        }
        let endpoint = self.settings.endpoint.clone();
        self.on_their_way.spawn(async move {
            sleep(after).await;
            let connected = Store::connect_within(&endpoint, CONNECTS).await;
            FinishedExchange::Connected { endpoint: Box::new(endpoint), connected }
        });
    }

    /// Requests have begun to wait, or soon will.
    fn hear(&mut self, now: Tick) {
        self.last_batch = now;
        for binding in self.bindings.iter().chain(&self.leaving) {
            binding.limit.take_urgent();
        }
        (self.has_asks, self.has_reports) = (true, true);
        self.send();
    }

    /// The keys of all limits have their turn.
    fn begin(&mut self, turn: Turn) {
        for binding in &self.bindings {
            binding.limit.begin(turn);
        }
        let now = self.clock.now();
        // Of one key's own numbers that have ended, those who wait by them still have their turns.
        self.leaving.retain(|left| left.limit.outstanding(now).listed > 0 || left.limit.stats().waiting > 0);
        for binding in &self.leaving {
            binding.limit.begin(Turn::All);
        }
        (self.has_asks, self.has_reports) = (true, true);
        self.send();
    }

    /// Sends what may be sent. A message is made when it can be sent, no sooner: see `limiter/shard/book.rs`.
    fn send(&mut self) {
        while self.batches < BATCHES && self.is_up() {
            let Some(store) = self.store.clone() else { return };
            let sent = self.clock.now();
            let mut settles = Vec::new();
            if self.has_asks {
                self.has_asks = self.collect(Collect::Asks, ASKS, sent, &mut settles);
            }
            if settles.is_empty() && self.has_reports {
                self.has_reports = self.collect(Collect::Reports, REPORTS, sent, &mut settles);
            }
            if settles.is_empty() {
                return;
            }
            let is_ask = settles.iter().any(|(_, wanted)| wanted.settle.need > 0);
            let wait = self.wait_for(is_ask);
            let latest = self.store_clock.at_most(sent + wait);
            let clock = self.store_clock.at_most(sent).unwrap_or_else(|| self.clock.wall(sent).as_nanos() / 1_000);
            let orders: Vec<Order> =
                settles.iter().map(|(binding, wanted)| binding.order(wanted, latest, clock)).collect();
            let batch = Batch { settles, is_ask };
            self.batches += 1;
            self.on_their_way.spawn(async move {
                let results = timeout(wait.into(), store.settle(&orders)).await.ok();
                FinishedExchange::Settled { batch, sent, results }
            });
        }
    }

    /// Collects at most so many messages; limits take turns. Answers whether there may be more.
    fn collect(&mut self, what: Collect, most: usize, now: Tick, settles: &mut Vec<(Arc<Binding>, Wanted)>) -> bool {
        let (mut wanted, all) = (Vec::new(), self.bindings.len() + self.leaving.len());
        for index in (self.turn..all).chain(0..self.turn.min(all)) {
            let Some(binding) = self.bindings.iter().chain(&self.leaving).nth(index) else { continue };
            binding.limit.collect(what, most - settles.len(), now, &mut wanted);
            settles.extend(wanted.drain(..).map(|wanted| (Arc::clone(binding), wanted)));
            if settles.len() >= most {
                self.turn = index + 1;
                return true;
            }
        }
        false
    }

    /// How long an answer may take.
    fn wait_for(&self, is_ask: bool) -> Span {
        if is_ask { self.settings.deadline } else { self.settings.deadline.max(REPORTED) }
    }

    fn beat(&mut self, is_probe: bool) {
        let Some(store) = self.store.clone().filter(|_| is_probe || self.is_up()) else { return };
        let (key, member) = (members_key(&self.settings.prefix), self.member.clone());
        let (deadline, sent) = (self.settings.deadline.into(), self.clock.now());
        self.on_their_way.spawn(async move {
            let members = timeout(deadline, store.heartbeat(&key, Some(&member))).await.ok();
            FinishedExchange::Beaten { sent, is_probe, members }
        });
    }

    /// Says in the log which error has changed no mode, at most once a second.
    fn log_error(&mut self, what: &str, error: &StoreError) {
        let now = self.clock.now();
        // Not the instant of the modes' lines: an error each second would keep those back for ever.
        if self.logged_error.is_none_or(|last| now.since(last) >= LOGGED) {
            self.logged_error = Some(now);
            tracing::error!(target: "sluicegate::fleet::runner", what, %error, "fleet store");
        }
    }

    fn configure(&mut self, settings: Settings, bindings: Vec<Arc<Binding>>) {
        let old = std::mem::replace(&mut self.bindings, bindings);
        let Self { bindings, leaving, .. } = self;
        leaving.retain(|left| !bindings.iter().any(|binding| Arc::ptr_eq(&binding.limit, &left.limit)));
        for binding in &old {
            self.keep(binding);
        }
        let elsewhere = settings.endpoint != self.settings.endpoint || settings.prefix != self.settings.prefix;
        if settings.node != self.settings.node {
            // Under its old name it is counted until the others forget that.
            self.member = member_name(&settings.node, random());
        }
        self.settings = settings;
        let Settings { endpoint, deadline, on_failure, .. } = &self.settings;
        self.board.update(|status| {
            status.member.clone_from(&self.member);
            status.store = endpoint.address.clone();
            (status.deadline, status.on_failure) = (*deadline, *on_failure);
        });
        if elsewhere {
            self.known_version = None;
            // They were counted there.
            self.leaving.clear();
            for binding in &self.bindings {
                binding.limit.forget_refusals();
            }
            self.lose_connection();
            self.heard = None;
            self.circuit = Circuit::new();
            self.connect(Duration::ZERO);
        }
        self.show();
    }

    /// Keeps a limit that has been removed until the store knows what it has spent, since the others go on sharing it, and until
    /// nobody waits by it.
    fn keep(&mut self, binding: &Arc<Binding>) {
        if self.bindings.iter().chain(&self.leaving).any(|known| Arc::ptr_eq(&known.limit, &binding.limit)) {
            return;
        }
        if self.leaving.len() == MOST_LEAVING {
            let oldest = self.leaving.remove(0);
            tracing::warn!(
                target: "sluicegate::fleet::runner", limit = oldest.limit.name(),
                "fleet: what a removed limit has spent is not reported to the store"
            );
        }
        self.leaving.push(Arc::clone(binding));
    }

    /// Tells the store what is owed, and the others that this gateway is gone.
    async fn leave(mut self) {
        let Some(store) = self.store.clone().filter(|_| self.is_up()) else { return };
        let all = async {
            // Once more for keys whose last settle was on its way.
            loop {
                self.begin(Turn::All);
                if self.batches == 0 {
                    break;
                }
                while self.batches > 0 {
                    let Some(Ok(done)) = self.on_their_way.join_next().await else { break };
                    self.done(done);
                }
            }
            let _ = store.leave(&members_key(&self.settings.prefix), &self.member).await;
        };
        let _ = timeout(LEAVES, all).await;
    }
}

/// Ready when a limit has something urgent to say, and `pause` is over.
async fn urgent(bindings: &[Arc<Binding>], leaving: &[Arc<Binding>], pause: Span) {
    poll_fn(|cx| {
        for binding in bindings.iter().chain(leaving) {
            if binding.limit.listen(cx.waker()) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    })
    .await;
    if !pause.is_zero() {
        sleep(pause.into()).await;
    }
}

/// For jitter, and for names.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}
