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
}
