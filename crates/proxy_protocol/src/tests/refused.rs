//! Every fault with its examples, and how early each is told.

use std::collections::BTreeSet;

use super::*;

/// Lines, and with how many of their bytes they are refused.
const LINES: &[(&str, usize, Fault)] = &[
    ("GET / HTTP/1.1\r\n", 1, Fault::NotProxyProtocol),
    ("PRI * HTTP/2.0\r\n", 3, Fault::NotProxyProtocol),
    ("POST / HTTP/1.1\r\n", 2, Fault::NotProxyProtocol),
    ("PROPFIND / HTTP/1.1\r\n", 4, Fault::NotProxyProtocol),
    ("\x16\x03\x01", 1, Fault::NotProxyProtocol),
    ("proxy TCP4 ", 1, Fault::NotProxyProtocol),
    (" PROXY TCP4 ", 1, Fault::NotProxyProtocol),
    ("PROXY\tTCP4 ", 6, Fault::NotProxyProtocol),
    ("PROXY\r\n", 6, Fault::NotProxyProtocol),
    ("\r\nPROXY", 3, Fault::NotProxyProtocol),
    ("PROXY  TCP4", 7, Fault::Family),
    ("PROXY tcp4 ", 7, Fault::Family),
    ("PROXY UDP4 ", 8, Fault::Family),
    ("PROXY TCP5 ", 10, Fault::Family),
    ("PROXY TCP4\r\n", 11, Fault::Family),
    ("PROXY TCP46", 11, Fault::Family),
    ("PROXY UNKNOWNS\r\n", 14, Fault::Family),
    ("PROXY TCP4  192.0.2.1 ", 12, Fault::Line),
    ("PROXY TCP4 192.0.2.1  192.0.2.1 1 1", 22, Fault::Line),
    ("PROXY TCP4 192.0.2.1\r\n", 21, Fault::Line),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 80\r\n", 34, Fault::Line),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 80 443 \r\n", 38, Fault::Line),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 80 443\n", 38, Fault::Line),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 80 443\r\r\n", 39, Fault::Line),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 80 \r\n", 35, Fault::Line),
    ("PROXY UNKNOWN\n", 14, Fault::Line),
    ("PROXY UNKNOWN a\rb\r\n", 17, Fault::Line),
    ("PROXY UNKNOWN a\nb\r\n", 16, Fault::Line),
    ("PROXY TCP4 192.0.2.01 ", 21, Fault::Address),
    ("PROXY TCP4 192.0.2.256 ", 22, Fault::Address),
    ("PROXY TCP4 192.0.2 ", 19, Fault::Address),
    ("PROXY TCP4 192.0.2.1.1 ", 21, Fault::Address),
    ("PROXY TCP4 +192.0.2.1 ", 12, Fault::Address),
    ("PROXY TCP4 0x7f.1 ", 13, Fault::Address),
    ("PROXY TCP4 ::1 ", 12, Fault::Address),
    ("PROXY TCP4 192.0.2.1 2001:db8::1 ", 25, Fault::Address),
    ("PROXY TCP6 192.0.2.1 ", 15, Fault::Address),
    ("PROXY TCP6 fe80::1%eth0 ", 19, Fault::Address),
    ("PROXY TCP6 [::1] ", 12, Fault::Address),
    ("PROXY TCP6 ::1::", 16, Fault::Address),
    ("PROXY TCP6 1:2:3:4:5:6:7:8:", 27, Fault::Address),
    ("PROXY TCP6 1:2:3:4:5:6:7 ", 25, Fault::Address),
    ("PROXY TCP6 12345", 16, Fault::Address),
    ("PROXY TCP6 ::g", 14, Fault::Address),
    ("PROXY TCP4 192.0.2.\u{661}", 20, Fault::Address),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 080 ", 33, Fault::Port),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 +80 ", 32, Fault::Port),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 -1 ", 32, Fault::Port),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 65536 ", 36, Fault::Port),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 80 00\r\n", 36, Fault::Port),
    ("PROXY TCP4 192.0.2.1 192.0.2.2 80 http\r\n", 35, Fault::Port),
];

/// Version 2: the four bytes behind the signature, what follows them, and with how many bytes it is refused.
const BINARY: &[(&[u8], usize, Fault)] = &[
    (b"\x11\x11\0\x0c", 13, Fault::Version),
    (b"\x31\x11\0\x0c", 13, Fault::Version),
    (b"\x01\x11\0\x0c", 13, Fault::Version),
    (b"\x22\x11\0\x0c", 13, Fault::Command),
    (b"\x2f\x11\0\x0c", 13, Fault::Command),
    (b"\x21\x12\0\x0c", 14, Fault::Datagram),
    (b"\x21\x22\0\x24", 14, Fault::Datagram),
    (b"\x21\x32\0\xd8", 14, Fault::Datagram),
    (b"\x21\x01\0\0", 14, Fault::Family),
    (b"\x21\x10\0\x0c", 14, Fault::Family),
    (b"\x21\x13\0\x0c", 14, Fault::Family),
    (b"\x21\x41\0\x0c", 14, Fault::Family),
    (b"\x21\x11\x08\0", 15, Fault::TooLong),
    (b"\x20\x00\xff\xff", 15, Fault::TooLong),
    (b"\x21\x11\x07\xf1", 16, Fault::TooLong),
    (b"\x21\x11\0\x0b", 16, Fault::Length),
    (b"\x21\x21\0\x0c", 16, Fault::Length),
    (b"\x21\x31\0\xd7", 16, Fault::Length),
];

/// Vectors of a header of TCP, which is refused once it is there.
const VECTORS: &[(&[u8], Fault)] = &[
    (b"\x04", Fault::Vector),
    (b"\x04\0", Fault::Vector),
    (b"\x04\0\x01", Fault::Vector),
    (b"\x04\xff\xff\0", Fault::Vector),
    (b"\x03\0\x03\0\0\0", Fault::Vector),
    (b"\x03\0\x05\0\0\0\0\0", Fault::Vector),
    (b"\x20\0\0", Fault::Vector),
    (b"\x20\0\x04\x01\0\0\0", Fault::Vector),
    (b"\x20\0\x06\x01\0\0\0\0\x21", Fault::Vector),
    (b"\x20\0\x08\x01\0\0\0\0\x22\0\x01", Fault::Vector),
    (b"\x20\0\x0b\x01\0\0\0\0\x21\0\x03a b", Fault::Vector),
    (b"\x20\0\x0b\x01\0\0\0\0\x21\0\0\x21\0\0", Fault::VectorRepeated),
    (b"\x20\0\x05\x01\0\0\0\0\x20\0\x05\x01\0\0\0\0", Fault::VectorRepeated),
    (b"\x01\0\0\x01\0\0", Fault::VectorRepeated),
    (b"\x02\0\x01a\x02\0\x01a", Fault::VectorRepeated),
    (b"\x05\0\0\x04\0\0\x05\0\0", Fault::VectorRepeated),
    (b"\x03\0\x04\0\0\0\0\x03\0\x04\0\0\0\0", Fault::VectorRepeated),
    (b"\x03\0\x04\0\0\0\0", Fault::Checksum),
    // Who damages a header does not decide what is said of it.
    (b"\x03\0\x04\0\0\0\0\x02\0\x01 ", Fault::Checksum),
];

fn check(bytes: &[u8], at: usize, fault: Fault) {
    for cut in 0..at {
        assert_eq!(read(&bytes[..cut]), Ok(HeaderRead::Partial), "{cut} bytes of {}", bytes.escape_ascii());
    }
    for cut in at..=bytes.len() {
        assert_eq!(read(&bytes[..cut]), Err(fault), "{cut} bytes of {}", bytes.escape_ascii());
    }
}

#[test]
fn a_line_is_refused_at_its_first_wrong_byte() {
    for (line, at, fault) in LINES {
        check(line.as_bytes(), *at, *fault);
    }
}

#[test]
fn a_line_without_an_end_is_refused_as_soon_as_none_can_come() {
    let line = |length: usize| format!("PROXY UNKNOWN {}", "x".repeat(length - 14));
    // CR has to be the byte before the last that there may be.
    check(line(200).as_bytes(), 106, Fault::TooLong);
    check(format!("{}\r\n", line(106)).as_bytes(), 106, Fault::TooLong);
    check(format!("{}\r\n", LONGEST.replace(" 65535\r", " 655350\r").trim_end()).as_bytes(), 106, Fault::TooLong);
    assert_eq!(whole(format!("{}\r\n", line(105))).1, 107);
    let long = "1111:2222:3333:4444:5555:6666:192.168.100.100";
    check(format!("PROXY TCP6 {long} {long} 10000 10000\r\n").as_bytes(), 106, Fault::TooLong);
}

#[test]
fn the_head_of_a_binary_header_is_refused_at_its_first_wrong_byte() {
    for (head, at, fault) in BINARY {
        check(&[b"\r\n\r\n\0\r\nQUIT\n", *head, &[0; 300]].concat(), *at, *fault);
    }
    for at in 1..12 {
        let mut bytes = *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\0";
        bytes[at] ^= 1;
        check(&bytes, at + 1, Fault::NotProxyProtocol);
    }
}

#[test]
fn wrong_vectors_are_refused_once_the_header_is_there() {
    let long = |kind: u8, length: u16| [&[kind], &length.to_be_bytes()[..], &vec![b'a'; length.into()]].concat();
    let tls = [&b"\x20\0\x29\x01\0\0\0\0"[..], &long(0x21, 33)].concat();
    let long = [
        (long(1, 256), Fault::Vector),
        (long(5, 129), Fault::Vector),
        (long(2, 256), Fault::Vector),
        (tls, Fault::Vector),
    ];
    let short = VECTORS.iter().map(|(vectors, fault)| (vectors.to_vec(), *fault));
    for (vectors, fault) in short.chain(long) {
        let bytes = with_vectors(&vectors);
        let length = bytes.len();
        check(&[bytes, b"GET / HTTP/1.1\r\n".to_vec()].concat(), length, fault);
    }
    for (kind, length) in [(1, 255), (2, 255), (5, 128)] {
        let vector = [&[kind, 0, length][..], &vec![b'a'; length.into()]].concat();
        assert!(whole(with_vectors(&vector)).0.details.is_some());
    }
}

#[test]
fn an_authority_that_is_no_host_says_nothing() {
    for vector in [
        &b"\x02\0\x03a b"[..],
        b"\x02\0\x03a\r\n",
        b"\x02\0\x01\0",
        b"\x02\0\x02\xc3\xa9",
        b"\x02\0\x01\xff",
        b"\x02\0\x03a/b",
        b"\x02\0\x03a@b",
    ] {
        let header = whole(with_vectors(&[vector, b"\x05\0\x01i"].concat())).0;
        assert_eq!((header.authority(), header.unique_id()), (None, Some(&b"i"[..])), "{}", vector.escape_ascii());
    }
}

#[test]
fn every_fault_has_an_example_and_words_of_its_own() {
    let lines = LINES.iter().map(|(_, _, fault)| *fault);
    let heads = BINARY.iter().map(|(_, _, fault)| *fault);
    let seen: BTreeSet<&str> =
        lines.chain(heads).chain(VECTORS.iter().map(|(_, fault)| *fault)).map(Fault::word).collect();
    assert_eq!(seen, Fault::ALL.map(Fault::word).into_iter().collect());
    let sentences: BTreeSet<String> = Fault::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(sentences.len(), Fault::ALL.len());
    assert!(sentences.iter().all(|sentence| sentence.ends_with('.')));
}
