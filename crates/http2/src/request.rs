//! A request's fields as the head of HTTP/1.1 that means the same (RFC 9113, 8.1 to 8.3).
//!
//! A request that HTTP/2 calls malformed is found here, and with it whatever would mean something else once it stands
//! in a line of text. A request that HTTP/1 calls malformed besides is found by its codec, which reads the head.

use std::ops::Range;

use sluicegate_http1::{Fault, Known, has_control, is_name, is_token_byte};

/// The bytes that each field counts beside its name and value (RFC 9113, 6.5.2).
pub const FIELD_OVERHEAD: usize = 32;

/// Room that one request leaves to the next of its connection, in bytes of each buffer.
const KEPT_ROOM: usize = 1_024;

/// The kind of request, as far as the answer depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestKind {
    /// HEAD: no body follows.
    Head,
    /// Extended CONNECT: a tunnel may follow (RFC 8441).
    Connect,
    /// Any other.
    #[default]
    Other,
}

/// The facts known of a request beside its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meaning {
    pub(super) kind: RequestKind,
    /// The fault that it is refused for.
    pub(super) fault: Option<Fault>,
    /// Whether that makes it malformed in HTTP/2, so that its stream is reset behind the answer.
    pub(super) is_malformed: bool,
    /// The value of `content-length`.
    pub(super) length: Option<u64>,
    /// Whether its body is told in chunks.
    pub(super) is_chunked: bool,
}

/// Reads one request, field by field; used again for the next.
#[derive(Debug, Default)]
pub(super) struct RequestReader {
    max_list: usize,
    list: usize,
    /// Values of pseudo-header fields, one behind the other.
    text: Vec<u8>,
    method: Option<Range<usize>>,
    scheme: Option<Range<usize>>,
    authority: Option<Range<usize>>,
    path: Option<Range<usize>>,
    protocol: Option<Range<usize>>,
    /// Whether a field has come that is none.
    has_fields: bool,
    cookie: Vec<u8>,
    length: Option<u64>,
    fault: Option<Fault>,
}

impl RequestReader {
    /// One for requests of at most so many bytes of fields.
    pub(super) fn new(max_list: usize) -> Self {
        Self { max_list, ..Self::default() }
    }

    /// Begins with another request.
    pub(super) fn reset(&mut self) {
        self.list = 0;
        self.text.clear();
        self.method = None;
        self.scheme = None;
        self.authority = None;
        self.path = None;
        self.protocol = None;
        self.has_fields = false;
        self.cookie.clear();
        self.length = None;
        self.fault = None;
    }

    /// Takes the next field, and writes what it is in HTTP/1.1.
    pub(super) fn field(&mut self, name: &[u8], value: &[u8], head: &mut Vec<u8>) {
        self.list = self.list.saturating_add(name.len() + value.len() + FIELD_OVERHEAD);
        if self.fault.is_some() {
            return;
        }
        if self.list > self.max_list {
            self.fault = Some(Fault::HeadTooLarge);
            return;
        }
        let read = if name.first() == Some(&b':') {
            self.pseudo(name, value)
        } else {
            if !self.has_fields {
                self.has_fields = true;
                self.begin(head);
            }
            self.regular(name, value, head)
        };
        if let Err(fault) = read {
            self.fault = Some(fault);
        }
    }

    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            b":protocol" => &mut self.protocol,
            _ => return Err(Fault::PseudoField),
        };
        if self.has_fields || place.is_some() {
            return Err(Fault::PseudoField);
        }
        let start = self.text.len();
        self.text.extend_from_slice(value);
        *place = Some(start..self.text.len());
        let is_visible = |byte: &u8| matches!(byte, 0x21..=0x7E);
        match name {
            b":method" if value.is_empty() || !value.iter().all(|byte| is_token_byte(*byte)) => Err(Fault::RequestLine),
            // The scheme decides what the path means, and we know two.
            b":scheme" if !matches!(value, b"http" | b"https") => Err(Fault::PseudoField),
            b":authority" if value.is_empty() || !value.iter().all(is_visible) => Err(Fault::HostInvalid),
            // Any bytes could be in it. Another protocol could not be spoken to, but a request without it would be
            // understood.
            b":protocol" if !value.eq_ignore_ascii_case(b"websocket") => Err(Fault::Connect),
            b":path" if value.is_empty() => Err(Fault::PseudoField),
            b":path" if !value.iter().all(is_visible) => Err(Fault::TargetByte),
            // In a path nobody sends it as it is.
            b":path" if value.iter().take_while(|byte| **byte != b'?').any(|byte| *byte == b'`') => {
                Err(Fault::TargetByte)
            }
            _ => Ok(()),
        }
    }

    /// Writes the request line and `Host`, once all pseudo-header fields are known.
    fn begin(&mut self, head: &mut Vec<u8>) {
        if let Err(fault) = self.check_pseudo() {
            self.fault = Some(fault);
            return;
        }
        let text = |range: &Option<Range<usize>>| self.text.get(range.clone().unwrap_or_default()).unwrap_or_default();
        let method = if self.protocol.is_some() { b"GET" } else { text(&self.method) };
        // The target of a plain CONNECT is an authority.
        let target = if self.path.is_some() { text(&self.path) } else { text(&self.authority) };
        head.reserve(method.len() + target.len() + text(&self.authority).len() + 24);
        for part in [method, b" ", target, b" HTTP/1.1\r\n"] {
            head.extend_from_slice(part);
        }
        if self.authority.is_some() {
            put_line(head, b"host", text(&self.authority));
        }
    }

    fn check_pseudo(&self) -> Result<(), Fault> {
        let method = self.text.get(self.method.clone().ok_or(Fault::PseudoField)?).unwrap_or_default();
        let is_connect = method == b"CONNECT";
        let is_whole = self.scheme.is_some() && self.path.is_some();
        match (&self.protocol, is_connect) {
            (Some(_), true) if is_whole && self.authority.is_some() => {}
            (Some(_), _) => return Err(Fault::PseudoField),
            // RFC 9113, 8.5.
            (None, true) if self.scheme.is_some() || self.path.is_some() || self.authority.is_none() => {
                return Err(Fault::PseudoField);
            }
            (None, true) => return Ok(()),
            (None, false) if !is_whole => return Err(Fault::PseudoField),
            (None, false) => {}
        }
        match self.text.get(self.path.clone().unwrap_or_default()).unwrap_or_default() {
            [b'/', ..] => Ok(()),
            b"*" if method == b"OPTIONS" => Ok(()),
            _ => Err(Fault::TargetForm),
        }
    }

    fn regular(&mut self, name: &[u8], value: &[u8], head: &mut Vec<u8>) -> Result<(), Fault> {
        check_field(name, value)?;
        match Known::of(name) {
            Known::Host => {
                if value.is_empty() {
                    // Allowed in HTTP/1 only (RFC 9113, 8.3.1).
                    return Err(Fault::HostInvalid);
                }
                let authority = self.authority.clone().and_then(|range| self.text.get(range));
                // It may say the same once more; another one makes two, which no request may have.
                if authority.is_some_and(|authority| authority.eq_ignore_ascii_case(value)) {
                    return Ok(());
                }
            }
            Known::ContentLength => {
                // One that is no number, and a second one, are for the codec of HTTP/1 to refuse.
                self.length = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
            }
            // There is none in HTTP/2 (RFC 8441, 5), and the tunnel gets one of ours.
            _ if self.protocol.is_some() && is_name(name, b"sec-websocket-key") => return Ok(()),
            _ if is_name(name, b"cookie") => {
                // What was cut for compression is one field again (RFC 9113, 8.2.3).
                if !self.cookie.is_empty() && !value.is_empty() {
                    self.cookie.extend_from_slice(b"; ");
                }
                self.cookie.extend_from_slice(value);
                return Ok(());
            }
            _ => {}
        }
        put_line(head, name, value);
        Ok(())
    }

    /// Bytes of memory that it holds.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.text.capacity() + self.cookie.capacity()
    }

    /// Ends the head, but for what only the task that serves it can write: see [`Meaning::is_chunked`] and
    /// [`Kind::Connect`]. `ends`: no body follows.
    pub(super) fn end(&mut self, ends: bool, head: &mut Vec<u8>) -> Meaning {
        if !self.has_fields && self.fault.is_none() {
            self.begin(head);
        }
        if !self.cookie.is_empty() {
            put_line(head, b"cookie", &self.cookie);
            self.cookie.clear();
            self.cookie.shrink_to(KEPT_ROOM);
        }
        let is_of = |method: &[u8]| self.method.clone().and_then(|range| self.text.get(range)) == Some(method);
        let kind = match () {
            () if self.protocol.is_some() => RequestKind::Connect,
            () if is_of(b"HEAD") => RequestKind::Head,
            () => RequestKind::Other,
        };
        if ends && self.fault.is_none() && self.length.is_some_and(|length| length > 0) {
            self.fault = Some(Fault::ContentLength);
        }
        let is_chunked = !ends && self.length.is_none() && kind != RequestKind::Connect;
        let is_malformed = !matches!(self.fault, None | Some(Fault::HeadTooLarge | Fault::Connect));
        // A tunnel has no length: what is said of one is for the codec to read, and not to be counted here.
        let length = self.length.filter(|_| kind != RequestKind::Connect);
        self.text.clear();
        self.text.shrink_to(KEPT_ROOM);
        Meaning { kind, fault: self.fault, is_malformed, length, is_chunked }
    }
}

/// Reads trailers, field by field.
#[derive(Debug)]
pub(super) struct TrailerReader<'l> {
    left: usize,
    lines: &'l mut Vec<u8>,
    is_malformed: bool,
}

impl<'l> TrailerReader<'l> {
    /// For at most so many bytes of fields, which are written to `lines`.
    pub(super) fn new(max_list: usize, lines: &'l mut Vec<u8>) -> Self {
        Self { left: max_list, lines, is_malformed: false }
    }

    /// Takes the next field.
    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        let Some(left) = self.left.checked_sub(size) else {
            self.is_malformed = true;
            self.left = 0;
            return;
        };
        self.left = left;
        // A pseudo-header field has no place there either: its name is no token.
        if check_field(name, value).is_err() {
            self.is_malformed = true;
        }
        if !self.is_malformed {
            put_line(self.lines, name, value);
        }
    }

    /// Whether they may not be passed on.
    pub(super) fn is_malformed(&self) -> bool {
        self.is_malformed
    }
}

/// Refuses fields that RFC 9113, 8.2, forbids.
fn check_field(name: &[u8], value: &[u8]) -> Result<(), Fault> {
    if name.is_empty() || !name.iter().all(|byte| is_token_byte(*byte) && !byte.is_ascii_uppercase()) {
        return Err(Fault::FieldName);
    }
    let has_outer_blank = [value.first(), value.last()].iter().any(|byte| matches!(byte, Some(b' ' | b'\t')));
    if has_outer_blank || has_control(value) {
        return Err(Fault::FieldValue);
    }
    match Known::of(name) {
        Known::Connection | Known::KeepAlive | Known::ProxyConnection | Known::TransferEncoding | Known::Upgrade => {
            Err(Fault::ConnectionField)
        }
        Known::Te if !value.eq_ignore_ascii_case(b"trailers") => Err(Fault::ConnectionField),
        _ => Ok(()),
    }
}

fn put_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// `application/grpc`, with `+` and a format or with parameters; but for gRPC-Web, which has another form of answers.
pub fn is_type_of_grpc(kind: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((start, rest)) = kind.split_at_checked(GRPC.len()) else { return false };
    start.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":path", "/a?b"), (":authority", "h:1")];

    fn read(fields: &[(&str, &str)], ends: bool) -> (String, Meaning) {
        let mut reader = RequestReader::new(1000);
        // One that was used before leaves nothing behind.
        reader.field(b":method", b"HEAD", &mut Vec::new());
        reader.field(b"cookie", b"old=1", &mut Vec::new());
        reader.reset();
        let mut head = Vec::new();
        for (name, value) in fields {
            reader.field(name.as_bytes(), value.as_bytes(), &mut head);
        }
        let meaning = reader.end(ends, &mut head);
        (String::from_utf8(head).unwrap(), meaning)
    }

    fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        [&GOOD[..], more].concat()
    }

    #[test]
    fn a_request_is_the_head_that_means_the_same() {
        let (head, meaning) =
            read(&with(&[("x-a", "1"), ("cookie", "a=1"), ("te", "trailers"), ("cookie", "b=2")]), true);
        assert_eq!(head, "GET /a?b HTTP/1.1\r\nhost: h:1\r\nx-a: 1\r\nte: trailers\r\ncookie: a=1; b=2\r\n");
        assert_eq!(meaning, Meaning::default());
        let (head, meaning) = read(&GOOD, false);
        assert_eq!(head, "GET /a?b HTTP/1.1\r\nhost: h:1\r\n");
        assert_eq!(meaning, Meaning { is_chunked: true, ..Meaning::default() });
        let (_, meaning) = read(&with(&[("content-length", "12")]), false);
        assert_eq!(meaning, Meaning { length: Some(12), ..Meaning::default() });
        let head_request = [(":method", "HEAD"), (":scheme", "https"), (":path", "/"), (":authority", "h")];
        assert_eq!(read(&head_request, true).1.kind, RequestKind::Head);
        let options = [(":method", "OPTIONS"), (":scheme", "https"), (":path", "*"), ("host", "h")];
        assert_eq!(read(&options, true), ("OPTIONS * HTTP/1.1\r\nhost: h\r\n".to_owned(), Meaning::default()));
    }

    #[test]
    fn an_extended_connect_is_a_get_and_a_plain_one_has_an_authority_for_target() {
        let tunnel = [
            (":method", "CONNECT"),
            (":protocol", "WebSocket"),
            (":scheme", "https"),
            (":path", "/chat"),
            (":authority", "h"),
            ("sec-websocket-key", "x"),
        ];
        let (head, meaning) = read(&tunnel, false);
        assert_eq!(head, "GET /chat HTTP/1.1\r\nhost: h\r\n");
        assert_eq!(meaning, Meaning { kind: RequestKind::Connect, ..Meaning::default() });
        let (head, meaning) = read(&[(":method", "CONNECT"), (":authority", "h:80")], false);
        assert_eq!((head.as_str(), meaning.fault), ("CONNECT h:80 HTTP/1.1\r\nhost: h:80\r\n", None));
        let (_, meaning) = read(&[&tunnel[..1], &[(":protocol", "chat")], &tunnel[2..]].concat(), false);
        assert_eq!((meaning.fault, meaning.is_malformed), (Some(Fault::Connect), false));
    }

    #[test]
    fn the_host_may_be_said_twice_and_not_differently() {
        let (head, meaning) = read(&with(&[("host", "H:1")]), true);
        assert_eq!((head.as_str(), meaning.fault), ("GET /a?b HTTP/1.1\r\nhost: h:1\r\n", None));
        // Two lines, which the codec of HTTP/1 refuses.
        assert_eq!(read(&with(&[("host", "g")]), true).0, "GET /a?b HTTP/1.1\r\nhost: h:1\r\nhost: g\r\n");
    }

    #[test]
    fn what_is_malformed_is_named() {
        let without = |name: &str| GOOD.iter().filter(|(known, _)| *known != name).copied().collect::<Vec<_>>();
        let instead = |name: &'static str, value: &'static str| {
            GOOD.map(|field| if field.0 == name { (name, value) } else { field }).to_vec()
        };
        for (fields, fault) in [
            (without(":method"), Fault::PseudoField),
            (without(":scheme"), Fault::PseudoField),
            (without(":path"), Fault::PseudoField),
            (Vec::new(), Fault::PseudoField),
            (with(&[(":path", "/a?b")]), Fault::PseudoField),
            (with(&[("x-a", "1"), (":path", "/a?b")]), Fault::PseudoField),
            ([&[("x-a", "1")], &GOOD[..]].concat(), Fault::PseudoField),
            (with(&[(":status", "200")]), Fault::PseudoField),
            (with(&[(":Path", "/")]), Fault::PseudoField),
            (with(&[(":protocol", "websocket")]), Fault::PseudoField),
            (with(&[(":", "1")]), Fault::PseudoField),
            (instead(":method", "G ET"), Fault::RequestLine),
            (instead(":method", ""), Fault::RequestLine),
            (instead(":scheme", "ftp"), Fault::PseudoField),
            (instead(":scheme", "HTTP"), Fault::PseudoField),
            (instead(":path", ""), Fault::PseudoField),
            (instead(":path", "*"), Fault::TargetForm),
            (instead(":path", "http://h/"), Fault::TargetForm),
            (instead(":path", "a"), Fault::TargetForm),
            (instead(":path", "/a b"), Fault::TargetByte),
            (instead(":path", "/a\r\nx: 1"), Fault::TargetByte),
            (instead(":path", "/`"), Fault::TargetByte),
            (instead(":path", "/\u{fc}"), Fault::TargetByte),
            (instead(":authority", ""), Fault::HostInvalid),
            (instead(":authority", "h h"), Fault::HostInvalid),
            (instead(":authority", "h\n"), Fault::HostInvalid),
            (with(&[("X-a", "1")]), Fault::FieldName),
            (with(&[("", "1")]), Fault::FieldName),
            (with(&[("x:a", "1")]), Fault::FieldName),
            (with(&[("x a", "1")]), Fault::FieldName),
            (with(&[("x-a", " 1")]), Fault::FieldValue),
            (with(&[("x-a", "1\t")]), Fault::FieldValue),
            (with(&[("x-a", "1\r\nx: 1")]), Fault::FieldValue),
            (with(&[("x-a", "1\n2")]), Fault::FieldValue),
            (with(&[("x-a", "1\x002")]), Fault::FieldValue),
            (with(&[("cookie", "1\n2")]), Fault::FieldValue),
            (with(&[("host", "")]), Fault::HostInvalid),
            (with(&[("connection", "close")]), Fault::ConnectionField),
            (with(&[("keep-alive", "1")]), Fault::ConnectionField),
            (with(&[("proxy-connection", "1")]), Fault::ConnectionField),
            (with(&[("transfer-encoding", "chunked")]), Fault::ConnectionField),
            (with(&[("upgrade", "h2c")]), Fault::ConnectionField),
            (with(&[("te", "gzip")]), Fault::ConnectionField),
            (with(&[("content-length", "1")]), Fault::ContentLength),
        ] {
            let (_, meaning) = read(&fields, true);
            assert_eq!((meaning.fault, meaning.is_malformed), (Some(fault), true), "{fields:?}");
        }
    }

    #[test]
    fn a_list_that_is_too_large_is_no_malformed_one() {
        // 146 are the four, a field counts 32 more than its bytes.
        let four: usize = GOOD.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        let value = "v".repeat(1000 - four - 3 - 32);
        let fields = [&GOOD[..], &[("x-a", &value)]].concat();
        assert_eq!(read(&fields, true).1.fault, None);
        let longer = format!("{value}v");
        let (head, meaning) = read(&[&GOOD[..], &[("x-a", &longer), ("x-b", "1")]].concat(), true);
        assert_eq!((meaning.fault, meaning.is_malformed), (Some(Fault::HeadTooLarge), false));
        assert!(!head.contains("x-b"));
    }

    #[test]
    fn trailers_are_lines_and_have_no_pseudo_header_fields() {
        let read = |max: usize, fields: &[(&str, &str)]| {
            let mut lines = Vec::new();
            let mut reader = TrailerReader::new(max, &mut lines);
            for (name, value) in fields {
                reader.field(name.as_bytes(), value.as_bytes());
            }
            let is_malformed = reader.is_malformed();
            (String::from_utf8(lines).unwrap(), is_malformed)
        };
        assert_eq!(read(1000, &[("x-a", "1"), ("x-b", "")]), ("x-a: 1\r\nx-b: \r\n".to_owned(), false));
        for bad in [(":path", "/"), ("X-a", "1"), ("x-a", "1\r\n"), ("x-a", " 1"), ("connection", "close")] {
            assert!(read(1000, &[("x-a", "1"), bad, ("x-b", "2")]).1, "{bad:?}");
        }
        assert_eq!((read(36, &[("x-a", "1")]).1, read(35, &[("x-a", "1")]).1), (false, true));
    }
}
