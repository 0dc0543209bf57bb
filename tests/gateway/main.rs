//! The gateway over real sockets: the release's own binary, a configuration for each test, ports by the kernel.
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]
#![allow(clippy::format_push_string, clippy::needless_pass_by_value, reason = "plain test code")]

mod aborts;
mod bandwidth;
mod certificates;
mod command_line;
mod concurrency;
mod connect_rate;
mod connections;
mod costs;
mod count_when;
mod dead_letters;
mod denying;
mod desync;
mod differential;
mod draining;
mod drips;
mod dropping;
mod early;
mod edits;
mod exempt;
mod fleet;
mod fleet_limits;
mod forwarding;
mod grpc;
mod h2;
mod idle;
mod interim;
mod large_bodies;
mod limiting;
mod many_limits;
mod mixes;
mod observing;
mod own_answers;
mod penalty;
mod pipelining;
mod plans;
mod poison;
mod proxy_protocol;
mod proxying;
mod recipes;
mod reclaiming;
mod refusals;
mod reloading;
mod request_faults;
mod response_costs;
mod response_faults;
mod retries;
mod schedules;
mod size_limits;
mod slow;
mod sticky;
mod stopped;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod targets;
mod timeouts;
mod timing;
mod tls;
mod unseen;
mod upgrades;
mod waiting;
mod websocket;

use support::wire;
