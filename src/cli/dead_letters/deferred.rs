//! `dead-letters deferred`: the requests of routes with `on_limit = "defer"`, and how they fare.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::super::safe::Safe;
use super::super::table::Table;
use super::{DeadLettersError, Screen};
use crate::config::{self, Certificates, DeadLetter, FileSecret};
use crate::dead_letter::{
    Deferral, DeferredEnd as Ended, DeferredKeys as Keys, DeferredListed as Listed, DeferredListing as Listing,
    DeferredTotals as Totals, KeptAnswer, deferred_id as id_text, read_deferred as read_one,
};
use crate::redact::Redactor;
use crate::time::{Tick, Wall, WallOffset};

/// The end of the help.
pub(super) const EXAMPLES: &str = "Examples:
  sluicegate dead-letters deferred
  sluicegate dead-letters deferred --state failed --json
  sluicegate dead-letters deferred 5a1e7b3a9d5e2f6d3c1a0b9e019b7e1c";

/// Arguments of `deferred`.
#[derive(Args, Debug)]
pub struct DeferredArgs {
    /// Show this one in full, with its answer; its id, or the beginning of it
    id: Option<String>,
    /// Only those that fare so
    #[arg(long, value_name = "STATE")]
    state: Option<DeferredState>,
    /// Only the last N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    last: Option<u32>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// The key of what is deferred [default: that of the configuration, or DIR.seal]
    #[arg(long, value_name = "FILE")]
    seal_key_file: Option<PathBuf>,
    /// With an ID: what the client sent as it is, secrets in clear
    #[arg(long)]
    reveal: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeferredState {
    Pending,
    Sent,
    Failed,
    Expired,
}

impl DeferredState {
    fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Expired => "expired",
        }
    }
}

impl Screen<'_> {
    pub(super) fn deferred(
        &mut self,
        args: &DeferredArgs,
        directory: &Path,
        config_file: &Path,
        now: Wall,
    ) -> Result<(), DeadLettersError> {
        let listing = Listing::read(directory)?;
        if listing.damaged > 0 {
            writeln!(self.notes, "{} damaged lines were passed over", listing.damaged)?;
        }
        if let Some(id) = &args.id {
            return self.one(args, find(&listing, id, directory)?, directory, config_file);
        }
        let asked = |listed: &&Listed| args.state.is_none_or(|state| listed.state() == state.word());
        let all: Vec<&Listed> = listing.requests.iter().filter(asked).collect();
        let last = args.last.map_or(all.len(), |last| last as usize);
        let some = all.get(all.len().saturating_sub(last)..).unwrap_or_default();
        if args.json {
            for listed in some {
                writeln!(self.out, "{}", to_json(listed))?;
            }
            return Ok(());
        }
        let mut table = Table::default();
        if !some.is_empty() {
            let titles = ["ID", "STATE", "KEPT", "TRIES", "STATUS", "METHOD", "ROUTE", "LIMIT", "CLIENT", "REASON"];
            table.row(titles.map(str::to_owned));
        }
        for listed in some {
            table.row(cells(listed, now));
        }
        self.out.write_all(table.text().as_bytes())?;
        Ok(writeln!(self.out, "{}", totals_in_words(&listing.totals))?)
    }

    fn one(
        &mut self,
        args: &DeferredArgs,
        listed: &Listed,
        directory: &Path,
        config_file: &Path,
    ) -> Result<(), DeadLettersError> {
        let mut value = to_json(listed);
        let keys = keys(args, directory, config_file).map_err(DeadLettersError::Deferred)?;
        match read_one(directory, listed, &keys) {
            Ok((request, answer)) => {
                add_request(&mut value, &request, self.redactor.filter(|_| !args.reveal), args.reveal);
                if let (Some(fields), Some(answer)) = (value.as_object_mut(), answer) {
                    fields.insert("answer".to_owned(), answer_of(&answer, args.reveal));
                }
            }
            Err(words) => writeln!(self.notes, "the rest cannot be read: {words}")?,
        }
        let text = if args.json { value.to_string() } else { format!("{value:#}") };
        // Nothing that a client or a server has sent steers the terminal.
        let text: Vec<String> = text.lines().map(|line| Safe(line).to_string()).collect();
        Ok(writeln!(self.out, "{}", text.join("\n"))?)
    }
}

fn find<'l>(listing: &'l Listing, id: &str, directory: &Path) -> Result<&'l Listed, DeadLettersError> {
    let mut found = listing.requests.iter().filter(|listed| !id.is_empty() && id_text(listed.id).starts_with(id));
    match (found.next(), found.next()) {
        (Some(listed), None) => Ok(listed),
        (Some(_), Some(_)) => Err(DeadLettersError::Ambiguous(id.to_owned())),
        (None, _) => Err(DeadLettersError::NotFound(id.to_owned(), directory.to_owned())),
    }
}

/// The keys that may open it.
fn keys(args: &DeferredArgs, directory: &Path, config_file: &Path) -> Result<Keys, String> {
    let bytes = |secret: FileSecret| secret.bytes().copied();
    let named = if let Some(path) = &args.seal_key_file {
        bytes(FileSecret::load(path)?)
    } else {
        let loaded = config::load(config_file, Certificates::Lenient(Wall::EPOCH)).ok();
        let section = loaded.and_then(|loaded| loaded.model.dead_letter);
        section.filter(|section| section.directory == directory).and_then(|section| bytes(section.seal_key_file?))
    };
    let path = DeadLetter::default_seal_file(directory);
    let own = if path.exists() { FileSecret::load(&path).ok().and_then(bytes) } else { None };
    let mut all = named.into_iter().chain(own);
    let seal = all.next().ok_or_else(|| format!("there is no key {}: name one by --seal-key-file", path.display()))?;
    // Nothing is put in order here.
    Ok(Keys { seal, others: all.collect(), order: [0; 32] })
}

fn to_json(listed: &Listed) -> Value {
    let offset = WallOffset::of_system();
    let time = |at: Tick| format!("{:.6}", offset.wall(at).timestamp());
    let mut value = json!({
        "id": id_text(listed.id),
        "state": listed.state(),
        "accepted": time(listed.accepted),
        "method": listed.method,
        "route": listed.route(),
        "limit": listed.limit(),
        "client_ip": listed.client().to_string(),
    });
    if let (Some(fields), Some(Ended { fate: _, at, tries, status, reason })) = (value.as_object_mut(), &listed.ended) {
        fields.insert("ended".to_owned(), json!(time(*at)));
        fields.insert("tries".to_owned(), json!(tries));
        fields.insert("status".to_owned(), json!(status));
        fields.insert("reason".to_owned(), json!(reason.as_deref()));
    }
    value
}

/// Adds the parts that are sealed: redacted as in the log, or as they are.
fn add_request(value: &mut Value, request: &Deferral, redactor: Option<&Redactor>, reveal: bool) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(fields) = value.as_object_mut() else { return };
    let whole = crate::redact::ClipEnd::Whole;
    let hidden = |shown: &dyn Fn(&Redactor) -> String, clear: String| match redactor {
        Some(redactor) => shown(redactor),
        None if reveal => clear,
        None => "[redacted]".to_owned(),
    };
    let (host, target) = (text(&request.host), text(&request.target));
    fields.insert("host".to_owned(), json!(hidden(&|own| own.host(&host, whole).into_owned(), host.clone())));
    fields.insert("target".to_owned(), json!(hidden(&|own| own.target(&target, whole).into_owned(), target.clone())));
    let headers = request.headers.iter().map(|(name, value)| {
        let (name, value) = (text(name), text(value));
        let shown = hidden(&|own| own.header(&name, &value, whole).into_owned(), value.clone());
        json!([name, shown])
    });
    fields.insert("headers".to_owned(), headers.collect());
    let body = if reveal { json!(text(&request.body)) } else { Value::Null };
    fields.insert("body".to_owned(), json!({ "len": request.body.len(), "data": body }));
    fields.insert("idempotency_key".to_owned(), json!(request.idempotency_key));
}

fn answer_of(answer: &KeptAnswer, reveal: bool) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let data = if reveal { json!(text(&answer.body)) } else { Value::Null };
    let names: Vec<_> = answer
        .headers
        .iter()
        .map(|(name, value)| if reveal { json!([text(name), text(value)]) } else { json!(text(name)) })
        .collect();
    json!({
        "status": answer.status,
        "headers": names,
        "body": { "len": answer.body.len(), "truncated": answer.truncated, "data": data },
    })
}

fn cells(listed: &Listed, now: Wall) -> Vec<String> {
    let ended = listed.ended.as_ref();
    let shown = |text: &str| Safe(text).to_string();
    vec![
        id_text(listed.id),
        listed.state().to_owned(),
        format!(
            "{} ago",
            crate::time::Span::from_secs(now.since(WallOffset::of_system().wall(listed.accepted)).as_secs_ceil())
        ),
        ended.map_or_else(String::new, |ended| ended.tries.to_string()),
        ended.and_then(|ended| ended.status).map_or_else(String::new, |status| status.to_string()),
        shown(&listed.method),
        shown(listed.route()),
        shown(listed.limit()),
        listed.client().to_string(),
        ended.and_then(|ended| ended.reason.as_deref()).map_or_else(String::new, shown),
    ]
}

fn totals_in_words(totals: &Totals) -> String {
    let Totals { deferred, sent, failed, expired } = totals;
    format!("deferred {deferred} = sent {sent} + failed {failed} + expired {expired} + pending {}", totals.pending())
}
