use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::super::*;
use crate::CalendarRate;
use crate::MAX_COUNT;
use sluicegate_time::{CalendarUnit, Zone};

/// The admitted requests: when, and at what cost.
pub(super) type Log = Vec<(u64, u64)>;

/// An algorithm, and for each of its rates whether a cost fits behind a log.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) algorithm: Algorithm,
    oracles: Vec<Oracle>,
    /// Nanoseconds in a step of time.
    pub(super) scale: u64,
}

/// One rate, from its definition.
#[derive(Clone, Copy, Debug)]
pub(super) enum Oracle {
    /// The arrival curve: over every stretch that begins with a request no more than `burst` and what time brings.
    Curve {
        limit: u64,
        window: u64,
        burst: u64,
    },
    /// `limit` tokens back at the end of each period.
    Periods {
        limit: u64,
        window: u64,
        burst: u64,
    },
    Aligned {
        limit: u64,
        window: u64,
    },
    Opened {
        limit: u64,
        window: u64,
    },
    /// Windows are what clocks and calendars on the wall show.
    OfCalendar {
        limit: u64,
        unit: CalendarUnit,
        zone: &'static str,
    },
    Slots {
        limit: u64,
        slot: u64,
        slots: u64,
        cap: u64,
    },
    Counter {
        limit: u64,
        window: u64,
    },
    /// Guava's code, with the numbers it has, in units of 1 / limit of a nanosecond.
    Guava {
        limit: u64,
        window: u64,
        max_burst: u64,
    },
    Stamps {
        limit: u64,
        window: u64,
        min_difference: u64,
    },
}

impl Case {
    pub(super) fn fits(&self, rate: usize, log: &Log, cost: u64, now: u64) -> bool {
        self.oracles[rate].fits(log, cost, now)
    }

    pub(super) fn fits_all(&self, log: &Log, cost: u64, now: u64) -> bool {
        self.oracles.iter().all(|oracle| oracle.fits(log, cost, now))
    }

    /// The largest cost that fits a key never seen; `None` when any does.
    pub(super) fn largest(&self) -> Option<u64> {
        self.oracles.iter().filter_map(|oracle| oracle.largest()).min()
    }

    /// Whether the rates have admitted no more than each may after a reload. A reload may have left a window or a
    /// period open: then at most as much as two of them in a stretch as long as one; or time that was saved up.
    pub(super) fn fits_after_reload(&self, log: &Log, cost: u64, now: u64) -> bool {
        self.oracles.iter().all(|oracle| {
            let (most, window) = match *oracle {
                Oracle::Periods { limit, window, burst } => (burst + limit, window),
                Oracle::Opened { limit, window } => (2 * limit, window),
                Oracle::Guava { limit, window, max_burst } => {
                    // Before a turn no more has passed than what was saved up and what time has brought.
                    let mut since = 0;
                    return log.iter().rev().all(|(at, cost)| {
                        since += cost;
                        since * window <= (now - at + max_burst) * limit
                    });
                }
                _ => return oracle.fits(log, cost, now),
            };
            let sum: u64 = log.iter().filter(|(at, _)| at + window > now).map(|(_, cost)| cost).sum();
            sum + cost <= most
        })
    }

    /// Whether a cost fits behind a log of what requests have really cost. Of an interval bucket, whose periods begin with
    /// requests whatever those cost in the end, only the bound is known; windows that open are [others](Self::windows).
    pub(super) fn fits_by_real_costs(&self, log: &Log, cost: u64, now: u64) -> bool {
        self.oracles.iter().all(|oracle| match *oracle {
            Oracle::Periods { limit, window, burst } => {
                let mut since = cost;
                cost <= burst
                    && log.iter().rev().all(|(at, cost)| {
                        since += cost;
                        since <= burst + limit * (1 + (now - at) / window)
                    })
            }
            Oracle::Opened { .. } => true,
            // What has cost nothing leaves no stamp.
            Oracle::Stamps { .. } => {
                oracle.fits(&log.iter().copied().filter(|(_, cost)| *cost > 0).collect(), cost, now)
            }
            _ => oracle.fits(log, cost, now),
        })
    }

    /// Of a fixed window for each key: limit and length, for each rate.
    pub(super) fn windows(&self) -> Vec<(u64, u64)> {
        let opened = |oracle: &Oracle| match *oracle {
            Oracle::Opened { limit, window } => Some((limit, window)),
            _ => None,
        };
        self.oracles.iter().filter_map(opened).collect()
    }

    /// Whether it then says just when it fits, and not only when it does not.
    pub(super) fn corrects_exactly(&self) -> bool {
        let exact = |oracle: &Oracle| {
            matches!(
                oracle,
                Oracle::Aligned { .. }
                    | Oracle::OfCalendar { .. }
                    | Oracle::Slots { .. }
                    | Oracle::Counter { .. }
                    | Oracle::Stamps { .. }
            )
        };
        self.oracles.iter().all(exact)
    }

    /// Whether a rate of this one, which takes the place of `old`, goes on with what was counted there.
    pub(super) fn carries(&self, old: &Self) -> bool {
        let calendars = |case: &Self| {
            let calendar = |oracle: &Oracle| match *oracle {
                Oracle::OfCalendar { unit, zone, .. } => Some((unit, zone)),
                _ => None,
            };
            case.oracles.iter().filter_map(calendar).collect::<Vec<_>>()
        };
        let (is, was) = (calendars(self), calendars(old));
        let same_kind = self.algorithm.name() == old.algorithm.name() && is.is_empty() == was.is_empty();
        same_kind && (is.is_empty() || is.iter().any(|calendar| was.contains(calendar)))
    }

    /// A forgotten key comes back poorer.
    pub(super) fn forgets_more_strictly(&self) -> bool {
        self.oracles.iter().any(|oracle| matches!(oracle, Oracle::Guava { max_burst: 1.., .. }))
    }
}

impl Oracle {
    fn largest(self) -> Option<u64> {
        match self {
            Self::Curve { burst, .. } | Self::Periods { burst, .. } => Some(burst),
            Self::Aligned { limit, .. }
            | Self::Opened { limit, .. }
            | Self::OfCalendar { limit, .. }
            | Self::Counter { limit, .. }
            | Self::Stamps { limit, .. } => Some(limit),
            Self::Slots { cap, .. } => Some(cap),
            Self::Guava { .. } => None,
        }
    }

    pub(super) fn fits(self, log: &Log, cost: u64, now: u64) -> bool {
        let sum = |within: &dyn Fn(u64) -> bool| -> u64 {
            log.iter().filter(|(at, _)| within(*at)).map(|(_, cost)| cost).sum()
        };
        match self {
            Self::Curve { limit, window, burst } => {
                let mut since = cost;
                let conforms = |since: u64, at: u64| {
                    u128::from(since) * u128::from(window)
                        <= u128::from(burst) * u128::from(window) + u128::from(now - at) * u128::from(limit)
                };
                conforms(cost, now)
                    && log.iter().rev().all(|(at, cost)| {
                        since += cost;
                        conforms(since, *at)
                    })
            }
            Self::Periods { limit, window, burst } => {
                let (mut began, mut tokens) = (0, burst);
                let mut refill = |until: u64, take: u64| {
                    if tokens < burst && until >= began + window {
                        let periods = (until - began) / window;
                        began += periods * window;
                        tokens = burst.min(tokens + periods * limit);
                    }
                    if tokens == burst {
                        began = until;
                    }
                    let before = tokens;
                    tokens -= take;
                    before
                };
                for (at, cost) in log {
                    refill(*at, *cost);
                }
                refill(now, 0) >= cost
            }
            Self::Aligned { limit, window } => sum(&|at| at / window == now / window) + cost <= limit,
            Self::Opened { limit, window } => {
                let mut opened: Option<(u64, u64)> = None;
                for (at, cost) in log {
                    opened = match opened {
                        Some((from, count)) if *at < from + window => Some((from, count + cost)),
                        _ => Some((*at, *cost)),
                    };
                }
                let count = opened.filter(|(from, _)| now < from + window).map_or(0, |(_, count)| count);
                count + cost <= limit
            }
            Self::OfCalendar { limit, unit, zone } => {
                let shown = shown(unit, zone, now);
                sum(&|at| self::shown(unit, zone, at) == shown) + cost <= limit
            }
            Self::Slots { limit, slot, slots, cap } => {
                let this = now / slot;
                sum(&|at| at / slot + slots > this) + cost <= limit && sum(&|at| at / slot == this) + cost <= cap
            }
            Self::Counter { limit, window } => {
                let this = now / window;
                let (current, previous) = (sum(&|at| at / window == this), sum(&|at| at / window + 1 == this));
                let left = u128::from(window - now % window);
                let weighted = u128::from(previous) * left / u128::from(window);
                u128::from(current) + weighted + u128::from(cost) <= u128::from(limit)
            }
            Self::Guava { limit, window, max_burst } => {
                let units = |nanos: u64| u128::from(nanos) * u128::from(limit);
                let (mut next, mut stored) = (log.first().map_or(0, |(at, _)| units(*at)), 0u128);
                for (at, cost) in log {
                    let now = units(*at);
                    if now > next {
                        stored = units(max_burst).min(stored + (now - next));
                        next = now;
                    }
                    let needed = u128::from(*cost) * u128::from(window);
                    let spent = needed.min(stored);
                    stored -= spent;
                    next += needed - spent;
                }
                next <= units(now)
            }
            Self::Stamps { limit, window, min_difference } => {
                let apart = log.last().is_none_or(|(at, _)| at + min_difference <= now);
                apart && sum(&|at| at + window > now) + cost <= limit
            }
        }
    }
}

/// The unit that an instant is in, as clocks and calendars show it. An hour that comes twice has two offsets from UTC.
fn shown(unit: CalendarUnit, zone: &str, nanos: u64) -> (i32, i8, i8, i32) {
    let now = Timestamp::from_nanosecond(i128::from(nanos)).unwrap().to_zoned(TimeZone::get(zone).unwrap());
    let (year, month, day) = (i32::from(now.year()), now.month(), now.day());
    match unit {
        CalendarUnit::Hour => (year, month, day, i32::from(now.hour()) * 1_000_000 + now.offset().seconds()),
        CalendarUnit::Day => (year, month, day, 0),
        CalendarUnit::Week => {
            let week = now.date().iso_week_date();
            (i32::from(week.year()), 0, week.week(), 0)
        }
        CalendarUnit::Month => (year, month, 0, 0),
    }
}

/// Small numbers, so that much happens, and such that do not divide.
fn rates() -> impl Strategy<Value = Vec<Rate>> {
    let window = prop_oneof![Just(7u64), Just(10), Just(97), Just(100), Just(360), Just(1_000)];
    let rate = (1u64..13, window).prop_map(|(limit, window)| Rate::new(limit, Span::from_nanos(window)).unwrap());
    prop::collection::vec(rate, 1..4)
}

fn each(rates: &[Rate], oracle: impl Fn(u64, u64) -> Oracle) -> Vec<Oracle> {
    rates.iter().map(|rate| oracle(rate.limit(), rate.window().as_nanos())).collect()
}

/// Windows of milliseconds: slots are not shorter than one.
fn slotted(rates: &[Rate]) -> Vec<Rate> {
    rates.iter().map(|rate| Rate::new(rate.limit(), Span::from_millis(rate.window().as_nanos())).unwrap()).collect()
}

fn bucket(rates: &[Rate], burst: Option<u64>, refill: Refill) -> Case {
    let oracles = each(rates, |limit, window| match refill {
        Refill::Greedy => Oracle::Curve { limit, window, burst: burst.unwrap_or(limit) },
        Refill::Interval => Oracle::Periods { limit, window, burst: burst.unwrap_or(limit) },
    });
    Case { algorithm: Algorithm::TokenBucket(TokenBucket::new(rates, burst, refill).unwrap()), oracles, scale: 1 }
}

fn gcra(rates: &[Rate], burst: Option<u64>) -> Case {
    let oracles = each(rates, |limit, window| Oracle::Curve { limit, window, burst: burst.unwrap_or(1) });
    Case { algorithm: Algorithm::Gcra(Gcra::new(rates, burst).unwrap()), oracles, scale: 1 }
}

fn fixed(rates: &[Rate], align: Align) -> Case {
    let oracles = each(rates, |limit, window| match align {
        Align::Epoch => Oracle::Aligned { limit, window },
        Align::First => Oracle::Opened { limit, window },
    });
    Case { algorithm: Algorithm::FixedWindow(FixedWindow::new(rates, align).unwrap()), oracles, scale: 1 }
}

/// In minutes, so that hours, days and weeks pass.
fn of_calendar(rates: &[Rate], zone: &'static str) -> Case {
    let unit = |rate: &Rate| match rate.window().as_nanos() {
        0..10 => CalendarUnit::Hour,
        10..100 => CalendarUnit::Day,
        100..1_000 => CalendarUnit::Week,
        _ => CalendarUnit::Month,
    };
    let oracle = |rate: &Rate| Oracle::OfCalendar { limit: rate.limit(), unit: unit(rate), zone };
    let of_calendar: Vec<_> = rates.iter().map(|rate| CalendarRate::new(rate.limit(), unit(rate)).unwrap()).collect();
    let window = FixedWindow::of_calendar(&of_calendar, &Zone::named(zone).unwrap()).unwrap();
    Case {
        algorithm: Algorithm::FixedWindow(window),
        oracles: rates.iter().map(oracle).collect(),
        scale: 60_000_000_000,
    }
}

fn counter(rates: &[Rate]) -> Case {
    let oracles = each(rates, |limit, window| Oracle::Counter { limit, window });
    Case { algorithm: Algorithm::SlidingCounter(SlidingCounter::new(rates).unwrap()), oracles, scale: 1 }
}

fn window(rates: &[Rate], slot_limit: Option<u64>) -> Case {
    let window = SlidingWindow::new(rates, None, slot_limit).unwrap();
    let oracle = |(index, rate): (usize, &Rate)| {
        let slots = u64::from(window.slots_of(index).unwrap());
        let cap = slot_limit.unwrap_or((2 * rate.limit()).div_ceil(slots).max(1)).min(rate.limit());
        Oracle::Slots { limit: rate.limit(), slot: rate.window().as_nanos() / slots, slots, cap }
    };
    let oracles = rates.iter().enumerate().map(oracle).collect();
    Case { algorithm: Algorithm::SlidingWindow(window), oracles, scale: 100_000 }
}

fn smooth(rates: &[Rate], max_burst: u64) -> Case {
    let oracles = each(rates, |limit, window| Oracle::Guava { limit, window, max_burst });
    let smooth = SmoothBursty::new(rates, Some(Span::from_nanos(max_burst))).unwrap();
    Case { algorithm: Algorithm::SmoothBursty(smooth), oracles, scale: 1 }
}

fn leaky(rates: &[Rate]) -> Case {
    let oracles = each(rates, |limit, window| Oracle::Guava { limit, window, max_burst: 0 });
    Case { algorithm: Algorithm::LeakyBucket(LeakyBucket::new(rates, None).unwrap()), oracles, scale: 1 }
}

fn log(rates: &[Rate], min_difference: u64) -> Case {
    let oracles = each(rates, |limit, window| Oracle::Stamps { limit, window, min_difference });
    let log = SlidingLog::new(rates, Span::from_nanos(min_difference), false).unwrap();
    Case { algorithm: Algorithm::SlidingLog(log), oracles, scale: 1 }
}

/// Of every algorithm that has a list for an oracle.
pub(super) fn cases() -> impl Strategy<Value = Case> {
    let refill = prop_oneof![Just(Refill::Greedy), Just(Refill::Interval)];
    let align = prop_oneof![Just(Align::Epoch), Just(Align::First)];
    let some = || prop::option::of(1u64..20);
    let span = prop_oneof![Just(0u64), 0u64..500];
    let zones = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"];
    (rates(), some(), refill, align, span, 0..10).prop_map(move |(rates, some, refill, align, span, which)| match which
    {
        0 => bucket(&rates, some, refill),
        1 => gcra(&rates, some),
        2 => fixed(&rates, align),
        3 => counter(&rates),
        4 => smooth(&rates, span),
        5 => leaky(&rates),
        6 => log(&rates, span),
        7 | 8 => of_calendar(&rates, zones[span as usize % zones.len()]),
        _ => window(&slotted(&rates), some),
    })
}

/// Timer wheels of each bound.
pub(super) fn wheels() -> impl Strategy<Value = Case> {
    let bound = prop_oneof![Just(Bound::Slot), Just(Bound::Sliding), Just(Bound::Strict)];
    (rates(), bound).prop_map(|(rates, bound)| {
        let rates = slotted(&rates);
        let wheel = TimerWheel::new(&rates, None, bound).unwrap();
        let oracle = |(index, rate): (usize, &Rate)| {
            let slots = u64::from(wheel.slots_of(index).unwrap());
            let (limit, slot) = (rate.limit(), rate.window().as_nanos() / slots);
            Oracle::Slots { limit, slot, slots: slots + u64::from(bound == Bound::Strict), cap: limit }
        };
        let oracles = rates.iter().enumerate().map(oracle).collect();
        Case { algorithm: Algorithm::TimerWheel(wheel), oracles, scale: 100_000 }
    })
}

/// A number of any size.
pub(super) fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0u64..100, (0u32..64).prop_map(|up| 1 << up), any::<u64>()]
}

/// Every algorithm at the edges of what can be configured.
pub(super) fn extreme() -> impl Strategy<Value = Algorithm> {
    let limit = prop_oneof![Just(1), Just(MAX_COUNT), Just(999_999_999_989), 1..MAX_COUNT];
    let window = prop_oneof![Just(1), Just(36_500 * 86_400_000_000_000), 1u64..36_500 * 86_400_000_000_000];
    let rate = (limit, window).prop_map(|(limit, window)| Rate::new(limit, Span::from_nanos(window)).unwrap());
    (prop::collection::vec(rate, 1..3), any_number(), 0..12).prop_map(|(rates, number, which)| {
        let bucket = |refill| {
            let bucket = TokenBucket::new(&rates, Some(number), refill);
            bucket.or_else(|_| TokenBucket::new(&rates, None, refill)).unwrap()
        };
        match which {
            0 => Algorithm::TokenBucket(bucket(Refill::Greedy)),
            1 => Algorithm::TokenBucket(bucket(Refill::Interval)),
            2 => Algorithm::Gcra(Gcra::new(&rates, Some(number)).or_else(|_| Gcra::new(&rates, None)).unwrap()),
            3 => Algorithm::FixedWindow(FixedWindow::new(&rates, Align::First).unwrap()),
            4 => Algorithm::FixedWindow(FixedWindow::new(&rates, Align::Epoch).unwrap()),
            5 => Algorithm::SlidingCounter(SlidingCounter::new(&rates).unwrap()),
            6 => Algorithm::LeakyBucket(LeakyBucket::new(&rates, Some(number.max(1))).unwrap()),
            7 => {
                Algorithm::SmoothBursty(SmoothBursty::new(&rates, Some(Span::from_nanos(number % (1 << 46)))).unwrap())
            }
            8 => {
                let short = |rate: &Rate| Rate::new(rate.limit() % MAX_LOG + 1, rate.window()).unwrap();
                let rates: Vec<Rate> = rates.iter().map(short).collect();
                Algorithm::SlidingLog(SlidingLog::new(&rates, Span::from_nanos(number % (1 << 61)), true).unwrap())
            }
            9 => {
                let warm_up = Span::from_nanos(number.clamp(1_000_000, 3_600_000_000_000));
                Algorithm::WarmUp(WarmUp::new(&rates, warm_up, Some((number % 99) as u32 + 2)).unwrap())
            }
            10 => {
                let rate = |rate: &Rate| CalendarRate::new(rate.limit(), CalendarUnit::Month).unwrap();
                let rates: Vec<_> = rates.iter().map(rate).collect();
                let zone = Zone::fixed((number % 86_400) as i32).unwrap();
                Algorithm::FixedWindow(FixedWindow::of_calendar(&rates, &zone).unwrap())
            }
            _ => match SlidingWindow::new(&rates, None, Some(number.max(1))) {
                Ok(window) => Algorithm::SlidingWindow(window),
                Err(_) => Algorithm::TimerWheel(TimerWheel::new(&["3/s".parse().unwrap()], None, Bound::Slot).unwrap()),
            },
        }
    })
}
