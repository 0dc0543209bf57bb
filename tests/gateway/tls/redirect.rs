//! `redirect_to_https`.

use super::peer::{Asking, Authority, LOCAL, Tls, gateway};
use crate::support::{Gateway, unused_address};
use crate::wire::Wire;

fn redirecting(authority: &Authority, to: &str, https: &str) -> Gateway {
    let made = authority.server(&["localhost"]);
    let rules = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nredirect_to_https = {to}\n\
         [[listener]]\naddress = \"{https}\"\nprotocol = \"https\"\n\
         tls = {{ certificates = [{{ cert = \"cert.pem\", key = \"cert-key.pem\" }}] }}\n{LOCAL}"
    );
    gateway(|directory| made.write(directory, "cert"), &rules)
}

#[test]
fn every_request_is_sent_to_https() {
    let authority = Authority::new("ca");
    let gateway = redirecting(&authority, "443", "127.0.0.2:0");
    let to = |request: &str, location: &str| {
        let mut wire = Wire::with(gateway.address(), request);
        let answer = wire.answer_to(request.split(' ').next().unwrap());
        assert_eq!((answer.status(), answer.all("location")), (308, vec![location]), "{request:?}");
        assert!(!answer.closes() || request.contains("HTTP/1.0"), "{request:?}");
    };
    let get = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    to(&get("/", "shop.example"), "https://shop.example/");
    to(&get("/a/b?c=d&e=%0D%0Af", "shop.example"), "https://shop.example/a/b?c=d&e=%0D%0Af");
    to(&get("/?", "shop.example"), "https://shop.example/?");
    to(&get("/", "shop.example:8080"), "https://shop.example/");
    to(&get("/", "shop.example:"), "https://shop.example/");
    to(&get("/x", "[2001:db8::1]"), "https://[2001:db8::1]/x");
    to(&get("/x", "[2001:db8::1]:8080"), "https://[2001:db8::1]/x");
    to(&get("/x", "192.0.2.1:80"), "https://192.0.2.1/x");
    to(&get("//evil.example/x", "shop.example"), "https://shop.example//evil.example/x");
    to(&get("/%0d%0aset-cookie:%20a=b", "shop.example"), "https://shop.example/%0d%0aset-cookie:%20a=b");
    to(&get("http://shop.example/a?b", "other.example"), "https://shop.example/a?b");
    to(&get("http://shop.example?b", "other.example"), "https://shop.example/?b");
    // About the server as a whole: its address has no path (RFC 9112, 3.3).
    to("OPTIONS * HTTP/1.1\r\nHost: shop.example\r\n\r\n", "https://shop.example");
    to("HEAD /x HTTP/1.1\r\nHost: shop.example\r\n\r\n", "https://shop.example/x");
    to("GET / HTTP/1.0\r\nHost: shop.example\r\n\r\n", "https://shop.example/");
    to("POST /up HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nabc", "https://shop.example/up");
    for (request, why) in [
        ("GET / HTTP/1.0\r\n\r\n", "no host"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", "an empty host"),
        ("GET /\rx HTTP/1.1\r\nHost: shop.example\r\n\r\n", "a CR in the path"),
        ("GET /a b HTTP/1.1\r\nHost: shop.example\r\n\r\n", "a space in the path"),
        ("GET / HTTP/1.1\r\nHost: shop.example/evil\r\n\r\n", "a path in the host"),
        ("GET / HTTP/1.1\r\nHost: shop.example?evil\r\n\r\n", "a query in the host"),
        ("GET / HTTP/1.1\r\nHost: user@shop.example\r\n\r\n", "a user in the host"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "two hosts"),
    ] {
        let mut wire = Wire::with(gateway.address(), request);
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.header("location")), (400, None), "{why}");
    }
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"responded\""], 16.0);
    // What is pipelined behind a redirect is redirected too.
    let mut wire = Wire::with(gateway.address(), [get("/1", "h"), get("/2", "h")].concat());
    assert_eq!(
        [wire.answer(), wire.answer()].map(|answer| answer.header("location").unwrap().to_owned()),
        ["https://h/1", "https://h/2"]
    );
}

#[test]
fn a_redirect_leads_where_it_is_served() {
    let authority = Authority::new("ca");
    let address = unused_address();
    let port = address.port();
    for to in ["true".to_owned(), port.to_string()] {
        let gateway = redirecting(&authority, &to, &address.to_string());
        let answer = Wire::open(gateway.address()).get("/x?y");
        assert_eq!(answer.header("location"), Some(&*format!("https://h:{port}/x?y")));
        let mut tls = Tls::open(gateway.addresses[1], &Asking::of(&authority).build());
        assert_eq!(tls.get("/x?y").text(), "local\n");
    }
}
