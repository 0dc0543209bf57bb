//! The settings of each part in words, old against new: what the lines of a plan say.

use std::collections::HashSet;
use std::fmt::Display;

use super::describe_bandwidth;
use super::describe_edits;
use super::describe_plans;
use super::describe_tls;
use super::diff::Change;
use super::model::{
    Action, Admin, Cors, DeadLetter, Fsync, Log, Model, Preflight, Route, Server, ServerSpec, Upstream,
};
use super::size::show_size;
use crate::admission::{Cost, PathPattern, RoutePattern};
use crate::time::{ScheduleRules, Span};

/// Items of a list that a line names one by one.
const MAX_NAMED: usize = 5;

/// The settings that differ.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<Change>);

impl Changes {
    pub(super) fn into_vec(self) -> Vec<Change> {
        self.0
    }

    /// `what old -> new`, if they differ.
    pub(super) fn value<T: PartialEq, D: Display>(
        &mut self,
        what: &'static str,
        old: &T,
        new: &T,
        show: impl Fn(&T) -> D,
    ) {
        if old != new {
            self.0.push(Change { what, how: format!("{} -> {}", show(old), show(new)) });
        }
    }

    /// `what how`
    pub(super) fn note(&mut self, what: &'static str, how: String) {
        self.0.push(Change { what, how });
    }

    /// `what +added -removed`, if the lists differ.
    pub(super) fn list(&mut self, what: &'static str, old: &[String], new: &[String]) {
        if old == new {
            return;
        }
        // Lists may have thousands of items.
        let (before, after): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
        let added = new.iter().filter(|item| !before.contains(item)).map(|item| format!("+{item}"));
        let removed = old.iter().filter(|item| !after.contains(item)).map(|item| format!("-{item}"));
        let all: Vec<String> = added.chain(removed).collect();
        let how = match (all.get(..MAX_NAMED), all.len()) {
            (_, 0) => "in another order".to_owned(),
            (Some(first), count) if count > MAX_NAMED => format!("{} and {} more", first.join(" "), count - MAX_NAMED),
            _ => all.join(" "),
        };
        self.0.push(Change { what, how });
    }
}

pub(super) fn server(old: &Server, new: &Server) -> Changes {
    let mut changes = Changes::default();
    changes.value("watch", &old.watch, &new.watch, bool::to_string);
    changes.value("shutdown_grace", &old.shutdown_grace, &new.shutdown_grace, Span::to_string);
    changes.value("rate_headers", &old.rate_headers, &new.rate_headers, |headers| headers.word());
    changes.value("traceparent", &old.traceparent, &new.traceparent, |what| what.word());
    changes.value("timeout", &old.timeout, &new.timeout, |timeout| or_none(*timeout));
    changes.value("head_timeout", &old.head_timeout, &new.head_timeout, Span::to_string);
    changes.value("keep_alive_timeout", &old.keep_alive_timeout, &new.keep_alive_timeout, Span::to_string);
    changes.value("body_timeout", &old.body_timeout, &new.body_timeout, Span::to_string);
    changes.value("tunnel_timeout", &old.tunnel_timeout, &new.tunnel_timeout, |timeout| or_none(*timeout));
    changes.value("max_head_size", &old.max_head_size, &new.max_head_size, |bytes| show_size(*bytes as u64));
    changes.value("max_head_fields", &old.max_head_fields, &new.max_head_fields, usize::to_string);
    changes.value("max_body_size", &old.max_body_size, &new.max_body_size, |bytes| size_or_none(*bytes));
    changes.value("handshake_timeout", &old.handshake_timeout, &new.handshake_timeout, Span::to_string);
    changes.value("max_handshakes", &old.max_handshakes, &new.max_handshakes, usize::to_string);
    changes.value("max_streams", &old.max_streams, &new.max_streams, u32::to_string);
    changes.value("max_connections", &old.max_connections, &new.max_connections, |count| count_or(*count, "auto"));
    changes.value("max_requests", &old.max_requests, &new.max_requests, |count| count_or(count.map(u64::from), "none"));
    changes
}

/// What of `[server]` waits for a restart.
pub(super) fn workers(old: &Server, new: &Server) -> Changes {
    let mut changes = Changes::default();
    changes.value("workers", &old.workers, &new.workers, |workers| {
        workers.map_or_else(|| "auto".to_owned(), |workers| workers.to_string())
    });
    changes
}

pub(super) fn log_format(old: &Log, new: &Log) -> Changes {
    let mut changes = Changes::default();
    changes.value("format", &old.format, &new.format, |format| format.word());
    changes
}

pub(super) fn log(old: &Log, new: &Log) -> Changes {
    let mut changes = Changes::default();
    changes.value("level", &old.level, &new.level, Clone::clone);
    changes.value("access", &old.access, &new.access, |access| access.word());
    changes
}

/// `[client]` of two models.
pub(super) fn client(old_model: &Model, new_model: &Model) -> Changes {
    let mut changes = Changes::default();
    let (old, new) = (&old_model.client, &new_model.client);
    changes.list("trusted_proxies", &texts(&old.trusted_proxies), &texts(&new.trusted_proxies));
    changes.value("address_header", &old.address_header, &new.address_header, |header| header.word());
    changes.value("ipv6_prefix", &old.ipv6_prefix, &new.ipv6_prefix, u8::to_string);
    changes.list("deny", &texts(&old_model.deny), &texts(&new_model.deny));
    let (old, new) = (&old_model.accepting, &new_model.accepting);
    changes.list("allow", &texts(&old.allow), &texts(&new.allow));
    changes.value("max_connections", &old.max_connections, &new.max_connections, |count| count_or(*count, "none"));
    changes.value("connection_rate", &old.connection_rate, &new.connection_rate, |rate| {
        rate.map_or_else(|| "none".to_owned(), |rate| rate.to_string())
    });
    changes
}

pub(super) fn dead_letter(old: &DeadLetter, new: &DeadLetter) -> Changes {
    let mut changes = Changes::default();
    changes.value("directory", &old.directory, &new.directory, |path| path.display().to_string());
    changes.value("max_record_rate", &old.max_record_rate, &new.max_record_rate, u64::to_string);
    changes.value("max_byte_rate", &old.max_byte_rate, &new.max_byte_rate, |bytes| format!("{}/s", show_size(*bytes)));
    changes.value("max_key_rate", &old.max_key_rate, &new.max_key_rate, u64::to_string);
    changes.value("rotate_size", &old.rotate_size, &new.rotate_size, |bytes| show_size(*bytes));
    changes.value("rotate_age", &old.rotate_age, &new.rotate_age, Span::to_string);
    changes.value("max_total_size", &old.max_total_size, &new.max_total_size, |bytes| show_size(*bytes));
    changes.value("max_age", &old.max_age, &new.max_age, Span::to_string);
    changes.value("fsync", &old.fsync, &new.fsync, |fsync| match fsync {
        Fsync::Always => "always".to_owned(),
        Fsync::Rotate => "rotate".to_owned(),
        Fsync::Never => "never".to_owned(),
        Fsync::Interval(span) => format!("interval:{span}"),
    });
    changes.list("redact", &old.redact, &new.redact);
    changes.value("redact_secret_file", &old.redact_secret_file, &new.redact_secret_file, |file| {
        file.as_ref().map_or_else(|| "beside the directory".to_owned(), |file| file.display().to_string())
    });
    changes
}

pub(super) fn admin(old: &Admin, new: &Admin) -> Changes {
    let mut changes = Changes::default();
    changes.value("address", &old.address, &new.address, ToString::to_string);
    changes
}

pub(super) fn upstream(old: &Upstream, new: &Upstream) -> Changes {
    let Upstream {
        // Upstreams are paired by it.
        name: _,
        servers,
        balance,
        hash_key,
        hash_balance,
        connect_timeout,
        connect_rate,
        // describe_tls::upstream tells of these three.
        protocol: _,
        tls: _,
        proxy_protocol: _,
    } = old;
    let mut changes = Changes::default();
    let server_specs = |servers: &[ServerSpec]| servers.iter().map(server_spec).collect::<Vec<_>>();
    changes.list("servers", &server_specs(servers), &server_specs(&new.servers));
    changes.value("balance", balance, &new.balance, |balance| balance.word());
    changes.value("hash_key", hash_key, &new.hash_key, ToString::to_string);
    changes.value("hash_balance", hash_balance, &new.hash_balance, |bound| {
        bound.map_or_else(|| "off".to_owned(), |bound| bound.to_string())
    });
    changes.value("connect_timeout", connect_timeout, &new.connect_timeout, Span::to_string);
    changes.value("connect_rate", connect_rate, &new.connect_rate, ToString::to_string);
    describe_tls::upstream(&mut changes, old, new);
    changes
}

/// A route with the model that its indexes point into.
pub(super) fn route((old_model, old): (&Model, &Route), (new_model, new): (&Model, &Route)) -> Changes {
    let Route {
        // Routes are paired by it.
        name: _,
        pattern: old_pattern,
        active,
        limits,
        cost,
        action: old_action,
        on_limit,
        timeout,
        max_body_size,
        cors: old_cors,
        // describe_edits::route tells of these five.
        request_headers: _,
        response_headers: _,
        rewrite: _,
        host: _,
        refusal: _,
        // describe_bandwidth::route tells of these two.
        bandwidth: _,
        messages: _,
        // describe_plans::route tells of it.
        plans: _,
    } = old;
    let mut changes = Changes::default();
    pattern(&mut changes, old_pattern, &new.pattern);
    changes.value("active", active, &new.active, |active| or_always(active.as_ref()));
    describe_plans::route(&mut changes, old, new);
    changes.list("limits", &limit_names(old_model, limits), &limit_names(new_model, &new.limits));
    changes.value("cost", cost, &new.cost, Cost::to_string);
    changes.value("on_limit", on_limit, &new.on_limit, |choice| choice.word());
    let (was, is) = (action(old_model, old_action), action(new_model, &new.action));
    // Bytes are compared as they are: a file may have a million of them, and a route each.
    let is_other = match (old_action, &new.action) {
        (Action::Respond { .. }, Action::Respond { .. }) => *old_action != new.action,
        _ => was != is,
    };
    if is_other {
        changes.note("action", format!("{was} -> {is}"));
    }
    // A route that follows the server's default is told of once, there.
    let follows = *timeout == old_model.server.timeout && new.timeout == new_model.server.timeout;
    if !follows {
        changes.value("timeout", timeout, &new.timeout, |timeout| or_none(*timeout));
    }
    let follows =
        *max_body_size == old_model.server.max_body_size && new.max_body_size == new_model.server.max_body_size;
    if !follows {
        changes.value("max_body_size", max_body_size, &new.max_body_size, |bytes| size_or_none(*bytes));
    }
    changes.value("cors", old_cors, &new.cors, |rules| cors(rules.as_ref()));
    describe_edits::route(&mut changes, old, new);
    describe_bandwidth::route(&mut changes, (old_model, old), (new_model, new));
    changes
}

fn pattern(changes: &mut Changes, old: &RoutePattern, new: &RoutePattern) {
    let RoutePattern { hosts, path: old_path, methods, headers, allow_encoded_slash } = old;
    changes.list("hosts", &texts(hosts), &texts(&new.hosts));
    changes.value("path", &path(old_path), &path(&new.path), Clone::clone);
    changes.list("methods", methods, &new.methods);
    let fields = |headers: &[(String, String)]| {
        headers.iter().map(|(name, value)| format!("{name}:{value:?}")).collect::<Vec<_>>()
    };
    changes.list("headers", &fields(headers), &fields(&new.headers));
    changes.value("allow_encoded_slash", allow_encoded_slash, &new.allow_encoded_slash, bool::to_string);
}

fn limit_names(model: &Model, limits: &[usize]) -> Vec<String> {
    let name = |index: &usize| model.limits.get(*index).map(|limit| limit.spec.name.to_string());
    limits.iter().filter_map(name).collect()
}

/// In words: the action of a route.
fn action(model: &Model, action: &Action) -> String {
    match action {
        Action::Forward(index) => {
            let name = model.upstreams.get(*index).map_or("", |upstream| &upstream.name);
            format!("upstream {name}")
        }
        Action::Respond { status, body } => format!("respond {status} ({} bytes)", body.bytes.len()),
        Action::Redirect { status, target } => format!("redirect {status} {}", describe_edits::target(target)),
    }
}

fn path(path: &PathPattern) -> String {
    match path {
        PathPattern::Prefix(path) => path.clone(),
        PathPattern::Exact(path) => format!("exactly {path}"),
        PathPattern::Regex(regex) => format!("regex {}", regex.as_str()),
    }
}

fn cors(cors: Option<&Cors>) -> String {
    let Some(cors) = cors else { return "none".to_owned() };
    let Cors {
        allow_origins,
        allow_credentials,
        count_preflight,
        preflight,
        allow_methods,
        allow_headers,
        expose_headers,
        max_age,
    } = cors;
    let credentials = if *allow_credentials { " with credentials" } else { "" };
    let counted = if *count_preflight { ", preflights counted" } else { "" };
    let answer = match preflight {
        Preflight::Forward => ", preflights forwarded".to_owned(),
        Preflight::Answer => {
            let (methods, headers) = (allow_methods.join(" "), allow_headers.join(" "));
            format!(", methods {methods}, headers {headers}, for {max_age}")
        }
    };
    let exposed = match expose_headers.join(" ") {
        names if names.is_empty() => String::new(),
        names => format!(", exposed {names}"),
    };
    format!("[{}]{credentials}{counted}{answer}{exposed}", allow_origins.join(", "))
}

fn server_spec(ServerSpec { address, weight }: &ServerSpec) -> String {
    if *weight == 1 { address.to_string() } else { format!("{address} (weight {weight})") }
}

pub(super) fn or_none(timeout: Option<Span>) -> String {
    timeout.map_or_else(|| "none".to_owned(), |timeout| timeout.to_string())
}

pub(super) fn or_always(active: Option<&ScheduleRules>) -> String {
    active.map_or_else(|| "always".to_owned(), ScheduleRules::to_string)
}

/// A number, or the word for none.
pub(super) fn count_or(count: Option<u64>, word: &str) -> String {
    count.map_or_else(|| word.to_owned(), |count| count.to_string())
}

fn size_or_none(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "none".to_owned(), show_size)
}

pub(super) fn texts(items: &[impl Display]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}
