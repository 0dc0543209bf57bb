use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, FRAME, Gateway, eventually, get, get_with, unused_address};
use crate::timing::{assert_below, assert_took, best_of_three};

fn rules(rate: &str, body: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"{rate}\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n\
         [[route]]\nname = \"version\"\npath = \"/version\"\nrespond = {{ status = 200, body = \"{body}\" }}\n"
    )
}

fn version(gateway: &Gateway) -> String {
    get(gateway.address(), "/version").text()
}

#[test]
fn counts_survive_a_reload_and_new_numbers_hold_at_once() {
    let gateway = Gateway::start(&rules("3/1h", "1"));
    assert_eq!(get(gateway.address(), "/").status, 200);
    assert_eq!(get(gateway.address(), "/").status, 200);
    let answer = gateway.reload(&rules("4/1h", "2"));
    assert_eq!(answer.status, 200);
    // The watcher may have been quicker than the request: the plan is in the log either way.
    assert!(eventually(|| gateway.log().contains("rate 3/h -> 4/h")), "{}", gateway.log());
    assert_eq!(version(&gateway), "2");
    let statuses: Vec<u16> = (0..4).map(|_| get(gateway.address(), "/").status).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    gateway.wait_metric("sluicegate_config_generation", &[], 2.0);
}

#[test]
fn a_broken_file_changes_nothing_and_says_where_it_is_broken() {
    let gateway = Gateway::start(&rules("3/1h", "1"));
    let answer = gateway.reload("[[route]]\nname = \"all\"\nupstraem = \"app\"\n");
    assert_eq!(answer.status, 422);
    assert!(answer.text().contains("upstraem") && answer.text().contains("upstream"), "{}", answer.text());
    assert!(answer.text().contains("gateway.toml:"), "{}", answer.text());
    assert_eq!(version(&gateway), "1");
    let config = gateway.ask_admin("/api/config").json();
    assert_eq!(config["generation"], 1);
    assert!(config["last_reload_error"].as_str().unwrap().contains("upstraem"));
    assert!(eventually(|| gateway.log().contains("upstraem")));
    assert_eq!(gateway.reload(&rules("3/1h", "3")).status, 200);
    assert_eq!(gateway.ask_admin("/api/config").json()["last_reload_error"], serde_json::Value::Null);
    assert_eq!(version(&gateway), "3");
    gateway.wait_metric("sluicegate_reloads_total", &["result=\"done\""], 1.0);
}

#[test]
fn the_file_is_watched_however_it_is_changed() {
    let gateway = Gateway::start(&rules("3/1h", "1"));
    fs::write(gateway.file(), format!("{FRAME}{}", rules("3/1h", "in place"))).unwrap();
    assert!(eventually(|| version(&gateway) == "in place"));
    gateway.replace(&rules("3/1h", "renamed"));
    assert!(eventually(|| version(&gateway) == "renamed"));
    // As a Kubernetes ConfigMap does it: a link to a file in a directory that is itself swapped.
    let root = gateway.directory.path();
    for (name, body) in [("one", "linked"), ("two", "swapped")] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("gateway.toml"), format!("{FRAME}{}", rules("3/1h", body))).unwrap();
    }
    symlink("one", root.join("data")).unwrap();
    symlink("data/gateway.toml", root.join("link.toml")).unwrap();
    fs::rename(root.join("link.toml"), gateway.file()).unwrap();
    assert!(eventually(|| version(&gateway) == "linked"));
    symlink("two", root.join("data.next")).unwrap();
    fs::rename(root.join("data.next"), root.join("data")).unwrap();
    assert!(eventually(|| version(&gateway) == "swapped"));
    // And a write to the file that the link now leads to.
    fs::write(root.join("two/gateway.toml"), format!("{FRAME}{}", rules("3/1h", "behind"))).unwrap();
    assert!(eventually(|| version(&gateway) == "behind"));
}

#[test]
fn a_page_below_a_link_that_is_swapped_is_seen_to_change() {
    let directory = tempfile::tempdir().unwrap();
    // Not beside the configuration, whose directory is watched anyway.
    let root = directory.path().join("site");
    for release in ["one", "two"] {
        fs::create_dir_all(root.join("releases").join(release)).unwrap();
        fs::write(root.join("releases").join(release).join("page.html"), release).unwrap();
    }
    symlink("releases/one", root.join("current")).unwrap();
    let route = "[[route]]\nname = \"page\"\nrespond = { file = \"site/current/page.html\" }\n";
    let gateway = Gateway::start_in(directory, &format!("{FRAME}{route}"));
    let page = || get(gateway.address(), "/").text();
    assert_eq!(page(), "one");
    // As deployments do it.
    symlink("releases/two", root.join("next")).unwrap();
    fs::rename(root.join("next"), root.join("current")).unwrap();
    assert!(eventually(|| page() == "two"));
    fs::write(root.join("releases/two/page.html"), "two and a half").unwrap();
    assert!(eventually(|| page() == "two and a half"), "where it leads to now is watched");
}

#[test]
fn sighup_reloads() {
    let gateway = Gateway::start(&rules("3/1h", "1"));
    gateway.replace(&rules("3/1h", "2"));
    gateway.signal("HUP");
    assert!(eventually(|| version(&gateway) == "2"));
}

#[test]
fn a_request_in_flight_outlives_the_reload_that_removes_its_route() {
    let gateway = Gateway::start(&rules("3/1h", "1"));
    let mut slow = Client::connect(gateway.address());
    slow.send("GET", "/?delay=1s", &[], b"");
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
    let gone = "[[route]]\nname = \"none\"\nrespond = { status = 410, body = \"gone\" }\n";
    assert_eq!(gateway.reload(gone).status, 200);
    assert_eq!(get(gateway.address(), "/").status, 410);
    assert_eq!(slow.read_answer(false).unwrap().json()["server"], "a");
    assert_eq!(slow.get("/").status, 410, "the same connection sees the new rules");
}

#[test]
fn listeners_come_and_go() {
    let free = unused_address();
    let gateway = Gateway::start(&rules("3/1h", "1"));
    let second = format!("[[listener]]\naddress = \"{free}\"\n");
    assert_eq!(gateway.reload(&format!("{second}{}", rules("3/1h", "2"))).status, 200);
    assert_eq!(get(free, "/version").text(), "2");
    let mut kept = Client::connect(free);
    assert_eq!(kept.get("/version").status, 200);
    assert_eq!(gateway.reload(&rules("3/1h", "3")).status, 200);
    assert_eq!(kept.read_rest().unwrap(), b"", "an idle connection of a removed listener is closed");
    assert!(eventually(|| std::net::TcpStream::connect(free).is_err()));
    assert_eq!(version(&gateway), "3");
}

#[test]
fn a_port_that_is_taken_refuses_the_reload() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let gateway = Gateway::start(&rules("3/1h", "1"));
    let answer = gateway.reload(&format!("[[listener]]\naddress = \"{address}\"\n{}", rules("3/1h", "2")));
    assert_eq!(answer.status, 422);
    assert!(answer.text().contains(&address.to_string()), "{}", answer.text());
    assert_eq!(version(&gateway), "1");
}

#[test]
fn another_key_starts_fresh_and_the_plan_says_so() {
    let gateway = Gateway::start(&rules("1/1h", "1"));
    assert_eq!(get(gateway.address(), "/").status, 200);
    assert_eq!(get(gateway.address(), "/").status, 429);
    assert_eq!(gateway.reload(&rules("1/1h", "2").replace("\"global\"", "\"header:k\"")).status, 200);
    assert!(eventually(|| gateway.log().contains("limit l: reset")), "{}", gateway.log());
    assert_eq!(get_with(gateway.address(), "/", &[("k", "1")]).status, 200);
    gateway.wait_metric("sluicegate_limit_keys", &[], 1.0);
}

#[test]
fn reloads_under_load_fail_nothing_and_lose_no_count() {
    const LIMIT: usize = 3000;
    let long = std::env::var_os("SLUICEGATE_LONG").is_some();
    let lasts = Duration::from_secs(if long { 20 } else { 3 });
    let gateway = Gateway::start(&rules(&format!("{LIMIT}/1h"), "0"));
    let stop = Arc::new(AtomicBool::new(false));
    let (admitted, refused, failed) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let address = gateway.address();
            let stop = Arc::clone(&stop);
            let counts = [Arc::clone(&admitted), Arc::clone(&refused), Arc::clone(&failed)];
            thread::spawn(move || {
                let mut client = Client::connect(address);
                while !stop.load(Ordering::Relaxed) {
                    client.send("GET", "/", &[], b"");
                    let which = match client.read_answer(false) {
                        Ok(answer) if answer.status == 200 => 0,
                        Ok(answer) if answer.status == 429 => 1,
                        _ => 2,
                    };
                    counts[which].fetch_add(1, Ordering::Relaxed);
                    if which == 2 {
                        return;
                    }
                }
            })
        })
        .collect();
    let started = Instant::now();
    let mut reloads = 0;
    while started.elapsed() < lasts {
        reloads += 1;
        // Numbers, slots and unrelated things change; the count must not.
        let slots = if reloads % 2 == 0 { 10 } else { 20 };
        let text = rules(&format!("{LIMIT}/1h"), &reloads.to_string());
        let text = text.replace("key = \"global\"", &format!("key = \"global\"\nslots = {slots}"));
        assert_eq!(gateway.reload(&text).status, 200);
        thread::sleep(Duration::from_millis(if long { 200 } else { 50 }));
    }
    // Slow machines: go on until the limit has been met.
    assert!(eventually(|| refused.load(Ordering::Relaxed) > 100));
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    assert_eq!(admitted.load(Ordering::Relaxed), LIMIT, "after {reloads} reloads");
}

#[test]
fn a_thousand_routes_are_reloaded_without_a_pause() {
    best_of_three(|| {
        let many = |count: usize, body: &str| -> String {
            let routes = (0..count).map(|number| {
            format!("[[limit]]\nname = \"l{number}\"\nrate = \"100/s\"\n[[route]]\nname = \"r{number}\"\npath = \"/r{number}\"\n\
                     limits = [\"l{number}\"]\nrespond = {{ status = 200, body = \"{body}\" }}\n")
        });
            format!("{}{}", routes.collect::<String>(), rules("3/1h", body))
        };
        let gateway = Gateway::start(&many(1000, "1"));
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.get("/r999").text(), "1");
        let reload = {
            let text = many(1000, "2");
            gateway.replace(&text);
            let admin = gateway.admin;
            thread::spawn(move || {
                Client::connect(admin).request("POST", "/reload", &[("Host", "localhost")], b"").status
            })
        };
        let mut longest = Duration::ZERO;
        while !reload.is_finished() {
            let asked = Instant::now();
            assert_eq!(client.get("/version").status, 200);
            longest = longest.max(asked.elapsed());
        }
        assert_eq!(reload.join().unwrap(), 200);
        assert!(eventually(|| client.get("/r999").text() == "2"));
        assert_below(longest, Duration::from_millis(500), "a request that met the reload");
        assert!(gateway.metric("sluicegate_metrics_series_overflow_total", &[]) < 0.5);
    });
}

#[test]
fn a_file_that_cannot_be_read_does_not_make_the_gateway_deaf() {
    let mut gateway = Gateway::start(&rules("3/1h", "1"));
    let fifo = gateway.directory.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::rename(&fifo, gateway.file()).unwrap();
    assert!(eventually(|| gateway.log().contains("not a regular file")));
    assert_eq!(version(&gateway), "1");
    gateway.signal("TERM");
    assert!(gateway.wait_exit().success());
}

#[test]
fn a_listener_cannot_be_widened_in_one_step_and_the_error_says_how() {
    let free = unused_address();
    let with = |address: &str| format!("[[listener]]\naddress = \"{address}\"\n{}", rules("3/1h", "1"));
    let gateway = Gateway::start(&with(&free.to_string()));
    let answer = gateway.reload(&with(&format!("0.0.0.0:{}", free.port())));
    assert_eq!(answer.status, 422);
    assert!(answer.text().contains("this gateway itself listens on"), "{}", answer.text());
    assert_eq!(get(free, "/version").text(), "1");
}

/// `begin` makes the file ready for a first half that is written to it.
fn half_of_a_file_removes_nothing(begin: fn(&Gateway)) {
    let gateway = Gateway::start(&rules("1/1h", "1"));
    assert_eq!(get(gateway.address(), "/").status, 200);
    let whole = format!("{FRAME}{}", rules("1/1h", "2"));
    let half = whole.split("[[limit]]").next().unwrap().to_owned();
    let half = format!("{half}[[route]]\nname = \"all\"\nupstream = \"app\"\n");
    begin(&gateway);
    let started = Instant::now();
    fs::write(gateway.file(), &half).unwrap();
    assert!(eventually(|| gateway.log().contains("its writer may be half done")), "{}", gateway.log());
    let refused = get(gateway.address(), "/").status;
    fs::write(gateway.file(), &whole).unwrap();
    // A writer that takes longer is not waited for.
    assert_took(started, 0..2_500);
    assert_eq!(refused, 429);
    assert!(eventually(|| version(&gateway) == "2"));
    assert!(!gateway.log().contains("removed"), "{}", gateway.log());
    assert_eq!(get(gateway.address(), "/").status, 429);
    // A text that stands is meant.
    fs::write(gateway.file(), &half).unwrap();
    assert!(eventually(|| gateway.log().contains("limit l: removed")));
    assert_eq!(get(gateway.address(), "/").status, 200);
}

#[test]
fn half_of_a_file_that_is_written_in_place_removes_nothing() {
    best_of_three(|| half_of_a_file_removes_nothing(|_| {}));
}

/// As editors do that keep a backup.
#[test]
fn half_of_a_file_that_is_written_where_the_old_one_was_removes_nothing() {
    best_of_three(|| {
        half_of_a_file_removes_nothing(|gateway| {
            fs::rename(gateway.file(), gateway.directory.path().join("gateway.toml~")).unwrap();
        });
    });
}

/// The gateway looks for the file while it is away. The pauses are around the moment of that look: it takes 50 ms until events are
/// quiet, and another 100 ms while what tells of a new file may be on its way.
#[test]
fn half_of_a_file_that_was_away_for_a_moment_removes_nothing() {
    fn away(gateway: &Gateway, pause: u64) {
        fs::rename(gateway.file(), gateway.directory.path().join("gateway.toml~")).unwrap();
        thread::sleep(Duration::from_millis(pause));
    }
    best_of_three(|| half_of_a_file_removes_nothing(|gateway| away(gateway, 70)));
    best_of_three(|| half_of_a_file_removes_nothing(|gateway| away(gateway, 110)));
}

#[test]
fn a_rename_and_a_signal_remove_at_once() {
    best_of_three(a_rename_and_a_signal_are_taken_at_once);
}

fn a_rename_and_a_signal_are_taken_at_once() {
    let gateway = Gateway::start(&rules("1/1h", "1"));
    let least = "[[route]]\nname = \"all\"\nrespond = { status = 204 }\n";
    gateway.replace(least);
    assert!(eventually(|| get(gateway.address(), "/").status == 204));
    assert!(!gateway.log().contains("half done"), "{}", gateway.log());
    gateway.replace(&rules("1/1h", "2"));
    assert!(eventually(|| version(&gateway) == "2"));
    // A link in its place, as `ln -sf` makes it that removes the old one first.
    let least_file = gateway.directory.path().join("least.toml");
    fs::write(&least_file, format!("{FRAME}{least}")).unwrap();
    fs::remove_file(gateway.file()).unwrap();
    symlink(&least_file, gateway.file()).unwrap();
    assert!(eventually(|| get(gateway.address(), "/").status == 204));
    assert!(!gateway.log().contains("half done"), "{}", gateway.log());
    gateway.replace(&rules("1/1h", "2"));
    assert!(eventually(|| version(&gateway) == "2"));
    let started = Instant::now();
    fs::write(gateway.file(), format!("{FRAME}{least}")).unwrap();
    gateway.signal("HUP");
    assert!(eventually(|| get(gateway.address(), "/").status == 204));
    // Before the watcher would.
    assert_took(started, 0..2_500);
}

#[test]
fn a_file_that_is_not_watched_is_read_when_somebody_asks() {
    let unwatched = |body: &str| format!("[server]\nwatch = false\n{}", rules("3/1h", body));
    let gateway = Gateway::start(&unwatched("1"));
    gateway.replace(&unwatched("2"));
    // Twice what a watcher takes at the most.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(version(&gateway), "1");
    gateway.signal("HUP");
    assert!(eventually(|| version(&gateway) == "2"));
    // The other way round it is watched again.
    gateway.replace(&rules("3/1h", "3"));
    gateway.signal("HUP");
    assert!(eventually(|| version(&gateway) == "3"));
    gateway.replace(&rules("3/1h", "4"));
    assert!(eventually(|| version(&gateway) == "4"));
}
