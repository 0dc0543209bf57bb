use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Family;
use super::cell::Cells;
use super::reading::Readings;

/// Series that exist together for each value of one label, such as all counters of a route. A value has one row: so much
/// less memory and work than a series by itself that there may be tens of thousands of them.
#[derive(Debug)]
pub struct Group {
    /// The series of a row, each family's side by side.
    pub columns: &'static [Column],
}

/// One series of each row of a [`Group`].
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The family of the series: counters, or gauges that are read. Its first label is the row's. No other group has columns of
    /// this family.
    pub family: &'static Family,
    /// The value of the family's second label, if it has one.
    pub value: Option<&'static str>,
    /// Where a reader is told of it before it has counted anything. Prometheus' `increase()` does not see the first step of
    /// a series that was not there before.
    pub from_start: FromStart,
}

/// In which rows a column is shown from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromStart {
    /// In none: it is rare.
    Never,
    /// In all.
    Always,
    /// In those of a name.
    Named,
    /// In the row whose name is empty: it counts what belongs to no other.
    Unnamed,
}

impl FromStart {
    pub(super) fn is_in(self, name: &str) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Named => !name.is_empty(),
            Self::Unnamed => name.is_empty(),
        }
    }
}

/// The names of the counters of a [`Group`].
pub trait RowCounter: Copy {
    /// The group.
    const GROUP: &'static Group;

    /// The place of this one among the group's columns.
    fn column(self) -> usize;
}

/// The counters of one row, as one thread sees them; the same terms as [`Counter`](super::Counter).
#[derive(Debug)]
pub struct Counters<C> {
    cells: Arc<CounterCells>,
    one_writer: PhantomData<Cell<C>>,
}

/// One cell for each column, in cache lines of their own.
pub(super) type CounterCells = [RowReadings];

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RowReadings([AtomicU64; LINE]);

const LINE: usize = 8;

/// The figures that are read of a row, by column.
pub(super) type ReadColumn = Arc<dyn Fn(usize) -> u64 + Send + Sync>;

/// A row of a group.
#[derive(Default)]
pub(super) struct Row {
    /// The counts of dropped cells, by column; empty as long as there are none.
    base: Vec<u64>,
    live: Cells<CounterCells>,
    pub(super) readings: Readings<ReadColumn>,
}

impl Group {
    /// Its identity among groups.
    pub(super) fn name(&self) -> &'static str {
        self.columns.first().map_or("", |column| column.family.name)
    }
}

impl<C: RowCounter> Counters<C> {
    /// Counts one.
    #[inline]
    pub fn inc(&self, counted: C) {
        self.add(counted, 1);
    }

    /// Counts so many.
    #[inline]
    pub fn add(&self, counted: C, count: u64) {
        let column = counted.column();
        let cell = &self.cells[column / LINE].0[column % LINE];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Row {
    /// New cells for one thread to count in.
    pub(super) fn counters<C: RowCounter>(&mut self) -> Counters<C> {
        let cells: Arc<CounterCells> =
            (0..C::GROUP.columns.len().div_ceil(LINE)).map(|_| RowReadings::default()).collect();
        let Self { base, live, .. } = self;
        live.add(Arc::clone(&cells), |dropped| fold(base, dropped));
        Counters { cells, one_writer: PhantomData }
    }

    /// The count of a column.
    pub(super) fn counted(&self, column: usize) -> u64 {
        let live = self.live.iter().filter_map(|cells| cell(cells, column)).map(|cell| cell.load(Ordering::Relaxed));
        live.fold(self.base.get(column).copied().unwrap_or(0), u64::wrapping_add)
    }

    /// Keeps the counts of cells whose owner is gone and frees them.
    pub(super) fn fold_dropped(&mut self) {
        let Self { base, live, .. } = self;
        live.fold_dropped(|dropped| fold(base, dropped));
    }

    pub(super) fn is_used(&self) -> bool {
        !self.live.is_empty() || !self.readings.is_empty() || self.base.iter().any(|count| *count != 0)
    }
}

fn cell(cells: &CounterCells, column: usize) -> Option<&AtomicU64> {
    cells.get(column / LINE)?.0.get(column % LINE)
}

fn fold(base: &mut Vec<u64>, dropped: &mut CounterCells) {
    let counts = dropped.iter_mut().flat_map(|line| &mut line.0).map(|cell| *cell.get_mut());
    for (column, count) in counts.enumerate().filter(|(_, count)| *count != 0) {
        if base.len() <= column {
            base.resize(column + 1, 0);
        }
        if let Some(base) = base.get_mut(column) {
            *base = base.wrapping_add(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::{MetricKind, Registry};
    use super::*;

    /// A counter of [`GROUP`] by its column.
    #[derive(Clone, Copy)]
    struct At(usize);

    impl RowCounter for At {
        const GROUP: &'static Group = &GROUP;

        fn column(self) -> usize {
            self.0
        }
    }

    static A: Family = Family { name: "a_total", help: "A.", kind: MetricKind::Counter, labels: &["name", "kind"] };
    static B: Family = Family { name: "b", help: "B.", kind: MetricKind::Gauge, labels: &["name"] };
    static GROUP: Group = Group {
        columns: &[
            Column { family: &A, value: Some("often"), from_start: FromStart::Always },
            Column { family: &B, value: None, from_start: FromStart::Always },
            Column { family: &A, value: Some("rare"), from_start: FromStart::Never },
        ],
    };

    fn lines(registry: &Registry) -> Vec<String> {
        let text = registry.render();
        text.lines().filter(|line| line.starts_with(['a', 'b'])).map(str::to_owned).collect()
    }

    #[test]
    fn a_rare_series_is_there_once_it_has_counted_and_stays() {
        let registry = Registry::new();
        let (x, y) = (registry.counters::<At>("x"), registry.counters::<At>("y"));
        let start = [r#"a_total{name="x",kind="often"} 0"#, r#"a_total{name="y",kind="often"} 0"#];
        let b = [r#"b{name="x"} 0"#, r#"b{name="y"} 0"#];
        assert_eq!(lines(&registry), [start, b].concat());
        x.inc(At(0));
        y.inc(At(2));
        let counted = [r#"a_total{name="x",kind="often"} 1"#, start[1], r#"a_total{name="y",kind="rare"} 1"#];
        assert_eq!(lines(&registry), [&counted[..], &b].concat());
        drop((x, y));
        assert_eq!(lines(&registry), [&counted[..], &b].concat());
    }

    #[test]
    fn rows_are_summed_over_threads_and_over_those_that_are_gone() {
        let registry = Registry::new();
        for round in 1..=20 {
            let threads = (0..3).map(|_| {
                let counters = registry.counters::<At>("x");
                thread::spawn(move || (0..100).for_each(|_| counters.inc(At(2))))
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
            let counters = registry.counters::<At>("x");
            counters.inc(At(2));
            assert_eq!(lines(&registry)[1], format!(r#"a_total{{name="x",kind="rare"}} {}"#, round * 301));
        }
    }

    #[test]
    fn what_is_read_of_a_row_is_added_once_until_its_registration_is_dropped() {
        let registry = Registry::new();
        registry.counters::<At>("x").inc(At(2));
        let source = Arc::new(());
        let held = Arc::clone(&source);
        let read =
            registry.observe_row(&GROUP, "x", move |column| column as u64 * 10 * Arc::strong_count(&held) as u64);
        let value = |line: &str| lines(&registry).into_iter().find_map(|all| all.strip_prefix(line).map(str::to_owned));
        assert_eq!(value(r#"a_total{name="x",kind="rare"} "#).unwrap(), "41");
        assert_eq!(value(r#"b{name="x"} "#).unwrap(), "20");
        // As a reload does it: the new one first, so that there is always one, and never two.
        let again = registry.observe_row(&GROUP, "x", |column| column as u64 * 30);
        assert_eq!(Arc::strong_count(&source), 1);
        assert_eq!(value(r#"a_total{name="x",kind="rare"} "#).unwrap(), "61");
        drop(read);
        assert_eq!(value(r#"a_total{name="x",kind="rare"} "#).unwrap(), "61");
        assert_eq!(value(r#"b{name="x"} "#).unwrap(), "30");
        drop(again);
        assert_eq!(value(r#"a_total{name="x",kind="rare"} "#).unwrap(), "1");
        assert_eq!(value(r#"b{name="x"} "#).unwrap(), "0");
    }
}
