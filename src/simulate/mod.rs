//! Simulation: recorded traffic through the gateway's own admission, on a clock that the recorded instants move. It says what
//! a file would have done with it.
//!
//! # Inputs
//!
//! [`simulate`] reads files of lines, plain or compressed by gzip or Zstandard: the gateway's access log and its dead letters,
//! the combined log format of Apache and nginx, JSON lines and comma-separated values. A line that is no request is counted,
//! with its reason and its place, and takes no part. A log has its requests by their ends, and a simulation needs them by their
//! beginnings: they are sorted within ten minutes, or 200,000 requests, or 64 MiB. A request that comes later than that is counted as out of order.
//!
//! # How exact it is
//!
//! Client, route, key and limits are those of [`Rules`](crate::admission::Rules), with fresh tables. The address in the log is
//! taken for the peer of the connection. A fact that a log does not hold cannot be simulated: header fields in an access log but for marks of keys, what a
//! limit had counted before, refusals for other reasons than limits, and how long a request would have taken that was refused
//! then (it is taken to last as long as the one before it on its route). Where times are known to the second only, as in the
//! combined format, requests of one second are spread evenly over it: all at its beginning, they would be a burst that never
//! was.
//!
//! Memory is bounded: by the tables of the limits, the window in which requests are sorted, 2,048 keys of each limit and of each
//! kind, 500,000 requests in flight, and 240 steps of time.
//!
//! Caller: cli.

mod combined;
mod counts;
mod csv;
mod held;
mod html;
mod instant;
mod json;
mod lines;
mod logged;
mod outcome;
mod series;
mod skipped;
mod source;
mod suggest;
#[cfg(test)]
mod tests;
mod trial;
mod waits;

use std::path::PathBuf;

use crate::gateway::{Offline, redactor_offline};
pub use html::{Grouped, html};
use outcome::LogFacts;
pub use outcome::{KeyOutcome, LimitOutcome, Simulated, SimulationOutcome};
pub use skipped::{SkipReason, SkippedLines};
use source::RequestSource;
pub use suggest::{Suggestion, suggest};
use trial::Trial;

/// Requests between two looks at how far it is.
const STRIDE: u64 = 4096;

/// The logs that are read.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    /// Files, the oldest first; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// The host of requests of which a log says none.
    pub host: Option<String>,
}

/// A file that is tried.
pub struct Tried {
    /// Its name.
    pub file: String,
    /// Its rules.
    pub offline: Offline,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct SimulationProgress {
    /// Bytes that were read of the files.
    pub bytes: u64,
    /// Their sizes together, if they have one.
    pub of: Option<u64>,
    /// Requests so far.
    pub requests: u64,
}

/// Tries the rules of a file on logs, and those of another beside it.
///
/// # Errors
/// A log cannot be read: in words.
pub fn simulate(
    logs: &Logs,
    candidate: Tried,
    baseline: Option<Tried>,
    tell: &mut dyn FnMut(SimulationProgress),
) -> Result<Simulated, String> {
    let trial = |offline: Offline| {
        let redactor = redactor_offline(&offline.model);
        Trial::new(offline, redactor, true)
    };
    let (file, mut tried) = (candidate.file, trial(candidate.offline));
    let mut beside = baseline.map(|other| (other.file, trial(other.offline)));
    let mut source = RequestSource::new(logs.files.clone(), logs.host.clone());
    let of = lines::size_of(&logs.files);
    let (mut log, mut last) = (LogFacts::default(), None);
    while source.next(&mut |logged| {
        log.has_lengths |= logged.took.is_some();
        log.has_fractions |= !logged.at.as_nanos().is_multiple_of(1_000_000_000);
        log.has_bursts |= last.replace(logged.at) == Some(logged.at);
        tried.arrive(logged);
        if let Some((_, beside)) = &mut beside {
            beside.arrive(logged);
        }
    })? {
        if tried.counts.requests.is_multiple_of(STRIDE) {
            tell(SimulationProgress { bytes: source.taken(), of, requests: tried.counts.requests });
        }
    }
    tried.finish();
    if let Some((_, beside)) = &mut beside {
        beside.finish();
    }
    let log = LogFacts { has_spread: source.has_spread, ..log };
    let skipped = (source.skipped.total(), source.skipped.lines());
    let notes = outcome::notes(&tried, log, &skipped.1);
    Ok(Simulated::of((&file, &tried), beside.as_ref().map(|(file, trial)| (file.as_str(), trial)), skipped, notes))
}
