//! `plans` of routes, and the heads of the files that they name: what the plans are called, and which numbers of which
//! limits each of them overrides.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use toml::de::DeTable;

use super::descriptors;
use super::numbers::{self, NUMBERS, SAME_IN_ALL};
use crate::certificates::Certificates;
use crate::findings::{Finding, Findings, quoted, ticked};
use crate::form::{FILE, HEAD_KEY};
use crate::key;
use crate::kind::{Context, by, inner};
use crate::model::{LimitRule, PlanLimit, RouteSpec};
use crate::names::Declared;
use crate::nearest::nearest;
use crate::plans::{BookFault, KnownPlans, PlanBook, ReadContext, WantedTable, nearest_plan};
use crate::reader::{Node, Reader};
use crate::report::{self, Severity};
use crate::section::{Declare as _, Key, section};
use crate::sections::renews;
use crate::token::is_name;
use sluicegate_admission::{AddressForm, DescriptorPattern, KeyExpr};
use sluicegate_limiter::LimitSpec;

/// Plans of one file. Each has a policy on each of its routes.
const MAX_PLANS: usize = 1_000;

section! {
    /// `plans` of a route.
    read as PlansKeys {
        /// The plans file: what the plans are called, what they override, and the plan of each key.
        file: () = inner(FILE, |_, _| Ok(())).required("\"plans.toml\""),
        /// The key whose values the file names.
        key: KeyExpr = by(HEAD_KEY, key::key_of_plans, KeyExpr::to_string).required("\"header:x-api-key\""),
    }
}

const EXAMPLE: &str = "{ file = \"plans.toml\", key = \"header:x-api-key\" }";

/// The routes that have plans, while routes are lowered.
pub(super) struct RoutesWithPlans<'t> {
    context: Context<'t>,
    /// The plans files that were read before.
    known: &'t KnownPlans,
    routes: usize,
    uses: Vec<Use<'t>>,
}

/// A route that has plans.
struct Use<'t> {
    route: usize,
    file: Node<'t>,
    path: PathBuf,
    shown: PathBuf,
    key: Option<KeyExpr>,
    /// The route's limits, where they could be read.
    limits: Option<Vec<usize>>,
    /// The cost of each of its requests, where that is fixed.
    cost: Option<u64>,
}

/// The key, if it tells anybody apart.
fn key_of(key: &Key<'_, KeyExpr>, pattern: Option<&DescriptorPattern>) -> Option<KeyExpr> {
    let (Ok(own), Some(node)) = (&key.value, &key.node) else { return None };
    if !descriptors::check_key(node, "`plans`", own, pattern) {
        return None;
    }
    if own.has_global() {
        let help = "name what tells clients apart, such as \"header:x-api-key\"";
        node.error("`key` = global is the same for everybody", help);
        return None;
    }
    Some(own.clone())
}

/// The plans as they were read.
#[derive(Default)]
pub(super) struct Plans {
    books: Vec<(usize, Arc<PlanBook>)>,
    pub(super) limits: Vec<PlanLimit>,
}

/// The limits of a file's routes.
struct RouteLimits<'t, 'd> {
    declared: &'d Declared<'t, LimitRule>,
    /// Their tables in the configuration, by place.
    written: &'d [&'t DeTable<'t>],
    /// Those of the routes that have the file.
    used: BTreeSet<usize>,
    /// Whether these are all.
    is_whole: bool,
    context: Context<'d>,
}

impl<'t> RoutesWithPlans<'t> {
    /// None yet.
    pub(super) fn new(context: Context<'t>, known: &'t KnownPlans) -> Self {
        Self { context, known, routes: 0, uses: Vec::new() }
    }

    /// Reads `plans` of the next route. `limits` are the route's, `cost` is what each of its requests costs, `pattern` says which
    /// descriptors it is for.
    pub(super) fn note(
        &mut self,
        node: Option<&Node<'t>>,
        limits: Option<&[usize]>,
        cost: Option<u64>,
        pattern: Option<&DescriptorPattern>,
    ) {
        let route = self.routes;
        self.routes += 1;
        let Some(node) = node else { return };
        let Some(mut table) = node.table("`plans`", EXAMPLE) else { return };
        let PlansKeys { file, key } = PlansKeys::read(&mut table, &self.context);
        table.done();
        let (file, key) = (file.node, key_of(&key, pattern));
        if let Some([]) = limits {
            node.warning("`plans` has no effect: the route has no limits", "name them in `limits`, or remove plans");
        }
        let Some(file) = file else { return };
        let Some(text) = file.text("a path in quotes", "\"plans.toml\"") else { return };
        if text.is_empty() || text.contains('\0') {
            file.error(format!("invalid file name {}", quoted(text)), "name a plans file, such as \"plans.toml\"");
            return;
        }
        let (path, shown) = (self.context.files.locate(text), self.context.files.shown(text));
        self.uses.push(Use { route, file, path, shown, key, limits: limits.map(<[_]>::to_vec), cost });
    }

    /// Reads the files, once all routes are known.
    pub(super) fn lower(
        self,
        declared: &Declared<'t, LimitRule>,
        written: &[&'t DeTable<'t>],
        addresses: AddressForm,
        findings: &Findings,
    ) -> Plans {
        let mut plans = Plans::default();
        let reading = match self.context.files.certificates() {
            Certificates::Unread => return plans,
            Certificates::Strict(now) => ReadContext { shows_keys: true, now },
            Certificates::Lenient(now) | Certificates::PlansAlone(now) => ReadContext { shows_keys: false, now },
        };
        let paths: BTreeSet<&PathBuf> = self.uses.iter().map(|own| &own.path).collect();
        for path in paths {
            let uses: Vec<&Use<'_>> = self.uses.iter().filter(|own| own.path == *path).collect();
            let books = self.books(&uses, addresses, reading, findings);
            if let Some((_, book)) = books.first() {
                let limits = RouteLimits {
                    declared,
                    written,
                    used: uses.iter().filter_map(|own| own.limits.as_ref()).flatten().copied().collect(),
                    is_whole: uses.iter().all(|own| own.limits.is_some()),
                    context: self.context,
                };
                plans.add_head(book, &limits, &uses, findings);
                if books.iter().any(|(_, book)| book.keys().has_days()) {
                    check_days(&uses, &limits, &plans.limits);
                }
            }
            plans.books.extend(books);
        }
        plans
    }

    /// The books of one file's routes, each key's once.
    fn books(
        &self,
        uses: &[&Use<'t>],
        addresses: AddressForm,
        reading: ReadContext,
        findings: &Findings,
    ) -> Vec<(usize, Arc<PlanBook>)> {
        let mut books: Vec<(usize, Arc<PlanBook>)> = Vec::new();
        for own in uses {
            let Some(key) = &own.key else { continue };
            if let Some((_, book)) = books.iter().find(|(_, book)| book.keys().key() == key) {
                books.push((own.route, Arc::clone(book)));
                continue;
            }
            let wanted = WantedTable { path: &own.path, shown: &own.shown, key, addresses };
            match self.known.read(&wanted, reading) {
                Ok(book) => books.push((own.route, book)),
                Err(fault) => {
                    // What is wrong with the file is told once.
                    report_fault(own, fault, findings);
                    break;
                }
            }
        }
        books
    }
}

fn report_fault(own: &Use<'_>, fault: BookFault, findings: &Findings) {
    match fault {
        BookFault::Read(reason) => {
            let written = quoted(own.file.as_text().unwrap_or_default());
            let message = format!("{} = {written} cannot be used: {reason}", own.file.label());
            own.file.error(message, "name a plans file; a relative path starts from the directory of this file");
        }
        BookFault::Says(found) => findings.push_elsewhere(found),
    }
}

impl Plans {
    /// Gives each route its book.
    pub(super) fn give_to(&self, routes: &mut [Arc<RouteSpec>]) {
        for (route, book) in &self.books {
            // Nothing else points to it yet.
            if let Some(route) = routes.get_mut(*route).and_then(Arc::get_mut) {
                route.plans = Some(Arc::clone(book));
            }
        }
    }

    /// Lowers what stands before the keys.
    fn add_head(&mut self, book: &PlanBook, limits: &RouteLimits<'_, '_>, uses: &[&Use<'_>], findings: &Findings) {
        let own = Findings::default();
        let (root, _) = DeTable::parse_recoverable(book.head());
        let mut reader = Reader::new("the plans file", root.get_ref(), 0..0, &own);
        if let Some(node) = reader.required("default", "\"free\"") {
            default_plan(&node, book);
        }
        if let Some(node) = reader.optional("keys") {
            node.on_key()
                .error("`keys` is a table of its own", "write it last: a line [keys], then a line for each key");
        } else if !book.has_keys() {
            reader.absent("the plans file has no [keys]", "add a line [keys] at its end, even if no key follows");
        }
        let plans = reader.optional("plan").and_then(|node| node.table("`plan`", "[plan.free]"));
        if book.names().is_empty() {
            reader.absent("the plans file has no plan", "add [plan.free], and what it overrides");
        }
        if book.names().len() > MAX_PLANS {
            reader.absent(
                format!("the plans file has {} plans", book.names().len()),
                format!("it takes at most {MAX_PLANS}"),
            );
        }
        for node in plans.iter().take(MAX_PLANS).flat_map(Reader::entries) {
            self.add_plan(&node, limits, uses, findings);
        }
        reader.done();
        findings.push_elsewhere(report::elsewhere(book.shown(), book.head(), own));
    }

    fn add_plan(&mut self, node: &Node<'_>, limits: &RouteLimits<'_, '_>, uses: &[&Use<'_>], findings: &Findings) {
        let plan = node.label();
        if !is_name(plan) {
            let help = "a name is 1 to 64 letters, digits, dots, dashes or underscores (A-Z a-z 0-9 . _ -)";
            node.on_key().error(format!("{} cannot be a name", quoted(plan)), help);
        }
        let what = format!("the plan {}", quoted(plan));
        let Some(table) = node.as_table(what.as_str()) else {
            node.error(format!("{what} is no table"), "write it as [plan.free]");
            return;
        };
        for entry in table.entries() {
            let Some(index) = limits.find(&entry) else { continue };
            let Some((rule, spec)) = limits.overridden(&entry, index, &what, uses) else { continue };
            if self.limits.iter().any(|other| Arc::ptr_eq(&other.rule, rule) && *other.plan == *plan) {
                let message = format!("{what} overrides the limit {} in another plans file too", quoted(entry.label()));
                if let Some(first) = uses.first() {
                    let finding = Finding::error(first.file.span(), message);
                    findings.push(finding.help("give the plan of one of the files another name"));
                }
                continue;
            }
            self.limits.push(PlanLimit { rule: Arc::clone(rule), plan: plan.into(), spec });
        }
    }
}

/// Reports limits that count by months and cannot take the days that a file says of its keys; warns where no limit counts so.
fn check_days(uses: &[&Use<'_>], limits: &RouteLimits<'_, '_>, of_plans: &[PlanLimit]) {
    let counts_by_months = |rule: &Arc<LimitRule>| {
        let of_plans = of_plans.iter().filter(|own| Arc::ptr_eq(&own.rule, rule)).map(|own| &own.spec);
        std::iter::once(&rule.spec).chain(of_plans).any(|spec| renews::has_months(&spec.algorithm))
    };
    let by_months = |own: &Use<'_>| -> Vec<&Arc<LimitRule>> {
        let used = own.limits.iter().flatten().filter_map(|index| limits.declared.item(*index));
        used.filter(|rule| counts_by_months(rule)).collect()
    };
    if limits.is_whole
        && uses.iter().all(|own| by_months(own).is_empty())
        && let Some(own) = uses.first()
    {
        let message = "its keys have days (`renews`), which have no effect: no limit of its routes counts by months";
        own.file.warning(message, "name a limit with a rate per \"month\", or remove them");
    }
    for own in uses {
        for rule in by_months(own) {
            if let Some((why, help)) = renews::obstacle_of(rule) {
                let message = format!("its keys have days (`renews`), but the limit {} {why}", quoted(&rule.spec.name));
                own.file.error(message, format!("{help} of the limit, or the days"));
            }
        }
    }
}

fn default_plan(node: &Node<'_>, book: &PlanBook) {
    let Some(name) = node.text("the name of a plan in quotes", "\"free\"") else { return };
    if !book.names().is_empty() && !book.names().iter().any(|own| **own == *name) {
        node.error(format!("there is no plan {}", quoted(name)), nearest_plan(name, book.names()));
    }
}

impl RouteLimits<'_, '_> {
    /// The limit that an entry of a plan names.
    fn find(&self, entry: &Node<'_>) -> Option<usize> {
        let found = self.used.iter().copied().find(|index| self.declared.name(*index) == entry.label());
        if found.is_none() && self.is_whole {
            let names = || self.used.iter().map(|index| self.declared.name(*index));
            let help = match nearest(entry.label(), names()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("limits of these routes: {}", names().take(8).collect::<Vec<_>>().join(", ")),
            };
            let message = format!("no route with these plans has a limit {}", quoted(entry.label()));
            entry.on_key().error(message, help);
        }
        found
    }

    /// A limit, and its parameters with a plan's numbers; `None` if there are none, or they cannot be read.
    fn overridden(
        &self,
        entry: &Node<'_>,
        index: usize,
        what: &str,
        uses: &[&Use<'_>],
    ) -> Option<(&Arc<LimitRule>, LimitSpec)> {
        let own = entry.as_table(what);
        let Some(own) = own else {
            entry.error(format!("{} of {what} is no table", ticked(entry.label())), "write it as { rate = \"100/s\" }");
            return None;
        };
        for node in own.entries().filter(|node| !NUMBERS.contains(&node.label())) {
            refuse_setting(&node);
        }
        if own.written().is_empty() {
            let message = format!("{what} overrides nothing of the limit {}", quoted(entry.label()));
            entry.warning(message, "write what is another there, such as { rate = \"100/s\" }, or remove it");
            return None;
        }
        let (rule, base) = (self.declared.item(index)?, self.written.get(index)?);
        let at = entry.key_span();
        let merged = numbers::merged(own.written(), base, &at);
        let findings = Findings::default();
        let spec = numbers::read(&merged, entry, rule, uses_of(uses, index), (&self.context, &findings)).ok();
        let (found, _) = findings.into_parts();
        for finding in found {
            // A warning about what is inherited has been given where it is written.
            let is_echo = finding.severity == Severity::Warning && finding.span == Some(at.clone());
            if !is_echo {
                entry.push(finding);
            }
        }
        Some((rule, spec?))
    }
}

/// The cost of each request on each of the routes that use a limit and do not leave it to the limit.
fn uses_of(uses: &[&Use<'_>], limit: usize) -> Vec<u64> {
    let has_it = |own: &&&Use<'_>| own.limits.as_ref().is_some_and(|limits| limits.contains(&limit));
    uses.iter().filter(has_it).filter_map(|own| own.cost).collect()
}

fn refuse_setting(node: &Node<'_>) {
    let name = ticked(node.label());
    let numbers = || format!("a plan may have another {}", NUMBERS.join(", "));
    if SAME_IN_ALL.contains(&node.label()) {
        node.on_key().error(format!("{name} of a limit is the same in every plan"), numbers());
        return;
    }
    let help = nearest(node.label(), NUMBERS).map_or_else(numbers, |near| format!("did you mean `{near}`?"));
    node.on_key().error(format!("unknown key {name} of a limit in a plan"), help);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::numbers::{NUMBERS, SAME_IN_ALL};
    use crate::known_keys;

    #[test]
    fn every_key_of_a_limit_is_a_plans_or_the_same_in_all() {
        let listed: BTreeSet<String> = NUMBERS.iter().chain(&SAME_IN_ALL).map(ToString::to_string).collect();
        assert_eq!(listed, known_keys::of_section("limit"));
        assert_eq!(listed.len(), NUMBERS.len() + SAME_IN_ALL.len(), "one of them is in both lists");
    }
}
