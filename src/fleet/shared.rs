use std::fmt;

use crate::limiter::{Algorithm, Align, Answer, Bound, MAX_COUNT, MAX_RATES, Rate, Refill, Settle};
use crate::time::Span;

words! {
    /// The limits that one script settles.
    pub enum Family {
        /// Timer wheels.
        Wheel = "wheel",
        /// Token buckets that refill evenly, and GCRA.
        Bucket = "bucket",
        /// Fixed windows, of the clock or opened by the first request.
        Window = "window",
    }
}

/// The largest `L` that a script multiplies with millionths exactly.
pub const MAX_SHARED: u64 = u32::MAX as u64;
/// The largest product of a burst and its window in microseconds: debts of eight bursts stay exact above it.
const MAX_PARTS: u128 = 1 << 49;
/// Up to here a script's integers are exact. As an answer: never.
const NEVER: i64 = (1 << 53) - 1;
const MICRO: u64 = 1_000;

/// A limit in the numbers that its script takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    family: Family,
    rates: Vec<[u64; 3]>,
}

/// Why a limit cannot be shared, and what can be instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotShared {
    /// Its algorithm has no script.
    Algorithm {
        /// The algorithm, as it is written.
        name: &'static str,
        /// The setting to write instead.
        instead: &'static str,
    },
    /// A window, or a slot of it, is no whole number of microseconds.
    Fraction {
        /// The rate.
        rate: Rate,
        /// How many slots its window has; 1 if none.
        slots: u32,
    },
    /// More than [`MAX_SHARED`] in a window or a burst.
    TooMany {
        /// The rate.
        rate: Rate,
    },
    /// A bucket's burst, times its window in microseconds, is above 2^49.
    Burst {
        /// The rate.
        rate: Rate,
        /// The burst.
        burst: u64,
        /// The largest that can be shared with this window.
        most: u64,
    },
}

impl SharedLimit {
    /// The limit of an algorithm, if it can be shared.
    pub fn new(algorithm: &Algorithm) -> Result<Self, NotShared> {
        let refuse = |instead| Err(NotShared::Algorithm { name: algorithm.name(), instead });
        match algorithm {
            Algorithm::TimerWheel(wheel) => {
                let more = u64::from(wheel.bound() == Bound::Strict);
                let slots = |index| wheel.slots_of(index).unwrap_or(1);
                let rate = |index, rate: &Rate| {
                    let slots = slots(index);
                    Ok([counted(*rate)?, micros(*rate, slots)?, u64::from(slots) + more])
                };
                Self::of(Family::Wheel, wheel.rates(), rate)
            }
            Algorithm::TokenBucket(bucket) if bucket.refill() == Refill::Greedy => {
                Self::of(Family::Bucket, bucket.rates(), |_, rate| {
                    bucket_of(*rate, bucket.burst().unwrap_or(rate.limit()))
                })
            }
            Algorithm::Gcra(gcra) => Self::of(Family::Bucket, gcra.rates(), |_, rate| bucket_of(*rate, gcra.burst())),
            Algorithm::FixedWindow(window) => {
                let Some(align) = window.align() else {
                    return refuse("windows of the clock: a rate like \"1000/h\", or \"1000/24h\", in UTC");
                };
                let align = u64::from(align == Align::First);
                Self::of(Family::Window, window.rates(), |_, rate| Ok([counted(*rate)?, micros(*rate, 1)?, align]))
            }
            Algorithm::TokenBucket(_) => refuse("refill = \"greedy\", or algorithm = \"fixed-window\""),
            Algorithm::LeakyBucket(_) => refuse("algorithm = \"gcra\""),
            Algorithm::SmoothBursty(_) | Algorithm::WarmUp(_) => refuse("algorithm = \"token-bucket\""),
            Algorithm::SlidingWindow(_) | Algorithm::SlidingCounter(_) | Algorithm::SlidingLog(_) => {
                refuse("algorithm = \"timer-wheel\"")
            }
            Algorithm::Concurrency(_) => refuse("a number for each gateway: the whole divided by the gateways"),
        }
    }

    fn of(
        family: Family,
        rates: &[Rate],
        numbers: impl Fn(usize, &Rate) -> Result<[u64; 3], NotShared>,
    ) -> Result<Self, NotShared> {
        let rates = rates.iter().enumerate().map(|(index, rate)| numbers(index, rate)).collect::<Result<_, _>>()?;
        Ok(Self { family, rates })
    }

    /// The numbers that two gateways have to agree on to count together: the family and the lengths of windows and slots, not `L`, which
    /// may be another while it is rolled out.
    pub fn layout(&self) -> Vec<u64> {
        let lengths = self.rates.iter().flat_map(|[_, length, other]| match self.family {
            Family::Bucket => [*length, 0],
            Family::Wheel | Family::Window => [*length, *other],
        });
        [self.family as u64].into_iter().chain(lengths).collect()
    }

    /// The family whose script settles it.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The arguments of the script: of a settle, of how long a grant is held at most, and of the rates. A part of a microsecond
    /// is rounded so that the settle is the stricter. Counts are at most [`MAX_COUNT`].
    pub fn arguments(&self, settle: &Settle, hold: Span) -> Vec<i64> {
        let whole = |number: u64| i64::try_from(number).unwrap_or(NEVER).min(NEVER);
        let count = |count: u64| whole(count.min(MAX_COUNT));
        let of_settle = [
            count(settle.spent),
            count(settle.back),
            whole(settle.back_age.as_nanos().div_ceil(MICRO)),
            count(settle.need),
            count(settle.want),
            i64::from(settle.share_ppm.min(1_000_000)),
            whole(hold.as_nanos() / MICRO),
        ];
        let of_rates = self.rates.iter().flatten().map(|number| whole(*number));
        of_settle.into_iter().chain(of_rates).collect()
    }

    /// The answer in a script's reply; `None`: it is no reply of that script.
    pub fn answer(&self, reply: &[i64]) -> Option<Answer> {
        let (&[granted, life, retry], remaining) = reply.split_first_chunk()?;
        if remaining.len() != self.rates.len() {
            return None;
        }
        let span = |micros: u64| Span::from_nanos(micros.saturating_mul(MICRO));
        let retry = match retry {
            -1 => None,
            NEVER => Some(Span::MAX),
            micros => Some(span(u64::try_from(micros).ok()?)),
        };
        let mut all = [0; MAX_RATES];
        for (to, from) in all.iter_mut().zip(remaining) {
            *to = u64::try_from(*from).ok()?;
        }
        let (granted, life) = (u64::try_from(granted).ok()?, span(u64::try_from(life).ok()?));
        Some(Answer { granted, life, retry, remaining: all })
    }
}

/// Whether a limit can be shared.
pub fn fits(algorithm: &Algorithm) -> Result<(), NotShared> {
    SharedLimit::new(algorithm).map(|_| ())
}

fn counted(rate: Rate) -> Result<u64, NotShared> {
    if rate.limit() > MAX_SHARED { Err(NotShared::TooMany { rate }) } else { Ok(rate.limit()) }
}

/// The microseconds of a slot.
fn micros(rate: Rate, slots: u32) -> Result<u64, NotShared> {
    let nanos = u64::from(slots.max(1)) * MICRO;
    let window = rate.window().as_nanos();
    if window.is_multiple_of(nanos) { Ok(window / nanos) } else { Err(NotShared::Fraction { rate, slots }) }
}

fn bucket_of(rate: Rate, burst: u64) -> Result<[u64; 3], NotShared> {
    let window = micros(rate, 1)?;
    let limit = counted(rate)?;
    let most = u64::try_from(MAX_PARTS / u128::from(window.max(1))).unwrap_or(u64::MAX).min(MAX_SHARED);
    if burst > most { Err(NotShared::Burst { rate, burst, most }) } else { Ok([limit, window, burst]) }
}

impl fmt::Display for NotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm { name, instead } => write!(f, "a limit of {name} cannot be shared: use {instead}"),
            Self::Fraction { rate, slots: 0 | 1 } => {
                write!(f, "the window of {rate} is no whole number of microseconds: a shared limit needs that")
            }
            Self::Fraction { rate, slots } => write!(
                f,
                "a slot of {rate}, the window divided by {slots}, is no whole number of microseconds: a shared limit needs \
                 that, use other slots"
            ),
            Self::TooMany { rate } => {
                write!(f, "{rate} is above what can be shared: use at most {MAX_SHARED}, in a shorter window")
            }
            Self::Burst { rate, burst, most: 0 } => write!(
                f,
                "the window of {rate} is too long for a shared bucket of {burst}: use a shorter window of the same rate, or \
                 algorithm = \"timer-wheel\""
            ),
            Self::Burst { rate, burst, most } => write!(
                f,
                "a bucket of {burst} with the window of {rate} is above what can be shared: use burst = {most} or less, a \
                 shorter window of the same rate, or algorithm = \"timer-wheel\""
            ),
        }
    }
}

impl std::error::Error for NotShared {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{
        CalendarRate, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow,
        SmoothBursty, TimerWheel, TokenBucket, WarmUp,
    };
    use crate::time::{CalendarUnit, Zone};

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn bucket(text: &str, burst: Option<u64>) -> Algorithm {
        Algorithm::TokenBucket(TokenBucket::new(&[rate(text)], burst, Refill::Greedy).unwrap())
    }

    fn wheel(text: &str, slots: Option<u32>, bound: Bound) -> Algorithm {
        Algorithm::TimerWheel(TimerWheel::new(&[rate(text)], slots, bound).unwrap())
    }

    #[test]
    fn a_limit_becomes_the_numbers_of_its_script() {
        let numbers = |algorithm: &Algorithm| {
            let shared = SharedLimit::new(algorithm).unwrap();
            (shared.family, shared.rates)
        };
        let second = 1_000_000;
        assert_eq!(numbers(&wheel("5/s", None, Bound::Sliding)), (Family::Wheel, vec![[5, second / 10, 10]]));
        assert_eq!(numbers(&wheel("5/s", Some(4), Bound::Strict)), (Family::Wheel, vec![[5, second / 4, 5]]));
        assert_eq!(numbers(&bucket("5/s", None)), (Family::Bucket, vec![[5, second, 5]]));
        assert_eq!(numbers(&bucket("5/s", Some(7))), (Family::Bucket, vec![[5, second, 7]]));
        let gcra = Algorithm::Gcra(Gcra::new(&[rate("5/s"), rate("6/m")], None).unwrap());
        assert_eq!(numbers(&gcra), (Family::Bucket, vec![[5, second, 1], [6, 60 * second, 1]]));
        for (align, number) in [(Align::Epoch, 0), (Align::First, 1)] {
            let window = Algorithm::FixedWindow(FixedWindow::new(&[rate("5/s")], align).unwrap());
            assert_eq!(numbers(&window), (Family::Window, vec![[5, second, number]]));
        }
    }

    #[test]
    fn numbers_that_are_too_large_or_too_fine_are_refused_at_the_edge() {
        let most = MAX_SHARED;
        let (ok, above) = (format!("{most}/s"), format!("{}/s", most + 1));
        assert_eq!(fits(&wheel(&ok, None, Bound::Sliding)), Ok(()));
        assert_eq!(fits(&wheel(&above, None, Bound::Sliding)), Err(NotShared::TooMany { rate: rate(&above) }));
        // 2^49 microseconds of a second each.
        assert_eq!(fits(&bucket("1/s", Some(562_949_953))), Ok(()));
        let refused = NotShared::Burst { rate: rate("1/s"), burst: 562_949_954, most: 562_949_953 };
        assert_eq!(fits(&bucket("1/s", Some(562_949_954))), Err(refused));
        assert_eq!(fits(&bucket("1/1us", Some(most))), Ok(()));
        assert!(matches!(fits(&bucket("1/1us", Some(most + 1))), Err(NotShared::Burst { .. })));
        assert_eq!(
            fits(&bucket("1/36500d", None)),
            Err(NotShared::Burst { rate: rate("1/36500d"), burst: 1, most: 0 }),
            "a century"
        );
        let fine = rate("1/1500ns");
        assert_eq!(fits(&bucket("1/1500ns", None)), Err(NotShared::Fraction { rate: fine, slots: 1 }));
        let third = fits(&wheel("1/1000002us", Some(3), Bound::Sliding));
        assert_eq!(third, Ok(()));
        let seventh = fits(&wheel("1/7000007us", Some(2), Bound::Sliding));
        assert_eq!(seventh, Err(NotShared::Fraction { rate: rate("1/7000007us"), slots: 2 }));
    }

    #[test]
    fn algorithms_without_a_script_are_refused_with_one_that_has() {
        let rates = [rate("5/s")];
        let day = CalendarRate::new(5, CalendarUnit::Day).unwrap();
        for (algorithm, instead) in [
            (Algorithm::LeakyBucket(LeakyBucket::new(&rates, None).unwrap()), "gcra"),
            (Algorithm::SmoothBursty(SmoothBursty::new(&rates, None).unwrap()), "token-bucket"),
            (Algorithm::WarmUp(WarmUp::new(&rates, Span::from_secs(1), None).unwrap()), "token-bucket"),
            (Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Interval).unwrap()), "greedy"),
            (Algorithm::SlidingWindow(SlidingWindow::new(&rates, None, None).unwrap()), "timer-wheel"),
            (Algorithm::SlidingCounter(SlidingCounter::new(&rates).unwrap()), "timer-wheel"),
            (Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, false).unwrap()), "timer-wheel"),
            (Algorithm::FixedWindow(FixedWindow::of_calendar(&[day], &Zone::utc()).unwrap()), "of the clock"),
            (Algorithm::Concurrency(Concurrency::new(5).unwrap()), "each gateway"),
        ] {
            let refused = fits(&algorithm).unwrap_err().to_string();
            assert!(refused.contains(algorithm.name()) && refused.contains(instead), "{refused}");
        }
    }

    #[test]
    fn a_reply_of_another_shape_is_no_answer() {
        let shared = SharedLimit::new(&wheel("5/s", None, Bound::Sliding)).unwrap();
        let answer = Answer { granted: 1, life: Span::from_nanos(2_000), retry: None, remaining: [3, 0, 0, 0] };
        assert_eq!(shared.answer(&[1, 2, -1, 3]), Some(answer));
        assert_eq!(shared.answer(&[0, 0, 7, 0]).unwrap().retry, Some(Span::from_nanos(7_000)));
        assert_eq!(shared.answer(&[0, 0, NEVER, 0]).unwrap().retry, Some(Span::MAX));
        let wrong: [&[i64]; 8] = [
            &[],
            &[1],
            &[1, 2, 3],
            &[1, 2, 3, 4, 5],
            &[-1, 2, -1, 3],
            &[1, -2, -1, 3],
            &[1, 2, -2, 3],
            &[1, 2, -1, -3],
        ];
        for reply in wrong {
            assert_eq!(shared.answer(reply), None, "{reply:?}");
        }
    }

    #[test]
    fn parts_of_a_microsecond_make_a_settle_stricter() {
        let shared = SharedLimit::new(&bucket("5/s", None)).unwrap();
        let nanos = Span::from_nanos;
        let settle = Settle { spent: 1, back: 2, back_age: nanos(3_001), need: 4, want: 5, share_ppm: 6 };
        assert_eq!(shared.arguments(&settle, nanos(7_999)), [1, 2, 4, 4, 5, 6, 7, 5, 1_000_000, 5]);
        let most = u64::MAX;
        let settle =
            Settle { spent: most, back: most, back_age: Span::MAX, need: most, want: most, share_ppm: u32::MAX };
        let count = MAX_COUNT.cast_signed();
        assert_eq!(
            shared.arguments(&settle, Span::MAX)[..7],
            [count, count, NEVER, count, count, 1_000_000, NEVER].map(|number: i64| number)
        );
    }
}
