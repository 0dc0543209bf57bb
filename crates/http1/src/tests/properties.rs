//! Properties that hold for every input: no split changes the outcome, nothing panics, what is written is read again.

use proptest::prelude::*;

use super::heads::{REQUESTS, RESPONSES, edited, edits, request_bytes, response_bytes};
use super::naive::{NaiveBody, chunked_body};
use super::*;
use crate::{CHUNK_ROOM, HeadWriter, write_chunk_head};

/// Chunked bodies to begin with, each with something behind it.
const BODIES: &[&str] = &[
    "0\r\n\r\nGET",
    "3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1",
    "3;x=\"y\"\r\nabc\r\n0010 ; z\r\n0123456789abcdef\r\n0;e\r\n\r\n0",
    "1\r\na\r\n0\r\nX-Sum: 1\r\nHost: b\r\nEmpty:\r\n\r\nHTTP",
    "1\r\na\r\n0\r\nHost: b\r\n\r\n",
];

/// Every way to look at `length` bytes that is worth it: each single cut, byte by byte, and by twos and threes.
fn cuts_of(length: usize) -> Vec<Vec<usize>> {
    let mut ways: Vec<Vec<usize>> = (0..=length).map(|cut| vec![cut]).collect();
    ways.extend([1, 2, 3, 7].map(|step| (0..=length).step_by(step).collect()));
    ways
}

fn random_cuts(length: usize, indices: &[prop::sample::Index]) -> Vec<usize> {
    let mut cuts: Vec<usize> = indices.iter().map(|index| index.index(length + 1)).collect();
    cuts.sort_unstable();
    cuts
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..8)
}

/// Small limits, so that they are met.
fn limits() -> impl Strategy<Value = HeadLimits> {
    (0..200usize, 0..6usize).prop_map(|(max_bytes, max_fields)| HeadLimits { max_bytes, max_fields })
}

/// `None` where the bytes end before the body does: what is written by then depends on nothing but them.
fn check_body(bytes: &[u8], cuts: &[usize]) -> Result<(), TestCaseError> {
    let naive = chunked_body(bytes);
    for form in [ChunkPart::AsIs, ChunkPart::Content] {
        let whole = chunked(bytes, form);
        prop_assert_eq!(&body_in_pieces(bytes, Framing::Chunked, form, cuts), &whole);
        match (&whole, &naive) {
            (Err(fault), NaiveBody::Refused(expected)) => prop_assert_eq!(fault, expected),
            (Ok(seen), NaiveBody::Incomplete { content }) => {
                prop_assert!(!seen.is_complete);
                prop_assert_eq!((seen.taken, seen.content), (bytes.len(), *content as u64));
            }
            (Ok(seen), NaiveBody::Complete { content, taken, trailers }) => {
                prop_assert!(seen.is_complete);
                prop_assert_eq!((seen.taken, seen.content), (*taken, content.len() as u64));
                match form {
                    ChunkPart::Content => prop_assert_eq!(&seen.written, content),
                    ChunkPart::AsIs => check_written(&seen.written, content, trailers)?,
                }
            }
            _ => prop_assert!(false, "{whole:?} is not {naive:?}"),
        }
    }
    Ok(())
}

/// Checks that the bytes written on have the same content, no extension, and none but trailers that came.
fn check_written(written: &[u8], content: &[u8], trailers: &[(String, Vec<u8>)]) -> Result<(), TestCaseError> {
    let NaiveBody::Complete { content: again, taken, trailers: kept } = chunked_body(written) else {
        return Err(TestCaseError::fail("what is written on is no body"));
    };
    prop_assert_eq!(again.as_slice(), content);
    prop_assert_eq!(taken, written.len());
    prop_assert!(kept.iter().all(|line| trailers.contains(line)));
    let framing = written.len() - content.len();
    let lines: usize = kept.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    // Nothing but digits, line ends and those lines: 20 bytes frame a chunk at most.
    prop_assert!(framing - lines <= 20 * (content.len() + 2));
    Ok(())
}

#[test]
fn no_cut_of_an_example_changes_what_comes_of_it() {
    let refused = requests::REFUSED.iter().flat_map(|section| section.iter().map(|(head, _)| *head));
    for head in REQUESTS.iter().copied().chain(refused) {
        let whole = request(head);
        for cuts in cuts_of(head.len()) {
            assert_eq!(request_in_pieces(head.as_bytes(), &LIMITS, &cuts), whole, "{head:?} {cuts:?}");
        }
    }
    let refused = responses::REFUSED.iter().flat_map(|section| section.iter().map(|(head, _)| *head));
    for head in RESPONSES.iter().copied().chain(refused) {
        let whole = response(head);
        for cuts in cuts_of(head.len()) {
            assert_eq!(response_in_pieces(head.as_bytes(), &LIMITS, false, &cuts), whole, "{head:?} {cuts:?}");
        }
    }
    for body in BODIES.iter().copied().chain(bodies::REFUSED.iter().map(|(body, _)| *body)) {
        for cuts in cuts_of(body.len()) {
            check_body(body.as_bytes(), &cuts).unwrap();
        }
    }
}

#[test]
fn each_byte_at_each_place_of_a_body_is_read_as_the_naive_reader_reads_it() {
    for body in BODIES {
        for at in 0..body.len() {
            for byte in 0..=255 {
                let mut bytes = body.as_bytes().to_vec();
                bytes[at] = byte;
                check_body(&bytes, &[at]).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn no_cut_changes_what_comes_of_a_request(bytes in request_bytes(), cuts in cuts(), limits in limits()) {
        let cuts = random_cuts(bytes.len(), &cuts);
        for limits in [limits, LIMITS] {
            let whole = request_in_pieces(&bytes, &limits, &[]);
            prop_assert_eq!(&request_in_pieces(&bytes, &limits, &cuts), &whole);
            let every: Vec<usize> = (0..=bytes.len()).collect();
            prop_assert_eq!(&request_in_pieces(&bytes, &limits, &every), &whole);
        }
    }

    #[test]
    fn no_cut_changes_what_comes_of_a_response(bytes in response_bytes(), cuts in cuts(), limits in limits()) {
        let cuts = random_cuts(bytes.len(), &cuts);
        for limits in [limits, LIMITS] {
            let whole = response_in_pieces(&bytes, &limits, false, &[]);
            prop_assert_eq!(&response_in_pieces(&bytes, &limits, false, &cuts), &whole);
            let every: Vec<usize> = (0..=bytes.len()).collect();
            prop_assert_eq!(&response_in_pieces(&bytes, &limits, false, &every), &whole);
        }
    }

    #[test]
    fn a_body_is_read_as_the_naive_reader_reads_it_however_it_is_cut(
        text in prop::sample::select(BODIES), edits in edits(), cuts in cuts(),
    ) {
        let bytes = edited(text, &edits);
        check_body(&bytes, &random_cuts(bytes.len(), &cuts))?;
    }

    #[test]
    fn bytes_of_the_chunked_alphabet_are_read_as_the_naive_reader_reads_them(
        bytes in prop::collection::vec(prop::sample::select(&b"0123af\r\n\r\n; x:"[..]), 0..24), cuts in cuts(),
    ) {
        check_body(&bytes, &random_cuts(bytes.len(), &cuts))?;
    }

    #[test]
    fn nothing_panics_whatever_comes(bytes in prop::collection::vec(any::<u8>(), 0..200), cuts in cuts()) {
        let cuts = random_cuts(bytes.len(), &cuts);
        let mut prefixed = b"HTTP/1.1 200 ".to_vec();
        prefixed.extend_from_slice(&bytes);
        let _ = (request_in_pieces(&bytes, &LIMITS, &cuts), response_in_pieces(&prefixed, &LIMITS, false, &cuts));
        // A head that no search has found, too.
        let _ = RequestHead::default().parse(&bytes, &LIMITS);
        let _ = ResponseHead::default().parse(&prefixed, &LIMITS, true);
        check_body(&bytes, &cuts)?;
    }

    #[test]
    fn a_request_that_is_written_is_read_again(
        method in "[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}".prop_filter("refused", |method| method != "CONNECT"),
        path in "/[!$-;=@-~]{0,40}",
        query in prop::option::of("[!$-;=?-~]{0,20}"),
        lines in prop::collection::vec(("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", "([!-~\u{80}-\u{ff}]([ \t!-~]{0,30}[!-~])?)?"), 0..12),
        number in any::<u64>(),
    ) {
        let known = ["host", "expect", "content-length", "transfer-encoding", "x-number"];
        let lines: Vec<_> = lines.into_iter()
            .filter(|(name, _)| known.iter().all(|known| !name.eq_ignore_ascii_case(known)))
            .collect();
        let mut out = b"before".to_vec();
        let mut writer = HeadWriter::request(&mut out, method.as_bytes(), path.as_bytes(), query.as_deref().map(str::as_bytes));
        writer.field(b"Host", b"a:80");
        for (name, value) in &lines {
            prop_assert_eq!(writer.has(b"x-number"), false);
            writer.field(name.as_bytes(), value.as_bytes());
            prop_assert!(writer.has(name.to_ascii_lowercase().as_bytes()));
        }
        writer.number(b"X-Number", number);
        writer.end();
        let seen = request(&out[6..]).unwrap().unwrap();
        prop_assert_eq!(seen.length, out.len() - 6);
        prop_assert_eq!((seen.method, seen.path, seen.query), (method, path, query));
        let mut expected = vec![(b"Host".to_vec(), b"a:80".to_vec())];
        expected.extend(lines.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())));
        expected.push((b"X-Number".to_vec(), number.to_string().into_bytes()));
        prop_assert_eq!(seen.fields, expected);
    }

    #[test]
    fn fields_that_are_copied_are_those_that_were_kept(
        lines in prop::collection::vec(
            ("[A-Z][a-z]{0,6}-X", prop::sample::select(&["", " ", "\t", "  "][..]), "([!-~]{0,9})", prop::sample::select(&["", " "][..])),
            0..16,
        ),
        keep in any::<u16>(),
    ) {
        let text: Vec<_> = lines.iter().map(|(name, before, value, after)| format!("{name}:{before}{value}{after}\r\n")).collect();
        let bytes = format!("GET / HTTP/1.0\r\n{}\r\n", text.concat()).into_bytes();
        let mut head = RequestHead::default();
        prop_assert_eq!(head.parse(&bytes, &LIMITS), Ok(()));
        let original = head.on(&bytes);
        let is_kept = |index: usize| keep >> index & 1 == 1;
        let mut asked = Vec::new();
        let mut out = Vec::new();
        let mut writer = HeadWriter::response(&mut out, 200, b"");
        let keep = |known, name, value| {
            asked.push((known, name, value));
            is_kept(asked.len() - 1)
        };
        original.copy_fields(keep, |piece| writer.piece(piece));
        writer.end();
        prop_assert_eq!(&asked, &original.known_fields().collect::<Vec<_>>());
        let kept = lines.iter().enumerate().filter(|(index, _)| is_kept(*index));
        let kept: Vec<_> = kept.map(|(_, (name, _, value, _))| format!("{name}: {value}\r\n")).collect();
        prop_assert_eq!(String::from_utf8_lossy(&out), format!("HTTP/1.1 200 OK\r\n{}\r\n", kept.concat()));
    }

    #[test]
    fn content_comes_through_chunks_unchanged(
        chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..600), 0..3usize), 0..8),
        trailers in prop::collection::vec(("X-[a-z]{1,9}", "[!-~]{0,9}"), 0..4),
        cuts in cuts(),
    ) {
        let extensions = ["", ";name=value", " \t;q=\"a\\\"; b\""];
        let content: Vec<u8> = chunks.iter().flat_map(|(data, _)| data.clone()).collect();
        let build = |with_extensions: bool| {
            let mut out = Vec::new();
            for (data, extension) in &chunks {
                let extension = if with_extensions { extensions[*extension] } else { "" };
                let mut room = [0; CHUNK_ROOM];
                let used = write_chunk_head(&mut room, data.len() as u32);
                out.extend_from_slice(&room[CHUNK_ROOM - used..CHUNK_ROOM - 2]);
                out.extend_from_slice(extension.as_bytes());
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n");
            for (name, value) in &trailers {
                out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            out.extend_from_slice(b"\r\n");
            out
        };
        let (sent, plain) = (build(true), build(false));
        let cuts = random_cuts(sent.len(), &cuts);
        let as_is = body_in_pieces(&sent, Framing::Chunked, ChunkPart::AsIs, &cuts).unwrap();
        prop_assert_eq!(as_is, SeenBody { written: plain, taken: sent.len(), content: content.len() as u64, is_complete: true });
        let bare = body_in_pieces(&sent, Framing::Chunked, ChunkPart::Content, &cuts).unwrap();
        prop_assert_eq!(&bare.written, &content);
    }
}
