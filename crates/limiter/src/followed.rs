use super::key::Fingerprint;
use sluicegate_time::Tick;

/// Something that was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Of which key.
    pub key: Fingerprint,
    /// How much.
    pub cost: u64,
    /// When.
    pub at: Tick,
}
