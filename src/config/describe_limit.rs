//! Limits in words.

use std::collections::HashSet;

use super::change::Changes;
use super::describe::{or_always, or_none, texts};
use super::describe_edits;
use super::model::LimitRule;
use crate::admission::{Cost, ExemptRules};
use crate::limiter::{Algorithm, Align, LimitSpec};
use crate::time::Span;

pub(super) fn limit(old: &LimitRule, new: &LimitRule) -> Changes {
    let LimitRule {
        spec,
        key,
        key_is_secret,
        on_missing_key,
        timeout,
        status,
        count_when,
        cost,
        cost_from_response,
        exempt,
        retry_after_jitter,
        refusal,
        active,
    } = old;
    // Limits are paired by their names.
    let LimitSpec { name: _, algorithm, mode, max_wait, max_queue, max_keys, on_full, penalty, sharing: _ } = spec;
    let mut changes = Changes::default();
    changes.value("key", key, &new.key, ToString::to_string);
    changes.value("key_is_secret", key_is_secret, &new.key_is_secret, |is_secret| match is_secret {
        None => "by its name",
        Some(true) => "true",
        Some(false) => "false",
    });
    changes.value("on_missing_key", on_missing_key, &new.on_missing_key, |choice| choice.word());
    algorithm_and_rates(&mut changes, algorithm, &new.spec.algorithm);
    changes.value("mode", mode, &new.spec.mode, |mode| mode.word());
    changes.value("max_wait", max_wait, &new.spec.max_wait, Span::to_string);
    let or_default = |count: &Option<u64>| count.map_or_else(|| "default".to_owned(), |count| count.to_string());
    changes.value("max_queue", max_queue, &new.spec.max_queue, or_default);
    changes.value("max_keys", max_keys, &new.spec.max_keys, u64::to_string);
    changes.value("on_full", on_full, &new.spec.on_full, |choice| choice.word());
    changes.value("timeout", timeout, &new.timeout, |timeout| or_none(*timeout));
    changes.value("status", status, &new.status, u16::to_string);
    changes
        .value("cost", cost, &new.cost, |cost| cost.as_ref().map_or_else(|| "the route's".to_owned(), Cost::to_string));
    changes.value("cost_from_response", cost_from_response, &new.cost_from_response, |cost| {
        cost.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
    });
    changes.value("count_when", count_when, &new.count_when, |statuses| {
        statuses.as_ref().map_or_else(|| "every request".to_owned(), ToString::to_string)
    });
    changes.value("penalty", penalty, &new.spec.penalty, |penalty| {
        penalty.map_or_else(|| "none".to_owned(), |penalty| penalty.to_string())
    });
    exempt_rules(&mut changes, exempt, &new.exempt);
    changes.value("retry_after_jitter", retry_after_jitter, &new.retry_after_jitter, Span::to_string);
    describe_edits::refusal(&mut changes, refusal.as_deref(), new.refusal.as_deref());
    changes.value("active", active, &new.active, |active| or_always(active.as_ref()));
    changes
}

/// Values of keys are counted, not named: they may be secrets, and plans are logged.
fn exempt_rules(changes: &mut Changes, old: &ExemptRules, new: &ExemptRules) {
    let ExemptRules { networks, keys } = old;
    changes.list("exempt", &texts(networks), &texts(&new.networks));
    if *keys != new.keys {
        let (before, after): (HashSet<_>, HashSet<_>) = (keys.iter().collect(), new.keys.iter().collect());
        let (added, removed) = (after.difference(&before).count(), before.difference(&after).count());
        let how = match (added, removed) {
            (0, 0) => "in another order".to_owned(),
            (added, 0) => format!("+{added}"),
            (0, removed) => format!("-{removed}"),
            (added, removed) => format!("+{added} -{removed}"),
        };
        changes.note("exempt keys", how);
    }
}

fn algorithm_and_rates(changes: &mut Changes, old: &Algorithm, new: &Algorithm) {
    changes.value("algorithm", &old.name(), &new.name(), |name| *name);
    let rates = |of: &Algorithm| (0..of.rates().len()).map(|rate| of.rate_text(rate)).collect::<Vec<_>>().join(" and ");
    changes.value("rate", &rates(old), &rates(new), Clone::clone);
    let before = settings(old);
    for (what, is) in settings(new) {
        if let Some((_, was)) = before.iter().find(|(key, _)| *key == what) {
            changes.value(what, was, &is, Clone::clone);
        }
    }
}

/// The settings of an algorithm beside its rates.
fn settings(algorithm: &Algorithm) -> Vec<(&'static str, String)> {
    let own = |burst: Option<u64>| burst.map_or_else(|| "the rate's".to_owned(), |burst| burst.to_string());
    let each = |of: &dyn Fn(usize) -> Option<String>| {
        (0..algorithm.rates().len()).filter_map(of).collect::<Vec<_>>().join(" and ")
    };
    match algorithm {
        Algorithm::TimerWheel(wheel) => {
            let slots = each(&|index| wheel.slots_of(index).map(|slots| slots.to_string()));
            vec![("slots", slots), ("bound", wheel.bound().word().to_owned())]
        }
        Algorithm::TokenBucket(bucket) => {
            vec![("burst", own(bucket.burst())), ("refill", bucket.refill().word().to_owned())]
        }
        Algorithm::Gcra(gcra) => vec![("burst", gcra.burst().to_string())],
        Algorithm::FixedWindow(window) => {
            let align = match window.align() {
                Some(Align::Epoch) => "epoch",
                Some(Align::First) => "first",
                None => "calendar",
            };
            let zone = window.zone().map(|zone| ("zone", zone.to_string()));
            [("align", align.to_owned())].into_iter().chain(zone).collect()
        }
        Algorithm::SlidingWindow(window) => {
            let slots = each(&|index| window.slots_of(index).map(|slots| slots.to_string()));
            let caps = each(&|index| window.slot_limit_of(index).map(|cap| cap.to_string()));
            vec![("slots", slots), ("slot_limit", caps)]
        }
        Algorithm::SlidingCounter(_) => Vec::new(),
        Algorithm::LeakyBucket(bucket) => vec![("max_waiting", bucket.max_waiting().to_string())],
        Algorithm::SlidingLog(log) => {
            let difference = log.min_difference().to_string();
            vec![("min_difference", difference), ("count_refused", log.count_refused().to_string())]
        }
        Algorithm::SmoothBursty(smooth) => vec![("max_burst", smooth.max_burst().to_string())],
        Algorithm::Concurrency(concurrency) => vec![("max_in_flight", concurrency.max_in_flight().to_string())],
        Algorithm::WarmUp(warm) => {
            vec![("warm_up", warm.warm_up().to_string()), ("cold_factor", warm.cold_factor().to_string())]
        }
    }
}
