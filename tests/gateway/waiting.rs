use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, eventually, get};
use crate::timing::{assert_below, assert_lasted, assert_took, best_of_three};

/// Two a second in slots of 100 ms, so that room comes one second after it was taken.
fn waiting(more: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[limit]]\nname = \"l\"\nkey = \"global\"\n{more}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n"
    )
}

#[test]
fn a_request_over_the_limit_waits_for_its_slot() {
    best_of_three(|| {
        let gateway = Gateway::start(&waiting("rate = \"2/1s\"\nmax_wait = \"5s\""));
        let started = Instant::now();
        let threads: Vec<_> = (0..6)
            .map(|_| {
                let address = gateway.address();
                thread::spawn(move || (get(address, "/").status, started.elapsed()))
            })
            .collect();
        let mut ended: Vec<(u16, Duration)> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        ended.sort_by_key(|(_, at)| *at);
        assert!(ended.iter().all(|(status, _)| *status == 200), "{ended:?}");
        // Two at once, two when their slot has left the window (0.9 to 1 s later), two after that.
        for (number, millis) in [0..700, 0..700, 800..1700, 800..1700, 1700..2700, 1700..2700].into_iter().enumerate() {
            let range = Duration::from_millis(millis.start)..Duration::from_millis(millis.end);
            assert_lasted(ended[number].1, range, &format!("number {number} of {ended:?}"));
        }
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"queued\""], 4.0);
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"admitted-after-wait\""], 4.0);
        gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
    });
}

#[test]
fn a_full_queue_and_a_too_long_wait_refuse_at_once() {
    best_of_three(|| {
        let gateway = Gateway::start(&format!(
            "{}[dead_letter]\ndirectory = \"dead-letters\"\n",
            waiting("rate = \"1/10s\"\nmax_wait = \"60s\"\nmax_queue = 2")
        ));
        let mut holders: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address())).collect();
        assert_eq!(holders[0].get("/").status, 200);
        holders[1].send("GET", "/", &[], b"");
        holders[2].send("GET", "/", &[], b"");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 2.0);
        let started = Instant::now();
        assert_eq!(get(gateway.address(), "/").status, 429);
        assert_took(started, 0..5000);
        assert!(eventually(|| gateway.dead_letters().len() == 1));
        assert_eq!(gateway.dead_letters()[0]["reason"], "queue-full");
    });
}

#[test]
fn a_waiter_that_goes_away_gives_its_place_up() {
    best_of_three(|| {
        let gateway = Gateway::start(&waiting("rate = \"1/2s\"\nmax_wait = \"30s\""));
        assert_eq!(get(gateway.address(), "/").status, 200);
        let mut first = Client::connect(gateway.address());
        first.send("GET", "/first", &[], b"");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        let mut second = Client::connect(gateway.address());
        second.send("GET", "/second", &[], b"");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 2.0);
        drop(first);
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        let started = Instant::now();
        assert_eq!(second.read_answer(false).unwrap().json()["path"], "/second");
        assert_below(started.elapsed(), Duration::from_millis(2500), "the second, which moved up,");
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"cancelled\""], 1.0);
        gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 1.0);
    });
}

#[test]
fn waiters_are_let_go_when_their_limit_is_switched_off() {
    let slow = waiting("rate = \"1/1h\"\nmax_wait = \"1h\"\ntimeout = \"3h\"");
    let gateway = Gateway::start(&format!("[server]\nresponse_timeout = \"none\"\n{slow}"));
    assert_eq!(get(gateway.address(), "/").status, 200);
    let mut waiter = Client::connect(gateway.address());
    waiter.send("GET", "/", &[], b"");
    gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
    let off = waiting("rate = \"1/1h\"\nmax_wait = \"1h\"\ntimeout = \"3h\"\nmode = \"off\"");
    assert_eq!(gateway.reload(&format!("[server]\nresponse_timeout = \"none\"\n{off}")).status, 200);
    assert_eq!(waiter.read_answer(false).unwrap().status, 200);
}

#[test]
fn waiters_are_let_go_when_their_limit_is_removed() {
    let gateway = Gateway::start(
        &waiting("rate = \"1/1h\"\nmax_wait = \"1h\"").replace("[[route]]", "[[route]]\nresponse_timeout = \"none\""),
    );
    assert_eq!(get(gateway.address(), "/").status, 200);
    let mut waiters: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    for waiter in &mut waiters {
        waiter.send("GET", "/", &[], b"");
    }
    gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"refused\""], 2.0);
    let free = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n";
    assert_eq!(gateway.reload(free).status, 200);
    let statuses: Vec<u16> = waiters.iter_mut().map(|waiter| waiter.read_answer(false).unwrap().status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "one place in the queue: {statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 2, "{statuses:?}");
}

#[test]
fn a_wait_in_vain_is_a_429_that_says_so() {
    best_of_three(|| {
        let log = "[dead_letter]\ndirectory = \"dead-letters\"\n";
        let gateway = Gateway::start(&format!("{}{log}", waiting("rate = \"1/1s\"\nmax_wait = \"2s\"")));
        assert_eq!(get(gateway.address(), "/").status, 200);
        let started = Instant::now();
        let mut waiter = Client::connect(gateway.address());
        waiter.send("GET", "/", &[], b"");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        // Now its room comes in an hour: it keeps its place and its deadline.
        let hourly = waiting("rate = \"1/1h\"\nmax_wait = \"2s\"");
        assert_eq!(gateway.reload(&format!("{hourly}{log}")).status, 200);
        let answer = waiter.read_answer(false).unwrap();
        assert_eq!(answer.status, 429);
        assert!(answer.text().contains("Timed out waiting for limit"), "{}", answer.text());
        assert_took(started, 2000..4000);
        assert!(eventually(|| gateway.dead_letters().len() == 1));
        assert_eq!(gateway.dead_letters()[0]["reason"], "wait-timeout");
        gateway.wait_metric("sluicegate_requests_total", &["outcome=\"wait-timeout\""], 1.0);
        gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"wait-timeout\""], 1.0);
    });
}

#[test]
fn the_counts_of_each_limit_balance() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"slow\"\nkey = \"global\"\nrate = \"2/1s\"\nmax_wait = \"2s\"\n\
         [[limit]]\nname = \"wide\"\nkey = \"client-ip\"\nrate = \"1000/s\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"slow\", \"wide\"]\n",
    );
    let threads: Vec<_> = (0..9)
        .map(|_| {
            let address = gateway.address();
            thread::spawn(move || get(address, "/").status)
        })
        .collect();
    let passed = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|status| *status == 200).count();
    let count = |limit: &str, decision: &str| {
        let labels = [format!("limit=\"{limit}\""), format!("decision=\"{decision}\"")];
        gateway.metric("sluicegate_limit_decisions_total", &[labels[0].as_str(), labels[1].as_str()])
    };
    #[allow(clippy::cast_precision_loss, reason = "nine at most")]
    let passed = passed as f64;
    let same = |left: f64, right: f64| (left - right).abs() < 0.5;
    let refused = count("slow", "refused") + count("slow", "queue-full");
    assert!(same(count("slow", "queued"), count("slow", "admitted-after-wait") + count("slow", "wait-timeout")));
    assert!(same(9.0, refused + count("slow", "queued") + count("slow", "admitted")), "arrivals");
    assert!(same(passed, count("slow", "admitted") + count("slow", "admitted-after-wait")));
    assert!(same(passed, count("wide", "admitted")), "who waited for the one was admitted by the other");
    assert!(same(0.0, count("wide", "queued") + count("wide", "admitted-after-wait")));
    assert!(count("slow", "admitted-after-wait") > 0.5);
}

/// A limit is replaced under its name while some wait for it: they end, and the figures of before go on.
#[test]
fn the_waiters_of_a_replaced_limit_stay_in_the_balance() {
    let of = |limit: &str| waiting(limit).replace("[[route]]", "[[route]]\nresponse_timeout = \"none\"");
    let slow = "rate = \"1/10m\"\nmax_wait = \"1h\"\nmax_queue = 3";
    let another_algorithm = of(&format!("algorithm = \"gcra\"\n{slow}"));
    let another_key = of(slow).replace("\"global\"", "\"client-ip\"");
    for replaced in [another_algorithm, another_key] {
        let gateway = Gateway::start(&of(slow));
        let decisions = |decision: &str, count: f64| {
            let label = format!("decision=\"{decision}\"");
            gateway.wait_metric("sluicegate_limit_decisions_total", &["limit=\"l\"", &label], count);
        };
        assert_eq!(get(gateway.address(), "/").status, 200);
        let mut waiters: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address())).collect();
        for waiter in &mut waiters {
            waiter.send("GET", "/", &[], b"");
        }
        gateway.wait_metric("sluicegate_limit_waiting", &[], 3.0);
        drop(waiters.remove(0));
        gateway.wait_metric("sluicegate_limit_waiting", &[], 2.0);
        assert_eq!(gateway.reload(&replaced).status, 200);
        for waiter in &mut waiters {
            let answer = waiter.read_answer(false).unwrap();
            assert!(answer.status == 429 && answer.text().contains("Timed out waiting for limit"), "{}", answer.text());
        }
        // Queued: cancelled, waited in vain, and nobody waits.
        for (decision, count) in
            [("queued", 3.0), ("cancelled", 1.0), ("wait-timeout", 2.0), ("admitted-after-wait", 0.0)]
        {
            decisions(decision, count);
        }
        gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
        // The new one has counted nothing yet, and its waiters come on top.
        assert_eq!(get(gateway.address(), "/").status, 200);
        let mut waiter = Client::connect(gateway.address());
        waiter.send("GET", "/", &[], b"");
        gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
        for (decision, count) in [("admitted", 2.0), ("queued", 4.0), ("cancelled", 1.0), ("wait-timeout", 2.0)] {
            decisions(decision, count);
        }
    }
}
