//! The paths that a regex matches, as an automaton where that is small: what one regex leaves to the routes behind it.

use std::collections::{HashMap, HashSet, VecDeque};

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

/// Bytes of one automaton.
const MAX_AUTOMATON_BYTES: usize = 256 << 10;
/// Bytes that making one may take.
const MAX_WORKING_BYTES: usize = 1 << 20;
/// States, or pairs of states, that are looked at for one answer.
const MAX_STATES: usize = 20_000;
/// A character of a normalised path, but for the slash.
const CHARACTER: &str = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})";

/// The paths that a pattern matches as a whole.
pub(super) struct Language(dense::DFA<Vec<u32>>);

impl Language {
    /// Of an expression; `None` where the automaton is large.
    pub(super) fn of(expression: &str) -> Option<Self> {
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .accelerate(false)
            .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
            .determinize_size_limit(Some(MAX_WORKING_BYTES));
        dense::Builder::new().configure(config).build(expression).ok().map(Self)
    }

    /// Of the prefix `prefix` of a route: the normalised paths that it matches. Not the `*` of OPTIONS.
    pub(super) fn below(prefix: &str) -> Option<Self> {
        let prefix = prefix.trim_end_matches('/');
        let first = if prefix.is_empty() { "/" } else { "" };
        Self::of(&format!(r"\A(?:{}(?:(?:/{CHARACTER}+)+/?|/|{first}))\z", regex::escape(prefix)))
    }

    /// Whether it has every path of `other`; `None` where that takes too long to say.
    pub(super) fn covers(&self, other: &Self) -> Option<bool> {
        let begin = (other.begin()?, self.begin()?);
        let mut seen = HashSet::from([begin]);
        let mut open = vec![begin];
        while let Some((theirs, ours)) = open.pop() {
            if other.accepts(theirs) && !self.accepts(ours) {
                return Some(false);
            }
            for byte in path_bytes() {
                let Some(theirs) = other.step(theirs, byte) else { continue };
                let next = (theirs, self.0.next_state(ours, byte));
                if self.0.is_quit_state(next.1) || seen.len() > MAX_STATES {
                    return None;
                }
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        Some(true)
    }

    /// One of the shortest of its paths; `None` if it has none, or that takes too long to say.
    pub(super) fn shortest(&self) -> Option<String> {
        let begin = self.begin()?;
        let mut before: HashMap<StateID, Option<(StateID, u8)>> = HashMap::from([(begin, None)]);
        let mut open = VecDeque::from([begin]);
        while let Some(state) = open.pop_front() {
            if self.accepts(state) {
                let steps = std::iter::successors(*before.get(&state)?, |(from, _)| *before.get(from)?);
                let mut path: Vec<u8> = steps.map(|(_, byte)| byte).collect();
                path.reverse();
                return String::from_utf8(path).ok();
            }
            for byte in path_bytes() {
                let Some(next) = self.step(state, byte) else { continue };
                if before.len() > MAX_STATES {
                    return None;
                }
                before.entry(next).or_insert_with(|| {
                    open.push_back(next);
                    Some((state, byte))
                });
            }
        }
        None
    }

    fn begin(&self) -> Option<StateID> {
        self.0.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()
    }

    /// `None` where no path goes on so.
    fn step(&self, state: StateID, byte: u8) -> Option<StateID> {
        let next = self.0.next_state(state, byte);
        (!self.0.is_dead_state(next) && !self.0.is_quit_state(next)).then_some(next)
    }

    /// Whether a path that ends here matches.
    fn accepts(&self, state: StateID) -> bool {
        self.0.is_match_state(self.0.next_eoi_state(state))
    }
}

/// Every byte that a normalised path may have.
fn path_bytes() -> impl Iterator<Item = u8> {
    (0x21..0x7F).filter(|byte| !br##""#<>?[\]^`{|}"##.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(expression: &str) -> Language {
        Language::of(&format!(r"\A(?:{expression})\z")).unwrap()
    }

    #[test]
    fn says_whether_all_of_a_prefix_is_taken() {
        for (expression, prefix, covers) in [
            ("/.*", "/", true),
            (".*", "/api", true),
            ("/.+", "/", false),
            ("/api(/.*)?", "/api", true),
            ("/api.*", "/api", true),
            ("/api/.*", "/api", false),
            ("/api(/[a-z]*)?", "/api", false),
            ("/api(/[^/]+)*/?", "/api", true),
            ("/api(/[^/]+)*", "/api", false),
            ("/[a-z]+(/.*)?", "/api", true),
            ("/[a-z]+(/.*)?", "/", false),
            ("/a.c(/.*)?", "/a.c", true),
            ("/a\\.c(/.*)?", "/abc", false),
            ("(?i:/API)(/.*)?", "/api", true),
            ("/api|/api/|/api/.+", "/api", true),
        ] {
            assert_eq!(of(expression).covers(&Language::below(prefix).unwrap()), Some(covers), "{expression} {prefix}");
        }
    }

    #[test]
    fn says_whether_all_of_another_expression_is_taken() {
        for (one, other, covers) in [
            ("/v[0-9]+/.*", "/v1/.*", true),
            ("/v1/.*", "/v[0-9]+/.*", false),
            ("/a|/b", "/[ab]", true),
            ("/(a|b)*", "/(ab|ba)*", true),
            ("/(ab|ba)*", "/(a|b)*", false),
            ("/x{2,4}", "/xxx", true),
            ("/x{2,4}", "/x{5}", false),
        ] {
            assert_eq!(of(one).covers(&of(other)), Some(covers), "{one} {other}");
        }
    }

    #[test]
    fn one_of_the_shortest_paths_is_found() {
        for (expression, path) in
            [("/v1/x+", Some("/v1/x")), ("/b|/aaa", Some("/b")), ("/x{3}", Some("/xxx")), ("\u{e9}", None)]
        {
            assert_eq!(of(expression).shortest().as_deref(), path, "{expression}");
        }
    }

    #[test]
    fn a_large_one_is_not_made() {
        assert!(Language::of(r"\A(?:.*a.{20})\z").is_none());
    }
}
