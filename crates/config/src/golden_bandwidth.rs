//! Bandwidths and bounds of messages: the model of them, mistakes and plans.

use std::path::Path;
use std::sync::Arc;

use super::{BandwidthSpec, Certificates, Direction, MessageOver, MessageRules, Model, diff, parse};
use sluicegate_admission::KeyExpr;
use sluicegate_limiter::{Gcra, Rate};
use sluicegate_time::Span;

const FRAME: &str = r#"[[listener]]
address = "127.0.0.1:8080"
[[upstream]]
name = "app"
servers = ["127.0.0.1:9001"]
"#;

fn errors(text: &str) -> String {
    parse(text, Path::new("gateway.toml"), Certificates::Unread).map(|parsed| parsed.model).unwrap_err().to_string()
}

fn model(text: &str) -> Model {
    let parsed = parse(text, Path::new("gateway.toml"), Certificates::Unread);
    let parsed = parsed.unwrap_or_else(|errors| panic!("{errors}"));
    assert!(parsed.warnings.is_empty(), "{}", parsed.warnings);
    parsed.model
}

/// The messages about a file, without the places.
fn lines(report: &str) -> Vec<String> {
    let kinds = ["error: ", "warning: "];
    let keep = |line: &str| {
        let message = kinds.iter().find_map(|kind| line.strip_prefix(kind));
        message.or_else(|| line.trim_start().strip_prefix("= help: ")).map(str::to_owned)
    };
    report.lines().filter_map(keep).collect()
}

fn warnings(text: &str) -> Vec<String> {
    let parsed = parse(text, Path::new("gateway.toml"), Certificates::Unread);
    lines(&parsed.unwrap_or_else(|errors| panic!("{errors}")).warnings.to_string())
}

/// A route with these lines.
fn route(route: &str) -> String {
    format!("{FRAME}[[route]]\nname = \"all\"\nupstream = \"app\"\n{route}\n")
}

/// A bandwidth with these lines that a route names.
fn section(section: &str) -> String {
    format!("{}[[bandwidth]]\nname = \"b\"\n{section}\n", route("bandwidth = [\"b\"]"))
}

fn bandwidth(name: &str, key: &[&str], rate: (u64, u64), burst: u64) -> BandwidthSpec {
    let rate = Rate::new(rate.0, Span::from_secs(rate.1)).unwrap();
    BandwidthSpec {
        name: name.into(),
        key: KeyExpr::parse(key).unwrap(),
        rate,
        burst,
        algorithm: Gcra::new(&[rate], Some(burst)).unwrap(),
        direction: Direction::Both,
        max_keys: 1_000_000,
    }
}

#[test]
fn a_bandwidth_is_read_with_its_defaults() {
    let plain = bandwidth("b", &["client-ip"], (10 << 20, 1), (10 << 20) / 4);
    for (text, expected) in [
        ("rate = \"10MiB/s\"", plain.clone()),
        ("rate = \" 10MiB / 1s \"", plain.clone()),
        ("rate = \"500KB/s\"", bandwidth("b", &["client-ip"], (500_000, 1), 125_000)),
        ("rate = \"100KB/s\"", bandwidth("b", &["client-ip"], (100_000, 1), 65_536)),
        ("rate = \"1GiB/h\"", bandwidth("b", &["client-ip"], (1 << 30, 3_600), 74_565)),
        ("rate = \"10MiB/s\"\nburst = \"1MiB\"", bandwidth("b", &["client-ip"], (10 << 20, 1), 1 << 20)),
        ("rate = \"10MiB/s\"\ndirection = \"up\"", BandwidthSpec { direction: Direction::Up, ..plain.clone() }),
        ("rate = \"10MiB/s\"\ndirection = \"down\"", BandwidthSpec { direction: Direction::Down, ..plain.clone() }),
        ("rate = \"10MiB/s\"\nmax_keys = 7", BandwidthSpec { max_keys: 7, ..plain.clone() }),
        (
            "rate = \"10MiB/s\"\nkey = [\"host\", \"header:x-key\"]",
            bandwidth("b", &["host", "header:x-key"], (10 << 20, 1), (10 << 20) / 4),
        ),
    ] {
        let model = model(&section(text));
        let expected = [Arc::new(expected)];
        assert_eq!((&*model.bandwidths, &*model.routes[0].bandwidth), (&expected[..], &expected[..]), "{text}");
    }
}

#[test]
fn a_route_may_have_one_of_its_own() {
    let text = format!(
        "{}[[route]]\nname = \"two\"\npath = \"/two\"\nupstream = \"app\"\n\
         bandwidth = {{ rate = \"1MiB/s\", burst = \"80KiB\", key = \"global\", direction = \"down\" }}\n{}",
        route("bandwidth = \"1MiB/s\""),
        "[[route]]\nname = \"three\"\npath = \"/three\"\nupstream = \"app\"\nbandwidth = [\"c\", \"b\"]\n\
         [[bandwidth]]\nname = \"b\"\nrate = \"1MiB/s\"\n[[bandwidth]]\nname = \"c\"\nrate = \"2MiB/s\"\n"
    );
    let model = model(&text);
    let own = bandwidth("route:all", &["client-ip"], (1 << 20, 1), (1 << 20) / 4);
    let two = bandwidth("route:two", &["global"], (1 << 20, 1), 80 << 10);
    let two = BandwidthSpec { direction: Direction::Down, ..two };
    assert_eq!(model.bandwidths[2..], [Arc::new(own), Arc::new(two)]);
    let used: Vec<_> = model.routes.iter().map(|route| route.bandwidth.clone()).collect();
    let at = |places: &[usize]| places.iter().map(|place| Arc::clone(&model.bandwidths[*place])).collect::<Vec<_>>();
    assert_eq!(used, [at(&[2]), at(&[3]), at(&[1, 0])]);
}

#[test]
fn messages_are_read_with_their_defaults() {
    let rate = |limit, burst| Some((Rate::new(limit, Span::from_secs(1)).unwrap(), burst));
    let close = MessageOver::Close;
    for (text, expected) in [
        ("{ rate = \"20/s\" }", MessageRules { rate: rate(20, 20), over: close, max_size: None }),
        (
            "{ rate = \"20/s\", burst = 40, over = \"pace\" }",
            MessageRules { rate: rate(20, 40), over: MessageOver::Pace, max_size: None },
        ),
        ("{ max_size = \"64KiB\" }", MessageRules { rate: None, over: close, max_size: Some(65_536) }),
        ("{ rate = \"1/s\", max_size = \"none\" }", MessageRules { rate: rate(1, 1), over: close, max_size: None }),
    ] {
        assert_eq!(model(&route(&format!("messages = {text}"))).routes[0].messages, Some(expected), "{text}");
    }
}

#[test]
fn what_is_no_bandwidth_and_what_is_to_be_done() {
    const FORM: &str = "a bandwidth is a size, a slash and a time, like \"10MiB/s\" or \"500KB/s\"";
    let units = format!("{FORM}; sizes end in B KiB MiB GiB KB MB GB");
    let range = format!("{FORM}, from 256B/s to 1000GB/s");
    for (text, message, help) in [
        ("", "[[bandwidth]] has no `rate`", "add rate = \"10MiB/s\""),
        ("rate = 5", "`rate` takes a bandwidth in quotes, not an integer", "write it as \"10MiB/s\""),
        ("rate = \"fast\"", "`rate`: invalid bandwidth \"fast\"", &units),
        ("rate = \"10Mbit/s\"", "`rate`: invalid bandwidth \"10Mbit/s\"", &units),
        ("rate = \"10MiB\"", "`rate`: invalid bandwidth \"10MiB\"", &units),
        ("rate = \"10MiB/\"", "`rate`: invalid bandwidth \"10MiB/\"", &range),
        (
            "rate = \"10MiB/x\"",
            "`rate`: invalid bandwidth \"10MiB/x\"",
            "the part after the slash is no duration: \"x\" is no unit of time: use ns, us, ms, s, m, h or d",
        ),
        ("rate = \"0/s\"", "`rate`: invalid bandwidth \"0/s\"", &range),
        ("rate = \"2000GiB/s\"", "`rate`: invalid bandwidth \"2000GiB/s\"", &range),
        (
            "rate = \"1KiB/m\"",
            "`rate` = \"1KiB/m\" is too slow for any message",
            "it is at least 256B/s; to take no bodies use max_body_size",
        ),
        ("rate = \"1MiB/s\"\nburst = 0", "`burst` is out of range: `0`", "it goes from 1 to 1000000000000"),
        (
            "rate = \"256/s\"\nburst = \"900GiB\"",
            "`burst` = 900GiB takes this rate more than a century",
            "give a smaller one",
        ),
        (
            "rate = \"1MiB/s\"\ndirection = \"downward\"",
            "`direction` cannot be \"downward\"",
            "use one of \"both\", \"down\", \"up\"",
        ),
        (
            "rate = \"1MiB/s\"\nkey = \"ip\"",
            "unknown key source \"ip\"",
            "keys are client-ip, header:NAME, cookie:NAME, query:NAME, json:/POINTER, form:NAME, host, method, path, route, basic:user, \
             tls:subject, tls:fingerprint, jwt:CLAIM, jwt-unverified:CLAIM, descriptor:NAME and global",
        ),
        ("rate = \"1MiB/s\"\nmax_keys = 0", "`max_keys` is out of range: `0`", "it goes from 1 to 100000000"),
        ("rate = \"1MiB/s\"\nbursts = 1", "unknown key `bursts` in [[bandwidth]]", "did you mean `burst`?"),
    ] {
        assert_eq!(lines(&errors(&section(text))), [message, help], "{text}");
    }
}

#[test]
fn what_a_route_cannot_have_as_its_bandwidth() {
    for (text, message, help) in [
        (
            "\"b\"",
            "\"b\" is the name of a [[bandwidth]], not a bandwidth",
            "names stand in brackets: bandwidth = [\"b\"]",
        ),
        (
            "\"1MiB\"",
            "`bandwidth`: invalid bandwidth \"1MiB\"",
            "a bandwidth is a size, a slash and a time, like \"10MiB/s\" or \"500KB/s\"; sizes end in B KiB MiB GiB KB \
             MB GB",
        ),
        ("[\"x\"]", "there is no bandwidth \"x\"", "did you mean \"b\"?"),
        ("[\"b\", \"b\"]", "the bandwidth \"b\" is in `bandwidth` twice", "remove one"),
        ("[\"b\", \"b\", \"b\", \"b\", \"b\"]", "the route has 5 bandwidths", "a route has at most 4"),
        (
            "7",
            "`bandwidth` takes a bandwidth, names in brackets, or a table, not an integer",
            "write it as \"10MiB/s\", [\"per-client\"] or { rate = \"10MiB/s\", key = \"client-ip\" }",
        ),
        ("{ burst = 7 }", "`bandwidth` has no `rate`", "add rate = \"10MiB/s\""),
        (
            "{ rate = \"1MiB/s\", name = \"x\" }",
            "unknown key `name` in `bandwidth`",
            "keys of `bandwidth`: burst, direction, key, max_keys, rate",
        ),
    ] {
        let own = route(&format!("bandwidth = {text}"));
        let text = format!("{own}[[bandwidth]]\nname = \"b\"\nrate = \"1MiB/s\"\n");
        assert_eq!(lines(&errors(&text)), [message, help], "{text}");
    }
}

#[test]
fn messages_that_cannot_be_bounded_so() {
    const NOTHING: &str = "give `rate` or `max_size`: messages = { rate = \"20/s\", burst = 40 }";
    for (text, message, help) in [
        ("{}", "`messages` bounds nothing", NOTHING),
        ("{ burst = 7 }", "`messages` bounds nothing", NOTHING),
        ("7", "`messages` takes a table, not an integer", "write it as { rate = \"20/s\", burst = 40 }"),
        (
            "{ over = \"close\", max_size = 7 }",
            "`burst` and `over` of `messages` are about its `rate`",
            "add rate = \"20/s\", as in { rate = \"20/s\", burst = 40 }",
        ),
        (
            "{ rate = \"0/s\" }",
            "invalid message rate \"0/s\"",
            "a rate of 0 would admit nobody: give at least 1, or refuse in the route",
        ),
        ("{ rate = 7 }", "`rate` takes a rate in quotes, not an integer", "write it as \"20/s\""),
        ("{ rate = \"1/s\", over = \"drop\" }", "`over` cannot be \"drop\"", "use one of \"close\", \"pace\""),
        ("{ rate = \"1/s\", burst = 0 }", "`burst` is out of range: `0`", "it goes from 1 to 1000000000000"),
        (
            "{ rate = \"1/d\", burst = 100000 }",
            "1/d takes too long to refill a burst of 100000: use burst = 36500 or less",
            "give a smaller burst",
        ),
        ("{ max_size = 0 }", "`max_size` is out of range: `0`", "it goes from 1 to 1099511627776; or \"none\""),
        ("{ rat = \"1/s\" }", "unknown key `rat` in `messages`", "did you mean `rate`?"),
    ] {
        assert_eq!(lines(&errors(&route(&format!("messages = {text}")))), [message, help], "{text}");
    }
}

#[test]
fn what_is_surely_not_meant_is_warned_of() {
    let slow = "`burst` = 64KiB is less than goes in 5ms: the rate is never reached";
    let text = section("rate = \"100MiB/s\"\nburst = \"64KiB\"");
    assert_eq!(warnings(&text), [slow, "give at least 512KiB, or leave it out"]);
    let text = format!("{}[[bandwidth]]\nname = \"b\"\nrate = \"1MiB/s\"\n", route(""));
    let unused = ["no route uses the bandwidth \"b\"", "name it in a [[route]], or remove this [[bandwidth]]"];
    assert_eq!(warnings(&text), unused);
    let text = route("bandwidth = \"1MiB/s\"\nmessages = { rate = \"1/s\" }");
    let text = text.replace("upstream = \"app\"", "respond = {}");
    let remedy = "remove it, or give the route an upstream";
    let told = warnings(&text);
    assert_eq!(
        told[told.len() - 4..],
        [
            "`bandwidth` has no effect: the gateway answers by itself",
            remedy,
            "`messages` has no effect: the gateway answers by itself",
            remedy
        ]
    );
}

#[test]
fn a_plan_of_a_reload_tells_what_changes() {
    let base = section("rate = \"1MiB/s\"");
    let plan = |from: &str, to: &str| {
        let changed = parse(&base.replace(from, to), Path::new("gateway.toml"), Certificates::Unread).unwrap().model;
        diff(&model(&base), &changed).to_string()
    };
    for (from, to, told) in [
        (
            "1MiB/s",
            "2MiB/s",
            "bandwidth b: changed: rate 1MiB/s -> 2MiB/s, burst 256KiB -> 512KiB\n\
             kept: 1 listener, 1 upstream, 1 route",
        ),
        (
            "name = \"b\"\n",
            "name = \"b\"\nkey = \"host\"\ndirection = \"up\"\nburst = \"1MiB\"\nmax_keys = 9\n",
            "bandwidth b: reset, it counts from zero: key client-ip -> host, burst 256KiB -> 1MiB, direction both -> up, \
             max_keys 1000000 -> 9\nkept: 1 listener, 1 upstream, 1 route",
        ),
        (
            "bandwidth = [\"b\"]",
            "bandwidth = \"3MiB/s\"\nmessages = { rate = \"1/s\", burst = 9, max_size = \"64KiB\" }",
            "route all: changed: bandwidth +(3MiB/s by client-ip, burst 768KiB, both, 1000000 keys) -b, messages none -> \
             1/s, burst 9, over close, max_size 64KiB\nkept: 1 listener, 1 upstream",
        ),
        ("1MiB/s", "1024KiB/1s", "nothing changed"),
    ] {
        assert_eq!(plan(from, to), told, "{to}");
    }
}
