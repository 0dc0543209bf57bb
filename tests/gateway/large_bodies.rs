//! Large bodies both ways: every byte in its place, and a gateway that does not grow.

use std::io::Write;
use std::net::TcpStream;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Backend, Gateway};
use crate::wire::{Wire, front, get, ok};

const GIB: u64 = 1 << 30;
const BLOCK: usize = 256 << 10;
/// Of a period that no buffer's size is a multiple of: a lost or doubled block is seen.
const PERIOD: usize = 251;
const ALLOWED_GROWTH: u64 = 8 << 20;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..BLOCK + PERIOD).map(|at| (at % PERIOD) as u8).collect());

pub fn pattern(at: u64, size: usize) -> &'static [u8] {
    let start = (at % PERIOD as u64) as usize;
    &PATTERN[start..start + size]
}

/// How much has come, all of it as in the pattern.
#[derive(Default)]
pub struct Count {
    bytes: u64,
    differs: bool,
}

impl Count {
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK));
            self.differs |= now != pattern(self.bytes, now.len());
            self.bytes += now.len() as u64;
            bytes = later;
        }
    }

    pub fn text(&self) -> String {
        format!("{} {}", self.bytes, if self.differs { "changed" } else { "same" })
    }
}

/// Writes a body, as chunks of many sizes or as it is; whether all could be written.
pub fn write_body(mut stream: &TcpStream, size: u64, chunked: bool) -> bool {
    let mut at = 0;
    let mut number = 0;
    while at < size {
        let block = [BLOCK, 1, BLOCK - 1, 4096, 70_000][number % 5].min(usize::try_from(size - at).unwrap_or(BLOCK));
        let block = if chunked { block } else { BLOCK.min(usize::try_from(size - at).unwrap_or(BLOCK)) };
        number += 1;
        let sent = if chunked {
            let head = format!("{block:x}\r\n");
            let whole = [head.as_bytes(), pattern(at, block), b"\r\n"].concat();
            stream.write_all(&whole)
        } else {
            stream.write_all(pattern(at, block))
        };
        if sent.is_err() {
            return false;
        }
        at += block as u64;
    }
    !chunked || stream.write_all(b"0\r\n\r\n").is_ok()
}

/// The most that the gateway has grown while `work` ran.
pub fn growth_during(gateway: &Gateway, work: impl FnOnce()) -> u64 {
    let before = gateway.resident();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::SeqCst) {
                most = most.max(gateway.resident());
                thread::sleep(Duration::from_millis(5));
            }
            most.max(gateway.resident())
        });
        work();
        done.store(true, Ordering::SeqCst);
        watching.join().unwrap().saturating_sub(before)
    })
}

/// A backend that counts uploads and answers `/SIZE/FRAMING` with such a body.
fn moving() -> Backend {
    Backend::scripted(|wire, _| {
        while let Ok(request) = wire.head() {
            let mut words = request.target().trim_start_matches('/').split('/');
            let size: u64 = words.next().and_then(|size| size.parse().ok()).unwrap_or_default();
            let sent = match words.next() {
                Some("length") => {
                    wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"))
                        && write_body(wire.stream(), size, false)
                }
                Some("chunked") => {
                    wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                        && write_body(wire.stream(), size, true)
                }
                Some("close") => {
                    wire.send("HTTP/1.1 200 OK\r\n\r\n");
                    write_body(wire.stream(), size, false);
                    false
                }
                _ => {
                    let mut count = Count::default();
                    let all = wire.pour_body(&request, |bytes| count.add(bytes)).is_ok();
                    all && wire.send(ok(&count.text()))
                }
            };
            if !sent {
                return;
            }
        }
    })
}

fn upload(size: u64, chunked: bool) {
    let backend = moving();
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/warm").text(), "0 same");
    let framing = if chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {size}") };
    let grown = growth_during(&gateway, || {
        wire.send(format!("POST /up HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n"));
        assert!(write_body(wire.stream(), size, chunked), "the upload broke off");
        assert_eq!(wire.answer().text(), format!("{size} same"));
    });
    assert!(grown < ALLOWED_GROWTH, "grew by {grown} bytes for an upload of {size}");
    assert_eq!(wire.get("/after").text(), "0 same");
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
}

fn download(size: u64, framing: &str) {
    let backend = moving();
    let gateway = front(&backend);
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/warm").text(), "0 same");
    let grown = growth_during(&gateway, || {
        let mut count = Count::default();
        wire.send(get(&format!("/{size}/{framing}")));
        let answer = wire.response_into("GET", |bytes| count.add(bytes)).unwrap();
        assert_eq!((answer.status(), count.text()), (200, format!("{size} same")));
        assert_eq!(answer.is_chunked(), framing != "length", "{answer:?}");
    });
    assert!(grown < ALLOWED_GROWTH, "grew by {grown} bytes for a download of {size}");
    assert_eq!(wire.get("/after").text(), "0 same");
}

#[test]
fn a_gibibyte_goes_up_with_a_length() {
    upload(GIB, false);
}

#[test]
fn a_quarter_gibibyte_goes_up_in_chunks() {
    upload(GIB / 4 + 1, true);
}

#[test]
fn a_gibibyte_comes_down_with_a_length() {
    download(GIB, "length");
}

#[test]
fn a_quarter_gibibyte_comes_down_in_chunks() {
    download(GIB / 4 + 1, "chunked");
}

#[test]
fn a_quarter_gibibyte_comes_down_until_the_upstream_closes() {
    download(GIB / 4 + 1, "close");
}
