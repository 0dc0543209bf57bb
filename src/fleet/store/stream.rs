use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::shown;

/// The most that is read between two writes. A reply has a few hundred bytes, and a batch a few hundred replies.
pub(super) const MAX_READ: usize = 4 << 20;

/// The bytes that a reply can begin with.
const MARKS: &[u8] = b"+-:$*_#,(!=%~>|";

/// How the answers begin, if no Redis gives them.
pub(super) type Foreign = Arc<OnceLock<String>>;

/// A connection whose other end is not trusted: answers that do not begin like a reply end it, and so does a peer that sends
/// without end, which would fill the memory.
pub(super) struct Guarded<S> {
    stream: S,
    /// Read since the last write.
    read: usize,
    is_known: bool,
    foreign: Foreign,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, foreign: Foreign) -> Self {
        Self { stream, read: 0, is_known: false, foreign }
    }

    fn look(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.read = self.read.saturating_add(bytes.len());
        if self.read > MAX_READ {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it sends more than any reply has"));
        }
        if let (false, Some(first)) = (self.is_known, bytes.first()) {
            self.is_known = true;
            if !MARKS.contains(first) {
                self.foreign.get_or_init(|| shown(bytes));
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak the protocol of Redis"));
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        Poll::Ready(self.look(buffer.filled().get(before..).unwrap_or_default()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.read = 0;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
