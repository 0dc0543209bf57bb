//! The reader against `serde_json`, and against texts that are meant to harm.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn pointer(text: &str) -> JsonPointer {
    JsonPointer::parse(text).unwrap()
}

/// Reads one text in these pieces; whether it was JSON, and the value at each pointer.
fn read<'p>(pointers: &[&str], pieces: impl IntoIterator<Item = &'p [u8]>) -> (bool, Vec<FoundValue>) {
    let mut reader = PointerReader::new(pointers.iter().map(|text| pointer(text)), true);
    pieces.into_iter().for_each(|piece| reader.feed(piece));
    let is_complete = reader.end_text();
    (is_complete, pointers.iter().map(|text| reader.value(&pointer(text)).clone()).collect())
}

fn number(text: &str) -> FoundValue {
    let mut number = JsonNumber::new();
    text.bytes().for_each(|byte| number.push(byte));
    FoundValue::Number(number)
}

fn text(text: &str) -> FoundValue {
    FoundValue::Text(text.into())
}

#[test]
fn finds_what_is_at_a_pointer_wherever_the_pieces_part() {
    let json =
        br#" {"id":"x\u00e9\ud83d\ude00\n\"","usage":{"in":[1,2.5e1,{"n":-3}],"a/b":true,"":null,"out":007.0}} "#;
    let json = String::from_utf8_lossy(json).replace("007.0", "7.0");
    let pointers = ["/id", "/usage/in/0", "/usage/in/1", "/usage/in/2/n", "/usage/a~1b", "/usage/", "/usage/out"];
    let expected = [
        text("xé😀\n\""),
        number("1"),
        number("2.5e1"),
        number("-3"),
        FoundValue::Other,
        FoundValue::Nothing,
        number("7.0"),
    ];
    for at in 0..=json.len() {
        let (one, other) = json.as_bytes().split_at(at);
        assert_eq!(read(&pointers, [one, other]), (true, expected.to_vec()), "at {at}");
    }
    assert_eq!(read(&pointers, json.as_bytes().chunks(1)), (true, expected.to_vec()));
    let none = ["/usage/in/3", "/usage/in/-", "/usage/in/00", "/usage/in/0/0", "/id/0", "/USAGE/out", "/usage/out/n"];
    assert_eq!(read(&none, [json.as_bytes()]).1, vec![FoundValue::Nothing; none.len()]);
    assert_eq!(read(&["", "/usage"], [json.as_bytes()]).1, [FoundValue::Other, FoundValue::Other]);
    assert_eq!(read(&[""], [&b"5"[..]]).1, [number("5")], "the end of the text ends a number");
}

#[test]
fn a_text_that_is_no_json_or_is_cut_keeps_the_values_of_those_before() {
    let mut reader = PointerReader::new([pointer("/n"), pointer("/m")], false);
    for (json, is_complete, n) in [
        ("{\"n\":1,\"m\":2}", true, "1"),
        ("{\"n\":5", false, "1"),
        ("{\"n\":5}}", false, "1"),
        ("[DONE]", false, "1"),
        ("{\"n\":null}", true, "1"),
        ("{\"n\":5} x", false, "1"),
        ("", false, "1"),
        ("{\"n\":6}", true, "6"),
    ] {
        reader.feed(json.as_bytes());
        assert_eq!(reader.end_text(), is_complete, "{json}");
        assert_eq!(reader.value(&pointer("/n")), &number(n), "{json}");
    }
    assert_eq!(reader.value(&pointer("/m")), &number("2"));
    assert!(!reader.is_ambiguous(&pointer("/n")), "a member of another text is no second one");
}

#[test]
fn of_two_members_the_last_counts_and_the_pointer_is_ambiguous() {
    for (json, value, is_ambiguous) in [
        (r#"{"a":{"n":1},"b":{"n":2}}"#, number("1"), false),
        (r#"{"a":{"n":1,"n":2}}"#, number("2"), true),
        (r#"{"a":{"n":1,"N":2}}"#, number("1"), true),
        (r#"{"a":{"n":1},"a":{"m":2}}"#, FoundValue::Nothing, true),
        (r#"{"a":{"n":1},"a":null}"#, FoundValue::Nothing, true),
        (r#"{"a":{"N":1}}"#, FoundValue::Nothing, true),
        (r#"{"A":{"n":1}}"#, FoundValue::Nothing, true),
        (r#"{"A":{"n":1},"a":{"n":2}}"#, number("2"), true),
        (r#"{"a":{"n":1,"\u006e":2}}"#, number("2"), true),
        (r#"[{"a":{"n":1}},{"a":{"n":2}}]"#, FoundValue::Nothing, false),
        (r#"{"x":[{"a":{"n":1}}],"a":{"x":{"n":1},"n":3}}"#, number("3"), false),
    ] {
        let mut reader = PointerReader::new([pointer("/a/n")], false);
        reader.feed(json.as_bytes());
        assert!(reader.end_text(), "{json}");
        assert_eq!(reader.value(&pointer("/a/n")), &value, "{json}");
        assert_eq!(reader.is_ambiguous(&pointer("/a/n")), is_ambiguous, "{json}");
    }
    let mut reader = PointerReader::new([pointer("/sk")], true);
    reader.feed("{\"sk\":\"a\",\"\u{17f}\u{212a}\":\"b\"}".as_bytes());
    assert!(reader.end_text() && reader.is_ambiguous(&pointer("/sk")), "Go's parser takes the second");
}

#[test]
fn what_is_hostile_takes_no_memory_and_is_no_value() {
    let mut reader = PointerReader::new([pointer("/n")], true);
    for _ in 0..10_000 {
        reader.feed(&[b'['; 1000]);
    }
    assert!(reader.has_failed() && !reader.end_text());
    reader.feed(b"{\"n\":");
    for _ in 0..10_000 {
        reader.feed(&[b'9'; 1000]);
    }
    reader.feed(b"}");
    assert!(reader.end_text());
    assert!(matches!(reader.value(&pointer("/n")), FoundValue::Number(number) if number.whole() == Some(u64::MAX)));
    reader.feed(b"{\"");
    (0..1000).for_each(|_| reader.feed(&[b'k'; 1000]));
    reader.feed(b"\":1,\"n\":\"");
    (0..1000).for_each(|_| reader.feed(&[b'v'; 1000]));
    reader.feed(b"\"}");
    assert!(reader.end_text());
    assert_eq!(reader.value(&pointer("/n")), &FoundValue::Other);
    for value in [&b"\"\xff\""[..], b"\"\\ud800\"", b"\"\\ud800x\"", b"\"\\ud800\\ud800\"", b"\"\\udc00\""] {
        let json = [b"{\"n\":", value, b"}"].concat();
        assert_eq!(read(&["/n"], [&json[..]]), (true, vec![FoundValue::Other]), "{json:?}");
    }
    let longest = format!("{{\"n\":\"{}\"}}", "v".repeat(MAX_TEXT_BYTES));
    assert_eq!(read(&["/n"], [longest.as_bytes()]).1, [text(&"v".repeat(MAX_TEXT_BYTES))]);
}

fn any_json() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["a", "b", "0", "1", "", "a/b", "~", "é", "\"", "\\u0061"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e12).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(name.clone(), inner, 0..5)
                .prop_map(|members| { members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }),
        ]
    })
}

/// All pointers into a value.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let mut inner = |name: &str, value| {
        pointers(value, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
    };
    match value {
        Value::Array(all) => all.iter().enumerate().for_each(|(place, value)| inner(&place.to_string(), value)),
        Value::Object(all) => all.iter().for_each(|(name, value)| inner(name, value)),
        _ => {}
    }
}

/// The same by `serde_json`.
fn expected(value: Option<&Value>) -> FoundValue {
    match value {
        None | Some(Value::Null) => FoundValue::Nothing,
        Some(Value::Number(own)) => number(&own.to_string()),
        Some(Value::String(own)) => text(own),
        Some(_) => FoundValue::Other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn agrees_with_serde_json(
        value in any_json(),
        is_pretty in any::<bool>(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 4),
        piece in 1_usize..40,
    ) {
        let json = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        all.extend(["/a/b/0", "/1/a", "/0/0/0"].map(str::to_owned));
        let picked: Vec<_> = picks.iter().map(|pick| pick.get(&all).as_str()).collect();
        let (is_complete, found) = read(&picked, json.as_bytes().chunks(piece));
        prop_assert!(is_complete, "{json}");
        let by_serde: Vec<_> = picked.iter().map(|at| expected(value.pointer(at))).collect();
        prop_assert_eq!(found, by_serde, "{} {:?}", json, picked);
    }

    /// Each text that `serde_json` refuses is refused here, but for numbers too large for it and bytes that are no Unicode.
    #[test]
    fn takes_what_serde_json_takes(
        value in any_json(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), "[\\[\\]{},:\"\\\\0-9.eE+\\- \\na-z]"), 0..3),
        piece in 1_usize..40,
    ) {
        let mut json = serde_json::to_string(&value).unwrap();
        for (at, with) in changes {
            let places: Vec<_> = json.char_indices().map(|(at, _)| at).collect();
            let at = *at.get(&places);
            json.replace_range(at..at + json[at..].chars().next().unwrap().len_utf8(), &with);
        }
        let by_serde = serde_json::from_str::<Value>(&json);
        let is_beyond = by_serde.as_ref().is_err_and(|error| {
            let error = error.to_string();
            error.contains("out of range") || error.contains("surrogate") || error.contains("hex escape")
        });
        let (is_complete, _) = read(&["/a"], json.as_bytes().chunks(piece));
        prop_assert!(is_beyond || is_complete == by_serde.is_ok(), "{json} {by_serde:?}");
    }
}
