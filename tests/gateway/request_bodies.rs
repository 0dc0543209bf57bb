//! Limits that look at the bodies of requests: keys and costs out of JSON and forms.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::connections::connect_from;
use crate::h2::peer;
use crate::mixes::peers::{Ask, Mix, Origin, Told, in_every_mix};
use crate::support::{Answer, Backend, Client, Gateway, eventually, get, run};
use crate::wire::{Wire, telling};

const JSON: (&str, &str) = ("content-type", "application/json");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// Everything goes to one server; by address nothing is bounded but with `x-low`.
fn gateway(limits: &str, names: &str, route: &str) -> (Gateway, Backend) {
    let backend = telling();
    let gateway = Gateway::start(&format!(
        "[server]\nhead_timeout = \"2s\"\nworkers = 1\n[log]\naccess = \"json\"\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n{limits}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [{names}]\n{route}\n",
        backend.address
    ));
    (gateway, backend)
}

fn post(gateway: &Gateway, kind: (&str, &str), body: &str) -> Answer {
    Client::connect(gateway.address()).request("POST", "/", &[kind], body.as_bytes())
}

fn statuses<const N: usize>(gateway: &Gateway, kind: (&str, &str), bodies: [&str; N]) -> [u16; N] {
    bodies.map(|body| post(gateway, kind, body).status)
}

const BY_USER: &str = "[[limit]]\nname = \"user\"\nkey = \"json:/user/id\"\nrate = \"1/1h\"\n";

in_every_mix! { users_are_told_apart_by_a_field_of_the_body }

fn users_are_told_apart_by_a_field_of_the_body(mix: Mix) {
    let origin = Origin::start(mix.server, |request| Told::ok(request.body.clone()));
    let gateway = Gateway::start(&mix.rules(origin.address, "limits = [\"user\"]", BY_USER));
    let mut asker = mix.asker(&gateway);
    let body = |user: &str| format!("{{\"text\":\"{}\",\"user\":{{\"id\":\"{user}\"}}}}", "x".repeat(40_000));
    for (has_no_length, user, status) in
        [(false, "ann", 200), (true, "ann", 429), (true, "bob", 200), (false, "bob", 429), (true, "eve", 200)]
    {
        let ask = Ask { has_no_length, ..Ask::post("/", body(user)) };
        let answer = asker.ask(&ask);
        assert_eq!(answer.status(), status, "{user}");
        if status == 200 {
            assert_eq!(answer.body, body(user).as_bytes(), "the server has got all of it");
        }
    }
}

#[test]
fn a_body_that_names_nobody_for_sure_is_counted_by_the_clients_address() {
    let (gateway, _backend) = gateway(&BY_USER.replace("1/1h", "3/1h"), "\"user\"", "key_body = \"100B\"");
    let long = format!("{{\"user\":{{\"id\":\"ann\"}},\"pad\":\"{}\"}}", "x".repeat(100));
    let bodies = [
        "{\"user\":{\"id\":\"ann\"},\"user\":{\"id\":\"zoe\"}}",
        "{\"user\":{\"id\":\"a\",\"ID\":\"b\"}}",
        &long,
        "no json",
        "{\"user\":{\"id\":[\"ann\"]}}",
        "{}",
    ];
    assert_eq!(statuses(&gateway, JSON, bodies), [200, 200, 200, 429, 429, 429], "three of the address");
    assert_eq!(statuses(&gateway, JSON, ["{\"user\":{\"id\":\"ann\"}}", "{\"user\":{\"id\":17}}"]), [200, 200]);
    assert_eq!(get(gateway.address(), "/").status, 429, "a request without a body lacks the key");
    let coded = Client::connect(gateway.address()).request(
        "POST",
        "/",
        &[JSON, ("content-encoding", "gzip")],
        b"{\"user\":{\"id\":\"bob\"}}",
    );
    assert_eq!(coded.status, 429, "what is coded is not read");
}

#[test]
fn a_field_of_a_form_is_a_key_and_logs_show_it_as_a_mark() {
    let limit = "[[limit]]\nname = \"login\"\nkey = \"form:user\"\nrate = \"2/1h\"\non_missing_key = \"refuse\"\n";
    let (gateway, _backend) = gateway(limit, "\"login\"", "");
    let bodies = ["user=ann&password=1", "password=2&user=%61nn", "user=ann+", "user=bob", "user=bob&user=eve", "x=1"];
    assert_eq!(statuses(&gateway, FORM, bodies), [200, 200, 429, 200, 429, 429]);
    assert_eq!(post(&gateway, JSON, "{\"user\":\"bob\"}").status, 429);
    assert!(eventually(|| gateway.access_log().len() == 7));
    let log = gateway.access_log();
    let marks: Vec<_> = log.iter().map(|line| line["keys"]["form:user"].as_str().unwrap_or_default()).collect();
    assert!(marks[0].len() > 8 && marks[0] == marks[1] && marks[0] != marks[3], "{marks:?}");
    let text = std::fs::read_to_string(gateway.file().with_file_name("stdout.log")).unwrap();
    assert!(!text.contains("ann"), "{text}");
}

#[test]
fn a_cost_is_reserved_as_the_body_states_it() {
    let limit = "[[limit]]\nname = \"tokens\"\nkey = \"global\"\nrate = \"1000/1h\"\ncost = \"json:/max_tokens\"\ndefault_cost = 300\n";
    let (gateway, _backend) = gateway(limit, "\"tokens\"", "");
    let left = |body: &str| {
        let answer = post(&gateway, JSON, body);
        let state = answer.header("ratelimit").unwrap().to_owned();
        (answer.status, state.split("r=").nth(1).unwrap().split(';').next().unwrap().parse::<u64>().unwrap())
    };
    assert_eq!(left("{\"max_tokens\":100}"), (200, 900));
    assert_eq!(left("{}"), (200, 600), "the default");
    assert_eq!(left("{\"max_tokens\":\"many\"}"), (200, 300));
    assert_eq!(left("{\"max_tokens\":1,\"max_tokens\":1}"), (200, 0));
    assert_eq!(left("{\"max_tokens\":1}").0, 429);
    gateway.wait_metric("sluicegate_limit_cost_invalid_total", &["limit=\"tokens\""], 2.0);
}

#[test]
fn a_request_that_another_limit_refuses_has_nothing_read_of_its_body() {
    let limits = format!(
        "[[limit]]\nname = \"low\"\nkey = \"header:x-low\"\non_missing_key = \"skip\"\nrate = \"1/1h\"\n{BY_USER}"
    );
    let (gateway, _backend) = gateway(&limits, "\"low\", \"user\"", "");
    let ask = |user: &str| {
        let body = format!("{{\"user\":{{\"id\":\"{user}\"}}}}");
        let head = format!(
            "POST / HTTP/1.1\r\nHost: h\r\nX-Low: 1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut wire = Wire::with(gateway.address(), head);
        let first = wire.head().unwrap();
        if first.status() != 100 {
            return first.status();
        }
        wire.send(body);
        wire.answer().status()
    };
    assert_eq!(ask("ann"), 200, "it is told to go on, and is admitted");
    assert_eq!(ask("bob"), 429, "without a 100");
    assert_eq!(post(&gateway, JSON, "{\"user\":{\"id\":\"bob\"}}").status, 200, "bob was not counted");
    let refusals = gateway.metric("sluicegate_limit_decisions_total", &["limit=\"low\"", "decision=\"refused\""]);
    assert_eq!(refusals as u64, 1);
}

#[test]
fn a_body_that_is_slow_is_not_waited_for_longer_than_for_a_head() {
    let (gateway, backend) = gateway(BY_USER, "\"user\"", "");
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\n\r\n{\"user\":";
    let wire = Wire::with(gateway.address(), head);
    assert!(eventually(|| backend.connections.load(std::sync::atomic::Ordering::SeqCst) > 0), "it goes on without");
    wire.send("{\"id\":\"slowly\"}}    ");
    let mut wire = wire;
    assert_eq!(wire.answer().status(), 200);
    assert_eq!(post(&gateway, JSON, "{}").status, 429, "it was counted by its address");
    assert_eq!(post(&gateway, JSON, "{\"user\":{\"id\":\"slowly\"}}").status, 200);
}

#[test]
fn a_client_that_goes_away_in_its_body_counts_nothing() {
    let (gateway, backend) = gateway(&BY_USER.replace("json:/user/id", "json:/id"), "\"user\"", "");
    drop(Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\n\r\n{\"id\":"));
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 1.0);
    let broken = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"i\r\nx\r\n";
    assert_eq!(Wire::with(gateway.address(), broken).answer().status(), 400);
    assert_eq!(backend.requests(), 0);
    assert_eq!(post(&gateway, JSON, "{}").status, 200);
}

#[test]
fn slow_bodies_of_one_client_leave_others_alone() {
    let limits = BY_USER.replace("1/1h", "100000/1h");
    let (gateway, _backend) = gateway(&limits, "\"user\"", "key_body = \"1MiB\"");
    let slow: Vec<_> = (0..200)
        .map(|_| {
            let wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
            wire.send(" ".repeat(30_000));
            wire
        })
        .collect();
    let asked: Vec<_> = (0..4)
        .map(|client| {
            let address = gateway.address();
            thread::spawn(move || {
                let mut connection = Client::connect(address);
                let body = format!("{{\"user\":{{\"id\":\"{client}\"}}}}");
                (0..100).all(|_| connection.request("POST", "/", &[JSON], body.as_bytes()).status == 200)
            })
        })
        .collect();
    assert!(asked.into_iter().all(|asked| asked.join().unwrap()));
    drop(slow);
}

/// One worker, whose limit refuses a body that it cannot read.
fn refusing(backend: &Backend) -> Gateway {
    Gateway::start(&format!(
        "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n{}on_missing_key = \"refuse\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"user\"]\nkey_body = \"1MiB\"\n\
         [[limit]]\nname = \"costs\"\nkey = \"header:x-key\"\nrate = \"9/1h\"\ncost = \"json:/n\"\non_missing_key = \"refuse\"\n\
         [[route]]\nname = \"costs\"\npath = \"/costs\"\nupstream = \"app\"\nlimits = [\"costs\"]\nkey_body = \"1MiB\"\n",
        backend.address,
        BY_USER.replace("1/1h", "100000/1h")
    ))
}

#[test]
fn bodies_that_wait_share_a_room_of_which_a_client_has_half_and_small_ones_need_none() {
    let backend = telling();
    let gateway = refusing(&backend);
    let large = large("ann", 900_000);
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n";
    let status = |source: &str, request: &str| {
        let mut wire = Wire::noting(connect_from(source, gateway.address()), Arc::default());
        wire.send(request);
        wire.answer()
    };
    let mut waiting = Vec::new();
    let is_full = (0..20).any(|_| {
        let wire = Wire::with(gateway.address(), head);
        wire.send(" ".repeat(900_000));
        waiting.push(wire);
        status("127.0.0.1", &large).status() == 503
    });
    assert!(is_full && waiting.len() > 5, "{} wait", waiting.len());
    let refused = status("127.0.0.1", &large);
    assert_eq!((refused.status(), refused.header("retry-after")), (503, Some("5")));
    assert!(refused.text().contains("The gateway has no room to read the body for the limit"), "{}", refused.text());
    let without_key = large.replace("POST /", "POST /costs");
    assert_eq!(status("127.0.0.1", &without_key).status(), 429, "it lacks its header, room or not");
    assert_eq!(status("127.0.0.1", &self::large("ann", 0)).status(), 200, "a small one");
    assert_eq!(status("127.0.0.2", &large).status(), 200, "of another client");
    drop(waiting);
    assert!(eventually(|| status("127.0.0.1", &large).status() == 200), "the room is free again");
}

/// A large body of a user, with the head before it.
fn large(user: &str, size: usize) -> String {
    let body = format!("{{\"user\":{{\"id\":\"{user}\"}},\"pad\":\"{}\"}}", "x".repeat(size));
    format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn status_of(gateway: &Gateway, request: &str) -> u16 {
    Wire::with(gateway.address(), request).answer().status()
}

#[test]
fn what_is_pipelined_behind_a_refused_body_waits_in_the_same_room() {
    let backend = telling();
    let gateway = refusing(&backend);
    let (refused, slow) = (large("", 900_000), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
    for ahead in [0, 40_000] {
        let waiting: Vec<_> = (0..14)
            .map(|_| {
                let (request, come) = (format!("{refused}{slow}"), " ".repeat(ahead));
                let mut wire = Wire::with(gateway.address(), request + &come);
                let status = wire.answer().status();
                wire.send(" ".repeat(900_000 - ahead));
                (wire, status)
            })
            .collect();
        assert_eq!((waiting[0].1, waiting[5].1), (429, 429), "there was room");
        let probe = large("ann", 900_000);
        assert!(eventually(|| status_of(&gateway, &probe) == 503), "the second bodies fill the room");
        drop(waiting);
        assert!(eventually(|| status_of(&gateway, &probe) == 200));
    }
}

/// A server whose answers begin at once and end when they are let go.
type Held = Arc<(Mutex<bool>, Condvar)>;

fn holding(held: &Held) -> Backend {
    let held = Arc::clone(held);
    Backend::start(move |_, stream| {
        let began = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na").is_ok();
        drop(held.1.wait_while(held.0.lock().unwrap(), |held| *held).unwrap());
        began && stream.write_all(b"b").is_ok()
    })
}

fn let_go(held: &Held) {
    *held.0.lock().unwrap() = false;
    held.1.notify_all();
}

#[test]
fn a_body_whose_answer_begins_early_holds_room_until_all_of_it_has_come() {
    let held = Held::default();
    *held.0.lock().unwrap() = true;
    let held_there = Arc::clone(&held);
    let backend = Backend::scripted(move |wire, _| {
        let Ok(request) = wire.head() else { return };
        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na");
        if request.is_chunked() {
            drop(wire.pour_body(&request, |_| {}));
            drop(held_there.1.wait_while(held_there.0.lock().unwrap(), |held| *held).unwrap());
        }
        wire.send("b");
    });
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"may\"\nkey = \"json:/id\"\nrate = \"100000/1h\"\n\
         [[limit]]\nname = \"must\"\nkey = \"json:/user/id\"\nrate = \"100000/1h\"\non_missing_key = \"refuse\"\n\
         [[route]]\nname = \"may\"\npath = \"/may\"\nupstream = \"app\"\nlimits = [\"may\"]\n\
         [[route]]\nname = \"must\"\nupstream = \"app\"\nlimits = [\"must\"]\nkey_body = \"1MiB\"\n",
        backend.address
    ));
    let begun =
        format!("POST /may HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n11170\r\n{}", "x".repeat(70_000));
    let mut streams: Vec<_> = (0..120)
        .map(|_| {
            let mut wire = Wire::with(gateway.address(), &begun);
            assert_eq!(wire.head().unwrap().status(), 200);
            wire
        })
        .collect();
    let probe = large("ann", 60_000);
    assert_eq!(status_of(&gateway, &probe), 503, "uploads that go on hold the room of one client");
    for wire in &streams {
        wire.send("\r\n0\r\n\r\n");
    }
    assert!(eventually(|| status_of(&gateway, &probe) == 200), "the room is free again");
    let_go(&held);
    for wire in &mut streams {
        assert_eq!(wire.take(2).unwrap(), b"ab");
    }
}

#[test]
fn a_stream_of_http2_holds_no_room_while_its_answer_goes_on() {
    let held = Held::default();
    *held.0.lock().unwrap() = true;
    let backend = holding(&held);
    let gateway = refusing(&backend);
    let body = format!("{{\"user\":{{\"id\":\"ann\"}},\"pad\":\"{}\"}}", "x".repeat(60_000));
    peer::run(async {
        let mut streams = Vec::new();
        for _ in 0..4 {
            let sender = peer::connect(gateway.address()).await;
            for _ in 0..80 {
                let (response, mut send) = peer::open(&sender, peer::request("POST", "/", &[]), false).await;
                peer::send_all(&mut send, body.clone().into(), true).await.unwrap();
                streams.push(response.await.unwrap());
                assert_eq!(streams.last().unwrap().status(), 200);
            }
        }
        let_go(&held);
        for stream in streams {
            let (mut recv, mut answer) = (stream.into_body(), Vec::new());
            while let Some(piece) = peer::next(&mut recv).await {
                answer.extend_from_slice(&piece.unwrap());
            }
            assert_eq!(answer, b"ab");
        }
    });
}

#[test]
fn a_body_holds_no_room_while_its_answer_goes_on() {
    let held = Held::default();
    *held.0.lock().unwrap() = true;
    let backend = holding(&held);
    let gateway = refusing(&backend);
    let request = large("ann", 60_000);
    let next = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    // They would fill the room of one client; another request follows each, behind its body or later.
    let mut streams: Vec<_> = (0..350)
        .map(|number| {
            let (with, after) = if number % 2 == 0 { (next, "") } else { ("", next) };
            let mut wire = Wire::with(gateway.address(), format!("{request}{with}"));
            assert_eq!(wire.head().unwrap().status(), 200);
            wire.send(after);
            wire
        })
        .collect();
    let_go(&held);
    for wire in &mut streams {
        assert_eq!(wire.take(2).unwrap(), b"ab");
        assert_eq!(wire.answer().status(), 429, "a request without a body lacks the key");
    }
}

#[test]
fn explain_reads_the_body_that_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let rules = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n{BY_USER}cost = \"json:/n\"\n[[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"user\"]\n"
    );
    std::fs::File::create(&file).unwrap().write_all(rules.as_bytes()).unwrap();
    let explain = |data: &str| {
        let arguments = ["explain", "-c", file.to_str().unwrap(), "POST", "/", "--json", "-d", data];
        let (status, told, error) = run(&arguments, directory.path());
        assert!(status.success(), "{error}");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        (told["decision"].clone(), told["limits"][0]["cost"].clone())
    };
    assert_eq!(explain("{\"user\":{\"id\":\"ann\"},\"n\":1}"), ("admitted".into(), 1.into()));
    assert_eq!(explain("{\"user\":{\"id\":\"ann\"},\"n\":2}"), ("refused".into(), 2.into()));
    assert_eq!(explain("").1, 1);
}
