//! `max_in_flight` of `[[upstream]]`: a number, or one that the gateway finds.

use std::fmt;
use std::ops::RangeInclusive;

use crate::findings::Reported;
use crate::form::Form;
use crate::kind::{Context, ValueKind, count, flag};
use crate::reader::Node;
use crate::section::{Declare, section};
use sluicegate_balance::AutoTerms;

/// How many requests may be at the servers of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxInFlight {
    /// This many.
    Fixed(u64),
    /// As many as the latency of their answers allows.
    Auto(AutoTerms),
}

section! {
    /// `max_in_flight` as a table.
    read as AutoKeys {
        /// Whether the number is found from the latency of answers.
        auto: bool = flag().required("true"),
        /// The least that may be found.
        min: u64 = count(AUTO).or("4"),
        /// The most that may be found.
        max: u64 = count(AUTO).or("1024"),
    }
}

words! {
    /// The word for a number that is found.
    enum AutoWord {
        /// As many as the latency of answers allows, 4 to 1024.
        Auto = "auto",
    }
}

pub(super) const PLACES: RangeInclusive<u64> = 1..=10_000_000;

const AUTO: RangeInclusive<u64> = 1..=100_000;

const EXAMPLE: &str = "{ auto = true, min = 8, max = 1024 }";

pub(super) const FORM: Form =
    Form::Either(&[Form::Whole(1, 10_000_000), Form::Words(words_of_auto), Form::Table(AutoKeys::rows)]);

fn words_of_auto() -> Vec<(&'static str, &'static str)> {
    Form::words::<AutoWord>().all_words()
}

/// Reads it.
pub(super) fn max_in_flight(node: &Node<'_>, context: &Context<'_>) -> Result<MaxInFlight, Reported> {
    if node.as_text().is_some() {
        let AutoWord::Auto = node.word()?;
        return Ok(MaxInFlight::Auto(AutoTerms::default()));
    }
    if node.as_table("a table").is_none() {
        return count(PLACES).read(&node.or_word("auto"), context).map(MaxInFlight::Fixed);
    }
    let mut reader = node.inner(node.label(), EXAMPLE)?;
    let keys = AutoKeys::read(&mut reader, context);
    reader.done();
    let (is_auto, min, max) = (keys.auto.value?, keys.min.value?, keys.max.value?);
    if !is_auto {
        let help = "write a number, such as max_in_flight = 512, or \"none\"";
        return Err(node.error("`max_in_flight` is a table without `auto = true`", help));
    }
    if min > max {
        let message = format!("`min` of {min} is above `max` of {max}");
        return Err(node.error(message, "lower `min`, or raise `max`"));
    }
    Ok(MaxInFlight::Auto(AutoTerms { min, max }))
}

impl MaxInFlight {
    /// The number, where it is fixed.
    pub fn fixed(self) -> Option<u64> {
        match self {
            Self::Fixed(most) => Some(most),
            Self::Auto(_) => None,
        }
    }

    /// The bounds, where it is found.
    pub fn auto(self) -> Option<AutoTerms> {
        match self {
            Self::Fixed(_) => None,
            Self::Auto(terms) => Some(terms),
        }
    }
}

impl fmt::Display for MaxInFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(most) => write!(f, "{most}"),
            Self::Auto(AutoTerms { min, max }) => write!(f, "auto, {min} to {max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::certificates::Certificates;
    use crate::parse;

    #[test]
    fn the_word_and_a_table_that_says_no_more_are_the_same() {
        let read = |text: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:2\"]\n\
                 max_in_flight = {text}\n[[route]]\nname = \"r\"\nupstream = \"app\"\n"
            );
            parse(&text, Path::new("/g.toml"), Certificates::Unread).unwrap().model.upstreams[0].max_in_flight
        };
        let auto = |min, max| Some(MaxInFlight::Auto(AutoTerms { min, max }));
        assert_eq!((read("\"auto\""), read("{ auto = true }")), (auto(4, 1_024), auto(4, 1_024)));
        assert_eq!((read("{ auto = true, min = 8, max = 9 }"), read("\"none\"")), (auto(8, 9), None));
        assert_eq!(read("7"), Some(MaxInFlight::Fixed(7)));
    }
}
