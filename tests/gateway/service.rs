//! A service manager that speaks as systemd does: a socket that is told, and sockets that are passed.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{Client, Gateway, PATIENCE, eventually, get};

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");
const RULES: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
                     [[route]]\nname = \"all\"\nrespond = { status = 200 }\n";

struct Manager {
    _directory: TempDir,
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl Manager {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { _directory: directory, socket, path }
    }

    fn told(&self) -> String {
        let mut room = [0; 4096];
        let size = self.socket.recv(&mut room).expect("it is told something");
        String::from_utf8_lossy(&room[..size]).into_owned()
    }
}

#[test]
fn the_manager_is_told_of_the_start_reloads_an_upgrade_and_the_end() {
    let manager = Manager::start();
    let mut command = Command::new(BINARY);
    command.env("NOTIFY_SOCKET", &manager.path).stdin(Stdio::null());
    let mut gateway = Gateway::start_by(command, RULES);
    assert_eq!(manager.told(), "READY=1\n");
    gateway.signal("HUP");
    let reloading = manager.told();
    let since: u64 = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().trim_end().parse().unwrap();
    assert!(since > 0);
    assert_eq!(manager.told(), "READY=1\nSTATUS=\n");
    std::fs::write(gateway.file(), "[").unwrap();
    gateway.signal("HUP");
    assert!(manager.told().starts_with("RELOADING=1\n"));
    assert!(manager.told().starts_with("READY=1\nSTATUS=The last reload was rejected"));
    std::fs::write(gateway.file(), RULES).unwrap();
    // The manager reads who is the service now before the old process ends; the descriptor with the barrier is dropped here.
    let (is_now, answer) = std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            let is_now = manager.told();
            assert_eq!(manager.told(), "BARRIER=1\n");
            is_now
        });
        let answer = gateway.upgrade();
        (told.join().unwrap(), answer)
    });
    assert_eq!(is_now, format!("MAINPID={}\n", answer["pid"]));
    gateway.wait_alone();
    gateway.signal("HUP");
    assert!(manager.told().starts_with("RELOADING=1\n"), "the new process goes on telling");
    assert_eq!(manager.told(), "READY=1\nSTATUS=\n");
    gateway.signal("TERM");
    assert_eq!(manager.told(), "STOPPING=1\n");
}

#[test]
fn sockets_that_are_passed_are_listened_on_by_their_address() {
    let passed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = passed.local_addr().unwrap();
    // Waits in the kernel's queue since before the gateway runs.
    let early = std::thread::spawn(move || get(address, "/").status);
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"", BINARY]);
    command.stdin(Stdio::from(OwnedFd::from(passed)));
    let rules = format!("[server]\nworkers = 3\n[[listener]]\naddress = \"{address}\"\n{RULES}");
    let mut gateway = Gateway::start_by(command, &rules);
    assert_eq!(early.join().unwrap(), 200);
    assert_eq!((gateway.addresses[0], gateway.addresses.len()), (address, 2));
    for address in gateway.addresses.clone() {
        assert!((0..20).all(|_| get(address, "/").status == 200));
    }
    // It goes on to the next process, too.
    assert_eq!(gateway.upgrade()["ok"], true);
    gateway.wait_alone();
    assert_eq!(get(address, "/").status, 200);
}

#[test]
fn a_socket_that_no_listener_has_is_told_and_what_is_none_ends_the_start() {
    let passed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = passed.local_addr().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"", BINARY]);
    command.stdin(Stdio::from(OwnedFd::from(passed)));
    let gateway = Gateway::start_by(command, RULES);
    assert!(eventually(|| gateway.log().contains("the file has no such listener")), "{}", gateway.log());
    assert!(gateway.log().contains(&address.to_string()));
    let output = Command::new("sh")
        .args(["-c", "exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"", BINARY, "run", "-c"])
        .arg(gateway.file())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("socket 0 of LISTEN_FDS cannot be used"), "{said}");
}

#[test]
fn a_process_that_took_over_and_ends_is_told_and_the_manager_gets_to_start_another_one() {
    for is_managed in [true, false] {
        let manager = Manager::start();
        let mut command = Command::new(BINARY);
        command.stdin(Stdio::null());
        if is_managed {
            command.env("NOTIFY_SOCKET", &manager.path);
        }
        let upstream = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n";
        let rules = format!("{upstream}{}", RULES.replace("respond = { status = 200 }", "upstream = \"app\""));
        let mut gateway = Gateway::start_by(command, &rules);
        let mut slow = Client::connect(gateway.address());
        slow.send("GET", if is_managed { "/?delay=29s" } else { "/?delay=1s" }, &[], b"");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
        let told = is_managed.then(|| std::thread::spawn(move || (0..3).map(|_| manager.told()).collect::<Vec<_>>()));
        assert_eq!(gateway.upgrade()["ok"], true);
        gateway.signal("KILL");
        assert!(eventually(|| gateway.log().contains("the process that took over has ended")), "{}", gateway.log());
        if let Some(told) = told {
            assert_eq!(gateway.wait_exit().code(), Some(143));
            told.join().unwrap();
        } else {
            assert_eq!(slow.read_answer(false).unwrap().status, 200);
            assert!(gateway.wait_exit().success());
        }
    }
}
