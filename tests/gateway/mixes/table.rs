//! One exchange at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::peers::{Ask, Http, Mix, Origin, Told, fields, in_every_mix};
use crate::support::{Gateway, PATIENCE, eventually, unused_address};
use crate::wire::{Message, wait_outcome};

in_every_mix! {
    targets_are_the_same
    methods_and_bodies_are_the_same
    an_answer_to_head_has_no_body
    statuses_pass
    large_and_many_fields_pass
    cookies_stay_whole
    trailers_pass_both_ways
    early_hints_pass
    a_body_that_waits_for_100_is_asked_for
    a_body_that_waits_for_100_may_be_refused
    a_request_says_where_it_came_from
    fields_of_a_connection_stay_on_it
    a_date_is_there_once
    a_limit_says_the_same
    a_refused_body_leaves_the_client_usable
    a_timeout_is_a_504_and_ends_the_request_at_the_server
    an_unreachable_server_is_a_502
    an_early_answer_ends_the_upload
    kept_connections_are_used_again
    a_hundred_at_once_get_their_own_answers
    a_reload_that_changes_the_protocol_closes_what_was_kept
}

fn echo_target(request: &Message) -> Told {
    Told::ok(request.target())
}

fn targets_are_the_same(mix: Mix) {
    let origin = Origin::start(mix.server, echo_target);
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    for (asked, forwarded) in [
        ("/", "/"),
        ("/a/b?x=1&y=%20&z", "/a/b?x=1&y=%20&z"),
        ("/a/./b/../c?x=/../", "/a/c?x=/../"),
        ("//a///b", "/a/b"),
        ("/%7Euser/%41", "/~user/A"),
        ("/%C3%A9;p=1/", "/%C3%A9;p=1/"),
        ("/a?", "/a?"),
        ("/a?q=a+b?c&d[]=1", "/a?q=a+b?c&d[]=1"),
        ("/!$&'()*+,=:@-._~", "/!$&'()*+,=:@-._~"),
    ] {
        let answer = asker.get(asked);
        assert_eq!((answer.status(), answer.text().as_str()), (200, forwarded), "{asked}");
    }
    for refused in ["/%00", "/a%2Fb", "/%zz", "/../../%5c"] {
        assert_eq!(asker.exchange(&Ask::get(refused)).answer.status(), 400, "{refused}");
        // It closes a connection of HTTP/1.
        asker = mix.asker(&gateway);
    }
    assert_eq!(origin.accepted(), 1);
}

fn methods_and_bodies_are_the_same(mix: Mix) {
    let origin = Origin::start(mix.server, |request| {
        let method = request.line.split(' ').next().unwrap();
        let sum: u64 = request.body.iter().map(|byte| u64::from(*byte)).sum();
        Told::ok(format!("{method} {} {sum}", request.body.len()))
    });
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    let large: Vec<u8> = (0..700_001_u32).map(|at| (at % 251) as u8).collect();
    let sum: u64 = large.iter().map(|byte| u64::from(*byte)).sum();
    for (ask, told) in [
        (Ask::get("/"), "GET 0 0".to_owned()),
        (Ask::new("DELETE", "/"), "DELETE 0 0".to_owned()),
        (Ask::new("OPTIONS", "/"), "OPTIONS 0 0".to_owned()),
        (Ask::new("PROPFIND", "/"), "PROPFIND 0 0".to_owned()),
        (Ask::new("POST", "/"), "POST 0 0".to_owned()),
        (Ask::post("/", ""), "POST 0 0".to_owned()),
        (Ask { has_no_length: true, ..Ask::post("/", "") }, "POST 0 0".to_owned()),
        (Ask::post("/", "ab"), "POST 2 195".to_owned()),
        (Ask { has_no_length: true, ..Ask::post("/", "ab") }, "POST 2 195".to_owned()),
        (Ask { method: "PUT", ..Ask::post("/", large.clone()) }, format!("PUT 700001 {sum}")),
        (Ask { has_no_length: true, ..Ask::post("/", large.clone()) }, format!("POST 700001 {sum}")),
        (Ask { method: "GET", ..Ask::post("/", "ab") }, "GET 2 195".to_owned()),
    ] {
        let answer = asker.ask(&ask);
        assert_eq!((answer.status(), answer.text()), (200, told));
        let seen = origin.seen.lock().unwrap().pop().unwrap();
        if let Some(body) = &ask.body {
            let length = (!ask.has_no_length).then(|| body.len().to_string());
            assert_eq!(seen.header("content-length"), length.as_deref(), "{} {}", ask.method, body.len());
        } else {
            // What usually has a body says to HTTP/1 that it has none.
            let length = (ask.method == "POST" && mix.server == Http::One).then_some("0");
            assert_eq!((seen.header("content-length"), seen.is_chunked()), (length, false), "{}", ask.method);
        }
    }
    assert_eq!(origin.accepted(), 1);
}

fn an_answer_to_head_has_no_body(mix: Mix) {
    let origin = Origin::start(mix.server, |request| Told {
        has_no_length: request.target() == "/unsized",
        ..Told::ok("x".repeat(1000))
    });
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    for (target, length) in [("/sized", Some("1000")), ("/unsized", None), ("/local", Some("6"))] {
        let answer = asker.ask(&Ask::new("HEAD", target));
        assert_eq!((answer.status(), answer.body.len(), answer.header("content-length")), (200, 0, length), "{target}");
    }
    assert_eq!(asker.get("/sized").body.len(), 1000);
    // A server of HTTP/1 may send a body all the same, of a length or in chunks: both connections rest a moment.
    let most = if mix.server == Http::One { 3 } else { 1 };
    assert!((1..=most).contains(&origin.accepted()), "{}", origin.accepted());
}

fn statuses_pass(mix: Mix) {
    let origin = Origin::start(mix.server, |request| {
        let status = request.target()[1..].parse().unwrap();
        let body = if matches!(status, 204 | 304) { "" } else { "told" };
        Told::new(status, &[("location", "http://elsewhere/a?b"), ("etag", "\"v\"")], body)
    });
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    for status in [200, 201, 204, 206, 301, 304, 307, 400, 401, 404, 418, 500, 502, 503, 599] {
        let answer = asker.get(&format!("/{status}"));
        let body = if matches!(status, 204 | 304) { "" } else { "told" };
        assert_eq!((answer.status(), answer.text().as_str()), (status, body));
        assert_eq!(answer.all("location"), ["http://elsewhere/a?b"]);
        assert_eq!(answer.all("etag"), ["\"v\""]);
    }
    assert_eq!(origin.accepted(), 1);
}

fn large_and_many_fields_pass(mix: Mix) {
    let large = "v".repeat(20_000);
    let many: Vec<(String, String)> = (0..80).map(|at| (format!("x-many-{at}"), format!("value {at}"))).collect();
    let (own_large, own_many) = (large.clone(), many.clone());
    let origin = Origin::start(mix.server, move |request| {
        assert_eq!(request.all("x-large"), [own_large.as_str()]);
        let mut told = Told::ok("");
        told.fields.push(("x-large".to_owned(), own_large.clone()));
        told.fields.extend(own_many.clone());
        told
    });
    let gateway = mix.gateway(origin.address);
    let mut ask = Ask::get("/").with(&[("x-large", &large), ("x-twice", "one"), ("x-twice", "two")]);
    ask.fields.extend(many.clone());
    let answer = mix.asker(&gateway).ask(&ask);
    let seen = origin.only();
    assert_eq!(seen.all("x-twice"), ["one", "two"]);
    assert_eq!(answer.all("x-large"), [large.as_str()]);
    for (name, value) in &many {
        assert_eq!((seen.all(name), answer.all(name)), (vec![value.as_str()], vec![value.as_str()]));
    }
}

fn cookies_stay_whole(mix: Mix) {
    let origin = Origin::start(mix.server, |_| Told::new(200, &[("set-cookie", "a=1"), ("set-cookie", "b=2")], ""));
    let gateway = mix.gateway(origin.address);
    let crumbs: Vec<String> = (0..40).map(|at| format!("c{at}={at}")).collect();
    let whole = crumbs.join("; ");
    let mut ask = Ask::get("/");
    match mix.client {
        Http::One => ask.fields.push(("cookie".to_owned(), whole.clone())),
        Http::Two => ask.fields.extend(crumbs.into_iter().map(|crumb| ("cookie".to_owned(), crumb))),
    }
    let answer = mix.asker(&gateway).ask(&ask);
    assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(origin.only().all("cookie"), [whole.as_str()]);
}

fn trailers_pass_both_ways(mix: Mix) {
    let own = [("x-sum", "12"), ("x-other", "a b")];
    let origin = Origin::start(mix.server, move |request| Told {
        trailers: fields(&own),
        ..Told::ok(format!("{:?}", request.trailers))
    });
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    for body in ["", "hello", &"b".repeat(100_000)] {
        let answer = asker.ask(&Ask { trailers: fields(&own), ..Ask::post("/", body) });
        assert_eq!(answer.text(), format!("{:?}", fields(&own)), "{} bytes", body.len());
        assert_eq!(answer.trailers, fields(&own), "{} bytes", body.len());
    }
    assert_eq!(origin.accepted(), 1);
}

fn early_hints_pass(mix: Mix) {
    let origin = Origin::start(mix.server, |_| Told {
        interim: vec![(103, fields(&[("link", "</a.css>")])), (103, fields(&[("link", "</b.css>")]))],
        ..Told::ok("at last")
    });
    let gateway = mix.gateway(origin.address);
    let seen = mix.asker(&gateway).exchange(&Ask::get("/"));
    let hints: Vec<_> = seen.interim.iter().map(|head| (head.status(), head.all("link"))).collect();
    assert_eq!(hints, [(103, vec!["</a.css>"]), (103, vec!["</b.css>"])]);
    assert_eq!((seen.answer.status(), seen.answer.text().as_str()), (200, "at last"));
}

fn a_body_that_waits_for_100_is_asked_for(mix: Mix) {
    let origin = Origin::start(mix.server, |request| Told::ok(request.body.clone()));
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    for has_no_length in [false, true] {
        let ask = Ask { has_no_length, ..Ask::post("/", "waited") }.with(&[("expect", "100-continue")]);
        let seen = asker.exchange(&ask);
        assert_eq!(seen.interim.iter().map(Message::status).collect::<Vec<_>>(), [100]);
        assert_eq!((seen.answer.status(), seen.answer.text().as_str()), (200, "waited"));
    }
}

fn a_body_that_waits_for_100_may_be_refused(mix: Mix) {
    let refuse = |request: &Message| {
        let status = request.target()[1..].parse().unwrap();
        Some(Told::new(status, &[], "no"))
    };
    let origin = Origin::start_early(mix.server, refuse, |_| Told::ok("not refused"));
    let gateway = mix.gateway(origin.address);
    for status in [401, 417] {
        let mut asker = mix.asker(&gateway);
        let seen = asker.exchange(&Ask::post(&format!("/{status}"), "b").with(&[("expect", "100-continue")]));
        assert_eq!(seen.interim.len(), 0);
        assert_eq!((seen.answer.status(), seen.answer.text().as_str()), (status, "no"));
    }
}

fn a_request_says_where_it_came_from(mix: Mix) {
    let origin = Origin::start(mix.server, |_| Told::ok(""));
    let gateway = mix.gateway(origin.address);
    let forged = [
        ("x-forwarded-for", "1.2.3.4"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil"),
        ("forwarded", "for=1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
    ];
    let answer = mix.asker(&gateway).ask(&Ask::get("/").with(&forged));
    let seen = origin.only();
    let via = if mix.client == Http::Two { "2.0 sluicegate" } else { "1.1 sluicegate" };
    for (name, values) in [
        ("host", &["test.example"][..]),
        ("x-forwarded-for", &["127.0.0.1"]),
        ("x-forwarded-proto", &["http"]),
        ("x-forwarded-host", &["test.example"]),
        ("forwarded", &[]),
        ("via", &[via]),
    ] {
        assert_eq!(seen.all(name), values, "{name}");
    }
    assert_eq!((seen.all("x-request-id").len(), seen.all("traceparent").len()), (1, 0));
    assert!(!seen.all("x-real-ip").contains(&"1.2.3.4"));
    assert_eq!(answer.status(), 200);
}

fn fields_of_a_connection_stay_on_it(mix: Mix) {
    const OF_A_CONNECTION: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "te", "x-nominated"];
    let is_h1 = mix.server == Http::One;
    let origin = Origin::start(mix.server, move |_| {
        let own = [("connection", "x-nominated"), ("keep-alive", "timeout=9"), ("x-nominated", "secret")];
        Told::new(200, if is_h1 { &own } else { &[] }, "told")
    });
    let gateway = mix.gateway(origin.address);
    let mut ask = Ask::get("/").with(&[("te", "trailers")]);
    if mix.client == Http::One {
        ask = ask.with(&[
            ("connection", "x-nominated, te, keep-alive"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("x-nominated", "secret"),
        ]);
    }
    let answer = mix.asker(&gateway).ask(&ask);
    let seen = origin.only();
    for name in OF_A_CONNECTION {
        // HTTP/2 has no other way to tell that trailers are understood.
        let is_told = name == "te" && mix.server == Http::Two;
        assert_eq!(seen.all(name), if is_told { &["trailers"][..] } else { &[] }, "{name}");
        assert!(answer.all(name).is_empty(), "{name}");
    }
    assert_eq!(answer.text(), "told");
}

fn a_date_is_there_once(mix: Mix) {
    const OLD: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let origin = Origin::start(mix.server, |request| match request.target() {
        "/dated" => Told::new(200, &[("date", OLD), ("server", "x")], ""),
        _ => Told::ok(""),
    });
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    let dated = asker.get("/dated");
    assert_eq!((dated.all("date"), dated.all("server")), (vec![OLD], vec!["x"]));
    for target in ["/undated", "/local"] {
        let answer = asker.get(target);
        assert_eq!(answer.all("date").len(), 1, "{target}");
        assert!(answer.all("date")[0].ends_with(" GMT"), "{answer:?}");
    }
}

const LIMIT: &str =
    "[[limit]]\nname = \"per-client\"\nkey = \"client-ip\"\nrate = \"2/1h\"\nalgorithm = \"fixed-window\"\n";

fn a_limit_says_the_same(mix: Mix) {
    let origin = Origin::start(mix.server, echo_target);
    let gateway = Gateway::start(&mix.rules(origin.address, "limits = [\"per-client\"]", LIMIT));
    let mut asker = mix.asker(&gateway);
    for left in [1, 0] {
        let answer = asker.get("/");
        assert_eq!(answer.all("ratelimit-policy"), ["\"per-client\";q=2;w=3600"]);
        let [rate] = answer.all("ratelimit")[..] else { panic!("{answer:?}") };
        assert!(rate.starts_with(&format!("\"per-client\";r={left};t=")), "{rate}");
    }
    for method in ["GET", "HEAD", "DELETE"] {
        let answer = asker.ask(&Ask::new(method, "/"));
        let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        let detail = format!("Over the limit \\\"per-client\\\"; try again in {retry} s.");
        let body = format!(
            "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\"title\":\"Too Many \
             Requests\",\"status\":429,\"detail\":\"{detail}\",\"violated-policies\":[\"per-client\"]}}\n"
        );
        let mut names: Vec<&str> = answer.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let expected = [
            "cache-control",
            "content-length",
            "content-type",
            "date",
            "ratelimit",
            "ratelimit-policy",
            "retry-after",
            "x-content-type-options",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "x-ratelimit-retry-after",
            "x-request-id",
        ];
        assert_eq!(names, expected);
        assert_eq!((answer.status(), answer.header("content-type")), (429, Some("application/problem+json")));
        assert_eq!(answer.header("content-length"), Some(body.len().to_string().as_str()));
        assert_eq!(answer.text(), if method == "HEAD" { "" } else { &body });
    }
    assert_eq!(origin.seen.lock().unwrap().len(), 2);
}

fn a_refused_body_leaves_the_client_usable(mix: Mix) {
    let origin = Origin::start(mix.server, echo_target);
    let gateway = Gateway::start(&mix.rules(origin.address, "limits = [\"per-client\"]", LIMIT));
    let mut asker = mix.asker(&gateway);
    for _ in 0..2 {
        assert_eq!(asker.get("/").status(), 200);
    }
    for has_no_length in [false, true] {
        assert_eq!(asker.ask(&Ask { has_no_length, ..Ask::post("/", "b".repeat(30_000)) }).status(), 429);
        if mix.client == Http::One && has_no_length {
            // Nobody knows how much is to come, so the connection closes.
            asker = mix.asker(&gateway);
        }
        assert_eq!(asker.get("/local").text(), "local\n");
    }
    assert_eq!(origin.seen.lock().unwrap().len(), 2);
}

fn a_timeout_is_a_504_and_ends_the_request_at_the_server(mix: Mix) {
    let (release, held) = mpsc::sync_channel::<()>(1);
    let held = Mutex::new(held);
    let origin = Origin::start(mix.server, move |request| {
        if request.target() == "/slow" {
            let _ = held.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PATIENCE);
        }
        Told::ok("told")
    });
    let gateway = Gateway::start(&mix.rules(origin.address, "timeout = \"300ms\"", ""));
    let mut asker = mix.asker(&gateway);
    let started = Instant::now();
    assert_eq!(asker.get("/slow").status(), 504);
    assert!(started.elapsed() >= Duration::from_millis(250));
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"timeout\""], 1.0);
    release.send(()).unwrap();
    assert_eq!(asker.get("/local").text(), "local\n", "the client's connection goes on");
    assert!(eventually(|| asker.get("/quick").status() == 200));
}

fn an_unreachable_server_is_a_502(mix: Mix) {
    let address = unused_address();
    let gateway = mix.gateway(address);
    let mut asker = mix.asker(&gateway);
    for ask in [Ask::get("/"), Ask::post("/", "body"), Ask { has_no_length: true, ..Ask::post("/", "body") }] {
        let answer = asker.ask(&ask);
        assert_eq!((answer.status(), answer.header("content-type")), (502, Some("application/problem+json")));
        asker = mix.asker(&gateway);
    }
    wait_outcome(&gateway, "upstream-error", 3);
}

fn an_early_answer_ends_the_upload(mix: Mix) {
    let early = |request: &Message| (request.target() == "/early").then(|| Told::new(413, &[], "too much"));
    let origin = Origin::start_early(mix.server, early, echo_target);
    let gateway = mix.gateway(origin.address);
    for has_no_length in [false, true] {
        let mut asker = mix.asker(&gateway);
        let answer = asker.ask(&Ask { has_no_length, ..Ask::post("/early", vec![b'b'; 3_000_000]) });
        assert_eq!((answer.status(), answer.text().as_str()), (413, "too much"));
        if mix.client == Http::Two {
            assert_eq!(asker.get("/after").text(), "/after");
        }
    }
    assert_eq!(mix.asker(&gateway).get("/after").text(), "/after");
}

fn kept_connections_are_used_again(mix: Mix) {
    let origin = Origin::start(mix.server, echo_target);
    let gateway = mix.gateway(origin.address);
    for at in 0..20 {
        // Each from a client of its own.
        assert_eq!(mix.asker(&gateway).get(&format!("/{at}")).text(), format!("/{at}"));
    }
    assert_eq!(origin.accepted(), 1);
}

fn a_hundred_at_once_get_their_own_answers(mix: Mix) {
    const COUNT: usize = 100;
    let waiting = Arc::new(AtomicUsize::new(0));
    let origin = Origin::start(mix.server, move |request| {
        waiting.fetch_add(1, Ordering::SeqCst);
        Told::ok([request.body.clone(), request.target().into()].concat())
    });
    let gateway = mix.gateway(origin.address);
    let body = |at: usize| vec![b'0' + (at % 10) as u8; 1 + at * 701];
    let expected = |at: usize| [body(at), format!("/{at}").into_bytes()].concat();
    match mix.client {
        Http::One => std::thread::scope(|scope| {
            let gateway = &gateway;
            for at in 0..COUNT {
                scope.spawn(move || {
                    let answer = mix.asker(gateway).ask(&Ask::post(&format!("/{at}"), body(at)));
                    assert!(answer.status() == 200 && answer.body == expected(at), "{at}: {}", answer.line);
                });
            }
        }),
        Http::Two => super::peers::all_at_once(gateway.address(), COUNT, |at| Ask::post(&format!("/{at}"), body(at)))
            .into_iter()
            .enumerate()
            .for_each(|(at, answer)| {
                assert!(answer.status() == 200 && answer.body == expected(at), "{at}: {}", answer.line);
            }),
    }
    if mix.server == Http::Two {
        assert_eq!(origin.accepted(), 1, "it takes 200 at once");
    }
}

fn a_reload_that_changes_the_protocol_closes_what_was_kept(mix: Mix) {
    let origin = Origin::start(mix.server, echo_target);
    let gateway = mix.gateway(origin.address);
    let mut asker = mix.asker(&gateway);
    assert_eq!(asker.get("/one").text(), "/one");
    let other = if mix.server == Http::One { Http::Two } else { Http::One };
    let next = Origin::start(other, echo_target);
    let changed = Mix { server: other, ..mix };
    // The same server in another protocol cannot be spoken to; another one can.
    assert_eq!(gateway.reload(&changed.rules(origin.address, "", "")).status, 200);
    assert_eq!(asker.get("/two").status(), 502);
    assert_eq!(gateway.reload(&changed.rules(next.address, "", "")).status, 200);
    assert_eq!(mix.asker(&gateway).get("/three").text(), "/three");
    assert_eq!(gateway.reload(&mix.rules(origin.address, "", "")).status, 200);
    let mut asker = mix.asker(&gateway);
    let before = origin.accepted();
    assert_eq!(asker.get("/four").text(), "/four");
    assert_eq!(origin.accepted(), before + 1, "the one of before was closed");
}
