//! Plans, old against new: which keys have another plan, and which numbers a plan has.

use std::fmt::Write as _;
use std::sync::Arc;

use super::change::Changes;
use super::model::{LimitRule, Model, PlanLimit};
use super::plans::PlanBook;
use sluicegate_admission::KeyChanges;

/// The books of a model, each once.
pub(super) fn books(model: &Model) -> Vec<Arc<PlanBook>> {
    let mut books: Vec<Arc<PlanBook>> = Vec::new();
    for book in model.routes.iter().filter_map(|route| route.plans.as_ref()) {
        if !books.iter().any(|other| other.is_same(book)) {
            books.push(Arc::clone(book));
        }
    }
    books
}

/// How a plan calls a book.
pub(super) fn name(book: &Arc<PlanBook>) -> String {
    format!("{} by {}", book.shown().display(), book.keys().key())
}

/// Keys are counted, not named: they may be secrets, and plans are logged.
pub(super) fn book(old: &Arc<PlanBook>, new: &Arc<PlanBook>) -> Changes {
    let mut changes = Changes::default();
    if Arc::ptr_eq(old, new) {
        return changes;
    }
    let texts = |book: &PlanBook| book.names().iter().map(ToString::to_string).collect::<Vec<_>>();
    let of = |book: &PlanBook, plan: u16| book.names().get(usize::from(plan)).cloned();
    changes.list("plans", &texts(old), &texts(new));
    changes.value("default", &of(old, old.default()), &of(new, new.default()), |name| {
        name.as_deref().unwrap_or_default().to_owned()
    });
    let same = |one, other| of(old, one) == of(new, other);
    let KeyChanges { added, removed, moved, renewed } = old.keys().compare(new.keys(), same);
    if added + removed + moved + renewed > 0 {
        let mut how = format!("{}, was {}: +{added} -{removed}", new.keys().len(), old.keys().len());
        if moved > 0 {
            // Writing into a String cannot fail.
            let _ = write!(how, ", {moved} in another plan");
        }
        if renewed > 0 {
            let _ = write!(how, ", {renewed} on another day");
        }
        changes.note("keys", how);
    }
    changes
}

/// A limit of a plan, as messages call it.
pub(super) fn limit_name(limit: &PlanLimit) -> String {
    format!("{} in the plan {}", limit.spec.name, limit.plan)
}

/// The rule of a plan's limit. Keys that are not a plan's are as in `other`: their changes are told once, of the limit itself.
pub(super) fn limit_rule(limit: &PlanLimit, other: &LimitRule) -> LimitRule {
    // They are paired by the limit's name and the plan's.
    let PlanLimit { rule, plan: _, spec } = limit;
    LimitRule { spec: spec.clone(), key: rule.key.clone(), ..other.clone() }
}
