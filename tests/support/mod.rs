//! The real binary on a configuration of the test's own, a client that speaks plain HTTP/1, and servers that behave as
//! they are told. Every port is chosen by the kernel. How a test measures time is said in `timing`.
//!
//! A test gets each in a line: [`Gateway::start`], [`Backend::scripted`] for a server with faults, [`Store::start`],
//! [`Program::start`] for any other program, [`Mesh::new`] for a bad network between programs. They end with their values, and
//! programs also with the process. Another test binary than `gateway` takes them by
//! `#[allow(dead_code, unused_imports)] mod support;`.
#![allow(clippy::disallowed_methods, reason = "tests measure real time")]
#![allow(clippy::format_push_string, reason = "plain test code")]

mod backend;
mod client;
mod gateway;
mod mesh;
mod namespace;
mod program;
mod store;
pub mod wire;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub use backend::{Backend, write_ok};
pub use client::{Answer, Client, get, get_with, read_answer, read_body, read_head};
pub use gateway::{FRAME, Gateway, alone, dead_letters, run};
pub use mesh::{Figures, Mesh, Weather};
pub use namespace::{Namespace, or_not_run};
pub use program::Program;
pub use store::{Cluster, Sentinels, Store};

/// Longest that a test waits for something that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something is so.
pub fn eventually(is_so: impl FnMut() -> bool) -> bool {
    eventually_in(PATIENCE, is_so)
}

/// The same, for what takes longer.
pub fn eventually_in(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < patience {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// An address at which nobody listens, nor will unless the test does: a port that was free at 127.0.0.1 may be another
/// test's a moment later, but no other test uses this loopback address.
pub fn unused_address() -> SocketAddr {
    static TAKEN: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = [127, 64 + TAKEN.fetch_add(1, Ordering::Relaxed) % 128, high, low];
    // Bound, and not listening: a child of another test that is just being started has a copy of the socket until it is its
    // own program, and would make it look as if somebody listened.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    // So that whoever is to listen there can bind it beside that copy.
    socket.set_reuseaddr(true).unwrap();
    socket.bind(SocketAddr::from((host, 0))).unwrap();
    socket.local_addr().unwrap()
}
