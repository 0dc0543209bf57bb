use std::net::IpAddr;
use std::sync::{Arc, PoisonError, Weak};

use super::following::Following;
use super::rules::RulesCommands;
use super::{Control, Reloaded};
use crate::admin::{self, AdminAccess, NotReplayed};
use crate::dead_letter::Archive;
use crate::gateway::{explain, fleet_status, limit_status, peers_status, upstream_status};
use crate::proxy::{FlightFilter, SeenFlight};
use crate::replay::ReplayQuery;

/// The gateway as admin asks it.
pub(in crate::gateway) struct AdminCommands(pub(in crate::gateway) Weak<Control>);

impl admin::Commands for AdminCommands {
    fn ready(&self) -> bool {
        // Where another process has taken over, that one is ready behind the same address.
        self.0.upgrade().is_some_and(|control| control.phase.is_serving() || control.phase.has_handed_over())
    }

    fn door(&self) -> Arc<AdminAccess> {
        let door =
            self.0.upgrade().map(|control| Arc::clone(&control.door.lock().unwrap_or_else(PoisonError::into_inner)));
        door.unwrap_or_else(AdminAccess::closed)
    }

    fn config(&self) -> serde_json::Value {
        let Some(control) = self.0.upgrade() else { return serde_json::Value::Null };
        // The file is read before the lock is taken.
        let etag = control.rules_text().ok().map(|text| text.etag);
        let state = control.state();
        serde_json::json!({
            "follow": state.following.as_ref().map(Following::shown),
            "etag": etag,
            "rules": state.model.admin.as_ref().map(|admin| admin.rules.word()),
            "last_reload": state.last_plan,
            "file": control.path.display().to_string(),
            "generation": state.workers.feed.generation(),
            "last_reload_error": state.last_error,
            "listeners": state.sockets.iter().map(|(_, bound)| bound.to_string()).collect::<Vec<_>>(),
            "routes": state.model.routes.iter().map(|route| &*route.name).collect::<Vec<_>>(),
            "limits": state.model.limits.iter().map(|limit| &*limit.spec.name).collect::<Vec<_>>(),
            "upstreams": state.model.upstreams.iter().map(|upstream| &*upstream.name).collect::<Vec<_>>(),
        })
    }

    fn fleet(&self) -> serde_json::Value {
        let Some(control) = self.0.upgrade() else { return serde_json::Value::Null };
        let state = control.state();
        let (model, limits, clock) = (&state.model, &state.lasting.limits, &control.clock);
        match (state.fleet.fleet(), state.fleet.peers()) {
            (Some(fleet), _) => fleet_status::report(fleet, model, limits, clock),
            (None, Some(fleet)) => peers_status::report(fleet, model, limits, clock),
            (None, None) => serde_json::json!({ "mode": "off" }),
        }
    }

    fn upstreams(&self) -> serde_json::Value {
        let Some(control) = self.0.upgrade() else { return serde_json::Value::Null };
        let snapshot = control.state().workers.feed.latest();
        upstream_status::report(&snapshot, None, &control.clock)
    }

    fn set_server(
        &self,
        upstream: &str,
        server: &str,
        change: admin::ServerChange,
    ) -> Result<serde_json::Value, admin::ServerUnchanged> {
        let ended = || admin::ServerUnchanged::Unknown("the gateway has ended".into());
        self.0.upgrade().ok_or_else(ended)?.set_server(upstream, server, change)
    }

    fn overload(&self, change: Option<admin::OverloadChange>) -> Option<serde_json::Value> {
        let control = self.0.upgrade()?;
        let overload = control.state().overload.handle();
        match change {
            None => overload.report(),
            Some(admin::OverloadChange::Set { percent, length }) => overload.set(percent, length),
            Some(admin::OverloadChange::Clear) => overload.clear(),
        }
    }

    fn log_level(&self) -> serde_json::Value {
        self.0.upgrade().map_or(serde_json::Value::Null, |control| control.log_level())
    }

    fn set_log_level(&self, level: &str) -> Result<serde_json::Value, String> {
        let Some(control) = self.0.upgrade() else { return Err("the gateway has ended".into()) };
        control.set_log_level(level)
    }

    fn limits(&self) -> serde_json::Value {
        let Some(control) = self.0.upgrade() else { return serde_json::Value::Null };
        let state = control.state();
        limit_status::list(&state.model, &state.lasting.limits)
    }

    fn top_keys(&self, limit: &str) -> Result<serde_json::Value, String> {
        let Some(control) = self.0.upgrade() else { return Err("the gateway has ended".into()) };
        let (snapshot, redactor) = {
            let state = control.state();
            (state.workers.feed.latest(), state.lasting.redactor.clone())
        };
        limit_status::top_keys(&snapshot, &redactor, limit, &control.clock)
    }

    fn key(&self, limit: &str, value: &str) -> Result<serde_json::Value, admin::Unchanged> {
        let control = self.0.upgrade();
        control.ok_or_else(|| admin::Unchanged::Ended("The gateway has ended.".into()))?.key(limit, value)
    }

    fn change_key(
        &self,
        limit: &str,
        value: &str,
        change: admin::KeyChange<'_>,
        by: &str,
    ) -> Result<serde_json::Value, admin::Unchanged> {
        let control = self.0.upgrade();
        let control = control.ok_or_else(|| admin::Unchanged::Ended("The gateway has ended.".into()))?;
        control.change_key(limit, value, change, by)
    }

    fn exceptions(&self) -> serde_json::Value {
        self.0.upgrade().map_or(serde_json::Value::Null, |control| control.exceptions())
    }

    fn blocks(&self, peers: &[IpAddr], from: u64, max: usize) -> serde_json::Value {
        self.0.upgrade().map_or(serde_json::Value::Null, |control| control.blocks(peers, from, max))
    }

    fn explain(&self, asked: &[u8]) -> Result<serde_json::Value, String> {
        let asked = serde_json::from_slice(asked).map_err(|error| {
            format!("This is no question: {error}. Send {{\"method\": \"GET\", \"url\": \"https://host/path\", \"headers\": [[\"name\", \"value\"]], \"client\": \"192.0.2.7\"}}.")
        })?;
        let Some(control) = self.0.upgrade() else { return Err("the gateway has ended".into()) };
        let (snapshot, redactor) = {
            let state = control.state();
            (state.workers.feed.latest(), state.lasting.redactor.clone())
        };
        let explained = explain::explain_live(&snapshot, &redactor, &asked, control.clock.now())?;
        serde_json::to_value(explained).map_err(|error| error.to_string())
    }

    fn requests(&self, filter: &FlightFilter) -> (Vec<SeenFlight>, Vec<usize>) {
        self.0.upgrade().map_or_else(Default::default, |control| control.requests(filter))
    }

    fn cancel_request(&self, worker: usize, number: u64) -> Option<bool> {
        self.0.upgrade().map_or(Some(false), |control| control.cancel_request(worker, number))
    }

    fn dead_letters(&self) -> Option<Archive> {
        let control = self.0.upgrade()?;
        let state = control.state();
        let directory = state.model.dead_letter.as_ref()?.directory.clone();
        Some(Archive { directory, redactor: state.lasting.redactor.clone(), clock: control.clock.clone() })
    }

    fn replay(&self, asked: &ReplayQuery) -> Result<serde_json::Value, NotReplayed> {
        let ended = || NotReplayed::Ended("The gateway has ended.".to_owned());
        self.0.upgrade().ok_or_else(ended)?.replay(asked)
    }

    fn replays(&self) -> Result<serde_json::Value, NotReplayed> {
        let ended = || NotReplayed::Ended("The gateway has ended.".to_owned());
        self.0.upgrade().ok_or_else(ended)?.list_replays()
    }

    fn stop_replay(&self, name: &str) -> bool {
        self.0.upgrade().is_some_and(|control| control.stop_replay(name))
    }

    fn rules(&self) -> Option<Box<dyn admin::Rules>> {
        Some(Box::new(RulesCommands(self.0.upgrade()?)))
    }

    fn upgrade(&self) -> Result<u32, String> {
        self.0.upgrade().ok_or_else(|| "the gateway has ended".to_owned())?.upgrade()
    }

    fn reload(&self) -> Result<String, String> {
        let Some(control) = self.0.upgrade() else { return Err("the gateway has ended".into()) };
        match control.reload(true)? {
            Reloaded::Unchanged => Ok("configuration unchanged".into()),
            Reloaded::Changed(plan) => Ok(plan),
        }
    }
}
