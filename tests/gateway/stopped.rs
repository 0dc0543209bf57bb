//! The process is stopped under load, as by a suspended machine, until everything that it held is overdue.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Answer, Backend, Client, Gateway, eventually, get, write_ok};
use crate::timing::{assert_below, best_of_three};

/// So many in two seconds, ten slots of 200 ms.
const LIMIT: usize = 8;
/// No stretch of this length admits more: a window without a slot, and 300 ms for a request's way to the upstream.
const STRETCH: Duration = Duration::from_millis(1500);
/// Requests that come while nobody is there to take them.
const LATECOMERS: usize = 30;

/// A gateway whose upstream never answers `/slow`, and the instants at which requests reached the upstream.
fn gateway() -> (Gateway, Arc<Mutex<Vec<Instant>>>) {
    let reached: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let log = Arc::clone(&reached);
    let backend = Backend::start(move |seen, stream| {
        log.lock().unwrap().push(Instant::now());
        if seen.target() == "/slow" {
            return stream.read(&mut [0; 16]).is_ok_and(|size| size > 0);
        }
        write_ok(stream, b"fast")
    });
    // Longer than a window, so that one more quota may wait; shorter than any stop.
    let gateway = Gateway::start(&format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"global\"\nrate = \"{LIMIT}/2s\"\nmax_wait = \"2400ms\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\ntimeout = \"2500ms\"\n",
        backend.address
    ));
    (gateway, reached)
}

fn send(gateway: &Gateway, requests: usize, target: &str) -> Vec<Client> {
    let send = |_| {
        let mut client = Client::connect(gateway.address());
        client.send("GET", target, &[], b"");
        client
    };
    (0..requests).map(send).collect()
}

fn answers(clients: Vec<Client>) -> Vec<Answer> {
    clients.into_iter().map(|mut client| client.read_answer(false).unwrap()).collect()
}

fn statuses(answers: &[Answer]) -> BTreeMap<u16, usize> {
    let mut statuses = BTreeMap::new();
    for answer in answers {
        *statuses.entry(answer.status).or_default() += 1;
    }
    statuses
}

/// A metric that counts requests.
fn count(gateway: &Gateway, name: &str, label: &str) -> usize {
    gateway.metric(&format!("sluicegate_{name}"), &[label]) as usize
}

/// Checks the fate of each arrival: the three balances of the limiter, in the gateway's own metrics.
fn balances(gateway: &Gateway, arrivals: usize, upstream: usize) {
    let decided = |decision: &str| count(gateway, "limit_decisions_total", &format!("decision=\"{decision}\""));
    let ended = |outcome: &str| count(gateway, "requests_total", &format!("outcome=\"{outcome}\""));
    let refused = decided("refused") + decided("queue-full");
    assert_eq!(arrivals, refused + decided("queued") + decided("admitted"));
    assert_eq!(decided("queued"), decided("admitted-after-wait") + decided("wait-timeout") + decided("cancelled"));
    let admitted = decided("admitted") + decided("admitted-after-wait");
    let gone = ended("client-gone") - decided("cancelled");
    assert_eq!(admitted, ended("forwarded") + ended("timeout") + gone);
    assert_eq!(admitted, upstream, "each was sent on once");
    assert_eq!((refused, decided("wait-timeout")), (ended("refused"), ended("wait-timeout")));
}

/// Checks that never more requests than the limit admits have reached the upstream, before a stop and after it.
fn holds_the_limit(reached: &Mutex<Vec<Instant>>) {
    let mut reached = reached.lock().unwrap().clone();
    reached.sort();
    for most in reached.windows(LIMIT + 1) {
        let took = most[LIMIT] - most[0];
        assert!(took > STRETCH, "more than {LIMIT} in {took:?}");
    }
}

#[test]
fn a_stop_under_load_ends_what_is_overdue_and_admits_no_more_than_the_limit() {
    best_of_three(|| {
        let long = std::env::var_os("SLUICEGATE_LONG").is_some();
        let (gateway, reached) = gateway();
        let reached_by_now = || reached.lock().unwrap().len();
        let mut admitted = send(&gateway, LIMIT, "/slow");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], LIMIT as f64);
        let mut queued = send(&gateway, LIMIT, "/slow");
        gateway.wait_metric("sluicegate_limit_waiting", &[], LIMIT as f64);
        let refused = send(&gateway, 4, "/slow");
        assert_eq!(statuses(&answers(refused)), [(429, 4)].into());
        assert!(eventually(|| reached_by_now() == LIMIT));

        gateway.pause();
        let stopped = Instant::now();
        drop((admitted.pop(), queued.pop()));
        let late = send(&gateway, LATECOMERS, "/fast");
        let lasts = Duration::from_secs(if long { 10 } else { 3 });
        thread::sleep(lasts.saturating_sub(stopped.elapsed()));
        gateway.resume();
        let resumed = Instant::now();

        assert_eq!(statuses(&answers(admitted)), [(504, LIMIT - 1)].into());
        let queued = answers(queued);
        assert_eq!(statuses(&queued), [(429, LIMIT - 1)].into());
        assert!(queued.iter().all(|answer| answer.text().contains("Timed out waiting for limit")), "{queued:?}");
        assert_below(resumed.elapsed(), Duration::from_secs(1), "what is overdue");

        // One quota at once, and one that waits for the next window if it came when the old queue had gone.
        let late = statuses(&answers(late));
        let served = late.get(&200).copied().unwrap_or(0);
        assert!((LIMIT..=2 * LIMIT).contains(&served), "{late:?}");
        assert_eq!(served + late.get(&429).copied().unwrap_or(0), LATECOMERS, "{late:?}");
        for _ in 0..3 {
            assert_eq!(get(gateway.address(), "/fast").status, 200, "as if nothing had been");
        }
        gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        let arrivals = 2 * LIMIT + 4 + LATECOMERS + 3;
        let done = || count(&gateway, "requests_total", "") == arrivals;
        assert!(eventually(done), "{} of {arrivals} requests have ended", count(&gateway, "requests_total", ""));
        balances(&gateway, arrivals, reached_by_now());

        holds_the_limit(&reached);
    });
}

#[test]
fn a_stop_shorter_than_a_window_gives_nobody_the_quota_a_second_time() {
    let (gateway, reached) = gateway();
    let before = answers(send(&gateway, LIMIT, "/fast"));
    assert_eq!(statuses(&before), [(200, LIMIT)].into());

    gateway.pause();
    let stopped = Instant::now();
    let late = send(&gateway, LATECOMERS, "/fast");
    // Several slots are skipped at once, and all that was admitted before still counts.
    thread::sleep(Duration::from_millis(800).saturating_sub(stopped.elapsed()));
    gateway.resume();

    let late = statuses(&answers(late));
    holds_the_limit(&reached);
    let served = late.get(&200).copied().unwrap_or(0);
    assert!((LIMIT..=2 * LIMIT).contains(&served), "they wait for the next window: {late:?}");
    assert_eq!(served + late.get(&429).copied().unwrap_or(0), LATECOMERS, "{late:?}");
    balances(&gateway, LIMIT + LATECOMERS, LIMIT + served);
}
