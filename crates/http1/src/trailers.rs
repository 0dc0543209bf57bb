//! The trailer section of a chunked body: RFC 9112, 7.1.2, and RFC 9110, 6.5.

use memchr::memchr2;

use super::fault::Fault;
use super::line::FieldLine;

/// The most bytes of all trailer lines, as they come and as they are written.
const MAX_BYTES: usize = 8 * 1024;
/// The most trailer lines.
const MAX_LINES: usize = 32;
/// The memory that is kept for the next message.
const KEPT_CAPACITY: usize = 512;

/// Collects trailer lines, then gives those that may pass.
#[derive(Debug, Default)]
pub(super) struct Trailers {
    state: TrailerState,
    lines: usize,
    raw: Vec<u8>,
    tail: Vec<u8>,
}

/// The finding at the front of the bytes.
pub(super) enum TrailerStep {
    /// As many bytes, at least one, that are collected or not needed.
    Taken(usize),
    /// One byte of the empty line, where no trailer line came: it is written on.
    EmptyLine,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TrailerState {
    #[default]
    LineStart,
    Line,
    /// LF is next, and ends a trailer line.
    LineLf,
    /// LF is next, and ends the section.
    LastLf,
    Complete,
}

impl Trailers {
    pub(super) fn reset(&mut self) {
        self.state = TrailerState::LineStart;
        self.lines = 0;
        for buffer in [&mut self.raw, &mut self.tail] {
            buffer.clear();
            buffer.shrink_to(KEPT_CAPACITY);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state == TrailerState::Complete
    }

    /// The lines that may pass and the empty line; nothing if no line came.
    pub(super) fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// Takes one byte or more of `bytes`, which are not empty.
    pub(super) fn accept(&mut self, bytes: &[u8]) -> Result<TrailerStep, Fault> {
        match (self.state, bytes) {
            (TrailerState::LineStart, [b'\r', ..]) => {
                self.state = TrailerState::LastLf;
                Ok(self.empty_line())
            }
            (TrailerState::LineStart, [b' ' | b'\t', ..]) => Err(Fault::Trailer),
            (TrailerState::LineStart | TrailerState::Line, _) => {
                let length = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
                self.state = TrailerState::Line;
                self.push(&bytes[..length])?;
                match bytes.get(length) {
                    None => Ok(TrailerStep::Taken(length)),
                    Some(b'\r') => {
                        self.state = TrailerState::LineLf;
                        Ok(TrailerStep::Taken(length + 1))
                    }
                    Some(_) => Err(Fault::Trailer),
                }
            }
            (TrailerState::LineLf, [b'\n', ..]) => {
                self.state = TrailerState::LineStart;
                self.lines += 1;
                if self.lines > MAX_LINES {
                    return Err(Fault::Trailer);
                }
                self.push(b"\r\n")?;
                Ok(TrailerStep::Taken(1))
            }
            (TrailerState::LastLf, [b'\n', ..]) => {
                self.filter()?;
                self.state = TrailerState::Complete;
                Ok(self.empty_line())
            }
            (TrailerState::LineLf | TrailerState::LastLf | TrailerState::Complete, _) => Err(Fault::Trailer),
        }
    }

    fn empty_line(&self) -> TrailerStep {
        if self.lines == 0 { TrailerStep::EmptyLine } else { TrailerStep::Taken(1) }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() > MAX_BYTES.saturating_sub(self.raw.len()) {
            return Err(Fault::Trailer);
        }
        self.raw.extend_from_slice(bytes);
        Ok(())
    }

    /// Reads what was collected and writes what may pass.
    fn filter(&mut self) -> Result<(), Fault> {
        if self.lines == 0 {
            return Ok(());
        }
        let (mut at, mut written) = (0, 0);
        while at < self.raw.len() {
            let (line, next) = FieldLine::read(&self.raw, at).ok_or(Fault::Trailer)?;
            let (name, value) = (line.name.of(&self.raw), line.value.of(&self.raw));
            let parts = [name, b": ", value, b"\r\n"];
            // `a:b` is written a byte longer: the next one of us in the way must accept that too.
            written += parts.iter().map(|part| part.len()).sum::<usize>();
            if written > MAX_BYTES {
                return Err(Fault::Trailer);
            }
            if may_pass(name) {
                for part in parts {
                    self.tail.extend_from_slice(part);
                }
            }
            at = next;
        }
        self.tail.extend_from_slice(b"\r\n");
        Ok(())
    }
}

/// Names that no trailer may have: a recipient that merges trailers into the fields of the head would act on them (RFC
/// 9110, 6.5.1). By what they are about: framing and routing, the connection, authentication, modifiers of a request,
/// control of a response, and what a proxy says of the client.
const REFUSED: [&str; 40] = [
    "transfer-encoding",
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "http2-settings",
    "authorization",
    "proxy-authorization",
    "proxy-authenticate",
    "www-authenticate",
    "cookie",
    "set-cookie",
    "cache-control",
    "expect",
    "max-forwards",
    "pragma",
    "range",
    "age",
    "expires",
    "date",
    "location",
    "retry-after",
    "vary",
    "warning",
    "allow",
    "refresh",
    "origin",
    "early-data",
    "priority",
    "forwarded",
    "via",
    "x-real-ip",
    "x-request-id",
    "x-http-method-override",
    "strict-transport-security",
    "clear-site-data",
    "alt-svc",
];

/// The same, for every name that begins so: how content is read, conditions, and what proxies and browsers vouch for.
const REFUSED_PREFIXES: [&str; 6] = ["content-", "if-", "x-forwarded-", "x-sluicegate-", "access-control-", "sec-"];

/// A digest of the content is what trailers are for (RFC 9530, 6.2).
const PERMITTED: &str = "content-digest";

/// Whether a trailer of this name is passed on. `_` counts as `-`, as it does for gateways of the CGI family.
fn may_pass(name: &[u8]) -> bool {
    let is = |bytes: &[u8], lower: &str| {
        bytes.len() == lower.len()
            && bytes.iter().zip(lower.bytes()).all(|(byte, lower)| {
                let byte = if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
                byte == lower
            })
    };
    is(name, PERMITTED)
        || !REFUSED.iter().any(|refused| is(name, refused))
            && !REFUSED_PREFIXES.iter().any(|prefix| name.get(..prefix.len()).is_some_and(|start| is(start, prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_section_is_not_kept_in_memory_for_the_next_message() {
        let mut trailers = Trailers::default();
        let section = format!("X: {}\r\n\r\n", "y".repeat(8000));
        let mut rest = section.as_bytes();
        while !trailers.is_complete() {
            match trailers.accept(rest).unwrap() {
                TrailerStep::Taken(length) => rest = &rest[length..],
                TrailerStep::EmptyLine => panic!("a line came"),
            }
        }
        assert_eq!(trailers.tail(), section.as_bytes());
        trailers.reset();
        assert_eq!(trailers.tail(), b"");
        assert!(trailers.raw.capacity() + trailers.tail.capacity() <= 2 * KEPT_CAPACITY);
    }
}
