use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{Client, Gateway, dead_letters, eventually, get_with, run};

fn logging(more: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"per-key\"\nkey = \"header:x-api-key\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"api\"\nupstream = \"app\"\nlimits = [\"per-key\"]\n\
         [dead_letter]\ndirectory = \"dead-letters\"\n{more}"
    )
}

#[test]
fn a_refusal_leaves_a_record_that_explains_it() {
    let gateway = Gateway::start(&logging(""));
    let headers =
        [("X-Api-Key", "planted-secret-1"), ("Authorization", "Bearer planted-secret-2"), ("X-Plain", "seen")];
    assert_eq!(get_with(gateway.address(), "/a?token=planted-secret-3&x=1", &headers).status, 200);
    assert_eq!(get_with(gateway.address(), "/a?token=planted-secret-3&x=1", &headers).status, 429);
    assert!(eventually(|| gateway.dead_letters().len() == 1));
    let record = gateway.dead_letters().remove(0);
    let names: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(names.contains(&"crc") && names.contains(&"id") && names.contains(&"ts"), "{names:?}");
    assert_eq!(record["v"], 1);
    assert_eq!(record["reason"], "rate-limited");
    assert_eq!(record["limit"], "per-key");
    assert_eq!(record["route"], "api");
    assert_eq!(record["client_ip"], "127.0.0.1");
    assert_eq!((&record["method"], &record["path"]), (&"GET".into(), &"/a".into()));
    assert_eq!(record["status"], 429);
    assert_eq!(record["quota"]["limit"], 1);
    assert_eq!(record["quota"]["window_ms"], 3_600_000);
    assert!(record["quota"]["retry_after_ms"].as_u64().unwrap() > 0);
    let text = record.to_string();
    assert!(text.contains("seen"));
    for segment in fs::read_dir(gateway.directory.path().join("dead-letters")).unwrap() {
        let bytes = fs::read(segment.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("planted-secret"), "{text}");
    }
}

#[test]
fn what_was_written_survives_kill_9_and_the_next_start_goes_on() {
    let gateway = Gateway::start(&logging("max_key_rate = 1000\n"));
    let key = [("X-Api-Key", "k")];
    let mut client = Client::connect(gateway.address());
    for _ in 0..51 {
        client.request("GET", "/", &key, b"");
    }
    assert!(eventually(|| gateway.dead_letters().len() == 50));
    let directory = gateway.kill();
    let letters = directory.path().join("dead-letters");
    assert_eq!(dead_letters(&letters).len(), 50);
    // A crash in mid-write leaves half a line.
    let mut segments: Vec<_> = fs::read_dir(&letters).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    segments.sort();
    let last = segments.pop().unwrap();
    let whole = fs::read(&last).unwrap();
    fs::write(&last, &whole[..whole.len() - 20]).unwrap();
    let configuration = fs::read_to_string(directory.path().join("gateway.toml")).unwrap();
    let gateway = Gateway::start_in(directory, &configuration);
    assert_eq!(gateway.dead_letters().len(), 49, "the torn record is set aside");
    assert_eq!(get_with(gateway.address(), "/", &key).status, 200);
    assert_eq!(get_with(gateway.address(), "/", &key).status, 429);
    assert!(eventually(|| gateway.dead_letters().len() == 50));
    let torn = fs::read_dir(gateway.directory.path().join("dead-letters")).unwrap();
    assert!(torn.into_iter().any(|entry| entry.unwrap().path().to_string_lossy().ends_with(".torn")));
}

#[test]
fn a_flood_becomes_aggregates_and_nothing_is_lost_from_the_totals() {
    let mut gateway = Gateway::start(&logging("max_key_rate = 5\n"));
    let key = [("X-Api-Key", "k")];
    let mut client = Client::connect(gateway.address());
    for _ in 0..1001 {
        client.request("GET", "/", &key, b"");
    }
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
    let letters = gateway.dead_letters();
    let (aggregates, records): (Vec<_>, Vec<_>) = letters.iter().partition(|record| record["aggregate"] == true);
    let counted: u64 = aggregates.iter().map(|record| record["count"].as_u64().unwrap()).sum();
    assert_eq!(records.len() as u64 + counted, 1000);
    assert!(records.len() <= 100, "{} full records", records.len());
}

#[test]
fn the_command_reads_the_log() {
    let gateway = Gateway::start(&logging(""));
    for key in ["a", "a", "b", "b"] {
        get_with(gateway.address(), "/x", &[("X-Api-Key", key)]);
    }
    assert!(eventually(|| gateway.dead_letters().len() == 2));
    let directory = gateway.directory.path();
    let (status, list, errors) = run(&["dead-letters", "ls"], directory);
    assert!(status.success(), "{errors}");
    assert_eq!(list.lines().filter(|line| line.contains("rate-limited")).count(), 2, "{list}");
    let (_, json, _) = run(&["dead-letters", "ls", "--json"], directory);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    let (status, shown, errors) = run(&["dead-letters", "show", first["id"].as_str().unwrap()], directory);
    assert!(status.success(), "{errors}");
    assert!(shown.contains("per-key") && shown.contains("/x"), "{shown}");
    let (status, stats, _) = run(&["dead-letters", "stats"], directory);
    assert!(status.success());
    assert!(stats.contains("per-key"), "{stats}");
    let (status, _, _) = run(&["dead-letters", "show", "no-such-id"], directory);
    assert!(!status.success());
}

const PLANTED: &str = "pl4nted";

/// Secrets in every place that a request or the file has for them, and none of them in anything that is written or shown.
#[test]
fn planted_secrets_come_out_of_no_sink() {
    for access in ["json", "combined"] {
        let more = "[[limit]]\nname = \"tenant\"\nkey = \"header:x-tenant\"\nkey_is_secret = true\nrate = \"1/1h\"\n\
             [[route]]\nname = \"tenant\"\npath = \"/tenant\"\nupstream = \"app\"\nlimits = [\"tenant\"]\n";
        let configuration = format!("{}{more}[log]\naccess = \"{access}\"\n", logging(""));
        let gateway = Gateway::start(&configuration);
        let names = [
            "X-Functions-Key",
            "Ocp-Apim-Subscription-Key",
            "X-Key",
            "DPoP",
            "CF-Access-Client-Id",
            "X-CSRF",
            "X-Api-Key",
            "X-Tenant-Key",
            "Authorization",
            "Cookie",
            "X-Tenant",
            "Referer",
            "User-Agent",
        ];
        let value = |name: &str| match name {
            "Referer" => format!("https://u:{PLANTED}@h/;jsessionid={PLANTED}?x-tenant={PLANTED}"),
            "User-Agent" => format!("Bearer {PLANTED}"),
            _ => PLANTED.to_owned(),
        };
        let headers: Vec<(&str, String)> = names.iter().map(|name| (*name, value(name))).collect();
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let target = format!(
            "/token={PLANTED}/a;jsessionid={PLANTED}?subscription-key={PLANTED}&sub_key={PLANTED}&x-tenant={PLANTED}"
        );
        for target in [target.clone(), format!("/tenant{target}")] {
            assert_eq!(get_with(gateway.address(), &target, &headers).status, 200);
            for _ in 0..2 {
                assert_eq!(get_with(gateway.address(), &target, &headers).status, 429);
            }
        }
        assert!(eventually(|| gateway.dead_letters().len() == 4));
        let logged = || fs::read_to_string(gateway.directory.path().join("stdout.log")).unwrap_or_default();
        assert!(eventually(|| logged().matches("&sub_key=").count() == 6), "{}", logged());
        let directory = gateway.directory.path();
        let id = gateway.dead_letters()[0]["id"].as_str().unwrap().to_owned();
        let mut shown = Vec::new();
        for entries in [
            format!("\"key:{PLANTED}\", \"{PLANTED}\", 7"),
            format!("key:{PLANTED}"),
            PLANTED.to_owned(),
            format!("\n\"QUJD=\",\n  \"{PLANTED}\", 7"),
            format!("\nQUJD=,\n  {PLANTED}"),
        ] {
            let answer = gateway.reload(&configuration.replace("rate = ", &format!("exempt = [{entries}]\nrate = ")));
            assert_eq!(answer.status, 422);
            let (_, out, errors) = run(&["check"], directory);
            shown.extend([answer.text(), out, errors]);
            shown.extend(["/api/config", "/metrics"].map(|page| gateway.ask_admin(page).text()));
        }
        shown.push(gateway.log());
        for arguments in [
            &["dead-letters", "-d", "dead-letters", "ls"][..],
            &["dead-letters", "-d", "dead-letters", "show", &id],
            &["dead-letters", "-d", "dead-letters", "stats"],
            &["dead-letters", "-d", "dead-letters", "ls", "--json"],
        ] {
            let (_, out, errors) = run(arguments, directory);
            assert!(!out.is_empty() || !errors.is_empty(), "{arguments:?}");
            shown.extend([out, errors]);
        }
        shown.push(fs::read_to_string(directory.join("stdout.log")).unwrap());
        for segment in fs::read_dir(directory.join("dead-letters")).unwrap() {
            shown.push(String::from_utf8_lossy(&fs::read(segment.unwrap().path()).unwrap()).into_owned());
        }
        for text in shown {
            assert!(!text.contains(PLANTED), "{text}");
        }
    }
}

#[test]
fn a_key_is_found_by_what_the_client_sent_and_marks_last_over_restarts() {
    let gateway = Gateway::start(&logging(""));
    let key = [("X-Api-Key", "sk-1")];
    for _ in 0..3 {
        get_with(gateway.address(), "/", &key);
    }
    assert!(eventually(|| gateway.dead_letters().len() == 2));
    let directory = gateway.kill();
    let secret = directory.path().join("dead-letters.secret");
    assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    let configuration = fs::read_to_string(directory.path().join("gateway.toml")).unwrap();
    let gateway = Gateway::start_in(directory, &configuration);
    for _ in 0..3 {
        get_with(gateway.address(), "/", &key);
    }
    assert!(eventually(|| gateway.dead_letters().len() == 4));
    let marks: Vec<_> = gateway.dead_letters().iter().map(|record| record["key"].to_string()).collect();
    assert!(marks.iter().all(|mark| mark.contains("[redacted:") && *mark == marks[0]), "{marks:?}");
    let directory = gateway.directory.path();
    for arguments in [
        &["dead-letters", "ls", "--key", "sk-1"][..],
        &["dead-letters", "-d", "dead-letters", "ls", "--key", "header:x-api-key=sk-1"],
    ] {
        let (status, list, errors) = run(arguments, directory);
        assert!(status.success() && errors.is_empty(), "{errors}");
        assert_eq!(list.lines().count(), 4, "{list}");
    }
    let (_, list, _) = run(&["dead-letters", "ls", "--key", "sk-2"], directory);
    assert_eq!(list, "");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let answer = gateway.reload(&logging("max_key_rate = 9\n"));
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(answer.text().contains("chmod 600"), "{}", answer.text());
}

#[test]
fn in_a_flood_the_noisy_key_comes_first_and_by_its_real_number() {
    let gateway = Gateway::start(&logging("max_key_rate = 2\n"));
    let mut client = Client::connect(gateway.address());
    for number in 0..400 {
        let key = if number % 40 == 0 { "quiet" } else { "noisy" };
        client.request("GET", "/", &[("X-Api-Key", key)], b"");
    }
    let counted = || -> u64 { gateway.dead_letters().iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum() };
    assert!(eventually(|| counted() == 398), "{}", counted());
    let directory = gateway.directory.path();
    let (status, stats, _) = run(&["dead-letters", "stats", "--json"], directory);
    assert!(status.success());
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let counts: Vec<_> = stats["keys"].as_array().unwrap().iter().map(|key| key["count"].clone()).collect();
    assert_eq!(counts, [389, 9], "{stats}");
    let aggregate = gateway.dead_letters().into_iter().find(|line| line["aggregate"] == true).unwrap();
    assert!(aggregate["top"][0]["key"][0][1].as_str().unwrap().starts_with("[redacted:"), "{aggregate}");
    let (_, list, _) = run(&["dead-letters", "ls"], directory);
    assert!(list.contains(" by header:x-api-key=[redacted:"), "{list}");
    assert!(!gateway.log().contains("noisy") && !list.contains("noisy") && !stats.to_string().contains("noisy"));
}

/// The command does not know which keys the file calls secret: it finds them by their marks.
#[test]
fn a_key_that_the_file_calls_secret_is_found_by_what_the_client_sent() {
    let secret = logging("").replace("key = \"header:x-api-key\"", "key = \"header:x-tenant\"\nkey_is_secret = true");
    let gateway = Gateway::start(&secret);
    for tenant in ["acme", "acme", "acme", "other", "other"] {
        get_with(gateway.address(), "/", &[("X-Tenant", tenant)]);
    }
    assert!(eventually(|| gateway.dead_letters().len() == 3));
    let letters = gateway.dead_letters();
    assert!(letters.iter().all(|record| record["key"].to_string().contains("[redacted:")), "{letters:?}");
    for (key, found) in
        [("acme", 2), ("header:x-tenant=acme", 2), ("other", 1), ("header:x-api-key=acme", 0), ("acm", 0)]
    {
        let (status, list, errors) = run(&["dead-letters", "ls", "--key", key], gateway.directory.path());
        assert!(status.success() && errors.is_empty(), "{errors}");
        assert_eq!(list.lines().count(), found, "{key}: {list}");
    }
}

#[test]
fn the_thread_that_writes_goes_behind_the_workers() {
    let gateway = Gateway::start(&logging(""));
    let own = gateway.niceness("worker-0");
    assert!(eventually(|| gateway.niceness("dead-letters") == own.max(5)), "{own}");
}

#[test]
fn a_secret_that_the_group_may_write_is_a_warning_and_one_of_everybody_an_error() {
    let gateway = Gateway::start(&logging(""));
    let secret = gateway.directory.path().join("dead-letters.secret");
    let reloaded = |mode, rate| {
        fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
        gateway.reload(&logging(&format!("max_key_rate = {rate}\n"))).status
    };
    assert_eq!((reloaded(0o600, 8), gateway.log().contains("may write it")), (200, false));
    assert_eq!(reloaded(0o660, 7), 200);
    // The log has a thread of its own, which may be later than the answer.
    assert!(eventually(|| gateway.log().contains("may write it")));
    assert_eq!((reloaded(0o664, 6), reloaded(0o602, 5)), (422, 422));
}

/// As on a file system that is read-only but for the log's directory. For root none is: the name of the directory leaves no
/// room for the file that the secret is written to at first.
#[test]
fn where_no_secret_can_be_made_the_marks_last_as_long_as_the_process() {
    let name = "d".repeat(240);
    let configuration = |more: &str| logging(more).replace("dead-letters", &name);
    let marks = |gateway: &Gateway, count: usize| {
        let directory = gateway.directory.path().join(&name);
        for _ in 0..2 {
            get_with(gateway.address(), "/", &[("X-Api-Key", PLANTED)]);
        }
        assert!(eventually(|| dead_letters(&directory).len() == count));
        dead_letters(&directory).iter().map(|record| record["key"].to_string()).collect::<Vec<_>>()
    };
    let gateway = Gateway::start(&configuration(""));
    assert!(eventually(|| gateway.log().contains("cannot make the redaction secret")), "{}", gateway.log());
    let before = marks(&gateway, 1);
    assert_eq!(gateway.reload(&configuration("max_key_rate = 9\n")).status, 200);
    let reloaded = marks(&gateway, 3);
    assert!(reloaded.iter().all(|mark| mark.contains("[redacted:") && *mark == before[0]), "{reloaded:?}");
    let directory = gateway.kill();
    let kept = fs::read_to_string(directory.path().join("gateway.toml")).unwrap();
    let gateway = Gateway::start_in(directory, &kept);
    let restarted = marks(&gateway, 4);
    assert!(restarted[3].contains("[redacted:") && restarted[3] != before[0], "{restarted:?}");
    assert!(!gateway.directory.path().join(format!("{name}.secret")).exists());
}

#[test]
fn a_key_may_be_shown_where_it_is_no_secret() {
    let open = logging("").replace("key = \"header:x-api-key\"", "key = \"header:x-api-key\"\nkey_is_secret = false");
    let gateway = Gateway::start(&open);
    for _ in 0..2 {
        get_with(gateway.address(), "/", &[("X-Api-Key", "shown"), ("X-Auth-Token", PLANTED)]);
    }
    assert!(eventually(|| gateway.dead_letters().len() == 1));
    let record = gateway.dead_letters().remove(0).to_string();
    assert_eq!(record.matches("shown").count(), 2, "in the key and among the headers: {record}");
    assert!(!record.contains(PLANTED), "{record}");
}

#[test]
fn a_full_disk_costs_no_request() {
    let gateway = Gateway::start(&logging(""));
    let directory = gateway.directory.path().join("dead-letters");
    // The directory goes away under the writer; as good as a disk that takes nothing.
    fs::remove_dir_all(&directory).unwrap();
    fs::write(&directory, "in the way").unwrap();
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.request("GET", "/", &[("X-Api-Key", "k")], b"").status, 200);
    for _ in 0..20 {
        assert_eq!(client.request("GET", "/", &[("X-Api-Key", "k")], b"").status, 429);
    }
    assert_eq!(gateway.ask_admin("/healthz").status, 200);
}

#[test]
fn what_is_redacted_is_sealed_for_the_holder_of_the_key() {
    use sluicegate::dead_letter::{Entry, Opener};

    let directory = tempfile::tempdir().unwrap();
    let printed = run(&["dead-letters", "key"], directory.path());
    let digits = printed.1.trim_end();
    assert!(digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{printed:?}");
    assert_ne!(run(&["dead-letters", "key"], directory.path()).1, printed.1);
    let keys = ["07".repeat(32), "08".repeat(32)];
    let file = directory.path().join("seal.key");
    fs::write(&file, format!("{}\n", keys[0])).unwrap();
    let configuration = logging(&format!("seal_key_file = {:?}\n", file.display().to_string()));
    let gateway = Gateway::start(&configuration);
    let headers =
        [("X-Api-Key", "planted-secret-1"), ("Authorization", "Bearer planted-secret-2"), ("X-Plain", "seen")];
    let refuse = |gateway: &Gateway| get_with(gateway.address(), "/a?token=planted-secret-3&x=1", &headers).status;
    assert_eq!([refuse(&gateway), refuse(&gateway)], [200, 429]);
    assert!(eventually(|| gateway.dead_letters().len() == 1));
    fs::write(&file, format!("{}\n", keys[1])).unwrap();
    let plan = gateway.reload(&configuration).text();
    assert!(plan.contains("seal_key_file has other contents"), "{plan}");
    assert_eq!(refuse(&gateway), 429);
    assert!(eventually(|| gateway.dead_letters().len() == 2));
    let segments = fs::read_dir(gateway.directory.path().join("dead-letters")).unwrap();
    let text: String = segments.map(|segment| fs::read_to_string(segment.unwrap().path()).unwrap()).collect();
    assert!(!text.contains("planted-secret"), "{text}");
    for (line, byte) in text.lines().zip([7, 8]) {
        let Some(Entry::Record(record)) = Entry::parse(line.as_bytes()) else { panic!("{line}") };
        let hidden = Opener::new(&[byte; 32]).open(line.as_bytes(), record.sealed.as_ref().unwrap()).unwrap();
        assert_eq!(hidden.query.as_deref(), Some("token=planted-secret-3&x=1"));
        let values: Vec<_> =
            hidden.headers.iter().map(|(place, value)| (&*record.headers[*place].0, &**value)).collect();
        assert_eq!(values, [("x-api-key", "planted-secret-1"), ("authorization", "Bearer planted-secret-2")]);
        assert!(Opener::new(&[9; 32]).open(line.as_bytes(), record.sealed.as_ref().unwrap()).is_err());
    }
}
