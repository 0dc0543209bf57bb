//! The text that start-up prints: addresses, routes with their limits, how requests are spread, three things to try.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::safe::quoted;
use crate::admission::{PathPattern, RoutePattern};
use crate::balance::Strategy;
use crate::config::{
    Action, Decides, DescribedBy, LimitRule, ListenAddress, ListenerSpec, Model, RouteSpec, UpstreamSpec,
};
use crate::gateway::Control;
use crate::limiter::{Algorithm, Mode};

/// Routes, and upstreams, shown at most; a gateway may have a thousand.
const MAX_ROUTES: usize = 20;

/// The part that the model tells.
pub struct Summary {
    /// In the file's order.
    listeners: Vec<Listening>,
    admin_scheme: &'static str,
    routes: Vec<String>,
    more_routes: usize,
    /// Upstreams of several servers.
    upstreams: Vec<String>,
    trial: SampleRequest,
    /// A question about a key of a limit.
    question: String,
}

/// A listener, without the address that it has once it is bound.
struct Listening {
    scheme: &'static str,
    /// Each request is sent on to HTTPS.
    redirects: bool,
    /// Connections begin with a PROXY header.
    takes_header: bool,
    /// It decides for others: the form in which it is asked, and the fields that describe requests there.
    decides: Option<(Decides, Option<DescribedBy>)>,
}

impl Listening {
    fn of(listener: &ListenerSpec) -> Self {
        Self {
            scheme: if listener.tls.is_some() { "https" } else { "http" },
            redirects: listener.redirect_port().is_some(),
            takes_header: listener.proxied_by().is_some(),
            decides: listener.decides.map(|kind| (kind, listener.described_by)),
        }
    }
}

/// A request that a route takes.
#[derive(Default)]
struct SampleRequest {
    path: String,
    method: Option<String>,
    fields: Vec<(String, String)>,
}

impl SampleRequest {
    fn of(pattern: &RoutePattern) -> Self {
        let host = pattern.hosts.first().map(|host| ("Host".to_owned(), host.to_string().replacen('*', "www", 1)));
        let gets = pattern.methods.is_empty() || pattern.methods.iter().any(|method| method == "GET");
        Self {
            path: example(&pattern.path),
            method: pattern.methods.first().filter(|_| !gets).cloned(),
            fields: host.into_iter().chain(pattern.headers.iter().cloned()).collect(),
        }
    }

    /// As the options of a command for its method, and for its fields.
    fn options(&self, of_method: &str) -> String {
        let method = self.method.iter().map(|method| format!(" {of_method} {method}"));
        let fields = self.fields.iter().map(|(name, value)| format!(" -H {}", quoted(&format!("{name}: {value}"))));
        method.chain(fields).collect()
    }
}

impl Summary {
    /// A summary of a model.
    pub fn of(model: &Model) -> Self {
        let mut of_requests =
            model.routes.iter().filter(|route| !matches!(route.pattern.path, PathPattern::Descriptor(_)));
        let first = of_requests.clone().next();
        let limited = of_requests.find(|route| !route.limits.is_empty()).or(first);
        Self {
            listeners: model.listeners.iter().map(|listener| Listening::of(listener)).collect(),
            admin_scheme: if model.admin.as_ref().is_some_and(|admin| admin.tls.is_some()) { "https" } else { "http" },
            routes: model.routes.iter().take(MAX_ROUTES).map(|route| describe(route)).collect(),
            more_routes: model.routes.len().saturating_sub(MAX_ROUTES),
            upstreams: model.upstreams.iter().filter_map(|upstream| spread(upstream)).take(MAX_ROUTES).collect(),
            trial: limited.map(|route| SampleRequest::of(&route.pattern)).unwrap_or_default(),
            question: model.limits.iter().find_map(|limit| question(limit)).unwrap_or_else(|| "[]".to_owned()),
        }
    }

    /// Prints it, with the addresses that were bound.
    pub fn print(&self, control: &Control) {
        let text = self.text(control.path(), &control.addresses(), control.admin_address().as_ref());
        // Nobody may be reading; that is no reason not to run.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    fn text(&self, path: &Path, addresses: &[ListenAddress], admin: Option<&ListenAddress>) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = writeln!(text, "sluicegate {} on {}", env!("CARGO_PKG_VERSION"), path.display());
        for (address, Listening { scheme, redirects, decides, .. }) in addresses.iter().zip(&self.listeners) {
            let to = match decides {
                Some((Decides::Auth, _)) => "  (decides for other proxies)",
                Some((Decides::Json, _)) => "  (decides for programs)",
                Some((Decides::ExtAuthz | Decides::EnvoyRls, _)) => "  (decides for Envoy)",
                None if *redirects => "  (redirects to https)",
                None => "",
            };
            let _ = match address {
                ListenAddress::Tcp(address) => writeln!(text, "  listening  {scheme}://{address}{to}"),
                ListenAddress::Unix(path) => writeln!(text, "  listening  {}{to}", path.display()),
            };
        }
        if let Some(admin) = admin {
            let shown = match admin {
                ListenAddress::Tcp(address) => format!("{}://{address}/metrics", self.admin_scheme),
                ListenAddress::Unix(path) => path.display().to_string(),
            };
            let _ = writeln!(text, "  admin      {shown}");
        }
        for route in &self.routes {
            let _ = writeln!(text, "  route      {route}");
        }
        if self.more_routes > 0 {
            let _ = writeln!(text, "             and {} more", self.more_routes);
        }
        for upstream in &self.upstreams {
            let _ = writeln!(text, "  upstream   {upstream}");
        }
        let mut listeners = addresses.iter().zip(&self.listeners);
        let first = listeners.clone().next();
        let is_front = |listener: &Listening| !listener.redirects && listener.decides.is_none();
        if let Some((address, listener)) = listeners.find(|(_, listener)| is_front(listener)).or(first) {
            self.write_trial(&mut text, address, listener);
        }
        text
    }

    /// Three commands that show the gateway at work.
    fn write_trial(&self, text: &mut String, address: &ListenAddress, listener: &Listening) {
        let SampleRequest { path, method, .. } = &self.trial;
        let (reached, socket) = match address {
            ListenAddress::Tcp(address) => (reachable(*address).to_string(), String::new()),
            ListenAddress::Unix(path) => {
                ("localhost".to_owned(), format!(" --unix-socket {}", quoted(&path.display().to_string())))
            }
        };
        let url = format!("{}://{reached}{path}", listener.scheme);
        // A certificate to try things with has no authority that is known here.
        let (k, insecure) = if listener.scheme == "https" { ("k", " --insecure") } else { ("", "") };
        if let Some((Decides::Json, _)) = listener.decides {
            let _ = writeln!(
                text,
                "Try:\n  curl -s{k}{socket} -H 'Content-Type: application/json' -d {} {}://{reached}/v1/check",
                quoted(&self.question),
                listener.scheme
            );
            return;
        }
        if let Some((Decides::ExtAuthz | Decides::EnvoyRls, _)) = listener.decides {
            let _ = writeln!(text, "Try:\n  curl -i{k}{socket} {}://{reached}/healthz", listener.scheme);
            return;
        }
        if let Some((_, by)) = listener.decides {
            let (method, host) = (method.as_deref().unwrap_or("GET"), "example.com");
            let fields = match by.unwrap_or(DescribedBy::Forwarded) {
                DescribedBy::Forwarded => {
                    format!(
                        "-H 'X-Forwarded-Method: {method}' -H 'X-Forwarded-Uri: {path}' -H 'X-Forwarded-Host: {host}'"
                    )
                }
                DescribedBy::Original => {
                    format!("-H 'X-Original-Method: {method}' -H 'X-Original-URL: http://{host}{path}'")
                }
            };
            let _ = writeln!(
                text,
                "Try:\n  curl -i{k}{socket} {fields} -H 'X-Forwarded-For: 192.0.2.7' {}://{reached}/",
                listener.scheme
            );
            return;
        }
        let header = if listener.takes_header { " --haproxy-protocol" } else { "" };
        let (curl, oha) = (self.trial.options("-X"), self.trial.options("-m"));
        let _ = writeln!(
            text,
            "Try:\n  curl -i{k}{header}{curl} {url}\n  \
             for i in $(seq 30); do curl -s{k}{header}{curl} -o /dev/null -w '%{{http_code}} ' {url}; done; echo"
        );
        if listener.takes_header {
            return;
        }
        let wrk = if method.is_none() { format!("    (or: wrk -d5s{curl} {url})") } else { String::new() };
        let _ = writeln!(text, "  oha -z 5s{insecure}{oha} {url}{wrk}");
    }
}

/// A question about a key of a limit, if it can be asked so.
fn question(limit: &LimitRule) -> Option<String> {
    let key = limit.key.to_string();
    let values: Vec<_> = (key.split(" + ").filter(|source| *source != "global"))
        .map(|source| match source {
            "client-ip" => "192.0.2.7",
            "host" => "example.com",
            "path" => "/",
            _ => "customer-17",
        })
        .collect();
    let key = match &*values {
        [] => String::new(),
        [one] => format!(",\"key\":\"{one}\""),
        many => format!(",\"key\":{many:?}"),
    };
    limit.why_not_by_key().is_none().then(|| format!("{{\"limit\":\"{}\"{key}}}", limit.spec.name))
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
        PathPattern::Regex(_) | PathPattern::Descriptor(_) => "/".to_owned(),
    }
}

/// `GET|POST api.example.com/api`
fn matches(pattern: &RoutePattern) -> String {
    let hosts: Vec<String> = pattern.hosts.iter().map(ToString::to_string).collect();
    let path = match &pattern.path {
        PathPattern::Prefix(path) => path.clone(),
        PathPattern::Exact(path) => format!("= {path}"),
        PathPattern::Regex(regex) => format!("~ {}", regex.as_str()),
        PathPattern::Descriptor(pattern) => format!("descriptor of {pattern}"),
    };
    let methods = pattern.methods.join("|");
    let gap = if methods.is_empty() { "" } else { " " };
    format!("{methods}{gap}{}{path}", hosts.join(","))
}

fn describe(route: &RouteSpec) -> String {
    let mut text = format!("{:<12} {}", route.name, matches(&route.pattern));
    let target = match &route.action {
        // Its proxy goes on, or does not.
        _ if matches!(route.pattern.path, PathPattern::Descriptor(_)) => "OK".to_owned(),
        Action::Forward(upstream) => upstream.name.to_string(),
        Action::Respond { status, .. } => format!("answer {status}"),
        Action::Redirect { status, target } => format!("redirect {status} to {}", target.to().source()),
    };
    let _ = write!(text, " -> {target}");
    for rule in &route.limits {
        let much = match &rule.spec.algorithm {
            Algorithm::Concurrency(concurrency) => format!("{} at once", concurrency.max_in_flight()),
            other => other.rates().iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        };
        let mode =
            if rule.spec.mode == Mode::Enforce { String::new() } else { format!(" ({})", rule.spec.mode.word()) };
        let _ = write!(text, ", {} {much} per {}{mode}", rule.spec.name, rule.key);
    }
    text
}

/// How requests are spread over the servers of an upstream, if it has several: with `hash` a client that tries it out sees
/// one of them alone, and takes the others for broken.
fn spread(upstream: &UpstreamSpec) -> Option<String> {
    let servers = upstream.servers.len();
    let sticky = match upstream.balance {
        Strategy::Hash => format!(" by {}: requests of one key go to one server", upstream.hash_key),
        _ => String::new(),
    };
    (servers > 1).then(|| format!("{:<12} {servers} servers, {}{sticky}", upstream.name, upstream.balance.word()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Certificates, parse};

    fn shown(text: &str) -> String {
        let path = Path::new("/gateway.toml");
        let model = parse(text, path, Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model;
        let addresses: Vec<_> = model.listeners.iter().map(|listener| listener.address.clone()).collect();
        Summary::of(&model).text(path, &addresses, None)
    }

    #[test]
    fn it_names_a_request_that_the_route_takes() {
        let text = shown(
            "[[listener]]\naddress = \"0.0.0.0:80\"\nredirect_to_https = 443\n\
             [[listener]]\naddress = \"0.0.0.0:8080\"\n\
             [[limit]]\nname = \"a\"\nrate = \"9/s\"\nmode = \"shadow\"\n\
             [[route]]\nname = \"r\"\nhosts = [\"*.example.org\"]\npath = \"/api\"\nmethods = [\"POST\"]\n\
             headers = { x-kind = \"it's\" }\nrespond = {}\nlimits = [\"a\"]\n",
        );
        let asks = "-H 'Host: www.example.org' -H 'x-kind: it'\\''s'";
        let expected = format!(
            "sluicegate {} on /gateway.toml
  listening  http://0.0.0.0:80  (redirects to https)
  listening  http://0.0.0.0:8080
  route      r            POST *.example.org/api -> answer 200, a 9/s per client-ip (shadow)
Try:
  curl -i -X POST {asks} http://127.0.0.1:8080/api
  for i in $(seq 30); do curl -s -X POST {asks} -o /dev/null -w '%{{http_code}} ' http://127.0.0.1:8080/api; done; echo
  oha -z 5s -m POST {asks} http://127.0.0.1:8080/api
",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_listener_that_programs_ask_is_asked_about_a_key() {
        let text = shown(
            "[[listener]]\naddress = \"127.0.0.1:80\"\ndecides = \"json\"\n\
             [[limit]]\nname = \"a\"\nalgorithm = \"concurrency\"\nmax_in_flight = 1\n\
             [[limit]]\nname = \"b\"\nkey = [\"client-ip\", \"global\", \"header:x-k\"]\nrate = \"9/s\"\n",
        );
        let asks = "'{\"limit\":\"b\",\"key\":[\"192.0.2.7\", \"customer-17\"]}'";
        let expected =
            format!("Try:\n  curl -s -H 'Content-Type: application/json' -d {asks} http://127.0.0.1:80/v1/check\n");
        assert!(text.ends_with(&expected) && text.contains("(decides for programs)"), "{text}");
    }

    #[test]
    fn a_route_for_all_needs_no_option() {
        let text = shown("[[listener]]\naddress = \"127.0.0.1:80\"\n[[route]]\nname = \"r\"\nrespond = {}\n");
        assert!(text.contains("Try:\n  curl -i http://127.0.0.1:80/\n"), "{text}");
        assert!(text.ends_with("  oha -z 5s http://127.0.0.1:80/    (or: wrk -d5s http://127.0.0.1:80/)\n"), "{text}");
    }

    #[test]
    fn it_says_how_requests_are_spread_over_servers() {
        let text = shown(
            "[[listener]]\naddress = \"127.0.0.1:80\"\n\
             [[upstream]]\nname = \"app\"\nservers = [\"echo:a\", \"echo:b\"]\n\
             [[upstream]]\nname = \"img\"\nservers = [\"echo:a\", \"echo:b\", \"echo:c\"]\nbalance = \"round-robin\"\n\
             [[upstream]]\nname = \"one\"\nservers = [\"echo:a\"]\n\
             [[route]]\nname = \"r\"\nupstream = \"app\"\n",
        );
        let expected = "  upstream   app          2 servers, hash by client-ip: requests of one key go to one server\n  \
                        upstream   img          3 servers, round-robin\nTry:\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn where_all_is_redirected_the_redirect_is_tried() {
        let text = shown(
            "[[listener]]\naddress = \"127.0.0.1:80\"\nredirect_to_https = 443\n[[route]]\nname = \"r\"\nrespond = {}\n",
        );
        assert!(text.contains("Try:\n  curl -i http://127.0.0.1:80/\n"), "{text}");
    }
}
