//! Bandwidths and bounds of messages, in words.

use std::sync::Arc;

use super::change::{Changes, Fate};
use super::model::{BandwidthSpec, MessageRules, Model};
use super::size::show_size;
use sluicegate_limiter::Rate;

/// Those that have a section.
pub(super) fn sections(model: &Model) -> &[Arc<BandwidthSpec>] {
    // What routes have of their own stands behind them, and is told with the route.
    let count = model.bandwidths.iter().take_while(|bandwidth| !bandwidth.name.contains(':')).count();
    model.bandwidths.get(..count).unwrap_or_default()
}

/// Another key counts others; whatever else changes, what was counted goes on.
pub(super) fn fate(old: &Arc<BandwidthSpec>, new: &Arc<BandwidthSpec>) -> Fate {
    // They are paired by their names.
    let BandwidthSpec { name: _, key, rate, burst, algorithm: _, direction, max_keys } = &**old;
    let mut changes = Changes::default();
    changes.value("key", key, &new.key, ToString::to_string);
    changes.value("rate", rate, &new.rate, |rate| show_rate(*rate));
    changes.value("burst", burst, &new.burst, |burst| show_size(*burst));
    changes.value("direction", direction, &new.direction, |direction| direction.word());
    changes.value("max_keys", max_keys, &new.max_keys, u64::to_string);
    let changes = changes.into_vec();
    match (changes.is_empty(), *key == new.key) {
        (true, _) => Fate::Kept,
        (false, true) => Fate::Changed(changes),
        (false, false) => Fate::Reset(changes),
    }
}

/// Those of a route, by their names; one of its own by its numbers.
pub(super) fn used(bandwidths: &[Arc<BandwidthSpec>]) -> Vec<String> {
    let text = |bandwidth: &Arc<BandwidthSpec>| {
        let BandwidthSpec { name, key, rate, burst, algorithm: _, direction, max_keys } = &**bandwidth;
        if !name.contains(':') {
            return name.to_string();
        }
        let (rate, burst, direction) = (show_rate(*rate), show_size(*burst), direction.word());
        format!("({rate} by {key}, burst {burst}, {direction}, {max_keys} keys)")
    };
    bandwidths.iter().map(text).collect()
}

pub(super) fn messages(rules: Option<&MessageRules>) -> String {
    let Some(MessageRules { rate, over, max_size }) = rules else { return "none".to_owned() };
    let over = over.word();
    let rate = rate.map(|(rate, burst)| format!("{rate}, burst {burst}, over {over}"));
    let size = max_size.map(|size| format!("max_size {}", show_size(size)));
    rate.into_iter().chain(size).collect::<Vec<_>>().join(", ")
}

fn show_rate(rate: Rate) -> String {
    let window = rate.to_string();
    let window = window.split_once('/').map_or("", |(_, window)| window);
    format!("{}/{window}", show_size(rate.limit()))
}
