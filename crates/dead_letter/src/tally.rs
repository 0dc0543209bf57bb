//! The lines that stand for many requests: the aggregate of those that flood control counted, and the summary of drops.

use std::sync::Arc;

use super::line::PairBounds;
use super::reason::Reason;
use super::record::{MAX_NAME, SHADOW, open, stamp};
use sluicegate_redact::{Clip, ClipEnd, Redactor};
use sluicegate_time::Wall;

/// Of each of the first keys of an aggregate.
const TOP_BOUNDS: PairBounds = PairBounds { count: 16, name: 256, value: 512, total: 2 * 1024 };

/// A key in words, as the request had it: nothing redacted, long texts cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyName {
    /// Source and value of each part.
    pub parts: Vec<(String, Clip)>,
    /// Whether its values are secrets; `None`: their names say so.
    pub is_secret: Option<bool>,
}

impl KeyName {
    /// The sources and the values of all parts, each joined as the configuration joins them.
    pub fn joined(&self) -> (String, String) {
        let join = |texts: Vec<&str>| texts.join(" + ");
        let sources = self.parts.iter().map(|(source, _)| source.as_str()).collect();
        (join(sources), join(self.parts.iter().map(|(_, value)| value.text.as_str()).collect()))
    }
}

/// One of the keys that came most often among those that an aggregate counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopKey {
    pub(super) name: KeyName,
    pub(super) count: u64,
    /// By how much `count` may be too high.
    pub(super) excess: u64,
}

/// Requests that flood control counted instead of recording them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) reason: Reason,
    /// Whether they were admitted, and a limit in shadow mode would have refused them.
    pub(super) is_shadow: bool,
    pub(super) limit: Option<Arc<str>>,
    pub(super) count: u64,
    /// When the first of them happened.
    pub(super) from: Wall,
    /// When the last did.
    pub(super) to: Wall,
    /// The keys that came most often, the first one first.
    pub(super) top: Vec<TopKey>,
}

impl Tally {
    /// Appends its line to `out`.
    pub(super) fn write(&self, node: &str, redactor: &Redactor, now: Wall, out: &mut Vec<u8>) {
        let mut line = open(out, now);
        line.mark("aggregate");
        line.text("reason", Some(self.reason.word()), MAX_NAME);
        if self.is_shadow {
            line.text("mode", Some(SHADOW), MAX_NAME);
        }
        line.text("limit", self.limit.as_deref(), MAX_NAME);
        line.text("node", Some(node), MAX_NAME);
        line.number("count", self.count);
        line.text("from", Some(&stamp(self.from)), MAX_NAME);
        line.text("to", Some(&stamp(self.to)), MAX_NAME);
        if !self.top.is_empty() {
            line.objects("top", &self.top, |line, TopKey { name, count, excess }| {
                let KeyName { parts, is_secret } = name;
                let parts = parts.iter().map(|(source, value)| {
                    let shown = redactor.key_part(source, &value.text, value.end, *is_secret);
                    ((source.as_str(), ClipEnd::Whole), (shown, value.end))
                });
                line.pairs("key", parts, 0, &TOP_BOUNDS);
                line.number("count", *count);
                if *excess > 0 {
                    line.number("excess", *excess);
                }
            });
        }
        line.finish();
    }
}

/// Records that were lost, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The queue was full, or the log was closed.
    pub queue_full: u64,
    /// The disk refused them.
    pub disk_error: u64,
}

impl Drops {
    /// Of all causes.
    pub fn total(self) -> u64 {
        self.queue_full.saturating_add(self.disk_error)
    }

    /// The drops on top of `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            queue_full: self.queue_full.saturating_sub(earlier.queue_full),
            disk_error: self.disk_error.saturating_sub(earlier.disk_error),
        }
    }

    /// Appends the line that says that these were lost between `from` and `now`.
    pub(super) fn write(self, node: &str, from: Wall, now: Wall, out: &mut Vec<u8>) {
        let mut line = open(out, now);
        line.mark("dropped");
        line.text("node", Some(node), MAX_NAME);
        line.number("count", self.total());
        line.number("queue_full", self.queue_full);
        line.number("disk_error", self.disk_error);
        line.text("from", Some(&stamp(from)), MAX_NAME);
        line.text("to", Some(&stamp(now)), MAX_NAME);
        line.finish();
    }
}
