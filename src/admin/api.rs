use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Incoming};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::dead_letters::{self, Refused, Subscription};
use super::events::{Events, Source};
use super::guard::{self, Refusal};
use super::paths::{KEY, KEYS, SERVER, name_in, names_in};
use super::pieces::Pieces;
use super::seats::Seat;
use super::{Commands, Limits, metrics};
use crate::balance::Service;
use crate::telemetry::{Registration, Registry};
use crate::words::Word as _;

/// Commands that read and may block, at once; more wait for their turn, each on its own connection.
const READS: usize = 4;

/// Streams that read the log at once, apart from the others, so that those which are behind hold up no command.
const TURNS: usize = 2;

/// Seconds after which a stream may be asked for again where all are taken.
const STREAM_RETRY: &str = "5";

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const PROBLEM: &str = "application/problem+json";

type Reply = Response<Answer>;

/// Whole, or made while it is sent.
type Answer = Either<Full<Bytes>, Either<Pieces, Events>>;

/// Answers requests.
pub(super) struct Api {
    limits: Limits,
    is_loopback: bool,
    registry: Arc<Registry>,
    commands: Arc<dyn Commands>,
    reads: Arc<Semaphore>,
    /// One reload at a time, apart from the reads, so that one that hangs can still be looked at.
    reloads: Arc<Semaphore>,
    /// Places for streams.
    streams: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    shutdown: watch::Receiver<bool>,
    _streams: Registration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Health,
    Ready,
    Metrics,
    Config,
    Fleet,
    Upstreams,
    Server,
    Limits,
    Keys,
    Key,
    Explain,
    DeadLetters,
    DeadLetterStream,
    Reload,
    Upgrade,
}

const ENDPOINTS: [(&str, Endpoint); 15] = [
    ("/healthz", Endpoint::Health),
    ("/readyz", Endpoint::Ready),
    ("/metrics", Endpoint::Metrics),
    ("/api/config", Endpoint::Config),
    ("/api/v1/fleet", Endpoint::Fleet),
    ("/api/v1/upstreams", Endpoint::Upstreams),
    (SERVER, Endpoint::Server),
    ("/api/v1/limits", Endpoint::Limits),
    (KEYS, Endpoint::Keys),
    (KEY, Endpoint::Key),
    ("/api/v1/explain", Endpoint::Explain),
    ("/api/v1/dead-letters", Endpoint::DeadLetters),
    ("/api/v1/dead-letters/stream", Endpoint::DeadLetterStream),
    ("/reload", Endpoint::Reload),
    ("/upgrade", Endpoint::Upgrade),
];

/// Why a command gave no result.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Panicked,
    TooSlow,
}

impl Api {
    pub(super) fn new(
        limits: Limits,
        is_loopback: bool,
        registry: Arc<Registry>,
        commands: Arc<dyn Commands>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let [reads, reloads, streams, turns] =
            [READS, 1, limits.streams, TURNS].map(|places| Arc::new(Semaphore::new(places)));
        Self {
            _streams: metrics::streams(&registry, &streams, limits.streams),
            limits,
            is_loopback,
            registry,
            commands,
            reads,
            reloads,
            streams,
            turns,
            shutdown,
        }
    }

    /// Answers a request. It counts as one on its `seat` when everything of it that is waited for is here.
    pub(super) async fn answer(&self, request: Request<Incoming>, seat: &Arc<Seat>) -> Reply {
        let (head, body) = request.into_parts();
        if let Err(refusal) = guard::check(&head, self.is_loopback) {
            return refused(refusal);
        }
        let Some(endpoint) = Endpoint::at(head.uri.path()) else { return not_found() };
        if !endpoint.methods().contains(&head.method) {
            return not_allowed(endpoint);
        }
        if endpoint.tells_of_clients()
            && let Err(refusal) = guard::check_origin(&head)
        {
            return refused(refusal);
        }
        if endpoint == Endpoint::Explain {
            return self.explain(body, seat).await;
        }
        if endpoint.is_command()
            && let Err(reply) = self.read_past(body).await
        {
            return reply;
        }
        let _asking = seat.ask();
        match endpoint {
            Endpoint::Health => reply(StatusCode::OK, TEXT, "ok"),
            Endpoint::Ready if self.commands.ready() => reply(StatusCode::OK, TEXT, "ready"),
            Endpoint::Ready => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, "not ready"),
            Endpoint::Metrics => self.metrics(seat).await,
            Endpoint::Config => self.show(Commands::config).await,
            Endpoint::Fleet => self.show(Commands::fleet).await,
            Endpoint::Upstreams => self.show(Commands::upstreams).await,
            Endpoint::Limits => self.show(Commands::limits).await,
            Endpoint::Keys => self.keys(head.uri.path()).await,
            Endpoint::Key => self.key(head.uri.path()).await,
            Endpoint::Server => self.set_server(head.uri.path(), head.uri.query()).await,
            // Answered above, since its body says something.
            Endpoint::Explain => not_found(),
            Endpoint::DeadLetters => self.dead_letters(head.uri.query()).await,
            Endpoint::DeadLetterStream => self.stream(&head.headers, head.uri.query(), seat).await,
            Endpoint::Reload => self.reload(&head.headers).await,
            Endpoint::Upgrade => self.upgrade(&head.headers).await,
        }
    }

    /// Takes a server out of service, or back.
    async fn set_server(&self, path: &str, query: Option<&str>) -> Reply {
        let stated = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("state=")));
        let Some(service) = stated.and_then(Service::from_word) else {
            let words = Service::ALL.map(Service::word);
            let detail = "Say what is to become of the server: ?state=up, ?state=drain or ?state=off.";
            return problem(StatusCode::BAD_REQUEST, detail, json!({ "states": words }));
        };
        let Some((upstream, server)) = names_in(path, SERVER) else { return not_found() };
        let commands = Arc::clone(&self.commands);
        match self.run(&self.reads, move || commands.set_server(&upstream, &server, service)).await {
            Err(failure) => failed(failure),
            Ok(Err(unknown)) => problem(StatusCode::NOT_FOUND, &unknown, json!({})),
            Ok(Ok(shown)) => reply(StatusCode::OK, JSON, format!("{shown:#}\n")),
        }
    }

    /// Shows the keys that a limit meets most often.
    async fn keys(&self, path: &str) -> Reply {
        let Some(limit) = name_in(path, KEYS) else { return not_found() };
        let commands = Arc::clone(&self.commands);
        match self.run(&self.reads, move || commands.top_keys(&limit)).await {
            Err(failure) => failed(failure),
            Ok(Err(unknown)) => problem(StatusCode::NOT_FOUND, &unknown, json!({})),
            Ok(Ok(shown)) => reply(StatusCode::OK, JSON, format!("{shown:#}\n")),
        }
    }

    /// Shows how a key of a limit stands.
    async fn key(&self, path: &str) -> Reply {
        let Some((limit, value)) = names_in(path, KEY) else { return not_found() };
        let commands = Arc::clone(&self.commands);
        match self.run(&self.reads, move || commands.key(&limit, &value)).await {
            Err(failure) => failed(failure),
            Ok(Err(unknown)) => problem(StatusCode::NOT_FOUND, &unknown, json!({})),
            Ok(Ok(shown)) => reply(StatusCode::OK, JSON, format!("{shown:#}\n")),
        }
    }

    /// Shows a page of the dead-letter log.
    async fn dead_letters(&self, query: Option<&str>) -> Reply {
        let (commands, query) = (Arc::clone(&self.commands), query.map(str::to_owned));
        match self.run(&self.reads, move || dead_letters::page(&*commands, query.as_deref())).await {
            Err(failure) => failed(failure),
            Ok(Err(refused)) => no_dead_letters(refused),
            Ok(Ok(page)) => reply(StatusCode::OK, JSON, page),
        }
    }

    /// Sends what is written to the dead-letter log from now on, or from the last event on that the client had.
    async fn stream(&self, headers: &HeaderMap, query: Option<&str>, seat: &Arc<Seat>) -> Reply {
        let (commands, query) = (Arc::clone(&self.commands), query.map(str::to_owned));
        // A field that is no text is no cursor either.
        let last = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?").to_owned());
        let begun = move || Subscription::begin(&*commands, query.as_deref(), last.as_deref());
        let subscription = match self.run(&self.reads, begun).await {
            Err(failure) => return failed(failure),
            Ok(Err(refused)) => return no_dead_letters(refused),
            Ok(Ok(subscription)) => subscription,
        };
        let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() else {
            let most = self.limits.streams;
            let detail = format!("There are {most} streams, as many as there may be. Close one, or come again.");
            let mut reply = problem(StatusCode::SERVICE_UNAVAILABLE, &detail, json!({}));
            reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(STREAM_RETRY));
            return reply;
        };
        let source = Source {
            subscription,
            commands: Arc::clone(&self.commands),
            turns: Arc::clone(&self.turns),
            heartbeat: self.limits.heartbeat,
            shutdown: self.shutdown.clone(),
        };
        reply_with(StatusCode::OK, EVENTS, Either::Right(Either::Right(Events::new(source, seat, place))))
    }

    /// Says what would become of the request that the body describes.
    async fn explain(&self, body: Incoming, seat: &Arc<Seat>) -> Reply {
        let most = self.limits.body;
        let asked = match timeout(self.limits.head, Limited::new(body, most).collect()).await {
            Ok(Ok(asked)) => asked.to_bytes(),
            Ok(Err(_)) => {
                let detail = format!("The question is broken off, or longer than {most} bytes.");
                return closing(problem(StatusCode::PAYLOAD_TOO_LARGE, &detail, json!({})));
            }
            Err(_) => return closing(problem(StatusCode::REQUEST_TIMEOUT, "The body did not come.", json!({}))),
        };
        let _asking = seat.ask();
        let commands = Arc::clone(&self.commands);
        match self.run(&self.reads, move || commands.explain(&asked)).await {
            Err(failure) => failed(failure),
            Ok(Err(wrong)) => problem(StatusCode::BAD_REQUEST, &wrong, json!({})),
            Ok(Ok(shown)) => reply(StatusCode::OK, JSON, format!("{shown:#}\n")),
        }
    }

    /// Reads a body, whatever it says; the answer if it is too long or does not come.
    async fn read_past(&self, body: Incoming) -> Result<(), Reply> {
        match timeout(self.limits.head, ends_within(body, self.limits.body)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(closing(problem(StatusCode::PAYLOAD_TOO_LARGE, "This request has no body.", json!({})))),
            Err(_) => Err(closing(problem(StatusCode::REQUEST_TIMEOUT, "The body did not come.", json!({})))),
        }
    }

    /// A page of one piece is sent as a whole, with its length.
    async fn metrics(&self, seat: &Arc<Seat>) -> Reply {
        let mut page = self.registry.page();
        // Reading blocks: figures are kept behind locks of other rooms.
        let begun = self.run(&self.reads, move || {
            let pieces = [page.next(), page.next()].map(|piece| piece.map(Bytes::from));
            (pieces, page)
        });
        match begun.await {
            Err(failure) => failed(failure),
            Ok(([first, None], _)) => reply(StatusCode::OK, metrics::CONTENT_TYPE, first.unwrap_or_default()),
            Ok((first, page)) => {
                let pieces = Pieces::new(first, page, Arc::clone(&self.reads), Arc::clone(seat));
                reply_with(StatusCode::OK, metrics::CONTENT_TYPE, Either::Right(Either::Left(pieces)))
            }
        }
    }

    /// Shows what a command answers.
    async fn show(&self, read: fn(&(dyn Commands + 'static)) -> Value) -> Reply {
        let commands = Arc::clone(&self.commands);
        let shown = self.run(&self.reads, move || read(&*commands)).await;
        shown.map_or_else(failed, |shown| reply(StatusCode::OK, JSON, format!("{shown:#}\n")))
    }

    async fn reload(&self, headers: &HeaderMap) -> Reply {
        let commands = Arc::clone(&self.commands);
        match self.run(&self.reloads, move || commands.reload()).await {
            Err(failure) => failed(failure),
            Ok(Ok(plan)) if accepts_json(headers) => reply_json(StatusCode::OK, &json!({ "ok": true, "plan": plan })),
            Ok(Ok(plan)) => reply(StatusCode::OK, TEXT, plan + "\n"),
            Ok(Err(error)) if accepts_json(headers) => {
                reply_json(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "ok": false, "error": error }))
            }
            Ok(Err(error)) => reply(StatusCode::UNPROCESSABLE_ENTITY, TEXT, error + "\n"),
        }
    }

    async fn upgrade(&self, headers: &HeaderMap) -> Reply {
        let commands = Arc::clone(&self.commands);
        match self.run(&self.reloads, move || commands.upgrade()).await {
            Err(failure) => failed(failure),
            Ok(Ok(pid)) if accepts_json(headers) => reply_json(StatusCode::OK, &json!({ "ok": true, "pid": pid })),
            Ok(Ok(pid)) => {
                reply(StatusCode::OK, TEXT, format!("process {pid} has taken over; the one before drains\n"))
            }
            Ok(Err(error)) if accepts_json(headers) => {
                reply_json(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "ok": false, "error": error }))
            }
            Ok(Err(error)) => reply(StatusCode::UNPROCESSABLE_ENTITY, TEXT, format!("no upgrade: {error}\n")),
        }
    }

    /// Runs what may block on a thread for that. The place among `places` is kept until the command ends, even if
    /// nobody waits for it any more: so a command that hangs cannot heap up threads.
    async fn run<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        command: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let places = Arc::clone(places);
        let run = async {
            // Nobody closes the semaphore.
            let place = places.acquire_owned().await.ok();
            let command = tokio::task::spawn_blocking(move || {
                let result = command();
                drop(place);
                result
            });
            command.await.map_err(|_| Failure::Panicked)
        };
        timeout(self.limits.request, run).await.unwrap_or(Err(Failure::TooSlow))
    }
}

impl Endpoint {
    fn at(path: &str) -> Option<Self> {
        let exact = ENDPOINTS.iter().find(|(at, _)| *at == path).map(|(_, endpoint)| *endpoint);
        let forms = [(SERVER, Self::Server), (KEY, Self::Key)];
        exact.or_else(|| {
            let named = forms.into_iter().find(|(form, _)| names_in(path, form).is_some());
            named.map(|(_, endpoint)| endpoint).or_else(|| name_in(path, KEYS).map(|_| Self::Keys))
        })
    }

    fn methods(self) -> &'static [Method] {
        match self {
            Self::Reload | Self::Upgrade | Self::Server | Self::Explain => &[Method::POST],
            _ => &[Method::GET, Method::HEAD],
        }
    }

    /// Whether it is a POST: it changes something, or is asked something at length.
    fn is_command(self) -> bool {
        self.methods().contains(&Method::POST)
    }

    /// Whether it shows what clients have sent.
    fn tells_of_clients(self) -> bool {
        matches!(self, Self::DeadLetters | Self::DeadLetterStream)
    }

    fn allow(self) -> &'static str {
        if self.is_command() { "POST" } else { "GET, HEAD" }
    }
}

/// Whether the body ends within `most` bytes. What it says is ignored.
async fn ends_within(mut body: impl Body<Data = Bytes> + Unpin, most: usize) -> bool {
    let mut left = most;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return true };
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return false };
        left = rest;
    }
    true
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let ranges = lines.flat_map(|line| line.split(',')).map(|range| range.split(';').next().unwrap_or("").trim());
    ranges.into_iter().any(|range| range.eq_ignore_ascii_case(JSON))
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    reply_with(status, content_type, Either::Left(Full::new(body.into())))
}

fn reply_with(status: StatusCode, content_type: &'static str, body: Answer) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

fn reply_json(status: StatusCode, body: &Value) -> Reply {
    reply(status, JSON, format!("{body}\n"))
}

/// A problem as in RFC 9457, with the members of `more`.
fn problem(status: StatusCode, detail: &str, more: Value) -> Reply {
    let mut members = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    if let (Value::Object(members), Value::Object(more)) = (&mut members, more) {
        members.extend(more);
    }
    reply(status, PROBLEM, format!("{members}\n"))
}

fn not_found() -> Reply {
    let endpoints: Vec<_> =
        ENDPOINTS.iter().map(|(path, endpoint)| format!("{} {path}", endpoint.methods()[0])).collect();
    problem(StatusCode::NOT_FOUND, "There is no such endpoint.", json!({ "endpoints": endpoints }))
}

fn not_allowed(endpoint: Endpoint) -> Reply {
    let detail = format!("This endpoint answers {}.", endpoint.allow());
    let mut reply = problem(StatusCode::METHOD_NOT_ALLOWED, &detail, json!({}));
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(endpoint.allow()));
    reply
}

fn no_dead_letters(refused: Refused) -> Reply {
    match refused {
        Refused::NoLog => {
            let detail = "There is no dead-letter log: write a [dead_letter] section into the file and reload.";
            problem(StatusCode::NOT_FOUND, detail, json!({}))
        }
        Refused::Wrong { parameter, detail, allowed } => {
            problem(StatusCode::BAD_REQUEST, &detail, json!({ "parameter": parameter, "allowed": allowed }))
        }
        Refused::Unreadable(detail) => problem(StatusCode::INTERNAL_SERVER_ERROR, &format!("{detail}."), json!({})),
    }
}

fn refused(refusal: Refusal) -> Reply {
    let (status, detail) = match refusal {
        Refusal::ManyHosts => (StatusCode::BAD_REQUEST, "A request has one Host."),
        Refusal::ForeignHost => {
            (StatusCode::FORBIDDEN, "On a loopback address the Host must be localhost or an IP address.")
        }
        Refusal::ForeignOrigin => (StatusCode::FORBIDDEN, "A page of another origin cannot do this."),
    };
    closing(problem(status, detail, json!({})))
}

fn failed(failure: Failure) -> Reply {
    match failure {
        Failure::Panicked => problem(StatusCode::INTERNAL_SERVER_ERROR, "The command failed; see the log.", json!({})),
        Failure::TooSlow => {
            let detail = "The command takes longer than a request may. If it had begun, it goes on.";
            problem(StatusCode::SERVICE_UNAVAILABLE, detail, json!({}))
        }
    }
}

/// With the connection closed after it, where the request's body may not have been read.
fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}
