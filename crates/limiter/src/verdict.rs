use std::num::{NonZeroU8, NonZeroU64};

use sluicegate_time::{Span, Tick};

use super::key::Fingerprint;
use super::permit::Permit;
use super::ticket::Ticket;

/// The question that one request asks of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The key that it is counted for; `None`: this limit does not apply to this request.
    pub key: Option<Fingerprint>,
    /// How much it takes, usually 1.
    pub cost: u64,
    /// When that is counted.
    pub counting: Counting,
    /// The day on which the months of the key begin, 1 to 31, where its limit counts by months of a calendar: of a month that is
    /// shorter the last day. A month that counts something is held to its end. `None`: the day that the key has; the first of the
    /// month for a new key. Not of a limit that is shared or counts later.
    pub renews: Option<NonZeroU8>,
    /// The client, by a hash: of a shared limit no client takes all places for new keys in the store.
    pub client: u32,
    /// The rate that holds for this request alone, in the window of the limit's only rate, where it is the lower of the two: what
    /// is counted of the key is compared with it. Not of a limit that is shared or lets requests wait, and only where an
    /// algorithm [counts what it admits](super::Algorithm::counts_in_window).
    pub at_most: Option<NonZeroU64>,
}

/// When a limit counts a request that it admits. One that counts what is in flight always counts at once, and for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// When it is admitted.
    #[default]
    AtOnce,
    /// When it is admitted, by its cost as it is estimated then; [`Permit::settle`] corrects it to what it has really cost.
    Corrected,
    /// It is only looked at when it is admitted, and counted when [`Permit::settle`] says so.
    Later,
}

/// The cost of a request as far as it is known once it is answered, for [`Permit::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
    /// It has cost nothing.
    Nothing,
    /// It has cost what was asked.
    AsAsked,
    /// It has cost so much; 0 is nothing.
    Cost(u64),
    /// It is not known yet: the limit is asked again by the next [`Permit::settle`].
    Unknown,
}

/// The answer to a request at its arrival.
#[derive(Debug)]
#[must_use]
pub enum Verdict {
    /// Counted in every limit but those that count [later](Counting::Later): go ahead, and keep the permit until the request
    /// has ended.
    Admitted(Permit),
    /// It holds a place in one limit's queue: keep the ticket and [attempt](Ticket::attempt) it, at once for the
    /// first time.
    Queued(Ticket),
    /// Not admitted; nothing was counted anywhere.
    Refused(Refusal),
}

/// The answer that a request would get at its arrival, by [`Policy::peek`](super::Policy::peek).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Peeked {
    /// It would be admitted at once.
    Admitted,
    /// It would wait.
    Waits {
        /// In the queue of the limit with this index in the policy; `None`: for the store of a limit that is shared.
        limit: Option<usize>,
        /// Until its room is due, or its patience ends.
        until: Tick,
    },
    /// It would be refused.
    Refused(Refusal),
}

/// The limit that refused, its reason, and when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The index in the policy of the limit that refused; of several, the one with the latest retry.
    pub limit: usize,
    /// Why.
    pub why: RefusalReason,
    /// The earliest instant at which the request would not be refused if nobody else came or cancelled; `None`: never,
    /// or unknown.
    pub retry_at: Option<Tick>,
    /// The quota `L` of the rate that refused.
    pub quota: u64,
    /// The window `W` of that rate.
    pub window: Span,
    /// How many more of cost 1 that rate would admit now.
    pub remaining: u64,
    /// Until when the limit's penalty blocks the key: this refusal has begun the block, or came during it.
    pub blocked_until: Option<Tick>,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// No room in the rate, and none soon enough to wait for.
    Rate,
    /// It could have waited, but the key's queue is full.
    QueueFull,
    /// It waited, and its room did not come in time.
    WaitTimeout,
    /// It costs more than the rate could ever admit: there is no time to come back.
    TooCostly,
    /// The table holds `max_keys` live keys, and `on_full` says to refuse new ones.
    TableFull,
    /// The key is blocked: by a penalty, or by hand.
    Blocked,
    /// The limit is shared, the store does not answer, and the limit is closed until it does.
    StoreDown,
}

/// The answer to a waiting request.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Attempt {
    /// Counted in every limit: go ahead, and keep the permit until the request has ended.
    Admitted(Permit),
    /// Attempt again at `wake_at`, or when the waker is woken, whichever is first.
    Pending {
        /// When its room is due, or its patience ends.
        wake_at: Tick,
    },
    /// It has left the queue without being admitted.
    TimedOut(Refusal),
}
