//! Notices that gateways send each other beside counts: a hash in the store, of short texts that this room does not understand.
//!
//! Each change writes its fields and then another `version`; each gateway looks at the version a few times a second, and reads the
//! hash when it is another. A gateway that reads in between sees a newer field, and the version soon after. Notices
//! that could not be told are kept, the last word for each field, and told when the store answers again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use sluicegate_time::Span;

/// How often a gateway looks whether another has told something.
pub(super) const LOOKS: Span = Span::from_millis(400);
/// Fields of the hash, and those that wait to be told.
pub const MAX_NOTICES: usize = 24_000;
/// Bytes of a field's name and its text.
pub const MAX_NOTICE: usize = 8 * 1024;
/// Keys of counts that wait to be removed from the store.
const MAX_FORGOTTEN: usize = 10_000;

/// The name of the hash.
pub fn notices_key(prefix: &str) -> String {
    format!("{prefix}:exceptions")
}

/// Something to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Fields and their texts; `None`: the field is removed.
    pub fields: Vec<(String, Option<String>)>,
    /// Keys of counts, which are removed from the store before that.
    pub forgotten: Vec<String>,
    /// Fields that are over, with the text that they had: each is removed if that still is its text. Another gateway may have
    /// written a newer one meanwhile.
    pub ended: Vec<(String, String)>,
}

/// The hash, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Its fields, with what this gateway has not told yet.
    pub fields: BTreeMap<String, String>,
    /// The store knows of nothing: it is new, or has lost what it knew.
    pub is_nothing: bool,
}

/// Takes what was heard. It is called on the fleet's own thread: it must not block.
pub type Hears = Box<dyn Fn(Heard) + Send>;

/// Notices that are told and heard, between the gateway and the thread of its fleet.
#[derive(Debug, Default)]
pub(super) struct Notices {
    untold: Mutex<Untold>,
    told: Notify,
    /// The store answers, and does not take or give them.
    is_deaf: AtomicBool,
}

#[derive(Debug, Default)]
struct Untold {
    waiting: UnsentNotices,
    /// On its way to the store, and not heard back yet.
    on_its_way: UnsentNotices,
}

/// Notices that the store does not know yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnsentNotices {
    pub(super) fields: BTreeMap<String, Option<String>>,
    pub(super) forgotten: Vec<String>,
    pub(super) ended: BTreeMap<String, String>,
}

impl Notices {
    /// Something is to be told.
    pub(super) fn tell(&self, notice: Notice) {
        let mut untold = self.lock();
        let waiting = &mut untold.waiting;
        for (field, text) in notice.fields {
            let fits = field.len() + text.as_ref().map_or(0, String::len) <= MAX_NOTICE;
            if fits && (waiting.fields.len() < MAX_NOTICES || waiting.fields.contains_key(&field)) {
                waiting.fields.insert(field, text);
            }
        }
        let room = MAX_FORGOTTEN.saturating_sub(waiting.forgotten.len());
        waiting.forgotten.extend(notice.forgotten.into_iter().take(room));
        let room = MAX_NOTICES.saturating_sub(waiting.ended.len());
        waiting.ended.extend(notice.ended.into_iter().take(room));
        drop(untold);
        self.told.notify_one();
    }

    /// Completes when something was told since the last time.
    pub(super) async fn is_told(&self) {
        self.told.notified().await;
    }

    /// The notices to tell now. Until it [has landed](Self::landed) it is on its way.
    pub(super) fn take(&self) -> UnsentNotices {
        let mut untold = self.lock();
        untold.on_its_way = std::mem::take(&mut untold.waiting);
        untold.on_its_way.clone()
    }

    /// The notices that were on their way are told, and heard back.
    pub(super) fn landed(&self) {
        self.lock().on_its_way = UnsentNotices::default();
    }

    /// Fields could not be told: they wait again, but where there is a newer word.
    pub(super) fn put_back(&self) {
        let mut untold = self.lock();
        let fields = std::mem::take(&mut untold.on_its_way).fields;
        for (field, text) in fields {
            untold.waiting.fields.entry(field).or_insert(text);
        }
    }

    /// These keys of counts could not be removed, and wait again. The others are removed, once.
    pub(super) fn put_back_forgotten(&self, forgotten: Vec<String>) {
        let mut untold = self.lock();
        untold.on_its_way.forgotten.clear();
        let waiting = &mut untold.waiting;
        let later = std::mem::replace(&mut waiting.forgotten, forgotten);
        waiting.forgotten.extend(later);
        waiting.forgotten.truncate(MAX_FORGOTTEN);
    }

    /// All that the store may not know yet.
    pub(super) fn untold(&self) -> Notice {
        let untold = self.lock();
        let Untold { waiting, on_its_way } = &*untold;
        let mut fields = on_its_way.fields.clone();
        fields.extend(waiting.fields.clone());
        let forgotten = on_its_way.forgotten.iter().chain(&waiting.forgotten).take(MAX_FORGOTTEN).cloned().collect();
        Notice { fields: fields.into_iter().collect(), forgotten, ended: Vec::new() }
    }

    /// Takes note of whether the store takes and gives them, while it answers.
    pub(super) fn note_deaf(&self, is_deaf: bool) {
        self.is_deaf.store(is_deaf, Ordering::Relaxed);
    }

    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::Relaxed)
    }

    /// Adds what the store may not know yet.
    pub(super) fn overlay(&self, fields: &mut BTreeMap<String, String>) {
        let untold = self.lock();
        for (field, text) in untold.on_its_way.fields.iter().chain(&untold.waiting.fields) {
            match text {
                Some(text) => drop(fields.insert(field.clone(), text.clone())),
                None => drop(fields.remove(field)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnsentNotices {
    /// Whether there is nothing to be told.
    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.forgotten.is_empty() && self.ended.is_empty()
    }
}

/// Without the texts.
impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} notices", self.fields.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(notice: &[(&str, Option<&str>)]) -> Notice {
        let own = |(field, text): &(&str, Option<&str>)| ((*field).to_owned(), text.map(str::to_owned));
        Notice { fields: notice.iter().map(own).collect(), ..Notice::default() }
    }

    #[test]
    fn the_last_word_for_a_field_is_told_and_a_newer_one_stays() {
        let notices = Notices::default();
        notices.tell(fields(&[("a", Some("1")), ("b", Some("1"))]));
        notices.tell(fields(&[("a", None)]));
        let taken = notices.take();
        assert_eq!(taken.fields, BTreeMap::from([("a".into(), None), ("b".into(), Some("1".into()))]));
        notices.tell(fields(&[("b", Some("2"))]));
        let mut known = BTreeMap::from([("a".to_owned(), "old".to_owned())]);
        notices.overlay(&mut known);
        assert_eq!(known, BTreeMap::from([("b".into(), "2".into())]), "on its way, and newer");
        assert_eq!(notices.untold(), fields(&[("a", None), ("b", Some("2"))]));
        notices.put_back();
        let mut known = BTreeMap::from([("a".to_owned(), "old".to_owned()), ("c".to_owned(), "3".to_owned())]);
        notices.overlay(&mut known);
        assert_eq!(known, BTreeMap::from([("b".into(), "2".into()), ("c".into(), "3".into())]));
        assert_eq!(notices.take().fields.len(), 2);
        notices.landed();
        let mut known = BTreeMap::new();
        notices.overlay(&mut known);
        assert!(known.is_empty() && notices.take().is_empty());
        assert_eq!(notices.untold(), Notice::default());
    }

    #[test]
    fn no_more_waits_than_there_may_be() {
        let notices = Notices::default();
        notices.tell(fields(&[("long", Some(&"x".repeat(MAX_NOTICE)))]));
        for field in 0..MAX_NOTICES + 5 {
            notices.tell(fields(&[(&field.to_string(), Some("1"))]));
        }
        notices.tell(fields(&[("0", None)]));
        let ended = (0..MAX_NOTICES + 5).map(|field| (field.to_string(), "1".to_owned())).collect();
        notices.tell(Notice { fields: Vec::new(), forgotten: vec!["k".into(); MAX_FORGOTTEN + 5], ended });
        let taken = notices.take();
        assert_eq!((taken.fields.len(), taken.forgotten.len()), (MAX_NOTICES, MAX_FORGOTTEN));
        assert_eq!(taken.ended.len(), MAX_NOTICES);
        assert_eq!(taken.fields["0"], None, "one that waits already may have another word");
    }
}
