//! The keys that are blocked now.

use serde_json::json;

use super::keys::{instant, print, text};
use super::page;
use crate::admin::endpoint::{AdminAnswer, Endpoint, Gives, Handler, Schema, Takes, Verb};
use crate::admin::role::Role;

const BLOCKS: Schema = Schema {
    name: "Blocks",
    make: || {
        let mut until = instant("Its end; null: it has none.");
        until["type"] = json!(["string", "null"]);
        let part = json!({
            "type": "array",
            "items": { "type": "string" },
            "minItems": 2,
            "maxItems": 2,
            "description": "Source and value; a secret is redacted.",
        });
        let block = json!({
            "type": "object",
            "required": ["limit", "key", "print", "kind", "until", "exported"],
            "properties": {
                "limit": { "type": "string" },
                "plan": text("The plan, if the numbers are those of one."),
                "key": { "type": "array", "items": part },
                "print": print(),
                "kind": { "enum": ["by-hand", "penalty"] },
                "until": until,
                "exported": { "type": "boolean", "description": "Whether the kernel may block it." },
                "address": text("The address, or the network of IPv6 that is one client; left out where it is not exported."),
                "why_not": text("Why it is not exported."),
            },
        });
        json!({
            "type": "object",
            "required": ["blocks", "next"],
            "properties": {
                "blocks": { "type": "array", "items": block },
                "next": { "type": ["string", "null"], "description": "The cursor of the next page." },
            },
        })
    },
};

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: Verb::Get,
    path: "/api/v1/blocks",
    role: Role::Read,
    id: "listBlocks",
    summary: "The keys that are blocked now, by a penalty or by hand: until when, and which addresses the kernel may block too.",
    parameters: &[page::MAX, page::CURSOR],
    takes: Takes::Nothing,
    gives: &[(200, Gives::Json(&BLOCKS))],
    tells_of_clients: true,
    handler: Handler::Read(|call| {
        let (max, from) = page::bounds(call)?;
        Ok(AdminAnswer::json(call.commands.blocks(&call.peers.all(), from, max)))
    }),
}];
