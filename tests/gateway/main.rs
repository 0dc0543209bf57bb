//! The gateway over real sockets: the release's own binary, a configuration for each test, ports by the kernel.
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]
#![allow(clippy::format_push_string, clippy::needless_pass_by_value, reason = "plain test code")]

mod aborts;
mod certificates;
mod command_line;
mod concurrency;
mod costs;
mod count_when;
mod dead_letters;
mod denying;
mod desync;
mod draining;
mod dropping;
mod early;
mod edits;
mod exempt;
mod grpc;
mod h2;
mod idle;
mod interim;
mod large_bodies;
mod limiting;
mod mixes;
mod observing;
mod penalty;
mod pipelining;
mod poison;
mod proxying;
mod refusals;
mod reloading;
mod request_faults;
mod response_costs;
mod response_faults;
mod retries;
mod size_limits;
mod slow;
mod sticky;
mod stopped;
mod support;
mod targets;
mod timeouts;
mod tls;
mod upgrades;
mod waiting;
mod websocket;
mod wire;
