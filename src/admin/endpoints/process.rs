//! The process: health, metrics, reload, upgrade.

use http::StatusCode;
use http::header::ACCEPT;
use serde_json::json;

use crate::admin::endpoint::{AdminAnswer, Call, Content, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::role::Role;

const RELOADED: Schema = Schema {
    name: "Reloaded",
    make: || {
        json!({
            "type": "object",
            "required": ["ok"],
            "properties": {
                "ok": { "type": "boolean" },
                "plan": { "type": "string", "description": "The changes that were made, one in a line." },
                "error": { "type": "string", "description": "The mistakes for which nothing was changed." },
            },
        })
    },
};

const UPGRADED: Schema = Schema {
    name: "Upgraded",
    make: || {
        json!({
            "type": "object",
            "required": ["ok"],
            "properties": {
                "ok": { "type": "boolean" },
                "pid": { "type": "integer", "description": "The process that has taken over." },
                "error": { "type": "string", "description": "Why this process goes on." },
            },
        })
    },
};

const DOCUMENT: Schema =
    Schema { name: "OpenApi", make: || json!({ "type": "object", "required": ["openapi", "paths"] }) };

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/healthz",
        role: Role::Open,
        id: "getHealth",
        summary: "`ok` as long as the process lives.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Text)],
        tells_of_clients: false,
        handler: Handler::AtOnce(|_| AdminAnswer::text("ok")),
    },
    Endpoint {
        method: Verb::Get,
        path: "/readyz",
        role: Role::Open,
        id: "getReadiness",
        summary: "`ready`, or 503 `not ready` during a drain.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Text), (503, Gives::Text)],
        tells_of_clients: false,
        handler: Handler::AtOnce(|commands| {
            if commands.ready() {
                return AdminAnswer::text("ready");
            }
            AdminAnswer { status: StatusCode::SERVICE_UNAVAILABLE, ..AdminAnswer::text("not ready") }
        }),
    },
    Endpoint {
        method: Verb::Get,
        path: "/metrics",
        role: Role::Read,
        id: "getMetrics",
        summary: "The metrics, in the text format of Prometheus.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Text)],
        tells_of_clients: false,
        handler: Handler::Metrics,
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/openapi.json",
        role: Role::Read,
        id: "getOpenApi",
        summary: "This API as an OpenAPI 3.1 document.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&DOCUMENT))],
        tells_of_clients: false,
        handler: Handler::Document,
    },
    Endpoint {
        method: Verb::Post,
        path: "/reload",
        role: Role::Operate,
        id: "reload",
        summary: "Reads the configuration file again: the plan (200), or the mistakes (422).",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::TextOrJson(&RELOADED)), (422, Gives::TextOrJson(&RELOADED))],
        tells_of_clients: false,
        handler: Handler::Change(|call| Ok(reload(call))),
    },
    Endpoint {
        method: Verb::Post,
        path: "/upgrade",
        role: Role::Operate,
        id: "upgrade",
        summary: "Lets another process take over: its number (200), or why this one goes on (422).",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::TextOrJson(&UPGRADED)), (422, Gives::TextOrJson(&UPGRADED))],
        tells_of_clients: false,
        handler: Handler::Change(|call| Ok(upgrade(call))),
    },
];

fn reload(call: &Call) -> AdminAnswer {
    let is_json = accepts_json(call);
    let content = |result: &Result<String, String>| match result {
        Ok(plan) if is_json => Content::Json(json!({ "ok": true, "plan": plan })),
        Err(error) if is_json => Content::Json(json!({ "ok": false, "error": error })),
        Ok(text) | Err(text) => Content::Text(format!("{text}\n")),
    };
    let generation = || call.commands.config()["generation"].to_string();
    let before = generation();
    let result = call.commands.reload();
    let done = AdminAnswer { status: status_of(&result), ..AdminAnswer::of(content(&result)) };
    done.changed(format!("generation {before}"), format!("generation {}", generation()))
}

fn upgrade(call: &Call) -> AdminAnswer {
    let is_json = accepts_json(call);
    let content = |result: &Result<u32, String>| match result {
        Ok(pid) if is_json => Content::Json(json!({ "ok": true, "pid": pid })),
        Err(error) if is_json => Content::Json(json!({ "ok": false, "error": error })),
        Ok(pid) => Content::Text(format!("process {pid} has taken over; the one before drains\n")),
        Err(error) => Content::Text(format!("no upgrade: {error}\n")),
    };
    let result = call.commands.upgrade();
    AdminAnswer { status: status_of(&result), ..AdminAnswer::of(content(&result)) }
}

fn status_of<T, E>(result: &Result<T, E>) -> StatusCode {
    if result.is_ok() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY }
}

fn accepts_json(call: &Call) -> bool {
    let lines = call.headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let ranges = lines.flat_map(|line| line.split(',')).map(|range| range.split(';').next().unwrap_or("").trim());
    ranges.into_iter().any(|range| range.eq_ignore_ascii_case("application/json"))
}
