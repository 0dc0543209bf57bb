use std::fmt;
use std::ops::Range;

use super::variable::{NoVariable, Scope, Variable};

/// A text in which names of variables in braces are replaced by their values: `req-{request_id}`.
///
/// In double braces, `{{path}}`, a name stands for itself in single ones. Braces around what cannot be a name, as in JSON,
/// stand for themselves. A name is made of lower case letters, digits and `_`, and may have a parameter after a colon; what
/// merely looks like one, such as `{client-ip}`, is an error and not a text. In a page for refusals, which may hold styles
/// and scripts, that is so only of what could be one of ours. Where there are groups of a regex, their numbers and names are
/// variables too.
#[derive(Clone, Debug)]
pub struct Template {
    source: Box<str>,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(Box<[u8]>),
    Value(Variable),
}

/// The values of variables.
pub trait Values {
    /// Appends what `variable` stands for; nothing if there is no such thing.
    fn write(&self, variable: &Variable, out: &mut Vec<u8>);
}

/// The kind of place where a value goes, which it must not break out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// Anything goes, as in plain text.
    None,
    /// A field's value: no control characters but tab (RFC 9110, 5.5).
    Field,
    /// HTML, in text and in quoted attributes.
    Html,
    /// The inside of a JSON string (RFC 8259, 7).
    Json,
    /// A part of an URI (RFC 3986): what was a path, a query or an authority stays one, anything else is data.
    Target,
}

/// A fault of a template, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The braces and what is in them, by their bytes in the text.
    pub at: Range<usize>,
    /// The name in them.
    pub name: String,
    /// The fault.
    pub fault: TemplateFault,
}

/// Why a name in braces is no variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateFault {
    /// There is no such variable.
    Unknown,
    /// It cannot be known where the template is used.
    NotHere,
    /// The regex has no such group, or there is no regex.
    NoGroup,
    /// A parameter that no header or cookie can be called.
    Name,
}

/// Longest name in braces, with its parameter.
const MAX_NAME: usize = 80;

impl Template {
    /// Reads `source`, for a use where `scope` is known.
    pub fn parse(source: &str, scope: Scope<'_>) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut text = Vec::new();
        let mut rest = source;
        while let Some(brace) = rest.find('{') {
            let (before, from) = rest.split_at(brace);
            text.extend_from_slice(before.as_bytes());
            let at = source.len() - from.len();
            if let Some(name) = from.strip_prefix("{{").and_then(|inner| name_before(inner, "}}", scope)) {
                text.extend_from_slice(format!("{{{name}}}").as_bytes());
                rest = &from[name.len() + 4..];
            } else if let Some(name) = name_before(&from[1..], "}", scope) {
                let whole = name.len() + 2;
                let variable = Variable::parse(name, scope).map_err(|why| TemplateError {
                    at: at..at + whole,
                    name: name.to_owned(),
                    fault: why.into(),
                })?;
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text).into()));
                }
                pieces.push(Piece::Value(variable));
                rest = &from[whole..];
            } else {
                text.push(b'{');
                rest = &from[1..];
            }
        }
        text.extend_from_slice(rest.as_bytes());
        if !text.is_empty() {
            pieces.push(Piece::Text(text.into()));
        }
        Ok(Self { source: source.into(), pieces })
    }

    /// The text that it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Its text where there is nothing to fill in; `None` if there is.
    pub fn fixed(&self) -> Option<&[u8]> {
        match self.pieces.as_slice() {
            [] => Some(b""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The variables that it names.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Value(variable) => Some(variable),
        })
    }

    /// Appends it with its values, escaped as they have to be there. Once `out` is large enough, a value is only moved
    /// where something of it has to be escaped.
    pub fn render(&self, values: &impl Values, escape: Escape, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Value(variable) => {
                    let start = out.len();
                    values.write(variable, out);
                    escape.mend(variable, start, out);
                }
            }
        }
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Template {}

/// The name that stands before `end`, if there is what can be one, or what is surely meant to be: in a value everything
/// that looks like a name, in a page, which may be full of braces, only what looks like ours.
fn name_before<'t>(text: &'t str, end: &str, scope: Scope<'_>) -> Option<&'t str> {
    let length = text.bytes().take(MAX_NAME + 1).position(|byte| byte == b'}')?;
    let (name, after) = text.split_at(length);
    let is_made_of =
        |text: &str, others: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte));
    let is_name = match (scope, name.split_once(':')) {
        _ if name.is_empty() => false,
        (Scope::Request | Scope::Response | Scope::Target(_), _) => is_made_of(name, b"_-:. "),
        (Scope::Refusal, Some((source, parameter))) => {
            matches!(source, "header" | "cookie") && is_made_of(parameter, b"_-.")
        }
        (Scope::Refusal, None) => {
            let word = name.to_ascii_lowercase().replace('-', "_");
            let is_word = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
            is_word && name.as_bytes()[0].is_ascii_lowercase() || Variable::names(scope).any(|known| known == word)
        }
    };
    (is_name && after.starts_with(end)).then_some(name)
}

impl Escape {
    /// Escapes what was appended to `out` from `start` on.
    fn mend(self, variable: &Variable, start: usize, out: &mut Vec<u8>) {
        let is_uri = matches!(
            variable,
            Variable::Path
                | Variable::Query
                | Variable::Uri
                | Variable::Capture(_)
                | Variable::Authority
                | Variable::Host
                | Variable::Scheme
        );
        let is_special = |byte: u8| match self {
            Self::None => false,
            Self::Field => byte < 0x20 && byte != b'\t' || byte == 0x7f,
            Self::Html => matches!(byte, b'&' | b'<' | b'>' | b'"' | b'\'' | b'`' | b'\\'),
            Self::Json => byte < 0x20 || matches!(byte, b'"' | b'\\'),
            Self::Target if is_uri => !(0x21..0x7f).contains(&byte),
            Self::Target => !(byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)),
        };
        let value = &out[start..];
        let is_plain = !value.iter().any(|byte| is_special(*byte));
        let is_text = matches!(self, Self::Json | Self::Html);
        if is_plain && (!is_text || str::from_utf8(value).is_ok()) {
            return;
        }
        let value = out.split_off(start);
        // What is no text of a client's bytes is replaced.
        let value = if is_text { String::from_utf8_lossy(&value).into_owned().into_bytes() } else { value };
        for byte in value {
            match (self, byte) {
                (_, byte) if !is_special(byte) => out.push(byte),
                (Self::Field | Self::None, _) => {}
                (Self::Html, byte) => out.extend_from_slice(html(byte)),
                (Self::Json, b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
                (Self::Json, byte) => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                (Self::Target, byte) => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            }
        }
    }
}

fn html(byte: u8) -> &'static [u8] {
    match byte {
        b'&' => b"&amp;",
        b'<' => b"&lt;",
        b'>' => b"&gt;",
        b'"' => b"&quot;",
        b'`' => b"&#96;",
        b'\\' => b"&#92;",
        _ => b"&#39;",
    }
}

impl From<NoVariable> for TemplateFault {
    fn from(why: NoVariable) -> Self {
        match why {
            NoVariable::Unknown => Self::Unknown,
            NoVariable::NotHere => Self::NotHere,
            NoVariable::NoGroup => Self::NoGroup,
            NoVariable::Name => Self::Name,
        }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, .. } = self;
        match self.fault {
            TemplateFault::Unknown => write!(f, "there is no variable {{{name}}}"),
            TemplateFault::NotHere => write!(f, "the variable {{{name}}} is not known here"),
            TemplateFault::NoGroup => write!(f, "there is no group {{{name}}}"),
            TemplateFault::Name => write!(f, "{{{name}}} names nothing after the colon"),
        }
    }
}

impl std::error::Error for TemplateError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::PathRegex;

    /// Every variable stands for its own name, but the path.
    struct Names(&'static [u8]);

    impl Values for Names {
        fn write(&self, variable: &Variable, out: &mut Vec<u8>) {
            match variable {
                Variable::Path | Variable::Header(_) => out.extend_from_slice(self.0),
                other => out.extend_from_slice(other.to_string().to_ascii_uppercase().as_bytes()),
            }
        }
    }

    fn render(source: &str, scope: Scope<'_>) -> String {
        let mut out = Vec::new();
        Template::parse(source, scope).unwrap().render(&Names(b"/p"), Escape::None, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_in_braces_are_replaced_and_other_braces_are_not() {
        for (source, text) in [
            ("", ""),
            ("plain", "plain"),
            ("{client_ip}", "CLIENT_IP"),
            ("a{method}b{path}c", "aMETHODb/pc"),
            ("{method}{method}", "METHODMETHOD"),
            ("{{method}}", "{method}"),
            ("{{{method}}}", "{{method}}"),
            ("{\"method\"}", "{\"method\"}"),
            ("{}", "{}"),
            ("{", "{"),
            ("}{", "}{"),
            ("{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1}}"),
            ("a{b;c}", "a{b;c}"),
            ("{header:X-Api-Key}", "/p"),
            ("{cookie:Sid}", "COOKIE:SID"),
            ("é{method}é", "éMETHODé"),
            ("{limit.per-Client_2.x.state}", "LIMIT.PER-CLIENT_2.X.STATE"),
        ] {
            assert_eq!(render(source, Scope::Request), text, "{source}");
        }
        for source in ["\\d{2}", "p{color:red}", "body{margin:0 1px}", "{margin:0}", "{Foo}", "{a-b}"] {
            assert_eq!(render(source, Scope::Refusal), source, "it is of a page's script or style");
        }
        assert_eq!(render("{header:a}{cookie:b}{limit}", Scope::Refusal), "/pCOOKIE:BLIMIT");
    }

    #[test]
    fn what_is_no_variable_is_told_with_its_place() {
        let regex = PathRegex::new("(a)(?<id>b)").unwrap();
        let target = Scope::Target(Some(&regex));
        for (source, scope, at, fault) in [
            ("x{clientip}", Scope::Request, 1..11, TemplateFault::Unknown),
            ("{status}", Scope::Request, 0..8, TemplateFault::NotHere),
            ("{retry_after}", Scope::Response, 0..13, TemplateFault::NotHere),
            ("{server}", Scope::Refusal, 0..8, TemplateFault::NotHere),
            ("{status}", target, 0..8, TemplateFault::NotHere),
            ("{1}", Scope::Request, 0..3, TemplateFault::NoGroup),
            ("{1}", Scope::Target(None), 0..3, TemplateFault::NoGroup),
            ("{1}{3}", target, 3..6, TemplateFault::NoGroup),
            ("{0}", target, 0..3, TemplateFault::NoGroup),
            ("{name}", target, 0..6, TemplateFault::Unknown),
            ("{client-ip}", Scope::Request, 0..11, TemplateFault::Unknown),
            ("{Host}", Scope::Response, 0..6, TemplateFault::Unknown),
            ("{ method }", Scope::Request, 0..10, TemplateFault::Unknown),
            ("{Client-IP}", Scope::Refusal, 0..11, TemplateFault::Unknown),
            ("{header:a b}", Scope::Request, 0..12, TemplateFault::Name),
            ("{header:}", Scope::Request, 0..9, TemplateFault::Name),
            ("{jwt:sub}", Scope::Request, 0..9, TemplateFault::Unknown),
            ("{limit.a.stat}", Scope::Request, 0..14, TemplateFault::Unknown),
            ("{limit..state}", Scope::Request, 0..14, TemplateFault::Unknown),
            ("{limit.a.state}", target, 0..15, TemplateFault::NotHere),
            ("ü{{ok}}{no}", Scope::Request, 8..12, TemplateFault::Unknown),
        ] {
            let error = Template::parse(source, scope).unwrap_err();
            assert_eq!((error.at, error.fault), (at, fault), "{source}");
        }
    }

    #[test]
    fn groups_go_by_number_and_name() {
        let regex = PathRegex::new("(a)(?<id>b)").unwrap();
        assert_eq!(render("/{2}/{id}/{1}", Scope::Target(Some(&regex))), "/2/2/1");
    }

    #[test]
    fn values_are_escaped_for_their_place() {
        let all = b"a/b?c d\"<>&'\\\x01\xff%";
        for (escape, path, header) in [
            (Escape::Field, "a/b?c d\"<>&'\\\u{fffd}%", "a/b?c d\"<>&'\\\u{fffd}%"),
            (
                Escape::Html,
                "a/b?c d&quot;&lt;&gt;&amp;&#39;&#92;\x01\u{fffd}%",
                "a/b?c d&quot;&lt;&gt;&amp;&#39;&#92;\x01\u{fffd}%",
            ),
            (Escape::Json, "a/b?c d\\\"<>&'\\\\\\u0001\u{fffd}%", "a/b?c d\\\"<>&'\\\\\\u0001\u{fffd}%"),
            (Escape::Target, "a/b?c%20d\"<>&'\\%01%FF%", "a%2Fb%3Fc%20d%22%3C%3E%26%27%5C%01%FF%25"),
        ] {
            for (source, expected) in [("{path}", path), ("{header:x}", header)] {
                let mut out = b"<".to_vec();
                Template::parse(source, Scope::Request).unwrap().render(&Names(all), escape, &mut out);
                let text = String::from_utf8_lossy(&out).into_owned();
                assert_eq!(text, format!("<{expected}"), "{escape:?} {source}: the text itself is not escaped");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_template_or_has_an_error_within_it(source in "[a-z{}:0-9é \"]{0,24}") {
            match Template::parse(&source, Scope::Request) {
                Ok(template) => prop_assert_eq!(template.source(), &source),
                Err(error) => prop_assert_eq!(&source[error.at.start + 1..error.at.end - 1], error.name),
            }
        }

        #[test]
        fn doubled_braces_undo_themselves(words in proptest::collection::vec("[a-z]{1,6}", 0..6)) {
            let source: String = words.iter().map(|word| ["-{{", word, "}}"].concat()).collect();
            let plain: String = words.iter().map(|word| ["-{", word, "}"].concat()).collect();
            prop_assert_eq!(render(&source, Scope::Request), plain);
        }
    }
}
