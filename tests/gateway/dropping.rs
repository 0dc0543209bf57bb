//! Routes that close the connection where others refuse.

use std::time::{Duration, Instant};

use crate::support::{Backend, Client, Gateway, eventually, get_with};
use crate::timing::{assert_below, best_of_three};
use crate::wire::{Wire, get, only_letter, telling, wait_outcome};

fn dropping(backend: &Backend, limit: &str) -> String {
    format!(
        "[log]\naccess = \"json\"\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"global\"\n{limit}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\non_limit = \"drop\"\n\
         [dead_letter]\ndirectory = \"dead-letters\"\n",
        backend.address
    )
}

#[test]
fn a_request_over_the_limit_gets_no_answer_and_the_logs_know_it() {
    let backend = telling();
    let gateway = Gateway::start(&dropping(&backend, "rate = \"1/1h\""));
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/").status(), 200);
    wire.send(get("/second"));
    wire.assert_ended();
    wait_outcome(&gateway, "dropped", 1);
    wait_outcome(&gateway, "refused", 0);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["limit=\"l\"", "decision=\"refused\""], 1.0);
    gateway.wait_metric("sluicegate_responses_total", &["class=\"4xx\""], 0.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    let letter = only_letter(&gateway);
    assert_eq!((&letter["reason"], &letter["status"]), (&"rate-limited".into(), &444.into()));
    assert_eq!((&letter["limit"], &letter["path"]), (&"l".into(), &"/second".into()));
    assert_eq!((&letter["quota"]["limit"], &letter["quota"]["remaining"]), (&1.into(), &0.into()));
    assert!(eventually(|| gateway.access_log().len() == 2));
    let line = &gateway.access_log()[1];
    assert_eq!((&line["status"], &line["bytes_sent"]), (&444.into(), &0.into()));
    assert_eq!((&line["outcome"], &line["limit"]), (&"dropped".into(), &"l".into()));
}

#[test]
fn requests_behind_a_dropped_one_are_not_read_and_those_before_it_are_answered() {
    let backend = telling();
    let rules = dropping(&backend, "rate = \"2/1h\"");
    let free = "[[route]]\nname = \"free\"\npath = \"/free\"\nupstream = \"app\"\n";
    let gateway = Gateway::start(&format!("{rules}{free}"));
    let mut wire = Wire::open(gateway.address());
    let all: String = ["/1", "/free", "/2", "/dropped", "/free/3", "/4"].map(get).concat();
    wire.send(all);
    for target in ["/1", "/free", "/2"] {
        assert!(wire.answer().text().ends_with(&format!(" {target}")));
    }
    wire.assert_ended();
    wait_outcome(&gateway, "dropped", 1);
    wait_outcome(&gateway, "forwarded", 3);
    assert_eq!(backend.requests(), 3);
}

#[test]
fn a_body_that_is_yet_to_come_is_not_waited_for() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&dropping(&backend, "rate = \"1/1h\""));
        assert_eq!(Wire::open(gateway.address()).get("/").status(), 200);
        for fields in
            ["Content-Length: 1000000", "Content-Length: 5\r\nExpect: 100-continue", "Transfer-Encoding: chunked"]
        {
            let mut wire = Wire::with(gateway.address(), format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n"));
            wire.assert_ended();
            // Nobody is there to read it, not even to throw it away.
            let started = Instant::now();
            assert!(eventually(|| !wire.send("5\r\n")));
            assert_below(started.elapsed(), Duration::from_secs(1), fields);
        }
        wait_outcome(&gateway, "dropped", 3);
    });
}

#[test]
fn a_wait_in_vain_is_dropped_too() {
    let backend = telling();
    let gateway = Gateway::start(&dropping(&backend, "rate = \"1/1s\"\nmax_wait = \"1s\""));
    assert_eq!(Wire::open(gateway.address()).get("/").status(), 200);
    let mut waiter = Wire::with(gateway.address(), get("/waits"));
    gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
    // Now its room comes in an hour.
    assert_eq!(gateway.reload(&dropping(&backend, "rate = \"1/1h\"\nmax_wait = \"1s\"")).status, 200);
    waiter.assert_ended();
    wait_outcome(&gateway, "dropped", 1);
    wait_outcome(&gateway, "wait-timeout", 0);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"wait-timeout\""], 1.0);
    let letter = only_letter(&gateway);
    assert_eq!((&letter["reason"], &letter["status"]), (&"wait-timeout".into(), &444.into()));
    assert_eq!(backend.requests(), 1);
}

#[test]
fn who_lacks_the_key_is_dropped_where_others_refuse() {
    let backend = telling();
    let keyed = "rate = \"1/1h\"\non_missing_key = \"refuse\"";
    let rules = dropping(&backend, keyed).replace("\"global\"", "\"header:k\"");
    let gateway = Gateway::start(&rules);
    Wire::with(gateway.address(), get("/")).assert_ended();
    assert_eq!(get_with(gateway.address(), "/", &[("k", "1")]).status, 200);
    wait_outcome(&gateway, "dropped", 1);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"missing-key\""], 1.0);
    assert_eq!(only_letter(&gateway)["status"], 444);
    assert_eq!(gateway.reload(&rules.replace("\"drop\"", "\"refuse\"")).status, 200);
    let mut client = Client::connect(gateway.address());
    assert_eq!((client.get("/").status, client.get("/").status), (429, 429), "the connection stays");
}
