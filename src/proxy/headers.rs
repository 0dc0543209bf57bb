//! What the gateway does to the fields of a message, written once for every protocol pair.
//!
//! A [`Fields`] is read, a [`Sink`] is written. Hop-by-hop fields and those that `Connection` nominates are cut first
//! (RFC 9110, 7.6.1), then what an untrusted peer may not say, then ours are added.

use std::net::IpAddr;

/// The fields of a message, in order, as they were received.
pub trait Fields {
    /// Calls `visit` with the name and the value of each field line.
    fn for_each(&self, visit: impl FnMut(&str, &[u8]));
}

/// Where the fields of the outgoing message go.
pub trait Sink {
    /// Adds a field line. The value holds no CR, LF or NUL: it came from a parsed message or was made by us.
    fn put(&mut self, name: &str, value: &[u8]);

    /// Whether a field of this name, in lower case, is there already.
    fn has(&self, name: &str) -> bool;
}

/// Connection fields that never pass, whatever the version (RFC 9110, 7.6.1; `Upgrade` until tunnels exist).
const HOP_BY_HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "proxy-authenticate"];

/// Fields that `Connection` may not nominate: cutting them would change what the message is or whom it is for.
const NEVER_NOMINATED: [&str; 6] =
    ["host", "content-length", "content-type", "content-encoding", "authorization", "cookie"];

/// At most this many names are taken from `Connection`; what is beyond is not a real message.
const MAX_NOMINATED: usize = 32;

/// What forwarding adds to a request.
#[derive(Debug)]
pub struct Forwarding<'a> {
    /// The address at the other end of the connection.
    pub peer: IpAddr,
    /// Whether forwarding fields from that peer are believed.
    pub trusted_peer: bool,
    /// `http` or `https`, as the client spoke to us.
    pub scheme: &'a str,
    /// The authority that the client asked for.
    pub authority: &'a str,
    /// The id of this request: ours, or a trusted peer's that was adopted.
    pub request_id: &'a str,
    /// A trace that starts here, used if the request carries no valid one.
    pub new_traceparent: &'a str,
    /// `1.1` or `1.0`: what the client spoke, for `Via`.
    pub received_version: &'a str,
}

/// Writes the upstream request's fields.
pub fn forward_request(fields: &impl Fields, facts: &Forwarding<'_>, sink: &mut impl Sink) {
    let nominated = Nominated::of(fields);
    let mut kept = Kept::default();
    sink.put("host", facts.authority.as_bytes());
    fields.for_each(|name, value| {
        if is_hop_by_hop(name) || nominated.contains(name) || name.eq_ignore_ascii_case("host") {
            return;
        }
        if name.eq_ignore_ascii_case("expect") {
            // The gateway answers 100-continue itself: the upstream gets the body without being asked.
            return;
        }
        if name.eq_ignore_ascii_case("x-forwarded-for") {
            if facts.trusted_peer {
                kept.add_hop(value);
            }
            return;
        }
        if name.eq_ignore_ascii_case("x-request-id") {
            // A trusted peer's was adopted if it was acceptable.
            return;
        }
        if is_claim_of_identity(name) {
            if !facts.trusted_peer {
                return;
            }
            kept.note(name);
        }
        if name.eq_ignore_ascii_case("traceparent") {
            if kept.traceparent || !is_traceparent(value) {
                return;
            }
            kept.traceparent = true;
        }
        sink.put(name, value);
    });
    add_forwarding(facts, &kept, sink);
}

/// Writes the client response's fields.
pub fn forward_response(fields: &impl Fields, sink: &mut impl Sink) {
    let nominated = Nominated::of(fields);
    fields.for_each(|name, value| {
        if !is_hop_by_hop(name) && !nominated.contains(name) {
            sink.put(name, value);
        }
    });
}

/// Whether a value is a `traceparent` that we pass on (W3C Trace Context, version 00 and later).
pub fn is_traceparent(value: &[u8]) -> bool {
    let hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let some = |bytes: &[u8]| bytes.iter().any(|byte| *byte != b'0');
    value.len() >= 55
        && hex(&value[..2])
        && &value[..2] != b"ff"
        && value[2] == b'-'
        && hex(&value[3..35])
        && some(&value[3..35])
        && value[35] == b'-'
        && hex(&value[36..52])
        && some(&value[36..52])
        && value[52] == b'-'
        && hex(&value[53..55])
        && (value.len() == 55 || (&value[..2] != b"00" && value[55] == b'-'))
}

/// What was found among the fields of a trusted peer.
#[derive(Default)]
struct Kept {
    hops: Vec<u8>,
    proto: bool,
    host: bool,
    traceparent: bool,
}

impl Kept {
    fn add_hop(&mut self, value: &[u8]) {
        if !self.hops.is_empty() {
            self.hops.extend_from_slice(b", ");
        }
        self.hops.extend_from_slice(value);
    }

    fn note(&mut self, name: &str) {
        self.proto |= name.eq_ignore_ascii_case("x-forwarded-proto");
        self.host |= name.eq_ignore_ascii_case("x-forwarded-host");
    }
}

fn add_forwarding(facts: &Forwarding<'_>, kept: &Kept, sink: &mut impl Sink) {
    let mut hops = kept.hops.clone();
    if !hops.is_empty() {
        hops.extend_from_slice(b", ");
    }
    hops.extend_from_slice(facts.peer.to_canonical().to_string().as_bytes());
    sink.put("x-forwarded-for", &hops);
    if !kept.proto {
        sink.put("x-forwarded-proto", facts.scheme.as_bytes());
    }
    if !kept.host {
        sink.put("x-forwarded-host", facts.authority.as_bytes());
    }
    sink.put("x-request-id", facts.request_id.as_bytes());
    if !kept.traceparent {
        sink.put("traceparent", facts.new_traceparent.as_bytes());
    }
    let via = format!("{} sluicegate", facts.received_version);
    sink.put("via", via.as_bytes());
}

fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop))
}

/// Fields by which a proxy in front tells who the client is, and our own: believed from trusted peers only.
fn is_claim_of_identity(name: &str) -> bool {
    let starts = |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    ["forwarded", "x-real-ip"].iter().any(|claim| name.eq_ignore_ascii_case(claim))
        || starts("x-forwarded-")
        || starts("x-sluicegate-")
}

/// The names that the `Connection` fields nominate.
struct Nominated {
    names: Vec<String>,
}

impl Nominated {
    fn of(fields: &impl Fields) -> Self {
        let mut names = Vec::new();
        fields.for_each(|name, value| {
            if !name.eq_ignore_ascii_case("connection") {
                return;
            }
            for option in value.split(|byte| *byte == b',') {
                let Ok(option) = std::str::from_utf8(option) else { continue };
                let option = option.trim();
                let known = ["", "close", "keep-alive"].iter().any(|known| option.eq_ignore_ascii_case(known));
                let kept = NEVER_NOMINATED.iter().any(|kept| option.eq_ignore_ascii_case(kept));
                if !known && !kept && names.len() < MAX_NOMINATED {
                    names.push(option.to_ascii_lowercase());
                }
            }
        });
        Self { names }
    }

    fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|nominated| name.eq_ignore_ascii_case(nominated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lines(&'static [(&'static str, &'static str)]);

    impl Fields for Lines {
        fn for_each(&self, mut visit: impl FnMut(&str, &[u8])) {
            for (name, value) in self.0 {
                visit(name, value.as_bytes());
            }
        }
    }

    #[derive(Default)]
    struct Written(Vec<(String, String)>);

    impl Sink for Written {
        fn put(&mut self, name: &str, value: &[u8]) {
            self.0.push((name.to_ascii_lowercase(), String::from_utf8(value.to_vec()).unwrap()));
        }

        fn has(&self, name: &str) -> bool {
            !self.all(name).is_empty()
        }
    }

    impl Written {
        fn all(&self, name: &str) -> Vec<&str> {
            self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
        }
    }

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn forwarded(lines: &'static [(&'static str, &'static str)], trusted_peer: bool) -> Written {
        let facts = Forwarding {
            peer: "192.0.2.7".parse().unwrap(),
            trusted_peer,
            scheme: "http",
            authority: "example.org",
            request_id: "id-1",
            new_traceparent: TRACE,
            received_version: "1.1",
        };
        let mut written = Written::default();
        forward_request(&Lines(lines), &facts, &mut written);
        written
    }

    const CLAIMS: &[(&str, &str)] = &[
        ("Host", "example.org"),
        ("X-Forwarded-For", "198.51.100.1"),
        ("x-forwarded-for", "198.51.100.2"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "front"),
        ("X-Forwarded-Prefix", "/p"),
        ("Forwarded", "for=1.2.3.4"),
        ("X-Real-IP", "1.2.3.4"),
        ("X-Request-Id", "theirs"),
        ("X-Sluicegate-Replay", "1"),
        ("Via", "1.0 front"),
    ];

    #[test]
    fn an_untrusted_peers_claims_are_replaced() {
        let written = forwarded(CLAIMS, false);
        assert_eq!(written.all("x-forwarded-for"), ["192.0.2.7"]);
        assert_eq!(written.all("x-forwarded-proto"), ["http"]);
        assert_eq!(written.all("x-forwarded-host"), ["example.org"]);
        assert_eq!(written.all("x-request-id"), ["id-1"]);
        assert_eq!(written.all("via"), ["1.0 front", "1.1 sluicegate"]);
        for gone in ["x-forwarded-prefix", "forwarded", "x-real-ip", "x-sluicegate-replay"] {
            assert!(written.all(gone).is_empty(), "{gone}");
        }
    }

    #[test]
    fn a_trusted_peers_claims_are_kept_and_its_address_appended() {
        let written = forwarded(CLAIMS, true);
        assert_eq!(written.all("x-forwarded-for"), ["198.51.100.1, 198.51.100.2, 192.0.2.7"]);
        assert_eq!(written.all("x-forwarded-proto"), ["https"]);
        assert_eq!(written.all("x-forwarded-host"), ["front"]);
        assert_eq!(written.all("x-request-id"), ["id-1"], "adopted before, or refused");
        assert_eq!(written.all("x-real-ip"), ["1.2.3.4"]);
    }

    #[test]
    fn cuts_hop_by_hop_fields_and_what_connection_nominates() {
        let written = forwarded(
            &[
                ("Host", "example.org"),
                ("Connection", "keep-alive, X-Secret , x-forwarded-for, Host, content-length"),
                ("X-Secret", "1"),
                ("Keep-Alive", "5"),
                ("TE", "trailers"),
                ("Upgrade", "websocket"),
                ("Transfer-Encoding", "chunked"),
                ("Proxy-Connection", "x"),
                ("Content-Length", "3"),
                ("Accept", "*/*"),
            ],
            true,
        );
        for gone in ["connection", "x-secret", "keep-alive", "te", "upgrade", "transfer-encoding", "proxy-connection"] {
            assert!(written.all(gone).is_empty(), "{gone}");
        }
        assert_eq!(written.all("host"), ["example.org"]);
        assert_eq!(written.all("content-length"), ["3"]);
        assert_eq!(written.all("accept"), ["*/*"]);
        assert_eq!(written.all("x-forwarded-for"), ["192.0.2.7"]);
    }

    #[test]
    fn a_valid_trace_is_kept_and_an_invalid_one_replaced() {
        let own = "00-11111111111111111111111111111111-2222222222222222-00";
        assert_eq!(
            forwarded(&[("traceparent", "00-11111111111111111111111111111111-2222222222222222-00")], false)
                .all("traceparent"),
            [own]
        );
        for bad in [
            "",
            "00-0-0-00",
            "ff-11111111111111111111111111111111-2222222222222222-00",
            "00-00000000000000000000000000000000-2222222222222222-00",
            "00-11111111111111111111111111111111-0000000000000000-00",
            "00-11111111111111111111111111111111-2222222222222222-00-more",
            "00-1111111111111111111111111111111A-2222222222222222-00",
        ] {
            assert!(!is_traceparent(bad.as_bytes()), "{bad}");
        }
        assert_eq!(forwarded(&[("traceparent", "junk")], false).all("traceparent"), [TRACE]);
    }

    #[test]
    fn a_response_loses_its_hop_by_hop_fields_only() {
        let mut written = Written::default();
        let lines = Lines(&[("Connection", "x-hop"), ("X-Hop", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]);
        forward_response(&lines, &mut written);
        assert_eq!(written.all("set-cookie"), ["a=1", "b=2"]);
        assert_eq!(written.0.len(), 2);
    }
}
