//! Listeners that Envoy's rate limit filter asks: `decides = "envoy-rls"`. `make envoy` has Envoy itself in front.

use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::calling::{call_at, field, fields, framed, message_of, sole};
use crate::h2::peer::{self, Whole};
use crate::support::{FRAME, Gateway, Store, eventually};

const CALL: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const LIMITS: &str = "[[limit]]\nname = \"per-client\"\nkey = \"descriptor:remote_address\"\nrate = \"3/1h\"\n\
                      [[route]]\nname = \"login\"\ndomain = \"edge\"\nlimits = [\"per-client\"]\n\
                      descriptors = { generic_key = \"login\", remote_address = \"*\" }\n";

fn gateway(sections: &str) -> (Gateway, SocketAddr) {
    let gateway = Gateway::start(&format!("[[listener]]\naddress = \"[::1]:0\"\ndecides = \"envoy-rls\"\n{sections}"));
    let asked = gateway.addresses[1];
    (gateway, asked)
}

fn number(tag: u8, mut value: u64) -> Vec<u8> {
    let mut bytes = vec![tag << 3];
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn descriptor(entries: &[(&str, &[u8])], hits: Option<u64>) -> Vec<u8> {
    let entries = entries.iter().map(|(name, value)| field(1, [field(1, name), field(2, value)].concat()));
    let own = hits.map(|hits| field(3, number(1, hits))).unwrap_or_default();
    [entries.collect::<Vec<_>>().concat(), own].concat()
}

fn login(client: &str) -> Vec<u8> {
    descriptor(&[("generic_key", b"login"), ("remote_address", client.as_bytes())], None)
}

fn call(domain: &str, hits: u64, descriptors: &[Vec<u8>]) -> Vec<u8> {
    let descriptors = descriptors.iter().map(|one| field(2, one)).collect::<Vec<_>>();
    [field(1, domain), descriptors.concat(), number(3, hits)].concat()
}

fn ask(asked: SocketAddr, messages: &[Vec<u8>]) -> Vec<Whole> {
    peer::run(async {
        let sender = peer::connect(asked).await;
        let mut answers = Vec::new();
        for message in messages {
            answers.push(call_at(&sender, CALL, framed(message)).await);
        }
        answers
    })
}

/// A status of an answer.
#[derive(Debug, Default, PartialEq)]
struct Status {
    code: u64,
    /// Requests, unit and name.
    limit: Option<(u64, u64, String)>,
    remaining: u64,
    has_reset: bool,
}

/// An answer as Envoy takes it: the overall code, the statuses, the fields.
fn told(answer: &Whole) -> (u64, Vec<Status>, Vec<(String, String)>) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let count = |message: &[u8], tag| sole(message, tag).map_or(0, |bytes| text(bytes).parse().unwrap());
    let all = fields(message_of(answer));
    let of = |tag| all.iter().filter(move |(own, _)| *own == tag).map(|(_, value)| value);
    let status = |message: &Vec<u8>| Status {
        code: count(message, 1),
        limit: sole(message, 2).map(|limit| (count(&limit, 1), count(&limit, 2), text(sole(&limit, 3).unwrap()))),
        remaining: count(message, 3),
        has_reset: sole(message, 4).is_some(),
    };
    let header = |field: &Vec<u8>| (text(sole(field, 1).unwrap()), text(sole(field, 2).unwrap()));
    (count(message_of(answer), 1), of(2).map(status).collect(), of(3).map(header).collect())
}

fn codes(answer: &Whole) -> Vec<u64> {
    told(answer).1.iter().map(|status| status.code).collect()
}

fn outcomes(gateway: &Gateway, outcome: &str) -> u64 {
    let labels = ["kind=\"envoy-rls\"", &format!("outcome=\"{outcome}\"")];
    gateway.metric("sluicegate_decisions_asked_total", &labels) as u64
}

#[test]
fn each_descriptor_is_decided_for_itself_and_has_its_status() {
    let (gateway, asked) = gateway(&format!(
        "{LIMITS}[[limit]]\nname = \"all\"\nkey = \"global\"\nrate = \"5/1m\"\n\
         [[route]]\nname = \"all\"\ndomain = \"edge\"\ndescriptors = {{ generic_key = \"all\" }}\nlimits = [\"all\"]\n\
         [log]\naccess = \"json\"\n[dead_letter]\n"
    ));
    let all = descriptor(&[("generic_key", b"all")], None);
    let other = descriptor(&[("generic_key", b"other")], None);
    let one = call("edge", 0, &[login("192.0.2.7"), all, other]);
    let answers = ask(asked, &vec![one; 6]);
    for (place, answer) in answers.iter().enumerate() {
        let (over, statuses, headers) = told(answer);
        let expected = |most: usize| if place < most { 1 } else { 2 };
        assert_eq!(over, expected(3), "{place}");
        assert_eq!(codes(answer), [expected(3), expected(5), 1], "{place}");
        let left = 3_u64.saturating_sub(place as u64 + 1);
        assert_eq!((&statuses[0].limit, statuses[0].remaining), (&Some((3, 3, "per-client".to_owned())), left));
        let left = 5_u64.saturating_sub(place as u64 + 1);
        assert_eq!((&statuses[1].limit, statuses[1].remaining), (&Some((5, 2, "all".to_owned())), left));
        assert!(statuses[0].has_reset && statuses[1].has_reset);
        assert_eq!(statuses[2], Status { code: 1, ..Status::default() }, "no route is for it");
        let header = |name: &str| headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        assert_eq!(header("x-sluicegate-limit"), (place >= 3).then_some("per-client"));
        assert_eq!(header("retry-after").is_some(), place >= 3);
        assert!(header("ratelimit").unwrap().contains("per-client") && header("content-type").is_none());
    }
    assert_eq!(
        (outcomes(&gateway, "allowed"), outcomes(&gateway, "refused"), outcomes(&gateway, "undecided")),
        (8, 4, 6)
    );
    assert!(eventually(|| gateway.access_log().len() == 18), "one for each call too");
    let line = gateway.access_log().into_iter().find(|line| line["status"] == 429 && line["route"] == "login").unwrap();
    assert_eq!(
        (&line["method"], &line["target"], &line["client"], &line["asked_by"]),
        (
            &"DESCRIPTOR".into(),
            &"/edge?generic_key=login&remote_address=192.0.2.7".into(),
            &"192.0.2.7".into(),
            &"[::1]:0".into()
        )
    );
    assert!(eventually(|| gateway.dead_letters().iter().filter(|letter| letter["asked"] == true).count() == 4));
}

#[test]
fn exactly_its_entries_make_a_descriptor_the_routes_and_the_most_exact_route_takes_it() {
    let (gateway, asked) = gateway(&format!(
        "{LIMITS}[[limit]]\nname = \"root\"\nkey = \"route\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"root\"\ndomain = \"edge\"\nlimits = [\"root\"]\n\
         descriptors = {{ generic_key = \"login\", remote_address = \"192.0.2.66\" }}\n\
         [[route]]\nname = \"page\"\npath = \"/edge\"\nrespond = {{}}\n"
    ));
    for (domain, entries, limit) in [
        ("edge", &[("remote_address", &b"192.0.2.7"[..]), ("generic_key", b"login")][..], Some("per-client")),
        ("edge", &[("generic_key", b"login"), ("remote_address", b"192.0.2.66")], Some("root")),
        ("edge", &[("generic_key", b"login")], None),
        ("edge", &[("generic_key", b"login"), ("remote_address", b"192.0.2.7"), ("path", b"/")], None),
        ("edge", &[("generic_key", b"login"), ("generic_key", b"login"), ("remote_address", b"192.0.2.7")], None),
        ("edge", &[("generic_key", b"LOGIN"), ("remote_address", b"192.0.2.7")], None),
        ("other", &[("generic_key", b"login"), ("remote_address", b"192.0.2.7")], None),
        ("edge", &[], None),
    ] {
        let answer = ask(asked, &[call(domain, 0, &[descriptor(entries, None)])]).remove(0);
        let (over, statuses, _) = told(&answer);
        assert_eq!(over, 1);
        assert_eq!(statuses[0].limit.as_ref().map(|(.., name)| name.as_str()), limit, "{domain} {entries:?}");
    }
    // A request is never one, whatever it has in its target.
    let target = "/edge?generic_key=login&remote_address=192.0.2.7";
    let mut client = crate::support::Client::connect(gateway.address());
    assert!((0..5).all(|_| client.get(target).status == 200));
    assert_eq!(gateway.metric("sluicegate_limit_decisions_total", &["limit=\"per-client\""]) as u64, 1);
}

#[test]
fn clients_are_counted_by_their_addresses_and_other_values_as_they_are() {
    let (_gateway, asked) = gateway(&format!(
        "{LIMITS}[[limit]]\nname = \"per-value\"\nkey = [\"descriptor:a b\", \"descriptor:c\"]\nrate = \"1/1h\"\n\
         [[route]]\nname = \"value\"\ndomain = \"edge\"\nlimits = [\"per-value\"]\n\
         descriptors = {{ \"a b\" = \"*\", c = \"*\" }}\n[client]\ndeny = [\"192.0.2.66\"]\n"
    ));
    // An IPv6 client has a network of its own, and an IPv4 address two spellings.
    let same = ["2001:db8::1", "2001:db8::2:0:0:1", "2001:DB8:0:0:ffff::", "2001:db8::1"];
    let answers = ask(asked, &same.map(|client| call("edge", 0, &[login(client)])));
    assert_eq!(answers.iter().map(|answer| told(answer).0).collect::<Vec<_>>(), [1, 1, 1, 2]);
    let same = ["192.0.2.7", "::ffff:192.0.2.7", "192.0.2.7", "::ffff:c000:207"];
    let answers = ask(asked, &same.map(|client| call("edge", 0, &[login(client)])));
    assert_eq!(answers.iter().map(|answer| told(answer).0).collect::<Vec<_>>(), [1, 1, 1, 2]);
    for client in ["2001:db8:0:1::1", "192.0.2.8", "unknown", "0.0.0.0"] {
        let answers = ask(asked, &vec![call("edge", 0, &[login(client)]); 4]);
        assert_eq!(answers.iter().map(|answer| told(answer).0).collect::<Vec<_>>(), [1, 1, 1, 2], "{client}");
    }
    assert_eq!(told(&ask(asked, &[call("edge", 0, &[login("192.0.2.66")])])[0]).0, 2, "it is denied");
    let value = |a: &[u8], c: &[u8]| call("edge", 0, &[descriptor(&[("a b", a), ("c", c)], None)]);
    for (a, c) in [
        (&b"x"[..], &b"y"[..]),
        (b"x ", b"y"),
        (b"x+", b"y"),
        (b"X", b"y"),
        (b"x&c=y", b"y"),
        (b"%78", b"y"),
        (b"x", b"\xff"),
        (b"x", b"\xfe"),
        (b"x", b"y\0"),
        (b"y", b"x"),
        (b"\r\n", b"y"),
    ] {
        let answers = ask(asked, &[value(a, c), value(a, c)]);
        assert_eq!(answers.iter().map(|answer| told(answer).0).collect::<Vec<_>>(), [1, 2], "{a:?} {c:?}");
    }
}

#[test]
fn hits_are_the_cost_and_none_of_a_descriptor_is_a_peek() {
    let (gateway, asked) = gateway(&LIMITS.replace("3/1h", "10/1h"));
    let own = |hits| descriptor(&[("generic_key", b"login"), ("remote_address", b"192.0.2.7")], Some(hits));
    for (hits, descriptor, code, remaining) in [
        (0, login("192.0.2.7"), 1, 9),
        (3, login("192.0.2.7"), 1, 6),
        (3, own(0), 1, 6),
        (3, own(2), 1, 4),
        (5, login("192.0.2.7"), 2, 4),
        (1, own(u64::MAX), 2, 4),
        (u64::from(u32::MAX), login("192.0.2.7"), 2, 4),
        (4, login("192.0.2.7"), 1, 0),
        (9, own(0), 2, 0),
    ] {
        let (over, statuses, _) = told(&ask(asked, &[call("edge", hits, &[descriptor])])[0]);
        assert_eq!((over, statuses[0].remaining), (code, remaining), "{hits}");
    }
    // A limit of its own is ignored, and counted.
    let with_override = [login("192.0.2.8"), field(2, [number(1, 1_000), number(2, 1)].concat())].concat();
    let (_, statuses, _) = told(&ask(asked, &[call("edge", 0, &[with_override])])[0]);
    assert_eq!(statuses[0].limit, Some((10, 3, "per-client".to_owned())));
    assert_eq!(gateway.metric("sluicegate_descriptor_limits_ignored_total", &[]) as u64, 1);
}

#[test]
fn hits_that_were_spent_before_the_question_count_without_room_too() {
    let (_gateway, asked) =
        gateway(&LIMITS.replace("3/1h", "10/1h").replace("domain", "apply_on_stream_done = true\ndomain"));
    let own = |hits| descriptor(&[("generic_key", b"login"), ("remote_address", b"192.0.2.7")], Some(hits));
    for (hits, code, remaining) in [(0, 1, Some(10)), (7, 1, None), (0, 1, Some(3)), (9, 1, None), (0, 2, Some(0))] {
        let (over, statuses, _) = told(&ask(asked, &[call("edge", 0, &[own(hits)])])[0]);
        assert_eq!(over, code, "{hits}");
        assert_eq!(statuses[0].limit.as_ref().map(|_| statuses[0].remaining), remaining, "{hits}");
    }
    assert_eq!(told(&ask(asked, &[call("edge", 0, &[login("192.0.2.8")])])[0]).0, 1);
}

#[test]
fn over_the_limits_of_a_route_it_is_all_or_nothing() {
    let (_gateway, asked) = gateway(
        "[[limit]]\nname = \"small\"\nkey = \"descriptor:a\"\nrate = \"1/1h\"\n\
         [[limit]]\nname = \"large\"\nkey = \"global\"\nrate = \"4/1h\"\n\
         [[route]]\nname = \"both\"\ndomain = \"edge\"\ndescriptors = { a = \"*\" }\nlimits = [\"small\", \"large\"]\n\
         [[route]]\nname = \"large\"\ndomain = \"edge\"\ndescriptors = { b = \"*\" }\nlimits = [\"large\"]\n",
    );
    let a = |value: &[u8]| call("edge", 0, &[descriptor(&[("a", value)], None)]);
    let answers = ask(asked, &[a(b"x"), a(b"x"), a(b"x"), a(b"y")]);
    assert_eq!(answers.iter().map(|answer| told(answer).0).collect::<Vec<_>>(), [1, 2, 2, 1]);
    let (_, statuses, _) = told(&ask(asked, &[call("edge", 0, &[descriptor(&[("b", b"")], None)])])[0]);
    assert_eq!(statuses[0].remaining, 1, "what was refused took nothing of the other limit");
}

#[test]
fn calls_that_are_none_are_told_so_and_the_next_one_is_served() {
    let (gateway, asked) = gateway(LIMITS);
    let right = call("edge", 0, &[login("192.0.2.7")]);
    let many = call("edge", 0, &vec![login("192.0.2.7"); 257]);
    let huge = call("edge", 0, &[descriptor(&[("a", &vec![b'a'; 1 << 20])], None)]);
    peer::run(async {
        let sender = peer::connect(asked).await;
        for (path, body, status, text) in [
            (CALL, framed(&call("", 0, &[login("192.0.2.7")])), "3", "no domain"),
            (CALL, framed(&call("edge", 0, &[])), "3", "no descriptors"),
            (CALL, framed(&many), "3", "more than 256"),
            (CALL, framed(b"\xff\xff"), "3", "no RateLimitRequest"),
            (CALL, framed(&right)[..9].to_vec(), "3", "one whole message"),
            ("/envoy.service.auth.v3.Authorization/Check", framed(&right), "12", "ShouldRateLimit alone"),
        ] {
            let answer = call_at(&sender, path, body).await;
            let message = answer.header("grpc-message").unwrap_or_default();
            assert!(answer.header("grpc-status") == Some(status) && message.contains(text), "{text}: {answer:?}");
        }
        // By the size of what it writes nobody passes.
        assert_eq!(told(&call_at(&sender, CALL, framed(&huge)).await), (2, Vec::new(), Vec::new()));
        let long = "a".repeat(100_000);
        let answer = call_at(&sender, CALL, framed(&call("edge", 0, &[login(&long), login("192.0.2.7")]))).await;
        assert_eq!(codes(&answer), [2, 1]);
        let most = call_at(&sender, CALL, framed(&call("edge", 0, &vec![login("192.0.2.7"); 256]))).await;
        assert_eq!(codes(&most).iter().filter(|code| **code == 1).count(), 2);
    });
    assert_eq!(outcomes(&gateway, "invalid"), 8);
}

#[test]
fn without_the_store_of_a_strict_limit_envoy_is_told_that_there_is_no_decision() {
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    let shared = "rate = \"3/1h\"\nalgorithm = \"fixed-window\"\nalign = \"first\"\nshared = \"strict\"";
    let rules = format!(
        "{FRAME}[[listener]]\naddress = \"[::1]:0\"\ndecides = \"envoy-rls\"\n\
         [fleet]\nstore = \"redis://{}\"\nsecret_file = \"fleet.key\"\ndeadline = \"1s\"\non_failure = \"closed\"\n{}",
        store.address(),
        LIMITS.replace("rate = \"3/1h\"", shared)
    ) + "[[limit]]\nname = \"local\"\nkey = \"descriptor:a\"\nrate = \"1/1h\"\n[[route]]\nname = \"local\"\n\
         domain = \"edge\"\ndescriptors = { a = \"*\" }\nlimits = [\"local\"]\n";
    let gateway = Gateway::start_in(directory, &rules);
    let asked = gateway.addresses[1];
    let several = call("edge", 0, &[login("192.0.2.7"), login("192.0.2.8")]);
    let answers = ask(asked, &vec![several.clone(); 4]);
    assert_eq!(answers.iter().map(codes).collect::<Vec<_>>(), [[1, 1], [1, 1], [1, 1], [2, 2]]);
    drop(store);
    assert!(eventually(|| gateway.log().contains("fleet store lost")));
    let answer = ask(asked, &[call("edge", 0, &[login("192.0.2.9"), login("192.0.2.10")])]).remove(0);
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("14")), "{answer:?}");
    // A limit that needs no store holds.
    let local = || descriptor(&[("a", b"x")], None);
    let answers = ask(asked, &[call("edge", 0, &[local()]), call("edge", 0, &[login("192.0.2.11"), local()])]);
    assert_eq!(answers.iter().map(|answer| told(answer).0).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn what_names_no_client_is_no_denied_client_and_secrets_stand_as_marks() {
    let (gateway, asked) = gateway(
        "[client]\nallow = [\"127.0.0.0/8\", \"192.0.2.0/24\"]\ndeny = [\"0.0.0.0/8\"]\n[log]\naccess = \"json\"\n[dead_letter]\n\
         [[limit]]\nname = \"one\"\nkey = [\"descriptor:api_key\", \"descriptor:payer\"]\nkey_is_secret = true\nrate = \"1/1h\"\n\
         [[route]]\nname = \"one\"\ndomain = \"edge\"\ndescriptors = { api_key = \"*\", payer = \"*\" }\nlimits = [\"one\"]\n\
         [[limit]]\nname = \"two\"\nkey = \"descriptor:api_key\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"two\"\ndomain = \"edge\"\ndescriptors = { api_key = \"*\" }\nlimits = [\"two\"]\n",
    );
    let one = descriptor(&[("api_key", b"planted-1"), ("payer", b"planted-2")], None);
    let two = descriptor(&[("api_key", b"planted-3")], None);
    let answers = ask(asked, &vec![call("edge", 0, &[one, two]); 2]);
    assert_eq!(answers.iter().map(codes).collect::<Vec<_>>(), [[1, 1], [2, 2]]);
    assert!(eventually(|| gateway.dead_letters().len() == 2 && gateway.access_log().len() == 6));
    let written = format!("{:?} {:?}", gateway.dead_letters(), gateway.access_log());
    assert!(
        written.contains("/edge?api_key=") && written.contains("payer=") && !written.contains("planted"),
        "{written}"
    );
}

#[test]
fn programs_ask_about_the_same_keys_and_a_listener_decides_the_routes_that_it_names() {
    let (gateway, asked) = gateway(&format!(
        "routes = [\"login\"]\n[[listener]]\naddress = \"127.0.0.2:0\"\ndecides = \"json\"\n{LIMITS}\
         [[route]]\nname = \"other\"\ndomain = \"edge\"\ndescriptors = {{ remote_address = \"*\" }}\nlimits = [\"per-client\"]\n"
    ));
    let other = || descriptor(&[("remote_address", b"2001:db8::1")], None);
    let answers = ask(asked, &[call("edge", 0, &[login("2001:db8::1"), other()])]);
    let (_, statuses, _) = told(&answers[0]);
    assert_eq!((statuses[0].remaining, &statuses[1].limit), (2, &None));
    let mut program = crate::support::Client::connect(gateway.addresses[2]);
    let question = br#"{"limit":"per-client","key":"2001:db8::2","cost":2}"#;
    let answer = program.request("POST", "/v1/check", &[("Content-Type", "application/json")], question);
    assert!(answer.text().contains(r#""allowed":true,"limit":"per-client","remaining":0"#), "{}", answer.text());
    assert_eq!(told(&ask(asked, &[call("edge", 0, &[login("2001:db8::3")])])[0]).0, 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// By the numbers alone: a window that does not end while they are asked.
    #[test]
    fn random_calls_are_counted_as_sums_of_their_hits(
        calls in vec((0_u64..4, vec((0_usize..3, prop::option::of(0_u64..4)), 1..5)), 1..12),
    ) {
        let (_gateway, asked) = gateway(&LIMITS.replace("3/1h", "12/1h"));
        let mut taken = [0; 3];
        let names = ["192.0.2.1", "2001:db8::1", "x"];
        let mut messages = Vec::new();
        let mut expected = Vec::new();
        for (hits, descriptors) in &calls {
            let mut all = Vec::new();
            let mut codes = Vec::new();
            for (client, own) in descriptors {
                let cost = own.unwrap_or((*hits).max(1));
                let fits = taken[*client] + cost.max(1) <= 12;
                if fits {
                    taken[*client] += cost;
                }
                codes.push(if fits { 1 } else { 2 });
                let entries = [("remote_address", names[*client].as_bytes()), ("generic_key", b"login")];
                all.push(descriptor(&entries, *own));
            }
            messages.push(call("edge", *hits, &all));
            expected.push(codes);
        }
        let answers = ask(asked, &messages);
        prop_assert_eq!(answers.iter().map(codes).collect::<Vec<_>>(), expected);
    }
}
