//! Rules as a service: the file read, judged, changed and taken over at once, for the caller that asks by the API.
//!
//! A change is made under the lock of reloads: read, compare with the text that it is meant for, edit, check, write, reload.
//! Whatever fails leaves the file and the running rules as they were.

use std::fs;
use std::io;
use std::sync::{Arc, PoisonError};

use base16ct::lower::encode_string;
use serde_json::{Value, json};

use super::key_target::is_reference;
use super::reloading::{Cause, ReadTexts};
use super::{Control, Reloaded};
use crate::admin;
use crate::config::{self, LoadError, Model, RulesAccess};
use crate::limiter::Fingerprint;
use crate::rules::{
    self, Document, EntryEdit, HistoryEntry, Holds, IfMatch, RuleChange, RuleEdit, RuleKind, RuleRefusal, ValueTable,
};

/// The file as it is.
pub(super) struct RulesText {
    pub(super) text: String,
    /// SHA-256 of it in hex, in quotes.
    pub(super) etag: String,
}

/// A text that is to hold, and what it does.
struct New {
    text: String,
    done: Option<EntryEdit>,
    /// For the history.
    line: String,
}

impl Control {
    /// The file's text now.
    pub(super) fn rules_text(&self) -> Result<RulesText, RuleRefusal> {
        let text = config::read_text(&self.path).map_err(|error| match error {
            LoadError::Read { .. } if self.is_missing() => RuleRefusal::Conflict(format!(
                "{error}. Put the file back and ask again; or send If-Match: * with a rollback, which writes the file anew."
            )),
            LoadError::Read { .. } | LoadError::Unfollowed { .. } => RuleRefusal::of_load(&error),
            LoadError::Invalid { .. } => RuleRefusal::Conflict(format!("{error}\nMend the file with an editor first.")),
        })?;
        Ok(RulesText { etag: rules::etag(&rules::sha256(&text)), text })
    }

    /// The text that has the rules: that of the file, or the one that it follows.
    fn text_of_rules(&self) -> Result<RulesText, RuleRefusal> {
        let Some(path) = self.state().model.follow.as_ref().map(|follow| follow.kept(&self.path)) else {
            return self.rules_text();
        };
        let missing =
            |why: String| RuleRefusal::NotFound(format!("The followed rules are not in {}: {why}.", path.display()));
        let kept = config::FollowedCopy::read(&path).map_err(|error| missing(error.to_string()))?;
        let text = kept.ok_or_else(|| missing("there is no such file".to_owned()))?.text;
        Ok(RulesText { etag: rules::etag(&rules::sha256(&text)), text })
    }

    /// The entries of a kind, and the tag of the text that has them.
    pub(super) fn rules_list(&self, kind: RuleKind) -> Result<(Vec<ValueTable>, String), RuleRefusal> {
        let RulesText { text, etag } = self.text_of_rules()?;
        Ok((Document::parse(text)?.list(kind), etag))
    }

    /// One of them.
    pub(super) fn rules_get(&self, kind: RuleKind, name: &str) -> Result<(ValueTable, String), RuleRefusal> {
        let RulesText { text, etag } = self.text_of_rules()?;
        let entry = Document::parse(text)?.get(kind, name);
        let entry = entry.ok_or_else(|| rules::EditError::NotFound(kind, name.to_owned()))?;
        Ok((entry, etag))
    }

    /// Judges a text as `check` does: its mistakes, or its warnings.
    pub(super) fn validate_rules(&self, text: String) -> Value {
        match self.load(ReadTexts::Text(text)) {
            Ok(loaded) => json!({ "ok": true, "findings": rules::findings(loaded.warnings.diagnostics()) }),
            Err(LoadError::Invalid { errors, .. }) => {
                json!({ "ok": false, "findings": rules::findings(errors.diagnostics()) })
            }
            // No file is read but those that the text names, whose errors are findings.
            Err(error @ (LoadError::Read { .. } | LoadError::Unfollowed { .. })) => {
                json!({ "ok": false, "findings": [{ "severity": "error", "message": error.to_string() }] })
            }
        }
    }

    /// The plan of a reload with this text, or with the file as it is.
    pub(super) fn diff_rules(&self, text: Option<String>) -> Result<Value, RuleRefusal> {
        let loaded = self.load(text.into()).map_err(|error| RuleRefusal::of_load(&error))?;
        let running = Arc::clone(&self.state().model);
        let plan = config::diff(&running, &loaded.model);
        let mut shown = rules::plan(&plan);
        if let Some(members) = shown.as_object_mut() {
            members.insert("warnings".to_owned(), rules::findings(loaded.warnings.diagnostics()));
            members.insert("etag".to_owned(), json!(rules::etag(&rules::sha256(&loaded.text))));
        }
        Ok(shown)
    }

    /// Makes a change, and takes it over.
    pub(super) fn change_rules(self: &Arc<Self>, asked: &RuleChange) -> Result<Holds, RuleRefusal> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        self.may_change(&asked.wanted)?;
        if let RuleEdit::PlanOfKey { route, change } = &asked.wanted {
            self.check_unloaded()?;
            return self.change_plan((route, change), &asked.if_match, &asked.by);
        }
        let former = self.former(asked)?;
        let new = self.wanted(&asked.wanted, former.as_deref().unwrap_or_default())?;
        let is_new = former.as_ref() != Some(&new.text);
        if let (Some(former), RuleEdit::Rollback { .. }, true) = (&former, &asked.wanted, is_new)
            && asked.if_match != IfMatch::Any
        {
            self.is_kept(former)?;
        }
        let loaded = self.load(ReadTexts::Text(new.text.clone())).map_err(|error| RuleRefusal::of_load(&error))?;
        if loaded.model.lacks_rules() {
            let why = "The rules that this text follows are not known. Write it with an editor, and reload.";
            return Err(RuleRefusal::Conflict(why.to_owned()));
        }
        let mut warnings = rules::findings(loaded.warnings.diagnostics());
        if let Some(changes) = self.changes_of_callers(&loaded.model).filter(|_| is_new) {
            match &asked.wanted {
                RuleEdit::Rollback { force: true, .. } => {
                    let changes = changes.replace('\n', "; ");
                    let message = format!("this has changed who may administer the gateway: {changes}");
                    if let Value::Array(warnings) = &mut warnings {
                        warnings
                            .insert(0, rules::warning(&message, "to take it back, write the text of before into the file with an editor: a caller who has lost the role `rules` cannot"));
                    }
                }
                RuleEdit::Rollback { generation, .. } => {
                    return Err(RuleRefusal::Conflict(format!(
                        "Generation {generation} changes who may administer the gateway:\n{changes}\nNothing was changed. To roll back all the same, \
                     send \"force\": true: `sluicegate config rollback {generation} --force`."
                    )));
                }
                _ => return Err(unloaded_callers(&changes)),
            }
        }
        let plan = config::diff(&self.state().model, &loaded.model);
        drop(loaded);
        let before = self.state().workers.feed.generation();
        let mut holds = Holds {
            etag: rules::etag(&rules::sha256(&new.text)),
            before,
            generation: before,
            done: new.done.filter(|_| is_new),
            plan: if is_new { rules::plan(&plan) } else { Value::Null },
            warnings,
            told: None,
        };
        if is_new {
            self.write(former.as_deref(), Some(&new.text))?;
            let cause = Cause { asked: true, by: &asked.by, change: Some(&new.line) };
            self.take_over_or(cause, || self.write(Some(&new.text), former.as_deref()))?;
            if let Value::Array(warnings) = &mut holds.warnings {
                warnings.extend(self.records.warning());
            }
        }
        holds.generation = self.state().workers.feed.generation();
        Ok(holds)
    }

    /// The file's text, if the change is meant for it. `None`: the file is missing, and a rollback writes it anew.
    fn former(&self, asked: &RuleChange) -> Result<Option<String>, RuleRefusal> {
        let makes_one = matches!(asked.wanted, RuleEdit::Rollback { .. }) && asked.if_match == IfMatch::Any;
        match self.rules_text() {
            Ok(RulesText { text, etag }) => asked.if_match.check(&etag).map(|()| Some(text)),
            Err(_) if makes_one && self.is_missing() => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Whether nothing at all has the name of the file; a link that leads nowhere has it.
    fn is_missing(&self) -> bool {
        fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Refuses to destroy a text that is nowhere else: one that an editor has saved, and that nobody has taken over. An edit keeps
    /// it; a rollback does not.
    fn is_kept(&self, former: &str) -> Result<(), RuleRefusal> {
        let sha256 = rules::sha256(former);
        let runs = encode_string(&self.state().text_digest) == sha256;
        if runs || self.records.list().iter().any(|entry| entry.sha256 == sha256) {
            return Ok(());
        }
        let why = "The file has a text that an editor has saved and nobody has taken over: a rollback would destroy it. Save the \
                   file elsewhere, or reload it, and repeat the rollback; or send If-Match: * to give that text up.";
        Err(RuleRefusal::Conflict(why.to_owned()))
    }

    /// The changes of who may administer the gateway, if these rules were to run.
    fn changes_of_callers(&self, new: &Model) -> Option<String> {
        config::changes_of_callers(self.state().model.admin.as_ref(), new.admin.as_ref())
    }

    /// Refuses a change that comes with a reload of the file, if an editor has changed there who may administer the gateway.
    fn check_unloaded(&self) -> Result<(), RuleRefusal> {
        // A file that cannot be read cannot be reloaded either, which says so.
        let Ok(RulesText { text, .. }) = self.rules_text() else { return Ok(()) };
        if rules::sha256(&text) == encode_string(&self.state().text_digest) {
            return Ok(());
        }
        let Ok(loaded) = self.load(ReadTexts::Text(text)) else { return Ok(()) };
        self.changes_of_callers(&loaded.model).map_or(Ok(()), |changes| Err(unloaded_callers(&changes)))
    }

    /// Whether the API may change rules, and the gateway takes any.
    fn may_change(&self, wanted: &RuleEdit) -> Result<(), RuleRefusal> {
        self.takes_rules().map_err(|error| RuleRefusal::Ends(format!("Nothing was changed: {error}.")))?;
        let model = Arc::clone(&self.state().model);
        if model.admin.as_ref().is_some_and(|admin| admin.rules == RulesAccess::ReadOnly) {
            return Err(RuleRefusal::ReadOnly);
        }
        match (&model.follow, wanted) {
            // The plans file is here, wherever the route comes from.
            (None, _) | (_, RuleEdit::PlanOfKey { .. }) => Ok(()),
            (Some(follow), _) => Err(RuleRefusal::Followed { url: follow.follow.to_string() }),
        }
    }

    fn wanted(&self, wanted: &RuleEdit, former: &str) -> Result<New, RuleRefusal> {
        match wanted {
            RuleEdit::Edit(edit) => {
                let edited = Document::parse(former)?.edit(edit)?;
                let line = rules::line_of(edit, &edited);
                Ok(New { text: edited.text, done: Some(edited.done), line })
            }
            RuleEdit::Rollback { generation, .. } => {
                let (_, text) = self.records.text(*generation).ok_or_else(|| {
                    RuleRefusal::NotFound(format!(
                        "The history has no generation {generation}. GET /api/v1/config/history lists them."
                    ))
                })?;
                let text = text.map_err(|error| {
                    RuleRefusal::NotFound(format!("The text of generation {generation} cannot be read: {error}."))
                })?;
                Ok(New {
                    text,
                    done: Some(EntryEdit::Replaced),
                    line: format!("rolled back to generation {generation}"),
                })
            }
            RuleEdit::PlanOfKey { .. } => Err(RuleRefusal::Conflict("This is no change of the file.".to_owned())),
        }
    }

    /// Writes a text in the place of another one that is there; `None`: no file.
    fn write(&self, former: Option<&str>, new: Option<&str>) -> Result<(), RuleRefusal> {
        let former = former.map(rules::sha256);
        let is_unchanged = || config::read_text(&self.path).ok().map(|text| rules::sha256(&text)) == former;
        let written = match (&former, new) {
            (Some(_), Some(new)) => rules::write_atomically(&self.path, new.as_bytes(), is_unchanged),
            (None, Some(new)) => rules::write_new(&self.path, new.as_bytes()),
            (_, None) => fs::remove_file(&self.path)
                .map_err(|source| rules::WriteError::Failed { path: self.path.clone(), source }),
        };
        written.map_err(|error| match error {
            rules::WriteError::Changed => {
                let etag = self.rules_text().map(|text| text.etag).unwrap_or_default();
                RuleRefusal::Stale { etag }
            }
            failed @ rules::WriteError::Failed { .. } => RuleRefusal::NotWritten(failed.to_string()),
        })
    }

    /// Takes over what was written. Where it cannot run, though it is right, the former state is brought back: of the files, and
    /// of what is known of them.
    pub(super) fn take_over_or(
        self: &Arc<Self>,
        cause: Cause<'_>,
        bring_back: impl FnOnce() -> Result<(), RuleRefusal>,
    ) -> Result<Reloaded, RuleRefusal> {
        let before = {
            let state = self.state();
            (state.last_error.clone(), state.refused)
        };
        let report = match self.reload_alone(cause) {
            Ok(reloaded) => return Ok(reloaded),
            Err(report) => report,
        };
        let detail = match bring_back() {
            Ok(()) => {
                let mut state = self.state();
                (state.last_error, state.refused) = before;
                format!("The rules are right and cannot run here, so the file is as it was: {report}")
            }
            Err(error) => format!(
                "The rules are right and cannot run here: {report}\nThe file has them all the same, since it could not be put \
                 back: {error} The current configuration stays."
            ),
        };
        Err(RuleRefusal::NotRunning(detail))
    }

    /// The plan that the key of a route has, and the tag of its file.
    pub(super) fn plan_of_key(&self, route: &str, key: &str) -> Result<(Value, String), RuleRefusal> {
        let book = self.book_of(route)?;
        let print = print_in_plans(&book, key)?;
        let found = book.keys().find(print);
        let name = |place: u16| book.names().get(usize::from(place)).map(ToString::to_string);
        let shown = json!({
            "route": route,
            "plan": name(found.map_or(book.default(), |found| found.plan)),
            "is_default": found.is_none(),
            "renews": found.and_then(|found| found.renews),
        });
        Ok((shown, rules::etag(&encode_string(book.digest()))))
    }

    pub(super) fn book_of(&self, route: &str) -> Result<Arc<config::PlanBook>, RuleRefusal> {
        let state = self.state();
        let found = state.model.routes.iter().find(|own| &*own.name == route);
        let found = found.ok_or_else(|| RuleRefusal::NotFound(format!("There is no route {route:?}.")))?;
        found.plans.clone().ok_or_else(|| RuleRefusal::NotFound(format!("The route {route:?} has no plans.")))
    }
}

/// The refusal of a change that would take over what an editor has written into `[admin]`.
fn unloaded_callers(changes: &str) -> RuleRefusal {
    RuleRefusal::Conflict(format!(
        "The file has a text that is not loaded and changes who may administer the gateway:\n{changes}\nNothing was changed. If that is \
         meant, POST /reload first, then repeat the change."
    ))
}

/// The fingerprint of a key of a plans file. Keys stand there as they are: a mark or a print would be a key that no client has.
pub(super) fn print_in_plans(book: &config::PlanBook, key: &str) -> Result<Fingerprint, RuleRefusal> {
    if is_reference(key) {
        let detail = "The plans file has keys as they are: give the value of the key, not its mark or its print.";
        return Err(wrong_key(detail.to_owned()));
    }
    book.fingerprint(key).map_err(wrong_key)
}

pub(super) fn wrong_key(detail: String) -> RuleRefusal {
    RuleRefusal::Invalid { detail, findings: json!([]) }
}

/// The rules as admin asks for them.
pub(super) struct RulesCommands(pub(super) Arc<Control>);

impl admin::Rules for RulesCommands {
    fn text(&self) -> Result<(String, String), RuleRefusal> {
        let RulesText { text, etag } = self.0.rules_text()?;
        Ok((text, etag))
    }

    fn list(&self, kind: RuleKind) -> Result<(Vec<ValueTable>, String), RuleRefusal> {
        self.0.rules_list(kind)
    }

    fn entry(&self, kind: RuleKind, name: &str) -> Result<(ValueTable, String), RuleRefusal> {
        self.0.rules_get(kind, name)
    }

    fn plan_of_key(&self, route: &str, key: &str) -> Result<(Value, String), RuleRefusal> {
        self.0.plan_of_key(route, key)
    }

    fn validate(&self, text: String) -> Value {
        self.0.validate_rules(text)
    }

    fn diff(&self, text: Option<String>) -> Result<Value, RuleRefusal> {
        self.0.diff_rules(text)
    }

    fn history(&self) -> Vec<HistoryEntry> {
        self.0.records.list()
    }

    fn generation(&self, generation: u64) -> Option<(HistoryEntry, io::Result<String>)> {
        self.0.records.text(generation)
    }

    fn change(&self, asked: &RuleChange) -> Result<Holds, RuleRefusal> {
        self.0.change_rules(asked)
    }
}
