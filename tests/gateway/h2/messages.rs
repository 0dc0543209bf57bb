//! Messages as HTTP/1 has them and as HTTP/2 has them: bodies, trailers, interim responses, statuses without a body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use crate::support::{Backend, eventually};
use crate::wire::{front, ok, telling};

use super::frames::{
    DATA, END_HEADERS, END_STREAM, Ending, HEADERS, NO_ERROR, Raw, WHOLE, block, request, request_with,
};
use super::peer::{ask, connect, open, post, request as polite, run, send_all, whole};

/// Answers every request with these bytes.
fn always(bytes: &'static str) -> Backend {
    Backend::scripted(move |wire, _| while wire.request().is_ok() && wire.send(bytes) {})
}

#[test]
fn a_chunked_response_arrives_with_its_trailers() {
    let backend = always(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
         5\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: abc\r\nX-Sum: def\r\nGrpc-Status: 0\r\n\r\n",
    );
    let gateway = front(&backend);
    run(async {
        let sender = connect(gateway.address()).await;
        for _ in 0..3 {
            let answer = ask(&sender, polite("GET", "/", &[])).await.unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, "hello world"));
            assert!(answer.header("transfer-encoding").is_none() && answer.header("connection").is_none());
            let trailers = answer.trailers.unwrap();
            assert_eq!(trailers.get_all("x-sum").iter().collect::<Vec<_>>(), ["abc", "def"]);
            assert_eq!(trailers["grpc-status"], "0");
            assert!(answer.interims.is_empty());
        }
    });
}

#[test]
fn an_empty_chunked_response_of_trailers_alone_arrives() {
    let backend = always("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nGrpc-Status: 5\r\n\r\n");
    let gateway = front(&backend);
    run(async {
        let sender = connect(gateway.address()).await;
        let answer = ask(&sender, polite("GET", "/", &[])).await.unwrap();
        assert_eq!((answer.status, answer.body.len()), (200, 0));
        assert_eq!(answer.trailers.unwrap()["grpc-status"], "5");
    });
}

#[test]
fn trailers_of_a_request_arrive_behind_its_chunks() {
    let backend = telling();
    let gateway = front(&backend);
    run(async {
        let sender = connect(gateway.address()).await;
        let mut trailers = HeaderMap::new();
        for (name, value) in
            [("x-sum", "abc"), ("content-length", "7"), ("host", "evil"), ("x-forwarded-for", "6.6.6.6")]
        {
            trailers.insert(name, HeaderValue::from_static(value));
        }
        let answer = post(&sender, polite("POST", "/", &[]), Bytes::from_static(b"hello"), Some(trailers)).await;
        assert_eq!(answer.unwrap().status, 200);
    });
    let seen = backend.seen.lock().unwrap();
    assert_eq!(seen[0].text(), "hello");
    assert_eq!(seen[0].trailers, [("x-sum".to_owned(), "abc".to_owned())], "those that change nothing else");
    assert!(seen[0].is_chunked());
}

#[test]
fn a_body_arrives_whole_with_and_without_a_length() {
    let backend = telling();
    let gateway = front(&backend);
    let body: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    run(async {
        let sender = connect(gateway.address()).await;
        for size in [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 256 << 10, 1_000_000] {
            let length = size.to_string();
            for fields in [&[][..], &[("content-length", length.as_str())]] {
                let part = Bytes::copy_from_slice(&body[..size]);
                let answer = post(&sender, polite("POST", "/up", fields), part, None).await.unwrap();
                assert_eq!(answer.status, 200, "{size}: {answer:?}");
            }
        }
    });
    let seen = backend.seen.lock().unwrap();
    assert_eq!(seen.len(), 18);
    for (number, seen) in seen.iter().enumerate() {
        assert_eq!(seen.is_chunked(), number % 2 == 0, "request {number}");
        assert!(body.starts_with(&seen.body), "request {number}");
    }
    assert_eq!(seen.iter().map(|seen| seen.body.len()).max(), Some(1_000_000));
}

#[test]
fn a_body_in_any_pieces_is_the_same_body() {
    let backend = telling();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let text = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n";
    for size in 1..=text.len() {
        for length in [true, false] {
            let fields = if length {
                request_with("POST", "/", &[("content-length", &text.len().to_string())])
            } else {
                request("POST", "/")
            };
            let id = raw.headers(END_HEADERS, &fields);
            for piece in text.chunks(size) {
                raw.send(DATA, 0, id, piece);
            }
            raw.send(DATA, END_STREAM, id, b"");
            let ending = raw.ending(id);
            assert!(matches!(ending, Ending::Answered(200, _)), "{ending:?}");
        }
    }
    let seen = backend.seen.lock().unwrap();
    assert_eq!(seen.len(), 2 * text.len());
    assert!(seen.iter().all(|seen| seen.body == text && seen.target() == "/"));
}

#[test]
fn fields_in_continuations_and_padding_and_priority_are_read() {
    let backend = telling();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let id = raw.stream_id();
    let block = block(&request_with("POST", "/", &[("x-a", &"a".repeat(3000))]));
    let (first, rest) = block.split_at(7);
    // PADDED and PRIORITY.
    raw.send(HEADERS, 0x28, id, &[&[3, 0, 0, 0, 0, 15][..], first, &[0; 3]].concat());
    for piece in rest.chunks(1000) {
        raw.send(9, 0, id, piece);
    }
    raw.send(9, END_HEADERS, id, b"");
    raw.send(DATA, 8 | END_STREAM, id, b"\x05hello\0\0\0\0\0");
    let ending = raw.ending(id);
    assert!(matches!(ending, Ending::Answered(200, _)), "{ending:?}");
    let seen = backend.seen.lock().unwrap();
    assert_eq!((seen[0].text().as_str(), seen[0].header("x-a").map(str::len)), ("hello", Some(3000)));
}

#[test]
fn interim_responses_arrive_before_the_real_one() {
    let backend = always(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n\
         HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nreal",
    );
    let gateway = front(&backend);
    run(async {
        let sender = connect(gateway.address()).await;
        for _ in 0..3 {
            let answer = ask(&sender, polite("GET", "/", &[])).await.unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, "real"));
            let statuses: Vec<u16> = answer.interims.iter().map(|(status, _)| *status).collect();
            assert_eq!(statuses, [103, 102]);
            assert_eq!(answer.interims[0].1["link"], "</a.css>; rel=preload");
            assert!(answer.interims[0].1.get("x-hop").is_none());
        }
    });
}

#[test]
fn who_expects_100_gets_it_and_then_sends() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(mut request) = wire.head() {
            assert_eq!(request.header("expect"), Some("100-continue"));
            wire.send("HTTP/1.1 100 Continue\r\n\r\n");
            if wire.body_of(&mut request).is_ok() {
                wire.send(ok(&request.text()));
            }
        }
    });
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let fields = request_with("POST", "/", &[("expect", "100-continue"), ("content-length", "5")]);
    let id = raw.headers(END_HEADERS, &fields);
    let interim = raw.wait(|frame| frame.kind == HEADERS && frame.stream == id);
    assert_eq!(interim.flags, END_HEADERS);
    assert_eq!(super::frames::status_of(&interim.payload), 100);
    raw.send(DATA, END_STREAM, id, b"hello");
    assert_eq!(raw.ending(id), Ending::Answered(200, b"hello".to_vec()));
}

#[test]
fn answers_without_a_body_end_with_their_head() {
    for (method, bytes, status, length) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, Some("5")),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, None),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, None),
        ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 77\r\n\r\n", 304, Some("77")),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, Some("0")),
    ] {
        let backend = Backend::scripted(move |wire, _| while wire.head().is_ok() && wire.send(bytes) {});
        let gateway = front(&backend);
        let mut raw = Raw::open(gateway.address());
        for _ in 0..3 {
            let id = raw.headers(WHOLE, &request(method, "/"));
            assert_eq!(raw.ending(id), Ending::Answered(status, vec![]), "{bytes:?}");
            let frames: Vec<_> = raw.seen.iter().filter(|frame| frame.stream == id).collect();
            assert_eq!((frames.len(), frames[0].flags & END_STREAM), (1, END_STREAM), "{bytes:?}: {frames:?}");
        }
        run(async {
            let sender = connect(gateway.address()).await;
            let answer = ask(&sender, polite(method, "/", &[])).await.unwrap();
            assert_eq!((answer.status, answer.header("content-length")), (status, length), "{bytes:?}");
        });
    }
}

#[test]
fn a_body_that_ends_with_its_connection_ends_the_stream() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() {
            wire.send("HTTP/1.1 200 OK\r\n\r\nthe body");
        }
    });
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    for _ in 0..3 {
        assert_eq!(raw.ask("/"), (200, "the body".to_owned()));
    }
}

#[test]
fn an_answer_before_the_end_of_the_request_arrives_and_stops_its_sender() {
    for (bytes, body) in [
        ("HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large", "too large"),
        (
            "HTTP/1.1 413 Content Too Large\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ntoo large\r\n0\r\n\r\n",
            "too large",
        ),
        ("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n", ""),
    ] {
        let backend = Backend::start_early(bytes.as_bytes());
        let gateway = front(&backend);
        let mut raw = Raw::open(gateway.address());
        for fields in [request("POST", "/"), request_with("POST", "/", &[("content-length", "100000")])] {
            let id = raw.headers(END_HEADERS, &fields);
            raw.send(DATA, 0, id, b"the first part");
            assert_eq!(raw.ending(id), Ending::Answered(413, body.as_bytes().to_vec()), "{bytes:?}");
            raw.wait(|frame| frame.kind == 3 && frame.stream == id);
            assert_eq!(raw.resets(id), [NO_ERROR], "{bytes:?}");
        }
    }
}

#[test]
fn a_large_upload_that_is_refused_half_way_gets_its_answer() {
    let backend = Backend::start_early(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large");
    let gateway = front(&backend);
    run(async {
        let sender = connect(gateway.address()).await;
        for _ in 0..10 {
            let (response, mut send) = open(&sender, polite("POST", "/", &[]), false).await;
            let sending =
                tokio::spawn(async move { send_all(&mut send, Bytes::from(vec![b'x'; 8 << 20]), true).await });
            let answer = whole(response).await.unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (413, "too large"));
            let _ = sending.await;
        }
    });
    assert!(eventually(|| gateway.metric("sluicegate_requests_in_flight", &[]) < 0.5));
}
