//! The values that `[fleet]` takes and refuses. No message may show a secret.

use std::fs;
use std::path::Path;

use super::*;
use crate::config::{Model, diff, load, parse};
use crate::time::Tick;

const REST: &str = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {}\n[fleet]\n";
const LEAST: &str = "store = \"redis://10.0.0.5:6379/0\"\nsecret_file = \"fleet.key\"\n";
const DIGITS: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F";

fn read(keys: &str) -> Result<Fleet, String> {
    let parsed = parse(&format!("{REST}{keys}"), Path::new("/g.toml"), Certificates::Unread);
    parsed.map(|parsed| parsed.model.fleet.unwrap()).map_err(|errors| errors.to_string())
}

/// With `files` beside the configuration.
fn load_with(keys: &str, files: &[(&str, &[u8])]) -> Result<Model, String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    let path = directory.path().join("gateway.toml");
    fs::write(&path, format!("{REST}{keys}")).unwrap();
    let now = Tick::from_nanos(0);
    load(&path, Certificates::Strict(now)).map(|loaded| loaded.model).map_err(|error| error.to_string())
}

#[test]
fn two_keys_are_required_and_the_others_have_defaults() {
    let fleet = read(LEAST).unwrap();
    assert_eq!(
        (&*fleet.store, &*fleet.prefix, fleet.username.clone()),
        ("redis://10.0.0.5:6379/0", "sluicegate", None)
    );
    assert_eq!((fleet.deadline, fleet.on_failure), (Span::from_millis(10), OnFailure::Fair));
    assert_eq!(fleet.node, host_name());
    assert_eq!((fleet.secret(), fleet.password(None)), (None, None));
    let errors = read("").unwrap_err();
    assert!(errors.contains("[fleet] has no `store`") && errors.contains("[fleet] has no `secret_file`"), "{errors}");
    let all = "username = \"gw\"\npassword_file = \"p\"\nnode = \"gw-1\"\nprefix = \"a:b\"\ndeadline = \"1s\"\non_failure = \"open\"\n";
    let fleet = read(&format!("{LEAST}{all}")).unwrap();
    assert_eq!((fleet.username.as_deref(), &*fleet.node, &*fleet.prefix), (Some("gw"), "gw-1", "a:b"));
    assert_eq!((fleet.deadline, fleet.on_failure), (Span::from_secs(1), OnFailure::Open));
}

#[test]
fn a_store_is_one_server() {
    for good in ["redis://h", "redis://[::1]:6379/15", "redis://[::1]", "redis://10.0.0.5/3", "unix:///run/redis.sock"]
    {
        let read = read(&format!("store = \"{good}\"\nsecret_file = \"k\"\n"));
        assert_eq!(read.map(|fleet| fleet.store.to_string()).as_deref(), Ok(good));
    }
    for (bad, message) in [
        ("10.0.0.5:6379", "\"10.0.0.5:6379\" is no store"),
        ("redis://", "\"redis://\" is no store"),
        ("redis://h:0", "is no store"),
        ("redis://h:x", "is no store"),
        ("redis://h:65536", "is no store"),
        ("redis://h/x", "is no store"),
        ("redis://h/0/1", "is no store"),
        ("redis://[::x]", "is no store"),
        ("redis://h h", "is no store"),
        ("unix://run/redis.sock", "is no store"),
        ("http://h", "is no store"),
        ("rediss://redis.internal:6380", "is not in this version"),
        ("redis-sentinel://h1:26379,h2:26379/mymaster", "is not in this version"),
        ("redis-cluster://h1,h2", "is not in this version"),
    ] {
        let errors = read(&format!("store = \"{bad}\"\nsecret_file = \"k\"\n")).unwrap_err();
        assert!(errors.contains(message) && errors.contains("1 error"), "{bad}: {errors}");
    }
}

#[test]
fn a_password_has_no_place_in_the_file_and_is_not_repeated() {
    for store in [
        "redis://:hunter2@h",
        "redis://me:hunter2@h:1/2",
        "redis://:hun/ter2@h",
        "redis-cluster://:hunter2@h",
        "rediss://h?password=hunter2",
        "unix:///run/redis.sock?pass=hunter2",
    ] {
        let errors = read(&format!("store = \"{store}\"\nsecret_file = \"k\"\n")).unwrap_err();
        assert!(errors.contains("put the password into password_file"), "{errors}");
        assert!(!errors.contains("ter2"), "{errors}");
    }
    let errors = read("store = \"redis://:hunter2@h\" x\nsecret_file = 5\n").unwrap_err();
    assert!(!errors.contains("hunter2"), "{errors}");
    let errors = read("stor = \"redis://:hunter2@h\"\nsecret_file = 5\n").unwrap_err();
    assert!(!errors.contains("hunter2"), "{errors}");
}

#[test]
fn a_secret_is_bytes_or_digits() {
    let secret: [u8; 32] = std::array::from_fn(|at| at as u8);
    let (line, windows) = (format!("{DIGITS}\n"), format!("{DIGITS}\r\n"));
    for bytes in [&secret[..], DIGITS.as_bytes(), line.as_bytes(), windows.as_bytes()] {
        let model = load_with(LEAST, &[("fleet.key", bytes)]).unwrap();
        assert_eq!(model.fleet.as_ref().unwrap().secret(), Some(&secret));
        assert!(!format!("{model:?}").contains("30, 31"));
    }
    let spaced = DIGITS.replace("0a", "0g");
    for (bytes, message) in [
        (&b""[..], "has 0 bytes"),
        (&secret[1..], "has 31 bytes"),
        (&DIGITS.as_bytes()[1..], "has 63 bytes"),
        (spaced.as_bytes(), "has 64 bytes, not all of them digits"),
        (format!("{DIGITS}\n\n").as_bytes(), "has 66 bytes"),
    ] {
        let errors = load_with(LEAST, &[("fleet.key", bytes)]).unwrap_err();
        assert!(errors.contains(&format!("`secret_file` = \"fleet.key\" {message}\n")), "{errors}");
        assert!(errors.contains("sluicegate fleet key > fleet.key") && !errors.contains("0b0c"), "{errors}");
    }
    let errors = load_with(LEAST, &[]).unwrap_err();
    assert!(errors.contains("`secret_file` = \"fleet.key\" cannot be used: there is no such file"), "{errors}");
}

#[test]
fn a_password_is_one_line_and_the_environments_wins() {
    let keys = format!("{LEAST}password_file = \"pass\"\n");
    let load = |password: &[u8]| load_with(&keys, &[("fleet.key", DIGITS.as_bytes()), ("pass", password)]);
    for (bytes, password) in [(&b"hunter2"[..], "hunter2"), (b"hunter2\n", "hunter2"), (b"a b\r\n", "a b")] {
        let fleet = load(bytes).unwrap().fleet.unwrap();
        assert_eq!((fleet.password(None), fleet.password(Some("other"))), (Some(password), Some("other")));
        assert!(!format!("{fleet:?}").contains(password), "{fleet:?}");
    }
    assert!(load(&[b'x'; 512]).is_ok());
    for (bytes, message) in [
        (&b""[..], "is empty"),
        (b"\n", "is empty"),
        (b"hunter2\nhunter3", "has more than one line"),
        (b"hunter2\n\n", "has more than one line"),
        (b"hunter2\0", "has control characters"),
        (b"hunter2\xff", "is not UTF-8"),
        (&[b'x'; 513], "has 513 bytes"),
    ] {
        let errors = load(bytes).unwrap_err();
        assert!(errors.contains(&format!("`password_file` = \"pass\" {message}\n")), "{errors}");
        assert!(!errors.contains("hunter"), "{errors}");
    }
}

#[test]
fn names_are_safe_in_keys_and_logs() {
    for (key, good, bad) in [
        ("node", ["gw-1", "a.b_c", &"x".repeat(64)], ["", "a:b", "a b"]),
        ("prefix", ["a:b", "s", "a.b_c-1"], ["", "{a}", "a*"]),
    ] {
        for good in good {
            assert!(read(&format!("{LEAST}{key} = \"{good}\"\n")).is_ok(), "{key} {good}");
        }
        let long = "x".repeat(65);
        for bad in bad.into_iter().chain([&*long]) {
            let errors = read(&format!("{LEAST}{key} = \"{bad}\"\n")).unwrap_err();
            assert!(errors.contains(&format!("`{key}` = ")) && errors.contains("is no name"), "{errors}");
        }
    }
    for (host, node) in [("gw-1.example", "gw-1.example"), ("", "gateway"), ("my host:1", "my-host-1")] {
        assert_eq!(&*node_of_host(host), node);
    }
    assert_eq!(node_of_host(&"ä".repeat(100)).len(), 64);
    for keys in ["deadline = \"0ms\"", "deadline = \"1001ms\"", "on_failure = \"fail\"", "username = \"a b\""] {
        assert!(read(&format!("{LEAST}{keys}\n")).is_err(), "{keys}");
    }
}

#[test]
fn a_plan_tells_of_a_change_without_secrets() {
    let load = |keys: &str, secret: u8| {
        load_with(&format!("{LEAST}{keys}"), &[("fleet.key", &[secret; 32]), ("p", b"hunter2"), ("q", b"hunter3")])
    };
    let plan = |old: &Model, new: &Model| diff(old, new).to_string();
    let old = load("node = \"a\"\npassword_file = \"p\"\n", 1).unwrap();
    let new = load("node = \"b\"\npassword_file = \"q\"\n", 2).unwrap();
    assert!(diff(&old, &old).is_empty());
    let said = plan(&old, &new);
    let expected = "[fleet]: changed: password_file has other contents, secret_file has other contents, node a -> b";
    assert!(said.starts_with(expected), "{said}");
}
