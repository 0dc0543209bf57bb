//! The network of [`Mesh`] does to datagrams what it is told, and nothing else.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Figures, Mesh, PATIENCE, Weather, eventually};

const PORT: u16 = 7946;

/// A mesh of three nodes, and a socket for each in the place of its program.
struct World {
    sockets: Vec<UdpSocket>,
    mesh: Mesh,
}

impl World {
    fn new(seed: u64) -> Option<Self> {
        let mesh = Mesh::new(3, PORT, seed)?;
        let bind = |node| {
            let socket = mesh.inside(node, || UdpSocket::bind(mesh.address(node))).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        Some(Self { sockets: (0..3).map(bind).collect(), mesh })
    }

    fn send(&self, from: usize, to: usize, text: &str) {
        self.sockets[from].send_to(text.as_bytes(), self.mesh.address(to)).unwrap();
    }

    /// The next datagram that comes to a node, and its sender.
    fn next(&self, node: usize) -> (String, SocketAddr) {
        let mut buffer = [0; 2048];
        let (length, sender) = self.sockets[node].recv_from(&mut buffer).unwrap();
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), sender)
    }

    /// A datagram is the next that comes: none did before it.
    fn passes(&self, from: usize, to: usize, text: &str) {
        self.send(from, to, text);
        assert_eq!(self.next(to), (text.to_owned(), self.mesh.address(from)));
    }

    /// A datagram that does not come: the relay has lost it.
    fn is_lost(&self, from: usize, to: usize) {
        let before = self.mesh.figures(from).lost;
        self.send(from, to, "lost");
        assert!(eventually(|| self.mesh.figures(from).lost == before + 1));
    }
}

#[test]
fn a_datagram_has_the_address_of_its_sender() {
    let Some(world) = World::new(1) else { return };
    let mesh = &world.mesh;
    assert_eq!(mesh.address(2), SocketAddr::from(([10, 78, 0, 3], PORT)));
    for (from, to) in [(0, 1), (1, 0), (2, 0), (1, 2), (0, 2), (2, 1)] {
        world.passes(from, to, &format!("{from} to {to}"));
    }
    // The relay has handed it on before it counts that.
    let figures = Figures { sent: 2, sent_bytes: 12, relayed: 2, lost: 0 };
    assert!(eventually(|| (0..3).all(|node| mesh.figures(node) == figures)));

    // The relay passes a stranger's datagram to no other node. Within a namespace, it comes with the stranger's address.
    let stranger = mesh.inside(0, || UdpSocket::bind("10.78.0.99:0")).unwrap();
    stranger.send_to(b"x", mesh.address(1)).unwrap();
    assert!(eventually(|| mesh.figures(0).lost == 1));
    stranger.send_to(b"y", mesh.address(0)).unwrap();
    assert_eq!(world.next(0), ("y".to_owned(), stranger.local_addr().unwrap()));
    world.passes(0, 1, "after it");
}

#[test]
fn datagrams_are_lost_as_the_seed_says() {
    let lost = |seed, lost_percent| {
        let world = World::new(seed)?;
        world.mesh.set(Weather { lost_percent, ..Weather::default() });
        for number in 0..100 {
            world.send(0, 1, &number.to_string());
        }
        let all = || world.mesh.figures(0).lost + world.mesh.figures(0).relayed == 100;
        assert!(eventually(all), "{:?}", world.mesh.figures(0));
        world.mesh.set(Weather::default());
        world.send(0, 1, "end");
        let came: Vec<_> = std::iter::from_fn(|| Some(world.next(1).0).filter(|text| text != "end")).collect();
        assert_eq!(came.len() as u64 + world.mesh.figures(0).lost, 100);
        Some(came)
    };
    let Some(some) = lost(2, 30) else { return };
    assert!((40..100).contains(&some.len()), "{}", some.len());
    assert_eq!(lost(2, 30).unwrap(), some);
    assert_ne!(lost(3, 30).unwrap(), some);
    assert_eq!(lost(2, 100).unwrap(), Vec::<String>::new());
}

#[test]
fn datagrams_are_late_and_repeated_and_overtake_each_other() {
    let Some(world) = World::new(4) else { return };
    let delay = Duration::from_millis(50);
    world.mesh.set(Weather { delay, ..Weather::default() });
    let started = Instant::now();
    world.send(0, 1, "a");
    world.send(0, 1, "b");
    assert_eq!([world.next(1).0, world.next(1).0], ["a", "b"]);
    assert!(started.elapsed() >= delay);

    world.mesh.set(Weather { repeated_percent: 100, ..Weather::default() });
    world.send(0, 1, "twice");
    assert_eq!([world.next(1).0, world.next(1).0], ["twice", "twice"]);
    assert!(eventually(|| world.mesh.figures(0).relayed == 4));

    world.mesh.set(Weather { spread: delay, ..Weather::default() });
    let overtake = || {
        (10..30).for_each(|number| world.send(0, 1, &number.to_string()));
        let came: Vec<_> = (10..30).map(|_| world.next(1).0).collect();
        !came.is_sorted()
    };
    assert!(eventually(overtake));
}

#[test]
fn a_cut_separates_until_it_is_healed() {
    let Some(world) = World::new(5) else { return };
    world.mesh.cut(&[0, 2]);
    world.is_lost(0, 1);
    world.is_lost(1, 0);
    world.is_lost(1, 2);
    world.passes(0, 2, "within the group");
    world.mesh.cut(&[0]);
    world.is_lost(0, 2);
    world.passes(1, 2, "among the others");
    world.mesh.heal();
    world.passes(0, 1, "healed");
    world.passes(1, 0, "healed");

    // A cut meets also what is on its way.
    world.mesh.set(Weather { delay: Duration::from_secs(3600), ..Weather::default() });
    let Figures { sent, lost, .. } = world.mesh.figures(0);
    world.send(0, 1, "on its way");
    assert!(eventually(|| world.mesh.figures(0).sent == sent + 1));
    world.mesh.cut(&[0]);
    assert_eq!(world.mesh.figures(0).lost, lost + 1);
    world.mesh.heal();
    world.mesh.set(Weather::default());
    world.passes(0, 1, "after it");
}

#[test]
fn captured_datagrams_can_be_sent_again() {
    let Some(world) = World::new(6) else { return };
    for number in 0..70 {
        world.passes(0, 1, &format!("n{number}"));
    }
    let captured = world.mesh.capture(0, 1);
    assert_eq!((captured.len(), &captured[0][..], &captured[63][..]), (64, &b"n6"[..], &b"n69"[..]));
    assert_eq!(world.mesh.capture(1, 0), Vec::<Vec<u8>>::new());
    // Neither weather nor cuts stop it.
    world.mesh.set(Weather { lost_percent: 100, ..Weather::default() });
    world.mesh.cut(&[0]);
    world.mesh.inject(0, 1, &captured[63]);
    assert_eq!(world.next(1), ("n69".to_owned(), world.mesh.address(0)));
    world.mesh.inject(2, 1, b"forged");
    assert_eq!(world.next(1), ("forged".to_owned(), world.mesh.address(2)));
}

#[test]
fn programs_and_clients_of_a_node_are_in_its_namespace() {
    let Some(world) = World::new(7) else { return };
    let mesh = &world.mesh;
    let script = "echo $$; ip -o -4 addr show dev lo";
    let child = mesh.command(1, "sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(said.lines().next(), Some(&*pid.to_string()), "{said}");
    assert!(said.contains("10.78.0.2/24") && !said.contains("10.78.0.1"), "{said}");

    let listener = mesh.inside(1, || TcpListener::bind((mesh.address(1).ip(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let stream = mesh.inside(1, || TcpStream::connect(address)).unwrap();
    assert_eq!(stream.local_addr().unwrap().ip(), mesh.address(1).ip());
    let elsewhere = mesh.inside(2, || TcpStream::connect(address));
    assert_eq!(elsewhere.map_err(|error| error.kind()).err(), Some(ErrorKind::ConnectionRefused));
}
