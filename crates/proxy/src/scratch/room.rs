//! The memory of bodies that are kept or read ahead.
//!
//! Bound: all those of a worker have [`MOST_OF_WORKER`] bytes at once, of which a client has at most as many as it leaves to others.
//! The buffer that each request has is not counted: a small body always has room.

use std::rc::Rc;

use crate::client::BodyRoom;

/// Bytes of bodies that one worker keeps at once.
pub const MOST_OF_WORKER: usize = 16 * 1024 * 1024;

/// The memory that one body holds, until this is dropped.
#[derive(Debug)]
pub struct RoomCharge {
    of_worker: BodyRoom,
    of_client: BodyRoom,
    bytes: usize,
}

impl RoomCharge {
    /// Nothing yet, of what a worker and a client hold.
    pub fn new(of_worker: &BodyRoom, of_client: &BodyRoom) -> Self {
        Self { of_worker: Rc::clone(of_worker), of_client: Rc::clone(of_client), bytes: 0 }
    }

    /// Bytes that it may take now.
    pub fn free(&self) -> usize {
        // No client has more than is left for others.
        MOST_OF_WORKER.saturating_sub(self.of_worker.get()).saturating_sub(self.of_client.get())
    }

    /// Whether it holds any.
    pub fn holds(&self) -> bool {
        self.bytes > 0
    }

    /// Takes so many more.
    pub fn take(&mut self, bytes: usize) {
        self.set(self.bytes + bytes);
    }

    /// Holds so many, no matter how many it holds now. Whether there is room for them; if not, nothing has changed.
    pub fn hold(&mut self, bytes: usize) -> bool {
        let has_room = bytes.saturating_sub(self.bytes) <= self.free();
        if has_room {
            self.set(bytes);
        }
        has_room
    }

    /// Gives so many back, at most all of them.
    pub fn give_back(&mut self, bytes: usize) {
        self.set(self.bytes.saturating_sub(bytes));
    }

    fn set(&mut self, bytes: usize) {
        for own in [&self.of_worker, &self.of_client] {
            own.set((own.get() + bytes).saturating_sub(self.bytes));
        }
        self.bytes = bytes;
    }
}

impl Drop for RoomCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_no_more_than_it_leaves_to_others() {
        const PIECE: usize = 256 * 1024;
        let (worker, client) = (BodyRoom::default(), BodyRoom::default());
        let mut all = Vec::new();
        loop {
            let mut one = RoomCharge::new(&worker, &client);
            if one.free() < PIECE {
                break;
            }
            one.take(PIECE);
            all.push(one);
        }
        assert_eq!((client.get(), worker.get()), (MOST_OF_WORKER / 2, MOST_OF_WORKER / 2));
        let mut other = RoomCharge::new(&worker, &BodyRoom::default());
        assert_eq!(other.free(), MOST_OF_WORKER / 2);
        other.take(5);
        other.give_back(2);
        assert_eq!(worker.get(), MOST_OF_WORKER / 2 + 3);
        drop(all);
        assert_eq!((worker.get(), client.get()), (3, 0));
        other.give_back(9);
        assert_eq!(worker.get(), 0);
    }
}
