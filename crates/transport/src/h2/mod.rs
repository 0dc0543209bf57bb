//! HTTP/2 (RFC 9113) as HTTP/1.1 that is spoken over many streams at once.
//!
//! Clients are spoken to by the codec of this house ([`sluicegate_http2`]), servers by the `h2` crate, the one that hyper is
//! made of. It is used itself and not through hyper's client, which hides what a proxy needs: whether a server has looked
//! at a request, writing when there is a window and not before, and passing interim answers and trailers on.
//!
//! A stream is spoken to in HTTP/1.1, see [`super::Stream`]: a request comes as a head that [`Incoming::write_head`]
//! writes and a body that is a length or chunks; what is written to it is a response of HTTP/1.1, which becomes HEADERS,
//! DATA and trailers. So a message is read by the codec of HTTP/1 whatever it came in (RFC 9113, 8.2 and 10.3, and the
//! desync attacks of "HTTP/2: The Sequel is Always Worse", Kettle 2021): a field or a target that HTTP/1 cannot carry is
//! refused and not rewritten.
//!
//! - `from_client`: a stream that a client opened. `to_server`: one that was opened to a server. `server`, `client`: the
//!   connections.
//! - `guard`: the transport of a connection to a server. `inlet`, `outlet`: its bodies in either direction. `own_head`:
//!   reading the heads that we wrote for it.

mod client;
mod from_client;
mod guard;
mod inlet;
#[cfg(test)]
mod loopback;
mod outlet;
mod own_head;
mod server;
mod to_server;

use std::io;

use base64ct::{Base64, Encoding};
use sha1::{Digest, Sha1};

pub use client::{Channel, open_channel};
pub use from_client::FromClient;
pub use server::{Accepting, ConnectionError, Ended, Incoming};
pub use to_server::ToServer;

/// The kind of error by which a reader learns that the server has not looked at the request, so that it may be sent
/// again (RFC 9113, 8.7).
pub const UNPROCESSED: io::ErrorKind = io::ErrorKind::ConnectionRefused;

/// The kind of error by which a reader learns that the peer has looked at the message and has reset its stream: unlike
/// a connection that ends, that is an answer of a kind.
pub const STREAM_RESET: io::ErrorKind = io::ErrorKind::ConnectionAborted;

/// Trailers of a response that has a `content-length`: HTTP/1.1 has no place for both, HTTP/2 has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthTrailers {
    /// They are dropped.
    #[default]
    Dropped,
    /// The body comes in chunks if the response announces trailers, or is one of gRPC, whose result is in them.
    Announced,
    /// The body comes in chunks, and the trailers behind them if there are some.
    All,
}

/// Room for a stream's data in each direction, in bytes: what is under way to us of a response's body.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The bytes of a stream that may lie ready to be written.
const SEND_BUFFER: usize = 64 * 1024;

/// The text that a client's nonce is hashed with (RFC 6455, 4.2.2).
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A nonce of the client's handshake of WebSocket (RFC 6455, 4.1), which extended CONNECT has none of.
pub fn websocket_key(random: [u64; 2]) -> String {
    Base64::encode_string(&[random[0].to_be_bytes(), random[1].to_be_bytes()].concat())
}

/// The server's answer to such a nonce.
pub fn websocket_accept(key: &[u8]) -> String {
    Base64::encode_string(&Sha1::new().chain_update(key).chain_update(WEBSOCKET_GUID).finalize())
}

/// Whether a value begins or ends with a blank, which HTTP/2 does not allow and HTTP/1 would not see (RFC 9113, 8.2.1).
fn has_outer_blank(value: &[u8]) -> bool {
    [value.first(), value.last()].iter().any(|byte| matches!(byte, Some(b' ' | b'\t')))
}

/// An error of HTTP/2 as one of a connection.
fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into());
    }
    let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let kind = match (error.is_remote(), error.is_go_away(), error.is_reset()) {
        // GOAWAY is told to those streams only that come behind the last one that it names (RFC 9113, 6.8).
        (true, true, _) => UNPROCESSED,
        (true, _, true) => {
            if is_refused {
                UNPROCESSED
            } else {
                STREAM_RESET
            }
        }
        _ => io::ErrorKind::ConnectionReset,
    };
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_answered_as_rfc_6455_has_it() {
        assert_eq!(websocket_accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(websocket_key([0, 1]), "AAAAAAAAAAAAAAAAAAAAAQ==");
    }
}
