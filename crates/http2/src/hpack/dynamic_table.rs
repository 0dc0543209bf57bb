//! The dynamic table (RFC 7541, 2.3.2 and 4).

use std::collections::VecDeque;

/// The size that an entry counts beside its bytes (RFC 7541, 4.1).
const OVERHEAD: usize = 32;
/// How many bytes the first entry makes room for, at least.
const FIRST_ROOM: usize = 256;

/// Entries in the order of insertion. Their bytes lie one after the other in one buffer, names before values, so that
/// each is one slice. Evicted ones lie in front until the buffer is full, and are then moved over: no sooner than there
/// are as many of them as of the others, so that a byte is moved once on average.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// The newest first.
    entries: VecDeque<TableEntry>,
    /// At most twice `limit`.
    bytes: Vec<u8>,
    /// Where the bytes of the oldest entry begin.
    oldest: usize,
    /// The size of the entries: at most `max_size`.
    size: usize,
    /// At most `limit`.
    max_size: usize,
    /// The greatest size that may be chosen.
    limit: usize,
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    start: u32,
    name: u32,
    value: u32,
}

impl TableEntry {
    fn length(self) -> usize {
        self.name as usize + self.value as usize
    }
}

impl DynamicTable {
    /// An empty table of `max_size`, which may be changed up to `limit`. Both are at most 2^28.
    pub(super) fn new(max_size: usize, limit: usize) -> Self {
        debug_assert!(max_size <= limit && limit <= 1 << 28);
        Self { entries: VecDeque::new(), bytes: Vec::new(), oldest: 0, size: 0, max_size, limit }
    }

    /// Name and value of an entry. The newest one has index 0.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        let start = entry.start as usize;
        Some(self.bytes[start..start + entry.length()].split_at(entry.name as usize))
    }

    /// Evicts what a new entry needs the place of, then inserts it. One that is greater than the table leaves it empty.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let length = name.len() + value.len();
        let Some(left) = self.max_size.checked_sub(length + OVERHEAD) else {
            self.evict_to(0);
            return;
        };
        self.evict_to(left);
        if self.bytes.len() + length > self.bytes.capacity() {
            self.make_room(length);
        }
        // A table of 2^28 bytes has its bytes below 2^29.
        self.entries.push_front(TableEntry {
            start: self.bytes.len() as u32,
            name: name.len() as u32,
            value: value.len() as u32,
        });
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += length + OVERHEAD;
    }

    /// Chooses a size. False if it is beyond the limit.
    pub(super) fn resize(&mut self, max_size: usize) -> bool {
        let is_allowed = max_size <= self.limit;
        if is_allowed {
            self.max_size = max_size;
            self.evict_to(max_size);
        }
        is_allowed
    }

    /// Bytes of memory behind the table.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }

    #[inline]
    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else { return };
            self.oldest += entry.length();
            self.size -= entry.length() + OVERHEAD;
        }
    }

    /// Moves the entries over the evicted ones, or takes a greater buffer if they are more.
    #[cold]
    fn make_room(&mut self, length: usize) {
        let live = self.bytes.len() - self.oldest;
        if live <= self.oldest {
            self.bytes.copy_within(self.oldest.., 0);
            self.bytes.truncate(live);
            for entry in &mut self.entries {
                entry.start -= self.oldest as u32;
            }
            self.oldest = 0;
        }
        // With what is evicted less than the entries, and these with the new one at most the limit, it is at most twice
        // the limit that is needed.
        let needed = self.bytes.len() + length;
        if needed > self.bytes.capacity() {
            let room = (self.bytes.capacity() * 2).max(FIRST_ROOM).min(self.limit * 2).max(needed);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
    }
}
