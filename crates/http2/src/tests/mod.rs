//! Tests of the room as its caller sees it: bytes in, requests and bytes out.

mod client;
mod connection;
mod control;
mod end;
mod fairness;
mod inward;
mod late;
mod memory;
mod outward;
mod splits;
mod states;
mod uploads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::frame::{FrameHead, HEAD, flag, kind, put_head};
use super::hpack::{Decoder, Encoder};
use super::*;
use sluicegate_time::Tick;

const MAX_STREAMS: u32 = 10;

fn limits() -> Limits {
    Limits { max_streams: MAX_STREAMS, max_header_list: 4096, is_of_many: false }
}

/// How often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A frame that came out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_head(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        Encoder::field(name.as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

fn fields(block: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Decoder::new(4096).decode(block, |name, value| fields.push((text(name), text(value)))).unwrap();
    fields
}

fn get(path: &str) -> Vec<u8> {
    block(&[(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "h")])
}

/// A request without a body.
fn asks(stream: u32) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &get("/"))
}

/// The head of a request whose body follows.
fn uploads(stream: u32) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS, stream, &get("/"))
}

fn uploads_of(stream: u32, length: &str) -> Vec<u8> {
    let head = [&get("/")[..], &block(&[("content-length", length)])].concat();
    frame(kind::HEADERS, flag::END_HEADERS, stream, &head)
}

fn data(stream: u32, content: &[u8]) -> Vec<u8> {
    frame(kind::DATA, 0, stream, content)
}

fn last_data(stream: u32, content: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flag::END_STREAM, stream, content)
}

fn padded(stream: u32, content: &[u8], padding: u8) -> Vec<u8> {
    let payload = [&[padding], content, &vec![0; usize::from(padding)]].concat();
    frame(kind::DATA, flag::PADDED, stream, &payload)
}

fn reset(stream: u32, reason: Reason) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &(reason as u32).to_be_bytes())
}

fn update(stream: u32, by: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

fn window(value: u32) -> Vec<u8> {
    frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &value.to_be_bytes()].concat())
}

fn goaway(last: u32, reason: Reason) -> Vec<u8> {
    frame(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), (reason as u32).to_be_bytes()].concat())
}

/// Frames that are whole.
fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let FrameHead { length, kind, flags, stream } = FrameHead::read(*head);
        all.push(Frame { kind, flags, stream, payload: rest[..length].to_vec() });
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "a head that is cut");
    all
}

/// Everything that goes out, as bytes.
fn written(connection: &mut Connection) -> Vec<u8> {
    let mut all = Vec::new();
    while !connection.unwritten().is_empty() {
        all.extend_from_slice(connection.unwritten());
        connection.advance(connection.unwritten().len());
    }
    all
}

/// A connection whose settings were exchanged.
fn begun() -> Connection {
    begun_with(limits())
}

fn begun_with(limits: Limits) -> Connection {
    let mut connection = Connection::new(limits, Tick::ZERO);
    connection.feed(PREFACE);
    connection.feed(&frame(kind::SETTINGS, 0, 0, &[]));
    written(&mut connection);
    connection
}

/// One whose client lets us send without end.
fn begun_wide() -> Connection {
    let mut connection = begun();
    connection.feed(&window(0x7FFF_FFFF));
    connection.feed(&update(0, 0x7FFF_FFFF - 65_535));
    written(&mut connection);
    connection
}

/// Feeds a request and serves it.
fn taken(connection: &mut Connection, bytes: &[u8]) -> StreamKey {
    connection.feed(bytes);
    connection.serve();
    connection.next_incoming().expect("a request")
}

/// Sends a final head.
fn respond(connection: &mut Connection, key: StreamKey, status: u16, ends: bool) {
    let bytes = format!("HTTP/1.1 {status} X\r\n\r\n");
    connection.respond(key, status, &ResponseHead::read(bytes.as_bytes()).unwrap(), ends);
}

/// Answers with a head alone and gives the stream up.
fn answer(connection: &mut Connection, key: StreamKey) {
    respond(connection, key, 204, true);
    connection.note_served(key);
    connection.release(key, Reason::Internal);
}

fn failed(connection: &Connection) -> Option<Reason> {
    connection.failed().map(|failed| failed.reason)
}
