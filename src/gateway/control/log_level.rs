//! The level of the log as an operator sets it while the gateway runs.

use std::sync::PoisonError;

use serde_json::{Value, json};

use super::Control;
use crate::config;

impl Control {
    /// The level that holds, and that of the file.
    pub(super) fn log_level(&self) -> Value {
        let of_file = self.state().model.log.level.clone();
        let own = self.level.lock().unwrap_or_else(PoisonError::into_inner).clone();
        json!({ "level": own.unwrap_or_else(|| of_file.clone()), "of_file": of_file })
    }

    /// Sets the level until a reload changes `[log]`. It wins over `RUST_LOG`.
    ///
    /// # Errors
    /// It is none, in words.
    pub(super) fn set_log_level(&self, level: &str) -> Result<Value, String> {
        config::check_level(level)?;
        self.logging.set_level(level);
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = Some(level.to_owned());
        Ok(self.log_level())
    }

    /// `[log]` has changed.
    pub(super) fn forget_log_level(&self) {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
