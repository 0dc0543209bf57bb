//! `dead-letters replay` without a reason or a limit: failures come back, refusals do not.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{Backend, Client, Gateway, eventually, run, unused_address};

/// A gateway whose only server is away, with three failures of each of two users, and two refusals of each.
fn front(server: SocketAddr) -> Gateway {
    let gateway = Gateway::start_whole(&format!(
        "[[listener]]\naddress = \"{}\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[upstream]]\nname = \"app\"\nservers = [\"{server}\"]\neject = \"off\"\n\
         [[limit]]\nname = \"per-user\"\nkey = \"header:x-user\"\nrate = \"3/h\"\n\
         [[route]]\nname = \"api\"\nupstream = \"app\"\nlimits = [\"per-user\"]\n\
         [dead_letter]\nmax_key_rate = 100000\n",
        unused_address(),
    ));
    let mut client = Client::connect(gateway.address());
    for number in 0..5 {
        for user in ["ada", "bob"] {
            let status = client.request("GET", &format!("/{number}"), &[("x-user", user)], b"").status;
            assert_eq!(status, if number < 3 { 502 } else { 429 });
        }
    }
    assert!(eventually(|| gateway.dead_letters().len() == 10));
    gateway
}

fn replay(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let (status, out, errors) = run(&[&["dead-letters", "replay"], arguments].concat(), directory);
    (status.success(), out + &errors)
}

/// The numbers of the requests that a server was sent, sorted.
fn numbers(backend: &Backend) -> Vec<String> {
    let mut numbers: Vec<_> = backend.seen.lock().unwrap().iter().map(|seen| seen.target().to_owned()).collect();
    numbers.sort();
    numbers
}

const FAILURES: [&str; 6] = ["/0", "/0", "/1", "/1", "/2", "/2"];

#[test]
fn a_replay_without_a_reason_sends_failures_alone_and_says_how_to_send_the_rest() {
    let gateway = front(unused_address());
    let backend = Backend::fixed("ok");
    let url = format!("http://{}", backend.address);
    let directory = gateway.directory.path();
    let rest = "4  were refused (rate-limited): only failures are sent, --reason rate-limited sends these";
    let (is_ok, plan) = replay(directory, &["--since", "10m", "--to", &url, "--dry-run"]);
    assert!(is_ok && plan.contains("6  to send") && plan.contains(rest), "{plan}");
    let (is_ok, said) = replay(directory, &["--since", "10m", "--to", &url, "--rate", "1000/s"]);
    assert!(is_ok && said.contains("6 sent, 0 parked") && said.contains(rest), "{said}");
    assert_eq!(numbers(&backend), FAILURES);
    // Again, too.
    let (is_ok, said) = replay(directory, &["--to", &url, "--again", "--rate", "1000/s"]);
    assert!(is_ok && said.contains("6 sent, 0 parked"), "{said}");
    for (arguments, sent) in [(["--reason", "rate-limited"], "4 sent"), (["--limit", "per-user"], "0 sent")] {
        let (_, said) = replay(directory, &[&arguments[..], &["--to", &url, "--rate", "1000/s"]].concat());
        assert!(said.contains(sent) || said.contains("4  were sent by a replay before"), "{said}");
    }
    assert_eq!(numbers(&backend).len(), 6 + 6 + 4);
}

#[test]
fn one_that_was_stopped_goes_on_with_failures_alone() {
    let gateway = front(unused_address());
    let backend = Backend::fixed("ok");
    let url = format!("http://{}", backend.address);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(["dead-letters", "replay", "--to", &url, "--rate", "1/h"]).current_dir(gateway.directory.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert!(eventually(|| !numbers(&backend).is_empty()));
    let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    child.wait().unwrap();
    let (is_ok, said) = replay(gateway.directory.path(), &["--resume", "--rate", "1000/s"]);
    assert!(is_ok, "{said}");
    assert_eq!(numbers(&backend), FAILURES);
}

#[test]
fn a_replay_of_the_api_is_the_same() {
    let backend = Backend::fixed("ok");
    // Its server is away at first, and comes back.
    let away = unused_address();
    let gateway = front(away);
    let order = |body: serde_json::Value| gateway.tell_admin("POST", "/api/v1/dead-letters/replay", &body.to_string());
    let plan = order(json!({ "dry_run": true })).json();
    assert_eq!((&plan["plan"]["to_send"], &plan["plan"]["refused"]), (&6.into(), &json!({ "rate-limited": 4 })));
    let plan = order(json!({ "dry_run": true, "reason": "rate-limited" })).json();
    assert_eq!((&plan["plan"]["to_send"], &plan["plan"]["refused"]), (&4.into(), &json!({})));
    let text = std::fs::read_to_string(gateway.file()).unwrap();
    std::fs::write(gateway.file(), text.replace(&away.to_string(), &backend.address.to_string())).unwrap();
    gateway.ask_reload();
    let begun = order(json!({ "to": "app", "rate": "1000/s" }));
    assert_eq!(begun.status, 202, "{}", begun.text());
    let ended = || gateway.ask_admin("/api/v1/dead-letters/replays").json()["replays"][0]["ended"] == true;
    assert!(eventually(ended));
    assert_eq!(numbers(&backend), FAILURES);
}
