//! The head of a response.

use super::fault::Fault;
use super::fields::{Fields, Piece};
use super::framing::Framing;
use super::head::{HeadLimits, Side, Version, fault_in_lines};
use super::known::{Known, authenticates_connection};
use super::line::{Span, find_line_end};
use super::request::parse_version;

/// The content of a response's head, as ranges of its bytes. It is kept and filled again for the next one.
///
/// Its bytes stay with the caller, who hands them to [`on`](Self::on).
#[derive(Debug, Default)]
pub struct ResponseHead {
    status: u16,
    reason: Span,
    version: Version,
    framing: Framing,
    content_length: Option<u64>,
    names_connection_scheme: bool,
    fields: Fields,
}

/// A response's head together with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Response<'b> {
    head: &'b ResponseHead,
    bytes: &'b [u8],
}

impl ResponseHead {
    /// Reads a whole head: exactly the bytes that [`HeadEnd`](super::HeadEnd) found. After a fault it is empty.
    ///
    /// `answers_head`: whether the request's method was HEAD, so that no body follows.
    pub fn parse(&mut self, bytes: &[u8], limits: &HeadLimits, answers_head: bool) -> Result<(), Fault> {
        self.clear();
        self.parse_lines(bytes, limits, answers_head).map_err(|fault| {
            self.clear();
            fault_in_lines(bytes, Side::Response, limits).unwrap_or(fault)
        })
    }

    /// Forgets what was read.
    pub fn clear(&mut self) {
        self.status = 0;
        self.reason = Span::default();
        self.version = Version::default();
        self.framing = Framing::default();
        self.content_length = None;
        self.names_connection_scheme = false;
        self.fields.clear();
    }

    /// The head on its bytes, which are those that were parsed.
    pub fn on<'b>(&'b self, bytes: &'b [u8]) -> Response<'b> {
        Response { head: self, bytes }
    }

    /// 100 to 999.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// How the body's end is found.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// The length of the content; of the one that is not sent, if this answers HEAD or is a 304. `None` for a 1xx or
    /// 204, which may not have it (RFC 9110, 8.6).
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Whether it gives a length above 0, also where no body may follow (RFC 9112, 6.3). A faulty server may send it then.
    pub fn states_length(&self) -> bool {
        self.fields.framing.length().is_some_and(|length| length > 0)
    }

    /// The version that the server speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the connection can carry another request (RFC 9112, 9.3).
    pub fn is_persistent(&self) -> bool {
        self.framing != Framing::UntilClose && self.fields.is_persistent(self.version)
    }

    /// Whether it asks the client to authenticate the connection: a 401 or 407 that names NTLM or Negotiate.
    pub fn asks_to_authenticate_connection(&self) -> bool {
        self.names_connection_scheme && matches!(self.status, 401 | 407)
    }

    /// Whether another response follows for the same request: 1xx, but for 101.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    fn parse_lines(&mut self, bytes: &[u8], limits: &HeadLimits, answers_head: bool) -> Result<(), Fault> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(Fault::HeadTooLarge);
        }
        let fields_at = self.parse_status_line(bytes)?;
        let names_scheme = &mut self.names_connection_scheme;
        self.fields.parse(bytes, fields_at, limits, |known, value, _| {
            if matches!(known, Known::WwwAuthenticate | Known::ProxyAuthenticate) {
                *names_scheme |= authenticates_connection(value);
            }
            Ok(())
        })?;
        let is_bodiless = matches!(self.status, 100..200 | 204);
        if !is_bodiless {
            self.content_length = self.fields.framing.length();
        }
        self.framing = if is_bodiless || answers_head || self.status == 304 {
            Framing::None
        } else {
            match self.fields.framing.framing(self.version == Version::Http10)? {
                Framing::None => Framing::UntilClose,
                framing => framing,
            }
        };
        Ok(())
    }

    /// `HTTP-version SP 3DIGIT [ SP reason-phrase ] CRLF`; gives where the next line begins. The space is not asked for
    /// where there is no reason: many servers leave both out.
    fn parse_status_line(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let (version, rest) = parse_version(bytes).ok_or(Fault::StatusLine)?;
        let (status, rest) = match rest {
            [b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] => ([a, b, c], rest),
            _ => return Err(Fault::StatusLine),
        };
        let reason = match rest {
            [b' ', reason @ ..] => bytes.len() - reason.len(),
            [b'\r', ..] => bytes.len() - rest.len(),
            _ => return Err(Fault::StatusLine),
        };
        let line_end = find_line_end(bytes, reason).ok_or(Fault::StatusLine)?;
        self.version = version?;
        self.status = status.iter().fold(0, |status, digit| status * 10 + u16::from(**digit - b'0'));
        self.reason = Span::new(reason, line_end);
        Ok(line_end + 2)
    }
}

impl<'b> Response<'b> {
    /// 100 to 999.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// The reason phrase, often empty. It may hold bytes above 0x7F.
    pub fn reason(&self) -> &'b [u8] {
        self.head.reason.of(self.bytes)
    }

    /// Name and value of each field line, in order, as received.
    pub fn fields(&self) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + Clone + use<'b> {
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

    /// The names in `Connection` that are not `close`, `keep-alive` or `upgrade`, in order, as received.
    pub fn nominated(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        self.head.fields.nominated(self.bytes)
    }

    /// The protocol that the server speaks from now on (with 101) or would rather speak: the value of the one `Upgrade`
    /// line, if `Connection` names it. Never so in HTTP/1.0.
    pub fn upgrade(&self) -> Option<&'b [u8]> {
        if self.head.version == Version::Http11 { self.head.fields.upgrade(self.bytes) } else { None }
    }

    /// Gives those field lines that `keep` wants, in order, to `put`: neighbours in one piece where they are written in
    /// the usual way.
    pub fn copy_fields(&self, keep: impl FnMut(Known, &'b [u8], &'b [u8]) -> bool, put: impl FnMut(Piece<'b>)) {
        self.head.fields.copy(self.bytes, keep, put);
    }
}
