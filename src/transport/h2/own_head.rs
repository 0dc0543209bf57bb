//! Reading heads of HTTP/1.1 that we wrote ourselves.
//!
//! They are known to be right: the codec has read what came, and its writer wrote what goes. So they are split and not
//! checked; what does not fit all the same is an error and no panic.

use std::io;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::{memchr, memmem};

use crate::http1::{Framing, Known};

/// A head that we wrote.
pub(super) struct OwnHead {
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

impl OwnHead {
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
        while let Some((name, value, next)) = line(&text, at)? {
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

    /// The status, of a response.
    pub(super) fn status(&self) -> io::Result<http::StatusCode> {
        let digits = self.first.get(9..12).ok_or_else(broken)?;
        http::StatusCode::from_bytes(digits).map_err(|_| broken())
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
    while let Some((name, value, next)) = line(&text, at)? {
        append(&mut fields, &text[name], text.slice(value))?;
        at = next;
    }
    Ok(fields)
}

type Place = std::ops::Range<usize>;

/// The name and the value of the line at `at`, and where the next one is; `None` behind the last one.
fn line(text: &[u8], at: usize) -> io::Result<Option<(Place, Place, usize)>> {
    let rest = text.get(at..).unwrap_or_default();
    if rest.is_empty() || rest == b"\r\n" {
        return Ok(None);
    }
    let end = memchr(b'\n', rest).ok_or_else(broken)?;
    let colon = memchr(b':', &rest[..end]).ok_or_else(broken)?;
    let value = rest[colon + 1..end].trim_ascii();
    let start = at + colon + 1 + rest[colon + 1..end].len() - rest[colon + 1..end].trim_ascii_start().len();
    Ok(Some((at..at + colon, start..start + value.len(), at + end + 1)))
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
