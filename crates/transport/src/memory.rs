//! A message that is here already: one side of an exchange that needs no peer.

use std::fmt;
use std::sync::Arc;

/// Bytes to read: a head, and a body that others may read too. Bytes that are written to it are dropped.
pub struct Memory {
    head: Vec<u8>,
    body: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// How many were read.
    at: usize,
}

impl Memory {
    /// All of this is still to be read.
    pub fn new(head: Vec<u8>, body: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        Self { head, body, at: 0 }
    }

    /// Reads into `room`; 0 bytes at the end.
    pub(super) fn read(&mut self, room: &mut [u8]) -> usize {
        let part = match self.at.checked_sub(self.head.len()) {
            None => self.head.get(self.at..),
            Some(behind) => (*self.body).as_ref().get(behind..),
        };
        let part = part.unwrap_or_default();
        let size = part.len().min(room.len());
        room[..size].copy_from_slice(&part[..size]);
        self.at += size;
        size
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("at", &self.at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_read_and_then_the_body_in_any_pieces() {
        for most in 1..9 {
            let mut memory = Memory::new(b"head-".to_vec(), Arc::new(b"body".to_vec()));
            let (mut read, mut room) = (Vec::new(), [0; 9]);
            loop {
                match memory.read(&mut room[..most]) {
                    0 => break,
                    size => read.extend_from_slice(&room[..size]),
                }
            }
            assert_eq!((read.as_slice(), memory.read(&mut room)), (&b"head-body"[..], 0));
        }
    }
}
