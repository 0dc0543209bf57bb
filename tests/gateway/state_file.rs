//! Counts outlive the process: a drain, a kill, and files that are not fit to be read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{Client, FRAME, Gateway, eventually, get, get_with};

fn rules(rate: &str, more: &str) -> String {
    format!(
        "{FRAME}[server]\nstate_file = \"counts\"\nstate_interval = \"1s\"\n\
         [[limit]]\nname = \"per-key\"\nkey = \"header:x-key\"\nrate = \"{rate}\"\n{more}\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"per-key\"]\n"
    )
}

/// How many of these are admitted for a key.
fn left(gateway: &Gateway, key: &str, most: usize) -> usize {
    (0..most).take_while(|_| get_with(gateway.address(), "/", &[("x-key", key)]).status == 200).count()
}

fn end(mut gateway: Gateway) -> TempDir {
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    gateway.kill()
}

#[test]
fn a_drain_and_a_start_lose_no_count_and_the_secret_is_its_owners() {
    let gateway = Gateway::start_whole(&rules("5/h", ""));
    assert_eq!((left(&gateway, "a", 2), left(&gateway, "b", 9)), (2, 5));
    let directory = end(gateway);
    for name in ["counts", "counts.secret"] {
        let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let gateway = Gateway::start_in(directory, &rules("5/h", ""));
    assert_eq!((left(&gateway, "a", 9), left(&gateway, "b", 9), left(&gateway, "c", 9)), (3, 0, 5));
    assert!(gateway.log().contains("\"message\":\"counts taken over\""), "{}", gateway.log());
    // With other numbers they begin anew, and the log says which.
    let gateway = Gateway::start_in(end(gateway), &rules("6/h", ""));
    assert_eq!(left(&gateway, "b", 9), 6);
    assert!(
        gateway.log().contains("counts left out") && gateway.log().contains("per-key, by header:x-key"),
        "{}",
        gateway.log()
    );
}

#[test]
fn a_block_of_a_penalty_outlives_the_process() {
    let penalty = "penalty = { after = 2, within = \"1m\", block = \"1h\" }";
    let gateway = Gateway::start_whole(&rules("1/s", penalty));
    assert!(eventually(|| get_with(gateway.address(), "/", &[("x-key", "a")]).header("retry-after") > Some("3")));
    let gateway = Gateway::start_in(end(gateway), &rules("1/s", penalty));
    let answer = get_with(gateway.address(), "/", &[("x-key", "a")]);
    let secs: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!(answer.status == 429 && secs > 3_000, "{secs}");
}

#[test]
fn a_kill_loses_what_an_interval_has_counted_and_no_more() {
    let gateway = Gateway::start_whole(&rules("5/h", ""));
    assert_eq!(left(&gateway, "a", 3), 3);
    let file = gateway.directory.path().join("counts");
    let written = || fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
    // The second one that is written from now on has begun after the requests.
    for _ in 0..2 {
        let before = written();
        assert!(eventually(|| written() != before));
    }
    let gateway = Gateway::start_in(gateway.kill(), &rules("5/h", ""));
    assert_eq!(left(&gateway, "a", 9), 2);
}

#[test]
fn a_file_that_is_no_state_file_is_left_aside_and_the_start_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("counts"), "not this").unwrap();
    let gateway = Gateway::start_in(directory, &rules("5/h", ""));
    assert_eq!(left(&gateway, "a", 9), 5);
    assert_eq!(fs::read_to_string(gateway.directory.path().join("counts.bad")).unwrap(), "not this");
    assert!(gateway.log().contains("it is no state file"), "{}", gateway.log());
    // A directory in its place cannot be replaced: it says so again and again, and serves.
    let directory = gateway.kill();
    let _ = fs::remove_file(directory.path().join("counts.bad"));
    let _ = fs::remove_file(directory.path().join("counts"));
    fs::create_dir_all(directory.path().join("counts.bad/x")).unwrap();
    fs::create_dir_all(directory.path().join("counts/y")).unwrap();
    let gateway = Gateway::start_in(directory, &rules("5/h", ""));
    assert!(eventually(|| gateway.log().contains("counts are not written")));
    assert_eq!(get(gateway.address(), "/").status, 200);
}

#[test]
fn a_secret_that_cannot_be_used_is_said_and_the_start_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("counts.secret"), "short").unwrap();
    let gateway = Gateway::start_in(directory, &rules("5/h", ""));
    assert_eq!(left(&gateway, "a", 9), 5);
    assert!(gateway.log().contains("counts will not outlive the process"), "{}", gateway.log());
}

#[test]
fn kills_at_any_moment_lose_an_interval_at_most_and_count_nothing_twice() {
    const LIMIT: usize = 5_000;
    let trials = if std::env::var_os("SLUICEGATE_LONG").is_some() { 10 } else { 1 };
    let rules = rules(&format!("{LIMIT}/h"), "");
    let mut gateway = Gateway::start_whole(&rules);
    for trial in 0..trials {
        let key = format!("trial-{trial}");
        let mut client = Client::connect(gateway.address());
        let (began, mut sent) = (Instant::now(), Vec::new());
        let lasts = Duration::from_millis(3_500 + 377 * trial);
        while began.elapsed() < lasts && sent.len() < LIMIT / 2 {
            assert_eq!(client.request("GET", "/", &[("x-key", &key)], b"").status, 200);
            sent.push(Instant::now());
            thread::sleep(Duration::from_millis(2));
        }
        gateway = Gateway::start_in(gateway.kill(), &rules);
        let killed = Instant::now();
        let kept = LIMIT - left(&gateway, &key, LIMIT);
        // The interval is a second; the rest is for a busy machine.
        let old = sent.iter().filter(|at| killed.duration_since(**at) > Duration::from_secs(3)).count();
        assert!((old..=sent.len()).contains(&kept), "{old} <= {kept} <= {}", sent.len());
    }
}
