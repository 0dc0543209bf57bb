//! The same behaviour in every mix of HTTP/1 and HTTP/2: what a client sees and what a server sees does not depend on
//! what the other one speaks.

mod bodies;
mod messages;
mod pacing;
pub mod peers;
mod servers;
mod table;
mod tunnels;
