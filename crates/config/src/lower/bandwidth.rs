//! `[[bandwidth]]`, and `bandwidth` of a route.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::findings::{Finding, Findings, Reported, quoted};
use crate::form::{Form, HEAD_KEY, NAME, Row};
use crate::key;
use crate::kind::{Context, by, count, every, size, word};
use crate::model::{Action, BandwidthSpec, Direction};
use crate::names::{self, Declared, Name};
use crate::reader::{Node, Reader};
use crate::section::{Declare as _, section};
use crate::size::{parse_size, show_size};
use crate::token::with_causes;
use sluicegate_admission::KeyExpr;
use sluicegate_limiter::{Gcra, MAX_COUNT, Rate};
use sluicegate_time::Span;

/// Bandwidths of one route; each is asked for each piece of a body.
pub(crate) const MAX_BANDWIDTHS: usize = 4;
/// Below, one buffer would take a minute.
const LEAST_PER_SECOND: u64 = 256;
/// The least burst where the file does not say: a few buffers.
const LEAST_BURST: u64 = 64 << 10;
const BURSTS: RangeInclusive<u64> = 1..=MAX_COUNT;
const KEYS: RangeInclusive<u64> = 1..=100_000_000;
const MAX_KEYS: u64 = 1_000_000;
/// Timers are of a millisecond: what they are late by has to fit into the burst.
const LEAST_BURST_TIME: Span = Span::from_millis(5);

section! {
    /// The numbers of a `[[bandwidth]]`, or of `bandwidth` of a route.
    read as BandwidthKeys {
        /// Bytes of bodies and tunnels in a time, from 256B/s to 1000GB/s.
        rate: Rate = by(Form::ByteRate, |node, _| rate(node), Rate::to_string).required("\"10MiB/s\""),
        /// Bytes that may go at once.
        burst: Option<u64> = size(BURSTS).or_nothing("a quarter of a second, 64KiB or more"),
        /// Bytes of one key are counted together.
        key: KeyExpr = by(HEAD_KEY, key::key_of_head, KeyExpr::to_string).or("client-ip"),
        /// The bytes that it counts.
        direction: Direction = word().or("both"),
        /// Keys that are kept at once.
        max_keys: u64 = count(KEYS).or("1000000"),
    }
}

section! {
    /// `[[bandwidth]]`, but for its numbers (`BandwidthKeys`).
    read as NameKeys {
        /// Its name, for routes to refer to.
        name: Arc<str> = by(NAME, |node, _| names::read(node, "per-client"), ToString::to_string).required("\"per-client\""),
    }
}

/// Every key of `[[bandwidth]]`, as it is declared.
pub(crate) fn rows() -> Vec<Row> {
    [NameKeys::rows(), BandwidthKeys::rows()].concat()
}

const RATE_FORM: &str = "a bandwidth is a size, a slash and a time, like \"10MiB/s\" or \"500KB/s\"";
const FORMS: &str = "\"10MiB/s\", [\"per-client\"] or { rate = \"10MiB/s\", key = \"client-ip\" }";

/// Those of the file: first the sections, then what routes have of their own.
pub(super) struct Bandwidths<'t> {
    sections: Declared<'t, BandwidthSpec>,
    own: Vec<Arc<BandwidthSpec>>,
    context: Context<'t>,
}

impl<'t> Bandwidths<'t> {
    /// Lowers the sections.
    pub(super) fn new(readers: Vec<Reader<'t>>, context: Context<'t>, findings: &'t Findings) -> Self {
        let mut sections = Declared::new("bandwidth", findings);
        for mut reader in readers {
            let name = NameKeys::read(&mut reader, &context).name.node.as_ref().and_then(Name::of);
            let numbers = numbers(&mut reader, &context);
            reader.done();
            let bandwidth = name.as_ref().zip(numbers).map(|(name, numbers)| numbers.named(Arc::clone(&name.text)));
            sections.add(name, bandwidth);
        }
        Self { sections, own: Vec::new(), context }
    }

    /// `bandwidth` of a route: those that hold there.
    pub(super) fn of_route(
        &mut self,
        node: Option<&Node<'_>>,
        route: Option<&Name>,
        action: Option<&Action>,
    ) -> Option<Vec<Arc<BandwidthSpec>>> {
        let Some(node) = node else { return Some(Vec::new()) };
        if let Some(Action::Respond { .. } | Action::Redirect { .. }) = action {
            node.warning(
                "`bandwidth` has no effect: the gateway answers by itself",
                "remove it, or give the route an upstream",
            );
        }
        if node.is_array() {
            return self.named(node);
        }
        let numbers = if let Some(text) = node.as_text() {
            self.plain(node, text)
        } else if let Some(mut reader) = node.as_table("`bandwidth`") {
            let numbers = numbers(&mut reader, &self.context);
            reader.done();
            numbers
        } else {
            node.wrong_type("a bandwidth, names in brackets, or a table", FORMS);
            None
        }?;
        // No section can have a name like this.
        let own = Arc::new(numbers.named(format!("route:{}", route?.text).into()));
        self.own.push(Arc::clone(&own));
        Some(vec![own])
    }

    /// Warns of sections that no route names.
    pub(super) fn warn_unused(&self) {
        self.sections.warn_unused();
    }

    /// All of them.
    pub(super) fn into_items(self) -> Option<Vec<Arc<BandwidthSpec>>> {
        let mut items = self.sections.into_items()?;
        items.extend(self.own);
        Some(items)
    }

    fn plain(&self, node: &Node<'_>, text: &str) -> Option<BandwidthNumbers> {
        if self.sections.has(text) {
            let message = format!("{} is the name of a [[bandwidth]], not a bandwidth", quoted(text));
            node.error(message, format!("names stand in brackets: bandwidth = [{}]", quoted(text)));
            return None;
        }
        let rate = rate(node).ok()?;
        Some(BandwidthNumbers {
            key: key::client_ip()?,
            rate,
            burst: default_burst(rate),
            algorithm: Gcra::new(&[rate], Some(default_burst(rate))).ok()?,
            direction: Direction::Both,
            max_keys: MAX_KEYS,
        })
    }

    fn named(&self, node: &Node<'_>) -> Option<Vec<Arc<BandwidthSpec>>> {
        let items = node.items("[\"per-client\"]")?;
        if items.len() > MAX_BANDWIDTHS {
            let message = format!("the route has {} bandwidths", items.len());
            node.error(message, format!("a route has at most {MAX_BANDWIDTHS}"));
            return None;
        }
        let mut seen: Vec<(usize, Range<usize>)> = Vec::new();
        every(&items, |item| {
            let index = self.sections.refer(item)?;
            if let Some((_, first)) = seen.iter().find(|(other, _)| *other == index) {
                let message = format!("the bandwidth {} is in `bandwidth` twice", quoted(self.sections.name(index)));
                let finding = Finding::error(item.span(), message).related("the first is at", first.clone());
                item.push(finding.help("remove one"));
                return None;
            }
            seen.push((index, item.span()));
            self.sections.item(index).cloned()
        })
    }
}

/// All of a bandwidth but its name.
struct BandwidthNumbers {
    key: KeyExpr,
    rate: Rate,
    burst: u64,
    algorithm: Gcra,
    direction: Direction,
    max_keys: u64,
}

impl BandwidthNumbers {
    fn named(self, name: Arc<str>) -> BandwidthSpec {
        let Self { key, rate, burst, algorithm, direction, max_keys } = self;
        BandwidthSpec { name, key, rate, burst, algorithm, direction, max_keys }
    }
}

fn numbers(reader: &mut Reader<'_>, context: &Context<'_>) -> Option<BandwidthNumbers> {
    let keys = BandwidthKeys::read(reader, context);
    let rate = keys.rate.value.ok();
    let burst = match (&keys.burst.node, keys.burst.value.ok()?, rate) {
        (Some(node), Some(bytes), rate) => burst(node, bytes, rate),
        (_, _, rate) => rate.map(default_burst),
    };
    Some(BandwidthNumbers {
        key: keys.key.value.ok()?,
        rate: rate?,
        burst: burst?,
        algorithm: Gcra::new(&[rate?], burst).ok()?,
        direction: keys.direction.value.ok()?,
        max_keys: keys.max_keys.value.ok()?,
    })
}

/// `"10MiB/s"`: bytes in a time.
fn rate(node: &Node<'_>) -> Result<Rate, Reported> {
    let text = node.string("a bandwidth in quotes", "\"10MiB/s\"")?;
    let parsed = text.split_once('/').map(|(size, window)| (parse_size(size.trim()), window.trim()));
    let Some((Some(bytes), window)) = parsed else {
        let help = format!("{RATE_FORM}; sizes end in B KiB MiB GiB KB MB GB");
        return Err(node.error(format!("{}: invalid bandwidth {}", node.label(), quoted(text)), help));
    };
    let rate = match format!("{bytes}/{window}").parse::<Rate>() {
        Ok(rate) => rate,
        Err(error) => {
            let help = if window.is_empty() || bytes == 0 || bytes > MAX_COUNT {
                format!("{RATE_FORM}, from {} to {}", per_second(LEAST_PER_SECOND), per_second(MAX_COUNT))
            } else {
                with_causes(&error)
            };
            return Err(node.error(format!("{}: invalid bandwidth {}", node.label(), quoted(text)), help));
        }
    };
    let is_too_slow = bytes_in(rate, Span::from_secs(1)) < u128::from(LEAST_PER_SECOND);
    if is_too_slow || Gcra::new(&[rate], Some(default_burst(rate))).is_err() {
        let help = format!("it is at least {}; to take no bodies use max_body_size", per_second(LEAST_PER_SECOND));
        return Err(node.error(format!("{} = {} is too slow for any message", node.label(), quoted(text)), help));
    }
    Ok(rate)
}

/// A burst that is written, if it goes with the rate.
fn burst(node: &Node<'_>, burst: u64, rate: Option<Rate>) -> Option<u64> {
    let rate = rate?;
    if Gcra::new(&[rate], Some(burst)).is_err() {
        node.error(format!("`burst` = {} takes this rate more than a century", show_size(burst)), "give a smaller one");
        return None;
    }
    let least = u64::try_from(bytes_in(rate, LEAST_BURST_TIME)).unwrap_or(u64::MAX);
    if burst < least {
        let message = format!(
            "`burst` = {} is less than goes in {LEAST_BURST_TIME}: the rate is never reached",
            show_size(burst)
        );
        node.warning(message, format!("give at least {}, or leave it out", show_size(least.next_multiple_of(1 << 10))));
    }
    Some(burst)
}

/// A quarter of a second.
fn default_burst(rate: Rate) -> u64 {
    let quarter = bytes_in(rate, Span::from_millis(250));
    u64::try_from(quarter).unwrap_or(MAX_COUNT).clamp(LEAST_BURST, MAX_COUNT)
}

fn bytes_in(rate: Rate, time: Span) -> u128 {
    u128::from(rate.limit()) * u128::from(time.as_nanos()) / u128::from(rate.window().as_nanos()).max(1)
}

fn per_second(bytes: u64) -> String {
    format!("{}/s", show_size(bytes))
}
