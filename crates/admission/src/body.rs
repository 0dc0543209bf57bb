//! Fields of a request's body, as keys and costs are made of them.

use std::fmt;
use std::sync::Arc;

use super::spelling::loose;
use sluicegate_json::{FoundValue, JsonNumber, JsonPointer, MAX_TEXT_BYTES, PointerReader};

/// The most bytes of a pair of a form that are kept: the name and the value, with each byte escaped.
const MAX_PAIR: usize = 3 * (MAX_TEXT_BYTES + 128) + 1;

/// A field of a request's body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BodyField {
    /// The value there in its JSON.
    Json(JsonPointer),
    /// The field of that name of its form (`application/x-www-form-urlencoded`).
    Form(Box<str>),
}

impl BodyField {
    /// One as in the configuration: `json:/model`, `form:user`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("json", pointer) => JsonPointer::parse(pointer).ok().map(Self::Json),
            ("form", name) if !name.is_empty() => Some(Self::Form(name.into())),
            _ => None,
        }
    }
}

impl fmt::Display for BodyField {
    /// As in the configuration: `json:/model`, `form:user`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Form(name) => write!(f, "form:{name}"),
        }
    }
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyValue {
    /// None, an empty one or `null`.
    Absent,
    /// Something that is no value for sure: it is there twice, or it is neither a text nor a number, or the body could not be
    /// read to its end.
    Unusable,
    /// A text.
    Text(Box<str>),
    /// A number.
    Number(JsonNumber),
}

/// The fields that were read of a request's body. By default it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyFacts(Vec<(BodyField, BodyValue)>);

impl BodyFacts {
    /// Of these fields.
    pub fn new(fields: impl IntoIterator<Item = (BodyField, BodyValue)>) -> Self {
        Self(fields.into_iter().collect())
    }

    /// Of a body that could not be read.
    pub fn unusable(fields: &[BodyField]) -> Self {
        Self::new(fields.iter().map(|field| (field.clone(), BodyValue::Unusable)))
    }

    /// Adds a text, as a log has it.
    pub fn add(&mut self, field: BodyField, text: &str) {
        self.0.push((field, BodyValue::Text(text.into())));
    }

    /// The value of a field.
    pub fn value(&self, field: &BodyField) -> &BodyValue {
        self.0.iter().find(|(own, _)| own == field).map_or(&BodyValue::Absent, |(_, value)| value)
    }
}

/// Reads fields of a body as it comes. It keeps the values and one pair of a form, no other text.
#[derive(Debug)]
pub struct BodyReader {
    fields: Arc<[BodyField]>,
    json: PointerReader,
    form: FormReader,
    /// Whether its type says that it is a form.
    is_form: bool,
    /// Whether its type names a charset that is read here as another text than by a server.
    is_foreign: bool,
    is_empty: bool,
}

impl BodyReader {
    /// For a body of this type.
    pub fn new(fields: &Arc<[BodyField]>, content_type: Option<&[u8]>) -> Self {
        const FORM: &[u8] = b"application/x-www-form-urlencoded";
        let mut parts = content_type.unwrap_or_default().split(|byte| *byte == b';');
        let kind = parts.next().unwrap_or_default();
        let pointers = fields.iter().filter_map(|field| match field {
            BodyField::Json(pointer) => Some(pointer.clone()),
            BodyField::Form(_) => None,
        });
        let names = fields.iter().filter_map(|field| match field {
            BodyField::Json(_) => None,
            BodyField::Form(name) => Some((name.clone(), BodyValue::Absent)),
        });
        Self {
            fields: Arc::clone(fields),
            json: PointerReader::new(pointers, true),
            form: FormReader { found: names.collect(), pair: Vec::new(), is_cut: false },
            is_form: kind.trim_ascii().eq_ignore_ascii_case(FORM),
            is_foreign: parts.any(is_foreign_charset),
            is_empty: true,
        }
    }

    /// Takes the next bytes of its content.
    pub fn feed(&mut self, content: &[u8]) {
        self.is_empty &= content.is_empty();
        if self.is_form {
            self.form.feed(content);
        } else {
            self.json.feed(content);
        }
    }

    /// The fields of the body; `is_complete`: all of it came. Only of a whole body a value is sure: behind the part
    /// that is here the field may come again, and servers disagree on which one they take.
    pub fn finish(mut self, is_complete: bool) -> BodyFacts {
        if self.is_empty && is_complete {
            return BodyFacts::default();
        }
        if !is_complete || self.is_foreign {
            return BodyFacts::unusable(&self.fields);
        }
        let is_json = !self.is_form && self.json.end_text();
        self.form.end_pair();
        let value = |field: &BodyField| match field {
            // What is no form, or no JSON, may be one for the server all the same.
            BodyField::Form(name) if self.is_form => self.form.value(name),
            BodyField::Json(pointer) if is_json && !self.json.is_ambiguous(pointer) => match self.json.value(pointer) {
                FoundValue::Nothing => BodyValue::Absent,
                FoundValue::Number(number) => BodyValue::Number(*number),
                FoundValue::Text(text) => BodyValue::Text(text.clone()),
                FoundValue::Other => BodyValue::Unusable,
            },
            BodyField::Form(_) | BodyField::Json(_) => BodyValue::Unusable,
        };
        BodyFacts::new(self.fields.iter().map(|field| (field.clone(), value(field))))
    }
}

/// Whether a parameter of a type names a charset in which other bytes stand for a text than in UTF-8.
fn is_foreign_charset(parameter: &[u8]) -> bool {
    let end = parameter.iter().position(|byte| *byte == b'=').unwrap_or(parameter.len());
    let (name, value) = parameter.split_at(end);
    let value = value.get(1..).unwrap_or_default().trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    let is_ours = [&b"utf-8"[..], b"utf8", b"us-ascii"].iter().any(|own| own.eq_ignore_ascii_case(value));
    name.trim_ascii().eq_ignore_ascii_case(b"charset") && !is_ours
}

/// The name of a field of a form as servers may read it that fold names: without its case, blanks around it and what stands in
/// brackets behind it, with `.` and blanks as `_`.
fn folded(name: impl Iterator<Item = u8>) -> Vec<u8> {
    let name: Vec<u8> = name.take_while(|byte| !matches!(byte, b'[' | 0)).collect();
    let fold = |byte: &u8| if matches!(byte, b'.' | b' ') { b'_' } else { byte.to_ascii_lowercase() };
    name.trim_ascii().iter().map(fold).collect()
}

/// Reads pairs of a form.
#[derive(Debug)]
struct FormReader {
    found: Vec<(Box<str>, BodyValue)>,
    pair: Vec<u8>,
    /// Whether the pair is longer than is kept.
    is_cut: bool,
}

impl FormReader {
    fn feed(&mut self, content: &[u8]) {
        for (index, piece) in content.split(|byte| *byte == b'&').enumerate() {
            if index > 0 {
                self.end_pair();
            }
            let room = MAX_PAIR - self.pair.len();
            self.is_cut |= piece.len() > room;
            self.pair.extend_from_slice(&piece[..piece.len().min(room)]);
        }
    }

    fn end_pair(&mut self) {
        // Some servers part pairs by it, too.
        let is_parted = self.pair.contains(&b';');
        for pair in self.pair.split(|byte| *byte == b';') {
            let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let (name, value) = pair.split_at(end);
            let alike = folded(loose(name));
            for (own, found) in self.found.iter_mut().filter(|(own, _)| folded(own.bytes()) == alike) {
                let value: Vec<u8> = loose(value.get(1..).unwrap_or_default()).collect();
                let is_usable = loose(name).eq(own.bytes())
                    && *found == BodyValue::Absent
                    && !is_parted
                    && !self.is_cut
                    && value.len() <= MAX_TEXT_BYTES;
                *found = match String::from_utf8(value) {
                    Ok(text) if is_usable => BodyValue::Text(text.into()),
                    _ => BodyValue::Unusable,
                };
            }
        }
        self.pair.clear();
        self.is_cut = false;
    }

    fn value(&self, name: &str) -> BodyValue {
        self.found.iter().find(|(own, _)| **own == *name).map_or(BodyValue::Absent, |(_, value)| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(pointer: &str) -> BodyField {
        BodyField::Json(JsonPointer::parse(pointer).unwrap())
    }

    fn text(text: &str) -> BodyValue {
        BodyValue::Text(text.into())
    }

    /// The values of these fields in a body of this type that comes in pieces of each size.
    fn values(fields: &[BodyField], kind: Option<&str>, body: &[u8], is_complete: bool) -> Vec<BodyValue> {
        let fields: Arc<[BodyField]> = fields.into();
        let read = |piece: usize| {
            let mut reader = BodyReader::new(&fields, kind.map(str::as_bytes));
            body.chunks(piece).for_each(|piece| reader.feed(piece));
            let facts = reader.finish(is_complete);
            fields.iter().map(|field| facts.value(field).clone()).collect::<Vec<_>>()
        };
        let whole = read(body.len().max(1));
        assert!((1..body.len()).all(|piece| read(piece) == whole), "{}", String::from_utf8_lossy(body));
        whole
    }

    #[test]
    fn a_value_of_json_is_read_whatever_the_type_says() {
        let fields = [json("/user/id"), json("/model")];
        for kind in [None, Some("application/json"), Some("text/plain")] {
            let body = br#"{"user":{"id":17},"model":"a\u0062c"}"#;
            let read = values(&fields, kind, body, true);
            assert!(
                matches!(&read[..], [BodyValue::Number(id), model] if id.plain() == Some("17") && *model == text("abc"))
            );
        }
        use BodyValue::{Absent, Unusable};
        for (body, expected) in [
            (&b"{}"[..], [Absent, Absent]),
            (b"", [Absent, Absent]),
            (br#"{"user":{"id":null},"model":"m"}"#, [Absent, text("m")]),
            (br#"{"user":{"id":"a"},"user":{"id":"b"},"model":"m"}"#, [Unusable, text("m")]),
            (br#"{"model":"m","Model":"n"}"#, [Absent, Unusable]),
            (br#"{"model":["m"]}"#, [Absent, Unusable]),
            (br#"{"model":"m""#, [Unusable, Unusable]),
            (b"user=5&model=m", [Unusable, Unusable]),
            (b"\xff", [Unusable, Unusable]),
        ] {
            assert_eq!(
                values(&fields, Some("application/json"), body, true),
                expected,
                "{}",
                String::from_utf8_lossy(body)
            );
        }
        assert_eq!(values(&fields, None, br#"{"model":"m"}"#, false), [Unusable, Unusable], "more may come");
    }

    #[test]
    fn a_field_of_a_form_is_read_once() {
        use BodyValue::{Absent, Unusable};
        let fields = [BodyField::Form("user".into()), BodyField::Form("a b".into())];
        let kind = Some("application/x-www-form-urlencoded; charset=utf-8");
        let long = format!("user={}&a+b=1", "x".repeat(MAX_TEXT_BYTES + 1));
        let escaped = format!("user={}&a+b=1", "%78".repeat(MAX_TEXT_BYTES));
        let endless = format!("user={}&a+b=1", "%78".repeat(MAX_TEXT_BYTES * 2));
        for (body, expected) in [
            ("user=ann&a+b=1", [text("ann"), text("1")]),
            ("x=1&%75ser=a%20b&a%20b=%2b", [text("a b"), text(" ")]),
            ("user=ann&user=ann", [Unusable, Absent]),
            ("user=&x", [text(""), Absent]),
            ("user", [text(""), Absent]),
            ("users=1&use=2&xuser=3", [Absent, Absent]),
            ("USER=3", [Unusable, Absent]),
            ("user=ann&USER=zoe", [Unusable, Absent]),
            ("user=ann&+user=zoe", [Unusable, Absent]),
            ("user=ann&user[]=zoe", [Unusable, Absent]),
            ("user=ann&user%00x=zoe&a_b=1", [Unusable, Unusable]),
            ("user=ann;x=1", [Unusable, Absent]),
            ("x=1;user=ann", [Unusable, Absent]),
            ("user=%ff", [Unusable, Absent]),
            (&long, [Unusable, text("1")]),
            (&escaped, [text(&"x".repeat(MAX_TEXT_BYTES)), text("1")]),
            (&endless, [Unusable, text("1")]),
        ] {
            assert_eq!(values(&fields, kind, body.as_bytes(), true), expected, "{body}");
        }
        assert_eq!(values(&fields, Some("multipart/form-data"), b"user=ann", true), [Unusable, Unusable]);
        assert_eq!(values(&fields, kind, b"", true), [Absent, Absent]);
        let form = |charset: &str| format!("application/x-www-form-urlencoded; a=b{charset}");
        for (charset, first) in [
            ("", text("ann")),
            ("; charset=UTF-8", text("ann")),
            (";charset=\"utf-8\"", text("ann")),
            ("; Charset = us-ascii", text("ann")),
            ("; charset=utf-7", Unusable),
            ("; charset=ibm037", Unusable),
            ("; charset=", Unusable),
            ("; charset=utf-8; charset=utf-16", Unusable),
        ] {
            assert_eq!(values(&fields, Some(&form(charset)), b"user=ann", true)[0], first, "{charset}");
        }
        assert_eq!(
            values(&[json("/user")], Some("application/json; charset=utf-7"), br#"{"user":"ann"}"#, true),
            [Unusable]
        );
    }
}
