//! A request that somebody describes, read as the front door would read it.

use std::net::IpAddr;
use std::sync::Arc;

use crate::client::{Origin, RequestContext, TokenDesk, TokenMeans};
use crate::endings::{Cause, Ending, TOO_MANY_REQUESTS};
use crate::headers::passed;
use sluicegate_admission::{BodyReader, Explanation, Routed, Rules};
use sluicegate_http1::{HeadLimits, RequestHead};
use sluicegate_jwt::TokenRules;
use sluicegate_limiter::RefusalReason;
use sluicegate_time::{Tick, WallOffset};

/// The request that somebody asks about.
#[derive(Clone, Debug)]
pub struct Question {
    /// As it would be sent.
    pub method: String,
    /// `http` or `https`.
    pub is_https: bool,
    /// `host[:port]`; field lines may have it in its place.
    pub authority: Option<String>,
    /// The path with its query.
    pub target: String,
    /// Names and values of field lines.
    pub headers: Vec<(String, String)>,
    /// Its body; empty where it has none.
    pub body: Vec<u8>,
    /// The other end of the connection.
    pub peer: IpAddr,
}

impl Question {
    /// Asks admission what it would make of it now.
    ///
    /// # Errors
    /// It is no request: in words.
    pub fn explain<R: Routed>(
        &self,
        rules: &Rules<R>,
        tokens: Option<&Arc<TokenRules>>,
        limits: &HeadLimits,
        now: Tick,
    ) -> Result<Explanation<R>, String> {
        let Self { method, authority, target, headers, .. } = self;
        let texts = [method, target].into_iter().chain(authority).chain(headers.iter().flat_map(|(a, b)| [a, b]));
        if texts.into_iter().any(|text| text.contains(['\r', '\n', '\0'])) {
            return Err("A line break or a zero byte cannot stand in a request.".to_owned());
        }
        let mut bytes = format!("{method} {target} HTTP/1.1\r\n");
        let names_host = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
        let host = authority.as_deref().filter(|_| !names_host).map(|authority| ("host", authority));
        for (name, value) in host.into_iter().chain(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())))
        {
            bytes.extend([name, ": ", value, "\r\n"]);
        }
        bytes.push_str("\r\n");
        let mut head = RequestHead::default();
        head.parse(bytes.as_bytes(), limits).map_err(|fault| fault.to_string())?;
        let scheme = if self.is_https { "https" } else { "http" };
        let origin = Origin { peer: self.peer, scheme, trusts: None, certificate: None };
        let fields: Vec<_> = rules.routes().iter().filter_map(|route| route.rules().body.as_deref()).collect();
        let fields = fields.iter().flat_map(|body| &*body.fields).cloned().collect();
        let request = head.on(bytes.as_bytes());
        let mut reader = BodyReader::new(&fields, passed::field(&request, b"content-type"));
        reader.feed(&self.body);
        let body = reader.finish(true);
        let (desk, offset) = (TokenDesk::default(), WallOffset::of_system());
        let tokens = tokens.map(|rules| TokenMeans { desk: &desk, rules, now: (now, &offset) });
        let context = RequestContext { request, origin, clients: rules.clients(), body: Some(&body), tokens };
        Ok(rules.explain(&context, self.peer, now))
    }
}

/// The status of a limit's refusal, whose own is `of_limit`; `None`: for want of its key.
pub fn status_of_refusal(why: Option<RefusalReason>, of_limit: u16) -> u16 {
    Ending::of(why.map_or(Cause::KeyMissing, Cause::Refused)).status.or(|| of_limit)
}

/// The status of a request that no route takes, or that cannot be understood.
pub fn status_of_no_route(is_malformed: Option<sluicegate_admission::Malformed>) -> u16 {
    Ending::of(is_malformed.map_or(Cause::NoRoute, Cause::Malformed)).status.or(|| TOO_MANY_REQUESTS)
}
