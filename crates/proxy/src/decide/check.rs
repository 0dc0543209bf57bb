//! The JSON of `POST /v1/check`: bytes in, questions out; answers in, bytes out.
//!
//! Bound: at most [`MAX_QUESTIONS`] are read of a body, and none of them recurses. A question that cannot be read is a
//! [`QuestionFault`] in its place; the others are read all the same.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use serde_json::value::RawValue;

use super::description::{Described, DescribedLine, is_of_the_exchange, parts_of, scheme_of};
use crate::answer::{Problem, respond};
use sluicegate_http1::Version;
use sluicegate_time::Span;

/// Questions in one body.
pub const MAX_QUESTIONS: usize = 256;

/// Items of a list.
const MAX_LIST: usize = 1_000;
/// Bytes of the fields of a request, each with so many beside its name and its value.
const MAX_FIELDS_BYTES: usize = 1024 * 1024;
const FIELD_COST: usize = 64;
/// Bytes of the detail of a fault.
const MAX_DETAIL: usize = 600;

/// The questions of a body.
#[derive(Debug)]
pub struct QuestionBatch<'b> {
    /// In their order, each to be [read](question) when its turn comes.
    pub questions: Vec<&'b str>,
    /// Whether they came in an array, so that the answers are one too.
    pub is_array: bool,
}

/// A question.
#[derive(Debug)]
pub struct CheckQuestion {
    /// The thing that it is about.
    pub about: Subject,
    /// Whether nothing is to be counted.
    pub is_peek: bool,
}

/// The thing that a question is about.
#[derive(Debug)]
pub enum Subject {
    /// A key of a limit.
    Key {
        /// The name of the limit.
        limit: String,
        /// A value for each part of its key.
        values: Vec<String>,
        /// At least 1.
        cost: u64,
    },
    /// A request.
    Request(Described),
}

/// A question that cannot be decided.
#[derive(Debug, PartialEq, Eq)]
pub struct QuestionFault {
    /// The status that says so.
    pub status: u16,
    /// Why, and how to mend it.
    pub detail: String,
}

/// The answer to a question that was decided. Spans are in milliseconds.
#[derive(Debug, Default, Serialize)]
pub struct CheckAnswer {
    /// Whether it may go on.
    pub allowed: bool,
    /// The limit that the numbers are of: the one that refuses, else the one with the least left; `None`: there is none.
    pub limit: Option<Arc<str>>,
    /// How many more of cost 1 it would admit now.
    pub remaining: Option<u64>,
    /// The quota of its rate.
    pub limit_value: Option<u64>,
    /// When to come back; `None`: never, or it is not known. 0 where it may go on.
    pub retry_after_ms: Option<u64>,
    /// When `remaining` grows; `None`: nothing is taken.
    pub reset_ms: Option<u64>,
    /// Whether a limit in shadow mode would have refused it.
    pub shadow: bool,
    /// The window of that rate.
    #[serde(skip)]
    pub window: Option<Span>,
    /// The fields that the answer to the request has, where they are asked for.
    #[serde(skip)]
    pub fields: Vec<(String, String)>,
}

impl QuestionFault {
    /// A text in it that came with the question may be long: the detail is cut.
    pub fn new(status: u16, mut detail: String) -> Self {
        let end = (0..=MAX_DETAIL).rfind(|end| detail.is_char_boundary(*end));
        detail.truncate(end.unwrap_or(0));
        Self { status, detail }
    }
}

/// Reads the questions of a body.
///
/// # Errors
/// It is no JSON, or neither an object nor an array of at most [`MAX_QUESTIONS`]: in words.
pub fn read(body: &[u8]) -> Result<QuestionBatch<'_>, String> {
    let is_array = body.trim_ascii_start().first() == Some(&b'[');
    let wrong = |error: serde_json::Error| format!("The body is no question: {error}.");
    let texts: Vec<&RawValue> = if is_array {
        serde_json::from_slice::<Texts<'_>>(body).map_err(wrong)?.0
    } else {
        vec![serde_json::from_slice(body).map_err(wrong)?]
    };
    Ok(QuestionBatch { questions: texts.into_iter().map(RawValue::get).collect(), is_array })
}

/// Writes the answers.
pub fn write(answers: &[Result<CheckAnswer, QuestionFault>], is_array: bool, body: &mut Vec<u8>) {
    if is_array {
        body.push(b'[');
    }
    for (place, answer) in answers.iter().enumerate() {
        if place > 0 {
            body.push(b',');
        }
        match answer {
            // Numbers, and the name of a limit: that cannot fail.
            Ok(answer) => drop(serde_json::to_writer(&mut *body, answer)),
            Err(QuestionFault { status, detail }) => {
                let problem = Problem { status: *status, detail, violated: &[], retry_after_secs: None };
                respond::write_json(&problem, body);
            }
        }
    }
    body.extend_from_slice(if is_array { b"]\n" } else { b"\n" });
}

/// First, since the rest may be cut.
const REMEDY: &str = "Send {\"limit\":\"NAME\",\"key\":\"VALUE\"}, or \
                      {\"request\":{\"method\":\"GET\",\"url\":\"https://host/path\",\"client\":\"192.0.2.7\"}}.";

/// Reads a question.
///
/// # Errors
/// It is none.
pub fn question(text: &str) -> Result<CheckQuestion, QuestionFault> {
    let wrong = |why: &dyn fmt::Display| QuestionFault::new(400, format!("{REMEDY} This is no question: {why}."));
    let written: WrittenQuestion<'_> = object(text).map_err(|why| wrong(&why))?;
    let is_peek = written.peek.unwrap_or(false);
    let about = match written {
        WrittenQuestion { limit: Some(limit), key, cost, request: None, .. } => {
            let cost = cost.map_or(Some(1), |cost| cost.as_u64().filter(|cost| *cost > 0));
            let Some(cost) = cost else {
                return Err(wrong(&"`cost` is a whole number from 1, and to count nothing is \"peek\": true"));
            };
            Subject::Key { limit, values: key.map_or_else(Vec::new, |key| key.0), cost }
        }
        WrittenQuestion { limit: None, key: None, cost: None, request: Some(request), .. } => {
            let request: Result<WrittenRequest, _> = object(request.get());
            let described = request.and_then(|request| request.described());
            Subject::Request(described.map_err(|why| wrong(&why.trim_end_matches('.')))?)
        }
        WrittenQuestion { limit: None, request: None, .. } => {
            return Err(wrong(&"it has neither `limit` nor `request`"));
        }
        WrittenQuestion { limit: Some(_), request: Some(_), .. } => {
            return Err(wrong(&"it has `limit` and `request`, of which it is about one"));
        }
        WrittenQuestion { limit: None, request: Some(_), .. } => {
            return Err(wrong(
                &"`key` and `cost` are for a question about a limit: those of a request are read out of it",
            ));
        }
    };
    Ok(CheckQuestion { about, is_peek })
}

/// Reads an object: the fields of a list would be taken by their places.
fn object<'b, T: Deserialize<'b>>(text: &'b str) -> Result<T, String> {
    if !text.starts_with('{') {
        return Err("it is no object".to_owned());
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// A question as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenQuestion<'b> {
    limit: Option<String>,
    key: Option<OneOrMany>,
    cost: Option<Number>,
    #[serde(borrow)]
    request: Option<&'b RawValue>,
    peek: Option<bool>,
}

/// A request as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRequest {
    method: String,
    /// `https://host/path?query`, or the path and the query.
    url: String,
    client: String,
    headers: Option<WrittenHeaders>,
}

impl WrittenRequest {
    fn described(&self) -> Result<Described, String> {
        let Self { method, url, client, headers } = self;
        let client: IpAddr = client.trim_ascii().parse().map_err(|_| "`client` is no address, such as 192.0.2.7")?;
        let headers = headers.as_ref().map_or(&[][..], |headers| &headers.0);
        let (is_https, host, target) = if url.starts_with('/') {
            let mut hosts = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host"));
            let host = hosts.next().map_or("", |(_, value)| value.trim_ascii());
            if hosts.next().is_some() {
                return Err("it has two hosts".to_owned());
            }
            (false, host.as_bytes(), url.as_bytes())
        } else {
            let (scheme, host, target) =
                parts_of(url.as_bytes()).ok_or("`url` is no http:// or https:// URL with a path")?;
            let is_https = scheme_of(scheme).ok_or("the scheme of `url` is neither http nor https")?;
            (is_https, host, target)
        };
        let texts = headers.iter().flat_map(|(name, value)| [name, value]);
        if texts.into_iter().any(|text| text.contains(['\r', '\n', '\0'])) {
            return Err("a line break or a zero byte cannot stand in a field".to_owned());
        }
        if headers.iter().any(|(name, _)| name.contains(':')) {
            return Err("the name of a field has a colon in it".to_owned());
        }
        let line =
            DescribedLine { method: method.as_bytes(), target, host, version: Version::Http11, is_persistent: true };
        let own = headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let head = line.head(own.filter(|(name, _)| !is_of_the_exchange(name)))?;
        Ok(Described { head, client, is_https })
    }
}

/// The texts of an array.
struct Texts<'b>(Vec<&'b RawValue>);

/// A text, or a whole number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a whole number")]
enum WrittenText {
    Text(String),
    Positive(u64),
    Negative(i64),
}

/// One text, or a list.
struct OneOrMany(Vec<String>);

impl From<WrittenText> for String {
    fn from(text: WrittenText) -> Self {
        match text {
            WrittenText::Text(text) => text,
            WrittenText::Positive(number) => number.to_string(),
            WrittenText::Negative(number) => number.to_string(),
        }
    }
}

impl<'b> Deserialize<'b> for OneOrMany {
    fn deserialize<D: Deserializer<'b>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'b> Visitor<'b> for Texts {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a whole number, or a list of them")
            }

            fn visit_str<E>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_u64<E>(self, number: u64) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![number.to_string()]))
            }

            fn visit_i64<E>(self, number: i64) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![number.to_string()]))
            }

            fn visit_seq<A: SeqAccess<'b>>(self, mut items: A) -> Result<OneOrMany, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = items.next_element::<WrittenText>()? {
                    if texts.len() == MAX_LIST {
                        return Err(A::Error::custom(format_args!("a list has more than {MAX_LIST} items")));
                    }
                    texts.push(text.into());
                }
                Ok(OneOrMany(texts))
            }
        }
        deserializer.deserialize_any(Texts)
    }
}

/// Fields: names and values. A name whose value is a list is there several times.
struct WrittenHeaders(Vec<(String, String)>);

impl<'b> Deserialize<'b> for Texts<'b> {
    fn deserialize<D: Deserializer<'b>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'b> Visitor<'b> for Items {
            type Value = Texts<'b>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of questions")
            }

            fn visit_seq<A: SeqAccess<'b>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = items.next_element()? {
                    if texts.len() == MAX_QUESTIONS {
                        return Err(A::Error::custom(format_args!("it has more than {MAX_QUESTIONS}")));
                    }
                    texts.push(text);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_seq(Items)
    }
}

impl<'b> Deserialize<'b> for WrittenHeaders {
    fn deserialize<D: Deserializer<'b>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'b> Visitor<'b> for Fields {
            type Value = WrittenHeaders;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of fields, such as {\"x-api-key\": \"k\"}")
            }

            fn visit_map<A: MapAccess<'b>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
                // One name may stand before many values.
                let mut room = MAX_FIELDS_BYTES;
                let mut all = Vec::new();
                while let Some((name, values)) = fields.next_entry::<String, OneOrMany>()? {
                    for value in values.0 {
                        let taken = name.len() + value.len() + FIELD_COST;
                        room = room.checked_sub(taken).ok_or_else(|| A::Error::custom("its fields are too large"))?;
                        all.push((name.clone(), value));
                    }
                }
                Ok(WrittenHeaders(all))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn one(text: &str) -> Result<CheckQuestion, QuestionFault> {
        let batch = read(text.as_bytes()).unwrap();
        assert!(!batch.is_array && batch.questions.len() == 1);
        question(batch.questions[0])
    }

    fn about_key(text: &str) -> (String, Vec<String>, u64, bool) {
        let CheckQuestion { about, is_peek } = one(text).unwrap();
        let Subject::Key { limit, values, cost } = about else { panic!("{text}") };
        (limit, values, cost, is_peek)
    }

    #[test]
    fn a_question_about_a_key_has_one_value_or_one_for_each_part() {
        let of = |values: &[&str]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (text, expected) in [
            (r#"{"limit":"a","key":"k"}"#, ("a", of(&["k"]), 1, false)),
            (r#" {"limit":"a","key":["k","\u00e4"],"cost":7,"peek":true} "#, ("a", of(&["k", "ä"]), 7, true)),
            (r#"{"limit":"a","key":17,"peek":false}"#, ("a", of(&["17"]), 1, false)),
            (r#"{"limit":"a","key":[-3,"x"],"cost":null}"#, ("a", of(&["-3", "x"]), 1, false)),
            (r#"{"limit":"a"}"#, ("a", of(&[]), 1, false)),
        ] {
            let (limit, values, cost, is_peek) = about_key(text);
            assert_eq!((&*limit, values, cost, is_peek), expected, "{text}");
        }
    }

    #[test]
    fn a_question_about_a_request_has_its_parts() {
        let head_of = |text: &str| {
            let Subject::Request(described) = one(text).unwrap().about else { panic!("{text}") };
            (String::from_utf8(described.head).unwrap(), described.client, described.is_https)
        };
        let text = r#"{"request":{"method":"POST","url":"https://api.example/x?y=%20","client":"2001:db8::1",
            "headers":{"X-Api-Key":"k","Host":"other","Content-Length":"5","accept":["a","b"]}}}"#;
        let expected = "POST /x?y=%20 HTTP/1.1\r\nhost: api.example\r\nX-Api-Key: k\r\naccept: a\r\naccept: b\r\n\r\n";
        assert_eq!(head_of(text), (expected.to_owned(), "2001:db8::1".parse().unwrap(), true));
        let text = r#"{"request":{"method":"GET","url":"/","client":"192.0.2.7","headers":{"HOST":" h "}}}"#;
        assert_eq!(
            head_of(text),
            ("GET / HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "192.0.2.7".parse().unwrap(), false)
        );
    }

    #[test]
    fn a_question_that_is_none_says_why() {
        let request = |fields: &str| format!(r#"{{"request":{{"method":"GET","url":"/","client":"::1",{fields}}}}}"#);
        let long = format!(r#"{{"limit":"{}"}}"#, "x".repeat(5_000)).replace("limit", "limits");
        let many = request(&format!(r#""headers":{{"{}":[{}1]}}"#, "a".repeat(100_000), "1,".repeat(900)));
        let list = format!(r#"{{"limit":"a","key":[{}1]}}"#, "1,".repeat(100_000));
        for (text, told) in [
            ("{}", "neither `limit` nor `request`"),
            ("5", "no object"),
            (r#"{"request":["GET","/","::1"]}"#, "no object"),
            (r#"{"request":7}"#, "no object"),
            (r#"{"limit":"a","key":1.5}"#, "a string, a whole number, or a list of them"),
            (r#"{"limit":"a","key":{"a":1}}"#, "a string, a whole number, or a list of them"),
            (r#"{"limit":"a","key":[["a"]]}"#, "a string or a whole number"),
            (r#"{"limit":"a","cost":0}"#, "`cost` is a whole number from 1"),
            (r#"{"limit":"a","cost":-1}"#, "`cost` is a whole number from 1"),
            (r#"{"limit":"a","cost":1.5}"#, "`cost` is a whole number from 1"),
            (r#"{"limit":"a","cost":18446744073709551616}"#, "`cost` is a whole number from 1"),
            (r#"{"limit":"a","cost":"1"}"#, "invalid type"),
            (r#"{"limit":"a","limit":"b"}"#, "duplicate field `limit`"),
            (r#"{"limit":"a","burst":1}"#, "unknown field `burst`"),
            (r#"{"limit":"a","peek":1}"#, "invalid type"),
            (r#"{"request":{"method":"GET","url":"/"}}"#, "missing field `client`"),
            (&request(r#""key":"a""#), "unknown field `key`"),
            (&request(r#""headers":{"a":"b\r\nc: d"}"#), "a line break"),
            (&request(r#""headers":{"a: b":"c"}"#), "a colon"),
            (&request(r#""headers":{"host":["a","b"]}"#), "two hosts"),
            (&request(r#""headers":[]"#), "an object of fields"),
            (r#"{"request":{"method":"GET","url":"ftp://h/","client":"::1"}}"#, "neither http nor https"),
            (r#"{"request":{"method":"GET","url":"http://h","client":"::1"}}"#, "URL with a path"),
            (r#"{"request":{"method":"GET","url":"http://h?@x/","client":"::1"}}"#, "URL with a path"),
            (r#"{"request":{"method":"GET","url":"/ x","client":"::1"}}"#, "a blank"),
            (r#"{"request":{"method":"G T","url":"/x","client":"::1"}}"#, "a blank"),
            (r#"{"request":{"method":"GET","url":"/x","client":"192.0.2.7:80"}}"#, "`client` is no address"),
            (r#"{"limit":"a","request":{"method":"GET","url":"/","client":"::1"}}"#, "`limit` and `request`"),
            (r#"{"cost":2,"request":{"method":"GET","url":"/","client":"::1"}}"#, "read out of it"),
            (&long, "unknown field `limits`"),
            (&many, "its fields are too large"),
            (&list, "a list has more than 1000 items"),
        ] {
            let QuestionFault { status, detail } = one(text).unwrap_err();
            assert!(status == 400 && detail.contains(told) && detail.len() <= MAX_DETAIL, "{text}: {detail}");
        }
        for (body, told) in
            [("", "EOF"), ("{", "EOF"), ("[{},]", "trailing comma"), ("{} {}", "trailing"), ("\u{feff}{}", "")]
        {
            let error = read(body.as_bytes()).unwrap_err();
            assert!(error.starts_with("The body is no question") && error.contains(told), "{body}: {error}");
        }
        assert!(read(&[b'[', b'"', 0xff, b'"', b']']).is_err());
    }

    #[test]
    fn an_array_is_bounded_and_what_is_wrong_in_it_stays_in_its_place() {
        let all = |count: usize| format!("[{}]", vec!["{\"limit\":\"a\"}"; count].join(","));
        assert_eq!(read(all(MAX_QUESTIONS).as_bytes()).unwrap().questions.len(), MAX_QUESTIONS);
        assert!(read(all(MAX_QUESTIONS + 1).as_bytes()).unwrap_err().contains("more than 256"));
        let deep = format!("[{}{}]", "[".repeat(100_000), "]".repeat(100_000));
        assert!(question(read(deep.as_bytes()).unwrap().questions[0]).is_err());
        let deep = format!("{{\"limit\":{}", "[".repeat(100_000));
        assert!(read(deep.as_bytes()).is_err());
        let batch = read(br#" [{"limit":"a"},["a","k"],{"limit":"b"},{"limit":""}] "#).unwrap();
        assert!(batch.is_array);
        assert_eq!(
            batch.questions.iter().map(|text| question(text).is_ok()).collect::<Vec<_>>(),
            [true, false, true, true]
        );
        assert_eq!(read(b"[]").unwrap().questions.len(), 0);
    }

    #[test]
    fn answers_are_json_in_their_order() {
        let answer = |limit: Option<&str>| CheckAnswer {
            allowed: limit.is_some(),
            limit: limit.map(Into::into),
            remaining: Some(3),
            limit_value: Some(u64::MAX),
            retry_after_ms: None,
            reset_ms: Some(0),
            shadow: false,
            ..CheckAnswer::default()
        };
        let answers = [Ok(answer(Some("a\"b"))), Err(QuestionFault::new(404, "no \"x\"".to_owned())), Ok(answer(None))];
        let mut body = Vec::new();
        write(&answers, true, &mut body);
        let written: Value = serde_json::from_slice(&body).unwrap();
        let expected = r#"[{"allowed":true,"limit":"a\"b","remaining":3,"limit_value":18446744073709551615,
            "retry_after_ms":null,"reset_ms":0,"shadow":false},
            {"type":"about:blank","title":"Not Found","status":404,"detail":"no \"x\""},
            {"allowed":false,"limit":null,"remaining":3,"limit_value":18446744073709551615,
            "retry_after_ms":null,"reset_ms":0,"shadow":false}]"#;
        assert_eq!(written, serde_json::from_str::<Value>(expected).unwrap());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

        #[test]
        fn no_body_makes_it_panic_or_lose_a_question(
            parts in vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"limit\"", "\"key\"", "\"cost\"", "\"request\"", "\"peek\"", "\"method\"",
                "\"url\"", "\"client\"", "\"headers\"", "\"a\"", "\"/\"", "\"::1\"", "\"GET\"", "1", "-1", "0.5", "1e9", "true",
                "null", "\\u0000", "\"\\ud800\"", " ", "\u{e4}", "{\"limit\":\"a\",\"key\":\"b\"}",
                "{\"request\":{\"method\":\"GET\",\"url\":\"/\",\"client\":\"::1\"}}",
            ]), 0..24),
            cut in any::<prop::sample::Index>(), noise in any::<Option<u8>>(),
        ) {
            let mut body = parts.concat().into_bytes();
            if let Some(byte) = noise.filter(|_| !body.is_empty()) {
                let at = cut.index(body.len());
                body[at] = byte;
            }
            let value: Result<Value, _> = serde_json::from_slice(&body);
            match read(&body) {
                Ok(batch) => {
                    let count = value.as_ref().ok().and_then(Value::as_array).map_or(1, Vec::len);
                    prop_assert_eq!(batch.questions.len(), count);
                    batch.questions.into_iter().for_each(|text| drop(question(text)));
                }
                Err(_) => prop_assert!(value.is_err() || !value.unwrap().is_array()),
            }
        }
    }
}
