//! A header as it is sent to a server.

use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::binary::{HEAD_BYTES, LOCAL, PROXY, SIGNATURE, TCP4, TCP6, UNSPECIFIED};
use super::header::{Endpoints, Version};
use super::text::BEGIN;
use super::vectors::{
    ALPN, AUTHORITY, CRC32C, MAX_ALPN_BYTES, MAX_UNIQUE_ID_BYTES, SUM_BYTES, UNIQUE_ID, is_host, sum_without,
};

/// The content of a header of version 2 beside the addresses; version 1 has no place for it.
///
/// A value that is empty, or longer than what [`read`](super::read) takes, or no host, is left out: half of it would be
/// wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outgoing<'o> {
    /// The protocol that was agreed upon with the client.
    pub alpn: Option<&'o [u8]>,
    /// The host that the client has named.
    pub authority: Option<&'o str>,
    /// How this connection is called.
    pub unique_id: Option<&'o [u8]>,
}

/// Adds a header to the end of `out`: at most 107 bytes of version 1, and 706 of version 2, which always has a checksum.
///
/// Without endpoints it is `PROXY UNKNOWN`, or LOCAL, of which receivers are to ignore the rest. Two ends of different
/// families are both written as IPv6.
pub fn write(version: Version, endpoints: Option<Endpoints>, tlvs: &Outgoing<'_>, out: &mut Vec<u8>) {
    match version {
        Version::V1 => line(endpoints, out),
        Version::V2 => binary(endpoints, tlvs, out),
    }
}

/// The addresses of the source and of the destination, of one family.
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    fn of(endpoints: &Endpoints) -> Self {
        match (endpoints.source.ip().to_canonical(), endpoints.destination.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Self::V4(source, destination),
            (source, destination) => Self::V6(as_ipv6(source), as_ipv6(destination)),
        }
    }
}

fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn line(endpoints: Option<Endpoints>, out: &mut Vec<u8>) {
    out.extend_from_slice(BEGIN);
    // Writing to a `Vec` does not fail.
    let _ = match &endpoints {
        None => write!(out, "UNKNOWN\r\n"),
        Some(endpoints) => {
            let ports = Ports(endpoints.source.port(), endpoints.destination.port());
            match Addresses::of(endpoints) {
                Addresses::V4(source, destination) => write!(out, "TCP4 {source} {destination} {ports}\r\n"),
                Addresses::V6(source, destination) => {
                    write!(out, "TCP6 {} {} {ports}\r\n", Hexadecimal(source), Hexadecimal(destination))
                }
            }
        }
    };
}

struct Ports(u16, u16);

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// An address without the end of IPv4 that the standard writer gives to some: version 1 allows hexadecimal digits only.
struct Hexadecimal(Ipv6Addr);

impl fmt::Display for Hexadecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.to_ipv4_mapped(), self.0.segments()) {
            (Some(_), [.., high, low]) => write!(f, "::ffff:{high:x}:{low:x}"),
            (None, _) => self.0.fmt(f),
        }
    }
}

fn binary(endpoints: Option<Endpoints>, tlvs: &Outgoing<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&SIGNATURE);
    match &endpoints {
        None => out.extend_from_slice(&[LOCAL, UNSPECIFIED, 0, 0]),
        Some(endpoints) => {
            match Addresses::of(endpoints) {
                Addresses::V4(source, destination) => {
                    out.extend_from_slice(&[PROXY, TCP4, 0, 0]);
                    out.extend_from_slice(&source.octets());
                    out.extend_from_slice(&destination.octets());
                }
                Addresses::V6(source, destination) => {
                    out.extend_from_slice(&[PROXY, TCP6, 0, 0]);
                    out.extend_from_slice(&source.octets());
                    out.extend_from_slice(&destination.octets());
                }
            }
            out.extend_from_slice(&endpoints.source.port().to_be_bytes());
            out.extend_from_slice(&endpoints.destination.port().to_be_bytes());
        }
    }
    // First, so that hardly a length that is wrong on arrival cuts it off.
    vector(CRC32C, Some(&[0; SUM_BYTES]), out);
    let sum_at = out.len() - SUM_BYTES - start;
    let authority = tlvs.authority.filter(|host| is_host(host)).map(str::as_bytes);
    vector(ALPN, tlvs.alpn.filter(|alpn| alpn.len() <= MAX_ALPN_BYTES), out);
    vector(AUTHORITY, authority, out);
    vector(UNIQUE_ID, tlvs.unique_id.filter(|id| id.len() <= MAX_UNIQUE_ID_BYTES), out);
    complete(out.get_mut(start..).unwrap_or_default(), sum_at);
}

/// Adds a vector, unless there is nothing to say; the value is of at most 255 bytes.
fn vector(kind: u8, value: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        let [high, low] = (value.len() as u16).to_be_bytes();
        out.extend_from_slice(&[kind, high, low]);
        out.extend_from_slice(value);
    }
}

/// Fills in the length, then the checksum.
fn complete(header: &mut [u8], sum_at: usize) {
    let length = (header.len().saturating_sub(HEAD_BYTES) as u16).to_be_bytes();
    if let Some(room) = header.get_mut(HEAD_BYTES - length.len()..HEAD_BYTES) {
        room.copy_from_slice(&length);
    }
    let sum = sum_without(header, sum_at).to_be_bytes();
    if let Some(room) = header.get_mut(sum_at..sum_at + sum.len()) {
        room.copy_from_slice(&sum);
    }
}
