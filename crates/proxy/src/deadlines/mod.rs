//! The times by which something has to have happened: [`Alarm`] wakes a task, [`ExchangeTimeouts`] says what is overdue then.
//!
//! It ends nothing itself: the task that is woken looks at its own deadlines. Time is an argument. Callers: every room
//! that waits.

mod alarm;
mod timeouts;

pub(super) use alarm::{Alarm, Alarms, Dismissed, SWEEP_EVERY};
pub(super) use timeouts::{ExchangeStage, ExchangeTimeouts, Overdue, Timers};
