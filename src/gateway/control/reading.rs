//! Reads the configuration again.

use std::thread;

use super::Control;
use crate::config::{self, Certificates, Loaded};

impl Control {
    /// Whether the file has the text that runs, and names no others: then there is nothing to read.
    pub(super) fn is_as_it_was(&self) -> bool {
        let state = self.state();
        let names_others = !state.files.is_empty() || !state.files_tried.is_empty();
        let text = (!names_others && state.last_error.is_none()).then_some(state.text_digest);
        drop(state);
        text.is_some() && config::text_digest(&self.path) == text
    }

    /// Reads the file, in a thread that ends with that. An allocator such as glibc's keeps room for each thread that has freed
    /// much; that of a thread which has ended is the next one's, so that all reloads together keep it once.
    pub(super) fn load(&self) -> Result<Loaded, config::LoadError> {
        // Reading may take as long as a file system likes: not under the lock that others look through.
        let known = self.state().model.known_plans();
        let load = || config::load_again(&self.path, Certificates::Lenient(self.clock.now()), &known);
        thread::scope(|scope| match thread::Builder::new().name("reader".into()).spawn_scoped(scope, load) {
            Ok(reader) => reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(source) => Err(config::LoadError::Read { path: self.path.clone(), source }),
        })
    }
}
