//! The values of the variables in a route's texts, in one exchange.

use std::net::IpAddr;

use super::life::ExchangeRecord;
use crate::client::{Connection, RequestContext};
use crate::headers::passed;
use crate::view::View;
use sluicegate_edit::{Values, Variable};
use sluicegate_http1::Request;
use sluicegate_limiter::{LimitState, QuotaLine, Report};
use sluicegate_proxy_protocol::Header;

/// The facts that are known of an exchange while a message of it is written.
pub struct TemplateContext<'a> {
    /// The request as it came.
    pub request: Request<'a>,
    /// The connection that it came over.
    pub connection: &'a Connection,
    /// Routes, limits, upstreams.
    pub view: &'a View,
    /// The record of it so far.
    pub record: &'a ExchangeRecord,
    /// How the limits stand.
    pub report: &'a Report,
    /// Its id, once it has one.
    pub request_id: &'a [u8],
    /// The status of the answer; 0 as long as there is none.
    pub status: u16,
    /// Seconds until a refused request can succeed.
    pub retry_after_secs: Option<u64>,
}

impl TemplateContext<'_> {
    /// The path in its one spelling.
    pub fn path(&self) -> &[u8] {
        self.record.path.as_deref().map_or_else(|| self.request.path_bytes(), str::as_bytes)
    }

    /// The limit that refused, else the one of which the least remains, with the line of it that is nearest to its end.
    fn limit(&self) -> Option<(&str, &QuotaLine)> {
        let lines = || self.report.lines().iter().filter(|line| !line.shadow);
        let by = self.record.limit.as_ref().map(|limit| limit.place);
        let refusing = lines().filter(|line| by == Some(line.limit)).min_by_key(|line| line.remaining);
        let line = refusing.or_else(|| lines().min_by_key(|line| line.remaining))?;
        Some((self.record.route.as_ref()?.limit(line.limit)?.name(), line))
    }

    /// How the limit of this name has decided, if the route has it.
    fn limit_state(&self, name: &str) -> LimitState {
        let limits = self.record.route.as_ref().map_or(&[][..], |route| &route.limits);
        let limit = limits.iter().find(|limit| **limit.name() == *name);
        limit.map_or(LimitState::Unknown, |limit| self.report.state_of(limit.place))
    }

    fn limit_name(&self) -> Option<&str> {
        // One that lacks its key is refused by a limit that has counted nothing.
        let refusing = self.record.limit.as_ref();
        refusing.map(|limit| &**limit.name()).or_else(|| self.limit().map(|(name, _)| name))
    }

    /// The PROXY header by which a proxy in front has told for whom the connection is, if there was one.
    fn header(&self) -> Option<&Header> {
        self.connection.facts.proxied.as_deref()
    }

    fn plan(&self) -> Option<&str> {
        Some(&self.record.plan_terms()?.name)
    }

    fn upstream(&self) -> Option<(&str, &str)> {
        let upstream = self.record.upstream.as_ref()?;
        Some((&upstream.spec.name, upstream.server_name(self.record.server? as usize)?))
    }

    fn host(&self) -> &str {
        let authority = self.request.authority().unwrap_or_default();
        match authority.rsplit_once(':') {
            // An IPv6 address has colons of its own, and stands in brackets.
            Some((host, port)) if !port.ends_with(']') => host,
            _ => authority,
        }
    }
}

impl Values for TemplateContext<'_> {
    fn write(&self, variable: &Variable, out: &mut Vec<u8>) {
        let certificate = || self.connection.facts.certificate.as_deref();
        let mut number = itoa::Buffer::new();
        let text: &[u8] = match variable {
            Variable::ClientIp => match &self.record.client {
                Some(client) => return write_address(client.addr(), out),
                None => self.connection.peer_text.as_bytes(),
            },
            Variable::PeerIp => self.connection.peer_text.as_bytes(),
            Variable::RequestId => self.request_id,
            Variable::Method => self.request.method().as_bytes(),
            Variable::Scheme => self.connection.scheme().as_bytes(),
            Variable::Host => {
                out.extend(self.host().bytes().map(|byte| byte.to_ascii_lowercase()));
                return;
            }
            Variable::Authority => self.request.authority_bytes().unwrap_or_default(),
            Variable::Path => self.path(),
            Variable::Query => self.request.query_bytes().unwrap_or_default(),
            Variable::Uri => {
                out.extend_from_slice(self.path());
                let Some(query) = self.request.query_bytes() else { return };
                out.push(b'?');
                query
            }
            Variable::Route => self.record.route.as_ref().map_or(b"", |route| route.spec.name.as_bytes()),
            Variable::Header(name) => self.context().field(name).unwrap_or_default(),
            Variable::Cookie(name) => self.cookie(name).unwrap_or_default(),
            Variable::TlsSubject => certificate().and_then(|one| one.subject.as_deref()).unwrap_or_default().as_bytes(),
            Variable::TlsFingerprint => certificate().map_or(b"", |one| one.fingerprint.as_bytes()),
            Variable::ProxyAuthority => self.header().and_then(Header::authority).unwrap_or_default().as_bytes(),
            Variable::ProxyUniqueId => {
                return write_readable(self.header().and_then(Header::unique_id).unwrap_or_default(), out);
            }
            Variable::Plan => self.plan().unwrap_or_default().as_bytes(),
            Variable::Limit => self.limit_name().unwrap_or_default().as_bytes(),
            Variable::LimitState(limit) => self.limit_state(limit).word().as_bytes(),
            Variable::Quota => self.limit().map_or("", |(_, line)| number.format(line.quota)).as_bytes(),
            Variable::Remaining => self.limit().map_or("", |(_, line)| number.format(line.remaining)).as_bytes(),
            Variable::RetryAfter => self.retry_after_secs.map_or("", |secs| number.format(secs)).as_bytes(),
            Variable::RetryAfterMs => {
                self.retry_after_secs.map_or("", |secs| number.format(secs.saturating_mul(1_000))).as_bytes()
            }
            Variable::Status if self.status > 0 => number.format(self.status).as_bytes(),
            Variable::Upstream => self.upstream().map_or(b"", |(upstream, _)| upstream.as_bytes()),
            Variable::Server => self.upstream().map_or(b"", |(_, server)| server.as_bytes()),
            // Groups are known where their regex is.
            Variable::Status | Variable::Capture(_) => b"",
        };
        out.extend_from_slice(text);
    }
}

impl TemplateContext<'_> {
    fn context(&self) -> RequestContext<'_> {
        // No text is made of a body or a claim.
        let (origin, clients) = (self.connection.origin(), self.view.rules.clients());
        RequestContext { request: self.request, origin, clients, body: None, tokens: None }
    }

    fn cookie(&self, name: &str) -> Option<&[u8]> {
        let lines = passed::fields(&self.request).filter(|(field, _)| field.eq_ignore_ascii_case(b"cookie"));
        let mut pairs = lines.flat_map(|(_, line)| line.split(|byte| *byte == b';'));
        pairs.find_map(|pair| {
            let pair = pair.trim_ascii();
            pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
        })
    }
}

/// Bytes of any kind: as they are where they can be read, else in hex.
fn write_readable(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.iter().all(u8::is_ascii_graphic) {
        out.extend_from_slice(bytes);
    } else {
        out.extend(
            bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| b"0123456789abcdef"[usize::from(digit)]),
        );
    }
}

fn write_address(address: IpAddr, out: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing into a vector cannot fail.
    let _ = write!(out, "{address}");
}
