//! The limits that live, whatever configuration they have come with.

use std::collections::HashMap;
use std::sync::Arc;

use crate::admission::KeyExpr;
use crate::config::{LimitId, Model};
use crate::limiter::{Limit, LimitSpec};

/// Live limits, and what they count by.
pub type LiveLimits = HashMap<LimitId, (Arc<Limit>, CountingScope)>;

/// The requests that a limit counts together, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountingScope {
    /// Requests of one key are counted together.
    pub key: KeyExpr,
    /// Where in the store of a fleet; `None`: here alone.
    pub keys: Option<Box<str>>,
}

/// The limit that counts a key by numbers of its own.
#[derive(Clone, Debug)]
pub struct KeyLimit {
    /// As what it lives among the limits.
    pub id: LimitId,
    /// Its parameters.
    pub spec: LimitSpec,
    /// The parts of its key.
    pub key: KeyExpr,
}

/// Everything that counts by itself: of a model, and single keys.
pub fn counted<'m>(
    model: &'m Model,
    of_keys: &'m [KeyLimit],
) -> impl Iterator<Item = (LimitId, &'m LimitSpec, &'m KeyExpr)> {
    model.counted().chain(of_keys.iter().map(|own| (own.id.clone(), &own.spec, &own.key)))
}
