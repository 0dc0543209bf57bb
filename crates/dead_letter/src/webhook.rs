//! Requests to webhooks, by whomever of this room they are sent: how they are signed, and when one is tried again.

use base16ct::lower::encode_string;
use bytes::Bytes;
use hmac::{Hmac, Mac as _};
use http::header::HeaderName;
use http::{Request, Uri};
use http_body_util::Full;
use jiff::fmt::rfc2822::DateTimeParser;
use sha2::Sha256;

use sluicegate_http_client::{ClientResponse, ConnectTarget, Destination, HttpClient, HttpVersion};
use sluicegate_time::{Span, Wall};
use sluicegate_tls::TlsError;

const TIMESTAMP: &str = "x-sluicegate-timestamp";
pub(super) const SIGNATURE: &str = "x-sluicegate-signature";
const USER_AGENT: &str = concat!("sluicegate/", env!("CARGO_PKG_VERSION"));
/// Bytes of an answer that are read; nothing in it matters.
const MAX_ANSWER: usize = 64 * 1024;
/// The bound of the pause before the second try; doubled with each further one.
const FIRST_PAUSE: Span = Span::from_millis(200);
/// The bound of every pause that we choose.
const MAX_PAUSE: Span = Span::from_secs(30);

/// A client that reaches every webhook.
pub(super) fn client() -> Result<HttpClient, TlsError> {
    HttpClient::new(&Destination { way: ConnectTarget::AsNamed, speaks: HttpVersion::Either, tls: None }, MAX_ANSWER)
}

/// A message for a webhook.
#[derive(Clone, Debug)]
pub(super) struct Delivery<'d> {
    pub(super) content_type: &'static str,
    /// The field by which a repeat is known, and its value.
    pub(super) mark: (HeaderName, &'d str),
    pub(super) body: &'d Bytes,
}

/// The request that brings it, as of this moment, signed under a key; a later try has another timestamp.
pub(super) fn request(
    uri: &Uri,
    key: Option<&[u8]>,
    delivery: &Delivery<'_>,
    now: Wall,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let Delivery { content_type, mark: (field, value), body } = delivery;
    let timestamp = now.as_secs().to_string();
    let mut request = Request::post(uri.clone())
        .header(http::header::CONTENT_TYPE, *content_type)
        .header(http::header::USER_AGENT, USER_AGENT)
        .header(field, *value)
        .header(TIMESTAMP, &timestamp);
    if let Some(signature) = key.and_then(|key| signature(key, &timestamp, body)) {
        request = request.header(SIGNATURE, signature);
    }
    request.body(Full::new(Bytes::clone(body)))
}

/// `sha256=` and the HMAC of timestamp, dot and body in hexadecimal digits.
fn signature(key: &[u8], timestamp: &str, body: &[u8]) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in [timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    Some(format!("sha256={}", encode_string(&mac.finalize().into_bytes())))
}

/// How long to wait after so many tries.
pub(super) fn pause(tries: u32, random: u64) -> Span {
    pause_within(MAX_PAUSE, tries, random)
}

/// The same, with another bound of all of them.
pub(super) fn pause_within(most: Span, tries: u32, random: u64) -> Span {
    Span::full_jitter(FIRST_PAUSE, most, tries, random)
}

/// `Retry-After`: seconds, or a date.
pub(super) fn retry_after(answer: &ClientResponse, now: Wall) -> Span {
    let text = answer.headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let Some(text) = text.map(str::trim) else { return Span::ZERO };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Span::from_secs(text.parse().unwrap_or(u64::from(u32::MAX)).min(u64::from(u32::MAX)));
    }
    let date = DateTimeParser::new().parse_timestamp(text).ok();
    let nanos = date.and_then(|date| u64::try_from(date.as_nanosecond()).ok());
    nanos.map_or(Span::ZERO, |nanos| Wall::from_nanos(nanos).since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_dated_and_signed() {
        let (uri, body) = ("https://h.example/x?y".parse().unwrap(), Bytes::from_static(b"{\"v\":1}"));
        let now = Wall::from_nanos(1_767_323_045_678_901_234);
        let mark = (HeaderName::from_static("x-mark"), "id");
        let delivery = Delivery { content_type: "application/json", mark, body: &body };
        let request = |key| super::request(&uri, key, &delivery, now).unwrap();
        let signed = request(Some(&[7; 32][..]));
        let field = |name: &str| signed.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!((signed.method().as_str(), signed.uri()), ("POST", &uri));
        assert_eq!((field("content-type"), field("x-mark")), (Some("application/json"), Some("id")));
        assert!(field("user-agent").unwrap().starts_with("sluicegate/"));
        assert_eq!(field(TIMESTAMP), Some("1767323045"));
        // By Python's hmac.digest(bytes([7]) * 32, b'1767323045.{"v":1}', "sha256").hex().
        let expected = "sha256=6a2210f6461fedf7292fc5ec397399695aeef5d0e307f2cadc2292b693571b1c";
        assert_eq!(field(SIGNATURE), Some(expected));
        assert_eq!(request(None).headers().get(SIGNATURE), None);
    }

    #[test]
    fn pauses_are_spread_from_nothing_to_their_bound() {
        assert_eq!(pause(1, 0), Span::ZERO);
        assert_eq!(pause(3, 1 << 63), Span::from_millis(400));
        assert_eq!(pause(60, u64::MAX).as_millis_ceil(), 30_000);
        assert_eq!(pause_within(Span::from_secs(1), 3, 1 << 63), Span::from_millis(400));
        assert_eq!(pause_within(Span::from_secs(1), 60, u64::MAX).as_millis_ceil(), 1_000);
    }

    #[test]
    fn a_time_to_wait_is_seconds_or_a_date() {
        // 784111777 is 1994-11-06T08:49:37Z.
        let now = Wall::EPOCH + Span::from_secs(784_111_770);
        for (text, seconds) in [
            ("120", 120),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 7),
            ("Sun, 06 Nov 1994 08:49:30 GMT", 0),
            ("soon", 0),
            ("", 0),
            ("99999999999999999999", u64::from(u32::MAX)),
        ] {
            let headers = [(http::header::RETRY_AFTER, text.parse().unwrap())].into_iter().collect();
            let answer = ClientResponse {
                status: http::StatusCode::SERVICE_UNAVAILABLE,
                headers,
                body: Bytes::new(),
                is_whole: true,
            };
            assert_eq!(retry_after(&answer, now), Span::from_secs(seconds), "{text}");
        }
    }
}
