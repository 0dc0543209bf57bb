//! The hash of notices: written field by field, read page by page, so that settles of the same connection wait for a page at most.

use std::collections::BTreeMap;

use redis::{Cmd, Pipeline, Value};

use super::{Store, StoreError, accepted};
use crate::notices::{MAX_NOTICE, MAX_NOTICES, UnsentNotices};

/// The field that changes with each change.
const VERSION: &str = "version";
/// Commands that are sent together, and fields of a page, about.
const TOGETHER: usize = 128;
/// Removes a field that still has this text.
const REMOVE: &str =
    "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end return 0";
/// Bytes that are read of the whole hash.
const MAX_BYTES: usize = 32 << 20;

impl Store {
    /// Tells what waits. From then on the version is `version`, if anything changes by it.
    pub(crate) async fn tell(&self, key: &str, waiting: &UnsentNotices, version: &str) -> Result<(), StoreError> {
        let mut commands: Vec<Cmd> = Vec::new();
        for (field, text) in &waiting.fields {
            commands.push(match text {
                Some(text) => redis::cmd("HSET").arg(key).arg(field).arg(text).to_owned(),
                None => redis::cmd("HDEL").arg(key).arg(field).to_owned(),
            });
        }
        // Last: who sees it sees all before it.
        if !commands.is_empty() {
            commands.push(redis::cmd("HSET").arg(key).arg(VERSION).arg(version).to_owned());
        }
        self.send_together(&commands).await?;
        if !waiting.ended.is_empty() {
            // It changes nothing for anybody, so it is no other version, and a store that refuses it just keeps them.
            drop(self.remove_ended(key, &waiting.ended).await);
        }
        Ok(())
    }

    /// Removes keys of counts that lie here.
    pub(crate) async fn forget(&self, keys: &[String]) -> Result<(), StoreError> {
        let remove = |key: &String| redis::cmd("DEL").arg(key).to_owned();
        self.send_together(&keys.iter().map(remove).collect::<Vec<_>>()).await
    }

    async fn remove_ended(&self, key: &str, ended: &BTreeMap<String, String>) -> Result<(), StoreError> {
        let digest = self.wire.text(redis::cmd("SCRIPT").arg("LOAD").arg(REMOVE)).await?;
        let remove = |(field, text)| redis::cmd("EVALSHA").arg(&digest).arg(1).arg(key).arg(field).arg(text).to_owned();
        self.send_together(&ended.iter().map(remove).collect::<Vec<_>>()).await
    }

    async fn send_together(&self, commands: &[Cmd]) -> Result<(), StoreError> {
        for together in commands.chunks(TOGETHER) {
            let mut pipeline = Pipeline::with_capacity(together.len());
            for command in together {
                pipeline.add_command(command.clone());
            }
            for reply in self.wire.together(&pipeline, together.len()).await? {
                accepted(Ok(reply))?;
            }
        }
        Ok(())
    }

    /// The version; empty: there is no hash.
    pub(crate) async fn version(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        match self.wire.ask(redis::cmd("HGET").arg(key).arg(VERSION)).await? {
            Value::BulkString(version) => Ok(version),
            Value::Nil => Ok(Vec::new()),
            other => Err(StoreError::unexpected(&other)),
        }
    }

    /// All fields but the version. A field that is too long, or no text, is left out; of too many the rest is.
    pub(crate) async fn notices(&self, key: &str) -> Result<BTreeMap<String, String>, StoreError> {
        let (mut fields, mut bytes, mut cursor) = (BTreeMap::new(), 0_usize, b"0".to_vec());
        // Each page is one of a hash that has at most so many, unless somebody fills it without end.
        for _ in 0..MAX_NOTICES {
            let reply = self.wire.ask(redis::cmd("HSCAN").arg(key).arg(&cursor).arg("COUNT").arg(TOGETHER)).await?;
            let (next, page) = page(&reply).ok_or_else(|| StoreError::unexpected(&reply))?;
            for (field, text) in page {
                bytes += field.len() + text.len();
                if field != VERSION && field.len() + text.len() <= MAX_NOTICE {
                    fields.insert(field, text);
                }
            }
            if next == b"0" || fields.len() >= MAX_NOTICES || bytes >= MAX_BYTES {
                break;
            }
            cursor = next;
        }
        Ok(fields)
    }
}

type NoticeFields = Vec<(String, String)>;

/// Where the next page begins, and the fields of this one.
fn page(reply: &Value) -> Option<(Vec<u8>, NoticeFields)> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(next), Value::Array(fields)] = parts.as_slice() else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let pairs = fields.chunks_exact(2);
    let fields = pairs.filter_map(|pair| Some((text(pair.first()?)?, text(pair.get(1)?)?)));
    Some((next.clone(), fields.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Value {
        Value::Array(texts.iter().map(|text| Value::BulkString(text.as_bytes().to_vec())).collect())
    }

    #[test]
    fn a_page_is_read_and_another_shape_is_none() {
        let zero = || Value::BulkString(b"0".to_vec());
        let read = page(&Value::Array(vec![zero(), texts(&["a", "1", "b", "2", "odd"])])).unwrap();
        assert_eq!(read, (b"0".to_vec(), vec![("a".into(), "1".into()), ("b".into(), "2".into())]));
        let not_text = Value::Array(vec![Value::BulkString(vec![0xff]), zero()]);
        assert_eq!(page(&Value::Array(vec![zero(), not_text])), Some((b"0".to_vec(), Vec::new())));
        for reply in
            [Value::Nil, Value::Array(vec![]), Value::Array(vec![Value::Int(0), texts(&[])]), texts(&["0", "a"])]
        {
            assert_eq!(page(&reply), None, "{reply:?}");
        }
    }
}
