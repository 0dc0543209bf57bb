//! The log as its callers see it.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tempfile::{TempDir, tempdir};

use super::super::faults::Faults;
use super::super::record::tests::draft;
use super::super::segment::Files;
use super::super::store::SegmentStore;
use super::super::{DeadLetters, Draft, Drops, Entry, KeyName};
use super::{Bench, SECOND, entries, event, offer_to, redactor, roomy, settings, start, told, wall};
use sluicegate_config::DeadLetter;
use sluicegate_limiter::KeyHasher;
use sluicegate_redact::{RedactRules, Redactor};
use sluicegate_time::{Clock, ManualClock, Span};

fn redactor_of(secret: &str) -> Redactor {
    Redactor::new(&RedactRules { secret: vec![secret.into()], open: Vec::new() })
}

#[test]
fn what_was_offered_is_written_aggregated_or_dropped() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { max_record_rate: 300, ..settings(directory.path()) });
    bench.offer(100);
    bench.pass(SECOND);
    bench.offer(50);
    bench.writer.close(bench.now);
    assert_eq!(told(directory.path()), (60, 90, Drops::default()));
    let aggregates: Vec<_> = entries(directory.path())
        .0
        .into_iter()
        .filter_map(|entry| if let Entry::Aggregate(aggregate) = entry { Some(aggregate) } else { None })
        .collect();
    let of_second: Vec<_> =
        aggregates.iter().map(|own| (own.from.since(wall(start())), own.to.since(wall(start())), own.count)).collect();
    assert_eq!(of_second, [(Span::ZERO, Span::ZERO, 70), (SECOND, SECOND, 20)]);
    assert_eq!((aggregates[0].reason.as_str(), aggregates[0].limit.as_deref()), ("rate-limited", Some("per-client")));
}

#[test]
fn a_directory_has_eight_gateways_at_most() {
    let directory = tempdir().unwrap();
    let first = DeadLetters::start(settings(directory.path()), redactor(), "a", Clock::system()).unwrap();
    let others: Vec<_> = (2..=8)
        .map(|_| DeadLetters::start(settings(directory.path()), redactor(), "a", Clock::system()).unwrap())
        .collect();
    let error = DeadLetters::start(settings(directory.path()), redactor(), "b", Clock::system()).err().unwrap();
    assert!(error.to_string().contains(&directory.path().display().to_string()), "{error}");
    assert!(error.to_string().contains("in use by 8 other gateways"), "{error}");
    others.iter().for_each(DeadLetters::close);
    first.close();
    drop((first, others));
    DeadLetters::start(settings(directory.path()), redactor(), "b", Clock::system()).unwrap().close();
}

#[test]
fn closing_writes_what_was_queued_and_later_offers_are_drops() {
    let directory = tempdir().unwrap();
    let log = DeadLetters::start(roomy(directory.path()), redactor(), "gw", Clock::Manual(ManualClock::new())).unwrap();
    let mut key = KeyHasher::fixed().start();
    key.part(1, b"client");
    offer_to(&log, 500, None);
    offer_to(&log, 25, Some(key.finish()));
    log.close();
    log.close();
    offer_to(&log, 3, None);
    assert_eq!(told(directory.path()), (510, 15, Drops::default()));
    let stats = log.stats();
    assert_eq!((stats.written, stats.aggregated, stats.aggregating), (510, 15, 0));
    assert_eq!((stats.dropped, stats.queue_records, stats.queue_bytes), (Drops { queue_full: 3, disk_error: 0 }, 0, 0));
    assert_eq!(stats.last_error, None);
}

#[test]
fn a_log_without_handles_closes_by_itself() {
    let directory = tempdir().unwrap();
    let log =
        DeadLetters::start(settings(directory.path()), redactor(), "gw", Clock::Manual(ManualClock::new())).unwrap();
    offer_to(&log, 5, None);
    let desk = Arc::clone(&log.0.desk);
    drop(log.clone());
    drop(log);
    assert!(desk.wait_for_end(Duration::from_secs(10)));
    assert_eq!(told(directory.path()).0, 5);
}

#[test]
fn a_disk_that_hangs_holds_nobody_up_and_every_drop_is_counted() {
    let directory = tempdir().unwrap();
    let faults = Faults::default();
    let log = DeadLetters::start_on(
        roomy(directory.path()),
        redactor(),
        "gw",
        Clock::Manual(ManualClock::new()),
        faults.disk(),
    )
    .unwrap();
    faults.set(|state| state.blocked = true);
    offer_to(&log, 1, None);
    faults.wait_until(|state| state.writes == 1);
    // All of this returns while the writer hangs.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| offer_to(&log, 5_000, None));
        }
    });
    let stats = log.stats();
    assert_eq!((stats.queue_records, stats.dropped.queue_full), (8192, 20_000 - 8192));
    faults.set(|state| state.blocked = false);
    log.close();
    // It waits for 5 s, in which a busy machine does not write all of that.
    assert!(log.0.desk.wait_for_end(Duration::from_secs(60)));
    assert_eq!(told(directory.path()), (8193, 0, Drops { queue_full: 20_000 - 8192, disk_error: 0 }));
}

fn reconfigure(log: &DeadLetters, settings: DeadLetter, redactor: Redactor) -> std::io::Result<()> {
    log.stage(settings, redactor).map(|new| log.commit(new))
}

#[test]
fn settings_that_are_dropped_leave_no_trace() {
    let (one, other) = (tempdir().unwrap(), tempdir().unwrap());
    let log = DeadLetters::start(settings(one.path()), redactor(), "gw", Clock::Manual(ManualClock::new())).unwrap();
    drop(log.stage(DeadLetter { max_record_rate: 20, ..settings(other.path()) }, redactor()).unwrap());
    let other = SegmentStore::open(other.path(), "gw", Box::new(Files)).unwrap();
    assert!(!other.0.is_second(), "the other directory is let go");
    offer_to(&log, 7, None);
    log.close();
    assert_eq!(told(one.path()), (7, 0, Drops::default()), "by the rate of before");
}

#[test]
fn new_settings_take_hold_while_it_runs() {
    let (one, other) = (tempdir().unwrap(), tempdir().unwrap());
    let log = DeadLetters::start(settings(one.path()), redactor(), "gw", Clock::Manual(ManualClock::new())).unwrap();
    offer_to(&log, 3, None);
    reconfigure(&log, DeadLetter { max_record_rate: 20, ..settings(one.path()) }, redactor()).unwrap();
    offer_to(&log, 4, None);
    log.close();
    assert_eq!(told(one.path()), (5, 2, Drops::default()));

    let log = DeadLetters::start(settings(one.path()), redactor(), "gw", Clock::Manual(ManualClock::new())).unwrap();
    reconfigure(&log, settings(other.path()), redactor_of("x-tenant")).unwrap();
    let free =
        |directory: &TempDir| !SegmentStore::open(directory.path(), "gw", Box::new(Files)).unwrap().0.is_second();
    assert!(!free(&other));
    let blocked = tempdir().unwrap();
    let _holders: Vec<_> = (0..8).map(|_| SegmentStore::open(blocked.path(), "x", Box::new(Files)).unwrap()).collect();
    assert!(reconfigure(&log, settings(blocked.path()), redactor()).is_err());
    log.close();
    assert!(free(&one), "the old directory is let go");
}

#[test]
fn planted_secrets_are_nowhere_in_the_directory() {
    let directory = tempdir().unwrap();
    let (settings, redactor) = (settings(directory.path()), redactor_of("x-session"));
    let log = DeadLetters::start(settings, redactor, "gw", Clock::Manual(ManualClock::new())).unwrap();
    let headers = [
        ("Authorization", "Bearer pl4nted".to_owned()),
        ("Proxy-Authorization", "Basic pl4nted".to_owned()),
        ("Cookie", "sid=pl4nted; other=pl4nted".to_owned()),
        ("Set-Cookie", "sid=pl4nted".to_owned()),
        ("X-Api-Key", "pl4nted".to_owned()),
        ("X-Auth-Token", "pl4nted".to_owned()),
        ("X-Session", "pl4nted".to_owned()),
        ("Referer", "https://u:pl4nted@h/x?access_token=pl4nted#id_token=pl4nted".to_owned()),
        ("X-Session-Id", "pl4nted".to_owned()),
        ("X-Upstream-Auth", "Bearer pl4nted".to_owned()),
        ("X-Other", "Basic pl4nted".to_owned()),
        ("Sec-WebSocket-Protocol", "base64url.bearer.authorization.pl4nted".to_owned()),
        ("Origin", "https://u:pl4,pl4nted@h/".to_owned()),
        ("X-Original-Uri", "/a;jsessionid=pl4nted".to_owned()),
        ("X-Original-Url", "/x?sig=pl4nted&next=%2Fa%3Fpassword%3Dpl4nted".to_owned()),
    ];
    let part = |source: &str, value: &str| (source.into(), value.into());
    let build = || Draft {
        headers: headers.iter().map(|(name, value)| ((*name).into(), value.clone().into())).collect(),
        query: Some(
            "a=1&token=pl4nted&X-SESSION=pl4nted&PWD=pl4nted;x=pl4nted&code=pl4nted&q={\"token\":\"pl4nted\"}".into(),
        ),
        path: "/x;jsessionid=pl4nted/access_token=pl4nted".into(),
        host: "user:pl4nted@h".into(),
        key: vec![
            part("header:x-api-key", "pl4nted"),
            part("cookie:theme", "pl4nted"),
            part("query:sig", "pl4nted"),
            part("header:x-session", "pl4nted"),
            part("basic:user", "pl4nted"),
            part("query:next", "/cb?token=pl4nted"),
        ],
        ..draft()
    };
    log.offer(&event(None, None, start()), KeyName::default, build);
    log.close();
    assert_eq!(told(directory.path()).0, 1);
    for entry in fs::read_dir(directory.path()).unwrap() {
        let content = String::from_utf8(fs::read(entry.unwrap().path()).unwrap()).unwrap();
        assert!(!content.contains("pl4nted"), "{content}");
    }
}

#[test]
fn times_follow_the_wall_clock_and_ages_do_not() {
    let directory = tempdir().unwrap();
    let settings = DeadLetter { max_age: Span::from_secs(3_600), rotate_size: 1, ..settings(directory.path()) };
    let mut bench = Bench::new(DeadLetter { max_record_rate: 0, ..settings });
    bench.record(1);
    bench.pass(SECOND);
    // Ten years forward, and a day back.
    let forward = Span::from_secs(10 * 365 * 86_400);
    for wall in [wall(bench.now) + forward, wall(bench.now) - Span::from_secs(86_400)] {
        bench.offset.follow(bench.now, wall);
        bench.offer(1);
        bench.pass(SECOND);
        let (entries, _) = entries(directory.path());
        let times = entries.iter().filter_map(|entry| match entry {
            Entry::Aggregate(own) => Some((own.from, own.to, own.at)),
            _ => None,
        });
        assert!(times.clone().any(|times| times == (wall, wall, wall + SECOND)), "{:?}", times.collect::<Vec<_>>());
    }
    let (all, _) = entries(directory.path());
    assert_eq!(all.len(), 3, "none is too old by a clock that was set: {all:?}");
}
