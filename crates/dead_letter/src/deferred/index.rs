//! The deferred requests of a directory, in memory: where each is, how it fares, and whether there is room for another. Pure.
//!
//! Bounds: at most `max_requests` requests and `max_bytes` bytes are pending, and a client has at most as many of both as it
//! leaves to others. A request that has its fate stays until it is `max_age` old; segments that go before that take it along.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::line::{DeferredFate, Ended, Totals};
use super::request::{Shown, sharer};
use sluicegate_time::{Span, Tick};

/// The bounds of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBounds {
    /// Requests that are pending.
    pub max_requests: u64,
    /// Bytes of them.
    pub max_bytes: u64,
    /// The time after which a request that nobody took is given up, and after which the fate of one is forgotten.
    pub max_age: Span,
}

/// Where a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinePosition {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// A request that is pending, for the task that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its id.
    pub id: u128,
    /// Requests with the same one, and of the same client, go one after the other.
    pub order: u64,
    /// Before then there is no room for it.
    pub not_before: Tick,
    /// Its client: an IPv6 network of 64 bits is one.
    pub client: IpAddr,
    /// A number for its route.
    pub route: u32,
}

impl Ticket {
    pub(super) fn new(id: u128, shown: &Shown, not_before: Tick) -> Self {
        let Shown { route, client, order, .. } = shown;
        Self { id, order: *order, not_before, client: sharer(*client), route: crc32c::crc32c(route.as_bytes()) }
    }
}

/// The component that owns a pending request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    /// Nobody.
    Free,
    /// The task that sends it.
    UnderWay,
    /// The writer, which ends it.
    Ending,
}

/// One deferred request.
#[derive(Clone, Debug)]
pub(super) struct DeferredEntry {
    pub(super) order: u64,
    pub(super) accepted: Tick,
    pub(super) place: LinePosition,
    /// How it ended, and where its answer is; `None`: it is pending.
    pub(super) ended: Option<(Ended, Option<LinePosition>)>,
    /// How often it was sent, and the status of the last answer; of this process alone.
    pub(super) tried: (u32, Option<u16>),
    number: u64,
    client: IpAddr,
    /// As the bounds count it.
    bytes: u64,
    hand: Hand,
}

/// The share of a client.
#[derive(Clone, Copy, Debug, Default)]
struct ClientShare {
    requests: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Segment {
    bytes: u64,
    /// Requests whose lines are here.
    ids: Vec<u128>,
    pending: usize,
    /// When the last of them had its fate.
    last: Tick,
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) entries: HashMap<u128, DeferredEntry>,
    /// By the order in which they came.
    pending: BTreeMap<u64, u128>,
    segments: BTreeMap<u64, Segment>,
    shares: HashMap<IpAddr, ClientShare>,
    /// Of all that are pending, or about to be.
    held: ClientShare,
    /// Bytes of the lines of those that are pending.
    written: u64,
    totals: Totals,
    next_number: u64,
    /// Pending ones that the task that sends has not been told of.
    fresh: Vec<Ticket>,
    /// Orders and clients of which a request was ended otherwise than by being sent.
    woken: Vec<(u64, IpAddr)>,
}

/// Room that is taken for a request which is not kept yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reserved {
    client: IpAddr,
    bytes: u64,
}

impl Index {
    /// Takes room for a request of this client; `None`: there is none.
    pub(super) fn reserve(&mut self, client: IpAddr, bytes: u64, room: &StoreBounds) -> Option<Reserved> {
        let client = sharer(client);
        self.has_room(client, bytes, room).then(|| {
            self.hold(client, bytes);
            Reserved { client, bytes }
        })
    }

    /// Whether there is room for a request of this client.
    pub(super) fn has_room(&self, client: IpAddr, bytes: u64, room: &StoreBounds) -> bool {
        let own = self.shares.get(&sharer(client)).copied().unwrap_or_default();
        let free = ClientShare {
            requests: room.max_requests.saturating_sub(self.held.requests),
            bytes: room.max_bytes.saturating_sub(self.held.bytes),
        };
        // No client has more than it leaves to others.
        own.requests < free.requests && own.bytes + bytes <= free.bytes.saturating_sub(bytes)
    }

    /// Gives room back.
    pub(super) fn release(&mut self, reserved: &Reserved) {
        self.let_go(reserved.client, reserved.bytes);
    }

    /// A request is kept, in the room that was taken for it.
    pub(super) fn accept(&mut self, ticket: Ticket, place: LinePosition, reserved: &Reserved, now: Tick) {
        self.totals.deferred += 1;
        self.insert(ticket, reserved.bytes, place, now);
    }

    /// A segment that was found, or begun, before its lines.
    pub(super) fn begin(&mut self, segment: u64) {
        self.segments.entry(segment).or_default();
    }

    /// The first line of a segment was found; that of the first segment tells what there was before.
    pub(super) fn found_begin(&mut self, segment: u64, totals: &Totals) {
        if self.segments.keys().next() == Some(&segment) && self.entries.is_empty() {
            self.totals = *totals;
        }
    }

    /// A request was found.
    pub(super) fn found_request(&mut self, id: u128, shown: &Shown, place: LinePosition, is_copy: bool, at: Tick) {
        if self.entries.contains_key(&id) {
            return self.moved(id, place);
        }
        // A copy was counted where it was first.
        if !is_copy {
            self.totals.deferred += 1;
        }
        let client = sharer(shown.client);
        self.hold(client, u64::from(place.length));
        self.insert(Ticket::new(id, shown, Tick::ZERO), u64::from(place.length), place, at);
    }

    /// The end of a request was found, or written.
    pub(super) fn end(&mut self, id: u128, ended: Ended, answer: Option<LinePosition>) {
        let Some(entry) = self.entries.get_mut(&id) else {
            // Its request went with an earlier segment.
            return self.totals.count(ended.fate);
        };
        if entry.ended.is_some() {
            return;
        }
        let (segment, number, client, bytes, at) =
            (entry.place.segment, entry.number, entry.client, entry.bytes, ended.at);
        self.totals.count(ended.fate);
        entry.ended = Some((ended, answer));
        self.written -= u64::from(entry.place.length);
        self.pending.remove(&number);
        self.let_go(client, bytes);
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.pending -= 1;
            segment.last = segment.last.max(at);
        }
    }

    /// The line of a request is at another place from now on.
    pub(super) fn moved(&mut self, id: u128, place: LinePosition) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let LinePosition { segment: old, length, .. } = std::mem::replace(&mut entry.place, place);
        let is_pending = usize::from(entry.ended.is_none());
        if entry.ended.is_none() {
            self.written = self.written - u64::from(length) + u64::from(place.length);
        }
        if let Some(segment) = self.segments.get_mut(&old) {
            segment.pending -= is_pending;
        }
        let segment = self.segments.entry(place.segment).or_default();
        segment.ids.push(id);
        segment.pending += is_pending;
    }

    /// So many bytes were added to a segment.
    pub(super) fn grew(&mut self, segment: u64, bytes: u64) {
        self.segments.entry(segment).or_default().bytes += bytes;
    }

    /// Whether nothing in a segment is pending.
    pub(super) fn may_go(&self, segment: u64) -> bool {
        self.segments.get(&segment).is_none_or(|segment| segment.pending == 0)
    }

    /// Forgets a segment, and what is in it. Nothing in it is pending.
    pub(super) fn forget(&mut self, segment: u64) {
        let gone = self.segments.remove(&segment);
        for id in gone.into_iter().flat_map(|segment| segment.ids) {
            // Those that were moved stay.
            if self.entries.get(&id).is_some_and(|entry| entry.place.segment == segment) {
                self.entries.remove(&id);
            }
        }
    }

    /// The oldest segment but for the active one, if it has to go by now: all in it has had its fate for long, or there is too
    /// much. With the requests there that are pending, which have to be moved before.
    pub(super) fn due(&self, active: u64, room: &StoreBounds, now: Tick) -> Option<(u64, Vec<u128>)> {
        let (number, segment) = self.segments.iter().next().filter(|(number, _)| **number != active)?;
        let is_old = segment.pending == 0 && now.since(segment.last) >= room.max_age;
        let bytes: u64 = self.segments.values().map(|segment| segment.bytes).sum();
        // Twice the room of what is pending, and more where a reload has made the room smaller: so at least half of it is of no
        // use any more, and moving the rest is seldom.
        let is_too_much = bytes > room.max_bytes.max(self.written).saturating_mul(2)
            || self.entries.len() as u64 > room.max_requests.max(self.pending.len() as u64).saturating_mul(2);
        (is_old || is_too_much).then(|| {
            let is_left = |entry: &DeferredEntry| entry.ended.is_none() && entry.place.segment == *number;
            let left = segment.ids.iter().filter(|id| self.entries.get(id).is_some_and(is_left));
            (*number, left.copied().collect())
        })
    }

    /// Requests that are too old, and that nobody is sending; from now on nobody does.
    pub(super) fn expire(&mut self, room: &StoreBounds, now: Tick) -> Vec<u128> {
        // Those that came first are the oldest ones, but where the clock went back between two runs: these wait for others.
        let entries = self.pending.values().filter_map(|id| Some((*id, self.entries.get(id)?)));
        let old = entries.take_while(|(_, entry)| now.since(entry.accepted) >= room.max_age);
        let old: Vec<_> = old.filter(|(_, entry)| entry.hand == Hand::Free).map(|(id, _)| id).collect();
        for id in &old {
            self.begin_end(*id);
        }
        old
    }

    /// The writer ends a request: nobody takes it up any more.
    pub(super) fn begin_end(&mut self, id: u128) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.hand = Hand::Ending;
            self.woken.push((entry.order, entry.client));
        }
    }

    /// Begins to send a request; false: it is not pending, or in somebody's hand.
    pub(super) fn take_up(&mut self, id: u128) -> bool {
        let free = self.entries.get_mut(&id).filter(|entry| entry.ended.is_none() && entry.hand == Hand::Free);
        free.map(|entry| entry.hand = Hand::UnderWay).is_some()
    }

    /// A request is not under way any more, and was tried so often, with this status in the end.
    pub(super) fn put_back(&mut self, id: u128, tried: (u32, Option<u16>)) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.hand == Hand::UnderWay) {
            (entry.hand, entry.tried) = (Hand::Free, tried);
        }
    }

    /// Orders, and clients, whose first request is not to be waited for any more.
    pub(super) fn take_woken(&mut self) -> Vec<(u64, IpAddr)> {
        std::mem::take(&mut self.woken)
    }

    /// The pending ones that were not taken yet, in their order.
    pub(super) fn take_fresh(&mut self) -> Vec<Ticket> {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|ticket| self.entries.get(&ticket.id).is_some_and(|entry| entry.ended.is_none()));
        fresh
    }

    /// One request.
    pub(super) fn get(&self, id: u128) -> Option<&DeferredEntry> {
        self.entries.get(&id)
    }

    /// The numbers since the store was first used.
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Requests that are pending, and their bytes; with those that are about to be.
    pub(super) fn held(&self) -> (u64, u64) {
        (self.held.requests, self.held.bytes)
    }

    /// Since when the oldest one is pending.
    pub(super) fn oldest(&self) -> Option<Tick> {
        let first = self.pending.values().next()?;
        self.entries.get(first).map(|entry| entry.accepted)
    }

    fn insert(&mut self, ticket: Ticket, bytes: u64, place: LinePosition, accepted: Tick) {
        let Ticket { id, order, client, .. } = ticket;
        self.written += u64::from(place.length);
        let number = self.next_number;
        self.next_number += 1;
        let entry = DeferredEntry {
            order,
            accepted,
            place,
            ended: None,
            tried: (0, None),
            number,
            client,
            bytes,
            hand: Hand::Free,
        };
        self.entries.insert(id, entry);
        self.pending.insert(number, id);
        self.fresh.push(ticket);
        let segment = self.segments.entry(place.segment).or_default();
        segment.ids.push(id);
        segment.pending += 1;
    }

    fn hold(&mut self, client: IpAddr, bytes: u64) {
        for share in [self.shares.entry(client).or_default(), &mut self.held] {
            share.requests += 1;
            share.bytes += bytes;
        }
    }

    fn let_go(&mut self, client: IpAddr, bytes: u64) {
        let is_last = self.shares.get_mut(&client).is_some_and(|share| {
            share.requests -= 1;
            share.bytes -= bytes;
            share.requests == 0
        });
        if is_last {
            self.shares.remove(&client);
        }
        self.held.requests -= 1;
        self.held.bytes -= bytes;
    }
}

/// The word for where a request stands.
pub(super) fn state(ended: Option<&Ended>) -> &'static str {
    ended.map_or("pending", |ended| DeferredFate::word(ended.fate))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: StoreBounds = StoreBounds { max_requests: 8, max_bytes: 8_000, max_age: Span::from_secs(100) };

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(1_000_000 + secs)
    }

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn place(segment: u64) -> LinePosition {
        LinePosition { segment, offset: 0, length: 100 }
    }

    fn ticket(id: u128, from: u8, not_before: Tick) -> Ticket {
        let shown = Shown { route: "r".into(), limit: "l".into(), client: client(from), order: 1 };
        Ticket::new(id, &shown, not_before)
    }

    fn ended(fate: DeferredFate, at: Tick) -> Ended {
        Ended { fate, at, tries: 1, status: None, reason: None }
    }

    fn accept(index: &mut Index, id: u128, from: u8, segment: u64, now: Tick) -> bool {
        let reserved = index.reserve(client(from), 100, &ROOM);
        reserved.is_some_and(|reserved| {
            index.accept(ticket(id, from, now), place(segment), &reserved, now);
            true
        })
    }

    #[test]
    fn a_client_has_no_more_than_it_leaves_to_others() {
        let mut index = Index::default();
        let of_one = (0..8).filter(|id| accept(&mut index, *id, 1, 1, at(0))).count();
        assert_eq!(of_one, 4);
        let of_next = (10..18).filter(|id| accept(&mut index, *id, 2, 1, at(0))).count();
        assert_eq!(of_next, 2);
        // In bytes too.
        let mut index = Index::default();
        assert!(index.reserve(client(1), 4_001, &ROOM).is_none());
        let reserved = index.reserve(client(1), 4_000, &ROOM).unwrap();
        assert!(index.reserve(client(1), 1, &ROOM).is_none());
        assert!(index.reserve(client(2), 2_001, &ROOM).is_none());
        assert!(index.reserve(client(2), 2_000, &ROOM).is_some());
        index.release(&reserved);
        assert_eq!(index.held(), (1, 2_000));
        assert_eq!(index.shares.len(), 1);
    }

    #[test]
    fn deferred_is_sent_and_failed_and_expired_and_pending() {
        let mut index = Index::default();
        for id in 0..4 {
            assert!(accept(&mut index, id, 1, 1, at(0)));
        }
        for (id, fate) in [(0, DeferredFate::Sent), (1, DeferredFate::Failed), (2, DeferredFate::Expired)] {
            index.end(id, ended(fate, at(1)), None);
            // A second end changes nothing.
            index.end(id, ended(DeferredFate::Sent, at(2)), None);
        }
        let totals = index.totals();
        assert_eq!(totals, Totals { deferred: 4, sent: 1, failed: 1, expired: 1 });
        assert_eq!((totals.pending(), index.held().0, index.oldest()), (1, 1, Some(at(0))));
        assert_eq!(index.take_fresh(), [ticket(3, 1, at(0))]);
        assert!(index.take_fresh().is_empty());
    }

    #[test]
    fn a_request_that_is_being_sent_does_not_expire() {
        let mut index = Index::default();
        for id in 0..3 {
            assert!(accept(&mut index, id, 1, 1, at(id as u64)));
        }
        assert_eq!(index.expire(&ROOM, at(99)), []);
        assert!(index.take_up(0) && !index.take_up(0));
        assert_eq!((index.expire(&ROOM, at(101)), index.take_woken()), (vec![1], vec![(1, client(1))]));
        assert!(!index.take_up(1), "it is being ended");
        index.put_back(1, (0, None));
        assert!(!index.take_up(1), "whoever did not take it does not put it back");
        index.put_back(0, (3, Some(503)));
        assert_eq!(index.get(0).unwrap().tried, (3, Some(503)));
        assert_eq!(index.expire(&ROOM, at(101)), [0]);
        index.end(0, ended(DeferredFate::Expired, at(101)), None);
        assert!(!index.take_up(0) && index.expire(&ROOM, at(101)).is_empty());
    }

    #[test]
    fn a_smaller_room_moves_nothing_that_is_pending_again_and_again() {
        let mut index = Index::default();
        let large = LinePosition { segment: 1, offset: 0, length: 2_000 };
        for (id, from) in [(0, 1), (1, 2)] {
            index.begin(1);
            let reserved = index.reserve(client(from), 2_000, &ROOM).unwrap();
            index.accept(ticket(id, from, at(0)), large, &reserved, at(0));
            index.grew(1, 2_000);
        }
        let less = StoreBounds { max_bytes: 100, max_requests: 1, ..ROOM };
        assert_eq!(index.due(2, &less, at(0)), None);
        index.grew(1, 4_001);
        assert_eq!(index.due(2, &less, at(0)), Some((1, vec![0, 1])));
        assert!(!index.may_go(1));
    }

    #[test]
    fn segments_go_when_their_fates_are_old_and_pending_ones_are_moved_when_there_is_too_much() {
        let mut index = Index::default();
        for (id, segment) in [(0, 1), (1, 1), (2, 2)] {
            index.begin(segment);
            assert!(accept(&mut index, id, 1, segment, at(0)));
            index.grew(segment, 4_000);
        }
        index.end(0, ended(DeferredFate::Sent, at(5)), None);
        assert_eq!(index.due(2, &ROOM, at(200)), None, "one is pending there");
        index.grew(2, 8_001);
        assert_eq!(index.due(2, &ROOM, at(5)), Some((1, vec![1])));
        assert_eq!(index.due(1, &ROOM, at(5)), None, "it is written to");
        index.moved(1, place(2));
        index.forget(1);
        assert_eq!((index.get(0).is_none(), index.get(1).unwrap().place), (true, place(2)));
        assert_eq!(index.totals(), Totals { deferred: 3, sent: 1, failed: 0, expired: 0 });
        index.grew(3, 10);
        for id in [1, 2] {
            index.end(id, ended(DeferredFate::Expired, at(50)), None);
        }
        let after = StoreBounds { max_bytes: 80_000, ..ROOM };
        assert_eq!((index.due(3, &after, at(149)), index.due(3, &after, at(150))), (None, Some((2, vec![]))));
        index.forget(2);
        assert_eq!((index.totals().pending(), index.entries.len(), index.held()), (0, 0, (0, 0)));
    }

    #[test]
    fn totals_go_on_from_the_first_segment_that_is_left() {
        let mut index = Index::default();
        let totals = Totals { deferred: 10, sent: 8, failed: 1, expired: 0 };
        let shown = Shown { route: "r".into(), limit: "l".into(), client: client(1), order: 1 };
        index.begin(7);
        index.found_begin(7, &totals);
        index.found_request(3, &shown, place(7), true, at(0));
        index.found_request(4, &shown, place(7), false, at(0));
        index.begin(8);
        index.found_begin(8, &Totals { deferred: 11, sent: 8, failed: 1, expired: 0 });
        index.found_request(4, &shown, place(8), true, at(0));
        index.end(3, ended(DeferredFate::Sent, at(1)), None);
        assert_eq!(index.totals(), Totals { deferred: 11, sent: 9, failed: 1, expired: 0 });
        assert_eq!((index.totals().pending(), index.held().0), (1, 1));
    }
}
