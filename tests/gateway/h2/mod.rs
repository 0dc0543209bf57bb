//! HTTP/2 clients against the gateway: frames to the byte, over real sockets, by prior knowledge.
//!
//! `frames` is a client that sends whatever it is told and tells what came; `peer` is one that keeps the rules.

mod conformance;
mod flood;
mod flow;
pub mod frames;
mod life;
mod malformed;
mod messages;
pub mod peer;
mod policy;
mod shares;
mod tunnels;
