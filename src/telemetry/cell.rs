use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What only grows, as one thread counts it.
///
/// A counter can move to another thread but cannot be shared or cloned, so its cell has one writer, and a relaxed load
/// and store lose nothing. That is a plain addition in memory, where `fetch_add` would lock the cache line.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<sluicegate::telemetry::Counter>();
/// ```
#[derive(Debug)]
pub struct Counter {
    cell: Arc<CounterCell>,
    one_writer: PhantomData<Cell<()>>,
}

/// What goes up and down, as one thread sees it; the same terms as [`Counter`]. Once dropped it adds nothing to its
/// series.
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
