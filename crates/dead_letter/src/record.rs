//! The content of a line, and how it is written: the record of one request, the aggregate of many, the summary of
//! drops.
//!
//! Every text of a stranger is cut by the code that makes the [`Draft`] ([`TextRoom`](super::text_room::TextRoom)),
//! redacted by the writer, and cut once more by its length as it is written; the bounds of that add up to less than
//! [`MAX_PLAIN_LINE`], and with a body to less than [`MAX_LINE`].

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use uuid::{NoContext, Uuid};

use super::body::KeptBody;
use super::line::{LineWriter, MAX_LINE, MAX_PLAIN_LINE, PairBounds};
use super::reason::Reason;
use super::seal::{Hidden, Sealer};
use sluicegate_redact::{Clip, ClipEnd, Redactor};
use sluicegate_time::Wall;

/// Written bytes of the name of a limit, route or upstream, of a trace or request id.
pub(super) const MAX_NAME: usize = 256;
/// Written bytes of the short form of an explanation.
const MAX_WHY: usize = 1024;
/// The `mode` of what only would have been refused.
pub(super) const SHADOW: &str = "shadow";
/// Written bytes of a method.
const MAX_METHOD: usize = 64;
/// Written bytes of an authority.
const MAX_HOST: usize = 512;
/// Written bytes of a path, and of a query.
pub(super) const MAX_PATH: usize = 8 * 1024;
const KEY_BOUNDS: PairBounds = PairBounds { count: 16, name: 256, value: 2 * 1024, total: 8 * 1024 };
/// Of all headers of a record.
const HEADER_BOUNDS: PairBounds = PairBounds { count: 128, name: 256, value: 4 * 1024, total: 32 * 1024 };

/// One request, as the caller knows it: nothing redacted, long texts cut.
#[derive(Clone, Debug)]
pub struct Draft {
    /// When its fate was decided.
    pub at: Wall,
    /// Why.
    pub reason: Reason,
    /// Whether that limit is in shadow mode: the request was admitted, and would have been refused.
    pub is_shadow: bool,
    /// The limit that decided it.
    pub limit: Option<Arc<str>>,
    /// The route that it matched.
    pub route: Option<Arc<str>>,
    /// Its plan, if the route has plans.
    pub plan: Option<Arc<str>>,
    /// The upstream that it was meant for.
    pub upstream: Option<Arc<str>>,
    /// The client that sent it.
    pub client_ip: Option<IpAddr>,
    /// Source and value of each part of the key it was counted under.
    pub key: Vec<(String, Clip)>,
    /// Whether its values are secrets; `None`: their names say so.
    pub key_is_secret: Option<bool>,
    /// Its method.
    pub method: Clip,
    /// Its host, as received.
    pub host: Clip,
    /// Its path, without the query.
    pub path: Clip,
    /// Its query, without the `?`.
    pub query: Option<Clip>,
    /// Whether it came over TLS.
    pub is_https: bool,
    /// Whether it came from a trusted proxy, whose word about its client is in the headers.
    pub trusted_peer: bool,
    /// Whether another proxy has asked about it: it has the request, and got the decision alone.
    pub is_asked: bool,
    /// Its headers, in order.
    pub headers: Vec<(Clip, Clip)>,
    /// Headers that came after these and are left out.
    pub headers_left_out: usize,
    /// Its body, if its route keeps bodies and it has one.
    pub body: Option<KeptBody>,
    /// The rate that refused it.
    pub quota: Option<Quota>,
    /// The share to which the limit was scaled, in percent; `None`: it was not.
    pub scale: Option<u8>,
    /// The short form of an explanation; nothing in it is of the client but addresses.
    pub why: String,
    /// The status that was sent; 0 if none was.
    pub status: u16,
    /// How often it was sent upstream.
    pub attempts: u32,
    /// Tries that failed: the server and the reason.
    pub tries: Vec<(Arc<str>, Cow<'static, str>)>,
    /// Of its `traceparent`.
    pub trace_id: Option<String>,
    /// Of its `X-Request-Id`.
    pub request_id: Option<String>,
}

/// The numbers of the rate that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Requests per window.
    pub limit: u64,
    /// The window, in milliseconds.
    pub window_ms: u64,
    /// The requests that were left in the window.
    pub remaining: u64,
    /// When a retry would be admitted, if ever.
    pub retry_after_ms: Option<u64>,
}

impl Draft {
    /// About how much memory it takes while it is queued.
    pub(super) fn weight(&self) -> u64 {
        let of = |clip: &Clip| clip.text.capacity();
        let key: usize = self.key.iter().map(|(source, value)| source.capacity() + of(value)).sum();
        let headers: usize = self.headers.iter().map(|(name, value)| of(name) + of(value)).sum();
        let lists =
            self.key.capacity() * size_of::<(String, Clip)>() + self.headers.capacity() * size_of::<(Clip, Clip)>();
        let ids: usize = [&self.trace_id, &self.request_id].into_iter().flatten().map(String::capacity).sum();
        let own = of(&self.method) + of(&self.host) + of(&self.path) + self.query.as_ref().map_or(0, of);
        let body = self.body.as_ref().map_or(0, KeptBody::weight);
        (size_of::<Self>() + self.why.capacity() + key + headers + lists + ids + own + body) as u64
    }

    /// Appends its line to `out`, with nothing sealed.
    #[cfg(test)]
    pub(super) fn write(&self, node: &str, redactor: &Redactor, out: &mut Vec<u8>) {
        self.write_sealed(node, redactor, None, out);
    }

    /// Appends its line to `out`. `sealer` keeps what the redactor hides.
    pub(super) fn write_sealed(&self, node: &str, redactor: &Redactor, sealer: Option<&mut Sealer>, out: &mut Vec<u8>) {
        let mut hidden = Hidden::default();
        let keeps = sealer.is_some();
        let mut line = open(out, self.at);
        line.text("reason", Some(self.reason.word()), MAX_NAME);
        if self.is_shadow {
            line.text("mode", Some(SHADOW), MAX_NAME);
        }
        line.text("limit", self.limit.as_deref(), MAX_NAME);
        line.text("route", self.route.as_deref(), MAX_NAME);
        if let Some(plan) = &self.plan {
            line.text("plan", Some(plan), MAX_NAME);
        }
        line.text("upstream", self.upstream.as_deref(), MAX_NAME);
        line.text("node", Some(node), MAX_NAME);
        line.text("client_ip", self.client_ip.map(|ip| ip.to_string()).as_deref(), MAX_NAME);
        let key = self.key.iter().map(|(source, value)| {
            (
                (source.as_str(), ClipEnd::Whole),
                (redactor.key_part(source, &value.text, value.end, self.key_is_secret), value.end),
            )
        });
        line.pairs("key", key, 0, &KEY_BOUNDS);
        self.write_request(&mut line, redactor, keeps.then_some(&mut hidden));
        match &self.body {
            Some(body) => body.write(&mut line, redactor, keeps.then_some(&mut hidden)),
            None => line.null("body"),
        }
        let quota = self.quota.map(|quota| {
            [
                ("limit", Some(quota.limit)),
                ("window_ms", Some(quota.window_ms)),
                ("remaining", Some(quota.remaining)),
                ("retry_after_ms", quota.retry_after_ms),
            ]
        });
        line.numbers("quota", quota.as_ref().map(<[_; 4]>::as_slice));
        self.scale.iter().for_each(|scale| line.number("scale", (*scale).into()));
        line.text("why", Some(&self.why), MAX_WHY);
        line.number("status", self.status.into());
        line.number("attempts", self.attempts.into());
        if !self.tries.is_empty() {
            let tries = self
                .tries
                .iter()
                .map(|(server, why)| ((&**server, ClipEnd::Whole), (Cow::Borrowed(&**why), ClipEnd::Whole)));
            line.pairs("tries", tries, 0, &KEY_BOUNDS);
        }
        line.text("trace_id", self.trace_id.as_deref(), MAX_NAME);
        line.text("request_id", self.request_id.as_deref(), MAX_NAME);
        if let Some(sealer) = sealer.filter(|_| !hidden.is_empty()) {
            let data = sealer.seal(line.written(), &hidden).unwrap_or_default();
            let most = if self.body.is_some() { MAX_LINE } else { MAX_PLAIN_LINE };
            line.words_or_null("sealed", &[("key", sealer.id()), ("data", &data)], most);
        }
        line.finish();
    }

    /// The request itself. `hidden` gets the parts that the redactor hides, if they are to be kept.
    fn write_request(&self, line: &mut LineWriter<'_>, redactor: &Redactor, hidden: Option<&mut Hidden>) {
        line.clip("method", Cow::Borrowed(&self.method.text), self.method.end, MAX_METHOD);
        let keeps = hidden.is_some();
        let mut unseen = Hidden::default();
        let hidden = hidden.unwrap_or(&mut unseen);
        let original = |shown: &str, text: &str| (keeps && shown != text).then(|| text.to_owned());
        let host = redactor.host(&self.host.text, self.host.end);
        hidden.host = original(&host, &self.host.text);
        line.clip("host", host, self.host.end, MAX_HOST);
        let path = redactor.path(&self.path.text, self.path.end);
        hidden.path = original(&path, &self.path.text);
        line.clip("path", path, self.path.end, MAX_PATH);
        match &self.query {
            Some(query) => {
                let shown = redactor.query(&query.text, query.end);
                hidden.query = original(&shown, &query.text);
                line.clip("query", shown, query.end, MAX_PATH);
            }
            None => line.null("query"),
        }
        if self.is_https {
            line.text("scheme", Some("https"), MAX_NAME);
        }
        if self.trusted_peer {
            line.mark("trusted_peer");
        }
        if self.is_asked {
            line.mark("asked");
        }
        let headers = self.headers.iter().enumerate().map(|(place, (name, value))| {
            let shown = redactor.header(&name.text, &value.text, value.end);
            hidden.headers.extend(original(&shown, &value.text).map(|text| (place, text)));
            ((name.text.as_str(), name.end), (shown, value.end))
        });
        let written = line.pairs("headers", headers, self.headers_left_out, &HEADER_BOUNDS);
        hidden.headers.retain(|(place, _)| *place < written);
    }
}

/// RFC 3339 in UTC, with microseconds (the rest is cut off).
pub(super) fn stamp(at: Wall) -> String {
    format!("{:.6}", at.timestamp())
}

/// The beginning of each line.
pub(super) fn open(out: &mut Vec<u8>, at: Wall) -> LineWriter<'_> {
    let mut line = LineWriter::begin(out);
    line.text("id", Some(&id(at).to_string()), MAX_NAME);
    line.text("ts", Some(&stamp(at)), MAX_NAME);
    line
}

/// A version 7 UUID of the instant `at`: milliseconds, then the fraction of the millisecond in 12 bits (RFC 9562
/// section 6.2, method 3), then 62 random bits.
fn id(at: Wall) -> Uuid {
    let nanos = at.as_nanos();
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let plain = Uuid::new_v7(uuid::Timestamp::from_unix(NoContext, seconds, u32::try_from(rest).unwrap_or_default()));
    let fraction = ((rest % 1_000_000) << 12) / 1_000_000;
    let mut bytes = plain.into_bytes();
    let [.., high, low] = fraction.to_be_bytes();
    bytes[6] = 0x70 | (high & 0x0f);
    bytes[7] = low;
    Uuid::from_bytes(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::entry::{Entry, Record};
    use super::super::line::is_sound;
    use super::super::seal::Opener;
    use super::super::tally::{Drops, KeyName, Tally, TopKey};
    use super::super::text_room::{MAX_TEXT, TextRoom};
    use super::*;
    use sluicegate_redact::RedactRules;

    /// 2026-01-02T03:04:05.678901234Z
    pub(in super::super) const AT: Wall = Wall::from_nanos(1_767_323_045_678_901_234);

    pub(in super::super) fn draft() -> Draft {
        Draft {
            at: AT,
            reason: Reason::RateLimited,
            is_shadow: false,
            limit: Some("per-client".into()),
            route: Some("api".into()),
            plan: None,
            upstream: Some("app".into()),
            client_ip: Some("192.0.2.7".parse().unwrap()),
            key: vec![("client-ip".into(), "192.0.2.7".into())],
            key_is_secret: None,
            method: "GET".into(),
            host: "api.example.com".into(),
            path: "/api/x".into(),
            query: Some("a=1&token=s3cret".into()),
            is_https: false,
            trusted_peer: false,
            is_asked: false,
            headers: vec![("Accept".into(), "*/*".into()), ("Cookie".into(), "sid=s3cret".into())],
            headers_left_out: 0,
            body: None,
            quota: Some(Quota { limit: 100, window_ms: 1000, remaining: 0, retry_after_ms: Some(250) }),
            scale: None,
            why: "route api; per-client: 0 of 100 in 1s left, refuses: no room".into(),
            status: 429,
            attempts: 0,
            tries: Vec::new(),
            trace_id: None,
            request_id: Some("r-1".into()),
        }
    }

    fn line_of(draft: &Draft) -> String {
        let mut out = Vec::new();
        draft.write("gw-1", &Redactor::new(&RedactRules::default()), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_record_has_the_fields_of_the_page_in_their_order() {
        let line = line_of(&draft());
        let names = [
            "v",
            "id",
            "ts",
            "reason",
            "limit",
            "route",
            "upstream",
            "node",
            "client_ip",
            "key",
            "method",
            "host",
            "path",
            "query",
            "headers",
            "body",
            "quota",
            "why",
            "status",
            "attempts",
            "trace_id",
            "request_id",
            "crc",
        ];
        let mut at = 0;
        for name in names {
            let found = line[at..].find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {line}"));
            at += found + 1;
        }
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value.as_object().unwrap().len(), names.len());
        assert_eq!(value["v"], 1);
        assert_eq!(value["ts"], "2026-01-02T03:04:05.678901Z");
        assert_eq!(value["reason"], "rate-limited");
        assert_eq!(value["key"], serde_json::json!([["client-ip", "192.0.2.7"]]));
        assert_eq!(value["headers"][0], serde_json::json!(["Accept", "*/*"]));
        assert_eq!(value["body"], serde_json::Value::Null);
        assert_eq!(
            value["quota"],
            serde_json::json!({"limit": 100, "window_ms": 1000, "remaining": 0, "retry_after_ms": 250})
        );
        assert_eq!(value["status"], 429);
        assert_eq!(value["trace_id"], serde_json::Value::Null);
        assert!(line.ends_with("\"}\n") && is_sound(line.trim_end().as_bytes()));
        let scaled = line_of(&Draft { scale: Some(60), ..draft() });
        assert!(scaled.contains("},\"scale\":60,\"why\":"), "{scaled}");
        let of_a_plan = line_of(&Draft { plan: Some("pro".into()), ..draft() });
        assert!(of_a_plan.contains("\"route\":\"api\",\"plan\":\"pro\",\"upstream\":"), "{of_a_plan}");
    }

    #[test]
    fn a_records_id_is_a_version_7_uuid_of_its_instant() {
        let id = id(AT);
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
        assert_eq!(id.get_timestamp().unwrap().to_unix(), (1_767_323_045, 678_000_000));
        let next = super::id(Wall::from_nanos(AT.as_nanos() + 1_000));
        assert!(id.as_bytes()[..8] < next.as_bytes()[..8], "ids a microsecond apart sort by time");
    }

    fn sealed_line_of(draft: &Draft) -> String {
        let mut out = Vec::new();
        let mut sealer = Sealer::new(&[7; 32]).unwrap();
        draft.write_sealed("gw-1", &Redactor::new(&RedactRules::default()), Some(&mut sealer), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn record_of(line: &str) -> Record {
        match Entry::parse(line.trim_end().as_bytes()) {
            Some(Entry::Record(record)) => *record,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_holder_of_the_key_reads_what_the_line_does_not_show() {
        let line = sealed_line_of(&Draft { host: "me:pass@a.example".into(), ..draft() });
        assert!(!line.contains("s3cret") && !line.contains("pass"), "{line}");
        let record = record_of(&line);
        let hidden = Opener::new(&[7; 32]).open(line.as_bytes(), record.sealed.as_ref().unwrap()).unwrap();
        assert_eq!(hidden.headers, [(1, "sid=s3cret".to_owned())]);
        assert_eq!((hidden.host.as_deref(), hidden.path), (Some("me:pass@a.example"), None));
        assert_eq!(hidden.query.as_deref(), Some("a=1&token=s3cret"));
        assert!(record.headers[1].1.starts_with("[redacted:"));
        let moved = line.replacen("\"Cookie\"", "\"x-a\"", 1);
        assert_ne!(moved, line);
        assert!(Opener::new(&[7; 32]).open(moved.as_bytes(), record.sealed.as_ref().unwrap()).is_err());
    }

    #[test]
    fn a_record_that_shows_all_has_no_seal_and_without_a_key_none_has() {
        let open = Draft { query: None, headers: vec![("Accept".into(), "*/*".into())], ..draft() };
        assert!(!sealed_line_of(&open).contains("sealed"));
        assert!(!line_of(&draft()).contains("sealed"));
    }

    #[test]
    fn a_seal_that_has_no_room_is_null_and_the_line_keeps_its_bound() {
        let bad = "\u{1}".repeat(4_000);
        let secret = |at: usize| (format!("x-token-{at}").as_str().into(), "s".repeat(2_000).as_str().into());
        let huge = Draft {
            key: vec![("path".into(), bad.clone().into()); 16],
            path: bad.clone().into(),
            host: bad.clone().into(),
            headers: (0..16).map(secret).chain([("x".into(), bad.clone().into())]).collect(),
            ..draft()
        };
        let line = sealed_line_of(&huge);
        assert!(line.len() <= MAX_PLAIN_LINE, "{}", line.len());
        let lines: Vec<_> = (1..16)
            .map(|count| {
                let headers = (0..count).map(secret).chain(vec![("x".into(), bad.clone().into()); 16]).collect();
                sealed_line_of(&Draft { headers, ..huge.clone() })
            })
            .collect();
        assert!(lines.iter().all(|line| line.len() <= MAX_PLAIN_LINE && is_sound(line.trim_end().as_bytes())));
        let kept = lines.iter().filter(|line| record_of(line).sealed.is_some()).count();
        assert!((1..lines.len()).contains(&kept), "{kept} of {}", lines.len());
        assert!(lines.iter().any(|line| line.contains(",\"sealed\":null,")));
        for line in lines.iter().filter(|line| record_of(line).sealed.is_some()) {
            let record = record_of(line);
            let hidden = Opener::new(&[7; 32]).open(line.as_bytes(), record.sealed.as_ref().unwrap()).unwrap();
            assert!(hidden.headers.iter().all(|(place, _)| record.headers[*place].0.starts_with("x-token-")));
        }
    }

    #[test]
    fn secrets_are_not_in_the_line() {
        let line = line_of(&draft());
        assert!(!line.contains("s3cret"), "{line}");
        assert!(line.contains("[redacted:"), "{line}");
    }

    #[test]
    fn an_aggregate_and_a_summary_of_drops_are_lines_like_any_other() {
        let mut out = Vec::new();
        let tally = Tally {
            reason: Reason::QueueFull,
            is_shadow: false,
            limit: Some("l".into()),
            count: 41,
            from: AT,
            to: AT + sluicegate_time::Span::from_millis(500),
            top: vec![TopKey {
                name: KeyName { parts: vec![("header:x-api-key".into(), "s3cret".into())], is_secret: None },
                count: 40,
                excess: 0,
            }],
        };
        tally.write("gw-1", &Redactor::new(&RedactRules::default()), AT, &mut out);
        Drops { queue_full: 2, disk_error: 3 }.write("gw-1", AT, AT, &mut out);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| is_sound(line.as_bytes())));
        assert!(lines[0].contains(
            "\"aggregate\":true,\"reason\":\"queue-full\",\"limit\":\"l\",\"node\":\"gw-1\",\"count\":41,\
             \"from\":\"2026-01-02T03:04:05.678901Z\",\"to\":\"2026-01-02T03:04:06.178901Z\",\
             \"top\":[{\"key\":[[\"header:x-api-key\",\"[redacted:"
        ));
        assert!(lines[0].contains("]\"]],\"count\":40}],\"crc\":") && !lines[0].contains("s3cret"), "{text}");
        assert!(lines[1].contains("\"dropped\":true,\"node\":\"gw-1\",\"count\":5,\"queue_full\":2,\"disk_error\":3,"));
    }

    #[test]
    fn the_largest_request_still_fits_a_line_and_says_that_it_was_cut() {
        let bad = "\u{1}".repeat(100_000);
        let mut huge = draft();
        huge.key = vec![(bad.clone(), bad.clone().into()); 40];
        huge.headers = vec![(bad.clone().into(), bad.clone().into()); 400];
        for text in [&mut huge.method, &mut huge.host, &mut huge.path] {
            *text = bad.clone().into();
        }
        huge.query = Some(bad.clone().into());
        for text in [&mut huge.trace_id, &mut huge.request_id] {
            *text = Some(bad.clone());
        }
        for name in [&mut huge.limit, &mut huge.route, &mut huge.plan, &mut huge.upstream] {
            *name = Some(bad.as_str().into());
        }
        let line = line_of(&huge);
        assert!(line.len() <= MAX_PLAIN_LINE, "{}", line.len());
        assert!(line.contains(",\"truncated\":true,\"crc\":\""));
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
        assert!(!line_of(&draft()).contains("truncated"));
    }

    #[test]
    fn what_was_cut_before_it_was_queued_is_marked() {
        let mut room = TextRoom::new();
        let long = "x".repeat(40_000);
        let path = room.clip(long.as_bytes(), TextRoom::PATH);
        let headers: Vec<_> = (0..10).map(|_| ("h".into(), room.clip(long.as_bytes(), TextRoom::HEADER))).collect();
        assert!(room.is_full());
        let text: usize = headers.iter().map(|(_, value): &(Clip, Clip)| value.text.len()).sum();
        assert_eq!(
            (path.text.len(), text),
            (TextRoom::PATH, MAX_TEXT - TextRoom::PATH),
            "each has its bound, and all have one"
        );
        let line = line_of(&Draft { path, headers, headers_left_out: 3, ..draft() });
        assert!(line.contains("xxx…\",\"query\":") && line.contains("[\"…\",\"3 more\"]],"), "{line}");
        assert!(line.contains(",\"truncated\":true,"), "{line}");
        assert!(line.len() < MAX_TEXT + 2_000, "{}", line.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_request_makes_a_line_that_cannot_be_read(
            path in "\\PC{0,200}|[\\x00-\\x7f]{0,200}",
            query in proptest::option::of("[\\x00-\\x7f]{0,200}|[;?=&%#:/@a-c]{0,60}"),
            headers in proptest::collection::vec(("[a-zA-Z-]{0,12}", "[\\x00-\\u{ff}]{0,80}"), 0..140),
            at in any::<u64>(),
        ) {
            let headers = headers.into_iter().map(|(name, value): (String, String)| (name.into(), value.into())).collect();
            let (path, query) = (path.into(), query.map(Clip::from));
            let line = line_of(&Draft { path, query, headers, at: Wall::from_nanos(at), ..draft() });
            prop_assert!(line.len() <= MAX_PLAIN_LINE);
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert!(is_sound(line.trim_end_matches('\n').as_bytes()));
            prop_assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
        }
    }
}
