//! The words and terms of the states of servers, for [`Roster`](super::Roster).

use std::sync::Arc;

use sluicegate_time::{Span, Tick};

words! {
    /// A state of a server. Of several that hold, it is the first in the order off, draining, down, ejected, slow-start.
    pub enum ServerState {
        /// It gets its part of the requests.
        Up = "up",
        /// It is back and gets a growing share of its part.
        SlowStart = "slow-start",
        /// The operator lets it finish what it has: it gets no new request.
        Draining = "draining",
        /// Its health checks failed.
        Down = "down",
        /// Its requests failed.
        Ejected = "ejected",
        /// The operator has taken it out.
        Off = "off",
    }
}

words! {
    /// The operator's will about a server.
    pub enum Service default Up {
        /// It gets requests.
        Up = "up",
        /// It gets no new requests and finishes what it has.
        Drain = "drain",
        /// It is out.
        Off = "off",
    }
}

/// When servers go out and how they come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// When failing requests take a server out; `None`: never.
    pub eject: Option<EjectTerms>,
    /// How long a server that comes back gets a growing share only; zero: it gets its whole part at once.
    pub slow_start: Span,
    /// When its checks take a server out; `None`: it is not checked.
    pub health: Option<HealthTerms>,
}

/// When failing requests take a server out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EjectTerms {
    /// So many failures in a row do; the caller that tells of them has counted them.
    pub failures: u32,
    /// How long it is out the first time; twice as long each further time in a row.
    pub base: Span,
    /// How long it is out at most.
    pub max: Span,
    /// How many of a hundred servers may be ejected at once, of the primaries and of the backups; rounded down.
    pub at_most_percent: u32,
}

/// How many checks in a row take a server out and bring it back; 0 counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthTerms {
    /// So many that passed bring it back.
    pub rise: u32,
    /// So many that failed take it out.
    pub fall: u32,
}

/// A server as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity: a reload finds its state by this.
    pub name: Arc<str>,
    /// The operator's will about it.
    pub service: Service,
    /// Whether it gets requests only while all primaries are out.
    pub is_backup: bool,
}

/// A change of a server's state. An ejection that follows another one without a recovery is told as a change from
/// ejected to ejected; all others change the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its index.
    pub server: usize,
    /// Its state before.
    pub from: ServerState,
    /// Its state now.
    pub to: ServerState,
    /// The cause, for people.
    pub reason: String,
}

/// A server as it is shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerView<'a> {
    /// Its identity.
    pub name: &'a str,
    /// Its state.
    pub state: ServerState,
    /// The cause of its state.
    pub reason: &'a str,
    /// The instant at which it came to this state.
    pub since: Tick,
    /// The operator's will about it.
    pub service: Service,
    /// Whether it gets requests only while all primaries are out.
    pub is_backup: bool,
    /// How much of its part it gets, in percent: 100 when it is up, 0 when it is out. It knows neither of panic nor of
    /// backups whose turn it is not; [`Gate::entry`] does.
    pub share: u32,
    /// Of an ejected server, until when no request may try it; when that is past, a probe may.
    pub out_until: Option<Tick>,
}

impl ServerState {
    /// Says whether a server in this state is kept from requests, panic and probes aside.
    pub fn is_out(self) -> bool {
        !matches!(self, Self::Up | Self::SlowStart)
    }

    /// Says whether it is the operator who keeps a server in this state from requests.
    pub fn is_by_operator(self) -> bool {
        matches!(self, Self::Draining | Self::Off)
    }
}
