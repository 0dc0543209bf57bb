//! An array of the file made to say what a list says.
//!
//! An item owns the comment lines directly above it, without a blank line between, and the comment behind it on its line. An item
//! that stays keeps both, wherever it goes; one that goes takes both along. All other comments of the array stay: the one behind
//! its bracket, those with a blank line below them, and those below its last item.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use toml_edit::{Array, Item};

use super::inline;
use super::layout::Layout;
use super::value::Value;

/// The array with its brackets, as it is to be written. `None`, if the parser told no places.
pub(super) fn edited(layout: Layout<'_>, old: &Array, new: &[Value], line_end: &str) -> Option<String> {
    let spans = old.iter().map(toml_edit::Value::span).collect::<Option<Vec<_>>>()?;
    let values: Vec<Value> = old.iter().map(|value| Value::of(&Item::Value(value.clone()))).collect();
    let whole = old.span()?;
    let parts = Parts::of(layout.text, &whole, &spans)?;
    let pairs = pairs(&values, new);
    let mut writer = ArrayWriter::of(&parts, layout.indentation(whole.start), line_end);
    let mut loose = parts.loose(&pairs);
    for (place, (value, pair)) in new.iter().zip(&pairs).enumerate() {
        let has_comma = place + 1 < new.len() || parts.has_last_comma();
        match pair {
            None => writer.add(&inline::value(value), has_comma),
            Some(at) => {
                let as_it_is = parts.texts.get(*at).filter(|_| values.get(*at) == Some(value));
                let text = as_it_is.map_or_else(|| inline::value(value), |text| (*text).to_owned());
                writer.keep(*at, &text, &loose.remove(at).unwrap_or_default(), has_comma)?;
            }
        }
    }
    let written = writer.close(&loose.remove(&values.len()).unwrap_or_default())?;
    // Where no item is, there is nothing in it but comments.
    Some(if new.is_empty() && !written.contains('#') { "[]".to_owned() } else { written })
}

/// The old item that each new one is, by its place.
fn pairs(old: &[Value], new: &[Value]) -> Vec<Option<usize>> {
    let front = old.iter().zip(new).take_while(|(own, new)| own == new).count();
    let most = old.len().min(new.len()) - front;
    let back = old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(own, new)| own == new).count();
    let (old_end, new_end) = (old.len() - back, new.len() - back);
    let mut pairs: Vec<Option<usize>> = (0..new.len())
        .map(|at| if at < front { Some(at) } else { (at >= new_end).then(|| at - new_end + old_end) })
        .collect();
    // What was moved between them; a server that gets another weight is the same server.
    for name in [inline::value as fn(&Value) -> String, identity] {
        let mut left: HashMap<String, VecDeque<usize>> = HashMap::new();
        let taken: HashSet<usize> = pairs.iter().flatten().copied().collect();
        for (at, value) in old.iter().enumerate().filter(|(at, _)| !taken.contains(at)) {
            left.entry(name(value)).or_default().push_back(at);
        }
        for (pair, value) in pairs.iter_mut().zip(new).filter(|(pair, _)| pair.is_none()) {
            *pair = left.get_mut(&name(value)).and_then(VecDeque::pop_front);
        }
    }
    pairs
}

/// The address or name that an item has, or all of it.
fn identity(value: &Value) -> String {
    let Value::Table(table) = value else { return inline::value(value) };
    let name = ["address", "name"].into_iter().find_map(|key| table.get(key));
    inline::value(name.unwrap_or(value))
}

/// An array as the file has it.
struct Parts<'t> {
    texts: Vec<&'t str>,
    /// One before each item, and the last one before the bracket that closes.
    gaps: Vec<Gap<'t>>,
}

/// Everything between two items.
#[derive(Debug, Default)]
struct Gap<'t> {
    /// The rest of the line of the item before, without its comma.
    tail: String,
    /// Where in the tail the comma stands, or is to stand.
    comma: usize,
    has_comma: bool,
    /// Whether lines end in it.
    is_break: bool,
    /// Lines that belong to no item: the last one is blank.
    loose: String,
    /// Comment lines directly above the item behind.
    above: String,
    /// Blanks before the item behind, on its line.
    lead: &'t str,
}

impl<'t> Parts<'t> {
    fn of(text: &'t str, whole: &Range<usize>, spans: &[Range<usize>]) -> Option<Self> {
        let starts = [whole.start + 1].into_iter().chain(spans.iter().map(|span| span.end));
        let ends = spans.iter().map(|span| span.start).chain([whole.end.checked_sub(1)?]);
        let gaps = starts.zip(ends).map(|(start, end)| text.get(start..end).map(Gap::of));
        let texts = spans.iter().map(|span| text.get(span.clone()));
        Some(Self { texts: texts.collect::<Option<_>>()?, gaps: gaps.collect::<Option<_>>()? })
    }

    /// Whether each item has a line.
    fn is_by_line(&self) -> bool {
        self.gaps.first().is_some_and(|gap| gap.is_break)
    }

    /// Whether there is a comma behind the last item.
    fn has_last_comma(&self) -> bool {
        if self.texts.is_empty() { self.is_by_line() } else { self.gaps.last().is_some_and(|gap| gap.has_comma) }
    }

    /// The lines of no item, by the item that stays above which they come. Those of an item that goes come above the next one.
    fn loose(&self, pairs: &[Option<usize>]) -> HashMap<usize, String> {
        let stays: HashSet<usize> = pairs.iter().flatten().copied().collect();
        let (mut loose, mut carried) = (HashMap::new(), String::new());
        for (at, gap) in self.gaps.iter().enumerate() {
            let is_there = stays.contains(&at) || at == self.texts.len();
            if is_there || gap.loose.contains('#') {
                carried.push_str(&gap.loose);
            }
            if is_there {
                loose.insert(at, std::mem::take(&mut carried));
            }
        }
        loose
    }
}

impl<'t> Gap<'t> {
    fn of(text: &'t str) -> Self {
        let comma = comma(text);
        let (line, rest) = text.split_once('\n').map_or((text, None), |(line, rest)| (line, Some(rest)));
        let line = if rest.is_some() { line.strip_suffix('\r').unwrap_or(line) } else { line };
        let (before, behind) = comma.and_then(|at| Some((line.get(..at)?, line.get(at + 1..)?))).unwrap_or(("", line));
        let is_on_line = comma.is_some_and(|at| at < line.len());
        let at = Self { comma: before.len(), has_comma: comma.is_some(), is_break: rest.is_some(), ..Self::default() };
        let Some(rest) = rest else { return Self { tail: before.to_owned(), lead: behind, ..at } };
        let (lines, lead) = rest.rfind('\n').map_or(("", rest), |newline| rest.split_at(newline + 1));
        // A comma at the begin of a later line comes to where all others are.
        let comma = |text: &str| (!is_on_line).then(|| self::comma(text)).flatten();
        let without =
            comma(lines).map(|at| [lines.get(..at), lines.get(at + 1..)].into_iter().flatten().collect::<String>());
        let lines = without.unwrap_or_else(|| lines.to_owned());
        let lead = comma(lead).map_or(lead, |at| lead.get(at + 1..).unwrap_or_default());
        let (loose, above) = lines.split_at(blank_end(&lines));
        Self { tail: before.to_owned() + behind, loose: loose.to_owned(), above: above.to_owned(), lead, ..at }
    }

    /// The tail with a comma, or without.
    fn tail(&self, has_comma: bool) -> String {
        let (before, behind) = self.tail.split_at(self.comma);
        format!("{before}{}{behind}", if has_comma { "," } else { "" })
    }
}

/// Behind the last blank line of some; 0, if there is none.
fn blank_end(lines: &str) -> usize {
    let mut end = 0;
    let ends = lines.split_inclusive('\n').map(|line| {
        end += line.len();
        line.trim().is_empty().then_some(end)
    });
    ends.flatten().last().unwrap_or(0)
}

/// Where a comma stands that is no part of a comment.
fn comma(text: &str) -> Option<usize> {
    let mut is_comment = false;
    let is_it = |byte: u8| {
        is_comment = byte == b'#' || (is_comment && byte != b'\n');
        byte == b',' && !is_comment
    };
    text.bytes().position(is_it)
}

/// Writes an array anew.
struct ArrayWriter<'p> {
    parts: &'p Parts<'p>,
    out: String,
    line_end: &'p str,
    /// The blanks before an item that is new, and before the bracket that closes where it had none.
    indentation: String,
    of_bracket: &'p str,
    /// Whether a line begins here.
    is_fresh: bool,
    is_first: bool,
}

impl<'p> ArrayWriter<'p> {
    fn of(parts: &'p Parts<'p>, of_bracket: &'p str, line_end: &'p str) -> Self {
        let (closing, own) = parts.gaps.split_last().map_or((None, &[][..]), |(last, own)| (Some(last), own));
        let indentation = match (own.iter().find(|gap| gap.is_break), closing.filter(|gap| gap.is_break)) {
            (Some(gap), _) => gap.lead.to_owned(),
            (None, Some(closing)) => format!("{}    ", closing.lead),
            (None, None) => format!("{of_bracket}    "),
        };
        let mut writer =
            Self { parts, out: "[".to_owned(), line_end, indentation, of_bracket, is_fresh: false, is_first: true };
        writer.end(parts.gaps.first().map_or("", |gap| &gap.tail));
        writer
    }

    /// An item that is new.
    fn add(&mut self, text: &str, has_comma: bool) {
        if self.parts.is_by_line() {
            self.break_line();
        }
        self.begin(None);
        self.out.push_str(text);
        self.end(if has_comma { "," } else { "" });
    }

    /// An item that stays, with all that it owns, below `loose`.
    fn keep(&mut self, at: usize, text: &str, loose: &str, has_comma: bool) -> Option<()> {
        let (before, behind) = (self.parts.gaps.get(at)?, self.parts.gaps.get(at + 1)?);
        let has_lines = !loose.is_empty() || !before.above.is_empty();
        if before.is_break || has_lines || (self.is_first && self.parts.is_by_line()) {
            self.break_line();
        }
        self.out.push_str(loose);
        self.out.push_str(&before.above);
        // The first one may stand close to the bracket: no other one does.
        let is_moved = at == 0 && !self.is_first;
        self.begin(Some(before).filter(|before| before.is_break == self.is_fresh && !is_moved));
        self.out.push_str(text);
        self.end(&behind.tail(has_comma));
        Some(())
    }

    /// The blanks before an item.
    fn begin(&mut self, own: Option<&Gap<'_>>) {
        let of_first = self.parts.gaps.first().filter(|_| !self.parts.texts.is_empty());
        let lead = match own {
            _ if self.is_first && !self.is_fresh => of_first.map_or("", |first| first.lead),
            Some(own) => own.lead,
            None if self.is_fresh => &self.indentation,
            None => " ",
        };
        self.out.push_str(lead);
        (self.is_fresh, self.is_first) = (false, false);
    }

    /// The rest of a line, which ends if there is a comment in it.
    fn end(&mut self, tail: &str) {
        self.out.push_str(tail);
        if tail.contains('#') {
            self.break_line();
        }
    }

    fn close(mut self, loose: &str) -> Option<String> {
        let closing = self.parts.gaps.last()?;
        if closing.is_break || !loose.is_empty() {
            self.break_line();
        }
        self.out.push_str(loose);
        self.out.push_str(&closing.above);
        let is_empty = self.parts.texts.is_empty() && !closing.is_break;
        self.out.push_str(match (self.is_fresh, closing.is_break) {
            (true, false) => self.of_bracket,
            _ if is_empty => "",
            _ => closing.lead,
        });
        self.out.push(']');
        Some(self.out)
    }

    fn break_line(&mut self) {
        if !std::mem::replace(&mut self.is_fresh, true) {
            self.out.push_str(self.line_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Document, Edit, EntryChange, RuleKind, ValueTable};

    fn to(array: &str, new: &str) -> String {
        let text = format!("[[limit]]\nname = \"l\"\nx = {array}\n# below\n");
        let new = ValueTable::from_json(format!("{{\"x\": {new}}}").as_bytes()).unwrap();
        let edit = Edit { kind: RuleKind::Limit, name: "l".into(), change: EntryChange::Replace(new) };
        let after = Document::parse(text).unwrap().edit(&edit).unwrap().text;
        let after = after.strip_prefix("[[limit]]\nname = \"l\"\nx = ").unwrap();
        after.strip_suffix("\n# below\n").unwrap().to_owned()
    }

    const SERVERS: &str = "[\n  \":1\", # one: old rack\n  # DO NOT REMOVE: the big one\n  \":2\" # two: new rack\n]";

    #[test]
    fn an_item_that_stays_keeps_its_own_comments_and_one_that_goes_takes_them_along() {
        let first = "  \":1\" # one: old rack\n";
        let second = "  # DO NOT REMOVE: the big one\n  \":2\" # two: new rack\n";
        let with_comma = |item: &str| item.replacen("\" #", "\", #", 1);
        for (new, expected) in [
            ("[\":1\", \":2\", \":3\"]", [with_comma(first), with_comma(second), "  \":3\"\n".into()].concat()),
            ("[\":1\", \":3\", \":2\"]", [with_comma(first).as_str(), "  \":3\",\n", second].concat()),
            ("[\":3\", \":1\", \":2\"]", ["  \":3\",\n", &with_comma(first), second].concat()),
            ("[\":1\"]", first.to_owned()),
            ("[\":2\"]", second.to_owned()),
            ("[\":2\", \":1\"]", [with_comma(second).as_str(), first].concat()),
            ("[\":3\"]", "  \":3\"\n".to_owned()),
        ] {
            assert_eq!(to(SERVERS, new), format!("[\n{expected}]"), "{new}");
        }
        assert_eq!(to(SERVERS, "[]"), "[]");
    }

    #[test]
    fn several_items_on_a_line_share_no_comment() {
        let limits = "[\"a\", \"b\", # global guard\n    \"c\"]";
        assert_eq!(to(limits, "[\"a\", \"c\"]"), "[\"a\",\n    \"c\"]");
        assert_eq!(to(limits, "[\"a\", \"b\"]"), "[\"a\", \"b\" # global guard\n]");
        assert_eq!(to(limits, "[\"b\", \"c\"]"), "[\"b\", # global guard\n    \"c\"]");
        assert_eq!(to(limits, "[\"c\", \"a\", \"b\"]"), "[\n    \"c\", \"a\", \"b\" # global guard\n]");
        let added = "[\"a\", \"b\", # global guard\n    \"d\",\n    \"c\", \"e\"]";
        assert_eq!(to(limits, "[\"a\", \"b\", \"d\", \"c\", \"e\"]"), added);
        for (old, new, expected) in [
            ("[\"a\", 'b']", "[\"b\"]", "['b']"),
            ("[\"a\", 'b']", "[\"b\", \"a\", \"c\"]", "['b', \"a\", \"c\"]"),
            ("[ \"a\", \"b\" ]", "[\"a\"]", "[ \"a\" ]"),
            ("[ \"a\" , \"b\" ]", "[\"c\", \"a\", \"b\"]", "[ \"c\", \"a\" , \"b\" ]"),
            ("[1, 2,]", "[1, 3]", "[1, 3,]"),
            ("[ ]", "[1]", "[1]"),
            ("[1]", "[]", "[]"),
            ("[\n\"a\" # one\n, \"b\" # two\n]", "[\"a\"]", "[\n\"a\" # one\n]"),
            ("[\n\"a\" # one\n, \"b\" # two\n]", "[\"b\", \"a\"]", "[\n \"b\", # two\n\"a\" # one\n]"),
        ] {
            assert_eq!(to(old, new), expected, "{old} -> {new}");
        }
    }

    #[test]
    fn comments_of_no_item_stay() {
        let list = "[ # the list\n  # group\n\n  1, # one\n\n  # lost\n\n  2,\n  # below\n]";
        assert_eq!(to(list, "[2]"), "[ # the list\n  # group\n\n\n  # lost\n\n  2,\n  # below\n]");
        assert_eq!(to(list, "[1, 3]"), "[ # the list\n  # group\n\n  1, # one\n  3,\n\n  # lost\n\n  # below\n]");
        assert_eq!(to(list, "[]"), "[ # the list\n  # group\n\n\n  # lost\n\n  # below\n]");
        assert_eq!(to("[\n  # none yet\n]", "[1]"), "[\n    1,\n  # none yet\n]");
    }

    #[test]
    fn a_server_with_another_weight_is_the_same_server() {
        let servers = "[\n  \":1\", # one\n  { weight = 2, address = \":2\" }, # two\n  \":3\", # three\n]";
        assert_eq!(
            to(servers, r#"[{"address": ":2", "weight": 5}, {"address": ":1", "weight": 3}, ":4"]"#),
            "[\n  { address = \":2\", weight = 5 }, # two\n  { address = \":1\", weight = 3 }, # one\n  \":4\",\n]"
        );
        let same = r#"[":1", {"address": ":2", "weight": 2}, ":3", ":4"]"#;
        assert_eq!(to(servers, same), servers.replace("three\n", "three\n  \":4\",\n"));
    }

    #[test]
    fn a_long_list_is_edited_in_time_that_grows_with_its_length() {
        let list: Vec<String> = (0..20_000).map(|item| item.to_string()).collect();
        let line = |item: &String| format!("  {item}, # of {item}\n");
        let array = format!("[\n{}]", list.iter().map(line).collect::<Vec<_>>().concat());
        let turned: Vec<String> = list.iter().rev().cloned().collect();
        let expected = turned.iter().map(line).collect::<Vec<_>>().concat();
        assert_eq!(to(&array, &format!("[{}]", turned.join(","))), format!("[\n{expected}]"));
    }

    /// An item as it is written: the lines above it, which are comments or blank; whether it begins a line, has a comment behind
    /// it, and stands apart from its comma.
    type Written = (Vec<bool>, bool, bool, bool);

    fn push(text: &mut String, more: &str) {
        text.push_str(more);
    }

    /// The text of an array of the numbers from 0, each with comments of its own, and the comments of none.
    fn array_of(items: &[Written], (has_opening, has_comma, has_below): (bool, bool, bool)) -> (String, Vec<String>) {
        let (mut text, mut loose) = ("[".to_owned(), Vec::new());
        if has_opening {
            text.push_str(" # opening\n");
            loose.push("# opening".to_owned());
        }
        for (at, (above, begins, has_behind, is_apart)) in items.iter().enumerate() {
            let is_fresh = text.ends_with('\n');
            if (*begins || !above.is_empty()) && !is_fresh {
                text.push('\n');
            }
            let last_blank = above.iter().rposition(|is_comment| !is_comment);
            for (number, line) in above.iter().enumerate() {
                if !line {
                    text.push('\n');
                    continue;
                }
                let comment = format!("# above {at}, {number}");
                push(&mut text, &format!("  {comment}\n"));
                if last_blank.is_some_and(|blank| number < blank) {
                    loose.push(comment);
                }
            }
            let comma = if at + 1 < items.len() || has_comma { "," } else { "" };
            push(&mut text, &format!("  {at}{}{comma}", if *is_apart { " " } else { "" }));
            if *has_behind {
                push(&mut text, &format!(" # behind {at}, x\n"));
            }
        }
        if has_below {
            text.push_str("\n  # below\n");
            loose.push("# below".to_owned());
        }
        text.push(']');
        (text, loose)
    }

    /// The array written anew.
    fn again(array: &str, new: &[Value]) -> Option<String> {
        let text = format!("x = {array}\n");
        let document = toml_edit::Document::parse(text.as_str()).unwrap();
        edited(Layout { text: &text }, document["x"].as_array().unwrap(), new, "\n")
    }

    /// The comments that an item owns in a text.
    fn owned(text: &str, item: usize) -> Vec<String> {
        let lines: Vec<&str> = text.lines().collect();
        let is_item = |line: &str| {
            let code = line.split('#').next().unwrap_or_default();
            code.split(|c: char| !c.is_ascii_digit()).any(|number| number == item.to_string())
        };
        let Some(at) = lines.iter().position(|line| is_item(line)) else { return Vec::new() };
        let code = lines[at].split('#').next().unwrap_or_default();
        let numbers: Vec<&str> =
            code.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).collect();
        let mut owned: Vec<String> = Vec::new();
        // Those above are of the first item of the line, the one behind is of the last one.
        if numbers.first() == Some(&item.to_string().as_str()) {
            let above = lines[..at].iter().rev().take_while(|line| line.trim_start().starts_with('#'));
            owned.extend(above.map(|line| line.trim().to_owned()));
        }
        if numbers.last() == Some(&item.to_string().as_str()) && lines[at].contains('#') {
            owned.push(lines[at][code.len()..].to_owned());
        }
        owned
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn comments_stay_with_their_items(
            items in proptest::collection::vec(
                (proptest::collection::vec(any::<bool>(), 0..3), any::<bool>(), any::<bool>(), any::<bool>()),
                1..6,
            ),
            frame in any::<(bool, bool, bool)>(),
            new in proptest::collection::vec(0..8_usize, 0..7).prop_map(|mut new| {
                let mut seen = HashSet::new();
                new.retain(|item| seen.insert(*item));
                new
            }),
        ) {
            let (text, loose) = array_of(&items, frame);
            let json = format!("[{}]", new.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
            let after = to(&text, &json);
            let values: Vec<Value> = (0..items.len()).map(|item| Value::Integer(i64::try_from(item).unwrap())).collect();
            prop_assert_eq!(again(&text, &values), Some(text.clone()), "nothing changes: byte for byte");
            for item in 0..8 {
                let expected = if new.contains(&item) { owned(&text, item) } else { Vec::new() };
                prop_assert_eq!(owned(&after, item), expected, "{}: {}\n=>\n{}", item, text, after);
            }
            let staying: Vec<String> = new.iter().flat_map(|item| owned(&text, *item)).chain(loose).collect();
            prop_assert_eq!(after.matches('#').count(), staying.len(), "{}\n=>\n{}", text, after);
            for comment in staying {
                prop_assert_eq!(after.matches(comment.as_str()).count(), 1, "{}: {}\n=>\n{}", comment, text, after);
            }
            prop_assert_eq!(to(&after, &json), after, "the same again");
        }
    }
}
