use std::fmt;

use super::path_regex::PathRegex;

/// Something of a request, its answer or its limits that a [`Template`](super::Template) may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `client_ip`: the client's address, as limits see it.
    ClientIp,
    /// `peer_ip`: the other end of the connection, which may be a proxy.
    PeerIp,
    /// `request_id`: the id of the request, as the upstream gets it.
    RequestId,
    /// `method`
    Method,
    /// `scheme`: `http` or `https`, as the client spoke to the gateway.
    Scheme,
    /// `host`: the host that was asked for, in lower case, without its port.
    Host,
    /// `authority`: the host that was asked for as it was sent, with its port.
    Authority,
    /// `path`: the path in its one spelling, before it is rewritten.
    Path,
    /// `query`: what follows the first `?`, or nothing.
    Query,
    /// `uri`: the path, and the query with its `?` if there is one.
    Uri,
    /// `route`: the name of the route.
    Route,
    /// `header:NAME`: the first field of that name, in lower case here.
    Header(Box<str>),
    /// `cookie:NAME`: the first cookie of that name.
    Cookie(Box<str>),
    /// `tls_subject`: the subject of the certificate that the client has shown.
    TlsSubject,
    /// `tls_fingerprint`: the SHA-256 fingerprint of that certificate, in lower case hex.
    TlsFingerprint,
    /// `proxy_authority`: the host that a proxy in front says its client has named, by its PROXY header.
    ProxyAuthority,
    /// `proxy_unique_id`: what that proxy calls the connection; in lower case hex, unless all of it can be read.
    ProxyUniqueId,
    /// `plan`: the plan of who asks, where the route has plans.
    Plan,
    /// `limit`: the limit that refused, else the one of which the least remains.
    Limit,
    /// `limit.NAME.state`: how that limit of the route has decided.
    LimitState(Box<str>),
    /// `quota`: how many requests that limit admits.
    Quota,
    /// `remaining`: how many more it would admit now.
    Remaining,
    /// `retry_after`: seconds until a refused request can succeed.
    RetryAfter,
    /// `retry_after_ms`: the same in milliseconds.
    RetryAfterMs,
    /// `status`: the status of the answer.
    Status,
    /// `upstream`: the name of the upstream that answered.
    Upstream,
    /// `server`: the server that answered, as the file spells it.
    Server,
    /// `1`, or a name: a group of the regex, by its number.
    Capture(usize),
}

/// Where a template is used: what can be known there.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'r> {
    /// Fields of a request on its way to a server.
    Request,
    /// Fields of an answer on its way to the client.
    Response,
    /// The answer of a limit that refuses.
    Refusal,
    /// A path or an address to go to, with the groups of a regex, if there is one.
    Target(Option<&'r PathRegex>),
}

/// Variables without a parameter, where they can be used.
const WORDS: [(&str, Variable, KnownFrom); 24] = [
    ("client_ip", Variable::ClientIp, KnownFrom::Always),
    ("peer_ip", Variable::PeerIp, KnownFrom::Always),
    ("request_id", Variable::RequestId, KnownFrom::Always),
    ("method", Variable::Method, KnownFrom::Always),
    ("scheme", Variable::Scheme, KnownFrom::Always),
    ("host", Variable::Host, KnownFrom::Always),
    ("authority", Variable::Authority, KnownFrom::Always),
    ("path", Variable::Path, KnownFrom::Always),
    ("query", Variable::Query, KnownFrom::Always),
    ("uri", Variable::Uri, KnownFrom::Always),
    ("route", Variable::Route, KnownFrom::Always),
    ("tls_subject", Variable::TlsSubject, KnownFrom::Always),
    ("tls_fingerprint", Variable::TlsFingerprint, KnownFrom::Always),
    ("proxy_authority", Variable::ProxyAuthority, KnownFrom::Always),
    ("proxy_unique_id", Variable::ProxyUniqueId, KnownFrom::Always),
    ("plan", Variable::Plan, KnownFrom::Always),
    ("limit", Variable::Limit, KnownFrom::Always),
    ("quota", Variable::Quota, KnownFrom::Always),
    ("remaining", Variable::Remaining, KnownFrom::Always),
    ("upstream", Variable::Upstream, KnownFrom::WithServer),
    ("server", Variable::Server, KnownFrom::WithServer),
    ("status", Variable::Status, KnownFrom::WithAnswer),
    ("retry_after", Variable::RetryAfter, KnownFrom::WithRefusal),
    ("retry_after_ms", Variable::RetryAfterMs, KnownFrom::WithRefusal),
];

/// From when on something is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownFrom {
    Always,
    WithServer,
    WithAnswer,
    WithRefusal,
}

impl KnownFrom {
    fn is_in(self, scope: Scope<'_>) -> bool {
        match (self, scope) {
            (Self::Always, _)
            | (Self::WithServer, Scope::Request | Scope::Response)
            | (Self::WithAnswer, Scope::Response | Scope::Refusal)
            | (Self::WithRefusal, Scope::Refusal) => true,
            (Self::WithServer | Self::WithAnswer | Self::WithRefusal, _) => false,
        }
    }
}

/// Why a name in braces is no variable here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoVariable {
    /// There is none of that name.
    Unknown,
    /// There is, but not here.
    NotHere,
    /// The regex has no such group, or there is no regex.
    NoGroup,
    /// The text after `header:` or `cookie:` is no name.
    Name,
}

impl Variable {
    /// The variable that is called `name`, if it can be known there.
    pub(super) fn parse(name: &str, scope: Scope<'_>) -> Result<Self, NoVariable> {
        if let Scope::Target(regex) = scope
            && let Some(group) = regex.and_then(|regex| regex.group(name))
        {
            return Ok(Self::Capture(group));
        }
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NoVariable::NoGroup);
        }
        let of_limit = name.strip_prefix("limit.").and_then(|rest| rest.strip_suffix(".state"));
        if let Some(limit) = of_limit.filter(|limit| !limit.is_empty()) {
            let is_known = names_limits(scope);
            return if is_known { Ok(Self::LimitState(limit.into())) } else { Err(NoVariable::NotHere) };
        }
        if let Some((source, inner)) = name.split_once(':') {
            let variable = match source {
                "header" => Self::Header(inner.to_ascii_lowercase().into()),
                "cookie" => Self::Cookie(inner.into()),
                _ => return Err(NoVariable::Unknown),
            };
            let is_name = !inner.is_empty() && !inner.bytes().any(|byte| byte == b' ' || byte == b':');
            return if is_name { Ok(variable) } else { Err(NoVariable::Name) };
        }
        match WORDS.iter().find(|(word, ..)| *word == name) {
            Some((_, variable, known)) if known.is_in(scope) => Ok(variable.clone()),
            Some(_) => Err(NoVariable::NotHere),
            None => Err(NoVariable::Unknown),
        }
    }

    /// The names of all that can be known there.
    pub fn names(scope: Scope<'_>) -> impl Iterator<Item = &'static str> {
        let words = WORDS.iter().filter(move |(.., known)| known.is_in(scope)).map(|(word, ..)| *word);
        words.chain(["header:NAME", "cookie:NAME"]).chain(names_limits(scope).then_some("limit.NAME.state"))
    }
}

/// Whether single limits of the route are known there.
fn names_limits(scope: Scope<'_>) -> bool {
    matches!(scope, Scope::Request | Scope::Response)
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::LimitState(limit) => write!(f, "limit.{limit}.state"),
            Self::Capture(group) => write!(f, "{group}"),
            word => f.write_str(WORDS.iter().find(|(_, other, _)| other == word).map_or("", |(word, ..)| word)),
        }
    }
}
