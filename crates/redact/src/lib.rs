//! Finds secrets, which must not reach a disk, a screen or an answer, and puts marks in their place. All that a stranger or
//! the configuration says goes through here before it is written or shown: both logs, reports of mistakes, the command line.
//!
//! A secret becomes `[redacted:HMAC8]`: the first 8 hex digits of its HMAC-SHA-256 under a [`Secret`]. Equal secrets can be
//! matched with each other; none can be found by trying without the key.
//!
//! Secret are:
//! - the values of headers, query fields, path parameters and members of JSON whose name says so (`names`), and any header
//!   that begins with one of `SCHEMES`;
//! - a query value that is itself a URL or JSON with such a part, as a whole, percent-encoded or not;
//! - the same in any header that carries a URL (`Referer`, `X-Original-URL`), in its fragment, in path parameters and
//!   segments (`;jsessionid=…`, `/access_token=…`);
//! - user and password before the `@` of a URL or of an authority;
//! - parts of a key that come from such a header or query field, every cookie, and `basic:user`: many clients put an
//!   API key in the place of the user.
//!
//! When in doubt a value is redacted: a lost value costs a look elsewhere, a leaked one costs an account.
//!
//! The texts are strangers', so the work is bounded: a pass over a text takes time in proportion to its length, there are at
//! most `MAX_NESTING` + 2 of them, and a text gets at most `MAX_MARKS` marks. Callers cut texts first ([`Clip`]) and say
//! so: what a cut may have hidden ([`End::Cut`]) counts as secret.

mod clip;
mod names;
mod secret;
mod steering;
mod work;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use hmac::digest::generic_array::GenericArray;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

pub use clip::{Clip, ClipEnd};
use names::{Names, next_decoded};
pub use secret::{Secret, SecretError};
pub use steering::{ByNumber, is_terminal_control};

/// A header's value that begins with one of these and a blank is secret, whatever the name. Lower case.
const SCHEMES: [&str; 6] = ["aws4-hmac-sha256", "basic", "bearer", "dpop", "negotiate", "ntlm"];

/// How often a value is percent-decoded in search of a URL inside it.
const MAX_NESTING: usize = 3;

/// Marks in one text. The last one takes all that follows: marks cost more than other bytes.
const MAX_MARKS: usize = 16;

/// How a mark begins.
const MARK: &str = "[redacted:";

/// The names that an operator calls secret or open, beside the built-in ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactRules {
    /// Names of headers and query fields that are secret.
    pub secret: Vec<String>,
    /// Names that are not, whatever they sound like; those that are in both lists are secret.
    pub open: Vec<String>,
}

/// Replaces secrets; equal secrets get equal marks under an equal key.
#[derive(Clone, Debug)]
pub struct Redactor {
    mac: Hmac<Sha256>,
    names: Arc<Names>,
}

impl Redactor {
    /// With a random key.
    pub fn new(rules: &RedactRules) -> Self {
        Self::with_secret(&Secret::random(), rules)
    }

    /// With a key that lasts.
    pub fn with_secret(secret: &Secret, rules: &RedactRules) -> Self {
        Self::with_key(secret.bytes(), rules)
    }

    /// With a key of any length.
    fn with_key(key: &[u8], rules: &RedactRules) -> Self {
        // RFC 2104: a key longer than a block is hashed, a shorter one padded with zeros.
        let mut block = [0; 64];
        let hashed = Sha256::digest(key);
        let key = if key.len() > block.len() { hashed.as_slice() } else { key };
        block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        let mac = Mac::new(GenericArray::from_slice(&block));
        Self { mac, names: Arc::new(Names::new(&rules.secret, &rules.open)) }
    }

    /// The same key with other rules.
    pub fn with_rules(&self, rules: &RedactRules) -> Self {
        Self { mac: self.mac.clone(), names: Arc::new(Names::new(&rules.secret, &rules.open)) }
    }

    /// A header's value as it is written.
    pub fn header<'a>(&self, name: &str, value: &'a str, end: ClipEnd) -> Cow<'a, str> {
        if value.is_empty() {
            Cow::Borrowed(value)
        } else if self.names.is_secret(name.as_bytes()) || has_scheme(value) {
            Cow::Owned(self.mark(value.as_bytes()))
        } else {
            let mut secrets = SecretSpans::of(value, end);
            self.url(&mut secrets);
            self.written(secrets)
        }
    }

    /// A query as it is written (without its `?`).
    pub fn query<'a>(&self, query: &'a str, end: ClipEnd) -> Cow<'a, str> {
        let mut secrets = SecretSpans::of(query, end);
        self.fields(0..query.len(), &mut secrets);
        self.written(secrets)
    }

    /// A MAC under a key of its own for this purpose.
    pub fn mac_of(&self, purpose: &[u8]) -> Hmac<Sha256> {
        let key = self.mac.clone().chain_update(purpose).finalize().into_bytes();
        let mut block = GenericArray::default();
        block.as_mut_slice()[..key.len()].copy_from_slice(&key);
        Mac::new(&block)
    }

    /// Whether bytes that need not be text hold a secret.
    pub fn hides(&self, bytes: &[u8], end: ClipEnd) -> bool {
        self.is_secret_inside(bytes, end)
    }

    /// The mark of all of these bytes.
    pub fn whole(&self, bytes: &[u8]) -> String {
        self.mark(bytes)
    }

    /// A path as it is written.
    pub fn path<'a>(&self, path: &'a str, end: ClipEnd) -> Cow<'a, str> {
        let mut secrets = SecretSpans::of(path, end);
        userinfo(&mut secrets);
        self.segments(0..path.len(), &mut secrets);
        self.written(secrets)
    }

    /// A path with its query as it is written.
    pub fn target<'a>(&self, target: &'a str, end: ClipEnd) -> Cow<'a, str> {
        let at = target.find('?').unwrap_or(target.len());
        let mut secrets = SecretSpans::of(target, end);
        userinfo(&mut secrets);
        self.segments(0..at, &mut secrets);
        self.fields((at + 1).min(target.len())..target.len(), &mut secrets);
        self.written(secrets)
    }

    /// An authority as it is written.
    pub fn host<'a>(&self, host: &'a str, end: ClipEnd) -> Cow<'a, str> {
        match host.rsplit_once('@') {
            // The end of the user information may be behind the cut.
            _ if end == ClipEnd::Cut => Cow::Owned(self.mark(host.as_bytes())),
            Some((userinfo, host)) => Cow::Owned(format!("{}@{host}", self.mark(userinfo.as_bytes()))),
            None => Cow::Borrowed(host),
        }
    }

    /// A part of a key as it is written; `source` is a part of a key expression (`header:x-api-key`). Whether it
    /// is secret may have been said for the whole key.
    pub fn key_part<'a>(&self, source: &str, value: &'a str, end: ClipEnd, is_secret: Option<bool>) -> Cow<'a, str> {
        match source.split_once(':') {
            _ if value.is_empty() || is_secret == Some(false) => Cow::Borrowed(value),
            _ if is_secret == Some(true) => Cow::Owned(self.mark(value.as_bytes())),
            Some(("header" | "jwt" | "jwt-unverified", name)) => self.header(name, value, end),
            Some(("cookie" | "basic", _)) => Cow::Owned(self.mark(value.as_bytes())),
            Some(("query", name))
                if self.names.is_secret(name.as_bytes()) || self.is_secret_inside(value.as_bytes(), end) =>
            {
                Cow::Owned(self.mark(&decoded(value.as_bytes())))
            }
            // Its value is decoded.
            Some(("descriptor", name))
                if self.names.is_secret(name.as_bytes()) || self.is_secret_inside(value.as_bytes(), end) =>
            {
                Cow::Owned(self.mark(value.as_bytes()))
            }
            None if source == "path" => self.path(value, end),
            None if source == "host" => self.host(value, end),
            _ => Cow::Borrowed(value),
        }
    }

    /// Any text that may hold URLs: user information, the path, then everything from the first `?` or `#`.
    fn url(&self, secrets: &mut SecretSpans<'_>) {
        userinfo(secrets);
        let text = secrets.text;
        let path_end = text.find(['?', '#']).unwrap_or(text.len());
        if text.starts_with('/') || text.contains("://") {
            self.segments(0..path_end, secrets);
            self.fields((path_end + 1).min(text.len())..text.len(), secrets);
        } else if let Some(first) = self.first_segment(text.as_bytes(), secrets.end) {
            // It is no URL: a slash in it, as base64 has them, ends nothing, and nor does anything else.
            secrets.add(first..text.len());
        }
    }

    /// Where the first secret begins of a text that is cut at slashes, question marks and the like.
    fn first_segment(&self, text: &[u8], end: ClipEnd) -> Option<usize> {
        let mut from = 0;
        text.split(|byte| matches!(byte, b'/' | b'?' | b'&' | b'#')).find_map(|piece| {
            let begin = from;
            from += piece.len() + 1;
            let end = if begin + piece.len() == text.len() { end } else { ClipEnd::Whole };
            self.secret_of(piece, end).map(|at| begin + at)
        })
    }

    /// Each segment of a path.
    fn segments(&self, path: Range<usize>, secrets: &mut SecretSpans<'_>) {
        let text = secrets.text.as_bytes().get(path.clone()).unwrap_or_default();
        // A secret has a name before `=` or, in JSON, in quotes, or an escape hides it.
        if text.iter().any(|byte| matches!(byte, b'=' | b'%' | b'"')) {
            self.pieces(path, |byte| byte == b'/', secrets);
        }
    }

    fn fields(&self, fields: Range<usize>, secrets: &mut SecretSpans<'_>) {
        self.pieces(fields, |byte| matches!(byte, b'&' | b'#'), secrets);
    }

    /// Each `name=value` between separators.
    fn pieces(&self, within: Range<usize>, separates: impl Fn(u8) -> bool, secrets: &mut SecretSpans<'_>) {
        let text = secrets.text.as_bytes().get(within.clone()).unwrap_or_default();
        let mut from = within.start;
        for piece in text.split(|byte| separates(*byte)) {
            let to = from + piece.len();
            let end = if to == secrets.text.len() { secrets.end } else { ClipEnd::Whole };
            if let Some(secret_at) = self.secret_of(piece, end) {
                secrets.add(from + secret_at..to);
                if secrets.is_full() {
                    return;
                }
            }
            from = to + 1;
        }
    }

    /// Where the secret of one `name=value` begins. A value may hold further ones after `;`, `?` or `=`; from the first secret
    /// one on, all goes.
    fn secret_of(&self, piece: &[u8], end: ClipEnd) -> Option<usize> {
        self.first_secret(piece).or_else(|| {
            let is_secret = self.is_secret_inside(piece, end);
            is_secret.then(|| piece.iter().position(|byte| *byte == b'=').map_or(0, |at| at + 1))
        })
    }

    /// Where the value of the first secret name starts.
    fn first_secret(&self, text: &[u8]) -> Option<usize> {
        work::done(text.len());
        let mut start = 0;
        for (at, separator) in text.iter().enumerate() {
            if matches!(separator, b';' | b'?' | b'=') {
                let name = text.get(start..at).unwrap_or_default();
                start = at + 1;
                if *separator == b'=' && start < text.len() && self.names.is_secret(name) {
                    return Some(start);
                }
            }
        }
        None
    }

    /// Whether a value, as it is or percent-decoded up to [`MAX_NESTING`] times, is a URL or JSON with a secret in it.
    fn is_secret_inside(&self, value: &[u8], end: ClipEnd) -> bool {
        let mut text = Cow::Borrowed(value);
        for _ in 0..MAX_NESTING {
            if self.holds_secret(&text, end) {
                return true;
            }
            match decoded(&text) {
                Cow::Borrowed(_) => return false,
                Cow::Owned(decoded) => text = Cow::Owned(decoded),
            }
        }
        self.holds_secret(&text, end)
    }

    fn holds_secret(&self, text: &[u8], end: ClipEnd) -> bool {
        work::done(text.len());
        let (mut names, mut colons) = (false, false);
        for byte in text {
            names |= *byte == b'=';
            colons |= *byte == b':';
        }
        names && text.split(|byte| matches!(byte, b'&' | b'#')).any(|field| self.first_secret(field).is_some())
            || colons && (has_userinfo(text, end) || self.has_secret_json(text))
    }

    /// Whether some `"name":` is secret. Before each colon, back to the quote that opens the name: no byte is looked at
    /// more than twice.
    fn has_secret_json(&self, text: &[u8]) -> bool {
        let colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':');
        colons.map(|(at, _)| text.get(..at).unwrap_or_default()).any(|before| {
            // A `+` is a blank of a form.
            let blanks =
                before.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'+')).count();
            work::done(blanks + 1);
            let Some((b'"', name)) = before.get(..before.len() - blanks).and_then(<[u8]>::split_last) else {
                return false;
            };
            let from = name.iter().rposition(|byte| *byte == b'"');
            work::done(name.len() - from.unwrap_or(0));
            let name = from.and_then(|at| name.get(at + 1..));
            name.is_some_and(|name| self.names.is_secret(name))
        })
    }

    /// Whether a value of a key was written in the place of `value`: as it is, or as a mark of it, whatever the rules were.
    pub fn stands_for(&self, written: &str, value: &str) -> bool {
        written == value
            || written.starts_with(MARK)
                && (written == self.mark(value.as_bytes()) || written == self.mark(&decoded(value.as_bytes())))
    }

    fn mark(&self, secret: &[u8]) -> String {
        work::done(128 + secret.len());
        let mut mac = self.mac.clone();
        mac.update(secret);
        let [a, b, c, d, ..] = <[u8; 32]>::from(mac.finalize().into_bytes());
        format!("{MARK}{a:02x}{b:02x}{c:02x}{d:02x}]")
    }

    /// The text with a mark in the place of each secret.
    fn written<'a>(&self, secrets: SecretSpans<'a>) -> Cow<'a, str> {
        let SecretSpans { text, mut ranges, .. } = secrets;
        if ranges.is_empty() {
            return Cow::Borrowed(text);
        }
        ranges.sort_unstable_by_key(|range| range.start);
        let mut out = String::with_capacity(text.len());
        let mut written = 0;
        let mut ranges = ranges.into_iter().peekable();
        while let Some(mut secret) = ranges.next() {
            // Two that overlap are one.
            while let Some(next) = ranges.next_if(|next| next.start < secret.end) {
                secret.end = secret.end.max(next.end);
            }
            out.push_str(text.get(written..secret.start).unwrap_or_default());
            written = secret.end;
            out.push_str(&self.mark(&decoded(text.as_bytes().get(secret).unwrap_or_default())));
        }
        out.push_str(text.get(written..).unwrap_or_default());
        Cow::Owned(out)
    }
}

/// Whether a mark is in the text.
pub fn has_mark(text: &str) -> bool {
    text.split(MARK).skip(1).any(|rest| {
        let digits = rest.as_bytes().split_first_chunk::<8>();
        digits.is_some_and(|(digits, rest)| digits.iter().all(u8::is_ascii_hexdigit) && rest.first() == Some(&b']'))
    })
}

/// Whether what has this name is a secret by the built-in rules.
pub fn names_a_secret(name: &str) -> bool {
    static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(&[], &[]));
    NAMES.is_secret(name.as_bytes())
}

/// Where in a text secrets are.
struct SecretSpans<'a> {
    text: &'a str,
    end: ClipEnd,
    ranges: Vec<Range<usize>>,
}

impl<'a> SecretSpans<'a> {
    fn of(text: &'a str, end: ClipEnd) -> Self {
        Self { text, end, ranges: Vec::new() }
    }

    /// The last one that there is room for takes the rest of the text, from the first on that comes after it here.
    fn add(&mut self, secret: Range<usize>) {
        let taken = self.ranges.len();
        match self.ranges.last_mut() {
            Some(rest) if taken >= MAX_MARKS => rest.start = rest.start.min(secret.start),
            _ if taken + 1 < MAX_MARKS => self.ranges.push(secret),
            _ => self.ranges.push(secret.start..self.text.len()),
        }
    }

    fn is_full(&self) -> bool {
        self.ranges.len() >= MAX_MARKS
    }
}

/// Adds user and password of every `scheme://user:password@host`.
fn userinfo(secrets: &mut SecretSpans<'_>) {
    let text = secrets.text.as_bytes();
    let mut from = 0;
    while let Some(authority) = next_authority(text, from) {
        from = authority.end;
        if let Some(length) = userinfo_length(text, &authority, secrets.end) {
            secrets.add(authority.start..authority.start + length);
            if secrets.is_full() {
                return;
            }
        }
    }
}

fn has_userinfo(text: &[u8], end: ClipEnd) -> bool {
    let mut from = 0;
    while let Some(authority) = next_authority(text, from) {
        if userinfo_length(text, &authority, end).is_some() {
            return true;
        }
        from = authority.end;
    }
    false
}

/// How many bytes of an authority are user and password. Of one that a cut has ended nobody knows: all of it may be.
fn userinfo_length(text: &[u8], authority: &Range<usize>, end: ClipEnd) -> Option<usize> {
    let is_cut = end == ClipEnd::Cut && authority.end == text.len();
    let bytes = text.get(authority.clone()).unwrap_or_default();
    if is_cut {
        return (!bytes.is_empty()).then_some(bytes.len());
    }
    bytes.iter().rposition(|byte| *byte == b'@')
}

/// The text behind the next `://` from `from` on, up to what surely ends it. A comma or a quote may also be part of a password:
/// it ends the authority only where no `@` follows it.
fn next_authority(text: &[u8], from: usize) -> Option<Range<usize>> {
    let found = memchr::memmem::find(text.get(from..)?, b"://");
    work::done(found.unwrap_or(text.len() - from));
    let start = from + found? + 3;
    let rest = text.get(start..)?;
    let longest = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#' | b' ')).unwrap_or(rest.len());
    work::done(longest);
    let authority = rest.get(..longest)?;
    let host_at = authority.iter().rposition(|byte| *byte == b'@').unwrap_or(0);
    let host_ends = |byte: &u8| matches!(byte, b'"' | b'<' | b'>' | b',');
    let end = authority.get(host_at..)?.iter().position(host_ends).map_or(longest, |at| host_at + at);
    Some(start..start + end)
}

fn has_scheme(value: &str) -> bool {
    let first = value.trim_ascii_start().split_ascii_whitespace().next().unwrap_or_default();
    let has_more = value.trim_ascii().len() > first.len();
    has_more && SCHEMES.iter().any(|scheme| first.eq_ignore_ascii_case(scheme))
}

/// Percent-decoded once; borrowed if there is no valid escape.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    work::done(text.len());
    if memchr::memchr(b'%', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = next_decoded(rest) {
        out.push(byte);
        rest = after;
    }
    if out.len() == text.len() { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        Redactor::with_key(&[7; 64], &RedactRules { secret: vec!["X-Session".into(), "ssn".into()], open: Vec::new() })
    }

    /// Replaces each `[redacted:…]` by `*`, after a look at its form.
    fn starred(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("[redacted:") {
            let (digits, tail) = after.split_once(']').unwrap();
            assert!(digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
            out.push_str(before);
            out.push('*');
            rest = tail;
        }
        out + rest
    }

    #[test]
    fn a_secret_before_many_users_is_not_forgotten() {
        let redactor = redactor();
        let users = "/http://u:x@h".repeat(MAX_MARKS + 2);
        for text in
            [format!("/dl/token=first{users}"), format!("{users}?token=first"), format!("/a{users}/token=first")]
        {
            for shown in [redactor.path(&text, ClipEnd::Whole), redactor.header("x-url", &text, ClipEnd::Whole)] {
                assert!(!shown.contains("first") && !shown.contains("u:x"), "{shown}");
            }
            assert!(!redactor.target(&text, ClipEnd::Whole).contains("first"));
        }
    }

    #[test]
    fn a_secret_with_slashes_goes_as_a_whole_where_the_text_is_no_url() {
        let redactor = redactor();
        for (value, expected) in [
            ("{\"access_token\":\"AAAA/BB?C&D#E=\"}", "*"),
            ("token=AAAA/BB+C==", "token=*"),
            ("a=1/b&token=AAAA/BB?C", "a=1/b&token=*"),
            ("a/b?c=1&d=2", "a/b?c=1&d=2"),
            ("text/html, */*;q=0.8", "text/html, */*;q=0.8"),
            ("https://h/token=A/b?x=1", "https://h/token=*/b?x=1"),
        ] {
            assert_eq!(starred(&redactor.header("x-info", value, ClipEnd::Whole)), expected, "{value}");
        }
    }

    #[test]
    fn header_values_go_by_name() {
        let redactor = redactor();
        for secret in [
            "Authorization",
            "proxy-authorization",
            "COOKIE",
            "set-cookie",
            "x-api-key",
            "X-Auth-Token",
            "x-session",
            "X-Vault-Token",
            "X-Goog-Api-Key",
            "cf-access-jwt-assertion",
            "x-session-id",
            "X-Upstream-Auth",
            "x_auth",
            "X-Hub-Signature-256",
            "sec-websocket-protocol",
        ] {
            assert_eq!(starred(&redactor.header(secret, "s3cret", ClipEnd::Whole)), "*", "{secret}");
        }
        for plain in ["user-agent", "accept", "idempotency-key", "sec-websocket-key", "x-other", "x-author"] {
            assert_eq!(redactor.header(plain, "s3cret", ClipEnd::Whole), "s3cret", "{plain}");
        }
        assert_eq!(redactor.header("cookie", "", ClipEnd::Whole), "");
    }

    #[test]
    fn credentials_are_secret_under_any_header_name() {
        let redactor = redactor();
        for value in ["Bearer s3cret", "basic dTpzM2NyZXQ=", " BEARER  s3cret", "Bearer\ts3cret"] {
            assert_eq!(starred(&redactor.header("x-other", value, ClipEnd::Whole)), "*", "{value}");
        }
        for value in ["Bearer", "basic", "bearers of news", "Visual Basic 6"] {
            assert_eq!(redactor.header("x-other", value, ClipEnd::Whole), value);
        }
    }

    #[test]
    fn other_headers_are_left_as_they_are() {
        let redactor = redactor();
        for value in [
            "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8",
            "multipart/form-data; boundary=----x",
            "\"Not;A=Brand\";v=\"8\", \"Chromium\";v=\"120\"",
            "Mozilla/5.0 (compatible; bot/2.1; +http://h/bot.html, mail a@b)",
            "max-age=0, no-cache=\"Set-Cookie\"",
            "W/\"abc==\"",
            "for=192.0.2.1;proto=https",
            "{\"page\":\"2\"}",
        ] {
            assert_eq!(redactor.header("x-other", value, ClipEnd::Whole), value);
        }
    }

    #[test]
    fn equal_secrets_get_equal_marks_within_one_process_only() {
        let (one, other) = (Redactor::new(&RedactRules::default()), Redactor::new(&RedactRules::default()));
        assert_eq!(one.header("cookie", "abc", ClipEnd::Whole), one.header("authorization", "abc", ClipEnd::Whole));
        assert_eq!(
            one.header("x-api-key", "abc", ClipEnd::Whole),
            one.key_part("header:x-api-key", "abc", ClipEnd::Whole, None)
        );
        assert_eq!(
            one.query("key=a%62c", ClipEnd::Whole),
            format!("key={}", one.header("cookie", "abc", ClipEnd::Whole))
        );
        assert_ne!(one.header("cookie", "abc", ClipEnd::Whole), one.header("cookie", "abd", ClipEnd::Whole));
        assert_ne!(one.header("cookie", "abc", ClipEnd::Whole), other.header("cookie", "abc", ClipEnd::Whole));
    }

    #[test]
    fn the_mark_is_the_head_of_an_hmac_sha_256() {
        // RFC 4231 test case 1, key padded with zeros to the block as HMAC does.
        let mut key = [0; 64];
        key[..20].fill(0x0b);
        assert_eq!(Redactor::with_key(&key, &RedactRules::default()).mark(b"Hi There"), "[redacted:b0344c61]");
    }

    #[test]
    fn query_values_go_by_name() {
        let redactor = redactor();
        for (query, expected) in [
            ("a=1&token=s3cret&b=2", "a=1&token=*&b=2"),
            ("access_token=s3cret", "access_token=*"),
            ("%74oken=s3cret", "%74oken=*"),
            ("accessToken=s3cret;more", "accessToken=*"),
            ("api-key=s3cret&apikey=s3cret&key=s3cret", "api-key=*&apikey=*&key=*"),
            (
                "X-Amz-Credential=s3cret&X-Amz-Signature=s3cret&X-Amz-Date=1",
                "X-Amz-Credential=*&X-Amz-Signature=*&X-Amz-Date=1",
            ),
            ("code=s3cret&state=x&session_state=s3cret", "code=*&state=x&session_state=*"),
            ("user[password]=s3cret", "user[password]=*"),
            ("a=1;pwd=s3cret;b=2", "a=1;pwd=*"),
            ("SSN=s3cret", "SSN=*"),
            ("sort_key=name&keyword=cat&page=2&q=token", "sort_key=name&keyword=cat&page=2&q=token"),
            ("token=&x", "token=&x"),
            ("token=a=s3cret?s3cret", "token=*"),
            ("form=token%3Ds3cret%26a%3D1", "form=*"),
            ("q={\"token\":\"s3cret\"}&x=1", "q=*&x=1"),
            ("q=%7B%22a%22%3A1%2C%22token%22+%3A%22s3cret%22%7D", "q=*"),
            ("q={\"page\":\"2\"}", "q={\"page\":\"2\"}"),
            ("a=b=c==", "a=b=c=="),
            ("", ""),
        ] {
            assert_eq!(starred(&redactor.query(query, ClipEnd::Whole)), expected, "{query}");
        }
    }

    #[test]
    fn urls_inside_values_are_searched() {
        let redactor = redactor();
        for (query, expected) in [
            ("next=/cb?token=s3cret", "next=/cb?token=*"),
            ("next=%2Fcb%3Ftoken%3Ds3cret&x=1", "next=*&x=1"),
            ("next=%252Fcb%253Ftoken%253Ds3cret", "next=*"),
            ("next=https%3A%2F%2Fu%3As3cret%40h%2F", "next=*"),
            ("next=https://u:s3cret@h/", "next=*"),
            ("next=https%3A%2F%2Fh%2Fa%3Fb%3Dc", "next=https%3A%2F%2Fh%2Fa%3Fb%3Dc"),
        ] {
            assert_eq!(starred(&redactor.query(query, ClipEnd::Whole)), expected, "{query}");
        }
    }

    #[test]
    fn referers_lose_their_secrets_and_keep_the_rest() {
        let redactor = redactor();
        for (referer, expected) in [
            ("https://h/a?token=s3cret&b=1#top", "https://h/a?token=*&b=1#top"),
            ("https://u:s3cret@h:8080/a", "https://*@h:8080/a"),
            ("https://h/cb#access_token=s3cret&expires_in=9", "https://h/cb#access_token=*&expires_in=9"),
            ("https://h/a?b=1", "https://h/a?b=1"),
            ("/x?x-session=s3cret", "/x?x-session=*"),
            ("https://a/ https://u:s3cret@b/, http://s3cret@c", "https://a/ https://*@b/, http://*@c"),
            ("https://a,https://u:s3cret@b", "https://a,https://*@b"),
            ("https://u:s3,cret@h/", "https://*@h/"),
            ("https://u:s3\"<cret@h,x", "https://*@h,x"),
            ("<https://u:s3cret@h>, b@c", "<https://*@h>, b@c"),
            ("https://h/a;jsessionid=s3cret", "https://h/a;jsessionid=*"),
            ("/a;jsessionid=s3cret", "/a;jsessionid=*"),
            ("/a;jsessionid=s3cret?token=s3cret", "/a;jsessionid=*?token=*"),
            ("/x/access_token=s3cret/y?b=1", "/x/access_token=*/y?b=1"),
        ] {
            assert_eq!(starred(&redactor.header("referer", referer, ClipEnd::Whole)), expected, "{referer}");
            assert_eq!(starred(&redactor.header("x-original-url", referer, ClipEnd::Whole)), expected, "{referer}");
            assert_eq!(starred(&redactor.header("x-original-uri", referer, ClipEnd::Whole)), expected, "{referer}");
        }
    }

    #[test]
    fn paths_lose_parameters_and_user_information() {
        let redactor = redactor();
        for (path, expected) in [
            ("/app;jsessionid=s3cret/x", "/app;jsessionid=*/x"),
            ("/fetch/http://u:s3cret@h/x", "/fetch/http://*@h/x"),
            ("/fetch/http%3A%2F%2Fu%3As3cret%40h%2Fx/y", "/fetch/*/y"),
            ("/@scope/pkg;v=1/%20", "/@scope/pkg;v=1/%20"),
            ("/x/access_token=s3cret", "/x/access_token=*"),
            ("/x/a=1&sid=s3cret/y", "/x/a=1&sid=*/y"),
            ("/x/{\"token\":\"s3cret\"}/y", "/x/*/y"),
            ("/a=1/b:c/token", "/a=1/b:c/token"),
        ] {
            assert_eq!(starred(&redactor.path(path, ClipEnd::Whole)), expected, "{path}");
        }
        assert_eq!(starred(&redactor.host("u:s3cret@h:80", ClipEnd::Whole)), "*@h:80");
    }

    #[test]
    fn key_parts_go_by_their_source() {
        let redactor = redactor();
        for (source, value, expected) in [
            ("header:x-api-key", "s3cret", "*"),
            ("header:authorization", "s3cret", "*"),
            ("header:x-tenant", "acme", "acme"),
            ("cookie:theme", "s3cret", "*"),
            ("query:access_token", "s3cret", "*"),
            ("query:page", "2", "2"),
            ("basic:user", "sk_live_s3cret", "*"),
            ("query:next", "/cb?token=s3cret", "*"),
            ("query:next", "https://u:s3,cret@h/", "*"),
            ("query:q", "{\"token\": \"s3cret\"}", "*"),
            ("query:next", "/cb?page=2", "/cb?page=2"),
            ("header:x-client", "Bearer s3cret", "*"),
            ("jwt:sub", "ada", "ada"),
            ("jwt:sub", "Bearer s3cret", "*"),
            ("jwt:session_id", "s3cret", "*"),
            ("jwt-unverified:/realm/api_key", "s3cret", "*"),
            ("client-ip", "192.0.2.1", "192.0.2.1"),
            ("path", "/a;sid=s3cret", "/a;sid=*"),
            ("global", "", ""),
        ] {
            assert_eq!(starred(&redactor.key_part(source, value, ClipEnd::Whole, None)), expected, "{source}");
        }
    }

    #[test]
    fn broken_escapes_and_odd_bytes_are_left_as_they_are() {
        let redactor = redactor();
        for text in ["%", "%4", "%zz=%", "é=%c3%28&%ff%fe", "://", "a://@", "=;=?&#"] {
            let _ = redactor.query(text, ClipEnd::Whole);
            let _ = redactor.path(text, ClipEnd::Whole);
            let _ = redactor.header("referer", text, ClipEnd::Whole);
        }
        assert_eq!(redactor.query("%zz=%&é=%c3%28", ClipEnd::Whole), "%zz=%&é=%c3%28");
    }

    #[test]
    fn what_a_cut_may_hide_is_secret() {
        let redactor = redactor();
        for (target, expected) in [
            ("/a?token=s3cr", "/a?token=*"),
            ("/a?x=1&next=https%3A%2F%2Fu%3As3cr", "/a?x=1&next=*"),
            ("/a?next=https%253A%252F%252Fu%253As3cr", "/a?next=*"),
            ("/fetch/https://u:s3cr", "/fetch/https://*"),
            ("/a?q={\"token\":\"s3c", "/a?q=*"),
            ("/a?next=https://h/b", "/a?next=https://h/b"),
            ("/a?next=https://h/b&x=https://", "/a?next=https://h/b&x=https://"),
            ("/https://h/b?page=2", "/https://h/b?page=2"),
        ] {
            assert_eq!(starred(&redactor.target(target, ClipEnd::Cut)), expected, "{target}");
        }
        assert_eq!(starred(&redactor.header("referer", "https://u:s3cr", ClipEnd::Cut)), "https://*");
        assert_eq!(redactor.header("referer", "https://u:80", ClipEnd::Whole), "https://u:80");
        assert_eq!(starred(&redactor.host("u:s3cr", ClipEnd::Cut)), "*");
    }

    #[test]
    fn a_text_has_a_bounded_number_of_marks() {
        let redactor = redactor();
        let text = starred(&redactor.query(&"key=s3cret&".repeat(1_000), ClipEnd::Whole));
        assert_eq!(text, "key=*&".repeat(MAX_MARKS - 1) + "key=*");
        let text = starred(&redactor.path(&"/http://u:s3cret@h".repeat(1_000), ClipEnd::Whole));
        assert_eq!(text, "/http://*@h".repeat(MAX_MARKS - 1) + "/http://*");
    }

    /// Bytes looked at, steps of the automaton and blocks hashed, for a text as a target and as a header.
    fn work_for(redactor: &Redactor, text: &str, end: ClipEnd) -> usize {
        work::of(|| {
            let _ = (redactor.target(text, end), redactor.header("referer", text, end));
        })
    }

    /// Four times the text is four times the work, whatever the text, and no byte is looked at more than so many times.
    #[test]
    fn the_work_grows_with_the_length_alone() {
        let redactor = redactor();
        let hostile = [
            "=", "a=", "abc=", "abc=&", "%3D", "%253D=", "%25253D&", "\":", "\"a\":", "://", "a://b,", "://@",
            "key=a&", "/key=a", ";", "?=", "+:", "\"+:", "/a%3D\"", "&#", "=key", "Aa0=", "/", ",", "@",
        ];
        let of = |piece: &str, length: usize| piece.chars().cycle().take(length).collect::<String>();
        for piece in hostile {
            for end in [ClipEnd::Whole, ClipEnd::Cut] {
                let short = work_for(&redactor, &of(piece, 4_096), end);
                let long = work_for(&redactor, &of(piece, 16_384), end);
                assert!(long <= 4 * short + 8 * 128 * MAX_MARKS, "{piece:?}: {short}, then {long}");
                assert!(short <= 64 * 4_096 + 8 * 128 * MAX_MARKS, "{piece:?}: {short}");
            }
        }
    }

    #[test]
    fn a_mark_is_known_wherever_it_stands() {
        let mark = redactor().mark(b"s3cret");
        for text in [mark.clone(), format!("acme + {mark}"), format!("[redacted:x {mark}")] {
            assert!(has_mark(&text), "{text}");
        }
        for text in ["", "k-3f9a27", "[redacted:]", "[redacted:0badcaf]", "[redacted:0badcafe", "[redacted:0badcafg]"] {
            assert!(!has_mark(text), "{text}");
        }
    }
}
