//! Requests that a limit refuses and that are kept for later, and what is told of how they fare.
//!
//! It keeps none itself: `dead_letter` does. The gateway sends them again as requests of its own. Caller: the walk.

pub(super) mod deferral_status;
pub(super) mod deferring;
