//! How much this machine is taken to carry.

use std::thread;

/// How many client connections a worker keeps at once: half of the files that may be open, because each may need a
/// connection to an upstream too, after some are set aside for listeners, logs and admin.
pub(super) fn max_connections(workers: usize) -> u64 {
    const SET_ASIDE: u64 = 32;
    /// Each worker has its listener, and a runtime, which needs five.
    const OF_WORKER: u64 = 6;
    const AT_LEAST: u64 = 8;
    let files = rlimit::getrlimit(rlimit::Resource::NOFILE).map_or(1024, |(soft, _)| soft);
    (files.saturating_sub(SET_ASIDE + OF_WORKER * workers as u64) / 2 / workers.max(1) as u64).max(AT_LEAST)
}

/// Workers, where nobody says how many.
pub(super) fn available_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
