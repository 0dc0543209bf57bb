//! The bytes that rows send.

use crate::h2::frames::{
    CONTINUATION, DATA, END_HEADERS, Fields, GOAWAY, HEADERS, PADDED, PRIORITY, RESET, SETTINGS, WHOLE, WINDOW, block,
    frame, pairs, request, request_with,
};

/// HEADERS with a dependency (RFC 7540, 6.2).
pub const WITH_PRIORITY: u8 = 0x20;

/// HEADERS of a field block in one frame.
pub fn head(flags: u8, stream: u32, fields: &Fields) -> Vec<u8> {
    frame(HEADERS, flags, stream, &block(fields))
}

/// A whole GET whose answer is the echo.
pub fn get(stream: u32) -> Vec<u8> {
    head(WHOLE, stream, &request("GET", "/echo"))
}

/// The same with more fields.
pub fn get_with(stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    head(WHOLE, stream, &request_with("GET", "/echo", more))
}

/// A whole GET whose block ends with these bytes.
pub fn get_and(stream: u32, representations: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &[&block(&request("GET", "/echo"))[..], representations].concat())
}

/// A whole GET whose block begins with these bytes.
pub fn get_behind(stream: u32, representations: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &[representations, &block(&request("GET", "/echo"))].concat())
}

/// The head of a POST whose answer is the echo.
pub fn post(stream: u32) -> Vec<u8> {
    head(END_HEADERS, stream, &request("POST", "/echo"))
}

/// A whole GET that is never answered.
pub fn held(stream: u32) -> Vec<u8> {
    head(WHOLE, stream, &request("GET", "/held"))
}

/// The head of a POST that is never answered.
pub fn held_post(stream: u32) -> Vec<u8> {
    head(END_HEADERS, stream, &request("POST", "/held"))
}

/// A whole GET whose answer is large.
pub fn get_large(stream: u32) -> Vec<u8> {
    head(WHOLE, stream, &request("GET", "/large"))
}

pub fn continuation(flags: u8, stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(CONTINUATION, flags, stream, &block(&pairs(fields)))
}

pub fn trailers(flags: u8, stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    head(flags, stream, &pairs(fields))
}

pub fn data(flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, content)
}

/// DATA with this much padding.
pub fn padded(flags: u8, stream: u32, content: &[u8], padding: u8) -> Vec<u8> {
    frame(DATA, flags | PADDED, stream, &[&[padding][..], content, &vec![0; usize::from(padding)]].concat())
}

/// The payload of PRIORITY: the stream that it depends on, with the bit of exclusiveness, and the weight less one.
pub fn dependency(on: u32, weight: u8) -> Vec<u8> {
    [&on.to_be_bytes()[..], &[weight]].concat()
}

pub fn priority(stream: u32, on: u32, weight: u8) -> Vec<u8> {
    frame(PRIORITY, 0, stream, &dependency(on, weight))
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RESET, 0, stream, &code.to_be_bytes())
}

pub fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW, 0, stream, &more.to_be_bytes())
}

pub fn goaway(last: u32, code: u32, debug: &[u8]) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &code.to_be_bytes(), debug].concat())
}

pub fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let bytes = entries.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat());
    frame(SETTINGS, 0, 0, &bytes.collect::<Vec<_>>())
}
