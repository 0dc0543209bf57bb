//! Why a message is refused.

use std::fmt;

words! {
    /// Why a message cannot be understood in one way only. Its text is for the peer that sent it.
    ///
    /// Nothing more is read from a connection after one. The proxy chooses the status that answers it.
    pub enum Fault {
        /// A request does not begin with `method SP target SP version CRLF`.
        RequestLine = "request-line",
        /// The target has none of the forms that its method allows (RFC 9112, 3.2).
        TargetForm = "target-form",
        /// The target holds a byte that must be percent-encoded.
        TargetByte = "target-byte",
        /// The first line of a request is longer than a head may be.
        TargetTooLong = "target-too-long",
        /// The version is neither HTTP/1.0 nor HTTP/1.1.
        Version = "version",
        /// The method is CONNECT.
        Connect = "connect",
        /// A line of a head ends in LF without CR.
        BareLf = "bare-lf",
        /// More than one empty line before a request.
        EmptyLines = "empty-lines",
        /// A field value is continued on another line.
        ObsoleteFold = "obsolete-fold",
        /// A field name is not a token, or is not followed by a colon at once.
        FieldName = "field-name",
        /// A field value holds a control byte.
        FieldValue = "field-value",
        /// The head is longer than is allowed.
        HeadTooLarge = "head-too-large",
        /// There are more field lines than are allowed.
        TooManyFields = "too-many-fields",
        /// A request of HTTP/1.1 has no `Host`.
        HostMissing = "host-missing",
        /// A request has more than one `Host`.
        HostRepeated = "host-repeated",
        /// The value of `Host` is no `host[:port]`.
        HostInvalid = "host-invalid",
        /// The value of `Content-Length` is not a number below 2^63.
        ContentLength = "content-length",
        /// There is more than one `Content-Length`.
        ContentLengthRepeated = "content-length-repeated",
        /// There are both `Content-Length` and `Transfer-Encoding`.
        LengthAndCoding = "length-and-coding",
        /// A transfer coding other than `chunked`.
        CodingUnknown = "coding-unknown",
        /// `chunked` is not the last transfer coding.
        CodingNotFinal = "coding-not-final",
        /// `chunked` is applied more than once.
        CodingRepeated = "coding-repeated",
        /// `Transfer-Encoding` in a message of HTTP/1.0.
        CodingOn10 = "coding-on-1.0",
        /// The value of `Expect` is not `100-continue`.
        Expectation = "expectation",
        /// `Connection` names more than 32 fields.
        ConnectionOptions = "connection-options",
        /// A response does not begin with a version and a status of three digits.
        StatusLine = "status-line",
        /// A chunk does not begin with its size in at most 16 hex digits and CRLF.
        ChunkSize = "chunk-size",
        /// A chunk extension is malformed or too long, or there are too many.
        ChunkExtension = "chunk-extension",
        /// The data of a chunk is not followed by CRLF.
        ChunkEnd = "chunk-end",
        /// The trailer section is malformed or too long.
        Trailer = "trailer",
        /// The connection was closed before the message was complete.
        Truncated = "truncated",
        /// A pseudo-header field of HTTP/2 is missing, repeated, unknown, not what it may be, or out of place (RFC 9113,
        /// 8.3).
        PseudoField = "pseudo-field",
        /// A field of HTTP/2 that speaks of a connection (RFC 9113, 8.2.2).
        ConnectionField = "connection-field",
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
        let reasons: BTreeSet<_> = Fault::ALL.map(Fault::word).into_iter().collect();
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
