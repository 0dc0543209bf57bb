//! The two directions of an exchange.

use sluicegate_time::Tick;

/// Where the response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Head,
    Body,
    Switched,
}

/// The request on its way to the upstream.
#[derive(Debug, Default)]
pub(super) struct UploadHalf {
    /// When the client is told to go on, unless another part of the exchange has.
    pub(super) continue_at: Tick,
    /// Whether a byte was written.
    pub(super) has_written: bool,
    /// Whether the upstream takes no more of it.
    pub(super) has_failed: bool,
    /// Whether its trailers were added.
    pub(super) has_tail: bool,
    /// Whether its client has left, and the exchange goes on for those that follow it.
    pub(super) is_left: bool,
}

/// The response on its way to the client.
#[derive(Debug)]
pub(super) struct DownloadHalf {
    pub(super) phase: Phase,
    /// Whether a byte came.
    pub(super) has_begun: bool,
    /// Whether bytes came that are no part of it.
    pub(super) has_stray: bool,
    /// Whether the last read was a short one.
    pub(super) is_drained: bool,
    /// Whether the client's connection goes on behind it.
    pub(super) keep: bool,
    /// Whether an upstream's body that only its end delimits is cut into chunks.
    pub(super) chunks: bool,
    pub(super) in_chunk: bool,
    /// Digits that were sent ahead of the size of the next chunk, to hear whether the client is still there.
    pub(super) digits_ahead: u8,
    /// Whether its trailers were added.
    pub(super) has_tail: bool,
}

impl DownloadHalf {
    /// Nothing came yet.
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Head,
            has_begun: false,
            has_stray: false,
            is_drained: false,
            keep: false,
            chunks: false,
            in_chunk: false,
            digits_ahead: 0,
            has_tail: false,
        }
    }
}
