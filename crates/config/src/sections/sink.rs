//! `sinks` of `[dead_letter]`

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::alert::{ADDRESS, Webhook, webhook};
use super::secret_file::{FileSecret, SecretFile};
use crate::findings::{Reported, quoted};
use crate::form::{NAME, Secrecy};
use crate::kind::{Context, by, duration, each};
use crate::names;
use crate::reader::Node;
use crate::section::{Declare, Section, section};
use sluicegate_time::Span;

section! {
    /// One of `sinks`: it gets every line of the dead-letter log.
    pub struct Sink, read as SinkKeys {
        /// Where batches of lines are sent to, by POST.
        http: Webhook = by(ADDRESS, webhook, Webhook::to_string).required("\"https://siem.example.com\"").secret(Secrecy::Host),
        /// How long a line may wait for others to go with.
        batch: Span = duration(BATCHES).or("1s"),
        /// How metrics and its file call it; a sink of the same name goes on where it was.
        name: Option<Arc<str>> = by(NAME, |node, _| names::read(node, "siem"), ToString::to_string).or_nothing("its host"),
        /// A file with the key of the signature: 32 bytes, or 64 hexadecimal digits.
        secret_file: Option<FileSecret> = SecretFile { example: "sink.key", help: SECRET_HELP }.or_nothing("none"),
    }
}

const SECRET_HELP: &str = "a key has 32 bytes, or 64 hexadecimal digits: make one with \
                           `(umask 077; sluicegate dead-letters key > sink.key)`";

/// Sinks of a file. Each has a thread of its own.
pub(super) const MAX_SINKS: usize = 8;

const BATCHES: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(60);

/// Bytes of a host and a port: a name of a file is not much longer.
const MAX_HOST_BYTES: usize = 200;

/// Kinds of sinks that are to come.
const LATER: [&str; 2] = ["syslog", "redis_stream"];

impl Sink {
    /// How metrics and its file call it: by its name, or else by the host and port of its address.
    pub fn called(&self) -> String {
        self.name.as_ref().map_or_else(|| self.http.host().to_ascii_lowercase(), ToString::to_string)
    }
}

/// Reads `sinks`.
pub(super) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<Sink>, Reported> {
    let items = node.array("[{ http = \"https://siem.example.com\" }]")?;
    if items.len() > MAX_SINKS {
        let message = format!("{} has {} of them", node.label(), items.len());
        return Err(node.error(message, format!("it takes at most {MAX_SINKS}")));
    }
    let sinks = each(&items, |item| sink(item, context))?;
    for (at, own) in sinks.iter().enumerate() {
        let called = own.called();
        if let (true, Some(item)) = (sinks.iter().take(at).any(|other| other.called() == called), items.get(at)) {
            let message = format!("two sinks are called {}", quoted(&called));
            return Err(item.error(message, "give each its own: name = \"siem\""));
        }
    }
    Ok(sinks)
}

fn sink(item: &Node<'_>, context: &Context<'_>) -> Result<Sink, Reported> {
    let reader = item.inner("a sink", "{ http = \"https://siem.example.com\" }")?;
    if let Some(kind) = LATER.iter().find(|kind| reader.has(kind)) {
        let message = format!("a sink cannot be `{kind}` in this version");
        return Err(item.error(message, "this version has http = \"https://…\""));
    }
    let sink = Sink::of(Sink::read_keys(reader, context))?;
    if sink.name.is_none() && sink.http.host().len() > MAX_HOST_BYTES {
        return Err(item.error("a sink whose host is too long to be its name", "add name = \"siem\""));
    }
    Ok(sink)
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { http, batch, name, secret_file } = self;
        let called = name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
        let signed = if secret_file.is_some() { ", signed" } else { "" };
        write!(f, "[{called}to {http}, batch {batch}{signed}]")
    }
}
