//! Verifies JSON Web Tokens (RFC 7519) of issuers whose keys are in a set (RFC 7517), and keeps the results.
//!
//! - `key_set`: the keys of a set that are used. `key_store`: the set that holds now, which the gateway brings.
//! - `token`: the parts of a token, and the values of its claims.
//! - `token_rules`: the rules that a token has to keep, in the order in which they are asked.
//! - `token_cache`: the results of one worker, bounded, and the bound of failed checks of a client.
//!
//! Invariants: signatures are RS256, ES256 or `EdDSA` with Ed25519 (RFC 7518, RFC 8037), and the key says which, never the token
//! alone; a token that is not verified has no claim but by [`unverified_claim`]; whatever the bytes of a token are, the work for
//! it is bounded. It opens no file and no socket and reads no clock. Callers: `config`, which reads sets of keys, `proxy`, which
//! asks for claims, and `gateway`, which fetches keys.

#[macro_use]
extern crate sluicegate_words;

mod key_set;
mod key_store;
mod token;
mod token_cache;
mod token_rules;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use key_set::{KeySet, KeySetError, MAX_JWKS_BYTES, MAX_KEYS, SigningAlgorithm};
pub use key_store::KeyStore;
pub use token::{ClaimValue, MAX_TOKEN_BYTES, unverified_claim};
pub use token_cache::TokenCache;
pub use token_rules::{TokenResult, TokenRules};
