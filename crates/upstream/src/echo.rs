use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use sluicegate_time::Span;

/// The longest `?delay=` that is obeyed.
const MAX_DELAY: Span = Span::from_secs(600);
/// The largest `?bytes=` that is obeyed.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// How many echo servers a process starts at most.
const MAX_SERVERS: usize = 64;

/// Servers inside this process, on loopback ports that the kernel chooses: they say who they are and what reached
/// them, so that every rule can be tried without writing a backend.
///
/// One thread serves them all; it lives as long as the process, and a server once started stays, so that a reload
/// finds it again.
#[derive(Default)]
pub struct EchoServers(Mutex<Echo>);

#[derive(Default)]
struct Echo {
    started: HashMap<String, SocketAddr>,
    thread: Option<mpsc::Sender<(Arc<str>, TcpListener)>>,
}

impl EchoServers {
    /// None yet; the thread starts with the first.
    pub fn new() -> Self {
        Self::default()
    }

    /// The address of `echo:name`, which is started if it is not running.
    pub fn address(&self, name: &str) -> io::Result<SocketAddr> {
        let Echo { started, thread } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = started.get(name) {
            return Ok(*address);
        }
        if started.len() >= MAX_SERVERS {
            return Err(io::Error::other(format!("more than {MAX_SERVERS} echo servers")));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let thread = match thread {
            Some(thread) => thread,
            none => none.insert(start_thread()?),
        };
        thread.try_send((name.into(), listener)).map_err(|_| io::Error::other("the echo servers' thread has ended"))?;
        started.insert(name.to_owned(), address);
        Ok(address)
    }
}

fn start_thread() -> io::Result<mpsc::Sender<(Arc<str>, TcpListener)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, mut servers) = mpsc::channel::<(Arc<str>, TcpListener)>(MAX_SERVERS);
    thread::Builder::new().name("echo".into()).spawn(move || {
        LocalSet::new().block_on(&runtime, async move {
            while let Some((name, listener)) = servers.recv().await {
                tokio::task::spawn_local(accept(name, listener));
            }
        });
    })?;
    Ok(sender)
}

async fn accept(name: Arc<str>, listener: TcpListener) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        drop(stream.set_nodelay(true));
        let name = Arc::clone(&name);
        let service = service_fn(move |request| answer(Arc::clone(&name), request));
        tokio::task::spawn_local(async move {
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

/// The wishes of the query for the answer.
struct Wishes {
    status: StatusCode,
    delay: Span,
    bytes: Option<usize>,
}

impl Wishes {
    fn parse(query: &str) -> Self {
        let mut wishes = Self { status: StatusCode::OK, delay: Span::ZERO, bytes: None };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "status" => {
                    if let Some(status) = value.parse().ok().and_then(|code: u16| StatusCode::from_u16(code).ok())
                        && status.as_u16() >= 200
                    {
                        wishes.status = status;
                    }
                }
                "delay" => wishes.delay = value.parse().unwrap_or_default(),
                "bytes" => wishes.bytes = value.parse().ok(),
                _ => {}
            }
        }
        wishes
    }
}

async fn answer(name: Arc<str>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, mut body) = request.into_parts();
    let mut body_bytes: u64 = 0;
    while let Some(Ok(frame)) = body.frame().await {
        body_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    let query = head.uri.query().unwrap_or_default();
    let wishes = Wishes::parse(query);
    if !wishes.delay.is_zero() {
        tokio::time::sleep(wishes.delay.min(MAX_DELAY).into()).await;
    }
    let body = match wishes.bytes {
        Some(bytes) => Bytes::from(vec![b'x'; bytes.min(MAX_BYTES)]),
        None => description(&name, &head, query, body_bytes),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = wishes.status;
    let kind = if wishes.bytes.is_some() { "application/octet-stream" } else { "application/json" };
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    // It tells what a client has sent, cookies too: nobody is to keep that for another.
    fields.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The request that an echo server saw, in the order in which it tells it.
#[derive(serde::Serialize)]
struct EchoedRequest<'a> {
    server: &'a str,
    method: &'a str,
    path: &'a str,
    query: &'a str,
    protocol: String,
    headers: Vec<(&'a str, String)>,
    body_bytes: u64,
}

fn description(name: &str, head: &http::request::Parts, query: &str, body_bytes: u64) -> Bytes {
    let seen = EchoedRequest {
        server: name,
        method: head.method.as_str(),
        path: head.uri.path(),
        query,
        protocol: format!("{:?}", head.version),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect(),
        body_bytes,
    };
    let mut text = serde_json::to_vec(&seen).unwrap_or_default();
    text.push(b'\n');
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn ask(address: SocketAddr, target: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn says_who_it_is_and_what_it_saw() {
        let servers = EchoServers::new();
        let address = servers.address("a").unwrap();
        assert_eq!(servers.address("a").unwrap(), address);
        let answer = ask(address, "/x?k=v");
        let json: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(json["server"], "a");
        assert_eq!(json["path"], "/x");
        assert_eq!(json["query"], "k=v");
        assert_eq!(json["protocol"], "HTTP/1.1");
        assert_eq!(json["headers"][1], serde_json::json!(["x-one", "1"]));
    }

    #[test]
    fn obeys_the_query() {
        let servers = EchoServers::new();
        let address = servers.address("b").unwrap();
        let answer = ask(address, "/?status=503&bytes=5&delay=1ms");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\nxxxxx"), "{answer}");
        assert!(ask(address, "/?status=99&bytes=x").starts_with("HTTP/1.1 200 "));
    }
}
