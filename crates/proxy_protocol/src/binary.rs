//! Version 2: a signature, four bytes, addresses and vectors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::header::{Endpoints, Header, Version};
use super::vectors::Vectors;
use super::{Fault, MAX_HEADER_BYTES, Stop, begins_with};

pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, version and command, family and transport, and the length of what follows.
pub(super) const HEAD_BYTES: usize = 16;

pub(super) const LOCAL: u8 = 0x20;
pub(super) const PROXY: u8 = 0x21;
pub(super) const UNSPECIFIED: u8 = 0x00;
pub(super) const TCP4: u8 = 0x11;
pub(super) const TCP6: u8 = 0x21;
const UDP4: u8 = 0x12;
const UDP6: u8 = 0x22;
const UNIX_STREAM: u8 = 0x31;
const UNIX_DATAGRAM: u8 = 0x32;

const TCP4_BYTES: usize = 12;
const TCP6_BYTES: usize = 36;
const UNIX_BYTES: usize = 216;

enum Command {
    Local,
    Proxy,
}

pub(super) fn read(bytes: &[u8]) -> Result<(Header, usize), Stop> {
    begins_with(bytes, &SIGNATURE)?;
    let command = command(byte(bytes, 12)?)?;
    let family = byte(bytes, 13)?;
    if matches!(command, Command::Proxy) {
        check_family(family)?;
    }
    let length = length(bytes)?;
    let addresses = addresses_bytes(family);
    if matches!(command, Command::Proxy) && length < HEAD_BYTES + addresses {
        return Err(Fault::Length.into());
    }
    let whole = bytes.get(..length).ok_or(Stop::OutOfBytes)?;
    let vectors = Vectors::of(whole, HEAD_BYTES + addresses);
    let (endpoints, details) = match command {
        Command::Proxy => {
            let vectors = vectors?;
            vectors.check_sum(whole)?;
            (endpoints(whole, family), vectors.details()?)
        }
        // Whatever such a header says beyond its command is not to be minded, nor need it make sense: only a checksum
        // that can be found has to be right.
        Command::Local => {
            vectors.map_or(Ok(()), |vectors| vectors.check_sum(whole))?;
            (None, None)
        }
    };
    Ok((Header { version: Version::V2, endpoints, details }, length))
}

fn byte(bytes: &[u8], at: usize) -> Result<u8, Stop> {
    bytes.get(at).copied().ok_or(Stop::OutOfBytes)
}

fn command(byte: u8) -> Result<Command, Fault> {
    match byte {
        LOCAL => Ok(Command::Local),
        PROXY => Ok(Command::Proxy),
        _ if byte >> 4 == 2 => Err(Fault::Command),
        _ => Err(Fault::Version),
    }
}

fn check_family(family: u8) -> Result<(), Fault> {
    match family {
        UNSPECIFIED | TCP4 | TCP6 | UNIX_STREAM => Ok(()),
        UDP4 | UDP6 | UNIX_DATAGRAM => Err(Fault::Datagram),
        _ => Err(Fault::Family),
    }
}

fn addresses_bytes(family: u8) -> usize {
    match family {
        TCP4 | UDP4 => TCP4_BYTES,
        TCP6 | UDP6 => TCP6_BYTES,
        UNIX_STREAM | UNIX_DATAGRAM => UNIX_BYTES,
        _ => 0,
    }
}

/// How long the header is; of one that is too long the first byte of its length may tell.
fn length(bytes: &[u8]) -> Result<usize, Stop> {
    let high = byte(bytes, 14)?;
    let low = bytes.get(15).copied();
    let length = HEAD_BYTES + usize::from(u16::from_be_bytes([high, low.unwrap_or(0)]));
    if length > MAX_HEADER_BYTES {
        return Err(Fault::TooLong.into());
    }
    low.map(|_| length).ok_or(Stop::OutOfBytes)
}

/// The addresses of TCP; the others are none that a gateway could use.
fn endpoints(whole: &[u8], family: u8) -> Option<Endpoints> {
    let block = whole.get(HEAD_BYTES..)?;
    let (source, rest) = address(block, family)?;
    let (destination, rest) = address(rest, family)?;
    let (source_port, rest) = rest.split_first_chunk()?;
    let (destination_port, _) = rest.split_first_chunk()?;
    Some(Endpoints {
        source: SocketAddr::new(source, u16::from_be_bytes(*source_port)),
        destination: SocketAddr::new(destination, u16::from_be_bytes(*destination_port)),
    })
}

fn address(block: &[u8], family: u8) -> Option<(IpAddr, &[u8])> {
    match family {
        TCP4 => block.split_first_chunk().map(|(octets, rest)| (Ipv4Addr::from(*octets).into(), rest)),
        TCP6 => block.split_first_chunk().map(|(octets, rest)| (Ipv6Addr::from(*octets).to_canonical(), rest)),
        _ => None,
    }
}
