//! The house rules that no compiler checks: which room of `src` may import which, and that crates that compute do nothing
//! else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms and ranks. Changing this table is a commit of its own, with its reason. Rooms that are crates of their own, in
/// `crates/`, are not here: their `Cargo.toml` says what they may import.
const RANKS: [(&str, u8); 4] = [
    ("admin", 0),
    ("gateway", 1),
    // Above `gateway`, whose rules it tries on logs without a gateway.
    ("simulate", 2),
    ("cli", 3),
];

/// Crates that compute: without a runtime, a socket, a file or a log, and so without the libraries that bring one.
const PURE: [&str; 13] = [
    "words",
    "time",
    "http1",
    "http2",
    "json",
    "jwt",
    "proxy_protocol",
    "fair",
    "limiter",
    "balance",
    "peers",
    "edit",
    "admission",
];

/// Libraries that these may depend on: they compute, too.
const COMPUTING: [&str; 12] = [
    "aws-lc-rs",
    "base64ct",
    "crc32c",
    "ipnet",
    "itoa",
    "jiff",
    "loom",
    "memchr",
    "regex-automata",
    "serde_json",
    "sha2",
    "siphasher",
];

/// Rooms of the data plane, the lowest first: a file imports from its own room and from those before it. `walk` and `flights` are
/// a file each.
const PROXY_ROOMS: [&str; 19] = [
    "headers",
    "answer",
    "deadlines",
    "snapshot",
    "client",
    "meters",
    "view",
    "endings",
    "flights",
    "scratch",
    "worker",
    "exchange",
    "decide",
    "forward",
    "tunnel",
    "defer",
    "walk",
    "serve",
    "accept",
];

/// Lines of code in a file, without comments, blank lines and tests.
const MAX_CODE_LINES: usize = 450;

/// Circles of files that there are: each file of one leads back to itself by what it names of the others. To be broken, one by
/// one; no file may enter one.
const CIRCLES: &[&[&str]] = &[
    &["admission/plans", "admission/route"],
    &["config/findings", "config/report"],
    &["dead_letter/reserve", "dead_letter/store"],
    &["http1/body", "http1/chunked"],
    &["http2/hpack/decoder", "http2/hpack/integer"],
    &[
        "limiter/algorithm/error",
        "limiter/algorithm/pace",
        "limiter/algorithm/penalty",
        "limiter/algorithm/ring",
        "limiter/algorithm/several",
        "limiter/algorithm/timer_wheel",
        "limiter/algorithm/warm_up",
    ],
    &[
        "limiter/decision",
        "limiter/permit",
        "limiter/policy",
        "limiter/report",
        "limiter/round",
        "limiter/ticket",
        "limiter/verdict",
    ],
    &["limiter/limit", "limiter/shard"],
    &["telemetry/access_log", "telemetry/access_text"],
    &["telemetry/group", "telemetry/page", "telemetry/reading", "telemetry/registry"],
    &["tls/server", "tls/tickets"],
    &["transport/h2/client", "transport/h2/to_server"],
    &["transport/h2/from_client", "transport/h2/server"],
    &["upstream/connect", "upstream/turn"],
];

/// Lines of code of a function.
const MAX_FUNCTION_LINES: usize = 70;

/// Functions that have more. To be split, one by one; none may be added.
const LONG_FUNCTIONS: &[&str] = &["proxy/serve/h1 serve", "proxy/tunnel/switched poll"];

/// The types of a name: one in a crate and one elsewhere may have the same name where both are obvious.
const MAX_TYPES_OF_A_NAME: usize = 2;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")
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

/// The code of each file by its room, which is a folder of `src` or a crate: without comments, and without the tests at its end.
fn code() -> BTreeMap<String, Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    files(&source(), &mut all);
    let folders = fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap().path().join("src"));
    for folder in folders.filter(|folder| folder.is_dir()) {
        files(&folder, &mut all);
    }
    let mut rooms: BTreeMap<String, Vec<(PathBuf, String)>> = BTreeMap::new();
    for path in all {
        let module = module(&source(), &path);
        let Some(room) = module.first().filter(|_| path.parent() != Some(&source())) else { continue };
        let text = without_tests(&fs::read_to_string(&path).unwrap());
        let text = if path.starts_with(crates()) { as_of_a_room(&text, room) } else { text };
        rooms.entry(room.clone()).or_default().push((path, text));
    }
    rooms
}

/// The code of a crate, as it would be if the crate were a room of `src`.
fn as_of_a_room(text: &str, room: &str) -> String {
    let (mut found, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("crate::") {
        let is_word = rest[..at].ends_with(|c: char| is_in_word(c) || c == '$');
        found.extend([&rest[..at], "crate::"]);
        rest = &rest[at + "crate::".len()..];
        if !is_word {
            found.extend([room, "::"]);
        }
    }
    found.push_str(rest);
    found.replace("sluicegate_", "crate::")
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

/// Whether a file is compiled for tests alone.
fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_string_lossy();
    let door = ["mod.rs", "lib.rs"].map(|door| path.with_file_name(door)).into_iter().find(|door| door.exists());
    let parent = door.map(|door| fs::read_to_string(door).unwrap()).unwrap_or_default();
    name == "tests"
        || parent.contains(&format!("#[cfg(test)]\nmod {name};"))
        || path.components().any(|part| part.as_os_str() == "tests")
}

fn is_crate(room: &str) -> bool {
    crates().join(room).exists()
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
    assert_eq!(found, Vec::<String>::new(), "read a request's fields by headers::passed, or by RequestContext");
}

#[test]
fn every_room_has_a_rank() {
    let rooms = code();
    assert!(rooms.len() >= 20, "the walk found only {rooms:?}", rooms = rooms.keys());
    for room in rooms.keys() {
        let is_folder = source().join(room).is_dir();
        assert_ne!(is_crate(room), is_folder, "{room} is a crate and a folder of src");
        assert!(is_crate(room) || rank(room).is_some(), "src/{room} is not in the table of rooms");
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

/// The dependencies that a crate is built with, on any target. Each is declared in the workspace.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
    let tables = targets.filter_map(toml::Value::as_table).chain([manifest]);
    let kinds = tables.flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)));
    let mut names = Vec::new();
    for (name, source) in kinds.flatten().filter_map(toml::Value::as_table).flatten() {
        assert_eq!(source["workspace"].as_bool(), Some(true), "{name} = {source}: declare it in the workspace");
        names.push(name.clone());
    }
    names
}

#[test]
fn crates_that_compute_do_nothing_else() {
    let code = code();
    for name in PURE {
        let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
        for needed in dependencies(&manifest.parse().unwrap()) {
            let own = needed.strip_prefix("sluicegate-").map(|own| own.replace('-', "_"));
            let computes = own.map_or(COMPUTING.contains(&&*needed), |own| PURE.contains(&&*own));
            assert!(computes, "crates/{name} depends on {needed}");
        }
        for (path, text) in code[name].iter().filter(|(path, _)| !is_test(path)) {
            for word in
                ["std::fs", "std::env", "std::process", "std::os::", "Tcp", "Udp", "UnixStream", "ToSocketAddrs"]
            {
                assert!(!text.contains(word), "{} names {word}", path.display());
            }
        }
    }
}

/// `level = "info,sluicegate::telemetry=debug"` filters by rooms, whether they are folders or crates.
#[test]
fn crates_log_under_the_names_of_rooms() {
    let calls = ["trace!", "debug!", "info!", "warn!", "error!", "event!", "span!", "#[instrument"];
    let mut found = 0;
    for (_, files) in code().into_iter().filter(|(room, _)| is_crate(room)) {
        for (path, text) in files {
            let target = format!("target: \"sluicegate::{}\"", module(&source(), &path).join("::"));
            let calls = calls.iter().flat_map(|call| text.match_indices(call).map(|(at, _)| &text[at + call.len()..]));
            for arguments in calls {
                let arguments = arguments.trim_start_matches(['(', '{']).trim_start();
                assert!(arguments.starts_with(&target), "{}: begin with {target}", path.display());
                found += 1;
            }
        }
    }
    assert!(found > 50, "{found} calls");
}

#[test]
fn the_wall_between_policy_and_protocol_stands() {
    // Fields and answers are bytes that go from a source to a sink: these rooms know neither hyper nor a header map.
    let is_inside =
        |path: &Path| path.parent().is_some_and(|room| room.ends_with("headers") || room.ends_with("answer"));
    let files = code().remove("proxy").unwrap().into_iter().filter(|(path, _)| is_inside(path));
    let files = files.collect::<Vec<_>>();
    assert!(files.len() > 8, "only {} files", files.len());
    for (path, text) in files {
        for word in ["hyper", "HeaderMap", "http::"] {
            assert_eq!(text.lines().find(|line| line.contains(word)), None, "{} names {word}", path.display());
        }
    }
}

#[test]
fn files_stay_small_enough_to_read() {
    let mut long = Vec::new();
    for (path, text) in code().into_values().flatten() {
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        if !is_test(&path) && lines > MAX_CODE_LINES {
            long.push(format!("{} has {lines} lines of code: split it", path.display()));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// A module by its path in the crate, such as `proxy::headers` for `proxy/headers/mod.rs`.
type Module = Vec<String>;

/// The module of a file. A crate's begin with its name, as those of a room do.
fn module(source: &Path, path: &Path) -> Module {
    let inside = path.strip_prefix(source).or_else(|_| path.strip_prefix(crates())).unwrap().with_extension("");
    let parts = inside.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| !["mod", "lib", "src"].contains(&part.as_str())).collect()
}

/// The code of each file without tests, by its module.
fn modules(source: &Path, files: &[(PathBuf, String)]) -> BTreeMap<Module, String> {
    let code = files.iter().filter(|(path, _)| !is_test(path));
    code.map(|(path, text)| (module(source, path), text.clone())).collect()
}

fn is_in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Every path of two or more parts that a code has behind `prefix`; those of a group in braces one by one.
fn paths(code: &str, prefix: &[String], found: &mut Vec<Module>) {
    let mut rest = code;
    while let Some(start) = rest.find(is_in_word) {
        rest = &rest[start..];
        let mut path = prefix.to_vec();
        loop {
            let word = rest.find(|c| !is_in_word(c)).unwrap_or(rest.len());
            path.push(rest[..word].to_owned());
            rest = &rest[word..];
            let Some(more) = rest.strip_prefix("::") else { break };
            rest = more;
            if let Some(group) = more.strip_prefix('{') {
                let mut open = 1;
                let end = group.find(|c| {
                    open += i32::from(c == '{') - i32::from(c == '}');
                    open == 0
                });
                let (group, behind) = group.split_at(end.unwrap_or(group.len()));
                paths(group, &path, found);
                (rest, path) = (behind, Vec::new());
                break;
            }
            if !more.starts_with(is_in_word) {
                break;
            }
        }
        if path.len() > 1 {
            found.push(path);
        }
    }
}

/// The module of the file that has what a path in `from` names. A name that a module has from another one by `use` is
/// that one's.
fn resolve(path: &[String], from: &Module, modules: &BTreeMap<Module, String>, hops: usize) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    let mut whole = match first.as_str() {
        "crate" => rest.to_vec(),
        "self" => [from, rest].concat(),
        "super" => {
            let supers = path.iter().take_while(|part| *part == "super").count();
            [&from[..from.len().checked_sub(supers)?], &path[supers..]].concat()
        }
        _ => [from, path].concat(),
    };
    let named = whole.clone();
    while !modules.contains_key(&whole) {
        whole.pop()?;
    }
    let is_child = whole.len() > from.len();
    if !is_child && !["crate", "self", "super"].contains(&first.as_str()) {
        return None;
    }
    let Some(name) = named.get(whole.len()).filter(|_| hops > 0) else { return Some(whole) };
    let mut imports = Vec::new();
    paths(&modules[&whole], &[], &mut imports);
    let mut origins = imports.iter().filter(|import| import.last() == Some(name));
    let origin =
        origins.find_map(|import| resolve(import, &whole, modules, hops - 1).filter(|origin| *origin != whole));
    Some(origin.unwrap_or(whole))
}

/// Files of a room each of which leads back to itself by what it names of the others. A file that has others below it, such
/// as a door, may name these: else it would be in a circle with each that names what they share.
fn circles(modules: &BTreeMap<Module, String>) -> BTreeSet<BTreeSet<String>> {
    let names = |module: &Module| {
        let mut all = Vec::new();
        paths(&modules[module], &[], &mut all);
        let all = all.iter().filter_map(|path| resolve(path, module, modules, 4));
        all.filter(|other| !other.starts_with(module)).collect::<BTreeSet<Module>>()
    };
    let arrows: BTreeMap<&Module, BTreeSet<Module>> = modules.keys().map(|module| (module, names(module))).collect();
    let reached = |from: &Module| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = next.pop() {
            next.extend(arrows[&module].iter().filter(|other| reached.insert((*other).clone())).cloned());
        }
        reached
    };
    let all: BTreeMap<&Module, BTreeSet<Module>> = modules.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &Module| {
        let members = all[module].iter().filter(|other| all[other].contains(module));
        members.map(|member| member.join("/")).collect::<BTreeSet<String>>()
    };
    modules.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

/// Functions with more than this many lines of code, the first and the last included. rustfmt has indented them.
fn long_functions(code: &str, most: usize) -> Vec<String> {
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim().is_empty()).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut long = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((before, name)) = line.split_once("fn ") else { continue };
        if !before.trim_start().chars().all(|c| c.is_alphanumeric() || " ()".contains(c)) || line.ends_with([';', '}'])
        {
            continue;
        }
        let Some(length) = lines[at + 1..]
            .iter()
            .position(|end| indent(end) == indent(line) && (end.trim_start().starts_with('}') || end.ends_with(';')))
        else {
            continue;
        };
        if length + 2 > most {
            long.push(name.chars().take_while(|c| is_in_word(*c)).collect());
        }
    }
    long
}

#[test]
fn circles_of_files_only_go() {
    let found: BTreeSet<_> = code().values().flat_map(|files| circles(&modules(&source(), files))).collect();
    let listed = CIRCLES.iter().map(|circle| circle.iter().map(ToString::to_string).collect()).collect();
    assert_eq!(circles_against_list(&found, &listed), Vec::<String>::new());
}

/// The room of the data plane that a module is in, by its place in the table; `None`: it is the door of all.
fn floor(module: &Module) -> Option<usize> {
    let room = module.get(1)?;
    let place = PROXY_ROOMS.iter().position(|known| known == room);
    assert!(place.is_some(), "crates/proxy/src/{room} is not in the table of rooms of the data plane");
    place
}

/// Imports between rooms of the data plane that go up, each as one line.
fn upward(modules: &BTreeMap<Module, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (module, text) in modules {
        let mut all = Vec::new();
        paths(text, &[], &mut all);
        let Some(own) = floor(module) else { continue };
        for other in all.iter().filter_map(|path| resolve(path, module, modules, 4)) {
            if floor(&other).is_some_and(|theirs| theirs > own) {
                found.insert(format!("{} imports {}", module.join("/"), other.join("/")));
            }
        }
    }
    found
}

#[test]
fn rooms_of_the_data_plane_import_downwards() {
    let modules = modules(&source(), &code()["proxy"]);
    assert!(modules.len() > 80, "the walk found only {} files", modules.len());
    let upward = upward(&modules);
    assert_eq!(upward, BTreeSet::new(), "imports that go up: move what both need down, or the caller up");
    let rooms: BTreeSet<&str> = modules.keys().filter_map(|module| module.get(1).map(String::as_str)).collect();
    assert_eq!(rooms, BTreeSet::from(PROXY_ROOMS), "the table names rooms that are not there");
}

#[test]
fn an_import_that_goes_up_is_told_from_one_that_goes_down() {
    let upward = |files: &[(&str, &str)]| {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (Path::new("src/proxy").join(path), (*text).to_owned())).collect();
        upward(&modules(Path::new("src"), &files)).into_iter().collect::<Vec<_>>()
    };
    let doors = [
        ("mod.rs", "mod client;\nmod serve;\npub use serve::S;"),
        ("client/mod.rs", "mod c;\npub(super) use c::C;"),
        ("serve/mod.rs", "mod s;\npub use s::S;"),
    ];
    let down = [("client/c.rs", "use crate::http1::X;"), ("serve/s.rs", "use crate::proxy::client::C;")];
    assert_eq!(upward(&[&doors[..], &down[..]].concat()), Vec::<String>::new());
    for path in ["crate::proxy::serve::S", "crate::proxy::S", "super::super::serve::S", "super::super::{x::Y, S}"] {
        let up = [("client/c.rs", &*format!("use {path};")), ("serve/s.rs", "")];
        assert_eq!(upward(&[&doors[..], &up[..]].concat()), ["proxy/client/c imports proxy/serve/s"], "{path}");
    }
}

/// How the circles that there are differ from those of the list.
fn circles_against_list(found: &BTreeSet<BTreeSet<String>>, listed: &BTreeSet<BTreeSet<String>>) -> Vec<String> {
    let added = found.difference(listed).map(|circle| {
        if listed.iter().any(|larger| circle.is_subset(larger)) {
            format!("{circle:?} is left of a larger circle: write the smaller one into CIRCLES")
        } else {
            format!("{circle:?} is a circle that grows, or a new one: let one of them not name the next")
        }
    });
    let is_left = |circle: &&BTreeSet<String>| found.iter().any(|left| !left.is_disjoint(circle));
    let gone = listed.difference(found).filter(|circle| !is_left(circle));
    added.chain(gone.map(|circle| format!("{circle:?} is no circle any more: remove it from CIRCLES"))).collect()
}

#[test]
fn long_functions_only_go() {
    let mut found = BTreeSet::new();
    for files in code().into_values() {
        for (module, text) in modules(&source(), &files) {
            let long = long_functions(&text, MAX_FUNCTION_LINES);
            found.extend(long.into_iter().map(|name| format!("{} {name}", module.join("/"))));
        }
    }
    let listed: BTreeSet<String> = LONG_FUNCTIONS.iter().map(ToString::to_string).collect();
    let added =
        found.difference(&listed).map(|name| format!("{name} is longer than {MAX_FUNCTION_LINES} lines: split it"));
    let gone = listed.difference(&found).map(|name| format!("{name} is short: remove it from LONG_FUNCTIONS"));
    assert_eq!(added.chain(gone).collect::<Vec<_>>(), Vec::<String>::new());
}

/// The functions of a text that are named like a question and may change what they are asked of: through `&mut self`, or through a
/// cell or an atomic.
fn questions_that_change(text: &str) -> Vec<&str> {
    const CHANGES: [&str; 4] = [".borrow_mut()", ".swap(", ".fetch_", ".compare_exchange"];
    let named = ["fn is_", "fn has_"].iter().flat_map(|name| text.match_indices(name));
    let functions = named.filter_map(|(at, _)| {
        let indent = text[..at].rsplit('\n').next().map_or(0, |line| line.len() - line.trim_start().len());
        let end = format!("\n{}}}", " ".repeat(indent));
        let (name, rest) = text[at + "fn ".len()..].split_once('(')?;
        Some((name, rest.split(&end).next().unwrap_or_default()))
    });
    let changes =
        |rest: &str| rest.trim_start().starts_with("&mut self") || CHANGES.iter().any(|change| rest.contains(change));
    functions.filter(|(_, rest)| changes(rest)).map(|(name, _)| name).collect()
}

#[test]
fn questions_change_nothing() {
    let code: Vec<_> = code().into_values().flatten().collect();
    assert!(code.iter().any(|(_, text)| text.contains("fn is_") && text.contains("&mut self")));
    let found: Vec<&str> = code.iter().flat_map(|(_, text)| questions_that_change(text)).collect();
    assert_eq!(found, Vec::<&str>::new(), "name it by what it does");
    let text = "fn is_a(&self)\nfn has_b(\n    &mut self,\n)\nfn it_is_c(&mut self)\npub fn is_d<T>(&mut self, t: T)";
    assert_eq!(questions_that_change(text), ["is_d<T>", "has_b"]);
    let text = "    fn is_a(&self) -> bool {\n        self.b.swap(c)\n    }\n    fn is_b(&self) {\n    }\n    fn c() {\n        d.fetch_add(1)\n    }\n";
    assert_eq!(questions_that_change(text), ["is_a"]);
}

/// The types of a text: of its file and of modules in it, none within a function.
fn types(text: &str) -> Vec<&str> {
    let items = text.lines().map(|line| match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, item)| item),
        Some(rest) => rest.trim_start(),
        None => line,
    });
    let named = items.filter_map(|item| {
        let (kind, rest) = item.split_once(' ')?;
        let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
        is_type.then(|| rest.split(|c| !is_in_word(c)).next().unwrap_or_default())
    });
    named.collect()
}

#[test]
fn a_name_stands_for_two_types_at_most() {
    let mut files_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in code().into_values().flatten().filter(|(path, _)| !is_test(path)) {
        for name in types(&text) {
            files_of.entry(name.to_owned()).or_default().push(path.display().to_string());
        }
    }
    assert!(files_of.len() > 1_000, "{}", files_of.len());
    let found: Vec<_> = files_of.into_iter().filter(|(_, files)| files.len() > MAX_TYPES_OF_A_NAME).collect();
    assert_eq!(found, [], "name the new one by what it is in its field");
    let text = "pub struct A<T>;\npub(in super::b) enum B {\npub(crate) trait C: A {\ntype D = A;\nlet e = 1;\n    type E = A;";
    assert_eq!(types(text), ["A", "B", "C", "D"]);
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
    let text = "use crate::a::B;\nuse sluicegate_time::Tick;\n$crate::C; pub(crate) fn f(_: mycrate::D) {}";
    let room = "use crate::r::a::B;\nuse crate::time::Tick;\n$crate::C; pub(crate) fn f(_: mycrate::D) {}";
    assert_eq!(as_of_a_room(text, "r"), room);
    assert!(rank("gateway").unwrap() >= rank("admin").unwrap());
}

#[test]
fn a_circle_is_found_whatever_way_its_files_name_each_other() {
    let circles = |files: &[(&str, &str)]| {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (Path::new("src").join(path), (*text).to_owned())).collect();
        let found = circles(&modules(Path::new("src"), &files)).into_iter();
        found.map(|circle| circle.into_iter().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let door = ("r/mod.rs", "mod a;\nmod b;\npub use a::A;\npub use b::{self, B};\n");
    let a = ("r/a.rs", "use super::b::B;\nfn f() -> std::fmt::Result { super::b::c(B::new()) }");
    assert_eq!(circles(&[door, a, ("r/b.rs", "use std::fmt;\nfn c(_: crate::other::a::A) {}")]), Vec::<String>::new());
    for back in [
        "use super::a::A;",
        "use crate::r::a;",
        "use super::{A, C};",
        "use crate::r::{x::{Y}, a::A};",
        "fn f(_: super::A) {}",
    ] {
        assert_eq!(circles(&[door, a, ("r/b.rs", back)]), ["r/a r/b"], "{back}");
    }
    // The items of the door itself, and files below files.
    assert_eq!(
        circles(&[("r/mod.rs", "mod a;\nfn f() { a::g() }"), ("r/a.rs", "use super::f;")]),
        Vec::<String>::new()
    );
    let below =
        [("r/mod.rs", ""), ("r/a/mod.rs", "use super::b::B;"), ("r/a/c.rs", ""), ("r/b.rs", "use super::a::c::C;")];
    assert_eq!(circles(&below), Vec::<String>::new());
    let back = [
        ("r/mod.rs", ""),
        ("r/a/c.rs", "use super::super::b::B;"),
        ("r/a/mod.rs", ""),
        ("r/b.rs", "use super::a::c::C;"),
    ];
    assert_eq!(circles(&back), ["r/a/c r/b"]);
}

#[test]
fn the_list_of_circles_holds_in_both_directions() {
    let set = |circles: &[&str]| -> BTreeSet<BTreeSet<String>> {
        circles.iter().map(|circle| circle.split(' ').map(str::to_owned).collect()).collect()
    };
    for (found, listed, says) in [
        (&["a b"][..], &["a b"][..], None),
        (&["a b", "c d"], &["a b"], Some("let one of them")),
        (&["a b c"], &["a b"], Some("let one of them")),
        (&["a b"], &["a b c"], Some("write the smaller")),
        (&[], &["a b"], Some("remove it")),
    ] {
        let said = circles_against_list(&set(found), &set(listed));
        assert_eq!(said.len(), usize::from(says.is_some()), "{said:?}");
        assert!(says.is_none_or(|says| said[0].contains(says)), "{said:?}");
    }
}

#[test]
fn a_long_function_is_told_from_a_short_one() {
    let text = "pub fn one(\n    a: u8,\n) -> u8 {\n    a\n}\n\nimpl X {\n    pub(super) async fn two() {\n        if x {\n        }\n\n    }\n    fn no();\n}\nfn three() {}\n";
    assert_eq!(long_functions(text, 3), ["one", "two"]);
    assert_eq!(long_functions(text, 4), ["one"]);
    assert_eq!(long_functions(text, 5), Vec::<String>::new());
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

/// The sentences of a text's doc comments, each with the number of the line in which it begins. A paragraph, a heading and
/// an item of a list begin one, whatever is before them.
fn doc_sentences(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).unwrap_or_default().trim();
        is_open &= !doc.is_empty() && !["- ", "* ", "> ", "#"].iter().any(|mark| doc.starts_with(mark));
        for word in doc.trim_start_matches(['-', '*', '>', '#']).split_whitespace() {
            match all.last_mut().filter(|_| is_open) {
                Some((_, sentence)) => sentence.extend([" ", word]),
                None => all.push((at + 1, word.to_owned())),
            }
            is_open = !word.trim_end_matches([')', '"', '*']).ends_with(['.', '!', '?']);
        }
    }
    all
}

/// Whether a sentence begins like a question and asks nothing: its reader has to find out its subject.
fn is_riddle(sentence: &str) -> bool {
    let words = sentence.trim_matches(['(', ')', '"', '*']);
    let first = words.split(|c| !is_in_word(c)).next();
    first.is_some_and(|word| ["What", "Who", "Whose", "Which"].contains(&word)) && !words.ends_with('?')
}

#[test]
fn doc_comments_say_what_they_are_about() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    // A package has no crates but its own.
    for room in ["src", "tests", "benches", "examples", "crates", "fuzz/fuzz_targets"] {
        let room = root.join(room);
        if room.is_dir() {
            files(&room, &mut found);
        }
    }
    assert!(found.len() > 600, "the walk found only {} files", found.len());
    let mut riddles = Vec::new();
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        let inside = path.strip_prefix(root).unwrap().display();
        let sentences = doc_sentences(&text).into_iter().filter(|(_, sentence)| is_riddle(sentence));
        riddles.extend(sentences.map(|(line, sentence)| format!("{inside}:{line}: {sentence}")));
    }
    let remedy = "begin with the subject: \"The outcome.\" for \"What became of it.\", \"The client that is served next.\" for \
                  \"Whose turn it is.\"";
    assert!(riddles.is_empty(), "{remedy}\n{}", riddles.join("\n"));
}

#[test]
fn a_riddle_is_told_from_a_question_and_from_a_sentence_with_a_subject() {
    let riddles = |text: &str| {
        let sentences = doc_sentences(text).into_iter().filter(|(_, sentence)| is_riddle(sentence));
        sentences.map(|(line, _)| line).collect::<Vec<_>>()
    };
    for text in
        ["/// What became of it.", "    /// Whose; `None`: nobody's.", "//! **Which** it is", "/// Who? Who asks."]
    {
        assert_eq!(riddles(text), [1], "{text}");
    }
    for text in [
        "/// The outcome.",
        "/// What became of\n/// it?",
        "/// The one\n/// Who asks.",
        "// What became of it.",
        "/// [`Whose`] it is.",
        "/// Whatever it is.",
        "fn f() {} /// What?",
    ] {
        assert_eq!(riddles(text), Vec::<usize>::new(), "{text}");
    }
    assert_eq!(
        riddles("/// Ends. What\n/// follows (1.5).\n/// One: \n/// - Who asks;\n/// 2. Which one;\n///\n/// Whose?"),
        [1, 4, 5]
    );
    assert_eq!(riddles("/// No end\nWhat;\n/// What has no end\n#[test]\n/// Who has"), [3, 5]);
}
