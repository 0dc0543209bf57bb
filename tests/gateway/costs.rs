//! The cost that a request takes of a limit, where it says so itself.

use crate::support::{Answer, Client, Gateway, eventually, get, get_with};
use crate::wire::{Wire, wait_outcome};

fn costing(limit: &str, route: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[limit]]\nname = \"l\"\nkey = \"global\"\n{limit}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n{route}\n"
    )
}

/// The status, and what is left of the limit.
fn told(answer: &Answer) -> (u16, u64) {
    let state = answer.header("ratelimit").unwrap();
    let left = state.split(';').find_map(|part| part.strip_prefix("r=")).unwrap();
    (answer.status, left.parse().unwrap())
}

fn invalid(gateway: &Gateway, count: f64) {
    gateway.wait_metric("sluicegate_limit_cost_invalid_total", &["limit=\"l\""], count);
}

#[test]
fn a_header_states_what_a_request_takes() {
    let gateway = Gateway::start(&costing("rate = \"30/1h\"\ncost = \"header:X-Cost\"\nmax_cost = 8", ""));
    let ask = |cost: &str| told(&get_with(gateway.address(), "/", &[("x-cost", cost)]));
    assert_eq!(told(&get(gateway.address(), "/")), (200, 29));
    assert_eq!(ask("3"), (200, 26));
    assert_eq!(ask("0"), (200, 25));
    assert_eq!(ask("8"), (200, 17));
    assert_eq!(ask("99999999999999999999999"), (200, 9));
    invalid(&gateway, 0.0);
    assert_eq!(ask("-5"), (200, 8));
    assert_eq!(ask("1 000"), (200, 7));
    let twice = get_with(gateway.address(), "/", &[("x-cost", "5"), ("X-Cost", "5")]);
    assert_eq!(told(&twice), (200, 6));
    invalid(&gateway, 3.0);
    assert_eq!(ask("7"), (429, 6), "what is refused takes nothing");
    assert_eq!(ask("many"), (200, 5));
    assert_eq!(ask("5"), (200, 0));
    assert_eq!(ask("many"), (429, 0));
    invalid(&gateway, 5.0);
}

#[test]
fn the_length_of_its_body_is_what_a_request_takes() {
    let gateway = Gateway::start(&costing("rate = \"1000/1h\"", "cost = \"content-length\""));
    let post = |size: usize| Client::connect(gateway.address()).request("POST", "/", &[], &vec![b'x'; size]);
    assert_eq!(told(&post(600)), (200, 400));
    assert_eq!(told(&post(401)), (429, 400));
    assert!(post(401).header("retry-after").is_some());
    let too_much = post(1001);
    assert_eq!(told(&too_much), (429, 400));
    assert_eq!(too_much.header("retry-after"), None, "it can never fit");
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"too-costly\""], 1.0);
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let answer = Wire::with(gateway.address(), chunked).answer();
    assert!(answer.header("ratelimit").unwrap().contains("r=399;"), "{answer:?}");
    assert_eq!(told(&get(gateway.address(), "/")), (200, 398));
    assert_eq!(told(&post(398)), (200, 0));
    invalid(&gateway, 0.0);
}

#[test]
fn the_cost_of_the_limit_wins_and_a_new_one_holds_at_once() {
    let gateway = Gateway::start(&costing("rate = \"30/1h\"\ncost = 2", "cost = \"header:x-cost\""));
    let ask = || told(&get_with(gateway.address(), "/", &[("x-cost", "5")]));
    assert_eq!(ask(), (200, 28));
    assert_eq!(gateway.reload(&costing("rate = \"30/1h\"", "cost = \"header:x-cost\"")).status, 200);
    assert_eq!(ask(), (200, 23), "the count goes on");
    assert!(eventually(|| gateway.log().contains("limit l: changed: cost 2 -> the route's")), "{}", gateway.log());
    let other = "rate = \"30/1h\"\ncost = \"header:x-cost\"\nmax_cost = 3";
    assert_eq!(gateway.reload(&costing(other, "cost = 9")).status, 200);
    assert_eq!(ask(), (200, 20));
}

#[test]
fn a_limit_that_is_off_looks_at_no_cost() {
    let gateway = Gateway::start(&costing("rate = \"1/1h\"\ncost = \"header:x-cost\"\nmode = \"off\"", ""));
    for _ in 0..3 {
        assert_eq!(get_with(gateway.address(), "/", &[("x-cost", "many")]).status, 200);
    }
    wait_outcome(&gateway, "forwarded", 3);
    invalid(&gateway, 0.0);
}
