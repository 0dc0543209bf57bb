//! The bounds of one client's connections. The counts of those of the generation before go on under new numbers.

use std::sync::Arc;

use crate::admission::Networks;
use crate::config::Client;
use crate::gateway::error::BuildError;
use crate::limiter::{Algorithm, Bound, Carry, Concurrency, Limit, LimitSpec, Policy, TimerWheel};
use crate::proxy::{AcceptPlan, ClientBounds, ConnectionRejection};

/// Clients whose connections are counted at once.
const MAX_CLIENTS: u64 = 1_000_000;

/// The rules by which connections are taken, upon those of the generation before, not yet with new numbers.
pub(super) fn make(client: &Client, old: &AcceptPlan) -> Result<AcceptPlan, BuildError> {
    let old: Vec<_> = old.clients.iter().flat_map(limits).collect();
    let (mut limits, mut reasons) = (Vec::new(), Vec::new());
    for (by, spec) in specs(client) {
        let known = old.iter().find(|(own, _)| *own == by).map(|(_, limit)| *limit);
        let kept = known.filter(|limit| spec.algorithm.carries(&limit.spec().algorithm) != Carry::Nothing);
        limits.push(kept.map_or_else(|| Limit::new(spec), Arc::clone));
        reasons.push(by);
    }
    let policy = Policy::new(limits).map_err(|source| BuildError::Limits { route: "[client]".into(), source })?;
    let allow = &client.allow;
    Ok(AcceptPlan {
        allow: (!allow.is_empty()).then(|| Networks::new(allow.iter().copied())),
        clients: (!reasons.is_empty()).then_some(ClientBounds { policy, reasons }),
    })
}

/// Lets the numbers of the section hold.
pub(super) fn renumber(client: &Client, plan: &AcceptPlan) {
    let bounds = plan.clients.iter().flat_map(limits);
    for ((_, limit), (_, spec)) in bounds.zip(specs(client)) {
        limit.reconfigure(spec);
    }
}

fn limits(bounds: &ClientBounds) -> impl Iterator<Item = (ConnectionRejection, &Arc<Limit>)> {
    bounds.reasons.iter().copied().zip(bounds.policy.limits())
}

fn specs(client: &Client) -> Vec<(ConnectionRejection, LimitSpec)> {
    let open = client.max_connections.and_then(|most| Concurrency::new(most).ok()).map(Algorithm::Concurrency);
    let new = client.connection_rate.and_then(|rate| TimerWheel::new(&[rate], None, Bound::Sliding).ok());
    // The oldest ones are forgotten: a client that can come from so many networks is not stopped by keeping them.
    let spec = |name: &str, algorithm| LimitSpec { max_keys: MAX_CLIENTS, ..LimitSpec::new(name, algorithm) };
    let open = open.map(|algorithm| (ConnectionRejection::Client, spec("max_connections", algorithm)));
    let new = new.map(|wheel| (ConnectionRejection::ClientRate, spec("connection_rate", Algorithm::TimerWheel(wheel))));
    open.into_iter().chain(new).collect()
}
