//! `sluicegate explain`: what would become of a request, and why.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::admin::{AdminArguments, Gateway, Request};
use super::exceptions::{block_words, numbers_words};
use super::running;
use super::safe::Safe;
use super::tell::tell;
use crate::config::{self, Certificates};
use crate::gateway::{ExplainRequest, Explained, LimitSeen, Offline, RateSeen, explain_offline, redactor_offline};
use crate::time::{Clock, Span};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArguments {
    /// The method: GET, POST, …
    method: String,
    /// The URL, or its path alone.
    url: String,
    /// A header field of the request; may be given several times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The body of the request, for limits that look at it.
    #[arg(short = 'd', long = "data", value_name = "BODY", default_value = "")]
    body: String,
    /// The address that the connection comes from.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    client: IpAddr,
    /// Ask the gateway that runs, which knows what its limits have counted. Without it, the file alone: nothing is counted.
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    admin: AdminArguments,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

pub const EXAMPLES: &str = "Examples:
  sluicegate explain GET https://api.example.com/x -H 'x-api-key: a' --client 192.0.2.7
  sluicegate explain GET /x --live            what the gateway that runs would do now
  sluicegate explain POST /orders --json | jq -r .decision
  sluicegate explain GET /x -c candidate.toml before it is rolled out";

/// `NAME: VALUE`
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header field is written NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Explains. Exit 1: it is no request, or the gateway cannot be asked.
pub fn run(path: &Path, arguments: &ExplainArguments) -> ExitCode {
    let explained =
        if arguments.live || arguments.admin.are_given() { live(path, arguments) } else { offline(path, arguments) };
    tell(explained.and_then(|explained| {
        if arguments.json {
            let json = serde_json::to_string_pretty(&explained).map_err(|error| error.to_string())?;
            return Ok(json + "\n");
        }
        Ok(show(&explained))
    }))
}

fn asked(arguments: &ExplainArguments) -> ExplainRequest {
    let ExplainArguments { method, url, headers, body, client, .. } = arguments;
    ExplainRequest {
        method: method.clone(),
        url: url.clone(),
        headers: headers.clone(),
        body: body.clone(),
        client: Some(*client),
    }
}

fn offline(path: &Path, arguments: &ExplainArguments) -> Result<Explained, String> {
    let clock = Clock::system();
    let now = clock.now();
    let loaded = config::load(path, Certificates::PlansAlone(clock.wall(now))).map_err(|error| error.to_string())?;
    let model = Arc::new(loaded.model);
    let redactor = redactor_offline(&model);
    let offline = Offline::new(model).map_err(|error| error.to_string())?;
    explain_offline(&offline, &redactor, &asked(arguments), now)
}

fn live(path: &Path, arguments: &ExplainArguments) -> Result<Explained, String> {
    let gateway = Gateway::of(&arguments.admin, || running::model(path), path)?;
    let question = serde_json::to_string(&asked(arguments)).map_err(|error| error.to_string())?;
    let body = Some(("application/json", &*question));
    let answer = gateway.ask(&Request { method: "POST", target: "/api/v1/explain", body, fields: &[] })?;
    serde_json::from_str(&answer)
        .map_err(|error| format!("{}: an answer that explains nothing: {error}", gateway.shown()))
}

/// For people. Writing into a String cannot fail.
fn show(explained: &Explained) -> String {
    let mut out = String::new();
    let Explained { method, url, client, peer, peer_trusted, .. } = explained;
    let _ = writeln!(out, "{} {}", Safe(method), Safe(url));
    let trust = match (peer_trusted, peer == client) {
        (true, _) => format!("found behind {peer}, a trusted proxy"),
        (false, true) => "the peer of the connection".to_owned(),
        (false, false) => format!("the peer {peer}"),
    };
    let _ = writeln!(out, "client    {client}, {trust}");
    for hop in &explained.hops {
        let trusted = if hop.trusted { "trusted" } else { "not trusted" };
        let _ = writeln!(out, "  hop     {}  {trusted}", Safe(&hop.hop));
    }
    let plan = explained.plan.as_ref().map(|plan| format!(", plan {plan}")).unwrap_or_default();
    let _ = writeln!(out, "route     {}{plan}", explained.route.as_deref().unwrap_or("none matches"));
    for passed in &explained.passed_over {
        let _ = writeln!(out, "  not     {}: {}", passed.route, passed_words(&passed.reason));
    }
    for limit in &explained.limits {
        write_limit(&mut out, limit);
    }
    for edit in &explained.edits {
        let _ = writeln!(out, "edit      {edit}");
    }
    if let Some(upstream) = &explained.upstream {
        let server = explained
            .server
            .as_ref()
            .map_or_else(|| "the server depends on load or turn".to_owned(), |server| format!("server {server}"));
        let _ = writeln!(out, "upstream  {upstream}, {server}");
    }
    let by = explained.limit.as_ref().map(|limit| format!(" by limit {limit}")).unwrap_or_default();
    let status = match (explained.status, explained.action.as_deref()) {
        (Some(444), _) => ", dropped without an answer".to_owned(),
        (Some(202), _) if explained.decision == "refused" => {
            ", status 202: kept to be sent later, if there is room".to_owned()
        }
        (Some(status), _) => format!(", status {status}"),
        (None, _) => String::new(),
    };
    let next = explained.next_ms.map(|next| match explained.decision.as_str() {
        "waits" => format!(", its turn comes in {}", time(next)),
        _ => format!(", admitted again in {}", time(next)),
    });
    let _ = writeln!(out, "decision  {}{by}{status}{}", explained.decision, next.unwrap_or_default());
    if let Some(detail) = &explained.detail {
        let _ = writeln!(out, "          {}: {detail}", explained.reason.as_deref().unwrap_or_default());
    }
    out
}

fn write_limit(out: &mut String, limit: &LimitSeen) {
    let _ = write!(out, "limit     {}", limit.name);
    if limit.mode != "enforce" {
        let _ = write!(out, " ({})", limit.mode);
    }
    let _ = write!(out, ", {}", limit.algorithm);
    if let Some(scale) = limit.scale_percent {
        let _ = write!(out, ", scaled to {scale}% by [overload]");
    }
    let key: Vec<String> = limit.key.iter().map(|(source, value)| format!("{source}={}", Safe(value))).collect();
    if !key.is_empty() {
        let _ = write!(out, ", key {}", key.join(" "));
    }
    let _ = writeln!(out);
    if let Some(why) = &limit.not_asked {
        let _ = writeln!(out, "          does not apply: {}", not_asked_words(why));
        if let Some(block) = &limit.block {
            let _ = writeln!(out, "          {}", block_words(block));
        }
        return;
    }
    for rate in &limit.rates {
        let _ = writeln!(out, "          {}", quota(rate));
    }
    if let Some(decision) = &limit.decision {
        let cost = if limit.cost == 1 { String::new() } else { format!(" of cost {}", limit.cost) };
        let invalid = if limit.invalid_cost { " (the stated cost is no number)" } else { "" };
        let would = if limit.mode == "shadow" && decision == "refused" { "would be " } else { "" };
        let next = limit.next_ms.map(|next| format!(", room in {}", time(next))).unwrap_or_default();
        let _ = writeln!(out, "          a request{cost}{invalid}: {would}{decision}{next}");
    }
    let block = limit.block.as_ref().map(block_words);
    for words in block.into_iter().chain(limit.own_numbers.as_ref().map(numbers_words)) {
        let _ = writeln!(out, "          {words}");
    }
}

/// How a rate stands.
pub fn quota(rate: &RateSeen) -> String {
    let reset = rate.reset_ms.map(|reset| format!(", grows in {}", time(reset))).unwrap_or_default();
    let window =
        if rate.window_ms == 0 { " at once".to_owned() } else { format!(" in {}", Span::from_millis(rate.window_ms)) };
    format!("{} left of {}{window}{reset}", rate.remaining, rate.limit)
}

/// A time to come, rounded up to about three digits.
pub fn time(millis: u64) -> String {
    let tenths = |of: u64| {
        let tenths = millis.div_ceil(of / 10);
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{} s", tenths(1_000)),
        60_000..3_600_000 => format!("{} min", tenths(60_000)),
        _ => format!("{} h", tenths(3_600_000)),
    }
}

fn passed_words(reason: &str) -> &str {
    match reason {
        "inactive" => "not active now",
        "host" => "another host",
        "path" => "another path",
        "method" => "another method",
        "header" => "a header field differs",
        "later" => "it matches too, and comes after the other",
        other => other,
    }
}

fn not_asked_words(why: &str) -> &str {
    match why {
        "inactive" => "not active now",
        "exempt-client" => "the client is exempt",
        "exempt-key" => "the key is exempt",
        "no-key" => "the request has no such key",
        "preflight" => "preflights are not counted here",
        "not-reached" => "another limit refuses before",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let times = [0, 877, 59_718, 60_001, 3_599_000, 7_200_001].map(time);
        assert_eq!(times, ["0 ms", "877 ms", "59.8 s", "1.1 min", "60.0 min", "2.1 h"]);
    }

    #[test]
    fn a_header_has_a_name_and_a_value() {
        assert_eq!(header("x-api-key:  a:b "), Ok(("x-api-key".to_owned(), "a:b".to_owned())));
        assert!(header("x-api-key").is_err());
    }
}
