use std::fmt;

use sluicegate_limiter::{Algorithm, Bound as OfWheel, GRANT_RETURNS as RETURNS, Rate, StoreSharing};
use sluicegate_time::{CalendarUnit, Span};

/// The most that all gateways of a fleet admit of one key together, while all of them live and the store answers; and the least
/// where it is always asked for more, less what the largest cost is above 1. See `docs/fleet-bounds.md` for why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The sum of the costs.
    pub most: u64,
    /// Where it holds.
    pub within: Within,
    /// The least.
    pub least: Least,
}

/// The keys for which no [`Bound`] holds.
pub const WITHOUT_PLACE: &str = "a key without a place in the store (max_keys) may have L/N more at each gateway";

/// The least that a fleet admits where it is always asked for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    /// So much in any so long.
    Any(u64, Span),
    /// So much in each window, less what is held as it ends.
    Window(u64),
    /// As much as the rate says, less so much.
    Rate(u64),
}

/// A stretch of time in which a [`Bound`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Any so long.
    Any(Span),
    /// Each window of this length.
    Window(Span),
    /// Each of these windows of a calendar.
    Each(CalendarUnit),
    /// An instant. From then on as much more as the rate says.
    Instant(Rate),
}

impl Bound {
    /// Those of a limit that `gateways` share, one for each rate.
    pub fn of(algorithm: &Algorithm, sharing: &StoreSharing, gateways: u32) -> Vec<Self> {
        let gateways = gateways.max(1);
        let credit = sharing.credit(algorithm.largest_cost(), gateways).saturating_mul(u64::from(gateways));
        let held = sharing.hold;
        // A grant may be out for so long, and a full key is not asked for again before.
        let out = Span::from_nanos(held.as_nanos().saturating_add(RETURNS.as_nanos()));
        let later = |span: Span| Span::from_nanos(span.as_nanos().saturating_add(out.as_nanos()));
        let of_rate = |(index, rate): (usize, &Rate)| match algorithm {
            Algorithm::TimerWheel(wheel) => {
                let slots = wheel.slots_of(index).unwrap_or(1);
                let summed = u64::from(slots) + u64::from(wheel.bound() == OfWheel::Strict);
                let (most, within) = of_slots(*rate, slots, summed, held, credit);
                let slot = rate.window().as_nanos() / u64::from(slots.max(1));
                let counted = Span::from_nanos(slot.saturating_mul(summed));
                Self { most, within, least: Least::Any(rate.limit(), later(counted)) }
            }
            Algorithm::FixedWindow(window) => {
                let within = window.unit_of(index).map_or(Within::Window(rate.window()), Within::Each);
                Self { most: rate.limit().saturating_add(credit), within, least: Least::Window(rate.limit()) }
            }
            Algorithm::TokenBucket(bucket) => {
                of_bucket(*rate, bucket.burst().unwrap_or(rate.limit()), (held, out), credit)
            }
            Algorithm::Gcra(gcra) => of_bucket(*rate, gcra.burst(), (held, out), credit),
            // A grant ends with its sub-window, in which it was charged: so it does not matter for how long it is held.
            Algorithm::SlidingWindow(window) => {
                let slots = window.slots_of(index).unwrap_or(1);
                let (most, within) = of_slots(*rate, slots, slots.into(), Span::ZERO, credit);
                Self { most, within, least: Least::Any(rate.limit(), later(rate.window())) }
            }
            // At a border the window before counts whole and a moment later less: two windows may pass in the length of one.
            Algorithm::SlidingCounter(_) => {
                let most = rate.limit().saturating_add(credit).saturating_mul(2);
                let two = Span::from_nanos(rate.window().as_nanos().saturating_mul(2));
                Self { most, within: Within::Any(rate.window()), least: Least::Any(rate.limit(), later(two)) }
            }
            // A log holds in any stretch as long as its window; the others cannot be shared.
            _ => {
                let (most, within) = of_slots(*rate, 1, 2, held, credit);
                Self { most, within, least: Least::Any(rate.limit(), later(rate.window())) }
            }
        };
        algorithm.rates().iter().enumerate().map(of_rate).collect()
    }
}

impl Bound {
    /// Those of a limit that so many gateways share without a store, where each hears within `lag` what the others have spent; in a
    /// cut that is its length. See `sluicegate_peers` for why.
    pub fn told(algorithm: &Algorithm, gateways: u32, lag: Span) -> Vec<Self> {
        let (all, others) = (u64::from(gateways.max(1)), u64::from(gateways.max(1)) - 1);
        let of_rate = |rate: &Rate| {
            let burst = match algorithm {
                Algorithm::TokenBucket(bucket) => bucket.burst().unwrap_or(rate.limit()),
                Algorithm::Gcra(gcra) => gcra.burst(),
                _ => rate.limit(),
            };
            let late = refilled(*rate, lag);
            let most = burst.saturating_add(others.saturating_mul(burst.saturating_add(late)));
            let less = others.saturating_mul(burst).saturating_add(all.saturating_mul(late));
            Self { most, within: Within::Instant(*rate), least: Least::Rate(less) }
        };
        algorithm.rates().iter().map(of_rate).collect()
    }
}

/// As much as comes back in so long, rounded up.
fn refilled(rate: Rate, span: Span) -> u64 {
    let window = u128::from(rate.window().as_nanos().max(1));
    let refilled = (u128::from(rate.limit()) * u128::from(span.as_nanos())).div_ceil(window);
    u64::try_from(refilled).unwrap_or(u64::MAX)
}

/// Of slots of which `summed` neighbours count at most the limit.
fn of_slots(rate: Rate, slots: u32, summed: u64, held: Span, credit: u64) -> (u64, Within) {
    let (window, held) = (rate.window().as_nanos(), held.as_nanos());
    let slot = (window / u64::from(slots.max(1))).max(1);
    let most = rate.limit().saturating_add(credit);
    let whole = slot.saturating_mul(summed - 1);
    if whole > held {
        return (most, Within::Any(Span::from_nanos(whole - held)));
    }
    // A grant is held for so long that it reaches over the window: what passes in one was charged in several.
    let touched = window.saturating_add(held).div_ceil(slot) + 1;
    (most.saturating_mul(touched.div_ceil(summed)), Within::Any(rate.window()))
}

/// The tokens that are granted while a grant is held may pass at once with it.
fn of_bucket(rate: Rate, burst: u64, (held, out): (Span, Span), credit: u64) -> Bound {
    let most = burst.saturating_add(credit).saturating_add(refilled(rate, held));
    Bound { most, within: Within::Instant(rate), least: Least::Rate(refilled(rate, out)) }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { most, within, least } = self;
        match within {
            Within::Any(span) => write!(f, "at most {most} in any {span}"),
            Within::Window(span) => write!(f, "at most {most} in each window of {span}"),
            Within::Each(CalendarUnit::Hour) => write!(f, "at most {most} in each hour"),
            Within::Each(CalendarUnit::Day) => write!(f, "at most {most} in each day"),
            Within::Each(CalendarUnit::Week) => write!(f, "at most {most} in each week"),
            Within::Each(CalendarUnit::Month) => write!(f, "at most {most} in each month"),
            Within::Instant(rate) => write!(f, "at most {most} at once, then {rate}"),
        }?;
        match least {
            Least::Any(least, span) => write!(f, ", at least {least} in any {span}"),
            Least::Window(least) => write!(f, ", at least {least}"),
            Least::Rate(less) => write!(f, ", at least that less {less}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_limiter::{
        Align, CalendarRate, FixedWindow, Gcra, LEASE_HOLD, OnFailure, Refill, SlidingCounter, SlidingLog,
        SlidingWindow, TimerWheel, TokenBucket,
    };

    fn shown(algorithm: &Algorithm, overshoot_ppm: u32, gateways: u32) -> String {
        let hold = if overshoot_ppm == 1 { Span::from_millis(10) } else { LEASE_HOLD };
        let deadline = Span::from_millis(10);
        let sharing = StoreSharing { overshoot_ppm, hold, deadline, on_failure: OnFailure::Fair, gives_back: false };
        let all: Vec<_> = Bound::of(algorithm, &sharing, gateways).iter().map(ToString::to_string).collect();
        all.join("; ")
    }

    fn wheel(rates: &[&str], slots: Option<u32>, bound: OfWheel) -> Algorithm {
        let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
        Algorithm::TimerWheel(TimerWheel::new(&rates, slots, bound).unwrap())
    }

    /// The examples of `docs/fleet-bounds.md`.
    #[test]
    fn the_bound_is_the_one_that_the_documentation_derives() {
        let sliding = wheel(&["100/s"], None, OfWheel::Sliding);
        assert_eq!(shown(&sliding, 250_000, 3), "at most 124 in any 800ms, at least 100 in any 1450ms");
        assert_eq!(shown(&sliding, 250_000, 2), "at most 124 in any 800ms, at least 100 in any 1450ms", "2 x 12");
        assert_eq!(shown(&sliding, 250_000, 1), "at most 125 in any 800ms, at least 100 in any 1450ms");
        assert_eq!(shown(&sliding, 0, 3), "at most 100 in any 800ms, at least 100 in any 1450ms");
        assert_eq!(
            shown(&sliding, 1, 3),
            "at most 100 in any 890ms, at least 100 in any 1360ms",
            "strict: held for the deadline"
        );
        assert_eq!(
            shown(&wheel(&["100/s"], None, OfWheel::Strict), 250_000, 3),
            "at most 124 in any 900ms, at least 100 in any 1550ms"
        );
        let rate: Rate = "100/s".parse().unwrap();
        let bucket = |burst| Algorithm::TokenBucket(TokenBucket::new(&[rate], burst, Refill::Greedy).unwrap());
        assert_eq!(shown(&bucket(Some(20)), 250_000, 3), "at most 33 at once, then 100/s, at least that less 45");
        let gcra = Algorithm::Gcra(Gcra::new(&[rate], Some(20)).unwrap());
        assert_eq!(shown(&gcra, 250_000, 3), "at most 33 at once, then 100/s, at least that less 45");
        for align in [Align::Epoch, Align::First] {
            let window = Algorithm::FixedWindow(FixedWindow::new(&[rate], align).unwrap());
            assert_eq!(shown(&window, 250_000, 3), "at most 124 in each window of 1s, at least 100");
        }
    }

    #[test]
    fn sliding_limits_have_bounds_too() {
        let rate: Rate = "100/s".parse().unwrap();
        // Each of ten sub-windows has at most twice its part, 20, of which c is floor(0.25 x 20 / 3).
        let window = Algorithm::SlidingWindow(SlidingWindow::new(&[rate], None, None).unwrap());
        assert_eq!(shown(&window, 250_000, 3), "at most 103 in any 900ms, at least 100 in any 1450ms");
        let counter = Algorithm::SlidingCounter(SlidingCounter::new(&[rate]).unwrap());
        assert_eq!(shown(&counter, 250_000, 3), "at most 248 in any 1s, at least 100 in any 2450ms");
        let log = Algorithm::SlidingLog(SlidingLog::new(&[rate], Span::ZERO, false).unwrap());
        assert_eq!(shown(&log, 1, 3), "at most 100 in any 990ms, at least 100 in any 1360ms");
    }

    #[test]
    fn without_a_store_each_gateway_may_have_a_burst_and_what_it_has_not_heard_of() {
        let shown = |algorithm: &Algorithm, gateways, millis| {
            let all: Vec<_> =
                Bound::told(algorithm, gateways, Span::from_millis(millis)).iter().map(ToString::to_string).collect();
            all.join("; ")
        };
        let rates: Vec<Rate> = ["100/s", "1000/m"].map(|rate| rate.parse().unwrap()).into();
        let bucket = Algorithm::TokenBucket(TokenBucket::new(&rates[..1], Some(20), Refill::Greedy).unwrap());
        assert_eq!(
            shown(&bucket, 3, 120),
            "at most 84 at once, then 100/s, at least that less 76",
            "12 come back in 120 ms"
        );
        assert_eq!(shown(&bucket, 1, 120), "at most 20 at once, then 100/s, at least that less 12");
        let both = Algorithm::Gcra(Gcra::new(&rates, Some(5)).unwrap());
        assert_eq!(
            shown(&both, 2, 50),
            "at most 15 at once, then 100/s, at least that less 15; at most 11 at once, then 1000/m, at least that less 7"
        );
    }

    #[test]
    fn the_bound_of_a_calendar_says_its_unit() {
        let rates: Vec<CalendarRate> =
            ["100/h", "200/d", "300/7d", "400/month"].map(|rate| rate.parse().unwrap()).into();
        let window = Algorithm::FixedWindow(FixedWindow::of_calendar(&rates, &sluicegate_time::Zone::utc()).unwrap());
        let bounds = "at most 124 in each hour, at least 100; at most 224 in each day, at least 200; \
            at most 324 in each week, at least 300; at most 424 in each month, at least 400";
        assert_eq!(shown(&window, 250_000, 3), bounds);
    }

    #[test]
    fn each_rate_has_a_bound_with_the_credit_of_the_smallest() {
        let rates = wheel(&["100/s", "1000/m"], None, OfWheel::Sliding);
        assert_eq!(
            shown(&rates, 250_000, 3),
            "at most 124 in any 800ms, at least 100 in any 1450ms; at most 1024 in any 58900ms, at least 1000 in any 60450ms"
        );
    }

    #[test]
    fn a_window_that_is_shorter_than_a_grant_is_held_lets_several_limits_pass() {
        // 200 ms touch 21 slots, ten of which count 100.
        let short = wheel(&["100/100ms"], None, OfWheel::Sliding);
        assert_eq!(shown(&short, 0, 3), "at most 300 in any 100ms, at least 100 in any 550ms");
        let one_slot = wheel(&["100/s"], Some(1), OfWheel::Sliding);
        assert_eq!(shown(&one_slot, 0, 3), "at most 300 in any 1s, at least 100 in any 1450ms");
    }
}
