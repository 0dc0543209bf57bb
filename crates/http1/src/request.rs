//! The head of a request.

use super::fault::Fault;
use super::fields::{Fields, Piece};
use super::framing::Framing;
use super::head::{HeadLimits, Side, Version, fault_in_lines};
use super::known::{Known, authenticates_connection};
use super::line::{Span, is_token_byte};
use super::scan::{self, NotTarget};
use super::target::{TargetRanges, is_authority};

/// The longest method.
const MAX_METHOD: usize = 32;

/// The content of a request's head, as ranges of its bytes. It is kept and filled again for the next one.
///
/// Its bytes stay with the caller, who hands them to [`on`](Self::on).
#[derive(Debug, Default)]
pub struct RequestHead {
    method: Span,
    kind: Method,
    target: TargetRanges,
    version: Version,
    host: Option<Span>,
    framing: Framing,
    expects_continue: bool,
    authenticates_connection: bool,
    fields: Fields,
}

/// A request's head together with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Request<'b> {
    head: &'b RequestHead,
    bytes: &'b [u8],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Method {
    Get,
    Head,
    Options,
    Post,
    /// Another one that is idempotent (RFC 9110, 9.2.2).
    Idempotent,
    #[default]
    Other,
}

impl RequestHead {
    /// Reads a whole head: exactly the bytes that [`HeadEnd`](super::HeadEnd) found. After a fault it is empty.
    pub fn parse(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<(), Fault> {
        self.clear();
        self.parse_lines(bytes, limits).map_err(|fault| {
            self.clear();
            fault_in_lines(bytes, Side::Request, limits).unwrap_or(fault)
        })
    }

    /// Forgets what was read.
    pub fn clear(&mut self) {
        self.method = Span::default();
        self.kind = Method::default();
        self.target = TargetRanges::default();
        self.version = Version::default();
        self.host = None;
        self.framing = Framing::default();
        self.expects_continue = false;
        self.authenticates_connection = false;
        self.fields.clear();
    }

    /// The head on its bytes, which are those that were parsed.
    pub fn on<'b>(&'b self, bytes: &'b [u8]) -> Request<'b> {
        Request { head: self, bytes }
    }

    /// How the body's end is found.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// The version that the client speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the connection can carry another request (RFC 9112, 9.3).
    pub fn is_persistent(&self) -> bool {
        self.fields.is_persistent(self.version)
    }

    /// Whether the client waits for 100 before it sends the body. Never so in HTTP/1.0.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Whether it authenticates the connection to its server, and not itself alone: by NTLM or Negotiate.
    pub fn authenticates_connection(&self) -> bool {
        self.authenticates_connection
    }

    /// Whether the method is HEAD.
    pub fn is_head(&self) -> bool {
        self.kind == Method::Head
    }

    /// Whether doing it twice is doing it once: GET, HEAD, OPTIONS, TRACE, PUT, DELETE.
    pub fn is_idempotent(&self) -> bool {
        !matches!(self.kind, Method::Post | Method::Other)
    }

    /// Whether there is an [`upgrade`](Request::upgrade).
    pub fn wants_upgrade(&self) -> bool {
        self.version == Version::Http11 && self.fields.wants_upgrade()
    }

    fn parse_lines(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<(), Fault> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(Fault::HeadTooLarge);
        }
        let start = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
        let fields_at = self.parse_request_line(bytes, start)?;
        let Self { host, expects_continue, authenticates_connection: authenticates, version, fields, .. } = self;
        let version = *version;
        fields.parse(bytes, fields_at, limits, |known, value, span| {
            match known {
                Known::Host if host.is_some() => return Err(Fault::HostRepeated),
                Known::Host if !is_authority(value) => return Err(Fault::HostInvalid),
                Known::Host => *host = Some(span),
                Known::Expect if version == Version::Http11 => {
                    if !value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(Fault::Expectation);
                    }
                    *expects_continue = true;
                }
                Known::Authorization | Known::ProxyAuthorization => *authenticates |= authenticates_connection(value),
                _ => {}
            }
            Ok(())
        })?;
        if self.host.is_none() && version == Version::Http11 {
            return Err(Fault::HostMissing);
        }
        self.framing = self.fields.framing.framing(version == Version::Http10)?;
        Ok(())
    }

    /// `method SP request-target SP HTTP-version CRLF`; gives where the next line begins.
    fn parse_request_line(&mut self, bytes: &[u8], start: usize) -> Result<usize, Fault> {
        let line = bytes.get(start..).unwrap_or_default();
        let length = line.iter().position(|byte| !is_token_byte(*byte)).unwrap_or_default();
        if length == 0 || length > MAX_METHOD || line[length] != b' ' {
            return Err(Fault::RequestLine);
        }
        self.method = Span::new(start, start + length);
        self.kind = match &line[..length] {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" | b"DELETE" | b"TRACE" => Method::Idempotent,
            b"OPTIONS" => Method::Options,
            b"CONNECT" => return Err(Fault::Connect),
            _ => Method::Other,
        };
        let target = start + length + 1;
        let target_end = scan::find::<NotTarget>(bytes, target).ok_or(Fault::RequestLine)?;
        match bytes[target_end] {
            b' ' if target_end > target => {}
            b' ' | b'\r' => return Err(Fault::RequestLine),
            _ => return Err(Fault::TargetByte),
        }
        let (version, rest) = parse_version(&bytes[target_end + 1..]).ok_or(Fault::RequestLine)?;
        if !rest.starts_with(b"\r\n") {
            return Err(Fault::RequestLine);
        }
        self.version = version?;
        self.target = TargetRanges::parse(bytes, target, target_end, self.kind == Method::Options)?;
        Ok(bytes.len() - rest.len() + 2)
    }
}

/// `HTTP/x.y` and what follows: `None` if it is no version, a fault if it is another one than ours.
pub(super) fn parse_version(bytes: &[u8]) -> Option<(Result<Version, Fault>, &[u8])> {
    let (version, rest) = bytes.split_first_chunk::<8>()?;
    let version = match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            Err(Fault::Version)
        }
        _ => return None,
    };
    Some((version, rest))
}

/// The text of bytes that were found to be ASCII when they were read.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or("?")
}

impl<'b> Request<'b> {
    /// The method as received; methods are case-sensitive.
    pub fn method(&self) -> &'b str {
        match self.head.kind {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Options => "OPTIONS",
            Method::Idempotent | Method::Other => text(self.head.method.of(self.bytes)),
        }
    }

    /// The path as received, without the query; `/` if the absolute form has none, `*` for the server as a whole. It is
    /// ASCII; each call makes sure of that once more, so what asks often keeps the result or asks for bytes.
    pub fn path(&self) -> &'b str {
        text(self.path_bytes())
    }

    /// [`path`](Self::path), to be written on.
    pub fn path_bytes(&self) -> &'b [u8] {
        self.head.target.path(self.bytes)
    }

    /// The part of the target behind its first `?`.
    pub fn query(&self) -> Option<&'b str> {
        self.query_bytes().map(text)
    }

    /// [`query`](Self::query), to be written on.
    pub fn query_bytes(&self) -> Option<&'b [u8]> {
        self.head.target.query(self.bytes)
    }

    /// `host[:port]`: the target's own, else that of `Host`. `None` without either, which only HTTP/1.0 may do.
    pub fn authority(&self) -> Option<&'b str> {
        self.authority_bytes().map(text)
    }

    /// [`authority`](Self::authority), to be written on.
    pub fn authority_bytes(&self) -> Option<&'b [u8]> {
        let span = self.head.target.authority().or(self.head.host)?;
        Some(span.of(self.bytes))
    }

    /// Name and value of each field line, in order, as received.
    pub fn fields(&self) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + use<'b> {
        self.head.fields.iter(self.bytes).map(|(_, name, value)| (name, value))
    }

    /// Like [`fields`](Self::fields), each with what its name is known as.
    pub fn known_fields(&self) -> impl Iterator<Item = (Known, &'b [u8], &'b [u8])> + use<'b> {
        self.head.fields.iter(self.bytes)
    }

    /// The value of the first field line of a name, which is lower case.
    pub fn field(&self, lower: &[u8]) -> Option<&'b [u8]> {
        self.head.fields.find(self.bytes, lower)
    }

    /// Whether there are [nominated](Self::nominated) names.
    #[inline]
    pub fn has_nominated(&self) -> bool {
        self.head.fields.has_nominated()
    }

    /// The names in `Connection` that are not `close`, `keep-alive` or `upgrade`, in order, as received.
    pub fn nominated(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        self.head.fields.nominated(self.bytes)
    }

    /// The protocol that the client wants to speak instead: the value of the one `Upgrade` line, if `Connection` names
    /// it. Never so in HTTP/1.0 (RFC 9110, 7.8).
    pub fn upgrade(&self) -> Option<&'b [u8]> {
        if self.head.wants_upgrade() { self.head.fields.upgrade(self.bytes) } else { None }
    }

    /// Gives those field lines that `keep` wants, in order, to `put`: neighbours in one piece where they are written in
    /// the usual way.
    pub fn copy_fields(&self, keep: impl FnMut(Known, &'b [u8], &'b [u8]) -> bool, put: impl FnMut(Piece<'b>)) {
        self.head.fields.copy(self.bytes, keep, put);
    }
}
