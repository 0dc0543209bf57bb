//! The tables of `[[upstream]]` for servers that fail: `eject`, `health`, `breaker` and `retry`.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, ValueKind, by, count, duration, each, percent, statuses, word};
use crate::reader::Node;
use crate::section::{Declare, Section, section, table};
use crate::statuses::StatusSet;
use crate::token::is_token;
use sluicegate_balance::{BreakerTerms, EjectTerms, HealthTerms};
use sluicegate_time::Span;

const EJECT_EXAMPLE: &str = "{ failures = 5, for = \"5s\" }";
const BREAKER_EXAMPLE: &str = "{ errors = \"50%\", within = \"10s\" }";
const RETRY_EXAMPLE: &str = "{ attempts = 2 }";
const HEALTH_EXAMPLE: &str = "{ path = \"/healthz\" }";

/// Below, a server that restarts would have no time for it; above, nobody would wait for it.
const EJECTIONS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(24 * 3600);
const INTERVALS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(3600);
const TIMEOUTS: RangeInclusive<Span> = Span::from_millis(10)..=Span::from_secs(60);
/// Below, one burst would open it; above, it would be open for what is long past.
const BREAKER_WINDOWS: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3600);
const PER_TRIES: RangeInclusive<Span> = Span::from_millis(10)..=Span::from_secs(3600);
/// The word for connects that fail.
const CONNECT: &str = "connect";
/// Longest path of a check, in bytes.
const MAX_PATH: usize = 1024;

section! {
    /// `eject`: a server that fails is given no requests for a while.
    pub struct Eject, read as EjectKeys {
        /// Failures in a row of one worker's requests.
        failures: u32 = count(1..=1_000).or("5"),
        /// How long it is out at first; twice as long each further time in a row.
        r#for: Span = duration(EJECTIONS).or("5s"),
        /// The longest that it is out.
        max_for: Span = duration(EJECTIONS).or("5m"),
        /// How many of the servers may be out so at once, rounded down; never the only one.
        at_most: u32 = percent(1..=100).or("50%"),
        /// Statuses that are failures, beside connects that fail and answers that do not come or are not valid.
        on: StatusSet = statuses().or("[\"502\", \"503\", \"504\"]"),
    }
}

section! {
    /// `health`: servers are asked whether they work.
    pub struct Health, read as HealthKeys {
        /// How they are asked.
        protocol: HealthProtocol = word().or("http"),
        /// The path that is asked for by HTTP.
        path: Option<Arc<str>> = by(Form::Text("a path, such as \"/healthz\""), path, ToString::to_string).or_nothing("none"),
        /// The host that is named to them; by default that of the address.
        host: Option<Arc<str>> = by(Form::Text("a host"), host, ToString::to_string).or_nothing("the server's"),
        /// The port that is asked; by default that of the address.
        port: Option<u16> = count(1..=65_535).or_nothing("the server's"),
        /// From one check to the next, of each server.
        interval: Span = duration(INTERVALS).or("5s"),
        /// How long a check may take, connecting included.
        timeout: Span = duration(TIMEOUTS).or("1s"),
        /// Checks in a row that pass, before a server that is down is up.
        rise: u32 = count(1..=100).or("2"),
        /// Checks in a row that fail, before a server that is up is down.
        fall: u32 = count(1..=100).or("3"),
        /// Statuses that pass.
        expect: StatusSet = statuses().or("[\"2xx\"]"),
    }
}

section! {
    /// `breaker`: while too many requests fail, nothing is sent to the upstream but a few probes.
    #[derive(Eq)]
    pub struct BreakerSpec, read as BreakerKeys {
        /// It opens when this share of the results are errors.
        errors: u32 = percent(1..=100).or("50%"),
        /// The results of this long count.
        within: Span = duration(BREAKER_WINDOWS).or("10s"),
        /// With fewer results it does not open.
        at_least: u32 = count(1..=1_000_000).or("20"),
        /// How long it stays open; it does not grow.
        open: Span = duration(EJECTIONS).or("5s"),
        /// Then so many requests at a time try, and so many must succeed.
        probes: u32 = count(1..=1_000).or("3"),
        /// Statuses that are errors, beside connects that fail and answers that do not come or are not valid.
        on: StatusSet = statuses().or("[\"502\", \"503\", \"504\"]"),
    }
}

words! {
    /// How servers are asked whether they work.
    pub enum HealthProtocol {
        /// By a request whose answer has an expected status.
        Http = "http",
        /// By a connect, with the TLS handshake if the upstream has TLS.
        Tcp = "tcp",
        /// By `grpc.health.v1.Health/Check`.
        Grpc = "grpc",
    }
}

impl Eject {
    /// The terms that the states of servers go by.
    pub fn terms(&self) -> EjectTerms {
        EjectTerms {
            failures: self.failures,
            base: self.r#for,
            max: self.max_for.max(self.r#for),
            at_most_percent: self.at_most,
        }
    }
}

impl Health {
    /// The terms that the states of servers go by.
    pub fn terms(&self) -> HealthTerms {
        HealthTerms { rise: self.rise, fall: self.fall }
    }
}

impl BreakerSpec {
    /// The terms that the breaker goes by.
    pub fn terms(&self) -> BreakerTerms {
        let Self { errors, within, at_least, open, probes, .. } = *self;
        BreakerTerms { errors_percent: errors, within, at_least, open, probes }
    }
}

section! {
    /// `retry`: a request that fails is sent to another server.
    #[derive(Eq)]
    pub struct Retry, read as RetryKeys {
        /// How often it is tried in all.
        attempts: u32 = count(2..=10).or("2"),
        /// Failures after which it is.
        on: RetryOn = by(Form::List(&FAILURE, 1, MAX_FAILURES), retry_on, RetryOn::to_string).or("[\"connect\", \"502\", \"503\", \"504\"]"),
        /// How long each try may take to the head of its answer.
        per_try: Option<Span> = duration(PER_TRIES).or_word("none").or("none"),
        /// The share of the requests of 10 s that may be retries; three a second are allowed anyway.
        budget: u32 = percent(1..=100).or("10%"),
        /// Methods of requests that may be sent again.
        methods: Vec<Arc<str>> = by(Form::List(&Form::Text("a method"), 1, MAX_METHODS), methods, |methods| methods.join(", ")).or(IDEMPOTENT),
    }
}

/// Failures after which a request is sent to another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryOn {
    /// Connects that fail.
    pub connect: bool,
    /// Statuses: a reset and an answer that is not valid count as 502, an expired `per_try` as 504.
    pub statuses: StatusSet,
}

const FAILURE: Form =
    Form::Text("\"connect\", a status such as \"503\", \"4xx\" or \"5xx\", or one that is taken out such as \"!501\"");
/// Failures that one `on` names.
const MAX_FAILURES: usize = 16;
const MAX_METHODS: usize = 16;

/// The methods that may be repeated (RFC 9110, 9.2.2).
const IDEMPOTENT: &str = "[\"GET\", \"HEAD\", \"OPTIONS\", \"TRACE\", \"PUT\", \"DELETE\"]";

/// Reads `retry`.
pub(super) fn retry(node: &Node<'_>, context: &Context<'_>) -> Result<Retry, Reported> {
    table(node, RETRY_EXAMPLE, context)
}

fn retry_on(node: &Node<'_>, _: &Context<'_>) -> Result<RetryOn, Reported> {
    let items = node.array("[\"connect\", \"503\"]")?;
    if items.is_empty() || items.len() > MAX_FAILURES {
        let message = format!("{} has {} failures", node.label(), items.len());
        return Err(node.error(message, format!("give 1 to {MAX_FAILURES}, like \"connect\" or \"503\"")));
    }
    let texts = each(&items, |item| {
        let text = item.string("a failure in quotes", "\"connect\" or \"503\"")?;
        let status = text.strip_prefix('!').unwrap_or(text);
        let is_known = text == CONNECT || status.starts_with(['4', '5']) && StatusSet::parse(&[text]).is_ok();
        let help = "write \"connect\", three digits, 400 to 599, or a class: \"5xx\"; a reset counts as \"502\"; \
                    \"!501\" takes a status out";
        if is_known { Ok(text) } else { Err(item.error(format!("unknown failure {}", quoted(text)), help)) }
    })?;
    let statuses: Vec<_> = texts.iter().copied().filter(|text| *text != CONNECT).collect();
    // A list of nothing but such entries means all others, and a status of success is no failure.
    if !statuses.is_empty() && statuses.iter().all(|text| text.starts_with('!')) {
        let message = format!("{} takes statuses out, and names none to take them out of", node.label());
        return Err(node.error(message, "add them: [\"5xx\", \"!501\"]"));
    }
    let is_none = statuses.is_empty();
    let statuses =
        StatusSet::parse(&statuses).map_err(|text| node.error(format!("invalid status {}", quoted(text)), ""))?;
    if !is_none && statuses.is_empty() {
        return Err(node.error(format!("{} has no status left", node.label()), "remove an entry with `!`"));
    }
    Ok(RetryOn { connect: texts.contains(&CONNECT), statuses })
}

fn methods(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<Arc<str>>, Reported> {
    let items = node.array("[\"GET\", \"POST\"]")?;
    if items.is_empty() || items.len() > MAX_METHODS {
        let message = format!("{} has {} methods", node.label(), items.len());
        let help = format!("give 1 to {MAX_METHODS}, or remove it for those that are idempotent");
        return Err(node.error(message, help));
    }
    each(&items, |item| {
        let text = item.string("a method in quotes", "\"POST\"")?;
        let is_sound = is_token(text) && !text.bytes().any(|byte| byte.is_ascii_lowercase());
        let help = "methods are upper-case words like \"GET\" or \"POST\"";
        if is_sound { Ok(text.into()) } else { Err(item.error(format!("invalid method {}", quoted(text)), help)) }
    })
}

impl fmt::Display for RetryOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connect = self.connect.then(|| CONNECT.to_owned());
        let statuses = Some(self.statuses.to_string()).filter(|statuses| !statuses.is_empty());
        f.write_str(&connect.into_iter().chain(statuses).collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, on, per_try, budget, methods } = self;
        write!(f, "[{attempts} attempts on {on}, budget {budget}%")?;
        if let Some(per_try) = per_try {
            write!(f, ", {per_try} each")?;
        }
        write!(f, ", {}]", methods.join(" "))
    }
}

/// Reads `breaker`.
pub(super) fn breaker(node: &Node<'_>, context: &Context<'_>) -> Result<BreakerSpec, Reported> {
    table(node, BREAKER_EXAMPLE, context)
}

/// Reads `eject`.
pub(super) fn eject(node: &Node<'_>, context: &Context<'_>) -> Result<Eject, Reported> {
    let keys = Eject::read_keys(node.inner(node.label(), EJECT_EXAMPLE)?, context);
    if let (Some(base), Some(max), Some(node)) = (keys.r#for.get(), keys.max_for.get(), &keys.max_for.node)
        && max < base
    {
        let message = format!("`max_for` = \"{max}\" is below `for` = \"{base}\"");
        return Err(node.error(message, format!("set it to \"{base}\" or more, or remove it for \"5m\"")));
    }
    Eject::of(keys)
}

/// Reads `health`.
pub(super) fn health(node: &Node<'_>, context: &Context<'_>) -> Result<Health, Reported> {
    let health: Health = table(node, HEALTH_EXAMPLE, context)?;
    if health.protocol == HealthProtocol::Http && health.path.is_none() {
        let help = "write health = { path = \"/healthz\" }; or protocol = \"tcp\" in it, which only connects";
        return Err(node.error("`health` has no `path`", help));
    }
    if health.protocol != HealthProtocol::Http && health.path.is_some() {
        let message = format!("`path` has no effect: protocol = \"{}\" asks for none", health.protocol.word());
        node.warning(message, "remove it from `health`, or set protocol = \"http\"");
    }
    if health.timeout > health.interval {
        let message = format!(
            "`timeout` = {} of a check is longer than the `interval` = {} to the next one",
            health.timeout, health.interval
        );
        node.warning(message, format!("set a timeout of at most {}, or a longer interval", health.interval));
    }
    Ok(health)
}

fn path(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    let text = node.string("a path in quotes", "\"/healthz\"")?;
    if !text.starts_with('/') {
        return Err(
            node.error(format!("invalid path {}", quoted(text)), "a path begins with a slash, like \"/healthz\"")
        );
    }
    let is_sound = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if text.len() > MAX_PATH || !text.bytes().all(is_sound) {
        let help = format!("a path has up to {MAX_PATH} visible letters of ASCII, without #; escape others, like %20");
        return Err(node.error(format!("invalid request path {}", quoted(text)), help));
    }
    Ok(text.into())
}

fn host(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    let text = node.string("a host in quotes", "\"app.internal\"")?;
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if text.is_empty() || text.len() > 255 || !text.bytes().all(is_sound) {
        let help = "write a name or an address, with a port if the server wants one, like \"app.internal\"";
        return Err(node.error(format!("invalid host {}", quoted(text)), help));
    }
    Ok(text.into())
}

impl fmt::Display for Eject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failures, r#for: base, max_for, at_most, on } = self;
        write!(f, "[{failures} failures, {base} to {max_for}, at most {at_most}%, on {on}]")
    }
}

impl fmt::Display for BreakerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errors, within, at_least, open, probes, on } = self;
        write!(f, "[{errors}% of at least {at_least} within {within}, open for {open}, {probes} probes, on {on}]")
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, path, host, port, interval, timeout, rise, fall, expect } = self;
        write!(f, "[{}", protocol.word())?;
        for text in [path, host].into_iter().flatten() {
            write!(f, " {text}")?;
        }
        if let Some(port) = port {
            write!(f, " port {port}")?;
        }
        write!(f, " each {interval} within {timeout}, rise {rise}, fall {fall}, expect {expect}]")
    }
}
