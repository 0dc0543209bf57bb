//! The programs of `docs/clients.md` do what the page says. Each is taken from the page and run against a server that
//! refuses it.
#![allow(clippy::disallowed_methods, reason = "tests measure real time")]
#![allow(clippy::format_push_string, clippy::needless_pass_by_value, reason = "plain test code")]

#[allow(dead_code, unused_imports, reason = "of what all tests share, a server is enough here")]
mod support;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use support::{Backend, eventually_in, unused_address};
use tempfile::TempDir;

const PAGE: &str = include_str!("../docs/clients.md");

/// A program that has not ended by then waits for something it must not wait for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The least that a client must wait after a `Retry-After` of a second. Timers of Node may be a millisecond early. Without the
/// floor it waits 200 ms at most.
const A_SECOND: Duration = Duration::from_millis(990);

/// How a program of the page is run.
struct Language {
    /// Of its block.
    name: &'static str,
    file: &'static str,
    /// A command, and a word of what it prints where the program can run.
    probe: (&'static [&'static str], &'static str),
    /// Is done once, before all runs.
    build: &'static [&'static str],
    run: &'static [&'static str],
}

#[test]
fn python() {
    let program = Program::of(Language {
        name: "python",
        file: "client.py",
        probe: (&["python3", "--version"], "Python 3"),
        build: &[],
        run: &["python3", "client.py"],
    });
    program.expect("python3 is missing").keeps_its_word();
}

#[test]
fn go() {
    let program = Program::of(Language {
        name: "go",
        file: "client.go",
        probe: (&["go", "version"], "go version"),
        build: &["go", "build", "-o", "client", "client.go"],
        run: &["./client"],
    });
    program.inspect(Program::keeps_its_word);
}

#[test]
fn javascript() {
    let program = Program::of(Language {
        name: "javascript",
        file: "client.mjs",
        // Older ones have no fetch.
        probe: (&["node", "-p", "typeof fetch"], "function"),
        build: &[],
        run: &["node", "client.mjs"],
    });
    program.inspect(Program::keeps_its_word);
}

#[test]
fn java() {
    let program = Program::of(Language {
        name: "java",
        file: "Client.java",
        // A runtime without the compiler cannot run a source file.
        probe: (&["java", "--list-modules"], "jdk.compiler@"),
        build: &[],
        // It compiles the program at each start: the quick compiler alone is sooner done with that.
        // Without a file that another process may hold under the same number, of which it would warn on standard output.
        run: &["java", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "Client.java"],
    });
    program.inspect(Program::keeps_its_word);
}

/// A program in a directory of its own.
struct Program {
    language: Language,
    directory: TempDir,
}

/// A try, as the server saw it.
#[derive(Clone, Debug)]
struct Try {
    line: String,
    path: String,
    key: Option<String>,
    body: String,
    at: Instant,
}

/// A run of a program with some paths.
#[derive(Debug)]
struct Run {
    tries: Vec<Try>,
    /// As it printed them.
    statuses: Vec<u16>,
    success: bool,
}

impl Program {
    /// Takes the program from the page. `None` if it cannot run here.
    fn of(language: Language) -> Option<Self> {
        let Language { name, file, probe: (probe, word), build, .. } = language;
        let blocks: Vec<&str> = PAGE.split(&format!("```{name}\n")).skip(1).collect();
        let [block] = blocks[..] else { panic!("{} blocks of {name} on the page", blocks.len()) };
        let (text, _) = block.split_once("\n```\n").expect("the end of the block");
        let output = Command::new(probe[0]).args(&probe[1..]).output();
        if !output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(word)) {
            println!("skipped: {name} does not run here");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(file), text).unwrap();
        let program = Self { language, directory };
        if !build.is_empty() {
            let output = program.command(build).output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Some(program)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.directory.path()).stdin(Stdio::null());
        // Of Go: it is to fetch nothing. Of all: a proxy is not to stand between the program and the server.
        command.envs([("GOPROXY", "off"), ("GOTOOLCHAIN", "local"), ("NO_PROXY", "*"), ("no_proxy", "*")]);
        command
    }

    /// Runs it with paths of a fresh server, or whole URLs.
    fn run(&self, method: &str, targets: &[&str]) -> Run {
        let tries = Arc::new(Mutex::new(Vec::<Try>::new()));
        let log = Arc::clone(&tries);
        let server = Backend::start(move |request, stream| {
            let path = request.target().to_owned();
            let earlier = {
                let mut log = log.lock().unwrap();
                let earlier = log.iter().filter(|known| known.path == path).count();
                let key = request.header("idempotency-key").map(str::to_owned);
                let (line, body) = (request.line.clone(), request.text());
                log.push(Try { line, path: path.clone(), key, body, at: Instant::now() });
                earlier
            };
            answer(&path, earlier, stream);
            false
        });
        let mut command = self.command(self.language.run);
        command.arg(method).stdout(Stdio::piped()).stderr(Stdio::piped());
        for target in targets {
            match target.strip_prefix('/') {
                Some(path) => command.arg(format!("http://{}/{path}", server.address)),
                None => command.arg(target),
            };
        }
        let mut child = command.spawn().unwrap();
        let has_ended = eventually_in(PATIENCE, || child.try_wait().unwrap().is_some());
        if !has_ended {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let tries = tries.lock().unwrap().clone();
        assert!(has_ended, "it does not end with {targets:?}: {said}{errors}{tries:?}");
        // Errors are not looked at otherwise: Node 18 warns there that its fetch is new.
        let statuses = said.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{said}{errors}"))).collect();
        Run { tries, statuses, success: output.status.success() }
    }

    /// Each run by a thread of its own: they wait most of the time.
    fn keeps_its_word(&self) {
        thread::scope(|scope| {
            let cases = [
                Self::sends_a_post_again_with_its_key,
                Self::waits_as_long_as_it_is_told,
                Self::gives_up_a_wait_without_end,
                Self::repeats_what_may_pass,
                Self::takes_what_is_final,
                Self::keeps_to_its_budget,
                Self::ends_without_an_answer,
            ];
            for case in cases {
                scope.spawn(move || case(self));
            }
        });
    }

    fn sends_a_post_again_with_its_key(&self) {
        let run = self.run("POST", &["/seconds", "/always/201"]);
        assert_eq!(run.counts(&["/seconds", "/always/201"]), [2, 1], "{run:?}");
        assert!(run.gap("/seconds") >= A_SECOND, "{run:?}");
        let keys: Vec<&str> = run.tries.iter().map(|each| each.key.as_deref().unwrap_or_default()).collect();
        assert!(keys[0].len() > 16 && keys[0].starts_with('"') && keys[0].ends_with('"'), "a string: {run:?}");
        assert_eq!(keys[0], keys[1], "one key for all tries");
        assert_ne!(keys[0], keys[2], "another request has another key");
        assert!(run.tries.iter().all(|each| each.line.starts_with("POST ") && each.body == "{}"), "{run:?}");
        assert_eq!((&run.statuses[..], run.success), (&[200, 201][..], true));
    }

    fn waits_as_long_as_it_is_told(&self) {
        let paths = ["/seconds", "/date", "/unreadable", "/past"];
        let run = self.run("GET", &paths);
        assert_eq!(run.counts(&paths), [2; 4], "{run:?}");
        assert!(run.gap("/seconds") >= A_SECOND && run.gap("/date") >= A_SECOND, "{run:?}");
        assert!(run.tries.iter().all(|each| each.line.starts_with("GET ") && each.key.is_none()), "{run:?}");
        assert_eq!((&run.statuses[..], run.success), (&[200; 4][..], true));
    }

    fn gives_up_a_wait_without_end(&self) {
        let paths = ["/year", "/digits", "/far"];
        let run = self.run("GET", &paths);
        assert_eq!(run.counts(&paths), [1; 3], "{run:?}");
        assert_eq!((&run.statuses[..], run.success), (&[429, 503, 503][..], false));
    }

    /// 429 and 503 are in other cases. Five retries are all that the budget has.
    fn repeats_what_may_pass(&self) {
        let paths = ["/once/408", "/once/425", "/once/502", "/once/504", "/dropped"];
        let run = self.run("GET", &paths);
        assert_eq!(run.counts(&paths), [2; 5], "{run:?}");
        assert_eq!((&run.statuses[..], run.success), (&[200; 5][..], true));
    }

    fn takes_what_is_final(&self) {
        let last = 404;
        let statuses = [204, 301, 307, 400, 401, 403, 405, 409, 410, 413, 422, 500, 501, 505, last];
        let paths = statuses.map(|status| format!("/always/{status}"));
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let run = self.run("GET", &paths);
        // To follow a redirect would be a try of another path.
        let tried: Vec<&str> = run.tries.iter().map(|each| each.path.as_str()).collect();
        assert_eq!(tried, paths);
        assert_eq!((&run.statuses[..], run.success), (&statuses[..], false));
    }

    fn keeps_to_its_budget(&self) {
        let paths = ["/always/503?1", "/always/503?2", "/always/503?3", "/always/503?4"];
        let run = self.run("GET", &paths);
        // Four retries end the first request. They leave one token of five: the second request has one retry, and a
        // tenth of a token for each request allows no further one.
        assert_eq!(run.counts(&paths), [5, 2, 1, 1], "{run:?}");
        // A client that does not wait needs a few milliseconds for it. One that does waits less than this once in
        // 400,000 runs.
        assert!(run.gap(paths[0]) >= Duration::from_millis(50), "{run:?}");
        assert_eq!((&run.statuses[..], run.success), (&[503; 4][..], false));
    }

    /// Neither from a server that drops it each time, nor where nobody listens.
    fn ends_without_an_answer(&self) {
        let nobody = format!("http://{}/", unused_address());
        let run = self.run("GET", &["/gone", &nobody]);
        assert_eq!(run.counts(&["/gone"]), [5], "{run:?}");
        assert_eq!((&run.statuses[..], run.success), (&[0, 0][..], false));
    }
}

impl Run {
    /// How often each of these paths was tried. Others must not have been.
    fn counts(&self, paths: &[&str]) -> Vec<usize> {
        assert!(self.tries.iter().all(|each| paths.contains(&each.path.as_str())), "{self:?}");
        paths.iter().map(|path| self.tries.iter().filter(|each| each.path == *path).count()).collect()
    }

    /// From the first try of a path to its last.
    fn gap(&self, path: &str) -> Duration {
        let mut times = self.tries.iter().filter(|each| each.path == path).map(|each| each.at);
        let first = times.next().expect("a try");
        times.next_back().expect("a retry") - first
    }
}

/// Answers a try of a path before which there were `earlier` ones, or sends nothing: then the connection closes.
fn answer(path: &str, earlier: usize, stream: &mut TcpStream) {
    let by_path = |path: &str| path.split(['/', '?']).nth(2).and_then(|status| status.parse::<u16>().ok());
    let (status, retry_after) = match path {
        "/gone" => return,
        "/year" => (429, "31536000".to_owned()),
        // More than any integer holds.
        "/digits" => (503, "9".repeat(40)),
        "/far" => (503, "Fri, 31 Dec 9999 23:59:59 GMT".to_owned()),
        _ if path.starts_with("/always/") => (by_path(path).unwrap(), String::new()),
        // All others pass when they come again.
        _ if earlier > 0 => (200, String::new()),
        "/dropped" => return,
        "/seconds" => (429, "1".to_owned()),
        "/date" => (503, in_more_than_a_second()),
        "/unreadable" => (503, "soon".to_owned()),
        "/past" => (429, "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        _ => (by_path(path).unwrap(), String::new()),
    };
    let mut head = format!("HTTP/1.1 {status} Words\r\nConnection: close\r\n");
    if !retry_after.is_empty() {
        head += &format!("Retry-After: {retry_after}\r\n");
    }
    if (300..400).contains(&status) {
        head += "Location: /elsewhere\r\n";
    }
    if status != 204 {
        head += "Content-Length: 0\r\n";
    }
    // A client that has been stopped reads nothing; its test has failed then.
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
}

/// A date of HTTP has whole seconds: the second after the next one begins in more than a second.
fn in_more_than_a_second() -> String {
    let at = Timestamp::now() + SignedDuration::from_secs(2);
    DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap()
}
