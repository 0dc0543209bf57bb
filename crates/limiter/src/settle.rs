use super::MAX_RATES;
use super::key::Fingerprint;
use sluicegate_time::Span;

/// One key's message to the store that several gateways share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settle {
    /// Spent and not reported before. It is always charged, room or not: without room it is debt.
    pub spent: u64,
    /// Unspent of an earlier grant. It goes back to where it was charged, as far as that still counts.
    pub back: u64,
    /// How long ago that grant was charged, at most.
    pub back_age: Span,
    /// The cost of the first request that waits; 0: none waits.
    pub need: u64,
    /// The cost of all requests that wait, at least `need`.
    pub want: u64,
    /// The share of what is left that is granted ahead, in millionths (0 to 1,000,000). With `need` 0 as well nothing is
    /// asked for.
    pub share_ppm: u32,
}

/// The store's answer to a [`Settle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettleAnswer {
    /// So much may be spent without asking again. It is charged already.
    pub granted: u64,
    /// How long the grant may be held, counted from when the settle was sent: shorter than asked for where a fixed window
    /// ends first. Zero if nothing was granted.
    pub life: Span,
    /// For so long there is no room for `need` (for 1 where `need` is 0), if nobody else comes; `None`: there is room, or
    /// something was granted. [`Span::MAX`]: there never will be, `need` is above the largest cost.
    pub retry: Option<Span>,
    /// Where it is full: for so long grants that are out may still come back, and make room before that. Zero: none is out.
    pub out: Span,
    /// How much is left of each rate after this, in the order of the rates; 0 in debt.
    pub remaining: [u64; MAX_RATES],
}

/// A settle of one key, to be [answered](super::Limit::answered) or [not](super::Limit::unanswered), once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The key.
    pub key: Fingerprint,
    /// The message.
    pub settle: Settle,
    /// Tells it from other settles of the key; 0: of a key that has been forgotten here.
    pub(super) serial: u32,
}

/// The messages that are [collected](super::Limit::collect).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Those of keys for which somebody waits, or soon would, since little of their grant is left.
    Asks,
    /// Those for which nobody waits: of keys that have spent much on credit, and of those whose [turn](Turn) it is.
    Reports,
}

/// The keys that have their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Once in each [`LEASE_HOLD`](super::LEASE_HOLD): those whose grant is over, and every so many rounds those that have
    /// spent on credit.
    Round,
    /// All that have something to say.
    All,
}

/// The grants and debts of a gateway, over all keys of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Granted and not spent.
    pub granted: u64,
    /// Spent and not acknowledged: a debt, if the store does not answer.
    pub owed: u64,
    /// Debt that was forgotten, since there was too much of it, ever.
    pub lost: u64,
    /// Entries of the lists of what is to be said.
    pub listed: u64,
    /// Requests that wait for the store.
    pub waiting: u64,
    /// Requests that were decided without the store's answer while it was asked, ever.
    pub unanswered: u64,
    /// Requests that were refused because the store had called their key full until later with no grant out, and room came
    /// before, ever.
    pub refused_early: u64,
    /// Cost of keys that this gateway has counted alone, since they had no place in the store, ever.
    pub alone: u64,
}
