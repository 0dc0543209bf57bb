use sluicegate_time::{Span, Tick};

use super::MAX_LIMITS;
use super::decision::Denial;
use super::key::Fingerprint;
use super::permit::Permit;
use super::shard::FastPath;
use super::verdict::{Refusal, RefusalReason, Verdict};
use sluicegate_words::words;

/// Lines that need no heap. Every request carries the room for them, so it is what nearly every route needs and no more.
const INLINE_LINES: usize = 4;

/// How the limits of a route stand for one request, as the rate headers show it: one line per rate of every limit
/// that applies, in the file's order. Without heap up to four lines; meant to be kept and cleared.
#[derive(Clone, Debug, Default)]
pub struct Report {
    inline: [QuotaLine; INLINE_LINES],
    used: u8,
    noted: NotedLimits,
    /// All lines, once there are too many for `inline`; else empty.
    spilled: Vec<QuotaLine>,
    /// By the limits' places in the policy.
    keys: [Option<Fingerprint>; MAX_LIMITS],
}

/// Limits of which more is known than their lines say, as bits by their places in the policy.
#[derive(Clone, Copy, Debug, Default)]
struct NotedLimits {
    /// Those in shadow mode that would have refused the request.
    shadow_refusals: u8,
    /// The one that has refused it.
    refusals: u8,
    /// Those that could not tell, since their store is away.
    undecided: u8,
}

words! {
    /// How a limit has decided about one request.
    pub enum LimitState {
        /// It has room for it.
        Ok = "ok",
        /// It has refused it, or would have in another mode than shadow.
        Over = "over",
        /// It was not asked, or could not tell.
        Unknown = "unknown",
    }
}

/// One rate of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLine {
    /// The limit's index in the policy.
    pub limit: usize,
    /// The rate's index in the limit.
    pub rate: usize,
    /// The limit is in shadow mode: it counts, but it would refuse nobody.
    pub shadow: bool,
    /// The quota `L`.
    pub quota: u64,
    /// The window `W`.
    pub window: Span,
    /// How many more requests of cost 1 would be admitted now; 0 while others wait for the key.
    pub remaining: u64,
    /// How long until `remaining` grows; `None` when nothing is taken.
    pub reset: Option<Span>,
}

impl Report {
    /// The lines, in the file's order.
    pub fn lines(&self) -> &[QuotaLine] {
        if self.spilled.is_empty() {
            self.inline.get(..usize::from(self.used)).unwrap_or_default()
        } else {
            &self.spilled
        }
    }

    /// The limits in shadow mode that would have refused this request, by their index in the policy.
    pub fn shadow_refusals(&self) -> impl Iterator<Item = usize> {
        let set = self.noted.shadow_refusals;
        (0..MAX_LIMITS).filter(move |limit| set & (1 << limit) != 0)
    }

    /// Whether a limit in shadow mode would have refused this request.
    pub fn has_shadow_refusals(&self) -> bool {
        self.noted.shadow_refusals != 0
    }

    /// How a limit has decided, by its index in the policy.
    pub fn state_of(&self, limit: usize) -> LimitState {
        let bit = bit_of(limit);
        let NotedLimits { shadow_refusals, refusals, undecided } = self.noted;
        if undecided & bit != 0 || !self.lines().iter().any(|line| line.limit == limit) {
            return LimitState::Unknown;
        }
        if (shadow_refusals | refusals) & bit == 0 { LimitState::Ok } else { LimitState::Over }
    }

    /// Notes that a limit has refused the request, by its index in the policy.
    pub fn note_refusal(&mut self, limit: usize) {
        self.noted.refusals |= bit_of(limit);
    }

    /// The key under which each limit was asked, by its index in the policy, once [noted](Self::note_keys).
    pub fn key(&self, limit: usize) -> Option<Fingerprint> {
        self.keys.get(limit).copied().flatten()
    }

    /// Notes the keys under which the limits were asked, for the caller that counts by them.
    #[inline]
    pub fn note_keys(&mut self, keys: impl Iterator<Item = Option<Fingerprint>>) {
        for (noted, key) in self.keys.iter_mut().zip(keys) {
            *noted = key;
        }
    }

    /// Empties it, but for the keys.
    pub fn clear(&mut self) {
        self.used = 0;
        self.spilled.clear();
        self.noted = NotedLimits::default();
    }

    #[inline]
    pub(super) fn push(&mut self, line: QuotaLine) {
        match self.inline.get_mut(usize::from(self.used)) {
            Some(free) if self.spilled.is_empty() => {
                *free = line;
                self.used += 1;
            }
            _ => {
                if self.spilled.is_empty() {
                    self.spilled.extend_from_slice(&self.inline);
                }
                self.spilled.push(line);
            }
        }
    }

    /// A denial with the numbers of the line that it is about; zeroes when the limit is no longer looked at.
    pub(super) fn refusal(&self, denial: Denial) -> Refusal {
        let Denial { limit, rate, why, retry_at } = denial;
        let line = self.lines().iter().find(|line| line.limit == limit && line.rate == rate);
        let QuotaLine { quota, window, remaining, .. } = line.copied().unwrap_or_default();
        Refusal { limit, why, retry_at, quota, window, remaining, blocked_until: None }
    }

    /// The verdict of the only limit, and its line.
    #[expect(clippy::inline_always, reason = "the hot verdict, whose result would be moved")]
    #[inline(always)]
    pub(super) fn verdict_alone(&mut self, alone: FastPath, now: Tick) -> Verdict {
        let FastPath { room_at, remaining, grows_at, quota, window } = alone;
        let reset = grows_at.map(|at| at.since(now));
        self.push(QuotaLine { limit: 0, rate: 0, shadow: false, quota, window, remaining, reset });
        match room_at {
            None => Verdict::Admitted(Permit::default()),
            Some(at) => {
                let retry_at = Some(at.max(now));
                // A limit with a penalty goes the long way.
                let (why, blocked_until) = (RefusalReason::Rate, None);
                Verdict::Refused(Refusal { limit: 0, why, retry_at, quota, window, remaining, blocked_until })
            }
        }
    }

    /// Nothing remains on the line of a rate that sends a request of cost 1 away until later: what is stored, or how
    /// many may wait for its room, is of no use to one whom it keeps from waiting elsewhere.
    pub(super) fn exhaust(&mut self, denial: Denial, cost: u64, now: Tick) {
        let Some(retry_at) = denial.retry_at.filter(|at| *at > now && cost == 1) else { return };
        let lines = if self.spilled.is_empty() {
            self.inline.get_mut(..usize::from(self.used)).unwrap_or_default()
        } else {
            &mut self.spilled
        };
        let about = |line: &&mut QuotaLine| (line.limit, line.rate) == (denial.limit, denial.rate);
        if let Some(line) = lines.iter_mut().find(about).filter(|line| line.remaining > 0) {
            (line.remaining, line.reset) = (0, Some(retry_at.since(now)));
        }
    }

    pub(super) fn note_shadow_refusal(&mut self, limit: usize) {
        self.noted.shadow_refusals |= bit_of(limit);
    }

    pub(super) fn note_undecided(&mut self, limit: usize) {
        self.noted.undecided |= bit_of(limit);
    }
}

/// The bit of a limit; none beyond the limits of a policy.
fn bit_of(limit: usize) -> u8 {
    1_u8.checked_shl(u32::try_from(limit).unwrap_or(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_lost_however_many_there_are() {
        let mut report = Report::default();
        for _ in 0..2 {
            report.clear();
            for count in 0..32 {
                assert_eq!(report.lines().len(), count);
                report.push(QuotaLine { limit: count / 4, rate: count % 4, quota: 7, ..QuotaLine::default() });
            }
            let places: Vec<_> = report.lines().iter().map(|line| line.limit * 4 + line.rate).collect();
            assert_eq!(places, (0..32).collect::<Vec<_>>());
        }
        let denial = Denial { limit: 7, rate: 3, why: crate::RefusalReason::Rate, retry_at: None };
        assert_eq!(report.refusal(denial).quota, 7);
    }

    #[test]
    fn names_each_limit_that_would_have_refused_until_it_is_cleared() {
        let mut report = Report::default();
        for limit in [6, 1, 7, 0, 1] {
            report.note_shadow_refusal(limit);
        }
        assert_eq!(report.shadow_refusals().collect::<Vec<_>>(), [0, 1, 6, 7]);
        report.clear();
        assert_eq!(report.shadow_refusals().count(), 0);
    }

    #[test]
    fn a_limit_that_was_not_asked_or_could_not_tell_has_no_known_state() {
        use LimitState::{Ok, Over, Unknown};
        let mut report = Report::default();
        let states = |report: &Report| [0, 1, 2, 3, 7, 8].map(|limit| report.state_of(limit));
        report.note_refusal(7);
        assert_eq!(states(&report), [Unknown; 6], "a refusal by a limit that was not asked says nothing of its count");
        for limit in 0..8 {
            report.push(QuotaLine { limit, ..QuotaLine::default() });
        }
        report.note_shadow_refusal(1);
        report.note_shadow_refusal(2);
        report.note_undecided(2);
        assert_eq!(states(&report), [Ok, Over, Unknown, Ok, Over, Unknown]);
        report.clear();
        report.push(QuotaLine { limit: 7, ..QuotaLine::default() });
        assert_eq!(states(&report), [Unknown, Unknown, Unknown, Unknown, Ok, Unknown]);
    }

    #[test]
    fn a_line_with_something_left_is_exhausted_wherever_it_is_kept() {
        let (second, why) = (Span::from_secs(1), crate::RefusalReason::Rate);
        for lines in [2, 9] {
            let fill = || {
                let mut report = Report::default();
                for limit in 0..lines {
                    report.push(QuotaLine { limit, remaining: 3, ..QuotaLine::default() });
                }
                report
            };
            let denial = Denial { limit: lines - 1, rate: 0, why, retry_at: Some(Tick::ZERO + second) };
            let mut report = fill();
            report.exhaust(denial, 2, Tick::ZERO);
            report.exhaust(denial, 1, Tick::ZERO + second);
            assert_eq!(report.lines(), fill().lines(), "it costs more, or need not wait");
            report.exhaust(denial, 1, Tick::ZERO);
            let left: Vec<_> = report.lines().iter().map(|line| line.remaining).collect();
            assert_eq!(left, [&vec![3; lines - 1][..], &[0]].concat());
            assert_eq!(report.lines()[lines - 1].reset, Some(second));
        }
    }
}
