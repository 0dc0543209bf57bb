//! The keys of a fleet without a store.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::{FleetKeys, server};
use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, each};
use crate::reader::{Node, Reader};
use sluicegate_fleet::{Address, PeerAddress};
use sluicegate_time::Span;

pub(super) const PEER: Form = Form::Text("an IP address and a port");
pub(super) const PEERS: Form = Form::List(&Form::Text("`IP:PORT`, or `dns:NAME:PORT`"), 0, MAX_PEERS);

/// Below it datagrams carry a key each; above it the others hear too late for a limit that is worth sharing.
pub(super) const INTERVALS: RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(1);

/// Places where others may be found: those that are found name all of them.
const MAX_PEERS: usize = 64;

const EXAMPLE: &str = "\"10.0.0.1:7946\"";

words! {
    /// The gateways that one tells in a fleet without a store.
    pub enum Topology default Full {
        /// Each gateway tells each other one what it has admitted.
        Full = "full",
    }
}

words! {
    /// How the gateways of a fleet without a store send each other messages.
    pub enum Transport default Udp {
        /// Each in a datagram of at most 1,200 bytes, again until it is acknowledged.
        Udp = "udp",
    }
}

/// Reports keys of a fleet with a store and of one without that stand together, and what lacks.
pub(super) fn check(keys: &FleetKeys<'_>, reader: &Reader<'_>) -> Result<(), Reported> {
    let (store, peers) = (&keys.store.node, &keys.peers.node);
    let of_store = [
        &keys.ca.node,
        &keys.server_name.node,
        &keys.username.node,
        &keys.password_file.node,
        &keys.prefix.node,
        &keys.deadline.node,
        &keys.on_failure.node,
    ];
    let of_peers = [&keys.listen.node, &keys.topology.node, &keys.transport.node, &keys.interval.node];
    let refuse = |help: &'static str| {
        move |node: &Node<'_>| node.on_key().error(format!("{} has no effect here", node.label()), help)
    };
    match (store, peers) {
        (Some(_), Some(peers)) => {
            let help =
                "keep `store` where exactness or many gateways matter, or `peers` to run none; see docs/fleet.md";
            Err(peers.on_key().error("`peers` beside `store`: gateways share limits in one way", help))
        }
        (Some(_), None) => {
            Reported::none_of(of_peers.into_iter().flatten().map(refuse("it is of a fleet without a store: remove it")))
        }
        (None, Some(_)) => {
            let others = of_store.into_iter().flatten().map(refuse("it is of a fleet with a store: remove it"));
            let lacks = keys
                .listen
                .node
                .is_none()
                .then(|| reader.lacks("listen", "\"10.0.0.1:7946\", at which the others reach this gateway"));
            let apart = foreign(keys).map(|(node, address)| {
                let message = format!(
                    "`peers` has {} beside `listen` of the other kind, IPv4 or IPv6: it cannot be reached",
                    quoted(&address)
                );
                node.error(message, "write addresses of one kind")
            });
            Reported::none_of(others.chain(lacks).chain(apart))
        }
        (None, None) => {
            Err(reader
                .lacks("store", "\"redis://10.0.0.5:6379/0\", or the other gateways: peers = [\"10.0.0.2:7946\"]"))
        }
    }
}

/// An address that cannot be reached from `listen`.
fn foreign<'k, 't>(keys: &'k FleetKeys<'t>) -> Option<(&'k Node<'t>, String)> {
    let (Ok(peers), Ok(Some(listen)), Some(node)) = (&keys.peers.value, &keys.listen.value, &keys.peers.node) else {
        return None;
    };
    let is_foreign =
        |peer: &&PeerAddress| matches!(peer, PeerAddress::Fixed(address) if address.is_ipv4() != listen.is_ipv4());
    Some((node, peers.iter().find(is_foreign)?.to_string()))
}

/// `peers`
pub(super) fn addresses(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<PeerAddress>, Reported> {
    let items = node.array("[\"10.0.0.1:7946\", \"10.0.0.2:7946\"]")?;
    if items.is_empty() || items.len() > MAX_PEERS {
        let help = format!("write 1 to {MAX_PEERS} addresses; those that are found name the others");
        return Err(node.error(format!("`peers` has {} addresses", items.len()), help));
    }
    each(&items, |item| {
        let text = item.string("an address in quotes", EXAMPLE)?;
        if let Some(rest) = text.strip_prefix("dns:") {
            // A port is written: there is no usual one.
            if let Some(Address::Tcp { host, port }) = server(rest, 0).filter(|_| !rest.starts_with('['))
                && port > 0
            {
                return Ok(PeerAddress::Dns { host, port });
            }
        } else if let Ok(address) = text.parse::<SocketAddr>()
            && is_place(address)
        {
            return Ok(PeerAddress::Fixed(address));
        }
        let help = "write \"10.0.0.1:7946\", \"[fd00::1]:7946\", or \"dns:gateways.internal:7946\"";
        Err(item.error(format!("invalid address of a gateway {}", quoted(text)), help))
    })
}

/// `listen`
pub(super) fn listen(node: &Node<'_>, _: &Context<'_>) -> Result<SocketAddr, Reported> {
    let text = node.string("an address in quotes", EXAMPLE)?;
    match text.parse::<SocketAddr>() {
        Ok(address) if is_place(address) => Ok(address),
        Ok(address) if address.ip().is_unspecified() => {
            let message =
                format!("`listen` = {} is no address at which the others can reach this gateway", quoted(text));
            Err(node.error(message, "write the one that they use, such as \"10.0.0.1:7946\": they know it by that"))
        }
        _ => {
            let message = format!("invalid address {}", quoted(text));
            Err(node.error(message, "write an IP address and a port: \"10.0.0.1:7946\", or \"[fd00::1]:7946\""))
        }
    }
}

/// Whether a datagram can be sent there, and one gateway gets it.
fn is_place(address: SocketAddr) -> bool {
    let is_broadcast = matches!(address.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    // One with a zone means something on this machine alone.
    let has_zone = matches!(address, SocketAddr::V6(address) if address.scope_id() != 0);
    address.port() > 0 && !has_zone && !address.ip().is_unspecified() && !address.ip().is_multicast() && !is_broadcast
}
