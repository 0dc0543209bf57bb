//! Programs that `support` starts are there at once, are nobody else's, and leave nothing behind.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use crate::support::{PATIENCE, Store, eventually};

/// The answer of a store to a command without arguments that hold blanks.
fn ask(address: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}

fn is_gone(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

#[test]
fn a_store_is_the_tests_own_and_ends_with_it() {
    let (one, two) = (Store::start(), Store::start());
    assert_eq!(ask(one.address(), "INCR key"), ":1");
    assert_eq!(ask(one.address(), "INCR key"), ":2");
    assert_eq!(ask(two.address(), "INCR key"), ":1");
    let address = one.address();
    drop(one);
    assert!(is_gone(address));
    assert_eq!(ask(two.address(), "PING"), "+PONG");
}

/// This test in another process, which is killed with a store that nobody drops.
#[test]
fn a_store_ends_with_the_process_of_its_test() {
    const CHILD: &str = "SLUICEGATE_TEST_LEAVES_A_STORE";
    if std::env::var_os(CHILD).is_some() {
        // Another thread than the one that started it is what lives until the end.
        let store = thread::spawn(Store::start).join().unwrap();
        println!("\nstore at {}", store.address());
        thread::sleep(PATIENCE);
        return;
    }
    let own = "stores::a_store_ends_with_the_process_of_its_test";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", own, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.find_map(|line| line.strip_prefix("store at ").map(|at| at.parse().unwrap())).unwrap();
    assert_eq!(ask(address, "PING"), "+PONG");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(eventually(|| is_gone(address)));
}
