//! Listeners that decide for others: `decides` of `[[listener]]`, and what goes with it.

use crate::findings::Reported;
use crate::kind::{Context, each};
use crate::names;
use crate::networks;
use crate::reader::Node;
use crate::section::Key;
use ipnet::IpNet;
use std::sync::Arc;

words! {
    /// `decides` of `[[listener]]`.
    pub enum Decides {
        /// Each request describes another one by fields; the status of its answer is the decision.
        Auth = "auth",
        /// `POST /v1/check` asks about keys of limits, and about requests that it describes in JSON.
        Json = "json",
        /// Envoy asks about each request by `envoy.service.auth.v3.Authorization/Check` of gRPC.
        ExtAuthz = "ext-authz",
        /// Envoy asks about descriptors by `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` of gRPC.
        EnvoyRls = "envoy-rls",
    }
}

words! {
    /// `described_by` of `[[listener]]`.
    pub enum DescribedBy {
        /// `X-Forwarded-Method`, `-Proto`, `-Host`, `-Uri`, as Traefik and Caddy send them.
        Forwarded = "forwarded",
        /// `X-Original-Method`, and `X-Original-URL` or `X-Original-URI`, as nginx is told to send them.
        Original = "original",
    }
}

/// Routes that one listener names.
pub const MAX_NAMED: usize = 10_000;

/// Peers that may ask.
pub(super) fn allow(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<IpNet>, Reported> {
    let networks = networks::list(node, context)?;
    if networks.is_empty() {
        return Err(node.error(
            "`allow` is empty, and so no peer could ask",
            "leave it out for loopback, or name the proxy's addresses",
        ));
    }
    Ok(networks)
}

/// Names of routes, of which none is looked up yet.
pub(super) fn routes(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<Arc<str>>, Reported> {
    let items = node.array("[\"api\"]")?;
    if items.is_empty() {
        return Err(node.error("`routes` is empty", "leave it out for every route that can be decided for others"));
    }
    if items.len() > MAX_NAMED {
        return Err(node.error(format!("`routes` has {} items", items.len()), format!("it takes at most {MAX_NAMED}")));
    }
    each(&items, |item| names::read(item, "api"))
}

/// Whether every one of them decides for others, so that no request is proxied. One that could not be read may.
pub(super) fn is_all(all: &[&Key<'_, Option<Decides>>]) -> bool {
    all.iter().all(|key| !matches!(key.value, Ok(None)))
}
