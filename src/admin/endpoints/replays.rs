//! Replays of dead letters that run in the gateway.

use http::StatusCode;
use serde_json::{Value, json};

use super::page::{self, page};
use crate::admin::endpoint::{AdminAnswer, Call, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::replay::{MAX_PARALLEL, MAX_TRIES, MOST_TRIES, PARALLEL, RATE, ReplayQuery};

/// Why nothing is sent again.
#[derive(Debug)]
pub enum NotReplayed {
    /// There is no dead-letter log.
    NoLog,
    /// The order cannot be carried out, and why.
    Wrong(String),
    /// Another replay sends.
    Busy(String),
    /// There is no such replay.
    Unknown(String),
    /// The log or a journal cannot be read or written.
    Unreadable(String),
    /// The gateway ends.
    Ended(String),
}

impl From<NotReplayed> for Problem {
    fn from(not: NotReplayed) -> Self {
        let (status, detail) = match not {
            NotReplayed::NoLog => {
                let detail = "There is no dead-letter log: write a [dead_letter] section into the file and reload.";
                (StatusCode::NOT_FOUND, detail.to_owned())
            }
            NotReplayed::Wrong(detail) => (StatusCode::UNPROCESSABLE_ENTITY, detail + "."),
            NotReplayed::Busy(detail) => (StatusCode::CONFLICT, detail + "."),
            NotReplayed::Unknown(detail) => (StatusCode::NOT_FOUND, detail + "."),
            NotReplayed::Unreadable(detail) => (StatusCode::INTERNAL_SERVER_ERROR, detail + "."),
            NotReplayed::Ended(detail) => {
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1);
            }
        };
        Self::new(status, detail)
    }
}

const ORDER: Schema = Schema {
    name: "ReplayOrder",
    make: || {
        let text = |about: &str| json!({ "type": "string", "description": about });
        let count = |about: &str, most: u32, of: u32| json!({ "type": "integer", "minimum": 1, "maximum": most, "default": of, "description": about });
        let flag = |about: &str| json!({ "type": "boolean", "default": false, "description": about });
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "since": text("RFC 3339, a date, or an age such as 10m."),
                "until": text("The same; left out: now."),
                "limit": text("The limit that refused."),
                "route": text("The route."),
                "reason": text("Why it is there, such as rate-limited. Without it and `limit` failures alone are sent: upstream-error, timeout, breaker, shed, queue-full of an upstream."),
                "key": text("A part of the key."),
                "client": text("An address or a network."),
                "status": text("The status of the answer, or a class such as 5xx."),
                "to": text("The name of an upstream; left out: through the gateway, where limits hold."),
                "rate": { "type": "string", "default": RATE, "description": "How fast, tries of all kinds together." },
                "parallel": count("How many at once, of different keys.", MAX_PARALLEL, PARALLEL),
                "methods": {
                    "type": "array", "items": { "type": "string" },
                    "description": "These methods too, such as POST: their servers should know the Idempotency-Key.",
                },
                "max_tries": count("How often one record is tried.", MOST_TRIES, MAX_TRIES),
                "timeout": text("How long an answer may take, 100ms to 10m; left out: 30s."),
                "again": flag("Also what was sent before."),
                "without_redacted": flag("Send records without the fields that were redacted and are not sealed."),
                "dry_run": flag("Say what would be sent, and send nothing."),
                "resume": text("Go on with the replay of this name."),
            },
        })
    },
};

const STARTED: Schema = Schema {
    name: "ReplayStarted",
    make: || {
        let counts = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
        let count = || json!({ "type": "integer", "minimum": 0 });
        json!({
            "type": "object",
            "required": ["replay", "plan"],
            "properties": {
                "replay": { "type": ["string", "null"], "description": "Its name; null: nothing is sent." },
                "plan": {
                    "type": "object",
                    "required": ["to", "matching", "to_send", "waiting", "to_park"],
                    "properties": {
                        "to": { "type": "string" },
                        "matching": count(),
                        "to_send": count(),
                        "sent_before": count(),
                        "shadow": count(),
                        "deferred": count(),
                        "refused": counts,
                        "waiting": counts,
                        "to_park": counts,
                        "only_counted": count(),
                        "repeated": count(),
                        "damaged": count(),
                    },
                },
            },
        })
    },
};

const REPLAYS: Schema = Schema {
    name: "Replays",
    make: || {
        let replay = json!({
            "type": "object",
            "required": ["replay", "at", "sent", "parked", "ended", "running", "in_flight", "settings"],
            "properties": {
                "replay": { "type": "string", "description": "Its name." },
                "at": { "type": "string", "format": "date-time", "description": "When it began." },
                "sent": { "type": "integer" },
                "parked": { "type": "integer" },
                "ended": { "type": "boolean", "description": "Whether it came to its end." },
                "running": { "type": "boolean", "description": "Whether it runs in this gateway." },
                "in_flight": { "type": "integer", "description": "Tries that are under way." },
                "settings": { "type": "object" },
            },
        });
        json!({
            "type": "object",
            "required": ["replays", "next"],
            "properties": {
                "replays": { "type": "array", "items": replay },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
            },
        })
    },
};

const STOPPED: Schema = Schema {
    name: "ReplayStopped",
    make: || {
        json!({
            "type": "object",
            "required": ["replay", "stopped"],
            "properties": { "replay": { "type": "string" }, "stopped": { "const": true } },
        })
    },
};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Post,
        path: "/api/v1/dead-letters/replay",
        role: Role::Operate,
        id: "replayDeadLetters",
        summary: "Sends dead letters again, at a rate that the servers can take, as `sluicegate dead-letters replay` does; one \
                  replay at a time. `sluicegate dead-letters replay show` tells the fate of each record.",
        parameters: &[],
        takes: Takes::Json(&ORDER),
        gives: &[(200, Gives::Json(&STARTED)), (202, Gives::Json(&STARTED))],
        tells_of_clients: true,
        handler: Handler::Change(start),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/dead-letters/replays",
        role: Role::Read,
        id: "listReplays",
        summary: "The replays of the log, the newest first, and how far each is.",
        parameters: &[page::MAX, page::CURSOR],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&REPLAYS))],
        tells_of_clients: true,
        handler: Handler::Read(|call| page(call, call.commands.replays()?, "replays")),
    },
    Endpoint {
        method: Verb::Delete,
        path: "/api/v1/dead-letters/replays/{replay}",
        role: Role::Operate,
        id: "stopReplay",
        summary: "Stops a replay that runs in this gateway, once the tries that are under way are over. `resume` goes on with it.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&STOPPED))],
        tells_of_clients: false,
        handler: Handler::Change(stop),
    },
];

fn start(call: &Call) -> Result<AdminAnswer, Problem> {
    let asked: ReplayQuery = call.json()?;
    let answer = call.commands.replay(&asked)?;
    let Some(name) = answer["replay"].as_str().map(str::to_owned) else { return Ok(AdminAnswer::json(answer)) };
    let words = format!("replay {name}: {}", answer["plan"]);
    Ok(AdminAnswer { status: StatusCode::ACCEPTED, ..AdminAnswer::json(answer) }.changed("", words))
}

fn stop(call: &Call) -> Result<AdminAnswer, Problem> {
    let name = call.name(0);
    if !call.commands.stop_replay(name) {
        let detail = format!("No replay {name:?} runs in this gateway. GET /api/v1/dead-letters/replays lists all.");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    let answer: Value = json!({ "replay": name, "stopped": true });
    Ok(AdminAnswer::json(answer).changed("running", "stopped"))
}
