//! A client and a server of `h2` over a pipe in memory, for tests of what is put on top of their streams.

use std::future::{Future, poll_fn};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::Request;
use tokio::sync::mpsc;

/// Both ends of one exchange whose request's head has arrived.
pub(super) struct Ends {
    pub(super) response: ResponseFuture,
    pub(super) upload: SendStream<Bytes>,
    pub(super) request: Request<RecvStream>,
    pub(super) respond: SendResponse<Bytes>,
}

/// Runs it to its end.
pub(super) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

/// An exchange over a connection of its own. The client's windows are of this many bytes.
pub(super) async fn exchange(window: u32) -> Ends {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (tell, mut told) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        while let Some(Ok(accepted)) = server.accept().await {
            tell.send(accepted).await.ok().unwrap();
        }
    });
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(window).handshake::<_, Bytes>(near).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let (response, upload) = client.send_request(Request::post("http://h/").body(()).unwrap(), false).unwrap();
    let (request, respond) = told.recv().await.unwrap();
    Ends { response, upload, request, respond }
}

/// Sends as the window opens.
pub(super) async fn send_all(send: &mut SendStream<Bytes>, mut data: Bytes) {
    while !data.is_empty() {
        send.reserve_capacity(data.len());
        let room = poll_fn(|cx| send.poll_capacity(cx)).await.unwrap().unwrap();
        send.send_data(data.split_to(room.min(data.len())), false).unwrap();
    }
}
