//! Costs, exempt lists, denied peers and dropped requests: reports and plans.

use std::path::Path;

use super::{Certificates, Model, diff, parse};
use sluicegate_admission::Cost;
use sluicegate_limiter::MAX_COUNT;

const FRAME: &str = r#"[[listener]]
address = "127.0.0.1:8080"
[[route]]
name = "all"
respond = {}
limits = ["a"]
"#;

fn errors(text: &str) -> String {
    parse(text, Path::new("gateway.toml"), Certificates::Unread).map(|parsed| parsed.model).unwrap_err().to_string()
}

fn warnings(text: &str) -> String {
    parse(text, Path::new("gateway.toml"), Certificates::Unread)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .warnings
        .to_string()
}

fn model(text: &str) -> Model {
    parse(text, Path::new("gateway.toml"), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model
}

/// A route and a limit with these lines.
fn with(route: &str, limit: &str) -> String {
    format!("{FRAME}{route}\n[[limit]]\nname = \"a\"\nrate = [\"100/s\", \"20/100ms\"]\n{limit}\n")
}

#[test]
fn a_bound_of_costs_above_what_fits() {
    for (route, limit) in [
        ("cost = \"content-length\"\nmax_cost = 20", ""),
        ("cost = \"content-length\"", ""),
        ("", "cost = \"header:x-cost\""),
        ("", "cost = \"header:x-cost\"\nmax_cost = 20"),
        ("", "cost = \"header:x-cost\"\nmax_cost = 21\nmode = \"off\""),
        ("cost = \"content-length\"\nmax_cost = 21", "cost = 20"),
    ] {
        assert_eq!(warnings(&with(route, limit)), "", "{route} {limit}");
    }
}

#[test]
fn a_value_that_is_none_of_the_key() {
    for (key, value, help) in [
        (
            "\"client-ip\"",
            "192.0.2.7",
            "the key is the client's address: write it as it is, such as \"192.0.2.7\" or \"10.0.0.0/8\"",
        ),
        ("\"global\"", "x", "the key \"global\" is the same for everybody: exempt networks instead"),
        ("\"host\"", "a b", "the part for the host is none: write a name such as api.example.com"),
        ("\"path\"", "api", "the part for the path is none: write one that begins with a slash"),
        ("[\"client-ip\", \"path\"]", "/", "the key has 2 parts, and this is 1: join the value of each by \" + \""),
        ("[\"client-ip\", \"path\"]", "a + /", "the part for client-ip is no address, such as 192.0.2.7"),
    ] {
        let report = errors(&with("", &format!("key = {key}\nexempt = [\"key:{value}\"]")));
        assert!(report.starts_with("error: this exempts no key of the limit\n"), "{report}");
        assert!(report.contains(&format!("= help: {help}\n")), "{report}");
    }
    // Only the first mistake is told of a key that cannot be read.
    let report = errors(&with("", "key = \"client_ip\"\nexempt = [\"key:x\"]"));
    assert!(report.ends_with("gateway.toml: 1 error") && report.contains("unknown key source"), "{report}");
}

#[test]
fn a_key_without_quotes_is_not_shown() {
    for exempt in [
        "{key = gold}",
        "{gold = 1, gold = 2}",
        "[{gold = x, gold = x}]",
        "[ # [x]]\ngold = x]",
        "gold",
        "[gold]",
        "[key:gold\"]",
        "[\n\"QUJD=\",\ngold]",
        "[\nQUJD=,\n\"gold\"]",
    ] {
        let report = errors(&with("", &format!("key = \"header:k\"\nexempt = {exempt}")));
        assert!(!report.contains("gold"), "{exempt}: {report}");
    }
}

#[test]
fn a_regex_for_what_no_path_has() {
    let routed = |regex: &str| FRAME.replace("respond = {}", &format!("path_regex = '{regex}'\nrespond = {{}}"));
    let limit = "[[limit]]\nname = \"a\"\nrate = \"1/s\"\n";
    let report = warnings(&(routed("/v1/items%3abatch") + limit));
    assert!(report.contains("has an escape of one of !$&'()*+,;=:@"), "{report}");
    assert_eq!(warnings(&(routed("/v1/items:batch%2F%25[0-9A-F]{2}") + limit)), "");
}

#[test]
fn a_key_of_a_header_that_no_request_has() {
    let report = |client: &str, header: &str| {
        let limit = format!("[[limit]]\nname = \"a\"\nkey = \"header:{header}\"\nrate = \"2/s\"\n");
        warnings(&format!("{client}{FRAME}{limit}"))
    };
    for header in ["te", "connection", "Keep-Alive", "upgrade", "x_request_id", "x_forwarded_user"] {
        let told = report("", header);
        assert!(told.contains("never has a value: ") && told.contains("ends at the gateway"), "{header}: {told}");
    }
    let trusts = "[client]\ntrusted_proxies = [\"192.0.2.1\"]\n";
    for header in ["x-forwarded-user", "x-request-id"] {
        let told = report("", header);
        assert!(told.contains("is believed from trusted proxies alone"), "{header}: {told}");
        assert_eq!(report(trusts, header), "");
    }
    assert_eq!(report("", "x-api-key"), "");
}

#[test]
fn a_sliding_counter_of_one() {
    let report = |rate: &str| {
        let limit = format!("[[limit]]\nname = \"a\"\nalgorithm = \"sliding-counter\"\nrate = \"{rate}\"\n");
        warnings(&format!("{FRAME}{limit}"))
    };
    assert!(report("1/10s").contains("a sliding-counter of 1/10s admits two at once across the edge of its windows"));
    assert_eq!(report("2/10s"), "");
}

#[test]
fn a_file_of_regexes_that_are_too_large_is_not_looked_at_for_minutes() {
    let route = |number: usize| {
        format!("[[route]]\nname = \"r{number}\"\npath_regex = '/{number}.*a.{{20}}'\nrespond = {{}}\n")
    };
    let listener = "[[listener]]\naddress = \"127.0.0.1:8080\"\n".to_owned();
    let report = errors(&(listener + &(0..2_000).map(route).collect::<String>()));
    assert_eq!(report.matches("is too large: its automaton takes more than 1 MiB").count(), 20, "{report}");
    assert_eq!(report.matches("those behind this one were not looked at").count(), 1, "{report}");
    assert!(report.ends_with("gateway.toml: 21 errors"), "{report}");
}

#[test]
fn regexes_that_could_be_slow() {
    let text = |path: &str, action: &str| {
        let text = FRAME.replace("respond = {}", &format!("path_regex = '{path}'\n{action}"));
        text + "[[limit]]\nname = \"a\"\nrate = \"1/s\"\n"
    };
    let slow = r"/x/((?:[a-z0-9-]{1,200}\.?)+)";
    let routed = |path: &str, action: &str| warnings(&text(path, action));
    for (path, action) in [
        (slow, "redirect = { to = \"/new\" }"),
        (slow, "respond = {}"),
        ("/([^/]+)/([^/]+)/([^/]+)/([^/]+)/(.*)", "redirect = { to = \"/{5}\" }"),
    ] {
        assert_eq!(routed(path, action), "", "{path} {action}");
    }
}

#[test]
fn lists_of_networks_have_an_end() {
    let many = |count: u32| {
        let all: Vec<String> = (0..count).map(|number| format!("\"10.0.{}.{}\"", number / 256, number % 256)).collect();
        format!("[{}]", all.join(","))
    };
    let exempt = |count| with("", &format!("exempt = {}", many(count)));
    let deny = |count| format!("{}[client]\ndeny = {}\n", with("", ""), many(count));
    assert_eq!(model(&exempt(10_000)).limits[0].exempt.networks.len(), 10_000);
    assert_eq!(model(&deny(10_000)).client.deny.len(), 10_000);
    for (text, key) in [(exempt(10_001), "exempt"), (deny(10_001), "deny")] {
        let report = errors(&text);
        assert!(report.starts_with(&format!("error: `{key}` has 10001 entries\n")), "{report}");
        let help = "= help: it takes at most 10000; join neighbours to larger networks\n";
        assert!(report.contains(help) && report.ends_with("gateway.toml: 1 error"), "{report}");
    }
}

#[test]
fn costs_mean_what_they_say() {
    let costs = |route: &str, limit: &str| {
        let model = model(&with(route, limit));
        (model.routes[0].cost.to_string(), model.limits[0].cost.as_ref().map(Cost::to_string))
    };
    assert_eq!(costs("", ""), ("1".into(), None));
    assert_eq!(costs("cost = 7", "cost = \"header:X-Cost\""), ("7".into(), Some("header:x-cost".into())));
    assert_eq!(
        costs("cost = \"content-length\"\nmax_cost = 20", "cost = \"header:x-cost\"\nmax_cost = 9"),
        ("content-length up to 20".into(), Some("header:x-cost up to 9".into()))
    );
}

#[test]
fn a_plan_tells_what_changes_and_names_no_value_of_a_key() {
    let plan = |old: &str, new: &str| diff(&model(old), &model(new)).to_string();
    let kept = "\nkept: 1 listener, 1 route";
    let limit = |new: &str| plan(&with("", ""), &with("", new));
    assert_eq!(
        limit("cost = \"header:x-cost\"\nmax_cost = 9"),
        format!("limit a: changed: cost the route's -> header:x-cost up to 9{kept}")
    );
    assert_eq!(limit("exempt = [\"10.0.0.0/8\"]"), format!("limit a: changed: exempt +10.0.0.0/8{kept}"));
    let keyed = |exempt: &str| with("", &format!("key = \"header:k\"\nexempt = [{exempt}]"));
    for (old, new, change) in [
        ("\"10.0.0.0/8\"", "\"::1\"", "exempt +::1/128 -10.0.0.0/8"),
        ("", "\"key:gold\", \"key:lead\"", "exempt keys +2"),
        ("\"key:gold\"", "", "exempt keys -1"),
        ("\"key:gold\"", "\"key:lead\", \"key:tin\"", "exempt keys +2 -1"),
        ("\"key:gold\", \"key:tin\"", "\"key:tin\", \"key:gold\"", "exempt keys in another order"),
        ("\"key:gold\"", "\"::1\", \"key:lead\"", "exempt +::1/128, exempt keys +1 -1"),
    ] {
        assert_eq!(plan(&keyed(old), &keyed(new)), format!("limit a: changed: {change}{kept}"));
    }
    let kept = "\nkept: 1 listener, 1 limit";
    assert_eq!(
        plan(&with("", ""), &with("on_limit = \"drop\"\ncost = \"content-length\"", "")),
        format!("route all: changed: cost 1 -> content-length, on_limit refuse -> drop{kept}")
    );
    let deny = |list: &str| format!("{}[client]\ndeny = [{list}]\n", with("", ""));
    assert_eq!(
        plan(&deny("\"192.0.2.0/24\""), &deny("\"192.0.2.7\"")),
        "[client]: changed: deny +192.0.2.7/32 -192.0.2.0/24\nkept: 1 listener, 1 limit, 1 route"
    );
}

#[test]
fn a_plan_tells_of_a_penalty() {
    let plan = |old: &str, new: &str| diff(&model(&with("", old)), &model(&with("", new))).to_string();
    let ten = "penalty = { after = 20, within = \"1m\", block = \"10m\" }";
    assert!(plan("", ten).contains("penalty none -> 10m for 20 refusals in 1m"), "{}", plan("", ten));
    assert!(plan(ten, &ten.replace("20", "5")).contains("20 refusals in 1m -> 10m for 5 refusals in 1m"));
    let growing = plan(ten, &ten.replace(" }", ", escalate = 1.5, max_block = \"2h\" }"));
    assert!(growing.contains("20 refusals in 1m, then 1.5 times as long, up to 2h"), "{growing}");
    let flat = plan(ten, &ten.replace(" }", ", escalate = 1.0 }"));
    assert!(!flat.contains("penalty"), "{flat}");
}

#[test]
fn what_is_no_cost_of_a_response() {
    assert!(errors(&with("", "cost_from_response = 5")).contains("`cost_from_response` takes an array"));
    assert!(errors(&with("", "cost_from_response = \"header:\"")).contains("invalid header name \"\""));
    assert!(errors(&with("", "cost_from_response = []")).contains("`cost_from_response` has 0 sources"));
    let nine = (0..9).map(|place| format!("\"json:/{place}\"")).collect::<Vec<_>>().join(", ");
    assert!(errors(&with("", &format!("cost_from_response = [{nine}]"))).contains("has 9 sources"));
    assert!(errors(&with("cost_from_response = \"header:x-cost\"", "")).contains("unknown key `cost_from_response`"));
}

#[test]
fn a_bound_of_what_a_response_states_has_an_effect() {
    let header = "cost_from_response = \"header:X-Cost\"\n";
    assert!(warnings(&with("", "max_cost = 5")).contains("has no effect"));
    let above = warnings(&with("", &format!("{header}max_cost = 500000")));
    assert!(above.contains("no more than 20 is ever counted of what a response states"), "{above}");
    for keys in ["max_cost = 5", "max_cost = 20", "cost = 2\nmax_cost = 9", ""] {
        assert_eq!(warnings(&with("", &format!("{header}{keys}"))), "", "{keys}");
    }
    let rule = |keys: &str| model(&with("", &format!("{header}{keys}"))).limits[0].clone();
    assert_eq!(rule("max_cost = 5").cost_from_response.as_ref().unwrap().to_string(), "header:x-cost up to 5");
    assert_eq!(rule("").cost_from_response.as_ref().unwrap().max, MAX_COUNT);
    let estimate = rule("cost = \"header:x-guess\"\nmax_cost = 5").cost.clone().unwrap();
    assert_eq!(estimate.to_string(), "header:x-guess up to 5", "one bound for both");
}

#[test]
fn a_plan_tells_of_the_cost_of_a_response() {
    let plan = |old: &str, new: &str| diff(&model(&with("", old)), &model(&with("", new))).to_string();
    let header = "cost_from_response = \"header:x-cost\"\nmax_cost = 9";
    let text = plan("", header);
    assert!(text.contains("cost_from_response none -> header:x-cost up to 9"), "{text}");
}

#[test]
fn what_cannot_be_counted_later() {
    assert!(errors(&with("", "count_when = { status = [] }")).contains("`status` has 0 statuses"));
    assert!(errors(&with("", "count_when = \"5xx\"")).contains("count_when"));
}
