//! Servers as an operator sets them while the gateway runs.

use std::sync::{Arc, PoisonError};

use super::Control;
use crate::admin::{ServerChange, ServerUnchanged};
use crate::gateway::upstream_status;

impl Control {
    /// Takes a server out of service, or back, and gives it a weight; how its upstream stands then.
    ///
    /// A weight is laid out anew, as in a reload of the same file: servers keep their connections, and requests under way go on.
    ///
    /// # Errors
    /// In words: there is no server of these names, it is the last one in service, or the upstream cannot be laid out.
    pub(super) fn set_server(
        self: &Arc<Self>,
        upstream: &str,
        server: &str,
        change: ServerChange,
    ) -> Result<serde_json::Value, ServerUnchanged> {
        let ServerChange { service, weight, is_forced } = change;
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let (snapshot, now) = (self.state().workers.feed.latest(), self.clock.now());
        let states = snapshot.upstream(upstream).map(|upstream| &upstream.states);
        let states = states.ok_or_else(|| ServerUnchanged::Unknown(format!("There is no upstream {upstream:?}.")))?;
        if !states.has(server) {
            let words = format!("The upstream {upstream:?} has no server {server:?}; write it as the file does.");
            return Err(ServerUnchanged::Unknown(words));
        }
        if let Some(service) = service
            && !states.set_service(server, service, is_forced, now)
        {
            return Err(ServerUnchanged::Last(format!(
                "{server:?} is the last server of the upstream {upstream:?} that is in service: without it requests fail, or go to \
                 servers that are out. Put another one in service first, or force it (--force, `?force=true`)."
            )));
        }
        if let Some(weight) = weight {
            self.set_weight(upstream, server, weight).map_err(ServerUnchanged::Unknown)?;
        }
        let latest = self.state().workers.feed.latest();
        Ok(upstream_status::report(&latest, Some(upstream), &self.clock))
    }

    /// For who holds the lock of reloads.
    fn set_weight(self: &Arc<Self>, upstream: &str, server: &str, weight: u32) -> Result<(), String> {
        if !self.phase.is_serving() || self.phase.has_handed_over() {
            return Err("The gateway drains; weights do not change any more.".to_owned());
        }
        let mut state = self.state();
        let model = Arc::clone(&state.model);
        let before = state.lasting.weights.clone();
        state.lasting.weights.set(&model, upstream, server, weight);
        self.change_over(&mut state, &model).map_err(|error| {
            state.lasting.weights = before;
            format!("The weight cannot be laid out: {error}.")
        })
    }
}
