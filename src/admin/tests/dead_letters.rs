use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::config::{self, Certificates};
use crate::dead_letter::{DeadLetters, Draft, Event, KeyName, LogCursor, Reason, Snapshot};
use crate::redact::{RedactRules, Redactor};
use crate::time::{Clock, ManualClock, Span, Tick, Wall};

const PAGE: &str = "/api/v1/dead-letters";
const STREAM: &str = "/api/v1/dead-letters/stream";
/// How the first lines of a stream begin.
const BEGIN: &str = ": what follows";

/// A log, written by hand.
struct Log {
    directory: TempDir,
    letters: DeadLetters,
    written: u64,
}

impl Log {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let text = "[[listener]]\naddress = \"127.0.0.1:80\"\n[[route]]\nname = \"all\"\nrespond = {}\n\
                    [dead_letter]\ndirectory = \".\"\n";
        let file = directory.path().join("gateway.toml");
        let settings = config::parse(text, &file, Certificates::Unread).unwrap().model.dead_letter.unwrap();
        let redactor = Redactor::new(&RedactRules::default());
        let letters = DeadLetters::start(settings, redactor, "gw", Clock::Manual(ManualClock::new())).unwrap();
        Self { directory, letters, written: 0 }
    }

    /// Waits until it is in the file.
    fn write(&mut self, path: &str) {
        let now = Tick::from_nanos(1_767_323_045_000_000_000) + Span::from_secs(self.written);
        let event = Event {
            reason: Reason::RateLimited,
            is_shadow: false,
            limit: None,
            route: None,
            key: None,
            client: None,
            bytes: 1_000,
            now,
        };
        self.letters.offer(&event, KeyName::default, || draft(now, path));
        self.written += 1;
        eventually(|| self.letters.stats().written == self.written);
    }

    fn fake(&self) -> Fake {
        let clock = Clock::Manual(ManualClock::new());
        let redactor = Redactor::new(&RedactRules::default());
        Fake { archive: Some(Archive { directory: self.directory.path().to_owned(), redactor, clock }), ..fake() }
    }

    fn lines(&self) -> Vec<String> {
        lines(self.directory.path())
    }
}

/// Waits until something is so.
fn eventually(mut is_so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let started = clock.now();
    while !is_so() {
        assert!(clock.now().since(started) < PATIENCE.into(), "it does not become so");
        thread::sleep(Duration::from_millis(5));
    }
}

fn lines(directory: &Path) -> Vec<String> {
    let mut reader = Snapshot::take(directory).unwrap().read();
    std::iter::from_fn(|| reader.next_entry().unwrap()).map(|found| found.line).collect()
}

fn draft(at: Tick, path: &str) -> Draft {
    Draft {
        at: Wall::from_nanos(at.as_nanos()),
        reason: Reason::RateLimited,
        is_shadow: false,
        limit: Some("per-client".into()),
        route: Some("api".into()),
        plan: None,
        upstream: None,
        client_ip: "192.0.2.7".parse().ok(),
        key: vec![("client-ip".into(), "192.0.2.7".into())],
        key_is_secret: None,
        method: "GET".into(),
        host: "api.example.com".into(),
        path: path.into(),
        query: None,
        is_https: false,
        trusted_peer: false,
        is_asked: false,
        headers: Vec::new(),
        headers_left_out: 0,
        body: None,
        quota: None,
        scale: None,
        why: "route api".into(),
        status: 429,
        attempts: 0,
        tries: Vec::new(),
        trace_id: None,
        request_id: None,
    }
}

/// A client of a stream.
struct Subscriber(BufReader<TcpStream>);

impl Subscriber {
    /// Asks in the old version, so that the body comes as it is.
    fn ask(server: &Server, target: &str, headers: &str) -> Self {
        let mut stream = server.connect();
        write!(stream, "GET {target} HTTP/1.0\r\nhost: localhost\r\n{headers}\r\n").unwrap();
        Self(BufReader::new(stream))
    }

    fn open(server: &Server, target: &str, headers: &str) -> Self {
        let mut own = Self::ask(server, target, headers);
        assert!(own.head().starts_with("HTTP/1.0 200"));
        own
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.0.read_line(&mut line).unwrap() > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    fn head(&mut self) -> String {
        std::iter::from_fn(|| self.line().filter(|line| !line.is_empty())).collect::<Vec<_>>().join("\n")
    }

    /// The lines up to the next empty one; none at the end.
    fn block(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.line().filter(|line| !line.is_empty())).collect()
    }

    /// The next block that is an event.
    fn event(&mut self) -> Vec<String> {
        loop {
            let block = self.block();
            assert!(!block.is_empty(), "the stream has ended");
            if block.iter().any(|line| line.starts_with("event")) {
                return block;
            }
        }
    }
}

fn id_of(block: &[String]) -> &str {
    block.iter().find_map(|line| line.strip_prefix("id: ")).unwrap_or_else(|| panic!("{block:?}"))
}

#[test]
fn a_page_has_the_lines_of_the_log() {
    let mut log = Log::new();
    let server = Server::start(LIMITS, log.fake());
    let empty = server.ask(&format!("GET {PAGE}"), NOTHING);
    assert_eq!((empty.status, empty.header("content-type")), (200, Some("application/json")));
    assert_eq!(empty.body, "{\"records\":[\n],\"next\":null,\"damaged\":0}\n");
    for path in ["/a", "/b", "/c"] {
        log.write(path);
    }
    let lines = log.lines();
    let all = server.ask(&format!("GET {PAGE}?max=3&cursor="), NOTHING);
    let [a, b, c] = [0, 1, 2].map(|at| lines[at].as_str());
    assert_eq!(all.body, format!("{{\"records\":[\n{a},\n{b},\n{c}\n],\"next\":null,\"damaged\":0}}\n"));
    let first = server.ask(&format!("GET {PAGE}?max=2"), NOTHING).json();
    assert_eq!(first["records"], serde_json::from_str::<Value>(&format!("[{a},{b}]")).unwrap());
    let next = first["next"].as_str().unwrap();
    let second = server.ask(&format!("GET {PAGE}?max=2&cursor={next}"), NOTHING);
    assert_eq!(second.body, format!("{{\"records\":[\n{c}\n],\"next\":null,\"damaged\":0}}\n"));
    let path = log.directory.path().join("gw-0000000001.jsonl");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("\"/b\"", "\"/x\"")).unwrap();
    let damaged = server.ask(&format!("GET {PAGE}"), NOTHING);
    assert_eq!(damaged.body, format!("{{\"records\":[\n{a},\n{c}\n],\"next\":null,\"damaged\":1}}\n"));
}

#[test]
fn a_page_has_what_the_filters_choose() {
    let mut log = Log::new();
    for path in ["/a", "/b", "/c"] {
        log.write(path);
    }
    let server = Server::start(LIMITS, log.fake());
    for (query, count) in [
        ("route=api&limit=per-client&reason=rate-limited&status=4xx&client=192.0.2.0/24&key=192.0.2.7", 3),
        ("key=client-ip%3D192.0.2.7&client=192.0.2.7&status=429", 3),
        ("since=2026-01-02T03:04:06Z", 2),
        ("since=2026-01-02T04:04:06%2B01:00&until=2026-01-02T03:04:07Z&max=1000", 1),
        ("&until=2026-01-02+03:04:06&", 1),
        ("since=1h", 3),
        ("route=ap", 0),
        ("route", 0),
        ("limit=api", 0),
        ("reason=timeout", 0),
        ("status=5xx", 0),
        ("client=192.0.2.8", 0),
        ("key=192.0.2", 0),
    ] {
        let page = server.ask(&format!("GET {PAGE}?{query}"), NOTHING).json();
        assert_eq!(page["records"].as_array().map(Vec::len), Some(count), "{query}: {page}");
    }
}

#[test]
fn a_wrong_parameter_is_named_with_what_is_allowed() {
    let log = Log::new();
    let server = Server::start(LIMITS, log.fake());
    let allowed = "Allowed are since, until, limit, route, reason, key, client, status, max, cursor.";
    let when = "Its value is no time: use a time like 2026-01-02T03:04:05Z or 2026-01-02, or how long ago, like 90s, \
                15m, 2h or 3d";
    let number = "Its value is wrong: use a number from 1 to 1000.";
    for (query, name, why) in [
        ("last=3", "last", "There is no such parameter."),
        ("Route=a", "Route", "There is no such parameter."),
        ("last-event-id=x", "last-event-id", "There is no such parameter."),
        ("route=a&max=3&route=a", "route", "It is there twice: give it once."),
        ("route=%zz", "route", "Its value is not percent-encoded UTF-8: write % as %25."),
        ("since=yesterday", "since", &format!("{when}.")),
        ("until=2026-01-02T04:04:06+01:00", "until", &format!("{when}; write + as %2B.")),
        (
            "reason=late",
            "reason",
            "Its value is wrong: \"late\" is no reason: use one of rate-limited, blocked, queue-full, wait-timeout, timeout, \
             breaker, shed, overload, upstream-error, deferred, too-large, cancelled.",
        ),
        (
            "client=localhost",
            "client",
            "Its value is wrong: use an address or a network, like 192.0.2.7 or 192.0.2.0/24.",
        ),
        ("status=6xx", "status", "Its value is wrong: \"6xx\" is no status: use one like 429 or a class like 5xx."),
        ("max=0", "max", number),
        ("max=1001", "max", number),
        ("max=ten", "max", number),
        ("cursor=abc", "cursor", "Its value is wrong: use a cursor as it was given, or none."),
    ] {
        let reply = server.ask(&format!("GET {PAGE}?{query}"), NOTHING);
        assert_eq!((reply.status, reply.header("content-type")), (400, Some("application/problem+json")), "{query}");
        let problem = reply.json();
        assert_eq!((&problem["parameter"], &problem["status"]), (&json!(name), &json!(400)));
        assert_eq!(problem["detail"], format!("Parameter {name:?}: {why} {allowed}"));
        assert_eq!((&problem["allowed"][0], &problem["allowed"][9]), (&json!("since"), &json!("cursor")));
    }
    let cursor = "Its value is wrong: use a cursor as it was given, or none.";
    for (query, header, name, why) in [
        ("max=3", "", "max", "There is no such parameter."),
        ("cursor=", "", "cursor", "There is no such parameter."),
        ("last-event-id=abc", "", "last-event-id", cursor),
        ("", "last-event-id: abc\r\n", "last-event-id", cursor),
        ("", "last-event-id: \u{e9}\r\n", "last-event-id", cursor),
    ] {
        let reply = server.ask(&format!("GET {STREAM}?{query}"), header);
        assert_eq!(reply.status, 400, "{query}{header}");
        let allowed = "Allowed are since, until, limit, route, reason, key, client, status, last-event-id.";
        assert_eq!(reply.json()["detail"], format!("Parameter {name:?}: {why} {allowed}"));
    }
}

#[test]
fn without_a_log_there_is_none_to_show() {
    let server = Server::start(LIMITS, fake());
    let missing = Log::new().fake();
    let unreadable = Server::start(LIMITS, missing);
    for path in [PAGE, STREAM] {
        let reply = server.ask(&format!("GET {path}"), NOTHING);
        assert_eq!((reply.status, reply.header("content-type")), (404, Some("application/problem+json")));
        let detail = "There is no dead-letter log: write a [dead_letter] section into the file and reload.";
        assert_eq!(reply.json()["detail"], detail);
        let reply = unreadable.ask(&format!("GET {path}"), NOTHING);
        assert_eq!(reply.status, 500);
        assert!(reply.json()["detail"].as_str().unwrap().starts_with("dead letters: cannot read /"), "{}", reply.body);
    }
}

#[test]
fn dead_letters_are_for_whom_a_reload_is() {
    let log = Log::new();
    let server = Server::start(LIMITS, log.fake());
    for path in [PAGE, STREAM] {
        for headers in ["host: evil.example\r\n", "origin: http://evil.example\r\n", "origin: null\r\n"] {
            assert_eq!(server.ask(&format!("GET {path}"), headers).status, 403, "{headers}");
            assert_eq!(server.ask(&format!("HEAD {path}"), headers).status, 403, "{headers}");
        }
        assert_eq!(server.ask(&format!("GET {path}"), "host: localhost\r\nhost: localhost\r\n").status, 400);
        let own = format!("origin: http://{}\r\n", server.address);
        let head = server.ask(&format!("HEAD {path}"), &own);
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        let post = server.ask(&format!("POST {path}"), NOTHING);
        assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
    }
}

#[test]
fn a_stream_begins_at_the_end_and_goes_on_behind_the_last_event() {
    let mut log = Log::new();
    log.write("/before");
    let server = Server::start(LIMITS, log.fake());
    let mut first = Subscriber::ask(&server, &format!("{STREAM}?route=api"), "last-event-id: \r\n");
    let head = first.head();
    assert!(head.contains("content-type: text/event-stream\n") && head.contains("cache-control: no-store"), "{head}");
    let begin = first.block();
    assert_eq!((begin.len(), begin[0].as_str()), (2, BEGIN));
    log.write("/a");
    let event = first.event();
    let line = |at: usize| log.lines()[at].clone();
    let cursor: LogCursor = id_of(&event).parse().unwrap();
    assert_eq!(event, [format!("id: {cursor}"), "event: record".to_owned(), format!("data: {}", line(1))]);
    drop(first);
    log.write("/b");
    log.write("/c");
    let after = |id: &str, query: &str, header: &str| {
        let mut stream = Subscriber::open(&server, &format!("{STREAM}{query}"), header);
        assert_eq!(id_of(&stream.block()), id);
        stream.event().pop().unwrap()
    };
    let line = |at: usize| format!("data: {}", log.lines()[at]);
    let (one, other) = (id_of(&begin), id_of(&event));
    assert_eq!(after(other, "", &format!("Last-Event-ID: {other}\r\n")), line(2));
    assert_eq!(after(one, &format!("?last-event-id={one}"), ""), line(1));
    // A browser sends both when it comes again.
    let both = after(other, &format!("?last-event-id={one}"), &format!("last-event-id: {other}\r\n"));
    assert_eq!(both, line(2));
    // A cursor of a page will do.
    let page = server.ask(&format!("GET {PAGE}?max=3"), NOTHING).json();
    let next = page["next"].as_str().unwrap();
    assert_eq!(after(next, &format!("?last-event-id={next}"), ""), line(3));
}

#[test]
fn a_stream_tells_of_a_gap_before_what_follows() {
    let mut log = Log::new();
    log.write("/a");
    let server = Server::start(LIMITS, log.fake());
    let id = id_of(&Subscriber::open(&server, STREAM, "").block()).to_owned();
    let path = log.directory.path().join("gw-0000000001.jsonl");
    let next = log.directory.path().join("gw-0000000002.jsonl");
    fs::rename(&path, &next).unwrap();
    let resume = format!("last-event-id: {id}\r\n");
    let mut stream = Subscriber::open(&server, STREAM, &resume);
    let gap = "data: {\"detail\":\"a segment of the log is gone, or written anew: lines before the next ones may be \
               missing\"}";
    assert_eq!(stream.event(), ["event: gap", gap]);
    let event = stream.event();
    assert_eq!(event[2], format!("data: {}", log.lines()[0]));
    fs::remove_file(&next).unwrap();
    let last = stream.event();
    assert_eq!(last[1..], ["event: gap", gap], "without an event behind it, it has an id");
    let mut again = Subscriber::open(&server, STREAM, &format!("last-event-id: {}\r\n", id_of(&last)));
    assert_eq!(id_of(&again.block()), id_of(&last));
    fs::write(&next, format!("{}\n", event[2].strip_prefix("data: ").unwrap())).unwrap();
    assert_eq!(again.event()[1], "event: record");
}

#[test]
fn streams_have_their_number_and_a_place_is_free_when_its_client_leaves() {
    let log = Log::new();
    let registry = Registry::new();
    let limits = AdminLimits { streams: 2, connection: Duration::from_millis(50), request: 2 * PATIENCE, ..LIMITS };
    let server = Server::start_with(limits, log.fake(), Arc::clone(&registry));
    let open = || metric(&registry.render(), "sluicegate_admin_dead_letter_streams ");
    assert_eq!(server.ask("GET /healthz", NOTHING).status, 200);
    assert_eq!(open(), 0);
    let held: Vec<_> = ["", "connection: keep-alive\r\n"]
        .map(|headers| {
            let mut stream = Subscriber::open(&server, STREAM, headers);
            stream.block();
            stream
        })
        .into();
    assert_eq!(open(), 2);
    let refused = server.ask(&format!("GET {STREAM}"), NOTHING);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert_eq!(refused.json()["detail"], "There are 2 streams, as many as there may be. Close one, or come again.");
    assert_eq!(server.ask(&format!("GET {PAGE}"), NOTHING).status, 200);
    drop(held);
    // Long before the heartbeat, which would notice it too.
    eventually(|| open() == 0);
    assert_eq!(server.ask(&format!("HEAD {STREAM}"), NOTHING).status, 200);
    assert_eq!(open(), 0);
}

#[test]
fn a_stream_lives_as_long_as_its_client_reads() {
    let mut log = Log::new();
    let limits = AdminLimits {
        connection: Duration::from_millis(50),
        request: Duration::from_secs(2),
        heartbeat: Duration::from_millis(20),
        ..LIMITS
    };
    let server = Server::start(limits, log.fake());
    let mut stream = Subscriber::open(&server, &format!("{STREAM}?route=other"), "");
    let begin = stream.block();
    log.write("/a");
    let clock = Clock::system();
    let started = clock.now();
    let mut last = begin.clone();
    while clock.now().since(started) < Span::from_secs(5) {
        last = stream.block();
        assert_eq!((last.len(), last[0].as_str()), (2, ": heartbeat"));
    }
    assert_ne!(id_of(&last), id_of(&begin), "what does not match is not read again");
}

#[test]
fn a_client_that_reads_nothing_loses_its_place() {
    let mut log = Log::new();
    log.write("/a");
    let line = log.lines().remove(0) + "\n";
    // More than all buffers between the log and its reader hold.
    fs::write(log.directory.path().join("other-0000000001.jsonl"), line.repeat((32 << 20) / line.len())).unwrap();
    let limits = AdminLimits {
        streams: 1,
        connection: Duration::from_millis(50),
        request: Duration::from_millis(500),
        heartbeat: Duration::from_millis(100),
        ..LIMITS
    };
    let server = Server::start(limits, log.fake());
    let all = format!("{STREAM}?last-event-id={}", LogCursor::default());
    let _stuck = Subscriber::open(&server, &all, "");
    eventually(|| server.ask(&format!("HEAD {STREAM}"), NOTHING).status == 200);
}

#[test]
fn streams_end_with_the_server_and_are_closed_for_no_connection() {
    let mut log = Log::new();
    let mut server = Server::start(AdminLimits { connections: 2, ..LIMITS }, log.fake());
    let mut stream = Subscriber::open(&server, STREAM, "");
    assert_eq!(stream.block()[0], BEGIN);
    // One that has asked, and has been idle for less long.
    let mut idle = server.connect();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    for _ in 0..3 {
        assert_eq!(server.ask("GET /healthz", NOTHING).status, 200);
    }
    log.write("/a");
    assert_eq!(stream.event()[1], "event: record");
    server.shutdown.take().unwrap().send(true).unwrap();
    assert_eq!(stream.block(), Vec::<String>::new());
}
