//! Warnings about routes and rates that do nothing.

use std::path::Path;

use super::{Certificates, parse};

fn warnings(text: &str) -> String {
    parse(text, Path::new("gateway.toml"), Certificates::Unread)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .warnings
        .to_string()
}

#[test]
fn a_route_is_left_nothing_only_by_one_that_takes_all_it_would() {
    // The conditions of two routes, and whether the second one is left nothing.
    let cors = "cors = { allow_origins = [\"https://a.example\"] }";
    for (first, second, never) in [
        ("path_regex = '/a.*'", "path = \"/a\"", true),
        ("path = \"/a\"", "path_regex = '/a.*'", false),
        ("path_regex = '/b.*'", "path = \"/a\"", false),
        ("path_regex = '/a/.*'", "path = \"/a\"", false),
        ("path_regex = '.*'", "", true),
        ("path_regex = '/.+'", "", false),
        ("path_regex = '.*'", "path_exact = \"/a\"", false),
        ("path_exact = \"/a\"", "path_regex = '/a'", false),
        ("path_exact = \"/a\"", "path_regex = '/a|/b'", false),
        ("path_exact = \"/a\"", "path = \"/a\"", false),
        ("path_regex = '.*'\nmethods = [\"GET\"]", "path = \"/a\"", false),
        ("path_regex = '.*'\nmethods = [\"GET\", \"PUT\"]", "path = \"/a\"\nmethods = [\"PUT\"]", true),
        ("path_regex = '.*'\nheaders = { x = \"1\" }", "path = \"/a\"", false),
        ("path_regex = '.*'\nheaders = { x = \"1\" }", "path = \"/a\"\nheaders = { x = \"1\", y = \"1\" }", true),
        ("path_regex = '.*'\nhosts = [\"a.example\"]", "path = \"/a\"", false),
        ("path_regex = '.*'", "path = \"/a\"\nhosts = [\"a.example\"]", false),
        ("path_regex = '.*'\nhosts = [\"a.example\", \"b.example\"]", "hosts = [\"b.example\"]", true),
        ("path_regex = '.*'\nhosts = [\"a.example\"]", "hosts = [\"a.example\", \"b.example\"]", false),
        ("path_regex = '.*'\nactive = { from = \"06:00\", until = \"18:00\" }", "path = \"/a\"", false),
        ("path_regex = '.*'\nmethods = [\"GET\"]", &format!("path = \"/a\"\nmethods = [\"GET\"]\n{cors}"), false),
        ("path_regex = '.*'", &format!("path = \"/a\"\nmethods = [\"GET\"]\n{cors}"), true),
        // Of the same path a route that names methods goes first, then the first in the file.
        ("path = \"/a\"\nmethods = [\"GET\", \"PUT\"]", "path = \"/a\"\nmethods = [\"PUT\"]", true),
        ("path = \"/a\"", "path = \"/a\"\nmethods = [\"PUT\"]", false),
        ("path = \"/a\"\nmethods = [\"GET\"]", "path = \"/a\"", false),
        // Between regexes, the file's order alone.
        ("path_regex = '/a.*'", "path_regex = '/a.*'\nmethods = [\"PUT\"]", true),
        ("path_regex = '/a.*'", "path_regex = '/ab.*'\nmethods = [\"PUT\"]", false),
        ("path_regex = '/ab.*'", "path_regex = '/a.*'", false),
    ] {
        let route =
            |name: &str, conditions: &str| format!("[[route]]\nname = \"{name}\"\nrespond = {{}}\n{conditions}\n");
        let text =
            format!("[[listener]]\naddress = \"127.0.0.1:8080\"\n{}{}", route("first", first), route("second", second));
        let said = warnings(&text);
        assert_eq!(said.contains("the route \"second\""), never, "{first} | {second}: {said}");
    }
}

#[test]
fn waits_in_which_a_turn_comes() {
    let text = include_str!("../tests/reports/waits_in_which_no_turn_comes.toml");
    // Just long enough; those that cost what they say; and where nobody shall wait.
    for (from, to) in [
        ("20/m", "60/m"),
        ("499ms", "500ms"),
        ("cost = 5", "cost = \"content-length\""),
        ("rate = \"1/2h\"", "rate = \"1/2h\"\nmode = \"off\""),
        ("599ms", "600ms"),
    ] {
        let count = |text: &str| warnings(text).matches("warning:").count();
        assert_eq!(count(&text.replace(from, to)), count(text) - 1, "{to}");
    }
}

#[test]
fn rates_that_never_refuse_anything() {
    let never = |settings: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {{ body = \"x\" }}\n\
             limits = [\"a\"]\n[[limit]]\nname = \"a\"\nrate = {settings}\n"
        );
        let warnings = warnings(&text);
        let rates = warnings.lines().filter_map(|line| line.strip_prefix("warning: the rate "));
        rates.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect::<Vec<_>>()
    };
    for (settings, useless) in [
        (r#"["10/s", "20/s"]"#, &["20/s"][..]),
        (r#"["20/s", "10/s"]"#, &["20/s"]),
        (r#"["10/s", "10/s"]"#, &["10/s"]),
        (r#"["10/m", "10/s"]"#, &["10/s"]),
        (r#"["10/s", "1000/m"]"#, &["1000/m"]),
        (r#"["10/s", "600/m"]"#, &[]),
        ("[\"10/s\", \"600/m\"]\nbound = \"slot\"", &["600/m"]),
        ("[\"10/s\", \"599/m\"]\nbound = \"slot\"", &[]),
        ("[\"10/2s\", \"10/3s\"]\nbound = \"slot\"", &[]),
        ("[\"10/s\", \"20/s\"]\nmode = \"off\"", &[]),
        (r#"["10/s", "100/m"]"#, &[]),
        (r#"["100/s", "20/100ms"]"#, &[]),
    ] {
        assert_eq!(never(settings), useless, "{settings}");
    }
}
