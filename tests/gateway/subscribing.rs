//! Dead letters over admin: pages and streams.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::support::{Answer, Client, Gateway, PATIENCE, eventually, get_with, run};

const PAGE: &str = "/api/v1/dead-letters";
const STREAM: &str = "/api/v1/dead-letters/stream";

/// All refusals are records of their own, and a file of them is soon full.
fn logging() -> String {
    "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
     [[limit]]\nname = \"per-key\"\nkey = \"header:x-api-key\"\nrate = \"1/1h\"\n\
     [[limit]]\nname = \"other\"\nkey = \"header:x-api-key\"\nrate = \"1/1h\"\nstatus = 503\n\
     [[route]]\nname = \"api\"\nupstream = \"app\"\nlimits = [\"per-key\"]\n\
     [[route]]\nname = \"other\"\npath = \"/other\"\nupstream = \"app\"\nlimits = [\"other\"]\n\
     [dead_letter]\ndirectory = \"dead-letters\"\nrotate_size = \"64KiB\"\nmax_key_rate = 100000\n\
     max_record_rate = 1000000\nmax_byte_rate = \"10GiB/s\"\n"
        .to_owned()
}

fn refuse(client: &mut Client, count: usize) {
    for _ in 0..count {
        let long = "x".repeat(1_000);
        assert_eq!(client.request("GET", "/", &[("X-Api-Key", "k"), ("X-Long", &long)], b"").status, 429);
    }
}

/// A client whose key is used up.
fn used_up(gateway: &Gateway) -> Client {
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.request("GET", "/", &[("X-Api-Key", "k")], b"").status, 200);
    client
}

fn ids<'a>(records: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    records.into_iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect()
}

fn logged(gateway: &Gateway) -> Vec<String> {
    ids(&gateway.dead_letters())
}

fn segments(gateway: &Gateway) -> usize {
    let files = fs::read_dir(gateway.directory.path().join("dead-letters")).unwrap();
    files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "jsonl")).count()
}

/// A reader of a stream.
struct Stream {
    reader: BufReader<TcpStream>,
    text: String,
}

impl Stream {
    fn ask(gateway: &Gateway, query: &str, last: Option<&str>) -> Result<Self, Answer> {
        let mut client = Client::connect(gateway.admin);
        let mut headers = vec![("Host", "localhost"), ("Accept", "text/event-stream")];
        headers.extend(last.map(|last| ("Last-Event-ID", last)));
        client.send("GET", &format!("{STREAM}{query}"), &headers, b"");
        let stream = client.stream.try_clone().unwrap();
        // The head by itself: the rest comes when it comes.
        let mut reader = BufReader::new(stream);
        let (line, headers) = crate::support::read_head(&mut reader).unwrap();
        if line.contains(" 200 ") {
            assert!(headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned())), "{headers:?}");
            return Ok(Self { reader, text: String::new() });
        }
        let body = crate::support::read_body(&mut reader, &headers, false).unwrap();
        Err(Answer { status: line.split(' ').nth(1).unwrap().parse().unwrap(), headers, body })
    }

    fn open(gateway: &Gateway, last: Option<&str>) -> Self {
        Self::ask(gateway, "", last).unwrap_or_else(|answer| panic!("{answer:?}"))
    }

    /// The lines of the next block; none at the end.
    fn block(&mut self) -> Option<Vec<String>> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let lines = block.lines().map(str::to_owned).collect();
                self.text = rest.to_owned();
                return Some(lines);
            }
            let mut size = String::new();
            if self.reader.read_line(&mut size).unwrap() == 0 {
                // The process may be gone before it has said that this was all.
                return None;
            }
            let size = usize::from_str_radix(size.trim_end(), 16).unwrap_or_else(|_| panic!("no chunk: {size:?}"));
            let mut chunk = vec![0; size + 2];
            self.reader.read_exact(&mut chunk).unwrap();
            if size == 0 {
                return None;
            }
            self.text.push_str(std::str::from_utf8(&chunk[..size]).unwrap());
        }
    }

    /// The next event: its id, its name and what it says.
    fn event(&mut self) -> (String, String, Value) {
        loop {
            let block = self.block().expect("the stream has ended");
            let field = |name: &str| block.iter().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let (Some(id), Some(name), Some(data)) = (field("id: "), field("event: "), field("data: ")) {
                return (id, name, serde_json::from_str(&data).unwrap());
            }
        }
    }
}

#[test]
fn pages_have_each_record_once_while_the_gateway_writes_and_rotates() {
    let gateway = Gateway::start(&logging());
    let mut client = used_up(&gateway);
    let (mut refused, mut seen) = (40, Vec::new());
    refuse(&mut client, refused);
    assert!(eventually(|| logged(&gateway).len() == refused));
    let mut cursor = String::new();
    loop {
        let page = gateway.ask_admin(&format!("{PAGE}?max=9&cursor={cursor}"));
        assert_eq!(page.status, 200, "{}", page.text());
        let page = page.json();
        let found = ids(page["records"].as_array().unwrap());
        assert!(found.len() <= 9 && page["damaged"] == 0, "{page}");
        seen.extend(found);
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => break,
        }
        refuse(&mut client, 7);
        refused += 7;
        assert!(eventually(|| logged(&gateway).len() == refused));
    }
    assert_eq!(seen, logged(&gateway));
    assert!(seen.len() >= 100 && segments(&gateway) >= 3, "{} in {} segments", seen.len(), segments(&gateway));
}

#[test]
fn a_page_shows_what_ls_shows_for_the_same_filters() {
    let gateway = Gateway::start(&logging());
    for (path, key) in [("/a", "one"), ("/b", "one"), ("/other", "two"), ("/other", "two"), ("/c", "one")] {
        get_with(gateway.address(), path, &[("X-Api-Key", key)]);
    }
    assert!(eventually(|| logged(&gateway).len() == 3));
    let middle = gateway.dead_letters()[1]["ts"].as_str().unwrap().to_owned();
    for (filters, count) in [
        (&[][..], 3),
        (&[("key", "one")], 2),
        (&[("key", "header:x-api-key=two"), ("status", "5xx")], 1),
        (&[("limit", "per-key"), ("route", "api"), ("reason", "rate-limited")], 2),
        (&[("client", "127.0.0.0/8"), ("status", "429"), ("since", "1h")], 2),
        (&[("since", middle.as_str())], 2),
        (&[("until", middle.as_str())], 1),
        (&[("until", "1h")], 0),
        (&[("reason", "timeout")], 0),
    ] {
        let query: Vec<_> = filters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let page = gateway.ask_admin(&format!("{PAGE}?{}", query.join("&"))).json();
        let options: Vec<_> = filters.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        let mut arguments = vec!["dead-letters", "ls", "--json"];
        arguments.extend(options.iter().map(String::as_str));
        let (status, listed, errors) = run(&arguments, gateway.directory.path());
        assert!(status.success(), "{errors}");
        let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((page["records"].as_array().unwrap(), listed.len()), (&listed, count), "{filters:?}");
    }
    let wrong = gateway.ask_admin(&format!("{PAGE}?reason=late"));
    assert_eq!((wrong.status, wrong.header("content-type")), (400, Some("application/problem+json")));
    assert_eq!(wrong.json()["parameter"], "reason");
    assert_eq!(get_with(gateway.admin, PAGE, &[("Host", "evil.example")]).status, 403);
    assert_eq!(get_with(gateway.admin, STREAM, &[("Host", "evil.example")]).status, 403);
}

#[test]
fn a_stream_shows_what_is_refused_after_it_was_opened_and_ends_with_the_gateway() {
    let mut gateway = Gateway::start(&logging());
    let mut client = used_up(&gateway);
    refuse(&mut client, 1);
    assert!(eventually(|| logged(&gateway).len() == 1));
    let mut stream = Stream::open(&gateway, None);
    let mut filtered = Stream::ask(&gateway, "?route=other", None).unwrap_or_else(|answer| panic!("{answer:?}"));
    refuse(&mut client, 1);
    for _ in 0..2 {
        get_with(gateway.address(), "/other", &[("X-Api-Key", "k")]);
    }
    let records = [stream.event(), stream.event(), filtered.event()].map(|(_, name, record)| {
        assert_eq!(name, "record");
        record
    });
    let logged = gateway.dead_letters();
    assert_eq!(records, [&logged[1], &logged[2], &logged[2]].map(Clone::clone));
    gateway.signal("TERM");
    for mut stream in [stream, filtered] {
        while stream.block().is_some() {}
    }
    assert!(gateway.wait_exit().success());
}

#[test]
fn who_comes_again_with_the_last_id_misses_nothing_and_gets_nothing_twice() {
    let gateway = Gateway::start(&logging());
    let mut client = used_up(&gateway);
    let mut last = None;
    let mut seen = Vec::new();
    for _ in 0..12 {
        let mut stream = Stream::open(&gateway, last.as_deref());
        if last.is_none() {
            // Where it begins is known before its first event.
            let begin = stream.block().unwrap();
            last = begin.iter().find_map(|line| line.strip_prefix("id: ")).map(str::to_owned);
        }
        refuse(&mut client, 20);
        for _ in 0..15 {
            let (id, name, record) = stream.event();
            assert_eq!(name, "record");
            seen.extend(ids([&record]));
            last = Some(id);
        }
    }
    let mut stream = Stream::open(&gateway, last.as_deref());
    while seen.len() < 240 {
        seen.extend(ids([&stream.event().2]));
    }
    assert_eq!(seen, logged(&gateway));
    assert!(segments(&gateway) >= 3);
}

#[test]
fn there_are_sixteen_streams_at_most() {
    let gateway = Gateway::start(&logging());
    let mut streams: Vec<_> = (0..16).map(|_| Stream::open(&gateway, None)).collect();
    gateway.wait_metric("sluicegate_admin_dead_letter_streams", &[], 16.0);
    let refused = Stream::ask(&gateway, "", None).err().unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    drop(streams.pop());
    assert!(eventually(|| Stream::ask(&gateway, "", None).is_ok()));
    let mut client = used_up(&gateway);
    refuse(&mut client, 1);
    for mut stream in streams {
        assert_eq!(ids([&stream.event().2]).len(), 1);
    }
}

#[test]
fn a_reload_without_dead_letters_ends_streams() {
    let gateway = Gateway::start(&logging());
    let mut stream = Stream::open(&gateway, None);
    let without = logging().split("[dead_letter]").next().unwrap().to_owned();
    assert_eq!(gateway.reload(&without).status, 200);
    while stream.block().is_some() {}
    for path in [PAGE, STREAM] {
        assert_eq!(gateway.ask_admin(path).status, 404);
    }
}

#[test]
fn a_subscriber_that_lags_costs_little_memory_and_gets_all() {
    let gateway = Gateway::start(&logging());
    let mut client = used_up(&gateway);
    refuse(&mut client, 1);
    assert!(eventually(|| logged(&gateway).len() == 1));
    let first = gateway.directory.path().join("dead-letters");
    let segment = fs::read_dir(&first).unwrap().map(|file| file.unwrap().path());
    let segment = segment.into_iter().find(|path| path.extension().is_some_and(|end| end == "jsonl")).unwrap();
    let line = fs::read(&segment).unwrap();
    let count = (32 << 20) / line.len();
    fs::write(first.join("old-0000000001.jsonl"), line.repeat(count)).unwrap();
    // Of a cursor before everything.
    let mut stream = Stream::open(&gateway, Some("WzEsW11d"));
    gateway.wait_metric("sluicegate_admin_dead_letter_streams", &[], 1.0);
    let before = gateway.resident();
    let mut events = 0;
    stream.reader.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    while events < count + 1 {
        stream.event();
        events += 1;
        if events == count / 2 {
            let now = gateway.resident();
            assert!(now < before + (16 << 20), "{before} became {now}");
        }
    }
}
