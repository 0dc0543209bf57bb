//! The API as an `OpenAPI` 3.1 document.

use serde_json::{Map, Value, json};

use super::endpoint::{Endpoint, Gives, Parameter, ParameterPlace, Schema, Takes};
use super::endpoints;
use super::role::Role;

/// The document. Its paths are in full, so that no server has to be known.
pub(super) fn document() -> Value {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    schemas.insert("Problem".to_owned(), problem());
    for endpoint in endpoints::all() {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            path.insert(endpoint.method.word().to_ascii_lowercase(), operation(endpoint));
        }
        for schema in schemas_of(endpoint) {
            schemas.insert(schema.name.to_owned(), (schema.make)());
        }
    }
    paths.insert("/v1/check".to_owned(), check());
    schemas.insert("CheckQuestion".to_owned(), check_question());
    schemas.insert("CheckAnswer".to_owned(), check_answer());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "`x-role` is the role that an endpoint needs; each of read, operate and rules includes those before it.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "A token of `[admin] tokens`." },
                "certificate": { "type": "mutualTLS", "description": "A client certificate of `[admin] clients`." },
            },
        },
    })
}

/// The path at which listeners with `decides = "json"` are asked. It is none of admin's.
fn check() -> Value {
    let one_or_many = |one: &Value| json!({ "oneOf": [one, { "type": "array", "maxItems": 256, "items": one }] });
    let question = one_or_many(&reference("CheckQuestion"));
    let answered = json!({ "oneOf": [reference("CheckAnswer"), reference("Problem")] });
    let answer =
        json!({ "oneOf": [reference("CheckAnswer"), { "type": "array", "maxItems": 256, "items": answered }] });
    json!({
        "servers": [{ "url": "http://127.0.0.1:9080", "description": "A listener with `decides = \"json\"`, not admin." }],
        "post": {
            "operationId": "check",
            "summary": "Decides about keys of limits, or about requests.",
            "security": [],
            "requestBody": { "required": true, "content": { "application/json": { "schema": question } } },
            "responses": {
                "200": { "description": "The answers, in the order of the questions.", "content": { "application/json": { "schema": answer } } },
                "default": {
                    "description": "The only question cannot be decided, or the body holds no questions: a problem, as in RFC 9457.",
                    "content": { "application/problem+json": { "schema": reference("Problem") } },
                },
            },
        },
    })
}

fn check_question() -> Value {
    let text = || json!({ "type": ["string", "integer"] });
    let field = json!({ "type": ["string", "integer", "array"], "items": text() });
    let peek = json!({ "type": ["boolean", "null"], "description": "Whether nothing is counted." });
    json!({
        "oneOf": [
            {
                "type": "object",
                "required": ["limit"],
                "additionalProperties": false,
                "properties": {
                    "limit": { "type": "string", "description": "The name of a limit." },
                    "key": {
                        "type": ["string", "integer", "array", "null"],
                        "items": text(),
                        "description": "The value of its key, or a list with one for each part but `global`.",
                    },
                    "cost": { "type": ["integer", "null"], "minimum": 1, "description": "1 by default." },
                    "peek": peek.clone(),
                },
            },
            {
                "type": "object",
                "required": ["request"],
                "additionalProperties": false,
                "properties": {
                    "request": {
                        "type": "object",
                        "required": ["method", "url", "client"],
                        "additionalProperties": false,
                        "properties": {
                            "method": { "type": "string" },
                            "url": { "type": "string", "description": "`https://host/path?query`, or the path and the query." },
                            "client": { "type": "string", "description": "The address from which the program had the request." },
                            "headers": { "type": ["object", "null"], "additionalProperties": field },
                        },
                    },
                    "peek": peek,
                },
            },
        ],
    })
}

fn check_answer() -> Value {
    let number = |about: &str| json!({ "type": ["integer", "null"], "minimum": 0, "description": about });
    json!({
        "type": "object",
        "required": ["allowed", "limit", "remaining", "limit_value", "retry_after_ms", "reset_ms", "shadow"],
        "additionalProperties": false,
        "properties": {
            "allowed": { "type": "boolean" },
            "limit": { "type": ["string", "null"], "description": "The limit that the numbers are of." },
            "remaining": number("How many more of cost 1 would pass now."),
            "limit_value": number("The quota of the rate."),
            "retry_after_ms": number("0: it may go on. Null: never, or it is not known."),
            "reset_ms": number("When `remaining` grows. Null: nothing is taken."),
            "shadow": { "type": "boolean", "description": "A limit in shadow mode would have refused it." },
        },
    })
}

fn schemas_of(endpoint: &Endpoint) -> impl Iterator<Item = &'static Schema> {
    let taken = match endpoint.takes {
        Takes::Json(schema) => Some(schema),
        Takes::Nothing | Takes::Toml => None,
    };
    let given = endpoint.gives.iter().filter_map(|(_, gives)| match gives {
        Gives::Json(schema) | Gives::TextOrJson(schema) => Some(*schema),
        Gives::Text | Gives::Events | Gives::Nothing => None,
    });
    taken.into_iter().chain(given)
}

fn operation(endpoint: &Endpoint) -> Value {
    let names = endpoint.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let names =
        names.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    let parameters: Vec<Value> = names.chain(endpoint.parameters.iter().map(parameter)).collect();
    let answers = endpoint.gives.iter().map(|(status, gives)| (status.to_string(), answer(*gives)));
    let otherwise = json!({
        "description": "A problem, as in RFC 9457.",
        "content": { "application/problem+json": { "schema": reference("Problem") } },
    });
    let answers: Map<String, Value> = answers.chain([("default".to_owned(), otherwise)]).collect();
    let mut operation = json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "x-role": endpoint.role.word(),
        "security": if endpoint.role == Role::Open { json!([]) } else { json!([{ "token": [] }, { "certificate": [] }]) },
        "parameters": parameters,
        "responses": answers,
    });
    let body = match endpoint.takes {
        Takes::Nothing => None,
        Takes::Json(schema) => {
            Some(json!({ "required": true, "content": { "application/json": { "schema": reference(schema.name) } } }))
        }
        Takes::Toml => Some(json!({ "content": { "application/toml": { "schema": { "type": "string" } } } })),
    };
    if let (Some(body), Some(operation)) = (body, operation.as_object_mut()) {
        operation.insert("requestBody".to_owned(), body);
    }
    operation
}

fn parameter(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": match parameter.place {
            ParameterPlace::Query => "query",
            ParameterPlace::Header => "header",
        },
        "description": parameter.about,
        "required": parameter.required,
        "schema": (parameter.schema)(),
    })
}

fn answer(gives: Gives) -> Value {
    let text = || json!({ "schema": { "type": "string" } });
    let of = |schema: &Schema| json!({ "schema": reference(schema.name) });
    let content = match gives {
        Gives::Nothing => return json!({ "description": "It still has the tag of If-None-Match." }),
        Gives::Text => json!({ "text/plain": text() }),
        Gives::Events => json!({ "text/event-stream": text() }),
        Gives::Json(schema) => json!({ "application/json": of(schema) }),
        Gives::TextOrJson(schema) => json!({ "text/plain": text(), "application/json": of(schema) }),
    };
    json!({ "description": "The answer.", "content": content })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": ["string", "null"] },
            "status": { "type": "integer" },
            "detail": { "type": "string", "description": "What is wrong, and how to mend it." },
        },
    })
}
