//! The keys of `[jwt]`: those of a file, which come with a reload, and those of an address, which a thread asks for.
//!
//! Its parts: [`TokenKeys`], the component; `fetch`, which asks once; `pace`, which says when to ask again.

mod fetch;
mod pace;
mod thread;

use std::sync::Arc;

use self::thread::Fetching;
use super::component::Component;
use super::error::BuildError;
use crate::config::{JwksSource, Model};
use crate::jwt::{KeyStore, TokenRules};
use crate::time::Clock;

/// The keys of a generation.
pub struct TokenKeys {
    clock: Clock,
    running: Option<RunningKeys>,
}

/// Keys that are in use.
struct RunningKeys {
    source: JwksSource,
    store: Arc<KeyStore>,
    /// Of an address.
    _fetching: Option<Fetching>,
}

/// Keys that are ready; nothing, where no key of the file is made of a claim.
#[derive(Default)]
pub struct NewTokenKeys {
    source: Option<JwksSource>,
    /// The rules that tokens have to keep.
    pub rules: Option<Arc<TokenRules>>,
}

impl TokenKeys {
    /// None yet.
    pub fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), running: None }
    }
}

impl Component for TokenKeys {
    type Needs<'n> = ();
    type Staged = NewTokenKeys;

    fn stage(&self, model: &Arc<Model>, (): ()) -> Result<NewTokenKeys, BuildError> {
        let claims = model.jwt_claims();
        let Some(jwt) = model.jwt.as_ref().filter(|_| !claims.is_empty()) else { return Ok(NewTokenKeys::default()) };
        let running = self.running.as_ref().filter(|running| running.source.is_at_place_of(&jwt.jwks));
        let store = running.map_or_else(Arc::default, |running| Arc::clone(&running.store));
        let claims = claims.iter().map(|claim| claim.pointer().clone());
        let named = (jwt.issuer.as_deref(), jwt.audience.as_deref());
        let rules = TokenRules::new(named, &jwt.algorithms, claims, store);
        Ok(NewTokenKeys { source: Some(jwt.jwks.clone()), rules: Some(Arc::new(rules)) })
    }

    fn commit(&mut self, staged: NewTokenKeys) {
        let (Some(source), Some(rules)) = (staged.source, staged.rules) else {
            self.running = None;
            return;
        };
        let store = rules.keys();
        if let JwksSource::File(file) = &source
            && let Some(keys) = file.keys()
        {
            store.set(keys.clone());
        }
        match &mut self.running {
            Some(running) if Arc::ptr_eq(&running.store, store) => running.source = source,
            running => {
                let fetching = match &source {
                    JwksSource::File(_) => None,
                    JwksSource::Url(address) => Fetching::start(address, store, &self.clock),
                };
                *running = Some(RunningKeys { source, store: Arc::clone(store), _fetching: fetching });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::testing::model;

    fn keys() -> TokenKeys {
        TokenKeys::new(&Clock::system())
    }

    fn with(jwt: &str, key: &str) -> Arc<Model> {
        model(&format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[jwt]\n{jwt}\n\
             [[limit]]\nname = \"l\"\nrate = \"9/s\"\nkey = \"{key}\"\n\
             [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"l\"]\n"
        ))
    }

    #[test]
    fn keys_stay_over_a_reload_as_long_as_their_place_does() {
        let mut keys = keys();
        let here = "jwks = \"http://127.0.0.1:1/jwks.json\"";
        let staged = keys.stage(&with(here, "jwt:sub"), ()).unwrap();
        assert!(keys.running.is_none(), "nothing has changed yet");
        let first = Arc::clone(staged.rules.as_ref().unwrap().keys());
        keys.commit(staged);
        let staged = keys.stage(&with(&format!("{here}\nissuer = \"a\""), "jwt:sub"), ()).unwrap();
        assert!(Arc::ptr_eq(staged.rules.as_ref().unwrap().keys(), &first));
        keys.commit(staged);
        let staged = keys.stage(&with("jwks = \"http://127.0.0.1:1/other.json\"", "jwt:sub"), ()).unwrap();
        assert!(!Arc::ptr_eq(staged.rules.as_ref().unwrap().keys(), &first));
        drop(staged);
        assert!(Arc::ptr_eq(&keys.running.as_ref().unwrap().store, &first), "a stage that is dropped leaves no trace");
    }

    #[test]
    fn without_a_key_that_asks_for_a_claim_there_is_nothing() {
        let mut keys = keys();
        for key in ["client-ip", "jwt-unverified:sub"] {
            let staged = keys.stage(&with("jwks = \"http://127.0.0.1:1/jwks.json\"", key), ()).unwrap();
            assert!(staged.rules.is_none(), "{key}");
            keys.commit(staged);
            assert!(keys.running.is_none(), "{key}");
        }
    }
}
