//! A regex over a whole path. Its cost is settled when the file is read: a path that a client makes long or odd takes
//! time in proportion to its bytes, and few nanoseconds for each.
//!
//! It is matched by an automaton that is made in full beforehand: one step for each byte, whatever the regex. Without one,
//! a step goes over all states of the expression, so that a bound on the expression's own size would have to be tiny.
//! Measured in the worst case that was found, for a path of 8 KiB and of 64 KiB:
//!
//! | bound | 8 KiB | 64 KiB | what it leaves out |
//! |---|---|---|---|
//! | expression of 16 KiB, no automaton | 12 ms | 95 ms | `(word1\|…\|word200)` (79 KiB), `\w+` (50 KiB) |
//! | expression of 128 KiB, no automaton | 90 ms | 910 ms | the same with `(?i)` (138 KiB) |
//! | expression of 1 MiB, no automaton | 430 ms | 3,500 ms | |
//! | automaton of 256 KiB | 0.03 ms | 0.25 ms | `(word1\|…\|word200)` (286 KiB), with `(?i)` and digits (585 KiB) |
//! | **automaton of 1 MiB** | **0.04 ms** | **0.3 ms** | `/.*a.{14}`, `(?i)/.*(word1\|…\|word200)` with digits |
//!
//! The expressions of the documentation need 0.2 KiB to 2 KiB, `/\w+` 0.5 KiB, `'/v\d+/[\w-]{1,64}(/.*)?'` 10 KiB. Paths
//! are ASCII, so that `\w`, `\d` and `(?i)` need no more than that.
//!
//! An automaton knows no groups. Where these are asked for, an expression in which each byte leaves one way to go on is
//! read in one pass; any other goes over its states, of which it may have [`MAX_STATES`]: at worst 1.4 ms for 8 KiB and
//! 28 ms for 64 KiB, which a byte of any short request costs too; `'/(.*)/([^/]*)\.(png|jpg)'` 0.05 ms and 0.4 ms.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use regex_automata::dfa::{Automaton, StartKind, dense, onepass};
use regex_automata::meta;
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::captures::{Captures, GroupInfo};
use regex_automata::util::primitives::PatternID;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

/// Bytes of an automaton, and of what making it takes.
const MAX_BYTES: usize = 1 << 20;
/// States of an expression whose groups are asked for and that has several ways to go on.
const MAX_STATES: usize = 64;

/// An expression that a path matches as a whole, from first to last character: a part of a path that looks like another
/// path must not match.
#[derive(Clone)]
pub struct PathRegex {
    text: Arc<str>,
    automaton: Arc<dense::DFA<Vec<u32>>>,
    names: GroupInfo,
}

/// Finds the groups of an expression.
#[derive(Clone, Debug)]
pub struct Groups(meta::Regex);

/// Why a text is no expression for paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRegexError {
    /// It is none at all, for that reason.
    Syntax(String),
    /// Its automaton is too large.
    TooLarge,
    /// It has so many states, which are too many to find its groups in a long path.
    ManyStates(usize),
}

impl PathRegex {
    /// The expression `text`; `\w`, `\d` and the like are ASCII.
    pub fn new(text: &str) -> Result<Self, PathRegexError> {
        // By itself first: "a)(b" would close the group that is put around it.
        syntax::parse_with(text, &ascii()).map_err(|error| PathRegexError::syntax(&error))?;
        let nfa = nfa(text)?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .dfa_size_limit(Some(MAX_BYTES))
            .determinize_size_limit(Some(MAX_BYTES));
        let automaton = match dense::Builder::new().configure(config).build_from_nfa(&nfa) {
            Ok(automaton) => Arc::new(automaton),
            Err(error) if error.is_size_limit_exceeded() => return Err(PathRegexError::TooLarge),
            Err(error) => return Err(PathRegexError::syntax(&error)),
        };
        Ok(Self { text: text.into(), automaton, names: nfa.group_info().clone() })
    }

    /// Whether the whole path matches.
    #[inline]
    pub fn is_match(&self, path: &str) -> bool {
        let input = Input::new(path).anchored(Anchored::Yes);
        // An automaton of ASCII gives up on no byte.
        self.automaton.try_search_fwd(&input).is_ok_and(|end| end.is_some())
    }

    /// As it stands in the file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The bytes of its automaton.
    pub fn bytes(&self) -> usize {
        self.automaton.memory_usage()
    }

    /// How many groups it has.
    pub fn group_count(&self) -> usize {
        self.names.group_len(PatternID::ZERO).saturating_sub(1)
    }

    /// The number of a group: by its number or its name.
    pub(super) fn group(&self, name: &str) -> Option<usize> {
        let by_number = name.parse().ok().filter(|number| (1..=self.group_count()).contains(number));
        by_number.or_else(|| self.names.to_index(PatternID::ZERO, name))
    }

    /// Its groups.
    pub(super) fn groups(&self) -> Result<Groups, PathRegexError> {
        let nfa = nfa(&self.text)?;
        let states = nfa.states().len();
        let one_pass = onepass::Config::new().size_limit(Some(MAX_BYTES));
        if states > MAX_STATES && onepass::Builder::new().configure(one_pass).build_from_nfa(nfa).is_err() {
            return Err(PathRegexError::ManyStates(states));
        }
        let config = meta::Config::new().hybrid(false).dfa(false).onepass_size_limit(Some(MAX_BYTES));
        let built = meta::Builder::new().configure(config).syntax(ascii()).build(&whole(&self.text));
        built.map(Groups).map_err(|error| PathRegexError::syntax(&error))
    }
}

impl Groups {
    /// Those of a path that matches.
    pub(super) fn find(&self, path: &str) -> Option<Captures> {
        let mut groups = self.0.create_captures();
        self.0.search_captures(&Input::new(path), &mut groups);
        groups.is_match().then_some(groups)
    }
}

fn ascii() -> syntax::Config {
    syntax::Config::new().unicode(false).utf8(false)
}

fn whole(text: &str) -> String {
    format!(r"\A(?:{text})\z")
}

fn nfa(text: &str) -> Result<NFA, PathRegexError> {
    let config = NFA::config().utf8(false).nfa_size_limit(Some(MAX_BYTES));
    NFA::compiler().configure(config).syntax(ascii()).build(&whole(text)).map_err(|error| match error.size_limit() {
        Some(_) => PathRegexError::TooLarge,
        None => PathRegexError::syntax(&error),
    })
}

impl PathRegexError {
    fn syntax(error: &dyn Error) -> Self {
        let mut cause = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        // The parser draws the error over several lines; the last one says what it is.
        let drawn = cause.to_string();
        Self::Syntax(drawn.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned())
    }
}

impl PartialEq for PathRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PathRegex {}

impl fmt::Debug for PathRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathRegex").field(&self.text).finish()
    }
}

impl fmt::Display for PathRegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(reason) => f.write_str(reason),
            Self::TooLarge => write!(f, "its automaton takes more than {} MiB", MAX_BYTES >> 20),
            Self::ManyStates(states) => write!(f, "it has {states} states and may have {MAX_STATES}"),
        }
    }
}

impl Error for PathRegexError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of letters, digits and dashes, none of which begins another.
    fn words(count: usize) -> String {
        let word =
            |number: usize| format!("{}{number:03}-{}", ["login", "wp", "xmlrpc", "a_b"][number % 4], number * 7919);
        (0..count).map(word).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn matches_whole_paths() {
        let regex = PathRegex::new("/v[0-9]+|/(?i:beta)/.*").unwrap();
        for (path, matches) in
            [("/v1", true), ("/v12", true), ("/v1/x", false), ("/x/v1", false), ("/BETA/x", true), ("/x/beta/x", false)]
        {
            assert_eq!(regex.is_match(path), matches, "{path}");
        }
        assert_eq!(regex.as_str(), "/v[0-9]+|/(?i:beta)/.*");
        for (text, path, matches) in [
            (r"/\w+", "/a_9", true),
            (r"/\w+", "/a-9", false),
            (r"/a\b.*", "/a/b", true),
            (r"/a\b.*", "/ab", false),
            ("/a|/ab", "/ab", true),
            ("/a*?", "/aaa", true),
            ("^/a$", "/a", true),
            ("(?i)/k", "/K", true),
            ("/a.c", "/a/c", true),
        ] {
            assert_eq!(PathRegex::new(text).unwrap().is_match(path), matches, "{text} {path}");
        }
    }

    #[test]
    fn expressions_that_people_write_are_small_enough() {
        let words = words(200);
        let long = [
            format!("/({words})(/.*)?"),
            format!("(?i)/({words})(/.*)?"),
            format!("/.*({words}).*"),
            format!("/{}/.*", words.replace('|', "/.*|/")),
        ];
        let plain = [
            "/users/([0-9]+)(/.*)?",
            "/login(;.*)?",
            "/v[0-9]+/.*",
            "/u/([0-9]+)",
            ".*",
            r"/\w+",
            r"/(\w+)/(\w+)/(\w+)",
            r"(?i)/\w+/\w+",
            r"/v\d+/[\w-]{1,64}(/.*)?",
            r"/blog/\d{4}/\d{2}/\d{2}/[\w-]+\.html?",
            r"(?i).*\.(php|aspx?|jsp|cgi|env|git|svn|zip|tar|gz|7z|log|ini|ya?ml)(/.*)?",
            "/.*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}.*",
            "/(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?[.])+[a-z]{2,}/.*",
            "/[a-z]{2000}",
        ];
        for text in long.iter().map(String::as_str).chain(plain) {
            assert!(PathRegex::new(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn others_are_refused_with_a_reason() {
        // Too large by itself, and before that by the making of it.
        let words = format!("/({})/.*", words(600));
        for text in [&*words, "/x{1000}{1000}", "/.*a.{20}", "/.*x[a-z0-9]{30}.*", "/(?:a?){5000}"] {
            assert_eq!(PathRegex::new(text), Err(PathRegexError::TooLarge), "{text}");
        }
        for (text, reason) in [
            ("(", "unclosed group"),
            ("a)(b", "unopened group"),
            ("/[a", "unclosed character class"),
            (r"/\pL", "Unicode not allowed here"),
            ("(?x)/a # b", "unclosed group"),
        ] {
            assert_eq!(PathRegex::new(text), Err(PathRegexError::Syntax(reason.to_owned())), "{text}");
        }
    }

    /// A byte of a path is one step of the automaton, so this is all that a match can cost.
    #[test]
    fn an_automaton_takes_no_more_than_its_bound() {
        for counted in 0..20 {
            let regex = PathRegex::new(&format!("/.*a.{{{counted}}}"));
            assert_eq!(regex.is_ok(), counted <= 13, "{counted}");
            assert!(regex.is_ok_and(|regex| regex.automaton.memory_usage() <= MAX_BYTES) || counted > 13);
        }
    }

    #[test]
    fn groups_are_those_of_the_leftmost_way_that_the_whole_path_matches() {
        for (text, path, groups) in [
            ("/users/([^/]+)/(.*)", "/users/7/a/b", [Some("7"), Some("a/b")]),
            (r"/(.*)/([^/]*)\.png", "/a/b/c.png", [Some("a/b"), Some("c")]),
            ("/(?:(en|de)/)?(.*)", "/de/x", [Some("de"), Some("x")]),
            ("/(?:(en|de)/)?(.*)", "/dex", [None, Some("dex")]),
            ("/(a|ab)(c|bcd)", "/abcd", [Some("a"), Some("bcd")]),
            ("/(a*?)(a*)", "/aaa", [Some(""), Some("aaa")]),
        ] {
            let found = PathRegex::new(text).unwrap().groups().unwrap().find(path).unwrap();
            let found = [1, 2].map(|group| found.get_group(group).map(|span| &path[span.range()]));
            assert_eq!(found, groups, "{text} {path}");
        }
        assert!(PathRegex::new("/(a)").unwrap().groups().unwrap().find("/ab").is_none());
    }

    #[test]
    fn groups_go_over_few_states_or_are_found_in_one_pass() {
        let finds = |text: &str| PathRegex::new(text).unwrap().groups().is_ok();
        for text in [
            "/users/([^/]+)/(.*)",
            "/u/([0-9a-f]{200})",
            r"/(.*)/([^/]*)\.(png|jpg)",
            "/(?:[a-z]+/)*([a-z]+)",
            r"/(.*)\.(php|aspx?|jsp|cgi|bak|old|sql|env|git)",
            &format!("/({})/(.*)", words(200)),
        ] {
            assert!(finds(text), "{text}");
        }
        let regex = PathRegex::new(r"/x/((?:[a-z0-9-]{1,200}\.?)+)").unwrap();
        assert_eq!(regex.groups().unwrap_err(), PathRegexError::ManyStates(412));
        // Of this there are as many states as letters, and some.
        let repeated = |letters: usize| format!("/(.*){}", "a".repeat(letters));
        let states = |letters: usize| nfa(&repeated(letters)).unwrap().states().len();
        let most = (1..MAX_STATES).rev().find(|letters| states(*letters) <= MAX_STATES).unwrap();
        assert_eq!(states(most), MAX_STATES);
        assert!(finds(&repeated(most)) && !finds(&repeated(most + 1)));
    }
}
