use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{Span, Tick};

/// The one place where time is read.
///
/// `System` is Unix time read once at start plus monotonic time since, so that windows aligned to the epoch work
/// and a stepped wall clock moves nothing.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock.
    System {
        /// When the process started, by the monotonic clock.
        started: Instant,
        /// The same instant in Unix nanoseconds.
        epoch: Tick,
    },
    /// A clock that a test or a simulation moves by hand.
    Manual(ManualClock),
}

impl Clock {
    /// The machine's clock, read from now on.
    #[allow(clippy::disallowed_methods, reason = "this file is the door that the ban points to")]
    pub fn system() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::System { started: Instant::now(), epoch: Tick::ZERO + epoch.into() }
    }

    /// The present time. About 27 ns: read it once per exchange and carry it.
    #[inline]
    #[allow(clippy::disallowed_methods, reason = "this file is the door that the ban points to")]
    pub fn now(&self) -> Tick {
        match self {
            Self::System { started, epoch } => *epoch + Span::from(Instant::now().duration_since(*started)),
            Self::Manual(manual) => manual.now(),
        }
    }
}

/// A clock that stands still until it is moved; starts at tick 0.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock at tick 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The present time.
    pub fn now(&self) -> Tick {
        Tick::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Span) {
        self.0.fetch_add(by.as_nanos(), Ordering::AcqRel);
    }
}
