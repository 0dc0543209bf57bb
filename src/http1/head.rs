//! Where a head ends.

use super::fault::Fault;
use super::field::is_token_byte;
use super::scan::{self, Is};

/// The most field lines that a head can have, whatever its limits say.
pub const MAX_FIELDS: usize = 256;

/// How large a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes, from the first one to the end of the empty line.
    pub max_bytes: usize,
    /// Field lines; [`MAX_FIELDS`] at most.
    pub max_fields: usize,
}

/// Which kind of message is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From a client.
    Request,
    /// From an upstream server.
    Response,
}

/// The version that a message is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// A search for the end of a head that goes on where it stopped.
///
/// It refuses as early as it can what will never become a head: not to wait for an end that may not come.
#[derive(Debug, Default)]
pub struct HeadEnd {
    /// How many bytes were searched.
    seen: usize,
    /// Where the line begins that is not complete yet.
    line: usize,
    /// Whether the first byte of the first line was looked at.
    begun: bool,
    /// Complete lines, the first one included, an empty one before it not.
    lines: usize,
}

impl HeadEnd {
    /// How long the head is, `None` if its end is not there yet. `bytes` begin with the first byte of the message and
    /// are those of the call before, and more.
    ///
    /// One empty line before a request belongs to its head (RFC 9112, 2.2).
    pub fn find(&mut self, bytes: &[u8], side: Side, limits: &HeadLimits) -> Result<Option<usize>, Fault> {
        let window = bytes.get(..limits.max_bytes).unwrap_or(bytes);
        if !self.begun {
            self.begin(window, side)?;
        }
        if self.begun
            && let Some(end) = self.find_line_ends(window, limits)?
        {
            return Ok(Some(end));
        }
        if bytes.len() < limits.max_bytes {
            return Ok(None);
        }
        // Not one byte more may come, and the end is not there.
        Err(match (self.lines, side) {
            (0, Side::Request) => Fault::TargetTooLong,
            (0, Side::Response) => Fault::StatusLine,
            _ => Fault::HeadTooLarge,
        })
    }

    /// Begins with another message.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Looks at the first byte, and before a request at an empty line.
    fn begin(&mut self, window: &[u8], side: Side) -> Result<(), Fault> {
        let (first, start) = match (side, window) {
            (_, []) | (Side::Request, [b'\r'] | [b'\r', b'\n']) => return Ok(()),
            (Side::Request, [b'\r', b'\n', b'\r', ..]) => return Err(Fault::EmptyLines),
            (Side::Request, [b'\r', b'\n', first, ..]) => (*first, 2),
            (_, [first, ..]) => (*first, 0),
        };
        match side {
            Side::Request if !is_token_byte(first) => return Err(Fault::RequestLine),
            Side::Response if first != b'H' => return Err(Fault::StatusLine),
            Side::Request | Side::Response => {}
        }
        self.begun = true;
        self.line = start;
        self.seen = start;
        Ok(())
    }

    fn find_line_ends(&mut self, window: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Fault> {
        let max_lines = limits.max_fields.min(MAX_FIELDS) + 1;
        if self.seen == self.line && self.lines > 0 {
            check_line_start(window, self.line)?;
        }
        let Self { mut seen, mut line, mut lines, .. } = *self;
        while let Some(at) = scan::find::<Is<b'\n'>>(window, seen) {
            if at == line || window[at - 1] != b'\r' {
                return Err(Fault::BareLf);
            }
            if at - 1 == line {
                return Ok(Some(at + 1));
            }
            seen = at + 1;
            line = seen;
            lines += 1;
            if lines > max_lines {
                return Err(Fault::TooManyFields);
            }
            check_line_start(window, line)?;
        }
        *self = Self { seen: window.len(), line, begun: true, lines };
        Ok(None)
    }
}

/// A line that begins with a space would continue the one before it (RFC 9112, 5.2).
fn check_line_start(window: &[u8], line: usize) -> Result<(), Fault> {
    if matches!(window.get(line), Some(b' ' | b'\t')) { Err(Fault::ObsoleteFold) } else { Ok(()) }
}
