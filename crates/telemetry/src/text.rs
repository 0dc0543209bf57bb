//! Prometheus' text format, version 0.0.4.

use std::fmt::Write;

use super::histogram::{Totals, bounds};
use super::{Family, MetricKind};

/// The value of a series.
#[derive(Debug)]
pub(super) enum Value {
    Counter(u64),
    Gauge(i64),
    Histogram(Totals),
}

impl Value {
    /// Of a counter or a gauge.
    pub(super) fn of(kind: MetricKind, value: u64) -> Self {
        match kind {
            MetricKind::Gauge => Self::Gauge(0).plus(value),
            MetricKind::Counter | MetricKind::Histogram => Self::Counter(value),
        }
    }

    /// With what was read from elsewhere; a histogram cannot be.
    pub(super) fn plus(self, read: u64) -> Self {
        match self {
            Self::Counter(count) => Self::Counter(count.wrapping_add(read)),
            Self::Gauge(value) => Self::Gauge(value.saturating_add(i64::try_from(read).unwrap_or(i64::MAX))),
            Self::Histogram(totals) => Self::Histogram(totals),
        }
    }
}

/// A page in the making. (Writing to a string cannot fail, so what `write!` returns is passed over.)
#[derive(Debug, Default)]
pub(super) struct ExpositionText(String);

impl ExpositionText {
    pub(super) fn begin(&mut self, family: &Family) {
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n", name = family.name);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn series<'l>(&mut self, family: &Family, labels: impl Iterator<Item = &'l str> + Clone, value: &Value) {
        match value {
            Value::Counter(count) => self.line(family, "", labels, None, count),
            Value::Gauge(value) => self.line(family, "", labels, None, value),
            Value::Histogram(totals) => {
                let mut below = 0u64;
                for (bound, count) in bounds().zip(totals.counts) {
                    below = below.wrapping_add(count);
                    self.line(family, "_bucket", labels.clone(), Some(bound), below);
                }
                self.line(family, "_sum", labels.clone(), None, totals.sum_seconds);
                self.line(family, "_count", labels, None, below);
            }
        }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    fn line<'l>(
        &mut self,
        family: &Family,
        suffix: &str,
        labels: impl Iterator<Item = &'l str>,
        bound: Option<&'l str>,
        value: impl std::fmt::Display,
    ) {
        let out = &mut self.0;
        let _ = write!(out, "{}{suffix}", family.name);
        let own = family.labels.iter().copied().zip(labels);
        let mut separator = '{';
        for (name, label) in own.chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(out, "{separator}{name}=\"");
            for character in label.chars() {
                match character {
                    '\\' => out.push_str("\\\\"),
                    '"' => out.push_str("\\\""),
                    '\n' => out.push_str("\\n"),
                    other => out.push(other),
                }
            }
            out.push('"');
            separator = ',';
        }
        let end = if separator == ',' { "}" } else { "" };
        let _ = writeln!(out, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Registry;
    use super::*;
    use sluicegate_time::Span;

    static HITS: Family = Family {
        name: "hits_total",
        help: "Hits,\nby \\ and \"name\".",
        kind: MetricKind::Counter,
        labels: &["name", "b"],
    };
    static TOOK: Family =
        Family { name: "took_seconds", help: "Took.", kind: MetricKind::Histogram, labels: &["name"] };
    static LEVEL: Family = Family { name: "a_level", help: "Level.", kind: MetricKind::Gauge, labels: &[] };

    #[test]
    fn a_page_looks_exactly_so() {
        let registry = Registry::new();
        let hits = [("z", "1"), ("a", "2"), ("a\\\"\nb", "3")].map(|(name, b)| registry.counter(&HITS, &[name, b]));
        hits[1].inc();
        let level = registry.gauge(&LEVEL, &[]);
        level.set(-2);
        let took = registry.histogram(&TOOK, &["x"]);
        took.observe(Span::from_millis(1));
        took.observe(Span::from_millis(250));
        took.observe(Span::from_secs(61));
        let expected = r#"# HELP a_level Level.
# TYPE a_level gauge
a_level -2
# HELP hits_total Hits,\nby \\ and "name".
# TYPE hits_total counter
hits_total{name="a",b="2"} 1
hits_total{name="a\\\"\nb",b="3"} 0
hits_total{name="z",b="1"} 0
# HELP sluicegate_metrics_series_overflow_total Times that a new series was refused for want of room and counted as other.
# TYPE sluicegate_metrics_series_overflow_total counter
sluicegate_metrics_series_overflow_total 0
# HELP took_seconds Took.
# TYPE took_seconds histogram
took_seconds_bucket{name="x",le="0.0005"} 0
took_seconds_bucket{name="x",le="0.001"} 1
took_seconds_bucket{name="x",le="0.0025"} 1
took_seconds_bucket{name="x",le="0.005"} 1
took_seconds_bucket{name="x",le="0.01"} 1
took_seconds_bucket{name="x",le="0.025"} 1
took_seconds_bucket{name="x",le="0.05"} 1
took_seconds_bucket{name="x",le="0.1"} 1
took_seconds_bucket{name="x",le="0.25"} 2
took_seconds_bucket{name="x",le="0.5"} 2
took_seconds_bucket{name="x",le="1"} 2
took_seconds_bucket{name="x",le="2.5"} 2
took_seconds_bucket{name="x",le="5"} 2
took_seconds_bucket{name="x",le="10"} 2
took_seconds_bucket{name="x",le="30"} 2
took_seconds_bucket{name="x",le="60"} 2
took_seconds_bucket{name="x",le="+Inf"} 3
took_seconds_sum{name="x"} 61.251
took_seconds_count{name="x"} 3
"#;
        assert_eq!(registry.render(), expected);
    }

    /// Name, label pairs, value.
    type Line = (String, Vec<(String, String)>, f64);

    /// Reads a line of the format back, by its grammar.
    fn parse(line: &str) -> Option<Line> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if rest.starts_with('{') {
            loop {
                let (label, quoted) = rest[1..].split_once("=\"")?;
                let mut value = String::new();
                let mut characters = quoted.char_indices();
                let end = loop {
                    match characters.next()? {
                        (end, '"') => break end,
                        (_, '\\') => value.push(match characters.next()?.1 {
                            'n' => '\n',
                            escaped @ ('\\' | '"') => escaped,
                            _ => return None,
                        }),
                        (_, '\n') => return None,
                        (_, other) => value.push(other),
                    }
                };
                labels.push((label.to_owned(), value));
                rest = &quoted[end + 1..];
                if let Some(after) = rest.strip_prefix('}') {
                    rest = after;
                    break;
                }
                rest.starts_with(',').then_some(())?;
            }
        }
        Some((name.to_owned(), labels, rest.strip_prefix(' ')?.parse().ok()?))
    }

    proptest! {
        #[test]
        fn any_label_value_is_read_back(
            series in prop::collection::btree_map((any::<String>(), "[\"\\\\\n,{} a]{0,6}"), any::<u32>(), 1..6),
        ) {
            let registry = Registry::new();
            for ((name, b), count) in &series {
                registry.counter(&HITS, &[name, b]).add(u64::from(*count));
            }
            let text = registry.render();
            let read: Vec<_> = text.split('\n').filter(|line| line.starts_with("hits_total")).map(parse).collect();
            let expected: Vec<_> = series
                .iter()
                .map(|((name, b), count)| {
                    let labels = vec![("name".to_owned(), name.clone()), ("b".to_owned(), b.clone())];
                    Some(("hits_total".to_owned(), labels, f64::from(*count)))
                })
                .collect();
            prop_assert_eq!(read, expected);
        }
    }
}
