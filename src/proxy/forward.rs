//! Sends an admitted request to a server of its upstream. The only place that retries.

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;

use super::body::RequestBody;
use super::exchange::Exchange;
use super::headers::{self, Forwarding};
use super::worker::View;
use crate::admission::{Admitted, RequestView};
use crate::balance::Facts;
use crate::upstream::{ConnectError, Leased, Server};

/// To how many servers a connect is tried for one request.
const MAX_CONNECT_TRIES: usize = 3;

/// Why there is no response.
#[derive(Debug)]
pub enum ForwardError {
    /// No server could be reached; the last error.
    Unreachable(Option<ConnectError>),
    /// The server broke the exchange off.
    Broken(hyper::Error),
    /// The client broke its request off.
    Client(hyper::Error),
    /// The server switched protocols, which nobody had asked of it.
    Unasked,
    /// The request's target cannot be sent on.
    Target,
}

impl std::fmt::Display for ForwardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(Some(error)) => write!(f, "{error}"),
            Self::Unreachable(None) => write!(f, "the upstream has no server"),
            Self::Broken(error) => write!(f, "the server broke off: {error}"),
            Self::Client(error) => write!(f, "the client broke off: {error}"),
            Self::Unasked => write!(f, "the server answered 101 to a request without Upgrade"),
            Self::Target => write!(f, "the target cannot be sent on"),
        }
    }
}

/// A response head and the connection that its body comes over.
pub type Forwarded = (Response<Incoming>, Leased<RequestBody>);

/// Sends the request and waits for the head of its response. Only what admission let through gets here.
///
/// A server that cannot be reached was sent nothing, so another one is tried. A connection that had been idle and turns
/// out to be dead is replaced once, if the request was not written or may be repeated.
pub async fn forward(
    exchange: &mut Exchange,
    admitted: Admitted,
    upstream: usize,
    body: RequestBody,
) -> Result<Forwarded, ForwardError> {
    let view = Rc::clone(&exchange.view);
    let mut pick = Pick::new(&view, exchange, &admitted, upstream);
    let mut body = Some(body);
    loop {
        let (server, mut lease) = pick.connection(exchange).await?;
        let empty = body.as_ref().is_some_and(RequestBody::is_empty);
        let request = request(exchange, &admitted, body.take().unwrap_or(EMPTY))?;
        exchange.story.attempts += 1;
        let sent_at = exchange.worker.clock.now();
        match lease.send(request).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => return Err(ForwardError::Unasked),
            Ok(response) => {
                if let Some(meters) = view.meters.upstream(upstream) {
                    meters.seconds.observe(exchange.worker.clock.now().since(sent_at));
                }
                return Ok((response, lease));
            }
            Err((error, unsent)) => {
                let stale = lease.is_reused() && !pick.fresh_only;
                let repeatable = empty && is_idempotent(exchange.head.http_method()) && !error.is_parse();
                match unsent {
                    Some(request) if stale => body = Some(request.into_body()),
                    None if stale && repeatable => body = Some(EMPTY),
                    _ if error.is_user() => return Err(ForwardError::Client(error)),
                    _ => return Err(ForwardError::Broken(error)),
                }
                if let Some(meters) = view.meters.upstream(upstream) {
                    meters.stale.inc();
                }
                pick.again_freshly(server);
            }
        }
    }
}

const EMPTY: RequestBody = RequestBody::Empty(http_body_util::Empty::new());

/// Which server comes next.
struct Pick<'v> {
    view: &'v View,
    upstream: usize,
    hash: u64,
    random: u64,
    turn: u64,
    excluded: Vec<usize>,
    again: Option<usize>,
    fresh_only: bool,
}

impl<'v> Pick<'v> {
    fn new(view: &'v View, exchange: &Exchange, admitted: &Admitted, upstream: usize) -> Self {
        Self {
            view,
            upstream,
            hash: admitted.sticky_hash(),
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

    fn server(&mut self, worker: usize) -> Option<(usize, Rc<Server<RequestBody>>)> {
        let servers = self.view.servers.get(self.upstream)?;
        let plan = self.view.snapshot.upstreams.get(self.upstream)?;
        let own_load = |index: usize| servers.get(index).map_or(0, |server| server.load().of(worker));
        let all_load = |index: usize| servers.get(index).map_or(0, |server| server.load().total());
        let choice = self.again.take().or_else(|| {
            plan.balancer.choose(&Facts {
                hash: self.hash,
                turn: self.turn,
                random: self.random,
                loads: if plan.counts_all_workers { &all_load } else { &own_load },
                excluded: &self.excluded,
            })
        })?;
        servers.get(choice).map(|server| (choice, Rc::clone(server)))
    }

    async fn connection(&mut self, exchange: &mut Exchange) -> Result<(usize, Leased<RequestBody>), ForwardError> {
        let mut last = None;
        while self.excluded.len() < MAX_CONNECT_TRIES {
            let Some((index, server)) = self.server(exchange.worker.index) else { break };
            if let Some(plan) = self.view.snapshot.upstreams.get(self.upstream) {
                exchange.story.upstream = Some((Arc::clone(&plan.name), Arc::clone(&server.endpoint().name)));
            }
            if !self.fresh_only
                && let Some(lease) = server.reuse(exchange.arrived).await
            {
                return Ok((index, lease));
            }
            match server.connect().await {
                Ok(lease) => return Ok((index, lease)),
                Err(error) => {
                    tracing::debug!(server = %server.endpoint().name, %error, "cannot connect");
                    if let Some(meters) = self.view.meters.upstream(self.upstream) {
                        meters.unreachable.inc();
                    }
                    self.excluded.push(index);
                    last = Some(error);
                }
            }
        }
        Err(ForwardError::Unreachable(last))
    }
}

/// The request as the server gets it: the normalised path, the client's Host, our forwarding fields.
fn request(exchange: &Exchange, admitted: &Admitted, body: RequestBody) -> Result<Request<RequestBody>, ForwardError> {
    let head = &exchange.head;
    let path = admitted.arrival().path.as_deref().unwrap_or_else(|| head.path());
    let target = match head.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut fields = HeaderMap::with_capacity(32);
    let facts = Forwarding {
        peer: exchange.connection.peer.ip(),
        trusted_peer: admitted.arrival().trusted_peer,
        scheme: head.scheme(),
        authority: head.authority().unwrap_or_default(),
        request_id: &exchange.request_id,
        new_traceparent: &exchange.new_traceparent,
        received_version: if head.protocol() == "HTTP/1.0" { "1.0" } else { "1.1" },
    };
    headers::forward_request(head, &facts, &mut fields);
    let mut request = Request::new(body);
    *request.method_mut() = head.http_method().clone();
    *request.uri_mut() = Uri::try_from(target).map_err(|_| ForwardError::Target)?;
    *request.headers_mut() = fields;
    Ok(request)
}

/// Whether doing it twice is the same as doing it once (RFC 9110, 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE)
}
