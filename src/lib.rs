//! Sluicegate: a reverse proxy that admits each client at the rate its operator chose.
//!
//! # The walk of one request
//!
//! 1. [`proxy`] accepts a connection on one worker, reads the clock once and loads the current snapshot once.
//! 2. [`admission`] runs client → route → key → [`limiter`]: one synchronous call, no I/O, no await. It says `Refused`,
//!    `Waiting` or `Admitted`, a value that only it can make.
//! 3. `proxy/forward` takes an `Admitted`, asks [`balance`] for a server, takes a connection from [`upstream`], sends, and
//!    is the only place that retries. The request's deadline is on the worker's timer wheel ([`time::Wheel`]).
//! 4. The body streams. Its end, error or drop produces exactly one outcome: the second and last clock reading. It feeds
//!    [`telemetry`] and frees every guard. What was refused or timed out is offered to [`dead_letter`], without waiting.
//!
//! # Rooms and ranks
//!
//! Imports go from a higher rank to a lower one only; rooms of one rank never import each other; outsiders import from a
//! room's `mod.rs`. `tests/architecture.rs` holds the table.
//!
//! | rank | rooms |
//! |---|---|
//! | 0 | [`time`]: ticks, spans, the timer wheel, the only clock |
//! | 1 | [`telemetry`]: metrics, access log · [`limiter`]: pure rate limiting · [`balance`]: pure choice of a server |
//! | 2 | [`admission`]: pure; a view of a request in, a decision out |
//! | 3 | [`config`]: text to model · [`dead_letter`]: the log of refusals · [`upstream`]: connections, echo servers |
//! | 4 | [`proxy`]: the data plane |
//! | 5 | [`admin`]: health, metrics, reload over HTTP |
//! | 6 | [`gateway`]: model to running system, reload, drain |
//! | 7 | [`cli`]: the command line |
//!
//! # Conventions
//!
//! Time is an argument: pure code takes `now: Tick`. Decisions are named enums or structs. Every queue has a named bound
//! and a metric for when it is hit. Unknown configuration is an error. Traffic never panics, and `unsafe` is forbidden.

pub mod admin;
pub mod admission;
pub mod balance;
pub mod cli;
pub mod config;
pub mod dead_letter;
pub mod gateway;
pub mod http1;
pub mod limiter;
pub mod proxy;
pub mod telemetry;
pub mod time;
pub mod upstream;
