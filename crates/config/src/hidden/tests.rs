//! Lines of the file as a report shows them.

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::findings::{Finding, Findings};
use crate::{Certificates, declare_words, parse, report};

const TOUR: &str = include_str!("../../../../gateway.toml");

fn secrets_of(text: &str) -> Secrets {
    declare_words();
    Secrets::of(text)
}

fn masked(text: &str) -> String {
    let secrets = secrets_of(text);
    text.char_indices().map(|(at, own)| if own != '\n' && secrets.hide(at) { '*' } else { own }).collect()
}

/// A line as it is shown below others.
fn shown_below(above: &str, line: &str) -> String {
    masked(&format!("{above}{line}")).chars().skip(above.chars().count()).collect()
}

#[test]
fn of_toml_all_is_shown_but_secrets_and_comments() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        ("exempt = [\"key:gold\", \"10.0.0.0/8\", \"gold\"]", "exempt = [\"key:****\", \"10.0.0.0/8\", \"****\"]"),
        ("exemt = ['key:a\"b', 5]", "exemt = ['key:***', 5]"),
        ("exempt = [\n  \"key:a\",\n  \"gold\\\"x\",\n]", "exempt = [\n  \"key:*\",\n  \"*******\",\n]"),
        ("exempt = [\"::1\"]\nkey = \"client_ip\"", "exempt = [\"::1\"]\nkey = \"client_ip\""),
        ("exempt = [\"ké\", 7, 12345, true]", "exempt = [\"**\", 7, *****, true]"),
        ("exempt = [\n# \"key:a\"]\n\"b\", # c\n]", "exempt = [\n#*********\n\"*\", #**\n]"),
        ("exempt = [\"a#b\", '#'] # c", "exempt = [\"***\", '*'] #**"),
        ("name = \"a#b\" # '", "name = \"a#b\" #**"),
        ("exempt = '''\na\nb'''", "exempt = '''\n*\n*'''"),
        ("exempt = [\"\", '']", "exempt = [\"\", '']"),
        ("exempt = []\nname = 5", "exempt = []\nname = 5"),
        (
            "limit = [{ exempt = [\"a\"], name = \"b\" }, { exempt = ['c'] }]",
            "limit = [{ exempt = [\"*\"], name = \"b\" }, { exempt = ['*'] }]",
        ),
        // Tables in it, and other spellings.
        ("exempt = [{ key = \"SECRET\" }]", "exempt = [{ *** = \"******\" }]"),
        ("exempt.SECRET = true", "************* = true"),
        ("exempt.SECRET.a = 1\nexempt.SECRET.b = 2", "*************** = 1\n*************** = 2"),
        ("[limit.exempt.SECRET]\n[limit.exempt.SECRET.b]", "*********************\n***********************"),
        ("[[exempt.SECRET]]\n[[exempt.SECRET]]", "*****************\n*****************"),
        ("[limit.exempt]\nrate = \"SECRET\"", "**************\n**** = \"******\""),
        ("exempt_keys = [\"SECRET\"]", "exempt_keys = [\"******\"]"),
        ("\"ex\\u0065mpt\" = [\"SECRET\"]", "\"ex\\u0065mpt\" = [\"******\"]"),
        // Addresses with a secret in them.
        ("webhook = \"https://h.example:8/SECRET#x\" # c", "webhook = \"https://h.example:8*********\" #**"),
        ("webhook = 'http://[::1]'", "webhook = 'http://[::1]'"),
        ("webhok = 'h/SECRET'", "webhok = '********'"),
        ("webhok = 'https://h?SECRET'", "webhok = 'https://h*******'"),
        ("sinks = [{ http = \"https://h/SECRET\" }]", "sinks = [{ http = \"https://h*******\" }]"),
        ("http = \"SECRET\"\nhtpp = 'http://h?SECRET'", "http = \"******\"\nhtpp = 'http://h*******'"),
        ("follow = \"https://h/rules?k=SECRET\"", "follow = \"https://h/rules*********\""),
        ("follow = \"https://u:SECRET@h/rules\"", "follow = \"************************\""),
        ("alerts = [{ webhook = \"https://u:SECRET@h/\" }]", "alerts = [{ webhook = \"*******************\" }]"),
        ("webhook = \"https://u:SECRET\\u0040h\"", "webhook = \"***********************\""),
        ("webhook = [\"SECRET\"]\nx.webhook = \"SECRET/\"", "webhook = [\"******\"]\nx.webhook = \"*******\""),
        ("webhook = '''\nhttps://h/SECRET'''", "webhook = '''\n****************'''"),
        // Credentials.
        ("set = { \"X-Api-Key\" = \"sk\", X-Plain = \"p\" }", "set = { \"X-Api-Key\" = \"**\", X-Plain = \"p\" }"),
        ("set = { authorization = [\"Bearer x\", \"y\"] }", "set = { authorization = [\"********\", \"*\"] }"),
        ("set = { authorization = { value = \"SECRET\" } }", "set = { authorization = { ***** = \"******\" } }"),
        ("set = { key = \"SECRET\", token = \"x\" }", "set = { key = \"******\", token = \"*\" }"),
        ("authorization = \"10.0.0.1\"", "authorization = \"********\""),
        ("[route.request_headers.set]\nCookie = \"a\"", "[route.request_headers.set]\nCookie = \"*\""),
        ("add = [\"X-Api-Key\", \"SECRET\"]", "add = [\"*********\", \"******\"]"),
        ("add = [\"Authorization SECRET\", \"X-A: b\"]", "add = [\"********************\", \"******\"]"),
        ("add = [\"X-A: b\"]\nset = [[\"Cookie\", \"a\"]]", "add = [\"X-A: b\"]\nset = [[\"******\", \"*\"]]"),
        ("request_headers = [\"Cookie=a\"]", "request_headers = [\"********\"]"),
        ("hosts = [\"Authorization: SECRET\"]", "hosts = [\"*********************\"]"),
        ("\"Cookie: a\" = 1", "\"*********\" = 1"),
        ("add = [{ value = \"hunter\", name = \"DPoP-Key\" }]", "add = [{ value = \"******\", name = \"DPoP-Key\" }]"),
        ("deny = [\"key:gold\", \"all\"]", "deny = [\"key:****\", \"all\"]"),
        ("keys = { SECRET = \"free\" }", "keys = { ****** = \"****\" }"),
        // These are no secrets.
        ("remove = [\"Authorization\", \"x y\"]", "remove = [\"Authorization\", \"x y\"]"),
        (
            "request_headers = { remove = [\"Authorization\", \"x\"] }",
            "request_headers = { remove = [\"Authorization\", \"x\"] }",
        ),
        ("key = [\"cookie:sid\", \"header:x-api-key\", \"x\"]", "key = [\"cookie:sid\", \"header:x-api-key\", \"x\"]"),
        ("servers = [\"auth-api:8080\", \"b\"]", "servers = [\"auth-api:8080\", \"b\"]"),
        ("name = \"per-api-key\"\nrate = \"x\"", "name = \"per-api-key\"\nrate = \"x\""),
        (
            "[plan.api-key]\napi-key = { rate = \"x\", exempt = [\"a\"] }",
            "[plan.api-key]\napi-key = { rate = \"x\", exempt = [\"*\"] }",
        ),
    ] {
        let found = masked(text);
        if found != expected {
            wrong.push((text, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn of_what_is_no_toml_the_key_is_shown() {
    let mut wrong = Vec::new();
    for (above, line, expected) in [
        ("", "exempt = [key:gold]", "exempt = **********"),
        ("", "  exempt=[\"key:gold", "  exempt=**********"),
        ("", "timeout = 5m # x", "timeout = 5m ***"),
        ("", "timeout: 5m", "timeout****"),
        ("", "timeout 5m", "timeout **"),
        ("", "timeout\"5m\"", "timeout****"),
        ("", "limit.exempt = gold", "limit.exempt = ****"),
        ("", "exempt.SECRET = true x", "exempt.***************"),
        ("", "exempt += [\"SECRET\"]", "exempt *************"),
        ("", "timeout = = 5m", "timeout = = **"),
        ("", "timeout =", "timeout ="),
        ("", "[[limit", "[[limit"),
        ("", "\t[plan.gold", "\t[plan.****"),
        ("", "[limit] SECRET", "[limit] ******"),
        // No word of the file's language: it may be a secret.
        ("", "Authorization: SECRET", "*********************"),
        ("", "set Authorization Bearer SECRET", "set ***************************"),
        ("", "timeoutx = 5m", "*************"),
        ("", "TIMEOUT = 5m", "************"),
        ("", "\"timeout\" = 5m", "**************"),
        ("exempt = [\n", "  gold==", "  ******"),
        ("exempt = [\n", "  \"gold\", # x", "  ***********"),
        ("exempt = [\n", "SECRET = 5", "**********"),
        ("exempt = [\n", "rate = 5/s", "rate = ***"),
        // Values of keys of the file are no secrets.
        ("x = y\n", "rate = \"5/s\"", "rate = \"5/s\""),
        ("", "level = debug", "level = debug"),
        ("", "key = \"header:k\"}exempt = SECRET", "key = \"header:k\"****************"),
        ("", "rate = \"5/s", "rate = \"5/s"),
        ("[limit]\n", "key = header:x-api-key", "key = header:x-api-key"),
        ("", "respond = { status = 200, body = \"ok }", "respond = { status = 200, body = \"ok }"),
        ("servers = [\n", "  127.0.0.1:80,", "  127.0.0.1:80,"),
        ("servers = [\"a\"\n", "name = x", "name = x"),
        // The parts of them that may be.
        ("", "store = redis://u:SECRET@h", "store = ******************"),
        ("", "servers = [\"Authorization: SECRET\"", "servers = [\"**********************"),
        ("", "deny = [\"10.0.0.0/8\", key:gold]", "deny = [\"10.0.0.0/8\", *********"),
        ("", "penalty = { after = 1, x = SECRET }", "penalty = { after = 1, ************"),
        ("", "headers = { x-a = SECRET", "headers = **************"),
        ("[route.request_headers.set]\n", "name = SECRET", "name = ******"),
        ("[keys]\n", "rate = SECRET", "rate = ******"),
        ("webhook = \"\n", "name = SECRET", "name = ******"),
        ("exempt =\n", "name = SECRET", "name = ******"),
        ("# exempt = [\"\n", "name = SECRET", "name = ******"),
        ("", "store = \"redis://u:a,SECRET@h", "store = *********************"),
        ("", "servers = [\"default:SECRET@h]", "servers = *******************"),
        ("", "sinks = [\"https://h/SECRET\" x]", "sinks = [\"https://h***********"),
        ("", "respond = { \"headers\" = SECRET }", "respond = { \"*******************"),
        ("clients = [\n", "  { \"sha256\": \"SECRET\" },", "  ***********************"),
        ("servers = [\n", "\"exempt\": [\"SECRET\"]", "********************"),
        ("alerts = [\n", "  \"https://h/SECRET\",", "  *******************"),
        ("", "name = \"a; webhook = https://h/SECRET", "name = \"a; **************************"),
        ("", "rate = \"5/s  # SECRET", "rate = \"5/s *********"),
        ("respond.body = \"\"\"\n", "name = SECRET", "*************"),
        ("request_headers:\n", "name = SECRET", "name = ******"),
        ("#[route.request_headers.set]\n", "name = SECRET", "name = ******"),
        ("[[limit]] # ours\n", "name = x", "name = x"),
        ("deny = [\n  \"x\",\n]\n", "name = x", "name = x"),
        ("", "level = x\u{a0}y", "level = x\u{a0}y"),
        ("\u{a0}\u{b}level\n", "level = x\u{b}", "level = **"),
        ("# it's the client's\n", "name = x", "name = x"),
        ("exempt = [\"\n[[limit]]\n", "name = x", "name = x"),
        ("exempt = [\"\"\"\n[[limit]]\n", "name = SECRET", "name = ******"),
    ] {
        let text = format!("{above}{line}");
        let found = shown_below(above, line);
        if found != expected || DeTable::parse(&text).is_ok() && !above.is_empty() {
            wrong.push((above, line, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_message_repeats_what_is_shown() {
    declare_words();
    for (line, part, repeats) in [
        ("workers = 2", "workers", true),
        ("[server]", "server", true),
        ("a = 1\nworkers = 2", "workers", true),
        ("timeout = 5m", "5m", false),
        ("\n  gold,", "gold", false),
        ("[\nrate", "rate", true),
        ("exempt = { rate = 1, rate = 2 }", "rate", false),
    ] {
        let start = line.rfind(part).unwrap();
        assert_eq!(may_repeat(line, &(start..start + part.len())), repeats, "{line}");
    }
}

/// Each line of it, and each default and example that it shows.
#[test]
fn a_token_in_place_of_its_hash_is_hidden() {
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let text =
        format!("explain_sha256 = \"{hash}\"\nexplain_sha256s = \"{hash}\"\n[a]\nexplain_sha256 = \"planted\"\n");
    let secrets = secrets_of(&text);
    let hidden = |what: &str, from: usize| {
        let at = from + text[from..].find(what).unwrap();
        (at..at + what.len()).all(|byte| secrets.hide(byte))
    };
    assert_eq!((hidden(hash, 0), hidden(hash, 90), hidden("planted", 0)), (false, true, true));
}

#[test]
fn nothing_of_the_tour_is_hidden() {
    let shown = ["\n#", "\n# e.g. "].into_iter().flat_map(|start| TOUR.match_indices(start));
    let texts = shown.map(|(at, start)| format!("{}\n{}", &TOUR[..at], &TOUR[at + start.len()..]));
    let mut tried = 0;
    for text in texts.chain([TOUR.to_owned()]) {
        if DeTable::parse(&text).is_err() {
            continue;
        }
        let secrets = secrets_of(&text);
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let end = line.find('#').unwrap_or(line.len());
            assert!(!(0..end).any(|at| secrets.hide(start + at)), "{line}");
            start += line.len();
        }
        tried += 1;
    }
    assert!(tried > 70, "{tried}");
}

/// Words are taken from the tour by their look: none of them may make a secret a setting.
#[test]
fn the_language_has_few_words_that_are_like_names_of_secrets() {
    declare_words();
    let mut like: Vec<&str> =
        LANGUAGE.get().unwrap().words.keys().copied().filter(|word| is_known(word) && names_a_secret(word)).collect();
    like.sort_unstable();
    let expected = [
        "allow_credentials",
        "fair_key",
        "hash_key",
        "jwt",
        "key",
        "key_body",
        "key_is_secret",
        "max_key_rate",
        "max_keys",
        "on_missing_key",
        "password_file",
        "redact_secret_file",
        "seal_key_file",
        "secret_file",
        "token_file",
    ];
    assert_eq!(like, expected);
    for word in ["listener", "limit", "dead_letter", "plan", "exempt", "rate", "servers", "set", "level"] {
        assert!(is_known(word), "{word}");
    }
}

/// Each of these took minutes if a line, or what stands above it, were read again for each of its parts.
#[test]
fn a_long_file_is_read_once() {
    for (start, part, end) in [
        ("", "x = [\"a\"] # y\n", ""),
        ("", "x = [\"a\n", ""),
        ("x = [", "\"#\", ", "] # y\n"),
        ("x = \"", "# ", "\" # y\n"),
        ("deny = [", "::", "x\n"),
        ("deny = [", "::1, ", "x\n"),
        ("servers = [", "://a ", "x@\n"),
        ("exempt = [", "\"a\", ", "] # y\n"),
    ] {
        let text = format!("{start}{}{end}", part.repeat(200_000));
        assert!(secrets_of(&text).hide(text.len() - 2), "{start}{part}");
    }
    let keys: String = (0..100_000).map(|at| format!("a.k{at} = 1, ")).collect::<Vec<_>>().concat();
    assert!(secrets_of(&format!("exempt = {{ {keys} }}")).hide(12));
}

/// A text of these parts.
fn text_of(parts: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(parts), 0..most).prop_map(|parts| parts.concat())
}

const ODD: [&str; 27] = [
    "\u{a0}",
    "\u{b}",
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

/// A file with a place for a line in a limit, in a route, and at its end.
fn file_with(limit: &str, route: &str, end: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:8080\"\n\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\nkey = \"header:k\"\n{limit}\n\n\
         [[route]]\nname = \"all\"\nlimits = [\"a\"]\nrespond = {{}}\n{route}\n\n{end}\n"
    )
}

/// Lines of a limit. ① stands for a text with a secret in it, ② for one that is a value of a key.
const OF_LIMITS: [&str; 22] = [
    "",
    "exempt = [①]",
    "exempt = [\"10.0.0.0/8\", ②, ②] # ①",
    "exempt = [\n  ①, # ①\n  7,\n  \"::1\", ②,\n]",
    "exempt = ①",
    "exempt = [[①], ①]",
    "exempt = [{ who = ①, \"10.0.0.1\" = ② }]",
    "exempt.who = ①",
    "exempt.a.①.b = 1\nexempt.a.①.c = 2",
    "[[limit.exempt.①]]\n[[limit.exempt.①]]",
    "[limit.exempt.①.a]\n[limit.exempt.①.b]",
    "exempt . a.\"b c\" = [①]",
    "exempt = {\n  who = ①,\n  a = [①],\n}",
    "\"ex\\u0065mpt\" = [①]",
    "exemt = [①]",
    "Exempt_keys = [①]",
    "api_token = ①",
    "# exempt = [①]",
    "[limit.exempt]\nwho = ①",
    "[[limit.exempt]]\nwho = [①]",
    "[limit.tokens.a.b]\nc = ①",
    "penalty = { after = 1, secrets = [①] }",
];

/// Lines of a route. ③ stands for a header with credentials.
const OF_ROUTES: [&str; 27] = [
    "",
    "request_headers = { set = { authorization = ① } }",
    "request_headers.set.x-api-key = [①, ①]",
    "request_headers.set.key = ①",
    "response_headers = {\n  add = { x-a = \"b\", Set-Cookie = ① }, # ①\n}",
    "[route.request_headers.set]\n\"X-Api-Key\" = ①",
    "[route.refusal.headers]\n\"x\\u002dtoken\" = ①\nx-b = \"c\"",
    "headers = { x-a = \"b\", x-session = ① }",
    "refusal = { headers = { X-Token = ① }, status = 99 }",
    "request_headers = { add = [{ value = ①, name = \"DPoP-Key\" }] }",
    "request_headers = { add = [{ header = \"Authorization\", vlue = ① }], remove = [\"cookie\"] }",
    "request_headers.add = [\"X-Api-Key\", ①]",
    "request_headers.add = [③, \"x: y\"]",
    "request_headers = ③",
    "reqest_headers = [③]",
    "st = { Cookie = { a = ① } }",
    "request_headers = { set = { authorization = \"a\", Authorization = ① } }",
    "set_headers = [\"authorization\", ①]",
    "add_header = [\"Authorization\", ①]",
    "hdrs = [[\"authorization\", ①]]",
    "set = [{ header = \"authorization\", to = ① }]",
    "headers = [{ name = \"authorization\", text = ① }]",
    "request_headers = { set = [{ to = ①, name = \"authorization\" }] }",
    "req_headers = [{ name = \"authorization\", text = ① }]",
    "hosts = [③]",
    "request_headers.remove = [③]",
    "request_headers.set = { ③ = \"x\" }",
];

const OF_FILES: [&str; 10] = [
    "",
    "[client]\ndeny = [\"192.0.2.1/24\", ②, ②]",
    "[tokens]\na = ①",
    "[admin]\ntokens = [{ name = \"ci\", sha256 = ① }]",
    "[admin]\ntokens = [①]",
    "[admin]\ntokens = ①",
    "[admin]\ntokens = [{ name = \"ci\", token = ① }]",
    "[admin]\nauth = { user = ① }",
    "[keys]\n① = \"free\"",
    "keys.① = \"free\"",
];

/// Parts of a text beside the secret in it.
const BESIDE: [&str; 22] = [
    "", " ", ", ", "a b", "'", "\"", "\\", "#", " # ", "]", "}", "{", "é", "\t", "=", ": ", "[x]", "key:", "10.0.0.1",
    "{x}", "name = ", "漢",
];

/// A text with a secret in it, as TOML writes it.
fn literal() -> impl Strategy<Value = (&'static str, &'static str, u8)> {
    (prop::sample::select(&BESIDE[..]), prop::sample::select(&BESIDE[..]), 0..4_u8)
}

fn written(prefix: &str, (before, after, style): (&str, &str, u8), may_have_lines: bool) -> String {
    let text = format!("{prefix}{before}S3CR3T{after}");
    let quoted = format!("{text:?}");
    match style {
        2 if may_have_lines && prefix.is_empty() => format!("\"\"\"\n{}\n\"\"\"", quoted.trim_matches('"')),
        1 | 3 if text.contains('\'') => quoted,
        3 if may_have_lines && prefix.is_empty() => format!("'''{text}\n{text}'''"),
        1 | 3 => format!("'{text}'"),
        _ => quoted,
    }
}

/// Puts literals in the places of a line.
fn filled(line: &str, own: (&str, &str, u8)) -> String {
    // Keys and comments have no lines.
    let may_have_lines = !["① =", ".①", "#"].iter().any(|own| line.contains(own));
    let line = line.replace('①', &written("", own, may_have_lines));
    line.replace('②', &written("key:", own, false)).replace('③', &written("Authorization: ", own, false))
}

/// Files with secrets.
fn file() -> impl Strategy<Value = String> {
    let lines = |lines: &'static [&'static str]| (prop::sample::select(lines), literal());
    (lines(&OF_LIMITS), lines(&OF_ROUTES), lines(&OF_FILES), any::<bool>()).prop_map(
        |(limit, route, end, is_windows)| {
            let text = file_with(&filled(limit.0, limit.1), &filled(route.0, route.1), &filled(end.0, end.1));
            if is_windows { text.replace('\n', "\r\n") } else { text }
        },
    )
}

/// All that is told of a text: what is wrong with it, and every line of it.
fn told(text: &str) -> String {
    let told = match parse(text, Path::new("gateway.toml"), Certificates::Unread) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    };
    told + "\n" + &lines_told(text)
}

/// Every line of a text, as if each had a mistake.
fn lines_told(text: &str) -> String {
    let mut told = String::new();
    let starts: Vec<usize> = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    for some in starts.chunks(40) {
        let findings = Findings::default();
        for start in some {
            findings.push(Finding::error(*start..*start + 3, "here").related("the first is at", 0..1));
        }
        let _ = write!(told, "\n{}", report::failure(Path::new("f"), text, findings));
    }
    told
}

/// Whether a place is in or beside the name of a field with credentials. With a byte more or less it is another name.
fn is_in_a_name(text: &str, at: usize) -> bool {
    let is_part = |own: char| own.is_ascii_alphanumeric() || "-:\\".contains(own);
    let start = text[..at].rfind(|own| !is_part(own)).map_or(0, |before| before + 1);
    let end = text[at..].find(|own| !is_part(own)).map_or(text.len(), |length| at + length);
    names_a_secret(text.get(start..end).unwrap_or_default())
}

fn leaks(report: &str) -> bool {
    report.contains("S3CR3T")
}

proptest! {
    #[test]
    fn no_text_is_too_odd(text in text_of(&ODD, 60)) {
        let Secrets { hidden } = secrets_of(&text);
        prop_assert!(hidden.windows(2).all(|two| two[0].end < two[1].start), "{:?}", hidden);
        prop_assert!(hidden.iter().all(|range| text.get(range.clone()).is_some_and(|text| !text.is_empty())));
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        for start in starts {
            let line = text[start..].split('\n').next().unwrap();
            let repeats = may_repeat(&text, &(start..start + line.len()));
            let is_shown = shown(line) >= line.len();
            prop_assert_eq!(repeats, is_shown);
        }
        told(&text);
    }

    #[test]
    fn nothing_behind_the_name_of_a_secret_is_shown_in_its_line(
        name in prop::sample::select(&["exempt", "Authorization", "x-api-key", "\"exempt\"", "limit.exempt", "set Cookie"][..]),
        between in prop::sample::select(&[" ", "=", ":", " = [", " {", "\"", "'", "+="][..]),
        rest in text_of(&IN_A_LINE, 40),
    ) {
        let line = masked(&format!("{name}{between}{rest}"));
        prop_assert!(!leaks(&line), "{line}");
    }

    #[test]
    fn nothing_in_an_array_that_is_open_is_shown(
        name in prop::sample::select(&["exempt", "Authorization"][..]),
        above in text_of(&IN_AN_ARRAY, 40),
        rest in text_of(&IN_A_LINE, 20),
    ) {
        let text = masked(&format!("{name} = [{above}\n{rest}"));
        prop_assert!(!leaks(&text), "{text}");
    }

    #[test]
    fn no_report_of_a_file_that_is_toml_shows_a_secret(text in file()) {
        // Lists end in quotes of their own: some texts do not fit in.
        prop_assert!(DeTable::parse(&text).is_ok(), "{}", text);
        let told = told(&text);
        prop_assert!(!leaks(&told), "{}", told);
    }

    #[test]
    fn no_report_of_a_file_that_is_broken_shows_a_secret(
        text in file(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..14_usize), 1..4),
    ) {
        let mut text = text;
        let mut moves_lines = false;
        for (at, kind) in edits {
            let at = at.index(text.len());
            let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            if is_in_a_name(&text, at) {
                continue;
            }
            let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            moves_lines |= text[line..].starts_with('[');
            match "[]{}=\"'\n.,#\\ ".chars().nth(kind) {
                Some(own) => text.insert(at, own),
                None => drop(text.remove(at)),
            }
        }
        // A part that was commented out, cut in two or renamed, and is TOML, says something else.
        if DeTable::parse(&text).is_err() {
            // Below another header a line means something else, and a message may say so.
            let told = if moves_lines { lines_told(&text) } else { told(&text) };
            prop_assert!(!leaks(&told), "{}\n{}", text, told);
        }
    }
}
