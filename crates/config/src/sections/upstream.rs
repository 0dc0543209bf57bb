//! `[[upstream]]`

use std::collections::HashMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::in_flight::{self, MaxInFlight, PLACES};
use super::outages::{self, BreakerSpec, Eject, Health, HealthProtocol, Retry};
use super::tls;
use crate::address::{self, ServerAddress};
use crate::findings::{Finding, Reported, quoted};
use crate::form::{Form, HEAD_KEY, NAME};
use crate::key::key_of_head;
use crate::kind::{Context, ValueKind, by, count, duration, each, flag, list, number, size, word};
use crate::names::{self, Name};
use crate::reader::{Node, Reader};
use crate::section::{Declare, Key, Section, section};
use crate::token::with_causes;
use sluicegate_admission::KeyExpr;
use sluicegate_balance::{Service, Strategy};
use sluicegate_limiter::Rate;
use sluicegate_proxy_protocol::Version;
use sluicegate_time::Span;
use sluicegate_tls::{Alpn, UpstreamSettings, is_server_name};
use sluicegate_transport::Protocol;

section! {
    /// `[[upstream]]`: servers of one service.
    pub struct UpstreamSpec, read as UpstreamKeys {
        /// Its name, for routes to refer to.
        name: Arc<str> = by(NAME, |node, _| names::read(node, "app"), ToString::to_string).required("\"app\""),
        /// Where requests go; no address twice.
        servers: Vec<ServerSpec> = list(SERVERS, servers, ServerSpec::to_string).required("[\"127.0.0.1:9001\"]"),
        /// How a server is chosen.
        balance: Strategy = word().or("hash"),
        /// The key that makes requests stick; where a request lacks it, the client's address does.
        hash_key: KeyExpr = by(HEAD_KEY, key_of_head, KeyExpr::to_string).or("client-ip"),
        /// No server gets more than this share of the mean load.
        hash_balance: Option<f64> = number(HASH_BALANCES).or_word("off").or("1.25"),
        /// How long a connect to a server may take, the TLS handshake included.
        connect_timeout: Span = duration(CONNECT_TIMEOUTS).or("5s"),
        /// How often one worker may connect to one server: by default, far more than one that keeps its connections ever
        /// sees.
        connect_rate: Rate = by(Form::Rate, connect_rate, Rate::to_string).or("2000/s"),
        /// The protocol that the servers speak.
        protocol: Protocol = by(Form::words::<Protocol>(), protocol, |own| own.word().to_owned()).or("http1"),
        /// The largest head of a request that its servers take; one above is answered with 431.
        max_head_size: Option<usize> = size(HEAD_SIZES).or_word("none").or("none"),
        /// The header that each connection to a server begins with, so that it learns the client's address.
        proxy_protocol: Option<Version> = word().or_word("off").or("off"),
        /// TLS to the servers.
        tls: Option<UpstreamSettings> = tls::UpstreamTls.or("false"),
        /// A server that fails is given no requests for a while. `{}` is on, with the defaults below.
        eject: Option<Eject> = by(Form::Table(Eject::rows), outages::eject, Eject::to_string).or_word("off").or("{}"),
        /// Servers are asked whether they work.
        health: Option<Health> = by(Form::Table(Health::rows), outages::health, Health::to_string).or_word("off").or("off"),
        /// A server that comes back gets its share in ten steps over this time.
        slow_start: Option<Span> = duration(SLOW_STARTS).or_word("off").or("off"),
        /// Requests at its servers, of all workers together.
        max_in_flight: Option<MaxInFlight> = by(in_flight::FORM, in_flight::max_in_flight, MaxInFlight::to_string).or_word("none").or("none"),
        /// Requests at each server.
        server_max_in_flight: Option<u64> = count(PLACES).or_word("none").or("none"),
        /// Requests that wait for a place at once.
        max_pending: u32 = count(0..=100_000).or("128"),
        /// The key by which requests that wait at the upstream have turns; where a request lacks it, by the client's
        /// address.
        fair_key: KeyExpr = by(HEAD_KEY, key_of_head, KeyExpr::to_string).or("client-ip"),
        /// How long one waits.
        pending_timeout: Span = duration(PENDING_TIMEOUTS).or("1s"),
        /// A request that fails is sent to another server.
        retry: Option<Retry> = by(Form::Table(Retry::rows), outages::retry, Retry::to_string).or_word("off").or("off"),
        /// While too many requests fail, nothing is sent but a few probes.
        breaker: Option<BreakerSpec> = by(Form::Table(BreakerSpec::rows), outages::breaker, BreakerSpec::to_string).or_word("off").or("off"),
    }
}

section! {
    /// One of `servers`.
    #[derive(Eq)]
    pub struct ServerSpec, read as ServerKeys {
        /// Where it is.
        address: ServerAddress = by(ADDRESS, server_address, ToString::to_string).required("\"127.0.0.1:9001\""),
        /// Its share of the requests, beside the other servers' weights.
        weight: u32 = count(1..=1_000).or("1"),
        /// Whether it gets requests. "drain": no new ones, and checks of its health go on; "off": neither.
        state: Service = word().or("up"),
        /// Whether it gets requests only while none of the others can.
        backup: bool = flag().or("false"),
    }
}

/// Servers of one upstream. The hash ring has points for each, and a choice may look at all of them.
const MAX_SERVERS: usize = 1_024;

const ADDRESS: Form = Form::Text("a host and a port, such as \"127.0.0.1:9001\", or \"echo:NAME\"");
const SERVERS: Form = Form::List(&Form::Either(&[ADDRESS, Form::Table(ServerSpec::rows)]), 1, MAX_SERVERS);

/// At 1 every server would have to be exactly at the mean, so that a key could stick to none.
const HASH_BALANCES: RangeInclusive<f64> = 1.01..=100.0;

/// At the least a lost packet may already look like a dead server; beyond the most a client has given up.
const CONNECT_TIMEOUTS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(60);

const HEAD_SIZES: RangeInclusive<usize> = 1024..=1024 * 1024;

const SLOW_STARTS: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3600);

const PENDING_TIMEOUTS: RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(3600);

/// With a slower one a server that has closed its connections would seem to be gone.
const SLOWEST_CONNECT: Span = Span::from_secs(60);

/// Reads one; its name also where the rest is wrong.
pub(crate) fn read(reader: Reader<'_>, context: &Context<'_>) -> (Option<Name>, Option<UpstreamSpec>) {
    let mut keys = UpstreamSpec::read_keys(reader, context);
    let name = keys.name.node.as_ref().and_then(Name::of);
    warn_of_unused(&keys);
    warn_of_no_line(&keys);
    let sound = [refuse_what_echo_lacks(&keys), check_proxy_protocol(&keys), check_backups(&keys), check_health(&keys)];
    let is_sound = Reported::none_of(sound.into_iter().filter_map(Result::err)).and(complete_tls(&mut keys));
    (name, is_sound.and_then(|()| UpstreamSpec::of(keys)).ok())
}

/// Keys of one strategy that are written beside another.
fn warn_of_unused(keys: &UpstreamKeys<'_>) {
    let by_hash = keys.balance.get().is_none_or(|balance| *balance == Strategy::Hash);
    for node in [&keys.hash_key.node, &keys.hash_balance.node].into_iter().flatten().filter(|_| !by_hash) {
        let message = format!("{} has no effect: this upstream is not balanced by hash", node.label());
        node.warning(message, "remove it, or set balance = \"hash\"");
    }
}

/// Keys of the line before places, of which there are any number. With HTTP/2 requests with large heads wait too.
fn warn_of_no_line(keys: &UpstreamKeys<'_>) {
    let without_caps = keys.max_in_flight.get() == Some(&None) && keys.server_max_in_flight.get() == Some(&None);
    let waits_alone = keys.protocol.get() == Some(&Protocol::Http2);
    let timeout = keys.pending_timeout.node.as_ref().filter(|_| !waits_alone);
    for node in [keys.max_pending.node.as_ref(), timeout].into_iter().flatten().filter(|_| without_caps) {
        let message = format!("{} has no effect: nothing waits where there are any number of places", node.label());
        node.warning(message, "remove it, or set max_in_flight or server_max_in_flight");
    }
}

/// The servers inside this process speak plain HTTP/1.
fn refuse_what_echo_lacks(keys: &UpstreamKeys<'_>) -> Result<(), Reported> {
    let mut servers = keys.servers.get().into_iter().flatten();
    let Some(echo) = servers.find(|server| matches!(server.address, ServerAddress::Echo(_))) else { return Ok(()) };
    let refused = [
        keys.protocol.node.as_ref().filter(|_| keys.protocol.get() == Some(&Protocol::Http2)),
        keys.proxy_protocol.node.as_ref().filter(|_| matches!(keys.proxy_protocol.get(), Some(Some(_)))),
        keys.tls.node.as_ref().filter(|_| matches!(keys.tls.get(), Some(Some(_)))),
    ];
    let refuse = |node: &Node<'_>| {
        let message = format!("{} and the server {}, which speaks plain HTTP/1", node.label(), echo.address);
        let help = format!("remove {}, or give the server an upstream of its own", node.label());
        node.on_key().error(message, help)
    };
    Reported::none_of(refused.into_iter().flatten().map(refuse))
}

fn check_proxy_protocol(keys: &UpstreamKeys<'_>) -> Result<(), Reported> {
    match (keys.proxy_protocol.get(), keys.protocol.get(), &keys.proxy_protocol.node) {
        (Some(Some(_)), Some(Protocol::Http2), Some(node)) => {
            let help = "remove it; the servers learn of clients by X-Forwarded-For, request by request";
            let message = "`proxy_protocol` with protocol = \"h2\", of which one connection is for many clients";
            Err(node.error(message, help))
        }
        _ => Ok(()),
    }
}

/// A backup stands in for others: it has to have some.
fn check_backups(keys: &UpstreamKeys<'_>) -> Result<(), Reported> {
    if let (Some(servers), Some(node)) = (keys.servers.get(), &keys.servers.node)
        && servers.iter().all(|server| server.backup)
    {
        let message = "every server is a backup: there is none that they stand in for";
        return Err(node.error(message, "remove `backup = true` from those that are to get requests"));
    }
    Ok(())
}

/// Reports what the upstream's servers cannot be asked.
fn check_health(keys: &UpstreamKeys<'_>) -> Result<(), Reported> {
    match (keys.health.get(), &keys.health.node, keys.protocol.get()) {
        (Some(Some(health)), Some(node), Some(Protocol::Http1)) if health.protocol == HealthProtocol::Grpc => {
            let message = "`health` by gRPC, and the servers speak HTTP/1";
            Err(node.error(message, "set protocol = \"h2\" of the upstream, or health = { path = \"/healthz\" }"))
        }
        _ => Ok(()),
    }
}

/// Asks for the protocol by ALPN, and reports a host that no certificate can be for.
fn complete_tls(keys: &mut UpstreamKeys<'_>) -> Result<(), Reported> {
    let Key { value: Ok(Some(settings)), node: Some(node) } = &mut keys.tls else { return Ok(()) };
    let mut hosts = keys.servers.value.iter().flatten().filter_map(|server| match &server.address {
        ServerAddress::Tcp { host, .. } => Some(host),
        ServerAddress::Echo(_) => None,
    });
    if let (None, Some(host)) = (&settings.server_name, hosts.find(|host| !is_server_name(host))) {
        let help = "say what the certificate is for: tls = { server_name = \"app.internal\" }";
        return Err(node.error(format!("no certificate can be for {}", quoted(host)), help));
    }
    settings.alpn = match keys.protocol.value? {
        Protocol::Http1 => Alpn::Http1,
        Protocol::Http2 => Alpn::Http2,
    };
    Ok(())
}

fn connect_rate(node: &Node<'_>, _: &Context<'_>) -> Result<Rate, Reported> {
    let text = node.string("a rate in quotes", "\"2000/s\"")?;
    let help = match text.parse::<Rate>() {
        Err(error) => with_causes(&error),
        Ok(rate) if rate.window().as_nanos() / rate.limit() > SLOWEST_CONNECT.as_nanos() => {
            "one connection a minute (\"1/m\") is the least".to_owned()
        }
        Ok(rate) => return Ok(rate),
    };
    let message = format!("invalid connection rate {}", quoted(text));
    Err(node.error(message, format!("{help}; or remove it for \"2000/s\"")))
}

fn protocol(node: &Node<'_>, _: &Context<'_>) -> Result<Protocol, Reported> {
    if let Some(text @ ("http2" | "HTTP/2" | "http/2" | "HTTP2" | "h2c" | "grpc")) = node.as_text() {
        // Nearer to "http1" by its letters.
        let message = format!("`protocol` cannot be {}", quoted(text));
        return Err(node.error(message, "HTTP/2, as gRPC needs it, is \"h2\""));
    }
    node.word()
}

fn servers(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<ServerSpec>, Reported> {
    let items = node.array("[\"127.0.0.1:9001\"]")?;
    if items.is_empty() {
        let help = "name at least one server, like \"127.0.0.1:9001\" or \"echo:a\"";
        return Err(node.error("`servers` is empty", help));
    }
    if items.len() > MAX_SERVERS {
        let message = format!("`servers` has {} of them", items.len());
        return Err(node.error(message, format!("it takes at most {MAX_SERVERS}")));
    }
    let mut seen: HashMap<ServerAddress, Range<usize>> = HashMap::new();
    each(&items, |item| {
        let (spec, span) = server(item, context)?;
        if let Some(first) = seen.get(&spec.address) {
            let message = format!("the server {} is in the list twice", spec.address);
            let finding = Finding::error(span, message).related("the first is at", first.clone());
            return Err(item.report(finding.help("remove one; for a larger share use weight")));
        }
        seen.insert(spec.address.clone(), span);
        Ok(spec)
    })
}

/// `"host:port"`, or `{ address = "host:port", weight = 2 }`; with its place.
fn server(item: &Node<'_>, context: &Context<'_>) -> Result<(ServerSpec, Range<usize>), Reported> {
    if let Some(text) = item.as_text() {
        let (weight, state, backup) = (1, Service::Up, false);
        return Ok((ServerSpec { address: address::server(item, text)?, weight, state, backup }, item.span()));
    }
    let example = "\"127.0.0.1:9001\" or { address = \"127.0.0.1:9001\", weight = 2 }";
    let reader = item.as_table("a server").ok_or_else(|| item.wrong_type("addresses in quotes", example))?;
    let keys = ServerSpec::read_keys(reader, context);
    let span = keys.address.node.as_ref().map_or_else(|| item.span(), Node::span);
    Ok((ServerSpec::of(keys)?, span))
}

fn server_address(node: &Node<'_>, _: &Context<'_>) -> Result<ServerAddress, Reported> {
    address::server(node, node.string("an address in quotes", "\"127.0.0.1:9001\"")?)
}

impl fmt::Display for ServerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, weight, state, backup } = self;
        write!(f, "{address}")?;
        let weight = (*weight != 1).then(|| format!("weight {weight}"));
        let state = (*state != Service::Up).then(|| state.word().to_owned());
        let notes: Vec<_> = [weight, state, backup.then(|| "backup".to_owned())].into_iter().flatten().collect();
        if notes.is_empty() { Ok(()) } else { write!(f, " ({})", notes.join(", ")) }
    }
}
