//! Settles what a request owes to its limits, once its answer says what it has cost: in its head, or in its body and trailers.

use std::sync::Arc;

use super::life::Exchange;
use crate::scratch::{RequestState, Scratch};
use crate::view::{LimitView, RouteView};
use sluicegate_admission::{AnswerForm, OnAbort, ResponseCost, Stated, UsageReader};
use sluicegate_http1::line_name;
use sluicegate_limiter::{MAX_LIMITS, Spent};
use sluicegate_time::Tick;

/// How an answer ended that states costs beyond its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerEnd {
    /// All of it came.
    Whole,
    /// Its client went away, or its server failed.
    Cut,
}

/// A set of limits, by their places in a policy.
#[derive(Clone, Copy, Debug, Default)]
struct LimitPlaces(u64);

const _: () = assert!(MAX_LIMITS <= u64::BITS as usize, "each limit of a policy has a bit");

impl LimitPlaces {
    fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Exchange {
    /// Settles what it owes to its limits: counts it in those that wait for the status of its answer, and corrects its cost
    /// in those that read that from the response. `head` is how many bytes of what came in are the upstream's head; without,
    /// the answer is the gateway's own. A cost that the head does not state is read from what follows, up to
    /// [`settle_usage`](Self::settle_usage). Only the first answer is looked at.
    pub fn settle(&mut self, status: u16, head: Option<usize>, now: Tick) {
        if self.permit.is_empty() {
            return;
        }
        if head.is_none() {
            // A server's answer of which nothing went out: it has stated what it has.
            self.settle_usage(AnswerEnd::Cut, now);
        }
        let Self { permit, record, scratch, .. } = self;
        let Some(route) = &record.route else { return };
        let Scratch { outbound, response, state: RequestState { used, usage, .. }, .. } = &mut **scratch;
        let response = head.map(|length| response.on(outbound.filled().get(..length).unwrap_or_default()));
        let mut later = LimitPlaces::default();
        permit.settle(now, |place, estimate| {
            let Some(limit) = route.limit(place) else { return Spent::AsAsked };
            let spec = &limit.spec;
            if spec.count_when.as_ref().is_some_and(|statuses| !statuses.contains(status)) {
                return Spent::Nothing;
            }
            if let Some(cost) = spec.cost_by_status.as_ref().and_then(|costs| costs.of(status)) {
                note(limit, cost, used);
                return Spent::Cost(cost);
            }
            let Some(cost) = &spec.cost_from_response else { return Spent::AsAsked };
            let cost = match response {
                // An answer that switches protocols has no body.
                Some(response) if cost.is_in_head() => counted(limit, cost.in_head(&response.fields()), estimate),
                Some(_) if status != 101 => {
                    later.add(place);
                    return Spent::Unknown;
                }
                _ => estimate,
            };
            note(limit, cost, used);
            Spent::Cost(cost)
        });
        if let (Some(response), false) = (response, later.is_empty()) {
            let form = AnswerForm::of(response.fields());
            let costs = costs(route).filter(|(place, _)| later.has(*place));
            *usage = Some(Box::new(UsageReader::new(form, &response.fields(), costs)));
        }
    }

    /// Settles the costs that its answer states beyond its head, if all of it has come.
    #[cold]
    pub fn settle_ended_usage(&mut self) {
        if self.scratch.download.is_complete() {
            let now = self.worker.clock.now();
            self.settle_usage(AnswerEnd::Whole, now);
        }
    }

    /// Settles the costs that its answer states beyond its head, once it has ended.
    fn settle_usage(&mut self, end: AnswerEnd, now: Tick) {
        let Self { permit, record, scratch, worker, .. } = self;
        let Scratch { download, state: RequestState { usage, used, .. }, .. } = &mut **scratch;
        let (Some(mut usage), Some(route)) = (usage.take(), &record.route) else { return };
        let trailers = match end {
            AnswerEnd::Whole => {
                usage.end();
                download.trailer_lines()
            }
            AnswerEnd::Cut => &[],
        };
        let trailers = trailers.split_inclusive(|byte| *byte == b'\n').map(|line| {
            let name = line_name(line);
            (name, line.get(name.len() + 1..).unwrap_or_default())
        });
        let has_body = download.content() > 0;
        let mut unread = None;
        permit.settle(now, |place, estimate| {
            let (Some(limit), Some(stated)) = (route.limit(place), usage.stated(place, &trailers)) else {
                return Spent::AsAsked;
            };
            let cost = match end {
                AnswerEnd::Whole => counted(limit, stated, estimate),
                AnswerEnd::Cut => cut(limit, stated, estimate),
            };
            if matches!(stated, Stated::NoNumber | Stated::Events(_)) && end == AnswerEnd::Whole && has_body {
                unread = Some(limit);
            }
            note(limit, cost, used);
            Spent::Cost(cost)
        });
        if let (Some(limit), Some(200..=299)) = (unread, record.status)
            && worker.usage_reports.take_turn(now)
        {
            let (route, limit) = (&*route.spec.name, &**limit.name());
            let reason = reason(usage.form());
            tracing::warn!(target: "sluicegate::proxy::exchange::costs", %route, %limit, reason, "a cost could not be read from an answer");
        }
    }

    /// Settles what its answer has left open: it broke off, or there was none.
    pub(super) fn settle_rest(&mut self) {
        if self.permit.is_empty() {
            return;
        }
        self.settle_usage(AnswerEnd::Cut, self.ended());
        let now = self.ended();
        let Self { permit, record, scratch, .. } = self;
        let Some(route) = &record.route else { return };
        permit.settle(now, |place, estimate| match route.limit(place) {
            // Its estimate stands, and is what was used.
            Some(limit) if limit.spec.cost_from_response.is_some() && limit.spec.count_when.is_none() => {
                note(limit, estimate, &mut scratch.state.used);
                Spent::AsAsked
            }
            _ => Spent::Unknown,
        });
    }

    /// The limits whose answers state costs, and the cost that each has counted.
    pub(super) fn used(&self) -> Vec<(Arc<str>, u64)> {
        let Some(route) = &self.record.route else { return Vec::new() };
        let used = self.scratch.state.used.iter();
        used.filter_map(|(place, cost)| Some((Arc::clone(route.limit(*place)?.name()), *cost))).collect()
    }
}

/// The costs that answers state, each with the place of its limit.
fn costs(route: &RouteView) -> impl Iterator<Item = (usize, &ResponseCost)> {
    route.limits.iter().filter_map(|limit| Some((limit.place, limit.spec.cost_from_response.as_ref()?)))
}

/// The cost that counts of one that a whole answer states.
fn counted(limit: &LimitView, stated: Stated, estimate: u64) -> u64 {
    if !matches!(stated, Stated::Cost(_)) {
        limit.meters.cost_invalid();
    }
    match stated {
        Stated::Cost(cost) | Stated::TooMuch(cost) | Stated::Events(cost) => cost,
        Stated::NoNumber => estimate,
    }
}

/// The cost that counts of one that an answer states which broke off.
fn cut(limit: &LimitView, stated: Stated, estimate: u64) -> u64 {
    let on_abort = limit.spec.cost_from_response.as_ref().map_or(OnAbort::Most, |cost| cost.on_abort);
    match (stated, on_abort) {
        (Stated::NoNumber, _) => estimate,
        (Stated::Cost(cost) | Stated::TooMuch(cost) | Stated::Events(cost), OnAbort::Seen) => cost,
        (Stated::Cost(cost) | Stated::TooMuch(cost) | Stated::Events(cost), OnAbort::Most) => cost.max(estimate),
    }
}

/// Takes a note of what a limit has counted, for the access log and its figures.
fn note(limit: &LimitView, cost: u64, used: &mut Vec<(usize, u64)>) {
    limit.meters.used(cost);
    used.push((limit.place, cost));
}

/// Why an answer of this form states no cost.
fn reason(form: AnswerForm) -> &'static str {
    match form {
        AnswerForm::Coded => "it has a Content-Encoding although the gateway asked for identity",
        AnswerForm::OtherType => "its Content-Type is neither JSON nor an event stream",
        AnswerForm::Json | AnswerForm::Lines | AnswerForm::Events => {
            "it has no number where cost_from_response looks for it"
        }
    }
}
