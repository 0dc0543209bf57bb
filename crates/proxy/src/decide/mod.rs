//! The decision about a request: `policy` asks `admission`, `waiting` holds a place in the queue of a limit, `refuse` and
//! `end` make the gateway's own answers.
//!
//! It sends nothing: an answer lies ready in the scratch, and [`Next`] or [`Pause`] says what comes next. Only here is an ending carried
//! out. Callers: the walk, and `defer`, which refuses what it cannot keep.

mod about_request;
pub(super) mod asked;
mod auth;
mod authorizing;
mod check;
mod checking;
mod described;
mod description;
mod end;
mod envoy;
mod next;
pub(super) mod policy;
mod questions;
mod rate_limit;
mod rating;
pub(super) mod reading;
pub(super) mod refuse;
mod refused;
pub(super) mod waiting;

pub use described::{Question, status_of_no_route, status_of_refusal};

pub(super) use end::{end_by, name_request, write_problem};
pub(super) use next::{Next, Pause};
pub(super) use refused::RefusedRequest;
pub(super) use waiting::Waited;
