//! `CONTRIBUTING.md` is true: its paths and commands exist, its map has every room, its walk names functions that are there, and
//! its diffs fit the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../CONTRIBUTING.md");
const RULES: &str = include_str!("architecture.rs");

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of the crates in `crates/`.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(repository().join("crates")).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|folder| folder.file_name().into_string().unwrap()).collect()
}

fn text_of(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The page without its blocks of diffs, and the lines of each of these.
fn prose_and_diffs() -> (String, Vec<Vec<&'static str>>) {
    let (mut prose, mut diffs, mut is_in_diff) = (String::new(), Vec::new(), false);
    for line in PAGE.lines() {
        match (is_in_diff, line) {
            (false, "```diff") => {
                is_in_diff = true;
                diffs.push(Vec::new());
            }
            (true, "```") => is_in_diff = false,
            (true, _) => diffs.last_mut().unwrap().push(line),
            (false, _) => prose.extend([line, "\n"]),
        }
    }
    (prose, diffs)
}

/// The texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The part of a diff that is about one place in one file.
#[derive(Debug)]
struct Hunk {
    file: String,
    /// The lines that have to be there, one behind the other.
    before: Vec<&'static str>,
    /// The numbers of lines in its head: before and after.
    lengths: [usize; 2],
    /// The lines that it has, before and after.
    counted: [usize; 2],
}

/// The hunks of a diff, and the files that it makes.
fn read_diff(lines: &[&'static str]) -> (Vec<Hunk>, BTreeSet<String>) {
    let (mut hunks, mut made) = (Vec::<Hunk>::new(), BTreeSet::new());
    let (mut file, mut is_new) = (String::new(), false);
    for line in lines {
        if let Some(old) = line.strip_prefix("--- ") {
            is_new = old == "/dev/null";
        } else if let Some(new) = line.strip_prefix("+++ b/") {
            new.clone_into(&mut file);
            if is_new {
                made.insert(file.clone());
            }
        } else if let Some(head) = line.strip_prefix("@@ ") {
            let length = |part: &str| part.split_once(',').map_or(1, |(_, length)| length.parse().unwrap());
            let [old, new] = [0, 1].map(|part| length(head.split(' ').nth(part).unwrap()));
            hunks.push(Hunk { file: file.clone(), before: Vec::new(), lengths: [old, new], counted: [0, 0] });
        } else {
            let hunk = hunks.last_mut().unwrap_or_else(|| panic!("a line before the first @@: {line}"));
            let (sign, text) = line.split_at_checked(1).unwrap_or((" ", ""));
            hunk.counted[0] += usize::from(sign != "+");
            hunk.counted[1] += usize::from(sign != "-");
            match sign {
                " " | "-" => hunk.before.push(text),
                "+" => {}
                _ => panic!("a line of a diff begins with a space, - or +: {line}"),
            }
        }
    }
    (hunks, made)
}

/// The first line of `before` that the file does not have where it should be; `None`: the hunk fits.
fn misfit<'h>(before: &[&'h str], text: &str) -> Option<&'h str> {
    let lines: Vec<&str> = text.lines().collect();
    let matched = |at: usize| lines[at..].iter().zip(before).take_while(|(line, wanted)| line == wanted).count();
    let best = (0..lines.len()).map(matched).max().unwrap_or_default();
    before.get(best).copied()
}

#[test]
fn every_diff_fits_the_code() {
    let (_, diffs) = prose_and_diffs();
    assert!(diffs.len() >= 8, "{} diffs", diffs.len());
    for diff in diffs {
        let (hunks, made) = read_diff(&diff);
        assert!(!hunks.is_empty(), "no hunk in {diff:?}");
        for hunk in hunks {
            let file = &hunk.file;
            assert_eq!(hunk.counted, hunk.lengths, "the head of a hunk of {file} counts other lines than it has");
            if made.contains(file) {
                assert!(!repository().join(file).exists(), "{file} is there already: name another in CONTRIBUTING.md");
                continue;
            }
            let misfit = misfit(&hunk.before, &text_of(file));
            assert_eq!(misfit, None, "{file} has changed: make the diff in CONTRIBUTING.md anew, and try it");
        }
    }
}

#[test]
fn a_diff_that_does_not_fit_is_found() {
    let text = "a\nb\nc\nb\nd\n";
    assert_eq!(misfit(&["b", "c"], text), None);
    assert_eq!(misfit(&["b", "d"], text), None);
    assert_eq!(misfit(&["b", "a"], text), Some("a"));
    assert_eq!(misfit(&["c", "d"], text), Some("d"), "b is between them");
    assert_eq!(misfit(&["e"], text), Some("e"));
    let (hunks, made) = read_diff(&["--- a/x", "+++ b/x", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]);
    assert_eq!((&*hunks[0].file, &hunks[0].before[..]), ("x", &["a", "b"][..]));
    assert_eq!((hunks[0].lengths, hunks[0].counted), ([2, 2], [2, 2]));
    assert!(made.is_empty());
    let (_, made) = read_diff(&["--- /dev/null", "+++ b/y", "@@ -0,0 +1 @@", "+a"]);
    assert!(made.contains("y"));
}

#[test]
fn every_path_is_there() {
    let (prose, diffs) = prose_and_diffs();
    let made: BTreeSet<String> = diffs.iter().flat_map(|diff| read_diff(diff).1).collect();
    let roots = ["src/", "tests/", "docs/", "benches/", "fuzz/", "crates/", "examples/", "packaging/"];
    let paths: Vec<&str> = quoted(&prose).filter(|text| roots.iter().any(|root| text.starts_with(root))).collect();
    assert!(paths.len() > 100, "{paths:?}");
    for path in paths {
        assert!(repository().join(path).exists() || made.contains(path), "CONTRIBUTING.md names {path}");
    }
}

#[test]
fn every_target_of_make_and_every_test_binary_is_there() {
    let (prose, _) = prose_and_diffs();
    let makefile = text_of("Makefile");
    for target in quoted(&prose).filter_map(|text| text.strip_prefix("make ")?.split(' ').next()) {
        assert!(makefile.lines().any(|line| line.starts_with(&format!("{target}:"))), "make {target}");
    }
    let tests = quoted(&prose).filter_map(|text| text.split_once("--test ")).map(|(_, rest)| rest);
    for name in tests.map(|rest| rest.split(' ').next().unwrap()) {
        let is_there =
            |place: &Path| place.join(format!("{name}.rs")).exists() || place.join(name).join("main.rs").exists();
        let mut places = crates().into_iter().map(|name| repository().join("crates").join(name).join("tests"));
        assert!(
            is_there(&repository().join("tests")) || places.any(|place| is_there(&place)),
            "cargo test --test {name}"
        );
    }
}

#[test]
fn the_map_has_every_room_with_its_rank() {
    let table = RULES.split_once("const RANKS").unwrap().1.split_once("];").unwrap().0;
    let rooms: Vec<(&str, &str)> = table
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\"")?.strip_suffix("),")?.split_once("\", "))
        .collect();
    assert!(rooms.len() > 3, "{rooms:?}");
    for (room, rank) in &rooms {
        let row = format!("| {rank} | `src/{room}` | ");
        assert!(PAGE.lines().any(|line| line.starts_with(&row)), "the map lacks {row:?}");
    }
    let rows = PAGE.lines().filter(|line| {
        line.strip_prefix("| ").and_then(|row| row.split_once(" | `src/")).is_some_and(|(rank, rest)| {
            rank.parse::<u8>().is_ok() && rest.split_once('`').is_some_and(|(path, _)| !path.contains('/'))
        })
    });
    assert_eq!(rows.count(), rooms.len(), "a row of the map for each room");
    for name in crates() {
        let row = format!("| `crates/{name}` | ");
        assert!(PAGE.lines().any(|line| line.starts_with(&row)), "the map lacks {row:?}");
    }
}

#[test]
fn the_rooms_of_the_data_plane_stand_in_the_order_of_the_walk() {
    let table = RULES.split_once("const PROXY_ROOMS").unwrap().1.split_once("];").unwrap().0;
    let mut rooms: Vec<&str> =
        table.lines().filter_map(|line| line.trim().strip_suffix("\",")?.strip_prefix('"')).collect();
    rooms.reverse();
    let section = PAGE.split_once("### The rooms of the data plane").unwrap().1.split_once("###").unwrap().0;
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `crates/proxy/src/")?.split_once('`'));
    let shown: Vec<&str> = rows.map(|(path, _)| path.trim_end_matches(".rs")).collect();
    assert_eq!(shown, rooms);
}

#[test]
fn the_walk_names_functions_that_are_there() {
    let section = PAGE.split_once("## The walk of one request").unwrap().1.split_once("\n## ").unwrap().0;
    let mut steps = 0;
    for row in section.lines().filter(|line| line.contains("| `src/") || line.contains("| `crates/")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, file, functions, ..] = cells[..] else { panic!("{row}") };
        let text = text_of(file.trim_matches('`'));
        for function in quoted(functions) {
            let name = function.rsplit("::").next().unwrap();
            let is_there = ["(", "<"].iter().any(|next| text.contains(&format!("fn {name}{next}")));
            assert!(is_there, "{file} has no function {function}");
        }
        steps += 1;
    }
    assert!(steps >= 15, "{steps} steps");
}

/// The text of all files below a directory.
fn all_code(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all_code(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn types_that_the_page_names_are_there() {
    let (prose, _) = prose_and_diffs();
    let mut code = String::new();
    all_code(&repository().join("src"), &mut code);
    all_code(&repository().join("tests"), &mut code);
    all_code(&repository().join("crates"), &mut code);
    let first_word = |text: &str| text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    let is_type = |name: &&str| {
        name.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains(|c: char| c.is_ascii_lowercase())
    };
    let types: BTreeSet<&str> = quoted(&prose)
        .map(|text| &text[..first_word(text)])
        .filter(is_type)
        // Files, and the algorithm that a diff makes.
        .filter(|name| !["Cargo", "Makefile", "Spaced"].contains(name))
        .collect();
    assert!(types.len() > 20, "{types:?}");
    for name in types {
        let forms = ["struct", "enum", "trait", "type"].map(|kind| format!("{kind} {name}"));
        let is_there = forms.iter().any(|form| {
            code.match_indices(form).any(|(at, form)| !code[at + form.len()..].starts_with(char::is_alphanumeric))
        });
        assert!(is_there, "CONTRIBUTING.md names {name}");
    }
}

#[test]
fn every_link_of_the_contents_leads_to_a_heading() {
    let headings = PAGE.lines().filter(|line| line.starts_with("##")).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title.chars().filter(|c| c.is_alphanumeric() || " -".contains(*c)).collect::<String>().replace(' ', "-")
    });
    let headings: BTreeSet<String> = headings.collect();
    let links: Vec<&str> = PAGE.split("](#").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)).collect();
    assert!(links.len() > 10, "{links:?}");
    for link in links {
        assert!(headings.contains(link), "no heading for #{link}");
    }
}
