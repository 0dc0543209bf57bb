//! Carriers of the bytes of HTTP/1.1: a socket, TLS over one, or a stream of HTTP/2 that is spoken to as if it were
//! one.
//!
//! The code that carries messages speaks HTTP/1.1 to a [`Stream`] and need not know what is below. That is why there is
//! one policy and one relay for all four mixes of protocols: an HTTP/2 request becomes the HTTP/1.1 head that means the
//! same and is read by the same strict codec as any other, so nothing passes into HTTP/1 that HTTP/1 could not have
//! said.
//!
//! - `socket`: a TCP socket that counts. `handshake`: TLS over it, both sides.
//! - `h2`: connections of HTTP/2, both sides, and their streams. `memory`: an answer that is here already.
//!
//! Invariants: nothing here is retried, chosen or answered; what a peer sends is bounded by windows, by the size of a
//! head and by what is counted in `http2::Flood`. It reads no clock: waiting is bounded by its callers. Callers: `upstream`
//! (servers), `proxy` (clients).

#[macro_use]
extern crate sluicegate_words;

mod h2;
mod handshake;
mod memory;
mod protocol;
mod socket;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use socket2::SockRef;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;

pub use h2::{
    Accepting, Channel, ConnectionError, Ended, FromClient, Incoming, LengthTrailers, STREAM_RESET, ToServer,
    UNPROCESSED, open_channel, websocket_accept, websocket_key,
};
pub use handshake::{Accepted, HandshakeError, NOT_TLS, accept, connect};
pub use memory::Memory;
pub use protocol::Protocol;
pub use socket::Socket;

/// Whether the kernel holds bytes of the peer that were not read, or its end.
pub fn has_unread(socket: &TcpStream) -> bool {
    SockRef::from(socket).peek(&mut [MaybeUninit::uninit()]).is_ok()
}

/// TLS over a socket, either side of it.
pub type TlsStream = tokio_rustls::TlsStream<Socket>;

/// The carrier of the messages of one peer.
#[derive(Debug)]
pub enum Stream {
    /// A socket.
    Plain(TcpStream),
    /// TLS over a socket.
    Tls(Box<TlsStream>),
    /// A stream of a client's HTTP/2 connection.
    FromClient(Box<h2::FromClient>),
    /// A stream of an HTTP/2 connection to a server.
    ToServer(Box<h2::ToServer>),
    /// An answer that is here already.
    Memory(Box<Memory>),
}

impl Stream {
    /// Reads into `room`, which is not empty; 0 bytes if the peer has ended its side.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(room);
        match self {
            Self::Plain(socket) => ready!(Pin::new(socket).poll_read(cx, &mut buffer))?,
            Self::Tls(tls) => ready!(Pin::new(&mut **tls).poll_read(cx, &mut buffer))?,
            Self::FromClient(stream) => return stream.poll_read(room),
            Self::ToServer(stream) => return stream.poll_read(cx, room),
            Self::Memory(memory) => return Poll::Ready(Ok(memory.read(room))),
        }
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Ready when a read would tell something. It takes nothing.
    pub fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(socket) => socket.poll_read_ready(cx).map(drop),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_fill_buf(cx).map(drop),
            Self::FromClient(stream) => stream.poll_read_ready(),
            Self::ToServer(stream) => stream.poll_read_ready(cx),
            Self::Memory(_) => Poll::Ready(()),
        }
    }

    /// Whether a read that did not fill its room tells that nothing else has come.
    pub fn tells_by_short_reads(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Writes of `first`, then of `second`; how many bytes were taken. Bytes that were taken may have to be
    /// [flushed](Self::poll_flush). Where the first byte of a head is in `first`, all of the head is.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, first: &[u8], second: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => loop {
                let tried = match (first, second) {
                    (first, []) => socket.try_write(first),
                    ([], second) => socket.try_write(second),
                    (first, second) => socket.try_write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
                };
                match tried {
                    // The runtime is asked to call back only where the socket is full, which costs a request more than
                    // the rest of writing it.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_write_ready(cx))?,
                    done => return Poll::Ready(done),
                }
            },
            Self::Tls(tls) => {
                Pin::new(&mut **tls).poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)])
            }
            Self::FromClient(stream) => stream.poll_write(first, second),
            Self::ToServer(stream) => stream.poll_write(cx, first, second),
            Self::Memory(_) => Poll::Ready(Ok(first.len() + second.len())),
        }
    }

    /// Whether what was written may still be here, so that it has to be [flushed](Self::poll_flush).
    pub fn holds_writes(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Ready when everything that was written has gone to the kernel, or to the HTTP/2 connection.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) | Self::Memory(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
            Self::FromClient(stream) => stream.poll_flush(),
            Self::ToServer(stream) => stream.poll_flush(cx),
        }
    }

    /// A number that grows whenever something of what was written has gone on.
    pub fn progress(&self) -> u64 {
        match self {
            Self::Plain(_) | Self::Memory(_) => 0,
            Self::Tls(tls) => tls.get_ref().0.written(),
            Self::FromClient(stream) => stream.progress(),
            Self::ToServer(stream) => stream.progress(),
        }
    }

    /// Ends this side.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(cx),
            Self::FromClient(stream) => stream.poll_shutdown(),
            Self::ToServer(stream) => stream.poll_shutdown(cx),
            Self::Memory(_) => Poll::Ready(Ok(())),
        }
    }

    /// The socket, where there is one of its own.
    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(socket) => Some(socket),
            Self::Tls(tls) => Some(tls.get_ref().0.tcp()),
            Self::FromClient(_) | Self::ToServer(_) | Self::Memory(_) => None,
        }
    }

    /// The gateway's end of the socket, where there is one of its own.
    pub fn own_end(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()
    }

    /// Whether the kernel holds bytes of the peer, or its end, that were not read: asked of it now, and not of what the
    /// runtime was told before.
    pub fn has_unread(&self) -> bool {
        self.socket().is_some_and(has_unread)
    }

    /// Whether the peer has reset the connection.
    pub fn was_reset(&mut self) -> bool {
        match self {
            Self::FromClient(stream) => stream.was_reset(),
            _ => self.socket().is_some_and(|socket| !matches!(socket.take_error(), Ok(None))),
        }
    }

    /// Whether the peer has closed its side, although there are bytes that were not read yet.
    pub fn is_closed_behind_bytes(&self) -> bool {
        let Some(socket) = self.socket() else { return false };
        let mut context = Context::from_waker(Waker::noop());
        // Unconstrained, because a task that has used up its turn would be told nothing.
        let polled = pin!(unconstrained(socket.ready(Interest::READABLE))).poll(&mut context);
        matches!(polled, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// The peer took too long. If it has said nothing at all meanwhile, what else shares its connection shall not wait for
    /// it too.
    pub fn distrust(&self) {
        if let Self::ToServer(stream) = self {
            stream.distrust();
        }
    }

    /// Whether the death of the connection is news: no other stream of it has told.
    pub fn mourns_first(&self) -> bool {
        match self {
            Self::ToServer(stream) => stream.mourns_first(),
            _ => true,
        }
    }

    /// Says what becomes of trailers of a response that has a `content-length`. Of HTTP/1 there are none.
    pub fn set_length_trailers(&mut self, trailers: LengthTrailers) {
        if let Self::ToServer(stream) = self {
            stream.set_length_trailers(trailers);
        }
    }

    /// Whether the body of the response comes in chunks although its head has a `content-length`.
    pub fn has_chunks_beside_length(&self) -> bool {
        matches!(self, Self::ToServer(stream) if stream.has_chunks_beside_length())
    }

    /// Tells the peer that what it got is not complete, where an orderly end could be taken for one: a reset.
    pub fn abort(&mut self) {
        match self {
            Self::Plain(socket) => drop(socket.set_zero_linger()),
            // An end without close_notify is no orderly one, and streams of HTTP/2 are reset where they were begun.
            Self::Tls(_) | Self::FromClient(_) | Self::ToServer(_) | Self::Memory(_) => {}
        }
    }

    /// Ends the connection to a server by a reset, where it still works on what nobody waits for: it learns so at once, and the
    /// kernel keeps nothing of it. A stream of HTTP/2 is reset by dropping it.
    pub fn reset(&mut self) {
        if let Some(socket) = self.socket() {
            drop(socket.set_zero_linger());
        }
    }

    /// Lets the connection end as the system has it, whatever was set before.
    pub fn linger_as_usual(&self) {
        if let Some(socket) = self.socket() {
            // If that fails the connection ends by a reset, some time.
            let _ = SockRef::from(socket).set_linger(None);
        }
    }

    /// Whether nothing has come over an idle connection: neither bytes, which would be taken for the next response, nor
    /// its end. Costs no system call where nothing did: the runtime was told of either when it came.
    pub fn check_quiet(&mut self) -> bool {
        match self {
            Self::Plain(socket) => socket.try_io(Interest::READABLE, || Ok(())).is_err(),
            // Not by the socket: what came behind a response may have been deciphered with it, and lie here. Tickets of
            // TLS 1.3 come when they like, and are taken in.
            Self::Tls(tls) => {
                let mut context = Context::from_waker(Waker::noop());
                let mut tls = pin!(unconstrained(poll_fn(|cx| {
                    Poll::Ready(Pin::new(&mut **tls).poll_fill_buf(cx).is_pending())
                })));
                matches!(tls.as_mut().poll(&mut context), Poll::Ready(true))
            }
            Self::FromClient(_) | Self::ToServer(_) | Self::Memory(_) => false,
        }
    }

    /// The same for a connection that was just used, of which the runtime may not have been told everything.
    pub fn check_surely_quiet(&mut self) -> bool {
        self.check_quiet()
            || match self {
                Self::Plain(socket) => {
                    socket.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
                }
                _ => false,
            }
    }

    /// Ends an orderly connection, where that is more than to close it: the peer of TLS is told, as far as that does not
    /// take waiting (RFC 8446, 6.1).
    pub async fn say_goodbye(&mut self) {
        if let Self::Tls(_) = self {
            poll_fn(|cx| {
                let _ = self.poll_shutdown(cx);
                Poll::Ready(())
            })
            .await;
        }
    }

    /// Whether it carries one exchange and no more, as a stream of an HTTP/2 connection does.
    pub fn is_single_use(&self) -> bool {
        !matches!(self, Self::Plain(_) | Self::Tls(_))
    }
}
