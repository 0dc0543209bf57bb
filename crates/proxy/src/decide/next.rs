//! The next step of a request.

use super::deferrable::Deferred;
use crate::endings::Fate;
use sluicegate_admission::{Admitted, Waiting};

/// The next step of a request.
pub enum Next {
    /// It is over but for the reply that lies ready, if there is one: what becomes of the connection.
    Over(Fate),
    /// To an upstream.
    Forward(Admitted),
    /// It waits for its place.
    Wait(Waiting),
    /// A limit refuses it, and it is kept for later if there is room.
    Defer(Box<Deferred>),
    /// It asks how a request fares that was kept.
    Status,
}
