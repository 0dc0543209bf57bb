//! Requests in flight.

use std::net::IpAddr;

use http::StatusCode;
use serde_json::{Value, json};

use super::page::MAX_MAX;
use crate::admin::endpoint::{
    AdminAnswer, Call, Endpoint, Gives, Handler, Parameter, ParameterPlace, Schema, Takes, Verb,
};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::proxy::{FlightFilter, FlightPhase, FlightRank, SeenFlight};
use crate::time::{Span, Tick, WallOffset};
use crate::words::Word as _;

/// Requests of a page, where nobody says how many.
const DEFAULT_MAX: usize = 100;

fn string(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

fn or_null(about: &str) -> Value {
    json!({ "type": ["string", "null"], "description": about })
}

fn phases() -> Vec<&'static str> {
    FlightPhase::ALL.iter().map(|phase| phase.word()).collect()
}

fn request() -> Value {
    json!({
        "type": "object",
        "required": ["id", "since", "age_ms", "phase", "client", "protocol", "method", "host", "path", "request_id"],
        "properties": {
            "id": string("What cancels it: the process, the worker, and a number there."),
            "since": { "type": "string", "format": "date-time", "description": "Its arrival." },
            "age_ms": { "type": "number" },
            "phase": {
                "enum": phases(),
                "description": "`waiting`: in the queue of a limit. `connecting`: on its way to a connection. `sent`: its answer \
                    has not begun. `answering`: its answer has begun. `tunnel`: such as a WebSocket.",
            },
            "client": string("The address."),
            "protocol": { "enum": ["HTTP/1.1", "HTTP/2.0"] },
            "method": { "type": "string" },
            "host": { "type": "string" },
            "path": string("Without its query; its first 128 bytes."),
            "request_id": string("As logs and dead letters have it."),
            "route": or_null("The route."),
            "upstream": or_null("The upstream that it goes to; null: that is not settled."),
            "server": or_null("The server there."),
        },
    })
}

const REQUESTS: Schema = Schema {
    name: "Requests",
    make: || {
        json!({
            "type": "object",
            "required": ["requests", "next", "silent_workers"],
            "properties": {
                "requests": { "type": "array", "items": request() },
                "next": or_null("The cursor of the next page."),
                "silent_workers": {
                    "type": "array",
                    "items": { "type": "integer" },
                    "description": "Workers that did not answer within 2 s: their requests are missing.",
                },
            },
        })
    },
};

const CANCELLED: Schema = Schema {
    name: "CancelledRequest",
    make: || {
        json!({
            "type": "object",
            "required": ["id", "cancelled"],
            "properties": { "id": { "type": "string" }, "cancelled": { "const": true } },
        })
    },
};

const fn filter(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: ParameterPlace::Query, about, schema: || json!({ "type": "string" }), required: false }
}

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/requests",
        role: Role::Read,
        id: "listRequests",
        summary: "The requests in flight, the oldest first: those that wait for a limit, go to a server or are tunnels.",
        parameters: &[
            filter("route", "The route."),
            filter("upstream", "The upstream."),
            filter("client", "The address."),
            Parameter { schema: || json!({ "enum": phases() }), ..filter("phase", "Where it is.") },
            filter("min_age", "At least so old, such as `10s`."),
            Parameter {
                name: "max",
                place: ParameterPlace::Query,
                about: "Requests of a page.",
                schema: || json!({ "type": "integer", "minimum": 1, "maximum": MAX_MAX, "default": DEFAULT_MAX }),
                required: false,
            },
            filter("cursor", "`next` of the page before."),
        ],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&REQUESTS))],
        tells_of_clients: true,
        handler: Handler::Read(list),
    },
    Endpoint {
        method: Verb::Delete,
        path: "/api/v1/requests/{request}",
        role: Role::Operate,
        id: "cancelRequest",
        summary: "Cancels a request in flight: its client gets a 503 if no answer has begun, else its connection, or its stream, \
                  is closed.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&CANCELLED))],
        tells_of_clients: false,
        handler: Handler::Change(cancel),
    },
];

fn asked(call: &Call) -> Result<FlightFilter, Problem> {
    let wrong = |name: &str, how: &str| {
        Problem::new(StatusCode::BAD_REQUEST, format!("Parameter {name:?}: {how}.")).with("parameter", name)
    };
    let client = call.parameter("client")?.map(|text| text.parse::<IpAddr>().map(|client| client.to_canonical()));
    let phase = call.parameter("phase")?.map(|text| FlightPhase::from_word(&text).ok_or(()));
    let min_age = call.parameter("min_age")?.map(|text| text.parse::<Span>());
    let max = call.parameter("max")?.map(|text| text.parse().ok().filter(|max| (1..=MAX_MAX).contains(max)).ok_or(()));
    let after = call.parameter("cursor")?.filter(|text| !text.is_empty()).map(|text| rank_of(&text).ok_or(()));
    let phases = phases().join(", ");
    Ok(FlightFilter {
        route: call.parameter("route")?,
        upstream: call.parameter("upstream")?,
        client: client.transpose().map_err(|_| wrong("client", "use an address, such as 192.0.2.7"))?,
        phase: phase.transpose().map_err(|()| wrong("phase", &format!("use one of {phases}")))?,
        min_age: min_age.transpose().map_err(|_| wrong("min_age", "use a time, such as 10s"))?.unwrap_or_default(),
        after: after.transpose().map_err(|()| wrong("cursor", "use `next` of a page, as it is"))?,
        max: max
            .transpose()
            .map_err(|()| wrong("max", &format!("use a number from 1 to {MAX_MAX}")))?
            .unwrap_or(DEFAULT_MAX),
    })
}

fn cursor_of((arrived, worker, number): FlightRank) -> String {
    format!("{}-{worker}-{number}", arrived.as_nanos())
}

fn rank_of(cursor: &str) -> Option<FlightRank> {
    let mut parts = cursor.split('-');
    let (arrived, worker, number) = (parts.next()?, parts.next()?, parts.next()?);
    let rank = (Tick::from_nanos(arrived.parse().ok()?), worker.parse().ok()?, number.parse().ok()?);
    parts.next().is_none().then_some(rank)
}

fn shown(seen: &SeenFlight) -> Value {
    json!({
        "id": format!("{}-{}-{}", std::process::id(), seen.worker, seen.number),
        "since": WallOffset::of_system().wall(seen.arrived).timestamp().to_string(),
        "age_ms": seen.age.as_nanos() / 1_000_000,
        "phase": seen.phase.word(),
        "client": seen.client.to_string(),
        "protocol": if seen.is_h2 { "HTTP/2.0" } else { "HTTP/1.1" },
        "method": seen.method,
        "host": seen.host,
        "path": seen.path,
        "request_id": seen.request_id,
        "route": seen.route.as_deref(),
        "upstream": seen.upstream.as_deref(),
        "server": seen.server.as_deref(),
    })
}

fn list(call: &Call) -> Result<AdminAnswer, Problem> {
    let asked = asked(call)?;
    // One more tells whether there is a next page.
    let (mut seen, silent) = call.commands.requests(&FlightFilter { max: asked.max + 1, ..asked.clone() });
    let has_more = seen.len() > asked.max;
    seen.truncate(asked.max);
    let next = seen.last().filter(|_| has_more).map(|last| cursor_of(last.rank()));
    let requests: Vec<_> = seen.iter().map(shown).collect();
    Ok(AdminAnswer::json(json!({ "requests": requests, "next": next, "silent_workers": silent })))
}

fn cancel(call: &Call) -> Result<AdminAnswer, Problem> {
    let id = call.name(0);
    let unknown = || {
        let detail =
            format!("No request {id:?} is in flight: it has ended. GET /api/v1/requests lists those that are.");
        Problem::new(StatusCode::NOT_FOUND, detail)
    };
    // Another process, before a restart or an upgrade, has numbered its own requests.
    let own = id.split_once('-').filter(|(process, _)| *process == std::process::id().to_string());
    let parts = own.and_then(|(_, rest)| rest.split_once('-'));
    let parts = parts.and_then(|(worker, number)| Some((worker.parse().ok()?, number.parse().ok()?)));
    let (worker, number) = parts.ok_or_else(unknown)?;
    match call.commands.cancel_request(worker, number) {
        Some(true) => Ok(AdminAnswer::json(json!({ "id": id, "cancelled": true })).changed("in flight", "cancelled")),
        Some(false) => Err(unknown()),
        None => {
            let detail = format!("Worker {worker} did not answer within 2 s: try again.");
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1))
        }
    }
}
