//! The limits that pace bytes. The counts of one of the generation before go on under new numbers.

use std::sync::Arc;

use crate::config::BandwidthSpec;
use crate::limiter::{Algorithm, Limit, LimitSpec};
use crate::proxy::Bandwidth;

/// A bandwidth upon that of its name in the generation before, if there was one, not yet with new numbers. Another key counts
/// others, and so afresh. Bytes that are paced by one that goes are paced by it to their end.
pub(super) fn make(spec: &Arc<BandwidthSpec>, old: Option<&Arc<Bandwidth>>) -> Arc<Bandwidth> {
    let old = old.filter(|old| old.spec.key == spec.key);
    let limit = |old: Option<&Arc<Limit>>| old.map_or_else(|| Limit::new(limit_spec(spec)), Arc::clone);
    let down = spec.is_down().then(|| limit(old.and_then(|old| old.down.as_ref())));
    let up = spec.is_up().then(|| limit(old.and_then(|old| old.up.as_ref())));
    Arc::new(Bandwidth { spec: Arc::clone(spec), down, up })
}

/// Lets its numbers hold, for what is on its way too.
pub(super) fn renumber(bandwidth: &Bandwidth) {
    for (_, limit) in directions(bandwidth) {
        limit.reconfigure(limit_spec(&bandwidth.spec));
    }
}

/// Its limits, and the direction of each.
pub(in crate::gateway) fn directions(bandwidth: &Bandwidth) -> impl Iterator<Item = (&'static str, &Arc<Limit>)> {
    let down = bandwidth.down.iter().map(|limit| ("down", limit));
    down.chain(bandwidth.up.iter().map(|limit| ("up", limit)))
}

fn limit_spec(bandwidth: &BandwidthSpec) -> LimitSpec {
    // `make` takes the key and the direction.
    let BandwidthSpec { name, key: _, rate: _, burst: _, algorithm, direction: _, max_keys } = bandwidth;
    // A client that is forgotten has its whole burst again: a full table stops no client.
    LimitSpec { max_keys: *max_keys, ..LimitSpec::new(name, Algorithm::Gcra(algorithm.clone())) }
}
