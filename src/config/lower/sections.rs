//! `[server]`, `[log]`, `[client]`, `[admin]`.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::{address, networks};
use crate::admission::{AddressHeader, ClientRules};
use crate::config::findings::quoted;
use crate::config::model::{Accepting, AccessFormat, Admin, Log, LogFormat, RateHeaders, Server, Traceparent};
use crate::config::nearest::nearest;
use crate::config::reader::{Node, Reader};
use crate::limiter::{Bound, Rate, TimerWheel};
use crate::time::Span;

/// Default of `shutdown_grace`.
const SHUTDOWN_GRACE: Span = Span::from_secs(30);

/// Default of the server's `timeout`.
const SERVER_TIMEOUT: Span = Span::from_secs(60);

const HEAD_TIMEOUT: Span = Span::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Span = Span::from_secs(75);
const BODY_TIMEOUT: Span = Span::from_secs(60);
const TUNNEL_TIMEOUT: Span = Span::from_secs(3_600);
const MAX_HEAD_SIZE: usize = 64 << 10;
const MAX_HEAD_FIELDS: usize = 128;
const HANDSHAKE_TIMEOUT: Span = Span::from_secs(10);
const MAX_HANDSHAKES: usize = 1_024;
const MAX_STREAMS: u32 = 128;

/// Most worker threads.
const MAX_WORKERS: u64 = 1_024;

/// A timeout of an exchange. What must last longer says "none".
pub(super) const TIMEOUTS: RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(24 * 3_600);

/// A timeout of a connection. One lost packet may hold it up for longer than the least.
const CONNECTION_TIMEOUTS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(24 * 3_600);

/// Heads of browsers with their cookies reach a few KiB; each connection may hold as much memory as the most.
const HEAD_SIZES: RangeInclusive<u64> = 4 << 10..=1 << 20;

/// Fields of one head; each is looked at with each request.
const HEAD_FIELDS: RangeInclusive<u64> = 1..=256;

/// Whoever shakes hands has sent nothing yet that is worth waiting for.
const HANDSHAKE_TIMEOUTS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(300);

/// Each holds a connection and its buffers.
const HANDSHAKES: RangeInclusive<u64> = 1..=1_000_000;

/// Requests of one HTTP/2 connection, each of which may hold buffers.
const STREAMS: RangeInclusive<u64> = 1..=1_000;

/// Connections at once. Each has its sockets and some buffers.
pub(super) const CONNECTIONS: RangeInclusive<u64> = 1..=10_000_000;

/// Requests of one connection.
const REQUESTS: RangeInclusive<u64> = 1..=4_000_000_000;

/// From no body at all; what must be larger says "none".
pub(super) const BODY_SIZES: RangeInclusive<u64> = 0..=1 << 40;

/// A drain that waits longer than this is a process that does not stop.
const GRACES: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(24 * 3_600);

/// How much of an IPv6 address may be the client.
const IPV6_PREFIXES: RangeInclusive<u64> = 1..=128;

/// How much of an IPv6 address is the client, by default: what a provider gives to one customer.
const IPV6_PREFIX: u8 = 64;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// `[server]`
pub(super) fn server(mut reader: Reader<'_>) -> Server {
    let workers = reader.optional("workers").and_then(|node| workers(&node));
    let watch = reader.optional("watch").and_then(|node| node.boolean());
    let shutdown_grace = reader.optional("shutdown_grace").and_then(|node| node.duration(&GRACES));
    let rate_headers = reader.optional("rate_headers").and_then(|node| node.word());
    let traceparent = reader.optional("traceparent").and_then(|node| node.word());
    let timeout = reader.optional("timeout").and_then(|node| node.duration_or_none(&TIMEOUTS));
    let head_timeout = reader.optional("head_timeout").and_then(|node| node.duration(&CONNECTION_TIMEOUTS));
    let keep_alive_timeout = reader.optional("keep_alive_timeout").and_then(|node| node.duration(&CONNECTION_TIMEOUTS));
    let body_timeout = reader.optional("body_timeout").and_then(|node| node.duration(&CONNECTION_TIMEOUTS));
    let tunnel_timeout = reader.optional("tunnel_timeout").and_then(|node| node.duration_or_none(&CONNECTION_TIMEOUTS));
    let max_head_size = reader.optional("max_head_size").and_then(|node| node.size(&HEAD_SIZES));
    let max_head_fields = reader.optional("max_head_fields").and_then(|node| node.integer(HEAD_FIELDS));
    let max_body_size = reader.optional("max_body_size").and_then(|node| node.size_or_none(&BODY_SIZES));
    let handshake_timeout = reader.optional("handshake_timeout").and_then(|node| node.duration(&HANDSHAKE_TIMEOUTS));
    let max_handshakes = reader.optional("max_handshakes").and_then(|node| node.integer(HANDSHAKES));
    let max_streams = reader.optional("max_streams").and_then(|node| node.integer(STREAMS));
    let max_connections = reader.optional("max_connections").and_then(|node| match node.as_text() {
        Some("auto") => None,
        Some(_) => {
            node.wrong_type("\"auto\" or a number", "max_connections = \"auto\" or max_connections = 10000");
            None
        }
        None => node.integer(CONNECTIONS),
    });
    let max_requests = reader.optional("max_requests").and_then(|node| or_none(&node, REQUESTS));
    reader.done(&[]);
    let count = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
    Server {
        workers,
        watch: watch.unwrap_or(true),
        shutdown_grace: shutdown_grace.unwrap_or(SHUTDOWN_GRACE),
        rate_headers: rate_headers.unwrap_or(RateHeaders::Auto),
        traceparent: traceparent.unwrap_or(Traceparent::Pass),
        timeout: timeout.unwrap_or(Some(SERVER_TIMEOUT)),
        head_timeout: head_timeout.unwrap_or(HEAD_TIMEOUT),
        keep_alive_timeout: keep_alive_timeout.unwrap_or(KEEP_ALIVE_TIMEOUT),
        body_timeout: body_timeout.unwrap_or(BODY_TIMEOUT),
        tunnel_timeout: tunnel_timeout.unwrap_or(Some(TUNNEL_TIMEOUT)),
        max_head_size: count(max_head_size).unwrap_or(MAX_HEAD_SIZE),
        max_head_fields: count(max_head_fields).unwrap_or(MAX_HEAD_FIELDS),
        max_body_size: max_body_size.unwrap_or(None),
        handshake_timeout: handshake_timeout.unwrap_or(HANDSHAKE_TIMEOUT),
        max_handshakes: count(max_handshakes).unwrap_or(MAX_HANDSHAKES),
        max_streams: max_streams.and_then(|streams| u32::try_from(streams).ok()).unwrap_or(MAX_STREAMS),
        max_connections,
        max_requests: max_requests.and_then(|requests| u32::try_from(requests).ok()),
    }
}

fn workers(node: &Node<'_>) -> Option<usize> {
    match node.as_text() {
        Some("auto") => None,
        Some(_) => {
            node.wrong_type("\"auto\" or a number", "workers = \"auto\" or workers = 4");
            None
        }
        None => node.integer(1..=MAX_WORKERS).and_then(|workers| usize::try_from(workers).ok()),
    }
}

/// `[log]`
pub(super) fn log(mut reader: Reader<'_>) -> Log {
    let level = reader.optional("level").and_then(|node| level(&node));
    let format = reader.optional("format").and_then(|node| node.word());
    let access = reader.optional("access").and_then(|node| node.word());
    reader.done(&[]);
    Log {
        level: level.unwrap_or_else(|| "info".to_owned()),
        format: format.unwrap_or(LogFormat::Auto),
        access: access.unwrap_or(AccessFormat::Off),
    }
}

/// A level, or a filter such as `"info,sluicegate::proxy=debug"`. A lone word that is no level would be taken for a
/// target by the filter's own parser, and silence everything else: so it is checked here.
fn level(node: &Node<'_>) -> Option<String> {
    let text = node.text("a level in quotes", "\"info\"")?;
    for part in text.split(',').map(str::trim).filter(|part| !part.contains(['=', '['])) {
        if !LEVELS.contains(&part) {
            let help = nearest(part, LEVELS).map_or_else(
                || format!("use one of {}, or a filter like \"info,sluicegate::proxy=debug\"", LEVELS.join(", ")),
                |near| format!("did you mean \"{near}\"?"),
            );
            node.error(format!("`level` cannot be {}", quoted(part)), help);
            return None;
        }
    }
    if let Err(error) = text.parse::<tracing_subscriber::EnvFilter>() {
        node.error(
            format!("{} is no filter: {error}", quoted(text)),
            "write a level, or \"info,sluicegate::proxy=debug\"",
        );
        return None;
    }
    Some(text.to_owned())
}

/// `[client]`: how clients are found, and whose connections are closed.
pub(super) fn client(mut reader: Reader<'_>) -> (ClientRules, Vec<IpNet>, Accepting) {
    let trusted_proxies = reader
        .optional("trusted_proxies")
        .and_then(|node| node.items("[\"10.0.0.0/8\"]"))
        .and_then(|items| super::each(&items, |item| networks::network(item, "")))
        .unwrap_or_default();
    let deny = reader.optional("deny").and_then(|node| networks::list(&node)).unwrap_or_default();
    let address_header = reader.optional("address_header").and_then(|node| node.word());
    let ipv6_prefix = reader.optional("ipv6_prefix").and_then(|node| node.integer(IPV6_PREFIXES));
    let allow_node = reader.optional("allow");
    let allow = allow_node.as_ref().and_then(networks::list).unwrap_or_default();
    if let (Some(node), true) = (&allow_node, allow.is_empty()) {
        node.warning("`allow` names nobody, and so everybody is", "name networks, or remove it");
    }
    let max_connections = reader.optional("max_connections").and_then(|node| or_none(&node, CONNECTIONS));
    let connection_rate = reader.optional("connection_rate").and_then(|node| connection_rate(&node));
    reader.done(&[]);
    let rules = ClientRules {
        trusted_proxies,
        address_header: address_header.unwrap_or(AddressHeader::XForwardedFor),
        ipv6_prefix: ipv6_prefix.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(IPV6_PREFIX),
    };
    (rules, deny, Accepting { allow, max_connections, connection_rate })
}

/// A number within a range, or `"none"`.
pub(super) fn or_none(node: &Node<'_>, range: RangeInclusive<u64>) -> Option<u64> {
    match node.as_text() {
        Some("none") => None,
        Some(_) => {
            node.wrong_type("a number or \"none\"", "100 or \"none\"");
            None
        }
        None => node.integer(range),
    }
}

fn connection_rate(node: &Node<'_>) -> Option<Rate> {
    let text = node.text("a rate in quotes", "\"20/s\"")?;
    if text == "none" {
        return None;
    }
    let rate = text.parse::<Rate>();
    let fits = rate.as_ref().ok().filter(|rate| TimerWheel::new(&[**rate], None, Bound::Sliding).is_ok());
    if fits.is_none() {
        let help = match &rate {
            Err(error) => super::with_causes(error),
            Ok(_) => "write a rate such as \"20/s\" or \"600/m\"".to_owned(),
        };
        node.error(format!("{} is no rate of connections", quoted(text)), format!("{help}; or \"none\""));
    }
    fits.copied()
}

/// `[admin]`
pub(super) fn admin(mut reader: Reader<'_>) -> Option<Admin> {
    let address = reader.required("address", "\"127.0.0.1:9900\"");
    let address = address.and_then(|node| address::listening(&node, "127.0.0.1:9900"));
    reader.done(&[]);
    address.map(|address| Admin { address })
}
