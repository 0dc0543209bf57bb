//! Reads what an answer says that its request has cost, as the answer passes.

use super::response_cost::{CostSource, MissingUsage, ResponseCost, SourceValue, Stated, in_field};
use sluicegate_json::{EventPart, EventSplitter, FoundValue, JsonPointer, PointerReader};

/// Reads the costs that one answer states beyond its head, for all limits that ask for them. It keeps values and counts, no
/// text.
#[derive(Debug)]
pub struct UsageReader {
    form: AnswerForm,
    /// Bytes of a byte order mark that came, which stands before the text; all of it: the text has begun.
    mark: usize,
    events: u64,
    splitter: EventSplitter,
    json: PointerReader,
    owed: Vec<OwedCost>,
}

/// UTF-8's byte order mark.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The cost of one limit.
#[derive(Debug)]
struct OwedCost {
    /// The place of the limit in the policy.
    place: usize,
    cost: ResponseCost,
    /// The values of its sources that are in the head, each at its source's place.
    in_head: Vec<SourceValue>,
}

/// The form of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// One JSON text.
    Json,
    /// A JSON text in each line.
    Lines,
    /// `text/event-stream`, a JSON text in each event.
    Events,
    /// It has a content coding.
    Coded,
    /// Its type is none of these.
    OtherType,
}

impl AnswerForm {
    /// The form that the fields of an answer's head say.
    pub fn of<'b>(fields: impl Iterator<Item = (&'b [u8], &'b [u8])>) -> Self {
        let mut form = Self::OtherType;
        for (name, value) in fields {
            if name.eq_ignore_ascii_case(b"content-encoding") && !value.trim_ascii().eq_ignore_ascii_case(b"identity") {
                return Self::Coded;
            }
            if name.eq_ignore_ascii_case(b"content-type") {
                form = Self::of_type(value);
            }
        }
        form
    }

    fn of_type(value: &[u8]) -> Self {
        const LINES: [&[u8]; 6] = [
            b"application/x-ndjson",
            b"application/ndjson",
            b"application/jsonl",
            b"application/jsonlines",
            b"application/x-jsonlines",
            b"application/stream+json",
        ];
        let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
        let kind = value[..end].trim_ascii();
        let is = |own: &[u8]| own.eq_ignore_ascii_case(kind);
        let is_suffixed = kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case(b"+json");
        match () {
            () if is(b"text/event-stream") => Self::Events,
            () if LINES.into_iter().any(is) => Self::Lines,
            () if is(b"application/json") || is(b"text/json") || is_suffixed => Self::Json,
            () => Self::OtherType,
        }
    }
}

impl UsageReader {
    /// For an answer of this form, with these fields of its head, and for these limits, each with its place in the policy.
    pub fn new<'b, 'c>(
        form: AnswerForm,
        fields: &(impl Iterator<Item = (&'b [u8], &'b [u8])> + Clone),
        costs: impl Iterator<Item = (usize, &'c ResponseCost)>,
    ) -> Self {
        let owed = |(place, cost): (usize, &ResponseCost)| {
            let in_head = cost.sources.iter().map(|source| match source {
                CostSource::Header(name) => in_field(name, fields.clone()),
                CostSource::Json(_) | CostSource::Trailer(_) => SourceValue::Missing,
            });
            OwedCost { place, cost: cost.clone(), in_head: in_head.collect() }
        };
        let owed: Vec<_> = costs.map(owed).collect();
        let mut pointers: Vec<JsonPointer> = Vec::new();
        for source in owed.iter().flat_map(|owed| &*owed.cost.sources) {
            if let CostSource::Json(pointer) = source
                && !pointers.contains(pointer)
            {
                pointers.push(pointer.clone());
            }
        }
        Self {
            form,
            mark: 0,
            events: 0,
            splitter: EventSplitter::default(),
            json: PointerReader::new(pointers, false),
            owed,
        }
    }

    /// The form of the answer.
    pub fn form(&self) -> AnswerForm {
        self.form
    }

    /// Takes the next bytes of the answer's content.
    pub fn feed(&mut self, mut content: &[u8]) {
        while let (Some(next), Some((byte, rest))) = (MARK.get(self.mark), content.split_first()) {
            if next != byte {
                self.mark = MARK.len();
                break;
            }
            self.mark += 1;
            content = rest;
        }
        match self.form {
            AnswerForm::Json => self.json.feed(content),
            AnswerForm::Lines => {
                while let Some(end) = memchr::memchr(b'\n', content) {
                    self.json.feed(&content[..end]);
                    self.end_text();
                    content = &content[end + 1..];
                }
                self.json.feed(content);
            }
            AnswerForm::Events => {
                let Self { events, splitter, json, .. } = self;
                splitter.feed(content, |part| match part {
                    EventPart::Data(data) => json.feed(data),
                    EventPart::End => *events += u64::from(json.end_text()),
                });
            }
            AnswerForm::Coded | AnswerForm::OtherType => {}
        }
    }

    /// The answer is complete.
    pub fn end(&mut self) {
        match self.form {
            AnswerForm::Json => _ = self.json.end_text(),
            AnswerForm::Lines => self.end_text(),
            AnswerForm::Events => {
                let Self { events, splitter, json, .. } = self;
                splitter.end(|part| match part {
                    EventPart::Data(data) => json.feed(data),
                    EventPart::End => *events += u64::from(json.end_text()),
                });
            }
            AnswerForm::Coded | AnswerForm::OtherType => {}
        }
    }

    fn end_text(&mut self) {
        self.events += u64::from(self.json.end_text());
    }

    /// The cost that is stated for the limit at this place, with these trailers.
    pub fn stated<'b>(
        &self,
        place: usize,
        trailers: &(impl Iterator<Item = (&'b [u8], &'b [u8])> + Clone),
    ) -> Option<Stated> {
        let OwedCost { cost, in_head, .. } = self.owed.iter().find(|owed| owed.place == place)?;
        let values = cost.sources.iter().zip(in_head).map(|(source, in_head)| match source {
            CostSource::Header(_) => *in_head,
            CostSource::Trailer(name) => in_field(name, trailers.clone()),
            CostSource::Json(pointer) => match self.json.value(pointer) {
                FoundValue::Nothing => SourceValue::Missing,
                FoundValue::Number(number) => number.whole().map_or(SourceValue::NoNumber, SourceValue::Number),
                FoundValue::Text(_) | FoundValue::Other => SourceValue::NoNumber,
            },
        });
        Some(match (cost.sum(values), cost.missing_usage) {
            (Stated::NoNumber, MissingUsage::Events) if self.events > 0 => Stated::Events(self.events.min(cost.max)),
            (stated, _) => stated,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::iter::empty;

    use super::super::response_cost::tests::{cost, header, json};
    use super::*;

    fn fields<'f>(lines: &'f [(&str, &str)]) -> impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone {
        lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
    }

    /// The cost that an answer of this type states at these sources, cut into pieces of so many bytes.
    fn stated(kind: &str, body: &str, sources: &[CostSource], missing_usage: MissingUsage, piece: usize) -> Stated {
        let head = [("Content-Type", kind), ("X-Head", "5")];
        let cost = ResponseCost { missing_usage, ..cost(sources, 1_000_000) };
        let mut reader = UsageReader::new(AnswerForm::of(fields(&head)), &fields(&head), [(3, &cost)].into_iter());
        body.as_bytes().chunks(piece).for_each(|piece| reader.feed(piece));
        reader.end();
        assert_eq!(reader.stated(2, &empty()), None);
        reader.stated(3, &fields(&[("x-tail", "100")])).unwrap()
    }

    /// Answers as four vendors document them, written by hand.
    #[test]
    fn reads_the_forms_of_four_vendors_cut_at_every_byte() {
        let completions = [json("/usage/prompt_tokens"), json("/usage/completion_tokens")];
        let messages = [json("/message/usage/input_tokens"), json("/usage/input_tokens"), json("/usage/output_tokens")];
        let responses = [json("/response/usage/total_tokens")];
        let generate = [json("/usageMetadata/totalTokenCount")];
        let chat = [json("/prompt_eval_count"), json("/eval_count")];
        for (kind, body, sources, expected) in [
            (
                "application/json",
                "{\"id\":\"c-1\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"{\\\"usage\\\":{}}\"}}],\
                 \"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n",
                &completions[..],
                29,
            ),
            (
                "text/event-stream; charset=utf-8",
                "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n\
                 data: {\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":2}}\n\n\
                 data: [DONE]\n\n",
                &completions,
                21,
            ),
            (
                "text/event-stream",
                "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n\
                 event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"total_tokens\":33}}}\n\n",
                &responses,
                33,
            ),
            (
                "text/event-stream; charset=utf-8",
                "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
                 event: ping\ndata: {\"type\": \"ping\"}\n\n\
                 event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\n\
                 event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n\
                 event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
                &messages,
                40,
            ),
            (
                "application/json",
                "{\"type\":\"message\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}],\"usage\":{\"input_tokens\":25,\"output_tokens\":15}}",
                &messages,
                40,
            ),
            (
                "text/event-stream",
                "data: {\"candidates\":[],\"usageMetadata\":{\"promptTokenCount\":4,\"totalTokenCount\":5}}\r\n\r\n\
                 data: {\"candidates\":[],\"usageMetadata\":{\"promptTokenCount\":4,\"totalTokenCount\":14}}\r\n\r\n",
                &generate,
                14,
            ),
            (
                "application/x-ndjson",
                "{\"message\":{\"content\":\"Hi\"},\"done\":false}\n{\"done\":true,\"prompt_eval_count\":26,\"eval_count\":298}\n",
                &chat,
                324,
            ),
        ] {
            let marked = format!("\u{feff}{body}");
            for piece in 1..=body.len() {
                let after_mark = stated(kind, &marked, sources, MissingUsage::Estimate, piece);
                assert_eq!(after_mark, Stated::Cost(expected), "{body} behind a mark");
                let stated = stated(kind, body, sources, MissingUsage::Estimate, piece);
                assert_eq!(stated, Stated::Cost(expected), "{body} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn what_states_nothing_is_no_number_or_its_events() {
        let total = [json("/usage/total")];
        let stream = "data: {\"delta\":\"a\"}\n\ndata: {\"delta\":\"b\"}\n\ndata: [DONE]\n\n: end\n\n";
        for (kind, body, estimate, events) in [
            ("text/event-stream", stream, Stated::NoNumber, Stated::Events(2)),
            ("application/jsonl", "{\"a\":1}\n\n{\"a\":2}\nnothing\n{\"a\":3}", Stated::NoNumber, Stated::Events(3)),
            ("application/json", "{\"usage\":{}}", Stated::NoNumber, Stated::NoNumber),
            ("application/json", "{\"usage\":{\"total\":5}", Stated::NoNumber, Stated::NoNumber),
            ("application/json", "{\"usage\":{\"total\":\"5\"}}", Stated::NoNumber, Stated::NoNumber),
            ("application/json", "{\"usage\":{\"total\":-5}}", Stated::NoNumber, Stated::NoNumber),
            ("application/json", "{\"usage\":{\"total\":5,\"total\":6}}", Stated::Cost(6), Stated::Cost(6)),
            ("application/json", "{\"usage\":{\"total\":5e9}}", Stated::TooMuch(1_000_000), Stated::TooMuch(1_000_000)),
            ("text/html", "{\"usage\":{\"total\":5}}", Stated::NoNumber, Stated::NoNumber),
        ] {
            assert_eq!(stated(kind, body, &total, MissingUsage::Estimate, 7), estimate, "{body}");
            assert_eq!(stated(kind, body, &total, MissingUsage::Events, 7), events, "{body}");
        }
    }

    #[test]
    fn sources_of_head_body_and_trailers_are_added_up() {
        let all = [header("x-head"), json("/n"), CostSource::Trailer("x-tail".into()), header("x-none"), json("/none")];
        assert_eq!(stated("application/json", "{\"n\":20}", &all, MissingUsage::Estimate, 3), Stated::Cost(125));
    }

    #[test]
    fn the_form_is_that_of_the_type_and_none_where_it_is_coded() {
        for (lines, form) in [
            (&[("content-type", "Application/JSON; charset=utf-8")][..], AnswerForm::Json),
            (&[("content-type", "application/problem+json")], AnswerForm::Json),
            (&[("content-type", "application/stream+json")], AnswerForm::Lines),
            (&[("content-type", "text/event-stream")], AnswerForm::Events),
            (&[("content-type", "application/jsonp")], AnswerForm::OtherType),
            (&[("content-type", "+json")], AnswerForm::OtherType),
            (&[], AnswerForm::OtherType),
            (&[("content-encoding", "identity"), ("content-type", "application/json")], AnswerForm::Json),
            (&[("content-type", "application/json"), ("Content-Encoding", "gzip")], AnswerForm::Coded),
        ] {
            assert_eq!(AnswerForm::of(fields(lines)), form, "{lines:?}");
        }
    }
}
