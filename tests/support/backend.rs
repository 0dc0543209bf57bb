//! Servers that behave as a test tells them.

use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use super::wire::{Message, Wire};
use super::{PATIENCE, read_body, read_head};

/// A server on a port of its own; each request is given to the test's function, which writes what it wants.
pub struct Backend {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub seen: Arc<Mutex<Vec<Message>>>,
    closed: mpsc::Receiver<usize>,
}

impl Backend {
    /// Serves until the process ends. `answer` gets the request and the connection; false closes it.
    pub fn start(answer: impl Fn(&Message, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        Self::serve(move |mut stream, _, log| {
            let (reader, stream) = (&mut BufReader::new(stream.try_clone().unwrap()), &mut stream);
            while let Ok((line, headers)) = read_head(reader) {
                let Ok(body) = read_body(reader, &headers, false) else { break };
                let seen = Message { line, headers, body, ..Message::default() };
                log.lock().unwrap().push(seen.clone());
                if !answer(&seen, stream) {
                    break;
                }
            }
        })
    }

    /// Gives each connection to the test's script, with its number from 1, and closes it when the script ends.
    pub fn scripted(script: impl Fn(&mut Wire, usize) + Send + Sync + 'static) -> Self {
        Self::serve(move |stream, number, log| script(&mut Wire::noting(stream, Arc::clone(log)), number))
    }

    fn serve(attend: impl Fn(TcpStream, usize, &Arc<Mutex<Vec<Message>>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (tell_closed, closed) = mpsc::sync_channel(10_000);
        let (count, log, attend) = (Arc::clone(&connections), Arc::clone(&seen), Arc::new(attend));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let connection = count.fetch_add(1, Ordering::SeqCst) + 1;
                let (log, attend, tell_closed) = (Arc::clone(&log), Arc::clone(&attend), tell_closed.clone());
                thread::spawn(move || {
                    attend(stream.try_clone().unwrap(), connection, &log);
                    drop(stream.shutdown(Shutdown::Both));
                    let _ = tell_closed.try_send(connection);
                });
            }
        });
        Self { address, connections, seen, closed }
    }

    /// Answers each head at once with these bytes, and then reads whatever comes.
    pub fn start_early(answer: &'static [u8]) -> Self {
        Self::serve(move |mut stream, _, _| {
            let reader = &mut BufReader::new(stream.try_clone().unwrap());
            while read_head(reader).is_ok() {
                if stream.write_all(answer).is_err() {
                    return;
                }
            }
        })
    }

    /// Answers everything with 200 and this body.
    pub fn fixed(body: &'static str) -> Self {
        Self::start(move |_, stream| write_ok(stream, body.as_bytes()))
    }

    /// Waits until a connection has ended, by the gateway's hand or by its script's; its number.
    pub fn wait_closed(&self) -> usize {
        self.closed.recv_timeout(PATIENCE).expect("the gateway should have closed its connection")
    }

    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// A whole answer with a length; whether it could be written.
pub fn write_ok(stream: &mut TcpStream, body: &[u8]) -> bool {
    let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes).is_ok()
}
