//! Sums over many entries in bounded memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::entry::{Aggregate, Entry};
use super::filter::Filter;
use super::tally::Drops;
use super::timeline::Timeline;
use sluicegate_time::{Span, Wall};

/// Names that a [`Ranking`] counts at once.
const MAX_RANKED: usize = 2048;
/// Minutes that the histogram holds: 14 days. Beyond it the earliest are summed up in one number.
const MAX_MINUTES: usize = 14 * 24 * 60;
const MINUTE: Span = Span::from_secs(60);

/// The sums over a stretch of the log.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Requests with a record of their own.
    pub records: u64,
    /// Requests that were counted in aggregates.
    pub aggregated: u64,
    /// Requests of aggregates that may be asked for, and that nothing tells of: they are in no other number here.
    pub unattributed: u64,
    /// The same of limits in shadow mode.
    pub shadow_unattributed: u64,
    /// Requests that were admitted, and that limits in shadow mode would have refused. They are in no other number here.
    pub shadow: u64,
    /// The same by limit.
    pub shadow_limits: Ranking,
    /// The same by key, as in `keys`.
    pub shadow_keys: Ranking,
    /// Records that were lost.
    pub dropped: Drops,
    /// The earliest instant.
    pub first: Option<Wall>,
    /// The latest instant.
    pub last: Option<Wall>,
    /// Records and aggregates by reason.
    pub reasons: Ranking,
    /// Records and aggregates by limit.
    pub limits: Ranking,
    /// Records by route; aggregates have none.
    pub routes: Ranking,
    /// Records by key, and of aggregates the keys that came most often, with what is certain of their counts.
    pub keys: Ranking,
    /// Records by client address, and of aggregates the addresses that are keys, as in `keys`.
    pub clients: Ranking,
    /// Records and aggregates per minute (by the first request of an aggregate); the tick is the minute's start.
    pub minutes: BTreeMap<Wall, u64>,
    /// The sum of the minutes before the first of `minutes`, because there were too many.
    pub earlier: u64,
    /// Records and aggregates by reason over all of the time.
    pub timeline: Timeline,
}

impl Summary {
    /// Adds the requests of an entry that `filter` asks for, as far as the entry tells of them.
    pub fn add_asked(&mut self, entry: &Entry, filter: &Filter) {
        let Entry::Aggregate(aggregate) = entry else { return self.add(entry) };
        if filter.fields_of_records().is_empty() {
            return self.add(entry);
        }
        let (mut told, mut count, mut top) = (0_u64, 0_u64, Vec::new());
        for of_key in &aggregate.top {
            let certain = of_key.count.saturating_sub(of_key.excess);
            let Some(is_asked) = filter.asks_for_key(&of_key.key) else { continue };
            told = told.saturating_add(certain);
            if is_asked && certain > 0 {
                count = count.saturating_add(certain);
                top.push(of_key.clone());
            }
        }
        let rest = if entry.is_shadow() { &mut self.shadow_unattributed } else { &mut self.unattributed };
        *rest = rest.saturating_add(aggregate.count.saturating_sub(told));
        if count > 0 {
            self.add(&Entry::Aggregate(Aggregate { count, top, ..aggregate.clone() }));
        }
    }

    /// Adds one entry.
    pub fn add(&mut self, entry: &Entry) {
        let count = entry.count();
        if entry.is_shadow() {
            return self.add_shadow(entry, count);
        }
        match entry {
            Entry::Record(record) => {
                self.records += 1;
                self.reasons.add(&record.reason, 1);
                let named = [
                    (&mut self.limits, record.limit.as_deref()),
                    (&mut self.routes, record.route.as_deref()),
                    (&mut self.clients, record.client_ip.as_deref()),
                ];
                for (ranking, name) in named {
                    if let Some(name) = name {
                        ranking.add(name, 1);
                    }
                }
                if !record.key.is_empty() {
                    self.keys.add(&in_words(&record.key), 1);
                }
                self.timeline.add(record.at, &record.reason, 1);
                self.happened(record.at, record.at, count);
            }
            Entry::Aggregate(aggregate) => {
                self.aggregated = self.aggregated.saturating_add(count);
                self.reasons.add(&aggregate.reason, count);
                if let Some(limit) = &aggregate.limit {
                    self.limits.add(limit, count);
                }
                for top in &aggregate.top {
                    let count = top.count.saturating_sub(top.excess);
                    self.keys.add(&in_words(&top.key), count);
                    if let [(source, client)] = &*top.key
                        && source == "client-ip"
                    {
                        self.clients.add(client, count);
                    }
                }
                self.timeline.add(aggregate.from, &aggregate.reason, count);
                self.happened(aggregate.from, aggregate.to, count);
            }
            Entry::Dropped(dropped) => {
                self.dropped.queue_full = self.dropped.queue_full.saturating_add(dropped.queue_full);
                self.dropped.disk_error = self.dropped.disk_error.saturating_add(dropped.disk_error);
            }
        }
    }

    fn add_shadow(&mut self, entry: &Entry, count: u64) {
        self.shadow = self.shadow.saturating_add(count);
        let limit = match entry {
            Entry::Record(record) => {
                if !record.key.is_empty() {
                    self.shadow_keys.add(&in_words(&record.key), 1);
                }
                &record.limit
            }
            Entry::Aggregate(aggregate) => {
                for top in &aggregate.top {
                    self.shadow_keys.add(&in_words(&top.key), top.count.saturating_sub(top.excess));
                }
                &aggregate.limit
            }
            Entry::Dropped(_) => return,
        };
        if let Some(limit) = limit {
            self.shadow_limits.add(limit, count);
        }
    }

    fn happened(&mut self, from: Wall, to: Wall, count: u64) {
        self.first = Some(self.first.map_or(from, |first| first.min(from)));
        self.last = Some(self.last.map_or(to, |last| last.max(to)));
        let minute = from.as_nanos() / MINUTE.as_nanos() * MINUTE.as_nanos();
        let cell = self.minutes.entry(Wall::from_nanos(minute)).or_default();
        *cell = cell.saturating_add(count);
        if self.minutes.len() > MAX_MINUTES
            && let Some((_, count)) = self.minutes.pop_first()
        {
            self.earlier = self.earlier.saturating_add(count);
        }
    }
}

/// A key as it is shown: `source=value` of each part.
pub fn in_words(key: &[(String, String)]) -> String {
    key.iter().map(|(source, value)| format!("{source}={value}")).collect::<Vec<_>>().join(" ")
}

/// The most frequent of any number of names, by the Space-Saving algorithm (Metwally, Agrawal, El Abbadi, "Efficient
/// computation of frequent and top-k elements in data streams", 2005): with 2048 counters a count is too high by
/// at most a 2048th of all, never too low, and exact until there are more names than counters.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    counters: HashMap<Arc<str>, RankedCount>,
    /// The same, smallest first.
    order: BTreeSet<(u64, Arc<str>)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RankedCount {
    count: u64,
    excess: u64,
}

/// One line of a [`Ranking`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The name that was counted.
    pub name: Arc<str>,
    /// How often, at most.
    pub count: u64,
    /// By how much `count` may be too high.
    pub excess: u64,
}

impl Ranking {
    /// Counts `name` `count` times.
    pub fn add(&mut self, name: &str, count: u64) {
        let (name, before) = if let Some((name, counter)) = self.counters.get_key_value(name) {
            (Arc::clone(name), *counter)
        } else {
            (name.into(), self.room())
        };
        self.order.remove(&(before.count, Arc::clone(&name)));
        let after = RankedCount { count: before.count.saturating_add(count), ..before };
        self.order.insert((after.count, Arc::clone(&name)));
        self.counters.insert(name, after);
    }

    /// The first `most`, highest count first.
    pub fn top(&self, most: usize) -> Vec<Ranked> {
        let ranked = |(count, name): &(u64, Arc<str>)| Ranked {
            name: Arc::clone(name),
            count: *count,
            excess: self.counters.get(name).map_or(0, |counter| counter.excess),
        };
        self.order.iter().rev().take(most).map(ranked).collect()
    }

    /// How many names are counted at the moment.
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// The counter that a new name starts with: zero, or that of the smallest, whose place it takes.
    fn room(&mut self) -> RankedCount {
        if self.counters.len() < MAX_RANKED {
            return RankedCount::default();
        }
        let Some((count, name)) = self.order.pop_first() else { return RankedCount::default() };
        self.counters.remove(&name);
        RankedCount { count, excess: count }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::reason::Reason;
    use super::super::record::tests::{AT, draft};
    use super::super::tally::Tally;
    use super::*;
    use sluicegate_redact::{RedactRules, Redactor};

    fn entry(write: impl FnOnce(&mut Vec<u8>)) -> Entry {
        let mut line = Vec::new();
        write(&mut line);
        line.pop();
        Entry::parse(&line).unwrap()
    }

    #[test]
    fn aggregates_count_in_and_drops_stand_apart() {
        let mut summary = Summary::default();
        let record = entry(|line| draft().write("gw", &Redactor::new(&RedactRules::default()), line));
        summary.add(&record);
        summary.add(&record);
        let later = AT + Span::from_secs(60);
        let tally = Tally {
            reason: Reason::QueueFull,
            is_shadow: false,
            limit: Some("per-client".into()),
            count: 40,
            from: later,
            to: later,
            top: Vec::new(),
        };
        summary.add(&entry(|line| tally.write("gw", &Redactor::new(&RedactRules::default()), later, line)));
        summary.add(&entry(|line| Drops { queue_full: 5, disk_error: 6 }.write("gw", AT, later, line)));
        assert_eq!((summary.records, summary.aggregated), (2, 40));
        assert_eq!(summary.dropped, Drops { queue_full: 5, disk_error: 6 });
        let top = |ranking: &Ranking| -> Vec<(String, u64)> {
            ranking.top(9).into_iter().map(|ranked| (ranked.name.to_string(), ranked.count)).collect()
        };
        assert_eq!(top(&summary.reasons), [("queue-full".to_owned(), 40), ("rate-limited".to_owned(), 2)]);
        assert_eq!(top(&summary.limits), [("per-client".to_owned(), 42)]);
        assert_eq!(top(&summary.routes), [("api".to_owned(), 2)]);
        assert_eq!(top(&summary.keys), [("client-ip=192.0.2.7".to_owned(), 2)]);
        assert_eq!(top(&summary.clients), [("192.0.2.7".to_owned(), 2)]);
        assert_eq!(summary.minutes.values().copied().collect::<Vec<_>>(), [2, 40]);
        assert!(summary.first.unwrap() <= AT && summary.last.unwrap() > AT);
    }

    proptest! {
        /// As many requests as a client has sent, however vague the counts of an aggregate are, and whichever keys tell of it.
        #[test]
        fn what_a_client_has_sent_is_within_the_bounds(
            keys in prop::collection::vec((0u8..4, any::<bool>(), 0u64..50, 0u64..9, 0u64..9, any::<bool>()), 0..12),
            is_shadow in any::<bool>(),
        ) {
            let (mut top, mut count, mut sent) = (Vec::new(), 0, 0);
            for (client, is_by_client, times, over, under, is_named) in keys {
                count += times;
                sent += if client == 0 { times } else { 0 };
                if is_named {
                    let source = if is_by_client { "client-ip" } else { "header:x-user" };
                    let key = vec![(source.to_owned(), format!("192.0.2.{client}"))];
                    top.push(super::super::entry::TopKey { key, count: times + over, excess: over + under });
                }
            }
            let aggregate = Aggregate {
                id: String::new(),
                at: AT,
                reason: Reason::RateLimited.word().to_owned(),
                mode: is_shadow.then(|| "shadow".to_owned()),
                limit: None,
                node: String::new(),
                count,
                from: AT,
                to: AT,
                top,
            };
            let filter = Filter { client: Some("192.0.2.0/32".parse().unwrap()), ..Filter::default() };
            let mut summary = Summary::default();
            summary.add_asked(&Entry::Aggregate(aggregate), &filter);
            let (told, untold) = if is_shadow {
                (summary.shadow, summary.shadow_unattributed)
            } else {
                (summary.aggregated, summary.unattributed)
            };
            prop_assert!(told <= sent && sent <= told + untold && told + untold <= count, "{told} {sent} {untold} {count}");
        }
    }

    #[test]
    fn a_ranking_keeps_the_frequent_among_any_number_of_names() {
        let mut ranking = Ranking::default();
        for round in 0..20_000 {
            ranking.add(&format!("rare-{round}"), 1);
            ranking.add("often", 1);
            if round % 10 == 0 {
                ranking.add("sometimes", 5);
            }
        }
        assert_eq!(ranking.len(), MAX_RANKED);
        let top = ranking.top(2);
        assert_eq!((&*top[0].name, &*top[1].name), ("often", "sometimes"));
        assert_eq!((top[0].count, top[0].excess), (20_000, 0));
        assert_eq!((top[1].count, top[1].excess), (10_000, 0));
        assert!(ranking.top(3)[2].count <= 50_000 / MAX_RANKED as u64 + 1);
    }

    #[test]
    fn the_histogram_is_bounded_and_sums_up_what_came_before() {
        let mut summary = Summary::default();
        for minute in 0..MAX_MINUTES as u64 + 3 {
            let at = Wall::EPOCH + Span::from_secs(60 * minute + 59);
            summary.happened(at, at, 1);
        }
        assert_eq!(summary.minutes.len(), MAX_MINUTES);
        assert_eq!(summary.earlier, 3);
        assert_eq!(summary.minutes.first_key_value(), Some((&(Wall::EPOCH + Span::from_secs(180)), &1)));
    }
}
