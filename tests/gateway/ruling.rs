//! Rules as a service: the file edited over the API, while requests go on.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use sha2::{Digest as _, Sha256};

use crate::administering::Document;
use crate::support::{Answer, Client, Gateway, eventually, get, get_with, unused_address};

const RULES: &str = "\
[[upstream]]
name = \"app\"
servers = [\"echo:a\"]

# For everybody.
[[limit]]
name = \"l\"
key = \"global\"
rate = \"1000000/s\"   # as measured

[[route]]
name = \"all\"
upstream = \"app\"
limits = [\"l\"]
";

/// A token, and how it is sent.
const TOKEN: &str = "let-me-write-the-rules";
const BEARER: &str = "Bearer let-me-write-the-rules";

/// The sections before the rules.
fn frame() -> String {
    let hash = Sha256::digest(TOKEN).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         tokens = [{{ name = \"ci\", sha256 = \"{hash}\", role = \"rules\" }}]\n"
    )
}

fn whole(rules: &str) -> String {
    frame() + rules
}

fn start() -> Gateway {
    Gateway::start_whole(&whole(RULES))
}

/// As an editor saves a file: under another name first.
fn save(gateway: &Gateway, text: &str) {
    let next = gateway.directory.path().join("saved");
    fs::write(&next, text).unwrap();
    fs::rename(next, gateway.file()).unwrap();
}

fn read(gateway: &Gateway, path: &str) -> Answer {
    ask(gateway, "GET", path, &[], "")
}

fn ask(gateway: &Gateway, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
    let fields: Vec<_> =
        [("Host", "localhost"), ("Authorization", BEARER)].into_iter().chain(fields.iter().copied()).collect();
    Client::connect(gateway.admin).request(method, path, &fields, body.as_bytes())
}

/// Makes a change of the text that there is.
fn change(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    ask(gateway, method, path, &[("If-Match", &etag(gateway))], &body)
}

fn etag(gateway: &Gateway) -> String {
    read(gateway, "/api/v1/config").header("etag").unwrap().to_owned()
}

fn text(gateway: &Gateway) -> String {
    fs::read_to_string(gateway.file()).unwrap()
}

fn history(gateway: &Gateway) -> Vec<(u64, String, String)> {
    let shown = read(gateway, "/api/v1/config/history").json();
    let entry = |entry: &Value| {
        let word = |key: &str| entry[key].as_str().unwrap().to_owned();
        (entry["generation"].as_u64().unwrap(), word("by"), word("change"))
    };
    shown["history"].as_array().unwrap().iter().map(entry).collect()
}

fn entry(generation: u64, by: &str, change: &str) -> (u64, String, String) {
    (generation, by.to_owned(), change.to_owned())
}

#[test]
fn entries_change_under_load_and_no_request_fails() {
    let gateway = start();
    let (ends, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let (ends, failed, address) = (Arc::clone(&ends), Arc::clone(&failed), gateway.address());
            thread::spawn(move || {
                let mut client = Client::connect(address);
                while !ends.load(Ordering::Relaxed) {
                    failed.fetch_add(usize::from(client.get("/").status != 200), Ordering::Relaxed);
                }
            })
        })
        .collect();
    let route = json!({ "name": "new", "path": "/new", "respond": { "status": 200, "body": "1" } });
    let created = change(&gateway, "POST", "/api/v1/routes?before=all", &route);
    assert_eq!((created.status, &created.json()["done"]), (201, &json!("created")), "{}", created.text());
    assert_eq!(get(gateway.address(), "/new").text(), "1", "it holds when the answer comes");
    // The first of them says what is there already.
    for rate in 1..=10 {
        let limit = json!({ "key": "global", "rate": format!("{rate}000000/s") });
        let replaced = change(&gateway, "PUT", "/api/v1/limits/l", &limit);
        assert_eq!(replaced.status, 200, "{}", replaced.text());
        let shown = replaced.json();
        assert_eq!((&shown["etag"], shown["generation"].as_u64()), (&json!(etag(&gateway)), Some(rate + 1)));
    }
    let expected = whole(RULES).replace("1000000/s", "10000000/s").replace(
        "[[route]]\n",
        "[[route]]\nname = \"new\"\npath = \"/new\"\nrespond = { body = \"1\", status = 200 }\n\n[[route]]\n",
    );
    assert_eq!(text(&gateway), expected, "all comments stay");
    let deleted = change(&gateway, "DELETE", "/api/v1/routes/new", &Value::Null);
    assert_eq!((deleted.status, &deleted.json()["done"]), (200, &json!("deleted")), "{}", deleted.text());
    assert_eq!(text(&gateway), whole(RULES).replace("1000000/s", "10000000/s"));
    assert_ne!(get(gateway.address(), "/new").text(), "1");
    for generation in [2, 7, 3, 12] {
        let rolled = change(&gateway, "POST", "/api/v1/config/rollback", &json!({ "generation": generation }));
        assert_eq!(rolled.status, 200, "{}", rolled.text());
        assert_eq!(get(gateway.address(), "/new").text() == "1", generation != 12);
    }
    ends.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(failed.load(Ordering::Relaxed), 0);
}

#[test]
fn of_two_writers_at_once_one_is_told_and_nothing_is_lost() {
    let gateway = start();
    for round in 0..10 {
        let tag = etag(&gateway);
        let statuses: Vec<u16> = thread::scope(|scope| {
            let write = |name: String| {
                let (tag, gateway) = (&tag, &gateway);
                scope.spawn(move || {
                    let path = format!("/api/v1/limits/{name}");
                    ask(gateway, "PUT", &path, &[("If-Match", tag)], r#"{"rate":"1/s"}"#).status
                })
            };
            let writers = [write(format!("a{round}")), write(format!("b{round}"))];
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let mut sorted = statuses.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [201, 412], "round {round}");
        let winner = if statuses[0] == 201 { "a" } else { "b" };
        assert!(text(&gateway).contains(&format!("name = \"{winner}{round}\"")));
    }
    let limits = read(&gateway, "/api/v1/config").json()["limits"].as_array().unwrap().len();
    assert_eq!(limits, 11);
    let listed = read(&gateway, "/api/v1/routes").json();
    assert_eq!((&listed["rules"][0]["name"], &listed["next"]), (&json!("all"), &Value::Null));
}

#[test]
fn a_file_that_an_editor_changed_meanwhile_is_left_alone() {
    let gateway = start();
    let stale = etag(&gateway);
    save(&gateway, &(whole(RULES) + "# by an editor\n"));
    let refused = ask(&gateway, "PUT", "/api/v1/limits/new", &[("If-Match", &stale)], r#"{"rate":"1/s"}"#);
    assert_eq!(refused.status, 412, "{}", refused.text());
    assert_eq!(refused.header("etag"), Some(etag(&gateway).as_str()));
    assert!(refused.json()["detail"].as_str().unwrap().contains("Read it again"), "{}", refused.text());
    assert_eq!(text(&gateway), whole(RULES) + "# by an editor\n");
    assert!(eventually(|| history(&gateway).len() == 2));
    assert_eq!(change(&gateway, "PUT", "/api/v1/limits/new", &json!({ "rate": "1/s" })).status, 201);
    assert!(text(&gateway).contains("# by an editor\n"));
}

#[test]
fn what_is_wrong_changes_nothing_and_says_how_to_mend_it() {
    let gateway = start();
    let all = whole(RULES);
    let any = [("If-Match", "*")];
    let put = "/api/v1/limits/l";
    for (method, path, fields, body, status, said) in [
        ("PUT", put, &[][..], r#"{"rate":"2/s"}"#, 428, "send If-Match"),
        ("PUT", put, &[("If-Match", "\"0\"")], r#"{"rate":"2/s"}"#, 412, "Read it again"),
        ("DELETE", put, &any, "", 422, "1 mistake; see findings"),
        ("DELETE", "/api/v1/limits/none", &any, "", 404, "no limit \"none\""),
        ("DELETE", "/api/v1/keys/none", &any, "", 404, "There is no such endpoint"),
        ("PUT", put, &any, r#"{"rate":null}"#, 400, "null is no value of TOML"),
        ("PUT", put, &any, r#"{"rate":"2/s","rate":"3/s"}"#, 400, "a key is there twice"),
        ("PUT", put, &any, r#"{"rate":"2/x"}"#, 422, "see findings"),
        ("PUT", put, &any, r#"{"rate":"2/s","raet":1}"#, 422, "see findings"),
        ("PUT", put, &any, r#"{"name":"m","rate":"2/s"}"#, 422, "keeps its name"),
        ("POST", "/api/v1/limits", &any, r#"{"rate":"2/s"}"#, 422, "Give the limit a name"),
        ("POST", "/api/v1/limits", &any, r#"{"name":"l","rate":"2/s"}"#, 409, "already"),
        ("POST", "/api/v1/routes?before=a&after=b", &any, r#"{"name":"m"}"#, 400, "not both"),
        ("POST", "/api/v1/routes?before=a", &any, r#"{"name":"m"}"#, 422, "no route \"a\""),
        ("POST", "/api/v1/config/rollback", &any, r#"{"generation":7}"#, 404, "no generation 7"),
        ("POST", "/api/v1/config/rollback", &any, r#"{"generation":1,"x":1}"#, 422, "unknown field"),
        ("PUT", "/api/v1/routes/all/plans/k", &any, r#"{"plan":"pro"}"#, 404, "has no plans"),
    ] {
        let refused = ask(&gateway, method, path, fields, body);
        assert_eq!(refused.status, status, "{method} {path} {body}: {}", refused.text());
        assert_eq!(refused.header("content-type"), Some("application/problem+json"), "{method} {path} {body}");
        assert!(refused.json()["detail"].as_str().unwrap().contains(said), "{body}: {}", refused.text());
        assert_eq!(text(&gateway), all, "{method} {path} {body}");
    }
    let findings = ask(&gateway, "PUT", put, &any, r#"{"rate":"2/s","raet":1}"#).json()["findings"].clone();
    assert_eq!(
        (&findings[0]["message"], &findings[0]["line"]),
        (&json!("unknown key `raet` in [[limit]]"), &json!(14))
    );
    let long = format!("{{\"rate\":\"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(ask(&gateway, "PUT", put, &any, &long).status, 413);
    assert_eq!(history(&gateway), [entry(1, "start", "started with another text")]);
    assert_eq!(read(&gateway, "/api/v1/config").json()["last_reload_error"], Value::Null);
}

#[test]
fn a_file_that_cannot_be_written_stays_and_so_do_the_rules() {
    let gateway = start();
    // In the place of the new file: not even root can make one of this name.
    let taken = gateway.directory.path().join(".gateway.toml.new");
    fs::create_dir(&taken).unwrap();
    let refused = change(&gateway, "PUT", "/api/v1/limits/l", &json!({ "rate": "2/s" }));
    assert_eq!(refused.status, 507, "{}", refused.text());
    assert!(refused.json()["detail"].as_str().unwrap().contains("cannot be written"), "{}", refused.text());
    assert_eq!(text(&gateway), whole(RULES));
    assert_eq!(read(&gateway, "/api/v1/config").json()["generation"], 1);
    fs::remove_dir(&taken).unwrap();
    assert_eq!(change(&gateway, "PUT", "/api/v1/limits/l", &json!({ "rate": "2/s" })).status, 200);
}

#[test]
fn read_only_rules_are_shown_and_not_changed() {
    let all = whole(RULES).replace("[admin]\n", "[admin]\nrules = \"read-only\"\n");
    let gateway = Gateway::start_whole(&all);
    let refused = change(&gateway, "PUT", "/api/v1/limits/l", &json!({ "rate": "2/s" }));
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.json()["detail"].as_str().unwrap().contains("rules = \"read-only\""), "{}", refused.text());
    assert_eq!(text(&gateway), all);
    assert_eq!(read(&gateway, "/api/v1/limits/l").json()["rate"], "1000000/s");
    assert_eq!(read(&gateway, "/api/v1/config").json()["rules"], "read-only");
    assert!(!gateway.directory.path().join("gateway.toml.history").exists());
}

#[test]
fn texts_of_before_outlive_the_process_and_come_back() {
    let gateway = start();
    let first = text(&gateway);
    let put = |gateway: &Gateway, rate: &str| {
        let limit = json!({ "key": "global", "rate": rate });
        change(gateway, "PUT", "/api/v1/limits/l", &limit).status
    };
    assert_eq!((put(&gateway, "2/1h"), put(&gateway, "3/1h")), (200, 200));
    save(&gateway, &(first.replace("1000000/s", "4/1h") + "# mine\n"));
    assert!(eventually(|| history(&gateway).len() == 4));
    let directory = gateway.directory.path().join("gateway.toml.history");
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    let running = text(&gateway);
    let gateway = Gateway::start_in(gateway.kill(), &running);
    let expected = [
        entry(4, "file", "limit l changed"),
        entry(3, "ci", "limit l replaced"),
        entry(2, "ci", "limit l replaced"),
        entry(1, "start", "started with another text"),
    ];
    assert_eq!(history(&gateway), expected);
    assert_eq!(read(&gateway, "/api/v1/config").json()["generation"], 4, "the same text is the same generation");
    let shown = read(&gateway, "/api/v1/config/history/1").json();
    assert_eq!(shown["text"], first);
    let rolled = change(&gateway, "POST", "/api/v1/config/rollback", &json!({ "generation": 1 }));
    assert_eq!(rolled.status, 200, "{}", rolled.text());
    assert_eq!((text(&gateway), &rolled.json()["etag"]), (first.clone(), &shown["etag"]));
    assert_eq!(history(&gateway)[0], entry(5, "ci", "rolled back to generation 1"));
    let plan = &rolled.json()["plan"]["text"];
    assert!(plan.as_str().unwrap().contains("rate 4/h -> 1000000/s"), "{plan}");
    let again = change(&gateway, "POST", "/api/v1/config/rollback", &json!({ "generation": 1 }));
    assert_eq!((again.status, &again.json()["done"], history(&gateway).len()), (200, &Value::Null, 5));
}

#[test]
fn rules_that_are_right_and_cannot_run_are_taken_back() {
    let address = unused_address();
    let on = |address: &str| whole(&format!("[[listener]]\naddress = \"{address}\"\n{RULES}"));
    let gateway = Gateway::start_whole(&on(&address.to_string()));
    let other = on(&unused_address().to_string());
    save(&gateway, &other);
    assert!(eventually(|| history(&gateway).len() == 2));
    let mut taken = None;
    assert!(eventually(|| {
        taken = TcpListener::bind(address).ok();
        taken.is_some()
    }));
    let refused = change(&gateway, "POST", "/api/v1/config/rollback", &json!({ "generation": 1 }));
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.json()["detail"].as_str().unwrap().contains("so the file is as it was"), "{}", refused.text());
    assert_eq!(text(&gateway), other);
    let shown = read(&gateway, "/api/v1/config").json();
    assert_eq!((&shown["generation"], &shown["last_reload_error"]), (&json!(2), &Value::Null));
    assert_eq!(get(gateway.address(), "/").status, 200);
    assert_eq!(history(&gateway).len(), 2);
}

#[test]
fn a_text_is_judged_and_compared_without_being_taken_over() {
    let unwatched = whole(&format!("[server]\nwatch = false\n{RULES}"));
    let gateway = Gateway::start_whole(&unwatched);
    let other = unwatched.replace("1000000/s", "5/s");
    let post = |path: &str, body: &str| ask(&gateway, "POST", path, &[("Content-Type", "application/toml")], body);
    assert_eq!(post("/api/v1/config/validate", &other).json(), json!({ "ok": true, "findings": [] }));
    let wrong = post("/api/v1/config/validate", &other.replace("rate", "raet")).json();
    assert_eq!((&wrong["ok"], &wrong["findings"][0]["line"]), (&json!(false), &json!(16)), "{wrong}");
    let diff = post("/api/v1/config/diff", &other).json();
    assert_eq!(diff["changes"][0]["changes"], json!([{ "what": "rate", "how": "1000000/s -> 5/s" }]), "{diff}");
    assert_eq!(post("/api/v1/config/diff", "x").status, 422);
    assert_eq!(post("/api/v1/config/diff", "").json()["text"], "nothing changed");
    save(&gateway, &other);
    for diff in [post("/api/v1/config/diff", ""), read(&gateway, "/api/v1/config/diff")] {
        assert_eq!(diff.json()["changes"][0]["name"], "l");
    }
    assert_eq!(read(&gateway, "/api/v1/config").json()["generation"], 1);
    assert_eq!(read(&gateway, "/api/v1/config/text").text(), other);
}

#[test]
fn the_watcher_does_nothing_a_second_time() {
    let gateway = start();
    assert_eq!(change(&gateway, "PUT", "/api/v1/limits/n", &json!({ "rate": "2/s" })).status, 201);
    // What the watcher makes of the write before comes before what it makes of this one.
    save(&gateway, &(whole(RULES) + "# by an editor\n"));
    assert!(eventually(|| history(&gateway).len() == 3));
    let log = gateway.log();
    assert_eq!(log.matches("configuration reloaded").count(), 2, "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn a_key_gets_another_plan_at_once_and_the_file_keeps_its_comments() {
    let directory = tempfile::tempdir().unwrap();
    let plans = "default = \"free\"\n[plan.free]\n[plan.pro]\nl = { rate = \"5/1h\" }\n[keys]\n# gold\nal = \"free\"   # since May\n";
    let file = directory.path().join("plans.toml");
    fs::write(&file, plans).unwrap();
    let rules =
        RULES.replace("key = \"global\"\nrate = \"1000000/s\"", "key = \"header:x-api-key\"\nrate = \"2/1h\"").replace(
            "limits = [\"l\"]\n",
            "limits = [\"l\"]\nplans = { file = \"plans.toml\", key = \"header:x-api-key\" }\n",
        );
    let gateway = Gateway::start_in(directory, &whole(&rules));
    let admitted =
        |key: &str| (0..10).filter(|_| get_with(gateway.address(), "/", &[("x-api-key", key)]).status == 200).count();
    let path = |key: &str| format!("/api/v1/routes/all/plans/{key}");
    let tag = || read(&gateway, &path("al")).header("etag").unwrap().to_owned();
    let first = tag();
    let put = |key: &str, tag: &str, plan: &str| {
        ask(&gateway, "PUT", &path(key), &[("If-Match", tag)], &json!({ "plan": plan }).to_string())
    };
    let replaced = put("al", &first, "pro");
    assert_eq!((replaced.status, replaced.json()["done"].as_str()), (200, Some("replaced")), "{}", replaced.text());
    assert_eq!(fs::read_to_string(&file).unwrap(), plans.replace("al = \"free\"", "al = \"pro\""));
    assert_eq!((admitted("al"), admitted("bo")), (5, 2));
    assert_eq!(replaced.json()["etag"], tag());
    assert_eq!(put("bo", &first, "pro").status, 412);
    assert_eq!(put("c%20d", &tag(), "pro").status, 201);
    assert_eq!(read(&gateway, &path("c%20d")).json()["plan"], "pro");
    let renew = |day: Option<u8>| {
        let body = json!({ "plan": "pro", "renews": day }).to_string();
        ask(&gateway, "PUT", &path("al"), &[("If-Match", &tag())], &body)
    };
    assert_eq!([Some(0), Some(32)].map(|day| renew(day).status), [422; 2]);
    assert_eq!(renew(None).status, 400, "null, which is read of a key without a day, is none that can be set");
    let set = renew(Some(17));
    assert_eq!((set.status, set.json()["done"].as_str()), (200, Some("replaced")), "{}", set.text());
    assert_eq!(renew(Some(17)).json()["done"], json!(null), "it was so before");
    assert_eq!(read(&gateway, &path("al")).json()["renews"], 17);
    assert!(fs::read_to_string(&file).unwrap().contains("al = { plan = \"pro\", renews = 17 }   # since May\n"));
    assert_eq!(put("al", &tag(), "free").status, 200);
    assert!(gateway.log().contains("plan \\\"pro\\\", renews 17"), "{}", gateway.log());
    let wrong = put("secret", &tag(), "gold");
    assert_eq!(wrong.status, 422);
    assert_eq!(wrong.json()["detail"], "The plans file has no such plan; it has \"free\", \"pro\".");
    assert!(!gateway.log().contains("c d") && !gateway.log().contains("secret"), "{}", gateway.log());
    // A mark or a print would be a key of nobody.
    for key in ["%5Bredacted:0badcafe%5D", "print:0123456789abcdef"] {
        let refused = put(key, &tag(), "pro");
        assert!(refused.status == 422 && refused.text().contains("give the value"), "{key}: {}", refused.text());
        assert_eq!(read(&gateway, &path(key)).status, 422, "{key}");
    }
    let deleted = ask(&gateway, "DELETE", &path("al"), &[("If-Match", &tag())], "");
    assert_eq!(deleted.status, 200, "{}", deleted.text());
    let left = fs::read_to_string(&file).unwrap();
    assert_eq!(left, plans.replace("al = \"free\"   # since May\n", "\"c d\" = \"pro\"\n"));
    assert_eq!(ask(&gateway, "DELETE", &path("al"), &[("If-Match", &tag())], "").status, 404);
    let names: Vec<_> =
        fs::read_dir(gateway.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with('.')), "{names:?}");
}

/// Rules that nobody watches, with a limit and plans by the customer, and their plans file.
fn start_with_plans() -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("plans.toml"), PLANS).unwrap();
    Gateway::start_in(directory, &with_plans())
}

const PLANS: &str = "default = \"free\"\n[plan.free]\n[plan.pro]\n[keys]\nal = \"free\"\n";

fn with_plans() -> String {
    let rules = RULES.replace("\"global\"", "\"header:x-customer\"");
    let plans = "limits = [\"l\"]\nplans = { file = \"plans.toml\", key = \"header:x-customer\" }\n";
    whole(&format!("[server]\nwatch = false\n{}", rules.replace("limits = [\"l\"]\n", plans)))
}

const AL: &str = "/api/v1/routes/all/plans/al";

fn put_plan(gateway: &Gateway, fields: &[(&str, &str)], plan: &str) -> Answer {
    ask(gateway, "PUT", AL, fields, &json!({ "plan": plan }).to_string())
}

fn detail(answer: &Answer) -> String {
    answer.json()["detail"].as_str().unwrap_or_default().to_owned()
}

fn hidden_files(gateway: &Gateway) -> Vec<String> {
    let entries = fs::read_dir(gateway.directory.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
fn a_rollback_destroys_no_text_that_nobody_has_taken_over() {
    let first = whole(&format!("[server]\nwatch = false\n{RULES}"));
    let gateway = Gateway::start_whole(&first);
    let limit = json!({ "key": "global", "rate": "2/1h" });
    assert_eq!(change(&gateway, "PUT", "/api/v1/limits/l", &limit).status, 200);
    let second = text(&gateway);
    let roll_back = || change(&gateway, "POST", "/api/v1/config/rollback", &json!({ "generation": 1 }));
    let edited = format!("{second}# an hour of work\n");
    save(&gateway, &edited);
    let refused = roll_back();
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(detail(&refused).contains("nobody has taken over") && detail(&refused).contains("If-Match: *"));
    assert_eq!((text(&gateway), history(&gateway).len()), (edited.clone(), 2));
    // A text that is in the history is not lost, and neither is one that runs.
    save(&gateway, &second);
    assert_eq!((roll_back().status, text(&gateway)), (200, first.clone()));
    save(&gateway, &edited);
    assert_eq!(ask(&gateway, "POST", "/reload", &[], "").status, 200);
    assert_eq!((roll_back().status, text(&gateway)), (200, first.clone()));
    save(&gateway, &format!("{edited}# more\n"));
    let forced = ask(&gateway, "POST", "/api/v1/config/rollback", &[("If-Match", "*")], r#"{"generation":1}"#);
    assert_eq!((forced.status, text(&gateway)), (200, first));
}

#[test]
fn a_change_whose_text_is_in_no_history_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("gateway.toml.history");
    fs::write(&own, "").unwrap();
    let gateway = Gateway::start_in(directory, &whole(RULES));
    let warnings = |rate: &str| {
        let changed = change(&gateway, "PUT", "/api/v1/limits/l", &json!({ "key": "global", "rate": rate }));
        assert_eq!(changed.status, 200, "{}", changed.text());
        changed.json()["warnings"].clone()
    };
    for rate in ["2/1h", "3/1h"] {
        let warnings = warnings(rate);
        assert_eq!((warnings.as_array().unwrap().len(), &warnings[0]["severity"]), (1, &json!("warning")));
        let message = warnings[0]["message"].as_str().unwrap();
        assert!(message.starts_with("the text is in no history") && message.contains("is no directory"), "{message}");
        assert!(warnings[0]["help"].as_str().unwrap().contains("own the directory"), "{warnings}");
    }
    let told = || gateway.log().lines().filter(|line| line.contains("WARN") && line.contains("is not written")).count();
    assert!(eventually(|| told() == 1), "{}", gateway.log());
    fs::remove_file(&own).unwrap();
    assert_eq!(warnings("4/1h"), json!([]));
    assert_eq!(history(&gateway), [entry(4, "ci", "limit l replaced")]);
    fs::remove_dir_all(&own).unwrap();
    fs::write(&own, "").unwrap();
    assert_eq!(warnings("5/1h").as_array().unwrap().len(), 1);
    assert!(eventually(|| told() == 2), "{}", gateway.log());
}

#[test]
fn a_plans_file_that_is_not_loaded_is_named_and_one_condition_is_asked_before_it_is_read() {
    let gateway = start_with_plans();
    let file = gateway.directory.path().join("plans.toml");
    let tag = || read(&gateway, AL).header("etag").unwrap().to_owned();
    let loaded = tag();
    let edited = format!("{PLANS}bo = \"pro\"\n");
    fs::write(&file, &edited).unwrap();
    assert_eq!(tag(), loaded);
    let refused = put_plan(&gateway, &[("If-Match", &loaded)], "pro");
    assert_eq!((refused.status, refused.header("etag")), (412, None), "{}", refused.text());
    assert!(detail(&refused).contains("is not loaded: POST /reload first"), "{}", refused.text());
    assert_eq!(fs::read_to_string(&file).unwrap(), edited);
    assert_eq!(ask(&gateway, "POST", "/reload", &[], "").status, 200);
    assert_eq!(put_plan(&gateway, &[("If-Match", &tag())], "pro").status, 200);
    assert_eq!(fs::read_to_string(&file).unwrap(), edited.replace("\"free\"\nbo", "\"pro\"\nbo"));
    // Nothing can be read, and yet the condition is judged.
    fs::remove_file(&file).unwrap();
    let now = tag();
    assert_eq!(put_plan(&gateway, &[], "gold").status, 428);
    let stale = put_plan(&gateway, &[("If-Match", &loaded)], "gold");
    assert_eq!((stale.status, stale.header("etag")), (412, Some(now.as_str())), "{}", stale.text());
    assert!(detail(&stale).contains("Read it again"), "{}", stale.text());
    for (text, said) in [
        (None, "Put the file there"),
        (Some("default = \"free\"\n[plan.free]\n"), "Add a line [keys]"),
        (Some("[keys]\nal\n"), "Line 2 of the plans file"),
    ] {
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let refused = put_plan(&gateway, &[("If-Match", "*")], "free");
        assert_eq!(refused.status, 409, "{}", refused.text());
        assert!(detail(&refused).contains(said), "{}", refused.text());
    }
    assert!(hidden_files(&gateway).is_empty(), "{:?}", hidden_files(&gateway));
}

#[test]
fn the_log_says_which_plan_a_key_had_and_has() {
    let gateway = start_with_plans();
    let secret = |is_secret: bool| {
        let text = with_plans().replace("rate =", &format!("key_is_secret = {is_secret}\nrate ="));
        save(&gateway, &text);
        assert_eq!(ask(&gateway, "POST", "/reload", &[], "").status, 200);
    };
    let changes = || {
        let lines: Vec<Value> = gateway.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let own =
            lines.iter().filter(|line| line["what"].as_str().is_some_and(|what| what.ends_with("/plans/{value}")));
        let word = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        own.map(|line| (word(line, "before"), word(line, "after"))).collect::<Vec<_>>()
    };
    let told = |count: usize| {
        assert!(eventually(|| changes().len() == count), "{}", gateway.log());
        changes().pop().unwrap()
    };
    let said = |before: &str, after: &str| (before.to_owned(), after.to_owned());
    let any = [("If-Match", "*")];
    assert_eq!(put_plan(&gateway, &any, "pro").status, 200);
    assert_eq!(told(1), said("al: plan \"free\"", "al: plan \"pro\""));
    secret(true);
    assert_eq!(put_plan(&gateway, &any, "free").status, 200);
    let (before, after) = told(2);
    let mark = before.strip_suffix(": plan \"pro\"").unwrap();
    assert!(mark.len() > 8 && !mark.contains("al"), "{mark}");
    assert_eq!(after, format!("{mark}: plan \"free\""));
    // It was so before: nothing is told.
    assert_eq!(put_plan(&gateway, &any, "free").status, 200);
    assert_eq!(told(3), said("", ""));
    secret(false);
    assert_eq!(ask(&gateway, "DELETE", AL, &any, "").status, 200);
    assert_eq!(told(4), said("al: plan \"free\"", "al: the default plan"));
}

#[test]
fn plans_that_cannot_run_are_taken_back_and_leave_no_file() {
    let gateway = start_with_plans();
    let file = gateway.directory.path().join("plans.toml");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("victim", gateway.directory.path().join(".plans.toml.new")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = format!("[[listener]]\naddress = \"{}\"\n{}", taken.local_addr().unwrap(), with_plans());
    save(&gateway, &other);
    let refused = put_plan(&gateway, &[("If-Match", "*")], "pro");
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(detail(&refused).contains("so the file is as it was"), "{}", refused.text());
    assert_eq!(fs::read_to_string(&file).unwrap(), PLANS);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    save(&gateway, &with_plans());
    assert_eq!(put_plan(&gateway, &[("If-Match", "*")], "pro").status, 200);
    assert_eq!(fs::read_to_string(&file).unwrap(), PLANS.replace("al = \"free\"", "al = \"pro\""));
    assert!(hidden_files(&gateway).is_empty() && !gateway.directory.path().join("victim").exists());
}

#[test]
fn a_missing_file_is_no_fault_of_the_disk_and_a_rollback_writes_it_anew() {
    let gateway = Gateway::start_whole(&whole(&format!("[server]\nwatch = false\n{RULES}")));
    let all = text(&gateway);
    fs::remove_file(gateway.file()).unwrap();
    let any = [("If-Match", "*")];
    for refused in [
        read(&gateway, "/api/v1/config/text"),
        read(&gateway, "/api/v1/config/diff"),
        read(&gateway, "/api/v1/routes"),
        ask(&gateway, "PUT", "/api/v1/limits/l", &any, r#"{"rate":"2/s"}"#),
        ask(&gateway, "POST", "/api/v1/config/rollback", &[("If-Match", "\"0\"")], r#"{"generation":1}"#),
    ] {
        assert_eq!(refused.status, 409, "{}", refused.text());
        assert!(detail(&refused).contains("Put the file"), "{}", refused.text());
    }
    let rolled = ask(&gateway, "POST", "/api/v1/config/rollback", &any, r#"{"generation":1}"#);
    assert_eq!((rolled.status, text(&gateway)), (200, all), "{}", rolled.text());
    assert_eq!(fs::metadata(gateway.file()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(rolled.json()["etag"], etag(&gateway));
}

#[test]
fn answers_are_as_the_document_says() {
    let gateway = start();
    let document = Document(read(&gateway, "/api/openapi.json").json());
    for (path, target) in [
        ("/api/v1/config", "/api/v1/config"),
        ("/api/v1/config/text", "/api/v1/config/text"),
        ("/api/v1/config/diff", "/api/v1/config/diff"),
        ("/api/v1/config/history", "/api/v1/config/history?max=1"),
        ("/api/v1/config/history/{generation}", "/api/v1/config/history/1"),
        ("/api/v1/config/history/{generation}", "/api/v1/config/history/x"),
        ("/api/v1/routes", "/api/v1/routes?max=1"),
        ("/api/v1/bandwidths", "/api/v1/bandwidths"),
        ("/api/v1/routes/{name}", "/api/v1/routes/all"),
        ("/api/v1/routes/{name}", "/api/v1/routes/none"),
        ("/api/v1/limits/{name}", "/api/v1/limits/l"),
        ("/api/v1/routes/{route}/plans/{value}", "/api/v1/routes/all/plans/k"),
    ] {
        document.check("GET", path, &read(&gateway, target));
    }
    for body in ["", "x = ", RULES, &whole(RULES)] {
        for path in ["/api/v1/config/validate", "/api/v1/config/diff"] {
            document.check("POST", path, &ask(&gateway, "POST", path, &[], body));
        }
    }
    let (kind, name) = ("/api/v1/limits", "/api/v1/limits/{name}");
    for (method, path, target, body) in [
        ("POST", kind, "/api/v1/limits", r#"{"name":"new","rate":"1/s"}"#),
        ("POST", kind, "/api/v1/limits", r#"{"name":"new","rate":"1/s"}"#),
        ("PUT", name, "/api/v1/limits/new", r#"{"rate":"2/s"}"#),
        ("PUT", name, "/api/v1/limits/new", r#"{"rate":"2/s"}"#),
        ("PUT", name, "/api/v1/limits/new", r#"{"rate":2}"#),
        ("DELETE", name, "/api/v1/limits/new", ""),
        ("DELETE", name, "/api/v1/limits/l", ""),
        ("POST", "/api/v1/config/rollback", "/api/v1/config/rollback", r#"{"generation":2}"#),
        ("POST", "/api/v1/config/rollback", "/api/v1/config/rollback", "{}"),
    ] {
        document.check(method, path, &ask(&gateway, method, target, &[("If-Match", "*")], body));
        document.check(method, path, &ask(&gateway, method, target, &[], body));
    }
}

#[test]
fn a_rollback_never_opens_admin_unless_it_is_forced() {
    let open = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[server]\nwatch = false\n[admin]\naddress = \"127.0.0.1:0\"\n{RULES}"
    );
    let gateway = Gateway::start_whole(&open);
    let closed = whole(&format!("[server]\nwatch = false\n{RULES}"));
    save(&gateway, &closed);
    assert_eq!(gateway.ask_reload().status, 200);
    let is_open = || gateway.ask_admin("/api/v1/config").status == 200;
    assert!(!is_open());
    for if_match in [etag(&gateway), "*".to_owned()] {
        let refused =
            ask(&gateway, "POST", "/api/v1/config/rollback", &[("If-Match", &if_match)], r#"{"generation":1}"#);
        assert_eq!(refused.status, 409, "{}", refused.text());
        for says in ["+ without a token: every process", "- token ci (rules), sha256 ", "\"force\": true", "--force"] {
            assert!(detail(&refused).contains(says), "{}", refused.text());
        }
        assert!(!is_open());
        assert_eq!((text(&gateway), history(&gateway).len()), (closed.clone(), 2));
    }
    let forced = change(&gateway, "POST", "/api/v1/config/rollback", &json!({ "generation": 1, "force": true }));
    assert_eq!(forced.status, 200, "{}", forced.text());
    let said = forced.json()["warnings"][0]["message"].as_str().unwrap().to_owned();
    assert!(said.contains("has changed who may administer the gateway: + ") && said.contains("- token ci"), "{said}");
    assert!(is_open());
}

#[test]
fn no_change_by_the_api_takes_over_other_callers_that_an_editor_has_written() {
    let with_server = |rules: &str| whole(&format!("[server]\nwatch = false\n{rules}"));
    let plans = "plans = { file = \"plans.toml\", key = \"header:x-key\" }\n";
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("plans.toml"), "default = \"free\"\n[plan.free]\n[plan.gold]\n[keys]\n").unwrap();
    let first = with_server(&format!("{RULES}{plans}"));
    let gateway = Gateway::start_in(directory, &first);
    let renamed = first.replace("name = \"ci\"", "name = \"cd\"");
    save(&gateway, &renamed);
    let limit = r#"{"key":"global","rate":"2/h"}"#;
    let any = [("If-Match", "*")];
    for (method, path, body) in [
        ("PUT", "/api/v1/limits/l", limit),
        ("POST", "/api/v1/limits", r#"{"name":"m","rate":"2/h"}"#),
        ("PUT", "/api/v1/routes/all/plans/k", r#"{"plan":"gold"}"#),
    ] {
        let refused = ask(&gateway, method, path, &any, body);
        assert_eq!(refused.status, 409, "{path}: {}", refused.text());
        assert!(detail(&refused).contains("+ token cd (rules)") && detail(&refused).contains("POST /reload first"));
        assert_eq!((text(&gateway), history(&gateway).len()), (renamed.clone(), 1));
    }
    assert_eq!(ask(&gateway, "POST", "/reload", &[], "").status, 200);
    assert_eq!(ask(&gateway, "PUT", "/api/v1/limits/l", &any, limit).status, 200);
    assert_eq!(ask(&gateway, "PUT", "/api/v1/routes/all/plans/k", &any, r#"{"plan":"gold"}"#).status, 201);
}

#[test]
fn a_caller_who_may_look_compares_no_text_of_its_own() {
    let hash = |token: &str| Sha256::digest(token).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let token =
        |name: &str, role: &str| format!("{{ name = \"{name}\", sha256 = \"{}\", role = \"{role}\" }}", hash(name));
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("plans.toml"), PLANS).unwrap();
    let plans = "plans = { file = \"plans.toml\", key = \"header:x-key\" }\n";
    let first = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\ntokens = [{}, {}]\n{RULES}{plans}",
        token("looks", "read"),
        token("writes", "rules")
    );
    let gateway = Gateway::start_in(directory, &first);
    let diff = |who: &str, text: &str| {
        let bearer = format!("Bearer {who}");
        let fields = [("Host", "localhost"), ("Authorization", &*bearer), ("Content-Type", "application/toml")];
        Client::connect(gateway.admin).request("POST", "/api/v1/config/diff", &fields, text.as_bytes())
    };
    // A text of its own would tell it, by what differs, of secrets in the running one.
    for text in ["", &first, &first.replace("1000000/s", "7/s")] {
        let refused = diff("looks", text);
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(detail(&refused).contains("rules"), "{}", refused.text());
        assert_eq!(diff("writes", text).status, 200);
    }
}
