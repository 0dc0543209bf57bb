//! `rate` of a limit: one, or several that all hold.

use crate::config::findings::{Reported, quoted};
use crate::config::kind::each;
use crate::config::reader::Node;
use crate::config::token::with_causes;
use crate::limiter::{CalendarRate, CalendarRateError, MAX_RATES, Rate};

/// Rates by windows of one length.
pub(super) fn read(node: &Node<'_>) -> Result<Vec<Rate>, Reported> {
    listed(node, "\"100/s\" or [\"100/s\", \"20/100ms\"]", |node, text| {
        text.parse::<Rate>().map_err(|error| {
            let help = if CalendarRate::is_per_month(text) {
                "months are windows of a calendar: algorithm = \"fixed-window\" with align = \"calendar\"".to_owned()
            } else {
                with_causes(&error)
            };
            node.error(format!("invalid rate {}", quoted(text)), help)
        })
    })
}

/// Rates by the windows of a calendar.
pub(super) fn of_calendar(node: &Node<'_>) -> Result<Vec<CalendarRate>, Reported> {
    listed(node, "\"1000/d\" or [\"1000/d\", \"20000/month\"]", |node, text| {
        text.parse().map_err(|error| match error {
            CalendarRateError::Window(_) => {
                let help =
                    format!("{error}; or leave `align` out: windows of any length begin at their multiples in UTC");
                node.error(format!("invalid calendar rate {}", quoted(text)), help)
            }
            error @ CalendarRateError::Rate(_) => {
                node.error(format!("invalid rate {}", quoted(text)), with_causes(&error))
            }
        })
    })
}

fn listed<T>(
    node: &Node<'_>,
    example: &str,
    read: impl Fn(&Node<'_>, &str) -> Result<T, Reported>,
) -> Result<Vec<T>, Reported> {
    let nodes = node.place().one_or_many();
    if nodes.is_empty() || nodes.len() > MAX_RATES {
        let message = format!("`rate` has {} rates", nodes.len());
        return Err(node.error(message, format!("give 1 to {MAX_RATES}; all of them hold")));
    }
    each(&nodes, |node| read(node, node.string("a rate in quotes", example)?))
}
