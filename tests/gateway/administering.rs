//! The callers of admin, over which socket they come, and whether its answers are as its document says.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Answer, Client, FRAME, Gateway, eventually, get_with, run};
use crate::tls::peer::Authority;

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

const ROUTE: &str = "[[route]]\nname = \"all\"\nlimits = [\"per-ip\"]\nrespond = {}\n\
                     [[limit]]\nname = \"per-ip\"\nrate = \"5/1m\"\n";

/// A token and its entry of the file.
fn token(name: &str, role: &str) -> (String, String) {
    let (status, text, errors) = run(&["token", "--name", name, "--role", role, "--json"], std::path::Path::new("/"));
    assert!(status.success(), "{errors}");
    let made: Value = serde_json::from_str(&text).unwrap();
    let entry = format!("{{ name = \"{name}\", sha256 = {}, role = \"{role}\" }}", made["sha256"]);
    (made["token"].as_str().unwrap().to_owned(), entry)
}

fn guarded(entries: &[&str], more: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\ntokens = [{}]\n{ROUTE}{more}",
        entries.join(", ")
    )
}

fn ask(gateway: &Gateway, method: &str, target: &str, token: &str) -> Answer {
    let token = format!("Bearer {token}");
    Client::connect(gateway.admin).request(method, target, &[("Host", "localhost"), ("Authorization", &token)], b"")
}

#[test]
fn tokens_come_and_go_with_a_reload_and_changes_have_a_line() {
    let ((look, look_entry), (work, work_entry)) = (token("look", "read"), token("work", "operate"));
    let gateway = Gateway::start_whole(&guarded(&[&look_entry, &work_entry], ""));
    assert_eq!(gateway.ask_admin("/healthz").status, 200);
    assert_eq!(gateway.ask_admin("/metrics").status, 401);
    assert_eq!(ask(&gateway, "GET", "/metrics", &look).status, 200);
    assert_eq!(ask(&gateway, "POST", "/reload", &look).status, 403);
    fs::write(gateway.file(), guarded(&[&work_entry], "")).unwrap();
    assert_eq!(ask(&gateway, "POST", "/reload", &work).status, 200);
    assert_eq!(ask(&gateway, "GET", "/metrics", &look).status, 401);
    assert!(eventually(|| gateway.log().contains("admin change")));
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("admin change")).unwrap_or_else(|| panic!("{log}"));
    let line: Value = serde_json::from_str(line).unwrap();
    for (name, value) in [
        ("who", json!("work")),
        ("role", json!("operate")),
        ("peer", json!("127.0.0.1")),
        ("what", json!("POST /reload")),
        ("before", json!("generation 1")),
        ("after", json!("generation 2")),
        ("status", json!(200)),
    ] {
        assert_eq!(line[name], value, "{name}: {line}");
    }
    assert!(!log.contains(&work) && !log.contains(&look), "{log}");
}

#[test]
fn commands_take_a_token_of_a_file_or_of_the_environment() {
    let (look, entry) = token("look", "read");
    let gateway = Gateway::start_whole(&guarded(&[&entry], ""));
    let directory = gateway.directory.path();
    let admin = format!("http://{}", gateway.admin);
    fs::write(directory.join("token"), format!("{look}\n")).unwrap();
    let (status, _, errors) = run(&["limits", "--admin", &admin], directory);
    assert!(!status.success() && errors.contains("--token-file") && errors.contains("SLUICEGATE_TOKEN"), "{errors}");
    let (status, text, errors) = run(&["limits", "--admin", &admin, "--token-file", "token"], directory);
    assert!(status.success() && text.contains("per-ip"), "{errors}");
    for command in [&["upstreams"][..], &["keys", "top", "per-ip"]] {
        let mut asked = Command::new(BINARY);
        asked.args(command).args(["--admin", &admin]).env("SLUICEGATE_TOKEN", &look).current_dir(directory);
        let output = asked.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_unix_socket_is_its_owners_goes_on_over_an_upgrade_and_goes_at_the_end() {
    let rules = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"unix:admin.sock\"\n{ROUTE}[server]\npid_file = \"pid\"\n"
    );
    let mut gateway = Gateway::start_whole(&rules);
    let directory = gateway.directory.path().to_owned();
    let socket = directory.join("admin.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let file = gateway.file().display().to_string();
    let limits = |arguments: &[&str]| {
        let (status, text, errors) = run(arguments, &directory);
        assert!(status.success() && text.contains("per-ip"), "{errors}");
    };
    limits(&["limits", "-c", &file]);
    limits(&["limits", "--admin", "./admin.sock"]);
    limits(&["limits", "--admin", &format!("unix:{}", socket.display())]);
    let (status, _, errors) = run(&["check", "--health", "-c", &file], &directory);
    assert!(status.success(), "{errors}");
    let (status, text, errors) = run(&["upgrade", "-c", &file], &directory);
    assert!(status.success(), "{text}{errors}");
    let new = fs::read_to_string(directory.join("pid")).unwrap().trim().parse().unwrap();
    gateway.succeeds(new);
    gateway.wait_alone();
    limits(&["limits", "-c", &file]);
    gateway.signal("TERM");
    assert!(eventually(|| !socket.exists()));
}

#[test]
fn a_client_certificate_says_who_asks() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.server(&["localhost"]).write(directory.path(), "admin");
    authority.client("ops").write(directory.path(), "ops");
    authority.client("other").write(directory.path(), "other");
    fs::write(directory.path().join("ca.pem"), &authority.pem).unwrap();
    let rules = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         tls = {{ certificates = [{{ cert = \"admin.pem\", key = \"admin-key.pem\" }}], client_certificates = \"optional\", client_ca = \"ca.pem\" }}\n\
         clients = [{{ name = \"ops\", subject = \"CN=ops\", role = \"operate\" }}]\n{ROUTE}"
    );
    let gateway = Gateway::start_in(directory, &rules);
    let directory = gateway.directory.path();
    let admin = format!("https://localhost:{}", gateway.admin.port());
    let ask = |more: &[&str]| {
        let arguments = [&["limits", "--admin", &admin, "--ca", "ca.pem"], more].concat();
        let (status, text, errors) = run(&arguments, directory);
        (status.success(), text + &errors)
    };
    let (is_ok, text) = ask(&["--cert", "ops.pem", "--key", "ops-key.pem"]);
    assert!(is_ok && text.contains("per-ip"), "{text}");
    let (is_ok, text) = ask(&["--cert", "other.pem", "--key", "other-key.pem"]);
    assert!(!is_ok && text.contains("No client of [admin] has this certificate"), "{text}");
    let (is_ok, text) = ask(&[]);
    assert!(!is_ok && text.contains("Say who asks"), "{text}");
    let (status, _, errors) = run(&["limits", "--admin", &format!("http://{}", gateway.admin)], directory);
    assert!(!status.success(), "{errors}");
    let (_, _, errors) = run(&["limits", "-c", &gateway.file().display().to_string()], directory);
    assert!(errors.contains("--admin https://NAME:"), "{errors}");
}

/// The document of the gateway that runs, as a validator for the answer with a status.
pub struct Document(pub Value);

impl Document {
    pub fn of(gateway: &Gateway) -> Self {
        Self(gateway.ask_admin("/api/openapi.json").json())
    }

    /// Whether an answer is as the document says of the path, as it has it.
    pub fn check(&self, method: &str, path: &str, answer: &Answer) {
        let operation = &self.0["paths"][path][method.to_ascii_lowercase()];
        assert!(operation.is_object(), "{method} {path} is not in the document");
        let status = answer.status.to_string();
        let known = operation["responses"].get(&status).unwrap_or(&operation["responses"]["default"]);
        let media = answer.header("content-type").unwrap_or_default().split(';').next().unwrap().to_owned();
        let content = &known["content"][&media];
        assert!(content.is_object(), "{method} {path}: {status} {media} is not in the document: {known}");
        if !media.ends_with("json") {
            return;
        }
        let mut schema = content["schema"].clone();
        schema["components"] = self.0["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let body = answer.json();
        let errors: Vec<String> =
            validator.iter_errors(&body).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{method} {path}: {errors:?}\n{body:#}");
    }
}

#[test]
fn answers_are_as_the_document_says() {
    let rules = "[dead_letter]\n[[route]]\nname = \"up\"\npath = \"/up\"\nupstream = \"app\"\n\
                 [[upstream]]\nname = \"app\"\nservers = [\"echo:a\", \"echo:b\"]\nmax_in_flight = 10\nbreaker = {}\n\
                 [[upstream]]\nname = \"plain\"\nservers = [\"echo:c\"]\n\
                 [[route]]\nname = \"all\"\nlimits = [\"per-ip\", \"both\"]\nrespond = {}\n\
                 [[limit]]\nname = \"per-ip\"\nrate = [\"2/1m\", \"100/h\"]\n\
                 [[limit]]\nname = \"both\"\nkey = [\"client-ip\", \"header:x-key\"]\nrate = \"2/1m\"\nmode = \"shadow\"\n";
    let gateway = Gateway::start_whole(&format!("{FRAME}{rules}"));
    for _ in 0..4 {
        let fields = [("Host", "h"), ("x-key", "secret")];
        drop(get_with(gateway.address(), "/", &fields));
        drop(get_with(gateway.address(), "/up", &fields));
    }
    assert!(eventually(|| gateway.dead_letters().len() >= 2));
    let document = Document::of(&gateway);
    let mut tried = 0;
    for (path, target) in [
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
        ("/metrics", "/metrics"),
        ("/api/openapi.json", "/api/openapi.json"),
        ("/api/config", "/api/config"),
        ("/api/v1/fleet", "/api/v1/fleet"),
        ("/api/v1/upstreams", "/api/v1/upstreams"),
        ("/api/v1/limits", "/api/v1/limits?max=1"),
        ("/api/v1/limits", "/api/v1/limits?max=1&cursor=1"),
        ("/api/v1/limits", "/api/v1/limits?cursor=x"),
        ("/api/v1/limits/{limit}/keys", "/api/v1/limits/per-ip/keys"),
        ("/api/v1/limits/{limit}/keys", "/api/v1/limits/none/keys"),
        ("/api/v1/limits/{limit}/keys/{value}", "/api/v1/limits/per-ip/keys/127.0.0.1"),
        ("/api/v1/limits/{limit}/keys/{value}", "/api/v1/limits/both/keys/127.0.0.1%20+%20secret"),
        ("/api/v1/limits/{limit}/keys/{value}", "/api/v1/limits/per-ip/keys/nobody"),
        ("/api/v1/dead-letters", "/api/v1/dead-letters"),
        ("/api/v1/dead-letters", "/api/v1/dead-letters?max=1"),
        ("/api/v1/dead-letters", "/api/v1/dead-letters?max=none"),
    ] {
        document.check("GET", path, &gateway.ask_admin(target));
        tried += 1;
    }
    assert_eq!(tried, 18);
    let first = gateway.ask_admin("/api/v1/limits?max=1").json();
    assert_eq!((&first["limits"][0]["name"], &first["next"]), (&json!("per-ip"), &json!("1")));
    let second = gateway.ask_admin("/api/v1/limits?max=1&cursor=1").json();
    assert_eq!((&second["limits"][0]["name"], &second["next"]), (&json!("both"), &json!(null)));
    let post = |target: &str, body: &[u8]| {
        let fields = [("Host", "localhost"), ("Content-Type", "application/json"), ("Accept", "application/json")];
        Client::connect(gateway.admin).request("POST", target, &fields, body)
    };
    let server = "/api/v1/upstreams/{upstream}/servers/{server}";
    document.check("POST", server, &post("/api/v1/upstreams/app/servers/echo:a?state=drain", b""));
    document.check("POST", server, &post("/api/v1/upstreams/app/servers/echo:c?state=drain", b""));
    document.check("POST", server, &post("/api/v1/upstreams/app/servers/echo:a?state=gone", b""));
    document.check("POST", server, &post("/api/v1/upstreams/app/servers/echo:a?weight=3&state=up", b""));
    let put = |target: &str, body: &[u8]| {
        let fields = [("Host", "localhost"), ("Content-Type", "application/json")];
        Client::connect(gateway.admin).request("PUT", target, &fields, body)
    };
    document.check("GET", "/api/v1/log", &gateway.ask_admin("/api/v1/log"));
    for body in
        [&br#"{"level":"debug"}"#[..], br#"{"level":"loud"}"#, br#"{"level":1}"#, br#"{"levels":"debug"}"#, b"x"]
    {
        document.check("PUT", "/api/v1/log", &put("/api/v1/log", body));
    }
    for body in [&br#"{"url":"/","headers":[["x-key","s"]]}"#[..], br#"{"url":"http://h/up"}"#, b"{}", b"[", b""] {
        document.check("POST", "/api/v1/explain", &post("/api/v1/explain", body));
    }
    document.check("POST", "/reload", &post("/reload", b""));
    document.check("POST", "/reload", &gateway.post_admin("/reload"));
    fs::write(gateway.file(), "nonsense").unwrap();
    document.check("POST", "/reload", &post("/reload", b""));
}

#[test]
fn a_weight_holds_over_reloads_until_the_file_gives_another_one() {
    let rules = |more: &str| {
        format!(
            "[server]\nworkers = 1\n[[route]]\nname = \"all\"\nupstream = \"app\"\n[[upstream]]\nname = \"app\"\n\
             balance = \"round-robin\"\nservers = [\"echo:a\", {{ address = \"echo:b\"{more} }}]\n"
        )
    };
    let gateway = Gateway::start(&rules(""));
    let served = |count: usize| {
        let mut client = Client::connect(gateway.address());
        (0..count).filter(|_| client.get("/").json()["server"] == "b").count()
    };
    assert_eq!(served(8), 4);
    let set = gateway.post_admin("/api/v1/upstreams/app/servers/echo:b?weight=3").json();
    assert_eq!(set["upstreams"][0]["servers"][1]["weight"], 3);
    assert_eq!(served(8), 6);
    gateway.reload(&format!("{}[client]\n", rules("")));
    assert_eq!(served(8), 6);
    gateway.reload(&rules(", weight = 1 , backup = false"));
    assert_eq!(served(8), 6, "the same weight, written out");
    let (admin, directory) = (format!("http://{}", gateway.admin), gateway.directory.path());
    let set = |more: &[&str]| {
        run(&[&["upstreams", "app", "--admin", &admin, "--server", "echo:b"], more].concat(), directory)
    };
    let (status, text, errors) = set(&["--weight", "7", "--state", "drain"]);
    assert!(status.success() && text.contains("drain"), "{text}{errors}");
    assert_eq!(served(8), 0);
    let (status, _, errors) = set(&[]);
    assert!(!status.success() && errors.contains("--state or --weight"), "{errors}");
    assert!(set(&["--state", "up"]).0.success());
    assert_eq!(served(8), 7);
    gateway.reload(&rules(", weight = 2"));
    let shown = gateway.ask_admin("/api/v1/upstreams").json();
    assert_eq!(shown["upstreams"][0]["servers"][1]["weight"], 2);
    assert_eq!(gateway.post_admin("/api/v1/upstreams/app/servers/echo:z?weight=3").status, 404);
}

#[test]
fn the_level_of_the_log_changes_at_once_until_a_reload_of_its_section() {
    let gateway = Gateway::start(ROUTE);
    let put = |level: &str| {
        let fields = [("Host", "localhost"), ("Content-Type", "application/json")];
        Client::connect(gateway.admin).request(
            "PUT",
            "/api/v1/log",
            &fields,
            format!("{{\"level\":{level:?}}}").as_bytes(),
        )
    };
    let level = || gateway.ask_admin("/api/v1/log").json();
    assert_eq!(level(), json!({ "level": "info", "of_file": "info" }));
    assert_eq!(put("error").json(), json!({ "level": "error", "of_file": "info" }));
    gateway.reload(&format!("{ROUTE}[client]\n"));
    assert_eq!(level()["level"], "error");
    let wrong = put("eror");
    assert_eq!(wrong.status, 422);
    assert!(wrong.json()["detail"].as_str().unwrap().contains("did you mean"), "{}", wrong.text());
    gateway.reload(&format!("{ROUTE}[log]\nlevel = \"warn\"\n"));
    assert_eq!(level(), json!({ "level": "warn", "of_file": "warn" }));
}

fn changes_of(gateway: &Gateway, what: &str) -> usize {
    let log = gateway.log();
    log.lines().filter(|line| line.contains("admin change") && line.contains(what)).count()
}

#[test]
fn no_level_of_the_log_hides_a_change() {
    let gateway = Gateway::start(&format!("[log]\nlevel = \"error\"\n{ROUTE}"));
    let set = |level: &str| gateway.tell_admin("PUT", "/api/v1/log", &json!({ "level": level }).to_string()).status;
    for (count, level) in
        ["off", "info,sluicegate::admin::audit=off", "error", "sluicegate=off"].into_iter().enumerate()
    {
        assert_eq!(set(level), 200, "{level}");
        assert_eq!(gateway.post_admin("/reload").status, 200);
        // Each is in the log before it is answered.
        assert_eq!(changes_of(&gateway, "PUT /api/v1/log"), count + 1, "{level}: {}", gateway.log());
        assert_eq!(changes_of(&gateway, "POST /reload"), count + 1, "{level}: {}", gateway.log());
    }
}

/// `proxy` and `transport` are crates; their lines have the names of rooms of `sluicegate` nevertheless.
#[test]
fn a_filter_of_the_log_names_a_room() {
    for (level, is_told) in [("info,sluicegate::transport=debug", false), ("info,sluicegate::proxy=debug", true)] {
        let gateway = Gateway::start(&format!("[log]\nlevel = \"{level}\"\n{ROUTE}"));
        let mut client = std::net::TcpStream::connect(gateway.address()).unwrap();
        // No connection of HTTP/2 begins with such a frame.
        client.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0xff; 9][..]].concat()).unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
        let parts = ["\"an HTTP/2 connection ended\"", "\"target\":\"sluicegate::proxy::serve::h2\""];
        let told = || gateway.log().lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(if is_told { eventually(told) } else { !told() }, "{level}: {}", gateway.log());
    }
}

#[test]
fn a_change_whose_caller_has_gone_has_its_line() {
    let gateway = Gateway::start(ROUTE);
    let done = || gateway.log().matches("configuration unchanged").count();
    // Of some nothing is done: they have gone before their turn.
    assert!(eventually(|| {
        let mut stream = std::net::TcpStream::connect(gateway.admin).unwrap();
        stream.write_all(b"POST /reload HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        done() >= 10
    }));
    // One change at a time: those before it are over.
    assert_eq!(gateway.post_admin("/reload").status, 200);
    assert!(eventually(|| done() > 10 && changes_of(&gateway, "POST /reload") == done()), "{}", gateway.log());
}

#[test]
fn a_stream_ends_with_its_token_and_goes_on_over_other_reloads() {
    let ((look, look_entry), (work, work_entry)) = (token("look", "read"), token("work", "operate"));
    let text = |entries: &[&str], more: &str| guarded(entries, &format!("[dead_letter]\n{more}"));
    let gateway = Gateway::start_whole(&text(&[&look_entry, &work_entry], ""));
    let mut stream = BufReader::new(std::net::TcpStream::connect(gateway.admin).unwrap());
    let head =
        format!("GET /api/v1/dead-letters/stream HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {look}\r\n\r\n");
    stream.get_ref().write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    while !line.starts_with("id: ") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0);
    }
    let reload = |text: &str| {
        fs::write(gateway.file(), text).unwrap();
        assert_eq!(ask(&gateway, "POST", "/reload", &work).status, 200);
    };
    reload(&text(&[&look_entry, &work_entry], "[log]\nlevel = \"warn\"\n"));
    stream.get_ref().set_read_timeout(Some(std::time::Duration::from_millis(600))).unwrap();
    assert!(stream.read_to_string(&mut line).is_err(), "it goes on: {line}");
    reload(&text(&[&work_entry], ""));
    stream.get_ref().set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    assert!(stream.read_to_string(&mut line).is_ok(), "it ends");
}
