//! Asks the admin interface of the gateway that runs.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use super::banner::reachable;
use super::safe::Safe;
use crate::config::{ListenAddress, Model};
use crate::tls::{self, Chain, Identity, PrivateKey, Roots};

/// How long the gateway may take for each step.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// The most that is read of an answer.
const MAX_ANSWER: u64 = 16 << 20;
/// The longest file of a token.
const MAX_TOKEN_BYTES: u64 = 4 << 10;
/// The token, where no file is named.
const TOKEN: &str = "SLUICEGATE_TOKEN";

/// How the gateway that runs is found, and who asks it.
#[derive(Debug, Default, clap::Args)]
pub struct AdminArguments {
    /// The admin interface of the gateway that runs, in place of that of the file: http://HOST:PORT, https://NAME:PORT, or the
    /// path of its Unix socket.
    #[arg(long, value_name = "URL|SOCKET", global = true)]
    admin: Option<String>,
    /// A file with the token, in one line; without it, the variable `SLUICEGATE_TOKEN`.
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// https: the authorities of the gateway's certificate, in place of the machine's.
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
    /// https: the certificate of a client of [admin].
    #[arg(long, value_name = "FILE", requires = "key", global = true)]
    cert: Option<PathBuf>,
    /// https: its key.
    #[arg(long, value_name = "FILE", requires = "cert", global = true)]
    key: Option<PathBuf>,
}

/// The gateway that runs, as it is asked.
pub struct Gateway {
    place: AdminTarget,
    token: Option<String>,
    /// As messages name it.
    shown: String,
}

enum AdminTarget {
    Tcp(String),
    Tls(String, ServerName<'static>, Arc<ClientConfig>),
    Unix(PathBuf),
}

/// Why there is no answer that could be used.
pub enum AdminFailure {
    /// Nobody is there.
    Unheard(String),
    /// Whoever is there has been asked, and nothing is known of the answer.
    Lost(String),
    /// An answer of another status than 2xx: what it says.
    Answered(String),
}

/// An answer of status 2xx.
pub struct Answered {
    /// Its body.
    pub body: String,
    /// Its `ETag`.
    pub etag: Option<String>,
}

/// A request.
pub struct Request<'r> {
    /// Its method.
    pub method: &'r str,
    /// Its target. It may have a secret in it, and is not repeated.
    pub target: &'r str,
    /// Its body, if it has one: the media type, and the text.
    pub body: Option<(&'r str, &'r str)>,
    /// Further header fields.
    pub fields: &'r [(&'r str, &'r str)],
}

impl<'r> Request<'r> {
    /// One that reads.
    pub const fn get(target: &'r str) -> Self {
        Self { method: "GET", target, body: None, fields: &[] }
    }
}

trait AdminConnection: Read + Write {}
impl<T: Read + Write> AdminConnection for T {}

impl Gateway {
    /// Where it is asked: as the arguments say, else where the file says.
    pub fn of(
        arguments: &AdminArguments,
        load: impl FnOnce() -> Result<Model, String>,
        file: &Path,
    ) -> Result<Self, String> {
        let token = token(arguments.token_file.as_deref())?;
        if let Some(given) = &arguments.admin {
            return Ok(Self { place: arguments.place(given)?, token, shown: given.clone() });
        }
        let missing = || {
            format!(
                "{}: the gateway that runs is asked over its admin interface: add [admin] with an address",
                file.display()
            )
        };
        let hint = |error| {
            format!(
                "{error}\nThe gateway that runs can be asked all the same: say where its admin is, --admin URL|SOCKET"
            )
        };
        let admin = load().map_err(hint)?.admin.ok_or_else(missing)?;
        let shown = admin.address.to_string();
        let place = match admin.address {
            ListenAddress::Unix(path) => AdminTarget::Unix(path),
            ListenAddress::Tcp(address) if admin.tls.is_some() => {
                return Err(format!(
                    "admin {address} speaks TLS: say by which name, --admin https://NAME:{}",
                    address.port()
                ));
            }
            ListenAddress::Tcp(address) => AdminTarget::Tcp(reachable(address).to_string()),
        };
        Ok(Self { place, token, shown })
    }

    /// As messages name it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The body of the answer of status 2xx, in words why there is none.
    pub fn ask(&self, request: &Request<'_>) -> Result<String, String> {
        self.ask_whole(request).map(|answered| answered.body)
    }

    /// The same with the tag of the answer.
    pub fn ask_whole(&self, request: &Request<'_>) -> Result<Answered, String> {
        self.whole(request, PATIENCE).map_err(|failure| match failure {
            AdminFailure::Unheard(error) | AdminFailure::Lost(error) => format!("{}: {error}", self.shown),
            AdminFailure::Answered(text) => text,
        })
    }

    /// All pages of a list.
    pub fn pages(&self, target: &str, list: &str) -> Result<Value, String> {
        let mut shown: Value = self.read(target)?;
        while let Some(cursor) = shown["next"].as_str().map(str::to_owned) {
            let mut page = self.read(&format!("{target}?cursor={cursor}"))?;
            let (Some(all), Some(more)) = (shown[list].as_array_mut(), page[list].as_array_mut()) else {
                // A part of a list is none: whoever goes by it would take the rest for gone.
                return Err(format!("{}: a page without {list}", self.shown));
            };
            if more.is_empty() {
                break;
            }
            all.append(more);
            shown["next"] = page["next"].take();
        }
        Ok(shown)
    }

    fn read(&self, target: &str) -> Result<Value, String> {
        let body = self.ask(&Request::get(target))?;
        serde_json::from_str(&body).map_err(|error| format!("{}: an answer that cannot be read: {error}", self.shown))
    }

    /// The same of one that may take as long as that.
    pub fn answer(&self, request: &Request<'_>, patience: Duration) -> Result<String, AdminFailure> {
        self.whole(request, patience).map(|answered| answered.body)
    }

    fn whole(&self, request: &Request<'_>, patience: Duration) -> Result<Answered, AdminFailure> {
        let mut connection = self.connect(patience).map_err(|error| AdminFailure::Unheard(error.to_string()))?;
        let text = self.head(request);
        let mut asked = || -> std::io::Result<String> {
            connection.write_all(text.as_bytes())?;
            let mut answer = String::new();
            (&mut connection).take(MAX_ANSWER).read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = asked().map_err(|error| AdminFailure::Lost(error.to_string()))?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if is_torn(head, body) => {
                Err(AdminFailure::Lost(format!("its answer broke off after {} bytes", body.len())))
            }
            Some((head, body)) if head.starts_with("HTTP/1.1 2") => {
                Ok(Answered { body: body.to_owned(), etag: field(head, "etag").map(str::to_owned) })
            }
            Some((head, body)) => Err(AdminFailure::Answered(told(head, body))),
            None => Err(AdminFailure::Lost("it answers nothing".to_owned())),
        }
    }

    fn connect(&self, patience: Duration) -> std::io::Result<Box<dyn AdminConnection>> {
        match &self.place {
            AdminTarget::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(Box::new(stream))
            }
            AdminTarget::Tcp(address) => Ok(Box::new(connect(address, patience)?)),
            AdminTarget::Tls(address, name, config) => {
                let session = ClientConnection::new(Arc::clone(config), name.clone()).map_err(std::io::Error::other)?;
                Ok(Box::new(StreamOwned::new(session, connect(address, patience)?)))
            }
        }
    }

    /// The whole request. Writing into a String cannot fail.
    fn head(&self, request: &Request<'_>) -> String {
        let host = match &self.place {
            AdminTarget::Unix(_) => "localhost",
            AdminTarget::Tcp(address) | AdminTarget::Tls(address, _, _) => address,
        };
        let mut text =
            format!("{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n", request.method, request.target);
        if let Some(token) = &self.token {
            let _ = write!(text, "Authorization: Bearer {token}\r\n");
        }
        for (name, value) in request.fields {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let body = request.body.map_or("", |(media, body)| {
            let _ = write!(text, "Content-Type: {media}\r\nContent-Length: {}\r\n", body.len());
            body
        });
        text + "\r\n" + body
    }
}

impl AdminArguments {
    /// Whether one of them is there.
    pub fn are_given(&self) -> bool {
        self.admin.is_some()
    }

    fn place(&self, given: &str) -> Result<AdminTarget, String> {
        if let Some(path) = given.strip_prefix("unix:") {
            return Ok(AdminTarget::Unix(path.trim_start_matches("//").into()));
        }
        if given.starts_with('/') || given.starts_with("./") {
            return Ok(AdminTarget::Unix(given.into()));
        }
        let host = |host: &str| host.trim_end_matches('/').to_owned();
        let Some(rest) = given.strip_prefix("https://") else {
            let address = host(given.strip_prefix("http://").unwrap_or(given));
            if address.to_socket_addrs().is_err() {
                return Err(format!(
                    "--admin {given}: write http://HOST:PORT, https://NAME:PORT, or the path of a socket"
                ));
            }
            return Ok(AdminTarget::Tcp(address));
        };
        let address = host(rest);
        let name = address.rsplit_once(':').map(|(name, _)| name.trim_matches(['[', ']']).to_owned());
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let name = name.ok_or_else(|| format!("--admin {given}: write https://NAME:PORT"))?;
        Ok(AdminTarget::Tls(address, name, Arc::new(self.tls()?)))
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        let roots = match &self.ca {
            Some(file) => Roots::read(file),
            None => Roots::system(),
        };
        let roots = roots.map_err(|error| error.to_string())?;
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let (chain, key) = (Chain::read(cert), PrivateKey::read(key));
                let identity = chain.and_then(|chain| Identity::new(chain, &key?));
                Some(identity.map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        tls::by_roots(&roots, identity.as_ref()).map_err(|error| error.to_string())
    }
}

/// A field of a head.
fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Whether less of a body came than was announced.
fn is_torn(head: &str, body: &str) -> bool {
    let announced = field(head, "content-length").and_then(|length| length.parse::<usize>().ok());
    announced.is_some_and(|length| body.len() < length)
}

fn connect(address: &str, patience: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("no such host");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The token of a file, or of the environment.
fn token(file: Option<&Path>) -> Result<Option<String>, String> {
    let text = match file {
        Some(file) => {
            let mut text = String::new();
            let opened = fs::File::open(file);
            let read = opened.and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_string(&mut text));
            read.map_err(|error| format!("--token-file {}: {error}", file.display()))?;
            text
        }
        None => env::var(TOKEN).unwrap_or_default(),
    };
    let token = text.trim();
    if token.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err("the token is none: it is one word, as `sluicegate token` prints it".to_owned());
    }
    Ok((!token.is_empty()).then(|| token.to_owned()))
}

/// The words of an answer that is no success: those of a problem, or the text.
fn told(head: &str, body: &str) -> String {
    let problem = serde_json::from_str::<Value>(body).ok();
    let detail = problem.as_ref().and_then(|problem| problem["detail"].as_str());
    match detail {
        Some(detail) if head.starts_with("HTTP/1.1 401") => {
            format!("{detail} The commands take it of --token-file or {TOKEN}.")
        }
        Some(detail) => {
            let findings = problem.as_ref().map(|problem| findings(&problem["findings"])).unwrap_or_default();
            let end = if findings.is_empty() { "" } else { "\n" };
            format!("{detail}{end}{}", findings.trim_end())
        }
        None if body.is_empty() => format!("it answered {}", head.lines().next().unwrap_or("nothing")),
        None => body.to_owned(),
    }
}

/// Mistakes and warnings of a text, a line each with its place, and the remedy below.
pub fn findings(all: &Value) -> String {
    let mut out = String::new();
    for finding in all.as_array().map(Vec::as_slice).unwrap_or_default() {
        let file = finding["file"].as_str().map(|file| format!("{}: ", Safe(file))).unwrap_or_default();
        let word = |name: &str| Safe(finding[name].as_str().unwrap_or("-")).to_string();
        let line = finding["line"].as_u64().map(|line| format!("line {line}: ")).unwrap_or_default();
        let _ = writeln!(out, "{}: {file}{line}{}", word("severity"), word("message"));
        if let Some(help) = finding["help"].as_str() {
            let _ = writeln!(out, "  help: {}", Safe(help));
        }
    }
    out
}

/// As one segment of a path (RFC 3986, 2.3).
pub fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}
