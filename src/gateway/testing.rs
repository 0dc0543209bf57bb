//! Models and states for the tests of this room.

use std::path::Path;
use std::sync::Arc;

use super::exceptions::Exceptions;
use super::live_state::LiveState;
use crate::config::{self, Certificates, Model};
use crate::limiter::KeyHasher;
use crate::redact::{RedactRules, Redactor};
use crate::time::{Clock, ManualClock, Wall};

/// The model of a text, which may name files that are beside `file`.
pub fn model_at(file: &Path, text: &str) -> Arc<Model> {
    let now = Wall::from_secs(1_780_272_000);
    let parsed = config::parse(text, file, Certificates::Strict(now));
    Arc::new(parsed.unwrap_or_else(|errors| panic!("{errors}")).model)
}

/// The model of a text.
pub fn model(text: &str) -> Arc<Model> {
    model_at(Path::new("/gateway.toml"), text)
}

/// A live state in which nothing lives, for two workers, on a clock that stands.
pub fn live_state() -> LiveState {
    let secrets = (KeyHasher::fixed(), Redactor::new(&RedactRules::default()));
    LiveState::new((Clock::Manual(ManualClock::new()), 2), secrets, Exceptions::default())
}
