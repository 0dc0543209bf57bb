//! Heads against the naive reader, and against `httparse`.

use proptest::prelude::*;

use super::*;

/// Heads to begin with; most are accepted.
pub(super) const REQUESTS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET /a/b?c=d HTTP/1.1\r\nHost: example.org:8080\r\nAccept: */*\r\nUser-Agent: x/1 (y; z)\r\n\r\n",
    "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n0123456789",
    "PUT /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: [::1]:80\r\nConnection: close, x-a\r\n\r\n0\r\n\r\n",
    "GET http://b.example/c?d HTTP/1.1\r\nHost: a%41\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD / HTTP/1.0\r\nConnection: keep-alive\r\nX-Empty:\r\nX-Spaces: \t a\tb \t\r\n\r\n",
    "DELETE /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
];

/// The same for responses.
pub(super) const RESPONSES: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nServer: x\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
    "HTTP/1.0 404 Not Found\r\nConnection: keep-alive\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\nEtag: \"x\"\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204\r\nX: y\r\n\r\n",
];

/// Pieces of which trouble is made.
const PIECES: &[&str] = &[
    "\r\n",
    "\r",
    "\n",
    "\r\n\r\n",
    " ",
    "\t",
    ":",
    "\0",
    "\u{7f}",
    "\u{e9}",
    "#",
    "?",
    "/",
    "*",
    "@",
    "%",
    "%41",
    "[",
    "]",
    ",",
    ";",
    "0",
    "1",
    "9",
    "a",
    "Z",
    "-",
    "_",
    "HTTP/1.1",
    "HTTP/1.0",
    "http://",
    "https://b",
    "Host: b\r\n",
    "chunked",
    "close",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: keep-alive\r\n",
    "Upgrade: x\r\n",
    "Expect: 100-continue\r\n",
    "\r\n ",
    "X: y\r\n",
    "9223372036854775807",
    "GET ",
    "OPTIONS ",
    "CONNECT ",
];

#[derive(Clone, Debug)]
pub(super) enum Edit {
    Insert(prop::sample::Index, &'static str),
    Remove(prop::sample::Index, usize),
    Replace(prop::sample::Index, u8),
}

pub(super) fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        (any::<prop::sample::Index>(), prop::sample::select(PIECES)).prop_map(|(at, piece)| Edit::Insert(at, piece)),
        (any::<prop::sample::Index>(), 1..4usize).prop_map(|(at, length)| Edit::Remove(at, length)),
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Replace(at, byte)),
    ];
    prop::collection::vec(edit, 0..4)
}

pub(super) fn edited(text: &str, edits: &[Edit]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for edit in edits {
        match edit {
            Edit::Insert(at, piece) => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, piece.bytes());
            }
            Edit::Remove(at, length) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes.drain(at..bytes.len().min(at + length));
            }
            Edit::Replace(at, byte) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Edit::Remove(..) | Edit::Replace(..) => {}
        }
    }
    bytes
}

pub(super) fn request_bytes() -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(REQUESTS), edits()).prop_map(|(text, edits)| edited(text, &edits))
}

pub(super) fn response_bytes() -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(RESPONSES), edits()).prop_map(|(text, edits)| edited(text, &edits))
}

fn check_request(bytes: &[u8]) -> Result<(), TestCaseError> {
    let seen = request(bytes).ok().flatten();
    prop_assert_eq!(&seen, &naive::request_head(bytes, &LIMITS));
    if let Some(seen) = seen {
        let mut headers = [httparse::EMPTY_HEADER; 256];
        let mut parsed = httparse::Request::new(&mut headers);
        prop_assert_eq!(parsed.parse(&bytes[..seen.length]), Ok(httparse::Status::Complete(seen.length)));
        prop_assert_eq!(parsed.method, Some(seen.method.as_str()));
        prop_assert_eq!(parsed.version, Some(u8::from(seen.version == Version::Http11)));
        let lines = parsed.headers.iter().map(|line| (line.name.as_bytes().to_vec(), line.value.to_vec()));
        prop_assert_eq!(lines.collect::<Vec<_>>(), seen.fields);
    }
    Ok(())
}

fn check_response(bytes: &[u8], answers_head: bool) -> Result<(), TestCaseError> {
    let seen = response_in_pieces(bytes, &LIMITS, answers_head, &[]).ok().flatten();
    prop_assert_eq!(&seen, &naive::response_head(bytes, &LIMITS, answers_head));
    if let Some(seen) = seen {
        let mut headers = [httparse::EMPTY_HEADER; 256];
        let mut parsed = httparse::Response::new(&mut headers);
        prop_assert_eq!(parsed.parse(&bytes[..seen.length]), Ok(httparse::Status::Complete(seen.length)));
        prop_assert_eq!(parsed.code, Some(seen.status));
        let lines = parsed.headers.iter().map(|line| (line.name.as_bytes().to_vec(), line.value.to_vec()));
        prop_assert_eq!(lines.collect::<Vec<_>>(), seen.fields);
    }
    Ok(())
}

#[test]
fn the_naive_reader_agrees_about_every_example() {
    let refused = requests::REFUSED.iter().flat_map(|section| section.iter().map(|(head, _)| *head));
    for head in REQUESTS.iter().copied().chain(refused) {
        check_request(head.as_bytes()).unwrap();
    }
    let refused = responses::REFUSED.iter().flat_map(|section| section.iter().map(|(head, _)| *head));
    for head in RESPONSES.iter().copied().chain(refused) {
        check_response(head.as_bytes(), false).unwrap();
    }
    let accepted = REQUESTS.iter().filter(|head| naive::request_head(head.as_bytes(), &LIMITS).is_some());
    assert_eq!(accepted.count(), REQUESTS.len() - 1);
}

#[test]
fn the_naive_reader_agrees_about_each_byte_at_each_place() {
    for head in REQUESTS {
        for at in 0..head.len() {
            for byte in 0..=255 {
                let mut bytes = head.as_bytes().to_vec();
                bytes[at] = byte;
                check_request(&bytes).unwrap();
            }
        }
    }
    for head in RESPONSES {
        for at in 0..head.len() {
            for byte in 0..=255 {
                let mut bytes = head.as_bytes().to_vec();
                bytes[at] = byte;
                check_response(&bytes, false).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_read_as_the_naive_reader_reads_them(bytes in request_bytes()) {
        check_request(&bytes)?;
    }

    #[test]
    fn responses_are_read_as_the_naive_reader_reads_them(bytes in response_bytes(), answers_head in any::<bool>()) {
        check_response(&bytes, answers_head)?;
    }
}
