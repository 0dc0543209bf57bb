//! One configuration, tried on requests: the gateway's own admission, on a clock that the requests move.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use super::counts::{Counts, Ending};
use super::logged::Logged;
use crate::admission::{Admission, Admitted, Arrival, Networks, Progress, Refused, Waiting};
use crate::gateway::{Offline, OfflineRoute};
use crate::limiter::{Permit, Report, Spent};
use crate::redact::Redactor;
use crate::time::{Span, Tick};

/// The most requests that are in flight at once; those beyond end at once.
const MAX_IN_FLIGHT: usize = 500_000;

/// The trial of one configuration.
pub(super) struct Trial {
    pub(super) offline: Offline,
    pub(super) counts: Counts,
    redactor: Redactor,
    /// `deny` and `allow` of `[client]`, if there is any.
    gate: Option<(Networks, Option<Networks>)>,
    report: Report,
    waiting: BTreeMap<u64, Held>,
    /// The next events: when, in which order, and to whom.
    due: BinaryHeap<Reverse<(Tick, Step, u64)>>,
    in_flight: BTreeMap<u64, Flight>,
    /// Those that wait and were woken.
    woken: Arc<Mutex<Vec<u64>>>,
    /// How many came so far.
    sequence: u64,
    /// A response stated a cost, and the log does not say it.
    pub(super) lacks_used: bool,
    /// Head and end of the request that was served last on each route: what is taken for one of which nobody knows them.
    usual: HashMap<Arc<str>, (Span, Span)>,
    /// The fate of each, in the order in which they came to it.
    #[cfg(test)]
    pub(super) fates: Vec<RequestFate>,
}

/// When a request came, and when it was let in, if it was.
#[cfg(test)]
pub(super) struct RequestFate {
    pub(super) arrived: Tick,
    pub(super) admitted: Option<Tick>,
}

/// A request that waits.
struct Held {
    waiting: Waiting<Arc<OfflineRoute>>,
    logged: Logged,
    waker: Waker,
    /// The route's place of the limit in whose queue it is.
    limit: Option<usize>,
    /// When it is tried next.
    due: Tick,
}

/// A request that was let in and still owes something.
struct Flight {
    permit: Permit,
    route: Arc<OfflineRoute>,
    status: u16,
    /// The costs that its answer states, each with the limit's place; `None`: the log lacks it.
    used: Vec<(usize, Option<u64>)>,
    ends: Tick,
}

/// Events, in the order in which they happen at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Head,
    End,
    Wake,
}

struct Woken {
    id: u64,
    woken: Arc<Mutex<Vec<u64>>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}

/// The cost of a request to the limit at this place, as the log says.
fn used_of(used: &[(usize, Option<u64>)], place: usize) -> Spent {
    let cost = used.iter().find(|(own, _)| *own == place).and_then(|(_, cost)| *cost);
    cost.map_or(Spent::AsAsked, Spent::Cost)
}

impl Trial {
    /// Of the rules of a file. Keys are told apart if `has_keys`.
    pub(super) fn new(offline: Offline, redactor: Redactor, has_keys: bool) -> Self {
        let client = &offline.model.client;
        let networks = |own: &[ipnet::IpNet]| Networks::new(own.iter().copied());
        let has_gate = !client.deny.is_empty() || !client.allow.is_empty();
        let allow = (!client.allow.is_empty()).then(|| networks(&client.allow));
        let gate = has_gate.then(|| (networks(&client.deny), allow));
        Self {
            counts: Counts::new(&offline.model, has_keys),
            usual: HashMap::new(),
            offline,
            redactor,
            gate,
            report: Report::default(),
            waiting: BTreeMap::new(),
            due: BinaryHeap::new(),
            in_flight: BTreeMap::new(),
            woken: Arc::default(),
            sequence: 0,
            lacks_used: false,
            #[cfg(test)]
            fates: Vec::new(),
        }
    }

    /// A request arrives. They come in order.
    pub(super) fn arrive(&mut self, logged: &Logged) {
        let now = logged.at;
        self.run_until(now);
        self.counts.arrive(now);
        if let Some((deny, allow)) = &self.gate
            && (deny.contains(logged.client) || allow.as_ref().is_some_and(|allow| !allow.contains(logged.client)))
        {
            self.counts.denied += 1;
            return;
        }
        // By a view of any kind: the hot path of the gateway keeps its own.
        let view: &dyn crate::admission::RequestView = logged;
        match self.offline.rules.admit(view, logged.client, now, &mut self.report) {
            Admission::Malformed(_) => self.counts.malformed += 1,
            Admission::NoRoute(_) => self.counts.no_route += 1,
            Admission::Refused(route, arrival, Refused::Limit(refusal)) => {
                self.refused(&route, &arrival, refusal.limit, logged);
            }
            Admission::Refused(route, arrival, Refused::MissingKey { limit }) => {
                self.refused(&route, &arrival, limit, logged);
            }
            Admission::Admitted(admitted) => self.admitted(admitted, logged, now, None),
            Admission::Waiting(waiting) => {
                self.sequence += 1;
                let id = self.sequence;
                let waker = Arc::new(Woken { id, woken: Arc::clone(&self.woken) }).into();
                let limit = waiting.limit();
                self.waiting.insert(id, Held { waiting, logged: logged.clone(), waker, limit, due: now });
                self.due.push(Reverse((now, Step::Wake, id)));
            }
        }
    }

    /// All requests have come: those that wait are waited for.
    pub(super) fn finish(&mut self) {
        self.run_until(Tick::MAX);
    }

    /// Lets everything happen that is due until then, and at it: at one instant those end first who are in flight, and those
    /// who wait are asked as they came.
    fn run_until(&mut self, now: Tick) {
        while let Some(Reverse((at, step, id))) = self.due.peek().copied().filter(|Reverse((at, ..))| *at <= now) {
            self.due.pop();
            match step {
                Step::Head => self.head(id, at),
                Step::End => self.end(id, at),
                // It may have been woken meanwhile, and have another instant now.
                Step::Wake if self.waiting.get(&id).is_some_and(|held| held.due == at) => self.attempt(id, at),
                Step::Wake => {}
            }
            self.call_woken(at);
        }
    }

    /// Those that were woken are due now.
    fn call_woken(&mut self, now: Tick) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        for id in woken.drain(..) {
            if let Some(held) = self.waiting.get_mut(&id) {
                held.due = now;
                self.due.push(Reverse((now, Step::Wake, id)));
            }
        }
    }

    /// Tries to let one in that waits, if it still does.
    fn attempt(&mut self, id: u64, now: Tick) {
        let Some(held) = self.waiting.get_mut(&id) else { return };
        match held.waiting.attempt(now, &held.waker, &mut self.report) {
            Progress::Pending { wake_at } => {
                held.limit = held.waiting.limit().or(held.limit);
                held.due = wake_at;
                self.due.push(Reverse((wake_at, Step::Wake, id)));
            }
            Progress::Admitted(admitted) => {
                if let Some(held) = self.waiting.remove(&id) {
                    self.admitted(admitted, &held.logged, now, held.limit);
                }
            }
            Progress::TimedOut(arrival, refusal) => {
                if let Some(held) = self.waiting.remove(&id) {
                    self.refused(held.waiting.route(), &arrival, refusal.limit, &held.logged);
                }
            }
        }
    }

    /// One is refused, by the limit at this place of its route.
    fn refused(&mut self, route: &OfflineRoute, arrival: &Arrival, limit: usize, logged: &Logged) {
        #[cfg(test)]
        self.fates.push(RequestFate { arrived: logged.at, admitted: None });
        let Self { offline, redactor, counts, .. } = self;
        let ending = Ending { offline, redactor, logged, client: &arrival.client };
        counts.refused(&ending, (route, limit), arrival.key);
    }

    /// One is let in: at once, or after it has waited in the queue of a limit.
    fn admitted(
        &mut self,
        mut admitted: Admitted<Arc<OfflineRoute>>,
        logged: &Logged,
        now: Tick,
        waited: Option<usize>,
    ) {
        #[cfg(test)]
        self.fates.push(RequestFate { arrived: logged.at, admitted: Some(now) });
        let route = Arc::clone(admitted.route());
        let Self { offline, redactor, counts, .. } = self;
        let ending = Ending { offline, redactor, logged, client: &admitted.arrival().client };
        let waited = admitted.waited().then(|| (waited, now.since(logged.at)));
        counts.admitted(&ending, &route, &self.report, waited);
        let permit = admitted.take_permit();
        let usual = self.usual.entry(Arc::clone(&route.spec.name)).or_default();
        if let Some(took) = logged.took {
            *usual = (logged.head.unwrap_or(took).min(took), took);
        }
        if permit.is_empty() || self.in_flight.len() >= MAX_IN_FLIGHT {
            return;
        }
        let (head, took) = *usual;
        self.sequence += 1;
        let id = self.sequence;
        let limits = route.spec.limits.iter().enumerate();
        let stated = limits.filter(|(_, limit)| limit.cost_from_response.is_some());
        let used: Vec<_> = stated.map(|(place, limit)| (place, logged.used(&limit.spec.name))).collect();
        self.lacks_used |= used.iter().any(|(_, cost)| cost.is_none());
        self.in_flight.insert(id, Flight { permit, route, status: logged.status, used, ends: now + took });
        self.due.push(Reverse((now + head, Step::Head, id)));
    }

    /// The head of its answer has come.
    fn head(&mut self, id: u64, now: Tick) {
        let Some(flight) = self.in_flight.get_mut(&id) else { return };
        let Flight { permit, route, status, used, ends } = flight;
        permit.settle(now, |place, _| {
            let Some(limit) = route.spec.limits.get(place) else { return Spent::AsAsked };
            if limit.count_when.as_ref().is_some_and(|statuses| !statuses.contains(*status)) {
                return Spent::Nothing;
            }
            if let Some(cost) = limit.cost_by_status.as_ref().and_then(|costs| costs.of(*status)) {
                return Spent::Cost(cost);
            }
            match &limit.cost_from_response {
                Some(cost) if !cost.is_in_head() => Spent::Unknown,
                _ => used_of(used, place),
            }
        });
        self.due.push(Reverse((*ends, Step::End, id)));
    }

    /// Its answer has ended.
    fn end(&mut self, id: u64, now: Tick) {
        if let Some(Flight { mut permit, used, .. }) = self.in_flight.remove(&id) {
            permit.settle(now, |place, _| used_of(&used, place));
        }
    }
}
