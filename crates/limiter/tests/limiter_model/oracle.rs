//! Every algorithm from its definition: a log of what was counted, searched from end to end.

use std::ops::Range;

use jiff::Timestamp;
use jiff::tz::Offset;
use proptest::prelude::*;
use sluicegate_limiter::time::{CalendarUnit, Span, Zone};
use sluicegate_limiter::{
    Algorithm, Align, Bound, CalendarRate, Concurrency, FixedWindow, Gcra, LeakyBucket, Rate, Refill, SlidingCounter,
    SlidingLog, SlidingWindow, SmoothBursty, TimerWheel, TokenBucket, WarmUp,
};

use super::MS;
use super::naive::NaiveRate;

/// The counted requests, and their cost; with [`Oracle::InFlight`] those that have not ended yet.
pub type Log = [(u64, u64)];

/// One rate of one algorithm.
#[derive(Clone, Copy, Debug)]
pub enum Oracle {
    /// A ring of slots, of which the newest takes no more than `cap`.
    Slots { rate: NaiveRate, cap: u64 },
    /// Over every stretch that begins with a request, no more than the burst and what time brings.
    Curve { limit: u64, window: u64, burst: u64 },
    /// `limit` tokens back at the end of each period, which begins when the bucket stops being full.
    Periods { limit: u64, window: u64, burst: u64 },
    /// A window opens with the first request after the one before.
    Opened { limit: u64, window: u64 },
    /// Windows are what clocks and calendars show that are so many seconds behind UTC.
    OfCalendar { limit: u64, unit: CalendarUnit, behind: i32 },
    /// The window before counts as far as a window that ends now covers it.
    Counter { limit: u64, window: u64 },
    /// Everybody has a turn, and the next one pays; rest of at most `saved` is saved up.
    Turns { limit: u64, window: u64, saved: u64 },
    /// Exact instants.
    Stamps { limit: u64, window: u64, apart: u64 },
    /// Guava's `SmoothWarmingUp`, in floating point.
    Warm { interval: f64, period: f64, factor: f64 },
    /// Requests that run at once.
    InFlight { max: u64 },
}

/// How far [`Oracle::Warm`] may be off, in nanoseconds.
pub const BLUR: u64 = 2_000;

impl Oracle {
    /// Whether `cost` fits behind the log.
    pub fn fits(self, log: &Log, cost: u64, now: u64) -> bool {
        let sum = |counts: &dyn Fn(u64) -> bool| -> u64 {
            log.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| cost).sum()
        };
        match self {
            Self::Slots { rate, cap } => {
                let newest = sum(&|at| at / rate.slot == now / rate.slot);
                rate.sum(log, now) + cost <= rate.limit && newest + cost <= cap
            }
            Self::Curve { limit, window, burst } => (0..=log.len()).all(|from| {
                let since = log.get(from).map_or(now, |(at, _)| *at);
                let taken: u64 = log[from..].iter().map(|(_, cost)| cost).sum::<u64>() + cost;
                wide(taken, window) <= wide(burst, window) + wide(now - since, limit)
            }),
            Self::Periods { limit, window, burst } => {
                let (mut began, mut missing) = (0, 0u64);
                for (at, cost) in log.iter().chain([&(now, 0)]) {
                    while missing > 0 && began + window <= *at {
                        missing = missing.saturating_sub(limit);
                        began += window;
                    }
                    if missing == 0 {
                        began = *at;
                    }
                    missing += cost;
                }
                missing + cost <= burst
            }
            Self::Opened { limit, window } => {
                let mut open: Option<(u64, u64)> = None;
                for (at, cost) in log {
                    open = match open {
                        Some((from, count)) if *at < from + window => Some((from, count + cost)),
                        _ => Some((*at, *cost)),
                    };
                }
                open.filter(|(from, _)| now < from + window).map_or(0, |(_, count)| count) + cost <= limit
            }
            Self::OfCalendar { limit, unit, behind } => {
                let this = shown(unit, behind, now);
                sum(&|at| shown(unit, behind, at) == this) + cost <= limit
            }
            Self::Counter { limit, window } => {
                let this = now / window;
                let (current, previous) = (sum(&|at| at / window == this), sum(&|at| at / window + 1 == this));
                let weighted = wide(previous, window - now % window) / u128::from(window);
                u128::from(current + cost) + weighted <= u128::from(limit)
            }
            Self::Turns { limit, window, saved } => {
                // In units of which a nanosecond has `limit`.
                let (mut next, mut stored) = (log.first().map_or(0, |(at, _)| wide(*at, limit)), 0u128);
                for (at, cost) in log {
                    let at = wide(*at, limit);
                    if at > next {
                        stored = wide(saved, limit).min(stored + at - next);
                        next = at;
                    }
                    let spent = wide(*cost, window).min(stored);
                    stored -= spent;
                    next += wide(*cost, window) - spent;
                }
                cost <= sluicegate_limiter::MAX_COUNT && next <= wide(now, limit)
            }
            Self::Stamps { limit, window, apart } => {
                let apart = log.last().is_none_or(|(at, _)| at + apart <= now);
                apart && sum(&|at| at + window > now) + cost <= limit
            }
            Self::Warm { .. } => self.turn(log) <= now as f64,
            Self::InFlight { max } => sum(&|_| true) + cost <= max,
        }
    }

    /// The first instant from `from` at which `cost` fits if nobody else comes: room once there stays, so it is found by
    /// halving. `None` if that is never, or nobody knows.
    pub fn first_room(self, log: &Log, cost: u64, from: u64) -> Option<u64> {
        if self.fits(log, cost, from) {
            return Some(from);
        }
        if matches!(self, Self::InFlight { .. }) || !self.fits(&[], cost, from) {
            return None;
        }
        let (mut early, mut late) = (0, 1);
        while !self.fits(log, cost, from + late) {
            (early, late) = (late, late * 2);
        }
        while late - early > 1 {
            let middle = early.midpoint(late);
            if self.fits(log, cost, from + middle) { late = middle } else { early = middle }
        }
        Some(from + late)
    }

    /// How many more of cost 1 would get in now.
    pub fn remaining(self, log: &Log, now: u64) -> u64 {
        let mut log = log.to_vec();
        let mut more = 0;
        while self.fits(&log, 1, now) {
            log.push((now, 1));
            more += 1;
        }
        more
    }

    /// Whether floating point cannot tell.
    pub fn is_unsure(self, log: &Log, now: u64) -> bool {
        matches!(self, Self::Warm { .. }) && (self.turn(log) - now as f64).abs() <= BLUR as f64
    }

    fn turn(self, log: &Log) -> f64 {
        let Self::Warm { interval, period, factor } = self else { return 0.0 };
        let threshold = 0.5 * period / interval;
        let most = threshold + 2.0 * period / (interval + interval * factor);
        let slope = (interval * factor - interval) / (most - threshold);
        let (mut stored, mut next) = (most, 0.0f64);
        for (at, cost) in log {
            let at = *at as f64;
            if at > next {
                stored = most.min(stored + (at - next) * most / period);
                next = at;
            }
            let spent = stored.min(*cost as f64);
            let above = (stored - threshold).max(0.0);
            let from_above = above.min(spent);
            let height = |permits: f64| interval + permits * slope;
            let wait =
                from_above * (height(above) + height(above - from_above)) / 2.0 + interval * (spent - from_above);
            next += wait + (*cost as f64 - spent) * interval;
            stored -= spent;
        }
        next
    }
}

/// The unit that an instant is in, as clocks and calendars show it.
pub fn shown(unit: CalendarUnit, behind: i32, nanos: u64) -> (i16, i8, i8, i8) {
    let now = Timestamp::from_nanosecond(i128::from(nanos)).expect("before 9999");
    let now = Offset::from_seconds(-behind).expect("less than a day").to_datetime(now);
    match unit {
        CalendarUnit::Hour => (now.year(), now.month(), now.day(), now.hour()),
        CalendarUnit::Day => (now.year(), now.month(), now.day(), 0),
        CalendarUnit::Week => (now.date().iso_week_date().year(), 0, now.date().iso_week_date().week(), 0),
        CalendarUnit::Month => (now.year(), now.month(), 0, 0),
    }
}

fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// An algorithm, and each of its rates from its definition.
#[derive(Clone, Debug)]
pub struct Case {
    pub algorithm: Algorithm,
    pub rates: Vec<Oracle>,
}

impl Case {
    pub fn fits(&self, log: &Log, cost: u64, now: u64) -> bool {
        self.rates.iter().all(|rate| rate.fits(log, cost, now))
    }

    /// When all rates have room.
    pub fn first_room(&self, log: &Log, cost: u64, from: u64) -> Option<u64> {
        self.rates.iter().try_fold(from, |latest, rate| Some(latest.max(rate.first_room(log, cost, from)?)))
    }

    /// Whether `cost` never fits.
    pub fn is_too_costly(&self, cost: u64) -> bool {
        !self.fits(&[], cost, 0)
    }

    pub fn is_unsure(&self, log: &Log, now: u64) -> bool {
        self.rates.iter().any(|rate| rate.is_unsure(log, now))
    }

    pub fn is_in_flight(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency(_))
    }

    /// Whether a key that is forgotten when idle comes back poorer.
    pub fn saves(&self) -> bool {
        self.rates.iter().any(|rate| matches!(rate, Oracle::Turns { saved: 1.., .. }))
    }
}

/// One rate of each kind that a case has.
fn each(rates: &[Rate], oracle: impl Fn(u64, u64) -> Oracle) -> Vec<Oracle> {
    rates.iter().map(|rate| oracle(rate.limit(), rate.window().as_nanos())).collect()
}

fn slots(rates: &[Rate], bound: Bound, cap: Option<u64>) -> Vec<Oracle> {
    let oracle = |limit, window| {
        let rate = NaiveRate::new(limit, window / MS, 10, bound);
        Oracle::Slots { rate, cap: cap.unwrap_or(limit).min(limit) }
    };
    each(rates, oracle)
}

/// A case, made of numbers: a reload changes one into another.
#[derive(Clone, Debug)]
pub struct Shape {
    /// One of the seventeen kinds of the eleven algorithms, in the order of [`case`](Self::case).
    pub kind: u8,
    pub rates: Vec<Rate>,
    /// A burst, a number that may wait, or a time in some unit.
    pub number: u64,
}

/// Every kind.
pub const ALL: Range<u8> = 0..17;
/// Those whose room comes with time: none that counts what is in flight.
pub const TIMED: Range<u8> = 0..16;
/// Those among them of which every instant is known to the nanosecond.
pub const EXACT: Range<u8> = 0..15;
/// That which counts what is in flight.
pub const IN_FLIGHT: Range<u8> = 16..17;

impl Shape {
    /// Whether windows begin at the multiples of their length.
    pub fn is_aligned(&self) -> bool {
        self.kind == 6
    }

    /// A kind of the same algorithm.
    pub fn sibling(&self, any: u8) -> u8 {
        match self.kind {
            0..=2 => any % 3,
            3..=4 => 3 + any % 2,
            6..=7 | 14 => [6, 7, 14][usize::from(any % 3)],
            11..=12 => 11 + any % 2,
            alone => alone,
        }
    }

    pub fn case(&self) -> Case {
        let (rates, number) = (&self.rates[..], self.number);
        let (nanos, saved, period) = (number * 5 * MS, number * 100 * MS, number * 200 * MS);
        let curve = |limit, window| Oracle::Curve { limit, window, burst: number };
        let window = |cap| Algorithm::SlidingWindow(SlidingWindow::new(rates, None, cap).expect("windows"));
        let wheel = |bound| Algorithm::TimerWheel(TimerWheel::new(rates, Some(10), bound).expect("a wheel"));
        let bucket = |refill| Algorithm::TokenBucket(TokenBucket::new(rates, Some(number), refill).expect("a bucket"));
        let fixed = |align| Algorithm::FixedWindow(FixedWindow::new(rates, align).expect("windows"));
        // A new year begins everywhere a few seconds after the test does: hour, day and month.
        let behind = (number as i32 + 1) / 2;
        let unit = |rate: &Rate| match rate.window().as_nanos() / MS {
            0..200 => CalendarUnit::Hour,
            200..500 => CalendarUnit::Day,
            _ => CalendarUnit::Month,
        };
        let smooth = |saved| Algorithm::SmoothBursty(SmoothBursty::new(rates, Some(saved)).expect("a limiter"));
        let log = |apart| Algorithm::SlidingLog(SlidingLog::new(rates, apart, false).expect("a log"));
        let turns = |saved| each(rates, |limit, window| Oracle::Turns { limit, window, saved });
        let stamps = |apart| each(rates, |limit, window| Oracle::Stamps { limit, window, apart });
        let (algorithm, rates) = match self.kind {
            0 => (wheel(Bound::Slot), slots(rates, Bound::Slot, None)),
            1 => (wheel(Bound::Sliding), slots(rates, Bound::Sliding, None)),
            2 => (wheel(Bound::Strict), slots(rates, Bound::Strict, None)),
            3 => (bucket(Refill::Greedy), each(rates, curve)),
            4 => (
                bucket(Refill::Interval),
                each(rates, |limit, window| Oracle::Periods { limit, window, burst: number }),
            ),
            5 => (Algorithm::Gcra(Gcra::new(rates, Some(number)).expect("a burst")), each(rates, curve)),
            6 => (fixed(Align::Epoch), slots(rates, Bound::Slot, None)),
            7 => (fixed(Align::First), each(rates, |limit, window| Oracle::Opened { limit, window })),
            8 => (window(Some(number)), slots(rates, Bound::Sliding, Some(number))),
            9 => (
                Algorithm::SlidingCounter(SlidingCounter::new(rates).expect("a counter")),
                each(rates, |limit, window| Oracle::Counter { limit, window }),
            ),
            10 => (Algorithm::LeakyBucket(LeakyBucket::new(rates, Some(number)).expect("a bucket")), turns(0)),
            11 => (smooth(Span::ZERO), turns(0)),
            12 => (smooth(Span::from_nanos(saved)), turns(saved)),
            13 => (log(Span::from_nanos(nanos)), stamps(nanos)),
            14 => {
                let rate = |rate: &Rate| CalendarRate::new(rate.limit(), unit(rate)).expect("a rate");
                let of_calendar: Vec<CalendarRate> = rates.iter().map(rate).collect();
                let zone = Zone::fixed(-behind).expect("less than a day");
                let window = FixedWindow::of_calendar(&of_calendar, &zone).expect("windows");
                let oracle = |rate: &Rate| Oracle::OfCalendar { limit: rate.limit(), unit: unit(rate), behind };
                (Algorithm::FixedWindow(window), rates.iter().map(oracle).collect())
            }
            15 => {
                let warm = WarmUp::new(rates, Span::from_nanos(period), Some(3)).expect("a warm-up");
                let oracle = |limit, window| Oracle::Warm {
                    interval: window as f64 / limit as f64,
                    period: period as f64,
                    factor: 3.0,
                };
                (Algorithm::WarmUp(warm), each(rates, oracle))
            }
            _ => {
                let concurrency = Algorithm::Concurrency(Concurrency::new(number).expect("a number"));
                (concurrency, vec![Oracle::InFlight { max: number }])
            }
        };
        Case { algorithm, rates }
    }
}

fn rates(most: usize) -> impl Strategy<Value = Vec<Rate>> {
    let rate = (1u64..8, prop_oneof![Just(100u64), Just(300), Just(1_000)])
        .prop_map(|(limit, millis)| Rate::new(limit, Span::from_millis(millis)).expect("a rate"));
    prop::collection::vec(rate, 1..=most)
}

/// Of some kinds, of up to `most` rates.
pub fn shapes(kinds: Range<u8>, most: usize) -> impl Strategy<Value = Shape> {
    (kinds, rates(most), 1u64..9).prop_map(|(kind, rates, number)| Shape { kind, rates, number })
}

/// Of some kinds.
pub fn cases(kinds: Range<u8>) -> impl Strategy<Value = Case> {
    shapes(kinds, 3).prop_map(|shape| shape.case())
}
