//! The rules of the specification, by its own figures, and the result of each byte that is missing or wrong. Properties
//! that hold for every input are in `tests/proxy_protocol`, with a naive reader to compare with.

mod refused;

use std::net::SocketAddr;

use super::{Endpoints, Fault, Header, HeaderRead, MAX_HEADER_BYTES, Outgoing, Version, read, write};

/// Version 2 of TCP over IPv4 with everything that is read, and with what is not: NOOP and an own type. The checksum was
/// computed elsewhere.
const EVERYTHING: &[&[u8]] = &[
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x4e",
    &[192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb],
    b"\x03\0\x04\x73\xfb\x9a\x19",
    b"\x01\0\x02h2",
    b"\x02\0\x0fwww.example.com",
    b"\x05\0\x03\x0a\x0b\x0c",
    b"\x20\0\x0f\x01\0\0\0\0\x21\0\x07TLSv1.3",
    b"\x04\0\x02\0\xff",
    b"\xea\0\x04vpce",
];

/// As `HAProxy` has sent it to netcat.
const OF_HAPROXY: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xac\x13\x00\x01\xac\x13\x00\x03\xa6\x52\x00\x50GET / HTTP/1.1\r\n";

const TCP6: &[&[u8]] = &[
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24",
    b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01",
    b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02",
    b"\xff\xff\0\0",
];

const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\x07\x03\0\x04\xa9\xb8\x7e\x8f";

const LONGEST_TCP6: &str =
    "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
const LONGEST: &str =
    "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";

fn ends(source: &str, destination: &str) -> Endpoints {
    let end = |text: &str| text.parse::<SocketAddr>().unwrap();
    Endpoints { source: end(source), destination: end(destination) }
}

fn whole(bytes: impl AsRef<[u8]>) -> (Header, usize) {
    match read(bytes.as_ref()) {
        Ok(HeaderRead::Complete { header, length }) => (header, length),
        other => panic!("{other:?}"),
    }
}

/// The header of version 2 with these two bytes and what follows its length.
fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family], &length, body].concat()
}

/// That of TCP over IPv4 with these vectors.
fn with_vectors(vectors: &[u8]) -> Vec<u8> {
    binary(0x21, 0x11, &[&[192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb], vectors].concat())
}

#[test]
fn lines_of_the_specification_are_read() {
    let lines = [
        ("PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", Some(ends("192.168.0.1:56324", "192.168.0.11:443")), 47),
        (
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            Some(ends("255.255.255.255:65535", "255.255.255.255:65535")),
            56,
        ),
        (
            LONGEST_TCP6,
            Some(ends(
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
            )),
            104,
        ),
        ("PROXY TCP6 2001:DB8::1 :: 0 1\r\n", Some(ends("[2001:db8::1]:0", "[::]:1")), 31),
        ("PROXY UNKNOWN\r\n", None, 15),
        (LONGEST, None, 107),
        ("PROXY UNKNOWN  what: ever\0 \u{e9}\r\n", None, 31),
    ];
    for (line, endpoints, length) in lines {
        let (header, read) = whole(format!("{line}GET / HTTP/1.1\r\n"));
        assert_eq!((header.version, header.endpoints, read), (Version::V1, endpoints, length), "{line:?}");
        assert_eq!((header.alpn(), header.authority(), header.unique_id(), header.tls()), (None, None, None, false));
    }
}

#[test]
fn binary_headers_are_read() {
    let (header, length) = whole(OF_HAPROXY);
    assert_eq!((header.version, length), (Version::V2, 28));
    assert_eq!(header.endpoints, Some(ends("172.19.0.1:42578", "172.19.0.3:80")));
    assert!(header.details.is_none());

    let (header, length) = whole(TCP6.concat());
    assert_eq!((header.endpoints, length), (Some(ends("[2001:db8::1]:65535", "[2001:db8::2]:0")), 52));

    let unix = binary(0x21, 0x31, &[&[b'/'; 216][..], b"\x01\0\x02h2"].concat());
    let (header, length) = whole(unix);
    assert_eq!((header.endpoints, header.alpn(), length), (None, Some(&b"h2"[..]), 237));
    let (header, length) = whole(binary(0x21, 0, b"\x05\0\x01a"));
    assert_eq!((header.endpoints, header.unique_id(), length), (None, Some(&b"a"[..]), 20));
}

#[test]
fn vectors_are_read() {
    let (header, length) = whole(EVERYTHING.concat());
    assert_eq!((header.endpoints, length), (Some(ends("192.0.2.1:56324", "198.51.100.2:443")), 94));
    assert_eq!((header.alpn(), header.authority()), (Some(&b"h2"[..]), Some("www.example.com")));
    assert_eq!((header.unique_id(), header.tls()), (Some(&[10, 11, 12][..]), true));
    assert_eq!(header.tls_version(), Some("TLSv1.3"));
    // Without the bit for it there was no TLS, whatever stands behind it; other bits are of certificates.
    let (header, _) = whole(with_vectors(b"\x20\0\x0f\x06\0\0\0\0\x21\0\x07TLSv1.3"));
    assert_eq!((header.tls(), header.tls_version(), &header.details), (false, None, &None));
    let (header, _) = whole(with_vectors(b"\x20\0\x0b\x07\0\0\0\0\x22\0\x03a b"));
    assert_eq!((header.tls(), header.tls_version()), (true, None));
    // What is empty says nothing.
    assert_eq!(whole(with_vectors(b"\x01\0\0\x02\0\0\x05\0\0\x04\0\0\x20\0\x05\0\0\0\0\0")).0.details, None);
}

#[test]
fn of_a_local_connection_nothing_counts_but_the_checksum() {
    let bodies: [(u8, &[u8]); 6] = [
        (0x00, b""),
        (0x00, b"\x01\0\x02h2\x20\0\x05\x01\0\0\0\0"),
        (0x11, &[192, 0, 2, 1, 198, 51, 100, 2, 0, 1, 0, 2]),
        (0x12, &[7; 12]),
        (0x11, &[7; 11]),
        (0x99, b"no vectors, no addresses"),
    ];
    for (family, body) in bodies {
        let bytes = binary(0x20, family, body);
        let (header, length) = whole(&bytes);
        assert_eq!((header, length), (Header { version: Version::V2, endpoints: None, details: None }, bytes.len()));
    }
    assert_eq!(whole(LOCAL).1, 23);
    let mut wrong = LOCAL.to_vec();
    wrong[22] ^= 1;
    assert_eq!(read(&wrong), Err(Fault::Checksum));
}

#[test]
fn ipv4_in_the_dress_of_ipv6_is_ipv4() {
    let (header, _) = whole("PROXY TCP6 ::ffff:192.0.2.1 ::ffff:c633:6402 1 2\r\n");
    assert_eq!(header.endpoints, Some(ends("192.0.2.1:1", "198.51.100.2:2")));
    let mapped = b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\x02\x01";
    let (header, _) = whole(binary(0x21, 0x21, &[&mapped[..], TCP6[2], b"\0\x01\0\x02"].concat()));
    assert_eq!(header.endpoints, Some(ends("192.0.2.1:1", "[2001:db8::2]:2")));
}

#[test]
fn a_header_that_is_cut_is_partial_at_every_byte() {
    let lines = ["PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", LONGEST_TCP6, "PROXY UNKNOWN\r\n", LONGEST];
    let mapped = "PROXY TCP6 1:2:3:4:5:6:192.0.2.1 1:2:3:4:5:6:7:: 0 0\r\n";
    let binaries = [EVERYTHING.concat(), TCP6.concat(), OF_HAPROXY[..28].to_vec(), LOCAL.to_vec()];
    let longest = with_vectors(&[&b"\x04\x07\xe1"[..], &[0; 0x7e1]].concat());
    assert_eq!(longest.len(), MAX_HEADER_BYTES);
    let lines = lines.iter().chain([&mapped]).map(|line| line.as_bytes().to_vec());
    for bytes in lines.chain(binaries).chain([longest]) {
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), Ok(HeaderRead::Partial), "{cut} of {bytes:?}");
        }
        assert_eq!(whole(&bytes).1, bytes.len());
    }
}

#[test]
fn a_byte_that_is_changed_under_a_checksum_is_found() {
    // Of a length that no vector ends where the addresses of another family would.
    let outgoing = Outgoing { alpn: Some(b"h2"), authority: Some("www.a.example"), unique_id: Some(b"7") };
    for endpoints in [Some(ends("192.0.2.1:1", "198.51.100.2:2")), Some(ends("[2001:db8::1]:1", "[2001:db8::2]:2"))] {
        let mut bytes = Vec::new();
        write(Version::V2, endpoints, &outgoing, &mut bytes);
        let length = bytes.len();
        let sum = length - (7 + 5 + 16 + 4);
        // Behind a header that has become longer there are bytes for it.
        bytes.resize(MAX_HEADER_BYTES, 0);
        let mut without_sum = 0;
        for at in 0..length {
            for change in 1..=255 {
                bytes[at] ^= change;
                match read(&bytes) {
                    Err(_) => {}
                    // Nothing tells that there was a checksum if its type is another, or it is cut off.
                    Ok(HeaderRead::Complete { header, length }) if at == sum || (at == 15 && length == sum) => {
                        assert_eq!(header.endpoints, endpoints);
                        without_sum += 1;
                    }
                    other => panic!("{at} {change}: {other:?}"),
                }
                bytes[at] ^= change;
            }
        }
        // One length, and every type but the four that would be wrong here.
        assert_eq!(without_sum, 1 + 255 - 4);
        assert_eq!(whole(&bytes).1, length);
    }
}

#[test]
fn what_is_written_is_as_the_specification_has_it() {
    let written = |version, endpoints, outgoing: &Outgoing<'_>| {
        let mut out = b"-".to_vec();
        write(version, endpoints, outgoing, &mut out);
        out.split_off(1)
    };
    let line = |endpoints| String::from_utf8(written(Version::V1, endpoints, &Outgoing::default())).unwrap();
    let (client, gateway) = ("192.168.0.1:56324", "192.168.0.11:443");
    assert_eq!(line(Some(ends(client, gateway))), "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n");
    assert_eq!(line(Some(ends("[2001:db8::1]:0", "[::]:65535"))), "PROXY TCP6 2001:db8::1 :: 0 65535\r\n");
    // Of two families there is one line only, and it has no dots.
    assert_eq!(line(Some(ends("192.0.2.1:1", "[::1]:2"))), "PROXY TCP6 ::ffff:c000:201 ::1 1 2\r\n");
    assert_eq!(line(Some(ends("[::ffff:192.0.2.1]:1", "192.0.2.2:2"))), "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n");
    assert_eq!(line(None), "PROXY UNKNOWN\r\n");

    let binary = |endpoints, outgoing: &Outgoing<'_>| written(Version::V2, endpoints, outgoing);
    assert_eq!(binary(None, &Outgoing::default()), LOCAL);
    let outgoing = Outgoing { alpn: Some(b"h2"), authority: Some("www.example.com"), unique_id: Some(&[10, 11, 12]) };
    let bytes = binary(Some(ends("192.0.2.1:56324", "198.51.100.2:443")), &outgoing);
    let head = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x30";
    let sum = b"\x03\0\x04\x73\x48\xf9\x3e";
    let expected = [head, EVERYTHING[1], sum, EVERYTHING[3], EVERYTHING[4], EVERYTHING[5]].concat();
    assert_eq!(bytes, expected);

    // What a reader would refuse is left out, so that the rest is still of use.
    let (long, longer) = ([b'a'; 256], "a".repeat(256));
    let outgoing = Outgoing { alpn: Some(&long), authority: Some(&longer), unique_id: Some(&long[..129]) };
    let plain = binary(Some(ends(client, gateway)), &Outgoing::default());
    assert_eq!(binary(Some(ends(client, gateway)), &outgoing), plain);
    assert_eq!(binary(Some(ends(client, gateway)), &Outgoing { authority: Some("a b"), ..Outgoing::default() }), plain);
    assert_eq!(plain.len(), 16 + 12 + 7);
    let outgoing = Outgoing { alpn: Some(&long[1..]), authority: Some(&longer[1..]), unique_id: Some(&long[..128]) };
    assert_eq!(binary(Some(ends("[::1]:1", "[::1]:2")), &outgoing).len(), 706);
}

#[test]
fn a_header_is_small() {
    assert!(size_of::<Header>() <= 80, "{}", size_of::<Header>());
}
