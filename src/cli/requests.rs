//! `sluicegate requests`: the requests in flight of the gateway that runs, and how one is cancelled.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;

use super::admin::{Request, escaped};
use super::query::AdminQuery;
use super::safe::Safe;
use super::table::Table;
use super::tell::{tell, tell_again};
use super::upstreams::since;

/// Arguments of `requests`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RequestsArguments {
    #[command(subcommand)]
    command: Option<RequestsCommand>,
    /// Of this route.
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// Of this upstream.
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// Of this client.
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// waiting, connecting, sent, answering or tunnel.
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// At least so old, such as 10s.
    #[arg(long, value_name = "TIME")]
    min_age: Option<String>,
    /// So many at the most, the oldest ones.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    max: u32,
    /// Look again each second, until interrupted.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    asked: AdminQuery,
}

#[derive(Debug, Subcommand)]
enum RequestsCommand {
    /// Cancel a request: its client gets a 503, or where its answer has begun its connection is closed.
    Cancel {
        /// As the list has it.
        id: String,
        #[command(flatten)]
        asked: AdminQuery,
    },
}

pub const EXAMPLES: &str = "Examples:
  sluicegate requests                         the oldest first
  sluicegate requests --min-age 10s --upstream app
  sluicegate requests --phase waiting --watch
  sluicegate requests cancel 3021-0-4711";

#[derive(Debug, Deserialize)]
struct RequestsAnswer {
    requests: Vec<RequestRow>,
    next: Option<String>,
    silent_workers: Vec<usize>,
}

#[derive(Debug, Deserialize)]
struct RequestRow {
    id: String,
    age_ms: f64,
    phase: String,
    client: String,
    method: String,
    host: String,
    path: String,
    route: Option<String>,
    upstream: Option<String>,
    server: Option<String>,
}

/// Lists them, or cancels one. Exit 1: the gateway cannot be asked, or there is no such request.
pub fn run(path: &Path, arguments: &RequestsArguments) -> ExitCode {
    if let Some(RequestsCommand::Cancel { id, asked }) = &arguments.command {
        let target = format!("/api/v1/requests/{}", escaped(id));
        let request = Request { method: "DELETE", target: &target, body: None, fields: &[] };
        return tell(asked.ask(path, &request, |_| Ok(format!("{} is cancelled\n", Safe(id)))));
    }
    let target = arguments.target();
    tell_again(arguments.watch, || {
        arguments
            .asked
            .look(path, &target, |answer| serde_json::from_value::<RequestsAnswer>(answer).map(|answer| answer.words()))
    })
}

impl RequestsArguments {
    fn target(&self) -> String {
        let filters = [
            ("route", &self.route),
            ("upstream", &self.upstream),
            ("client", &self.client),
            ("phase", &self.phase),
            ("min_age", &self.min_age),
        ];
        let mut target = format!("/api/v1/requests?max={}", self.max);
        for (name, value) in filters {
            if let Some(value) = value {
                // Writing into a String cannot fail.
                let _ = write!(target, "&{name}={}", escaped(value));
            }
        }
        target
    }
}

impl RequestsAnswer {
    fn words(&self) -> String {
        let none = || "No request is in flight.\n".to_owned();
        let mut out = if self.requests.is_empty() { none() } else { self.table() };
        if self.next.is_some() {
            out.push_str("There are more: say how many with --max, or which.\n");
        }
        for worker in &self.silent_workers {
            let _ = writeln!(out, "Worker {worker} did not answer within 2 s: its requests are missing.");
        }
        out
    }

    fn table(&self) -> String {
        let line = |seen: &RequestRow| format!("{} {}{}", Safe(&seen.method), Safe(&seen.host), Safe(&seen.path));
        let lines: Vec<String> = self.requests.iter().map(line).collect();
        let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0).max(7);
        let mut table = Table::default();
        // The last column stands to the left.
        let last = format!("{:<width$}", "REQUEST");
        table.row(["ID", "AGE", "PHASE", "CLIENT", "ROUTE", "SERVER", &last].map(str::to_owned));
        for (seen, line) in self.requests.iter().zip(lines) {
            let word = |word: &Option<String>| Safe(word.as_deref().unwrap_or("-")).to_string();
            let server = if seen.server.is_some() { &seen.server } else { &seen.upstream };
            table.row([
                seen.id.clone(),
                since(seen.age_ms),
                seen.phase.clone(),
                seen.client.clone(),
                word(&seen.route),
                word(server),
                format!("{line:<width$}"),
            ]);
        }
        table.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_a_table_for_people() {
        let answer: RequestsAnswer = serde_json::from_str(
            r#"{"requests": [
                {"id": "0-12", "age_ms": 61500, "phase": "sent", "client": "192.0.2.7", "method": "GET", "host": "a.example",
                 "path": "/slow", "route": "app", "upstream": "app", "server": "127.0.0.1:9001"},
                {"id": "1-4", "age_ms": 20, "phase": "waiting", "client": "2001:db8::1", "method": "POST", "host": "a.example",
                 "path": "/\u001b[2J", "route": null, "upstream": "app", "server": null}
            ], "next": "1-2-3", "silent_workers": [2]}"#,
        )
        .unwrap();
        assert_eq!(
            answer.words(),
            "\
ID     AGE    PHASE       CLIENT  ROUTE          SERVER  REQUEST
0-12   61s     sent    192.0.2.7    app  127.0.0.1:9001  GET a.example/slow
1-4   20ms  waiting  2001:db8::1      -             app  POST a.example/\\u{1b}[2J
There are more: say how many with --max, or which.
Worker 2 did not answer within 2 s: its requests are missing.
"
        );
    }
}
