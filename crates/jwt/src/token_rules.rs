//! The rules that a token has to keep.

use std::sync::Arc;

use sluicegate_json::{FoundValue, JsonPointer, PointerReader};
use sluicegate_time::{Span, Wall};

use super::key_set::{KeyChoice, KeySet, SigningAlgorithm};
use super::key_store::KeyStore;
use super::token::{ClaimValue, TokenParts, decoded, read};

/// How far the clocks of issuers may be from ours.
const LEEWAY: Span = Span::from_secs(60);
/// The most audiences of a token that are compared: the first ones.
const MAX_AUDIENCES: usize = 16;

words! {
    /// The result of a token.
    pub enum TokenResult {
        /// It is verified.
        Valid = "valid",
        /// It is no token, too long, has a member twice, `crit`, or no `exp`.
        Malformed = "malformed",
        /// Its `alg` is not allowed, or is not that of the key.
        Algorithm = "algorithm",
        /// No key has its `kid`.
        UnknownKey = "unknown-key",
        /// There are no keys yet.
        NoKeys = "no-keys",
        /// It has expired.
        Expired = "expired",
        /// It is not valid yet.
        NotYet = "not-yet",
        /// Its issuer or its audience is another one.
        Foreign = "foreign",
        /// Its signature is wrong.
        Signature = "signature",
        /// It was not looked at: too many tokens of its client had wrong signatures.
        Flooded = "flooded",
    }
}

/// The rules of `[jwt]`, and the claims that keys are made of.
#[derive(Debug)]
pub struct TokenRules {
    issuer: Option<Box<str>>,
    audience: Option<Box<str>>,
    algorithms: Vec<SigningAlgorithm>,
    /// Each once.
    pub(super) claims: Vec<JsonPointer>,
    pub(super) keys: Arc<KeyStore>,
    header: HeaderPointers,
    payload: PayloadPointers,
}

impl PartialEq for TokenRules {
    fn eq(&self, other: &Self) -> bool {
        let of = |rules: &Self| {
            (rules.issuer.clone(), rules.audience.clone(), rules.algorithms.clone(), rules.claims.clone())
        };
        of(self) == of(other) && Arc::ptr_eq(&self.keys, &other.keys)
    }
}

#[derive(Debug)]
struct HeaderPointers {
    alg: JsonPointer,
    kid: JsonPointer,
    crit: JsonPointer,
    reader: PointerReader,
}

#[derive(Debug)]
struct PayloadPointers {
    exp: JsonPointer,
    nbf: JsonPointer,
    iss: JsonPointer,
    /// Itself, and its elements.
    aud: Vec<JsonPointer>,
    reader: PointerReader,
}

/// A token that is verified.
pub(super) struct VerifiedToken {
    /// It is no longer valid from then on.
    pub(super) until: Wall,
    /// The values of the claims, in the order of the rules.
    pub(super) values: Box<[ClaimValue]>,
}

impl TokenRules {
    /// Rules for tokens that keys of `keys` have signed.
    pub fn new(
        (issuer, audience): (Option<&str>, Option<&str>),
        algorithms: &[SigningAlgorithm],
        claims: impl IntoIterator<Item = JsonPointer>,
        keys: Arc<KeyStore>,
    ) -> Self {
        let mut once: Vec<JsonPointer> = Vec::new();
        for claim in claims {
            if !once.contains(&claim) {
                once.push(claim);
            }
        }
        let payload = PayloadPointers::new(&once);
        Self {
            issuer: issuer.map(Into::into),
            audience: audience.map(Into::into),
            algorithms: algorithms.to_vec(),
            claims: once,
            keys,
            header: HeaderPointers::new(),
            payload,
        }
    }

    /// The keys that tokens are verified with.
    pub fn keys(&self) -> &Arc<KeyStore> {
        &self.keys
    }

    /// Judges a token. Whether its signature may be checked is asked last: all else costs less.
    pub(super) fn judge(
        &self,
        (token, keys): (&[u8], &KeySet),
        now: Wall,
        may_check: impl FnOnce() -> bool,
    ) -> Result<VerifiedToken, TokenResult> {
        let parts = TokenParts::of(token).ok_or(TokenResult::Malformed)?;
        let (algorithm, id) = self.header(parts.header)?;
        let key = match keys.find(algorithm, id.as_deref()) {
            KeyChoice::Key(key) => key,
            KeyChoice::Unknown => return Err(TokenResult::UnknownKey),
            KeyChoice::Unfit => return Err(TokenResult::Algorithm),
        };
        let verified = self.payload(parts.payload, now)?;
        let signature = decoded(parts.signature).ok_or(TokenResult::Malformed)?;
        if !may_check() {
            return Err(TokenResult::Flooded);
        }
        if key.has_signed(parts.signed, &signature) { Ok(verified) } else { Err(TokenResult::Signature) }
    }

    /// The algorithm of a token, and the name of its key.
    fn header(&self, part: &[u8]) -> Result<(SigningAlgorithm, Option<Box<str>>), TokenResult> {
        let HeaderPointers { alg, kid, crit, reader } = &self.header;
        let header = read(part, reader.clone(), [alg, kid, crit].into_iter()).ok_or(TokenResult::Malformed)?;
        // Extensions that have to be understood are not.
        if *header.value(crit) != FoundValue::Nothing {
            return Err(TokenResult::Malformed);
        }
        let FoundValue::Text(alg) = header.value(alg) else { return Err(TokenResult::Malformed) };
        let algorithm = self.algorithms.iter().find(|own| own.word() == &**alg).ok_or(TokenResult::Algorithm)?;
        let kid = match header.value(kid) {
            FoundValue::Nothing => None,
            FoundValue::Text(kid) => Some(kid.clone()),
            FoundValue::Number(_) | FoundValue::Other => return Err(TokenResult::Malformed),
        };
        Ok((*algorithm, kid))
    }

    /// The claims of a token that is in time, and for us.
    fn payload(&self, part: &[u8], now: Wall) -> Result<VerifiedToken, TokenResult> {
        let PayloadPointers { exp, nbf, iss, aud, reader } = &self.payload;
        let all = [exp, nbf, iss].into_iter().chain(aud).chain(&self.claims);
        let payload = read(part, reader.clone(), all).ok_or(TokenResult::Malformed)?;
        let secs = |pointer| match payload.value(pointer) {
            FoundValue::Number(number) => number.whole().map(Some).ok_or(TokenResult::Malformed),
            FoundValue::Nothing => Ok(None),
            FoundValue::Text(_) | FoundValue::Other => Err(TokenResult::Malformed),
        };
        let until = Wall::from_secs(secs(exp)?.ok_or(TokenResult::Malformed)?) + LEEWAY;
        if now >= until {
            return Err(TokenResult::Expired);
        }
        if secs(nbf)?.is_some_and(|from| now + LEEWAY < Wall::from_secs(from)) {
            return Err(TokenResult::NotYet);
        }
        let says =
            |pointer, wanted: &str| matches!(payload.value(pointer), FoundValue::Text(text) if **text == *wanted);
        let is_issuer = self.issuer.as_ref().is_none_or(|issuer| says(iss, issuer));
        let is_audience = self.audience.as_ref().is_none_or(|own| aud.iter().any(|pointer| says(pointer, own)));
        if !is_issuer || !is_audience {
            return Err(TokenResult::Foreign);
        }
        let values = self.claims.iter().map(|claim| ClaimValue::of(payload.value(claim))).collect();
        Ok(VerifiedToken { until, values })
    }
}

impl HeaderPointers {
    fn new() -> Self {
        let [alg, kid, crit] = ["/alg", "/kid", "/crit"].map(pointer);
        let reader = PointerReader::new([alg.clone(), kid.clone(), crit.clone()], true);
        Self { alg, kid, crit, reader }
    }
}

impl PayloadPointers {
    fn new(claims: &[JsonPointer]) -> Self {
        let [exp, nbf, iss] = ["/exp", "/nbf", "/iss"].map(pointer);
        let elements = (0..MAX_AUDIENCES).map(|place| pointer(&format!("/aud/{place}")));
        let aud: Vec<_> = std::iter::once(pointer("/aud")).chain(elements).collect();
        let all = [&exp, &nbf, &iss].into_iter().chain(&aud).chain(claims);
        let mut once: Vec<JsonPointer> = Vec::new();
        for own in all {
            if !once.contains(own) {
                once.push(own.clone());
            }
        }
        let reader = PointerReader::new(once, true);
        Self { exp, nbf, iss, aud, reader }
    }
}

/// A pointer of ours; the empty one, at which no text is, if it were none.
fn pointer(text: &str) -> JsonPointer {
    JsonPointer::parse(text).unwrap_or_default()
}
