//! The protocol of a reload: all components make ready what the new model asks for, then all of them take it over, then they let
//! go of what no request asks for any more. Anything may refuse before the second step, and the gateway runs as before then;
//! nothing refuses after. A start is a reload of a gateway in which nothing runs yet.
//!
//! A refused model may leave files behind that it named and that did not exist: the directory of dead letters, keys, an empty
//! access log. A thread that cannot be started at the second step is an error in the log: its part of the gateway goes on as
//! before, or does not run.
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

    /// Makes ready what a model asks for. The component is not changed by that: it goes on as before when the result is dropped.
    fn stage(&self, model: &Arc<Model>, needs: Self::Needs<'_>) -> Result<Self::Staged, BuildError>;

    /// From now on the new numbers hold; counts, connections and places go on.
    fn commit(&mut self, staged: Self::Staged);

    /// Lets go of the parts of before: no request begins any more that asks for them.
    fn release(&mut self) {}
}
