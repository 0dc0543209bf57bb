//! `sluicegate config`: the rules changed, compared and taken back from the shell.

use std::fs;
use std::io::Write as _;

use serde_json::Value;
use sha2::Digest as _;

use crate::support::{Gateway, eventually, get, run};

/// A gateway whose admin is a Unix socket: its owner may change rules.
fn start() -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"unix:{}\"\n\
         # For everybody.\n[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"2/h\"   # few\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"l\"]\nplans = {{ file = \"plans.toml\", key = \"header:x-key\" }}\n",
        directory.path().join("admin.sock").display()
    );
    fs::write(
        directory.path().join("plans.toml"),
        "default = \"free\"\n[plan.free]\n[plan.gold]\nl = { rate = \"9/h\" }\n[keys]\n",
    )
    .unwrap();
    Gateway::start_in(directory, &text)
}

fn tell(gateway: &Gateway, words: &[&str]) -> (bool, String, String) {
    let (status, out, error) = run(&[&["config"], words].concat(), gateway.directory.path());
    (status.success(), out, error)
}

fn done(gateway: &Gateway, words: &[&str]) -> String {
    let (is_done, out, error) = tell(gateway, words);
    assert!(is_done, "{words:?}: {error}{out}");
    out
}

fn refused(gateway: &Gateway, words: &[&str], says: &str) {
    let (is_done, out, error) = tell(gateway, words);
    assert!(!is_done && error.contains(says), "{words:?}: {error}{out}");
}

fn text(gateway: &Gateway) -> String {
    fs::read_to_string(gateway.file()).unwrap()
}

fn admitted(gateway: &Gateway) -> usize {
    (0..9).take_while(|_| get(gateway.address(), "/").status == 200).count()
}

#[test]
fn a_key_of_a_limit_is_changed_told_and_taken_back() {
    let gateway = start();
    let first = text(&gateway);
    assert_eq!(admitted(&gateway), 2);
    let out = done(&gateway, &["set", "limit", "l", "rate=5/h"]);
    assert!(out.starts_with("limit l: replaced, generation 2\n") && out.contains("5/h"), "{out}");
    assert_eq!(text(&gateway), first.replace("2/h", "5/h"), "comments and all else stay");
    assert_eq!(admitted(&gateway), 3, "at once, with the count of before");
    let out = done(&gateway, &["set", "limit", "l", "rate=5/h"]);
    assert!(out.starts_with("limit l: as it was, generation 2\n"), "{out}");
    // A number, a list and a key that goes.
    done(&gateway, &["set", "limit", "l", "max_keys=1000", "status=403", "exempt=[\"127.0.0.9\"]"]);
    done(&gateway, &["set", "limit", "l", "status="]);
    let entry: Value = serde_json::from_str(&done(&gateway, &["get", "limit", "l"])).unwrap();
    assert_eq!(
        entry,
        serde_json::json!({ "name": "l", "key": "global", "rate": "5/h", "max_keys": 1000, "exempt": ["127.0.0.9"] })
    );
    let history = done(&gateway, &["history"]);
    let changes: Vec<&str> = history.lines().skip(1).map(|line| line.rsplit("  ").next().unwrap()).collect();
    assert_eq!(changes[..3], ["limit l replaced"; 3], "{history}");
    assert_eq!(done(&gateway, &["history", "1"]), first);
    let out = done(&gateway, &["rollback", "1"]);
    assert!(out.starts_with("rolled back to generation 1: replaced, generation 5\n"), "{out}");
    assert_eq!((text(&gateway), done(&gateway, &["show"])), (first.clone(), first));
    let out = done(&gateway, &["status"]);
    assert!(out.contains("generation 5\nsince ") && out.contains("5/h -> 2/h"), "{out}");
}

#[test]
fn entries_and_plans_of_keys_come_and_go() {
    let gateway = start();
    refused(&gateway, &["set", "route", "beta", "path=/beta"], "--new makes one.");
    let out =
        done(&gateway, &["set", "route", "beta", "--new", "path=/beta", "respond={ status = 204 }", "--before", "all"]);
    assert!(out.starts_with("route beta: created, generation 2\n"), "{out}");
    assert_eq!(get(gateway.address(), "/beta").status, 204, "it comes before the one that matches all");
    let all: Value = serde_json::from_str(&done(&gateway, &["get", "route"])).unwrap();
    assert_eq!((&all[0]["name"], &all[1]["name"]), (&"beta".into(), &"all".into()));
    done(&gateway, &["delete", "route", "beta"]);
    assert_eq!(get(gateway.address(), "/beta").status, 200);
    refused(&gateway, &["delete", "limit", "l"], "error: line ");
    refused(&gateway, &["delete", "route", "beta"], "The file has no route \"beta\".");

    assert_eq!(done(&gateway, &["plan", "all", "k-1"]), "free (the default)\n");
    done(&gateway, &["plan", "all", "k-1", "--set", "gold"]);
    assert_eq!(done(&gateway, &["plan", "all", "k-1"]), "gold\n");
    done(&gateway, &["plan", "all", "k-1", "--remove"]);
    assert_eq!(done(&gateway, &["plan", "all", "k-1"]), "free (the default)\n");
}

#[test]
fn a_text_is_judged_and_compared_before_it_holds() {
    let gateway = start();
    let candidate = gateway.directory.path().join("candidate.toml");
    fs::write(&candidate, text(&gateway).replace("2/h", "7/h")).unwrap();
    assert!(done(&gateway, &["validate", "candidate.toml"]).ends_with("the text is right\n"));
    let plan = done(&gateway, &["diff", "candidate.toml"]);
    assert!(plan.contains("2/h -> 7/h"), "{plan}");
    assert_eq!(done(&gateway, &["diff"]), "nothing changed\n");
    let mut file = fs::OpenOptions::new().append(true).open(&candidate).unwrap();
    file.write_all(b"[[limit]]\nname = \"m\"\nrate = \"fast\"\n").unwrap();
    let (is_right, out, _) = tell(&gateway, &["validate", "candidate.toml"]);
    assert!(!is_right && out.starts_with("error: line ") && out.ends_with("the text is wrong\n"), "{out}");
    let (_, json, _) = tell(&gateway, &["validate", "candidate.toml", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["ok"], false);
    refused(&gateway, &["diff", "candidate.toml"], "fast");
    refused(&gateway, &["diff", "none.toml"], "none.toml");
    refused(&gateway, &["rollback", "99"], "no generation 99");
    refused(&gateway, &["set", "limit", "l", "rate"], "KEY=VALUE");
    refused(&gateway, &["set", "limit", "l", "rate=fast"], "fast");
    assert_eq!(admitted(&gateway), 2);
}

#[test]
fn limits_and_keys_are_listed_whole_and_watched() {
    let gateway = start();
    let (status, out, error) = run(&["limits", "--json"], gateway.directory.path());
    assert!(status.success(), "{error}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["limits"][0]["name"], "l");
    let (status, out, _) = run(&["keys", "exceptions"], gateway.directory.path());
    assert!(status.success());
    assert_eq!(out, "No key has an exception.\n");
}

#[test]
fn a_gateway_whose_file_is_broken_is_found_by_the_files_own_sections() {
    let gateway = start();
    let first = text(&gateway);
    for broken in [format!("{first}x = \n"), first.replace("2/h", "fast")] {
        fs::write(gateway.file(), &broken).unwrap();
        assert!(done(&gateway, &["history"]).starts_with("GENERATION"));
        let (status, out, error) = run(&["limits"], gateway.directory.path());
        assert!(status.success() && out.contains("global"), "{out}{error}");
        assert!(error.contains("the running gateway is asked where its [admin] and [server] say"), "{error}");
        let (status, out, error) = run(&["explain", "GET", "/", "--live"], gateway.directory.path());
        assert!(status.success(), "{out}{error}");
    }
    // Not where the last text that held names another place: one of the two is another gateway's.
    fs::write(gateway.file(), format!("{first}x = \n").replace("admin.sock", "other.sock")).unwrap();
    refused(&gateway, &["history"], "differ from those of the last text that held");
    // Nor by that text alone, which may be of long ago.
    fs::write(gateway.file(), "[[").unwrap();
    refused(&gateway, &["history"], "--admin");
    // Without a history the file's own sections are left.
    let history = gateway.directory.path().join("gateway.toml.history");
    let elsewhere = gateway.directory.path().join("elsewhere");
    fs::rename(&history, &elsewhere).unwrap();
    fs::write(gateway.file(), format!("{first}x = \n")).unwrap();
    let (status, _, error) = run(&["limits"], gateway.directory.path());
    assert!(status.success() && error.contains("where its [admin] and [server] say"), "{error}");
    fs::write(gateway.file(), "[[").unwrap();
    refused(&gateway, &["history"], "say where its admin is, --admin URL|SOCKET");
    fs::rename(&elsewhere, &history).unwrap();
    let out = done(&gateway, &["rollback", "1", "--force", "--admin", "./admin.sock"]);
    assert!(out.contains("generation"), "{out}");
    assert_eq!(text(&gateway), first);
}

#[test]
fn an_upgrade_with_a_broken_file_asks_the_gateway_which_goes_on() {
    let gateway = start();
    let broken = text(&gateway).replace("2/h", "fast");
    fs::write(gateway.file(), broken).unwrap();
    for more in [&[][..], &["--admin", "./admin.sock"]] {
        let (status, out, error) = run(&[&["upgrade"], more].concat(), gateway.directory.path());
        assert!(!status.success() && out.is_empty(), "{out}{error}");
        assert!(
            error.contains("fast") && error.contains("no upgrade: ") && error.contains("gateway.toml:9:8"),
            "the new process says why: {error}"
        );
    }
    assert_eq!(get(gateway.address(), "/").status, 200);
}

#[test]
fn status_ends_with_one_after_a_reload_that_was_rejected() {
    let gateway = start();
    let first = text(&gateway);
    done(&gateway, &["status"]);
    fs::write(gateway.file(), first.replace("2/h", "fast")).unwrap();
    assert!(eventually(|| !tell(&gateway, &["status"]).0), "the file is watched");
    let (is_done, out, error) = tell(&gateway, &["status"]);
    assert!(!is_done && out.contains("generation 1\n") && out.contains("the last reload was rejected"), "{out}{error}");
    let (is_done, out, _) = tell(&gateway, &["status", "--json"]);
    let shown = serde_json::from_str::<Value>(&out).unwrap();
    assert!(!is_done && shown["last_reload_error"].as_str().unwrap().contains("fast"), "{out}");
    fs::write(gateway.file(), first.replace("2/h", "3/h")).unwrap();
    assert!(eventually(|| tell(&gateway, &["status"]).0));
}

#[test]
fn two_files_are_compared_without_a_gateway() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[limit]]\nname = \"l\"\nrate = \"2/h\"\n\
                [[route]]\nname = \"all\"\nrespond = {}\nlimits = [\"l\"]\n";
    fs::write(directory.path().join("old.toml"), text).unwrap();
    fs::write(directory.path().join("new.toml"), text.replace("2/h", "7/h")).unwrap();
    let diff = |words: &[&str]| run(&[&["config", "diff"], words].concat(), directory.path());
    let (status, out, error) = diff(&["old.toml", "new.toml"]);
    assert!(status.success() && out.contains("rate 2/h -> 7/h"), "{out}{error}");
    let (status, out, _) = diff(&["old.toml", "old.toml"]);
    assert_eq!((status.success(), out.as_str()), (true, "nothing changed\n"));
    let (_, out, _) = diff(&["old.toml", "new.toml", "--json"]);
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&shown["changes"][0]["name"], &shown["warnings"]), (&"l".into(), &Value::Array(Vec::new())));
    fs::write(directory.path().join("new.toml"), text.replace("2/h", "fast")).unwrap();
    let (status, out, error) = diff(&["old.toml", "new.toml"]);
    assert!(!status.success() && out.is_empty() && error.contains("new.toml:5:8"), "{out}{error}");
}

#[test]
fn a_rollback_that_opens_admin_needs_force_and_says_what_changes() {
    let gateway = start();
    let open = text(&gateway);
    let hash = sha2::Sha256::digest("a-token").iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let tokens = format!("tokens = [{{ name = \"ci\", sha256 = \"{hash}\", role = \"rules\" }}]\n# For everybody.");
    let closed = open.replace("# For everybody.", &tokens);
    fs::write(gateway.file(), &closed).unwrap();
    fs::write(gateway.directory.path().join("token"), "a-token\n").unwrap();
    // A file that is written in place is empty for a moment, which `status` tells by its exit status too.
    assert!(eventually(|| tell(&gateway, &["status"]).2.contains("Say who asks")), "the file is watched");
    let with_token = |words: &[&str]| tell(&gateway, &[words, &["--token-file", "token"]].concat());
    let (is_done, _, error) = with_token(&["rollback", "1"]);
    assert!(
        !is_done && error.contains("- token ci (rules), sha256 ") && error.contains("+ without a token: "),
        "{error}"
    );
    assert!(error.contains("`sluicegate config rollback 1 --force`"), "{error}");
    assert_eq!(text(&gateway), closed);
    refused(&gateway, &["status"], "Say who asks");
    let (is_done, out, error) = with_token(&["rollback", "1", "--force"]);
    assert!(is_done && out.contains("has changed who may administer the gateway: +"), "{out}{error}");
    assert_eq!(text(&gateway), open);
    done(&gateway, &["status"]);
}

#[test]
fn an_answer_that_broke_off_is_none() {
    let server = crate::support::Backend::scripted(|wire, _| {
        if wire.request().is_ok() {
            wire.send("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 1000\r\n\r\n# the first line\n");
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let (status, out, error) =
        run(&["config", "show", "--admin", &format!("http://{}", server.address)], directory.path());
    assert!(!status.success() && out.is_empty() && error.contains("broke off after 17 bytes"), "{out}{error}");
}
