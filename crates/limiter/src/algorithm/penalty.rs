use std::fmt;

use super::pace::LONGEST;
use sluicegate_time::{Span, Tick};

/// Blocks a key that keeps hitting its limit: `after` refusals within `within` cost it `block` without admission.
///
/// Refusals are counted from the first one on, and anew when `within` is over; those during a block are not counted, so
/// that a block always ends. **Costs** two words a key, 16 bytes; three, if its blocks grow. **Source**: fail2ban's
/// `maxretry`, `findtime`, `bantime` and `bantime.increment`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Penalty {
    after: u64,
    within: Span,
    block: Span,
    growth: Option<BlockGrowth>,
}

/// How much longer each block is than the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockGrowth {
    /// Of the last block's length, in hundredths; above 100.
    percent: u32,
    /// No block is longer.
    most: Span,
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
    /// Blocks that grow would be shorter than the first one.
    MostBelowFirst,
}

/// A block's record has this in place of a count.
const BLOCKED: u64 = u64::MAX;

/// A block that begins so soon after the end of the last one is longer than that.
const MEMORY: Span = Span::from_secs(86_400);

/// The blocks of a key one after the other, each within a day of the last, as one word: so a key takes 8 bytes more and
/// not 16.
#[derive(Clone, Copy)]
struct BlockSeries(u64);

impl BlockSeries {
    /// Bits of the number of blocks. The others are the end of the last one in milliseconds, which needs 45.
    const BITS: u32 = 16;
    const MOST: u64 = (1 << Self::BITS) - 1;
    const MILLI: u64 = 1_000_000;

    fn new(blocks: u64, end: Tick) -> Self {
        Self(end.as_nanos().div_ceil(Self::MILLI) << Self::BITS | blocks.min(Self::MOST))
    }

    /// How many there were, if another one that begins now goes on with them; else 0.
    fn blocks(self, now: Tick) -> u64 {
        let end = Tick::from_nanos((self.0 >> Self::BITS).saturating_mul(Self::MILLI));
        if self.0 != 0 && now.since(end) < MEMORY { self.0 & Self::MOST } else { 0 }
    }
}

impl Penalty {
    /// `after` refusals, at least 1, `within` a time, `block` a key for a time; both more than zero and at most a hundred
    /// years.
    pub fn new(after: u64, within: Span, block: Span) -> Result<Self, PenaltyError> {
        match [within, block] {
            _ if after == 0 => Err(PenaltyError::ZeroRefusals),
            times if times.iter().any(|time| time.is_zero()) => Err(PenaltyError::ZeroTime),
            times if times.iter().any(|time| *time > LONGEST) => Err(PenaltyError::TimeTooLong),
            // The largest count says that a key is blocked.
            _ => Ok(Self { after: after.min(BLOCKED - 1), within, block, growth: None }),
        }
    }

    /// A block that begins within a day of the end of the last one is `percent` hundredths as long as that, and at most
    /// `most`. Up to 100 it is as long as each: then nothing is kept for it.
    pub fn growing(self, percent: u32, most: Span) -> Result<Self, PenaltyError> {
        match most {
            _ if percent <= 100 => Ok(Self { growth: None, ..self }),
            _ if most < self.block => Err(PenaltyError::MostBelowFirst),
            _ if most > LONGEST => Err(PenaltyError::TimeTooLong),
            _ => Ok(Self { growth: Some(BlockGrowth { percent, most }), ..self }),
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

    /// For how long a key is blocked the first time.
    pub const fn block(self) -> Span {
        self.block
    }

    /// So long after the begin of a block nothing of it counts any more.
    pub fn longest_memory(self) -> Span {
        self.growth
            .map_or(self.block, |growth| Span::from_nanos(growth.most.as_nanos().saturating_add(MEMORY.as_nanos())))
    }

    /// Words per chunk: an instant, and the refusals counted since; or the end of a block, and [`BLOCKED`]. Then, if its
    /// blocks grow, their [series](BlockSeries).
    pub(super) const fn words(self) -> usize {
        2 + self.growth.is_some() as usize
    }

    /// How long a block is that comes after so many others.
    fn length(self, blocks: u64) -> Span {
        let Some(BlockGrowth { percent, most }) = self.growth else { return self.block };
        let (mut nanos, most) = (u128::from(self.block.as_nanos()), most.as_nanos());
        // It ends soon: each step makes it longer by a hundredth at least, up to the longest.
        for _ in 0..blocks {
            if nanos >= u128::from(most) {
                break;
            }
            nanos = (nanos * u128::from(percent)).div_ceil(100);
        }
        Span::from_nanos(u64::try_from(nanos).map_or(most, |nanos| nanos.min(most)))
    }

    /// Until when a key is blocked; `None` if it is not.
    #[inline]
    pub(super) fn blocked_until(chunk: &[u64], now: Tick) -> Option<Tick> {
        match *chunk {
            [until, BLOCKED, ..] => Some(Tick::from_nanos(until)).filter(|until| *until > now),
            _ => None,
        }
    }

    /// Counts a refusal; whether it begins a block.
    pub(super) fn note(self, chunk: &mut [u64], now: Tick) -> bool {
        let [instant, count, series @ ..] = chunk else { return false };
        if *count == BLOCKED && Tick::from_nanos(*instant) > now {
            return false;
        }
        if *count == 0 || *count == BLOCKED || now.since(Tick::from_nanos(*instant)) >= self.within {
            (*instant, *count) = (now.as_nanos(), 0);
        }
        *count += 1;
        let begins = *count >= self.after;
        if begins {
            let before = series.first().map_or(0, |series| BlockSeries(*series).blocks(now));
            let until = now + self.length(before);
            (*instant, *count) = (until.as_nanos(), BLOCKED);
            if let Some(series) = series.first_mut() {
                *series = BlockSeries::new(before + 1, until).0;
            }
        }
        begins
    }

    /// Whether nothing would change if the chunk were zero.
    pub(super) fn is_idle(self, chunk: &[u64], now: Tick) -> bool {
        let (is_idle, series) = match chunk {
            [until, BLOCKED, series @ ..] => (Tick::from_nanos(*until) <= now, series),
            [_, 0, series @ ..] => (true, series),
            [since, _, series @ ..] => (now.since(Tick::from_nanos(*since)) >= self.within, series),
            _ => return true,
        };
        is_idle && series.first().is_none_or(|series| BlockSeries(*series).blocks(now) == 0)
    }
}

/// States are kept by this text: one whose blocks do not grow reads as it did before any could.
impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, within, block, growth } = self;
        let mut text = f.debug_struct("Penalty");
        text.field("after", after).field("within", within).field("block", block);
        if let Some(growth) = growth {
            text.field("growth", growth);
        }
        text.finish()
    }
}

impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} refusals in {}", self.block, self.after, self.within)?;
        match self.growth {
            Some(BlockGrowth { percent, most }) => {
                write!(f, ", then {} times as long, up to {most}", f64::from(percent) / 100.0)
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for PenaltyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroRefusals => write!(f, "a penalty after no refusal would block everybody: give at least 1"),
            Self::ZeroTime => write!(f, "a penalty's times cannot be empty: write \"1m\" or \"10m\""),
            Self::TimeTooLong => write!(f, "a penalty's times are at most a hundred years"),
            Self::MostBelowFirst => write!(f, "`max_block` is shorter than `block`"),
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

    /// One that blocks at the first refusal for ten minutes, then for twice as long, up to two hours.
    fn growing() -> Penalty {
        penalty(1).growing(200, Span::from_secs(7_200)).unwrap()
    }

    #[test]
    fn each_block_within_a_day_of_the_last_is_longer_up_to_the_longest() {
        let (penalty, mut chunk) = (growing(), [0; 3]);
        assert_eq!(penalty.words(), chunk.len());
        let mut now = at(5);
        for minutes in [10, 20, 40, 80, 120, 120, 120] {
            assert!(penalty.note(&mut chunk, now));
            let end = now + Span::from_secs(60 * minutes);
            assert_eq!(Penalty::blocked_until(&chunk, now), Some(end), "{minutes}");
            assert!(!penalty.note(&mut chunk, now), "a refusal in a block counts for nothing");
            // The last moment at which it is remembered.
            now = Tick::from_nanos((end + MEMORY).as_nanos() - 1_000_000);
            assert!(!penalty.is_idle(&chunk, now));
        }
        now = now + Span::from_millis(1);
        assert!(penalty.is_idle(&chunk, now));
        assert!(penalty.note(&mut chunk, now));
        assert_eq!(Penalty::blocked_until(&chunk, now), Some(now + Span::from_secs(600)), "as the first one again");
    }

    #[test]
    fn refusals_between_two_blocks_do_not_make_it_forget_the_first() {
        let (penalty, mut chunk) = (penalty(2).growing(150, Span::from_secs(86_400)).unwrap(), [0; 3]);
        assert!(!penalty.note(&mut chunk, at(0)) && penalty.note(&mut chunk, at(1)));
        // One by one, too far apart for a block.
        for now in [700, 800, 900, 50_000] {
            assert!(!penalty.note(&mut chunk, at(now)));
        }
        assert!(penalty.note(&mut chunk, at(50_001)));
        assert_eq!(Penalty::blocked_until(&chunk, at(50_001)), Some(at(50_901)));
    }

    #[test]
    fn growth_that_makes_nothing_longer_costs_nothing() {
        let flat = penalty(2).growing(100, Span::from_secs(1)).unwrap();
        assert_eq!((flat, flat.words()), (penalty(2), 2));
        let (within, block) = (Span::from_secs(60), Span::from_secs(600));
        let text = format!("Penalty {{ after: 2, within: {within:?}, block: {block:?} }}");
        assert_eq!(format!("{flat:?}"), text, "states that were written before are taken over");
        assert_eq!(growing().to_string(), "10m for 1 refusals in 1m, then 2 times as long, up to 2h");
    }

    #[test]
    fn the_length_of_a_block_has_a_bound_however_many_there_were() {
        let slowly = Penalty::new(1, Span::from_secs(1), Span::from_secs(1)).unwrap();
        let slowly = slowly.growing(101, LONGEST).unwrap();
        assert_eq!(slowly.length(BlockSeries::MOST), LONGEST);
        let steep = growing().growing(u32::MAX, LONGEST).unwrap();
        assert_eq!((steep.length(1), steep.length(u64::MAX)), (steep.length(1).min(LONGEST), LONGEST));
        let mut chunk = [0; 3];
        assert!(steep.note(&mut chunk, Tick::MAX) && !steep.is_idle(&chunk, Tick::MAX));
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
        assert_eq!(growing().growing(200, second), Err(PenaltyError::MostBelowFirst));
        assert_eq!(growing().growing(200, Span::MAX), Err(PenaltyError::TimeTooLong));
        let mut chunk = [0; 2];
        let all = Penalty::new(u64::MAX, second, LONGEST).unwrap();
        assert!(!all.note(&mut chunk, Tick::MAX));
        assert!(Penalty::new(1, second, LONGEST).unwrap().note(&mut chunk, Tick::MAX));
        assert_eq!(Penalty::blocked_until(&chunk, Tick::MAX), None);
    }
}
