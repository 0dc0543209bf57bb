//! Keys that are secrets, named by the marks and the fingerprints that the gateway shows in their place.

use serde_json::Value;

use crate::support::{Gateway, get_with, run};

/// A limit by a field that is a secret, and one by a field that is not.
fn rules() -> String {
    let limit = |name: &str, key: &str| format!("[[limit]]\nname = \"{name}\"\nkey = \"{key}\"\nrate = \"2/h\"\n");
    format!(
        "[server]\nworkers = 2\n{}{}[[route]]\nname = \"keys\"\npath = \"/keys\"\nrespond = {{}}\nlimits = [\"per-key\"]\n\
         [[route]]\nname = \"users\"\npath = \"/users\"\nrespond = {{}}\nlimits = [\"per-user\"]\n",
        limit("per-key", "header:x-api-key"),
        limit("per-user", "header:x-user"),
    )
}

fn ask(gateway: &Gateway, key: &str) -> u16 {
    get_with(gateway.address(), "/keys", &[("x-api-key", key)]).status
}

/// Runs `sluicegate keys`: whether it went well, and all that it said.
fn keys(gateway: &Gateway, arguments: &[&str]) -> (bool, String) {
    let admin = format!("http://{}", gateway.admin);
    let (status, out, error) = run(&[&["keys"], arguments, &["--admin", &admin]].concat(), gateway.directory.path());
    (status.success(), out + &error)
}

fn done(gateway: &Gateway, arguments: &[&str]) -> String {
    let (is_done, said) = keys(gateway, arguments);
    assert!(is_done, "{arguments:?}: {said}");
    said
}

fn failed(gateway: &Gateway, arguments: &[&str]) -> String {
    let (is_done, said) = keys(gateway, arguments);
    assert!(!is_done, "{arguments:?}: {said}");
    said
}

fn json(gateway: &Gateway, arguments: &[&str]) -> Value {
    serde_json::from_str(&done(gateway, &[arguments, &["--json"]].concat())).unwrap()
}

/// The mark of the key that comes most often.
fn mark_of_first(gateway: &Gateway, limit: &str) -> String {
    let top = json(gateway, &["top", limit]);
    let mark = top["admitted"][0]["key"][0][1].as_str().unwrap().to_owned();
    assert!(mark.starts_with("[redacted:"), "{top}");
    mark
}

#[test]
fn every_command_takes_the_mark_that_top_shows() {
    let gateway = Gateway::start(&rules());
    let statuses = [(); 3].map(|()| ask(&gateway, "k-3f9a27"));
    assert_eq!(statuses, [200, 200, 429]);
    let mark = mark_of_first(&gateway, "per-key");
    let top = done(&gateway, &["top", "per-key"]);
    assert!(top.contains(&format!("sluicegate keys block per-key '{mark}'")), "the command to copy: {top}");
    assert!(done(&gateway, &["get", "per-key", &mark]).contains("refused"));
    assert!(done(&gateway, &["reset", "per-key", &mark]).contains(": reset\n"));
    assert_eq!(ask(&gateway, "k-3f9a27"), 200);
    assert!(done(&gateway, &["block", "per-key", &mark]).contains("blocked by hand"));
    assert_eq!((ask(&gateway, "k-3f9a27"), ask(&gateway, "other")), (429, 200));
    assert!(done(&gateway, &["get", "per-key", &mark]).contains("blocked by hand"));
    assert!(done(&gateway, &["unblock", "per-key", &mark]).contains("let go"));
    done(&gateway, &["override", "per-key", &mark, "--rate", "9/h"]);
    assert_eq!(json(&gateway, &["get", "per-key", "k-3f9a27"])["keys"][1]["rates"][0]["limit"], 9);
    done(&gateway, &["override", "per-key", &mark, "--remove"]);
    assert!(done(&gateway, &["exceptions"]).contains("No key"));
}

#[test]
fn every_command_takes_the_print_that_json_shows() {
    let gateway = Gateway::start(&rules());
    // Of an exception, also of a key that has not come.
    done(&gateway, &["block", "per-key", "k-1"]);
    let listed = json(&gateway, &["exceptions"]);
    let print = listed["exceptions"][0]["print"].as_str().unwrap();
    assert!(done(&gateway, &["get", "per-key", print]).contains("blocked by hand"));
    assert!(done(&gateway, &["unblock", "per-key", print]).contains("let go"));
    assert_eq!(ask(&gateway, "k-1"), 200);
    // By its mark, too.
    done(&gateway, &["block", "per-key", "k-2"]);
    let mark = json(&gateway, &["exceptions"])["exceptions"][0]["key"].as_str().unwrap().to_owned();
    assert!(done(&gateway, &["unblock", "per-key", &mark]).contains("let go"));
    // And of one that came.
    let top = json(&gateway, &["top", "per-key"]);
    let print = top["admitted"][0]["print"].as_str().unwrap();
    for change in [&["block"][..], &["override", "--rate", "9/h"]] {
        done(&gateway, &[change, &["per-key", print]].concat());
    }
    assert_eq!(ask(&gateway, "k-1"), 429);
    done(&gateway, &["unblock", "per-key", "k-1"]);
    done(&gateway, &["override", "--remove", "per-key", print]);
    assert!(done(&gateway, &["exceptions"]).contains("No key"));
}

#[test]
fn a_key_that_matches_nothing_is_an_error_of_every_command() {
    let gateway = Gateway::start(&rules());
    for unknown in ["[redacted:0badcafe]", "print:0123456789abcdef"] {
        for arguments in [
            &["get"][..],
            &["reset"],
            &["block"],
            &["unblock"],
            &["override", "--rate", "9/h"],
            &["override", "--remove"],
        ] {
            let said = failed(&gateway, &[arguments, &["per-key", unknown]].concat());
            assert!(said.contains(unknown) && said.contains("give the value"), "{arguments:?}: {said}");
        }
    }
    for (arguments, words) in [
        (&["reset"][..], "nothing is counted"),
        (&["unblock"], "is not blocked"),
        (&["override", "--remove"], "no numbers of its own"),
    ] {
        let said = failed(&gateway, &[arguments, &["per-key", "never-seen"]].concat());
        assert!(said.contains(words) && said.contains("[redacted:") && !said.contains("never-seen"), "{said}");
    }
    assert!(done(&gateway, &["exceptions"]).contains("No key"), "no text is blocked");
    let answer = gateway.tell_admin("DELETE", "/api/v1/limits/per-key/keys/never-seen/block", "");
    assert_eq!(answer.status, 404, "{}", answer.text());
}

/// A client may send the mark of another as its value: both are listed, and the print tells them apart.
#[test]
fn a_mark_of_several_keys_is_an_error_that_lists_them() {
    let gateway = Gateway::start(&rules());
    let ask = |user: &str| get_with(gateway.address(), "/users", &[("x-user", user)]).status;
    // A value with a scheme is a secret under any name.
    assert_eq!((ask("Bearer abc"), ask("alice")), (200, 200));
    let top = json(&gateway, &["top", "per-user"]);
    let marks: Vec<&str> =
        top["admitted"].as_array().unwrap().iter().filter_map(|own| own["key"][0][1].as_str()).collect();
    let mark = *marks.iter().find(|mark| mark.starts_with("[redacted:")).unwrap();
    assert_eq!(ask(mark), 200);
    let top = json(&gateway, &["top", "per-user"]);
    let same = top["admitted"].as_array().unwrap().iter().filter(|own| own["key"][0][1] == *mark);
    let prints: Vec<&str> = same.filter_map(|own| own["print"].as_str()).collect();
    assert_eq!(prints.len(), 2, "{top}");
    for command in ["get", "block", "unblock", "reset"] {
        let said = failed(&gateway, &[command, "per-user", mark]);
        assert!(prints.iter().all(|print| said.contains(print)), "{said}");
    }
    for print in prints {
        done(&gateway, &["block", "per-user", print]);
    }
    assert_eq!((ask("Bearer abc"), ask(mark), ask("alice")), (429, 429, 200));
}
