//! Answers requests: from the table of endpoints to a reply.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, ETAG, IF_NONE_MATCH, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Incoming};
use serde::de::IgnoredAny;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::access::{Actor, Attempts, Peer, Unknown, has_token};
use super::audit;
use super::connections::Seat;
use super::dead_letters::Subscription;
use super::endpoint::{AdminAnswer, AdminChange, Call, Content, Endpoint, Handler, Takes, Verb, without_escapes};
use super::events::{EventSource, Events};
use super::metrics::{DenialReason, Denied};
use super::peers::AdminPeers;
use super::pieces::Pieces;
use super::problem::Problem;
use super::role::Role;
use super::{AdminLimits, Commands, endpoints, guard, metrics, openapi};
use crate::rules::ValueTable;
use crate::telemetry::{Registration, Registry};
use crate::time::Clock;

/// Commands that read and may block, at once; more wait for their turn, each on its own connection.
const READS: usize = 4;

/// Configurations that wait to be judged, with the one that is.
const LOADS: usize = 4;

/// Seconds after which one may be sent again where as many wait as may.
const LOAD_RETRY: u64 = 1;

/// Streams that read the log at once, apart from the others, so that those which are behind hold up no command.
const TURNS: usize = 2;

/// Seconds after which a stream may be asked for again where all are taken.
const STREAM_RETRY: u64 = 5;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const TOML: &str = "application/toml";
const PLAIN: &str = "text/plain";
const EVENTS: &str = "text/event-stream";
const PROBLEM: &str = "application/problem+json";

type Reply = Response<AdminResponse>;

/// Whole, or made while it is sent.
type AdminResponse = Either<Full<Bytes>, Either<Pieces, Events>>;

/// Answers requests.
pub(super) struct Api {
    limits: AdminLimits,
    is_loopback: bool,
    registry: Arc<Registry>,
    commands: Arc<dyn Commands>,
    clock: Clock,
    attempts: Attempts,
    peers: Arc<AdminPeers>,
    denied: Denied,
    reads: Arc<Semaphore>,
    /// One change at a time, apart from the reads, so that one that hangs can still be looked at.
    changes: Arc<Semaphore>,
    /// One configuration is judged at a time, in the place of no read.
    loads: Arc<Semaphore>,
    /// Those that wait for that hold few of admin's connections.
    loads_waiting: Arc<Semaphore>,
    /// Places for streams.
    streams: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    shutdown: watch::Receiver<bool>,
    _streams: Registration,
}

/// Why a command gave no result.
#[derive(Clone, Copy, Debug)]
enum CommandFailure {
    Panicked,
    TooSlow,
}

impl Api {
    pub(super) fn new(
        limits: AdminLimits,
        is_loopback: bool,
        registry: Arc<Registry>,
        commands: Arc<dyn Commands>,
        clock: Clock,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let [reads, changes, loads, loads_waiting, streams, turns] =
            [READS, 1, 1, LOADS, limits.streams, TURNS].map(|places| Arc::new(Semaphore::new(places)));
        Self {
            _streams: metrics::streams(&registry, &streams, limits.streams),
            denied: Denied::new(&registry),
            limits,
            is_loopback,
            registry,
            commands,
            clock,
            attempts: Attempts::default(),
            peers: Arc::default(),
            reads,
            changes,
            loads,
            loads_waiting,
            streams,
            turns,
            shutdown,
        }
    }

    /// Answers a request. It counts as one on its `seat` when everything of it that is waited for is here.
    pub(super) async fn answer(&self, request: Request<Incoming>, peer: &Peer, seat: &Arc<Seat>) -> Reply {
        let (head, body) = request.into_parts();
        match self.try_answer(head, body, peer, seat).await {
            Ok(reply) => reply,
            Err(problem) => refusal(&problem),
        }
    }

    async fn try_answer(&self, head: Parts, body: Incoming, peer: &Peer, seat: &Arc<Seat>) -> Result<Reply, Problem> {
        guard::check(&head, self.is_loopback)?;
        let found = endpoints::at(head.uri.path());
        let chosen =
            |endpoints: &[&'static Endpoint]| endpoints.iter().find(|own| own.method.is(&head.method)).copied();
        let is_open = found.as_ref().and_then(|(all, _)| chosen(all)).is_some_and(|own| own.role == Role::Open);
        // Whoever may do nothing learns nothing: neither of paths nor of methods.
        let actor = if is_open { None } else { Some(self.identify(&head, peer)?) };
        let (endpoints, names) = found.ok_or_else(no_endpoint)?;
        let endpoint = chosen(&endpoints).ok_or_else(|| no_method(&endpoints))?;
        if let Some(actor) = &actor {
            self.check_role(actor, endpoint)?;
        }
        if endpoint.tells_of_clients {
            guard::check_origin(&head)?;
        }
        let names = without_escapes(&names)?;
        endpoint.check_query(head.uri.query())?;
        let body = self.body(endpoint, &head.headers, body).await?;
        if endpoint.changes() && matches!(endpoint.takes, Takes::Json(_)) {
            check_object(&body)?;
        }
        let _asking = seat.ask();
        let query = head.uri.query().map(str::to_owned);
        let by = actor.as_ref().map_or_else(|| "".into(), |actor| Arc::clone(&actor.name));
        let path = endpoint.path;
        let commands = Arc::clone(&self.commands);
        let peers = Arc::clone(&self.peers);
        let call = Call { commands, path, by, names, query, headers: head.headers, body, peers };
        match endpoint.handler {
            Handler::AtOnce(answer) => Ok(reply_to(answer(&*self.commands))),
            Handler::Read(_) | Handler::Load(_) | Handler::Change(_) => {
                self.call(endpoint, call, actor.as_ref(), peer).await
            }
            Handler::Document => Ok(reply_to(AdminAnswer::json(openapi::document()))),
            Handler::Metrics => self.metrics(seat).await,
            Handler::DeadLetterStream => self.stream(call, seat).await,
        }
    }

    /// Has a handler make the answer, and writes a line of the log where it changes something.
    async fn call(
        &self,
        endpoint: &'static Endpoint,
        call: Call,
        actor: Option<&Actor>,
        peer: &Peer,
    ) -> Result<Reply, Problem> {
        let asked = actor.filter(|_| endpoint.changes());
        let asked = asked.map(|actor| audit::AuditedCall::new(actor, peer, audit::what(endpoint, &call.names)));
        let tags = if endpoint.is_conditional() { tags_of(&call.headers) } else { None };
        let done = match endpoint.handler {
            Handler::Read(read) => self.run(&self.reads, move || read(&call)).await,
            Handler::Load(load) => {
                let Ok(_waiting) = self.loads_waiting.try_acquire() else {
                    let detail = format!("{LOADS} configurations wait to be judged, as many as may. Come again.");
                    return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(LOAD_RETRY));
                };
                self.run(&self.loads, move || load(&call)).await
            }
            // Whoever has asked may have gone, or wait no longer: the change is made all the same, and its line is written.
            Handler::Change(change) => self.run(&self.changes, move || audited(asked.as_ref(), change(&call))).await,
            _ => return Err(no_endpoint()),
        };
        let done = done.map_err(Problem::from).and_then(|done| done);
        done.map(|done| reply_to(unless_had(done, tags.as_deref())))
    }

    /// Whoever sends a request.
    fn identify(&self, head: &Parts, peer: &Peer) -> Result<Actor, Problem> {
        let door = self.commands.door();
        let now = self.clock.now();
        if has_token(head)
            && let Some(wait) = self.attempts.wait(peer, now)
        {
            self.denied.by(DenialReason::TooMany);
            let detail = "This address has sent too many wrong tokens. Wait, or come by another way.";
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).retry_after(wait.as_secs_ceil()));
        }
        let actor = door.access().who(head, peer).map_err(|unknown| {
            self.denied.by(match unknown {
                Unknown::Silent => DenialReason::NoToken,
                Unknown::WrongToken | Unknown::WrongCertificate => DenialReason::WrongToken,
            });
            if unknown == Unknown::WrongToken {
                self.attempts.count(peer, now);
                let peer = peer.address.map_or_else(|| "socket".to_owned(), |address| address.to_string());
                tracing::warn!(peer, "admin: a wrong token");
            }
            Problem::from(unknown).closing()
        })?;
        if let Some(address) = peer.address {
            self.peers.note(address);
        }
        Ok(actor)
    }

    fn check_role(&self, actor: &Actor, endpoint: &Endpoint) -> Result<(), Problem> {
        if actor.role >= endpoint.role {
            return Ok(());
        }
        self.denied.by(DenialReason::Role);
        let (has, needs) = (actor.role.word(), endpoint.role.word());
        let how = match &*actor.name {
            "loopback" => ": ask over a Unix socket, or write tokens into [admin]",
            _ => "",
        };
        let detail = format!("{} has the role {has:?}, and this needs {needs:?}{how}.", actor.name);
        Err(Problem::new(StatusCode::FORBIDDEN, detail).with("role", needs).closing())
    }

    /// Reads a body if a method that may have one was used, whatever it says, or as the endpoint takes it.
    async fn body(&self, endpoint: &Endpoint, headers: &HeaderMap, body: Incoming) -> Result<Bytes, Problem> {
        let late = || Problem::new(StatusCode::REQUEST_TIMEOUT, "The body did not come.").closing();
        let too_long = |detail: String| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).closing();
        match endpoint.takes {
            Takes::Nothing if endpoint.method == Verb::Get => Ok(Bytes::new()),
            Takes::Nothing => match timeout(self.limits.head, ends_within(body, self.limits.ignored)).await {
                Ok(true) => Ok(Bytes::new()),
                Ok(false) => Err(too_long("This request has no body.".to_owned())),
                Err(_) => Err(late()),
            },
            Takes::Json(_) | Takes::Toml => {
                check_type(headers, if matches!(endpoint.takes, Takes::Toml) { &[TOML, PLAIN] } else { &[JSON] })?;
                let most = self.limits.body;
                match timeout(self.limits.head, Limited::new(body, most).collect()).await {
                    Ok(Ok(body)) => Ok(body.to_bytes()),
                    Ok(Err(_)) => Err(too_long(format!("The body is broken off, or longer than {most} bytes."))),
                    Err(_) => Err(late()),
                }
            }
        }
    }

    /// Sends what is written to the dead-letter log from now on, or from the last event on that the client had.
    async fn stream(&self, call: Call, seat: &Arc<Seat>) -> Result<Reply, Problem> {
        // A field that is no text is no cursor either.
        let last = call.headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?").to_owned());
        let begun = move || Subscription::begin(&*call.commands, call.query.as_deref(), last.as_deref());
        let subscription = self.run(&self.reads, begun).await??;
        let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() else {
            let most = self.limits.streams;
            let detail = format!("There are {most} streams, as many as there may be. Close one, or come again.");
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(STREAM_RETRY));
        };
        let source = EventSource {
            subscription,
            commands: Arc::clone(&self.commands),
            door: self.commands.door(),
            turns: Arc::clone(&self.turns),
            heartbeat: self.limits.heartbeat,
            shutdown: self.shutdown.clone(),
        };
        Ok(reply_with(StatusCode::OK, EVENTS, Either::Right(Either::Right(Events::new(source, seat, place)))))
    }

    /// A page of one piece is sent as a whole, with its length.
    async fn metrics(&self, seat: &Arc<Seat>) -> Result<Reply, Problem> {
        let mut page = self.registry.page();
        // Reading blocks: figures are kept behind locks of other rooms.
        let begun = self.run(&self.reads, move || {
            let pieces = [page.next(), page.next()].map(|piece| piece.map(Bytes::from));
            (pieces, page)
        });
        Ok(match begun.await? {
            ([first, None], _) => reply(StatusCode::OK, metrics::CONTENT_TYPE, first.unwrap_or_default()),
            (first, page) => {
                let pieces = Pieces::new(first, page, Arc::clone(&self.reads), Arc::clone(seat));
                reply_with(StatusCode::OK, metrics::CONTENT_TYPE, Either::Right(Either::Left(pieces)))
            }
        })
    }

    /// Runs what may block on a thread for that. The place among `places` is kept until the command ends, even if
    /// nobody waits for it any more: so a command that hangs cannot heap up threads.
    async fn run<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        command: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CommandFailure> {
        let places = Arc::clone(places);
        let run = async {
            // Nobody closes the semaphore.
            let place = places.acquire_owned().await.ok();
            let command = tokio::task::spawn_blocking(move || {
                let result = command();
                drop(place);
                result
            });
            command.await.map_err(|_| CommandFailure::Panicked)
        };
        timeout(self.limits.request, run).await.unwrap_or(Err(CommandFailure::TooSlow))
    }
}

fn audited(asked: Option<&audit::AuditedCall>, done: Result<AdminAnswer, Problem>) -> Result<AdminAnswer, Problem> {
    if let Some(asked) = asked {
        match &done {
            Ok(done) => asked.write(&done.change, done.status),
            Err(problem) => asked.write(&AdminChange::default(), problem.status),
        }
    }
    done
}

/// The tags of `If-None-Match` (RFC 9110, 13.1.2), in one text; `None`: it is not there.
fn tags_of(headers: &HeaderMap) -> Option<String> {
    let lines: Vec<&str> = headers.get_all(IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

/// The same answer, or 304 without a body to whoever has it.
fn unless_had(done: AdminAnswer, tags: Option<&str>) -> AdminAnswer {
    let is_had = |etag: &str| {
        let mut tags = tags.unwrap_or_default().split(',').map(str::trim);
        // The comparison is the weak one.
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
    };
    match done.etag {
        Some(etag) if done.status == StatusCode::OK && is_had(&etag) => AdminAnswer::unchanged(etag),
        _ => done,
    }
}

/// Whether a body is a JSON object in which each member is once. Without one, the members have their defaults, if there are any.
fn check_object(body: &[u8]) -> Result<(), Problem> {
    // The endpoint itself has better words about one that is no JSON.
    if serde_json::from_slice::<IgnoredAny>(body).is_err() {
        return Ok(());
    }
    ValueTable::from_json(body).map(drop).map_err(|error| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            format!("The body is not what this endpoint takes: {error}. See /api/openapi.json."),
        )
    })
}

/// Whether the body ends within `most` bytes. Its content is ignored.
async fn ends_within(mut body: impl Body<Data = Bytes> + Unpin, most: usize) -> bool {
    let mut left = most;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return true };
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return false };
        left = rest;
    }
    true
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    reply_with(status, content_type, Either::Left(Full::new(body.into())))
}

fn reply_with(status: StatusCode, content_type: &'static str, body: AdminResponse) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

fn reply_to(done: AdminAnswer) -> Reply {
    let mut reply = match done.content {
        Content::Text(text) => reply(done.status, TEXT, text),
        Content::Json(value) => reply(done.status, JSON, format!("{value:#}\n")),
        Content::JsonText(text) => reply(done.status, JSON, text),
    };
    if let Some(etag) = done.etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
        reply.headers_mut().insert(ETAG, etag);
    }
    reply
}

fn refusal(problem: &Problem) -> Reply {
    let mut reply = reply(problem.status, PROBLEM, format!("{}\n", problem.to_json()));
    reply.headers_mut().extend(problem.fields.iter().cloned().map(|(name, value)| (Some(name), value)));
    if problem.closes {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    reply
}

/// Refuses a body that says to be of another type.
fn check_type(headers: &HeaderMap, wanted: &[&str]) -> Result<(), Problem> {
    let given = headers.get(CONTENT_TYPE).map(|given| given.to_str().unwrap_or("?"));
    let media = given.map(|given| given.split(';').next().unwrap_or_default().trim());
    if media.is_none_or(|media| wanted.iter().any(|wanted| media.eq_ignore_ascii_case(wanted))) {
        return Ok(());
    }
    let wanted = wanted.first().copied().unwrap_or_default();
    let detail = format!("This endpoint takes {wanted}: send Content-Type: {wanted}.");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).closing())
}

fn no_endpoint() -> Problem {
    let all: Vec<_> = endpoints::all().map(|own| format!("{} {}", own.method.word(), own.path)).collect();
    Problem::new(StatusCode::NOT_FOUND, "There is no such endpoint.").with("endpoints", all)
}

fn no_method(endpoints: &[&Endpoint]) -> Problem {
    let words = |endpoint: &&Endpoint| match endpoint.method {
        Verb::Get => "GET, HEAD",
        other => other.word(),
    };
    let allow = endpoints.iter().map(words).collect::<Vec<_>>().join(", ");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("This endpoint answers {allow}.")).allow(&allow)
}

impl From<CommandFailure> for Problem {
    fn from(failure: CommandFailure) -> Self {
        match failure {
            CommandFailure::Panicked => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "The command failed; see the log.")
            }
            CommandFailure::TooSlow => {
                let detail = "The command takes longer than a request may. If it had begun, it goes on.";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            }
        }
    }
}
