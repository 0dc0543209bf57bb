//! The thread of a fleet without a store: the socket, the clock and the log of a [`PeerNode`].

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::identity::PeerIdentity;
use super::membership::MemberChange;
use super::node::PeerNode;
use super::seal::MAX_DATAGRAM;
use super::status::{PeerBoard, PeerRow, PeerStatus, USUAL_WAY};
use super::{PeerAddress, PeerParticipation, PeerSettings};
use crate::members::member_name;
use crate::status::Latency;
use sluicegate_telemetry::Histogram;
use sluicegate_time::{Clock, Span, Tick};

/// Addresses at which a gateway may be found are asked so often, as long as none of the members is there.
const ANNOUNCES: Duration = Duration::from_secs(1);
/// Names are asked for again so often.
const LOOKUPS: Duration = Duration::from_secs(5);
/// A socket that cannot listen is tried again so often.
const REBINDS: Duration = Duration::from_millis(200);
/// Bytes of datagrams that wait in the socket, each way: those of fifty gateways in a turn.
const BUFFERED: usize = 4 << 20;
/// Datagrams that are heard in a row, before what is due is done.
const HEARD: usize = 256;
/// A turn of the members may be so late.
const LATE: Span = Span::from_millis(50);
/// How long it may take to tell the rest when the process ends.
const LEAVES: Duration = Duration::from_millis(400);
/// The rest is told again so often meanwhile.
const LEAVING: Duration = Duration::from_millis(20);
/// Gateways that are dead are shown for so long.
const SHOWN: Span = Span::from_secs(3_600);
/// So many of them are.
const MAX_DEAD: usize = 64;

pub(super) struct PeerRunner {
    settings: PeerSettings,
    clock: Clock,
    node: PeerNode,
    /// The addresses that a name stood for the last time.
    names: BTreeMap<String, BTreeSet<SocketAddr>>,
    /// Names that stood for none the last time.
    unknown: BTreeSet<String>,
    lookups: JoinSet<(String, Result<BTreeSet<SocketAddr>, Error>)>,
    dead: BTreeMap<SocketAddr, PeerRow>,
    joined: BTreeMap<SocketAddr, Tick>,
    refused: u64,
    board: Arc<PeerBoard>,
    lag: Histogram,
}

impl PeerRunner {
    pub(super) fn new(settings: &PeerSettings, clock: Clock, lag: Histogram) -> Self {
        let incarnation = RandomState::new().build_hasher().finish().max(1);
        let board = PeerBoard::new(PeerStatus {
            member: member_name(&settings.node, incarnation as u32),
            listen: settings.listen,
            deaf: None,
            peers: Vec::new(),
            since: clock.now(),
            lag: Latency::default(),
            longest_lag: Span::from_nanos(settings.interval.as_nanos().saturating_add(USUAL_WAY.as_nanos())),
            keys: 0,
        });
        Self {
            node: PeerNode::new(settings, incarnation, &clock),
            settings: settings.clone(),
            clock,
            names: BTreeMap::new(),
            unknown: BTreeSet::new(),
            lookups: JoinSet::new(),
            dead: BTreeMap::new(),
            joined: BTreeMap::new(),
            refused: 0,
            board: Arc::new(board),
            lag,
        }
    }

    pub(super) fn board(&self) -> &Arc<PeerBoard> {
        &self.board
    }

    pub(super) async fn run(mut self, mut parts: watch::Receiver<PeerParticipation>) {
        let Some(socket) = self.listen(&mut parts).await else { return };
        // Not before: no peer could be told, and a process before this one may still tell what it hands over.
        self.node.bind(parts.borrow_and_update().1.clone());
        let mut announces = interval(ANNOUNCES);
        announces.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lookups = interval(LOOKUPS);
        lookups.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Tick::ZERO;
        loop {
            let now = self.clock.now();
            let next = (told + self.settings.interval).min(self.node.next_turn().map_or(Tick::MAX, |turn| turn + LATE));
            tokio::select! {
                changed = parts.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let (settings, bindings) = parts.borrow_and_update().clone();
                    self.settings = settings;
                    self.node.bind(bindings);
                }
                _ = socket.readable() => self.hear(&socket),
                () = sleep(next.since(now).into()) => {}
                _ = announces.tick() => self.announce(),
                _ = lookups.tick() => self.look_up(),
                Some(Ok((name, found))) = self.lookups.join_next() => self.found(name, found),
            }
            let now = self.clock.now();
            if self.node.next_turn().is_some_and(|turn| turn <= now) {
                self.node.turn_members(now);
            }
            if now >= told + self.settings.interval {
                told = now;
                self.node.tell(now);
                let lags = self.node.take_lags();
                for lag in &lags {
                    self.lag.observe(*lag);
                }
                self.board.note(self.node.traffic(), self.node.keys(), &lags, now);
            }
            self.note_changes(now);
            self.send(&socket);
        }
        let _ = timeout(LEAVES, self.tell_rest(&socket)).await;
        self.node.leave(self.clock.now());
        self.send(&socket);
    }

    /// Opens the socket; `None`: the gateway leaves the fleet before that has worked.
    async fn listen(&mut self, parts: &mut watch::Receiver<PeerParticipation>) -> Option<UdpSocket> {
        let (mut said, mut tried) = (None, 0_u32);
        loop {
            match UdpSocket::bind(self.settings.listen).await {
                Ok(socket) => {
                    // As much as the system gives: many gateways may tell something at the same instant.
                    let _ = set_socket_recv_buffer_size(&socket, BUFFERED);
                    let _ = set_socket_send_buffer_size(&socket, BUFFERED);
                    self.board.update(|status| status.deaf = None);
                    let (listen, limits) = (self.settings.listen, parts.borrow().1.len());
                    tracing::info!(target: "sluicegate::fleet::peering::runner", %listen, limits, "shared limits are told to other gateways");
                    return Some(socket);
                }
                Err(error) => {
                    let text = error.to_string();
                    // Some times more before it is an error: the process before this one may be about to end.
                    tried += 1;
                    if tried > 5 && said.as_ref() != Some(&text) {
                        tracing::error!(
                            target: "sluicegate::fleet::peering::runner", listen = %self.settings.listen, %error,
                            "[fleet] cannot listen: this gateway decides its shared limits alone, and tries again and again"
                        );
                        said = Some(text.clone());
                    }
                    self.board.update(|status| status.deaf = Some(text));
                }
            }
            tokio::select! {
                () = sleep(REBINDS) => {}
                changed = parts.changed() => self.settings = changed.ok().map(|()| parts.borrow_and_update().0.clone())?,
            }
        }
    }

    /// Takes in what has come, some at once.
    fn hear(&mut self, socket: &UdpSocket) {
        // One byte more than any that is taken in: so one that is too long is seen to be.
        let mut bytes = [0; MAX_DATAGRAM + 1];
        for _ in 0..HEARD {
            match socket.try_recv_from(&mut bytes) {
                Ok((length, _)) => self.node.arrive(&bytes[..length], self.clock.now()),
                Err(_) => break,
            }
        }
    }

    /// Datagrams that the socket does not take are lost, as on the way: counts are told again.
    fn send(&mut self, socket: &UdpSocket) {
        for (to, bytes) in self.node.take_outgoing() {
            let _ = socket.try_send_to(&bytes, to);
        }
    }

    fn announce(&mut self) {
        let now = self.clock.now();
        let fixed = self.settings.peers.iter().filter_map(|peer| match peer {
            PeerAddress::Fixed(address) => Some(*address),
            PeerAddress::Dns { .. } => None,
        });
        let known = self.node.living().map(|member| member.address);
        let all: BTreeSet<_> = fixed.chain(self.names.values().flatten().copied()).chain(known).collect();
        for address in all {
            self.node.announce_to(address, now);
        }
    }

    /// Asks for the addresses of names, each with the port.
    fn look_up(&mut self) {
        let names: Vec<_> = self.settings.peers.iter().filter_map(named).collect();
        self.names.retain(|name, _| names.iter().any(|(own, ..)| own == name));
        if !self.lookups.is_empty() {
            return;
        }
        for (name, host, port) in names {
            self.lookups.spawn(async move {
                let found = match timeout(LOOKUPS, lookup_host((host, port))).await {
                    Ok(found) => found.map(Iterator::collect),
                    Err(_) => Err(ErrorKind::TimedOut.into()),
                };
                (name, found)
            });
        }
    }

    /// A name that stands for nothing any more keeps its addresses: a server of names that fails does not part gateways.
    fn found(&mut self, name: String, found: Result<BTreeSet<SocketAddr>, Error>) {
        let is_v4 = self.settings.listen.is_ipv4();
        let found = found.map(|all| all.into_iter().filter(|own| own.is_ipv4() == is_v4).collect::<BTreeSet<_>>());
        match found {
            Ok(all) if !all.is_empty() => {
                self.unknown.remove(&name);
                if self.names.insert(name, all).is_none() {
                    self.announce();
                }
            }
            other => {
                if self.unknown.insert(name.clone()) {
                    let error =
                        other.err().map_or_else(|| "it has no such address".to_owned(), |error| error.to_string());
                    tracing::warn!(target: "sluicegate::fleet::peering::runner", name, error, "[fleet] peers: the name has no address: gateways are not found by it");
                }
            }
        }
    }

    /// Says and shows who has come and gone.
    fn note_changes(&mut self, now: Tick) {
        let changes = self.node.take_changes();
        let has_old = self.dead.values().any(|row| now.since(row.since) >= SHOWN);
        if changes.is_empty() && !has_old {
            return;
        }
        let gateways = self.node.living().count() + 1;
        for change in changes {
            match change {
                MemberChange::Up(member) => {
                    self.dead.remove(&member.address);
                    self.joined.insert(member.address, now);
                    let PeerIdentity { node, address, .. } = member;
                    tracing::info!(target: "sluicegate::fleet::peering::runner", gateway = %node, %address, gateways, "a gateway has joined: it is told what is spent here");
                }
                MemberChange::Renewed(member) => {
                    tracing::debug!(target: "sluicegate::fleet::peering::runner", gateway = %member.node, address = %member.address, "a gateway has begun anew");
                }
                MemberChange::Left(PeerIdentity { node, address, .. }) => {
                    self.joined.remove(&address);
                    tracing::info!(
                        target: "sluicegate::fleet::peering::runner",
                        gateway = %node, %address, gateways, "a gateway has left: what it has spent is counted here"
                    );
                }
                MemberChange::Down(member) => {
                    self.joined.remove(&member.address);
                    let PeerIdentity { node, address, .. } = member;
                    tracing::warn!(
                        target: "sluicegate::fleet::peering::runner", gateway = %node, %address, gateways,
                        "a gateway does not answer: what it admits is not counted here until it is back"
                    );
                    let row = PeerRow { node: node.to_string(), address, is_alive: false, since: now };
                    self.dead.insert(address, row);
                }
            }
        }
        self.dead.retain(|_, row| now.since(row.since) < SHOWN);
        while self.dead.len() > MAX_DEAD {
            self.dead.pop_first();
        }
        let refused = self.node.refused_peers();
        if refused > self.refused {
            self.refused = refused;
            tracing::error!(target: "sluicegate::fleet::peering::runner", "there are too many gateways for `peers`: some count for themselves; use a store instead");
        }
        let living = self.node.living().map(|member| PeerRow {
            node: member.node.to_string(),
            address: member.address,
            is_alive: true,
            since: self.joined.get(&member.address).copied().unwrap_or(now),
        });
        let peers: Vec<_> = living.chain(self.dead.values().cloned()).collect();
        self.board.update(|status| {
            let before = status.gateways();
            status.peers = peers;
            if status.gateways() != before {
                status.since = now;
            }
        });
    }

    /// Tells the rest until all know it.
    async fn tell_rest(&mut self, socket: &UdpSocket) {
        self.node.tell(self.clock.now());
        self.send(socket);
        while !self.node.is_told() {
            sleep(LEAVING).await;
            self.hear(socket);
            self.node.tell(self.clock.now());
            self.send(socket);
        }
    }
}

/// A name of which addresses are asked for, with its host and its port.
fn named(peer: &PeerAddress) -> Option<(String, String, u16)> {
    match peer {
        PeerAddress::Fixed(_) => None,
        PeerAddress::Dns { host, port } => Some((peer.to_string(), host.clone(), *port)),
    }
}
