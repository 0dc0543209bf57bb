//! Keys by the claims of tokens, whose issuer has its keys in a file or at an address.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::edits::BOTH;
use crate::support::{Backend, FRAME, Gateway, eventually, get_with, run};

#[path = "../../crates/jwt/src/testing.rs"]
#[allow(dead_code, reason = "not every test has every key")]
mod testing;

use testing::{IssuerKey, jwks};

/// The end of tokens that do not end here.
const LATE: u64 = 4_102_444_800;

fn claims(sub: &str) -> String {
    format!("{{\"sub\":\"{sub}\",\"iss\":\"https://issuer.example\",\"aud\":[\"api\"],\"exp\":{LATE}}}")
}

/// A limit of one request by a key, and `[jwt]` by these lines.
fn rules(jwt: &str, key: &str, missing: &str) -> String {
    format!(
        "{jwt}[server]\nworkers = 1\n[log]\naccess = \"json\"\naccess_file = \"access.log\"\n[dead_letter]\n\
         [[limit]]\nname = \"user\"\nkey = {key}\nrate = \"1/h\"\non_missing_key = \"{missing}\"\n\
         [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"user\"]\n"
    )
}

const FILE: &str = "[jwt]\njwks = \"jwks.json\"\nissuer = \"https://issuer.example\"\naudience = \"api\"\n";

/// A directory with a set of keys.
fn with_keys(keys: &[String]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("jwks.json"), jwks(keys)).unwrap();
    directory
}

fn start(directory: TempDir, rules: &str) -> Gateway {
    Gateway::start_in(directory, &format!("{FRAME}{rules}"))
}

/// The status of a request with these tokens.
fn ask(gateway: &Gateway, tokens: &[&str]) -> u16 {
    ask_by(BOTH[0], gateway, tokens)
}

fn ask_by(protocol: crate::edits::Protocol, gateway: &Gateway, tokens: &[&str]) -> u16 {
    let tokens: Vec<_> = tokens.iter().map(|token| format!("Bearer {token}")).collect();
    let fields: Vec<_> = tokens.iter().map(|token| ("authorization", token.as_str())).collect();
    protocol.ask(gateway, "GET", "/", &fields).status
}

#[test]
fn users_with_tokens_are_counted_apart_and_forged_ones_by_the_address() {
    let (issuer, stranger) = (IssuerKey::rsa(), IssuerKey::rsa());
    for protocol in BOTH {
        let directory = with_keys(&[issuer.jwk("\"kid\":\"a\",\"use\":\"sig\",")]);
        let gateway = start(directory, &rules(FILE, "\"jwt:sub\"", "client-ip"));
        let ask = |tokens: &[&str]| ask_by(protocol, &gateway, tokens);
        let [ada, bob] = ["ada", "bob"].map(|sub| issuer.token("a", &claims(sub)));
        let other_ada = issuer.token("a", &claims("ada").replace("4102", "4103"));
        assert_eq!([ask(&[&ada]), ask(&[&bob])], [200, 200], "{protocol:?}");
        assert_eq!([ask(&[&ada]), ask(&[&bob]), ask(&[&other_ada])], [429; 3], "{protocol:?}");
        // All who are nobody share the count of their address.
        assert_eq!(ask(&[&stranger.token("a", &claims("eve"))]), 200);
        for token in [
            &*stranger.token("a", &claims("mallory")),
            &issuer.token("a", &claims("old").replace("4102444800", "1")),
            &issuer.token("a", &claims("foreign").replace("[\"api\"]", "\"other\"")),
            &issuer.token("b", &claims("unknown")),
            &issuer.token_of("{\"alg\":\"none\",\"kid\":\"a\"}", &claims("none")),
            &ada[..ada.len() - 1],
            ".",
            "a.b.c",
            &"x".repeat(9_000),
        ] {
            assert_eq!(ask(&[token]), 429, "{protocol:?} {token}");
        }
        assert_eq!(ask(&[]), 429, "no token at all");
        let carl = issuer.token("a", &claims("carl"));
        assert_eq!(ask(&[&carl, &ada]), 429, "two that differ are none");
        assert_eq!(ask(&[&carl, &carl]), 200, "the same twice is one");
        let count = |result| gateway.metric("sluicegate_jwt_verifications_total", &[result]);
        assert_eq!((count("valid"), count("algorithm"), count("foreign")), (4.0, 1.0, 1.0));
    }
}

#[test]
fn what_is_skipped_has_no_token_and_a_garbled_one_is_counted() {
    let issuer = IssuerKey::ed25519();
    let gateway = start(with_keys(&[issuer.jwk("")]), &rules(FILE, "\"jwt:sub\"", "skip"));
    assert_eq!((0..3).map(|_| ask(&gateway, &[])).collect::<Vec<_>>(), [200; 3]);
    assert_eq!([ask(&gateway, &["x"]), ask(&gateway, &["y"])], [200, 429]);
    let by = |field: &str| get_with(gateway.address(), "/", &[("Authorization", field)]).status;
    assert_eq!([by("Basic YTpi"), by("Bearerx"), by("Bearer"), by("bearer x")], [200, 200, 429, 429]);
}

#[test]
fn keys_that_change_in_their_file_hold_at_once() {
    let (old, new) = (IssuerKey::p256(), IssuerKey::ed25519());
    let gateway = start(with_keys(&[old.jwk("\"kid\":\"old\",")]), &rules(FILE, "\"jwt:sub\"", "refuse"));
    let by_old = |sub: &str| old.token("old", &claims(sub));
    let by_new = |sub: &str| new.token("new", &claims(sub));
    assert_eq!([ask(&gateway, &[&by_old("a")]), ask(&gateway, &[&by_new("b")])], [200, 429]);
    gateway.wait_metric("sluicegate_jwt_keys", &[], 1.0);
    let file = gateway.directory.path().join("jwks.json");
    let replace = |text: &str| {
        let next = gateway.directory.path().join("next.json");
        fs::write(&next, text).unwrap();
        fs::rename(&next, &file).unwrap();
    };
    replace(&jwks(&[old.jwk("\"kid\":\"old\","), new.jwk("\"kid\":\"new\",")]));
    gateway.wait_metric("sluicegate_jwt_keys", &[], 2.0);
    assert_eq!([ask(&gateway, &[&by_new("b")]), ask(&gateway, &[&by_old("a")])], [200, 429], "counts go on");
    replace("<html>");
    assert!(eventually(|| gateway.log().contains("is no set of keys: it is no JSON")));
    assert_eq!(ask(&gateway, &[&by_new("c")]), 200, "the keys of before go on");
    replace(&jwks(&[new.jwk("\"kid\":\"new\",")]));
    gateway.wait_metric("sluicegate_jwt_keys", &[], 1.0);
    assert_eq!([ask(&gateway, &[&by_old("d")]), ask(&gateway, &[&by_new("d")])], [429, 200]);
}

/// An issuer at an address, as it answers now.
fn issuer_at(answer: &Arc<Mutex<String>>) -> Backend {
    let says = Arc::clone(answer);
    Backend::start(move |_, stream| stream.write_all(says.lock().unwrap().as_bytes()).is_ok())
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn at(backend: &Backend) -> String {
    format!("[jwt]\njwks = \"http://{}/jwks.json\"\n", backend.address)
}

#[test]
fn an_issuer_that_goes_away_leaves_its_keys_over_reloads() {
    let issuer = IssuerKey::rsa();
    let says = Arc::new(Mutex::new(ok(&jwks(&[issuer.jwk("\"kid\":\"a\",")]))));
    let backend = issuer_at(&says);
    let rules = rules(&at(&backend), "\"jwt:sub\"", "refuse");
    let gateway = start(tempfile::tempdir().unwrap(), &rules);
    gateway.wait_metric("sluicegate_jwt_keys", &[], 1.0);
    assert_eq!(backend.requests(), 1);
    "HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n".clone_into(&mut says.lock().unwrap());
    assert_eq!(ask(&gateway, &[&issuer.token("a", &claims("ada"))]), 200);
    gateway.reload(&rules.replace("1/h", "2/h"));
    assert_eq!(ask(&gateway, &[&issuer.token("a", &claims("bob"))]), 200);
    // Unknown keys ask for the set once a minute at most.
    for kid in ["b", "c", "d"] {
        assert_eq!(ask(&gateway, &[&issuer.token(kid, &claims("eve"))]), 429);
    }
    assert_eq!(backend.requests(), 1);
    gateway.wait_metric("sluicegate_jwt_verifications_total", &["unknown-key"], 3.0);
    gateway.wait_metric("sluicegate_jwt_verifications_total", &["valid"], 2.0);
}

#[test]
fn an_issuer_whose_answer_is_no_set_of_keys_opens_no_door() {
    let issuer = IssuerKey::ed25519();
    let good = jwks(&[issuer.jwk("\"kid\":\"a\",")]);
    let elsewhere = issuer_at(&Arc::new(Mutex::new(ok(&good))));
    let redirect =
        format!("HTTP/1.1 302 Found\r\nLocation: http://{}/\r\nContent-Length: 0\r\n\r\n", elsewhere.address);
    let many = format!("{{\"keys\":[{}{{}}]}}", "{\"kty\":\"oct\"},".repeat(10_000));
    for (answer, said) in [
        (redirect, "redirects are not followed"),
        (ok("<html>"), "it is no JSON"),
        (ok(&many), "none of its keys is used"),
        (ok(&format!("{}{good}", " ".repeat(256 * 1024))), "larger than 256 KiB"),
        (String::new(), "no valid answer"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_owned(), "broke off, or was too slow"),
    ] {
        let slow = answer.ends_with('{');
        let backend = Backend::start(move |_, stream: &mut TcpStream| {
            let _ = stream.write_all(answer.as_bytes());
            if slow {
                thread::sleep(Duration::from_secs(7));
            }
            false
        });
        let gateway = start(tempfile::tempdir().unwrap(), &rules(&at(&backend), "\"jwt:sub\"", "refuse"));
        assert_eq!(ask(&gateway, &[&issuer.token("a", &claims("ada"))]), 429, "{said}");
        assert!(eventually(|| gateway.log().contains("the keys of [jwt] cannot be had")), "{said}");
        assert!(gateway.log().contains(said), "{said}: {}", gateway.log());
        assert_eq!(ask(&gateway, &[&issuer.token("a", &claims("bob"))]), 429, "{said}");
        gateway.wait_metric("sluicegate_jwt_keys", &[], 0.0);
        assert_eq!(gateway.log().matches("cannot be had").count(), 1, "{said}");
    }
    assert_eq!(elsewhere.requests(), 0);
}

#[test]
fn claims_are_known_to_logs_simulations_and_explanations_and_tokens_are_not() {
    let issuer = IssuerKey::ed25519();
    let gateway =
        start(with_keys(&[issuer.jwk("")]), &rules(FILE, "[\"jwt:sub\", \"jwt-unverified:/realm/id\"]", "client-ip"));
    let token = |sub: &str| issuer.token_of("{\"alg\":\"EdDSA\"}", &claims(sub).replace('}', ",\"realm\":{\"id\":7}}"));
    let tokens = ["ada", "ada", "bob", "ada"].map(token);
    let statuses = tokens.each_ref().map(|token| ask(&gateway, &[token]));
    assert_eq!(statuses, [200, 429, 200, 429]);
    let admin = format!("http://{}", gateway.admin);
    let authorization = format!("Authorization: Bearer {}", tokens[0]);
    let words = ["explain", "GET", "/", "--live", "--admin", &admin, "-H", &authorization];
    let (status, explained, errors) = run(&words, gateway.directory.path());
    assert!(status.success() && explained.contains("jwt:sub") && explained.contains("ada"), "{explained}{errors}");
    let access = gateway.directory.path().join("access.log");
    let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    assert!(eventually(|| lines(&access).lines().count() == 4));
    assert!(lines(&access).contains("\"jwt:sub\":\""), "{}", lines(&access));
    let (status, simulated, errors) = run(&["simulate", "--json", "access.log"], gateway.directory.path());
    assert!(status.success(), "{errors}");
    let simulated: serde_json::Value = serde_json::from_str(&simulated).unwrap();
    assert_eq!((&simulated["admitted"], &simulated["refused"]), (&2.into(), &2.into()), "{simulated}");
    assert!(eventually(|| gateway.dead_letters().len() >= 2));
    let letters = format!("{:?}", gateway.dead_letters());
    assert!(letters.contains("jwt:sub"), "{letters}");
    for text in [&explained, &letters, &lines(&access), &gateway.log()] {
        for secret in tokens.iter().flat_map(|token| token.split('.').skip(1)) {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn a_claim_behind_a_verifier_needs_no_keys() {
    let issuer = IssuerKey::ed25519();
    let gateway = start(tempfile::tempdir().unwrap(), &rules("", "\"jwt-unverified:sub\"", "refuse"));
    let [ada, bob] = ["ada", "bob"].map(|sub| issuer.token("any", &claims(sub)));
    let statuses = [&ada, &bob, &ada].map(|token| ask(&gateway, &[token]));
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!([ask(&gateway, &[]), ask(&gateway, &["x"])], [429, 429]);
    assert!(!gateway.ask_admin("/metrics").text().contains("sluicegate_jwt_keys"), "there is no [jwt]");
}

#[test]
fn plans_bandwidths_exemptions_and_sticky_servers_go_by_claims_too() {
    let issuer = IssuerKey::ed25519();
    let directory = with_keys(&[issuer.jwk("")]);
    let plans = "default = \"free\"\n[plan.free]\n[plan.pro]\nuser = { rate = \"3/h\" }\n[keys]\nada = \"pro\"\n";
    fs::write(directory.path().join("plans.toml"), plans).unwrap();
    let names: Vec<_> = ('a'..='i').map(|name| format!("\"echo:{name}\"")).collect();
    let gateway = start(
        directory,
        &format!(
            "{FILE}[[upstream]]\nname = \"app\"\nservers = [{}]\nbalance = \"hash\"\nhash_key = \"jwt:sub\"\n\
             [[limit]]\nname = \"user\"\nkey = \"jwt:sub\"\nrate = \"1/h\"\nexempt = [\"key:root\"]\n\
             [[bandwidth]]\nname = \"slow\"\nkey = \"jwt:sub\"\nrate = \"1MiB/s\"\n\
             [[route]]\nname = \"limited\"\npath = \"/limited\"\nupstream = \"app\"\nlimits = [\"user\"]\n\
             bandwidth = [\"slow\"]\nplans = {{ file = \"plans.toml\", key = \"jwt:sub\" }}\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\n",
            names.join(", ")
        ),
    );
    // Each token is another one, and has another signature.
    let token = |sub: &str, nth: u64| {
        issuer.token_of("{\"alg\":\"EdDSA\"}", &claims(sub).replace(&LATE.to_string(), &(LATE + nth).to_string()))
    };
    let ask = |target: &str, sub: &str, nth| {
        let bearer = format!("Bearer {}", token(sub, nth));
        get_with(gateway.address(), target, &[("Authorization", &bearer)])
    };
    let passed = |sub: &str| (0..5).filter(|nth| ask("/limited", sub, *nth).status == 200).count();
    assert_eq!([passed("ada"), passed("bob"), passed("root")], [3, 1, 5]);
    gateway.wait_metric("sluicegate_bandwidth_keys", &["slow"], 3.0);
    let servers = |sub: &str| {
        let servers = (0..5).map(|nth| ask("/", sub, nth).json()["server"].as_str().unwrap().to_owned());
        servers.collect::<std::collections::BTreeSet<_>>()
    };
    let all: Vec<_> = (0..30).map(|user| servers(&format!("user-{user}"))).collect();
    assert!(all.iter().all(|servers| servers.len() == 1), "{all:?}");
    assert!(all.iter().flatten().collect::<std::collections::BTreeSet<_>>().len() > 3, "{all:?}");
}
