//! Gateways that share limits without a store: real processes in namespaces of their own, and a relay between them that loses,
//! delays, and cuts.

use std::fs;
use std::net::UdpSocket;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    Answer, Client, FRAME, Gateway, Mesh, Weather, eventually, eventually_in, get_with, unused_address,
};

const PORT: u16 = 7946;
const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");
const RATE: f64 = 40.0;
const BURST: f64 = 20.0;
/// Members find each other within some seconds, and miss each other as soon, with every tenth message lost.
const SEES: Duration = Duration::from_secs(40);

/// Gateways of one fleet.
struct Fleet {
    all: Vec<Option<Gateway>>,
    mesh: Mesh,
    secrets: tempfile::TempDir,
}

/// A request that was admitted: by which gateway, when it was sent, and when the answer had come, in seconds.
type Admission = (usize, f64, f64);

impl Fleet {
    /// `None`: namespaces may not be made here.
    fn new(gateways: usize, seed: u64) -> Option<Self> {
        Self::by(&vec!["fleet.key"; gateways], seed)
    }

    /// Each with a secret of this file.
    fn by(secret_files: &[&str], seed: u64) -> Option<Self> {
        let gateways = secret_files.len();
        let mesh = Mesh::new(gateways, PORT, seed)?;
        let secrets = tempfile::tempdir().unwrap();
        fs::write(secrets.path().join("fleet.key"), "0123456789abcdef".repeat(4)).unwrap();
        fs::write(secrets.path().join("other.key"), "fedcba9876543210".repeat(4)).unwrap();
        let mut fleet = Self { all: (0..gateways).map(|_| None).collect(), mesh, secrets };
        for (node, file) in secret_files.iter().enumerate() {
            fleet.start(node, file);
        }
        Some(fleet)
    }

    fn start(&mut self, node: usize, secret: &str) {
        let secret = self.secrets.path().join(secret);
        self.all[node] = Some(start(&self.mesh, node, &secret));
    }

    fn gateway(&self, node: usize) -> &Gateway {
        self.all[node].as_ref().unwrap()
    }

    fn status(&self, node: usize) -> serde_json::Value {
        let gateway = self.gateway(node);
        self.mesh.inside(node, || gateway.ask_admin("/api/v1/fleet").json())
    }

    fn metric(&self, node: usize, name: &str, labels: &[&str]) -> u64 {
        let gateway = self.gateway(node);
        self.mesh.inside(node, || gateway.metric(name, labels)) as u64
    }

    /// Waits until each of these knows so many gateways.
    fn wait_members(&self, nodes: Range<usize>, gateways: u64) {
        for node in nodes {
            let sees = eventually_in(SEES, || self.status(node)["gateways"] == gateways);
            assert!(sees, "{node}: {}\n{}", self.status(node), self.gateway(node).log());
        }
    }

    fn ask(&self, node: usize, path: &str, key: &str) -> Answer {
        let address = self.gateway(node).address();
        self.mesh.inside(node, || get_with(address, path, &[("X-Key", key)]))
    }

    /// How many of so many requests of a key pass at a gateway.
    fn pass(&self, node: usize, path: &str, key: &str, requests: usize) -> usize {
        (0..requests).filter(|_| self.ask(node, path, key).status == 200).count()
    }

    /// Waits until all that a gateway has admitted is known to these, by one more key of it: with that each knows so many.
    fn wait_heard(&self, from: usize, to: Range<usize>, keys: u64) {
        assert_eq!(self.pass(from, "/quota", &format!("last-{keys}"), 1), 1);
        for node in to {
            assert!(eventually(|| self.status(node)["peers"]["keys"] == keys), "{}", self.status(node));
        }
    }

    /// So many requests of a key at each gateway that lives, 200 a second, all at the same time.
    fn load(&self, key: &str, requests: usize, started: Instant) -> Vec<Admission> {
        let load = |node: usize, gateway: &Gateway| {
            self.mesh.inside(node, || {
                let mut client = Client::connect(gateway.address());
                let mut admitted = Vec::new();
                for _ in 0..requests {
                    assert_eq!(client.request("GET", "/pace", &[], b"").status, 200);
                    let sent = started.elapsed().as_secs_f64();
                    if client.request("GET", "/", &[("X-Key", key)], b"").status == 200 {
                        admitted.push((node, sent, started.elapsed().as_secs_f64()));
                    }
                }
                admitted
            })
        };
        let load = &load;
        thread::scope(|scope| {
            let living = self.all.iter().enumerate().filter_map(|(node, gateway)| Some((node, gateway.as_ref()?)));
            let threads: Vec<_> = living.map(|(node, gateway)| scope.spawn(move || load(node, gateway))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// The longest time that a count took until another gateway had said that it knows it, in seconds: a bound of the histogram.
    fn longest_lag(&self) -> f64 {
        let of = |node: usize| {
            let gateway = self.gateway(node);
            let text = self.mesh.inside(node, || gateway.ask_admin("/metrics").text());
            let bucket = "sluicegate_fleet_lag_seconds_bucket{le=\"";
            let buckets = text.lines().filter_map(|line| line.strip_prefix(bucket)?.split_once("\"} "));
            let buckets: Vec<_> = buckets.collect();
            let (_, all) = buckets.last().unwrap();
            // `+Inf` is a number, too.
            let whole = buckets.iter().find(|(_, count)| count == all).unwrap();
            whole.0.parse::<f64>().unwrap()
        };
        (0..self.all.len()).filter(|node| self.all[*node].is_some()).map(of).fold(0.0, f64::max)
    }
}

fn start(mesh: &Mesh, node: usize, secret: &Path) -> Gateway {
    let peers: Vec<_> = (0..2).map(|other| format!("\"{}\"", mesh.address(other))).collect();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [fleet]\npeers = [{}]\nlisten = \"{}\"\nsecret_file = \"{}\"\nnode = \"gw-{node}\"\n\
         [[limit]]\nname = \"told\"\nkey = \"header:x-key\"\nalgorithm = \"token-bucket\"\nrate = \"40/s\"\nburst = 20\nshared = \"lease\"\n\
         [[limit]]\nname = \"quota\"\nkey = \"header:x-key\"\nalgorithm = \"gcra\"\nrate = \"10/d\"\nburst = 10\nshared = \"lease\"\n\
         [[limit]]\nname = \"own\"\nkey = \"header:x-key\"\nrate = \"9/d\"\n\
         [[limit]]\nname = \"pace\"\nkey = \"header:host\"\nalgorithm = \"leaky-bucket\"\nrate = \"200/s\"\nmax_wait = \"5s\"\n\
         [[route]]\nname = \"pace\"\npath = \"/pace\"\nlimits = [\"pace\"]\nrespond = {{}}\n\
         [[route]]\nname = \"quota\"\npath = \"/quota\"\nlimits = [\"quota\"]\nrespond = {{}}\n\
         [[route]]\nname = \"own\"\npath = \"/own\"\nlimits = [\"own\"]\nrespond = {{}}\n\
         [[route]]\nname = \"all\"\nlimits = [\"told\"]\nrespond = {{}}\n",
        peers.join(", "),
        mesh.address(node),
        secret.display(),
    );
    Gateway::start_by(mesh.command(node, BINARY), &text)
}

/// The most that was admitted in any stretch, less what comes back in it. A stretch is taken to be longer than it was: from when the
/// first request was sent to when the last answer had come.
fn most_at_once(admitted: &[Admission]) -> f64 {
    let mut by_answer = admitted.to_vec();
    by_answer.sort_by(|one, other| one.2.total_cmp(&other.2));
    let (mut first, mut most) = (f64::NEG_INFINITY, 0.0_f64);
    for (index, (_, sent, answered)) in by_answer.iter().enumerate() {
        first = first.max(RATE * sent - index as f64);
        most = most.max(index as f64 + 1.0 - RATE * answered + first);
    }
    most
}

/// `B + (N - 1) (B + r l)`: see `docs/fleet-peers.md`.
fn bound(gateways: f64, late: f64) -> f64 {
    BURST + (gateways - 1.0) * (BURST + RATE * late)
}

#[test]
fn the_published_bound_holds_in_every_stretch_of_a_bad_network_a_cut_and_a_crash() {
    let Some(mut fleet) = Fleet::new(5, 62) else { return };
    fleet.mesh.set(Weather { lost_percent: 10, delay: Duration::from_millis(50), ..Weather::default() });
    fleet.wait_members(0..5, 5);
    let started = Instant::now();
    let seconds = || started.elapsed().as_secs_f64();
    let calm = fleet.load("k", 500, started);
    let lag = fleet.longest_lag();
    let holds = |when: &str, admitted: &[Admission], gateways: f64| {
        let (seen, most) = (most_at_once(admitted), bound(gateways, lag));
        println!("{when}: {seen:.1} at once, bound {most:.1} with a lag of at most {lag} s");
        assert!(seen <= most, "{when}: {seen} above {most}");
    };
    holds("calm", &calm, 5.0);

    // In a cut each side is a fleet of its own.
    fleet.mesh.cut(&[0, 1]);
    let (one, other): (Vec<_>, Vec<_>) = fleet.load("k", 500, started).into_iter().partition(|(node, ..)| *node < 2);
    holds("one side of a cut", &one, 2.0);
    holds("the other side", &other, 3.0);
    assert!(one.len() as f64 >= BURST && other.len() as f64 >= BURST, "each side has a bucket of its own");
    fleet.wait_members(0..2, 2);
    fleet.wait_members(2..5, 3);
    fleet.mesh.heal();
    fleet.wait_members(0..5, 5);
    holds("after the heal", &fleet.load("k", 500, started), 5.0);

    // One that is killed and started has a bucket beside them until it has heard of the others.
    drop(fleet.all[4].take().unwrap().kill());
    let mut killed = fleet.load("k", 100, started);
    let begin = seconds();
    fleet.start(4, "fleet.key");
    killed.extend(fleet.load("k", 100, started));
    fleet.wait_members(0..5, 5);
    let alone = seconds() - begin;
    killed.extend(fleet.load("k", 300, started));
    let (seen, most) = (most_at_once(&killed), bound(5.0, lag) + BURST + RATE * (alone + lag));
    println!("killed and started: {seen:.1} at once, bound {most:.1}");
    assert!(seen <= most);

    // One key that is asked on and on gets the rate.
    let (begin, all) = (seconds(), fleet.load("k", 1_500, started));
    let (stretch, passed) = (seconds() - begin, all.len() as f64);
    let least = RATE * stretch - 4.0 * BURST - 5.0 * RATE * lag;
    println!("{passed} passed in {stretch:.2} s, at least {least:.0}");
    assert!(passed >= least);
    holds("after the restart", &all, 5.0);
    for node in 0..5 {
        assert_eq!(fleet.metric(node, "sluicegate_fleet_untold_total", &[]), 0);
        assert_eq!(fleet.metric(node, "sluicegate_fleet_dropped_total", &["reason=\"forged\""]), 0);
    }
}

#[test]
fn a_quota_is_one_over_all_and_limits_of_its_own_never_notice() {
    let Some(mut fleet) = Fleet::new(3, 1) else { return };
    fleet.wait_members(0..3, 3);
    assert_eq!(fleet.pass(0, "/quota", "a", 4), 4);
    fleet.wait_heard(0, 1..3, 2);
    assert_eq!(fleet.pass(1, "/quota", "a", 9), 6);
    fleet.wait_heard(1, 0..1, 3);
    fleet.wait_heard(1, 2..3, 4);
    assert_eq!([0, 2].map(|node| fleet.pass(node, "/quota", "a", 12)), [0, 0]);
    assert_eq!((0..3).map(|node| fleet.pass(node, "/own", "a", 12)).collect::<Vec<_>>(), [9, 9, 9]);
    // One that comes later is told what was spent before, and one that ends tells what it has spent.
    drop(fleet.all[2].take().unwrap().kill());
    fleet.start(2, "fleet.key");
    fleet.wait_members(0..3, 3);
    fleet.wait_heard(0, 2..3, 5);
    assert_eq!((fleet.pass(2, "/quota", "a", 12), fleet.pass(2, "/quota", "b", 7)), (0, 7));
    fleet.gateway(2).signal("TERM");
    assert!(fleet.all[2].as_mut().unwrap().wait_exit().success());
    assert_eq!(fleet.pass(0, "/quota", "b", 10), 3, "it was told before the end");
    fleet.wait_members(0..2, 2);
    let log = fleet.gateway(0).log();
    for said in ["a gateway has joined", "a gateway has left"] {
        assert!(log.contains(said), "{log}");
    }
}

#[test]
fn one_that_is_cut_off_decides_alone_and_owes_after_the_heal() {
    let Some(fleet) = Fleet::new(2, 2) else { return };
    fleet.wait_members(0..2, 2);
    fleet.mesh.cut(&[0]);
    assert_eq!([0, 1].map(|node| fleet.pass(node, "/quota", "a", 12)), [10, 10], "each has the whole limit");
    fleet.wait_members(0..2, 1);
    assert_eq!(fleet.metric(0, "sluicegate_fleet_shared", &[]), 0);
    assert!(fleet.gateway(0).log().contains("a gateway does not answer"));
    fleet.mesh.heal();
    fleet.wait_members(0..2, 2);
    // 10 - 20 = -10: eleven have to come back, of which one takes 2.4 hours.
    let days = |answer: &Answer| answer.header("retry-after").unwrap().parse::<u64>().unwrap() / 8_640;
    assert!(eventually(|| [0, 1].iter().all(|node| days(&fleet.ask(*node, "/quota", "a")) == 10)));
    assert_eq!(fleet.metric(0, "sluicegate_fleet_shared", &[]), 1);
}

#[test]
fn strangers_and_attackers_are_counted_and_nothing_else() {
    let Some(fleet) = Fleet::by(&["fleet.key", "fleet.key", "other.key"], 3) else { return };
    fleet.wait_members(0..2, 2);
    assert_eq!(fleet.pass(0, "/quota", "a", 3), 3);
    fleet.wait_heard(0, 1..2, 2);
    let dropped = |reason: &str| fleet.metric(1, "sluicegate_fleet_dropped_total", &[&format!("reason=\"{reason}\"")]);
    // One with another secret asks again and again, and is heard by nobody.
    assert!(eventually(|| dropped("forged") >= 2));
    assert_eq!(fleet.status(2)["gateways"], 1);
    // Some of the first were sent before there was a receiver.
    let told = fleet.mesh.capture(0, 1);
    let told = told.last_chunk::<5>().unwrap();
    let before = ["too-long", "malformed", "replayed", "stranger"].map(dropped);
    for bytes in told {
        fleet.mesh.inject(0, 1, bytes);
        fleet.mesh.inject(0, 1, &bytes[..20]);
    }
    let count = told.len() as u64;
    let are = |expected: [u64; 4]| {
        let is_so = || ["too-long", "malformed", "replayed", "stranger"].map(dropped) == expected;
        assert!(eventually(is_so), "{expected:?}: {}", fleet.status(1));
    };
    are([before[0], before[1] + count, before[2] + count, before[3]]);
    // From an address of its own, what a gateway has sent and what nobody sends.
    let (victim, attacker) = (fleet.mesh.address(1), fleet.mesh.inside(1, || UdpSocket::bind("10.78.0.99:0").unwrap()));
    for bytes in [vec![1; 2_000], vec![7; 60_000]] {
        attacker.send_to(&bytes, victim).unwrap();
    }
    are([before[0] + 2, before[1] + count, before[2] + count, before[3]]);
    for bytes in told.iter().chain([&Vec::new()]) {
        attacker.send_to(bytes, victim).unwrap();
    }
    are([before[0] + 2, before[1] + count + 1, before[2] + 2 * count, before[3]]);
    // Three of ten are spent, as before.
    assert_eq!(fleet.pass(1, "/quota", "a", 12), 7);
    assert_eq!(fleet.status(1)["gateways"], 2);
    assert_eq!(fleet.pass(2, "/quota", "a", 12), 10, "the one with another secret is alone");
}

#[test]
fn one_that_was_stopped_is_back_with_what_it_has_missed() {
    let Some(fleet) = Fleet::new(2, 4) else { return };
    fleet.wait_members(0..2, 2);
    fleet.gateway(1).pause();
    assert_eq!(fleet.pass(0, "/quota", "a", 6), 6);
    fleet.wait_members(0..1, 1);
    fleet.gateway(1).resume();
    fleet.wait_members(0..2, 2);
    fleet.wait_heard(0, 1..2, 2);
    assert_eq!(fleet.pass(1, "/quota", "a", 12), 4);
}

/// On one machine, by addresses of its own: the process that takes over gets the address of the one before, and its counts.
#[test]
fn an_upgrade_keeps_the_place_and_the_counts() {
    let secrets = tempfile::tempdir().unwrap();
    let secret = secrets.path().join("fleet.key");
    fs::write(&secret, [7; 32]).unwrap();
    let listen = [(); 2].map(|()| unused_address());
    let mut gateways = listen.map(|own| {
        Gateway::start_whole(&format!(
            "{FRAME}[fleet]\npeers = [\"{}\", \"{}\"]\nlisten = \"{own}\"\nsecret_file = \"{}\"\n\
             [[limit]]\nname = \"quota\"\nkey = \"header:x-key\"\nalgorithm = \"token-bucket\"\nrate = \"9/h\"\nshared = \"lease\"\n\
             [[route]]\nname = \"all\"\nlimits = [\"quota\"]\nrespond = {{}}\n",
            listen[0],
            listen[1],
            secret.display(),
        ))
    });
    let pass = |gateway: &Gateway, key: &str, requests: usize| {
        (0..requests).filter(|_| get_with(gateway.address(), "/", &[("X-Key", key)]).status == 200).count()
    };
    let status = |gateway: &Gateway| gateway.ask_admin("/api/v1/fleet").json();
    let knows = |gateway: &Gateway, keys: u64| {
        assert!(eventually(|| status(gateway)["peers"]["keys"] == keys), "{}", status(gateway));
    };
    for gateway in &gateways {
        gateway.wait_metric("sluicegate_fleet_gateways", &[], 2.0);
    }
    // With the last key all that was admitted before is known.
    assert_eq!((pass(&gateways[1], "a", 4), pass(&gateways[1], "b", 1)), (4, 1));
    knows(&gateways[0], 2);
    let before = status(&gateways[0])["member"].clone();
    assert!(gateways[0].upgrade()["pid"].is_u64());
    gateways[0].wait_alone();
    gateways[0].wait_metric("sluicegate_fleet_gateways", &[], 2.0);
    assert_ne!(status(&gateways[0])["member"], before);
    knows(&gateways[0], 2);
    assert_eq!(pass(&gateways[0], "a", 9), 5, "9 less 4, not less 8");
    assert_eq!(pass(&gateways[0], "c", 1), 1);
    knows(&gateways[1], 3);
    assert_eq!(pass(&gateways[1], "a", 9), 0);
}
