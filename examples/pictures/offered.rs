//! Requests offered to a policy under made-up instants, each followed to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use sluicegate::limiter::{
    Ask, Attempt, Counting, KeyHasher, MAX_LIMITS, Permit, Policy, RefusalReason, Report, Ticket, Verdict,
};
use sluicegate::time::{Span, Tick};

/// One that comes.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// When.
    pub at: Tick,
    /// Its cost.
    pub cost: u64,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It passed then: at its arrival, or later if it waited.
    Passed(Tick),
    /// It did not, for this reason; when it may come back.
    Refused(RefusalReason, Option<Tick>),
}

struct Waiting {
    request: usize,
    ticket: Ticket,
    wake_at: Tick,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Offers `requests`, in the order of their arrival and all of one key; each is in flight for `lasts` once it has
/// passed. At one instant first some end, then waiters pass, then others arrive.
pub fn offer(policy: &Arc<Policy>, requests: &[Request], lasts: Span) -> Vec<Fate> {
    let mut key = KeyHasher::fixed().start();
    key.part(0, b"one");
    let key = Some(key.finish());
    let mut report = Report::default();
    let mut fates: Vec<Option<Fate>> = vec![None; requests.len()];
    let (mut waiting, mut in_flight): (Vec<Waiting>, Vec<(Tick, Permit)>) = (Vec::new(), Vec::new());
    let mut coming = requests.iter().enumerate().peekable();
    loop {
        let arrival = coming.peek().map(|(_, request)| request.at);
        let wakings = waiting.iter().map(|waiting| waiting.wake_at);
        let Some(now) = wakings.chain(in_flight.iter().map(|(ends, _)| *ends)).chain(arrival).min() else { break };
        in_flight.retain(|(ends, _)| *ends > now);
        while let Some(place) = waiting.iter().position(|waiting| waiting.is_due(now)) {
            let attempt = waiting[place].attempt(now, &mut report);
            let fate = match attempt {
                Attempt::Pending { wake_at } => {
                    assert!(wake_at > now, "told to come back at once");
                    waiting[place].wake_at = wake_at;
                    continue;
                }
                Attempt::Admitted(permit) => {
                    in_flight.push((now + lasts, permit));
                    Fate::Passed(now)
                }
                Attempt::TimedOut(refusal) => Fate::Refused(refusal.why, refusal.retry_at),
            };
            fates[waiting.remove(place).request] = Some(fate);
        }
        while let Some((index, request)) = coming.next_if(|(_, request)| request.at <= now) {
            let ask = [Ask { key, cost: request.cost, counting: Counting::AtOnce, ..Ask::default() }; MAX_LIMITS];
            match policy.check(&ask, Span::MAX, now, &mut report) {
                Verdict::Admitted(permit) => {
                    in_flight.push((now + lasts, permit));
                    fates[index] = Some(Fate::Passed(now));
                }
                Verdict::Refused(refusal) => fates[index] = Some(Fate::Refused(refusal.why, refusal.retry_at)),
                Verdict::Queued(ticket) => {
                    let mut waiter = Waiting { request: index, ticket, wake_at: now, woken: Arc::default() };
                    match waiter.attempt(now, &mut report) {
                        Attempt::Pending { wake_at } => waiter.wake_at = wake_at,
                        other => panic!("{other:?} for one that has just begun to wait"),
                    }
                    waiting.push(waiter);
                }
            }
        }
    }
    fates.into_iter().map(|fate| fate.expect("every request ends")).collect()
}

impl Waiting {
    fn is_due(&self, now: Tick) -> bool {
        self.wake_at <= now || self.woken.0.load(Ordering::SeqCst)
    }

    fn attempt(&mut self, now: Tick, report: &mut Report) -> Attempt {
        self.woken.0.store(false, Ordering::SeqCst);
        self.ticket.attempt(now, &Waker::from(Arc::clone(&self.woken)), report)
    }
}
