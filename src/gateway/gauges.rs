//! Figures that are read when somebody asks, not counted as they change.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::family::{column, family};
use super::fleet_status;
use super::live_state::LiveState;
use super::objects::bandwidth::directions;
use super::upstream_status;
use super::worker::Workers;
use crate::dead_letter::{AlertCount, AlertFigure, AlertState, DeadLetters, SinkCount, Stats};
use crate::dead_letter::{Deferrals, DeferredFigures};
use crate::limiter::Limit;
use crate::proxy::Snapshot;
use crate::telemetry::{AccessLog, Column, FromStart, Group, Registration, Registry};
use crate::time::{Clock, Tick};

family!(
    /// 1 at start, one more with each change.
    GENERATION,
    Gauge,
    "sluicegate_config_generation",
    "Which configuration runs; grows with each change.",
    []
);
family!(
    /// `refused` also where it could not be built.
    RELOADS,
    Counter,
    "sluicegate_reloads_total",
    "Reloads by result: done if anything changed, refused if the file was wrong.",
    ["result"]
);
family!(OPEN, Gauge, "sluicegate_client_connections", "Open client connections.", []);
family!(
    /// Tunnels are not among them.
    IN_FLIGHT,
    Gauge,
    "sluicegate_requests_in_flight",
    "Requests sent upstream that have not ended.",
    []
);
family!(TUNNELS, Gauge, "sluicegate_tunnels_open", "Connections that speak another protocol, such as WebSocket.", []);
family!(KEYS, Gauge, "sluicegate_limit_keys", "Keys that a limit's table holds.", ["limit"]);
family!(JWT_KEYS, Gauge, "sluicegate_jwt_keys", "Keys of [jwt] that tokens are verified with.", []);
family!(WAITING, Gauge, "sluicegate_limit_waiting", "Requests in the queues of a limit.", ["limit"]);
family!(
    /// `idle` keys cost nothing, `live` ones lost their count.
    EVICTED,
    Counter,
    "sluicegate_limit_evicted_total",
    "Keys evicted from a limit's table.",
    ["limit", "state"]
);
family!(
    /// They had a new key. The answer is `refused` or `allowed`.
    FULL,
    Counter,
    "sluicegate_limit_table_full_total",
    "Requests that met a full table.",
    ["limit", "answer"]
);
family!(BLOCKS, Counter, "sluicegate_limit_blocks_total", "Blocks of keys that a penalty has begun.", ["limit"]);
family!(ACTIVE, Gauge, "sluicegate_limit_active", "Whether a limit with a schedule holds now: 1 or 0.", ["limit"]);
family!(
    BANDWIDTH_KEYS,
    Gauge,
    "sluicegate_bandwidth_keys",
    "Keys that a bandwidth's table holds.",
    ["bandwidth", "direction"]
);
family!(
    /// The gateway forgets their debt, too.
    BANDWIDTH_EVICTED,
    Counter,
    "sluicegate_bandwidth_evicted_total",
    "Keys that a bandwidth has forgotten before they were idle, because its table was full.",
    ["bandwidth", "direction"]
);
family!(
    /// Fates: `written`, `aggregated`, `dropped-queue-full`, `dropped-disk-error`.
    LETTERS,
    Counter,
    "sluicegate_dead_letters_total",
    "Refused and timed-out requests by what became of their record: written, aggregated, or dropped and why.",
    ["fate"]
);
family!(
    /// `kept` is the sum of the others and of those that wait.
    DEFERRED,
    Counter,
    "sluicegate_deferred_requests_total",
    "Requests that were kept to be sent later (`kept`), and those of them that were sent, failed or expired, since the store \
     was first used.",
    ["fate"]
);
family!(DEFERRED_PENDING, Gauge, "sluicegate_deferred_pending", "Deferred requests that wait to be sent.", []);
family!(
    /// As `max_bytes` counts them.
    DEFERRED_BYTES,
    Gauge,
    "sluicegate_deferred_bytes",
    "Bytes of the deferred requests that wait.",
    []
);
family!(
    DEFERRED_OLDEST,
    Gauge,
    "sluicegate_deferred_oldest_seconds",
    "How long the oldest deferred request waits; 0 if there is none.",
    []
);
family!(LETTER_QUEUE, Gauge, "sluicegate_dead_letter_queue", "Records that wait for the writer.", []);
family!(
    /// It is there once there was an alert on `length` or `age`, and 0 until they are counted.
    LETTERS_LENGTH,
    Gauge,
    "sluicegate_dead_letters_length",
    "Records in the dead-letter log that are neither replayed nor gone.",
    []
);
family!(
    LETTERS_OLDEST,
    Gauge,
    "sluicegate_dead_letters_oldest_seconds",
    "Age of the oldest record that is neither replayed nor gone; 0 if there is none.",
    []
);
family!(
    /// The figures are `length`, `age`, `growth` and `drops`. It is there once there were `alerts`.
    ALERTS,
    Counter,
    "sluicegate_dead_letter_alerts_total",
    "Alerts about the dead-letter log, by the figure that set them off: firing, resolved.",
    ["alert", "state"]
);
family!(
    WEBHOOK_FAILURES,
    Counter,
    "sluicegate_dead_letter_webhook_failures_total",
    "Messages of alerts that no webhook has taken and that were given up.",
    []
);
family!(
    /// [dead-letters.md](dead-letters.md#send-all-of-it-elsewhere) says exactly how the metrics of sinks count. They
    /// are there with `sinks`.
    SINK_LAG,
    Gauge,
    "sluicegate_dead_letters_sink_lag_seconds",
    "Seconds since the oldest dead letter was written that a sink is to get and has not taken; 0 if it has all.",
    ["sink"]
);
family!(
    SINK_BEHIND_LINES,
    Gauge,
    "sluicegate_dead_letters_sink_behind_lines",
    "Lines of the dead-letter log that a sink is to get and has not taken.",
    ["sink"]
);
family!(
    SINK_BEHIND_BYTES,
    Gauge,
    "sluicegate_dead_letters_sink_behind_bytes",
    "Bytes of the lines that a sink is to get and has not taken.",
    ["sink"]
);
family!(
    /// `refused`: the sink refused the line alone. `lost`: it was removed from the log before it was sent.
    SINK_LINES,
    Counter,
    "sluicegate_dead_letters_sink_lines_total",
    "Lines of the dead-letter log by what became of them for a sink: delivered, refused, or lost before they were sent.",
    ["sink", "fate"]
);
family!(
    SINK_LOST_SEGMENTS,
    Counter,
    "sluicegate_dead_letters_sink_lost_segments_total",
    "Files of the dead-letter log that were removed before a sink had all of them.",
    ["sink"]
);
family!(
    /// Each second in which a sink cannot have its file is one that failed.
    SINK_BATCHES,
    Counter,
    "sluicegate_dead_letters_sink_batches_total",
    "Tries to send a batch to a sink by result: taken, failed.",
    ["sink", "result"]
);
family!(
    /// It is there only while the access log is on.
    ACCESS_DROPPED,
    Counter,
    "sluicegate_access_log_dropped_total",
    "Access log lines lost to a full queue.",
    []
);

/// The figures of a limit's row, and where each is read: the number of its keys without looking into its shards.
const LIMIT_FIGURES: [Figure; 7] = [
    (column(&KEYS, None, FromStart::Always), Limit::key_count),
    (column(&WAITING, None, FromStart::Always), |limit| limit.stats().waiting),
    (column(&EVICTED, Some("idle"), FromStart::Never), |limit| limit.stats().evicted_idle),
    (column(&EVICTED, Some("live"), FromStart::Always), |limit| limit.stats().evicted_live),
    (column(&FULL, Some("refused"), FromStart::Never), |limit| limit.stats().refused_full),
    (column(&FULL, Some("allowed"), FromStart::Never), |limit| limit.stats().allowed_full),
    (column(&BLOCKS, None, FromStart::Never), |limit| limit.stats().blocks),
];

type Figure = (Column, fn(&Limit) -> u64);

static OF_LIMIT: Group = Group { columns: &LIMIT_COLUMNS };
const LIMIT_COLUMNS: [Column; LIMIT_FIGURES.len()] = {
    let mut columns = [LIMIT_FIGURES[0].0; _];
    let mut at = 0;
    while at < columns.len() {
        columns[at] = LIMIT_FIGURES[at].0;
        at += 1;
    }
    columns
};

/// The counters of the control thread.
#[derive(Debug, Default)]
pub struct ControlCounts {
    reloads_done: AtomicU64,
    reloads_refused: AtomicU64,
}

impl ControlCounts {
    /// Counts a reload.
    pub fn reloaded(&self, done: bool) {
        let counter = if done { &self.reloads_done } else { &self.reloads_refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Figures that last as long as the process.
pub fn of_process(registry: &Arc<Registry>, counts: &Arc<ControlCounts>, workers: &Workers) -> Vec<Registration> {
    let (done, refused, feed) = (Arc::clone(counts), Arc::clone(counts), Arc::clone(&workers.feed));
    let mut all = vec![
        registry.observe_with(&GENERATION, &[], move || feed.generation()),
        registry.observe_with(&RELOADS, &["done"], move || done.reloads_done.load(Ordering::Relaxed)),
        registry.observe_with(&RELOADS, &["refused"], move || refused.reloads_refused.load(Ordering::Relaxed)),
    ];
    let gauges: Vec<_> = workers.iter().map(|worker| Arc::clone(&worker.gauges)).collect();
    let open = gauges.clone();
    all.push(
        registry.observe_with(&OPEN, &[], move || {
            open.iter().map(|worker| worker.connections.load(Ordering::Relaxed)).sum()
        }),
    );
    let tunnels = gauges.clone();
    all.push(registry.observe_with(&TUNNELS, &[], move || {
        tunnels.iter().map(|worker| worker.tunnels.load(Ordering::Relaxed)).sum()
    }));
    all.push(registry.observe_with(&IN_FLIGHT, &[], move || {
        gauges.iter().map(|worker| worker.in_flight.load(Ordering::Relaxed)).sum()
    }));
    all
}

/// Figures of the dead-letter log and of the access log.
fn of_logs(
    registry: &Arc<Registry>,
    dead_letters: Option<&DeadLetters>,
    deferrals: Option<(Deferrals, &Clock)>,
    access_log: Option<&AccessLog>,
) -> Vec<Registration> {
    let mut all = Vec::new();
    if let Some((store, clock)) = deferrals {
        all.extend(of_deferred(registry, &store, clock));
    }
    if let Some(log) = dead_letters {
        let mut figure = |family, labels: &[&str], read: fn(&Stats) -> u64| {
            let log = log.clone();
            all.push(registry.observe_with(family, labels, move || read(&log.stats())));
        };
        figure(&LETTERS, &["written"], |stats| stats.written);
        figure(&LETTERS, &["aggregated"], |stats| stats.aggregated);
        figure(&LETTERS, &["dropped-queue-full"], |stats| stats.dropped.queue_full);
        figure(&LETTERS, &["dropped-disk-error"], |stats| stats.dropped.disk_error);
        figure(&LETTER_QUEUE, &[], |stats| stats.queue_records);
        all.extend(of_alerts(registry, log));
        all.extend(of_sinks(registry, log));
    }
    if let Some(log) = access_log.cloned() {
        all.push(registry.observe_with(&ACCESS_DROPPED, &[], move || log.dropped()));
    }
    all
}

/// Figures of deferred requests.
fn of_deferred(registry: &Arc<Registry>, store: &Deferrals, clock: &Clock) -> Vec<Registration> {
    let figure = |family, labels: &[&str], read: fn(&DeferredFigures, Tick) -> u64| {
        let (store, clock) = (store.clone(), clock.clone());
        registry.observe_with(family, labels, move || read(&store.figures(), clock.now()))
    };
    vec![
        figure(&DEFERRED, &["kept"], |figures, _| figures.totals.deferred),
        figure(&DEFERRED, &["sent"], |figures, _| figures.totals.sent),
        figure(&DEFERRED, &["failed"], |figures, _| figures.totals.failed),
        figure(&DEFERRED, &["expired"], |figures, _| figures.totals.expired),
        figure(&DEFERRED_PENDING, &[], |figures, _| figures.totals.pending()),
        figure(&DEFERRED_BYTES, &[], |figures, _| figures.bytes),
        figure(&DEFERRED_OLDEST, &[], |figures, now| {
            figures.oldest.map_or(0, |oldest| now.since(oldest).as_nanos() / 1_000_000_000)
        }),
    ]
}

/// Figures of the alerts of a dead-letter log; none if it has no alerts.
fn of_alerts(registry: &Arc<Registry>, log: &DeadLetters) -> Vec<Registration> {
    let Some(counts_records) = log.alerts() else { return Vec::new() };
    let figure = |family, labels: &[&str], what| {
        let log = log.clone();
        registry.observe_with(family, labels, move || log.alert_count(what))
    };
    let mut all = vec![figure(&WEBHOOK_FAILURES, &[], AlertCount::Failures)];
    for own in AlertFigure::ALL {
        for state in AlertState::ALL {
            all.push(figure(&ALERTS, &[own.word(), state.word()], AlertCount::Crossings(own, state)));
        }
    }
    if counts_records {
        all.push(figure(&LETTERS_LENGTH, &[], AlertCount::Records));
        all.push(figure(&LETTERS_OLDEST, &[], AlertCount::OldestSeconds));
    }
    all
}

/// Figures of the sinks of a dead-letter log.
fn of_sinks(registry: &Arc<Registry>, log: &DeadLetters) -> Vec<Registration> {
    let mut all = Vec::new();
    for (name, figures) in log.sinks() {
        let mut figure = |family, label: Option<&str>, what| {
            let (figures, labels) = (figures.clone(), [name.as_str(), label.unwrap_or_default()]);
            let labels = labels.get(..1 + usize::from(label.is_some())).unwrap_or_default();
            all.push(registry.observe_with(family, labels, move || figures.count(what)));
        };
        figure(&SINK_LAG, None, SinkCount::LagSeconds);
        figure(&SINK_BEHIND_LINES, None, SinkCount::BehindLines);
        figure(&SINK_BEHIND_BYTES, None, SinkCount::BehindBytes);
        figure(&SINK_LINES, Some("delivered"), SinkCount::Delivered);
        figure(&SINK_LINES, Some("refused"), SinkCount::Refused);
        figure(&SINK_LINES, Some("lost"), SinkCount::LostLines);
        figure(&SINK_LOST_SEGMENTS, None, SinkCount::LostSegments);
        figure(&SINK_BATCHES, Some("taken"), SinkCount::Taken);
        figure(&SINK_BATCHES, Some("failed"), SinkCount::Failed);
    }
    all
}

/// Figures of what a generation has: a new set with each. Dropping them unregisters.
#[derive(Default)]
pub struct GenerationFigures {
    limits: Vec<Registration>,
    _others: Vec<Registration>,
}

impl GenerationFigures {
    /// Registers them.
    pub fn of(
        registry: &Arc<Registry>,
        (snapshot, lasting): (&Snapshot, &LiveState),
        (dead_letters, access_log, store): (Option<&DeadLetters>, Option<&AccessLog>, Option<Deferrals>),
    ) -> Self {
        let clock = &lasting.clock;
        let mut others = upstream_status::register(registry, snapshot, clock);
        if let Some(rules) = &snapshot.tokens {
            let keys = Arc::clone(rules.keys());
            let count = move || keys.keys().map_or(0, |keys| keys.len() as u64);
            others.push(registry.observe_with(&JWT_KEYS, &[], count));
        }
        others.extend(of_logs(registry, dead_letters, store.map(|store| (store, clock)), access_log));
        Self { limits: of_limits(registry, snapshot, lasting), _others: others }
    }

    /// Registers those of limits anew, where a single key counts by other numbers than before.
    pub fn renew_limits(&mut self, registry: &Arc<Registry>, snapshot: &Snapshot, lasting: &LiveState) {
        self.limits.clear();
        self.limits = of_limits(registry, snapshot, lasting);
    }
}

/// Figures of the limits that are live.
fn of_limits(registry: &Arc<Registry>, snapshot: &Snapshot, lasting: &LiveState) -> Vec<Registration> {
    let clock = &lasting.clock;
    let mut all = Vec::new();
    for (name, schedule) in &snapshot.schedules {
        let (schedule, clock) = (Arc::clone(schedule), clock.clone());
        all.push(registry.observe_with(&ACTIVE, &[name], move || u64::from(schedule.is_active(clock.now()))));
    }
    // A limit and what plans make of it are told as one.
    let mut by_name: HashMap<&Arc<str>, Vec<Arc<Limit>>> = HashMap::new();
    for (id, (limit, _)) in &lasting.limits {
        by_name.entry(&id.limit).or_default().push(Arc::clone(limit));
    }
    for (name, limits) in by_name {
        all.push(registry.observe_row(&OF_LIMIT, name, move |column| {
            let Some((_, read)) = LIMIT_FIGURES.get(column) else { return 0 };
            limits.iter().map(|limit| read(limit)).sum()
        }));
    }
    all.extend(fleet_status::register_limits(registry, &lasting.limits, clock));
    for bandwidth in &snapshot.bandwidths {
        for (direction, limit) in directions(bandwidth) {
            let labels = [&*bandwidth.spec.name, direction];
            let (keys, evicted) = (Arc::clone(limit), Arc::clone(limit));
            all.push(registry.observe_with(&BANDWIDTH_KEYS, &labels, move || keys.stats().keys));
            all.push(registry.observe_with(&BANDWIDTH_EVICTED, &labels, move || evicted.stats().evicted_live));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::build::{self, Logs};
    use crate::gateway::component::Component as _;
    use crate::gateway::testing::{live_state, model};
    use crate::limiter::Fingerprint;

    #[test]
    fn figures_are_of_the_generation_that_runs() {
        let (mut state, registry) = (live_state(), Registry::new());
        let mut figures = GenerationFigures::default();
        let mut reload = |name: &str| {
            let model = model(&format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n[[bandwidth]]\nname = \"{name}\"\nrate = \"1MiB/s\"\n\
                 [[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:2\"]\n[[limit]]\nname = \"{name}\"\nrate = \"9/s\"\n\
                 [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"{name}\"]\nbandwidth = [\"{name}\"]\n"
            ));
            let live = state.stage(&model, ()).unwrap();
            let logs = Logs { dead_letters: None, access_log: None };
            let nothing = build::nothing(&model, &state);
            let snapshot = build::build(&model, 1, (&nothing, &state), &live, logs).unwrap();
            state.commit(live);
            figures = GenerationFigures::of(&registry, (&snapshot, &state), (None, None, None));
            let (limit, _) = state.limits.values().next().unwrap();
            for limit in [limit, snapshot.bandwidths[0].down.as_ref().unwrap()] {
                limit.charge(Fingerprint::known(7).unwrap(), 1, Tick::ZERO);
            }
            let page = registry.render();
            let read = |family: &str, label: &str| {
                let series = format!("{family}{{{label} ");
                page.lines().find_map(|line| line.strip_prefix(&*series)?.parse::<u64>().ok())
            };
            ["one", "two"].map(|name| {
                let keys = read("sluicegate_limit_keys", &format!("limit=\"{name}\"}}"));
                (keys, read("sluicegate_bandwidth_keys", &format!("bandwidth=\"{name}\",direction=\"down\"}}")))
            })
        };
        assert_eq!(reload("one"), [(Some(1), Some(1)), (None, None)]);
        let [one, two] = reload("two");
        assert_eq!((two, one.0.unwrap_or(0), one.1.unwrap_or(0)), ((Some(1), Some(1)), 0, 0));
    }
}
