//! The house rules that no compiler checks: which room may import which, and what the pure rooms may not name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms and ranks. Changing this table is a commit of its own, with its reason.
const RANKS: [(&str, u8); 19] = [
    ("time", 0),
    ("http1", 0),
    // The PROXY header before a connection: a codec like `http1`, and like it for whoever accepts or connects.
    ("proxy_protocol", 0),
    // One redactor for whatever is written or shown: both logs, reports of mistakes, the command line.
    ("redact", 0),
    ("telemetry", 1),
    ("limiter", 1),
    ("balance", 1),
    ("edit", 1),
    ("http2", 1),
    ("tls", 1),
    ("admission", 2),
    ("transport", 2),
    ("config", 3),
    ("dead_letter", 3),
    ("upstream", 3),
    ("proxy", 4),
    ("admin", 5),
    ("gateway", 6),
    ("cli", 7),
];

/// What a pure room may not name.
const FORBIDDEN: [(&str, &[&str]); 8] = [
    ("time", &["hyper", "http::", "tokio", "serde", "tracing", "std::net", "std::fs"]),
    ("limiter", &["hyper", "http::", "tokio", "serde", "tracing", "std::net", "std::fs"]),
    ("balance", &["hyper", "http::", "tokio", "serde", "tracing", "std::net", "std::fs"]),
    ("edit", &["hyper", "http::", "tokio", "serde", "tracing", "std::net", "std::fs", "std::time"]),
    ("http1", &["hyper", "http::", "tokio", "serde", "tracing", "std::net", "std::fs", "std::time"]),
    ("http2", &["hyper", "h2::", "http::", "tokio", "serde", "tracing", "std::net", "std::fs", "std::time"]),
    // It names addresses of std::net, and nothing there that is a socket.
    ("proxy_protocol", &["hyper", "http::", "tokio", "serde", "tracing", "Tcp", "Udp", "std::fs", "std::time"]),
    ("admission", &["hyper", "http::", "tokio", "serde", "tracing", "std::fs"]),
];

/// Lines of code in a file, without comments, blank lines and tests.
const MAX_CODE_LINES: usize = 450;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of each file by its room: without comments, and without the tests at its end.
fn code() -> BTreeMap<String, Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    files(&source(), &mut all);
    let mut rooms: BTreeMap<String, Vec<(PathBuf, String)>> = BTreeMap::new();
    for path in all {
        let inside = path.strip_prefix(source()).unwrap();
        if inside.components().count() < 2 {
            continue;
        }
        let room = inside.components().next().unwrap().as_os_str().to_str().unwrap().to_owned();
        let text = without_tests(&fs::read_to_string(&path).unwrap());
        rooms.entry(room).or_default().push((path.clone(), text));
    }
    rooms
}

/// A text without comments, `#[cfg(test)] mod name;` items, and the `#[cfg(test)] mod name {` at its end.
fn without_tests(text: &str) -> String {
    let mut kept = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            match lines.next() {
                Some(item) if item.trim_end().ends_with(';') => {}
                Some(item) if item.trim_start().starts_with("mod ") => break,
                Some(item) => kept.push(item),
                None => break,
            }
        } else if !line.trim_start().starts_with("//") {
            kept.push(line);
        }
    }
    kept.join("\n")
}

/// Names that follow `crate::` in a text: the room and what is taken from it.
fn imports(text: &str) -> Vec<(String, String)> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    text.match_indices("crate::")
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .map(|(at, prefix)| {
            let rest = &text[at + prefix.len()..];
            let room = word(rest);
            let inner = rest[room.len()..].strip_prefix("::").map(word).unwrap_or_default();
            (room, inner)
        })
        .collect()
}

fn rank(room: &str) -> Option<u8> {
    RANKS.iter().find(|(name, _)| *name == room).map(|(_, rank)| *rank)
}

#[test]
fn fields_of_requests_are_read_where_those_that_go_no_further_are_left_out() {
    let mut found = Vec::new();
    for (path, text) in code().remove("proxy").unwrap() {
        if path.components().any(|part| part.as_os_str() == "headers") {
            continue;
        }
        let reads = ["request.field", "request().field", "head.field(", ".known_fields("];
        let lines = text.lines().filter(|line| reads.iter().any(|read| line.contains(read)));
        found.extend(lines.map(|line| format!("{}: {}", path.file_name().unwrap().display(), line.trim())));
    }
    // Whether a server of HTTP/2 is told that trailers are taken.
    let told = "forward.rs: if to_h2 && head.field(b\"te\").is_some_and(|te| te.eq_ignore_ascii_case(b\"trailers\")) {";
    assert_eq!(found, [told], "read a request's fields by headers::passed, or by Seen");
}

#[test]
fn every_room_has_a_rank() {
    let rooms = code();
    assert!(rooms.len() >= 12, "the walk found only {rooms:?}", rooms = rooms.keys());
    for room in rooms.keys() {
        assert!(rank(room).is_some(), "src/{room} is not in the table of rooms");
    }
}

#[test]
fn imports_go_down_only() {
    let mut breaches = Vec::new();
    for (room, files) in code() {
        for (path, text) in files {
            for (other, _) in imports(&text) {
                if let (Some(own), Some(theirs)) = (rank(&room), rank(&other))
                    && other != room
                    && theirs >= own
                {
                    breaches.push(format!("{}: {room} (rank {own}) imports {other} (rank {theirs})", path.display()));
                }
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn outsiders_use_the_door() {
    let mut breaches = Vec::new();
    for (room, files) in code() {
        for (path, text) in files {
            for (other, inner) in imports(&text) {
                let is_module = source().join(&other).join(format!("{inner}.rs")).exists()
                    || source().join(&other).join(&inner).is_dir();
                if other != room && rank(&other).is_some() && !inner.is_empty() && is_module {
                    breaches.push(format!("{}: {other}::{inner} is not the door of {other}", path.display()));
                }
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn pure_rooms_stay_pure() {
    let rooms = code();
    let mut breaches = Vec::new();
    for (room, words) in FORBIDDEN {
        for (path, text) in &rooms[room] {
            for word in words {
                if text.contains(word) {
                    breaches.push(format!("{} names {word}", path.display()));
                }
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn the_wall_between_policy_and_protocol_stands() {
    // Headers copy a source to a sink: they know neither hyper nor a header map.
    for file in ["proxy/headers/mod.rs", "proxy/respond.rs", "proxy/rate_headers.rs"] {
        let text = without_tests(&fs::read_to_string(source().join(file)).unwrap());
        for word in ["hyper", "HeaderMap", "http::"] {
            assert_eq!(text.lines().find(|line| line.contains(word)), None, "{file} names {word}");
        }
    }
}

#[test]
fn files_stay_small_enough_to_read() {
    let mut long = Vec::new();
    for (path, text) in code().into_values().flatten() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let parent = fs::read_to_string(path.with_file_name("mod.rs")).unwrap_or_default();
        let is_test = parent.contains(&format!("#[cfg(test)]\nmod {name};"))
            || path.components().any(|part| part.as_os_str() == "tests");
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        if !is_test && lines > MAX_CODE_LINES {
            long.push(format!("{} has {lines} lines of code: split it", path.display()));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn every_import_names_its_room() {
    for (path, text) in code().into_values().flatten() {
        assert!(
            !text.contains("crate::{"),
            "{}: write a use per room, so that the walls can be checked",
            path.display()
        );
    }
}

#[test]
fn the_checks_above_can_fail() {
    let text =
        "use a;\n#[cfg(test)]\nmod golden;\nuse crate::proxy::X;\n// crate::no\n#[cfg(test)]\nmod tests {\n use b; }";
    assert_eq!(without_tests(text), "use a;\nuse crate::proxy::X;");
    let found = imports("use crate::proxy::Worker;\nlet x = crate::gateway::build::y;\nmycrate::z::w");
    let names: Vec<(&str, &str)> = found.iter().map(|(room, inner)| (room.as_str(), inner.as_str())).collect();
    assert_eq!(names, [("proxy", "Worker"), ("gateway", "build")]);
    assert!(rank("proxy").unwrap() >= rank("limiter").unwrap());
}

/// The assertions of a text, each on one line.
fn assertions(text: &str) -> Vec<String> {
    let starts = text.match_indices("assert").map(|(at, _)| &text[at..]);
    let whole = starts.filter(|rest| rest.starts_with("assert!(")).map(|rest| {
        let end = rest.find(";\n").unwrap_or(rest.len());
        rest[..end].split_whitespace().collect::<Vec<_>>().join(" ")
    });
    whole.collect()
}

/// Names that a text gives to durations, or to numbers that were made of them.
fn durations(text: &str) -> Vec<&str> {
    let statements = text.split(';').filter_map(|statement| statement.rsplit_once("let "));
    let measured = statements.filter(|(_, named)| {
        let value = named.split_once('=').map_or("", |(_, value)| value);
        // A block has statements of its own.
        !value.contains('{') && [".elapsed()", ".duration_since("].iter().any(|word| value.contains(word))
    });
    measured.map(|(_, named)| named.trim_start_matches("mut ").split([' ', ':']).next().unwrap_or_default()).collect()
}

/// Whether an assertion holds only on a machine that is quick enough: it bounds a duration from above. A textual look: a
/// comparison of what has elapsed, or with a length of time, also where either is a number.
fn bounds_time_from_above(assertion: &str, durations: &[&str]) -> bool {
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    let names_one = |text: &str| text.split(|c| !is_in_word(c)).any(|word| durations.contains(&word));
    let is_any = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
    let is_number = |text: &str| is_any(text, &[".as_secs", ".as_millis", ".as_micros", ".as_nanos"]);
    let is_elapsed = |text: &str| is_any(text, &["elapsed()", "took"]) || is_number(text) || names_one(text);
    // Of a constant, as a number; anything else may have been measured.
    let is_constant = |text: &str| text.match_indices(".as_").any(|(at, _)| text[..at].ends_with(char::is_uppercase));
    let is_length = |text: &str| text.contains("Duration::") || is_constant(text);
    // Words in quotes compare nothing.
    let code: String = assertion.split('"').step_by(2).collect();
    code.split("&&").flat_map(|clause| clause.split("||")).any(|clause| {
        if let Some((_, within)) = clause.split_once(".contains(&") {
            return is_elapsed(within);
        }
        let less = clause.split_once(" < ").or_else(|| clause.split_once(" <= "));
        let more = clause.split_once(" > ").or_else(|| clause.split_once(" >= "));
        less.or(more.map(|(left, right)| (right, left)))
            .is_some_and(|(smaller, larger)| is_elapsed(smaller) || is_length(larger))
    })
}

/// `tests/gateway/timing.rs` says how a test bounds a duration.
#[test]
fn tests_bound_durations_by_their_helper_alone() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("gateway");
    let mut found = Vec::new();
    files(&tests, &mut found);
    files(&tests.with_file_name("support"), &mut found);
    assert!(found.len() > 70, "only {} files", found.len());
    let mut wrong = Vec::new();
    for path in found.iter().filter(|path| !path.ends_with("timing.rs")) {
        let text = fs::read_to_string(path).unwrap();
        let names = durations(&text);
        let bounds = assertions(&text).into_iter().filter(|assertion| bounds_time_from_above(assertion, &names));
        wrong.extend(bounds.map(|assertion| format!("{}: {assertion}", path.display())));
    }
    assert!(wrong.is_empty(), "use assert_took, assert_lasted or assert_below of timing.rs:\n{}", wrong.join("\n"));
}

#[test]
fn a_bound_from_above_is_told_from_one_from_below() {
    for (assertion, bounds) in [
        ("assert!(started.elapsed() < Duration::from_secs(1), \"late\")", true),
        ("assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2))", true),
        ("assert!(PATIENCE > started.elapsed())", true),
        ("assert!(longest <= Duration::from_millis(5))", true),
        ("assert!(longest.as_millis() < 500, \"late\")", true),
        ("assert!(0.5 > longest.as_secs_f64())", true),
        ("assert!(longest <= PATIENCE.as_secs())", true),
        ("assert!((0.1..0.5).contains(&longest.as_secs_f64()))", true),
        ("assert!((10..20).contains(&took))", true),
        ("assert!((1..9).contains(&size))", false),
        ("assert!(came < 400)", true),
        ("assert!((0..400).contains(&came))", true),
        ("assert!(came > 400 && became < 5)", false),
        ("assert!(longest.as_millis() >= 500)", false),
        ("assert!(started.elapsed() >= Duration::from_secs(1))", false),
        ("assert!(took > STRETCH, \"took < {took:?}\")", false),
        ("assert!(lines <= started.elapsed().as_secs() + 1)", false),
        ("assert!(size < 5)", false),
    ] {
        assert_eq!(bounds_time_from_above(assertion, &["came"]), bounds, "{assertion}");
    }
    let text = "let started = Instant::now(); let mut came = started.elapsed().as_millis();\nlet x: u8 = 3; let t: Duration = a.duration_since(b);";
    assert_eq!(durations(text), ["came", "t"]);
    assert_eq!(assertions("a;\nassert!(\n    b < c,\n    d\n);\nassert_eq!(a, b);\n"), ["assert!( b < c, d )"]);
}
