//! A line read back: what the reader, and the code that lists or sums dead letters, works on.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::body::RecordedBody;
use super::head::{Head, LineKind};
use super::line::is_sound;
use super::reason::Reason;
use super::record::SHADOW;
use super::seal::Sealed;
use sluicegate_time::Wall;
use sluicegate_words::Word as _;

/// The content of one line.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// One request.
    Record(Box<Record>),
    /// Requests that were counted instead of recorded.
    Aggregate(Aggregate),
    /// Records that were lost.
    Dropped(Dropped),
}

/// One request that was not served. Secrets are redacted.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Record {
    /// A version 7 UUID.
    pub id: String,
    /// When its fate was decided.
    #[serde(rename = "ts", deserialize_with = "wall")]
    pub at: Wall,
    /// Why: a [`Reason`](super::Reason)'s text, or one of a later version.
    pub reason: String,
    /// `shadow`: it was admitted, and a limit in that mode would have refused it.
    #[serde(default)]
    pub mode: Option<String>,
    /// The limit that decided it.
    pub limit: Option<String>,
    /// The route that it matched.
    pub route: Option<String>,
    /// Its plan, if its route had plans; records of earlier versions have none.
    pub plan: Option<String>,
    /// The upstream that it was meant for.
    pub upstream: Option<String>,
    /// The gateway that wrote it.
    pub node: String,
    /// The client that sent it.
    pub client_ip: Option<String>,
    /// Source and value of each part of its key.
    pub key: Vec<(String, String)>,
    /// Its method.
    pub method: String,
    /// Its host, as received.
    pub host: String,
    /// Its path.
    pub path: String,
    /// Its query.
    pub query: Option<String>,
    /// `https`: it came over TLS.
    #[serde(default)]
    pub scheme: Option<String>,
    /// Whether it came from a trusted proxy.
    #[serde(default)]
    pub trusted_peer: bool,
    /// Whether another proxy has asked about it.
    #[serde(default)]
    pub asked: bool,
    /// Its headers, in order.
    pub headers: Vec<(String, String)>,
    /// Its body, where bodies are kept.
    pub body: Option<RecordedBody>,
    /// The rate that refused it.
    pub quota: Option<RecordedQuota>,
    /// The share to which the limit was scaled, in percent; records of limits that were not have none.
    #[serde(default)]
    pub scale: Option<u8>,
    /// The status that was sent; 0 if none was.
    pub status: u16,
    /// How often it was sent upstream.
    pub attempts: u32,
    /// Tries that failed: the server and the reason.
    #[serde(default)]
    pub tries: Vec<(String, String)>,
    /// Of its `traceparent`.
    pub trace_id: Option<String>,
    /// Of its `X-Request-Id`.
    pub request_id: Option<String>,
    /// The content that it does not show, for the holder of a key.
    #[serde(default)]
    pub sealed: Option<Sealed>,
    /// The short form of an explanation; records of earlier versions have none.
    #[serde(default)]
    pub why: Option<String>,
    /// Whether a field was too long: it ends in `…` where it was cut.
    #[serde(default)]
    pub truncated: bool,
}

impl Record {
    /// Whether the request was admitted and failed: no limit, no bound of a message and no operator refused it.
    pub fn is_failure(&self) -> bool {
        match Reason::from_word(&self.reason) {
            Some(Reason::Timeout | Reason::Breaker | Reason::Shed | Reason::UpstreamError) => true,
            // Where the queue of a limit was full there is the rate; where that of an upstream was, there is none.
            Some(Reason::QueueFull) => self.quota.is_none(),
            _ => false,
        }
    }
}

/// The numbers of the rate that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct RecordedQuota {
    /// Requests per window.
    pub limit: u64,
    /// The window, in milliseconds.
    pub window_ms: u64,
    /// The requests that were left in the window.
    pub remaining: u64,
    /// When a retry would be admitted, if ever.
    pub retry_after_ms: Option<u64>,
}

/// Requests of one reason and limit that flood control counted instead of recording them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Aggregate {
    /// A version 7 UUID.
    pub id: String,
    /// When it was written.
    #[serde(rename = "ts", deserialize_with = "wall")]
    pub at: Wall,
    /// Why they were not served.
    pub reason: String,
    /// `shadow`: it was admitted, and a limit in that mode would have refused it.
    #[serde(default)]
    pub mode: Option<String>,
    /// The limit that decided it.
    pub limit: Option<String>,
    /// The gateway that wrote it.
    pub node: String,
    /// How many.
    pub count: u64,
    /// When the first happened.
    #[serde(deserialize_with = "wall")]
    pub from: Wall,
    /// When the last happened.
    #[serde(deserialize_with = "wall")]
    pub to: Wall,
    /// The keys that came most often, the first one first; aggregates of earlier versions have none.
    #[serde(default)]
    pub top: Vec<TopKey>,
}

/// One of the keys that an aggregate counts most often.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TopKey {
    /// Source and value of each part.
    pub key: Vec<(String, String)>,
    /// How often, at most.
    pub count: u64,
    /// By how much `count` may be too high.
    #[serde(default)]
    pub excess: u64,
}

/// A gap in the log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Dropped {
    /// A version 7 UUID.
    pub id: String,
    /// When it was written.
    #[serde(rename = "ts", deserialize_with = "wall")]
    pub at: Wall,
    /// The gateway that wrote it.
    pub node: String,
    /// How many records are missing.
    pub count: u64,
    /// Of these, for want of room in the queue.
    pub queue_full: u64,
    /// Of these, for trouble with the disk.
    pub disk_error: u64,
    /// When the gap began, at the earliest.
    #[serde(deserialize_with = "wall")]
    pub from: Wall,
    /// When it ended, at the latest.
    #[serde(deserialize_with = "wall")]
    pub to: Wall,
}

impl Entry {
    /// Reads a line (without its line feed); `None` if its checksum fails or it is no entry.
    pub fn parse(line: &[u8]) -> Option<Self> {
        if !is_sound(line) {
            return None;
        }
        // A line is read once: its beginning says what it is.
        match Head::of(line).map_or_else(|| kind_by_marks(line), |head| Some(head.kind))? {
            LineKind::Aggregate => serde_json::from_slice(line).ok().map(Self::Aggregate),
            LineKind::Dropped => serde_json::from_slice(line).ok().map(Self::Dropped),
            LineKind::Record => serde_json::from_slice(line).ok().map(|record| Self::Record(Box::new(record))),
        }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::Record(record) => &record.id,
            Self::Aggregate(aggregate) => &aggregate.id,
            Self::Dropped(dropped) => &dropped.id,
        }
    }

    /// Its instant.
    pub fn at(&self) -> Wall {
        match self {
            Self::Record(record) => record.at,
            Self::Aggregate(aggregate) => aggregate.at,
            Self::Dropped(dropped) => dropped.at,
        }
    }

    /// Whether it is about what a limit in shadow mode would have refused.
    pub fn is_shadow(&self) -> bool {
        let mode = match self {
            Self::Record(record) => &record.mode,
            Self::Aggregate(aggregate) => &aggregate.mode,
            Self::Dropped(_) => return false,
        };
        mode.as_deref() == Some(SHADOW)
    }

    /// How many requests it stands for.
    pub fn count(&self) -> u64 {
        match self {
            Self::Record(_) => 1,
            Self::Aggregate(aggregate) => aggregate.count,
            Self::Dropped(dropped) => dropped.count,
        }
    }
}

/// Of a line that begins in another way than the writer begins one.
fn kind_by_marks(line: &[u8]) -> Option<LineKind> {
    #[derive(Deserialize)]
    struct Marks {
        #[serde(default)]
        aggregate: bool,
        #[serde(default)]
        dropped: bool,
    }
    let marks: Marks = serde_json::from_slice(line).ok()?;
    Some(match marks {
        Marks { aggregate: true, .. } => LineKind::Aggregate,
        Marks { dropped: true, .. } => LineKind::Dropped,
        _ => LineKind::Record,
    })
}

fn wall<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Wall, D::Error> {
    let text = String::deserialize(deserializer)?;
    let instant: Timestamp = text.parse().map_err(serde::de::Error::custom)?;
    let nanos = instant.as_nanosecond().clamp(0, u64::MAX.into());
    Ok(Wall::from_nanos(u64::try_from(nanos).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::super::record::Draft;
    use super::super::record::tests::{AT, draft};
    use super::super::tally::{Drops, Tally};
    use super::*;
    use sluicegate_redact::{RedactRules, Redactor};
    use sluicegate_time::Span;

    fn parsed(write: impl FnOnce(&mut Vec<u8>)) -> Entry {
        let mut line = Vec::new();
        write(&mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        Entry::parse(&line).unwrap()
    }

    #[test]
    fn a_record_reads_back_as_it_was_offered() {
        let Entry::Record(record) = parsed(|line| draft().write("gw", &Redactor::new(&RedactRules::default()), line))
        else {
            panic!("a record")
        };
        // Microseconds are what a timestamp keeps.
        assert_eq!(record.at, Wall::from_nanos(AT.as_nanos() / 1000 * 1000));
        assert_eq!((record.reason.as_str(), record.limit.as_deref()), ("rate-limited", Some("per-client")));
        assert_eq!((record.node.as_str(), record.client_ip.as_deref()), ("gw", Some("192.0.2.7")));
        assert_eq!(record.key, [("client-ip".to_owned(), "192.0.2.7".to_owned())]);
        assert_eq!(record.headers[0], ("Accept".to_owned(), "*/*".to_owned()));
        assert_eq!(record.quota.unwrap().retry_after_ms, Some(250));
        assert_eq!((record.status, record.attempts, record.truncated), (429, 0, false));
        assert_eq!((record.trace_id, record.request_id.as_deref()), (None, Some("r-1")));
    }

    #[test]
    fn a_refusal_by_a_limit_is_no_failure_whatever_its_reason() {
        let record = |reason, quota| {
            let draft = Draft { reason, quota, ..draft() };
            match parsed(|line| draft.write("gw", &Redactor::new(&RedactRules::default()), line)) {
                Entry::Record(record) => record,
                other => panic!("{other:?}"),
            }
        };
        let quota = draft().quota;
        assert!(quota.is_some());
        for reason in Reason::ALL {
            let is_failure = matches!(reason, Reason::Timeout | Reason::Breaker | Reason::Shed | Reason::UpstreamError);
            assert_eq!(record(reason, quota).is_failure(), is_failure, "{reason}");
            let is_of_upstream = reason == Reason::QueueFull;
            assert_eq!(record(reason, None).is_failure(), is_failure || is_of_upstream, "{reason}");
        }
    }

    #[test]
    fn aggregates_and_drops_read_back() {
        let to = Wall::from_nanos(5_000_000_000);
        let from = to - Span::from_secs(1);
        let tally =
            Tally { reason: Reason::Timeout, is_shadow: false, limit: None, count: 7, from, to, top: Vec::new() };
        let Entry::Aggregate(aggregate) =
            parsed(|line| tally.write("gw", &Redactor::new(&RedactRules::default()), to, line))
        else {
            panic!("an aggregate")
        };
        assert_eq!((aggregate.reason.as_str(), aggregate.limit, aggregate.count), ("timeout", None, 7));
        assert_eq!((aggregate.from, aggregate.to), (from, to));
        let drops = Drops { queue_full: 3, disk_error: 4 };
        let Entry::Dropped(dropped) = parsed(|line| drops.write("gw", from, to, line)) else { panic!("drops") };
        assert_eq!((dropped.count, dropped.queue_full, dropped.disk_error), (7, 3, 4));
        assert_eq!((dropped.from, dropped.to), (from, to));
    }

    #[test]
    fn a_line_that_begins_in_another_way_is_what_its_marks_say() {
        let parsed = |fields: &str| {
            let body = format!("{{\"v\":1,\"node\":\"gw\",\"id\":\"x\",\"ts\":\"2026-01-02T03:04:05Z\",{fields}");
            Entry::parse(format!("{body},\"crc\":\"{:08x}\"}}", crc32c::crc32c(body.as_bytes())).as_bytes())
        };
        let stretch = "\"count\":5,\"from\":\"2026-01-02T03:04:05Z\",\"to\":\"2026-01-02T03:04:05Z\"";
        let dropped = parsed(&format!("{stretch},\"queue_full\":3,\"disk_error\":2,\"dropped\":true"));
        assert!(matches!(dropped, Some(Entry::Dropped(Dropped { count: 5, .. }))), "{dropped:?}");
        let aggregate = parsed(&format!("{stretch},\"reason\":\"timeout\",\"limit\":null,\"aggregate\":true"));
        assert!(matches!(aggregate, Some(Entry::Aggregate(Aggregate { count: 5, .. }))), "{aggregate:?}");
        assert_eq!(parsed("\"reason\":\"timeout\""), None, "a record without most of its fields");
    }

    #[test]
    fn a_line_without_its_checksum_is_no_entry() {
        let mut line = Vec::new();
        draft().write("gw", &Redactor::new(&RedactRules::default()), &mut line);
        line.pop();
        let at = line.len() / 2;
        line[at] ^= 1;
        assert_eq!(Entry::parse(&line), None);
        assert_eq!(Entry::parse(b"{}"), None);
        assert_eq!(Entry::parse(b""), None);
    }
}
