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

    /// The bytes that were read and not consumed.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The bytes that were read and not consumed.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(buffer: &mut Buffer, bytes: &[u8]) -> usize {
        let room = buffer.room();
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        buffer.advance(length);
        length
    }

    #[test]
    fn what_is_consumed_makes_room_only_when_it_is_compacted() {
        let mut buffer = Buffer::with_capacity(6);
        assert_eq!(read(&mut buffer, b"abcdefgh"), 6);
        assert_eq!(buffer.room(), b"");
        buffer.consume(2);
        assert_eq!((buffer.filled(), buffer.len()), (&b"cdef"[..], 4));
        assert_eq!(buffer.room(), b"");
        buffer.compact();
        assert_eq!(buffer.filled(), b"cdef");
        assert_eq!(buffer.room().len(), 2);
        assert_eq!(read(&mut buffer, b"gh"), 2);
        assert_eq!(buffer.filled(), b"cdefgh");
    }

    #[test]
    fn an_empty_window_moves_to_the_front() {
        for empty in [|buffer: &mut Buffer| buffer.consume(2), |buffer: &mut Buffer| buffer.truncate(0), Buffer::clear]
        {
            let mut buffer = Buffer::with_capacity(4);
            read(&mut buffer, b"abcd");
            buffer.consume(2);
            empty(&mut buffer);
            assert!(buffer.is_empty());
            assert_eq!(buffer.room().len(), 4);
        }
    }

    #[test]
    fn more_than_there_is_is_all_there_is() {
        let mut buffer = Buffer::with_capacity(4);
        buffer.advance(9);
        assert_eq!(buffer.len(), 4);
        buffer.truncate(9);
        assert_eq!(buffer.len(), 4);
        buffer.consume(usize::MAX);
        assert!(buffer.is_empty());
    }

    #[test]
    fn growing_keeps_the_window_and_never_shrinks() {
        let mut buffer = Buffer::default();
        assert_eq!(buffer.capacity(), 0);
        assert_eq!(buffer.room(), b"");
        buffer.grow(4);
        read(&mut buffer, b"abcd");
        buffer.consume(1);
        buffer.grow(8);
        assert_eq!((buffer.capacity(), buffer.filled()), (8, &b"bcd"[..]));
        assert_eq!(buffer.room().len(), 4);
        buffer.grow(2);
        assert_eq!(buffer.capacity(), 8);
        buffer.filled_mut()[0] = b'x';
        assert_eq!(buffer.filled(), b"xcd");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Read(Vec<u8>),
        Consume(usize),
        Truncate(usize),
        Compact,
        Grow(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => prop::collection::vec(any::<u8>(), 0..9).prop_map(Step::Read),
            2 => (0..9usize).prop_map(Step::Consume),
            1 => (0..9usize).prop_map(Step::Truncate),
            1 => Just(Step::Compact),
            1 => (0..32usize).prop_map(Step::Grow),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_vector(capacity in 0..16usize, steps in prop::collection::vec(step(), 0..40)) {
            let mut buffer = Buffer::with_capacity(capacity);
            let mut plain: Vec<u8> = Vec::new();
            for step in steps {
                match step {
                    Step::Read(bytes) => {
                        let length = read(&mut buffer, &bytes);
                        plain.extend_from_slice(&bytes[..length]);
                    }
                    Step::Consume(n) => {
                        buffer.consume(n);
                        plain.drain(..n.min(plain.len()));
                    }
                    Step::Truncate(n) => {
                        buffer.truncate(n);
                        plain.truncate(n);
                    }
                    Step::Compact => {
                        buffer.compact();
                        prop_assert_eq!(buffer.room().len(), buffer.capacity() - plain.len());
                    }
                    Step::Grow(capacity) => {
                        let before = buffer.capacity();
                        buffer.grow(capacity);
                        prop_assert_eq!(buffer.capacity(), before.max(capacity));
                    }
                }
                prop_assert_eq!(buffer.filled(), &plain[..]);
                prop_assert_eq!(buffer.is_empty(), plain.is_empty());
            }
        }
    }
}
