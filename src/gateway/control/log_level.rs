//! The level of the log as an operator sets it while the gateway runs.

use serde_json::{Value, json};

use super::Control;
use crate::config;

impl Control {
    /// The level that holds, and that of the file.
    pub(super) fn log_level(&self) -> Value {
        let state = self.state();
        let (level, of_file) = state.process_log.levels();
        json!({ "level": level, "of_file": of_file })
    }

    /// Sets the level until a reload changes `[log]`. It wins over `RUST_LOG`.
    ///
    /// # Errors
    /// It is none, in words.
    pub(super) fn set_log_level(&self, level: &str) -> Result<Value, String> {
        config::check_level(level)?;
        self.state().process_log.set_level(level);
        Ok(self.log_level())
    }
}
