//! The cost of the codec alone: heads read, beside `httparse` on the same bytes, heads written, chunks accepted.
//!
//! `cargo bench --bench http1`. `HTTP1_BENCH_TIMES='find and parse, small request:1000'` does that one as often and
//! nothing else, for a profiler that counts instructions: the difference of two such runs is without the start.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use sluicegate::http1::{
    Body, ChunkPart, Framing, HeadEnd, HeadLimits, HeadWriter, Known, RequestHead, ResponseHead, Side, write_chunk_head,
};

const LIMITS: HeadLimits = HeadLimits { max_bytes: 16 * 1024, max_fields: 100 };

/// As wrk sends it.
const SMALL: &[u8] = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

/// 15 fields, 740 bytes.
const BROWSER: &[u8] = b"GET /wiki/Some_Page?action=edit&section=4 HTTP/1.1\r\n\
    Host: en.example.org\r\n\
    Connection: keep-alive\r\n\
    sec-ch-ua: \"Chromium\";v=\"124\", \"Google Chrome\";v=\"124\", \"Not-A.Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\n\
    sec-ch-ua-platform: \"Linux\"\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    Sec-Fetch-Dest: document\r\n\
    Referer: https://en.example.org/wiki/Some_Page\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-US,en;q=0.9\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark; lang=en\r\n\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\n\
    Content-Type: text/plain\r\nContent-Length: 100\r\nConnection: keep-alive\r\n\r\n";

/// Something that is measured.
struct Case {
    name: String,
    bytes: usize,
    once: Box<dyn FnMut()>,
}

impl Case {
    fn new(name: impl Into<String>, bytes: usize, once: impl FnMut() + 'static) -> Self {
        Self { name: name.into(), bytes, once: Box::new(once) }
    }
}

fn find(bytes: &[u8], side: Side) -> usize {
    let end = HeadEnd::default().find(black_box(bytes), side, &LIMITS).expect("a head");
    end.expect("a whole head")
}

fn heads(cases: &mut Vec<Case>) {
    for (name, bytes) in [("small request", SMALL), ("browser's request", BROWSER)] {
        let mut head = RequestHead::default();
        cases.push(Case::new(format!("find and parse, {name}"), bytes.len(), move || {
            let end = find(bytes, Side::Request);
            black_box(head.parse(&bytes[..end], &LIMITS)).expect("a request");
        }));
        cases.push(Case::new(format!("httparse, {name}"), bytes.len(), move || {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut headers);
            assert!(request.parse(black_box(bytes)).expect("a request").is_complete());
            black_box(&request);
        }));
    }
    let mut head = ResponseHead::default();
    cases.push(Case::new("find and parse, response", RESPONSE.len(), move || {
        let end = find(RESPONSE, Side::Response);
        black_box(head.parse(&RESPONSE[..end], &LIMITS, false)).expect("a response");
    }));
    cases.push(Case::new("httparse, response", RESPONSE.len(), || {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut headers);
        assert!(response.parse(black_box(RESPONSE)).expect("a response").is_complete());
        black_box(&response);
    }));
}

/// Heads as they are passed on: one field is ours, those of the connection are left out.
fn writing(cases: &mut Vec<Case>) {
    for (name, bytes) in [("small request", SMALL), ("browser's request", BROWSER)] {
        let (mut head, mut out) = (RequestHead::default(), Vec::with_capacity(4096));
        head.parse(bytes, &LIMITS).expect("a request");
        cases.push(Case::new(format!("write, {name}"), bytes.len(), move || {
            out.clear();
            let request = head.on(black_box(bytes));
            let mut writer =
                HeadWriter::request(&mut out, request.method().as_bytes(), request.path_bytes(), request.query_bytes());
            writer.field(b"Host", request.authority().unwrap_or_default().as_bytes());
            request
                .copy_fields(|known, _, _| !known.is_hop_by_hop() && known != Known::Host, |piece| writer.piece(piece));
            writer.field(b"X-Forwarded-For", b"127.0.0.1");
            writer.end();
            black_box(&out);
        }));
    }
    let (mut head, mut out) = (ResponseHead::default(), Vec::with_capacity(4096));
    head.parse(RESPONSE, &LIMITS, false).expect("a response");
    cases.push(Case::new("write, response", RESPONSE.len(), move || {
        out.clear();
        let response = head.on(black_box(RESPONSE));
        let mut writer = HeadWriter::response(&mut out, response.status(), response.reason());
        response.copy_fields(
            |known, _, _| !known.is_hop_by_hop() && known != Known::ContentLength,
            |piece| writer.piece(piece),
        );
        writer.number(b"Content-Length", 100);
        writer.end();
        black_box(&out);
    }));
}

/// 16 KiB of content in chunks of 1 KiB. Nothing has to be moved, so the bytes stay what they are.
fn bodies(cases: &mut Vec<Case>) {
    let mut chunks = Vec::new();
    for _ in 0..16 {
        let mut room = [0; sluicegate::http1::CHUNK_ROOM];
        let used = write_chunk_head(&mut room, 1024);
        chunks.extend_from_slice(&room[room.len() - used..]);
        chunks.extend_from_slice(&[b'x'; 1024]);
        chunks.extend_from_slice(b"\r\n");
    }
    chunks.extend_from_slice(b"0\r\n\r\n");
    let (mut body, length) = (Body::new(Framing::Chunked, ChunkPart::AsIs), chunks.len());
    cases.push(Case::new("accept, 16 chunks of 1 KiB", length, move || {
        body.reset(Framing::Chunked, ChunkPart::AsIs);
        let accepted = body.accept(black_box(&mut chunks)).expect("chunks");
        assert!(body.is_complete() && accepted.kept == length);
    }));
}

fn main() {
    let mut cases = Vec::new();
    heads(&mut cases);
    writing(&mut cases);
    bodies(&mut cases);
    if let Ok(wanted) = std::env::var("HTTP1_BENCH_TIMES") {
        let (name, times) = wanted.rsplit_once(':').expect("a name and how often");
        let case = cases.iter_mut().find(|case| case.name == name).expect("a case of this name");
        for _ in 0..times.parse::<u32>().expect("how often") {
            (case.once)();
        }
        return;
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("http1");
    for mut case in cases {
        group.throughput(Throughput::Bytes(case.bytes as u64));
        group.bench_function(case.name, |bench| bench.iter(|| (case.once)()));
    }
    group.finish();
    criterion.final_summary();
}
