//! The request that a question of another proxy describes (`decides = "auth"`): question in, head out.
//!
//! The method, the target and the host are those of the fields that the listener reads, the client is the last entry of
//! `X-Forwarded-For`, and the other fields are the request's own. Of the question itself no more is kept than whether its
//! connection goes on.

use std::borrow::Cow;

use super::description::{Described, DescribedLine, is_of_the_exchange, parts_of, scheme_of};
use crate::headers::passed;
use sluicegate_admission::hop_address;
use sluicegate_config::DescribedBy;
use sluicegate_http1::{Request, Version};

const FOR: &str = "x-forwarded-for";
/// Fields that describe a request. None of them is one of its own.
const DESCRIBING: [&str; 8] = [
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-original-method",
    "x-original-url",
    "x-original-uri",
    FOR,
];

/// Reads a question that came with this version over a connection that goes on or not.
///
/// # Errors
/// It describes no request: in words.
pub fn describe(
    question: &Request<'_>,
    by: DescribedBy,
    (version, is_persistent): (Version, bool),
) -> Result<Described, Cow<'static, str>> {
    let lacks = |name: &str| Cow::from(format!("The question lacks {name}."));
    let (method, scheme, host, target) = match by {
        DescribedBy::Forwarded => {
            let method = one(question, "x-forwarded-method")?.ok_or_else(|| lacks("x-forwarded-method"))?;
            let target = one(question, "x-forwarded-uri")?.ok_or_else(|| lacks("x-forwarded-uri"))?;
            (method, one(question, "x-forwarded-proto")?, one(question, "x-forwarded-host")?, target)
        }
        DescribedBy::Original => {
            let method = one(question, "x-original-method")?.ok_or_else(|| lacks("x-original-method"))?;
            match (one(question, "x-original-url")?, one(question, "x-original-uri")?) {
                (Some(url), None) => {
                    let (scheme, host, target) =
                        parts_of(url).ok_or("x-original-url is no http:// or https:// URL with a path.")?;
                    (method, Some(scheme), Some(host), target)
                }
                (None, Some(uri)) => (method, None, question.authority_bytes(), uri),
                (None, None) => return Err(lacks("x-original-url or x-original-uri")),
                // One of them is not the proxy's.
                (Some(_), Some(_)) => return Err("The question has x-original-url and x-original-uri.".into()),
            }
        }
    };
    let is_https = match scheme {
        None => false,
        Some(scheme) => scheme_of(scheme).ok_or("The scheme of the described request is neither http nor https.")?,
    };
    let hops = one(question, FOR)?.ok_or_else(|| lacks(FOR))?;
    let (before, last) = match hops.iter().rposition(|byte| *byte == b',') {
        Some(comma) => (&hops[..comma], &hops[comma + 1..]),
        None => (&hops[..0], hops),
    };
    let client = hop_address(last).ok_or("The last entry of x-forwarded-for is no address.")?;
    let line = DescribedLine { method, target, host: host.unwrap_or_default(), version, is_persistent };
    let own = passed::fields(question).filter(|(name, _)| !is_cut(name));
    let head = line.head(own.chain((!before.is_empty()).then_some((FOR.as_bytes(), before))))?;
    Ok(Described { head, client, is_https })
}

/// Whether a field of a question is none of the request.
fn is_cut(name: &[u8]) -> bool {
    let is = |other: &&str| name.eq_ignore_ascii_case(other.as_bytes());
    DESCRIBING.iter().any(is) || is_of_the_exchange(name)
}

/// Whether a question has a field that describes a request.
pub fn describes(question: &Request<'_>) -> bool {
    passed::fields(question).any(|(name, _)| DESCRIBING.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes())))
}

/// The value of a field that is there once; `None`: it is not there, or empty. Two are an error, and so is one in another
/// spelling, with `_` for `-`: which one its proxy has written is anybody's guess.
fn one<'b>(question: &Request<'b>, name: &str) -> Result<Option<&'b [u8]>, Cow<'static, str>> {
    let mut count = 0_usize;
    passed::lines(question, name.as_bytes(), &mut |_| count += 1);
    let value = passed::field(question, name.as_bytes()).map(<[u8]>::trim_ascii);
    if count > usize::from(value.is_some()) {
        return Err(format!("The question has {name} twice.").into());
    }
    Ok(value.filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use std::net::IpAddr;

    use super::*;
    use sluicegate_http1::{HeadLimits, RequestHead};

    fn described(by: DescribedBy, lines: &[&str]) -> Result<Described, String> {
        described_over(by, lines, (Version::Http11, true))
    }

    fn described_over(by: DescribedBy, lines: &[&str], over: (Version, bool)) -> Result<Described, String> {
        let text = [&["GET / HTTP/1.1", "Host: gateway"], lines, &["", ""]].concat().join("\r\n");
        let mut head = RequestHead::default();
        head.parse(text.as_bytes(), &HeadLimits { max_bytes: 4096, max_fields: 64 }).unwrap();
        describe(&head.on(text.as_bytes()), by, over).map_err(Cow::into_owned)
    }

    fn head_of(described: &Described) -> &str {
        std::str::from_utf8(&described.head).unwrap()
    }

    /// The fields that Traefik 3 sends (`forwardAuth`) for a request that had an `X-Forwarded-For`, and Caddy 2 (`forward_auth`).
    #[test]
    fn forwarded_fields_make_the_request_and_its_client() {
        let traefik = [
            "User-Agent: curl/8.5.0",
            "Accept: */*",
            "X-Key: 7",
            "X-Forwarded-For: 198.51.100.9, 192.0.2.7",
            "X-Forwarded-Host: api.example.com",
            "X-Forwarded-Method: POST",
            "X-Forwarded-Port: 443",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Server: edge-1",
            "X-Forwarded-Uri: /v1/items?x=1",
            "X-Original-URL: /other",
            "Accept-Encoding: gzip",
        ];
        let one = described(DescribedBy::Forwarded, &traefik).unwrap();
        assert_eq!(
            head_of(&one),
            "POST /v1/items?x=1 HTTP/1.1\r\nhost: api.example.com\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nX-Key: 7\r\n\
             X-Forwarded-Port: 443\r\nX-Forwarded-Server: edge-1\r\nAccept-Encoding: gzip\r\n\
             x-forwarded-for: 198.51.100.9\r\n\r\n"
        );
        assert_eq!((one.client, one.is_https), ("192.0.2.7".parse().unwrap(), true));
        let caddy = [
            "X-Forwarded-Method: GET",
            "X-Forwarded-Uri: /",
            "X-Forwarded-For: ::1",
            "X-Forwarded-Proto: http",
            "X-Forwarded-Host: localhost:8080",
        ];
        let two = described(DescribedBy::Forwarded, &caddy).unwrap();
        assert_eq!(head_of(&two), "GET / HTTP/1.1\r\nhost: localhost:8080\r\n\r\n");
        assert_eq!((two.client, two.is_https), ("::1".parse().unwrap(), false));
    }

    #[test]
    fn original_fields_have_the_host_in_the_url_or_that_of_the_question() {
        let of = |target: &str| {
            let lines = ["X-Original-Method: PUT", target, "X-Forwarded-For: 192.0.2.7", "X-Forwarded-Proto: https"];
            let one = described(DescribedBy::Original, &lines).unwrap();
            (head_of(&one).to_owned(), one.is_https)
        };
        let head = |target: &str, host: &str| format!("PUT {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(of("X-Original-URL: https://a.example:8443/x?y"), (head("/x?y", "a.example:8443"), true));
        assert_eq!(of("X-Original-URL: http:///x"), (head("/x", ""), false));
        assert_eq!(of("X-Original-URL: http://a//b?c"), (head("//b?c", "a"), false));
        assert_eq!(of("X-Original-URI: /x?to=http://b/"), (head("/x?to=http://b/", "gateway"), false));
    }

    #[test]
    fn the_head_says_whether_the_connection_of_the_question_goes_on() {
        let lines = ["X-Original-Method: GET", "X-Original-URI: /", "X-Forwarded-For: 192.0.2.7", "TE: trailers"];
        for (over, first, ends) in [
            ((Version::Http11, true), "GET / HTTP/1.1", ""),
            ((Version::Http11, false), "GET / HTTP/1.1", "connection: close\r\n"),
            ((Version::Http10, true), "GET / HTTP/1.0", "connection: keep-alive\r\n"),
            ((Version::Http10, false), "GET / HTTP/1.0", ""),
        ] {
            let one = described_over(DescribedBy::Original, &lines, over).unwrap();
            assert_eq!(head_of(&one), format!("{first}\r\nhost: gateway\r\n{ends}\r\n"));
        }
    }

    #[test]
    fn what_describes_no_request_is_said() {
        let all = ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /", "X-Forwarded-For: 192.0.2.7"];
        for (place, told) in
            ["lacks x-forwarded-method", "lacks x-forwarded-uri", "lacks x-forwarded-for"].iter().enumerate()
        {
            let mut lines = all.to_vec();
            let line = lines.remove(place);
            let error = described(DescribedBy::Forwarded, &lines).unwrap_err();
            assert!(error.contains(told), "{error}");
            // Twice is no better, in whichever spelling it comes first.
            let error = described(DescribedBy::Forwarded, &[&all[..], &[line]].concat()).unwrap_err();
            assert!(error.ends_with("twice."), "{error}");
        }
        for (line, told) in [
            ("X-Forwarded-For: 192.0.2.7, unknown", "no address"),
            ("X-Forwarded-For: 192.0.2.7,", "no address"),
            ("X-Forwarded-Uri: /a b", "a blank"),
            ("X-Forwarded-Uri: / HTTP/1.1", "a blank"),
            ("X-Forwarded-Uri: http://free/", "begin with a slash"),
            ("X_Forwarded-Uri: /free", "lacks x-forwarded-uri"),
            ("X-Forwarded-Method: GET /", "a blank"),
        ] {
            let name = line.split(':').next().unwrap().replace('_', "-");
            let lines: Vec<&str> = all.iter().copied().filter(|own| !own.starts_with(&*name)).chain([line]).collect();
            let error = described(DescribedBy::Forwarded, &lines).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
        }
        let proto = [&all[..], &["X-Forwarded-Proto: ws"]].concat();
        assert!(described(DescribedBy::Forwarded, &proto).unwrap_err().contains("neither http nor https"));
        assert!(described(DescribedBy::Original, &all).unwrap_err().contains("lacks x-original-method"));
        let original = ["X-Original-Method: GET", "X-Forwarded-For: 192.0.2.7"];
        for (lines, told) in [
            (&["X-Original-URL: http://a?/api"][..], "no http://"),
            (&["X-Original-URL: http://a:80?x=/api"], "no http://"),
            (&["X-Original-URL: http://free@a/api"], "no http://"),
            (&["X-Original-URL: http://a#/api"], "no http://"),
            (&["X-Original-URL: http://a"], "no http://"),
            (&["X-Original-URL: /api"], "no http://"),
            (&["X-Original-URL: ftp://a/api"], "neither http nor https"),
            (&["X-Original-URI: http://a/api"], "begin with a slash"),
            (&["X-Original-URL: http://free/", "X-Original-URI: /api"], "x-original-url and x-original-uri"),
            (&["X_Original_URI: /free"], "twice"),
            (&["X-Original-URI: /api", "X_Original-URI: /free"], "twice"),
        ] {
            let error = described(DescribedBy::Original, &[&original[..], lines].concat()).unwrap_err();
            assert!(error.contains(told), "{lines:?}: {error}");
        }
    }

    fn parsed(text: &[u8]) -> Option<RequestHead> {
        let mut head = RequestHead::default();
        head.parse(text, &HeadLimits { max_bytes: 16_384, max_fields: 64 }).is_ok().then_some(head)
    }

    /// The parts that decisions are made of: method, path, query and authority, then names and values of fields.
    fn parts<'b>(head: &'b RequestHead, text: &'b [u8]) -> ([Option<&'b str>; 4], Vec<[&'b [u8]; 2]>) {
        let request = head.on(text);
        let fields = passed::fields(&request).filter(|(name, _)| !is_cut(name)).map(|(name, value)| [name, value]);
        ([Some(request.method()), Some(request.path()), request.query(), request.authority()], fields.collect())
    }

    proptest! {
        /// Whatever stands in its fields, a question describes one request and no more lines than it has.
        #[test]
        fn no_field_of_a_question_becomes_more_than_it_is(
            method in value(), target in value(), host in value(), proto in select(vec!["http", "https", "", "x"]),
            before in select(vec!["", "198.51.100.9, ", "junk , "]), other in value(), by_url in any::<bool>(),
        ) {
            let lines = if by_url {
                [format!("X-Original-Method: {method}"), format!("X-Original-URL: {proto}://{host}{target}"), "X-A: b".to_owned()]
            } else {
                [format!("X-Forwarded-Method: {method}"), format!("X-Forwarded-Uri: {target}"), format!("X-Forwarded-Host: {host}")]
            };
            let more = [format!("X-Forwarded-For: {before}192.0.2.7"), format!("X-Other: {other}")];
            let begin = ["GET / HTTP/1.1", "Host: gateway"].map(str::to_owned);
            let text = [&begin[..], &lines, &more, &[String::new(), String::new()]].concat().join("\r\n");
            let Some(question) = parsed(text.as_bytes()) else { return Ok(()) };
            let by = if by_url { DescribedBy::Original } else { DescribedBy::Forwarded };
            let Ok(one) = describe(&question.on(text.as_bytes()), by, (Version::Http11, true)) else { return Ok(()) };
            prop_assert_eq!(one.client, "192.0.2.7".parse::<IpAddr>().unwrap());
            let Some(head) = parsed(&one.head) else { return Ok(()) };
            let ([found_method, path, query, authority], fields) = parts(&head, &one.head);
            let (path, authority) = (path.unwrap(), authority.unwrap_or_default());
            prop_assert_eq!(found_method, Some(method.trim_ascii()));
            let found = query.map_or(path.to_owned(), |query| format!("{path}?{query}"));
            if by_url {
                // An authority may hold no slash: what was meant for it may be the beginning of the path.
                let whole = format!("{authority}{found}");
                let meant = format!("{host}{target}");
                prop_assert_eq!(whole.as_str(), meant.trim_ascii());
            } else {
                prop_assert_eq!((&*found, authority), (target.trim_ascii(), host.trim_ascii()));
            }
            prop_assert_eq!(fields.len(), if by_url { 2 } else { 1 });
        }

        /// A request that a proxy describes has the parts of the request itself.
        #[test]
        fn a_request_that_is_described_is_decided_as_itself(
            method in select(vec!["GET", "POST", "HEAD", "OPTIONS", "G-T"]),
            target in select(vec!["/", "/a?b=c", "/%2e%2E//x", "//a", "*", "/a?x=http://b/", "/?"]),
            host in select(vec!["h", "a.example:81", "[::1]:80", ""]),
            fields in vec((
                select(vec!["X-Key", "Cookie", "Authorization", "x_key", "Via", "X-Real-IP", "Forwarded", "TE", "Accept"]),
                select(vec!["", "a", "b;c=d", "192.0.2.1"]),
            ), 0..6),
        ) {
            let own = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
            let text = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{own}\r\n");
            let Some(head) = parsed(text.as_bytes()) else { return Ok(()) };
            let about = format!(
                "GET / HTTP/1.1\r\nHost: gateway\r\n{own}X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {target}\r\n\
                 X-Forwarded-Host: {host}\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n"
            );
            let question = parsed(about.as_bytes()).unwrap();
            let one = describe(&question.on(about.as_bytes()), DescribedBy::Forwarded, (Version::Http11, true)).unwrap();
            let described = parsed(&one.head).unwrap();
            prop_assert_eq!(parts(&described, &one.head), parts(&head, text.as_bytes()));
        }
    }

    /// The value of a field, with all that could end a part of a request.
    fn value() -> impl Strategy<Value = String> {
        prop_oneof!["[/?#@:*. a-zA-Z0-9%\t-]{0,12}", "/[a-z?]{0,6}", "[A-Z]{1,5}", "[^\r\n\0]{0,8}"]
    }
}
