//! The filter by which someone asks for entries.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::entry::{Entry, Record};
use super::reason::Reason;
use super::text_room::TextRoom;
use sluicegate_redact::{Clip, ClipEnd, Redactor};
use sluicegate_time::Wall;

/// All that is set must hold. Aggregates have no route, key, client or status and match no filter by these; summaries
/// of drops match by time alone.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Not before.
    pub since: Option<Wall>,
    /// Before.
    pub until: Option<Wall>,
    /// The limit's name.
    pub limit: Option<String>,
    /// The route's name.
    pub route: Option<String>,
    /// Why.
    pub reason: Option<Reason>,
    /// A part of the key.
    pub key: Option<KeyFilter>,
    /// The client's address, or a network that it is in.
    pub client: Option<IpNet>,
    /// The status sent.
    pub status: Option<StatusFilter>,
}

impl Filter {
    /// Whether `entry` is asked for.
    pub fn matches(&self, entry: &Entry) -> bool {
        let of_records_only = self.is_of_records_only();
        match entry {
            Entry::Record(record) => {
                self.covers(record.at, record.at)
                    && self.names(&record.reason, record.limit.as_deref())
                    && self.suits(record)
            }
            Entry::Aggregate(aggregate) => {
                !of_records_only
                    && self.covers(aggregate.from, aggregate.to)
                    && self.names(&aggregate.reason, aggregate.limit.as_deref())
            }
            Entry::Dropped(dropped) => {
                !of_records_only
                    && self.limit.is_none()
                    && self.reason.is_none()
                    && self.covers(dropped.from, dropped.to)
            }
        }
    }

    /// Whether sums of what is asked for look at `entry`. An aggregate has no client to compare, but may count requests of it:
    /// [`Filter::asks_for_key`]. A lost record may have been any.
    pub(super) fn sums(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Record(_) => self.matches(entry),
            Entry::Aggregate(aggregate) => {
                self.covers(aggregate.from, aggregate.to) && self.names(&aggregate.reason, aggregate.limit.as_deref())
            }
            Entry::Dropped(dropped) => self.covers(dropped.from, dropped.to),
        }
    }

    /// Whether requests of this key, which an aggregate counts, are asked for; `None`: the key alone does not tell.
    pub(super) fn asks_for_key(&self, key: &[(String, String)]) -> Option<bool> {
        if self.key.as_ref().is_some_and(|wanted| !key.iter().any(|(source, value)| wanted.matches(source, value))) {
            return Some(false);
        }
        let mut is_told = self.route.is_none() && self.status.is_none();
        if let Some(wanted) = &self.client {
            let client = key.iter().find(|(source, _)| source == "client-ip");
            let client = client.and_then(|(_, text)| parse_network(text).ok());
            if client.is_some_and(|client| !wanted.contains(&client) && !client.contains(wanted)) {
                return Some(false);
            }
            is_told &= client.is_some_and(|client| wanted.contains(&client));
        }
        is_told.then_some(true)
    }

    /// The names of those parts that records alone have.
    pub fn fields_of_records(&self) -> Vec<&'static str> {
        let fields = [
            (self.client.is_some(), "client"),
            (self.key.is_some(), "key"),
            (self.route.is_some(), "route"),
            (self.status.is_some(), "status"),
        ];
        fields.into_iter().filter_map(|(is_asked, name)| is_asked.then_some(name)).collect()
    }

    /// Whether it asks for all there is.
    pub fn is_empty(&self) -> bool {
        let Self { since, until, limit, route, reason, key, client, status } = self;
        since.is_none()
            && until.is_none()
            && limit.is_none()
            && route.is_none()
            && reason.is_none()
            && key.is_none()
            && client.is_none()
            && status.is_none()
    }

    /// Whether it asks for what records alone have.
    pub(super) fn is_of_records_only(&self) -> bool {
        !self.fields_of_records().is_empty()
    }

    fn covers(&self, from: Wall, to: Wall) -> bool {
        self.since.is_none_or(|since| to >= since) && self.until.is_none_or(|until| from < until)
    }

    fn names(&self, reason: &str, limit: Option<&str>) -> bool {
        self.reason.is_none_or(|wanted| wanted.word() == reason)
            && self.limit.as_deref().is_none_or(|wanted| Some(wanted) == limit)
    }

    fn suits(&self, record: &Record) -> bool {
        let has_key = |wanted: &KeyFilter| record.key.iter().any(|(source, value)| wanted.matches(source, value));
        let is_in = |network: &IpNet| {
            let address = record.client_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
            address.is_some_and(|address| network.contains(&address))
        };
        self.route.as_deref().is_none_or(|wanted| Some(wanted) == record.route.as_deref())
            && self.key.as_ref().is_none_or(has_key)
            && self.client.as_ref().is_none_or(is_in)
            && self.status.is_none_or(|wanted| wanted.matches(record.status))
    }
}

/// A part of a key: its value as it is written, its value before it was redacted, or either behind `SOURCE=`.
#[derive(Clone, Debug)]
pub struct KeyFilter {
    wanted: String,
    redactor: Option<Redactor>,
}

impl KeyFilter {
    /// Finds redacted values too if the redactor that they went through is there.
    pub fn new(wanted: &str, redactor: Option<Redactor>) -> Self {
        Self { wanted: wanted.to_owned(), redactor }
    }

    fn matches(&self, source: &str, written: &str) -> bool {
        let of_source = self.wanted.strip_prefix(source).and_then(|rest| rest.strip_prefix('='));
        std::iter::once(self.wanted.as_str()).chain(of_source).any(|value| self.is(source, written, value))
    }

    fn is(&self, source: &str, written: &str, value: &str) -> bool {
        let Some(redactor) = &self.redactor else { return written == value };
        let Clip { text, end } = Clip::of(value.as_bytes(), TextRoom::KEY);
        let (written, is_cut) = match written.strip_suffix('…') {
            Some(start) => (start, true),
            None => (written, false),
        };
        is_cut == (end == ClipEnd::Cut)
            && forms(&text)
                .iter()
                .any(|form| redactor.stands_for(written, form) || redactor.key_part(source, form, end, None) == written)
    }
}

/// A value as it was sent, and as keys are made of it: with `+` as a blank (cookies, queries), and with the scheme of
/// credentials in lower case. Escapes are decoded by the code that compares.
fn forms(sent: &str) -> Vec<Cow<'_, str>> {
    let mut forms = vec![Cow::Borrowed(sent)];
    if sent.contains('+') {
        forms.push(Cow::Owned(sent.replace('+', " ")));
    }
    if let Some((scheme, rest)) = sent.split_once(' ') {
        forms.push(Cow::Owned(format!("{} {}", scheme.to_ascii_lowercase(), rest.trim_start())));
    }
    forms
}

/// A network, or an address as one that holds nothing else.
///
/// # Errors
/// It is neither; the text says how either is written.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse()
        .ok()
        .or_else(address)
        .ok_or_else(|| "use an address or a network, like 192.0.2.7 or 192.0.2.0/24".to_owned())
}

/// A status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusFilter {
    /// `429`
    Exactly(u16),
    /// `5xx`: its first digit.
    Class(u16),
}

impl fmt::Display for StatusFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(status) => write!(f, "{status}"),
            Self::Class(class) => write!(f, "{class}xx"),
        }
    }
}

impl StatusFilter {
    fn matches(self, status: u16) -> bool {
        match self {
            Self::Exactly(wanted) => status == wanted,
            Self::Class(digit) => status / 100 == digit,
        }
    }
}

/// A text that is no [`StatusFilter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusFilterError(String);

impl fmt::Display for StatusFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no status: use one like 429 or a class like 5xx", self.0)
    }
}

impl std::error::Error for StatusFilterError {}

impl FromStr for StatusFilter {
    type Err = StatusFilterError;

    fn from_str(text: &str) -> Result<Self, StatusFilterError> {
        let parsed = match text.strip_suffix("xx") {
            Some(digit) => digit.parse().ok().filter(|digit| (1..=5).contains(digit)).map(Self::Class),
            None => text.parse().ok().filter(|status| *status <= 999).map(Self::Exactly),
        };
        parsed.ok_or_else(|| StatusFilterError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Draft;
    use super::super::record::tests::{AT, draft};
    use super::super::tally::{Drops, Tally};
    use super::*;
    use sluicegate_redact::{RedactRules, Redactor};
    use sluicegate_time::Span;

    /// A record, an aggregate of the second after it, and drops of the second after that.
    fn entries() -> [Entry; 3] {
        let second = Span::from_secs(1);
        let mut lines = Vec::new();
        draft().write("gw", &Redactor::new(&RedactRules::default()), &mut lines);
        Tally {
            reason: Reason::RateLimited,
            is_shadow: false,
            limit: Some("per-client".into()),
            count: 3,
            from: AT,
            to: AT + second,
            top: Vec::new(),
        }
        .write("gw", &Redactor::new(&RedactRules::default()), AT + second, &mut lines);
        Drops { queue_full: 1, disk_error: 0 }.write("gw", AT + second, AT + second + second, &mut lines);
        let mut lines = lines.split(|&byte| byte == b'\n');
        std::array::from_fn(|_| Entry::parse(lines.next().unwrap()).unwrap())
    }

    fn matched(filter: &Filter) -> [bool; 3] {
        entries().map(|entry| filter.matches(&entry))
    }

    #[test]
    fn each_filter_keeps_what_it_names() {
        let all = Filter::default();
        let text = |text: &str| Some(text.to_owned());
        let key = |text: &str| Some(KeyFilter::new(text, None));
        assert_eq!(matched(&all), [true; 3]);
        for (filter, expected) in [
            (Filter { limit: text("per-client"), ..all.clone() }, [true, true, false]),
            (Filter { limit: text("other"), ..all.clone() }, [false; 3]),
            (Filter { reason: Some(Reason::RateLimited), ..all.clone() }, [true, true, false]),
            (Filter { reason: Some(Reason::Timeout), ..all.clone() }, [false; 3]),
            (Filter { route: text("api"), ..all.clone() }, [true, false, false]),
            (Filter { route: text("ap"), ..all.clone() }, [false; 3]),
            (Filter { key: key("192.0.2.7"), ..all.clone() }, [true, false, false]),
            (Filter { key: key("client-ip=192.0.2.7"), ..all.clone() }, [true, false, false]),
            (Filter { key: key("client-ip=192.0.2"), ..all.clone() }, [false; 3]),
            (Filter { client: "192.0.2.0/24".parse().ok(), ..all.clone() }, [true, false, false]),
            (Filter { client: "192.0.3.0/24".parse().ok(), ..all.clone() }, [false; 3]),
            (Filter { status: Some(StatusFilter::Exactly(429)), ..all.clone() }, [true, false, false]),
            (Filter { status: Some(StatusFilter::Class(4)), ..all.clone() }, [true, false, false]),
            (Filter { status: Some(StatusFilter::Class(5)), ..all.clone() }, [false; 3]),
        ] {
            assert_eq!(matched(&filter), expected, "{filter:?}");
        }
    }

    #[test]
    fn a_redacted_key_is_found_by_what_it_was() {
        let redactor = Redactor::new(&RedactRules::default());
        let mut line = Vec::new();
        let long = "k".repeat(2 * TextRoom::KEY);
        let mut room = TextRoom::new();
        let key = ["s3cret", "with%41", &long].map(|value| room.clip(value.as_bytes(), TextRoom::KEY));
        let key = key.into_iter().zip(["header:x-api-key", "query:token", "cookie:sid"]);
        Draft { key: key.map(|(value, source)| (source.into(), value)).collect(), ..draft() }
            .write("gw", &redactor, &mut line);
        line.pop();
        let entry = Entry::parse(&line).unwrap();
        let finds = |wanted: &str, redactor: &Redactor| {
            Filter { key: Some(KeyFilter::new(wanted, Some(redactor.clone()))), ..Filter::default() }.matches(&entry)
        };
        for wanted in ["s3cret", "header:x-api-key=s3cret", "with%41", "withA", &long, &format!("cookie:sid={long}")] {
            assert!(finds(wanted, &redactor), "{wanted}");
        }
        for wanted in ["s3cre", "cookie:sid=s3cret", "", &long[1..TextRoom::KEY], &long[..TextRoom::KEY]] {
            assert!(!finds(wanted, &redactor), "{wanted}");
        }
        assert!(!finds("s3cret", &Redactor::new(&RedactRules::default())), "under another key");
    }

    #[test]
    fn spans_of_time_match_what_reaches_into_them() {
        let millis = |millis| Some(AT + Span::from_millis(millis));
        let filter = |since, until| Filter { since, until, ..Filter::default() };
        assert_eq!(matched(&filter(millis(500), None)), [false, true, true]);
        assert_eq!(matched(&filter(millis(1500), None)), [false, false, true]);
        assert_eq!(matched(&filter(None, millis(500))), [true, true, false]);
        assert_eq!(matched(&filter(None, Some(AT - Span::from_secs(1)))), [false; 3]);
    }

    #[test]
    fn statuses_parse() {
        assert_eq!("429".parse(), Ok(StatusFilter::Exactly(429)));
        assert_eq!("5xx".parse(), Ok(StatusFilter::Class(5)));
        for bad in ["", "xx", "6xx", "0xx", "4x", "1000", "-1", "abc"] {
            assert!(bad.parse::<StatusFilter>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_and_networks_parse() {
        assert_eq!(parse_network("192.0.2.7"), "192.0.2.7/32".parse::<IpNet>().map_err(|error| error.to_string()));
        assert!(parse_network("2001:db8::/32").is_ok());
        assert!(parse_network("localhost").is_err());
    }
}
