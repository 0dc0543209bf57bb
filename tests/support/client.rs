//! A client that speaks plain HTTP/1, and reads what any of the two sides may send.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// A response as a client sees it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A field that reached an echo server.
    pub fn echoed(&self, name: &str) -> Option<String> {
        let json = self.json();
        let headers = json["headers"].as_array().unwrap().clone();
        headers.iter().find(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned())
    }
}

/// A connection that stays open between requests.
pub struct Client {
    pub stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.request("GET", target, &[], b"")
    }

    pub fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(method, target, headers, body);
        self.read_answer(method == "HEAD").unwrap()
    }

    pub fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("Host: test.example\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn read_answer(&mut self, headless: bool) -> io::Result<Answer> {
        read_answer(&mut self.reader, headless)
    }

    /// Reads until the other side closes.
    pub fn read_rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed in the middle of a message")
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => Err(cut()),
    }
}

pub fn read_head(reader: &mut impl BufRead) -> io::Result<(String, Vec<(String, String)>)> {
    let first = read_line(reader)?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            return Ok((first, headers));
        }
        let (name, value) = line.split_once(':').ok_or_else(cut)?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

pub fn read_body(reader: &mut impl BufRead, headers: &[(String, String)], until_close: bool) -> io::Result<Vec<u8>> {
    let value = |name| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let mut body = Vec::new();
    if value("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        loop {
            let size = read_line(reader)?;
            let size = usize::from_str_radix(size.split(';').next().unwrap().trim(), 16).map_err(|_| cut())?;
            let start = body.len();
            body.resize(start + size, 0);
            reader.read_exact(&mut body[start..])?;
            if size == 0 {
                while !read_line(reader)?.is_empty() {}
                return Ok(body);
            }
            read_line(reader)?;
        }
    }
    if let Some(length) = value("content-length") {
        body.resize(length.parse().unwrap(), 0);
        reader.read_exact(&mut body)?;
    } else if until_close {
        reader.read_to_end(&mut body)?;
    }
    Ok(body)
}

pub fn read_answer(reader: &mut impl BufRead, headless: bool) -> io::Result<Answer> {
    loop {
        let (first, headers) = read_head(reader)?;
        let status: u16 = first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
        if status < 200 {
            continue;
        }
        let bodiless = headless || status == 204 || status == 304;
        let body = if bodiless { Vec::new() } else { read_body(reader, &headers, true)? };
        return Ok(Answer { status, headers, body });
    }
}

/// One request on a connection of its own.
pub fn get(address: SocketAddr, target: &str) -> Answer {
    Client::connect(address).get(target)
}

/// One request with fields of its own.
pub fn get_with(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Answer {
    Client::connect(address).request("GET", target, headers, b"")
}
