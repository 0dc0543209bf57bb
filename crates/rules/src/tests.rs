use proptest::prelude::*;

use super::testing::{self, Commented, File};
use super::*;

const FILE: &str = "\
# The file.
[[listener]]
address = \"127.0.0.1:8080\"

# Limits.

# For everybody.
[[limit]]   # one
name = \"all\"
rate = \"10/s\"     # as measured
#burst = 20
exempt = [
    \"10.0.0.0/8\",   # office
    \"192.0.2.7\",    # bob
]
refusal.status = 503 # busy

# Routes.

# The API.
# It is new.
[[route]]
name = \"api\"
path = \"/api\"
limits = [\"all\"]
[route.respond]
status = 204 # nothing
# The rest.
[[route]]
name = \"rest\"
respond = {}
# e.g. path = \"/x\"
";

fn table(json: &str) -> ValueTable {
    ValueTable::from_json(json.as_bytes()).unwrap()
}

fn edit(kind: RuleKind, name: &str, change: EntryChange) -> Edit {
    Edit { kind, name: name.to_owned(), change }
}

fn edited(text: &str, kind: RuleKind, name: &str, change: EntryChange) -> Result<String, EditError> {
    Ok(Document::parse(text)?.edit(&edit(kind, name, change))?.text)
}

/// The file with these lines replaced.
fn with(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(FILE.to_owned(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from:?}");
        text.replacen(from, to, 1)
    })
}

#[test]
fn entries_are_listed_in_their_order() {
    let document = Document::parse(FILE).unwrap();
    let names: Vec<_> =
        document.list(RuleKind::Route).iter().map(|table| serde_json::to_string(table).unwrap()).collect();
    assert_eq!(
        names,
        [
            r#"{"name":"api","path":"/api","limits":["all"],"respond":{"status":204}}"#,
            r#"{"name":"rest","respond":{}}"#
        ]
    );
    assert_eq!(document.get(RuleKind::Limit, "all").unwrap().get("rate"), Some(&Value::Text("10/s".into())));
    assert!(document.get(RuleKind::Limit, "api").is_none() && document.list(RuleKind::Bandwidth).is_empty());
}

#[test]
fn a_replaced_entry_keeps_its_comments_and_the_place_of_its_keys() {
    let new = table(
        r#"{"exempt": ["10.0.0.0/8", "192.0.2.7", "192.0.2.8"], "rate": "20/s", "key": "host", "refusal": {"status": 503, "body": "no"}}"#,
    );
    let expected = with(&[
        ("\"10/s\"", "\"20/s\""),
        ("# bob\n", "# bob\n    \"192.0.2.8\",\n"),
        ("# busy\n", "# busy\nrefusal.body = \"no\"\nkey = \"host\"\n"),
    ]);
    // The new keys of a table in the entry come where they are found: in the order of the file.
    assert_eq!(edited(FILE, RuleKind::Limit, "all", EntryChange::Replace(new)).unwrap(), expected);
    let new = table(r#"{"name": "all", "rate": "10/s", "exempt": ["192.0.2.7"]}"#);
    let expected =
        with(&[("    \"10.0.0.0/8\",   # office\n    \"192", "    \"192"), ("refusal.status = 503 # busy\n", "")]);
    assert_eq!(edited(FILE, RuleKind::Limit, "all", EntryChange::Put(new, InsertPosition::Last)).unwrap(), expected);
    let new = table(r#"{"path": "/v2", "limits": [], "respond": {"status": 200, "body": "x"}}"#);
    let expected =
        with(&[("\"/api\"", "\"/v2\""), ("[\"all\"]", "[]"), ("204 # nothing\n", "200 # nothing\nbody = \"x\"\n")]);
    assert_eq!(edited(FILE, RuleKind::Route, "api", EntryChange::Replace(new)).unwrap(), expected);
    let new = table(r#"{"path": "/api", "limits": ["all"], "upstream": "app"}"#);
    let expected = with(&[("[\"all\"]\n[route.respond]\nstatus = 204 # nothing\n", "[\"all\"]\nupstream = \"app\"\n")]);
    assert_eq!(edited(FILE, RuleKind::Route, "api", EntryChange::Replace(new)).unwrap(), expected);
}

#[test]
fn a_deleted_entry_takes_the_comment_directly_above_and_no_other() {
    let expected = with(&[(
        "# The API.\n# It is new.\n[[route]]\nname = \"api\"\npath = \"/api\"\nlimits = [\"all\"]\n[route.respond]\nstatus = 204 # nothing\n",
        "",
    )]);
    assert_eq!(edited(FILE, RuleKind::Route, "api", EntryChange::Delete).unwrap(), expected);
    let begin = FILE.find("# For everybody").unwrap();
    let end = FILE.find("# Routes").unwrap();
    let expected = format!("{}{}", &FILE[..begin], &FILE[end..]);
    assert_eq!(
        edited(FILE, RuleKind::Limit, "all", EntryChange::Delete).unwrap(),
        expected,
        "one group of blank lines stays"
    );
    let expected = with(&[("# The rest.\n[[route]]\nname = \"rest\"\nrespond = {}\n", "")]);
    assert_eq!(edited(FILE, RuleKind::Route, "rest", EntryChange::Delete).unwrap(), expected);
}

#[test]
fn a_new_entry_comes_where_it_is_asked_for() {
    let new = || table(r#"{"path": "/n", "respond": {"status": 200}}"#);
    let lines = "[[route]]\nname = \"new\"\npath = \"/n\"\nrespond = { status = 200 }\n";
    let create = |place| edited(FILE, RuleKind::Route, "new", EntryChange::Create(new(), place)).unwrap();
    assert_eq!(create(InsertPosition::Last), format!("{FILE}\n{lines}"));
    assert_eq!(create(InsertPosition::After("rest".into())), format!("{FILE}\n{lines}"));
    assert_eq!(
        create(InsertPosition::Before("rest".into())),
        with(&[("# The rest.\n", &format!("\n{lines}\n# The rest.\n"))])
    );
    assert_eq!(create(InsertPosition::After("api".into())), create(InsertPosition::Before("rest".into())));
    assert_eq!(
        create(InsertPosition::Before("api".into())),
        with(&[("# The API.\n", &format!("{lines}\n# The API.\n"))])
    );
    let limit =
        edited(FILE, RuleKind::Limit, "b", EntryChange::Put(table(r#"{"rate":"1/s"}"#), InsertPosition::Last)).unwrap();
    assert_eq!(limit, with(&[("# busy\n", "# busy\n\n[[limit]]\nname = \"b\"\nrate = \"1/s\"\n")]));
    let upstream = edited(
        "",
        RuleKind::Upstream,
        "app",
        EntryChange::Create(table(r#"{"servers":["echo:a"]}"#), InsertPosition::Last),
    );
    assert_eq!(upstream.unwrap(), "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n");
    let no_end =
        edited("x = 1", RuleKind::Limit, "b", EntryChange::Create(ValueTable::default(), InsertPosition::Last))
            .unwrap();
    assert_eq!(no_end, "x = 1\n\n[[limit]]\nname = \"b\"\n");
    assert_eq!(edited(&no_end, RuleKind::Limit, "b", EntryChange::Delete).unwrap(), "x = 1\n\n");
}

#[test]
fn tables_of_an_entry_that_stand_elsewhere_go_with_it() {
    let text = "[[route]]\nname = \"a\"\n[log]\nx = 1\n[route.respond]\nstatus = 1\n[[route]]\nname = \"b\"\n";
    assert_eq!(
        edited(text, RuleKind::Route, "a", EntryChange::Delete).unwrap(),
        "[log]\nx = 1\n[[route]]\nname = \"b\"\n"
    );
    let new = edited(
        text,
        RuleKind::Route,
        "c",
        EntryChange::Create(ValueTable::default(), InsertPosition::After("a".into())),
    )
    .unwrap();
    assert_eq!(new, text.replace("status = 1\n", "status = 1\n\n[[route]]\nname = \"c\"\n\n"));
}

#[test]
fn what_cannot_be_edited_is_refused_in_words() {
    let refused = |text: &str, name: &str, change| edited(text, RuleKind::Limit, name, change).unwrap_err().to_string();
    let new = || ValueTable::default();
    assert_eq!(refused(FILE, "b", EntryChange::Delete), "The file has no limit \"b\".");
    assert_eq!(refused(FILE, "b", EntryChange::Replace(new())), "The file has no limit \"b\".");
    assert_eq!(
        refused(FILE, "all", EntryChange::Create(new(), InsertPosition::Last)),
        "The file has a limit \"all\" already. Replace it, or give the new one another name."
    );
    assert_eq!(
        refused(FILE, "b", EntryChange::Create(new(), InsertPosition::Before("c".into()))),
        "The file has no limit \"c\" to put the new one beside."
    );
    assert_eq!(
        refused(FILE, "all", EntryChange::Put(table(r#"{"name":"secret"}"#), InsertPosition::Last)),
        "The body's name is not \"all\". A limit keeps its name: leave it out, or create another one."
    );
    let twice = "[[limit]]\nname = \"a\"\n[[limit]]\nname = \"a\"\n";
    assert_eq!(
        refused(twice, "a", EntryChange::Delete),
        "The file has two limits of the name \"a\". Remove one with an editor."
    );
    let inline = "limit = [{ name = \"a\" }]\n";
    let message = "The file has its limits in one array. Write each under a header [[limit]] with an editor first.";
    assert_eq!(refused(inline, "a", EntryChange::Delete), message);
    assert_eq!(refused(inline, "b", EntryChange::Put(new(), InsertPosition::Last)), message);
    assert_eq!(Document::parse(inline).unwrap().list(RuleKind::Limit).len(), 1);
    assert_eq!(
        refused("a = 1\nb = \n", "a", EntryChange::Delete),
        "The file is no TOML, at line 2: string values must be quoted, expected literal string. Mend it with an editor first."
    );
    assert_eq!(Edit::create(RuleKind::Limit, new(), InsertPosition::Last), Err(EditError::NoName(RuleKind::Limit)));
}

/// All of the names that the file has.
fn names(document: &Document) -> Vec<(RuleKind, String)> {
    let all =
        RuleKind::ALL.into_iter().flat_map(|kind| document.list(kind).into_iter().map(move |entry| (kind, entry)));
    all.map(|(kind, entry)| (kind, entry.get("name").unwrap().as_text().unwrap().to_owned())).collect()
}

fn lines_in_order(text: &str, lines: &[String]) -> bool {
    let mut rest = text.trim_start_matches('\u{feff}').lines();
    lines.iter().all(|line| rest.any(|other| other.trim_end() == line))
}

#[derive(Clone, Debug)]
struct Wish {
    entry: usize,
    what: u8,
    new: ValueTable,
}

fn wish() -> impl Strategy<Value = Wish> {
    (any::<usize>(), 0..5_u8, testing::entry()).prop_map(|(entry, what, new)| Wish { entry, what, new })
}

/// An edit, and the one that takes it back.
fn edit_of(document: &Document, wish: &Wish) -> Option<(Edit, Edit)> {
    let names = names(document);
    let (kind, name) = names.get(wish.entry % names.len().max(1))?;
    let create = |place| {
        let new = edit(*kind, "new", EntryChange::Create(wish.new.clone(), place));
        Some((new, edit(*kind, "new", EntryChange::Delete)))
    };
    let old = document.get(*kind, name)?;
    match wish.what {
        0 => {
            let same: Vec<&String> = names.iter().filter(|(own, _)| own == kind).map(|(_, name)| name).collect();
            let at = same.iter().position(|own| *own == name)?;
            let place = match (at.checked_sub(1), same.get(at + 1)) {
                (Some(before), _) => InsertPosition::After(same[before].clone()),
                (None, Some(next)) => InsertPosition::Before((*next).clone()),
                (None, None) => InsertPosition::Last,
            };
            Some((edit(*kind, name, EntryChange::Delete), edit(*kind, name, EntryChange::Create(old, place))))
        }
        1 => create(InsertPosition::Last),
        2 => create(InsertPosition::Before(name.clone())),
        3 => create(InsertPosition::After(name.clone())),
        _ => Some((
            edit(*kind, name, EntryChange::Replace(wish.new.clone())),
            edit(*kind, name, EntryChange::Replace(old)),
        )),
    }
}

/// The values of a document after an edit, made on them alone.
fn expected(document: &Document, edit: &Edit) -> ValueTable {
    let mut list = document.list(edit.kind);
    let at = |name: &str, list: &[ValueTable]| {
        list.iter().position(|entry| entry.get("name").and_then(Value::as_text) == Some(name))
    };
    let whole = |new: &ValueTable| {
        let mut new = new.clone();
        new.set("name", Value::Text(edit.name.clone()));
        new
    };
    match &edit.change {
        EntryChange::Delete => drop(list.remove(at(&edit.name, &list).unwrap())),
        EntryChange::Replace(new) => {
            let at = at(&edit.name, &list).unwrap();
            list[at] = whole(new);
        }
        EntryChange::Create(new, place) | EntryChange::Put(new, place) => {
            let at = match place {
                InsertPosition::Last => list.len(),
                InsertPosition::Before(name) => at(name, &list).unwrap(),
                InsertPosition::After(name) => at(name, &list).unwrap() + 1,
            };
            list.insert(at, whole(new));
        }
    }
    let mut root = document.value();
    root.take(edit.kind.word());
    if !list.is_empty() {
        root.set(edit.kind.word(), Value::List(list.into_iter().map(Value::Table).collect()));
    }
    root
}

/// Whether all lines but those of the edited entry are as they were, byte for byte.
fn is_untouched_outside(old: &str, new: &str, edit: &Edit) -> bool {
    let is_within = |few: &str, many: &str| {
        let mut many = many.split_inclusive('\n');
        // A last line gets an end when another one follows.
        few.split_inclusive('\n').all(|line| many.any(|other| other == line || other.trim_end() == line))
    };
    assert_eq!(old.starts_with('\u{feff}'), new.starts_with('\u{feff}'));
    let [old, new] = [old, new].map(|text| text.trim_start_matches('\u{feff}'));
    match edit.change {
        EntryChange::Create(..) => is_within(old, new),
        EntryChange::Delete => is_within(new, old),
        EntryChange::Replace(_) | EntryChange::Put(..) => {
            let begin = old.find(&format!("name = \"{}\"", edit.name)).unwrap();
            let number: usize = edit.name[1..].parse().unwrap();
            let next = [format!("name = \"n{}\"", number + 1), format!("[other-{}]", number + 1)];
            let end = next.iter().find_map(|next| old.find(next)).unwrap_or(old.len());
            new.starts_with(&old[..begin]) && new.ends_with(&old[end..])
        }
    }
}

/// Where the comments of an item are after an edit.
#[derive(PartialEq)]
enum Found {
    /// With an item of its value, and all of them.
    Right,
    /// With another one, or not all of them.
    Wrong,
}

/// The comments of an item; `None`: none of them is there.
fn found(text: &str, item: &Commented) -> Option<Found> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begins = |line: &&str| {
        let rest = line.strip_prefix(&inline::value(&item.value));
        let rest = rest.map(|rest| rest.trim_start_matches(',').trim_start());
        rest.filter(|rest| rest.is_empty() || rest.starts_with('#')).map(str::to_owned)
    };
    let above = item.above.as_ref().map(|above| lines.iter().position(|line| line == above));
    let behind = item.behind.as_ref().map(|behind| lines.iter().position(|line| line.ends_with(behind.as_str())));
    let at = match (above, behind) {
        (Some(None) | None, Some(None) | None) => return None,
        (Some(Some(above)), None) => above + 1,
        (None, Some(Some(behind))) => behind,
        (Some(Some(above)), Some(Some(behind))) if above + 1 == behind => behind,
        _ => return Some(Found::Wrong),
    };
    let is_right = lines.get(at).and_then(begins) == Some(item.behind.clone().unwrap_or_default());
    Some(if is_right { Found::Right } else { Found::Wrong })
}

/// How often a key of an entry has this item.
fn expected_of(document: &Document, (name, key): &(String, String), value: &Value) -> usize {
    let mut entries = RuleKind::ALL.into_iter().flat_map(|kind| document.list(kind));
    let entry = entries.find(|entry| entry.get("name").and_then(Value::as_text) == Some(name));
    match entry.as_ref().and_then(|entry| entry.get(key)) {
        Some(Value::List(list)) => list.iter().filter(|own| *own == value).count(),
        _ => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn an_edit_changes_its_entry_and_nothing_else(file in testing::file(), wish in wish()) {
        let File { text, outside, items } = file;
        let document = Document::parse(text.as_str()).unwrap();
        prop_assert!(lines_in_order(&text, &outside));
        let Some((edit, inverse)) = edit_of(&document, &wish) else { return Ok(()) };
        let after = document.edit(&edit).unwrap_or_else(|error| panic!("{error}: {edit:?}\n{text}"));
        let then = Document::parse(after.text.as_str()).unwrap();
        prop_assert_eq!(then.value(), expected(&document, &edit), "{}", after.text);
        prop_assert!(lines_in_order(&after.text, &outside), "{}\n=>\n{}", text, after.text);
        for item in &items {
            let found = found(&after.text, item);
            prop_assert!(found != Some(Found::Wrong), "{:?}: {}\n=>\n{}", item, text, after.text);
            let same = items.iter().filter(|other| other.of == item.of && other.value == item.value);
            let stay = same.clone().filter(|other| self::found(&after.text, other).is_some()).count();
            prop_assert_eq!(stay, expected_of(&then, &item.of, &item.value).min(same.count()), "{}\n=>\n{}", text, after.text);
        }
        if text.contains("\r\n") {
            prop_assert_eq!(after.text.matches('\n').count(), after.text.matches("\r\n").count());
        }
        let back = then.edit(&inverse).unwrap_or_else(|error| panic!("{error}: {inverse:?}\n{}", after.text));
        prop_assert_eq!(Document::parse(back.text).unwrap().value(), document.value());
        prop_assert!(is_untouched_outside(&text, &after.text, &edit), "{}\n=>\n{}", text, after.text);
    }
}
