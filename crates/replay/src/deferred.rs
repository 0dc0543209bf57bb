//! Sends deferred requests, as long as the gateway runs: through its own front door, where the limit says whether it has room.
//!
//! Each is tried until it has its fate: a limit without room says when it has some, and that is when it is tried again; what
//! else may be repeated is, by the jitter of a replay, until the store says that it is too old. Its fate, with the answer, is
//! written before the next of its key and client goes: so a crash repeats at most one of each.

use std::collections::HashSet;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::task::JoinSet;

use super::request::ReplayRequest;
use super::scheduler::{Group, InFlightReplay, NextSend, Patience, Queued, ReplayScheduler, TryOutcome, is_final};
use super::sender::{Sender, retry_after};
use sluicegate_dead_letter::{
    Deferrals, DeferredEnd as Ended, DeferredFate, DeferredTicket as Ticket, KeptAnswer, ROOM_IN, Unreadable,
    deferred_id as id_text, room_in_millis,
};
use sluicegate_http_client::{ClientResponse, SendError};
use sluicegate_limiter::Rate;
use sluicegate_time::{Clock, Span};

/// Requests under way at once; those of one client, and of one route, so that no server that hangs holds all others up.
const PARALLEL: usize = 128;
const PARALLEL_OF_CLIENT: usize = 8;
const PARALLEL_OF_ROUTE: usize = 32;
/// Tries a second, far above what comes: the limits say how many go.
const RATE: &str = "100000/s";
/// When a request is tried again that cannot be read now.
const UNREADABLE_AGAIN: Span = Span::from_secs(30);
/// A limit is asked again after so long at the latest, and at the earliest, in milliseconds.
const MOST_MILLIS: u64 = 60_000;
const LEAST_MILLIS: u64 = 10;
/// From one look at what is due to the next, at most.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// Fields of an answer that are about one connection.
const HOP_BY_HOP: [&str; 6] =
    ["connection", "keep-alive", "transfer-encoding", "trailer", "upgrade", "proxy-connection"];

impl Queued for Ticket {
    type Order = u64;

    fn order(&self) -> u64 {
        self.order
    }

    fn client(&self) -> u128 {
        bits(self.client)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn groups(&self) -> Vec<(Group, usize)> {
        vec![((0, self.client()), PARALLEL_OF_CLIENT), ((1, self.route.into()), PARALLEL_OF_ROUTE)]
    }
}

fn bits(client: IpAddr) -> u128 {
    match client {
        IpAddr::V4(client) => client.to_ipv6_mapped(),
        IpAddr::V6(client) => client,
    }
    .to_bits()
}

/// The requests that a store defers, and how they go.
pub struct Deferred {
    store: Deferrals,
    sender: Arc<Sender>,
    clock: Clock,
    lineup: ReplayScheduler<Ticket>,
    tries: JoinSet<(InFlightReplay<Ticket>, TryOutcome)>,
}

impl Deferred {
    /// Those of a store. `None`: the limiter has no such pace, which it has.
    pub fn new(store: Deferrals, sender: Arc<Sender>, clock: Clock) -> Option<Self> {
        let rate: Rate = RATE.parse().ok()?;
        let lineup = ReplayScheduler::new(rate, PARALLEL, Patience::ENDLESS, clock.now().as_nanos())?;
        Some(Self { store, sender, clock, lineup, tries: JoinSet::new() })
    }

    /// Sends them until `stop` is ready: then nothing more is sent, and what is under way is waited for.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut is_stopped = false;
        while !(is_stopped && self.lineup.in_flight() == 0) {
            if self.store.take_hurry() {
                self.lineup.hurry();
            }
            let woken = self.store.take_woken().into_iter();
            let woken: HashSet<_> = woken.map(|(order, client)| (order, bits(client))).collect();
            if !woken.is_empty() {
                self.lineup.wake(&woken);
            }
            for ticket in self.store.take_fresh() {
                self.lineup.offer_for(ticket, ticket.not_before);
            }
            let now = self.clock.now();
            let wait = match if is_stopped { NextSend::Busy } else { self.lineup.next(now) } {
                NextSend::Send(sending) => {
                    self.begin(*sending);
                    continue;
                }
                NextSend::Wait(due) => Duration::from(due.since(now)).min(MAX_SLEEP),
                NextSend::Busy | NextSend::Idle => MAX_SLEEP,
            };
            tokio::select! {
                () = &mut stop, if !is_stopped => is_stopped = true,
                () = self.store.wait_for_fresh() => {}
                Some(done) = self.tries.join_next() => match done {
                    Ok((sending, outcome)) => drop(self.lineup.done(sending, &outcome, self.clock.now())),
                    Err(error) => {
                        tracing::error!(target: "sluicegate::replay::deferred", %error, "a try of a deferred request was lost; it is sent again after a restart");
                        self.lineup.lost();
                    }
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Sends a request, unless it is not pending any more.
    fn begin(&mut self, sending: InFlightReplay<Ticket>) {
        let id = sending.letter.id;
        let letter = match self.store.take_up(id) {
            None => return self.lineup.forget(sending),
            Some(Ok(request)) => ReplayRequest::of_deferred(&request, id_text(id)).map_err(|unfit| unfit.to_string()),
            Some(Err(Unreadable { words, is_final: true })) => Err(words),
            Some(Err(Unreadable { words, is_final: false })) => {
                tracing::warn!(target: "sluicegate::replay::deferred", id = id_text(id), error = words, "a deferred request cannot be read now");
                self.store.put_back(id, sending.number - 1, None);
                let _ = self.lineup.done(sending, &TryOutcome::NoRoom(UNREADABLE_AGAIN), self.clock.now());
                return;
            }
        };
        let (store, sender, clock) = (self.store.clone(), Arc::clone(&self.sender), self.clock.clone());
        self.tries.spawn(async move {
            let number = sending.number;
            let (outcome, answer) = match letter {
                Ok(letter) => one_try(&sender, letter, number, &clock).await,
                Err(words) => (TryOutcome::Failed(SendError::Broken(words)), None),
            };
            if let Some(is_sent) = is_final(&outcome) {
                let fate = if is_sent { DeferredFate::Sent } else { DeferredFate::Failed };
                let status = answer.as_ref().map(|answer| answer.status);
                let reason = (!is_sent).then(|| outcome.to_string().into());
                let ended = Ended { fate, at: clock.now(), tries: number, status, reason };
                // The next of its key and client waits for this.
                let _ = store.end(id, ended, answer.as_ref()).await;
            } else {
                let (tries, status) = match (&outcome, &answer) {
                    (TryOutcome::NoRoom(_), _) => (number - 1, None),
                    (_, answer) => (number, answer.as_ref().map(|answer| answer.status)),
                };
                store.put_back(id, tries, status);
            }
            (sending, outcome)
        });
    }
}

async fn one_try(
    sender: &Sender,
    letter: ReplayRequest,
    number: u32,
    clock: &Clock,
) -> (TryOutcome, Option<KeptAnswer>) {
    match sender.ask(&InFlightReplay { letter, number }).await {
        Ok(answer) => {
            let outcome = match room_in(&answer.headers) {
                Some(span) => TryOutcome::NoRoom(span),
                None => TryOutcome::Answered(answer.status.as_u16(), retry_after(&answer.headers, clock.wall_now())),
            };
            (outcome, Some(kept(&answer)))
        }
        // The connection is the gateway's own: it ends with a worker, or with the process.
        Err(SendError::Broken(words)) => (TryOutcome::Failed(SendError::Connect(words)), None),
        Err(error) => (TryOutcome::Failed(error), None),
    }
}

fn room_in(headers: &HeaderMap) -> Option<Span> {
    let millis = room_in_millis(headers.get(ROOM_IN)?.as_bytes())?;
    // Its time is given in whole milliseconds, rounded up. There may be room before: an operator may have made some.
    Some(Span::from_millis(millis.clamp(LEAST_MILLIS, MOST_MILLIS)))
}

fn kept(answer: &ClientResponse) -> KeptAnswer {
    let fields = answer.headers.iter().filter(|(name, _)| !HOP_BY_HOP.contains(&name.as_str()));
    KeptAnswer {
        status: answer.status.as_u16(),
        headers: fields.map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec())).collect(),
        body: answer.body.to_vec(),
        truncated: !answer.is_whole,
    }
}
