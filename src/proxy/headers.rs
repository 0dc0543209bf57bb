//! What the gateway does to the fields of a message, written once for every protocol pair.
//!
//! A [`Fields`] is read, a [`Sink`] is written. Hop-by-hop fields and those that `Connection` nominates are cut first
//! (RFC 9110, 7.6.1), then what an untrusted peer may not say, then ours are added. `Content-Length` and
//! `Transfer-Encoding` are cut too: whoever writes the message frames it anew. Each field costs the same few steps,
//! whatever its name, and nothing is allocated but for what few messages hold.

use crate::http1::{Known, Piece, is_name};

/// The fields of a message, in order, as they were received.
pub trait Fields {
    /// Adds those field lines to `sink` that `keep` wants, in order.
    fn copy<'f>(&'f self, sink: &mut impl Sink, keep: impl FnMut(Known, &'f [u8], &'f [u8]) -> bool);

    /// The options of `Connection` but for `close`, `keep-alive` and `upgrade`: names of fields that it nominates.
    fn nominated(&self) -> impl Iterator<Item = &[u8]>;
}

/// Where the fields of the outgoing message go.
pub trait Sink {
    /// Adds a field line. The value holds no CR, LF or NUL: it came from a parsed message or was made by us.
    fn put(&mut self, name: &[u8], value: &[u8]);

    /// Adds a field line whose value is these parts, one after the other.
    fn put_joined(&mut self, name: &[u8], parts: &[&[u8]]) {
        self.put(name, &parts.concat());
    }

    /// Adds a piece of an HTTP/1 head: field lines as they stand there, or a field.
    fn put_piece(&mut self, piece: Piece<'_>) {
        let lines = match piece {
            Piece::Field(name, value) => return self.put(name, value),
            Piece::Lines(lines) => lines,
        };
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.trim_ascii_end();
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            self.put(&line[..colon], line.get(colon + 2..).unwrap_or_default());
        }
    }

    /// Whether a field of this name, in lower case, is there already.
    fn has(&self, lower_name: &[u8]) -> bool;
}

/// Fields that `Connection` may not nominate: cutting them would change what the message is or whom it is for.
/// `Host` and the framing are no matter of copying, so they need no mention.
const NEVER_NOMINATED: [&[u8]; 4] = [b"content-type", b"content-encoding", b"authorization", b"cookie"];

/// What forwarding adds to a request.
#[derive(Debug)]
pub struct Forwarding<'a> {
    /// The address at the other end of the connection, as [`IpAddr::to_canonical`](std::net::IpAddr::to_canonical)
    /// has it, in words.
    pub peer: &'a [u8],
    /// Whether forwarding fields from that peer are believed.
    pub trusted_peer: bool,
    /// `http` or `https`, as the client spoke to us.
    pub scheme: &'a [u8],
    /// The authority that the client asked for.
    pub authority: &'a [u8],
    /// The `Host` that the upstream gets.
    pub host: &'a [u8],
    /// The id of this request: ours, or a trusted peer's that was adopted.
    pub request_id: &'a [u8],
    /// A trace that starts here, used if the request carries no valid one.
    pub new_traceparent: &'a [u8],
    /// What the client spoke and our name, as `Via` has them: `1.1 sluicegate`.
    pub via: &'a [u8],
    /// The protocols to offer the upstream, as the client offered them to us; `None` where none is to be.
    pub upgrade: Option<&'a [u8]>,
    /// Whether the upstream is asked to say `100 Continue` before it gets the body.
    pub expects_continue: bool,
}

/// What a response brought along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Passed {
    /// A `Date`: none needs to be added (RFC 9110, 6.6.1).
    pub date: bool,
}

/// Writes the upstream request's fields, all but the framing.
pub fn forward_request(fields: &impl Fields, facts: &Forwarding<'_>, sink: &mut impl Sink) {
    let nominated = Nominated::of(fields);
    let mut kept = Kept::default();
    sink.put(b"host", facts.host);
    fields.copy(sink, |known, name, value| {
        if nominated.contains(name) {
            return false;
        }
        let kind = Kind::of(known, name);
        kind == Kind::Plain || kept.passes(kind, value, facts.trusted_peer)
    });
    add_forwarding(facts, &kept, sink);
    add_upgrade(facts.upgrade, sink);
    if facts.expects_continue {
        sink.put(b"expect", b"100-continue");
    }
}

/// Writes the client response's fields, all but the framing. `upgrade` is the protocol that a 101 switches to.
pub fn forward_response(fields: &impl Fields, upgrade: Option<&[u8]>, sink: &mut impl Sink) -> Passed {
    let nominated = Nominated::of(fields);
    let mut passed = Passed { date: false };
    fields.copy(sink, |known, name, _| {
        let is_cut = known.is_hop_by_hop() || known == Known::ContentLength || nominated.contains(name);
        passed.date |= !is_cut && is_name(name, b"date");
        !is_cut
    });
    add_upgrade(upgrade, sink);
    passed
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

/// What a field is to a proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing: it is for others.
    Plain,
    /// For this connection only, nominated or not (RFC 9110, 7.6.1).
    HopByHop,
    /// For whoever writes the message.
    Framing,
    Host,
    Expect,
    RequestId,
    Traceparent,
    /// By such a field a proxy in front tells who the client is; so are ours. Believed from trusted peers only.
    Claim,
    ForwardedFor,
    ForwardedProto,
    ForwardedHost,
}

impl Kind {
    /// What is not `known` is told by its length, which leaves one or two names to compare with. A name with `_` where
    /// one of these has `-` is cut like a field of one connection: servers that put fields into variables, as CGI does,
    /// would take it for the same.
    #[inline]
    fn of(known: Known, name: &[u8]) -> Self {
        match known {
            Known::Other => {}
            Known::Trailer => return Self::Plain,
            Known::Host => return Self::Host,
            Known::Expect => return Self::Expect,
            Known::ContentLength | Known::TransferEncoding => return Self::Framing,
            Known::Connection
            | Known::KeepAlive
            | Known::ProxyAuthenticate
            | Known::ProxyConnection
            | Known::Te
            | Known::Upgrade => return Self::HopByHop,
        }
        match name.len() {
            9 if is_name(name, b"forwarded") => Self::Claim,
            9 if is_name(name, b"x-real-ip") => Self::Claim,
            11 if is_name(name, b"traceparent") => Self::Traceparent,
            12 if is_name(name, b"x-request-id") => Self::RequestId,
            15 if is_name(name, b"x-forwarded-for") => Self::ForwardedFor,
            16 if is_name(name, b"x-forwarded-host") => Self::ForwardedHost,
            17 if is_name(name, b"x-forwarded-proto") => Self::ForwardedProto,
            9.. if name.contains(&b'_') && passes_for_another(name) => Self::HopByHop,
            12.. if is_claim(name) => Self::Claim,
            _ => Self::Plain,
        }
    }
}

/// Whether a name is one of those that are looked at, if each `_` is read as `-`.
fn passes_for_another(name: &[u8]) -> bool {
    let mut room = [0; 32];
    // Those that are longer than the longest are claims by how they begin.
    let length = name.len().min(room.len());
    let respelled = &mut room[..length];
    for (to, from) in respelled.iter_mut().zip(name) {
        *to = if *from == b'_' { b'-' } else { *from };
    }
    let known = if length == name.len() { Known::of(respelled) } else { Known::Other };
    Kind::of(known, respelled) != Kind::Plain
}

/// Whether a name begins like those by which a proxy in front tells who the client is, or like our own.
fn is_claim(name: &[u8]) -> bool {
    matches!(name, [b'x' | b'X', b'-', ..])
        && (starts_with(name, b"x-forwarded-") || starts_with(name, b"x-sluicegate-"))
}

/// What was found so far among the fields of a request, for those that are added or completed at the end.
#[derive(Default)]
struct Kept<'f> {
    hops: Hops<'f>,
    proto: bool,
    host: bool,
    traceparent: bool,
}

impl<'f> Kept<'f> {
    /// Whether a field is copied as it is; takes a note of it where something is added for want of it.
    fn passes(&mut self, kind: Kind, value: &'f [u8], trusted_peer: bool) -> bool {
        match kind {
            Kind::Plain => true,
            // The host is the one that was asked for; a trusted peer's id was adopted if it was acceptable; whether the
            // upstream is asked to say `100 Continue` is not the client's to decide.
            Kind::HopByHop | Kind::Framing | Kind::Host | Kind::RequestId | Kind::Expect => false,
            Kind::Claim => trusted_peer,
            Kind::ForwardedFor => {
                if trusted_peer {
                    self.hops.add(value);
                }
                false
            }
            Kind::ForwardedProto => {
                self.proto |= trusted_peer;
                trusted_peer
            }
            Kind::ForwardedHost => {
                self.host |= trusted_peer;
                trusted_peer
            }
            Kind::Traceparent => {
                let is_first = !self.traceparent && is_traceparent(value);
                self.traceparent |= is_first;
                is_first
            }
        }
    }
}

/// The lists of hops that a trusted peer sent: nearly always one.
#[derive(Default)]
struct Hops<'f> {
    first: Option<&'f [u8]>,
    /// Those after the first, each with a comma before it.
    others: Vec<&'f [u8]>,
}

impl<'f> Hops<'f> {
    fn add(&mut self, value: &'f [u8]) {
        if self.first.is_some() {
            self.others.extend([b", ", value]);
        } else if !value.is_empty() {
            self.first = Some(value);
        }
    }

    /// Writes them with `peer` as the last one.
    fn put(&self, peer: &[u8], sink: &mut impl Sink) {
        match self.first {
            None => sink.put(FORWARDED_FOR, peer),
            Some(first) if self.others.is_empty() => sink.put_joined(FORWARDED_FOR, &[first, b", ", peer]),
            Some(first) => {
                let parts = [&[first], self.others.as_slice(), &[b", ", peer]].concat();
                sink.put_joined(FORWARDED_FOR, &parts);
            }
        }
    }
}

const FORWARDED_FOR: &[u8] = b"x-forwarded-for";

fn add_forwarding(facts: &Forwarding<'_>, kept: &Kept<'_>, sink: &mut impl Sink) {
    kept.hops.put(facts.peer, sink);
    if !kept.proto {
        sink.put(b"x-forwarded-proto", facts.scheme);
    }
    if !kept.host {
        sink.put(b"x-forwarded-host", facts.authority);
    }
    sink.put(b"x-request-id", facts.request_id);
    if !kept.traceparent {
        sink.put(b"traceparent", facts.new_traceparent);
    }
    sink.put(b"via", facts.via);
}

fn add_upgrade(upgrade: Option<&[u8]>, sink: &mut impl Sink) {
    if let Some(protocols) = upgrade {
        sink.put(b"connection", b"upgrade");
        sink.put(b"upgrade", protocols);
    }
}

/// The names that the `Connection` fields nominate and that would pass if they did not.
struct Nominated<'f> {
    names: Vec<&'f [u8]>,
}

impl<'f> Nominated<'f> {
    fn of(fields: &'f impl Fields) -> Self {
        Self { names: fields.nominated().filter(|option| is_nomination(option)).collect() }
    }

    #[inline]
    fn contains(&self, name: &[u8]) -> bool {
        !self.names.is_empty() && self.names.iter().any(|nominated| name.eq_ignore_ascii_case(nominated))
    }
}

/// Whether a nominated name has to be kept: some fields are cut anyway, and some never are.
fn is_nomination(name: &[u8]) -> bool {
    let known = Known::of(name);
    !known.is_hop_by_hop()
        && !matches!(known, Known::ContentLength | Known::Host)
        && !NEVER_NOMINATED.iter().any(|never| name.eq_ignore_ascii_case(never))
}

#[inline]
fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    struct Lines(&'static [(&'static str, &'static str)]);

    impl Fields for Lines {
        fn copy<'f>(&'f self, sink: &mut impl Sink, mut keep: impl FnMut(Known, &'f [u8], &'f [u8]) -> bool) {
            for (name, value) in self.0 {
                let (name, value) = (name.as_bytes(), value.as_bytes());
                if keep(Known::of(name), name, value) {
                    sink.put(name, value);
                }
            }
        }

        fn nominated(&self) -> impl Iterator<Item = &[u8]> {
            options(self.0.iter().copied())
        }
    }

    impl Fields for Vec<(String, String)> {
        fn copy<'f>(&'f self, sink: &mut impl Sink, mut keep: impl FnMut(Known, &'f [u8], &'f [u8]) -> bool) {
            // As HTTP/1 does: plain lines as they stand, and neighbours together.
            let mut run = String::new();
            for (name, value) in self {
                if keep(Known::of(name.as_bytes()), name.as_bytes(), value.as_bytes()) {
                    let _ = write!(run, "{name}: {value}\r\n");
                }
            }
            sink.put_piece(Piece::Lines(run.as_bytes()));
        }

        fn nominated(&self) -> impl Iterator<Item = &[u8]> {
            options(self.iter().map(|(name, value)| (name.as_str(), value.as_str())))
        }
    }

    fn options<'l>(lines: impl Iterator<Item = (&'l str, &'l str)>) -> impl Iterator<Item = &'l [u8]> {
        let values = lines.filter(|(name, _)| name.eq_ignore_ascii_case("connection")).map(|(_, value)| value);
        let options = values.flat_map(|value| value.split(',').map(str::trim));
        options.map(str::as_bytes).filter(|option| {
            ![&b""[..], b"close", b"keep-alive", b"upgrade"].iter().any(|other| option.eq_ignore_ascii_case(other))
        })
    }

    #[derive(Default)]
    struct Written(Vec<(String, String)>);

    impl Sink for Written {
        fn put(&mut self, name: &[u8], value: &[u8]) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            self.0.push((text(name).to_ascii_lowercase(), text(value)));
        }

        fn has(&self, lower_name: &[u8]) -> bool {
            self.0.iter().any(|(name, _)| name.as_bytes() == lower_name)
        }
    }

    impl Written {
        fn all(&self, name: &str) -> Vec<&str> {
            self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
        }
    }

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn facts(trusted_peer: bool) -> Forwarding<'static> {
        Forwarding {
            peer: b"192.0.2.7",
            trusted_peer,
            scheme: b"http",
            authority: b"example.org",
            host: b"example.org",
            request_id: b"id-1",
            new_traceparent: TRACE.as_bytes(),
            via: b"1.1 sluicegate",
            upgrade: None,
            expects_continue: false,
        }
    }

    fn forwarded(lines: &'static [(&'static str, &'static str)], trusted_peer: bool) -> Written {
        let mut written = Written::default();
        forward_request(&Lines(lines), &facts(trusted_peer), &mut written);
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
    fn a_name_that_would_be_taken_for_another_with_hyphens_is_cut() {
        const LINES: &[(&str, &str)] = &[
            ("Host", "example.org"),
            ("X_Forwarded_For", "6.6.6.6"),
            ("x-forwarded_proto", "https"),
            ("X_Forwarded-Anything", "a"),
            ("X_Sluicegate_Replay_Of_A_Name_Longer_Than_Any", "a"),
            ("X_Real_IP", "6.6.6.6"),
            ("X_Request_Id", "theirs"),
            ("Content_Length", "3"),
            ("Transfer_Encoding", "chunked"),
            ("Keep_Alive", "5"),
            ("Proxy_Connection", "close"),
            ("X_Forwardedfor", "kept"),
            ("x_y", "kept"),
            ("_a_name_like_no_other_that_is_looked_at_and_long", "kept"),
        ];
        for trusted_peer in [false, true] {
            let written = forwarded(LINES, trusted_peer);
            let underscored: Vec<_> = written.0.iter().filter(|(name, _)| name.contains('_')).collect();
            assert!(underscored.iter().all(|(_, value)| value == "kept"), "{underscored:?}");
            assert_eq!(underscored.len(), 3);
        }
    }

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
        for gone in [
            "connection",
            "x-secret",
            "keep-alive",
            "te",
            "upgrade",
            "transfer-encoding",
            "content-length",
            "proxy-connection",
        ] {
            assert!(written.all(gone).is_empty(), "{gone}");
        }
        assert_eq!(written.all("host"), ["example.org"]);
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
        let other = "00-33333333333333333333333333333333-4444444444444444-01";
        let several = [("traceparent", "junk"), ("traceparent", own), ("traceparent", ""), ("Traceparent", other)];
        let several = several.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut written = Written::default();
        forward_request(&several, &facts(false), &mut written);
        assert_eq!(written.all("traceparent"), [own], "the first valid one");
    }

    #[test]
    fn an_upgrade_is_offered_only_where_it_was_asked_for() {
        let lines =
            Lines(&[("Connection", "Upgrade, close"), ("Upgrade", "websocket, h2c"), ("Sec-WebSocket-Key", "k")]);
        let mut written = Written::default();
        forward_request(&lines, &Forwarding { upgrade: Some(b"websocket"), ..facts(false) }, &mut written);
        assert_eq!(written.all("connection"), ["upgrade"]);
        assert_eq!(written.all("upgrade"), ["websocket"]);
        assert_eq!(written.all("sec-websocket-key"), ["k"]);
        let mut written = Written::default();
        forward_request(&lines, &facts(false), &mut written);
        assert!(!written.has(b"connection") && !written.has(b"upgrade"));
    }

    #[test]
    fn what_a_message_is_cannot_be_nominated() {
        let kept = ["content-type", "content-encoding", "authorization", "cookie"];
        let mut lines = vec![("Connection".to_owned(), format!("{}, x-a", kept.join(", ")))];
        lines.extend(["x-a"].iter().chain(&kept).map(|name| ((*name).to_owned(), "1".to_owned())));
        let mut written = Written::default();
        let _ = forward_response(&lines, None, &mut written);
        assert!(written.0.iter().map(|(name, _)| name.as_str()).eq(kept));
    }

    #[test]
    fn options_of_the_connection_are_no_names_of_fields() {
        let lines = Lines(&[("Connection", "Close, close"), ("Close", "1")]);
        let mut written = Written::default();
        let _ = forward_response(&lines, None, &mut written);
        assert_eq!(written.all("close"), ["1"]);
    }

    #[test]
    fn expect_is_ours_and_never_the_clients() {
        let lines = Lines(&[("Expect", "100-continue"), ("expect", "x")]);
        for (expects_continue, expected) in [(true, &["100-continue"][..]), (false, &[])] {
            let mut written = Written::default();
            forward_request(&lines, &Forwarding { expects_continue, ..facts(true) }, &mut written);
            assert_eq!(written.all("expect"), expected);
        }
    }

    #[test]
    fn the_framing_is_left_to_others_and_a_trailer_field_passes() {
        let lines = Lines(&[
            ("Content-Length", "3"),
            ("TRANSFER-ENCODING", "chunked"),
            ("Trailer", "x-sum"),
            ("Content-Type", "a"),
        ]);
        let mut written = Written::default();
        forward_request(&lines, &facts(false), &mut written);
        let _ = forward_response(&lines, None, &mut written);
        assert!(!written.has(b"content-length") && !written.has(b"transfer-encoding"));
        assert_eq!(written.all("trailer"), ["x-sum", "x-sum"]);
        assert_eq!(written.all("content-type"), ["a", "a"]);
    }

    #[test]
    fn every_nomination_counts_on_whichever_line_it_is() {
        let names: Vec<_> = (0..35).map(|nth| format!("n{nth}")).collect();
        let (one, two) = names.split_at(10);
        let mut lines = vec![("connection".to_owned(), one.join(",")), ("connection".to_owned(), two.join(","))];
        lines.extend(names.iter().map(|name| (name.clone(), "1".to_owned())));
        let mut written = Written::default();
        let _ = forward_response(&lines, None, &mut written);
        assert_eq!(written.0, []);
    }

    #[test]
    fn a_response_says_whether_its_date_passed() {
        for (lines, date) in [
            (&[("Date", "now")][..], true),
            (&[("DATE", "now"), ("Connection", "close")], true),
            (&[("Date", "now"), ("Connection", "date")], false),
            (&[("Dote", "now"), ("x-date", "now")], false),
        ] {
            let mut written = Written::default();
            assert_eq!(forward_response(&Lines(lines), None, &mut written), Passed { date }, "{lines:?}");
            assert_eq!(written.has(b"date"), date);
        }
    }

    #[test]
    fn a_response_that_switches_protocols_says_to_which() {
        let lines = Lines(&[("Connection", "Upgrade"), ("Upgrade", "WebSocket"), ("Sec-WebSocket-Accept", "k")]);
        let mut written = Written::default();
        let _ = forward_response(&lines, Some(b"WebSocket"), &mut written);
        let fields: Vec<_> = written.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(fields, [("sec-websocket-accept", "k"), ("connection", "upgrade"), ("upgrade", "WebSocket")]);
    }

    #[test]
    fn a_response_loses_its_hop_by_hop_fields_only() {
        let mut written = Written::default();
        let lines = Lines(&[("Connection", "x-hop"), ("X-Hop", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]);
        let passed = forward_response(&lines, None, &mut written);
        assert!(!passed.date);
        assert_eq!(written.all("set-cookie"), ["a=1", "b=2"]);
        assert_eq!(written.0.len(), 2);
    }

    /// All names that mean something, and some that do not.
    const NAMES: &[&str] = &[
        "te",
        "host",
        "date",
        "expect",
        "upgrade",
        "trailer",
        "forwarded",
        "x-real-ip",
        "connection",
        "connection",
        "keep-alive",
        "traceparent",
        "x-request-id",
        "content-type",
        "content-encoding",
        "content-length",
        "x-forwarded-for",
        "proxy-connection",
        "x-forwarded-host",
        "transfer-encoding",
        "x-forwarded-proto",
        "proxy-authenticate",
        "x-forwarded-ssl",
        "x-forwarded-",
        "x-sluicegate-a",
        "x-sluicegate",
        "authorization",
        "cookie",
        "accept",
        "x-a",
    ];

    const VALUES: &[&str] = &[
        "",
        "close",
        "Keep-Alive, X-A",
        " x-forwarded-for ,x-forwarded-PROTO",
        "te, upgrade, content-length,, host",
        "accept, authorization, content-type, date",
        "cookie, content-encoding, x-forwarded-host",
        "traceparent",
        "00-11111111111111111111111111111111-2222222222222222-00",
        "00-33333333333333333333333333333333-4444444444444444-01",
        "00-33333333333333333333333333333333-0000000000000000-01",
        "192.0.2.1, 192.0.2.2",
    ];

    /// Names in any case, and names that differ from a known one by a letter.
    fn line() -> impl Strategy<Value = (String, String)> {
        let name = (select(NAMES), any::<u32>(), 0_u8..4, any::<prop::sample::Index>()).prop_map(
            |(name, cases, change, at)| {
                let cased =
                    |(nth, byte): (usize, u8)| if cases >> nth & 1 == 1 { byte.to_ascii_uppercase() } else { byte };
                let mut name: Vec<u8> = name.bytes().enumerate().map(cased).collect();
                let at = at.index(name.len());
                match change {
                    0 => name[at] = b"az-Q_"[at % 5],
                    1 => name.truncate(at.max(1)),
                    _ => {}
                }
                String::from_utf8(name).unwrap()
            },
        );
        (name, select(VALUES).prop_map(str::to_owned))
    }

    /// What is cut because `Connection` says so, said another way.
    fn nominated_in(lines: &[(String, String)]) -> Vec<String> {
        let spared = "|close|keep-alive|host|content-length|content-type|content-encoding|authorization|cookie|";
        let options = lines.iter().filter(|(name, _)| name.to_lowercase() == "connection");
        let options = options.flat_map(|(_, value)| value.split(',').map(|option| option.trim().to_lowercase()));
        options.filter(|option| !spared.contains(&format!("|{option}|"))).collect()
    }

    fn is_cut_everywhere(name: &str, nominated: &[String]) -> bool {
        let hops =
            "|connection|keep-alive|proxy-connection|te|upgrade|proxy-authenticate|transfer-encoding|content-length|";
        hops.contains(&format!("|{name}|")) || nominated.iter().any(|other| other == name)
    }

    fn request_said_another_way(lines: &[(String, String)], facts: &Forwarding<'_>) -> Vec<(String, String)> {
        let nominated = nominated_in(lines);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let all: Vec<(String, String)> =
            lines.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
        let is_claim = |name: &str| {
            name == "forwarded"
                || name == "x-real-ip"
                || name.starts_with("x-forwarded-")
                || name.starts_with("x-sluicegate-")
        };
        let is_dropped =
            |name: &str| ["host", "expect", "x-request-id", "x-forwarded-for", "traceparent"].contains(&name);
        let is_looked_at = |name: &str| is_cut_everywhere(name, &[]) || is_claim(name) || is_dropped(name);
        let passes_for_another = |name: &str| name.contains('_') && is_looked_at(&name.replace('_', "-"));
        let is_cut = |name: &str| is_cut_everywhere(name, &nominated) || passes_for_another(name);
        let left: Vec<_> = all.into_iter().filter(|(name, _)| !is_cut(name)).collect();
        let copied = |name: &str| !is_dropped(name) && (facts.trusted_peer || !is_claim(name));
        let trace = left.iter().position(|(name, value)| name == "traceparent" && is_traceparent(value.as_bytes()));
        let mut out = vec![("host".to_owned(), text(facts.authority))];
        for (nth, field) in left.iter().enumerate() {
            if copied(&field.0) || trace == Some(nth) {
                out.push(field.clone());
            }
        }
        let mut hops: Vec<&str> = Vec::new();
        if facts.trusted_peer {
            hops.extend(left.iter().filter(|(name, _)| name == "x-forwarded-for").map(|(_, value)| value.as_str()));
        }
        let peer = text(facts.peer);
        let mut hops: Vec<&str> = hops.into_iter().skip_while(|hop| hop.is_empty()).collect();
        hops.push(&peer);
        out.push(("x-forwarded-for".to_owned(), hops.join(", ")));
        for (name, value) in [("x-forwarded-proto", facts.scheme), ("x-forwarded-host", facts.authority)] {
            if !out.iter().any(|(known, _)| known == name) {
                out.push((name.to_owned(), text(value)));
            }
        }
        out.push(("x-request-id".to_owned(), text(facts.request_id)));
        if trace.is_none() {
            out.push(("traceparent".to_owned(), text(facts.new_traceparent)));
        }
        out.push(("via".to_owned(), text(facts.via)));
        if let Some(protocols) = facts.upgrade {
            out.extend([("connection".to_owned(), "upgrade".to_owned()), ("upgrade".to_owned(), text(protocols))]);
        }
        if facts.expects_continue {
            out.push(("expect".to_owned(), "100-continue".to_owned()));
        }
        out
    }

    proptest! {
        #[test]
        fn requests_agree_with_the_rules_said_another_way(
            lines in vec(line(), 0..12),
            trusted_peer: bool,
            upgrades: bool,
            expects_continue: bool,
        ) {
            let upgrade = upgrades.then_some(&b"websocket"[..]);
            let facts = Forwarding { upgrade, expects_continue, ..facts(trusted_peer) };
            let mut written = Written::default();
            forward_request(&lines, &facts, &mut written);
            prop_assert_eq!(written.0, request_said_another_way(&lines, &facts));
        }

        #[test]
        fn responses_agree_with_the_rules_said_another_way(lines in vec(line(), 0..12)) {
            let nominated = nominated_in(&lines);
            let all = lines.iter().map(|(name, value)| (name.to_lowercase(), value.clone()));
            let expected: Vec<_> = all.filter(|(name, _)| !is_cut_everywhere(name, &nominated)).collect();
            let mut written = Written::default();
            let passed = forward_response(&lines, None, &mut written);
            prop_assert_eq!(passed.date, expected.iter().any(|(name, _)| name == "date"));
            prop_assert_eq!(written.0, expected);
        }
    }
}
