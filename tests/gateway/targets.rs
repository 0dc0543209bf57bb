//! The target, the host and the fields as the upstream gets them, whatever form the client chose.

use crate::support::{Backend, Gateway};
use crate::wire::{Message, Wire, front, get, ok, rules, telling};

fn as_seen(gateway: &Gateway, backend: &Backend, head: &str) -> Message {
    let before = backend.requests();
    let answer = Wire::with(gateway.address(), head).answer();
    assert_eq!(answer.status(), 200, "{head:?}: {answer:?}");
    backend.seen.lock().unwrap()[before].clone()
}

#[test]
fn the_host_of_an_absolute_target_wins() {
    let backend = telling();
    let gateway = front(&backend);
    for (target, line, host) in [
        ("http://other.example/x?y=1", "GET /x?y=1 HTTP/1.1", "other.example"),
        ("http://other.example:8080/x", "GET /x HTTP/1.1", "other.example:8080"),
        ("HTTP://other.example", "GET / HTTP/1.1", "other.example"),
        ("https://other.example?q", "GET /?q HTTP/1.1", "other.example"),
        ("http://[::1]:81/", "GET / HTTP/1.1", "[::1]:81"),
        ("/plain", "GET /plain HTTP/1.1", "claimed.example"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: claimed.example\r\n\r\n");
        let seen = as_seen(&gateway, &backend, &head);
        assert_eq!(seen.line, line, "{target}");
        assert_eq!(seen.all("host"), [host], "{target}");
        assert_eq!(seen.all("x-forwarded-host"), [host], "{target}");
    }
    let old = as_seen(&gateway, &backend, "GET http://other.example/old HTTP/1.0\r\n\r\n");
    assert_eq!((old.line.as_str(), old.all("host")), ("GET /old HTTP/1.1", vec!["other.example"]));
}

#[test]
fn routes_by_host_go_by_the_absolute_targets_host() {
    let backend = telling();
    let gateway = Gateway::start(&format!(
        "{}[[route]]\nname = \"named\"\nhosts = [\"named.example\"]\nrespond = {{ status = 418, body = \"named\\n\" }}\n",
        rules(&backend, "", "").replace("[dead_letter]\ndirectory = \"dead-letters\"\n", "")
    ));
    let status = |target: &str, host: &str| {
        Wire::with(gateway.address(), format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).answer().status()
    };
    assert_eq!(status("/x", "named.example"), 418);
    assert_eq!(status("/x", "other.example"), 200);
    assert_eq!(status("http://named.example/x", "other.example"), 418);
    assert_eq!(status("http://other.example/x", "named.example"), 200);
    assert_eq!(status("HTTP://NAMED.example:80/x", "other.example"), 418);
}

/// `%3A` is `:` to most servers. So it is to routes, or their limits would not hold for it; the server gets it as it came.
#[test]
fn routes_match_every_spelling_of_a_delimiter() {
    let backend = telling();
    let routes = [
        ("exact", "path_exact = \"/v1/items:batch\"", "", "/v1/items:batch", "/v1/items%3abatch", "/v1/items%3Abatch"),
        ("escaped", "path_exact = \"/at%40\"", "", "/at@", "/at%40", "/at%40"),
        ("prefix", "path = \"/a:b\"", "", "/a:b/%21", "/a%3Ab/%21/..", "/a%3Ab/"),
        ("regex", "path_regex = '/login(;.*)?'", "", "/login;x", "/login%3Bx", "/login%3Bx"),
        (
            "moved",
            "path = \"/m(1)\"",
            "rewrite = { prefix = \"/new%3B\" }",
            "/m(1)",
            "/m%281)/%3B%20:",
            "/new%3B/%3B%20:",
        ),
        (
            "groups",
            "path_regex = '/u/([^/]*);/(.*)'",
            "rewrite = { to = \"/{2}?id={1}\" }",
            "/u/1;/x",
            "/u/%261%3B/%20%3Ax",
            "/%20%3Ax?id=%261",
        ),
    ];
    let limited = routes.map(|(name, path, more, ..)| {
        format!(
            "[[limit]]\nname = \"{name}\"\nkey = \"client-ip\"\nrate = \"2/1h\"\n\
             [[route]]\nname = \"{name}\"\n{path}\nupstream = \"app\"\nlimits = [\"{name}\"]\n{more}\n"
        )
    });
    let gateway = Gateway::start(&(rules(&backend, "", "") + &limited.concat()));
    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    for (name, _, _, plain, escaped, sent) in routes {
        as_seen(&gateway, &backend, &head(plain));
        assert_eq!(as_seen(&gateway, &backend, &head(escaped)).line, format!("GET {sent} HTTP/1.1"), "{name}");
        for path in [plain, escaped] {
            assert_eq!(Wire::with(gateway.address(), head(path)).answer().status(), 429, "{name}: {path}");
        }
    }
    // An escape of what is no delimiter is told from it, and one that is escaped itself stays so.
    for path in ["/v1/items%253Abatch", "/login%2Fx", "/at%2540"] {
        let expected = if path.contains("%2F") { 400 } else { 200 };
        assert_eq!(Wire::with(gateway.address(), head(path)).answer().status(), expected, "{path}");
    }
}

/// URLs that are signed break when they are spelt anew. Routes and limits go by the one spelling all the same.
#[test]
fn a_route_may_send_the_path_as_it_came() {
    let backend = telling();
    let more = "[[limit]]\nname = \"l\"\nkey = \"path\"\nrate = \"1/1h\"\n\
                [[route]]\nname = \"signed\"\npath = \"/signed\"\nupstream = \"app\"\nlimits = [\"l\"]\n\
                path_as_received = true\n\
                [[route]]\nname = \"slashes\"\npath = \"/slashes\"\nupstream = \"app\"\n\
                path_as_received = true\nallow_encoded_slash = true\n";
    let gateway = Gateway::start(&(rules(&backend, "", "") + more));
    let head = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
    for (target, sent) in [
        ("/signed//b", "/signed//b"),
        ("//signed/c", "//signed/c"),
        ("/signed/%7e%41?a=/../%7e", "/signed/%7e%41?a=/../%7e"),
        ("/s%69gned/%c3%a4", "/s%69gned/%c3%a4"),
        ("/signed/{d}[1]^|", "/signed/{d}[1]^|"),
        ("http://h/signed///", "/signed///"),
        ("/slashes/a%2fb", "/slashes/a%2fb"),
        ("/slashes/a\\b", "/slashes/a\\b"),
        ("/plain//b/%7e", "/plain/b/~"),
    ] {
        assert_eq!(as_seen(&gateway, &backend, &head(target)).line, format!("GET {sent} HTTP/1.1"), "{target}");
    }
    // The same path by its one spelling.
    for target in ["/signed/b", "/signed///b", "/%73igned//b"] {
        assert_eq!(Wire::with(gateway.address(), head(target)).answer().status(), 429, "{target}");
    }
    let before = backend.requests();
    for target in [
        "/signed/./new",
        "/signed/a/../new",
        "/signed/%2e%2E/signed/new",
        "/signed/a/.%2e",
        "/x/../signed/new",
        "/signed/new/.",
        "/signed/a%2Fb",
        "/signed/a\\b",
        "/signed/`",
    ] {
        assert_eq!(Wire::with(gateway.address(), head(target)).answer().status(), 400, "{target}");
    }
    assert_eq!(backend.requests(), before);
    gateway.wait_metric("sluicegate_http1_faults_total", &["side=\"client\"", "reason=\"dot-segments\""], 6.0);
}

#[test]
fn an_asterisk_is_a_target_of_options_alone() {
    let backend = telling();
    let gateway = front(&backend);
    for head in ["OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS http://h HTTP/1.1\r\nHost: other\r\n\r\n"] {
        let seen = as_seen(&gateway, &backend, head);
        assert_eq!((seen.line.as_str(), seen.all("host")), ("OPTIONS * HTTP/1.1", vec!["h"]), "{head:?}");
    }
    let slash = as_seen(&gateway, &backend, "OPTIONS / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(slash.line, "OPTIONS / HTTP/1.1");
    for method in ["GET", "POST", "HEAD", "options"] {
        let mut wire = Wire::with(gateway.address(), format!("{method} * HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!(wire.answer_to(method).status(), 400, "{method} *");
    }
    assert_eq!(backend.requests(), 3);
}

#[test]
fn what_usually_has_a_body_says_that_it_has_none() {
    let backend = telling();
    let gateway = front(&backend);
    for method in ["POST", "PUT", "PATCH", "GET", "DELETE", "OPTIONS"] {
        let seen = as_seen(&gateway, &backend, &format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n"));
        let length = if matches!(method, "POST" | "PUT" | "PATCH") { vec!["0"] } else { vec![] };
        assert_eq!(seen.all("content-length"), length, "{method}");
    }
}

#[test]
fn max_forwards_of_options_and_trace_counts_down_and_ends_here_at_0() {
    let backend = telling();
    let gateway = front(&backend);
    for (method, value, sent) in [
        ("OPTIONS", "1", "0"),
        ("OPTIONS", "10", "9"),
        ("TRACE", "007", "6"),
        ("OPTIONS", "99999999999999999999", "4294967294"),
        ("OPTIONS", "-1", "-1"),
        ("OPTIONS", "1, 2", "1, 2"),
        ("GET", "1", "1"),
        ("GET", "0", "0"),
    ] {
        let head = format!("{method} / HTTP/1.1\r\nHost: h\r\nMax-Forwards: {value}\r\n\r\n");
        assert_eq!(as_seen(&gateway, &backend, &head).all("max-forwards"), [sent], "{method} {value}");
    }
    let before = backend.requests();
    for (method, target, status) in [("OPTIONS", "/", 200), ("OPTIONS", "*", 200), ("TRACE", "/", 501)] {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\nMax-Forwards: 0\r\nCookie: a=b\r\n\r\n");
        let answer = Wire::with(gateway.address(), head).answer();
        assert_eq!((answer.status(), answer.all("content-length"), answer.text().as_str()), (status, vec!["0"], ""));
    }
    assert_eq!(backend.requests(), before);
}

#[test]
fn fields_that_connection_names_go_no_further_upstream() {
    let backend = telling();
    let gateway = front(&backend);
    let seen = as_seen(
        &gateway,
        &backend,
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: x-one , X-TWO\r\nX-One: 1\r\nx-two: 2\r\nX-Three: 3\r\n\
         Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nConnection: x-four\r\nX-Four: 4\r\n\r\n",
    );
    for gone in ["connection", "x-one", "x-two", "x-four", "keep-alive", "proxy-connection", "te"] {
        assert!(seen.all(gone).is_empty(), "{gone} was forwarded: {seen:?}");
    }
    assert_eq!(seen.header("x-three"), Some("3"));
}

#[test]
fn connection_cannot_name_away_what_the_gateway_adds() {
    let backend = telling();
    let gateway = front(&backend);
    let seen = as_seen(
        &gateway,
        &backend,
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 6.6.6.6\r\nCookie: a=b\r\nAuthorization: Basic eDp5\r\n\
         Connection: x-forwarded-for, x-forwarded-proto, x-forwarded-host, x-request-id, via, traceparent, host, cookie, \
         authorization\r\n\r\n",
    );
    assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.all("x-forwarded-proto"), ["http"]);
    assert_eq!((seen.all("host"), seen.all("x-forwarded-host")), (vec!["h"], vec!["h"]));
    assert_eq!((seen.all("x-request-id").len(), seen.all("via").len()), (1, 1));
    assert_eq!(seen.all("via"), ["1.1 sluicegate"]);
    assert_eq!((seen.header("cookie"), seen.header("authorization")), (Some("a=b"), Some("Basic eDp5")));
}

#[test]
fn fields_that_the_upstreams_connection_names_do_not_reach_the_client() {
    let backend = Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            wire.send(
                "HTTP/1.1 200 OK\r\nConnection: x-hop, Keep-Alive\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\
                 Upgrade: h2c\r\nX-End: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok",
            );
        }
    });
    let gateway = front(&backend);
    let answer = Wire::open(gateway.address()).get("/");
    for gone in ["x-hop", "keep-alive", "upgrade"] {
        assert!(answer.all(gone).is_empty(), "{gone} was forwarded: {answer:?}");
    }
    assert_eq!((answer.header("x-end"), answer.all("set-cookie")), (Some("2"), vec!["a=1", "b=2"]));
    assert_eq!(answer.text(), "ok");
}

#[test]
fn the_order_and_the_bytes_of_fields_are_kept() {
    let backend = telling();
    let gateway = front(&backend);
    let seen = as_seen(
        &gateway,
        &backend,
        "GET / HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-b:\t two  words \r\nX-A: 2\r\nX-Empty:\r\nX-Quote: \"a, b\";c\r\n\r\n",
    );
    let own: Vec<(&str, &str)> = seen
        .headers
        .iter()
        .filter(|(name, _)| ["x-a", "x-b", "x-empty", "x-quote"].contains(&name.as_str()))
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(own, [("x-a", "1"), ("x-b", "two  words"), ("x-a", "2"), ("x-empty", ""), ("x-quote", "\"a, b\";c")]);
}

#[test]
fn the_reason_phrase_and_unusual_statuses_pass() {
    let backend = Backend::scripted(|wire, _| {
        while let Ok(request) = wire.request() {
            wire.send(match request.target() {
                "/teapot" => "HTTP/1.1 299 Quite Fine\r\nContent-Length: 0\r\n\r\n".to_owned(),
                "/bare" => "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n".to_owned(),
                "/empty" => "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n".to_owned(),
                "/high" => "HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n".to_owned(),
                _ => ok("other"),
            });
        }
    });
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/teapot").line, "HTTP/1.1 299 Quite Fine");
    assert_eq!(wire.get("/bare").status(), 200);
    assert_eq!(wire.get("/empty").status(), 200);
    assert_eq!(wire.get("/high").status(), 999);
    assert_eq!(wire.send(get("/")).then(|| wire.answer().text()).as_deref(), Some("other"));
}
