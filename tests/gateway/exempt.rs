//! Whom a limit does not concern.

use crate::support::{Answer, Gateway, eventually, get, get_with};

fn exempting(limit: &str) -> String {
    format!(
        "[client]\ntrusted_proxies = [\"127.0.0.1\"]\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"wide\"\nkey = \"global\"\nrate = \"100/1h\"\n\
         [[limit]]\nname = \"narrow\"\nrate = \"1/1h\"\n{limit}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"wide\", \"narrow\"]\n"
    )
}

fn from(gateway: &Gateway, client: &str) -> Answer {
    get_with(gateway.address(), "/", &[("X-Forwarded-For", client)])
}

fn names(answer: &Answer) -> Vec<&str> {
    let policy = answer.header("ratelimit-policy").unwrap_or_default();
    policy.split(", ").filter_map(|item| item.split('"').nth(1)).collect()
}

#[test]
fn a_client_of_an_exempt_network_is_not_counted() {
    let gateway = Gateway::start(&exempting("exempt = [\"198.51.100.0/24\", \"2001:db8::/32\"]"));
    for client in ["198.51.100.1", "198.51.100.1", "198.51.100.255", "2001:db8::1", "2001:db8:ffff::2", "2001:db8::1"] {
        let answer = from(&gateway, client);
        assert_eq!((answer.status, names(&answer)), (200, vec!["wide"]), "{client}");
    }
    for client in ["198.51.101.1", "2001:db9::1"] {
        let answer = from(&gateway, client);
        assert_eq!((answer.status, names(&answer)), (200, vec!["wide", "narrow"]), "{client}");
        assert_eq!(from(&gateway, client).status, 429, "{client}");
    }
    gateway.wait_metric("sluicegate_limit_decisions_total", &["limit=\"narrow\"", "decision=\"admitted\""], 2.0);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["limit=\"wide\"", "decision=\"admitted\""], 8.0);
    gateway.wait_metric("sluicegate_limit_keys", &["limit=\"narrow\""], 2.0);
}

#[test]
fn what_an_untrusted_peer_claims_exempts_nobody() {
    let rules = exempting("exempt = [\"198.51.100.0/24\"]").replace("\"127.0.0.1\"", "\"192.0.2.1\"");
    let gateway = Gateway::start(&rules);
    assert_eq!(from(&gateway, "198.51.100.1").status, 200);
    assert_eq!(from(&gateway, "198.51.100.1").status, 429);
}

#[test]
fn an_exempt_key_is_not_counted() {
    let gateway = Gateway::start(&exempting("key = \"header:x-api-key\"\nexempt = [\"key:gold\"]"));
    let with = |key: &str| get_with(gateway.address(), "/", &[("X-Api-Key", key)]);
    for _ in 0..3 {
        let answer = with("gold");
        assert_eq!((answer.status, names(&answer)), (200, vec!["wide"]));
    }
    for key in ["lead", "Gold", "gold2"] {
        assert_eq!((with(key).status, with(key).status), (200, 429), "{key}");
    }
    assert_eq!((get(gateway.address(), "/").status, get(gateway.address(), "/").status), (200, 429), "without a key");
    let twice = [("X-Api-Key", "gold"), ("X-Api-Key", "lead")];
    assert_eq!(get_with(gateway.address(), "/", &twice).status, 429, "two keys are none, and the address was counted");
}

#[test]
fn an_exempt_client_may_lack_the_key() {
    let gateway = Gateway::start(&exempting(
        "key = \"header:x-api-key\"\non_missing_key = \"refuse\"\nstatus = 403\nexempt = [\"198.51.100.7\"]",
    ));
    assert_eq!(from(&gateway, "198.51.100.7").status, 200);
    assert_eq!(from(&gateway, "198.51.100.8").status, 403);
}

#[test]
fn who_is_exempt_changes_with_a_reload_and_no_count_is_lost() {
    let gateway = Gateway::start(&exempting(""));
    let ask = || from(&gateway, "198.51.100.1").status;
    assert_eq!((ask(), ask()), (200, 429));
    assert_eq!(gateway.reload(&exempting("exempt = [\"198.51.100.1\"]")).status, 200);
    assert_eq!((ask(), ask()), (200, 200));
    assert!(
        eventually(|| gateway.log().contains("limit narrow: changed: exempt +198.51.100.1/32")),
        "{}",
        gateway.log()
    );
    assert_eq!(gateway.reload(&exempting("exempt = [\"198.51.100.2\"]")).status, 200);
    assert_eq!(ask(), 429, "its count of before");
    let broken = gateway.reload(&exempting("exempt = [\"198.51.100.1/24\"]"));
    assert_eq!(broken.status, 422);
    assert!(broken.text().contains("198.51.100.0/24"), "{}", broken.text());
    assert_eq!(from(&gateway, "198.51.100.2").status, 200, "the list of before");
    assert_eq!(from(&gateway, "198.51.100.2").status, 200);
}
