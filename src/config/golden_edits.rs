//! Changes that routes make in messages: reports word for word.

use std::fs;
use std::path::Path;

use super::{Certificates, parse};
use crate::time::Wall;

#[test]
fn what_cannot_be_changed_or_said() {
    let text = r#"[[listener]]
address = "127.0.0.1:8080"

[[upstream]]
name = "app"
servers = ["echo:a"]

[[limit]]
name = "l"
rate = "9/s"
status = 429
refusal = { status = 503, content_type = "html", headers = { retry-after = "{retry_afer}" } }

[[route]]
name = "a"
path = "/a"
limits = ["l"]
upstream = "app"
request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
response_headers = { set = { content-length = "0", x-c = "{1}", x-d = " y" } }
rewrite = { prefix = "v2" }
host = "a b"

[[route]]
name = "b"
path_regex = '/b/(.*)'
redirect = { to = "www.example.com/{2}", status = 304 }

[[route]]
name = "c"
path_regex = '/c/(.*)'
redirect = { to = "https://www.example.com/{2}" }

[[route]]
name = "d"
path_exact = "/d"
upstream = "app"
rewrite = { prefix = "/x" }

[[route]]
name = "e"
path = "/e"
upstream = "app"
rewrite = { regex = '/e/(', to = "/x" }

[[route]]
name = "f"
path = "/f"
respond = { body = "x", file = "y", content_type = "t" }

[[route]]
name = "g"
path = "/g"
respond = { status = 204, file = "missing.html" }
request_headers = { set = { a = "b" } }
refusal = { body_file = "bad.html" }

[[route]]
name = "h"
path = "/h"
upstream = "app"
rewrite = { regex = '/h' }
cors = { allow_origins = ["https://a.example"], allow_methods = ["get"], allow_headers = ["x y"], preflight = "both" }

[[route]]
name = "i"
upstream = "app"
rewrite = { to = "x#y" }
redirect = { to = "/x" }
"#;
    let report = r#"
error: `content_type` without `body_file`
  --> gateway.toml:12:27
   |
12 | refusal = { status = 503, content_type = "html", headers = { retry-after = "{retry_afer}" } }
   |                           ^^^^^^^^^^^^
   |
   = help: name the file, or remove content_type

error: there is no variable {retry_afer} in "{retry_afer}"
  --> gateway.toml:12:76
   |
12 | refusal = { status = 503, content_type = "html", headers = { retry-after = "{retry_afer}" } }
   |                                                                            ^^^^^^^^^^^^^^
   |
   = help: did you mean {retry_after}? As text it is written {{retry_afer}}

error: the header `x-a` is there twice
  --> gateway.toml:19:29
   |
19 | request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
   |                             ^^^
   |
   = note: the other is at gateway.toml:19:61
   = help: header names are the same in upper and lower case

error: there is no variable {clientip} in "{clientip}"
  --> gateway.toml:19:35
   |
19 | request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
   |                                   ^^^^^^^^^^^^
   |
   = help: did you mean {client_ip}? As text it is written {{clientip}}

error: `host` is not changed here
  --> gateway.toml:19:49
   |
19 | request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
   |                                                 ^^^^
   |
   = help: the route's own `host` says which Host the server gets

error: the variable {status} is not known here in "{status}"
  --> gateway.toml:19:78
   |
19 | request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
   |                                                                              ^^^^^^^^^^
   |
   = help: here there are client_ip, peer_ip, request_id, method, scheme, host, authority, path, query, uri, route, tls_subject, tls_fingerprint, proxy_authority, proxy_unique_id, plan, limit, quota, remaining, upstream, server, header:NAME, cookie:NAME; as text it is written {{status}}

error: the header `x-b` is set and removed
  --> gateway.toml:19:102
   |
19 | request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
   |                                                                                                      ^^^^^
   |
   = note: it is set at gateway.toml:19:72
   = help: to set a header replaces what there is of it: take it out of `remove`

error: the header `te` cannot be changed
  --> gateway.toml:19:109
   |
19 | request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
   |                                                                                                             ^^^^
   |
   = help: it is about one connection or the message's length, and the gateway writes it

error: unknown key `drop` in `request_headers`
  --> gateway.toml:19:116
   |
19 | request_headers = { set = { x-a = "{clientip}", host = "x", X-A = "2", x-b = "{status}" }, remove = ["x-b", "te"], drop = [] }
   |                                                                                                                    ^^^^
   |
   = help: keys of `request_headers`: add, remove, set

error: the header `content-length` cannot be changed
  --> gateway.toml:20:30
   |
20 | response_headers = { set = { content-length = "0", x-c = "{1}", x-d = " y" } }
   |                              ^^^^^^^^^^^^^^
   |
   = help: it is about one connection or the message's length, and the gateway writes it

error: there is no group {1} in "{1}"
  --> gateway.toml:20:58
   |
20 | response_headers = { set = { content-length = "0", x-c = "{1}", x-d = " y" } }
   |                                                          ^^^^^
   |
   = help: groups of a regex are for rewrite and redirect; as text it is written {{1}}

error: invalid header value " y"
  --> gateway.toml:20:71
   |
20 | response_headers = { set = { content-length = "0", x-c = "{1}", x-d = " y" } }
   |                                                                       ^^^^
   |
   = help: a value has no control characters, and no blanks at its ends

error: invalid path "v2"
  --> gateway.toml:21:22
   |
21 | rewrite = { prefix = "v2" }
   |                      ^^^^
   |
   = help: a path begins with a slash and has no query: "/v2"

error: invalid host "a b"
  --> gateway.toml:22:8
   |
22 | host = "a b"
   |        ^^^^^
   |
   = help: write "app.internal" or "app.internal:8080"

error: "www.example.com/{2}" is nowhere to go
  --> gateway.toml:27:19
   |
27 | redirect = { to = "www.example.com/{2}", status = 304 }
   |                   ^^^^^^^^^^^^^^^^^^^^^
   |
   = help: write an address, "https://www.example.com{uri}", or a path of this host, "/new{path}"

error: 304 sends nobody elsewhere
  --> gateway.toml:27:51
   |
27 | redirect = { to = "www.example.com/{2}", status = 304 }
   |                                                   ^^^
   |
   = help: use 307 or 302 for a while, 308 or 301 for good, 303 to GET something else

error: there is no group {2} in "https://www.example.com/{2}"
  --> gateway.toml:32:19
   |
32 | redirect = { to = "https://www.example.com/{2}" }
   |                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
   |
   = help: the regex has the groups {1} to {1}

error: `prefix` replaces the route's `path`, and this route has none
  --> gateway.toml:38:13
   |
38 | rewrite = { prefix = "/x" }
   |             ^^^^^^
   |
   = help: write rewrite = { to = "/x" }

error: invalid regular expression "/e/(": unclosed group
  --> gateway.toml:44:21
   |
44 | rewrite = { regex = '/e/(', to = "/x" }
   |                     ^^^^^^
   |
   = help: see docs.rs/regex for the syntax, and quote it with '...'

error: `body` and `file` in one response
  --> gateway.toml:49:25
   |
49 | respond = { body = "x", file = "y", content_type = "t" }
   |                         ^^^^
   |
   = note: `body` is at gateway.toml:49:13
   = help: remove one of the two

error: a response of status 204 has no body
  --> gateway.toml:54:34
   |
54 | respond = { status = 204, file = "missing.html" }
   |                                  ^^^^^^^^^^^^^^
   |
   = help: remove the body, or use status 200

error: `regex` without `to`
  --> gateway.toml:62:13
   |
62 | rewrite = { regex = '/h' }
   |             ^^^^^
   |
   = help: say what becomes of such a path: to = "/u?id={1}"

error: invalid method "get"
  --> gateway.toml:63:66
   |
63 | cors = { allow_origins = ["https://a.example"], allow_methods = ["get"], allow_headers = ["x y"], preflight = "both" }
   |                                                                  ^^^^^
   |
   = help: methods are upper-case words like "GET" or "POST"

error: invalid header name "x y"
  --> gateway.toml:63:91
   |
63 | cors = { allow_origins = ["https://a.example"], allow_methods = ["get"], allow_headers = ["x y"], preflight = "both" }
   |                                                                                           ^^^^^
   |
   = help: a header name is made of letters, digits and !#$%&'*+-.^_`|~

error: `preflight` cannot be "both"
  --> gateway.toml:63:111
   |
63 | cors = { allow_origins = ["https://a.example"], allow_methods = ["get"], allow_headers = ["x y"], preflight = "both" }
   |                                                                                                               ^^^^^^
   |
   = help: use one of "answer", "forward"

error: invalid server path "x#y"
  --> gateway.toml:68:18
   |
68 | rewrite = { to = "x#y" }
   |                  ^^^^^
   |
   = help: write a path, with a query if it has one: "/u?id={1}"

error: `upstream` and `redirect` in one route
  --> gateway.toml:69:1
   |
69 | redirect = { to = "/x" }
   | ^^^^^^^^
   |
   = note: the first is at gateway.toml:67:1
   = help: remove one: a route forwards a request, answers it, or sends the client elsewhere

gateway.toml: 27 errors"#;
    let errors = parse(text, Path::new("gateway.toml"), Certificates::Unread).unwrap_err().to_string();
    assert_eq!(format!("\n{errors}"), report);
}

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
