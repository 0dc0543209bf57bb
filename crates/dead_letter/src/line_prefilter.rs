//! Passes over lines that cannot be meant, by their bytes alone: a checksum and JSON cost many times as much.
//!
//! It errs on one side: a line that may be meant passes. A line that begins in another way than the writer begins one passes,
//! and so does each if what is asked for would be written with an escape.

use memchr::memmem::Finder;

use super::filter::{Filter, StatusFilter};
use super::head::{Head, LineKind};
use super::record::stamp;

/// The bytes that a line has to have.
#[derive(Clone, Debug, Default)]
pub(super) struct LinePrefilter {
    /// How the id begins.
    id: Option<Vec<u8>>,
    /// Of a record's instant; other lines are about a stretch of time, which their own instant does not tell.
    since: Option<Vec<u8>>,
    until: Option<Vec<u8>>,
    /// The bytes behind the instant of a record.
    reason: Option<Vec<u8>>,
    of_records_only: bool,
    /// Whether aggregates and summaries of drops pass, whatever they have.
    passes_counts: bool,
    /// Whether it asks for what the summary of drops does not have.
    not_of_drops: bool,
    /// Bytes that stand somewhere in the line.
    needles: Vec<Finder<'static>>,
}

impl LinePrefilter {
    /// For what a filter asks for.
    pub(super) fn of(filter: &Filter) -> Self {
        let Filter { since, until, limit, route, reason, key: _, client, status } = filter;
        let mut needles = Vec::new();
        let mut needle = |text: String| needles.push(Finder::new(text.as_bytes()).into_owned());
        // The rarest first: a line ends at the first that it has not.
        if let Some(client) = client.filter(|network| network.prefix_len() == network.max_prefix_len()) {
            needle(format!("\"client_ip\":\"{}\"", client.addr()));
        }
        for (name, wanted) in [("limit", limit), ("route", route)] {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| is_plain(wanted)) {
                needle(format!("\"{name}\":\"{wanted}\""));
            }
        }
        match status {
            Some(StatusFilter::Exactly(status)) => needle(format!("\"status\":{status},")),
            Some(StatusFilter::Class(digit)) => needle(format!("\"status\":{digit}")),
            None => {}
        }
        Self {
            id: None,
            since: since.map(|at| stamp(at).into()),
            until: until.map(|at| stamp(at).into()),
            reason: reason.map(|reason| format!("\"reason\":\"{reason}\"").into()),
            of_records_only: filter.is_of_records_only(),
            passes_counts: false,
            not_of_drops: limit.is_some() || reason.is_some(),
            needles,
        }
    }

    /// For sums of what a filter asks for.
    pub(super) fn of_sums(filter: &Filter) -> Self {
        Self { passes_counts: true, ..Self::of(filter) }
    }

    /// For ids that begin like this.
    pub(super) fn of_id(beginning: &str) -> Self {
        Self { id: Some(beginning.into()), ..Self::default() }
    }

    /// Whether a line may be meant.
    pub(super) fn passes(&self, line: &[u8]) -> bool {
        let Some(head) = Head::of(line) else { return true };
        if self.id.as_deref().is_some_and(|beginning| !head.id.starts_with(beginning)) {
            return false;
        }
        let may_be = match head.kind {
            LineKind::Record => {
                // An instant is cut off to microseconds, here as in the line: equal ones may be on either side.
                self.since.as_deref().is_none_or(|since| head.stamp >= since)
                    && self.until.as_deref().is_none_or(|until| head.stamp <= until)
                    && self
                        .reason
                        .as_deref()
                        .is_none_or(|reason| head.rest.get(1..).unwrap_or_default().starts_with(reason))
            }
            LineKind::Aggregate | LineKind::Dropped if self.passes_counts => return true,
            LineKind::Aggregate => !self.of_records_only,
            LineKind::Dropped => !self.of_records_only && !self.not_of_drops,
        };
        may_be && self.needles.iter().all(|needle| needle.find(head.rest).is_some())
    }
}

/// Whether a name stands for itself in JSON, whoever writes it.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::Entry;
    use super::super::record::Draft;
    use super::super::record::tests::{AT, draft};
    use super::super::tally::{Drops, Tally};
    use super::super::{KeyFilter, Reason};
    use super::*;
    use sluicegate_redact::{RedactRules, Redactor};
    use sluicegate_time::{Span, Wall};

    const NAMES: [&str; 6] = ["per-client", "per\"client", "a\\b", "é", "x\u{202e}y", "limit"];
    const REASONS: [Reason; 3] = [Reason::RateLimited, Reason::QueueFull, Reason::Timeout];

    /// Around the instant of all others, some less than a microsecond off.
    fn at(step: u64) -> Wall {
        AT - Span::from_nanos(2_000) + Span::from_nanos(step * 300)
    }

    /// A line of each kind; `pick` chooses what is in it.
    fn line(pick: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
        let redactor = Redactor::new(&RedactRules::default());
        let mut out = Vec::new();
        let name = |pick: &mut dyn FnMut(usize) -> usize| NAMES.get(pick(8)).map(|name| (*name).into());
        let (limit, route) = (name(pick), name(pick));
        let (from, length, reason) = (at(pick(14) as u64), Span::from_nanos(pick(9) as u64 * 300), REASONS[pick(3)]);
        match pick(4) {
            0 => Tally { reason, is_shadow: pick(2) == 0, limit, count: 3, from, to: from + length, top: Vec::new() }
                .write("gw", &redactor, from + length, &mut out),
            1 => Drops { queue_full: 1, disk_error: 1 }.write("gw", from, from + length, &mut out),
            _ => Draft {
                at: from,
                reason,
                is_shadow: pick(2) == 0,
                limit,
                route,
                client_ip: ["192.0.2.7", "192.0.2.70", "2001:db8::1"].get(pick(4)).map(|own| own.parse().unwrap()),
                status: [0, 429, 404, 503, 42][pick(5)],
                // What a client sends may look like a field.
                path: "/\"limit\":\"per-client\",\"status\":429,".into(),
                ..draft()
            }
            .write("gw", &redactor, &mut out),
        }
        out.pop();
        out
    }

    fn filter(pick: &mut impl FnMut(usize) -> usize) -> Filter {
        let mut name = || NAMES.get(pick(24)).map(|name| (*name).to_owned());
        let (limit, route) = (name(), name());
        Filter {
            since: (pick(2) == 0).then(|| at(pick(14) as u64)),
            until: (pick(2) == 0).then(|| at(pick(14) as u64)),
            limit,
            route,
            reason: REASONS.get(pick(9)).copied(),
            key: (pick(8) == 0).then(|| KeyFilter::new("192.0.2.7", None)),
            client: ["192.0.2.7/32", "192.0.2.0/24", "2001:db8::1/128"].get(pick(9)).map(|own| own.parse().unwrap()),
            status: ["429", "4xx", "42", "503"].get(pick(12)).map(|own| own.parse().unwrap()),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn no_line_that_is_meant_is_passed_over(choices in proptest::collection::vec(any::<u16>(), 40)) {
            let mut choices = choices.into_iter();
            let mut pick = |among: usize| usize::from(choices.next().unwrap()) % among;
            let line = line(&mut pick);
            let filter = filter(&mut pick);
            let entry = Entry::parse(&line).unwrap();
            prop_assert!(LinePrefilter::of(&filter).passes(&line) || !filter.matches(&entry), "{:?} {:?}", filter, entry);
            prop_assert!(LinePrefilter::of_id(&entry.id()[..pick(37)]).passes(&line));
        }
    }

    #[test]
    fn what_is_not_meant_is_passed_over_by_its_bytes() {
        let mut record = Vec::new();
        draft().write("gw", &Redactor::new(&RedactRules::default()), &mut record);
        let passes = |filter: &Filter| LinePrefilter::of(filter).passes(&record);
        let (all, text) = (Filter::default(), |text: &str| Some(text.to_owned()));
        let second = Span::from_secs(1);
        for (filter, expected) in [
            (all.clone(), true),
            (Filter { limit: text("per-client"), ..all.clone() }, true),
            (Filter { limit: text("per-clien"), ..all.clone() }, false),
            (Filter { limit: text("api"), ..all.clone() }, false),
            (Filter { limit: text("\u{e9}"), ..all.clone() }, true),
            (Filter { route: text("api"), ..all.clone() }, true),
            (Filter { route: text("ap"), ..all.clone() }, false),
            (Filter { reason: Some(Reason::RateLimited), ..all.clone() }, true),
            (Filter { reason: Some(Reason::Timeout), ..all.clone() }, false),
            (Filter { since: Some(AT), until: Some(AT + second), ..all.clone() }, true),
            (Filter { since: Some(AT + second), ..all.clone() }, false),
            (Filter { until: Some(AT - second), ..all.clone() }, false),
            (Filter { client: "192.0.2.7".parse::<std::net::IpAddr>().ok().map(Into::into), ..all.clone() }, true),
            (Filter { client: "192.0.2.70".parse::<std::net::IpAddr>().ok().map(Into::into), ..all.clone() }, false),
            (Filter { status: "4xx".parse().ok(), ..all.clone() }, true),
            (Filter { status: "42".parse().ok(), ..all.clone() }, false),
        ] {
            assert_eq!(passes(&filter), expected, "{filter:?}");
        }
        assert!(!LinePrefilter::of_id("00").passes(&record));
        assert!(LinePrefilter::of_id("00").passes(b"{\"v\":2}"), "what is not known is looked at");
        let mut drops = Vec::new();
        Drops { queue_full: 1, disk_error: 0 }.write("gw", AT, AT, &mut drops);
        let passes = |filter: &Filter| LinePrefilter::of(filter).passes(&drops);
        assert!(passes(&Filter { since: Some(AT + second), ..all.clone() }), "its stretch of time is looked at");
        assert!(!passes(&Filter { reason: Some(Reason::RateLimited), ..all.clone() }));
        assert!(!passes(&Filter { route: text("api"), ..all }));
    }
}
