//! The state of a follower, for the caller that asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::config::Follow;
use crate::gateway::family::family;
use crate::telemetry::{Registration, Registry};
use crate::time::{Tick, WallOffset};

family!(
    UP,
    Gauge,
    "sluicegate_rules_follow_up",
    "Whether the last request for followed rules gave rules that hold: 1 or 0.",
    []
);
family!(
    LAST_SUCCESS,
    Gauge,
    "sluicegate_rules_follow_last_success_timestamp_seconds",
    "When a request for followed rules last gave rules that hold; 0: not since the start.",
    []
);

/// The state of a follower.
#[derive(Debug, Default)]
pub struct FollowerStatus(Mutex<FollowState>);

#[derive(Debug, Default)]
struct FollowState {
    /// The tag of the text that holds.
    etag: Option<String>,
    is_up: bool,
    last: Option<Tick>,
    error: Option<String>,
}

impl FollowerStatus {
    /// The text that holds has this tag.
    pub fn holds(&self, etag: Option<String>) {
        self.seen().etag = etag;
    }

    /// The answer holds.
    pub fn good(&self, now: Tick) {
        let mut seen = self.seen();
        (seen.is_up, seen.last, seen.error) = (true, Some(now), None);
    }

    /// There is no answer, or none that holds.
    pub fn bad(&self, error: &str) {
        let mut seen = self.seen();
        (seen.is_up, seen.error) = (false, Some(error.to_owned()));
    }

    /// For admin.
    pub fn shown(&self, follow: &Follow) -> Value {
        let seen = self.seen();
        json!({
            "url": follow.follow.to_string(),
            "etag": seen.etag,
            "since": seen.last.map(|last| WallOffset::of_system().wall(last).timestamp().to_string()),
            "error": seen.error,
        })
    }

    /// Registers its figures.
    pub fn register(self: &Arc<Self>, registry: &Arc<Registry>) -> [Registration; 2] {
        let (up, last) = (Arc::clone(self), Arc::clone(self));
        let seconds = |last: Option<Tick>| last.map_or(0, |last| WallOffset::of_system().wall(last).as_secs());
        [
            registry.observe_with(&UP, &[], move || u64::from(up.seen().is_up)),
            registry.observe_with(&LAST_SUCCESS, &[], move || seconds(last.seen().last)),
        ]
    }

    fn seen(&self) -> MutexGuard<'_, FollowState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
