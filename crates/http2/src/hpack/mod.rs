//! HPACK: header compression for HTTP/2 (RFC 7541), the side of a server.
//!
//! A [`Decoder`] reads the header blocks that one peer sends, an [`Encoder`] writes those that it is sent. Both know
//! fields as bytes only: which fields are allowed, in what order and how many is their caller's business, and so are
//! frames. The caller puts HEADERS and CONTINUATION together before it decodes.
//!
//! - `static_table`, `dynamic_table`: what an index stands for.
//! - `integer`, `huffman`: the two codings that all else is made of.
//!
//! Invariants:
//!
//! - No input panics, and whatever RFC 7541 does not allow is an [`HpackError`].
//! - The tables take about twice the announced size, whatever a peer sends. A few bytes can stand for a long field, over
//!   and over: the caller counts what it is given.
//! - Nothing is allocated once a connection is warm.

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod static_table;

pub use decoder::{Decoder, HpackError};
pub use encoder::Encoder;

#[cfg(test)]
mod tests;
