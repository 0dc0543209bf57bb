//! The transport of an HTTP/2 connection, with an eye on what comes.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::Stream;
use super::flood::{Flood, Frames};

/// The most that is read and dropped after the end, so that the peer reads why before its kernel is told of a reset.
const MAX_LINGER: usize = 1024 * 1024;

/// The end of a connection, shared with whoever bounds how long it takes.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    /// Our side has ended.
    pub(super) is_said: Cell<bool>,
    /// The peer's end is not waited for any more.
    pub(super) is_over: Cell<bool>,
}

/// A socket, or TLS over one, below an HTTP/2 connection.
#[derive(Debug)]
pub struct Guard {
    stream: Stream,
    /// What was read before anybody knew that it is HTTP/2.
    ahead: Vec<u8>,
    ahead_at: usize,
    /// What a client may say that is neither request nor data.
    flood: Option<(Rc<Flood>, Frames)>,
    /// Bytes that came.
    heard: Rc<Cell<u64>>,
    farewell: Rc<Farewell>,
    lingered: usize,
}

impl Guard {
    /// Below a client's connection, of which `ahead` was read already. `preface`: how many bytes come first that are no
    /// frame.
    pub(super) fn of_client(stream: Stream, ahead: Vec<u8>, preface: usize, flood: Rc<Flood>) -> Self {
        Self { ahead, flood: Some((flood, Frames::new(preface))), ..Self::of_server(stream) }
    }

    /// Below a connection to a server. Its operator chose it: it may say what it likes, as far as `h2` bears it.
    pub(super) fn of_server(stream: Stream) -> Self {
        Self {
            stream,
            ahead: Vec::new(),
            ahead_at: 0,
            flood: None,
            heard: Rc::default(),
            farewell: Rc::default(),
            lingered: 0,
        }
    }

    /// How many bytes have come, for whoever waits for a sign of life.
    pub(super) fn heard(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.heard)
    }

    /// What is known of its end.
    pub(super) fn farewell(&self) -> Rc<Farewell> {
        Rc::clone(&self.farewell)
    }

    fn poll_read_stream(&mut self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_read(cx, room),
            Stream::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, room),
            // A stream of HTTP/2 carries no HTTP/2.
            Stream::FromClient(_) | Stream::ToServer(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }
}

impl AsyncRead for Guard {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.flood.as_ref().is_some_and(|(flood, _)| flood.spent().is_some()) {
            // Nothing more is read. Whoever owns the connection looks at it after each turn, and ends it.
            return Poll::Pending;
        }
        let before = room.filled().len();
        if this.ahead_at < this.ahead.len() {
            let rest = &this.ahead[this.ahead_at..];
            let taken = rest.len().min(room.remaining());
            room.put_slice(&rest[..taken]);
            this.ahead_at += taken;
            if this.ahead_at == this.ahead.len() {
                this.ahead = Vec::new();
                this.ahead_at = 0;
            }
        } else {
            ready!(this.poll_read_stream(cx, room))?;
        }
        this.heard.set(this.heard.get() + (room.filled().len() - before) as u64);
        if let Some((flood, frames)) = &mut this.flood {
            frames.read(&room.filled()[before..], flood);
        }
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
            Stream::FromClient(_) | Stream::ToServer(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.poll_flush(cx)
    }

    /// Ends our side, then reads what the peer still sends, up to its end: bytes that nobody has read would make the
    /// kernel reset the connection, and the peer would not learn why it ended.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.farewell.is_over.get() {
            return Poll::Ready(Ok(()));
        }
        if !this.farewell.is_said.get() {
            ready!(this.stream.poll_shutdown(cx))?;
            this.farewell.is_said.set(true);
        }
        let mut room = [0; 4096];
        loop {
            match ready!(this.stream.poll_read(cx, &mut room)) {
                Ok(size @ 1..) if this.lingered < MAX_LINGER => this.lingered += size,
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}
