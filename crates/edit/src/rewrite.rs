use std::ops::Range;

use regex_automata::util::captures::Captures;

use super::path_regex::{Groups, PathRegex, PathRegexError};
use super::template::{Escape, Template, Values};
use super::variable::Variable;

/// Another path for the server than the one that the client asked for. Limits and routes go by the latter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// A text in the place of the route's prefix.
    Prefix {
        /// The prefix: whole segments, without a slash at its end; empty for `/`.
        from: Box<str>,
        /// Its replacement, without a slash at its end.
        to: Box<str>,
    },
    /// A text in the place of the whole path: a path, and a query, if it has a `?`.
    Whole(RewriteTarget),
}

/// Where a request is sent, by the groups of a regex over its path.
#[derive(Clone, Debug)]
pub struct RewriteTarget {
    regex: Option<PathRegex>,
    /// Where `to` names some: to find them takes longer than to match.
    groups: Option<Groups>,
    to: Template,
}

/// A path in two spellings, of which the second has some escapes of the first decoded, but none of `%`.
#[derive(Clone, Copy, Debug)]
pub struct Spellings<'p> {
    /// As the server would get it.
    pub sent: &'p str,
    /// As routes match it.
    pub matched: &'p str,
}

/// The outcome for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// It stays: the regex does not match it.
    Same,
    /// A new one was appended; it may have a query. Whether it is in its one spelling has to be seen to.
    Other,
}

impl Rewrite {
    /// Replaces the route's `prefix` by `to`, each a path with or without a slash at its end.
    pub fn prefix(prefix: &str, to: &str) -> Self {
        Self::Prefix { from: prefix.trim_end_matches('/').into(), to: to.trim_end_matches('/').into() }
    }

    /// Appends to `out` what becomes of `path`. The part of it that stays is as it would be sent.
    pub fn apply(&self, path: Spellings<'_>, values: &impl Values, out: &mut Vec<u8>) -> Rewritten {
        let (from, to) = match self {
            Self::Whole(target) => return target.render(path, values, out),
            Self::Prefix { from, to } => (from, to),
        };
        let rest = path.matched.strip_prefix(&**from).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if rest.is_none() {
            return Rewritten::Same;
        }
        let rest = path.sent_part(from.len()..path.matched.len());
        out.extend_from_slice(to.as_bytes());
        out.extend_from_slice(rest.as_bytes());
        if to.is_empty() && rest.is_empty() {
            out.push(b'/');
        }
        Rewritten::Other
    }
}

impl RewriteTarget {
    /// Sends to `to` what `regex` matches, whose groups `to` may name; without a regex, everything. An
    /// error where `to` names groups and the regex has too many states to find them in a long path.
    pub fn new(regex: Option<PathRegex>, to: Template) -> Result<Self, PathRegexError> {
        let names_groups = to.variables().any(|variable| matches!(variable, Variable::Capture(_)));
        let groups = match &regex {
            Some(regex) if names_groups => Some(regex.groups()?),
            _ => None,
        };
        Ok(Self { regex, groups, to })
    }

    /// The regex, if there is one.
    pub fn regex(&self) -> Option<&PathRegex> {
        self.regex.as_ref()
    }

    /// Where to.
    pub fn to(&self) -> &Template {
        &self.to
    }

    /// Appends to `out` where a request for `path` is sent.
    pub fn render(&self, path: Spellings<'_>, values: &impl Values, out: &mut Vec<u8>) -> Rewritten {
        let captures = match (&self.groups, &self.regex) {
            (Some(groups), _) => match groups.find(path.matched) {
                None => return Rewritten::Same,
                captures => captures,
            },
            (None, Some(regex)) if !regex.is_match(path.matched) => return Rewritten::Same,
            _ => None,
        };
        self.to.render(&WithGroups { values, path, captures: captures.as_ref() }, Escape::Target, out);
        Rewritten::Other
    }
}

impl<'p> Spellings<'p> {
    /// The part of the path as it would be sent that a part of the other spelling stands for.
    fn sent_part(self, part: Range<usize>) -> &'p str {
        if self.sent.len() == self.matched.len() {
            return self.sent.get(part).unwrap_or_default();
        }
        let [start, end] = [part.start, part.end].map(|end| {
            let mut at = 0;
            for byte in self.matched.bytes().take(end) {
                let is_escaped = byte != b'%' && self.sent.as_bytes().get(at) == Some(&b'%');
                at += if is_escaped { 3 } else { 1 };
            }
            at
        });
        self.sent.get(start..end).unwrap_or_default()
    }
}

impl PartialEq for RewriteTarget {
    fn eq(&self, other: &Self) -> bool {
        (&self.regex, &self.to) == (&other.regex, &other.to)
    }
}

impl Eq for RewriteTarget {}

/// Values, and the groups of a regex that has matched.
struct WithGroups<'v, 'c, V> {
    values: &'v V,
    path: Spellings<'c>,
    captures: Option<&'c Captures>,
}

impl<V: Values> Values for WithGroups<'_, '_, V> {
    fn write(&self, variable: &Variable, out: &mut Vec<u8>) {
        match variable {
            Variable::Capture(group) => {
                let group = self.captures.and_then(|captures| captures.get_group(*group));
                let text = group.map_or("", |group| self.path.sent_part(group.range()));
                out.extend_from_slice(text.as_bytes());
            }
            other => self.values.write(other, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;

    struct Host;

    impl Values for Host {
        fn write(&self, variable: &Variable, out: &mut Vec<u8>) {
            assert_eq!(*variable, Variable::Host);
            out.extend_from_slice(b"a.example");
        }
    }

    fn apply(rewrite: &Rewrite, path: &str) -> Option<String> {
        let mut out = Vec::new();
        let matched = path.replace("%3A", ":").replace("%3B", ";");
        let rewritten = rewrite.apply(Spellings { sent: path, matched: &matched }, &Host, &mut out);
        assert_eq!(rewritten == Rewritten::Same, out.is_empty());
        (rewritten == Rewritten::Other).then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_prefix_is_replaced_by_whole_segments() {
        for (from, to, path, result) in [
            ("/api", "/v2", "/api", Some("/v2")),
            ("/api", "/v2", "/api/x/", Some("/v2/x/")),
            ("/api/", "/v2/", "/api/x", Some("/v2/x")),
            ("/api", "/", "/api", Some("/")),
            ("/api", "/", "/api/", Some("/")),
            ("/api", "/", "/api/x", Some("/x")),
            ("/", "/v2", "/", Some("/v2/")),
            ("/", "/v2", "/x", Some("/v2/x")),
            ("/", "/", "/x", Some("/x")),
            ("/api", "/v2", "/apis", None),
            ("/api", "/v2", "/x/api", None),
            ("/a:b", "/v2", "/a:b/x%3Ay", Some("/v2/x%3Ay")),
            ("/a:b", "/v2", "/a%3Ab/%20%3B%2541:;", Some("/v2/%20%3B%2541:;")),
            ("/a:b", "/v2", "/a%3Ab", Some("/v2")),
            ("/a:b", "/v2", "/a%3Abx", None),
        ] {
            assert_eq!(apply(&Rewrite::prefix(from, to), path).as_deref(), result, "{from} {to} {path}");
        }
    }

    #[test]
    fn a_regex_has_groups_and_variables() {
        let regex = PathRegex::new("/users/(?<id>[^/]+)(/.*)?").unwrap();
        let to = Template::parse("/{host}/u{2}?id={id}", Scope::Target(Some(&regex))).unwrap();
        let rewrite = Rewrite::Whole(RewriteTarget::new(Some(regex), to).unwrap());
        for (path, result) in [
            ("/users/7", Some("/a.example/u?id=7")),
            ("/users/a%2Fb/x", Some("/a.example/u/x?id=a%2Fb")),
            ("/users/%3A7%3B%3A/%3Ax%20%3B", Some("/a.example/u/%3Ax%20%3B?id=%3A7%3B%3A")),
            ("/users/", None),
            ("/x/users/7", None),
        ] {
            assert_eq!(apply(&rewrite, path).as_deref(), result, "{path}");
        }
    }
}
