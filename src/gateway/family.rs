//! How families and columns of figures that are read when somebody asks are declared.

use crate::telemetry::{Column, Family, FromStart};

/// A static [`Family`]: its doc, which is that of `docs/metrics.md`, its name here, its kind, its name in metrics, its help and its
/// labels.
macro_rules! family {
    ($(#[doc = $doc:expr])* $id:ident, $kind:ident, $name:literal, $help:literal, [$($label:literal),*]) => {
        $(#[doc = $doc])*
        static $id: $crate::telemetry::Family = $crate::telemetry::Family {
            name: $name,
            help: $help,
            kind: $crate::telemetry::MetricKind::$kind,
            labels: &[$($label),*],
        };
    };
}
pub(super) use family;

pub(super) const fn column(family: &'static Family, value: Option<&'static str>, from_start: FromStart) -> Column {
    Column { family, value, from_start }
}
