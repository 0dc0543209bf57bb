//! Asks the admin interface of the gateway that runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

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
    mut stream: TcpStream,
    method: &str,
    address: SocketAddr,
    path: &str,
    patience: Duration,
) -> std::io::Result<String> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_ok(head: &str) -> bool {
    head.starts_with("HTTP/1.1 200 ")
}
