//! Sockets that listen, and connections from their arrival until they can be served: their place among others, the PROXY header,
//! the TLS handshake.
//!
//! It reads nothing of a request. Caller: `gateway`, which gives each worker its sockets.

mod first_byte;
mod listener;
mod proxied;

pub use listener::{OwnDoor, accept, bind};
