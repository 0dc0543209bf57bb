//! NTLM and Negotiate authenticate a connection: that to the server belongs to one connection of a client from then on, and is
//! never given to others.

use std::collections::HashMap;

use crate::mixes::peers::{Ask, Asker, Http};
use crate::support::{Backend, Gateway};
use crate::wire::{Message, Wire, ok, rules};

/// A server that takes all that comes over a connection for the user that it was authenticated for. It answers with its
/// connection's number and the user, asks for `scheme`, and closes behind `/close`.
fn authenticating(scheme: &'static str) -> Backend {
    Backend::scripted(move |wire, number| {
        let mut user = None;
        while let Ok(request) = wire.request() {
            let proofs = [request.all("authorization"), request.all("proxy-authorization")].concat();
            if let Some((_, name)) = proofs.iter().find_map(|proof| proof.split_once(" user=")) {
                user = Some(name.to_owned());
            }
            let refusal = || {
                let status = "401 Unauthorized\r\nContent-Length: 0";
                format!("HTTP/1.1 {status}\r\nWWW-Authenticate: {scheme}\r\n\r\n")
            };
            wire.send(user.as_ref().map_or_else(refusal, |user| ok(&format!("{number} {user}"))));
            if request.target() == "/close" {
                return;
            }
        }
    })
}

fn ask(wire: &mut Wire, target: &str, fields: &str) -> Message {
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
    wire.answer()
}

/// The user as the server sees it; `None`: not authenticated.
fn user(answer: &Message) -> Option<String> {
    match answer.status() {
        401 => None,
        200 => Some(answer.text().split_once(' ').unwrap().1.to_owned()),
        status => panic!("{status}"),
    }
}

const ALICE: &str = "Authorization: NTLM user=alice\r\n";

#[test]
fn what_one_user_has_authenticated_no_other_gets() {
    for scheme in ["NTLM", "negotiate", "Basic realm=\"a, b\", NEGOTIATE", "Basic realm=x\r\nWWW-Authenticate: ntlm"] {
        let backend = authenticating(scheme);
        let gateway = Gateway::start(&rules(&backend, "", ""));
        let (mut one, mut other) = (Wire::open(gateway.address()), Wire::open(gateway.address()));
        // The proof has no scheme that tells, so that the server's words alone do.
        assert_eq!(user(&ask(&mut one, "/", "")), None);
        let proved = ask(&mut one, "/", "Authorization: Basic user=alice\r\n");
        assert_eq!(user(&proved).as_deref(), Some("alice"), "{scheme}");
        assert_eq!(user(&ask(&mut other, "/", "")), None, "{scheme}: taken for another user");
        assert_eq!(ask(&mut one, "/", "").text(), proved.text(), "over the connection of before");
        assert_eq!(ask(&mut other, "/local", "").text(), "local\n");
    }
}

#[test]
fn a_request_that_authenticates_makes_its_connection_private_whatever_was_asked_before() {
    let fields = [
        "Authorization: NTLM user=bob",
        "authorization: nEGOTIATE user=bob",
        "Authorization: Basic eA==\r\nAuthorization:\tntlm user=bob",
        "Proxy-Authorization: Negotiate user=bob",
    ];
    for fields in fields {
        let backend = authenticating("Basic");
        let gateway = Gateway::start(&rules(&backend, "", ""));
        let mut one = Wire::open(gateway.address());
        assert_eq!(user(&ask(&mut one, "/", &format!("{fields}\r\n"))).as_deref(), Some("bob"), "{fields}");
        assert_eq!(user(&ask(&mut one, "/", "")).as_deref(), Some("bob"), "{fields}");
        assert_eq!(user(&ask(&mut Wire::open(gateway.address()), "/", "")), None, "{fields}");
    }
}

#[test]
fn a_route_that_sets_the_field_makes_the_connection_private_too() {
    let backend = authenticating("Basic");
    let route = "request_headers = { set = { authorization = \"{header:x-proof}\" } }";
    let gateway = Gateway::start(&rules(&backend, "", route));
    let mut one = Wire::open(gateway.address());
    assert_eq!(user(&ask(&mut one, "/", "X-Proof: NTLM user=bob\r\n")).as_deref(), Some("bob"));
    assert_eq!(user(&ask(&mut Wire::open(gateway.address()), "/", "")), None);
}

#[test]
fn other_schemes_share_connections_as_before() {
    let backend = authenticating("Basic, Digest realm=\"NTLM\", Bearer");
    let gateway = Gateway::start(&rules(&backend, "", ""));
    for _ in 0..3 {
        let mut wire = Wire::open(gateway.address());
        assert_eq!(user(&ask(&mut wire, "/", "Authorization: Basic negotiate\r\n")), None);
    }
    assert_eq!(backend.connections.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_private_connection_that_has_ended_is_followed_by_another_private_one() {
    let backend = authenticating("NTLM");
    let gateway = Gateway::start(&rules(&backend, "", ""));
    let (mut one, mut other) = (Wire::open(gateway.address()), Wire::open(gateway.address()));
    assert_eq!(user(&ask(&mut other, "/", "Authorization: Basic\r\n")), None, "over one of its own");
    assert_eq!(ask(&mut one, "/close", ALICE).text(), "2 alice");
    assert_eq!(backend.wait_closed(), 2);
    assert_eq!(user(&ask(&mut one, "/", "")), None, "over a new one, which nobody has authenticated");
    assert_eq!(ask(&mut one, "/", ALICE).text(), "3 alice");
    assert_eq!(ask(&mut one, "/", "").text(), "3 alice");
    drop(one);
    assert_eq!(backend.wait_closed(), 3, "it ends with the client's");
    assert_eq!(user(&ask(&mut other, "/", "")), None);
}

#[test]
fn clients_that_may_be_several_have_none_for_themselves() {
    let backend = authenticating("Basic");
    let trusting = "[client]\ntrusted_proxies = [\"127.0.0.1/32\"]\n";
    let gateway = Gateway::start(&format!("{}{trusting}", rules(&backend, "", "")));
    let mut proxy = Wire::open(gateway.address());
    for number in 1..3 {
        let fields = format!("X-Forwarded-For: 192.0.2.{number}\r\n{ALICE}");
        assert_eq!(ask(&mut proxy, "/", &fields).text(), format!("{number} alice"));
        assert_eq!(backend.wait_closed(), number);
    }
    let gateway = Gateway::start(&rules(&backend, "", ""));
    // Nobody trusts it, but it says that it is a proxy.
    let mut proxy = Wire::open(gateway.address());
    for (number, field) in [(3, "Via: 1.1 lb"), (4, "Forwarded: for=192.0.2.1"), (5, "X-Forwarded-For: 192.0.2.1")] {
        assert_eq!(ask(&mut proxy, "/", &format!("{field}\r\n{ALICE}")).text(), format!("{number} alice"));
        assert_eq!(backend.wait_closed(), number);
    }
    assert_eq!(user(&ask(&mut proxy, "/", "")), None, "another user of it");
    let mut client = Asker::open(Http::Two, gateway.address());
    let answer = client.ask(&Ask::get("/").with(&[("authorization", "NTLM user=alice")]));
    let number: usize = answer.text().split_once(' ').unwrap().0.parse().unwrap();
    assert_eq!(answer.text(), format!("{number} alice"));
    assert_eq!(backend.wait_closed(), number);
    assert_eq!(user(&client.get("/")), None);
}

#[test]
fn a_retry_goes_over_no_connection_of_others() {
    // Both fail for the user, and have a connection that others keep.
    let servers = [(); 2].map(|()| {
        Backend::scripted(|wire, number| {
            while let Ok(request) = wire.request() {
                let fails = request.header("authorization").is_some();
                let status = if fails { "503 Service Unavailable" } else { "200 OK" };
                wire.send(format!("HTTP/1.1 {status}\r\nContent-Length: 1\r\n\r\n{number}"));
            }
        })
    });
    let both = format!("\"{}\", \"{}\"", servers[0].address, servers[1].address);
    let more = "balance = \"round-robin\"\neject = \"off\"\nretry = { attempts = 2 }";
    let rules =
        rules(&servers[0], "", "").replace(&format!("\"{}\"]", servers[0].address), &format!("{both}]\n{more}"));
    let gateway = Gateway::start(&rules);
    let mut other = Wire::open(gateway.address());
    assert!((0..4).all(|_| ask(&mut other, "/", "").text() == "1"));
    let failed = ask(&mut Wire::open(gateway.address()), "/", ALICE);
    assert_eq!((failed.status(), failed.text().as_str()), (503, "2"));
    let mut seen: HashMap<usize, usize> = HashMap::new();
    for (place, server) in servers.iter().enumerate() {
        seen.insert(place, server.connections.load(std::sync::atomic::Ordering::SeqCst));
    }
    assert_eq!(seen, HashMap::from([(0, 2), (1, 2)]), "each try over a connection of its own");
}
