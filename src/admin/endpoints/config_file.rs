//! The configuration's file as a whole: its text, what a text would do, and the texts of before.

use http::StatusCode;
use serde_json::{Value, json};

use super::page::{self, page};
use super::rules::{CHANGED, CONDITION, UNLESS, change, rules_of};
use crate::admin::endpoint::{AdminAnswer, Call, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::rules::{RuleEdit, RuleRefusal, etag};

fn findings() -> Value {
    let finding = json!({
        "type": "object",
        "required": ["severity", "message"],
        "properties": {
            "severity": { "enum": ["error", "warning"] },
            "message": { "type": "string" },
            "file": { "type": ["string", "null"], "description": "The file, if it is not the configuration itself." },
            "line": { "type": ["integer", "null"] },
            "column": { "type": ["integer", "null"] },
            "help": { "type": ["string", "null"] },
        },
    });
    json!({ "type": "array", "items": finding })
}

const VALIDATED: Schema = Schema {
    name: "Validated",
    make: || {
        json!({
            "type": "object",
            "required": ["ok", "findings"],
            "properties": { "ok": { "type": "boolean" }, "findings": findings() },
        })
    },
};

const DIFF: Schema = Schema {
    name: "Diff",
    make: || {
        json!({
            "type": "object",
            "required": ["text", "changes", "more", "needs_restart", "warnings", "etag"],
            "properties": {
                "text": { "type": "string", "description": "The plan of a reload, as it prints it." },
                "changes": { "type": "array", "items": { "type": "object", "required": ["part", "name", "fate", "changes"] } },
                "more": { "type": "integer", "description": "Changes that are not listed." },
                "needs_restart": { "type": "boolean" },
                "warnings": findings(),
                "etag": { "type": "string", "description": "The tag of the text." },
            },
        })
    },
};

fn generation() -> Value {
    json!({
        "type": "object",
        "required": ["generation", "time", "by", "change", "etag"],
        "properties": {
            "generation": { "type": "integer", "minimum": 1 },
            "time": { "type": "string", "format": "date-time" },
            "by": { "type": "string", "description": "`file`: an editor; `start`; or who asked by the API." },
            "change": { "type": "string" },
            "etag": { "type": "string" },
            "text": { "type": "string" },
        },
    })
}

const GENERATION: Schema = Schema { name: "Generation", make: generation };

const HISTORY: Schema = Schema {
    name: "History",
    make: || {
        json!({
            "type": "object",
            "required": ["history", "next"],
            "properties": {
                "history": { "type": "array", "items": generation() },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
            },
        })
    },
};

const ROLLBACK: Schema = Schema {
    name: "Rollback",
    make: || {
        json!({
            "type": "object",
            "required": ["generation"],
            "additionalProperties": false,
            "properties": {
                "generation": { "type": "integer", "minimum": 1 },
                "force": { "type": "boolean", "description": "Also if it changes who may administer the gateway." },
            },
        })
    },
};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/config/text",
        role: Role::Rules,
        id: "getConfigText",
        summary: "The text of the configuration file, with its secrets. ETag: that of the text.",
        parameters: &[UNLESS],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Text), (304, Gives::Nothing)],
        tells_of_clients: true,
        handler: Handler::Read(text),
    },
    Endpoint {
        method: Verb::Post,
        path: "/api/v1/config/validate",
        role: Role::Rules,
        id: "validateConfig",
        summary: "Judges a text as `sluicegate check` does, with the files that it names. Changes nothing.",
        parameters: &[],
        takes: Takes::Toml,
        gives: &[(200, Gives::Json(&VALIDATED))],
        tells_of_clients: true,
        handler: Handler::Load(|call| Ok(AdminAnswer::json(rules_of(call)?.validate(toml(call)?)))),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/config/diff",
        role: Role::Read,
        id: "getConfigDiff",
        summary: "The plan of a reload of the file as it is now. Changes nothing.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&DIFF))],
        tells_of_clients: true,
        handler: Handler::Load(|call| Ok(AdminAnswer::json(rules_of(call)?.diff(None)?))),
    },
    Endpoint {
        method: Verb::Post,
        path: "/api/v1/config/diff",
        role: Role::Rules,
        id: "diffConfig",
        summary: "The plan of a reload with this text, or without a body with the file as it is. Changes nothing.",
        parameters: &[],
        takes: Takes::Toml,
        gives: &[(200, Gives::Json(&DIFF))],
        tells_of_clients: true,
        handler: Handler::Load(diff),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/config/history",
        role: Role::Read,
        id: "listHistory",
        summary: "The last 20 texts of the file, the newest first: when, by whom, and the change.",
        parameters: &[page::MAX, page::CURSOR],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&HISTORY))],
        tells_of_clients: false,
        handler: Handler::Read(|call| {
            let entries: Vec<Value> = rules_of(call)?.history().iter().map(shown).collect();
            page(call, json!({ "history": entries }), "history")
        }),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/config/history/{generation}",
        role: Role::Rules,
        id: "getGeneration",
        summary: "One of them, with its text.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&GENERATION))],
        tells_of_clients: true,
        handler: Handler::Read(one_generation),
    },
    Endpoint {
        method: Verb::Post,
        path: "/api/v1/config/rollback",
        role: Role::Rules,
        id: "rollBack",
        summary: "Writes the text of an earlier generation into the file, and takes it over at once as a new generation. 409 if that changes who may administer the gateway, unless `force` is true.",
        parameters: &[CONDITION],
        takes: Takes::Json(&ROLLBACK),
        gives: &[(200, Gives::Json(&CHANGED))],
        tells_of_clients: false,
        handler: Handler::Change(roll_back),
    },
];

fn text(call: &Call) -> Result<AdminAnswer, Problem> {
    let (text, etag) = rules_of(call)?.text()?;
    Ok(AdminAnswer::text(text).with_etag(etag))
}

/// For those who may read the file alone: what a text of the caller's own differs in tells of secrets that the running one has.
fn diff(call: &Call) -> Result<AdminAnswer, Problem> {
    let text = toml(call)?;
    Ok(AdminAnswer::json(rules_of(call)?.diff((!text.is_empty()).then_some(text))?))
}

fn toml(call: &Call) -> Result<String, Problem> {
    String::from_utf8(call.body.to_vec()).map_err(|_| {
        Problem::new(StatusCode::BAD_REQUEST, "The body is not UTF-8. Send the text of a configuration file.")
    })
}

fn shown(entry: &crate::rules::HistoryEntry) -> Value {
    json!({
        "generation": entry.generation,
        "time": entry.time,
        "by": entry.by,
        "change": entry.change,
        "etag": etag(&entry.sha256),
    })
}

fn one_generation(call: &Call) -> Result<AdminAnswer, Problem> {
    let missing =
        || RuleRefusal::NotFound("The history has no such generation. GET /api/v1/config/history lists them.".into());
    let number = call.name(0).parse().map_err(|_| missing())?;
    let (entry, text) = rules_of(call)?.generation(number).ok_or_else(missing)?;
    let text =
        text.map_err(|error| RuleRefusal::NotFound(format!("The text of this generation cannot be read: {error}.")))?;
    let mut shown = shown(&entry);
    if let Some(members) = shown.as_object_mut() {
        members.insert("text".to_owned(), json!(text));
    }
    Ok(AdminAnswer::json(shown))
}

fn roll_back(call: &Call) -> Result<AdminAnswer, Problem> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rollback {
        generation: u64,
        #[serde(default)]
        force: bool,
    }
    let Rollback { generation, force } = call.json()?;
    change(call, RuleEdit::Rollback { generation, force })
}
