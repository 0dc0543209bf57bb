//! The configurations of `docs/decide.md`, each with the real proxy in front.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::connections::connect_from;
use crate::support::{Backend, Gateway, Program, eventually, unused_address};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Message, Wire};

/// The fenced block of this kind, the first one that has this text.
fn block(kind: &str, text: &str) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decide.md")).unwrap();
    let fence = format!("```{kind}\n");
    let mut blocks = page.split(&fence).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.contains(text)).unwrap_or_else(|| panic!("no block of {kind} with {text}")).to_owned()
}

/// The gateway of the page, and the application.
struct Scene {
    gateway: Gateway,
    backend: Backend,
}

impl Scene {
    fn new(described_by: &str) -> Self {
        let rules = block("toml", "deny_status").replace("\"original\"", &format!("\"{described_by}\""));
        let rules = rules
            .replace("127.0.0.1:9080", "[::1]:0")
            .replace("deny_status", if described_by == "original" { "deny_status" } else { "#" });
        // The listener that tests have anyway proxies: there a route says what it does.
        let rules = rules
            .replace("path = \"/api\"", "path = \"/api\"\nrespond = {}")
            .replace("name = \"rest\"", "name = \"rest\"\nrespond = {}");
        Self { gateway: Gateway::start(&rules), backend: Backend::fixed("app") }
    }

    /// A configuration of the page, with the addresses of this test, and time for a machine that is busy: a question that is
    /// not answered in time admits.
    fn fit(&self, text: &str, proxy: SocketAddr) -> String {
        let asked = self.gateway.addresses[1].to_string();
        let text = text.replace("20ms", "2s").replace("127.0.0.1:9001", &self.backend.address.to_string());
        let text = text.replace("http://:8080 {", &format!("http://:{} {{\nbind {}", proxy.port(), proxy.ip()));
        text.replace("127.0.0.1:9080", &asked).replace("127.0.0.1:8080", &proxy.to_string())
    }

    /// Five pass, then refusals with the wait; others go on; without the gateway all go on in time.
    fn assert_limited(self, proxy: &Program) {
        let ask = |client: &str, target: &str| ask(connect_from(client, proxy.address), target);
        let statuses: Vec<u16> = (0..8).map(|_| ask("127.0.0.1", "/api/x?y=%20").status()).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
        let refused = ask("127.0.0.1", "/api");
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait) && refused.text().contains("per-client"), "{}", refused.text());
        assert_eq!(ask("127.0.0.2", "/api").text(), "app", "another client");
        assert_eq!(ask("127.0.0.1", "/else").text(), "app", "another route");
        assert_eq!(self.backend.requests(), 7);
        // A client cannot leave its route by a host that looks like a target, nor pass by being no request.
        let hosts = ["a?", "a?x=", "a#", "b@a", "a/../x?"];
        assert!(hosts.iter().all(|host| with_fields("127.0.0.1", proxy.address, host) != 200));
        // Nor by a head that its proxy takes and about which it may not be able to ask.
        let line = |place: usize| format!("X-A{place}: b\r\n");
        let fields = [85, 95, 99, 120, 140].map(|count| (0..count).map(line).collect::<String>());
        let large =
            [14_900, 15_040, 15_100, 15_240, 40_000, 100_000].map(|size| format!("X-A: {}\r\n", "a".repeat(size)));
        for more in fields.iter().chain(&large) {
            let status = with_fields("127.0.0.1", proxy.address, &format!("h\r\n{more}"));
            assert_ne!(status, 200, "{} bytes of fields", more.len());
        }
        assert_eq!(ask("127.0.0.1", "/api").status(), 429, "the proxy goes on");
        // Stopped, it takes connections and says nothing.
        self.gateway.signal("STOP");
        let started = Instant::now();
        // It may have answered one more meanwhile.
        assert!(eventually(|| ask("127.0.0.1", "/api").status() == 200));
        assert_took(started, 0..30_000);
        self.gateway.signal("CONT");
        drop(self.gateway.kill());
        assert_eq!(ask("127.0.0.1", "/api").status(), 200, "it is gone");
    }
}

/// The status of a request for this host, behind which other fields may come; 0 without an answer.
fn with_fields(client: &str, proxy: SocketAddr, host: &str) -> u16 {
    let mut wire = Wire::noting(connect_from(client, proxy), Arc::default());
    wire.send(format!("GET /api HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    wire.head().map_or(0, |answer| answer.status())
}

/// A request that tries to be another client, with another method and target.
fn ask(stream: TcpStream, target: &str) -> Message {
    let mut wire = Wire::noting(stream, Arc::default());
    wire.send(format!(
        "POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nX-Forwarded-For: 198.51.100.1\r\nX-Forwarded-Method: GET\r\n\
         X-Forwarded-Uri: /free\r\nX-Original-Method: GET\r\nX-Original-URL: http://h/free\r\nX-Original-URI: /free\r\n\r\nabc"
    ));
    wire.answer()
}

#[test]
fn nginx_asks_and_is_limited_exactly() {
    best_of_three(nginx);
}

fn nginx() {
    let scene = Scene::new("original");
    let program = Program::start("nginx", |command, directory, address| {
        let own = "daemon off;\npid nginx.pid;\nerror_log error.log;\n";
        let text = scene.fit(&block("nginx", "auth_request"), address).replace("http {", "http {\naccess_log off;\n");
        fs::write(directory.join("nginx.conf"), format!("{own}{text}")).unwrap();
        command.arg("-p").arg(directory).args(["-c", "nginx.conf"]);
    });
    scene.assert_limited(&program);
}

#[test]
fn haproxy_asks_and_is_limited_exactly() {
    best_of_three(haproxy);
}

fn haproxy() {
    let scene = Scene::new("forwarded");
    let questions = unused_address().to_string();
    let program = Program::start("haproxy", |command, directory, address| {
        for (name, kind, mark) in [("decide.lua", "lua", "register_action"), ("haproxy.cfg", "haproxy", "lua-load")] {
            let text = scene.fit(&block(kind, mark), address).replace("127.0.0.1:9091", &questions);
            fs::write(directory.join(name), text).unwrap();
        }
        command.args(["-f", "haproxy.cfg"]);
    });
    scene.assert_limited(&program);
}

#[test]
fn caddy_asks_and_is_limited_exactly() {
    best_of_three(caddy);
}

fn caddy() {
    let scene = Scene::new("forwarded");
    let program = Program::start("caddy", |command, directory, address| {
        fs::write(directory.join("Caddyfile"), scene.fit(&block("caddyfile", "forward_auth"), address)).unwrap();
        command.env("HOME", directory).args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
    });
    scene.assert_limited(&program);
}
