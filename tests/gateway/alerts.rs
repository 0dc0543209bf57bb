use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::support::wire::Message;
use crate::support::{Backend, Client, Gateway, eventually, write_ok};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Refusals of one key from the second request on, and alerts.
fn alerting(alerts: &str) -> String {
    format!(
        "[[limit]]\nname = \"per-key\"\nkey = \"header:x-api-key\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"api\"\nrespond = {{}}\nlimits = [\"per-key\"]\n\
         [dead_letter]\nmax_key_rate = 1000\nalerts = [{alerts}]\n"
    )
}

/// A gateway whose directory has the key of the signature.
fn start(alerts: &str) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("hook.key"), format!("{KEY}\n")).unwrap();
    Gateway::start_in(directory, &format!("{}{}", crate::support::FRAME, alerting(alerts)))
}

fn refuse(gateway: &Gateway, times: usize) {
    let mut client = Client::connect(gateway.address());
    for _ in 0..times {
        assert_eq!(client.request("GET", "/", &[("X-Api-Key", "k")], b"").status, 429);
    }
}

fn answer(stream: &mut TcpStream, head: &str) -> bool {
    stream.write_all(format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").as_bytes()).is_ok()
}

fn field(message: &Message, name: &str) -> String {
    let found = message.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.clone()).unwrap_or_default()
}

fn is_signed(message: &Message) -> bool {
    let key: Vec<u8> = (0..32).collect();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.", field(message, "x-sluicegate-timestamp")).as_bytes());
    mac.update(&message.body);
    let digits: Vec<String> = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    field(message, "x-sluicegate-signature") == format!("sha256={}", digits.concat())
}

fn body(message: &Message) -> serde_json::Value {
    serde_json::from_slice(&message.body).unwrap()
}

/// The states that a webhook was told of, by its deliveries: a repeat is none of its own.
fn told(hook: &Backend) -> Vec<String> {
    let seen = hook.seen.lock().unwrap();
    let mut deliveries: Vec<String> = seen.iter().map(|message| field(message, "x-sluicegate-delivery")).collect();
    let states: Vec<String> = seen.iter().map(|message| body(message)["state"].as_str().unwrap().to_owned()).collect();
    let mut told: Vec<String> = Vec::new();
    let mut known = Vec::new();
    for (delivery, state) in deliveries.drain(..).zip(states) {
        if !known.contains(&delivery) {
            known.push(delivery);
            told.push(state);
        }
    }
    told
}

#[test]
fn a_webhook_is_told_once_that_records_wait_and_once_that_they_do_not() {
    let asked = AtomicUsize::new(0);
    let hook = Backend::start(move |_, stream| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => answer(stream, "503 Service Unavailable"),
        _ => write_ok(stream, b""),
    });
    let url = format!("http://{}/services/T0PSECRET", hook.address);
    let gateway = start(&format!("{{ length = 5, webhook = \"{url}\", secret_file = \"hook.key\" }}"));
    Client::connect(gateway.address()).request("GET", "/", &[("X-Api-Key", "k")], b"");
    refuse(&gateway, 4);
    gateway.wait_metric("sluicegate_dead_letters_length", &[], 4.0);
    assert_eq!(hook.requests(), 0);
    refuse(&gateway, 3);
    assert!(eventually(|| hook.requests() == 2), "{}", gateway.log());
    let seen = hook.seen.lock().unwrap().clone();
    for message in &seen {
        assert_eq!(message.line, "POST /services/T0PSECRET HTTP/1.1");
        assert_eq!(field(message, "content-type"), "application/json");
        assert_eq!(field(message, "user-agent"), format!("sluicegate/{}", env!("CARGO_PKG_VERSION")));
        assert!(is_signed(message), "{message:?}");
        let body = body(message);
        assert_eq!((&body["v"], &body["alert"], &body["state"]), (&1.into(), &"length".into(), &"firing".into()));
        assert!(body["value"].as_u64().unwrap() >= 5 && body["threshold"] == 5, "{body}");
        assert!(body["directory"].as_str().unwrap().ends_with("/dead-letters") && body["oldest"].is_string(), "{body}");
    }
    let delivery = |at: usize| field(&seen[at], "x-sluicegate-delivery");
    assert_eq!(delivery(0), delivery(1), "a try of the same message");
    // More of them change nothing.
    refuse(&gateway, 5);
    gateway.wait_metric("sluicegate_dead_letters_length", &[], 12.0);
    for entry in fs::read_dir(gateway.directory.path().join("dead-letters")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|own| own == "jsonl") {
            fs::remove_file(path).unwrap();
        }
    }
    assert!(eventually(|| hook.requests() == 3), "{}", gateway.log());
    assert_eq!(told(&hook), ["firing", "resolved"]);
    let alerts = |state| gateway.metric("sluicegate_dead_letter_alerts_total", &["alert=\"length\"", state]);
    assert!((alerts("state=\"firing\"") - 1.0).abs() < 0.1 && (alerts("state=\"resolved\"") - 1.0).abs() < 0.1);
    for line in ["a dead-letter alert fires", "a dead-letter alert is over"] {
        assert!(eventually(|| gateway.log().contains(line)), "{}", gateway.log());
    }
    assert!(!gateway.log().contains("T0PSECRET"), "{}", gateway.log());
}

#[test]
fn records_that_a_journal_calls_sent_wait_no_more() {
    let gateway = start("{ length = 1000 }");
    Client::connect(gateway.address()).request("GET", "/", &[("X-Api-Key", "k")], b"");
    refuse(&gateway, 3);
    gateway.wait_metric("sluicegate_dead_letters_length", &[], 3.0);
    let journals = gateway.directory.path().join("dead-letters/replays");
    fs::create_dir(&journals).unwrap();
    let letters = gateway.dead_letters();
    let line = |at: usize, state: &str| format!("{{\"id\":{},\"state\":\"{state}\"}}\n", letters[at]["id"]);
    fs::write(journals.join("one.jsonl"), line(0, "sent") + &line(1, "parked")).unwrap();
    gateway.wait_metric("sluicegate_dead_letters_length", &[], 2.0);
}

#[test]
fn a_webhook_that_refuses_is_given_up_at_once_and_named_without_its_path() {
    let hook = Backend::start(|_, stream| answer(stream, "302 Found\r\nLocation: /elsewhere"));
    let url = format!("http://{}/T0PSECRET?token=T0PSECRET", hook.address);
    let gateway = start(&format!("{{ growth = \"1/1h\", webhook = \"{url}\" }}"));
    Client::connect(gateway.address()).request("GET", "/", &[("X-Api-Key", "k")], b"");
    refuse(&gateway, 1);
    gateway.wait_metric("sluicegate_dead_letter_webhook_failures_total", &[], 1.0);
    assert_eq!(hook.requests(), 1, "a redirect is not followed");
    assert_eq!(field(&hook.seen.lock().unwrap()[0], "x-sluicegate-signature"), "");
    // The log is written by a thread of its own.
    assert!(eventually(|| gateway.log().contains(&format!("http://{}", hook.address))), "{}", gateway.log());
    assert!(!gateway.log().contains("T0PSECRET"), "{}", gateway.log());
}

#[test]
fn a_reload_adds_alerts_and_takes_them_away() {
    let hook = Backend::fixed("");
    let url = format!("http://{}/T0PSECRET", hook.address);
    let mut gateway = start("");
    Client::connect(gateway.address()).request("GET", "/", &[("X-Api-Key", "k")], b"");
    refuse(&gateway, 2);
    assert!(eventually(|| gateway.dead_letters().len() == 2));
    let reload = |alerts: &str| {
        let answer = gateway.reload(&alerting(alerts));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains("T0PSECRET"), "{}", answer.text());
        answer.text()
    };
    let plan = reload(&format!("{{ length = 2, webhook = \"{url}\" }}"));
    assert!(plan.contains(&format!("alerts +[length 2, to http://{}]", hook.address)), "{plan}");
    assert!(eventually(|| hook.requests() == 1), "{}", gateway.log());
    // With a mark that is not reached it is over.
    reload(&format!("{{ length = 9, webhook = \"{url}\" }}"));
    assert!(eventually(|| hook.requests() == 2), "{}", gateway.log());
    assert_eq!(told(&hook), ["firing", "resolved"]);
    let plan = reload(&format!("{{ length = 9, webhook = \"{url}/2\" }}"));
    assert!(plan.contains("alerts has other contents"), "{plan}");
    reload("");
    gateway.wait_metric("sluicegate_dead_letter_alerts_total", &[], 0.0);
    assert!(!gateway.log().contains("T0PSECRET"), "{}", gateway.log());
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
}
