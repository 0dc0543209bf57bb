use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http_body::Frame;

use super::h1::Head;
use super::listener::Connection;
use super::meters::Outcome;
use super::worker::{View, Worker};
use crate::admission::{ClientIp, KeyPart, RequestView};
use crate::dead_letter::{Draft, Event, Quota, Reason};
use crate::limiter::{Fingerprint, Refusal};
use crate::telemetry::AccessEntry;
use crate::time::Tick;

/// Tells these keys from those that admission makes.
const CLIENT_KEY: u8 = 255;
/// Longest request id that is taken over from a trusted peer, in bytes.
const MAX_REQUEST_ID: usize = 128;

/// One request from its arrival to its end. Whatever happens, dropping it records exactly one outcome.
pub struct Exchange {
    /// The worker that carries it.
    pub worker: Rc<Worker>,
    /// The one generation of the configuration that it sees.
    pub view: Rc<View>,
    /// When it arrived: the first clock reading.
    pub arrived: Tick,
    /// Its connection.
    pub connection: Rc<Connection>,
    /// What the client sent.
    pub head: Head,
    /// Its id, in logs and upstream.
    pub request_id: String,
    /// The trace that starts here if the request brought none.
    pub new_traceparent: String,
    /// What happened to it so far.
    pub story: Story,
    /// Whether the request's body has been read to its end.
    pub upload_ended: Rc<Cell<bool>>,
    outcome: Outcome,
    bytes_sent: u64,
    ended: RefCell<Option<Tick>>,
}

/// What happened to a request, as logs and dead letters tell it.
#[derive(Default)]
pub struct Story {
    /// The route that matched.
    pub route: Option<usize>,
    /// Who asked.
    pub client: Option<ClientIp>,
    /// The upstream that it went to, and the server there.
    pub upstream: Option<(Arc<str>, Arc<str>)>,
    /// How often it was sent.
    pub attempts: u32,
    /// The status that went out, or will.
    pub status: Option<u16>,
    /// The limit that refused or timed it out, by its place in the route.
    pub limit: Option<usize>,
    /// The limit in whose queue it waited first, by its place in the file.
    pub queued_in: Option<usize>,
}

impl Exchange {
    /// A request that has just arrived.
    pub fn new(worker: Rc<Worker>, connection: Rc<Connection>, head: Head, arrived: Tick) -> Box<Self> {
        let view = worker.view();
        connection.begin();
        let (one, two, three) = (worker.random(), worker.random(), worker.random());
        Box::new(Self {
            view,
            arrived,
            connection,
            head,
            request_id: format!("{one:016x}{two:016x}"),
            // A trace id and a span id may not be all zeros.
            new_traceparent: format!("00-{one:016x}{two:016x}-{:016x}-00", three | 1),
            story: Story::default(),
            upload_ended: Rc::new(Cell::new(false)),
            outcome: Outcome::ClientGone,
            bytes_sent: 0,
            ended: RefCell::new(None),
            worker,
        })
    }

    /// Takes the id of a trusted peer over.
    pub fn adopt_request_id(&mut self) {
        let theirs = self.head.header("x-request-id").and_then(|value| std::str::from_utf8(value).ok());
        if let Some(id) = theirs
            && !id.is_empty()
            && id.len() <= MAX_REQUEST_ID
            && id.bytes().all(|byte| byte.is_ascii_graphic())
        {
            id.clone_into(&mut self.request_id);
        }
    }

    /// Counts what goes out.
    pub fn sent(&mut self, frame: &Frame<Bytes>) {
        self.bytes_sent += frame.data_ref().map_or(0, |data| data.len() as u64);
    }

    /// Says how it ended. An exchange that nobody finishes was left by its client.
    pub fn finish(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// The second and last clock reading, taken when it is first asked for.
    pub fn ended(&self) -> Tick {
        *self.ended.borrow_mut().get_or_insert_with(|| self.worker.clock.now())
    }

    /// The deadline passed while the body was on its way.
    pub fn timed_out_late(&mut self) {
        self.finish(Outcome::Timeout);
        self.blame_timeout();
        self.write_dead_letter(Reason::Timeout, self.client_key(), None);
    }

    /// The upstream broke its body off.
    pub fn broken_off_late(&mut self) {
        self.finish(Outcome::UpstreamError);
        self.write_dead_letter(Reason::UpstreamError, self.client_key(), None);
    }

    /// Finds the limit whose timeout was the one that ended the request; none if it was the route's own.
    pub fn blame_timeout(&mut self) {
        let snapshot = &self.view.snapshot;
        let Some(route) = self.story.route.and_then(|route| snapshot.routes.get(route)) else { return };
        let shortest = route
            .limits
            .iter()
            .enumerate()
            .filter_map(|(place, limit)| Some((snapshot.limits.get(*limit)?.timeout?, place)))
            .min();
        self.story.limit = match (shortest, route.timeout) {
            (Some((limit, _)), Some(own)) if own <= limit => None,
            (Some((_, place)), _) => Some(place),
            (None, _) => None,
        };
    }

    /// Whom records that no limit caused are counted by, so that one client cannot use all of the log's rate up.
    pub fn client_key(&self) -> Option<Fingerprint> {
        let mut key = self.view.snapshot.hasher.start();
        key.part(CLIENT_KEY, &self.story.client.as_ref()?.key());
        Some(key.finish())
    }

    /// Offers the dead-letter log a record, without waiting.
    pub fn write_dead_letter(&self, reason: Reason, key: Option<Fingerprint>, refusal: Option<&Refusal>) {
        let Some(log) = &self.view.snapshot.dead_letters else { return };
        let route = self.story.route.and_then(|route| self.view.snapshot.routes.get(route)).map(|route| &route.name);
        let limit = self.limit_name();
        let event = Event { reason, limit, route, key, now: self.ended() };
        log.offer(&event, || self.draft(reason, refusal));
    }

    fn limit_name(&self) -> Option<&Arc<str>> {
        let limit = self.view.snapshot.limit_of(self.story.route?, self.story.limit?)?;
        Some(&limit.name)
    }

    fn draft(&self, reason: Reason, refusal: Option<&Refusal>) -> Draft {
        let snapshot = &self.view.snapshot;
        let now = self.ended();
        Draft {
            at: now,
            reason,
            limit: self.limit_name().cloned(),
            route: self.story.route.and_then(|route| snapshot.routes.get(route)).map(|route| Arc::clone(&route.name)),
            upstream: self.story.upstream.as_ref().map(|(upstream, _)| Arc::clone(upstream)),
            client_ip: Some(self.client_address()),
            key: self.key_parts(),
            method: self.head.method().to_owned(),
            host: self.head.authority().unwrap_or_default().to_owned(),
            path: self.head.path().to_owned(),
            query: self.head.query().map(str::to_owned),
            headers: self.head.fields_as_text(),
            // A limit that was replaced while the request waited has no numbers any more.
            quota: refusal.filter(|refusal| refusal.quota > 0).map(|refusal| Quota {
                limit: refusal.quota,
                window_ms: refusal.window.as_millis_ceil(),
                remaining: refusal.remaining,
                retry_after_ms: refusal.retry_at.map(|at| at.since(now).as_millis_ceil()),
            }),
            status: self.story.status.unwrap_or(0),
            attempts: self.story.attempts,
            trace_id: Some(self.trace_id()),
            request_id: Some(self.request_id.clone()),
        }
    }

    fn key_parts(&self) -> Vec<KeyPart> {
        match (&self.story.client, self.story.route, self.story.limit) {
            (Some(client), Some(route), Some(limit)) => {
                self.view.snapshot.rules.describe_key(&self.head, client, route, limit)
            }
            _ => Vec::new(),
        }
    }

    fn client_address(&self) -> IpAddr {
        self.story.client.as_ref().map_or_else(|| self.connection.peer.ip().to_canonical(), ClientIp::addr)
    }

    fn trace_id(&self) -> String {
        let theirs = self.head.header("traceparent").filter(|value| super::headers::is_traceparent(value));
        let parent = theirs.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or(&self.new_traceparent);
        parent.get(3..35).unwrap_or_default().to_owned()
    }

    fn log(&self) {
        let Some(log) = &self.view.snapshot.access_log else { return };
        let redactor = &self.view.snapshot.redactor;
        let text = |name| {
            let value = String::from_utf8_lossy(self.head.header(name)?);
            Some(redactor.header(name, &value).into_owned())
        };
        let mut target = self.head.path().to_owned();
        if let Some(query) = self.head.query() {
            // Writing into a String cannot fail.
            let _ = write!(target, "?{}", redactor.query(query));
        }
        let snapshot = &self.view.snapshot;
        log.offer(AccessEntry {
            at: self.arrived,
            client: self.client_address(),
            method: self.head.method().to_owned(),
            host: self.head.authority().unwrap_or_default().to_owned(),
            target,
            protocol: self.head.protocol(),
            // 499 is nginx's way to say that the client did not wait for an answer.
            status: self.story.status.unwrap_or(499),
            bytes_sent: self.bytes_sent,
            took: self.ended().since(self.arrived),
            route: self.story.route.and_then(|route| snapshot.routes.get(route)).map(|route| Arc::clone(&route.name)),
            upstream: self.story.upstream.as_ref().map(|(upstream, _)| Arc::clone(upstream)),
            server: self.story.upstream.as_ref().map(|(_, server)| Arc::clone(server)),
            outcome: self.outcome.text(),
            limit: self.limit_name().cloned(),
            request_id: self.request_id.clone(),
            user_agent: text("user-agent"),
            referer: text("referer"),
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.view.meters.finished(self.story.route, self.outcome, self.story.status);
        self.log();
        self.connection.end();
        self.worker.publish_in_flight();
    }
}
