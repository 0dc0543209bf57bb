//! The ways in which an exchange ends that does not get its route's answer: [`ExchangeError`] is what went wrong, [`Tried`] a try that
//! failed, and [`Ending`] the one table of what follows from it.
//!
//! An error becomes a status here and nowhere else. It carries nothing out: `decide` does.

mod ending;
mod error;
mod tried;

pub(super) use ending::{Cause, Counted, Ending, EndingFate, Status, TOO_MANY_REQUESTS};
pub(super) use error::{ExchangeError, SwitchFault, TimeoutKind};
pub(super) use tried::{Failure, Tried};
