//! Bandwidths and bounds of messages, in words.

use super::change::{Changes, Fate};
use super::model::{Bandwidth, MessageRules, Model, Route};
use super::size::show_size;
use sluicegate_limiter::Rate;

/// Those that have a section.
pub(super) fn sections(model: &Model) -> &[Bandwidth] {
    // What routes have of their own stands behind them, and is told with the route.
    let count = model.bandwidths.iter().take_while(|bandwidth| !bandwidth.name.contains(':')).count();
    model.bandwidths.get(..count).unwrap_or_default()
}

/// Another key counts others; whatever else changes, what was counted goes on.
pub(super) fn fate(old: &Bandwidth, new: &Bandwidth) -> Fate {
    // They are paired by their names.
    let Bandwidth { name: _, key, rate, burst, direction, max_keys } = old;
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

pub(super) fn route(changes: &mut Changes, (old_model, old): (&Model, &Route), (new_model, new): (&Model, &Route)) {
    changes.list("bandwidth", &used(old_model, old), &used(new_model, new));
    changes.value("messages", &old.messages, &new.messages, |rules| messages(rules.as_ref()));
}

/// By their names; what is the route's own by what it says.
fn used(model: &Model, route: &Route) -> Vec<String> {
    let text = |bandwidth: &Bandwidth| {
        let Bandwidth { name, key, rate, burst, direction, max_keys } = bandwidth;
        if !name.contains(':') {
            return name.to_string();
        }
        let (rate, burst, direction) = (show_rate(*rate), show_size(*burst), direction.word());
        format!("({rate} by {key}, burst {burst}, {direction}, {max_keys} keys)")
    };
    route.bandwidth.iter().filter_map(|index| model.bandwidths.get(*index)).map(text).collect()
}

fn messages(rules: Option<&MessageRules>) -> String {
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
