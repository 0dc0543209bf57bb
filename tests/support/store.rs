//! Stores that gateways share.

use std::net::SocketAddr;

use super::program::Program;

/// A Redis of the test's own, which holds nothing and writes nothing to disk.
pub struct Store(Program);

impl Store {
    pub fn start() -> Self {
        Self(Program::start("redis-server", |command, _, address| {
            command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
            command.args(["--save", "", "--appendonly", "no"]);
        }))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}
