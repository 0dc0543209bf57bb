//! A request as a log has it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use base64ct::{Base64, Encoding as _};

use crate::admission::{BodyFacts, BodyField, JwtClaim, Missing, RequestView};
use crate::time::{Span, Tick};

/// Bytes beyond which a buffer is not used again.
const LARGE: usize = 2_048;

/// A request of a log. Its texts lie in one buffer, which is used again for another.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    /// When it arrived.
    pub(super) at: Tick,
    /// Whether that is known to the second only.
    pub(super) is_to_the_second: bool,
    /// Its sender.
    pub(super) client: IpAddr,
    /// Whether it came by https.
    pub(super) is_https: bool,
    /// The status of its answer; 0 if it is not known.
    pub(super) status: u16,
    /// From its arrival to the head of its answer, without what it waited in queues of limits.
    pub(super) head: Option<Span>,
    /// From its arrival to its end, without the same; `None` if it was not served, or nobody says.
    pub(super) took: Option<Span>,
    text: String,
    method: Range<usize>,
    host: Option<Range<usize>>,
    path: Range<usize>,
    query: Option<Range<usize>>,
    headers: Vec<(Range<usize>, Range<usize>)>,
    used: Vec<(Range<usize>, u64)>,
    body: BodyFacts,
}

/// The address of a client, with a port or without.
pub(super) fn client(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

impl Default for Logged {
    fn default() -> Self {
        Self {
            at: Tick::ZERO,
            is_to_the_second: false,
            client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            is_https: false,
            status: 0,
            head: None,
            took: None,
            text: String::new(),
            method: 0..0,
            host: None,
            path: 0..0,
            query: None,
            headers: Vec::new(),
            used: Vec::new(),
            body: BodyFacts::default(),
        }
    }
}

impl Logged {
    /// Begins a request anew: `GET` with no path.
    pub(super) fn start(&mut self, at: Tick, client: IpAddr) {
        self.text.clear();
        self.headers.clear();
        self.used.clear();
        self.body = BodyFacts::default();
        (self.at, self.is_to_the_second, self.client) = (at, false, client);
        (self.is_https, self.status, self.head, self.took) = (false, 0, None, None);
        (self.host, self.query, self.path) = (None, None, 0..0);
        self.method = self.keep("GET");
    }

    pub(super) fn set_method(&mut self, method: &str) {
        self.method = self.keep(method);
    }

    pub(super) fn set_host(&mut self, host: &str) {
        self.host = Some(self.keep(host));
    }

    /// A path with or without a query, or the whole of a URL, whose host and scheme then hold.
    pub(super) fn set_target(&mut self, target: &str) {
        let target = match target.split_once("://") {
            Some((scheme, rest)) if !scheme.contains(['/', '?']) => {
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                let (host, path) = rest.split_at(end);
                self.is_https = scheme.eq_ignore_ascii_case("https");
                self.set_host(host);
                path
            }
            _ => target,
        };
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        self.path = self.keep(if path.is_empty() { "/" } else { path });
        self.query = query.map(|query| self.keep(query));
    }

    pub(super) fn set_query(&mut self, query: &str) {
        self.query = Some(self.keep(query));
    }

    /// Adds the cost that a limit has counted, as its answer stated it.
    pub(super) fn add_used(&mut self, limit: &str, cost: u64) {
        let limit = self.keep(limit);
        self.used.push((limit, cost));
    }

    /// The cost that a limit has counted, if the log says it.
    pub(super) fn used(&self, limit: &str) -> Option<u64> {
        self.used.iter().find(|(own, _)| self.text.get(own.clone()) == Some(limit)).map(|(_, cost)| *cost)
    }

    pub(super) fn has_path(&self) -> bool {
        !self.path.is_empty()
    }

    /// Its host, unless it has one.
    pub(super) fn default_host(&mut self, host: &str) {
        if self.host.is_none() {
            self.set_host(host);
        }
    }

    /// Adds a header field. That of the host is the host, unless it has one.
    pub(super) fn add_header(&mut self, name: &str, value: &str) {
        let start = self.text.len();
        self.text.push_str(name);
        let name = start..self.text.len();
        if let Some(name) = self.text.get_mut(start..) {
            name.make_ascii_lowercase();
        }
        let value = self.keep(value);
        if self.text.get(name.clone()) == Some("host") && self.host.is_none() {
            self.host = Some(value.clone());
        }
        self.headers.push((name, value));
    }

    /// Adds a part of a key by its source, where the request does not have it: of the gateway's own access log, a mark.
    pub(super) fn add_key_part(&mut self, source: &str, value: &str) {
        match source.split_once(':') {
            Some(("header", name)) if self.header(name).is_none() => self.add_header(name, value),
            Some(("json" | "form", _)) => {
                if let Some(field) = BodyField::parse(source) {
                    self.body.add(field, value);
                }
            }
            Some(("cookie", name)) => self.add_header("cookie", &format!("{name}={value}")),
            Some(("query", name)) => {
                let has = |query: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
                let query = self.query().unwrap_or_default();
                if !has(query) {
                    let query = format!("{query}&{name}={value}");
                    self.set_query(query.trim_start_matches('&'));
                }
            }
            Some(("basic", _)) if self.header("authorization").is_none() => {
                self.add_header(
                    "authorization",
                    &format!("Basic {}", Base64::encode_string(format!("{value}:").as_bytes())),
                );
            }
            // A name that no header can have.
            Some(("tls" | "jwt" | "jwt-unverified", _)) => self.add_header(source, value),
            _ => {}
        }
    }

    /// Bytes that it holds, about.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.headers.len() * 32
    }

    /// Gives room back that hardly any other needs.
    pub(super) fn trim(&mut self) {
        if self.text.capacity() > LARGE {
            self.text = String::new();
        }
        if self.headers.capacity() > LARGE / 32 {
            self.headers = Vec::new();
        }
    }

    fn keep(&mut self, text: &str) -> Range<usize> {
        let start = self.text.len();
        self.text.push_str(text);
        start..self.text.len()
    }

    fn at(&self, range: &Range<usize>) -> &str {
        self.text.get(range.clone()).unwrap_or_default()
    }
}

impl RequestView for Logged {
    fn body(&self) -> Option<&BodyFacts> {
        Some(&self.body)
    }

    fn method(&self) -> &str {
        self.at(&self.method)
    }

    fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }

    fn authority(&self) -> Option<&str> {
        self.host.as_ref().map(|host| self.at(host))
    }

    fn path(&self) -> &str {
        self.at(&self.path)
    }

    fn query(&self) -> Option<&str> {
        self.query.as_ref().map(|query| self.at(query))
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(own, _)| self.at(own) == name);
        found.map(|(_, value)| self.at(value).as_bytes())
    }

    fn tls_subject(&self) -> Option<&str> {
        std::str::from_utf8(self.header("tls:subject")?).ok()
    }

    fn tls_fingerprint(&self) -> Option<&str> {
        std::str::from_utf8(self.header("tls:fingerprint")?).ok()
    }

    fn jwt_claim(&self, claim: &JwtClaim, _: u64, visit: &mut dyn FnMut(&str)) -> Result<(), Missing> {
        // Names are kept in lower case.
        let found = self.headers.iter().find(|(own, _)| self.at(own).eq_ignore_ascii_case(claim.source()));
        found.map(|(_, value)| visit(self.at(value))).ok_or(Missing::Absent)
    }

    fn for_each_header<'v>(&'v self, name: &str, visit: &mut dyn FnMut(&'v [u8])) {
        for (_, value) in self.headers.iter().filter(|(own, _)| self.at(own) == name) {
            visit(self.at(value).as_bytes());
        }
    }
}
