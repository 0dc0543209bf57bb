//! Sets of statuses.

use std::fmt;

/// Statuses of an answer: single ones and whole classes, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet(Vec<Member>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// One status.
    Status(u16),
    /// A hundred of them, by the first digit.
    Class(u16),
}

impl StatusSet {
    /// Of texts such as `401` and `5xx`; the first one that is neither, or is outside 200 to 599, is the error.
    pub fn parse<'t>(texts: &[&'t str]) -> Result<Self, &'t str> {
        let member = |text: &&'t str| {
            let (class, rest) = text.split_at_checked(1).ok_or(*text)?;
            let digit = class.parse().ok().filter(|digit| (2..=5).contains(digit)).ok_or(*text)?;
            match rest {
                "xx" => Ok(Member::Class(digit)),
                _ if rest.len() == 2 && rest.bytes().all(|byte| byte.is_ascii_digit()) => {
                    text.parse().map(Member::Status).map_err(|_| *text)
                }
                _ => Err(*text),
            }
        };
        texts.iter().map(member).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a status is one of them.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|member| match *member {
            Member::Status(one) => status == one,
            Member::Class(digit) => status / 100 == digit,
        })
    }
}

impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, member) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match member {
                Member::Status(status) => write!(f, "{comma}{status}")?,
                Member::Class(digit) => write!(f, "{comma}{digit}xx")?,
            }
        }
        Ok(())
    }
}

/// The costs of requests by the statuses of their answers. Single statuses go before classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCosts(Vec<(StatusSet, u64)>);

impl StatusCosts {
    /// One status or class, such as `401` and `5xx`.
    pub fn member(text: &str) -> Result<StatusSet, &str> {
        StatusSet::parse(&[text])
    }

    /// Of [members](Self::member) and their costs.
    pub fn new(mut costs: Vec<(StatusSet, u64)>) -> Self {
        costs.sort_by_key(|(set, _)| matches!(set.0[..], [Member::Class(_)]));
        Self(costs)
    }

    /// The cost of a request whose answer has this status; `None`: that is not said.
    pub fn of(&self, status: u16) -> Option<u64> {
        self.0.iter().find(|(set, _)| set.contains(status)).map(|(_, cost)| *cost)
    }
}

impl fmt::Display for StatusCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (set, cost)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{set} = {cost}")?;
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

    #[test]
    fn what_is_no_status_is_named() {
        for text in ["", "4", "40", "4x", "xxx", "101", "1xx", "600", "6xx", "4012", "4XX", "+40", "4 1", "4é", "é"] {
            assert_eq!(StatusSet::parse(&["401", text]), Err(text), "{text:?}");
        }
    }

    #[test]
    fn a_single_status_goes_before_its_class() {
        let member = |text, cost| (StatusCosts::member(text).unwrap(), cost);
        let costs = StatusCosts::new(vec![member("5xx", 0), member("401", 5), member("503", 2), member("4xx", 1)]);
        let of = [200, 401, 404, 500, 503].map(|status| costs.of(status));
        assert_eq!(of, [None, Some(5), Some(1), Some(0), Some(2)]);
        assert_eq!(costs.to_string(), "401 = 5, 503 = 2, 5xx = 0, 4xx = 1");
        assert_eq!(StatusCosts::member("7xx"), Err("7xx"));
    }
}
