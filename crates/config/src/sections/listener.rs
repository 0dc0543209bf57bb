//! `[[listener]]`

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;

use super::admin::Admin;
use super::client::ClientKeys;
use super::decides::{self, Decides, DescribedBy};
use super::server::CONNECTIONS;
use super::tls;
use crate::address::{self, ListenAddress};
use crate::findings::{Finding, Findings, Reported};
use crate::form::Form;
use crate::kind::{Context, Deciding, ValueKind, by, count, flag, list, word};
use crate::reader::{Node, Reader};
use crate::section::{Declare, Key, Section, section};
use crate::{names, networks};
use sluicegate_tls::{ClientCertificates, ServerSettings};

section! {
    /// `[[listener]]`
    pub struct ListenerSpec, read as ListenerKeys {
        /// Where it listens: an IP address and a port, or, of one that decides, a Unix socket. Port 0 lets the kernel choose one.
        address: ListenAddress = by(
            Form::Text("an IP address and a port, such as \"0.0.0.0:8080\" or \"[::]:8080\", or a Unix socket, \"unix:decide.sock\""),
            |node, context| address::listening(node, context, ("127.0.0.1:8080", "decide.sock")),
            ListenAddress::to_string,
        )
            .required("\"127.0.0.1:8080\""),
        /// The protocol that its clients speak.
        protocol: ListenerProtocol = word().or("http"),
        /// Certificates, and which clients are taken, for "https".
        tls: Option<ServerSettings> = tls::ListenerTls.optional(),
        /// Whether clients that send no name, or one that no certificate has, get no certificate at all.
        reject_unknown_sni: bool = flag().or("false"),
        /// A listener of "http" answers every request with a redirect to "https": to this port, or, by `true`, to that of the
        /// one listener that speaks it.
        redirect_to_https: Redirect = by(Form::Either(&[Form::Flag, Form::Whole(1, 65_535)]), redirect, Redirect::to_string).or("false"),
        /// Whether each connection begins with a PROXY header that names its client.
        proxy_protocol: ProxyProtocol = word().or("off"),
        /// Peers that may send the PROXY header. By it they can be any client.
        proxy_protocol_from: Vec<IpNet> = list(networks::FORM, networks::list, IpNet::to_string).or("[]"),
        /// Each of its requests asks about another one, and is not proxied.
        decides: Option<Decides> = word().or_nothing("nothing: it proxies"),
        /// The fields by which a question describes a request. Others are not read.
        described_by: Option<DescribedBy> = word().or_nothing("none").told("required with `decides = \"auth\"`"),
        /// Peers that may ask.
        allow: Vec<IpNet> = list(networks::FORM, decides::allow, IpNet::to_string).or("[\"127.0.0.0/8\", \"::1\"]"),
        /// Names of the routes that it may decide; by default all that can be decided for others.
        routes: Vec<Arc<str>> = list(ROUTES, decides::routes, ToString::to_string).or_else(Vec::new, "all that can be decided"),
        /// The group that may open its Unix socket beside its owner, by name or number; by default that of the gateway's process.
        socket_group: Option<Arc<str>> = by(
            Form::Text("the name or the number of a group, such as \"www-data\""),
            |node, _| names::read(node, "www-data"),
            ToString::to_string,
        )
            .or_nothing("the process's"),
        /// The status of a refusal; by default as its limit says.
        deny_status: Option<u16> = count(400..=599).or_nothing("the limit's"),
        /// Connections at once, of all workers.
        max_connections: Option<u64> = count(CONNECTIONS).or_word("none").or("none"),
    }
}

words! {
    /// `protocol` of `[[listener]]`.
    pub enum ListenerProtocol {
        /// Plain HTTP: HTTP/1, and HTTP/2 by prior knowledge.
        Http = "http",
        /// HTTP over TLS: HTTP/1 and HTTP/2, by ALPN.
        Https = "https",
    }
}

words! {
    /// `proxy_protocol` of `[[listener]]`.
    pub enum ProxyProtocol {
        /// No connection begins with a header.
        Off = "off",
        /// Each connection begins with a header.
        Required = "required",
    }
}

/// `redirect_to_https` of `[[listener]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// No request is redirected.
    Off,
    /// To the port of the one listener that speaks https. No model has it: the port is known by then.
    OnlyOne,
    /// To this port.
    Port(u16),
}

impl ListenerSpec {
    /// The port that every request is redirected to, if so.
    pub fn redirect_port(&self) -> Option<u16> {
        match self.redirect_to_https {
            Redirect::Port(port) => Some(port),
            Redirect::Off | Redirect::OnlyOne => None,
        }
    }

    /// The peers of which each has to send a PROXY header; `None`: no connection begins with one.
    pub fn proxied_by(&self) -> Option<&[IpNet]> {
        (self.proxy_protocol == ProxyProtocol::Required).then_some(&*self.proxy_protocol_from)
    }
}

/// Every `[[listener]]` of a file.
pub(crate) struct Listeners<'t> {
    /// They; `None`: one could not be read, or there is none.
    pub(crate) specs: Option<Vec<ListenerSpec>>,
    /// `routes` of those that decide for others.
    pub(crate) decided: Vec<(Decides, Node<'t>)>,
    /// Those that do.
    pub(crate) deciding: Deciding,
}

/// Routes that a listener names.
const ROUTES: Form = Form::List(&Form::Text("the name of a `[[route]]`"), 1, decides::MAX_NAMED);

/// Reads every `[[listener]]`.
pub(crate) fn read<'t>(
    readers: Vec<Reader<'t>>,
    admin: Option<&Result<Admin, Reported>>,
    client: &ClientKeys<'_>,
    context: &Context<'_>,
    findings: &Findings,
) -> Listeners<'t> {
    let mut all: Vec<(ListenerKeys<'t>, Result<(), Reported>)> = Vec::new();
    let mut seen = SeenAddresses::default();
    for reader in readers {
        let (misspells_from, misspells_tls) = (reader.has_misspelt("proxy_protocol_from"), reader.has_misspelt("tls"));
        let mut keys = ListenerSpec::read_keys(reader, context);
        check_address(&keys, &mut seen, admin);
        let is_sound = check_proxy_protocol(&keys, client, misspells_from)
            .and(check_decides(&keys))
            .and(complete_tls(&mut keys, misspells_tls));
        all.push((keys, is_sound));
    }
    let target = RedirectTarget::of(&all.iter().map(|(keys, _)| keys).collect::<Vec<_>>());
    // All of them, before one failure counts, so that all their errors are reported.
    let are_all = decides::is_all(&all.iter().map(|(keys, _)| &keys.decides).collect::<Vec<_>>());
    let is_asked = |kind| all.iter().any(|(keys, _)| keys.decides.value == Ok(Some(kind)));
    let (by_key, by_descriptor) = (is_asked(Decides::Json), is_asked(Decides::EnvoyRls));
    let mut decided = Vec::new();
    let listeners: Vec<_> = all
        .into_iter()
        .map(|(mut keys, is_sound)| {
            let redirect = target.resolve(&mut keys, findings);
            let kind = keys.decides.value.ok().flatten();
            decided.extend(kind.zip(keys.routes.node.take()));
            is_sound.and(redirect).and_then(|()| ListenerSpec::of(keys)).ok()
        })
        .collect();
    Listeners { specs: listeners.into_iter().collect(), decided, deciding: Deciding { are_all, by_key, by_descriptor } }
}

/// Whether some listener asks its clients for certificates; yes where that cannot be told.
pub(crate) fn asks_for_clients(listeners: Option<&[ListenerSpec]>) -> bool {
    let asks = |listener: &ListenerSpec| {
        listener.tls.as_ref().is_some_and(|tls| !matches!(tls.clients, ClientCertificates::Off))
    };
    listeners.is_none_or(|listeners| listeners.iter().any(asks))
}

/// The rules between `protocol`, `tls`, `reject_unknown_sni` and `redirect_to_https`.
fn complete_tls(keys: &mut ListenerKeys<'_>, is_misspelt: bool) -> Result<(), Reported> {
    let protocol = keys.protocol.value?;
    let rejects = keys.reject_unknown_sni.value;
    if protocol == ListenerProtocol::Http {
        // "false" is what a listener of plain HTTP does anyway.
        let reject_node = keys.reject_unknown_sni.node.as_ref().filter(|_| rejects == Ok(true));
        let refuse = |node: &Node<'_>| {
            let message = format!("{} is for listeners with protocol = \"https\"", node.label());
            node.on_key().error(message, format!("add protocol = \"https\", or remove {}", node.label()))
        };
        return Reported::none_of([keys.tls.node.as_ref(), reject_node].into_iter().flatten().map(refuse));
    }
    if let (Key { value: Ok(None), .. }, Some(node), false) = (&keys.tls, &keys.protocol.node, is_misspelt) {
        let help = format!("add tls = {}", tls::LISTENER_EXAMPLE);
        return Err(node.error("`protocol` = \"https\" lacks `tls`, its certificates", help));
    }
    if let Key { value: Ok(Some(settings)), node: Some(node) } = &mut keys.tls
        && rejects == Ok(true)
    {
        settings.reject_unknown_sni = true;
        tls::warn_of_rejection(node, settings);
    }
    match &keys.redirect_to_https {
        Key { value: Ok(Redirect::OnlyOne | Redirect::Port(_)), node: Some(node) } => {
            let help = "remove it, or put it in the listener of plain HTTP";
            let reported = node.on_key().error("`redirect_to_https` of a listener that speaks https already", help);
            // Where it would lead is no matter then.
            keys.redirect_to_https.value = Err(reported);
            Err(reported)
        }
        _ => Ok(()),
    }
}

/// The rules between `proxy_protocol` and `proxy_protocol_from`.
fn check_proxy_protocol(keys: &ListenerKeys<'_>, client: &ClientKeys<'_>, is_misspelt: bool) -> Result<(), Reported> {
    let (from, from_node) = (keys.proxy_protocol_from.get(), &keys.proxy_protocol_from.node);
    match (keys.proxy_protocol.value?, from_node) {
        (ProxyProtocol::Off, None) => Ok(()),
        (ProxyProtocol::Off, Some(node)) => {
            let message = "`proxy_protocol_from` is for listeners with proxy_protocol = \"required\"";
            let help = "add proxy_protocol = \"required\", or remove proxy_protocol_from";
            Err(node.on_key().error(message, help))
        }
        (ProxyProtocol::Required, Some(node)) if from.is_some_and(Vec::is_empty) => {
            let help = "name the balancer's addresses: whoever sends the header can be any client";
            Err(node.error("`proxy_protocol_from` is empty, and so nobody could connect", help))
        }
        (ProxyProtocol::Required, Some(node)) => {
            warn_of_beliefs(node, from.map_or(&[], Vec::as_slice), client);
            Ok(())
        }
        (ProxyProtocol::Required, None) => match &keys.proxy_protocol.node {
            // A value that was lost has been reported.
            Some(node) if from.is_some() && !is_misspelt => {
                let message = "`proxy_protocol` = \"required\" lacks `proxy_protocol_from`, who may send the header";
                let help = "add proxy_protocol_from = [\"10.0.0.0/8\"], with the addresses of the balancer";
                Err(node.error(message, help))
            }
            _ => Ok(()),
        },
    }
}

/// The rules between `decides`, what belongs to it, and what does not go with it.
fn check_decides(keys: &ListenerKeys<'_>) -> Result<(), Reported> {
    let ListenerKeys { decides, described_by, allow, routes, socket_group, deny_status, .. } = keys;
    let its_own = [&described_by.node, &allow.node, &routes.node, &socket_group.node, &deny_status.node];
    let is_unix = matches!(&keys.address.value, Ok(ListenAddress::Unix(_)));
    if let (None, true, Some(node)) = (&decides.node, is_unix, &keys.address.node) {
        let help = "add decides = \"json\", or give it an IP address and a port: there is no address of a client here";
        return Err(node.error("a Unix socket of a listener that proxies", help));
    }
    match (&allow.node, &socket_group.node) {
        (Some(allow), _) if is_unix => {
            let help = "remove it: the mode and the group of the file say who may ask";
            return Err(allow.on_key().error("`allow` of a listener with a Unix socket", help));
        }
        (_, Some(group)) if decides.node.is_some() && !is_unix => {
            let help = "remove it, or write address = \"unix:/run/sluicegate/decide.sock\"";
            return Err(group.on_key().error("`socket_group` of a listener without a Unix socket", help));
        }
        _ => {}
    }
    let Some(node) = &decides.node else {
        return Reported::none_of(its_own.into_iter().flatten().map(|own| {
            let message = format!("{} is for listeners that decide for others", own.label());
            own.on_key().error(message, format!("add decides = \"auth\", or remove {}", own.label()))
        }));
    };
    if decides.value == Ok(Some(Decides::Auth)) {
        if described_by.node.is_none() {
            let help = "add described_by = \"forwarded\" (Traefik, Caddy) or \"original\" (nginx): the fields that describe a request";
            return Err(node.error("a listener with `decides` = \"auth\" lacks `described_by`", help));
        }
    } else {
        let of_auth = [&described_by.node, &deny_status.node].into_iter().flatten();
        Reported::none_of(of_auth.map(|own| {
            let message = format!("{} is for listeners with decides = \"auth\"", own.label());
            own.on_key().error(message, format!("remove {}", own.label()))
        }))?;
    }
    let redirects = matches!(keys.redirect_to_https.value, Ok(Redirect::OnlyOne | Redirect::Port(_)));
    let proxied = keys.proxy_protocol.value == Ok(ProxyProtocol::Required);
    let foreign = [(&keys.redirect_to_https.node, redirects), (&keys.proxy_protocol.node, proxied)];
    let foreign = foreign.into_iter().filter(|(_, is_on)| *is_on).filter_map(|(node, _)| node.as_ref());
    Reported::none_of(foreign.map(|foreign| {
        let message = format!("{} of a listener that decides for others", foreign.label());
        let help = format!("remove {}, or put it in a listener of its own", foreign.label());
        foreign.on_key().error(message, help)
    }))
}

/// Networks with shorter prefixes than this are no balancer's.
const SHORTEST_PREFIX: u8 = 8;

fn warn_of_beliefs(node: &Node<'_>, from: &[IpNet], client: &ClientKeys<'_>) {
    if from.iter().any(|network| network.prefix_len() < SHORTEST_PREFIX) {
        let help = "name the balancer's addresses only, or see to it that nobody else reaches this port";
        node.warning("`proxy_protocol_from` lists half the world, which can then be any client", help);
    }
    let written = |key: &Key<'_, Vec<IpNet>>| key.get().cloned().unwrap_or_default();
    let (trusted_proxies, allow) = (written(&client.trusted_proxies), written(&client.allow));
    let overlap = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
    if trusted_proxies.iter().any(|proxy| from.iter().any(|balancer| overlap(proxy, balancer))) {
        let message = "`proxy_protocol_from` and `trusted_proxies` name the same peers: where their header names no client, \
                       what the client writes into X-Forwarded-For is believed";
        node.warning(message, "take them out of trusted_proxies: the header says who the client is");
    }
    let is_balancer = |allowed: &IpNet| from.iter().any(|balancer| balancer.contains(allowed));
    if !allow.is_empty() && allow.iter().all(is_balancer) {
        let message =
            "`allow` of [client] names nobody but `proxy_protocol_from`: no client of the balancer is allowed";
        node.warning(message, "remove allow: nobody else can send the header");
    }
}

/// Where `redirect_to_https = true` leads.
enum RedirectTarget {
    None,
    Port(u16),
    /// Its port is the kernel's choice.
    AnyPort,
    Several,
    /// Some listener could not be read.
    Unknown,
}

impl RedirectTarget {
    fn of(all: &[&ListenerKeys<'_>]) -> Self {
        let unknown = |keys: &&ListenerKeys<'_>| keys.protocol.value.is_err() || keys.address.value.is_err();
        let mut secure = all.iter().filter(|keys| {
            keys.protocol.value == Ok(ListenerProtocol::Https) && matches!(keys.decides.value, Ok(None))
        });
        match (secure.next(), secure.next()) {
            _ if all.iter().any(unknown) => Self::Unknown,
            (None, _) => Self::None,
            (Some(_), Some(_)) => Self::Several,
            (Some(keys), None) => match keys.address.get().and_then(ListenAddress::tcp).map(|address| address.port()) {
                None | Some(0) => Self::AnyPort,
                Some(port) => Self::Port(port),
            },
        }
    }

    /// Puts the port in the place of `true`.
    fn resolve(&self, keys: &mut ListenerKeys<'_>, findings: &Findings) -> Result<(), Reported> {
        let Key { value: redirect @ Ok(Redirect::OnlyOne), node: Some(node) } = &mut keys.redirect_to_https else {
            return Ok(());
        };
        let (message, help) = match self {
            Self::Port(port) => {
                *redirect = Ok(Redirect::Port(*port));
                return Ok(());
            }
            Self::Unknown => return Ok(()),
            Self::None => (
                "`redirect_to_https` = true, and no listener speaks https",
                "add a [[listener]] with protocol = \"https\", or name the port: redirect_to_https = 443",
            ),
            Self::Several => (
                "`redirect_to_https` = true, and several listeners speak https",
                "name the port that is meant: redirect_to_https = 443",
            ),
            Self::AnyPort => (
                "`redirect_to_https` = true, and the port of the listener that speaks https is 0",
                "give that listener a port, or name the one that clients see: redirect_to_https = 443",
            ),
        };
        Err(findings.report(Finding::absent_in_file(Some(node.span()), message).help(help)))
    }
}

fn redirect(node: &Node<'_>, _: &Context<'_>) -> Result<Redirect, Reported> {
    match node.as_boolean() {
        Some(true) => Ok(Redirect::OnlyOne),
        Some(false) => Ok(Redirect::Off),
        None if node.is_integer() => node.count(&(1..=u16::MAX)).map(Redirect::Port),
        None => Err(node.wrong_type("a boolean or a port", "true or 443")),
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::OnlyOne => f.write_str("true"),
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

/// The addresses before, each with its place: a file may have a hundred thousand.
#[derive(Default)]
struct SeenAddresses {
    places: HashMap<SocketAddr, Range<usize>>,
    /// The first with each port, by family.
    first: HashMap<(bool, u16), SocketAddr>,
    /// Unix sockets.
    files: HashMap<PathBuf, Range<usize>>,
}

impl SeenAddresses {
    /// The earliest that cannot be bound beside this one, see [`collide`].
    fn in_the_way(&self, address: SocketAddr) -> Option<(SocketAddr, Range<usize>)> {
        let every = if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let first = self.first.get(&(address.is_ipv4(), address.port()));
        let others = [Some(address), Some(SocketAddr::new(every, address.port())), first.copied()];
        let others = others.into_iter().flatten().filter(|other| collide(address, *other));
        let placed = others.filter_map(|other| Some((other, self.places.get(&other)?.clone())));
        placed.min_by_key(|(_, place)| place.start)
    }

    fn note(&mut self, address: SocketAddr, place: Range<usize>) {
        self.places.entry(address).or_insert(place);
        self.first.entry((address.is_ipv4(), address.port())).or_insert(address);
    }
}

/// Reports an address that cannot be bound beside an earlier one, or beside that of `[admin]`.
fn check_address(keys: &ListenerKeys<'_>, seen: &mut SeenAddresses, admin: Option<&Result<Admin, Reported>>) {
    let Key { value: Ok(address), node: Some(node) } = &keys.address else { return };
    let of_admin = admin.and_then(|admin| admin.as_ref().ok()).map(|admin| &admin.address);
    let address = match address {
        ListenAddress::Tcp(address) => *address,
        ListenAddress::Unix(path) => {
            let finding = |message: String| Finding::error(node.span(), message).help("give each its own file");
            if let Some(first) = seen.files.insert(path.clone(), node.span()) {
                node.push(
                    finding(format!("two listeners have the address {address}")).related("the first is at", first),
                );
            } else if of_admin == Some(address) {
                node.push(finding(format!("the address {address} is the one of [admin] too")));
            }
            return;
        }
    };
    if let Some((other, first)) = seen.in_the_way(address) {
        let message = if other == address {
            format!("two listeners have the address {address}")
        } else {
            format!("the listeners {other} and {address} are in each other's way")
        };
        let finding = Finding::error(node.span(), message).related("the first is at", first);
        node.push(finding.help("give each its own port, or remove one"));
    }
    seen.note(address, node.span());
    if of_admin.and_then(ListenAddress::tcp).is_some_and(|admin| admin.port() != 0 && collide(address, admin)) {
        let message = format!("the address {address} is the one of [admin] too");
        let finding = Finding::error(node.span(), message);
        node.push(finding.help("give [admin] its own port, such as 127.0.0.1:9900"));
    }
}

/// Whether both cannot be bound at once: the same address, or one of them is every address of its family. Port 0 is
/// a port of its own each time, yet two such listeners could not be told apart on a reload.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |a: SocketAddr, b: SocketAddr| a.ip().is_unspecified() && a.is_ipv4() == b.is_ipv4() && a.port() != 0;
    a == b || a.port() == b.port() && (covers(a, b) || covers(b, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The earliest of all that collide, one by one.
    #[test]
    fn addresses_in_the_way_are_found_as_by_looking_at_each() {
        let hosts = ["0.0.0.0", "127.0.0.1", "127.0.0.2", "[::]", "[::1]"];
        let all: Vec<SocketAddr> =
            hosts.iter().flat_map(|host| [0, 1, 2].map(|port| format!("{host}:{port}").parse().unwrap())).collect();
        for (one, two) in all.iter().flat_map(|one| all.iter().map(move |two| (*one, *two))) {
            for three in &all {
                let before = [one, two];
                let mut seen = SeenAddresses::default();
                before.into_iter().enumerate().for_each(|(place, address)| seen.note(address, place..place + 1));
                let naive = before.into_iter().find(|other| collide(*three, *other));
                assert_eq!(seen.in_the_way(*three).map(|(other, _)| other), naive, "{three} after {before:?}");
            }
        }
    }
}
