//! Frames that cost their sender nothing: how many of them a connection may send.
//!
//! Each kind has a store of points that a frame takes from, and that time and honest work fill again: so a peer that
//! does what it came for never meets the bound, and one that does nothing else meets it soon. The attacks are the ones of
//! CVE-2019-9511 to 9518 (pings, settings, resets, empty frames, priorities) and CVE-2023-44487 (rapid reset); the idea
//! of weighing them against requests is Envoy's and nginx's.

use std::cell::Cell;
use std::rc::Rc;

use crate::time::{Span, Tick};

/// Frames that ask for an answer or for attention and carry nothing: PING, SETTINGS, PRIORITY, empty DATA, CONTINUATION,
/// frames of unknown types.
const CONTROL: Store = Store { most: 1_000, per_second: 100 };
/// `WINDOW_UPDATE` frames that no data of ours has caused.
const WINDOWS: Store = Store { most: 2_000, per_second: 100 };
/// What a frame of data that we send lets the peer say about windows.
const WINDOWS_PER_DATA: i64 = 4;
/// Requests that were reset by whoever had sent them, above one in two.
const RESETS: Store = Store { most: 1_000, per_second: 50 };
const RESET_COST: i64 = 2;
/// What a new request lets its sender say besides.
const CONTROL_PER_REQUEST: i64 = 2;

struct Store {
    most: i64,
    per_second: i64,
}

/// What a connection may still send that is no request and no data.
#[derive(Debug)]
pub struct Flood {
    control: Cell<i64>,
    windows: Cell<i64>,
    resets: Cell<i64>,
    filled_at: Cell<Option<Tick>>,
    spent: Cell<Option<&'static str>>,
}

impl Flood {
    /// What there can be too much of.
    pub const KINDS: [&'static str; 8] = [
        "empty-frames",
        "priorities",
        "resets",
        "settings",
        "pings",
        "window-updates",
        "continuations",
        "unknown-frames",
    ];

    /// Full stores.
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            control: Cell::new(CONTROL.most),
            windows: Cell::new(WINDOWS.most),
            resets: Cell::new(RESETS.most),
            filled_at: Cell::new(None),
            spent: Cell::new(None),
        })
    }

    /// What there was too much of, in a word or two; `None` as long as nothing is.
    pub fn spent(&self) -> Option<&'static str> {
        self.spent.get()
    }

    /// Fills the stores for the time that has passed since the last call.
    pub fn fill(&self, now: Tick) {
        let Some(since) = self.filled_at.get() else { return self.filled_at.set(Some(now)) };
        let passed = now.since(since);
        if passed < Span::from_millis(100) {
            return;
        }
        self.filled_at.set(Some(now));
        let tenths = i64::try_from(passed.as_nanos() / 100_000_000).unwrap_or(i64::MAX).min(600);
        for (cell, store) in [(&self.control, CONTROL), (&self.windows, WINDOWS), (&self.resets, RESETS)] {
            cell.set((cell.get() + tenths * store.per_second / 10).min(store.most));
        }
    }

    /// Notes a frame of data that goes out.
    pub fn note_data_sent(&self) {
        self.windows.set((self.windows.get() + WINDOWS_PER_DATA).min(WINDOWS.most));
    }

    /// Notes a request that was answered and not reset before.
    pub fn note_answered(&self) {
        self.resets.set((self.resets.get() + 1).min(RESETS.most));
    }

    /// Notes a frame that came, by its type and flags (RFC 9113, 6) and the length of its payload.
    pub(super) fn note(&self, kind: u8, flags: u8, length: usize) {
        const END_STREAM: u8 = 1;
        match kind {
            0 if length > 0 || flags & END_STREAM != 0 => {}
            0 => self.take(&self.control, 1, "empty-frames"),
            1 => self.control.set((self.control.get() + CONTROL_PER_REQUEST).min(CONTROL.most)),
            2 => self.take(&self.control, 1, "priorities"),
            3 => self.take(&self.resets, RESET_COST, "resets"),
            4 => self.take(&self.control, 1, "settings"),
            6 => self.take(&self.control, 1, "pings"),
            8 => self.take(&self.windows, 1, "window-updates"),
            9 => self.take(&self.control, 1, "continuations"),
            _ => self.take(&self.control, 1, "unknown-frames"),
        }
    }

    fn take(&self, store: &Cell<i64>, cost: i64, what: &'static str) {
        let left = store.get() - cost;
        store.set(left);
        if left < 0 && self.spent.get().is_none() {
            self.spent.set(Some(what));
        }
    }
}

/// Finds the frames in what is read, however it is cut.
#[derive(Debug)]
pub(super) struct Frames {
    head: [u8; 9],
    have: usize,
    /// Bytes to come that are no head of a frame.
    skip: usize,
}

impl Frames {
    /// From the first byte of a connection, whose first `preface` bytes are no frame.
    pub(super) fn new(preface: usize) -> Self {
        Self { head: [0; 9], have: 0, skip: preface }
    }

    /// Tells `flood` of every frame whose head is complete with these bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8], flood: &Flood) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let taken = (self.head.len() - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == self.head.len() {
                let [a, b, c, kind, flags, ..] = self.head;
                let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                flood.note(kind, flags, length);
                self.have = 0;
                self.skip = length;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn the_thousand_and_first_ping_is_one_too_many() {
        let flood = Flood::new();
        let mut frames = Frames::new(24);
        frames.read(&[b'x'; 24], &flood);
        for _ in 0..1000 {
            frames.read(&frame(6, 0, &[0; 8]), &flood);
        }
        assert_eq!(flood.spent(), None);
        frames.read(&frame(6, 0, &[0; 8]), &flood);
        assert_eq!(flood.spent(), Some("pings"));
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let bytes = [vec![0; 24], frame(0, 0, b"hello"), frame(4, 0, &[0; 12]), frame(0, 0, b""), frame(6, 0, &[1; 8])]
            .concat();
        for size in 1..bytes.len() {
            let flood = Flood::new();
            let mut frames = Frames::new(24);
            for piece in bytes.chunks(size) {
                frames.read(piece, &flood);
            }
            assert_eq!(flood.control.get(), CONTROL.most - 3, "cut every {size} bytes");
        }
    }

    #[test]
    fn each_kind_is_counted_under_its_name() {
        for (kind, what) in [
            (0, "empty-frames"),
            (2, "priorities"),
            (3, "resets"),
            (4, "settings"),
            (6, "pings"),
            (8, "window-updates"),
            (9, "continuations"),
            (5, "unknown-frames"),
            (0xF0, "unknown-frames"),
        ] {
            let flood = Flood::new();
            let most = (1..=3000).find(|_| {
                flood.note(kind, 0, 0);
                flood.spent().is_some()
            });
            assert_eq!(flood.spent(), Some(what));
            assert!(Flood::KINDS.contains(&what));
            assert_eq!(
                most,
                Some(match what {
                    "resets" => 501,
                    "window-updates" => 2001,
                    _ => 1001,
                }),
                "{what}"
            );
        }
        // What carries something, and what ends a stream, is no flood.
        let flood = Flood::new();
        for _ in 0..100_000 {
            flood.note(0, 0, 1);
            flood.note(0, 1, 0);
            flood.note(1, 4, 10);
        }
        assert_eq!(flood.spent(), None);
    }

    #[test]
    fn requests_pay_for_what_is_said_with_them() {
        let flood = Flood::new();
        for _ in 0..100_000 {
            flood.note(1, 4, 10);
            flood.note(2, 0, 5);
            flood.note(6, 0, 8);
        }
        assert_eq!(flood.spent(), None);
    }

    #[test]
    fn time_and_answers_fill_the_stores_and_never_above_the_most() {
        let flood = Flood::new();
        let second = Span::from_secs(1);
        flood.fill(Tick::ZERO);
        for _ in 0..500 {
            flood.note(3, 0, 4);
            flood.note(6, 0, 8);
        }
        assert_eq!((flood.resets.get(), flood.control.get(), flood.spent()), (0, 500, None));
        flood.note_answered();
        flood.fill(Tick::ZERO + second);
        assert_eq!((flood.resets.get(), flood.control.get()), (51, 600));
        flood.fill(Tick::ZERO + Span::from_secs(3600));
        assert_eq!((flood.resets.get(), flood.control.get()), (1000, 1000));
    }

    #[test]
    fn resets_of_half_of_all_requests_are_borne_for_ever() {
        let flood = Flood::new();
        for _ in 0..100_000 {
            flood.note(3, 0, 4);
            flood.note_answered();
            flood.note_answered();
        }
        assert_eq!(flood.spent(), None);
        for _ in 0..501 {
            flood.note(3, 0, 4);
        }
        assert_eq!(flood.spent(), Some("resets"));
    }

    #[test]
    fn windows_follow_the_data_that_goes_out() {
        let flood = Flood::new();
        for _ in 0..10_000 {
            flood.note_data_sent();
            for _ in 0..4 {
                flood.note(8, 0, 4);
            }
        }
        assert_eq!(flood.spent(), None);
        for _ in 0..2001 {
            flood.note(8, 0, 4);
        }
        assert_eq!(flood.spent(), Some("window-updates"));
    }
}
