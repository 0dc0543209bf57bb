//! Bytes on their way to a peer.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll};

use sluicegate_transport::Stream;

/// Up to this size, bytes of the buffer are copied behind what was made: that costs less than to gather them.
const COPIED: usize = 2048;
/// Room for what is made that is kept once it was written, in bytes: a head may have been larger, and its answer may take
/// its time.
const KEPT: usize = 16 * 1024;

/// The bytes that one side is still to get: first those that were made for it, such as a head, then a part of a buffer.
#[derive(Debug, Default)]
pub struct Outgoing {
    made: Vec<u8>,
    /// How much of `made` was written.
    sent: usize,
    /// The part of the buffer's window that comes next.
    ready: Range<usize>,
    /// Whether some of what was written may not have gone on yet.
    unflushed: bool,
}

impl Outgoing {
    /// Whether everything was written and has gone on.
    pub fn is_empty(&self) -> bool {
        self.is_written() && !self.unflushed
    }

    fn is_written(&self) -> bool {
        self.sent == self.made.len() && self.ready.is_empty()
    }

    /// Whether not a byte of what is waiting was written.
    pub fn is_unsent(&self) -> bool {
        self.sent == 0
    }

    /// Bytes of the buffer that are not written yet.
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Bytes that are not written yet, those that were made too.
    pub fn pending(&self) -> usize {
        self.made.len() - self.sent + self.ready.len()
    }

    /// Forgets what was not written.
    pub fn clear(&mut self) {
        self.made.clear();
        self.sent = 0;
        self.ready = 0..0;
        self.unflushed = false;
    }

    /// Where to write what comes next; only while no part of the buffer is waiting.
    pub fn made(&mut self) -> &mut Vec<u8> {
        debug_assert!(self.ready.is_empty());
        if self.sent == self.made.len() {
            self.made.clear();
            self.sent = 0;
        }
        &mut self.made
    }

    /// Gives the room back for what is made if it is larger than `most`, while nothing is in it.
    pub fn keep(&mut self, most: usize) {
        if self.made.capacity() > most && self.made.is_empty() {
            self.made = Vec::new();
        }
    }

    /// How much room was allocated for what is made.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.made.capacity()
    }

    /// Adds the part `ready` of `buffer`, which has to stay where it is until it is written.
    pub fn add(&mut self, buffer: &[u8], ready: Range<usize>) {
        debug_assert!(self.ready.is_empty());
        let waiting = self.sent < self.made.len();
        match buffer.get(ready.clone()) {
            Some(bytes) if waiting && bytes.len() <= COPIED => self.made.extend_from_slice(bytes),
            _ => self.ready = ready,
        }
    }

    /// Copies what is waiting of `buffer` behind what was made, so that the buffer can be filled anew.
    pub fn keep_apart(&mut self, buffer: &[u8]) {
        if let Some(ready) = buffer.get(std::mem::take(&mut self.ready)) {
            self.made().extend_from_slice(ready);
        }
    }

    /// Writes until nothing is left or the peer takes no more; how much has moved, 0 if there was nothing to do.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, stream: &mut Stream, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let mut written = 0;
        while !self.is_written() {
            let made = self.made.get(self.sent..).unwrap_or_default();
            let ready = buffer.get(self.ready.clone()).unwrap_or_default();
            match stream.poll_write(cx, made, ready) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(size)) => {
                    written += size;
                    let of_made = size.min(self.made.len() - self.sent);
                    self.sent += of_made;
                    self.ready.start += size - of_made;
                    self.unflushed = stream.holds_writes();
                }
                // What went out is told first; the next call meets the error again.
                Poll::Ready(Err(_)) if written > 0 => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if written == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if !self.unflushed {
            self.release();
            return Poll::Ready(Ok(written));
        }
        let before = stream.progress();
        match stream.poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                self.unflushed = false;
                self.release();
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending if written == 0 && stream.progress() == before => return Poll::Pending,
            Poll::Pending => written = written.max(1),
        }
        Poll::Ready(Ok(written))
    }

    /// Gives room back that is larger than most need, if nothing is in it any more.
    fn release(&mut self) {
        if self.made.capacity() > KEPT && self.sent == self.made.len() {
            self.made = Vec::new();
            self.sent = 0;
        }
    }
}
