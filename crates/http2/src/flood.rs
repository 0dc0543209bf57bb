//! Frames that cost their sender nothing: how many of them a connection may send.
//!
//! Each kind has a store of points that a frame takes from, and that time and honest work fill again: so a peer that
//! does what it came for never meets the bound, and one that does nothing else meets it soon. The attacks are the ones of
//! CVE-2019-9511 to 9518 (pings, settings, resets, empty frames, priorities) and CVE-2023-44487 (rapid reset); the idea
//! of weighing them against requests is Envoy's and nginx's. A frame on a stream that was reset or answered is dropped, and
//! costs its sender as little: it has a store of its own, because much of it may be on its way when a stream is reset.

use super::frame::{flag, kind};
use sluicegate_time::{Span, Tick};

/// Frames that ask for an answer or for attention and carry nothing: PING, SETTINGS, PRIORITY, empty DATA, CONTINUATION,
/// resets of what has ended, requests that are refused because there are too many, frames of unknown types.
const CONTROL: FloodAllowance = FloodAllowance { most: 1_000, per_second: 100 };
/// `WINDOW_UPDATE` frames that no data of ours has caused.
const WINDOWS: FloodAllowance = FloodAllowance { most: 2_000, per_second: 100 };
/// The window updates that one frame of our data lets the peer send.
const WINDOWS_PER_DATA: i64 = 4;
/// The most of that which is kept. A client that is slow has a whole window of frames before it: 65,535 of a byte each.
const MOST_EARNED: i64 = 65_536 * WINDOWS_PER_DATA;
/// Requests that their sender has cancelled in vain for us: 1,000, and 100 a second. A server's answer pays for half of one, so
/// that a client that cancels one request in three may do so at any rate.
const RESETS: FloodAllowance = FloodAllowance { most: 2_000, per_second: 200 };
/// The same of a peer that speaks for many, such as a load balancer: 10,000, and 500 a second.
const RESETS_OF_MANY: FloodAllowance = FloodAllowance { most: 20_000, per_second: 1_000 };
const RESET_COST: i64 = 2;
/// The control frames that a new request lets its sender send besides.
const CONTROL_PER_REQUEST: i64 = 2;
/// DATA and HEADERS on streams that were reset or answered. A client that is told to stop has sent a window of 256 KiB
/// by then: 16 large frames, or thousands of small ones.
const LATE: FloodAllowance = FloodAllowance { most: 8_192, per_second: 1_000 };
/// How many late frames a new request lets its sender send: a window in frames of 8 KiB.
const LATE_PER_REQUEST: i64 = 32;

#[derive(Clone, Copy, Debug)]
struct FloodAllowance {
    most: i64,
    per_second: i64,
}

words! {
    /// Frames that carry nothing, of which a client has sent too many.
    pub enum FloodKind {
        /// `DATA` without data.
        EmptyFrames = "empty-frames",
        /// `PRIORITY`.
        Priorities = "priorities",
        /// Requests that their client cancels, and `RST_STREAM`.
        Resets = "resets",
        /// `SETTINGS`.
        Settings = "settings",
        /// `PING`.
        Pings = "pings",
        /// `WINDOW_UPDATE`.
        WindowUpdates = "window-updates",
        /// `CONTINUATION`.
        Continuations = "continuations",
        /// Frames of a kind that RFC 9113 does not have.
        UnknownFrames = "unknown-frames",
        /// Frames for requests that have ended.
        LateFrames = "late-frames",
        /// Requests that are refused unread.
        RefusedStreams = "refused-streams",
        /// Requests that their client cancels, over all of its connections.
        ResetsOfClient = "resets-of-client",
    }
}

/// The frames that a connection may still send that are no request and no data.
#[derive(Debug)]
pub struct Flood {
    control: i64,
    windows: i64,
    /// The credit that our data has earned besides.
    earned: i64,
    resets: i64,
    resets_store: FloodAllowance,
    late: i64,
    filled_at: Option<Tick>,
    spent: Option<FloodKind>,
    outcomes: Outcomes,
}

/// How requests have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Those that their client has cancelled early, or has made us reset.
    pub resets: u32,
    /// Those that it has cancelled early by the end of their connection.
    pub abandoned: u32,
    /// Those that servers have answered.
    pub answers: u32,
}

impl Flood {
    /// Full stores, of a peer that speaks for itself or for many.
    pub(super) fn new(is_of_many: bool) -> Self {
        let resets_store = if is_of_many { RESETS_OF_MANY } else { RESETS };
        Self {
            control: CONTROL.most,
            windows: WINDOWS.most,
            earned: 0,
            resets: resets_store.most,
            resets_store,
            late: LATE.most,
            filled_at: None,
            spent: None,
            outcomes: Outcomes::default(),
        }
    }

    /// How requests have ended since the last call.
    pub(super) fn take_outcomes(&mut self) -> Outcomes {
        std::mem::take(&mut self.outcomes)
    }

    /// Notes requests that their client has cancelled early with the connection.
    pub(super) fn note_abandoned(&mut self, count: u32) {
        self.outcomes.abandoned += count;
    }

    /// Notes that the client has cancelled too many, over other connections too.
    pub(super) fn note_too_many(&mut self) {
        self.spent.get_or_insert(FloodKind::ResetsOfClient);
    }

    /// The frames that there were too many of; `None` as long as nothing is.
    pub fn spent(&self) -> Option<FloodKind> {
        self.spent
    }

    /// Fills the stores for the time that has passed since the last call.
    pub fn fill(&mut self, now: Tick) {
        let Some(since) = self.filled_at else {
            self.filled_at = Some(now);
            return;
        };
        let passed = now.since(since);
        if passed < Span::from_millis(100) {
            return;
        }
        self.filled_at = Some(now);
        let tenths = i64::try_from(passed.as_nanos() / 100_000_000).unwrap_or(i64::MAX).min(600);
        for (left, store) in [
            (&mut self.control, CONTROL),
            (&mut self.windows, WINDOWS),
            (&mut self.resets, self.resets_store),
            (&mut self.late, LATE),
        ] {
            *left = (*left + tenths * store.per_second / 10).min(store.most);
        }
    }

    /// Notes a frame of data that goes out.
    pub(super) fn note_data_sent(&mut self) {
        self.earned = (self.earned + WINDOWS_PER_DATA).min(MOST_EARNED);
    }

    /// Notes a request that is served.
    pub(super) fn note_request(&mut self) {
        self.control = (self.control + CONTROL_PER_REQUEST).min(CONTROL.most);
        self.late = (self.late + LATE_PER_REQUEST).min(LATE.most);
    }

    /// Notes a request that was refused because its client had too many.
    pub(super) fn note_refused(&mut self) {
        self.take(1, FloodKind::RefusedStreams);
    }

    /// Notes a frame of DATA or HEADERS that was dropped, because its stream was reset or answered before.
    pub(super) fn note_late(&mut self) {
        self.take(1, FloodKind::LateFrames);
    }

    /// Notes a request that a server has answered, and that was not reset before.
    pub(super) fn note_answered(&mut self) {
        self.resets = (self.resets + 1).min(self.resets_store.most);
        self.outcomes.answers += 1;
    }

    /// Notes a stream that its client has made us reset: it could as well have done so itself (CVE-2025-8671).
    pub(super) fn note_forced_reset(&mut self) {
        self.outcomes.resets += 1;
        self.take(RESET_COST, FloodKind::Resets);
    }

    /// Notes a reset that came. One that cancels nothing that has cost us, as its stream was answered or reset before, is an
    /// empty frame: clients reset what we have refused, and the two resets cross.
    pub(super) fn note_reset(&mut self, is_early: bool) {
        if is_early {
            self.outcomes.resets += 1;
            self.take(RESET_COST, FloodKind::Resets);
        } else {
            self.take(1, FloodKind::EmptyFrames);
        }
    }

    /// Notes a frame that came, by its type and flags (RFC 9113, 6) and the length of what it carries.
    pub(super) fn note(&mut self, kind: u8, flags: u8, length: usize) {
        match kind {
            kind::DATA if length > 0 || flags & flag::END_STREAM != 0 => {}
            kind::DATA => self.take(1, FloodKind::EmptyFrames),
            kind::PRIORITY => self.take(1, FloodKind::Priorities),
            // See `note_request` and `note_reset`.
            kind::HEADERS | kind::RST_STREAM => {}
            kind::SETTINGS => self.take(1, FloodKind::Settings),
            kind::PING => self.take(1, FloodKind::Pings),
            kind::WINDOW_UPDATE if self.earned > 0 => self.earned -= 1,
            kind::WINDOW_UPDATE => self.take(1, FloodKind::WindowUpdates),
            kind::CONTINUATION => self.take(1, FloodKind::Continuations),
            _ => self.take(1, FloodKind::UnknownFrames),
        }
    }

    fn take(&mut self, cost: i64, what: FloodKind) {
        let store = match what {
            FloodKind::Resets => &mut self.resets,
            FloodKind::WindowUpdates => &mut self.windows,
            FloodKind::LateFrames => &mut self.late,
            FloodKind::EmptyFrames
            | FloodKind::Priorities
            | FloodKind::Settings
            | FloodKind::Pings
            | FloodKind::Continuations
            | FloodKind::UnknownFrames
            | FloodKind::RefusedStreams
            | FloodKind::ResetsOfClient => &mut self.control,
        };
        *store -= cost;
        if *store < 0 && self.spent.is_none() {
            self.spent = Some(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thousand_and_first_ping_is_one_too_many() {
        let mut flood = Flood::new(false);
        for _ in 0..1000 {
            flood.note(6, 0, 8);
        }
        assert_eq!(flood.spent(), None);
        flood.note(6, 0, 8);
        assert_eq!(flood.spent(), Some(FloodKind::Pings));
    }

    #[test]
    fn each_kind_is_counted_under_its_name() {
        for (kind, what) in [
            (0, FloodKind::EmptyFrames),
            (2, FloodKind::Priorities),
            (4, FloodKind::Settings),
            (6, FloodKind::Pings),
            (8, FloodKind::WindowUpdates),
            (9, FloodKind::Continuations),
            (5, FloodKind::UnknownFrames),
            (0xF0, FloodKind::UnknownFrames),
        ] {
            let mut flood = Flood::new(false);
            let most = (1..=3000).find(|_| {
                flood.note(kind, 0, 0);
                flood.spent().is_some()
            });
            assert_eq!(flood.spent(), Some(what));
            assert_eq!(
                most,
                Some(match what {
                    FloodKind::WindowUpdates => 2001,
                    _ => 1001,
                }),
                "{what:?}"
            );
        }
        for (is_early, what, expected) in [(true, FloodKind::Resets, 1_001), (false, FloodKind::EmptyFrames, 1001)] {
            let mut flood = Flood::new(false);
            let most = (1..=3000).find(|_| {
                flood.note_reset(is_early);
                flood.spent().is_some()
            });
            assert_eq!((flood.spent(), most), (Some(what), Some(expected)));
        }
        // What we are made to do is charged as what is done.
        let mut flood = Flood::new(false);
        (0..1_000).for_each(|_| flood.note_forced_reset());
        assert_eq!(flood.spent(), None);
        flood.note_forced_reset();
        assert_eq!(flood.spent(), Some(FloodKind::Resets));
        // What carries something, and what ends a stream, is no flood.
        let mut flood = Flood::new(false);
        for _ in 0..100_000 {
            flood.note(0, 0, 1);
            flood.note(0, 1, 0);
            flood.note(1, 4, 10);
            flood.note_request();
        }
        assert_eq!(flood.spent(), None);
    }

    #[test]
    fn requests_pay_for_what_is_said_with_them() {
        let mut flood = Flood::new(false);
        for _ in 0..100_000 {
            flood.note(1, 4, 10);
            flood.note_request();
            flood.note(2, 0, 5);
            flood.note(6, 0, 8);
        }
        assert_eq!(flood.spent(), None);
    }

    #[test]
    fn frames_that_come_too_late_have_a_store_of_their_own_that_requests_fill() {
        let mut flood = Flood::new(false);
        for _ in 0..8_192 {
            flood.note_late();
        }
        assert_eq!((flood.spent(), flood.control), (None, 1_000));
        flood.note_request();
        for _ in 0..32 {
            flood.note_late();
        }
        assert_eq!(flood.spent(), None);
        flood.note_late();
        assert_eq!(flood.spent(), Some(FloodKind::LateFrames));
        // An upload after the other that is refused early, each with 16 large frames on their way.
        let mut flood = Flood::new(false);
        for _ in 0..100_000 {
            flood.note_request();
            (0..17).for_each(|_| flood.note_late());
        }
        assert_eq!(flood.spent(), None);
    }

    #[test]
    fn the_thousand_and_first_request_that_is_refused_is_one_too_many() {
        let mut flood = Flood::new(false);
        (0..1_000).for_each(|_| flood.note_refused());
        assert_eq!(flood.spent(), None);
        flood.note_refused();
        assert_eq!(flood.spent(), Some(FloodKind::RefusedStreams));
    }

    #[test]
    fn time_and_answers_fill_the_stores_and_never_above_the_most() {
        let mut flood = Flood::new(false);
        let second = Span::from_secs(1);
        flood.fill(Tick::ZERO);
        for _ in 0..500 {
            flood.note_reset(true);
            flood.note_reset(true);
            flood.note(6, 0, 8);
        }
        (0..2_000).for_each(|_| flood.note_late());
        assert_eq!((flood.resets, flood.control, flood.late, flood.spent()), (0, 500, 6_192, None));
        flood.note_answered();
        flood.fill(Tick::ZERO + second);
        assert_eq!((flood.resets, flood.control, flood.late), (201, 600, 7_192));
        flood.fill(Tick::ZERO + Span::from_secs(3600));
        assert_eq!((flood.resets, flood.control, flood.late), (2_000, 1_000, 8_192));
    }

    #[test]
    fn one_reset_for_two_answers_is_borne_for_ever() {
        let mut flood = Flood::new(false);
        for _ in 0..100_000 {
            flood.note_reset(true);
            flood.note_answered();
            flood.note_answered();
        }
        assert_eq!(flood.spent(), None);
        for _ in 0..1_001 {
            flood.note_reset(true);
        }
        assert_eq!(flood.spent(), Some(FloodKind::Resets));
    }

    #[test]
    fn a_peer_that_speaks_for_many_may_cancel_ten_times_as_many_and_five_times_as_often() {
        let mut flood = Flood::new(true);
        flood.fill(Tick::ZERO);
        (0..10_000).for_each(|_| flood.note_reset(true));
        assert_eq!(flood.spent(), None);
        flood.fill(Tick::ZERO + Span::from_secs(1));
        (0..500).for_each(|_| flood.note_reset(true));
        assert_eq!(flood.spent(), None);
        flood.note_reset(true);
        assert_eq!(flood.spent(), Some(FloodKind::Resets));
    }

    #[test]
    fn who_opens_windows_late_for_much_that_came_is_no_flood() {
        let mut flood = Flood::new(false);
        for _ in 0..65_536 {
            flood.note_data_sent();
        }
        for _ in 0..4 * 65_536 + 2_000 {
            flood.note(8, 0, 4);
        }
        assert_eq!(flood.spent(), None);
        flood.note(8, 0, 4);
        assert_eq!(flood.spent(), Some(FloodKind::WindowUpdates));
    }

    #[test]
    fn windows_follow_the_data_that_goes_out() {
        let mut flood = Flood::new(false);
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
        assert_eq!(flood.spent(), Some(FloodKind::WindowUpdates));
    }
}
