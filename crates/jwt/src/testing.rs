//! An issuer of tokens, for tests.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64ct::{Base64UrlUnpadded, Encoding as _};

/// A key of an issuer.
pub enum IssuerKey {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl IssuerKey {
    pub fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    pub fn p256() -> Self {
        Self::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub fn ed25519() -> Self {
        Self::Ed25519(Ed25519KeyPair::generate().unwrap())
    }

    pub fn alg(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    /// Its public half as a JWK with these members besides: `"kid":"a",`.
    pub fn jwk(&self, members: &str) -> String {
        match self {
            Self::Rsa(key) => {
                let (n, e) = rsa_numbers(key.public_key().as_ref());
                format!("{{{members}\"kty\":\"RSA\",\"n\":\"{}\",\"e\":\"{}\"}}", base64(n), base64(e))
            }
            Self::P256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                format!("{{{members}\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"{}\",\"y\":\"{}\"}}", base64(x), base64(y))
            }
            Self::Ed25519(key) => {
                let x = base64(key.public_key().as_ref());
                format!("{{{members}\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{x}\"}}")
            }
        }
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
                signature
            }
            Self::P256(key) => key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with this header and payload.
    pub fn token_of(&self, header: &str, payload: &str) -> String {
        let signed = format!("{}.{}", base64(header.as_bytes()), base64(payload.as_bytes()));
        let signature = self.sign(signed.as_bytes());
        format!("{signed}.{}", base64(&signature))
    }

    /// A token of the key of that name.
    pub fn token(&self, kid: &str, payload: &str) -> String {
        self.token_of(&format!("{{\"alg\":\"{}\",\"kid\":\"{kid}\"}}", self.alg()), payload)
    }
}

pub fn jwks(keys: &[String]) -> String {
    format!("{{\"keys\":[{}]}}", keys.join(","))
}

pub fn base64(bytes: &[u8]) -> String {
    Base64UrlUnpadded::encode_string(bytes)
}

/// Modulus and exponent of an `RSAPublicKey` in DER, whose numbers are short of 64 KiB.
fn rsa_numbers(der: &[u8]) -> (&[u8], &[u8]) {
    // Where the value of what stands there begins, and how long it is.
    let value = |at: &[u8]| match at[1] {
        0x81 => (3, usize::from(at[2])),
        0x82 => (4, usize::from(at[2]) << 8 | usize::from(at[3])),
        short => (2, usize::from(short)),
    };
    let numbers = &der[value(der).0..];
    let (head, length) = value(numbers);
    let (n, rest) = numbers[head..].split_at(length);
    let (head, length) = value(rest);
    (n.strip_prefix(&[0]).unwrap_or(n), &rest[head..][..length])
}
