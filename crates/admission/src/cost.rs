//! The cost that one request takes of a limit.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::body::{BodyField, BodyValue};
use super::view::RequestView;
use sluicegate_limiter::MAX_COUNT;

/// The cost of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The same for every request, 1 to 10^12.
    Fixed(u64),
    /// The number that each request states.
    Stated(StatedCost),
}

/// The cost that a request states.
///
/// A number in a field is read strictly: digits and nothing else, in one line. One in JSON may have a fraction, of which a part
/// counts as a whole unit. Zero counts as 1, because a request that takes nothing would pass every limit; more than `max`
/// counts as `max`, however many digits it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedCost {
    /// Where it is stated; of several the sum.
    pub places: Box<[CostPlace]>,
    /// The most that it counts as, 1 to 10^12.
    pub max: u64,
    /// The cost of a request that states none, 1 to 10^12.
    pub default: u64,
}

/// Where a request states its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostPlace {
    /// In the field of that name, in lower case.
    Header(Arc<str>),
    /// By the declared length of its body: one for so many bytes.
    ContentLength(NonZeroU64),
    /// In the JSON of its body.
    Json(BodyField),
}

/// A text that was meant for a number is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoNumber;

/// The cost of a request of which such a text was to state it, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidCost {
    pub(super) counts_as: u64,
}

impl Cost {
    /// One request, one count.
    pub const ONE: Self = Self::Fixed(1);

    /// The number that a request states there, up to `max`; 1 where it states none.
    pub fn stated(place: CostPlace, max: u64) -> Self {
        Self::Stated(StatedCost { places: [place].into(), max, default: 1 })
    }

    /// The cost of this request, at least 1.
    pub(super) fn of<V: RequestView + ?Sized>(&self, view: &V) -> Result<u64, InvalidCost> {
        match self {
            Self::Fixed(cost) => Ok(*cost),
            Self::Stated(stated) => stated.of(view),
        }
    }

    /// The fields of the body that state it.
    pub fn body_fields(&self) -> impl Iterator<Item = &BodyField> {
        let places = match self {
            Self::Fixed(_) => &[],
            Self::Stated(stated) => &*stated.places,
        };
        places.iter().filter_map(|place| match place {
            CostPlace::Json(field) => Some(field),
            CostPlace::Header(_) | CostPlace::ContentLength(_) => None,
        })
    }
}

impl StatedCost {
    fn of<V: RequestView + ?Sized>(&self, view: &V) -> Result<u64, InvalidCost> {
        let (mut sum, mut is_invalid) = (None, false);
        for place in &self.places {
            match place.stated(view) {
                Ok(Some(cost)) => sum = Some(sum.unwrap_or(0_u64).saturating_add(cost)),
                Ok(None) => {}
                Err(NoNumber) => is_invalid = true,
            }
        }
        let known = sum.map_or(self.default, |cost| cost.min(self.max).max(1));
        // A part that garbles its number makes a request no cheaper than the other parts say.
        if is_invalid { Err(InvalidCost { counts_as: known.max(self.default) }) } else { Ok(known) }
    }
}

impl CostPlace {
    fn stated<V: RequestView + ?Sized>(&self, view: &V) -> Result<Option<u64>, NoNumber> {
        match self {
            Self::Header(name) => in_lines(view, name),
            // The codec has seen to it that this is the length, where there is one.
            Self::ContentLength(per) => Ok(in_lines(view, "content-length")?.map(|length| length.div_ceil(per.get()))),
            Self::Json(field) => match view.body().map(|body| body.value(field)) {
                Some(BodyValue::Number(number)) => number.whole().map(Some).ok_or(NoNumber),
                Some(BodyValue::Text(_) | BodyValue::Unusable) => Err(NoNumber),
                Some(BodyValue::Absent) | None => Ok(None),
            },
        }
    }
}

impl fmt::Display for CostPlace {
    /// As in the configuration: `header:x-cost`, `content-length/4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::ContentLength(NonZeroU64::MIN) => f.write_str("content-length"),
            Self::ContentLength(per) => write!(f, "content-length/{per}"),
            Self::Json(field) => field.fmt(f),
        }
    }
}

impl fmt::Display for Cost {
    /// As in the configuration: `5`, `header:x-cost up to 100`, `content-length/4 + json:/n, else 1000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatedCost { places, max, default } = match self {
            Self::Fixed(cost) => return cost.fmt(f),
            Self::Stated(stated) => stated,
        };
        for (index, place) in places.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " + " })?;
            place.fmt(f)?;
        }
        if *max < MAX_COUNT {
            write!(f, " up to {max}")?;
        }
        if *default > 1 { write!(f, ", else {default}") } else { Ok(()) }
    }
}

/// The number in the field of that name, if there is one.
fn in_lines<V: RequestView + ?Sized>(view: &V, name: &str) -> Result<Option<u64>, NoNumber> {
    let mut cost = Ok(None);
    let mut lines = 0_usize;
    view.for_each_header(name, &mut |line| {
        lines = lines.saturating_add(1);
        // Of two lines, servers disagree on which one they take.
        cost = if lines == 1 { number(line.trim_ascii()).map(Some).ok_or(NoNumber) } else { Err(NoNumber) };
    });
    cost
}

/// `1*DIGIT`; what is too large to be represented is the largest number.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        digit.is_ascii_digit().then(|| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{BodyReader, PlainRequest};
    use sluicegate_json::JsonPointer;

    fn by_header(max: u64) -> Cost {
        Cost::stated(CostPlace::Header("x-cost".into()), max)
    }

    const INVALID: InvalidCost = InvalidCost { counts_as: 1 };

    fn of(lines: &[&str], max: u64) -> Result<u64, InvalidCost> {
        let request = lines.iter().fold(PlainRequest::new("GET", "/"), |request, line| request.with("x-cost", line));
        by_header(max).of(&request)
    }

    #[test]
    fn a_stated_cost_is_digits_in_one_line() {
        for (lines, cost) in [
            (&[][..], Ok(1)),
            (&["1"], Ok(1)),
            (&["7"], Ok(7)),
            (&[" 7\t"], Ok(7)),
            (&["007"], Ok(7)),
            (&["0"], Ok(1)),
            (&["000"], Ok(1)),
            (&["100"], Ok(100)),
            (&["101"], Ok(100)),
            (&["1000000000000"], Ok(100)),
            (&["1000000000001"], Ok(100)),
            (&["18446744073709551615"], Ok(100)),
            (&["18446744073709551616"], Ok(100)),
            (&["99999999999999999999999999999999999999"], Ok(100)),
            (&[""], Err(INVALID)),
            (&["  "], Err(INVALID)),
            (&["-1"], Err(INVALID)),
            (&["+1"], Err(INVALID)),
            (&["1 000"], Err(INVALID)),
            (&["1,000"], Err(INVALID)),
            (&["1, 2"], Err(INVALID)),
            (&["1.5"], Err(INVALID)),
            (&["1e3"], Err(INVALID)),
            (&["0x10"], Err(INVALID)),
            (&["1_000"], Err(INVALID)),
            (&["\"1\""], Err(INVALID)),
            (&["ten"], Err(INVALID)),
            (&["1\0"], Err(INVALID)),
            (&["\u{663}"], Err(INVALID)),
            (&["5", "5"], Err(INVALID)),
            (&["5", "7"], Err(INVALID)),
            (&["x", "5"], Err(INVALID)),
            (&["", "5"], Err(INVALID)),
            (&["5", ""], Err(INVALID)),
            (&["5", "x", "5"], Err(INVALID)),
        ] {
            assert_eq!(of(lines, 100), cost, "{lines:?}");
        }
    }

    #[test]
    fn without_a_bound_of_its_own_the_largest_cost_is_ten_to_the_twelfth() {
        assert_eq!(of(&["1000000000000"], MAX_COUNT), Ok(MAX_COUNT));
        assert_eq!(of(&["1000000000001"], MAX_COUNT), Ok(MAX_COUNT));
        assert_eq!(of(&["999999999999"], MAX_COUNT), Ok(MAX_COUNT - 1));
    }

    #[test]
    fn the_length_of_a_body_is_a_cost() {
        let post = || PlainRequest::new("POST", "/");
        let cost = Cost::stated(CostPlace::ContentLength(NonZeroU64::MIN), 5_000);
        for (request, expected) in [
            (post(), 1),
            (post().with("content-length", "0"), 1),
            (post().with("content-length", "1500"), 1_500),
            (post().with("content-length", "5001"), 5_000),
            (post().with("transfer-encoding", "chunked"), 1),
            (post().with("x-cost", "9"), 1),
        ] {
            assert_eq!(cost.of(&request), Ok(expected), "{request:?}");
        }
    }

    #[test]
    fn a_fixed_cost_asks_nobody() {
        let request = PlainRequest::new("POST", "/").with("content-length", "9").with("x-cost", "9");
        assert_eq!(Cost::Fixed(3).of(&request), Ok(3));
        assert_eq!(Cost::ONE.of(&request), Ok(1));
    }

    #[test]
    fn a_length_counts_in_parts_and_what_states_nothing_costs_the_default() {
        let cost = |place, default| Cost::Stated(StatedCost { places: [place].into(), max: 5_000, default });
        let by_length = cost(CostPlace::ContentLength(NonZeroU64::new(4).unwrap()), 70);
        for (length, expected) in [("0", 1), ("1", 1), ("4", 1), ("5", 2), ("1500", 375), ("99999", 5_000)] {
            let request = PlainRequest::new("POST", "/").with("content-length", length);
            assert_eq!(by_length.of(&request), Ok(expected), "{length}");
        }
        assert_eq!(by_length.of(&PlainRequest::new("POST", "/")), Ok(70), "a body in chunks");
        assert_eq!(by_length.to_string(), "content-length/4 up to 5000, else 70");
        let by_header = cost(CostPlace::Header("x-cost".into()), 70);
        assert_eq!(by_header.of(&PlainRequest::new("POST", "/")), Ok(70));
        let field = BodyField::Json(JsonPointer::parse("/max_tokens").unwrap());
        let by_json = cost(CostPlace::Json(field.clone()), 70);
        assert_eq!(by_json.to_string(), "json:/max_tokens up to 5000, else 70");
        for (body, expected) in [
            (r#"{"max_tokens":100}"#, Ok(100)),
            (r#"{"max_tokens":1e9}"#, Ok(5_000)),
            (r#"{"max_tokens":0}"#, Ok(1)),
            (r#"{"max_tokens":2.5}"#, Ok(3)),
            (r#"{"max_tokens":null}"#, Ok(70)),
            ("{}", Ok(70)),
            ("", Ok(70)),
            (r#"{"max_tokens":-1}"#, Err(InvalidCost { counts_as: 70 })),
            (r#"{"max_tokens":"100"}"#, Err(InvalidCost { counts_as: 70 })),
            (r#"{"max_tokens":1,"max_tokens":2}"#, Err(InvalidCost { counts_as: 70 })),
            ("no json", Err(InvalidCost { counts_as: 70 })),
        ] {
            let mut reader = BodyReader::new(&[field.clone()].into(), None);
            reader.feed(body.as_bytes());
            let request = PlainRequest::new("POST", "/").body(reader.finish(true));
            assert_eq!(by_json.of(&request), expected, "{body}");
        }
    }

    #[test]
    fn of_several_places_the_sum_of_those_counts_that_state_one() {
        let fields: Arc<[BodyField]> =
            ["/max_tokens", "/more"].map(|pointer| BodyField::Json(JsonPointer::parse(pointer).unwrap())).into();
        let [first, second] = [0, 1].map(|index| CostPlace::Json(fields[index].clone()));
        let places = [CostPlace::ContentLength(NonZeroU64::new(4).unwrap()), first, second];
        let cost = Cost::Stated(StatedCost { places: places.into(), max: 5_000, default: 70 });
        assert_eq!(cost.to_string(), "content-length/4 + json:/max_tokens + json:/more up to 5000, else 70");
        assert!(cost.body_fields().eq(fields.iter()));
        for (length, body, expected) in [
            (Some("400"), r#"{"max_tokens":20,"more":3}"#, Ok(123)),
            (None, r#"{"more":3}"#, Ok(3)),
            (Some("400"), "{}", Ok(100)),
            (Some("0"), "{}", Ok(1)),
            (None, "{}", Ok(70)),
            (Some("400"), r#"{"max_tokens":4990}"#, Ok(5_000)),
            (Some("18446744073709551615"), r#"{"max_tokens":18446744073709551615}"#, Ok(5_000)),
            (Some("400"), r#"{"max_tokens":20,"more":"3"}"#, Err(120)),
            (Some("4"), r#"{"max_tokens":20,"more":"3"}"#, Err(70)),
            (Some("40000"), "no json", Err(5_000)),
            (None, "no json", Err(70)),
        ] {
            let mut reader = BodyReader::new(&fields, None);
            reader.feed(body.as_bytes());
            let request = PlainRequest::new("POST", "/").body(reader.finish(true));
            let request = length.into_iter().fold(request, |request, length| request.with("content-length", length));
            let expected = expected.map_err(|counts_as| InvalidCost { counts_as });
            assert_eq!(cost.of(&request), expected, "{length:?} {body}");
        }
    }

    #[test]
    fn costs_are_shown_as_they_are_written() {
        assert_eq!(Cost::Fixed(5).to_string(), "5");
        assert_eq!(by_header(100).to_string(), "header:x-cost up to 100");
        assert_eq!(by_header(MAX_COUNT).to_string(), "header:x-cost");
        assert_eq!(Cost::stated(CostPlace::ContentLength(NonZeroU64::MIN), 9).to_string(), "content-length up to 9");
        assert_eq!(Cost::stated(CostPlace::ContentLength(NonZeroU64::MIN), MAX_COUNT).to_string(), "content-length");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_cost_in_range_or_no_number(
            lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..3),
            max in 1..=MAX_COUNT,
        ) {
            let request = lines.iter().fold(PlainRequest::new("GET", "/"), |view, line| view.with("x-cost", line));
            match by_header(max).of(&request) {
                Ok(cost) => prop_assert!((1..=max).contains(&cost)),
                Err(INVALID) => prop_assert!(!lines.is_empty()),
                Err(other) => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn every_number_is_read_as_std_reads_it(number: u128, zeros in 0..20_usize, max in 1..=MAX_COUNT) {
            let text = format!("{}{number}", "0".repeat(zeros));
            let expected = number.clamp(1, u128::from(max));
            prop_assert_eq!(of(&[&text], max).map(u128::from), Ok(expected));
        }
    }
}
