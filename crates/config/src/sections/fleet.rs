//! `[fleet]`: gateways that share limits, and the store through which they do.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::secret_file::{FileSecrets, SECRET_BYTES, SecretFile, SecretsFile, without_line_end};
use super::tls;
use crate::findings::{Reported, quoted};
use crate::form::{FILE, Form, NAME};
use crate::kind::{Context, FleetTerms, ValueKind, by, duration, list, word};
use crate::lower::file;
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};
use peers::{INTERVALS, PEER, PEERS, Topology, Transport};
use sluicegate_fleet::{Address, Deployment, PeerAddress, PeerSettings, StoreEndpoint};
use sluicegate_limiter::OnFailure;
use sluicegate_time::Span;
use sluicegate_tls::{Alpn, Roots, UpstreamSettings, is_server_name};

section! {
    /// `[fleet]`: gateways that share limits, and the store through which they do, or their addresses where there is none.
    pub struct Fleet, read as FleetKeys {
        /// The store, Redis or Valkey: `redis://HOST[:PORT][/DATABASE]`, `unix:///PATH`, `redis-sentinel://HOST[:PORT],…/NAME[/DATABASE]`
        /// for the primary NAME that Sentinels watch, or `redis-cluster://HOST[:PORT],…` for a cluster of which these are some
        /// nodes. For TLS: `rediss://`, `rediss-sentinel://`, `rediss-cluster://`.
        store: Option<Arc<str>> = by(Form::Text("the address of a store"), store, ToString::to_string).or_nothing("none"),
        /// A file with the authorities of the store's certificate; by default the machine's. Only with `rediss://`.
        ca: Option<StoreRoots> = Authorities.or_nothing("none").told("the machine's"),
        /// The name that the store's certificate has to have; by default the store's host. Only with `rediss://`.
        server_name: Option<String> = by(tls::SERVER_NAME, tls::server_name, String::clone).or_nothing("the store's host"),
        /// The user that the store knows the gateways by.
        username: Option<Arc<str>> = by(Form::Text("a name without spaces"), username, ToString::to_string).or_nothing("none"),
        /// A file with the password for the store, in one line. The environment's `SLUICEGATE_FLEET_PASSWORD` wins.
        password_file: Option<FleetPassword> = PasswordFile.or_nothing("none"),
        /// A file with the secret that all gateways of the fleet share: 32 bytes, or 64 hexadecimal digits. While it is replaced by
        /// another one, two lines of such digits: the secret that is used, and one that is only known.
        secret_file: FileSecrets = SecretsFile(SecretFile { example: "fleet.key", help: SECRET_HELP }).required("\"fleet.key\""),
        /// The name of this gateway; by default the host's.
        node: Arc<str> = by(NAME, node_name, ToString::to_string).or_else(host_name, "the host's name"),
        /// The beginning of every key in the store.
        prefix: Arc<str> = by(Form::Text("1 to 64 of `A-Z a-z 0-9 . _ - :`"), prefix, ToString::to_string).or("sluicegate"),
        /// Without a store: where other gateways may be found, `IP:PORT` or `dns:NAME:PORT`. Those that are found name the others. This gateway
        /// may be among them.
        peers: Vec<PeerAddress> = list(PEERS, peers::addresses, PeerAddress::to_string).or_else(Vec::new, "none"),
        /// Without a store: the UDP address at which the others reach this gateway.
        listen: Option<SocketAddr> = by(PEER, peers::listen, SocketAddr::to_string).or_nothing("none"),
        /// Without a store: the gateways that one tells. `full`: each other one.
        topology: Topology = word().or("full"),
        /// Without a store: how messages travel.
        transport: Transport = word().or("udp"),
        /// Without a store: the time from one message to the next, while there is something to tell.
        interval: Span = duration(INTERVALS).or("20ms"),
        /// The longest that a request waits for the store, over all its shared limits.
        deadline: Span = duration(DEADLINES).or("10ms"),
        /// The budget of a shared limit on a gateway that cannot reach the store.
        on_failure: OnFailure = word().or("fair"),
    }
}

/// Below it every answer of a store is late; above it the client gives up before the store does.
const DEADLINES: RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(1);

const SECRET_HELP: &str = "a secret has 32 bytes, or 64 hexadecimal digits: make one with \
                           `sluicegate fleet key > fleet.key`, and give each gateway of the fleet the same";

/// That of Redis, and that of a Sentinel.
const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

/// Addresses of Sentinels, or of nodes of a cluster.
const MAX_ADDRESSES: usize = 16;

/// Bytes of the store's address.
const MAX_STORE_BYTES: usize = 512;

/// Bytes of a user's name.
const MAX_USERNAME_BYTES: usize = 128;

/// Bytes of a password.
const MAX_PASSWORD_BYTES: usize = 512;

/// Bytes of a node's name, and of a prefix: they are in each key of the store.
const MAX_NAME_BYTES: usize = 64;

/// The password for the store. No message shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetPassword(Option<Box<str>>);

/// The authorities that vouch for a store that is spoken to over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRoots {
    /// Those of this machine, and of no file.
    is_machines: bool,
    roots: Roots,
}

/// Reads the section, and holds its keys against each other: those of a store, and those of a fleet without one.
pub(crate) fn read(mut reader: Reader<'_>, context: &Context<'_>) -> Result<Fleet, Reported> {
    let mut keys = Fleet::keys(&mut reader, context);
    let is_whole = peers::check(&keys, &reader);
    reader.done();
    let is_sound = is_whole.and(complete_tls(&mut keys, context));
    is_sound.and_then(|()| Fleet::of(keys))
}

/// A store over TLS has authorities, by default the machine's, and a host that a certificate can be for. Another has no keys of
/// TLS.
fn complete_tls(keys: &mut FleetKeys<'_>, context: &Context<'_>) -> Result<(), Reported> {
    let (Ok(Some(store)), Some(node)) = (&keys.store.value, &keys.store.node) else { return Ok(()) };
    let place = place_of(store);
    if !store.starts_with(OVER_TLS) {
        let refuse = |node: &Node<'_>| {
            let message = format!("{} has no effect: the store is not spoken to over TLS", node.label());
            let help = format!("write store = \"rediss://10.0.0.5:6379/0\", or remove {}", node.label());
            node.on_key().error(message, help)
        };
        return Reported::none_of([&keys.ca.node, &keys.server_name.node].into_iter().flatten().map(refuse));
    }
    let mut hosts = place.iter().flat_map(StorePlace::hosts);
    if let (Ok(None), Some(host)) = (&keys.server_name.value, hosts.find(|host| !is_server_name(host))) {
        let help = "say what the certificate is for: server_name = \"redis.internal\"";
        return Err(node.error(format!("no certificate can be for {}", quoted(host)), help));
    }
    if let Ok(None) = keys.ca.value {
        let roots = tls::system_roots(node, context)?.unwrap_or_else(Roots::none);
        keys.ca.value = Ok(Some(StoreRoots { is_machines: true, roots }));
    }
    Ok(())
}

impl Fleet {
    pub(crate) fn terms(&self) -> FleetTerms {
        match self.store {
            Some(_) => FleetTerms::Store { deadline: self.deadline, on_failure: self.on_failure },
            None => FleetTerms::Peers,
        }
    }

    /// Those of a section that could not be read.
    pub(crate) fn usual_terms() -> FleetTerms {
        FleetTerms::Store { deadline: Span::from_millis(10), on_failure: OnFailure::default() }
    }

    /// How the servers make up the store; `None`: there is none.
    pub fn deployment(&self) -> Option<Deployment> {
        Some(place_of(self.store.as_deref()?).map_or(Deployment::Single, |place| place.deployment))
    }

    /// How this gateway takes part where there is no store; `None`: there is one.
    pub fn without_store(&self) -> Option<PeerSettings> {
        Some(PeerSettings {
            listen: self.listen.filter(|_| self.store.is_none())?,
            peers: self.peers.clone(),
            interval: self.interval,
            secrets: self.secrets().to_vec(),
            node: Arc::clone(&self.node),
        })
    }

    /// Where the store is, and the user by which it is asked; `password` is that of the environment, which wins. Of several addresses it has the
    /// first. `None`: there is no store.
    pub fn endpoint(&self, password: Option<&str>) -> Option<StoreEndpoint> {
        let store = self.store.as_deref()?;
        let place = place_of(store);
        // The address was read before.
        let (address, database) =
            place.map_or_else(|| (Address::Unix(store.into()), 0), |place| (place.address, place.database));
        let tls = store.starts_with(OVER_TLS).then(|| UpstreamSettings {
            // One without authorities would take any certificate.
            roots: Some(self.ca.as_ref().map_or_else(Roots::none, |ca| ca.roots.clone())),
            server_name: self.server_name.clone(),
            alpn: Alpn::Nothing,
        });
        let username = self.username.as_deref().map(str::to_owned);
        Some(StoreEndpoint { address, tls, username, password: self.password(password).map(str::to_owned), database })
    }

    /// The secrets: the one that is used, and one that is only known, so that what was told by it holds. None where files are not
    /// read.
    pub fn secrets(&self) -> &[[u8; SECRET_BYTES]] {
        self.secret_file.all()
    }

    /// The password for the store, if it wants one: that of the environment, `SLUICEGATE_FLEET_PASSWORD` as the caller has read
    /// it, wins over the file's.
    pub fn password<'f>(&'f self, environment: Option<&'f str>) -> Option<&'f str> {
        environment.or_else(|| self.password_file.as_ref()?.0.as_deref())
    }

    /// SHA-256 over what was read of its files, to see whether it changes.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.secrets().as_flattened());
        hash.update(self.password(None).unwrap_or_default());
        hash.update(self.ca.as_ref().map_or(&[][..], |ca| ca.roots.digest()));
        hash.finalize().into()
    }
}

impl fmt::Debug for FleetPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetPassword(..)")
    }
}

/// `password_file`
struct PasswordFile;

impl ValueKind for PasswordFile {
    type Value = FleetPassword;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<FleetPassword, Reported> {
        let bytes = file::read(node, context.files, "redis.pass")?;
        if !context.files.certificates().are_read() {
            return Ok(FleetPassword(None));
        }
        let line = without_line_end(&bytes);
        let fault = match str::from_utf8(line) {
            _ if line.len() > MAX_PASSWORD_BYTES => format!("has {} bytes", bytes.len()),
            Ok("") => "is empty".to_owned(),
            Ok(text) if text.contains(['\n', '\r']) => "has more than one line".to_owned(),
            Ok(text) if text.contains(char::is_control) => "has control characters".to_owned(),
            Ok(text) => return Ok(FleetPassword(Some(text.into()))),
            Err(_) => "is not UTF-8".to_owned(),
        };
        let text = quoted(node.as_text().unwrap_or_default());
        let help = format!("write the password alone, in one line of at most {MAX_PASSWORD_BYTES} bytes");
        Err(node.error(format!("`password_file` = {text} {fault}"), help))
    }

    fn show(&self, _: &FleetPassword) -> String {
        "set".to_owned()
    }

    fn form(&self) -> Form {
        FILE
    }
}

/// `ca`
struct Authorities;

impl ValueKind for Authorities {
    type Value = StoreRoots;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<StoreRoots, Reported> {
        let roots = tls::roots(node, context)?.unwrap_or_else(Roots::none);
        Ok(StoreRoots { is_machines: false, roots })
    }

    fn show(&self, ca: &StoreRoots) -> String {
        if ca.is_machines { "the machine's" } else { "set" }.to_owned()
    }

    fn form(&self) -> Form {
        FILE
    }
}

/// Begins the address of a store that is spoken to over TLS.
const OVER_TLS: &str = "rediss";

const STORE_FORMS: &str = "write \"redis://10.0.0.5:6379/0\", \"unix:///run/redis.sock\", \"redis-sentinel://h1:26379,h2:26379/mymaster\", \
                           or \"redis-cluster://h1:6379,h2:6379\"; with TLS they begin with rediss";

fn store(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    let text = node.string("an address in quotes", "\"redis://10.0.0.5:6379/0\"")?;
    let no_store = || node.error(format!("invalid store address {}", quoted(text)), STORE_FORMS);
    let (_, rest) = text.split_once("://").ok_or_else(no_store)?;
    // They are hidden wherever the text stands.
    if rest.contains(['@', '?']) {
        let help = "put the password into password_file, and the user into username";
        return Err(node.error("`store` holds a user, a password or other settings", help));
    }
    let is_clean = text.len() <= MAX_STORE_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic());
    if place_of(text).is_some() && is_clean { Ok(text.into()) } else { Err(no_store()) }
}

/// The value of `store`.
struct StorePlace {
    address: Address,
    database: u32,
    deployment: Deployment,
}

impl StorePlace {
    /// The hosts that it names.
    fn hosts(&self) -> impl Iterator<Item = &str> {
        let several = match &self.deployment {
            Deployment::Single => std::slice::from_ref(&self.address),
            Deployment::Sentinel { sentinels: all, .. } | Deployment::Cluster { seeds: all } => all,
        };
        several.iter().filter_map(|address| match address {
            Address::Tcp { host, .. } => Some(host.as_str()),
            Address::Unix(_) => None,
        })
    }
}

/// Reads an address of a store; `None`: it is none.
fn place_of(text: &str) -> Option<StorePlace> {
    let (scheme, rest) = text.split_once("://")?;
    let single = |address, database| Some(StorePlace { address, database, deployment: Deployment::Single });
    match scheme {
        "unix" => (rest.len() > 1 && rest.starts_with('/')).then(|| single(Address::Unix(rest.into()), 0)).flatten(),
        "redis" | "rediss" => {
            let (authority, number) = rest.split_once('/').unwrap_or((rest, ""));
            single(server(authority, DEFAULT_PORT)?, database(number)?)
        }
        "redis-sentinel" | "rediss-sentinel" => {
            let (authorities, name) = rest.split_once('/')?;
            let (name, number) = name.split_once('/').unwrap_or((name, ""));
            let is_name = name.chars().all(|own| is_plain(own) || "._-".contains(own));
            let name = Some(name.to_owned()).filter(|name| is_name && (1..=MAX_NAME_BYTES).contains(&name.len()))?;
            let sentinels = servers(authorities, SENTINEL_PORT)?;
            let address = sentinels.first()?.clone();
            let deployment = Deployment::Sentinel { sentinels, name };
            Some(StorePlace { address, database: database(number)?, deployment })
        }
        "redis-cluster" | "rediss-cluster" => {
            let seeds = servers(rest, DEFAULT_PORT)?;
            Some(StorePlace { address: seeds.first()?.clone(), database: 0, deployment: Deployment::Cluster { seeds } })
        }
        _ => None,
    }
}

/// Some of `HOST[:PORT]`, between commas.
fn servers(text: &str, port: u16) -> Option<Vec<Address>> {
    let all: Vec<Address> = text.split(',').map(|one| server(one, port)).collect::<Option<_>>()?;
    (all.len() <= MAX_ADDRESSES).then_some(all)
}

/// `HOST[:PORT]`; an IPv6 address stands in brackets.
fn server(text: &str, default: u16) -> Option<Address> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|address| address.parse::<Ipv6Addr>().is_ok())?,
        None => Some(host).filter(|host| {
            (1..=253).contains(&host.len()) && host.chars().all(|own| is_plain(own) || "._-".contains(own))
        })?,
    };
    let port = port.map_or(Some(default), |port| number::<u16>(port).filter(|port| *port > 0))?;
    Some(Address::Tcp { host: host.to_owned(), port })
}

/// The number of a database, 0 where there is none.
fn database(text: &str) -> Option<u32> {
    if text.is_empty() { Some(0) } else { number::<u16>(text).map(u32::from) }
}

/// Without a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn username(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    let text = node.string("a name in quotes", "\"gateway\"")?;
    if (1..=MAX_USERNAME_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.into());
    }
    let help = format!("write 1 to {MAX_USERNAME_BYTES} characters of ASCII, without spaces");
    Err(node.error(format!("invalid store user {}", quoted(text)), help))
}

fn node_name(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    name(node, "._-", "\"gw-1\"")
}

fn prefix(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    name(node, "._-:", "\"sluicegate\"")
}

/// A name that may stand in a key of the store and in a line of the log.
fn name(node: &Node<'_>, others: &str, example: &str) -> Result<Arc<str>, Reported> {
    let text = node.string("a name in quotes", example)?;
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.chars().all(|own| is_plain(own) || others.contains(own)) {
        return Ok(text.into());
    }
    let others = others.chars().map(String::from).collect::<Vec<_>>().join(" ");
    let help = format!("write 1 to {MAX_NAME_BYTES} letters and digits (A-Z a-z 0-9), or {others}");
    Err(node.error(format!("{}: invalid name {}", node.label(), quoted(text)), help))
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric()
}

/// The host's name, as far as it may be a node's; `gateway` where there is none.
fn host_name() -> Arc<str> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    node_of_host(name.trim())
}

fn node_of_host(name: &str) -> Arc<str> {
    let plain = name.chars().map(|own| if is_plain(own) || "._-".contains(own) { own } else { '-' });
    let plain: String = plain.take(MAX_NAME_BYTES).collect();
    if plain.is_empty() { "gateway".into() } else { plain.into() }
}

mod peers;

#[cfg(test)]
mod tests;
