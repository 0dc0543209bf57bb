//! The alerts of a log as a whole, without their threads.

use std::fs::OpenOptions;
use std::io::Write as _;

use tempfile::TempDir;

use super::super::Draft;
use super::super::record::tests::{AT, draft};
use super::super::tests::settings;
use super::outbox::{InFlightTry, NotifyOutcome};
use super::*;
use sluicegate_config as config;
use sluicegate_config::Certificates;
use sluicegate_redact::{RedactRules, Redactor};
use sluicegate_time::{ManualClock, Span, Wall};

/// One with a webhook and no figure.
pub(super) fn alert() -> Alert {
    let alerts = "alerts = [{ webhook = \"http://h.example/x\", length = 1 }]";
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:80\"\n[[route]]\nname = \"all\"\nrespond = {{}}\n[dead_letter]\n{alerts}\n"
    );
    let parsed = config::parse(&text, Path::new("gateway.toml"), Certificates::Unread).unwrap();
    let alert = parsed.model.dead_letter.unwrap().alerts.remove(0);
    Alert { length: None, ..alert }
}

const SECOND: Span = Span::from_secs(1);

/// A watcher whose clock a test drives, on a directory of its own.
struct Bench {
    watcher: Watcher,
    clock: ManualClock,
    directory: TempDir,
}

impl Bench {
    fn new(alerts: Vec<Alert>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::new();
        clock.advance(AT.since(Wall::EPOCH));
        let settings = settings(directory.path());
        let meter = Meter { flood: Arc::new(Flood::new(&settings).unwrap()), counters: Arc::default() };
        let mut watcher = Watcher {
            board: Board::default(),
            backlog: None,
            directory: PathBuf::new(),
            meter: Arc::new(meter),
            offered: 0,
            node: "gw-1".into(),
            clock: Clock::Manual(clock.clone()),
            shared: Arc::default(),
            // No thread sends: the test does.
            sends: true,
            last_error: None,
        };
        let now = clock.now();
        let start = LogSample { now, wall: watcher.clock.wall(now), offered: 0, dropped: 0, backlog: None };
        watcher.renew(Order { start, alerts, directory: directory.path().to_owned() });
        Self { watcher, clock, directory }
    }

    fn record(&self, count: usize) {
        let mut lines = Vec::new();
        for _ in 0..count {
            let at = self.watcher.clock.wall_now();
            Draft { at, ..draft() }.write("gw", &Redactor::new(&RedactRules::default()), &mut lines);
        }
        let path = self.directory.path().join("gw-0000000001.jsonl");
        OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(&lines).unwrap();
    }

    /// Looks, and takes what a webhook would get.
    fn look(&mut self) -> Vec<serde_json::Value> {
        self.clock.advance(SECOND);
        self.watcher.look();
        let flights = self.watcher.shared.outbox().due(self.clock.now());
        let settle = |flight: &InFlightTry| {
            let settled = self.watcher.shared.outbox().settle(flight, NotifyOutcome::Delivered, self.clock.now(), 0);
            assert!(settled.is_none());
            serde_json::from_slice(&flight.message.body).unwrap()
        };
        flights.iter().map(settle).collect()
    }
}

#[test]
fn a_log_that_fills_and_empties_sends_two_messages() {
    let mut bench = Bench::new(vec![Alert { length: Some(3), age: Some(Span::from_secs(100)), ..alert() }]);
    bench.record(2);
    assert!(bench.look().is_empty());
    bench.record(1);
    let [message] = &bench.look()[..] else { panic!("one message") };
    assert_eq!((&message["alert"], &message["state"]), (&"length".into(), &"firing".into()));
    assert_eq!((&message["value"], &message["threshold"], &message["node"]), (&3.into(), &3.into(), &"gw-1".into()));
    assert_eq!(message["oldest"], "2026-01-02T03:04:05.678Z");
    for _ in 0..97 {
        bench.record(1);
        assert!(bench.look().is_empty());
    }
    let [message] = &bench.look()[..] else { panic!("one message") };
    assert_eq!((&message["alert"], &message["value"]), (&"age".into(), &100.into()));
    std::fs::remove_file(bench.directory.path().join("gw-0000000001.jsonl")).unwrap();
    let states: Vec<_> =
        bench.look().iter().map(|message| (message["alert"].clone(), message["state"].clone())).collect();
    assert_eq!(states, [("length".into(), "resolved".into()), ("age".into(), "resolved".into())]);
    assert!(bench.look().is_empty());
}

#[test]
fn growth_and_drops_are_those_of_the_counters() {
    let growth = "10/10s".parse().ok();
    let mut bench = Bench::new(vec![Alert { growth, drops: Some(1), ..alert() }]);
    assert!(bench.look().is_empty());
    let counters = Arc::clone(&bench.watcher.meter.counters);
    counters.written.fetch_add(9, Ordering::Relaxed);
    assert!(bench.look().is_empty());
    counters.queue_full.fetch_add(1, Ordering::Relaxed);
    let states: Vec<_> =
        bench.look().iter().map(|message| (message["alert"].clone(), message["unit"].clone())).collect();
    assert_eq!(states, [("growth".into(), "requests in 10s".into()), ("drops".into(), "lost records in 1m".into())]);
    let rest: Vec<usize> = (0..100).map(|_| bench.look().len()).collect();
    assert_eq!(rest.iter().sum::<usize>(), 2, "both are over once: {rest:?}");
    assert_eq!(
        bench
            .watcher
            .shared
            .figures
            .counter(Figure::Drops as usize, AlertState::Resolved as usize)
            .unwrap()
            .load(Ordering::Relaxed),
        1
    );
}
