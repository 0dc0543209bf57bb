//! Mistakes in a file that a message sent the reader the wrong way for: each by `check`, from a shell.

use std::fs;

use crate::support::{FRAME, Gateway, run};

const RULES: &str = "[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:9001\"]\n\
     [[limit]]\nname = \"per-client\"\nrate = \"5/s\"\n\
     [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"per-client\"]\n";

/// The report of `check` on a file, and whether it is right.
fn check(text: &str) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("gateway.toml"), text).unwrap();
    let (status, _, errors) = run(&["check"], directory.path());
    (status.success(), errors)
}

/// The report where `from` is written as `to`.
fn with(from: &str, to: &str) -> String {
    let text = format!("{FRAME}{RULES}");
    assert!(text.contains(from), "{from}");
    let (is_right, errors) = check(&text.replacen(from, to, 1));
    assert!(!is_right, "{errors}");
    errors
}

#[test]
fn a_quote_that_is_not_closed_is_named_so() {
    for (from, to, at) in [
        ("name = \"per-client\"", "name = \"per-client", ":9:8"),
        ("rate = \"5/s\"", "rate = \"5/s", ":10:8"),
        ("rate = \"5/s\"", "rate = '5/s", ":10:8"),
        ("rate = \"5/s\"", "rate = \"5/s\\\"", ":10:8"),
        ("[\"127.0.0.1:9001\"]", "[\"127.0.0.1:9001]", ":7:12"),
        ("[\"127.0.0.1:9001\"]", "[\"127.0.0.1:9001, \"127.0.0.1:9002\"]", ":7:44"),
        ("address = \"127.0.0.1:0\"", "address = \"127.0.0.1:0", ":2:11"),
    ] {
        let errors = with(from, to);
        let (first, _) = errors.split_once("\n\n").unwrap();
        assert!(first.contains("the quote that begins here is not closed in its line"), "{to}: {errors}");
        assert!(first.contains(at) && first.contains("help: end the value with "), "{to}: {errors}");
        assert!(!errors.contains("must be quoted"), "{to}: {errors}");
    }
    // Nor is a quote in a text of several lines, whose fault is a wrong escape.
    let route = "[[route]]\nname = \"all\"\nrespond.body = \"\"\"\nhe \\said \"yes\n\"\"\"\n";
    let (_, errors) = check(&format!("{FRAME}{route}"));
    assert!(errors.contains("missing escaped value") && errors.ends_with(": 1 error\n"), "{errors}");
    // One that is closed is not blamed.
    let errors = with("rate = \"5/s\"", "rate = 5/s # it's quick");
    assert!(errors.contains("must be quoted") && !errors.contains("not closed"), "{errors}");
}

#[test]
fn a_machine_that_is_not_the_gateways_checks_the_text_alone() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = "[log]\nfile = \"none/gateway.log\"\n[dead_letter]\ndirectory = \"none/letters\"\n\
        [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\n\
        tls = { certificates = [{ cert = \"none/a.pem\", key = \"none/a.key\" }] }\n";
    let written = |text: &str| fs::write(directory.path().join("gateway.toml"), text).unwrap();
    written(&format!("{elsewhere}{RULES}"));
    let (status, _, errors) = run(&["check"], directory.path());
    assert!(!status.success() && errors.contains("none/"), "{errors}");
    let (status, out, errors) = run(&["check", "--no-files", "--strict"], directory.path());
    assert!(status.success() && out.contains(": ok (1 route") && out.contains("were not looked at\n"), "{out}{errors}");
    let (_, out, _) = run(&["check", "--no-files", "--json"], directory.path());
    assert!(out.contains("\"files_checked\": false"), "{out}");
    assert!(!directory.path().join("none").exists());
    written(&format!("{elsewhere}{}", RULES.replace("5/s", "5/x")));
    let (status, _, errors) = run(&["check", "--no-files"], directory.path());
    assert!(!status.success() && errors.contains("5/x") && !errors.contains("none/"), "{errors}");
}

#[test]
fn networks_that_are_all_together_are_everybody() {
    let warns = |networks: &str| {
        let (is_right, errors) = check(&format!("{FRAME}[client]\ntrusted_proxies = [{networks}]\n{RULES}"));
        assert!(is_right, "{errors}");
        errors.contains("everybody is a trusted proxy")
    };
    assert!(warns("\"0.0.0.0/0\"") && warns("\"0.0.0.0/1\", \"128.0.0.0/1\"") && warns("\"8000::/1\", \"::/1\""));
    assert!(!warns("\"0.0.0.0/1\", \"128.0.0.0/2\"") && !warns("\"10.0.0.0/8\""));
}

#[test]
fn what_is_no_server_no_rate_and_no_list_says_how_it_is_written() {
    let socket = with("127.0.0.1:9001", "unix:/run/app.sock");
    assert!(
        socket.contains("a server is a host and a port, not a Unix socket") && !socket.contains("65535"),
        "{socket}"
    );
    for (rate, meant) in [("0.5/s", "30/m"), ("5r/s", "5/s"), ("1.5r/m", "90/h")] {
        let errors = with("\"5/s\"", &format!("{rate:?}"));
        assert!(errors.contains(&format!("help: write \"{meant}\": a rate is a whole number")), "{errors}");
    }
    let sections = with("[[listener]]", "[listener]\naddress = \"127.0.0.1:0\"\n[[listener]]");
    assert!(sections.contains("`listener` is written as [listener] and as [[listener]]"), "{sections}");
    assert!(
        sections.contains("write each of its headers as [[listener]]") && !sections.contains("twice"),
        "{sections}"
    );
}

#[test]
fn keys_of_other_programs_have_an_answer_of_their_own() {
    for text in [
        format!("include = \"conf.d/*.toml\"\n{FRAME}{RULES}"),
        format!("[server]\ninclude = \"a.toml\"\n{FRAME}{RULES}"),
    ] {
        let (is_right, errors) = check(&text);
        assert!(!is_right && errors.contains("the configuration is one file, and includes none"), "{errors}");
        assert!(!errors.contains("move it below"), "{errors}");
    }
    for (key, says) in [
        ("allow = [\"10.0.0.0/8\"]", "by `allow` and `deny` of [client]"),
        ("gzip = true", "the gateway compresses nothing"),
        ("proxy_pass = \"app\"", "upstream = \"app\""),
    ] {
        let errors = with("upstream = \"app\"\n", &format!("upstream = \"app\"\n{key}\n"));
        assert!(errors.contains(says) && !errors.contains("keys of [[route]]"), "{errors}");
    }
}

#[test]
fn a_proxy_that_is_everybody_and_a_check_that_outlasts_its_interval_are_doubted() {
    for all in ["0.0.0.0/0", "::/0"] {
        let (is_right, warnings) = check(&format!("[client]\ntrusted_proxies = [{all:?}]\n{FRAME}{RULES}"));
        assert!(is_right && warnings.contains("each client chooses the address that it is counted by"), "{warnings}");
    }
    let health =
        |health: &str| check(&format!("{FRAME}{RULES}").replace("servers", &format!("health = {health}\nservers")));
    let (is_right, warnings) = health("{ path = \"/h\", interval = \"5s\", timeout = \"10s\" }");
    assert!(is_right && warnings.contains("longer than the `interval` = 5s"), "{warnings}");
    let right =
        [health("{ path = \"/h\" }"), check(&format!("[client]\ntrusted_proxies = [\"10.0.0.0/8\"]\n{FRAME}{RULES}"))];
    assert!(right.iter().all(|(is_right, warnings)| *is_right && warnings.is_empty()), "{right:?}");
}

#[test]
fn a_limit_that_is_misspelt_has_a_near_one() {
    let gateway = Gateway::start(RULES);
    let admin = format!("http://{}", gateway.admin);
    for words in [
        &["get", "per-cleint", "192.0.2.1"][..],
        &["top", "per-cleint"],
        &["block", "per-cleint", "192.0.2.1"],
        &["override", "per-cleint", "192.0.2.1", "--rate", "5/s"],
    ] {
        let (status, _, error) = run(&[&["keys"], words, &["--admin", &admin]].concat(), gateway.directory.path());
        assert!(!status.success() && error.contains("Did you mean \"per-client\"?"), "{words:?}: {error}");
    }
}

/// The file of marks is another one, with a setting of its own.
#[test]
fn a_state_file_without_its_directory_names_no_setting_of_other_files() {
    let rules = format!("[server]\nstate_file = \"none/counts\"\n{RULES}");
    let gateway = Gateway::start(&rules);
    let log = gateway.log();
    assert!(
        log.contains("counts will not outlive the process") && log.contains("the directory of state_file"),
        "{log}"
    );
    assert!(!log.contains("redact_secret_file"), "{log}");
}
