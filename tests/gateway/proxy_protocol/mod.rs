//! The PROXY protocol: headers before connections of clients, and before those to servers.

mod dribble;
mod inward;
mod outward;

use std::net::SocketAddrV4;

/// The types of TLVs of version 2.
const AUTHORITY: u8 = 2;
const UNIQUE_ID: u8 = 5;
const TLS: u8 = 0x20;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A line of version 1, from this address to 192.0.2.1:443.
fn line(source: &str) -> Vec<u8> {
    let source: SocketAddrV4 = source.parse().unwrap();
    format!("PROXY TCP4 {} 192.0.2.1 {} 443\r\n", source.ip(), source.port()).into()
}

/// The same of version 2, with a checksum and these vectors behind it.
fn binary(source: &str, vectors: &[(u8, &[u8])]) -> Vec<u8> {
    let source: SocketAddrV4 = source.parse().unwrap();
    let mut rest = [source.ip().octets(), [192, 0, 2, 1]].concat();
    rest.extend(source.port().to_be_bytes());
    rest.extend(443_u16.to_be_bytes());
    for (kind, value) in [(3, &[0; 4][..])].iter().chain(vectors) {
        rest.push(*kind);
        rest.extend((value.len() as u16).to_be_bytes());
        rest.extend(*value);
    }
    let mut header = [SIGNATURE, &[0x21, 0x11], &(rest.len() as u16).to_be_bytes(), &rest].concat();
    let sum = crc32c(&header).to_be_bytes();
    header[31..35].copy_from_slice(&sum);
    header
}

/// Castagnoli's polynomial, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0x82F6_3B78 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}
