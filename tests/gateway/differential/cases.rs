//! The requests that are sent: the classics and the corpus of the codec's own tests, and products of what smuggling is made of.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::h2::frames::{DATA, END_HEADERS, END_STREAM, Fields, HEADERS, Raw, WHOLE, block, frame, request};

/// A request that nobody may see: it is always in a body, or behind a head that is refused.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/http1/tests/http1")
}

/// `\r`, `\n`, `\t`, `\0`, `\\` and `\xNN`, as `classics.txt` has them.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let escaped = if byte == b'\\' { rest.next() } else { None };
        bytes.push(match escaped {
            None => byte,
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'x') => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            Some(other) => other,
        });
    }
    bytes
}

fn classics() -> Vec<Vec<u8>> {
    let text = fs::read_to_string(tests().join("classics.txt")).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|line| line.split_once(" | request | ")).map(|(_, bytes)| unescaped(bytes)).collect()
}

/// The inputs that the fuzzers kept, without the four bytes that are options of theirs.
fn corpus() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for target in ["head", "framing"] {
        let mut files: Vec<_> =
            fs::read_dir(tests().join("corpus").join(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let contents = files.iter().map(|path| fs::read(path).unwrap());
        all.extend(contents.filter(|data| data[0] & 3 != 1 && data[0] & 3 != 3).map(|data| data[4..].to_vec()));
    }
    all
}

/// Spellings of chunks that are right.
const CHUNKED: [&str; 6] = [
    "Transfer-Encoding: chunked",
    "Transfer-Encoding:chunked",
    "Transfer-Encoding: Chunked",
    "Transfer-Encoding: CHUNKED",
    "Transfer-Encoding:\tchunked",
    "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
];

/// Spellings of a framing that are wrong, or are a length.
const FRAMINGS: [&str; 56] = [
    "Content-Length: LEN",
    "Content-Length:LEN",
    "Content-Length: \tLEN \t",
    "content-length: 000LEN",
    "Content-Length: +LEN",
    "Content-Length: -1",
    "Content-Length: LEN, LEN",
    "Content-Length: LEN\r\nContent-Length: LEN",
    "Content-Length: LEN\r\nContent-Length: 0",
    "Content-Length: 0\r\nContent-Length: LEN",
    "Content-Length: 0, LEN",
    "Content-Length: 0x5",
    "Content-Length: 5e0",
    "Content-Length: LEN.0",
    "Content-Length: ",
    "Content-Length: 18446744073709551616",
    "Content-Length: 18446744073709551621",
    "Content-Length : LEN",
    "Content-Length\t: LEN",
    " Content-Length: LEN",
    "X: a\r\n Content-Length: LEN",
    "X: a\n Content-Length: LEN",
    "X: a\nContent-Length: LEN",
    "X: a\rContent-Length: LEN",
    "X: a\0\r\nContent-Length: LEN",
    "Content_Length: LEN",
    "Content-Length\0: LEN",
    "Content-Length: LEN\0",
    "Content-Length: LEN\r",
    "Content-Length: \x0bLEN",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunkedx",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding: chunked,",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding\t: chunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding:\n chunked",
    "X: a\r\n\tTransfer-Encoding: chunked",
    "X: a\nTransfer-Encoding: chunked",
    "Transfer_Encoding: chunked",
    "Transfer-Encoding\0: chunked",
    "Transfer-Encoding: chunked\0",
    "Transfer-Encoding: chun\0ked",
    "Transfer-Encoding: chunk\u{e9}d",
];

/// The ends of chunked bodies, of which the first is right and each of the others is wrong somewhere.
const CHUNKS: [&str; 24] = [
    "5\r\nhello\r\n0\r\n\r\n",
    "5;ext=\"a;b\"\r\nhello\r\n0;last\r\n\r\n",
    "05\r\nhello\r\n00\r\n\r\n",
    "5\r\nhello\r\n0\r\nX-Trailer: a\r\nContent-Length: 5\r\n\r\n",
    "5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "5\nhello\n0\n\n",
    "5\r\nhello\n0\r\n\r\n",
    "5\r\nhello0\r\n\r\n",
    "5\r\nhelloXX0\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n",
    " 5\r\nhello\r\n0\r\n\r\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "-5\r\nhello\r\n0\r\n\r\n",
    "10000000000000005\r\nhello\r\n0\r\n\r\n",
    "5;\nhello\r\n0\r\n\r\n",
    "5;a\rb\r\nhello\r\n0\r\n\r\n",
    "5\r\r\nhello\r\n0\r\n\r\n",
    "5\0\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\n \r\n\r\n",
    "5\r\nhello\r\n0\r\nno colon\r\n\r\n",
    "5\r\nhello\r\n0\r\n X: fold\r\n\r\n",
    "g\r\nhello\r\n0\r\n\r\n",
];

/// Heads that are read in two ways, or are none.
const HEADS: [&str; 26] = [
    "POST http://h/c HTTP/1.1\r\nHost: other\r\nContent-Length: LEN",
    "POST HTTP://h:80/c HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "POST http://u@h/c HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nHost : b\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h, b\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nContent-Length: LEN",
    "POST /c HTTP/1.0\r\nContent-Length: LEN",
    "POST /c HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked",
    "POST /c HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nConnection: content-length\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nConnection: host, x-request-id\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: LEN",
    "GET /c HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "HEAD /c HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "DELETE /c HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "OPTIONS * HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "POST /c%0d%0aX:%20y HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "POST /c%20HTTP/1.1%0d%0a HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "POST /a/../c?x=%0a HTTP/1.1\r\nHost: h\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nX-Request-Id: 0\r\nX-Request-Id: 1\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nX: \u{e9}\u{ff}\r\nContent-Length: LEN",
    "POST /c HTTP/1.1\r\nHost: h\r\nX:\r\nY: \t \r\nContent-Length: LEN",
    "POST /c HTTP/1.1 \r\nHost: h\r\nContent-Length: LEN",
];

/// Every stream of HTTP/1.
pub fn http1() -> Vec<Vec<u8>> {
    let mut all = [classics(), corpus()].concat();
    let mut add = |head: &str, body: &str, behind: &str| {
        let head = head.replace("LEN", &body.len().to_string());
        all.push(format!("{head}\r\n\r\n{body}{behind}").into_bytes());
    };
    let pipelined = SMUGGLED.replace("smuggled", "pipelined");
    for framing in CHUNKED {
        add(&format!("POST /c HTTP/1.1\r\nHost: h\r\n{framing}"), CHUNKS[0], &pipelined);
        add(&format!("POST /c HTTP/1.1\r\nHost: h\r\n{framing}\r\nContent-Length: LEN"), CHUNKS[0], SMUGGLED);
    }
    let chunked = format!("0\r\n\r\n{SMUGGLED}");
    for framing in FRAMINGS {
        let head = format!("POST /c HTTP/1.1\r\nHost: h\r\n{framing}");
        // Names with `_` are no framing, so that there is no body, and what follows is the next request.
        let is_framing = !framing.contains('_');
        let other = if is_framing { SMUGGLED } else { &pipelined };
        // A body that begins with another request, and one that ends early for who reads chunks.
        add(&head, other, "");
        if is_framing {
            add(&head, &chunked, "");
        }
        add(&format!("{head}\r\nContent-Length: LEN"), &chunked, "");
        add(&format!("{head}\r\nTransfer-Encoding: chunked"), CHUNKS[0], "");
        add(&format!("POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n{framing}"), CHUNKS[0], "");
    }
    for chunks in CHUNKS {
        add(
            "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked",
            chunks,
            "GET /behind HTTP/1.1\r\nHost: h\r\n\r\n",
        );
    }
    for head in HEADS {
        add(head, SMUGGLED, "GET /behind HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    all
}

/// A request of HTTP/2: its fields, and the data behind them, if any.
pub struct Case {
    fields: Fields,
    data: Option<Vec<u8>>,
    trailers: Option<Fields>,
}

/// Fields that must not become lines of a head of HTTP/1.
const INJECTIONS: [&str; 16] = [
    "a\r\nTransfer-Encoding: chunked",
    "a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\nX: ",
    "a\nTransfer-Encoding: chunked",
    "a\n\nGET /smuggled HTTP/1.1\nHost: h\n\n",
    "a\rTransfer-Encoding: chunked",
    "a\0b",
    "a HTTP/1.1\r\nHost: h\r\n\r\nGET /smuggled",
    "a b",
    " a",
    "a\t",
    "",
    "a:b",
    "/a HTTP/1.1",
    "\u{e9}\u{10D}\u{10A}",
    "a\u{85}\u{2028}b",
    "chunked",
];

/// Every request of HTTP/2.
pub fn http2() -> Vec<Case> {
    let mut heads: Vec<Fields> = Vec::new();
    let good = request("POST", "/c");
    let bytes = |text: &str| text.as_bytes().to_vec();
    for injection in INJECTIONS {
        for pseudo in [":method", ":path", ":authority", ":scheme"] {
            let mut fields = good.clone();
            for field in &mut fields {
                if field.0 == pseudo.as_bytes() {
                    field.1 = bytes(injection);
                }
            }
            heads.push(fields.clone());
            let slashed = |field: &mut (Vec<u8>, Vec<u8>)| field.1.insert(0, b'/');
            fields.iter_mut().filter(|field| pseudo == ":path" && field.0 == b":path").for_each(slashed);
            heads.push(fields);
        }
        let names = [
            "x-a",
            "cookie",
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "te",
            "expect",
            "x-request-id",
        ];
        for name in names {
            heads.push([good.clone(), vec![(bytes(name), bytes(injection))]].concat());
        }
        heads.push([good.clone(), vec![(bytes(injection), bytes("1"))]].concat());
        heads.push([good.clone(), vec![(bytes(&format!("x-{injection}")), bytes("1"))]].concat());
    }
    let smuggled = format!("0\r\n\r\n{SMUGGLED}").into_bytes();
    let mut all: Vec<Case> =
        heads.iter().map(|fields| Case { fields: fields.clone(), data: None, trailers: None }).collect();
    all.extend(heads.into_iter().map(|fields| Case { fields, data: Some(smuggled.clone()), trailers: None }));
    // Lengths that do not add up to the data.
    for length in ["0", "1", "5", "47", "48", "1000", "-1", "+5", "0x5", "5, 5", "", "18446744073709551616", "5 "] {
        for data in [None, Some(Vec::new()), Some(bytes("hello")), Some(smuggled.clone())] {
            let fields = [good.clone(), vec![(bytes("content-length"), bytes(length))]].concat();
            all.push(Case { fields, data, trailers: None });
        }
    }
    for injection in INJECTIONS {
        for name in ["x-a", "content-length", "transfer-encoding", ":path", "host"] {
            let trailers = Some(vec![(bytes(name), bytes(injection))]);
            all.push(Case { fields: good.clone(), data: Some(smuggled.clone()), trailers });
        }
    }
    // A right head has to pass, with every kind of body.
    for data in [None, Some(Vec::new()), Some(smuggled.clone()), Some(vec![b'x'; 10_000])] {
        for method in ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"] {
            let trailers = data.as_ref().map(|_| vec![(bytes("x-trailer"), bytes("1"))]);
            all.push(Case { fields: request(method, "/good"), data: data.clone(), trailers });
            all.push(Case { fields: request(method, "/good?a=b"), data: data.clone(), trailers: None });
        }
    }
    all
}

/// Sends it over a connection of its own, and a good request behind it if the connection lasts; waits for their ends.
pub fn send(address: SocketAddr, case: &Case) {
    let mut raw = Raw::open(address);
    let flags = if case.data.is_none() && case.trailers.is_none() { WHOLE } else { END_HEADERS };
    let id = raw.stream_id();
    let mut bytes = frame(HEADERS, flags, id, &block(&case.fields));
    if let Some(data) = &case.data {
        let flags = if case.trailers.is_none() { END_STREAM } else { 0 };
        bytes.extend(frame(DATA, flags, id, data));
    }
    if let Some(trailers) = &case.trailers {
        bytes.extend(frame(HEADERS, WHOLE, id, &block(trailers)));
    }
    raw.send_bytes(&bytes);
    raw.ending(id);
    let behind = raw.get("/behind");
    raw.ending(behind);
}
