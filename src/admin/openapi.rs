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
