//! Responses, by the sections of RFC 9112 and of RFC 9110.

use super::*;

type Refused = &'static [(&'static str, Fault)];

/// Every table below.
pub(super) const REFUSED: [Refused; 3] = [STATUS_LINES, FIELDS, FRAMING];

fn refuses(table: Refused) {
    for (head, fault) in table {
        assert_eq!(response(head), Err(*fault), "{head:?}");
    }
}

fn seen(head: &str) -> SeenResponse {
    match response(head) {
        Ok(Some(seen)) => seen,
        other => panic!("{head:?} is {other:?}"),
    }
}

/// RFC 9112, 2.2 and 4.
const STATUS_LINES: Refused = &[
    ("\r\nHTTP/1.1 200 OK\r\n\r\n", Fault::StatusLine),
    ("\r", Fault::StatusLine),
    ("\n", Fault::StatusLine),
    ("h", Fault::StatusLine),
    ("ICY 200 OK\r\n\r\n", Fault::StatusLine),
    ("http/1.1 200 OK\r\n\r\n", Fault::StatusLine),
    ("HTTX/1.1 200 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 \r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1  200 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1\t200 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1200 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 20 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 2000 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 099 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 000 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 2x0 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 20x OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 -20 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 200\tOK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 200OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 200 O\0K\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 200 O\rK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 200\r \r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 200 O\u{7f}K\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.2 200 OK\r\n\r\n", Fault::Version),
    ("HTTP/2.0 200 OK\r\n\r\n", Fault::Version),
    ("HTTP/2 200 OK\r\n\r\n", Fault::StatusLine),
    ("HTTP/1.1 200 OK\n\n", Fault::BareLf),
    ("HTTP/1.1 200 OK\r\nX: y\n\r\n", Fault::BareLf),
];

/// RFC 9112, 5.
const FIELDS: Refused = &[
    ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", Fault::FieldName),
    ("HTTP/1.1 200 OK\r\n: y\r\n\r\n", Fault::FieldName),
    ("HTTP/1.1 200 OK\r\nX: \0\r\n\r\n", Fault::FieldValue),
    ("HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", Fault::FieldValue),
    ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", Fault::ObsoleteFold),
    ("HTTP/1.1 200 OK\r\n X: a\r\n\r\n", Fault::ObsoleteFold),
];

/// RFC 9112, 6.1, 6.2, 6.3 and 11.1.
const FRAMING: Refused = &[
    ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::LengthAndCoding),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", Fault::LengthAndCoding),
    ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::CodingOn10),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Fault::CodingUnknown),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", Fault::CodingNotFinal),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", Fault::CodingRepeated),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n", Fault::CodingNotFinal),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", Fault::ContentLengthRepeated),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\n", Fault::ContentLengthRepeated),
    ("HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n", Fault::ContentLength),
    ("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n", Fault::ContentLength),
    // Checked although it frames nothing.
    ("HTTP/1.1 304 Not Modified\r\nContent-Length: x\r\n\r\n", Fault::ContentLength),
    ("HTTP/1.1 204 No Content\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", Fault::ContentLengthRepeated),
    ("HTTP/1.1 100 Continue\r\nContent-Length: -1\r\n\r\n", Fault::ContentLength),
];

#[test]
fn rfc_9112_4_a_status_line_has_one_spelling() {
    refuses(STATUS_LINES);
    let table = [
        ("HTTP/1.1 200 OK", 200, "OK"),
        ("HTTP/1.1 200 ", 200, ""),
        ("HTTP/1.1 200", 200, ""),
        ("HTTP/1.0 404 Not\tFound here", 404, "Not\tFound here"),
        ("HTTP/1.1 100 Continue", 100, "Continue"),
        ("HTTP/1.1 999  two", 999, " two"),
        ("HTTP/1.1 200 \u{20ac}", 200, "\u{20ac}"),
    ];
    for (line, status, reason) in table {
        let head = seen(&format!("{line}\r\n\r\n"));
        assert_eq!((head.status, head.reason.as_slice()), (status, reason.as_bytes()), "{line:?}");
    }
    for incomplete in ["", "H", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r"] {
        assert_eq!(response(incomplete), Ok(None), "{incomplete:?}");
    }
}

#[test]
fn rfc_9112_5_field_lines_are_read_as_strictly_as_those_of_requests() {
    refuses(FIELDS);
    let head = seen("HTTP/1.1 200 OK\r\nA:\t1 \r\nB:\r\n\r\n");
    assert_eq!(head.fields, [(b"A".to_vec(), b"1".to_vec()), (b"B".to_vec(), Vec::new())]);
}

#[test]
fn rfc_9112_6_3_framing_follows_status_coding_length_and_close_in_this_order() {
    refuses(FRAMING);
    let chunked = "Transfer-Encoding: chunked\r\n";
    let length = "Content-Length: 3\r\n";
    let both = "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n";
    let unknown = "Transfer-Encoding: gzip\r\n";
    let table = [
        ("HTTP/1.1 200", "", false, Framing::UntilClose, None),
        ("HTTP/1.0 200", "", false, Framing::UntilClose, None),
        ("HTTP/1.1 200", chunked, false, Framing::Chunked, None),
        ("HTTP/1.1 200", length, false, Framing::Length(3), Some(3)),
        ("HTTP/1.0 200", length, false, Framing::Length(3), Some(3)),
        ("HTTP/1.1 500", "Content-Length: 0\r\n", false, Framing::Length(0), Some(0)),
        ("HTTP/1.1 205", length, false, Framing::Length(3), Some(3)),
        // Answers to HEAD.
        ("HTTP/1.1 200", "", true, Framing::None, None),
        ("HTTP/1.1 200", length, true, Framing::None, Some(3)),
        ("HTTP/1.1 200", chunked, true, Framing::None, None),
        ("HTTP/1.1 200", both, true, Framing::None, Some(3)),
        ("HTTP/1.0 200", unknown, true, Framing::None, None),
        // Never a body.
        ("HTTP/1.1 304", "", false, Framing::None, None),
        ("HTTP/1.1 304", length, false, Framing::None, Some(3)),
        ("HTTP/1.1 304", both, false, Framing::None, Some(3)),
        ("HTTP/1.1 204", length, false, Framing::None, None),
        ("HTTP/1.1 204", unknown, false, Framing::None, None),
        ("HTTP/1.1 100", length, false, Framing::None, None),
        ("HTTP/1.1 101", chunked, false, Framing::None, None),
        ("HTTP/1.1 199", length, false, Framing::None, None),
        ("HTTP/1.1 203", "", false, Framing::UntilClose, None),
    ];
    for (line, fields, answers_head, framing, content_length) in table {
        let bytes = format!("{line} x\r\n{fields}\r\n");
        let head = response_in_pieces(bytes.as_bytes(), &LIMITS, answers_head, &[]).unwrap().unwrap();
        assert_eq!((head.framing, head.content_length), (framing, content_length), "{bytes:?} {answers_head}");
    }
}

#[test]
fn rfc_9110_15_2_any_1xx_but_101_is_interim() {
    for (status, is_interim) in [(100, true), (101, false), (102, true), (103, true), (199, true), (200, false)] {
        assert_eq!(seen(&format!("HTTP/1.1 {status} x\r\n\r\n")).is_interim, is_interim, "{status}");
    }
}

#[test]
fn rfc_9112_9_3_a_connection_lives_on_if_the_body_ends_before_it_and_connection_allows() {
    let table = [
        ("HTTP/1.1", "Content-Length: 0\r\n", true),
        ("HTTP/1.1", "Transfer-Encoding: chunked\r\n", true),
        ("HTTP/1.1", "", false),
        ("HTTP/1.1", "Connection: keep-alive\r\n", false),
        ("HTTP/1.1", "Content-Length: 0\r\nConnection: close\r\n", false),
        ("HTTP/1.0", "Content-Length: 0\r\n", false),
        ("HTTP/1.0", "Content-Length: 0\r\nConnection: keep-alive\r\n", true),
        ("HTTP/1.0", "Connection: keep-alive\r\n", false),
    ];
    for (version, fields, is_persistent) in table {
        let head = seen(&format!("{version} 200 OK\r\n{fields}\r\n"));
        assert_eq!(head.is_persistent, is_persistent, "{version} {fields:?}");
    }
}

#[test]
fn rfc_9110_7_8_the_new_protocol_is_named_once() {
    let table = [
        ("HTTP/1.1", "Connection: upgrade\r\nUpgrade: websocket\r\n", Some("websocket")),
        ("HTTP/1.1", "Upgrade: websocket\r\n", None),
        ("HTTP/1.1", "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: a\r\n", None),
        ("HTTP/1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n", None),
    ];
    for (version, fields, upgrade) in table {
        let head = seen(&format!("{version} 101 x\r\n{fields}\r\n"));
        assert_eq!(head.upgrade.as_deref(), upgrade.map(str::as_bytes), "{version} {fields:?}");
    }
}

#[test]
fn a_head_beyond_its_limits_is_refused() {
    let head = "HTTP/1.1 200 OK\r\nX: y\r\n\r\n";
    for max_bytes in 0..head.len() {
        let limits = HeadLimits { max_bytes, max_fields: 16 };
        let fault = if max_bytes < 17 { Fault::StatusLine } else { Fault::HeadTooLarge };
        assert_eq!(response_in_pieces(head.as_bytes(), &limits, false, &[]), Err(fault), "{max_bytes}");
    }
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(17));
    assert_eq!(response(many), Err(Fault::TooManyFields));
}

#[test]
fn a_head_that_is_reused_remembers_nothing() {
    let full = "HTTP/1.0 404 Not Found\r\nConnection: close, x\r\nUpgrade: u\r\nContent-Length: 3\r\n\r\n";
    let plain = "HTTP/1.1 200\r\n\r\n";
    let mut head = ResponseHead::default();
    head.parse(full.as_bytes(), &LIMITS, false).unwrap();
    head.parse(plain.as_bytes(), &LIMITS, false).unwrap();
    let mut fresh = ResponseHead::default();
    fresh.parse(plain.as_bytes(), &LIMITS, false).unwrap();
    assert_eq!(format!("{head:?}"), format!("{fresh:?}"));
    assert!(head.parse(b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n", &LIMITS, false).is_err());
    assert_eq!(format!("{head:?}"), format!("{:?}", ResponseHead::default()));
}
