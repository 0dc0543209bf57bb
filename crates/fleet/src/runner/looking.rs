//! Tells what is to be told beside counts, and looks whether others have told something.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{FinishedExchange, Runner, random};
use crate::notices::{Heard, UnsentNotices, notices_key};
use crate::store::{Store, StoreError};

/// How long it may take to tell all, or to read all.
const WITHIN: Duration = Duration::from_secs(5);
/// How long a server may take to remove keys of counts.
const FORGETS: Duration = Duration::from_millis(500);

/// The result of a look.
pub(super) struct Looked {
    /// Of the hash, whose version is this; `None`: it is as it was.
    heard: Option<(Vec<u8>, Heard)>,
    is_told: bool,
    /// Keys of counts that could not be removed.
    not_forgotten: Vec<String>,
    error: Option<StoreError>,
}

/// Keys of counts that are to be removed from one server.
struct ForgottenCounts {
    owner: Option<usize>,
    /// `None`: it is away.
    store: Option<Arc<Store>>,
    keys: Vec<String>,
}

impl Runner {
    /// Tells and looks, one at a time, while the server is asked that has the hash. Keys of counts are removed where each lies.
    pub(super) fn look(&mut self) {
        let key = notices_key(&self.settings.prefix);
        let owner = self.owner_of(&key).and_then(|owner| self.links.get(owner)).filter(|owner| owner.is_up());
        let Some(store) = owner.and_then(|owner| owner.store.clone()).filter(|_| !self.is_looking) else { return };
        self.is_looking = true;
        let mut waiting = self.notices.take();
        let mut forgotten: Vec<ForgottenCounts> = Vec::new();
        for key in std::mem::take(&mut waiting.forgotten) {
            let owner = self.owner_of(&key);
            if let Some(own) = forgotten.iter_mut().find(|own| own.owner == owner) {
                own.keys.push(key);
            } else {
                let link = owner.and_then(|owner| self.links.get(owner)).filter(|link| link.is_up());
                let store = link.and_then(|link| link.store.clone());
                forgotten.push(ForgottenCounts { owner, store, keys: vec![key] });
            }
        }
        let version = format!("{}-{:08x}{:08x}", self.member, random(), random());
        let known = self.known_version.clone();
        self.on_their_way.spawn(async move {
            let not_forgotten = forget(forgotten).await;
            let looked = look(&store, &key, waiting, &version, known.as_ref()).await;
            FinishedExchange::Looked(Box::new(Looked { not_forgotten, ..looked }))
        });
    }

    /// Takes over what has come of it.
    pub(super) fn looked(&mut self, looked: Looked) {
        self.is_looking = false;
        let Looked { heard, is_told, not_forgotten, error } = looked;
        self.notices.put_back_forgotten(not_forgotten);
        if !is_told {
            self.notices.put_back();
        }
        self.notices.note_deaf(error.is_some());
        match error {
            Some(error) if !std::mem::replace(&mut self.said_deaf, true) => {
                self.log_error("exceptions of keys", &error);
            }
            Some(_) => {}
            None => self.said_deaf = false,
        }
        // A gateway that takes it over finds there what it says, or on its way: never neither.
        if let Some((version, heard)) = heard {
            self.known_version = Some(version);
            (self.hears)(heard);
            self.notices.landed();
        }
    }
}

/// Removes them, each server by itself; answers which could not be.
async fn forget(all: Vec<ForgottenCounts>) -> Vec<String> {
    let mut not_forgotten = Vec::new();
    for ForgottenCounts { store, keys, .. } in all {
        let is_done = match store {
            Some(store) => matches!(timeout(FORGETS, store.forget(&keys)).await, Ok(Ok(()))),
            None => false,
        };
        if !is_done {
            not_forgotten.extend(keys);
        }
    }
    not_forgotten
}

async fn look(store: &Arc<Store>, key: &str, waiting: UnsentNotices, version: &str, known: Option<&Vec<u8>>) -> Looked {
    let silent = || StoreError::silent(WITHIN);
    let nothing = Looked { heard: None, is_told: true, not_forgotten: Vec::new(), error: None };
    if !waiting.is_empty() {
        let told = timeout(WITHIN, store.tell(key, &waiting, version)).await.unwrap_or_else(|_| Err(silent()));
        if let Err(error) = told {
            return Looked { is_told: false, error: Some(error), ..nothing };
        }
    }
    let read = async {
        let version = store.version(key).await?;
        if known == Some(&version) {
            return Ok(None);
        }
        let is_nothing = version.is_empty();
        let fields = if is_nothing { std::collections::BTreeMap::new() } else { store.notices(key).await? };
        Ok(Some((version, Heard { fields, is_nothing })))
    };
    match timeout(WITHIN, read).await.unwrap_or_else(|_| Err(silent())) {
        Ok(heard) => Looked { heard, ..nothing },
        Err(error) => Looked { error: Some(error), ..nothing },
    }
}
