//! `sluicegate config`: the rules of the gateway that runs: read, judged, compared, changed one by one, and taken back.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value};

use super::admin::{AdminArguments, Answered, Gateway, Request, escaped, findings};
use super::running;
use super::safe::Safe;
use super::table::Table;
use super::tell::tell;
use crate::config::{self, Certificates, KnownPlans};
use crate::rules;
use crate::time::Clock;

/// The largest text that the API takes, in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
    #[command(flatten)]
    admin: AdminArguments,
    /// As the admin interface answers it.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// The generation that holds, since when, and how the last reload went. Exit 1 if that was rejected.
    Status,
    /// The text of the file, with its secrets.
    Show,
    /// Say what is wrong with a text, as `check` does, by the gateway that runs. Exit 1 if anything is.
    Validate {
        /// The file; -: standard input.
        file: PathBuf,
    },
    /// The plan of a reload, before it is done: of the gateway's file as it is now, or of another text. With two files: from
    /// the first to the second, without a gateway.
    Diff {
        /// Another text; -: standard input.
        file: Option<PathBuf>,
        /// The text that FILE is compared with; -: standard input.
        new: Option<PathBuf>,
    },
    /// The last 20 texts: when, by whom, the change.
    History {
        /// The text of this generation.
        generation: Option<u64>,
    },
    /// Write the text of an earlier generation into the file, and take it over at once.
    Rollback {
        /// As the history has it.
        generation: u64,
        /// Also if it changes who may administer the gateway, and if the file has a text that has never held, which is lost then.
        #[arg(long)]
        force: bool,
    },
    /// An entry as the file has it, in JSON; without a name all of its kind.
    Get {
        #[arg(value_enum)]
        kind: EntryKind,
        /// Its name.
        name: Option<String>,
    },
    /// Change keys of an entry, and take that over at once.
    Set {
        #[arg(value_enum)]
        kind: EntryKind,
        /// Its name.
        name: String,
        /// KEY=VALUE, with VALUE as the file has it, or a word without quotes; KEY= removes the key.
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
        /// Make a new entry.
        #[arg(long)]
        new: bool,
        /// A new route: before this one, in place of behind all.
        #[arg(long, value_name = "NAME", requires = "new")]
        before: Option<String>,
    },
    /// Remove an entry, and take that over at once.
    Delete {
        #[arg(value_enum)]
        kind: EntryKind,
        /// Its name.
        name: String,
    },
    /// The plan of a key of a route, or another one for it.
    Plan {
        /// The route.
        route: String,
        /// The value of the key.
        value: String,
        /// Give it this plan.
        #[arg(long, value_name = "PLAN")]
        set: Option<String>,
        /// Take its line out: it has the default plan again.
        #[arg(long, conflicts_with = "set")]
        remove: bool,
    },
}

/// A kind of entries.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EntryKind {
    Route,
    Limit,
    Upstream,
    Bandwidth,
}

impl EntryKind {
    /// As paths have it.
    fn all(self) -> &'static str {
        match self {
            Self::Route => "routes",
            Self::Limit => "limits",
            Self::Upstream => "upstreams",
            Self::Bandwidth => "bandwidths",
        }
    }

    fn word(self) -> &'static str {
        self.all().trim_end_matches('s')
    }
}

pub const EXAMPLES: &str = "Examples:
  sluicegate config set limit per-client rate=20/s     # at once, and in the file
  sluicegate config set route beta --new path=/beta upstream=app 'limits=[\"per-client\"]' --before all
  sluicegate config delete route beta
  sluicegate config diff                               # what a reload would do now
  sluicegate config diff candidate.toml
  sluicegate config diff old.toml new.toml             # of two files, without a gateway
  sluicegate config history                            # what changed, when, by whom
  sluicegate config rollback 12
  sluicegate config plan orders k-3f9a27 --set gold

They need a token with the role `rules`, or the Unix socket of [admin]; status, diff and history need `read`.";

/// Does it. Exit 1: the gateway cannot be asked, or does not do it; with `validate` also a text that is wrong.
pub fn run(path: &Path, arguments: &ConfigArguments) -> ExitCode {
    if let ConfigCommand::Diff { file: Some(old), new: Some(new) } = &arguments.command {
        return tell(diff_of_files(path, old, new, arguments.json));
    }
    let gateway = match Gateway::of(&arguments.admin, || running::model(path), path) {
        Ok(gateway) => gateway,
        Err(error) => return tell(Err(error)),
    };
    let asker = Asker { gateway, json: arguments.json };
    tell(match &arguments.command {
        ConfigCommand::Status => match asker.status() {
            Ok((true, text)) => Ok(text),
            Ok((false, text)) => {
                tell(Ok(text));
                return ExitCode::FAILURE;
            }
            Err(error) => Err(error),
        },
        ConfigCommand::Show => asker.answer("GET", "/api/v1/config/text", None, &[]).map(|answered| answered.body),
        ConfigCommand::Validate { file } => match asker.validate(file) {
            Ok((true, text)) => Ok(text),
            Ok((false, text)) => {
                tell(Ok(text));
                return ExitCode::FAILURE;
            }
            Err(error) => Err(error),
        },
        ConfigCommand::Diff { file: None, .. } => asker.look("/api/v1/config/diff", plan),
        ConfigCommand::Diff { file: Some(file), .. } => asker.diff(file),
        ConfigCommand::History { generation: None } => asker.history(),
        ConfigCommand::History { generation: Some(generation) } => {
            asker.look(&format!("/api/v1/config/history/{generation}"), |entry| text_of(&entry["text"]))
        }
        ConfigCommand::Rollback { generation, force } => asker.roll_back(*generation, *force),
        ConfigCommand::Get { kind, name } => asker.get(*kind, name.as_deref()),
        ConfigCommand::Set { kind, name, changes, new, before } => {
            asker.set(*kind, name, changes, *new, before.as_deref())
        }
        ConfigCommand::Delete { kind, name } => {
            let target = format!("/api/v1/{}/{}", kind.all(), escaped(name));
            asker.etag(&target).and_then(|etag| {
                let what = format!("{} {}", kind.word(), Safe(name));
                asker.change("DELETE", &target, None, &etag, &what)
            })
        }
        ConfigCommand::Plan { route, value, set, remove } => asker.plan_of_key(route, value, set.as_deref(), *remove),
    })
}

/// The gateway, and how its answers are shown.
struct Asker {
    gateway: Gateway,
    json: bool,
}

impl Asker {
    fn answer(
        &self,
        method: &str,
        target: &str,
        body: Option<(&str, &str)>,
        fields: &[(&str, &str)],
    ) -> Result<Answered, String> {
        self.gateway.ask_whole(&Request { method, target, body, fields })
    }

    fn read(&self, answered: &Answered) -> Result<Value, String> {
        let unread = |error| format!("{}: an answer that cannot be read: {error}", self.gateway.shown());
        serde_json::from_str(&answered.body).map_err(unread)
    }

    fn look(&self, target: &str, show: impl FnOnce(&Value) -> String) -> Result<String, String> {
        let answered = self.answer("GET", target, None, &[])?;
        self.show(answered, show)
    }

    fn show(&self, answered: Answered, show: impl FnOnce(&Value) -> String) -> Result<String, String> {
        if self.json {
            return Ok(answered.body);
        }
        self.read(&answered).map(|answer| show(&answer))
    }

    /// The tag of the text that has what is there.
    fn etag(&self, target: &str) -> Result<String, String> {
        self.answer("GET", target, None, &[])?.etag_or(&self.gateway)
    }

    /// The tag of the file as it is.
    fn etag_of_file(&self) -> Result<String, String> {
        let config = self.read(&self.answer("GET", "/api/v1/config", None, &[])?)?;
        let etag = config["etag"].as_str().map(str::to_owned);
        etag.ok_or_else(|| "the gateway cannot read its file: mend it first".to_owned())
    }

    /// Whether the last reload was not rejected, and the text that tells.
    fn status(&self) -> Result<(bool, String), String> {
        let answered = self.answer("GET", "/api/v1/config", None, &[])?;
        let config = self.read(&answered)?;
        let holds = config["last_reload_error"].is_null();
        Ok((holds, if self.json { answered.body } else { status(&config) }))
    }

    fn validate(&self, file: &Path) -> Result<(bool, String), String> {
        let text = text_in(file)?;
        let answered = self.answer("POST", "/api/v1/config/validate", Some(("application/toml", &text)), &[])?;
        let judged = self.read(&answered)?;
        let is_right = judged["ok"] == true;
        if self.json {
            return Ok((is_right, answered.body));
        }
        let verdict = if is_right { "the text is right" } else { "the text is wrong" };
        Ok((is_right, findings(&judged["findings"]) + verdict + "\n"))
    }

    fn diff(&self, file: &Path) -> Result<String, String> {
        let text = text_in(file)?;
        if text.trim().is_empty() {
            return Err(format!("{}: the text is empty", file.display()));
        }
        let answered = self.answer("POST", "/api/v1/config/diff", Some(("application/toml", &text)), &[])?;
        self.show(answered, plan)
    }

    fn history(&self) -> Result<String, String> {
        let all = self.gateway.pages("/api/v1/config/history", "history")?;
        if self.json {
            return Ok(format!("{all:#}\n"));
        }
        let mut table = Table::default();
        let entries = all["history"].as_array().map(Vec::as_slice).unwrap_or_default();
        if entries.is_empty() {
            return Ok("There is no history.\n".to_owned());
        }
        let lines: Vec<String> = entries.iter().map(|entry| shown(&entry["change"])).collect();
        let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        // The last column stands to the left.
        table.row(["GENERATION".into(), "TIME".into(), "BY".into(), format!("{:<width$}", "CHANGE")]);
        for (entry, line) in entries.iter().zip(lines) {
            let generation = entry["generation"].to_string();
            table.row([generation, second(&entry["time"]), shown(&entry["by"]), format!("{line:<width$}")]);
        }
        Ok(table.text())
    }

    fn roll_back(&self, generation: u64, force: bool) -> Result<String, String> {
        let etag = if force { "*".to_owned() } else { self.etag_of_file()? };
        let body = serde_json::json!({ "generation": generation, "force": force }).to_string();
        let what = format!("rolled back to generation {generation}");
        self.change("POST", "/api/v1/config/rollback", Some(&body), &etag, &what)
    }

    fn get(&self, kind: EntryKind, name: Option<&str>) -> Result<String, String> {
        let shown = match (name, kind) {
            (Some(name), _) => {
                let target = format!("/api/v1/{}/{}", kind.all(), escaped(name));
                self.read(&self.answer("GET", &target, None, &[])?)?
            }
            (None, EntryKind::Route | EntryKind::Bandwidth) => {
                self.gateway.pages(&format!("/api/v1/{}", kind.all()), "rules")?["rules"].take()
            }
            (None, EntryKind::Limit | EntryKind::Upstream) => {
                return Err(format!("say which {0}; `sluicegate {0}s` lists them", kind.word()));
            }
        };
        Ok(format!("{shown:#}\n"))
    }

    fn set(
        &self,
        kind: EntryKind,
        name: &str,
        changes: &[String],
        new: bool,
        before: Option<&str>,
    ) -> Result<String, String> {
        let target = format!("/api/v1/{}/{}", kind.all(), escaped(name));
        let (mut entry, etag) = if new {
            let etag = self.etag_of_file()?;
            (Map::from_iter([("name".to_owned(), Value::from(name))]), etag)
        } else {
            let answered = self.answer("GET", &target, None, &[]).map_err(|error| {
                if error.contains("The file has no") { format!("{error} --new makes one.") } else { error }
            })?;
            let entry = self.read(&answered)?;
            let etag = answered.etag_or(&self.gateway)?;
            (entry.as_object().cloned().unwrap_or_default(), etag)
        };
        for change in changes {
            let (key, value) = change.split_once('=').ok_or_else(|| format!("{change:?}: write KEY=VALUE"))?;
            match value {
                "" => drop(entry.remove(key)),
                value => drop(entry.insert(key.to_owned(), value_of(value)?)),
            }
        }
        let body = Value::Object(entry).to_string();
        let what = format!("{} {}", kind.word(), Safe(name));
        if new {
            let place = before.map(|before| format!("?before={}", escaped(before))).unwrap_or_default();
            return self.change("POST", &format!("/api/v1/{}{place}", kind.all()), Some(&body), &etag, &what);
        }
        self.change("PUT", &target, Some(&body), &etag, &what)
    }

    fn plan_of_key(&self, route: &str, key: &str, set: Option<&str>, remove: bool) -> Result<String, String> {
        let target = format!("/api/v1/routes/{}/plans/{}", escaped(route), escaped(key));
        if let (None, false) = (set, remove) {
            return self.look(&target, |seen| {
                let default = if seen["is_default"] == true { " (the default)" } else { "" };
                format!("{}{default}\n", shown(&seen["plan"]))
            });
        }
        let etag = self.etag(&target)?;
        let body = set.map(|plan| serde_json::json!({ "plan": plan }).to_string());
        let method = if remove { "DELETE" } else { "PUT" };
        self.change(method, &target, body.as_deref(), &etag, "plan of the key")
    }

    fn change(&self, method: &str, target: &str, body: Option<&str>, etag: &str, what: &str) -> Result<String, String> {
        let body = body.map(|body| ("application/json", body));
        let answered = self.answer(method, target, body, &[("If-Match", etag)])?;
        self.show(answered, |holds| changed(holds, what))
    }
}

impl Answered {
    fn etag_or(self, gateway: &Gateway) -> Result<String, String> {
        self.etag.ok_or_else(|| format!("{}: an answer without an ETag", gateway.shown()))
    }
}

/// A value as the file has it; a word that is none of TOML's is a text.
fn value_of(text: &str) -> Result<Value, String> {
    match rules::Value::from_toml(text) {
        Some(value) => serde_json::to_value(value).map_err(|error| error.to_string()),
        None => Ok(Value::from(text)),
    }
}

/// The plan of a reload from one file to another. Relative paths in a text of standard input start from the directory of `path`.
fn diff_of_files(path: &Path, old: &Path, new: &Path, json: bool) -> Result<String, String> {
    let load = |file: &Path| {
        let text = text_in(file)?;
        let file = if file == Path::new("-") { path } else { file };
        let certificates = Certificates::PlansAlone(Clock::system().wall_now());
        config::load_text(text, file, certificates, &KnownPlans::default()).map_err(|error| error.to_string())
    };
    let (old, new) = (load(old)?, load(new)?);
    let mut shown = rules::plan(&config::diff(&old.model, &new.model));
    shown["warnings"] = rules::findings(new.warnings.diagnostics());
    Ok(if json { format!("{shown:#}\n") } else { plan(&shown) })
}

fn text_in(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(MAX_TEXT + 1).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|file| file.take(MAX_TEXT + 1).read_to_string(&mut text))
    };
    read.map_err(|error| format!("{}: {error}", file.display()))?;
    if text.len() as u64 > MAX_TEXT {
        return Err(format!("{}: it is larger than 1 MiB", file.display()));
    }
    Ok(text)
}

fn shown(value: &Value) -> String {
    Safe(value.as_str().unwrap_or("-")).to_string()
}

/// An instant without the parts of its second.
fn second(value: &Value) -> String {
    match value.as_str().and_then(|text| text.split_once('.')) {
        Some((second, _)) => Safe(second).to_string() + "Z",
        None => shown(value),
    }
}

/// A text with its lines.
fn text_of(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

fn status(config: &Value) -> String {
    let mut out = format!("{}: generation {}\n", shown(&config["file"]), config["generation"]);
    let last = &config["last_reload"];
    if last.is_object() {
        let _ = writeln!(out, "since {}, by {}", second(&last["time"]), shown(&last["by"]));
        out.push_str(&plan(&last["plan"]));
    }
    if let Some(error) = config["last_reload_error"].as_str() {
        let _ = writeln!(out, "the last reload was rejected; the current configuration stays:\n{error}");
    }
    out
}

/// A plan as a reload prints it, and the warnings of its text.
fn plan(plan: &Value) -> String {
    let mut out = text_of(&plan["text"]);
    out.push_str(&findings(&plan["warnings"]));
    out
}

fn changed(holds: &Value, what: &str) -> String {
    let done = holds["done"].as_str().unwrap_or("as it was");
    let mut out = format!("{what}: {done}, generation {}\n", holds["generation"]);
    if holds["plan"].is_object() {
        out.push_str(&plan(&holds["plan"]));
    }
    out.push_str(&findings(&holds["warnings"]));
    out
}
