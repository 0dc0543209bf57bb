//! Answers that the gateway makes itself: nobody keeps them, and gRPC has its form where gRPC is spoken.

use std::io::Write;

use crate::mixes::peers::{Ask, Asker, Http};
use crate::support::{Backend, FRAME, Gateway, PATIENCE, unused_address, write_ok};
use crate::wire::{Message, Wire};

const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// A server that answers at `/`, says nothing at `/hang` and nonsense at `/bad`; and the routes that lead to it, to nobody
/// and to answers of the gateway, each with `route` in it.
fn start(route: &str) -> (Backend, Gateway) {
    let backend = Backend::start(|request, stream| match request.target() {
        "/hang" => {
            std::thread::sleep(PATIENCE);
            false
        }
        "/bad" => write!(stream, "HTTP/1.1 abc\r\n\r\n").is_ok(),
        _ => write_ok(stream, b"told"),
    });
    let nobody = unused_address();
    let routes = [
        ("/", "upstream = \"app\""),
        ("/hang", "upstream = \"app\"\ntimeout = \"100ms\""),
        ("/bad", "upstream = \"app\""),
        ("/large", "upstream = \"app\"\nmax_body_size = \"1B\""),
        ("/nobody", "upstream = \"nobody\""),
        ("/refused", "upstream = \"app\"\nlimits = [\"never\"]"),
        ("/keyless", "upstream = \"app\"\nlimits = [\"keyed\"]"),
        ("/own", "upstream = \"app\"\nlimits = [\"never\"]\nrefusal = { status = 503, body_file = \"later.txt\" }"),
        ("/respond", "respond = { status = 404, body = \"gone\\n\" }"),
        ("/empty", "respond = { status = 204 }"),
        ("/redirect", "redirect = { to = \"/respond\", status = 308 }"),
        ("/cors", "upstream = \"app\"\ncors = { allow_origins = [\"*\"], max_age = \"1h\" }"),
    ];
    let routes = routes.map(|(path, action)| {
        format!(
            "[[route]]\nname = \"r{}\"\nhosts = [\"test.example\"]\npath = \"{path}\"\n{action}\n{route}\n",
            path.trim_start_matches('/')
        )
    });
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("later.txt"), "Later.\n").unwrap();
    let rules = format!(
        "{FRAME}[server]\nmax_head_size = \"8KiB\"\nhead_timeout = \"100ms\"\n\
         [[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[upstream]]\nname = \"nobody\"\nservers = [\"{nobody}\"]\n\
         [[limit]]\nname = \"never\"\nkey = \"global\"\nrate = \"1/1h\"\n\
         [[limit]]\nname = \"keyed\"\nkey = \"header:x-key\"\nrate = \"1/1h\"\non_missing_key = \"refuse\"\n{}",
        backend.address,
        routes.concat()
    );
    let gateway = Gateway::start_in(directory, &rules);
    let first = Asker::open(Http::One, gateway.address()).get("/refused");
    assert_eq!(first.text(), "told", "all that the limit admits");
    (backend, gateway)
}

/// A request, and the status of the answer that the gateway makes.
fn table() -> Vec<(Ask, u16)> {
    let preflight = [("origin", "https://a.example"), ("access-control-request-method", "PUT")];
    let mut table = vec![
        (Ask::get("/refused"), 429),
        (Ask::get("/refused").with(&[("accept", "text/html")]), 429),
        (Ask::get("/keyless"), 429),
        (Ask::get("/own"), 503),
        (Ask::get("/respond"), 404),
        (Ask::new("HEAD", "/respond"), 404),
        (Ask::get("/empty"), 204),
        (Ask::get("/redirect"), 308),
        (Ask::new("OPTIONS", "/cors").with(&preflight), 204),
        (Ask::get("/hang"), 504),
        (Ask::get("/bad"), 502),
        (Ask::get("/nobody"), 502),
        (Ask::post("/large", "two"), 413),
        (Ask::get("/%00"), 400),
        (Ask::get("/").with(&[("x-large", &"x".repeat(10_000))]), 431),
        (Ask::post("/", "body").with(&[("expect", "a-miracle")]), 417),
    ];
    for method in ["GET", "HEAD"] {
        for (target, status) in [("/refused", 429), ("/nobody", 502), ("/%00", 400), ("/own", 503)] {
            table.push((Ask::new(method, target).with(&[GRPC]), status));
        }
    }
    table
}

fn told_to_caches(answer: &Message) -> Vec<&str> {
    ["cache-control", "cdn-cache-control", "expires", "x-accel-expires"]
        .iter()
        .flat_map(|name| answer.all(name))
        .collect()
}

#[test]
fn no_cache_keeps_what_the_gateway_says() {
    let (_backend, gateway) = start("");
    for http in [Http::One, Http::Two] {
        for (ask, status) in table() {
            let answer = Asker::open(http, gateway.address()).ask(&ask);
            let what = format!("{http:?} {} {} {:?}", ask.method, ask.target, ask.fields.first());
            assert_eq!((answer.status(), told_to_caches(&answer)), (status, vec!["no-store"]), "{what}");
            assert_eq!(answer.header("grpc-status"), None, "{what}");
        }
        let own = Asker::open(http, gateway.address()).get("/");
        assert_eq!((own.text().as_str(), told_to_caches(&own)), ("told", vec![]), "the server's own");
    }
    for (bytes, status) in [
        ("GET /respond HTTP/1.1\r\nHost: unknown.example\r\n\r\n", 404),
        ("GET / HTTP/1.1\r\nHost: test.example\r\nnot a field\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\nHost: test.example\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\nHost: test.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        ("GET / HTTP/1.1\r\nHost: test.example\r\n", 408),
    ] {
        let answer = Wire::with(gateway.address(), bytes).answer();
        assert_eq!((answer.status(), told_to_caches(&answer)), (status, vec!["no-store"]), "{bytes:?}");
    }
}

#[test]
fn how_long_a_route_is_kept_is_no_word_about_its_errors() {
    let set = "set = { cache-control = \"public, max-age=9\", cdn-cache-control = \"max-age=9\", expires = \"9\", \
               x-accel-expires = \"9\", x-else = \"set\" }";
    let as_set = ["public, max-age=9", "max-age=9", "9", "9"];
    let add = "add = { cache-control = [\"public, max-age=9\"], x-else = [\"set\"] }";
    let remove = "set = { x-else = \"set\" }, remove = [\"cache-control\"]";
    for (edits, told) in [(set, &as_set[..]), (add, &as_set[..1]), (remove, &[])] {
        let (_backend, gateway) = start(&format!("response_headers = {{ {edits} }}"));
        for http in [Http::One, Http::Two] {
            for (ask, status) in table() {
                let answer = Asker::open(http, gateway.address()).ask(&ask);
                let what = format!("{edits}: {http:?} {} {}", ask.method, ask.target);
                let is_chosen = ["/respond", "/empty", "/redirect", "/cors"].contains(&ask.target.as_str());
                let expected = if is_chosen { told } else { &["no-store"] };
                assert_eq!((answer.status(), told_to_caches(&answer)), (status, expected.to_vec()), "{what}");
                let has_route = !matches!(status, 400 | 417 | 431);
                assert_eq!(answer.header("x-else"), has_route.then_some("set"), "{what}");
            }
            let own = Asker::open(http, gateway.address()).get("/");
            assert_eq!((own.text().as_str(), told_to_caches(&own)), ("told", told.to_vec()), "the server's own");
        }
    }
}

#[test]
fn grpc_is_spoken_by_post_over_http2_alone() {
    let (_backend, gateway) = start("");
    for (http, method, kind, status, code) in [
        (Http::Two, "POST", "application/grpc", 200, Some("8")),
        (Http::Two, "POST", "application/grpc+proto", 200, Some("8")),
        (Http::Two, "POST", "Application/GRPC; a=b", 200, Some("8")),
        (Http::Two, "POST", "application/grpc-web+proto", 429, None),
        (Http::Two, "POST", "application/json", 429, None),
        (Http::Two, "PUT", "application/grpc", 429, None),
        (Http::Two, "GET", "application/grpc", 429, None),
        (Http::Two, "HEAD", "application/grpc", 429, None),
        (Http::One, "POST", "application/grpc", 429, None),
        (Http::One, "GET", "application/grpc", 429, None),
        (Http::One, "HEAD", "application/grpc", 429, None),
    ] {
        for (target, own) in [("/refused", 429), ("/own", 503)] {
            let answer =
                Asker::open(http, gateway.address()).ask(&Ask::new(method, target).with(&[("content-type", kind)]));
            let what = format!("{http:?} {method} {target} {kind}");
            let status = if status == 429 { own } else { status };
            assert_eq!((answer.status(), answer.header("grpc-status")), (status, code), "{what}");
            assert_eq!(told_to_caches(&answer), ["no-store"], "{what}");
            assert_eq!(answer.header("content-type") == Some("application/grpc"), code.is_some(), "{what}");
        }
    }
}

#[test]
fn a_refusal_is_kept_only_where_its_own_headers_say_so() {
    let gateway = Gateway::start(
        "[[limit]]\nname = \"never\"\nkey = \"global\"\nrate = \"1/1h\"\n\
         refusal = { headers = { cache-control = \"private, max-age=1\" } }\n\
         [[route]]\nname = \"all\"\nrespond = { status = 200 }\nlimits = [\"never\"]\n\
         response_headers = { set = { cache-control = \"public, max-age=9\" } }\n",
    );
    let first = Asker::open(Http::One, gateway.address()).get("/");
    assert_eq!((first.status(), told_to_caches(&first)), (200, vec!["public, max-age=9"]));
    for http in [Http::One, Http::Two] {
        let answer = Asker::open(http, gateway.address()).get("/");
        assert_eq!((answer.status(), told_to_caches(&answer)), (429, vec!["private, max-age=1"]), "{http:?}");
    }
}
