//! The ways in which an exchange ends that does not get its route's answer: [`ExchangeError`] is what went wrong, [`Tried`] a try that
//! failed, and [`Ending`] the one table of what follows from it.
//!
//! An error becomes a status here and nowhere else. It carries nothing out: `decide` does.

mod broken;
mod ending;
mod tried;

pub(super) use broken::{ExchangeError, SwitchFault, TimeoutKind};
pub(super) use ending::{Cause, Counted, Ending, EndingFate, Status, TOO_MANY_REQUESTS};
pub(super) use tried::{Failure, Tried};
