//! Writing heads.

use super::fields::Piece;

/// Writes one head at the end of a buffer: the first line, then fields, then [`end`](Self::end).
///
/// Names and values come from a parsed message or are made by us: they hold no CR, LF or NUL. A head is always of
/// HTTP/1.1 (RFC 9112, 2.3).
#[derive(Debug)]
#[must_use = "a head is not complete before `end`"]
pub struct HeadWriter<'o> {
    out: &'o mut Vec<u8>,
    /// Where the field lines begin.
    fields: usize,
}

impl<'o> HeadWriter<'o> {
    /// Begins a request: `GET /path?query HTTP/1.1`.
    pub fn request(out: &'o mut Vec<u8>, method: &[u8], path: &[u8], query: Option<&[u8]>) -> Self {
        debug_assert!(is_clean(method) && is_clean(path) && query.is_none_or(is_clean));
        out.extend_from_slice(method);
        out.push(b' ');
        out.extend_from_slice(path);
        if let Some(query) = query {
            out.push(b'?');
            out.extend_from_slice(query);
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let fields = out.len();
        Self { out, fields }
    }

    /// Begins a response: `HTTP/1.1 200 OK`. An empty reason stands for [`reason_phrase`].
    pub fn response(out: &'o mut Vec<u8>, status: u16, reason: &[u8]) -> Self {
        debug_assert!(is_clean(reason) && (100..1000).contains(&status));
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
        out.push(b' ');
        out.extend_from_slice(if reason.is_empty() { reason_phrase(status).as_bytes() } else { reason });
        out.extend_from_slice(b"\r\n");
        let fields = out.len();
        Self { out, fields }
    }

    /// Goes on with field lines without a first line, which are all that `out` holds.
    pub fn of_lines(out: &'o mut Vec<u8>) -> Self {
        Self { out, fields: 0 }
    }

    /// Adds a field line.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        debug_assert!(!name.is_empty() && is_clean(name) && is_clean(value));
        self.out.reserve(name.len() + value.len() + 4);
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Adds a field line whose value is these parts, one after the other.
    pub fn joined(&mut self, name: &[u8], parts: &[&[u8]]) {
        debug_assert!(!name.is_empty() && is_clean(name) && parts.iter().all(|part| is_clean(part)));
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        for part in parts {
            self.out.extend_from_slice(part);
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// Adds a field line whose value is what `write` appends.
    pub fn written(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        let value = self.out.len();
        write(self.out);
        debug_assert!(!name.is_empty() && is_clean(name) && is_clean(&self.out[value..]));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Adds field lines as they stand in a head, each with its CRLF.
    pub fn lines(&mut self, lines: &[u8]) {
        debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"));
        self.out.extend_from_slice(lines);
    }

    /// Adds a piece of a parsed head.
    #[inline]
    pub fn piece(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Lines(lines) => self.lines(lines),
            Piece::Field(name, value) => self.field(name, value),
        }
    }

    /// Adds a field line with a number in decimal.
    pub fn number(&mut self, name: &[u8], value: u64) {
        self.field(name, itoa::Buffer::new().format(value).as_bytes());
    }

    /// Whether there is a field line of a name, which is lower case.
    pub fn has(&self, name: &[u8]) -> bool {
        has_line(&self.out[self.fields..], name)
    }

    /// Ends the head with the empty line.
    pub fn end(self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Whether there is a field line of a name, which is lower case, among these. Each ends with CRLF.
pub fn has_line(lines: &[u8], name: &[u8]) -> bool {
    let mut rest = lines;
    while let Some(length) = memchr::memchr(b'\n', rest) {
        let (line, next) = rest.split_at(length + 1);
        if line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name) {
            return true;
        }
        rest = next;
    }
    false
}

/// The name of a field line.
pub fn line_name(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b':').next().unwrap_or_default()
}

/// The usual reason phrase of a status (IANA's registry); empty for one that has none.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        510 => "Not Extended",
        511 => "Network Authentication Required",
        _ => "",
    }
}

/// Room for any chunk head: eight hex digits and CRLF.
pub const CHUNK_ROOM: usize = 10;

/// Writes the head of a chunk of `size` bytes to the end of `room`, so that the data can lie right behind it. Gives how
/// many of the last bytes are used: 3 to 10. A size of zero ends the body, and is followed by one more CRLF.
pub fn write_chunk_head(room: &mut [u8; CHUNK_ROOM], size: u32) -> usize {
    room[CHUNK_ROOM - 2..].copy_from_slice(b"\r\n");
    let mut used = 2;
    let mut rest = size;
    for digit in room[..CHUNK_ROOM - 2].iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 0xf) as usize];
        used += 1;
        rest >>= 4;
        if rest == 0 {
            break;
        }
    }
    used
}

fn is_clean(bytes: &[u8]) -> bool {
    !bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_a_request_behind_what_is_there() {
        let mut out = b"before".to_vec();
        let mut writer = HeadWriter::request(&mut out, b"GET", b"/a", Some(b""));
        writer.field(b"Host", b"a");
        writer.field(b"Empty", b"");
        writer.number(b"Content-Length", u64::MAX);
        writer.end();
        let expected = "beforeGET /a? HTTP/1.1\r\nHost: a\r\nEmpty: \r\nContent-Length: 18446744073709551615\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        HeadWriter::request(&mut out, b"OPTIONS", b"*", None).end();
        assert_eq!(out, b"OPTIONS * HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn writes_a_response_with_the_usual_reason_unless_another_is_given() {
        for (status, reason, line) in
            [(200, "", "HTTP/1.1 200 OK"), (404, "Nope", "HTTP/1.1 404 Nope"), (599, "", "HTTP/1.1 599 ")]
        {
            let mut out = Vec::new();
            HeadWriter::response(&mut out, status, reason.as_bytes()).end();
            assert_eq!(out, format!("{line}\r\n\r\n").as_bytes());
        }
    }

    #[test]
    fn finds_a_written_name_only_where_names_are() {
        let mut out = b"Old: 1\r\n".to_vec();
        let mut writer = HeadWriter::request(&mut out, b"GET", b"/new:", None);
        assert!(!writer.has(b"old"));
        writer.field(b"X-Key", b"via: host: a");
        writer.field(b"Date", b"");
        assert!(writer.has(b"x-key") && writer.has(b"date"));
        for absent in [&b"old"[..], b"x-ke", b"x-key:", b"-key", b"via", b"host", b"get /new", b"", b"get"] {
            assert!(!writer.has(absent), "{absent:?}");
        }
        writer.end();
    }

    #[test]
    fn chunk_heads_are_hex_without_leading_zeros_at_the_end_of_their_room() {
        for size in [0, 1, 9, 10, 15, 16, 255, 256, 4095, 65_536, 0x00ff_ffff, 0x1000_0000, u32::MAX] {
            let mut room = [b'?'; CHUNK_ROOM];
            let used = write_chunk_head(&mut room, size);
            let head = format!("{size:x}\r\n");
            assert_eq!(used, head.len());
            assert_eq!(&room[CHUNK_ROOM - used..], head.as_bytes());
            assert!(room[..CHUNK_ROOM - used].iter().all(|byte| *byte == b'?'));
        }
    }

    #[test]
    fn reason_phrases_fit_into_a_status_line() {
        assert_eq!((reason_phrase(429), reason_phrase(299)), ("Too Many Requests", ""));
        assert!((0..=u16::MAX).all(|status| is_clean(reason_phrase(status).as_bytes())));
    }
}
