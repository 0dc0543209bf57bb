use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{Span, Tick, Wall, WallOffset, WallState};

/// How often both clocks are read, to find them in one instant.
const READINGS: u32 = 3;
/// So short is one.
const INSTANT: Span = Span::from_nanos(50_000);

/// A wall clock is no further away from ticks: what says so is no clock.
const FURTHEST: Span = Span::from_secs(100 * 366 * 86_400);

/// Where ticks of the machine's clock begin, for the whole process.
static ORIGIN: Mutex<Option<(Instant, Tick)>> = Mutex::new(None);

/// The one place where time is read.
///
/// `System` is Unix time read once at start plus monotonic time since, so that a stepped wall clock moves no limit. The time
/// that people see is [`wall`](Self::wall), which follows such a step.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock.
    System {
        /// When the process started, by the monotonic clock.
        started: Instant,
        /// The same instant as a tick.
        origin: Tick,
        /// How far the wall clock is ahead of ticks.
        offset: WallOffset,
    },
    /// A clock that a test or a simulation moves by hand.
    Manual(ManualClock),
}

impl Clock {
    /// The machine's clock. All of a process are one.
    pub fn system() -> Self {
        let mut origin = ORIGIN.lock().unwrap_or_else(PoisonError::into_inner);
        let (started, origin) = *origin.get_or_insert_with(|| {
            let (started, wall, _) = readings();
            (started, Tick::from_nanos(wall.as_nanos()))
        });
        Self::System { started, origin, offset: WallOffset::of_system() }
    }

    /// The machine's clock, from now on with the ticks of a process before: an instant is the same tick in both, however the
    /// wall clock was set while that one ran. To be called before anything else holds ticks.
    pub fn resume(state: &WallState) -> Self {
        if state.ahead.unsigned_abs() > FURTHEST.as_nanos() {
            return Self::system();
        }
        let (started, wall, _) = readings();
        let origin = Tick::from_nanos(wall.as_nanos().saturating_add_signed(state.ahead.saturating_neg()));
        let offset = WallOffset::of_system();
        offset.resume(state, origin);
        *ORIGIN.lock().unwrap_or_else(PoisonError::into_inner) = Some((started, origin));
        Self::System { started, origin, offset }
    }

    /// The present time. About 27 ns: read it once per exchange and carry it.
    #[inline]
    #[allow(clippy::disallowed_methods, reason = "this file is the door that the ban points to")]
    pub fn now(&self) -> Tick {
        match self {
            Self::System { started, origin, .. } => *origin + Span::from(Instant::now().duration_since(*started)),
            Self::Manual(manual) => manual.now(),
        }
    }

    /// How far the wall clock is ahead of ticks.
    #[inline]
    pub fn offset(&self) -> &WallOffset {
        match self {
            Self::System { offset, .. } => offset,
            Self::Manual(manual) => &manual.0.offset,
        }
    }

    /// The reading of the wall clock at a tick.
    #[inline]
    pub fn wall(&self, tick: Tick) -> Wall {
        self.offset().wall(tick)
    }

    /// The reading of the wall clock now.
    pub fn wall_now(&self) -> Wall {
        self.wall(self.now())
    }

    /// All that a process that comes next has to know, to go on with the same ticks.
    pub fn wall_state(&self) -> WallState {
        let (now, wall) = self.readings();
        let ahead = i128::from(wall.as_nanos()) - i128::from(now.as_nanos());
        WallState { ahead: i64::try_from(ahead).unwrap_or(0), ..self.offset().state(now) }
    }

    /// Reads the wall clock, and follows it if it was set; answers by how many nanoseconds. To be called each second by one
    /// thread.
    pub fn follow_wall(&self) -> i64 {
        let (now, wall) = self.readings();
        self.offset().follow(now, wall)
    }

    fn readings(&self) -> (Tick, Wall) {
        match self {
            Self::Manual(manual) => (manual.now(), manual.wall()),
            Self::System { started, origin, .. } => {
                let (at, wall, _) = readings();
                (*origin + Span::from(at.duration_since(*started)), wall)
            }
        }
    }
}

/// Both clocks at one instant, and how long the readings took. A thread that had to wait in between reads them again.
#[allow(clippy::disallowed_methods, reason = "this file is the door that the ban points to")]
fn readings() -> (Instant, Wall, Span) {
    let read = || {
        let before = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let took = Span::from(Instant::now().duration_since(before));
        (before, Wall::EPOCH + wall.into(), took)
    };
    let mut best = read();
    for _ in 1..READINGS {
        if best.2 <= INSTANT {
            break;
        }
        best = Some(read()).filter(|next| next.2 < best.2).unwrap_or(best);
    }
    best
}

/// A clock that stands still until it is moved; starts at tick 0. So does its wall clock, until that is set.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Hands>);

#[derive(Debug, Default)]
struct Hands {
    now: AtomicU64,
    /// The wall clock's distance from ticks, which [`Clock::follow_wall`] finds.
    ahead: AtomicI64,
    offset: WallOffset,
}

impl ManualClock {
    /// A clock at tick 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The present time.
    pub fn now(&self) -> Tick {
        Tick::from_nanos(self.0.now.load(Ordering::Acquire))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Span) {
        self.0.now.fetch_add(by.as_nanos(), Ordering::AcqRel);
    }

    /// Sets the wall clock forward.
    pub fn set_wall_forward(&self, by: Span) {
        self.0.ahead.fetch_add(by.as_nanos().cast_signed(), Ordering::AcqRel);
    }

    /// Sets the wall clock back.
    pub fn set_wall_back(&self, by: Span) {
        self.0.ahead.fetch_sub(by.as_nanos().cast_signed(), Ordering::AcqRel);
    }

    fn wall(&self) -> Wall {
        Wall::from_nanos(self.now().as_nanos().saturating_add_signed(self.0.ahead.load(Ordering::Acquire)))
    }
}
