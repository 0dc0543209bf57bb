//! Limits and their keys.

use http::StatusCode;
use serde_json::{Value, json};

use super::keys;
use super::page::{self, page};
use crate::admin::endpoint::{AdminAnswer, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::problem::Problem;
use crate::admin::role::Role;

fn rate() -> Value {
    json!({
        "type": "object",
        "required": ["limit", "window_ms", "remaining"],
        "properties": {
            "limit": { "type": "integer" },
            "window_ms": { "type": "integer" },
            "remaining": { "type": "integer" },
            "reset_ms": { "type": "integer" },
        },
    })
}

/// Source and value of each part.
fn key() -> Value {
    let part = json!({ "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2 });
    json!({ "type": "array", "items": part })
}

fn count(about: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": about })
}

const LIMITS: Schema = Schema {
    name: "Limits",
    make: || {
        let texts = json!({ "type": "array", "items": { "type": "string" } });
        let limit = json!({
            "type": "object",
            "required": ["name", "plan", "mode", "algorithm", "rates", "key", "keys", "max_keys", "waiting", "blocks", "routes"],
            "properties": {
                "name": { "type": "string" },
                "plan": { "type": ["string", "null"], "description": "The plan that these numbers are of." },
                "mode": { "enum": ["enforce", "shadow", "off"] },
                "algorithm": { "type": "string" },
                "rates": texts,
                "key": { "type": "string" },
                "shared": { "type": "boolean" },
                "scheduled": { "type": "boolean" },
                "max_wait_ms": count("How long a request may wait."),
                "keys": count("Keys in the table."),
                "max_keys": count("The most of them."),
                "waiting": count("Requests that wait."),
                "blocks": count("Blocks that a penalty has begun."),
                "evicted_live": count("Keys that counted and were evicted."),
                "refused_full": count("Requests that a full table refused."),
                "routes": texts,
            },
        });
        json!({
            "type": "object",
            "required": ["limits", "next"],
            "properties": {
                "limits": { "type": "array", "items": limit },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
            },
        })
    },
};

const TOP_KEYS: Schema = Schema {
    name: "TopKeys",
    make: || {
        let counted = json!({
            "type": "array",
            "items": {
                "type": "object",
                "required": ["key", "print", "count"],
                "properties": {
                    "key": key(),
                    "print": keys::print(),
                    "count": count("How often it came, at most."),
                    "excess": count("By how much `count` may be too high."),
                },
            },
        });
        json!({
            "type": "object",
            "required": ["limit", "by", "since", "refused", "admitted"],
            "properties": {
                "limit": { "type": "string" },
                "by": { "type": "string", "description": "The parts of its key." },
                "since": { "type": "string", "format": "date-time" },
                "refused": counted,
                "admitted": counted,
            },
        })
    },
};

const KEY: Schema = Schema {
    name: "Key",
    make: || {
        let seen = json!({
            "type": "object",
            "required": ["limit", "key", "mode", "rates", "room", "decision"],
            "properties": {
                "limit": { "type": "string" },
                "plan": { "type": "string" },
                "key": { "type": "string", "description": "The value; a secret is redacted." },
                "mode": { "enum": ["enforce", "shadow", "off"] },
                "rates": { "type": "array", "items": rate() },
                "room": { "type": ["integer", "null"], "description": "Requests of cost 1 that would be admitted now." },
                "decision": { "enum": ["admitted", "refused", "waits"] },
                "next_ms": count("Milliseconds until one would be admitted."),
                "block": keys::block_seen(),
                "own_numbers": keys::numbers_seen(),
            },
        });
        json!({ "type": "object", "required": ["keys"], "properties": { "keys": { "type": "array", "items": seen } } })
    },
};

const QUESTION: Schema = Schema {
    name: "Question",
    make: || {
        let field = json!({ "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2 });
        json!({
            "type": "object",
            "required": ["url"],
            "properties": {
                "method": { "type": "string", "default": "GET" },
                "url": { "type": "string", "description": "With scheme and host, or the path alone." },
                "headers": { "type": "array", "items": field },
                "body": { "type": "string", "description": "For limits that look at it." },
                "client": { "type": ["string", "null"], "description": "The other end of the connection; 127.0.0.1 by default." },
            },
        })
    },
};

const EXPLANATION: Schema = Schema {
    name: "Explanation",
    make: || {
        json!({
            "type": "object",
            "required": ["method", "url", "route", "passed_over", "client", "peer", "peer_trusted", "limits", "decision"],
            "properties": {
                "method": { "type": "string" },
                "url": { "type": "string" },
                "route": { "type": ["string", "null"] },
                "passed_over": { "type": "array", "items": { "type": "object", "required": ["route", "reason"] } },
                "client": { "type": "string" },
                "peer": { "type": "string" },
                "peer_trusted": { "type": "boolean" },
                "plan": { "type": "string" },
                "limits": {
                    "type": "array",
                    "items": { "type": "object", "required": ["name", "mode", "algorithm", "key", "cost", "rates"] },
                },
                "decision": { "enum": ["admitted", "refused", "waits"] },
                "reason": { "type": "string" },
                "detail": { "type": "string" },
            },
        })
    },
};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/limits",
        role: Role::Read,
        id: "listLimits",
        summary: "The limits, those of plans too: mode, algorithm, rates, key, keys in the table, requests that wait, blocks.",
        parameters: &[page::MAX, page::CURSOR],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&LIMITS))],
        tells_of_clients: false,
        handler: Handler::Read(|call| page(call, call.commands.limits(), "limits")),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/limits/{limit}/keys",
        role: Role::Read,
        id: "listTopKeys",
        summary: "The 20 keys that the limit refused most often and admitted most often, within the last five to ten minutes.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&TOP_KEYS))],
        tells_of_clients: false,
        handler: Handler::Read(|call| found(call.commands.top_keys(call.name(0)))),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/limits/{limit}/keys/{value}",
        role: Role::Read,
        id: "getKey",
        summary: "A key, by its value, its mark or its print: the room of each rate, and when it is admitted again. Nothing is counted.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&KEY))],
        tells_of_clients: false,
        handler: Handler::Read(|call| {
            call.commands.key(call.name(0), call.name(1)).map(AdminAnswer::json).map_err(keys::problem)
        }),
    },
    Endpoint {
        method: Verb::Post,
        path: "/api/v1/explain",
        role: Role::Read,
        id: "explain",
        summary: "The fate of a request if it came now, and why. Nothing is counted.",
        parameters: &[],
        takes: Takes::Json(&QUESTION),
        gives: &[(200, Gives::Json(&EXPLANATION))],
        tells_of_clients: false,
        handler: Handler::Read(|call| {
            let explained = call.commands.explain(&call.body);
            explained.map(AdminAnswer::json).map_err(|wrong| Problem::new(StatusCode::BAD_REQUEST, wrong))
        }),
    },
];

/// An answer about something of a name, or that there is none.
fn found(shown: Result<Value, String>) -> Result<AdminAnswer, Problem> {
    shown.map(AdminAnswer::json).map_err(|unknown| Problem::new(StatusCode::NOT_FOUND, unknown))
}
