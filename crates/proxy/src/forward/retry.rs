//! Whether a request that failed is sent to another server.

use crate::endings::Failure;
use crate::exchange::Exchange;
use crate::meters::Retried;
use crate::view::UpstreamView;
use sluicegate_config::Retry;
use sluicegate_time::Tick;
use sluicegate_upstream::Pass;

/// Bytes of a body that are kept so that it can be sent again.
pub const MAX_KEPT_BODY: usize = 64 * 1024;

/// The file's word about retries of this request; `None`: nothing, or its method is not repeated.
pub fn terms<'u>(exchange: &Exchange, upstream: &'u UpstreamView) -> Option<&'u Retry> {
    let retry = upstream.spec.retry.as_ref()?;
    let request = exchange.request();
    retry.methods.iter().any(|method| **method == *request.method()).then_some(retry)
}

/// Counts a request, of which a share may be retried.
pub fn count(upstream: &UpstreamView, exchange: &Exchange) {
    if upstream.spec.retry.is_some() {
        upstream.meters.budget.borrow_mut().request(exchange.client_number(), exchange.arrived);
    }
}

/// Takes a retry from the budget, and counts it, for a request that failed so and has time until `until`. Answers whether it is
/// sent to another server.
pub fn take(exchange: &Exchange, failure: Failure, until: Tick) -> bool {
    let Some(upstream) = &exchange.record.upstream else { return false };
    let Some(retry) = terms(exchange, upstream) else { return false };
    let scratch = &*exchange.scratch;
    let is_here = scratch.upload.is_complete() && scratch.inbound.is_kept();
    let is_meant = failure.status().is_some_and(|status| retry.on.statuses.contains(status));
    let has_another = scratch.state.tries.len() + 1 < retry.attempts as usize;
    // One that has opened since is not to be tried again and again.
    let is_passed = !scratch.state.held.pass.as_ref().is_some_and(Pass::is_outdated);
    let now = exchange.worker.alarms.coarse_now();
    if exchange.begun || !is_here || !is_meant || !has_another || !is_passed || now >= until {
        return false;
    }
    let is_left = upstream.meters.budget.borrow_mut().take(exchange.client_number(), now);
    upstream.meters.retried(if is_left { failure.counted() } else { Retried::OverBudget });
    is_left
}
