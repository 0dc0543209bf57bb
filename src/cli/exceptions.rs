//! `sluicegate keys reset`, `block`, `unblock`, `override` and `exceptions`: single keys of the gateway that runs.

use std::fmt::Write as _;
use std::path::Path;

use clap::Subcommand;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::admin::{Request, escaped};
use super::query::AdminQuery;
use super::safe::Safe;
use super::until::{self, Until};
use crate::gateway::{BlockSeen, ExceptionSeen, NumbersSeen};

/// Changes of single keys.
#[derive(Debug, Subcommand)]
pub enum ChangeKey {
    /// Forgets what is counted of a key, in the limit and in every plan. The block of a penalty ends too.
    Reset {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        asked: AdminQuery,
    },
    /// Refuses all requests of a key from now on, whatever else holds.
    Block {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        ends: Ends,
        #[command(flatten)]
        asked: AdminQuery,
    },
    /// Ends the block of a key, by hand or by a penalty. Its counts stay.
    Unblock {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        asked: AdminQuery,
    },
    /// Gives a key numbers of its own, in place of the limit's and of its plan's.
    Override {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        numbers: ExceptionNumbers,
        #[command(flatten)]
        ends: Ends,
        #[command(flatten)]
        asked: AdminQuery,
    },
    /// The keys that are blocked by hand or have numbers of their own.
    Exceptions {
        #[command(flatten)]
        asked: AdminQuery,
    },
}

#[derive(Debug, clap::Args)]
pub struct Key {
    /// The name of the limit.
    limit: String,
    /// The value of the key, as in `exempt`: an address, an API key; of several parts "one + two". Of a secret also its mark,
    /// as `keys top` shows it, or its `print`, as --json does.
    value: String,
}

#[derive(Debug, clap::Args)]
pub struct Ends {
    /// Its end: +2h, monday, tomorrow 9:00 (on the clocks of this machine), a date (in UTC), or 2026-12-01T08:00:00Z. Without one it
    /// holds until it is taken back.
    #[arg(long, value_name = "WHEN", value_parser = until::read)]
    until: Option<Until>,
    /// Why, for whoever reads the list.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct ExceptionNumbers {
    /// Requests in a time, such as 500/s; up to four times, all of which hold.
    #[arg(long = "rate", value_name = "RATE")]
    rates: Vec<String>,
    /// token-bucket, gcra: requests that may come at once.
    #[arg(long)]
    burst: Option<u64>,
    /// concurrency: requests that may be in flight.
    #[arg(long, value_name = "COUNT")]
    max_in_flight: Option<u64>,
    /// How long a request may wait for room.
    #[arg(long, value_name = "TIME")]
    max_wait: Option<String>,
    /// Takes them back: the key has the numbers of the limit, or of its plan, again.
    #[arg(long, conflicts_with_all = ["rates", "burst", "max_in_flight", "max_wait", "until", "reason"])]
    remove: bool,
}

#[derive(Debug, Deserialize)]
struct Changed {
    limit: String,
    key: String,
    #[serde(default)]
    block: Option<BlockSeen>,
    #[serde(default)]
    own_numbers: Option<NumbersSeen>,
    #[serde(default)]
    before: Option<Value>,
    #[serde(default)]
    found: Map<String, Value>,
    #[serde(default)]
    kept: Option<String>,
    #[serde(default)]
    fleet: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Exceptions {
    exceptions: Vec<ExceptionSeen>,
}

impl ChangeKey {
    /// Has the gateway do it.
    ///
    /// # Errors
    /// It cannot be asked, or does not do it: in words.
    pub fn run(&self, path: &Path) -> Result<String, String> {
        let show = |answer| serde_json::from_value::<Changed>(answer).map(|changed| changed.words());
        let tell = |asked: &AdminQuery, method, target: String, body: Option<Map<String, Value>>| {
            let body = body.map(|fields| Value::Object(fields).to_string());
            let body = body.as_deref().map(|body| ("application/json", body));
            asked.ask(path, &Request { method, target: &target, body, fields: &[] }, show)
        };
        match self {
            Self::Reset { key, asked } => tell(asked, "POST", key.target("reset"), None),
            Self::Block { key, ends, asked } => tell(asked, "PUT", key.target("block"), Some(ends.fields())),
            Self::Unblock { key, asked } => tell(asked, "DELETE", key.target("block"), None),
            Self::Override { key, numbers, asked, .. } if numbers.remove => {
                tell(asked, "DELETE", key.target("override"), None)
            }
            Self::Override { key, numbers, ends, asked } => {
                let mut fields = ends.fields();
                fields.append(&mut numbers.fields());
                tell(asked, "PUT", key.target("override"), Some(fields))
            }
            Self::Exceptions { asked } => exceptions(path, asked),
        }
    }
}

fn exceptions(path: &Path, asked: &AdminQuery) -> Result<String, String> {
    asked.pages(path, "/api/v1/exceptions", "exceptions", |answer| {
        let all: Exceptions = serde_json::from_value(answer)?;
        if all.exceptions.is_empty() {
            return Ok("No key has an exception.\n".to_owned());
        }
        Ok(all.exceptions.iter().map(exception).collect())
    })
}

impl Key {
    fn target(&self, what: &str) -> String {
        format!("/api/v1/limits/{}/keys/{}/{what}", escaped(&self.limit), escaped(&self.value))
    }
}

impl Ends {
    fn fields(&self) -> Map<String, Value> {
        if let Some(taken) = self.until.as_ref().and_then(|until| until.taken.as_ref()) {
            eprintln!("sluicegate: {taken}");
        }
        let until = self.until.as_ref().map(|until| until.text.clone());
        let fields = [("until", &until), ("reason", &self.reason)];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?)))).collect()
    }
}

impl ExceptionNumbers {
    fn fields(&self) -> Map<String, Value> {
        let rates = (!self.rates.is_empty()).then(|| json!(self.rates));
        let fields = [
            ("rates", rates),
            ("burst", self.burst.map(Value::from)),
            ("max_in_flight", self.max_in_flight.map(Value::from)),
            ("max_wait", self.max_wait.as_deref().map(Value::from)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl Changed {
    fn words(&self) -> String {
        let mut out = format!("{}, key {}: ", Safe(&self.limit), Safe(&self.key));
        let is_true = |name: &str| self.found.get(name).and_then(Value::as_bool);
        let what = match (&self.block, &self.own_numbers) {
            (Some(block), _) => block_words(block),
            (None, Some(numbers)) => numbers_words(numbers),
            (None, None) => match (is_true("counts"), is_true("by_hand"), is_true("penalty")) {
                (Some(true), ..) => "reset".to_owned(),
                (Some(false), ..) => "nothing was counted here".to_owned(),
                (None, Some(true), Some(true)) => "let go, from a block by hand and one by a penalty".to_owned(),
                (None, Some(true), _) => "let go, from a block by hand".to_owned(),
                (None, _, Some(true)) => "let go, from a block by a penalty".to_owned(),
                (None, Some(false), Some(false)) => "it was not blocked here".to_owned(),
                _ if self.before.is_some() => "it has the limit's numbers again".to_owned(),
                _ => "it had no numbers of its own here".to_owned(),
            },
        };
        out.push_str(&what);
        out.push('\n');
        for (name, value) in [("kept", &self.kept), ("fleet", &self.fleet)] {
            if let Some(value) = value {
                let _ = writeln!(out, "  {name}: {}", Safe(value));
            }
        }
        out
    }
}

fn exception(seen: &ExceptionSeen) -> String {
    let mut out = format!("{}, key {}\n", Safe(&seen.limit), Safe(&seen.key));
    let block = seen.block.as_ref().map(block_words);
    for words in block.into_iter().chain(seen.own_numbers.as_ref().map(numbers_words)) {
        let _ = writeln!(out, "  {words}");
    }
    // Its numbers say it themselves.
    if let Some(misfit) = seen.misfit.as_ref().filter(|_| seen.own_numbers.is_none()) {
        let _ = writeln!(out, "  it does not hold: {}", Safe(misfit));
    }
    out
}

/// A block in words.
pub fn block_words(block: &BlockSeen) -> String {
    let kind = if block.kind == "penalty" { "by a penalty" } else { "by hand" };
    let by = block.by.as_ref().map(|by| format!(" ({})", Safe(by))).unwrap_or_default();
    let mut out = format!("blocked {kind}{by}");
    out.push_str(&until_words(block.until.as_deref(), block.reason.as_deref()));
    out
}

/// Numbers of a key in words.
pub fn numbers_words(numbers: &NumbersSeen) -> String {
    let mut out = format!("own numbers: {} ({})", Safe(&numbers.numbers), Safe(&numbers.by));
    out.push_str(&until_words(numbers.until.as_deref(), numbers.reason.as_deref()));
    if let Some(misfit) = &numbers.misfit {
        let _ = write!(out, "; they do not hold: {}", Safe(misfit));
    }
    out
}

fn until_words(until: Option<&str>, reason: Option<&str>) -> String {
    let mut out = match until {
        Some(until) => format!(", until {}", Safe(until)),
        None => ", without an end".to_owned(),
    };
    if let Some(reason) = reason {
        let _ = write!(out, ": {}", Safe(reason));
    }
    out
}
