//! The rules of fields, by examples and said another way.

use std::fmt::Write as _;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

struct Given(&'static [(&'static str, &'static str)]);

impl Fields for Given {
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
        new_traceparent: Some(TRACE.as_bytes()),
        via: b"1.1 sluicegate",
        also: Also::Nothing,
        named: None,
        upgrade: None,
        max_forwards: None,
        expects_continue: false,
    }
}

fn forwarded(lines: &'static [(&'static str, &'static str)], trusted_peer: bool) -> Written {
    let mut written = Written::default();
    forward_request(&Given(lines), &facts(trusted_peer), &mut written);
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
        let line = ("traceparent".to_owned(), bad.to_owned());
        let mut written = Written::default();
        forward_request(&vec![line], &facts(false), &mut written);
        assert_eq!(written.all("traceparent"), [TRACE], "{bad}");
    }
    assert_eq!(forwarded(&[("traceparent", "junk")], false).all("traceparent"), [TRACE]);
    let other = "00-33333333333333333333333333333333-4444444444444444-01";
    let several = [("traceparent", "junk"), ("traceparent", own), ("traceparent", ""), ("Traceparent", other)];
    let several = several.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let mut written = Written::default();
    forward_request(&several, &facts(false), &mut written);
    assert_eq!(written.all("traceparent"), [TRACE], "of several none is believed");
    let trace = |values: &[&'static str]| trace_of(values.iter().map(|value| value.as_bytes()));
    assert_eq!(trace(&[own]), Some(&b"11111111111111111111111111111111"[..]), "logs go by the same");
    assert_eq!((trace(&[own, own]), trace(&["junk", own]), trace(&[])), (None, None, None));
}

const OWN_TRACE: (&str, &str) = ("traceparent", "00-11111111111111111111111111111111-2222222222222222-00");

fn states(lines: &[&str], trace: (&str, &str)) -> Vec<String> {
    let mut given: Vec<_> = lines.iter().map(|line| ("TraceState".to_owned(), (*line).to_owned())).collect();
    given.push((trace.0.to_owned(), trace.1.to_owned()));
    let mut written = Written::default();
    forward_request(&given, &facts(false), &mut written);
    written.all("tracestate").into_iter().map(str::to_owned).collect()
}

#[test]
fn the_state_of_a_trace_goes_on_with_the_trace_and_only_with_it() {
    let passed = |lines: &[&str]| states(lines, OWN_TRACE);
    assert_eq!(passed(&["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"]), ["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"]);
    assert_eq!(passed(&["", "a=1", "b=2 x , 1t@v=3"]), ["a=1, b=2 x , 1t@v=3"], "lines are one list");
    assert_eq!(passed(&["a=1,,b=2,"]), ["a=1,,b=2,"], "elements may be empty");
    assert_eq!(states(&["a=1"], ("traceparent", "junk")), [""; 0], "the trace starts here");
    assert_eq!(states(&["a=1"], ("x-a", "1")), [""; 0]);
    let long = ["k".repeat(256), "v".repeat(256)].join("=");
    assert_eq!(passed(&[&long]), [long.as_str()]);
    let members = |count: usize| (0..count).map(|nth| format!("k{nth}=v")).collect::<Vec<_>>().join(",");
    assert_eq!(passed(&[&members(32)]).len(), 1);
    for bad in [
        "a",
        "=1",
        "a=",
        "a= ",
        "A=1",
        "1a=1",
        "a=1=2",
        "a=1,b",
        "a=1,a=2",
        "a@=1",
        "@a=1",
        "a@1=1",
        "a b=1",
        "a=\u{e9}",
        &format!("{}=v", "k".repeat(257)),
        &format!("k={}", "v".repeat(257)),
        &members(33),
    ] {
        assert_eq!(passed(&[bad]), [""; 0], "{bad}");
    }
    let fat = |count: usize| (0..count).map(|nth| format!("k{nth:02}={}", "v".repeat(250))).collect::<Vec<_>>();
    let (fits, too_much) = (fat(16), fat(17));
    assert_eq!(passed(&fits.iter().map(String::as_str).collect::<Vec<_>>()).len(), 1);
    assert_eq!(passed(&too_much.iter().map(String::as_str).collect::<Vec<_>>()), [""; 0]);
}

fn also(lines: &'static [(&'static str, &'static str)], facts: &Forwarding<'_>) -> Written {
    let mut written = Written::default();
    forward_request(&Given(lines), facts, &mut written);
    written
}

#[test]
fn forwarded_gets_an_element_of_our_peer_behind_those_of_a_trusted_one() {
    let facts = |trusted_peer| Forwarding { also: Also::Forwarded, ..facts(trusted_peer) };
    let own = "for=192.0.2.7;host=\"example.org\";proto=http";
    assert_eq!(also(CLAIMS, &facts(false)).all("forwarded"), [own]);
    assert_eq!(also(CLAIMS, &facts(true)).all("forwarded"), [format!("for=1.2.3.4, {own}")]);
    let two = &[("Forwarded", "for=a"), ("forwarded", ""), ("FORWARDED", "for=b")];
    assert_eq!(also(two, &facts(true)).all("forwarded"), [format!("for=a, , for=b, {own}")]);
    assert_eq!(also(CLAIMS, &facts(true)).all("x-real-ip"), ["1.2.3.4"]);
    let half = &[("Forwarded", "for=a"), ("Forwarded", "for=\"b")];
    assert_eq!(also(half, &facts(true)).all("forwarded"), [own], "an open quote would swallow ours");
    let six = Forwarding { peer: b"2001:db8::7", authority: b"[::1]:80", scheme: b"https", ..facts(false) };
    assert_eq!(also(&[], &six).all("forwarded"), ["for=\"[2001:db8::7]\";host=\"[::1]:80\";proto=https"]);
    let odd = Forwarding { authority: b"a\"b", ..facts(false) };
    assert_eq!(also(&[], &odd).all("forwarded"), ["for=192.0.2.7;proto=http"]);
}

#[test]
fn the_real_ip_is_the_clients_whatever_was_said_before() {
    let facts = |trusted_peer| Forwarding { also: Also::RealIp(b"198.51.100.9"), ..facts(trusted_peer) };
    for trusted_peer in [false, true] {
        assert_eq!(also(CLAIMS, &facts(trusted_peer)).all("x-real-ip"), ["198.51.100.9"]);
    }
    assert_eq!(also(CLAIMS, &facts(true)).all("forwarded"), ["for=1.2.3.4"]);
}

#[test]
fn an_upgrade_is_offered_only_where_it_was_asked_for() {
    let lines = Given(&[("Connection", "Upgrade, close"), ("Upgrade", "websocket, h2c"), ("Sec-WebSocket-Key", "k")]);
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
    let lines = Given(&[("Connection", "Close, close"), ("Close", "1")]);
    let mut written = Written::default();
    let _ = forward_response(&lines, None, &mut written);
    assert_eq!(written.all("close"), ["1"]);
}

#[test]
fn expect_is_ours_and_never_the_clients() {
    let lines = Given(&[("Expect", "100-continue"), ("expect", "x")]);
    for (expects_continue, expected) in [(true, &["100-continue"][..]), (false, &[])] {
        let mut written = Written::default();
        forward_request(&lines, &Forwarding { expects_continue, ..facts(true) }, &mut written);
        assert_eq!(written.all("expect"), expected);
    }
}

#[test]
fn the_framing_is_left_to_others_and_a_trailer_field_passes() {
    let lines = Given(&[
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
        assert_eq!(forward_response(&Given(lines), None, &mut written), Passed { date }, "{lines:?}");
        assert_eq!(written.has(b"date"), date);
    }
}

#[test]
fn a_response_that_switches_protocols_says_to_which() {
    let lines = Given(&[("Connection", "Upgrade"), ("Upgrade", "WebSocket"), ("Sec-WebSocket-Accept", "k")]);
    let mut written = Written::default();
    let _ = forward_response(&lines, Some(b"WebSocket"), &mut written);
    let fields: Vec<_> = written.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(fields, [("sec-websocket-accept", "k"), ("connection", "upgrade"), ("upgrade", "WebSocket")]);
}

#[test]
fn a_response_loses_its_hop_by_hop_fields_only() {
    let mut written = Written::default();
    let lines = Given(&[("Connection", "x-hop"), ("X-Hop", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]);
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
    "tracestate",
    "tracestate",
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
    "for=192.0.2.1",
    "vendor=a, t@v=b",
    "other=c",
    "no state",
];

/// Names in any case, and names that differ from a known one by a letter.
fn line() -> impl Strategy<Value = (String, String)> {
    let name =
        (select(NAMES), any::<u32>(), 0_u8..4, any::<prop::sample::Index>()).prop_map(|(name, cases, change, at)| {
            let cased = |(nth, byte): (usize, u8)| if cases >> nth & 1 == 1 { byte.to_ascii_uppercase() } else { byte };
            let mut name: Vec<u8> = name.bytes().enumerate().map(cased).collect();
            let at = at.index(name.len());
            match change {
                0 => name[at] = b"az-Q_"[at % 5],
                1 => name.truncate(at.max(1)),
                _ => {}
            }
            String::from_utf8(name).unwrap()
        });
    (name, select(VALUES).prop_map(str::to_owned))
}

/// The fields that are cut because `Connection` says so, found another way.
fn nominated_in(lines: &[(String, String)]) -> Vec<String> {
    let spared = "|close|keep-alive|host|content-length|content-type|content-encoding|authorization|cookie|";
    let options = lines.iter().filter(|(name, _)| name.to_lowercase() == "connection");
    let options = options.flat_map(|(_, value)| value.split(',').map(|option| option.trim().to_lowercase()));
    let is_forwarding = |option: &str| {
        ["forwarded", "x-real-ip"].contains(&option)
            || option.starts_with("x-forwarded-")
            || option.starts_with("x-sluicegate-")
    };
    options.filter(|option| !spared.contains(&format!("|{option}|")) && !is_forwarding(option)).collect()
}

fn is_cut_everywhere(name: &str, nominated: &[String]) -> bool {
    let hops =
        "|connection|keep-alive|proxy-connection|te|upgrade|proxy-authenticate|transfer-encoding|content-length|";
    hops.contains(&format!("|{name}|")) || nominated.iter().any(|other| other == name)
}

fn request_said_another_way(lines: &[(String, String)], facts: &Forwarding<'_>) -> Vec<(String, String)> {
    let nominated = nominated_in(lines);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let all: Vec<(String, String)> = lines.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
    let is_claim = |name: &str| {
        ["forwarded", "x-real-ip"].contains(&name)
            || name.starts_with("x-forwarded-")
            || name.starts_with("x-sluicegate-")
    };
    let is_told = |name: &str| match facts.also {
        Also::Nothing => false,
        Also::Forwarded => name == "forwarded",
        Also::RealIp(_) => name == "x-real-ip",
    };
    let is_dropped = |name: &str| {
        let always = ["host", "expect", "x-request-id", "x-forwarded-for", "traceparent", "tracestate"];
        always.contains(&name) || is_told(name)
    };
    let is_looked_at = |name: &str| is_cut_everywhere(name, &[]) || is_claim(name) || is_dropped(name);
    let passes_for_another = |name: &str| name.contains('_') && is_looked_at(&name.replace('_', "-"));
    let is_cut = |name: &str| is_cut_everywhere(name, &nominated) || passes_for_another(name);
    let left: Vec<_> = all.into_iter().filter(|(name, _)| !is_cut(name)).collect();
    let copied = |name: &str| !is_dropped(name) && (facts.trusted_peer || !is_claim(name));
    let mut traces = left.iter().filter(|(name, _)| name == "traceparent").map(|(_, value)| value.as_str());
    let good = [
        "00-11111111111111111111111111111111-2222222222222222-00",
        "00-33333333333333333333333333333333-4444444444444444-01",
    ];
    let trace = match (traces.next(), traces.next()) {
        (Some(trace), None) if good.contains(&trace) => Some(trace),
        _ => None,
    };
    let mut out = vec![("host".to_owned(), text(facts.authority))];
    for field in &left {
        if copied(&field.0) {
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
    let list = |wanted: &str| {
        let values = left.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        values.skip_while(|value| value.is_empty()).collect::<Vec<_>>()
    };
    match facts.also {
        Also::Nothing => {}
        Also::Forwarded => {
            let is_list = |value: &&str| ["", "for=192.0.2.1", "other=c"].contains(value);
            let mut all = if facts.trusted_peer { list("forwarded") } else { Vec::new() };
            if !all.iter().all(is_list) {
                all.clear();
            }
            let own = format!("for={peer};host=\"{}\";proto={}", text(facts.authority), text(facts.scheme));
            all.push(&own);
            out.push(("forwarded".to_owned(), all.join(", ")));
        }
        Also::RealIp(client) => out.push(("x-real-ip".to_owned(), text(client))),
    }
    out.push(("x-request-id".to_owned(), text(facts.request_id)));
    let made = || facts.new_traceparent.map(text);
    out.extend(trace.map(str::to_owned).or_else(made).map(|trace| ("traceparent".to_owned(), trace)));
    let states = list("tracestate").join(", ");
    let members: Vec<_> = states.split(',').map(str::trim).filter(|member| !member.is_empty()).collect();
    // Those of `VALUES` that are members of a list: an element of `Forwarded` looks like one too.
    let known = ["vendor=a", "t@v=b", "other=c", "for=192.0.2.1"];
    let each_once = members.iter().enumerate().all(|(nth, member)| !members[..nth].contains(member));
    if trace.is_some() && !members.is_empty() && each_once && members.iter().all(|member| known.contains(member)) {
        out.push(("tracestate".to_owned(), states));
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
        also in select(vec![Also::Nothing, Also::Forwarded, Also::RealIp(b"198.51.100.9")]),
    ) {
        let upgrade = upgrades.then_some(&b"websocket"[..]);
        let facts = Forwarding { also, upgrade, expects_continue, ..facts(trusted_peer) };
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
