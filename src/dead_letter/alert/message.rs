//! The message to a webhook, and how that knows that it was the gateway.

use bytes::Bytes;
use hmac::{Hmac, Mac as _};
use http::{Request, Uri};
use http_body_util::Full;
use serde::Serialize;
use sha2::Sha256;

use super::mark::{Crossing, Figure};
use crate::time::{Span, Tick};

/// The unit of time in which a request is dated.
const SECOND: Span = Span::from_secs(1);
const TIMESTAMP: &str = "x-sluicegate-timestamp";
const SIGNATURE: &str = "x-sluicegate-signature";
const DELIVERY: &str = "x-sluicegate-delivery";
const USER_AGENT: &str = concat!("sluicegate/", env!("CARGO_PKG_VERSION"));
/// How to see more.
const HINT: &str = "sluicegate dead-letters stats";

/// The body of a message.
#[derive(Serialize)]
struct Body<'m> {
    v: u32,
    alert: &'m str,
    state: &'m str,
    value: u64,
    threshold: u64,
    unit: String,
    node: &'m str,
    at: String,
    directory: &'m str,
    oldest: Option<String>,
    hint: &'m str,
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'o> {
    pub(super) node: &'o str,
    pub(super) directory: &'o str,
}

/// The body for a crossing; `oldest` is when the oldest record that waits was written, if it is known.
pub(super) fn body(crossing: &Crossing, origin: Origin<'_>, oldest: Option<Tick>, now: Tick) -> Bytes {
    let stamp = |at: Tick| format!("{:.3}", at.timestamp());
    let body = Body {
        v: 1,
        alert: crossing.figure.word(),
        state: crossing.state.word(),
        value: crossing.value,
        threshold: crossing.threshold,
        unit: unit(crossing),
        node: origin.node,
        at: stamp(now),
        directory: origin.directory,
        oldest: oldest.map(stamp),
        hint: HINT,
    };
    // Texts and numbers alone: it cannot fail.
    serde_json::to_vec(&body).unwrap_or_default().into()
}

/// The unit of its value.
pub(super) fn unit(crossing: &Crossing) -> String {
    let within = crossing.within.map(|span| format!(" in {span}")).unwrap_or_default();
    match crossing.figure {
        Figure::Length => "records".to_owned(),
        Figure::Age => "seconds".to_owned(),
        Figure::Growth => format!("requests{within}"),
        Figure::Drops => format!("lost records{within}"),
    }
}

/// The request that brings it, as of this moment; a later try has another timestamp.
pub(super) fn request(
    uri: &Uri,
    key: Option<&[u8]>,
    (delivery, body): (&str, &Bytes),
    now: Tick,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let timestamp = (now.as_nanos() / SECOND.as_nanos()).to_string();
    let mut request = Request::post(uri.clone())
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::USER_AGENT, USER_AGENT)
        .header(DELIVERY, delivery)
        .header(TIMESTAMP, &timestamp);
    if let Some(signature) = key.and_then(|key| signature(key, &timestamp, body)) {
        request = request.header(SIGNATURE, signature);
    }
    request.body(Full::new(body.clone()))
}

/// `sha256=` and the HMAC of timestamp, dot and body in hexadecimal digits.
fn signature(key: &[u8], timestamp: &str, body: &[u8]) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in [timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    let digits: Vec<String> = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("sha256={}", digits.concat()))
}

#[cfg(test)]
mod tests {
    use super::super::mark::State;
    use super::*;

    const NOW: Tick = Tick::from_nanos(1_767_323_045_678_901_234);

    fn crossing() -> Crossing {
        let within = Some(Span::from_secs(60));
        Crossing { id: 1, alert: 0, figure: Figure::Growth, state: State::Firing, value: 7, threshold: 5, within }
    }

    #[test]
    fn a_body_has_these_fields_in_this_order() {
        let body = body(&crossing(), Origin { node: "gw-1", directory: "/d \"e\"" }, Some(NOW), NOW);
        let expected = r#"{"v":1,"alert":"growth","state":"firing","value":7,"threshold":5,"unit":"requests in 1m","node":"gw-1","at":"2026-01-02T03:04:05.678Z","directory":"/d \"e\"","oldest":"2026-01-02T03:04:05.678Z","hint":"sluicegate dead-letters stats"}"#;
        assert_eq!(body, expected);
    }

    #[test]
    fn a_request_is_dated_and_signed() {
        let (uri, body) = ("https://h.example/x?y".parse().unwrap(), Bytes::from_static(b"{\"v\":1}"));
        let request = |key| super::request(&uri, key, ("id", &body), NOW).unwrap();
        let signed = request(Some(&[7; 32][..]));
        let field = |name: &str| signed.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!((signed.method().as_str(), signed.uri()), ("POST", &uri));
        assert_eq!((field("content-type"), field(DELIVERY)), (Some("application/json"), Some("id")));
        assert!(field("user-agent").unwrap().starts_with("sluicegate/"));
        assert_eq!(field(TIMESTAMP), Some("1767323045"));
        // By Python's hmac.digest(bytes([7]) * 32, b'1767323045.{"v":1}', "sha256").hex().
        let expected = "sha256=6a2210f6461fedf7292fc5ec397399695aeef5d0e307f2cadc2292b693571b1c";
        assert_eq!(field(SIGNATURE), Some(expected));
        assert_eq!(request(None).headers().get(SIGNATURE), None);
    }
}
