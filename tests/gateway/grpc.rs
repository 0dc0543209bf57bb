//! A real gRPC client and server on both sides of the gateway: tonic, with messages that are plain bytes. The servers are
//! of HTTP/2 by prior knowledge, and so are the clients but for one that comes by TLS.

use std::future::{Future, pending, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use futures_util::stream::{self, BoxStream, StreamExt};
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::server::StreamingService;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::mixes::peers::{Ask, Asker, Http, Mix, runtime, serve_tcp, soon};
use crate::support::{Gateway, PATIENCE, unused_address};
use crate::wire::wait_outcome;

const MIX: Mix = Mix { client: Http::Two, server: Http::Two };

/// Messages as they are.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, room: &mut EncodeBuf<'_>) -> Result<(), Status> {
        room.put(message);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

/// The method that a call is for, and where it is told that a call was dropped.
struct Method(String, mpsc::SyncSender<()>);

type Messages = BoxStream<'static, Result<Bytes, Status>>;
type Answer = Result<Response<Messages>, Status>;

impl StreamingService<Bytes> for Method {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(answer(self.0.clone(), self.1.clone(), request))
    }
}

struct TellsWhenDropped(mpsc::SyncSender<()>);

impl Drop for TellsWhenDropped {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

async fn answer(method: String, dropped: mpsc::SyncSender<()>, request: Request<Streaming<Bytes>>) -> Answer {
    let metadata = request.metadata().clone();
    let mut messages = request.into_inner();
    let answered: Messages = match method.as_str() {
        "/t.T/Echo" => {
            let message = messages.message().await?.ok_or_else(|| Status::internal("no message"))?;
            stream::iter([Ok(message)]).boxed()
        }
        "/t.T/Join" => {
            let mut all = Vec::new();
            while let Some(message) = messages.message().await? {
                all.extend_from_slice(&message);
            }
            stream::iter([Ok(all.into())]).boxed()
        }
        "/t.T/Count" => {
            let message = messages.message().await?.ok_or_else(|| Status::internal("no message"))?;
            stream::iter(0..message[0]).map(|at| Ok(Bytes::from(vec![at; 1000]))).boxed()
        }
        "/t.T/Chat" => messages.boxed(),
        "/t.T/Fail" => return Err(failure()),
        "/t.T/FailLate" => stream::iter([Ok("one".into()), Ok("two".into()), Err(failure())]).boxed(),
        "/t.T/Hang" => {
            let tells = TellsWhenDropped(dropped);
            let timeout = metadata.get("grpc-timeout").map(|timeout| timeout.to_str().unwrap().to_owned());
            if let Some(micros) = timeout.as_ref().and_then(|timeout| timeout.strip_suffix('u')) {
                tokio::time::sleep(Duration::from_micros(micros.parse().unwrap())).await;
                return Err(Status::deadline_exceeded("the server has waited"));
            }
            pending::<()>().await;
            drop(tells);
            unreachable!();
        }
        _ => return Err(Status::unimplemented("no such method")),
    };
    let mut response = Response::new(answered);
    for name in ["x-ascii", "x-bytes-bin"] {
        match (metadata.get(name), metadata.get_bin(name)) {
            (_, Some(value)) if name.ends_with("-bin") => {
                response.metadata_mut().insert_bin("x-bytes-bin", value.clone());
            }
            (Some(value), _) => drop(response.metadata_mut().insert("x-ascii", value.clone())),
            _ => {}
        }
    }
    Ok(response)
}

fn failure() -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-why", "because".parse().unwrap());
    let details = Bytes::from_static(&[0, 1, 2, 255]);
    Status::with_details_and_metadata(Code::FailedPrecondition, "100 % für nichts", details, metadata)
}

/// A server, and where it tells that a call was dropped.
fn start_server() -> (SocketAddr, mpsc::Receiver<()>) {
    let (dropped, told) = mpsc::sync_channel(100);
    let (address, _) = serve_tcp(move |stream, _| {
        let dropped = dropped.clone();
        async move {
            let service = service_fn(move |request: http::Request<Incoming>| {
                let method = Method(request.uri().path().to_owned(), dropped.clone());
                async move {
                    let mut grpc = tonic::server::Grpc::new(Plain).max_decoding_message_size(8 << 20);
                    Ok::<_, std::convert::Infallible>(grpc.streaming(method, request).await)
                }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            drop(builder.serve_connection(TokioIo::new(stream), service).await);
        }
    });
    (address, told)
}

/// A client's connection.
#[derive(Clone)]
struct Channel(SendRequest<Body>);

impl GrpcService<Body> for Channel {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

type Client = Grpc<Channel>;

async fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, origin: &'static str) -> Client {
    let (request, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    Grpc::with_origin(Channel(request), origin.parse().unwrap()).max_decoding_message_size(8 << 20)
}

async fn client(gateway: &Gateway) -> Client {
    over(TcpStream::connect(gateway.address()).await.unwrap(), "http://test.example").await
}

fn path(method: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(method)
}

async fn unary(
    client: &mut Client,
    method: &'static str,
    message: impl Into<Bytes>,
) -> Result<Response<Bytes>, Status> {
    client.ready().await.unwrap();
    soon(client.unary(Request::new(message.into()), path(method), Plain)).await
}

async fn all(messages: &mut Streaming<Bytes>) -> (Vec<Bytes>, Option<Status>) {
    let mut got = Vec::new();
    loop {
        match soon(messages.message()).await {
            Ok(Some(message)) => got.push(message),
            Ok(None) => return (got, None),
            Err(status) => return (got, Some(status)),
        }
    }
}

fn in_front_of(address: SocketAddr, route: &str, more: &str) -> Gateway {
    Gateway::start(&MIX.rules(address, route, more))
}

async fn four_kinds(client: &mut Client) {
    assert_eq!(unary(client, "/t.T/Echo", "hello").await.unwrap().into_inner(), "hello");
    let parts: Vec<Bytes> = (0..50_u8).map(|at| vec![at; 3000].into()).collect();
    let upload = Request::new(stream::iter(parts.clone()));
    let joined = soon(client.client_streaming(upload, path("/t.T/Join"), Plain)).await.unwrap().into_inner();
    assert!(joined == parts.concat(), "{} bytes", joined.len());

    let asked = Request::new(Bytes::from_static(&[200]));
    let mut messages = soon(client.server_streaming(asked, path("/t.T/Count"), Plain)).await.unwrap().into_inner();
    let (got, status) = all(&mut messages).await;
    assert!(status.is_none(), "{status:?}");
    assert_eq!(got, (0..200_u8).map(|at| Bytes::from(vec![at; 1000])).collect::<Vec<_>>());

    let (mut say, said) = futures_channel();
    let mut messages = soon(client.streaming(Request::new(said), path("/t.T/Chat"), Plain)).await.unwrap().into_inner();
    for round in 0..20 {
        let text = Bytes::from(format!("round {round}"));
        say.as_mut().unwrap().try_send(text.clone()).unwrap();
        // Each before the next one is sent: nothing on the way waits for more.
        assert_eq!(soon(messages.message()).await.unwrap(), Some(text));
    }
    say = None;
    assert!(say.is_none() && all(&mut messages).await.1.is_none());
}

type Say = Option<tokio::sync::mpsc::Sender<Bytes>>;

/// Messages that are sent when the test says so.
fn futures_channel() -> (Say, BoxStream<'static, Bytes>) {
    let (say, mut said) = tokio::sync::mpsc::channel(10);
    (Some(say), stream::poll_fn(move |cx| said.poll_recv(cx)).boxed())
}

#[test]
fn calls_of_all_four_kinds_pass() {
    let (address, _told) = start_server();
    let gateway = in_front_of(address, "", "");
    runtime().block_on(async { four_kinds(&mut client(&gateway).await).await });
    wait_outcome(&gateway, "forwarded", 4);
}

#[test]
fn calls_of_all_four_kinds_pass_by_tls() {
    let (address, _told) = start_server();
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["test.example".to_owned()]).unwrap();
    std::fs::write(directory.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\n\
                    tls = { certificates = [{ cert = \"cert.pem\", key = \"key.pem\" }] }\n";
    let gateway = Gateway::start_in(directory, &format!("{listener}{}", MIX.rules(address, "", "")));
    runtime().block_on(async {
        let stream = by_tls(gateway.address(), made.cert.der().clone()).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        four_kinds(&mut over(stream, "https://test.example").await).await;
    });
}

async fn by_tls(address: SocketAddr, root: CertificateDer<'static>) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    connector.connect(ServerName::try_from("test.example").unwrap(), stream).await.unwrap()
}

#[test]
fn a_status_passes_with_its_details_alone_and_behind_messages() {
    let (address, _told) = start_server();
    let gateway = in_front_of(address, "", "");
    runtime().block_on(async {
        let mut client = client(&gateway).await;
        let alone = unary(&mut client, "/t.T/Fail", "").await.unwrap_err();
        let asked = Request::new(Bytes::new());
        let mut messages =
            soon(client.server_streaming(asked, path("/t.T/FailLate"), Plain)).await.unwrap().into_inner();
        let (got, behind) = all(&mut messages).await;
        assert_eq!(got, ["one", "two"]);
        for status in [alone, behind.unwrap()] {
            assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "100 % für nichts"));
            assert_eq!(status.details(), [0, 1, 2, 255]);
            assert_eq!(status.metadata().get("x-why").unwrap(), "because");
        }
        let unknown = unary(&mut client, "/t.T/Unknown", "").await.unwrap_err();
        assert_eq!((unknown.code(), unknown.message()), (Code::Unimplemented, "no such method"));
    });
}

#[test]
fn metadata_passes_in_letters_and_in_bytes() {
    let (address, _told) = start_server();
    let gateway = in_front_of(address, "", "");
    runtime().block_on(async {
        let mut client = client(&gateway).await;
        let mut request = Request::new(Bytes::new());
        let bytes: Vec<u8> = (0..=255).collect();
        request.metadata_mut().insert("x-ascii", "a b;c=\"d\"".parse().unwrap());
        request.metadata_mut().insert_bin("x-bytes-bin", MetadataValue::from_bytes(&bytes));
        let response = soon(client.unary(request, path("/t.T/Echo"), Plain)).await.unwrap();
        assert_eq!(response.metadata().get("x-ascii").unwrap(), "a b;c=\"d\"");
        assert_eq!(response.metadata().get_bin("x-bytes-bin").unwrap().to_bytes().unwrap(), bytes);
    });
}

#[test]
fn a_message_of_four_mebibytes_passes() {
    let (address, _told) = start_server();
    let gateway = in_front_of(address, "", "");
    let large = Bytes::from((0..4_u32 << 20).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    runtime().block_on(async {
        let answered = unary(&mut client(&gateway).await, "/t.T/Echo", large.clone()).await.unwrap();
        assert!(answered.into_inner() == large);
    });
}

#[test]
fn a_hundred_calls_at_once_get_their_own_answers() {
    let (address, _told) = start_server();
    let gateway = in_front_of(address, "", "");
    runtime().block_on(async {
        let client = client(&gateway).await;
        let calls = (0..100_u8).map(|at| {
            let mut client = client.clone();
            async move {
                let message = Bytes::from(vec![at; 1 + usize::from(at) * 500]);
                assert!(
                    unary(&mut client, "/t.T/Echo", message.clone()).await.unwrap().into_inner() == message,
                    "{at}"
                );
            }
        });
        futures_util::future::join_all(calls).await;
    });
    wait_outcome(&gateway, "forwarded", 100);
}

#[test]
fn a_deadline_reaches_the_server() {
    let (address, _told) = start_server();
    let gateway = in_front_of(address, "", "");
    runtime().block_on(async {
        let mut client = client(&gateway).await;
        let mut request = Request::new(Bytes::new());
        request.set_timeout(Duration::from_millis(100));
        let started = Instant::now();
        let status = soon(client.unary(request, path("/t.T/Hang"), Plain)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "the server has waited"));
        assert!(started.elapsed() >= Duration::from_millis(100));
    });
}

#[test]
fn a_call_that_its_client_cancels_is_cancelled_at_the_server() {
    let (address, told) = start_server();
    let gateway = in_front_of(address, "", "");
    runtime().block_on(async {
        let mut client = client(&gateway).await;
        let call = client.unary(Request::new(Bytes::new()), path("/t.T/Hang"), Plain);
        // The server does nothing with it, so that it has come is not seen but by the metrics.
        let waited = tokio::time::timeout(Duration::from_millis(200), call).await;
        assert!(waited.is_err());
        // Dropping the call is the cancellation; it is written while something else is asked.
        assert_eq!(unary(&mut client, "/t.T/Echo", "on").await.unwrap().into_inner(), "on");
    });
    told.recv_timeout(PATIENCE).expect("the server's call is dropped");
    wait_outcome(&gateway, "client-gone", 1);
}

const LIMIT: &str = "[[limit]]\nname = \"calls\"\nkey = \"client-ip\"\nrate = \"1/1h\"\nalgorithm = \"fixed-window\"\n";

#[test]
fn a_call_over_its_limit_is_told_in_its_own_words() {
    let (address, _told) = start_server();
    let gateway = in_front_of(address, "limits = [\"calls\"]", LIMIT);
    runtime().block_on(async {
        let mut client = client(&gateway).await;
        assert_eq!(unary(&mut client, "/t.T/Echo", "one").await.unwrap().into_inner(), "one");
        let status = unary(&mut client, "/t.T/Echo", "two").await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().starts_with("Over the limit \"calls\"; try again in "), "{status:?}");
        let millis: u64 = status.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
        assert!((1000..=3_600_000).contains(&millis), "{millis}");
        // One that is still being sent, too.
        let (say, said) = futures_channel();
        say.as_ref().unwrap().try_send("one".into()).unwrap();
        let status = soon(client.streaming(Request::new(said), path("/t.T/Chat"), Plain)).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
    });
    let ask =
        Ask::post("/t.T/Echo", "\0\0\0\0\0").with(&[("content-type", "application/grpc+proto"), ("te", "trailers")]);
    let raw = Asker::open(Http::Two, gateway.address()).ask(&Ask { has_no_length: true, ..ask });
    assert_eq!((raw.status(), raw.body.len(), raw.trailers.len()), (200, 0, 0), "all is said in one head");
    assert_eq!((raw.header("grpc-status"), raw.header("content-type")), (Some("8"), Some("application/grpc")));
    assert!(raw.header("ratelimit").is_some() && raw.header("retry-after").is_some(), "{raw:?}");
}

/// The status of a call to a gateway with these rules.
fn refused(gateway: &Gateway, method: &'static str) -> Code {
    runtime().block_on(async { unary(&mut client(gateway).await, method, "x").await.unwrap_err().code() })
}

#[test]
fn what_the_gateway_cannot_do_is_told_in_codes_of_grpc() {
    let (address, told) = start_server();
    let nobody = unused_address();
    assert_eq!(refused(&in_front_of(nobody, "", ""), "/t.T/Echo"), Code::Unavailable);
    assert_eq!(refused(&in_front_of(address, "path = \"/other\"", ""), "/t.T/Echo"), Code::Unimplemented);
    let gateway = in_front_of(address, "timeout = \"200ms\"", "");
    assert_eq!(refused(&gateway, "/t.T/Hang"), Code::DeadlineExceeded);
    told.recv_timeout(PATIENCE).expect("the server's call is dropped");
    assert_eq!(refused(&in_front_of(address, "max_body_size = \"1B\"", ""), "/t.T/Echo"), Code::ResourceExhausted);
}

#[test]
fn a_server_that_dies_in_a_stream_is_no_success() {
    let (address, _) = serve_tcp(|stream, _| async move {
        let Ok(mut accepting) = h2::server::handshake(stream).await else { return };
        let Some(Ok((_request, mut respond))) = accepting.accept().await else { return };
        let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut send = respond.send_response(head, false).unwrap();
        send.send_data(Bytes::from_static(b"\0\0\0\0\x03one"), false).unwrap();
        // What is written goes out, and nothing follows.
        drop(poll_fn(|cx| accepting.poll_closed(cx)).await);
    });
    let gateway = in_front_of(address, "timeout = \"1s\"", "");
    runtime().block_on(async {
        let mut client = client(&gateway).await;
        let asked = Request::new(Bytes::new());
        let mut messages = soon(client.server_streaming(asked, path("/t.T/Any"), Plain)).await.unwrap().into_inner();
        let (got, status) = all(&mut messages).await;
        assert_eq!(got, ["one"]);
        // Which code the reset of a stream is, is its client's to say.
        assert_ne!(status.expect("an error").code(), Code::Ok);
    });
}
