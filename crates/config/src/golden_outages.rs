//! Keys of upstreams for servers that fail: mistakes.

use std::path::Path;

use super::{Certificates, parse};

/// The findings about an upstream with this line, without the places.
fn told(line: &str) -> Vec<String> {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:9001\", \
         \"127.0.0.1:9002\"]\n{line}\n[[route]]\nname = \"all\"\nupstream = \"app\"\n"
    );
    let report = match parse(&text, Path::new("gateway.toml"), Certificates::Unread) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    };
    let kinds = ["error: ", "warning: "];
    let keep = |line: &str| {
        let message = kinds.iter().find_map(|kind| line.strip_prefix(kind));
        message.or_else(|| line.trim_start().strip_prefix("= help: ")).map(str::to_owned)
    };
    report.lines().filter_map(keep).collect()
}

#[test]
fn what_cannot_be_is_refused_with_its_remedy() {
    for (line, expected) in [
        ("health = { path = \"healthz\" }", "a path begins with a slash, like \"/healthz\""),
        ("health = {}", "write health = { path = \"/healthz\" }; or protocol = \"tcp\" in it, which only connects"),
        ("health = { path = \"/\", interval = \"1ms\" }", "it goes from 100ms to 1h"),
        ("health = { path = \"/\", fall = 0 }", "it goes from 1 to"),
        ("eject = { at_most = \"0%\" }", "it goes from 1% to 100%"),
        ("eject = { for = \"9s\", max_for = \"8s\" }", "set it to \"9s\" or more, or remove it for \"5m\""),
        ("breaker = { errors = \"0%\" }", "it goes from 1% to 100%"),
        ("breaker = { errors = \"101%\" }", "it goes from 1% to 100%"),
        ("breaker = { at_least = 0 }", "it goes from 1 to 1000000"),
        ("breaker = { probes = 0 }", "it goes from 1 to 1000"),
        ("breaker = { within = \"2h\" }", "it goes from 1s to 1h"),
        ("breaker = { on = [\"99\"] }", "write three digits, 200 to 599, or a class"),
        ("retry = { attempts = 1 }", "it goes from 2 to 10"),
        ("retry = { methods = [\"get\"] }", "methods are upper-case words like \"GET\" or \"POST\""),
        ("retry = { methods = [\"A B\"] }", "methods are upper-case words like \"GET\" or \"POST\""),
        ("retry = { methods = [] }", "give 1 to 16, or remove it for those that are idempotent"),
        ("retry = { on = [\"200\"] }", "write \"connect\", three digits, 400 to 599, or a class"),
        ("retry = { on = [\"reset\"] }", "write \"connect\", three digits, 400 to 599, or a class"),
        ("retry = { budget = \"0%\" }", "it goes from 1% to 100%"),
        ("max_in_flight = 0", "it goes from 1 to 10000000"),
        ("max_in_flight = \"atuo\"", "did you mean \"auto\"?"),
        ("max_in_flight = { min = 3 }", "add auto = true"),
        ("max_in_flight = { auto = false }", "write a number, such as max_in_flight = 512, or \"none\""),
        ("max_in_flight = { auto = true, min = 9, max = 8 }", "lower `min`, or raise `max`"),
        ("max_in_flight = { auto = true, max = 0 }", "it goes from 1 to 100000"),
        ("fair_key = \"json:/user\"", "remove \"json:/user\", or name a part of the head"),
        ("max_pending = 5", "remove it, or set max_in_flight or server_max_in_flight"),
        ("pending_timeout = \"2h\"\nmax_in_flight = 1", "it goes from 1ms to 1h"),
    ] {
        let told = told(line);
        assert!(told.iter().any(|own| own.contains(expected)), "{line}: {told:#?}");
    }
}

#[test]
fn a_whole_one_is_taken() {
    let all = "max_head_size = \"16KiB\"\nmax_in_flight = 512\nmax_pending = 128\npending_timeout = \"1s\"\nserver_max_in_flight = 64\n\
               breaker = { errors = \"50%\", within = \"10s\", at_least = 20, open = \"5s\", probes = 3 }\n\
               retry = { attempts = 2, on = [\"connect\", \"502\", \"503\", \"504\"], per_try = \"2s\", budget = \"10%\" }";
    assert_eq!(told(all), Vec::<String>::new());
    for auto in ["\"auto\"", "{ auto = true }", "{ auto = true, min = 8, max = 8 }"] {
        assert_eq!(told(&format!("max_in_flight = {auto}\nmax_pending = 5")), Vec::<String>::new(), "{auto}");
    }
    let of_h2 = "protocol = \"h2\"\npending_timeout = \"10s\"";
    assert_eq!(told(of_h2), Vec::<String>::new(), "requests with large heads wait for so long");
}

/// Each block of the page is a part of a file that is taken as it stands.
#[test]
fn what_the_page_about_pressure_writes_is_taken() {
    const PAGE: &str = include_str!("../../../docs/pressure.md");
    let blocks: Vec<&str> = PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 5, "{}", blocks.len());
    for block in blocks {
        let mut file = format!("[[listener]]\naddress = \"127.0.0.1:8080\"\n{block}");
        for (named, section) in [
            ("name = \"app\"", "[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:9001\"]\n"),
            ("name = \"per-client\"", "[[limit]]\nname = \"per-client\"\nrate = \"9/s\"\n"),
            ("[[route]]", "[[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"per-client\"]\n"),
        ] {
            if !block.contains(named) {
                file.push_str(section);
            }
        }
        let errors = match parse(&file, Path::new("/g.toml"), Certificates::Unread) {
            Ok(_) => String::new(),
            Err(errors) => errors.to_string(),
        };
        assert_eq!(errors, "", "{block}");
    }
}
