//! The key that an operator means: by its value, or by the mark or the print that the gateway shows in its place.

use std::fmt::Write as _;
use std::sync::Arc;

use super::ReloadState;
use crate::admin::Unchanged;
use crate::config::LimitRule;
use crate::gateway::exceptions::{Id, Secrets, Subject, parse_print, print_of, print_text};
use crate::gateway::limit_status::{named_key, no_limit_of, shown_name};
use crate::limiter::Fingerprint;
use crate::proxy::CountedKey;
use crate::redact::has_mark;
use crate::state::Mark;
use crate::time::Tick;

/// Keys that an error lists.
const LISTED: usize = 16;

/// A key, and by which fingerprint its limit counts it.
pub(super) struct KeyTarget {
    pub(super) subject: Subject,
    /// The same key where an exception that it has was made by another secret, or for another key of the limit.
    pub(super) others: Vec<Subject>,
    /// As its limit counts it; `None`: there is no such limit any more, or it has another key, or it counts by a secret by
    /// which this key is not known.
    pub(super) counted: Option<Fingerprint>,
}

impl KeyTarget {
    /// All that it is known by.
    pub(super) fn ids(&self) -> impl Iterator<Item = &Id> {
        [&self.subject].into_iter().chain(&self.others).map(|subject| &subject.id)
    }
}

/// A text that stands in the place of a value.
enum Reference<'v> {
    /// The key as it is shown, with at least one mark.
    Shown(&'v str),
    Print(Fingerprint),
}

impl<'v> Reference<'v> {
    fn of(value: &'v str) -> Option<Self> {
        parse_print(value).map(Self::Print).or_else(|| has_mark(value).then_some(Self::Shown(value)))
    }

    fn fits(&self, shown: &str, print: Fingerprint) -> bool {
        match self {
            Self::Shown(text) => *text == shown,
            Self::Print(own) => *own == print,
        }
    }
}

/// Whether a text stands in the place of a value: it is a mark or a print.
pub(super) fn is_reference(value: &str) -> bool {
    Reference::of(value).is_some()
}

/// A key that a reference fits, and its print by each secret by which it is known.
struct Candidate {
    target: KeyTarget,
    prints: Vec<(Mark, Fingerprint)>,
}

impl ReloadState {
    /// The key that is meant. An exception can be taken back though its limit is gone, or has another key.
    pub(super) fn target(&self, limit: &str, value: &str, takes_back: bool, now: Tick) -> Result<KeyTarget, Unchanged> {
        let secrets = Secrets::of(&self.model, &self.lasting.hasher);
        if let Some(reference) = Reference::of(value) {
            return self.referred((limit, value), &reference, takes_back, (&secrets, now));
        }
        let named = self.lasting.exceptions.named(limit, value, (self.model.client.address_form(), &secrets));
        match self.target_now(limit, value, &secrets) {
            Ok(mut target) => {
                // One that does not hold may hold again; what is made now takes the place of one that holds.
                let is_other = |named: &Subject| named.id != target.subject.id;
                let holds = |named: &Subject| named.by == target.subject.by && secrets.by_mark(named.id.mark).is_some();
                target.others =
                    named.into_iter().filter(|named| is_other(named) && (takes_back || holds(named))).collect();
                Ok(target)
            }
            Err(error) => {
                let mut named = named.into_iter().filter(|_| takes_back);
                let subject = named.next().ok_or(error)?;
                Ok(KeyTarget { subject, others: named.collect(), counted: None })
            }
        }
    }

    /// The key of a limit as it is now.
    fn target_now(&self, limit: &str, value: &str, secrets: &Secrets) -> Result<KeyTarget, Unchanged> {
        let rule = self.known_rule(limit)?;
        let (mark, hasher) = secrets.for_new();
        let key = named_key(&self.model, (&self.lasting.hasher, &self.lasting.redactor), rule, value)
            .map_err(Unchanged::Unknown)?;
        let print = rule
            .key
            .fingerprint_of_value(value, self.model.client.address_form(), hasher)
            .map_err(|error| Unchanged::Unknown(error.to_string()))?;
        let id = Id { limit: Arc::clone(&rule.spec.name), mark: *mark, print };
        let subject = Subject { id, by: rule.key.to_string().into(), shown: key.shown.as_str().into() };
        Ok(KeyTarget { subject, others: Vec::new(), counted: Some(key.print) })
    }

    fn known_rule(&self, limit: &str) -> Result<&LimitRule, Unchanged> {
        self.rule(limit).ok_or_else(|| Unchanged::Unknown(no_limit_of(&self.model, limit)))
    }

    /// The one key that a reference fits, among those that came of late and those with exceptions: of others the gateway has
    /// fingerprints alone.
    fn referred(
        &self,
        (limit, text): (&str, &str),
        reference: &Reference<'_>,
        takes_back: bool,
        (secrets, now): (&Secrets, Tick),
    ) -> Result<KeyTarget, Unchanged> {
        let rule = self.rule(limit);
        let mut found = rule.map_or_else(Vec::new, |rule| self.counted_lately(rule, reference, secrets, now));
        for (id, entry) in self.lasting.exceptions.iter().filter(|(id, _)| *id.limit == *limit) {
            let rule = rule.filter(|rule| *entry.by == *rule.key.to_string() && secrets.by_mark(id.mark).is_some());
            if rule.is_none() && !takes_back {
                continue;
            }
            let subject = Subject { id: id.clone(), by: Arc::clone(&entry.by), shown: Arc::clone(&entry.shown) };
            let own = (id.mark, id.print);
            if let Some(Candidate { target, .. }) = found.iter_mut().find(|known| known.prints.contains(&own)) {
                if target.subject.id != *id {
                    target.others.push(subject);
                }
            } else if reference.fits(&entry.shown, id.print) {
                let counted = rule.filter(|rule| self.mark_of_counts(rule, secrets) == id.mark).map(|_| id.print);
                found.push(Candidate { target: KeyTarget { subject, others: Vec::new(), counted }, prints: vec![own] });
            }
        }
        let several = found.len();
        let mut found = found.into_iter().map(|candidate| candidate.target);
        match (found.next(), several) {
            (Some(target), 1) => Ok(target),
            (Some(first), _) => Err(ambiguous((limit, text), &first, found)),
            (None, _) => {
                if !takes_back {
                    self.known_rule(limit)?;
                }
                Err(Unchanged::Unknown(format!(
                    "No key of the limit {limit:?} is known by {text}: known are the keys that came often in the last five to ten \
                     minutes (`sluicegate keys top`) and those with exceptions (`sluicegate keys exceptions`). Copy it from \
                     there, or give the value of the key."
                )))
            }
        }
    }

    /// The keys of the limit that came of late and that the reference fits.
    fn counted_lately(
        &self,
        rule: &LimitRule,
        reference: &Reference<'_>,
        secrets: &Secrets,
        now: Tick,
    ) -> Vec<Candidate> {
        let snapshot = self.workers.feed.latest();
        let Some(limit) = snapshot.limits.iter().find(|limit| limit.spec.spec.name == rule.spec.name) else {
            return Vec::new();
        };
        let form = self.model.client.address_form();
        let mark_of_counts = self.mark_of_counts(rule, secrets);
        let mut found: Vec<Candidate> = Vec::new();
        for CountedKey { print, name, .. } in limit.keys.known(now) {
            let shown = shown_name(&self.lasting.redactor, &name, limit.spec.key_is_secret);
            let is_known = |own: &Candidate| own.target.counted == Some(print);
            if !reference.fits(&shown, print) || found.iter().any(is_known) {
                continue;
            }
            let (by, value) = name.joined();
            // The name of a long value is cut: by another secret it would be another key.
            let is_whole =
                secrets.by_mark(mark_of_counts).and_then(|own| print_of(&by, &value, form, own)) == Some(print);
            let print_by = |(mark, hasher): &(Mark, _)| {
                let other = || print_of(&by, &value, form, hasher).filter(|_| is_whole);
                Some((*mark, if *mark == mark_of_counts { print } else { other()? }))
            };
            let prints: Vec<_> = secrets.all().filter_map(print_by).collect();
            let (new, _) = secrets.for_new();
            let Some((mark, of_new)) = prints.iter().find(|(mark, _)| mark == new).copied() else { continue };
            let id = Id { limit: Arc::clone(&rule.spec.name), mark, print: of_new };
            let subject = Subject { id, by: rule.key.to_string().into(), shown: shown.into() };
            found.push(Candidate { target: KeyTarget { subject, others: Vec::new(), counted: Some(print) }, prints });
        }
        found
    }

    /// The mark of the secret by which a limit counts.
    fn mark_of_counts(&self, rule: &LimitRule, secrets: &Secrets) -> Mark {
        let of_fleet = secrets.mark_of_fleet().filter(|_| rule.spec.sharing.is_some());
        of_fleet.unwrap_or_else(|| Mark::of(&self.lasting.hasher))
    }
}

fn ambiguous((limit, text): (&str, &str), first: &KeyTarget, others: impl Iterator<Item = KeyTarget>) -> Unchanged {
    let print = |target: &KeyTarget| print_text(target.counted.unwrap_or(target.subject.id.print));
    let mut prints = vec![print(first)];
    prints.extend(others.map(|target| print(&target)));
    let mut words = format!(
        "{text} stands for {} keys of the limit {limit:?}: give the print of the one that is meant, see `--json` of \
         `sluicegate keys top` and `sluicegate keys exceptions`:",
        prints.len()
    );
    for print in prints.iter().take(LISTED) {
        let _ = write!(words, " {print}");
    }
    Unchanged::Ambiguous(words)
}
