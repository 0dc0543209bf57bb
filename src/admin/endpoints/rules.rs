//! Routes, limits, upstreams, bandwidths and entries of plans as the file has them: read, written, removed, one by one.

use std::num::NonZeroU8;

use http::StatusCode;
use http::header::{HeaderName, IF_MATCH};
use serde_json::json;

use crate::admin::Rules;
use crate::admin::endpoint::{
    AdminAnswer, Call, Endpoint, Gives, Handler, Parameter, ParameterPlace, Schema, Takes, Verb,
};
use crate::admin::problem::Problem;
use crate::admin::role::Role;
use crate::rules::{
    self, Edit, EntryChange, Holds, IfMatch, KeyChange, RuleChange, RuleEdit, RuleKind, RuleRefusal, ValueTable,
};

const ENTRY: Schema = Schema {
    name: "Rule",
    make: || {
        json!({
            "type": "object",
            "description": "An entry of the file, as JSON: its keys are those of the section. See gateway.toml.",
            "properties": { "name": { "type": "string" } },
        })
    },
};

const ENTRIES: Schema = Schema {
    name: "Rules",
    make: || {
        json!({
            "type": "object",
            "required": ["rules", "next"],
            "properties": {
                "rules": { "type": "array", "items": { "$ref": "#/components/schemas/Rule" } },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
            },
        })
    },
};

const PLAN_OF_KEY: Schema = Schema {
    name: "PlanOfKey",
    make: || {
        json!({
            "type": "object",
            "required": ["plan"],
            "properties": {
                "route": { "type": "string" },
                "plan": { "type": ["string", "null"] },
                "is_default": { "type": "boolean", "description": "Whether the key has no line of its own." },
                "renews": {
                    "type": ["integer", "null"],
                    "description": "The day on which its months begin; null: the first.",
                },
            },
        })
    },
};

const NEW_PLAN: Schema = Schema {
    name: "NewPlan",
    make: || {
        json!({
            "type": "object",
            "required": ["plan"],
            "additionalProperties": false,
            "properties": {
                "plan": { "type": "string" },
                "renews": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 31,
                    "description": "The day on which its months begin; 1: as the calendar has them. Left out: it stays as it is.",
                },
            },
        })
    },
};

/// A change that holds.
pub(super) const CHANGED: Schema = Schema {
    name: "RulesChanged",
    make: || {
        json!({
            "type": "object",
            "required": ["etag", "generation", "done", "plan", "warnings"],
            "properties": {
                "etag": { "type": "string", "description": "The tag of the new text, for the next If-Match." },
                "generation": { "type": "integer", "minimum": 1 },
                "done": { "enum": ["created", "replaced", "deleted", null], "description": "null: it was so before." },
                "plan": { "type": ["object", "null"], "description": "The plan that was carried out: text and changes." },
                "warnings": { "type": "array", "items": { "type": "object" } },
            },
        })
    },
};

/// The condition of every change.
pub(super) const CONDITION: Parameter = Parameter {
    name: "If-Match",
    place: ParameterPlace::Header,
    about: "The ETag of the text that the change is meant for; `*`: whatever the text is. Without it: 428.",
    schema: || json!({ "type": "string" }),
    required: false,
};

/// The condition of an answer.
pub(super) const UNLESS: Parameter = Parameter {
    name: "If-None-Match",
    place: ParameterPlace::Header,
    about: "The ETag of an answer that the caller has: 304 without a body, if it still holds.",
    schema: || json!({ "type": "string" }),
    required: false,
};

const BEFORE: Parameter = Parameter {
    name: "before",
    place: ParameterPlace::Query,
    about: "A new entry comes before the one of this name; else behind all others of its kind.",
    schema: || json!({ "type": "string" }),
    required: false,
};

const AFTER: Parameter = Parameter { name: "after", about: "A new entry comes behind the one of this name.", ..BEFORE };

/// The endpoints of the entries of one kind: their place in paths, their names in the document, and the word for one of them.
macro_rules! entries {
    ($all:literal, $Name:literal, $one:literal) => {
        &[
            Endpoint {
                method: Verb::Post,
                path: concat!("/api/v1/", $all),
                role: Role::Rules,
                id: concat!("create", $Name),
                summary: concat!(
                    "Writes a new ",
                    $one,
                    " into the file and takes it over at once. The body has its name."
                ),
                parameters: &[CONDITION, BEFORE, AFTER],
                takes: Takes::Json(&ENTRY),
                gives: &[(201, Gives::Json(&CHANGED))],
                tells_of_clients: false,
                handler: Handler::Change(create),
            },
            Endpoint {
                method: Verb::Get,
                path: concat!("/api/v1/", $all, "/{name}"),
                role: Role::Rules,
                id: concat!("get", $Name),
                summary: concat!("The ", $one, " as the file has it. ETag: that of the text."),
                parameters: &[UNLESS],
                takes: Takes::Nothing,
                gives: &[(200, Gives::Json(&ENTRY)), (304, Gives::Nothing)],
                tells_of_clients: true,
                handler: Handler::Read(get),
            },
            Endpoint {
                method: Verb::Put,
                path: concat!("/api/v1/", $all, "/{name}"),
                role: Role::Rules,
                id: concat!("put", $Name),
                summary: concat!(
                    "Replaces the ",
                    $one,
                    " in the file, or creates it, and takes it over at once. Comments stay."
                ),
                parameters: &[CONDITION, BEFORE, AFTER],
                takes: Takes::Json(&ENTRY),
                gives: &[(200, Gives::Json(&CHANGED)), (201, Gives::Json(&CHANGED))],
                tells_of_clients: false,
                handler: Handler::Change(put),
            },
            Endpoint {
                method: Verb::Delete,
                path: concat!("/api/v1/", $all, "/{name}"),
                role: Role::Rules,
                id: concat!("delete", $Name),
                summary: concat!(
                    "Removes the ",
                    $one,
                    " from the file, with the comment directly above it. One that others name stays: 422."
                ),
                parameters: &[CONDITION],
                takes: Takes::Nothing,
                gives: &[(200, Gives::Json(&CHANGED))],
                tells_of_clients: false,
                handler: Handler::Change(|call| change(call, RuleEdit::Edit(edit(call, EntryChange::Delete)?))),
            },
        ]
    };
}

pub(super) const ROUTES: &[Endpoint] = entries!("routes", "Route", "route");
pub(super) const LIMITS: &[Endpoint] = entries!("limits", "Limit", "limit");
pub(super) const UPSTREAMS: &[Endpoint] = entries!("upstreams", "Upstream", "upstream");
pub(super) const BANDWIDTHS: &[Endpoint] = entries!("bandwidths", "Bandwidth", "bandwidth");

/// Limits and upstreams have lists of their own, of how they stand.
pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/routes",
        role: Role::Rules,
        id: "listRoutes",
        summary: "The routes as the file has them. ETag: that of the text.",
        parameters: &[super::page::MAX, super::page::CURSOR, UNLESS],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&ENTRIES)), (304, Gives::Nothing)],
        tells_of_clients: true,
        handler: Handler::Read(list),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/bandwidths",
        role: Role::Rules,
        id: "listBandwidths",
        summary: "The bandwidths as the file has them. ETag: that of the text.",
        parameters: &[super::page::MAX, super::page::CURSOR, UNLESS],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&ENTRIES)), (304, Gives::Nothing)],
        tells_of_clients: true,
        handler: Handler::Read(list),
    },
    Endpoint {
        method: Verb::Get,
        path: "/api/v1/routes/{route}/plans/{value}",
        role: Role::Rules,
        id: "getPlanOfKey",
        summary: "The plan that a key has on a route with plans. ETag: that of the plans file.",
        parameters: &[UNLESS],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&PLAN_OF_KEY)), (304, Gives::Nothing)],
        tells_of_clients: true,
        handler: Handler::Read(plan_of_key),
    },
    Endpoint {
        method: Verb::Put,
        path: "/api/v1/routes/{route}/plans/{value}",
        role: Role::Rules,
        id: "putPlanOfKey",
        summary: "Gives a key another plan: writes its line in the plans file, at once.",
        parameters: &[CONDITION],
        takes: Takes::Json(&NEW_PLAN),
        gives: &[(200, Gives::Json(&CHANGED)), (201, Gives::Json(&CHANGED))],
        tells_of_clients: false,
        handler: Handler::Change(put_plan_of_key),
    },
    Endpoint {
        method: Verb::Delete,
        path: "/api/v1/routes/{route}/plans/{value}",
        role: Role::Rules,
        id: "deletePlanOfKey",
        summary: "Gives a key the default plan: removes its line from the plans file, at once.",
        parameters: &[CONDITION],
        takes: Takes::Nothing,
        gives: &[(200, Gives::Json(&CHANGED))],
        tells_of_clients: false,
        handler: Handler::Change(|call| {
            let wanted = KeyChange::Delete { key: call.name(1).to_owned() };
            change(call, RuleEdit::PlanOfKey { route: call.name(0).to_owned(), change: wanted })
        }),
    },
];

fn list(call: &Call) -> Result<AdminAnswer, Problem> {
    let (entries, etag) = rules_of(call)?.list(kind(call)?)?;
    let page = super::page::page(call, json!({ "rules": entries }), "rules")?;
    Ok(page.with_etag(etag))
}

fn get(call: &Call) -> Result<AdminAnswer, Problem> {
    let (entry, etag) = rules_of(call)?.entry(kind(call)?, call.name(0))?;
    Ok(AdminAnswer::json(json!(entry)).with_etag(etag))
}

fn create(call: &Call) -> Result<AdminAnswer, Problem> {
    let edit = Edit::create(kind(call)?, entry(call)?, place(call)?).map_err(RuleRefusal::from)?;
    change(call, RuleEdit::Edit(edit))
}

fn put(call: &Call) -> Result<AdminAnswer, Problem> {
    let put = EntryChange::Put(entry(call)?, place(call)?);
    change(call, RuleEdit::Edit(edit(call, put)?))
}

fn edit(call: &Call, change: EntryChange) -> Result<Edit, Problem> {
    Ok(Edit { kind: kind(call)?, name: call.name(0).to_owned(), change })
}

fn plan_of_key(call: &Call) -> Result<AdminAnswer, Problem> {
    let (shown, etag) = rules_of(call)?.plan_of_key(call.name(0), call.name(1))?;
    Ok(AdminAnswer::json(shown).with_etag(etag))
}

fn put_plan_of_key(call: &Call) -> Result<AdminAnswer, Problem> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NewPlan {
        plan: String,
        renews: Option<NonZeroU8>,
    }
    let NewPlan { plan, renews } = call.json()?;
    if renews.is_some_and(|day| day.get() > 31) {
        let detail = "`renews` is a day of a month, 1 to 31.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let wanted = KeyChange::Set { key: call.name(1).to_owned(), plan, renews };
    change(call, RuleEdit::PlanOfKey { route: call.name(0).to_owned(), change: wanted })
}

/// Makes a change: 201 where something is new, else 200.
pub(super) fn change(call: &Call, wanted: RuleEdit) -> Result<AdminAnswer, Problem> {
    let lines = call.headers.get_all(IF_MATCH).iter().map(|line| line.to_str().unwrap_or("?"));
    let asked = RuleChange { wanted, if_match: IfMatch::of(lines), by: call.by.to_string() };
    let Holds { etag, before, generation, done, plan, warnings, told } = rules_of(call)?.change(&asked)?;
    let shown = json!({
        "etag": etag,
        "generation": generation,
        "done": done.map(rules::EntryEdit::word),
        "plan": plan,
        "warnings": warnings,
    });
    let status = if done == Some(rules::EntryEdit::Created) { StatusCode::CREATED } else { StatusCode::OK };
    let answer = AdminAnswer { status, ..AdminAnswer::json(shown) }.with_etag(etag);
    let generations = || (format!("generation {before}"), format!("generation {generation}"));
    let (before, after) = done.map(|_| told.unwrap_or_else(generations)).unwrap_or_default();
    Ok(answer.changed(before, after))
}

/// The rules; they are there for as long as the gateway is.
pub(super) fn rules_of(call: &Call) -> Result<Box<dyn Rules>, Problem> {
    call.commands.rules().ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "The gateway has ended."))
}

/// The kind of rules that the path is about: the segment behind the version.
fn kind(call: &Call) -> Result<RuleKind, Problem> {
    let found = call.path.split('/').nth(3).and_then(RuleKind::from_plural);
    found.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "There are no rules of this kind."))
}

fn entry(call: &Call) -> Result<ValueTable, Problem> {
    ValueTable::from_json(&call.body).map_err(|error| {
        let detail = format!("The body is no entry: {error}. Send a JSON object with the keys of the section.");
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

fn place(call: &Call) -> Result<rules::InsertPosition, Problem> {
    match (call.parameter("before")?, call.parameter("after")?) {
        (None, None) => Ok(rules::InsertPosition::Last),
        (Some(name), None) => Ok(rules::InsertPosition::Before(name)),
        (None, Some(name)) => Ok(rules::InsertPosition::After(name)),
        (Some(_), Some(_)) => {
            Err(Problem::new(StatusCode::BAD_REQUEST, "Say either ?before=NAME or ?after=NAME, not both."))
        }
    }
}

impl From<RuleRefusal> for Problem {
    fn from(refusal: RuleRefusal) -> Self {
        let status = match &refusal {
            RuleRefusal::ReadOnly | RuleRefusal::Followed { .. } => StatusCode::FORBIDDEN,
            RuleRefusal::NoPrecondition { .. } => StatusCode::PRECONDITION_REQUIRED,
            RuleRefusal::Stale { .. } | RuleRefusal::NotLoaded { .. } => StatusCode::PRECONDITION_FAILED,
            RuleRefusal::NotFound(_) => StatusCode::NOT_FOUND,
            RuleRefusal::Conflict(_) | RuleRefusal::NotRunning(_) => StatusCode::CONFLICT,
            RuleRefusal::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            RuleRefusal::NotWritten(_) => StatusCode::INSUFFICIENT_STORAGE,
            RuleRefusal::Ends(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let problem = Self::new(status, refusal.to_string());
        match refusal {
            RuleRefusal::NoPrecondition { etag } | RuleRefusal::Stale { etag } if !etag.is_empty() => {
                problem.field(HeaderName::from_static("etag"), &etag)
            }
            RuleRefusal::Invalid { findings, .. } => problem.with("findings", findings),
            _ => problem,
        }
    }
}
