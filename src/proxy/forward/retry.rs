//! Whether a request that failed is sent to another server.

use crate::config::Retry;
use crate::proxy::exchange::Exchange;
use crate::proxy::meters::Retried;
use crate::proxy::tried::Failure;
use crate::time::Tick;
use crate::upstream::Pass;

/// Bytes of a body that are kept so that it can be sent again.
pub const MAX_KEPT_BODY: usize = 64 * 1024;

/// The file's word about retries of this request; `None`: nothing, or its method is not repeated.
pub fn terms(exchange: &Exchange, upstream: usize) -> Option<&Retry> {
    let retry = exchange.view.snapshot.model.upstreams.get(upstream)?.retry.as_ref()?;
    let request = exchange.request();
    retry.methods.iter().any(|method| **method == *request.method()).then_some(retry)
}

/// Counts a request, of which a share may be retried.
pub fn count(exchange: &Exchange, upstream: usize, now: Tick) {
    let has_retries = exchange.view.snapshot.model.upstreams.get(upstream).is_some_and(|one| one.retry.is_some());
    if let Some(meters) = exchange.view.meters.upstream(upstream).filter(|_| has_retries) {
        meters.budget.borrow_mut().request(now);
    }
}

/// Whether a request that failed so, and has time until `until`, is sent to another server. A retry is taken from the budget
/// then, and counted.
pub fn is_due(exchange: &Exchange, failure: Failure, until: Tick) -> bool {
    let Some(upstream) = exchange.story.upstream else { return false };
    let Some(retry) = terms(exchange, upstream) else { return false };
    let scratch = &*exchange.scratch;
    let is_here = scratch.upload.is_complete() && scratch.inbound.is_kept();
    let is_meant = failure.status().is_some_and(|status| retry.on.statuses.contains(status));
    let has_another = scratch.tries.len() + 1 < retry.attempts as usize;
    // One that has opened since is not to be tried again and again.
    let is_passed = !scratch.held.pass.as_ref().is_some_and(Pass::is_outdated);
    let now = exchange.worker.alarms.recently();
    if exchange.begun || !is_here || !is_meant || !has_another || !is_passed || now >= until {
        return false;
    }
    let Some(meters) = exchange.view.meters.upstream(upstream) else { return false };
    let is_left = meters.budget.borrow_mut().take(now);
    meters.retried(if is_left { failure.counted() } else { Retried::OverBudget });
    is_left
}
