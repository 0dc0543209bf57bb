//! Stores that gateways share.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::program::Program;

/// A Redis of the test's own, which holds nothing and writes nothing to disk.
pub struct Store(Program);

impl Store {
    pub fn start() -> Self {
        Self(Program::start("redis-server", configure))
    }

    /// One that speaks TLS alone, with `cert.pem` and `key.pem` of a directory.
    pub fn start_tls(files: &Path) -> Self {
        let configure = |command: &mut Command, _: &Path, address: SocketAddr| {
            command.args([
                "--bind",
                &address.ip().to_string(),
                "--port",
                "0",
                "--tls-port",
                &address.port().to_string(),
            ]);
            command.arg("--tls-cert-file").arg(files.join("cert.pem"));
            command.arg("--tls-key-file").arg(files.join("key.pem"));
            command.arg("--tls-ca-cert-file").arg(files.join("cert.pem"));
            command.args(["--tls-auth-clients", "no", "--save", "", "--appendonly", "no"]);
        };
        Self(Program::start("redis-server", configure))
    }

    /// Another one, empty, where one has ended.
    pub fn start_at(address: SocketAddr) -> Self {
        Self(Program::start_at(address, "redis-server", configure))
    }

    /// Its answer to a command.
    pub fn ask(&self, words: &[&str]) -> String {
        let (host, port) = (self.address().ip().to_string(), self.address().port().to_string());
        let output = Command::new("redis-cli").args(["-h", &host, "-p", &port]).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// It stops answering, and keeps its connections, until it is resumed.
    pub fn pause(&self) {
        self.0.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.0.signal(Signal::CONT);
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}

fn configure(command: &mut Command, _: &Path, address: SocketAddr) {
    command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
    command.args(["--save", "", "--appendonly", "no"]);
}
