use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::banner::reachable;
use crate::config::{self, Certificates, Loaded, Model};
use crate::time::Clock;

/// How long the gateway may take to say that it is well.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Ask the gateway that runs on this file whether it is alive (for health checks of containers).
    #[arg(long)]
    health: bool,
}

/// Checks the file, or the gateway that runs on it.
pub fn check(path: &Path, arguments: &CheckArguments) -> ExitCode {
    // Whether the gateway is alive is no matter of dates, nor of files that only it may read.
    let certificates =
        if arguments.health { Certificates::Unread } else { Certificates::Strict(Clock::system().now()) };
    let Loaded { model, warnings, .. } = match config::load(path, certificates) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.health {
        return health(&model);
    }
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
    ExitCode::SUCCESS
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The admin interface's `/healthz`; without one, whether the first listener accepts: of those that want no PROXY header,
/// if there are such, since the others would log who brings none.
fn health(model: &Model) -> ExitCode {
    let plain = model.listeners.iter().find(|listener| listener.proxied_by().is_none());
    let asked = match (&model.admin, plain.or(model.listeners.first())) {
        (Some(admin), _) => (reachable(admin.address), ask(reachable(admin.address))),
        (None, Some(listener)) => {
            let address = reachable(listener.address);
            (address, TcpStream::connect_timeout(&address, HEALTH_TIMEOUT).map(drop).map_err(|error| error.to_string()))
        }
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

fn ask(address: SocketAddr) -> Result<(), String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, HEALTH_TIMEOUT)?;
        stream.set_read_timeout(Some(HEALTH_TIMEOUT))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|error| error.to_string())?;
    if answer.starts_with("HTTP/1.1 200 ") {
        Ok(())
    } else {
        Err(format!("/healthz answered {}", answer.lines().next().unwrap_or("nothing")))
    }
}
