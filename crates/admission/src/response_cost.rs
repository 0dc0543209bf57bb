//! Where a response says what its request has cost, and what is believed of it.

use std::fmt;
use std::sync::Arc;

use super::cost::number;
use sluicegate_json::JsonPointer;
use sluicegate_limiter::MAX_COUNT;

/// Where a response says what its request has cost: the sum of its sources.
///
/// A number is read as strictly as a [`Cost`](super::Cost), but zero is zero: the peer that states it is the upstream, not
/// the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseCost {
    /// The places that are added up, at least one.
    pub sources: Arc<[CostSource]>,
    /// The most that it counts as, 1 to 10^12.
    pub max: u64,
    /// The cost of a response that breaks off.
    pub on_abort: OnAbort,
    /// The cost of a stream that does not state it.
    pub missing_usage: MissingUsage,
}

/// A place in a response that states a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// The field of that name, in lower case.
    Header(Arc<str>),
    /// The value there, in its JSON: in a stream the last one.
    Json(JsonPointer),
    /// The trailer of that name, in lower case.
    Trailer(Arc<str>),
}

words! {
    /// The cost of a response that breaks off: its client goes away, or its server fails.
    pub enum OnAbort default Most {
        /// The cost that was stated so far or the estimate, the larger one.
        Most = "most",
        /// The cost that was stated so far; where none was, the estimate.
        Seen = "seen",
    }
}

words! {
    /// The cost of a stream that does not state it.
    pub enum MissingUsage default Estimate {
        /// The estimate.
        Estimate = "estimate",
        /// One for each of its events that has JSON in it: about one for each token.
        Events = "events",
    }
}

/// The cost of a request as its response states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated {
    /// So much, from 0 to the most that it counts as.
    Cost(u64),
    /// More than that; it counts as that.
    TooMuch(u64),
    /// Nothing, and so many events were counted in its place.
    Events(u64),
    /// Nothing: it is not there, or twice, or it is no number.
    NoNumber,
}

impl ResponseCost {
    /// Whether the head of a response says all of it.
    pub fn is_in_head(&self) -> bool {
        self.sources.iter().all(|source| matches!(source, CostSource::Header(_)))
    }

    /// Whether a part of it is in the body.
    pub fn is_in_body(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, CostSource::Json(_)))
    }

    /// Whether a part of it is in the trailers.
    pub fn is_in_trailers(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, CostSource::Trailer(_)))
    }

    /// The cost that a head states, by the names and values of its field lines, where it [states](Self::is_in_head) all of it.
    pub fn in_head<'b>(&self, fields: &(impl Iterator<Item = (&'b [u8], &'b [u8])> + Clone)) -> Stated {
        let stated = self.sources.iter().map(|source| match source {
            CostSource::Header(name) => in_field(name, fields.clone()),
            CostSource::Json(_) | CostSource::Trailer(_) => SourceValue::Missing,
        });
        self.sum(stated)
    }

    /// The sum of its sources: those that are missing add nothing, as long as there is one.
    pub(super) fn sum(&self, values: impl Iterator<Item = SourceValue>) -> Stated {
        let mut sum: Option<u64> = None;
        for value in values {
            match value {
                SourceValue::Number(number) => sum = Some(sum.unwrap_or(0).saturating_add(number)),
                SourceValue::Missing => {}
                SourceValue::NoNumber => return Stated::NoNumber,
            }
        }
        match sum {
            Some(cost) if cost <= self.max => Stated::Cost(cost),
            Some(_) => Stated::TooMuch(self.max),
            None => Stated::NoNumber,
        }
    }
}

/// The value of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceValue {
    Number(u64),
    Missing,
    NoNumber,
}

/// The number in the one field line of that name.
pub(super) fn in_field<'b>(name: &str, fields: impl Iterator<Item = (&'b [u8], &'b [u8])>) -> SourceValue {
    let mut lines = fields.filter(|(own, _)| own.eq_ignore_ascii_case(name.as_bytes()));
    match (lines.next().map(|(_, line)| number(line.trim_ascii())), lines.next()) {
        (None, _) => SourceValue::Missing,
        (Some(Some(number)), None) => SourceValue::Number(number),
        _ => SourceValue::NoNumber,
    }
}

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Trailer(name) => write!(f, "trailer:{name}"),
        }
    }
}

impl fmt::Display for ResponseCost {
    /// As in the configuration: `json:/usage/prompt_tokens + json:/usage/completion_tokens up to 100, seen, events`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, source) in self.sources.iter().enumerate() {
            let plus = if index == 0 { "" } else { " + " };
            write!(f, "{plus}{source}")?;
        }
        if self.max < MAX_COUNT {
            write!(f, " up to {}", self.max)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn header(name: &str) -> CostSource {
        CostSource::Header(name.into())
    }

    pub(in super::super) fn json(pointer: &str) -> CostSource {
        CostSource::Json(JsonPointer::parse(pointer).unwrap())
    }

    pub(in super::super) fn cost(sources: &[CostSource], max: u64) -> ResponseCost {
        ResponseCost { sources: sources.into(), max, on_abort: OnAbort::Most, missing_usage: MissingUsage::Estimate }
    }

    #[test]
    fn a_response_states_digits_in_one_line_and_zero_is_zero() {
        let cost = cost(&[header("x-cost")], 100);
        for (lines, expected) in [
            (&[("x-cost", "7")][..], Stated::Cost(7)),
            (&[("X-Cost", " 007\t")], Stated::Cost(7)),
            (&[("x-cost", "0")], Stated::Cost(0)),
            (&[("x-cost", "100")], Stated::Cost(100)),
            (&[("x-cost", "101")], Stated::TooMuch(100)),
            (&[("x-cost", "99999999999999999999999")], Stated::TooMuch(100)),
            (&[("age", "3"), ("x-cost", "5"), ("x-cos", "6"), ("x-cost-2", "7")], Stated::Cost(5)),
            (&[], Stated::NoNumber),
            (&[("x-costs", "7")], Stated::NoNumber),
            (&[("x-cost", "")], Stated::NoNumber),
            (&[("x-cost", "-1")], Stated::NoNumber),
            (&[("x-cost", "+1")], Stated::NoNumber),
            (&[("x-cost", "1.5")], Stated::NoNumber),
            (&[("x-cost", "1 0")], Stated::NoNumber),
            (&[("x-cost", "5, 5")], Stated::NoNumber),
            (&[("x-cost", "5"), ("x-cost", "5")], Stated::NoNumber),
            (&[("x-cost", "5"), ("age", "3"), ("X-COST", "")], Stated::NoNumber),
            (&[("x-cost", ""), ("x-cost", "5")], Stated::NoNumber),
        ] {
            let fields = lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            assert_eq!(cost.in_head(&fields), expected, "{lines:?}");
        }
    }

    #[test]
    fn several_fields_are_added_up_and_those_that_are_missing_add_nothing() {
        let cost = cost(&[header("x-in"), header("x-out")], 100);
        for (lines, expected) in [
            (&[("x-in", "7"), ("x-out", "8")][..], Stated::Cost(15)),
            (&[("x-out", "8")], Stated::Cost(8)),
            (&[("x-in", "60"), ("x-out", "41")], Stated::TooMuch(100)),
            (&[("x-in", "99999999999999999999999"), ("x-out", "1")], Stated::TooMuch(100)),
            (&[("x-in", "7"), ("x-out", "eight")], Stated::NoNumber),
            (&[], Stated::NoNumber),
        ] {
            let fields = lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            assert_eq!(cost.in_head(&fields), expected, "{lines:?}");
        }
    }

    #[test]
    fn is_shown_as_it_is_written() {
        let own = cost(&[json("/usage/in"), CostSource::Trailer("x-out".into()), header("x-cost")], 100);
        assert_eq!(own.to_string(), "json:/usage/in + trailer:x-out + header:x-cost up to 100");
        assert_eq!(cost(&[header("x-cost")], MAX_COUNT).to_string(), "header:x-cost");
    }
}
