//! Requests that RFC 9113, 8.1 to 8.3 calls malformed, and those that HTTP/1 could not carry: a stream's reset or a 400,
//! and no byte of them reaches a server of HTTP/1. The payloads of "HTTP/2: The Sequel is Always Worse" (Kettle 2021) are
//! among them.

use std::io::Read;
use std::sync::{Arc, Mutex};

use crate::support::{Backend, Gateway, eventually};
use crate::wire::{front, ok, rules, telling};

use super::frames::{
    DATA, END_HEADERS, END_STREAM, Ending, Fields, HEADERS, PROTOCOL_ERROR, RESET, Raw, WHOLE, block, pairs, request,
    request_with,
};

/// A server that keeps every byte, and answers each head.
fn recording() -> (Backend, Arc<Mutex<Vec<u8>>>) {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&bytes);
    let backend = Backend::scripted(move |wire, _| {
        let mut room = [0; 4096];
        let mut stream = wire.stream().try_clone().unwrap();
        while let Ok(size @ 1..) = stream.read(&mut room) {
            let mut log = log.lock().unwrap();
            log.extend_from_slice(&room[..size]);
            if log.ends_with(b"\r\n\r\n") {
                wire.send(ok("fine"));
            }
        }
    });
    (backend, bytes)
}

fn with(name: &[u8], value: &[u8]) -> Fields {
    let mut fields = request("GET", "/bad");
    fields.push((name.to_vec(), value.to_vec()));
    fields
}

fn instead(name: &str, value: &[u8]) -> Fields {
    let mut fields = request("GET", "/bad");
    fields.iter_mut().filter(|(known, _)| known == name.as_bytes()).for_each(|field| field.1 = value.to_vec());
    fields
}

fn without(name: &str) -> Fields {
    let mut fields = request("GET", "/bad");
    fields.retain(|(known, _)| known != name.as_bytes());
    fields
}

/// Sends each of these as a whole request, over one connection as long as that lasts, a good request after each.
fn assert_none_passes(rows: &[(&str, Fields)]) {
    let (backend, bytes) = recording();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let mut wrong = Vec::new();
    let mut good = 0;
    for (what, fields) in rows {
        let before = bytes.lock().unwrap().len();
        let id = raw.headers(WHOLE, fields);
        let ending = raw.ending(id);
        match &ending {
            Ending::Reset(PROTOCOL_ERROR) | Ending::Answered(400 | 431, _) => {}
            Ending::GoneAway(_) => {
                assert!(raw.goaway().is_some());
                raw = Raw::open(gateway.address());
            }
            other => wrong.push(format!("{what}: {other:?}")),
        }
        if bytes.lock().unwrap().len() != before {
            wrong.push(format!(
                "{what}: the server saw {:?}",
                String::from_utf8_lossy(&bytes.lock().unwrap()[before..])
            ));
        }
        assert_eq!(raw.ask("/good"), (200, "fine".to_owned()), "after {what}: {ending:?}");
        good += 1;
    }
    let seen = String::from_utf8_lossy(&bytes.lock().unwrap()).into_owned();
    let heads: Vec<&str> = seen.split_terminator("\r\n\r\n").collect();
    assert!(heads.iter().all(|head| head.starts_with("GET /good HTTP/1.1\r\n")), "{wrong:#?}\n{seen}");
    assert_eq!(heads.len(), good, "{wrong:#?}\n{seen}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn fields_that_http_1_cannot_carry_do_not_pass() {
    let mut rows = Vec::new();
    for byte in (0..0x20).chain([0x7F]).filter(|byte| *byte != b'\t') {
        rows.push(("a control byte in a value", with(b"x-a", &[b'a', byte, b'b'])));
        rows.push(("a control byte in a name", with(&[b'x', byte, b'b'], b"1")));
    }
    for byte in b" \t\"(),/:;<=>?@[\\]{}\x80\xFF" {
        rows.push(("a byte that no name has", with(&[b'x', *byte, b'b'], b"1")));
    }
    for value in [&b" a"[..], b"a ", b"\ta", b"a\t", b" ", b"\t", b"  a  "] {
        rows.push(("a blank at an end of a value", with(b"x-a", value)));
        rows.push((
            "a blank at an end of Host",
            [without(":authority"), vec![(b"host".to_vec(), value.to_vec())]].concat(),
        ));
        rows.push(("a blank at an end of a cookie", with(b"cookie", value)));
    }
    for name in
        [&b"X-A"[..], b"x-A", b"Host", b"Content-Length", b"TRANSFER-ENCODING", b"", b" x", b"x ", b":", b":x", b"x:"]
    {
        rows.push(("a name that HTTP/2 does not have", with(name, b"1")));
    }
    assert_none_passes(&rows);
}

#[test]
fn fields_that_speak_of_a_connection_do_not_pass() {
    let rows: Vec<(&str, Fields)> = [
        ("connection", "close"),
        ("connection", "keep-alive"),
        ("connection", "x-a"),
        ("connection", ""),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("transfer-encoding", ""),
        ("upgrade", "websocket"),
        ("upgrade", "h2c"),
        ("te", "chunked"),
        ("te", "trailers, deflate"),
        ("te", "gzip"),
    ]
    .iter()
    .map(|(name, value)| (*name, with(name.as_bytes(), value.as_bytes())))
    .collect();
    assert_none_passes(&rows);
}

#[test]
fn pseudo_header_fields_that_are_not_right_do_not_pass() {
    let good = request("GET", "/bad");
    let late = |name: &str| {
        let mut fields = without(name);
        fields.push((b"x-a".to_vec(), b"1".to_vec()));
        fields.extend(good.iter().filter(|(known, _)| known == name.as_bytes()).cloned());
        fields
    };
    let mut rows = vec![
        ("no method", without(":method")),
        ("no path", without(":path")),
        ("no scheme", without(":scheme")),
        ("no authority and no Host", without(":authority")),
        ("nothing at all", Vec::new()),
        ("only fields", pairs(&[("x-a", "1"), ("host", "h")])),
        ("an unknown one", with(b":unknown", b"1")),
        ("one of responses", with(b":status", b"200")),
        ("a protocol without CONNECT", with(b":protocol", b"websocket")),
        ("upper case", with(b":Path", b"/")),
        ("an empty authority", instead(":authority", b"")),
        ("an empty scheme", instead(":scheme", b"")),
        ("an empty method", instead(":method", b"")),
        ("an empty path", instead(":path", b"")),
    ];
    for name in [":method", ":path", ":scheme", ":authority"] {
        let (known, value) = good.iter().find(|(known, _)| known == name.as_bytes()).unwrap();
        rows.push(("twice the same", with(known, value)));
        rows.push(("twice and different", with(known, if name == ":path" { b"/other" } else { b"other" })));
        rows.push(("behind a field", late(name)));
    }
    assert_none_passes(&rows);
}

#[test]
fn an_authority_that_is_none_or_contradicts_host_does_not_pass() {
    let mut rows = vec![
        ("another Host", with(b"host", b"other")),
        ("another port", with(b"host", b"h:81")),
        ("an empty Host", with(b"host", b"")),
        ("two Hosts", [with(b"host", b"h"), pairs(&[("host", "other")])].concat()),
        ("two Hosts and no authority", [without(":authority"), pairs(&[("host", "h"), ("host", "other")])].concat()),
        (
            "the same Host twice and no authority",
            [without(":authority"), pairs(&[("host", "h"), ("host", "h")])].concat(),
        ),
        ("an empty Host and no authority", [without(":authority"), pairs(&[("host", "")])].concat()),
        ("userinfo in Host", [without(":authority"), pairs(&[("host", "u@h")])].concat()),
    ];
    for authority in [
        "u@h",
        "u:p@h",
        "h h",
        " h",
        "h ",
        "h\t",
        "h/path",
        "h?q",
        "h#f",
        "h,other",
        "h:port",
        "h:1:2",
        "[::1",
        "h\\other",
        "h\r\nx: 1",
        "\u{fc}",
    ] {
        rows.push(("an authority that is none", instead(":authority", authority.as_bytes())));
    }
    assert_none_passes(&rows);
}

#[test]
fn a_path_that_is_none_does_not_pass() {
    let mut rows = Vec::new();
    for path in [
        "bad",
        "?q",
        "*",
        "*x",
        "http://h/bad",
        "http://other/bad",
        "https://other/bad",
        "//",
        "h:80",
        " /bad",
        "/bad ",
        "/b ad",
        "/bad\t",
        "/bad HTTP/1.1",
        "/bad HTTP/1.1\r\nx: 1",
        "/bad\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n",
        "/bad\n",
        "/bad\0",
        "/bad\x7f",
        "/\u{fc}",
        "/bad?q=\u{fc}",
        "/bad<",
        "/bad\"",
        "/bad\\",
        "/bad`",
    ] {
        if path != "//" {
            rows.push(("a path", instead(":path", path.as_bytes())));
        }
    }
    rows.push(("bytes that are no UTF-8", instead(":path", b"/bad\xFF\xFE")));
    let mut options = request("OPTIONS", "http://other/bad");
    options.push((b"x-a".to_vec(), b"1".to_vec()));
    rows.push(("OPTIONS of an absolute form", options));
    rows.push(("OPTIONS of no form", request("OPTIONS", "bad")));
    assert_none_passes(&rows);
}

#[test]
fn a_scheme_or_a_method_that_is_none_does_not_pass() {
    let mut rows = Vec::new();
    for scheme in [
        "ftp",
        "HTTP",
        "Http",
        "htt p",
        "http ",
        "http://h",
        "http://other/x?",
        "http:",
        "http\r\n",
        "1",
        "ws",
        "\u{fc}",
    ] {
        rows.push(("a scheme", instead(":scheme", scheme.as_bytes())));
    }
    for method in [
        "GET ",
        " GET",
        "G ET",
        "GET\t",
        "GET / HTTP/1.1\r\nx: 1\r\n\r\nGET",
        "GET\r\n",
        "G\0T",
        "G:T",
        "G/T",
        "\u{fc}",
    ] {
        rows.push(("a method", instead(":method", method.as_bytes())));
    }
    let connect = |fields: &[(&str, &str)]| [pairs(&[(":method", "CONNECT")]), pairs(fields)].concat();
    rows.push(("CONNECT", connect(&[(":authority", "h:80")])));
    rows.push(("CONNECT with a path", connect(&[(":authority", "h:80"), (":path", "/bad")])));
    rows.push(("CONNECT with a scheme", connect(&[(":authority", "h:80"), (":scheme", "http")])));
    rows.push(("CONNECT with both", connect(&[(":authority", "h:80"), (":scheme", "http"), (":path", "/bad")])));
    rows.push(("CONNECT of nothing", connect(&[])));
    rows.push((
        "CONNECT of a protocol without a path",
        connect(&[(":protocol", "websocket"), (":scheme", "http"), (":authority", "h")]),
    ));
    rows.push((
        "CONNECT of a protocol without a scheme",
        connect(&[(":protocol", "websocket"), (":path", "/bad"), (":authority", "h")]),
    ));
    for protocol in [
        "h2c",
        "HTTP/1.1",
        "TLS/1.0",
        "",
        "web socket",
        "chat",
        "websocket\r\nx: 1",
        "websocket\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: h\r\nx: y",
        "websocket, h2c",
    ] {
        rows.push((
            "CONNECT of a protocol that is not passed on",
            connect(&[(":protocol", protocol), (":scheme", "http"), (":path", "/bad"), (":authority", "h")]),
        ));
    }
    assert_none_passes(&rows);
}

#[test]
fn the_payloads_of_the_sequel_is_always_worse_do_not_pass() {
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n";
    let rows = vec![
        ("H2.TE by a field", with(b"transfer-encoding", b"chunked")),
        ("a field by CRLF in a value", with(b"x-a", b"b\r\ntransfer-encoding: chunked")),
        ("a request by CRLF in a value", with(b"x-a", format!("b\r\n\r\n{smuggled}").as_bytes())),
        ("a field by LF in a value", with(b"x-a", b"b\ntransfer-encoding: chunked")),
        ("a field by CRLF in a name", with(b"x-a: b\r\ntransfer-encoding", b"chunked")),
        ("a field by a colon in a name", with(b"transfer-encoding: chunked", b"")),
        ("a field by a colon in a name, with a rest", with(b"host: other\r\nx", b"1")),
        ("a target by the method", instead(":method", b"GET /smuggled HTTP/1.1\r\nhost: h\r\nx: y")),
        ("a target by a blank in the method", instead(":method", b"GET /smuggled HTTP/1.1")),
        ("a host by the path", instead(":path", b"/bad HTTP/1.1\r\nhost: other\r\nx: y")),
        ("a target by the scheme", instead(":scheme", b"http://other/smuggled?")),
        ("a target by the authority", instead(":authority", b"h/smuggled HTTP/1.1\r\nx: y")),
        ("two paths", with(b":path", b"/smuggled")),
        ("a Host beside the authority", with(b"host", b"other")),
        ("a length that is none", with(b"content-length", b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nx: y")),
        ("two lengths", [with(b"content-length", b"0"), pairs(&[("content-length", "5")])].concat()),
        ("a cookie with CRLF", with(b"cookie", b"a=b\r\nx: 1")),
    ];
    assert_none_passes(&rows);
}

/// The frames that follow the head of a request.
type Rest = Vec<(u8, u8, Vec<u8>)>;

/// Sends each head, without its end, and what follows it: none is a whole request to the server.
fn assert_none_is_completed(rows: Vec<(&str, Fields, Rest)>) {
    let backend = telling();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let mut wrong = Vec::new();
    for (number, (what, fields, rest)) in rows.iter().enumerate() {
        let id = raw.headers(END_HEADERS, fields);
        for (kind, flags, payload) in rest {
            raw.send(*kind, *flags, id, payload);
        }
        let ending = raw.ending(id);
        match &ending {
            Ending::Reset(_) | Ending::Answered(400, _) => {}
            Ending::GoneAway(_) => raw = Raw::open(gateway.address()),
            other => wrong.push(format!("{what}: {other:?}")),
        }
        let path = format!("/good/{number}");
        let (status, body) = raw.ask(&path);
        assert!(status == 200 && body.ends_with(&path), "after {what}: {status} {body:?}");
    }
    let seen = backend.seen.lock().unwrap();
    let others: Vec<_> = seen.iter().filter(|seen| !seen.target().starts_with("/good/")).collect();
    assert!(wrong.is_empty() && others.is_empty(), "{wrong:#?} {others:#?}");
    assert_eq!(seen.len(), rows.len());
}

fn data(flags: u8, payload: &[u8]) -> (u8, u8, Vec<u8>) {
    (DATA, flags, payload.to_vec())
}

fn trailers(flags: u8, fields: &[(&str, &str)]) -> (u8, u8, Vec<u8>) {
    (HEADERS, flags, block(&pairs(fields)))
}

#[test]
fn a_body_of_another_length_than_the_head_says_is_never_a_whole_request() {
    let post = |length: &str| request_with("POST", "/bad", &[("content-length", length)]);
    assert_none_is_completed(vec![
        ("too long, in one frame", post("4"), vec![data(END_STREAM, b"hello")]),
        ("too long, in two", post("4"), vec![data(0, b"hel"), data(END_STREAM, b"lo")]),
        ("too long, and no end", post("4"), vec![data(0, b"hello")]),
        ("too short", post("6"), vec![data(END_STREAM, b"hello")]),
        ("too short, in two", post("6"), vec![data(0, b"hello"), data(END_STREAM, b"")]),
        ("too short, with trailers", post("6"), vec![data(0, b"hello"), trailers(WHOLE, &[("x-a", "1")])]),
        ("nothing", post("5"), vec![data(END_STREAM, b"")]),
        ("a sign", post("+5"), vec![data(END_STREAM, b"hello")]),
        ("a minus", post("-5"), vec![data(END_STREAM, b"hello")]),
        ("hexadecimal", post("0x5"), vec![data(END_STREAM, b"hello")]),
        ("a list of the same", post("5, 5"), vec![data(END_STREAM, b"hello")]),
        ("a list", post("5,6"), vec![data(END_STREAM, b"hello")]),
        ("empty", post(""), vec![data(END_STREAM, b"hello")]),
        ("a blank in it", post("5 5"), vec![data(END_STREAM, b"hello")]),
        ("too large for 64 bits", post("18446744073709551621"), vec![data(END_STREAM, b"hello")]),
        (
            "two of them",
            request_with("POST", "/bad", &[("content-length", "5"), ("content-length", "6")]),
            vec![data(END_STREAM, b"hello")],
        ),
        (
            "two of them, the last one right",
            request_with("POST", "/bad", &[("content-length", "6"), ("content-length", "5")]),
            vec![data(END_STREAM, b"hello")],
        ),
    ]);
}

#[test]
fn a_request_that_turns_out_malformed_is_so_in_the_log_and_no_client_that_went_away() {
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
    let gateway = Gateway::start(&format!("[log]\naccess = \"json\"\n{}", rules(&backend, "", "")));
    let mut raw = Raw::open(gateway.address());
    let long = raw.headers(END_HEADERS, &request_with("POST", "/long", &[("content-length", "4")]));
    raw.send(DATA, 0, long, b"hello");
    assert_eq!(raw.ending(long), Ending::Reset(PROTOCOL_ERROR));
    let trailed = raw.headers(END_HEADERS, &request("POST", "/trailed"));
    raw.send(DATA, 0, trailed, b"hello");
    raw.send(HEADERS, WHOLE, trailed, &block(&pairs(&[("connection", "close")])));
    assert_eq!(raw.ending(trailed), Ending::Reset(PROTOCOL_ERROR));
    let mut upper = request("GET", "/upper");
    upper.push((b"X-A".to_vec(), b"1".to_vec()));
    let upper = raw.headers(WHOLE, &upper);
    assert!(matches!(raw.ending(upper), Ending::Answered(400, _)));
    raw.wait(|frame| frame.kind == RESET && frame.stream == upper && frame.code() == PROTOCOL_ERROR);
    for reason in ["content-length", "trailer", "field-name"] {
        let labels = ["side=\"client\"", &format!("reason=\"{reason}\"")];
        gateway.wait_metric("sluicegate_http1_faults_total", &labels, 1.0);
    }
    assert!(eventually(|| gateway.access_log().len() == 3));
    for line in gateway.access_log() {
        assert_eq!((&line["status"], &line["outcome"]), (&400.into(), &"malformed".into()), "{line}");
    }
}

#[test]
fn a_body_behind_a_length_of_0_is_no_request() {
    let backend = telling();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(END_HEADERS, &request_with("POST", "/empty", &[("content-length", "0")]));
    raw.send(DATA, END_STREAM, id, b"GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n");
    raw.ending(id);
    assert_eq!(raw.ask("/good").0, 200);
    let seen = backend.seen.lock().unwrap();
    // The head is whole, and may have gone before the body came.
    assert!(seen.iter().all(|seen| ["/empty", "/good"].contains(&seen.target()) && seen.body.is_empty()), "{seen:?}");
}

#[test]
fn a_length_without_a_body_does_not_pass() {
    assert_none_passes(&[
        ("a length", with(b"content-length", b"5")),
        ("a length and another", [with(b"content-length", b"0"), pairs(&[("content-length", "1")])].concat()),
        ("a sign", with(b"content-length", b"+0")),
        ("a list", with(b"content-length", b"0, 0")),
    ]);
}

#[test]
fn trailers_that_are_not_right_end_the_request() {
    let post = || request_with("POST", "/bad", &[]);
    let with = |what, name, value| (what, post(), vec![data(0, b"hello"), trailers(WHOLE, &[(name, value)])]);
    assert_none_is_completed(vec![
        with("upper case", "X-A", "1"),
        with("CRLF", "x-a", "1\r\nx-b: 2"),
        with("a field of the connection", "connection", "close"),
        with("a framing", "transfer-encoding", "chunked"),
        with("a colon", "x:a", "1"),
        with("a blank", "x-a", " 1"),
        ("no end of the stream", post(), vec![data(0, b"hello"), trailers(END_HEADERS, &[("x-a", "1")])]),
        (
            "data behind them",
            post(),
            vec![data(0, b"hello"), trailers(END_HEADERS, &[("x-a", "1")]), data(END_STREAM, b"more")],
        ),
    ]);
}

fn as_seen(gateway: &Gateway, backend: &Backend, fields: &Fields) -> crate::wire::Message {
    let before = backend.requests();
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(WHOLE, fields);
    let ending = raw.ending(id);
    assert!(matches!(ending, Ending::Answered(200, _)), "{ending:?}");
    assert!(eventually(|| backend.requests() == before + 1));
    backend.seen.lock().unwrap().last().unwrap().clone()
}

#[test]
fn what_http_1_can_say_arrives_as_http_1_says_it() {
    let backend = telling();
    let gateway = front(&backend);
    let seen = |fields: &Fields| as_seen(&gateway, &backend, fields);
    let plain = seen(&request("GET", "/a?b=c"));
    assert_eq!((plain.line.as_str(), plain.all("host")), ("GET /a?b=c HTTP/1.1", vec!["h"]));
    assert!(plain.all("transfer-encoding").is_empty() && plain.all("content-length").is_empty(), "{plain:?}");
    assert_eq!((plain.header("x-forwarded-proto"), plain.header("x-forwarded-for")), (Some("http"), Some("127.0.0.1")));

    let both = seen(&request_with("GET", "/", &[("host", "h")]));
    assert_eq!(both.all("host"), ["h"]);
    let cased = seen(&request_with("GET", "/", &[("host", "H")]));
    assert_eq!(cased.all("host"), ["h"]);
    let alone = seen(&pairs(&[(":method", "GET"), (":scheme", "http"), (":path", "/alone"), ("host", "h")]));
    assert_eq!((alone.line.as_str(), alone.all("host")), ("GET /alone HTTP/1.1", vec!["h"]));

    let star = seen(&request("OPTIONS", "*"));
    assert_eq!(star.line, "OPTIONS * HTTP/1.1");
    let https = seen(&pairs(&[(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "h")]));
    assert_eq!(https.header("x-forwarded-proto"), Some("http"), "the connection says what it is");
    let slashes = seen(&request("GET", "//h/../x"));
    assert!(slashes.line.starts_with("GET /"), "{}", slashes.line);

    let crumbs =
        seen(&request_with("GET", "/", &[("cookie", "a=1"), ("x-a", "1"), ("cookie", "b=2"), ("cookie", "c=3")]));
    assert_eq!(crumbs.all("cookie"), ["a=1; b=2; c=3"]);
    let trailers =
        seen(&request_with("GET", "/", &[("te", "trailers"), ("x-a", "a\tb"), ("x-b", ""), ("x-c", "\u{fc}")]));
    assert_eq!((trailers.all("x-a"), trailers.all("x-b")), (vec!["a\tb"], vec![""]));
    assert_eq!(trailers.all("x-c"), ["\u{fc}"]);
    let twice = seen(&request_with("GET", "/", &[("x-a", "1"), ("x-a", "2")]));
    assert_eq!(twice.all("x-a").join(", "), "1, 2");
    let passing = seen(&request_with(
        "GET",
        "/",
        &[("x_forwarded_for", "6.6.6.6"), ("x-forwarded_for", "6.6.6.6"), ("content_length", "5"), ("x_own", "1")],
    ));
    assert_eq!(passing.all("x-forwarded-for"), ["127.0.0.1"]);
    for name in ["x_forwarded_for", "x-forwarded_for", "content_length"] {
        assert!(passing.all(name).is_empty(), "{passing:?}");
    }
    let zero = seen(&request_with("POST", "/", &[("content-length", "0")]));
    assert_eq!(zero.all("content-length"), ["0"]);
}

#[test]
fn a_method_in_lower_case_is_refused_over_both_protocols() {
    let backend = telling();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(WHOLE, &request("get", "/"));
    let ending = raw.ending(id);
    let mut plain = crate::wire::Wire::with(gateway.address(), "get / HTTP/1.1\r\nHost: h\r\n\r\n");
    let status = plain.answer().status();
    assert!(matches!(ending, Ending::Answered(as_well, _) if as_well == status), "{ending:?} and {status}");
    assert_eq!((status, backend.requests()), (400, 0));
}
