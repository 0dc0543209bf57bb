//! A TCP socket below TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The type of a TLS record that a handshake begins with (RFC 8446, 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// A TCP socket that knows how much was written, and whether what it got began like TLS.
#[derive(Debug)]
pub struct Socket {
    tcp: TcpStream,
    written: u64,
    first: Option<u8>,
}

impl Socket {
    /// A socket that was just connected.
    pub fn new(tcp: TcpStream) -> Self {
        Self { tcp, written: 0, first: None }
    }

    /// Bytes that the kernel has taken.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The socket itself.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The first byte that came, unless it begins a handshake.
    pub fn first_other_byte(&self) -> Option<u8> {
        self.first.filter(|byte| *byte != HANDSHAKE_RECORD)
    }

    /// The socket itself, by value.
    pub fn into_tcp(self) -> TcpStream {
        self.tcp
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(cx, room))?;
        if self.first.is_none() {
            self.first = room.filled().get(before).copied();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.first_other_byte().is_some() {
            // It does not speak TLS: an alert would be noise before the answer that it can read.
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(Pin::new(&mut self.tcp).poll_write(cx, bytes))?;
        self.written += written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.first_other_byte().is_some() {
            return Poll::Ready(Ok(pieces.iter().map(|piece| piece.len()).sum()));
        }
        let written = ready!(Pin::new(&mut self.tcp).poll_write_vectored(cx, pieces))?;
        self.written += written as u64;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
