//! Lines of the file as a report shows them.

use proptest::prelude::*;

use super::*;
use crate::config::known_keys;

fn shown(above: &str, line: &str) -> String {
    let text = format!("{above}{line}");
    let hidden = Secrets::new(&text).hidden(above.len());
    line.char_indices().map(|(at, own)| if hidden.covers(at) { '*' } else { own }).collect()
}

#[test]
fn every_key_of_a_limit_ends_an_exempt_that_lacks_its_bracket() {
    // Values of these may be anything, and an `exempt` is the next of its kind.
    let others = ["exempt", "key", "name"];
    let known = known_keys::of_section("limit");
    let hiding = known.iter().filter(|key| !others.contains(&key.as_str())).filter(|key| {
        let line = format!("{key} = plain");
        shown("exempt = [\n", &line) != line
    });
    assert_eq!(hiding.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn secrets_of_the_file_are_not_shown() {
    let mut wrong = Vec::new();
    for (above, line, expected) in [
        ("", "exempt = [\"key:gold\", \"10.0.0.0/8\", \"gold\"]", "exempt = [\"key:****\", \"10.0.0.0/8\", \"****\"]"),
        ("", "exemt = ['key:a\"b', 5]", "exemt = ['key:***', 5]"),
        ("[[limit]]\nexempt = [\n  \"key:a\",\n", "  \"gold\\\"x\",", "  \"*******\","),
        ("", "exempt = [\"key:gold", "exempt = [\"key:****"),
        ("exempt = [\"::1\"]\n", "key = \"client_ip\"", "key = \"client_ip\""),
        ("", "deny = [\"key:gold\", \"all\"]", "deny = [\"key:****\", \"all\"]"),
        ("", "set = { \"X-Api-Key\" = \"sk\", X-Plain = \"p\" }", "set = { \"X-Api-Key\" = \"**\", X-Plain = \"p\" }"),
        ("", "set = { authorization = \"Bearer x\" }", "set = { authorization = \"********\" }"),
        ("", "key = \"header:x-api-key\"", "key = \"header:x-api-key\""),
        ("", "exempt = [\"ké\", 7]", "exempt = [\"**\", 7]"),
        // Without quotes, or with one of two.
        ("", "exempt = [key:gold]", "exempt = [key:****]"),
        ("", "exempt = [ key:QUJD==, ::1, gold ]", "exempt = [ key:******, ::1, **** ]"),
        ("", "exempt = [key:gold\", 'x']", "exempt = [key:*****, '*']"),
        ("", "exempt = key:gold # why", "exempt = key:**********"),
        ("", "deny = [key:gold, \"all\"]", "deny = [key:****, \"all\"]"),
        ("", "set = { X-Api-Key = a b,c }", "set = { X-Api-Key = *******"),
        // Of an array over several lines, and in one line with others.
        ("exempt = [\n", "  \"QUJD=\",", "  \"*****\","),
        ("exempt = [\n  \"QUJD=\",\n  \"a=b\",\n  QUJD=,\n", "  \"gold\",", "  \"****\","),
        ("exempt = [\n", "  gold==", "  ******"),
        ("exempt =\n", "[\"gold\", 'x', key:y]", "[\"****\", '*', key:*]"),
        ("limit.exempt = [\n  # none\n", "  \"gold\"", "  \"****\""),
        ("X-Api-Key = [\n", "\"a\", \"b\"", "\"*\", \"*\""),
        (
            "",
            "limit = [{ exempt = [\"a\"], name = \"b\" }, { exempt = ['c'] }]",
            "limit = [{ exempt = [\"*\"], name = \"b\" }, { exempt = ['*'] }]",
        ),
        // The lines behind such an array are shown.
        ("exempt = [\n  \"a\",\n]\n", "rate 5/s", "rate 5/s"),
        ("exempt = [\n", "[[limit", "[[limit"),
        ("exempt = [\n", "rate = 5/s", "rate = 5/s"),
        // Of a comment no bracket counts.
        ("exempt = [ # customers (see [2])]\n", "  \"SECRET\",", "  \"******\","),
        ("exempt = [\n# old ]\n", "  \"SECRET\",", "  \"******\","),
        ("exempt = [\n\"key:ok\", # ok]\n", " SECRET", " ******"),
        ("exempt = [gold # ok]\n", "SECRET = 5", "**********"),
        // Tables in it.
        ("", "exempt = [{ key = \"SECRET\" }]", "exempt = [{ key = \"******\" }]"),
        ("", "exempt = {key = SECRET}", "exempt = {key = ******}"),
        ("", "exempt.key = \"SECRET\"", "exempt.key = \"******\""),
        ("", "exempt.SECRET = true", "exempt**************"),
        ("", "set = { authorization = { value = \"SECRET\" } }", "set = { authorization = { value = \"******\" } }"),
        // Without `=`, or with more.
        ("", "exempt [\"SECRET\"]", "exempt [\"******\"]"),
        ("", "exempt += [\"SECRET\"]", "exempt += [\"******\"]"),
        ("", "exempt: [\"SECRET\"]", "exempt: [\"******\"]"),
        ("", "set = { \"authorization\": \"SECRET\" }", "set = { \"authorization\": \"******\" }"),
        ("", "Authorization: \"SECRET\"", "Authorization: \"******\""),
        ("", "authorization \"SECRET\"", "authorization \"******\""),
        ("", "set Authorization Bearer SECRET, x", "set Authorization ****************"),
        // Keys that are none.
        ("exempt = [\n", "SECRET= x", "*********"),
        ("exempt = [\n", "SECRET = 5", "**********"),
        ("exempt = [\n", "SECRET=5,", "********,"),
        ("exempt = [\n\"key:a\",\n", "name = \"SECRET\"", "name = \"******\""),
        ("exempt = [\n\"rate\",\n", "\"SECRET\"", "\"******\""),
        ("exempt = [\"key:x\"]\n", "\"SECRET\",", "\"******\","),
        ("", "exempt_keys = [\"SECRET\"]", "exempt_keys = [\"******\"]"),
        ("", "\"ex\\u0065mpt\" = [\"SECRET\"]", "\"ex\\u0065mpt\" = [\"******\"]"),
        ("[limit.exempt]\nkey = \"a\"\n", "rate = \"SECRET\"", "rate = \"******\""),
        // Texts over several lines.
        ("exempt = [\"\"\"\n", "rate = SECRET", "*************"),
        ("exempt = [\"\"\"\na\"\"\", \"\"\"b\"\"\"]\n", "rte = 5/s", "rte = 5/s"),
        // Names of fields that are values.
        (
            "",
            "request_headers.add = [ \"Authorization: SECRET\" ]",
            "request_headers.add = [ \"Authorization: ******\" ]",
        ),
        ("", "add = [\"X-Api-Key\", \"SECRET\"]", "add = [\"X-Api-Key\", \"******\"]"),
        (
            "",
            "add = [{ value = \"hunter\", name = \"DPoP-Key\" }]",
            "add = [{ value = \"******\", name = \"DPoP-Key\" }]",
        ),
        ("", "set = { token = \"SECRET\", a = \"b\" }", "set = { token = \"******\", a = \"b\" }"),
        // What is no secret.
        ("", "remove = [\"Authorization\", \"x y\"]", "remove = [\"Authorization\", \"x y\"]"),
        (
            "",
            "key = [\"cookie:sid\", \"header:x-api-key\", \"x\"]",
            "key = [\"cookie:sid\", \"header:x-api-key\", \"x\"]",
        ),
        ("", "servers = [\"auth-api:8080\", \"b\"]", "servers = [\"auth-api:8080\", \"b\"]"),
        ("", "name = \"per-api-key\" # of all", "name = \"per-api-key\" # of all"),
        ("[plan.api-key]\n", "rate = \"x\"", "rate = \"x\""),
        ("", "\"ke\u{301}y:SECRET", "\"ke\u{301}y:SECRET"),
    ] {
        let found = shown(above, line);
        if found != expected {
            wrong.push((above, line, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_message_repeats_what_is_no_secret_for_sure() {
    for (line, part, repeats) in [
        ("timeout = 5m", "5m", true),
        ("methods = [GET]", "GET", true),
        ("timeout = { a = 5m, b = x }", "x", true),
        ("exempt = [key:gold]", "key:gold", false),
        ("exempt = [key:gold]", "key", false),
        ("exempt = gold", "gold", false),
        ("set = { Authorization = gold }", "gold", false),
        ("deny = [key:gold]", "key:gold", false),
        // The line may belong to `exempt` above.
        ("  gold,", "gold", false),
    ] {
        let start = line.rfind(part).unwrap();
        assert_eq!(Secrets::new(line).may_repeat(&(start..start + part.len())), repeats, "{line}");
    }
}

#[test]
fn nothing_of_the_tour_is_hidden() {
    let tour = include_str!("../../../gateway.toml");
    let lines: Vec<_> = tour.lines().map(|line| line.strip_prefix('#').unwrap_or(line)).collect();
    let text = lines.join("\n") + "\n";
    let secrets = Secrets::new(&text);
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let value = line.find(" #").unwrap_or(line.len());
        let hidden = secrets.hidden(start);
        let is_key = line.contains(" = ") && !line.starts_with([' ', '#']);
        assert!(!is_key || !(0..value).any(|at| hidden.covers(at)), "{line}");
        start += line.len();
    }
}

/// A text of these parts.
fn text_of(parts: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(parts), 0..most).prop_map(|parts| parts.concat())
}

const ODD: [&str; 25] = [
    "[",
    "]",
    "{",
    "}",
    "=",
    ",",
    "#",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "\\",
    ":",
    ".",
    " ",
    "\n",
    "\r\n",
    "é",
    "key:",
    "exempt",
    "Authorization",
    "rate",
    "[limit]",
    "S3CR3T",
    "1",
];

const IN_A_LINE: [&str; 18] =
    ["[", "]", "{", "}", "=", ",", "#", "\"", "'", "\"\"\"", "\\", ":", ".", " ", "key", "rate", "S3CR3T", "::1"];

const IN_AN_ARRAY: [&str; 16] =
    ["[", "{", "=", ",", "#", "#]", "\"", "'", "\\", ":", " ", "\n", "key", "é", "S3CR3T", "::1"];

proptest! {
    #[test]
    fn no_text_is_too_odd(text in text_of(&ODD, 60)) {
        let secrets = Secrets::new(&text);
        let starts = || std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        for start in starts().chain(starts().collect::<Vec<_>>().into_iter().rev()) {
            let line = text[start..].split('\n').next().unwrap();
            let Hidden(hidden) = secrets.hidden(start);
            prop_assert!(hidden.windows(2).all(|two| two[0].end < two[1].start), "{:?}", hidden);
            prop_assert!(hidden.iter().all(|range| line.get(range.clone()).is_some_and(|text| !text.is_empty())));
            // It is the same from wherever the reading goes on.
            prop_assert_eq!(&hidden, &Secrets::new(&text).hidden(start).0);
            secrets.may_repeat(&(start..start + line.len()));
        }
    }

    #[test]
    fn nothing_behind_the_name_of_a_secret_is_shown_in_its_line(
        name in prop::sample::select(&["exempt", "Authorization", "x-api-key", "\"exempt\"", "limit.exempt", "set Cookie"][..]),
        between in prop::sample::select(&[" ", "=", ":", " = [", " {", "\"", "'", "+="][..]),
        rest in text_of(&IN_A_LINE, 40),
    ) {
        let line = shown("", &format!("{name}{between}{rest}"));
        prop_assert!(!line.contains("S3CR3T"), "{line}");
    }

    #[test]
    fn nothing_in_an_array_that_is_open_is_shown(
        name in prop::sample::select(&["exempt", "Authorization"][..]),
        above in text_of(&IN_AN_ARRAY, 40),
        rest in text_of(&IN_A_LINE, 20),
    ) {
        // A key of a limit would end the array.
        let line = shown(&format!("{name} = [{above}\n"), &rest.replace("rate", "key"));
        prop_assert!(!line.contains("S3CR3T"), "{line}");
    }
}
