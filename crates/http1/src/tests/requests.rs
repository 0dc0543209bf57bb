//! Requests, by the sections of RFC 9112 and of RFC 9110.

use super::*;

type Refused = &'static [(&'static str, Fault)];

/// Every table below.
pub(super) const REFUSED: [Refused; 13] = [
    EMPTY_LINES_AND_LINE_ENDS,
    REQUEST_LINES,
    METHODS,
    TARGET_BYTES,
    TARGET_FORMS,
    HOSTS,
    FIELD_SYNTAX,
    OBSOLETE_FOLDS,
    CODINGS,
    LENGTHS,
    CONFLICTS,
    EXPECTATIONS,
    NOMINATIONS,
];

fn refuses(table: Refused) {
    for (head, fault) in table {
        assert_eq!(request(head), Err(*fault), "{head:?}");
    }
}

fn seen(head: &str) -> SeenRequest {
    match request(head) {
        Ok(Some(seen)) => seen,
        other => panic!("{head:?} is {other:?}"),
    }
}

/// RFC 9112, 2.2, and 11.1.
const EMPTY_LINES_AND_LINE_ENDS: Refused = &[
    ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::EmptyLines),
    ("\r\n\r", Fault::EmptyLines),
    ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("\r\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1.1\nHost: a\n\n", Fault::BareLf),
    ("GET / HTTP/1.1\n", Fault::BareLf),
    ("GET / HTTP/1.1\r\nHost: a\n\r\n", Fault::BareLf),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: y\nZ: w\r\n\r\n", Fault::BareLf),
    ("GET / HTTP/1.1\r\nHost: a\r\n\n", Fault::BareLf),
    ("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: w\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\r: y\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\rHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    // A field before the first line's end, and spaces between it and the first field.
    ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Fault::ObsoleteFold),
];

/// RFC 9112, 3.
const REQUEST_LINES: Refused = &[
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", Fault::RequestLine),
    (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET / a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET /\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET \r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET  HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / \r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1.\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1.10\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/11.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1.x\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/x.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1,1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / http/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTPS/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / XTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET / HTTP/1.1,\r\nHost: a\r\n\r\n", Fault::RequestLine),
    // RFC 9110, 2.5 and 15.6.6.
    ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", Fault::Version),
    ("GET / HTTP/0.9\r\nHost: a\r\n\r\n", Fault::Version),
    ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", Fault::Version),
    ("GET / HTTP/9.9\r\nHost: a\r\n\r\n", Fault::Version),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Fault::Version),
    // What another protocol says first is refused without waiting for a line.
    ("\u{16}\u{3}\u{1}", Fault::RequestLine),
    ("\0", Fault::RequestLine),
    ("(", Fault::RequestLine),
    (":", Fault::RequestLine),
];

/// RFC 9110, 9.1.
const METHODS: Refused = &[
    ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("G\0T / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("GET: / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("G\u{e9}T / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456 / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::RequestLine),
    ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", Fault::Connect),
    ("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", Fault::Connect),
];

/// RFC 9112, 3.2, and RFC 3986, 2.
const TARGET_BYTES: Refused = &[
    ("GET /# HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /?a#b HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /\" HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /< HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /?> HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /\u{7f} HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
    ("GET # HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetByte),
];

/// RFC 9112, 3.2.1 to 3.2.4.
const TARGET_FORMS: Refused = &[
    ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET ?a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET \\a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("connect a:80 HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    // Absolute form.
    ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET ws://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http:/a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http:a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http:// HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://?a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://:80/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://user:pass@a/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://@a/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://a:b/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://a\\b/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://a^b/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("GET http://[::1/ HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    // Asterisk form.
    ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("options * HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("OPTIONS *a HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("OPTIONS *? HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
    ("OPTIONS ** HTTP/1.1\r\nHost: a\r\n\r\n", Fault::TargetForm),
];

/// RFC 9112, 3.2, and RFC 9110, 7.2.
const HOSTS: Refused = &[
    ("GET / HTTP/1.1\r\n\r\n", Fault::HostMissing),
    ("GET / HTTP/1.1\r\nHosts: a\r\nHos: a\r\nGhost: a\r\n\r\n", Fault::HostMissing),
    ("GET http://a/ HTTP/1.1\r\n\r\n", Fault::HostMissing),
    ("OPTIONS * HTTP/1.1\r\n\r\n", Fault::HostMissing),
    ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Fault::HostRepeated),
    ("GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", Fault::HostRepeated),
    ("GET / HTTP/1.1\r\nHost:\r\nHost: b\r\n\r\n", Fault::HostRepeated),
    ("GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Fault::HostRepeated),
    ("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", Fault::HostRepeated),
    ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a\tb\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: http://a\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a?\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a#\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: \"a\"\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a:\u{e9}\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: \u{e9}\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a:80:80\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a:-1\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a:99999999999999999999999\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: :80\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: []\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: [::1]a\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: [::1]:\u{200b}\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a]\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a%\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a%4\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a%4g\r\n\r\n", Fault::HostInvalid),
    ("GET / HTTP/1.1\r\nHost: a%41/\r\n\r\n", Fault::HostInvalid),
];

/// RFC 9112, 5.1, and RFC 9110, 5.1 and 5.5.
const FIELD_SYNTAX: Refused = &[
    ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost\t: a\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX y: b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\u{7f}: b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\n(X): b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX/Y: b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\n\"X\": b\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nGET / HTTP/1.1\r\n\r\n", Fault::FieldName),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\0\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX:\0\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: \u{1}b\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\u{b}c\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\u{c}c\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\u{1b}[m\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\u{7f}\r\n\r\n", Fault::FieldValue),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: a value long enough to fill words\u{7f} and more\r\n\r\n", Fault::FieldValue),
];

/// RFC 9112, 5.2.
const OBSOLETE_FOLDS: Refused = &[
    ("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", Fault::ObsoleteFold),
    ("GET / HTTP/1.1\r\nHost: a\r\n\tb\r\n\r\n", Fault::ObsoleteFold),
    ("GET / HTTP/1.1\r\nHost: a\r\n \r\n\r\n", Fault::ObsoleteFold),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n Content-Length: 3\r\n\r\n", Fault::ObsoleteFold),
    ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", Fault::ObsoleteFold),
    // At once.
    ("GET / HTTP/1.1\r\nHost: a\r\n ", Fault::ObsoleteFold),
    ("GET / HTTP/1.1\r\nHost: a\r\n\t", Fault::ObsoleteFold),
];

/// RFC 9112, 6.1, 6.3 and 7.
const CODINGS: Refused = &[
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Fault::CodingUnknown),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        Fault::CodingUnknown,
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n", Fault::CodingUnknown),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"a, chunked\r\n\r\n", Fault::CodingUnknown),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1, chunked\r\n\r\n", Fault::CodingUnknown),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", Fault::CodingNotFinal),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        Fault::CodingNotFinal,
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked x\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, ,chunked\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::CodingNotFinal),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", Fault::CodingRepeated),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        Fault::CodingRepeated,
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip, chunked\r\n\r\n", Fault::CodingRepeated),
    ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::CodingOn10),
    ("POST / HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n", Fault::CodingOn10),
    ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", Fault::CodingOn10),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", Fault::FieldName),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n", Fault::FieldValue),
];

/// RFC 9112, 6.2 and 6.3, and RFC 9110, 8.6.
const LENGTHS: Refused = &[
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: a\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3a\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3 3\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\t3\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3.0\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \"3\"\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \u{663}\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551620\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551619\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999999\r\n\r\n", Fault::ContentLength),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3,3\r\n\r\n", Fault::ContentLengthRepeated),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 4\r\n\r\n", Fault::ContentLengthRepeated),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3,\r\n\r\n", Fault::ContentLengthRepeated),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ,3\r\n\r\n", Fault::ContentLengthRepeated),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", Fault::ContentLengthRepeated),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\ncontent-length: 4\r\n\r\n", Fault::ContentLengthRepeated),
    ("POST / HTTP/1.0\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", Fault::ContentLengthRepeated),
];

/// RFC 9112, 6.3 and 11.2: what smuggles a request.
const CONFLICTS: Refused = &[
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::LengthAndCoding),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", Fault::LengthAndCoding),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", Fault::LengthAndCoding),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\n", Fault::LengthAndCoding),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\n", Fault::LengthAndCoding),
    (
        "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding:\tCHUNKED\t\r\nContent-Length: 3\r\n\r\n",
        Fault::LengthAndCoding,
    ),
];

/// RFC 9110, 7.6.1: more than anybody names.
const NOMINATIONS: Refused = &[(
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a\r\nConnection: b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b,b\r\n\r\n",
    Fault::ConnectionOptions,
)];

/// RFC 9110, 10.1.1.
const EXPECTATIONS: Refused = &[
    ("POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", Fault::Expectation),
    ("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue, x\r\n\r\n", Fault::Expectation),
    ("POST / HTTP/1.1\r\nHost: a\r\nExpect:\r\n\r\n", Fault::Expectation),
    ("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: x\r\n\r\n", Fault::Expectation),
];

#[test]
fn rfc_9112_2_2_lines_end_in_crlf_and_one_empty_line_may_come_first() {
    refuses(EMPTY_LINES_AND_LINE_ENDS);
    let plain = seen("GET / HTTP/1.1\r\nHost: a\r\n\r\nrest");
    assert_eq!(plain.length, 27);
    let after_empty_line = seen("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nrest");
    assert_eq!(after_empty_line, SeenRequest { length: 29, ..plain });
    for incomplete in ["", "\r", "\r\n", "G", "GET / HTTP/1.1\r\nHost: a\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r"] {
        assert_eq!(request(incomplete), Ok(None), "{incomplete:?}");
    }
}

#[test]
fn rfc_9112_3_a_request_line_has_one_spelling() {
    refuses(REQUEST_LINES);
    assert_eq!(seen("GET / HTTP/1.1\r\nHost: a\r\n\r\n").version, Version::Http11);
    assert_eq!(seen("GET / HTTP/1.0\r\n\r\n").version, Version::Http10);
}

#[test]
fn rfc_9110_9_1_a_method_is_a_token() {
    refuses(METHODS);
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "PROPFIND", "get", "Head"];
    for method in methods.into_iter().chain(["!#$%&'*+-.^_`|~09AZaz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"]) {
        assert_eq!(seen(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")).method, method);
    }
}

#[test]
fn rfc_9112_3_2_a_target_holds_no_byte_that_must_be_encoded() {
    refuses(TARGET_BYTES);
    let every = (0x21..=0x7eu8).filter(|byte| !b"\"#<>?".contains(byte)).map(char::from).collect::<String>();
    let head = seen(&format!("GET /{every}?{every}? HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(head.path, format!("/{every}"));
    assert_eq!(head.query, Some(format!("{every}?")));
}

#[test]
fn rfc_9112_3_2_1_to_3_2_4_a_target_has_a_form_that_its_method_allows() {
    refuses(TARGET_FORMS);
    // Target, method, path, query, and the authority if it is not that of `Host: a`.
    let accepted = [
        ("/", "GET", "/", None, None),
        ("/?", "GET", "/", Some(""), None),
        ("/a/b?c=d?e", "GET", "/a/b", Some("c=d?e"), None),
        ("//a", "GET", "//a", None, None),
        ("/http://b/", "GET", "/http://b/", None, None),
        ("/*", "OPTIONS", "/*", None, None),
        ("*", "OPTIONS", "*", None, None),
        ("http://b", "GET", "/", None, Some("b")),
        ("http://b", "OPTIONS", "*", None, Some("b")),
        ("http://b/", "OPTIONS", "/", None, Some("b")),
        ("http://b?", "OPTIONS", "/", Some(""), Some("b")),
        ("http://b/c", "OPTIONS", "/c", None, Some("b")),
        ("http://b?c", "GET", "/", Some("c"), Some("b")),
        ("http://b?/c", "GET", "/", Some("/c"), Some("b")),
        ("HTTP://b/c?d", "GET", "/c", Some("d"), Some("b")),
        ("HttpS://b:8443/c", "GET", "/c", None, Some("b:8443")),
        ("http://[::1]:8080/", "GET", "/", None, Some("[::1]:8080")),
        ("http://b:/@", "GET", "/@", None, Some("b:")),
    ];
    for (target, method, path, query, authority) in accepted {
        let head = seen(&format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(head.path, path, "{target}");
        assert_eq!(head.query.as_deref(), query, "{target}");
        assert_eq!(head.authority.as_deref(), Some(authority.unwrap_or("a")), "{target}");
    }
}

#[test]
fn rfc_9112_3_2_host_is_there_once_and_is_a_host() {
    refuses(HOSTS);
    let hosts = [
        "a",
        "",
        "A.example.",
        "a:80",
        "a:",
        "a:65535",
        "a:00080",
        "127.0.0.1:8080",
        "[::1]",
        "[::1]:80",
        "[v1.a:b]",
        "a_b-c~d",
        "a%41",
        "%e4:80",
        "!$&'()*+,;=",
    ];
    for host in hosts {
        let head = seen(&format!("GET / HTTP/1.1\r\nX: y\r\nHost: {host}\t \r\n\r\n"));
        assert_eq!(head.authority.as_deref(), Some(host));
        assert_eq!(head.fields[1], (b"Host".to_vec(), host.as_bytes().to_vec()));
    }
    assert_eq!(seen("GET / HTTP/1.0\r\n\r\n").authority, None);
    assert_eq!(seen("GET http://b/ HTTP/1.0\r\n\r\n").authority.as_deref(), Some("b"));
}

#[test]
fn rfc_9112_5_1_a_field_line_is_a_token_a_colon_and_visible_text() {
    refuses(FIELD_SYNTAX);
    let name = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let lines = format!("{name}:\t  a\t b \t \r\nEmpty:\r\nBlank: \t \r\nColon:::\r\nTight:x\r\nX: [\u{20ac}]\r\n");
    let head = seen(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
    let expected = [
        ("Host", "a"),
        (name, "a\t b"),
        ("Empty", ""),
        ("Blank", ""),
        ("Colon", "::"),
        ("Tight", "x"),
        ("X", "[\u{20ac}]"),
    ];
    let expected = expected.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
    assert_eq!(head.fields, expected);
}

#[test]
fn rfc_9112_5_2_a_folded_line_is_refused() {
    refuses(OBSOLETE_FOLDS);
}

#[test]
fn rfc_9112_6_1_the_only_coding_is_chunked_once() {
    refuses(CODINGS);
    for chunked in ["chunked", "Chunked", "CHUNKED", "\t chunked \t"] {
        let head = seen(&format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:{chunked}\r\n\r\n"));
        assert_eq!(head.framing, Framing::Chunked);
    }
}

#[test]
fn rfc_9112_6_3_a_length_is_one_number() {
    refuses(LENGTHS);
    let lengths = [("0", 0), ("3", 3), ("0000000000000000000000003", 3), ("9223372036854775807", i64::MAX as u64)];
    for (text, length) in lengths {
        let head = seen(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \t{text} \r\n\r\n"));
        assert_eq!(head.framing, Framing::Length(length));
    }
    assert_eq!(seen("POST / HTTP/1.1\r\nHost: a\r\n\r\n").framing, Framing::None);
    assert_eq!(seen("POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n").framing, Framing::Length(3));
}

#[test]
fn rfc_9112_11_2_a_length_beside_a_coding_is_refused() {
    refuses(CONFLICTS);
}

#[test]
fn rfc_9110_10_1_1_only_100_continue_can_be_expected() {
    refuses(EXPECTATIONS);
    assert!(seen("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n").expects_continue);
    assert!(!seen("POST / HTTP/1.1\r\nHost: a\r\n\r\n").expects_continue);
    assert!(!seen("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expects_continue);
    assert!(!seen("POST / HTTP/1.0\r\nExpect: something\r\n\r\n").expects_continue);
}

#[test]
fn rfc_9112_9_3_persistence_is_the_versions_default_unless_connection_says_otherwise() {
    let table = [
        ("HTTP/1.1", "", true),
        ("HTTP/1.1", "Connection: close\r\n", false),
        ("HTTP/1.1", "Connection: CLOSE\r\n", false),
        ("HTTP/1.1", "Connection: x, close\r\n", false),
        ("HTTP/1.1", "Connection: keep-alive\r\nConnection: x,\tclose ,\r\n", false),
        ("HTTP/1.1", "Connection: keep-alive, close\r\n", false),
        ("HTTP/1.1", "Connection: closed\r\n", true),
        ("HTTP/1.1", "Connection: xclose\r\n", true),
        ("HTTP/1.1", "Connection:\r\n", true),
        ("HTTP/1.1", "X-Connection: close\r\n", true),
        ("HTTP/1.0", "", false),
        ("HTTP/1.0", "Connection: keep-alive\r\n", true),
        ("HTTP/1.0", "Connection: x, Keep-Alive\r\n", true),
        ("HTTP/1.0", "Connection: Keep-Alive\r\nConnection: close\r\n", false),
        ("HTTP/1.0", "Keep-Alive: timeout=5\r\n", false),
    ];
    for (version, line, is_persistent) in table {
        let head = seen(&format!("GET / {version}\r\nHost: a\r\n{line}\r\n"));
        assert_eq!(head.is_persistent, is_persistent, "{version} {line:?}");
    }
}

#[test]
fn rfc_9110_7_8_an_upgrade_needs_one_line_that_connection_names() {
    let table = [
        ("HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", Some("websocket")),
        ("HTTP/1.1", "Upgrade: WebSocket\r\nConnection: keep-alive, UPGRADE\r\n", Some("WebSocket")),
        ("HTTP/1.1", "Upgrade: a/1, b\r\nConnection: upgrade\r\n", Some("a/1, b")),
        ("HTTP/1.1", "Upgrade: websocket\r\n", None),
        ("HTTP/1.1", "Connection: upgrade\r\n", None),
        ("HTTP/1.1", "Connection: upgrades\r\nUpgrade: websocket\r\n", None),
        ("HTTP/1.1", "Connection: upgrade\r\nUpgrade:\r\n", None),
        ("HTTP/1.1", "Connection: upgrade\r\nUpgrade: \t \r\n", None),
        ("HTTP/1.1", "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n", None),
        ("HTTP/1.1", "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\nUpgrade: c\r\n", None),
        ("HTTP/1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n", None),
    ];
    for (version, lines, upgrade) in table {
        let head = seen(&format!("GET / {version}\r\nHost: a\r\n{lines}\r\n"));
        assert_eq!(head.upgrade.as_deref(), upgrade.map(str::as_bytes), "{version} {lines:?}");
    }
}

#[test]
fn rfc_9110_7_6_1_connection_nominates_what_it_names() {
    let lines =
        "Connection: close, X-A,, \tx-b\r\nX: y\r\nConnection: Keep-Alive, upgrade, TE\r\nConnection: keep-alive\r\n";
    let head = seen(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
    assert_eq!(head.nominated, [b"X-A".to_vec(), b"x-b".to_vec(), b"TE".to_vec()]);
    assert!(seen("GET / HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\n\r\n").nominated.is_empty());
    refuses(NOMINATIONS);
    let most = NOMINATIONS[0].0.replacen("a,", "", 1);
    assert_eq!(seen(&most).nominated.len(), 32);
}

#[test]
fn a_head_as_large_as_allowed_passes_and_one_byte_more_does_not() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n";
    let limits = |max_bytes| HeadLimits { max_bytes, max_fields: 16 };
    let fits = request_in_pieces(head.as_bytes(), &limits(head.len()), &[]);
    assert_eq!(fits.unwrap().unwrap().length, head.len());
    for max_bytes in 16..head.len() {
        let read = request_in_pieces(head.as_bytes(), &limits(max_bytes), &[]);
        assert_eq!(read, Err(Fault::HeadTooLarge), "{max_bytes}");
        // It is refused with the last byte that may come, not with the one after it.
        let read = request_in_pieces(&head.as_bytes()[..max_bytes], &limits(max_bytes), &[]);
        assert_eq!(read, Err(Fault::HeadTooLarge), "{max_bytes}");
    }
    for max_bytes in 0..16 {
        let read = request_in_pieces(head.as_bytes(), &limits(max_bytes), &[]);
        assert_eq!(read, Err(Fault::TargetTooLong), "{max_bytes}");
    }
}

#[test]
fn a_first_line_that_does_not_end_is_refused_as_too_long() {
    let head = format!("GET /{}", "a".repeat(LIMITS.max_bytes));
    assert_eq!(request(&head), Err(Fault::TargetTooLong));
    assert_eq!(request(&head[..LIMITS.max_bytes - 1]), Ok(None));
}

#[test]
fn as_many_fields_as_allowed_pass_and_one_more_does_not() {
    let head = |fields: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "X: y\r\n".repeat(fields - 1));
    assert_eq!(seen(&format!("{}\r\n", head(16))).fields.len(), 16);
    assert_eq!(request(format!("{}\r\n", head(17))), Err(Fault::TooManyFields));
    // A fault of another kind in a head that is as large as allowed.
    assert_eq!(request(format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(16))), Err(Fault::HostMissing));
    assert_eq!(request(head(16)), Ok(None));
    assert_eq!(request(head(17)), Err(Fault::TooManyFields), "before the head's end");
}

#[test]
fn the_hard_limit_of_fields_holds_whatever_the_limits_say() {
    let limits = HeadLimits { max_bytes: 1 << 20, max_fields: usize::MAX };
    let head = |fields: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(fields - 1));
    let most = request_in_pieces(head(256).as_bytes(), &limits, &[]).unwrap().unwrap();
    assert_eq!(most.fields.len(), 256);
    assert_eq!(request_in_pieces(head(257).as_bytes(), &limits, &[]), Err(Fault::TooManyFields));
}

#[test]
fn a_field_is_found_by_its_name_in_any_case() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Key: 1\r\nx-kEY: 2\r\n\r\n";
    let mut head = RequestHead::default();
    head.parse(bytes, &LIMITS).unwrap();
    let request = head.on(bytes);
    assert_eq!(request.field(b"x-key"), Some(&b"1"[..]));
    assert_eq!(request.field(b"x-ke"), None);
    assert_eq!(request.field(b"x-key2"), None);
}

#[test]
fn a_head_that_is_reused_remembers_nothing() {
    let full = [
        "POST http://b/c?d HTTP/1.0\r\nHost: a\r\nConnection: keep-alive, upgrade, x\r\nUpgrade: u\r\nContent-Length: 3\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    let plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut fresh = RequestHead::default();
    fresh.parse(plain.as_bytes(), &LIMITS).unwrap();
    let mut head = RequestHead::default();
    for full in full {
        head.parse(full.as_bytes(), &LIMITS).unwrap();
        head.parse(plain.as_bytes(), &LIMITS).unwrap();
        assert_eq!(format!("{head:?}"), format!("{fresh:?}"));
        head.parse(full.as_bytes(), &LIMITS).unwrap();
        assert_eq!(head.parse(b"GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", &LIMITS), Err(Fault::FieldValue));
        assert_eq!(format!("{head:?}"), format!("{:?}", RequestHead::default()));
    }
}

#[test]
fn a_head_on_other_bytes_than_its_own_gives_nothing_rather_than_a_panic() {
    let bytes = b"BREW http://b/c?d HTTP/1.1\r\nHost: a\r\nConnection: upgrade, x\r\nUpgrade: u\r\n\r\n";
    let mut head = RequestHead::default();
    head.parse(bytes, &LIMITS).unwrap();
    for other in [&b""[..], b"GET", &[0xff; 100]] {
        let request = head.on(other);
        let _ = (request.method(), request.path(), request.query(), request.authority(), request.upgrade());
        assert_eq!(request.fields().count(), 3);
        let _ = (request.nominated().count(), request.field(b"host"));
    }
}
