mod access;
mod dead_letters;
mod table;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use serde_json::{Value, json};

use super::*;
use crate::config::ListenAddress;
use crate::proxy::FlightPhase;
use crate::telemetry::{Family, MetricKind};
use crate::time::{Span, Tick};

/// A client that waits longer than this has found a fault.
const PATIENCE: Duration = Duration::from_secs(20);

const NOTHING: &str = "";

/// A gateway of strings.
struct Fake {
    ready: bool,
    reload: Result<String, String>,
    /// Told when a reload begins; the reload then waits for the other.
    gate: Option<(SyncSender<()>, Mutex<Receiver<()>>)>,
    /// The same of whoever reads the configuration.
    gate_of_reads: Option<(SyncSender<()>, Mutex<Receiver<()>>)>,
    /// The same for the caller of an endpoint of the rules.
    gate_of_rules: Option<(SyncSender<()>, Mutex<Receiver<()>>)>,
    archive: Option<Archive>,
    door: Arc<AdminAccess>,
}

/// `[admin]` of a fake.
fn section(address: &str) -> Admin {
    let address = ListenAddress::Tcp(address.parse().unwrap());
    Admin {
        address,
        tokens: Vec::new(),
        tls: None,
        clients: Vec::new(),
        explain_sha256: None,
        rules: crate::config::RulesAccess::Edit,
    }
}

impl Commands for Fake {
    fn door(&self) -> Arc<AdminAccess> {
        Arc::clone(&self.door)
    }

    fn ready(&self) -> bool {
        self.ready
    }

    fn config(&self) -> Value {
        assert!(self.ready, "a command that panics");
        if let Some((begun, go)) = &self.gate_of_reads {
            let _ = begun.send(());
            let _ = go.lock().unwrap().recv_timeout(PATIENCE);
        }
        json!({ "generation": 3, "last_reload_error": null })
    }

    fn fleet(&self) -> Value {
        json!({ "mode": "off" })
    }

    fn upstreams(&self) -> Value {
        json!({ "upstreams": [] })
    }

    fn set_server(&self, upstream: &str, server: &str, change: ServerChange) -> Result<Value, ServerUnchanged> {
        let service = change.service.map(crate::words::Word::word);
        match (upstream, server) {
            ("app", "[::1]:80") => Ok(json!({ "service": service, "weight": change.weight })),
            ("app", "last") if !change.is_forced => Err(ServerUnchanged::Last("it is the last".to_owned())),
            ("app", "last") => Ok(json!({ "service": service })),
            _ => Err(ServerUnchanged::Unknown("no such server".to_owned())),
        }
    }

    fn reload(&self) -> Result<String, String> {
        if let Some((begun, go)) = &self.gate {
            let _ = begun.send(());
            let _ = go.lock().unwrap().recv_timeout(PATIENCE);
        }
        self.reload.clone()
    }

    fn overload(&self, change: Option<OverloadChange>) -> Option<Value> {
        self.ready.then(|| json!({ "scale_percent": 60, "change": format!("{change:?}") }))
    }

    fn log_level(&self) -> Value {
        json!({ "level": "info" })
    }

    fn set_log_level(&self, level: &str) -> Result<Value, String> {
        if level == "loud" { Err("no level".into()) } else { Ok(json!({ "level": level })) }
    }

    fn limits(&self) -> Value {
        json!({ "limits": [] })
    }

    fn top_keys(&self, limit: &str) -> Result<Value, String> {
        if limit == "none" { Err("there is no limit".into()) } else { Ok(json!({ "top": limit })) }
    }

    fn key(&self, limit: &str, value: &str) -> Result<Value, Unchanged> {
        if limit == "none" { Err(Unchanged::Unknown("there is no limit".into())) } else { Ok(json!({ limit: value })) }
    }

    fn change_key(&self, limit: &str, value: &str, change: KeyChange<'_>, by: &str) -> Result<Value, Unchanged> {
        match limit {
            "none" => Err(Unchanged::Unknown("there is no limit".into())),
            "full" => Err(Unchanged::Full("there are too many".into())),
            "ended" => Err(Unchanged::Ended("ask again".into())),
            _ => Ok(json!({ "key": value, "change": format!("{change:?}"), "by": by })),
        }
    }

    fn blocks(&self, peers: &[IpAddr], from: u64, max: usize) -> Value {
        json!({ "blocks": [], "next": null, "peers": peers, "from": from, "max": max })
    }

    fn exceptions(&self) -> Value {
        json!({ "exceptions": [1, 2, 3] })
    }

    fn explain(&self, asked: &[u8]) -> Result<Value, String> {
        if asked.is_empty() { Err("nothing is asked".into()) } else { Ok(json!({ "bytes": asked.len() })) }
    }

    fn requests(&self, filter: &FlightFilter) -> (Vec<SeenFlight>, Vec<usize>) {
        let of = |number: u64| SeenFlight {
            worker: 1,
            number,
            arrived: Tick::ZERO + Span::from_secs(number),
            age: Span::from_secs(60 - number),
            phase: FlightPhase::Sent,
            client: "192.0.2.7".parse().unwrap(),
            is_h2: false,
            method: "GET".into(),
            host: "a.example".into(),
            path: "/slow".into(),
            request_id: "0123".into(),
            route: Some("app".into()),
            upstream: Some("app".into()),
            server: None,
        };
        let all = (1..=3).map(of).filter(|seen| filter.after.is_none_or(|after| seen.rank() > after));
        (all.take(filter.max).collect(), vec![2])
    }

    fn cancel_request(&self, worker: usize, number: u64) -> Option<bool> {
        (worker < 9).then_some((worker, number) == (1, 2))
    }

    fn dead_letters(&self) -> Option<Archive> {
        self.archive.clone()
    }

    fn replay(&self, asked: &ReplayQuery) -> Result<Value, NotReplayed> {
        match (&asked.resume, asked.dry_run) {
            (Some(name), _) if name == "busy" => Err(NotReplayed::Busy("another one runs".into())),
            (Some(_), _) => Err(NotReplayed::Unknown("there is none".into())),
            (None, true) => Ok(json!({ "replay": null, "plan": {} })),
            (None, false) => Ok(json!({ "replay": "r", "plan": { "to_send": 3 } })),
        }
    }

    fn replays(&self) -> Result<Value, NotReplayed> {
        Err(NotReplayed::NoLog)
    }

    fn stop_replay(&self, name: &str) -> bool {
        name == "r"
    }

    fn rules(&self) -> Option<Box<dyn Rules>> {
        if let Some((begun, go)) = &self.gate_of_rules {
            begun.send(()).unwrap();
            go.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
        None
    }

    fn upgrade(&self) -> Result<u32, String> {
        self.reload.clone().map(|_| 4_321)
    }
}

fn fake() -> Fake {
    Fake {
        ready: true,
        reload: Ok("kept 2 limits".into()),
        gate: None,
        gate_of_reads: None,
        gate_of_rules: None,
        archive: None,
        door: AdminAccess::new(&section("127.0.0.1:0"), None),
    }
}

struct Server {
    address: SocketAddr,
    shutdown: Option<watch::Sender<bool>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start(limits: AdminLimits, commands: Fake) -> Self {
        Self::start_with(limits, commands, Registry::new())
    }

    fn start_with(limits: AdminLimits, commands: Fake, registry: Arc<Registry>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, told) = watch::channel(false);
        let thread = thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build_local(tokio::runtime::LocalOptions::default()).unwrap();
            runtime.block_on(serve_within(
                limits,
                Socket::Tcp(listener),
                registry,
                Arc::new(commands),
                Clock::system(),
                told,
            ));
        });
        Self { address, shutdown: Some(shutdown), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request on a connection of its own and reads to the end.
    fn ask(&self, request: &str, headers: &str) -> Reply {
        let mut stream = self.connect();
        let host = if headers.contains("host:") { String::new() } else { format!("host: {}\r\n", self.address) };
        write!(stream, "{request} HTTP/1.1\r\n{host}{headers}connection: close\r\n\r\n").unwrap();
        read_reply(stream)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.take();
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

fn read_reply(mut stream: TcpStream) -> Reply {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no reply but {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head: head.to_owned(), body: body.to_owned() }
}

/// Whether the server closes the connection without a word.
fn is_closed_unread(mut stream: TcpStream) -> bool {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(read) => read == 0,
        // If the client had sent something.
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn health_and_readiness_are_told_apart() {
    let server = Server::start(LIMITS, Fake { ready: false, ..fake() });
    let health = server.ask("GET /healthz", NOTHING);
    assert_eq!((health.status, health.body.as_str()), (200, "ok"));
    assert_eq!(server.ask("GET /readyz", NOTHING).status, 503);
    assert_eq!(Server::start(LIMITS, fake()).ask("GET /readyz", NOTHING).status, 200);
}

#[test]
fn metrics_are_prometheus_text() {
    let server = Server::start(LIMITS, fake());
    let metrics = server.ask("GET /metrics?x=y", NOTHING);
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(metrics.body.contains("\nsluicegate_admin_connections_refused_total 0\n"), "{}", metrics.body);
}

#[test]
fn the_configuration_is_json() {
    let server = Server::start(LIMITS, fake());
    let config = server.ask("GET /api/config", NOTHING);
    assert_eq!((config.status, config.header("content-type")), (200, Some("application/json")));
    assert_eq!(config.json(), json!({ "generation": 3, "last_reload_error": null }));
}

#[test]
fn a_server_is_set_by_its_name_and_a_word() {
    let server = Server::start(LIMITS, fake());
    let set = |path: &str| {
        let reply = server.ask(&format!("POST /api/v1/upstreams/{path}"), NOTHING);
        (reply.status, reply.json())
    };
    assert_eq!(set("app/servers/[::1]:80?state=drain"), (200, json!({ "service": "drain", "weight": null })));
    assert_eq!(set("app/servers/%5B%3A%3A1%5D:80?&state=up"), (200, json!({ "service": "up", "weight": null })));
    assert_eq!(set("app/servers/[::1]:80?weight=7"), (200, json!({ "service": null, "weight": 7 })));
    assert_eq!(set("app/servers/[::1]:80?weight=1000&state=up"), (200, json!({ "service": "up", "weight": 1000 })));
    for (path, status) in [
        ("app/servers/[::1]:80", 400),
        ("app/servers/[::1]:80?state=gone", 400),
        ("app/servers/[::1]:80?state=up&weight=0", 400),
        ("app/servers/[::1]:80?weight=1001", 400),
        ("app/servers/[::1]:80?weight=x", 400),
        ("app/servers/[::1]:80?state=up&wieght=7", 400),
        ("app/servers/[::1]:80?weight=7&weight=8", 400),
        ("app/servers/[::1]:80?state=off&force=yes", 400),
        ("app/servers/last?state=off&force=false", 409),
        ("app/servers/[::1]:81?state=off", 404),
        ("app/servers/?state=off", 404),
        ("app/servers/a/b?state=off", 404),
    ] {
        assert_eq!(set(path).0, status, "{path}");
    }
    assert_eq!(server.ask("GET /api/v1/upstreams/app/servers/a", NOTHING).status, 405);
    let foreign = "origin: http://evil.example\r\n";
    assert_eq!(server.ask("POST /api/v1/upstreams/app/servers/[::1]:80?state=off", foreign).status, 403);
}

#[test]
fn a_query_has_the_parameters_of_its_endpoint_once() {
    let server = Server::start(LIMITS, fake());
    let misspelt = server.ask("GET /api/v1/requests?phse=waiting", NOTHING);
    assert_eq!((misspelt.status, &misspelt.json()["parameter"]), (400, &json!("phse")));
    assert!(misspelt.json()["allowed"].as_array().unwrap().contains(&json!("phase")));
    assert_eq!(server.ask("GET /api/v1/requests?max=1&max=2", NOTHING).status, 400);
    assert_eq!(server.ask("POST /reload?dry=1", NOTHING).status, 400);
    // Programs of others may add their own.
    for open in ["/healthz?x=1", "/readyz?x=1", "/metrics?collect=x"] {
        assert_eq!(server.ask(&format!("GET {open}"), NOTHING).status, 200, "{open}");
    }
}

#[test]
fn a_body_of_a_change_is_an_object_in_which_each_member_is_once() {
    let server = Server::start(LIMITS, fake());
    let put = |target: &str, body: &str| {
        let mut stream = server.connect();
        let fields = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        write!(stream, "{target} HTTP/1.1\r\nhost: localhost\r\n{fields}connection: close\r\n\r\n{body}").unwrap();
        read_reply(stream).status
    };
    for body in ["[]", "[\"info\"]", "7", "{\"level\": \"info\", \"level\": \"debug\"}", "{\"level\": null}", "{"] {
        assert_eq!(put("PUT /api/v1/log", body), 400, "{body}");
    }
    assert_eq!(put("PUT /api/v1/log", "{\"level\": \"info\"}"), 200);
    assert_eq!(put("POST /api/v1/dead-letters/replay", "[]"), 400);
    assert_eq!(put("PUT /api/v1/limits/l/keys/a/block", "[null]"), 400);
    assert_eq!(put("PUT /api/v1/limits/l/keys/a/block", ""), 200);
}

#[test]
fn what_a_page_of_another_site_makes_a_browser_fetch_is_refused_and_a_link_is_followed() {
    let server = Server::start(LIMITS, fake());
    let fetched = |site: &str, mode: &str, dest: &str| {
        let fields = format!("sec-fetch-site: {site}\r\nsec-fetch-mode: {mode}\r\nsec-fetch-dest: {dest}\r\n");
        server.ask("GET /api/v1/upstreams", &fields).status
    };
    assert_eq!(fetched("cross-site", "no-cors", "image"), 403);
    assert_eq!(fetched("same-site", "cors", "empty"), 403);
    assert_eq!(fetched("cross-site", "navigate", "iframe"), 403);
    assert_eq!(fetched("cross-site", "navigate", "document"), 200);
    assert_eq!(fetched("same-origin", "cors", "empty"), 200);
    assert_eq!(fetched("none", "navigate", "document"), 200);
}

#[test]
fn a_reload_answers_with_its_plan() {
    let server = Server::start(LIMITS, fake());
    let text = server.ask("POST /reload", NOTHING);
    assert_eq!((text.status, text.body.as_str()), (200, "kept 2 limits\n"));
    let upgrade = server.ask("POST /upgrade", NOTHING);
    assert_eq!((upgrade.status, upgrade.body.as_str()), (200, "process 4321 has taken over; the one before drains\n"));
    assert_eq!(server.ask("POST /upgrade", "accept: application/json\r\n").json(), json!({ "ok": true, "pid": 4321 }));
    let json = server.ask("POST /reload", "accept: text/html;q=0.5, Application/JSON;q=0.9\r\n");
    assert_eq!((json.status, json.json()), (200, json!({ "ok": true, "plan": "kept 2 limits" })));
}

#[test]
fn a_key_is_named_in_the_path() {
    let server = Server::start(LIMITS, fake());
    let shown = server.ask("GET /api/v1/limits/per-key/keys/a%20b", NOTHING);
    assert_eq!((shown.status, shown.json()), (200, json!({ "per-key": "a b" })));
    let unknown = server.ask("GET /api/v1/limits/none/keys/a", NOTHING);
    assert_eq!((unknown.status, &unknown.json()["detail"]), (404, &json!("there is no limit")));
    assert_eq!(server.ask("GET /api/v1/limits/a/keys/%zz", NOTHING).status, 404);
    let top = server.ask("GET /api/v1/limits/per%20key/keys", NOTHING);
    assert_eq!((top.status, top.json()), (200, json!({ "top": "per key" })));
    for nothing in ["none", "", "a/b", "%zz"] {
        assert_eq!(server.ask(&format!("GET /api/v1/limits/{nothing}/keys"), NOTHING).status, 404, "{nothing}");
    }
    assert_eq!(server.ask("DELETE /api/v1/limits", NOTHING).status, 405);
}

#[test]
fn a_question_is_answered_within_its_bound() {
    let server = Server::start(AdminLimits { body: 10, ..LIMITS }, fake());
    let ask = |body: &str| {
        let mut stream = server.connect();
        let length = body.len();
        let head = format!("host: {}\r\ncontent-length: {length}\r\nconnection: close", server.address);
        write!(stream, "POST /api/v1/explain HTTP/1.1\r\n{head}\r\n\r\n{body}").unwrap();
        read_reply(stream)
    };
    let told = ask("0123456789");
    assert_eq!((told.status, told.json()), (200, json!({ "bytes": 10 })));
    let wrong = ask("");
    assert_eq!((wrong.status, &wrong.json()["detail"]), (400, &json!("nothing is asked")));
    assert_eq!(ask("0123456789a").status, 413);
    assert_eq!(server.ask("GET /api/v1/explain", NOTHING).status, 405);
}

#[test]
fn a_reload_that_fails_answers_with_the_report() {
    let server = Server::start(LIMITS, Fake { reload: Err("error: line 3".into()), ..fake() });
    let text = server.ask("POST /reload", "accept: */*\r\n");
    assert_eq!((text.status, text.body.as_str()), (422, "error: line 3\n"));
    let upgrade = server.ask("POST /upgrade", NOTHING);
    assert_eq!((upgrade.status, upgrade.body.as_str()), (422, "no upgrade: error: line 3\n"));
    let json = server.ask("POST /upgrade", "accept: application/json\r\n").json();
    assert_eq!(json, json!({ "ok": false, "error": "error: line 3" }));
    let json = server.ask("POST /reload", "accept: application/json\r\n");
    assert_eq!((json.status, json.json()), (422, json!({ "ok": false, "error": "error: line 3" })));
}

#[test]
fn head_is_get_without_the_body() {
    let server = Server::start(LIMITS, fake());
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/api/config",
        "/api/v1/fleet",
        "/api/v1/upstreams",
        "/api/v1/limits",
        "/api/v1/limits/a/keys",
        "/api/v1/limits/a/keys/b",
    ] {
        let (head, get) = (server.ask(&format!("HEAD {path}"), NOTHING), server.ask(&format!("GET {path}"), NOTHING));
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        assert_eq!(head.header("content-length"), get.header("content-length"));
        assert_eq!(get.header("content-length"), Some(get.body.len().to_string().as_str()));
    }
}

#[test]
fn another_method_is_told_what_is_allowed() {
    let server = Server::start(LIMITS, fake());
    for (request, allow) in [("GET /reload", "POST"), ("POST /metrics", "GET, HEAD"), ("OPTIONS /healthz", "GET, HEAD")]
    {
        let reply = server.ask(request, NOTHING);
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{request}");
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    }
}

#[test]
fn another_path_is_told_what_exists() {
    let server = Server::start(LIMITS, fake());
    for path in ["/", "/healthz/", "/api", "//metrics"] {
        let reply = server.ask(&format!("GET {path}"), NOTHING);
        assert_eq!((reply.status, reply.header("content-type")), (404, Some("application/problem+json")));
        let endpoints: Vec<_> = endpoints::all().map(|own| format!("{} {}", own.method.word(), own.path)).collect();
        assert_eq!((&reply.json()["endpoints"], &reply.json()["status"]), (&json!(endpoints), &json!(404)));
    }
}

#[test]
fn pages_of_others_are_refused() {
    let server = Server::start(LIMITS, fake());
    assert_eq!(server.ask("POST /reload", "origin: http://evil.example\r\n").status, 403);
    assert_eq!(server.ask("POST /upgrade", "origin: http://evil.example\r\n").status, 403);
    assert_eq!(server.ask("POST /reload", &format!("origin: http://{}\r\n", server.address)).status, 200);
    assert_eq!(server.ask("GET /api/config", "host: evil.example\r\n").status, 403);
    assert_eq!(server.ask("GET /api/config", "host: localhost\r\n").status, 200);
    assert_eq!(server.ask("GET /api/config", "host: localhost\r\nhost: localhost\r\n").status, 400);
}

#[test]
fn a_body_that_nobody_takes_is_ignored_up_to_64_kib() {
    let server = Server::start(LIMITS, fake());
    let ask = |length: usize| {
        let mut stream = server.connect();
        let head = format!(
            "POST /reload HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&vec![b'x'; length]).unwrap();
        read_reply(stream)
    };
    assert_eq!(ask(65_536).status, 200);
    assert_eq!(ask(65_537).status, 413);
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let server = Server::start(AdminLimits { head: Duration::from_millis(50), ..LIMITS }, fake());
    assert_eq!(server.ask("POST /reload", "content-length: 5\r\n").status, 408);
}

#[test]
fn a_head_that_does_not_end_closes_the_connection() {
    let server = Server::start(AdminLimits { head: Duration::from_millis(50), ..LIMITS }, fake());
    let mut slow = server.connect();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost:").unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
    let mut silent = server.connect();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}

#[test]
fn an_old_connection_gets_no_further_request() {
    let server =
        Server::start(AdminLimits { connection: Duration::from_millis(50), head: 2 * PATIENCE, ..LIMITS }, fake());
    let mut idle = server.connect();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let reply = read_reply(idle);
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
}

/// The value of a series without labels.
fn metric(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}: {page}"));
    line.trim().parse().unwrap()
}

#[test]
fn connections_beyond_the_bound_are_closed_and_counted() {
    let ((begun, begins), (go, gate)) = (sync_channel(8), sync_channel(8));
    let commands = Fake { gate_of_reads: Some((begun, Mutex::new(gate))), ..fake() };
    let server = Server::start(AdminLimits { connections: 2, head: 2 * PATIENCE, ..LIMITS }, commands);
    // The command of each is going on.
    let open: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /api/config HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
            begins.recv_timeout(PATIENCE).unwrap();
            stream
        })
        .collect();
    assert!(is_closed_unread(server.connect()));
    (0..2).for_each(|_| go.send(()).unwrap());
    for stream in open {
        assert_eq!(read_reply(stream).status, 200);
    }
    // The server learns of the end of the others in its own time.
    let page = loop {
        let mut stream = server.connect();
        let sent = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut text = String::new();
        if sent.and_then(|()| stream.read_to_string(&mut text)).is_ok() && !text.is_empty() {
            break text;
        }
    };
    assert!(metric(&page, "sluicegate_admin_connections_refused_total ") >= 1, "{page}");
}

#[test]
fn slow_heads_and_idle_connections_make_room_for_others() {
    let server = Server::start(AdminLimits { connections: 3, head: 2 * PATIENCE, ..LIMITS }, fake());
    let mut idle = server.connect();
    let mut is_served = || {
        idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\nok") {
            let mut byte = [0];
            assert_eq!(idle.read(&mut byte).unwrap(), 1);
            text.push(byte[0]);
        }
        text.starts_with(b"HTTP/1.1 200")
    };
    assert!(is_served());
    let mut slow: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost:").unwrap();
            stream
        })
        .collect();
    // All places are taken, and each request is answered all the same; the oldest that never asked goes first.
    assert_eq!(server.ask("GET /healthz", NOTHING).status, 200);
    assert!(is_closed_unread(slow.remove(0)));
    slow.push(server.connect());
    slow.push(server.connect());
    assert!(is_closed_unread(slow.remove(0)));
    // One that has asked stays as long as there are others.
    assert!(is_served());
    let page = server.ask("GET /metrics", NOTHING).body;
    assert_eq!(metric(&page, "sluicegate_admin_connections_refused_total "), 0);
}

#[test]
fn bodies_that_do_not_come_make_room_for_others() {
    let server = Server::start(AdminLimits { head: 2 * PATIENCE, request: 2 * PATIENCE, ..LIMITS }, fake());
    let begin = "POST /reload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\nconnection: close\r\n\
                 expect: 100-continue\r\n\r\n12345";
    let held: Vec<_> = (0..LIMITS.connections)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(begin.as_bytes()).unwrap();
            let mut said = [0; 25];
            stream.read_exact(&mut said).unwrap();
            assert!(said.starts_with(b"HTTP/1.1 100") && said.ends_with(b"\r\n\r\n"));
            stream
        })
        .collect();
    assert_eq!(server.ask("GET /api/config", NOTHING).status, 200);
    assert_eq!(server.ask("POST /reload", NOTHING).status, 200);
    let mut held = held.into_iter();
    // The oldest has made room for the first one, which has left its place to the second.
    assert!(is_closed_unread(held.next().unwrap()));
    for mut stream in held {
        stream.set_nonblocking(true).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        stream.write_all(b"67890").unwrap();
        assert!(read_reply(stream).head.starts_with("HTTP/1.1 200"), "its body came after all");
    }
}

#[test]
fn pages_that_are_not_read_make_room_for_others() {
    static LONG: Family = Family { name: "long", help: "Long.", kind: MetricKind::Gauge, labels: &["name"] };
    let registry = Registry::new();
    // More than all buffers between the page and its reader hold.
    let wide = "x".repeat(16 * 1024);
    let _kept: Vec<_> = (0..2_000).map(|at| registry.gauge(&LONG, &[&format!("{at:04}{wide}")])).collect();
    let connections = 4;
    let limits = AdminLimits { connections, head: 2 * PATIENCE, request: 2 * PATIENCE, ..LIMITS };
    let server = Server::start_with(limits, fake(), registry);
    let begin = || {
        let mut stream = server.connect();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream
    };
    let slow: Vec<_> = (0..connections).map(|_| begin()).collect();
    for _ in 0..3 {
        assert_eq!(server.ask("GET /healthz", NOTHING).status, 200);
    }
    assert!(server.ask("GET /metrics", NOTHING).body.ends_with("0\r\n\r\n"), "a page that is read comes whole");
    // One has made room for all of them, and the others go on.
    let rest = |mut stream: TcpStream| {
        let mut text = Vec::new();
        let ended = stream.read_to_end(&mut text);
        ended.is_ok() && text.ends_with(b"\r\n0\r\n\r\n")
    };
    assert_eq!(slow.into_iter().map(rest).filter(|is_whole| *is_whole).count(), connections - 1);
}

fn gated() -> (Fake, Receiver<()>, SyncSender<()>) {
    let ((begun, begins), (go, gate)) = (sync_channel(8), sync_channel(8));
    (Fake { gate: Some((begun, Mutex::new(gate))), ..fake() }, begins, go)
}

#[test]
fn a_command_that_takes_too_long_is_not_waited_for_and_blocks_nothing_else() {
    let (commands, begins, go) = gated();
    let server = Server::start(AdminLimits { request: Duration::from_millis(100), ..LIMITS }, commands);
    assert_eq!(server.ask("POST /reload", NOTHING).status, 503);
    assert_eq!(server.ask("POST /reload", NOTHING).status, 503);
    assert_eq!(server.ask("GET /api/config", NOTHING).status, 200);
    // The second never began: a hanging reload holds one thread.
    assert_eq!((begins.try_recv().is_ok(), begins.try_recv().is_ok()), (true, false));
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(server.ask("POST /reload", NOTHING).status, 200);
}

#[test]
fn configurations_that_take_long_to_judge_are_in_the_place_of_nothing_else() {
    let ((begun, begins), (go, gate)) = (sync_channel(8), sync_channel(8));
    let server = Server::start(LIMITS, Fake { gate_of_rules: Some((begun, Mutex::new(gate))), ..fake() });
    let mut streams: Vec<_> = (0..7)
        .map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(b"GET /api/v1/config/diff HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .unwrap();
            stream
        })
        .collect();
    begins.recv_timeout(PATIENCE).unwrap();
    let is_answered = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let answered = stream.peek(&mut [0]).is_ok_and(|size| size > 0);
        stream.set_nonblocking(false).unwrap();
        answered
    };
    let mut looks = 0..4_000;
    while streams.iter().filter(|stream| is_answered(stream)).count() < 3 {
        assert!(looks.next().is_some(), "one is judged, and three wait: the others are told so");
        thread::sleep(Duration::from_millis(5));
    }
    for path in ["GET /metrics", "GET /api/config"] {
        assert_eq!(server.ask(path, NOTHING).status, 200, "{path}");
    }
    let (told, waiting): (Vec<_>, Vec<_>) = streams.drain(..).partition(is_answered);
    for stream in told {
        let reply = read_reply(stream);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    }
    assert!(begins.try_recv().is_err(), "one at a time");
    (0..4).for_each(|_| go.send(()).unwrap());
    assert!(waiting.into_iter().map(read_reply).all(|reply| reply.header("retry-after").is_none()));
}

#[test]
fn a_request_under_way_is_answered_when_the_server_ends() {
    let (commands, begins, go) = gated();
    let mut server = Server::start(LIMITS, commands);
    let mut stream = server.connect();
    stream.write_all(b"POST /reload HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    begins.recv_timeout(PATIENCE).unwrap();
    server.shutdown.take().unwrap().send(true).unwrap();
    // No longer listening: the end has come to the server.
    while TcpStream::connect(server.address).is_ok() {}
    go.send(()).unwrap();
    assert_eq!(read_reply(stream).status, 200);
}

#[test]
fn a_command_that_panics_is_a_500() {
    let server = Server::start(LIMITS, Fake { ready: false, ..fake() });
    assert_eq!(server.ask("GET /api/config", NOTHING).status, 500);
    assert_eq!(server.ask("GET /healthz", NOTHING).status, 200);
}
