//! Changes that routes make in messages: mistakes.

use std::fs;
use std::path::Path;

use super::{Certificates, parse};
use sluicegate_time::Wall;

const REST: &str = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"all\"\n";

/// The messages about a route with these lines, whose files are there.
fn messages(route: &str, files: &[(&str, &[u8])]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    let file = directory.path().join("gateway.toml");
    match parse(&format!("{REST}{route}\n"), &file, Certificates::Strict(Wall::EPOCH)) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.diagnostics().iter().map(|one| one.message.clone()).collect(),
    }
}

#[test]
fn files_are_read_and_bounded() {
    let respond = "respond = { file = \"page.html\" }";
    let refusal = "respond = {}\nrefusal = { body_file = \"page.html\" }";
    let none: &[String] = &[];
    for route in [respond, refusal] {
        assert_eq!(messages(route, &[("page.html", b"{limit} {{other}}")]), none, "{route}");
        let large = vec![b'x'; (1 << 20) + 1];
        assert_eq!(messages(route, &[("page.html", &large[1..])]), none, "{route}");
        for (files, why) in
            [(&[][..], "there is no such file"), (&[("page.html", large.as_slice())], "it is larger than 1 MiB")]
        {
            let said = messages(route, files);
            assert!(said.len() == 1 && said[0].ends_with(why), "{route}: {said:?}");
        }
    }
    assert_eq!(messages(respond, &[("page.html", b"\xff{nothing}")]), none, "what is sent as it is may be anything");
    assert_eq!(
        messages(refusal, &[("page.html", b"<p>\n{nothing}")]),
        ["line 2 of \"page.html\": there is no variable {nothing}"]
    );
    assert_eq!(messages(refusal, &[("page.html", b"\xff")]), ["`body_file` = \"page.html\" is not UTF-8"]);
}

#[test]
fn a_path_goes_as_it_came_or_rewritten_and_not_both() {
    let forward = "upstream = \"a\"\npath_as_received = ";
    let rewrite = "rewrite = { prefix = \"/v2\" }";
    let upstream = "[[upstream]]\nname = \"a\"\nservers = [\"127.0.0.1:2\"]";
    for (value, rewrite, expected) in
        [("true", "", &[][..]), ("false", rewrite, &[]), ("true", rewrite, &["`rewrite` beside `path_as_received`"])]
    {
        assert_eq!(messages(&format!("{forward}{value}\n{rewrite}\n{upstream}"), &[]), expected, "{value}");
    }
}

#[test]
fn what_bounds_no_connections() {
    let text = r#"[server]
max_connections = "many"
max_requests = 0

[client]
allow = []
max_connections = "auto"
connection_rate = "20"

[[listener]]
address = "127.0.0.1:8080"
max_connections = 10000001

[[route]]
name = "all"
respond = {}
"#;
    let parsed = parse(text, Path::new("gateway.toml"), Certificates::Unread);
    let messages: Vec<_> = parsed
        .unwrap_err()
        .diagnostics()
        .iter()
        .map(|one| format!("{}: {}", one.message, one.help.as_deref().unwrap_or_default()))
        .collect();
    let expected = [
        "`max_connections` takes a whole number, not a string: write it as a number from 1 to 10000000; or \"auto\"",
        "`max_requests` is out of range: `0`: it goes from 1 to 4000000000; or \"none\"",
        "`max_connections` takes a whole number, not a string: write it as a number from 1 to 10000000; or \"none\"",
        "invalid connection rate \"20\": \
         a rate is a whole number, a slash and a time, like \"100/s\" or \"20/100ms\"; or \"none\"",
        "`max_connections` is out of range: `10000001`: it goes from 1 to 10000000; or \"none\"",
    ];
    assert_eq!(messages, expected);
}

#[test]
fn no_message_repeats_credentials() {
    let many = "{client_ip}".repeat(17);
    for route in [
        "request_headers = { set = { authorization = \"Bearer SECRET \" } }",
        "response_headers = { add = { Set-Cookie = [\"a\", \"{SECRET}\"] } }",
        &format!("request_headers = {{ set = {{ x-api-key = \"SECRET{many}\" }} }}"),
        "headers = { cookie = \" SECRET\" }",
        // A list in the line below its key is a header.
        "exempt =\n  [\"SECRET\"]",
        "exempt =\n\"SECRET\" = 5",
        // The quotes that were to end a text begin one.
        "path = \"\" x '''\ny'''\nz = \"SECRET\n'''",
    ] {
        let text =
            format!("[[listener]]\naddress = \"127.0.0.1:8080\"\n[[route]]\nname = \"all\"\nrespond = {{}}\n{route}\n");
        let errors = parse(&text, Path::new("gateway.toml"), Certificates::Unread).unwrap_err();
        for told in errors.diagnostics() {
            let text = format!("{}\n{}", told.message, told.help.as_deref().unwrap_or_default());
            assert!(!text.contains("SECRET"), "{text}");
        }
    }
}

#[test]
fn a_plan_has_no_secret_of_a_route() {
    let model = |route: &str, limit: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[limit]]\nname = \"l\"\nrate = \"9/s\"\n{limit}\n\
             [[route]]\nname = \"all\"\nlimits = [\"l\"]\n{route}\n"
        );
        parse(&text, Path::new("gateway.toml"), Certificates::Unread).unwrap().model
    };
    let refusal = "refusal = { headers = { set-cookie = \"s=SECRET\" } }";
    let plan = |before: &str, after: &str| super::diff(&model(before, ""), &model(after, refusal)).to_string();
    let told = plan(
        "respond = {}",
        "respond = {}\nrequest_headers = { set = { authorization = \"Bearer SECRET\", x-a = \"1\" } }\n\
         response_headers = { add = { set-cookie = \"s=SECRET\" } }\nheaders = { x-internal-token = \"SECRET\", x-b = \"2\" }",
    );
    assert!(!told.contains("SECRET"), "{told}");
    for part in [
        "+authorization=[redacted, another one]",
        "+x-a=\"1\"",
        "+set-cookie+=[redacted, another one]",
        "+x-internal-token:[redacted, another one]",
        "+x-b:\"2\"",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told =
        plan("redirect = { to = \"https://a.example/?token=SECRET\" }", "redirect = { to = \"/x?token=SECRET2\" }");
    assert!(
        told.contains("[redacted] -> redirect") && told.contains("[redacted], another one") && !told.contains("SECRET"),
        "{told}"
    );
    // A secret that was changed is a change.
    let with =
        |secret: &str| format!("respond = {{}}\nrequest_headers = {{ set = {{ authorization = \"{secret}\" }} }}");
    let told = plan(&with("SECRET1"), &with("SECRET2"));
    assert!(told.contains("+authorization=[redacted, another one] -authorization=[redacted]"), "{told}");
}
