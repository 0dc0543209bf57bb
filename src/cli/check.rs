use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;

use super::admin::{AdminArguments, Gateway, PATIENCE, Request};
use super::banner::reachable;
use crate::config::{self, Admin, AdminAddress, Certificates, LimitId, Loaded, Model};
use crate::fleet::Bound;
use crate::gateway;
use crate::time::Clock;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Ask the gateway that runs on this file whether it is alive (for health checks of containers).
    #[arg(long)]
    health: bool,
    /// How many gateways share the limits that are shared: for their bounds.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    gateways: u32,
}

/// Checks the file, or the gateway that runs on it.
pub fn check(path: &Path, arguments: &CheckArguments) -> ExitCode {
    // Whether the gateway is alive is no matter of dates, nor of files that only it may read.
    let certificates =
        if arguments.health { Certificates::Unread } else { Certificates::Strict(Clock::system().wall_now()) };
    let Loaded { model, warnings, .. } = match config::load(path, certificates) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.health {
        return health(&model, path);
    }
    let warnings = match warnings.with(gateway::check_writable(&model)) {
        Ok(warnings) => warnings,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::FAILURE;
        }
    };
    if !warnings.is_empty() {
        eprintln!("{warnings}");
    }
    let bandwidths = match model.bandwidths.len() {
        0 => String::new(),
        number => format!(", {}", count(number, "bandwidth")),
    };
    println!(
        "{}: ok ({}, {}{bandwidths}, {}, {})",
        path.display(),
        count(model.routes.len(), "route"),
        count(model.limits.len(), "limit"),
        count(model.upstreams.len(), "upstream"),
        count(model.listeners.len(), "listener")
    );
    for line in bounds(&model, arguments.gateways) {
        println!("{line}");
    }
    ExitCode::SUCCESS
}

/// Says of each shared limit by how much all gateways together can be above it.
fn bounds(model: &Model, gateways: u32) -> impl Iterator<Item = String> {
    model.counted().filter_map(move |(LimitId { limit, plan, .. }, spec, _)| {
        let bounds = Bound::of(&spec.algorithm, &spec.sharing?, gateways);
        let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
        let plan = plan.map(|plan| format!(" of plan {plan}")).unwrap_or_default();
        Some(format!("limit {limit}{plan}, {}: {}", count(gateways as usize, "gateway"), bounds.join("; ")))
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
        (Some(Admin { address: AdminAddress::Tcp(address), tls: Some(_), .. }), _) => accepts(reachable(*address)),
        (Some(admin), _) => {
            let shown = admin.address.to_string();
            let gateway = Gateway::of(&AdminArguments::default(), || Ok(model.clone()), path);
            (shown, gateway.and_then(|gateway| gateway.ask(&Request::get("/healthz"))).map(drop))
        }
        (None, Some(listener)) => accepts(reachable(listener.address)),
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
