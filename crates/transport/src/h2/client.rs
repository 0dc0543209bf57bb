//! The HTTP/2 connection to a server.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::uri::Scheme;

use super::super::Stream;
use super::guard::Guard;
use super::to_server::ToServer;
use super::{SEND_BUFFER, STREAM_WINDOW, io_error};

/// Streams of one connection at most, whatever the server allows: as many as there is room for in its window.
const MAX_STREAMS: usize = 100;
/// Room for the data of all streams together: slow readers of some of them shall not stop the others.
const WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;
/// The most fields of a response, in bytes with 32 more for each. A response that is too large for the gateway is
/// refused later, by the bounds that the configuration has.
const MAX_HEADER_LIST: u32 = 1024 * 1024;

/// A connection to a server that streams can be opened on. Dropping the last one of its clones and streams ends it.
#[derive(Clone, Debug)]
pub struct Channel {
    request: SendRequest<Bytes>,
    scheme: Scheme,
    state: Rc<ChannelState>,
}

#[derive(Debug, Default)]
struct ChannelState {
    streams: Cell<usize>,
    is_closed: Cell<bool>,
    /// Whether one of its streams has told that it has died.
    is_mourned: Cell<bool>,
    /// Bytes that came.
    heard: Rc<Cell<u64>>,
}

/// One of the streams of a connection, counted for as long as it lives.
#[derive(Debug)]
pub(super) struct StreamSlot {
    state: Rc<ChannelState>,
    /// The count of what had come when it was opened.
    heard: u64,
}

impl StreamSlot {
    /// If nothing has come since it was opened, nothing more is sent over its connection: the server may have gone
    /// without a word.
    pub(super) fn distrust(&self) {
        if self.state.heard.get() == self.heard {
            self.state.is_closed.set(true);
        }
    }

    /// Whether this is the first of the streams to tell that the connection has died.
    pub(super) fn mourns_first(&self) -> bool {
        !self.state.is_mourned.replace(true)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.state.streams.set(self.state.streams.get().saturating_sub(1));
    }
}

/// Begins HTTP/2 over `stream`, by prior knowledge or because ALPN has said so, and waits until the server has said what
/// it allows: how many streams, and tunnels or not. Until it allows one stream, there is no connection. Frames move in a
/// task of the runtime's own.
pub async fn open_channel(stream: Stream, is_tls: bool) -> io::Result<Channel> {
    let guard = Guard::new(stream);
    let state = Rc::new(ChannelState { heard: guard.heard(), ..ChannelState::default() });
    let (request, mut connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_LIST)
        .initial_max_send_streams(0)
        .enable_push(false)
        .handshake(guard)
        .await
        .map_err(io_error)?;
    poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
        Poll::Ready(ended) => Poll::Ready(ended.map_err(io_error).and(Err(io::ErrorKind::ConnectionReset.into()))),
        Poll::Pending if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let closed = Rc::clone(&state);
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(target: "sluicegate::transport::h2::client", %error, "an HTTP/2 connection to a server ended");
        }
        closed.is_closed.set(true);
    });
    Ok(Channel { request, scheme: if is_tls { Scheme::HTTPS } else { Scheme::HTTP }, state })
}

impl Channel {
    /// Whether no more streams are to be opened on it: it has ended, the server takes no more, or it is not trusted.
    pub fn is_closed(&self) -> bool {
        self.state.is_closed.get()
    }

    /// Opens no more streams on it.
    pub fn close(&self) {
        self.state.is_closed.set(true);
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.state.streams.get()
    }

    /// Whether the server takes one more stream now. A connection that it is about to close takes none.
    pub fn has_room(&self) -> bool {
        let ready = self.request.clone().poll_ready(&mut Context::from_waker(Waker::noop()));
        if matches!(ready, Poll::Ready(Err(_))) {
            self.state.is_closed.set(true);
        }
        let most = self.request.current_max_send_streams().min(MAX_STREAMS);
        ready.is_ready() && !self.is_closed() && self.streams() < most
    }

    /// A stream that its first head opens.
    pub fn open(&self) -> ToServer {
        self.state.streams.set(self.streams() + 1);
        let place = StreamSlot { state: Rc::clone(&self.state), heard: self.state.heard.get() };
        ToServer::new(self.request.clone(), self.scheme.clone(), place)
    }
}
