//! Stores that gateways share.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::program::Program;
use super::{eventually, unused_address};

/// A Redis of the test's own, which holds nothing and writes nothing to disk.
pub struct Store(Program);

impl Store {
    pub fn start() -> Self {
        Self(Program::start("redis-server", configure))
    }

    /// One that speaks TLS alone, with `cert.pem` and `key.pem` of a directory.
    pub fn start_tls(files: &Path) -> Self {
        let configure = |command: &mut Command, _: &Path, address: SocketAddr| {
            command.args([
                "--bind",
                &address.ip().to_string(),
                "--port",
                "0",
                "--tls-port",
                &address.port().to_string(),
            ]);
            command.arg("--tls-cert-file").arg(files.join("cert.pem"));
            command.arg("--tls-key-file").arg(files.join("key.pem"));
            command.arg("--tls-ca-cert-file").arg(files.join("cert.pem"));
            command.args(["--tls-auth-clients", "no", "--save", "", "--appendonly", "no"]);
        };
        Self(Program::start("redis-server", configure))
    }

    /// Another one, empty, where one has ended.
    pub fn start_at(address: SocketAddr) -> Self {
        Self(Program::start_at(address, "redis-server", configure))
    }

    /// Its answer to a command.
    pub fn ask(&self, words: &[&str]) -> String {
        let (host, port) = (self.address().ip().to_string(), self.address().port().to_string());
        let output = Command::new("redis-cli").args(["-h", &host, "-p", &port]).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same, by its words.
    pub fn tell(&self, words: &str) -> String {
        self.ask(&words.split(' ').collect::<Vec<_>>()).trim().to_owned()
    }

    /// How many keys of a limit it holds.
    pub fn keys_of(&self, limit: &str) -> Vec<String> {
        let keys = self.ask(&["--scan", "--pattern", &format!("sluicegate:{limit}:*")]);
        keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// It stops answering, and keeps its connections, until it is resumed.
    pub fn pause(&self) {
        self.0.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.0.signal(Signal::CONT);
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}

fn configure(command: &mut Command, _: &Path, address: SocketAddr) {
    command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
    command.args(["--save", "", "--appendonly", "no"]);
}

/// Masters of a cluster that share its slots evenly, without replicas. One that is away takes only its own keys with it.
pub struct Cluster {
    pub nodes: Vec<Store>,
}

const SLOTS: usize = 16_384;

impl Cluster {
    pub fn start(masters: usize) -> Self {
        let cluster = Self { nodes: (0..masters).map(|_| Self::node()).collect() };
        for (index, node) in cluster.nodes.iter().enumerate() {
            let (first, last) = (SLOTS * index / masters, SLOTS * (index + 1) / masters - 1);
            assert_eq!(node.tell(&format!("cluster addslotsrange {first} {last}")), "OK");
        }
        cluster.join();
        cluster
    }

    fn node() -> Store {
        let bus = unused_address().port().to_string();
        Store(Program::start("redis-server", |command, directory, address| {
            configure(command, directory, address);
            command.args(["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"]);
            command.args(["--cluster-require-full-coverage", "no", "--cluster-announce-ip", &address.ip().to_string()]);
        }))
    }

    /// Another master, without slots.
    pub fn grow(&mut self) {
        self.nodes.push(Self::node());
        self.join();
    }

    fn join(&self) {
        for node in &self.nodes[1..] {
            let (address, bus) = (node.address(), node.tell("config get cluster-port"));
            let bus = bus.lines().last().unwrap_or_default().to_owned();
            self.nodes[0].tell(&format!("cluster meet {} {} {bus}", address.ip(), address.port()));
        }
        let count = format!("cluster_known_nodes:{}", self.nodes.len());
        let is_joined = |node: &Store| {
            let info = node.tell("cluster info");
            info.contains("cluster_state:ok") && info.contains(&count) && info.contains("cluster_slots_ok:16384")
        };
        let is_whole = eventually(|| self.nodes.iter().all(is_joined));
        let said = || self.nodes.iter().map(|node| node.tell("cluster nodes")).collect::<Vec<_>>().join("\n\n");
        assert!(is_whole, "{}", said());
    }

    /// As `[fleet]` names it.
    pub fn store(&self) -> String {
        format!("redis-cluster://{}", list(&self.nodes))
    }

    /// Another node, which takes over when the master of this number fails.
    pub fn replicate(&mut self, master: usize) {
        self.grow();
        let (id, replica) = (self.nodes[master].tell("cluster myid"), self.nodes.last().unwrap());
        assert!(eventually(|| replica.tell(&format!("cluster replicate {id}")) == "OK"));
        assert!(eventually(|| replica.tell("info replication").contains("master_link_status:up")));
        let knows_it = |node: &Store| node.tell("cluster nodes").matches("slave").count() == 1;
        assert!(eventually(|| self.nodes.iter().all(knows_it)));
    }

    /// The place of the master that has this key.
    pub fn owner_of(&self, key: &str) -> usize {
        let slot: usize = self.nodes[0].tell(&format!("cluster keyslot {key}")).parse().unwrap();
        let first = |node: &Store| {
            let ranges = node.tell("cluster nodes");
            let own = ranges.lines().find(|line| line.contains("myself"))?.rsplit(' ').next()?.to_owned();
            let (first, last) = own.split_once('-')?;
            Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
        };
        self.nodes.iter().position(|node| first(node).is_some_and(|own| own.contains(&slot))).unwrap()
    }

    /// Begins to move a slot: its keys are at the new master, and the others do not know yet.
    pub fn move_slot(&self, slot: &str, from: usize, to: usize) {
        let id = |node: usize| self.nodes[node].tell("cluster myid");
        let (old, new) = (&self.nodes[from], &self.nodes[to]);
        assert_eq!(new.tell(&format!("cluster setslot {slot} importing {}", id(from))), "OK");
        assert_eq!(old.tell(&format!("cluster setslot {slot} migrating {}", id(to))), "OK");
        let keys = old.tell(&format!("cluster getkeysinslot {slot} 1000"));
        for key in keys.lines().filter(|key| !key.is_empty()) {
            let address = new.address();
            let moved = old.ask(&["migrate", &address.ip().to_string(), &address.port().to_string(), key, "0", "5000"]);
            assert_eq!(moved.trim(), "OK");
        }
    }

    /// Ends it.
    pub fn give_slot(&self, slot: &str, to: usize) {
        let id = self.nodes[to].tell("cluster myid");
        for node in [&self.nodes[to]].into_iter().chain(&self.nodes) {
            assert_eq!(node.tell(&format!("cluster setslot {slot} node {id}")), "OK");
        }
    }
}

/// A primary, some replicas of it, and three Sentinels that call it `mymaster`.
pub struct Sentinels {
    pub servers: Vec<Store>,
    pub sentinels: Vec<Store>,
}

impl Sentinels {
    pub fn start(replicas: usize) -> Self {
        let primary = Store::start();
        let mut servers: Vec<Store> =
            (0..replicas).map(|_| Self::replica_of(primary.address(), unused_address())).collect();
        let monitor = primary.address();
        let sentinel = || {
            Store(Program::start("redis-server", |command, directory, address| {
                let (own, host, port) = (address.ip(), monitor.ip(), monitor.port());
                let text = format!(
                    "port {}\nbind {own}\nsentinel announce-ip {own}\nsentinel monitor mymaster {host} {port} 2\n\
                     sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n",
                    address.port()
                );
                std::fs::write(directory.join("sentinel.conf"), text).unwrap();
                command.args(["sentinel.conf", "--sentinel"]);
            }))
        };
        servers.insert(0, primary);
        let sentinels = Self { sentinels: (0..3).map(|_| sentinel()).collect(), servers };
        let knows_all = |sentinel: &Store| {
            let told = sentinel.tell("sentinel master mymaster").replace('\n', " ");
            told.contains(&format!("num-slaves {replicas} ")) && told.contains("num-other-sentinels 2 ")
        };
        assert!(eventually(|| sentinels.sentinels.iter().all(knows_all)));
        let is_fed = |replica: &Store| replica.tell("info replication").contains("master_link_status:up");
        assert!(eventually(|| sentinels.servers[1..].iter().all(is_fed)));
        sentinels
    }

    /// Another server that has what the primary has.
    pub fn replica_of(primary: SocketAddr, at: SocketAddr) -> Store {
        Store(Program::start_at(at, "redis-server", |command, directory, address| {
            configure(command, directory, address);
            command.args(["--replicaof", &format!("{} {}", primary.ip(), primary.port())]);
            command.args(["--repl-diskless-sync-delay", "0", "--replica-announce-ip", &address.ip().to_string()]);
        }))
    }

    /// As `[fleet]` names it.
    pub fn store(&self) -> String {
        format!("redis-sentinel://{}/mymaster", list(&self.sentinels))
    }
}

fn list(stores: &[Store]) -> String {
    stores.iter().map(|store| store.address().to_string()).collect::<Vec<_>>().join(",")
}
