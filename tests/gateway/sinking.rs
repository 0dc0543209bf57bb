//! Sinks: the dead-letter log goes to another server, whatever becomes of either.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::support::wire::Message;
use crate::support::{Backend, Client, FRAME, Gateway, eventually, eventually_in, unused_address, write_ok};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const MARK: &str = "x-sluicegate-batch";
const LINES: &str = "sluicegate_dead_letters_sink_lines_total";
const BEHIND: &str = "sluicegate_dead_letters_sink_behind_lines";

/// All refusals are records of their own, and a file of them is soon full.
fn logging(more: &str) -> String {
    format!(
        "[[limit]]\nname = \"per-key\"\nkey = \"header:x-api-key\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"api\"\nrespond = {{}}\nlimits = [\"per-key\"]\n\
         [dead_letter]\nrotate_size = \"64KiB\"\nmax_key_rate = 100000\nmax_record_rate = 1000000\n\
         max_byte_rate = \"10GiB/s\"\n{more}\n"
    )
}

/// With one sink at that server.
fn sinking(server: &Backend, more: &str) -> String {
    let address = format!("http://{}/T0PSECRET?token=T0PSECRET", server.address);
    logging(&format!("sinks = [{{ http = \"{address}\", batch = \"100ms\", name = \"siem\" }}]\n{more}"))
}

/// Every request of the key is refused from now on.
fn use_up(gateway: &Gateway) {
    assert_eq!(Client::connect(gateway.address()).request("GET", "/", &[("X-Api-Key", "k")], b"").status, 200);
}

fn refuse(gateway: &Gateway, count: usize) {
    let mut client = Client::connect(gateway.address());
    for _ in 0..count {
        refuse_one(&mut client, "/");
    }
}

fn refuse_one(client: &mut Client, path: &str) {
    let long = "x".repeat(1_000);
    assert_eq!(client.request("GET", path, &[("X-Api-Key", "k"), ("X-Long", &long)], b"").status, 429);
}

fn start(configuration: &str) -> Gateway {
    let gateway = Gateway::start(configuration);
    use_up(&gateway);
    gateway
}

/// The lines of the log, segment by segment.
fn logged(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory.join("dead-letters")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    files.sort();
    files.iter().flat_map(|path| lines(&fs::read(path).unwrap())).collect()
}

fn lines(bytes: &[u8]) -> Vec<String> {
    std::str::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

fn field(message: &Message, name: &str) -> String {
    let found = message.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.clone()).unwrap_or_default()
}

/// The lines that a server has, if it passes over batches whose mark it has seen. Those have the same bytes.
fn received(server: &Backend) -> Vec<String> {
    let mut by_mark: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut all = Vec::new();
    for message in server.seen.lock().unwrap().iter() {
        if let Some(body) = by_mark.get(&field(message, MARK)) {
            assert_eq!(*body, message.body, "one mark, two batches");
        } else {
            by_mark.insert(field(message, MARK), message.body.clone());
            all.extend(lines(&message.body));
        }
    }
    all
}

fn answer(stream: &mut TcpStream, head: &str) -> bool {
    stream.write_all(format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").as_bytes()).is_ok()
}

fn is_signed(message: &Message) -> bool {
    let key: Vec<u8> = (0..32).collect();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.", field(message, "x-sluicegate-timestamp")).as_bytes());
    mac.update(&message.body);
    let digits: Vec<String> = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    field(message, "x-sluicegate-signature") == format!("sha256={}", digits.concat())
}

#[test]
fn batches_bring_every_line_once_and_in_order() {
    let server = Backend::fixed("");
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("sink.key"), KEY).unwrap();
    let address = format!("http://{}/in/T0PSECRET?token=T0PSECRET", server.address);
    let sinks = format!("sinks = [{{ http = \"{address}\", batch = \"100ms\", secret_file = \"sink.key\" }}]");
    let mut gateway = Gateway::start_in(directory, &format!("{FRAME}{}", logging(&sinks)));
    use_up(&gateway);
    refuse(&gateway, 300);
    let label = format!("sink=\"{}\"", server.address);
    gateway.wait_metric(LINES, &[&label, "fate=\"delivered\""], 300.0);
    let logged = logged(gateway.directory.path());
    assert_eq!((received(&server), logged.len()), (logged.clone(), 300));
    let seen = server.seen.lock().unwrap().clone();
    let sent: usize = seen.iter().map(|message| lines(&message.body).len()).sum();
    assert_eq!(sent, 300, "nothing twice");
    for message in &seen {
        assert_eq!(message.line, "POST /in/T0PSECRET?token=T0PSECRET HTTP/1.1");
        assert_eq!(field(message, "content-type"), "application/x-ndjson");
        assert!(message.body.ends_with(b"\n") && is_signed(message), "{message:?}");
    }
    let marks: HashSet<_> = seen.iter().map(|message| field(message, MARK)).collect();
    assert!(marks.len() == seen.len() && seen.len() > 1, "{marks:?}");
    gateway.wait_metric("sluicegate_dead_letters_sink_lag_seconds", &[&label], 0.0);
    gateway.wait_metric(BEHIND, &[&label], 0.0);
    let metrics = gateway.ask_admin("/metrics").text();
    assert!(!metrics.contains("T0PSECRET") && !gateway.log().contains("T0PSECRET"), "{}", gateway.log());
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    assert_eq!(server.requests(), seen.len());
}

#[test]
fn the_last_lines_are_sent_at_the_end_and_a_receiver_that_is_away_keeps_nobody() {
    let (up, down) = (Backend::fixed(""), unused_address());
    let sinks = format!(
        "sinks = [{{ http = \"http://{}\", batch = \"1m\" }}, {{ http = \"http://{down}\", batch = \"100ms\" }}]",
        up.address
    );
    let mut gateway = start(&logging(&sinks));
    refuse(&gateway, 5);
    gateway.wait_metric(BEHIND, &[&format!("sink=\"{down}\"")], 5.0);
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    assert_eq!(received(&up), logged(gateway.directory.path()));
}

#[test]
fn lines_that_the_cap_takes_from_a_receiver_that_is_away_are_counted_and_traffic_goes_on() {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let server = Backend::start(move |_, stream| {
        if up.load(Ordering::SeqCst) { write_ok(stream, b"") } else { answer(stream, "503 Service Unavailable") }
    });
    let gateway = start(&sinking(&server, "max_total_size = \"192KiB\""));
    let lost = |gateway: &Gateway| gateway.metric(LINES, &["fate=\"lost\""]);
    let mut client = Client::connect(gateway.address());
    let mut total = 0;
    for _ in 0..12 {
        for _ in 0..25 {
            refuse_one(&mut client, "/");
        }
        total += 25;
        let is_counted = || (gateway.metric(BEHIND, &[]) + lost(&gateway) - f64::from(total)).abs() < 0.5;
        assert!(eventually(is_counted), "{} and {} of {total}", gateway.metric(BEHIND, &[]), lost(&gateway));
    }
    assert!(lost(&gateway) > 20.0 && gateway.metric("sluicegate_dead_letters_sink_lost_segments_total", &[]) > 0.5);
    assert!(gateway.metric("sluicegate_dead_letters_sink_batches_total", &["result=\"failed\""]) > 0.5);
    assert!(gateway.metric("sluicegate_dead_letters_sink_behind_bytes", &[]) > 50_000.0);
    is_up.store(true, Ordering::SeqCst);
    assert!(eventually_in(Duration::from_secs(60), || gateway.metric(BEHIND, &[]) < 0.5), "{}", gateway.log());
    let all = received(&server);
    assert!((gateway.metric(LINES, &["fate=\"delivered\""]) - all.len() as f64).abs() < 0.5);
    assert!((all.len() as f64 + lost(&gateway) - f64::from(total)).abs() < 0.5, "{} of {total}", all.len());
    let kept = logged(gateway.directory.path());
    assert!(all.ends_with(&kept[kept.len() - 50..]), "what the log has is there, in order");
    for text in
        ["a sink does not take dead letters", "dead letters went from the log", "a sink takes dead letters again"]
    {
        assert!(eventually(|| gateway.log().matches(text).count() == 1), "{text}\n{}", gateway.log());
    }
    assert!(!gateway.log().contains("T0PSECRET"));
}

#[test]
fn kill_9_loses_no_line_and_repeats_are_known_by_their_mark() {
    let asked = AtomicUsize::new(0);
    // Of each third batch nobody learns that it was taken.
    let server = Backend::start(move |_, stream| match asked.fetch_add(1, Ordering::SeqCst) % 3 {
        1 => {
            let _ = stream.read(&mut [0]);
            false
        }
        _ => write_ok(stream, b""),
    });
    let mut directory = tempfile::tempdir().unwrap();
    let configuration = format!("{FRAME}{}", sinking(&server, ""));
    for round in 1..=6 {
        let gateway = Gateway::start_in(directory, &configuration);
        use_up(&gateway);
        let (before, sent) = (logged(gateway.directory.path()).len(), server.requests());
        refuse(&gateway, 40);
        assert!(eventually(|| logged(gateway.directory.path()).len() >= before + 40), "{}", gateway.log());
        assert!(eventually(|| server.requests() > sent || round % 2 == 0), "{}", gateway.log());
        refuse(&gateway, 7 * round);
        directory = gateway.kill();
    }
    let gateway = Gateway::start_in(directory, &configuration);
    let all: HashSet<_> = logged(gateway.directory.path()).into_iter().collect();
    assert!(all.len() >= 6 * 40, "{}", all.len());
    let is_there = || received(&server).len() == all.len();
    assert!(eventually_in(Duration::from_secs(60), is_there), "{} of {}", received(&server).len(), all.len());
    assert_eq!(received(&server).into_iter().collect::<HashSet<_>>(), all);
    let sent: usize = server.seen.lock().unwrap().iter().map(|message| lines(&message.body).len()).sum();
    assert!(sent > all.len(), "nothing came again");
}

#[test]
fn whatever_a_receiver_answers_the_batch_comes_again() {
    let asked = AtomicUsize::new(0);
    let server = Backend::start(move |_, stream| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => stream.write_all(b"\0garbage\r\n\r\n").is_err(),
        1 => answer(stream, "302 Found\r\nLocation: /elsewhere"),
        2 => answer(stream, "404 Not Found"),
        // It hangs, until the gateway has had enough.
        3 => {
            let _ = stream.read(&mut [0]);
            false
        }
        4 => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le").is_err(),
        5 => answer(stream, "429 Too Many Requests\r\nRetry-After: 1"),
        _ => write_ok(stream, b""),
    });
    let gateway = start(&sinking(&server, ""));
    refuse_one(&mut Client::connect(gateway.address()), "/");
    let is_taken = || gateway.metric(LINES, &["fate=\"delivered\""]) > 0.5;
    assert!(eventually_in(Duration::from_secs(90), is_taken), "{}", gateway.log());
    let seen = server.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 7);
    for message in &seen {
        assert_eq!((&message.line, field(message, MARK)), (&seen[0].line, field(&seen[0], MARK)));
        assert_eq!(message.body, seen[0].body);
    }
    gateway.wait_metric("sluicegate_dead_letters_sink_batches_total", &["result=\"failed\""], 6.0);
    assert_eq!(gateway.log().matches("a sink does not take dead letters").count(), 1, "{}", gateway.log());
    assert!(eventually(|| gateway.log().matches("a sink takes dead letters again").count() == 1));
    assert!(!gateway.log().contains("T0PSECRET"), "{}", gateway.log());
}

#[test]
fn a_line_that_a_receiver_cannot_read_keeps_no_other_back() {
    let server = Backend::start(|message, stream| {
        let is_bad = String::from_utf8_lossy(&message.body).contains("/bad");
        if is_bad { answer(stream, "400 Bad Request") } else { write_ok(stream, b"") }
    });
    let gateway = start(&sinking(&server, ""));
    let mut client = Client::connect(gateway.address());
    for at in 0..60 {
        refuse_one(&mut client, if at == 17 { "/bad" } else { "/" });
    }
    gateway.wait_metric(LINES, &["fate=\"delivered\""], 59.0);
    gateway.wait_metric(LINES, &["fate=\"refused\""], 1.0);
    gateway.wait_metric(BEHIND, &[], 0.0);
}

#[test]
fn a_reload_adds_changes_and_removes_a_sink_and_no_place_is_lost() {
    let server = Backend::fixed("");
    let gateway = start(&logging(""));
    let mut client = Client::connect(gateway.address());
    let mut refuse = |path: &str| refuse_one(&mut client, path);
    let paths = || -> Vec<String> {
        let path = |line: &String| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["path"].as_str().unwrap().to_owned()
        };
        received(&server).iter().map(path).collect()
    };
    let reload = |configuration: &str| {
        let answer = gateway.reload(configuration);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains("T0PSECRET"), "{}", answer.text());
        answer.text()
    };
    refuse("/before");
    assert!(eventually(|| gateway.dead_letters().len() == 1));
    let plan = reload(&sinking(&server, ""));
    assert!(plan.contains(&format!("sinks +[siem to http://{}, batch 100ms]", server.address)), "{plan}");
    refuse("/added");
    assert!(eventually(|| paths() == ["/added"]), "{:?}", paths());
    let plan = reload(&sinking(&server, "").replace("token=", "token=2"));
    assert!(plan.contains("sinks has other contents"), "{plan}");
    refuse("/changed");
    assert!(eventually(|| paths() == ["/added", "/changed"]), "{:?}", paths());
    assert!(server.seen.lock().unwrap().last().unwrap().line.contains("token=2T0P"));
    reload(&logging(""));
    refuse("/removed");
    assert!(eventually(|| gateway.dead_letters().len() == 4));
    gateway.wait_metric(LINES, &["fate=\"delivered\""], 0.0);
    reload(&sinking(&server, ""));
    refuse("/again");
    assert!(eventually(|| paths() == ["/added", "/changed", "/removed", "/again"]), "{:?}", paths());
}

#[test]
fn an_upgrade_in_place_hands_the_place_over() {
    let server = Backend::fixed("");
    let mut gateway = start(&format!("[server]\nworkers = 2\nshutdown_grace = \"2s\"\n{}", sinking(&server, "")));
    let mut total = 0;
    for _ in 0..3 {
        refuse(&gateway, 20);
        let answer = gateway.upgrade();
        assert_eq!(answer["ok"], true, "{answer}");
        // By connections of their own: the one that drains may have taken one of before, and closes it.
        for _ in 0..20 {
            refuse(&gateway, 1);
        }
        gateway.wait_alone();
        total += 40;
        assert!(eventually(|| received(&server).len() == total), "{} of {total}", received(&server).len());
    }
    let all: HashSet<_> = logged(gateway.directory.path()).into_iter().collect();
    assert_eq!(received(&server).into_iter().collect::<HashSet<_>>(), all);
    let sent: usize = server.seen.lock().unwrap().iter().map(|message| lines(&message.body).len()).sum();
    assert_eq!(sent, total, "nothing twice");
}

#[test]
fn a_sink_that_is_far_behind_costs_little_memory() {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let server = Backend::start(move |_, stream| {
        if up.load(Ordering::SeqCst) { write_ok(stream, b"") } else { answer(stream, "503 Service Unavailable") }
    });
    let gateway = start(&sinking(&server, ""));
    refuse(&gateway, 1);
    gateway.wait_metric(BEHIND, &[], 1.0);
    let before = gateway.resident();
    // Of another gateway.
    let line = logged(gateway.directory.path()).remove(0) + "\n";
    let count = (64 << 20) / line.len();
    fs::write(gateway.directory.path().join("dead-letters/old-0000000001.jsonl"), line.repeat(count)).unwrap();
    let has = |what: &str, labels: &[&str], lines: usize| (gateway.metric(what, labels) - lines as f64).abs() < 0.5;
    assert!(eventually(|| has(BEHIND, &[], count + 1)), "{}", gateway.metric(BEHIND, &[]));
    is_up.store(true, Ordering::SeqCst);
    let mut most = 0;
    let is_there = || {
        most = most.max(gateway.resident());
        has(LINES, &["fate=\"delivered\""], count + 1)
    };
    assert!(eventually_in(Duration::from_secs(120), is_there), "{}", gateway.log());
    assert!(most < before + (16 << 20), "{before} became {most}");
}
