//! Requests that a replay sends again: whom they are counted for.

use std::net::IpAddr;

use super::headers::passed;
use crate::dead_letter::{ReplayGuard, Replayed};
use crate::http1::Request;
use crate::time::Tick;

/// A request that the token of a replay vouches for.
#[derive(Debug)]
pub struct Vouched {
    /// The client of the record, which is taken for the client.
    pub client: IpAddr,
    /// The same in words.
    pub text: String,
    /// The value of its field, for the server.
    pub value: Vec<u8>,
}

/// Looks for the token of a replay. Others than those of this log's own replays are as good as none, and the field is cut.
#[inline]
pub fn recognise(guard: &ReplayGuard, request: &Request<'_>, now: Tick) -> Option<Box<Vouched>> {
    passed::replay_token(request).and_then(|value| vouched(guard, request, value, now))
}

#[cold]
fn vouched(guard: &ReplayGuard, request: &Request<'_>, value: &[u8], now: Tick) -> Option<Box<Vouched>> {
    let mut target = request.path_bytes().to_vec();
    if let Some(query) = request.query_bytes() {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    let host = request.authority_bytes().unwrap_or_default();
    let replayed = Replayed { method: request.method().as_bytes(), host, target: &target };
    let client = guard.client(value, &replayed, now)?;
    Some(Box::new(Vouched { client, text: client.to_string(), value: value.to_vec() }))
}

/// The peer that admission goes by: the client of a record that is sent again, else the other end of the connection.
#[inline]
pub fn peer_of(replayed: Option<&Vouched>, peer: IpAddr) -> IpAddr {
    replayed.map_or(peer, |vouched| vouched.client)
}
