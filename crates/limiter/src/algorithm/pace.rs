use super::divisor::Divisor;
use super::{AlgorithmError, CommitFacts};
use crate::MAX_RATES;
use crate::quota::{MAX_COUNT, Rate};
use sluicegate_time::{Span, Tick};

/// The time that one request takes at a rate, `W / L`, exactly: `num / den` nanoseconds in lowest terms.
///
/// Lengths of time are counted in *parts*, `1 / den` of a nanosecond, so that no fraction is ever dropped. An instant
/// takes one word where `W / L` is a whole number of nanoseconds, else two: the nanoseconds and the parts beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    limit: u64,
    window: Span,
    num: Divisor,
    den: Divisor,
}

/// The longest window, and the longest debt that a key may run up: a hundred years. With it no instant of this century
/// leaves the clock.
pub(super) const LONGEST: Span = Span::from_secs(100 * 365 * 86_400);

impl Pace {
    pub(super) fn new(rate: Rate) -> Self {
        let (limit, window) = (rate.limit(), rate.window());
        let divisor = common_divisor(limit, window.as_nanos());
        Self { limit, window, num: Divisor::new(window.as_nanos() / divisor), den: Divisor::new(limit / divisor) }
    }

    pub(super) fn words(&self) -> usize {
        if self.den.get() == 1 { 1 } else { 2 }
    }

    /// The time that one request takes, where it is a whole number of nanoseconds.
    #[inline]
    pub(super) fn nanos(&self) -> Option<Divisor> {
        (self.den.get() == 1).then_some(self.num)
    }

    pub(super) fn quota(&self) -> (u64, Span) {
        (self.limit, self.window)
    }

    pub(super) fn same_steps(&self, other: &Self) -> bool {
        self.num == other.num && self.den == other.den
    }

    pub(super) fn is_faster_than(&self, other: &Self) -> bool {
        let in_both = |limit: u64, window: Span| u128::from(limit) * u128::from(window.as_nanos());
        in_both(self.limit, other.window) > in_both(other.limit, self.window)
    }

    /// The largest cost that is worked off within [`LONGEST`]; at most [`MAX_COUNT`].
    pub(super) fn largest(&self) -> u64 {
        let most = self.parts_of(LONGEST) / u128::from(self.num.get());
        u64::try_from(most).unwrap_or(u64::MAX).min(MAX_COUNT)
    }

    /// The parts that `cost` requests take.
    #[inline]
    pub(super) fn cost(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.num.get())
    }

    pub(super) fn parts_of(&self, span: Span) -> u128 {
        u128::from(span.as_nanos()) * u128::from(self.den.get())
    }

    /// The whole requests in so many parts.
    #[inline]
    pub(super) fn requests_in(&self, parts: u128) -> u64 {
        u64::try_from(quotient(parts, self.num).0).unwrap_or(u64::MAX)
    }

    /// How far the instant in `chunk` is ahead of `now`; zero if it is not.
    #[inline]
    pub(super) fn ahead(&self, chunk: &[u64], now: Tick) -> u128 {
        let (nanos, parts) = instant(chunk);
        match nanos.checked_sub(now.as_nanos()) {
            Some(nanos) => u128::from(nanos) * u128::from(self.den.get()) + u128::from(parts),
            None => 0,
        }
    }

    /// How far it is behind `now`; zero if it is not.
    pub(super) fn behind(&self, chunk: &[u64], now: Tick) -> u128 {
        let (nanos, parts) = instant(chunk);
        let whole = u128::from(now.as_nanos().saturating_sub(nanos)) * u128::from(self.den.get());
        whole.saturating_sub(u128::from(parts))
    }

    /// The first whole instant that is `parts` or more after `now`.
    #[inline]
    pub(super) fn after(&self, now: Tick, parts: u128) -> Tick {
        let (nanos, rest) = quotient(parts, self.den);
        now + Span::from_nanos(u64::try_from(nanos + u128::from(rest > 0)).unwrap_or(u64::MAX))
    }

    /// Writes the instant that is `parts` after `now`.
    #[inline]
    pub(super) fn set_ahead(&self, chunk: &mut [u64], now: Tick, parts: u128) {
        let (nanos, rest) = quotient(parts, self.den);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        set_instant(chunk, now.as_nanos().saturating_add(nanos), rest);
    }

    /// Writes the instant that is `parts` before `now`, at the earliest tick 0.
    pub(super) fn set_behind(&self, chunk: &mut [u64], now: Tick, parts: u128) {
        let (nanos, rest) = quotient(parts, self.den);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        match now.as_nanos().checked_sub(nanos) {
            Some(whole) if rest == 0 => set_instant(chunk, whole, 0),
            Some(whole @ 1..) => set_instant(chunk, whole - 1, self.den.get() - rest),
            _ => set_instant(chunk, 0, 0),
        }
    }

    /// Moves the instant in `chunk` back by what `cost` requests take, but not by what time has worked off since the commit
    /// that `taken` tells of. `saved` is how far behind the clock an instant may be when somebody is counted.
    ///
    /// Let `x` be the instant that the commit left, and `C` what later requests were charged and have not been given back.
    /// The instant is now at least `x + C`, less what earlier ones were given back since: at most `taken.given`. Had the
    /// real cost been taken at once, the later ones might have found an instant behind the clock: it would now be at most
    /// `now - saved + C`, or as much earlier as the cost is less. So what lies between may be given back, and no more.
    pub(super) fn move_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, saved: u128, now: Tick) {
        let left = (self.ahead(&taken.words, now) + saved).saturating_sub(self.behind(&taken.words, now));
        let back = self.cost(cost).min(left.saturating_sub(self.cost(taken.given)));
        if back == 0 {
            return;
        }
        let ahead = self.ahead(chunk, now);
        match ahead.checked_sub(back) {
            Some(ahead) => self.set_ahead(chunk, now, ahead),
            None => self.set_behind(chunk, now, self.behind(chunk, now) + back - ahead),
        }
    }

    /// As many requests, in parts of this pace, as `parts` of `old` are; rounded up if `up`, else down.
    pub(super) fn convert(&self, old: &Self, parts: u128, up: bool) -> u128 {
        let (requests, rest) = quotient(parts, old.num);
        let (num, old_num) = (u128::from(self.num.get()), u128::from(old.num.get()));
        let fraction = u128::from(rest) * num;
        let fraction = if up { fraction.div_ceil(old_num) } else { fraction / old_num };
        requests.saturating_mul(num).saturating_add(fraction)
    }
}

/// The rates of one limit: 1 to [`MAX_RATES`], none so slow that a single request of it takes a hundred years.
pub(super) fn checked(rates: &[Rate]) -> Result<Vec<Rate>, AlgorithmError> {
    if rates.is_empty() {
        return Err(AlgorithmError::NoRates);
    }
    if rates.len() > MAX_RATES {
        return Err(AlgorithmError::TooManyRates { given: rates.len() });
    }
    match rates.iter().find(|rate| rate.window() > LONGEST) {
        Some(rate) => Err(AlgorithmError::WindowTooLong { rate: *rate, longest: LONGEST }),
        None => Ok(rates.to_vec()),
    }
}

/// Whether `burst` of each of `rates` can be had: it is not 0, and it refills within a hundred years.
pub(super) fn check_burst(rates: &[Rate], burst: u64) -> Result<(), AlgorithmError> {
    let slow = rates.iter().map(|rate| (*rate, Pace::new(*rate).largest())).find(|(_, most)| burst > *most);
    match slow {
        _ if burst == 0 => Err(AlgorithmError::ZeroBurst),
        Some((rate, most)) => Err(AlgorithmError::BurstTooLarge { rate, burst, most }),
        None => Ok(()),
    }
}

#[inline]
fn instant(chunk: &[u64]) -> (u64, u64) {
    (chunk.first().copied().unwrap_or(0), chunk.get(1).copied().unwrap_or(0))
}

#[inline]
fn set_instant(chunk: &mut [u64], nanos: u64, parts: u64) {
    for (word, value) in chunk.iter_mut().zip([nanos, parts]) {
        *word = value;
    }
}

/// Quotient and remainder. Most are of few bits, and those of many are slow.
#[inline]
fn quotient(parts: u128, by: Divisor) -> (u128, u64) {
    match u64::try_from(parts) {
        _ if by.get() == 1 => (parts, 0),
        Ok(parts) => {
            let (whole, rest) = by.divide(parts);
            (u128::from(whole), rest)
        }
        Err(_) => (parts / u128::from(by.get()), (parts % u128::from(by.get())) as u64),
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: &str) -> Pace {
        Pace::new(rate.parse().unwrap())
    }

    #[test]
    fn the_time_of_a_request_is_exact() {
        for (rate, num, den, words) in [
            ("10/s", 100_000_000, 1, 1),
            ("3/s", 1_000_000_000, 3, 2),
            ("1000000000000/s", 1, 1_000, 2),
            ("6/ms", 500_000, 3, 2),
            ("60/m", 1_000_000_000, 1, 1),
        ] {
            let pace = pace(rate);
            assert_eq!((pace.num.get(), pace.den.get(), pace.words()), (num, den, words), "{rate}");
        }
    }

    #[test]
    fn thirds_of_a_nanosecond_add_up() {
        let pace = pace("3/s");
        let mut chunk = [0, 0];
        let now = Tick::from_nanos(5);
        let mut ahead = 0;
        for seconds in 1..=1_000u64 {
            for _ in 0..3 {
                ahead = pace.ahead(&chunk, now) + pace.cost(1);
                pace.set_ahead(&mut chunk, now, ahead);
            }
            assert_eq!(chunk, [5 + seconds * 1_000_000_000, 0]);
        }
        assert_eq!(ahead, pace.parts_of(Span::from_secs(1_000)));
        pace.set_ahead(&mut chunk, now, pace.cost(1));
        assert_eq!(chunk, [333_333_338, 1]);
        assert_eq!(pace.after(now, pace.cost(1)), Tick::from_nanos(333_333_339));
    }

    #[test]
    fn ahead_and_behind_are_each_others_mirror() {
        let pace = pace("3/s");
        let now = Tick::from_nanos(1_000);
        for parts in [0, 1, 2, 3, 4, 2_998, 2_999, 3_000] {
            let mut chunk = [9, 9];
            pace.set_behind(&mut chunk, now, parts);
            assert_eq!((pace.behind(&chunk, now), pace.ahead(&chunk, now)), (parts, 0), "{parts}");
            pace.set_ahead(&mut chunk, now, parts);
            assert_eq!((pace.behind(&chunk, now), pace.ahead(&chunk, now)), (0, parts), "{parts}");
        }
        let mut chunk = [9, 9];
        pace.set_behind(&mut chunk, now, 3_001);
        assert_eq!(chunk, [0, 0], "not before tick 0");
    }

    #[test]
    fn requests_are_converted_whole_and_fractions_rounded() {
        let (slow, fast) = (pace("3/s"), pace("7/s"));
        assert_eq!(fast.convert(&slow, slow.cost(5), true), fast.cost(5));
        assert_eq!(fast.convert(&slow, slow.cost(5) + 1, true), fast.cost(5) + 1);
        assert_eq!(fast.convert(&slow, slow.cost(5) + 1, false), fast.cost(5) + 1, "both are 1 s in their own parts");
        let odd = pace("7/3s");
        assert_eq!(slow.convert(&odd, 1, true), 1);
        assert_eq!(slow.convert(&odd, 1, false), 0);
    }

    #[test]
    fn no_number_is_too_large() {
        for rate in ["1000000000000/1ns", "1/36500d", "999999999989/36499d"] {
            let pace = pace(rate);
            let mut chunk = vec![0; pace.words()];
            pace.set_ahead(&mut chunk, Tick::MAX, pace.cost(u64::MAX));
            assert_eq!(chunk[0], u64::MAX);
            let _ = pace.ahead(&chunk, Tick::ZERO) + pace.cost(MAX_COUNT);
            assert!(pace.largest() >= 1 && pace.cost(pace.largest()) <= pace.parts_of(LONGEST));
        }
    }
}
