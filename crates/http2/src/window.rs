//! The windows of uploads, and how the streams of a connection share its own.
//!
//! Half of the connection's window is in sure shares, one for each stream that its client may open. Of the other half a
//! stream may have as much as a quarter of what is left of it (a dynamic threshold: Choudhury and Hahne, 1998). A stream
//! whose bytes the server does not read holds less of it the more there are like it, and however many they are, another one has its share
//! and moves. All that streams may send fits into the connection's window, so that they never wait for that.

use super::connection::{CONNECTION_WINDOW, Connection, SHARES};
use super::frame::put_window_update;
use super::stream::StreamKey;

/// The most room that a stream has, in bytes.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;
/// A stream has one part in so many of the room that is left.
const PARTS: i64 = 4;

impl Connection {
    /// Takes note that so many bytes of data were read or dropped.
    pub(super) fn give_back(&mut self, count: usize) {
        self.owed = self.owed.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        self.return_owed();
    }

    /// Lets the client send as much more, in all, as was read: once that is half of what it may send, or all that it may.
    pub(super) fn return_owed(&mut self) {
        let owed = i64::from(self.owed);
        if owed > 0 && owed >= self.recv_window && self.failed().is_none() {
            put_window_update(&mut self.out, 0, self.owed);
            self.recv_window += owed;
            self.owed = 0;
            self.wake();
        }
    }

    /// Lets the client send more on a stream, if it has room for twice what it has. To be called whenever that may be, and
    /// when its room has become less. `rest`: what is still to come of a frame that counts already.
    pub(super) fn settle_window(&mut self, key: StreamKey, rest: usize) {
        let (share, failed) = (self.share, self.failed().is_some());
        let Some(stream) = self.streams.get_mut(key) else { return };
        let unread = i64::try_from(stream.unread().len() + rest).unwrap_or(i64::MAX);
        let is_over = failed || stream.failure.is_some() || stream.has_ended;
        let may_come = if is_over { 0 } else { stream.recv_window.max(0) };
        let mut own = (unread + may_come - share).max(0);
        let left = i64::from(CONNECTION_WINDOW - SHARES) - (self.extra - stream.extra);
        let most = share + (left / PARTS).clamp(0, i64::from(STREAM_WINDOW) - share);
        let more = most - unread - stream.recv_window;
        let is_enough = stream.length_left.is_some_and(|left| i64::try_from(left).is_ok_and(|left| left <= may_come));
        // One that sends little does well with its share.
        let is_in_use = stream.extra > 0 || stream.recv_window <= share / 2;
        let is_worth_it = !is_over && !is_enough && is_in_use && more >= most / 2;
        if is_worth_it && let Ok(more) = u32::try_from(more) {
            own = most - share;
            stream.recv_window += i64::from(more);
            put_window_update(&mut self.out, key.id, more);
        }
        self.extra += own - stream.extra;
        stream.extra = own;
        if is_worth_it {
            self.wake();
        }
    }
}
