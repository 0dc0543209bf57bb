//! The limits that pace bytes, across reloads: counts go on under new numbers.

use std::sync::Arc;

use crate::admission::KeyExpr;
use crate::config::{Bandwidth, Model};
use crate::limiter::{Algorithm, Gcra, Limit, LimitSpec, Mode, OnFull};
use crate::proxy::BandwidthPlan;
use crate::time::Span;

/// The live bandwidths of a model.
#[derive(Clone, Default)]
pub(super) struct LiveBandwidths(Vec<Live>);

/// One of them. Another key counts others, and so afresh.
#[derive(Clone)]
struct Live {
    name: Arc<str>,
    key: KeyExpr,
    spec: LimitSpec,
    down: Option<Arc<Limit>>,
    up: Option<Arc<Limit>>,
}

impl LiveBandwidths {
    /// Those of a model: those that stay are taken over, not yet with new numbers. Bytes that are paced by one that
    /// goes are paced by it to their end.
    pub(super) fn renew(&self, model: &Model) -> Self {
        Self(model.bandwidths.iter().filter_map(|bandwidth| self.live_of(bandwidth)).collect())
    }

    fn live_of(&self, bandwidth: &Bandwidth) -> Option<Live> {
        let spec = spec(bandwidth)?;
        let old = self.0.iter().find(|old| old.name == bandwidth.name && old.key == bandwidth.key);
        let limit = |old: Option<&Arc<Limit>>| old.map_or_else(|| Limit::new(spec.clone()), Arc::clone);
        let down = bandwidth.is_down().then(|| limit(old.and_then(|old| old.down.as_ref())));
        let up = bandwidth.is_up().then(|| limit(old.and_then(|old| old.up.as_ref())));
        Some(Live { name: Arc::clone(&bandwidth.name), key: bandwidth.key.clone(), spec, down, up })
    }

    /// Lets the new numbers hold, for what is on its way too.
    pub(super) fn reconfigure(&self) {
        for live in &self.0 {
            for limit in live.down.iter().chain(&live.up) {
                limit.reconfigure(live.spec.clone());
            }
        }
    }

    /// As exchanges use them, in the model's order.
    pub(super) fn plans(&self, model: &Model) -> Vec<Arc<BandwidthPlan>> {
        let plan = |bandwidth: &Bandwidth| {
            let live = self.0.iter().find(|live| live.name == bandwidth.name);
            Arc::new(BandwidthPlan {
                name: Arc::clone(&bandwidth.name),
                key: bandwidth.key.clone(),
                down: live.and_then(|live| live.down.clone()),
                up: live.and_then(|live| live.up.clone()),
            })
        };
        model.bandwidths.iter().map(plan).collect()
    }

    /// Each table, by name and direction.
    pub(super) fn live(&self) -> impl Iterator<Item = (&Arc<str>, &'static str, &Arc<Limit>)> {
        self.0.iter().flat_map(|live| {
            let down = live.down.iter().map(|limit| (&live.name, "down", limit));
            down.chain(live.up.iter().map(|limit| (&live.name, "up", limit)))
        })
    }
}

/// `None` never: what the configuration has was checked there.
fn spec(bandwidth: &Bandwidth) -> Option<LimitSpec> {
    // live_of takes the key and the direction.
    let Bandwidth { name, key: _, rate, burst, direction: _, max_keys } = bandwidth;
    let algorithm = Gcra::new(&[*rate], Some(*burst)).ok()?;
    Some(LimitSpec {
        name: Arc::clone(name),
        algorithm: Algorithm::Gcra(algorithm),
        mode: Mode::Enforce,
        max_wait: Span::ZERO,
        max_queue: None,
        max_keys: *max_keys,
        // Who is forgotten has its whole burst again; nobody is stopped by a table that is full.
        on_full: OnFull::EvictOldest,
        penalty: None,
        sharing: None,
    })
}
