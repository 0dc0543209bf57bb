//! The data plane: one exchange from the client's request to the last byte of its response.
//!
//! It runs on worker threads, each with its own runtime, sockets, upstream connections and timer wheel; nothing on the
//! path of a request is shared between them but the limiter's key tables. It decides nothing itself: `admission` says
//! who may pass, `balance` where to, and `forward` takes nothing but what admission let through.
//!
//! Its rooms, in the order in which a request meets them. Imports go down only, by the order of `PROXY_ROOMS` in
//! `tests/architecture.rs`: that of this list, but for `tunnel`, which uses `forward`, and `defer`, which uses `decide` and
//! `forward`.
//!
//! - `accept`: sockets that listen, and connections until they can be served. `serve`: a connection, request after request.
//! - `walk`: one request from its head to the end of its answer. It names the next rooms in the order in which a request
//!   passes them: `decide` asks admission and makes the gateway's own answers; `defer` keeps a request for later; `forward`
//!   sends it to a server and relays the answer; `tunnel` carries bytes once protocols were switched.
//! - `exchange`: what these share of one request: facts, story, records. `worker`: what a worker thread owns. `scratch`: what
//!   an exchange works with. `flights`: the requests in flight, as an operator sees and cancels them.
//! - `endings`: how an exchange may end otherwise than by its route's answer. `view`, `meters`, `snapshot`: the configuration as a
//!   worker sees it, what it counts, and what `gateway` has built.
//! - `client`: connections, and what each client holds. `answer`, `headers`: what messages say. `deadlines`: when something is
//!   overdue.
//!
//! Invariants: one [`Snapshot`] per exchange, loaded once; three clock readings per exchange in the common case, at its
//! arrival, with the head of its response and at its end; exactly one outcome per exchange, however it ends; an error becomes a status
//! in `endings` only; once a worker is warm, nothing is allocated for a request of HTTP/1 that is refused or goes at once
//! over a kept connection, but one box for each of its limits that counts later, corrects, or counts what is in flight.
//! Caller: `gateway`, which builds snapshots and starts the workers.

#[macro_use]
extern crate sluicegate_words;

mod accept;
mod answer;
mod client;
mod deadlines;
mod decide;
mod defer;
mod endings;
mod exchange;
mod flights;
mod forward;
mod headers;
mod meters;
mod scratch;
mod serve;
mod snapshot;
mod tunnel;
mod view;
mod walk;
mod worker;

pub use accept::{OwnDoor, accept, bind};
pub use decide::{Question, status_of_no_route, status_of_refusal};
pub use flights::{FlightFilter, FlightPhase, FlightRank, SeenFlight};
pub use snapshot::{
    AcceptPlan, Bandwidth, BlockList, BlockedKey, ClientBounds, ConnectionRejection, CountedKey, Feed, KeyTally,
    KeyTop, Listener, OverloadState, Places, PlacesPlan, QuestionRules, ResponseSamples, Route, RouteCollapse,
    RouteLimit, SAMPLE_WINDOW, Snapshot, Upstream,
};
pub use tunnel::LAST_WORDS;
pub use worker::{Worker, WorkerGauges};
