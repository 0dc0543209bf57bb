//! `dead-letters purge` beside a gateway, without one, and killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Client, Gateway, dead_letters, eventually, get_with, run};

const CONFIGURATION: &str = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
     [[limit]]\nname = \"per-key\"\nkey = \"header:x-api-key\"\nrate = \"1/1h\"\n\
     [[route]]\nname = \"api\"\nupstream = \"app\"\nlimits = [\"per-key\"]\n\
     [dead_letter]\ndirectory = \"dead-letters\"\nmax_key_rate = 1000\n";

/// A gateway that has refused each key so many times, in turn.
fn refusing(each: usize) -> Gateway {
    let gateway = Gateway::start(CONFIGURATION);
    let mut client = Client::connect(gateway.address());
    for _ in 0..=each {
        for key in ["a", "b"] {
            client.request("GET", "/", &[("X-Api-Key", key)], b"");
        }
    }
    assert!(eventually(|| gateway.dead_letters().len() == 2 * each));
    gateway
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    paths
}

#[test]
fn a_purge_leaves_what_a_gateway_writes_to_and_takes_it_when_that_has_ended() {
    let gateway = refusing(4);
    let directory = gateway.directory.path();
    // An earlier one.
    let letters = directory.join("dead-letters");
    let newest = segments(&letters).remove(0);
    let content = fs::read_to_string(&newest).unwrap();
    let node = newest.file_name().unwrap().to_str().unwrap().rsplit_once('-').unwrap().0.to_owned();
    fs::write(letters.join(format!("{node}-0000000000.jsonl")), &content).unwrap();
    let (status, shown, errors) = run(&["dead-letters", "purge", "--key", "a", "--yes"], directory);
    assert!(status.success() && errors.is_empty(), "{errors}");
    assert!(shown.starts_with("to remove: 4 records\nfrom 1 segment, "), "{shown}");
    let stays = format!("{node}-0000000001.jsonl is being written by a gateway and stays; matching in it: 4 records\n");
    assert!(shown.contains(&stays) && shown.ends_with("\nremoved 4 records\n"), "{shown}");
    assert_eq!(gateway.dead_letters().len(), 4 + 8);
    assert_eq!(get_with(gateway.address(), "/", &[("X-Api-Key", "a")]).status, 429);
    assert!(eventually(|| gateway.dead_letters().len() == 4 + 9));
    let directory = gateway.kill();
    let letters = directory.path().join("dead-letters");
    let purge = ["dead-letters", "purge", "--key", "a"];
    let (status, shown, errors) = run(&purge, directory.path());
    assert!(!status.success() && shown.starts_with("to remove: 5 records\nfrom 1 segment, "), "{shown}");
    assert!(errors.contains("nothing was removed") && errors.contains("--yes"), "{errors}");
    assert_eq!(dead_letters(&letters).len(), 4 + 9);
    let (status, shown, errors) = run(&[&purge[..], &["--yes"]].concat(), directory.path());
    assert!(status.success() && shown.ends_with("\nremoved 5 records\n"), "{shown}{errors}");
    assert_eq!(dead_letters(&letters).len(), 4 + 4);
    // The next start goes on in what was written anew.
    let configuration = fs::read_to_string(directory.path().join("gateway.toml")).unwrap();
    let gateway = Gateway::start_in(directory, &configuration);
    for _ in 0..3 {
        get_with(gateway.address(), "/", &[("X-Api-Key", "a")]);
    }
    assert!(eventually(|| gateway.dead_letters().len() == 8 + 2));
    assert_eq!(segments(&letters).len(), 2);
    let (_, list, errors) = run(&["dead-letters", "ls"], gateway.directory.path());
    assert_eq!((list.lines().count(), errors.as_str()), (10, ""));
    let (status, ..) = run(&["dead-letters", "-d", "nowhere", "purge", "--yes"], gateway.directory.path());
    assert!(!status.success() && !gateway.directory.path().join("nowhere").exists());
}

/// Ten runs, each killed when it has begun to write one more segment anew than the one before.
#[test]
fn a_purge_that_is_killed_has_lost_nothing_that_it_was_to_keep() {
    let directory = refusing(20).kill();
    let letters = directory.path().join("dead-letters");
    let first = segments(&letters).remove(0);
    let whole = fs::read_to_string(&first).unwrap().repeat(20);
    fs::remove_file(first).unwrap();
    let is_of_a = |line: &&str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let mark_of_a =
            serde_json::from_str::<serde_json::Value>(whole.lines().next().unwrap()).unwrap()["key"].clone();
        record["key"] == mark_of_a
    };
    let kept: String = whole.lines().filter(|line| !is_of_a(line)).map(|line| line.to_owned() + "\n").collect();
    assert!(!kept.is_empty() && kept.len() < whole.len());
    let log: Vec<_> = (1..=10).map(|number| letters.join(format!("old-{number:010}.jsonl"))).collect();
    let mut were_killed = 0;
    for run in 1..=10 {
        for path in &log {
            fs::write(path, &whole).unwrap();
        }
        let mut purge = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        purge.args(["dead-letters", "-d", "dead-letters", "purge", "--key", "a", "--yes"]);
        purge.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut purge = purge.spawn().unwrap();
        let begun = |path: &&PathBuf| {
            let is_done = fs::metadata(path).unwrap().len() < whole.len() as u64;
            is_done || path.with_extension("jsonl.purge").exists()
        };
        while purge.try_wait().unwrap().is_none() {
            if log.iter().filter(begun).count() >= run {
                were_killed += 1;
                purge.kill().unwrap();
            }
        }
        for path in &log {
            let now = fs::read_to_string(path).unwrap();
            assert!(now == whole || now == kept, "{}: {} bytes", path.display(), now.len());
        }
    }
    assert!(were_killed > 0);
    let (status, shown, errors) = run(&["dead-letters", "purge", "--key", "a", "--yes"], directory.path());
    assert!(status.success(), "{shown}{errors}");
    assert!(log.iter().all(|path| fs::read_to_string(path).unwrap() == kept));
    assert!(
        !fs::read_dir(&letters).unwrap().any(|entry| entry.unwrap().path().to_string_lossy().ends_with(".jsonl.purge"))
    );
}
