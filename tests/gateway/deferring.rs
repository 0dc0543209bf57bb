//! `on_limit = "defer"`: what a limit refuses is kept, and sent when the limit has room, each once and in its order.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::h2::frames::{DATA, END_HEADERS, END_STREAM, Raw, request_with};
use crate::support::{Answer, Backend, Client, FRAME, Gateway, eventually, eventually_in, get, get_with, run};
use crate::timing::{assert_in_time, best_of_three};
use crate::wire::{Message, Wire};

fn configuration(server: SocketAddr, rate: &str, room: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{server}\"]\neject = \"off\"\n\
         [[limit]]\nname = \"per-user\"\nkey = \"header:x-user\"\nrate = \"{rate}\"\n\
         [[route]]\nname = \"api\"\nupstream = \"app\"\nlimits = [\"per-user\"]\non_limit = \"defer\"\n\
         [dead_letter]\ndirectory = \"dead-letters\"\n{room}"
    )
}

/// A backend that says 200 and repeats the body.
fn repeating() -> Backend {
    Backend::start(|seen, stream| {
        let head = format!("HTTP/1.1 201 Created\r\nx-made: yes\r\ncontent-length: {}\r\n\r\n", seen.body.len());
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&seen.body)).is_ok()
    })
}

fn deferred(backend: &Backend) -> Vec<Message> {
    backend.seen.lock().unwrap().iter().filter(|seen| seen.header("x-sluicegate-replay").is_some()).cloned().collect()
}

fn post(address: SocketAddr, user: &str, body: &[u8]) -> Answer {
    Client::connect(address).request("POST", "/jobs?token=s3cret", &[("x-user", user)], body)
}

fn state(address: SocketAddr, place: &str) -> Value {
    let answer = get(address, place);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The last line of `dead-letters deferred`.
fn balance(directory: &Path) -> String {
    let (status, out, errors) = run(&["dead-letters", "deferred"], directory);
    assert!(status.success(), "{errors}");
    out.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn what_is_over_the_limit_is_sent_when_there_is_room_and_its_answer_is_kept() {
    let backend = repeating();
    let gateway = Gateway::start(&configuration(backend.address, "1/500ms", ""));
    let address = gateway.address();
    assert_eq!(post(address, "a", b"first").status, 201);
    let answer = post(address, "a", b"second");
    assert_eq!(answer.status, 202, "{}", answer.text());
    let place = answer.header("location").unwrap().to_owned();
    assert!(place.starts_with("/.sluicegate/deferred/") && place.len() == 22 + 32, "{place}");
    assert_eq!((answer.json()["state"].as_str(), answer.json()["location"].as_str()), (Some("pending"), Some(&*place)));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(eventually(|| state(address, &place)["state"] == "sent"));
    let told = state(address, &place);
    assert_eq!(
        (told["status"].as_u64(), told["answer"]["body"]["data"].as_str()),
        (Some(201), Some("second")),
        "{told}"
    );
    assert!(told["answer"]["headers"].as_array().unwrap().contains(&serde_json::json!(["x-made", "yes"])), "{told}");
    let seen = deferred(&backend);
    assert_eq!((seen.len(), seen[0].target(), seen[0].body.as_slice()), (1, "/jobs?token=s3cret", &b"second"[..]));
    assert_eq!(seen[0].all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen[0].header("x-request-id"), answer.header("x-request-id"));
    let key = seen[0].header("idempotency-key").unwrap();
    assert!(key.len() == 32 && !place.ends_with(key), "{key}: whoever sees it cannot ask for the answer");
    // It has a record, which no replay sends again.
    let record = &gateway.dead_letters()[0];
    assert_eq!((record["reason"].as_str(), record["status"].as_u64()), (Some("deferred"), Some(202)), "{record}");
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"deferred\""], 1.0);
    gateway.wait_metric("sluicegate_deferred_requests_total", &["fate=\"sent\""], 1.0);
    gateway.wait_metric("sluicegate_deferred_pending", &[], 0.0);
    assert_eq!(balance(gateway.directory.path()), "deferred 1 = sent 1 + failed 0 + expired 0 + pending 0");
}

#[test]
fn each_key_has_its_order_and_the_limit_its_rate() {
    let backend = Backend::fixed("ok");
    let gateway = Gateway::start(&configuration(backend.address, "2/200ms", ""));
    let mut client = Client::connect(gateway.address());
    let mut kept = 0;
    for number in 0..20 {
        for user in ["a", "b"] {
            let body = format!("{user}{number}");
            let status = client.request("POST", "/", &[("x-user", user)], body.as_bytes()).status;
            assert!(matches!(status, 200 | 202), "{status}");
            kept += usize::from(status == 202);
        }
    }
    assert!(kept >= 30, "{kept}");
    assert!(eventually_in(Duration::from_secs(30), || deferred(&backend).len() == kept));
    for user in ["a", "b"] {
        let seen = deferred(&backend);
        let numbers =
            seen.iter().filter_map(|seen| seen.text().strip_prefix(user).map(|text| text.parse::<u32>().unwrap()));
        let numbers: Vec<_> = numbers.collect();
        assert!(numbers.is_sorted(), "{user}: {numbers:?}");
    }
    gateway.wait_metric("sluicegate_deferred_requests_total", &["fate=\"sent\""], kept as f64);
    // The limit itself admitted each of them: never more than 2 in 200 ms.
    let (status, out, _) = run(&["dead-letters", "replay", "--methods", "POST", "--dry-run"], gateway.directory.path());
    assert!(!status.success() || out.contains(&format!("{kept}  were deferred")), "{out}");
}

#[test]
fn a_status_is_known_to_whoever_has_the_id_and_no_limit_counts_it() {
    let backend = Backend::fixed("ok");
    let gateway = Gateway::start(&configuration(backend.address, "1/1h", "[log]\naccess = \"json\"\n"));
    let address = gateway.address();
    assert_eq!(post(address, "a", b"1").status, 200);
    let place = post(address, "a", b"2").header("location").unwrap().to_owned();
    let counted = || gateway.metric("sluicegate_limit_decisions_total", &["decision=\"refused\""]);
    for _ in 0..50 {
        let answer = get_with(address, &place, &[("x-user", "a")]);
        assert_eq!((answer.status, answer.header("retry-after")), (200, Some("1")), "{}", answer.text());
    }
    let last = if place.ends_with('0') { "1" } else { "0" };
    let other = format!("{}{last}", &place[..place.len() - 1]);
    let unknown = [other.as_str(), "/.sluicegate/deferred/", "/.sluicegate/deferred/x", "/.sluicegate/deferred/..%2f"];
    assert_eq!(unknown.map(|place| get(address, place).status), [404; 4]);
    let mut client = Client::connect(address);
    let refused = client.request("DELETE", &place, &[], b"");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    client.send("HEAD", &place, &[], b"");
    assert_eq!(client.read_answer(true).unwrap().status, 200);
    assert_eq!(counted() as u64, 1, "nobody asks a limit before it has room");
    let log = gateway.access_log();
    assert!(eventually(|| gateway
        .access_log()
        .iter()
        .any(|line| line["target"] == "/.sluicegate/deferred/[redacted]")));
    assert!(
        log.iter().all(|line| !line.to_string().contains(&place)),
        "whoever reads the log is not to get the answer"
    );
    // A call of gRPC is refused in its own words, and nobody keeps the question of a browser.
    let call = [("x-user", "a"), ("content-type", "application/grpc"), ("te", "trailers")];
    let mut raw = Raw::open(address);
    let id = raw.headers(END_HEADERS | END_STREAM, &request_with("POST", "/", &call));
    raw.ending(id);
    assert_eq!(raw.status(id), 200, "its own status is in grpc-status");
    assert_eq!(Client::connect(address).request("OPTIONS", "/", &[("x-user", "a")], b"").status, 429);
    let admin = format!("http://{}", gateway.admin);
    let asked = ["explain", "POST", "http://x/", "-H", "x-user: a", "--live", "--admin", &admin];
    let (_, explained, errors) = run(&asked, gateway.directory.path());
    assert!(explained.contains("status 202: kept to be sent later, if there is room"), "{explained}{errors}");
    // Elsewhere the paths are whoever's they are.
    let plain = configuration(backend.address, "1/1h", "").replace("on_limit = \"defer\"\n", "");
    let other = Gateway::start(&plain);
    assert_eq!(get(other.address(), "/.sluicegate/deferred/x").text(), "ok");
}

#[test]
fn bodies_are_kept_whole_up_to_the_cap_however_they_come() {
    let backend = repeating();
    let gateway =
        Gateway::start(&configuration(backend.address, "1/300ms", "deferred = { max_body_size = \"100KiB\" }\n"));
    let address = gateway.address();
    let large: Vec<u8> = (0..100 * 1024_u32).map(|at| at as u8).collect();
    assert_eq!(post(address, "a", b"1").status, 201);
    let place = post(address, "a", &large).header("location").unwrap().to_owned();
    let head = "POST / HTTP/1.1\r\nhost: h\r\nx-user: a\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut wire = Wire::with(address, head);
    assert_eq!(wire.head().unwrap().status(), 100);
    for piece in ["3\r\nab", "c\r\n", "2\r\nde\r\n0\r\n\r\n"] {
        assert!(wire.send(piece));
    }
    assert_eq!(wire.answer().status(), 202);
    assert!(eventually(|| deferred(&backend).len() == 2));
    let seen = deferred(&backend);
    assert_eq!((seen[0].body == large, seen[1].text()), (true, "abcde".to_owned()));
    assert!(eventually(|| state(address, &place)["state"] == "sent"));
    let kept = &state(address, &place)["answer"]["body"];
    assert_eq!((kept["truncated"].as_bool(), kept["encoding"].as_str()), (Some(true), Some("base64")));
    // Over the cap, told or not.
    assert_eq!(post(address, "b", b"1").status, 201);
    assert_eq!(post(address, "b", &vec![0; 100 * 1024 + 1]).status, 413);
    let chunk = format!("{:x}\r\n{}\r\n", 110 * 1024, "x".repeat(110 * 1024));
    let mut client = Client::connect(address);
    client
        .stream
        .write_all(head.replace("expect: 100-continue\r\n", "").replace("x-user: a", "x-user: b").as_bytes())
        .unwrap();
    let _ = client.stream.write_all(chunk.as_bytes());
    assert_eq!(client.read_answer(false).unwrap().status, 413);
    // A client that goes away in the middle leaves nothing behind.
    let mut client = Client::connect(address);
    client.stream.write_all(b"POST / HTTP/1.1\r\nhost: h\r\nx-user: b\r\ncontent-length: 10\r\n\r\nabc").unwrap();
    drop(client);
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 1.0);
    assert_eq!(balance(gateway.directory.path()), "deferred 2 = sent 2 + failed 0 + expired 0 + pending 0");
}

#[test]
fn above_the_room_it_is_refused_as_elsewhere_and_one_client_does_not_take_all() {
    let backend = Backend::fixed("ok");
    let room = "deferred = { max_requests = 8 }\n[client]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    let gateway = Gateway::start(&configuration(backend.address, "1/1h", room));
    let mut client = Client::connect(gateway.address());
    let mut ask = |user: &str, from: &str| {
        client.request("POST", "/", &[("x-user", user), ("x-forwarded-for", from)], b"x").status
    };
    let of_first: Vec<_> = (0..8).map(|_| ask("a", "192.0.2.1")).collect();
    assert_eq!(of_first, [200, 202, 202, 202, 202, 429, 429, 429]);
    assert_eq!([ask("b", "192.0.2.2"), ask("b", "192.0.2.2")], [200, 202]);
    let record = |reason: &str| gateway.dead_letters().iter().filter(|letter| letter["reason"] == reason).count();
    assert!(eventually(|| (record("deferred"), record("rate-limited")) == (5, 3)));
}

#[test]
fn what_a_server_refuses_for_good_has_failed_and_what_nobody_takes_expires() {
    let is_ill = Arc::new(AtomicBool::new(true));
    let ill = Arc::clone(&is_ill);
    let backend = Backend::start(move |seen, stream| {
        let status = match seen.text().as_str() {
            "bad" => "404 Not Found",
            "busy" if ill.load(Ordering::SeqCst) => "503 Busy",
            "never" => "503 Busy",
            _ => "200 OK",
        };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nno").as_bytes()).is_ok()
    });
    let gateway = Gateway::start(&configuration(backend.address, "5/100ms", "deferred = { max_age = \"8s\" }\n"));
    let address = gateway.address();
    let kept = |user: &str, body: &str| {
        // Each user has used its rate up before.
        let mut client = Client::connect(address);
        (0..1_000).find_map(|_| {
            let answer = client.request("POST", "/", &[("x-user", user)], body.as_bytes());
            (answer.status == 202).then(|| answer.header("location").unwrap().to_owned())
        })
    };
    let [bad, busy, never] = ["bad", "busy", "never"].map(|body| kept(body, body).unwrap());
    assert!(eventually(|| state(address, &bad)["state"] == "failed"));
    let told = state(address, &bad);
    assert_eq!(
        (told["status"].as_u64(), told["reason"].as_str(), told["answer"]["body"]["data"].as_str()),
        (Some(404), Some("status 404"), Some("no"))
    );
    assert!(eventually(|| deferred(&backend).iter().any(|seen| seen.text() == "busy")));
    assert_eq!(state(address, &busy)["state"], "pending");
    is_ill.store(false, Ordering::SeqCst);
    assert!(eventually_in(Duration::from_secs(20), || state(address, &busy)["state"] == "sent"));
    assert!(state(address, &busy)["tries"].as_u64().unwrap() > 1);
    assert!(eventually_in(Duration::from_secs(30), || state(address, &never)["state"] == "expired"));
    let (_, out, _) = run(&["dead-letters", "deferred", "--state", "failed"], gateway.directory.path());
    assert!(out.contains("status 404") && out.lines().count() == 3, "{out}");
}

#[test]
fn ten_kills_lose_nothing_and_repeat_at_most_one_of_a_key_each() {
    let backend = Backend::start(|_, stream| {
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let settings = configuration(backend.address, "5/250ms", "");
    let mut gateway = Gateway::start(&settings);
    let mut told = Vec::new();
    for kill in 0..10 {
        let mut client = Client::connect(gateway.address());
        let enough = told.len() + 30;
        let (before, mut number) = (deferred(&backend).len(), 0);
        while told.len() < enough {
            let user = ["a", "b", "c"][number % 3];
            let body = format!("{kill}-{number}-{user}");
            let answer = client.request("POST", "/", &[("x-user", user)], body.as_bytes());
            if answer.status == 202 {
                told.push((body, answer.header("location").unwrap().to_owned()));
            }
            number += 1;
        }
        // At some request of it, whichever that is.
        assert!(eventually(|| deferred(&backend).len() > before + kill % 5));
        gateway = Gateway::start_in(gateway.kill(), &format!("{FRAME}{settings}"));
    }
    let address = gateway.address();
    assert!(eventually(|| get(address, &told[0].1).status == 200));
    assert!(eventually_in(Duration::from_secs(120), || {
        told.iter().all(|(_, place)| state(address, place)["state"] == "sent")
    }));
    let mut times: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for seen in deferred(&backend) {
        times.entry(seen.text()).or_default().push(seen.header("idempotency-key").unwrap().to_owned());
    }
    for (body, _) in &told {
        let keys = times.get(body).unwrap_or_else(|| panic!("{body} is lost"));
        assert!(keys.iter().all(|key| *key == keys[0]), "{body}: {keys:?}");
    }
    let repeats = |user: &str| -> usize {
        times.iter().filter(|(body, _)| body.ends_with(user)).map(|(_, keys)| keys.len() - 1).sum()
    };
    for user in ["a", "b", "c"] {
        assert!(repeats(user) <= 10, "{user}: {} repeats of 10 kills", repeats(user));
    }
    // Whoever was killed before the client was told may have kept it: no more of them than kills.
    let line = balance(gateway.directory.path());
    let sent: usize = line.split("sent ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(line, format!("deferred {sent} = sent {sent} + failed 0 + expired 0 + pending 0"));
    assert!((told.len()..=told.len() + 10).contains(&sent), "{sent} of {}", told.len());
}

#[test]
fn a_reload_an_upgrade_and_an_end_keep_what_is_pending() {
    let backend = Backend::fixed("ok");
    let mut gateway = Gateway::start(&configuration(backend.address, "1/1h", ""));
    assert_eq!(post(gateway.address(), "a", b"1").status, 200);
    let places: Vec<_> =
        (0..20).map(|_| post(gateway.address(), "a", b"x").header("location").unwrap().to_owned()).collect();
    gateway.upgrade();
    let address = gateway.address();
    assert!(eventually(|| get(address, &places[0]).status == 200));
    assert_eq!(state(address, &places[19])["state"], "pending");
    assert!(eventually(|| post(address, "a", b"x").status == 202));
    // No route defers any more, and what was kept is sent all the same, as the limit now allows.
    let plain = configuration(backend.address, "100/100ms", "").replace("on_limit = \"defer\"\n", "");
    assert_eq!(gateway.reload(&plain).status, 200);
    assert!(eventually(|| places.iter().all(|place| state(address, place)["state"] == "sent")));
    let line = balance(gateway.directory.path());
    assert!(line.contains("pending 0"), "{line}");
    // They are alike and go within a millisecond: each has a token of its own all the same. One may have been tried before.
    let again = places.iter().filter(|place| state(address, place)["tries"] != 1).count();
    assert!(again <= 1, "{again} were tried again");
}

#[test]
fn what_was_deferred_goes_by_whatever_listener_there_is() {
    let backend = Backend::fixed("ok");
    let room = "[client]\ntrusted_proxies = [\"127.0.0.1\"]\ndeny = [\"10.0.0.0/8\"]\nmax_connections = 1\n";
    let settings = configuration(backend.address, "1/300ms", room).replace("rate = ", "max_wait = \"1ms\"\nrate = ");
    let gateway = Gateway::start_whole(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"required\"\nproxy_protocol_from = [\"127.0.0.1\"]\n\
         [admin]\naddress = \"127.0.0.1:0\"\n{settings}"
    ));
    // It stays, and is the one connection that may be.
    let mut client = Client::connect(gateway.address());
    client.stream.write_all(b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 80\r\n").unwrap();
    let mut ask = |body: &str| client.request("POST", "/", &[("x-user", "a")], body.as_bytes()).status;
    assert_eq!((ask("1"), ask("2")), (200, 202));
    assert!(eventually(|| deferred(&backend).len() == 1));
    assert_eq!(deferred(&backend)[0].all("x-forwarded-for"), ["192.0.2.9"]);
}

#[test]
fn a_store_without_its_directory_refuses_and_never_says_202() {
    let backend = Backend::fixed("ok");
    let gateway = Gateway::start(&configuration(backend.address, "1/1h", ""));
    assert_eq!(post(gateway.address(), "a", b"1").status, 200);
    // A file is in the directory's place: nothing can be written there, by root neither.
    let folder = gateway.directory.path().join("dead-letters/deferred");
    assert!(eventually(|| folder.exists()));
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, b"").unwrap();
    let answer = post(gateway.address(), "a", b"2");
    assert_eq!((answer.status, answer.header("location")), (503, None), "{}", answer.text());
    assert!(answer.header("retry-after").is_some());
    assert!(eventually(|| gateway.log().contains("deferred requests cannot be written")), "{}", gateway.log());
    fs::remove_file(&folder).unwrap();
    assert_eq!(post(gateway.address(), "a", b"3").status, 202);
    assert!(eventually(|| gateway.dead_letters().iter().any(|letter| letter["status"] == 503)));
}

#[test]
fn others_are_served_while_bodies_come_slowly() {
    let backend = Backend::fixed("ok");
    let gateway = Gateway::start(&configuration(backend.address, "1/1h", ""));
    let address = gateway.address();
    assert_eq!(post(address, "a", b"1").status, 200);
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Client::connect(address);
            client
                .stream
                .write_all(b"POST / HTTP/1.1\r\nhost: h\r\nx-user: a\r\ncontent-length: 9\r\n\r\nabc")
                .unwrap();
            client
        })
        .collect();
    let count = AtomicUsize::new(0);
    for user in 0..50 {
        count.fetch_add(usize::from(post(address, &format!("u{user}"), b"x").status == 200), Ordering::SeqCst);
    }
    assert_eq!(count.into_inner(), 50);
    for mut client in slow {
        client.stream.write_all(b"defghi").unwrap();
        assert_eq!(client.read_answer(false).unwrap().status, 202);
    }
}

#[test]
fn a_body_of_http_2_is_kept_as_it_comes() {
    let backend = repeating();
    let gateway = Gateway::start(&configuration(backend.address, "1/300ms", ""));
    assert_eq!(post(gateway.address(), "a", b"1").status, 201);
    let mut client = Raw::open(gateway.address());
    let id = client.headers(END_HEADERS, &request_with("POST", "/h2", &[("x-user", "a")]));
    for (flags, piece) in [(0, b"ab"), (END_STREAM, b"cd")] {
        assert!(client.send(DATA, flags, id, piece));
    }
    client.ending(id);
    assert_eq!(client.status(id), 202);
    let told: Value = serde_json::from_slice(&client.body(id)).unwrap();
    assert!(eventually(|| deferred(&backend).len() == 1));
    assert_eq!((deferred(&backend)[0].target(), deferred(&backend)[0].text()), ("/h2", "abcd".to_owned()));
    assert!(eventually(|| state(gateway.address(), told["location"].as_str().unwrap())["state"] == "sent"));
}

#[test]
fn a_server_that_asks_for_a_year_does_not_hold_up_what_comes_behind() {
    let backend = Backend::start(|seen, stream| {
        let answer: &[u8] = match seen.text().as_str() {
            // Whoever is no limit of the gateway is not believed to have no room.
            "next" => b"HTTP/1.1 200 OK\r\nx-sluicegate-room-in-ms: 10\r\ncontent-length: 0\r\n\r\n",
            "year" => b"HTTP/1.1 503 Busy\r\nretry-after: 31536000\r\ncontent-length: 0\r\n\r\n",
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        };
        stream.write_all(answer).is_ok()
    });
    let gateway = Gateway::start(&configuration(backend.address, "1/500ms", "deferred = { max_age = \"6s\" }\n"));
    let address = gateway.address();
    let kept = |body: &str| {
        let mut answers = (0..1_000).map(|_| post(address, "a", body.as_bytes()));
        answers.find(|answer| answer.status == 202).unwrap().header("location").unwrap().to_owned()
    };
    let year = kept("year");
    assert!(eventually(|| deferred(&backend).iter().any(|seen| seen.text() == "year")));
    assert!(eventually_in(Duration::from_secs(20), || gateway.metric("sluicegate_deferred_oldest_seconds", &[]) >= 2.0));
    let next = kept("next");
    assert!(eventually_in(Duration::from_secs(20), || state(address, &year)["state"] == "expired"));
    let told = state(address, &year);
    assert_eq!((told["tries"].as_u64(), told["status"].as_u64()), (Some(1), Some(503)), "{told}");
    assert!(eventually(|| state(address, &next)["state"] == "sent"), "{}", state(address, &next));
    assert_eq!(deferred(&backend).iter().filter(|seen| seen.text() == "next").count(), 1);
}

/// Configuration whose key all clients share, behind a balancer that is trusted.
fn shared_by_all(server: SocketAddr, rate: &str, room: &str) -> String {
    let whole = configuration(server, rate, room).replace("key = \"header:x-user\"", "key = \"header:x-shared\"");
    format!("[client]\ntrusted_proxies = [\"127.0.0.1\"]\n[log]\naccess = \"json\"\n{whole}")
}

fn post_of(address: SocketAddr, client: &str, body: &str) -> Answer {
    let fields = [("x-shared", "all"), ("x-forwarded-for", client)];
    Client::connect(address).request("POST", "/jobs", &fields, body.as_bytes())
}

#[test]
fn a_request_that_waits_for_its_server_holds_up_its_own_client_alone() {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let backend = Backend::start(move |seen, stream| {
        let is_busy = seen.text() == "a-1" && !up.load(Ordering::SeqCst);
        let answer: &[u8] = if is_busy {
            b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
        } else {
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        };
        stream.write_all(answer).is_ok()
    });
    let gateway = Gateway::start(&shared_by_all(backend.address, "1/200ms", ""));
    let address = gateway.address();
    let kept = |client: &str, body: &str| {
        let mut answers = (0..1_000).map(|_| post_of(address, client, body));
        answers.find(|answer| answer.status == 202).unwrap().header("location").unwrap().to_owned()
    };
    let first = kept("192.0.2.1", "a-1");
    assert!(eventually(|| deferred(&backend).iter().any(|seen| seen.text() == "a-1")));
    let second = kept("192.0.2.1", "a-2");
    let others = ["192.0.2.2", "192.0.2.3"].map(|client| kept(client, "b"));
    for other in others {
        assert!(eventually(|| state(address, &other)["state"] == "sent"), "{}", state(address, &other));
    }
    let pending = [&first, &second].map(|place| state(address, place)["state"].clone());
    assert_eq!(pending, ["pending", "pending"], "the order of a client stays");
    is_up.store(true, Ordering::SeqCst);
    assert!(eventually(|| state(address, &second)["state"] == "sent"));
    let order: Vec<_> = deferred(&backend).iter().map(Message::text).filter(|text| text.starts_with("a-")).collect();
    assert!(order.iter().position(|text| text == "a-2") > order.iter().rposition(|text| text == "a-1"), "{order:?}");
}

#[test]
fn a_status_is_asked_for_in_every_spelling_and_no_server_or_log_gets_the_id() {
    let backend = Backend::fixed("ok");
    let gateway = Gateway::start(&shared_by_all(backend.address, "1/1h", ""));
    let address = gateway.address();
    assert_eq!(post_of(address, "192.0.2.1", "1").status, 200);
    let place = post_of(address, "192.0.2.1", "2").header("location").unwrap().to_owned();
    let id = place.rsplit('/').next().unwrap();
    let spellings = [
        format!("/{place}"),
        format!("/.{place}"),
        format!("/x/..{place}"),
        format!("/%2e{place}"),
        place.replace('.', "%2e"),
        place.replace("sluice", "slu%69ce"),
        place.replace("deferred/", "deferred%2F"),
        place.replace("/deferred", "\\deferred"),
        format!("http://elsewhere.example/{place}?a=b"),
    ];
    let mut wire = Wire::open(address);
    for spelling in &spellings {
        wire.send(format!("GET {spelling} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let answer = wire.answer();
        assert_eq!(answer.status(), 200, "{spelling}: {}", answer.text());
        assert!(answer.text().contains("\"pending\""), "{spelling}: {}", answer.text());
    }
    wire.send(format!("GET /{place}%zz HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert_eq!(wire.answer().status(), 400);
    assert_eq!(backend.requests(), 1);
    assert!(eventually(|| gateway.access_log().len() == 3 + spellings.len()));
    assert!(gateway.access_log().iter().all(|line| !line.to_string().contains(id)), "{}", gateway.log());
}

#[test]
fn a_client_that_asks_for_a_status_all_the_time_has_its_rate_and_others_theirs() {
    best_of_three(a_client_asks_for_a_status_all_the_time);
}

fn a_client_asks_for_a_status_all_the_time() {
    let backend = repeating();
    let gateway = Gateway::start(&shared_by_all(backend.address, "1/500ms", ""));
    let address = gateway.address();
    let large = "x".repeat(64 * 1024);
    let mut answers = (0..1_000).map(|_| post_of(address, "192.0.2.1", &large));
    let kept = answers.find(|answer| answer.status == 202).unwrap();
    let place = kept.header("location").unwrap().to_owned();
    assert!(eventually(|| state(address, &place)["state"] == "sent"));
    let ask = |client: &str| format!("GET {place} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n");
    let mut wire = Wire::open(address);
    let mut seen = Vec::new();
    let refused = eventually_in(Duration::from_secs(20), || {
        // By HEAD, which costs as much: to read the bodies, a busy machine would take as long as the rate gives.
        wire.send(ask("192.0.2.1").replacen("GET", "HEAD", 1).repeat(500));
        let answers: Vec<_> = (0..500).map(|_| wire.answer_to("HEAD")).collect();
        let statuses = |status| answers.iter().filter(|answer| answer.status() == status).count();
        seen.push([200, 429, 503].map(statuses));
        answers.iter().any(|answer| answer.status() == 429 && answer.header("retry-after") == Some("1"))
    });
    // A machine that is held up asks for less than the rate gives.
    assert_in_time(refused, &format!("500 times 64 KiB, again and again; of these 200, 429 and 503: {seen:?}"));
    wire.send(ask("192.0.2.2"));
    assert_eq!(wire.answer().status(), 200, "another client over the same balancer");
}
