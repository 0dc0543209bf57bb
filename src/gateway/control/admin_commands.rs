use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::{Control, Reloaded};
use crate::admin;
use crate::gateway::fleet_status;

/// The gateway as admin asks it.
pub(super) struct AdminCommands(pub(super) Weak<Control>);

impl admin::Commands for AdminCommands {
    fn ready(&self) -> bool {
        self.0.upgrade().is_some_and(|control| !control.draining.load(Ordering::Acquire))
    }

    fn config(&self) -> serde_json::Value {
        let Some(control) = self.0.upgrade() else { return serde_json::Value::Null };
        let state = control.state();
        serde_json::json!({
            "file": control.path.display().to_string(),
            "generation": state.feed.generation(),
            "last_reload_error": state.last_error,
            "listeners": state.listening.values().map(ToString::to_string).collect::<Vec<_>>(),
            "routes": state.model.routes.iter().map(|route| &*route.name).collect::<Vec<_>>(),
            "limits": state.model.limits.iter().map(|limit| &*limit.spec.name).collect::<Vec<_>>(),
            "upstreams": state.model.upstreams.iter().map(|upstream| &*upstream.name).collect::<Vec<_>>(),
        })
    }

    fn fleet(&self) -> serde_json::Value {
        let Some(control) = self.0.upgrade() else { return serde_json::Value::Null };
        let state = control.state();
        let fleet = state.fleet.as_ref().map(|membership| &membership.fleet);
        fleet_status::report(fleet, &state.model, &state.lasting.limits, control.clock.now())
    }

    fn reload(&self) -> Result<String, String> {
        let Some(control) = self.0.upgrade() else { return Err("the gateway has ended".into()) };
        match control.reload(true)? {
            Reloaded::Unchanged => Ok("configuration unchanged".into()),
            Reloaded::Changed(plan) => Ok(plan),
        }
    }
}
