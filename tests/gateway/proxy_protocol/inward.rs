use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant;

use super::{AUTHORITY, TLS, UNIQUE_ID, binary, line};
use crate::connections::connect_from;
use crate::h2::peer as h2;
use crate::support::{Answer, Gateway, PATIENCE, eventually, read_answer};
use crate::timing::{assert_took, best_of_three};
use crate::tls::peer::{self, Asking, Authority, Tls};
use crate::wire::{Wire, get};

const ECHO: &str = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
                    [[route]]\nname = \"all\"\nupstream = \"app\"\n";

/// A listener of which each connection has a header, sent by peers of 127.0.0.1.
const FRAME: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"required\"\n\
                     proxy_protocol_from = [\"127.0.0.1\"]\n[admin]\naddress = \"127.0.0.1:0\"\n";

fn start(rules: &str) -> Gateway {
    Gateway::start_whole(&format!("{FRAME}{rules}"))
}

fn sent(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // Who may not say whose it is may have been closed already.
    let _ = stream.write_all(bytes);
    stream
}

fn wait(gateway: &Gateway, result: &str, count: usize) {
    let label = format!("result=\"{result}\"");
    gateway.wait_metric("sluicegate_proxy_protocol_headers_total", &[&label], count as f64);
}

/// Whether nothing is answered.
fn assert_closed(mut stream: TcpStream) {
    let mut answer = Vec::new();
    // By a reset or, where all was read, by an end.
    let ended = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{ended:?} {:?}", String::from_utf8_lossy(&answer));
    assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it was not closed");
}

/// The protocol that clients speak behind the header.
#[derive(Clone, Copy, Debug)]
enum Spoken {
    Http1,
    Http2,
    Tls,
    TlsHttp2,
}

fn answer(spoken: Spoken, gateway: &Gateway, authority: &Authority, header: &[u8], target: &str) -> Answer {
    let stream = sent(gateway.address(), header);
    let of_h2 = async |sender| {
        let whole = h2::ask(&sender, h2::request("GET", target, &[])).await.unwrap();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = whole.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        Answer { status: whole.status, headers, body: whole.body }
    };
    match spoken {
        Spoken::Http1 => {
            (&stream).write_all(get(target).as_bytes()).unwrap();
            read_answer(&mut std::io::BufReader::new(stream), false).unwrap()
        }
        Spoken::Http2 => h2::run(async {
            stream.set_nonblocking(true).unwrap();
            of_h2(h2::over(tokio::net::TcpStream::from_std(stream).unwrap()).await).await
        }),
        Spoken::Tls => Tls::over(stream, &Asking::of(authority).build(), "localhost").unwrap().get(target),
        Spoken::TlsHttp2 => {
            let tls = Tls::over(stream, &Asking::of(authority).alpn(&["h2"]).build(), "localhost").unwrap();
            h2_by_frames(tls, target)
        }
    }
}

/// The status and nothing else, by frames that are written as they are: a request with indexed fields, and its answer.
fn h2_by_frames(mut tls: Tls, target: &str) -> Answer {
    let mut block = vec![0x82, 0x86, 0x41, 1, b'h', 0x44, target.len() as u8];
    block.extend(target.as_bytes());
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend([0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]);
    bytes.extend(block);
    tls.send(bytes).unwrap();
    let mut body = Vec::new();
    loop {
        let mut head = [0; 9];
        tls.reader.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        tls.reader.read_exact(&mut payload).unwrap();
        let (kind, flags, stream) = (head[3], head[4], head[8]);
        if stream == 1 && kind == 0 {
            body.extend(payload);
        }
        if stream == 1 && flags & 1 == 1 {
            return Answer { status: 200, headers: Vec::new(), body };
        }
    }
}

fn whole(rules: &str) -> (Gateway, Gateway, Authority) {
    let authority = Authority::new("ca");
    let made = authority.server(&["localhost"]);
    let https = peer::https("").replace(
        "protocol = \"https\"",
        "protocol = \"https\"\nproxy_protocol = \"required\"\nproxy_protocol_from = [\"127.0.0.0/8\"]",
    );
    let secure = peer::gateway(|directory| made.write(directory, "cert"), &format!("{https}{rules}"));
    (start(rules), secure, authority)
}

#[test]
fn an_address_is_allowed_for_itself_and_not_for_the_one_it_holds() {
    let gateway = start(&format!("[client]\nallow = [\"127.0.0.1\", \"192.0.2.0/24\"]\n{ECHO}"));
    let from = |source: &str| {
        let family = if source.contains(':') { "TCP6" } else { "TCP4" };
        let to = if source.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
        sent(gateway.address(), format!("PROXY {family} {source} {to} 4000 443\r\n{}", get("/")).as_bytes())
    };
    for source in ["192.0.2.7", "::ffff:192.0.2.7"] {
        let answer = read_answer(&mut std::io::BufReader::new(from(source)), false).unwrap();
        assert_eq!(answer.status, 200, "{source}");
    }
    for source in ["64:ff9b::192.0.2.7", "::192.0.2.7", "198.51.100.7"] {
        assert_closed(from(source));
    }
    gateway.wait_metric("sluicegate_client_connections_denied_total", &[], 3.0);
}

#[test]
fn the_header_says_who_asks_whatever_is_spoken_behind_it() {
    let rules = format!("{ECHO}limits = [\"l\"]\n[[limit]]\nname = \"l\"\nrate = \"2/1h\"\nkey = \"client-ip\"\n");
    let (plain, secure, authority) = whole(&rules);
    let mut count = 0;
    for (spoken, gateway) in
        [(Spoken::Http1, &plain), (Spoken::Http2, &plain), (Spoken::Tls, &secure), (Spoken::TlsHttp2, &secure)]
    {
        count += 1;
        let ask = |source: &str, header: &dyn Fn(&str) -> Vec<u8>| {
            let answer = answer(spoken, gateway, &authority, &header(&format!("{source}:5000")), "/");
            let forwarded = if answer.text().contains("\"headers\"") { answer.echoed("x-forwarded-for") } else { None };
            // By frames the status is not read.
            forwarded.unwrap_or_else(|| "refused".to_owned())
        };
        let (one, two) = (format!("198.51.100.{count}"), format!("203.0.113.{count}"));
        let of_two = |source: &str| binary(source, &[(UNIQUE_ID, b"id")]);
        assert_eq!(ask(&one, &line), one, "{spoken:?}");
        assert_eq!(ask(&one, &of_two), one, "{spoken:?}");
        assert_eq!(ask(&one, &line), "refused", "{spoken:?}: a limit counts by it");
        assert_eq!(ask(&two, &of_two), two, "{spoken:?}: and others have their own");
    }
    wait(&plain, "proxied", 8);
    wait(&secure, "proxied", 8);
}

#[test]
fn a_header_may_come_in_any_two_pieces() {
    let gateway = start(ECHO);
    let two = binary("198.51.100.7:5000", &[(AUTHORITY, b"example.org"), (UNIQUE_ID, b"\0\x01")]);
    let mut count = 0;
    for header in [line("198.51.100.7:5000"), two] {
        for cut in 1..=header.len() {
            let mut stream = sent(gateway.address(), &header[..cut]);
            // Another connection in between has the gateway look at what has come.
            if cut % 8 == 0 {
                drop(sent(gateway.address(), &header));
                count += 1;
            }
            stream.write_all(&[&header[cut..], get("/").as_bytes()].concat()).unwrap();
            let answer = read_answer(&mut std::io::BufReader::new(stream), false).unwrap();
            assert_eq!(answer.echoed("x-forwarded-for").unwrap(), "198.51.100.7", "{cut}");
            count += 1;
        }
    }
    wait(&gateway, "proxied", count);
    // With the request behind it in one piece, and byte by byte.
    let wire = Wire::open(gateway.address());
    assert!(wire.drip([line("198.51.100.8:1"), get("/").into()].concat(), std::time::Duration::from_micros(200)));
    let mut wire = wire;
    assert!(wire.answer().text().contains("198.51.100.8"));
}

#[test]
fn a_header_that_ends_too_early_gets_no_answer() {
    let gateway = start(ECHO);
    let two = binary("198.51.100.7:5000", &[(AUTHORITY, b"example.org")]);
    let mut count = 0;
    for header in [line("198.51.100.7:5000"), two] {
        for cut in 0..header.len() {
            let stream = sent(gateway.address(), &header[..cut]);
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_closed(stream);
            count += 1;
        }
    }
    wait(&gateway, "client-gone", count);
    assert!(gateway.metric("sluicegate_requests_total", &[]) < 0.5, "none was taken for a request");
}

#[test]
fn what_is_no_header_is_closed_without_a_word_and_logged() {
    let gateway = start(&format!("[server]\nworkers = 1\n{ECHO}"));
    let started = Instant::now();
    let good = binary("198.51.100.7:5000", &[(AUTHORITY, b"example.org")]);
    let mut wrong_sum = good.clone();
    wrong_sum[20] ^= 1;
    let mut datagrams = good.clone();
    datagrams[13] = 0x12;
    let mut oversized = good[..16].to_vec();
    oversized[14..16].copy_from_slice(&4000_u16.to_be_bytes());
    oversized.resize(4016, 0);
    let long_line = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
    let bad: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"PROXY TCP4 198.51.100.7 192.0.2.1 05000 443\r\n",
        long_line.as_bytes(),
        &wrong_sum,
        &datagrams,
        &oversized,
    ];
    for bytes in bad {
        assert_closed(sent(gateway.address(), &[bytes, get("/").as_bytes()].concat()));
    }
    wait(&gateway, "malformed", bad.len());
    let told = "The connection does not begin with a PROXY header.";
    assert!(eventually(|| gateway.log().contains(told)), "{}", gateway.log());
    let log = gateway.log();
    assert!(log.contains("proxy_protocol = \\\"required\\\"") && log.contains("\"listener\":\"127.0.0.1:0\""), "{log}");
    let lines = log.lines().filter(|line| line.contains("PROXY")).count() as u64;
    assert!(lines <= started.elapsed().as_secs() + 1, "one line a second: {log}");
    assert!(gateway.metric("sluicegate_requests_total", &[]) < 0.5, "none was taken for a request");
}

#[test]
fn nobody_else_may_say_who_asks() {
    let gateway = start(ECHO);
    let mut stream = connect_from("127.0.0.2", gateway.address());
    let _ = stream.write_all(&[line("198.51.100.7:5000"), get("/").into()].concat());
    assert_closed(stream);
    wait(&gateway, "unlisted", 1);
    assert!(eventually(|| gateway.log().contains("proxy_protocol_from does not list its peer")), "{}", gateway.log());
    // Nor on a listener that takes no header: there it is a request that cannot be understood.
    let plain = Gateway::start(ECHO);
    for (header, status) in [(line("198.51.100.7:5000"), 400), (binary("198.51.100.7:5000", &[]), 400)] {
        let mut wire = Wire::with(plain.address(), [header, get("/").into()].concat());
        assert_eq!(wire.response("GET").unwrap().status(), status);
    }
}

#[test]
fn a_header_without_addresses_leaves_those_of_the_connection() {
    let gateway = start(ECHO);
    for header in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(),
        [super::SIGNATURE, &[0x20, 0, 0, 0]].concat(),
    ] {
        let mut wire = Wire::with(gateway.address(), [&header, get("/").as_bytes()].concat());
        let answer = wire.answer();
        assert!(answer.text().contains("[\"x-forwarded-for\",\"127.0.0.1\"]"), "{}", answer.text());
    }
    wait(&gateway, "local", 3);
}

#[test]
fn bounds_and_denials_are_of_the_client_and_not_of_the_balancer() {
    let rules = format!("[client]\nmax_connections = 1\ndeny = [\"203.0.113.0/24\"]\n{ECHO}");
    let gateway = start(&rules);
    let served = |source: &str| {
        let mut wire = Wire::with(gateway.address(), line(source));
        assert_eq!(wire.get("/").status(), 200, "{source}");
        wire
    };
    let held = served("198.51.100.7:1");
    let _others: Vec<_> = (20..25).map(|last| served(&format!("198.51.100.{last}:1"))).collect();
    assert_closed(sent(gateway.address(), &line("198.51.100.7:2")));
    gateway.wait_metric("sluicegate_client_connections_refused_total", &["reason=\"client\""], 1.0);
    assert_closed(sent(gateway.address(), &line("203.0.113.9:2")));
    gateway.wait_metric("sluicegate_client_connections_denied_total", &[], 1.0);
    drop(held);
    gateway.wait_metric("sluicegate_client_connections", &[], 5.0);
    let mut again = served("198.51.100.7:3");
    // A list that changes is asked at the next request.
    assert_eq!(gateway.ask_reload().status, 200);
    let denied = rules.replace("203.0.113.0/24", "198.51.100.7");
    std::fs::write(gateway.file(), format!("{FRAME}{denied}")).unwrap();
    assert_eq!(gateway.ask_reload().status, 200);
    assert!(again.send(get("/")) && again.is_cut());
}

#[test]
fn who_says_nothing_is_closed_in_time() {
    best_of_three(|| {
        let gateway = start(&format!("[server]\nhandshake_timeout = \"300ms\"\n{ECHO}"));
        let started = Instant::now();
        for begun in [&b""[..], b"PROXY TCP4 ", &binary("198.51.100.7:1", &[])[..20]] {
            assert_closed(sent(gateway.address(), begun));
        }
        assert_took(started, 900..10_000);
        wait(&gateway, "timeout", 3);
        assert!(
            eventually(|| gateway.log().contains("No PROXY header came within handshake_timeout.")),
            "{}",
            gateway.log()
        );
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    });
}

#[test]
fn who_says_nothing_does_not_hold_a_drain() {
    best_of_three(|| {
        let (mut plain, mut secure, _) = whole(ECHO);
        for gateway in [&mut plain, &mut secure] {
            let silent: Vec<_> = (0..3).map(|_| sent(gateway.address(), b"")).collect();
            gateway.wait_metric("sluicegate_client_connections", &[], 3.0);
            let introduced = sent(gateway.address(), &line("198.51.100.7:1"));
            wait(gateway, "proxied", 1);
            let started = Instant::now();
            gateway.signal("TERM");
            assert!(gateway.wait_exit().success());
            assert_took(started, 400..4_000);
            silent.into_iter().chain([introduced]).for_each(assert_closed);
            assert!(!gateway.log().contains("PROXY header"), "they have done nothing wrong: {}", gateway.log());
        }
    });
}

#[test]
fn a_connection_that_waits_for_its_header_holds_no_buffer() {
    let gateway = start(&format!("[server]\nworkers = 1\nhandshake_timeout = \"60s\"\n{ECHO}"));
    let open = |count: usize| (0..count).map(|_| sent(gateway.address(), b"")).collect::<Vec<_>>();
    let first = open(200);
    gateway.wait_metric("sluicegate_client_connections", &[], 200.0);
    let before = gateway.resident();
    let others = open(3000);
    gateway.wait_metric("sluicegate_client_connections", &[], 3200.0);
    let each = gateway.resident().saturating_sub(before) / 3000;
    assert!(each <= 2048, "{each} bytes each");
    for mut stream in first.into_iter().chain(others).take(300) {
        stream.write_all(&[line("198.51.100.7:1"), get("/").into()].concat()).unwrap();
        assert_eq!(read_answer(&mut std::io::BufReader::new(stream), false).unwrap().status, 200, "and it still works");
    }
}

#[test]
fn what_the_balancer_knows_can_be_told_to_servers() {
    let headers = "request_headers = { set = { x-named = \"{proxy_authority}\", x-id = \"{proxy_unique_id}\" } }\n";
    let redirecting = FRAME.replace("[admin]", "redirect_to_https = 443\n[admin]");
    let gateway = Gateway::start_whole(&format!("{redirecting}{ECHO}{headers}"));
    let tls = [1, 0, 0, 0, 0];
    for (id, told) in [(&b"conn-7"[..], "conn-7"), (b"\x01\xff", "01ff")] {
        let vectors: [(u8, &[u8]); 3] = [(AUTHORITY, b"www.example.org"), (UNIQUE_ID, id), (TLS, &tls)];
        let header = binary("198.51.100.7:5000", &vectors);
        let mut wire = Wire::with(gateway.address(), [&header, get("/").as_bytes()].concat());
        let answer = wire.answer();
        assert_eq!(answer.status(), 200, "its client has spoken TLS: there is nowhere to redirect to");
        for field in ["[\"x-named\",\"www.example.org\"]".to_owned(), format!("[\"x-id\",\"{told}\"]")] {
            assert!(answer.text().contains(&field), "{field} in {}", answer.text());
        }
        assert!(answer.text().contains("[\"x-forwarded-proto\",\"https\"]"), "{}", answer.text());
    }
    let mut wire = Wire::with(gateway.address(), [line("198.51.100.7:5000"), get("/").into()].concat());
    assert_eq!(wire.answer().status(), 308);
}

#[test]
fn a_chain_of_trusted_proxies_begins_with_the_source_of_the_header() {
    let gateway = start(&format!("[client]\ntrusted_proxies = [\"198.51.100.7\"]\n{ECHO}"));
    for (source, chain) in [("198.51.100.7:1", "192.0.2.55, 198.51.100.7"), ("198.51.100.8:1", "198.51.100.8")] {
        let request = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.55\r\n\r\n";
        let mut wire = Wire::with(gateway.address(), [&line(source)[..], request.as_bytes()].concat());
        assert!(wire.answer().text().contains(&format!("[\"x-forwarded-for\",\"{chain}\"]")), "{source}");
    }
}

#[test]
fn a_reload_changes_what_new_connections_begin_with() {
    let gateway = Gateway::start_whole(&format!("{FRAME}{ECHO}"));
    let mut kept = Wire::with(gateway.address(), line("198.51.100.7:1"));
    assert_eq!(kept.get("/").status(), 200);
    let whole = std::fs::read_to_string(gateway.file()).unwrap();
    let off = whole.replace("\"required\"", "\"off\"").replace("proxy_protocol_from", "#");
    std::fs::write(gateway.file(), off).unwrap();
    assert_eq!(gateway.ask_reload().status, 200);
    // Who reloads first says so: this request, or the watcher.
    assert!(eventually(|| gateway.log().contains("proxy_protocol required -> off")), "{}", gateway.log());
    assert!(kept.get("/").text().contains("198.51.100.7"));
    assert_eq!(Wire::open(gateway.address()).get("/").status(), 200);
    std::fs::write(gateway.file(), whole.replace("[\"127.0.0.1\"]", "[\"10.0.0.0/8\"]")).unwrap();
    assert_eq!(gateway.ask_reload().status, 200);
    assert_closed(sent(gateway.address(), &line("198.51.100.7:1")));
    wait(&gateway, "unlisted", 1);
    assert_eq!(Ipv4Addr::LOCALHOST, gateway.address().ip());
}
