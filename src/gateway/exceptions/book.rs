use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::secrets::Secrets;
use crate::admission::{AddressForm, Block, KeyBook, KeyException, KeyExceptions, Once, OwnNumbers};
use crate::config::{LimitId, LimitRule, Model, numbers_of_key};
use crate::gateway::live::{LiveLimits, OfKey};
use crate::limiter::{Fingerprint, KeyHasher};
use crate::state::Mark;
use crate::time::Tick;

/// Keys with exceptions in one gateway.
pub const MAX_EXCEPTIONS: usize = 10_000;

/// The exceptions of all limits.
#[derive(Debug, Default)]
pub struct Exceptions {
    entries: BTreeMap<Id, Entry>,
    /// The exceptions that requests are compared with, by the limit.
    tables: HashMap<Arc<str>, Arc<KeyExceptions>>,
    /// The things yet to be done with keys of limits that a fleet does not share: by the key, and the parts of that.
    once: BTreeMap<Id, (Arc<str>, Arc<Once>)>,
}

/// A key of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// The limit.
    pub limit: Arc<str>,
    /// The secret that the fingerprint is made by.
    pub mark: Mark,
    /// The value.
    pub print: Fingerprint,
}

/// The exceptions of a key.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The parts of the key, as the limit had them: with others the fingerprint is nobody's.
    pub by: Arc<str>,
    /// The value, as logs show it.
    pub shown: Arc<str>,
    /// Its exceptions.
    pub exception: KeyException,
    /// Why its numbers do not hold now.
    pub misfit: Option<Arc<str>>,
}

/// A key as somebody names it who makes an exception.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The key.
    pub id: Id,
    /// The parts of the key of its limit.
    pub by: Arc<str>,
    /// The value, as logs show it.
    pub shown: Arc<str>,
}

/// A change of a key's exceptions.
#[derive(Clone, Debug)]
pub enum Change {
    /// It is blocked from now on.
    Block(Block),
    /// It is blocked by hand no more.
    Unblock,
    /// It has numbers of its own from now on.
    Numbers(OwnNumbers),
    /// It has the limit's numbers again.
    NoNumbers,
}

/// There are [`MAX_EXCEPTIONS`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{MAX_EXCEPTIONS} keys have exceptions, and a gateway keeps no more: remove some (sluicegate keys exceptions \
             lists them), or write a plan"
        )
    }
}

impl std::error::Error for Full {}

impl Id {
    /// As what the key lives among the limits, where it has numbers of its own.
    pub fn limit_id(&self) -> LimitId {
        LimitId { limit: Arc::clone(&self.limit), plan: None, key: Some(self.print) }
    }
}

impl Exceptions {
    /// Those that were written by another process, or by another gateway. What is more than a gateway keeps is left out.
    pub fn of(entries: impl IntoIterator<Item = (Id, Entry)>) -> Self {
        Self { entries: entries.into_iter().take(MAX_EXCEPTIONS).collect(), ..Self::default() }
    }

    /// All of them, in the order of their limits.
    pub fn iter(&self) -> impl Iterator<Item = (&Id, &Entry)> {
        self.entries.iter()
    }

    /// Those of a key.
    pub fn get(&self, id: &Id) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// Those of a value of a limit's key that hold now, by whichever secret they are known.
    pub fn of_value(
        &self,
        rule: &LimitRule,
        value: &str,
        (form, secrets): (AddressForm, &Secrets),
        now: Tick,
    ) -> Vec<(Id, Entry)> {
        let own = secrets.all().filter_map(|(mark, hasher)| {
            let print = rule.key.fingerprint_of_value(value, form, hasher).ok()?;
            let id = Id { limit: Arc::clone(&rule.spec.name), mark: *mark, print };
            let mut entry = self.entries.get(&id).filter(|entry| *entry.by == *rule.key.to_string())?.clone();
            entry.exception = entry.exception.at(now)?;
            Some((id, entry))
        });
        own.collect()
    }

    /// How many keys have some.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The exceptions that the requests of a limit are compared with.
    pub fn table(&self, limit: &str) -> Option<Arc<KeyExceptions>> {
        self.tables.get(limit).map(Arc::clone)
    }

    /// Sees to it that each limit of a model has a table.
    pub fn make_tables(&mut self, model: &Model) {
        for rule in &model.limits {
            self.tables.entry(Arc::clone(&rule.spec.name)).or_default();
        }
    }

    /// Makes a change; answers what the key had before. It holds once it is [installed](Self::install).
    ///
    /// # Errors
    /// There are too many.
    pub fn change(&mut self, subject: &Subject, change: Change, now: Tick) -> Result<KeyException, Full> {
        self.drop_ended(now);
        let Subject { id, by, shown } = subject;
        let is_new = !self.entries.contains_key(id);
        let adds = matches!(change, Change::Block(_) | Change::Numbers(_));
        if is_new && !adds {
            return Ok(KeyException::default());
        }
        if is_new && self.entries.len() >= MAX_EXCEPTIONS {
            return Err(Full);
        }
        let entry = self.entries.entry(id.clone()).or_insert_with(|| Entry {
            by: Arc::clone(by),
            shown: Arc::clone(shown),
            exception: KeyException::default(),
            misfit: None,
        });
        let before = entry.exception.clone();
        if entry.by != *by {
            // Another key of a limit of this name: nothing of it holds.
            entry.exception = KeyException::default();
        }
        (entry.by, entry.shown) = (Arc::clone(by), Arc::clone(shown));
        match change {
            Change::Block(block) => entry.exception.block = Some(block),
            Change::Unblock => entry.exception.block = None,
            Change::Numbers(numbers) => entry.exception.numbers = Some(numbers),
            Change::NoNumbers => entry.exception.numbers = None,
        }
        if entry.exception.is_empty() {
            self.entries.remove(id);
        }
        Ok(before)
    }

    /// Replaces all that are known by one secret.
    pub fn replace(&mut self, mark: Mark, entries: impl IntoIterator<Item = (Id, Entry)>) {
        self.entries.retain(|id, _| id.mark != mark);
        for (id, entry) in entries {
            if id.mark == mark && self.entries.len() < MAX_EXCEPTIONS {
                self.entries.insert(id, entry);
            }
        }
    }

    /// The limits that count keys with numbers of their own, where these fit their limit as it is in this model.
    pub fn counted(&self, model: &Model, now: Tick) -> Vec<OfKey> {
        let rules = rules(model);
        let of_key = |(id, entry): (&Id, &Entry)| of_key(model, rules.get(&*id.limit).copied(), id, entry, now).ok()?;
        self.entries.iter().filter_map(of_key).collect()
    }

    /// The limit that counts one key, if it has numbers of its own that fit.
    pub fn counted_of(&self, model: &Model, id: &Id, now: Tick) -> Option<OfKey> {
        let rule = model.limits.iter().find(|rule| rule.spec.name == id.limit);
        of_key(model, rule, id, self.entries.get(id)?, now).ok().flatten()
    }

    /// From now on all of it holds, for the limits of this model; what has ended is dropped. What does not fit its limit does not
    /// hold: the log says so, once.
    pub fn install(&mut self, model: &Model, live: &LiveLimits, secrets: &Secrets, now: Tick) {
        self.drop_ended(now);
        self.make_tables(model);
        let rules = rules(model);
        self.tables.retain(|limit, _| rules.contains_key(&**limit));
        for (id, entry) in &mut self.entries {
            let misfit = of_key(model, rules.get(&*id.limit).copied(), id, entry, now).err().map(Arc::from);
            if misfit.is_some() && misfit != entry.misfit {
                let why = misfit.as_deref().unwrap_or_default();
                tracing::warn!(limit = &*id.limit, key = &*entry.shown, "an exception of a key does not hold: {why}");
            }
            entry.misfit = misfit;
        }
        for rule in &model.limits {
            self.install_limit(rule, live, secrets);
        }
    }

    /// From now on the exceptions of one limit hold as they are.
    pub fn install_limit(&mut self, rule: &LimitRule, live: &LiveLimits, secrets: &Secrets) {
        let Self { entries, tables, once } = self;
        let Some(table) = tables.get(&rule.spec.name) else { return };
        let mut books: Vec<(Mark, KeyBook)> = Vec::new();
        for (id, entry) in of_limit(entries, &rule.spec.name) {
            let is_same_key = *entry.by == *rule.key.to_string();
            let Some(hasher) = secrets.by_mark(id.mark).filter(|_| is_same_key) else { continue };
            if let Some(numbers) = &mut entry.exception.numbers {
                numbers.limit = live.get(&id.limit_id()).map(|(limit, _)| Arc::clone(limit));
            }
            book_of(&mut books, id.mark, hasher).keys.insert(id.print, entry.exception.clone());
        }
        let of_limit = |id: &Id, by: &str| id.limit == rule.spec.name && *by == *rule.key.to_string();
        for (id, (_, act)) in once.iter().filter(|(id, (by, _))| of_limit(id, by)) {
            if let Some(hasher) = secrets.by_mark(id.mark) {
                let exception = book_of(&mut books, id.mark, hasher).keys.entry(id.print).or_default();
                exception.once = Some(Arc::clone(act));
            }
        }
        table.replace(books.into_iter().map(|(_, book)| book));
    }

    /// Something is to be done with a key when it comes the next time. Beyond [`MAX_EXCEPTIONS`] nothing is.
    pub fn do_once(&mut self, id: Id, by: &Arc<str>, once: Arc<Once>, now: Tick) {
        self.once.retain(|_, (_, once)| now < once.until);
        if self.once.len() < MAX_EXCEPTIONS {
            self.once.insert(id, (Arc::clone(by), once));
        }
    }

    fn drop_ended(&mut self, now: Tick) {
        self.once.retain(|_, (_, once)| now < once.until);
        self.entries.retain(|_, entry| match std::mem::take(&mut entry.exception).at(now) {
            Some(exception) => {
                entry.exception = exception;
                true
            }
            None => false,
        });
    }
}

/// The book of a secret.
fn book_of<'b>(books: &'b mut Vec<(Mark, KeyBook)>, mark: Mark, hasher: &KeyHasher) -> &'b mut KeyBook {
    let known = books.iter().position(|(own, _)| *own == mark);
    let place = known.unwrap_or_else(|| {
        books.push((mark, KeyBook { hasher: hasher.clone(), keys: HashMap::new() }));
        books.len() - 1
    });
    &mut books[place].1
}

/// The entries of one limit.
fn of_limit<'e>(
    entries: &'e mut BTreeMap<Id, Entry>,
    limit: &Arc<str>,
) -> impl Iterator<Item = (&'e Id, &'e mut Entry)> {
    let first = Id { limit: Arc::clone(limit), mark: Mark::known(0), print: Fingerprint::LEAST };
    let limit = Arc::clone(limit);
    entries.range_mut(first..).take_while(move |(id, _)| id.limit == limit)
}

fn rules(model: &Model) -> HashMap<&str, &LimitRule> {
    model.limits.iter().map(|rule| (&*rule.spec.name, rule)).collect()
}

/// The limit that counts a key by numbers of its own; `None`: it has none.
fn of_key(model: &Model, rule: Option<&LimitRule>, id: &Id, entry: &Entry, now: Tick) -> Result<Option<OfKey>, String> {
    let rule = rule.ok_or_else(|| "there is no such limit any more".to_owned())?;
    if *entry.by != *rule.key.to_string() {
        return Err(format!("the key of the limit was {} when it was made, and is {} now", entry.by, rule.key));
    }
    let Some(numbers) = entry.exception.numbers.as_ref().filter(|own| own.until.is_none_or(|until| now < until)) else {
        return Ok(None);
    };
    let spec = numbers_of_key(model, &id.limit, &numbers.text)?;
    Ok(Some(OfKey { id: id.limit_id(), spec, key: rule.key.clone() }))
}
