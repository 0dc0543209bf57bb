//! `[[listener]]`

use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};

use ipnet::IpNet;

use super::tls;
use crate::config::findings::{Finding, Findings, Reported};
use crate::config::kind::Context;
use crate::config::model::Listener;
use crate::config::reader::{Node, Reader};
use crate::config::section::Key;
use crate::config::sections::admin::Admin;
use crate::config::sections::client::ClientKeys;
use crate::config::sections::server::CONNECTIONS;
use crate::config::{address, networks};
use crate::tls::{ClientCertificates, ServerSettings};

const PORTS: RangeInclusive<u64> = 1..=65_535;

/// What clients of a listener speak.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Https,
}

/// `redirect_to_https` as it stands in the file.
enum Redirect {
    /// `true`: to the only port that speaks TLS; the place of it.
    Only(Range<usize>),
    /// To this port.
    Port(u16),
}

/// One as far as it could be read, before the others are known.
struct Draft {
    address: Option<SocketAddr>,
    protocol: Option<Protocol>,
    /// `None`: it could not be read.
    #[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
    tls: Option<Option<ServerSettings>>,
    #[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
    redirect: Option<Option<Redirect>>,
    max_connections: Option<u64>,
    proxied_by: Option<Vec<IpNet>>,
}

/// Every `[[listener]]`.
pub(super) fn lower(
    readers: Vec<Reader<'_>>,
    admin: Option<&Result<Admin, Reported>>,
    believed: &ClientKeys<'_>,
    context: &Context<'_>,
    findings: &Findings,
) -> Option<Vec<Listener>> {
    let mut seen: Vec<(SocketAddr, Range<usize>)> = Vec::new();
    let drafts: Vec<Draft> =
        readers.into_iter().map(|reader| draft(reader, &mut seen, admin, believed, context)).collect();
    let target = Target::of(&drafts);
    // All of them, before one failure counts, so that all their errors are reported.
    let listeners: Vec<_> = drafts.into_iter().map(|draft| draft.into_listener(&target, findings)).collect();
    listeners.into_iter().collect()
}

/// Whether some listener asks its clients for certificates; yes where that cannot be told.
pub(super) fn asks_for_clients(listeners: Option<&[Listener]>) -> bool {
    let asks =
        |listener: &Listener| listener.tls.as_ref().is_some_and(|tls| !matches!(tls.clients, ClientCertificates::Off));
    listeners.is_none_or(|listeners| listeners.iter().any(asks))
}

fn draft(
    mut reader: Reader<'_>,
    seen: &mut Vec<(SocketAddr, Range<usize>)>,
    admin: Option<&Result<Admin, Reported>>,
    believed: &ClientKeys<'_>,
    context: &Context<'_>,
) -> Draft {
    let node = reader.required("address", "\"127.0.0.1:8080\"");
    let address = node.as_ref().and_then(|node| address::listening(node, "127.0.0.1:8080").ok());
    if let (Some(node), Some(address)) = (&node, address) {
        check_address(node, address, seen, admin);
        seen.push((address, node.span()));
    }
    let words = [("http", Protocol::Http), ("https", Protocol::Https)];
    let protocol_node = reader.optional("protocol");
    let protocol = match &protocol_node {
        Some(node) => node.choice(&words, &[]),
        // What is there and lost its value has been reported; it may have been either.
        None => (!reader.has("protocol")).then_some(Protocol::Http),
    };
    let proxied_by = proxied_by(&mut reader, believed, context);
    let reject_node = reader.optional("reject_unknown_sni");
    let reject = reject_node.as_ref().map_or(Some(false), Node::boolean);
    let tls_node = reader.optional("tls");
    let tls = tls_node.as_ref().map(|node| tls::listener(node, reject.unwrap_or(false), context.files));
    let redirect_node = reader.optional("redirect_to_https");
    let mut redirect = redirect_node.as_ref().map_or(Some(None), redirect);
    let tls = match (protocol, tls) {
        (Some(Protocol::Http), tls) => {
            // "false" is what a listener of plain HTTP does anyway.
            let reject_node = reject_node.as_ref().filter(|_| reject == Some(true));
            for node in [tls_node.as_ref(), reject_node].into_iter().flatten() {
                let message = format!("{} is for listeners with protocol = \"https\"", node.label());
                node.on_key().error(message, format!("add protocol = \"https\", or remove {}", node.label()));
            }
            if tls.is_none() { Some(None) } else { None }
        }
        (Some(Protocol::Https), None) => {
            // A value that was lost has been reported.
            if let Some(node) = protocol_node.filter(|_| !reader.has("tls") && !reader.has_misspelt("tls")) {
                let help = format!("add tls = {}", tls::LISTENER_EXAMPLE);
                node.error("`protocol` = \"https\" lacks `tls`, its certificates", help);
            }
            None
        }
        (_, tls) => tls.flatten().map(Some),
    };
    if let (Some(Protocol::Https), Some(Some(_)), Some(node)) = (protocol, &redirect, &redirect_node) {
        let help = "remove it, or put it in the listener of plain HTTP";
        node.on_key().error("`redirect_to_https` of a listener that speaks https already", help);
        // Where it would lead is no matter then.
        redirect = Some(None);
    }
    let max_connections = reader.optional("max_connections").and_then(|node| match node.as_text() {
        Some("none") => None,
        _ => node.or_word("none").integer(CONNECTIONS),
    });
    reader.done(&[]);
    Draft { max_connections, proxied_by, address, protocol, tls, redirect: reject.and(redirect) }
}

impl Draft {
    fn into_listener(self, target: &Target, findings: &Findings) -> Option<Listener> {
        let redirect_to_https = match self.redirect? {
            None => None,
            Some(Redirect::Port(port)) => Some(port),
            Some(Redirect::Only(span)) => target.port(span, findings)?,
        };
        self.protocol?;
        let Self { max_connections, proxied_by, .. } = self;
        Some(Listener { address: self.address?, tls: self.tls?, redirect_to_https, max_connections, proxied_by })
    }
}

/// Who may say for whom a connection is, where everybody has to. What is wrong with that is reported.
fn proxied_by(reader: &mut Reader<'_>, believed: &ClientKeys<'_>, context: &Context<'_>) -> Option<Vec<IpNet>> {
    let node = reader.optional("proxy_protocol");
    let words = [("off", false), ("required", true)];
    let is_required = node.as_ref().map_or(Some(false), |node| node.choice(&words, &[]));
    let from_node = reader.optional("proxy_protocol_from");
    let from = from_node.as_ref().and_then(|node| networks::list(node, context).ok());
    if let Some(from_node) = from_node.as_ref().filter(|_| is_required == Some(false)) {
        let message = "`proxy_protocol_from` is for listeners with proxy_protocol = \"required\"";
        from_node.on_key().error(message, "add proxy_protocol = \"required\", or remove proxy_protocol_from");
        return None;
    }
    let node = node.filter(|_| is_required == Some(true))?;
    match (&from, &from_node) {
        // A value that was lost has been reported.
        (None, None) if !reader.has("proxy_protocol_from") && !reader.has_misspelt("proxy_protocol_from") => {
            let message = "`proxy_protocol` = \"required\" lacks `proxy_protocol_from`, who may send the header";
            node.error(message, "add proxy_protocol_from = [\"10.0.0.0/8\"], with the addresses of the balancer");
        }
        (Some(from), Some(from_node)) if from.is_empty() => {
            let help = "name the balancer's addresses: whoever sends the header can be any client";
            from_node.error("`proxy_protocol_from` is empty, and so nobody could connect", help);
        }
        (Some(from), Some(from_node)) => warn_of_beliefs(from_node, from, believed),
        _ => {}
    }
    from
}

/// Networks with shorter prefixes than this are no balancer's.
const SHORTEST_PREFIX: u8 = 8;

fn warn_of_beliefs(node: &Node<'_>, from: &[IpNet], believed: &ClientKeys<'_>) {
    if from.iter().any(|network| network.prefix_len() < SHORTEST_PREFIX) {
        let help = "name the balancer's addresses only, or see to it that nobody else reaches this port";
        node.warning("`proxy_protocol_from` lists half the world, which can then be any client", help);
    }
    let written = |key: &Key<'_, Vec<IpNet>>| key.get().cloned().unwrap_or_default();
    let (trusted_proxies, allow) = (written(&believed.trusted_proxies), written(&believed.allow));
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
enum Target {
    None,
    Port(u16),
    /// Its port is the kernel's choice.
    AnyPort,
    Several,
    /// Some listener could not be read.
    Unknown,
}

impl Target {
    fn of(drafts: &[Draft]) -> Self {
        let unknown = |draft: &Draft| draft.protocol.is_none() || draft.address.is_none();
        let mut secure = drafts.iter().filter(|draft| draft.protocol == Some(Protocol::Https));
        match (secure.next(), secure.next()) {
            _ if drafts.iter().any(unknown) => Self::Unknown,
            (None, _) => Self::None,
            (Some(_), Some(_)) => Self::Several,
            (Some(draft), None) => match draft.address.map(|address| address.port()) {
                None | Some(0) => Self::AnyPort,
                Some(port) => Self::Port(port),
            },
        }
    }

    /// The port for the `true` at `span`.
    #[allow(clippy::option_option, reason = "the outer says whether there is one, the inner is what a listener has")]
    fn port(&self, span: Range<usize>, findings: &Findings) -> Option<Option<u16>> {
        let (message, help) = match self {
            Self::Port(port) => return Some(Some(*port)),
            Self::Unknown => return None,
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
        findings.push(Finding::absent_in_file(Some(span), message).help(help));
        None
    }
}

#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn redirect(node: &Node<'_>) -> Option<Option<Redirect>> {
    match node.as_boolean() {
        Some(true) => Some(Some(Redirect::Only(node.span()))),
        Some(false) => Some(None),
        None if node.is_integer() => node.integer(PORTS).map(|port| u16::try_from(port).ok().map(Redirect::Port)),
        None => {
            node.wrong_type("a boolean or a port", "true or 443");
            None
        }
    }
}

fn check_address(
    node: &Node<'_>,
    address: SocketAddr,
    seen: &[(SocketAddr, Range<usize>)],
    admin: Option<&Result<Admin, Reported>>,
) {
    if let Some((other, first)) = seen.iter().find(|(other, _)| collide(address, *other)) {
        let message = if *other == address {
            format!("two listeners have the address {address}")
        } else {
            format!("the listeners {other} and {address} are in each other's way")
        };
        let finding = Finding::error(node.span(), message).related("the first is at", first.clone());
        node.push(finding.help("give each its own port, or remove one"));
    }
    let of_admin = admin.and_then(|admin| admin.as_ref().ok()).map(|admin| admin.address);
    if of_admin.is_some_and(|admin| admin.port() != 0 && collide(address, admin)) {
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
