use std::fmt;

use sluicegate_limiter::{Algorithm, Align, Bound, MAX_COUNT, MAX_RATES, Rate, Refill, Settle, SettleAnswer};
use sluicegate_time::{Calendar, Span, Wall, Weekday};

words! {
    /// The limits that one script settles.
    pub enum Family {
        /// Timer wheels, and sliding windows, whose slots have a cap.
        Wheel = "wheel",
        /// Token buckets that refill evenly, and GCRA.
        Bucket = "bucket",
        /// Fixed windows, of the clock or opened by the first request.
        Window = "window",
        /// Sliding counters.
        Counter = "counter",
        /// Sliding logs.
        Log = "log",
        /// Fixed windows of a calendar.
        Calendar = "calendar",
    }
}

/// The largest `L` that a script multiplies with millionths exactly.
pub const MAX_SHARED: u64 = u32::MAX as u64;
/// The largest product of a burst and its window in microseconds: debts of eight bursts stay exact above it.
const MAX_PARTS: u128 = 1 << 49;
/// The longest window, in microseconds, of which a script takes parts exactly: 71 years.
const MAX_WINDOW: u64 = 1 << 51;
/// Up to here a script's integers are exact. As an answer: never.
const NEVER: i64 = (1 << 53) - 1;
const MICRO: u64 = 1_000;

/// A limit in the numbers that its script takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    family: Family,
    rates: Vec<[u64; 4]>,
    /// Of each rate, where windows are those of a calendar; otherwise none.
    calendars: Vec<Calendar>,
}

/// A script's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// The answer; `None`: the settle came too late, or in another window of a calendar than it named, and was not done.
    pub answer: Option<SettleAnswer>,
    /// The store's clock, in microseconds since 1970.
    pub clock: u64,
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
    /// It can be shared, but not leased: what is reported later has no instant.
    NotLeased {
        /// The algorithm, as it is written.
        name: &'static str,
    },
    /// It cannot be shared with this setting.
    Setting {
        /// The algorithm, as it is written.
        name: &'static str,
        /// The setting, as it is written.
        setting: &'static str,
    },
    /// Gateways without a store cannot tell each other what they count of it.
    Untold {
        /// The algorithm, as it is written.
        name: &'static str,
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
    /// A counter's window is above 2^51 microseconds.
    TooLong {
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
                    Ok([counted(*rate)?, micros(*rate, slots)?, u64::from(slots) + more, 0])
                };
                Self::of(Family::Wheel, wheel.rates(), rate)
            }
            Algorithm::TokenBucket(bucket) if bucket.refill() == Refill::Greedy => {
                Self::of(Family::Bucket, bucket.rates(), |_, rate| {
                    bucket_of(*rate, bucket.burst().unwrap_or(rate.limit()))
                })
            }
            Algorithm::Gcra(gcra) => Self::of(Family::Bucket, gcra.rates(), |_, rate| bucket_of(*rate, gcra.burst())),
            Algorithm::SlidingWindow(window) => Self::of(Family::Wheel, window.rates(), |index, rate| {
                let slots = window.slots_of(index).unwrap_or(1);
                let cap = window.slot_limit_of(index).unwrap_or(rate.limit());
                Ok([counted(*rate)?, micros(*rate, slots)?, u64::from(slots), cap])
            }),
            Algorithm::FixedWindow(window) => {
                let Some(align) = window.align() else {
                    let calendars = (0..window.rates().len()).filter_map(|rate| window.calendar_of(rate).cloned());
                    let calendars = calendars.collect();
                    let usual = |_, rate: &Rate| Ok([counted(*rate)?, micros(*rate, 1)?, 0, 0]);
                    return Ok(Self { calendars, ..Self::of(Family::Calendar, window.rates(), usual)? });
                };
                let align = u64::from(align == Align::First);
                Self::of(Family::Window, window.rates(), |_, rate| Ok([counted(*rate)?, micros(*rate, 1)?, align, 0]))
            }
            Algorithm::TokenBucket(_) => refuse("refill = \"greedy\", or algorithm = \"fixed-window\""),
            Algorithm::LeakyBucket(_) => refuse("algorithm = \"gcra\""),
            Algorithm::SmoothBursty(_) | Algorithm::WarmUp(_) => refuse("algorithm = \"token-bucket\""),
            Algorithm::SlidingCounter(counter) => Self::of(Family::Counter, counter.rates(), |_, rate| {
                let window = micros(*rate, 1)?;
                if window > MAX_WINDOW {
                    Err(NotShared::TooLong { rate: *rate })
                } else {
                    Ok([counted(*rate)?, window, 0, 0])
                }
            }),
            Algorithm::SlidingLog(log) if !log.min_difference().is_zero() => {
                Err(NotShared::Setting { name: algorithm.name(), setting: "min_difference" })
            }
            Algorithm::SlidingLog(log) if log.count_refused() => {
                Err(NotShared::Setting { name: algorithm.name(), setting: "count_refused" })
            }
            Algorithm::SlidingLog(log) => {
                Self::of(Family::Log, log.rates(), |_, rate| Ok([counted(*rate)?, micros(*rate, 1)?, 0, 0]))
            }
            Algorithm::Concurrency(_) => refuse("a number for each gateway: the whole divided by the gateways"),
        }
    }

    fn of(
        family: Family,
        rates: &[Rate],
        numbers: impl Fn(usize, &Rate) -> Result<[u64; 4], NotShared>,
    ) -> Result<Self, NotShared> {
        let rates = rates.iter().enumerate().map(|(index, rate)| numbers(index, rate)).collect::<Result<_, _>>()?;
        Ok(Self { family, rates, calendars: Vec::new() })
    }

    /// The numbers that two gateways have to agree on to count together: the family, the lengths of windows and slots, of a
    /// calendar the usual ones and the zone, not `L`, which may be another while it is rolled out.
    pub fn layout(&self) -> Vec<u64> {
        let lengths = self.rates.iter().flat_map(|[_, length, other, _]| match self.family {
            Family::Bucket | Family::Counter | Family::Log | Family::Calendar => [*length, 0],
            Family::Wheel | Family::Window => [*length, *other],
        });
        // All rates have one zone.
        let zone = self.calendars.first().map(|calendar| calendar.zone().name()).unwrap_or_default();
        // Weeks from Monday on are told as they were before another day could be the first.
        let week_start = self.calendars.iter().find_map(Calendar::week_start).filter(|day| *day != Weekday::Monday);
        let week_start = week_start.map(|day| u64::from(u32::MAX) + day as u64);
        let texts = zone.bytes().map(u64::from).chain(week_start);
        [self.family as u64].into_iter().chain(lengths).chain(texts).collect()
    }

    /// The family whose script settles it.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The arguments of the script: of a settle, of how long a grant is held at most, of the last instant at which the settle
    /// may be done, and of the rates. That instant is by the store's clock, in microseconds since 1970; `None`: at any. Of
    /// a calendar each rate carries its window at `clock`, at which the store's clock is thought to be: the store does not
    /// know zones, and does nothing if its clock is in another window. A part of a microsecond is rounded so that the settle
    /// is the stricter. Counts are at most [`MAX_COUNT`].
    pub fn arguments(&self, settle: &Settle, hold: Span, latest: Option<u64>, clock: u64) -> Vec<i64> {
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
            latest.map_or(NEVER, whole),
        ];
        let mut rates = self.rates.clone();
        for ([_, from, until, _], calendar) in rates.iter_mut().zip(&self.calendars) {
            let window = calendar.window(Wall::from_nanos(clock.saturating_mul(MICRO)));
            (*from, *until) = (window.from.as_nanos() / MICRO, window.until.as_nanos() / MICRO);
        }
        of_settle.into_iter().chain(rates.into_iter().flatten().map(whole)).collect()
    }

    /// Reads a script's reply; `None`: it is no reply of that script.
    pub fn reply(&self, reply: &[i64]) -> Option<ScriptReply> {
        let (&[granted, life, retry, out], rest) = reply.split_first_chunk()?;
        let (clock, remaining) = rest.split_last()?;
        let clock = u64::try_from(*clock).ok()?;
        if remaining.len() != self.rates.len() {
            return None;
        }
        if granted == -1 {
            return Some(ScriptReply { answer: None, clock });
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
        let out = span(u64::try_from(out).ok()?);
        Some(ScriptReply { answer: Some(SettleAnswer { granted, life, retry, out, remaining: all }), clock })
    }
}

/// Whether a limit can be shared, and leased if it is to be.
pub fn fits(algorithm: &Algorithm, is_leased: bool) -> Result<(), NotShared> {
    match SharedLimit::new(algorithm)?.family {
        Family::Log if is_leased => Err(NotShared::NotLeased { name: algorithm.name() }),
        _ => Ok(()),
    }
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

fn bucket_of(rate: Rate, burst: u64) -> Result<[u64; 4], NotShared> {
    let window = micros(rate, 1)?;
    let limit = counted(rate)?;
    let most = u64::try_from(MAX_PARTS / u128::from(window.max(1))).unwrap_or(u64::MAX).min(MAX_SHARED);
    if burst > most { Err(NotShared::Burst { rate, burst, most }) } else { Ok([limit, window, burst, 0]) }
}

impl fmt::Display for NotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm { name, instead } => write!(f, "a limit of {name} cannot be shared: use {instead}"),
            Self::Untold { name } => write!(
                f,
                "a limit of {name} cannot be shared without a store: use algorithm = \"token-bucket\" with greedy refill or \"gcra\", or a store"
            ),
            Self::NotLeased { name } => write!(f, "a limit of {name} cannot be leased: use shared = \"strict\""),
            Self::Setting { name, setting } => {
                write!(f, "a limit of {name} with {setting} cannot be shared: remove {setting}")
            }
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
            Self::TooLong { rate } => {
                write!(f, "the window of {rate} is too long for a shared sliding-counter: use at most 26062d")
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
    use sluicegate_limiter::{
        CalendarRate, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow,
        SmoothBursty, TimerWheel, TokenBucket, WarmUp,
    };
    use sluicegate_time::{CalendarUnit, Zone};

    /// Whether it can be leased.
    fn fits(algorithm: &Algorithm) -> Result<(), NotShared> {
        super::fits(algorithm, true)
    }

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
        assert_eq!(numbers(&wheel("5/s", None, Bound::Sliding)), (Family::Wheel, vec![[5, second / 10, 10, 0]]));
        assert_eq!(numbers(&wheel("5/s", Some(4), Bound::Strict)), (Family::Wheel, vec![[5, second / 4, 5, 0]]));
        assert_eq!(numbers(&bucket("5/s", None)), (Family::Bucket, vec![[5, second, 5, 0]]));
        assert_eq!(numbers(&bucket("5/s", Some(7))), (Family::Bucket, vec![[5, second, 7, 0]]));
        let gcra = Algorithm::Gcra(Gcra::new(&[rate("5/s"), rate("6/m")], None).unwrap());
        assert_eq!(numbers(&gcra), (Family::Bucket, vec![[5, second, 1, 0], [6, 60 * second, 1, 0]]));
        for (align, number) in [(Align::Epoch, 0), (Align::First, 1)] {
            let window = Algorithm::FixedWindow(FixedWindow::new(&[rate("5/s")], align).unwrap());
            assert_eq!(numbers(&window), (Family::Window, vec![[5, second, number, 0]]));
        }
        let sliding = |slot_limit| {
            Algorithm::SlidingWindow(SlidingWindow::new(&[rate("50/s"), rate("7/m")], Some(5), slot_limit).unwrap())
        };
        let sub_windows = |caps: [u64; 2]| vec![[50, second / 5, 5, caps[0]], [7, 12 * second, 5, caps[1]]];
        assert_eq!(numbers(&sliding(None)), (Family::Wheel, sub_windows([20, 3])));
        assert_eq!(numbers(&sliding(Some(9))), (Family::Wheel, sub_windows([9, 7])), "at most the limit");
        let counter = Algorithm::SlidingCounter(SlidingCounter::new(&[rate("5/s")]).unwrap());
        assert_eq!(numbers(&counter), (Family::Counter, vec![[5, second, 0, 0]]));
        let log = Algorithm::SlidingLog(SlidingLog::new(&[rate("5/s"), rate("9/m")], Span::ZERO, false).unwrap());
        assert_eq!(numbers(&log), (Family::Log, vec![[5, second, 0, 0], [9, 60 * second, 0, 0]]));
        assert_eq!(super::fits(&log, false), Ok(()));
        let layout = |algorithm| SharedLimit::new(&algorithm).unwrap().layout();
        assert_eq!(layout(sliding(None)), layout(sliding(Some(9))), "a cap may be rolled like a limit");
    }

    #[test]
    fn a_limit_of_a_calendar_carries_the_windows_of_an_instant_and_counts_by_unit_and_zone() {
        let of = |limit, unit, zone: &str| {
            let rates = [CalendarRate::new(limit, unit).unwrap(), CalendarRate::new(9, CalendarUnit::Month).unwrap()];
            let window = FixedWindow::of_calendar(&rates, &Zone::named(zone).unwrap()).unwrap();
            SharedLimit::new(&Algorithm::FixedWindow(window)).unwrap()
        };
        let berlin = of(5, CalendarUnit::Day, "Europe/Berlin");
        assert_eq!(berlin.family(), Family::Calendar);
        let rates = |clock| berlin.arguments(&Settle::default(), Span::ZERO, None, clock).split_off(8);
        // 28 March 2026, 23:00 UTC, when the day of 23 hours begins in Berlin, and 22:00 UTC, when it ends. March there
        // begins at 23:00 UTC and ends at 22:00 UTC.
        let (begins, ends) = (1_774_738_800_000_000_i64, 1_774_821_600_000_000);
        let march = [9, 1_772_319_600_000_000, 1_774_994_400_000_000, 0];
        for (clock, day) in [
            (begins - 1, [5, begins - 86_400_000_000, begins, 0]),
            (begins, [5, begins, ends, 0]),
            (ends - 1, [5, begins, ends, 0]),
            (ends, [5, ends, ends + 86_400_000_000, 0]),
        ] {
            assert_eq!(rates(clock.cast_unsigned()), [day, march].concat(), "at {clock}");
        }
        assert_eq!(berlin.layout(), of(6, CalendarUnit::Day, "europe/berlin").layout(), "L may be rolled");
        let others = [(CalendarUnit::Day, "Europe/Paris"), (CalendarUnit::Week, "Europe/Berlin")];
        for (unit, zone) in others {
            assert_ne!(berlin.layout(), of(5, unit, zone).layout(), "{unit:?} of {zone}");
        }
        let weeks = |day| {
            let rates = ["5/week".parse().unwrap(), "9/month".parse().unwrap()];
            let window = FixedWindow::of_calendar(&rates, &Zone::named("Europe/Berlin").unwrap()).unwrap();
            SharedLimit::new(&Algorithm::FixedWindow(window.with_weeks_from(day))).unwrap()
        };
        let (monday, sunday) = (weeks(Weekday::Monday), weeks(Weekday::Sunday));
        assert_eq!(monday.layout(), of(5, CalendarUnit::Week, "Europe/Berlin").layout());
        assert_ne!(monday.layout(), sunday.layout());
        let week = |limit: &SharedLimit, clock: i64| {
            let arguments = limit.arguments(&Settle::default(), Span::ZERO, None, clock.cast_unsigned());
            [arguments[9], arguments[10]]
        };
        // Of Saturday the 28th of March, its last microsecond, and of the Sunday that follows, on which clocks go forward.
        let hour = 3_600_000_000;
        assert_eq!(week(&sunday, begins - 1), [begins - 168 * hour, begins]);
        assert_eq!(week(&sunday, begins), [begins, begins + 167 * hour]);
        assert_eq!(week(&monday, begins), [begins - 144 * hour, ends]);
        let of_clock = FixedWindow::new(&[rate("5/d"), rate("9/30d")], Align::Epoch).unwrap();
        assert_ne!(berlin.layout(), SharedLimit::new(&Algorithm::FixedWindow(of_clock)).unwrap().layout());
        let large = CalendarRate::new(MAX_SHARED + 1, CalendarUnit::Day).unwrap();
        let large = Algorithm::FixedWindow(FixedWindow::of_calendar(&[large], &Zone::utc()).unwrap());
        assert!(matches!(fits(&large), Err(NotShared::TooMany { .. })));
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
        let counter = |text: &str| Algorithm::SlidingCounter(SlidingCounter::new(&[rate(text)]).unwrap());
        assert_eq!(fits(&counter(&format!("{most}/{}us", 1u64 << 51))), Ok(()));
        let century = format!("1/{}us", (1u64 << 51) + 1);
        assert_eq!(fits(&counter(&century)), Err(NotShared::TooLong { rate: rate(&century) }));
        assert_eq!(fits(&counter(&above)), Err(NotShared::TooMany { rate: rate(&above) }));
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
        for (algorithm, instead) in [
            (Algorithm::LeakyBucket(LeakyBucket::new(&rates, None).unwrap()), "gcra"),
            (Algorithm::SmoothBursty(SmoothBursty::new(&rates, None).unwrap()), "token-bucket"),
            (Algorithm::WarmUp(WarmUp::new(&rates, Span::from_secs(1), None).unwrap()), "token-bucket"),
            (Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Interval).unwrap()), "greedy"),
            (Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, false).unwrap()), "shared = \"strict\""),
            (Algorithm::SlidingLog(SlidingLog::new(&rates, Span::from_nanos(1), false).unwrap()), "min_difference"),
            (Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, true).unwrap()), "remove count_refused"),
            (Algorithm::Concurrency(Concurrency::new(5).unwrap()), "each gateway"),
        ] {
            let refused = fits(&algorithm).unwrap_err().to_string();
            assert!(refused.contains(algorithm.name()) && refused.contains(instead), "{refused}");
        }
    }

    #[test]
    fn a_reply_of_another_shape_is_no_answer() {
        let shared = SharedLimit::new(&wheel("5/s", None, Bound::Sliding)).unwrap();
        let answer = SettleAnswer {
            granted: 1,
            life: Span::from_nanos(2_000),
            remaining: [3, 0, 0, 0],
            ..SettleAnswer::default()
        };
        let read = |reply: &[i64]| shared.reply(reply).map(|ScriptReply { answer, clock }| (answer, clock));
        assert_eq!(read(&[1, 2, -1, 0, 3, 9]), Some((Some(answer), 9)));
        let retry = |reply: &[i64]| shared.reply(reply).unwrap().answer.unwrap().retry;
        assert_eq!(retry(&[0, 0, 7, 0, 0, 9]), Some(Span::from_nanos(7_000)));
        assert_eq!(retry(&[0, 0, NEVER, 0, 0, 9]), Some(Span::MAX));
        assert_eq!(shared.reply(&[0, 0, 7, 8, 0, 9]).unwrap().answer.unwrap().out, Span::from_nanos(8_000));
        assert_eq!(read(&[-1, 0, -1, 0, 0, 9]), Some((None, 9)), "too late");
        let wrong: [&[i64]; 10] = [
            &[],
            &[1],
            &[1, 2, 3, 4, 5],
            &[1, 2, 3, 4, 5, 6, 7],
            &[-2, 2, -1, 0, 3, 9],
            &[1, -2, -1, 0, 3, 9],
            &[1, 2, -2, 0, 3, 9],
            &[1, 2, -1, -2, 3, 9],
            &[1, 2, -1, 0, -3, 9],
            &[1, 2, -1, 0, 3, -9],
        ];
        for reply in wrong {
            assert_eq!(shared.reply(reply), None, "{reply:?}");
        }
    }

    #[test]
    fn parts_of_a_microsecond_make_a_settle_stricter() {
        let shared = SharedLimit::new(&bucket("5/s", None)).unwrap();
        let nanos = Span::from_nanos;
        let settle = Settle { spent: 1, back: 2, back_age: nanos(3_001), need: 4, want: 5, share_ppm: 6 };
        assert_eq!(shared.arguments(&settle, nanos(7_999), Some(8), 0), [1, 2, 4, 4, 5, 6, 7, 8, 5, 1_000_000, 5, 0]);
        let most = u64::MAX;
        let settle =
            Settle { spent: most, back: most, back_age: Span::MAX, need: most, want: most, share_ppm: u32::MAX };
        let count = MAX_COUNT.cast_signed();
        assert_eq!(
            shared.arguments(&settle, Span::MAX, None, 0)[..8],
            [count, count, NEVER, count, count, 1_000_000, NEVER, NEVER].map(|number: i64| number)
        );
    }
}
