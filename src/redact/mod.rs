//! What must not reach the disk, and what stands in its place.
//!
//! A secret becomes `[redacted:HMAC8]`: the first 8 hex digits of its HMAC-SHA-256 under a key that this process drew
//! at random and never shows. Equal secrets of one run can be matched with each other; none can be found by trying.
//!
//! Secret are:
//! - the values of the headers in [`SECRET_HEADERS`], of headers whose name holds one of [`SECRET_HEADER_WORDS`]
//!   (`X-Vault-Token`, `X-Client-Secret`) or has one of [`SECRET_HEADER_PARTS`] between its hyphens (`X-Upstream-Auth`),
//!   of those in the configuration's `redact`, and any value that begins with one of [`SCHEMES`];
//! - the query values whose name, decoded and reduced to letters and digits, is one of [`SECRET_NAMES`], holds one of
//!   [`SECRET_WORDS`], or stands in `redact`; a query value that is itself a URL with such a part goes as a whole;
//! - the same in any header that carries a URL (`Referer`, `X-Original-URL`), in its fragment, in path parameters and
//!   segments (`;jsessionid=…`, `/access_token=…`), and in the fields of JSON (`q={"token":"…"}`);
//! - user and password before the `@` of a URL or of an authority;
//! - parts of a key that come from such a header or query field, every cookie, and `basic:user`: many clients put an
//!   API key in the place of the user.
//!
//! When in doubt a value is redacted: a lost value costs a look elsewhere, a leaked one costs an account.

use std::borrow::Cow;

use hmac::digest::generic_array::GenericArray;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use uuid::{NoContext, Timestamp, Uuid};

/// Headers whose value is always secret.
const SECRET_HEADERS: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "cookie2",
    "set-cookie",
    "x-api-key",
    "x-auth-token",
    // Browsers cannot set other fields on a WebSocket, so the token travels here.
    "sec-websocket-protocol",
];

/// A header is secret too if its name holds one of these.
const SECRET_HEADER_WORDS: [&str; 15] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "authkey",
    "credential",
    "jwt",
    "session",
    "authorization",
    "authentication",
    "bearer",
    "signature",
];

/// A header is secret too if one of these stands in its name between hyphens or underscores.
const SECRET_HEADER_PARTS: [&str; 7] = ["auth", "hmac", "otp", "pass", "pwd", "sid", "sig"];

/// A header's value that begins with one of these and a blank is secret, whatever the name. Lower case.
const SCHEMES: [&str; 2] = ["basic", "bearer"];

/// Query names that are secret as they stand.
const SECRET_NAMES: [&str; 15] = [
    "auth",
    "code",
    "hmac",
    "jwt",
    "key",
    "otp",
    "pass",
    "pin",
    "pwd",
    "sas",
    "sid",
    "sig",
    "sign",
    "ticket",
    "assertion",
];

/// A query name is secret too if it holds one of these.
const SECRET_WORDS: [&str; 18] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "apikey",
    "accesskey",
    "privatekey",
    "authkey",
    "signature",
    "credential",
    "session",
    "bearer",
    "authorization",
    "jwt",
    "clientassertion",
    "samlresponse",
];

/// How often a value is percent-decoded in search of a URL inside it.
const MAX_NESTING: usize = 3;

/// Replaces secrets; equal secrets get equal marks, as long as it or its clones live.
#[derive(Clone)]
pub struct Redactor {
    mac: Hmac<Sha256>,
    names: Vec<String>,
}

impl Redactor {
    /// With a random key; `names` are the configuration's.
    pub fn new(names: &[String]) -> Self {
        Self::with_key(&random_block(), names)
    }

    fn with_key(key: &[u8; 64], names: &[String]) -> Self {
        let mac = Mac::new(GenericArray::from_slice(key));
        let mut redactor = Self { mac, names: Vec::new() };
        redactor.set_names(names);
        redactor
    }

    /// Replaces the configuration's names.
    pub fn set_names(&mut self, names: &[String]) {
        self.names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    }

    /// What is written in the place of a header's value.
    pub fn header<'a>(&self, name: &str, value: &'a str) -> Cow<'a, str> {
        if value.is_empty() {
            Cow::Borrowed(value)
        } else if self.is_secret_header(name) || has_scheme(value) {
            Cow::Owned(self.mark(value.as_bytes()))
        } else {
            self.url(value)
        }
    }

    /// What is written in the place of a query (without its `?`).
    pub fn query<'a>(&self, query: &'a str) -> Cow<'a, str> {
        if self.has_secret_field(query) { Cow::Owned(self.fields(query)) } else { Cow::Borrowed(query) }
    }

    /// What is written in the place of a path.
    pub fn path<'a>(&self, path: &'a str) -> Cow<'a, str> {
        match self.userinfo(path) {
            Cow::Borrowed(path) => self.segments(path),
            Cow::Owned(path) => Cow::Owned(self.segments(&path).into_owned()),
        }
    }

    /// What is written in the place of an authority.
    pub fn host<'a>(&self, host: &'a str) -> Cow<'a, str> {
        match host.rsplit_once('@') {
            Some((userinfo, host)) => Cow::Owned(format!("{}@{host}", self.mark(userinfo.as_bytes()))),
            None => Cow::Borrowed(host),
        }
    }

    /// What is written in the place of a part of a key; `source` is a part of a key expression (`header:x-api-key`).
    pub fn key_part<'a>(&self, source: &str, value: &'a str) -> Cow<'a, str> {
        match source.split_once(':') {
            _ if value.is_empty() => Cow::Borrowed(value),
            Some(("header", name)) => self.header(name, value),
            Some(("cookie" | "basic", _)) => Cow::Owned(self.mark(value.as_bytes())),
            Some(("query", name)) if self.is_secret_name(name) || self.is_secret_inside(value) => {
                Cow::Owned(self.mark(&decoded(value)))
            }
            None if source == "path" => self.path(value),
            None if source == "host" => self.host(value),
            _ => Cow::Borrowed(value),
        }
    }

    fn is_secret_header(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let plain = letters_and_digits(name.as_bytes());
        SECRET_HEADERS.contains(&name.as_str())
            || self.names.contains(&name)
            || SECRET_HEADER_WORDS.iter().any(|word| plain.contains(word))
            || name.split(['-', '_']).any(|part| SECRET_HEADER_PARTS.contains(&part))
    }

    fn is_secret_name(&self, name: &str) -> bool {
        let name = decoded(name);
        let plain = letters_and_digits(&name);
        SECRET_NAMES.contains(&plain.as_str())
            || SECRET_WORDS.iter().any(|word| plain.contains(word))
            || self.names.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(&name))
    }

    /// Any text that may hold URLs: user information, the path, then everything from the first `?` or `#`.
    fn url<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = self.userinfo(text);
        let (path, fields) = text.split_at(text.find(['?', '#']).unwrap_or(text.len()));
        let clean = self.segments(path);
        let (mark, fields) = fields.split_at(fields.len().min(1));
        let has_secret = self.has_secret_field(fields);
        if matches!(clean, Cow::Borrowed(_)) && !has_secret {
            return text;
        }
        let fields = if has_secret { Cow::Owned(self.fields(fields)) } else { Cow::Borrowed(fields) };
        Cow::Owned(format!("{clean}{mark}{fields}"))
    }

    /// Each segment of a path.
    fn segments<'a>(&self, path: &'a str) -> Cow<'a, str> {
        // A secret has a name before `=` or, in JSON, in quotes, or an escape hides it.
        let may_hold = path.contains(['=', '%', '"']);
        if !may_hold || !path.split('/').any(|segment| self.is_secret_piece(segment)) {
            return Cow::Borrowed(path);
        }
        let segments: Vec<_> = path.split('/').map(|segment| self.piece(segment)).collect();
        Cow::Owned(segments.join("/"))
    }

    /// User and password of every `scheme://user:password@host` in `text`.
    fn userinfo<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !has_userinfo(text) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("://") {
            let (scheme, after) = rest.split_at(at + 3);
            let (authority, tail) = after.split_at(authority_length(after));
            out.push_str(scheme);
            out.push_str(&self.host(authority));
            rest = tail;
        }
        out.push_str(rest);
        Cow::Owned(out)
    }

    fn has_secret_field(&self, fields: &str) -> bool {
        fields.split(['&', '#']).any(|piece| self.is_secret_piece(piece))
    }

    fn fields(&self, fields: &str) -> String {
        let mut out = String::with_capacity(fields.len());
        for piece in fields.split_inclusive(['&', '#']) {
            let bare = piece.strip_suffix(['&', '#']).unwrap_or(piece);
            out.push_str(&self.piece(bare));
            out.push_str(piece.get(bare.len()..).unwrap_or_default());
        }
        out
    }

    fn is_secret_piece(&self, piece: &str) -> bool {
        matches!(self.piece(piece), Cow::Owned(_))
    }

    /// One `name=value`. A value may hold further ones after `;`, `?` or `=`; from the first secret one on, all goes.
    fn piece<'a>(&self, piece: &'a str) -> Cow<'a, str> {
        let secret_at = match self.first_secret(piece) {
            None if self.is_secret_inside(piece) => piece.find('=').map_or(0, |at| at + 1),
            None => return Cow::Borrowed(piece),
            Some(at) => at,
        };
        let (head, secret) = piece.split_at(secret_at);
        Cow::Owned(format!("{head}{}", self.mark(&decoded(secret))))
    }

    /// Where the value of the first secret name starts. One pass, whatever the text: it is a stranger's.
    fn first_secret(&self, text: &str) -> Option<usize> {
        let mut start = 0;
        for (at, separator) in text.match_indices([';', '?', '=']) {
            let name = text.get(start..at).unwrap_or_default();
            start = at + 1;
            if separator == "=" && start < text.len() && self.is_secret_name(name) {
                return Some(start);
            }
        }
        None
    }

    /// Whether a value, as it is or percent-decoded up to [`MAX_NESTING`] times, is a URL or JSON with a secret in it.
    fn is_secret_inside(&self, value: &str) -> bool {
        let mut text = Cow::Borrowed(value);
        for _ in 0..MAX_NESTING {
            if self.holds_secret(&text) {
                return true;
            }
            if !text.contains('%') {
                return false;
            }
            text = Cow::Owned(String::from_utf8_lossy(&decoded(&text)).into_owned());
        }
        self.holds_secret(&text)
    }

    fn holds_secret(&self, text: &str) -> bool {
        has_userinfo(text)
            || text.split(['&', '#']).any(|field| self.first_secret(field).is_some())
            || self.has_secret_json(text)
    }

    /// Whether some `"name":` is secret. One pass: before each colon, back to the quote that opens the name.
    fn has_secret_json(&self, text: &str) -> bool {
        text.match_indices(':').any(|(at, _)| {
            // A `+` is a blank of a form.
            let before = text.get(..at).unwrap_or_default();
            let name = before
                .trim_end_matches([' ', '\t', '\r', '\n', '+'])
                .strip_suffix('"')
                .and_then(|name| name.rsplit_once('"'));
            name.is_some_and(|(_, name)| self.is_secret_name(name))
        })
    }

    fn mark(&self, secret: &[u8]) -> String {
        let mut mac = self.mac.clone();
        mac.update(secret);
        let [a, b, c, d, ..] = <[u8; 32]>::from(mac.finalize().into_bytes());
        format!("[redacted:{a:02x}{b:02x}{c:02x}{d:02x}]")
    }
}

fn has_userinfo(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (_, after) = rest.split_at(at + 3);
        let (authority, tail) = after.split_at(authority_length(after));
        if authority.contains('@') {
            return true;
        }
        rest = tail;
    }
    false
}

/// Up to what surely ends it. A comma or a quote may also be part of a password: it ends the authority only where no
/// `@` follows it.
fn authority_length(text: &str) -> usize {
    let longest = text.find(['/', '?', '#', ' ']).unwrap_or(text.len());
    let authority = text.get(..longest).unwrap_or_default();
    let host_at = authority.rfind('@').unwrap_or(0);
    let host = authority.get(host_at..).unwrap_or_default();
    host.find(['"', '<', '>', ',']).map_or(longest, |at| host_at + at)
}

fn has_scheme(value: &str) -> bool {
    let first = value.trim_ascii_start().split_ascii_whitespace().next().unwrap_or_default();
    let has_more = value.trim_ascii().len() > first.len();
    has_more && SCHEMES.iter().any(|scheme| first.eq_ignore_ascii_case(scheme))
}

fn letters_and_digits(name: &[u8]) -> String {
    name.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

/// Percent-decoded once; what is no valid escape stays.
fn decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes();
    while let Some((&first, rest)) = bytes.split_first() {
        if let (b'%', [high, low, after @ ..]) = (first, rest)
            && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
        {
            out.push(high << 4 | low);
            bytes = after;
        } else {
            out.push(first);
            bytes = rest;
        }
    }
    Cow::Owned(out)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// 296 random bits of the operating system's generator, by way of four version 7 UUIDs.
fn random_block() -> [u8; 64] {
    let mut block = [0; 64];
    for part in block.chunks_exact_mut(16) {
        part.copy_from_slice(Uuid::new_v7(Timestamp::from_unix(NoContext, 0, 0)).as_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        Redactor::with_key(&[7; 64], &["X-Session".to_owned(), "ssn".to_owned()])
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
            assert_eq!(starred(&redactor.header(secret, "s3cret")), "*", "{secret}");
        }
        for plain in ["user-agent", "accept", "idempotency-key", "sec-websocket-key", "x-other", "x-author"] {
            assert_eq!(redactor.header(plain, "s3cret"), "s3cret", "{plain}");
        }
        assert_eq!(redactor.header("cookie", ""), "");
    }

    #[test]
    fn credentials_are_secret_under_any_header_name() {
        let redactor = redactor();
        for value in ["Bearer s3cret", "basic dTpzM2NyZXQ=", " BEARER  s3cret", "Bearer\ts3cret"] {
            assert_eq!(starred(&redactor.header("x-other", value)), "*", "{value}");
        }
        for value in ["Bearer", "basic", "bearers of news", "Visual Basic 6"] {
            assert_eq!(redactor.header("x-other", value), value);
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
            assert_eq!(redactor.header("x-other", value), value);
        }
    }

    #[test]
    fn equal_secrets_get_equal_marks_within_one_process_only() {
        let (one, other) = (Redactor::new(&[]), Redactor::new(&[]));
        assert_eq!(one.header("cookie", "abc"), one.header("authorization", "abc"));
        assert_eq!(one.header("x-api-key", "abc"), one.key_part("header:x-api-key", "abc"));
        assert_eq!(one.query("key=a%62c"), format!("key={}", one.header("cookie", "abc")));
        assert_ne!(one.header("cookie", "abc"), one.header("cookie", "abd"));
        assert_ne!(one.header("cookie", "abc"), other.header("cookie", "abc"));
    }

    #[test]
    fn the_mark_is_the_head_of_an_hmac_sha_256() {
        // RFC 4231 test case 1, key padded with zeros to the block as HMAC does.
        let mut key = [0; 64];
        key[..20].fill(0x0b);
        assert_eq!(Redactor::with_key(&key, &[]).mark(b"Hi There"), "[redacted:b0344c61]");
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
            assert_eq!(starred(&redactor.query(query)), expected, "{query}");
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
            assert_eq!(starred(&redactor.query(query)), expected, "{query}");
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
            assert_eq!(starred(&redactor.header("referer", referer)), expected, "{referer}");
            assert_eq!(starred(&redactor.header("x-original-url", referer)), expected, "{referer}");
            assert_eq!(starred(&redactor.header("x-original-uri", referer)), expected, "{referer}");
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
            ("/x/a=1&sid=s3cret/y", "/x/a=*/y"),
            ("/x/{\"token\":\"s3cret\"}/y", "/x/*/y"),
            ("/a=1/b:c/token", "/a=1/b:c/token"),
        ] {
            assert_eq!(starred(&redactor.path(path)), expected, "{path}");
        }
        assert_eq!(starred(&redactor.host("u:s3cret@h:80")), "*@h:80");
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
            ("client-ip", "192.0.2.1", "192.0.2.1"),
            ("path", "/a;sid=s3cret", "/a;sid=*"),
            ("global", "", ""),
        ] {
            assert_eq!(starred(&redactor.key_part(source, value)), expected, "{source}");
        }
    }

    #[test]
    fn broken_escapes_and_odd_bytes_are_left_as_they_are() {
        let redactor = redactor();
        for text in ["%", "%4", "%zz=%", "é=%c3%28&%ff%fe", "://", "a://@", "=;=?&#"] {
            let _ = redactor.query(text);
            let _ = redactor.path(text);
            let _ = redactor.header("referer", text);
        }
        assert_eq!(redactor.query("%zz=%&é=%c3%28"), "%zz=%&é=%c3%28");
    }
}
