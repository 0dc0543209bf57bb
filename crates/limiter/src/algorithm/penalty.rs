use std::fmt;

use super::pace::LONGEST;
use sluicegate_time::{Span, Tick};

/// Blocks a key that keeps hitting its limit: `after` refusals within `within` cost it `block` without admission.
///
/// Refusals are counted from the first one on, and anew when `within` is over; those during a block are not counted, so
/// that a block always ends. **Costs** two words a key, 16 bytes. **Source**: fail2ban's `maxretry`, `findtime` and
/// `bantime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    after: u64,
    within: Span,
    block: Span,
}

/// Why something is no penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PenaltyError {
    /// Nobody can be blocked after no refusal.
    ZeroRefusals,
    /// One of its times is empty.
    ZeroTime,
    /// One of its times is longer than a hundred years.
    TimeTooLong,
}

/// A block's record has this in place of a count.
const BLOCKED: u64 = u64::MAX;

impl Penalty {
    /// `after` refusals, at least 1, `within` a time, `block` a key for a time; both more than zero and at most a hundred
    /// years.
    pub fn new(after: u64, within: Span, block: Span) -> Result<Self, PenaltyError> {
        match [within, block] {
            _ if after == 0 => Err(PenaltyError::ZeroRefusals),
            times if times.iter().any(|time| time.is_zero()) => Err(PenaltyError::ZeroTime),
            times if times.iter().any(|time| *time > LONGEST) => Err(PenaltyError::TimeTooLong),
            // The largest count says that a key is blocked.
            _ => Ok(Self { after: after.min(BLOCKED - 1), within, block }),
        }
    }

    /// How many refusals it takes.
    pub const fn after(self) -> u64 {
        self.after
    }

    /// Within how much time.
    pub const fn within(self) -> Span {
        self.within
    }

    /// For how long a key is blocked.
    pub const fn block(self) -> Span {
        self.block
    }

    /// Words per chunk: an instant, and the refusals counted since; or the end of a block, and [`BLOCKED`].
    pub(super) const WORDS: usize = 2;

    /// Until when a key is blocked; `None` if it is not.
    #[inline]
    pub(super) fn blocked_until(chunk: &[u64], now: Tick) -> Option<Tick> {
        match *chunk {
            [until, BLOCKED] => Some(Tick::from_nanos(until)).filter(|until| *until > now),
            _ => None,
        }
    }

    /// Counts a refusal; whether it begins a block.
    pub(super) fn note(self, chunk: &mut [u64], now: Tick) -> bool {
        let [instant, count] = chunk else { return false };
        if *count == BLOCKED && Tick::from_nanos(*instant) > now {
            return false;
        }
        if *count == 0 || *count == BLOCKED || now.since(Tick::from_nanos(*instant)) >= self.within {
            (*instant, *count) = (now.as_nanos(), 0);
        }
        *count += 1;
        let begins = *count >= self.after;
        if begins {
            (*instant, *count) = ((now + self.block).as_nanos(), BLOCKED);
        }
        begins
    }

    /// Whether nothing would change if the chunk were zero.
    pub(super) fn is_idle(self, chunk: &[u64], now: Tick) -> bool {
        match *chunk {
            [until, BLOCKED] => Tick::from_nanos(until) <= now,
            [_, 0] => true,
            [since, _] => now.since(Tick::from_nanos(since)) >= self.within,
            _ => true,
        }
    }
}

impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} refusals in {}", self.block, self.after, self.within)
    }
}

impl fmt::Display for PenaltyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroRefusals => write!(f, "a penalty after no refusal would block everybody: give at least 1"),
            Self::ZeroTime => write!(f, "a penalty's times cannot be empty: write \"1m\" or \"10m\""),
            Self::TimeTooLong => write!(f, "a penalty's times are at most a hundred years"),
        }
    }
}

impl std::error::Error for PenaltyError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    fn penalty(after: u64) -> Penalty {
        Penalty::new(after, Span::from_secs(60), Span::from_secs(600)).unwrap()
    }

    #[test]
    fn so_many_refusals_in_time_begin_a_block_and_those_during_it_do_not_prolong_it() {
        let (penalty, mut chunk) = (penalty(3), [0; 2]);
        assert!(!penalty.note(&mut chunk, at(0)));
        assert!(!penalty.note(&mut chunk, at(59)));
        assert_eq!(Penalty::blocked_until(&chunk, at(59)), None);
        assert!(penalty.note(&mut chunk, at(59)));
        for now in [59, 300, 658] {
            assert_eq!(Penalty::blocked_until(&chunk, at(now)), Some(at(659)));
            assert!(!penalty.note(&mut chunk, at(now)));
        }
        assert_eq!(Penalty::blocked_until(&chunk, at(659)), None);
        assert!(!penalty.note(&mut chunk, at(659)), "counted from one again");
        assert!(!penalty.note(&mut chunk, at(659)));
        assert!(penalty.note(&mut chunk, at(659)));
    }

    #[test]
    fn refusals_that_are_far_apart_are_forgotten() {
        let (penalty, mut chunk) = (penalty(2), [0; 2]);
        for now in [0, 60, 120, 180] {
            assert!(!penalty.note(&mut chunk, at(now)));
            assert!(!penalty.is_idle(&chunk, at(now + 59)));
            assert!(penalty.is_idle(&chunk, at(now + 60)));
        }
        assert!(penalty.note(&mut chunk, at(239)));
        assert!(!penalty.is_idle(&chunk, at(838)) && penalty.is_idle(&chunk, at(839)));
    }

    #[test]
    fn the_first_refusal_may_be_the_last() {
        let mut chunk = [0; 2];
        assert!(penalty(1).note(&mut chunk, Tick::ZERO));
        assert_eq!(Penalty::blocked_until(&chunk, Tick::ZERO), Some(at(600)));
    }

    #[test]
    fn refuses_what_is_no_penalty_and_survives_the_end_of_time() {
        let second = Span::from_secs(1);
        assert_eq!(Penalty::new(0, second, second), Err(PenaltyError::ZeroRefusals));
        assert_eq!(Penalty::new(1, Span::ZERO, second), Err(PenaltyError::ZeroTime));
        assert_eq!(Penalty::new(1, second, Span::ZERO), Err(PenaltyError::ZeroTime));
        assert_eq!(Penalty::new(1, second, Span::MAX), Err(PenaltyError::TimeTooLong));
        let mut chunk = [0; 2];
        let all = Penalty::new(u64::MAX, second, LONGEST).unwrap();
        assert!(!all.note(&mut chunk, Tick::MAX));
        assert!(Penalty::new(1, second, LONGEST).unwrap().note(&mut chunk, Tick::MAX));
        assert_eq!(Penalty::blocked_until(&chunk, Tick::MAX), None);
    }
}
