use std::num::NonZeroU8;

use super::key::Fingerprint;
use sluicegate_time::Tick;

/// Something that was counted, or the day of a key that was about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Of which key.
    pub key: Fingerprint,
    /// How much.
    pub cost: u64,
    /// When.
    pub at: Tick,
    /// The day, 1 to 31, on which the next months of the key begin; the cost that opens the first of them follows.
    pub renews: Option<NonZeroU8>,
}
