//! Connections whose bytes are the test's own, on either side of the gateway, and a strict reader of what comes back:
//! one framing, no chunk extensions, no bare line feeds. A message that it reads without an error is HTTP/1.1 to the
//! letter.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{Backend, Gateway, PATIENCE, eventually};

/// A request or a response; names of fields in lower case.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Message {
    pub fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
    }

    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// The values of a field, a line each.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn closes(&self) -> bool {
        self.all("connection").iter().any(|value| value.eq_ignore_ascii_case("close"))
    }

    pub fn is_chunked(&self) -> bool {
        self.all("transfer-encoding") == ["chunked"]
    }
}

/// How a body ends.
enum End {
    AtOnce,
    After(u64),
    Chunked,
    Close,
}

/// One end of a connection.
pub struct Wire {
    reader: BufReader<TcpStream>,
    log: Option<Arc<Mutex<Vec<Message>>>>,
}

impl Wire {
    pub fn open(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap(), None)
    }

    /// A connection on which these bytes have been sent, in one write.
    pub fn with(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Self {
        let wire = Self::open(address);
        wire.send(bytes);
        wire
    }

    /// A connection whose requests are noted when they have been read whole.
    pub fn noting(stream: TcpStream, log: Arc<Mutex<Vec<Message>>>) -> Self {
        Self::over(stream, Some(log))
    }

    fn over(stream: TcpStream, log: Option<Arc<Mutex<Vec<Message>>>>) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::with_capacity(64 << 10, stream), log }
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Whether all of it could be written.
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream().write_all(bytes.as_ref()).is_ok()
    }

    /// Sends each byte on its own, with a pause after it; whether all could be written.
    pub fn drip(&self, bytes: impl AsRef<[u8]>, pause: Duration) -> bool {
        bytes.as_ref().iter().all(|byte| {
            let sent = self.send([*byte]);
            thread::sleep(pause);
            sent
        })
    }

    /// Sends no more, and goes on reading.
    pub fn finish(&self) {
        drop(self.stream().shutdown(Shutdown::Write));
    }

    /// Ends the connection by a reset.
    pub fn reset(self) {
        socket2::SockRef::from(self.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Reads a request's head, and nothing of its body.
    pub fn head(&mut self) -> io::Result<Message> {
        let line = self.line()?;
        let headers = self.fields()?;
        Ok(Message { line, headers, ..Message::default() })
    }

    /// Reads a whole request.
    pub fn request(&mut self) -> io::Result<Message> {
        let mut request = self.head()?;
        self.body_of(&mut request)?;
        Ok(request)
    }

    /// Reads the body of a request whose head was read.
    pub fn body_of(&mut self, request: &mut Message) -> io::Result<()> {
        let mut body = Vec::new();
        request.trailers = self.pour_body(request, |bytes| body.extend_from_slice(bytes))?;
        request.body = body;
        if let Some(log) = &self.log {
            log.lock().unwrap().push(request.clone());
        }
        Ok(())
    }

    /// Reads the body of a request whose head was read into `take` as it comes.
    pub fn pour_body(&mut self, request: &Message, take: impl FnMut(&[u8])) -> io::Result<Vec<(String, String)>> {
        let end = match framing(request)? {
            End::Close => End::AtOnce,
            end => end,
        };
        self.pour(&end, take)
    }

    /// Reads one response, interim ones too.
    pub fn response(&mut self, method: &str) -> io::Result<Message> {
        let mut body = Vec::new();
        let mut response = self.response_into(method, |bytes| body.extend_from_slice(bytes))?;
        response.body = body;
        Ok(response)
    }

    /// Reads one response whose body goes to `take` as it comes.
    pub fn response_into(&mut self, method: &str, take: impl FnMut(&[u8])) -> io::Result<Message> {
        let mut response = self.head()?;
        let status = response.status();
        let end = framing(&response)?;
        let bodiless = method == "HEAD" || status < 200 || status == 204 || status == 304;
        response.trailers = self.pour(if bodiless { &End::AtOnce } else { &end }, take)?;
        Ok(response)
    }

    /// The final answer to a request.
    pub fn answer(&mut self) -> Message {
        self.answer_to("GET")
    }

    pub fn answer_to(&mut self, method: &str) -> Message {
        loop {
            let response = self.response(method).unwrap_or_else(|error| panic!("no answer to {method}: {error}"));
            if response.status() >= 200 {
                return response;
            }
        }
    }

    /// Sends a GET and reads its answer.
    pub fn get(&mut self, target: &str) -> Message {
        self.send(get(target));
        self.answer()
    }

    /// The refusal as a client learns it: the status, and what more came before an orderly end, if there was one. For
    /// tables, whose failing rows are to be told all at once.
    pub fn refusal(&mut self) -> Result<u16, String> {
        self.stream().set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let answer = self.response("GET").map_err(|error| format!("no answer: {error}"))?;
        let status = answer.status();
        if !answer.closes() {
            return Err(format!("{status} without Connection: close"));
        }
        match self.rest() {
            Ok(rest) if rest.is_empty() => Ok(status),
            Ok(rest) => Err(format!("{status} and then {:?}", String::from_utf8_lossy(&rest))),
            Err(error) => Err(format!("{status} and no orderly end: {error}")),
        }
    }

    /// Reads exactly this much.
    pub fn take(&mut self, size: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads until the other side ends.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }

    /// Nothing more comes but an orderly end.
    pub fn assert_ended(&mut self) {
        match self.rest() {
            Ok(rest) => assert!(rest.is_empty(), "more came: {:?}", String::from_utf8_lossy(&rest)),
            Err(error) => panic!("no orderly end: {error}"),
        }
    }

    /// Waits until the other side is gone, whatever comes before; false once patience ends.
    pub fn is_cut(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.reader.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return !is_patience(&error),
            }
        }
    }

    /// Nothing comes for this long, not even an end.
    pub fn assert_quiet(&mut self, time: Duration) {
        self.stream().set_read_timeout(Some(time)).unwrap();
        match self.reader.fill_buf() {
            Ok(bytes) => panic!("not quiet: {:?}", String::from_utf8_lossy(bytes)),
            Err(error) => assert!(is_patience(&error), "{error}"),
        }
        self.stream().set_read_timeout(Some(PATIENCE)).unwrap();
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.reader.by_ref().take(1 << 20).read_until(b'\n', &mut line)?;
        let line = line.strip_suffix(b"\r\n").ok_or_else(|| bad("a line without its CRLF", &line))?;
        if line.contains(&b'\r') {
            return Err(bad("a bare CR", line));
        }
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    fn fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad("no colon", line.as_bytes()))?;
            if name.is_empty() || name.contains([' ', '\t']) {
                return Err(bad("a bad name", line.as_bytes()));
            }
            fields.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
        }
    }

    fn pour(&mut self, end: &End, mut take: impl FnMut(&[u8])) -> io::Result<Vec<(String, String)>> {
        match end {
            End::AtOnce => {}
            End::After(size) => self.pass(*size, &mut take)?,
            End::Close => {
                while let bytes = self.reader.fill_buf()?
                    && !bytes.is_empty()
                {
                    take(bytes);
                    let size = bytes.len();
                    self.reader.consume(size);
                }
            }
            End::Chunked => loop {
                let line = self.line()?;
                if line.is_empty() || !line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(bad("a bad chunk size", line.as_bytes()));
                }
                let size = u64::from_str_radix(&line, 16).map_err(|_| bad("a bad chunk size", line.as_bytes()))?;
                if size == 0 {
                    return self.fields();
                }
                self.pass(size, &mut take)?;
                let end = self.line()?;
                if !end.is_empty() {
                    return Err(bad("more data than the chunk's size", end.as_bytes()));
                }
            },
        }
        Ok(Vec::new())
    }

    fn pass(&mut self, mut left: u64, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
        while left > 0 {
            let bytes = self.reader.fill_buf()?;
            if bytes.is_empty() {
                return Err(bad("closed in the middle of a body", b""));
            }
            let size = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            take(&bytes[..size]);
            self.reader.consume(size);
            left -= size as u64;
        }
        Ok(())
    }
}

fn framing(message: &Message) -> io::Result<End> {
    match (message.all("content-length").as_slice(), message.all("transfer-encoding").as_slice()) {
        ([], []) => Ok(End::Close),
        ([length], []) if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map(End::After).map_err(|_| bad("a bad length", length.as_bytes()))
        }
        ([], ["chunked"]) => Ok(End::Chunked),
        _ => Err(bad("a doubtful framing", format!("{message:?}").as_bytes())),
    }
}

fn bad(what: &str, bytes: &[u8]) -> io::Error {
    let start = &bytes[..bytes.len().min(200)];
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {:?}", String::from_utf8_lossy(start)))
}

fn is_patience(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A whole GET.
pub fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// A whole 200 with a length.
pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A backend that answers each request with its connection's number and the request's target.
pub fn telling() -> Backend {
    Backend::scripted(tell)
}

/// The answers of [`telling`] on a connection. A request that is not strict HTTP/1.1 is a 500 that says why.
pub fn tell(wire: &mut Wire, number: usize) {
    loop {
        match wire.request() {
            Ok(request) => {
                wire.send(ok(&format!("{number} {}", request.target())));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                wire.send(format!("HTTP/1.1 500 Not Strict\r\nContent-Length: 0\r\nX-Error: {error}\r\n\r\n"));
                return;
            }
            Err(_) => return,
        }
    }
}

/// Rules that send everything to one backend, but `/local`, which the gateway answers. One worker, so that connections
/// are reused in a known order.
pub fn rules(backend: &Backend, server: &str, route: &str) -> String {
    format!(
        "[server]\nworkers = 1\n{server}\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[route]]\nname = \"local\"\npath = \"/local\"\nrespond = {{ status = 200, body = \"local\\n\" }}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n{route}\n[dead_letter]\ndirectory = \"dead-letters\"\n",
        backend.address
    )
}

/// A gateway in front of one backend.
pub fn front(backend: &Backend) -> Gateway {
    Gateway::start(&rules(backend, "", ""))
}

/// Lets the only worker of [`rules`] see what has arrived on its other connections: two answers of its own mean that
/// it has polled at least once since.
pub fn settle(gateway: &Gateway) {
    let mut wire = Wire::open(gateway.address());
    for _ in 0..2 {
        assert_eq!(wire.get("/local").text(), "local\n");
    }
}

/// Waits until a fault has been counted this often.
pub fn wait_fault(gateway: &Gateway, side: &str, reason: &str, count: usize) {
    let labels = [format!("side=\"{side}\""), format!("reason=\"{reason}\"")];
    gateway.wait_metric("sluicegate_http1_faults_total", &[&labels[0], &labels[1]], count as f64);
}

/// The faults of one side as they are counted; tells which one is counted next.
#[derive(Default)]
pub struct Faults(BTreeMap<String, String>);

impl Faults {
    /// Waits a while for a reason whose count has changed since the last call; `none` if there is none.
    pub fn next(&mut self, gateway: &Gateway, side: &str) -> String {
        let side = format!("side=\"{side}\"");
        for _ in 0..200 {
            let text = gateway.ask_admin("/metrics").text();
            let series = text.lines().filter_map(|line| line.strip_prefix("sluicegate_http1_faults_total{"));
            for (labels, count) in series.filter_map(|line| line.rsplit_once("} ")) {
                let Some((_, reason)) = labels.split_once("reason=\"") else { continue };
                let reason = reason.split('"').next().unwrap_or_default();
                if labels.contains(&side) && self.0.get(reason).map_or("0", String::as_str) != count {
                    self.0.insert(reason.to_owned(), count.to_owned());
                    return reason.to_owned();
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
        "none".to_owned()
    }
}

/// Waits until an outcome has been counted this often.
pub fn wait_outcome(gateway: &Gateway, outcome: &str, count: usize) {
    gateway.wait_metric("sluicegate_requests_total", &[&format!("outcome=\"{outcome}\"")], count as f64);
}

/// Waits for the only dead letter.
pub fn only_letter(gateway: &Gateway) -> serde_json::Value {
    assert!(eventually(|| !gateway.dead_letters().is_empty()), "no dead letter");
    let mut letters = gateway.dead_letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    letters.remove(0)
}
