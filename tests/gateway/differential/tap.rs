//! A relay between the gateway and a server, which keeps what the gateway writes.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::Seen;
use crate::wire::Wire;

/// The bytes that came over each connection, by the port that it has towards the server.
type Kept = Arc<Mutex<BTreeMap<u16, Vec<u8>>>>;

pub struct Tap {
    pub address: SocketAddr,
    kept: Kept,
    injected: Arc<Mutex<Vec<u8>>>,
}

/// The word of the strict reader for bytes that no request has, in difference to a body that is cut.
const DOUBTS: [&str; 5] = ["a bad", "a doubtful", "more data", "no colon", "a bare CR"];

/// The requests that the strict reader reads in it.
#[derive(Debug)]
pub enum Read {
    Whole(Seen),
    /// The connection ended in its body.
    Cut {
        id: String,
    },
    Doubtful(String),
}

impl Tap {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (kept, injected) = (Kept::default(), Arc::<Mutex<Vec<u8>>>::default());
        let (log, inject) = (Arc::clone(&kept), Arc::clone(&injected));
        thread::spawn(move || {
            for gateway in listener.incoming() {
                let (Ok(gateway), Ok(server)) = (gateway, TcpStream::connect(server)) else { return };
                let (log, inject) = (Arc::clone(&log), Arc::clone(&inject));
                thread::spawn(move || relay(gateway, server, &log, &inject));
            }
        });
        Self { address, kept, injected }
    }

    /// Sends this to the server behind the first request, and keeps it to itself.
    pub fn inject(&self, bytes: &str) {
        self.injected.lock().unwrap().extend_from_slice(bytes.as_bytes());
    }

    /// The requests that were read of each connection, by its port.
    pub fn read(&self) -> BTreeMap<u16, Vec<Read>> {
        let kept = self.kept.lock().unwrap().clone();
        kept.into_iter().map(|(port, bytes)| (port, read(bytes))).collect()
    }
}

fn relay(gateway: TcpStream, server: TcpStream, kept: &Kept, inject: &Mutex<Vec<u8>>) {
    let port = server.local_addr().unwrap().port();
    // A server may write a head and its body apart: the body is not to wait for an acknowledgement of the head.
    for end in [&gateway, &server] {
        end.set_nodelay(true).unwrap();
    }
    let (mut from_server, mut to_gateway) = (server.try_clone().unwrap(), gateway.try_clone().unwrap());
    let down = thread::spawn(move || {
        drop(io::copy(&mut from_server, &mut to_gateway));
        drop(to_gateway.shutdown(Shutdown::Both));
    });
    let mut room = [0; 16 << 10];
    let (mut gateway, mut server) = (gateway, server);
    while let Ok(size @ 1..) = gateway.read(&mut room) {
        // Kept before it is sent: what the server has seen is always here.
        kept.lock().unwrap().entry(port).or_default().extend_from_slice(&room[..size]);
        let more = std::mem::take(&mut *inject.lock().unwrap());
        if server.write_all(&[&room[..size], &more].concat()).is_err() {
            break;
        }
    }
    drop(server.shutdown(Shutdown::Both));
    drop(down.join());
}

/// Reads requests strictly, until the bytes end.
fn read(bytes: Vec<u8>) -> Vec<Read> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    let length = bytes.len();
    let writing = thread::spawn(move || writer.write_all(&bytes).unwrap());
    let mut wire = Wire::noting(reader, Arc::default());
    let mut all = Vec::new();
    let mut is_first = true;
    loop {
        let head = match wire.head() {
            Ok(head) => head,
            Err(error) => {
                let is_end = error.to_string().ends_with(": \"\"") && !(is_first && length > 0);
                if !is_end {
                    all.push(Read::Doubtful(error.to_string()));
                }
                break;
            }
        };
        is_first = false;
        let mut request = head;
        let [id] = request.all("x-request-id")[..] else {
            all.push(Read::Doubtful(format!("{request:?}")));
            break;
        };
        let id = id.to_owned();
        match wire.body_of(&mut request) {
            Ok(()) => {
                let method = request.line.split(' ').next().unwrap().to_owned();
                let target = request.target().to_owned();
                all.push(Read::Whole(Seen { method, target, id, length: request.body.len() }));
            }
            Err(error) if DOUBTS.iter().any(|doubt| error.to_string().contains(doubt)) => {
                all.push(Read::Doubtful(format!("{} {error}", request.line)));
                break;
            }
            // Its end came in the middle.
            Err(_) => {
                all.push(Read::Cut { id });
                break;
            }
        }
    }
    drop(wire);
    drop(writing.join());
    all
}
