//! The protocol of a reload: all components make ready what the new model asks for, then all of them take it over. Anything may
//! refuse before, and nothing has changed then; nothing can refuse after. A start is a reload of a gateway in which nothing runs
//! yet.
//!
//! Two-phase commit, as databases have it (Gray, "Notes on Data Base Operating Systems", 1978), within one process.

use std::sync::Arc;

use super::error::BuildError;
use crate::config::Model;

/// A part of the gateway that reloads.
pub(super) trait Component {
    /// The parts of other components that it is made ready with.
    type Needs<'n>;
    /// All that is ready and only has to be taken over.
    type Staged;

    /// Makes ready what a model asks for. It is not changed by that: a result that is dropped leaves no trace.
    fn stage(&self, model: &Arc<Model>, needs: Self::Needs<'_>) -> Result<Self::Staged, BuildError>;

    /// From now on it holds: parts of before are let go; counts, connections and places go on.
    fn commit(&mut self, staged: Self::Staged);
}
