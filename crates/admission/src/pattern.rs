//! The conditions of a route on a request.

use std::fmt;
use std::net::Ipv6Addr;

use super::descriptor::DescriptorPattern;
use super::host::{self, HostRoom};
use super::malformed::Malformed;
use super::path::{self, NormalPath};
use sluicegate_edit::{PathRegex, PathRegexError};

/// The pattern that a route matches. A request has to meet all of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutePattern {
    /// Any of these; empty: every host, and requests without one.
    pub hosts: Vec<HostPattern>,
    /// The path in the spelling that routes match.
    pub path: PathPattern,
    /// Any of these, in capitals as they are sent; empty: every method.
    pub methods: Vec<String>,
    /// Names (in any case) and values: the first field line of each name has exactly that value.
    pub headers: Vec<(String, String)>,
    /// Paths with an encoded slash, `%5C` or a backslash are let in. They stay `%2F` and `%5C`, are no boundary of a
    /// segment here, and make no `..`: what the upstream makes of them is its business.
    pub allow_encoded_slash: bool,
    /// The upstream gets the path as it came. Routes, keys and what is counted go by its one spelling all the same, so a path
    /// with dot segments, which servers would remove, is not let in.
    pub path_as_received: bool,
}

/// How a path is matched. The constructors bring the text into the spelling that is matched, the one spelling of paths
/// without the escapes of `!$&'()*+,;=:@`; a text given to a variant directly is brought there by
/// [`normalised`](RoutePattern::normalised), and matches nothing if it is no path.
#[derive(Clone, Debug, PartialEq)]
pub enum PathPattern {
    /// On whole segments: `/api` matches `/api`, `/api/` and `/api/x`, not `/apix`; `/api/` is the same; `/` matches
    /// all, also the `*` of OPTIONS.
    Prefix(String),
    /// The whole path.
    Exact(String),
    /// Paths that the expression matches as a whole.
    Regex(PathRegex),
    /// No request: descriptors that a rate limit service is asked about.
    Descriptor(DescriptorPattern),
}

/// `api.example.com`, `*.example.org` or `[::1]`, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPattern {
    /// Without the `*.`.
    text: String,
    wildcard: bool,
}

/// Why a text is no path pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum PathPatternError {
    /// No path is like this.
    Path(Malformed),
    /// The expression is wrong or too large.
    Regex(PathRegexError),
}

/// Why a text is no host pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// It is `*`, or empty.
    Everything,
    /// It has a port.
    Port,
    /// A `*` stands elsewhere than in front, before a dot.
    Wildcard,
    /// It has letters beyond ASCII.
    NotAscii,
    /// It is no host.
    Form,
}

impl RoutePattern {
    /// Why a request for this path is not let in, which matches this pattern or none.
    #[inline]
    pub(super) fn refuses(matched: Option<&Self>, path: &NormalPath<'_>) -> Option<Malformed> {
        if path.encoded_slash && !matched.is_some_and(|pattern| pattern.allow_encoded_slash) {
            return Some(Malformed::EncodedSlash);
        }
        path.unfit_as_received.filter(|_| matched.is_some_and(|pattern| pattern.path_as_received))
    }

    /// The path that the upstream gets, if it is not the one that came.
    pub(super) fn changed(&self, path: NormalPath<'_>) -> Option<Box<str>> {
        if self.path_as_received { None } else { path.into_changed() }
    }

    /// Brings names and paths that were written directly into the spelling that requests are compared in.
    #[must_use]
    pub fn normalised(mut self) -> Self {
        for (name, _) in &mut self.headers {
            name.make_ascii_lowercase();
        }
        let normal = match &self.path {
            PathPattern::Prefix(text) => PathPattern::prefix(text),
            PathPattern::Exact(text) => PathPattern::exact(text),
            PathPattern::Regex(_) | PathPattern::Descriptor(_) => return self,
        };
        if let Ok(normal) = normal {
            self.path = normal;
        }
        self
    }
}

impl PathPattern {
    /// All paths below `text` and itself.
    pub fn prefix(text: &str) -> Result<Self, PathPatternError> {
        let path = normal(text)?;
        let trimmed = path.trim_end_matches('/');
        Ok(Self::Prefix(if trimmed.is_empty() { path } else { trimmed.to_owned() }))
    }

    /// The path `text`.
    pub fn exact(text: &str) -> Result<Self, PathPatternError> {
        Ok(Self::Exact(if text == "*" { text.to_owned() } else { normal(text)? }))
    }

    /// Paths that the expression `text` matches, on each of which it is tried.
    pub fn regex(text: &str) -> Result<Self, PathPatternError> {
        PathRegex::new(text).map(Self::Regex).map_err(PathPatternError::Regex)
    }
}

impl HostPattern {
    /// `api.example.com`, or `*.example.org` for every name below `example.org`, at any depth but not itself, as nginx
    /// has it. Case and one trailing dot do not matter. IPv6 addresses with or without brackets.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() || text == "*" {
            return Err(HostError::Everything);
        }
        if !text.is_ascii() {
            return Err(HostError::NotAscii);
        }
        let (name, wildcard) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        if name.contains('*') {
            return Err(HostError::Wildcard);
        }
        let bracketed = name.parse::<Ipv6Addr>().ok().filter(|_| !wildcard).map(|addr| format!("[{addr}]"));
        let name = bracketed.as_deref().unwrap_or(name);
        let mut room = HostRoom::new();
        let host = host::normalise(Some(name), &mut room).ok().flatten().ok_or(HostError::Form)?;
        if name.rsplit(']').next().is_some_and(|rest| rest.contains(':')) {
            return Err(HostError::Port);
        }
        if wildcard && host.starts_with('[') {
            return Err(HostError::Form);
        }
        Ok(Self { text: host.to_owned(), wildcard })
    }

    /// Without the `*.`.
    pub(super) fn name(&self) -> &str {
        &self.text
    }

    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.text)
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(text) | Self::Exact(text) => f.write_str(text),
            Self::Regex(regex) => f.write_str(regex.as_str()),
            Self::Descriptor(pattern) => pattern.fmt(f),
        }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Everything => "to match every host, leave `hosts` out",
            Self::Port => "hosts are compared without port: remove it",
            Self::Wildcard => "a `*` stands only in front, for whole names: \"*.example.org\"",
            Self::NotAscii => "write the name as it is sent: its ASCII form begins with xn--",
            Self::Form => "no request names such a host: write \"api.example.com\", \"*.example.org\" or \"[::1]\"",
        })
    }
}

impl std::error::Error for HostError {}

impl fmt::Display for PathPatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(Malformed::PathForm) => f.write_str("a path begins with a slash: \"/api\""),
            Self::Path(Malformed::PathByte) => {
                f.write_str("a path has no query, fragment, space or letters beyond ASCII: escape them, like \"%20\"")
            }
            Self::Path(malformed) => malformed.fmt(f),
            Self::Regex(_) => f.write_str("the expression cannot be used"),
        }
    }
}

impl std::error::Error for PathPatternError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Path(malformed) => Some(malformed),
            Self::Regex(error) => Some(error),
        }
    }
}

fn normal(text: &str) -> Result<String, PathPatternError> {
    path::normalise(text).map(|path| path.matched().into_owned()).map_err(PathPatternError::Path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_parse_to_their_one_spelling() {
        for (text, printed, wildcard) in [
            ("API.example.com.", "api.example.com", false),
            ("*.Example.org", "*.example.org", true),
            ("*.com", "*.com", true),
            ("::1", "[::1]", false),
            ("[2001:DB8::0:1]", "[2001:db8::1]", false),
            ("192.0.2.1", "192.0.2.1", false),
        ] {
            let host = HostPattern::parse(text).unwrap();
            assert_eq!((host.to_string().as_str(), host.is_wildcard()), (printed, wildcard));
            assert_eq!(HostPattern::parse(printed), Ok(host));
        }
    }

    #[test]
    fn refuses_what_is_no_host_pattern() {
        for (text, error) in [
            ("", HostError::Everything),
            ("*", HostError::Everything),
            ("a.example:80", HostError::Port),
            ("[::1]:80", HostError::Port),
            ("*.a.example:80", HostError::Port),
            ("a.*.example", HostError::Wildcard),
            ("*a.example", HostError::Wildcard),
            ("*.*.example", HostError::Wildcard),
            ("\u{e9}.example", HostError::NotAscii),
            ("http://a", HostError::Form),
            ("a/b", HostError::Form),
            ("*.", HostError::Form),
            ("*..a", HostError::Form),
            ("*.[::1]", HostError::Form),
            ("*.::1", HostError::Form),
            (".a", HostError::Form),
        ] {
            assert_eq!(HostPattern::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn path_patterns_come_in_the_spelling_of_paths() {
        for (text, prefix, exact) in [
            ("/", "/", "/"),
            ("//", "/", "/"),
            ("/api", "/api", "/api"),
            ("/api/", "/api", "/api/"),
            ("/%61pi//x/./", "/api/x", "/api/x/"),
            ("/a%2fb", "/a%2Fb", "/a%2Fb"),
            ("/items%3abatch/%20", "/items:batch/%20", "/items:batch/%20"),
        ] {
            assert_eq!(PathPattern::prefix(text), Ok(PathPattern::Prefix(prefix.to_owned())));
            assert_eq!(PathPattern::exact(text), Ok(PathPattern::Exact(exact.to_owned())));
        }
        assert_eq!(PathPattern::exact("*"), Ok(PathPattern::Exact("*".to_owned())));
        for (text, malformed) in [
            ("api", Malformed::PathForm),
            ("", Malformed::PathForm),
            ("/a?b", Malformed::PathByte),
            ("/%zz", Malformed::PathEncoding),
        ] {
            assert_eq!(PathPattern::prefix(text), Err(PathPatternError::Path(malformed)));
            assert_eq!(PathPattern::exact(text), Err(PathPatternError::Path(malformed)));
        }
    }

    #[test]
    fn an_expression_matches_the_whole_path() {
        let Ok(PathPattern::Regex(regex)) = PathPattern::regex("/v[0-9]+|/(?i:beta)/.*") else { panic!("it is one") };
        for (path, matches) in
            [("/v1", true), ("/v12", true), ("/v1/x", false), ("/x/v1", false), ("/BETA/x", true), ("/x/beta/x", false)]
        {
            assert_eq!(regex.is_match(path), matches, "{path}");
        }
        assert_eq!(PathPattern::Regex(regex).to_string(), "/v[0-9]+|/(?i:beta)/.*");
    }

    #[test]
    fn refuses_expressions_that_are_wrong_or_too_large() {
        for text in ["(", "a)(b", "/x{1000}{1000}", "/(?<"] {
            assert!(matches!(PathPattern::regex(text), Err(PathPatternError::Regex(_))), "{text}");
        }
    }
}
