//! Sends an admitted request to a server of its upstream. The only place that retries.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::broken::{Broken, Late};
use super::client::Client;
use super::connection::Connection;
use super::edited::{Edited, Whose, write_edits};
use super::exchange::Exchange;
use super::headers::{self, Also, Forwarding};
use super::pacing;
use super::parts::{RequestFacts, Room};
use super::relay::{Bounds, End, Relay};
use super::relay_head::offered_protocols;
use super::scratch::Scratch;
use super::snapshot::RouteEdits;
use super::variables::Known;
use super::watch::poll_gone;
use super::worker::View;
use crate::admission::{AddressHeader, Admitted, address_of};
use crate::balance::Facts;
use crate::edit::FieldEdits;
use crate::http1::{Fault, Framing, HeadWriter, Version};
use crate::proxy_protocol::Endpoints;
use crate::time::{Span, Tick};
use crate::upstream::{ConnectError, Leased, ProxyHeader, Server, Turn};

/// To how many servers a connect is tried for one request.
const MAX_CONNECT_TRIES: usize = 3;

/// Sends the request and relays the response. Only what admission let through gets here.
///
/// A server that cannot be reached was sent nothing, so another one is tried. A connection that had been idle and turns
/// out to be dead is replaced once, if nothing was written or the request may be repeated, and all of it is still here.
/// So is a request sent again, once, that a server of HTTP/2 would not look at, whatever it was.
pub async fn forward(
    exchange: &mut Exchange,
    client: &mut Client,
    admitted: &Admitted,
    upstream: usize,
) -> Result<(End, Leased), Broken> {
    let view = Rc::clone(&exchange.view);
    let bounds = bounds(exchange, admitted);
    if view.snapshot.routes.get(admitted.route()).is_some_and(|route| route.pacing.is_some()) {
        Box::pin(pacing::begin(exchange, client, admitted, bounds.deadline)).await?;
    }
    let mut pick = Pick::new(&view, exchange, admitted, upstream);
    loop {
        let (server, mut lease) = match pick.reuse(exchange, client) {
            Some(kept) => kept,
            // Boxed, since it is rare and large, and every connection would carry the room for it.
            None => Box::pin(pick.connection(exchange, client, bounds.deadline)).await?,
        };
        if exchange.scratch.upload.content() > bounds.max_body {
            return Err(Broken::TooLarge);
        }
        // For each attempt anew, from what the client sent: more of it may have come, and of what was made for an earlier
        // attempt parts may be gone.
        let to_h2 = lease.stream().is_single_use();
        if to_h2
            && exchange.request().authority().is_none_or(str::is_empty)
            && edits(&view, admitted).is_none_or(|edits| edits.host.is_none())
        {
            // It has nothing to say it by (RFC 9113, 8.3.1).
            return Err(Broken::Request(Fault::HostMissing));
        }
        let is_paced = exchange.scratch.pacing.is_some();
        if is_paced {
            // More of it may have come while there was no connection.
            pacing::charge_ahead(exchange);
        }
        write_request(exchange, &view, admitted, to_h2);
        let is_whole = exchange.scratch.upload.is_complete();
        exchange.story.attempts += 1;
        let is_at_once = lease.is_reused() && !admitted.waited() && !is_paced && pick.excluded.is_empty();
        let sent_at = if is_at_once { exchange.arrived } else { exchange.worker.clock.now() };
        let mut relay = Relay::new(exchange, client, &mut lease, &bounds, sent_at);
        match poll_fn(|cx| relay.poll(cx)).await {
            Ok(end) => return Ok((end, lease)),
            Err(Broken::Silent { written }) if lease.is_reused() && !pick.fresh_only => {
                let is_repeatable = !written || exchange.scratch.request.is_idempotent();
                if !is_whole || !is_repeatable {
                    return Err(Broken::Silent { written });
                }
                if let Some(meters) = view.meters.upstream(upstream) {
                    meters.stale.inc();
                }
                exchange.scratch.outbound.clear();
                exchange.scratch.head_end.reset();
                pick.again_freshly(server);
            }
            // Whatever its method is, and however the stream was come by; once.
            Err(Broken::Unread) if is_whole && !pick.fresh_only => {
                if let Some(meters) = view.meters.upstream(upstream) {
                    meters.stale.inc();
                }
                exchange.scratch.outbound.clear();
                exchange.scratch.head_end.reset();
                pick.again_freshly(server);
            }
            Err(broken) => {
                if let Broken::Late(Late::Deadline | Late::UpstreamReads | Late::UpstreamSends) = broken {
                    lease.stream().distrust();
                }
                return Err(broken);
            }
        }
    }
}

fn bounds(exchange: &Exchange, admitted: &Admitted) -> Bounds {
    let snapshot = &exchange.view.snapshot;
    let max_body = snapshot.routes.get(admitted.route()).and_then(|route| route.max_body_size);
    Bounds {
        deadline: admitted.deadline().unwrap_or(Tick::MAX),
        idle: snapshot.server().body_timeout,
        head: snapshot.head_limits(),
        max_body: max_body.unwrap_or(u64::MAX),
    }
}

/// What the route of a request changes in messages, if anything.
fn edits<'v>(view: &'v View, admitted: &Admitted) -> Option<&'v RouteEdits> {
    view.snapshot.routes.get(admitted.route())?.edits.as_deref()
}

/// The request as the server gets it: the normalised path, the client's Host, our forwarding fields, or what the route
/// has in their places; and behind it what is here of its body.
///
/// `to_h2`: it goes into HTTP/2, where a client's wish for trailers may be told (RFC 9113, 8.2.2), as gRPC asks for.
fn write_request(exchange: &mut Exchange, view: &View, admitted: &Admitted, to_h2: bool) {
    exchange.identify();
    let new_traceparent = exchange.new_traceparent();
    let edits = edits(view, admitted);
    let body = exchange.head_bytes..exchange.head_bytes + exchange.body_here;
    let Scratch { request, .. } = &*exchange.scratch;
    let (version, framing, expects_continue) = (request.version(), request.framing(), request.expects_continue());
    let (asked, Room { to_upstream, text, target, .. }) = exchange.split();
    let RequestFacts { connection, request_id, .. } = asked;
    let head = asked.request();
    let authority = head.authority_bytes().unwrap_or_default();
    let host = edits.and_then(|edits| edits.host.as_deref());
    let real_ip = (view.snapshot.rules.address_header() == AddressHeader::XRealIp)
        .then(|| admitted.arrival().client.addr().to_string());
    let facts = Forwarding {
        peer: connection.peer_text.as_bytes(),
        trusted_peer: admitted.arrival().trusted_peer,
        scheme: connection.scheme().as_bytes(),
        authority,
        host: host.map_or(authority, str::as_bytes),
        request_id,
        new_traceparent: new_traceparent.as_ref().map(<[u8; _]>::as_slice),
        via: match version {
            _ if connection.facts.is_h2 => b"2.0 sluicegate",
            Version::Http10 => b"1.0 sluicegate",
            Version::Http11 => b"1.1 sluicegate",
        },
        also: match (view.snapshot.rules.address_header(), &real_ip) {
            (AddressHeader::Forwarded, _) => Also::Forwarded,
            (_, Some(client)) => Also::RealIp(client.as_bytes()),
            _ => Also::Nothing,
        },
        upgrade: offered_protocols(&head),
        expects_continue,
    };
    let path = admitted.arrival().path.as_deref().map_or_else(|| head.path_bytes(), str::as_bytes);
    let (path, query) = if target.is_empty() { (path, head.query_bytes()) } else { (target.as_slice(), None) };
    to_upstream.clear();
    let mut writer = HeadWriter::request(to_upstream.made(), head.method().as_bytes(), path, query);
    match edits.map(|edits| &edits.request).filter(|edits| !edits.is_empty()) {
        None => headers::forward_request(&head, &facts, &mut writer),
        Some(edits) => write_edited(edits, &facts, &asked.known(view, 0, None), text, &mut writer),
    }
    if to_h2 && head.field(b"te").is_some_and(|te| te.eq_ignore_ascii_case(b"trailers")) {
        writer.field(b"te", b"trailers");
    }
    match framing {
        Framing::None | Framing::UntilClose => {}
        Framing::Length(length) => writer.number(b"content-length", length),
        Framing::Chunked => writer.field(b"transfer-encoding", b"chunked"),
    }
    writer.end();
    to_upstream.add(asked.inbound.filled(), body);
}

/// The fields of a request whose route changes some. Apart, so that the others are not slower for it.
#[inline(never)]
fn write_edited(
    edits: &FieldEdits,
    facts: &Forwarding<'_>,
    known: &Known<'_>,
    text: &mut Vec<u8>,
    writer: &mut HeadWriter<'_>,
) {
    headers::forward_request(&known.request, facts, &mut Edited::new(writer, edits));
    write_edits(edits, Whose::Servers, known, text, writer);
}

/// Waits for a turn to connect to this server, or for a connection that is given back.
async fn turn(
    server: &Rc<Server>,
    exchange: &mut Exchange,
    client: &mut Client,
    deadline: Tick,
    takes_kept: bool,
) -> Result<Turn, Broken> {
    let mut turn = pin!(server.turn(exchange.client_key(), takes_kept));
    poll_fn(|cx| {
        if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
            return Poll::Ready(Ok(turn));
        }
        if poll_gone(cx, exchange, client, deadline).is_ready() {
            return Poll::Ready(Err(Broken::ClientGone));
        }
        match exchange.worker.alarms.recently() {
            now if now >= deadline => Poll::Ready(Err(Broken::Late(Late::Deadline))),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Which server comes next.
struct Pick<'v> {
    view: &'v View,
    upstream: usize,
    admitted: &'v Admitted,
    random: u64,
    turn: u64,
    excluded: Vec<usize>,
    again: Option<usize>,
    fresh_only: bool,
}

impl<'v> Pick<'v> {
    fn new(view: &'v View, exchange: &Exchange, admitted: &'v Admitted, upstream: usize) -> Self {
        Self {
            view,
            upstream,
            admitted,
            random: exchange.worker.random(),
            turn: exchange.worker.turn(),
            excluded: Vec::new(),
            again: None,
            fresh_only: false,
        }
    }

    /// The same server once more, over a new connection.
    fn again_freshly(&mut self, server: usize) {
        self.again = Some(server);
        self.fresh_only = true;
    }

    fn server(&mut self, worker: usize) -> Option<(usize, &'v Rc<Server>)> {
        let servers = self.view.servers.get(self.upstream)?;
        let plan = self.view.snapshot.upstreams.get(self.upstream)?;
        let own_load = |index: usize| servers.get(index).map_or(0, |server| server.load().of(worker));
        let all_load = |index: usize| servers.get(index).map_or(0, |server| server.load().total());
        let choice = self.again.take().or_else(|| {
            plan.balancer.choose(&Facts {
                hash: self.admitted.sticky_hash(),
                turn: self.turn,
                random: self.random,
                loads: if plan.balancer.counts_all_workers() { &all_load } else { &own_load },
                excluded: &self.excluded,
            })
        })?;
        servers.get(choice).map(|server| (choice, server))
    }

    /// A connection that is kept to the server whose turn it is.
    fn reuse(&mut self, exchange: &mut Exchange, client: &Client) -> Option<(usize, Leased)> {
        if self.fresh_only {
            return None;
        }
        let (index, server) = self.server(exchange.worker.index)?;
        exchange.story.upstream = Some((self.upstream, index));
        let lease = match server.link().proxy_protocol {
            None => server.reuse(exchange.arrived),
            Some(_) => server.reuse_for(exchange.arrived, &self.proxy_header(&exchange.connection, client)),
        };
        Some((index, lease?))
    }

    /// For whom a connection to a server is. A client that a proxy in front tells of by a field has no port.
    #[inline(never)]
    fn proxy_header(&self, connection: &Connection, client: &Client) -> ProxyHeader {
        let client_ip = self.admitted.arrival().client.addr();
        let is_peer = address_of(connection.peer.ip()) == client_ip;
        let (port, owner) = if is_peer { (connection.peer.port(), Some(connection.id)) } else { (0, None) };
        let source = SocketAddr::new(client_ip, port);
        let endpoints = Endpoints { source, destination: connection.destination(client.stream.own_end()) };
        ProxyHeader::new(endpoints, owner, connection.facts.proxied.as_deref())
    }

    /// A new connection, to this server or to the next that can be reached.
    async fn connection(
        &mut self,
        exchange: &mut Exchange,
        client: &mut Client,
        deadline: Tick,
    ) -> Result<(usize, Leased), Broken> {
        let mut last = None;
        while self.excluded.len() < MAX_CONNECT_TRIES {
            let Some((index, server)) = self.server(exchange.worker.index) else { break };
            exchange.story.upstream = Some((self.upstream, index));
            match self.connect(index, server, exchange, client, deadline).await? {
                Ok(lease) => return Ok((index, lease)),
                Err(error) => {
                    tracing::debug!(server = %server.endpoint().name, %error, "cannot connect");
                    if let Some(meters) = self.view.meters.upstream(self.upstream) {
                        meters.unreachable.inc();
                    }
                    self.excluded.push(index);
                    last = Some(error);
                    if let Some(kept) = self.reuse(exchange, client) {
                        return Ok(kept);
                    }
                }
            }
        }
        Err(Broken::Unreachable(last))
    }

    /// A new connection to this server once there is a turn for it, or one that was given back meanwhile. The upstream's
    /// `connect_timeout` bounds how long the server takes, not how long the turn does.
    async fn connect(
        &mut self,
        index: usize,
        server: &Rc<Server>,
        exchange: &mut Exchange,
        client: &mut Client,
        deadline: Tick,
    ) -> Result<Result<Leased, ConnectError>, Broken> {
        let patience = self.view.snapshot.upstream(self.upstream).map(|(upstream, _)| upstream.connect_timeout);
        let mut patience = patience.unwrap_or_default();
        loop {
            if !server.may_connect() {
                match turn(server, exchange, client, deadline, !self.fresh_only).await? {
                    Turn::Kept(lease) => return Ok(Ok(lease)),
                    Turn::Connect => {}
                }
                if server.link().proxy_protocol.is_some() {
                    self.again = Some(index);
                    if let Some((_, kept)) = self.reuse(exchange, client) {
                        return Ok(Ok(kept));
                    }
                    self.again = None;
                }
            }
            let began = exchange.worker.clock.now();
            let connected = self.open(server, exchange, client, deadline, began + patience).await?;
            match connected {
                Ok(Some(lease)) => return Ok(Ok(lease)),
                Ok(None) => {
                    let took = exchange.worker.clock.now().since(began);
                    patience = Span::from_nanos(patience.as_nanos().saturating_sub(took.as_nanos()));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn open(
        &self,
        server: &Rc<Server>,
        exchange: &mut Exchange,
        client: &mut Client,
        deadline: Tick,
        until: Tick,
    ) -> Result<Result<Option<Leased>, ConnectError>, Broken> {
        let header = server.link().proxy_protocol.map(|_| Box::new(self.proxy_header(&exchange.connection, client)));
        let mut connecting = pin!(Rc::clone(server).connect(header));
        poll_fn(|cx| {
            if let Poll::Ready(connected) = connecting.as_mut().poll(cx) {
                return Poll::Ready(Ok(connected));
            }
            if poll_gone(cx, exchange, client, deadline.min(until)).is_ready() {
                return Poll::Ready(Err(Broken::ClientGone));
            }
            match exchange.worker.alarms.recently() {
                now if now >= deadline => Poll::Ready(Err(Broken::Late(Late::Deadline))),
                now if now >= until => Poll::Ready(Ok(Err(ConnectError::Timeout))),
                _ => Poll::Pending,
            }
        })
        .await
    }
}
