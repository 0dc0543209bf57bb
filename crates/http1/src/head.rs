//! Where a head ends.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::fault::Fault;
use super::line::is_token_byte;
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

/// The kind of message that is read.
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
/// While the end is not there, every complete line is checked: what will never become a head is refused as early as
/// that can be told, without waiting for an end that may not come. Once it is there, [`RequestHead::parse`] and
/// [`ResponseHead::parse`] do the checking, and their caller gets the same fault as if the bytes had come one by one.
///
/// [`RequestHead::parse`]: super::RequestHead::parse
/// [`ResponseHead::parse`]: super::ResponseHead::parse
#[derive(Debug, Default)]
pub struct HeadEnd {
    /// How many bytes were searched.
    seen: usize,
    /// Where the line begins that is not complete yet.
    line: usize,
    /// Complete lines, the first one included, an empty one before it not.
    lines: usize,
    /// Whether the first byte of the first line was looked at.
    begun: bool,
}

/// The end of the last line and of the head. A search for it hardly ever stops at another line's end, as one for two
/// CRLF would.
static EMPTY_LINE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\n\r\n"));

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
        if self.begun {
            // The last two bytes may be part of it.
            let from = self.seen.saturating_sub(2);
            if let Some(at) = EMPTY_LINE.find(window.get(from..).unwrap_or_default()) {
                return Ok(Some(from + at + 3));
            }
            self.check_lines(window, limits)?;
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

    /// Checks the end of each line that was not seen yet, up to the empty one, and the beginning of the next.
    fn check_lines(&mut self, window: &[u8], limits: &HeadLimits) -> Result<(), Fault> {
        let max_lines = limits.max_fields.min(MAX_FIELDS) + 1;
        if self.lines > 0 {
            check_line_start(window, self.line)?;
        }
        while let Some(at) = scan::find::<Is<b'\n'>>(window, self.seen) {
            if window[..at].last() != Some(&b'\r') {
                return Err(Fault::BareLf);
            }
            if at == self.line + 1 {
                return Ok(());
            }
            self.seen = at + 1;
            self.line = at + 1;
            self.lines += 1;
            if self.lines > max_lines {
                return Err(Fault::TooManyFields);
            }
            check_line_start(window, self.line)?;
        }
        self.seen = window.len();
        Ok(())
    }
}

/// The fault that a search would have found in a head, had its bytes come one by one. Asked only about a head that is
/// refused anyway, so that the reason does not depend on how it came.
#[cold]
pub(super) fn fault_in_lines(head: &[u8], side: Side, limits: &HeadLimits) -> Option<Fault> {
    let mut search = HeadEnd::default();
    search.begin(head, side).and_then(|()| search.check_lines(head, limits)).err()
}

/// A line that begins with a space would continue the one before it (RFC 9112, 5.2).
fn check_line_start(window: &[u8], line: usize) -> Result<(), Fault> {
    if matches!(window.get(line), Some(b' ' | b'\t')) { Err(Fault::ObsoleteFold) } else { Ok(()) }
}
