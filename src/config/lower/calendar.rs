//! `align = "calendar"` of a fixed window.

use super::algorithm::Lowered;
use super::limit::listed_rates;
use super::schedule;
use crate::config::findings::{Finding, quoted};
use crate::config::reader::{Node, Reader};
use crate::config::token::with_causes;
use crate::limiter::{Algorithm, CalendarRate, CalendarRateError, FixedWindow};

/// Whether a fixed window is to be by the calendar.
pub(super) fn is_asked(reader: &mut Reader<'_>) -> bool {
    reader.optional("align").is_some_and(|node| node.as_text() == Some("calendar"))
}

/// Reads `rate` and `zone` of one that is.
pub(super) fn lower<'t>(reader: &mut Reader<'t>) -> Lowered<'t> {
    let zone = schedule::zone(reader.optional("zone").as_ref());
    let Some(rate_node) = reader.required("rate", "\"1000/d\"") else {
        return Lowered { algorithm: None, place: None };
    };
    let place = rate_node.place();
    let rates = listed_rates(rate_node, "\"1000/d\" or [\"1000/d\", \"20000/month\"]", rate);
    let algorithm = rates.zip(zone).and_then(|(rates, zone)| {
        let made = FixedWindow::of_calendar(&rates, &zone).map(Algorithm::FixedWindow);
        made.map_err(|error| place.error("`rate` makes no fixed window", error.to_string())).ok()
    });
    Lowered { algorithm, place: Some(place) }
}

/// Reports a `zone` where no calendar goes by it.
pub(super) fn refuse_zone(reader: &mut Reader<'_>) {
    if let Some(node) = reader.optional("zone") {
        let message = "`zone` without a calendar: other windows are the same everywhere";
        node.push(Finding::error(node.key_span(), message).help("add align = \"calendar\", or remove `zone`"));
    }
}

fn rate(node: &Node<'_>, text: &str) -> Option<CalendarRate> {
    match text.parse() {
        Ok(rate) => Some(rate),
        Err(error @ CalendarRateError::Window(_)) => {
            let help = format!("{error}; or leave `align` out: windows of any length begin at their multiples in UTC");
            node.error(format!("{} is no rate of a calendar", quoted(text)), help);
            None
        }
        Err(error) => {
            node.error(format!("{} is no rate", quoted(text)), with_causes(&error));
            None
        }
    }
}
