//! Equal requests in flight: the first one of a key leads, and is sent; others follow, and get a copy of its answer. The rules
//! are those of `sluicegate_collapse`; here they meet an exchange.
//!
//! The exchange of the leader is as any other, with three differences. Its answer is collected on its way; while somebody
//! follows, it is read no matter how slowly its client takes it (up to `max_body`, which is all that is kept); and then it goes
//! on when its client leaves. A copy goes through the relay as an answer of a server does, so that limits, edits, paces and
//! timeouts of the follower's own hold for it; but it tells nothing of the server.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::request_head::write_request;
use crate::client::Client;
use crate::endings::{ExchangeError, TimeoutKind};
use crate::exchange::{Exchange, poll_gone};
use crate::flights::FlightPhase;
use crate::headers::{self, passed};
use crate::scratch::{Leading, Overflow, RequestState, Scratch, SharedHead};
use crate::snapshot::RouteCollapse;
use crate::view::{Admitted, UpstreamView};
use sluicegate_collapse::{AnswerFollower, FollowEnd, Joined, may_share};
use sluicegate_http1::{Framing, HeadWriter};
use sluicegate_time::Tick;
use sluicegate_transport::{Memory, Protocol};
use sluicegate_upstream::Leased;

/// The answer of another request, where it can be had. `None`: the request is sent; it may lead others then.
pub async fn join(
    exchange: &mut Exchange,
    client: &mut Client,
    admitted: &Admitted,
    (upstream, collapse): (&Rc<UpstreamView>, &RouteCollapse),
    until: Tick,
) -> Result<Option<Leased>, ExchangeError> {
    if !may_join(exchange, upstream, collapse) {
        return Ok(None);
    }
    let key = key_of(exchange, admitted, (upstream, collapse));
    let followed = match collapse.table.join(&key, exchange.worker.alarms.coarse_now()) {
        Joined::Alone => FollowEnd::Alone,
        Joined::Lead(leader) => FollowEnd::Lead(leader),
        Joined::Follow(follower) => wait(exchange, client, &follower, until).await?,
    };
    match followed {
        FollowEnd::Alone => Ok(None),
        FollowEnd::Lead(leader) => {
            let leading = Leading::new(leader, collapse.max_body, exchange.body_room());
            exchange.scratch.state.leads = Some(Box::new(leading));
            Ok(None)
        }
        FollowEnd::Answer(answer) => {
            if let Some(route) = &exchange.record.route {
                route.meters.collapsed();
            }
            let server = upstream.servers.first().ok_or(ExchangeError::OutOfService)?;
            let head = answer.head_for(exchange.request_id().as_bytes());
            Ok(Some(Leased::of_copy(server, Memory::new(head, answer))))
        }
    }
}

/// The key of a request. Apart, since it lays the head out as the way of every request does, which has its own copy of that code.
#[cold]
#[inline(never)]
fn key_of(
    exchange: &mut Exchange,
    admitted: &Admitted,
    (upstream, collapse): (&UpstreamView, &RouteCollapse),
) -> Vec<u8> {
    write_request(exchange, admitted, upstream.shared.link.protocol == Protocol::Http2);
    let to_upstream = &mut exchange.scratch.to_upstream;
    let mut key = Vec::new();
    collapse.rules.write_key(to_upstream.made(), &mut key);
    to_upstream.clear();
    key
}

/// Whether its answer may be another one's, as far as that can be said before.
fn may_join(exchange: &Exchange, upstream: &UpstreamView, collapse: &RouteCollapse) -> bool {
    let (request, facts) = (exchange.request(), &exchange.connection.facts);
    exchange.scratch.request.framing() == Framing::None
        && !exchange.scratch.request.expects_continue()
        && request.upgrade().is_none()
        && facts.certificate.is_none()
        && !facts.is_own
        && exchange.scratch.state.replayed.is_none()
        // Its connection to the server is authenticated.
        && exchange.connection.private_place(&upstream.servers).is_none()
        && collapse.rules.may_collapse(request.method().as_bytes(), passed::fields(&request).map(|(name, _)| name))
}

/// Waits for the end of the request that this one follows.
async fn wait(
    exchange: &mut Exchange,
    client: &mut Client,
    follower: &AnswerFollower,
    until: Tick,
) -> Result<FollowEnd, ExchangeError> {
    exchange.set_phase(FlightPhase::Connecting);
    let began = exchange.worker.clock.now();
    let followed = poll_fn(|cx| {
        let now = exchange.worker.alarms.coarse_now();
        if let Poll::Ready(followed) = follower.poll(cx, now) {
            return Poll::Ready(Ok(followed));
        }
        let look_at = follower.body_due().unwrap_or(Tick::MAX);
        if let Poll::Ready(error) = poll_gone(cx, exchange, client, until.min(look_at)) {
            return Poll::Ready(Err(error));
        }
        match exchange.worker.alarms.coarse_now() {
            now if now >= until => Poll::Ready(Err(ExchangeError::Timeout(TimeoutKind::Deadline))),
            _ => Poll::Pending,
        }
    })
    .await;
    let now = exchange.worker.clock.now();
    exchange.worker.alarms.note(now);
    exchange.record.pending = Some(now.since(began));
    followed
}

/// The final head of the answer to a request that leads, of this length, and how its body comes.
#[cold]
pub fn begin(exchange: &mut Exchange, length: usize, framing: Framing, now: Tick) {
    let Some(mut leading) = exchange.scratch.state.leads.take() else { return };
    match shared_head(exchange, length, framing) {
        Some(head) => {
            leading.begin(head, now);
            exchange.scratch.state.leads = Some(leading);
        }
        None => leading.miss(now),
    }
}

/// The head for others; `None`: they get none. A body that only the server's end delimits may be cut short by a fault.
fn shared_head(exchange: &Exchange, length: usize, framing: Framing) -> Option<SharedHead> {
    let collapse = exchange.record.route.as_ref()?.collapse.as_ref()?;
    let Scratch { outbound, response, .. } = &*exchange.scratch;
    let stated = response.content_length();
    let response = response.on(outbound.filled().get(..length)?);
    let fits = stated.is_none_or(|length| length <= collapse.max_body) || framing == Framing::None;
    let is_in_key = |name: &[u8]| collapse.rules.is_in_key(name);
    if framing == Framing::UntilClose || !fits || !may_share(response.status(), response.fields(), is_in_key) {
        return None;
    }
    let mut lines = Vec::new();
    let mut writer = HeadWriter::response(&mut lines, response.status(), response.reason());
    let _ = headers::forward_response(&response, None, &mut writer);
    if let (Framing::None, Some(length)) = (framing, stated) {
        writer.number(b"content-length", length);
    }
    let has_request_id = cut_request_id(&mut lines, exchange.request_id().as_bytes());
    Some(SharedHead { lines, has_request_id, wants_length: framing != Framing::None })
}

/// Takes the field out of the head by which the server says the id of the request. Whether there was one.
fn cut_request_id(lines: &mut Vec<u8>, id: &[u8]) -> bool {
    const NAME: &[u8] = b"x-request-id";
    let is_it = |line: &&[u8]| {
        let (name, value) = line.split_at(line.len().min(NAME.len()));
        name.eq_ignore_ascii_case(NAME) && value.strip_prefix(b":").is_some_and(|value| value.trim_ascii() == id)
    };
    let others: Vec<&[u8]> = lines.split_inclusive(|byte| *byte == b'\n').filter(|line| !is_it(line)).collect();
    let others = others.concat();
    let has_one = others.len() < lines.len();
    *lines = others;
    has_one
}

/// The answer to a request that leads is no answer for others, whatever it says.
pub fn missed(exchange: &mut Exchange) {
    if let Some(leading) = exchange.scratch.state.leads.take() {
        leading.miss(exchange.worker.clock.now());
    }
}

/// More of the body is here; `end`: all of it, and whether trailers came, which a copy has no place for.
#[cold]
pub fn collected(state: &mut RequestState, end: Option<bool>, now: Tick) {
    let Some(leading) = state.leads.take() else { return };
    match (leading.overflow(), end) {
        (None, Some(false)) => leading.share(),
        (Some(Overflow::Size), _) | (None, Some(true)) => leading.miss(now),
        (Some(Overflow::Room), _) => leading.leave_alone(),
        // Whoever follows has seen to it. Its own client may be what is slow.
        (None, None) if leading.is_late(now) => leading.leave_alone(),
        (None, None) => state.leads = Some(leading),
    }
}

/// A request that leads has ended without an answer for others. Where its client is the reason, another one leads; else each is
/// sent.
#[cold]
pub fn give_up(exchange: &mut Exchange, error: &ExchangeError) {
    let Some(leading) = exchange.scratch.state.leads.take() else { return };
    match error {
        ExchangeError::ClientGone
        | ExchangeError::Cancelled
        | ExchangeError::QueueFull
        | ExchangeError::Timeout(TimeoutKind::ClientReads) => drop(leading),
        // A limit of its own may have a short one.
        ExchangeError::Timeout(TimeoutKind::Deadline) => leading.leave_alone(),
        _ => leading.miss(exchange.worker.clock.now()),
    }
}

#[cfg(test)]
mod tests {
    use super::cut_request_id;

    #[test]
    fn the_id_of_the_request_is_cut_and_another_id_stays() {
        let mut lines = b"HTTP/1.1 200 OK\r\nX-Request-ID:  7 \r\nx-request-id: 8\r\nx-request-idx: 7\r\n".to_vec();
        assert!(cut_request_id(&mut lines, b"7"));
        assert_eq!(lines, b"HTTP/1.1 200 OK\r\nx-request-id: 8\r\nx-request-idx: 7\r\n");
        assert!(!cut_request_id(&mut lines, b"7"));
    }
}
