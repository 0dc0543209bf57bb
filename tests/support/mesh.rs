//! Programs in network namespaces of their own, the nodes, and the network between them: a relay in the process of the test,
//! which loses, delays, repeats and cuts what they send each other.
//!
//! Node `i` has the address `10.78.0.(i+1)`. In its namespace, the addresses of all others are there, too, and at each of them
//! the relay has a socket. So what program `i` sends to the address of `j` comes to the relay. The relay sends it on in the
//! namespace of `j`, by the socket that it has there at the address of `i`. Program `j` sees the true address of `i`.
//!
//! A program must listen at the address of its node: at `0.0.0.0` and this port it would collide with the relay. It reaches
//! other nodes at this port alone, from this port alone, and by UDP.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::namespace::{Namespace, or_not_run};

/// More datagrams on their way than this are lost.
const MAX_FLIGHTS: usize = 100_000;
/// So many datagrams from a node to another are kept for [`Mesh::capture`].
const MAX_CAPTURED: usize = 64;
/// A socket of the relay holds a burst of so many bytes, so that the kernel loses none of its own accord.
const MAX_BURST_BYTES: usize = 8 << 20;
/// Between two looks of a thread at whether the mesh has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The fate of datagrams between all nodes. By default each arrives once, and at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// So many of a hundred are lost.
    pub lost_percent: u64,
    /// Of those that are not lost, so many of a hundred arrive twice.
    pub repeated_percent: u64,
    /// No datagram arrives sooner.
    pub delay: Duration,
    /// Each takes up to so much longer, and its own time, so that they overtake each other.
    pub spread: Duration,
}

/// Counts of the datagrams that a node has sent to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub sent: u64,
    /// Bytes of all that it has sent, without the headers of UDP and IP.
    pub sent_bytes: u64,
    /// Those that have been handed to the other node; one that is repeated counts twice.
    pub relayed: u64,
    /// Those that were not, and those of a stranger in its namespace.
    pub lost: u64,
}

/// Nodes, and the relay between them. The relay and the namespaces end with this value, and not the programs: they must end
/// before it, or keep their namespaces.
pub struct Mesh {
    relay: Arc<Relay>,
    threads: Vec<JoinHandle<()>>,
    // Last: the sockets of the relay are closed before.
    namespaces: Vec<Namespace>,
}

impl Mesh {
    /// Nodes whose programs will listen at this port; `None` where namespaces may not be made. The seed decides which datagrams
    /// are lost. Where several nodes send at the same time, it decides only together with the order in which they come.
    pub fn new(nodes: usize, port: u16, seed: u64) -> Option<Self> {
        let needs = "This test needs root and a kernel with network namespaces (a container needs CAP_SYS_ADMIN and \
                     CAP_NET_ADMIN), and `make setup-tests`; else: sudo apt-get install -y iproute2";
        let mesh = or_not_run(Self::make(nodes, port, seed), "nodes in namespaces", needs)?;
        eprintln!("a mesh of {nodes} nodes, seed {seed}");
        Some(mesh)
    }

    fn make(nodes: usize, port: u16, seed: u64) -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (pid, serial) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let namespaces = (0..nodes).map(|node| {
            let namespace = Namespace::new(format!("sluicegate-m{pid}-{serial}-{node}"))?;
            // The whole net is local on a loopback device, and the node's own address is that of sockets that bind none.
            namespace.ip(&format!("addr add {}/24 dev lo", address(node, port).ip()))?;
            Ok(namespace)
        });
        let namespaces = namespaces.collect::<Result<Vec<_>, String>>()?;
        let doors = namespaces.iter().enumerate().map(|(node, namespace)| {
            let bind = || (0..nodes).map(|other| (other != node).then(|| door(address(other, port))).transpose());
            namespace.inside(|| bind().collect::<Result<Vec<_>, String>>()).map_err(|error| error.to_string())?
        });
        let doors = doors.collect::<Result<Vec<_>, String>>()?;
        let traffic = Traffic {
            weather: Weather::default(),
            sides: vec![false; nodes],
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            flights: BTreeMap::new(),
            number: 0,
            figures: vec![Figures::default(); nodes],
            captured: BTreeMap::new(),
            is_over: false,
        };
        let relay = Arc::new(Relay { port, doors, traffic: Mutex::new(traffic), wake: Condvar::new() });
        Ok(Self { threads: Relay::start(&relay), relay, namespaces })
    }

    /// The address of a node, and the port of its program.
    pub fn address(&self, node: usize) -> SocketAddr {
        address(node, self.relay.port)
    }

    /// A command that runs a program in the namespace of a node. The id of the process is the program's own.
    pub fn command(&self, node: usize, program: impl AsRef<OsStr>) -> Command {
        self.namespaces[node].command(program)
    }

    /// Calls a function on a thread in the namespace of a node, as for a client of its program. Sockets that it makes stay there.
    /// One that is bound to another address of `10.78.0.0/24` is a stranger to the nodes.
    pub fn inside<T: Send>(&self, node: usize, f: impl FnOnce() -> T + Send) -> T {
        self.namespaces[node].inside(f).unwrap()
    }

    /// Datagrams that come to the relay from now on have this weather.
    pub fn set(&self, weather: Weather) {
        self.relay.lock().weather = weather;
    }

    /// From now on, nodes of this group reach each other alone, and so do all others. Datagrams on their way between the
    /// two are lost. An earlier cut is healed.
    pub fn cut(&self, group: &[usize]) {
        self.relay.lock().cut(group);
    }

    /// All reach all.
    pub fn heal(&self) {
        self.cut(&[]);
    }

    /// The counts of what a node has sent.
    pub fn figures(&self, node: usize) -> Figures {
        self.relay.lock().figures[node]
    }

    /// The last datagrams that a node has sent to another, the oldest first, whether they were lost or not.
    pub fn capture(&self, from: usize, to: usize) -> Vec<Vec<u8>> {
        self.relay.lock().captured.get(&(from, to)).into_iter().flatten().cloned().collect()
    }

    /// Sends bytes to a node as if they came from another, in any weather, over a cut, and counts nothing.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        self.relay.door(to, from).send_to(bytes, self.address(to)).unwrap();
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.relay.lock().is_over = true;
        self.relay.wake.notify_all();
        let ends: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        assert!(thread::panicking() || ends.iter().all(Result::is_ok), "a thread of the relay has failed");
    }
}

fn address(node: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 78, 0, u8::try_from(node + 1).unwrap()], port))
}

/// A socket of the relay, at the address of a node and in the namespace of another, where the calling thread is.
fn door(address: SocketAddr) -> Result<UdpSocket, String> {
    let open = || {
        let socket = UdpSocket::bind(address)?;
        set_socket_recv_buffer_size_force(&socket, MAX_BURST_BYTES)?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok::<_, std::io::Error>(socket)
    };
    open().map_err(|error| format!("{address}: {error}"))
}

struct Relay {
    port: u16,
    /// By the node in whose namespace a socket is, and the node at whose address it is.
    doors: Vec<Vec<Option<UdpSocket>>>,
    traffic: Mutex<Traffic>,
    /// There is a datagram to wait for, or no more.
    wake: Condvar,
}

/// The datagrams on their way, and everything that decides about them.
struct Traffic {
    weather: Weather,
    /// Nodes of the same side reach each other.
    sides: Vec<bool>,
    random: u64,
    /// In the order in which they arrive; those of one instant in the order in which they came.
    flights: BTreeMap<(Instant, u64), Flight>,
    number: u64,
    figures: Vec<Figures>,
    captured: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    is_over: bool,
}

struct Flight {
    from: usize,
    to: usize,
    bytes: Arc<[u8]>,
}

impl Relay {
    /// A thread for each socket, and one that hands on what is due.
    fn start(relay: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let nodes = relay.doors.len();
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        let listen = |(from, to)| {
            let relay = Arc::clone(relay);
            thread::spawn(move || relay.listen(from, to))
        };
        let mut threads: Vec<_> = pairs.map(listen).collect();
        let relay = Arc::clone(relay);
        threads.push(thread::spawn(move || relay.hand_on()));
        threads
    }

    fn door(&self, within: usize, of: usize) -> &UdpSocket {
        self.doors[within][of].as_ref().expect("two nodes")
    }

    fn lock(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a node sends to another.
    fn listen(&self, from: usize, to: usize) {
        let mut buffer = vec![0; 1 << 16];
        let idle = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted];
        loop {
            let received = self.door(from, to).recv_from(&mut buffer);
            let mut traffic = self.lock();
            if traffic.is_over {
                return;
            }
            match received {
                // The relay would make a stranger's datagram look like the node's own.
                Ok((_, source)) if source != address(from, self.port) => traffic.figures[from].lost += 1,
                Ok((length, _)) => traffic.take(from, to, &buffer[..length]),
                Err(error) => assert!(idle.contains(&error.kind()), "the relay from {from} to {to}: {error}"),
            }
            self.wake.notify_all();
        }
    }

    /// Sends what is due. It holds the lock while it sends: when a cut has been made, nothing is sent over it.
    fn hand_on(&self) {
        let mut traffic = self.lock();
        while !traffic.is_over {
            let Some((&(due, _), _)) = traffic.flights.first_key_value() else {
                traffic = self.wake.wait(traffic).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                traffic = self.wake.wait_timeout(traffic, wait).unwrap_or_else(PoisonError::into_inner).0;
            } else if let Some((_, Flight { from, to, bytes })) = traffic.flights.pop_first() {
                let sent = self.door(to, from).send_to(&bytes, address(to, self.port));
                traffic.count(from, sent.is_ok());
            }
        }
    }
}

impl Traffic {
    /// Decides about a datagram that has come.
    fn take(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let figures = &mut self.figures[from];
        figures.sent += 1;
        figures.sent_bytes += bytes.len() as u64;
        let captured = self.captured.entry((from, to)).or_default();
        if captured.len() == MAX_CAPTURED {
            captured.pop_front();
        }
        captured.push_back(bytes.to_vec());
        let Weather { lost_percent, repeated_percent, delay, spread } = self.weather;
        if self.below(100) < lost_percent || !self.is_joined(from, to) {
            return self.count(from, false);
        }
        let (now, bytes) = (Instant::now(), Arc::from(bytes));
        let copies = 1 + u64::from(self.below(100) < repeated_percent);
        for _ in 0..copies {
            if self.flights.len() >= MAX_FLIGHTS {
                self.count(from, false);
                continue;
            }
            let late = Duration::from_nanos(self.below(spread.as_nanos() as u64));
            self.number += 1;
            let flight = Flight { from, to, bytes: Arc::clone(&bytes) };
            self.flights.insert((now + delay + late, self.number), flight);
        }
    }

    fn cut(&mut self, group: &[usize]) {
        for (node, side) in self.sides.iter_mut().enumerate() {
            *side = group.contains(&node);
        }
        let Self { sides, flights, figures, .. } = self;
        flights.retain(|_, flight| {
            let is_joined = sides[flight.from] == sides[flight.to];
            figures[flight.from].lost += u64::from(!is_joined);
            is_joined
        });
    }

    fn is_joined(&self, from: usize, to: usize) -> bool {
        self.sides[from] == self.sides[to]
    }

    fn count(&mut self, from: usize, is_relayed: bool) {
        let figures = &mut self.figures[from];
        *(if is_relayed { &mut figures.relayed } else { &mut figures.lost }) += 1;
    }

    /// A number below a bound (`xorshift64*`).
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        // Of the high bits: the low ones are no better than those of a plain xorshift.
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound.max(1)
    }
}
