//! The dead-letter log.

use serde_json::{Value, json};

use crate::admin::dead_letters;
use crate::admin::endpoint::{
    AdminAnswer, Content, Endpoint, Gives, Handler, Parameter, ParameterPlace, Schema, Takes, Verb,
};
use crate::admin::role::Role;

fn text() -> Value {
    json!({ "type": "string" })
}

/// A parameter that chooses entries, as `sluicegate dead-letters ls` has it.
const fn filter(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: ParameterPlace::Query, about, schema: text, required: false }
}

const SINCE: Parameter = filter("since", "RFC 3339, a date, or an age such as `10m`.");
const UNTIL: Parameter = filter("until", "The same.");
const LIMIT: Parameter = filter("limit", "The limit that refused.");
const ROUTE: Parameter = filter("route", "The route.");
const REASON: Parameter = filter("reason", "Why it is there, such as `rate-limited`.");
const KEY: Parameter = filter("key", "A part of the key.");
const CLIENT: Parameter = filter("client", "An address or a network.");
const STATUS: Parameter = filter("status", "The status of the answer, or a class such as `5xx`.");

const MAX: Parameter = Parameter {
    name: "max",
    place: ParameterPlace::Query,
    about: "Records of a page.",
    schema: || json!({ "type": "integer", "minimum": 1, "maximum": 1_000, "default": 100 }),
    required: false,
};

const LAST_EVENT_ID: Parameter = Parameter {
    name: "last-event-id",
    place: ParameterPlace::Query,
    about: "The last event that the client had. The header field of this name wins.",
    schema: text,
    required: false,
};

const LAST_EVENT: Parameter =
    Parameter { place: ParameterPlace::Header, about: "The last event that the client had.", ..LAST_EVENT_ID };

const LETTERS: Schema = Schema {
    name: "DeadLetters",
    make: || {
        json!({
            "type": "object",
            "required": ["records", "next", "damaged"],
            "properties": {
                "records": { "type": "array", "items": { "type": "object" } },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
                "damaged": { "type": "integer", "description": "Lines that could not be read." },
            },
        })
    },
};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/dead-letters",
        role: Role::Read,
        id: "listDeadLetters",
        summary: "A page of the dead-letter log. 404 without `[dead_letter]`.",
        parameters: &[
            SINCE,
            UNTIL,
            LIMIT,
            ROUTE,
            REASON,
            KEY,
            CLIENT,
            STATUS,
            MAX,
            Parameter { about: "`next` of the page before.", ..filter("cursor", "") },
        ],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&LETTERS))],
        tells_of_clients: true,
        handler: Handler::Read(|call| {
            let page = dead_letters::page(&*call.commands, call.query.as_deref())?;
            Ok(AdminAnswer::of(Content::JsonText(page)))
        }),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/dead-letters/stream",
        role: Role::Read,
        id: "streamDeadLetters",
        summary: "The entries of the dead-letter log as they are written, as server-sent events.",
        parameters: &[SINCE, UNTIL, LIMIT, ROUTE, REASON, KEY, CLIENT, STATUS, LAST_EVENT_ID, LAST_EVENT],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Events)],
        tells_of_clients: true,
        handler: Handler::DeadLetterStream,
    },
];
