//! A connection that was switched to another protocol, such as WebSocket: bytes in both directions, bounded and paced.
//!
//! It understands frames of WebSocket as far as messages are bounded, and nothing else of what passes. Caller: the walk.

mod message_gate;
mod switched;
mod way_bounds;
mod websocket;

pub use switched::LAST_WORDS;

pub(super) use switched::run;
