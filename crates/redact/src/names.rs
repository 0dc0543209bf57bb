//! Tells names of secrets from others: of headers, query fields, path parameters, members of JSON.
//!
//! A name is read twice at once, percent-decoded and in lower case: joined (letters and digits alone, so that `api-key`,
//! `api_key` and `apiKey` are one) and by words (split at what is neither letter nor digit, at a capital after a small
//! letter, and between letters and digits). One automaton reads both, so that the work for a name is a fixed amount for
//! each of its bytes, whatever the name and however long the lists.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::{Anchored, dfa::DFA};

use super::work;

/// A name is secret if it holds one of these, joined.
const PARTS: [&str; 26] = [
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
    "sessid",
    "bearer",
    "authorization",
    "authentication",
    "jwt",
    "clientassertion",
    "samlrequest",
    "samlresponse",
    "codeverifier",
    "cookie",
    "csrf",
    "xsrf",
    "dpop",
];

/// A name is secret if one of these is a word of it.
const WORDS: [&str; 12] =
    ["auth", "authn", "authz", "hmac", "oauth", "otp", "pass", "pwd", "sess", "sid", "sig", "totp"];

/// A name is secret if a word of it ends so: `X-Functions-Key`, `subscriptionKey`, `tenantkey`.
const ENDS_OF_WORDS: [&str; 2] = ["key", "keys"];

/// A name is secret if it is one of these as a whole, joined.
const WHOLES: [&str; 10] = [
    "assertion",
    // The name of a service token, which is half of it.
    "cfaccessclientid",
    "code",
    "pin",
    "sas",
    // Browsers cannot set other fields on a WebSocket, so the token travels here.
    "secwebsocketprotocol",
    "sign",
    // The token by which a request may ask for its explanation.
    "xsluicegateexplain",
    "ticket",
    "wsse",
];

/// Names that the rules above take for secrets and that are none, joined.
const OPEN: [&str; 6] =
    ["generickey", "idempotencykey", "secwebsocketkey", "sortkey", "surrogatekey", "xidempotencykey"];

/// The names of secrets: the built-in ones and those of the configuration.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// `None` where it could not be built, which no list within the configuration's bounds brings about: then every name is
    /// secret.
    automaton: Option<DFA>,
    start: StateID,
    /// The meaning of each pattern.
    verdicts: Vec<NameVerdict>,
    /// Shorter names are no secrets.
    shortest: usize,
}

/// The meaning of a match for a name; the highest one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameVerdict {
    Unknown,
    SecretByRule,
    Open,
    Secret,
}

impl Names {
    /// The built-in names, `secret` ones beside them, and `open` ones that the rules do not hold for. A name that is both is secret.
    pub(super) fn new(secret: &[String], open: &[String]) -> Self {
        let mut patterns: Vec<(String, NameVerdict)> = Vec::new();
        patterns.extend(PARTS.iter().map(|part| ((*part).to_owned(), NameVerdict::SecretByRule)));
        patterns.extend(WORDS.iter().map(|word| (format!("-{word}-"), NameVerdict::SecretByRule)));
        patterns.extend(ENDS_OF_WORDS.iter().map(|end| (format!("{end}-"), NameVerdict::SecretByRule)));
        patterns.extend(WHOLES.iter().map(|name| (format!("<{name}>"), NameVerdict::SecretByRule)));
        patterns.extend(OPEN.iter().map(|name| (format!("<{name}>"), NameVerdict::Open)));
        let own = |names: &[String], verdict| {
            let joined = names.iter().map(|name| joined(name)).filter(|name| !name.is_empty());
            joined.map(|name| (format!("<{name}>"), verdict)).collect::<Vec<_>>()
        };
        patterns.extend(own(open, NameVerdict::Open));
        patterns.extend(own(secret, NameVerdict::Secret));
        let automaton = DFA::builder().prefilter(false).build(patterns.iter().map(|(pattern, _)| pattern)).ok();
        let start = automaton.as_ref().and_then(|automaton| automaton.start_state(Anchored::No).ok());
        let shortest = patterns.iter().map(|(pattern, _)| pattern.trim_matches(['<', '>', '-']).len()).min();
        Self {
            automaton: automaton.filter(|_| start.is_some()),
            start: start.unwrap_or_default(),
            verdicts: patterns.into_iter().map(|(_, verdict)| verdict).collect(),
            shortest: shortest.unwrap_or_default(),
        }
    }

    /// Whether what has this name is a secret.
    pub(super) fn is_secret(&self, name: &[u8]) -> bool {
        let Some(automaton) = &self.automaton else { return true };
        if name.len() < self.shortest {
            return false;
        }
        let mut reading = NameScan { automaton, names: self, verdict: NameVerdict::Unknown };
        let mut joined = reading.step(self.start, b'<');
        let mut words = reading.step(self.start, b'-');
        let mut before = ByteKind::Other;
        let mut rest = name;
        while let Some((byte, after)) = next_decoded(rest) {
            rest = after;
            let kind = ByteKind::of(byte);
            if before != ByteKind::Other && kind.begins_word_after(before) {
                words = reading.step(words, b'-');
            }
            before = kind;
            if kind != ByteKind::Other {
                let byte = byte.to_ascii_lowercase();
                joined = reading.step(joined, byte);
                words = reading.step(words, byte);
            }
        }
        if before != ByteKind::Other {
            reading.step(words, b'-');
        }
        reading.step(joined, b'>');
        matches!(reading.verdict, NameVerdict::SecretByRule | NameVerdict::Secret)
    }
}

struct NameScan<'a> {
    automaton: &'a DFA,
    names: &'a Names,
    verdict: NameVerdict,
}

impl NameScan<'_> {
    fn step(&mut self, state: StateID, byte: u8) -> StateID {
        work::done(1);
        let next = self.automaton.next_state(Anchored::No, state, byte);
        if self.automaton.is_special(next) && self.automaton.is_match(next) {
            for index in 0..self.automaton.match_len(next) {
                let pattern = self.automaton.match_pattern(next, index).as_usize();
                let verdict = self.names.verdicts.get(pattern).copied().unwrap_or(NameVerdict::Secret);
                self.verdict = self.verdict.max(verdict);
            }
        }
        next
    }
}

/// The kind of a byte of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteKind {
    Small,
    Capital,
    Digit,
    Other,
}

impl ByteKind {
    fn of(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' => Self::Small,
            b'A'..=b'Z' => Self::Capital,
            b'0'..=b'9' => Self::Digit,
            _ => Self::Other,
        }
    }

    /// Whether a byte of this kind ends the word that a byte of the kind `before` is in.
    fn begins_word_after(self, before: Self) -> bool {
        match (before, self) {
            (_, Self::Other) | (Self::Small, Self::Capital) => true,
            (before, kind) => (before == Self::Digit) != (kind == Self::Digit),
        }
    }
}

fn joined(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|character| character.to_ascii_lowercase()).collect()
}

/// The first byte of a percent-encoded text, and what follows; what is no valid escape stays.
pub(super) fn next_decoded(text: &[u8]) -> Option<(u8, &[u8])> {
    if let [b'%', high, low, rest @ ..] = text
        && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
    {
        return Some((high << 4 | low, rest));
    }
    text.split_first().map(|(first, rest)| (*first, rest))
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_word_of_a_secret_are_secret_however_they_are_spelt() {
        let names = Names::new(&[], &[]);
        for secret in [
            "X-Functions-Key",
            "Ocp-Apim-Subscription-Key",
            "X-Key",
            "DPoP",
            "CF-Access-Client-Id",
            "CF-Access-Client-Secret",
            "X-CSRF",
            "X-Xsrf-Token",
            "subscription-key",
            "sub_key",
            "subscriptionKey",
            "tenantkey",
            "X-Tenant-Key",
            "key1",
            "apiKeys",
            "AWSAccessKeyId",
            "%74oken",
            "user[password]",
            "userAuth",
            "x_auth",
            "PHPSESSID",
            "sess",
            "X-Amz-Signature",
            "client_credentials",
            "code",
        ] {
            assert!(names.is_secret(secret.as_bytes()), "{secret}");
        }
        for open in [
            "",
            "a",
            "accept",
            "user-agent",
            "x-author",
            "authority",
            "keyword",
            "postcode",
            "passenger",
            "sort_key",
            "Idempotency-Key",
            "sec-websocket-key",
            "design",
            "traceparent",
            "page",
            "%zz",
        ] {
            assert!(!names.is_secret(open.as_bytes()), "{open}");
        }
    }

    #[test]
    fn the_configuration_adds_names_and_opens_some() {
        let names = Names::new(&["ssn".into(), "X-Both".into()], &["x-tenant-key".into(), "x-both".into()]);
        for secret in ["SSN", "s%73n", "x_both", "x-tenant-key-2"] {
            assert!(names.is_secret(secret.as_bytes()), "{secret}");
        }
        for open in ["X-Tenant-Key", "x_tenant_key", "ssns"] {
            assert!(!names.is_secret(open.as_bytes()), "{open}");
        }
    }
}
