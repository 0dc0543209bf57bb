//! Exceptions as they are shown.

use serde::{Deserialize, Serialize};

use super::book::{Id, KeyedExceptions, Misfit};
use crate::admission::{Block, Made, OwnNumbers};
use crate::limiter::Fingerprint;
use crate::time::Wall;

/// A block of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSeen {
    /// `by-hand` or `penalty`.
    pub kind: String,
    /// Its end (RFC 3339); left out: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Its maker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Numbers of a key in the place of the limit's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumbersSeen {
    /// As they are written: TOML.
    pub numbers: String,
    /// Their end (RFC 3339); left out: they have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Their maker.
    pub by: String,
    /// When (RFC 3339).
    pub made_at: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why they do not hold now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misfit: Option<String>,
}

/// A key with exceptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExceptionSeen {
    /// The limit.
    pub limit: String,
    /// The value, redacted if it is a secret.
    pub key: String,
    /// The print of the value, by which one is told from another that looks the same. Commands take it in the value's place.
    pub print: String,
    /// It is blocked by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<BlockSeen>,
    /// It has numbers of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_numbers: Option<NumbersSeen>,
    /// Why nothing of it holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misfit: Option<String>,
}

/// Before the digits of a print: an API key may be sixteen hexadecimal digits, too.
const PRINT: &str = "print:";

/// A fingerprint as commands and answers have it.
pub fn print_text(print: Fingerprint) -> String {
    format!("{PRINT}{:016x}", print.bits())
}

/// Reads one; `None`: the text is none.
pub fn parse_print(text: &str) -> Option<Fingerprint> {
    let digits = text.strip_prefix(PRINT)?;
    let is_print = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_print).and_then(Fingerprint::known)
}

fn shown(at: Wall) -> String {
    format!("{:.3}", at.timestamp())
}

impl BlockSeen {
    /// One by hand.
    pub fn by_hand(block: &Block) -> Self {
        let Block { until, made: Made { at, by, reason } } = block;
        Self {
            kind: "by-hand".to_owned(),
            until: until.map(shown),
            by: Some(by.to_string()),
            made_at: Some(shown(*at)),
            reason: reason.as_ref().map(ToString::to_string),
        }
    }

    /// One by a penalty.
    pub fn by_penalty(until: Wall) -> Self {
        let kind = "penalty".to_owned();
        Self { kind, until: Some(shown(until)), by: None, made_at: None, reason: None }
    }

    /// The one that holds: by hand before a penalty.
    pub fn of(by_hand: Option<&Block>, penalised_until: Option<Wall>) -> Option<Self> {
        by_hand.map(Self::by_hand).or_else(|| penalised_until.map(Self::by_penalty))
    }
}

impl NumbersSeen {
    /// As they are made.
    pub fn of(numbers: &OwnNumbers, misfit: Option<&Misfit>) -> Self {
        let OwnNumbers { until, made: Made { at, by, reason }, text, limit: _ } = numbers;
        Self {
            numbers: text.trim_end().replace('\n', ", "),
            until: until.map(shown),
            by: by.to_string(),
            made_at: shown(*at),
            reason: reason.as_ref().map(ToString::to_string),
            misfit: misfit.map(|misfit| misfit.why().to_string()),
        }
    }
}

impl ExceptionSeen {
    /// Of a key.
    pub fn of(id: &Id, entry: &KeyedExceptions) -> Self {
        let KeyedExceptions { shown, exception, misfit, .. } = entry;
        Self {
            limit: id.limit.to_string(),
            key: shown.to_string(),
            print: print_text(id.print),
            block: exception.block.as_ref().map(BlockSeen::by_hand),
            own_numbers: exception.numbers.as_ref().map(|own| NumbersSeen::of(own, misfit.as_ref())),
            misfit: misfit
                .as_ref()
                .filter(|misfit| matches!(misfit, Misfit::All(_)))
                .map(|misfit| misfit.why().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_print_is_read_as_it_is_written_and_nothing_else_is_one(bits in 1u64.., text in "(print:)?[0-9a-f+é]{0,18}") {
            let print = Fingerprint::known(bits).unwrap();
            prop_assert_eq!(parse_print(&print_text(print)), Some(print));
            let is_print = text.len() == 22 && text.starts_with("print:") && text[6..].bytes().all(|own| own.is_ascii_hexdigit());
            prop_assert_eq!(parse_print(&text).is_some(), is_print && !text.ends_with("0000000000000000"));
        }
    }
}
