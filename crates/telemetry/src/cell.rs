use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A number that only grows, as one thread counts it.
///
/// A counter can move to another thread but cannot be shared or cloned, so its cell has one writer, and a relaxed load
/// and store lose nothing. That is a plain addition in memory, where `fetch_add` would lock the cache line.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<sluicegate_telemetry::Counter>();
/// ```
#[derive(Debug)]
pub struct Counter {
    cell: Arc<CounterCell>,
    one_writer: PhantomData<Cell<()>>,
}

/// A number that goes up and down, as one thread sees it; the same terms as [`Counter`]. Once dropped it adds nothing
/// to its series.
#[derive(Debug)]
pub struct Gauge {
    cell: Arc<GaugeCell>,
    one_writer: PhantomData<Cell<()>>,
}

/// A cache line of its own: cells of two workers may be allocated side by side.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct CounterCell(pub(super) AtomicU64);

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct GaugeCell(pub(super) AtomicI64);

/// The live cells of a series, one for each thread that counts in it.
#[derive(Debug)]
pub(super) struct Cells<T: ?Sized> {
    live: Vec<Arc<T>>,
    /// At how many of them those are looked for whose owner is gone.
    look_at: usize,
}

impl<T: ?Sized> Default for Cells<T> {
    fn default() -> Self {
        Self { live: Vec::new(), look_at: 1 }
    }
}

impl<T: ?Sized> Cells<T> {
    /// Adds one. Dropped ones are looked for when the number of cells has doubled since the last look: so adding takes the same
    /// time however many there are.
    pub(super) fn add(&mut self, cell: Arc<T>, fold: impl FnMut(&mut T)) {
        if self.live.len() >= self.look_at {
            self.fold_dropped(fold);
            self.look_at = (2 * self.live.len()).max(1);
        }
        self.live.push(cell);
    }

    /// Frees cells whose owner is gone, after `fold` has seen them. `Arc::get_mut` answers when we hold the last reference,
    /// and then sees all that the other holder had written.
    pub(super) fn fold_dropped(&mut self, mut fold: impl FnMut(&mut T)) {
        self.live.retain_mut(|cell| Arc::get_mut(cell).map(&mut fold).is_none());
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.live.iter().map(|cell| &**cell)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

impl Counter {
    pub(super) fn new(cell: Arc<CounterCell>) -> Self {
        Self { cell, one_writer: PhantomData }
    }

    /// Counts one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        let count = self.cell.0.load(Ordering::Relaxed);
        self.cell.0.store(count.wrapping_add(n), Ordering::Relaxed);
    }
}

impl Gauge {
    pub(super) fn new(cell: Arc<GaugeCell>) -> Self {
        Self { cell, one_writer: PhantomData }
    }

    /// Goes up by `n`.
    #[inline]
    pub fn add(&self, n: i64) {
        self.set(self.cell.0.load(Ordering::Relaxed).wrapping_add(n));
    }

    /// Goes down by `n`.
    #[inline]
    pub fn sub(&self, n: i64) {
        self.set(self.cell.0.load(Ordering::Relaxed).wrapping_sub(n));
    }

    /// Is `value` from now on.
    #[inline]
    pub fn set(&self, value: i64) {
        self.cell.0.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_looked_through_as_often_as_their_number_doubles() {
        let mut cells = Cells::default();
        let (mut looked_at, mut kept) = (0, Vec::new());
        for _ in 0..20_000 {
            let (cell, before) = (Arc::new(0), cells.look_at);
            kept.push(Arc::clone(&cell));
            cells.add(cell, |_| {});
            looked_at += if cells.look_at == before { 0 } else { before };
        }
        assert_eq!((cells.live.len(), looked_at), (20_000, (1 << 15) - 1));
        drop(kept);
        let mut folded = 0;
        cells.fold_dropped(|_| folded += 1);
        assert!((cells.is_empty(), folded) == (true, 20_000));
    }

    #[test]
    fn cells_that_come_and_go_do_not_pile_up() {
        let (mut cells, mut sum) = (Cells::default(), 0);
        let kept: Vec<_> = (0..10).map(|_| Arc::new(0)).collect();
        for cell in &kept {
            cells.add(Arc::clone(cell), |_| {});
        }
        for n in 1..=1_000 {
            cells.add(Arc::new(n), |dropped| sum += *dropped);
            assert!(cells.live.len() <= 22, "{} after {n}", cells.live.len());
        }
        cells.fold_dropped(|dropped| sum += *dropped);
        assert_eq!((cells.live.len(), sum), (10, 500_500));
    }
}
