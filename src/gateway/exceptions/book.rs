use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::secrets::Secrets;
use crate::admission::{
    AddressForm, Block, KeyBook, KeyException, KeyExceptions, KeyExpr, OwnNumbers, PendingKeyAction,
};
use crate::config::{LimitId, LimitRule, Model, numbers_of_key};
use crate::fleet::Notice;
use crate::gateway::live::{KeyLimit, LiveLimits};
use crate::limiter::{Fingerprint, KeyHasher};
use crate::state::Mark;
use crate::time::Wall;

/// Keys with exceptions in one gateway.
pub const MAX_EXCEPTIONS: usize = 10_000;

/// By their limits: the exceptions that the requests of each are compared with.
pub type Tables = HashMap<Arc<str>, Arc<KeyExceptions>>;

/// The exceptions of all limits.
#[derive(Debug, Default)]
pub struct Exceptions {
    entries: BTreeMap<Id, KeyedExceptions>,
    /// The exceptions that requests are compared with, by the limit.
    tables: Tables,
    /// The things yet to be done with keys of limits that a fleet does not share: by the key, and the parts of that.
    once: BTreeMap<Id, (Arc<str>, Arc<PendingKeyAction>)>,
    /// The other gateways of a fleet may not have been told this.
    untold: Notice,
    /// The log knows that there are more than a gateway keeps.
    said_full: bool,
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
pub struct KeyedExceptions {
    /// The parts of the key, as the limit had them: with others the fingerprint is nobody's.
    pub by: Arc<str>,
    /// The value, as logs show it.
    pub shown: Arc<str>,
    /// Its exceptions.
    pub exception: KeyException,
    /// Why something of it does not hold now.
    pub misfit: Option<Misfit>,
}

/// Why something does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Nothing of it holds.
    All(Arc<str>),
    /// Its numbers do not; a block does.
    Numbers(Arc<str>),
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
pub enum ExceptionChange {
    /// It is blocked from now on.
    Block(Block),
    /// It is blocked by hand no more.
    Unblock,
    /// It has numbers of its own from now on.
    Numbers(OwnNumbers),
    /// It has the limit's numbers again.
    NoNumbers,
}

impl ExceptionChange {
    /// The change that ends what this one makes, or ends.
    pub fn end(&self) -> Self {
        match self {
            Self::Block(_) | Self::Unblock => Self::Unblock,
            Self::Numbers(_) | Self::NoNumbers => Self::NoNumbers,
        }
    }
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

/// Keys of a limit of which something does not hold for one reason.
struct Misfits {
    /// The first of them, as logs show it.
    first: Arc<str>,
    keys: u64,
}

impl Misfit {
    /// In words.
    pub fn why(&self) -> &Arc<str> {
        let (Self::All(why) | Self::Numbers(why)) = self;
        why
    }
}

impl Id {
    /// Id of the separate limit that counts a key with its own numbers.
    pub fn limit_id(&self) -> LimitId {
        LimitId { limit: Arc::clone(&self.limit), plan: None, key: Some(self.print) }
    }
}

impl Exceptions {
    /// Those that were written by another process, or by another gateway. Entries beyond those that a gateway keeps are
    /// left out.
    pub fn of(entries: impl IntoIterator<Item = (Id, KeyedExceptions)>) -> Self {
        Self { entries: entries.into_iter().take(MAX_EXCEPTIONS).collect(), ..Self::default() }
    }

    /// All of them, in the order of their limits.
    pub fn iter(&self) -> impl Iterator<Item = (&Id, &KeyedExceptions)> {
        self.entries.iter()
    }

    /// Those of a key.
    pub fn get(&self, id: &Id) -> Option<&KeyedExceptions> {
        self.entries.get(id)
    }

    /// Those of a key that hold now, by whichever of its ids.
    pub fn of_key<'i>(&self, ids: impl Iterator<Item = &'i Id>, now: Wall) -> Vec<(Id, KeyedExceptions)> {
        let own = ids.filter_map(|id| {
            let mut entry = self.entries.get(id)?.clone();
            entry.exception = entry.exception.at(now)?;
            Some((id.clone(), entry))
        });
        own.collect()
    }

    /// How many keys have some.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// A table for each limit of a model: that which it has, or a new one.
    pub fn tables_for(&self, model: &Model) -> Tables {
        let table = |rule: &Arc<LimitRule>| {
            let name = &rule.spec.name;
            (Arc::clone(name), self.tables.get(name).cloned().unwrap_or_default())
        };
        model.limits.iter().map(table).collect()
    }

    /// These are the tables from now on.
    pub fn set_tables(&mut self, tables: Tables) {
        self.tables = tables;
    }

    /// Makes a change; answers what the key had before. It holds once it is [installed](Self::install).
    ///
    /// # Errors
    /// There are too many.
    pub fn change(&mut self, subject: &Subject, change: ExceptionChange, now: Wall) -> Result<KeyException, Full> {
        self.drop_ended(now);
        let Subject { id, by, shown } = subject;
        let is_new = !self.entries.contains_key(id);
        let adds = matches!(change, ExceptionChange::Block(_) | ExceptionChange::Numbers(_));
        if is_new && !adds {
            return Ok(KeyException::default());
        }
        if is_new && self.entries.len() >= MAX_EXCEPTIONS {
            return Err(Full);
        }
        let entry = self.entries.entry(id.clone()).or_insert_with(|| KeyedExceptions {
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
            ExceptionChange::Block(block) => entry.exception.block = Some(block),
            ExceptionChange::Unblock => entry.exception.block = None,
            ExceptionChange::Numbers(numbers) => entry.exception.numbers = Some(numbers),
            ExceptionChange::NoNumbers => entry.exception.numbers = None,
        }
        if entry.exception.is_empty() {
            self.entries.remove(id);
        }
        Ok(before)
    }

    /// Replaces all that are known by one secret; what has ended is left out. Of too many the newest are left out, as they would
    /// have been refused here: so all gateways keep the same. The log says so, once.
    pub fn replace(&mut self, mark: Mark, entries: impl IntoIterator<Item = (Id, KeyedExceptions)>, now: Wall) {
        self.drop_ended(now);
        let (old, others): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.entries).into_iter().partition(|(id, _)| id.mark == mark);
        self.entries = others;
        let live = |(id, entry): (Id, KeyedExceptions)| {
            let exception = entry.exception.at(now)?;
            let misfit = old.get(&id).and_then(|old: &KeyedExceptions| old.misfit.clone());
            (id.mark == mark).then_some((id, KeyedExceptions { exception, misfit, ..entry }))
        };
        let mut live: Vec<_> = entries.into_iter().filter_map(live).collect();
        let room = MAX_EXCEPTIONS.saturating_sub(self.entries.len());
        let left_out = live.len().saturating_sub(room);
        if left_out > 0 {
            live.sort_by_cached_key(|(id, entry)| (made_at(&entry.exception), id.clone()));
            live.truncate(room);
        }
        if left_out > 0 && !self.said_full {
            tracing::warn!(
                left_out,
                "the newest exceptions of keys that other gateways have told do not hold here: {Full}"
            );
        }
        self.said_full = left_out > 0;
        self.entries.extend(live);
    }

    /// The things that the other gateways of a fleet may not have been told.
    pub fn untold(&self) -> &Notice {
        &self.untold
    }

    /// They may not have been told this, and no more.
    pub fn set_untold(&mut self, untold: Notice) {
        self.untold = untold;
    }

    /// The keys with exceptions that `value` names, whatever their limit is now: by the parts that its key had when an exception
    /// was made, and by whichever secret. Where nobody has that secret any more, the fingerprint names it.
    pub fn named(&self, limit: &str, value: &str, (form, secrets): (AddressForm, &Secrets)) -> Vec<Subject> {
        let mut prints: HashMap<(Arc<str>, Mark), Option<Fingerprint>> = HashMap::new();
        let is_named = |(id, entry): &(&Id, &KeyedExceptions)| match secrets.by_mark(id.mark) {
            None => format!("{:016x}", id.print.bits()) == value,
            Some(hasher) => {
                let print = || print_of(&entry.by, value, form, hasher);
                *prints.entry((Arc::clone(&entry.by), id.mark)).or_insert_with(print) == Some(id.print)
            }
        };
        let named = self.entries.iter().filter(|(id, _)| *id.limit == *limit).filter(is_named);
        let subject = |(id, entry): (&Id, &KeyedExceptions)| Subject {
            id: id.clone(),
            by: Arc::clone(&entry.by),
            shown: Arc::clone(&entry.shown),
        };
        named.map(subject).collect()
    }

    /// The limits that count keys with numbers of their own, where these fit their limit as it is in this model.
    pub fn counted(&self, model: &Model, now: Wall) -> Vec<KeyLimit> {
        let rules = rules(model);
        let of_key = |(id, entry): (&Id, &KeyedExceptions)| {
            of_key(model, rules.get(&*id.limit).copied(), id, entry, now).ok()?
        };
        self.entries.iter().filter_map(of_key).collect()
    }

    /// The limit that counts one key, if it has numbers of its own that fit.
    pub fn counted_of(&self, model: &Model, id: &Id, now: Wall) -> Option<KeyLimit> {
        let rule = model.limits.iter().find(|rule| rule.spec.name == id.limit);
        of_key(model, rule.map(|rule| &**rule), id, self.entries.get(id)?, now).ok().flatten()
    }

    /// From now on all of it holds, for the limits of this model; what has ended is dropped. An entry that does not fit
    /// its limit does not hold: the log says so, once.
    pub fn install(&mut self, model: &Model, live: &LiveLimits, secrets: &Secrets, now: Wall) {
        self.drop_ended(now);
        let rules = rules(model);
        let mut new: BTreeMap<(Arc<str>, Arc<str>), Misfits> = BTreeMap::new();
        for (id, entry) in &mut self.entries {
            let misfit = misfit(model, (rules.get(&*id.limit).copied(), secrets), id, entry, now);
            if let Some(misfit) = misfit.as_ref().filter(|misfit| Some(*misfit) != entry.misfit.as_ref()) {
                let why = (Arc::clone(misfit.why()), Arc::clone(&id.limit));
                new.entry(why).or_insert_with(|| Misfits { first: Arc::clone(&entry.shown), keys: 0 }).keys += 1;
            }
            entry.misfit = misfit;
        }
        for ((why, limit), Misfits { first, keys }) in new {
            tracing::warn!(limit = &*limit, key = &*first, keys, "exceptions of keys do not hold: {why}");
        }
        for rule in &model.limits {
            self.install_limit(rule, live, secrets);
        }
    }

    /// From now on the exceptions of one limit hold as they are.
    pub fn install_limit(&mut self, rule: &LimitRule, live: &LiveLimits, secrets: &Secrets) {
        let Self { entries, tables, once, .. } = self;
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
    pub fn do_once(&mut self, id: Id, by: &Arc<str>, once: Arc<PendingKeyAction>, now: Wall) {
        self.once.retain(|_, (_, once)| now < once.until);
        if self.once.len() < MAX_EXCEPTIONS {
            self.once.insert(id, (Arc::clone(by), once));
        }
    }

    fn drop_ended(&mut self, now: Wall) {
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
    entries: &'e mut BTreeMap<Id, KeyedExceptions>,
    limit: &Arc<str>,
) -> impl Iterator<Item = (&'e Id, &'e mut KeyedExceptions)> {
    let first = Id { limit: Arc::clone(limit), mark: Mark::known(0), print: Fingerprint::LEAST };
    let limit = Arc::clone(limit);
    entries.range_mut(first..).take_while(move |(id, _)| id.limit == limit)
}

fn rules(model: &Model) -> HashMap<&str, &LimitRule> {
    model.limits.iter().map(|rule| (&*rule.spec.name, &**rule)).collect()
}

/// When the first of a key's exceptions was made.
fn made_at(exception: &KeyException) -> Option<Wall> {
    let KeyException { block, numbers, once: _ } = exception;
    let made = [block.as_ref().map(|block| block.made.at), numbers.as_ref().map(|numbers| numbers.made.at)];
    made.into_iter().flatten().min()
}

/// The fingerprint of a value of a key that was written so.
pub fn print_of(by: &str, value: &str, form: AddressForm, hasher: &KeyHasher) -> Option<Fingerprint> {
    let parts: Vec<&str> = by.split(" + ").collect();
    KeyExpr::parse(&parts).ok()?.fingerprint_of_value(value, form, hasher).ok()
}

/// Why something of an exception does not hold; `None`: all of it does.
fn misfit(
    model: &Model,
    (rule, secrets): (Option<&LimitRule>, &Secrets),
    id: &Id,
    entry: &KeyedExceptions,
    now: Wall,
) -> Option<Misfit> {
    const UNKNOWN: &str = "it was made by another secret than this gateway has now (of another [fleet], or of none), by which no \
        key is known again; its fingerprint names it, to remove it";
    if let Err(why) = rule_of(rule, entry) {
        return Some(Misfit::All(why.into()));
    }
    if secrets.by_mark(id.mark).is_none() {
        return Some(Misfit::All(UNKNOWN.into()));
    }
    of_key(model, rule, id, entry, now).err().map(|why| Misfit::Numbers(why.into()))
}

/// The rule that an exception is of.
fn rule_of<'r>(rule: Option<&'r LimitRule>, entry: &KeyedExceptions) -> Result<&'r LimitRule, String> {
    let rule = rule.ok_or_else(|| "there is no such limit any more".to_owned())?;
    if *entry.by != *rule.key.to_string() {
        return Err(format!("the key of the limit was {} when it was made, and is {} now", entry.by, rule.key));
    }
    Ok(rule)
}

/// The limit that counts a key by numbers of its own; `None`: it has none.
fn of_key(
    model: &Model,
    rule: Option<&LimitRule>,
    id: &Id,
    entry: &KeyedExceptions,
    now: Wall,
) -> Result<Option<KeyLimit>, String> {
    let rule = rule_of(rule, entry)?;
    let Some(numbers) = entry.exception.numbers.as_ref().filter(|own| own.until.is_none_or(|until| now < until)) else {
        return Ok(None);
    };
    let spec = numbers_of_key(model, &id.limit, &numbers.text)?;
    Ok(Some(KeyLimit { id: id.limit_id(), spec, key: rule.key.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Made;
    use crate::time::Span;

    const MARK: Mark = Mark::known(7);

    fn at(seconds: u64) -> Wall {
        Wall::EPOCH + Span::from_secs(1_000_000 + seconds)
    }

    /// A block that was made then; it ends then, or never.
    fn one(print: u64, made: u64, until: Option<u64>) -> (Id, KeyedExceptions) {
        let id = Id { limit: "per-key".into(), mark: MARK, print: Fingerprint::known(print).unwrap() };
        let made = Made { at: at(made), by: "admin".into(), reason: None };
        let exception = KeyException { block: Some(Block { until: until.map(at), made }), ..KeyException::default() };
        (id, KeyedExceptions { by: "client-ip".into(), shown: "***".into(), exception, misfit: None })
    }

    fn prints(exceptions: &Exceptions) -> Vec<u64> {
        exceptions.iter().map(|(id, _)| id.print.bits()).collect()
    }

    #[test]
    fn what_has_ended_takes_no_place_and_of_too_many_the_newest_are_left_out() {
        let most = MAX_EXCEPTIONS as u64;
        let mut exceptions = Exceptions::default();
        // The first ones by their fields have ended.
        let ended = (1..=most).map(|print| one(print, 0, Some(10)));
        let live = (1..=most).map(|print| one(print + most, print, None));
        exceptions.replace(MARK, ended.chain(live), at(10));
        assert_eq!(prints(&exceptions), (most + 1..=2 * most).collect::<Vec<_>>());
        assert!(!exceptions.said_full);
        // One more by a field that comes first, and which is the newest.
        let more = |made| (1..=most).map(|print| one(print + most, print, None)).chain([one(1, made, None)]);
        exceptions.replace(MARK, more(most + 1), at(10));
        assert_eq!(prints(&exceptions), (most + 1..=2 * most).collect::<Vec<_>>());
        assert!(exceptions.said_full);
        exceptions.replace(MARK, more(0), at(10));
        assert_eq!((prints(&exceptions)[0], exceptions.len()), (1, MAX_EXCEPTIONS), "the oldest holds");
        let (id, entry) = one(5 * most, 0, None);
        let subject = Subject { id, by: entry.by, shown: entry.shown };
        let change = ExceptionChange::Block(entry.exception.block.unwrap());
        assert!(matches!(exceptions.change(&subject, change.clone(), at(10)), Err(Full)), "the answer says so");
        exceptions.replace(MARK, [one(1, 0, Some(20)), one(2, 0, None)], at(20));
        assert_eq!(prints(&exceptions), [2]);
        assert!(exceptions.change(&subject, change, at(20)).is_ok());
    }

    #[test]
    fn others_leave_what_is_by_another_secret_and_a_misfit_that_is_known() {
        let mut own = one(1, 0, None);
        own.0.mark = Mark::known(8);
        own.1.misfit = Some(Misfit::All("gone".into()));
        let mut known = one(1, 0, None);
        known.1.misfit = own.1.misfit.clone();
        let mut exceptions = Exceptions::of([own, known, one(2, 0, None)]);
        exceptions.replace(MARK, [one(1, 0, None)], at(10));
        let misfits = exceptions.iter().map(|(id, entry)| (id.mark, entry.misfit.is_some()));
        assert_eq!(misfits.collect::<Vec<_>>(), [(MARK, true), (Mark::known(8), true)]);
    }
}
