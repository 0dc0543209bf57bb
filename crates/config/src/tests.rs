//! The meaning of a file: every default, every key of the specification, the repository's own file, and files that are no
//! files.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use sluicegate_admission::{AddressHeader, Cost, CostPlace, ExemptRules, OnMissingKey, PathPattern};
use sluicegate_balance::Service;
use sluicegate_balance::Strategy as Balance;
use sluicegate_limiter::{Algorithm, Bound, Mode, OnFull};
use sluicegate_time::Span;

/// The repository's own file.
const TOUR: &str = include_str!("../../../gateway.toml");

/// The least that a file must have.
const LEAST: &str = "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[route]]\nname = \"all\"\nrespond = {}\n";

fn file() -> &'static Path {
    Path::new("/etc/sluicegate/gateway.toml")
}

fn model(text: &str) -> Model {
    parse(text, file(), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model
}

fn report(text: &str) -> String {
    parse(text, file(), Certificates::Unread).unwrap_err().to_string()
}

/// The messages, without places and remedies.
fn messages(text: &str) -> Vec<String> {
    parse(text, file(), Certificates::Unread)
        .unwrap_err()
        .diagnostics()
        .iter()
        .map(|diagnostic| diagnostic.message.clone())
        .collect()
}

#[test]
fn a_file_that_says_nothing_has_every_default() {
    let Model {
        server,
        log,
        client,
        listeners,
        upstreams,
        limits,
        plan_limits,
        bandwidths,
        routes,
        dead_letter,
        admin,
        overload,
        fleet,
        follow,
        followed,
        jwt,
    } = model(LEAST);
    assert!(plan_limits.is_empty() && bandwidths.is_empty());
    assert_eq!((server.workers, server.watch, server.shutdown_grace), (None, true, Span::from_secs(30)));
    assert_eq!((server.rate_headers, server.traceparent), (RateHeaders::Auto, Traceparent::Pass));
    assert_eq!((server.timeout, server.tunnel_timeout), (None, Some(Span::from_secs(3_600))));
    assert_eq!((server.response_timeout, server.min_body_rate), (Some(Span::from_secs(60)), Some(240)));
    assert_eq!((server.head_timeout, server.keep_alive_timeout), (Span::from_secs(30), Span::from_secs(75)));
    assert_eq!((server.body_timeout, server.handshake_timeout), (Span::from_secs(60), Span::from_secs(10)));
    assert_eq!((server.max_head_size, server.max_head_fields, server.max_body_size), (65_536, 128, None));
    assert_eq!((server.max_handshakes, server.max_streams), (1_024, 128));
    assert_eq!((server.max_connections, server.max_requests), (None, None));
    assert_eq!(
        log,
        Log { level: "info".into(), format: LogFormat::Auto, file: None, access: AccessFormat::Off, access_file: None }
    );
    assert!(client.trusted_proxies.is_empty() && client.deny.is_empty() && client.allow.is_empty());
    assert_eq!((client.max_connections, client.connection_rate), (None, None));
    assert_eq!((client.address_header, client.ipv6_prefix), (AddressHeader::XForwardedFor, 64));
    let [listener] = &listeners[..] else { panic!("{listeners:?}") };
    assert_eq!(listener.address, ListenAddress::Tcp("127.0.0.1:8080".parse().unwrap()));
    assert!(listener.tls.is_none() && listener.proxied_by().is_none() && listener.redirect_port().is_none());
    assert_eq!((listener.protocol, listener.max_connections), (ListenerProtocol::Http, None));
    assert!(upstreams.is_empty() && limits.is_empty() && dead_letter.is_none() && admin.is_none());
    assert_eq!((fleet, follow, followed, jwt, overload), (None, None, None, None, None));
    let route = &routes[0];
    assert!(route.pattern.hosts.is_empty() && route.pattern.methods.is_empty() && route.pattern.headers.is_empty());
    assert_eq!(route.pattern.path, PathPattern::Prefix("/".into()));
    assert!(!route.pattern.allow_encoded_slash && !route.pattern.path_as_received);
    assert!(route.limits.is_empty());
    assert_eq!((&route.cost, route.timeout, &route.cors), (&Cost::ONE, None, &None));
    assert_eq!(route.response_timeout, Some(Span::from_secs(60)));
    assert_eq!((route.max_body_size, route.capture_body, route.on_limit), (None, None, OnLimit::Refuse));
    let body = Body { bytes: [].into(), content_type: "text/plain; charset=utf-8".into() };
    assert_eq!(route.action, Action::Respond { status: 200, body });
}

#[test]
fn each_section_has_its_defaults() {
    let text = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[limit]]\nname = \"l\"\nrate = \"100/s\"\n[dead_letter]\n";
    let model = model(&format!("{LEAST}cors = {{ allow_origins = [\"*\"] }}\n{text}"));
    let upstream = &model.upstreams[0];
    assert_eq!(
        upstream.servers,
        [ServerSpec { address: ServerAddress::Echo("a".into()), weight: 1, state: Service::Up, backup: false }]
    );
    assert_eq!((upstream.balance, upstream.hash_balance), (Balance::Hash, Some(1.25)));
    assert_eq!(
        (upstream.connect_timeout, upstream.connect_rate.to_string()),
        (Span::from_secs(5), "2000/s".to_owned())
    );
    assert_eq!(upstream.hash_key.to_string(), "client-ip");
    let limit = &model.limits[0];
    assert_eq!((limit.key.to_string().as_str(), limit.on_missing_key), ("client-ip", OnMissingKey::ClientIp));
    assert_eq!((limit.timeout, limit.status, &limit.cost, limit.retry_after_jitter), (None, 429, &None, Span::ZERO));
    assert_eq!(limit.retry_after_max, None);
    assert_eq!(limit.exempt, ExemptRules::default());
    let spec = &limit.spec;
    assert_eq!((spec.mode, spec.max_wait, spec.max_queue), (Mode::Enforce, Span::ZERO, None));
    assert_eq!((spec.max_keys, spec.on_full), (1_000_000, OnFull::EvictOldest));
    let Algorithm::TimerWheel(wheel) = &spec.algorithm else { panic!("{:?}", spec.algorithm) };
    assert_eq!((wheel.bound(), wheel.slots_of(0), wheel.slots_of(1)), (Bound::Sliding, Some(10), None));
    assert_eq!(
        model.dead_letter,
        Some(DeadLetter {
            directory: "/etc/sluicegate/dead-letters".into(),
            max_record_rate: 2_000,
            max_byte_rate: 4 << 20,
            max_key_rate: 10,
            rotate_size: 64 * 1024 * 1024,
            rotate_age: Span::from_secs(3_600),
            max_total_size: 4 * 1024 * 1024 * 1024,
            max_age: Span::from_secs(14 * 86_400),
            fsync: Fsync::Interval(Span::from_secs(1)),
            redact: Vec::new(),
            redact_secret_file: None,
            seal_key_file: None,
            alerts: Vec::new(),
            sinks: Vec::new(),
            deferred: DeferredRoom::default(),
        })
    );
    let cors = model.routes[0].cors.as_ref().unwrap();
    assert!(!cors.allow_credentials && !cors.count_preflight);
}

/// Every key of the specification's example that this version has, and what it comes to.
#[test]
fn every_key_is_read() {
    let model = model(
        r#"
[server]
workers = 4
watch = false
drain_delay = "3s"
pid_file = "/run/gateway.pid"
state_file = "/var/lib/counts"
state_interval = "9s"
shutdown_grace = "10s"
rate_headers = "both"
traceparent = "make-sampled"
response_timeout = "9s"
timeout = "none"
min_body_rate = "1KiB/s"
head_timeout = "1s"
keep_alive_timeout = "2s"
body_timeout = "3s"
tunnel_timeout = "4s"
max_head_size = "5KiB"
max_head_fields = 6
max_body_size = "7MB"
handshake_timeout = "5s"
max_handshakes = 6
max_streams = 7
max_connections = 1
max_requests = 4000000000
[log]
level = "warn,sluicegate::proxy=debug"
format = "json"
access = "combined"
[client]
trusted_proxies = ["10.0.0.0/8", "192.0.2.7", "fd00::/8"]
address_header = "forwarded"
ipv6_prefix = 56
deny = ["198.51.100.0/24", "2001:db8::7"]
allow = ["198.51.0.0/16"]
max_connections = 10000000
connection_rate = "20/s"
[[listener]]
address = "0.0.0.0:8080"
protocol = "http"
proxy_protocol = "off"
[[upstream]]
name = "app"
servers = ["127.0.0.1:9001", { address = "[::1]:9002", weight = 2 }, "echo:c"]
balance = "hash"
hash_key = ["client-ip", "cookie:session"]
hash_balance = "off"
connect_timeout = "8s"
connect_rate = "9/10ms"
[[limit]]
name = "per-client"
key = ["client-ip", "header:x-api-key"]
on_missing_key = "refuse"
key_is_secret = true
algorithm = "timer-wheel"
rate = ["100/s", "20/100ms"]
slots = 20
bound = "strict"
timeout = "5s"
status = 503
max_wait = "2s"
max_queue = 7
max_keys = 1000
on_full = "allow"
mode = "shadow"
cost = "content-length"
max_cost = 15
cost_from_response = "header:X-Cost"
penalty = { after = 20, within = "1m", block = "10m", escalate = 2, max_block = "2h" }
count_when = { status = ["401", "5xx"] }
exempt = ["10.0.0.0/8", "192.0.2.7", "key:192.0.2.9 + gold"]
retry_after_jitter = "2s"
retry_after_max = "90s"
[[route]]
name = "api"
hosts = ["api.example.com", "*.Example.org"]
path = "/api"
methods = ["GET", "POST"]
headers = { X-Version = "2" }
limits = ["per-client"]
cost = 5
upstream = "app"
response_timeout = "20s"
timeout = "30s"
max_body_size = "9KiB"
on_limit = "drop"
allow_encoded_slash = true
cors = { allow_origins = ["https://a.example", "http://localhost:3000"], allow_credentials = true, count_preflight = true }
[[route]]
name = "exact"
path_exact = "/x/y"
respond = { status = 404, body = "none\n" }
[[route]]
name = "regex"
path_regex = '/v[0-9]+'
respond = { body = "x" }
[dead_letter]
directory = "/var/log/letters"
max_record_rate = 1
max_byte_rate = "128KiB/s"
max_key_rate = 2
rotate_size = "1MB"
rotate_age = "2h"
max_total_size = 5000000
max_age = "3d"
fsync = "rotate"
redact = ["X-Session"]
redact_secret_file = "/etc/redact.secret"
[admin]
address = "127.0.0.1:9900"
"#,
    );
    assert_eq!(
        model.server,
        Server {
            workers: Some(4),
            watch: false,
            drain_delay: Span::from_secs(3),
            pid_file: Some("/run/gateway.pid".into()),
            state_file: Some("/var/lib/counts".into()),
            state_interval: Span::from_secs(9),
            shutdown_grace: Span::from_secs(10),
            rate_headers: RateHeaders::Both,
            traceparent: Traceparent::MakeSampled,
            response_timeout: Some(Span::from_secs(9)),
            timeout: None,
            head_timeout: Span::from_secs(1),
            keep_alive_timeout: Span::from_secs(2),
            body_timeout: Span::from_secs(3),
            min_body_rate: Some(1_024),
            tunnel_timeout: Some(Span::from_secs(4)),
            max_head_size: 5_120,
            max_head_fields: 6,
            max_body_size: Some(7_000_000),
            handshake_timeout: Span::from_secs(5),
            max_handshakes: 6,
            max_streams: 7,
            max_connections: Some(1),
            max_requests: Some(4_000_000_000),
        }
    );
    assert_eq!(model.log.level, "warn,sluicegate::proxy=debug");
    assert_eq!(
        model.client.trusted_proxies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8"]
    );
    let upstream = &model.upstreams[0];
    assert_eq!(upstream.servers[1].address, ServerAddress::Tcp { host: "::1".into(), port: 9_002 });
    assert_eq!((upstream.servers[1].weight, upstream.hash_balance), (2, None));
    assert_eq!(
        (upstream.connect_timeout, upstream.connect_rate.to_string()),
        (Span::from_secs(8), "9/10ms".to_owned())
    );
    let limit = &model.limits[0];
    assert_eq!(limit.key.to_string(), "client-ip + header:x-api-key");
    assert_eq!(
        (limit.timeout, limit.status, &limit.cost),
        (Some(Span::from_secs(5)), 503, &Some(Cost::stated(CostPlace::ContentLength(NonZeroU64::MIN), 15)))
    );
    assert_eq!(limit.cost_from_response.as_ref().map(ToString::to_string).as_deref(), Some("header:x-cost up to 15"));
    assert_eq!(
        limit.spec.penalty.map(|penalty| penalty.to_string()).as_deref(),
        Some("10m for 20 refusals in 1m, then 2 times as long, up to 2h")
    );
    assert_eq!(limit.count_when.as_ref().map(ToString::to_string).as_deref(), Some("401, 5xx"));
    let ExemptRules { networks, keys } = &limit.exempt;
    assert_eq!(networks.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "192.0.2.7/32"]);
    assert_eq!(keys[..], [Box::<str>::from("192.0.2.9 + gold")]);
    assert_eq!((limit.spec.mode, limit.spec.max_queue, limit.spec.on_full), (Mode::Shadow, Some(7), OnFull::Allow));
    let Algorithm::TimerWheel(wheel) = &limit.spec.algorithm else { panic!("{:?}", limit.spec.algorithm) };
    assert_eq!((wheel.slots_of(0), wheel.slots_of(1), wheel.bound()), (Some(20), Some(20), Bound::Strict));
    let denied: Vec<String> = model.client.deny.iter().map(ToString::to_string).collect();
    assert_eq!(denied, ["198.51.100.0/24", "2001:db8::7/128"]);
    let Client { allow, max_connections, connection_rate, .. } = &model.client;
    assert_eq!((allow[0].to_string().as_str(), *max_connections), ("198.51.0.0/16", Some(10_000_000)));
    assert_eq!(connection_rate.map(|rate| rate.to_string()).as_deref(), Some("20/s"));
    let route = &model.routes[0];
    assert_eq!(route.on_limit, OnLimit::Drop);
    assert_eq!(
        route.pattern.hosts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["api.example.com", "*.example.org"]
    );
    assert_eq!(route.pattern.headers, [("x-version".to_owned(), "2".to_owned())]);
    let forward = Action::Forward(Arc::clone(&model.upstreams[0]));
    assert_eq!((&route.limits, &route.cost, &route.action), (&model.limits, &Cost::Fixed(5), &forward));
    assert_eq!(model.routes[1].pattern.path, PathPattern::Exact("/x/y".into()));
    assert_eq!(model.routes[1].timeout, None, "the server's, which is none");
    let head = |route: usize| model.routes[route].response_timeout;
    assert_eq!((head(0), head(1)), (Some(Span::from_secs(20)), Some(Span::from_secs(9))));
    assert_eq!((route.max_body_size, model.routes[1].max_body_size), (Some(9_216), Some(7_000_000)));
    let PathPattern::Regex(regex) = &model.routes[2].pattern.path else { panic!("a regex") };
    assert!(regex.is_match("/v12"));
    assert!(!regex.is_match("/v12/x") && !regex.is_match("/api/v12"), "the whole path must match");
    let dead_letter = model.dead_letter.unwrap();
    assert_eq!(dead_letter.directory, Path::new("/var/log/letters"));
    assert_eq!((dead_letter.rotate_size, dead_letter.max_total_size), (1_000_000, 5_000_000));
    assert_eq!(dead_letter.max_byte_rate, 128 << 10);
    assert_eq!(dead_letter.redact_secret_file.as_deref(), Some(Path::new("/etc/redact.secret")));
    assert_eq!(model.limits[0].key_is_secret, Some(true));
    assert_eq!((dead_letter.fsync, dead_letter.redact), (Fsync::Rotate, vec!["x-session".to_owned()]));
    let address = ListenAddress::Tcp("127.0.0.1:9900".parse().unwrap());
    let admin = Admin {
        address,
        tokens: Vec::new(),
        tls: None,
        clients: Vec::new(),
        explain_sha256: None,
        rules: RulesAccess::Edit,
    };
    assert_eq!(model.admin, Some(admin));
}

/// Each bound is the last value that is taken: the neighbour beyond it is not.
#[test]
fn timeouts_and_sizes_of_http_have_exact_bounds() {
    let server = |line: &str| format!("{LEAST}[server]\n{line}\n");
    let upstream = |line: &str| format!("{LEAST}[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n{line}\n");
    let route = |line: &str| format!("{LEAST}{line}\n");
    let is_taken = |text: &str| parse(text, file(), Certificates::Unread).is_ok();
    for key in ["head_timeout", "keep_alive_timeout", "body_timeout", "tunnel_timeout"] {
        for (value, taken) in [("99ms", false), ("100ms", true), ("1d", true), ("86400001ms", false)] {
            assert_eq!(is_taken(&server(&format!("{key} = \"{value}\""))), taken, "{key} = {value}");
        }
        let none = server(&format!("{key} = \"none\""));
        assert_eq!(is_taken(&none), key == "tunnel_timeout", "{key} = none");
    }
    for (value, taken) in [
        ("0B/s", false),
        ("1B/s", true),
        ("16KiB/s", true),
        ("16385B/s", false),
        ("240", false),
        ("240B/m", false),
        ("off", true),
    ] {
        assert_eq!(is_taken(&server(&format!("min_body_rate = \"{value}\""))), taken, "min_body_rate = {value}");
    }
    for (value, taken) in [("0s", false), ("1ms", true), ("1d", true), ("86400001ms", false), ("none", true)] {
        for text in [server, route].map(|of| of(&format!("response_timeout = \"{value}\""))) {
            assert_eq!(is_taken(&text), taken, "{text}");
        }
    }
    for (value, taken) in [("4095", false), ("4096", true), ("\"1MiB\"", true), ("1048577", false), ("\"none\"", false)]
    {
        assert_eq!(is_taken(&server(&format!("max_head_size = {value}"))), taken, "max_head_size = {value}");
    }
    for (value, taken) in [("0", false), ("1", true), ("256", true), ("257", false), ("\"none\"", false)] {
        assert_eq!(is_taken(&server(&format!("max_head_fields = {value}"))), taken, "max_head_fields = {value}");
    }
    for (value, taken) in [("-1", false), ("0", true), ("1099511627776", true), ("1099511627777", false)] {
        for text in [server(&format!("max_body_size = {value}")), route(&format!("max_body_size = {value}"))] {
            assert_eq!(is_taken(&text), taken, "{text}");
        }
    }
    for (value, taken) in [("99ms", false), ("100ms", true), ("1m", true), ("60001ms", false), ("none", false)] {
        assert_eq!(is_taken(&upstream(&format!("connect_timeout = \"{value}\""))), taken, "connect_timeout = {value}");
    }
    for (value, taken) in [("1/m", true), ("1000000/s", true), ("1/2m", false), ("0/s", false), ("none", false)] {
        assert_eq!(is_taken(&upstream(&format!("connect_rate = \"{value}\""))), taken, "connect_rate = {value}");
    }
}

#[test]
fn none_is_no_bound_at_all() {
    let text =
        format!("{LEAST}max_body_size = \"none\"\n[server]\ntunnel_timeout = \"none\"\nmax_body_size = \"1MiB\"\n");
    let Model { server, routes, .. } = model(&text);
    assert_eq!((server.tunnel_timeout, server.max_body_size), (None, Some(1 << 20)));
    assert_eq!(routes[0].max_body_size, None, "its own, not the server's");
    let text = text.replace("1MiB", "none").replacen("\"none\"", "0", 1);
    let Model { server, routes, .. } = model(&text);
    assert_eq!((server.max_body_size, routes[0].max_body_size), (None, Some(0)), "0 takes no body");
}

#[test]
fn an_address_without_quotes_is_told_to_have_some() {
    for line in
        ["address = 127.0.0.1:80", "address = 10.0.0.1", "trusted_proxies = [10.0.0.0/8]", "servers = [127.0.0.1:1]"]
    {
        let said = report(&format!("[client]\n{line}\n"));
        assert!(said.contains("quoted") && said.contains("help: put double quotes around it"), "{line}: {said}");
    }
    for line in ["hash_balance = 1.2.5", "hash_balance = 1..5"] {
        let said = report(&format!("[client]\n{line}\n"));
        assert!(!said.contains("an address"), "{line}: {said}");
    }
}

#[test]
fn the_default_file_that_is_missing_is_told_with_the_option_that_names_another() {
    let said = |path: &str| load(Path::new(path), Certificates::Unread).unwrap_err().to_string();
    let missing = "No such file or directory (os error 2)";
    assert_eq!(said("Cargo.toml/none"), "cannot read Cargo.toml/none: Not a directory (os error 20)");
    assert_eq!(said("/none/gateway.toml"), format!("cannot read /none/gateway.toml: {missing}"));
    let source = std::io::Error::from_raw_os_error(2);
    let of_default = LoadError::Read { path: "gateway.toml".into(), source }.to_string();
    assert_eq!(of_default, format!("cannot read gateway.toml: {missing}; name the file: -c FILE"));
}

#[test]
fn the_tour_has_no_error_and_no_warning() {
    let parsed = parse(TOUR, file(), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(parsed.warnings.to_string(), "");
    let model = parsed.model;
    assert_eq!(model.listeners[0].address, ListenAddress::Tcp("127.0.0.1:8080".parse().unwrap()));
    assert_eq!(model.admin.unwrap().address.to_string(), "127.0.0.1:9900");
    let servers: Vec<_> = model.upstreams[0].servers.iter().map(|server| server.address.to_string()).collect();
    assert_eq!(servers, ["echo:a", "echo:b", "echo:c"]);
}

/// In the tour `#key = value` is a default: with the line in force, nothing changes.
#[test]
fn the_tour_shows_the_defaults_as_they_are() {
    let before = model(TOUR);
    let mut tried = 0;
    for (at, _) in
        TOUR.match_indices("\n#").filter(|(at, _)| TOUR[at + 2..].starts_with(|c: char| c.is_ascii_lowercase()))
    {
        let text = format!("{}{}", &TOUR[..=at], &TOUR[at + 2..]);
        let plan = diff(&before, &model(&text));
        assert!(plan.is_empty(), "{plan}\nby {}", &TOUR[at + 2..].lines().next().unwrap());
        tried += 1;
    }
    assert!(tried > 43, "{tried} defaults are shown");
}

/// In the tour `# e.g. key = value` is an example: it is a known key with a good value, in place of its like.
#[test]
fn the_tour_has_good_examples() {
    const START: &str = "\n# e.g. ";
    let mut tried = 0;
    for (at, _) in TOUR.match_indices(START) {
        let example = &TOUR[at + START.len()..];
        let text = format!("{}{example}", &TOUR[..=at]);
        if let Err(errors) = parse(&text, file(), Certificates::Unread) {
            let said: Vec<_> = errors.diagnostics().iter().map(|diagnostic| diagnostic.message.as_str()).collect();
            let key = example.split(' ').next().unwrap();
            assert_eq!(said, [format!("`{key}` is written twice")], "{errors}");
        }
        tried += 1;
    }
    assert!(tried > 7, "{tried} examples are shown");
}

/// The listener of HTTPS that the tour shows in a comment.
#[test]
fn the_tour_shows_a_good_https_listener() {
    let (_, shown) = TOUR.split_once("\n#   [[listener]]\n").unwrap();
    let lines: Vec<_> = shown.lines().map_while(|line| line.strip_prefix("#   ")).collect();
    let text = format!("{TOUR}\n[[listener]]\n{}\n", lines.join("\n"));
    let model = parse(&text, file(), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model;
    assert!(model.listeners[1].tls.is_some() && model.listeners[1].address.tcp().unwrap().port() == 8443);
    let files = CertificateFiles::new(Path::new("/etc/gateway.toml"), Certificates::Unread);
    parse_with(&text, file(), None, &files, &KnownPlans::default()).unwrap();
    assert_eq!(files.into_paths(), [Path::new("/etc/fullchain.pem"), Path::new("/etc/privkey.pem")]);
}

/// The followed rules that the tour shows in a comment.
#[test]
fn the_tour_shows_good_followed_rules() {
    let (_, shown) = TOUR.split_once("\n#   [rules]\n").unwrap();
    let lines: Vec<_> = shown.lines().map_while(|line| line.strip_prefix("#   ")).collect();
    let frame = "[[listener]]\naddress = \"127.0.0.1:8080\"\n";
    let follow = model(&format!("{frame}[rules]\n{}\n", lines.join("\n"))).follow.unwrap();
    assert_eq!(follow.follow.to_string(), "https://rules.example/api/v1/config/text");
    assert_eq!((follow.every, lines.len()), (Span::from_secs(5), 5));
    assert_eq!(follow.token_file.as_deref(), Some(Path::new("/etc/sluicegate/rules.token")));
    assert_eq!(follow.kept(file()), Path::new("/var/lib/sluicegate/rules.toml"));
    let least = model(&format!("{frame}[rules]\n{}\n", lines[0])).follow.unwrap();
    assert_eq!((least.every, least.token_file, least.ca, least.kept_file), (Span::from_secs(5), None, None, None));
}

/// The tokens that the tour shows in a comment.
#[test]
fn the_tour_shows_good_tokens() {
    let (_, shown) = TOUR.split_once("\n#   [jwt]\n").unwrap();
    let lines: Vec<_> = shown.lines().map_while(|line| line.strip_prefix("#   ")).collect();
    let model = |lines: &[&str]| model(&format!("{LEAST}[jwt]\n{}\n", lines.join("\n")));
    let jwt = model(&lines).jwt.unwrap();
    assert_eq!((&*jwt.jwks.to_string(), jwt.issuer.as_deref()), ("jwks.json", Some("https://issuer.example")));
    assert_eq!(jwt.audience.as_deref(), Some("api"));
    let least = model(&lines[..1]).jwt.unwrap();
    assert_eq!((least.algorithms, least.issuer, least.audience), (jwt.algorithms, None, None));
}

/// The fleet that the tour shows in a comment.
#[test]
fn the_tour_shows_a_good_fleet() {
    let (_, shown) = TOUR.split_once("\n#   [fleet]\n").unwrap();
    let lines: Vec<_> = shown.lines().map_while(|line| line.strip_prefix("#   ")).collect();
    let model = |lines: &[&str]| model(&format!("{TOUR}\n[fleet]\n{}\n", lines.join("\n")));
    let fleet = model(&lines).fleet.unwrap();
    assert_eq!((fleet.store.as_deref().unwrap(), &*fleet.node), ("rediss://10.0.0.5:6379/0", "gw-1"));
    // Those that say no more than their comment are the defaults.
    let required = ["store", "ca", "server_name", "secret_file", "username", "password_file", "node"];
    let least: Vec<_> = lines.iter().copied().filter(|line| required.iter().any(|key| line.starts_with(key))).collect();
    assert_eq!(model(&least).fleet.unwrap(), fleet);
}

/// The fleet without a store that the tour shows in a comment.
#[test]
fn the_tour_shows_a_good_fleet_without_a_store() {
    let (_, shown) = TOUR.split_once("\n# (docs/fleet.md).\n#   [fleet]\n").unwrap();
    let lines: Vec<_> = shown.lines().map_while(|line| line.strip_prefix("#   ")).collect();
    let model = |lines: &[&str]| model(&format!("{TOUR}\n[fleet]\n{}\n", lines.join("\n")));
    let fleet = model(&lines).fleet.unwrap();
    assert_eq!((fleet.store.clone(), fleet.peers.len()), (None, 2));
    let required = ["peers", "listen", "secret_file"];
    let least: Vec<_> = lines.iter().copied().filter(|line| required.iter().any(|key| line.starts_with(key))).collect();
    assert_eq!(model(&least).fleet.unwrap(), fleet);
}

/// The sensors that the tour shows in a comment.
#[test]
fn the_tour_shows_good_sensors() {
    let (_, shown) = TOUR.split_once("\n#   [overload]\n").unwrap();
    let lines: Vec<_> = shown.lines().map_while(|line| line.strip_prefix("#   ")).collect();
    let model = |lines: &[&str]| model(&format!("{TOUR}\n[overload]\n{}\n", lines.join("\n")));
    let overload = model(&lines).overload.unwrap();
    assert_eq!((overload.cpu, overload.memory, overload.cpu_pressure), (Some(85), Some(85), Some(30)));
    let [time] = &overload.response_time[..] else { panic!("{overload:?}") };
    assert_eq!((&*time.upstream, time.above), ("app", Span::from_millis(800)));
    assert_eq!(overload.failures_per_minute(), Some(5_000.0));
    // Those that say no more than their comment are the defaults.
    let least: Vec<_> =
        lines.iter().copied().filter(|line| !line.starts_with("floor") && !line.starts_with("step")).collect();
    assert_eq!(model(&least).overload.unwrap(), overload);
    let nothing = model(&[]).overload.unwrap();
    assert_eq!((nothing.cpu, nothing.floor, nothing.failures_per_minute()), (None, 20, None));
}

/// The bandwidth that the tour shows in a comment.
#[test]
fn the_tour_shows_a_good_bandwidth() {
    let (_, shown) = TOUR.split_once("\n#   [[bandwidth]]\n").unwrap();
    let lines: Vec<_> = shown.lines().map_while(|line| line.strip_prefix("#   ")).collect();
    let used = "limits = [\"per-api-key\"]\n";
    let tour = TOUR.replacen(used, &format!("{used}bandwidth = [\"downloads\"]\n"), 1);
    let text = format!("{tour}\n[[bandwidth]]\n{}\n", lines.join("\n"));
    let model = parse(&text, file(), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model;
    let bandwidth = &model.bandwidths[0];
    assert_eq!((bandwidth.rate.to_string(), bandwidth.burst), ("10485760/s".to_owned(), 1 << 20));
}

/// The readers themselves say which tables there are and which keys they have. The tour writes each key of a section with a
/// value, and names the others where it writes the key that leads to their table.
#[test]
fn the_tour_names_every_key() {
    let mut missing = Vec::new();
    for (path, keys) in known_keys::tables() {
        let (name, inner) = path.split_first().unwrap();
        let section = of_tour(name);
        let said = inner.first().map(|key| with_references(key, entries(&section, key)));
        let is_named = |key: &String| match &said {
            None => !entries(&section, key).is_empty(),
            Some(said) => places(said, key).next().is_some(),
        };
        missing.extend(keys.iter().filter(|key| !is_named(key)).map(|key| format!("{key} of {}", path.join(" "))));
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// The sections of this name in the tour, also the one in a comment.
fn of_tour(name: &str) -> Vec<&'static str> {
    let mut is_within = false;
    let lines = TOUR.lines().filter(|line| {
        let line = line.strip_prefix("#   ").unwrap_or(line);
        if line.starts_with('[') {
            is_within = line.trim_matches(['[', ']']) == name;
        }
        is_within &= !line.starts_with("# ---");
        is_within
    });
    lines.collect()
}

/// A text from each place where it writes a key with a value, to the next line that begins with another.
fn entries(lines: &[&str], key: &str) -> String {
    let begins = |line: &&&str| {
        let line = ["# e.g. ", "#   ", "#"].iter().find_map(|start| line.strip_prefix(start)).unwrap_or(line);
        let name = line.split_once(" = ").map_or("", |(name, _)| name);
        line.is_empty() || !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let mut all = String::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(place) = places(line, key).find(|place| line[place + key.len()..].starts_with(" = ")) else {
            continue;
        };
        let more = lines[at + 1..].iter().take_while(|line| !begins(line));
        for line in std::iter::once(&&line[place..]).chain(more) {
            let _ = writeln!(all, "{line}");
        }
    }
    all
}

/// The comment of a key, and the key that it is about.
fn with_references(key: &str, mut said: String) -> String {
    if said.contains("as of a limit") {
        said.push_str(&entries(&of_tour("limit"), key));
    }
    if let Some((_, rest)) = said.split_once("the keys of [[") {
        let section = of_tour(rest.split(']').next().unwrap()).join("\n");
        said.push_str(&section);
    }
    said
}

/// Where a text has this word.
fn places<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let places = text.match_indices(word).map(|(at, _)| at);
    places.filter(move |at| !text[..*at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// The other algorithms that the tour shows in a comment. A setting there is the default, or required, or says its default.
#[test]
fn the_tour_shows_the_settings_of_every_algorithm() {
    let read = |lines: &[&str]| {
        let rate = if lines[0].contains("concurrency") { "" } else { "rate = \"10/s\"\n" };
        let text = format!("{LEAST}limits = [\"a\"]\n[[limit]]\nname = \"a\"\n{rate}{}\n", lines.join("\n"));
        parse(&text, file(), Certificates::Unread).map(|parsed| {
            assert_eq!(parsed.warnings.to_string(), "", "{text}");
            parsed.model.limits[0].spec.algorithm.clone()
        })
    };
    let start = TOUR.find("\n#   algorithm = ").unwrap();
    let lines = TOUR[start + 1..].lines().map_while(|line| line.strip_prefix('#'));
    let shown = lines.map(|line| line.strip_prefix("   ").unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for block in shown.split("\n\n") {
        let lines: Vec<_> = block.lines().collect();
        let whole = read(&lines).unwrap_or_else(|errors| panic!("{errors}"));
        names.insert(whole.name());
        for (at, line) in lines.iter().enumerate().skip(1).filter(|(_, line)| !line.starts_with(' ')) {
            let without = [&lines[..at], &lines[at + 1..]].concat();
            match read(&without) {
                Ok(other) => assert_eq!(other == whole, !line.contains("Default: "), "{line}"),
                Err(errors) => assert!(errors.to_string().contains("[[limit]] has no `"), "{errors}"),
            }
        }
    }
    let all = known_keys::words("limit", "algorithm");
    assert_eq!(all, names.into_iter().chain(["timer-wheel"]).map(str::to_owned).collect());
}

#[test]
fn a_route_that_is_taken_in_part_is_no_warning() {
    let route = |name: &str, hosts: &str| format!("[[route]]\nname = \"{name}\"\nhosts = [{hosts}]\nrespond = {{}}\n");
    let warnings = |second: &str| {
        let text = format!("{LEAST}{}{}", route("one", "\"a.example\", \"b.example\""), route("two", second));
        parse(&text, file(), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).warnings.total()
    };
    assert_eq!(warnings("\"a.example\", \"c.example\""), 0);
    assert_eq!(warnings("\"b.example\""), 1);
}

#[test]
fn port_zero_is_another_port_each_time() {
    let text = LEAST.replace("8080", "0");
    assert_eq!(
        parse(&format!("{text}[admin]\naddress = \"127.0.0.1:0\"\n"), file(), Certificates::Unread).map(|_| ()),
        Ok(())
    );
    let text = format!("{text}[[listener]]\naddress = \"0.0.0.0:0\"\n");
    assert_eq!(parse(&text, file(), Certificates::Unread).map(|_| ()), Ok(()));
    let text = format!("{text}[[listener]]\naddress = \"0.0.0.0:0\"\n");
    assert_eq!(messages(&text), ["two listeners have the address 0.0.0.0:0"], "a reload could not tell them apart");
}

#[test]
fn names_that_are_damaged_make_no_echo() {
    let text = format!(
        "{LEAST}limits = [\"a\", \"b c\"]\n[[limit]]\nname = a\nrate = \"1/s\"\n[[limit]]\nname = \"b c\"\nrate = \"1/s\"\n"
    );
    assert_eq!(messages(&text), ["the value must be quoted", "\"b c\" cannot be a name"]);
}

#[test]
fn an_unclosed_string_costs_its_line_only() {
    let text = "[server]\nworkers = 0\n[log]\nlevel = \"info\n[[listener]]\naddress = \"127.0.0.1:8080\"\n[[route]]\nname = \"all\"\nlimits = [\"a\"]\nrespond = {}\n";
    let messages = messages(text);
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages[0].contains("workers") && messages[2].contains("there is no limit \"a\""));
}

#[test]
fn line_ends_and_a_byte_order_mark_do_not_matter() {
    let windows = format!("\u{feff}{}", TOUR.replace('\n', "\r\n"));
    assert!(diff(&model(TOUR), &model(&windows)).is_empty());
    assert!(report(&format!("\u{feff}x = 1\r\n{LEAST}")).contains("--> /etc/sluicegate/gateway.toml:1:1\n"));
}

#[test]
fn sizes_of_files_are_bounded() {
    let mut large = String::from(LEAST);
    while large.len() < 1 << 20 {
        let number = large.len();
        let _ = writeln!(
            large,
            "[[limit]]\nname = \"l{number}\"\nrate = \"1/s\"\nkye = \"host\"\n[[route]]\nname = \"r{number}\"\nlimits = [\"l{number}x\"]\nrespond = {{}}"
        );
    }
    let errors = parse(&large, file(), Certificates::Unread).unwrap_err();
    assert!(errors.total() > 10_000 && errors.to_string().len() < 20_000, "{}", errors.total());
    let too_large = format!("{LEAST}#{}", "x".repeat(MAX_FILE_BYTES));
    assert_eq!(messages(&too_large), ["the file is larger than 4 MiB"]);
}

#[test]
fn one_mistake_among_ten_thousand_limits_is_one_report() {
    let mut text = String::from(LEAST);
    for at in 0..10_000 {
        let _ = writeln!(
            text,
            "[[limit]]\nname = \"l{at}\"\nrate = \"1/s\"\n\
             [[route]]\nname = \"r{at}\"\npath = \"/{at}\"\nlimits = [\"l{at}\"]\nrespond = {{}}"
        );
    }
    assert!(text.len() < MAX_FILE_BYTES / 3, "{}", text.len());
    for (right, wrong, message) in [
        ("name = \"l5000\"\nrate", "name = \"l5000\"\nrat", "unknown key `rat` in [[limit]]"),
        ("limits = [\"l5000\"]", "limits = [\"l500O\"]", "there is no limit \"l500O\""),
        ("name = \"l5000\"", "name = l5000", "the value must be quoted"),
        ("name = \"r5000\"", "name = \"r4999\"", "the route \"r4999\" is defined twice"),
    ] {
        assert!(text.contains(right));
        assert_eq!(messages(&text.replacen(right, wrong, 1)), [message]);
    }
}

#[test]
fn hosts_of_a_route_are_ten_thousand_at_most_none_of_them_twice() {
    let with = |count: usize, more: &str| {
        let hosts: Vec<String> = (0..count).map(|at| format!("\"h{at}.example\"")).collect();
        LEAST.replace("respond", &format!("hosts = [{}{more}]\nrespond", hosts.join(", ")))
    };
    let pattern = &model(&with(10_000, "")).routes[0].pattern;
    assert_eq!((pattern.hosts.len(), pattern.hosts[9_999].to_string().as_str()), (10_000, "h9999.example"));
    assert_eq!(messages(&with(10_001, "")), ["`hosts` has 10001 items"]);
    assert_eq!(messages(&with(9_000, ", \"H17.example.\"")), ["\"H17.example.\" is in `hosts` twice"]);
}

#[test]
fn what_cannot_be_read_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    assert!(
        matches!(load(&at("none"), Certificates::Unread), Err(LoadError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound)
    );
    let load_bytes = |bytes: &[u8]| {
        std::fs::write(at("gateway.toml"), bytes).unwrap();
        load(&at("gateway.toml"), Certificates::Unread)
    };
    let loaded = load_bytes(LEAST.as_bytes()).unwrap();
    assert!(loaded.warnings.is_empty() && loaded.files.is_empty());
    let again = load_bytes(LEAST.as_bytes()).unwrap();
    assert_eq!(again.digest, loaded.digest);
    assert_ne!(load_bytes(format!("{LEAST}# x").as_bytes()).unwrap().digest, loaded.digest);
    let invalid = |bytes: &[u8]| match load_bytes(bytes) {
        Err(LoadError::Invalid { errors, .. }) => errors,
        other => panic!("{other:?}"),
    };
    let latin = invalid(b"# caf\xc3\xa9\n# caf\xe9\n");
    assert_eq!(latin.diagnostics()[0].place, Some(Place { line: 2, column: 6 }));
    assert_eq!(latin.diagnostics()[0].message, "this is not UTF-8");
    assert_eq!(invalid(b"\xff\xfe[\0").diagnostics()[0].message, "the file is UTF-16, not UTF-8");
    assert_eq!(invalid(&vec![b'\n'; MAX_FILE_BYTES + 1]).diagnostics()[0].message, "the file is larger than 4 MiB");
    assert_eq!(invalid(b"").total(), 2, "an empty file has no listener and no route");
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let deep = format!("{LEAST}x = {}1{}\n", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(&deep, file(), Certificates::Unread).is_err());
    let deep = format!("{LEAST}[a{}]\n", ".a".repeat(100_000));
    assert!(parse(&deep, file(), Certificates::Unread).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is done to a good file, the result is a model or a report.
    #[test]
    fn no_mutation_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..12)) {
        let mut bytes = TOUR.as_bytes().to_vec();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b"[]{}=\"'\n.,#\\"[usize::from(byte) % 12]),
                2 => drop(bytes.remove(at)),
                _ => drop(bytes.drain(at..(at + usize::from(byte)).min(bytes.len()))),
            }
            if bytes.is_empty() { break; }
        }
        if let Err(errors) = parse(&String::from_utf8_lossy(&bytes), file(), Certificates::Unread) {
            prop_assert!(errors.total() > 0 && !errors.to_string().contains("fault of the program"), "{}", errors);
        }
    }

    /// The same for text that is made of the pieces of the language in any order.
    #[test]
    fn no_heap_of_pieces_panics(pieces in prop::collection::vec(prop::sample::select(vec![
        "[", "]", "[[", "]]", "{", "}", "=", ",", ".", "\n", "\r\n", "\"", "'", "\"\"\"", "#", " ", "\t", "limit", "route", "server",
        "name", "rate", "\"a\"", "\"100/s\"", "1", "-1", "1e400", "nan", "true", "1979-05-27", "0x", "\\", "\u{0}", "漢", "[[limit]]\n",
        "[[route]]\n", "servers", "respond", "{}", "[]", "key", "headers", "workers",
    ]), 0..60)) {
        if let Err(errors) = parse(&pieces.concat(), file(), Certificates::Unread) {
            prop_assert!(errors.total() > 0 && !errors.to_string().contains("fault of the program"), "{}", errors);
        }
    }
}
