//! The streams of a connection.

use std::task::Waker;

use super::request::Meaning;
use sluicegate_time::{Span, Tick};

/// How many streams that we have reset are remembered. Frames that still come on one are nobody's fault: a client whose
/// uploads are refused has sent them before it knew. A power of two, as the next one.
const RESET_KNOWN: usize = 1_024;
/// How many streams that have ended otherwise are remembered, so that what comes on one is told from what comes on one
/// that was never opened.
const ENDED_KNOWN: usize = 64;
/// Room that an ended stream leaves to the next one, in bytes each of its buffers.
const KEPT_ROOM: usize = 1_024;
/// Room that a body keeps between two reads: what was needed once, while nobody read, is not kept for all streams.
const DATA_ROOM: usize = 16 * 1_024;
/// Ended streams whose room is kept while there is none.
const KEPT_SLOTS: usize = 16;

/// A request that its client cancels later than this has waited for a slow server, and is no attack: to cancel as many as
/// there may be at once costs a second each time.
const EARLY: Span = Span::from_secs(1);

/// A stream, named for as long as somebody holds it. The number of a stream is never used again in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamKey {
    pub(super) slot: usize,
    pub(super) id: u32,
}

/// How the sending side ends, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendEnd {
    /// More may come.
    #[default]
    Open,
    /// With the last byte.
    WithData,
    /// With trailers.
    Trailers,
    /// It has.
    Done,
}

/// Why nothing more comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFailure {
    /// The client has reset it.
    ByClient,
    /// We have.
    ByUs,
    /// The connection has ended.
    Connection,
}

/// One stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// When its request was complete up to the head.
    pub(super) opened_at: Tick,
    /// Whether the head of the final response has gone out.
    pub(super) is_answered: bool,
    /// Of the task that serves it.
    pub(super) waker: Option<Waker>,
    pub(super) failure: Option<StreamFailure>,
    pub(super) meaning: Meaning,
    /// The request's head, without its end, until it is taken.
    pub(super) head: Vec<u8>,
    /// How long it was, in bytes.
    pub(super) head_size: usize,
    /// The bytes of the body that came and were not read, from `data_at` on.
    pub(super) data: Vec<u8>,
    pub(super) data_at: usize,
    /// Field lines.
    pub(super) trailers: Vec<u8>,
    /// Whether the request is complete.
    pub(super) has_ended: bool,
    /// The bytes that are to come by `content-length`.
    pub(super) length_left: Option<u64>,
    /// The bytes that the client may still send.
    pub(super) recv_window: i64,
    /// The room that it has beyond its share: of bytes that were not read, and of those that may come.
    pub(super) extra: i64,
    /// The bytes that we may send.
    pub(super) send_window: i64,
    /// The bytes that there was no window for, from `held_at` on.
    pub(super) held: Vec<u8>,
    pub(super) held_at: usize,
    pub(super) end: SendEnd,
    /// The block of the trailers that go behind it.
    pub(super) last_block: Vec<u8>,
    /// Whether it is in the queue of those that wait to send.
    pub(super) is_queued: bool,
    /// Bytes of data that have gone out.
    pub(super) sent: u64,
}

impl Stream {
    pub(super) fn unread(&self) -> &[u8] {
        self.data.get(self.data_at..).unwrap_or_default()
    }

    pub(super) fn unsent(&self) -> &[u8] {
        self.held.get(self.held_at..).unwrap_or_default()
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Whether its client cancels it in vain for us if it ends `now`: before the answer began, and soon.
    pub(super) fn is_early(&self, now: Tick) -> bool {
        self.failure.is_none() && !self.is_answered && now < self.opened_at + EARLY
    }

    /// Takes content that came. Content that was read makes room.
    pub(super) fn put_data(&mut self, content: &[u8]) {
        if self.data_at > 0 && self.data.len() + content.len() > self.data.capacity() {
            self.data.drain(..self.data_at);
            self.data_at = 0;
        }
        self.data.extend_from_slice(content);
    }

    /// Takes note that so much of the content was read.
    pub(super) fn take_data(&mut self, count: usize) {
        self.data_at = (self.data_at + count).min(self.data.len());
        if self.data_at == self.data.len() {
            self.data.clear();
            self.data.shrink_to(DATA_ROOM);
            self.data_at = 0;
        }
    }

    /// Lets the head go, which the task that serves the stream has.
    pub(super) fn drop_head(&mut self) {
        empty(&mut self.head);
    }

    /// As new, with the room that the one before has left.
    fn reuse(&mut self) {
        let kept = |mut buffer: Vec<u8>| {
            empty(&mut buffer);
            buffer
        };
        let head = kept(std::mem::take(&mut self.head));
        let data = kept(std::mem::take(&mut self.data));
        *self = Self { head, data, ..Self::default() };
    }
}

/// Empties a buffer. One that was large is let go of whole: a small rest of it, which stays as long as its connection, would
/// keep what lies behind it too small for the next large one.
fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_ROOM {
        *buffer = Vec::new();
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<usize>,
    /// Number and slot, in the order of numbers.
    open: Vec<(u32, usize)>,
    /// How many of them have failed.
    failed: usize,
    /// The highest number that the client has used.
    last: u32,
    /// The highest number that came too late to be looked at.
    late: u32,
    reset: StreamNumbers<RESET_KNOWN>,
    ended: StreamNumbers<ENDED_KNOWN>,
}

/// Numbers of streams, up to `MOST` in a row: a newer one takes the place of the one that is `MOST` requests older. So it
/// takes one look to find one, or to know that it is not there.
#[derive(Debug, Default)]
struct StreamNumbers<const MOST: usize> {
    /// A power of two, or none. 0 is no number of a stream.
    places: Vec<u32>,
}

impl<const MOST: usize> StreamNumbers<MOST> {
    /// Places that the first number makes.
    const FIRST: usize = 16;

    fn contains(&self, id: u32) -> bool {
        self.places.get(self.place(id)) == Some(&id)
    }

    /// Where a number is, if it is there. Clients use the odd ones alone.
    fn place(&self, id: u32) -> usize {
        (id as usize / 2) & self.places.len().wrapping_sub(1)
    }

    fn insert(&mut self, id: u32) {
        while self.places.get(self.place(id)).is_none_or(|kept| *kept != 0 && *kept != id) && self.places.len() < MOST {
            self.grow();
        }
        let place = self.place(id);
        self.places[place] = id;
    }

    fn grow(&mut self) {
        let length = (self.places.len() * 2).clamp(Self::FIRST, MOST);
        let kept = std::mem::replace(&mut self.places, vec![0; length]);
        // Those that were in places of their own are so in more of them.
        for id in kept.into_iter().filter(|id| *id != 0) {
            let place = self.place(id);
            self.places[place] = id;
        }
    }
}

/// The state of a stream's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamIdState {
    /// It is here.
    Here(StreamKey),
    /// Nobody has used it, nor a higher one.
    Idle,
    /// We have reset it, or it came behind the last one that we have named.
    Reset,
    /// It has ended.
    Ended,
    /// It has ended so long ago that nobody knows, or was never used although a higher one was.
    Forgotten,
}

impl Streams {
    /// Where the stream of a number is.
    pub(super) fn place(&self, id: u32) -> StreamIdState {
        // The last one is what most frames are about.
        if let Some((last, slot)) = self.open.last()
            && *last == id
        {
            return StreamIdState::Here(StreamKey { slot: *slot, id });
        }
        // Servers open none, so an even one is idle for ever.
        if id > self.last.max(self.late) || id.is_multiple_of(2) {
            return StreamIdState::Idle;
        }
        if id > self.last {
            return StreamIdState::Reset;
        }
        if let Ok(found) = self.open.binary_search_by_key(&id, |(id, _)| *id) {
            return StreamIdState::Here(StreamKey { slot: self.open[found].1, id });
        }
        match () {
            () if self.reset.contains(id) => StreamIdState::Reset,
            () if self.ended.contains(id) => StreamIdState::Ended,
            () => StreamIdState::Forgotten,
        }
    }

    /// Opens the stream of a number above all others.
    pub(super) fn open(&mut self, id: u32) -> StreamKey {
        debug_assert!(self.open.last().is_none_or(|(last, _)| *last < id));
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Stream::default());
            self.slots.len() - 1
        });
        self.slots[slot].id = id;
        self.open.push((id, slot));
        StreamKey { slot, id }
    }

    /// Takes note of the highest number.
    pub(super) fn note_last(&mut self, id: u32) {
        self.last = self.last.max(id);
    }

    /// Takes note of one that came behind the last one that we have named. It does not change what that was.
    pub(super) fn note_late(&mut self, id: u32) {
        self.late = self.late.max(id);
    }

    /// The highest number that the client has used.
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// How many are here.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether the client has so many open, or more. One that is complete in both directions is closed, though the task
    /// that serves it has not let it go yet (RFC 9113, 5.1). It looks at twice `max_streams` at the most, which is
    /// 1,000 at the most; the caller refuses more than are here then.
    pub(super) fn has_open(&self, most: usize) -> bool {
        self.open.len() - self.failed >= most && self.count_open() >= most
    }

    fn count_open(&self) -> usize {
        let streams = self.open.iter().filter_map(|(_, slot)| self.slots.get(*slot));
        streams.filter(|stream| stream.failure.is_none() && !(stream.has_ended && stream.end == SendEnd::Done)).count()
    }

    /// Lets nothing more come or go, and tells the task that serves it. Gives the stream if it had not failed before.
    pub(super) fn fail(&mut self, key: StreamKey, failure: StreamFailure) -> Option<&mut Stream> {
        let stream = self.slots.get_mut(key.slot).filter(|stream| stream.id == key.id && stream.failure.is_none())?;
        self.failed += 1;
        stream.failure = Some(failure);
        stream.held = Vec::new();
        stream.held_at = 0;
        stream.wake();
        Some(stream)
    }

    /// The stream, as long as it is here.
    pub(super) fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.slots.get(key.slot).filter(|stream| stream.id == key.id)
    }

    /// The stream, as long as it is here.
    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.slot).filter(|stream| stream.id == key.id)
    }

    /// Every one that is here.
    pub(super) fn keys(&self) -> impl Iterator<Item = StreamKey> {
        self.open.iter().map(|(id, slot)| StreamKey { slot: *slot, id: *id })
    }

    /// Remembers one that we have reset and on which more may come.
    pub(super) fn remember_reset(&mut self, id: u32) {
        self.reset.insert(id);
    }

    /// Takes one away.
    pub(super) fn remove(&mut self, key: StreamKey) {
        let Some(stream) = self.slots.get_mut(key.slot).filter(|stream| stream.id == key.id) else { return };
        self.failed -= usize::from(stream.failure.is_some());
        stream.reuse();
        self.free.push(key.slot);
        if let Ok(found) = self.open.binary_search_by_key(&key.id, |(id, _)| *id) {
            self.open.remove(found);
        }
        self.ended.insert(key.id);
        if self.open.is_empty() && self.slots.len() > KEPT_SLOTS {
            self.slots = Vec::new();
            self.free = Vec::new();
        }
    }
}

#[cfg(test)]
impl Streams {
    /// Room that all of them hold, in bytes.
    pub(super) fn memory(&self) -> usize {
        let slots = self.slots.iter().map(|stream| {
            let buffers = [&stream.head, &stream.data, &stream.trailers, &stream.held, &stream.last_block];
            buffers.into_iter().map(Vec::capacity).sum::<usize>()
        });
        slots.sum::<usize>()
            + self.slots.capacity() * size_of::<Stream>()
            + self.free.capacity() * size_of::<usize>()
            + self.open.capacity() * size_of::<(u32, usize)>()
            + (self.reset.places.capacity() + self.ended.places.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn a_number_is_idle_then_here_then_ended_then_forgotten() {
        let mut streams = Streams::default();
        assert_eq!((streams.place(1), streams.place(2)), (StreamIdState::Idle, StreamIdState::Idle));
        streams.note_last(5);
        let key = streams.open(5);
        assert_eq!(
            (streams.place(5), streams.place(3), streams.place(4), streams.place(7)),
            (StreamIdState::Here(key), StreamIdState::Forgotten, StreamIdState::Idle, StreamIdState::Idle)
        );
        streams.remove(key);
        assert_eq!((streams.place(5), streams.get(key).is_none(), streams.len()), (StreamIdState::Ended, true, 0));
        for id in (7..).step_by(2).take(ENDED_KNOWN) {
            streams.note_last(id);
            let key = streams.open(id);
            streams.remove(key);
        }
        assert_eq!((streams.place(5), streams.place(7)), (StreamIdState::Forgotten, StreamIdState::Ended));
    }

    #[test]
    fn resets_are_remembered_up_to_a_number() {
        let mut streams = Streams::default();
        let id = |number: usize| u32::try_from(number * 2 + 1).unwrap();
        streams.note_last(id(5000));
        for number in 0..=RESET_KNOWN {
            streams.remember_reset(id(number));
        }
        assert_eq!((streams.place(id(0)), streams.place(id(1))), (StreamIdState::Forgotten, StreamIdState::Reset));
        assert_eq!(streams.place(id(RESET_KNOWN)), StreamIdState::Reset);
        assert!((1..=RESET_KNOWN).all(|number| streams.place(id(number)) == StreamIdState::Reset));
        assert_eq!(streams.reset.places.len(), RESET_KNOWN);
    }

    #[test]
    fn few_numbers_need_few_places_and_are_found_whatever_their_order() {
        let mut numbers = StreamNumbers::<64>::default();
        assert!(!numbers.contains(1) && !numbers.contains(0));
        for id in [31, 1, 17] {
            numbers.insert(id);
        }
        assert_eq!((numbers.contains(31), numbers.contains(1), numbers.contains(17)), (true, true, true));
        assert_eq!((numbers.contains(3), numbers.contains(33), numbers.places.len()), (false, false, 16));
        // The same place of 16, and of 32.
        numbers.insert(65);
        assert!([1, 17, 31, 65].iter().all(|id| numbers.contains(*id)));
        assert_eq!(numbers.places.len(), 64);
        numbers.insert(129);
        assert_eq!((numbers.contains(129), numbers.contains(1), numbers.contains(65)), (true, false, true));
        assert_eq!(numbers.places.len(), 64);
    }

    #[test]
    fn a_slot_is_used_again_and_its_old_key_names_nothing() {
        let mut streams = Streams::default();
        let old = streams.open(1);
        streams.get_mut(old).unwrap().head.resize(100_000, b'x');
        streams.get_mut(old).unwrap().sent = 7;
        streams.remove(old);
        let new = streams.open(3);
        assert_eq!(new.slot, old.slot);
        assert!(streams.get(old).is_none());
        streams.remove(old);
        let stream = streams.get(new).unwrap();
        assert_eq!((stream.sent, stream.head.len()), (0, 0));
        assert_eq!(stream.head.capacity(), 0, "what was large is let go of whole");
    }

    #[test]
    fn many_that_were_here_at_once_leave_no_room_behind() {
        let mut streams = Streams::default();
        let keys: Vec<_> = (0..100).map(|number| streams.open(number * 2 + 1)).collect();
        assert_eq!(streams.count_open(), 100);
        assert!(streams.fail(keys[3], StreamFailure::ByClient).is_some());
        assert!(streams.fail(keys[3], StreamFailure::ByUs).is_none());
        assert_eq!((streams.count_open(), streams.len()), (99, 100));
        for key in keys {
            streams.remove(key);
        }
        assert_eq!((streams.count_open(), streams.failed), (0, 0));
        assert_eq!((streams.slots.capacity(), streams.free.capacity()), (0, 0));
    }

    #[test]
    fn content_is_read_in_order_and_what_was_read_makes_room() {
        let mut stream = Stream::default();
        let mut expected = VecDeque::new();
        for round in 0..1000_u32 {
            let content: Vec<u8> = (0..round % 300).map(|n| (n + round) as u8).collect();
            stream.put_data(&content);
            expected.extend(content);
            let taken = (round as usize % 299).min(expected.len());
            assert_eq!(&stream.unread()[..taken], expected.drain(..taken).collect::<Vec<_>>());
            stream.take_data(taken);
        }
        assert_eq!(stream.unread().len(), expected.len());
        assert!(stream.data.capacity() < 8192, "{}", stream.data.capacity());
    }
}
