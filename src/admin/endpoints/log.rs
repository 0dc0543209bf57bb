//! The log of the process.

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::admin::endpoint::{AdminAnswer, Call, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::problem::Problem;
use crate::admin::role::Role;

const LOG: Schema = Schema {
    name: "Log",
    make: || {
        json!({
            "type": "object",
            "required": ["level", "of_file"],
            "properties": {
                "level": { "type": "string", "description": "The level, or the filter, that holds." },
                "of_file": { "type": "string", "description": "`level` of [log]; it holds again after a restart, or a reload that changes [log]." },
            },
        })
    },
};

const LEVEL: Schema = Schema {
    name: "LogLevel",
    make: || {
        json!({
            "type": "object",
            "required": ["level"],
            "additionalProperties": false,
            "properties": {
                "level": { "type": "string", "maxLength": 256, "description": "As `level` of [log]: `debug`, or `info,sluicegate::proxy=debug`." },
            },
        })
    },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    level: String,
}

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/log",
        role: Role::Read,
        id: "getLog",
        summary: "The level of the log.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&LOG))],
        tells_of_clients: false,
        handler: Handler::Read(|call| Ok(AdminAnswer::json(call.commands.log_level()))),
    },
    Endpoint {
        method: Verb::Put,
        path: "/api/v1/log",
        role: Role::Operate,
        id: "setLog",
        summary: "Sets the level of the log, until a restart or a reload that changes [log].",
        parameters: &[],
        takes: Takes::Json(&LEVEL),
        gives: &[(200, Gives::Json(&LOG))],
        tells_of_clients: false,
        handler: Handler::Change(set),
    },
];

fn set(call: &Call) -> Result<AdminAnswer, Problem> {
    let Level { level } = call.json()?;
    let before = call.commands.log_level()["level"].as_str().unwrap_or_default().to_owned();
    let set = call.commands.set_log_level(&level);
    let shown = set.map_err(|wrong| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, wrong))?;
    Ok(AdminAnswer::json(shown).changed(before, level))
}
