//! Envoy's rate limit service (`envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`): bytes of gRPC in, descriptors out;
//! answers in, bytes out. Of the messages there is as much as is read or written; other fields are passed over, as protobuf has it.
//!
//! Bound: one message, as large as a question may be, with at most [`MAX_DESCRIPTORS`].

use prost::Message;

use super::check::CheckAnswer;
use super::envoy::{AnswerFields, HeaderValue, frame};
use sluicegate_admission::Descriptor;
use sluicegate_limiter::MAX_COUNT;
use sluicegate_time::Span;

/// The path of the calls.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Descriptors of one call.
const MAX_DESCRIPTORS: usize = 256;

/// Reads the descriptors of a message.
///
/// # Errors
/// It is none, or has no domain, no descriptor or too many: in words.
pub fn read(message: &[u8]) -> Result<RateLimitRequest, &'static str> {
    let request = RateLimitRequest::decode(message).map_err(|_| "The message is no RateLimitRequest.")?;
    if request.domain.is_empty() {
        return Err("The call has no domain.");
    }
    match request.descriptors.len() {
        0 => Err("The call has no descriptors."),
        1..=MAX_DESCRIPTORS => Ok(request),
        _ => Err("The call has more than 256 descriptors."),
    }
}

impl RateLimitRequest {
    /// Its descriptors as questions, with their hits; `None` in the place of one that no route can be for.
    pub fn questions(&self) -> Vec<Option<(Descriptor<'_>, u64)>> {
        let domain = str::from_utf8(&self.domain).ok();
        let of_call = u64::from(self.hits_addend.max(1));
        self.descriptors.iter().map(|written| Some((written.descriptor(domain?)?, written.hits(of_call)))).collect()
    }

    /// How many descriptors bring a limit of their own.
    pub fn overrides(&self) -> usize {
        self.descriptors.iter().filter(|descriptor| descriptor.limit.is_some()).count()
    }
}

impl WrittenDescriptor {
    fn descriptor<'q>(&'q self, domain: &'q str) -> Option<Descriptor<'q>> {
        let names: Vec<&str> =
            self.entries.iter().map(|entry| str::from_utf8(&entry.key).ok()).collect::<Option<_>>()?;
        Descriptor::new(domain, names.into_iter().zip(self.entries.iter().map(|entry| &*entry.value)))
    }

    /// Its own, else those of its call.
    fn hits(&self, of_call: u64) -> u64 {
        self.hits_addend.map_or(of_call, |own| own.value).min(MAX_COUNT)
    }
}

/// The answer to a call: one status for each descriptor, the fields for the response of the request.
pub fn answered(answers: &[Option<CheckAnswer>], fields: AnswerFields) -> Vec<u8> {
    let statuses: Vec<DescriptorStatus> = answers.iter().map(|answer| DescriptorStatus::of(answer.as_ref())).collect();
    let is_over = statuses.iter().any(|status| status.code == OVER_LIMIT);
    let response_headers_to_add = fields.into_iter().map(HeaderValue::of).collect();
    frame(&RateLimitResponse { overall_code: if is_over { OVER_LIMIT } else { OK }, statuses, response_headers_to_add })
}

/// The answer to a call that could not be read, and that must not pass.
pub fn over_limit() -> Vec<u8> {
    frame(&RateLimitResponse { overall_code: OVER_LIMIT, ..RateLimitResponse::default() })
}

/// `RateLimitResponse.Code`
const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// `RateLimitResponse.RateLimit.Unit`, where a window is one.
fn unit_of(window: Span) -> i32 {
    const DAY: u64 = 86_400;
    match window.as_nanos().checked_div(1_000_000_000) {
        Some(1) if window == Span::from_secs(1) => 1,
        Some(60) if window == Span::from_secs(60) => 2,
        Some(3_600) if window == Span::from_secs(3_600) => 3,
        Some(DAY) if window == Span::from_secs(DAY) => 4,
        _ => 0,
    }
}

impl DescriptorStatus {
    fn of(answer: Option<&CheckAnswer>) -> Self {
        let ok = Self { code: OK, ..Self::default() };
        let Some(CheckAnswer { allowed, limit, remaining, limit_value, reset_ms, window, .. }) = answer else {
            return ok;
        };
        let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let current_limit = limit_value.map(|quota| CurrentLimit {
            requests_per_unit: narrow(quota),
            unit: window.map_or(0, unit_of),
            name: limit.as_deref().unwrap_or_default().to_owned(),
        });
        let duration = |millis: u64| UntilReset {
            seconds: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
            nanos: (millis % 1000) as i32 * 1_000_000,
        };
        Self {
            code: if *allowed { OK } else { OVER_LIMIT },
            current_limit,
            limit_remaining: remaining.map_or(0, narrow),
            duration_until_reset: reset_ms.map(duration),
        }
    }
}

/// `envoy.service.ratelimit.v3.RateLimitRequest`. Texts are bytes here, which are the same on the wire: a value that comes out of a
/// field of a request need not be UTF-8.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    #[prost(bytes = "vec", tag = "1")]
    domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<WrittenDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`
#[derive(Clone, PartialEq, Message)]
struct WrittenDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<DescriptorEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<LimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<OwnHits>,
}

/// `RateLimitDescriptor.Entry`
#[derive(Clone, PartialEq, Message)]
struct DescriptorEntry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `RateLimitDescriptor.RateLimitOverride`, of which it matters that it is there.
#[derive(Clone, PartialEq, Message)]
struct LimitOverride {}

/// `google.protobuf.UInt64Value`
#[derive(Clone, Copy, PartialEq, Message)]
struct OwnHits {
    #[prost(uint64, tag = "1")]
    value: u64,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`
#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<HeaderValue>,
}

/// `RateLimitResponse.DescriptorStatus`
#[derive(Clone, PartialEq, Message)]
struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<UntilReset>,
}

/// `RateLimitResponse.RateLimit`
#[derive(Clone, PartialEq, Message)]
struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

/// `google.protobuf.Duration`
#[derive(Clone, Copy, PartialEq, Message)]
struct UntilReset {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn written(entries: &[(&[u8], &[u8])], hits: Option<u64>) -> WrittenDescriptor {
        let entries = entries.iter().map(|(key, value)| DescriptorEntry { key: key.to_vec(), value: value.to_vec() });
        WrittenDescriptor {
            entries: entries.collect(),
            limit: Some(LimitOverride {}),
            hits_addend: hits.map(|value| OwnHits { value }),
        }
    }

    #[test]
    fn hits_are_those_of_the_descriptor_else_of_the_call_and_at_least_one() {
        let of = |call, own| {
            let request = RateLimitRequest {
                domain: b"edge".to_vec(),
                descriptors: vec![written(&[(b"a", b"\xff")], own)],
                hits_addend: call,
            };
            let read = read(&request.encode_to_vec()).unwrap();
            assert_eq!((&read, read.overrides()), (&request, 1));
            let [Some((descriptor, hits))] = &*read.questions() else { panic!("one question") };
            assert_eq!(descriptor.target(), "/edge?a=%FF");
            *hits
        };
        assert_eq!([of(0, None), of(7, None), of(7, Some(0)), of(0, Some(3))], [1, 7, 0, 3]);
        assert_eq!(of(7, Some(u64::MAX)), MAX_COUNT);
    }

    #[test]
    fn a_descriptor_whose_names_are_no_text_or_occur_twice_is_none() {
        let call = |domain: &[u8], entries: &[(&[u8], &[u8])]| RateLimitRequest {
            domain: domain.to_vec(),
            descriptors: vec![written(entries, None), written(&[(b"a", b"b")], None)],
            hits_addend: 0,
        };
        for entries in [&[(&b"\xff"[..], &b"b"[..])][..], &[(b"a", b"b"), (b"a", b"c")]] {
            let request = call(b"edge", entries);
            let questions = request.questions();
            assert!(questions[0].is_none() && questions[1].is_some(), "{entries:?}");
        }
        assert!(call(b"\xff", &[(b"a", b"b")]).questions().iter().all(Option::is_none));
    }

    #[test]
    fn windows_have_the_units_of_the_service_or_none() {
        let secs = [1, 60, 3_600, 86_400, 5, 61, 604_800];
        assert_eq!(secs.map(|secs| unit_of(Span::from_secs(secs))), [1, 2, 3, 4, 0, 0, 0]);
        assert_eq!(unit_of(Span::from_millis(1_500)), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn no_message_makes_it_panic(
            entries in vec((vec(any::<u8>(), 0..5), vec(any::<u8>(), 0..20)), 0..20), hits in any::<Option<u64>>(),
            noise in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in any::<Option<prop::sample::Index>>(),
        ) {
            let entries: Vec<_> = entries.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
            let request = RateLimitRequest {
                domain: b"edge".to_vec(), descriptors: vec![written(&entries, hits); 3], hits_addend: 1,
            };
            let mut message = request.encode_to_vec();
            for (at, byte) in noise {
                let at = at.index(message.len());
                message[at] = byte;
            }
            message.truncate(cut.map_or(message.len(), |cut| cut.index(message.len())));
            if let Ok(request) = read(&message) {
                for (descriptor, hits) in request.questions().into_iter().flatten() {
                    prop_assert!(hits <= MAX_COUNT && descriptor.target().is_ascii());
                }
            }
        }
    }
}
