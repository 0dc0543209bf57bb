//! How limits have decided, as a route tells its server and its clients.

use std::fs;

use crate::edits::BOTH;
use crate::support::{Answer, Gateway, Store, eventually, get, get_with};

/// A server that answers with the fields that it got.
const RULES: &str = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n";

fn state<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.header(name).unwrap_or_else(|| panic!("no {name}: {answer:?}"))
}

#[test]
fn servers_and_clients_are_told_which_requests_a_shadow_limit_would_have_refused() {
    let gateway = Gateway::start(&format!(
        "{RULES}[[limit]]\nname = \"trial.a-1\"\nkey = \"header:x-key\"\nrate = [\"2/1h\", \"5/2h\"]\nmode = \"shadow\"\n\
         on_missing_key = \"skip\"\nexempt = [\"key:vip\"]\n\
         [[limit]]\nname = \"later\"\nrate = \"1/1h\"\nmode = \"shadow\"\nactive = {{ from = \"2999-01-01T00:00\" }}\n\
         [[limit]]\nname = \"off\"\nrate = \"1/1h\"\nmode = \"off\"\n\
         [[limit]]\nname = \"wide\"\nkey = \"header:x-key\"\nrate = \"4/1h\"\non_missing_key = \"skip\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"later\", \"trial.a-1\", \"off\", \"wide\"]\n\
         request_headers = {{ set = {{ x-over = \"{{limit.trial.a-1.state}}\" }} }}\n\
         [route.response_headers]\nset = {{ x-trial = \"{{limit.trial.a-1.state}}\", x-later = \"{{limit.later.state}}\", \
         x-off = \"{{limit.off.state}}\", x-wide = \"{{limit.wide.state}}\" }}\n"
    ));
    for (nth, protocol) in BOTH.into_iter().enumerate() {
        let key = format!("k{nth}");
        let ask = |key: &str| protocol.ask(&gateway, "GET", "/", &[("x-key", key), ("x-over", "forged")]);
        for expected in ["ok", "ok", "over", "over"] {
            let answer = ask(&key);
            assert_eq!(answer.status, 200);
            assert_eq!((state(&answer, "x-trial"), state(&answer, "x-wide")), (expected, "ok"));
            assert_eq!((state(&answer, "x-later"), state(&answer, "x-off")), ("unknown", "unknown"));
            let echoed = answer.json();
            let fields = echoed["headers"].as_array().unwrap();
            let told: Vec<_> = fields.iter().filter(|pair| pair[0] == "x-over").map(|pair| &pair[1]).collect();
            assert_eq!(told, [expected], "{protocol:?}");
        }
        let refused = ask(&key);
        assert_eq!((refused.status, state(&refused, "x-trial"), state(&refused, "x-wide")), (429, "over", "over"));
        assert_eq!(state(&ask("vip"), "x-trial"), "unknown", "an exempt client");
        assert_eq!(state(&ask(&format!("other{nth}")), "x-trial"), "ok", "another key");
    }
    assert_eq!(state(&get(gateway.address(), "/"), "x-trial"), "unknown", "a request without the key");
}

#[test]
fn a_limit_whose_store_is_away_does_not_know() {
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    let gateway = Gateway::start_in(
        directory,
        &format!(
            "{}[fleet]\nstore = \"redis://{}\"\nsecret_file = \"fleet.key\"\n\
             [[limit]]\nname = \"shared\"\nkey = \"header:x-key\"\nrate = \"9/1h\"\nmode = \"shadow\"\nshared = \"lease\"\n\
             [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"shared\"]\n\
             response_headers = {{ set = {{ x-state = \"{{limit.shared.state}}\" }} }}\n",
            crate::support::FRAME,
            store.address()
        ),
    );
    let ask = |key: &str| state(&get_with(gateway.address(), "/", &[("x-key", key)]), "x-state").to_owned();
    assert!(eventually(|| ask("a") == "ok"));
    drop(store);
    assert!(eventually(|| ask("b") == "unknown"));
}
