//! The changes that routes make to messages, over both protocols.

use std::fs;

use crate::h2::peer;
use crate::support::{Answer, Backend, Client, Gateway, eventually, get_with};
use crate::wire::{Wire, telling, wait_outcome};

/// The protocol of a client.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    Http1,
    Http2,
}

pub const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

impl Protocol {
    /// Asks over a connection of its own, for the host `h`.
    pub fn ask(self, gateway: &Gateway, method: &str, target: &str, fields: &[(&str, &str)]) -> Answer {
        match self {
            Self::Http1 => {
                let fields: Vec<_> = fields.iter().copied().chain([("Host", "h")]).collect();
                Client::connect(gateway.address()).request(method, target, &fields, b"")
            }
            Self::Http2 => peer::run(async {
                let sender = peer::connect(gateway.address()).await;
                let whole = peer::ask(&sender, peer::request(method, target, fields)).await.unwrap();
                let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
                let headers = whole.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
                Answer { status: whole.status, headers, body: whole.body }
            }),
        }
    }
}

fn all<'a>(answer: &'a Answer, name: &str) -> Vec<&'a str> {
    let fields = answer.headers.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name));
    fields.map(|(_, value)| value.as_str()).collect()
}

/// A route to an echo server.
fn echoing(route: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n{route}\n"
    )
}

/// A server that answers with the head that it got.
fn showing(answer_fields: &'static str) -> Backend {
    Backend::scripted(move |wire: &mut Wire, _| {
        while let Ok(request) = wire.request() {
            let mut body = format!("{}\n", request.line);
            for (name, value) in &request.headers {
                body.push_str(&format!("{name}: {value}\n"));
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{answer_fields}\r\n", body.len());
            if !wire.send(head + &body) {
                return;
            }
        }
    })
}

fn front(backend: &Backend, route: &str) -> String {
    echoing(route).replace("echo:a", &backend.address.to_string())
}

#[test]
fn fields_of_a_request_are_set_added_and_removed() {
    let gateway = Gateway::start(&echoing(
        "path = \"/{a}\"\nrequest_headers = { set = { x-real-ip = \"{client_ip}\", X-Where = \"{host}{path}?{query} {uri}\", \
         x-forwarded-proto = \"https\", x-none = \"{header:x-absent}\", x-key = \"{header:X-Api-Key}/{cookie:sid}\" }, \
         add = { x-tag = [\"one\", \"{{two}}\"] }, remove = [\"x-debug\", \"via\"] }"
    ).replace("path = \"/{a}\"\n", ""));
    for protocol in BOTH {
        let fields = [
            ("x-real-ip", "6.6.6.6"),
            ("x_where", "forged"),
            ("x-none", "forged"),
            ("x-debug", "1"),
            ("x-tag", "zero"),
            ("x-api-key", "k"),
            ("cookie", "a=b; sid=7"),
        ];
        let answer = protocol.ask(&gateway, "GET", "/p/%7Eme//x?q=1", &fields);
        let echoed = answer.json();
        let all = |name: &str| -> Vec<String> {
            let pairs = echoed["headers"].as_array().unwrap();
            pairs.iter().filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(all("x-real-ip"), ["127.0.0.1"], "{protocol:?}");
        assert_eq!(all("x-where"), ["h/p/~me/x?q=1 /p/~me/x?q=1"], "{protocol:?}");
        assert!(all("x_where").is_empty(), "{protocol:?}: a server might take it for the other");
        assert_eq!(all("x-forwarded-proto"), ["https"], "{protocol:?}");
        assert!(all("x-none").is_empty(), "{protocol:?}: a value that comes out empty is no field");
        assert_eq!(all("x-key"), ["k/7"], "{protocol:?}");
        assert_eq!(all("x-tag"), ["zero", "one", "{two}"], "{protocol:?}");
        assert!(all("x-debug").is_empty() && all("via").is_empty(), "{protocol:?}");
        assert_eq!(all("x-forwarded-for"), ["127.0.0.1"], "{protocol:?}: what is not named stays");
    }
}

#[test]
fn fields_of_every_answer_are_set_added_and_removed() {
    let backend = showing("server: secret\r\nx-powered-by: x\r\nx-frame-options: none\r\n");
    let rules = front(
        &backend,
        "limits = [\"l\"]\nresponse_headers = { set = { x-frame-options = \"DENY\", x-served-by = \"{upstream} {status}\", \
         x-limit = \"{limit} {remaining}/{quota}\", x-id = \"{request_id}\" }, remove = [\"server\", \"X-Powered-By\"] }\n\
         [[limit]]\nname = \"l\"\nrate = \"2/1h\"\nkey = \"method\"",
    );
    let gateway = Gateway::start(&rules);
    for (protocol, method) in BOTH.into_iter().zip(["GET", "DELETE"]) {
        let answer = protocol.ask(&gateway, method, "/", &[]);
        assert_eq!((answer.status, all(&answer, "x-frame-options")), (200, vec!["DENY"]), "{protocol:?}");
        assert!(answer.header("server").is_none() && answer.header("x-powered-by").is_none(), "{protocol:?}");
        assert_eq!(answer.header("x-served-by"), Some("app 200"), "{protocol:?}");
        assert_eq!(answer.header("x-limit"), Some("l 1/2"), "{protocol:?}");
        let id = answer.header("x-id").unwrap();
        assert!(answer.text().contains(&format!("x-request-id: {id}\n")), "{protocol:?}: the one that the server got");
        protocol.ask(&gateway, method, "/", &[]);
        // The gateway's own answers too: what a page must not be framed by does not depend on the hour.
        let refused = protocol.ask(&gateway, method, "/", &[]);
        assert_eq!((refused.status, all(&refused, "x-frame-options")), (429, vec!["DENY"]), "{protocol:?}");
        assert_eq!(refused.header("x-served-by"), Some("429"), "{protocol:?}");
        assert_eq!(refused.header("x-limit"), Some("l 0/2"), "{protocol:?}");
        assert_eq!(refused.header("x-id").unwrap().len(), 32, "{protocol:?}");
    }
}

#[test]
fn a_server_gets_another_path_and_another_host() {
    let backend = showing("");
    let gateway = Gateway::start(&format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[route]]\nname = \"prefix\"\npath = \"/api\"\nupstream = \"app\"\nrewrite = {{ prefix = \"/v2\" }}\nhost = \"app.internal:8080\"\n\
         [[route]]\nname = \"own\"\nhosts = [\"h\"]\npath_regex = '/old/(.*)'\nupstream = \"app\"\nrewrite = {{ to = \"/new/{{1}}?from={{host}}\" }}\n\
         [[route]]\nname = \"regex\"\nupstream = \"app\"\nrewrite = {{ regex = '/users/(?<id>[^/]*)(/.*)?', to = \"/u{{2}}?id={{id}}\" }}\n\
         [[route]]\nname = \"up\"\nhosts = [\"h\"]\npath_regex = '/x(.*)'\nupstream = \"app\"\nrewrite = {{ to = \"/a/{{1}}/admin\" }}\n",
        backend.address
    ));
    for protocol in BOTH {
        for (target, line) in [
            ("/api", "GET /v2 HTTP/1.1"),
            ("/api/x?q=1", "GET /v2/x?q=1 HTTP/1.1"),
            ("/apis", "GET /apis HTTP/1.1"),
            ("/old/%41b", "GET /new/Ab?from=h HTTP/1.1"),
            ("/old/a?q=1&r", "GET /new/a?from=h&q=1&r HTTP/1.1"),
            ("/users/7", "GET /u?id=7 HTTP/1.1"),
            ("/users/a%20b/c?x", "GET /u/c?id=a%20b&x HTTP/1.1"),
            ("/user/7", "GET /user/7 HTTP/1.1"),
            // Of two dots that were no segment before, none is made.
            ("/x..", "GET /admin HTTP/1.1"),
            ("/x", "GET /a/admin HTTP/1.1"),
        ] {
            let answer = protocol.ask(&gateway, "GET", target, &[]);
            assert_eq!(answer.text().lines().next(), Some(line), "{protocol:?} {target}");
            let is_api = target.starts_with("/api") && target != "/apis";
            let host = if is_api { "host: app.internal:8080\n" } else { "host: h\n" };
            assert!(answer.text().contains(host), "{protocol:?} {target}: {}", answer.text());
            assert!(answer.text().contains("x-forwarded-host: h\n"), "{protocol:?} {target}");
        }
    }
}

#[test]
fn a_redirect_leads_elsewhere() {
    let gateway = Gateway::start(
        "[[route]]\nname = \"host\"\nredirect = { to = \"https://www.example.com{uri}\", status = 308 }\n\
         [[route]]\nname = \"old\"\npath_regex = '/old/(.+)'\nhosts = [\"h\"]\nredirect = { to = \"/new/{1}?by={header:x-by}\" }\n",
    );
    for protocol in BOTH {
        for (target, status, location) in [
            ("/", 308, "https://www.example.com/"),
            ("/a%2fb/%7e?q=%20", 400, ""),
            ("/a/%7e//?q=%201", 308, "https://www.example.com/a/~/?q=%201"),
            ("//evil.example/x", 308, "https://www.example.com/evil.example/x"),
        ] {
            let answer = protocol.ask(&gateway, "GET", target, &[("x-by", "a b&c\u{e9}")]);
            assert_eq!(answer.status, status, "{protocol:?} {target}");
            assert_eq!(answer.header("location").unwrap_or_default(), location, "{protocol:?} {target}");
        }
        let answer = protocol.ask(&gateway, "POST", "/old/x/y", &[("x-by", "a b&c")]);
        assert_eq!((answer.status, answer.header("location")), (307, Some("/new/x/y?by=a%20b%26c")), "{protocol:?}");
        assert!(!answer.body.is_empty());
    }
}

#[test]
fn a_file_is_sent_as_what_it_is_and_a_change_of_it_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let page = "<h1>{client_ip}</h1>".repeat(40_000);
    fs::write(directory.path().join("page.html"), &page).unwrap();
    fs::write(directory.path().join("logo.svg"), "<svg/>").unwrap();
    let rules = "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[route]]\nname = \"page\"\nrespond = { status = 503, file = \"page.html\" }\n\
         [[route]]\nname = \"logo\"\npath = \"/logo\"\nrespond = { file = \"logo.svg\" }\n\
         [[route]]\nname = \"json\"\npath = \"/json\"\nrespond = { body = '{\"host\":1}', content_type = \"application/json\" }\n";
    let gateway = Gateway::start_in(directory, rules);
    for protocol in BOTH {
        let answer = protocol.ask(&gateway, "GET", "/", &[]);
        assert_eq!((answer.status, answer.body.len()), (503, page.len()), "{protocol:?}");
        assert!(answer.body == page.as_bytes(), "{protocol:?}: as it is, braces too");
        assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"), "{protocol:?}");
        let head = protocol.ask(&gateway, "HEAD", "/", &[]);
        assert_eq!(head.header("content-length"), Some(page.len().to_string().as_str()), "{protocol:?}");
        assert!(head.body.is_empty());
        let answer = protocol.ask(&gateway, "GET", "/logo", &[]);
        assert_eq!((answer.text().as_str(), answer.header("content-type")), ("<svg/>", Some("image/svg+xml")));
        let answer = protocol.ask(&gateway, "GET", "/json", &[]);
        assert_eq!((answer.text().as_str(), answer.header("content-type")), ("{\"host\":1}", Some("application/json")));
    }
    // Twice over one connection: nothing of the one is left for the other.
    let mut client = Client::connect(gateway.address());
    for (target, bytes) in [("/", page.len()), ("/logo", 6), ("/", page.len()), ("/json", 10), ("/", page.len())] {
        assert_eq!(client.get(target).body.len(), bytes, "{target}");
    }
    fs::write(gateway.directory.path().join("page.html"), "short").unwrap();
    assert!(eventually(|| get_with(gateway.address(), "/", &[]).text() == "short"));
    // Moved over: written in place it would be taken over at a length that is not too large yet.
    fs::write(gateway.directory.path().join("large"), vec![b'x'; (1 << 20) + 1]).unwrap();
    fs::rename(gateway.directory.path().join("large"), gateway.directory.path().join("page.html")).unwrap();
    assert!(eventually(|| gateway.log().contains("it is larger than 1 MiB")));
    assert_eq!(get_with(gateway.address(), "/", &[]).text(), "short", "a file that cannot be used changes nothing");
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_a_large_page() {
    let directory = tempfile::tempdir().unwrap();
    let page = "0123456789abcdef".repeat(65_536);
    fs::write(directory.path().join("page.txt"), &page).unwrap();
    let rules = "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[route]]\nname = \"page\"\nrespond = { file = \"page.txt\" }\n";
    let gateway = Gateway::start_in(directory, rules);
    let wires: Vec<_> = (0..20).map(|_| Wire::with(gateway.address(), crate::wire::get("/"))).collect();
    for mut wire in wires {
        assert!(wire.answer().body == page.as_bytes());
    }
    wait_outcome(&gateway, "responded", 20);
}

const REFUSING: &str = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
     [[limit]]\nname = \"own\"\nrate = \"1/1h\"\nkey = \"method\"\nrefusal = { status = 503, body_file = \"sorry.html\", \
     headers = { x-why = \"{limit} {retry_after}\", retry-after = \"7\" } }\n\
     [[limit]]\nname = \"plain\"\nrate = \"1/1h\"\nkey = \"method\"\nstatus = 420\n\
     [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"own\"]\n\
     refusal = { body_file = \"sorry.json\" }\n\
     [[route]]\nname = \"api\"\npath = \"/api\"\nupstream = \"app\"\nlimits = [\"plain\"]\n\
     refusal = { body_file = \"sorry.json\" }\n\
     [dead_letter]\ndirectory = \"dead-letters\"\n";

#[test]
fn a_refusal_says_what_the_operator_wrote() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("sorry.html"),
        "<style>p{color:red}</style><p>{limit} {status} {retry_after} {method} {header:x-name} {{limit}}</p>",
    )
    .unwrap();
    fs::write(directory.path().join("sorry.json"), "{\"limit\":\"{limit}\",\"name\":\"{header:x-name}\"}").unwrap();
    let gateway = Gateway::start_in(directory, &format!("{}{REFUSING}", crate::support::FRAME));
    let name = ("x-name", "<b>\"\\");
    for (protocol, method) in BOTH.into_iter().zip(["GET", "DELETE"]) {
        for target in ["/", "/api"] {
            assert_eq!(protocol.ask(&gateway, method, target, &[]).status, 200, "{protocol:?} {target}");
        }
        let answer = protocol.ask(&gateway, method, "/", &[name]);
        let waits: u32 = answer.text().split(' ').nth(2).unwrap().parse().unwrap();
        let page =
            format!("<style>p{{color:red}}</style><p>own 503 {waits} {method} &lt;b&gt;&quot;&#92; {{limit}}</p>");
        assert_eq!((answer.status, answer.text()), (503, page), "{protocol:?}");
        assert!((3500..=3600).contains(&waits), "{waits}");
        assert_eq!(all(&answer, "content-type"), ["text/html; charset=utf-8"], "{protocol:?}");
        assert_eq!(all(&answer, "retry-after"), ["7"], "{protocol:?}: set by the file");
        assert_eq!(answer.header("x-why"), Some(format!("own {waits}").as_str()), "{protocol:?}");
        assert!(answer.header("ratelimit").is_some(), "{protocol:?}");
        // Whoever cannot read a page is told as ever.
        let answer = protocol.ask(&gateway, method, "/", &[("accept", "application/json")]);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{protocol:?}");
        assert_eq!((answer.status, answer.header("x-why").is_some()), (503, true), "{protocol:?}");
        let answer = protocol.ask(&gateway, method, "/api", &[name]);
        assert_eq!((answer.status, answer.json()["name"].as_str()), (420, Some("<b>\"\\")), "{protocol:?}");
        assert_eq!(answer.json()["limit"], "plain", "{protocol:?}");
    }
    wait_outcome(&gateway, "refused", 6);
    assert!(eventually(|| gateway.dead_letters().len() == 6));
    let mut statuses: Vec<_> = gateway.dead_letters().iter().map(|letter| letter["status"].as_u64().unwrap()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [420, 420, 503, 503, 503, 503], "what went out is what is recorded");
}

#[test]
fn browsers_are_told_by_the_gateway_what_scripts_may() {
    let backend = showing("access-control-allow-origin: *\r\naccess-control-allow-credentials: maybe\r\n");
    let rules = front(
        &backend,
        "methods = [\"PUT\"]\nlimits = [\"l\"]\ncors = { allow_origins = [\"https://app.example\"], allow_credentials = true, \
         allow_methods = [\"PUT\"], max_age = \"1h\" }\n\
         [[route]]\nname = \"theirs\"\npath = \"/theirs\"\nupstream = \"app\"\n\
         cors = { allow_origins = [\"https://app.example\"], preflight = \"forward\" }\n\
         [[limit]]\nname = \"l\"\nrate = \"1/1h\"\nkey = \"header:x-client\"",
    );
    let gateway = Gateway::start(&rules);
    let app = ("origin", "https://app.example");
    let asks = ("access-control-request-method", "PUT");
    for (protocol, client) in BOTH.into_iter().zip(["one", "two"]) {
        let client = ("x-client", client);
        for _ in 0..3 {
            let answer =
                protocol.ask(&gateway, "OPTIONS", "/", &[app, asks, ("access-control-request-headers", "x-a")]);
            assert_eq!((answer.status, answer.body.len()), (204, 0), "{protocol:?}");
            assert_eq!(all(&answer, "access-control-allow-origin"), ["https://app.example"], "{protocol:?}");
            assert_eq!(all(&answer, "access-control-allow-methods"), ["PUT"], "{protocol:?}");
            assert_eq!(all(&answer, "access-control-allow-headers"), ["x-a"], "{protocol:?}");
            assert_eq!(all(&answer, "access-control-max-age"), ["3600"], "{protocol:?}");
        }
        let other = protocol.ask(&gateway, "OPTIONS", "/", &[("origin", "https://evil.example"), asks]);
        assert_eq!((other.status, other.header("access-control-allow-origin")), (204, None), "{protocol:?}");
        // Another method's preflight, or none at all, is not this route's.
        for fields in [&[app, ("access-control-request-method", "POST")][..], &[app], &[]] {
            assert_eq!(protocol.ask(&gateway, "OPTIONS", "/", fields).status, 404, "{protocol:?} {fields:?}");
        }
        for (status, fields) in [(200, [app, client]), (429, [app, client])] {
            let answer = protocol.ask(&gateway, "PUT", "/", &fields);
            assert_eq!(answer.status, status, "{protocol:?}");
            assert_eq!(all(&answer, "access-control-allow-origin"), ["https://app.example"], "{protocol:?} {status}");
            assert_eq!(all(&answer, "access-control-allow-credentials"), ["true"], "{protocol:?} {status}");
            assert_eq!(all(&answer, "vary"), ["origin"], "{protocol:?} {status}");
        }
        let theirs = protocol.ask(&gateway, "OPTIONS", "/theirs", &[app, asks]);
        assert_eq!(all(&theirs, "access-control-allow-origin"), ["*"], "{protocol:?}: the upstream's own word");
        assert!(theirs.text().starts_with("OPTIONS /theirs"), "{protocol:?}");
    }
}

#[test]
fn a_change_of_the_file_is_a_change_of_what_is_changed() {
    let backend = telling();
    let gateway = Gateway::start(&front(&backend, "response_headers = { set = { x-v = \"1\" } }"));
    assert_eq!(get_with(gateway.address(), "/", &[]).header("x-v"), Some("1"));
    let route = "response_headers = { set = { x-v = \"2\" }, remove = [\"x-w\"] }\nrewrite = { prefix = \"/z\" }";
    let answer = gateway.reload(&front(&backend, route));
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The watcher may have taken it first: then the answer is that nothing changed.
    let told = || gateway.log().contains("+x-v=") && gateway.log().contains("rewrite");
    assert!(eventually(told), "{}", gateway.log());
    let answer = get_with(gateway.address(), "/a", &[]);
    assert_eq!((answer.header("x-v"), answer.text().ends_with("/z/a")), (Some("2"), true), "{}", answer.text());
}

#[test]
fn nobody_is_led_to_another_host_by_what_a_client_wrote() {
    let gateway = Gateway::start(
        "[[route]]\nname = \"one\"\npath_regex = '/one(.*)'\nredirect = { to = \"/{1}\" }\n\
         [[route]]\nname = \"two\"\npath = \"/two\"\nredirect = { to = \"/{query}\" }\n\
         [[route]]\nname = \"host\"\npath = \"/host\"\nredirect = { to = \"https://{host}{path}\" }\n",
    );
    for protocol in BOTH {
        for (target, location) in [
            ("/one/evil.example/x", "/evil.example/x"),
            ("/one", "/"),
            ("/two?/evil.example/", "/evil.example/"),
            ("/host/x", "https://h/host/x"),
        ] {
            let answer = protocol.ask(&gateway, "GET", target, &[]);
            assert_eq!(answer.header("location"), Some(location), "{protocol:?} {target}");
        }
    }
    let mut wire = Wire::with(gateway.address(), "GET /host HTTP/1.0\r\n\r\n");
    assert_eq!(wire.answer().status(), 400, "it does not say which host it is for");
}

#[test]
fn what_is_removed_comes_by_no_other_way() {
    let backend = Backend::scripted(|wire: &mut Wire, _| {
        while let Ok(request) = wire.request() {
            let names: Vec<_> =
                request.headers.iter().chain(&request.trailers).map(|(name, _)| name.to_ascii_lowercase()).collect();
            let forged = names.iter().filter(|name| matches!(name.as_str(), "x-user" | "x_admin" | "x-admin")).count();
            let kept = names.iter().filter(|name| *name == "x-kept").count();
            let answer = format!(
                "HTTP/1.1 103 Early Hints\r\nx-secret: 1\r\nx-hint: 1\r\n\r\n\
                 HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-secret: 1\r\n\r\n\
                 3\r\n{forged} {kept}\r\n0\r\nx-secret: 1\r\nx-told: 1\r\n\r\n"
            );
            if !wire.send(answer) {
                return;
            }
        }
    });
    let gateway = Gateway::start(&front(
        &backend,
        "request_headers = { set = { x-user = \"{tls_subject}\" }, remove = [\"x-admin\"] }\n\
         response_headers = { remove = [\"x-secret\"] }",
    ));
    let mut wire = Wire::with(
        gateway.address(),
        "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\nx-user: root\r\n\r\n\
         1\r\nx\r\n0\r\nx-user: root\r\nx_admin: 1\r\nx-kept: 1\r\n\r\n",
    );
    let hint = wire.head().unwrap();
    assert_eq!((hint.status(), hint.header("x-secret"), hint.header("x-hint")), (103, None, Some("1")));
    let answer = wire.answer_to("POST");
    assert_eq!((answer.text().as_str(), answer.header("x-secret")), ("0 1", None));
    assert_eq!(answer.trailers, [("x-told".to_owned(), "1".to_owned())]);
    peer::run(async {
        let sender = peer::connect(gateway.address()).await;
        let mut trailers = http::HeaderMap::new();
        for name in ["x-user", "x-admin", "x-kept"] {
            trailers.insert(http::HeaderName::from_static(name), http::HeaderValue::from_static("1"));
        }
        let request = peer::request("POST", "/", &[("x-admin", "1")]);
        let whole = peer::post(&sender, request, "x".into(), Some(trailers)).await.unwrap();
        assert_eq!(whole.text(), "0 1");
        let trailers = whole.trailers.unwrap();
        assert!(trailers.get("x-secret").is_none() && trailers.get("x-told").is_some(), "{trailers:?}");
        assert!(whole.interims.iter().all(|(_, fields)| fields.get("x-secret").is_none()), "{:?}", whole.interims);
    });
}

#[test]
fn a_page_that_nobody_reads_is_held_once() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("page.html"), "x".repeat(1 << 20)).unwrap();
    let rules = format!(
        "{}[server]\nworkers = 1\n[[limit]]\nname = \"l\"\nrate = \"1/1h\"\nkey = \"global\"\n\
         refusal = {{ body_file = \"page.html\" }}\n\
         [[route]]\nname = \"page\"\nrespond = {{ file = \"page.html\" }}\n\
         [[route]]\nname = \"refused\"\npath = \"/refused\"\nrespond = {{ status = 204 }}\nlimits = [\"l\"]\n",
        crate::support::FRAME
    );
    let gateway = Gateway::start_in(directory, &rules);
    assert_eq!(get_with(gateway.address(), "/refused", &[]).status, 204);
    for (target, most) in [("/", 16 << 20), ("/refused", 160 << 20)] {
        let before = gateway.resident();
        peer::run(async {
            let sender = peer::connect(gateway.address()).await;
            let mut held = Vec::new();
            for _ in 0..100 {
                held.push(peer::open(&sender, peer::request("GET", target, &[]), true).await);
            }
            // Their heads are here, and of their bodies what the window holds.
            for (response, _) in &mut held {
                let status = response.await.unwrap().status().as_u16();
                assert!(matches!(status, 200 | 429), "{status}");
            }
            let grown = gateway.resident().saturating_sub(before);
            assert!(grown < most, "{target}: grown by {} MiB", grown >> 20);
        });
    }
}
