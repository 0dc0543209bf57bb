//! The limits that live, whatever configuration they have come with.

use std::collections::HashMap;
use std::sync::Arc;

use crate::admission::KeyExpr;
use crate::config::LimitId;
use crate::limiter::Limit;

/// Live limits, and what they count by.
pub type LiveLimits = HashMap<LimitId, (Arc<Limit>, Place)>;

/// The requests that a limit counts together, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Requests of one key are counted together.
    pub key: KeyExpr,
    /// Where in the store of a fleet; `None`: here alone.
    pub keys: Option<Box<str>>,
}
