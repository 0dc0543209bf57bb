//! A request as a question describes it, whatever the form of the question: its parts in, its head out.

use std::borrow::Cow;
use std::net::IpAddr;

use sluicegate_http1::Version;

/// A request, as it is described.
#[derive(Debug, PartialEq, Eq)]
pub struct Described {
    /// Its head, as it would have come here.
    pub head: Vec<u8>,
    /// The peer from which the asking proxy had it.
    pub client: IpAddr,
    /// Whether that was over TLS.
    pub is_https: bool,
}

/// The request line of such a request, its host, and the connection over which it is answered.
#[derive(Clone, Copy, Debug)]
pub struct DescribedLine<'b> {
    /// The method.
    pub method: &'b [u8],
    /// The path and the query.
    pub target: &'b [u8],
    /// `host[:port]`; empty: it has none.
    pub host: &'b [u8],
    /// The version of the question.
    pub version: Version,
    /// Whether the connection goes on after the answer to the question.
    pub is_persistent: bool,
}

impl DescribedLine<'_> {
    /// The head of the request with these fields: names and values.
    ///
    /// # Errors
    /// They make no head: in words.
    pub fn head<'f>(&self, fields: impl Iterator<Item = (&'f [u8], &'f [u8])>) -> Result<Vec<u8>, Cow<'static, str>> {
        let Self { method, target, host, version, is_persistent } = *self;
        if !(target.starts_with(b"/") || target == b"*") {
            return Err("The described target does not begin with a slash.".into());
        }
        if [method, target, host].into_iter().flatten().any(|byte| !byte.is_ascii_graphic() && byte.is_ascii()) {
            return Err("The described method, target or host has a blank in it.".into());
        }
        let mut head = Vec::with_capacity(1024);
        let protocol: &[u8] = if version == Version::Http10 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" };
        let ends: &[u8] = match (version, is_persistent) {
            (Version::Http10, true) => b"connection: keep-alive\r\n",
            (Version::Http10, false) | (Version::Http11, true) => b"",
            (Version::Http11, false) => b"connection: close\r\n",
        };
        for part in [method, b" ", target, protocol, b"host: ", host, b"\r\n", ends] {
            head.extend_from_slice(part);
        }
        for (name, value) in fields {
            for part in [name, b": ", value, b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        Ok(head)
    }
}

/// Whether a field is of the exchange that carries a request, or written by [`DescribedLine`].
pub fn is_of_the_exchange(name: &[u8]) -> bool {
    const NAMES: [&str; 4] = ["host", "content-length", "transfer-encoding", "expect"];
    NAMES.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// Scheme, authority and target of a URL whose path is written. An authority ends at the first slash alone, and has no `?`,
/// `#` or `@`: a client writes it, and could have its path read as another.
pub fn parts_of(url: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let colon = url.windows(3).position(|bytes| bytes == b"://")?;
    let (scheme, rest) = (&url[..colon], &url[colon + 3..]);
    let slash = rest.iter().position(|byte| *byte == b'/')?;
    let (authority, target) = rest.split_at(slash);
    (!authority.iter().any(|byte| matches!(byte, b'?' | b'#' | b'@'))).then_some((scheme, authority, target))
}

/// Whether it is `https`; `None`: nor `http`.
pub fn scheme_of(scheme: &[u8]) -> Option<bool> {
    let is_https = scheme.eq_ignore_ascii_case(b"https");
    (is_https || scheme.eq_ignore_ascii_case(b"http")).then_some(is_https)
}
