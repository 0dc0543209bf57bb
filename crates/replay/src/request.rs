//! The request that a record was, if the record has all of it.

use std::fmt;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method};

use sluicegate_dead_letter::Deferral;
use sluicegate_dead_letter::{Found, OpenError, Opener, Record, ReplayOrigin};

/// How a mark of the redactor begins.
const MARK: &str = "[redacted:";
/// Stands where bytes were no UTF-8.
const REPLACED: char = '\u{fffd}';
/// The field that names a request, whatever the number of its tries.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Fields that are about one connection or that the client library writes itself (RFC 9110, 7.6.1).
const LEFT_OUT: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
];

/// A request that can be sent.
#[derive(Clone, Debug)]
pub struct ReplayRequest {
    /// The record's id.
    pub id: String,
    /// Requests with the same one go one after the other.
    pub order: String,
    /// Its client, and how it had come.
    pub origin: Option<ReplayOrigin>,
    /// The id that the gateway knew it by.
    pub request_id: Option<String>,
    /// Its method.
    pub method: Method,
    /// Its host, as the client named it; may be empty.
    pub host: String,
    /// Its path and query.
    pub target: String,
    /// Its fields, with an idempotency key.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Whether something of it was sealed.
    pub was_sealed: bool,
}

/// The means to make requests of records.
#[derive(Debug, Default)]
pub struct Means {
    /// Opens seals.
    pub opener: Option<Opener>,
    /// Send what is redacted and not sealed without those fields.
    pub without_redacted: bool,
}

/// Why a record cannot be sent as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReplayable {
    /// A text or a list was too long for the record.
    Cut,
    /// A part was redacted, and is not sealed.
    Redacted,
    /// A part is sealed, and there is no key.
    NoKey,
    /// The seal does not open.
    Seal(OpenError),
    /// Bytes of it were no UTF-8, and were replaced.
    NotUtf8,
    /// Its body was not kept.
    NoBody,
    /// Of its body only the beginning was kept.
    BodyCut,
    /// The library cannot send it.
    Invalid(&'static str),
    /// It asks for another protocol, or for a tunnel.
    Upgrade,
    /// Another proxy has it, and asked about it alone.
    Asked,
}

impl fmt::Display for NotReplayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut => f.write_str("incomplete: a field was too long for the record"),
            Self::Redacted => f.write_str("incomplete: a part was redacted and is not sealed"),
            Self::NoKey => {
                f.write_str("incomplete: a part is sealed, and no key was given (seal_key_file, --seal-key-file)")
            }
            Self::Seal(error) => write!(f, "incomplete: {error}"),
            Self::NotUtf8 => f.write_str("incomplete: bytes of it were no UTF-8"),
            Self::NoBody => f.write_str("incomplete: its body was not kept (capture_body)"),
            Self::BodyCut => f.write_str("incomplete: of its body only the beginning was kept"),
            Self::Invalid(part) => write!(f, "incomplete: its {part} cannot be sent"),
            Self::Upgrade => f.write_str("it asks for another protocol"),
            Self::Asked => f.write_str("another proxy has the request, and only asked about it"),
        }
    }
}

impl ReplayRequest {
    /// The request of a record.
    ///
    /// # Errors
    /// [`NotReplayable`] says what it lacks.
    pub fn of(record: &Record, found: &Found, means: &Means) -> Result<Self, NotReplayable> {
        if record.asked {
            return Err(NotReplayable::Asked);
        }
        if record.truncated {
            return Err(NotReplayable::Cut);
        }
        // Records have no `Upgrade`, which is about one connection; a handshake of WebSocket has its key.
        let is_upgrade = |(name, _): &(String, String)| {
            name.eq_ignore_ascii_case("upgrade") || name.eq_ignore_ascii_case("sec-websocket-key")
        };
        if record.headers.iter().any(is_upgrade) || record.method == "CONNECT" {
            return Err(NotReplayable::Upgrade);
        }
        let mut parts = Parts::of(record);
        let body = parts.open(record, found, means)?;
        if means.without_redacted {
            parts.strip();
        }
        if parts.texts().any(|text| text.contains(MARK)) {
            return Err(if record.sealed.is_some() { NotReplayable::NoKey } else { NotReplayable::Redacted });
        }
        if parts.texts().any(|text| text.contains(REPLACED)) {
            return Err(NotReplayable::NotUtf8);
        }
        let body = body.map_or_else(|| kept_body(record, means), Ok)?;
        let fields = parts.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let headers = headers_of(fields, record.trusted_peer, &record.id)?;
        let target = match &parts.query {
            Some(query) => format!("{}?{query}", parts.path),
            None => parts.path.clone(),
        };
        check_target(&target, &parts.host)?;
        Ok(Self {
            id: record.id.clone(),
            order: order_of(record),
            origin: record.client_ip.as_deref().and_then(|ip| ip.parse().ok()).map(|client| ReplayOrigin {
                client,
                trusted_peer: record.trusted_peer,
                is_https: record.scheme.as_deref() == Some("https"),
            }),
            request_id: record.request_id.clone(),
            method: Method::from_bytes(record.method.as_bytes()).map_err(|_| NotReplayable::Invalid("method"))?,
            host: parts.host,
            target,
            headers,
            body,
            was_sealed: record.sealed.is_some(),
        })
    }

    /// The request that was deferred under this id.
    ///
    /// # Errors
    /// [`NotReplayable`] says what about it cannot be sent: the library is stricter than the gateway in some.
    pub fn of_deferred(request: &Deferral, id: String) -> Result<Self, NotReplayable> {
        if let Some(part) = request.unfit() {
            return Err(NotReplayable::Invalid(part));
        }
        let text = |bytes: &[u8], part| String::from_utf8(bytes.to_vec()).map_err(|_| NotReplayable::Invalid(part));
        let (host, target) = (text(&request.host, "host")?, text(&request.target, "path")?);
        let fields = request.headers.iter().map(|(name, value)| (&**name, &**value));
        Ok(Self {
            id,
            order: String::new(),
            origin: Some(ReplayOrigin {
                client: request.client,
                trusted_peer: request.trusted_peer,
                is_https: request.is_https,
            }),
            request_id: Some(request.request_id.clone()),
            method: Method::from_bytes(request.method.as_bytes()).map_err(|_| NotReplayable::Invalid("method"))?,
            headers: headers_of(fields, request.trusted_peer, &request.idempotency_key)?,
            host,
            target,
            body: request.body.clone().into(),
            was_sealed: true,
        })
    }

    /// About how many bytes it holds.
    pub fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64).sum();
        512 + self.order.len() + self.host.len() + self.target.len() + headers + self.body.len()
    }
}

fn check_target(target: &str, host: &str) -> Result<(), NotReplayable> {
    if !target.starts_with('/') || target.parse::<http::uri::PathAndQuery>().is_err() {
        return Err(NotReplayable::Invalid("path"));
    }
    if !host.is_empty() && host.parse::<http::uri::Authority>().is_err() {
        return Err(NotReplayable::Invalid("host"));
    }
    Ok(())
}

/// The parts of a request that a record may not show.
struct Parts {
    host: String,
    path: String,
    query: Option<String>,
    headers: Vec<(String, String)>,
}

impl Parts {
    fn of(record: &Record) -> Self {
        Self {
            host: record.host.clone(),
            path: record.path.clone(),
            query: record.query.clone(),
            headers: record.headers.clone(),
        }
    }

    /// Puts back what is sealed; the body, if it is.
    fn open(&mut self, record: &Record, found: &Found, means: &Means) -> Result<Option<Bytes>, NotReplayable> {
        let (Some(sealed), Some(opener)) = (&record.sealed, &means.opener) else { return Ok(None) };
        let hidden = match opener.open(found.line.as_bytes(), sealed) {
            Ok(hidden) => hidden,
            Err(_) if means.without_redacted => return Ok(None),
            Err(error) => return Err(NotReplayable::Seal(error)),
        };
        let body = hidden.body_bytes().map(Bytes::from);
        self.host = hidden.host.unwrap_or(std::mem::take(&mut self.host));
        self.path = hidden.path.unwrap_or(std::mem::take(&mut self.path));
        self.query = hidden.query.or(self.query.take());
        for (place, value) in hidden.headers {
            if let Some((_, shown)) = self.headers.get_mut(place) {
                *shown = value;
            }
        }
        if body.is_some() && record.body.as_ref().is_some_and(|body| body.truncated) {
            return Err(NotReplayable::BodyCut);
        }
        Ok(body)
    }

    /// Takes redacted fields away.
    fn strip(&mut self) {
        self.headers.retain(|(_, value)| !value.contains(MARK));
        if let Some((userinfo, host)) = self.host.rsplit_once('@')
            && userinfo.contains(MARK)
        {
            self.host = host.to_owned();
        }
        let kept = self.query.take().map(|query| {
            let fields: Vec<_> = query.split('&').filter(|field| !field.contains(MARK)).collect();
            fields.join("&")
        });
        self.query = kept.filter(|query| !query.is_empty());
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let own = [Some(self.host.as_str()), Some(self.path.as_str()), self.query.as_deref()];
        own.into_iter().flatten().chain(self.headers.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]))
    }
}

fn kept_body(record: &Record, means: &Means) -> Result<Bytes, NotReplayable> {
    let Some(body) = &record.body else {
        let has_one = record.headers.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("transfer-encoding")
                || name.eq_ignore_ascii_case("content-length") && value.trim() != "0"
        });
        return if has_one { Err(NotReplayable::NoBody) } else { Ok(Bytes::new()) };
    };
    if body.truncated {
        return Err(if body.data.is_empty() { NotReplayable::NoBody } else { NotReplayable::BodyCut });
    }
    let is_sealed = record.sealed.is_some() && means.opener.is_none();
    body.bytes().map(Bytes::from).ok_or(if is_sealed { NotReplayable::NoKey } else { NotReplayable::Redacted })
}

/// Whether a name, in lower case, is one of those by which a proxy in front tells who its client is: the gateway and this room
/// write them themselves. Of a trusted proxy's words those that name no address stay. Some servers read `_` as `-`.
fn is_claim(name: &str, trusted_peer: bool) -> bool {
    let name = name.replace('_', "-");
    match name.as_str() {
        "forwarded" | "x-forwarded-for" | "x-real-ip" | "x-request-id" => true,
        name if name.starts_with("x-sluicegate-") => true,
        name => !trusted_peer && name.starts_with("x-forwarded-"),
    }
}

fn headers_of<'f>(
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone,
    trusted_peer: bool,
    idempotency_key: &str,
) -> Result<HeaderMap, NotReplayable> {
    let nominated: Vec<String> = fields
        .clone()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| {
            let value = String::from_utf8_lossy(value).to_ascii_lowercase();
            value.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>()
        })
        .collect();
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = String::from_utf8(name.to_ascii_lowercase()).map_err(|_| NotReplayable::Invalid("headers"))?;
        let is_cut = LEFT_OUT.contains(&name.as_str()) || is_claim(&name, trusted_peer);
        if is_cut || nominated.contains(&name) {
            continue;
        }
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| NotReplayable::Invalid("headers"))?;
        headers.append(name, HeaderValue::from_bytes(value).map_err(|_| NotReplayable::Invalid("headers"))?);
    }
    if !headers.contains_key(IDEMPOTENCY_KEY) {
        let value = HeaderValue::from_str(idempotency_key).map_err(|_| NotReplayable::Invalid("id"))?;
        headers.insert(IDEMPOTENCY_KEY, value);
    }
    Ok(headers)
}

/// The key that it was counted under; marks of equal secrets are equal. Without a key, its client.
fn order_of(record: &Record) -> String {
    let limit = record.limit.as_deref().unwrap_or_default();
    if record.key.is_empty() {
        return record.client_ip.clone().unwrap_or_default();
    }
    let parts: Vec<String> = record.key.iter().map(|(source, value)| format!("{source}\u{1}{value}")).collect();
    format!("{limit}\u{2}{}", parts.join("\u{2}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use sluicegate_dead_letter::Entry;

    fn made(change: impl FnOnce(&mut Value), means: &Means) -> Result<ReplayRequest, NotReplayable> {
        let mut value = json!({
            "id": "019b7e1c-5a1e-7b3a-9d5e-2f6d3c1a0b9e", "ts": "2026-01-02T03:04:05.678901Z", "reason": "rate-limited",
            "limit": "l", "route": "r", "upstream": "u", "node": "n", "client_ip": "192.0.2.7",
            "key": [["header:x-api-key", "[redacted:3fe0a1b2]"]], "method": "GET", "host": "a.example", "path": "/x",
            "query": "y=1", "headers": [["accept", "*/*"]], "body": null, "quota": null, "status": 429, "attempts": 0,
            "trace_id": null, "request_id": null
        });
        change(&mut value);
        let record: Record = serde_json::from_value(value).unwrap();
        let found = Found { entry: Entry::Record(Box::new(record.clone())), line: String::new() };
        ReplayRequest::of(&record, &found, means)
    }

    fn letter(change: impl FnOnce(&mut Value)) -> Result<ReplayRequest, NotReplayable> {
        made(change, &Means::default())
    }

    #[test]
    fn a_letter_is_the_request_that_the_record_tells_of() {
        let letter = letter(|record| {
            record["headers"] = json!([
                ["accept", "*/*"],
                ["connection", "close, X-Hop"],
                ["x-hop", "1"],
                ["host", "other"],
                ["content-length", "0"],
                ["te", "trailers"],
                ["x-sluicegate-replay", "1;forged"],
                ["accept", "text/html"]
            ]);
        })
        .unwrap();
        assert_eq!(
            (letter.method.as_str(), letter.host.as_str(), letter.target.as_str()),
            ("GET", "a.example", "/x?y=1")
        );
        let names: Vec<_> =
            letter.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(
            names,
            [("accept", "*/*"), ("accept", "text/html"), (IDEMPOTENCY_KEY, "019b7e1c-5a1e-7b3a-9d5e-2f6d3c1a0b9e")]
        );
        let client = "192.0.2.7".parse().unwrap();
        assert_eq!(letter.origin, Some(ReplayOrigin { client, trusted_peer: false, is_https: false }));
    }

    #[test]
    fn a_client_cannot_say_who_it_is_and_a_trusted_proxy_can() {
        let names = |trusted: bool| {
            let letter = letter(|record| {
                if trusted {
                    record["trusted_peer"] = json!(true);
                }
                record["scheme"] = json!("https");
                record["headers"] = json!([
                    ["x-forwarded-for", "6.6.6.6"],
                    ["x_forwarded_for", "6.6.6.6"],
                    ["Forwarded", "for=6.6.6.6"],
                    ["x-real-ip", "6.6.6.6"],
                    ["x-forwarded-user", "admin"],
                    ["x-request-id", "mine"],
                    ["x-sluicegate-foo", "1"]
                ]);
            })
            .unwrap();
            assert_eq!(letter.origin.map(|origin| (origin.trusted_peer, origin.is_https)), Some((trusted, true)));
            letter.headers.keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(false), [IDEMPOTENCY_KEY]);
        assert_eq!(names(true), ["x-forwarded-user", IDEMPOTENCY_KEY]);
    }

    #[test]
    fn the_clients_idempotency_key_stays() {
        let letter = letter(|record| record["headers"] = json!([["Idempotency-Key", "mine"]])).unwrap();
        assert_eq!(letter.headers.get_all(IDEMPOTENCY_KEY).iter().collect::<Vec<_>>(), ["mine"]);
    }

    #[test]
    fn records_of_one_key_and_limit_are_in_one_order() {
        let order = |key: Value, limit: &str| {
            letter(|record| {
                record["key"] = key;
                record["limit"] = json!(limit);
            })
            .unwrap()
            .order
        };
        let one = order(json!([["a", "1"], ["b", "2"]]), "l");
        assert_eq!(one, order(json!([["a", "1"], ["b", "2"]]), "l"));
        assert_ne!(one, order(json!([["a", "1"], ["b", "3"]]), "l"));
        assert_ne!(one, order(json!([["a", "1"], ["b", "2"]]), "m"));
        assert_eq!(order(json!([]), "l"), "192.0.2.7");
    }

    #[test]
    fn a_record_that_lacks_a_part_is_not_sent() {
        let unfit = |change: &dyn Fn(&mut Value)| letter(change).unwrap_err();
        let body = |truncated: bool, sum: Value| json!({ "encoding": "utf-8", "len": 3, "truncated": truncated, "sha256": sum, "data": "abc" });
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(unfit(&|record| record["truncated"] = json!(true)), NotReplayable::Cut);
        assert_eq!(unfit(&|record| record["asked"] = json!(true)), NotReplayable::Asked);
        for field in ["host", "path", "query"] {
            let marked = |record: &mut Value| record[field] = json!("/a=[redacted:3fe0a1b2]");
            assert_eq!(unfit(&marked), NotReplayable::Redacted, "{field}");
            assert_eq!(unfit(&|record| record[field] = json!("/\u{fffd}")), NotReplayable::NotUtf8, "{field}");
        }
        assert_eq!(
            unfit(&|record| record["headers"] = json!([["cookie", "[redacted:00000000]"]])),
            NotReplayable::Redacted
        );
        assert_eq!(
            unfit(&|record| {
                record["headers"] = json!([["cookie", "[redacted:00000000]"]]);
                record["sealed"] = json!({ "key": "22cb0c19", "data": "AAAA" });
            }),
            NotReplayable::NoKey
        );
        assert_eq!(unfit(&|record| record["headers"] = json!([["content-length", "3"]])), NotReplayable::NoBody);
        assert_eq!(
            unfit(&|record| record["headers"] = json!([["transfer-encoding", "chunked"]])),
            NotReplayable::NoBody
        );
        assert_eq!(unfit(&|record| record["body"] = body(true, json!(sum))), NotReplayable::BodyCut);
        assert_eq!(unfit(&|record| record["body"] = body(false, json!(null))), NotReplayable::Redacted);
        assert_eq!(
            unfit(&|record| record["body"] = body(false, json!("00"))),
            NotReplayable::Redacted,
            "it was changed"
        );
        for name in ["upgrade", "Sec-WebSocket-Key"] {
            assert_eq!(unfit(&|record| record["headers"] = json!([[name, "x"]])), NotReplayable::Upgrade, "{name}");
        }
        let lost = json!({ "encoding": "utf-8", "len": 3, "truncated": true, "sha256": "00", "data": "" });
        assert_eq!(unfit(&|record| record["body"] = lost.clone()), NotReplayable::NoBody);
        assert_eq!(unfit(&|record| record["path"] = json!("*")), NotReplayable::Invalid("path"));
        assert_eq!(unfit(&|record| record["method"] = json!("CONNECT")), NotReplayable::Upgrade);
        assert_eq!(unfit(&|record| record["method"] = json!("G T")), NotReplayable::Invalid("method"));
        assert_eq!(unfit(&|record| record["headers"] = json!([["a b", "1"]])), NotReplayable::Invalid("headers"));
        assert_eq!(unfit(&|record| record["headers"] = json!([["a", "1\n2"]])), NotReplayable::Invalid("headers"));
        assert_eq!(unfit(&|record| record["host"] = json!("a b")), NotReplayable::Invalid("host"));
        assert_eq!(letter(|record| record["body"] = body(false, json!(sum))).unwrap().body, "abc");
    }

    #[test]
    fn a_seal_of_another_key_is_named() {
        let means = Means { opener: Some(Opener::new(&[7; 32])), without_redacted: false };
        let sealed = |record: &mut Value| record["sealed"] = json!({ "key": "00000000", "data": "AAAA" });
        assert_eq!(made(sealed, &means).unwrap_err(), NotReplayable::Seal(OpenError::OtherKey("00000000".to_owned())));
    }

    #[test]
    fn without_redacted_the_rest_is_sent() {
        let means = Means { opener: None, without_redacted: true };
        let letter = made(
            |record| {
                record["headers"] = json!([["cookie", "[redacted:00000000]"], ["accept", "*/*"]]);
                record["query"] = json!("token=[redacted:00000000]&x=1");
                record["host"] = json!("[redacted:00000000]@a.example");
            },
            &means,
        )
        .unwrap();
        assert_eq!((letter.target.as_str(), letter.host.as_str()), ("/x?x=1", "a.example"));
        assert!(!letter.headers.contains_key("cookie") && letter.headers.contains_key("accept"));
        let path = made(|record| record["path"] = json!("/token=[redacted:00000000]"), &means);
        assert_eq!(path.unwrap_err(), NotReplayable::Redacted, "without it, it is another path");
    }
}
