//! HTTP/1.1 without I/O: bytes in, heads and bodies out, strict to the letter of RFC 9112.
//!
//! It reads messages from bytes that its caller has received and writes heads into a buffer that its caller sends. It
//! opens no socket, reads no clock, chooses no status and knows no routes; it does not decode contents. Whatever two
//! parties could understand differently is a [`Fault`]: after one, the caller uses neither connection again.
//!
//! - `buffer`: where received bytes lie.
//! - `head`: where a head ends, told as early as possible. `request`, `response`: what it says, as ranges of its bytes.
//! - `line`, `known`, `fields`: field lines, and what they say of the connection. `target`: the request's target.
//!   `framing`: how long the body is. `scan`: searching for bytes.
//! - `body`, `chunked`, `trailers`: a body as it is written on, without what the next party need not see.
//! - `write`: heads and chunk heads.
//!
//! Heads are read by a tokeniser of its own, in safe code, and `httparse` is an oracle of the tests: since it validates
//! little, all that it had read was looked at again, and a small request cost 4,700 instructions in place of 2,800.
//!
//! Invariants:
//!
//! - No split of the input changes the outcome, and what was searched is not searched again when more comes.
//! - Only bytes that were understood are given out to be written on: no chunk extension, no trailer that is not allowed.
//! - Nothing grows without bound: heads, fields, chunk extensions and trailers each have a limit.
//! - No input panics. Nothing is allocated for a message once the buffers are warm, but for a trailer section.
//!
//! Its caller is the proxy, on the clients' side and on the upstreams'.

#[macro_use]
extern crate sluicegate_words;

mod body;
mod buffer;
mod chunked;
mod fault;
mod fields;
mod framing;
mod head;
mod known;
mod line;
mod request;
mod response;
mod scan;
mod target;
mod trailers;
mod write;

pub use body::{Accepted, Body, ChunkPart};
pub use buffer::Buffer;
pub use fault::Fault;
pub use fields::Piece;
pub use framing::Framing;
pub use head::{HeadEnd, HeadLimits, MAX_FIELDS, Side, Version};
pub use known::{Known, authenticates_connection, is_name};
pub use line::{has_control, is_token_byte};
pub use request::{Request, RequestHead};
pub use response::{Response, ResponseHead};
pub use write::{CHUNK_ROOM, HeadWriter, has_line, line_name, reason_phrase, write_chunk_head};

#[cfg(test)]
mod tests;
