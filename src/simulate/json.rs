//! Lines in JSON: the gateway's access log and its dead letters, and those of others that name the same things so.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::instant::Instants;
use super::logged::{Logged, client};
use super::skipped::SkipReason;
use crate::admission::Descriptor;
use crate::time::{Span, Tick};

/// Header fields that a line may name beside `headers`.
const FIELDS: [(&str, &str); 3] =
    [("user_agent", "user-agent"), ("referer", "referer"), ("request_id", "x-request-id")];

/// Reads a line.
pub(super) fn read(line: &str, instants: &mut Instants, logged: &mut Logged) -> Result<(), SkipReason> {
    let Ok(JsonFields(fields)) = serde_json::from_str(line) else { return Err(SkipReason::Broken) };
    let at = match fields.ts {
        Loose::Number(number) => Instants::number(number),
        Loose::Text(text) => instants.text(&text),
        Loose::True | Loose::Other => None,
    };
    if fields.counts {
        return Err(SkipReason::Aggregate);
    }
    let at: Tick = at.ok_or(SkipReason::NoTime)?;
    let client: IpAddr = fields.client.text().and_then(client).ok_or(SkipReason::NoClient)?;
    logged.start(at, client);
    if let Some(method) = fields.method.text() {
        if method == Descriptor::METHOD {
            return Err(SkipReason::Descriptor);
        }
        logged.set_method(method);
    }
    if let Some(host) = fields.host.text() {
        logged.set_host(host);
    }
    logged.set_target(fields.path.text().ok_or(SkipReason::NoPath)?);
    if let Some(query) = fields.query.text() {
        logged.set_query(query);
    }
    if let Some(scheme) = fields.scheme.text() {
        logged.is_https = scheme.eq_ignore_ascii_case("https");
    }
    for (name, value) in &fields.headers {
        logged.add_header(name, value);
    }
    for ((_, name), value) in FIELDS.iter().zip(&fields.named) {
        let is_known = || fields.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        if let Some(value) = value.text().filter(|_| !is_known()) {
            logged.add_header(name, value);
        }
    }
    for (source, value) in &fields.keys {
        logged.add_key_part(source, value);
    }
    if let LimitCosts::Costs(costs) = &fields.used {
        let costs = costs.iter().filter_map(|(limit, cost)| Some((limit, cost.number().filter(|cost| *cost >= 0.0)?)));
        costs.for_each(|(limit, cost)| logged.add_used(limit, cost as u64));
    }
    logged.status = fields.status.number().filter(|status| (0.0..1000.0).contains(status)).unwrap_or_default() as u16;
    if !fields.is_refused || fields.is_shadow {
        let waited = fields.wait_ms.number().unwrap_or_default();
        logged.took = fields.took_ms.number().and_then(|took| millis(took - waited));
        logged.head = fields.head_ms.number().and_then(millis);
    }
    Ok(())
}

/// Milliseconds as a span, if they are one.
pub(super) fn millis(millis: f64) -> Option<Span> {
    (0.0..1e13).contains(&millis).then(|| Span::from_nanos((millis * 1e3).round() as u64 * 1_000))
}

/// A text, a number, or anything else: writers of logs differ in that.
#[derive(Default)]
enum Loose<'a> {
    Text(Cow<'a, str>),
    Number(f64),
    True,
    #[default]
    Other,
}

impl Loose<'_> {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) | Self::True | Self::Other => None,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            Self::True | Self::Other => None,
        }
    }
}

impl<'de> Deserialize<'de> for Loose<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Loose<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Loose<'de>, E> {
                Ok(Loose::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Loose<'de>, E> {
                Ok(Loose::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Loose<'de>, E> {
                Ok(Loose::Number(number as f64))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Loose<'de>, E> {
                Ok(Loose::Number(number as f64))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Loose<'de>, E> {
                Ok(Loose::Number(number))
            }

            fn visit_bool<E>(self, is_true: bool) -> Result<Loose<'de>, E> {
                Ok(if is_true { Loose::True } else { Loose::Other })
            }

            fn visit_unit<E>(self) -> Result<Loose<'de>, E> {
                Ok(Loose::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Loose<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Loose::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Loose::Other)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// As an object, or as a list of pairs.
struct Headers<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de> Deserialize<'de> for Headers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Headers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("header fields, as an object or as a list of pairs")
            }

            fn visit_unit<E>(self) -> Result<Headers<'de>, E> {
                Ok(Headers(Vec::new()))
            }

            fn visit_str<E>(self, _: &str) -> Result<Headers<'de>, E> {
                Ok(Headers(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Headers<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some((name, value)) = seq.next_element::<(Loose<'de>, Loose<'de>)>()? {
                    push(&mut all, name, value);
                }
                Ok(Headers(all))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some((name, value)) = map.next_entry::<Loose<'de>, Loose<'de>>()? {
                    push(&mut all, name, value);
                }
                Ok(Headers(all))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

fn push<'a>(all: &mut Vec<(Cow<'a, str>, Cow<'a, str>)>, name: Loose<'a>, value: Loose<'a>) {
    if let Loose::Text(name) = name {
        match value {
            Loose::Text(value) => all.push((name, value)),
            Loose::Number(value) => all.push((name, Cow::Owned(value.to_string()))),
            Loose::True | Loose::Other => {}
        }
    }
}

/// The fields that are read of a line. Of a name that comes twice the last holds.
#[derive(Default)]
struct JsonRecord<'a> {
    ts: Loose<'a>,
    client: Loose<'a>,
    method: Loose<'a>,
    host: Loose<'a>,
    path: Loose<'a>,
    query: Loose<'a>,
    scheme: Loose<'a>,
    status: Loose<'a>,
    took_ms: Loose<'a>,
    wait_ms: Loose<'a>,
    head_ms: Loose<'a>,
    headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Source and mark of parts of keys.
    keys: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The costs that limits have counted.
    used: LimitCosts<'a>,
    /// Of [`FIELDS`].
    named: [Loose<'a>; 3],
    /// It stands for several requests.
    counts: bool,
    /// The gateway refused it, or it came to no answer.
    is_refused: bool,
    /// A dead letter of one that was admitted.
    is_shadow: bool,
}

/// Costs by the names of limits; of another writer's log anything else.
#[derive(Deserialize)]
#[serde(untagged)]
enum LimitCosts<'a> {
    #[serde(borrow)]
    Costs(HashMap<Cow<'a, str>, Loose<'a>>),
    Other(IgnoredAny),
}

impl Default for LimitCosts<'_> {
    fn default() -> Self {
        Self::Other(IgnoredAny)
    }
}

struct JsonFields<'a>(JsonRecord<'a>);

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = JsonFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonFields<'de>, A::Error> {
                let mut line = JsonRecord::default();
                while let Some(name) = map.next_key::<Name>()? {
                    let place = match name {
                        Name::Ts => &mut line.ts,
                        Name::Client => &mut line.client,
                        Name::Method => &mut line.method,
                        Name::Host => &mut line.host,
                        Name::Path => &mut line.path,
                        Name::Query => &mut line.query,
                        Name::Scheme => &mut line.scheme,
                        Name::Status => &mut line.status,
                        Name::TookMs => &mut line.took_ms,
                        Name::WaitMs => &mut line.wait_ms,
                        Name::HeadMs => &mut line.head_ms,
                        Name::Field(index) => line.named.get_mut(index).unwrap_or(&mut line.query),
                        Name::Headers => {
                            line.headers = map.next_value::<Headers<'de>>()?.0;
                            continue;
                        }
                        Name::Keys => {
                            line.keys = map.next_value::<Headers<'de>>()?.0;
                            continue;
                        }
                        Name::Used => {
                            line.used = map.next_value()?;
                            continue;
                        }
                        Name::Refused => {
                            line.is_refused = map.next_value::<Loose<'de>>()?.text().is_some();
                            continue;
                        }
                        Name::Mode => {
                            line.is_shadow = map.next_value::<Loose<'de>>()?.text() == Some("shadow");
                            continue;
                        }
                        Name::Counts => {
                            line.counts |= matches!(map.next_value()?, Loose::True);
                            continue;
                        }
                        Name::Other => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *place = map.next_value()?;
                }
                Ok(JsonFields(line))
            }
        }
        deserializer.deserialize_map(Any)
    }
}

enum Name {
    Ts,
    Client,
    Method,
    Host,
    Path,
    Query,
    Scheme,
    Status,
    TookMs,
    WaitMs,
    HeadMs,
    Headers,
    Keys,
    Used,
    Refused,
    Counts,
    Mode,
    Field(usize),
    Other,
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, name: &str) -> Result<Name, E> {
                Ok(match name {
                    "ts" => Name::Ts,
                    "client" | "client_ip" => Name::Client,
                    "method" => Name::Method,
                    "host" => Name::Host,
                    "path" | "target" => Name::Path,
                    "query" => Name::Query,
                    "scheme" => Name::Scheme,
                    "status" => Name::Status,
                    "took_ms" => Name::TookMs,
                    "wait_ms" => Name::WaitMs,
                    "head_ms" => Name::HeadMs,
                    "headers" => Name::Headers,
                    "keys" => Name::Keys,
                    "used" => Name::Used,
                    // Of an access log, and of a dead letter.
                    "limit" | "reason" => Name::Refused,
                    "aggregate" | "dropped" => Name::Counts,
                    "mode" => Name::Mode,
                    other => FIELDS.iter().position(|(own, _)| *own == other).map_or(Name::Other, Name::Field),
                })
            }
        }
        deserializer.deserialize_identifier(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::RequestView;

    fn logged(line: &str) -> Result<Logged, SkipReason> {
        let mut logged = Logged::default();
        // Nothing of the line before is left.
        read(r#"{"ts":9,"client":"::1","path":"/old?q","host":"old","method":"PUT","headers":{"a":"b"},"status":200,"took_ms":5,"scheme":"https"}"#, &mut Instants::default(), &mut logged).unwrap();
        read(line, &mut Instants::default(), &mut logged).map(|()| logged)
    }

    #[test]
    fn the_access_log_is_read_and_a_refusal_has_no_length() {
        let line = r#"{"ts":"2026-01-02T03:04:05.678Z","client":"192.0.2.7","method":"POST","host":"a.example:80","target":"/x?y=%20","protocol":"HTTP/1.1","status":200,"bytes_sent":3,"took_ms":12.5,"wait_ms":2.25,"head_ms":7.0,"tries":[["a","b"]],"outcome":"ok","request_id":"r-1","user_agent":"curl/8"}"#;
        let own = logged(line).unwrap();
        assert_eq!(own.at, Tick::from_nanos(1_767_323_045_678_000_000));
        assert_eq!((own.method(), own.authority(), own.path()), ("POST", Some("a.example:80"), "/x"));
        assert_eq!(
            (own.query(), own.header("user-agent"), own.header("a")),
            (Some("y=%20"), Some(&b"curl/8"[..]), None)
        );
        assert_eq!((own.status, own.scheme(), own.client.to_string().as_str()), (200, "http", "192.0.2.7"));
        assert_eq!((own.took, own.head), (Some(Span::from_nanos(10_250_000)), Some(Span::from_millis(7))));
        let refused =
            logged(&line.replace("\"outcome\":\"ok\"", "\"outcome\":\"rate-limited\",\"limit\":\"per-client\""))
                .unwrap();
        assert_eq!((refused.took, refused.head), (None, None));
    }

    #[test]
    fn dead_letters_and_lines_of_others_are_read() {
        let letter = logged(r#"{"id":"x","ts":"2026-01-02T03:04:05Z","reason":"rate-limited","limit":"l","client_ip":"192.0.2.7","key":[["client-ip","192.0.2.7"]],"method":"GET","host":"h","path":"/a","query":"b=c","headers":[["X-Api-Key","k1"],["Accept","*/*"]],"status":429,"why":"…"}"#).unwrap();
        assert_eq!((letter.path(), letter.query(), letter.header("x-api-key")), ("/a", Some("b=c"), Some(&b"k1"[..])));
        let descriptor = r#"{"ts":1,"client":"::1","method":"DESCRIPTOR","target":"/edge?a=b","asked_by":"[::1]:1"}"#;
        assert_eq!(logged(descriptor).err(), Some(SkipReason::Descriptor));
        let shadow = logged(
            r#"{"ts":1,"client":"::1","path":"/","reason":"rate-limited","mode":"shadow","took_ms":5,"headers":"x"}"#,
        )
        .unwrap();
        assert_eq!(shadow.took, Some(Span::from_millis(5)));
        let other = logged(r#"{"ts":1.5,"client":"[2001:db8::1]:443","path":"https://h.example?q","headers":{"X-Api-Key":"k2","x-n":5,"x-o":null},"status":"404","took_ms":"3"}"#).unwrap();
        assert_eq!((other.at, other.client.to_string().as_str()), (Tick::from_nanos(1_500_000_000), "2001:db8::1"));
        assert_eq!((other.method(), other.scheme(), other.authority()), ("GET", "https", Some("h.example")));
        assert_eq!((other.path(), other.query(), other.status), ("/", Some("q"), 404));
        assert_eq!((other.header("x-n"), other.header("x-o")), (Some(&b"5"[..]), None));
        let by_header = logged(r#"{"ts":1,"client":"::1","path":"/","headers":{"Host":"by.header"}}"#).unwrap();
        assert_eq!(by_header.authority(), Some("by.header"));
    }

    #[test]
    fn what_a_line_lacks_is_said() {
        for (line, fault) in [
            ("{", SkipReason::Broken),
            ("[]", SkipReason::Broken),
            ("{\"ts\":1,\"client\":\"::1\",\"path\":\"/\"} x", SkipReason::Broken),
            (r#"{"client":"::1","path":"/"}"#, SkipReason::NoTime),
            (r#"{"ts":true,"client":"::1","path":"/"}"#, SkipReason::NoTime),
            (r#"{"ts":1,"client":"somebody","path":"/"}"#, SkipReason::NoClient),
            (r#"{"ts":1,"client":"::1","path":7}"#, SkipReason::NoPath),
            (r#"{"ts":1,"client":"::1","path":"/","aggregate":true,"count":7}"#, SkipReason::Aggregate),
            (r#"{"ts":1,"client":"::1","path":"/","dropped":true}"#, SkipReason::Aggregate),
        ] {
            assert_eq!(logged(line).map(|_| ()), Err(fault), "{line}");
        }
        assert!(logged(r#"{"ts":1,"client":"::1","path":"/","dropped":false}"#).is_ok());
        let deep = "[".repeat(100_000);
        assert_eq!(logged(&format!("{{\"x\":{deep}")).map(|_| ()), Err(SkipReason::Broken));
    }
}
