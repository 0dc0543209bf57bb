//! Panics: each is caught by the runtime at the task that it ends, which drops what the task held. A connection or an
//! exchange that is dropped so counts it here. In builds with debug assertions, and in those alone, tests may ask for one.

use super::state::Worker;

impl Worker {
    /// Counts a panic, if that is why the caller is dropped.
    pub fn note_panic(&self) {
        if std::thread::panicking() {
            self.count_panic();
        }
    }

    /// Counts a panic that ends the worker.
    pub fn count_panic(&self) {
        self.connections.panics.inc();
    }

    /// Panics once if a test has asked for it.
    #[cfg(debug_assertions)]
    pub(super) fn panic_on_demand() {
        assert!(!OF_WORKER.replace(false), "a test asked for it");
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// Whether the next sweep of this thread's worker panics.
    static OF_WORKER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Panics, or lets the worker do so, if a request for this path is a test that asks for it.
#[cfg(debug_assertions)]
pub fn on_demand(path: &str) {
    match path {
        "/panic-of-an-exchange" => panic!("a test asked for it"),
        "/panic-of-a-worker" => OF_WORKER.set(true),
        _ => {}
    }
}
