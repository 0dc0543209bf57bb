//! Choosing a server for a request, and coming to a connection to it.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::apart::{self, Apart};
use crate::client::{Client, Connection};
use crate::endings::{ExchangeError, Failure, TimeoutKind, Tried};
use crate::exchange::{Exchange, poll_gone};
use crate::flights::FlightPhase;
use crate::meters::Retried;
use crate::view::{Admitted, UpstreamView};
use sluicegate_admission::address_of;
use sluicegate_balance::{Eligibility, Evidence, Facts};
use sluicegate_limiter::Fingerprint;
use sluicegate_overload::ServerFailure;
use sluicegate_proxy_protocol::Endpoints;
use sluicegate_time::{Span, Tick};
use sluicegate_transport::Protocol;
use sluicegate_upstream::{
    ConnectError, Leased, NoPlace, Pending, ProxyHeader, QueueStanding, ServerConnections, TurnEnd,
};

/// How soon the first of the line looks again whether a server has become free otherwise than by the end of a request.
const LOOK_AGAIN: Span = Span::from_millis(100);

/// To how many servers a connect is tried for one request, where `retry` does not say.
const MAX_CONNECT_TRIES: usize = 3;

/// Waits for a turn to connect to this server, or for a connection that is given back.
async fn turn(
    (server, key): (&Rc<ServerConnections>, Fingerprint),
    exchange: &mut Exchange,
    client: &mut Client,
    deadline: Tick,
    takes_kept: bool,
) -> Result<TurnEnd, ExchangeError> {
    let mut turn = pin!(server.turn(key, takes_kept));
    poll_fn(|cx| {
        if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
            return Poll::Ready(Ok(turn));
        }
        if let Poll::Ready(error) = poll_gone(cx, exchange, client, deadline) {
            return Poll::Ready(Err(error));
        }
        match exchange.worker.alarms.coarse_now() {
            now if now >= deadline => Poll::Ready(Err(ExchangeError::Timeout(TimeoutKind::Deadline))),
            _ => Poll::Pending,
        }
    })
    .await
}

fn none_left(exchange: &Exchange, last: Option<ConnectError>) -> ExchangeError {
    if exchange.scratch.state.tries.is_empty() { ExchangeError::OutOfService } else { ExchangeError::Unreachable(last) }
}

/// Tells the breaker that the request has failed, and its servers are to blame.
fn tell_breaker(exchange: &mut Exchange) {
    if let Some(pass) = exchange.scratch.state.held.pass.take() {
        pass.done(Evidence::Unreachable, exchange.worker.clock.now());
    }
}

/// The reason why no server is chosen.
enum NoServer {
    /// None is left that may be chosen.
    Left,
    /// There is no free place at any, or others come first.
    Full,
}

/// A server's place among those of its upstream, of which a file has fewer.
fn narrow(place: usize) -> Option<u32> {
    u32::try_from(place).ok()
}

/// The server that comes next, and a connection to it.
pub struct Pick<'v> {
    upstream: &'v UpstreamView,
    admitted: &'v Admitted,
    random: u64,
    turn: u64,
    /// Servers that were tried, or that somebody else tries.
    excluded: Vec<usize>,
    /// Whether a server may be tried again when none is left.
    may_repeat: bool,
    again: Option<u32>,
    fresh_only: bool,
    /// Whether the request authenticates its connection, or may come over one that is: no kept one will do but that of its client.
    is_private: bool,
    /// The server that this one is to. Narrow, as `again` is: an idle connection of a client has room for them.
    private: Option<u32>,
    /// Whether it shares no connection of HTTP/2 with others.
    apart: Option<Apart>,
}

impl<'v> Pick<'v> {
    /// Of a request that no server has got.
    pub fn new(upstream: &'v UpstreamView, exchange: &Exchange, admitted: &'v Admitted) -> Self {
        let private = exchange.connection.private_place(&upstream.servers);
        let is_private = private.is_some() || exchange.scratch.request.authenticates_connection();
        let is_h1 = upstream.shared.link.protocol == Protocol::Http1;
        Self {
            is_private: is_private && is_h1,
            private: private.and_then(narrow),
            apart: if is_h1 { None } else { Apart::of(exchange) },
            upstream,
            admitted,
            random: exchange.worker.random(),
            turn: exchange.worker.turn(),
            excluded: Vec::new(),
            may_repeat: false,
            again: None,
            fresh_only: false,
        }
    }

    /// Whether the connection is to be of the client alone.
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// Whether only a new connection will do.
    pub fn is_fresh_only(&self) -> bool {
        self.fresh_only
    }

    /// The same server once more, over a new connection.
    pub fn again_freshly(&mut self, server: usize) {
        self.again = narrow(server);
        self.fresh_only = true;
    }

    /// Whether the request shares no connection of HTTP/2 with others.
    pub fn is_apart(&self) -> bool {
        self.apart.is_some()
    }

    /// The same server once more, over a connection of HTTP/2 that carries nothing else.
    pub fn again_apart(&mut self, server: usize) {
        (self.again, self.apart) = (narrow(server), Some(Apart::Died));
    }

    /// Another server; this one only if none is left.
    pub fn other_than(&mut self, server: usize) {
        (self.again, self.fresh_only, self.may_repeat) = (None, false, true);
        self.excluded.push(server);
    }

    /// Whether a connect that has failed is followed by another one.
    fn may_connect_again(&self, exchange: &Exchange) -> bool {
        let failed = exchange.scratch.state.tries.len();
        match &self.upstream.spec.retry {
            None => failed < MAX_CONNECT_TRIES,
            Some(retry) => retry.on.connect && failed < retry.attempts as usize,
        }
    }

    fn server(&mut self, exchange: &mut Exchange) -> Result<(usize, &'v Rc<ServerConnections>), NoServer> {
        let choice = match self.again.take() {
            Some(again) => again as usize,
            None => self.choose(exchange, &mut None)?,
        };
        self.upstream.servers.get(choice).map(|server| (choice, server)).ok_or(NoServer::Left)
    }

    /// The server that is to get the request, with a place at it where it has a number of them. A server without a free one
    /// is passed over. `pending`: the request's own place in the line.
    fn choose(&mut self, exchange: &mut Exchange, pending: &mut Option<Pending>) -> Result<usize, NoServer> {
        let mut tried = self.excluded.len();
        let mut is_full = false;
        let chosen = loop {
            let Some(choice) = self.next(exchange) else {
                if std::mem::take(&mut self.may_repeat) {
                    self.excluded.clear();
                    tried = 0;
                    continue;
                }
                break Err(NoServer::Left);
            };
            match self.take_place(exchange, choice, pending) {
                Ok(()) => break Ok(choice),
                Err(NoPlace::AtServer) => {
                    exchange.scratch.state.held.trial = None;
                    self.excluded.push(choice);
                    is_full = true;
                }
                Err(NoPlace::AtUpstream) => {
                    exchange.scratch.state.held.trial = None;
                    break Err(NoServer::Full);
                }
            }
        };
        if is_full {
            self.excluded.truncate(tried);
        }
        if is_full && chosen.is_err() { Err(NoServer::Full) } else { chosen }
    }

    fn take_place(&self, exchange: &mut Exchange, server: usize, pending: &mut Option<Pending>) -> Result<(), NoPlace> {
        let Some(places) = &self.upstream.shared.places else { return Ok(()) };
        let Some(of_server) = places.servers.get(server) else { return Ok(()) };
        let client = exchange.fair_key();
        match &mut exchange.scratch.state.held.place {
            Some(held) => held.move_to(of_server).ok_or(NoPlace::AtServer),
            none => {
                *none = Some(places.bulkhead.take(of_server, client, pending)?);
                Ok(())
            }
        }
    }

    fn next(&mut self, exchange: &mut Exchange) -> Option<usize> {
        let UpstreamView { shared, servers, gate: gates, .. } = self.upstream;
        let worker = exchange.worker.index;
        let own_load = |index: usize| servers.get(index).map_or(0, |server| server.load().of(worker));
        let all_load = |index: usize| servers.get(index).map_or(0, |server| server.load().total());
        let now = exchange.worker.alarms.coarse_now();
        let gate = gates.gate(now);
        // A body that its client withholds would keep the server out.
        let may_try = exchange.scratch.upload.is_complete();
        let hash = self.admitted.sticky_hash();
        exchange.scratch.state.held.trial = None;
        if let Some(private) = self.private.map(|place| place as usize).filter(|place| !self.excluded.contains(place))
            && gate.as_ref().is_none_or(|gate| matches!(gate.entry(private), Eligibility::Open | Eligibility::Share(_)))
        {
            return Some(private);
        }
        loop {
            let choice = shared.balancer.choose(&Facts {
                hash,
                turn: self.turn,
                random: self.random,
                loads: if shared.balancer.counts_all_workers() { &all_load } else { &own_load },
                excluded: &self.excluded,
                gate: gate.as_deref(),
                draw: if shared.balancer.is_sticky() { hash } else { self.random },
            })?;
            if gate.as_ref().is_none_or(|gate| gate.entry(choice) != Eligibility::Probe) {
                return Some(choice);
            }
            exchange.scratch.state.held.trial = if may_try { gates.try_one(choice, now) } else { None };
            if exchange.scratch.state.held.trial.is_some() {
                return Some(choice);
            }
            // Somebody else tries it.
            self.excluded.push(choice);
        }
    }

    /// A connection that is kept to the server whose turn it is.
    pub fn reuse(&mut self, exchange: &mut Exchange, client: &Client) -> Option<(usize, Leased)> {
        if self.fresh_only {
            return None;
        }
        let (index, server) = self.server(exchange).ok()?;
        exchange.record.server = u32::try_from(index).ok();
        let lease = match server.link().proxy_protocol {
            _ if self.is_private => {
                exchange.connection.take_private(server).and_then(|kept| server.reuse_private(kept))
            }
            _ if self.is_apart() => self.apart.and_then(|apart| apart.reuse(index, server, exchange)),
            None => server.reuse(exchange.arrived),
            Some(_) => server.reuse_for(exchange.arrived, &self.proxy_header(&exchange.connection, client)),
        };
        if lease.is_none() {
            // The connection that is to be made is to the server that was chosen.
            self.again = narrow(index);
        }
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
    pub async fn connection(
        &mut self,
        exchange: &mut Exchange,
        client: &mut Client,
        deadline: Tick,
    ) -> Result<(usize, Leased), ExchangeError> {
        exchange.set_phase(FlightPhase::Connecting);
        let mut last = None;
        loop {
            let (index, server) = match self.server(exchange) {
                Ok(next) => next,
                Err(NoServer::Left) => break,
                Err(NoServer::Full) => {
                    self.again = narrow(self.wait_for_place(exchange, client, deadline).await?);
                    match self.reuse(exchange, client) {
                        Some(kept) => return Ok(kept),
                        None => continue,
                    }
                }
            };
            exchange.record.server = u32::try_from(index).ok();
            match self.connect(index, server, exchange, client, deadline).await? {
                Ok(lease) => return Ok((index, lease)),
                Err(error) => {
                    self.report(exchange, server, &error);
                    exchange.scratch.state.tries.push(Tried { server: index, why: Failure::of_connect(&error) });
                    self.upstream.meters.retried(Retried::Unreachable);
                    self.excluded.push(index);
                    last = Some(error);
                    if !self.may_connect_again(exchange) {
                        break;
                    }
                    if let Some(kept) = self.reuse(exchange, client) {
                        return Ok(kept);
                    }
                }
            }
        }
        if last.as_ref().is_some_and(ConnectError::is_servers_fault) {
            tell_breaker(exchange);
        }
        Err(none_left(exchange, last))
    }

    /// Waits in line for a place at a server, and takes it.
    async fn wait_for_place(
        &mut self,
        exchange: &mut Exchange,
        client: &mut Client,
        deadline: Tick,
    ) -> Result<usize, ExchangeError> {
        let UpstreamView { spec, shared, .. } = self.upstream;
        let Some(places) = &shared.places else { return Err(ExchangeError::OutOfService) };
        exchange.scratch.state.held.place = None;
        let began = exchange.worker.clock.now();
        let mut pending = Some(places.bulkhead.join(exchange.fair_key(), began).ok_or(ExchangeError::QueueFull)?);
        let until = began + spec.pending_timeout;
        let mut look_at = Tick::MAX;
        let chosen = poll_fn(|cx| {
            match pending.as_ref().map_or(QueueStanding::PutOut, |pending| pending.look(cx)) {
                QueueStanding::PutOut => return Poll::Ready(Err(ExchangeError::QueueFull)),
                QueueStanding::MayTry => match self.choose(exchange, &mut pending) {
                    Ok(choice) => return Poll::Ready(Ok(choice)),
                    Err(NoServer::Left) => return Poll::Ready(Err(none_left(exchange, None))),
                    // A server that comes back wakes nobody.
                    Err(NoServer::Full) => look_at = exchange.worker.alarms.coarse_now() + LOOK_AGAIN,
                },
                QueueStanding::Waits => look_at = Tick::MAX,
            }
            if let Poll::Ready(error) = poll_gone(cx, exchange, client, deadline.min(until).min(look_at)) {
                return Poll::Ready(Err(error));
            }
            match exchange.worker.alarms.coarse_now() {
                now if now >= deadline => Poll::Ready(Err(ExchangeError::Timeout(TimeoutKind::Deadline))),
                now if now >= until => Poll::Ready(Err(ExchangeError::QueueFull)),
                _ => Poll::Pending,
            }
        })
        .await;
        let waited = exchange.worker.clock.now().since(began);
        let before = exchange.record.pending.unwrap_or_default();
        exchange.record.pending = Some(Span::from_nanos(before.as_nanos() + waited.as_nanos()));
        chosen
    }

    /// The server is to blame for a connect that has failed, but where the gateway's own bound is met.
    fn report(&self, exchange: &Exchange, server: &ServerConnections, error: &ConnectError) {
        let now = exchange.worker.clock.now();
        if error.is_servers_fault() {
            server.note_failure(None, &error.to_string(), exchange.scratch.state.held.trial.is_some(), now);
            if let Some(overload) = &exchange.view.snapshot.overload {
                let worker = &exchange.worker;
                let (failure, client) = (Some(ServerFailure::Connect), exchange.client_number());
                overload.note_end(worker.index, failure, client, now, worker.random());
            }
        }
        if let Some(more) = exchange.worker.connect_reports.due(now) {
            let upstream = &*self.upstream.spec.name;
            let (name, request_id) = (&*server.endpoint().name, exchange.request_id());
            tracing::warn!(target: "sluicegate::proxy::forward::pick", %upstream, server = %name, request_id, more, %error, "cannot connect to a server");
        }
    }

    /// A new connection to this server once there is a turn for it, or one that was given back meanwhile. The upstream's
    /// `connect_timeout` bounds how long the server takes, not how long the turn does.
    async fn connect(
        &mut self,
        index: usize,
        server: &Rc<ServerConnections>,
        exchange: &mut Exchange,
        client: &mut Client,
        deadline: Tick,
    ) -> Result<Result<Leased, ConnectError>, ExchangeError> {
        let mut patience = self.upstream.spec.connect_timeout;
        if let Some(apart) = self.apart.filter(|apart| apart.needs_place(index, exchange)) {
            let until = exchange.worker.clock.now() + self.upstream.spec.pending_timeout;
            apart::wait_for_place((index, server), exchange, client, deadline, until).await?;
            if let Some(kept) = apart.reuse(index, server, exchange) {
                return Ok(Ok(kept));
            }
        }
        loop {
            if !server.may_connect() {
                let takes_kept = !(self.fresh_only || self.is_private || self.is_apart());
                let key = exchange.fair_key();
                match turn((server, key), exchange, client, deadline, takes_kept).await? {
                    TurnEnd::Kept(lease) => return Ok(Ok(lease)),
                    TurnEnd::Connect => {}
                }
                if server.link().proxy_protocol.is_some() {
                    self.again = narrow(index);
                    if let Some((_, kept)) = self.reuse(exchange, client) {
                        return Ok(Ok(kept));
                    }
                    self.again = None;
                }
            }
            let began = exchange.worker.clock.now();
            let connected = self.open(server, exchange, client, deadline, began + patience).await;
            let took = exchange.worker.clock.now().since(began);
            let before = exchange.scratch.state.times.connect.unwrap_or_default();
            exchange.scratch.state.times.connect = Some(Span::from_nanos(before.as_nanos() + took.as_nanos()));
            if let Err(ExchangeError::Timeout(_)) = &connected
                && took >= began.since(exchange.arrived)
            {
                // The request's own time was over before connect_timeout, and most of it was spent here.
                server.note_connect(took);
                self.report(exchange, server, &ConnectError::Timeout);
                tell_breaker(exchange);
            }
            let connected = connected?;
            if !matches!(connected, Ok(None) | Err(ConnectError::Full)) {
                server.note_connect(took);
            }
            match connected {
                Ok(Some(lease)) => return Ok(Ok(lease)),
                Ok(None) => {
                    patience = Span::from_nanos(patience.as_nanos().saturating_sub(took.as_nanos()));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn open(
        &self,
        server: &Rc<ServerConnections>,
        exchange: &mut Exchange,
        client: &mut Client,
        deadline: Tick,
        until: Tick,
    ) -> Result<Result<Option<Leased>, ConnectError>, ExchangeError> {
        let header = server.link().proxy_protocol.map(|_| Box::new(self.proxy_header(&exchange.connection, client)));
        let apart = self.apart;
        let mut connecting = pin!(async {
            match apart {
                None => Rc::clone(server).connect(header).await,
                Some(apart) => Rc::clone(server).connect_alone(apart != Apart::Oversized).await.map(Some),
            }
        });
        poll_fn(|cx| {
            if let Poll::Ready(connected) = connecting.as_mut().poll(cx) {
                return Poll::Ready(Ok(connected));
            }
            if let Poll::Ready(error) = poll_gone(cx, exchange, client, deadline.min(until)) {
                return Poll::Ready(Err(error));
            }
            match exchange.worker.alarms.coarse_now() {
                now if now >= deadline => Poll::Ready(Err(ExchangeError::Timeout(TimeoutKind::Deadline))),
                now if now >= until => Poll::Ready(Ok(Err(ConnectError::Timeout))),
                _ => Poll::Pending,
            }
        })
        .await
    }
}
