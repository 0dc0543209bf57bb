//! Why a message is refused.

use std::fmt;

/// Why a message cannot be understood in one way only. Its text is for whoever sent it.
///
/// Nothing more is read from a connection after one. What status answers it is the proxy's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A request does not begin with `method SP target SP version CRLF`.
    RequestLine,
    /// The target has none of the forms that its method allows (RFC 9112, 3.2).
    TargetForm,
    /// The target holds a byte that must be percent-encoded.
    TargetByte,
    /// The first line of a request is longer than a head may be.
    TargetTooLong,
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    Version,
    /// The method is CONNECT.
    Connect,
    /// A line of a head ends in LF without CR.
    BareLf,
    /// More than one empty line before a request.
    EmptyLines,
    /// A field value is continued on another line.
    ObsoleteFold,
    /// A field name is not a token, or is not followed by a colon at once.
    FieldName,
    /// A field value holds a control byte.
    FieldValue,
    /// The head is longer than is allowed.
    HeadTooLarge,
    /// There are more field lines than are allowed.
    TooManyFields,
    /// A request of HTTP/1.1 has no `Host`.
    HostMissing,
    /// A request has more than one `Host`.
    HostRepeated,
    /// The value of `Host` is no `host[:port]`.
    HostInvalid,
    /// The value of `Content-Length` is not a number below 2^63.
    ContentLength,
    /// There is more than one `Content-Length`.
    ContentLengthRepeated,
    /// There are both `Content-Length` and `Transfer-Encoding`.
    LengthAndCoding,
    /// A transfer coding other than `chunked`.
    CodingUnknown,
    /// `chunked` is not the last transfer coding.
    CodingNotFinal,
    /// `chunked` is applied more than once.
    CodingRepeated,
    /// `Transfer-Encoding` in a message of HTTP/1.0.
    CodingOn10,
    /// The value of `Expect` is not `100-continue`.
    Expectation,
    /// `Connection` names more than 32 fields.
    ConnectionOptions,
    /// A response does not begin with a version and a status of three digits.
    StatusLine,
    /// A chunk does not begin with its size in at most 16 hex digits and CRLF.
    ChunkSize,
    /// A chunk extension is malformed or too long, or there are too many.
    ChunkExtension,
    /// The data of a chunk is not followed by CRLF.
    ChunkEnd,
    /// The trailer section is malformed or too long.
    Trailer,
    /// The connection was closed before the message was complete.
    Truncated,
    /// A pseudo-header field of HTTP/2 is missing, repeated, unknown, not what it may be, or out of place (RFC 9113,
    /// 8.3).
    PseudoField,
    /// A field of HTTP/2 that speaks of a connection (RFC 9113, 8.2.2).
    ConnectionField,
}

impl Fault {
    /// Every fault, in the order of declaration.
    pub const ALL: [Self; 33] = [
        Self::RequestLine,
        Self::TargetForm,
        Self::TargetByte,
        Self::TargetTooLong,
        Self::Version,
        Self::Connect,
        Self::BareLf,
        Self::EmptyLines,
        Self::ObsoleteFold,
        Self::FieldName,
        Self::FieldValue,
        Self::HeadTooLarge,
        Self::TooManyFields,
        Self::HostMissing,
        Self::HostRepeated,
        Self::HostInvalid,
        Self::ContentLength,
        Self::ContentLengthRepeated,
        Self::LengthAndCoding,
        Self::CodingUnknown,
        Self::CodingNotFinal,
        Self::CodingRepeated,
        Self::CodingOn10,
        Self::Expectation,
        Self::ConnectionOptions,
        Self::StatusLine,
        Self::ChunkSize,
        Self::ChunkExtension,
        Self::ChunkEnd,
        Self::Trailer,
        Self::Truncated,
        Self::PseudoField,
        Self::ConnectionField,
    ];

    /// A short name for metrics and logs: lower case, words joined with `-`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::RequestLine => "request-line",
            Self::TargetForm => "target-form",
            Self::TargetByte => "target-byte",
            Self::TargetTooLong => "target-too-long",
            Self::Version => "version",
            Self::Connect => "connect",
            Self::BareLf => "bare-lf",
            Self::EmptyLines => "empty-lines",
            Self::ObsoleteFold => "obsolete-fold",
            Self::FieldName => "field-name",
            Self::FieldValue => "field-value",
            Self::HeadTooLarge => "head-too-large",
            Self::TooManyFields => "too-many-fields",
            Self::HostMissing => "host-missing",
            Self::HostRepeated => "host-repeated",
            Self::HostInvalid => "host-invalid",
            Self::ContentLength => "content-length",
            Self::ContentLengthRepeated => "content-length-repeated",
            Self::LengthAndCoding => "length-and-coding",
            Self::CodingUnknown => "coding-unknown",
            Self::CodingNotFinal => "coding-not-final",
            Self::CodingRepeated => "coding-repeated",
            Self::CodingOn10 => "coding-on-1.0",
            Self::Expectation => "expectation",
            Self::ConnectionOptions => "connection-options",
            Self::StatusLine => "status-line",
            Self::ChunkSize => "chunk-size",
            Self::ChunkExtension => "chunk-extension",
            Self::ChunkEnd => "chunk-end",
            Self::Trailer => "trailer",
            Self::Truncated => "truncated",
            Self::PseudoField => "pseudo-field",
            Self::ConnectionField => "connection-field",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RequestLine => "The request line is malformed.",
            Self::TargetForm => "The request target has a form that its method does not allow.",
            Self::TargetByte => "The request target holds a character that must be percent-encoded.",
            Self::TargetTooLong => "The request target is too long.",
            Self::Version => "The HTTP version is neither 1.0 nor 1.1.",
            Self::Connect => "The method CONNECT is not supported.",
            Self::BareLf => "A line of the head ends in LF without CR.",
            Self::EmptyLines => "More than one empty line precedes the request.",
            Self::ObsoleteFold => "A field is continued on another line.",
            Self::FieldName => "A field name is malformed.",
            Self::FieldValue => "A field value holds a control character.",
            Self::HeadTooLarge => "The head is too large.",
            Self::TooManyFields => "The head has too many fields.",
            Self::HostMissing => "The request has no Host field.",
            Self::HostRepeated => "The request has more than one Host field.",
            Self::HostInvalid => "The Host field is not a host with an optional port.",
            Self::ContentLength => "The Content-Length field is not a number.",
            Self::ContentLengthRepeated => "The message has more than one Content-Length.",
            Self::LengthAndCoding => "The message has both Content-Length and Transfer-Encoding.",
            Self::CodingUnknown => "A transfer coding is not supported.",
            Self::CodingNotFinal => "The last transfer coding is not chunked.",
            Self::CodingRepeated => "The transfer coding chunked is applied more than once.",
            Self::CodingOn10 => "A message of HTTP/1.0 has a Transfer-Encoding field.",
            Self::Expectation => "The Expect field asks for something other than 100-continue.",
            Self::ConnectionOptions => "The Connection field names too many fields.",
            Self::StatusLine => "The status line is malformed.",
            Self::ChunkSize => "The size of a chunk is malformed.",
            Self::ChunkExtension => "A chunk extension is malformed or too long.",
            Self::ChunkEnd => "The data of a chunk is not followed by a line end.",
            Self::Trailer => "The trailer section is malformed or too long.",
            Self::Truncated => "The message ends before it is complete.",
            Self::PseudoField => "A pseudo-header field is missing, repeated, unknown, malformed or out of place.",
            Self::ConnectionField => "A field speaks of a connection, which HTTP/2 has no place for.",
        })
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_has_its_own_reason_and_sentence() {
        let reasons: BTreeSet<_> = Fault::ALL.map(Fault::reason).into_iter().collect();
        let sentences: BTreeSet<_> = Fault::ALL.iter().map(ToString::to_string).collect();
        assert_eq!((reasons.len(), sentences.len()), (Fault::ALL.len(), Fault::ALL.len()));
        for reason in reasons {
            assert!(
                reason.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
            );
        }
        for sentence in sentences {
            assert!(sentence.ends_with('.') && sentence.starts_with(|first: char| first.is_ascii_uppercase()));
        }
    }

    #[test]
    fn all_is_in_the_order_of_declaration() {
        for (index, fault) in Fault::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, index);
        }
        assert_eq!(Fault::ConnectionField as usize, Fault::ALL.len() - 1);
    }
}
