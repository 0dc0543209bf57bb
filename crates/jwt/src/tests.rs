//! Tokens of issuers that are made here, judged by a clock that is driven.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sluicegate_json::JsonPointer;
use sluicegate_time::{Span, Wall};

use super::testing::{IssuerKey, base64, jwks};
use super::token_rules::TokenResult;
use super::*;

/// The moment of most tests, in seconds since the epoch.
const NOW: u64 = 1_800_000_000;

static RSA: LazyLock<IssuerKey> = LazyLock::new(IssuerKey::rsa);
static P256: LazyLock<IssuerKey> = LazyLock::new(IssuerKey::p256);
static ED25519: LazyLock<IssuerKey> = LazyLock::new(IssuerKey::ed25519);
static STRANGER: LazyLock<IssuerKey> = LazyLock::new(IssuerKey::ed25519);

fn all_keys() -> [(&'static str, &'static IssuerKey); 3] {
    [("r", &RSA), ("p", &P256), ("e", &ED25519)]
}

fn set() -> String {
    jwks(&all_keys().map(|(kid, key)| key.jwk(&format!("\"kid\":\"{kid}\",\"use\":\"sig\","))))
}

fn pointer(text: &str) -> JsonPointer {
    JsonPointer::parse(text).unwrap()
}

/// A worker, its rules, and what came of the last token.
struct Judge {
    rules: Arc<TokenRules>,
    cache: TokenCache,
    told: Vec<TokenResult>,
    client: u64,
}

impl Judge {
    fn of(set: &str, (issuer, audience): (Option<&str>, Option<&str>), algorithms: &[SigningAlgorithm]) -> Self {
        let keys = Arc::new(KeyStore::default());
        if !set.is_empty() {
            keys.set(KeySet::parse(set.as_bytes()).unwrap());
        }
        let claims = ["/sub", "/realm/id"].map(pointer);
        let rules = Arc::new(TokenRules::new((issuer, audience), algorithms, claims, keys));
        Self { cache: TokenCache::new(&rules), rules, told: Vec::new(), client: 1 }
    }

    fn new() -> Self {
        Self::of(&set(), (None, None), &SigningAlgorithm::ALL)
    }

    fn claim(&mut self, token: &str, claim: &str, now: Wall) -> Option<ClaimValue> {
        let told = &mut self.told;
        let asked = (token.as_bytes(), self.client);
        self.cache.claim(&self.rules, asked, &pointer(claim), now, |result| told.push(result)).cloned()
    }

    /// The subject of a token at this moment, or why there is none.
    fn sub_at(&mut self, token: &str, now: Wall) -> Result<String, Option<TokenResult>> {
        self.told.clear();
        match self.claim(token, "/sub", now) {
            Some(ClaimValue::Text(sub)) => Ok(sub.into()),
            Some(other) => panic!("{other:?}"),
            None => Err(self.told.first().copied()),
        }
    }

    fn sub(&mut self, token: &str) -> Result<String, Option<TokenResult>> {
        self.sub_at(token, Wall::from_secs(NOW))
    }
}

fn payload(members: &str) -> String {
    format!("{{\"sub\":\"ada\",\"exp\":{}{members}}}", NOW + 600)
}

fn refused(result: TokenResult) -> Result<String, Option<TokenResult>> {
    Err(Some(result))
}

#[test]
fn a_token_of_each_algorithm_has_its_claims() {
    for (kid, key) in all_keys() {
        let mut judge = Judge::new();
        let token = key.token(kid, &payload(",\"realm\":{\"id\":17}"));
        assert_eq!(judge.sub(&token), Ok("ada".to_owned()), "{kid}");
        let id = judge.claim(&token, "/realm/id", Wall::from_secs(NOW));
        assert_eq!(id, Some(ClaimValue::Text("17".into())));
        assert_eq!(judge.claim(&token, "/other", Wall::from_secs(NOW)), None, "the rules know no such claim");
        assert_eq!(judge.told, [TokenResult::Valid], "one verification for all of them");
    }
}

#[test]
fn a_claim_is_a_text_or_a_whole_number() {
    let long = "x".repeat(1024);
    for (value, claim) in [
        ("\"a\"", ClaimValue::Text("a".into())),
        ("\"\\u0061\"", ClaimValue::Text("a".into())),
        (&*format!("\"{long}\""), ClaimValue::Text(long.as_str().into())),
        (&*format!("\"{long}x\""), ClaimValue::Unfit),
        ("7", ClaimValue::Text("7".into())),
        ("7.0", ClaimValue::Unfit),
        ("7e1", ClaimValue::Unfit),
        ("true", ClaimValue::Unfit),
        ("[\"a\"]", ClaimValue::Unfit),
        ("{}", ClaimValue::Unfit),
        ("null", ClaimValue::Absent),
        ("\"\"", ClaimValue::Absent),
    ] {
        let token = ED25519.token("e", &format!("{{\"exp\":{},\"sub\":{value}}}", NOW + 1));
        assert_eq!(Judge::new().claim(&token, "/sub", Wall::from_secs(NOW)), Some(claim.clone()), "{value}");
        assert_eq!(unverified_claim(token.as_bytes(), &pointer("/sub")), claim, "{value}");
    }
    let without = ED25519.token("e", &format!("{{\"exp\":{}}}", NOW + 1));
    assert_eq!(Judge::new().claim(&without, "/sub", Wall::from_secs(NOW)), Some(ClaimValue::Absent));
}

#[test]
fn the_algorithm_is_the_one_of_the_key_and_an_allowed_one() {
    let mut judge = Judge::new();
    let ada = payload("");
    for alg in ["none", "None", "NONE", "", "HS256", "RS384", "PS256", "ES384", "rs256", "EdDSA ", "Ed25519"] {
        let header = format!("{{\"alg\":\"{alg}\",\"kid\":\"r\"}}");
        assert_eq!(judge.sub(&RSA.token_of(&header, &ada)), refused(TokenResult::Algorithm), "{alg}");
        let unsigned = format!("{}.{}.", base64(header.as_bytes()), base64(ada.as_bytes()));
        assert_eq!(judge.sub(&unsigned), refused(TokenResult::Algorithm), "{alg}");
    }
    // Signed as HS256 with the public key as the secret.
    let signed = format!("{}.{}", base64(b"{\"alg\":\"HS256\",\"kid\":\"r\"}"), base64(ada.as_bytes()));
    for secret in [RSA.jwk("").into_bytes(), set().into_bytes()] {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
        let tag = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
        assert_eq!(judge.sub(&format!("{signed}.{}", base64(tag.as_ref()))), refused(TokenResult::Algorithm));
    }
    // Another key's algorithm.
    for (kid, key) in all_keys() {
        for (other, _) in all_keys().into_iter().filter(|(other, _)| *other != kid) {
            assert_eq!(judge.sub(&key.token(other, &ada)), refused(TokenResult::Algorithm), "{kid} as {other}");
        }
    }
    let mut rsa_alone = Judge::of(&set(), (None, None), &[SigningAlgorithm::Rs256]);
    assert_eq!(rsa_alone.sub(&P256.token("p", &ada)), refused(TokenResult::Algorithm));
    assert_eq!(rsa_alone.sub(&RSA.token("r", &ada)), Ok("ada".to_owned()));
}

#[test]
fn a_token_of_a_stranger_is_refused() {
    let mut judge = Judge::new();
    let ada = payload("");
    assert_eq!(judge.sub(&STRANGER.token("e", &ada)), refused(TokenResult::Signature));
    assert_eq!(judge.sub(&STRANGER.token("f", &ada)), refused(TokenResult::UnknownKey));
    assert!(judge.rules.keys.wait(Duration::ZERO), "the keys may have been changed");
    assert_eq!(judge.sub(&STRANGER.token("g", &ada)), refused(TokenResult::UnknownKey));
    assert!(!judge.rules.keys.wait(Duration::ZERO), "it was told already");
    judge.rules.keys.answered();
    assert_eq!(judge.sub(&STRANGER.token("h", &ada)), refused(TokenResult::UnknownKey));
    assert!(judge.rules.keys.wait(Duration::ZERO));
}

#[test]
fn a_token_that_names_no_key_needs_the_only_one_that_fits() {
    let ada = payload("");
    let nameless = |key: &IssuerKey| key.token_of(&format!("{{\"alg\":\"{}\"}}", key.alg()), &ada);
    let mut judge = Judge::new();
    for (_, key) in all_keys() {
        assert_eq!(judge.sub(&nameless(key)), Ok("ada".to_owned()));
    }
    let two = jwks(&[ED25519.jwk("\"kid\":\"a\","), STRANGER.jwk("\"kid\":\"b\","), RSA.jwk("")]);
    let mut judge = Judge::of(&two, (None, None), &SigningAlgorithm::ALL);
    assert_eq!(judge.sub(&nameless(&ED25519)), refused(TokenResult::Algorithm));
    assert_eq!(judge.sub(&nameless(&RSA)), Ok("ada".to_owned()));
    assert_eq!(judge.sub(&nameless(&P256)), refused(TokenResult::Algorithm), "none fits");
}

#[test]
fn leeway_is_a_minute_to_the_nanosecond() {
    let token = ED25519.token("e", &format!("{{\"sub\":\"ada\",\"exp\":{NOW},\"nbf\":{}}}", NOW - 500));
    let (first, end) = (Wall::from_secs(NOW - 560), Wall::from_secs(NOW + 60));
    let nano = Span::from_nanos(1);
    for (now, sub) in [
        (first - nano, refused(TokenResult::NotYet)),
        (first, Ok("ada".to_owned())),
        (end - nano, Ok("ada".to_owned())),
        (end, refused(TokenResult::Expired)),
    ] {
        assert_eq!(Judge::new().sub_at(&token, now), sub, "{now:?}");
    }
    // One worker sees them all, in the order of time.
    let mut judge = Judge::new();
    assert_eq!(judge.sub_at(&token, first - nano), refused(TokenResult::NotYet));
    assert!(judge.sub_at(&token, first).is_ok());
    assert!(judge.sub_at(&token, end - nano).is_ok());
    assert_eq!(judge.sub_at(&token, end), refused(TokenResult::Expired));
    assert_eq!(judge.sub_at(&token, end), Err(None), "the refusal is kept");
}

#[test]
fn times_are_numbers_and_an_end_is_required() {
    let mut judge = Judge::new();
    for (times, result) in [
        ("\"sub\":\"ada\"", TokenResult::Malformed),
        ("\"exp\":null", TokenResult::Malformed),
        ("\"exp\":\"1900000000\"", TokenResult::Malformed),
        ("\"exp\":-1", TokenResult::Malformed),
        ("\"exp\":true", TokenResult::Malformed),
        ("\"exp\":0", TokenResult::Expired),
        ("\"exp\":1900000000,\"nbf\":\"1\"", TokenResult::Malformed),
        ("\"exp\":1900000000,\"nbf\":[]", TokenResult::Malformed),
        ("\"exp\":1e400,\"nbf\":1e400", TokenResult::NotYet),
    ] {
        assert_eq!(judge.sub(&ED25519.token("e", &format!("{{{times}}}"))), refused(result), "{times}");
    }
    for times in
        ["\"exp\":1900000000.5", "\"exp\":19e8", "\"exp\":99999999999999999999", "\"exp\":1900000000,\"nbf\":0"]
    {
        let token = ED25519.token("e", &format!("{{\"sub\":\"ada\",{times}}}"));
        assert_eq!(judge.sub(&token), Ok("ada".to_owned()), "{times}");
    }
}

#[test]
fn issuer_and_audience_are_compared_where_they_are_set() {
    let wanted = (Some("https://issuer.example"), Some("api"));
    let judge = |members: &str| {
        let token = ED25519.token("e", &payload(members));
        Judge::of(&set(), wanted, &SigningAlgorithm::ALL).sub(&token)
    };
    let iss = ",\"iss\":\"https://issuer.example\"";
    for aud in ["\"api\"", "[\"api\"]", "[\"other\",\"api\"]", "[1,{},\"api\"]"] {
        assert_eq!(judge(&format!("{iss},\"aud\":{aud}")), Ok("ada".to_owned()), "{aud}");
    }
    for aud in ["\"API\"", "\"api \"", "[]", "\"\"", "null", "[\"other\"]", "[[\"api\"]]", "[null]"] {
        assert_eq!(judge(&format!("{iss},\"aud\":{aud}")), refused(TokenResult::Foreign), "{aud}");
    }
    assert_eq!(judge(iss), refused(TokenResult::Foreign));
    for iss in ["", ",\"iss\":\"https://issuer.example/\"", ",\"iss\":[\"https://issuer.example\"]"] {
        assert_eq!(judge(&format!("{iss},\"aud\":\"api\"")), refused(TokenResult::Foreign), "{iss}");
    }
}

#[test]
fn members_that_are_there_twice_and_critical_ones_refuse_a_token() {
    let mut judge = Judge::new();
    for header in [
        "{\"alg\":\"EdDSA\",\"kid\":\"e\",\"alg\":\"EdDSA\"}",
        "{\"alg\":\"EdDSA\",\"kid\":\"e\",\"Alg\":\"none\"}",
        "{\"alg\":\"EdDSA\",\"kid\":\"e\",\"kid\":\"e\"}",
        "{\"alg\":\"EdDSA\",\"kid\":\"e\",\"crit\":[\"exp\"]}",
        "{\"alg\":\"EdDSA\",\"kid\":\"e\",\"crit\":[]}",
        "{\"alg\":\"EdDSA\",\"kid\":\"e\",\"crit\":[\"b64\"],\"b64\":false}",
        "{\"alg\":\"EdDSA\",\"kid\":7}",
        "{\"alg\":[\"EdDSA\"],\"kid\":\"e\"}",
        "{\"kid\":\"e\"}",
        "{\"alg\":\"EdDSA\",\"kid\":\"e\"} x",
        "[\"alg\",\"EdDSA\"]",
        "\"alg\"",
        "",
    ] {
        let token = ED25519.token_of(header, &payload(""));
        assert_eq!(judge.sub(&token), refused(TokenResult::Malformed), "{header}");
    }
    for members in [
        ",\"sub\":\"eve\"",
        ",\"SUB\":\"eve\"",
        ",\"\\u0073ub\":\"eve\"",
        ",\"exp\":1900000000",
        ",\"iss\":\"a\",\"iss\":\"a\"",
        ",\"aud\":\"a\",\"aud\":\"b\"",
        ",\"realm\":{\"id\":1},\"realm\":{\"id\":2}",
        ",\"realm\":{\"id\":1,\"id\":2}",
        ",",
        ",\"a\":\"\u{1}\"",
    ] {
        let token = ED25519.token("e", &payload(members));
        assert_eq!(judge.sub(&token), refused(TokenResult::Malformed), "{members}");
    }
}

#[test]
fn a_token_is_three_parts_of_at_most_8_kib() {
    let mut judge = Judge::new();
    let filled = |bytes: usize| {
        let mut fill = 0;
        loop {
            let token = ED25519.token("e", &payload(&format!(",\"x\":\"{}\"", "x".repeat(fill))));
            match token.len() {
                length if length >= bytes => return token,
                length => fill += ((bytes - length) * 3 / 4).max(1),
            }
        }
    };
    let fits = filled(MAX_TOKEN_BYTES - 2);
    assert!(fits.len() <= MAX_TOKEN_BYTES, "{}", fits.len());
    assert_eq!(judge.sub(&fits), Ok("ada".to_owned()));
    assert_eq!(judge.sub(&filled(MAX_TOKEN_BYTES + 1)), refused(TokenResult::Malformed));
    let token = ED25519.token("e", &payload(""));
    let [header, payload, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
    for bad in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        format!("{header}.{payload}"),
        format!("{token}."),
        format!("{token}.{signature}"),
        format!(".{payload}.{signature}"),
        format!("{header}..{signature}"),
        format!("{token}="),
        format!("{header}=.{payload}.{signature}"),
        format!("{token} "),
        format!("{header}.{payload}.{}", signature.replace(|_: char| true, "+")),
        "\u{e9}.\u{e9}.\u{e9}".to_owned(),
    ] {
        assert_eq!(judge.sub(&bad), refused(TokenResult::Malformed), "{bad}");
    }
    assert_eq!(judge.sub(&format!("{header}.{payload}.")), refused(TokenResult::Signature));
    for end in 0..token.len() {
        assert!(Judge::new().sub(&token[..end]).is_err(), "{end} bytes");
    }
}

#[test]
fn no_byte_of_a_token_may_be_another() {
    for (kid, key) in all_keys() {
        let token = key.token(kid, &payload(""));
        for at in 0..token.len() {
            for flip in [1_u8, 2, 4, 16, 32, 128] {
                let mut bytes = token.clone().into_bytes();
                bytes[at] ^= flip;
                let mut judge = Judge::new();
                let claim = judge.cache.claim(&judge.rules, (&bytes, 1), &pointer("/sub"), Wall::from_secs(NOW), drop);
                assert_eq!(claim, None, "{kid}: byte {at} ^ {flip}");
            }
        }
    }
}

#[test]
fn a_set_has_the_keys_that_are_sound() {
    let rsa = RSA.jwk("");
    let ed = |members: &str| ED25519.jwk(members);
    let usable = [
        rsa.clone(),
        ed("\"use\":\"sig\","),
        ed("\"alg\":\"EdDSA\","),
        ed("\"key_ops\":[\"sign\",\"verify\"],"),
        ed("\"kid\":\"a\",\"x5c\":[1],"),
    ];
    for key in usable {
        assert_eq!(
            KeySet::parse(jwks(std::slice::from_ref(&key)).as_bytes()).map(|set| (set.len(), set.unused())),
            Ok((1, 0)),
            "{key}"
        );
    }
    let short = |bits: usize| format!("{{\"kty\":\"RSA\",\"e\":\"AQAB\",\"n\":\"{}\"}}", base64(&vec![0xFF; bits / 8]));
    let unusable = [
        short(1024),
        short(2040),
        short(8200),
        format!("{{\"kty\":\"RSA\",\"e\":\"AQAB\",\"n\":\"{}\"}}", base64(&[&[0; 128][..], &[0xFF; 128]].concat())),
        rsa.replace("AQAB", "AQ"),
        rsa.replace("AQAB", "AA"),
        rsa.replace("AQAB", "Ag"),
        rsa.replace("AQAB", "AQAB="),
        RSA.jwk("\"alg\":\"PS256\","),
        RSA.jwk("\"alg\":7,"),
        ed("\"use\":\"enc\","),
        ed("\"use\":7,"),
        ed("\"alg\":\"ES256\","),
        ed("\"key_ops\":[\"sign\"],"),
        ed("\"key_ops\":\"verify\","),
        ed("\"kid\":7,"),
        ed("\"kid\":\"\","),
        ed("").replace("Ed25519", "X25519"),
        P256.jwk("").replace("P-256", "P-384"),
        format!("{{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"{0}\",\"y\":\"{0}\"}}", base64(&[1; 32])),
        format!("{{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"{0}\",\"y\":\"{0}\"}}", base64(&[1; 31])),
        format!("{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{}\"}}", base64(&[1; 33])),
        format!("{{\"kty\":\"oct\",\"k\":\"{}\"}}", base64(&[1; 64])),
        "{}".to_owned(),
        "7".to_owned(),
    ];
    for key in unusable {
        assert_eq!(KeySet::parse(jwks(std::slice::from_ref(&key)).as_bytes()), Err(KeySetError::NoneUsed(1)), "{key}");
    }
}

#[test]
fn of_two_keys_of_one_name_neither_is_used() {
    let named = |key: &IssuerKey| key.jwk("\"kid\":\"a\",");
    let both = jwks(&[named(&ED25519), named(&STRANGER), RSA.jwk("\"kid\":\"r\",")]);
    let set = KeySet::parse(both.as_bytes()).unwrap();
    assert_eq!((set.len(), set.unused()), (1, 2));
    let mut judge = Judge::of(&both, (None, None), &SigningAlgorithm::ALL);
    for key in [&*ED25519, &*STRANGER] {
        assert_eq!(judge.sub(&key.token("a", &payload(""))), refused(TokenResult::UnknownKey));
    }
    // The same key twice is one.
    let same = jwks(&[named(&ED25519), named(&ED25519)]);
    let mut judge = Judge::of(&same, (None, None), &SigningAlgorithm::ALL);
    assert_eq!(judge.sub(&ED25519.token("a", &payload(""))), Ok("ada".to_owned()));
}

#[test]
fn a_hostile_set_is_bounded() {
    let mut many = String::from("{\"keys\":[");
    for place in 0..10_000 {
        let _ = write!(many, "{{\"kid\":\"{place}\"}},");
    }
    many.push_str("{}]}");
    assert_eq!(KeySet::parse(many.as_bytes()), Err(KeySetError::NoneUsed(10_001)));
    let good: Vec<_> = (0..100).map(|place| ED25519.jwk(&format!("\"kid\":\"{place}\","))).collect();
    let set = KeySet::parse(jwks(&good).as_bytes()).unwrap();
    assert_eq!((set.len(), set.unused()), (MAX_KEYS, 36));
    for (text, error) in [
        (String::new(), KeySetError::NotJson),
        ("<html>".to_owned(), KeySetError::NotJson),
        ("[".repeat(100_000), KeySetError::NotJson),
        (" ".repeat(MAX_JWKS_BYTES + 1), KeySetError::TooLarge),
        ("[]".to_owned(), KeySetError::NoList),
        ("{\"keys\":{}}".to_owned(), KeySetError::NoList),
        ("{\"keys\":[]}".to_owned(), KeySetError::NoneUsed(0)),
    ] {
        assert_eq!(KeySet::parse(text.as_bytes()), Err(error));
    }
}

#[test]
fn without_keys_nothing_is_verified_and_keys_that_come_hold_at_once() {
    let mut judge = Judge::of("", (None, None), &SigningAlgorithm::ALL);
    let token = ED25519.token("e", &payload(""));
    assert_eq!(judge.sub(&token), refused(TokenResult::NoKeys));
    assert!(judge.rules.keys.set(KeySet::parse(set().as_bytes()).unwrap()));
    assert_eq!(judge.sub(&token), Ok("ada".to_owned()));
    assert!(!judge.rules.keys.set(KeySet::parse(set().as_bytes()).unwrap()), "the same");
    assert_eq!((judge.sub(&token), judge.told.len()), (Ok("ada".to_owned()), 0), "its result is kept");
    let other = jwks(&[RSA.jwk("\"kid\":\"r\",")]);
    assert!(judge.rules.keys.set(KeySet::parse(other.as_bytes()).unwrap()));
    assert_eq!(judge.sub(&token), refused(TokenResult::UnknownKey), "its key is gone");
}

#[test]
fn other_rules_forget_what_came_of_tokens() {
    let mut judge = Judge::new();
    let token = ED25519.token("e", &payload(",\"iss\":\"a\""));
    assert!(judge.sub(&token).is_ok());
    let rules = |issuer| {
        let claims = ["/sub", "/realm/id"].map(pointer);
        let keys = Arc::clone(&judge.rules.keys);
        Arc::new(TokenRules::new((issuer, None), &SigningAlgorithm::ALL, claims, keys))
    };
    let (same, stricter) = (rules(None), rules(Some("b")));
    judge.rules = same;
    assert_eq!((judge.sub(&token), judge.told.len()), (Ok("ada".to_owned()), 0));
    judge.rules = stricter;
    assert_eq!(judge.sub(&token), refused(TokenResult::Foreign));
}

#[test]
fn refusals_are_kept_for_a_while_and_a_client_has_20_wrong_signatures_a_second() {
    let mut judge = Judge::new();
    let forged = |number: u64| STRANGER.token("e", &format!("{{\"sub\":\"{number}\",\"exp\":{}}}", NOW + 600));
    let good = ED25519.token("e", &payload(""));
    for number in 0..20 {
        assert_eq!(judge.sub(&forged(number)), refused(TokenResult::Signature), "{number}");
        assert_eq!(judge.sub(&forged(number)), Err(None), "it is known");
    }
    assert_eq!(judge.sub(&forged(20)), refused(TokenResult::Flooded));
    assert_eq!(judge.sub(&good), refused(TokenResult::Flooded), "nor is a good one looked at");
    judge.client = 2;
    assert_eq!(judge.sub(&good), Ok("ada".to_owned()), "another client");
    judge.client = 1;
    assert_eq!(judge.sub(&good), Ok("ada".to_owned()), "it is known now");
    let later = |secs| Wall::from_secs(NOW + secs);
    assert_eq!(judge.sub_at(&forged(20), later(1)), refused(TokenResult::Signature), "the next second");
    assert_eq!(judge.sub_at(&forged(0), later(10) - Span::from_nanos(1)), Err(None));
    assert_eq!(judge.sub_at(&forged(0), later(10)), refused(TokenResult::Signature), "10 seconds after");
}

#[test]
fn a_worker_keeps_so_many_results_and_refused_ones_push_no_verified_one_out() {
    let mut judge = Judge::new();
    let good = ED25519.token("e", &payload(""));
    assert!(judge.sub(&good).is_ok());
    for number in 0..10_000 {
        assert_eq!(judge.sub(&format!("{number}")), refused(TokenResult::Malformed));
    }
    assert_eq!((judge.sub(&good), judge.told.len()), (Ok("ada".to_owned()), 0));
    assert_eq!(judge.sub("9999"), Err(None));
    assert_eq!(judge.sub("1"), refused(TokenResult::Malformed), "the oldest went");
    let token = |number: u64| ED25519.token("e", &format!("{{\"sub\":\"{number}\",\"exp\":{}}}", NOW + 600));
    for number in 0..4_096 {
        assert_eq!(judge.sub(&token(number)), Ok(number.to_string()));
    }
    assert_eq!((judge.sub(&token(1)), judge.told.len()), (Ok("1".to_owned()), 0));
    assert_eq!((judge.sub(&good), judge.told.len()), (Ok("ada".to_owned()), 1), "the oldest went");
    assert_eq!(judge.cache.kept(), (4_096, 4_096));
}

#[test]
fn an_unverified_claim_needs_a_token_and_nothing_else() {
    let sub = |token: &str| unverified_claim(token.as_bytes(), &pointer("/sub"));
    let unsigned = format!("{}.{}.", base64(b"{\"alg\":\"none\"}"), base64(b"{\"sub\":\"eve\"}"));
    assert_eq!(sub(&unsigned), ClaimValue::Text("eve".into()));
    for bad in ["", "a", "a.b", "a..c", &format!("a.{}.c", base64(b"{\"sub\":\"a\",\"sub\":\"b\"}")), "a.b.c.d"] {
        assert_eq!(sub(bad), ClaimValue::Unfit, "{bad}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_refused(token in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let mut judge = Judge::new();
        proptest::prop_assert_eq!(
            judge.cache.claim(&judge.rules, (&token, 1), &pointer("/sub"), Wall::from_secs(NOW), drop),
            None
        );
        let _ = KeySet::parse(&token);
    }
}
