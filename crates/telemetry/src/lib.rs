//! The gateway's reports to its operator about traffic: metrics and the access log.
//!
//! Metrics live in a [`Registry`] of [`Family`]s with bounded labels. The code that counts owns a cell of its own, made
//! for it before traffic comes, and is that cell's one writer; a series is the sum of its cells, taken when a caller
//! reads. So counting is a plain load and store to memory that no other core writes. The series of routes, and those of
//! limits, are a [`Group`]: a row of cells for each route or limit. A reader gets a [`Page`] piece by piece. The access
//! log takes entries without ever waiting, and redacts and formats them in a thread of its own.
//!
//! It is not the place of log events (`tracing` is), keeps no history and decides nothing. Counters never go down while
//! the process lives: a dropped cell leaves its count in the series. Callers: the workers count, admin reads, the
//! gateway starts and closes.

mod access_log;
mod access_text;
mod cell;
mod group;
mod histogram;
mod log_file;
mod page;
mod reading;
mod registry;
mod text;
mod top_keys;

pub use access_log::{
    AccessEntry, AccessLog, AccessLogFormat, Closed, MAX_LOGGED_FIELD, MAX_LOGGED_KEYS, MAX_LOGGED_TARGET,
    ShadowRefusal,
};
pub use cell::{Counter, Gauge};
pub use group::{Column, Counters, FromStart, Group, RowCounter};
pub use histogram::Histogram;
pub use log_file::{LogFile, Reopen};
pub use page::Page;
pub use registry::{MAX_SERIES, Registration, Registry};
pub use top_keys::{Top, TopKeys};

/// A family of series: what is measured, and by which labels. Families are statics and are told apart by their name.
#[derive(Debug)]
pub struct Family {
    /// By the conventions of Prometheus: `sluicegate_`, the unit, and `_total` for a counter.
    pub name: &'static str,
    /// One sentence for whoever reads it in a dashboard.
    pub help: &'static str,
    /// The kind of its cells.
    pub kind: MetricKind,
    /// Names of the labels, in the order in which their values are given.
    pub labels: &'static [&'static str],
}

/// The kind of number that a family measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// How long something took.
    Histogram,
}
