//! The rate that a trusted proxy states for one request.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::view::RequestView;
use sluicegate_limiter::{Algorithm, CalendarRate, Rate};
use sluicegate_time::Span;

/// Where a limit finds the rate of a single request: in a field of a trusted proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateFrom {
    /// Lower case.
    field: Arc<str>,
    /// The window that it has to have.
    window: Span,
    /// Whether that is one of a calendar.
    is_of_calendar: bool,
}

impl RateFrom {
    /// The field of this name (in lower case), for a limit of this algorithm; `None` where it has not one rate.
    pub fn new(field: Arc<str>, algorithm: &Algorithm) -> Option<Self> {
        let [rate] = algorithm.rates() else { return None };
        let is_of_calendar = matches!(algorithm, Algorithm::FixedWindow(window) if window.zone().is_some());
        Some(Self { field, window: rate.window(), is_of_calendar })
    }

    /// The number of the rate that a request states; `None` if it states none, several, or one of another window.
    pub(super) fn stated<V: RequestView + ?Sized>(&self, view: &V) -> Option<NonZeroU64> {
        self.read(only_line(view, &self.field)?)
    }

    fn read(&self, line: &[u8]) -> Option<NonZeroU64> {
        let text = str::from_utf8(line).ok()?.trim_ascii();
        let rate =
            if self.is_of_calendar { text.parse::<CalendarRate>().ok()?.usual() } else { text.parse::<Rate>().ok()? };
        NonZeroU64::new(rate.limit()).filter(|_| rate.window() == self.window)
    }
}

/// The line of a field that has only one: of two, one is perhaps the client's, and either may come first.
pub(super) fn only_line<'v, V: RequestView + ?Sized>(view: &'v V, field: &str) -> Option<&'v [u8]> {
    let (mut only, mut lines) = (None, 0_usize);
    view.for_each_header(field, &mut |line| {
        lines = lines.saturating_add(1);
        only = (lines == 1).then_some(line);
    });
    only
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_limiter::{Bound, FixedWindow, TimerWheel};
    use sluicegate_time::Zone;

    fn wheel(rates: &[&str]) -> Algorithm {
        let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
        Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap())
    }

    #[test]
    fn a_rate_of_the_same_window_is_read_and_no_other() {
        let from = RateFrom::new("x-limit".into(), &wheel(&["500/s"])).unwrap();
        for (text, number) in [
            ("20/s", Some(20)),
            ("20/1s", Some(20)),
            (" 20/1000ms\t", Some(20)),
            ("900/s", Some(900)),
            ("1/s", Some(1)),
            ("0/s", None),
            ("20/m", None),
            ("20", None),
            ("-1/s", None),
            ("+1/s", None),
            ("2.5/s", None),
            ("20/s, 30/s", None),
            ("20/month", None),
            ("", None),
            ("/", None),
            ("1000000000001/s", None),
            ("99999999999999999999999/s", None),
            ("\u{ff12}/s", None),
        ] {
            assert_eq!(from.read(text.as_bytes()).map(NonZeroU64::get), number, "{text:?}");
        }
        assert_eq!(from.read(b"\xff/s"), None);
        assert_eq!(RateFrom::new("x".into(), &wheel(&["5/s", "9/m"])), None, "of two rates nobody knows which");
    }

    #[test]
    fn a_rate_of_a_calendar_has_its_unit() {
        let of = |rate: &str| {
            let window = FixedWindow::of_calendar(&[rate.parse().unwrap()], &Zone::utc()).unwrap();
            RateFrom::new("x-limit".into(), &Algorithm::FixedWindow(window)).unwrap()
        };
        let number = |from: &RateFrom, text: &str| from.read(text.as_bytes()).map(NonZeroU64::get);
        let month = of("500/month");
        assert_eq!((number(&month, "7/month"), number(&month, "7/30d"), number(&month, "7/d")), (Some(7), None, None));
        let week = of("500/7d");
        assert_eq!((number(&week, "7/week"), number(&week, "7/7d")), (Some(7), Some(7)));
    }
}
