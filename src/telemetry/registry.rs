use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::cell::{Counter, CounterCell, Gauge, GaugeCell};
use super::histogram::{Histogram, HistogramCell, Totals};
use super::text::{Text, Value};
use super::{Family, Kind};

/// Series in all. What comes beyond them is counted in the series of its family whose label values are all `other`.
///
/// Labels are names from the configuration file, which is bounded, and words of ours: this is what nearly ten thousand
/// routes and limits need.
pub const MAX_SERIES: usize = 200_000;

/// How many new series are refused without another look for room after a look that found none: a look reads all.
const REFUSALS_PER_LOOK: u32 = 1_000;

const OTHER: &str = "other";

static OVERFLOW: Family = Family {
    name: "sluicegate_metrics_series_overflow_total",
    help: "Times that a new series was refused for want of room and counted as other.",
    kind: Kind::Counter,
    labels: &[],
};

/// All metrics of the process. Making a cell and reading take its lock; counting does not.
#[derive(Debug)]
pub struct Registry {
    state: Arc<Mutex<State>>,
    overflowed: Arc<AtomicU64>,
}

/// Keeps a reading of [`Registry::observe_with`] in the registry until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it takes the reading out of the registry"]
pub struct Registration {
    state: Weak<Mutex<State>>,
    family: &'static str,
    labels: Labels,
    id: u64,
}

type Labels = Arc<[String]>;
type Read = Arc<dyn Fn() -> u64 + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    families: BTreeMap<&'static str, (&'static Family, BTreeMap<Labels, Series>)>,
    series: usize,
    next_id: u64,
    refuse: u32,
}

struct Series {
    cells: Cells,
    readings: Vec<(u64, Read)>,
}

/// Live cells, and what the dropped ones had counted.
#[derive(Debug)]
enum Cells {
    Counter(u64, Vec<Arc<CounterCell>>),
    Gauge(Vec<Arc<GaugeCell>>),
    Histogram(Box<Totals>, Vec<Arc<HistogramCell>>),
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Arc<Self> {
        let registry = Self { state: Arc::default(), overflowed: Arc::default() };
        let overflowed = Arc::clone(&registry.overflowed);
        registry.lock().add_reading(&OVERFLOW, [].into(), Arc::new(move || overflowed.load(Ordering::Relaxed)));
        Arc::new(registry)
    }

    /// A new cell of a series, for one thread to count in. All cells of a series are summed; what a dropped one had
    /// counted stays in the sum.
    pub fn counter(&self, family: &'static Family, labels: &[&str]) -> Counter {
        let cell = Arc::new(CounterCell::default());
        self.with_series(family, labels, |series| match &mut series.cells {
            Cells::Counter(_, cells) => cells.push(Arc::clone(&cell)),
            _ => debug_assert!(false, "{} is no counter", family.name),
        });
        Counter::new(cell)
    }

    /// A new cell of a series that goes up and down. A dropped one adds nothing to the sum.
    pub fn gauge(&self, family: &'static Family, labels: &[&str]) -> Gauge {
        let cell = Arc::new(GaugeCell::default());
        self.with_series(family, labels, |series| match &mut series.cells {
            Cells::Gauge(cells) => cells.push(Arc::clone(&cell)),
            _ => debug_assert!(false, "{} is no gauge", family.name),
        });
        Gauge::new(cell)
    }

    /// A new cell of a series of durations; like [`counter`](Self::counter).
    pub fn histogram(&self, family: &'static Family, labels: &[&str]) -> Histogram {
        let cell = Arc::new(HistogramCell::default());
        self.with_series(family, labels, |series| match &mut series.cells {
            Cells::Histogram(_, cells) => cells.push(Arc::clone(&cell)),
            _ => debug_assert!(false, "{} is no histogram", family.name),
        });
        Histogram::new(cell)
    }

    /// Adds what `read` returns to a series of counters or gauges, at each reading and until the registration is
    /// dropped. Nothing of it stays then: register a counter's source once for its whole life.
    pub fn observe_with(
        &self,
        family: &'static Family,
        labels: &[&str],
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Registration {
        debug_assert!(family.kind != Kind::Histogram, "{} is a histogram", family.name);
        let mut state = self.lock();
        let labels = self.place(&mut state, family, labels);
        let id = state.add_reading(family, Arc::clone(&labels), Arc::new(read));
        Registration { state: Arc::downgrade(&self.state), family: family.name, labels, id }
    }

    /// All series in Prometheus' text format 0.0.4, sorted by family and by label values.
    pub fn render(&self) -> String {
        // Readings are other rooms' code: call them after the lock is released.
        let mut families = Vec::new();
        for (family, series) in self.lock().families.values_mut() {
            let samples: Vec<_> = series
                .iter_mut()
                .map(|(labels, series)| (Arc::clone(labels), series.total(), series.readings.clone()))
                .collect();
            families.push((*family, samples));
        }
        let mut text = Text::default();
        for (family, samples) in families {
            text.begin(family);
            for (labels, value, readings) in samples {
                let read = readings.iter().map(|(_, read)| read()).fold(0, u64::wrapping_add);
                text.series(family, &labels, &value.plus(read));
            }
        }
        text.finish()
    }

    fn with_series(&self, family: &'static Family, labels: &[&str], add: impl FnOnce(&mut Series)) {
        let mut state = self.lock();
        let labels = self.place(&mut state, family, labels);
        let series = state.series(family, labels);
        series.fold_dropped();
        add(series);
    }

    /// The label values under which a series is to be kept: its own, or `other` if there is no room for it.
    fn place(&self, state: &mut State, family: &'static Family, labels: &[&str]) -> Labels {
        debug_assert_eq!(labels.len(), family.labels.len(), "label values of {}", family.name);
        let own = |(at, _)| (*labels.get(at).unwrap_or(&"")).to_owned();
        let own: Labels = family.labels.iter().enumerate().map(own).collect();
        // A family without labels has one series: families are statics, so their number is bounded without this.
        if family.labels.is_empty() || state.has(family, &own) || state.series < MAX_SERIES {
            return own;
        }
        if state.refuse == 0 {
            state.remove_unused();
            if state.series < MAX_SERIES {
                return own;
            }
            state.refuse = REFUSALS_PER_LOOK;
        }
        state.refuse -= 1;
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        family.labels.iter().map(|_| OTHER.to_owned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(state) = self.state.upgrade() else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let series = state.families.get_mut(self.family).and_then(|(_, series)| series.get_mut(&self.labels));
        let Some(series) = series else { return };
        let Some(at) = series.readings.iter().position(|(id, _)| *id == self.id) else {
            return;
        };
        let reading = series.readings.swap_remove(at);
        // What the reading holds is other rooms' and may be dropped with it: not under the lock.
        drop(state);
        drop(reading);
    }
}

impl State {
    fn has(&self, family: &Family, labels: &Labels) -> bool {
        self.families.get(family.name).is_some_and(|(_, series)| series.contains_key(labels))
    }

    fn series(&mut self, family: &'static Family, labels: Labels) -> &mut Series {
        let (_, all) = self.families.entry(family.name).or_insert_with(|| (family, BTreeMap::new()));
        all.entry(labels).or_insert_with(|| {
            self.series += 1;
            Series::new(family.kind)
        })
    }

    fn add_reading(&mut self, family: &'static Family, labels: Labels, read: Read) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.series(family, labels).readings.push((id, read));
        id
    }

    /// Makes room: a series that nobody adds to and that has counted nothing need not be kept.
    fn remove_unused(&mut self) {
        for (_, all) in self.families.values_mut() {
            all.retain(|_, series| {
                series.fold_dropped();
                series.is_used()
            });
        }
        self.families.retain(|_, (_, series)| !series.is_empty());
        self.series = self.families.values().map(|(_, series)| series.len()).sum();
    }
}

impl Series {
    fn new(kind: Kind) -> Self {
        let cells = match kind {
            Kind::Counter => Cells::Counter(0, Vec::new()),
            Kind::Gauge => Cells::Gauge(Vec::new()),
            Kind::Histogram => Cells::Histogram(Box::default(), Vec::new()),
        };
        Self { cells, readings: Vec::new() }
    }

    /// Keeps the counts of cells whose owner is gone and frees them. `Arc::get_mut` answers when we hold the last
    /// reference, and then sees all that the other holder had written.
    fn fold_dropped(&mut self) {
        match &mut self.cells {
            Cells::Counter(base, cells) => cells.retain_mut(|cell| {
                let dropped = Arc::get_mut(cell).map(|cell| *cell.0.get_mut());
                *base = base.wrapping_add(dropped.unwrap_or(0));
                dropped.is_none()
            }),
            Cells::Gauge(cells) => cells.retain_mut(|cell| Arc::get_mut(cell).is_none()),
            Cells::Histogram(base, cells) => cells.retain_mut(|cell| {
                let dropped = Arc::get_mut(cell).map(|cell| base.add(cell));
                dropped.is_none()
            }),
        }
    }

    fn total(&mut self) -> Value {
        self.fold_dropped();
        match &self.cells {
            Cells::Counter(base, cells) => {
                let counts = cells.iter().map(|cell| cell.0.load(Ordering::Relaxed));
                Value::Counter(counts.fold(*base, u64::wrapping_add))
            }
            Cells::Gauge(cells) => {
                let values = cells.iter().map(|cell| cell.0.load(Ordering::Relaxed));
                Value::Gauge(values.fold(0, i64::wrapping_add))
            }
            Cells::Histogram(base, cells) => {
                let mut totals = Totals::clone(base);
                for cell in cells {
                    totals.add(cell);
                }
                Value::Histogram(totals)
            }
        }
    }

    fn is_used(&self) -> bool {
        let counted = match &self.cells {
            Cells::Counter(base, cells) => *base != 0 || !cells.is_empty(),
            Cells::Gauge(cells) => !cells.is_empty(),
            Cells::Histogram(base, cells) => base.counts.iter().any(|count| *count != 0) || !cells.is_empty(),
        };
        counted || !self.readings.is_empty()
    }
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").field("cells", &self.cells).field("readings", &self.readings.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::time::Span;

    static REQUESTS: Family = Family {
        name: "sluicegate_requests_total",
        help: "Requests, by route and outcome.",
        kind: Kind::Counter,
        labels: &["route", "outcome"],
    };
    static IN_FLIGHT: Family =
        Family { name: "sluicegate_in_flight", help: "Requests in flight.", kind: Kind::Gauge, labels: &["worker"] };
    static LATENCY: Family =
        Family { name: "sluicegate_latency_seconds", help: "Latency.", kind: Kind::Histogram, labels: &["upstream"] };
    static RELOADS: Family =
        Family { name: "sluicegate_reloads_total", help: "Reloads.", kind: Kind::Counter, labels: &[] };

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
        let mut state = registry.lock();
        let Cells::Counter(base, cells) = &state.series(&RELOADS, [].into()).cells else { panic!() };
        assert_eq!((*base, cells.len()), (99, 1));
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
    fn a_reading_counts_until_its_registration_is_dropped() {
        let registry = Registry::new();
        let source = Arc::new(AtomicU64::new(3));
        let read = |times: u64| {
            let source = Arc::clone(&source);
            move || source.load(Ordering::Relaxed) * times
        };
        let first = registry.observe_with(&RELOADS, &[], read(10));
        let second = registry.observe_with(&RELOADS, &[], read(1));
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "33");
        drop(second);
        source.store(4, Ordering::Relaxed);
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "40");
        drop(first);
        assert_eq!(Arc::strong_count(&source), 1);
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "0");
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
        assert_eq!(value(&registry, "sluicegate_reloads_total").unwrap(), "1");
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
