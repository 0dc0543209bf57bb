use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::deferral_path;
use crate::client::{Connection, RequestContext, replayed};
use crate::endings::SwitchFault;
use crate::headers::{self, passed};
use crate::meters::{Finished, Outcome};
use crate::scratch::{PooledScratch, RequestState, RoomCharge, Scratch};
use crate::view::{LimitView, RouteView, UpstreamView, View};
use crate::worker::Worker;
use sluicegate_admission::{ClientIp, KeyPart, PlanPlace, PlanTerms};
use sluicegate_config::Traceparent;
use sluicegate_dead_letter::TextRoom;
use sluicegate_http1::{Request, Version};
use sluicegate_limiter::Permit;
use sluicegate_redact::Clip;
use sluicegate_telemetry::{AccessEntry, MAX_LOGGED_FIELD, MAX_LOGGED_KEYS, MAX_LOGGED_TARGET, ShadowRefusal};
use sluicegate_time::{Span, Tick};

/// Longest request id that is taken over from a trusted peer, in bytes.
const MAX_REQUEST_ID: usize = 128;
/// Bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;

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
    /// The buffers and the state that it works with, the request among them.
    pub scratch: PooledScratch,
    /// The permit of its limits, which is given back when it ends, whatever the end is.
    pub permit: Permit,
    /// The record of it so far.
    pub record: ExchangeRecord,
    /// Whether its connection was switched to WebSocket.
    pub is_websocket: bool,
    /// Bytes of the response's body that went out.
    pub bytes_sent: u64,
    /// Whether a byte of the final response went out.
    pub begun: bool,
    id: [u64; 3],
    outcome: Outcome,
    ended: Cell<Option<Tick>>,
    recorded: bool,
}

/// The record of a request, as logs and dead letters tell it.
#[derive(Default)]
pub struct ExchangeRecord {
    /// The route that matched.
    pub route: Option<Rc<RouteView>>,
    /// The plan that it is of.
    pub plan: Option<PlanPlace>,
    /// The client that asked.
    pub client: Option<ClientIp>,
    /// The upstream that it was to go to.
    pub upstream: Option<Rc<UpstreamView>>,
    /// The server there that it went to last, by its place in the upstream; `None`: none was chosen. Small, since each
    /// connection has room for it.
    pub server: Option<u32>,
    /// The path in its one spelling; `None` if it came so.
    pub path: Option<Box<str>>,
    /// How often it was sent.
    pub attempts: u32,
    /// The status that went out, or will.
    pub status: Option<u16>,
    /// Why the server's answer 101 was no switch of protocols.
    pub switch_fault: Option<SwitchFault>,
    /// The limit that refused or timed it out.
    pub limit: Option<Rc<LimitView>>,
    /// The limit in whose queue it waited first.
    pub queued_in: Option<Rc<LimitView>>,
    /// From its arrival to its admission, or to the end of its wait in vain; `None`: it has not waited.
    pub waited: Option<Span>,
    /// For a place at its upstream; `None`: it has not waited for one.
    pub pending: Option<Span>,
}

impl ExchangeRecord {
    /// The time that it has waited in all, if it has.
    fn waits(&self) -> Option<Span> {
        let all = [self.waited, self.pending].into_iter().flatten();
        all.reduce(|one, other| Span::from_nanos(one.as_nanos() + other.as_nanos()))
    }

    /// The terms of its plan, if it has one.
    pub fn plan_terms(&self) -> Option<&PlanTerms> {
        self.route.as_ref()?.terms_of(self.plan?)
    }

    /// The body of the answer that its route makes itself.
    pub fn route_body(&self) -> &[u8] {
        self.route.as_ref().map_or(b"", |route| route.body())
    }
}

impl Exchange {
    /// A request that has just arrived, with `head_bytes` of head in `scratch`.
    pub fn new(
        worker: &Rc<Worker>,
        connection: &Rc<Connection>,
        mut scratch: PooledScratch,
        head_bytes: usize,
        arrived: Tick,
    ) -> Self {
        scratch.inbound.begin(head_bytes);
        Self {
            view: worker.view(),
            arrived,
            connection: Rc::clone(connection),
            scratch,
            permit: Permit::default(),
            record: ExchangeRecord::default(),
            is_websocket: false,
            bytes_sent: 0,
            begun: false,
            id: [worker.random(), worker.random(), worker.random()],
            outcome: Outcome::ClientGone,
            ended: Cell::new(None),
            recorded: false,
            worker: Rc::clone(worker),
        }
    }

    /// The request that the client sent.
    pub fn request(&self) -> Request<'_> {
        self.scratch.request.on(self.scratch.inbound.head())
    }

    /// The same as admission sees it.
    pub fn context(&self) -> RequestContext<'_> {
        let origin = replayed::origin_of(self.scratch.state.replayed.as_deref(), self.connection.origin());
        let tokens = self.worker.tokens(&self.view, self.arrived);
        let body = self.scratch.state.body.as_deref().map(|body| &body.facts);
        RequestContext { request: self.request(), origin, clients: self.view.rules.clients(), body, tokens }
    }

    /// The memory that a body of it may hold, of which it holds nothing yet.
    pub fn body_room(&self) -> RoomCharge {
        RoomCharge::new(&self.worker.bodies, self.connection.account.bodies.get_or_init(Default::default))
    }

    /// Takes the id of a trusted peer over.
    pub fn adopt_request_id(&mut self) {
        let Scratch { inbound, request, state: RequestState { request_id, .. }, .. } = &mut *self.scratch;
        if let Some(id) = passed::field(&request.on(inbound.head()), b"x-request-id")
            && !id.is_empty()
            && id.len() <= MAX_REQUEST_ID
            && id.iter().all(u8::is_ascii_graphic)
        {
            request_id.extend_from_slice(id);
        }
    }

    /// Gives the request an id, if it has none yet.
    pub fn identify(&mut self) {
        let [one, two, _] = self.id;
        let id = &mut self.scratch.state.request_id;
        if id.is_empty() {
            id.extend_from_slice(&hex(one));
            id.extend_from_slice(&hex(two));
        }
    }

    /// The trace that starts here if the request brought none, as the configuration wants it: W3C Trace Context, version 00.
    /// Its numbers are those of the id. By default none does: samplers of servers go by its flag, and the gateway, which
    /// records nothing, has no right one.
    pub fn new_traceparent(&self) -> Option<[u8; TRACEPARENT_BYTES]> {
        let [one, two, three] = self.id;
        let mut text = match self.view.snapshot.server().traceparent {
            Traceparent::Pass => return None,
            Traceparent::Make => *b"00-00000000000000000000000000000000-0000000000000000-00",
            Traceparent::MakeSampled => *b"00-00000000000000000000000000000000-0000000000000000-01",
        };
        text[3..19].copy_from_slice(&hex(one));
        text[19..35].copy_from_slice(&hex(two));
        // A span id may not be all zeros.
        text[36..52].copy_from_slice(&hex(three | 1));
        Some(text)
    }

    /// Says how it ended. An exchange that nobody finishes was left by its client.
    pub fn finish(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// How it has ended, as far as that is said.
    pub(super) fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether a server's answer went out whole.
    pub fn was_forwarded(&self) -> bool {
        self.outcome == Outcome::Forwarded
    }

    /// Ends it and gives back what it worked with, for the next request of the same connection.
    pub fn end(mut self) -> PooledScratch {
        self.conclude();
        self.scratch.take()
    }

    /// A reading of the clock that serves as the last one.
    pub fn ended_at(&self, now: Tick) {
        self.ended.set(Some(now));
    }

    /// The last clock reading, taken when it is first asked for.
    pub fn ended(&self) -> Tick {
        if let Some(ended) = self.ended.get() {
            return ended;
        }
        let now = self.worker.clock.now();
        self.ended.set(Some(now));
        now
    }

    /// Finds the limit whose timeout was the one that ended the request; none if it was the route's own.
    pub fn blame_timeout(&mut self) {
        let Some(route) = &self.record.route else { return };
        let uses = self.record.plan_terms().map_or(&route.rules().limits, |terms| &terms.limits);
        // Those that refuse requests of its plan, when it arrived.
        let enforced = route.limits.iter().zip(uses).filter(|(_, own)| own.enforced && own.is_active(self.arrived));
        let shortest = enforced.filter_map(|(limit, _)| Some((limit.spec.timeout?, limit))).min_by_key(|(own, _)| *own);
        self.record.limit = match (shortest, route.spec.timeout) {
            (Some((limit, _)), Some(own)) if own <= limit => None,
            (Some((_, limit)), _) => Some(Rc::clone(limit)),
            (None, _) => None,
        };
    }

    /// The name of the request's plan.
    pub fn plan_name(&self) -> Option<&Arc<str>> {
        self.record.plan_terms().map(|terms| &terms.name)
    }

    pub(super) fn limit_name(&self) -> Option<&Arc<str>> {
        self.record.limit.as_ref().map(|limit| limit.name())
    }

    /// Records how it ended, once.
    fn conclude(&mut self) {
        self.recorded = true;
        self.leaves_flight();
        self.settle_rest();
        if self.scratch.inbound.capture.is_some() {
            self.offer_posted();
            self.scratch.inbound.capture = None;
        }
        // That the gateway itself asks a limit for room is no request of anybody.
        if !self.asks_for_room() {
            let took = self.ended().since(self.arrived);
            let (outcome, status, waited) = (self.outcome, self.record.status, self.record.waits());
            let meters = self.record.route.as_ref().map_or(self.view.meters.unrouted(), |route| &route.meters);
            meters.finished(&Finished { outcome, status, took, waited });
            self.log();
        }
        self.scratch.state.reset();
    }

    /// Whether it is a deferred request for which its limit has no room.
    pub(super) fn asks_for_room(&self) -> bool {
        self.connection.facts.is_own
            && matches!(self.outcome, Outcome::Refused | Outcome::Blocked | Outcome::WaitTimeout)
    }

    /// The name of its route.
    pub fn route_name(&self) -> Option<&Arc<str>> {
        self.record.route.as_ref().map(|route| &route.spec.name)
    }

    /// The upstream that it was to go to.
    pub fn upstream_name(&self) -> Option<&Arc<str>> {
        self.record.upstream.as_ref().map(|upstream| &upstream.spec.name)
    }

    /// The server there that it went to last.
    pub fn server_name(&self) -> Option<&Arc<str>> {
        self.record.upstream.as_ref()?.server_name(self.record.server? as usize)
    }

    /// Tries that failed: each one's server, and the reason.
    pub(super) fn tries(&self) -> Vec<(Arc<str>, Cow<'static, str>)> {
        let upstream = self.record.upstream.as_ref();
        let name = |server| upstream?.server_name(server).cloned();
        let tries = self.scratch.state.tries.iter();
        tries.filter_map(|tried| Some((name(tried.server)?, tried.why.word()))).collect()
    }

    /// The key by which a limit of its route counts it.
    pub fn key_parts(&self, limit: Option<&LimitView>) -> Vec<KeyPart> {
        match (&self.record.client, &self.record.route, limit) {
            (Some(client), Some(route), Some(limit)) => {
                route.rules().describe_key(&self.context(), client, limit.place)
            }
            _ => Vec::new(),
        }
    }

    /// The address of its client; that of its peer where the client is not known.
    pub fn client_address(&self) -> IpAddr {
        self.record.client.as_ref().map_or_else(|| self.connection.peer.ip().to_canonical(), ClientIp::addr)
    }

    /// The number of its client, by which servers and breakers tell whose requests fail.
    #[inline]
    pub fn client_number(&self) -> u64 {
        self.record.client.as_ref().map_or(0, ClientIp::number)
    }

    /// The numbers that its id is made of, where nobody gave it one.
    pub(super) fn id_numbers(&self) -> [u64; 2] {
        let [one, two, _] = self.id;
        [one, two]
    }

    /// Its id, in words.
    pub fn request_id(&self) -> String {
        let [one, two, _] = self.id;
        match &*self.scratch.state.request_id {
            [] => format!("{one:016x}{two:016x}"),
            id => String::from_utf8_lossy(id).into_owned(),
        }
    }

    pub(super) fn trace_id(&self) -> Option<String> {
        let own = self.new_traceparent();
        let request = self.request();
        let lines = passed::fields(&request).filter(|(name, _)| name.eq_ignore_ascii_case(b"traceparent"));
        let theirs = headers::trace_of(lines.map(|(_, value)| value));
        theirs.or_else(|| own.as_ref()?.get(3..35)).map(|id| String::from_utf8_lossy(id).into_owned())
    }

    /// The limits in shadow mode that would have refused it, and the key of each.
    fn shadow(&self) -> Vec<ShadowRefusal> {
        let report = &self.scratch.report;
        let Some(route) = self.record.route.as_ref().filter(|_| report.has_shadow_refusals()) else {
            return Vec::new();
        };
        let refusal = |place| {
            let limit = route.limit(place)?;
            let key = self.key_parts(Some(limit)).into_iter();
            let key = key.map(|part| (part.source, Clip::own(part.value, MAX_LOGGED_FIELD))).collect();
            Some(ShadowRefusal { limit: Arc::clone(limit.name()), key, key_is_secret: limit.spec.key_is_secret })
        };
        report.shadow_refusals().filter_map(refusal).collect()
    }

    /// The parts of the keys of its route's limits that the access log has in no other field, each once. Long ones are left out: by
    /// their beginning alone those of several clients would be one.
    fn logged_keys(&self) -> Vec<(String, Clip)> {
        let mut all: Vec<(String, Clip)> = Vec::new();
        let limits = self.record.route.iter().flat_map(|route| &route.limits);
        for limit in limits.filter(|limit| !limit.spec.key.is_in_access_log()) {
            for part in self.key_parts(Some(limit)) {
                let is_new = part.source.contains(':') && all.iter().all(|(own, _)| *own != part.source);
                if is_new && part.value.len() <= MAX_LOGGED_FIELD && all.len() < MAX_LOGGED_KEYS {
                    all.push((part.source, Clip::own(part.value, MAX_LOGGED_FIELD)));
                }
            }
        }
        all
    }

    fn log(&self) {
        let Some(log) = &self.view.snapshot.access_log else { return };
        let request = self.request();
        // Bounded copies and no more: the log's thread redacts them.
        let field = |name: &[u8]| Some(Clip::of(passed::field(&request, name)?, MAX_LOGGED_FIELD));
        log.offer(AccessEntry {
            at: self.worker.clock.wall(self.arrived),
            client: self.client_address(),
            method: Clip::of(request.method().as_bytes(), TextRoom::METHOD),
            host: Clip::of(request.authority_bytes().unwrap_or_default(), MAX_LOGGED_FIELD),
            target: match request.query_bytes() {
                // Whoever knows the id gets the answer.
                _ if self.view.snapshot.deferrals.is_some() && deferral_path::may_show_id(&request) => {
                    Clip::joined(&[deferral_path::PREFIX.as_bytes(), b"[redacted]"], MAX_LOGGED_TARGET)
                }
                Some(query) => Clip::joined(&[request.path_bytes(), b"?", query], MAX_LOGGED_TARGET),
                None => Clip::of(request.path_bytes(), MAX_LOGGED_TARGET),
            },
            protocol: match self.scratch.request.version() {
                _ if self.connection.facts.is_h2 => "HTTP/2.0",
                Version::Http10 => "HTTP/1.0",
                Version::Http11 => "HTTP/1.1",
            },
            // 499 is nginx's way to say that the client did not wait for an answer.
            status: self.record.status.unwrap_or(499),
            bytes_sent: self.bytes_sent,
            took: self.ended().since(self.arrived),
            waited: self.record.waits(),
            connect: self.scratch.state.times.connect,
            head: self.scratch.state.times.head,
            route: self.route_name().cloned(),
            upstream: self.upstream_name().cloned(),
            server: self.server_name().cloned(),
            tries: self.tries(),
            outcome: self.outcome.word(),
            limit: self.limit_name().cloned(),
            plan: self.plan_name().cloned(),
            shadow: self.shadow(),
            used: self.used(),
            keys: if log.has_keys() { self.logged_keys() } else { Vec::new() },
            request_id: self.request_id(),
            user_agent: field(b"user-agent"),
            referer: field(b"referer"),
            asked_by: self.connection.facts.asks.as_ref().map(|_| Arc::clone(self.connection.listening.name())),
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.recorded {
            return;
        }
        // The runtime has caught a panic of its task, and drops what the task held.
        if std::thread::panicking() {
            self.finish(Outcome::Panic);
            let (request_id, peer) = (self.request_id(), self.connection.peer);
            tracing::error!(target: "sluicegate::proxy::exchange::life", request_id, %peer, "a panic ended an exchange; its connection is closed");
        }
        self.conclude();
    }
}

/// Sixteen digits, lower case: those of all bytes at once.
fn hex(number: u64) -> [u8; 16] {
    // One digit a byte, the first one in the highest; then the letters are moved to where they are in ASCII.
    let mut wide = u128::from(number);
    wide = (wide | wide << 32) & 0x0000_0000_ffff_ffff_0000_0000_ffff_ffff;
    wide = (wide | wide << 16) & 0x0000_ffff_0000_ffff_0000_ffff_0000_ffff;
    wide = (wide | wide << 8) & 0x00ff_00ff_00ff_00ff_00ff_00ff_00ff_00ff;
    wide = (wide | wide << 4) & (EACH * 0x0f);
    let letters = (wide + EACH * 6) >> 4 & EACH;
    (wide + EACH * u128::from(b'0') + letters * u128::from(b'a' - b'0' - 10)).to_be_bytes()
}

/// One in each byte.
const EACH: u128 = 0x0101_0101_0101_0101_0101_0101_0101_0101;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_has_all_its_digits() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, u64::MAX, 0x9999_aaaa_0f0f_f0f0] {
            assert_eq!(hex(number), format!("{number:016x}").as_bytes());
        }
    }
}
