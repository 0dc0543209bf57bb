use std::fmt;

use super::timer_wheel::TimerWheelError;
use super::warm_up::MAX_COLD_FACTOR;
use crate::MAX_RATES;
use crate::quota::{MAX_COUNT, Rate};
use sluicegate_time::Span;

/// Why parameters make no limit; each says what would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmError {
    /// Not one rate.
    NoRates,
    /// More than [`MAX_RATES`] rates.
    TooManyRates {
        /// How many there are.
        given: usize,
    },
    /// A window so long that nobody lives to see its end.
    WindowTooLong {
        /// The rate.
        rate: Rate,
        /// The longest.
        longest: Span,
    },
    /// A burst of 0 would admit nobody.
    ZeroBurst,
    /// A burst that takes more than a hundred years to refill, or is more than
    /// [`MAX_COUNT`](crate::MAX_COUNT).
    BurstTooLarge {
        /// The rate that refills it.
        rate: Rate,
        /// The burst.
        burst: u64,
        /// The largest.
        most: u64,
    },
    /// A cap of 0 for each sub-window would admit nobody.
    ZeroSlotLimit,
    /// The sub-windows do not divide the window.
    Slots(TimerWheelError),
    /// A leaky bucket in which nobody may wait.
    NobodyWaits,
    /// A log of more stamps than a key may have.
    LogTooLong {
        /// The rate.
        rate: Rate,
        /// The largest `L`.
        most: u64,
    },
    /// Requests that would have to be more than a hundred years apart.
    MinDifferenceTooLong {
        /// The longest.
        longest: Span,
    },
    /// More rest than may be saved up.
    BurstTooLong {
        /// The longest.
        longest: Span,
    },
    /// A warm-up of no time, or of too much.
    WarmUp {
        /// The longest.
        longest: Span,
    },
    /// A cold factor that makes a cold key no slower, or slower than [`MAX_COLD_FACTOR`](super::MAX_COLD_FACTOR) times.
    ColdFactor {
        /// The given factor.
        given: u32,
    },
    /// Nobody at once, or more than [`MAX_COUNT`](crate::MAX_COUNT).
    InFlight {
        /// The given number.
        given: u64,
    },
}

impl fmt::Display for AlgorithmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRates => write!(f, "there is no rate: give one, like \"100/s\""),
            Self::TooManyRates { given } => write!(f, "{given} rates in one limit: at most {MAX_RATES}"),
            Self::WindowTooLong { rate, longest } => {
                write!(f, "the window of {rate} is longer than {longest}: use a shorter one")
            }
            Self::ZeroBurst => write!(f, "a burst of 0 would admit nobody: give at least 1"),
            Self::BurstTooLarge { rate, burst, most } => {
                write!(f, "{rate} takes too long to refill a burst of {burst}: use burst = {most} or less")
            }
            Self::ZeroSlotLimit => write!(f, "a slot_limit of 0 would admit nobody: give at least 1"),
            Self::Slots(error) => write!(f, "{error}"),
            Self::NobodyWaits => write!(f, "a leaky bucket makes requests wait: give a max_waiting of at least 1"),
            Self::LogTooLong { rate, most } => write!(
                f,
                "a log of {} instants for each key is too long: use at most {most}, or sliding-counter for {rate}",
                rate.limit()
            ),
            Self::MinDifferenceTooLong { longest } => write!(f, "a min_difference is at most {longest}"),
            Self::BurstTooLong { longest } => write!(f, "the rest that is saved up is at most {longest}"),
            Self::WarmUp { longest } => write!(f, "a warm_up is from 1ms to {longest}"),
            Self::InFlight { given } => write!(f, "max_in_flight is from 1 to {MAX_COUNT}, not {given}"),
            Self::ColdFactor { given } => {
                write!(f, "a cold_factor is from 2 to {MAX_COLD_FACTOR}, not {given}")
            }
        }
    }
}

impl std::error::Error for AlgorithmError {}
