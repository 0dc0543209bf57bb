//! Requests that parsers disagree about, with real servers behind the gateway, those of `servers`.
//!
//! Between the gateway and the server lies a tap. A strict reader reads there what the gateway has written, and the
//! server writes down what it has read; both have to be the same requests on each connection, in order: the same method,
//! target, id and length of the body. The id is the one that the gateway gave the request, so what a server sees without
//! one, or twice, was smuggled. A server may refuse what it takes for wrong; then it has to see nothing more. `make setup-tests` installs the servers.

mod cases;
mod servers;
mod tap;

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Gateway, eventually};
use crate::wire::{Wire, get};

use servers::{Kind, Server};
use tap::{Read, Tap};

/// A request as a server has written it down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub method: String,
    pub target: String,
    /// The id that the gateway gave it.
    pub id: String,
    /// How long its body is.
    pub length: usize,
}

impl Seen {
    /// Whether the server has refused it, and perhaps not read all of its head.
    pub fn is_refused(&self) -> bool {
        self.method.contains(REFUSED)
    }
}

/// How servers mark what they have refused.
pub const REFUSED: &str = " refused with ";

impl Kind {
    /// Whether a server of this kind may refuse what was forwarded, and close the connection. nginx knows a list of
    /// letters for methods, and hosts more strictly than RFC 3986 has them.
    fn may_refuse(self) -> bool {
        self == Self::Nginx
    }
}

struct Run {
    server: Server,
    tap: Tap,
    gateway: Gateway,
}

impl Run {
    fn start(kind: Kind) -> Self {
        let server = Server::start(kind);
        let tap = Tap::start(server.address());
        let gateway = Gateway::start(&format!(
            "[server]\nworkers = 1\nmax_requests = 100000\n[log]\naccess = \"json\"\n\
             [[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\ntimeout = \"10s\"\n",
            tap.address
        ));
        Self { server, tap, gateway }
    }

    /// Whether the gateway, the tap and the server agree, and nobody has seen what was smuggled.
    fn judge(self, sent: usize) {
        // The last one on a connection of its own: everything before has ended.
        let mut last = Wire::open(self.gateway.address());
        assert_eq!(last.get("/the-last").status(), 200);
        assert!(eventually(|| self.server.seen().values().flatten().any(|seen| seen.target == "/the-last")));
        let logged = || self.gateway.access_log();
        assert!(eventually(|| logged().iter().any(|line| line["target"] == "/the-last")));
        self.gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        let told: BTreeMap<String, String> =
            logged().iter().map(|line| (text(&line["request_id"]), text(&line["method"]))).collect();
        let by_server = self.server.seen();
        let by_tap = self.tap.read();
        let mut ids = BTreeSet::new();
        let mut wrong = Vec::new();
        let kind = self.server.kind;
        let (mut whole, mut broken, mut refused) = (0, 0, 0);
        for (port, requests) in &by_tap {
            let mut server = by_server.get(port).cloned().unwrap_or_default().into_iter().peekable();
            for request in requests {
                match request {
                    Read::Whole(request) => {
                        whole += 1;
                        if !ids.insert(request.id.clone()) {
                            wrong.push(format!("twice: {request:?}"));
                        }
                        if told.get(&request.id) != Some(&request.method) {
                            wrong.push(format!("the gateway does not know {request:?}"));
                        }
                        let seen = server.next();
                        if kind.may_refuse() && seen.as_ref().is_some_and(Seen::is_refused) {
                            refused += 1;
                            continue;
                        }
                        if seen.as_ref() != Some(request) {
                            wrong.push(format!("forwarded {request:?}, and the server saw {seen:?}"));
                        }
                    }
                    // Given up by the gateway: the server may have seen its head, and nothing behind it.
                    Read::Cut { id, .. } => {
                        broken += 1;
                        server.next_if(|seen| seen.id == *id || seen.is_refused());
                    }
                    Read::Doubtful(why) => wrong.push(format!("the gateway wrote what is not strict: {why}")),
                }
            }
            wrong.extend(server.map(|more| format!("nobody has forwarded {more:?}")));
        }
        for port in by_server.keys().filter(|port| !by_tap.contains_key(port)) {
            wrong.push(format!("a connection that nobody opened: {port}"));
        }
        for seen in by_server.values().flatten().filter(|seen| seen.target.contains("smuggled")) {
            wrong.push(format!("smuggled: {seen:?}"));
        }
        eprintln!(
            "{kind:?}: {sent} sent, {whole} forwarded over {} connections, {broken} cut, {refused} refused",
            by_tap.len()
        );
        assert!(wrong.is_empty(), "{} of {whole}: {:#?}", wrong.len(), &wrong[..wrong.len().min(40)]);
        assert!(whole > 20 && refused * 4 < whole, "of {whole} {refused} were refused");
    }
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Sends each of the streams of HTTP/1 over a connection of its own.
fn over_http1(kind: Kind) {
    let run = Run::start(kind);
    let cases = cases::http1();
    for case in &cases {
        let mut wire = Wire::with(run.gateway.address(), case);
        wire.finish();
        // The answer was judged elsewhere; here it only has to end.
        assert!(wire.is_cut(), "{}", case.escape_ascii());
    }
    run.judge(cases.len());
}

/// Sends each of the heads of HTTP/2, with and without a body behind it.
fn over_http2(kind: Kind) {
    let run = Run::start(kind);
    let cases = cases::http2();
    for case in &cases {
        cases::send(run.gateway.address(), case);
    }
    run.judge(cases.len());
}

#[test]
fn nginx_reads_what_was_forwarded_from_http1() {
    over_http1(Kind::Nginx);
}

#[test]
fn nginx_reads_what_was_forwarded_from_http2() {
    over_http2(Kind::Nginx);
}

#[test]
fn haproxy_reads_what_was_forwarded_from_http1() {
    over_http1(Kind::Haproxy);
}

#[test]
fn haproxy_reads_what_was_forwarded_from_http2() {
    over_http2(Kind::Haproxy);
}

#[test]
fn gunicorn_reads_what_was_forwarded_from_http1() {
    over_http1(Kind::Gunicorn);
}

#[test]
fn gunicorn_reads_what_was_forwarded_from_http2() {
    over_http2(Kind::Gunicorn);
}

/// The judge itself: a server that sees one request more than was forwarded is found.
#[test]
#[should_panic(expected = "nobody has forwarded")]
fn a_request_behind_the_gateways_back_is_found() {
    let run = Run::start(Kind::Nginx);
    run.tap.inject(&get("/smuggled"));
    let mut wire = Wire::open(run.gateway.address());
    for _ in 0..30 {
        wire.get("/");
    }
    run.judge(30);
}
