//! A gateway among its peers, without the network: bytes come and go, and time is an argument.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::identity::PeerIdentity;
use super::membership::{MemberChange, Membership};
use super::seal::{Contents, DatagramSeal, DropReason, MAX_CARRIED, OpenedDatagram};
use super::{PeerBinding, PeerSettings};
use sluicegate_limiter::{Fingerprint, PeerDebt, PeerSpends};
use sluicegate_peers::{
    BoundHits, CountKey, Datagram, LedgerSettings, PeerEvent, PeerId, Received, ReplayWindow, SpendLedger,
};
use sluicegate_time::{Clock, Span, Tick};

/// A fleet has at most so many other gateways.
const MAX_PEERS: usize = 63;
/// Keys of which this gateway knows what was spent, at most, over all limits.
const MAX_KEYS: usize = 100_000;
/// Datagrams to a peer in a turn: with the default interval 960 KB a second.
const MOST_DATAGRAMS: usize = 16;
/// Keys that are looked at in a turn to tell those that charge most, over all peers, and of each at least.
const LOOKED_AT: usize = 8_192;
const LEAST_LOOKED_AT: usize = 512;
/// Keys that are looked at in a turn to forget those that mean nothing any more.
const TIDIED: usize = 256;
/// A count that is not acknowledged is told again after so long, at least: longer than the way there and back, as far as gateways of
/// one fleet lie apart.
const RESENDS: Span = Span::from_millis(120);
/// A spend that is heard so late is charged in full.
const GRACE: Span = Span::from_secs(1);
/// A process that begins hears within this time all that was spent before.
const HEARD_AGAIN: Span = Span::from_secs(10);
/// Lives of gateways whose numbers are kept, to drop what was there before.
const MAX_LIVES: usize = 256;
/// Receivers whose numbers are kept.
const MAX_RECEIVERS: usize = 256;

/// Figures of what comes and goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// Datagrams that were sent.
    pub sent: u64,
    /// And their bytes.
    pub sent_bytes: u64,
    /// Datagrams that were taken in.
    pub received: u64,
    /// And their bytes.
    pub received_bytes: u64,
    /// Datagrams that were dropped, by [`DropReason`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Cost that was admitted here and that the others will not hear of, or not all of them.
    pub untold: u64,
    /// Keys that took the place of others, since there were too many.
    pub evicted: u64,
}

/// A gateway among its peers.
pub(super) struct PeerNode {
    own: SocketAddr,
    clock: Clock,
    seal: DatagramSeal,
    membership: Membership,
    ledger: SpendLedger,
    bindings: Vec<Arc<PeerBinding>>,
    /// The binding and the rate of each number.
    by_number: HashMap<u64, (usize, usize)>,
    /// Where peers have been.
    places: HashMap<SocketAddr, PeerId>,
    next_place: u32,
    /// The peers that live, and the address of each by its incarnation.
    living: BTreeMap<SocketAddr, PeerIdentity>,
    by_incarnation: HashMap<u64, SocketAddr>,
    /// The numbers that have come from each life, and when the last one did.
    windows: HashMap<u64, (ReplayWindow, Tick)>,
    /// The last number that was sent to each address, and the highest of all.
    numbers: HashMap<SocketAddr, u64>,
    highest: u64,
    outgoing: Vec<(SocketAddr, Vec<u8>)>,
    changes: Vec<MemberChange>,
    /// How long counts took to be acknowledged.
    lags: Vec<Span>,
    /// When the peers were told the last time, and how often they were.
    told_at: Tick,
    turns: usize,
    /// Until then limits whose keys are those of a process before are told what that had heard.
    heirs_until: Tick,
    traffic: PeerTraffic,
    spends: PeerSpends,
}

impl PeerNode {
    pub(super) fn new(settings: &PeerSettings, incarnation: u64, clock: &Clock) -> Self {
        let own = settings.listen;
        let ledger = LedgerSettings {
            max_keys: MAX_KEYS,
            max_leftovers: MAX_KEYS / 10,
            max_peers: MAX_PEERS,
            resend_after: RESENDS.max(Span::from_nanos(settings.interval.as_nanos().saturating_mul(2))),
            grace: GRACE.max(Span::from_nanos(settings.interval.as_nanos().saturating_mul(10))),
        };
        Self {
            own,
            clock: clock.clone(),
            seal: DatagramSeal::new(&settings.secrets),
            membership: Membership::new(PeerIdentity::new(own, &settings.node, incarnation, clock.wall_now())),
            ledger: SpendLedger::new(ledger, [], incarnation),
            bindings: Vec::new(),
            by_number: HashMap::new(),
            places: HashMap::new(),
            next_place: 0,
            living: BTreeMap::new(),
            by_incarnation: HashMap::new(),
            windows: HashMap::new(),
            numbers: HashMap::new(),
            highest: 0,
            outgoing: Vec::new(),
            changes: Vec::new(),
            lags: Vec::new(),
            heirs_until: clock.now() + HEARD_AGAIN,
            told_at: clock.now(),
            turns: 0,
            traffic: PeerTraffic::default(),
            spends: PeerSpends::default(),
        }
    }

    /// The limits that are shared from now on. Those that are so no more are told no longer.
    pub(super) fn bind(&mut self, bindings: Vec<Arc<PeerBinding>>) {
        let kept: HashSet<_> = bindings.iter().map(|binding| Arc::as_ptr(&binding.limit)).collect();
        for binding in self.bindings.iter().filter(|binding| !kept.contains(&Arc::as_ptr(&binding.limit))) {
            binding.limit.tell_peers(false);
        }
        for binding in &bindings {
            binding.limit.tell_peers(true);
        }
        self.bindings = bindings;
        let numbered = |(index, binding): (usize, &Arc<PeerBinding>)| {
            let rates = binding.rates.iter().enumerate();
            rates.map(|(rate, (number, _))| (*number, (index, rate))).collect::<Vec<_>>()
        };
        self.by_number = self.bindings.iter().enumerate().flat_map(numbered).collect();
        self.ledger.set_limits(self.bindings.iter().flat_map(|binding| binding.rates.iter().copied()));
    }

    /// The peers that live.
    pub(super) fn living(&self) -> impl Iterator<Item = &PeerIdentity> {
        self.living.values()
    }

    pub(super) fn traffic(&self) -> PeerTraffic {
        let BoundHits { evicted, untold, .. } = self.ledger.bound_hits();
        PeerTraffic { untold: self.traffic.untold.saturating_add(untold), evicted, ..self.traffic }
    }

    /// Keys of which something is known.
    pub(super) fn keys(&self) -> usize {
        self.ledger.len()
    }

    /// A datagram has come.
    pub(super) fn arrive(&mut self, bytes: &[u8], now: Tick) {
        match self.take_in(bytes, now) {
            Ok(()) => {
                self.traffic.received += 1;
                self.traffic.received_bytes += bytes.len() as u64;
            }
            Err(reason) => self.traffic.dropped[reason as usize] += 1,
        }
        self.hear_members();
    }

    fn take_in(&mut self, bytes: &[u8], now: Tick) -> Result<(), DropReason> {
        let OpenedDatagram { contents, sender, receiver, number, carried } = self.seal.open(self.own, bytes)?;
        // For a life before this one: the sender does not know yet that it is over, or it was caught then.
        if contents == Contents::Counts && receiver != self.ledger.incarnation() {
            return Err(DropReason::Stranger);
        }
        if sender == self.ledger.incarnation() || !self.window_of(sender, now).accept(number) {
            return Err(DropReason::Replayed);
        }
        match contents {
            Contents::Members => {
                let is_read = self.membership.hear(carried, (now, self.clock.wall(now)));
                if is_read { Ok(()) } else { Err(DropReason::Malformed) }
            }
            Contents::Counts => {
                let datagram = Datagram::decode(carried).map_err(|_| DropReason::Malformed)?;
                let peer = self.by_incarnation.get(&sender).and_then(|address| self.place_of(*address));
                let Some(peer) = peer.filter(|_| datagram.incarnation == sender) else {
                    return Err(DropReason::Stranger);
                };
                self.hear_counts(peer, &datagram, now)
            }
        }
    }

    fn hear_counts(&mut self, peer: PeerId, datagram: &Datagram, now: Tick) -> Result<(), DropReason> {
        let has_evicted = self.ledger.bound_hits().evicted > 0;
        let Self { ledger, bindings, by_number, lags, heirs_until, .. } = self;
        let received = ledger.receive(peer, datagram, now, |event| match event {
            PeerEvent::Charged { key, cost, within, is_first } => {
                let binding = by_number.get(&key.limit).and_then(|(index, rate)| Some((bindings.get(*index)?, *rate)));
                if let (Some((binding, rate)), Some(key)) = (binding, Fingerprint::known(key.fingerprint)) {
                    // One whose count was forgotten here tells all of it again.
                    let is_heir = now < *heirs_until && binding.limit.has_taken_over();
                    let may_be_counted = is_first && (is_heir || has_evicted);
                    binding.limit.owe(key, rate, PeerDebt { cost, within, may_be_counted }, now);
                }
            }
            PeerEvent::Acknowledged { since } => lags.push(now.since(since)),
        });
        match received {
            Received::Applied => Ok(()),
            Received::Repeated => Err(DropReason::Replayed),
            Received::Stranger => Err(DropReason::Stranger),
        }
    }

    /// The numbers of a life, of which the one that was silent longest gives its place up.
    fn window_of(&mut self, sender: u64, now: Tick) -> &mut ReplayWindow {
        if self.windows.len() >= MAX_LIVES && !self.windows.contains_key(&sender) {
            let oldest = self.windows.iter().min_by_key(|(_, (_, at))| *at).map(|(sender, _)| *sender);
            oldest.map(|oldest| self.windows.remove(&oldest));
        }
        let (window, at) = self.windows.entry(sender).or_default();
        *at = now;
        window
    }

    /// Asks a gateway to take this one in, unless it lives already.
    pub(super) fn announce_to(&mut self, address: SocketAddr, now: Tick) {
        if address != self.own && !(self.membership.is_joined() && self.living.contains_key(&address)) {
            self.membership.announce_to(address, now);
            self.hear_members();
        }
    }

    /// Does what is due among the members.
    pub(super) fn turn_members(&mut self, now: Tick) {
        self.membership.turn((now, self.clock.wall(now)));
        self.hear_members();
    }

    /// When something is due among the members.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        self.membership.next_turn()
    }

    /// Takes what the limits have spent, and tells each peer what it does not know.
    pub(super) fn tell(&mut self, now: Tick) {
        let since = std::mem::replace(&mut self.told_at, now);
        for binding in &self.bindings {
            binding.limit.take_spends(&mut self.spends);
            self.traffic.untold += std::mem::take(&mut self.spends.lost);
            // One that is spent again and again is counted once.
            self.spends.spends.sort_unstable_by_key(|(key, _)| key.bits());
            for same in self.spends.spends.chunk_by(|(one, _), (other, _)| one == other) {
                let cost = same.iter().fold(0_u64, |sum, (_, cost)| sum.saturating_add(*cost));
                for (number, _) in &binding.rates {
                    self.ledger.spend(CountKey::new(*number, same[0].0.bits()), cost, (since, now));
                }
            }
            self.spends.spends.clear();
        }
        self.ledger.tidy(now, TIDIED);
        let mut peers: Vec<_> = self.living.keys().copied().collect();
        // A socket that is full loses those of another peer each time.
        self.turns = self.turns.wrapping_add(1);
        let first = self.turns % peers.len().max(1);
        peers.rotate_left(first);
        let looked_at = (LOOKED_AT / peers.len().max(1)).max(LEAST_LOOKED_AT);
        for address in peers {
            let Some(peer) = self.place_of(address) else { continue };
            for datagram in self.ledger.outgoing(peer, now, MAX_CARRIED, (MOST_DATAGRAMS, looked_at)) {
                self.send(address, Contents::Counts, &datagram.encode());
            }
        }
    }

    /// Members that are beyond the bound, ever: they count for themselves.
    pub(super) fn refused_peers(&self) -> u64 {
        self.ledger.bound_hits().peers
    }

    /// Whether each peer that lives knows all that it is to know.
    pub(super) fn is_told(&self) -> bool {
        self.ledger.is_settled()
    }

    /// Says that this gateway goes.
    pub(super) fn leave(&mut self, now: Tick) {
        self.membership.leave(now);
        self.hear_members();
    }

    /// The datagrams that are to be sent.
    pub(super) fn take_outgoing(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.outgoing)
    }

    /// The members that came and went.
    pub(super) fn take_changes(&mut self) -> Vec<MemberChange> {
        std::mem::take(&mut self.changes)
    }

    /// How long counts took from when they were spent until they were acknowledged.
    pub(super) fn take_lags(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.lags)
    }

    /// Sends messages about members, and tells the ledger who came and went.
    fn hear_members(&mut self) {
        let (messages, changes) = self.membership.take();
        for (to, message) in messages {
            self.send(to, Contents::Members, &message);
        }
        for change in changes {
            match &change {
                MemberChange::Up(member) => self.join(member),
                MemberChange::Renewed(member) if self.living.contains_key(&member.address) => self.join(member),
                MemberChange::Renewed(_) => continue,
                MemberChange::Down(member) | MemberChange::Left(member) => self.forget(member.address),
            }
            self.changes.push(change);
        }
    }

    fn join(&mut self, member: &PeerIdentity) {
        let before = self.living.insert(member.address, member.clone());
        if let Some(before) = before.filter(|before| before.incarnation != member.incarnation) {
            self.by_incarnation.remove(&before.incarnation);
        }
        self.by_incarnation.insert(member.incarnation, member.address);
        if self.places.len() >= MAX_RECEIVERS {
            let living = &self.living;
            self.places.retain(|address, _| living.contains_key(address));
        }
        let place = *self.places.entry(member.address).or_insert_with(|| {
            self.next_place = self.next_place.wrapping_add(1);
            PeerId(self.next_place)
        });
        // Beyond the bound it is a member that counts for itself; the runner says so.
        self.ledger.peer_joined(place, member.incarnation, self.clock.now());
    }

    fn forget(&mut self, address: SocketAddr) {
        if let Some(member) = self.living.remove(&address) {
            self.by_incarnation.remove(&member.incarnation);
        }
        if let Some(place) = self.place_of(address) {
            self.ledger.peer_gone(place);
        }
        // One that was beyond the bound may have its place.
        if self.refused_peers() > 0 {
            let living: Vec<_> = self.living.values().cloned().collect();
            for member in &living {
                self.join(member);
            }
        }
    }

    fn place_of(&self, address: SocketAddr) -> Option<PeerId> {
        self.places.get(&address).copied()
    }

    fn send(&mut self, to: SocketAddr, contents: Contents, carried: &[u8]) {
        if self.numbers.len() >= MAX_RECEIVERS && !self.numbers.contains_key(&to) {
            // They begin above all that was sent to one of them.
            self.numbers.clear();
        }
        let number = self.numbers.entry(to).or_insert(self.highest);
        *number += 1;
        self.highest = self.highest.max(*number);
        // A gateway that asks to be taken in does not know the life of the other one.
        let life = self.living.get(&to).filter(|_| contents == Contents::Counts).map_or(0, |member| member.incarnation);
        let bytes = self.seal.seal((self.ledger.incarnation(), to, life), contents, *number, carried);
        self.traffic.sent += 1;
        self.traffic.sent_bytes += bytes.len() as u64;
        self.outgoing.push((to, bytes));
    }
}

impl Drop for PeerNode {
    fn drop(&mut self) {
        self.bind(Vec::new());
    }
}
