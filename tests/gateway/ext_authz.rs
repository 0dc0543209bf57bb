//! Listeners that Envoy asks: `decides = "ext-authz"`. The messages are written and read here by the wire format of protobuf
//! alone; `make envoy` has Envoy itself in front.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::calling::{call_at, field, fields, framed, message_of, sole};
use crate::h2::peer::{self, Whole};
use crate::support::{Client, FRAME, Gateway, Store, eventually};

const LIMITS: &str = "[[limit]]\nname = \"per-client\"\nkey = \"client-ip\"\nrate = \"3/1h\"\n\
                      [[route]]\nname = \"api\"\npath = \"/api\"\nlimits = [\"per-client\"]\nrespond = {}\n";
const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

fn gateway(sections: &str) -> (Gateway, SocketAddr) {
    let gateway = Gateway::start(&format!("[[listener]]\naddress = \"[::1]:0\"\ndecides = \"ext-authz\"\n{sections}"));
    let asked = gateway.addresses[1];
    (gateway, asked)
}

/// A `CheckRequest` about a request of this client.
fn check(client: &str, method: &str, path: &str, headers: &[(&str, &[u8])]) -> Vec<u8> {
    let address = field(1, field(1, [field(2, client), vec![3 << 3, 80]].concat()));
    let headers = headers.iter().map(|(name, value)| field(3, [field(1, name), field(2, value)].concat()));
    let http =
        [field(2, method), headers.collect::<Vec<_>>().concat(), field(4, path), field(5, "h"), field(6, "http")];
    field(1, [field(1, address), field(4, field(2, http.concat()))].concat())
}

fn calls(asked: SocketAddr, messages: &[Vec<u8>]) -> Vec<Whole> {
    peer::run(async {
        let sender = peer::connect(asked).await;
        let mut answers = Vec::new();
        for message in messages {
            answers.push(call_at(&sender, CHECK, framed(message)).await);
        }
        answers
    })
}

/// An answer as Envoy takes it.
#[derive(Debug)]
struct Told {
    /// Of `google.rpc.Status`.
    code: Option<String>,
    /// The status that the client is told; `None`: it goes on.
    denied: Option<String>,
    headers: Vec<(String, String)>,
    body: String,
}

impl Told {
    fn of(answer: &Whole) -> Self {
        let message = message_of(answer);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (denied, allowed) = (sole(message, 2), sole(message, 3));
        assert_ne!(denied.is_some(), allowed.is_some());
        let options = match (&denied, &allowed) {
            (Some(denied), _) => fields(denied).into_iter().filter(|(number, _)| *number == 2).collect::<Vec<_>>(),
            (_, allowed) => fields(allowed.as_ref().unwrap()).into_iter().filter(|(number, _)| *number == 6).collect(),
        };
        let headers = options.into_iter().map(|(_, option)| {
            let header = sole(&option, 1).unwrap();
            (text(sole(&header, 1).unwrap()), text(sole(&header, 2).unwrap_or_default()))
        });
        Self {
            code: sole(message, 1).and_then(|status| sole(&status, 1)).map(text),
            denied: denied.as_ref().map(|denied| text(sole(&sole(denied, 1).unwrap(), 1).unwrap())),
            headers: headers.collect(),
            body: denied.and_then(|denied| sole(&denied, 3)).map(text).unwrap_or_default(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

fn outcomes(gateway: &Gateway, outcome: &str) -> u64 {
    let labels = ["kind=\"ext-authz\"", &format!("outcome=\"{outcome}\"")];
    gateway.metric("sluicegate_decisions_asked_total", &labels) as u64
}

#[test]
fn calls_and_requests_are_counted_by_the_same_limit() {
    let (gateway, asked) = gateway(&format!("{LIMITS}[log]\naccess = \"json\"\n[dead_letter]\n"));
    let about = |client: &str, method: &str| check(client, method, "/api?x", &[(":path", b"/other"), ("x-a", b"\xff")]);
    let answers = calls(asked, &[about("127.0.0.1", "GET"), about("127.0.0.1", "HEAD")]);
    for (answer, left) in answers.iter().zip(["r=2", "r=1"]) {
        let told = Told::of(answer);
        assert_eq!((told.code, told.denied.as_deref()), (None, None), "OK is the default");
        assert!(told.headers.iter().all(|(name, _)| name.contains("ratelimit")), "{:?}", told.headers);
        assert!(Told::of(answer).header("ratelimit").unwrap().contains(left));
    }
    assert_eq!(Client::connect(gateway.address()).get("/api").status, 200);
    let answers = calls(asked, &[about("127.0.0.1", "GET"), about("127.0.0.1", "HEAD"), about("192.0.2.7", "GET")]);
    let refused = Told::of(&answers[0]);
    assert_eq!((refused.code.as_deref(), refused.denied.as_deref()), (Some("7"), Some("429")));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3_600).contains(&wait) && refused.body.contains("\"violated-policies\":[\"per-client\"]"));
    assert_eq!(refused.header("x-sluicegate-limit"), Some("per-client"));
    assert_eq!(Told::of(&answers[1]).denied.as_deref(), Some("429"), "the method is the request's");
    assert_eq!(Told::of(&answers[2]).denied, None, "another client");
    assert_eq!((outcomes(&gateway, "allowed"), outcomes(&gateway, "refused")), (3, 2));
    assert!(eventually(|| gateway.access_log().len() == 6));
    let line = gateway.access_log().into_iter().find(|line| line["status"] == 429).unwrap();
    assert_eq!(
        (&line["target"], &line["asked_by"]),
        (&"/api?x".into(), &"[::1]:0".into()),
        "one line for each request"
    );
    assert!(eventually(|| gateway.dead_letters().iter().any(|letter| letter["asked"] == true)));
}

#[test]
fn a_request_that_nothing_limits_goes_on_and_one_that_is_none_does_not() {
    let (gateway, asked) = gateway(&format!("{LIMITS}[client]\ndeny = [\"192.0.2.66\"]\n"));
    let about =
        |client: &str, method: &str, path: &str| Told::of(&calls(asked, &[check(client, method, path, &[])])[0]);
    assert_eq!(about("192.0.2.7", "GET", "/else").denied, None);
    for (client, method, path, status) in [
        ("192.0.2.7", "GET", "", "400"),
        ("192.0.2.7", "GET", "/api x", "400"),
        ("192.0.2.7", "GET", "/api/%zz", "400"),
        ("192.0.2.7", "G@T", "/api", "400"),
        ("192.0.2.7", "get", "/api", "400"),
        ("192.0.2.66", "GET", "/api", "403"),
    ] {
        let told = about(client, method, path);
        assert_eq!(
            (told.code.as_deref(), told.denied.as_deref()),
            (Some("7"), Some(status)),
            "{client} {method} {path}"
        );
        assert!(!told.body.is_empty());
    }
    let long = vec![b'a'; 200_000];
    let told = Told::of(&calls(asked, &[check("192.0.2.7", "GET", "/api", &[("x-a", &long)])])[0]);
    assert_eq!(told.denied.as_deref(), Some("400"), "a head that is too large");
    let broken =
        Told::of(&calls(asked, &[check("192.0.2.7", "GET", "/api", &[("x-a", b"b\r\nx-forwarded-for: ::1")])])[0]);
    assert_eq!(broken.denied.as_deref(), Some("400"));
    let huge = vec![b'a'; (1 << 20) + 1];
    let told = Told::of(&calls(asked, &[check("192.0.2.7", "GET", "/api", &[("x-a", &huge)])])[0]);
    assert_eq!(told.denied.as_deref(), Some("413"), "a message that is too large is not let pass for that");
    assert_eq!(
        (outcomes(&gateway, "invalid"), outcomes(&gateway, "denied"), outcomes(&gateway, "undecided")),
        (8, 1, 1)
    );
    assert_eq!(gateway.metric("sluicegate_limit_keys", &["limit=\"per-client\""]) as u64, 0);
}

#[test]
fn a_call_that_is_none_is_told_so_and_the_next_one_is_served() {
    let (_gateway, asked) = gateway(LIMITS);
    let right = check("192.0.2.7", "GET", "/api", &[]);
    peer::run(async {
        let sender = peer::connect(asked).await;
        let cut = framed(&right)[..20].to_vec();
        let compressed = {
            let mut bytes = framed(&right);
            bytes[0] = 1;
            bytes
        };
        let twice = [framed(&right), framed(&right)].concat();
        let pipe =
            field(1, [field(1, field(1, field(2, field(1, "/x.sock")))), field(4, field(2, field(4, "/")))].concat());
        for (path, body, status, told) in [
            (CHECK, Vec::new(), "3", "no whole message"),
            (CHECK, cut, "3", "one whole message"),
            (CHECK, twice, "3", "one whole message"),
            (CHECK, compressed, "3", "compressed"),
            (CHECK, framed(b"\xff\xff\xff"), "3", "no CheckRequest"),
            (CHECK, framed(b""), "3", "no attributes"),
            (CHECK, framed(&pipe), "3", "no IP address"),
            ("/envoy.service.auth.v2.Authorization/Check", framed(&right), "12", "v3.Authorization"),
        ] {
            let answer = call_at(&sender, path, body).await;
            let message = answer.header("grpc-message").unwrap_or_default();
            assert!(answer.header("grpc-status") == Some(status) && message.contains(told), "{told}: {answer:?}");
        }
        assert_eq!(
            Told::of(&call_at(&sender, CHECK, framed(&right)).await)
                .header("ratelimit")
                .map(|left| left.contains("r=2")),
            Some(true)
        );
        let plain =
            peer::post(&sender, peer::request("POST", CHECK, &[]), Bytes::from(framed(&right)), None).await.unwrap();
        assert_eq!(plain.status, 415);
    });
    assert_eq!(Client::connect(asked).request("POST", CHECK, &[("Content-Type", "application/grpc")], b"").status, 415);
    assert_eq!(Client::connect(asked).get("/healthz").status, 200);
}

#[test]
fn without_the_store_of_a_strict_limit_envoy_is_told_that_there_is_no_decision() {
    let store = Store::start();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
    let rules = format!(
        "{FRAME}[[listener]]\naddress = \"[::1]:0\"\ndecides = \"ext-authz\"\n\
         [fleet]\nstore = \"redis://{}\"\nsecret_file = \"fleet.key\"\ndeadline = \"1s\"\non_failure = \"closed\"\n{}",
        store.address(),
        LIMITS.replace(
            "rate = \"3/1h\"",
            "rate = \"3/1h\"\nalgorithm = \"fixed-window\"\nalign = \"first\"\nshared = \"strict\""
        )
    );
    let gateway = Gateway::start_in(directory, &rules);
    let about = || calls(gateway.addresses[1], &[check("192.0.2.7", "HEAD", "/api", &[])]).remove(0);
    let denied: Vec<_> = (0..4).map(|_| Told::of(&about()).denied).collect();
    assert_eq!(denied, [None, None, None, Some("429".to_owned())]);
    drop(store);
    assert!(eventually(|| gateway.log().contains("fleet store lost")));
    let other = calls(gateway.addresses[1], &[check("192.0.2.8", "GET", "/api", &[])]).remove(0);
    assert_eq!((other.status, other.header("grpc-status")), (200, Some("14")), "{other:?}");
}
