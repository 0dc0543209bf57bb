use crate::time::Span;

use super::MAX_LIMITS;
use super::decision::Denial;
use super::verdict::Refusal;

/// Lines beyond are not shown: no client reads that many, and every request carries the room for them.
const MAX_LINES: usize = 16;

/// How the limits of a route stand for one request, as the rate headers show it: one line per rate of every limit
/// that applies, in the file's order. Fixed size, no heap: meant to be kept and cleared.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    lines: [QuotaLine; MAX_LINES],
    used: u8,
    shadow_refusals: u8,
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
        self.lines.get(..usize::from(self.used)).unwrap_or_default()
    }

    /// The limits in shadow mode that would have refused this request, by their index in the policy.
    pub fn shadow_refusals(&self) -> impl Iterator<Item = usize> {
        let set = self.shadow_refusals;
        (0..MAX_LIMITS).filter(move |limit| set & (1 << limit) != 0)
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.used = 0;
        self.shadow_refusals = 0;
    }

    pub(super) fn push(&mut self, line: QuotaLine) {
        if let Some(free) = self.lines.get_mut(usize::from(self.used)) {
            *free = line;
            self.used += 1;
        }
    }

    /// A denial with the numbers of the line that it is about; zeroes when the limit is no longer looked at.
    pub(super) fn refusal(&self, denial: Denial) -> Refusal {
        let Denial { limit, rate, why, retry_at } = denial;
        let line = self.lines().iter().find(|line| line.limit == limit && line.rate == rate);
        let QuotaLine { quota, window, remaining, .. } = line.copied().unwrap_or_default();
        Refusal { limit, why, retry_at, quota, window, remaining }
    }

    pub(super) fn note_shadow_refusal(&mut self, limit: usize) {
        self.shadow_refusals |= 1 << limit;
    }
}

impl Default for Report {
    fn default() -> Self {
        Self { lines: [QuotaLine::default(); MAX_LINES], used: 0, shadow_refusals: 0 }
    }
}
