//! Requests that a replay sends again: whom they are counted for.

use super::context::Origin;
use crate::headers::passed;
use sluicegate_dead_letter::{ReplayGuard, ReplayOrigin, Replayed};
use sluicegate_http1::Request;
use sluicegate_time::{Clock, Tick, Wall};

/// A request that the token of a replay vouches for.
#[derive(Debug)]
pub struct Vouched {
    /// The client of the record, which is taken for the client, and how it had come.
    pub origin: ReplayOrigin,
    /// The same in words.
    pub text: String,
    /// The value of its field, for the server.
    pub value: Vec<u8>,
}

/// Looks for the token of a replay. Others than those of this log's own replays are as good as none, and the field is cut.
#[inline]
pub fn recognise(guard: &ReplayGuard, request: &Request<'_>, (now, clock): (Tick, &Clock)) -> Option<Box<Vouched>> {
    passed::replay_token(request).and_then(|value| vouched(guard, request, value, (clock.wall(now), now)))
}

#[cold]
fn vouched(guard: &ReplayGuard, request: &Request<'_>, value: &[u8], now: (Wall, Tick)) -> Option<Box<Vouched>> {
    let mut target = request.path_bytes().to_vec();
    if let Some(query) = request.query_bytes() {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    let host = request.authority_bytes().unwrap_or_default();
    let replayed = Replayed { method: request.method().as_bytes(), host, target: &target };
    let origin = guard.origin(value, &replayed, now)?;
    Some(Box::new(Vouched { origin, text: origin.client.to_string(), value: value.to_vec() }))
}

/// The origin that admission goes by: that of a record that is sent again, else the connection's.
#[inline]
pub fn origin_of<'o>(replayed: Option<&Vouched>, connection: Origin<'o>) -> Origin<'o> {
    let Some(Vouched { origin, .. }) = replayed else { return connection };
    Origin {
        peer: origin.client,
        scheme: if origin.is_https { "https" } else { connection.scheme },
        trusts: Some(origin.trusted_peer),
        ..connection
    }
}
