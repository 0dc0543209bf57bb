//! Keeps what a record redacts where only the holder of a key can read it: AES-256-GCM (NIST SP 800-38D).
//!
//! A key is 32 bytes of a file. Each process seals under a key of its own: HMAC-SHA-256 of 128 random bits, drawn when the
//! file is read, under the key of the file. So nonces are numbers that count up, and none is used twice,
//! however many records, restarts and gateways share the file. All of the line that stands before the seal is authenticated
//! with it: a line that somebody has changed does not open, and no value can be moved to another header or host. The text is
//! filled up with blanks to a multiple of 128 bytes, so that its length says little about a password.
//!
//! Form, in base64: 16 bytes of salt, 8 bytes of the number, the ciphertext, 16 bytes of tag.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64ct::{Base64, Encoding as _};
use hmac::{Hmac, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes of a key.
const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
const NUMBER_BYTES: usize = 8;
/// The text that is sealed is a multiple of so many bytes.
const BLOCK: usize = 128;
/// The beginning of the seal in a line. In a text of the line its quotes would be escaped.
const SEALED: &[u8] = b",\"sealed\":";
/// Hex digits of the id of a key.
const ID_DIGITS: usize = 8;

/// The parts of a request that its record does not show, as they came.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hidden {
    /// Its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Values of headers, by their places in the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(usize, String)>,
    /// Its body, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// The field of a record that stands for them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Sealed {
    /// The id of the key.
    pub key: String,
    /// In base64.
    pub data: String,
}

/// Seals, under one key.
pub(super) struct Sealer {
    id: String,
    salt: [u8; SALT_BYTES],
    key: LessSafeKey,
    number: u64,
}

/// Opens what was sealed under one key.
pub struct Opener {
    id: String,
    key: [u8; KEY_BYTES],
}

/// Why nothing is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It was sealed under another key, of this id.
    OtherKey(String),
    /// It was not sealed for this line.
    Damaged,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherKey(id) => write!(f, "it is sealed under another key, {id:?}"),
            Self::Damaged => f.write_str("its seal is damaged, or the record was changed"),
        }
    }
}

impl std::error::Error for OpenError {}

impl Hidden {
    /// Its body.
    pub fn body_bytes(&self) -> Option<Vec<u8>> {
        Base64::decode_vec(self.body.as_ref()?).ok()
    }

    /// Whether the record shows all.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Sealer {
    /// With a key. `None` where the library has no random bytes or takes no such key: it has always had them.
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Option<Self> {
        let mut salt = [0; SALT_BYTES];
        aws_lc_rs::rand::fill(&mut salt).ok()?;
        Some(Self { id: id_of(key), salt, key: key_under(key, &salt)?, number: 0 })
    }

    /// The id of the key.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Seals them for a record whose line begins so.
    pub(super) fn seal(&mut self, before: &[u8], hidden: &Hidden) -> Option<String> {
        let mut text = serde_json::to_vec(hidden).ok()?;
        text.resize(text.len().next_multiple_of(BLOCK), b' ');
        Some(Base64::encode_string(&self.seal_bytes(before, text)?))
    }

    /// Seals bytes for one place, which `place` names.
    pub(super) fn seal_bytes(&mut self, place: &[u8], mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        self.number += 1;
        let number = self.number.to_be_bytes();
        self.key.seal_in_place_append_tag(nonce(number), Aad::from(place), &mut bytes).ok()?;
        let mut all = Vec::with_capacity(SALT_BYTES + NUMBER_BYTES + bytes.len());
        all.extend_from_slice(&self.salt);
        all.extend_from_slice(&number);
        all.extend_from_slice(&bytes);
        Some(all)
    }
}

impl Opener {
    /// With a key.
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self { id: id_of(key), key: *key }
    }

    /// The parts that a record does not show, of its line.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, line: &[u8], sealed: &Sealed) -> Result<Hidden, OpenError> {
        if sealed.key != self.id {
            return Err(OpenError::OtherKey(sealed.key.clone()));
        }
        self.opened(line, &sealed.data).ok_or(OpenError::Damaged)
    }

    fn opened(&self, line: &[u8], data: &str) -> Option<Hidden> {
        let before = line.windows(SEALED.len()).position(|bytes| bytes == SEALED).and_then(|at| line.get(..at))?;
        serde_json::from_slice(&self.opened_bytes(before, &Base64::decode_vec(data).ok()?)?).ok()
    }

    /// The bytes that were sealed for this place under the key of this id.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(super) fn open_bytes(&self, place: &[u8], key: &str, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        if key != self.id {
            return Err(OpenError::OtherKey(key.to_owned()));
        }
        self.opened_bytes(place, sealed).ok_or(OpenError::Damaged)
    }

    fn opened_bytes(&self, place: &[u8], all: &[u8]) -> Option<Vec<u8>> {
        let (salt, rest) = all.split_first_chunk::<SALT_BYTES>()?;
        let (number, text) = rest.split_first_chunk::<NUMBER_BYTES>()?;
        let mut bytes = text.to_vec();
        let key = key_under(&self.key, salt)?;
        let length = key.open_in_place(nonce(*number), Aad::from(place), &mut bytes).ok()?.len();
        bytes.truncate(length);
        Some(bytes)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({:?})", self.id)
    }
}

/// The key of a process.
fn key_under(key: &[u8; KEY_BYTES], salt: &[u8]) -> Option<LessSafeKey> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(b"sluicegate dead-letter seal 1\0");
    mac.update(salt);
    UnboundKey::new(&AES_256_GCM, &mac.finalize().into_bytes()).ok().map(LessSafeKey::new)
}

fn nonce(number: [u8; NUMBER_BYTES]) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - NUMBER_BYTES..].copy_from_slice(&number);
    Nonce::assume_unique_for_key(nonce)
}

/// Tells keys apart, and nothing of them.
fn id_of(key: &[u8; KEY_BYTES]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"sluicegate dead-letter seal key\0");
    hash.update(key);
    let mut id = format!("{:x}", hash.finalize());
    id.truncate(ID_DIGITS);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

    fn hidden() -> Hidden {
        Hidden {
            host: Some("user:pass@a.example".into()),
            path: None,
            query: Some("token=é\"".into()),
            headers: vec![(3, "Bearer s3cret".into())],
            body: None,
        }
    }

    const ONE: &[u8] = br#"{"v":1,"id":"one""#;

    fn sealed(sealer: &mut Sealer) -> Sealed {
        Sealed { key: sealer.id().to_owned(), data: sealer.seal(ONE, &hidden()).unwrap() }
    }

    /// A line that begins with this.
    fn line(before: &[u8]) -> Vec<u8> {
        [before, br#","sealed":{"key":"","data":""},"crc":"00000000"}"#].concat()
    }

    #[test]
    fn it_opens_for_its_record_under_its_key_and_for_nothing_else() {
        let mut sealer = Sealer::new(&KEY).unwrap();
        let kept = sealed(&mut sealer);
        let opener = Opener::new(&KEY);
        assert_eq!(opener.open(&line(ONE), &kept), Ok(hidden()));
        assert_eq!(opener.open(&line(br#"{"v":1,"id":"two""#), &kept), Err(OpenError::Damaged));
        let other = Opener::new(&[8; KEY_BYTES]);
        assert_eq!(other.open(&line(ONE), &kept), Err(OpenError::OtherKey(kept.key.clone())));
        let renamed = Sealed { key: other.id.clone(), data: kept.data.clone() };
        assert_eq!(other.open(&line(ONE), &renamed), Err(OpenError::Damaged));
        // The key of the file, not of the process, opens it.
        assert_eq!(Opener::new(&KEY).open(&line(ONE), &sealed(&mut Sealer::new(&KEY).unwrap())), Ok(hidden()));
    }

    #[test]
    fn no_byte_of_it_may_change_and_none_may_be_missing() {
        let kept = sealed(&mut Sealer::new(&KEY).unwrap());
        let opener = Opener::new(&KEY);
        let all = Base64::decode_vec(&kept.data).unwrap();
        for at in 0..all.len() {
            let mut changed = all.clone();
            changed[at] ^= 1;
            for bytes in [&changed[..], &all[..at]] {
                let other = Sealed { key: kept.key.clone(), data: Base64::encode_string(bytes) };
                assert_eq!(opener.open(&line(ONE), &other), Err(OpenError::Damaged), "byte {at}");
            }
        }
        let no_base64 = Sealed { key: kept.key.clone(), data: "%%".into() };
        assert_eq!(opener.open(&line(ONE), &no_base64), Err(OpenError::Damaged));
    }

    #[test]
    fn equal_texts_are_never_sealed_alike_and_show_nothing() {
        let mut sealer = Sealer::new(&KEY).unwrap();
        let all: std::collections::BTreeSet<_> = (0..100).map(|_| sealer.seal(ONE, &hidden()).unwrap()).collect();
        assert_eq!(all.len(), 100);
        let mut again = Sealer::new(&KEY).unwrap();
        assert!(!all.contains(&again.seal(ONE, &hidden()).unwrap()), "a restart begins with another salt");
        for data in all {
            let bytes = Base64::decode_vec(&data).unwrap();
            assert!(!bytes.windows(6).any(|six| six == b"s3cret"));
        }
    }

    #[test]
    fn the_length_says_little_of_the_values() {
        let mut sealer = Sealer::new(&KEY).unwrap();
        let mut length = |value: &str| {
            let hidden = Hidden { headers: vec![(0, value.to_owned())], ..Hidden::default() };
            sealer.seal(ONE, &hidden).unwrap().len()
        };
        assert_eq!(length("a"), length("a password of fifty characters and a few more of it"));
        assert!(length(&"a".repeat(200)) > length("a"));
    }

    #[test]
    fn the_id_of_a_key_does_not_change() {
        assert_eq!(id_of(&KEY), "22cb0c19");
    }

    /// Made by another implementation (pyca/cryptography), as docs/operating.md shows it.
    #[test]
    fn what_another_implementation_has_sealed_opens() {
        let data = "AAECAwQFBgcICQoLDA0ODwAAAAAAAAABrN1ToBDsWvQEDyqVIaJM+TGssbA2l8L7iMaYqz8j4rTNZ8I=".into();
        let sealed = Sealed { key: "22cb0c19".into(), data };
        let hidden = Hidden { query: Some("token=x".into()), ..Hidden::default() };
        assert_eq!(Opener::new(&KEY).open(br#"{"v":1,"id":"one","sealed":{}"#, &sealed), Ok(hidden));
    }
}
