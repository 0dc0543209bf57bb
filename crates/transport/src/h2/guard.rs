//! The transport of an HTTP/2 connection to a server, with an eye on what comes.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::Stream;

/// A socket, or TLS over one, below an HTTP/2 connection to a server. Its operator chose it: it may say what it likes, as
/// far as `h2` bears it.
#[derive(Debug)]
pub(super) struct Guard {
    stream: Stream,
    /// Bytes that came.
    heard: Rc<Cell<u64>>,
}

impl Guard {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, heard: Rc::default() }
    }

    /// How many bytes have come, for the task that waits for a sign of life.
    pub(super) fn heard(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.heard)
    }
}

impl AsyncRead for Guard {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = room.filled().len();
        ready!(match &mut this.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_read(cx, room),
            Stream::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, room),
            // Neither a stream of HTTP/2 nor an answer that is here carries HTTP/2.
            Stream::FromClient(_) | Stream::ToServer(_) | Stream::Memory(_) => {
                Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
            }
        })?;
        this.heard.set(this.heard.get() + (room.filled().len() - before) as u64);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guard {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().stream.poll_write(cx, bytes, &[])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, pieces),
            Stream::Tls(tls) => Pin::new(&mut **tls).poll_write_vectored(cx, pieces),
            Stream::FromClient(_) | Stream::ToServer(_) | Stream::Memory(_) => {
                Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.poll_shutdown(cx)
    }
}
