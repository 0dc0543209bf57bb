//! The configuration, and the fleet.

use serde_json::{Value, json};

use crate::admin::endpoint::{AdminAnswer, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::role::Role;

const CONFIG: Schema = Schema {
    name: "Config",
    make: || {
        json!({
            "type": "object",
            "required": ["file", "generation", "last_reload_error", "listeners", "routes", "limits", "upstreams"],
            "properties": {
                "file": { "type": "string" },
                "generation": { "type": "integer", "minimum": 1 },
                "last_reload_error": { "type": ["string", "null"] },
                "listeners": { "type": "array", "items": { "type": "string" } },
                "routes": { "type": "array", "items": { "type": "string" } },
                "limits": { "type": "array", "items": { "type": "string" } },
                "upstreams": { "type": "array", "items": { "type": "string" } },
                "rules": { "enum": ["edit", "read-only"], "description": "Whether they may be changed over the API." },
                "etag": { "type": ["string", "null"], "description": "The tag of the file's text as it is now." },
                "follow": follow(),
                "last_reload": { "type": ["object", "null"], "description": "The last reload that changed something." },
            },
        })
    },
};

fn follow() -> Value {
    json!({
        "type": ["object", "null"],
        "description": "Where the rules come from, if `[rules]` says so.",
        "required": ["url", "etag", "since", "error"],
        "properties": {
            "url": { "type": "string", "description": "Without the part behind a `?`." },
            "etag": { "type": ["string", "null"], "description": "The tag of the text that holds." },
            "since": { "type": ["string", "null"], "description": "When the source last gave rules that hold; null: not since the start." },
            "error": { "type": ["string", "null"], "description": "The reason why its last answer does not hold, or is none." },
        },
    })
}

const FLEET: Schema = Schema {
    name: "Fleet",
    make: || {
        json!({
            "type": "object",
            "required": ["mode"],
            "properties": {
                "mode": { "type": "string", "description": "`off` without [fleet]." },
                "since": { "type": "string" },
                "member": { "type": "string" },
                "is_newcomer": { "type": "boolean" },
                "gateways": { "type": "integer" },
                "members": { "type": "array", "items": { "type": "string" } },
                "on_failure": { "type": "string" },
                "deadline_ms": { "type": "number" },
                "store": { "type": "object", "description": "Not in a fleet without a store." },
                "peers": { "type": "object", "description": "In a fleet without a store: the other gateways, and the way between them." },
                "limits": { "type": "array", "items": { "type": "object", "required": ["limit", "shared"] } },
            },
        })
    },
};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/config",
        role: Role::Read,
        id: "getConfig",
        summary: "The file, the generation, the last reload error, and the names of listeners, routes, limits and upstreams.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&CONFIG))],
        tells_of_clients: false,
        handler: Handler::Read(|call| Ok(AdminAnswer::json(call.commands.config()))),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/config",
        role: Role::Read,
        id: "getConfigNow",
        summary: "The same. ETag: that of the file's text, for a change of it.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&CONFIG))],
        tells_of_clients: false,
        handler: Handler::Read(|call| {
            let shown = call.commands.config();
            let etag = shown["etag"].as_str().map(str::to_owned);
            Ok(AdminAnswer { etag, ..AdminAnswer::json(shown) })
        }),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/fleet",
        role: Role::Read,
        id: "getFleet",
        summary: "The fleet: mode, gateways, the store and its latency or the other gateways and their lag, and of each shared limit its bounds, with a store also its leases and debt.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&FLEET))],
        tells_of_clients: false,
        handler: Handler::Read(|call| Ok(AdminAnswer::json(call.commands.fleet()))),
    },
];
