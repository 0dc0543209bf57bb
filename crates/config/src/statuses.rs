//! Sets of statuses.

use std::fmt;
use std::ops::Range;

/// Statuses of an answer: single ones and whole classes, less those that are taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet {
    members: Vec<Member>,
    /// Taken out of the members; where there are no members, of all statuses from 200 to 599.
    excluded: Vec<Member>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// One status.
    Status(u16),
    /// A hundred of them, by the first digit.
    Class(u16),
}

/// Statuses that an answer may have.
const ALL: Range<u16> = 200..600;

impl StatusSet {
    /// Of texts such as `401` and `5xx`, and such as `!422`, which takes that status out. The error is the first text that
    /// is none of these, or is outside 200 to 599.
    pub fn parse<'t>(texts: &[&'t str]) -> Result<Self, &'t str> {
        let mut set = Self { members: Vec::new(), excluded: Vec::new() };
        for text in texts {
            match text.strip_prefix('!') {
                Some(status) => set.excluded.push(Member::parse(status).ok_or(*text)?),
                None => set.members.push(Member::parse(text).ok_or(*text)?),
            }
        }
        Ok(set)
    }

    /// Whether a status is one of them.
    pub fn contains(&self, status: u16) -> bool {
        let is_member = self.members.iter().any(|member| member.contains(status))
            || self.members.is_empty() && !self.excluded.is_empty() && ALL.contains(&status);
        is_member && !self.excluded.iter().any(|member| member.contains(status))
    }

    /// Whether no status at all is one of them.
    pub fn is_empty(&self) -> bool {
        !ALL.into_iter().any(|status| self.contains(status))
    }
}

impl Member {
    fn parse(text: &str) -> Option<Self> {
        let (class, rest) = text.split_at_checked(1)?;
        let digit = class.parse().ok().filter(|digit| (2..=5).contains(digit))?;
        match rest {
            "xx" => Some(Self::Class(digit)),
            _ if rest.len() == 2 && rest.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map(Self::Status).ok()
            }
            _ => None,
        }
    }

    fn contains(self, status: u16) -> bool {
        match self {
            Self::Status(one) => status == one,
            Self::Class(digit) => status / 100 == digit,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Class(digit) => write!(f, "{digit}xx"),
        }
    }
}

impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.members.iter().map(|member| ("", member));
        let excluded = self.excluded.iter().map(|member| ("!", member));
        for (index, (sign, member)) in members.chain(excluded).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{sign}{member}")?;
        }
        Ok(())
    }
}

/// The costs of requests by the statuses of their answers. Single statuses go before classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCosts(Vec<(Member, u64)>);

impl StatusCosts {
    /// Of texts such as `401` and `5xx` with their costs. The error is the first text that is neither.
    pub fn parse<'t>(costs: &[(&'t str, u64)]) -> Result<Self, &'t str> {
        let members = costs.iter().map(|(text, cost)| Member::parse(text).map(|member| (member, *cost)).ok_or(*text));
        let mut costs = members.collect::<Result<Vec<_>, &'t str>>()?;
        costs.sort_by_key(|(member, _)| matches!(member, Member::Class(_)));
        Ok(Self(costs))
    }

    /// The cost of a request whose answer has this status; `None`: that is not said.
    pub fn of(&self, status: u16) -> Option<u64> {
        self.0.iter().find(|(member, _)| member.contains(status)).map(|(_, cost)| *cost)
    }
}

impl fmt::Display for StatusCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (member, cost)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{member} = {cost}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_statuses_and_classes_are_told_apart() {
        let set = StatusSet::parse(&["401", "5xx"]).unwrap();
        assert_eq!(set.to_string(), "401, 5xx");
        let met: Vec<u16> = (100..=600).filter(|status| set.contains(*status)).collect();
        assert_eq!(met, std::iter::once(401).chain(500..600).collect::<Vec<_>>());
    }

    fn contents(texts: &[&str]) -> Vec<u16> {
        let set = StatusSet::parse(texts).unwrap();
        (100..=600).filter(|status| set.contains(*status)).collect()
    }

    #[test]
    fn statuses_are_taken_out_of_those_that_are_named_whatever_the_order() {
        let expected: Vec<u16> = (400..422).chain(423..500).collect();
        assert_eq!(contents(&["4xx", "!422"]), expected);
        assert_eq!(contents(&["!422", "4xx"]), expected);
        assert_eq!(contents(&["4xx", "!422", "422"]), expected, "a status that is taken out stays out");
        assert_eq!(contents(&["404", "5xx", "!5xx"]), [404]);
        assert_eq!(StatusSet::parse(&["!422", "4xx"]).unwrap().to_string(), "4xx, !422");
        assert_eq!(StatusSet::parse(&["!422", "4xx"]), StatusSet::parse(&["4xx", "!422"]));
    }

    #[test]
    fn a_list_that_only_takes_out_means_all_others_from_200_to_599() {
        assert_eq!(contents(&["!2xx", "!404"]), (300..404).chain(405..600).collect::<Vec<_>>());
        assert!(contents(&[]).is_empty());
    }

    #[test]
    fn a_list_that_takes_all_of_it_out_is_empty() {
        let is_empty = |texts: &[&str]| StatusSet::parse(texts).unwrap().is_empty();
        assert!(is_empty(&[]) && is_empty(&["404", "!4xx"]) && is_empty(&["!2xx", "!3xx", "!4xx", "!5xx"]));
        assert!(!is_empty(&["404"]) && !is_empty(&["!2xx", "!3xx", "!4xx"]) && !is_empty(&["4xx", "!404"]));
    }

    #[test]
    fn what_is_no_status_is_named() {
        for text in [
            "", "4", "40", "4x", "xxx", "101", "1xx", "600", "6xx", "4012", "4XX", "+40", "4 1", "4é", "é", "!",
            "!!401", "! 401", "!1xx", "401!",
        ] {
            assert_eq!(StatusSet::parse(&["401", text]), Err(text), "{text:?}");
        }
    }

    #[test]
    fn a_single_status_goes_before_its_class() {
        let costs = StatusCosts::parse(&[("5xx", 0), ("401", 5), ("503", 2), ("4xx", 1)]).unwrap();
        let of = [200, 401, 404, 500, 503].map(|status| costs.of(status));
        assert_eq!(of, [None, Some(5), Some(1), Some(0), Some(2)]);
        assert_eq!(costs.to_string(), "401 = 5, 503 = 2, 5xx = 0, 4xx = 1");
        for text in ["7xx", "!401", ""] {
            assert_eq!(StatusCosts::parse(&[("401", 5), (text, 1)]), Err(text));
        }
    }
}
