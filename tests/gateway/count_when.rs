//! Requests that count only when their answer is of a certain kind.

use crate::support::{Gateway, get};

fn counting(statuses: &str) -> Gateway {
    Gateway::start(&format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[upstream]]\nname = \"gone\"\nservers = [\"127.0.0.1:1\"]\n\
         [[limit]]\nname = \"failures\"\nrate = \"3/1h\"\ncount_when = {{ status = [{statuses}] }}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"failures\"]\n\
         [[route]]\nname = \"gone\"\npath = \"/gone\"\nupstream = \"gone\"\nlimits = [\"failures\"]\n\
         [[route]]\nname = \"own\"\npath = \"/own\"\nrespond = {{ status = 403 }}\nlimits = [\"failures\"]\n"
    ))
}

fn remaining(gateway: &Gateway) -> u64 {
    let answer = get(gateway.address(), "/");
    assert_eq!(answer.status, 200);
    answer.header("ratelimit").unwrap().split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
}

#[test]
fn only_failures_count_and_the_third_is_the_last() {
    let gateway = counting("\"401\", \"4xx\"");
    for _ in 0..20 {
        assert_eq!(remaining(&gateway), 3, "successes are free");
    }
    assert_eq!(get(gateway.address(), "/?status=503").status, 503);
    for left in [2, 1] {
        assert_eq!(get(gateway.address(), "/?status=401").status, 401);
        assert_eq!(remaining(&gateway), left);
    }
    assert_eq!(get(gateway.address(), "/own").status, 403, "an answer of the gateway's own counts too");
    let refused = get(gateway.address(), "/");
    assert_eq!(refused.status, 429);
    assert!((3_500..=3_600).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()));
}

#[test]
fn a_status_that_is_taken_out_does_not_count() {
    let gateway = counting("\"!404\", \"4xx\", \"!422\"");
    for status in [422, 404, 503] {
        assert_eq!(get(gateway.address(), &format!("/?status={status}")).status, status);
        assert_eq!(remaining(&gateway), 3, "{status} counts nothing");
    }
    assert_eq!(get(gateway.address(), "/?status=400").status, 400);
    assert_eq!(remaining(&gateway), 2);
}

#[test]
fn all_statuses_count_but_those_that_are_taken_out() {
    let gateway = counting("\"!2xx\", \"!422\"");
    for status in [204, 422] {
        assert_eq!(get(gateway.address(), &format!("/?status={status}")).status, status);
        assert_eq!(remaining(&gateway), 3, "{status} counts nothing");
    }
    for (status, left) in [(302, 2), (503, 1)] {
        assert_eq!(get(gateway.address(), &format!("/?status={status}")).status, status);
        assert_eq!(remaining(&gateway), left);
    }
}

#[test]
fn an_upstream_that_cannot_be_reached_counts_as_the_502_that_it_is() {
    let gateway = counting("\"5xx\"");
    for _ in 0..3 {
        assert_eq!(get(gateway.address(), "/gone").status, 502);
    }
    assert_eq!(get(gateway.address(), "/gone").status, 429);
    assert_eq!(get(gateway.address(), "/own").status, 429, "the limit is the same on every route");
}
