//! Sends dead letters again: at a rate that the servers can take, in order per key, each under one idempotency key.
//!
//! The walk of a record: `letter` makes a request of it, or says what it lacks; `lineup` says, without any I/O, when it goes, and
//! what its answer means; `sender` sends it; `journal` keeps its fate, before the next of its key goes. `run` drives them.
//!
//! Invariants: a record whose fate is in a journal as sent is not sent again unless somebody asks for that; whatever ends the
//! process loses no record, and repeats at most those that were under way, under the same key; memory does not grow with the
//! number of records, but for some 40 bytes for each of a replay and each that was ever sent.
//!
//! `deferred` sends requests that were kept for later in the same way, as long as the gateway runs.
//!
//! `asked` has the settings of a replay, as a request or the command line asks for it.
//!
//! Callers: the command line, and the gateway for what is deferred.

mod deferred;
mod journal;
mod query;
mod request;
mod run;
mod scheduler;
mod sender;

pub use deferred::Deferred;
pub use journal::{Journal, JournalError, Lock, Overview, RecordEvent, RecordFate, Settings, fates, overviews, sent};
pub use query::{MAX_PARALLEL, MOST_TRIES, PARALLEL, RATE, ReplayQuery, TIMEOUT, check_timeout, parse_method};
pub use request::{Means, NotReplayable, ReplayRequest};
pub use run::{RecordCounts, RecordsToReplay, Replay, ReplayError, ReplayProgress};
pub use scheduler::{MAX_TRIES, Patience, ReplayScheduler};
pub use sender::{Guard, Sender, Target, TargetError};
