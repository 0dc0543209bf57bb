use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Backend, Client, Gateway, eventually, get};
use crate::timing::{assert_took, best_of_three};

/// Sends the first half of its answer, and the second only when it may.
struct Halting {
    backend: Backend,
    begun: Arc<AtomicUsize>,
    may_end: Arc<AtomicBool>,
}

impl Halting {
    fn start() -> Self {
        let (begun, may_end) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, flag) = (Arc::clone(&begun), Arc::clone(&may_end));
        let backend = Backend::start(move |_, stream| {
            let head = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na");
            count.fetch_add(1, Ordering::SeqCst);
            while !flag.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            head.and_then(|()| stream.write_all(b"b")).is_ok()
        });
        Self { backend, begun, may_end }
    }

    fn gateway(&self, more: &str) -> Gateway {
        Gateway::start(&format!(
            "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[limit]]\nname = \"l\"\nkey = \"global\"\n\
             algorithm = \"concurrency\"\nmax_in_flight = 1\n{more}\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n",
            self.backend.address
        ))
    }

    fn wait_begun(&self, count: usize) {
        assert!(eventually(|| self.begun.load(Ordering::SeqCst) == count));
    }

    fn let_end(&self) {
        self.may_end.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_request_is_in_flight_until_the_last_byte_of_its_answer() {
    let backend = Halting::start();
    let gateway = backend.gateway("");
    let mut first = Client::connect(gateway.address());
    first.send("GET", "/", &[], b"");
    backend.wait_begun(1);
    let refused = get(gateway.address(), "/");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.header("ratelimit-policy"), Some("\"l\";q=1"), "without a window");
    assert_eq!(refused.header("ratelimit"), Some("\"l\";r=0"));
    backend.let_end();
    assert_eq!(first.read_answer(false).unwrap().text(), "ab");
    // Who reads the last byte may ask again, of another worker, a moment before the place is free.
    assert!(eventually(|| get(gateway.address(), "/").status == 200));
}

#[test]
fn a_client_that_goes_away_gives_its_permit_back() {
    let backend = Halting::start();
    let gateway = backend.gateway("");
    let mut first = Client::connect(gateway.address());
    first.send("GET", "/", &[], b"");
    backend.wait_begun(1);
    drop(first);
    let mut second = Client::connect(gateway.address());
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"client-gone\""], 1.0);
    second.send("GET", "/", &[], b"");
    backend.wait_begun(2);
    backend.let_end();
    assert_eq!(second.read_answer(false).unwrap().status, 200);
}

#[test]
fn a_waiter_is_let_in_when_the_one_before_it_has_ended() {
    let backend = Halting::start();
    let gateway = backend.gateway("max_wait = \"30s\"");
    let mut clients = [Client::connect(gateway.address()), Client::connect(gateway.address())];
    clients[0].send("GET", "/", &[], b"");
    backend.wait_begun(1);
    clients[1].send("GET", "/", &[], b"");
    gateway.wait_metric("sluicegate_limit_waiting", &[], 1.0);
    assert_eq!(backend.begun.load(Ordering::SeqCst), 1);
    backend.let_end();
    for client in &mut clients {
        assert_eq!(client.read_answer(false).unwrap().text(), "ab");
    }
    gateway.wait_metric("sluicegate_limit_waiting", &[], 0.0);
}

#[test]
fn a_client_that_has_its_answer_holds_no_place_by_a_body_that_it_does_not_send() {
    best_of_three(|| {
        let gateway = Gateway::start(
            "[[limit]]\nname = \"l\"\nkey = \"global\"\nalgorithm = \"concurrency\"\nmax_in_flight = 1\n\
         [[route]]\nname = \"own\"\nrespond = { status = 200, body = \"ok\" }\nlimits = [\"l\"]\n",
        );
        for _ in 0..5 {
            let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n";
            // The place of the request before may come free a moment after its answer.
            let mut holding = None;
            assert!(eventually(|| {
                let mut wire = crate::wire::Wire::with(gateway.address(), head);
                let status = wire.answer().status();
                holding = Some(wire);
                status == 200
            }));
            let answered = Instant::now();
            assert!(eventually(|| get(gateway.address(), "/").status == 200));
            // The gateway waits 2 s for the rest.
            assert_took(answered, 0..1000);
            drop(holding);
        }
    });
}
