//! Refuses requests that a web page in an operator's browser must not send: admin is on loopback, where every page may
//! send requests.
//!
//! Across origins a page can send a POST but not hide where it comes from: its `Origin` must be admin itself. By DNS
//! rebinding a page makes its own name resolve to loopback and is then same-origin with admin: so on loopback `Host`
//! must be an IP address or `localhost`. (Bound to another address, admin may have any name, and there only the network
//! protects against rebinding.)

use std::net::{Ipv4Addr, Ipv6Addr};

use http::StatusCode;
use http::header::{HOST, ORIGIN};
use http::request::Parts;

use super::problem::Problem;

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardRefusal {
    /// More than one `Host`.
    ManyHosts,
    /// A `Host` by which nobody calls a server on loopback.
    ForeignHost,
    /// A page of another origin wants to change something, or asks for what clients sent.
    ForeignOrigin,
}

impl From<GuardRefusal> for Problem {
    fn from(refusal: GuardRefusal) -> Self {
        let (status, detail) = match refusal {
            GuardRefusal::ManyHosts => (StatusCode::BAD_REQUEST, "A request has one Host."),
            GuardRefusal::ForeignHost => {
                (StatusCode::FORBIDDEN, "On a loopback address the Host must be localhost or an IP address.")
            }
            GuardRefusal::ForeignOrigin => (StatusCode::FORBIDDEN, "A page of another origin cannot do this."),
        };
        Self::new(status, detail).closing()
    }
}

pub(super) fn check(head: &Parts, is_loopback: bool) -> Result<(), GuardRefusal> {
    let mut hosts = head.headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or(""));
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(GuardRefusal::ManyHosts);
    }
    let target = head.uri.authority().map(http::uri::Authority::as_str);
    if is_loopback && !target.into_iter().chain(host).all(is_of_loopback) {
        return Err(GuardRefusal::ForeignHost);
    }
    check_site(head)?;
    if head.method.is_safe() { Ok(()) } else { check_origin(head) }
}

/// Refuses what a page of another site makes a browser fetch, by what the browser says of it (Fetch Metadata): such a request has
/// no `Origin` where the page may not read the answer, as that of an image, and costs as much. Whoever follows a link may look.
fn check_site(head: &Parts) -> Result<(), GuardRefusal> {
    let says =
        |name: &str, words: &[&str]| head.headers.get(name).is_some_and(|own| words.iter().any(|word| own == *word));
    let is_foreign = says("sec-fetch-site", &["cross-site", "same-site"]);
    let is_followed = says("sec-fetch-mode", &["navigate"]) && says("sec-fetch-dest", &["document"]);
    if is_foreign && !(is_followed && head.method.is_safe()) { Err(GuardRefusal::ForeignOrigin) } else { Ok(()) }
}

/// Refuses what a page of another origin sends. Of a request that changes nothing such a page sees no answer; where it would
/// cost something, or tell of clients, it gets none.
pub(super) fn check_origin(head: &Parts) -> Result<(), GuardRefusal> {
    let host = head.headers.get(HOST).map(|host| host.to_str().unwrap_or(""));
    let is_own = |origin: &http::HeaderValue| {
        let origin = origin.to_str().unwrap_or("");
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
    };
    if head.headers.get_all(ORIGIN).iter().all(is_own) { Ok(()) } else { Err(GuardRefusal::ForeignOrigin) }
}

/// Whether `host[:port]` is `localhost` or an IP address.
fn is_of_loopback(authority: &str) -> bool {
    if let Some(bracketed) = authority.strip_prefix('[') {
        let Some((address, rest)) = bracketed.split_once(']') else { return false };
        return address.parse::<Ipv6Addr>().is_ok() && (rest.is_empty() || rest.starts_with(':'));
    }
    let host = authority.split_once(':').map_or(authority, |(host, _)| host);
    let name = host.strip_suffix('.').unwrap_or(host);
    host.parse::<Ipv4Addr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(method: &str, target: &str, headers: &[(&str, &str)], is_loopback: bool) -> Result<(), GuardRefusal> {
        let mut request = http::Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0, is_loopback)
    }

    #[test]
    fn on_loopback_the_host_is_an_address_or_localhost() {
        let localhosts =
            ["127.0.0.1", "127.0.0.1:9900", "localhost:1", "LOCALHOST", "localhost.", "[::1]", "[::1]:9900"];
        for host in localhosts.into_iter().chain(["10.1.2.3", "[fe80::1]:80"]) {
            assert_eq!(checked("GET", "/", &[("host", host)], true), Ok(()), "{host}");
        }
        let foreign = ["evil.example", "evil.example:9900", "localhost.evil.example", "a.localhost", "127.0.0.1.evil"];
        for host in foreign.into_iter().chain(["", "2130706433", "user@localhost", "[::1", "[::1]x", "[localhost]"]) {
            assert_eq!(checked("GET", "/", &[("host", host)], true), Err(GuardRefusal::ForeignHost), "{host}");
            assert_eq!(checked("GET", "/", &[("host", host)], false), Ok(()), "{host}");
        }
        assert_eq!(checked("GET", "/", &[], true), Ok(()));
    }

    #[test]
    fn the_target_and_the_host_must_both_be_ours() {
        let own = [("host", "localhost")];
        assert_eq!(checked("GET", "http://evil.example/", &own, true), Err(GuardRefusal::ForeignHost));
        assert_eq!(
            checked("GET", "http://127.0.0.1/", &[("host", "evil.example")], true),
            Err(GuardRefusal::ForeignHost)
        );
        assert_eq!(checked("GET", "http://127.0.0.1/", &own, true), Ok(()));
    }

    #[test]
    fn two_hosts_are_refused_even_if_both_are_ours() {
        let hosts = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(checked("GET", "/", &hosts, false), Err(GuardRefusal::ManyHosts));
    }

    #[test]
    fn a_page_of_another_origin_can_change_nothing() {
        let host = ("host", "localhost:9900");
        for is_loopback in [true, false] {
            let post = |origins: &[&str]| {
                let origins = origins.iter().map(|origin| ("origin", *origin));
                checked("POST", "/reload", &[host].into_iter().chain(origins).collect::<Vec<_>>(), is_loopback)
            };
            assert_eq!(post(&[]), Ok(()));
            assert_eq!(post(&["http://localhost:9900"]), Ok(()));
            assert_eq!(post(&["https://LOCALHOST:9900"]), Ok(()));
            for origin in ["http://evil.example", "http://localhost", "http://localhost:99001", "null", ""] {
                assert_eq!(post(&[origin]), Err(GuardRefusal::ForeignOrigin), "{origin}");
            }
            assert_eq!(post(&["http://localhost:9900", "http://evil.example"]), Err(GuardRefusal::ForeignOrigin));
        }
        let origin = ("origin", "http://evil.example");
        assert_eq!(checked("GET", "/metrics", &[host, origin], true), Ok(()));
        assert_eq!(checked("POST", "/reload", &[("origin", "http://")], false), Err(GuardRefusal::ForeignOrigin));
    }
}
