//! Samples of requests for the sensors `response_time` and `dead_letters`: latencies and failures of the last seconds,
//! each with the client that it belongs to.
//!
//! Each worker has its own and adds to it. Adding takes no lock, looks up no client and allocates nothing. Once a
//! second the task that reads the sensors copies those of all workers into a [`SampleSet`](crate::SampleSet) or a [`FailureSet`](crate::FailureSet). Clients
//! are counted and trimmed there. There is no clock here, and no threshold but an argument.
//!
//! # Memory
//!
//! A second has a slot of eight lanes. The number of a client says which lane it is in. A lane counts exactly, and
//! keeps a random part of its samples (16 latencies, 8 failures; reservoir sampling, Vitter's algorithm R). A sample
//! that is kept stands for `count / kept` requests: this is its weight. With one lane a client that has 99.9% of the
//! requests would leave one sample in a thousand to the others. So it takes the room of one lane only. With a window of
//! 10 s a worker needs about 25 KiB for latencies, and 12 KiB for failures. The running second is not read: it is not
//! whole.
//!
//! # The third
//!
//! The weights of one client are cut to a cap, so that none has more than its share of the sum after the cut. The share
//! is a third, or a half where there are two clients, or all where there is one. Let `w1 >= w2` be the largest weights,
//! and `R1` and `R2` the sum of all weights without the first, and without the first two:
//!
//! * one client: no cap; two clients: the cap is `w2`;
//! * more: no cap where `w1 <= R1 / 2`; otherwise the cap is `R1 / 2` where that is at least `w2`, and `R2` where it is
//!   not.
//!
//! # One client alone
//!
//! A third is enough to move a high quantile: a client with a third of the weights decides the quantile 0.95 alone. (It
//! does not decide the quantile 0.5, but it moves it: to the quantile 0.75 of the others.) So a third is a bound for
//! what a client hides by fast requests, and none for what it raises by slow ones. Therefore [`SampleSet::quantile`](crate::SampleSet::quantile)
//! leaves out the client with the largest weight above 90% of the threshold, and answers the lower of both quantiles.
//! One client cannot bring the reading above the threshold, nor to where the scale holds. Two clients together can.
//! When a server is truly overloaded, the requests of the others are slow, too.
//!
//! A client that is alone counts: it may be a network behind one address, or a load balancer.
//!
//! Failures are a sum, and there the third is enough: a client adds at most half of what all others have. Clients whose
//! requests were answered are clients with a weight of zero. So one client, or two, that have all failures while
//! another is answered add nothing; it takes three.
//!
//! # Bounds
//!
//! Samples are few where requests are. If there is only one other client, its number leads to the lane of a client that
//! has nearly all requests, and the gateway has just begun, then the other one may be missed for a second or two.

use sluicegate_time::{Span, Tick};

use crate::slots::{KeptSamples, SlotRing};

/// Latencies that a lane keeps.
const LATENCIES: usize = 16;

/// Failures that a lane keeps.
const FAILURES: usize = 8;

/// The time from a request sent to the head of its answer, of the requests of one worker in the last seconds.
#[derive(Clone, Debug)]
pub struct LatencySamples {
    slots: SlotRing<TimedClient, LATENCIES>,
}

/// A latency, and the client that had it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedClient {
    pub(crate) latency: Span,
    pub(crate) client: u64,
}

impl LatencySamples {
    /// Makes one for a window of whole seconds, at least one: a part of a second counts as one.
    pub fn new(window: Span) -> Self {
        Self { slots: SlotRing::new(window) }
    }

    /// Adds the latency of a request of a client. A request that timed out has the time that it waited. `random` is any
    /// random number, a new one for each call.
    pub fn add(&mut self, latency: Span, client: u64, now: Tick, random: u64) {
        self.slots.add(TimedClient { latency, client }, client, now, random);
    }

    pub(crate) fn kept(&self, window: Span, now: Tick) -> impl Iterator<Item = KeptSamples<'_, TimedClient>> {
        self.slots.kept(window, now)
    }
}

/// A failure that counts for the sensor `dead_letters`.
///
/// There is no kind for requests that the gateway itself refused: by a limit, by shedding, by a breaker or by a full
/// queue. They are never counted: scaling down makes more of them, and the sensor would feed itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFailure {
    /// The server did not answer in time.
    Timeout,
    /// The server could not be connected to.
    Connect,
    /// The connection broke before the answer was whole.
    Broken,
    /// The server answered with a status that counts as a failure.
    Status,
}

/// Failures of servers, of the requests of one worker in the last seconds.
#[derive(Clone, Debug)]
pub struct FailureRate {
    failures: SlotRing<u64, FAILURES>,
    /// A few of the clients that were answered.
    answered: SlotRing<u64, 1>,
}

impl FailureRate {
    /// Makes one for a window of whole seconds, at least one. A window of 10 s is right for most: the rate is one a
    /// minute all the same, and the scale waits for a whole window between two steps.
    pub fn new(window: Span) -> Self {
        Self { failures: SlotRing::new(window), answered: SlotRing::new(window) }
    }

    /// Adds a failure of a request of a client. All kinds count alike.
    pub fn add(&mut self, _kind: ServerFailure, client: u64, now: Tick, random: u64) {
        self.failures.add(client, client, now, random);
    }

    /// Notes that a server answered a request of a client. The rate itself does not change.
    pub fn note_answer(&mut self, client: u64, now: Tick) {
        self.answered.add_new(client, client, now);
    }

    pub(crate) fn failed(&self, window: Span, now: Tick) -> impl Iterator<Item = KeptSamples<'_, u64>> {
        self.failures.kept(window, now)
    }

    pub(crate) fn answered(&self, window: Span, now: Tick) -> impl Iterator<Item = KeptSamples<'_, u64>> {
        self.answered.kept(window, now)
    }
}
