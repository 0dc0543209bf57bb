//! Single keys of limits, and their exceptions.

use http::StatusCode;
use serde_json::{Value, json};

use super::page::{self, page};
use crate::admin::endpoint::{AdminAnswer, Call, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::admin::{KeyChange, Unchanged};

pub(super) fn text(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

/// A fingerprint of a value.
pub(super) fn print() -> Value {
    text("The print of the value; endpoints and commands take it in the value's place.")
}

pub(super) fn instant(about: &str) -> Value {
    json!({ "type": "string", "format": "date-time", "description": about })
}

pub(super) fn block_seen() -> Value {
    json!({
        "type": "object",
        "required": ["kind"],
        "properties": {
            "kind": { "enum": ["by-hand", "penalty"] },
            "until": instant("Its end; left out: it has none."),
            "by": text("Who made it."),
            "made_at": instant("When."),
            "reason": text("Why."),
        },
    })
}

pub(super) fn numbers_seen() -> Value {
    json!({
        "type": "object",
        "required": ["numbers", "by", "made_at"],
        "properties": {
            "numbers": text("As the configuration writes them."),
            "until": instant("Their end; left out: they have none."),
            "by": text("Who made them."),
            "made_at": instant("When."),
            "reason": text("Why."),
            "misfit": text("Why they do not hold now."),
        },
    })
}

fn or_null(mut schema: Value) -> Value {
    schema["type"] = json!(["object", "null"]);
    schema
}

const UNTIL: &str =
    "An instant of RFC 3339, a date (its first instant in UTC), or +2h from now; left out: it has no end.";

const BLOCK: Schema = Schema {
    name: "Block",
    make: || {
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": { "until": text(UNTIL), "reason": { "type": "string", "maxLength": 256 } },
        })
    },
};

const OVERRIDE: Schema = Schema {
    name: "Override",
    make: || {
        json!({
            "type": "object",
            "properties": {
                "rates": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 4 },
                "until": text(UNTIL),
                "reason": { "type": "string", "maxLength": 256 },
            },
            "additionalProperties": {
                "type": ["string", "integer"],
                "description": "Another number of the limit, as [[limit]] has it: burst, slots, max_wait, max_queue, max_in_flight …",
            },
        })
    },
};

const CHANGED: Schema = Schema {
    name: "ChangedKey",
    make: || {
        json!({
            "type": "object",
            "required": ["limit", "key"],
            "properties": {
                "limit": { "type": "string" },
                "key": text("The value; a secret is redacted."),
                "block": or_null(block_seen()),
                "own_numbers": or_null(numbers_seen()),
                "before": { "type": ["object", "null"], "description": "The exception that was replaced or removed." },
                "found": { "type": "object", "description": "What there was: counts, a block by hand, one by a penalty." },
                "kept": text("Whether it outlives the process."),
                "fleet": text("Whether the other gateways know."),
            },
        })
    },
};

const EXCEPTIONS: Schema = Schema {
    name: "Exceptions",
    make: || {
        let exception = json!({
            "type": "object",
            "required": ["limit", "key", "print"],
            "properties": {
                "limit": { "type": "string" },
                "key": text("The value; a secret is redacted."),
                "print": print(),
                "block": block_seen(),
                "own_numbers": numbers_seen(),
                "misfit": text("Why nothing of it holds now."),
            },
        });
        json!({
            "type": "object",
            "required": ["exceptions", "next"],
            "properties": {
                "exceptions": { "type": "array", "items": exception },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
            },
        })
    },
};

const fn change(
    method: Verb,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    takes: Takes,
    handler: Handler,
) -> Endpoint {
    Endpoint {
        method,
        path,
        role: Role::Operate,
        id,
        summary,
        parameters: &[],
        takes,
        gives: &[(200, Gives::Json(&CHANGED))],
        tells_of_clients: false,
        handler,
    }
}

const BLOCKED: &str = "/api/v1/limits/{limit}/keys/{value}/block";
const OVERRIDDEN: &str = "/api/v1/limits/{limit}/keys/{value}/override";

pub(super) const ENDPOINTS: &[Endpoint] = &[
    change(
        Verb::Post,
        "/api/v1/limits/{limit}/keys/{value}/reset",
        "resetKey",
        "Forgets what is counted of a key, in the limit and in every plan; the block of a penalty ends too. 404: nothing is counted of it.",
        Takes::Nothing,
        Handler::Change(|call| changed(call, KeyChange::Reset)),
    ),
    change(
        Verb::Put,
        BLOCKED,
        "blockKey",
        "Refuses all requests of a key from now on, whatever else holds, until an instant or until somebody ends it.",
        Takes::Json(&BLOCK),
        Handler::Change(|call| changed(call, KeyChange::Block(&call.body))),
    ),
    change(
        Verb::Delete,
        BLOCKED,
        "unblockKey",
        "Ends the block of a key, by hand or by a penalty; what is counted of it stays. 404: it is not blocked.",
        Takes::Nothing,
        Handler::Change(|call| changed(call, KeyChange::Unblock)),
    ),
    change(
        Verb::Put,
        OVERRIDDEN,
        "overrideKey",
        "Gives a key numbers of its own, in place of the limit's and of its plan's, until an instant or until somebody ends it.",
        Takes::Json(&OVERRIDE),
        Handler::Change(|call| changed(call, KeyChange::Override(&call.body))),
    ),
    change(
        Verb::Delete,
        OVERRIDDEN,
        "removeKeyOverride",
        "Gives a key the numbers of the limit, or of its plan, again. 404: it has no numbers of its own.",
        Takes::Nothing,
        Handler::Change(|call| changed(call, KeyChange::NoOverride)),
    ),
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/exceptions",
        role: Role::Read,
        id: "listExceptions",
        summary: "The keys that are blocked by hand or have numbers of their own: until when, by whom, why.",
        parameters: &[page::MAX, page::CURSOR],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&EXCEPTIONS))],
        tells_of_clients: false,
        handler: Handler::Read(|call| page(call, call.commands.exceptions(), "exceptions")),
    },
];

fn changed(call: &Call, change: KeyChange<'_>) -> Result<AdminAnswer, Problem> {
    let changed = call.commands.change_key(call.name(0), call.name(1), change, &call.by);
    let done = |answer: Value| {
        let (before, after) = logged(&answer);
        AdminAnswer::json(answer).changed(before, after)
    };
    changed.map(done).map_err(problem)
}

/// Why a key is not changed, or not shown.
pub(super) fn problem(unchanged: Unchanged) -> Problem {
    match unchanged {
        Unchanged::Unknown(detail) => Problem::new(StatusCode::NOT_FOUND, detail),
        Unchanged::Unreadable(detail) => Problem::new(StatusCode::BAD_REQUEST, detail),
        Unchanged::Wrong(detail) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail),
        Unchanged::Full(detail) | Unchanged::Ambiguous(detail) => Problem::new(StatusCode::CONFLICT, detail),
        Unchanged::Ended(detail) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1),
    }
}

/// The log's words for a change: the key as it may be shown, the state before, and the state now.
fn logged(answer: &Value) -> (String, String) {
    let key = answer["key"].as_str().unwrap_or_default();
    let before = [&answer["before"], &answer["found"]].into_iter().find(|value| !value.is_null());
    let after = [&answer["block"], &answer["own_numbers"]].into_iter().find(|value| !value.is_null());
    let words = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
    (format!("{key}: {}", words(before)), format!("{key}: {}", words(after)))
}
