//! The memory of what was read of the configuration, so that a hint that brings nothing new changes nothing.

use super::ReloadState;
use crate::config::{self, Loaded};

impl ReloadState {
    /// Whether a watcher's hint brought nothing new.
    pub(super) fn has_seen(&self, loaded: &Result<Loaded, config::LoadError>) -> bool {
        match loaded {
            Ok(Loaded { digest, .. }) => {
                (*digest == self.digest && self.last_error.is_none()) || self.refused.as_ref() == Some(digest)
            }
            Err(error) => self.last_error.as_deref() == Some(&*error.to_string()),
        }
    }

    /// Remembers which files were looked at. Where the configuration itself could not be read, those of the last time
    /// still count.
    pub(super) fn note_files(&mut self, loaded: &Result<Loaded, config::LoadError>) {
        match loaded {
            Ok(Loaded { files, .. })
            | Err(config::LoadError::Invalid { files, .. } | config::LoadError::Unfollowed { files, .. }) => {
                files.clone_into(&mut self.files_tried);
            }
            Err(config::LoadError::Read { .. }) => {}
        }
    }
}
