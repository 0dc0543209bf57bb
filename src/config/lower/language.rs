//! The paths that a regex matches, as an automaton where that is small: what one regex leaves to the routes behind it,
//! and whether it may be slow.

use std::collections::{HashMap, HashSet, VecDeque};

use regex_automata::dfa::{Automaton, StartKind, dense, onepass};
use regex_automata::hybrid::dfa::DFA;
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, Input, MatchKind};

/// Bytes of one automaton.
const MAX_AUTOMATON_BYTES: usize = 256 << 10;
/// Bytes that making one may take.
const MAX_WORKING_BYTES: usize = 1 << 20;
/// States, or pairs of states, that are looked at for one answer.
const MAX_STATES: usize = 20_000;
/// States of a lazy automaton that are made in less than a millisecond.
pub(super) const MAX_QUICK_STATES: usize = 1_000;
/// Bytes that the lazy automaton may take meanwhile.
const LAZY_BYTES: usize = 16 << 20;
/// The groups of a match are found by backtracking, with a bit for each state at each byte of the path. For more bits than
/// these `regex` takes another way, which is slower by a hundred times (regex-automata, `visited_capacity` of its
/// `BoundedBacktracker`: 256 KiB).
const MAX_VISITS: usize = 256 * 1024 * 8;
/// As many are visited in about a millisecond, 4 ns each as measured.
const MAX_QUICK_VISITS: usize = 500_000;
/// A long path.
const LONG: usize = 8 << 10;
/// Bytes of an automaton that finds groups in one pass: `regex` makes none that is larger.
const MAX_ONE_PASS_BYTES: usize = 1 << 20;
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

/// Whether paths can be made on which the expression is slow. It is matched by an automaton that is made as it goes on:
/// a few nanoseconds for a byte that leads to a state that is there, and microseconds for another. So a path of 8 KiB
/// takes milliseconds where there are thousands of states for it to lead to.
pub(super) fn may_be_slow(expression: &str) -> bool {
    let config = DFA::config().cache_capacity(LAZY_BYTES).skip_cache_capacity_check(true);
    let Ok(dfa) = DFA::builder().configure(config).build(expression) else { return true };
    let mut cache = dfa.create_cache();
    let Ok(begin) = dfa.start_state_forward(&mut cache, &Input::new("").anchored(Anchored::Yes)) else { return true };
    // One byte of each class stands for all.
    let classes = dfa.byte_classes();
    let mut bytes: Vec<u8> = path_bytes().collect();
    bytes.sort_by_key(|byte| classes.get(*byte));
    bytes.dedup_by_key(|byte| classes.get(*byte));
    let mut seen = HashSet::from([begin]);
    let mut open = vec![begin];
    while let Some(state) = open.pop() {
        for byte in &bytes {
            match dfa.next_state(&mut cache, state, *byte) {
                Ok(next) if next.is_dead() => {}
                Ok(next) if !next.is_quit() && cache.clear_count() == 0 => {
                    if seen.insert(next) {
                        open.push(next);
                    }
                }
                _ => return true,
            }
        }
        if seen.len() > MAX_QUICK_STATES {
            return true;
        }
    }
    false
}

/// How the groups of a match are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// Whether it may take more than a millisecond on a long path.
    pub(super) is_slow: bool,
    /// The longest path, in bytes, that they are found in by other means than the slowest.
    pub(super) longest: usize,
}

/// How the groups of an expression are found, where somebody asks for them. Its automaton knows none: it says whether a path
/// matches, and the groups are looked for in another way.
pub(super) fn groups(expression: &str) -> Groups {
    let Ok(nfa) = NFA::new(expression) else { return Groups { is_slow: true, longest: 0 } };
    let states = nfa.states().len().max(1);
    let config = onepass::Config::new().size_limit(Some(MAX_ONE_PASS_BYTES));
    if onepass::Builder::new().configure(config).build_from_nfa(nfa).is_ok() {
        return Groups { is_slow: false, longest: usize::MAX };
    }
    Groups { is_slow: states > MAX_QUICK_VISITS / LONG, longest: (MAX_VISITS / states).saturating_sub(1) }
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
    fn what_has_many_states_may_be_slow() {
        let slow = |expression: &str| may_be_slow(&format!(r"\A(?:{expression})\z"));
        for expression in [".*a.{12}", "(a|b)*a(a|b){12}", "/.*x[a-z0-9]{30}.*", "/[a-z]{2000}"] {
            assert!(slow(expression), "{expression}");
        }
        for expression in [
            "/.*",
            ".*",
            "/(.*)/(.*)",
            r"/v\d+/[\w-]{1,64}(/.*)?",
            "/login(;.*)?",
            r"/.*\.php",
            "/(?i:admin|wp-[a-z]+)(/.*)?",
        ] {
            assert!(!slow(expression), "{expression}");
        }
    }

    #[test]
    fn groups_are_slow_where_there_are_many_states_and_several_ways() {
        let of = |expression: &str| groups(&format!(r"\A(?:{expression})\z"));
        for expression in ["/users/([^/]+)/(.*)", "/([^/]+)/([^/]+)/([^/]+)/([^/]+)/(.*)", "/u/([0-9a-f]{200})"] {
            assert_eq!(of(expression), Groups { is_slow: false, longest: usize::MAX }, "{expression}");
        }
        for expression in [r"/(.*)/([^/]*)\.(png|jpg)", "/(?:[a-z]+/)*([a-z]+)", "/(?:(en|de)/)?(.*)"] {
            let Groups { is_slow, longest } = of(expression);
            assert!(!is_slow && (34_000..1_000_000).contains(&longest), "{expression}: {longest}");
        }
        for expression in [r"/x/((?:[a-z0-9-]{1,200}\.?)+)", "/x/(([a-z]{1,50}[0-9]?)+)z?"] {
            let Groups { is_slow, longest } = of(expression);
            assert!(is_slow && (4_096..20_000).contains(&longest), "{expression}: {longest}");
        }
        let Groups { is_slow, longest } = of("/((?:[a-z0-9-]{1,600}-?)+)");
        assert!(is_slow && (1_000..4_096).contains(&longest), "{longest}");
    }

    #[test]
    fn a_large_one_is_not_made() {
        assert!(Language::of(r"\A(?:.*a.{20})\z").is_none());
    }
}
