//! Sends an admitted request to a server of its upstream. The only place that retries.

use std::future::poll_fn;
use std::rc::Rc;

use super::collapsing;
use super::oversized;
use super::paced;
use super::pick::Pick;
use super::private;
use super::relay::{Bounds, Relay, RelayEnd};
use super::request_head::{edits, write_request};
use super::retry;
use crate::client::Client;
use crate::endings::{Cause, Ending, ExchangeError, Failure, TimeoutKind, Tried};
use crate::exchange::Exchange;
use crate::flights::FlightPhase;
use crate::headers;
use crate::view::{Admitted, UpstreamView};
use sluicegate_balance::Evidence;
use sluicegate_http1::{Fault, Version};
use sluicegate_overload::ServerFailure;
use sluicegate_time::{Span, Tick};
use sluicegate_transport::LengthTrailers;
use sluicegate_upstream::{Leased, Pass};

/// Sends the request and relays the response. Only what admission let through gets here.
///
/// A server that cannot be reached was sent nothing, so another one is tried. A connection that had been idle and turns
/// out to be dead is replaced once, if nothing was written or the request may be repeated, and all of it is still here.
/// So is a request sent again, once, that a server of HTTP/2 would not look at, whatever it was; and one that may be repeated whose
/// connection of HTTP/2 has died under it and others, over one that carries nothing else: one of the others may be the reason.
pub async fn forward(
    exchange: &mut Exchange,
    client: &mut Client,
    admitted: &Admitted,
    upstream: &Rc<UpstreamView>,
) -> Result<(RelayEnd, Leased), ExchangeError> {
    let mut bounds = bounds(exchange, admitted, upstream);
    if upstream.spec.max_head_size.is_some_and(|most| exchange.scratch.inbound.head().len() > most) {
        return Err(ExchangeError::Request(Fault::HeadTooLarge));
    }
    exchange.record.upstream = Some(Rc::clone(upstream));
    pass_overload(exchange, admitted)?;
    // Boxed, since it is rare, and every connection would carry the room for it.
    let mut copy = None;
    if let Some(collapse) = &admitted.route().collapse {
        let joined = collapsing::join(exchange, client, admitted, (upstream, collapse), bounds.before_sent());
        copy = bounds.named(Box::pin(joined).await)?.map(Box::new);
        bounds.is_repeatable &= copy.is_none();
    }
    if copy.is_none() {
        pass_breaker(exchange, upstream)?;
    }
    if admitted.route().spec.is_paced() {
        exchange.set_phase(FlightPhase::Connecting);
        bounds.named(Box::pin(paced::begin(exchange, client, admitted, bounds.before_sent())).await)?;
    }
    if copy.is_none() {
        retry::count(upstream, exchange);
    }
    let mut pick = Pick::new(upstream, exchange, admitted);
    loop {
        bounds.respond_by = admitted.respond_by().unwrap_or(Tick::MAX);
        let (server, mut lease) = match copy.take() {
            Some(copy) => (0, *copy),
            None => match pick.reuse(exchange, client) {
                Some(kept) => kept,
                // Boxed, since it is rare and large, and every connection would carry the room for it.
                None => bounds.named(Box::pin(pick.connection(exchange, client, bounds.before_sent())).await)?,
            },
        };
        if exchange.scratch.state.held.pass.as_ref().is_some_and(Pass::is_outdated) {
            pass_breaker(exchange, upstream)?;
        }
        if pick.is_private() {
            lease.make_private();
        }
        let sent = if lease.is_copy() {
            Sent { at: exchange.worker.clock.now(), is_whole: true }
        } else {
            prepare(exchange, admitted, &mut lease, bounds.max_body)?
        };
        bounds.respond_by = bounds.respond_by.min(sent.try_ends(exchange, &bounds));
        exchange.set_phase(FlightPhase::Sent);
        let mut relay = Relay::new(exchange, client, &mut lease, &bounds, (sent.at, sent.is_whole));
        let ended = loop {
            match poll_fn(|cx| relay.poll(cx)).await {
                Err(ExchangeError::ClientGone) if relay.goes_on_alone() => {}
                ended => break ended,
            }
        };
        let waits_for_head = relay.waits_for_head();
        match ended {
            Ok(end) => return Ok((end, lease)),
            Err(error) => {
                relay.ends_in_a_size();
                let until = bounds.deadline.min(admitted.respond_by().unwrap_or(Tick::MAX));
                let failed = FailedTry { error, sent, waits_for_head, is_repeatable: bounds.is_repeatable, until };
                after(exchange, &mut pick, (server, &mut lease), failed)?;
            }
        }
    }
}

/// How a request was sent.
#[derive(Clone, Copy)]
struct Sent {
    at: Tick,
    /// All of it was here.
    is_whole: bool,
}

/// A try that broke.
struct FailedTry {
    error: ExchangeError,
    sent: Sent,
    waits_for_head: bool,
    is_repeatable: bool,
    /// When the time of the request is over.
    until: Tick,
}

impl Sent {
    /// When this try is over: where the request may be tried again, and all of it was here. Of a body that is still to come
    /// its client may be what is slow.
    fn try_ends(&self, exchange: &Exchange, bounds: &Bounds) -> Tick {
        if !bounds.is_repeatable || !self.is_whole {
            return Tick::MAX;
        }
        per_try(exchange).map_or(Tick::MAX, |per_try| self.at + per_try)
    }
}

fn per_try(exchange: &Exchange) -> Option<Span> {
    exchange.record.upstream.as_ref()?.spec.retry.as_ref()?.per_try
}

/// Deals with an exchange that broke: it is tried again, or that is its end.
fn after(
    exchange: &mut Exchange,
    pick: &mut Pick<'_>,
    (server, lease): (usize, &mut Leased),
    failed: FailedTry,
) -> Result<(), ExchangeError> {
    let FailedTry { error, sent, waits_for_head, is_repeatable, until } = failed;
    let is_here = exchange.scratch.upload.is_complete() && exchange.scratch.inbound.is_kept();
    let may_be_stale = !pick.is_fresh_only();
    if let ExchangeError::Silent { written } = &error
        && lease.stream().is_single_use()
        && !pick.is_apart()
        && is_here
        && (!written || exchange.scratch.request.is_idempotent())
    {
        count_stale(exchange);
        begin_anew(exchange);
        pick.again_apart(server);
        return Ok(());
    }
    let is_again = match &error {
        ExchangeError::Silent { written } if lease.is_reused() && may_be_stale => {
            is_here && (!written || exchange.scratch.request.is_idempotent())
        }
        // Whatever its method is, and however the stream was come by; once.
        ExchangeError::Unread if may_be_stale => is_here,
        _ => false,
    };
    if is_again {
        count_stale(exchange);
        begin_anew(exchange);
        pick.again_freshly(server);
        return Ok(());
    }
    let is_over = exchange.worker.alarms.coarse_now() >= until;
    let is_only_try = matches!(error, ExchangeError::Timeout(TimeoutKind::Head)) && !is_over;
    let error = if is_only_try { ExchangeError::Timeout(TimeoutKind::Try) } else { error };
    let is_stale = matches!(error, ExchangeError::Silent { .. }) && lease.is_reused() && may_be_stale;
    // Another server may take what this one has closed its connection at, and no server is to blame.
    let is_fault = waits_for_head && !is_stale && is_servers_fault(&error, sent, exchange);
    let is_size = is_fault && is_by_size(&error, exchange);
    let is_blamed = blame(lease, &error, sent, is_fault && !is_size, exchange);
    let failure = Failure::of(&error).filter(|_| waits_for_head);
    let is_retried = match (failure, &error) {
        // That was asked before the head was passed on.
        (Some(_), ExchangeError::Status(_)) => true,
        (Some(failure), _) => {
            is_repeatable && (is_blamed || is_stale || is_size) && retry::take(exchange, failure, until)
        }
        (None, _) => false,
    };
    if let Some(why) = failure.filter(|_| is_retried || is_blamed) {
        exchange.scratch.state.tries.push(Tried { server, why });
    }
    if is_retried {
        Ending::of(Cause::ExchangeError(&error)).counted.count(&exchange.worker.connections);
        begin_anew(exchange);
        pick.other_than(server);
        return Ok(());
    }
    if let (true, Some(pass)) = (is_blamed, exchange.scratch.state.held.pass.take()) {
        let client = exchange.client_number();
        pass.done(Evidence::Failure { client }, exchange.worker.clock.now());
    }
    Err(error)
}

fn count_stale(exchange: &Exchange) {
    if let Some(upstream) = &exchange.record.upstream {
        upstream.meters.stale.inc();
    }
}

fn begin_anew(exchange: &mut Exchange) {
    exchange.scratch.outbound.clear();
    exchange.scratch.head_end.reset();
}

/// Lays the request out for this connection; when it is sent, and whether all of it is here.
///
/// For each attempt anew, from what the client sent: more of it may have come, and of what was made for an earlier attempt
/// parts may be gone.
fn prepare(
    exchange: &mut Exchange,
    admitted: &Admitted,
    lease: &mut Leased,
    max_body: u64,
) -> Result<Sent, ExchangeError> {
    if exchange.scratch.upload.content() > max_body {
        return Err(ExchangeError::TooLarge);
    }
    let to_h2 = lease.stream().is_single_use();
    if to_h2
        && exchange.request().authority().is_none_or(str::is_empty)
        && edits(admitted).is_none_or(|edits| edits.host.is_none())
    {
        // It has nothing to say it by (RFC 9113, 8.3.1).
        return Err(ExchangeError::Request(Fault::HostMissing));
    }
    let is_paced = exchange.scratch.state.pacing.is_some();
    if is_paced {
        // More of it may have come while there was no connection.
        paced::charge_ahead(exchange);
    }
    if to_h2 {
        lease.stream().set_length_trailers(length_trailers(exchange));
    }
    write_request(exchange, admitted, to_h2);
    if edits(admitted).is_some_and(|edits| !edits.request.is_empty())
        && private::authenticates(exchange.scratch.to_upstream.made())
    {
        lease.make_private();
    }
    exchange.record.attempts += 1;
    let is_first = exchange.scratch.state.tries.is_empty() && exchange.record.attempts == 1;
    let is_at_once = lease.is_reused()
        && exchange.record.waited.is_none()
        && exchange.record.pending.is_none()
        && !is_paced
        && is_first;
    let at = if is_at_once { exchange.arrived } else { exchange.worker.clock.now() };
    Ok(Sent { at, is_whole: exchange.scratch.upload.is_complete() })
}

/// Refuses a request of a priority that is shed now.
fn pass_overload(exchange: &Exchange, admitted: &Admitted) -> Result<(), ExchangeError> {
    let Some(overload) = &exchange.view.snapshot.overload else { return Ok(()) };
    let worker = &exchange.worker;
    if overload.admits(worker.index, admitted.route().spec.priority, worker.random()) {
        Ok(())
    } else {
        Err(ExchangeError::Shed)
    }
}

/// Asks the breaker of the upstream, if it has one.
fn pass_breaker(exchange: &mut Exchange, upstream: &UpstreamView) -> Result<(), ExchangeError> {
    let Some(circuit) = &upstream.shared.circuit else { return Ok(()) };
    let passed = circuit.pass(exchange.scratch.upload.is_complete(), exchange.worker.alarms.coarse_now());
    exchange.scratch.state.held.pass = Some(passed.map_err(|retry_at| ExchangeError::Breaker { retry_at })?);
    Ok(())
}

/// Tells of the server that it has failed, where it is to blame, and does not use its connection of HTTP/2 again that may be
/// dead.
fn blame(lease: &mut Leased, error: &ExchangeError, sent: Sent, is_fault: bool, exchange: &mut Exchange) -> bool {
    let is_trial = exchange.scratch.state.held.trial.take().is_some();
    // The death of a connection that many shared is one failure.
    let is_blamed = is_fault && (!matches!(error, ExchangeError::Silent { .. }) || lease.stream().mourns_first());
    if is_blamed {
        let now = exchange.worker.clock.now();
        let is_late = matches!(error, ExchangeError::Timeout(_));
        if is_late {
            lease.observe(now.since(sent.at));
        }
        tell_overload(exchange, is_late.then(|| now.since(sent.at)), now);
        lease.failed(exchange.client_number(), &error.to_string(), is_trial, now);
    }
    if let ExchangeError::Timeout(
        TimeoutKind::Deadline
        | TimeoutKind::Head
        | TimeoutKind::Try
        | TimeoutKind::UpstreamReads
        | TimeoutKind::UpstreamSends,
    ) = error
    {
        lease.stream().distrust();
    }
    is_blamed
}

/// Tells what finds the number of places, and the sensors, of a request that a server has failed; `late`: after so long without an
/// answer.
#[cold]
fn tell_overload(exchange: &Exchange, late: Option<Span>, now: Tick) {
    let (worker, client) = (&exchange.worker, exchange.client_number());
    if let (Some(_), Some(place)) = (late, &exchange.scratch.state.held.place) {
        place.timed_out(client, now);
    }
    let responses = exchange.record.upstream.as_ref().and_then(|upstream| upstream.shared.responses.as_ref());
    if let (Some(took), Some(responses)) = (late, responses) {
        responses.add(worker.index, took, client, now, worker.random());
    }
    if let Some(overload) = &exchange.view.snapshot.overload {
        let failure = if late.is_some() { ServerFailure::Timeout } else { ServerFailure::Broken };
        overload.note_end(worker.index, Some(failure), client, now, worker.random());
    }
}

/// Whether the size of the request explains it: a server may close its connection at a head that it does not take.
fn is_by_size(error: &ExchangeError, exchange: &Exchange) -> bool {
    let may_be = matches!(
        error,
        ExchangeError::Silent { .. } | ExchangeError::Unread | ExchangeError::Upstream(_) | ExchangeError::Response(_)
    );
    may_be && oversized::is_so(exchange)
}

/// Whether the server is to blame that there is no answer.
fn is_servers_fault(error: &ExchangeError, sent: Sent, exchange: &Exchange) -> bool {
    // Bounds of the gateway on an answer: others may take it, and the client may have made it so large.
    let is_above_bounds = matches!(error, ExchangeError::Response(Fault::HeadTooLarge | Fault::TooManyFields));
    if is_above_bounds {
        return false;
    }
    // It had most of the time.
    let had_time = || {
        let (now, record) = (exchange.worker.clock.now(), &exchange.record);
        let is_held = record.waited.is_some() || exchange.scratch.state.pacing.is_some();
        !is_held && sent.is_whole && now.since(sent.at) >= sent.at.since(exchange.arrived)
    };
    // A client that withholds a body may have made it close.
    let has_all = exchange.scratch.upload.is_complete();
    match error {
        ExchangeError::Silent { .. }
        | ExchangeError::Unread
        | ExchangeError::Upstream(_)
        | ExchangeError::Response(_)
        | ExchangeError::Unasked(_) => has_all,
        ExchangeError::Timeout(TimeoutKind::Try | TimeoutKind::UpstreamReads | TimeoutKind::UpstreamSends) => true,
        ExchangeError::Timeout(TimeoutKind::Deadline | TimeoutKind::Head) => had_time(),
        // The code that connects has told of a connect that fails; the others are not the server's.
        // A status was told of when it came.
        ExchangeError::Unreachable(_)
        | ExchangeError::Status(_)
        | ExchangeError::OutOfService
        | ExchangeError::Breaker { .. }
        | ExchangeError::QueueFull
        | ExchangeError::Shed
        | ExchangeError::Request(_)
        | ExchangeError::TooLarge
        | ExchangeError::ClientGone
        | ExchangeError::Cancelled
        | ExchangeError::Timeout(
            TimeoutKind::ClientSends | TimeoutKind::ClientDrips | TimeoutKind::ClientHolds | TimeoutKind::ClientReads,
        ) => false,
    }
}

fn bounds(exchange: &Exchange, admitted: &Admitted, upstream: &UpstreamView) -> Bounds {
    Bounds {
        deadline: admitted.deadline().unwrap_or(Tick::MAX),
        respond_by: admitted.respond_by().unwrap_or(Tick::MAX),
        head: exchange.view.snapshot.head_limits(),
        max_body: admitted.route().spec.max_body_size.unwrap_or(u64::MAX),
        is_repeatable: retry::terms(exchange, upstream).is_some(),
    }
}

/// Where trailers of a response that has a length can go: HTTP/2 has both, and HTTP/1.1 in place of the length, which is
/// worth it only if there are trailers and its client wants them (RFC 9110, 6.5.1).
fn length_trailers(exchange: &Exchange) -> LengthTrailers {
    match exchange.scratch.request.version() {
        _ if exchange.connection.facts.is_h2 => LengthTrailers::All,
        Version::Http11 if headers::takes_trailers(&exchange.request()) || reads_trailers(exchange) => {
            LengthTrailers::Announced
        }
        Version::Http11 | Version::Http10 => LengthTrailers::Dropped,
    }
}

/// Whether a limit of its route reads its cost from trailers.
fn reads_trailers(exchange: &Exchange) -> bool {
    exchange.record.route.as_ref().is_some_and(|route| route.reads.trailers)
}
