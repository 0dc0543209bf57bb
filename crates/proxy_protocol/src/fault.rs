//! Why a header is refused.

use std::fmt;

words! {
    /// Why bytes are no header, or one that cannot be believed. Its text is for the operator's log.
    ///
    /// Nothing more is read from a connection after one, and nothing is answered: who sent it does not speak as was agreed.
    pub enum Fault {
        /// The connection begins with something else.
        NotProxyProtocol = "not-proxy-protocol",
        /// The header is longer than its version allows, or than [`MAX_HEADER_BYTES`](super::MAX_HEADER_BYTES).
        TooLong = "too-long",
        /// The line of version 1 does not have its fields, one space between them and CRLF at its end.
        Line = "line",
        /// The binary header is of another version than 2.
        Version = "version",
        /// The command is neither LOCAL nor PROXY.
        Command = "command",
        /// The connection is not of TCP over IPv4 or IPv6, nor of a unix socket, nor unknown.
        Family = "family",
        /// The connection is one of datagrams.
        Datagram = "datagram",
        /// An address is not one of the family that was announced, or is not in its plain form.
        Address = "address",
        /// A port is not a plain decimal number up to 65535.
        Port = "port",
        /// The binary header ends before its addresses do.
        Length = "length",
        /// A type-length-value vector does not end where the header does, or has a value that its type cannot have.
        Vector = "vector",
        /// A vector of which there is one at most comes again.
        VectorRepeated = "vector-repeated",
        /// The checksum is not that of the header.
        Checksum = "checksum",
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotProxyProtocol => "The connection does not begin with a PROXY header.",
            Self::TooLong => "The PROXY header is longer than is allowed.",
            Self::Line => "The PROXY line does not have its fields with one space between them and CRLF at its end.",
            Self::Version => "The binary PROXY header is not of version 2.",
            Self::Command => "The command of the PROXY header is neither LOCAL nor PROXY.",
            Self::Family => "The PROXY header announces neither TCP over IPv4 or IPv6, nor a unix socket, nor UNKNOWN.",
            Self::Datagram => "The PROXY header announces datagrams.",
            Self::Address => "An address in the PROXY header is malformed or of another family than was announced.",
            Self::Port => "A port in the PROXY header is not a decimal number up to 65535 without leading zeros.",
            Self::Length => "The PROXY header is shorter than the addresses that it announces.",
            Self::Vector => "A type-length-value vector of the PROXY header is malformed.",
            Self::VectorRepeated => "The PROXY header says something twice that may be said once.",
            Self::Checksum => "The CRC32C checksum of the PROXY header is wrong.",
        })
    }
}

impl std::error::Error for Fault {}
