//! Bodies, by the sections of RFC 9112 and of RFC 9110.

use super::*;

/// Chunked bodies that are refused: RFC 9112, 7.1.
pub(super) const REFUSED: &[(&str, Fault)] = &[
    // Sizes.
    ("\r\n", Fault::ChunkSize),
    ("\n", Fault::ChunkSize),
    (";x\r\n", Fault::ChunkSize),
    (" 3\r\nabc\r\n", Fault::ChunkSize),
    ("g\r\n", Fault::ChunkSize),
    ("0x3\r\nabc\r\n", Fault::ChunkSize),
    ("+3\r\nabc\r\n", Fault::ChunkSize),
    ("-3\r\nabc\r\n", Fault::ChunkSize),
    ("3_0\r\n", Fault::ChunkSize),
    ("3.0\r\n", Fault::ChunkSize),
    ("3,3\r\n", Fault::ChunkSize),
    ("\u{ff13}\r\n", Fault::ChunkSize),
    ("3\nabc\r\n", Fault::ChunkSize),
    ("3\rabc", Fault::ChunkSize),
    ("3\r\r\nabc", Fault::ChunkSize),
    ("3\0\r\nabc", Fault::ChunkSize),
    ("00000000000000003\r\nabc\r\n", Fault::ChunkSize),
    ("8000000000000000\r\n", Fault::ChunkSize),
    ("ffffffffffffffff\r\n", Fault::ChunkSize),
    ("FFFFFFFFFFFFFFFFF\r\n", Fault::ChunkSize),
    ("10000000000000000\r\n", Fault::ChunkSize),
    ("3\r\nabc\r\n\r\n", Fault::ChunkSize),
    // Extensions: RFC 9112, 7.1.1.
    ("3 \r\nabc\r\n", Fault::ChunkExtension),
    ("3\t\r\nabc\r\n", Fault::ChunkExtension),
    ("3 3\r\nabc\r\n", Fault::ChunkExtension),
    ("3 x\r\nabc\r\n", Fault::ChunkExtension),
    ("3 \nabc\r\n", Fault::ChunkExtension),
    ("3;x\nabc\r\n", Fault::ChunkExtension),
    ("3;\nabc\r\n", Fault::ChunkExtension),
    ("3;x\rabc\r\n", Fault::ChunkSize),
    ("3;x\0\r\nabc\r\n", Fault::ChunkExtension),
    ("3;x=\"\n\"\r\nabc\r\n", Fault::ChunkExtension),
    ("3;x=\u{7f}\r\nabc\r\n", Fault::ChunkExtension),
    ("3;x=\u{1b}\r\nabc\r\n", Fault::ChunkExtension),
    ("0;x\n\r\n", Fault::ChunkExtension),
    // What follows the data.
    ("3\r\nabcd", Fault::ChunkEnd),
    ("3\r\nabc\n", Fault::ChunkEnd),
    ("3\r\nabc0\r\n\r\n", Fault::ChunkEnd),
    ("3\r\nabc\rd", Fault::ChunkEnd),
    ("3\r\nabc\r\r\n", Fault::ChunkEnd),
    // Trailers: RFC 9112, 7.1.2.
    ("0\r\n\n", Fault::Trailer),
    ("0\r\n\r\r\n", Fault::Trailer),
    ("0\r\n\rX", Fault::Trailer),
    ("0\r\n X: y\r\n\r\n", Fault::Trailer),
    ("0\r\nX: y\r\n z\r\n\r\n", Fault::Trailer),
    ("0\r\nX: y\n\r\n", Fault::Trailer),
    ("0\r\nX: y\rZ: w\r\n\r\n", Fault::Trailer),
    ("0\r\nX : y\r\n\r\n", Fault::Trailer),
    ("0\r\n: y\r\n\r\n", Fault::Trailer),
    ("0\r\nX\r\n\r\n", Fault::Trailer),
    ("0\r\nX: \0\r\n\r\n", Fault::Trailer),
    ("0\r\nX: \u{7f}\r\n\r\n", Fault::Trailer),
    ("0\r\nGET / HTTP/1.1\r\n\r\n", Fault::Trailer),
    ("0\r\nA: b\r\nContent-Length : 3\r\n\r\n", Fault::Trailer),
];

#[test]
fn rfc_9112_7_1_a_malformed_chunk_is_refused_in_either_form() {
    for (bytes, fault) in REFUSED {
        for form in [ChunkPart::AsIs, ChunkPart::Content] {
            assert_eq!(chunked(bytes, form), Err(*fault), "{bytes:?}");
        }
    }
}

#[test]
fn rfc_9112_7_1_chunks_are_kept_as_they_come_or_their_content_alone() {
    // What comes, what is written on as it is, and the content.
    let table: &[(&str, &str, &str)] = &[
        ("0\r\n\r\n", "0\r\n\r\n", ""),
        ("000\r\n\r\n", "000\r\n\r\n", ""),
        ("3\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("0003\r\nabc\r\n1\r\nd\r\n00\r\n\r\n", "0003\r\nabc\r\n1\r\nd\r\n00\r\n\r\n", "abcd"),
        ("a\r\n0123456789\r\n0\r\n\r\n", "a\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
        ("A\r\n0123456789\r\n0\r\n\r\n", "A\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
        ("0000000000000001\r\nx\r\n0000000000000000\r\n\r\n", "0000000000000001\r\nx\r\n0000000000000000\r\n\r\n", "x"),
        // Data that looks like framing.
        ("7\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n", "7\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n", "0\r\n\r\n\r\n"),
        // RFC 9112, 7.1.1: extensions are dropped.
        ("3;x\r\nabc\r\n0;y=z\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("3 \t;x=\"a;b\\\"\" ; y\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("3;\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("1;\u{20ac}\r\na\r\n0\r\n\r\n", "1\r\na\r\n0\r\n\r\n", "a"),
        ("1;3\r\na\r\n0\r\n\r\n", "1\r\na\r\n0\r\n\r\n", "a"),
        // RFC 9112, 7.1.2: trailers are normalised.
        ("1\r\na\r\n0\r\nX-Sum:  1 \r\nEmpty:\r\n\r\n", "1\r\na\r\n0\r\nX-Sum: 1\r\nEmpty: \r\n\r\n", "a"),
        ("0\r\nContent-Length: 3\r\n\r\n", "0\r\n\r\n", ""),
        ("0\r\nA: 1\r\nHost: b\r\nC: 2\r\n\r\n", "0\r\nA: 1\r\nC: 2\r\n\r\n", ""),
    ];
    for (bytes, as_is, content) in table {
        let sent = format!("{bytes}GET / HTTP/1.1\r\n");
        let seen = |written: &str| SeenBody {
            written: written.as_bytes().to_vec(),
            taken: bytes.len(),
            content: content.len() as u64,
            is_complete: true,
        };
        assert_eq!(chunked(&sent, ChunkPart::AsIs), Ok(seen(as_is)), "{bytes:?}");
        assert_eq!(chunked(&sent, ChunkPart::Content), Ok(seen(content)), "{bytes:?}");
    }
}

#[test]
fn rfc_9110_6_5_1_a_trailer_that_a_recipient_could_act_on_is_dropped() {
    let dropped = [
        "Transfer-Encoding",
        "content-length",
        "Content-Type",
        "CONTENT-ENCODING",
        "content-range",
        "Host",
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "Upgrade",
        "HTTP2-Settings",
        "Authorization",
        "Proxy-Authorization",
        "Proxy-Authenticate",
        "WWW-Authenticate",
        "Cookie",
        "Set-Cookie",
        "Cache-Control",
        "Expect",
        "Max-Forwards",
        "Pragma",
        "Range",
        "If-Match",
        "If-None-Match",
        "If-Modified-Since",
        "If-Range",
        "Age",
        "Expires",
        "Date",
        "Location",
        "Retry-After",
        "Vary",
        "Warning",
        "Forwarded",
        "Via",
        "X-Forwarded-For",
        "x-forwarded-proto",
        "X-Real-IP",
        "X-Request-Id",
        "X-Sluicegate-Anything",
        "X_Forwarded_For",
        "Content_Length",
        "Access-Control-Allow-Origin",
        "Strict-Transport-Security",
    ];
    for name in dropped {
        let seen = chunked(format!("0\r\n{name}: 1\r\nX-Sum: 2\r\n\r\n"), ChunkPart::AsIs).unwrap();
        assert_eq!(seen.written, b"0\r\nX-Sum: 2\r\n\r\n", "{name}");
    }
    let kept = [
        "X-Sum",
        "grpc-status",
        "Server-Timing",
        "ETag",
        "Digest",
        "Content-Digest",
        "Hosts",
        "X-Forwarded",
        "Tea",
        "I",
    ];
    for name in kept {
        let bytes = format!("0\r\n{name}: 1\r\n\r\n");
        assert_eq!(chunked(&bytes, ChunkPart::AsIs).unwrap().written, bytes.as_bytes());
    }
}

#[test]
fn rfc_9112_7_1_1_extensions_are_bounded_per_chunk_and_per_body() {
    let chunk = |extension: usize| format!("1;{}\r\na\r\n", "x".repeat(extension - 1));
    assert!(chunked(chunk(256), ChunkPart::AsIs).is_ok());
    assert_eq!(chunked(chunk(257), ChunkPart::AsIs), Err(Fault::ChunkExtension));
    let spaces = |spaces: usize| format!("1{};\r\na\r\n", " ".repeat(spaces));
    assert!(chunked(spaces(255), ChunkPart::AsIs).is_ok());
    assert_eq!(chunked(spaces(256), ChunkPart::AsIs), Err(Fault::ChunkExtension));
    let all = chunk(256).repeat(64);
    assert!(chunked(format!("{all}0\r\n\r\n"), ChunkPart::AsIs).unwrap().is_complete);
    assert_eq!(chunked(format!("{all}0;\r\n\r\n"), ChunkPart::AsIs), Err(Fault::ChunkExtension));
}

#[test]
fn rfc_9112_7_1_2_trailers_are_bounded_in_bytes_and_in_lines() {
    let lines = |lines: usize| format!("0\r\n{}\r\n", "X: y\r\n".repeat(lines));
    assert!(chunked(lines(32), ChunkPart::AsIs).unwrap().is_complete);
    assert_eq!(chunked(lines(33), ChunkPart::AsIs), Err(Fault::Trailer));
    let long = |length: usize| format!("0\r\nX: {}\r\n\r\n", "y".repeat(length - 5));
    assert!(chunked(long(8192), ChunkPart::AsIs).unwrap().is_complete);
    assert_eq!(chunked(long(8193), ChunkPart::AsIs), Err(Fault::Trailer));
    // Written, it would be a byte too long for the next gateway.
    assert_eq!(chunked(long(8193).replace(": ", ":"), ChunkPart::AsIs), Err(Fault::Trailer));
    // A line that does not end is refused as early.
    assert_eq!(chunked(&long(9000)[..8196], ChunkPart::AsIs), Err(Fault::Trailer));
}

#[test]
fn the_largest_chunk_is_counted_without_overflow() {
    let seen = chunked("7fffffffffffffff\r\nabc", ChunkPart::Content).unwrap();
    assert_eq!(seen, SeenBody { written: b"abc".to_vec(), taken: 21, content: 3, is_complete: false });
}

#[test]
fn rfc_9112_8_a_body_that_ends_early_is_truncated() {
    let whole = "3;x\r\nabc\r\n0\r\nX: y\r\n\r\n";
    for length in 0..whole.len() {
        let mut body = Body::new(Framing::Chunked, ChunkPart::AsIs);
        body.accept(&mut whole.as_bytes()[..length].to_vec()).unwrap();
        assert!(!body.is_complete(), "{length}");
        assert_eq!(body.end(), Err(Fault::Truncated), "{length}");
    }
    let mut body = Body::new(Framing::Chunked, ChunkPart::AsIs);
    body.accept(&mut whole.as_bytes().to_vec()).unwrap();
    assert_eq!(body.end(), Ok(()));
    let mut body = Body::new(Framing::Length(3), ChunkPart::AsIs);
    body.accept(&mut b"ab".to_vec()).unwrap();
    assert_eq!(body.end(), Err(Fault::Truncated));
}

#[test]
fn rfc_9112_6_2_a_body_of_a_length_takes_as_many_bytes() {
    for form in [ChunkPart::AsIs, ChunkPart::Content] {
        let mut body = Body::new(Framing::Length(5), form);
        assert_eq!((body.remaining(), body.is_complete()), (Some(5), false));
        assert_eq!(body.accept(&mut b"abc".to_vec()), Ok(accepted(3)));
        assert_eq!((body.remaining(), body.content()), (Some(2), 3));
        assert_eq!(body.accept(&mut b"".to_vec()), Ok(accepted(0)));
        assert_eq!(body.accept(&mut b"defg".to_vec()), Ok(accepted(2)));
        assert_eq!((body.remaining(), body.content(), body.is_complete()), (Some(0), 5, true));
        assert_eq!(body.accept(&mut b"g".to_vec()), Ok(accepted(0)));
        assert_eq!(body.tail(), b"");
        assert_eq!(body.end(), Ok(()));
    }
    let mut body = Body::new(Framing::Length(i64::MAX as u64), ChunkPart::AsIs);
    assert_eq!(body.accept(&mut b"abc".to_vec()), Ok(accepted(3)));
    assert_eq!(body.remaining(), Some(i64::MAX as u64 - 3));
    assert!(Body::new(Framing::Length(0), ChunkPart::AsIs).is_complete());
}

#[test]
fn a_message_without_body_takes_nothing() {
    let mut body = Body::new(Framing::None, ChunkPart::AsIs);
    assert!(body.is_complete());
    assert_eq!(body.accept(&mut b"HTTP/1.1".to_vec()), Ok(accepted(0)));
    assert_eq!((body.end(), body.content(), body.remaining()), (Ok(()), 0, None));
}

#[test]
fn rfc_9112_6_3_a_body_until_close_ends_with_the_connection_only() {
    let mut body = Body::new(Framing::UntilClose, ChunkPart::Content);
    assert_eq!(body.accept(&mut b"abc".to_vec()), Ok(accepted(3)));
    assert_eq!((body.is_complete(), body.remaining(), body.content()), (false, None, 3));
    assert_eq!((body.end(), body.is_complete()), (Ok(()), true));
    assert_eq!(body.accept(&mut b"abc".to_vec()), Ok(accepted(0)));
}

#[test]
fn a_body_that_is_reused_remembers_nothing() {
    let mut body = Body::new(Framing::Chunked, ChunkPart::AsIs);
    let fresh = format!("{body:?}");
    for before in ["3;xxx", "3\r\nab", "x", "0\r\nX: y\r\nZ", "0\r\nX: y\r\n\r\n", "1;x\r\na\r\n"] {
        let _ = body.accept(&mut before.as_bytes().to_vec());
        body.reset(Framing::Chunked, ChunkPart::AsIs);
        assert_eq!(format!("{body:?}"), fresh, "{before:?}");
    }
    body.reset(Framing::UntilClose, ChunkPart::AsIs);
    let _ = (body.accept(&mut b"abc".to_vec()), body.end());
    body.reset(Framing::UntilClose, ChunkPart::AsIs);
    assert_eq!(body.accept(&mut b"abc".to_vec()), Ok(accepted(3)));
    assert!(!body.is_complete());
    body.reset(Framing::Length(3), ChunkPart::Content);
    assert_eq!((body.remaining(), body.content(), body.is_complete()), (Some(3), 0, false));
}

fn accepted(bytes: usize) -> crate::Accepted {
    crate::Accepted { taken: bytes, kept: bytes }
}
