//! Servers that fail at random, under load, reloads and stops: every answer is the right one or an honest failure, and nothing
//! is left behind. And an upstream that is dead costs another one nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::support::{Client, FRAME, Gateway, eventually, get};
use crate::timing::{assert_in_time, best_of_three};
use crate::wire::Wire;

/// Numbers that look random and are the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }
}

/// A server that answers with the request's `X-Id`, if it does not fail: one of ten requests in each way. While `is_hanging`
/// it takes no connections.
fn faulty(seed: u64, is_hanging: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in (0..).zip(listener.incoming()) {
            while is_hanging.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            let Ok(stream) = stream else { return };
            thread::spawn(move || drop(attend(stream, &mut Random(seed ^ number << 32))));
        }
    });
    address
}

fn attend(stream: TcpStream, random: &mut Random) -> std::io::Result<()> {
    let mut wire = Wire::noting(stream, Arc::default());
    loop {
        let request = wire.request()?;
        let id = request.header("x-id").unwrap_or_default().to_owned();
        let ok = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{id}", id.len());
        let pause = Duration::from_millis(random.below(30));
        match random.below(20) {
            0 => {
                wire.stream().write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")?;
            }
            1 => {
                SockRef::from(wire.stream()).set_linger(Some(Duration::ZERO))?;
                return Ok(());
            }
            2 => return wire.stream().write_all(b"HTTP/1.1 200 OK\r\nContent-Le"),
            3 => {
                return wire
                    .stream()
                    .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{id}").as_bytes());
            }
            4 => {
                return wire
                    .stream()
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd");
            }
            5 => {
                thread::sleep(pause);
                wire.stream().write_all(ok.as_bytes())?;
            }
            6 => {
                for piece in ok.as_bytes().chunks(20) {
                    wire.stream().write_all(piece)?;
                    thread::sleep(pause / 10);
                }
            }
            7 => return Ok(()),
            8 => {
                thread::sleep(Duration::from_millis(600));
                wire.stream().write_all(ok.as_bytes())?;
            }
            9 => {
                wire.stream().write_all(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")?;
            }
            _ => wire.stream().write_all(ok.as_bytes())?,
        }
    }
}

/// Requests of one client, until it is told to stop: how many it sent, and how many were answered.
fn load(gateway: SocketAddr, seed: u64, stop: &AtomicBool, made: &AtomicUsize) -> usize {
    let mut random = Random(seed);
    let mut answered = 0;
    let mut client = None;
    while !stop.load(Ordering::Relaxed) {
        let number = made.fetch_add(1, Ordering::Relaxed);
        let id = format!("{seed}-{number}");
        let (method, length) = match random.below(4) {
            0 => ("PUT", random.below(50_000)),
            1 => ("POST", random.below(200)),
            _ => ("GET", 0),
        };
        let own = client.get_or_insert_with(|| Client::connect(gateway));
        own.send(method, "/", &[("X-Id", &id)], &vec![b'x'; length as usize]);
        if random.below(50) == 0 {
            client = None;
            continue;
        }
        // A body that is cut is an error, and that is what its client has to see.
        let Ok(answer) = own.read_answer(false) else {
            client = None;
            continue;
        };
        answered += 1;
        match answer.status {
            200 => assert_eq!(answer.text(), id, "somebody else's answer"),
            status => assert!([500, 502, 503, 504].contains(&status), "{status}: {}", answer.text()),
        }
        if answer.header("connection") == Some("close") {
            client = None;
        }
    }
    answered
}

fn rules(servers: &[SocketAddr], more: &str) -> String {
    let servers: Vec<_> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "[server]\nworkers = 2\nshutdown_grace = \"2s\"\n[dead_letter]\n[[upstream]]\nname = \"app\"\nservers = [{}]\n\
         connect_timeout = \"300ms\"\neject = {{ for = \"200ms\", max_for = \"1s\" }}\n{more}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\ntimeout = \"3s\"\n",
        servers.join(", ")
    )
}

fn descriptors(gateway: &Gateway) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count()
}

#[test]
fn under_random_faults_reloads_and_stops_every_balance_holds() {
    let long = std::env::var_os("SLUICEGATE_LONG").is_some();
    let lasts = Duration::from_secs(if long { 60 } else { 4 });
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let hanging: [Arc<AtomicBool>; 3] = Default::default();
    let servers: Vec<_> = (1..).zip(&hanging).map(|(number, hangs)| faulty(seed ^ number, Arc::clone(hangs))).collect();
    let options = [
        "max_in_flight = 6\nmax_pending = 4\npending_timeout = \"100ms\"\nretry = { per_try = \"400ms\" }",
        "server_max_in_flight = 3\nbreaker = { open = \"300ms\" }\nhealth = { path = \"/\", interval = \"200ms\", expect = [\"2xx\", \"5xx\"] }",
        "retry = { attempts = 3, methods = [\"GET\", \"PUT\", \"POST\"], per_try = \"300ms\" }\nbreaker = { errors = \"70%\", open = \"200ms\" }\nmax_in_flight = 20",
        "balance = \"least-connections\"\nslow_start = \"1s\"",
    ];
    let gateway = Gateway::start_whole(&format!("{}{FRAME}", rules(&servers, options[0])));
    let (stop, made) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (address, stop, made) = (gateway.address(), Arc::clone(&stop), Arc::clone(&made));
            thread::spawn(move || load(address, seed.wrapping_mul(31) ^ client, &stop, &made))
        })
        .collect();
    let mut random = Random(seed);
    let (began, mut first) = (Instant::now(), None);
    while began.elapsed() < lasts {
        match random.below(4) {
            0 => {
                gateway.pause();
                thread::sleep(Duration::from_millis(random.below(200)));
                gateway.resume();
            }
            1 => {
                let hangs = &hanging[random.below(3) as usize];
                hangs.store(true, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(random.below(700)));
                hangs.store(false, Ordering::Relaxed);
            }
            _ => {
                let text = rules(&servers, options[random.below(4) as usize]);
                assert_eq!(gateway.reload(&text).status, 200);
            }
        }
        thread::sleep(Duration::from_millis(random.below(300)));
        if began.elapsed() > lasts / 4 {
            first.get_or_insert_with(|| (gateway.resident(), descriptors(&gateway)));
        }
    }
    stop.store(true, Ordering::Relaxed);
    let answered: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    let made = made.load(Ordering::Relaxed);
    assert!(answered * 10 > made * 8, "{answered} of {made} were answered");
    assert_eq!(gateway.reload(&rules(&servers, options[0])).status, 200);
    let value = |name: &str, labels: &[&str]| gateway.metric(name, labels);
    let is_left = || {
        let of_server: f64 = servers
            .iter()
            .map(|server| value("sluicegate_upstream_server_requests_in_flight", &[&format!("server=\"{server}\"")]))
            .sum();
        of_server
            + value("sluicegate_upstream_requests_in_flight", &[])
            + value("sluicegate_upstream_requests_pending", &[])
    };
    assert!(eventually(|| is_left() < 0.5), "{} are left", is_left());
    // A request whose client left before its head was read is none.
    let counted = value("sluicegate_requests_total", &["route=\"all\""]) as usize;
    assert!((answered..=made).contains(&counted), "{answered} <= {counted} <= {made}");
    let panics = gateway.log().matches("panic").count();
    assert_eq!(panics, 0, "{}", gateway.log());
    let (memory, files) = first.unwrap();
    assert!(
        eventually(|| descriptors(&gateway) <= files + 30),
        "{} descriptors, {files} before",
        descriptors(&gateway)
    );
    if long {
        assert!(gateway.resident() < memory + (16 << 20), "{} bytes, {memory} before", gateway.resident());
    }
    println!("{made} requests, {answered} answered");
}

/// The 99th percentile of so many requests to `/b`.
fn p99(gateway: &Gateway) -> Duration {
    let mut client = Client::connect(gateway.address());
    let mut took: Vec<_> = (0..600)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(client.get("/b").status, 200);
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

#[test]
fn a_dead_upstream_costs_another_one_nothing() {
    best_of_three(|| {
        // It takes connections and says nothing.
        let dead = TcpListener::bind("127.0.0.1:0").unwrap();
        let text = format!(
            "[server]\nworkers = 2\n[[upstream]]\nname = \"a\"\nservers = [\"{}\"]\nmax_in_flight = 64\nmax_pending = 64\n\
             [[upstream]]\nname = \"b\"\nservers = [\"echo:b\"]\nmax_in_flight = 64\n\
             [[route]]\nname = \"a\"\npath = \"/a\"\nupstream = \"a\"\ntimeout = \"2s\"\n\
             [[route]]\nname = \"b\"\npath = \"/b\"\nupstream = \"b\"\n{FRAME}",
            dead.local_addr().unwrap()
        );
        let gateway = Gateway::start_whole(&text);
        get(gateway.address(), "/b");
        let before = p99(&gateway);
        let waiting: Vec<_> =
            (0..200).map(|_| Wire::with(gateway.address(), "GET /a HTTP/1.1\r\nHost: x\r\n\r\n")).collect();
        assert!(eventually(|| gateway.metric("sluicegate_upstream_requests_pending", &[]) > 0.5));
        let with_a_dead = p99(&gateway);
        let most = before + before / 2 + Duration::from_millis(2);
        assert_in_time(with_a_dead <= most, &format!("p99 is {with_a_dead:?}, and {before:?} without it"));
        for wire in &waiting {
            let mut byte = [0];
            let _ = wire.stream().read(&mut byte);
        }
    });
}
