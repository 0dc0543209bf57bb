//! Simulations against what was computed by hand, and against the admission itself.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::trial::RequestFate;
use super::*;
use crate::admission::{Admission, Admitted, PlainRequest, Progress as Attempted, Waiting};
use crate::config::{Certificates, parse};
use crate::gateway::OfflineRoute;
use crate::limiter::{KeyHasher, Permit, Report};
use crate::redact::{RedactRules, Redactor};
use crate::time::{Span, Tick, Wall};

const ROUTE: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
     [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"first\", \"second\"]\n";

fn offline(text: &str) -> Offline {
    let parsed = parse(text, Path::new("gateway.toml"), Certificates::Unread).map_err(|error| error.to_string());
    Offline::with(Arc::new(parsed.unwrap().model), &KeyHasher::fixed()).unwrap()
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// One limit with these settings, which another joins that nobody meets.
fn with_limit(settings: &str) -> String {
    format!("{ROUTE}[[limit]]\nname = \"first\"\n{settings}\n[[limit]]\nname = \"second\"\nrate = \"1000000/s\"\n")
}

fn run(config: &str, log: &str) -> Simulated {
    let log = file(log);
    let logs = Logs { files: vec![log.path().to_owned()], host: None };
    let tried = Tried { file: "candidate.toml".to_owned(), offline: offline(config) };
    simulate(&logs, tried, None, &mut |_| ()).unwrap()
}

/// Requests of one client at these milliseconds, which last so long.
fn log_of(millis: &[u64], took: u64) -> String {
    let line = |at: &u64| {
        let (seconds, fraction) = (1_800_000_000 + at / 1_000, at % 1_000);
        format!(
            "{{\"ts\":\"{}\",\"client\":\"192.0.2.7\",\"method\":\"GET\",\"host\":\"h\",\"target\":\"/\",\"took_ms\":{took}}}\n",
            Wall::from_nanos((seconds * 1_000 + fraction) * 1_000_000).timestamp()
        )
    };
    millis.iter().map(line).collect::<Vec<_>>().concat()
}

/// Admitted, refused, waited and the longest wait in milliseconds.
fn numbers(limit: &LimitOutcome) -> (u64, u64, u64, f64) {
    (limit.admitted, limit.refused, limit.waited, limit.max_wait_ms)
}

#[test]
fn every_algorithm_decides_as_computed_by_hand() {
    // Ten at once, three half a second later, ten one second after the first.
    let burst: Vec<u64> = [[0; 10].as_slice(), &[500; 3], &[1_000; 10]].concat();
    for (settings, admitted, waited, longest) in [
        // Five, none within the second, five.
        ("rate = \"5/s\"", 10, 0, 0.0),
        // Five that are there, two that have come by 0.5 s, and two and a half more by 1 s: two.
        ("rate = \"5/s\"\nalgorithm = \"token-bucket\"", 5 + 2 + 3, 0, 0.0),
        ("rate = \"5/s\"\nalgorithm = \"token-bucket\"\nrefill = \"interval\"", 10, 0, 0.0),
        // One, and one each 200 ms: one at 0, one at 500, one at 1,000.
        ("rate = \"5/s\"\nalgorithm = \"gcra\"", 3, 0, 0.0),
        ("rate = \"5/s\"\nalgorithm = \"gcra\"\nburst = 4", 4 + 2 + 3, 0, 0.0),
        // One goes at once, two wait 200 and 400 ms; at 500 one waits to 600 and one to 800; at 1,000 three again.
        ("rate = \"5/s\"\nalgorithm = \"leaky-bucket\"\nmax_waiting = 2\nmax_wait = \"1s\"", 3 + 2 + 3, 6, 400.0),
        ("rate = \"5/s\"\nalgorithm = \"fixed-window\"", 10, 0, 0.0),
        // Two slots of half a second, of two each: two, two, and two of the next second's first, when those of its own have left.
        ("rate = \"5/s\"\nalgorithm = \"sliding-window\"\nslots = 2\nslot_limit = 2", 2 + 2 + 2, 0, 0.0),
        // Five of this window, and as much of the next as the five leave, which still weigh in full at its beginning.
        ("rate = \"5/s\"\nalgorithm = \"sliding-counter\"", 5, 0, 0.0),
        ("rate = \"5/s\"\nalgorithm = \"sliding-log\"", 10, 0, 0.0),
        ("rate = \"3/s\"\nalgorithm = \"sliding-log\"\nmin_difference = \"400ms\"", 3, 0, 0.0),
        // One; two of 500 ms, by one and a half that were saved; three of 1 s, by two.
        ("rate = \"5/s\"\nalgorithm = \"smooth-bursty\"\nmax_wait = \"0s\"", 1 + 2 + 3, 0, 0.0),
        // Cold: the first one costs 440 ms, the next one 210, and others 200. So one goes at 0, and others at 440, 650, 850,
        // 1,050, 1,250 and 1,450; who would wait for more than 600 ms is refused.
        ("rate = \"5/s\"\nalgorithm = \"warm-up\"\nwarm_up = \"500ms\"\nmax_wait = \"600ms\"", 2 + 3 + 2, 6, 550.0),
        // Each lasts 600 ms: two at 0, none at 500, two at 1,000. If they wait for 150 ms, two of 500 get in at 600, and none
        // of 1,000.
        ("max_in_flight = 2\nalgorithm = \"concurrency\"", 4, 0, 0.0),
        ("max_in_flight = 2\nalgorithm = \"concurrency\"\nmax_wait = \"150ms\"", 4, 2, 100.0),
    ] {
        let simulated = run(&with_limit(settings), &log_of(&burst, 600));
        let limit = &simulated.candidate.limits[0];
        let expected = (admitted, 23 - admitted, waited, longest);
        assert_eq!(numbers(limit), expected, "{settings}");
        assert_eq!((simulated.candidate.requests, simulated.candidate.admitted), (23, admitted), "{settings}");
    }
}

/// The fate of each request, in the order of arrivals: when it was let in, if it was.
type Fates = Vec<(Tick, Option<Tick>)>;

/// A request of the property test: its client, key, cost, and how long it lasts.
type Asked = (usize, usize, u64, u64);

const CLIENTS: [&str; 3] = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
const KEYS: [&str; 3] = ["", "k1", "k2"];
const START: u64 = 1_800_000_000_000;

fn at(millis: u64) -> Tick {
    Tick::from_nanos((START + millis) * 1_000_000)
}

/// A request that waits, of the driven clock.
struct Queued {
    place: usize,
    took: u64,
    waiting: Waiting<Arc<OfflineRoute>>,
    wake_at: Tick,
    woken: Arc<Flag>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The admission itself: the clock is moved by a millisecond, and a request that waits is tried when it is time or it
/// was woken.
struct Driven {
    report: Report,
    fates: Fates,
    waiting: Vec<Queued>,
    running: Vec<(Tick, Permit)>,
}

impl Driven {
    fn run(config: &str, requests: &[(u64, Asked)]) -> Fates {
        let offline = offline(config);
        let mut own = Self { report: Report::default(), fates: Vec::new(), waiting: Vec::new(), running: Vec::new() };
        let end = requests.last().map_or(0, |(millis, _)| *millis) + 5_000;
        for millis in 0..end {
            own.tick(at(millis));
            for (_, asked) in requests.iter().filter(|(at, _)| *at == millis) {
                own.arrive(&offline, asked, at(millis));
                own.tick(at(millis));
            }
        }
        assert!(own.waiting.is_empty());
        own.fates
    }

    fn arrive(&mut self, offline: &Offline, (client, key, cost, took): &Asked, now: Tick) {
        let mut request = PlainRequest::new("GET", "/").host("h").with("x-cost", cost.to_string());
        if !KEYS[*key].is_empty() {
            request = request.with("x-api-key", KEYS[*key]);
        }
        let place = self.fates.len();
        self.fates.push((now, None));
        match offline.rules.admit(&request, CLIENTS[*client].parse().unwrap(), now, &mut self.report) {
            Admission::Admitted(admitted) => self.admitted(admitted, place, *took, now),
            Admission::Waiting(waiting) => {
                self.waiting.push(Queued { place, took: *took, waiting, wake_at: now, woken: Arc::default() });
            }
            Admission::Refused(..) => {}
            other => panic!("{other:?}"),
        }
    }

    fn admitted(&mut self, mut admitted: Admitted<Arc<OfflineRoute>>, place: usize, took: u64, now: Tick) {
        self.fates[place].1 = Some(now);
        self.running.push((now + Span::from_millis(took), admitted.take_permit()));
    }

    /// Lets happen what is due now, until nothing more is.
    fn tick(&mut self, now: Tick) {
        loop {
            self.running.retain(|(ends, _)| *ends > now);
            let due = |own: &Queued| own.wake_at <= now || own.woken.0.load(Ordering::Relaxed);
            let Some(at) = self.waiting.iter().position(due) else { return };
            let mut queued = self.waiting.remove(at);
            queued.woken.0.store(false, Ordering::Relaxed);
            match queued.waiting.attempt(now, &Waker::from(Arc::clone(&queued.woken)), &mut self.report) {
                Attempted::Pending { wake_at } => {
                    queued.wake_at = wake_at;
                    self.waiting.insert(at, queued);
                }
                Attempted::TimedOut(..) => {}
                Attempted::Admitted(admitted) => self.admitted(admitted, queued.place, queued.took, now),
            }
        }
    }
}

/// By a simulation of their log.
fn simulated(config: &str, requests: &[(u64, Asked)]) -> Fates {
    let mut log = String::new();
    for (millis, (client, key, cost, took)) in requests {
        let (ts, client, key) = (Wall::from_nanos(at(*millis).as_nanos()).timestamp(), CLIENTS[*client], KEYS[*key]);
        let key = if key.is_empty() { String::new() } else { format!("\"x-api-key\":\"{key}\",") };
        let headers = format!("{{{key}\"x-cost\":\"{cost}\"}}");
        let _ = writeln!(
            log,
            "{{\"ts\":\"{ts}\",\"client\":\"{client}\",\"host\":\"h\",\"path\":\"/\",\"took_ms\":{took},\"headers\":{headers}}}"
        );
    }
    let log = file(&log);
    let mut source = RequestSource::new(vec![log.path().to_owned()], None);
    let mut trial = Trial::new(offline(config), Redactor::new(&RedactRules::default()), true);
    while source.next(&mut |logged| trial.arrive(logged)).unwrap() {}
    trial.finish();
    assert_eq!(source.skipped.total(), 0);
    let mut fates: Vec<RequestFate> = trial.fates;
    fates.sort_by_key(|fate| fate.arrived);
    fates.into_iter().map(|fate| (fate.arrived, fate.admitted)).collect()
}

/// Rates whose instants are whole milliseconds.
fn algorithms() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "rate = \"4/s\"",
        "rate = [\"4/s\", \"10/5s\"]",
        "rate = \"5/s\"\nbound = \"strict\"",
        "rate = \"4/s\"\nalgorithm = \"token-bucket\"\nburst = 3",
        "rate = \"4/s\"\nalgorithm = \"token-bucket\"\nrefill = \"interval\"",
        "rate = \"5/s\"\nalgorithm = \"gcra\"\nburst = 2",
        "rate = \"5/s\"\nalgorithm = \"leaky-bucket\"\nmax_waiting = 3",
        "rate = \"5/s\"\nalgorithm = \"fixed-window\"",
        "rate = \"5/s\"\nalgorithm = \"sliding-window\"\nslots = 5",
        "rate = \"5/s\"\nalgorithm = \"sliding-log\"\ncount_refused = true",
        "rate = \"5/s\"\nalgorithm = \"sliding-log\"",
        // A key that has saved all it can may be forgotten, with what it has saved, and the secret of the hash decides that.
        "rate = \"5/s\"\nalgorithm = \"smooth-bursty\"\nmax_burst_seconds = 60",
        "algorithm = \"concurrency\"\nmax_in_flight = 2",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn each_decision_is_that_of_the_admission_on_a_driven_clock(
        (first, second) in (algorithms(), algorithms()),
        (wait, other_wait) in (prop::sample::select(vec![0u64, 300, 1_500]), prop::sample::select(vec![0u64, 700])),
        key in prop::sample::select(vec!["client-ip", "header:x-api-key"]),
        is_shadow in any::<bool>(),
        requests in prop::collection::vec((1u64..120, (0usize..3, 0usize..3, 1u64..3, 0u64..400)), 1..120),
    ) {
        // Each at an instant of its own.
        let mut now = 0;
        let requests: Vec<(u64, Asked)> = requests.into_iter().map(|(gap, asked)| { now += gap; (now, asked) }).collect();
        let wait_of = |millis: u64| if millis == 0 { String::new() } else { format!("max_wait = \"{millis}ms\"\n") };
        let mode = if is_shadow { "mode = \"shadow\"\n" } else { "" };
        let config = format!(
            "{ROUTE}[[limit]]\nname = \"first\"\nkey = \"{key}\"\ncost = \"header:x-cost\"\n{}{first}\n\
             [[limit]]\nname = \"second\"\n{mode}{}{second}\n",
            wait_of(wait),
            wait_of(other_wait),
        );
        prop_assert_eq!(simulated(&config, &requests), Driven::run(&config, &requests), "{}", config);
    }
}

#[test]
fn lines_that_are_no_requests_are_counted_and_named() {
    let log = format!(
        "sluicegate runs\n\n{}{{\"ts\":1}}\n{}{}",
        log_of(&[0, 61_001, 61_001], 0),
        log_of(&[900, 0, 61_002], 0),
        "{\"ts\":\"2027-01-15T08:00:0"
    );
    let simulated = run(&with_limit("rate = \"2/s\""), &log);
    let Simulated { candidate, skipped_lines, .. } = &simulated;
    // The first was given out when another came that was more than ten minutes later; what is as early takes part, what is
    // earlier does not.
    let early = run(&with_limit("rate = \"2/s\""), &(log_of(&[1, 602_000, 602_000, 0, 1], 0)));
    assert_eq!((early.candidate.requests, early.skipped_lines[0].reason), (4, "out-of-order"));
    assert!(early.skipped_lines[0].first[0].ends_with(":4"));
    assert_eq!((candidate.requests, candidate.skipped), (6, 3), "{skipped_lines:?}");
    let places: Vec<_> =
        skipped_lines.iter().map(|own| (own.reason, own.count, own.first[0].rsplit(':').next().unwrap())).collect();
    assert_eq!(places, [("broken", 2, "1"), ("no-client", 1, "6")]);
    assert_eq!((candidate.limits[0].admitted, candidate.limits[0].refused), (4, 2));
}

#[test]
fn one_clock_that_is_years_ahead_spoils_nothing() {
    let far = "{\"ts\":\"2090-01-01T00:00:00Z\",\"client\":\"::1\",\"path\":\"/\"}\n";
    // The lines before it and after are in no order.
    let log = log_of(&[900, 10], 0) + far + &log_of(&[20, 15, 5, 30], 0);
    let simulated = run(&with_limit("rate = \"1000/s\""), &log);
    assert_eq!((simulated.candidate.requests, simulated.candidate.admitted, simulated.candidate.skipped), (7, 7, 0));
    // A night without requests is no wrong clock.
    let night: Vec<u64> = (0..20).map(|nth| 36_000_000 + nth * 10).collect();
    let simulated = run(&with_limit("rate = \"1/s\""), &(log_of(&[0, 1], 0) + &log_of(&night, 0) + &log_of(&[0], 0)));
    assert_eq!((simulated.candidate.requests, simulated.candidate.skipped), (22, 1));
}

#[test]
fn requests_of_one_second_that_come_later_than_others_of_it_take_part_and_bytes_are_bounded() {
    let line = "192.0.2.7 - - [15/Jan/2027:08:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let simulated = run(&with_limit("rate = \"1000000/s\""), &line.repeat(200_500));
    assert_eq!((simulated.candidate.requests, simulated.candidate.skipped), (200_500, 0));
    let long = line.replace("GET /", &format!("GET /{}", "x".repeat(200_000)));
    let log = file(&long.repeat(600));
    let mut source = RequestSource::new(vec![log.path().to_owned()], None);
    let mut most = 0;
    while source.next(&mut |_| ()).unwrap() {
        most = most.max(source.bytes());
    }
    assert!(most > 60 << 20 && most < 68 << 20, "{most}");
}

#[test]
fn times_in_whole_seconds_are_told_and_so_is_a_log_without_requests() {
    let log = log_of(&[0, 0, 1_000], 0);
    let notes = run(&with_limit("rate = \"1/s\""), &log).notes;
    assert!(notes.iter().any(|note| note.starts_with("All times are whole seconds")), "{notes:?}");
    let notes = run(&with_limit("rate = \"1/s\""), &(log + &log_of(&[1_500], 0))).notes;
    assert!(!notes.iter().any(|note| note.starts_with("All times are whole seconds")), "{notes:?}");
    assert_eq!(run(&with_limit("rate = \"1/s\""), "").notes, ["No line of the logs is a request."]);
}

#[test]
fn secret_keys_are_compared_and_shown_by_marks_alone_and_long_ones_are_cut() {
    let line = |key: &str| {
        format!(
            "{{\"ts\":1,\"client\":\"::1\",\"path\":\"/\",\"headers\":{{\"x-api-key\":\"planted\",\"x-b\":\"{key}\"}}}}\n"
        )
    };
    let log = file(&line(&"b".repeat(5_000)).repeat(3));
    let logs = Logs { files: vec![log.path().to_owned()], host: None };
    let hasher = KeyHasher::random();
    let tried = |rate: &str, key: &str| {
        let text = with_limit(&format!("rate = \"{rate}\"\nkey = {key}"));
        let parsed = parse(&text, Path::new("gateway.toml"), Certificates::Unread).map_err(|error| error.to_string());
        let offline = Offline::with(Arc::new(parsed.unwrap().model), &hasher).unwrap();
        Tried { file: "x".to_owned(), offline }
    };
    let key = "[\"header:x-api-key\", \"header:x-b\"]";
    let simulated = simulate(&logs, tried("2/s", key), Some(tried("1/s", key)), &mut |_| ()).unwrap();
    let shown = &simulated.candidate.limits[0].keys[0];
    assert_eq!((shown.refused, shown.baseline_refused), (1, Some(2)));
    assert!(shown.key[0].1.starts_with("[redacted:") && shown.key[1].1.len() < 140, "{shown:?}");
    assert!(!html(&simulated).contains("planted"));
    // By another key nothing can be compared.
    let simulated = simulate(&logs, tried("2/s", key), Some(tried("1/s", "\"client-ip\"")), &mut |_| ()).unwrap();
    assert_eq!(simulated.candidate.limits[0].keys[0].baseline_refused, None);
}

#[test]
fn requests_of_one_second_are_spread_over_it() {
    let line = "192.0.2.7 - - [15/Jan/2027:08:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let later = line.replace(":00 +", ":01 +");
    // One each 200 ms: all five of the first second, and the one at the beginning of the next.
    let simulated = run(&with_limit("rate = \"5/s\"\nalgorithm = \"gcra\""), &(line.repeat(5) + &later));
    assert_eq!(numbers(&simulated.candidate.limits[0]), (6, 0, 0, 0.0));
    assert!(simulated.notes[0].contains("to the second"), "{:?}", simulated.notes);
    let simulated = run(&with_limit("rate = \"5/s\"\nalgorithm = \"gcra\""), &(line.repeat(10) + &later));
    assert_eq!(numbers(&simulated.candidate.limits[0]), (6, 5, 0, 0.0));
}

#[test]
fn a_request_that_was_refused_is_taken_to_last_as_long_as_others() {
    // Of three in a second two fit in; the log knows the length of the first alone.
    let refused = log_of(&[100, 200, 700], 0).replace("\"took_ms\":0", "\"took_ms\":0,\"limit\":\"first\"");
    let log = log_of(&[0], 500) + &refused;
    let simulated = run(&with_limit("algorithm = \"concurrency\"\nmax_in_flight = 2"), &log);
    assert_eq!(numbers(&simulated.candidate.limits[0]), (3, 1, 0, 0.0));
}

#[test]
fn what_is_counted_by_the_answer_is_counted_by_the_status_in_the_log() {
    let log = log_of(&[0, 100, 200, 300, 400], 10).replacen("\"took_ms\"", "\"status\":401,\"took_ms\"", 2);
    let simulated = run(&with_limit("rate = \"2/h\"\ncount_when = { status = [\"401\"] }"), &log);
    assert_eq!(numbers(&simulated.candidate.limits[0]), (2, 3, 0, 0.0));
}

#[test]
fn costs_of_the_log_correct_the_estimates_when_each_answer_ends() {
    // Ten seconds a request, whose estimates of 40 fill the limit of 100 after two.
    let log = log_of(&[0, 1_000, 2_000, 11_000, 12_000], 10_000);
    let stated = |used: &str| log.replace("\"took_ms\"", &format!("{used}\"took_ms\""));
    let config = |more: &str| with_limit(&format!("rate = \"100/1h\"\ncost = 40\n{more}"));
    let admitted = |more: &str, used: &str| {
        let outcome = run(&config(more), &stated(used));
        let note = outcome.notes.iter().any(|note| note.contains("lacks what some responses stated"));
        (outcome.candidate.limits[0].admitted, note)
    };
    let (json, used) = ("cost_from_response = \"json:/n\"", "\"used\":{\"first\":10,\"other\":90},");
    // At 2 s two are in flight; at 11 s the first has given 30 back, and at 12 s the second.
    assert_eq!(admitted(json, used), (4, false));
    // The head states it, and each head comes at once.
    assert_eq!(admitted("cost_from_response = \"header:x-n\"", &format!("{used}\"head_ms\":0,")), (5, false));
    for used in ["", "\"used\":{\"other\":1},", "\"used\":5,", "\"used\":{\"first\":\"many\"},"] {
        assert_eq!(admitted(json, used), (2, true), "{used}");
    }
    assert_eq!(admitted("cost_by_status = { 2xx = 1 }", "\"status\":200,\"head_ms\":0,"), (5, false));
}

#[test]
fn two_files_are_compared_by_limit_and_key_and_a_rate_is_found() {
    let log = file(&log_of(&(0..100).map(|nth| nth * 100).collect::<Vec<_>>(), 0));
    let logs = Logs { files: vec![log.path().to_owned()], host: None };
    let tried = |name: &str, settings: &str| Tried { file: name.to_owned(), offline: offline(&with_limit(settings)) };
    let sides = (tried("new", "rate = \"8/s\""), tried("old", "rate = \"5/s\""));
    let simulated = simulate(&logs, sides.0, Some(sides.1), &mut |_| ()).unwrap();
    let baseline = simulated.baseline.as_ref().unwrap();
    assert_eq!((simulated.candidate.file.as_str(), baseline.file.as_str()), ("new", "old"));
    assert_eq!((simulated.candidate.admitted, baseline.admitted), (80, 50));
    let key = &simulated.candidate.limits[0].keys[0];
    assert_eq!(key.key, [("client-ip".to_owned(), "192.0.2.7".to_owned())]);
    assert_eq!((key.refused, key.admitted, key.baseline_refused), (20, Some(80), Some(50)));
    assert_eq!((simulated.step_seconds, simulated.candidate.series[0]), (1.0, [8, 2]));
    let page = html(&simulated);
    assert!(page.contains("<title>Simulation of new</title>") && page.matches("<svg").count() == 3, "{page}");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"), "{page}");

    let text = with_limit("rate = [\"5/s\", \"500/m\"]");
    let of = |goal| suggest(&logs, (Path::new("gateway.toml"), &text), "first", goal, &mut |_| ());
    let value = |goal| of(goal).map(|found| (found.value, found.refused_share));
    assert_eq!(value(0.0), Ok(("[\"10/s\", \"1000/m\"]".to_owned(), 0.0)));
    assert_eq!(value(0.2), Ok(("[\"8/s\", \"800/m\"]".to_owned(), 0.2)));
    assert_eq!(value(1.0).unwrap().0, "[\"1/s\", \"100/m\"]");
    let off = text.replace("rate = [", "mode = \"off\"\nrate = [");
    let nothing = suggest(&logs, (Path::new("gateway.toml"), &off), "first", 0.5, &mut |_| ());
    assert!(nothing.unwrap_err().contains("asked of no request"));
}
