//! How a request fares that was kept for later: the gateway's own answer under `/.sluicegate/deferred/`, wherever a route
//! defers. No route is looked for and no limit of the file is asked: the client that has an id, which cannot be guessed, may ask. A
//! client may ask so often, and no more.

use std::net::IpAddr;

use crate::answer::Problem;
use crate::decide::write_problem;
use crate::endings::EndingFate;
use crate::exchange::Exchange;
use crate::exchange::deferral_path::{PREFIX, asked};
use crate::headers::Sink as _;
use crate::meters::Outcome;
use sluicegate_dead_letter::{Deferrals, DeferredStatus, KeptAnswer, parse_deferred_id as parse_id};

/// When a client may ask again, in seconds.
const RETRY_SECS: u64 = 1;

/// The knowledge of a request.
enum Known {
    /// This, and its answer.
    Status(DeferredStatus, Option<KeptAnswer>),
    /// Nothing.
    Nothing,
    /// Not now.
    Busy,
}

/// Makes the answer.
pub async fn answer(exchange: &mut Exchange) -> EndingFate {
    exchange.finish(Outcome::Responded);
    let context = exchange.context();
    let client = exchange.view.rules.client_of(&context, context.origin.peer);
    let address = client.addr();
    exchange.record.client = Some(client);
    let path = asked(&exchange.request());
    let id = path.as_deref().and_then(|path| path.strip_prefix(PREFIX)).and_then(parse_id);
    let store = exchange.view.snapshot.deferrals.clone();
    if let Some(store) = &store
        && !store.may_ask(exchange.client_key(), id, exchange.arrived)
    {
        problem(exchange, 429, "This client asks too often how its deferred requests fare.", Some(RETRY_SECS));
        return EndingFate::Keep;
    }
    if !matches!(exchange.request().method(), "GET" | "HEAD") {
        problem(exchange, 405, "How a deferred request fares is asked for by GET.", None);
        exchange.scratch.reply.put(b"allow", b"GET, HEAD");
        return EndingFate::Keep;
    }
    let known = match (&store, id) {
        (Some(store), Some(id)) => look(store, id, address).await,
        _ => Known::Nothing,
    };
    match known {
        Known::Status(status, answer) => {
            let is_pending = status.ended.is_none();
            let reply = &mut exchange.scratch.reply;
            reply.clear();
            reply.status = 200;
            reply.put(b"content-type", b"application/json");
            reply.put_no_store();
            if is_pending {
                reply.put_number(b"retry-after", RETRY_SECS);
            }
            reply.body = status.to_json(answer.as_ref(), exchange.worker.clock.offset()).to_string().into_bytes();
            reply.body.push(b'\n');
            exchange.record.status = Some(200);
        }
        Known::Nothing => problem(exchange, 404, "No deferred request has this id, or it is forgotten.", None),
        Known::Busy => problem(exchange, 503, "Deferred requests cannot be looked at now.", Some(RETRY_SECS)),
    }
    EndingFate::Keep
}

async fn look(store: &Deferrals, id: u128, client: IpAddr) -> Known {
    let Some(status) = store.status(id) else {
        return if store.is_open() { Known::Nothing } else { Known::Busy };
    };
    if !status.has_answer {
        return Known::Status(status, None);
    }
    let Some(told) = store.answer(id, client) else { return Known::Busy };
    match told.await {
        Ok(answer) => Known::Status(status, answer),
        Err(_) => Known::Busy,
    }
}

fn problem(exchange: &mut Exchange, status: u16, detail: &str, retry_after_secs: Option<u64>) {
    exchange.record.status = Some(status);
    write_problem(exchange, &Problem { status, detail, violated: &[], retry_after_secs });
}
