//! Costs, exempt lists, denied peers and dropped requests: reports and plans word for word.

use std::path::Path;

use super::{Certificates, Model, diff, parse};
use crate::admission::Cost;
use crate::limiter::MAX_COUNT;

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
fn what_is_no_cost() {
    let text = with(
        "cost = \"header:\"\nmax_cost = 0",
        "cost = \"contentlength\"\n\n[[limit]]\nname = \"b\"\nrate = \"9/s\"\ncost = \"5\"\nmax_cost = \"9\"\n\n\
         [[limit]]\nname = \"c\"\nrate = \"9/s\"\ncost = \"header:x y\"\n\n\
         [[limit]]\nname = \"d\"\nrate = \"9/s\"\ncost = 0\nmax_cost = 1000000000001",
    );
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: invalid header name ""
 --> gateway.toml:7:8
  |
7 | cost = "header:"
  |        ^^^^^^^^^
  |
  = help: a header name is made of letters, digits and !#$%&'*+-.^_`|~

error: `max_cost` is out of range: `0`
 --> gateway.toml:8:12
  |
8 | max_cost = 0
  |            ^
  |
  = help: it goes from 1 to 1000000000000

error: invalid cost "contentlength"
  --> gateway.toml:12:8
   |
12 | cost = "contentlength"
   |        ^^^^^^^^^^^^^^^
   |
   = help: did you mean "content-length"?

error: invalid cost "5"
  --> gateway.toml:17:8
   |
17 | cost = "5"
   |        ^^^
   |
   = help: write a whole number, "header:NAME" or "content-length"

error: `max_cost` takes a whole number, not a string
  --> gateway.toml:18:12
   |
18 | max_cost = "9"
   |            ^^^
   |
   = help: write it as a number from 1 to 1000000000000

error: invalid header name "x y"
  --> gateway.toml:23:8
   |
23 | cost = "header:x y"
   |        ^^^^^^^^^^^^
   |
   = help: a header name is made of letters, digits and !#$%&'*+-.^_`|~

error: `cost` is out of range: `0`
  --> gateway.toml:28:8
   |
28 | cost = 0
   |        ^
   |
   = help: it goes from 1 to 1000000000000

error: `max_cost` is out of range: `1000000000001`
  --> gateway.toml:29:12
   |
29 | max_cost = 1000000000001
   |            ^^^^^^^^^^^^^
   |
   = help: it goes from 1 to 1000000000000

gateway.toml: 8 errors"#
    );
}

#[test]
fn a_bound_of_costs_above_what_fits() {
    assert_eq!(
        format!("\n{}", warnings(&with("cost = \"content-length\"\nmax_cost = 21", ""))),
        r#"
warning: a cost above 20 never fits into the rate 20/100ms of the limit "a": such requests are refused
 --> gateway.toml:8:1
  |
8 | max_cost = 21
  | ^^^^^^^^
  |
  = help: set max_cost = 20 to let them take all of it, or leave max_cost out to refuse them

gateway.toml: 1 warning"#
    );
    assert_eq!(
        format!("\n{}", warnings(&with("", "cost = \"header:x-cost\"\nmax_cost = 1000"))),
        r"
warning: a cost above 20 never fits into the rate 20/100ms: such requests are refused
  --> gateway.toml:12:1
   |
12 | max_cost = 1000
   | ^^^^^^^^
   |
   = help: set max_cost = 20 to let them take all of it, or leave max_cost out to refuse them

gateway.toml: 1 warning"
    );
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
fn a_bound_without_a_cost_to_bound() {
    assert_eq!(
        format!("\n{}", warnings(&with("max_cost = 5", "cost = 2\nmax_cost = 5"))),
        r#"
warning: `max_cost` has no effect: it bounds a `cost` that each request states
 --> gateway.toml:7:1
  |
7 | max_cost = 5
  | ^^^^^^^^
  |
  = help: write cost = "header:NAME" or "content-length" beside it, or remove max_cost

warning: `max_cost` has no effect: it bounds a `cost` that each request states
  --> gateway.toml:12:1
   |
12 | max_cost = 5
   | ^^^^^^^^
   |
   = help: write cost = "header:NAME" or "content-length" beside it, or remove max_cost

gateway.toml: 2 warnings"#
    );
}

#[test]
fn what_cannot_be_exempt() {
    let text = with(
        "",
        "key = \"header:x-api-key\"\nexempt = [\n  \"10.1.2.3/8\",\n  \"2001:db8::1/32\",\n  \"gold\",\n  \"key:\",\n  7,\n  \"10.0.0.0/33\",\n]",
    );
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: "10.1.2.3/8" has bits beyond its prefix
  --> gateway.toml:13:3
   |
13 |   "10.1.2.3/8",
   |   ^^^^^^^^^^^^
   |
   = help: write "10.0.0.0/8" for the network, or "10.1.2.3" for the one address

error: "2001:db8::1/32" has bits beyond its prefix
  --> gateway.toml:14:3
   |
14 |   "2001:db8::1/32",
   |   ^^^^^^^^^^^^^^^^
   |
   = help: write "2001:db8::/32" for the network, or "2001:db8::1" for the one address

error: invalid network
  --> gateway.toml:15:3
   |
15 |   "****",
   |   ^^^^^^
   |
   = help: write "10.0.0.0/8", "fd00::/8" or a lone address, or "key:VALUE"

error: this exempts no key of the limit
  --> gateway.toml:16:3
   |
16 |   "key:",
   |   ^^^^^^
   |
   = help: a value is missing: write what such a request has there

error: `exempt` takes a network in quotes, not an integer
  --> gateway.toml:17:3
   |
17 |   7,
   |   ^
   |
   = help: write it as "10.0.0.0/8" or "192.0.2.7"

error: invalid network "10.0.0.0/33"
  --> gateway.toml:18:3
   |
18 |   "10.0.0.0/33",
   |   ^^^^^^^^^^^^^
   |
   = help: write "10.0.0.0/8", "fd00::/8" or a lone address, or "key:VALUE"

gateway.toml: 6 errors"#
    );
    assert_eq!(
        format!("\n{}", errors(&with("", "exempt = \"10.0.0.0/8\""))),
        r#"
error: `exempt` takes an array, not a string
  --> gateway.toml:11:10
   |
11 | exempt = "10.0.0.0/8"
   |          ^^^^^^^^^^^^
   |
   = help: write it as ["10.0.0.0/8", "key:VALUE"]

gateway.toml: 1 error"#
    );
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
    let report = errors(&with("", "key = \"header:k\"\nexempt = [key:gold, \"10.0.0.0/8\"]"));
    assert_eq!(
        format!("\n{report}"),
        r"
error: the value must be quoted
  --> gateway.toml:12:11
   |
12 | exempt = ************************
   |           ^^^^^^^^
   |
   = help: put double quotes around it

gateway.toml: 1 error"
    );
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
    assert_eq!(
        format!("\n{}", errors(&text(".*a.{20}", "respond = {}"))),
        r#"
error: the regex ".*a.{20}" is too large: its automaton takes more than 1 MiB
 --> gateway.toml:5:14
  |
5 | path_regex = '.*a.{20}'
  |              ^^^^^^^^^^
  |
  = help: use smaller repetitions, and in place of a `.*` before one say what may stand there, such as [^/]*

gateway.toml: 1 error"#
    );
    let slow = r"/x/((?:[a-z0-9-]{1,200}\.?)+)";
    assert_eq!(
        format!("\n{}", errors(&text(slow, "redirect = { to = \"/{1}\" }"))),
        r#"
error: the groups of the regex may take long to find: it has 412 states and may have 64
 --> gateway.toml:6:19
  |
6 | redirect = { to = "/{1}" }
  |                   ^^^^^^
  |
  = help: name no group here; or have fewer states, by + or * in place of counted repetitions and by fewer alternatives; or leave each character one way to go on, as in /([^/]*)/(.*)

gateway.toml: 1 error"#
    );
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
fn an_entry_that_is_there_twice() {
    assert_eq!(
        format!(
            "\n{}",
            warnings(&with(
                "",
                "key = \"header:k\"\nexempt = [\"10.0.0.0/8\", \"key:10.0.0.0/8\", \"key:gold\", \"::ffff:10.0.0.0/104\", \"key:gold\", \"10.0.0.0/9\"]"
            ))
        ),
        r#"
warning: "::ffff:10.0.0.0/104" is in `exempt` twice
  --> gateway.toml:12:55
   |
12 | exempt = ["10.0.0.0/8", "key:**********", "key:****", "::ffff:10.0.0.0/104", "key:****", "10.0.0.0/9"]
   |                                                       ^^^^^^^^^^^^^^^^^^^^^
   |
   = note: the first is at gateway.toml:12:11
   = help: remove one

warning: this is in `exempt` twice
  --> gateway.toml:12:78
   |
12 | exempt = ["10.0.0.0/8", "key:**********", "key:****", "::ffff:10.0.0.0/104", "key:****", "10.0.0.0/9"]
   |                                                                              ^^^^^^^^^^
   |
   = note: the first is at gateway.toml:12:43
   = help: remove one

gateway.toml: 2 warnings"#
    );
    assert_eq!(
        format!("\n{}", warnings(&format!("{}[client]\ndeny = [\"192.0.2.7\", \"192.0.2.7/32\"]\n", with("", "")))),
        r#"
warning: "192.0.2.7/32" is in `deny` twice
  --> gateway.toml:13:22
   |
13 | deny = ["192.0.2.7", "192.0.2.7/32"]
   |                      ^^^^^^^^^^^^^^
   |
   = note: the first is at gateway.toml:13:9
   = help: remove one

gateway.toml: 1 warning"#
    );
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
fn what_cannot_be_denied() {
    assert_eq!(
        format!(
            "\n{}",
            errors(&format!("{}[client]\ndeny = [\"192.0.2.1/24\", \"key:gold\", \"all\"]\n", with("", "")))
        ),
        r#"
error: "192.0.2.1/24" has bits beyond its prefix
  --> gateway.toml:13:9
   |
13 | deny = ["192.0.2.1/24", "key:****", "all"]
   |         ^^^^^^^^^^^^^^
   |
   = help: write "192.0.2.0/24" for the network, or "192.0.2.1" for the one address

error: invalid network
  --> gateway.toml:13:25
   |
13 | deny = ["192.0.2.1/24", "key:****", "all"]
   |                         ^^^^^^^^^^
   |
   = help: write "10.0.0.0/8", "fd00::/8" or a lone address

error: invalid network "all"
  --> gateway.toml:13:37
   |
13 | deny = ["192.0.2.1/24", "key:****", "all"]
   |                                     ^^^^^
   |
   = help: write "10.0.0.0/8", "fd00::/8" or a lone address

gateway.toml: 3 errors"#
    );
}

#[test]
fn what_cannot_be_done_on_a_limit() {
    assert_eq!(
        format!("\n{}", errors(&with("on_limit = \"close\"", ""))),
        r#"
error: `on_limit` cannot be "close"
 --> gateway.toml:7:12
  |
7 | on_limit = "close"
  |            ^^^^^^^
  |
  = help: use one of "refuse", "drop", "defer"

gateway.toml: 1 error"#
    );
    assert_eq!(
        format!("\n{}", warnings(&with("on_limit = \"drop\"", "").replace("limits = [\"a\"]", "limits = []"))),
        r#"
warning: `on_limit` has no effect: the route has no limits
 --> gateway.toml:7:1
  |
7 | on_limit = "drop"
  | ^^^^^^^^
  |
  = help: name them in `limits`, or remove on_limit

warning: no route uses the limit "a"
 --> gateway.toml:9:8
  |
9 | name = "a"
  |        ^^^
  |
  = help: name it in a [[route]], or remove this [[limit]]

gateway.toml: 2 warnings"#
    );
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
fn what_is_no_penalty() {
    let text = with("", "penalty = { after = 0, within = \"10ms\", blok = \"10m\" }");
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: `after` is out of range: `0`
  --> gateway.toml:11:21
   |
11 | penalty = { after = 0, within = "10ms", blok = "10m" }
   |                     ^
   |
   = help: it goes from 1 to 1000000

error: `within` is out of range: "10ms"
  --> gateway.toml:11:33
   |
11 | penalty = { after = 0, within = "10ms", blok = "10m" }
   |                                 ^^^^^^
   |
   = help: it goes from 1s to 30d

error: unknown key `blok` in `penalty`
  --> gateway.toml:11:41
   |
11 | penalty = { after = 0, within = "10ms", blok = "10m" }
   |                                         ^^^^
   |
   = help: did you mean `block`?

gateway.toml: 3 errors"#
    );
}

#[test]
fn a_plan_tells_of_a_penalty() {
    let plan = |old: &str, new: &str| diff(&model(&with("", old)), &model(&with("", new))).to_string();
    let ten = "penalty = { after = 20, within = \"1m\", block = \"10m\" }";
    assert!(plan("", ten).contains("penalty none -> 10m for 20 refusals in 1m"), "{}", plan("", ten));
    assert!(plan(ten, &ten.replace("20", "5")).contains("20 refusals in 1m -> 10m for 5 refusals in 1m"));
}

#[test]
fn what_is_no_cost_of_a_response() {
    let text = with("", "cost_from_response = \"x-cost\"\nmax_cost = 0");
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: invalid response header "x-cost"
  --> gateway.toml:11:22
   |
11 | cost_from_response = "x-cost"
   |                      ^^^^^^^^
   |
   = help: write cost_from_response = "header:NAME"

error: `max_cost` is out of range: `0`
  --> gateway.toml:12:12
   |
12 | max_cost = 0
   |            ^
   |
   = help: it goes from 1 to 1000000000000

gateway.toml: 2 errors"#
    );
    let text = with("", "cost_from_response = \"header:x cost\"");
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: invalid header name "x cost"
  --> gateway.toml:11:22
   |
11 | cost_from_response = "header:x cost"
   |                      ^^^^^^^^^^^^^^^
   |
   = help: a header name is made of letters, digits and !#$%&'*+-.^_`|~

gateway.toml: 1 error"#
    );
    let text = format!(
        "{FRAME}[[limit]]\nname = \"a\"\nalgorithm = \"concurrency\"\nmax_in_flight = 5\ncost_from_response = \"header:x-cost\"\n"
    );
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: algorithm = "concurrency" holds what is in flight until it ends, whatever it has cost
  --> gateway.toml:11:22
   |
11 | cost_from_response = "header:x-cost"
   |                      ^^^^^^^^^^^^^^^
   |
   = help: remove cost_from_response, or choose another algorithm

gateway.toml: 1 error"#
    );
    assert!(errors(&with("", "cost_from_response = 5")).contains("`cost_from_response` takes a header in quotes"));
    assert!(errors(&with("", "cost_from_response = \"header:\"")).contains("invalid header name \"\""));
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
    assert_eq!(rule("max_cost = 5").cost_from_response.unwrap().to_string(), "header:x-cost up to 5");
    assert_eq!(rule("").cost_from_response.unwrap().max, MAX_COUNT);
    let estimate = rule("cost = \"header:x-guess\"\nmax_cost = 5").cost.unwrap();
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
    let text = with("", "count_when = { status = [\"401\", \"1xx\", 500], codes = 1 }");
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: invalid status "1xx"
  --> gateway.toml:11:33
   |
11 | count_when = { status = ["401", "1xx", 500], codes = 1 }
   |                                 ^^^^^
   |
   = help: write three digits, 200 to 599, or a class: "2xx" "3xx" "4xx" "5xx"

error: `status` takes a status in quotes, not an integer
  --> gateway.toml:11:40
   |
11 | count_when = { status = ["401", "1xx", 500], codes = 1 }
   |                                        ^^^
   |
   = help: write it as "401" or "5xx"

error: unknown key `codes` in `count_when`
  --> gateway.toml:11:46
   |
11 | count_when = { status = ["401", "1xx", 500], codes = 1 }
   |                                              ^^^^^
   |
   = help: keys of `count_when`: status

gateway.toml: 3 errors"#
    );
    let text = format!(
        "{FRAME}[[limit]]\nname = \"a\"\nalgorithm = \"concurrency\"\nmax_in_flight = 5\ncount_when = {{ status = [\"401\"] }}\n"
    );
    assert_eq!(
        format!("\n{}", errors(&text)),
        r#"
error: algorithm = "concurrency" counts what is in flight, and its answer comes too late for that
  --> gateway.toml:11:14
   |
11 | count_when = { status = ["401"] }
   |              ^^^^^^^^^^^^^^^^^^^^
   |
   = help: remove count_when, or choose another algorithm

gateway.toml: 1 error"#
    );
    assert!(errors(&with("", "count_when = { status = [] }")).contains("`status` has 0 statuses"));
    assert!(errors(&with("", "count_when = \"5xx\"")).contains("count_when"));
}
