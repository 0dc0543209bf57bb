//! One request from its arrival to its end: the facts about it, the record of it so far, and what logs say of it.
//!
//! Whatever happens, dropping an [`Exchange`] records exactly one outcome. It decides nothing and sends nothing; what it says of
//! itself (access log, dead letters, explanation, variables of templates) is here, so that all of them say the same. Callers: the
//! rooms that move a request on.

pub(super) mod capturing;
mod costs;
pub(super) mod deferral_path;
mod edited;
pub(super) mod explanation;
mod in_flight;
mod letter;
mod life;
mod parts;
mod rate_fields;
mod variables;
mod watch;

pub(super) use edited::{Changes, Edited, NO_EDITS, ResponseOrigin, write_edits, write_trailers};
pub(super) use life::Exchange;
pub(super) use parts::{MessageRoom, RequestFacts};
pub(super) use rate_fields::write_rate_fields;
pub(super) use variables::TemplateContext;
pub(super) use watch::poll_gone;
