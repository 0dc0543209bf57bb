//! The gateway over real sockets: the release's own binary, a configuration for each test, ports by the kernel.
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]
#![allow(clippy::format_push_string, clippy::needless_pass_by_value, reason = "plain test code")]

mod command_line;
mod dead_letters;
mod draining;
mod limiting;
mod observing;
mod proxying;
mod refusals;
mod reloading;
mod sticky;
mod support;
mod timeouts;
mod waiting;
