//! The keys of an issuer: RFC 7517.

use std::collections::HashMap;
use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
};
use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde_json::Value;

/// The most bytes of a set.
pub const MAX_JWKS_BYTES: usize = 256 * 1024;
/// The most keys of a set that are used: the first ones.
pub const MAX_KEYS: usize = 64;

/// The most bytes of the name of a key.
const MAX_ID_BYTES: usize = 1024;
/// Bits of the modulus of an RSA key.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;
/// The most bytes of the exponent of an RSA key.
const MAX_EXPONENT_BYTES: usize = 4;

words! {
    /// How a token is signed.
    pub enum SigningAlgorithm {
        /// RSA, PKCS #1 v1.5, with SHA-256.
        Rs256 = "RS256",
        /// ECDSA over P-256 with SHA-256.
        Es256 = "ES256",
        /// Ed25519.
        EdDsa = "EdDSA",
    }
}

/// The keys of a set that are used.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<VerifyingKey>,
    unused: usize,
}

/// Why a text is no set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySetError {
    /// It has more than [`MAX_JWKS_BYTES`].
    TooLarge,
    /// It is no JSON.
    NotJson,
    /// It is no object with a list `keys`.
    NoList,
    /// None of its keys, so many, is used.
    NoneUsed(usize),
}

impl fmt::Display for KeySetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "it has more than {} KiB", MAX_JWKS_BYTES / 1024),
            Self::NotJson => f.write_str("it is no JSON"),
            Self::NoList => f.write_str("it is no object with a list \"keys\""),
            Self::NoneUsed(0) => f.write_str("it has no key"),
            Self::NoneUsed(_) => f.write_str(
                "none of its keys is used: a key is RSA of 2048 to 8192 bits, P-256 or Ed25519, its \"use\" is \"sig\", its \
                 \"alg\" is that of the key, and no other key has its \"kid\"",
            ),
        }
    }
}

impl std::error::Error for KeySetError {}

/// A public key.
#[derive(Clone)]
pub(super) struct VerifyingKey {
    id: Option<Box<str>>,
    algorithm: SigningAlgorithm,
    key: ParsedPublicKey,
}

impl PartialEq for VerifyingKey {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, self.algorithm) == (&other.id, other.algorithm) && self.key.as_ref() == other.key.as_ref()
    }
}

impl Eq for VerifyingKey {}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({} keys)", self.keys.len())
    }
}

impl KeySet {
    /// Reads a set. Keys that are not used are passed over.
    ///
    /// # Errors
    /// A [`KeySetError`]: it is no set, or none of its keys is used.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        if text.len() > MAX_JWKS_BYTES {
            return Err(KeySetError::TooLarge);
        }
        let set: Value = serde_json::from_slice(text).map_err(|_| KeySetError::NotJson)?;
        let written = set.get("keys").and_then(Value::as_array).ok_or(KeySetError::NoList)?;
        let mut keys: Vec<VerifyingKey> = Vec::new();
        for key in written.iter().filter_map(VerifyingKey::read) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut named: HashMap<Box<str>, usize> = HashMap::new();
        for id in keys.iter().filter_map(|key| key.id.clone()) {
            *named.entry(id).or_default() += 1;
        }
        // Of two keys of one name neither is the one that is meant.
        keys.retain(|key| key.id.as_ref().is_none_or(|id| named.get(id) == Some(&1)));
        keys.truncate(MAX_KEYS);
        if keys.is_empty() {
            return Err(KeySetError::NoneUsed(written.len()));
        }
        Ok(Self { unused: written.len().saturating_sub(keys.len()), keys })
    }

    /// How many keys are used.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many keys were written and are not used.
    pub fn unused(&self) -> usize {
        self.unused
    }

    /// The key that a token of this algorithm is to be checked with: the one of that name, or for a token that names none the
    /// only one that fits.
    pub(super) fn find(&self, algorithm: SigningAlgorithm, id: Option<&str>) -> KeyChoice<'_> {
        let Some(id) = id else {
            let mut fitting = self.keys.iter().filter(|key| key.algorithm == algorithm);
            return match (fitting.next(), fitting.next()) {
                (Some(key), None) => KeyChoice::Key(key),
                _ => KeyChoice::Unfit,
            };
        };
        match self.keys.iter().find(|key| key.id.as_deref() == Some(id)) {
            None => KeyChoice::Unknown,
            Some(key) if key.algorithm != algorithm => KeyChoice::Unfit,
            Some(key) => KeyChoice::Key(key),
        }
    }
}

/// The key for a token.
pub(super) enum KeyChoice<'k> {
    Key(&'k VerifyingKey),
    /// No key has that name.
    Unknown,
    /// That key is of another algorithm, or several keys fit, or none.
    Unfit,
}

impl VerifyingKey {
    /// Whether it is the signature of a message.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.verify_sig(message, signature).is_ok()
    }

    /// Reads a key of a set; `None`: it is not used.
    fn read(written: &Value) -> Option<Self> {
        let text = |name: &str| written.get(name).and_then(Value::as_str);
        let is_for_signatures = written.get("use").is_none_or(|own| own == "sig");
        let verifies = |operations: &Value| {
            operations.as_array().is_some_and(|operations| operations.iter().any(|own| own == "verify"))
        };
        if !is_for_signatures || !written.get("key_ops").is_none_or(verifies) {
            return None;
        }
        let id: Option<Box<str>> = match written.get("kid") {
            None => None,
            Some(id) => Some(id.as_str().filter(|id| (1..=MAX_ID_BYTES).contains(&id.len()))?.into()),
        };
        let bytes = |name: &str| Base64UrlUnpadded::decode_vec(text(name)?).ok();
        let (algorithm, key) = match (text("kty")?, text("crv")) {
            ("RSA", _) => (SigningAlgorithm::Rs256, rsa_key(&bytes("n")?, &bytes("e")?)?),
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes("x")?, bytes("y")?);
                let is_whole = x.len() == 32 && y.len() == 32;
                let point = is_whole.then(|| [&[4][..], &x, &y].concat())?;
                (SigningAlgorithm::Es256, ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).ok()?)
            }
            ("OKP", Some("Ed25519")) => {
                let point = bytes("x").filter(|point| point.len() == 32)?;
                (SigningAlgorithm::EdDsa, ParsedPublicKey::new(&ED25519, point).ok()?)
            }
            _ => return None,
        };
        if written.get("alg").is_some_and(|own| own != algorithm.word()) {
            return None;
        }
        Some(Self { id, algorithm, key })
    }
}

/// An RSA key that is long enough, and has an exponent that is one.
fn rsa_key(modulus: &[u8], exponent: &[u8]) -> Option<ParsedPublicKey> {
    let (modulus, exponent) = (without_zeros(modulus), without_zeros(exponent));
    let bits = modulus.len() * 8 - modulus.first().map_or(0, |first| first.leading_zeros() as usize);
    let is_odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
    let is_exponent = exponent.len() <= MAX_EXPONENT_BYTES && is_odd(exponent) && exponent != [1];
    if !RSA_BITS.contains(&bits) || !is_odd(modulus) || !is_exponent {
        return None;
    }
    RsaPublicKeyComponents { n: modulus, e: exponent }.to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256).ok()
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}
