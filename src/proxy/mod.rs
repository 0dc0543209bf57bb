//! The data plane: one exchange from the client's request to the last byte of its response.
//!
//! It runs on worker threads, each with its own runtime, sockets, upstream connections and timer wheel; nothing on the
//! path of a request is shared between them but the limiter's key tables. It decides nothing itself: `admission` says
//! who may pass, `balance` where to, and `forward` takes nothing but what admission let through.
//!
//! - `listener`, `proxied`, `h1`, `h2`, `client`, `connection`: sockets that listen, and the connections that they accept;
//!   `seen`: a request of one, as admission sees it; `replayed`: one that a replay sends again.
//! - `policy`, `refuse`: what is done about a request; `respond`, `rate_headers`, `headers`, `date`, `cors`: what messages
//!   say; `edited`, `variables`: what a route changes in that. `ending`: the table of how an exchange ends that does not
//!   get its route's answer.
//! - `forward`, `tunnel`: an admitted request on its way, and its answer;
//!   `broken`, `tried`: what may go wrong with it; `held`: what it holds of its upstream; `patience`: how long it may take; `panics`: what is told of one. `waiting`,
//!   `watch`: before it goes.
//! - `deferrable`, `deferring`: what a limit refuses and is kept for later; `deferral_status`, `deferral_path`: how that fares.
//! - `pacing`: how fast bytes may go; `way_bounds`, `message_gate`, `websocket`: how a tunnel is bounded.
//! - `letter`, `capture`, `capturing`: what dead letters tell of an exchange, and the bodies that they keep; `explanation`: what its own answer tells whoever may ask.
//! - `exchange`, `scratch`, `inbound`, `outgoing`, `parts`: what one exchange is and works with. `alarm`: when it has to be over.
//! - `worker`, `view`, `route_view`, `upstream_view`, `snapshot`, `meters`, `connection_meters`, `pace_meters`, `throttle`: what a worker has and counts; `flights`, `in_flight`: the
//!   requests in flight, as an operator sees and cancels them;
//!   `client_ledger`, `given_up`, `h2_share`, `holdings`, `reclaim`: what each client holds of it, and which connections make room for
//!   others.
//!
//! Invariants: one [`Snapshot`] per exchange, loaded once; three clock readings per exchange in the common case, at its
//! arrival, with the head of its response and at its end; exactly one outcome per exchange, however it ends; an error becomes a status
//! in `ending` only; once a worker is warm, nothing is allocated for a request of HTTP/1 that is refused or goes at once
//! over a kept connection, but one box for each of its limits that counts later, corrects, or counts what is in flight.
//! Caller: `gateway`, which builds snapshots and starts the workers.

mod alarm;
mod asked;
mod broken;
mod capture;
mod capturing;
mod client;
mod client_ledger;
mod connection;
mod connection_meters;
mod cors;
mod date;
mod deferrable;
mod deferral_path;
mod deferral_status;
mod deferring;
mod edited;
mod ending;
mod exchange;
mod explanation;
mod flights;
mod forward;
mod given_up;
mod h1;
mod h2;
mod h2_share;
mod headers;
mod held;
mod holdings;
mod in_flight;
mod inbound;
mod key_tally;
mod letter;
mod listener;
mod message_gate;
mod meters;
mod outgoing;
mod pace_meters;
mod pacing;
mod panics;
mod parts;
mod patience;
mod policy;
mod proxied;
mod rate_headers;
mod reclaim;
mod refuse;
mod replayed;
mod respond;
mod route_view;
mod scratch;
mod seen;
mod snapshot;
mod throttle;
mod tried;
mod tunnel;
mod turned;
mod upstream_view;
mod variables;
mod view;
mod waiting;
mod watch;
mod way_bounds;
mod websocket;
mod worker;

use crate::http1::{HeadWriter, Piece, Version};
use broken::Broken;
use client::Client;
use edited::{Changes, Whose};
use ending::{Cause, Fate};
use exchange::Exchange;
use forward::{Afterwards, End};
use headers::Sink;
use meters::Outcome;
use parts::Room;
use policy::{Next, write_rate_fields};
use scratch::Scratch;
use waiting::Waited;

pub use asked::{Question, status_of_no_route, status_of_refusal};
pub use flights::{FlightFilter, FlightPhase, FlightRank, SeenFlight};
pub use key_tally::{CountedKey, KeyTally, KeyTop};
pub use listener::{OwnDoor, accept, bind};
pub use snapshot::{
    AcceptPlan, BandwidthPlan, ClientBounds, Feed, LimitPlan, ListenerPlan, Places, PlacesPlan, RouteAction,
    RouteEdits, RoutePacing, RoutePlan, Snapshot, UpstreamPlan,
};
pub use tunnel::LAST_WORDS;
pub use turned::Turned;
pub use worker::{Worker, WorkerGauges};

/// One request, from its head to the end of its answer.
async fn answer(exchange: &mut Exchange, client: &mut Client) -> Afterwards {
    let mut next = match exchange.connection.facts.redirect_to_https {
        Some(port) => policy::redirect(exchange, port),
        None => policy::decide(exchange),
    };
    if let Next::Wait(waiting) = next {
        exchange.is_in(FlightPhase::Waiting);
        // Boxed, since it is rare and large.
        next = match Box::pin(waiting::wait(exchange, client, waiting)).await {
            Waited::Admitted(admitted) => policy::admit(exchange, admitted),
            Waited::InVain(arrival, refusal) => policy::defer_or_refuse(exchange, arrival, refusal),
            Waited::ClientGone => return Afterwards::Cut,
            Waited::Cancelled => Next::Over(policy::end_by(exchange, Cause::Broken(&Broken::Cancelled), false)),
        };
        if !matches!(next, Next::Forward(_)) {
            // It waits no more, and goes nowhere.
            exchange.leaves_flight();
        }
    }
    match next {
        Next::Defer(refused) => next = Box::pin(deferring::defer(exchange, client, *refused)).await,
        Next::Status => next = Next::Over(Box::pin(deferral_status::answer(exchange)).await),
        _ => {}
    }
    match next {
        Next::Over(fate) => reply(exchange, client, fate).await,
        Next::Forward(admitted) => {
            let in_flight = exchange.worker.enter_flight();
            #[cfg(debug_assertions)]
            panics::on_demand(exchange);
            let forwarded = forward::forward(exchange, client, &admitted).await;
            drop(in_flight);
            match forwarded {
                Ok((End::Answered { upstream: left, client }, mut lease)) => {
                    exchange.finish(Outcome::Forwarded);
                    lease.is_over();
                    if left.is_clean {
                        lease.give_back(left.is_drained, left.is_doubtful, exchange.worker.alarms.recently());
                    }
                    client
                }
                Ok((End::Switched, lease)) => Box::pin(tunnel::run(exchange, client, lease)).await,
                Err(broken) => give_up(exchange, client, &broken).await,
            }
        }
        // It has waited already, and been deferred or answered.
        Next::Wait(_) | Next::Defer(_) | Next::Status => Afterwards::Cut,
    }
}

/// What cannot be understood is answered, and the connection closes: what follows may not be what it seems.
async fn answer_fault(exchange: &mut Exchange, client: &mut Client, cause: Cause<'_>) -> Afterwards {
    let fate = policy::end_by(exchange, cause, false);
    reply(exchange, client, fate).await
}

/// Sends the gateway's own answer, which lies ready.
async fn reply(exchange: &mut Exchange, client: &mut Client, fate: Fate) -> Afterwards {
    if fate == Fate::Cut {
        // By an end, not a reset: answers of before may be on their way, and a reset could take them back. If the client
        // has sent more than was read, the kernel makes it a reset all the same.
        return Afterwards::Cut;
    }
    let keep = fate == Fate::Keep && forward::can_keep(exchange);
    write_reply(exchange, keep);
    let is_out = h1::write_out(exchange, client).await;
    match (keep, exchange.scratch.upload.is_complete()) {
        _ if fate == Fate::Linger => Afterwards::Linger,
        _ if !is_out => Afterwards::Cut,
        (true, true) => Afterwards::Keep,
        (true, false) => Afterwards::Drain,
        (false, true) => Afterwards::Close,
        (false, false) => Afterwards::Linger,
    }
}

fn write_reply(exchange: &mut Exchange, keep: bool) {
    exchange.settle(exchange.scratch.reply.status, None, exchange.worker.alarms.recently());
    let route = exchange.story.route.clone();
    let changes = Changes::of(route.as_deref());
    if changes.is_some_and(|changes| changes.has_edits()) {
        exchange.identify();
    }
    exchange.story.status = Some(exchange.scratch.reply.status);
    let version = exchange.scratch.request.version();
    let is_head = exchange.scratch.request.is_head();
    let explanation = exchange.explanation();
    let (facts, room) = exchange.split();
    let Room { worker, reply, text, to_client, bytes_sent, .. } = room;
    let now = worker.alarms.recently();
    let mut writer = HeadWriter::response(to_client.made(), reply.status, b"");
    match changes {
        None => {
            writer.lines(&reply.lines);
            worker.date.write(now, &mut writer);
        }
        Some(changes) => {
            let whose = if reply.is_problem { Whose::Problem } else { Whose::Own };
            let mut sink = changes.sink(&mut writer, whose);
            sink.put_piece(Piece::Lines(&reply.lines));
            worker.date.write(now, &mut sink);
            let known = facts.known(reply.status, None);
            let changes = if reply.has_cors { changes.without_cors() } else { changes };
            changes.write(&known, whose, text, &mut writer);
        }
    }
    if let Some(explanation) = explanation {
        writer.field(explanation::FIELD, explanation.as_bytes());
    }
    let is_bodiless = matches!(reply.status, 204 | 304);
    let body: &[u8] = if reply.has_route_body { facts.story.route_body() } else { &reply.body };
    if !is_bodiless {
        writer.number(b"content-length", body.len() as u64);
    }
    forward::write_connection(keep, version, &mut writer);
    writer.end();
    if !is_bodiless && !is_head {
        *bytes_sent = body.len() as u64;
        to_client.add(body, 0..body.len());
    }
}

/// An exchange that broke: an answer if none has begun, else the connection is cut, so that nobody takes what went out
/// for all of it.
async fn give_up(exchange: &mut Exchange, client: &mut Client, broken: &Broken) -> Afterwards {
    exchange.scratch.held.clear();
    let begun = exchange.begun;
    let Scratch { to_client, download, .. } = &mut *exchange.scratch;
    if begun {
        exchange.bytes_sent = download.content().saturating_sub(to_client.waiting() as u64);
    } else if to_client.is_unsent() {
        to_client.clear();
    }
    let fate = policy::end_by(exchange, Cause::Broken(broken), begun);
    if fate == Fate::Cut && exchange.scratch.request.version() == Version::Http10 {
        // Its end is all that delimits this body: a reset tells that it is not complete.
        client.stream.abort();
    }
    reply(exchange, client, fate).await
}
