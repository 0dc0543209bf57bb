//! `[[upstream]]`

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

use super::names::{Name, name};
use super::{limit, tls};
use crate::balance::Strategy;
use crate::config::address::{self, ServerAddress};
use crate::config::certificates::CertificateFiles;
use crate::config::findings::{Finding, quoted};
use crate::config::model::{ServerSpec, Upstream, UpstreamProtocol};
use crate::config::reader::{Node, Reader};
use crate::config::token::with_causes;
use crate::limiter::Rate;
use crate::proxy_protocol::Version;
use crate::time::Span;

/// Servers of one upstream. The hash ring has points for each, and a choice may look at all of them.
const MAX_SERVERS: usize = 1_024;

const WEIGHTS: RangeInclusive<u64> = 1..=1_000;

/// At 1 every server would have to be exactly at the mean, so that a key could stick to none.
const HASH_BALANCES: RangeInclusive<f64> = 1.01..=100.0;

const HASH_BALANCE: f64 = 1.25;

const CONNECT_TIMEOUT: Span = Span::from_secs(5);

/// At the least a lost packet may already look like a dead server; beyond the most a client has given up.
const CONNECT_TIMEOUTS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(60);

/// How often one worker may connect to one server: far more than a server that keeps its connections ever sees.
const CONNECT_RATE: (u64, Span) = (2_000, Span::from_secs(1));

/// With a slower one a server that has closed its connections would seem to be gone.
const SLOWEST_CONNECT: Span = Span::from_secs(60);

/// Lowers one; its name also where the rest is wrong. `asks_for_clients`: whether a listener asks for certificates.
pub(super) fn lower(
    mut reader: Reader<'_>,
    asks_for_clients: bool,
    files: &CertificateFiles,
) -> (Option<Name>, Option<Upstream>) {
    let name = name(&mut reader, "app");
    let servers = reader.required("servers", "[\"127.0.0.1:9001\"]").and_then(|node| servers(&node));
    let balance_node = reader.optional("balance");
    let balance = match &balance_node {
        Some(node) => node.word().ok(),
        None => Some(Strategy::Hash),
    };
    let hash_key_node = reader.optional("hash_key");
    let hash_balance_node = reader.optional("hash_balance");
    if balance.is_some_and(|balance| !matches!(balance, Strategy::Hash)) {
        for node in [&hash_key_node, &hash_balance_node].into_iter().flatten() {
            let message = format!("{} has no effect: this upstream is not balanced by hash", node.label());
            node.warning(message, "remove it, or set balance = \"hash\"");
        }
    }
    let hash_key = match hash_key_node {
        Some(node) => limit::key(node, asks_for_clients),
        None => limit::client_ip(),
    };
    let hash_balance = match hash_balance_node {
        Some(node) => hash_balance(&node),
        None => Some(Some(HASH_BALANCE)),
    };
    let connect_timeout = match reader.optional("connect_timeout") {
        Some(node) => node.duration(&CONNECT_TIMEOUTS),
        None => Some(CONNECT_TIMEOUT),
    };
    let connect_rate = match reader.optional("connect_rate") {
        Some(node) => connect_rate(&node),
        None => Rate::new(CONNECT_RATE.0, CONNECT_RATE.1).ok(),
    };
    let protocol_node = reader.optional("protocol");
    let protocol = protocol_node.as_ref().map_or(Some(UpstreamProtocol::Http1), protocol);
    let tls_node = reader.optional("tls");
    let tls = tls_node.as_ref().map_or(Some(None), |node| tls::upstream(node, protocol, servers.as_deref(), files));
    if let Some(UpstreamProtocol::H2) = protocol {
        refuse_echo(servers.as_deref(), protocol_node.as_ref());
    }
    if let Some(Some(_)) = &tls {
        refuse_echo(servers.as_deref(), tls_node.as_ref());
    }
    let proxy_protocol = proxy_protocol(&mut reader, protocol, servers.as_deref());
    reader.done(&[]);
    let upstream = (|| {
        Some(Upstream {
            name: name.as_ref()?.text.clone(),
            servers: servers?,
            balance: balance?,
            hash_key: hash_key?,
            hash_balance: hash_balance?,
            connect_timeout: connect_timeout?,
            connect_rate: connect_rate?,
            protocol: protocol?,
            tls: tls?,
            proxy_protocol: proxy_protocol?,
        })
    })();
    (name, upstream)
}

fn connect_rate(node: &Node<'_>) -> Option<Rate> {
    let text = node.text("a rate in quotes", "\"2000/s\"")?;
    let rate = text.parse::<Rate>();
    let help = match &rate {
        Err(error) => with_causes(error),
        Ok(rate) if rate.window().as_nanos() / rate.limit() > SLOWEST_CONNECT.as_nanos() => {
            "one connection a minute (\"1/m\") is the least".to_owned()
        }
        Ok(rate) => return Some(*rate),
    };
    node.error(format!("{} is no rate of connections", quoted(text)), format!("{help}; or remove it for \"2000/s\""));
    None
}

fn protocol(node: &Node<'_>) -> Option<UpstreamProtocol> {
    if let Some(text @ ("http2" | "HTTP/2" | "http/2" | "HTTP2" | "h2c" | "grpc")) = node.as_text() {
        // Nearer to "http1" by its letters.
        node.error(format!("`protocol` cannot be {}", quoted(text)), "HTTP/2, as gRPC needs it, is \"h2\"");
        return None;
    }
    node.word().ok()
}

/// The version of the header that servers get, if any.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn proxy_protocol(
    reader: &mut Reader<'_>,
    protocol: Option<UpstreamProtocol>,
    servers: Option<&[ServerSpec]>,
) -> Option<Option<Version>> {
    let Some(node) = reader.optional("proxy_protocol") else { return Some(None) };
    let version = node.choice(&[("off", None), ("v1", Some(Version::V1)), ("v2", Some(Version::V2))], &[])?;
    if version.is_some() {
        refuse_echo(servers, Some(&node));
        if let Some(UpstreamProtocol::H2) = protocol {
            let help = "remove it; the servers learn of clients by X-Forwarded-For, request by request";
            node.error("`proxy_protocol` with protocol = \"h2\", of which one connection is for many clients", help);
            return None;
        }
    }
    Some(version)
}

/// Reports a setting that the servers inside this process do not have.
fn refuse_echo(servers: Option<&[ServerSpec]>, node: Option<&Node<'_>>) {
    let echo = servers.unwrap_or_default().iter().find(|server| matches!(server.address, ServerAddress::Echo(_)));
    if let (Some(echo), Some(node)) = (echo, node) {
        let message = format!("{} and the server {}, which speaks plain HTTP/1", node.label(), echo.address);
        node.on_key().error(message, format!("remove {}, or give the server an upstream of its own", node.label()));
    }
}

fn servers(node: &Node<'_>) -> Option<Vec<ServerSpec>> {
    let items = node.items("[\"127.0.0.1:9001\"]")?;
    if items.is_empty() {
        node.error("`servers` is empty", "name at least one server, like \"127.0.0.1:9001\" or \"echo:a\"");
        return None;
    }
    if items.len() > MAX_SERVERS {
        node.error(format!("`servers` has {} of them", items.len()), format!("it takes at most {MAX_SERVERS}"));
        return None;
    }
    let mut seen: HashMap<ServerAddress, Range<usize>> = HashMap::new();
    super::each(&items, |item| {
        let (spec, span) = server(item)?;
        if let Some(first) = seen.get(&spec.address) {
            let message = format!("the server {} is in the list twice", spec.address);
            let finding = Finding::error(span, message).related("the first is at", first.clone());
            item.push(finding.help("remove one; for a larger share use weight"));
            return None;
        }
        seen.insert(spec.address.clone(), span);
        Some(spec)
    })
}

/// `"host:port"`, or `{ address = "host:port", weight = 2 }`.
fn server(item: &Node<'_>) -> Option<(ServerSpec, Range<usize>)> {
    if let Some(text) = item.as_text() {
        return Some((ServerSpec { address: address::server(item, text).ok()?, weight: 1 }, item.span()));
    }
    let example = "\"127.0.0.1:9001\" or { address = \"127.0.0.1:9001\", weight = 2 }";
    let Some(mut reader) = item.as_table("a server") else {
        item.wrong_type("addresses in quotes", example);
        return None;
    };
    let node = reader.required("address", "\"127.0.0.1:9001\"");
    let weight = match reader.optional("weight") {
        Some(node) => node.integer(WEIGHTS),
        None => Some(1),
    };
    reader.done(&[]);
    let node = node?;
    let address = address::server(&node, node.text("an address in quotes", "\"127.0.0.1:9001\"")?).ok()?;
    Some((ServerSpec { address, weight: u32::try_from(weight?).ok()? }, node.span()))
}

#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn hash_balance(node: &Node<'_>) -> Option<Option<f64>> {
    match node.as_text() {
        Some("off") => Some(None),
        Some(_) => {
            node.wrong_type("a number or \"off\"", "1.25 or \"off\"");
            None
        }
        None => node.number(&HASH_BALANCES).map(Some),
    }
}
