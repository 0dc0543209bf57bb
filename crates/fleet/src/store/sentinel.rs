//! Sentinels: the one primary that they watch, as the one of them says that knows the newest failover.

use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::endpoint::{Address, StoreEndpoint};
use super::error::StoreError;
use super::redirect::node_at;
use super::wire::{Wire, accepted, within};

/// How long a Sentinel may take to answer.
const ANSWERS: Duration = Duration::from_millis(500);
/// Once one has answered, the others have so long.
const OTHERS: Duration = Duration::from_millis(100);
/// After so many searches in which all words were of before the newest failover that was heard of, they count: the Sentinels
/// were set up anew.
const OLD_WORDS: u32 = 40;

/// A Sentinel's word: where the primary is, since which failover.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    primary: Address,
    epoch: u64,
}

/// Sentinels that are asked again and again.
#[derive(Debug, Default)]
pub(crate) struct Sentinels {
    all: Vec<(Address, Option<Wire>)>,
    /// The newest word ever heard.
    newest: Option<Word>,
    /// So many searches have heard only older ones since.
    old_words: u32,
}

impl Sentinels {
    pub(crate) fn new(addresses: &[Address]) -> Self {
        Self { all: addresses.iter().map(|address| (address.clone(), None)).collect(), ..Self::default() }
    }

    /// Asks all of them for the primary `name`. One that was away during a failover may name the old primary for a moment, alone
    /// too: the newest word counts that was ever heard.
    pub(crate) async fn primary(&mut self, endpoint: &StoreEndpoint, name: &str) -> Result<Address, StoreError> {
        let heard = self.ask_all(endpoint, name).await?;
        self.judge(heard)
    }

    /// Takes the newest word of a search.
    fn judge(&mut self, heard: Word) -> Result<Address, StoreError> {
        let is_old = self.newest.as_ref().is_some_and(|newest| heard.epoch < newest.epoch);
        self.old_words = if is_old { self.old_words + 1 } else { 0 };
        if is_old && self.old_words < OLD_WORDS {
            let reason = "it does not know of the newest failover".into();
            return Err(StoreError::NoSentinel { reason });
        }
        Ok(self.newest.insert(heard).primary.clone())
    }

    /// Of two words of the same failover the one that names the primary that is used counts.
    fn is_better(&self, word: &Word, than: &Word) -> bool {
        let is_known = |word: &Word| self.newest.as_ref().is_some_and(|newest| newest.primary == word.primary);
        word.epoch > than.epoch || word.epoch == than.epoch && is_known(word) && !is_known(than)
    }

    async fn ask_all(&mut self, endpoint: &StoreEndpoint, name: &str) -> Result<Word, StoreError> {
        let mut asked = JoinSet::new();
        for (index, (address, wire)) in self.all.iter_mut().enumerate() {
            let (wire, name) = (wire.take(), name.to_owned());
            let endpoint = StoreEndpoint { address: address.clone(), ..endpoint.clone() };
            asked.spawn(async move { (index, ask(wire, &endpoint, &name).await) });
        }
        let (mut newest, mut error) = (None::<Word>, None);
        let late = sleep(ANSWERS + OTHERS);
        tokio::pin!(late);
        loop {
            let told = tokio::select! {
                told = asked.join_next() => told,
                () = &mut late => None,
            };
            let Some(told) = told else { break };
            let Ok((index, told)) = told else { continue };
            match told {
                Ok((word, wire)) => {
                    if newest.is_none() {
                        late.set(sleep(OTHERS));
                    }
                    if newest.as_ref().is_none_or(|newest| self.is_better(&word, newest)) {
                        newest = Some(word);
                    }
                    if let Some((_, kept)) = self.all.get_mut(index) {
                        *kept = Some(wire);
                    }
                }
                Err(failed) => error = Some(failed),
            }
        }
        let silent = || StoreError::silent(ANSWERS);
        newest.ok_or_else(|| match error.unwrap_or_else(silent) {
            known @ StoreError::NoPrimary { .. } => known,
            other => StoreError::NoSentinel { reason: other.to_string().into() },
        })
    }
}

async fn ask(wire: Option<Wire>, endpoint: &StoreEndpoint, name: &str) -> Result<(Word, Wire), StoreError> {
    within(ANSWERS, async |is_shaking| {
        // A connection that was kept may have ended since.
        if let Some(wire) = wire
            && let Ok(word) = word(&wire, endpoint, name).await
        {
            return Ok((word, wire));
        }
        let wire = Wire::open(endpoint, &is_shaking).await?;
        let word = match word(&wire, endpoint, name).await {
            // Sentinels may want a password, or have none where the store wants one.
            Err(StoreError::NoPassword) if endpoint.password.is_some() => {
                wire.log_in(endpoint).await?;
                word(&wire, endpoint, name).await?
            }
            word => word?,
        };
        Ok((word, wire))
    })
    .await
}

async fn word(wire: &Wire, endpoint: &StoreEndpoint, name: &str) -> Result<Word, StoreError> {
    // Of the two only the first names the new primary from the moment on at which there is one.
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    pipeline.cmd("SENTINEL").arg("MASTER").arg(name);
    let told = wire.together(&pipeline, 2).await?;
    let told: Vec<_> =
        told.into_iter().map(|reply| accepted(Ok(reply))).collect::<Result<_, _>>().map_err(|error| match error {
            StoreError::Refused { said } if said.contains("No such master") => {
                StoreError::NoPrimary { name: name.to_owned() }
            }
            StoreError::Refused { said } if said.contains("unknown command") => StoreError::NotSentinel,
            other => other,
        })?;
    let [address, state] = told.as_slice() else { return Err(StoreError::unexpected(&Value::Array(told))) };
    if *address == Value::Nil {
        return Err(StoreError::NoPrimary { name: name.to_owned() });
    }
    read((address, state), &endpoint.address).ok_or_else(|| StoreError::unexpected(state))
}

/// Reads the replies of `SENTINEL GET-MASTER-ADDR-BY-NAME`, host and port, and of `SENTINEL MASTER`: names and values in turn.
fn read((address, state): (&Value, &Value), from: &Address) -> Option<Word> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let (Value::Array(address), Value::Array(fields)) = (address, state) else { return None };
    let [host, port] = address.as_slice() else { return None };
    let mut pairs = fields.chunks_exact(2).filter_map(|pair| Some((text(pair.first()?)?, text(pair.get(1)?)?)));
    let (_, epoch) = pairs.find(|(name, _)| name == "config-epoch")?;
    let primary = node_at(&text(host)?, text(port)?.parse().ok()?, from)?;
    Some(Word { primary, epoch: epoch.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn a_word_names_the_primary_and_its_failover() {
        let texts = |fields: &[&str]| {
            Value::Array(fields.iter().map(|field| Value::BulkString(field.as_bytes().to_vec())).collect())
        };
        let read = |address: &[&str], state: &[&str]| read((&texts(address), &texts(state)), &at("s", 1));
        let whole = ["name", "mymaster", "ip", "10.0.0.4", "flags", "master", "config-epoch", "7"];
        let word = Some(Word { primary: at("10.0.0.5", 6_380), epoch: 7 });
        assert_eq!(read(&["10.0.0.5", "6380"], &whole), word, "the state may name the old one");
        for (address, state) in [
            (&["10.0.0.5"][..], &whole[..]),
            (&["10.0.0.5", "x"], &whole),
            (&["10.0.0.5", "0"], &whole),
            (&["10.0.0.5", "6380"], &whole[..6]),
            (&["10.0.0.5", "6380"], &["config-epoch", "x"]),
            (&[], &[]),
        ] {
            assert_eq!(read(address, state), None, "{address:?} {state:?}");
        }
    }

    #[test]
    fn the_word_of_the_newest_failover_holds_until_there_is_a_newer_one() {
        let mut sentinels = Sentinels::new(&[]);
        let mut judge = |port, epoch| sentinels.judge(Word { primary: at("a", port), epoch }).ok();
        assert_eq!(judge(1, 5), Some(at("a", 1)));
        assert_eq!(judge(2, 6), Some(at("a", 2)));
        for _ in 1..OLD_WORDS {
            assert_eq!(judge(1, 5), None, "one that was away names the old primary");
        }
        assert_eq!(judge(1, 5), Some(at("a", 1)), "for ten seconds nobody knows of another: they were set up anew");
        assert_eq!(judge(3, 5), Some(at("a", 3)));
        let word = |port, epoch| Word { primary: at("a", port), epoch };
        assert!(sentinels.is_better(&word(3, 5), &word(4, 5)) && !sentinels.is_better(&word(4, 5), &word(3, 5)));
        assert!(sentinels.is_better(&word(4, 6), &word(3, 5)));
    }
}
