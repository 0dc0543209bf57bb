//! The state of one request that is kept with the buffers: a connection without a request has no room for it.

use super::held::Held;
use super::leading::Leading;
use super::pacing::Pacing;
use super::room::RoomCharge;
use crate::client::Vouched;
use crate::endings::Tried;
use crate::flights::FlightEntry;
use sluicegate_admission::{BodyFacts, UsageReader};
use sluicegate_time::Span;

/// The state of one request.
#[derive(Debug, Default)]
pub struct RequestState {
    /// The path and the query that the server gets, if they are not the client's; else empty.
    pub target: Vec<u8>,
    /// The id of the request, once it has one.
    pub request_id: Vec<u8>,
    /// The pacing of its messages' bytes; `None`: they are not paced.
    pub pacing: Option<Box<Pacing>>,
    /// Its body, as it was read before admission; `None`: it was not.
    pub body: Option<Box<ReadBody>>,
    /// The things that the request holds of its upstream.
    pub held: Held,
    /// Tries that failed, the first one first.
    pub tries: Vec<Tried>,
    /// How long parts of it took.
    pub times: Times,
    /// Whether its client may ask for the explanation of its request, and has.
    pub explains: bool,
    /// The token of the replay that sends it again; `None`: none does.
    pub replayed: Option<Box<Vouched>>,
    /// Where it is entered among the requests in flight; `None`: it is not.
    pub flight: Option<FlightEntry>,
    /// Reads what its answer says that it has cost; `None`: the answer says nothing, or has said it.
    pub usage: Option<Box<UsageReader>>,
    /// The costs that limits have counted by what the answer says, each with the limit's place.
    pub used: Vec<(usize, u64)>,
    /// Its answer, as it is collected for equal requests; `None`: none may follow it.
    pub leads: Option<Box<Leading>>,
    /// The memory of its answer that was read ahead of its client for others; `None`: none was.
    pub ahead: Option<RoomCharge>,
    /// The bytes of its answer's body that its client had taken when it left, and the exchange went on for others.
    pub left_with: Option<u64>,
}

/// A body that was read before admission.
#[derive(Debug)]
pub struct ReadBody {
    /// Its fields, for keys and costs of limits.
    pub facts: BodyFacts,
    /// Whether there was room to read it.
    pub had_room: bool,
}

/// How long parts of an exchange took, for the access log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// To connect, in all tries; `None`: it went over connections that were there.
    pub connect: Option<Span>,
    /// From sending it, in the last try, to the head of the answer; `None`: there was none.
    pub head: Option<Span>,
}

impl RequestState {
    /// Makes it that of a request of which nothing is known. Its vectors keep their room.
    pub fn reset(&mut self) {
        let Self {
            target,
            request_id,
            body,
            pacing,
            held,
            tries,
            times,
            explains,
            replayed,
            flight,
            usage,
            used,
            leads,
            ahead,
            left_with,
        } = self;
        target.clear();
        request_id.clear();
        // Asked first, since what is dropped there is large, and rare.
        if body.is_some() {
            *body = None;
        }
        *pacing = None;
        held.clear();
        tries.clear();
        *times = Times::default();
        *explains = false;
        *replayed = None;
        *flight = None;
        if usage.is_some() {
            *usage = None;
        }
        used.clear();
        if leads.is_some() || ahead.is_some() || left_with.is_some() {
            (*leads, *ahead, *left_with) = (None, None, None);
        }
    }
}
