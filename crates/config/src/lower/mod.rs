//! Tables of the file -> [`Model`], one function per section. Each reports what is wrong and goes on with the next key.
//!
//! The rule: `None` is returned only after a finding was reported, so a file without errors always has a model.

pub(super) mod action;
pub(super) mod bandwidth;
pub(super) mod cors;
mod decided;
mod descriptors;
mod domain;
pub(super) mod edits;
pub(super) mod file;
pub(super) mod messages;
mod numbers;
mod of_key;
mod path;
pub(super) mod plans;
pub(super) mod refusal;
pub(super) mod rewrite;
mod route;
mod shadowed;
pub(super) mod template;

pub use of_key::numbers_of_key;

use std::sync::Arc;

use toml::de::DeTable;

use self::bandwidth::Bandwidths;
use super::certificates::CertificateFiles;
use super::findings::{Finding, Findings};
use super::followed::{self, FollowedSource, Search};
use super::kind::Context;
use super::model::{BandwidthSpec, LimitRule, Model, PlanLimit, RouteSpec};
use super::names::Declared;
use super::plans::KnownPlans;
use super::reader::{Node, Reader};
use super::section::Section;
use super::sections::admin;
use super::sections::client::{self, Client, ClientKeys};
use super::sections::fleet::{self, Fleet};
use super::sections::jwt;
use super::sections::listener::{self, Listeners};
use super::sections::log;
use super::sections::overload;
use super::sections::rules;
use super::sections::server::{Server, ServerKeys};
use super::sections::upstream::UpstreamSpec;
use super::sections::{dead_letter, limit, server, upstream};
use sluicegate_admission::{AddressForm, AddressHeader};

/// Lowers a whole file. Whether the result may be used is for the findings to say.
pub(super) fn lower(
    root: &DeTable<'_>,
    search: Search<'_>,
    (files, known): (&CertificateFiles, &KnownPlans),
    findings: &Findings,
) -> Option<Model> {
    let (nothing, mut source) = (DeTable::default(), FollowedSource::default());
    let mut root = Reader::root(root, findings);
    let mut settings = |name| section(&mut root, name).unwrap_or_else(|| Reader::new(name, &nothing, 0..0, findings));
    let context = Context::before_sections(files);
    let (server, log) = (server::read(settings("server"), &context), log::read(settings("log"), &context));
    let client = client::read(settings("client"), &context);
    let dead_letter = section(&mut root, "dead_letter").map(|reader| dead_letter::read(reader, &context));
    let admin = section(&mut root, "admin").map(|reader| admin::read(reader, &context));
    let overload = section(&mut root, "overload").map(|reader| overload::read(reader, &context));
    let fleet = section(&mut root, "fleet").map(|reader| fleet::read(reader, &context));
    let readers = tables(&mut root, "listener", Some("address = \"127.0.0.1:8080\""));
    let Listeners { specs: listeners, decided, deciding } =
        listener::read(readers, admin.as_ref(), &client, &context, findings);
    // Where the authorities are not read, nobody can be asked, and no word is due about it.
    let asks_for_clients = !files.certificates().are_read() || listener::asks_for_clients(listeners.as_deref());
    let jwt = section(&mut root, "jwt").map(|reader| jwt::read(reader, &context));
    let address_header = client.address_header.get().cloned();
    let context = Context {
        asks_for_clients,
        trusts_proxies: !client.trusted_proxies.value.as_ref().is_ok_and(Vec::is_empty),
        address_header: address_header.as_ref().and_then(AddressHeader::named),
        has_jwt: jwt.is_some(),
        deciding,
        has_dead_letter: dead_letter.is_some(),
        has_overload: overload.is_some(),
        // A section that is wrong has been reported; its limits are read as if it were right.
        fleet: fleet.as_ref().map(|fleet| fleet.as_ref().map_or_else(|_| Fleet::usual_terms(), Fleet::terms)),
        ..context
    };

    let follow = section(&mut root, "rules").map(|reader| rules::read(reader, &context));
    let rules = match &follow {
        None => lower_rules(&mut root, true, (&server, &client), known, &context),
        Some(follow) => {
            source = followed_rules(&mut root, follow.as_ref().ok(), search, files);
            let mut others = Reader::followed(&source.root, search.offset, findings);
            lower_rules(&mut others, source.is_read, (&server, &client), known, &context)
        }
    };
    root.done();

    let rules = rules?;
    let is_read = follow.is_none() || source.is_read;
    decided::check(decided, &rules, is_read);
    let (jwt, jwt_place) = jwt.transpose().ok()?.unzip();
    let overload = overload::checked(overload, &rules.upstreams, is_read).ok()?;
    let model = Model {
        server: Server::of(server).ok()?,
        log: log.ok()?,
        client: Client::of(client).ok()?,
        listeners: listeners?.into_iter().map(Arc::new).collect(),
        upstreams: rules.upstreams,
        limits: rules.limits,
        plan_limits: rules.plan_limits,
        bandwidths: rules.bandwidths,
        routes: rules.routes,
        dead_letter: dead_letter.transpose().ok()?,
        admin: admin.transpose().ok()?,
        fleet: fleet.transpose().ok()?,
        follow: follow.transpose().ok()?.map(|(follow, _)| follow),
        followed: source.digest,
        jwt,
        overload,
    };
    jwt_place.iter().filter(|_| !model.may_ask_for_claims()).for_each(jwt::warn_unused);
    Some(model)
}

/// The rules of elsewhere that the file names.
fn followed_rules<'f>(
    root: &mut Reader<'f>,
    follow: Option<&(rules::Follow, Node<'f>)>,
    search: Search<'_>,
    files: &CertificateFiles,
) -> FollowedSource<'f> {
    followed::refuse_own(root);
    follow.map(|follow| followed::find(follow, search, files, root.findings())).unwrap_or_default()
}

/// The parts of a model that are rules.
struct LoweredRules {
    upstreams: Vec<Arc<UpstreamSpec>>,
    limits: Vec<Arc<LimitRule>>,
    plan_limits: Vec<PlanLimit>,
    bandwidths: Vec<Arc<BandwidthSpec>>,
    routes: Vec<Arc<RouteSpec>>,
}

/// Lowers upstreams, limits, bandwidths and routes; a text that is `whole` has a route.
fn lower_rules(
    root: &mut Reader<'_>,
    whole: bool,
    (server, client): (&ServerKeys<'_>, &ClientKeys<'_>),
    known: &KnownPlans,
    context: &Context<'_>,
) -> Option<LoweredRules> {
    let findings = root.findings();
    let mut upstreams = Declared::new("upstream", findings);
    for reader in tables(root, "upstream", None) {
        let (name, upstream) = upstream::read(reader, context);
        upstreams.add(name, upstream);
    }
    let mut limits = Declared::new("limit", findings);
    let mut written_limits = Vec::new();
    for reader in tables(root, "limit", None) {
        written_limits.push(reader.written());
        let (name, limit) = limit::read(reader, context);
        limits.add(name, limit);
    }
    let mut bandwidths = Bandwidths::new(tables(root, "bandwidth", None), *context, findings);
    let mut routes = Declared::new("route", findings);
    let mut claims = shadowed::Claims::default();
    let mut plans = plans::RoutesWithPlans::new(*context, known);
    let example = "name = \"all\" and what it does: upstream, respond or redirect";
    // Keys of limits are asked about without any.
    let needs_route = whole && !(context.deciding.are_all && context.deciding.by_key);
    for reader in tables(root, "route", needs_route.then_some(example)) {
        let (name, route) = route::lower(reader, &upstreams, &limits, &mut bandwidths, &mut plans, server, context);
        if let (Some(name), Some(route)) = (&name, &route) {
            claims.claim(name, route);
        }
        routes.add(name, route);
    }
    claims.warn(findings);
    if !context.deciding.by_descriptor {
        descriptors::warn_unasked(&routes);
    }
    upstreams.warn_unused();
    if !context.deciding.by_key {
        limits.warn_unused();
    }
    bandwidths.warn_unused();
    let address_form = client.ipv6_prefix.get().map(|bits| AddressForm { ipv6_prefix: *bits }).unwrap_or_default();
    let plans = plans.lower(&limits, &written_limits, address_form, findings);

    descriptors::check_plans(&routes, &plans.limits);
    let mut routes = routes.into_items();
    plans.give_to(routes.as_deref_mut().unwrap_or_default());
    Some(LoweredRules {
        upstreams: upstreams.into_items()?,
        limits: limits.into_items()?,
        plan_limits: plans.limits,
        bandwidths: bandwidths.into_items()?,
        routes: routes?,
    })
}

/// The table of a section that is written once.
fn section<'t>(root: &mut Reader<'t>, name: &'static str) -> Option<Reader<'t>> {
    let node = root.optional(name)?;
    let what = format!("[{name}]");
    if node.is_array() {
        node.error(format!("`{name}` is one section, not a list"), format!("write it once, as {what}"));
        // Read on, for the errors inside.
        return node.one_or_many().first().and_then(|first| first.as_table(what));
    }
    node.table(what, &format!("a section: [{name}]"))
}

/// The tables of a section that may be written many times; at least one where there is an `example`.
fn tables<'t>(root: &mut Reader<'t>, name: &'static str, example: Option<&str>) -> Vec<Reader<'t>> {
    let what = format!("[[{name}]]");
    let (findings, place) = (root.findings(), root.place());
    let lacks = || {
        if let Some(example) = example {
            let message = format!("the file has no {what}");
            let finding = Finding::absent_in_file(place.clone(), message);
            findings.push(finding.help(format!("add {what} with {example}")));
        }
    };
    let Some(node) = root.optional(name) else {
        lacks();
        return Vec::new();
    };
    if !node.is_array() {
        node.error(format!("`{name}` is a list of sections"), format!("write its header as {what}"));
        return node.as_table(what).into_iter().collect();
    }
    let tables: Vec<_> =
        node.one_or_many().iter().filter_map(|item| item.table(&*what, &format!("a section: {what}"))).collect();
    if tables.is_empty() {
        lacks();
    }
    tables
}
