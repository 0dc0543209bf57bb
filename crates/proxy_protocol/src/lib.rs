//! The header of `HAProxy`'s PROXY protocol, versions 1 and 2, without I/O: what a proxy says, before the first byte of a
//! connection that it passes on, of the connection that it has accepted.
//!
//! It reads a header from bytes that its caller has received, and writes one into a buffer that its caller sends. It
//! opens no socket and waits for nothing; it never guesses whether a header will come, and knows not who may send one.
//! The specification is `doc/proxy-protocol.txt` of `HAProxy`; where it leaves a choice, the stricter is taken.
//!
//! - `text`: version 1, a line. `binary`: version 2. `vectors`: what may stand behind its addresses (TLVs).
//! - `header`: what a header says. `write`: the way back. `fault`: why one is refused.
//!
//! Invariants:
//!
//! - Bytes that cannot become a header are refused as soon as that shows: a line at its first wrong byte, version 2 in
//!   its first 16 bytes, what follows these once it is there. So nobody waits for a peer that speaks HTTP.
//! - A refused header stays refused, and a complete one stays as it is, whatever comes behind it.
//! - IPv4 addresses in the dress of IPv6 (`::ffff:192.0.2.1`) become IPv4 on reading, so that no client counts twice.
//! - Nothing is longer than [`MAX_HEADER_BYTES`], and no input panics.
//!
//! Its callers are the connections from clients and those to servers.

#[macro_use]
extern crate sluicegate_words;

mod binary;
mod fault;
mod header;
mod text;
mod vectors;
mod write;

pub use fault::Fault;
pub use header::{Endpoints, Header, Version};
pub use write::{Outgoing, write};

/// The longest header that is read. Version 1 has at most 107 bytes by its specification. Version 2 could have 65,551;
/// with the longest of everything that is read here, and paths of unix sockets, it has less than 1,200, so this leaves
/// room for vectors of others and is still little to hold for a connection that has shown nothing yet.
pub const MAX_HEADER_BYTES: usize = 2_048;

/// The result of reading the bytes that are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderRead {
    /// A header: its `length` in bytes, behind which the connection proper begins.
    Complete {
        /// The header.
        header: Header,
        /// How many bytes it has.
        length: usize,
    },
    /// The beginning of a header; or nothing yet.
    Partial,
}

/// Reads one header from the beginning of `bytes`, from its start each time that more has come; what follows the header
/// is not looked at.
pub fn read(bytes: &[u8]) -> Result<HeaderRead, Fault> {
    let read = match bytes.first() {
        None => Err(Stop::OutOfBytes),
        Some(b'P') => text::read(bytes),
        Some(b'\r') => binary::read(bytes),
        Some(_) => Err(Stop::Fault(Fault::NotProxyProtocol)),
    };
    match read {
        Ok((header, length)) => Ok(HeaderRead::Complete { header, length }),
        Err(Stop::OutOfBytes) => Ok(HeaderRead::Partial),
        Err(Stop::Fault(fault)) => Err(fault),
    }
}

/// Where reading stops before the header's end.
enum Stop {
    OutOfBytes,
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Whether `bytes` begin with all of `expected`. The bytes that are there have to be right.
fn begins_with(bytes: &[u8], expected: &[u8]) -> Result<(), Stop> {
    if bytes.starts_with(expected) {
        Ok(())
    } else if expected.starts_with(bytes) {
        Err(Stop::OutOfBytes)
    } else {
        Err(Fault::NotProxyProtocol.into())
    }
}

#[cfg(test)]
mod tests;
