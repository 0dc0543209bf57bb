//! Costs that are in the body or the trailers of a response: tokens of models, out of JSON and event streams.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::mixes::peers::{Ask, Http, Mix, Origin, Told, in_every_mix};
use crate::support::{Answer, Backend, FRAME, Gateway, Store, eventually, get, get_with};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Message, Wire};

/// The sum of two pointers, as two events of a stream state them.
const SOURCES: &str = "cost_from_response = [\"json:/message/usage/in\", \"json:/usage/out\"]";

/// Streams of a model: the first event states `in`, then events of content, and the last event states `out`. A stream waits before
/// its last event until it is let go.
struct Streams {
    backend: Backend,
    gate: Arc<(Mutex<bool>, Condvar)>,
    begun: Arc<AtomicUsize>,
}

impl Streams {
    /// Streams that cost so much.
    fn start(tokens: u64) -> Self {
        let (gate, begun) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicUsize::new(0)));
        let (held, started) = (Arc::clone(&gate), Arc::clone(&begun));
        let backend = Backend::start(move |request, stream| {
            if request.target().starts_with("/free") {
                return chunk_head(stream) && event(stream, "{\"usage\":{\"out\":0}}") && end(stream);
            }
            let is_begun = chunk_head(stream)
                && event(stream, "{\"message\":{\"usage\":{\"in\":1}}}")
                && event(stream, "{\"delta\":\"Hello\"}");
            started.fetch_add(1, Ordering::SeqCst);
            let (open, changed) = &*held;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
            is_begun && event(stream, &format!("{{\"usage\":{{\"out\":{}}}}}", tokens - 1)) && end(stream)
        });
        Self { backend, gate, begun }
    }

    fn let_go(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    fn wait_begun(&self, count: usize) {
        assert!(eventually(|| self.begun.load(Ordering::SeqCst) == count), "{:?} of {count}", self.begun);
    }
}

fn chunk_head(stream: &mut TcpStream) -> bool {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        .is_ok()
}

fn event(stream: &mut TcpStream, data: &str) -> bool {
    let text = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).is_ok()
}

fn end(stream: &mut TcpStream) -> bool {
    stream.write_all(b"0\r\n\r\n").is_ok()
}

fn rules(backend: &Backend, limit: &str) -> String {
    format!(
        "[server]\nresponse_timeout = \"2h\"\n[log]\naccess = \"json\"\n[[upstream]]\nname = \"model\"\nservers = [\"{}\"]\n[[upstream]]\nname = \"gone\"\nservers = [\"127.0.0.1:1\"]\n\
         [[limit]]\nname = \"tokens\"\nkey = \"global\"\n{limit}\n\
         [[route]]\nname = \"all\"\nupstream = \"model\"\nlimits = [\"tokens\"]\n\
         [[route]]\nname = \"gone\"\npath = \"/gone\"\nupstream = \"gone\"\nlimits = [\"tokens\"]\n",
        backend.address
    )
}

fn gateway(backend: &Backend, limit: &str) -> Gateway {
    Gateway::start(&rules(backend, limit))
}

fn left(answer: &Answer) -> u64 {
    let state = answer.header("ratelimit").unwrap();
    state.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse().unwrap()
}

/// The limit's metric of this name.
fn metric(gateway: &Gateway, name: &str) -> u64 {
    gateway.metric(&format!("sluicegate_limit_{name}_total"), &["limit=\"tokens\""]) as u64
}

/// Whether the last line of the access log says, sooner or later, that so much was used.
fn is_logged(gateway: &Gateway, used: u64) -> bool {
    eventually(|| gateway.access_log().last().is_some_and(|line| line["used"] == serde_json::json!({ "tokens": used })))
}

/// Two hundred streams at once: they take what they were estimated at before the first has said what it costs.
fn burst(tokens: u64, limit: &str) -> (Gateway, usize, u64) {
    let streams = Streams::start(tokens);
    let gateway = gateway(&streams.backend, limit);
    let address = gateway.address();
    let asked: Vec<_> = (0..200).map(|_| thread::spawn(move || get(address, "/").status)).collect();
    let decided = || {
        let of =
            |word: &str| gateway.metric("sluicegate_limit_decisions_total", &[&format!("decision=\"{word}\"")]) as u64;
        of("admitted") + of("refused") == 200
    };
    assert!(eventually(decided));
    streams.let_go();
    let statuses: Vec<_> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    let used = metric(&gateway, "used");
    (gateway, passed, used)
}

#[test]
fn a_burst_of_streams_with_right_estimates_never_passes_the_rate() {
    for algorithm in ["timer-wheel", "sliding-window", "token-bucket", "gcra", "fixed-window"] {
        let rate = if algorithm == "token-bucket" || algorithm == "gcra" { "1000/10h" } else { "1000/1m" };
        let limit = format!("algorithm = \"{algorithm}\"\nrate = \"{rate}\"\ncost = 10\n{SOURCES}");
        let more = match algorithm {
            "sliding-window" => "slot_limit = 1000",
            "gcra" => "burst = 1000",
            _ => "",
        };
        let limit = format!("{limit}\n{more}");
        let (gateway, passed, used) = burst(10, &limit);
        assert_eq!((passed, used), (100, 1000), "{algorithm}");
        assert_eq!(get(gateway.address(), "/").status, 429, "{algorithm}");
    }
}

#[test]
fn a_burst_with_estimates_too_low_passes_by_what_they_were_too_low_and_no_more() {
    let (gateway, passed, used) = burst(13, &format!("rate = \"1000/1h\"\ncost = 10\n{SOURCES}"));
    assert_eq!((passed, used), (100, 1300), "3 for each of 100");
    assert_eq!(get(gateway.address(), "/").status, 429);
}

#[test]
fn an_estimate_too_high_is_given_back_when_the_stream_ends_and_the_next_may_take_it() {
    let streams = Streams::start(40);
    let gateway = gateway(&streams.backend, &format!("rate = \"1000/30m\"\ncost = 960\nmax_wait = \"1h\"\n{SOURCES}"));
    let address = gateway.address();
    let first = thread::spawn(move || get(address, "/").status);
    streams.wait_begun(1);
    let second = thread::spawn(move || get_with(address, "/free", &[]));
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"queued\""], 1.0);
    streams.let_go();
    assert_eq!(first.join().unwrap(), 200);
    let second = second.join().unwrap();
    assert_eq!((second.status, left(&second)), (200, 0));
    let third = get(gateway.address(), "/free");
    assert_eq!((third.status, left(&third)), (200, 0), "the second cost nothing, in the end");
    assert_eq!(metric(&gateway, "used"), 40);
}

#[test]
fn not_a_byte_is_held_back_and_the_end_gives_back_while_the_client_still_reads() {
    let streams = Streams::start(40);
    let gateway = gateway(&streams.backend, &format!("rate = \"1000/1h\"\ncost = 500\n{SOURCES}"));
    let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let head = wire.head().unwrap();
    assert_eq!(head.header("ratelimit").unwrap().split("r=").nth(1).unwrap().split(';').next(), Some("500"));
    let begin = "26\r\ndata: {\"message\":{\"usage\":{\"in\":1}}}\n\n\r\n19\r\ndata: {\"delta\":\"Hello\"}\n\n\r\n";
    assert_eq!(wire.take(begin.len()).unwrap(), begin.as_bytes(), "while the stream waits for its last event");
    streams.let_go();
    assert!(eventually(|| metric(&gateway, "used") == 40));
    assert!(eventually(|| get(gateway.address(), "/free").status == 200));
}

/// Asks, reads what comes until `is_enough` of it, and goes away.
fn leave(gateway: &Gateway, target: &str, until: &str) {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&all).contains(until) {
        let size = stream.read(&mut piece).unwrap();
        assert!(size > 0, "{}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&piece[..size]);
    }
}

#[test]
fn a_client_that_leaves_pays_the_estimate_or_what_was_stated() {
    for (keys, cost, expected) in [
        ("", 10, 10),
        ("on_abort = \"most\"\n", 10, 10),
        ("on_abort = \"seen\"\n", 10, 1),
        ("missing_usage = \"events\"\non_abort = \"seen\"\n", 10, 1),
    ] {
        let streams = Streams::start(40);
        let gateway = gateway(&streams.backend, &format!("rate = \"1000/1h\"\ncost = {cost}\n{keys}{SOURCES}"));
        leave(&gateway, "/", "Hello");
        assert!(eventually(|| metric(&gateway, "used") == expected), "{keys}");
        assert_eq!(left(&get(gateway.address(), "/free")), 1000 - expected - cost, "{keys}");
        streams.let_go();
    }
}

#[test]
fn a_client_that_leaves_before_anything_was_stated_pays_the_estimate_or_the_events_that_it_got() {
    for (keys, expected) in [("on_abort = \"seen\"", 10), ("on_abort = \"seen\"\nmissing_usage = \"events\"", 2)] {
        let streams = Streams::start(40);
        let limit = format!("rate = \"1000/1h\"\ncost = 10\n{keys}\ncost_from_response = \"json:/usage/out\"");
        let gateway = gateway(&streams.backend, &limit);
        leave(&gateway, "/", "Hello");
        assert!(eventually(|| metric(&gateway, "used") == expected), "{keys}");
        streams.let_go();
    }
    // The client leaves before the head.
    let backend = Backend::start(|_, _| {
        thread::sleep(Duration::from_secs(5));
        false
    });
    let gateway =
        gateway(&backend, "rate = \"1000/1h\"\ncost = 10\non_abort = \"seen\"\ncost_from_response = \"json:/n\"");
    drop(Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
    assert!(eventually(|| metric(&gateway, "used") == 10));
}

/// Answers with the fields and the body that the request asks for: `x-fields`, its lines parted by `|`, and `x-body`.
fn saying() -> Backend {
    Backend::start(|request, stream| {
        let fields: String = lines(request, "x-fields").flat_map(|line| [line, "\r\n"]).collect();
        let status = request.header("x-status").unwrap_or("200 OK");
        let body = lines(request, "x-body").collect::<Vec<_>>().join("\n");
        let cut = usize::from(request.header("x-cut").is_some());
        let head = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n", body.len() + cut);
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(body.as_bytes()).is_ok() && cut == 0
    })
}

fn lines<'m>(request: &'m Message, name: &str) -> impl Iterator<Item = &'m str> {
    request.header(name).unwrap_or_default().split('|').filter(|line| !line.is_empty())
}

const JSON: &str = "Content-Type: application/json";

fn say(gateway: &Gateway, fields: &[(&str, &str)]) -> (u16, u64) {
    let answer = get_with(gateway.address(), "/", fields);
    (answer.status, left(&answer))
}

#[test]
fn an_answer_of_json_is_read_as_it_passes_and_not_changed() {
    let backend = saying();
    let limit = "rate = \"1000/1h\"\ncost = 100\nmax_cost = 200\ncost_from_response = [\"json:/usage/in\", \"json:/usage/out\"]";
    let gateway = gateway(&backend, limit);
    let body = "{\"text\":\"\\\"usage\\\":{}\", \"usage\":{\"in\":7,\"out\":8}}";
    let answer =
        get_with(gateway.address(), "/", &[("x-fields", JSON), ("x-body", body), ("accept-encoding", "gzip, br")]);
    assert_eq!((answer.status, answer.text(), left(&answer)), (200, body.to_owned(), 900));
    let seen = backend.seen.lock().unwrap().last().unwrap().clone();
    assert_eq!(seen.all("accept-encoding"), ["identity"], "a coded answer could not be read");
    assert!(is_logged(&gateway, 15));
    let plain = get_with(gateway.address(), "/", &[("x-fields", JSON), ("x-body", "{\"usage\":{\"in\":0,\"out\":0}}")]);
    assert_eq!(left(&plain), 885, "fifteen were used");
    for (body, used) in [
        ("{\"usage\":{\"in\":250}}", 200),
        ("{\"usage\":{\"in\":\"7\"}}", 100),
        ("{\"usage\":{\"in\":-7}}", 100),
        ("{\"usage\":{\"in\":7}", 100),
        ("no json", 100),
        ("", 100),
    ] {
        let before = metric(&gateway, "used");
        say(&gateway, &[("x-fields", JSON), ("x-body", body)]);
        assert_eq!(metric(&gateway, "used") - before, used, "{body}");
        assert!(is_logged(&gateway, used), "{body}");
    }
    assert_eq!(metric(&gateway, "cost_invalid"), 6);
}

#[test]
fn a_coded_answer_keeps_the_estimate_and_is_told_of_once_a_minute() {
    let backend = saying();
    let gateway = gateway(&backend, "rate = \"1000/1h\"\ncost = 100\ncost_from_response = \"json:/n\"");
    let coded = format!("{JSON}|Content-Encoding: gzip");
    for round in 1..=3 {
        let left = say(&gateway, &[("x-fields", &coded), ("x-body", "{\"n\":7}")]).1;
        assert_eq!(left, 1000 - 100 * round);
    }
    let log = gateway.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("a cost could not be read from an answer")).collect();
    assert!((1..=2).contains(&told.len()), "one of each worker: {log}");
    assert!(told[0].contains("tokens") && told[0].contains("Content-Encoding"), "{told:?}");
}

#[test]
fn a_status_may_have_a_cost_of_its_own_and_so_may_a_failure_of_the_gateway() {
    let backend = saying();
    let limit =
        "rate = \"1000/1h\"\ncost = 100\ncost_from_response = \"json:/n\"\ncost_by_status = { 5xx = 0, 401 = 5 }";
    let gateway = gateway(&backend, limit);
    let said = |status: &str| {
        let before = metric(&gateway, "used");
        get_with(gateway.address(), "/", &[("x-fields", JSON), ("x-body", "{\"n\":7}"), ("x-status", status)]);
        metric(&gateway, "used") - before
    };
    assert_eq!([said("200 OK"), said("500 No"), said("401 No"), said("404 No")], [7, 0, 5, 7]);
    assert_eq!(get(gateway.address(), "/gone").status, 502);
    assert_eq!(say(&gateway, &[]).1, 1000 - 7 - 5 - 7 - 100, "502 costs nothing either");
}

#[test]
fn a_server_that_fails_in_the_middle_leaves_the_estimate() {
    let backend = saying();
    let gateway = gateway(&backend, "rate = \"1000/1h\"\ncost = 100\ncost_from_response = \"json:/n\"");
    let request = "GET / HTTP/1.1\r\nHost: h\r\nX-Fields: Content-Type: application/x-ndjson\r\nX-Body: {\"n\":7}|{}\r\nX-Cut: 1\r\n\r\n";
    let mut wire = Wire::with(gateway.address(), request);
    assert!(wire.response("GET").is_err());
    assert!(eventually(|| metric(&gateway, "used") == 100));
}

/// Its head is settled as unknown, and then the gateway has to answer in its place.
#[test]
fn an_answer_that_breaks_before_any_of_it_went_out_costs_what_it_had_stated() {
    let backend = Backend::start(|request, stream| {
        if request.target() != "/broken" {
            return chunk_head(stream) && event(stream, "{\"usage\":{\"out\":0}}") && end(stream);
        }
        let stated = "data: {\"usage\":{\"out\":400}}\n\n";
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}{:x}\r\n{stated}\r\nno chunk\r\n", stated.len()).as_bytes()).is_ok()
    });
    let gateway = gateway(&backend, "rate = \"1000/1h\"\ncost = 10\ncost_from_response = \"json:/usage/out\"");
    assert_eq!(get(gateway.address(), "/broken").status, 502);
    assert_eq!(left(&get(gateway.address(), "/")), 590, "400 and the estimate of this one");
}

#[test]
fn what_counts_only_with_certain_answers_counts_what_they_state() {
    let backend = saying();
    let limit = "rate = \"50/1h\"\ncost = 5\ncount_when = { status = [\"4xx\"] }\ncost_from_response = \"json:/n\"";
    let gateway = gateway(&backend, limit);
    let body = [("x-fields", JSON), ("x-body", "{\"n\":30}")];
    assert_eq!(say(&gateway, &body), (200, 50));
    assert_eq!(say(&gateway, &[body[0], body[1], ("x-status", "401 No")]), (401, 50));
    assert_eq!(say(&gateway, &body), (200, 20));
}

in_every_mix! { bodies_and_trailers_are_read_in }

/// The same of each protocol, cut as it comes: JSON, a stream, a trailer, an answer without a body.
fn bodies_and_trailers_are_read_in(mix: Mix) {
    let origin = Origin::start(mix.server, |request| match request.target() {
        "/json" => Told::new(
            200,
            &[("content-type", "application/json")],
            format!("{{\"t\":\"{}\",\"n\":7}}", "x".repeat(70_000)),
        ),
        "/stream" => Told {
            has_no_length: true,
            ..Told::new(200, &[("content-type", "text/event-stream")], "data: {\"n\":1}\n\ndata: {\"n\":20}\n\n")
        },
        "/trailer" => Told {
            trailers: vec![("x-used".to_owned(), "300".to_owned())],
            ..Told::new(200, &[("content-type", "application/json"), ("trailer", "x-used")], "{\"n\":4}")
        },
        _ => Told::new(204, &[], ""),
    });
    let limit = "[[limit]]\nname = \"tokens\"\nkey = \"global\"\nrate = \"100000/1h\"\ncost = 1000\ncost_from_response = [\"json:/n\", \"trailer:x-used\"]\n";
    let gateway = Gateway::start(&mix.rules(origin.address, "limits = [\"tokens\"]", limit));
    let mut asker = mix.asker(&gateway);
    for (ask, used) in [
        (Ask::get("/json"), 7),
        (Ask::get("/stream"), 20),
        (Ask::get("/trailer"), 304),
        (Ask::get("/none"), 1000),
        (Ask::new("HEAD", "/json"), 1000),
    ] {
        let before = metric(&gateway, "used");
        asker.ask(&ask);
        assert!(
            eventually(|| metric(&gateway, "used") - before == used),
            "{ask:?}: {}",
            metric(&gateway, "used") - before
        );
    }
}

#[test]
fn a_client_of_http_1_0_is_charged_likewise() {
    let origin = Origin::start(Http::One, |_| Told {
        has_no_length: true,
        ..Told::new(200, &[("content-type", "text/event-stream")], "data: {\"n\":1}\n\ndata: {\"n\":20}\n\n")
    });
    let mix = Mix { client: Http::One, server: Http::One };
    let limit = "[[limit]]\nname = \"tokens\"\nkey = \"global\"\nrate = \"1000/1h\"\ncost = 100\ncost_from_response = \"json:/n\"\n";
    let gateway = Gateway::start(&mix.rules(origin.address, "limits = [\"tokens\"]", limit));
    let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.0\r\nHost: h\r\n\r\n");
    let all = wire.rest().unwrap();
    assert!(all.ends_with(b"data: {\"n\":1}\n\ndata: {\"n\":20}\n\n"));
    assert!(eventually(|| metric(&gateway, "used") == 20));
}

#[test]
fn a_hostile_server_costs_the_estimate_and_no_memory() {
    let backend = Backend::start(|request, stream| {
        let piece = if request.target() == "/deep" { b"[" } else { b"9" }.repeat(1 << 16);
        let head = format!("HTTP/1.1 200 OK\r\n{JSON}\r\nContent-Length: {}\r\n\r\n", (1 << 16) * 512);
        stream.write_all(head.as_bytes()).is_ok() && (0..512).all(|_| stream.write_all(&piece).is_ok())
    });
    let gateway = gateway(&backend, "rate = \"1000/1h\"\ncost = 100\nmax_cost = 300\ncost_from_response = \"json:\"");
    let before = gateway.most_resident();
    assert_eq!(get(gateway.address(), "/deep").status, 200);
    assert_eq!(metric(&gateway, "used"), 100);
    assert_eq!(get(gateway.address(), "/long").status, 200);
    assert_eq!(metric(&gateway, "used"), 400, "an endless number is max_cost");
    assert!(gateway.most_resident() - before < 8 << 20, "32 MiB passed, twice");
}

/// Two gateways that share a limit on a store: a give-back is there at once on the one, and within a second on the other.
#[test]
fn a_stream_that_ends_gives_back_to_all_gateways_of_a_fleet() {
    for shared in ["lease", "strict"] {
        best_of_three(|| give_back_in_a_fleet(shared));
    }
}

fn give_back_in_a_fleet(shared: &str) {
    let (store, streams) = (Store::start(), Streams::start(100));
    let fleet = format!(
        "[fleet]\nstore = \"redis://{}\"\nsecret_file = \"fleet.key\"\ndeadline = \"1s\"\non_failure = \"closed\"\n",
        store.address()
    );
    let limit = format!("rate = \"1000/1h\"\ncost = 900\nshared = \"{shared}\"\novershoot = 0\n{SOURCES}");
    let limit = if shared == "strict" { limit.replace("overshoot = 0\n", "") } else { limit };
    let gateways = [(); 2].map(|()| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
        Gateway::start_in(directory, &format!("{FRAME}{fleet}{}", rules(&streams.backend, &limit)))
    });
    let address = gateways[0].address();
    let first = thread::spawn(move || get(address, "/").status);
    streams.wait_begun(1);
    assert_eq!(get(gateways[1].address(), "/free").status, 429, "{shared}: 900 of 1000 are held");
    streams.let_go();
    assert_eq!(first.join().unwrap(), 200);
    let ended = Instant::now();
    let passes = |gateway: &Gateway| get(gateway.address(), "/free").status == 200;
    assert!(eventually(|| passes(&gateways[0])), "{shared}: here");
    assert!(eventually(|| passes(&gateways[1])), "{shared}: there");
    assert_took(ended, 0..1_100);
    assert_eq!(metric(&gateways[0], "used"), 100, "{shared}");
}
