//! The rate fields of an answer, from the record of its request.

use super::life::ExchangeRecord;
use crate::answer::{RefusedBy, rate_headers};
use crate::headers::Sink;
use crate::view::View;
use sluicegate_limiter::Report;
use sluicegate_time::Span;

/// Adds how the limits of the route stand.
pub fn write_rate_fields(
    view: &View,
    record: &ExchangeRecord,
    report: &Report,
    refused: Option<RefusedBy>,
    text: &mut Vec<u8>,
    sink: &mut impl Sink,
) {
    let Some(route) = &record.route else { return };
    let name_of = |place| route.limit(place).map_or("", |limit| limit.name());
    let told_secs =
        |place, wait: Span| route.limit(place).map_or_else(|| wait.as_secs_ceil(), |limit| limit.spec.told_secs(wait));
    rate_headers::write(view.snapshot.server().rate_headers, report, (name_of, told_secs), refused, text, sink);
}
