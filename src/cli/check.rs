use std::io::{self, IsTerminal as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::admin::{AdminArguments, Gateway, PATIENCE, Request};
use super::banner::reachable;
use super::tell::wants_colour;
use crate::config::{self, Admin, Certificates, LimitId, ListenAddress, LoadError, Loaded, Model, Warnings};
use crate::fleet::{Bound, USUAL_WAY, WITHOUT_PLACE};
use crate::gateway;
use crate::limiter::Sharing;
use crate::rules;
use crate::time::{Clock, Span};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Ask the gateway that runs on this file whether it is alive (for health checks of containers).
    #[arg(long)]
    health: bool,
    /// How many gateways share the limits that are shared: for their bounds.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    gateways: u32,
    /// Warnings fail too: exit 1.
    #[arg(long, conflicts_with = "health")]
    strict: bool,
    /// Judge the text alone: open none of the files that it names (certificates, plans, bodies, logs), for a machine other than the
    /// gateway's. The answer says so.
    #[arg(long, conflicts_with = "health")]
    no_files: bool,
    /// As JSON: `ok`, `findings` with their places, `files_checked` (not with --no-files), and how many parts the file has.
    #[arg(long, conflicts_with = "health")]
    json: bool,
}

/// Checks the file, or the gateway that runs on it.
pub fn check(path: &Path, arguments: &CheckArguments) -> ExitCode {
    if arguments.health {
        // Whether the gateway is alive is no matter of dates, nor of files that only it may read.
        return match config::load(path, Certificates::Unread) {
            Ok(loaded) => health(&loaded.model, path),
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let now = Clock::system().wall_now();
    let certificates = if arguments.no_files { Certificates::Unread } else { Certificates::Strict(now) };
    let loaded = config::load(path, certificates).and_then(|loaded| {
        let Loaded { model, warnings, files, .. } = loaded;
        if arguments.no_files {
            return Ok((model, warnings));
        }
        match warnings.with(gateway::check_writable(&model)) {
            Ok(warnings) => Ok((model, warnings)),
            Err(errors) => Err(LoadError::Invalid { errors, files }),
        }
    });
    let is_ok = loaded.as_ref().is_ok_and(|(_, warnings)| warnings.is_empty() || !arguments.strict);
    if arguments.json {
        println!("{:#}", answer(path, &loaded, is_ok, arguments));
        return exit(is_ok);
    }
    let (model, warnings) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{}", painted(&error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    if !warnings.is_empty() {
        eprintln!("{}", painted(&warnings.to_string()));
    }
    if is_ok {
        say(path, &model, arguments);
    }
    exit(is_ok)
}

fn exit(is_ok: bool) -> ExitCode {
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// As JSON.
fn answer(path: &Path, loaded: &Result<(Model, Warnings), LoadError>, is_ok: bool, asked: &CheckArguments) -> Value {
    let findings = match loaded {
        Ok((_, warnings)) => rules::findings(warnings.diagnostics()),
        Err(LoadError::Invalid { errors, .. }) => rules::findings(errors.diagnostics()),
        Err(error @ (LoadError::Read { .. } | LoadError::Unfollowed { .. })) => {
            json!([{ "severity": "error", "message": error.to_string() }])
        }
    };
    let mut answer = json!({ "ok": is_ok, "files_checked": !asked.no_files, "file": path.display().to_string(), "findings": findings });
    if let Ok((model, _)) = loaded {
        for (what, number) in parts(model) {
            answer[format!("{what}s")] = json!(number);
        }
        answer["bounds"] = bounds(model, asked.gateways).collect();
    }
    answer
}

/// The parts of a file, and how many it has of each.
fn parts(model: &Model) -> [(&'static str, usize); 5] {
    [
        ("route", model.routes.len()),
        ("limit", model.limits.len()),
        ("bandwidth", model.bandwidths.len()),
        ("upstream", model.upstreams.len()),
        ("listener", model.listeners.len()),
    ]
}

fn say(path: &Path, model: &Model, asked: &CheckArguments) {
    let is_told = |(what, number): &(&str, usize)| *what != "bandwidth" || *number > 0;
    let all: Vec<String> = parts(model).into_iter().filter(is_told).map(|(what, number)| count(number, what)).collect();
    let unread = if asked.no_files { "; the files that it names were not looked at" } else { "" };
    println!("{}: ok ({}){unread}", path.display(), all.join(", "));
    let bounds: Vec<String> = bounds(model, asked.gateways).collect();
    for line in &bounds {
        println!("{line}");
    }
    if !bounds.is_empty() && model.fleet.as_ref().is_some_and(|fleet| fleet.store.is_some()) {
        println!("{WITHOUT_PLACE}");
    }
}

/// A report with colours, where standard error is a terminal.
fn painted(report: &str) -> String {
    if !(io::stderr().is_terminal() && wants_colour()) {
        return report.to_owned();
    }
    let paint = |code: &str, text: &str| format!("\x1b[{code}m{text}\x1b[0m");
    let line = |line: &str| {
        let word = |word: &str, code: &str| Some(paint(code, word) + line.strip_prefix(word)?);
        let has_carets = line.contains('^') && line.chars().all(|own| " |^".contains(own));
        word("error", "1;31").or_else(|| word("warning", "1;33")).unwrap_or_else(|| match line.trim_start() {
            place if place.starts_with("--> ") => paint("2", line),
            help if help.starts_with("= help: ") => paint("36", line),
            _ if has_carets => paint("1", line),
            _ => line.to_owned(),
        })
    };
    report.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Says of each shared limit by how much all gateways together can be above it.
fn bounds(model: &Model, gateways: u32) -> impl Iterator<Item = String> {
    model.counted().filter_map(move |(LimitId { limit, plan, .. }, spec, _)| {
        let (bounds, lag) = match spec.sharing? {
            Sharing::Store(sharing) => (Bound::of(&spec.algorithm, &sharing, gateways), String::new()),
            Sharing::Peers => {
                let interval = model.fleet.as_ref().map_or(Span::ZERO, |fleet| fleet.interval);
                let lag = Span::from_nanos(interval.as_nanos().saturating_add(USUAL_WAY.as_nanos()));
                let heard = format!(", where each hears of the others within {lag}; in a cut, its length");
                (Bound::told(&spec.algorithm, gateways, lag), heard)
            }
        };
        let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
        let plan = plan.map(|plan| format!(" of plan {plan}")).unwrap_or_default();
        Some(format!("limit {limit}{plan}, {}: {}{lag}", count(gateways as usize, "gateway"), bounds.join("; ")))
    })
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The admin interface's `/healthz`; without one, whether the first listener accepts: of those that want no PROXY header,
/// if there are such, since the others would log who brings none.
fn health(model: &Model, path: &Path) -> ExitCode {
    let plain = model.listeners.iter().find(|listener| listener.proxied_by().is_none());
    let asked = match (&model.admin, plain.or(model.listeners.first())) {
        // By which name its certificate is known, the file does not say.
        (Some(Admin { address: ListenAddress::Tcp(address), tls: Some(_), .. }), _) => accepts(reachable(*address)),
        (Some(admin), _) => {
            let shown = admin.address.to_string();
            let gateway = Gateway::of(&AdminArguments::default(), || Ok(model.clone()), path);
            (shown, gateway.and_then(|gateway| gateway.ask(&Request::get("/healthz"))).map(drop))
        }
        (None, Some(listener)) => match &listener.address {
            ListenAddress::Tcp(address) => accepts(reachable(*address)),
            ListenAddress::Unix(path) => {
                (listener.address.to_string(), UnixStream::connect(path).map(drop).map_err(|error| error.to_string()))
            }
        },
        (None, None) => return ExitCode::FAILURE,
    };
    match asked {
        (address, Ok(())) => {
            println!("{address}: alive");
            ExitCode::SUCCESS
        }
        (address, Err(error)) => {
            eprintln!("{address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn accepts(address: SocketAddr) -> (String, Result<(), String>) {
    let connected = TcpStream::connect_timeout(&address, PATIENCE).map(drop);
    (address.to_string(), connected.map_err(|error| error.to_string()))
}
