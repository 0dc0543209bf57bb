//! A client's connection, request after request: HTTP/1 by [`h1`], the streams of HTTP/2 by [`h2`].
//!
//! It finds the requests, and the walk answers them. Nothing here looks at what a request asks for. Caller: `accept`.

mod begin;
pub(super) mod h1;
pub(super) mod h2;
mod stream_place;
