//! Sentinels: the one primary that they watch, as the one of them says that knows the newest failover.

use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::endpoint::{Address, StoreEndpoint};
use super::error::StoreError;
use super::nodes::node_at;
use super::wire::{Wire, within};

/// How long a Sentinel may take to answer.
const ANSWERS: Duration = Duration::from_millis(500);
/// Once one has answered, the others have so long.
const OTHERS: Duration = Duration::from_millis(50);

/// A Sentinel's word: where the primary is, since which failover.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    primary: Address,
    epoch: u64,
}

/// Sentinels that are asked again and again.
#[derive(Debug, Default)]
pub(crate) struct Sentinels(Vec<(Address, Option<Wire>)>);

impl Sentinels {
    pub(crate) fn new(addresses: &[Address]) -> Self {
        Self(addresses.iter().map(|address| (address.clone(), None)).collect())
    }

    /// Asks all of them for the primary `name`. One that was away during a failover may name the old primary for a moment: the newest
    /// word counts.
    pub(crate) async fn primary(&mut self, endpoint: &StoreEndpoint, name: &str) -> Result<Address, StoreError> {
        let mut asked = JoinSet::new();
        for (index, (address, wire)) in self.0.iter_mut().enumerate() {
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
                    if newest.as_ref().is_none_or(|newest| word.epoch > newest.epoch) {
                        newest = Some(word);
                    }
                    if let Some((_, kept)) = self.0.get_mut(index) {
                        *kept = Some(wire);
                    }
                }
                Err(failed) => error = Some(failed),
            }
        }
        let silent = || StoreError::silent(ANSWERS);
        newest.map(|newest| newest.primary).ok_or_else(|| match error.unwrap_or_else(silent) {
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
    let reply = wire.ask(redis::cmd("SENTINEL").arg("MASTER").arg(name)).await.map_err(|error| match error {
        StoreError::Refused { said } if said.contains("No such master") => {
            StoreError::NoPrimary { name: name.to_owned() }
        }
        StoreError::Refused { said } if said.contains("unknown command") => StoreError::NotSentinel,
        other => other,
    })?;
    read(&reply, &endpoint.address).ok_or_else(|| StoreError::unexpected(&reply))
}

/// Reads the reply of `SENTINEL MASTER`: names and values in turn.
fn read(reply: &Value, from: &Address) -> Option<Word> {
    let Value::Array(fields) = reply else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let field = |name: &str| {
        let mut pairs = fields.chunks_exact(2).filter_map(|pair| Some((text(pair.first()?)?, text(pair.get(1)?)?)));
        pairs.find(|(own, _)| own == name).map(|(_, value)| value)
    };
    let primary = node_at(&field("ip")?, field("port")?.parse().ok()?, from)?;
    Some(Word { primary, epoch: field("config-epoch")?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_the_primary_and_its_failover() {
        let from = Address::Tcp { host: "s".to_owned(), port: 1 };
        let reply = |fields: &[&str]| {
            Value::Array(fields.iter().map(|field| Value::BulkString(field.as_bytes().to_vec())).collect())
        };
        let whole = ["name", "mymaster", "ip", "10.0.0.5", "port", "6380", "flags", "master", "config-epoch", "7"];
        let primary = Address::Tcp { host: "10.0.0.5".to_owned(), port: 6_380 };
        assert_eq!(read(&reply(&whole), &from), Some(Word { primary, epoch: 7 }));
        for fields in [&whole[..8], &whole[4..], &[], &["ip", "10.0.0.5", "port", "x", "config-epoch", "7"]] {
            assert_eq!(read(&reply(fields), &from), None, "{fields:?}");
        }
        assert_eq!(read(&Value::Nil, &from), None);
    }
}
