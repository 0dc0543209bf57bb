//! A gateway that another process of the same gateway takes over from: an upgrade in place.
//!
//! The old process starts the new one with one end of a pair of Unix sockets as its standard input, so that no other process
//! can speak to either. The old one says a [`Hello`] first, with copies of the listening sockets and one end of a second pair,
//! for counts. Then lines go to and fro:
//!
//! | new | old |
//! |---|---|
//! | `tables`: send the counts | sends the keys of its limits as in a state file (`crate::state`), then what it counts, until its end |
//! | `ready`: everything is built, and nobody is served | accepts no more, then `go` |
//! | `serving` | drains |
//! | `failed` and a reason | goes on as it was |
//!
//! Whatever goes wrong before `serving` ends the new process, and the old one goes on as it was; where the old one ends before
//! `go`, the new one ends as well.
//!
//! The sockets are the same in both processes, so the kernel's queues of connections are, too: none is lost when the old one
//! closes its copies.

mod channel;
mod given;
mod new;
mod old;
mod program;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::time::{Span, Wall, WallState};

pub use given::{Given, share_out};
pub use new::Inheritance;
pub use old::{CountsSender, HandoverState, NewProcess};
pub use program::Program;

/// The version of this conversation; it grows when that means something else.
const PROTOCOL: u32 = 1;
/// The new process is told by this variable that a gateway is at its standard input.
const VARIABLE: &str = "SLUICEGATE_UPGRADE";
/// How long the new process may take until it is ready. Shorter than a request to admin may take, so that the answer tells.
pub const READY_WITHIN: Span = Span::from_secs(25);
/// Bytes of a line that the new process says.
const MAX_LINE: u64 = 1 << 20;
/// Bytes of a hello, which has the exceptions of keys.
const MAX_HELLO: u64 = 192 << 20;

const TABLES: &str = "tables";
const READY: &str = "ready";
const GO: &str = "go";
const SERVING: &str = "serving";
const FAILED: &str = "failed ";

/// The old process's first words. Sockets come before it, in this order, that of the counts last.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    protocol: u32,
    version: String,
    listeners: Vec<ListeningAddress>,
    /// The address of admin, as the configuration calls it.
    admin: Option<SocketAddr>,
    /// By which fingerprints of keys are made.
    secret: Vec<u8>,
    /// The exceptions of keys, as JSON; of a version without them nothing.
    #[serde(default)]
    exceptions: String,
    /// The things that other gateways have told to be done with keys, and that are done; of a version without them none.
    #[serde(default)]
    acts: BTreeSet<String>,
    /// The paths of Unix sockets that listeners have: theirs come behind that of the counts, so that a version without them does
    /// not see them.
    #[serde(default)]
    unix: Vec<PathBuf>,
    /// How its wall clock and its ticks stand; of a version without it nothing.
    #[serde(default)]
    wall: Option<HandedWall>,
}

/// A [`WallState`], in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct HandedWall {
    ahead: i64,
    highest: u64,
    highest_for: u64,
}

impl HandedWall {
    fn of(state: &WallState) -> Self {
        let WallState { ahead, highest, highest_for } = *state;
        Self { ahead, highest: highest.as_nanos(), highest_for: highest_for.as_nanos() }
    }

    fn state(self) -> WallState {
        let Self { ahead, highest, highest_for } = self;
        WallState { ahead, highest: Wall::from_nanos(highest), highest_for: Span::from_nanos(highest_for) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct ListeningAddress {
    /// As the configuration calls it.
    address: SocketAddr,
    sockets: usize,
}
