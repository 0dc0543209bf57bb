//! `[[limit]]`

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::algorithm::{self, Counting, CountingKeys};
use super::cost::CostKeys;
use super::exempt::{self, Exempt};
use super::response_cost::ResponseCostKeys;
use super::server::TIMEOUTS;
use super::{count_when, doubts, rate_from, renews, schedule};
use crate::change::Changes;
use crate::findings::Reported;
use crate::form::{Form, KEY, NAME, Row, Secrecy};
use crate::key::key;
use crate::kind::{Context, FleetTerms, ValueKind, by, count, duration, flag, number, word};
use crate::lower::refusal::{self, RefusalPage};
use crate::model::{LimitRule, Refusal};
use crate::names::{self, Name};
use crate::reader::{Node, Reader};
use crate::section::{Declare, Key, compare, section};
use crate::statuses::StatusSet;
use sluicegate_admission::{ExemptRules, KeyExpr, OnMissingKey};
use sluicegate_fleet as fleet;
use sluicegate_limiter::{Algorithm, LEASE_HOLD, LimitSpec, Mode, OnFull, PPM, Penalty, Refill, Sharing, StoreSharing};
use sluicegate_time::{ScheduleRules, Span};

section! {
    /// `[[limit]]`, but for the keys that say how it counts (`CountingKeys`), and what a request costs (`CostKeys`).
    read as LimitKeys {
        /// Its name, for routes to refer to.
        name: Arc<str> = by(NAME, |node, _| names::read(node, "per-client"), ToString::to_string).required("\"per-client\""),
        /// Requests of one key are counted together.
        key: KeyExpr = by(KEY, key, KeyExpr::to_string).or("client-ip"),
        /// Whether logs show a mark in place of the values of the key; by default, where its name says that they are secret.
        key_is_secret: Option<bool> = flag().or_nothing("by its name"),
        /// The fate of a request that lacks the key.
        on_missing_key: OnMissingKey = word().or("client-ip"),
        /// Keys that are kept at once.
        max_keys: u64 = count(KEYS).or("1000000"),
        /// The fate of a new key where `max_keys` are kept.
        on_full: OnFull = word().or("evict-oldest"),
        /// From a request's arrival to the last byte of its answer; the least of the route's and its limits' holds.
        timeout: Option<Span> = duration(TIMEOUTS).or_word("none").or("none"),
        /// The status of a refusal.
        status: u16 = count(refusal::STATUSES).or("429"),
        /// The header by which a trusted proxy states the rate of a request, such as `500/s`; `rate` is the most.
        rate_from: Option<Arc<str>> = by(Form::Text("\"header:NAME\""), rate_from::read, |name| format!("header:{name}")).or_nothing("none"),
        /// The header by which a trusted proxy states the day on which the months of a key begin, 1 to 31; else its line in a plans file does.
        renews: Option<Arc<str>> = by(Form::Text("\"header:NAME\""), renews::read, |name| format!("header:{name}")).or_nothing("none"),
        /// Answers that count; by default every request does, at its arrival.
        count_when: Option<StatusSet> = by(Form::Table(count_when::CountWhenKeys::rows), count_when::read, StatusSet::to_string).or_nothing("every request"),
        /// Whether it is shared with the other gateways of the fleet, and how.
        shared: SharedSetting = word().or("off"),
        /// lease: the part of the rate that all gateways together may spend before they report it; 0 is none.
        overshoot: f64 = number(OVERSHOOTS).or("0.25"),
        /// Whether its numbers are scaled by `[overload]`: rates, bursts, and what may wait.
        adaptive: bool = flag().or("false"),
        /// Blocks a key that is refused again and again.
        penalty: Option<Penalty> = by(Form::Table(PenaltyKeys::rows), penalty, Penalty::to_string).or_nothing("none"),
        /// Networks, and values of the key, that are neither counted nor refused.
        exempt: ExemptRules = Exempt.or("[]").secret(Secrecy::Hidden),
        /// The longest wait that clients are told of, in every field and text; the log has the true one.
        retry_after_max: Option<Span> = duration(TOLD_WAITS).or_word("none").or("none"),
        /// A random extra of at most this, added to Retry-After.
        retry_after_jitter: Span = duration(JITTERS).or("0s"),
        /// The look of its refusals, where it is not the route's.
        refusal: Option<Arc<Refusal>> = RefusalPage.optional(),
        /// When the limit holds; always, where it is not written.
        active: Option<ScheduleRules> = by(Form::Table(schedule::ActiveKeys::rows), schedule::read, ScheduleRules::to_string).or_nothing("always"),
    }
}

section! {
    /// `penalty`
    read as PenaltyKeys {
        /// Refusals of a key before it is blocked.
        after: u64 = count(REFUSALS).required("20"),
        /// The time within which they are counted.
        within: Span = duration(PENALTY_TIMES).required("\"1m\""),
        /// How long the key is blocked.
        block: Span = duration(PENALTY_TIMES).required("\"10m\""),
        /// Each block that begins within a day of the end of the last one is so many times as long; 1.0 is as long.
        escalate: f64 = number(ESCALATIONS).or("1.0"),
        /// No block becomes longer.
        max_block: Span = duration(PENALTY_TIMES).or("1d"),
    }
}

words! {
    /// `shared`.
    pub(crate) enum SharedSetting {
        /// Each gateway has the whole limit.
        Off = "off",
        /// By budget that each gateway takes ahead and reports afterwards.
        Lease = "lease",
        /// Every request asks the store.
        Strict = "strict",
    }
}

const OVERSHOOTS: RangeInclusive<f64> = 0.0..=1.0;

/// The upper end is 10 GB of small keys.
const KEYS: RangeInclusive<u64> = 1..=100_000_000;

const JITTERS: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(3_600);

/// Clients are told whole seconds, and of no window that is longer than a year.
const TOLD_WAITS: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(365 * 86_400);

/// Refusals before a penalty.
const REFUSALS: RangeInclusive<u64> = 1..=1_000_000;

/// How much longer a block may be than the last one.
const ESCALATIONS: RangeInclusive<f64> = 1.0..=100.0;

/// Below a second it would be a rate, and above a month the process hardly remembers.
const PENALTY_TIMES: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(30 * 86_400);

/// Reads one; its name also where the rest is wrong.
pub(crate) fn read(mut reader: Reader<'_>, context: &Context<'_>) -> (Option<Name>, Option<LimitRule>) {
    let settings = algorithm::written(reader.written());
    let keys = LimitKeys::read(&mut reader, context);
    let counting = algorithm::read(&mut reader, context);
    let cost = CostKeys::read(&mut reader, context);
    let response = ResponseCostKeys::read(&mut reader, context);
    reader.misplaced("bandwidth", "bytes have a section of their own: [[bandwidth]], which a [[route]] names");
    reader.done();
    check_sizes(&keys, &counting, &cost);
    // Invalid names are registered too, so that references do not cause a second error.
    let name = keys.name.node.as_ref().and_then(Name::of);
    let text = name.as_ref().map_or_else(|| keys.name.value.clone(), |name| Ok(Arc::clone(&name.text)));
    (name, limit((text, settings), keys, counting, (&cost, &response), context).ok())
}

/// Numbers of several keys that do not fit together, or are hardly meant.
fn check_sizes(keys: &LimitKeys<'_>, counting: &Counting<'_>, cost: &CostKeys<'_>) {
    let Counting { algorithm, place, mode, max_wait, max_queue: _ } = counting;
    if *mode != Ok(Mode::Off) {
        cost.check_fits(algorithm.as_ref().ok(), None);
    }
    if let (Ok(Mode::Enforce | Mode::Shadow), Ok(algorithm), Some(place)) = (mode, algorithm, place) {
        let table = keys.max_keys.node.as_ref().unwrap_or(place);
        doubts::check_table(table, algorithm, keys.max_keys.value.unwrap_or_default());
        if let (Ok(wait), Some(cost)) = (max_wait.value, cost.fixed()) {
            doubts::check_turns(max_wait.node.as_ref().unwrap_or(place), algorithm, wait, cost);
        }
    }
    // In shadow mode nobody waits and no timeout of a limit holds.
    if let (Ok(Mode::Enforce), Some(node), Ok(wait), Ok(Some(timeout))) =
        (mode, &keys.timeout.node, max_wait.value, keys.timeout.value)
    {
        doubts::check_wait(node, wait, timeout);
    }
}

/// The limit, unless something of it could not be read, or does not go with something else.
fn limit(
    (name, settings): (Result<Arc<str>, Reported>, Arc<str>),
    keys: LimitKeys<'_>,
    counting: Counting<'_>,
    (cost, response): (&CostKeys<'_>, &ResponseCostKeys<'_>),
    context: &Context<'_>,
) -> Result<LimitRule, Reported> {
    let algorithm = counting.algorithm.as_ref().ok();
    if response.cost_from_response.node.is_none() {
        cost.warn_of_unused();
    }
    cost.warn_of_default();
    let (stated, by_status) = (response.cost(cost, algorithm), response.by_status(algorithm));
    let late = match (&keys.count_when, algorithm) {
        (Key { node: Some(node), value: Ok(Some(_)) }, Some(algorithm)) => count_when::check(node, algorithm),
        _ => Ok(()),
    };
    let foreign = match (&keys.exempt.node, &keys.key.value) {
        (Some(node), Ok(key)) => exempt::check(node, key),
        _ => Ok(()),
    };
    if let (Some(node), Ok(Some(refusal))) = (&keys.status.node, &keys.refusal.value)
        && refusal.status.is_some()
    {
        node.on_key().error("`status` beside the `status` of `refusal`", "remove one of the two");
    }
    let sharing = sharing(&keys, &counting, response, context);
    if let (Some(node), Ok(true)) = (&keys.adaptive.node, &keys.adaptive.value) {
        check_adaptive(node, (&counting.algorithm, &sharing), context)?;
    }
    late.and(foreign).and(check_stated(&keys, &counting, &sharing))?;
    Ok(LimitRule {
        spec: LimitSpec {
            name: name?,
            algorithm: counting.algorithm?,
            mode: counting.mode?,
            max_wait: counting.max_wait.value?,
            max_queue: counting.max_queue?,
            max_keys: keys.max_keys.value?,
            on_full: keys.on_full.value?,
            penalty: keys.penalty.value?,
            sharing: sharing?,
            is_adaptive: keys.adaptive.value?,
        },
        key: keys.key.value?,
        key_is_secret: keys.key_is_secret.value?,
        on_missing_key: keys.on_missing_key.value?,
        timeout: keys.timeout.value?,
        status: keys.status.value?,
        count_when: keys.count_when.value?,
        cost: cost.bounded()?,
        cost_from_response: stated?,
        cost_by_status: by_status?,
        rate_from: keys.rate_from.value?,
        renews: keys.renews.value?,
        exempt: keys.exempt.value?,
        retry_after_max: keys.retry_after_max.value?,
        retry_after_jitter: keys.retry_after_jitter.value?,
        refusal: keys.refusal.value?,
        active: keys.active.value?,
        settings,
    })
}

/// Reports a limit that cannot be scaled, and warns of one that nothing scales.
fn check_adaptive(
    node: &Node<'_>,
    (algorithm, sharing): (&Result<Algorithm, Reported>, &Result<Option<Sharing>, Reported>),
    context: &Context<'_>,
) -> Result<(), Reported> {
    if !context.has_overload {
        node.warning(
            "`adaptive` has no effect: the file has no [overload]",
            "add [overload] with cpu = \"85%\", or remove it",
        );
    }
    if let Ok(Algorithm::TokenBucket(bucket)) = algorithm
        && bucket.refill() == Refill::Interval
    {
        let message =
            "`adaptive` with refill = \"interval\": a bucket that was made smaller forgets what was taken above it";
        return Err(node.error(message, "use refill = \"greedy\", or remove one of the two"));
    }
    match sharing {
        Ok(Some(_)) => Err(node.error(
            "`adaptive` of a shared limit: each gateway would scale it by what it sees",
            "remove one of the two; a limit beside it that is not shared can be adaptive",
        )),
        _ => Ok(()),
    }
}

/// Reports numbers that a trusted proxy states and that cannot hold.
fn check_stated(
    keys: &LimitKeys<'_>,
    counting: &Counting<'_>,
    sharing: &Result<Option<Sharing>, Reported>,
) -> Result<(), Reported> {
    let Ok(algorithm) = &counting.algorithm else { return Ok(()) };
    let rate = match (&keys.rate_from, counting.max_wait.value, sharing) {
        (Key { node: Some(node), value: Ok(Some(_)) }, Ok(wait), Ok(sharing)) => {
            rate_from::check(node, algorithm, wait, sharing.as_ref())
        }
        _ => Ok(()),
    };
    let months = match &keys.renews {
        Key { node: Some(node), value: Ok(Some(_)) } => {
            let is_shared = matches!(sharing, Ok(Some(_)));
            renews::check(node, algorithm, (is_shared, keys.count_when.node.is_some()))
        }
        _ => Ok(()),
    };
    rate.and(months)
}

/// How it is shared, if it can be.
fn sharing(
    keys: &LimitKeys<'_>,
    counting: &Counting<'_>,
    response: &ResponseCostKeys<'_>,
    context: &Context<'_>,
) -> Result<Option<Sharing>, Reported> {
    let (shared, overshoot) = (keys.shared.value?, keys.overshoot.value?);
    if let (Some(node), false) = (&keys.overshoot.node, shared == SharedSetting::Lease) {
        node.on_key().warning("`overshoot` is of leased limits", "write shared = \"lease\", or remove it");
    }
    let Some(node) = keys.shared.node.as_ref().filter(|_| shared != SharedSetting::Off) else { return Ok(None) };
    let Some(terms) = context.fleet else {
        return Err(node.error(
            "a shared limit needs a fleet",
            "add [fleet] with the store, or the `peers`, and the secret of all its gateways, or remove `shared`",
        ));
    };
    let gives_back = keys.count_when.node.is_some() || response.gives_back();
    let FleetTerms::Store { deadline, on_failure } = terms else {
        check_told(node, (shared, gives_back), &keys.overshoot)?;
        if let Ok(algorithm) = &counting.algorithm {
            check_shared(node, algorithm, Sharing::Peers)?;
        }
        return Ok(Some(Sharing::Peers));
    };
    let sharing = StoreSharing { overshoot_ppm: 0, hold: deadline, deadline, on_failure, gives_back };
    let sharing = match shared {
        SharedSetting::Lease => {
            StoreSharing { overshoot_ppm: (overshoot * f64::from(PPM)).round() as u32, hold: LEASE_HOLD, ..sharing }
        }
        _ => sharing,
    };
    let sharing = Sharing::Store(sharing);
    if let Ok(algorithm) = &counting.algorithm {
        check_shared(node, algorithm, sharing)?;
    }
    Ok(Some(sharing))
}

/// Reports a setting that needs a store, of a limit that gateways share without one.
fn check_told(
    node: &Node<'_>,
    (shared, gives_back): (SharedSetting, bool),
    overshoot: &Key<'_, f64>,
) -> Result<(), Reported> {
    if shared == SharedSetting::Strict {
        let message = "shared = \"strict\" needs a store: gateways that tell each other decide before the others know";
        return Err(node.error(message, "write shared = \"lease\", or a `store` in [fleet] in place of `peers`"));
    }
    if gives_back {
        let message = "a limit that takes back what requests have not cost cannot be shared without a store: the others are told what was counted";
        let help = "remove `shared`, or `count_when`, `cost_from_response` and `cost_by_status`, or write a `store` in [fleet] in place of `peers`";
        return Err(node.error(message, help));
    }
    if let Some(overshoot) = &overshoot.node {
        overshoot.on_key().warning("`overshoot` has no effect without a store", "remove it");
    }
    Ok(())
}

/// How a limit is shared, for a plan.
fn shown(sharing: Option<&Sharing>) -> String {
    match sharing {
        None => "off".to_owned(),
        Some(Sharing::Peers) => "told to peers".to_owned(),
        Some(Sharing::Store(sharing)) if sharing.is_strict() => "strict".to_owned(),
        Some(Sharing::Store(StoreSharing { overshoot_ppm, .. })) => {
            format!("lease, overshoot {}", f64::from(*overshoot_ppm) / f64::from(PPM))
        }
    }
}

/// Reports a limit that cannot be shared, with one that can, and warns of one that is hardly meant.
pub(crate) fn check_shared(node: &Node<'_>, algorithm: &Algorithm, sharing: Sharing) -> Result<(), Reported> {
    let fits = match sharing {
        Sharing::Store(sharing) => fleet::fits(algorithm, !sharing.is_strict()),
        Sharing::Peers => fleet::told_rates(algorithm).map(drop),
    };
    fits.map_err(|error| {
        let text = error.to_string();
        let (message, help) = text.split_once(": ").unwrap_or((&text, "remove `shared`"));
        node.error(message, help)
    })?;
    match sharing {
        Sharing::Store(sharing) => doubts::check_sharing(node, algorithm, &sharing),
        Sharing::Peers => doubts::check_told(node, algorithm),
    }
    Ok(())
}

/// `penalty = { after = 20, within = "1m", block = "10m" }`.
fn penalty(node: &Node<'_>, context: &Context<'_>) -> Result<Penalty, Reported> {
    const EXAMPLE: &str = "{ after = 20, within = \"1m\", block = \"10m\" }";
    let mut reader = node.inner("`penalty`", EXAMPLE)?;
    let PenaltyKeys { after, within, block, escalate, max_block } = PenaltyKeys::read(&mut reader, context);
    reader.done();
    let penalty = Penalty::new(after.value?, within.value?, block.value?)
        .map_err(|error| node.error(error.to_string(), format!("write penalty = {EXAMPLE}")))?;
    // The reader holds it between 1 and 100.
    let percent = (escalate.value? * 100.0).round() as u32;
    if let (Some(node), ..=100) = (&max_block.node, percent) {
        node.on_key()
            .warning("`max_block` has no effect: no block is longer than `block`", "add escalate = 2.0, or remove it");
    }
    penalty.growing(percent, max_block.value?).map_err(|error| {
        let help = format!("write max_block = \"{}\", or more", penalty.block());
        match &max_block.node {
            Some(node) => node.error(error.to_string(), help),
            None => node.error("`block` is longer than `max_block`, by default 1d", help),
        }
    })
}

/// The lines of a plan for what has changed.
pub(crate) fn compare(old: &LimitRule, new: &LimitRule) -> Changes {
    let (was, is, mut changes) = (&old.spec, &new.spec, Changes::default());
    // Limits are paired by their names.
    compare!(LimitKeys { key, key_is_secret, on_missing_key }, old, new, &mut changes);
    algorithm::compare(was, is, &mut changes);
    compare!(LimitKeys { max_keys, on_full }, was, is, &mut changes);
    compare!(LimitKeys { timeout, status, retry_after_max }, old, new, &mut changes);
    compare!(CostKeys { cost }, old, new, &mut changes);
    compare!(ResponseCostKeys { cost_from_response }, old, new, &mut changes);
    let late = |rule: &LimitRule| {
        rule.cost_from_response.as_ref().map_or_else(Default::default, |own| (own.on_abort, own.missing_usage))
    };
    let (was_late, is_late) = (late(old), late(new));
    changes.value("on_abort", &was_late.0, &is_late.0, |own| own.word().to_owned());
    changes.value("missing_usage", &was_late.1, &is_late.1, |own| own.word().to_owned());
    compare!(ResponseCostKeys { cost_by_status }, old, new, &mut changes);
    compare!(LimitKeys { rate_from, renews, count_when }, old, new, &mut changes);
    compare!(LimitKeys { penalty }, was, is, &mut changes);
    changes.value("adaptive", &was.is_adaptive, &is.is_adaptive, ToString::to_string);
    changes.value("shared", &shown(was.sharing.as_ref()), &shown(is.sharing.as_ref()), Clone::clone);
    compare!(LimitKeys { exempt, retry_after_jitter, refusal, active }, old, new, &mut changes);
    changes
}

/// Every key of `[[limit]]`, as it is declared.
pub(super) fn rows() -> Vec<Row> {
    [LimitKeys::rows(), CountingKeys::rows(), CostKeys::rows(), ResponseCostKeys::rows()].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use crate::{Certificates, Model, diff, parse};

    fn model(keys: &str) -> Model {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {{}}\nlimits = [\"a\"]\n\
             [fleet]\nstore = \"redis://h\"\nsecret_file = \"k\"\n[[limit]]\nname = \"a\"\n{keys}\n"
        );
        parse(&text, Path::new("/g.toml"), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model
    }

    #[test]
    fn a_log_is_shared_by_asking_and_not_by_lease() {
        let keys = "algorithm = \"sliding-log\"\nrate = \"9/s\"\nshared";
        assert!(model(&format!("{keys} = \"strict\"")).fleet.is_some());
        let refused = |rest: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {{}}\nlimits = [\"a\"]\n\
                 [fleet]\nstore = \"redis://h\"\nsecret_file = \"k\"\n[[limit]]\nname = \"a\"\n{keys} = {rest}\n"
            );
            parse(&text, Path::new("/g.toml"), Certificates::Unread).map(|_| ()).unwrap_err().to_string()
        };
        let lease = refused("\"lease\"");
        assert!(lease.contains("error: a limit of sliding-log cannot be leased"), "{lease}");
        assert!(lease.contains("help: use shared = \"strict\""), "{lease}");
        let apart = refused("\"strict\"\nmin_difference = \"1ms\"");
        assert!(apart.contains("error: a limit of sliding-log with min_difference cannot be shared"), "{apart}");
    }

    #[test]
    fn requests_may_wait_for_a_shared_limit() {
        for shared in ["strict", "lease"] {
            let spec = &model(&format!("rate = \"9/s\"\nshared = \"{shared}\"\nmax_wait = \"2s\"")).limits[0].spec;
            assert!(spec.sharing.is_some());
            assert_eq!(spec.max_wait, sluicegate_time::Span::from_secs(2));
        }
    }

    /// A key that is declared and not compared would change without a word.
    #[test]
    fn a_plan_tells_of_each_key_that_changes() {
        const RATE: &str = "rate = \"9/s\"";
        let mut told = BTreeSet::new();
        for (key, beside, old, new, line) in [
            ("key", RATE, "", "\"host\"", "key client-ip -> host"),
            ("key_is_secret", RATE, "", "true", "key_is_secret by its name -> true"),
            ("on_missing_key", RATE, "", "\"skip\"", "on_missing_key client-ip -> skip"),
            ("algorithm", RATE, "", "\"gcra\"", "algorithm timer-wheel -> gcra"),
            ("rate", "", "\"9/s\"", "\"8/s\"", "rate 9/s -> 8/s"),
            ("slots", RATE, "", "5", "slots 10 -> 5"),
            ("bound", RATE, "", "\"slot\"", "bound sliding -> slot"),
            ("burst", "algorithm = \"token-bucket\"\nrate = \"9/s\"", "", "5", "burst the rate's -> 5"),
            ("refill", "algorithm = \"token-bucket\"\nrate = \"9/s\"", "", "\"interval\"", "refill greedy -> interval"),
            ("max_waiting", "algorithm = \"leaky-bucket\"\nrate = \"9/s\"", "", "5", "max_waiting 9 -> 5"),
            ("align", "algorithm = \"fixed-window\"\nrate = \"9/d\"", "", "\"calendar\"", "align epoch -> calendar"),
            (
                "zone",
                "algorithm = \"fixed-window\"\nrate = \"9/d\"\nalign = \"calendar\"",
                "",
                "\"Europe/Berlin\"",
                "zone UTC -> Europe/Berlin",
            ),
            (
                "week_start",
                "algorithm = \"fixed-window\"\nrate = \"9/week\"\nalign = \"calendar\"",
                "",
                "\"sunday\"",
                "reset, it counts from zero: week_start monday -> sunday",
            ),
            ("slot_limit", "algorithm = \"sliding-window\"\nrate = \"20/5s\"", "", "5", "slot_limit 4 -> 5"),
            (
                "min_difference",
                "algorithm = \"sliding-log\"\nrate = \"9/s\"",
                "",
                "\"1ms\"",
                "min_difference 0s -> 1ms",
            ),
            ("count_refused", "algorithm = \"sliding-log\"\nrate = \"9/s\"", "", "true", "count_refused false -> true"),
            ("max_burst_seconds", "algorithm = \"smooth-bursty\"\nrate = \"9/s\"", "", "2", "max_burst 1s -> 2s"),
            ("warm_up", "algorithm = \"warm-up\"\nrate = \"9/s\"", "\"4s\"", "\"5s\"", "warm_up 4s -> 5s"),
            ("cold_factor", "algorithm = \"warm-up\"\nrate = \"9/s\"\nwarm_up = \"4s\"", "", "2", "cold_factor 3 -> 2"),
            ("max_in_flight", "algorithm = \"concurrency\"", "4", "5", "max_in_flight 4 -> 5"),
            ("mode", RATE, "", "\"shadow\"", "mode enforce -> shadow"),
            ("max_wait", RATE, "", "\"1s\"", "max_wait 0s -> 1s"),
            ("max_queue", "rate = \"9/s\"\nmax_wait = \"1s\"", "", "5", "max_queue default -> 5"),
            ("max_keys", RATE, "", "5", "max_keys 1000000 -> 5"),
            ("adaptive", RATE, "", "true", "adaptive false -> true"),
            ("on_full", RATE, "", "\"allow\"", "on_full evict-oldest -> allow"),
            ("timeout", RATE, "", "\"5s\"", "timeout none -> 5s"),
            ("status", RATE, "", "503", "status 429 -> 503"),
            ("cost", RATE, "", "5", "cost the route's -> 5"),
            (
                "default_cost",
                "rate = \"9/s\"\ncost = \"content-length\"",
                "2",
                "3",
                "cost content-length, else 2 -> content-length, else 3",
            ),
            ("max_cost", "rate = \"9/s\"\ncost = \"content-length\"", "8", "5", "cost content-length"),
            ("cost_from_response", RATE, "", "\"header:x\"", "cost_from_response none -> header:x"),
            (
                "on_abort",
                "rate = \"9/s\"\ncost_from_response = [\"json:/a\", \"trailer:B\"]",
                "",
                "\"seen\"",
                "on_abort most -> seen",
            ),
            (
                "missing_usage",
                "rate = \"9/s\"\ncost_from_response = \"json:/a\"",
                "",
                "\"events\"",
                "missing_usage estimate -> events",
            ),
            (
                "cost_by_status",
                RATE,
                "{ 5xx = 0 }",
                "{ 5xx = 0, 401 = 5 }",
                "cost_by_status 5xx = 0 -> 401 = 5, 5xx = 0",
            ),
            (
                "renews",
                "rate = \"9/month\"\nalgorithm = \"fixed-window\"\nalign = \"calendar\"",
                "",
                "\"header:X-Day\"",
                "renews none -> header:x-day",
            ),
            ("rate_from", RATE, "", "\"header:X-Limit\"", "rate_from none -> header:x-limit"),
            ("count_when", RATE, "", "{ status = [\"5xx\"] }", "count_when every request -> 5xx"),
            (
                "penalty",
                RATE,
                "",
                "{ after = 2, within = \"1m\", block = \"2m\" }",
                "penalty none -> 2m for 2 refusals in 1m",
            ),
            (
                "exempt",
                "rate = \"9/s\"\nkey = \"host\"",
                "",
                "[\"10.0.0.0/8\", \"key:a.example\"]",
                "exempt +10.0.0.0/8, exempt keys +1",
            ),
            ("shared", RATE, "", "\"strict\"", "shared off -> strict"),
            (
                "overshoot",
                "rate = \"9/s\"\nshared = \"lease\"",
                "",
                "0.5",
                "lease, overshoot 0.25 -> lease, overshoot 0.5",
            ),
            ("retry_after_max", RATE, "", "\"60s\"", "retry_after_max none -> 1m"),
            ("retry_after_jitter", RATE, "", "\"1s\"", "retry_after_jitter 0s -> 1s"),
            ("refusal", RATE, "", "{ status = 503 }", "refusal none -> its own"),
            ("active", RATE, "", "{ days = [\"mon\"] }", "active always -> "),
        ] {
            let with = |value: &str| {
                let line = if value.is_empty() { String::new() } else { format!("{key} = {value}") };
                model(&format!("{beside}\n{line}"))
            };
            let plan = diff(&with(old), &with(new)).to_string();
            assert!(plan.contains(line), "{key}: {plan}");
            assert!(told.insert(key), "{key} is here twice");
        }
        // Limits are paired by their names.
        let declared: BTreeSet<&str> = super::rows().iter().map(|row| row.key).filter(|key| *key != "name").collect();
        assert_eq!(told, declared);
    }
}
