use std::fmt;

use super::believed::{is_of_a_proxy, passes_for};
use super::body::BodyField;
use super::jwt_claim::JwtClaim;
use sluicegate_http1::Known;
use sluicegate_json::{JsonPointer, PointerError};

/// The most parts that a key may have.
pub const MAX_KEY_PARTS: usize = 4;

/// Sources without a name, as they are written.
const WORDS: [(&str, KeySource); 9] = [
    ("client-ip", KeySource::ClientIp),
    ("host", KeySource::Host),
    ("method", KeySource::Method),
    ("path", KeySource::Path),
    ("route", KeySource::Route),
    ("basic:user", KeySource::BasicUser),
    ("tls:subject", KeySource::TlsSubject),
    ("tls:fingerprint", KeySource::TlsFingerprint),
    ("global", KeySource::Global),
];
/// Sources with a name.
const PREFIXES: [&str; 8] =
    ["header:", "cookie:", "query:", "json:", "form:", "jwt:", "jwt-unverified:", "descriptor:"];
/// Fields that only a trusted peer's word makes true: what they say is in `client-ip`.
const FORWARDING: [&str; 3] = ["x-forwarded-for", "forwarded", "x-real-ip"];

/// The key by which requests are counted together, or stick together: one to [`MAX_KEY_PARTS`] parts, none twice.
///
/// - `client-ip`: the client's address, of IPv6 its first `ipv6_prefix` bits.
/// - `header:NAME`: the value of the field of that name, without blanks around it. Of `authorization` and
///   `proxy-authorization` the case of the scheme and the blanks after it mean nothing.
/// - `cookie:NAME`: the cookie of that name, whatever the `Cookie` line, without quotes.
/// - `query:NAME`: the parameter of that name.
/// - `host`, `path`: in their one spelling. `method`, `route`: as they are.
/// - `basic:user`: the user of `Authorization: Basic` (RFC 7617).
/// - `tls:subject`, `tls:fingerprint`: of the certificate that the client has shown in its handshake and that was
///   verified: its subject (RFC 4514) such as `CN=billing,O=Example`, its SHA-256 in lower case hex. A subject of more
///   than 1024 bytes is an absent one.
/// - `json:POINTER`, `form:NAME`: a field of the body.
/// - `jwt:CLAIM`: the claim of the bearer token of `Authorization`, whose signature is verified; `jwt-unverified:CLAIM`: the
///   same of one of which nothing is verified. A token that is refused is unusable.
/// - `descriptor:NAME`: the entry of that name of a descriptor, as Envoy's rate limit service is asked about it. Of
///   `remote_address` an address is the client's, and counts as `client-ip` does.
/// - `global`: one key for all.
///
/// Cookies and parameters are percent-decoded, and `+`, a space and their escapes are one: servers disagree on these
/// spellings, so no spelling may have a count of its own. Of a value of any length every byte counts.
///
/// An empty value is an absent one. A value that is there but names nobody for sure is missing too, as unusable: a
/// field line, cookie or parameter that occurs again with another value (servers disagree on which one they take, so
/// a client that sends two could be counted by one and served by the other), and `Basic` credentials that cannot be
/// decoded or name no user. A value that occurs again unchanged is that value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyExpr(Vec<KeySource>);

/// One source of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeySource {
    ClientIp,
    /// Lower case.
    Header(Box<str>),
    Cookie(Box<str>),
    Query(Box<str>),
    Host,
    Method,
    Path,
    Route,
    BasicUser,
    TlsSubject,
    TlsFingerprint,
    Body(BodyField),
    Jwt(JwtClaim),
    Descriptor(Box<str>),
    Global,
}

words! {
    /// The fate of a request that lacks a part of a limit's key. There is no bucket for all who lack it.
    pub enum OnMissingKey {
        /// Its whole key is the client's address instead.
        ClientIp = "client-ip",
        /// The limit does not apply to it if the part is absent. If the part is there but unusable, its whole key is the
        /// client's address, as with "client-ip": else a client that garbles the part would be counted nowhere.
        Skip = "skip",
        /// It is refused.
        Refuse = "refuse",
    }
}

/// One part of a key in readable form, for dead letters. It may be a secret; its source says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// As in the configuration: `header:x-api-key`.
    pub source: String,
    /// The value that the request had there.
    pub value: String,
}

/// Why a text is no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// There is no part.
    Empty,
    /// There are more than [`MAX_KEY_PARTS`].
    TooMany(usize),
    /// A part is there twice.
    Duplicate(String),
    /// `jwt:` without the name of a claim, or with a pointer that is none.
    Claim(String),
    /// `tls:` with something that is not read of a client's certificate.
    Tls(String),
    /// No source at all; the nearest one, if one is near.
    Unknown(String, Option<&'static str>),
    /// `header:` and the like with a name that no such thing can have, or with none.
    Name(String),
    /// `json:` with something that is no JSON pointer.
    Pointer(String, PointerError),
    /// A field that anybody can write and that `client-ip` reads from those who are trusted.
    Forwarding(String),
}

impl KeyExpr {
    /// Parses the parts of a key, such as `["client-ip", "header:x-api-key"]`.
    pub fn parse(parts: &[&str]) -> Result<Self, KeyError> {
        if parts.is_empty() {
            return Err(KeyError::Empty);
        }
        if parts.len() > MAX_KEY_PARTS {
            return Err(KeyError::TooMany(parts.len()));
        }
        let mut parsed = Vec::with_capacity(parts.len());
        for text in parts {
            let part = KeySource::parse(text)?;
            if parsed.contains(&part) {
                return Err(KeyError::Duplicate(part.to_string()));
            }
            parsed.push(part);
        }
        Ok(Self(parsed))
    }

    /// Whether it is made of a certificate that the client shows.
    pub fn needs_client_certificate(&self) -> bool {
        self.0.iter().any(|part| matches!(part, KeySource::TlsSubject | KeySource::TlsFingerprint))
    }

    /// The first header of it that is in no request, as it ends at the gateway: it speaks of one connection, or stands
    /// with `_` for such a one or for one that a proxy in front writes.
    pub fn unseen_header(&self) -> Option<&str> {
        self.headers().find(|name| {
            let plain = name.replace('_', "-");
            let known = !matches!(Known::of(plain.as_bytes()), Known::Other | Known::Trailer);
            let is_alias = plain != **name && (known || is_of_a_proxy(plain.as_bytes()));
            Known::of(name.as_bytes()).is_hop_by_hop() || is_alias
        })
    }

    /// The first header of it that is believed from trusted proxies alone.
    pub fn header_of_a_proxy(&self) -> Option<&str> {
        self.headers().find(|name| is_of_a_proxy(name.as_bytes()))
    }

    /// Whether a header of it is this one, in lower case, or one that some servers take for it.
    pub fn has_header(&self, lower: &str) -> bool {
        self.headers().any(|name| passes_for(name.as_bytes(), lower.as_bytes()))
    }

    /// The headers that it is made of, in lower case.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            KeySource::Header(name) => Some(&**name),
            _ => None,
        })
    }

    /// Whether it is the client's address alone.
    pub fn is_client_ip(&self) -> bool {
        self.0 == [KeySource::ClientIp]
    }

    /// Whether each part stands in a field of its own in an access log. The others have their source before a colon.
    pub fn is_in_access_log(&self) -> bool {
        self.0.iter().all(|part| match part {
            KeySource::ClientIp
            | KeySource::Host
            | KeySource::Method
            | KeySource::Path
            | KeySource::Route
            | KeySource::Global => true,
            KeySource::Header(_)
            | KeySource::Cookie(_)
            | KeySource::Query(_)
            | KeySource::BasicUser
            | KeySource::TlsSubject
            | KeySource::TlsFingerprint
            | KeySource::Body(_)
            | KeySource::Jwt(_)
            | KeySource::Descriptor(_) => false,
        })
    }

    /// The fields of a request's body that it is made of.
    pub fn body_fields(&self) -> impl Iterator<Item = &BodyField> {
        self.0.iter().filter_map(|part| match part {
            KeySource::Body(field) => Some(field),
            _ => None,
        })
    }

    /// The claims of tokens that it is made of.
    pub fn jwt_claims(&self) -> impl Iterator<Item = &JwtClaim> {
        self.0.iter().filter_map(|part| match part {
            KeySource::Jwt(claim) => Some(claim),
            _ => None,
        })
    }

    /// The names of the entries of descriptors that it is made of.
    pub fn descriptor_entries(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            KeySource::Descriptor(name) => Some(&**name),
            _ => None,
        })
    }

    /// The first part of it that no descriptor has.
    pub fn part_of_a_request(&self) -> Option<String> {
        let is_of_a_request =
            |part: &&KeySource| !matches!(part, KeySource::Descriptor(_) | KeySource::Route | KeySource::Global);
        self.0.iter().find(is_of_a_request).map(ToString::to_string)
    }

    /// Whether it tells nobody apart by one of its parts.
    pub fn has_global(&self) -> bool {
        self.0.contains(&KeySource::Global)
    }

    /// The names of the headers, parameters and entries of descriptors that it is made of. A cookie has none of its own: it comes in one header with all
    /// others.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            KeySource::Header(name) | KeySource::Query(name) | KeySource::Descriptor(name) => Some(&**name),
            _ => None,
        })
    }

    pub(super) fn parts(&self) -> &[KeySource] {
        &self.0
    }
}

impl KeySource {
    fn parse(text: &str) -> Result<Self, KeyError> {
        if let Some((_, part)) = WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(part.clone());
        }
        if let Some(claim) = JwtClaim::parse(text) {
            return claim.map(Self::Jwt).map_err(|_| KeyError::Claim(text.to_owned()));
        }
        if text.starts_with("tls:") {
            return Err(KeyError::Tls(text.to_owned()));
        }
        if let Some(Err(error)) = text.strip_prefix("json:").map(JsonPointer::parse) {
            return Err(KeyError::Pointer(text.to_owned(), error));
        }
        let named = text.split_once(':').and_then(|(source, name)| match source {
            "header" => Some(Self::Header(name.to_ascii_lowercase().into())),
            "cookie" => Some(Self::Cookie(name.into())),
            "query" => Some(Self::Query(name.into())),
            "json" => Some(Self::Body(BodyField::Json(JsonPointer::parse(name).ok()?))),
            "form" => Some(Self::Body(BodyField::Form(name.into()))),
            "descriptor" => Some(Self::Descriptor(name.into())),
            _ => None,
        });
        let Some(part) = named else {
            return Err(KeyError::Unknown(text.to_owned(), nearest_source(text)));
        };
        match &part {
            Self::Header(name) if FORWARDING.contains(&name.replace('_', "-").as_str()) => {
                Err(KeyError::Forwarding(text.to_owned()))
            }
            Self::Header(name) | Self::Cookie(name) if !is_token(name) => Err(KeyError::Name(text.to_owned())),
            Self::Query(name) | Self::Body(BodyField::Form(name)) | Self::Descriptor(name) if name.is_empty() => {
                Err(KeyError::Name(text.to_owned()))
            }
            _ => Ok(part),
        }
    }
}

impl fmt::Display for KeyExpr {
    /// `client-ip + header:x-api-key`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(" + ")?;
            }
            part.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Body(field) => field.fmt(f),
            Self::Jwt(claim) => claim.fmt(f),
            Self::Descriptor(name) => write!(f, "descriptor:{name}"),
            word => f.write_str(WORDS.iter().find(|(_, part)| part == word).map_or("", |(word, _)| word)),
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a key has at least one part: write \"client-ip\", or \"global\" for one count"),
            Self::TooMany(given) => write!(f, "a key of {given} parts: at most {MAX_KEY_PARTS}"),
            Self::Duplicate(part) => write!(f, "{part:?} is in the key twice: remove one"),
            Self::Claim(part) => {
                write!(f, "{part:?} names no claim: write \"jwt:sub\", or \"jwt:/realm/id\" for one within another")
            }
            Self::Tls(part) => {
                write!(f, "{part:?} is no key: of a client's certificate use tls:subject or tls:fingerprint")
            }
            Self::Unknown(part, Some(near)) => write!(f, "{part:?} is no key: did you mean {near:?}?"),
            Self::Unknown(part, None) => write!(
                f,
                "{part:?} is no key: use client-ip, header:NAME, cookie:NAME, query:NAME, json:/POINTER, form:NAME, host, method, path, route, \
                 basic:user, tls:subject, tls:fingerprint, jwt:CLAIM, jwt-unverified:CLAIM or global"
            ),
            Self::Name(part) => write!(f, "{part:?} has no valid name after the colon: write \"header:x-api-key\""),
            Self::Pointer(part, error) => write!(f, "{part:?} is no key: {error}, as in \"json:/user/id\""),
            Self::Forwarding(part) => write!(
                f,
                "{part:?} is what anybody may claim: use \"client-ip\", which reads it from [client] trusted_proxies"
            ),
        }
    }
}

impl std::error::Error for KeyError {}

/// RFC 9110, 5.6.2.
pub(super) fn is_token(name: &str) -> bool {
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token_byte)
}

/// The source that `text` was meant to be, if it is within a third of its letters of one.
fn nearest_source(text: &str) -> Option<&'static str> {
    let source = text.split_inclusive(':').next().filter(|source| source.len() <= 16)?;
    let words = WORDS.iter().map(|(word, _)| *word).chain(PREFIXES);
    let near = words.map(|word| (edits(source, word).min(edits(text.get(..16).unwrap_or(text), word)), word));
    near.filter(|(edits, word)| *edits <= word.len() / 3).min().map(|(_, word)| word)
}

/// Letters to insert, remove or replace between `a` and `b` (Levenshtein, one row at a time), with `_` as `-`.
fn edits(a: &str, b: &str) -> usize {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, of_a) in a.bytes().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        for (cell, of_b) in row.iter_mut().zip(std::iter::once(None).chain(b.bytes().map(Some))) {
            let up = *cell;
            if let Some(of_b) = of_b {
                left = (diagonal + usize::from(fold(of_a) != fold(of_b))).min(up + 1).min(left + 1);
            }
            diagonal = up;
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_parse_and_print_the_same_text() {
        for (parts, printed) in [
            (&["client-ip"][..], "client-ip"),
            (&["client-ip", "header:X-Api-Key"], "client-ip + header:x-api-key"),
            (&["cookie:SID", "query:k", "host", "method"], "cookie:SID + query:k + host + method"),
            (&["path", "route", "basic:user", "global"], "path + route + basic:user + global"),
            (&["tls:subject", "tls:fingerprint"], "tls:subject + tls:fingerprint"),
            (&["query:a b+c"], "query:a b+c"),
            (&["jwt:sub", "jwt-unverified:/realm/id"], "jwt:sub + jwt-unverified:/realm/id"),
        ] {
            let key = KeyExpr::parse(parts).unwrap();
            assert_eq!(key.to_string(), printed);
            assert_eq!(KeyExpr::parse(&printed.split(" + ").collect::<Vec<_>>()), Ok(key));
        }
    }

    #[test]
    fn refuses_what_is_no_key() {
        let unknown = |text: &str, near| KeyError::Unknown(text.to_owned(), near);
        for (parts, error) in [
            (&[][..], KeyError::Empty),
            (&["host", "method", "path", "route", "global"], KeyError::TooMany(5)),
            (&["host", "host"], KeyError::Duplicate("host".into())),
            (&["header:A", "header:a"], KeyError::Duplicate("header:a".into())),
            (&["jwt:"], KeyError::Claim("jwt:".into())),
            (&["jwt:/a~2"], KeyError::Claim("jwt:/a~2".into())),
            (&["jwt-unverified:"], KeyError::Claim("jwt-unverified:".into())),
            (&["jwts:sub"], unknown("jwts:sub", Some("jwt:"))),
            (&["host", "tls:ja4"], KeyError::Tls("tls:ja4".into())),
            (&["tls:"], KeyError::Tls("tls:".into())),
            (&["tls:Subject"], KeyError::Tls("tls:Subject".into())),
            (&["client_ip"], unknown("client_ip", Some("client-ip"))),
            (&["clientip"], unknown("clientip", Some("client-ip"))),
            (&["hots"], unknown("hots", None)),
            (&["hosts"], unknown("hosts", Some("host"))),
            (&["Header:x"], unknown("Header:x", Some("header:"))),
            (&["heder:x-api-key"], unknown("heder:x-api-key", Some("header:"))),
            (&["basic:pass"], unknown("basic:pass", None)),
            (&["basic:usr"], unknown("basic:usr", Some("basic:user"))),
            (&["banana"], unknown("banana", None)),
            (&[""], unknown("", None)),
            (&["header:"], KeyError::Name("header:".into())),
            (&["header:x y"], KeyError::Name("header:x y".into())),
            (&["cookie:a=b"], KeyError::Name("cookie:a=b".into())),
            (&["query:"], KeyError::Name("query:".into())),
            (&["header:X-Forwarded-For"], KeyError::Forwarding("header:X-Forwarded-For".into())),
            (&["header:x_real_ip"], KeyError::Forwarding("header:x_real_ip".into())),
            (&["header:forwarded"], KeyError::Forwarding("header:forwarded".into())),
        ] {
            assert_eq!(KeyExpr::parse(parts), Err(error), "{parts:?}");
        }
    }

    #[test]
    fn an_error_names_the_remedy() {
        let text = |part: &str| KeyExpr::parse(&[part]).unwrap_err().to_string();
        assert_eq!(text("client_ip"), "\"client_ip\" is no key: did you mean \"client-ip\"?");
        assert!(text("jwt:").contains("names no claim: write \"jwt:sub\""));
        assert!(text("banana").contains("use client-ip, header:NAME"));
    }
}
