//! Keys, such as `"client-ip"` or `["client-ip", "header:x-api-key"]`.

use super::findings::{Reported, quoted};
use super::kind::{Context, each};
use super::reader::Node;
use super::token::with_causes;
use sluicegate_admission::{JwtClaim, KeyError, KeyExpr};

const KEY_SOURCES: &str = "keys are client-ip, header:NAME, cookie:NAME, query:NAME, json:/POINTER, form:NAME, host, method, path, route, basic:user, tls:subject, \
     tls:fingerprint, jwt:CLAIM, jwt-unverified:CLAIM, descriptor:NAME and global";

/// A part, or an array of parts.
pub(super) fn key(node: &Node<'_>, context: &Context<'_>) -> Result<KeyExpr, Reported> {
    let nodes = node.place().one_or_many();
    let parts = each(&nodes, |part| {
        let text = part.string("a key in quotes", "\"client-ip\" or [\"client-ip\", \"header:x-api-key\"]")?;
        match KeyExpr::parse(&[text]) {
            Ok(key) if context.address_header.is_some_and(|header| key.has_header(header)) => Err(part.error(
                format!("{} is `address_header` of [client], which says who the client is", quoted(text)),
                "write \"client-ip\": it is read from this header of trusted proxies, and is the peer's address of others",
            )),
            Ok(key) if !context.has_jwt && key.jwt_claims().any(JwtClaim::is_verified) => Err(part.error(
                format!("{} needs the keys of the issuer, and there is no [jwt]", quoted(text)),
                "add [jwt] with jwks = \"https://issuer.example/.well-known/jwks.json\", or write \"jwt-unverified:…\" \
                 behind a proxy that verifies tokens",
            )),
            Ok(_) => Ok(text),
            Err(KeyError::Claim(_)) => Err(part.error(
                format!("{} names no claim of a token", quoted(text)),
                "write \"jwt:sub\", or a pointer for a claim within another: \"jwt:/realm/id\"",
            )),
            Err(error) => Err(part.error(format!("unknown key source {}", quoted(text)), remedy(&error))),
        }
    })?;
    let key = KeyExpr::parse(&parts)
        .map_err(|error| node.error(format!("{} cannot be made of these parts", node.label()), remedy(&error)))?;
    if key.needs_client_certificate() && !context.asks_for_clients {
        let message = format!("{} = {key} never has a value: no listener asks clients for certificates", node.label());
        let help = "add client_certificates = \"required\" or \"optional\" to the `tls` of a [[listener]]";
        node.warning(message, help);
    }
    if let Some(name) = key.unseen_header() {
        let message = format!("{} = {key} never has a value: {name:?} ends at the gateway", node.label());
        node.warning(
            message,
            "name a header that goes to the servers: this one is about one connection, or looks like one that is",
        );
    } else if let Some(name) = key.header_of_a_proxy().filter(|_| !context.trusts_proxies) {
        let message =
            format!("{} = {key} never has a value: {name:?} is believed from trusted proxies alone", node.label());
        node.warning(message, "add the proxy that writes it to `trusted_proxies` of [client], or name another header");
    }
    Ok(key)
}

/// A key of something that is asked for before a body is read.
pub(super) fn key_of_head(node: &Node<'_>, context: &Context<'_>) -> Result<KeyExpr, Reported> {
    let key = key_of_plans(node, context)?;
    if let Some(entry) = key.descriptor_entries().next() {
        let message = format!("{} = {key} is about descriptors, which only limits and plans count by", node.label());
        return Err(node.error(message, format!("remove \"descriptor:{entry}\", or name a part of the head")));
    }
    Ok(key)
}

/// The same of plans, which descriptors may have too.
pub(super) fn key_of_plans(node: &Node<'_>, context: &Context<'_>) -> Result<KeyExpr, Reported> {
    let key = key(node, context)?;
    if let Some(field) = key.body_fields().next() {
        let message = format!("{} = {key} is about the body, which only limits read", node.label());
        return Err(node.error(message, format!("remove \"{field}\", or name a part of the head")));
    }
    Ok(key)
}

fn remedy(error: &KeyError) -> String {
    match error {
        KeyError::Unknown(_, Some(near)) => format!("did you mean \"{near}\"?"),
        KeyError::Unknown(_, None) => KEY_SOURCES.to_owned(),
        KeyError::Tls(_) => "of a client's certificate use \"tls:subject\" or \"tls:fingerprint\"".to_owned(),
        other => with_causes(other),
    }
}

/// The key of a limit that does not say otherwise.
pub(super) fn client_ip() -> Option<KeyExpr> {
    KeyExpr::parse(&["client-ip"]).ok()
}
