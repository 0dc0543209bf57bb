//! `rate` of a limit: one, or several that all hold.

use crate::findings::{Reported, quoted};
use crate::kind::each;
use crate::reader::Node;
use crate::token::with_causes;
use sluicegate_limiter::{CalendarRate, CalendarRateError, MAX_RATES, Rate};
use sluicegate_time::CalendarUnit;

/// The remedy for a text that is no rate, with the rate that was meant, if that can be told.
pub(super) fn help(text: &str, error: &(dyn std::error::Error + 'static)) -> String {
    let help = with_causes(error);
    meant(text).map_or_else(|| help.clone(), |rate| format!("write \"{rate}\": {help}"))
}

/// `5r/s` of nginx, and parts of a request: `0.5/s` is `30/m`.
fn meant(text: &str) -> Option<String> {
    const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let (number, unit) = text.split_once('/')?;
    let number = number.trim();
    let number = number.strip_suffix("req").or_else(|| number.strip_suffix('r')).unwrap_or(number).trim_end();
    let (_, seconds) = UNITS.into_iter().find(|(own, _)| *own == unit.trim())?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |text: &str| text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || whole.len() + part.len() == 0 {
        return None;
    }
    let digits: u64 = format!("{whole}{part}").parse().ok().filter(|digits| *digits > 0)?;
    let of = 10_u64.pow(part.len().try_into().ok()?);
    UNITS.into_iter().filter(|(_, own)| *own >= seconds).find_map(|(unit, own)| {
        let scaled = digits * (own / seconds);
        scaled.is_multiple_of(of).then(|| format!("{}/{unit}", scaled / of))
    })
}

/// Rates by windows of one length.
pub(super) fn read(node: &Node<'_>) -> Result<Vec<Rate>, Reported> {
    listed(node, "\"100/s\" or [\"100/s\", \"20/100ms\"]", |node, text| {
        text.parse::<Rate>().map_err(|error| {
            let help = match CalendarRate::unit_in_words(text) {
                Some(CalendarUnit::Week) => format!("{}; or write \"7d\" for seven days", of_a_calendar("weeks")),
                Some(_) => of_a_calendar("months"),
                None => help(text, &error),
            };
            node.error(format!("invalid rate {}", quoted(text)), help)
        })
    })
}

fn of_a_calendar(windows: &str) -> String {
    format!("{windows} are windows of a calendar: algorithm = \"fixed-window\" with align = \"calendar\"")
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
                node.error(format!("invalid rate {}", quoted(text)), help(text, &error))
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

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn the_rate_that_was_meant_is_told() {
        for (text, rate) in [
            ("0.5/s", "30/m"),
            ("5r/s", "5/s"),
            ("30r/m", "30/m"),
            ("0.5r/s", "30/m"),
            ("1.5/m", "90/h"),
            ("2.0/s", "2/s"),
            (".5/h", "12/d"),
            ("5 req/s", "5/s"),
        ] {
            assert_eq!(meant(text).as_deref(), Some(rate), "{text}");
        }
        for text in ["", "/s", "r/s", "./s", "0/s", "0.0/s", "a/s", "5/w", "1234567/s", "-1/s", "5", "1.0000001/s"] {
            assert_eq!(meant(text), None, "{text}");
        }
    }
}
