//! Values at a few pointers of JSON texts (RFC 8259, RFC 6901) that come in pieces, and the events of an event stream.
//!
//! [`PointerReader`] is fed bytes as they come and keeps the values at its pointers, nothing else: a text of any length takes
//! the memory of its pointers and of one key. [`EventSplitter`] finds the data of the events of `text/event-stream`.
//!
//! It is our own, since the push parsers of crates.io do not go with bytes that are neither held back nor kept: actson 2.1
//! keeps each string whole, however long it is; picojson 0.2 refuses a string that is longer than its buffer. A model's answer is
//! often one string of many kilobytes.
//!
//! Invariants: each byte is looked at a bounded number of times; no text makes it grow or recurse; the value at a pointer is
//! believed only when the text that has it is complete and is JSON. It reads no message and decides nothing. Callers:
//! `admission`, `jwt`.

mod event_stream;
mod number;
mod pointer;
mod pointer_reader;
mod text;

pub use event_stream::{EventPart, EventSplitter};
pub use number::JsonNumber;
pub use pointer::{JsonPointer, MAX_TOKEN_BYTES, MAX_TOKENS, PointerError};
pub use pointer_reader::{FoundValue, MAX_DEPTH, MAX_TEXT_BYTES, PointerReader};
