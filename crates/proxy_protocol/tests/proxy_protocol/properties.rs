//! Properties that hold for every input to `proxy_protocol`, as far as they can be seen from outside. The fuzz target
//! of `fuzz/` looks for one that breaks it; `cargo test` tries the committed corpus and what comes of it by chance.
//!
//! An input is one byte that says how to make what comes over the wire of the rest: 1, the signature of version 2 is put
//! before it; 2, its checksum, if there is one, is made right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::proxy_protocol::{Endpoints, HeaderRead, MAX_HEADER_BYTES, Outgoing, Version, read, write};

const SIGNATURE: [u8; 12] = [13, 10, 13, 10, 0, 13, 10, 81, 85, 73, 84, 10];
const ADD_SIGNATURE: u8 = 1;
const MEND_SUM: u8 = 2;

/// Their ends complete whatever is the beginning of a line.
const LINES: [&str; 4] = [
    "PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n",
    "PROXY TCP6 :: :: 0 0\r\n",
    "PROXY TCP6 ::0.0.0.0 ::0.0.0.0 0 0\r\n",
    "PROXY UNKNOWN\r\n",
];

/// One header, or none: it is read as a naive reader reads it, however much of it is there, and refused for good. A
/// header that was read can be written and is read the same.
pub fn header(data: &[u8]) {
    let Some((options, bytes)) = data.split_first() else { return };
    let bytes = wire(*options, bytes);
    let naive = naive(&bytes);
    match (read(&bytes), &naive) {
        (Ok(HeaderRead::Complete { header, length }), Some(expected)) => {
            let seen = Seen {
                length,
                version: header.version,
                endpoints: header.endpoints,
                alpn: header.alpn().map(<[u8]>::to_vec),
                authority: header.authority().map(str::to_owned),
                unique_id: header.unique_id().map(<[u8]>::to_vec),
                tls: header.tls(),
                tls_version: header.tls_version().map(str::to_owned),
            };
            assert_eq!(&seen, expected);
            assert!(length <= bytes.len() && length <= MAX_HEADER_BYTES);
            written_again(&seen);
        }
        (Ok(HeaderRead::Partial), None) => can_be_completed(&bytes),
        (Err(_), None) => {}
        (read, naive) => panic!("{read:?} is not {naive:?}"),
    }
    in_parts(&bytes);
}

fn wire(options: u8, bytes: &[u8]) -> Vec<u8> {
    let mut wire = if options & ADD_SIGNATURE == 0 { Vec::new() } else { SIGNATURE.to_vec() };
    wire.extend_from_slice(bytes);
    if options & MEND_SUM != 0
        && let Some((addresses, length)) = extent(&wire)
        && let Some(vectors) = vectors(&wire[..length], addresses)
        && let Some(at) = vectors.iter().find(|vector| vector.kind == 3 && vector.value.len() == 4).map(|sum| sum.at)
    {
        let sum = sum_without(&wire[..length], at).to_be_bytes();
        wire[at..at + 4].copy_from_slice(&sum);
    }
    wire
}

/// The more there is of it the more is known, and nothing of that is taken back.
fn in_parts(bytes: &[u8]) {
    let mut before = Ok(HeaderRead::Partial);
    // The last bytes of a long one are as good as all between.
    let lengths = (0..=bytes.len().min(160)).chain(bytes.len().saturating_sub(9).max(161)..=bytes.len());
    for length in lengths {
        let now = read(&bytes[..length]);
        if before != Ok(HeaderRead::Partial) {
            assert_eq!(now, before, "with {length} bytes");
        }
        if let (Ok(HeaderRead::Partial), Ok(HeaderRead::Complete { length: header, .. })) = (&before, &now) {
            assert!(
                *header == length || length > 160,
                "a header of {header} bytes was complete with {length} bytes only"
            );
        }
        before = now;
    }
}

fn can_be_completed(bytes: &[u8]) {
    // A longer line may be completed by a shorter end than these have.
    if bytes.len() > 60 || bytes.first() != Some(&b'P') {
        return;
    }
    let mut ends = LINES.iter().flat_map(|line| (0..=line.len()).map(|at| &line[at..]));
    assert!(
        ends.any(|end| naive(&[bytes, end.as_bytes()].concat()).is_some()),
        "nothing completes {:?}",
        String::from_utf8_lossy(bytes)
    );
}

fn written_again(seen: &Seen) {
    let outgoing = Outgoing {
        alpn: seen.alpn.as_deref(),
        authority: seen.authority.as_deref(),
        unique_id: seen.unique_id.as_deref(),
    };
    let mut out = b"before".to_vec();
    write(seen.version, seen.endpoints, &outgoing, &mut out);
    let again = naive(&out[6..]).expect("what is written can be read");
    let length = out.len() - 6;
    let expected = match seen.endpoints {
        Some(_) => Seen { length, tls: false, tls_version: None, ..seen.clone() },
        // As LOCAL, of which the rest is not read.
        None => nothing(seen.version, length),
    };
    assert_eq!(again, expected);
    assert!(matches!(read(&out[6..]), Ok(HeaderRead::Complete { length, .. }) if length == again.length));
}

/// Everything that a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub length: usize,
    pub version: Version,
    pub endpoints: Option<Endpoints>,
    pub alpn: Option<Vec<u8>>,
    pub authority: Option<String>,
    pub unique_id: Option<Vec<u8>>,
    pub tls: bool,
    pub tls_version: Option<String>,
}

/// The same rules once more, written to be obviously right: of a whole header, copied and split.
pub fn naive(bytes: &[u8]) -> Option<Seen> {
    if bytes.starts_with(b"PROXY ") { naive_line(bytes) } else { naive_binary(bytes) }
}

fn nothing(version: Version, length: usize) -> Seen {
    let (alpn, authority, unique_id) = (None, None, None);
    Seen { length, version, endpoints: None, alpn, authority, unique_id, tls: false, tls_version: None }
}

fn naive_line(bytes: &[u8]) -> Option<Seen> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
    if end + 2 > 107 || line.contains(['\r', '\n']) {
        return None;
    }
    let mut seen = nothing(Version::V1, end + 2);
    if line == "PROXY UNKNOWN" || line.starts_with("PROXY UNKNOWN ") {
        return Some(seen);
    }
    let fields: Vec<&str> = line.split(' ').collect();
    let [_, family, source, destination, source_port, destination_port] = fields[..] else { return None };
    let address = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::from),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        _ => None,
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| port.to_string() == text);
    let end = |ip: &str, number: &str| Some(SocketAddr::new(address(ip)?.to_canonical(), port(number)?));
    seen.endpoints =
        Some(Endpoints { source: end(source, source_port)?, destination: end(destination, destination_port)? });
    Some(seen)
}

/// Where the vectors of a header begin, and its length.
fn extent(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = bytes.get(..16).filter(|head| head.starts_with(&SIGNATURE))?;
    let length = 16 + usize::from(head[14]) * 256 + usize::from(head[15]);
    if length > 2048 || length > bytes.len() {
        return None;
    }
    let addresses = match head[13] {
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => 0,
    };
    Some((16 + addresses, length))
}

fn naive_binary(bytes: &[u8]) -> Option<Seen> {
    let (addresses, length) = extent(bytes)?;
    let bytes = &bytes[..length];
    let mut seen = nothing(Version::V2, length);
    let vectors = vectors(bytes, addresses);
    let is_proxy = match bytes[12] {
        0x20 => false,
        0x21 => true,
        _ => return None,
    };
    if is_proxy && (vectors.is_none() || ![0x00, 0x11, 0x21, 0x31].contains(&bytes[13])) {
        return None;
    }
    let of = |kind: u8| vectors.iter().flatten().find(|vector| vector.kind == kind).map(|vector| vector.value.clone());
    if let Some(sum) = vectors.iter().flatten().find(|vector| vector.kind == 3)
        && sum.value != sum_without(bytes, sum.at).to_be_bytes()
    {
        return None;
    }
    if !is_proxy {
        return Some(seen);
    }
    seen.endpoints = endpoints(bytes);
    seen.alpn = of(1).filter(|alpn| !alpn.is_empty());
    seen.unique_id = of(5).filter(|id| !id.is_empty());
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._~:[]".contains(c);
    let host = of(2).and_then(|host| String::from_utf8(host).ok());
    seen.authority = host.filter(|host| !host.is_empty() && host.chars().all(is_host));
    if seen.alpn.as_ref().is_some_and(|alpn| alpn.len() > 255)
        || seen.unique_id.as_ref().is_some_and(|id| id.len() > 128)
        || of(2).is_some_and(|host| host.len() > 255)
    {
        return None;
    }
    if let Some(ssl) = of(0x20) {
        if ssl.len() < 5 {
            return None;
        }
        let inner = walk(&ssl, 5)?;
        let versions: Vec<_> = inner.iter().filter(|vector| vector.kind == 0x21).map(|vector| &vector.value).collect();
        if versions.len() > 1 || versions.iter().any(|v| v.len() > 32 || v.iter().any(|b| !(33..127).contains(b))) {
            return None;
        }
        seen.tls = ssl[0] % 2 == 1;
        let version = versions.first().filter(|version| seen.tls && !version.is_empty());
        seen.tls_version = version.map(|version| String::from_utf8_lossy(version).into_owned());
    }
    Some(seen)
}

fn endpoints(bytes: &[u8]) -> Option<Endpoints> {
    let port = |at: usize| u16::from(bytes[at]) * 256 + u16::from(bytes[at + 1]);
    let v4 = |at: usize| IpAddr::from([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let v6 = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap()).to_canonical();
    match bytes[13] {
        0x11 => {
            let (source, destination) = ((v4(16), port(24)).into(), (v4(20), port(26)).into());
            Some(Endpoints { source, destination })
        }
        0x21 => {
            let (source, destination) = ((v6(16), port(48)).into(), (v6(32), port(50)).into());
            Some(Endpoints { source, destination })
        }
        _ => None,
    }
}

struct Vector {
    kind: u8,
    /// Where its value begins.
    at: usize,
    value: Vec<u8>,
}

/// The vectors of a header, if they are well-formed and those that are read come once.
fn vectors(bytes: &[u8], at: usize) -> Option<Vec<Vector>> {
    let vectors = walk(bytes, at)?;
    let count = |kind: u8| vectors.iter().filter(|vector| vector.kind == kind).count();
    let is_sum_whole = vectors.iter().all(|vector| vector.kind != 3 || vector.value.len() == 4);
    ([1, 2, 3, 5, 0x20].into_iter().all(|kind| count(kind) <= 1) && is_sum_whole).then_some(vectors)
}

fn walk(bytes: &[u8], mut at: usize) -> Option<Vec<Vector>> {
    let mut vectors = Vec::new();
    while at != bytes.len() {
        let head = bytes.get(at..at + 3)?;
        let length = usize::from(head[1]) * 256 + usize::from(head[2]);
        let value = bytes.get(at + 3..at + 3 + length)?.to_vec();
        vectors.push(Vector { kind: head[0], at: at + 3, value });
        at += 3 + length;
    }
    Some(vectors)
}

/// CRC32C bit by bit (RFC 4960, Appendix B), of the header with zeros for the sum.
fn sum_without(bytes: &[u8], at: usize) -> u32 {
    let mut bytes = bytes.to_vec();
    bytes[at..at + 4].fill(0);
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
        }
    }
    !sum
}
