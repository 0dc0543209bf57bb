//! HTTP/2 of clients without I/O (RFC 9113): bytes in, requests of HTTP/1.1 and bytes out.
//!
//! It reads what a client's connection has received and writes what is to be sent into a buffer of its own. It opens no
//! socket, reads no clock, chooses no status and knows no routes. It speaks for servers only: connections to servers of
//! HTTP/2 are those of the `h2` crate (`transport`).
//!
//! A request is given out as the head that it would have in HTTP/1.1, and a response is taken as one: so that a message
//! is read by the codec of HTTP/1 whatever it came in, and nothing is forwarded that HTTP/1 could not have said (RFC 9113,
//! 8.2 and 10.3). That is also why this is no general library: fields never become a map, and a stream's buffers are
//! filled and emptied in place. With the `h2` crate a small request cost 29,900 instructions more than over HTTP/1, with
//! this one 11,000 (`benches/README.md`).
//!
//! - `frame`, `settings`: how they are written. `hpack`: compression of fields (RFC 7541).
//! - `connection`: what comes, frame by frame. `control`: frames that carry nothing of a message. `receive`: requests on
//!   their way in. `send`: responses on their way out.
//! - `stream`: the streams of a connection. `request`, `response`: heads of HTTP/1.1, from and to fields.
//! - `flood`: frames that cost their sender nothing.
//!
//! Invariants:
//!
//! - No split of the input changes the outcome. No input panics.
//! - Memory is bounded: by windows for what comes, by what one write gives and by [`Connection::is_clogged`] for what goes,
//!   by `max_streams` and `max_header_list` for the rest. A frame of data is never kept whole.
//! - Streams that wait for a window that they share are served in turn.
//! - Fields are decoded whatever becomes of their stream; ours are encoded without a table, so that they may be written
//!   in any order.
//!
//! Its caller is `transport`.

#[macro_use]
extern crate sluicegate_words;

mod connection;
mod control;
mod flood;
mod frame;
mod hpack;
mod receive;
mod request;
mod response;
mod send;
mod settings;
mod stream;
mod window;

pub use connection::{Connection, Failed, Limits, PREFACE, RefusedUnread, Work};
pub use flood::{Flood, FloodKind, Outcomes};
pub use frame::Reason;
pub use request::{FIELD_OVERHEAD, RequestKind, is_type_of_grpc};
pub use response::{ResponseHead, Unreadable};
pub use send::{Coming, Sending};
pub use stream::StreamKey;

#[cfg(test)]
mod tests;
