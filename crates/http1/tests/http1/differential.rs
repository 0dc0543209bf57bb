//! Every message that we accept, two independent parsers accept too, and understand the same way: h11 (Python) and
//! llhttp (C, Node.js). Their verdicts are recorded in `golden.jsonl` by `fuzz/differential/record.py`.
//!
//! Where one of them says otherwise, `differences.txt` says why that is right. A message that only we refuse is counted
//! in `stricter.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use serde::Deserialize;

use crate::corpus;
use crate::http1::{Framing, HeadLimits, RequestHead, ResponseHead, Side, Version};
use crate::properties::{Input, Message, Transcript, transcript};

const LIMITS: HeadLimits = HeadLimits { max_bytes: 16 * 1024, max_fields: 100 };

/// The head before a body of the corpus.
const CHUNKED: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A message to be judged, and where it comes from.
pub struct Entry {
    pub name: String,
    pub side: &'static str,
    pub bytes: Vec<u8>,
}

/// The record of an entry.
#[derive(Deserialize)]
struct Golden {
    name: String,
    side: String,
    sum: String,
    h11: Verdict,
    llhttp: Verdict,
}

#[derive(Deserialize)]
struct Verdict {
    messages: Vec<Understood>,
    refused: Option<String>,
}

/// A message as a parser understood it. Texts are Latin-1.
#[derive(Debug, Deserialize, PartialEq)]
struct Understood {
    /// Method and target, or status and reason.
    start: [String; 2],
    version: String,
    /// Names in lower case.
    fields: Vec<[String; 2]>,
    /// The length, `chunked` or `close`; `None` if the parser does not tell.
    framing: Option<String>,
    body: String,
    complete: bool,
}

/// The table of classics.
pub fn classics() -> Vec<Entry> {
    let text = fs::read_to_string(corpus::tests().join("classics.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let [name, side, bytes] = line.splitn(3, " | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
            let side = ["request", "response", "response-to-head"].into_iter().find(|known| *known == side);
            Entry { name: name.to_owned(), side: side.expect(line), bytes: unescaped(bytes) }
        })
        .collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match (byte, byte == b'\\') {
            (byte, false) => byte,
            _ => match rest.next().unwrap() {
                b'r' => b'\r',
                b'n' => b'\n',
                b't' => b'\t',
                b'0' => 0,
                b'\\' => b'\\',
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => panic!("no escape: {other}"),
            },
        });
    }
    bytes
}

/// The table and the corpus, in the order of `golden.jsonl`.
fn entries() -> Vec<Entry> {
    let mut entries = classics();
    for target in ["head", "framing", "chunk"] {
        for (file, data) in corpus::files(target) {
            let name = format!("{target}/{file}");
            let bytes = &data[4..];
            entries.push(match (target, data[0] & 3) {
                ("chunk", _) => Entry { name, side: "request", bytes: [CHUNKED, bytes].concat() },
                (_, 1) => Entry { name, side: "response", bytes: bytes.to_vec() },
                (_, 3) => Entry { name, side: "response-to-head", bytes: bytes.to_vec() },
                _ => Entry { name, side: "request", bytes: bytes.to_vec() },
            });
        }
    }
    entries
}

impl Entry {
    /// The bytes as a fuzz target gets them, with wide limits.
    pub fn input(&self) -> Vec<u8> {
        let options = match self.side {
            "request" => b'0',
            "response" => b'1',
            _ => b'3',
        };
        [&[options, b'0', b'3', b'6'], self.bytes.as_slice()].concat()
    }
}

/// FNV-1a of 64 bits.
fn checksum(bytes: &[u8]) -> String {
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

fn golden() -> Vec<(Entry, Golden)> {
    let text = fs::read_to_string(corpus::tests().join("golden.jsonl")).unwrap();
    let golden: Vec<Golden> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let entries = entries();
    let is_current = golden.len() == entries.len()
        && entries.iter().zip(&golden).all(|(entry, golden)| {
            (&entry.name, entry.side, checksum(&entry.bytes))
                == (&golden.name, golden.side.as_str(), golden.sum.clone())
        });
    assert!(is_current, "golden.jsonl is of another corpus: run fuzz/differential/record.py");
    entries.into_iter().zip(golden).collect()
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Our reading in the words of the golden file.
fn understood(input: Input<'_>, message: &Message) -> Understood {
    let fields = |fields: Vec<(&[u8], &[u8])>| {
        fields.into_iter().map(|(name, value)| [latin1(&name.to_ascii_lowercase()), latin1(value)]).collect()
    };
    let (start, version, fields) = match input.side {
        Side::Request => {
            let mut parsed = RequestHead::default();
            parsed.parse(&message.head, &LIMITS).unwrap();
            let request = parsed.on(&message.head);
            // What parsers that do not take a target apart give: its text.
            let target = latin1(message.head.trim_ascii_start().split(|byte| *byte == b' ').nth(1).unwrap());
            ([request.method().to_owned(), target], parsed.version(), fields(request.fields().collect()))
        }
        Side::Response => {
            let mut parsed = ResponseHead::default();
            parsed.parse(&message.head, &LIMITS, input.answers_head).unwrap();
            let response = parsed.on(&message.head);
            let start = [response.status().to_string(), latin1(response.reason())];
            (start, parsed.version(), fields(response.fields().collect()))
        }
    };
    let framing = match message.framing {
        Framing::None => "0".to_owned(),
        Framing::Length(length) => length.to_string(),
        Framing::Chunked => "chunked".to_owned(),
        Framing::UntilClose => "close".to_owned(),
    };
    Understood {
        start,
        version: if version == Version::Http11 { "1.1" } else { "1.0" }.to_owned(),
        fields,
        framing: Some(framing),
        body: latin1(&message.content),
        complete: message.is_complete,
    }
}

/// How a parser disagrees with what we accept.
fn difference(input: Input<'_>, ours: &Transcript, theirs: &Verdict) -> Option<String> {
    for (at, message) in ours.messages.iter().enumerate() {
        let is_last_and_refused = ours.fault.is_some() && !message.is_complete;
        let our = understood(input, message);
        let Some(their) = theirs.messages.get(at) else {
            return Some(format!("refused: {}", theirs.refused.as_deref().unwrap_or("unfinished")));
        };
        let is_refused = theirs.refused.is_some() && at + 1 == theirs.messages.len();
        if !their.complete && (our.complete || is_refused && !is_last_and_refused) {
            return Some(format!("refused: {}", theirs.refused.as_deref().unwrap_or("unfinished")));
        }
        let is_same_value = |our: &[String; 2], their: &[String; 2]| match our[0].as_str() {
            // h11 gives codings in lower case.
            "transfer-encoding" => our[1].eq_ignore_ascii_case(&their[1]),
            _ => our[1] == their[1],
        };
        let is_same_field =
            |(our, their): (&[String; 2], &[String; 2])| our[0] == their[0] && is_same_value(our, their);
        let are_fields_same =
            our.fields.len() == their.fields.len() && our.fields.iter().zip(&their.fields).all(is_same_field);
        let parts = [
            ("start", our.start == their.start),
            ("version", our.version == their.version),
            ("fields", are_fields_same),
            ("framing", their.framing.is_none() || our.framing == their.framing),
            ("end", is_last_and_refused || our.complete == their.complete),
            ("body", is_last_and_refused || our.body == their.body),
        ];
        if let Some((part, _)) = parts.iter().find(|(_, is_same)| !is_same) {
            return Some(format!("another {part}"));
        }
    }
    None
}

#[test]
fn what_we_accept_others_accept_and_understand_the_same_way() {
    let text = fs::read_to_string(corpus::tests().join("differences.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let explained: BTreeSet<String> = lines.map(str::to_owned).collect();
    let mut found = BTreeSet::new();
    for (entry, golden) in golden() {
        let data = entry.input();
        let input = Input::of(&data).unwrap();
        let ours = transcript(input);
        for (parser, theirs) in [("h11", &golden.h11), ("llhttp", &golden.llhttp)] {
            if let Some(difference) = difference(input, &ours, theirs) {
                found.insert(format!("{} | {parser} | {difference}", entry.name));
            }
        }
    }
    let list = |lines: Vec<&str>| lines.join("\n");
    assert_eq!(list(found.difference(&explained).map(String::as_str).collect()), "", "new differences");
    assert_eq!(list(explained.difference(&found).map(String::as_str).collect()), "", "no differences any more");
}

#[test]
fn what_only_we_refuse_is_known() {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut messages = 0;
    for (entry, golden) in golden() {
        let data = entry.input();
        let ours = transcript(Input::of(&data).unwrap());
        messages += ours.messages.iter().filter(|message| message.is_complete).count();
        let Some(fault) = ours.fault else { continue };
        let accepted = ours.messages.iter().filter(|message| message.is_complete).count();
        for (parser, theirs) in [("h11", &golden.h11), ("llhttp", &golden.llhttp)] {
            if theirs.messages.get(accepted).is_some_and(|message| message.complete) {
                *counts.entry((parser, fault.word())).or_default() += 1;
            }
        }
    }
    let mut table = format!("{messages} messages are accepted here\n");
    for ((parser, reason), count) in counts {
        writeln!(table, "{parser} accepts {count} that are refused here: {reason}").unwrap();
    }
    let known = fs::read_to_string(corpus::tests().join("stricter.txt")).unwrap();
    assert_eq!(table, known, "if this is meant, write it to stricter.txt");
}
