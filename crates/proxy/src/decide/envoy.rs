//! Envoy's external authorization (`envoy.service.auth.v3.Authorization/Check`): bytes of gRPC in, described request out; answer
//! in, bytes out. Of the messages there is as much as is read or written; other fields are passed over, as protobuf has it.
//!
//! Bound: one message, which is not compressed and as large as a question may be.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use prost::Message;

use super::description::{Described, DescribedLine, is_of_the_exchange, scheme_of};
use sluicegate_http1::Version;

/// The path of the calls.
pub const PATH: &str = "/envoy.service.auth.v3.Authorization/Check";
/// Bytes before a message: whether it is compressed, and how long it is.
const PREFIX: usize = 5;

/// A call that describes no request.
#[derive(Debug, PartialEq, Eq)]
pub enum CallFault {
    /// The proxy is set up wrongly, or is none: it is told so.
    Unusable(Cow<'static, str>),
    /// By what the client of the request has sent: it is not let pass.
    Denied(Cow<'static, str>),
}

/// Takes the one message out of the body of a call.
///
/// # Errors
/// It has another number of messages, or one that is compressed: in words.
pub fn unframe(body: &[u8]) -> Result<&[u8], &'static str> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX>() else {
        return Err("The call has no whole message.");
    };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err("The message is compressed: send it as it is.");
    }
    if u32::from_be_bytes(length) as usize != message.len() {
        return Err("The call has not just one whole message.");
    }
    Ok(message)
}

/// Reads the request that a message describes.
///
/// # Errors
/// It describes none.
pub fn describe(message: &[u8]) -> Result<Described, CallFault> {
    let unusable = |why: &'static str| CallFault::Unusable(why.into());
    let check = CheckRequest::decode(message).map_err(|_| unusable("The message is no CheckRequest."))?;
    let attributes = check.attributes.ok_or_else(|| unusable("The call has no attributes."))?;
    let address = attributes.source.and_then(|source| source.address?.socket_address).map(|socket| socket.address);
    let client: IpAddr = address
        .and_then(|address| address.parse().ok())
        .ok_or_else(|| unusable("The source of the call has no IP address."))?;
    let http = attributes.request.and_then(|request| request.http);
    let HttpAttributes { method, headers, path, host, scheme, header_map } =
        http.ok_or_else(|| unusable("The call describes no HTTP request."))?;
    let is_https = scheme_of(scheme.as_bytes()).unwrap_or(false);
    let raw = header_map.map(|map| map.headers).unwrap_or_default();
    let raw = raw.iter().map(|header| {
        let value = if header.raw_value.is_empty() { &header.value } else { &header.raw_value };
        (header.key.as_bytes(), value.as_slice())
    });
    let fields: Vec<(&[u8], &[u8])> = headers
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_slice()))
        .chain(raw)
        .filter(|(name, _)| !name.starts_with(b":") && !is_of_the_exchange(name))
        .collect();
    let breaks = |bytes: &[u8]| bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n' | b'\0'));
    if fields.iter().any(|(name, value)| breaks(name) || breaks(value) || name.contains(&b':')) {
        return Err(CallFault::Denied("A field has a line break, a zero byte or a colon where none can be.".into()));
    }
    let line =
        DescribedLine { method: &method, target: &path, host: &host, version: Version::Http11, is_persistent: true };
    let head = line.head(fields.into_iter()).map_err(CallFault::Denied)?;
    Ok(Described { head, client, is_https })
}

/// Fields of an answer: names and values.
pub type AnswerFields = Vec<(String, String)>;

/// The answer that lets a request go on, with fields for its response.
pub fn allowed(fields: AnswerFields) -> Vec<u8> {
    let response_headers_to_add = fields.into_iter().map(HeaderOption::of).collect();
    frame(&CheckResponse {
        status: Some(RpcStatus { code: 0 }),
        http_response: Some(HttpResponse::Ok(OkResponse { response_headers_to_add })),
    })
}

/// The answer that refuses a request, as its client is told.
pub fn denied(status: u16, fields: AnswerFields, body: String) -> Vec<u8> {
    /// `PERMISSION_DENIED`.
    const DENIED: i32 = 7;
    let denied = DeniedResponse {
        status: Some(HttpStatus { code: i32::from(status) }),
        headers: fields.into_iter().map(HeaderOption::of).collect(),
        body,
    };
    frame(&CheckResponse {
        status: Some(RpcStatus { code: DENIED }),
        http_response: Some(HttpResponse::Denied(denied)),
    })
}

/// A message with what goes before it.
pub fn frame(response: &impl Message) -> Vec<u8> {
    let message = response.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

/// `envoy.service.auth.v3.CheckRequest`
#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

/// `envoy.service.auth.v3.AttributeContext`
#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "1")]
    source: Option<SourcePeer>,
    #[prost(message, optional, tag = "4")]
    request: Option<RequestAttributes>,
}

/// `AttributeContext.Peer`
#[derive(Clone, PartialEq, Message)]
struct SourcePeer {
    #[prost(message, optional, tag = "1")]
    address: Option<EnvoyAddress>,
}

/// `envoy.config.core.v3.Address`
#[derive(Clone, PartialEq, Message)]
struct EnvoyAddress {
    #[prost(message, optional, tag = "1")]
    socket_address: Option<SocketAttributes>,
}

/// `envoy.config.core.v3.SocketAddress`
#[derive(Clone, PartialEq, Message)]
struct SocketAttributes {
    #[prost(string, tag = "2")]
    address: String,
}

/// `AttributeContext.Request`
#[derive(Clone, PartialEq, Message)]
struct RequestAttributes {
    #[prost(message, optional, tag = "2")]
    http: Option<HttpAttributes>,
}

/// `AttributeContext.HttpRequest`. Texts are bytes here, which are the same on the wire and need not be UTF-8.
#[derive(Clone, PartialEq, Message)]
struct HttpAttributes {
    #[prost(bytes = "vec", tag = "2")]
    method: Vec<u8>,
    #[prost(map = "string, bytes", tag = "3")]
    headers: HashMap<String, Vec<u8>>,
    #[prost(bytes = "vec", tag = "4")]
    path: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    host: Vec<u8>,
    #[prost(string, tag = "6")]
    scheme: String,
    #[prost(message, optional, tag = "13")]
    header_map: Option<HeaderMap>,
}

/// `envoy.config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Message)]
struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    headers: Vec<HeaderValue>,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    raw_value: Vec<u8>,
}

impl HeaderValue {
    /// A field.
    pub fn of((name, value): (String, String)) -> Self {
        Self { key: name, value: value.into_bytes(), raw_value: Vec::new() }
    }
}

/// `envoy.config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Message)]
struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    header: Option<HeaderValue>,
}

impl HeaderOption {
    fn of(field: (String, String)) -> Self {
        Self { header: Some(HeaderValue::of(field)) }
    }
}

/// `envoy.service.auth.v3.CheckResponse`
#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<RpcStatus>,
    #[prost(oneof = "HttpResponse", tags = "2, 3")]
    http_response: Option<HttpResponse>,
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

/// The `http_response` of a [`CheckResponse`].
#[derive(Clone, PartialEq, prost::Oneof)]
enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedResponse),
    #[prost(message, tag = "3")]
    Ok(OkResponse),
}

/// `envoy.service.auth.v3.DeniedHttpResponse`
#[derive(Clone, PartialEq, Message)]
struct DeniedResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderOption>,
    #[prost(string, tag = "3")]
    body: String,
}

/// `envoy.service.auth.v3.OkHttpResponse`
#[derive(Clone, PartialEq, Message)]
struct OkResponse {
    #[prost(message, repeated, tag = "6")]
    response_headers_to_add: Vec<HeaderOption>,
}

/// `envoy.type.v3.HttpStatus`
#[derive(Clone, PartialEq, Message)]
struct HttpStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use sluicegate_http1::{HeadLimits, RequestHead};

    use super::*;

    fn call(client: &str, method: &[u8], path: &[u8], headers: &[(&str, &[u8])], is_raw: bool) -> Vec<u8> {
        let header = |(name, value): &(&str, &[u8])| HeaderValue {
            key: (*name).to_owned(),
            value: Vec::new(),
            raw_value: value.to_vec(),
        };
        let http = HttpAttributes {
            method: method.to_vec(),
            headers: headers
                .iter()
                .filter(|_| !is_raw)
                .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
                .collect(),
            path: path.to_vec(),
            host: b"h.example".to_vec(),
            scheme: "https".to_owned(),
            header_map: is_raw.then(|| HeaderMap { headers: headers.iter().map(header).collect() }),
        };
        let socket_address = Some(SocketAttributes { address: client.to_owned() });
        let attributes = Attributes {
            source: Some(SourcePeer { address: Some(EnvoyAddress { socket_address }) }),
            request: Some(RequestAttributes { http: Some(http) }),
        };
        CheckRequest { attributes: Some(attributes) }.encode_to_vec()
    }

    #[test]
    fn a_call_describes_a_request_by_either_form_of_its_fields() {
        for is_raw in [false, true] {
            let fields: [(&str, &[u8]); 1] = [("x-a", b"\xff b")];
            let described = describe(&call("2001:db8::1", b"POST", b"/x?y", &fields, is_raw)).unwrap();
            assert_eq!(described.head, b"POST /x?y HTTP/1.1\r\nhost: h.example\r\nx-a: \xff b\r\n\r\n");
            assert_eq!((described.client, described.is_https), ("2001:db8::1".parse().unwrap(), true));
            let cut: [(&str, &[u8]); 5] = [
                (":path", b"/z"),
                ("host", b"z"),
                ("content-length", b"5"),
                ("transfer-encoding", b"x"),
                ("expect", b"x"),
            ];
            let described = describe(&call("::1", b"GET", b"/", &cut, is_raw)).unwrap();
            assert_eq!(described.head, b"GET / HTTP/1.1\r\nhost: h.example\r\n\r\n");
        }
    }

    #[test]
    fn a_frame_is_one_message() {
        assert_eq!(unframe(&frame(&CheckResponse::default())), Ok(&b""[..]));
        for (body, told) in [
            (&b""[..], "no whole message"),
            (b"\0\0\0\0", "no whole message"),
            (b"\0\0\0\0\x01", "one whole message"),
            (b"\0\0\0\0\0x", "one whole message"),
            (b"\x01\0\0\0\0", "compressed"),
        ] {
            assert!(unframe(body).unwrap_err().contains(told), "{body:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn no_message_makes_it_panic_or_split_a_field(
            method in vec(any::<u8>(), 0..8), path in vec(any::<u8>(), 0..12), value in vec(any::<u8>(), 0..12),
            name in "[\\PC\r\n:]{0,6}", cut in any::<prop::sample::Index>(), noise in any::<Option<u8>>(), is_raw in any::<bool>(),
        ) {
            let path = [b"/", &path[..]].concat();
            let mut message = call("192.0.2.7", &method, &path, &[(&name, &value)], is_raw);
            if let Some(byte) = noise {
                let at = cut.index(message.len());
                message[at] = byte;
            }
            if let Ok(described) = describe(&message) {
                let mut head = RequestHead::default();
                if head.parse(&described.head, &HeadLimits { max_bytes: 4_096, max_fields: 64 }).is_ok() {
                    let lines = described.head.split(|byte| *byte == b'\n').count();
                    prop_assert!(lines <= 5, "{:?}", described.head);
                }
            }
        }
    }
}
