//! Requests that may be collapsed, and their keys.

/// Fields that tell of whom a request is, of which part or state of the answer it wants, or of something else than an exchange:
/// requests with one of these are not collapsed, unless it is listed. `Upgrade` is no such field: its caller tells.
const OF_ONE: [&str; 9] = [
    "authorization",
    "cookie",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "proxy-authorization",
    "range",
];
/// Fields of the request to the server that are in each key, beside the first line.
const IN_EACH: [&str; 3] = ["host", "x-forwarded-host", "x-forwarded-proto"];

/// The fields that requests of one route are told apart by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRules {
    listed: Vec<Box<str>>,
    /// All fields that are in the key.
    in_key: Vec<Box<str>>,
}

impl RequestRules {
    /// Those of a route that lists these names. `also`: names of fields that the gateway itself tells requests apart by, and of
    /// fields that it sets to something else for each request.
    pub fn new(listed: &[Box<str>], also: impl IntoIterator<Item = Box<str>>) -> Self {
        let lower = |name: &str| -> Box<str> { name.to_ascii_lowercase().into() };
        let listed: Vec<Box<str>> = listed.iter().map(|name| lower(name)).collect();
        let also = also.into_iter().map(|name| lower(&name));
        let mut in_key: Vec<Box<str>> =
            IN_EACH.into_iter().map(lower).chain(listed.iter().cloned()).chain(also).collect();
        in_key.sort_unstable();
        in_key.dedup();
        Self { listed, in_key }
    }

    /// Whether a request with this method and these fields, and without a body, may be collapsed.
    ///
    /// Not one with a name that servers which put fields into variables, as CGI does, would take for one that counts here.
    pub fn may_collapse<'f>(&self, method: &[u8], mut fields: impl Iterator<Item = &'f [u8]>) -> bool {
        matches!(method, b"GET" | b"HEAD")
            && !fields.any(|name| is_of_one(name) && !self.lists(name) || self.is_alias(name))
    }

    fn lists(&self, name: &[u8]) -> bool {
        self.listed.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
    }

    /// Whether a name has `_` where a field has `-` that counts.
    fn is_alias(&self, name: &[u8]) -> bool {
        if !name.contains(&b'_') {
            return false;
        }
        let folded: Vec<u8> = name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
        !self.is_in_key(name) && (is_of_one(&folded) || self.is_in_key(&folded))
    }

    /// Whether a field of this name is part of the key.
    pub fn is_in_key(&self, name: &[u8]) -> bool {
        self.in_key.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
    }

    /// Appends the key of a request, by its head as it goes to the server: the first line and the lines of the fields that are in
    /// the key, names in lower case, in the order of the head. Each of its lines ends with a line end, which no line has in it.
    pub fn write_key(&self, head: &[u8], key: &mut Vec<u8>) {
        let mut lines = head.split_inclusive(|byte| *byte == b'\n');
        key.extend_from_slice(lines.next().unwrap_or_default());
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let (name, rest) = line.split_at(colon);
            if !rest.is_empty() && self.is_in_key(name) {
                let at = key.len();
                key.extend_from_slice(name);
                key[at..].make_ascii_lowercase();
                key.extend_from_slice(rest);
            }
        }
    }
}

fn is_of_one(name: &[u8]) -> bool {
    OF_ONE.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(names: &[&str]) -> RequestRules {
        let names: Vec<Box<str>> = names.iter().map(|name| (*name).into()).collect();
        RequestRules::new(&names, [Box::from("X-Api-Key")])
    }

    fn key(rules: &RequestRules, head: &str) -> String {
        let mut key = Vec::new();
        rules.write_key(head.as_bytes(), &mut key);
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn the_key_is_the_first_line_and_the_fields_that_tell_requests_apart() {
        let head = "GET /a?b HTTP/1.1\r\nhost: x\r\nUser-Agent: one\r\nACCEPT: text/html\r\nx-api-key: 7\r\nx-forwarded-for: 1\r\n\
                    x-forwarded-proto: https\r\nx-request-id: 9\r\n\r\n";
        let expected =
            "GET /a?b HTTP/1.1\r\nhost: x\r\naccept: text/html\r\nx-api-key: 7\r\nx-forwarded-proto: https\r\n";
        assert_eq!(key(&listed(&["Accept"]), head), expected);
        assert!(listed(&["Accept"]).is_in_key(b"aCCEPT") && !listed(&[]).is_in_key(b"accept"));
    }

    #[test]
    fn requests_of_one_client_or_of_a_part_are_sent_alone_unless_the_field_is_listed() {
        let may = |rules: &RequestRules, method: &str, names: &[&str]| {
            rules.may_collapse(method.as_bytes(), names.iter().map(|name| name.as_bytes()))
        };
        let rules = listed(&[]);
        assert!(may(&rules, "GET", &["host", "accept", "user-agent"]) && may(&rules, "HEAD", &[]));
        for method in ["POST", "get", "OPTIONS", "QUERY", "PUT", ""] {
            assert!(!may(&rules, method, &[]), "{method}");
        }
        for name in OF_ONE {
            let spelt = name.to_ascii_uppercase();
            assert!(!may(&rules, "GET", &["host", &spelt]), "{name}");
            assert!(may(&listed(&[name]), "GET", &["host", &spelt]), "{name}");
        }
        let rules = listed(&["accept-language", "x_own"]);
        assert!(may(&rules, "GET", &["x_own", "x_other", "accept-language"]));
        for alias in ["If_None_Match", "ACCEPT_language", "x_api-key", "x_forwarded_host", "proxy_authorization"] {
            assert!(!may(&rules, "GET", &["accept-language", alias]), "{alias}");
        }
    }

    type Line = (usize, u8);

    fn head(target: u8, lines: &[Line]) -> String {
        const NAMES: [&str; 7] =
            ["host", "Accept", "x-api-key", "x-forwarded-proto", "user-agent", "X-Forwarded-For", "via"];
        let mut head = format!("GET /{target} HTTP/1.1\r\n");
        for (name, value) in lines {
            head.push_str(NAMES[*name % NAMES.len()]);
            head.extend([": ", &value.to_string(), "\r\n"]);
        }
        head + "\r\n"
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Two requests have one key if, and only if, they ask for the same with the same values of the fields that count.
        #[test]
        fn equal_keys_are_equal_requests(
            (one, other) in ((0_u8..2, prop::collection::vec((0_usize..7, 0_u8..2), 0..5)), (0_u8..2, prop::collection::vec((0_usize..7, 0_u8..2), 0..5))),
        ) {
            let rules = listed(&["accept"]);
            let telling = |lines: &[Line]| lines.iter().filter(|(name, _)| *name < 4).copied().collect::<Vec<_>>();
            let is_same = one.0 == other.0 && telling(&one.1) == telling(&other.1);
            let keys = [&one, &other].map(|(target, lines)| key(&rules, &head(*target, lines)));
            prop_assert_eq!(keys[0] == keys[1], is_same, "{:?}", keys);
        }
    }
}
