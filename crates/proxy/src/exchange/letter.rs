//! The dead letters of an exchange.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use super::life::Exchange;
use crate::client::PeerFacts;
use crate::headers::passed;
use crate::scratch::{Letter, Scratch};
use crate::snapshot::MetBlock;
use crate::view::LimitView;
use sluicegate_admission::{KeyExpr, KeyPart};
use sluicegate_dead_letter::{Draft, Event, KeptBody, KeyName, Quota, Reason, TextRoom};
use sluicegate_http1::Framing;
use sluicegate_limiter::{Fingerprint, Refusal, RefusalReason};
use sluicegate_redact::Clip;
use sluicegate_time::{Span, Tick};

/// Tells these keys from those that admission makes.
const CLIENT_KEY: u8 = 255;

impl Exchange {
    /// Whom records that no limit caused are counted by, so that one client cannot use all of the log's rate up.
    pub fn client_key(&self) -> Fingerprint {
        let mut key = self.view.snapshot.hasher.start();
        match (&self.record.client, self.connection.peer.ip().to_canonical()) {
            (Some(client), _) => key.part(CLIENT_KEY, &client.key()),
            (None, IpAddr::V4(peer)) => key.part(CLIENT_KEY, &peer.octets()),
            // The usual share of one client; who it is could not be read.
            (None, IpAddr::V6(peer)) => key.part(CLIENT_KEY, &peer.octets()[..8]),
        }
        key.finish()
    }

    /// The key by which it has turns at its upstream, where requests wait: for a place, or for a connect.
    pub fn fair_key(&self) -> Fingerprint {
        match self.record.upstream.as_ref().and_then(|upstream| upstream.fair_key.as_ref()) {
            None => self.client_key(),
            Some(key) => self.key_by(key),
        }
    }

    /// Apart, so that the hot path has no second copy of reading keys.
    #[cold]
    #[inline(never)]
    fn key_by(&self, key: &KeyExpr) -> Fingerprint {
        let (Some(route), Some(client)) = (&self.record.route, &self.record.client) else { return self.client_key() };
        let key = self.view.rules.key_of(&self.context(), client, route.rules(), key);
        key.unwrap_or_else(|| self.client_key())
    }

    /// Offers the dead-letter log a record, without waiting; if the rest of a body is kept with it, when that has come.
    pub fn write_dead_letter(&mut self, reason: Reason, key: Option<Fingerprint>, refusal: Option<&Refusal>) {
        // A replay has a record already, and a journal of its own: a second record would be sent again by the next one.
        if self.view.snapshot.dead_letters.is_none() || self.scratch.state.replayed.is_some() {
            return;
        }
        let at = self.ended();
        let is_whole = self.scratch.upload.is_complete();
        match &mut self.scratch.inbound.capture {
            Some(capture) if !is_whole => capture.post(Letter { reason, key, refusal: refusal.copied(), at }),
            _ => self.offer_letter(reason, key, refusal, at),
        }
    }

    /// Offers the record that has waited for a body, if one has.
    pub fn offer_posted(&mut self) {
        let letter = self.scratch.inbound.capture.as_mut().and_then(|capture| capture.take_letter());
        if let Some(Letter { reason, key, refusal, at }) = letter {
            self.offer_letter(reason, key, refusal.as_ref(), at);
        }
    }

    fn offer_letter(&self, reason: Reason, key: Option<Fingerprint>, refusal: Option<&Refusal>, now: Tick) {
        let Some(log) = &self.view.snapshot.dead_letters else { return };
        let body = self.scratch.inbound.capture.as_ref().map_or(0, |capture| capture.kept());
        let event = Event {
            reason,
            is_shadow: false,
            limit: self.limit_name(),
            route: self.route_name(),
            key,
            client: log.has_room(now).then(|| self.client_key()),
            bytes: TextRoom::of_head(self.scratch.inbound.head().len()) + body as u64,
            now,
        };
        let about = About { limit: self.record.limit.as_deref(), refusal, is_shadow: false, now };
        log.offer(&event, || self.key_name(about.limit), || self.draft(reason, &about));
    }

    /// Offers the dead-letter log a record for each limit in shadow mode that would have refused it.
    #[cold]
    #[inline(never)]
    pub fn write_shadow_letters(&self) {
        let (Some(log), Some(client), Some(route)) =
            (&self.view.snapshot.dead_letters, &self.record.client, &self.record.route)
        else {
            return;
        };
        if self.scratch.state.replayed.is_some() {
            return;
        }
        let now = self.arrived;
        for limit in self.scratch.report.shadow_refusals().filter_map(|place| route.limit(place)) {
            let event = Event {
                reason: Reason::RateLimited,
                is_shadow: true,
                limit: Some(limit.name()),
                route: self.route_name(),
                key: route.rules().key_of_limit(&self.context(), client, limit.place),
                client: log.has_room(now).then(|| self.client_key()),
                bytes: TextRoom::of_head(self.scratch.inbound.head().len()),
                now,
            };
            let about = About { limit: Some(limit), refusal: None, is_shadow: true, now };
            log.offer(&event, || self.key_name(about.limit), || self.draft(Reason::RateLimited, &about));
        }
    }

    /// Counts its key among those that a limit of its route admits or refuses.
    #[inline]
    pub fn count_key(&self, limit: &LimitView, key: Option<Fingerprint>, is_admitted: bool) {
        if let Some(key) = key {
            let now = self.arrived;
            limit.keys.count(self.worker.index, (key, is_admitted), now, || self.key_name(Some(limit)));
        }
    }

    /// Enters the block of a key that a refusal tells of, if it tells of one.
    pub fn list_block(&self, limit: &LimitView, key: Option<Fingerprint>, until: Option<Tick>) {
        let Some((print, until)) = key.zip(until) else { return };
        let met = MetBlock { limit: limit.name(), print, until, is_direct: self.is_direct() };
        self.view.snapshot.blocks.enter(met, self.arrived, || self.key_name(Some(limit)));
    }

    /// Whether its client is the other end of its connection, as the kernel sees it too.
    fn is_direct(&self) -> bool {
        let PeerFacts { is_own, asks, proxied, .. } = &self.connection.facts;
        let is_told = *is_own || asks.is_some() || proxied.is_some() || self.scratch.state.replayed.is_some();
        let peer = self.connection.peer.ip().to_canonical();
        !is_told && self.record.client.as_ref().is_some_and(|client| client.addr() == peer)
    }

    /// Its key in a limit of its route; without one, its client.
    pub(super) fn key_name(&self, limit: Option<&LimitView>) -> KeyName {
        let client = || vec![("client-ip".to_owned(), self.client_address().to_string().into())];
        let mut room = TextRoom::new();
        let mut clip = |KeyPart { source, value }: KeyPart| (source, room.clip(value.as_bytes(), TextRoom::KEY));
        let parts: Vec<_> = self.key_parts(limit).into_iter().map(&mut clip).collect();
        let is_secret = limit.and_then(|limit| limit.spec.key_is_secret);
        KeyName { parts: if parts.is_empty() { client() } else { parts }, is_secret }
    }

    fn draft(&self, reason: Reason, about: &About<'_>) -> Draft {
        let About { limit, refusal, is_shadow, now } = *about;
        let request = self.request();
        let mut room = TextRoom::new();
        let key = self
            .key_parts(limit)
            .into_iter()
            .map(|part| (part.source, room.clip(part.value.as_bytes(), TextRoom::KEY)));
        let key = key.collect();
        let path = room.clip(request.path_bytes(), TextRoom::PATH);
        let query = request.query_bytes().map(|query| room.clip(query, TextRoom::PATH));
        let host = room.clip(request.authority_bytes().unwrap_or_default(), TextRoom::HOST);
        let mut fields = passed::fields(&request);
        let mut headers = Vec::new();
        while headers.len() < TextRoom::HEADERS
            && !room.is_full()
            && let Some((name, value)) = fields.next()
        {
            let mut name = room.clip(name, TextRoom::HOST);
            name.text.make_ascii_lowercase();
            headers.push((name, room.clip(value, TextRoom::HEADER)));
        }
        Draft {
            at: self.worker.clock.wall(now),
            reason,
            is_shadow,
            limit: limit.map(|limit| Arc::clone(limit.name())),
            route: self.route_name().cloned(),
            plan: self.plan_name().cloned(),
            upstream: self.upstream_name().cloned(),
            client_ip: Some(self.client_address()),
            key,
            key_is_secret: limit.and_then(|limit| limit.spec.key_is_secret),
            method: Clip::of(request.method().as_bytes(), TextRoom::METHOD),
            host,
            path,
            query,
            headers,
            is_https: self.context().origin.scheme == "https",
            trusted_peer: self.view.rules.clients().trusts(self.connection.peer.ip()),
            is_asked: self.connection.facts.asks.is_some(),
            headers_left_out: fields.count(),
            body: self.kept_body(),
            // A limit that was replaced while the request waited has no numbers any more.
            quota: match refusal {
                Some(refusal) => (refusal.quota > 0).then(|| Quota {
                    limit: refusal.quota,
                    window_ms: refusal.window.as_millis_ceil(),
                    remaining: refusal.remaining,
                    retry_after_ms: refusal.retry_at.map(|at| at.since(now).as_millis_ceil()),
                }),
                None => limit.filter(|_| is_shadow).and_then(|limit| self.tightest(limit)),
            },
            scale: limit.and_then(|limit| self.scale_of(limit)),
            why: self.why(about),
            status: self.record.status.unwrap_or(0),
            attempts: self.record.attempts,
            tries: self.tries(),
            trace_id: self.trace_id(),
            request_id: Some(self.request_id()),
        }
    }

    /// The share to which a limit is scaled, in percent; `None`: all of it holds.
    pub(super) fn scale_of(&self, limit: &LimitView) -> Option<u8> {
        let overload = self.view.snapshot.overload.as_ref().filter(|_| limit.spec.spec.is_adaptive)?;
        let percent = overload.scale_percent();
        (percent < 100.0).then_some(percent as u8)
    }

    /// The part of its body that is kept; none of it where none is captured. `None`: it has no body.
    fn kept_body(&self) -> Option<KeptBody> {
        let Scratch { inbound, upload, request, .. } = &*self.scratch;
        if matches!(request.framing(), Framing::None | Framing::Length(0)) {
            return None;
        }
        let Some(capture) = &inbound.capture else {
            return Some(KeptBody { bytes: Vec::new(), length: upload.content(), is_whole: false });
        };
        // A client of HTTP/2 that has read its refusal may end its body early, as if that was all.
        let may_be_less = self.connection.facts.is_h2 && request.framing() == Framing::Chunked && capture.was_posted();
        Some(capture.body(upload.is_complete() && !may_be_less))
    }

    /// How the rate of a limit stands that has least left.
    fn tightest(&self, limit: &LimitView) -> Option<Quota> {
        let lines = self.scratch.report.lines().iter().filter(|line| line.limit == limit.place);
        lines.min_by_key(|line| line.remaining).map(|line| Quota {
            limit: line.quota,
            window_ms: line.window.as_millis_ceil(),
            remaining: line.remaining,
            retry_after_ms: line.reset.map(Span::as_millis_ceil),
        })
    }

    /// The short form of an explanation: the route, how the client was found, and how its limits stand. Nothing in it is of the
    /// client but addresses.
    pub(super) fn why(&self, about: &About<'_>) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = write!(text, "route {}", self.route_name().map_or("none", |route| route));
        if let Some(plan) = self.plan_name() {
            let _ = write!(text, ", plan {plan}");
        }
        let (client, peer) = (self.client_address(), self.connection.peer.ip().to_canonical());
        if client != peer {
            let _ = write!(text, "; client {client} behind {peer}");
        }
        let Some(route) = &self.record.route else { return text };
        for line in self.scratch.report.lines() {
            let name = route.limit(line.limit).map_or("", |limit| limit.name());
            let shadow = if line.shadow { " (shadow)" } else { "" };
            let _ = write!(text, "; {name}{shadow}: {} of {}", line.remaining, line.quota);
            if !line.window.is_zero() {
                let _ = write!(text, " in {}", line.window);
            }
            let _ = write!(text, " left");
            if let Some(scale) = route.limit(line.limit).and_then(|limit| self.scale_of(limit)) {
                let _ = write!(text, ", scaled to {scale}%");
            }
            if let Some(reset) = line.reset.filter(|_| line.remaining == 0) {
                let _ = write!(text, ", room in {} ms", reset.as_millis_ceil());
            }
            if about.limit.is_some_and(|limit| limit.place == line.limit) {
                let _ = match (about.refusal, about.is_shadow) {
                    (Some(refusal), _) => write!(text, ", refuses: {}", words_of(refusal.why)),
                    (None, true) => write!(text, ", would refuse"),
                    (None, false) => Ok(()),
                };
            }
        }
        if let Some(fault) = self.record.switch_fault {
            let _ = write!(text, "; the server answered 101, but {}", fault.words());
        }
        text
    }
}

/// The subject of a record.
#[derive(Clone, Copy)]
pub(super) struct About<'r> {
    /// The limit that decided.
    pub(super) limit: Option<&'r LimitView>,
    pub(super) refusal: Option<&'r Refusal>,
    /// Whether that limit is in shadow mode, and only would have refused.
    pub(super) is_shadow: bool,
    pub(super) now: Tick,
}

fn words_of(why: RefusalReason) -> &'static str {
    match why {
        RefusalReason::Rate => "no room",
        RefusalReason::QueueFull => "its queue is full",
        RefusalReason::WaitTimeout => "no room in time",
        RefusalReason::TooCostly => "costs more than it ever admits",
        RefusalReason::TableFull => "its table of keys is full",
        RefusalReason::Blocked => "the key is blocked",
        RefusalReason::StoreDown => "its store does not answer",
    }
}
