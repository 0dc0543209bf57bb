//! Exceptions in JSON. It comes from a file that somebody may have edited, or from a store that others write to: each text has its
//! bound, and nothing of it is believed that is not checked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::book::{Id, KeyedExceptions};
use crate::admission::{Block, KeyException, Made, OwnNumbers};
use crate::limiter::Fingerprint;
use crate::redact::is_terminal_control;
use crate::state::Mark;
use crate::time::Wall;

/// Characters of a name, of who made an exception and of why, and of the numbers.
const MAX_TEXT: usize = 512;

/// An exception of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredException {
    /// The limit.
    limit: String,
    /// The parts of its key.
    by: String,
    /// The mark of the secret that the fingerprint is made by.
    secret: String,
    /// The fingerprint of the value.
    print: String,
    /// The value, as logs show it.
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block: Option<WrittenBlock>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numbers: Option<WrittenNumbers>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBlock {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    made: WrittenMade,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNumbers {
    /// TOML.
    text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    made: WrittenMade,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMade {
    at: String,
    by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl StoredException {
    /// An exception as it is written.
    pub(super) fn of(id: &Id, entry: &KeyedExceptions) -> Self {
        let until = |until: Option<Wall>| until.map(|until| until.timestamp().to_string());
        let KeyedExceptions { by, shown, exception, .. } = entry;
        Self {
            limit: id.limit.to_string(),
            by: by.to_string(),
            secret: format!("{:016x}", id.mark.bits()),
            print: format!("{:016x}", id.print.bits()),
            key: shown.to_string(),
            block: exception
                .block
                .as_ref()
                .map(|block| WrittenBlock { until: until(block.until), made: WrittenMade::of(&block.made) }),
            numbers: exception.numbers.as_ref().map(|numbers| WrittenNumbers {
                text: numbers.text.to_string(),
                until: until(numbers.until),
                made: WrittenMade::of(&numbers.made),
            }),
        }
    }

    /// The exception; `None` if it cannot be one.
    pub(super) fn read(&self) -> Option<(Id, KeyedExceptions)> {
        let id = Id {
            limit: text(&self.limit)?,
            mark: Mark::known(u64::from_str_radix(&self.secret, 16).ok()?),
            print: Fingerprint::known(u64::from_str_radix(&self.print, 16).ok()?)?,
        };
        let block = match &self.block {
            Some(block) => Some(Block { until: until(block.until.as_deref()).ok()?, made: block.made.read()? }),
            None => None,
        };
        let numbers = match &self.numbers {
            Some(own) => Some(OwnNumbers {
                until: until(own.until.as_deref()).ok()?,
                made: own.made.read()?,
                text: lines(&own.text)?,
                limit: None,
            }),
            None => None,
        };
        let exception = KeyException { block, numbers, once: None };
        (!exception.is_empty())
            .then_some((id, KeyedExceptions { by: text(&self.by)?, shown: text(&self.key)?, exception, misfit: None }))
    }
}

impl WrittenMade {
    fn of(made: &Made) -> Self {
        Self {
            at: made.at.timestamp().to_string(),
            by: made.by.to_string(),
            reason: made.reason.as_ref().map(ToString::to_string),
        }
    }

    fn read(&self) -> Option<Made> {
        let reason = match &self.reason {
            Some(reason) => Some(text(reason)?),
            None => None,
        };
        Some(Made { at: instant(&self.at)?, by: text(&self.by)?, reason })
    }
}

/// An end, if there is one.
fn until(text: Option<&str>) -> Result<Option<Wall>, InvalidInstant> {
    text.map(|text| instant(text).ok_or(InvalidInstant)).transpose()
}

/// A text that is no instant.
struct InvalidInstant;

pub(super) fn instant(text: &str) -> Option<Wall> {
    let instant: jiff::Timestamp = text.parse().ok()?;
    Some(Wall::from_nanos(u64::try_from(instant.as_nanosecond()).ok()?))
}

/// A text that may be shown: short, and it steers no terminal.
pub(super) fn text(text: &str) -> Option<Arc<str>> {
    (text.chars().count() <= MAX_TEXT && !text.chars().any(is_terminal_control)).then(|| text.into())
}

/// The same, of several lines.
fn lines(lines: &str) -> Option<Arc<str>> {
    (lines.chars().count() <= MAX_TEXT && lines.lines().all(|line| text(line).is_some())).then(|| lines.into())
}
