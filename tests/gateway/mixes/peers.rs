//! Clients and servers of both protocols with one face, so that a test says once what is to happen in every mix. Those of
//! HTTP/2 are made of the `h2` crate.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version};
use sha1::{Digest, Sha1};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::support::{Backend, Gateway, PATIENCE};
use crate::wire::{Message, Wire};

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
}

/// The protocols of the client and of the server.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub client: Http,
    pub server: Http,
}

/// Makes a test of each mix out of functions that take one.
macro_rules! in_every_mix {
    ($($test:ident)*) => {$(
        mod $test {
            use crate::mixes::peers::{Http::{One, Two}, Mix};
            #[test]
            fn h1_to_h1() {
                super::$test(Mix { client: One, server: One });
            }
            #[test]
            fn h2_to_h1() {
                super::$test(Mix { client: Two, server: One });
            }
            #[test]
            fn h1_to_h2() {
                super::$test(Mix { client: One, server: Two });
            }
            #[test]
            fn h2_to_h2() {
                super::$test(Mix { client: Two, server: Two });
            }
        }
    )*};
}
pub(crate) use in_every_mix;

impl Mix {
    /// Rules that send everything to one server, but `/local`, which the gateway answers. One worker, so that it is
    /// known which connections there are.
    pub fn rules(self, address: SocketAddr, route: &str, more: &str) -> String {
        let protocol = if self.server == Http::Two { "protocol = \"h2\"\n" } else { "" };
        format!(
            "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [\"{address}\"]\n{protocol}\
             [[route]]\nname = \"local\"\npath = \"/local\"\nrespond = {{ status = 200, body = \"local\\n\" }}\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\n{route}\n{more}"
        )
    }

    pub fn gateway(self, address: SocketAddr) -> Gateway {
        Gateway::start(&self.rules(address, "", ""))
    }

    pub fn asker(self, gateway: &Gateway) -> Asker {
        Asker::open(self.client, gateway.address())
    }
}

/// The answer to the key of a request: of a client of HTTP/2 the gateway has made one up.
pub fn accept_of(request: &Message) -> String {
    let key = request.header("sec-websocket-key").unwrap_or_default();
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    Base64::encode_string(&Sha1::digest(text.as_bytes()))
}

type Fields = Vec<(String, String)>;

pub fn fields(pairs: &[(&str, &str)]) -> Fields {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub fn header_map(fields: &[(String, String)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        map.append(name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap());
    }
    map
}

pub fn fields_of(map: &HeaderMap) -> Fields {
    map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}

pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits as long as patience lasts.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// The answer of a server.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub interim: Vec<(u16, Fields)>,
    pub status: u16,
    pub fields: Fields,
    pub body: Vec<u8>,
    pub trailers: Fields,
    /// No `Content-Length`; so it is wherever trailers follow.
    pub has_no_length: bool,
}

impl Told {
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::new(200, &[], body)
    }

    pub fn new(status: u16, own: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        Self { status, fields: fields(own), body: body.into(), ..Self::default() }
    }

    fn has_length(&self) -> bool {
        !self.has_no_length && self.trailers.is_empty() && !matches!(self.status, 204 | 304)
    }
}

type Early = dyn Fn(&Message) -> Option<Told> + Send + Sync;
type Answer = dyn Fn(&Message) -> Told + Send + Sync;

struct Manners {
    early: Box<Early>,
    answer: Box<Answer>,
    max_streams: u32,
}

/// A server that answers what it is told to.
pub struct Origin {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub seen: Arc<Mutex<Vec<Message>>>,
    _backend: Option<Backend>,
}

impl Origin {
    pub fn start(http: Http, answer: impl Fn(&Message) -> Told + Send + Sync + 'static) -> Self {
        Self::start_early(http, |_| None, answer)
    }

    /// Asks `early` for an answer once the head has come, and sends it without having read the body.
    pub fn start_early(
        http: Http,
        early: impl Fn(&Message) -> Option<Told> + Send + Sync + 'static,
        answer: impl Fn(&Message) -> Told + Send + Sync + 'static,
    ) -> Self {
        Self::with(http, Manners { early: Box::new(early), answer: Box::new(answer), max_streams: 200 })
    }

    /// One of HTTP/2 that takes so many requests at once.
    pub fn narrow(max_streams: u32, answer: impl Fn(&Message) -> Told + Send + Sync + 'static) -> Self {
        Self::with(Http::Two, Manners { early: Box::new(|_| None), answer: Box::new(answer), max_streams })
    }

    fn with(http: Http, manners: Manners) -> Self {
        match http {
            Http::One => {
                let backend = Backend::scripted(move |wire, _| while serve_h1(wire, &manners).is_ok() {});
                let (connections, seen) = (Arc::clone(&backend.connections), Arc::clone(&backend.seen));
                Self { address: backend.address, connections, seen, _backend: Some(backend) }
            }
            Http::Two => {
                let seen = Arc::<Mutex<Vec<Message>>>::default();
                let (log, manners) = (Arc::clone(&seen), Arc::new(manners));
                let (address, connections) = serve_tcp(move |stream, _| {
                    let (log, manners) = (Arc::clone(&log), Arc::clone(&manners));
                    async move {
                        let mut builder = h2::server::Builder::new();
                        builder.max_concurrent_streams(manners.max_streams);
                        let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
                        while let Some(Ok((request, respond))) = connection.accept().await {
                            let (log, manners) = (Arc::clone(&log), Arc::clone(&manners));
                            tokio::spawn(async move { drop(serve_h2(request, respond, &log, &manners).await) });
                        }
                    }
                });
                Self { address, connections, seen, _backend: None }
            }
        }
    }

    pub fn accepted(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The only request that came.
    pub fn only(&self) -> Message {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }
}

/// Accepts in a thread of its own until the process ends; its address, and how many it has accepted.
pub fn serve_tcp<F>(attend: impl Fn(TcpStream, usize) -> F + Send + 'static) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(attend(stream, count.fetch_add(1, Ordering::SeqCst) + 1));
            }
        });
    });
    (address, connections)
}

fn serve_h1(wire: &mut Wire, manners: &Manners) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    let mut request = wire.head()?;
    if let Some(told) = (manners.early)(&request) {
        tell_h1(wire, &request, &told);
        // What it was sent and does not read would make the kernel reset the connection.
        wire.finish();
        wire.is_cut();
        return Err(gone());
    }
    if request.header("expect").is_some() {
        wire.send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    wire.body_of(&mut request)?;
    let told = (manners.answer)(&request);
    if tell_h1(wire, &request, &told) { Ok(()) } else { Err(gone()) }
}

fn lines(fields: &[(String, String)]) -> String {
    let lines: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    lines.concat()
}

fn tell_h1(wire: &Wire, request: &Message, told: &Told) -> bool {
    for (status, fields) in &told.interim {
        wire.send(format!("HTTP/1.1 {status} Interim\r\n{}\r\n", lines(fields)));
    }
    let bodiless = request.line.starts_with("HEAD ") || matches!(told.status, 204 | 304);
    let framing = match told.has_length() {
        true => format!("Content-Length: {}\r\n", told.body.len()),
        false if matches!(told.status, 204 | 304) => String::new(),
        false => "Transfer-Encoding: chunked\r\n".to_owned(),
    };
    let head = format!("HTTP/1.1 {} Whatever\r\n{framing}{}\r\n", told.status, lines(&told.fields));
    let mut bytes = head.into_bytes();
    match bodiless {
        true => {}
        false if told.has_length() => bytes.extend_from_slice(&told.body),
        false => bytes.extend(chunked(&told.body, &told.trailers)),
    }
    wire.send(bytes)
}

fn chunked(body: &[u8], trailers: &[(String, String)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in body.chunks(5000) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("0\r\n{}\r\n", lines(trailers)).as_bytes());
    bytes
}

async fn serve_h2(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    log: &Mutex<Vec<Message>>,
    manners: &Manners,
) -> Result<(), h2::Error> {
    let (mut message, mut recv) = message_of(request);
    let early = (manners.early)(&message);
    let told = if let Some(told) = early {
        told
    } else {
        if message.header("expect").is_some() {
            respond.send_informational(Response::builder().status(100).body(()).unwrap())?;
        }
        read_body(&mut recv, &mut message).await?;
        log.lock().unwrap().push(message.clone());
        (manners.answer)(&message)
    };
    for (status, own) in &told.interim {
        let mut interim = Response::builder().status(*status).body(()).unwrap();
        *interim.headers_mut() = header_map(own);
        respond.send_informational(interim)?;
    }
    let mut response = Response::builder().status(told.status).body(()).unwrap();
    *response.headers_mut() = header_map(&told.fields);
    if told.has_length() {
        response.headers_mut().insert("content-length", told.body.len().into());
    }
    let bodiless = message.line.starts_with("HEAD ") || matches!(told.status, 204 | 304);
    let is_all = bodiless || told.body.is_empty() && told.trailers.is_empty();
    let mut send = respond.send_response(response, is_all)?;
    if !is_all {
        pour(&mut send, &told.body, told.trailers.is_empty()).await?;
        if !told.trailers.is_empty() {
            send.send_trailers(header_map(&told.trailers))?;
        }
    }
    Ok(())
}

/// A request as one of HTTP/1 would be seen, with its authority as `host`.
pub fn message_of(request: Request<RecvStream>) -> (Message, RecvStream) {
    let (parts, recv) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let mut headers = fields_of(&parts.headers);
    assert!(!parts.headers.contains_key("host"), "{parts:?}");
    headers.push(("host".to_owned(), parts.uri.authority().unwrap().to_string()));
    assert_eq!(parts.uri.scheme_str(), Some("http"));
    let line = format!("{} {target} HTTP/2.0", parts.method);
    (Message { line, headers, ..Message::default() }, recv)
}

/// Reads a body and its trailers, and opens the window as it goes.
pub async fn read_body(recv: &mut RecvStream, message: &mut Message) -> Result<(), h2::Error> {
    while let Some(data) = recv.data().await {
        let data = data?;
        recv.flow_control().release_capacity(data.len())?;
        message.body.extend_from_slice(&data);
    }
    if let Some(trailers) = recv.trailers().await? {
        message.trailers = fields_of(&trailers);
    }
    Ok(())
}

/// A size that surely fits into a window that was not used yet.
const SMALL: usize = 1024;

/// Writes bytes as the window opens.
pub async fn pour(send: &mut SendStream<Bytes>, bytes: &[u8], ends: bool) -> Result<(), h2::Error> {
    let mut rest = Bytes::copy_from_slice(bytes);
    if ends && bytes.len() <= SMALL {
        // Without waiting for a window, so that it leaves in one write with the head.
        return send.send_data(rest, true);
    }
    while !rest.is_empty() {
        send.reserve_capacity(rest.len());
        let room = match std::future::poll_fn(|cx| send.poll_capacity(cx)).await {
            Some(room) => room?,
            None => return Err(Reason::STREAM_CLOSED.into()),
        };
        let piece = rest.split_to(room.min(rest.len()));
        let is_last = ends && rest.is_empty();
        send.send_data(piece, is_last)?;
        if is_last {
            return Ok(());
        }
    }
    Ok(())
}

/// The request of a client.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub method: &'static str,
    pub target: String,
    pub fields: Fields,
    pub body: Option<Vec<u8>>,
    pub trailers: Fields,
    /// No `Content-Length`; so it is wherever trailers follow.
    pub has_no_length: bool,
}

impl Ask {
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub fn new(method: &'static str, target: &str) -> Self {
        Self { method, target: target.to_owned(), ..Self::default() }
    }

    pub fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { body: Some(body.into()), ..Self::new("POST", target) }
    }

    pub fn with(mut self, own: &[(&str, &str)]) -> Self {
        self.fields.extend(fields(own));
        self
    }

    fn has_length(&self) -> bool {
        self.body.is_some() && !self.has_no_length && self.trailers.is_empty()
    }
}

/// The answer that a client got.
#[derive(Debug)]
pub struct Seen {
    pub interim: Vec<Message>,
    pub answer: Message,
}

/// A client's connection.
pub enum Asker {
    One(Box<Wire>),
    Two(Runtime, SendRequest<Bytes>),
}

/// A connection of HTTP/2, driven by the runtime that this runs in. A stream that is not read takes no room from others.
pub async fn open_h2(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut builder = h2::client::Builder::new();
    let (request, connection) = builder.initial_connection_window_size(1 << 20).handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    request
}

pub fn request_of(ask: &Ask) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(ask.method.as_bytes()).unwrap();
    *request.uri_mut() = format!("http://test.example{}", ask.target).parse::<Uri>().unwrap();
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = header_map(&ask.fields);
    if ask.has_length() {
        request.headers_mut().insert("content-length", ask.body.as_ref().map_or(0, Vec::len).into());
    }
    request
}

impl Asker {
    pub fn open(http: Http, address: SocketAddr) -> Self {
        match http {
            Http::One => Self::One(Box::new(Wire::open(address))),
            Http::Two => {
                let runtime = runtime();
                let request = runtime.block_on(open_h2(address));
                Self::Two(runtime, request)
            }
        }
    }

    pub fn get(&mut self, target: &str) -> Message {
        self.ask(&Ask::get(target))
    }

    /// The whole answer.
    pub fn ask(&mut self, ask: &Ask) -> Message {
        self.exchange(ask).answer
    }

    /// The whole answer and what came before it.
    pub fn exchange(&mut self, ask: &Ask) -> Seen {
        self.attempt(ask).unwrap_or_else(|error| panic!("no answer to {} {}: {error}", ask.method, ask.target))
    }

    /// The same, or why there is none.
    pub fn attempt(&mut self, ask: &Ask) -> Result<Seen, String> {
        match self {
            Self::One(wire) => ask_h1(wire, ask).map_err(|error| error.to_string()),
            Self::Two(runtime, request) => {
                let asked = async { soon(ask_h2(request, ask)).await };
                runtime.block_on(asked).map_err(|error| error.to_string())
            }
        }
    }
}

fn ask_h1(wire: &mut Wire, ask: &Ask) -> io::Result<Seen> {
    let framing = match &ask.body {
        None => String::new(),
        Some(body) if ask.has_length() => format!("Content-Length: {}\r\n", body.len()),
        Some(_) => "Transfer-Encoding: chunked\r\n".to_owned(),
    };
    let head =
        format!("{} {} HTTP/1.1\r\nHost: test.example\r\n{framing}{}\r\n", ask.method, ask.target, lines(&ask.fields));
    let mut body = match &ask.body {
        Some(body) if !ask.has_length() => chunked(body, &ask.trailers),
        body => body.clone().unwrap_or_default(),
    };
    let mut interim = Vec::new();
    if ask.fields.iter().any(|(name, _)| name == "expect") {
        wire.send(&head);
        let first = wire.response(ask.method)?;
        if first.status() != 100 {
            return Ok(Seen { interim, answer: first });
        }
        interim.push(first);
    } else {
        body.splice(..0, head.bytes());
    }
    wire.send(body);
    loop {
        let response = wire.response(ask.method)?;
        if response.status() >= 200 {
            return Ok(Seen { interim, answer: response });
        }
        interim.push(response);
    }
}

async fn ask_h2(request: &SendRequest<Bytes>, ask: &Ask) -> Result<Seen, h2::Error> {
    let mut request = request.clone().ready().await?;
    let is_all = ask.trailers.is_empty() && ask.body.is_none();
    let (mut response, mut send) = request.send_request(request_of(ask), is_all)?;
    let mut interim = Vec::new();
    if ask.fields.iter().any(|(name, _)| name == "expect") {
        let first = next_head(&mut response).await?;
        match first {
            Head::Interim(first) => interim.push(first),
            Head::Final(answer, mut recv) => {
                let mut answer = answer;
                read_body(&mut recv, &mut answer).await?;
                return Ok(Seen { interim, answer });
            }
        }
    }
    let upload = async {
        if is_all {
            return;
        }
        // That the other side wants no more of it is seen by its answer.
        if pour(&mut send, ask.body.as_deref().unwrap_or_default(), ask.trailers.is_empty()).await.is_ok()
            && !ask.trailers.is_empty()
        {
            drop(send.send_trailers(header_map(&ask.trailers)));
        }
    };
    let download = async {
        loop {
            match next_head(&mut response).await? {
                Head::Interim(head) => interim.push(head),
                Head::Final(mut answer, mut recv) => {
                    read_body(&mut recv, &mut answer).await?;
                    return Ok::<_, h2::Error>(answer);
                }
            }
        }
    };
    let ((), answer) = tokio::join!(upload, download);
    Ok(Seen { interim, answer: answer? })
}

pub enum Head {
    Interim(Message),
    Final(Message, RecvStream),
}

/// The next head that the server sends.
pub async fn next_head(response: &mut ResponseFuture) -> Result<Head, h2::Error> {
    let head = |status: http::StatusCode, map: &HeaderMap| Message {
        line: format!("HTTP/2.0 {}", status.as_u16()),
        headers: fields_of(map),
        ..Message::default()
    };
    std::future::poll_fn(|cx| {
        if let std::task::Poll::Ready(Some(interim)) = response.poll_informational(cx) {
            let interim = interim?;
            return std::task::Poll::Ready(Ok(Head::Interim(head(interim.status(), interim.headers()))));
        }
        pin!(&mut *response).poll(cx).map_ok(|response| {
            let (parts, recv) = response.into_parts();
            Head::Final(head(parts.status, &parts.headers), recv)
        })
    })
    .await
}

/// Asks `count` times at once over one connection of HTTP/2.
pub fn all_at_once(address: SocketAddr, count: usize, ask: impl Fn(usize) -> Ask) -> Vec<Message> {
    runtime().block_on(async {
        let request = open_h2(address).await;
        let tasks: Vec<_> = (0..count)
            .map(|at| {
                let (request, ask) = (request.clone(), ask(at));
                tokio::spawn(async move { soon(ask_h2(&request, &ask)).await })
            })
            .collect();
        let mut answers = Vec::new();
        for (at, task) in tasks.into_iter().enumerate() {
            let seen = task.await.unwrap().unwrap_or_else(|error| panic!("no answer to {at}: {error}"));
            answers.push(seen.answer);
        }
        answers
    })
}
