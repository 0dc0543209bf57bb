//! Exceptions as a fleet shares them: fields of its notices. Others write to the store as well, so a field says nothing that its
//! text does not say again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::book::{Id, KeyedExceptions};
use super::written::{StoredException, instant, text};
use crate::admission::{KeyAction, KeyException};
use crate::fleet::{Heard, Notice};
use crate::limiter::Fingerprint;
use crate::state::Mark;
use crate::time::{Span, Wall};
use crate::words::Word as _;

/// An exception that has ended is removed from the store so long after: the clock of another gateway may be behind.
const ENDED_FOR: Span = Span::from_secs(60);

/// The notices heard of a fleet.
#[derive(Debug, Default)]
pub struct HeardExceptions {
    /// The exceptions of keys.
    pub entries: Vec<(Id, KeyedExceptions)>,
    /// The things to be done with keys, by the text that says so.
    pub acts: BTreeMap<String, ActTold>,
    /// Exceptions that ended long ago, by whichever secret: their fields and texts.
    pub ended: Vec<(String, String)>,
}

/// Something that is to be done with a key, as others have told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActTold {
    /// The key.
    pub id: Id,
    /// The parts of it.
    pub by: Arc<str>,
    /// The action.
    pub act: KeyAction,
    /// When.
    pub at: Wall,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAct {
    limit: String,
    by: String,
    secret: String,
    print: String,
    act: String,
    at: String,
}

/// The notice of a key: its exceptions as they are now.
pub fn told(id: &Id, entry: Option<&KeyedExceptions>) -> Notice {
    let text = entry.and_then(|entry| serde_json::to_string(&StoredException::of(id, entry)).ok());
    Notice { fields: vec![(field_of(id), text)], ..Notice::default() }
}

/// The notice of something that is to be done with a key.
pub fn told_act(told: &ActTold) -> Notice {
    let ActTold { id, by, act, at } = told;
    let written = WrittenAct {
        limit: id.limit.to_string(),
        by: by.to_string(),
        secret: format!("{:016x}", id.mark.bits()),
        print: format!("{:016x}", id.print.bits()),
        act: act.word().to_owned(),
        at: at.timestamp().to_string(),
    };
    Notice { fields: vec![(field_of_act(id, *act), serde_json::to_string(&written).ok())], ..Notice::default() }
}

/// Whether a notice is of a key that is known by the secret of this mark.
pub fn is_by(field: &str, mark: Mark) -> bool {
    field.rsplit(':').nth(1) == Some(&*format!("{:016x}", mark.bits()))
}

/// Reads what was heard, as far as it is by the secret of this mark.
pub fn read(heard: &Heard, mark: Mark, now: Wall) -> HeardExceptions {
    let mut read = HeardExceptions::default();
    for (field, text) in &heard.fields {
        if let Some((id, entry)) = serde_json::from_str::<StoredException>(text).ok().and_then(|written| written.read())
        {
            if *field != field_of(&id) {
                continue;
            }
            if is_long_over(&entry.exception, now) {
                read.ended.push((field.clone(), text.clone()));
            } else if id.mark == mark {
                read.entries.push((id, entry));
            }
        } else if let Some(told) = serde_json::from_str(text).ok().and_then(|written| read_act(&written))
            && told.id.mark == mark
            && *field == field_of_act(&told.id, told.act)
        {
            read.acts.insert(text.clone(), told);
        }
    }
    read
}

fn is_long_over(exception: &KeyException, now: Wall) -> bool {
    let KeyException { block, numbers, once: _ } = exception;
    let ends = [block.as_ref().map(|block| block.until), numbers.as_ref().map(|numbers| numbers.until)];
    ends.into_iter().flatten().all(|until| until.is_some_and(|until| now.since(until) >= ENDED_FOR))
}

fn read_act(written: &WrittenAct) -> Option<ActTold> {
    let id = Id {
        limit: text(&written.limit)?,
        mark: Mark::known(u64::from_str_radix(&written.secret, 16).ok()?),
        print: Fingerprint::known(u64::from_str_radix(&written.print, 16).ok()?)?,
    };
    Some(ActTold { id, by: text(&written.by)?, act: KeyAction::from_word(&written.act)?, at: instant(&written.at)? })
}

fn field_of(id: &Id) -> String {
    format!("key:{}:{:016x}:{:016x}", id.limit, id.mark.bits(), id.print.bits())
}

pub(super) fn field_of_act(id: &Id, act: KeyAction) -> String {
    format!("{}:{}:{:016x}:{:016x}", act.word(), id.limit, id.mark.bits(), id.print.bits())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::{Block, KeyException, Made};

    const MARK: Mark = Mark::known(7);

    fn at(seconds: u64) -> Wall {
        Wall::EPOCH + Span::from_secs(1_700_000_000 + seconds)
    }

    fn id(print: u64, mark: Mark) -> Id {
        Id { limit: "per-key".into(), mark, print: Fingerprint::known(print).unwrap() }
    }

    fn entry() -> KeyedExceptions {
        let block = Block { until: Some(at(60)), made: Made { at: at(0), by: "admin".into(), reason: None } };
        let exception = KeyException { block: Some(block), ..KeyException::default() };
        KeyedExceptions { by: "client-ip".into(), shown: "192.0.2.7".into(), exception, misfit: None }
    }

    fn heard(notices: &[Notice]) -> Heard {
        let fields = notices.iter().flat_map(|notice| notice.fields.clone());
        Heard { fields: fields.filter_map(|(field, text)| Some((field, text?))).collect(), is_nothing: false }
    }

    #[test]
    fn what_is_told_is_heard_by_whoever_has_the_secret() {
        let act = ActTold { id: id(2, MARK), by: "client-ip".into(), act: KeyAction::Reset, at: at(5) };
        let other = told(&id(3, Mark::known(8)), Some(&entry()));
        let heard = heard(&[told(&id(1, MARK), Some(&entry())), told_act(&act), other, told(&id(4, MARK), None)]);
        let all = heard.fields.clone();
        assert!(all.keys().all(|field| is_by(field, MARK) != is_by(field, Mark::known(8))));
        let over = super::read(&heard, MARK, at(120));
        assert_eq!(over.entries.len(), 0);
        assert!(over.ended.into_iter().eq(all.into_iter().filter(|(field, _)| field.starts_with("key:"))));
        let read = super::read(&heard, MARK, at(119));
        assert!(read.ended.is_empty(), "the clock of another gateway may be behind");
        assert_eq!(read.entries.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), [id(1, MARK)]);
        assert_eq!(format!("{:?}", read.entries[0].1), format!("{:?}", entry()));
        assert!(read.acts.into_values().eq([act]));
    }

    proptest! {
        #[test]
        fn whatever_others_write_is_left_out_or_read_and_panics_nobody(
            field in "[a-z:0-9]{0,40}", text in "\\PC{0,80}", at in 0usize..300, byte in any::<u8>(),
        ) {
            let fields = BTreeMap::from([(field, text)]);
            let strange = read(&Heard { fields, is_nothing: false }, MARK, Wall::EPOCH);
            prop_assert!(strange.entries.is_empty() && strange.acts.is_empty() && strange.ended.is_empty());
            let (field, json) = told(&id(1, MARK), Some(&entry())).fields.remove(0);
            let mut json = json.unwrap().into_bytes();
            let at = at % json.len();
            json[at] = byte;
            let fields = BTreeMap::from([(field, String::from_utf8_lossy(&json).into_owned())]);
            let heard = Heard { fields, is_nothing: false };
            let read = read(&heard, MARK, Wall::EPOCH);
            prop_assert!(read.entries.len() + read.ended.len() <= 1);
        }
    }
}
