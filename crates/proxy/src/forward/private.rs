//! Connections to servers that requests authenticate, by NTLM or Negotiate: whatever comes over such a one is taken for the
//! user that it was authenticated for, so that each belongs to one connection of a client.

use std::rc::Rc;

use super::relay::Left;
use crate::exchange::Exchange;
use crate::headers;
use crate::view::Admitted;
use sluicegate_http1::{Known, authenticates_connection};
use sluicegate_upstream::Leased;

/// Gives the connection to the server back after an answer: to the server's others, or to the client's connection that it
/// belongs to.
pub fn give_back(exchange: &Exchange, admitted: &Admitted, mut lease: Leased, left: Left) {
    lease.mark_finished();
    if lease.is_private() {
        keep(exchange, admitted, lease, left);
    } else if left.is_clean {
        lease.give_back(left.is_drained, left.is_doubtful, exchange.worker.alarms.coarse_now());
    }
}

/// Keeps it for the client's connection, if that is one of HTTP/1 and of no proxy, which speaks for many; else it ends. A proxy
/// is one of `trusted_proxies`, and a client that says that it is one.
#[cold]
fn keep(exchange: &Exchange, admitted: &Admitted, mut lease: Leased, left: Left) {
    if lease.stream().is_single_use() {
        let upstream = exchange.upstream_name().map_or("", |name| name);
        return exchange.worker.report_authentication(upstream);
    }
    let facts = &exchange.connection.facts;
    let is_shared =
        facts.is_h2 || facts.is_own || admitted.arrival().trusted_peer || headers::is_from_proxy(&exchange.request());
    if is_shared || exchange.scratch.state.replayed.is_some() {
        return;
    }
    let server = Rc::clone(lease.server());
    let now = exchange.worker.alarms.coarse_now();
    let idle = if left.is_clean { lease.keep(left.is_drained, left.is_doubtful, now) } else { None };
    exchange.connection.keep_private(&server, idle);
}

/// Whether a request's head, as a route has made it, authenticates the connection.
pub fn authenticates(head: &[u8]) -> bool {
    head.split(|byte| *byte == b'\n').any(|line| {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        matches!(Known::of(name), Known::Authorization | Known::ProxyAuthorization)
            && authenticates_connection(value.get(1..).unwrap_or_default())
    })
}
