//! The file that counts outlive the process in: what is written, and how it is read.
//!
//! A file is written whole under another name, synced and renamed. It is a head, then blocks, each with its checksum (CRC-32C):
//! a limit's name and [layout](KeyLayout), or records of its keys, or the end. Numbers are little-endian. A reader takes each
//! block as it comes and stops at the first that is not sound: what was taken stays, since a count that is there is better
//! than none.
//!
//! The head says by whose secret fingerprints are made ([`Mark`]): under another one they mean nothing. Callers: `gateway`,
//! which writes while it serves and at its end, and reads before it listens. A process that hands over to another one sends it the
//! same bytes, and behind them what it counts until its end.

mod follow;
mod read;
mod write;

pub use follow::{receive_followed, send_followed};
pub use read::{ReadError, RestoredKeys, read, receive, wall_of};
pub use write::{Written, send, write};

use sluicegate_limiter::{Fingerprint, KeyHasher, KeyLayout, Limit};

/// The first bytes of every such file.
const MAGIC: &[u8; 8] = b"SLUICEST";
/// Grows when the words of some algorithm, or the file itself, mean something else.
const VERSION: u32 = 1;
/// Bytes of a block that are read at once, at most; no shard's records are more.
const MAX_BLOCK: u32 = 64 << 20;

/// The kinds of blocks.
const LIMIT: u8 = 1;
const RECORDS: u8 = 2;
const END: u8 = 3;
/// Before all others, where the wall clock is not that of ticks: how far it is ahead, the highest time that it has shown, and
/// how long that counts.
const WALL: u8 = 5;
/// Behind the end, between processes alone: what was counted since.
const FOLLOWED: u8 = 4;

/// Tells secrets of fingerprints apart, without telling them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(u64);

impl Mark {
    /// That of a secret.
    pub fn of(hasher: &KeyHasher) -> Self {
        let mut key = hasher.start();
        key.part(u8::MAX, b"state file");
        Self(Fingerprint::bits(key.finish()))
    }

    /// The mark in one number.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The mark of this number.
    pub const fn known(bits: u64) -> Self {
        Self(bits)
    }
}

/// A limit and the name that its keys are kept under.
pub struct Named<'l> {
    /// The name, and what its keys are made of.
    pub name: String,
    /// The limit.
    pub limit: &'l Limit,
}

/// The text by which a limit knows its own keys again.
fn identity(name: &str, layout: &KeyLayout) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len() + layout.text.len() + 16);
    for part in [name, &layout.text] {
        text.extend_from_slice(&(part.len() as u32).to_le_bytes());
        text.extend_from_slice(part.as_bytes());
    }
    text.extend_from_slice(&(layout.words as u32).to_le_bytes());
    text
}

#[cfg(test)]
mod tests;
