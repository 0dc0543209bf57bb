//! The HTTP/2 connection to a server.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::uri::Scheme;

use super::super::Stream;
use super::guard::Guard;
use super::to_server::ToServer;
use super::{CONNECTION_WINDOW, SEND_BUFFER, STREAM_WINDOW, io_error};

/// Streams that are opened before the server has said how many it allows.
const FIRST_STREAMS: usize = 100;
/// The most fields of a response, in bytes with 32 more for each. What is too much for the gateway is refused later, by
/// the bounds that the configuration has.
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
}

/// One of the streams of a connection, counted for as long as it lives.
#[derive(Debug)]
pub(super) struct Place(Rc<ChannelState>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get().saturating_sub(1));
    }
}

/// Begins HTTP/2 over `stream`, by prior knowledge or because ALPN has said so. Frames move in a task of the runtime's own.
pub async fn open_channel(stream: Stream, is_tls: bool) -> io::Result<Channel> {
    let guard = Guard::of_server(stream);
    let (request, connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_LIST)
        .initial_max_send_streams(FIRST_STREAMS)
        .enable_push(false)
        .handshake(guard)
        .await
        .map_err(io_error)?;
    let state = Rc::<ChannelState>::default();
    let closed = Rc::clone(&state);
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP/2 connection to a server ended");
        }
        closed.is_closed.set(true);
    });
    Ok(Channel { request, scheme: if is_tls { Scheme::HTTPS } else { Scheme::HTTP }, state })
}

impl Channel {
    /// Whether it has ended, or the server has said that it takes no more.
    pub fn is_closed(&self) -> bool {
        self.state.is_closed.get()
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
        ready.is_ready() && !self.is_closed() && self.streams() < self.request.current_max_send_streams()
    }

    /// A stream that its first head opens.
    pub fn open(&self) -> ToServer {
        self.state.streams.set(self.streams() + 1);
        ToServer::new(self.request.clone(), self.scheme.clone(), Place(Rc::clone(&self.state)))
    }
}
