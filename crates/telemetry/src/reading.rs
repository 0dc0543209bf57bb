use super::registry::Labels;

/// The numbers read of one series or row: one reading for each name. There are several names only where the registry
/// had no room and keeps them all as `other`.
pub(super) struct Readings<R>(Vec<Reading<R>>);

struct Reading<R> {
    id: u64,
    /// The label values for which it was registered.
    of: Labels,
    read: R,
}

impl<R> Default for Readings<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<R: Clone> Readings<R> {
    /// Puts a reading in the place of the one `of` the same, so that nobody ever sees both or none. Its owner drops that one
    /// where no lock is held.
    pub(super) fn put(&mut self, id: u64, of: Labels, read: R) -> Option<R> {
        let new = Reading { id, of, read };
        if let Some(old) = self.0.iter_mut().find(|old| old.of == new.of) {
            return Some(std::mem::replace(old, new).read);
        }
        self.0.push(new);
        None
    }

    /// Takes a reading out, unless another has its place already. Its owner drops it where no lock is held.
    pub(super) fn forget(&mut self, id: u64) -> Option<R> {
        let at = self.0.iter().position(|reading| reading.id == id)?;
        Some(self.0.swap_remove(at).read)
    }

    pub(super) fn all(&self) -> Vec<R> {
        self.0.iter().map(|reading| reading.read.clone()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
