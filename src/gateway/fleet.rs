//! The gateway's part in a fleet: which limits it shares, and under which keys of the store.

use std::env;
use std::sync::Arc;

use super::fleet_status;
use super::live::{KeyLimit, LiveLimits, counted};
use super::notices::NoticeSender;
use crate::admission::KeyExpr;
use crate::config::{Fleet as Section, LimitId, Model};
use crate::fleet::{Binding, Fleet, Settings, SharedLimit};
use crate::limiter::{FleetView, KeyHasher, LimitSpec};
use crate::telemetry::{Registration, Registry};
use crate::time::Clock;

/// The password for the store; it wins over the one of a file.
const PASSWORD: &str = "SLUICEGATE_FLEET_PASSWORD";

/// Makes the fingerprints of keys that are shared; `None`: there is no fleet.
pub(super) fn hasher(model: &Model) -> Option<KeyHasher> {
    model.fleet.as_ref()?.secret().map(KeyHasher::with_secret)
}

/// Where a limit's counts lie in the store, up to the fingerprint; `None`: it is not shared. Another prefix, secret, key or
/// length of a window is another place, where it is counted afresh; another `L` is not.
pub(super) fn keys_of(model: &Model, id: &LimitId, spec: &LimitSpec, key: &KeyExpr) -> Option<Box<str>> {
    spec.sharing?;
    let (section, shared) = (model.fleet.as_ref()?, SharedLimit::new(&spec.algorithm).ok()?);
    let LimitId { limit, plan, key: of_key } = id;
    let mut layout = hasher(model)?.start();
    let form = model.client.address_form();
    for part in [&**limit, plan.as_deref().unwrap_or_default(), spec.algorithm.name(), &key.to_string()] {
        layout.part(0, part.as_bytes());
    }
    layout.part(1, &[form.ipv6_prefix]);
    for number in shared.layout() {
        layout.part(2, &number.to_le_bytes());
    }
    let layout = layout.finish().bits();
    let of_plan = plan.as_deref().map(|plan| format!("/{plan}")).unwrap_or_default();
    // No plan has such a name.
    let of_key = of_key.map(|key| format!("/key={:016x}", key.bits())).unwrap_or_default();
    Some(format!("{}:{limit}{of_plan}{of_key}:{layout:016x}:", section.prefix).into())
}

/// The gateway's part in a fleet, and its figures.
pub(super) struct Membership {
    pub(super) fleet: Fleet,
    _gauges: Vec<Registration>,
}

/// Takes part as the model says: starts, goes on otherwise, or ends.
pub(super) fn renew(
    running: Option<Membership>,
    (model, of_keys): (&Model, &[KeyLimit]),
    limits: &LiveLimits,
    (clock, notices): (&Clock, &NoticeSender),
    registry: &Arc<Registry>,
) -> std::io::Result<Option<Membership>> {
    let Some(section) = &model.fleet else { return Ok(None) };
    let (settings, bindings) = (settings(section), bindings(model, of_keys, limits));
    if let Some(running) = running {
        running.fleet.configure(settings, bindings);
        return Ok(Some(running));
    }
    let fleet = Fleet::start(settings, bindings, clock.clone(), fleet_status::took(registry), notices.hears())?;
    let gauges = fleet_status::register(registry, &fleet);
    Ok(Some(Membership { fleet, _gauges: gauges }))
}

/// The same in a reload, which does not fail any more: without the thread each gateway decides alone.
pub(super) fn renewed(
    running: Option<Membership>,
    counted: (&Model, &[KeyLimit]),
    limits: &LiveLimits,
    ends: (&Clock, &NoticeSender),
    registry: &Arc<Registry>,
) -> Option<Membership> {
    renew(running, counted, limits, ends, registry).unwrap_or_else(|error| {
        tracing::error!(%error, "the thread of the fleet cannot be started; shared limits are decided by on_failure");
        for (limit, _) in limits.values() {
            limit.set_view(FleetView { is_up: false, ..limit.view() });
        }
        None
    })
}

fn settings(section: &Section) -> Settings {
    let password = env::var(PASSWORD).ok().filter(|password| !password.is_empty());
    Settings {
        endpoint: section.endpoint(password.as_deref()),
        prefix: Arc::clone(&section.prefix),
        node: Arc::clone(&section.node),
        deadline: section.deadline,
        on_failure: section.on_failure,
    }
}

fn bindings(model: &Model, of_keys: &[KeyLimit], limits: &LiveLimits) -> Vec<Arc<Binding>> {
    let binding = |(id, spec, _): (LimitId, &LimitSpec, &KeyExpr)| {
        let (limit, place) = limits.get(&id)?;
        let (keys, sharing) = (place.keys.clone()?, spec.sharing?);
        let shared = SharedLimit::new(&spec.algorithm).ok()?;
        Some(Arc::new(Binding { limit: Arc::clone(limit), shared, keys, hold: sharing.hold }))
    };
    counted(model, of_keys).filter_map(binding).collect()
}
