//! Thousands of limits and routes: what they weigh, what is told of them, and that a reload of one keeps the counts of all.

use std::fmt::Write as _;

use crate::support::{Client, Gateway, eventually, get, get_with};

const LIMITS: usize = 2_000;

/// So many limits, each with a route; the last one by its own rate.
fn many(last: &str) -> String {
    let mut text = String::new();
    for at in 0..LIMITS {
        let rate = if at == LIMITS - 1 { last } else { "2/1h" };
        let _ = write!(
            text,
            "[[limit]]\nname = \"limit-{at}\"\nrate = \"{rate}\"\n\
             [[route]]\nname = \"route-{at}\"\npath = \"/{at}\"\nlimits = [\"limit-{at}\"]\nrespond = {{ body = \"{at}\" }}\n"
        );
    }
    text
}

#[test]
fn limits_that_nobody_asks_weigh_little_and_keep_their_counts_when_one_is_reloaded() {
    let few = Gateway::start("[[route]]\nname = \"all\"\nrespond = {}\n").resident();
    let gateway = Gateway::start(&many("2/1h"));
    assert_eq!(get(gateway.address(), "/0").text(), "0");
    let each = gateway.resident().saturating_sub(few) / LIMITS as u64;
    // With all that reading the file has left behind. It was 110 KB for the shards of a limit alone.
    assert!(each < 30_000, "{each} bytes for each limit and its route");
    let statuses = |path: &str| [(); 3].map(|()| get(gateway.address(), path).status);
    let last = format!("/{}", LIMITS - 1);
    assert_eq!((get(gateway.address(), "/7").status, statuses(&last)), (200, [200, 200, 429]));
    assert_eq!(gateway.reload(&many("3/1h")).status, 200);
    assert!(eventually(|| gateway.log().contains("rate 2/h -> 3/h")), "{}", gateway.log());
    assert_eq!((statuses("/7"), statuses(&last)), ([200, 429, 429], [200, 429, 429]));
    let of_last = |decision: &str| {
        let labels = [format!("limit=\"limit-{}\"", LIMITS - 1), format!("decision=\"{decision}\"")];
        gateway.metric("sluicegate_limit_decisions_total", &[&labels[0], &labels[1]])
    };
    assert!(eventually(|| (of_last("admitted"), of_last("refused")) == (3.0, 3.0)));
}

#[test]
fn metrics_of_many_come_in_pieces_and_rare_series_when_they_count() {
    let gateway = Gateway::start(&many("2/1h"));
    assert_eq!(get(gateway.address(), "/none").status, 404);
    let metrics = || gateway.ask_admin("/metrics");
    let answer = metrics();
    assert_eq!((answer.header("transfer-encoding"), answer.header("content-length")), (Some("chunked"), None));
    let series = |text: &str, name: &str| -> Vec<String> {
        let of = |line: &&str| line.contains(&format!("\"{name}\""));
        text.lines().filter(of).map(str::to_owned).collect()
    };
    let text = answer.text();
    for at in 0..LIMITS {
        assert_eq!(series(&text, &format!("route-{at}")).len(), 8, "{at}");
    }
    let common = [
        "sluicegate_limit_decisions_total{limit=\"limit-5\",decision=\"admitted\"} 0",
        "sluicegate_limit_decisions_total{limit=\"limit-5\",decision=\"refused\"} 0",
        "sluicegate_limit_decisions_total{limit=\"limit-5\",decision=\"shadow-refused\"} 0",
        "sluicegate_limit_evicted_total{limit=\"limit-5\",state=\"live\"} 0",
        "sluicegate_limit_keys{limit=\"limit-5\"} 0",
        "sluicegate_limit_waiting{limit=\"limit-5\"} 0",
    ];
    assert_eq!(series(&text, "limit-5"), common);
    let outcomes = ["forwarded", "responded", "refused", "timeout", "upstream-error"]
        .map(|outcome| format!("sluicegate_requests_total{{route=\"route-5\",outcome=\"{outcome}\"}} 0"));
    let classes = ["2xx", "4xx", "5xx"]
        .map(|class| format!("sluicegate_responses_total{{route=\"route-5\",class=\"{class}\"}} 0"));
    assert_eq!(series(&text, "route-5"), [&outcomes[..], &classes].concat());
    // A client that goes away in the middle of a page, and one that asks for its head alone.
    let mut gone = Client::connect(gateway.admin);
    gone.send("GET", "/metrics", &[("Host", "localhost")], b"");
    drop(gone);
    let mut client = Client::connect(gateway.admin);
    client.send("HEAD", "/metrics", &[("Host", "localhost")], b"");
    let head = client.read_answer(true).unwrap();
    assert_eq!((head.status, head.text().len()), (200, 0));
    assert_eq!(get(gateway.address(), "/5?x").status, 200);
    let rare = "sluicegate_requests_total{route=\"\",outcome=\"no-route\"} 1";
    assert!(eventually(|| metrics().text().contains(rare)));
    assert!(eventually(|| series(&metrics().text(), "limit-5").contains(&common[0].replace("} 0", "} 1"))));
}

#[test]
fn ten_thousand_hosts_of_a_route_are_found_the_wildcards_too() {
    let hosts: Vec<String> =
        (0..10_000).map(|at| format!("\"{}h{at}.example\"", if at % 2 == 0 { "" } else { "*." })).collect();
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"hosts\"\nhosts = [{}]\nrespond = {{ body = \"one\" }}\n",
        hosts.join(", ")
    ));
    let status = |host: &str| get_with(gateway.address(), "/", &[("Host", host)]).status;
    for at in [0, 2, 4_998, 9_998] {
        assert_eq!((status(&format!("h{at}.example")), status(&format!("x.h{at}.example"))), (200, 404), "{at}");
    }
    for at in [1, 3, 4_999, 9_999] {
        assert_eq!((status(&format!("x.y.h{at}.example")), status(&format!("h{at}.example"))), (200, 404), "{at}");
    }
}
