//! Upstreams and their servers.

use http::StatusCode;
use serde_json::{Value, json};

use super::page::{self, page};
use crate::admin::endpoint::{Call, Done, Endpoint, Gives, Handler, Parameter, Place, Schema, Takes, Verb};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::balance::Service;
use crate::words::Word as _;

const UPSTREAMS: Schema = Schema {
    name: "Upstreams",
    make: || {
        let server = json!({
            "type": "object",
            "required": ["server", "state", "since", "service", "weight", "backup", "in_flight", "answered", "failed"],
            "properties": {
                "server": { "type": "string" },
                "state": { "type": "string" },
                "reason": { "type": ["string", "null"] },
                "since": { "type": "string", "format": "date-time" },
                "since_ms": { "type": "number" },
                "service": { "enum": ["up", "drain", "off"] },
                "weight": { "type": "integer" },
                "backup": { "type": "boolean" },
                "share_percent": { "type": ["number", "null"] },
                "out_for_ms": { "type": ["number", "null"] },
                "in_flight": { "type": "integer" },
                "answered": { "type": "integer" },
                "failed": { "type": "integer" },
                "latency_ms": { "type": "number" },
            },
        });
        let upstream = json!({
            "type": "object",
            "required": ["upstream", "balance", "panic", "breaker", "in_flight", "servers"],
            "properties": {
                "upstream": { "type": "string" },
                "balance": { "type": "string" },
                "panic": { "type": "boolean" },
                "breaker": { "type": ["string", "null"] },
                "in_flight": { "type": "integer" },
                "max_in_flight": { "type": ["integer", "null"] },
                "pending": { "type": "integer" },
                "servers": { "type": "array", "items": server },
            },
        });
        json!({
            "type": "object",
            "required": ["upstreams"],
            "properties": {
                "upstreams": { "type": "array", "items": upstream },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
            },
        })
    },
};

const STATE: Parameter = Parameter {
    name: "state",
    place: Place::Query,
    about: "`up`: it takes requests. `drain`: it gets no new ones. `off`: none, and its health is not checked.",
    schema: || json!({ "enum": ["up", "drain", "off"] }),
    required: true,
};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/upstreams",
        role: Role::Read,
        id: "listUpstreams",
        summary: "The servers of upstreams: state, reason, since when, requests in flight, answered and failed, latency.",
        parameters: &[page::MAX, page::CURSOR],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&UPSTREAMS))],
        tells_of_clients: false,
        handler: Handler::Read(|call| page(call, call.commands.upstreams(), "upstreams")),
    },
    Endpoint {
        method: Verb::Post,
        path: "/api/v1/upstreams/{upstream}/servers/{server}",
        role: Role::Operate,
        id: "setServer",
        summary: "Takes a server out of service, or back, until the file says otherwise of it or the process ends.",
        parameters: &[STATE],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&UPSTREAMS))],
        tells_of_clients: false,
        handler: Handler::Read(set_server),
    },
];

/// Whether a server is in service, by a report.
fn service_of(shown: &Value, upstream: &str, server: &str) -> String {
    let of = |list: &str, name: &str, value: &str, within: &Value| {
        let all = within[list].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one[name] == value).unwrap_or_default()
    };
    let found = of("servers", "server", server, &of("upstreams", "upstream", upstream, shown));
    found["service"].as_str().unwrap_or_default().to_owned()
}

fn set_server(call: &Call) -> Result<Done, Problem> {
    let state = call.parameter("state")?;
    let Some(service) = state.as_deref().and_then(Service::from_word) else {
        let words = Service::ALL.iter().map(|service| service.word()).collect::<Vec<_>>();
        let detail = "Say what is to become of the server: ?state=up, ?state=drain or ?state=off.";
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail).with("states", words));
    };
    let before = service_of(&call.commands.upstreams(), call.name(0), call.name(1));
    let set = call.commands.set_server(call.name(0), call.name(1), service);
    let shown = set.map_err(|unknown| Problem::new(StatusCode::NOT_FOUND, unknown))?;
    Ok(Done::json(shown).changed(before, service.word()))
}
