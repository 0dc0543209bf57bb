//! `dead-letters replay`: records are sent again, each once, in order, as the clients that they were of.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Backend, Client, Gateway, eventually, get_with, run, unused_address};
use crate::tls::peer::Authority;
use crate::wire::Message;

/// The status that a backend answers with.
fn answer(stream: &mut impl Write, status: u16, more: &str) -> bool {
    stream.write_all(format!("HTTP/1.1 {status} X\r\n{more}content-length: 0\r\n\r\n").as_bytes()).is_ok()
}

/// A gateway with a limit of 2 an hour for each `x-api-key`, whose records are all kept.
struct Front {
    gateway: Gateway,
    address: SocketAddr,
}

fn configuration(address: SocketAddr, server: SocketAddr, rate: &str) -> String {
    format!(
        "[[listener]]\naddress = \"{address}\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[upstream]]\nname = \"app\"\nservers = [\"{server}\"]\neject = \"off\"\n\
         [[limit]]\nname = \"per-key\"\nkey = \"header:x-user\"\nrate = \"{rate}\"\n\
         [[route]]\nname = \"api\"\nupstream = \"app\"\nlimits = [\"per-key\"]\ncapture_body = \"64KiB\"\n\
         [dead_letter]\ndirectory = \"dead-letters\"\nmax_key_rate = 100000\nmax_record_rate = 100000\nmax_byte_rate = \"64MiB/s\"\n"
    )
}

impl Front {
    fn start(server: SocketAddr, rate: &str) -> Self {
        let address = unused_address();
        Self { gateway: Gateway::start_whole(&configuration(address, server, rate)), address }
    }

    fn directory(&self) -> &Path {
        self.gateway.directory.path()
    }

    /// Sends so many requests of each user, with a number in each path; the first of a user is served.
    fn refuse(&self, users: &[&str], count: usize) {
        let mut client = Client::connect(self.address);
        for number in 0..=count {
            for user in users {
                let status = client.request("GET", &format!("/{user}/{number}"), &[("x-user", user)], b"").status;
                assert_eq!(status, if number == 0 { 200 } else { 429 });
            }
        }
        assert!(eventually(|| self.gateway.dead_letters().len() == users.len() * count));
    }

    fn replay(&self, arguments: &[&str]) -> (bool, String, String) {
        let (status, out, errors) = run(&[&["dead-letters", "replay"], arguments].concat(), self.directory());
        (status.success(), out, errors)
    }

    /// The same of what the limit has refused.
    fn replay_refused(&self, arguments: &[&str]) -> (bool, String, String) {
        self.replay(&[&["--limit", "per-key"], arguments].concat())
    }

    /// Ids of the journals' records, by state.
    fn fates(&self) -> BTreeMap<String, Vec<String>> {
        let mut fates: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for journal in fs::read_dir(self.directory().join("dead-letters/replays")).unwrap() {
            let text = fs::read_to_string(journal.unwrap().path()).unwrap();
            for line in text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
                if let (Some(id), Some(state)) = (line["id"].as_str(), line["state"].as_str()) {
                    fates.entry(state.to_owned()).or_default().push(id.to_owned());
                }
            }
        }
        fates
    }

    fn ids(&self) -> Vec<String> {
        self.gateway.dead_letters().iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect()
    }
}

/// The requests of a backend that a replay has sent.
fn replayed(backend: &Backend) -> Vec<Message> {
    backend.seen.lock().unwrap().iter().filter(|seen| seen.header("idempotency-key").is_some()).cloned().collect()
}

#[test]
fn records_come_back_in_order_once_and_as_their_clients() {
    let backend = Backend::fixed("ok");
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a", "b"], 5);
    // Without limits they would all go at once; here those of before have to be over.
    fs::write(front.gateway.file(), configuration(front.address, backend.address, "100/1ms")).unwrap();
    front.gateway.ask_reload();
    let (is_ok, plan, _) = front.replay_refused(&["--dry-run"]);
    assert!(is_ok && plan.contains("10 records match") && plan.contains("10  to send to the gateway at"), "{plan}");
    assert!(replayed(&backend).is_empty() && !front.directory().join("dead-letters/replays").exists());
    let (is_ok, summary, errors) = front.replay_refused(&["--rate", "1000/s"]);
    assert!(is_ok && summary.contains("10 sent, 0 parked"), "{summary}{errors}");
    let seen = replayed(&backend);
    let mut keys: Vec<_> = seen.iter().map(|one| one.header("idempotency-key").unwrap().to_owned()).collect();
    for user in ["a", "b"] {
        let of_user = format!("/{user}/");
        let targets: Vec<_> = seen.iter().map(Message::target).filter(|target| target.starts_with(&of_user)).collect();
        assert_eq!(targets, (1..=5).map(|number| format!("/{user}/{number}")).collect::<Vec<_>>());
    }
    let mut ids = front.ids();
    keys.sort();
    ids.sort();
    assert_eq!(keys, ids, "the id of each record is its key");
    assert!(seen.iter().all(|one| one.header("x-sluicegate-replay").is_some_and(|token| token.starts_with("1;"))));
    let (is_ok, again, _) = front.replay_refused(&[]);
    assert!(is_ok && again.contains("10  were sent by a replay before"), "{again}");
    assert_eq!(replayed(&backend).len(), 10);
    let (_, again, _) = front.replay_refused(&["--again", "--rate", "1000/s"]);
    assert!(again.contains("10 sent"), "{again}");
    let (_, list, _) = front.replay(&["ls"]);
    assert_eq!(list.lines().count(), 3, "{list}");
}

#[test]
fn a_replay_is_counted_for_its_client_and_leaves_no_second_record() {
    let backend = Backend::fixed("ok");
    let address = unused_address();
    let configuration = configuration(address, backend.address, "1/1h").replace("header:x-user", "client-ip")
        + "[client]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    let front = Front { gateway: Gateway::start_whole(&configuration), address };
    let from = |client: &str| get_with(address, "/x", &[("x-forwarded-for", client)]).status;
    assert_eq!([from("192.0.2.1"), from("192.0.2.1"), from("192.0.2.9")], [200, 429, 200]);
    assert!(eventually(|| front.gateway.dead_letters().len() == 1));
    // Its client has no room for an hour: the replay is refused for it, and gives up.
    let (is_ok, summary, errors) = front.replay_refused(&["--rate", "1000/s", "--max-tries", "1"]);
    assert!(!is_ok && summary.contains("0 sent, 1 parked"), "{summary}{errors}");
    assert!(summary.contains("status 429"), "{summary}");
    assert_eq!(front.gateway.dead_letters().len(), 1, "it has its record already");
    front.gateway.wait_metric("sluicegate_limit_decisions_total", &["limit=\"per-key\"", "decision=\"refused\""], 2.0);
    // The token of somebody else is cut, and its request is as any other.
    let forged = [(
        "x-sluicegate-replay",
        "1;AAABohIm6GzhB8J9QdU9UWYI6VTRXOtevySR0-EgmrDNi7gFDg8mVTWbiXLVmqjY7MzJAjgEA7-rF0wH7CUNZt0",
    )];
    assert_eq!(get_with(address, "/forged", &[forged[0], ("x-forwarded-for", "192.0.2.2")]).status, 200);
    let seen = backend.seen.lock().unwrap().clone();
    assert!(seen.last().unwrap().header("x-sluicegate-replay").is_none(), "{seen:?}");
    assert_eq!(get_with(address, "/forged", &[forged[0], ("x-forwarded-for", "192.0.2.2")]).status, 429);
    assert!(eventually(|| front.gateway.dead_letters().len() == 2));
}

#[test]
fn methods_that_are_not_safe_to_repeat_wait_until_they_are_asked_for() {
    let backend = Backend::fixed("ok");
    let front = Front::start(backend.address, "1/1h");
    let mut client = Client::connect(front.address);
    for (status, body) in [(200, &b"0"[..]), (429, b"{\"order\":1}"), (429, b"\xff\x00")] {
        assert_eq!(client.request("POST", "/p", &[("x-user", "a"), ("idempotency-key", "mine")], body).status, status);
    }
    assert!(eventually(|| front.gateway.dead_letters().len() == 2));
    let (is_ok, summary, _) = front.replay_refused(&["--to", "app"]);
    assert!(is_ok && summary.contains("2  wait: POST"), "{summary}");
    let (_, list, _) = front.replay(&["ls"]);
    assert_eq!(list.lines().count(), 1, "nothing was to do: {list}");
    let (is_ok, summary, errors) =
        front.replay_refused(&["--to", "app", "--methods", "POST,PATCH", "--rate", "1000/s"]);
    assert!(is_ok && summary.contains("2 sent"), "{summary}{errors}");
    let seen = replayed(&backend);
    let sent: Vec<_> =
        seen[1..].iter().map(|one| (one.body.as_slice(), one.header("idempotency-key").unwrap())).collect();
    assert_eq!(sent, [(&b"{\"order\":1}"[..], "mine"), (b"\xff\x00", "mine")]);
    assert_eq!(seen[2].header("x-forwarded-for"), Some("127.0.0.1"));
    assert!(seen[2].header("x-sluicegate-replay").is_none(), "it does not come through the gateway");
}

#[test]
fn what_fails_for_good_is_parked_and_taken_up_by_the_next_replay() {
    let is_ill = Arc::new(AtomicBool::new(true));
    let ill = Arc::clone(&is_ill);
    let backend = Backend::start(move |seen, stream| {
        let status = if seen.header("idempotency-key").is_some() && ill.load(Ordering::SeqCst) { 404 } else { 200 };
        answer(stream, status, "")
    });
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a"], 2);
    let (is_ok, summary, _) = front.replay_refused(&["--to", "app", "--rate", "1000/s"]);
    assert!(!is_ok && summary.contains("0 sent, 2 parked") && summary.contains("2  parked, status 404"), "{summary}");
    let name = summary.split("; replay ").nth(1).unwrap().lines().next().unwrap().to_owned();
    let (_, shown, _) = front.replay(&["show", &name, "--parked"]);
    assert_eq!(shown.matches("parked  1 tries  status 404").count(), 2, "{shown}");
    is_ill.store(false, Ordering::SeqCst);
    let (is_ok, summary, _) = front.replay_refused(&["--to", "app", "--rate", "1000/s"]);
    assert!(is_ok && summary.contains("2 sent, 0 parked"), "{summary}");
}

#[test]
fn answers_that_say_later_are_asked_again_and_no_other_is() {
    let backend = Backend::start(|seen, stream| {
        if seen.header("idempotency-key").is_none() {
            return answer(stream, 200, "");
        }
        match seen.target() {
            "/a/1" => answer(stream, 503, ""),
            "/b/1" => answer(stream, 429, "retry-after: 31536000\r\n"),
            "/c/1" => answer(stream, 302, "location: http://127.0.0.1:1/elsewhere\r\n"),
            "/d/1" => {
                let _ = stream.write_all(b"garbage\r\n\r\n");
                false
            }
            // It hangs.
            "/e/1" => true,
            _ => answer(stream, 200, ""),
        }
    });
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a", "b", "c", "d", "e", "f"], 1);
    let arguments = ["--to", "app", "--rate", "1000/s", "--max-tries", "3", "--timeout", "1s", "--parallel", "6"];
    let (is_ok, summary, errors) = front.replay_refused(&arguments);
    assert!(!is_ok && summary.contains("1 sent, 5 parked"), "{summary}{errors}");
    let tries = |target: &str| replayed(&backend).iter().filter(|seen| seen.target() == target).count();
    assert_eq!(["/a/1", "/b/1", "/c/1", "/d/1", "/e/1", "/f/1"].map(tries), [3, 1, 1, 1, 1, 1]);
    for reason in [
        "status 503 after 3 tries",
        "status 429, which asks for a retry in 365d",
        "status 302",
        "no valid answer",
        "no answer in time",
    ] {
        assert!(summary.contains(reason), "{reason}: {summary}");
    }
    let keys: Vec<_> = replayed(&backend)
        .iter()
        .filter(|seen| seen.target() == "/a/1")
        .map(|seen| seen.header("idempotency-key").unwrap().to_owned())
        .collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[test]
fn a_url_may_speak_https_and_http_2() {
    let authority = Authority::new("ca");
    let made = authority.server(&["localhost"]);
    let backend = Backend::fixed("ok");
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a"], 1);
    let target = tempfile::tempdir().unwrap();
    made.write(target.path(), "cert");
    let far = Gateway::start_in(
        target,
        &format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\n\
             tls = {{ certificates = [{{ cert = \"cert.pem\", key = \"cert-key.pem\" }}] }}\n\
             [admin]\naddress = \"127.0.0.1:0\"\n[log]\naccess = \"json\"\n\
             [[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"r\"\nupstream = \"app\"\n",
            backend.address
        ),
    );
    let roots = front.directory().join("ca.pem");
    fs::write(&roots, &authority.pem).unwrap();
    let url = format!("https://localhost:{}/base", far.address().port());
    let replay = |trusts: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command
            .args(["dead-letters", "replay", "--limit", "per-key", "--to", &url, "--max-tries", "1"])
            .current_dir(front.directory());
        if trusts {
            command.env("SSL_CERT_FILE", &roots);
        }
        String::from_utf8(command.stdin(Stdio::null()).output().unwrap().stdout).unwrap()
    };
    assert!(replay(false).contains("0 sent, 1 parked"), "nobody vouches for it");
    let summary = replay(true);
    assert!(summary.contains("1 sent, 0 parked"), "{summary}");
    let seen = replayed(&backend).pop().unwrap();
    assert_eq!(seen.target(), "/base/a/1");
    assert_eq!(seen.header("host"), Some(&*format!("localhost:{}", far.address().port())));
    assert!(seen.header("x-sluicegate-replay").is_none());
    assert!(eventually(|| far.access_log().last().is_some_and(|entry| entry["protocol"] == "HTTP/2.0")));
}

fn begin(front: &Front, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(["dead-letters", "replay"]).args(arguments).current_dir(front.directory());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_replay_that_is_killed_loses_no_record_and_repeats_under_the_same_key() {
    let backend = Backend::fixed("ok");
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a", "b", "c"], 40);
    let (mut kills, mut is_first) = (0, true);
    loop {
        let before = replayed(&backend).len();
        let arguments: &[&str] =
            if is_first { &["--limit", "per-key", "--to", "app", "--rate", "200/s"] } else { &["--resume"] };
        is_first = false;
        let mut child = begin(&front, arguments);
        if kills == 10 {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            break;
        }
        // At some request of it, whichever that is.
        assert!(eventually(|| replayed(&backend).len() > before + kills % 7));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for seen in replayed(&backend) {
        *times.entry(seen.header("idempotency-key").unwrap().to_owned()).or_default() += 1;
    }
    let mut ids = front.ids();
    ids.sort();
    assert_eq!(times.keys().cloned().collect::<Vec<_>>(), ids, "none is lost, and each has its key");
    let repeats: usize = times.values().map(|count| count - 1).sum();
    assert!(repeats <= 10 * 4, "{repeats} repeats: no more than were under way at the kills");
    let mut sent = front.fates().remove("sent").unwrap();
    sent.sort();
    assert_eq!(sent, ids, "each has one fate");
}

#[test]
fn ctrl_c_stops_a_replay_and_two_do_not_run_at_once() {
    let backend = Backend::fixed("ok");
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a"], 30);
    let child = begin(&front, &["--limit", "per-key", "--to", "app", "--rate", "20/s"]);
    assert!(eventually(|| !replayed(&backend).is_empty()));
    let (is_ok, _, errors) = front.replay_refused(&["--to", "app"]);
    assert!(!is_ok && errors.contains("another replay of this directory is under way"), "{errors}");
    let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && summary.contains("stopped before its end"), "{summary}");
    let (is_ok, summary, errors) = front.replay(&["--resume", "--rate", "1000/s"]);
    assert!(is_ok && summary.contains("0 parked"), "{summary}{errors}");
    assert_eq!(front.fates().remove("sent").unwrap().len(), 30);
    assert_eq!(replayed(&backend).len(), 30, "none twice");
    let (is_ok, _, errors) = front.replay(&["--resume"]);
    assert!(!is_ok && errors.contains("no replay in"), "{errors}");
}

#[test]
fn a_token_that_a_server_has_seen_holds_no_more() {
    let backend = Backend::fixed("ok");
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a"], 1);
    fs::write(front.gateway.file(), configuration(front.address, backend.address, "100/1ms")).unwrap();
    front.gateway.ask_reload();
    assert!(front.replay_refused(&[]).0);
    let seen = replayed(&backend).pop().unwrap();
    let (host, token) = (seen.header("host").unwrap(), seen.header("x-sluicegate-replay").unwrap());
    assert_eq!(get_with(front.address, seen.target(), &[("host", host), ("x-sluicegate-replay", token)]).status, 200);
    let again = backend.seen.lock().unwrap().last().unwrap().clone();
    assert_eq!((again.target(), again.header("x-sluicegate-replay")), (seen.target(), None), "it was used");
}

#[test]
fn a_request_by_a_trusted_proxy_comes_back_as_it_told() {
    let backend = Backend::fixed("ok");
    let address = unused_address();
    let configuration = |rate: &str| {
        configuration(address, backend.address, rate).replace("header:x-user", "client-ip")
            + "[client]\ntrusted_proxies = [\"127.0.0.1\"]\n"
    };
    let front = Front { gateway: Gateway::start_whole(&configuration("1/1h")), address };
    let told = [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.example"),
        ("x-forwarded-user", "alice"),
    ];
    assert_eq!([0, 1].map(|_| get_with(address, "/x", &told).status), [200, 429]);
    assert!(eventually(|| front.gateway.dead_letters().len() == 1));
    fs::write(front.gateway.file(), configuration("100/1ms")).unwrap();
    front.gateway.ask_reload();
    for to in [&[][..], &["--to", "app", "--again"]] {
        let (is_ok, summary, errors) = front.replay_refused(to);
        assert!(is_ok && summary.contains("1 sent"), "{summary}{errors}");
        let seen = replayed(&backend).pop().unwrap();
        let fields = ["x-forwarded-proto", "x-forwarded-host", "x-forwarded-user"]
            .map(|name| seen.header(name).unwrap().to_owned());
        assert_eq!(fields, ["https", "shop.example", "alice"], "{to:?}");
        assert_eq!(seen.all("x-forwarded-for"), ["192.0.2.1"], "{to:?}");
    }
}

#[test]
fn a_client_cannot_name_itself_by_being_refused() {
    let backend = Backend::fixed("ok");
    let front = Front::start(backend.address, "1/1h");
    let forged =
        [("x-user", "a"), ("x-forwarded-for", "6.6.6.6"), ("x-forwarded-user", "admin"), ("x-real-ip", "6.6.6.6")];
    assert_eq!([0, 1].map(|_| get_with(front.address, "/x", &forged).status), [200, 429]);
    assert!(eventually(|| front.gateway.dead_letters().len() == 1));
    assert!(front.replay_refused(&["--to", "app"]).0);
    let seen = replayed(&backend).pop().unwrap();
    assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!((seen.header("x-forwarded-user"), seen.header("x-real-ip")), (None, None));
}

#[test]
fn a_request_whose_body_was_not_kept_or_that_is_a_websocket_is_not_sent() {
    let backend = Backend::fixed("ok");
    let address = unused_address();
    let configuration = configuration(address, backend.address, "1/1h").replace("capture_body = \"64KiB\"\n", "");
    let front = Front { gateway: Gateway::start_whole(&configuration), address };
    assert_eq!(get_with(address, "/", &[("x-user", "a")]).status, 200);
    let mut client = Client::connect(address);
    client
        .stream
        .write_all(
            b"PUT /p HTTP/1.1\r\nhost: a\r\nx-user: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        )
        .unwrap();
    assert_eq!(client.read_answer(false).unwrap().status, 429);
    let handshake = [
        ("x-user", "a"),
        ("upgrade", "websocket"),
        ("connection", "upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    assert_eq!(get_with(address, "/ws", &handshake).status, 429);
    assert!(eventually(|| front.gateway.dead_letters().len() == 2));
    let (is_ok, summary, _) = front.replay_refused(&["--to", "app"]);
    assert!(!is_ok && summary.contains("0 sent, 2 parked"), "{summary}");
    assert!(summary.contains("its body was not kept") && summary.contains("it asks for another protocol"), "{summary}");
    assert!(replayed(&backend).is_empty());
}

#[test]
fn one_key_that_fails_does_not_hold_up_the_others_and_no_record_goes_twice() {
    let is_ill = Arc::new(AtomicBool::new(true));
    let ill = Arc::clone(&is_ill);
    let backend = Backend::start(move |seen, stream| {
        let is_a = seen.header("idempotency-key").is_some() && seen.target().starts_with("/a/");
        answer(stream, if is_a && ill.load(Ordering::SeqCst) { 503 } else { 200 }, "")
    });
    let front = Front::start(backend.address, "1/1h");
    front.refuse(&["a"], 2_000);
    let mut client = Client::connect(front.address);
    assert_eq!(client.request("GET", "/b/0", &[("x-user", "b")], b"").status, 200);
    for _ in 0..3 {
        assert_eq!(client.request("GET", "/b/1", &[("x-user", "b")], b"").status, 429);
    }
    assert!(eventually(|| front.gateway.dead_letters().len() == 2_003));
    // A segment that somebody has copied.
    let log = front.directory().join("dead-letters");
    let segment = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.into_iter().find(|path| path.extension().is_some_and(|end| end == "jsonl")).unwrap();
    fs::copy(&segment, log.join("copy-0000000001.jsonl")).unwrap();
    let child = begin(&front, &["--limit", "per-key", "--to", "app", "--rate", "1000/s", "--parallel", "8"]);
    let others = || replayed(&backend).iter().filter(|seen| seen.target() == "/b/1").count();
    assert!(eventually(|| others() == 3));
    let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(output.contains("2003  lines told of a record once more"), "{output}");
    assert_eq!(others(), 3);
    // One key has more records than have room: the log is read again for them, and their order is kept.
    is_ill.store(false, Ordering::SeqCst);
    let before = replayed(&backend).len();
    let (is_ok, summary, errors) = front.replay(&["--resume", "--rate", "1000000/s"]);
    assert!(is_ok && summary.contains("2000 sent, 0 parked"), "{summary}{errors}");
    let seen = replayed(&backend).split_off(before);
    assert_eq!(
        seen.iter().map(Message::target).collect::<Vec<_>>(),
        (1..=2_000).map(|at| format!("/a/{at}")).collect::<Vec<_>>()
    );
    let (is_ok, _, errors) = front.replay_refused(&["--to", "http://bob:S3cretPw@127.0.0.1:1"]);
    assert!(!is_ok && !errors.contains("S3cretPw"), "{errors}");
}
