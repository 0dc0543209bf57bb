//! The next step of a request.

use std::rc::Rc;
use std::sync::Arc;

use super::refused::RefusedRequest;
use crate::endings::EndingFate;
use crate::view::{Admitted, UpstreamView, Waiting};
use sluicegate_admission::BodyRules;

/// The next step of a request about which all is decided.
pub enum Next {
    /// It is over but for the reply that lies ready, if there is one: what becomes of the connection.
    Over(EndingFate),
    /// To an upstream.
    Forward(Admitted, Rc<UpstreamView>),
}

/// The reason for which the next step of a request is not known yet.
pub enum Pause {
    /// It waits for its place.
    Wait(Waiting),
    /// A limit refuses it, and it is kept for later if there is room.
    Defer(Box<RefusedRequest>),
    /// Limits look at its body, which is read first.
    Body(Arc<BodyRules>),
    /// It asks how a request fares that was kept.
    Status,
    /// It asks about another request.
    Question,
}
