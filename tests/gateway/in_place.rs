//! Another process takes over from the gateway that runs: sockets, admin, counts, and what becomes of connections.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::h2::peer;
use crate::support::{Client, FRAME, Gateway, eventually, get, get_with};
use crate::websocket;
use crate::wire::Wire;

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

fn rules(server: &str, more: &str) -> String {
    format!(
        "{FRAME}[server]\nworkers = 2\nshutdown_grace = \"2s\"\n{server}\n[dead_letter]\n\
         [[limit]]\nname = \"per-key\"\nkey = \"header:x-key\"\nrate = \"5/h\"\n{more}\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"per-key\"]\n"
    )
}

fn left(gateway: &Gateway, key: &str) -> usize {
    (0..9).take_while(|_| get_with(gateway.address(), "/", &[("x-key", key)]).status == 200).count()
}

fn use_one(gateway: &Gateway, key: &str) {
    assert_eq!(get_with(gateway.address(), "/", &[("x-key", key)]).status, 200);
}

#[test]
fn sockets_admin_counts_and_what_the_old_one_still_admits_go_on_in_the_new_one() {
    let mut gateway = Gateway::start_whole(&rules("", ""));
    use_one(&gateway, "a");
    use_one(&gateway, "b");
    // A request that has begun, and is admitted by the old process when the new one counts already.
    let mut late = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: x\r\nx-key: a\r\n");
    gateway.wait_metric("sluicegate_client_connections", &[], 1.0);
    let old = gateway.serving();
    let answer = gateway.upgrade();
    assert_eq!(answer["ok"], true, "{answer}");
    assert!(eventually(|| gateway.log().contains("\"message\":\"draining")));
    use_one(&gateway, "a");
    late.send("\r\n");
    let answer = late.response("GET").unwrap();
    assert_eq!((answer.status(), answer.header("connection")), (200, Some("close")));
    gateway.wait_alone();
    assert_ne!(gateway.serving(), old);
    assert!(gateway.wait_exit().success());
    assert_eq!((left(&gateway, "a"), left(&gateway, "b"), left(&gateway, "c")), (2, 4, 5));
    assert_eq!(gateway.ask_admin("/readyz").status, 200);
    // Each process writes dead letters of its own.
    assert!(eventually(|| gateway.dead_letters().len() == 3), "{:?}", gateway.dead_letters());
    gateway.signal("TERM");
    gateway.succeeds(old);
    gateway.wait_alone();
}

#[test]
fn a_new_process_that_does_not_get_ready_leaves_the_old_one_as_it_was() {
    let mut gateway = Gateway::start_copy(&rules("", ""));
    use_one(&gateway, "a");
    let (file, binary) = (gateway.file(), gateway.directory.path().join("binary"));
    let right = fs::read_to_string(&file).unwrap();
    fs::write(&file, right.replace("[[limit]]", "[[lmit]]")).unwrap();
    let error = gateway.upgrade()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("lmit") && error.contains("gateway.toml:"), "{error}");
    fs::write(&file, &right).unwrap();
    for (script, told) in [
        ("#!/bin/sh\nexit 3\n", "it ended before it was ready (exit status: 3)"),
        ("#!/bin/sh\necho nonsense >&0\nexec sleep 60\n", "it says what this one does not understand"),
        // The old one has let it serve, and goes on itself.
        ("#!/bin/sh\necho ready >&0\nsleep 0.1\nexit 4\n", "it ended before it was ready (exit status: 4)"),
        ("", "cannot be started"),
    ] {
        let next = gateway.directory.path().join("next");
        fs::write(&next, script).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(if script.is_empty() { 0o600 } else { 0o755 })).unwrap();
        fs::rename(&next, &binary).unwrap();
        let answer = gateway.upgrade();
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(told)), "{answer}");
        assert!(eventually(|| gateway.log().contains(told)));
        use_one(&gateway, told);
    }
    // The right one again: nothing was lost by those that failed.
    fs::remove_file(&binary).unwrap();
    assert!(Command::new("cp").arg(BINARY).arg(&binary).status().unwrap().success());
    assert_eq!(gateway.upgrade()["ok"], true);
    assert_eq!(left(&gateway, "a"), 4);
    assert_eq!(gateway.ask_reload().status, 200);
}

#[test]
fn the_command_finds_it_by_its_pid_file_or_admin_and_says_how_it_went() {
    let upgrade = |gateway: &Gateway| {
        let output = Command::new(BINARY).args(["upgrade", "-c"]).arg(gateway.file()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    };
    let configuration = rules("pid_file = \"pid\"\nstate_file = \"counts\"\nstate_interval = \"1s\"", "");
    let mut gateway = Gateway::start_whole(&configuration);
    let file = gateway.directory.path().join("pid");
    let pid = || fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok();
    assert_eq!(pid(), Some(gateway.serving()));
    use_one(&gateway, "a");
    let (is_done, text) = upgrade(&gateway);
    let new = pid().unwrap();
    assert!(is_done && text.contains(&format!("process {new} has taken over")), "{text}");
    gateway.succeeds(new);
    gateway.wait_alone();
    assert_eq!(pid(), Some(new), "the one that ended has not removed it");
    use_one(&gateway, "a");
    // Without admin, by its signal. The one that runs has read the file again, and has none any more.
    fs::write(gateway.file(), configuration.replace("[admin]\naddress = \"127.0.0.1:0\"\n", "")).unwrap();
    gateway.signal("HUP");
    assert!(eventually(|| std::net::TcpStream::connect(gateway.admin).is_err()));
    let (is_done, text) = upgrade(&gateway);
    let newest = pid().unwrap();
    assert!(is_done && text.contains(&format!("process {newest} has taken over from {new}")), "{text}");
    gateway.succeeds(newest);
    use_one(&gateway, "a");
    // The newest alone keeps the counts, and the file goes with it.
    gateway.wait_alone();
    gateway.signal("TERM");
    assert!(eventually(|| pid().is_none()));
    let (is_done, text) = upgrade(&gateway);
    assert!(!is_done && text.contains("no gateway runs"), "{text}");
    let directory = std::mem::replace(&mut gateway.directory, tempfile::tempdir().unwrap());
    drop(gateway);
    let gateway = Gateway::start_in(directory, &configuration);
    assert_eq!(left(&gateway, "a"), 2);
    // A file that is wrong is not tried.
    fs::write(gateway.file(), "[server]\nwrkers = 1\n").unwrap();
    let (is_done, text) = upgrade(&gateway);
    assert!(!is_done && text.contains("wrkers"), "{text}");
}

/// Between two requests of a client.
const PACE: Duration = Duration::from_millis(2);

/// Clients of a kind, until they are told to stop: how many answers they had.
struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(count: usize, client: impl Fn(&AtomicBool, &AtomicUsize) + Clone + Send + 'static) -> Self {
        let (stop, answers) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let start = |_| {
            let (stop, answers, client) = (Arc::clone(&stop), Arc::clone(&answers), client.clone());
            thread::spawn(move || client(&stop, &answers))
        };
        let threads = (0..count).map(start).collect();
        Self { stop, answers, threads }
    }

    /// Waits for more answers.
    fn goes_on(&self) {
        let before = self.answers.load(Ordering::SeqCst);
        assert!(eventually(|| self.answers.load(Ordering::SeqCst) > before + 20));
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("no request fails");
        }
        self.answers.load(Ordering::SeqCst)
    }
}

/// Goes on with a connection until it is told that it closes.
fn keep_alive(address: std::net::SocketAddr, path: &str, key: &str, stop: &AtomicBool, answers: &AtomicUsize) {
    while !stop.load(Ordering::SeqCst) {
        let mut client = Client::connect(address);
        loop {
            client.send("GET", path, &[("x-key", key)], b"");
            let answer = client.read_answer(false).expect("a request that was sent gets its answer");
            assert_eq!(answer.status, 200);
            answers.fetch_add(1, Ordering::SeqCst);
            thread::sleep(PACE);
            if answer.header("connection") == Some("close") || stop.load(Ordering::SeqCst) {
                break;
            }
        }
    }
}

/// Goes on with a connection until it is told to go away, over which what was not begun may be asked again.
async fn go_on_after_goaway(address: std::net::SocketAddr, stop: &AtomicBool, answers: &AtomicUsize) {
    while !stop.load(Ordering::SeqCst) {
        let sender = peer::connect(address).await;
        while !stop.load(Ordering::SeqCst) {
            let Ok(mut ready) = sender.clone().ready().await else { break };
            let Ok((response, _)) = ready.send_request(peer::request("GET", "/fast", &[]), true) else { break };
            match peer::whole(response).await {
                Ok(answer) => assert_eq!(answer.status, 200),
                Err(error) if error.is_go_away() && error.is_remote() => break,
                Err(error) => panic!("{error}"),
            }
            answers.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(PACE).await;
        }
    }
}

/// Speaks until it is told that the other end goes away; counts what was said and came back.
async fn speak(address: std::net::SocketAddr, said_so_far: &AtomicUsize) {
    let (mut socket, _) = connect_async(format!("ws://{address}/chat")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("welcome"));
    for said in 0.. {
        let text = Message::text(format!("{said} {}", "x".repeat(said % 300)));
        socket.send(text.clone()).await.unwrap();
        match socket.next().await.unwrap().unwrap() {
            Message::Close(Some(frame)) => {
                assert_eq!(frame.code, CloseCode::Away);
                return;
            }
            echo => assert_eq!(echo, text),
        }
        said_so_far.store(said + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    unreachable!("it speaks until it is told");
}

/// Three times; in a long run ten times.
#[test]
fn upgrades_in_a_row_lose_no_request_no_count_and_end_websockets_by_1001() {
    const MOST: usize = 2_000;
    let upgrades = if std::env::var_os("SLUICEGATE_LONG").is_some() { 10 } else { 3 };
    let server = websocket::start_server();
    let limit = format!("[[limit]]\nname = \"much\"\nkey = \"header:x-key\"\nrate = \"{MOST}/h\"\n");
    // Nice, and so are its clients: the other tests shall not wait for what this one makes of load.
    let mut nice = Command::new("nice");
    nice.args(["-n", "19", BINARY]).stdin(Stdio::null());
    let configuration = format!(
        "{FRAME}[server]\nworkers = 2\nshutdown_grace = \"2s\"\n{limit}\
         [[upstream]]\nname = \"chat\"\nservers = [\"{server}\"]\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"chat\"\npath = \"/chat\"\nupstream = \"chat\"\n\
         [[route]]\nname = \"counted\"\npath = \"/counted\"\nupstream = \"app\"\nlimits = [\"much\"]\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n"
    );
    let mut gateway = Gateway::start_by(nice, &configuration);
    let address = gateway.address();
    let kept = Load::start(4, move |stop, answers| keep_alive(address, "/fast", "x", stop, answers));
    let new = Load::start(2, move |stop, answers| {
        while !stop.load(Ordering::SeqCst) {
            assert_eq!(get(address, "/fast").status, 200);
            answers.fetch_add(1, Ordering::SeqCst);
            thread::sleep(PACE);
        }
    });
    let multiplexed = Load::start(2, move |stop, answers| {
        websocket::runtime().block_on(go_on_after_goaway(address, stop, answers));
    });
    let counted = Load::start(2, move |stop, answers| {
        while !stop.load(Ordering::SeqCst) && answers.load(Ordering::SeqCst) < MOST - 100 {
            let mut client = Client::connect(address);
            for _ in 0..3 {
                client.send("GET", "/counted", &[("x-key", "a")], b"");
                let answer = client.read_answer(false).expect("a request that was sent gets its answer");
                assert_eq!(answer.status, 200);
                answers.fetch_add(1, Ordering::SeqCst);
                if answer.header("connection") == Some("close") {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let wrk = Command::new("nice")
        .args(["-n", "19", "wrk", "-t", "1", "-c", "8", "-d"])
        .args([&format!("{}s", upgrades * 3), &format!("http://{address}/fast")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..upgrades {
        let talks: Vec<_> = (0..4)
            .map(|_| {
                let said = Arc::new(AtomicUsize::new(0));
                let own = Arc::clone(&said);
                (said, thread::spawn(move || websocket::runtime().block_on(speak(address, &own))))
            })
            .collect();
        gateway.wait_metric("sluicegate_tunnels_open", &[], 4.0);
        let answer = gateway.upgrade();
        assert_eq!(answer["ok"], true, "{answer}");
        let before: Vec<_> = talks.iter().map(|(said, _)| said.load(Ordering::SeqCst)).collect();
        for load in [&kept, &new, &multiplexed] {
            load.goes_on();
        }
        for ((said, talk), before) in talks.into_iter().zip(before) {
            talk.join().expect("it ends by 1001");
            let said = said.load(Ordering::SeqCst);
            assert!(said > before, "it went on while the old process drained: {said} of {before} before");
        }
        gateway.wait_alone();
    }
    let wrk = wrk.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&wrk.stdout).into_owned();
    eprintln!("{said}{} {} {} answers", kept.end(), new.end(), multiplexed.end());
    assert!(wrk.status.success() && said.contains("Requests/sec"), "{said}");
    assert!(!said.contains("Non-2xx") && !said.contains("Socket errors"), "{said}");
    let admitted = counted.end();
    let mut rest = 0;
    while get_with(address, "/counted", &[("x-key", "a")]).status == 200 {
        rest += 1;
    }
    assert_eq!(admitted + rest, MOST, "each request was counted once, by whichever process");
    assert_eq!(gateway.log().matches("\"message\":\"drained\"").count(), upgrades);
}

/// The binary that is started next waits for a file before it begins.
fn slow_binary(gateway: &Gateway) -> std::path::PathBuf {
    let [next, go, binary] = ["next", "go", "binary"].map(|name| gateway.directory.path().join(name));
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    fs::write(&next, format!("#!/bin/sh\n{wait}\nexec {BINARY} \"$@\"\n")).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&next, binary).unwrap();
    go
}

#[test]
fn a_gateway_that_is_told_to_end_while_it_is_upgraded_ends_and_leaves_nobody_behind() {
    let rules = rules("pid_file = \"pid\"\nstate_file = \"counts\"", "");
    let mut gateway = Gateway::start_copy(&rules);
    use_one(&gateway, "a");
    let go = slow_binary(&gateway);
    gateway.signal("USR2");
    assert!(eventually(|| gateway.log().contains("\"message\":\"upgrading\"")));
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    fs::write(go, "").unwrap();
    // Nobody lets it serve.
    assert!(eventually(|| gateway.log().contains("does not hand over") || gateway.log().contains("it was killed")));
    assert!(eventually(|| std::net::TcpStream::connect(gateway.address()).is_err()));
    assert!(!gateway.directory.path().join("pid").exists());
    let gateway = Gateway::start_in(gateway.kill(), &rules);
    assert_eq!(left(&gateway, "a"), 4, "the state file is that of the one that ended");
}

#[test]
fn a_file_that_is_changed_and_an_upgrade_at_once_keep_the_counts() {
    let unwatched = rules("watch = false", "");
    let mut gateway = Gateway::start_whole(&unwatched);
    use_one(&gateway, "a");
    fs::write(gateway.file(), unwatched.replace("rate = \"5/h\"", "rate = \"7/h\"")).unwrap();
    assert_eq!(gateway.upgrade()["ok"], true);
    assert_eq!(left(&gateway, "a"), 6);
}

#[test]
fn a_reload_that_waits_for_an_upgrade_is_the_new_processs_affair() {
    let mut gateway = Gateway::start_copy(&rules("watch = false", ""));
    let go = slow_binary(&gateway);
    // It keeps the old process.
    let mut late = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: x\r\nx-key: a\r\n");
    gateway.wait_metric("sluicegate_client_connections", &[], 1.0);
    let pid = gateway.pid();
    let upgrading = std::thread::scope(|scope| {
        let asked = {
            let admin = gateway.admin;
            scope
                .spawn(move || Client::connect(admin).request("POST", "/upgrade", &[("Host", "localhost")], b"").text())
        };
        assert!(eventually(|| gateway.log().contains("\"message\":\"upgrading\"")));
        gateway.signal("HUP");
        let asks = [("Host", "localhost")];
        let reload = scope.spawn({
            let admin = gateway.admin;
            move || Client::connect(admin).request("POST", "/reload", &asks, b"")
        });
        assert_eq!(gateway.ask_admin("/readyz").status, 200);
        fs::write(&go, "").unwrap();
        // Commands have their turn one by one: it is told by whichever process has it then.
        drop(reload.join());
        asked.join().unwrap()
    });
    let new: u32 = upgrading.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_ne!(new, pid);
    gateway.succeeds(new);
    assert!(eventually(|| gateway.log().contains("configuration unchanged")), "the new process has the signal");
    assert!(!gateway.log().contains("reload rejected"), "{}", gateway.log());
    late.send("\r\n");
    assert_eq!(late.response("GET").unwrap().status(), 200);
    gateway.wait_alone();
}

#[test]
fn nobody_else_is_signalled_by_a_pid_file_and_two_gateways_do_not_share_one() {
    let configuration = rules("pid_file = \"pid\"", "").replace("[admin]\naddress = \"127.0.0.1:0\"\n", "");
    let gateway = Gateway::start_whole(&configuration);
    let run = |command: &str| {
        let output = Command::new(BINARY).args([command, "-c"]).arg(gateway.file()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_right, said) = run("run");
    assert!(!is_right && said.contains(&format!("is that of process {}, which runs", gateway.serving())), "{said}");
    let file = gateway.directory.path().join("pid");
    assert!(file.exists() && !file.with_extension("new").exists());
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let (is_right, said) = run("upgrade");
    assert!(!is_right && said.contains("is no file"), "{said}");
}
