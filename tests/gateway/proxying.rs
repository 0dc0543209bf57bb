use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::support::{Backend, Client, Gateway, eventually, get, get_with, write_ok};
use crate::timing::{assert_took, best_of_three};

const ECHO: &str = r#"
[[upstream]]
name = "app"
servers = ["echo:a"]
[[route]]
name = "all"
upstream = "app"
"#;

fn to(backend: &Backend) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\ntimeout = \"20s\"\n",
        backend.address
    )
}

#[test]
fn a_request_reaches_the_upstream_with_its_forwarding_fields() {
    let gateway = Gateway::start(ECHO);
    let answer = get_with(
        gateway.address(),
        "/some/path?k=v",
        &[
            ("X-Forwarded-For", "6.6.6.6"),
            ("X-Request-Id", "forged"),
            ("X-Mine", "1"),
            ("Connection", "x-hop"),
            ("X-Hop", "1"),
        ],
    );
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!((&json["server"], &json["path"], &json["query"]), (&"a".into(), &"/some/path".into(), &"k=v".into()));
    assert_eq!(answer.echoed("host").as_deref(), Some("test.example"));
    assert_eq!(answer.echoed("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(answer.echoed("x-forwarded-proto").as_deref(), Some("http"));
    assert_eq!(answer.echoed("x-forwarded-host").as_deref(), Some("test.example"));
    assert_eq!(answer.echoed("via").as_deref(), Some("1.1 sluicegate"));
    assert_eq!(answer.echoed("x-mine").as_deref(), Some("1"));
    assert_eq!(answer.echoed("x-hop"), None);
    assert_eq!(answer.echoed("connection"), None);
    assert_eq!(answer.echoed("x-request-id").map(|id| id.len()), Some(32));
    assert_eq!(answer.echoed("traceparent"), None);
}

#[test]
fn connections_are_kept_on_both_sides() {
    let backend = Backend::fixed("hello");
    let gateway = Gateway::start_whole(&format!("[server]\nworkers = 1\n{}{}", crate::support::FRAME, to(&backend)));
    let mut client = Client::connect(gateway.address());
    for _ in 0..20 {
        assert_eq!(client.get("/").text(), "hello");
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
    assert_eq!(backend.requests(), 20);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let gateway = Gateway::start(ECHO);
    let mut client = Client::connect(gateway.address());
    let mut bytes = Vec::new();
    for number in 0..50 {
        bytes.extend_from_slice(format!("GET /{number} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    }
    client.stream.write_all(&bytes).unwrap();
    for number in 0..50 {
        let answer = client.read_answer(false).unwrap();
        assert_eq!(answer.json()["path"], format!("/{number}"));
    }
}

#[test]
fn a_chunked_body_passes_and_so_does_a_chunked_response() {
    let backend = Backend::start(|seen, stream| {
        let body = String::from_utf8(seen.body.clone()).unwrap();
        let text = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n3\r\nend\r\n0\r\n\r\n",
            body.len()
        );
        stream.write_all(text.as_bytes()).is_ok()
    });
    let gateway = Gateway::start(&to(&backend));
    let mut client = Client::connect(gateway.address());
    let request =
        "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n5\r\npedia\r\n0\r\n\r\n";
    client.stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(client.read_answer(false).unwrap().text(), "wikipediaend");
    assert_eq!(client.get("/again").status, 200, "the connection goes on");
}

#[test]
fn large_bodies_stream_through_without_being_held() {
    const SIZE: usize = 64 * 1024 * 1024;
    let gateway = Gateway::start(ECHO);
    let before = gateway.resident();
    let mut client = Client::connect(gateway.address());
    client
        .stream
        .write_all(format!("POST /up HTTP/1.1\r\nHost: h\r\nContent-Length: {SIZE}\r\n\r\n").as_bytes())
        .unwrap();
    let chunk = vec![b'z'; 1 << 20];
    for _ in 0..SIZE / chunk.len() {
        client.stream.write_all(&chunk).unwrap();
    }
    assert_eq!(client.read_answer(false).unwrap().json()["body_bytes"], SIZE);
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "grew by {grown} bytes for an upload of {SIZE}");

    let backend = Backend::start(|_, stream| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
        let chunk = vec![b'y'; 1 << 20];
        stream.write_all(head.as_bytes()).is_ok() && (0..SIZE / chunk.len()).all(|_| stream.write_all(&chunk).is_ok())
    });
    let gateway = Gateway::start(&to(&backend));
    let before = gateway.resident();
    let answer = get(gateway.address(), "/down");
    assert_eq!(answer.body.len(), SIZE);
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "grew by {grown} bytes for a download of {SIZE}");
}

#[test]
fn a_slow_reader_does_not_make_the_gateway_hold_the_response() {
    const SIZE: usize = 64 * 1024 * 1024;
    let gateway = Gateway::start(ECHO);
    let before = gateway.resident();
    let mut client = Client::connect(gateway.address());
    client.send("GET", &format!("/?bytes={SIZE}"), &[], b"");
    thread::sleep(Duration::from_millis(500));
    // The echo server lives in the same process and holds the whole body: SIZE once, not twice.
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < (SIZE + SIZE / 4) as u64, "grew by {grown} bytes");
    assert_eq!(client.read_answer(false).unwrap().body.len(), SIZE);
}

#[test]
fn a_client_that_goes_away_ends_its_upstream_request() {
    let backend = Backend::start(|_, stream| {
        // Nothing is answered; the read returns when the gateway hangs up.
        stream.read(&mut [0; 16]).is_ok_and(|size| size > 0)
    });
    let gateway = Gateway::start(&to(&backend));
    let mut client = Client::connect(gateway.address());
    client.send("GET", "/never", &[], b"");
    assert!(crate::support::eventually(|| backend.requests() == 1));
    drop(client);
    backend.wait_closed();
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 1.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
}

#[test]
fn an_upstream_that_breaks_off_in_the_body_cuts_the_response() {
    let backend = Backend::start(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"));
        false
    });
    let gateway = Gateway::start(&format!("{}[dead_letter]\ndirectory = \"dead-letters\"\n", to(&backend)));
    let mut client = Client::connect(gateway.address());
    client.send("GET", "/", &[], b"");
    assert!(client.read_answer(false).is_err(), "a cut body must not look complete");
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"upstream-error\""], 1.0);
    assert!(crate::support::eventually(|| gateway.dead_letters().len() == 1));
    assert_eq!(gateway.dead_letters()[0]["reason"], "upstream-error");
}

#[test]
fn a_connection_that_died_idle_is_replaced_without_the_client_noticing() {
    // Each connection serves one request, says nothing of closing, and closes.
    let backend = Backend::start(|_, stream| {
        write_ok(stream, b"once");
        false
    });
    let gateway = Gateway::start(&to(&backend));
    let mut client = Client::connect(gateway.address());
    for _ in 0..50 {
        let answer = client.get("/");
        assert_eq!((answer.status, answer.text().as_str()), (200, "once"));
    }
    // A POST is not sent twice: the last connection has to be closed before it comes.
    for _ in 0..50 {
        backend.wait_closed();
    }
    let answer = client.request("POST", "/", &[], b"body");
    assert_eq!(answer.status, 200);
}

#[test]
fn a_get_is_sent_again_when_its_reused_connection_dies_under_it() {
    // The second request of every connection is read, and then the connection is closed without an answer.
    let used = std::sync::Mutex::new(std::collections::HashSet::new());
    let backend = Backend::start(move |_, stream| {
        used.lock().unwrap().insert(stream.peer_addr().unwrap()) && write_ok(stream, b"first")
    });
    let gateway = Gateway::start_whole(&format!("[server]\nworkers = 1\n{}{}", crate::support::FRAME, to(&backend)));
    let mut client = Client::connect(gateway.address());
    for _ in 0..10 {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!(backend.requests(), 19, "each but the first was tried on the old connection and then on a new one");
    gateway.wait_metric("sluicegate_upstream_retries_total", &["cause=\"stale-connection\""], 9.0);
}

#[test]
fn a_post_that_may_have_been_done_is_not_repeated() {
    // The second request of a connection is read and then the connection is closed without an answer.
    let backend = Backend::start(|seen, stream| seen.line.starts_with("GET") && write_ok(stream, b"ok"));
    let gateway = Gateway::start_whole(&format!("[server]\nworkers = 1\n{}{}", crate::support::FRAME, to(&backend)));
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/").status, 200);
    assert_eq!(client.request("POST", "/", &[], b"pay").status, 502);
    let posts = backend.seen.lock().unwrap().iter().filter(|seen| seen.line.starts_with("POST")).count();
    assert_eq!(posts, 1);
}

#[test]
fn head_and_statuses_without_a_body_leave_the_connection_usable() {
    let backend = Backend::start(|seen, stream| {
        let answer: &[u8] = match seen.line.split(' ').nth(1).unwrap() {
            "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
            "/head" => b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n",
            _ => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        };
        stream.write_all(answer).is_ok()
    });
    let gateway = Gateway::start(&to(&backend));
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/204").status, 204);
    assert_eq!(client.get("/304").status, 304);
    let head = client.request("HEAD", "/head", &[], b"");
    assert_eq!(head.header("content-length"), Some("1234"));
    assert_eq!(client.get("/").text(), "ok");
}

#[test]
fn an_http_1_0_client_is_served() {
    let gateway = Gateway::start(ECHO);
    let mut client = Client::connect(gateway.address());
    client.stream.write_all(b"GET /old HTTP/1.0\r\n\r\n").unwrap();
    let text = String::from_utf8(client.read_rest().unwrap()).unwrap();
    assert!(text.starts_with("HTTP/1.0 200") || text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains("\"path\":\"/old\""), "{text}");
}

#[test]
fn malformed_requests_get_400_and_a_close() {
    let gateway = Gateway::start(ECHO);
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /a%00b HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a%2fb HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n",
        "CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n",
        "\u{1}\u{2}\u{3}\r\n\r\n",
    ] {
        let mut client = Client::connect(gateway.address());
        client.stream.write_all(request.as_bytes()).unwrap();
        let text = String::from_utf8(client.read_rest().unwrap()).unwrap();
        assert!(text.starts_with("HTTP/1.1 400 "), "{request:?}: {text}");
    }
    for reason in
        ["host-missing", "host-repeated", "path-nul", "encoded-slash", "field-name", "connect", "request-line"]
    {
        let labels = ["side=\"client\"".to_owned(), format!("reason=\"{reason}\"")];
        gateway.wait_metric("sluicegate_http1_faults_total", &[&labels[0], &labels[1]], 1.0);
    }
}

#[test]
fn an_oversized_head_gets_431() {
    let gateway = Gateway::start(ECHO);
    let mut client = Client::connect(gateway.address());
    let head = format!("GET / HTTP/1.1\r\nHost: h\r\nX-Big: {}\r\n\r\n", "x".repeat(512 * 1024));
    // The gateway may answer and close before all of it is written.
    drop(client.stream.write_all(head.as_bytes()));
    let mut start = [0; 12];
    client.stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 431");
}

#[test]
fn an_upstream_that_is_down_is_a_502_with_a_dead_letter() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"gone\"\nservers = [\"127.0.0.1:1\"]\n\
         [[route]]\nname = \"all\"\nupstream = \"gone\"\n[dead_letter]\ndirectory = \"dead-letters\"\n",
    );
    let answer = get(gateway.address(), "/");
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert!(crate::support::eventually(|| gateway.dead_letters().len() == 1));
    let record = &gateway.dead_letters()[0];
    assert_eq!((&record["reason"], &record["status"]), (&"upstream-error".into(), &502.into()));
    assert_eq!(record["upstream"], "gone");
}

#[test]
fn another_server_takes_over_when_one_is_down() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"half\"\nservers = [\"127.0.0.1:1\", \"echo:b\"]\nbalance = \"round-robin\"\n\
         [[route]]\nname = \"all\"\nupstream = \"half\"\n",
    );
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/").json()["server"], "b");
    }
    assert!(gateway.metric("sluicegate_upstream_retries_total", &["cause=\"unreachable\""]) >= 1.0);
}

#[test]
fn the_normalised_path_is_matched_and_forwarded() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"api\"\npath = \"/api\"\nupstream = \"app\"\n\
         [[route]]\nname = \"rest\"\nrespond = { status = 418, body = \"rest\\n\" }\n",
    );
    assert_eq!(get(gateway.address(), "/x/../%61pi//y").json()["path"], "/api/y");
    assert_eq!(get(gateway.address(), "/apix").status, 418);
    assert_eq!(get(gateway.address(), "/apix").text(), "rest\n");
}

#[test]
fn no_route_is_a_404_from_the_gateway() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"one\"\nhosts = [\"one.example\"]\nupstream = \"app\"\n",
    );
    assert_eq!(get(gateway.address(), "/").status, 404);
    assert_eq!(get_with(gateway.address(), "/", &[("Host", "ONE.example.:8080")]).status, 200);
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"no-route\""], 1.0);
}

#[test]
fn an_outage_does_not_flood_the_log() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"gone\"\nservers = [\"127.0.0.1:1\"]\n[[route]]\nname = \"all\"\nupstream = \"gone\"\n",
    );
    let mut client = Client::connect(gateway.address());
    for _ in 0..500 {
        assert_eq!(client.get("/").status, 502);
    }
    let count = || gateway.log().lines().filter(|line| line.contains("upstream error")).count();
    assert!(crate::support::eventually(|| count() > 0));
    let lines = count();
    assert!((1..100).contains(&lines), "{lines} lines for 500 failures");
}

#[test]
fn an_answer_before_the_end_of_an_upload_spoils_no_connection_for_others() {
    best_of_three(|| {
        let backend = Backend::start_early(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
        let gateway =
            Gateway::start_whole(&format!("[server]\nworkers = 1\n{}{}", crate::support::FRAME, to(&backend)));
        let mut uploads: Vec<Client> = (0..4).map(|_| Client::connect(gateway.address())).collect();
        for upload in &mut uploads {
            upload.send("POST", "/early", &[("Content-Length", "1000")], b"");
            upload.stream.write_all(b"0123456789").unwrap();
            assert_eq!(upload.read_answer(false).unwrap().status, 401);
        }
        let started = std::time::Instant::now();
        for _ in 0..8 {
            assert_eq!(get(gateway.address(), "/").status, 401);
        }
        assert_took(started, 0..5000);
    });
}

#[test]
fn few_file_descriptors_bound_the_connections_and_leave_room_for_the_rest() {
    let gateway = Gateway::start_with_files(128, &format!("[server]\nworkers = 2\n{}{ECHO}", crate::support::FRAME));
    let held: Vec<_> = (0..300).filter_map(|_| std::net::TcpStream::connect(gateway.address()).ok()).collect();
    // Two of the 42 are kept free, as far as connections have been silent for long enough.
    let open = || gateway.metric("sluicegate_client_connections", &[]);
    assert!(eventually(|| (39.5..42.5).contains(&open())), "{}", open());
    // Each of the others has been refused, or has taken the place of one that says nothing.
    let counted = |name: &str| gateway.metric(&format!("sluicegate_client_connections_{name}_total"), &[]);
    assert!(counted("refused") + counted("reclaimed") > 100.0);
    assert_eq!(gateway.ask_admin("/healthz").status, 200);
    drop(held);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_eq!(get(gateway.address(), "/").status, 200);
}

#[test]
fn a_trusted_proxys_request_id_is_taken_over_if_it_is_fit_to_be_logged() {
    let gateway = Gateway::start(&format!("[client]\ntrusted_proxies = [\"127.0.0.1/32\"]\n{ECHO}"));
    let echoed = |id: &str| get_with(gateway.address(), "/", &[("X-Request-Id", id)]).echoed("x-request-id").unwrap();
    assert_eq!(echoed("front-42"), "front-42");
    for unfit in ["two words", &"x".repeat(129)] {
        assert_eq!(echoed(unfit).len(), 32, "ours in place of {unfit:?}");
    }
}
