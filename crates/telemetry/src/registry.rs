use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::cell::{Cells, Counter, CounterCell, Gauge, GaugeCell};
use super::group::{Counters, Group, Row, RowCounter};
use super::histogram::{Histogram, HistogramCell, Totals};
use super::page::Page;
use super::reading::Readings;
use super::text::Value;
use super::{Family, MetricKind};

/// Series in all, those of a row counted as one. Series beyond them are counted in the series of their family whose
/// label values are all `other`, or in the row of this name.
///
/// Labels are names from the configuration file, which is bounded, and words of ours. Ten thousand routes with as many limits
/// have 30,000; the rest is for names that came and went.
pub const MAX_SERIES: usize = 200_000;

/// How many new series are refused without another look for room after a look that found none: a look reads all.
const REFUSALS_PER_LOOK: u32 = 1_000;

const OTHER: &str = "other";

/// There is room for 200,000. All series of a route are one here, and so are those of a limit.
static OVERFLOW: Family = Family {
    name: "sluicegate_metrics_series_overflow_total",
    help: "Times that a new series was refused for want of room and counted as other.",
    kind: MetricKind::Counter,
    labels: &[],
};

/// All metrics of the process. Making a cell and reading take its lock; counting does not.
#[derive(Debug)]
pub struct Registry {
    state: Arc<Mutex<RegistryState>>,
    overflowed: Arc<AtomicU64>,
}

/// Keeps a reading of [`Registry::observe_with`] in the registry until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it takes the reading out of the registry"]
pub struct Registration {
    state: Weak<Mutex<RegistryState>>,
    home: Home,
    labels: Labels,
    id: u64,
}

/// Where a reading is kept.
#[derive(Clone, Copy, Debug)]
enum Home {
    Family(&'static Family),
    Group(&'static Group),
}

pub(super) type Labels = Arc<[String]>;
pub(super) type CellReader = Arc<dyn Fn() -> u64 + Send + Sync>;

#[derive(Debug, Default)]
pub(super) struct RegistryState {
    pub(super) families: BTreeMap<&'static str, Members>,
    /// By the name of their first family.
    pub(super) groups: BTreeMap<&'static str, BTreeMap<Labels, Row>>,
    /// Series by themselves, and rows.
    kept: usize,
    next_id: u64,
    refuse: u32,
}

/// The series of a family.
#[derive(Debug)]
pub(super) enum Members {
    Series(&'static Family, BTreeMap<Labels, Series>),
    /// They are columns of this group.
    Of(&'static Family, &'static Group),
}

pub(super) struct Series {
    counted: LiveCells,
    pub(super) readings: Readings<CellReader>,
}

/// Live cells, and what the dropped ones had counted.
#[derive(Debug)]
enum LiveCells {
    Counter(u64, Cells<CounterCell>),
    Gauge(Cells<GaugeCell>),
    Histogram(Box<Totals>, Cells<HistogramCell>),
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Arc<Self> {
        let registry = Self { state: Arc::default(), overflowed: Arc::default() };
        let overflowed = Arc::clone(&registry.overflowed);
        let read: CellReader = Arc::new(move || overflowed.load(Ordering::Relaxed));
        registry.lock().series(&OVERFLOW, [].into(), |series| series.readings.put(0, [].into(), read));
        Arc::new(registry)
    }

    /// A new cell of a series, for one thread to count in. All cells of a series are summed; what a dropped one had
    /// counted stays in the sum.
    pub fn counter(&self, family: &'static Family, labels: &[&str]) -> Counter {
        let cell = Arc::new(CounterCell::default());
        self.with_series(family, labels, |series| match &mut series.counted {
            LiveCells::Counter(base, cells) => cells.add(Arc::clone(&cell), |dropped| add_counter(base, dropped)),
            _ => debug_assert!(false, "{} is no counter", family.name),
        });
        Counter::new(cell)
    }

    /// New cells of a row of a group, for one thread to count in; like [`counter`](Self::counter).
    pub fn counters<C: RowCounter>(&self, name: &str) -> Counters<C> {
        let mut state = self.lock();
        let labels = self.place_row(&mut state, C::GROUP, &[name.to_owned()].into());
        state.row(C::GROUP, labels).counters()
    }

    /// A new cell of a series that goes up and down. A dropped one adds nothing to the sum.
    pub fn gauge(&self, family: &'static Family, labels: &[&str]) -> Gauge {
        let cell = Arc::new(GaugeCell::default());
        self.with_series(family, labels, |series| match &mut series.counted {
            LiveCells::Gauge(cells) => cells.add(Arc::clone(&cell), |_| {}),
            _ => debug_assert!(false, "{} is no gauge", family.name),
        });
        Gauge::new(cell)
    }

    /// A new cell of a series of durations; like [`counter`](Self::counter).
    pub fn histogram(&self, family: &'static Family, labels: &[&str]) -> Histogram {
        let cell = Arc::new(HistogramCell::default());
        self.with_series(family, labels, |series| match &mut series.counted {
            LiveCells::Histogram(base, cells) => cells.add(Arc::clone(&cell), |dropped| base.add(dropped)),
            _ => debug_assert!(false, "{} is no histogram", family.name),
        });
        Histogram::new(cell)
    }

    /// Adds what `read` returns to a series of counters or gauges, at each reading and until the registration is
    /// dropped. Nothing of it stays then. A series has one reading: this one takes the place of the one before, at once, and
    /// the end of that one's registration changes nothing any more.
    pub fn observe_with(
        &self,
        family: &'static Family,
        labels: &[&str],
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Registration {
        debug_assert!(family.kind != MetricKind::Histogram, "{} is a histogram", family.name);
        let mut state = self.lock();
        let own = own(family, labels);
        let labels = self.place(&mut state, family, &own);
        let id = state.next_id();
        let old = state.series(family, Arc::clone(&labels), |series| series.readings.put(id, own, Arc::new(read)));
        // As below, where a registration is dropped.
        drop(state);
        drop(old);
        Registration { state: Arc::downgrade(&self.state), home: Home::Family(family), labels, id }
    }

    /// The same for a row of a group: `read` is given the place of a column.
    pub fn observe_row(
        &self,
        group: &'static Group,
        name: &str,
        read: impl Fn(usize) -> u64 + Send + Sync + 'static,
    ) -> Registration {
        let mut state = self.lock();
        let own = [name.to_owned()].into();
        let labels = self.place_row(&mut state, group, &own);
        let id = state.next_id();
        let old = state.row(group, Arc::clone(&labels)).readings.put(id, own, Arc::new(read));
        drop(state);
        drop(old);
        Registration { state: Arc::downgrade(&self.state), home: Home::Group(group), labels, id }
    }

    /// All series in Prometheus' text format 0.0.4, sorted by family and by label values, in pieces: each is read when it is
    /// asked for.
    pub fn page(&self) -> Page {
        Page::new(Arc::clone(&self.state))
    }

    /// The whole page.
    pub fn render(&self) -> String {
        self.page().collect()
    }

    fn with_series(&self, family: &'static Family, labels: &[&str], add: impl FnOnce(&mut Series)) {
        let mut state = self.lock();
        let labels = self.place(&mut state, family, &own(family, labels));
        state.series(family, labels, add);
    }

    /// The label values under which a series is to be kept: its own, or `other` if there is no room for it.
    fn place(&self, state: &mut RegistryState, family: &'static Family, own: &Labels) -> Labels {
        // A family without labels has one series: families are statics, so their number is bounded without this.
        if family.labels.is_empty() || state.has(family, own) || self.make_room(state) {
            return Arc::clone(own);
        }
        family.labels.iter().map(|_| OTHER.to_owned()).collect()
    }

    /// The same of a row.
    fn place_row(&self, state: &mut RegistryState, group: &'static Group, own: &Labels) -> Labels {
        let is_there = state.groups.get(group.name()).is_some_and(|rows| rows.contains_key(own));
        if is_there || self.make_room(state) { Arc::clone(own) } else { [OTHER.to_owned()].into() }
    }

    /// Whether one more may be kept; if not, that is counted.
    fn make_room(&self, state: &mut RegistryState) -> bool {
        if state.kept < MAX_SERIES {
            return true;
        }
        if state.refuse == 0 {
            state.remove_unused();
            if state.kept < MAX_SERIES {
                return true;
            }
            state.refuse = REFUSALS_PER_LOOK;
        }
        state.refuse -= 1;
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        lock(&self.state)
    }
}

/// The label values of a series: one for each label.
fn own(family: &'static Family, labels: &[&str]) -> Labels {
    debug_assert_eq!(labels.len(), family.labels.len(), "label values of {}", family.name);
    (0..family.labels.len()).map(|at| (*labels.get(at).unwrap_or(&"")).to_owned()).collect()
}

pub(super) fn lock(state: &Mutex<RegistryState>) -> MutexGuard<'_, RegistryState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(state) = self.state.upgrade() else { return };
        let mut state = lock(&state);
        // What a reading holds is other rooms' and may be dropped with it: not under the lock.
        match self.home {
            Home::Family(family) => {
                let Some(Members::Series(_, all)) = state.families.get_mut(family.name) else { return };
                let reading = all.get_mut(&self.labels).and_then(|series| series.readings.forget(self.id));
                drop(state);
                drop(reading);
            }
            Home::Group(group) => {
                let row = state.groups.get_mut(group.name()).and_then(|rows| rows.get_mut(&self.labels));
                let reading = row.and_then(|row| row.readings.forget(self.id));
                drop(state);
                drop(reading);
            }
        }
    }
}

impl RegistryState {
    fn has(&self, family: &Family, labels: &Labels) -> bool {
        let members = self.families.get(family.name);
        matches!(members, Some(Members::Series(_, series)) if series.contains_key(labels))
    }

    fn series<T: Default>(
        &mut self,
        family: &'static Family,
        labels: Labels,
        with: impl FnOnce(&mut Series) -> T,
    ) -> T {
        let members = self.families.entry(family.name).or_insert_with(|| Members::Series(family, BTreeMap::new()));
        let Members::Series(_, all) = members else {
            debug_assert!(false, "{} is of a group", family.name);
            return T::default();
        };
        with(all.entry(labels).or_insert_with(|| {
            self.kept += 1;
            Series::new(family.kind)
        }))
    }

    fn row(&mut self, group: &'static Group, labels: Labels) -> &mut Row {
        let rows = self.groups.entry(group.name()).or_insert_with(|| {
            for family in group.columns.iter().map(|column| column.family) {
                self.families.insert(family.name, Members::Of(family, group));
            }
            BTreeMap::new()
        });
        rows.entry(labels).or_insert_with(|| {
            self.kept += 1;
            Row::default()
        })
    }

    const fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Makes room: a series that nobody adds to and that has counted nothing need not be kept.
    fn remove_unused(&mut self) {
        self.families.retain(|_, members| match members {
            Members::Series(_, all) => {
                all.retain(|_, series| {
                    series.fold_dropped();
                    series.is_used()
                });
                !all.is_empty()
            }
            Members::Of(..) => true,
        });
        for rows in self.groups.values_mut() {
            rows.retain(|_, row| {
                row.fold_dropped();
                row.is_used()
            });
        }
        let series = self.families.values().map(|members| match members {
            Members::Series(_, all) => all.len(),
            Members::Of(..) => 0,
        });
        self.kept = series.chain(self.groups.values().map(BTreeMap::len)).sum();
    }
}

impl Series {
    fn new(kind: MetricKind) -> Self {
        let counted = match kind {
            MetricKind::Counter => LiveCells::Counter(0, Cells::default()),
            MetricKind::Gauge => LiveCells::Gauge(Cells::default()),
            MetricKind::Histogram => LiveCells::Histogram(Box::default(), Cells::default()),
        };
        Self { counted, readings: Readings::default() }
    }

    fn fold_dropped(&mut self) {
        match &mut self.counted {
            LiveCells::Counter(base, cells) => cells.fold_dropped(|dropped| add_counter(base, dropped)),
            LiveCells::Gauge(cells) => cells.fold_dropped(|_| {}),
            LiveCells::Histogram(base, cells) => cells.fold_dropped(|dropped| base.add(dropped)),
        }
    }

    pub(super) fn total(&mut self) -> Value {
        self.fold_dropped();
        match &self.counted {
            LiveCells::Counter(base, cells) => {
                let counts = cells.iter().map(|cell| cell.0.load(Ordering::Relaxed));
                Value::Counter(counts.fold(*base, u64::wrapping_add))
            }
            LiveCells::Gauge(cells) => {
                let values = cells.iter().map(|cell| cell.0.load(Ordering::Relaxed));
                Value::Gauge(values.fold(0, i64::wrapping_add))
            }
            LiveCells::Histogram(base, cells) => {
                let mut totals = Totals::clone(base);
                cells.iter().for_each(|cell| totals.add(cell));
                Value::Histogram(totals)
            }
        }
    }

    fn is_used(&self) -> bool {
        let counted = match &self.counted {
            LiveCells::Counter(base, cells) => *base != 0 || !cells.is_empty(),
            LiveCells::Gauge(cells) => !cells.is_empty(),
            LiveCells::Histogram(base, cells) => base.counts.iter().any(|count| *count != 0) || !cells.is_empty(),
        };
        counted || !self.readings.is_empty()
    }
}

fn add_counter(base: &mut u64, dropped: &mut CounterCell) {
    *base = base.wrapping_add(*dropped.0.get_mut());
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").field("counted", &self.counted).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use sluicegate_time::Span;

    static REQUESTS: Family = Family {
        name: "sluicegate_requests_total",
        help: "Requests, by route and outcome.",
        kind: MetricKind::Counter,
        labels: &["route", "outcome"],
    };
    static IN_FLIGHT: Family = Family {
        name: "sluicegate_in_flight",
        help: "Requests in flight.",
        kind: MetricKind::Gauge,
        labels: &["worker"],
    };
    static LATENCY: Family = Family {
        name: "sluicegate_latency_seconds",
        help: "Latency.",
        kind: MetricKind::Histogram,
        labels: &["upstream"],
    };
    static RELOADS: Family =
        Family { name: "sluicegate_reloads_total", help: "Reloads.", kind: MetricKind::Counter, labels: &[] };

    /// The value of the line that begins with `series` and a space.
    fn value(registry: &Registry, series: &str) -> Option<String> {
        let text = registry.render();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned))
    }

    #[test]
    fn cells_of_many_threads_are_summed() {
        let registry = Registry::new();
        let threads: Vec<_> = (0..4u64)
            .map(|n| {
                let counter = registry.counter(&REQUESTS, &["api", "ok"]);
                thread::spawn(move || {
                    (0..1_000 * n).for_each(|_| counter.inc());
                    counter
                })
            })
            .collect();
        let counters: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        counters[0].add(5);
        assert_eq!(value(&registry, r#"sluicegate_requests_total{route="api",outcome="ok"}"#).unwrap(), "6005");
    }

    #[test]
    fn a_counter_never_goes_down_when_its_cells_are_dropped() {
        let registry = Registry::new();
        for round in 1..=20 {
            let counter = registry.counter(&RELOADS, &[]);
            let histogram = registry.histogram(&LATENCY, &["app"]);
            counter.add(3);
            histogram.observe(Span::from_millis(500));
            if round % 2 == 0 {
                drop((counter, histogram));
                assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), (round * 3).to_string());
                let name = r#"sluicegate_latency_seconds_count{upstream="app"}"#;
                assert_eq!(value(&registry, name).unwrap(), round.to_string());
            }
        }
        assert_eq!(value(&registry, r#"sluicegate_latency_seconds_sum{upstream="app"}"#).unwrap(), "10");
    }

    #[test]
    fn dropped_cells_are_freed_without_a_reader() {
        let registry = Registry::new();
        for _ in 0..100 {
            registry.counter(&RELOADS, &[]).inc();
        }
        registry.lock().series(&RELOADS, [].into(), |series| {
            let LiveCells::Counter(base, cells) = &series.counted else { panic!() };
            assert_eq!((*base, cells.iter().count()), (99, 1));
        });
    }

    #[test]
    fn a_dropped_gauge_adds_nothing() {
        let registry = Registry::new();
        let (a, b) = (registry.gauge(&IN_FLIGHT, &["0"]), registry.gauge(&IN_FLIGHT, &["0"]));
        a.set(-7);
        b.add(5);
        b.sub(1);
        assert_eq!(value(&registry, r#"sluicegate_in_flight{worker="0"}"#).unwrap(), "-3");
        drop(a);
        assert_eq!(value(&registry, r#"sluicegate_in_flight{worker="0"}"#).unwrap(), "4");
    }

    #[test]
    fn a_reading_takes_the_place_of_the_one_before_and_counts_until_its_registration_is_dropped() {
        let registry = Registry::new();
        let source = Arc::new(AtomicU64::new(3));
        let read = |times: u64| {
            let source = Arc::clone(&source);
            move || source.load(Ordering::Relaxed) * times
        };
        let mut kept = registry.observe_with(&RELOADS, &[], read(10));
        registry.counter(&RELOADS, &[]).add(100);
        for times in 11..20 {
            // As a reload does it: the new one first, so that there is always one, and never two.
            let new = registry.observe_with(&RELOADS, &[], read(times));
            assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), (100 + 3 * times).to_string());
            assert_eq!(Arc::strong_count(&source), 2);
            kept = new;
            assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), (100 + 3 * times).to_string());
        }
        source.store(4, Ordering::Relaxed);
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "176");
        drop(kept);
        assert_eq!(Arc::strong_count(&source), 1);
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "100");
    }

    #[test]
    fn a_reading_whose_place_is_taken_is_dropped_where_the_registry_can_be_used() {
        struct Last(Arc<Registry>);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.counter(&REQUESTS, &["api", "ok"]).inc();
            }
        }
        let registry = Registry::new();
        let last = Last(Arc::clone(&registry));
        let first = registry.observe_with(&RELOADS, &[], move || u64::from(last.0.lock().kept > 0));
        let second = registry.observe_with(&RELOADS, &[], || 7);
        let counted = || value(&registry, r#"sluicegate_requests_total{route="api",outcome="ok"}"#);
        assert_eq!(counted().unwrap(), "1");
        drop((first, second));
    }

    #[test]
    fn a_reading_may_use_the_registry() {
        let registry = Registry::new();
        let inner = Arc::downgrade(&registry);
        let _kept = registry.observe_with(&IN_FLIGHT, &["x"], move || {
            inner.upgrade().map_or(0, |registry| {
                registry.counter(&RELOADS, &[]).inc();
                7
            })
        });
        assert_eq!(value(&registry, r#"sluicegate_in_flight{worker="x"}"#).unwrap(), "7");
        // This page counts once more, before it comes to what is counted.
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "2");
    }

    #[test]
    fn series_beyond_the_bound_are_counted_as_other() {
        let registry = Registry::new();
        // The registry's own series is one of them.
        let counters: Vec<_> =
            (1..MAX_SERIES + 5).map(|n| registry.counter(&REQUESTS, &[&n.to_string(), "ok"])).collect();
        counters.iter().for_each(Counter::inc);
        let counted =
            |route: &str| value(&registry, &format!(r#"sluicegate_requests_total{{route="{route}",outcome="ok"}}"#));
        assert_eq!(counted(&(MAX_SERIES - 1).to_string()).unwrap(), "1");
        assert_eq!(counted(&MAX_SERIES.to_string()), None);
        let other = r#"sluicegate_requests_total{route="other",outcome="other"}"#;
        assert_eq!(value(&registry, other).unwrap(), "5");
        assert_eq!(value(&registry, "sluicegate_metrics_series_overflow_total").unwrap(), "5");
        // What exists goes on, and so does a family without labels.
        registry.counter(&REQUESTS, &["9999", "ok"]).inc();
        registry.counter(&RELOADS, &[]).inc();
        assert_eq!(counted("9999").unwrap(), "2");
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "1");
    }

    #[test]
    fn readings_beyond_the_bound_are_summed_and_take_the_place_of_their_own_alone() {
        let registry = Registry::new();
        let counters: Vec<_> = (1..MAX_SERIES).map(|n| registry.counter(&REQUESTS, &[&n.to_string(), "ok"])).collect();
        let first = ["a", "b"].map(|worker| registry.observe_with(&IN_FLIGHT, &[worker], || 1));
        let other = || value(&registry, r#"sluicegate_in_flight{worker="other"}"#).unwrap();
        assert_eq!(other(), "2");
        let again = registry.observe_with(&IN_FLIGHT, &["b"], || 5);
        assert_eq!(other(), "6");
        drop(first);
        assert_eq!(other(), "5");
        drop((again, counters));
    }

    #[test]
    fn unused_series_make_room_for_new_ones() {
        let registry = Registry::new();
        for n in 0..MAX_SERIES + 500 {
            registry.gauge(&IN_FLIGHT, &[&n.to_string()]).set(1);
        }
        let kept = registry.gauge(&IN_FLIGHT, &["kept"]);
        kept.set(9);
        assert_eq!(value(&registry, r#"sluicegate_in_flight{worker="kept"}"#).unwrap(), "9");
        assert_eq!(value(&registry, "sluicegate_metrics_series_overflow_total").unwrap(), "0");
    }
}
