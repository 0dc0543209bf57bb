//! Limits and routes that do not always hold, and days of the calendar. Transitions are tested with made-up time, where
//! the rules are; here what holds now and what does not, told apart by far dates and by today's day of the week.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

use crate::h2::peer::{ask, connect, request, run};
use crate::support::{Answer, Gateway, eventually, get};

/// Far away, on either side.
const PAST: &str = "2001-01-01T00:00";
const FUTURE: &str = "2101-01-01T00:00";

/// All that holds now.
const HOLDS: [&str; 4] = [
    "{ from = \"2001-01-01T00:00\" }",
    "{ until = \"2101-01-01T00:00\", zone = \"Asia/Kathmandu\" }",
    "{ from = \"2001-01-01T00:00\", until = \"2101-01-01T00:00\", zone = \"America/New_York\" }",
    "{ days = [\"mon\", \"tue\", \"wed\", \"thu\", \"fri\", \"sat\", \"sun\"], zone = \"Europe/Berlin\" }",
];

/// The days of the week but for yesterday, today and tomorrow in UTC: today is none of them wherever one is, and does not
/// become one while the test runs.
fn other_days() -> String {
    let today = Timestamp::now().to_zoned(TimeZone::UTC);
    let name = |offset: i64| {
        let day = today.checked_add(offset.days()).unwrap().weekday();
        match day {
            Weekday::Monday => "\"mon\"",
            Weekday::Tuesday => "\"tue\"",
            Weekday::Wednesday => "\"wed\"",
            Weekday::Thursday => "\"thu\"",
            Weekday::Friday => "\"fri\"",
            Weekday::Saturday => "\"sat\"",
            Weekday::Sunday => "\"sun\"",
        }
    };
    (2..=5).map(name).collect::<Vec<_>>().join(", ")
}

/// All that does not.
fn rests() -> Vec<String> {
    vec![
        format!("{{ from = \"{FUTURE}\", zone = \"Europe/Berlin\" }}"),
        format!("{{ until = \"{PAST}\" }}"),
        format!("{{ days = [{}] }}", other_days()),
        format!("{{ days = [{}], zone = \"Europe/Berlin\" }}", other_days()),
    ]
}

fn names(answer: &Answer) -> Vec<&str> {
    let policy = answer.header("ratelimit-policy").unwrap_or_default();
    policy.split(", ").filter_map(|item| item.split('"').nth(1)).collect()
}

/// A limit that always holds, and one that holds by `active`.
fn limited(active: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"wide\"\nkey = \"global\"\nrate = \"100/1h\"\n\
         [[limit]]\nname = \"narrow\"\nkey = \"global\"\nrate = \"1/1h\"\nactive = {active}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"wide\", \"narrow\"]\n"
    )
}

/// A metric of the limit that does not always hold.
fn of_narrow(gateway: &Gateway, name: &str) -> u64 {
    gateway.metric(name, &["limit=\"narrow\""]) as u64
}

/// Statuses over HTTP/2.
fn statuses_h2(gateway: &Gateway, path: &'static str, count: usize) -> Vec<u16> {
    run(async {
        let sender = connect(gateway.address()).await;
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(ask(&sender, request("GET", path, &[])).await.unwrap().status);
        }
        statuses
    })
}

#[test]
fn a_limit_holds_while_it_is_active() {
    for active in HOLDS {
        let gateway = Gateway::start(&limited(active));
        let answer = get(gateway.address(), "/");
        assert_eq!((answer.status, names(&answer)), (200, vec!["wide", "narrow"]), "{active}");
        assert_eq!(get(gateway.address(), "/").status, 429, "{active}");
        assert_eq!(statuses_h2(&gateway, "/", 2), [429, 429], "{active}");
        assert_eq!(of_narrow(&gateway, "sluicegate_limit_active"), 1, "{active}");
    }
}

#[test]
fn at_other_times_it_is_as_if_the_route_did_not_name_it() {
    for active in rests() {
        let gateway = Gateway::start(&limited(&active));
        for _ in 0..3 {
            let answer = get(gateway.address(), "/");
            assert_eq!((answer.status, names(&answer)), (200, vec!["wide"]), "{active}");
        }
        assert_eq!(statuses_h2(&gateway, "/", 3), [200; 3], "{active}");
        gateway.wait_metric("sluicegate_limit_decisions_total", &["limit=\"wide\"", "decision=\"admitted\""], 6.0);
        for name in ["sluicegate_limit_decisions_total", "sluicegate_limit_keys", "sluicegate_limit_active"] {
            assert_eq!(of_narrow(&gateway, name), 0, "{name} {active}");
        }
    }
}

#[test]
fn a_limit_that_always_holds_has_no_gauge_of_it() {
    let gateway = Gateway::start(&limited(HOLDS[0]));
    let metrics = gateway.ask_admin("/metrics").text();
    let of_active = metrics.lines().filter(|line| line.starts_with("sluicegate_limit_active{")).count();
    assert_eq!(of_active, 1, "that of narrow alone");
}

#[test]
fn its_timeout_holds_only_then() {
    let backend = crate::support::Backend::start(|_, _| {
        std::thread::park();
        true
    });
    let start = |active: &str, route: &str| {
        Gateway::start(&format!(
            "[log]\naccess = \"json\"\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
             [[limit]]\nname = \"l\"\nrate = \"100/s\"\ntimeout = \"50ms\"\nactive = {active}\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\ntimeout = \"{route}\"\n",
            backend.address
        ))
    };
    let blamed = |gateway: &Gateway| {
        assert!(eventually(|| gateway.access_log().len() == 2));
        gateway.access_log().iter().map(|line| line["limit"].clone()).collect::<Vec<_>>()
    };
    // Nothing else would end it.
    let gateway = start(HOLDS[0], "none");
    assert_eq!(get(gateway.address(), "/").status, 504);
    assert_eq!(statuses_h2(&gateway, "/", 1), [504]);
    assert_eq!(blamed(&gateway), ["l", "l"]);
    // A request is never ended early.
    let gateway = start(&rests()[0], "300ms");
    for ask in
        [|gateway: &Gateway| get(gateway.address(), "/").status, |gateway: &Gateway| statuses_h2(gateway, "/", 1)[0]]
    {
        let asked = Instant::now();
        assert_eq!(ask(&gateway), 504);
        assert!(asked.elapsed() >= Duration::from_millis(300));
    }
    assert_eq!(blamed(&gateway), [serde_json::Value::Null, serde_json::Value::Null]);
}

#[test]
fn a_route_that_is_not_active_leaves_its_requests_to_the_next() {
    let file = |active: &str| {
        format!(
            "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
             [[route]]\nname = \"maintenance\"\nactive = {active}\nrespond = {{ status = 503, body = \"soon\\n\" }}\n\
             [[route]]\nname = \"app\"\nupstream = \"app\"\n"
        )
    };
    let rests = rests();
    let both = HOLDS.iter().map(|active| (*active, 503)).chain(rests.iter().map(|active| (active.as_str(), 200)));
    let mut running: Option<Gateway> = None;
    for (active, status) in both {
        let gateway = match running.take() {
            Some(gateway) => {
                assert_eq!(gateway.reload(&file(active)).status, 200, "{active}");
                gateway
            }
            None => Gateway::start(&file(active)),
        };
        assert_eq!(get(gateway.address(), "/x").status, status, "{active}");
        assert_eq!(statuses_h2(&gateway, "/x", 2), [status; 2], "{active}");
        running = Some(gateway);
    }
}

#[test]
fn a_reload_changes_when_a_limit_holds_and_no_count_is_lost() {
    let (holds, rests) = (limited(HOLDS[3]), limited(&rests()[2]));
    let gateway = Gateway::start(&holds);
    assert_eq!((get(gateway.address(), "/").status, get(gateway.address(), "/").status), (200, 429));
    assert_eq!(gateway.reload(&rests).status, 200);
    assert_eq!((get(gateway.address(), "/").status, get(gateway.address(), "/").status), (200, 200));
    assert!(eventually(|| gateway.log().contains("limit narrow: changed: active ")), "{}", gateway.log());
    assert_eq!(gateway.reload(&holds).status, 200);
    assert_eq!(get(gateway.address(), "/").status, 429, "its count of before");
    let broken = gateway.reload(&holds.replace("Europe/Berlin", "Europe/Berlim"));
    assert_eq!(broken.status, 422);
    assert!(broken.text().contains("did you mean \"Europe/Berlin\"?"), "{}", broken.text());
}

fn of_calendar(rate: &str, zone: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"global\"\nalgorithm = \"fixed-window\"\nalign = \"calendar\"\n\
         rate = \"{rate}\"\nzone = \"{zone}\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n"
    )
}

/// `r=` and `t=` and such of a rate header.
fn numbers(field: &str) -> BTreeMap<&str, u64> {
    field
        .split(';')
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect()
}

#[test]
fn a_day_and_a_month_end_when_they_do_there() {
    for (rate, length, zone) in [
        ("2/d", 86_400, "Europe/Berlin"),
        ("2/month", 2_592_000, "America/New_York"),
        ("2/7d", 604_800, "Asia/Kathmandu"),
        ("2/week\"\nweek_start = \"sunday", 604_800, "America/New_York"),
    ] {
        let now = || Timestamp::now().to_zoned(TimeZone::get(zone).unwrap());
        let end = |now: &Zoned| {
            let tomorrow = now.date().tomorrow().unwrap();
            let date = match rate {
                "2/d" => tomorrow,
                "2/month" => now.date().last_of_month().tomorrow().unwrap(),
                "2/7d" => now.date().nth_weekday(1, Weekday::Monday).unwrap(),
                _ => now.date().nth_weekday(1, Weekday::Sunday).unwrap(),
            };
            date.to_zoned(now.time_zone().clone()).unwrap().timestamp().as_second()
        };
        let gateway = Gateway::start(&of_calendar(rate, zone));
        let before = now();
        let answer = get(gateway.address(), "/");
        let statuses = statuses_h2(&gateway, "/", 2);
        let refused = get(gateway.address(), "/");
        let after = now();
        if end(&before) != end(&after) {
            // Midnight has passed meanwhile.
            continue;
        }
        let policy = numbers(answer.header("ratelimit-policy").unwrap());
        assert_eq!((policy["q"], policy["w"]), (2, length), "{answer:?}");
        let (earliest, latest) =
            (end(&after) - after.timestamp().as_second(), end(&before) - before.timestamp().as_second());
        let stands = numbers(answer.header("ratelimit").unwrap());
        let is_then = |seconds: u64| (earliest as u64..=latest as u64 + 1).contains(&seconds);
        assert!(stands["r"] == 1 && is_then(stands["t"]), "{stands:?} {earliest} {latest}");
        assert_eq!((statuses, refused.status), (vec![200, 429], 429));
        assert!(is_then(refused.header("retry-after").unwrap().parse().unwrap()), "{refused:?}");
        // Another number goes on, another zone begins anew.
        assert_eq!(gateway.reload(&of_calendar(&rate.replace('2', "3"), zone)).status, 200);
        assert_eq!((get(gateway.address(), "/").status, get(gateway.address(), "/").status), (200, 429));
        assert_eq!(gateway.reload(&of_calendar(&rate.replace('2', "3"), "UTC")).status, 200);
        assert_eq!(get(gateway.address(), "/").status, 200);
        assert!(
            eventually(|| gateway.log().contains("limit l: reset, it counts from zero: zone ")),
            "{}",
            gateway.log()
        );
    }
}

#[test]
fn zones_are_known_where_the_system_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let text = limited(HOLDS[3]) + "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    std::fs::write(&file, text).unwrap();
    let check = |zoneinfo: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(["check", "-c"]).arg(&file).env("TZDIR", zoneinfo).output().unwrap()
    };
    let empty = directory.path().join("zoneinfo");
    std::fs::create_dir(&empty).unwrap();
    // One that knows of UTC alone (RFC 8536, version 1).
    let small = directory.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let counts = [[0u8; 16].as_slice(), &[0, 0, 0, 1, 0, 0, 0, 4]].concat();
    std::fs::write(small.join("UTC"), [b"TZif".as_slice(), &[0; 16], &counts, &[0; 6], b"UTC\0"].concat()).unwrap();
    for zoneinfo in ["/nonexistent", empty.to_str().unwrap(), small.to_str().unwrap(), "/usr/share/zoneinfo"] {
        let output = check(zoneinfo);
        assert!(output.status.success(), "{zoneinfo}: {output:?}");
    }
}
