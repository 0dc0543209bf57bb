//! The figures of a sink that metrics show.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_time::{Clock, Wall};

/// A figure of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkCount {
    /// Seconds since the oldest line was written that the sink does not have.
    LagSeconds,
    /// Lines that it does not have.
    BehindLines,
    /// Their bytes.
    BehindBytes,
    /// Lines that it took.
    Delivered,
    /// Lines that it refused alone.
    Refused,
    /// Lines that went from the log before they were sent, as far as they were counted.
    LostLines,
    /// Segments that went, with or without lines that were counted.
    LostSegments,
    /// Batches that it took.
    Taken,
    /// Tries that failed.
    Failed,
}

/// Those of one sink.
#[derive(Clone)]
pub struct SinkFigures {
    pub(super) shared: Arc<Figures>,
    pub(super) clock: Clock,
}

impl SinkFigures {
    /// One of them.
    pub fn count(&self, what: SinkCount) -> u64 {
        let Figures {
            oldest,
            behind_lines,
            behind_bytes,
            delivered,
            refused,
            lost_lines,
            lost_segments,
            taken,
            failed,
        } = &*self.shared;
        let figure = match what {
            SinkCount::LagSeconds => oldest,
            SinkCount::BehindLines => behind_lines,
            SinkCount::BehindBytes => behind_bytes,
            SinkCount::Delivered => delivered,
            SinkCount::Refused => refused,
            SinkCount::LostLines => lost_lines,
            SinkCount::LostSegments => lost_segments,
            SinkCount::Taken => taken,
            SinkCount::Failed => failed,
        };
        match (what, figure.load(Ordering::Relaxed)) {
            (SinkCount::LagSeconds, oldest) if oldest > 0 => {
                self.clock.wall_now().since(Wall::from_nanos(oldest)).as_nanos() / 1_000_000_000
            }
            (_, figure) => figure,
        }
    }
}

/// See [`SinkCount`].
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// In nanoseconds; 0: it has them all.
    pub(super) oldest: AtomicU64,
    pub(super) behind_lines: AtomicU64,
    pub(super) behind_bytes: AtomicU64,
    pub(super) delivered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) lost_lines: AtomicU64,
    pub(super) lost_segments: AtomicU64,
    pub(super) taken: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Sets a gauge.
pub(super) fn set(gauge: &AtomicU64, value: u64) {
    gauge.store(value, Ordering::Relaxed);
}
