use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jiff::Timestamp;

use super::{Span, Tick};

/// A wall clock that differs by less is not followed: two clocks cannot be read at one instant.
const NOTICED: u64 = 1_000_000;
/// How long a wall clock that was set back is remembered, by the monotonic clock.
const REMEMBERED: Span = Span::from_secs(86_400);
/// How many of them are remembered. Where there are more the later ones are held for one.
const MAX_PEAKS: usize = 16;

static SYSTEM: LazyLock<WallOffset> = LazyLock::new(WallOffset::default);

/// An instant as the wall clock shows it: nanoseconds of Unix time. Whatever is shown, or comes from outside, is one; a
/// [`Tick`] is of this process alone, and only a [`WallOffset`] makes one of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(u64);

/// How far the wall clock is ahead of ticks. All clones are one. It is 0 where a process starts, and follows the wall clock
/// when that is set ([`Clock::follow_wall`](super::Clock::follow_wall)).
#[derive(Clone, Debug, Default)]
pub struct WallOffset(Arc<WallClockState>);

/// The state of the wall clock, as one process tells it the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallState {
    /// Nanoseconds by which the wall clock is ahead of ticks.
    pub ahead: i64,
    /// The highest time that it has shown, if it was set back since; else the epoch.
    pub highest: Wall,
    /// How long that counts.
    pub highest_for: Span,
}

#[derive(Debug, Default)]
struct WallClockState {
    ahead: AtomicI64,
    /// The first of the peaks, as two words; 0 is none.
    highest: AtomicU64,
    highest_until: AtomicU64,
    /// Each is lower than the one before it and counts for longer.
    peaks: Mutex<Vec<Peak>>,
}

/// The time that a wall clock showed when it was set back.
#[derive(Clone, Copy, Debug)]
struct Peak {
    wall: Wall,
    until: Tick,
}

impl Wall {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last instant that can be represented.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `secs` seconds after the epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// The instant as people write it.
    pub fn timestamp(self) -> Timestamp {
        Timestamp::from_nanosecond(self.0.into()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Wall {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.as_nanos()))
    }
}

impl Sub<Span> for Wall {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.as_nanos()))
    }
}

impl WallOffset {
    /// That of the machine, for the whole process.
    pub fn of_system() -> Self {
        SYSTEM.clone()
    }

    /// The reading of the wall clock at a tick.
    #[inline]
    pub fn wall(&self, tick: Tick) -> Wall {
        Wall(tick.as_nanos().saturating_add_signed(self.0.ahead.load(Ordering::Acquire)))
    }

    /// The tick at which the wall clock shows a time, if it is not set again.
    pub fn tick(&self, wall: Wall) -> Tick {
        Tick::from_nanos(wall.0.saturating_add_signed(self.0.ahead.load(Ordering::Acquire).saturating_neg()))
    }

    /// The highest reading of the last 24 hours, and the tick until which it counts if the clock was set back since.
    #[inline]
    pub(super) fn highest(&self, now: Tick) -> (Wall, Tick) {
        // Before the peak: the offset is stored behind it.
        let shown = self.wall(now);
        let highest = Wall(self.0.highest.load(Ordering::Relaxed));
        if highest <= shown {
            return (shown, Tick::MAX);
        }
        match Tick::from_nanos(self.0.highest_until.load(Ordering::Relaxed)) {
            until if now < until => (highest, until),
            _ => (shown, Tick::MAX),
        }
    }

    /// From now on the wall clock is where it was `read`. Answers by how many nanoseconds it was set; 0 is not at all.
    pub fn follow(&self, now: Tick, read: Wall) -> i64 {
        let ahead = i128::from(read.0) - i128::from(now.as_nanos());
        let ahead = i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX });
        let moved = ahead.saturating_sub(self.0.ahead.load(Ordering::Relaxed));
        let mut peaks = self.0.peaks.lock().unwrap_or_else(PoisonError::into_inner);
        if moved.unsigned_abs() < NOTICED {
            self.publish(&mut peaks, now);
            return 0;
        }
        if moved < 0 {
            let peak = Peak { wall: self.wall(now), until: now + REMEMBERED };
            peaks.retain(|other| other.wall > peak.wall);
            if peaks.len() == MAX_PEAKS
                && let Some(last) = peaks.last_mut()
            {
                last.until = peak.until;
            } else {
                peaks.push(peak);
            }
        }
        // It is there before the offset that makes it needed.
        self.publish(&mut peaks, now);
        self.0.ahead.store(ahead, Ordering::Release);
        moved
    }

    fn publish(&self, peaks: &mut Vec<Peak>, now: Tick) {
        peaks.retain(|peak| now < peak.until);
        let first = peaks.first().copied().unwrap_or(Peak { wall: Wall::EPOCH, until: Tick::ZERO });
        self.0.highest_until.store(first.until.as_nanos(), Ordering::Relaxed);
        self.0.highest.store(first.wall.0, Ordering::Relaxed);
    }

    /// All that a process that comes next has to know of it.
    pub fn state(&self, now: Tick) -> WallState {
        let (highest, until) = self.highest(now);
        let ahead = self.0.ahead.load(Ordering::Acquire);
        match until {
            Tick::MAX => WallState { ahead, ..WallState::default() },
            until => WallState { ahead, highest, highest_for: until.since(now) },
        }
    }

    /// Goes on where a process before was.
    pub(super) fn resume(&self, state: &WallState, now: Tick) {
        let mut peaks = self.0.peaks.lock().unwrap_or_else(PoisonError::into_inner);
        peaks.clear();
        if !state.highest_for.is_zero() {
            peaks.push(Peak { wall: state.highest, until: now + state.highest_for.min(REMEMBERED) });
        }
        self.publish(&mut peaks, now);
        self.0.ahead.store(state.ahead, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    fn at(hours: u64) -> Tick {
        Tick::from_nanos(hours * HOUR)
    }

    fn wall(hours: u64) -> Wall {
        Wall::from_nanos(hours * HOUR)
    }

    #[test]
    fn a_tick_and_a_time_of_the_wall_clock_are_made_of_each_other() {
        let offset = WallOffset::default();
        assert_eq!((offset.wall(at(5)), offset.tick(wall(5))), (wall(5), at(5)));
        assert_eq!(offset.follow(at(5), wall(8)), 3 * HOUR.cast_signed());
        assert_eq!((offset.wall(at(5)), offset.tick(wall(8))), (wall(8), at(5)));
        assert_eq!(offset.follow(at(6), wall(1)), -8 * HOUR.cast_signed());
        assert_eq!((offset.wall(at(6)), offset.tick(wall(1))), (wall(1), at(6)));
        assert_eq!(offset.wall(at(2)), Wall::EPOCH, "it saturates");
        assert_eq!(offset.tick(Wall::MAX), Tick::MAX);
    }

    #[test]
    fn readings_of_two_clocks_that_differ_by_less_than_a_millisecond_are_one() {
        let offset = WallOffset::default();
        for nanos in [1, NOTICED - 1] {
            assert_eq!(offset.follow(at(1), wall(1) + Span::from_nanos(nanos)), 0);
            assert_eq!(offset.follow(at(1), wall(1) - Span::from_nanos(nanos)), 0);
        }
        assert_eq!(offset.wall(at(1)), wall(1));
        assert_eq!(offset.follow(at(1), wall(1) + Span::from_nanos(NOTICED)), NOTICED.cast_signed());
    }

    #[test]
    fn the_highest_reading_counts_for_a_day_of_the_monotonic_clock() {
        let offset = WallOffset::default();
        assert_eq!(offset.highest(at(5)), (wall(5), Tick::MAX));
        offset.follow(at(10), wall(1_000));
        assert_eq!(offset.highest(at(11)), (wall(1_001), Tick::MAX), "it was not set back");
        offset.follow(at(12), wall(12));
        assert_eq!(offset.highest(at(12)), (wall(1_002), at(36)));
        assert_eq!(offset.highest(at(35)), (wall(1_002), at(36)));
        assert_eq!(offset.highest(at(36)), (wall(36), Tick::MAX));
        // It is passed, and means nothing any more.
        offset.follow(at(40), wall(39));
        assert_eq!(offset.highest(at(40)), (wall(40), at(64)));
        assert_eq!(offset.highest(at(41)), (wall(40), Tick::MAX));
        assert_eq!(offset.highest(at(42)), (wall(41), Tick::MAX));
    }

    #[test]
    fn of_several_steps_back_the_highest_that_is_not_a_day_old_counts() {
        let offset = WallOffset::default();
        offset.follow(at(100), wall(200));
        offset.follow(at(101), wall(150));
        offset.follow(at(110), wall(120));
        assert_eq!(offset.highest(at(110)), (wall(201), at(125)));
        offset.follow(at(125), offset.wall(at(125)));
        assert_eq!(offset.highest(at(125)), (wall(159), at(134)));
        for hour in 0..100 {
            offset.follow(at(126), wall(400 - hour));
        }
        assert_eq!(offset.0.peaks.lock().unwrap().len(), MAX_PEAKS);
        assert_eq!(offset.highest(at(126)).0, wall(400));
    }

    #[test]
    fn the_next_process_goes_on_from_there() {
        let (old, new) = (WallOffset::default(), WallOffset::default());
        old.follow(at(10), wall(20));
        assert_eq!(old.state(at(10)), WallState { ahead: 10 * HOUR.cast_signed(), ..WallState::default() });
        old.follow(at(11), wall(5));
        new.resume(&old.state(at(12)), at(12));
        for hour in [12, 20, 34, 35, 50] {
            assert_eq!((new.wall(at(hour)), new.highest(at(hour))), (old.wall(at(hour)), old.highest(at(hour))));
        }
    }
}
