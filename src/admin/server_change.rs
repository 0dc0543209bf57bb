//! Changes of a server: what is asked of the gateway, and why it does not do it.

use crate::balance::Service;
use crate::time::Span;

/// The changes of a server that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerChange {
    /// Into service, or out of it.
    pub service: Option<Service>,
    /// Its weight.
    pub weight: Option<u32>,
    /// Whether the last server in service may be taken out.
    pub is_forced: bool,
}

/// A change of how adaptive limits are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverloadChange {
    /// By hand.
    Set {
        /// To this share, 1 to 100.
        percent: u32,
        /// For so long; `None`: until it is taken back.
        length: Option<Span>,
    },
    /// By the sensors again.
    Clear,
}

/// Why a server is not changed, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerUnchanged {
    /// There is no server of these names, or its upstream cannot be laid out.
    Unknown(String),
    /// No server in service would be left.
    Last(String),
}
