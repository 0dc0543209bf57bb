//! Servers that are programs of their own. Each listens at an address that no other test has, and ends with the value that
//! stands for it, or with the process of the tests, however that ends.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::{eventually, unused_address};

/// A running program.
pub struct Program {
    pub address: SocketAddr,
    pub directory: TempDir,
    child: Child,
}

impl Program {
    /// Starts it in a directory of its own, and waits until it listens. `configure` gets the directory and the address, and
    /// adds what the program is told.
    pub fn start(name: &str, configure: impl FnOnce(&mut Command, &Path, SocketAddr)) -> Self {
        Self::start_at(unused_address(), name, configure)
    }

    /// Starts it at an address where another one has ended.
    pub fn start_at(address: SocketAddr, name: &str, configure: impl FnOnce(&mut Command, &Path, SocketAddr)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(directory.path().join(name)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(path(name)).current_dir(directory.path());
        // With a group of its own, so that its workers end with it.
        command.stdin(Stdio::null()).stdout(file("stdout.log")).stderr(file("stderr.log")).process_group(0);
        configure(&mut command, directory.path(), address);
        let mut program = Self { address, child: spawn(command).unwrap(), directory };
        let mut has_ended = false;
        let is_decided = eventually(|| {
            has_ended = program.child.try_wait().unwrap().is_some();
            has_ended || TcpStream::connect(address).is_ok()
        });
        assert!(is_decided && !has_ended, "{name} does not start: {}", program.said());
        program
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Everything that it has written into logs.
    fn said(&self) -> String {
        let files = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        drop(self.child.wait());
    }
}

/// Where a program lies. A test that needs it fails without it: nobody is to take it for passed.
fn path(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let known = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let places = path.split(':').chain(known).map(|place| Path::new(place).join(name));
    places.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "{name} is missing, a server that this test is about. `make setup-tests` installs it on Debian as root; \
             else: sudo apt-get install -y nginx haproxy caddy gunicorn redis-server"
        )
    })
}

/// Spawns by a thread that lives as long as the process: the kernel sends the signal of the parent's death when the thread
/// ends that spawned, and a test's thread ends with the test.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, SyncSender<io::Result<Child>>);
    static SPAWNER: LazyLock<SyncSender<Order>> = LazyLock::new(|| {
        let (orders, taken) = sync_channel::<Order>(1);
        thread::spawn(move || {
            for (mut command, answer) in taken {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, answered) = sync_channel(1);
    SPAWNER.send((command, answer)).unwrap();
    answered.recv().unwrap()
}
