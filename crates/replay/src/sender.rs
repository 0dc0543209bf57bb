//! Sends letters to where they go.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header::{DATE, HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Request, Uri};
use http_body_util::Full;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

use super::request::ReplayRequest;
use super::scheduler::{InFlightReplay, TryOutcome};
use sluicegate_balance::Service;
use sluicegate_config::{ListenerProtocol, Model, ProxyProtocol, ServerAddress, UpstreamSpec};
use sluicegate_dead_letter::{REPLAY_FIELD, ReplayGuard, ReplayOrigin, Replayed};
use sluicegate_http_client::{ClientResponse, Connect, ConnectTarget, Destination, HttpClient, HttpVersion, SendError};
use sluicegate_time::{Clock, Span, Wall};
use sluicegate_tls as tls;
use sluicegate_tls::TlsError;
use sluicegate_transport::Protocol;

/// The most that is read of an answer's body: a server that sends more is not read to the end.
const MAX_ANSWER: usize = 1024 * 1024;

/// Where a replay goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// To the gateway's own front door.
    Gateway(SocketAddr),
    /// To the servers of an upstream.
    Upstream(Arc<UpstreamSpec>),
    /// To another service.
    Url(Uri),
}

/// Why there is nowhere to send to.
#[derive(Debug)]
pub enum TargetError {
    /// The file has no listener that a replay can use.
    NoListener,
    /// It is no URL, and no upstream of the file.
    Unknown(String),
    /// The URL has a user, a password or a query.
    MoreThanAddress,
    /// The servers of the upstream cannot be reached from another process.
    NoServer(String),
    /// TLS cannot be set up.
    Tls(TlsError),
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoListener => f.write_str(
                "no listener of the file speaks plain HTTP on a port of its own without a PROXY header: say where to send to by --to \
                 https://HOST, or --to UPSTREAM",
            ),
            Self::Unknown(name) => {
                write!(
                    f,
                    "--to {name:?} is neither a URL (http://… or https://…) nor the name of an upstream of the file"
                )
            }
            Self::MoreThanAddress => f.write_str(
                "--to takes a URL without a user, a password and a query: requests bring their own, and the URL is kept in \
                 the journal",
            ),
            Self::NoServer(name) => {
                write!(
                    f,
                    "upstream {name:?} has no server that another process can reach: its servers are `echo:` or off"
                )
            }
            Self::Tls(error) => write!(f, "TLS: {error}"),
        }
    }
}

impl std::error::Error for TargetError {}

impl Target {
    /// By the word of the command line; `None`: the front door.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub fn of(to: Option<&str>, model: Option<&Model>) -> Result<Self, TargetError> {
        let Some(to) = to else {
            let listeners = model.into_iter().flat_map(|model| &model.listeners);
            let usable = listeners.filter(|listener| {
                listener.protocol == ListenerProtocol::Http
                    && listener.proxy_protocol == ProxyProtocol::Off
                    && listener.redirect_port().is_none()
                    && listener.decides.is_none()
            });
            let mut addresses =
                usable.filter_map(|listener| listener.address.tcp()).filter(|address| address.port() != 0);
            return addresses.next().map(|address| Self::Gateway(own(address))).ok_or(TargetError::NoListener);
        };
        // A word with `@` may hold a password.
        let unknown = || TargetError::Unknown(if to.contains('@') { "…".to_owned() } else { to.to_owned() });
        if to.contains("://") {
            let uri: Uri = to.parse().map_err(|_| unknown())?;
            let is_web = matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
            let has_more = uri.query().is_some() || uri.authority().is_some_and(|name| name.as_str().contains('@'));
            return match (is_web, has_more) {
                (true, false) => Ok(Self::Url(uri)),
                (true, true) => Err(TargetError::MoreThanAddress),
                (false, _) => Err(unknown()),
            };
        }
        let upstream = model.and_then(|model| model.upstreams.iter().find(|upstream| *upstream.name == *to));
        upstream.cloned().map(Self::Upstream).ok_or_else(unknown)
    }

    /// In words.
    pub fn words(&self) -> String {
        match self {
            Self::Gateway(address) => format!("the gateway at {address}"),
            Self::Upstream(upstream) => format!("the servers of upstream {}", upstream.name),
            Self::Url(uri) => uri.to_string(),
        }
    }

    /// Whether what is sent can be read on its way.
    pub fn is_plain_url(&self) -> bool {
        matches!(self, Self::Url(uri) if uri.scheme_str() == Some("http"))
    }
}

/// The address at which this machine reaches its own listener.
fn own(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Sends letters, one try at a time.
pub struct Sender {
    target: Target,
    scheme: Scheme,
    clients: Vec<HttpClient>,
    turn: AtomicUsize,
    guard: Guard,
    timeout: Duration,
    clock: Clock,
}

/// The parties that vouch for clients at the front door now.
pub type Guard = Box<dyn Fn() -> Option<ReplayGuard> + Send + Sync>;

impl Sender {
    /// One for this target. `guard` vouches for clients at the front door.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub fn new(
        target: Target,
        guard: Option<ReplayGuard>,
        timeout: Duration,
        clock: Clock,
    ) -> Result<Self, TargetError> {
        let (scheme, destinations) = destinations(&target)?;
        let clients = destinations.iter().map(|to| HttpClient::new(to, MAX_ANSWER)).collect::<Result<_, _>>();
        let clients = clients.map_err(TargetError::Tls)?;
        let guard: Guard = Box::new(move || guard.clone());
        Ok(Self { target, scheme, clients, turn: AtomicUsize::new(0), guard, timeout, clock })
    }

    /// One to the gateway that this process is, over connections that are made so. Of an answer's body it keeps `max_answer` bytes.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub fn to_self(
        connect: Connect,
        guard: Guard,
        max_answer: usize,
        timeout: Duration,
        clock: Clock,
    ) -> Result<Self, TargetError> {
        let destination = Destination { way: ConnectTarget::Made(connect), speaks: HttpVersion::Http1, tls: None };
        let clients = vec![HttpClient::new(&destination, max_answer).map_err(TargetError::Tls)?];
        let target = Target::Gateway(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80));
        Ok(Self { target, scheme: Scheme::HTTP, clients, turn: AtomicUsize::new(0), guard, timeout, clock })
    }

    /// One try.
    pub async fn send(&self, sending: &InFlightReplay) -> TryOutcome {
        match self.ask(sending).await {
            Ok(answer) => {
                TryOutcome::Answered(answer.status.as_u16(), retry_after(&answer.headers, self.clock.wall_now()))
            }
            Err(error) => TryOutcome::Failed(error),
        }
    }

    /// The answer to one try.
    pub(super) async fn ask(&self, sending: &InFlightReplay) -> Result<ClientResponse, SendError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (Some(client), Some(request)) = (self.clients.get(turn % self.clients.len().max(1)), self.request(sending))
        else {
            // The letter was looked at before: its parts are valid.
            return Err(SendError::Broken("the request cannot be made".to_owned()));
        };
        client.send(request, self.timeout).await
    }

    fn request(&self, sending: &InFlightReplay) -> Option<Request<Full<bytes::Bytes>>> {
        let InFlightReplay { letter, number } = sending;
        let (authority, target) = match &self.target {
            Target::Url(uri) => {
                let base = uri.path().trim_end_matches('/');
                (uri.authority()?.to_string(), format!("{base}{}", letter.target))
            }
            Target::Gateway(address) => (host_or(letter, &address.to_string()), letter.target.clone()),
            Target::Upstream(_) => (host_or(letter, "localhost"), letter.target.clone()),
        };
        let path: PathAndQuery = target.parse().ok()?;
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(authority.as_str())
            .path_and_query(path)
            .build()
            .ok()?;
        let mut request = Request::builder().method(letter.method.clone()).uri(uri);
        let headers = request.headers_mut()?;
        *headers = letter.headers.clone();
        if !matches!(self.target, Target::Url(_)) {
            // As the client wrote it: the library would leave the port out where it goes without saying.
            headers.insert(HOST, HeaderValue::from_str(&authority).ok()?);
        }
        if !headers.contains_key(USER_AGENT) {
            headers.insert(USER_AGENT, HeaderValue::from_static("sluicegate-replay"));
        }
        if let (Target::Gateway(_), Some(guard), Some(origin)) = (&self.target, (self.guard)(), letter.origin) {
            let replayed = Replayed {
                method: letter.method.as_str().as_bytes(),
                host: authority.as_bytes(),
                target: target.as_bytes(),
            };
            let token = guard.sign(*number, origin, &replayed, self.clock.wall_now());
            headers.insert(HeaderName::from_static(REPLAY_FIELD), HeaderValue::from_str(&token).ok()?);
            if let Some(Ok(id)) = letter.request_id.as_deref().map(HeaderValue::from_str) {
                headers.insert(HeaderName::from_static("x-request-id"), id);
            }
        } else if let (Target::Upstream(_) | Target::Url(_), Some(origin)) = (&self.target, letter.origin) {
            forward_for(headers, origin, letter);
        }
        request.body(Full::new(letter.body.clone())).ok()
    }
}

fn host_or(letter: &ReplayRequest, other: &str) -> String {
    if letter.host.is_empty() { other.to_owned() } else { letter.host.clone() }
}

/// Says for whom it is, as the gateway does; a trusted proxy in front of it has said some of that itself.
fn forward_for(headers: &mut HeaderMap, origin: ReplayOrigin, letter: &ReplayRequest) {
    let client = origin.client.to_string();
    let scheme = if origin.is_https { "https" } else { "http" };
    for (name, value) in [
        ("x-forwarded-for", Some(client.as_str())),
        ("x-forwarded-proto", Some(scheme)),
        ("x-forwarded-host", Some(letter.host.as_str()).filter(|host| !host.is_empty())),
        ("x-request-id", letter.request_id.as_deref()),
    ] {
        let name = HeaderName::from_static(name);
        if let Some(Ok(value)) = value.map(HeaderValue::from_str)
            && !headers.contains_key(&name)
        {
            headers.insert(name, value);
        }
    }
}

fn destinations(target: &Target) -> Result<(Scheme, Vec<Destination>), TargetError> {
    let to = |authority: String, scheme: Scheme| {
        Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build().ok()
    };
    match target {
        Target::Gateway(address) => {
            let way = to(address.to_string(), Scheme::HTTP).map_or(ConnectTarget::AsNamed, ConnectTarget::To);
            Ok((Scheme::HTTP, vec![Destination { way, speaks: HttpVersion::Http1, tls: None }]))
        }
        Target::Url(uri) => {
            let scheme = uri.scheme().cloned().unwrap_or(Scheme::HTTP);
            Ok((scheme, vec![Destination { way: ConnectTarget::AsNamed, speaks: HttpVersion::Either, tls: None }]))
        }
        Target::Upstream(upstream) => {
            let settings = upstream.tls.as_ref().map(tls::upstream).transpose().map_err(TargetError::Tls)?;
            let tls = settings.map(Arc::new);
            let scheme = if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
            let speaks = if upstream.protocol == Protocol::Http2 { HttpVersion::Http2 } else { HttpVersion::Http1 };
            let usable = upstream.servers.iter().filter(|server| server.state == Service::Up);
            let addresses = usable.filter_map(|server| match &server.address {
                ServerAddress::Tcp { .. } => to(server.address.to_string(), scheme.clone()),
                ServerAddress::Echo(_) => None,
            });
            let all: Vec<_> = addresses
                .map(|address| Destination { way: ConnectTarget::To(address), speaks, tls: tls.clone() })
                .collect();
            if all.is_empty() { Err(TargetError::NoServer(upstream.name.to_string())) } else { Ok((scheme, all)) }
        }
    }
}

/// When an answer wants to be asked again (RFC 9110, 10.2.3): seconds, or a date, which is taken by the clock of the answer.
pub(super) fn retry_after(headers: &HeaderMap, now: Wall) -> Option<Span> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let secs = text.parse().unwrap_or(u64::MAX).min(Span::MAX.as_nanos() / 1_000_000_000);
        return Some(Span::from_secs(secs));
    }
    let instant = |text: &str| DateTimeParser::new().parse_timestamp(text).ok().map(Timestamp::as_second);
    let own = headers.get(DATE).and_then(|date| instant(date.to_str().ok()?));
    let from = own.unwrap_or_else(|| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let secs = instant(text)?.saturating_sub(from).max(0);
    Some(Span::from_secs(u64::try_from(secs).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_config as config;
    use sluicegate_config::Certificates;

    fn model(listeners: &str) -> Model {
        let text = format!(
            "{listeners}\n[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:1\", {{ address = \"127.0.0.1:2\", state = \
             \"off\" }}]\n[[upstream]]\nname = \"inner\"\nservers = [\"echo:a\"]\n[[route]]\nname = \"r\"\nupstream = \"app\"\n"
        );
        config::parse(&text, std::path::Path::new("/g.toml"), Certificates::Unread).unwrap().model
    }

    #[test]
    fn a_replay_goes_to_the_first_listener_that_it_can_use() {
        let found = Target::of(
            None,
            Some(&model(
                "[[listener]]\naddress = \"0.0.0.0:1\"\nproxy_protocol = \"required\"\nproxy_protocol_from = [\"10.0.0.0/8\"]\n\
                 [[listener]]\naddress = \"0.0.0.0:0\"\n[[listener]]\naddress = \"0.0.0.0:2\"\n[[listener]]\naddress = \"0.0.0.0:3\"",
            )),
        );
        assert_eq!(found.unwrap(), Target::Gateway("127.0.0.1:2".parse().unwrap()));
        assert!(matches!(Target::of(None, None), Err(TargetError::NoListener)));
    }

    #[test]
    fn a_word_is_a_url_or_an_upstream() {
        let model = model("[[listener]]\naddress = \"[::]:1\"");
        assert_eq!(Target::of(None, Some(&model)).unwrap(), Target::Gateway("[::1]:1".parse().unwrap()));
        assert_eq!(Target::of(Some("inner"), Some(&model)).unwrap(), Target::Upstream(Arc::clone(&model.upstreams[1])));
        let url = Target::of(Some("https://a.example/base/"), None).unwrap();
        assert_eq!(url.words(), "https://a.example/base/");
        for more in ["https://u:s3cret@a.example", "https://a.example/?t=s3cret", "ftp://u:s3cret@a", "u:s3cret@a"] {
            let refused = Target::of(Some(more), Some(&model)).unwrap_err().to_string();
            assert!(!refused.contains("s3cret"), "{refused}");
        }
        for unknown in ["nobody", "ftp://a", "http://", "https:///x"] {
            assert!(matches!(Target::of(Some(unknown), Some(&model)), Err(TargetError::Unknown(_))), "{unknown}");
        }
        let (_, to) = destinations(&Target::Upstream(Arc::clone(&model.upstreams[0]))).unwrap();
        let addresses: Vec<_> = to
            .iter()
            .map(|one| match &one.way {
                ConnectTarget::To(address) => address.to_string(),
                ConnectTarget::AsNamed | ConnectTarget::Made(_) => panic!("it has an address"),
            })
            .collect();
        assert_eq!(addresses, ["http://127.0.0.1:1/"], "the server that is off gets nothing");
        assert!(matches!(
            destinations(&Target::Upstream(Arc::clone(&model.upstreams[1]))),
            Err(TargetError::NoServer(_))
        ));
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let now = Wall::from_nanos(1_767_323_045_000_000_000);
        let read = |fields: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.insert(*name, HeaderValue::from_str(value).unwrap());
            }
            retry_after(&headers, now)
        };
        let at = "Fri, 02 Jan 2026 03:05:00 GMT";
        assert_eq!(read(&[("retry-after", "7")]), Some(Span::from_secs(7)));
        assert_eq!(read(&[("retry-after", at)]), Some(Span::from_secs(55)));
        assert_eq!(
            read(&[("retry-after", at), ("date", "Fri, 02 Jan 2026 03:04:59 GMT")]),
            Some(Span::from_secs(1)),
            "by the server's clock"
        );
        assert_eq!(read(&[("retry-after", "Fri, 02 Jan 1970 03:05:00 GMT")]), Some(Span::ZERO));
        let endless = read(&[("retry-after", "99999999999999999999999")]);
        assert!(endless.is_some_and(|span| span > Span::from_secs(86_400 * 365)));
        for none in ["soon", "", "-1"] {
            assert_eq!(read(&[("retry-after", none)]), None, "{none}");
        }
    }
}
