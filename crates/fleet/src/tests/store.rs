//! The connection, against real servers and against peers that say anything.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tokio::time::timeout;

use super::server::{Reply, Server};
use crate::shared::SharedLimit;
use crate::store::{Address, Order, Product, Store, StoreEndpoint, StoreError};
use sluicegate_limiter::{Algorithm, Align, FixedWindow, Gcra, Settle, TimerWheel};
use sluicegate_time::Span;

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn block_on<T>(does: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, does).await.expect("it hangs") })
}

fn endpoint(server: &Server) -> StoreEndpoint {
    StoreEndpoint::at(Address::Unix(server.socket()))
}

fn algorithms() -> [Algorithm; 3] {
    let rate = ["5/h".parse().unwrap()];
    [
        Algorithm::TimerWheel(TimerWheel::new(&rate, None, sluicegate_limiter::Bound::Sliding).unwrap()),
        Algorithm::Gcra(Gcra::new(&rate, Some(5)).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(&rate, Align::First).unwrap()),
    ]
}

/// A grant of so many of five an hour.
fn order(key: &str, algorithm: &Algorithm, need: u64) -> Order {
    let shared = SharedLimit::new(algorithm).unwrap();
    let settle = Settle { need, want: need, ..Settle::default() };
    let arguments = shared.arguments(&settle, Span::from_millis(100), None, 0);
    Order { key: key.to_owned(), family: shared.family(), arguments }
}

fn remaining(results: &[Result<Vec<i64>, StoreError>]) -> Vec<i64> {
    results.iter().map(|result| result.as_ref().unwrap()[4]).collect()
}

#[test]
fn a_batch_of_all_families_is_settled_in_its_order_and_scripts_come_back_after_a_flush() {
    let server = Server::start();
    let mut raw = server.raw();
    block_on(async {
        let store = Store::connect(&endpoint(&server)).await.unwrap();
        assert_eq!(store.server().product, Product::Redis);
        let [wheel, gcra, window] = algorithms();
        let batch = [
            order("a", &wheel, 1),
            order("b", &gcra, 2),
            order("c", &window, 3),
            order("a", &wheel, 1),
            order("d", &gcra, 5),
        ];
        assert_eq!(remaining(&store.settle(&batch).await), [4, 3, 2, 3, 0]);
        raw.ask(&["SCRIPT", "FLUSH"]);
        // One script is there, the others are not: nothing is done twice.
        assert_eq!(remaining(&store.settle(&[order("a", &wheel, 1)]).await), [2]);
        let batch = [order("a", &wheel, 1), order("b", &gcra, 2), order("c", &window, 1), order("a", &wheel, 1)];
        assert_eq!(remaining(&store.settle(&batch).await), [1, 1, 1, 0]);
        assert_eq!(store.settle(&[]).await.len(), 0);
    });
    let Reply::Array(keys) = raw.ask(&["KEYS", "*"]) else { panic!("no keys") };
    assert_eq!(keys.len(), 4);
}

#[test]
fn a_key_of_another_type_fails_alone() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.ask(&["SET", "b", "text"]);
    block_on(async {
        let store = Store::connect(&endpoint(&server)).await.unwrap();
        let [wheel, gcra, window] = algorithms();
        for algorithm in [wheel, gcra, window] {
            raw.ask(&["DEL", "a", "c"]);
            let batch = ["a", "b", "c"].map(|key| order(key, &algorithm, 1));
            let results = store.settle(&batch).await;
            let Err(error @ StoreError::OtherType) = &results[1] else { panic!("{results:?}") };
            assert!(error.is_of_one_key() && !error.needs_connection());
            assert_eq!((results[0].as_ref().unwrap()[4], results[2].as_ref().unwrap()[4]), (4, 4));
        }
    });
    assert_eq!(raw.ask(&["GET", "b"]), Reply::Text("text".to_owned()), "it is not ours");
}

/// How a connect or a first settle ends.
pub(super) async fn outcome(endpoint: &StoreEndpoint) -> Result<i64, StoreError> {
    let store = Store::connect(endpoint).await?;
    let [wheel, ..] = algorithms();
    store.settle(&[order("sluicegate:x", &wheel, 1)]).await.remove(0).map(|reply| reply[4])
}

#[test]
fn users_and_passwords_are_asked_for_and_told_apart() {
    let server = Server::start_with(&["--requirepass", "right"]);
    let mut raw = server.raw();
    raw.ask(&["AUTH", "right"]);
    let rules =
        ["on", ">pass", "~sluicegate:*", "+evalsha", "+script|load", "+info", "+hgetall", "+hset", "+hdel", "+time"];
    raw.ask(&[&["ACL", "SETUSER", "gw"], &rules[..], &["+pexpire", "+del"]].concat());
    raw.ask(&[&["ACL", "SETUSER", "weak"], &rules[..]].concat());
    raw.ask(&["ACL", "SETUSER", "none", "on", ">pass", "~other:*", "+@all"]);
    let with = |username: Option<&str>, password: Option<&str>, database| StoreEndpoint {
        username: username.map(str::to_owned),
        password: password.map(str::to_owned),
        database,
        ..endpoint(&server)
    };
    block_on(async {
        let end = async |username, password, database| match outcome(&with(username, password, database)).await {
            Ok(left) => format!("{left} left"),
            Err(error) => {
                assert!(!error.to_string().contains("right"), "no secrets: {error}");
                format!("{error:?}").split([' ', '(']).next().unwrap().to_owned()
            }
        };
        assert_eq!(end(None, None, 0).await, "NoPassword");
        assert_eq!(end(None, Some("wrong"), 0).await, "WrongPassword");
        assert_eq!(end(Some("nobody"), Some("right"), 0).await, "WrongPassword");
        assert_eq!(end(None, Some("right"), 0).await, "4 left");
        assert_eq!(end(Some("default"), Some("right"), 3).await, "4 left", "another database");
        assert_eq!(end(None, Some("right"), 99).await, "NoDatabase");
        assert_eq!(end(Some("gw"), Some("pass"), 0).await, "3 left");
        assert_eq!(end(Some("weak"), Some("pass"), 0).await, "NotPermitted", "without PEXPIRE");
        assert_eq!(end(Some("none"), Some("pass"), 0).await, "NotPermitted", "other keys");
    });
    let shown = format!("{:?}", with(Some("gw"), Some("hidden"), 0));
    assert!(shown.contains("gw") && !shown.contains("hidden"), "{shown}");
    let open = Server::start();
    let password = StoreEndpoint { password: Some("x".to_owned()), ..endpoint(&open) };
    assert!(matches!(block_on(outcome(&password)), Err(StoreError::WrongPassword)));
}

#[test]
fn a_store_that_takes_no_writes_says_why() {
    let replica = Server::start_with(&["--replicaof", "127.0.0.1 1"]);
    assert!(matches!(block_on(outcome(&endpoint(&replica))), Err(StoreError::ReadOnly)));
    let full = Server::start_with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    assert!(matches!(block_on(outcome(&endpoint(&full))), Err(StoreError::Full)));
    let evicting = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let evicts = block_on(Store::connect(&endpoint(&evicting))).unwrap().server().evicts.clone();
    assert_eq!(evicts.as_deref(), Some("allkeys-lru"));
}

#[test]
fn a_store_that_runs_somebodys_script_for_too_long_is_busy() {
    let server = Server::start_with(&["--lua-time-limit", "1"]);
    block_on(async {
        let store = Store::connect(&endpoint(&server)).await.unwrap();
        let mut raw = server.raw();
        let endless = thread::spawn(move || raw.ask(&["EVAL", "while true do end", "0"]));
        let [wheel, ..] = algorithms();
        let mut result = Ok(vec![]);
        while result.is_ok() {
            result = store.settle(&[order("a", &wheel, 1)]).await.remove(0);
        }
        assert!(matches!(result, Err(StoreError::Busy)), "{result:?}");
        let mut raw = server.raw();
        while raw.ask(&["SCRIPT", "KILL"]) != Reply::Text("OK".to_owned()) {}
        assert!(matches!(endless.join().unwrap(), Reply::Error(_)));
        assert!(store.settle(&[order("b", &wheel, 1)]).await.remove(0).is_ok());
    });
}

#[test]
fn the_reply_of_an_exchange_that_was_given_up_is_not_taken_for_that_of_the_next() {
    let server = Server::start();
    let mut raw = server.raw();
    block_on(async {
        let store = Store::connect(&endpoint(&server)).await.unwrap();
        let [wheel, gcra, _] = algorithms();
        assert_eq!(remaining(&store.settle(&[order("a", &wheel, 1), order("b", &gcra, 1)]).await), [4, 4]);
        raw.ask(&["CLIENT", "PAUSE", "200", "ALL"]);
        for _ in 0..3 {
            let given_up = timeout(Duration::from_millis(10), store.settle(&[order("a", &wheel, 1)])).await;
            assert!(given_up.is_err(), "{given_up:?}");
        }
        // Those given up were done all the same.
        assert_eq!(remaining(&store.settle(&[order("b", &gcra, 3), order("a", &wheel, 1)]).await), [1, 0]);
    });
}

#[test]
fn members_come_and_go() {
    let server = Server::start();
    let mut raw = server.raw();
    let key = "sluicegate:members";
    block_on(async {
        let store = Store::connect(&endpoint(&server)).await.unwrap();
        let beat = async |member| {
            let mut members = store.heartbeat(key, member).await.unwrap();
            members.names.sort();
            (members.count, members.names.join(" "))
        };
        assert_eq!(beat(Some("gw-1-0")).await, (1, "gw-1-0".to_owned()));
        assert_eq!(beat(Some("gw-2-0")).await, (2, "gw-1-0 gw-2-0".to_owned()));
        assert_eq!(beat(None).await, (2, "gw-1-0 gw-2-0".to_owned()), "who only looks is no member");
        assert!((9_000..=10_000).contains(&raw.integers(&["PTTL", key])[0]));
        // One that was last heard of in 1970, and one of a clock that was set back.
        raw.ask(&["ZADD", key, "5", "gone", "99999999999999", "later"]);
        assert_eq!(beat(Some("gw-1-0")).await, (2, "gw-1-0 gw-2-0".to_owned()));
        raw.ask(&["SCRIPT", "FLUSH"]);
        store.leave(key, "gw-2-0").await.unwrap();
        assert_eq!(beat(Some("gw-1-0")).await, (1, "gw-1-0".to_owned()));
        let many: Vec<String> = (0..200).flat_map(|index| [score_of_now(&mut raw), format!("m{index}")]).collect();
        raw.ask(&[&["ZADD", key][..], &many.iter().map(String::as_str).collect::<Vec<_>>()].concat());
        let members = store.heartbeat(key, None).await.unwrap();
        assert_eq!((members.count, members.names.len()), (201, 64));
        raw.ask(&["SET", "text", "x"]);
        assert!(matches!(store.heartbeat("text", Some("gw")).await, Err(StoreError::OtherType)));
    });
}

/// The store's time, in milliseconds.
fn score_of_now(raw: &mut super::server::Raw) -> String {
    let Reply::Array(time) = raw.ask(&["TIME"]) else { panic!("no time") };
    let Reply::Text(seconds) = &time[0] else { panic!("{time:?}") };
    format!("{seconds}000")
}

/// A peer that answers each connection with the next of these, whatever it is asked, a few bytes at a time.
fn peer(answers: Vec<Vec<Vec<u8>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for answers in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let _ = stream.set_nodelay(true);
            let mut asked = [0; 4_096];
            for answer in answers {
                if !matches!(stream.read(&mut asked), Ok(1..)) {
                    break;
                }
                if answer.chunks(7_000).any(|chunk| stream.write_all(chunk).is_err()) {
                    break;
                }
            }
        }
    });
    address
}

pub(super) fn at(address: SocketAddr) -> StoreEndpoint {
    StoreEndpoint::at(Address::Tcp { host: address.ip().to_string(), port: address.port() })
}

/// As a bulk string.
fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

fn info() -> Vec<u8> {
    bulk("# Server\r\nredis_version:7.0.15\r\n")
}

#[test]
fn what_is_no_redis_or_too_old_or_away_is_named() {
    let said = |answers: Vec<Vec<u8>>| block_on(outcome(&at(peer(vec![answers])))).unwrap_err();
    let http = said(vec![b"HTTP/1.1 400 Bad Request\r\nserver: x\r\n\r\n".to_vec()]);
    let StoreError::NotRedis { said: words } = &http else { panic!("{http:?}") };
    assert!(words.starts_with("HTTP/1.1 400 Bad Request") && http.needs_connection(), "{words}");
    assert!(matches!(said(vec![bulk("redis_version:5.0.14\r\n")]), StoreError::TooOld { .. }));
    assert!(matches!(said(vec![b":1\r\n".to_vec()]), StoreError::Unexpected { .. }));
    assert!(matches!(said(vec![b"$-1\r\n".to_vec()]), StoreError::Unexpected { .. }));
    let closed = said(vec![]);
    assert!(matches!(closed, StoreError::ClosedAtOnce(_)) && closed.needs_connection());
    assert!(matches!(said(vec![info()]), StoreError::Closed(_)), "it has answered");
    let reply = said(vec![info(), bulk(""), b"+OK\r\n".to_vec()]);
    assert!(matches!(&reply, StoreError::Unexpected { said } if said.contains("another type")), "{reply:?}");
    let unlistened = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = block_on(outcome(&at(unlistened))).unwrap_err();
    assert!(matches!(away, StoreError::Unreachable(_)) && away.to_string().contains("[fleet] store"), "{away}");
    let nowhere = StoreEndpoint::at(Address::Unix("/nonexistent/socket".into()));
    assert!(matches!(block_on(outcome(&nowhere)), Err(StoreError::Unreachable(_))));
}

#[test]
fn a_peer_that_sends_without_end_is_cut_off() {
    for begins in ["$9223372036854775807\r\n", "*1000000000\r\n", "*1000000000000000000\r\n:1\r\n", "+"] {
        let mut endless = begins.as_bytes().to_vec();
        let more = if begins.starts_with('*') { &b":1\r\n"[..] } else { &b"aaaa"[..] };
        endless.extend(more.iter().copied().cycle().take(6 << 20));
        let error = block_on(outcome(&at(peer(vec![vec![endless]])))).unwrap_err();
        assert!(error.needs_connection(), "{begins:?}: {error}");
        assert!(error.to_string().contains("more than any reply has"), "{begins:?}: {error}");
    }
}

/// Replies whole, cut off and changed, and bytes of any kind.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let whole = || {
        select(vec![
            info(),
            bulk(""),
            b"*4\r\n:1\r\n:2\r\n:-1\r\n:3\r\n".to_vec(),
            b"*4\r\n:1\r\n$1\r\n2\r\n:-1\r\n:3\r\n".to_vec(),
            b"*9\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n".to_vec(),
            b"-NOSCRIPT No matching script.\r\n".to_vec(),
            b"-ERR no\r\n".to_vec(),
            b"-\r\n".to_vec(),
            b"+OK\r\n".to_vec(),
            b":99999999999999999999\r\n".to_vec(),
            b"*-1\r\n".to_vec(),
            b"$-7\r\n".to_vec(),
            b"%-1\r\n".to_vec(),
            b"!-5\r\n".to_vec(),
            b"=-5\r\n".to_vec(),
            b"|1\r\n+a\r\n+b\r\n:1\r\n".to_vec(),
            b"|9223372036854775807\r\n".to_vec(),
            b">2\r\n+message\r\n:1\r\n".to_vec(),
            b">1\r\n+subscribe\r\n".to_vec(),
            b">3\r\n+unsubscribe\r\n+a\r\n:0\r\n".to_vec(),
            b"~2\r\n:1\r\n:2\r\n".to_vec(),
            b"_\r\n".to_vec(),
            b",nan\r\n".to_vec(),
            b"#t\r\n".to_vec(),
            b"(123456789012345678901234567890\r\n".to_vec(),
            b"*1\r\n".repeat(300),
        ])
    };
    prop_oneof![
        6 => whole(),
        2 => (whole(), any::<prop::sample::Index>()).prop_map(|(bytes, at)| bytes[..at.index(bytes.len() + 1)].to_vec()),
        2 => (whole(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, other)| {
            let at = at.index(bytes.len());
            bytes[at] = other;
            bytes
        }),
        1 => vec(any::<u8>(), 0..60),
        1 => vec(whole(), 0..6).prop_map(|all| all.concat()),
    ]
}

#[test]
fn whatever_a_peer_answers_is_an_answer_or_an_error() {
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    // Half get as far as a settle.
    let answers = (any::<bool>(), vec(noise(), 0..6)).prop_map(|(greets, noise)| {
        let greeting = if greets { vec![info(), bulk("")] } else { vec![] };
        [greeting, vec![noise.concat()]].concat()
    });
    let settled = std::cell::Cell::new(0);
    let done = runner.run(&answers, |answers| {
        let address = peer(vec![answers]);
        block_on(async {
            // A peer that answers too little is waited for: the deadline is the caller's.
            let wait = Duration::from_secs(1);
            let Ok(Ok(store)) = timeout(wait, Store::connect(&at(address))).await else { return };
            let [wheel, gcra, _] = algorithms();
            let batch = [order("a", &wheel, 1), order("b", &gcra, 1)];
            if let Ok(results) = timeout(wait, store.settle(&batch)).await {
                assert_eq!(results.len(), 2);
                settled.set(settled.get() + 1);
                for error in results.into_iter().filter_map(Result::err) {
                    assert!(error.to_string().len() < 400);
                }
            }
            let _ = timeout(wait, store.heartbeat("m", Some("gw"))).await;
        });
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
    assert!(settled.get() > 50, "{} settles came to an end", settled.get());
}

#[test]
fn a_store_is_reached_by_tcp() {
    // Of a port that was free; another may have taken it since.
    let found = (0..20).find_map(|_| {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = Server::start_with(&["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
        let [wheel, ..] = algorithms();
        let settled = block_on(async {
            let store = Store::connect(&at(address)).await.ok()?;
            Some(store.settle(&[order("a", &wheel, 2)]).await)
        })?;
        // It is this one, and no other.
        (server.raw().integers(&["EXISTS", "a"]) == [1]).then_some(settled)
    });
    assert_eq!(remaining(&found.unwrap()), [3]);
}

#[test]
fn a_store_that_ends_is_an_error_and_a_new_connection_works() {
    let server = Server::start();
    block_on(async {
        let store = Store::connect(&endpoint(&server)).await.unwrap();
        let [wheel, ..] = algorithms();
        server.raw().ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let error = store.settle(&[order("a", &wheel, 1)]).await.remove(0).unwrap_err();
        assert!(matches!(error, StoreError::Closed(_)) && error.needs_connection(), "{error:?}");
        let store = Store::connect(&endpoint(&server)).await.unwrap();
        assert!(store.settle(&[order("a", &wheel, 1)]).await.remove(0).is_ok());
    });
}
