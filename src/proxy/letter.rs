//! What dead letters tell of an exchange.

use std::net::IpAddr;

use super::exchange::Exchange;
use super::headers::passed;
use crate::admission::KeyPart;
use crate::dead_letter::{Draft, Event, KeyName, Quota, Reason, TextRoom};
use crate::limiter::{Fingerprint, Refusal};
use crate::redact::Clip;

/// Tells these keys from those that admission makes.
const CLIENT_KEY: u8 = 255;

impl Exchange {
    /// Whom records that no limit caused are counted by, so that one client cannot use all of the log's rate up.
    pub fn client_key(&self) -> Fingerprint {
        let mut key = self.view.snapshot.hasher.start();
        match (&self.story.client, self.connection.peer.ip().to_canonical()) {
            (Some(client), _) => key.part(CLIENT_KEY, &client.key()),
            (None, IpAddr::V4(peer)) => key.part(CLIENT_KEY, &peer.octets()),
            // The usual share of one client; who it is could not be read.
            (None, IpAddr::V6(peer)) => key.part(CLIENT_KEY, &peer.octets()[..8]),
        }
        key.finish()
    }

    /// Offers the dead-letter log a record, without waiting.
    pub fn write_dead_letter(&self, reason: Reason, key: Option<Fingerprint>, refusal: Option<&Refusal>) {
        let Some(log) = &self.view.snapshot.dead_letters else { return };
        let now = self.ended();
        let event = Event {
            reason,
            limit: self.limit_name(),
            route: self.route_name(),
            key,
            client: log.has_room(now).then(|| self.client_key()),
            bytes: TextRoom::of_head(self.scratch.inbound.head().len()),
            now,
        };
        log.offer(&event, || self.key_name(), || self.draft(reason, refusal));
    }

    /// The key of the limit that ended it; where none did, its client.
    fn key_name(&self) -> KeyName {
        let client = || vec![("client-ip".to_owned(), self.client_address().to_string().into())];
        let mut room = TextRoom::new();
        let mut clip = |KeyPart { source, value }: KeyPart| (source, room.clip(value.as_bytes(), TextRoom::KEY));
        let parts: Vec<_> = self.key_parts().into_iter().map(&mut clip).collect();
        let is_secret = self.limit_plan().and_then(|limit| limit.key_is_secret);
        KeyName { parts: if parts.is_empty() { client() } else { parts }, is_secret }
    }

    fn draft(&self, reason: Reason, refusal: Option<&Refusal>) -> Draft {
        let now = self.ended();
        let request = self.request();
        let mut room = TextRoom::new();
        let key =
            self.key_parts().into_iter().map(|part| (part.source, room.clip(part.value.as_bytes(), TextRoom::KEY)));
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
            at: now,
            reason,
            limit: self.limit_name().cloned(),
            route: self.route_name().cloned(),
            plan: self.plan_name().cloned(),
            upstream: self.upstream_name().cloned(),
            client_ip: Some(self.client_address()),
            key,
            key_is_secret: self.limit_plan().and_then(|limit| limit.key_is_secret),
            method: Clip::of(request.method().as_bytes(), TextRoom::METHOD),
            host,
            path,
            query,
            headers,
            headers_left_out: fields.count(),
            // A limit that was replaced while the request waited has no numbers any more.
            quota: refusal.filter(|refusal| refusal.quota > 0).map(|refusal| Quota {
                limit: refusal.quota,
                window_ms: refusal.window.as_millis_ceil(),
                remaining: refusal.remaining,
                retry_after_ms: refusal.retry_at.map(|at| at.since(now).as_millis_ceil()),
            }),
            status: self.story.status.unwrap_or(0),
            attempts: self.story.attempts,
            tries: self.tries(),
            trace_id: self.trace_id(),
            request_id: Some(self.request_id()),
        }
    }
}
