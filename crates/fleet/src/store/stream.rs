use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{StoreError, shown};
use super::handshake::of_tls;

/// The most that is read between two writes. A reply has a few hundred bytes, and a batch a few hundred replies.
pub(super) const MAX_READ: usize = 4 << 20;

/// The bytes that a reply can begin with.
const MARKS: &[u8] = b"+-:$*_#,(!=%~>|";

/// The type of a TLS record that tells of an error, and the version's first byte (RFC 8446, 5.1).
const ALERT: [u8; 2] = [21, 3];

/// Why the peer is no Redis that can be spoken to, once it is known.
pub(super) type ProtocolFault = Arc<OnceLock<StoreError>>;

/// A connection whose other end is not trusted: answers that do not begin like a reply end it, and so does a peer that sends
/// without end, which would fill the memory.
pub(super) struct Guarded<S> {
    stream: S,
    /// Read since the last write.
    read: usize,
    is_known: bool,
    fault: ProtocolFault,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, fault: ProtocolFault) -> Self {
        Self { stream, read: 0, is_known: false, fault }
    }

    /// Keeps what TLS says of an error: the client of Redis has no place for it.
    fn keep(&self, error: io::Error) -> io::Error {
        if let Some(fault) = of_tls(&error) {
            self.fault.get_or_init(|| fault);
        }
        error
    }

    fn look(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.read = self.read.saturating_add(bytes.len());
        if self.read > MAX_READ {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it sends more than any reply has"));
        }
        if let (false, Some(first)) = (self.is_known, bytes.first()) {
            self.is_known = true;
            if !MARKS.contains(first) {
                self.fault.get_or_init(|| match bytes {
                    [first, second, ..] if [*first, *second] == ALERT => StoreError::SpeaksTls,
                    _ => StoreError::NotRedis { said: shown(bytes) },
                });
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak the protocol of Redis"));
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer)).map_err(|error| self.keep(error))?;
        Poll::Ready(self.look(buffer.filled().get(before..).unwrap_or_default()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes)).map_err(|error| self.keep(error))?;
        self.read = 0;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx).map_err(|error| self.keep(error))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
