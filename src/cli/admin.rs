//! Asks the admin interface of the gateway that runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use super::banner::reachable;
use crate::config::Model;

/// How long the gateway may take for each step.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// The most that is read of an answer.
const MAX_ANSWER: u64 = 16 << 20;

/// Why there is no answer that could be used.
pub enum Failure {
    /// Nobody is there.
    Unheard(String),
    /// Whoever is there has been asked, and nothing is known of the answer.
    Lost(String),
    /// An answer of another status than 200: what it says.
    Answered(String),
}

/// Where the gateway that runs is asked: at `given`, `http://HOST:PORT` or `HOST:PORT`, else where the file says.
pub fn address(
    given: Option<&str>,
    load: impl FnOnce() -> Result<Model, String>,
    file: &Path,
) -> Result<SocketAddr, String> {
    if let Some(given) = given {
        let host = given.strip_prefix("http://").unwrap_or(given).trim_end_matches('/');
        let wrong = || format!("--admin {given}: write http://HOST:PORT");
        return host.to_socket_addrs().map_err(|_| wrong())?.next().ok_or_else(wrong);
    }
    let missing = || {
        format!(
            "{}: the gateway that runs is asked over its admin interface: add [admin] with an address",
            file.display()
        )
    };
    load()?.admin.map(|admin| reachable(admin.address)).ok_or_else(missing)
}

/// The body of the answer with status 200, of a request that may have a body in JSON; otherwise why there is none. The path
/// may have a secret in it, and is not repeated.
pub fn ask_json(address: SocketAddr, request: (&str, &str), json: &str) -> Result<String, String> {
    let asked = connect(address).and_then(|stream| ask_with(stream, request, address, json, PATIENCE));
    let answer = asked.map_err(|error| format!("{address}: {error}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if is_ok(head) => Ok(body.to_owned()),
        Some((_, body)) => match serde_json::from_str::<serde_json::Value>(body) {
            Ok(problem) if problem["detail"].is_string() => {
                Err(problem["detail"].as_str().unwrap_or_default().to_owned())
            }
            _ => Err(format!("{address}: it answered {}", answer.lines().next().unwrap_or("nothing"))),
        },
        None => Err(format!("{address}: it answers nothing")),
    }
}

/// The body of the answer with status 200; otherwise why there is none.
pub fn get(address: SocketAddr, path: &str) -> Result<String, String> {
    let asked = connect(address).and_then(|stream| ask(stream, "GET", address, path, PATIENCE));
    let answer = asked.map_err(|error| error.to_string())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if is_ok(head) => Ok(body.to_owned()),
        _ => Err(format!("{path} answered {}", answer.lines().next().unwrap_or("nothing"))),
    }
}

/// The same of a command, whose answer may take as long as that.
pub fn post(address: SocketAddr, path: &str, patience: Duration) -> Result<String, Failure> {
    let stream = connect(address).map_err(|error| Failure::Unheard(error.to_string()))?;
    let answer = ask(stream, "POST", address, path, patience).map_err(|error| Failure::Lost(error.to_string()))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if is_ok(head) => Ok(body.to_owned()),
        Some((head, "")) => Err(Failure::Answered(head.lines().next().unwrap_or_default().to_owned())),
        Some((_, body)) => Err(Failure::Answered(body.to_owned())),
        None => Err(Failure::Lost("it answers nothing".to_owned())),
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, PATIENCE)
}

fn ask(
    stream: TcpStream,
    method: &str,
    address: SocketAddr,
    path: &str,
    patience: Duration,
) -> std::io::Result<String> {
    ask_with(stream, (method, path), address, "", patience)
}

fn ask_with(
    mut stream: TcpStream,
    (method, path): (&str, &str),
    address: SocketAddr,
    body: &str,
    patience: Duration,
) -> std::io::Result<String> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n")?;
    if !body.is_empty() {
        write!(stream, "Content-Type: application/json\r\nContent-Length: {}\r\n", body.len())?;
    }
    write!(stream, "\r\n{body}")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_ok(head: &str) -> bool {
    head.starts_with("HTTP/1.1 200 ")
}
