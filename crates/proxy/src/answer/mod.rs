//! The gateway's own answers: their status line, fields and bodies, as bytes.
//!
//! It writes what it is told to, and knows no exchange: which answer a request gets is for `decide` to say. It names neither
//! hyper nor a header map. Callers: most rooms.

pub(super) mod cors;
mod date;
pub(super) mod rate_headers;
pub(super) mod respond;

pub(super) use cors::PreflightFields;
pub(super) use date::DateCell;
pub(super) use rate_headers::RefusedBy;
pub(super) use respond::{Problem, Reply, Wants};
