//! The locks and counters of the shards: std's, or under `--cfg loom` those with which the models in `tests/models` try
//! every interleaving.
//!
//! `Arc` is std's always: loom's can be no receiver of a method, and nothing here depends on its counts.

#[cfg(loom)]
pub(super) use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(super) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard};
