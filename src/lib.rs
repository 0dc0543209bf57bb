//! Sluicegate: a reverse proxy that admits each client at the rate its operator chose.
//!
//! # The walk of one request
//!
//! 1. `proxy/accept` accepts a connection on one worker, and `proxy/serve` serves it; while nothing comes it holds no
//!    buffer. [`transport`] shakes hands if it is one of TLS, and gives each stream of [`http2`] as a connection of HTTP/1
//!    that carries one request. [`http1`] finds the end of the request's head. The clock and the current snapshot are read
//!    once, and [`http1`] reads the head where it lies. A head that it refuses is answered, and the connection closes. From here to
//!    the end of its answer `proxy/walk` leads the request from room to room.
//! 2. `proxy/decide` asks [`admission`], which runs client → route → key → [`limiter`]: one synchronous call, no I/O, no
//!    await. It says `Refused`, `Waiting` or `Admitted`, a value that only it can make. A request that is refused gets the
//!    gateway's own answer, or `proxy/defer` keeps it for later.
//! 3. `proxy/forward` takes an `Admitted`, asks [`balance`] for a server, takes a connection from [`upstream`], writes
//!    the head anew, and is the only place that retries. Whatever may be overdue is one alarm of the connection on the
//!    worker's timer wheel ([`time::Wheel`]).
//! 4. `proxy/forward/relay` carries both directions at once, a buffer each, and writes on only what [`http1`] has understood.
//!    After a 101 that was asked for, `proxy/tunnel` carries bytes as they come.
//! 5. Its end, error or drop produces exactly one outcome, which feeds [`telemetry`] and frees every guard. A request
//!    that was refused or timed out is offered to [`dead_letter`], without waiting. A connection is used again only if
//!    nothing of the exchange is left on it.
//!
//! # Crates and rooms
//!
//! Most rooms are crates of their own, in `crates/`; here they have the names of rooms. A `Cargo.toml` says what a crate may import.
//!
//! | crates | are |
//! |---|---|
//! | [`words`] | enums whose variants are words |
//! | [`time`] | ticks, spans, the timer wheel, calendars, the only clock |
//! | [`http1`], [`http2`], [`proxy_protocol`] | codecs, without I/O |
//! | [`limiter`], [`balance`], [`fair`], [`overload`], [`collapse`] | choices as pure functions: limits, servers, the client that comes next, pressure, equal requests |
//! | [`edit`] | texts with variables, and what routes change |
//! | [`admission`] | a view of a request in, a decision out |
//! | [`files`] | files read within a bound, and made or replaced as a whole or not at all |
//! | [`redact`], [`telemetry`], [`tls`] | secrets before they are written or shown; metrics and the access log; certificates and settings |
//! | [`transport`], [`upstream`], [`http_client`] | sockets, TLS, streams of HTTP/2; connections to servers, echo servers; requests of the gateway's own |
//! | [`fleet`], [`state`] | the store that gateways share; the file that counts outlive the process in |
//! | [`config`], [`rules`] | text to model; edits of the file, entry by entry, and its history |
//! | [`dead_letter`], [`replay`] | the log of refusals; dead letters sent again |
//! | [`proxy`] | the data plane; its rooms have an order, which its own page tells |
//!
//! The other rooms are folders here. Imports go from a higher rank to a lower one only; outsiders import from a room's `mod.rs`.
//! `tests/architecture.rs` holds the table.
//!
//! | rank | room |
//! |---|---|
//! | 0 | [`admin`]: health, metrics, reload over HTTP |
//! | 1 | [`gateway`]: model to running system, reload, drain |
//! | 2 | [`simulate`]: recorded traffic through the rules of a file |
//! | 3 | [`cli`]: the command line |
//!
//! # Conventions
//!
//! Time is an argument: pure code takes `now: Tick`. Decisions are named enums or structs. Every queue has a named bound
//! and a metric for when it is hit. Unknown configuration is an error. Traffic never panics, and `unsafe` is forbidden.

#[macro_use]
pub extern crate sluicegate_words as words;

pub use sluicegate_admission as admission;
pub use sluicegate_balance as balance;
pub use sluicegate_collapse as collapse;
pub use sluicegate_config as config;
pub use sluicegate_dead_letter as dead_letter;
pub use sluicegate_edit as edit;
pub use sluicegate_fair as fair;
pub use sluicegate_files as files;
pub use sluicegate_fleet as fleet;
pub use sluicegate_http_client as http_client;
pub use sluicegate_http1 as http1;
pub use sluicegate_http2 as http2;
pub use sluicegate_jwt as jwt;
pub use sluicegate_limiter as limiter;

pub use sluicegate_overload as overload;
pub use sluicegate_proxy as proxy;
pub use sluicegate_proxy_protocol as proxy_protocol;
pub use sluicegate_redact as redact;
pub use sluicegate_replay as replay;
pub use sluicegate_rules as rules;
pub use sluicegate_state as state;
pub use sluicegate_telemetry as telemetry;
pub use sluicegate_time as time;
pub use sluicegate_tls as tls;
pub use sluicegate_transport as transport;
pub use sluicegate_upstream as upstream;

pub mod admin;
pub mod cli;
pub mod gateway;
pub mod simulate;
mod unix_socket;
