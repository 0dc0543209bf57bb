//! A byte buffer with a window of received bytes in it.

/// Bytes that were read and not yet consumed, in storage that is allocated once.
///
/// The storage is always initialised. Its owner reads into [`room`](Self::room), says how much came with
/// [`advance`](Self::advance), and takes from the front with [`consume`](Self::consume).
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    /// `start <= end <= bytes.len()`, always.
    end: usize,
}

impl Buffer {
    /// An empty buffer of `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity], start: 0, end: 0 }
    }

    /// How many bytes fit in, consumed ones included until they are compacted.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// What was read and not consumed.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// What was read and not consumed.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// The free space behind the window. It may be empty although there is some in front: see
    /// [`compact`](Self::compact).
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Adds the first `n` bytes of the room to the window; all of it if there are fewer.
    pub fn advance(&mut self, n: usize) {
        self.end += n.min(self.bytes.len() - self.end);
    }

    /// Removes the first `n` bytes of the window; all of them if there are fewer. An empty window moves to the front.
    pub fn consume(&mut self, n: usize) {
        self.start += n.min(self.end - self.start);
        if self.start == self.end {
            self.clear();
        }
    }

    /// Keeps the first `n` bytes of the window; all of them if there are fewer.
    pub fn truncate(&mut self, n: usize) {
        self.end = self.start + n.min(self.end - self.start);
        if self.start == self.end {
            self.clear();
        }
    }

    /// How many bytes were read and not consumed.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether every byte was consumed.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Consumes everything.
    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Moves the window to the front, so that all free space is room. Costs a copy of the window unless it is there.
    pub fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Makes the capacity at least `capacity`. The window stays as it is.
    pub fn grow(&mut self, capacity: usize) {
        if capacity > self.bytes.len() {
            self.bytes.reserve_exact(capacity - self.bytes.len());
            self.bytes.resize(capacity, 0);
        }
    }
}
