//! Tells what is to be told beside counts, and looks whether others have told something.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{FinishedExchange, Runner, random};
use crate::notices::{Heard, UnsentNotices, notices_key};
use crate::store::{Store, StoreError};

/// How long it may take to tell all, or to read all.
const WITHIN: Duration = Duration::from_secs(5);

/// The result of a look.
pub(super) struct Looked {
    /// Of the hash, whose version is this; `None`: it is as it was.
    heard: Option<(Vec<u8>, Heard)>,
    is_told: bool,
    error: Option<StoreError>,
}

impl Runner {
    /// Tells and looks, one at a time, while the store is asked.
    pub(super) fn look(&mut self) {
        let key = notices_key(&self.settings.prefix);
        let owner = self.owner_of(&key).and_then(|owner| self.links.get(owner)).filter(|owner| owner.is_up());
        let Some(store) = owner.and_then(|owner| owner.store.clone()).filter(|_| !self.is_looking) else { return };
        self.is_looking = true;
        let waiting = self.notices.take();
        let version = format!("{}-{:08x}{:08x}", self.member, random(), random());
        let known = self.known_version.clone();
        self.on_their_way.spawn(async move {
            let looked = look(&store, &key, waiting, &version, known.as_ref()).await;
            FinishedExchange::Looked(Box::new(looked))
        });
    }

    /// Takes over what has come of it.
    pub(super) fn looked(&mut self, looked: Looked) {
        self.is_looking = false;
        let Looked { heard, is_told, error } = looked;
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

async fn look(store: &Arc<Store>, key: &str, waiting: UnsentNotices, version: &str, known: Option<&Vec<u8>>) -> Looked {
    let silent = || StoreError::silent(WITHIN);
    let nothing = Looked { heard: None, is_told: true, error: None };
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
