//! The thread of a fleet: it collects what the limits have to say, carries it to the store, and brings the answers back.

mod ended;
mod finding;
mod link;
mod looking;
mod sending;

use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::members::{HEARTBEAT, Living, Members, STAYS, member_name, members_key};
use super::notices::{Hears, LOOKS, Notices};
use super::status::{Board, Mode, NodeStatus, Status};
use super::store::{Address, Store, StoreError};
use super::{Binding, Settings};
use finding::{AwayParts, Finder, FoundParts, SlotOwners};
use link::Link;
use looking::Looked;
use sluicegate_limiter::{FleetView, LEASE_HOLD, Turn, Wanted};
use sluicegate_telemetry::Histogram;
use sluicegate_time::{Clock, Span, Tick};

/// The most settles of a batch for which requests wait.
const ASKS: usize = 128;
/// The most of one for which nobody does. A settle takes the store some tens of microseconds, one after the other for all
/// gateways: what is asked behind many reports would be late.
const REPORTS: usize = 16;
/// Batches on their way to a server at once, for the same reason.
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
/// So many servers that are away beside others have lines in the log.
const SAID_AWAY: usize = 8;
/// Log lines about the store are so far apart.
const LOGGED: Span = Span::from_secs(1);
/// How long what is owed may take to be told when the process ends.
const LEAVES: Duration = Duration::from_millis(450);
/// And the others, that this gateway is gone.
const GOES: Duration = Duration::from_millis(50);

/// How the gateway takes part. When its sender goes, the gateway leaves the fleet.
pub(super) type Participation = (Settings, Vec<Arc<Binding>>);

/// An exchange that has ended.
enum FinishedExchange {
    Connected { link: u32, connected: Result<Store, StoreError> },
    Settled { link: u32, batch: Batch, sent: Tick, results: Option<Vec<Result<Vec<i64>, StoreError>>> },
    Beaten { link: u32, sent: Tick, is_probe: bool, members: Option<Result<Members, StoreError>> },
    Looked(Box<Looked>),
    Found(Box<FoundParts>),
}

/// Settles that are sent together.
struct Batch {
    settles: Vec<(Arc<Binding>, Wanted)>,
    /// Requests wait for the answer.
    is_ask: bool,
    /// When it was sent for the first time.
    first: Tick,
    /// How often another node was said to have the keys.
    hops: u32,
}

/// The state of the thread.
pub(super) struct Runner {
    settings: Settings,
    bindings: Vec<Arc<Binding>>,
    /// Limits that have been removed, and still have something to say or somebody who waits.
    leaving: Vec<Arc<Binding>>,
    member: String,
    clock: Clock,
    finder: Finder,
    /// The servers of the store.
    links: Vec<Link>,
    owners: SlotOwners,
    /// The parts that the limits know to be away.
    shown_away: Option<Arc<AwayParts>>,
    /// The first connections are being made, for no longer than an answer may take: requests wait for them.
    is_starting: bool,
    /// Whether limits may have something to send: for which requests wait, and other.
    has_asks: bool,
    has_reports: bool,
    /// The limit from which is collected first.
    turn: usize,
    on_their_way: JoinSet<FinishedExchange>,
    last_batch: Tick,
    /// When the store last heard of this gateway, and since when without a break.
    heard: Option<(Tick, Tick)>,
    living: Living,
    was_up: bool,
    /// The mode that the log knows, and the servers that are away beside others.
    said_up: bool,
    said_away: Vec<Address>,
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
            store: settings.place(),
            nodes: Vec::new(),
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
            finder: Finder::default(),
            links: Vec::new(),
            owners: None,
            shown_away: None,
            is_starting: true,
            has_asks: false,
            has_reports: false,
            turn: 0,
            on_their_way: JoinSet::new(),
            last_batch: Tick::ZERO,
            heard: None,
            living: Living::default(),
            // So that a store that is away at the start is told as a change.
            was_up: true,
            said_up: true,
            said_away: Vec::new(),
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
        self.start_finding();
        let first = sleep(self.settings.deadline.into());
        tokio::pin!(first);
        loop {
            let now = self.clock.now();
            let probe = self.next_probe(now);
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
                    self.find_in_time();
                    self.show();
                    self.say_mode();
                }
                _ = beats.tick() => self.beat_all(),
                _ = looks.tick() => self.look(),
                () = notices.is_told() => self.look(),
                Some(done) = self.on_their_way.join_next() => {
                    if let Ok(done) = done {
                        self.done(done);
                    }
                }
                () = sleep(probe.unwrap_or_default().into()), if probe.is_some() => self.probe(),
                () = &mut first, if self.is_starting => {
                    self.is_starting = false;
                    self.show();
                }
            }
        }
    }

    /// Whether the store is asked, or a part of it.
    fn is_up(&self) -> bool {
        self.links.iter().any(Link::is_up)
    }

    /// Tells the limits how the fleet stands.
    fn show(&mut self) {
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
        let away = self.away();
        if away.as_ref() != self.shown_away.as_deref() {
            self.shown_away = away.map(Arc::new);
            self.show_away();
        }
        let mode = match (self.is_up(), self.is_starting) {
            (true, _) => Mode::Shared,
            (false, true) => Mode::Starting,
            (false, false) => Mode::Alone,
        };
        let slots = self.slots_of_links();
        let node = |(link, slots): (&Link, &u16)| NodeStatus {
            address: link.endpoint.address.clone(),
            slots: *slots,
            server: link.store.as_ref().map(|store| store.server().clone()),
            circuit: link.circuit.state(),
            lost: link.lost.clone(),
        };
        let nodes = self.links.iter().zip(&slots).map(node).collect();
        self.board.update(|status| {
            if mode != status.mode {
                (status.mode, status.since) = (mode, now);
            }
            (status.gateways, status.is_known) = (view.live, is_known);
            status.nodes = nodes;
        });
    }

    /// Tells the limits which of their keys lie in parts that are away.
    fn show_away(&self) {
        for binding in self.bindings.iter().chain(&self.leaving) {
            binding.limit.set_away(self.shown_away.as_ref().map(|away| away.keys(binding)));
        }
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
        let is_away = |(link, slots): &(&Link, u16)| is_up && *slots > 0 && !link.is_up() && !link.is_new;
        let away = self.links.iter().zip(self.slots_of_links()).filter(is_away).take(SAID_AWAY);
        let away: Vec<Address> = away.map(|(link, _)| link.endpoint.address.clone()).collect();
        let is_same = is_up == self.said_up && away == self.said_away;
        if is_same || self.is_starting || self.logged.is_some_and(|last| now.since(last) < LOGGED) {
            return;
        }
        self.logged = Some(now);
        let was_up = std::mem::replace(&mut self.said_up, is_up);
        let were_away = std::mem::replace(&mut self.said_away, away);
        if was_up && is_up {
            self.say_away(&were_away);
            return;
        }
        let more = std::mem::take(&mut self.unsaid).saturating_sub(1);
        let (store, live) = (self.settings.place(), self.living.count());
        if is_up {
            tracing::info!(target: "sluicegate::fleet::runner", %store, gateways = live, more, "fleet store answers; shared limits are shared again");
            return;
        }
        let on_failure = self.settings.on_failure.word();
        let error = self.board.status().lost.map(|lost| lost.to_string()).unwrap_or_default();
        tracing::warn!(target: "sluicegate::fleet::runner", %store, on_failure, more, error, "fleet store lost; each gateway decides alone");
    }

    /// Says in the log which servers are away beside others, and which are back.
    fn say_away(&self, were_away: &[Address]) {
        for link in self.links.iter().filter(|link| self.said_away.contains(&link.endpoint.address)) {
            let (node, on_failure) = (&link.endpoint.address, self.settings.on_failure.word());
            if !were_away.contains(node) {
                let error = link.lost.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(target: "sluicegate::fleet::runner", %node, on_failure, error, "a part of the fleet store is lost; its keys are decided by each gateway alone");
            }
        }
        for node in were_away.iter().filter(|node| !self.said_away.contains(node)) {
            tracing::info!(target: "sluicegate::fleet::runner", %node, "a part of the fleet store answers again, or others have its keys");
        }
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
        let elsewhere = !settings.is_same_store(&self.settings);
        let is_found_elsewhere = settings.deployment != self.settings.deployment;
        if settings.node != self.settings.node {
            // Under its old name it is counted until the others forget that.
            self.member = member_name(&settings.node, random());
        }
        self.settings = settings;
        let Settings { deadline, on_failure, .. } = &self.settings;
        self.board.update(|status| {
            status.member.clone_from(&self.member);
            status.store = self.settings.place();
            (status.deadline, status.on_failure) = (*deadline, *on_failure);
        });
        if elsewhere {
            self.known_version = None;
            // They were counted there.
            self.leaving.clear();
            for binding in &self.bindings {
                binding.limit.forget_refusals();
            }
            self.heard = None;
            self.start_finding();
        } else if is_found_elsewhere {
            self.find_by_others();
        }
        self.show();
        self.show_away();
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
        if !self.is_up() {
            return;
        }
        let reports = async {
            // Once more for keys whose last settle was on its way.
            loop {
                self.begin(Turn::All);
                if !self.has_batches() {
                    break;
                }
                while self.has_batches() {
                    let Some(Ok(done)) = self.on_their_way.join_next().await else { break };
                    self.done(done);
                }
            }
        };
        let _ = timeout(LEAVES, reports).await;
        let members = members_key(&self.settings.prefix);
        let owner = self.owner_of(&members).and_then(|owner| self.links.get(owner));
        if let Some(store) = owner.and_then(|owner| owner.store.clone()) {
            let _ = timeout(GOES, store.leave(&members, &self.member)).await;
        }
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
