//! A limit that is asked about a key itself: there is no request from which the key could be read.

use std::sync::Arc;
use std::task::Waker;

use super::client::AddressForm;
use super::excepted::{BlockedByHand, act_once};
use super::exceptions::KeyException;
use super::exempt::KeyValueError;
use super::key::KeyPart;
use super::route::LimitUse;
use sluicegate_limiter::{
    Ask, Attempt, Fingerprint, KeyHasher, Limit, Peeked, Policy, Refusal, Report, Sharing, Ticket, Verdict,
};
use sluicegate_time::{Span, Tick};

/// A limit, and how it is used where it is asked about keys. Plans do not apply, nor does whatever else is of requests: their
/// costs, the rates that their fields state, the days on which their months begin.
#[derive(Debug)]
pub struct KeyedLimit {
    policy: Arc<Policy>,
    rule: LimitUse,
    form: AddressForm,
    /// How long the store of a limit that is shared may be waited for. Room is not waited for.
    patience: Span,
}

/// The answer to a question about a key.
#[derive(Debug)]
#[must_use]
pub enum KeyedAnswer {
    /// The limit does not hold now, or not for this key.
    NotAsked,
    /// It has room, and has counted the question.
    Admitted(Fingerprint),
    /// It has no room.
    Refused(Fingerprint, Refusal),
    /// It asks its store.
    Waiting(Fingerprint, Ticket),
}

impl KeyedLimit {
    /// A limit that counts keys by these rules. Addresses of clients are told apart as `form` says.
    pub fn new(limit: Arc<Limit>, rule: LimitUse, form: AddressForm) -> Self {
        let patience = limit.spec().sharing.and_then(Sharing::store).map_or(Span::ZERO, |sharing| sharing.deadline);
        let policy = Policy::of_one(limit);
        Self { policy, rule, form, patience }
    }

    /// Asks whether the key with these values, one for each part but `global`, has room for `cost`, and counts it if so.
    ///
    /// `report` is emptied, and then says how the limit stands if it was asked.
    ///
    /// # Errors
    /// These are no values of its key.
    pub fn check(
        &self,
        values: &[String],
        cost: u64,
        now: Tick,
        report: &mut Report,
    ) -> Result<KeyedAnswer, KeyValueError> {
        report.clear();
        let (key, exception) = match self.find(values, now)? {
            Ok(found) => found,
            Err(answer) => return Ok(answer),
        };
        let own = own_limit(exception.as_ref());
        if let Some(once) = exception.as_ref().and_then(|exception| exception.once.as_ref()) {
            act_once(once, own.iter().chain(self.policy.limits()), key, now);
        }
        let own = own.map(Policy::of_one);
        let policy = own.as_ref().unwrap_or(&self.policy);
        Ok(match policy.check(&[ask(key, cost)], self.patience, now, report) {
            // It owes nothing: limits that count later are not asked about keys.
            Verdict::Admitted(_) => KeyedAnswer::Admitted(key),
            Verdict::Refused(refusal) => KeyedAnswer::Refused(key, refusal),
            Verdict::Queued(ticket) => KeyedAnswer::Waiting(key, ticket),
        })
    }

    /// The answer that [`check`](Self::check) would give, without counting anything; `None`: the store would have to be asked.
    ///
    /// # Errors
    /// These are no values of its key.
    pub fn peek(
        &self,
        values: &[String],
        cost: u64,
        now: Tick,
        report: &mut Report,
    ) -> Result<Option<KeyedAnswer>, KeyValueError> {
        report.clear();
        let (key, exception) = match self.find(values, now)? {
            Ok(found) => found,
            Err(answer) => return Ok(Some(answer)),
        };
        let own = own_limit(exception.as_ref()).map(Policy::of_one);
        let policy = own.as_ref().unwrap_or(&self.policy);
        Ok(match policy.peek(&[ask(key, cost)], self.patience, now, report) {
            Peeked::Admitted => Some(KeyedAnswer::Admitted(key)),
            Peeked::Refused(refusal) => Some(KeyedAnswer::Refused(key, refusal)),
            Peeked::Waits { .. } => None,
        })
    }

    /// Asks again for one that waits: its answer, or when to ask again unless `waker` is woken before.
    ///
    /// # Errors
    /// It waits on, until this instant.
    pub fn attempt(
        key: Fingerprint,
        ticket: &mut Ticket,
        now: Tick,
        waker: &Waker,
        report: &mut Report,
    ) -> Result<KeyedAnswer, Tick> {
        match ticket.attempt(now, waker, report) {
            Attempt::Admitted(_) => Ok(KeyedAnswer::Admitted(key)),
            Attempt::TimedOut(refusal) => Ok(KeyedAnswer::Refused(key, refusal)),
            Attempt::Pending { wake_at } => Err(wake_at),
        }
    }

    /// The values in words, for the operator.
    pub fn describe(&self, values: &[String]) -> Vec<KeyPart> {
        let sources = self.rule.key.sources_of_values();
        sources.zip(values).map(|(source, value)| KeyPart { source, value: value.clone() }).collect()
    }

    /// The key and its exceptions; the inner error: the answer that needs no count.
    fn find(
        &self,
        values: &[String],
        now: Tick,
    ) -> Result<Result<(Fingerprint, Option<KeyException>), KeyedAnswer>, KeyValueError> {
        let Self { rule, form, .. } = self;
        let print = |hasher: &KeyHasher| rule.key.fingerprint_of_values(values, *form, hasher);
        let key = print(&rule.hasher)?;
        let exception =
            if rule.exceptions.are_any() { rule.exceptions.find(|hasher| print(hasher).ok(), now) } else { None };
        // Before all else, as of requests.
        if let Some(block) = exception.as_ref().and_then(|exception| exception.block.as_ref()) {
            let until = block.until.map(|until| rule.exceptions.tick(until));
            let refusal = BlockedByHand { limit: 0, until, key }.refusal();
            return Ok(Err(KeyedAnswer::Refused(key, refusal)));
        }
        let is_exempt = rule.exempt.as_deref().is_some_and(|exempt| {
            exempt.has_key(key) || rule.key.address_in_values(values).is_some_and(|client| exempt.has_address(client))
        });
        Ok(if rule.is_active(now) && !is_exempt { Ok((key, exception)) } else { Err(KeyedAnswer::NotAsked) })
    }
}

fn ask(key: Fingerprint, cost: u64) -> Ask {
    // In a store that is shared each key has its own share of the places for new keys: their client is not known.
    Ask { key: Some(key), cost, client: key.bits() as u32, ..Ask::default() }
}

/// The limit by which a key with numbers of its own is counted.
fn own_limit(exception: Option<&KeyException>) -> Option<Arc<Limit>> {
    exception?.numbers.as_ref()?.limit.clone()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::client::{AddressHeader, ClientRules, Clients};
    use crate::identity::KeyFacts;
    use crate::testing;
    use crate::{
        Admission, Block, BodyFacts, BodyField, BodyValue, Cost, CostPlace, Exempt, ExemptRules, KeyBook,
        KeyExceptions, KeyExpr, Made, OwnNumbers, PathPattern, PlainRequest, Refused, RouteRules, Rules,
    };
    use sluicegate_limiter::{
        Algorithm, Align, Bound, FixedWindow, Gcra, LeakyBucket, LimitSpec, Mode, Penalty, Rate, Refill, RefusalReason,
        SlidingCounter, SlidingLog, SlidingWindow, SmoothBursty, TimerWheel, TokenBucket, WarmUp,
    };
    use sluicegate_time::{Wall, WallOffset};

    const PEER: &str = "192.0.2.7";

    fn usage(key: &[&str]) -> LimitUse {
        LimitUse { cost: Cost::stated(CostPlace::Header("x-cost".into()), 9), ..testing::usage(key) }
    }

    fn keyed(limit: &Arc<Limit>, rule: LimitUse) -> KeyedLimit {
        KeyedLimit::new(Arc::clone(limit), rule, AddressForm::default())
    }

    /// A route that has the limit.
    fn route(limit: &Arc<Limit>, rule: LimitUse) -> Rules<Arc<RouteRules>> {
        let pattern = testing::pattern(PathPattern::Prefix("/".to_owned())).normalised();
        let route = testing::route("all", pattern, vec![(Arc::clone(limit), rule)]);
        Rules::new(testing::clients(), vec![Arc::new(route)], KeyHasher::fixed())
    }

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    /// The refusal, if it is one.
    fn refusal(answer: KeyedAnswer) -> Option<Refusal> {
        match answer {
            KeyedAnswer::Admitted(_) => None,
            KeyedAnswer::Refused(_, refusal) => Some(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn asked(keyed: &KeyedLimit, values: &[&str], cost: u64, now: Tick) -> Result<KeyedAnswer, KeyValueError> {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        keyed.check(&values, cost, now, &mut Report::default())
    }

    fn hourly() -> Arc<Limit> {
        let rates = ["3/1h".parse().unwrap()];
        Limit::new(LimitSpec::new(
            "limit",
            Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()),
        ))
    }

    /// Every algorithm that can be asked about a key.
    fn algorithms() -> Vec<Algorithm> {
        let rates: Vec<Rate> = ["4/1s", "9/5s"].map(|rate| rate.parse().unwrap()).into();
        let one = &rates[..1];
        vec![
            Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()),
            Algorithm::SlidingWindow(SlidingWindow::new(one, None, Some(2)).unwrap()),
            Algorithm::SlidingLog(SlidingLog::new(&rates, Span::from_millis(20), true).unwrap()),
            Algorithm::SlidingCounter(SlidingCounter::new(one).unwrap()),
            Algorithm::FixedWindow(FixedWindow::new(&rates, Align::First).unwrap()),
            Algorithm::Gcra(Gcra::new(&rates, Some(2)).unwrap()),
            Algorithm::TokenBucket(TokenBucket::new(&rates, Some(5), Refill::Greedy).unwrap()),
            Algorithm::LeakyBucket(LeakyBucket::new(one, Some(3)).unwrap()),
            Algorithm::SmoothBursty(SmoothBursty::new(one, Some(Span::from_secs(2))).unwrap()),
            Algorithm::WarmUp(WarmUp::new(one, Span::from_secs(3), None).unwrap()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn a_question_is_answered_as_a_request_with_that_key_and_cost(
            which in 0_usize..10, shadow in any::<bool>(), has_penalty in any::<bool>(),
            steps in vec((0_u64..400, 0_u8..3, 1_u64..4, any::<bool>()), 1..60),
        ) {
            let penalty = has_penalty.then(|| Penalty::new(3, Span::from_secs(2), Span::from_secs(1)).unwrap());
            let mode = if shadow { Mode::Shadow } else { Mode::Enforce };
            let limit = || Limit::new(LimitSpec {
                mode, penalty, ..LimitSpec::new("limit", algorithms().swap_remove(which))
            });
            let rule = LimitUse { enforced: !shadow, ..usage(&["client-ip", "header:x-key"]) };
            let (of_requests, of_questions) = (route(&limit(), rule.clone()), keyed(&limit(), rule));
            let (mut millis, mut requested, mut asked) = (0, Report::default(), Report::default());
            for (wait, name, cost, peeks) in steps {
                millis += wait;
                let name = name.to_string();
                let values = [PEER.to_owned(), name.clone()];
                let peeked = peeks.then(|| {
                    let peeked = of_questions.peek(&values, cost, at(millis), &mut Report::default());
                    refusal(peeked.unwrap().unwrap())
                });
                let request = PlainRequest::new("GET", "/").with("x-key", &name).with("x-cost", cost.to_string());
                let of_request = match of_requests.admit(&request, PEER.parse().unwrap(), at(millis), &mut requested) {
                    Admission::Admitted(_) => None,
                    Admission::Refused(_, _, Refused::Limit(refusal)) => Some(refusal),
                    other => panic!("{other:?}"),
                };
                let of_question = of_questions.check(&values, cost, at(millis), &mut asked).unwrap();
                let of_question = refusal(of_question);
                prop_assert_eq!(of_question, of_request);
                prop_assert_eq!(requested.lines(), asked.lines());
                prop_assert_eq!(requested.has_shadow_refusals(), asked.has_shadow_refusals());
                if let Some(peeked) = peeked {
                    prop_assert_eq!(peeked, of_question, "a peek");
                }
            }
        }

        #[test]
        fn values_are_the_key_of_a_request_that_has_them(text in "[ -~äß\u{2003}\u{a0}]{1,200}") {
            let escaped = text.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02x}"));
            let fields = [("json:/a", BodyField::Json(sluicegate_json::JsonPointer::parse("/a").unwrap())),
                ("form:a", BodyField::Form("a".into()))];
            let body = fields.iter().map(|(_, field)| (field.clone(), BodyValue::Text(text.as_str().into())));
            let user = text.replace(':', ".");
            let request = PlainRequest::new("PUT", &format!("/p?q={escaped}"))
                .with("x-key", &text)
                .with("cookie", format!("c={escaped}"))
                .with("authorization", format!("Basic {}", base64(&format!("{user}:p"))))
                .certificate(&text, "")
                .claim("jwt:sub", &text)
                .body(BodyFacts::new(body));
            for (source, value) in [
                ("header:x-key", &*text), ("cookie:c", &text), ("query:q", &text), ("json:/a", &text),
                ("tls:subject", &text), ("jwt:sub", &text), ("basic:user", &user),
                ("client-ip", PEER), ("path", "/p"), ("method", "PUT"), ("route", "all"),
            ] {
                // Of a cookie it is not known any more whether a blank at its end was escaped.
                if source == "cookie:c" && text.trim().trim_ascii() != text {
                    continue;
                }
                let key = KeyExpr::parse(&["global", source]).unwrap();
                let client = Clients::new(ClientRules {
                    trusted_proxies: Vec::new(), address_header: AddressHeader::XForwardedFor, ipv6_prefix: 64,
                }).identify(&request, PEER.parse().unwrap()).client;
                let facts = KeyFacts { view: &request, client: &client, host: None, path: "/p", route: "all" };
                let of_request = key.fingerprint(&facts, &KeyHasher::fixed());
                let of_values =
                    key.fingerprint_of_values(&[value.to_owned()], AddressForm::default(), &KeyHasher::fixed());
                prop_assert_eq!(of_values.ok(), of_request.ok(), "{}", source);
            }
        }
    }

    fn base64(text: &str) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digits = |bytes: &[u8]| {
            let bits = bytes.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
            (0..=bytes.len())
                .map(|place| char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]))
                .collect::<String>()
        };
        text.as_bytes().chunks(3).map(digits).collect()
    }

    #[test]
    fn requests_and_questions_are_counted_together() {
        let limit = hourly();
        let (requests, questions) = (route(&limit, usage(&["header:x-key"])), keyed(&limit, usage(&["header:x-key"])));
        let request = || {
            let request = PlainRequest::new("GET", "/").with("x-key", "a");
            requests.admit(&request, PEER.parse().unwrap(), at(5), &mut Report::default())
        };
        assert!(matches!(request(), Admission::Admitted(_)));
        assert_eq!(refusal(asked(&questions, &["a"], 2, at(5)).unwrap()), None);
        let refused = refusal(asked(&questions, &[" a "], 1, at(5)).unwrap()).unwrap();
        assert_eq!((refused.why, refused.remaining, refused.quota), (RefusalReason::Rate, 0, 3));
        assert!(matches!(request(), Admission::Refused(..)));
        let costly = refusal(asked(&questions, &["b"], 4, at(5)).unwrap()).unwrap();
        assert_eq!((costly.why, costly.retry_at), (RefusalReason::TooCostly, None));
    }

    #[test]
    fn values_that_are_none_of_the_key_count_nothing() {
        let limit = hourly();
        let of = |key: &[&str]| keyed(&limit, usage(key));
        for (key, values, told) in [
            (&["header:x-key"][..], &[][..], "the key has one part, and there are 0 values"),
            (&["header:x-key"], &["a", "b"], "one part, and there are 2"),
            (&["client-ip", "header:x-key"], &["192.0.2.7"], "2 parts, and there are 1 values"),
            (&["global"], &["a"], "leave the values out"),
            (&["header:x-key"], &[" "], "a value is missing"),
            (&["client-ip"], &["a"], "no address"),
            (&["path"], &["a"], "begins with a slash"),
            (&["host"], &["a b"], "the host is none"),
            (&["tls:fingerprint"], &["00"], "no SHA-256"),
        ] {
            let error = asked(&of(key), values, 1, at(0)).unwrap_err().to_string();
            assert!(error.contains(told), "{key:?} {values:?}: {error}");
        }
        assert_eq!(limit.key_count(), 0);
        assert!(matches!(asked(&of(&["global"]), &[], 1, at(0)), Ok(KeyedAnswer::Admitted(_))));
        assert!(matches!(
            asked(&of(&["client-ip", "global"]), &["2001:db8::1"], 1, at(0)),
            Ok(KeyedAnswer::Admitted(_))
        ));
        assert_eq!(limit.key_count(), 2);
    }

    #[test]
    fn exempt_keys_and_clients_are_not_asked_and_not_counted() {
        let limit = hourly();
        let key = KeyExpr::parse(&["client-ip", "header:x-key"]).unwrap();
        let rules =
            ExemptRules { networks: vec!["10.0.0.0/8".parse().unwrap()], keys: vec!["192.0.2.7 + gold".into()] };
        let exempt = Exempt::new(&rules, &key, AddressForm::default(), &KeyHasher::fixed());
        let keyed = keyed(&limit, LimitUse { exempt, ..usage(&["client-ip", "header:x-key"]) });
        for (values, is_asked) in [
            (["10.1.2.3", "a"], false),
            (["::ffff:10.1.2.3", "a"], false),
            (["192.0.2.7", "gold"], false),
            (["192.0.2.7", "a"], true),
        ] {
            let answer = asked(&keyed, &values, 1, at(0)).unwrap();
            assert_eq!(matches!(answer, KeyedAnswer::NotAsked), !is_asked, "{values:?}");
        }
        assert_eq!(limit.key_count(), 1);
    }

    #[test]
    fn exceptions_of_a_key_hold_for_questions() {
        let (limit, own) = (hourly(), hourly());
        let exceptions = Arc::new(KeyExceptions::default());
        let print = |value: &str| {
            let key = KeyExpr::parse(&["header:x-key"]).unwrap();
            key.fingerprint_of_values(&[value.to_owned()], AddressForm::default(), &KeyHasher::fixed()).unwrap()
        };
        let made = || Made { at: Wall::from_nanos(0), by: "me".into(), reason: None };
        let numbers = OwnNumbers { until: None, made: made(), text: "".into(), limit: Some(Arc::clone(&own)) };
        let until = WallOffset::of_system().wall(at(60_000));
        exceptions.replace([KeyBook {
            hasher: KeyHasher::fixed(),
            keys: [
                (
                    print("bad"),
                    KeyException { block: Some(Block { until: Some(until), made: made() }), ..<_>::default() },
                ),
                (print("own"), KeyException { numbers: Some(numbers), ..<_>::default() }),
            ]
            .into(),
        }]);
        let keyed = keyed(&limit, LimitUse { exceptions, ..usage(&["header:x-key"]) });
        let blocked = refusal(asked(&keyed, &["bad"], 1, at(0)).unwrap()).unwrap();
        assert_eq!(blocked.why, RefusalReason::Blocked);
        assert!(blocked.retry_at.is_some_and(|at_end| at_end.since(at(0)) > Span::from_secs(50)));
        assert_eq!(refusal(asked(&keyed, &["own"], 3, at(0)).unwrap()), None);
        assert!(refusal(asked(&keyed, &["own"], 1, at(0)).unwrap()).is_some());
        assert_eq!((limit.key_count(), own.key_count()), (0, 1));
    }
}
