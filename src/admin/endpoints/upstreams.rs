//! Upstreams and their servers.

use http::StatusCode;
use serde_json::{Value, json};

use super::page::{self, page};
use crate::admin::endpoint::{
    AdminAnswer, Call, Endpoint, Gives, Handler, Parameter, ParameterPlace, Schema, Takes, Verb,
};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::admin::{ServerChange, ServerUnchanged};
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
                "in_flight": { "type": ["integer", "null"], "description": "null: nothing bounds it." },
                "max_in_flight": { "type": ["integer", "null"] },
                "pending": { "type": ["integer", "null"] },
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
    place: ParameterPlace::Query,
    about: "`up`: it takes requests. `drain`: it gets no new ones. `off`: none, and its health is not checked.",
    schema: || json!({ "enum": ["up", "drain", "off"] }),
    required: false,
};

const WEIGHT: Parameter = Parameter {
    name: "weight",
    place: ParameterPlace::Query,
    about: "Its share of the requests, beside the other servers' weights.",
    schema: || json!({ "type": "integer", "minimum": 1, "maximum": MAX_WEIGHT }),
    required: false,
};

const FORCE: Parameter = Parameter {
    name: "force",
    place: ParameterPlace::Query,
    about: "Takes the last server in service out, too.",
    schema: || json!({ "type": "boolean", "default": false }),
    required: false,
};

/// As in the file.
const MAX_WEIGHT: u32 = 1_000;

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
        summary: "Takes a server out of service, or back, or gives it a weight, until the file says otherwise of it or the process ends. 409: it is the last one in service.",
        parameters: &[STATE, WEIGHT, FORCE],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&UPSTREAMS))],
        tells_of_clients: false,
        handler: Handler::Change(set_server),
    },
];

/// How an operator has set a server, by a report.
fn setting(shown: &Value, upstream: &str, server: &str) -> String {
    let of = |list: &str, name: &str, value: &str, within: &Value| {
        let all = within[list].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one[name] == value).unwrap_or_default()
    };
    let found = of("servers", "server", server, &of("upstreams", "upstream", upstream, shown));
    format!("{} weight {}", found["service"].as_str().unwrap_or_default(), found["weight"])
}

fn set_server(call: &Call) -> Result<AdminAnswer, Problem> {
    let detail = "Say what is to become of the server: ?state=up, ?state=drain or ?state=off, or ?weight=1 to 1000.";
    let wrong = || {
        let words = Service::ALL.iter().map(|service| service.word()).collect::<Vec<_>>();
        Problem::new(StatusCode::BAD_REQUEST, detail).with("states", words)
    };
    let service = match call.parameter("state")? {
        Some(state) => Some(Service::from_word(&state).ok_or_else(wrong)?),
        None => None,
    };
    let weight = match call.parameter("weight")? {
        Some(text) => Some(text.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight)).ok_or_else(wrong)?),
        None => None,
    };
    if service.is_none() && weight.is_none() {
        return Err(wrong());
    }
    let is_forced = match call.parameter("force")?.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Problem::new(StatusCode::BAD_REQUEST, "`force` is true or false.")),
    };
    let (upstream, server) = (call.name(0), call.name(1));
    let before = setting(&call.commands.upstreams(), upstream, server);
    let change = ServerChange { service, weight, is_forced };
    let shown = call.commands.set_server(upstream, server, change).map_err(|unchanged| match unchanged {
        ServerUnchanged::Unknown(detail) => Problem::new(StatusCode::NOT_FOUND, detail),
        ServerUnchanged::Last(detail) => Problem::new(StatusCode::CONFLICT, detail),
    })?;
    let after = setting(&shown, upstream, server);
    Ok(AdminAnswer::json(shown).changed(before, after))
}
