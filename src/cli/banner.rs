//! What start-up prints: addresses, routes with their limits, three things to try.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

use crate::admission::{PathPattern, RoutePattern};
use crate::config::{Action, AdminAddress, Listener, Model, Route};
use crate::gateway::Control;
use crate::limiter::Algorithm;

/// Routes shown at most; a gateway may have a thousand.
const MAX_ROUTES: usize = 20;

/// The part that the model tells.
pub struct Summary {
    /// Of each listener, in the file's order.
    schemes: Vec<&'static str>,
    admin_scheme: &'static str,
    /// Whether connections to the first begin with a PROXY header.
    takes_header: bool,
    routes: Vec<String>,
    more_routes: usize,
    path: String,
}

impl Summary {
    /// A summary of a model.
    pub fn of(model: &Model) -> Self {
        let limited = model.routes.iter().find(|route| !route.limits.is_empty()).or(model.routes.first());
        let scheme = |listener: &Listener| if listener.tls.is_some() { "https" } else { "http" };
        Self {
            schemes: model.listeners.iter().map(scheme).collect(),
            admin_scheme: if model.admin.as_ref().is_some_and(|admin| admin.tls.is_some()) { "https" } else { "http" },
            takes_header: model.listeners.first().is_some_and(|listener| listener.proxied_by().is_some()),
            routes: model.routes.iter().take(MAX_ROUTES).map(|route| describe(route, model)).collect(),
            more_routes: model.routes.len().saturating_sub(MAX_ROUTES),
            path: limited.map_or("/".to_owned(), |route| example(&route.pattern.path)),
        }
    }

    /// Prints it, with the addresses that were bound.
    pub fn print(&self, control: &Control) {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = writeln!(text, "sluicegate {} on {}", env!("CARGO_PKG_VERSION"), control.path().display());
        let addresses = control.addresses();
        for (address, scheme) in addresses.iter().zip(&self.schemes) {
            let _ = writeln!(text, "  listening  {scheme}://{address}");
        }
        if let Some(admin) = control.admin_address() {
            let shown = match admin {
                AdminAddress::Tcp(address) => format!("{}://{address}/metrics", self.admin_scheme),
                AdminAddress::Unix(path) => path.display().to_string(),
            };
            let _ = writeln!(text, "  admin      {shown}");
        }
        for route in &self.routes {
            let _ = writeln!(text, "  route      {route}");
        }
        if self.more_routes > 0 {
            let _ = writeln!(text, "             and {} more", self.more_routes);
        }
        if let Some((address, scheme)) = addresses.first().zip(self.schemes.first()) {
            let url = format!("{scheme}://{}{}", reachable(*address), self.path);
            // A certificate to try things with has no authority that is known here.
            let (k, insecure) = if *scheme == "https" { ("k", " --insecure") } else { ("", "") };
            let header = if self.takes_header { " --haproxy-protocol" } else { "" };
            let _ = writeln!(
                text,
                "Try:\n  curl -i{k}{header} {url}\n  \
                 for i in $(seq 30); do curl -s{k}{header} -o /dev/null -w '%{{http_code}} ' {url}; done; echo"
            );
            if !self.takes_header {
                let _ = writeln!(text, "  oha -z 5s{insecure} {url}    (or: wrk -d5s {url})");
            }
        }
        // Nobody may be reading; that is no reason not to run.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}

/// An address that a client on this machine can use.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// A path that the pattern matches, if one can be told from it.
fn example(path: &PathPattern) -> String {
    match path {
        PathPattern::Prefix(path) | PathPattern::Exact(path) => path.clone(),
        PathPattern::Regex(_) => "/".to_owned(),
    }
}

/// `GET|POST api.example.com/api`
fn matches(pattern: &RoutePattern) -> String {
    let hosts: Vec<String> = pattern.hosts.iter().map(ToString::to_string).collect();
    let path = match &pattern.path {
        PathPattern::Prefix(path) => path.clone(),
        PathPattern::Exact(path) => format!("= {path}"),
        PathPattern::Regex(regex) => format!("~ {}", regex.as_str()),
    };
    let methods = pattern.methods.join("|");
    let gap = if methods.is_empty() { "" } else { " " };
    format!("{methods}{gap}{}{path}", hosts.join(","))
}

fn describe(route: &Route, model: &Model) -> String {
    let mut text = format!("{:<12} {}", route.name, matches(&route.pattern));
    let target = match &route.action {
        Action::Forward(upstream) => model.upstreams.get(*upstream).map_or("?", |upstream| &upstream.name).to_owned(),
        Action::Respond { status, .. } => format!("answer {status}"),
        Action::Redirect { status, target } => format!("redirect {status} to {}", target.to().source()),
    };
    let _ = write!(text, " -> {target}");
    for rule in route.limits.iter().filter_map(|limit| model.limits.get(*limit)) {
        let much = match &rule.spec.algorithm {
            Algorithm::Concurrency(concurrency) => format!("{} at once", concurrency.max_in_flight()),
            other => other.rates().iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        };
        let _ = write!(text, ", {} {much} per {}", rule.spec.name, rule.key);
    }
    text
}
