//! Lines that are no requests.

use serde::Serialize;

words! {
    /// Why a line takes no part.
    pub enum SkipReason {
        /// It is of no known form.
        Broken = "broken",
        /// It is longer than a request can be.
        TooLong = "too-long",
        /// It has no instant.
        NoTime = "no-time",
        /// It has no address of a client.
        NoClient = "no-client",
        /// It has no path.
        NoPath = "no-path",
        /// It is about a descriptor of Envoy, which is no request.
        Descriptor = "descriptor",
        /// It stands for several requests, of which it says too little.
        Aggregate = "aggregate",
        /// It is earlier than what is simulated already.
        OutOfOrder = "out-of-order",
        /// The compressed data of the file end here too early, or are damaged.
        Cut = "cut",
    }
}

/// Lines that are named of each fault.
const NAMED: usize = 5;

/// The lines that took no part.
#[derive(Clone, Debug, Default)]
pub(super) struct Skipped {
    total: u64,
    of: Vec<SkippedLines>,
}

/// Lines of one fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedLines {
    /// A word of [`Fault`].
    pub reason: &'static str,
    /// How many.
    pub count: u64,
    /// The first five, as `FILE:LINE`.
    pub first: Vec<String>,
}

impl Skipped {
    /// Counts one.
    pub(super) fn add(&mut self, fault: SkipReason, file: &str, line: u64) {
        self.total += 1;
        let reason = fault.word();
        let at = self.of.iter().position(|own| own.reason == reason).unwrap_or_else(|| {
            self.of.push(SkippedLines { reason, count: 0, first: Vec::new() });
            self.of.len() - 1
        });
        if let Some(own) = self.of.get_mut(at) {
            own.count += 1;
            if own.first.len() < NAMED {
                own.first.push(format!("{file}:{line}"));
            }
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn lines(&self) -> Vec<SkippedLines> {
        self.of.clone()
    }
}
