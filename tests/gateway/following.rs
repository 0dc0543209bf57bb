//! Rules from elsewhere: a gateway that follows a server, and the server as it changes, fails and goes away.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::support::{Answer, Backend, Client, FRAME, Gateway, Program, eventually, get, run, unused_address};
use crate::tls::peer::Authority;
use crate::wire::Message;

/// As a whole gateway has it; its own sections would be wrong here.
const RULES: &str = "\
[[listener]]
address = \"127.0.0.1:1\"
nonsense = true
[admin]
address = \"0.0.0.0:1\"
[[upstream]]
name = \"app\"
servers = [\"echo:a\"]
[[limit]]
name = \"l\"
key = \"global\"
rate = \"1000000/s\"
[[route]]
name = \"all\"
upstream = \"app\"
limits = [\"l\"]
";

/// One more route before the others.
const WITH_NEW: &str = "[[route]]\nname = \"new\"\npath = \"/new\"\nrespond = { status = 200, body = \"1\" }\n";

/// The token of the gateway that is asked, and the line that sends it.
const TOKEN: &str = "let-me-read-the-rules";
const BEARER: &str = "Bearer let-me-read-the-rules";

/// A server with a text, its tag from a count of changes.
struct Source {
    backend: Backend,
    says: Arc<Mutex<Says>>,
}

#[derive(Default)]
struct Says {
    text: String,
    version: usize,
    has_no_tag: bool,
    is_away: bool,
}

impl Source {
    fn start(text: &str) -> Self {
        let says = Arc::new(Mutex::new(Says { text: text.to_owned(), version: 1, ..Says::default() }));
        let said = Arc::clone(&says);
        let backend = Backend::start(move |asked, stream| said.lock().unwrap().answer(asked, stream));
        Self { backend, says }
    }

    fn url(&self) -> String {
        format!("http://{}/rules?key=hunter2", self.backend.address)
    }

    fn says(&self, text: &str) {
        let mut says = self.says.lock().unwrap();
        text.clone_into(&mut says.text);
        says.version += 1;
    }

    fn set(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock().unwrap());
    }

    /// Waits until it was asked so many times more.
    fn wait_asked(&self, times: usize) {
        let before = self.backend.requests();
        assert!(eventually(|| self.backend.requests() >= before + times));
    }

    /// The values of a field of all requests.
    fn seen(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.backend.seen.lock().unwrap();
        let value = |asked: &Message| asked.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
        seen.iter().map(value).collect()
    }
}

impl Says {
    fn answer(&self, asked: &Message, stream: &mut TcpStream) -> bool {
        use std::io::Write as _;
        if self.is_away {
            return false;
        }
        let tag = format!("\"{}\"", self.version);
        let is_had = asked.headers.iter().any(|(name, value)| name == "if-none-match" && *value == tag);
        if is_had && !self.has_no_tag {
            return write!(stream, "HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n").is_ok();
        }
        let field = if self.has_no_tag { String::new() } else { format!("ETag: {tag}\r\n") };
        write!(stream, "HTTP/1.1 200 OK\r\n{field}Content-Length: {}\r\n\r\n{}", self.text.len(), self.text).is_ok()
    }
}

/// The sections of a gateway whose admin takes the token, and which follows.
fn frame(url: &str, keys: &str) -> String {
    let hash = Sha256::digest(TOKEN).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         tokens = [{{ name = \"ci\", sha256 = \"{hash}\", role = \"rules\" }}]\n\
         [rules]\nfollow = \"{url}\"\nevery = \"1s\"\n{keys}"
    )
}

fn start(source: &Source) -> Gateway {
    Gateway::start_whole(&frame(&source.url(), ""))
}

fn ask(gateway: &Gateway, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
    let own = [("Host", "localhost"), ("Authorization", BEARER)];
    let fields: Vec<_> = own.into_iter().chain(fields.iter().copied()).collect();
    Client::connect(gateway.admin).request(method, path, &fields, body.as_bytes())
}

fn follow(gateway: &Gateway) -> Value {
    ask(gateway, "GET", "/api/v1/config", &[], "").json()["follow"].clone()
}

fn generation(gateway: &Gateway) -> u64 {
    ask(gateway, "GET", "/api/v1/config", &[], "").json()["generation"].as_u64().unwrap()
}

fn metric(gateway: &Gateway, name: &str) -> f64 {
    let page = ask(gateway, "GET", "/metrics", &[], "").text();
    let line = page.lines().find(|line| line.split(' ').next() == Some(name)).map(str::to_owned);
    line.unwrap_or_else(|| panic!("no {name}")).rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn has_new(gateway: &Gateway) -> bool {
    get(gateway.address(), "/new").text() == "1"
}

fn kept(directory: &Path) -> String {
    let text = fs::read_to_string(directory.join("gateway.toml.followed")).unwrap();
    text.split_once("\n#: followed ").unwrap().0.to_owned()
}

/// How often the log says something.
fn times(gateway: &Gateway, words: &str) -> usize {
    gateway.log().matches(words).count()
}

#[test]
fn a_followed_change_holds_and_no_request_fails() {
    let source = Source::start(RULES);
    let gateway = start(&source);
    let (ends, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let (ends, failed, address) = (Arc::clone(&ends), Arc::clone(&failed), gateway.address());
            thread::spawn(move || {
                let mut client = Client::connect(address);
                while !ends.load(Ordering::Relaxed) {
                    failed.fetch_add(usize::from(client.get("/").status != 200), Ordering::Relaxed);
                }
            })
        })
        .collect();
    assert_eq!((gateway.addresses.len(), generation(&gateway)), (1, 1));
    source.says(&format!("{WITH_NEW}{RULES}"));
    assert!(eventually(|| has_new(&gateway)), "{}", gateway.log());
    assert!(eventually(|| follow(&gateway)["etag"] == "\"2\""));
    source.says(RULES);
    assert!(eventually(|| !has_new(&gateway)));
    assert_eq!(generation(&gateway), 3);
    ends.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    assert_eq!(kept(gateway.directory.path()), RULES);
    let file = gateway.directory.path().join("gateway.toml.followed");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o600);
    let last = ask(&gateway, "GET", "/api/v1/config", &[], "").json()["last_reload"].clone();
    assert_eq!((&last["by"], &last["generation"]), (&json!("follow"), &json!(3)));
}

#[test]
fn a_text_that_is_the_same_makes_no_reload() {
    let source = Source::start(RULES);
    let gateway = start(&source);
    source.wait_asked(3);
    let tags = source.seen("if-none-match");
    assert_eq!((&tags[0], &tags[1]), (&None, &Some("\"1\"".to_owned())), "{tags:?}");
    // Neither does one without a tag, which comes each time.
    source.set(|says| says.has_no_tag = true);
    source.wait_asked(2);
    let written = || fs::metadata(gateway.directory.path().join("gateway.toml.followed")).unwrap().modified().unwrap();
    let before = written();
    source.wait_asked(2);
    assert_eq!(written(), before, "the file is not written each time");
    assert_eq!((generation(&gateway), times(&gateway, "configuration ")), (1, 0), "{}", gateway.log());
    let shown = follow(&gateway);
    assert_eq!((&shown["error"], &shown["url"]), (&Value::Null, &json!(source.url().replace("key=hunter2", "..."))));
    assert!((metric(&gateway, "sluicegate_rules_follow_up") - 1.0).abs() < 0.1);
    assert!(metric(&gateway, "sluicegate_rules_follow_last_success_timestamp_seconds") > 1e9);
    assert!(!gateway.log().contains("hunter2") && !shown.to_string().contains("hunter2"));
}

#[test]
fn a_bad_text_is_told_once_and_changes_nothing() {
    let source = Source::start(RULES);
    let gateway = start(&source);
    source.says(&RULES.replace("1000000/s", "1000000/x"));
    let refused = "the followed rules are refused, the old ones go on";
    assert!(eventually(|| times(&gateway, refused) == 1), "{}", gateway.log());
    source.wait_asked(3);
    assert_eq!(source.seen("if-none-match").last().unwrap().as_deref(), Some("\"2\""));
    let error = follow(&gateway)["error"].as_str().unwrap().to_owned();
    let place = format!("--> http://{}/rules?...:12:8", source.backend.address);
    assert!(error.contains(&place) && error.contains("12 | rate = \"1000000/x\""), "{error}");
    assert_eq!((times(&gateway, refused), generation(&gateway)), (1, 1));
    assert!(metric(&gateway, "sluicegate_rules_follow_up").abs() < 0.1);
    assert_eq!((get(gateway.address(), "/").status, kept(gateway.directory.path())), (200, RULES.to_owned()));
    source.says(&format!("{WITH_NEW}{RULES}"));
    assert!(eventually(|| has_new(&gateway)));
    assert!(eventually(|| follow(&gateway)["error"].is_null()));
    // One without a tag is known by its content.
    source.set(|says| says.has_no_tag = true);
    source.says("[[route]]\n");
    assert!(eventually(|| times(&gateway, refused) == 2));
    source.wait_asked(3);
    assert_eq!((times(&gateway, refused), has_new(&gateway)), (2, true));
}

#[test]
fn a_text_above_the_bound_is_not_taken() {
    let source = Source::start(RULES);
    let gateway = start(&source);
    source.says(&format!("{WITH_NEW}{RULES}#{}", "x".repeat(1 << 20)));
    assert!(eventually(|| follow(&gateway)["error"] == "the text is larger than 1 MiB"), "{}", follow(&gateway));
    assert_eq!((has_new(&gateway), kept(gateway.directory.path())), (false, RULES.to_owned()));
    let fits = format!("{WITH_NEW}{RULES}#");
    source.says(&format!("{fits}{}", "x".repeat((1 << 20) - fits.len())));
    assert!(eventually(|| has_new(&gateway)));
}

#[test]
fn the_kept_text_is_used_while_the_source_is_away() {
    let source = Source::start(RULES);
    let gateway = start(&source);
    source.says(&format!("{WITH_NEW}{RULES}"));
    assert!(eventually(|| has_new(&gateway)));
    let directory = gateway.kill();
    source.set(|says| says.is_away = true);
    let gateway = Gateway::start_in(directory, &frame(&source.url(), ""));
    assert!(has_new(&gateway));
    source.wait_asked(3);
    let (away, back) =
        ("the followed rules cannot be had; those that are kept go on", "the followed rules can be had again");
    assert_eq!((times(&gateway, away), times(&gateway, back)), (1, 0), "{}", gateway.log());
    let shown = follow(&gateway);
    assert!(shown["error"].as_str().unwrap().starts_with("no valid answer: "), "{shown}");
    assert_eq!((&shown["since"], &shown["etag"]), (&Value::Null, &json!("\"2\"")));
    source.set(|says| says.is_away = false);
    assert!(eventually(|| times(&gateway, back) == 1));
    source.wait_asked(2);
    assert_eq!((times(&gateway, away), times(&gateway, back), generation(&gateway)), (1, 1, 1));
}

#[test]
fn without_rules_it_does_not_start_and_check_warns() {
    let directory = tempfile::tempdir().unwrap();
    let address = unused_address();
    fs::write(directory.path().join("gateway.toml"), frame(&format!("http://{address}/rules"), "")).unwrap();
    let (status, _, said) = run(&["run", "-c", "gateway.toml"], directory.path());
    assert!(!status.success());
    let first = format!("[rules] follow: the rules of http://{address}/rules are not known: cannot connect: ");
    assert!(said.starts_with(&first), "{said}");
    let file = directory.path().join("gateway.toml.followed");
    let remedy = format!(
        "No text is kept in {}. Let the address answer, or write the rules into that file.\n",
        file.canonicalize().unwrap_or(file.clone()).display()
    );
    assert!(said.ends_with(&remedy), "{said}");
    let (status, told, said) = run(&["check", "-c", "gateway.toml"], directory.path());
    assert!(status.success() && told.contains("ok (0 routes"), "{told}");
    assert!(said.contains("warning: the rules are not known yet: there is no "), "{said}");
    // A text that is wrong is no text.
    let source = Source::start("[[route]]\n");
    fs::write(directory.path().join("gateway.toml"), frame(&source.url(), "")).unwrap();
    let (status, _, said) = run(&["run", "-c", "gateway.toml"], directory.path());
    assert!(!status.success() && said.contains("/rules?...:1:1") && !said.contains("hunter2"), "{said}");
    assert!(!file.exists());
    // One that somebody has put there is enough.
    fs::write(&file, RULES).unwrap();
    let gateway = Gateway::start_in(directory, &frame(&format!("http://{address}/rules"), ""));
    assert_eq!(get(gateway.address(), "/").status, 200);
}

#[test]
fn the_api_changes_no_followed_rules_and_shows_them() {
    let source = Source::start(RULES);
    let gateway = start(&source);
    let refusal = format!("The rules come from http://{}/rules?...: change them there.", source.backend.address);
    let limit = json!({ "key": "global", "rate": "1/s" }).to_string();
    let any = [("If-Match", "*"), ("Content-Type", "application/json")];
    for (method, path, body) in [
        ("PUT", "/api/v1/limits/l", &*limit),
        ("POST", "/api/v1/limits", &limit.replace('{', "{\"name\": \"new\", ")),
        ("DELETE", "/api/v1/routes/all", ""),
        ("POST", "/api/v1/config/rollback", "{\"generation\": 1}"),
    ] {
        let answer = ask(&gateway, method, path, &any, body);
        assert_eq!((answer.status, &answer.json()["detail"]), (403, &json!(refusal)), "{method} {path}");
    }
    let text = fs::read_to_string(gateway.file()).unwrap();
    assert_eq!((text, generation(&gateway)), (frame(&source.url(), ""), 1));
    let routes = ask(&gateway, "GET", "/api/v1/routes", &[], "");
    assert_eq!(routes.json()["rules"], json!([{ "name": "all", "upstream": "app", "limits": ["l"] }]));
    let etag = routes.header("etag").unwrap().to_owned();
    assert_eq!(ask(&gateway, "GET", "/api/v1/routes", &[("If-None-Match", &etag)], "").status, 304);
    assert_eq!(ask(&gateway, "GET", "/api/v1/limits/l", &[], "").json()["rate"], "1000000/s");
}

#[test]
fn the_token_is_read_each_time_and_shown_nowhere() {
    let source = Source::start(RULES);
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "f1rst-s3cret\n").unwrap();
    let gateway = Gateway::start_in(directory, &frame(&source.url(), "token_file = \"token\"\n"));
    fs::write(gateway.directory.path().join("next"), "s3cond-s3cret").unwrap();
    fs::rename(gateway.directory.path().join("next"), &token).unwrap();
    let second = || source.seen("authorization").contains(&Some("Bearer s3cond-s3cret".to_owned()));
    assert!(eventually(second), "{:?}", source.seen("authorization"));
    assert_eq!(source.seen("authorization")[0].as_deref(), Some("Bearer f1rst-s3cret"));
    let shown =
        ["/api/v1/config", "/api/v1/config/text", "/metrics"].map(|path| ask(&gateway, "GET", path, &[], "").text());
    assert!(!shown.concat().contains("s3cret") && !gateway.log().contains("s3cret"), "{}", gateway.log());
    assert_eq!(generation(&gateway), 1);
    fs::remove_file(&token).unwrap();
    assert!(eventually(|| follow(&gateway)["error"].as_str().is_some_and(|error| error.starts_with("token_file "))));
    assert_eq!(get(gateway.address(), "/").status, 200);
}

#[test]
fn a_gateway_follows_another_one() {
    let hash = Sha256::digest(TOKEN).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let own = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         tokens = [{{ name = \"ci\", sha256 = \"{hash}\", role = \"rules\" }}]\n"
    );
    let (_, rules) = RULES.split_once("[[upstream]]").unwrap();
    let source = Gateway::start_whole(&format!("{own}[[upstream]]{rules}"));
    let text = ask(&source, "GET", "/api/v1/config/text", &[], "");
    let etag = text.header("etag").unwrap().to_owned();
    for tags in [etag.clone(), format!("\"x\", W/{etag}"), "*".to_owned()] {
        let answer = ask(&source, "GET", "/api/v1/config/text", &[("If-None-Match", &tags)], "");
        assert_eq!((answer.status, answer.header("etag"), answer.body.len()), (304, Some(&*etag), 0), "{tags}");
    }
    let other = ask(&source, "GET", "/api/v1/config/text", &[("If-None-Match", "\"x\"")], "");
    assert_eq!((other.status, other.body), (200, text.body));
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("token"), TOKEN).unwrap();
    let url = format!("http://{}/api/v1/config/text", source.admin);
    let follower = Gateway::start_in(directory, &frame(&url, "token_file = \"token\"\n"));
    let route = json!({ "name": "new", "path": "/new", "respond": { "status": 200, "body": "1" } }).to_string();
    let fields = [("If-Match", "*"), ("Content-Type", "application/json")];
    let created = ask(&source, "POST", "/api/v1/routes?before=all", &fields, &route);
    assert_eq!(created.status, 201, "{}", created.text());
    assert!(eventually(|| has_new(&follower)), "{}", follower.log());
    assert_eq!(generation(&follower), 2);
}

#[test]
fn a_reload_begins_to_follow_and_ends_it() {
    let source = Source::start(&format!("{WITH_NEW}{RULES}"));
    source.set(|says| says.is_away = true);
    let (_, rules) = RULES.split_once("[[upstream]]").unwrap();
    let gateway = Gateway::start(&format!("[[upstream]]{rules}"));
    let section = format!("[rules]\nfollow = \"{}\"\nevery = \"1s\"\n", source.url());
    let answer = gateway.reload(&section);
    assert!(answer.status == 422 && answer.text().contains("are not known: no valid answer: "), "{}", answer.text());
    assert_eq!(
        (get(gateway.address(), "/").status, has_new(&gateway)),
        (200, false),
        "the current configuration stays"
    );
    source.set(|says| says.is_away = false);
    assert_eq!(gateway.ask_reload().status, 200);
    assert!(has_new(&gateway));
    let answer = gateway.reload(&format!("[[upstream]]{rules}"));
    assert!(answer.status == 200 && !has_new(&gateway), "{}", answer.text());
    assert!(gateway.ask_admin("/api/v1/config").json()["follow"].is_null());
    assert!(eventually(|| !has_thread(gateway.pid(), "follower")), "nobody follows any more");
}

/// Whether a process has a thread of this name.
fn has_thread(pid: u32, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.any(|own| own.trim_end() == name)
}

#[test]
fn the_process_that_takes_over_follows_and_the_one_before_does_not() {
    let source = Source::start(RULES);
    let section = format!("[rules]\nfollow = \"{}\"\nevery = \"1s\"\n", source.url());
    let mut gateway = Gateway::start_copy(&format!("{FRAME}{section}"));
    assert!(eventually(|| has_thread(gateway.pid(), "follower")));
    assert_eq!(gateway.upgrade()["ok"], true, "{}", gateway.log());
    gateway.wait_alone();
    assert!(eventually(|| has_thread(gateway.serving(), "follower")));
    source.says(&format!("{WITH_NEW}{RULES}"));
    assert!(eventually(|| has_new(&gateway)), "{}", gateway.log());
    assert_eq!((times(&gateway, "refused"), times(&gateway, "cannot be")), (0, 0), "{}", gateway.log());
}

#[test]
fn a_kept_text_that_was_changed_by_hand_holds_until_the_source_answers() {
    let source = Source::start(RULES);
    let gateway = start(&source);
    source.set(|says| says.is_away = true);
    let file = gateway.directory.path().join("gateway.toml.followed");
    let next = gateway.directory.path().join("next");
    fs::write(&next, format!("{WITH_NEW}{}", fs::read_to_string(&file).unwrap())).unwrap();
    fs::rename(&next, &file).unwrap();
    assert!(eventually(|| has_new(&gateway)), "{}", gateway.log());
    source.set(|says| says.is_away = false);
    assert!(eventually(|| !has_new(&gateway)));
    assert_eq!(kept(gateway.directory.path()), RULES);
}

#[test]
fn a_server_without_a_certificate_of_the_authority_is_not_believed() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let directory = tempfile::tempdir().unwrap();
    authority.server(&["127.0.0.1"]).write(directory.path(), "own");
    fs::write(directory.path().join("rules.txt"), RULES).unwrap();
    let source = Gateway::start_in(
        directory,
        "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\n\
         tls = { certificates = [{ cert = \"own.pem\", key = \"own-key.pem\" }] }\n\
         [[route]]\nname = \"all\"\nrespond = { file = \"rules.txt\" }\n",
    );
    let follower = |authority: &Authority| {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), &authority.pem).unwrap();
        let text = frame(&format!("https://{}/rules", source.address()), "ca = \"ca.pem\"\n");
        fs::write(directory.path().join("gateway.toml"), &text).unwrap();
        (directory, text)
    };
    let (directory, _) = follower(&other);
    let (status, _, said) = run(&["run", "-c", "gateway.toml"], directory.path());
    assert!(!status.success() && said.contains("are not known: cannot connect: "), "{said}");
    let (directory, text) = follower(&authority);
    let gateway = Gateway::start_in(directory, &text);
    assert_eq!(get(gateway.address(), "/").status, 200);
}

/// The example's server, at an address of its own.
struct Service {
    program: Program,
    _rules: TempDir,
}

impl Service {
    fn start(address: SocketAddr) -> Self {
        let rules = tempfile::tempdir().unwrap();
        fs::write(rules.path().join("token"), TOKEN).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rules-service/rules_service.py");
        let program = Program::start_at(address, "python3", |command, _, address| {
            command.arg(script).args(["--database", "rules.db"]).arg("--token-file").arg(rules.path().join("token"));
            command.args(["serve", "--listen", &address.to_string()]);
        });
        Self { program, _rules: rules }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let fields = [("Authorization", BEARER), ("Content-Type", "application/toml")];
        Client::connect(self.program.address).request(method, path, &fields, body.as_bytes())
    }
}

#[test]
fn the_example_of_a_rules_service_is_followed() {
    let service = Service::start(unused_address());
    for (path, body) in [
        ("/rules/upstream/app", "servers = [\"echo:a\"]\n"),
        ("/rules/limit/l", "key = \"global\"\nrate = \"1000000/s\"\n"),
        ("/rules/route/all", "upstream = \"app\"\nlimits = [\"l\"]\n"),
    ] {
        let answer = service.ask("PUT", path, body);
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
    }
    let first = "path = \"/first\"\nrespond = { status = 200, body = \"1\" }\n";
    assert_eq!(service.ask("PUT", "/rules/route/first?before=all", first).status, 201);
    let text = service.ask("GET", "/rules", "");
    let etag = text.header("etag").unwrap().to_owned();
    assert_eq!(text.status, 200);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("token"), TOKEN).unwrap();
    let url = format!("http://{}/rules", service.program.address);
    let gateway = Gateway::start_in(directory, &frame(&url, "token_file = \"token\"\n"));
    assert_eq!(get(gateway.address(), "/").status, 200);
    assert_eq!(get(gateway.address(), "/first").text(), "1", "the first route that matches wins");
    let fields = [("Authorization", BEARER), ("If-None-Match", &*etag)];
    assert_eq!(Client::connect(service.program.address).request("GET", "/rules", &fields, b"").status, 304);
    assert_eq!(Client::connect(service.program.address).get("/rules").status, 401);
    // One request an hour, of which one is used: the next is refused once the change holds.
    assert_eq!(service.ask("PUT", "/rules/limit/l", "key = \"global\"\nrate = \"1/h\"\n").status, 200);
    assert!(eventually(|| get(gateway.address(), "/").status == 429), "{}", gateway.log());
    assert_eq!(service.ask("PUT", "/rules/limit/l", "rate = \n").status, 422);
    assert_eq!(service.ask("DELETE", "/rules/limit/unheard", "").status, 404);
    assert_eq!(service.ask("PUT", "/rules/route/all", "upstream = \"app\"\n").status, 200);
    assert_eq!(service.ask("DELETE", "/rules/limit/l", "").status, 200);
    assert!(eventually(|| get(gateway.address(), "/").status == 200), "{}", gateway.log());
}
