//! Reading heads of HTTP/1.1 that we wrote ourselves.
//!
//! They are known to be right: the codec has read what came, and its writer wrote what goes. So they are split and not
//! checked; what does not fit all the same is an error and no panic.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::{memchr, memmem};

use sluicegate_http1::{Framing, Known};

/// A head that we wrote.
pub(super) struct TrustedHead {
    /// Its bytes, up to the end of the empty line.
    pub(super) length: usize,
    /// Its fields but for those that speak of the connection, and `Host`.
    pub(super) fields: HeaderMap,
    /// The value of `Host`.
    pub(super) host: Option<Bytes>,
    /// How the body is framed; [`Framing::None`] if no field says.
    pub(super) framing: Framing,
    /// The protocol of `Upgrade`.
    pub(super) upgrade: Option<Bytes>,
    /// Its first line, without its end.
    first: Bytes,
}

impl TrustedHead {
    /// Reads the head that `bytes` begin with.
    pub(super) fn read(bytes: &[u8]) -> io::Result<Self> {
        let end = memmem::find(bytes, b"\r\n\r\n").ok_or_else(broken)?;
        let length = end + 4;
        let text = Bytes::copy_from_slice(&bytes[..end + 2]);
        let first_end = memchr(b'\n', &text).ok_or_else(broken)?;
        let mut head = Self {
            length,
            fields: HeaderMap::with_capacity(16),
            host: None,
            framing: Framing::None,
            upgrade: None,
            first: text.slice(..first_end.saturating_sub(1)),
        };
        let mut at = first_end + 1;
        while let Some(FieldSpan { name, value, next }) = line(&text, at)? {
            let value = text.slice(value);
            at = next;
            match Known::of(&text[name.clone()]) {
                Known::Host => head.host = Some(value),
                Known::TransferEncoding => head.framing = Framing::Chunked,
                Known::Upgrade => head.upgrade = Some(value),
                Known::Te if !value.eq_ignore_ascii_case(b"trailers") => {}
                Known::Connection | Known::KeepAlive | Known::ProxyConnection => {}
                known => {
                    if known == Known::ContentLength {
                        let digits = std::str::from_utf8(&value).map_err(|_| broken())?;
                        head.framing = Framing::Length(digits.parse().map_err(|_| broken())?);
                    }
                    append(&mut head.fields, &text[name], value)?;
                }
            }
        }
        Ok(head)
    }

    /// Method and target, of a request.
    pub(super) fn method_and_target(&self) -> io::Result<(&[u8], Bytes)> {
        let space = memchr(b' ', &self.first).ok_or_else(broken)?;
        let end = self.first.len().checked_sub(b" HTTP/1.1".len()).filter(|end| *end > space).ok_or_else(broken)?;
        Ok((&self.first[..space], self.first.slice(space + 1..end)))
    }
}

/// Field lines and the empty line behind them.
pub(super) fn fields(lines: &[u8]) -> io::Result<HeaderMap> {
    let text = Bytes::copy_from_slice(lines);
    let mut fields = HeaderMap::new();
    let mut at = 0;
    while let Some(FieldSpan { name, value, next }) = line(&text, at)? {
        append(&mut fields, &text[name], text.slice(value))?;
        at = next;
    }
    Ok(fields)
}

/// Where the parts of a field line are, and the next line.
struct FieldSpan {
    name: Range<usize>,
    value: Range<usize>,
    next: usize,
}

/// The line at `at`; `None` behind the last one.
fn line(text: &[u8], at: usize) -> io::Result<Option<FieldSpan>> {
    let rest = text.get(at..).unwrap_or_default();
    if rest.is_empty() || rest == b"\r\n" {
        return Ok(None);
    }
    let end = memchr(b'\n', rest).ok_or_else(broken)?;
    let colon = memchr(b':', &rest[..end]).ok_or_else(broken)?;
    let value = rest[colon + 1..end].trim_ascii();
    let start = at + colon + 1 + rest[colon + 1..end].len() - rest[colon + 1..end].trim_ascii_start().len();
    Ok(Some(FieldSpan { name: at..at + colon, value: start..start + value.len(), next: at + end + 1 }))
}

fn append(fields: &mut HeaderMap, name: &[u8], value: Bytes) -> io::Result<()> {
    let name = HeaderName::from_bytes(name).map_err(|_| broken())?;
    let value = HeaderValue::from_maybe_shared(value).map_err(|_| broken())?;
    fields.try_append(name, value).map_err(|_| broken())?;
    Ok(())
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a head of our own cannot be read")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use sluicegate_http1::HeadWriter;

    fn pairs(head: &TrustedHead) -> Vec<(String, Vec<u8>)> {
        head.fields.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_request_is_its_parts_without_what_speaks_of_the_connection() {
        let bytes = b"GET /a?b=c HTTP/1.1\r\nhost: h:1\r\nX-A:  1 \r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                      keep-alive: 5\r\nproxy-connection: x\r\nte: gzip\r\nx-empty:\r\nx-a: 2\r\n\r\nthe body";
        let head = TrustedHead::read(bytes).unwrap();
        assert_eq!(head.length, bytes.len() - b"the body".len());
        let (method, target) = head.method_and_target().unwrap();
        assert_eq!((method, &*target), (&b"GET"[..], &b"/a?b=c"[..]));
        assert_eq!((head.host.as_deref(), head.upgrade.as_deref()), (Some(&b"h:1"[..]), Some(&b"websocket"[..])));
        assert_eq!(head.framing, Framing::None);
        let expected = [("x-a", &b"1"[..]), ("x-a", b"2"), ("x-empty", b"")];
        assert_eq!(pairs(&head), expected.map(|(name, value)| (name.to_owned(), value.to_vec())));
    }

    #[test]
    fn the_framing_is_told_and_only_a_length_is_a_field_of_http_2() {
        for (line, framing, is_kept) in [
            ("content-length: 17", Framing::Length(17), true),
            ("transfer-encoding: chunked", Framing::Chunked, false),
            ("te: trailers", Framing::None, true),
        ] {
            let head = TrustedHead::read(format!("GET / HTTP/1.1\r\n{line}\r\n\r\n").as_bytes()).unwrap();
            assert_eq!((head.framing, head.fields.len()), (framing, usize::from(is_kept)), "{line}");
        }
    }

    #[test]
    fn what_is_no_head_is_an_error_and_no_panic() {
        for bytes in
            ["", "\r\n\r\n", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nx\r\n\r\n", "A\r\ncontent-length: x\r\n\r\n"]
        {
            assert!(
                TrustedHead::read(bytes.as_bytes()).and_then(|head| head.method_and_target().map(drop)).is_err(),
                "{bytes:?}"
            );
        }
        for first in ["", "GET", "GET ", "GET /", "GET HTTP/1.1", " HTTP/1.1"] {
            let head = TrustedHead::read(format!("{first}\r\n\r\n").as_bytes());
            assert!(head.is_err() || head.is_ok_and(|head| head.method_and_target().is_err()), "{first:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_writer_writes_is_read_back(
            fields in proptest::collection::vec(("x-[a-z]{1,8}", "([!-~]([ -~]{0,20}[!-~])?)?"), 0..20),
            body in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut bytes = Vec::new();
            let mut writer = HeadWriter::request(&mut bytes, b"PUT", b"/a", None);
            for (name, value) in &fields {
                writer.field(name.as_bytes(), value.as_bytes());
            }
            writer.end();
            let length = bytes.len();
            bytes.extend_from_slice(&body);
            let head = TrustedHead::read(&bytes).unwrap();
            prop_assert_eq!((head.length, head.method_and_target().unwrap().0), (length, &b"PUT"[..]));
            let mut read = pairs(&head);
            let mut written: Vec<_> = fields.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
            // Their order is kept within a name only.
            read.sort_by(|one, other| one.0.cmp(&other.0));
            written.sort_by(|one, other| one.0.cmp(&other.0));
            prop_assert_eq!(read, written);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b':'), Just(b' '), any::<u8>()], 0..60)) {
            if let Ok(head) = TrustedHead::read(&bytes) {
                let _ = head.method_and_target();
            }
            let _ = fields(&bytes);
        }
    }
}
