//! Clients that show certificates.

use std::fs;

use super::peer::{Asking, Authority, LOCAL, Tls, gateway, https, wait_handshakes};
use crate::support::Gateway;

/// A gateway that asks its clients so; `ca.pem` vouches for them.
fn asking(authority: &Authority, vouches: &Authority, more: &str, rules: &str) -> Gateway {
    let made = authority.server(&["localhost"]);
    gateway(
        |directory| {
            made.write(directory, "cert");
            fs::write(directory.join("ca.pem"), &vouches.pem).unwrap();
        },
        &format!("{}[server]\nworkers = 1\n{rules}", https(more)),
    )
}

#[test]
fn certificates_of_clients_are_asked_for_as_configured() {
    let (authority, one, two) = (Authority::new("ca"), Authority::new("one"), Authority::new("two"));
    let (mine, others) = (one.client("mine"), two.client("others"));
    // A server's certificate is for servers: rcgen sets no purpose unless told, so one is told.
    let mut params = super::peer::params(&["localhost"]);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let server = one.sign(&params);
    for (setting, of_none, of_mine, of_others) in [
        ("", true, true, true),
        (", client_certificates = \"optional\", client_ca = \"ca.pem\"", true, true, false),
        (", client_certificates = \"required\", client_ca = \"ca.pem\"", false, true, false),
    ] {
        let gateway = asking(&authority, &one, setting, LOCAL);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let versions = [version];
            for (what, shown, gets_in) in [
                ("none", None, of_none),
                ("its own", Some(&mine), of_mine),
                ("a stranger's", Some(&others), of_others),
                ("a server's", Some(&server), setting.is_empty()),
            ] {
                let asking = Asking { shows: shown, ..Asking::of(&authority).versions(&versions) };
                let tried = Tls::try_open(gateway.address(), &asking.build(), "localhost");
                let tried = tried.and_then(|mut tls| tls.try_get("/"));
                assert_eq!(tried.is_ok(), gets_in, "{what} {setting} {version:?}: {tried:?}");
            }
        }
        let failed = 2 * [of_none, of_mine, of_others, setting.is_empty()].iter().filter(|gets_in| !**gets_in).count();
        wait_handshakes(&gateway, "failed", failed);
    }
}

#[test]
fn limits_tell_clients_apart_by_their_certificates() {
    let authority = Authority::new("ca");
    let (one, two) = (authority.client("one"), authority.client("two"));
    let renewed = authority.client("one");
    for (key, renewed_is_the_same) in [("tls:subject", true), ("tls:fingerprint", false)] {
        for (on_missing, of_nobody) in [("skip", [200; 2]), ("refuse", [429; 2]), ("client-ip", [200, 429])] {
            let rules = format!(
                "{LOCAL}limits = [\"one\"]\n[[limit]]\nname = \"one\"\nkey = \"{key}\"\nrate = \"1/1h\"\n\
                 on_missing_key = \"{on_missing}\"\n"
            );
            let tls = ", client_certificates = \"optional\", client_ca = \"ca.pem\"";
            let gateway = asking(&authority, &authority, tls, &rules);
            let ask = |shows| {
                let config = Asking { shows, ..Asking::of(&authority) }.build();
                // The second is over a session that was resumed: the client is who it was.
                [0, 1].map(|_| Tls::open(gateway.address(), &config).get("/").status)
            };
            assert_eq!(ask(Some(&one)), [200, 429], "{key}");
            assert_eq!(ask(Some(&two)), [200, 429], "{key}");
            assert_eq!(ask(Some(&renewed)), [if renewed_is_the_same { 429 } else { 200 }, 429], "{key}");
            assert_eq!(ask(None), of_nobody, "{key} {on_missing}");
            wait_handshakes(&gateway, "resumed", 4);
        }
    }
}
