//! The keys of `[[limit]]` that say how it counts: `algorithm`, its settings, and how requests wait. A plan may have most of
//! them otherwise.

use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::DeTable;

use super::{doubts, rates, schedule};
use crate::change::Changes;
use crate::findings::Reported;
use crate::form::Form;
use crate::kind::{Context, count, duration, flag, word};
use crate::reader::{FoundKey, Node, Reader};
use crate::section::{Declare, Key, beside, compare, section};
use sluicegate_limiter::{
    Algorithm, AlgorithmError, Align, Bound, Concurrency, FixedWindow, Gcra, LeakyBucket, LimitSpec, MAX_COLD_FACTOR,
    MAX_COUNT, MAX_RATES, MAX_SLOTS, Mode, Refill, SlidingCounter, SlidingLog, SlidingWindow, SmoothBursty, TimerWheel,
    TimerWheelError, TokenBucket, WarmUp,
};
use sluicegate_time::{CalendarUnit, Span, Weekday};

section! {
    /// The settings of all algorithms, and how requests wait. A setting that the algorithm of the limit lacks is passed over.
    read as CountingKeys {
        /// How the limit counts.
        algorithm: Which = word().or("timer-wheel"),
        /// Requests in a time, such as `"100/s"`, or up to four of these, all of which hold.
        rate: () = beside(Form::Either(&[Form::Rate, Form::List(&Form::Rate, 1, MAX_RATES)]), "required, except with concurrency"),
        /// timer-wheel, sliding-window: parts of the window, each the same and 1ms or more.
        slots: Option<u32> = count(1..=MAX_SLOTS).or_nothing("by the window").told("10; 60 for windows of a minute and more"),
        /// timer-wheel: the stretch of time in which the rate is never exceeded.
        bound: Bound = word().or("sliding"),
        /// token-bucket, gcra: requests that may come at once.
        burst: Option<u64> = count(COUNTS).or_nothing("the rate's").told("the rate's; 1 with gcra"),
        /// token-bucket: when tokens come.
        refill: Refill = word().or("greedy"),
        /// leaky-bucket: requests that queue per key.
        max_waiting: Option<u64> = count(QUEUES).or_nothing("the rate's"),
        /// fixed-window: where windows begin.
        align: Aligned = word().or("epoch"),
        /// fixed-window by the calendar: the time zone of its days.
        zone: () = beside(schedule::ZONE, "UTC"),
        /// fixed-window by the calendar: the first day of its weeks.
        week_start: Weekday = word().or("monday"),
        /// sliding-window: requests of one slot.
        slot_limit: Option<u64> = count(COUNTS).or_nothing("twice the even share"),
        /// sliding-log: the least time between two requests of a key.
        min_difference: Span = duration(DIFFERENCES).or("0s"),
        /// sliding-log: whether refused requests count too.
        count_refused: bool = flag().or("false"),
        /// smooth-bursty: seconds of rest that are saved up.
        max_burst_seconds: Option<u64> = count(BURST_SECONDS).or_nothing("1"),
        /// warm-up: how long a cold key takes until it has the whole rate.
        warm_up: Option<Span> = duration(WARM_UPS).or_nothing("none").told("required with warm-up"),
        /// warm-up: how many times slower a cold key is.
        cold_factor: Option<u32> = count(2..=MAX_COLD_FACTOR).or_nothing("3"),
        /// concurrency: requests of a key that may be in flight.
        max_in_flight: Option<u64> = count(COUNTS).or_nothing("none").told("required with concurrency"),
        /// Requests that may wait per key.
        max_queue: Option<u64> = count(QUEUES).or_nothing("default").told(DEFAULT_QUEUE),
        /// The answer to a request that does not fit.
        mode: Mode = word().or("enforce"),
        /// How long a request may wait for room: by default not at all, but 1s with leaky-bucket, smooth-bursty and warm-up.
        max_wait: Span = duration(doubts::WAITS).or("0s"),
    }
}

words! {
    /// `algorithm`.
    pub(crate) enum Which {
        /// Counts per slot of a ring.
        TimerWheel = "timer-wheel",
        /// A bucket of tokens that refills.
        TokenBucket = "token-bucket",
        /// One instant per key.
        Gcra = "gcra",
        /// A queue that drips.
        LeakyBucket = "leaky-bucket",
        /// So many in a window, and then a new one.
        FixedWindow = "fixed-window",
        /// Sub-windows with a cap each.
        SlidingWindow = "sliding-window",
        /// Two windows, the older one weighted.
        SlidingCounter = "sliding-counter",
        /// The exact instants of the last requests.
        SlidingLog = "sliding-log",
        /// A big request passes now, and the next one pays.
        SmoothBursty = "smooth-bursty",
        /// Slow after a rest, and faster as it warms up.
        WarmUp = "warm-up",
        /// So many at once.
        Concurrency = "concurrency",
    }
}

words! {
    /// `align` of a fixed window.
    pub(crate) enum Aligned {
        /// At the multiples of the window.
        Epoch = "epoch",
        /// At a key's first request.
        First = "first",
        /// With the days, weeks and months of a time zone.
        Calendar = "calendar",
    }
}

const COUNTS: RangeInclusive<u64> = 1..=MAX_COUNT;

/// The queue of a limit that says none.
const DEFAULT_QUEUE: &str = "as many as the rate admits in `max_wait`, at most 10000";

/// A queue of a key; each place takes about a hundred bytes.
const QUEUES: RangeInclusive<u64> = 1..=1_000_000;

/// Requests further apart than a day are better counted by a rate.
const DIFFERENCES: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(86_400);

/// Seconds of rest that are saved up.
const BURST_SECONDS: RangeInclusive<u64> = 0..=86_400;

const WARM_UPS: RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(3_600);

impl Which {
    /// The settings that it has and not all have.
    const fn settings(self) -> &'static [&'static str] {
        match self {
            Self::TimerWheel => &["rate", "slots", "bound", "max_queue"],
            Self::TokenBucket => &["rate", "burst", "refill", "max_queue"],
            Self::Gcra => &["rate", "burst", "max_queue"],
            Self::LeakyBucket => &["rate", "max_waiting"],
            Self::FixedWindow => &["rate", "align", "zone", "week_start", "max_queue"],
            Self::SlidingWindow => &["rate", "slots", "slot_limit", "max_queue"],
            Self::SlidingCounter => &["rate", "max_queue"],
            Self::SlidingLog => &["rate", "min_difference", "count_refused", "max_queue"],
            Self::SmoothBursty => &["rate", "max_burst_seconds", "max_queue"],
            Self::WarmUp => &["rate", "warm_up", "cold_factor", "max_queue"],
            Self::Concurrency => &["max_in_flight", "max_queue"],
        }
    }
}

/// Every setting that some algorithm has and others do not; some more than once.
pub(crate) fn settings() -> impl Iterator<Item = &'static str> {
    Which::ALL.iter().flat_map(|which| which.settings()).copied()
}

/// Every key of a limit that other numbers than its own inherit, where they do not say otherwise.
pub(crate) fn inherited() -> impl Iterator<Item = &'static str> {
    settings().chain(["algorithm", "mode", "max_wait", "max_queue"])
}

/// These keys as they are written, as TOML, for the caller that overrides some of them later.
pub(crate) fn written(table: &DeTable<'_>) -> Arc<str> {
    let mut written = toml::Table::new();
    for key in inherited() {
        let Some(value) = table.get(key) else { continue };
        let value = toml::de::ValueDeserializer::from(Spanned::new(0..0, value.get_ref().clone()));
        if let Ok(value) = toml::Value::deserialize(value) {
            written.insert(key.to_owned(), value);
        }
    }
    written.to_string().into()
}

/// The values of these keys.
pub(crate) struct Counting<'t> {
    pub(crate) algorithm: Result<Algorithm, Reported>,
    /// Where most that can be said of the algorithm is said.
    pub(crate) place: Option<Node<'t>>,
    pub(crate) mode: Result<Mode, Reported>,
    pub(crate) max_wait: Key<'t, Span>,
    pub(crate) max_queue: Result<Option<u64>, Reported>,
}

/// Reads them. Settings that the algorithm does not have are errors.
pub(crate) fn read<'t>(reader: &mut Reader<'t>, context: &Context<'_>) -> Counting<'t> {
    let chosen = match reader.find("algorithm") {
        FoundKey::Absent => Some(Which::TimerWheel),
        FoundKey::Written(node) => node.as_text().and_then(sluicegate_words::Word::from_word),
        FoundKey::Lost(_) => None,
    };
    pass_over_foreign(reader, chosen);
    let keys = CountingKeys::read(reader, context);
    let algorithm = keys.algorithm.value.and_then(|which| made(reader, which, &keys));
    let place = keys.rate.node.as_ref().or(keys.max_in_flight.node.as_ref()).map(Node::place);
    let CountingKeys { mode, mut max_wait, max_queue, .. } = keys;
    if max_wait.node.is_none() {
        let default = algorithm.as_ref().map_or(Span::ZERO, Algorithm::default_max_wait);
        max_wait.value = max_wait.value.map(|_| default);
    }
    if let (Ok(algorithm), Some(place)) = (&algorithm, &place) {
        check_wait(algorithm, place, &max_wait);
        if let Ok(Mode::Enforce | Mode::Shadow) = mode.value {
            doubts::check_rates(place, algorithm);
        }
    }
    if let (Some(node), Ok(Span::ZERO)) = (&max_queue.node, max_wait.value) {
        let message = "`max_queue` has no effect: nobody waits while `max_wait` is 0s";
        node.warning(message, "add max_wait = \"1s\", or remove max_queue");
    }
    Counting { algorithm, place, mode: mode.value, max_wait, max_queue: max_queue.value }
}

/// Reports the settings of other algorithms. Nobody can say which settings a mistaken algorithm has: nearly all have a queue.
fn pass_over_foreign(reader: &mut Reader<'_>, chosen: Option<Which>) {
    for key in settings() {
        let is_own = chosen.map_or(key == "max_queue", |which| which.settings().contains(&key));
        if is_own {
            continue;
        }
        if let Some(which) = chosen
            && reader.has(key)
            && let Some(node) = reader.optional(key)
        {
            let owners = Which::ALL.iter().filter(|which| which.settings().contains(&key));
            let owners: Vec<&str> = owners.map(|which| which.word()).collect();
            let (name, settings) = (which.word(), which.settings().join(", "));
            let message = format!("{} is no setting of the algorithm {name}", node.label());
            let help = format!("{name} has {settings}; {} is of {}", node.label(), owners.join(", "));
            node.on_key().error(message, help);
        }
        reader.pass_over(key);
    }
}

/// Makes the algorithm of its settings.
fn made(reader: &Reader<'_>, which: Which, keys: &CountingKeys<'_>) -> Result<Algorithm, Reported> {
    if which == Which::Concurrency {
        let node = keys.max_in_flight.demand(reader, "max_in_flight", "100")?;
        let made = Concurrency::new(keys.max_in_flight.value?.unwrap_or_default());
        return made.map(Algorithm::Concurrency).map_err(|error| report(&error, which, node, node));
    }
    if keys.align.get() == Some(&Aligned::Calendar) {
        return by_calendar(reader, keys);
    }
    let rate = keys.rate.demand(reader, "rate", "\"100/s\"");
    // All that is wrong is told of before one mistake counts.
    let (rates, warm_up) = (rate.and_then(rates::read), warm_up(reader, which, keys));
    if let (Which::FixedWindow, Some(zone)) = (which, &keys.zone.node) {
        let message = "`zone` without a calendar: other windows are the same everywhere";
        zone.on_key().error(message, "add align = \"calendar\", or remove `zone`");
    }
    if let (Which::FixedWindow, Some(day)) = (which, &keys.week_start.node) {
        let message = "`week_start` without a calendar: other windows have no weeks";
        day.on_key().error(message, "add align = \"calendar\", or remove `week_start`");
    }
    let (rate, rates) = (rate?, &rates?[..]);
    let (made, node) = match which {
        Which::TimerWheel => {
            let (slots, bound) = (keys.slots.value?, keys.bound.value?);
            if let (Bound::Slot, Some(node), Some(2..)) = (bound, &keys.slots.node, slots) {
                let message = "`slots` has no effect: bound = \"slot\" always has one slot";
                node.warning(message, "remove `slots`, or the bound");
            }
            let wheel = TimerWheel::new(rates, slots, bound).map_err(AlgorithmError::Slots);
            (wheel.map(Algorithm::TimerWheel), &keys.slots.node)
        }
        Which::TokenBucket => {
            let bucket = TokenBucket::new(rates, keys.burst.value?, keys.refill.value?);
            (bucket.map(Algorithm::TokenBucket), &keys.burst.node)
        }
        Which::Gcra => (Gcra::new(rates, keys.burst.value?).map(Algorithm::Gcra), &keys.burst.node),
        Which::LeakyBucket => {
            let bucket = LeakyBucket::new(rates, keys.max_waiting.value?);
            (bucket.map(Algorithm::LeakyBucket), &keys.max_waiting.node)
        }
        Which::FixedWindow => {
            let align = if keys.align.value? == Aligned::First { Align::First } else { Align::Epoch };
            (FixedWindow::new(rates, align).map(Algorithm::FixedWindow), &None)
        }
        Which::SlidingWindow => {
            let window = SlidingWindow::new(rates, keys.slots.value?, keys.slot_limit.value?);
            (window.map(Algorithm::SlidingWindow), &keys.slots.node)
        }
        Which::SlidingCounter => (SlidingCounter::new(rates).map(Algorithm::SlidingCounter), &None),
        Which::SlidingLog => {
            let log = SlidingLog::new(rates, keys.min_difference.value?, keys.count_refused.value?);
            (log.map(Algorithm::SlidingLog), &None)
        }
        Which::SmoothBursty => {
            let smooth = SmoothBursty::new(rates, keys.max_burst_seconds.value?.map(Span::from_secs));
            (smooth.map(Algorithm::SmoothBursty), &None)
        }
        // The other was made before the rates.
        Which::WarmUp | Which::Concurrency => {
            (WarmUp::new(rates, warm_up?, keys.cold_factor.value?).map(Algorithm::WarmUp), &None)
        }
    };
    made.map_err(|error| report(&error, which, node.as_ref().unwrap_or(rate), rate))
}

fn warm_up(reader: &Reader<'_>, which: Which, keys: &CountingKeys<'_>) -> Result<Span, Reported> {
    if which == Which::WarmUp {
        keys.warm_up.demand(reader, "warm_up", "\"10s\"")?;
    }
    keys.warm_up.value.map(Option::unwrap_or_default)
}

/// A fixed window whose windows are those of the calendar.
fn by_calendar(reader: &Reader<'_>, keys: &CountingKeys<'_>) -> Result<Algorithm, Reported> {
    let zone = schedule::zone_or_utc(keys.zone.node.as_ref());
    let rate = keys.rate.demand(reader, "rate", "\"1000/d\"")?;
    let rates = rates::of_calendar(rate);
    let (rates, zone, week_start) = (rates?, zone?, keys.week_start.value?);
    if let Some(node) = &keys.week_start.node
        && rates.iter().all(|rate| rate.unit() != CalendarUnit::Week)
    {
        node.on_key()
            .warning("`week_start` has no effect: no rate is per week", "write a rate per \"week\", or remove it");
    }
    let made = FixedWindow::of_calendar(&rates, &zone).map(|window| window.with_weeks_from(week_start));
    made.map(Algorithm::FixedWindow).map_err(|error| rate.error("`rate` makes no fixed window", error.to_string()))
}

/// `node` is the setting that decides beside the rates.
fn report(error: &AlgorithmError, which: Which, node: &Node<'_>, rate: &Node<'_>) -> Reported {
    match error {
        AlgorithmError::Slots(TimerWheelError::Slots { rate, slots, nearest }) => {
            let message = format!("{slots} slots do not divide the window of {rate}");
            node.error(message, format!("use slots = {nearest}, the nearest that does (equal slots of at least 1ms)"))
        }
        AlgorithmError::BurstTooLarge { rate, burst, most } => {
            let message = format!("{rate} takes more than a hundred years to refill a burst of {burst}");
            node.error(message, format!("use burst = {most} or less, or a faster rate"))
        }
        other => rate.error(format!("`rate` makes no {}", which.word().replace('-', " ")), other.to_string()),
    }
}

fn check_wait(algorithm: &Algorithm, place: &Node<'_>, wait: &Key<'_, Span>) {
    match (algorithm, wait.value, &wait.node) {
        (Algorithm::WarmUp(warm_up), Ok(max_wait), node) if warm_up.coldest() > max_wait => {
            // Of a cold key only the first request would ever get in.
            let coldest = warm_up.coldest();
            let message = format!("cold requests are up to {coldest} apart, and wait at most {max_wait}");
            let help = format!("set max_wait = \"{coldest}\" or more, a smaller cold_factor, or a faster rate");
            node.as_ref().unwrap_or(place).error(message, help);
        }
        (Algorithm::LeakyBucket(_), Ok(Span::ZERO), Some(node)) => {
            node.warning("a leaky bucket makes requests wait: with max_wait = 0s it refuses them", "remove max_wait");
        }
        _ => {}
    }
}

/// Adds what a plan says of a change.
pub(super) fn compare(old: &LimitSpec, new: &LimitSpec, changes: &mut Changes) {
    let (was, is) = (&old.algorithm, &new.algorithm);
    changes.value("algorithm", &was.name(), &is.name(), |name| *name);
    let rates = |of: &Algorithm| (0..of.rates().len()).map(|rate| of.rate_text(rate)).collect::<Vec<_>>().join(" and ");
    changes.value("rate", &rates(was), &rates(is), Clone::clone);
    let before = shown(was);
    for (what, is) in shown(is) {
        if let Some((_, was)) = before.iter().find(|(key, _)| *key == what) {
            changes.value(what, was, &is, Clone::clone);
        }
    }
    compare!(CountingKeys { mode, max_wait, max_queue }, old, new, changes);
}

/// The settings of an algorithm beside its rates, as it has completed them.
fn shown(algorithm: &Algorithm) -> Vec<(&'static str, String)> {
    let each = |of: &dyn Fn(usize) -> Option<String>| {
        (0..algorithm.rates().len()).filter_map(of).collect::<Vec<_>>().join(" and ")
    };
    match algorithm {
        Algorithm::TimerWheel(wheel) => {
            let slots = each(&|index| wheel.slots_of(index).map(|slots| slots.to_string()));
            vec![("slots", slots), ("bound", wheel.bound().word().to_owned())]
        }
        Algorithm::TokenBucket(bucket) => {
            let burst = CountingKeys::burst().show(&bucket.burst());
            vec![("burst", burst), ("refill", bucket.refill().word().to_owned())]
        }
        Algorithm::Gcra(gcra) => vec![("burst", gcra.burst().to_string())],
        Algorithm::FixedWindow(window) => {
            let align = match window.align() {
                Some(Align::Epoch) => Aligned::Epoch,
                Some(Align::First) => Aligned::First,
                None => Aligned::Calendar,
            };
            let zone = window.zone().map(|zone| ("zone", zone.to_string()));
            let week_start = window.week_start().map(|day| ("week_start", day.word().to_owned()));
            [("align", align.word().to_owned())].into_iter().chain(zone).chain(week_start).collect()
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

#[cfg(test)]
mod tests;
