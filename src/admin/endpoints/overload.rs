//! Pressure: sensors, and how far adaptive limits are scaled.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::OverloadChange;
use crate::admin::endpoint::{AdminAnswer, Call, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::time::Span;

const OVERLOAD: Schema = Schema {
    name: "Overload",
    make: || {
        let sensor = json!({
            "type": "object",
            "required": ["sensor", "above", "percent"],
            "properties": {
                "sensor": { "type": "string", "description": "`cpu`, `memory`, `cpu_pressure`, `response_time:UPSTREAM` or `dead_letters`." },
                "value": { "type": ["number", "null"], "description": "A share of 1, seconds, or failures a minute; null: it has none now." },
                "above": { "type": "number", "description": "Its threshold, in the same unit." },
                "percent": { "type": "integer", "description": "The value in percent of the threshold." },
                "fault": { "type": ["string", "null"], "description": "Why it is off." },
            },
        });
        json!({
            "type": "object",
            "required": ["scale_percent", "by_hand", "floor_percent", "adaptive_limits", "shed_percent", "sensors"],
            "properties": {
                "scale_percent": { "type": "number", "description": "The share of their numbers that adaptive limits have." },
                "by_hand": { "type": "boolean", "description": "An operator has set it." },
                "floor_percent": { "type": "integer" },
                "adaptive_limits": { "type": "integer", "description": "How many limits are scaled." },
                "worst": { "type": ["string", "null"], "description": "The sensor that is farthest above its threshold, or nearest to it." },
                "shed_percent": {
                    "type": "object",
                    "required": ["low", "normal"],
                    "properties": { "low": { "type": "number" }, "normal": { "type": "number" } },
                },
                "sensors": { "type": "array", "items": sensor },
            },
        })
    },
};

const SCALE: Schema = Schema {
    name: "OverloadScale",
    make: || {
        json!({
            "type": "object",
            "required": ["scale"],
            "additionalProperties": false,
            "properties": {
                "scale": { "type": "string", "maxLength": 16, "description": "`60%`, from 1% to 100%." },
                "for": { "type": ["string", "null"], "maxLength": 32, "description": "`10m`; without it until it is taken back, or the process ends." },
            },
        })
    },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scale {
    scale: String,
    r#for: Option<String>,
}

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/overload",
        role: Role::Read,
        id: "getOverload",
        summary: "The sensors of `[overload]`, the scale of adaptive limits, and the requests that are shed. 404 without the section.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&OVERLOAD))],
        tells_of_clients: false,
        handler: Handler::Read(|call| answer(call.commands.overload(None)).map(AdminAnswer::json)),
    },
    Endpoint {
        method: Verb::Put,
        path: "/api/v1/overload",
        role: Role::Operate,
        id: "setOverload",
        summary: "Scales adaptive limits by hand: sensors do not move the scale meanwhile, and nothing is shed anew. 404 without `[overload]`.",
        parameters: &[],
        takes: Takes::Json(&SCALE),
        gives: &[(200, Gives::Json(&OVERLOAD))],
        tells_of_clients: false,
        handler: Handler::Change(set),
    },
    Endpoint {
        method: Verb::Delete,
        path: "/api/v1/overload",
        role: Role::Operate,
        id: "clearOverload",
        summary: "Ends a scale by hand: sensors move it on from there. 404 without `[overload]`.",
        parameters: &[],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&OVERLOAD))],
        tells_of_clients: false,
        handler: Handler::Change(|call| change(call, OverloadChange::Clear)),
    },
];

fn set(call: &Call) -> Result<AdminAnswer, Problem> {
    let Scale { scale, r#for } = call.json()?;
    let wrong = |detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
    let percent = scale.strip_suffix('%').and_then(|digits| digits.parse().ok()).filter(|own| (1..=100).contains(own));
    let percent =
        percent.ok_or_else(|| wrong(format!("`scale` is no share: {scale:?}. Write \"60%\", from 1% to 100%.")))?;
    let length = match r#for.as_deref().map(str::parse::<Span>) {
        None => None,
        Some(Ok(length)) => Some(length),
        Some(Err(error)) => return Err(wrong(format!("`for` is no duration: {error}. Write \"10m\"."))),
    };
    change(call, OverloadChange::Set { percent, length })
}

fn change(call: &Call, change: OverloadChange) -> Result<AdminAnswer, Problem> {
    let scale = |report: &Value| format!("scale {}%", report["scale_percent"]);
    let before = scale(&answer(call.commands.overload(None))?);
    let report = answer(call.commands.overload(Some(change)))?;
    let after = scale(&report);
    Ok(AdminAnswer::json(report).changed(before, after))
}

fn answer(report: Option<Value>) -> Result<Value, Problem> {
    report.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "The file has no [overload]."))
}
