use crate::mixes::peers::{Ask, Asker, Http};
use crate::support::{Answer, Client, FRAME, Gateway, eventually, get, get_with};

fn refusing(more: &str, server: &str) -> Gateway {
    let gateway = Gateway::start(&format!(
        "{server}[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"per-client\"\nkey = \"global\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"per-client\"]\n{more}"
    ));
    assert_eq!(get(gateway.address(), "/").status, 200);
    gateway
}

fn secs(answer: &Answer, name: &str) -> u64 {
    answer.header(name).unwrap_or_else(|| panic!("no {name}: {answer:?}")).parse().unwrap()
}

#[test]
fn a_refusal_says_who_why_and_when_to_come_back() {
    let gateway = refusing("", "");
    let answer = get(gateway.address(), "/");
    assert_eq!(answer.status, 429);
    // The slot of the one request leaves the window at the end of the tenth slot of six minutes.
    let retry = secs(&answer, "retry-after");
    assert!((3600 - 360..=3600).contains(&retry), "{retry}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let json = answer.json();
    assert_eq!(json["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(json["violated-policies"], serde_json::json!(["per-client"]));
    assert_eq!(answer.header("ratelimit-policy"), Some("\"per-client\";q=1;w=3600"));
    assert_eq!(answer.header("ratelimit"), Some(format!("\"per-client\";r=0;t={retry}").as_str()));
    assert_eq!(secs(&answer, "x-ratelimit-limit"), 1);
    assert_eq!(secs(&answer, "x-ratelimit-remaining"), 0);
    assert_eq!(secs(&answer, "x-ratelimit-reset"), retry);
    assert_eq!(secs(&answer, "x-ratelimit-retry-after"), retry);
}

#[test]
fn no_field_and_no_text_tells_of_a_longer_wait_than_the_limit_says() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("sorry.txt"), "in {retry_after}").unwrap();
    let text = format!(
        "{FRAME}[server]\nrate_headers = \"both\"\n[dead_letter]\ndirectory = \"dead-letters\"\n\
         [[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"long\"\nkey = \"global\"\nrate = \"1/10d\"\nretry_after_max = \"60500ms\"\n\
         retry_after_jitter = \"1h\"\n\
         [[limit]]\nname = \"short\"\nkey = \"global\"\nrate = \"9/1h\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"long\", \"short\"]\n\
         [[route]]\nname = \"own\"\npath = \"/own\"\nupstream = \"app\"\nlimits = [\"long\"]\nrefusal = {{ body_file = \"sorry.txt\" }}\n"
    );
    let gateway = Gateway::start_in(directory, &text);
    let passed = get(gateway.address(), "/");
    assert_eq!((passed.status, secs(&passed, "x-ratelimit-reset")), (200, 60));
    let refused = get(gateway.address(), "/");
    assert_eq!(refused.status, 429);
    for name in ["retry-after", "x-ratelimit-reset", "x-ratelimit-retry-after"] {
        assert_eq!(secs(&refused, name), 60, "{name}");
    }
    let state = refused.header("ratelimit").unwrap();
    assert!(state.starts_with("\"long\";r=0;t=60, \"short\";r=8;t="), "{state}");
    let of_short: u64 = state.rsplit('=').next().unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&of_short), "the other limit says its own: {state}");
    assert!(refused.json()["detail"].as_str().unwrap().ends_with("try again in 60 s."), "{:?}", refused.json());
    assert_eq!(get(gateway.address(), "/own").text(), "in 60");
    let page = get_with(gateway.address(), "/", &[("Accept", "text/html")]).text();
    assert!(page.contains("60") && !page.contains("864"), "{page}");
    assert!(eventually(|| gateway.dead_letters().len() == 3));
    for record in gateway.dead_letters() {
        assert!(
            record["quota"]["retry_after_ms"].as_u64().unwrap() > 700_000_000,
            "the log has the true one: {record}"
        );
    }
}

#[test]
fn the_header_families_go_out_as_configured() {
    for (setting, ietf, legacy_on_success, legacy_on_refusal) in [
        ("auto", true, false, true),
        ("ietf", true, false, false),
        ("legacy", false, true, true),
        ("both", true, true, true),
        ("off", false, false, false),
    ] {
        let gateway = Gateway::start(&format!(
            "[server]\nrate_headers = \"{setting}\"\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
             [[limit]]\nname = \"l\"\nkey = \"global\"\nrate = [\"1/1h\", \"5/2h\"]\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n"
        ));
        let passed = get(gateway.address(), "/");
        let refused = get(gateway.address(), "/");
        assert_eq!((passed.status, refused.status), (200, 429));
        assert_eq!(passed.header("ratelimit").is_some(), ietf, "{setting}");
        assert_eq!(refused.header("ratelimit").is_some(), ietf, "{setting}");
        assert_eq!(passed.header("x-ratelimit-limit").is_some(), legacy_on_success, "{setting}");
        assert_eq!(refused.header("x-ratelimit-limit").is_some(), legacy_on_refusal, "{setting}");
        assert!(refused.header("retry-after").is_some(), "{setting}");
        if ietf {
            assert_eq!(passed.header("ratelimit-policy"), Some("\"l\";q=1;w=3600, \"l-2\";q=5;w=7200"));
        }
    }
}

#[test]
fn the_body_is_what_the_client_reads() {
    let gateway = refusing("", "");
    let of = |accept: &str| get_with(gateway.address(), "/", &[("Accept", accept)]);
    let page = of("text/html,application/xhtml+xml,*/*;q=0.8");
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    assert!(page.text().contains("<h1>Too Many Requests</h1>"));
    let text = of("text/plain");
    assert!(text.text().starts_with("429 Too Many Requests: Over the limit \"per-client\""), "{}", text.text());
    assert_eq!(of("application/json").header("content-type"), Some("application/problem+json"));
}

#[test]
fn grpc_gets_its_status_in_the_head() {
    let gateway = refusing("", "");
    let ask = Ask::post("/pkg.Service/Call", "12345").with(&[("content-type", "application/grpc")]);
    let answer = Asker::open(Http::Two, gateway.address()).ask(&ask);
    assert_eq!((answer.status(), answer.header("grpc-status")), (200, Some("8")));
    assert!(answer.header("grpc-retry-pushback-ms").unwrap().parse::<u64>().unwrap() >= 1000);
    assert!(answer.body.is_empty());
}

#[test]
fn a_browser_can_read_a_refusal_and_preflights_are_not_counted() {
    let gateway = refusing("cors = { allow_origins = [\"https://app.example\"] }\n", "");
    let answer = get_with(gateway.address(), "/", &[("Origin", "https://app.example")]);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(answer.header("access-control-expose-headers").unwrap().contains("retry-after"));
    let mut client = Client::connect(gateway.address());
    let preflight = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "PUT")];
    let answer = client.request("OPTIONS", "/", &preflight, b"");
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (204, Some("https://app.example")));
    let gateway = refusing("cors = { allow_origins = [\"https://app.example\"], preflight = \"forward\" }\n", "");
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.request("OPTIONS", "/", &preflight, b"").status, 200, "the upstream answers it");
    let plain = refusing("", "");
    let mut client = Client::connect(plain.address());
    assert_eq!(client.request("OPTIONS", "/", &preflight, b"").status, 429, "without cors it counts like any other");
}

#[test]
fn a_refused_upload_reads_its_429() {
    let gateway = refusing("", "");
    // Small: drained, and the connection stays.
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.request("POST", "/", &[], &[b'x'; 10_000]).status, 429);
    assert_eq!(client.get("/").status, 429);
    // Large: answered at once, with a close that lets the answer be read.
    let mut client = Client::connect(gateway.address());
    let answer = client.request("POST", "/", &[], &vec![b'x'; 200 * 1024]);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.read_rest().unwrap().is_empty());
    // A client that is still sending when it has read its answer is not reset.
    let mut client = Client::connect(gateway.address());
    client.send("POST", "/", &[("Content-Length", "1000000")], b"");
    assert_eq!(client.read_answer(false).unwrap().status, 429);
    for _ in 0..2 {
        std::io::Write::write_all(&mut client.stream, &[b'x'; 10_000]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(client.read_rest().unwrap(), b"", "an orderly end");
    // One that asks first is told no, not yes.
    let mut client = Client::connect(gateway.address());
    client.send("POST", "/", &[("Expect", "100-continue"), ("Content-Length", "5")], b"");
    let answer = client.read_answer(false).unwrap();
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("connection"), Some("close"));
}

#[test]
fn an_origins_own_rate_fields_stay() {
    let backend = crate::support::Backend::start(|_, stream| {
        use std::io::Write;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nX-RateLimit-Limit: 7\r\nRateLimit: \"o\";r=1\r\nContent-Length: 0\r\n\r\n")
            .is_ok()
    });
    let gateway = Gateway::start(&format!(
        "[server]\nrate_headers = \"both\"\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"100/1h\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n",
        backend.address
    ));
    let answer = get(gateway.address(), "/");
    let all = |name: &str| -> Vec<String> {
        answer.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(all("x-ratelimit-limit"), ["7"]);
    assert_eq!(all("ratelimit")[0], "\"o\";r=1");
    assert!(all("ratelimit")[1].starts_with("\"l\";r=99"));
}
