use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::sync::{Arc, Mutex};

use super::Family;
use super::group::{Group, ReadColumn, Row};
use super::registry::{CellReader, Labels, Members, RegistryState, Series, lock};
use super::text::{ExpositionText, Value};

/// A piece ends with the line that fills it.
const PIECE: usize = 64 * 1024;
/// Series or rows that are read under one lock.
const BATCH: usize = 256;

/// The page of a [`Registry`](super::Registry) in pieces of some 64 KiB, each made when it is asked for: a page may be large,
/// and its reader slow.
#[derive(Debug)]
pub struct Page {
    state: Arc<Mutex<RegistryState>>,
    at: At,
}

/// Where the page goes on. Keys, not places: others may come and go meanwhile.
#[derive(Debug)]
enum At {
    Start,
    /// In a family, behind these label values.
    Within(&'static str, Labels),
    Behind(&'static str),
}

/// Some series of one family.
struct SeriesBatch {
    family: &'static Family,
    is_first: bool,
    samples: Samples,
}

enum Samples {
    Series(Vec<(Labels, Value, Vec<CellReader>)>),
    /// Of each row what was counted in the columns that are of this family, in their order.
    Rows(&'static Group, Vec<(Labels, Vec<u64>, Vec<ReadColumn>)>),
}

impl Page {
    pub(super) fn new(state: Arc<Mutex<RegistryState>>) -> Self {
        Self { state, at: At::Start }
    }

    /// The next part. Only copied: readings are other rooms' code, to be called after the lock is released.
    fn batch(&mut self) -> Option<SeriesBatch> {
        let mut state = lock(&self.state);
        let RegistryState { families, groups, .. } = &mut *state;
        let from = match &self.at {
            At::Start => Unbounded,
            At::Within(family, _) => Included(*family),
            At::Behind(family) => Excluded(*family),
        };
        let (name, members) = families.range_mut::<&'static str, _>((from, Unbounded)).next()?;
        let behind = match &self.at {
            At::Within(family, labels) if family == name => Excluded(labels),
            _ => Unbounded,
        };
        let is_first = behind == Unbounded;
        let (family, samples, last) = match members {
            Members::Series(family, all) => {
                let read = |(labels, series): (&Labels, &mut Series)| {
                    (Arc::clone(labels), series.total(), series.readings.all())
                };
                let batch: Vec<_> = next(all, behind).map(read).collect();
                let last = last_of(&batch, |(labels, ..)| labels);
                (*family, Samples::Series(batch), last)
            }
            Members::Of(family, group) => {
                let columns = || columns(group, family);
                let read = |(labels, row): (&Labels, &mut Row)| {
                    let counted = columns().map(|(column, _)| row.counted(column)).collect();
                    (Arc::clone(labels), counted, row.readings.all())
                };
                let rows = groups.get_mut(group.name());
                let batch: Vec<_> = rows.into_iter().flat_map(|rows| next(rows, behind).map(read)).collect();
                let last = last_of(&batch, |(labels, ..)| labels);
                (*family, Samples::Rows(group, batch), last)
            }
        };
        self.at = last.map_or(At::Behind(family.name), |last| At::Within(family.name, last));
        Some(SeriesBatch { family, is_first, samples })
    }
}

impl Iterator for Page {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut text = ExpositionText::default();
        while text.len() < PIECE {
            let Some(batch) = self.batch() else { break };
            batch.write(&mut text);
        }
        (text.len() > 0).then(|| text.finish())
    }
}

impl SeriesBatch {
    fn write(self, text: &mut ExpositionText) {
        let family = self.family;
        if self.is_first {
            text.begin(family);
        }
        match self.samples {
            Samples::Series(all) => {
                for (labels, value, readings) in all {
                    let read = readings.iter().map(|read| read()).fold(0, u64::wrapping_add);
                    text.series(family, labels.iter().map(String::as_str), &value.plus(read));
                }
            }
            Samples::Rows(group, rows) => {
                for (labels, counted, readings) in rows {
                    let name = labels.first().map_or("", String::as_str);
                    for ((column, its), counted) in columns(group, family).zip(counted) {
                        let value = readings.iter().map(|read| read(column)).fold(counted, u64::wrapping_add);
                        if value != 0 || its.from_start.is_in(name) {
                            let labels = labels.iter().map(String::as_str).chain(its.value);
                            text.series(family, labels, &Value::of(family.kind, value));
                        }
                    }
                }
            }
        }
    }
}

/// The columns that are of a family, and their places.
fn columns<'f>(
    group: &'static Group,
    family: &'f Family,
) -> impl Iterator<Item = (usize, &'static super::Column)> + 'f {
    group.columns.iter().enumerate().filter(|(_, column)| column.family.name == family.name)
}

fn next<'s, T>(
    all: &'s mut BTreeMap<Labels, T>,
    behind: Bound<&Labels>,
) -> impl Iterator<Item = (&'s Labels, &'s mut T)> {
    all.range_mut::<Labels, _>((behind, Unbounded)).take(BATCH)
}

/// The last label values of a batch, unless it is the last one.
fn last_of<T>(batch: &[T], labels: impl Fn(&T) -> &Labels) -> Option<Labels> {
    batch.get(BATCH - 1).map(|last| Arc::clone(labels(last)))
}

#[cfg(test)]
mod tests {
    use super::super::{Column, FromStart, MetricKind, Registry, RowCounter};
    use super::*;

    static ALONE: Family = Family { name: "alone_total", help: "Alone.", kind: MetricKind::Counter, labels: &["name"] };
    static ROWS: Family =
        Family { name: "rows_total", help: "Rows.", kind: MetricKind::Counter, labels: &["name", "kind"] };
    static GROUP: Group = Group {
        columns: &[
            Column { family: &ROWS, value: Some("a"), from_start: FromStart::Always },
            Column { family: &ROWS, value: Some("b"), from_start: FromStart::Always },
        ],
    };

    #[derive(Clone, Copy)]
    struct OfRow;

    impl RowCounter for OfRow {
        const GROUP: &'static Group = &GROUP;

        fn column(self) -> usize {
            0
        }
    }

    fn names(from: usize, to: usize) -> Vec<String> {
        (from..to).map(|n| format!("n{n:06}")).collect()
    }

    #[test]
    fn every_series_is_in_one_piece_once() {
        for count in [0, 1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, 5_000] {
            let (registry, names) = (Registry::new(), names(0, count));
            let kept: Vec<_> = names
                .iter()
                .map(|name| (registry.counter(&ALONE, &[name]), registry.counters::<OfRow>(name)))
                .collect();
            let pieces: Vec<String> = registry.page().collect();
            assert!(pieces.iter().all(|piece| piece.ends_with('\n') && piece.len() < PIECE + BATCH * 128), "{count}");
            assert_eq!(pieces.len() > 1, count == 5_000, "{count}");
            let text = pieces.concat();
            let lines = |family: &'static str| text.lines().filter(move |line| line.starts_with(family));
            let alone = names.iter().map(|name| format!("alone_total{{name=\"{name}\"}} 0"));
            assert!(lines("alone_total").eq(alone), "{count}");
            let rows = names
                .iter()
                .flat_map(|name| ["a", "b"].map(|kind| format!("rows_total{{name=\"{name}\",kind=\"{kind}\"}} 0")));
            assert!(lines("rows_total").eq(rows), "{count}");
            let heads = text.lines().filter(|line| line.starts_with("# TYPE")).count();
            assert_eq!(heads, if count == 0 { 1 } else { 3 });
            drop(kept);
        }
    }

    #[test]
    fn those_that_come_while_it_is_read_change_nothing_for_the_others() {
        let registry = Registry::new();
        let make = |names: &[String]| -> Vec<_> { names.iter().map(|name| registry.counters::<OfRow>(name)).collect() };
        let old = make(&names(0, 4_000));
        let mut page = registry.page();
        let mut text = page.next().unwrap();
        let new = make(&[&names(4_000, 5_000)[..], &["a".to_owned(), "n001999x".to_owned()]].concat());
        page.for_each(|piece| text += &piece);
        for name in names(0, 5_000) {
            assert_eq!(text.matches(&format!("name=\"{name}\"")).count(), 2, "{name}");
        }
        assert!(!text.contains("name=\"a\"") && text.contains("n001999x"));
        drop((old, new));
    }
}
