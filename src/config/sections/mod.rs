//! The sections that are declared key by key, a file each, with the rules between their keys.

pub(super) mod admin;
pub(super) mod client;
pub(super) mod dead_letter;
pub(super) mod log;
pub(super) mod server;
