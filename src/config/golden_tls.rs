//! Reports about TLS, word for word: what somebody reads whose file, certificate or key is wrong.

use std::sync::LazyLock;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::{Certificates, LoadError, Model, diff, load, parse};
use crate::time::Wall;

/// 2026-06-01, for certificates that are valid from some time to some other.
const NOW: Wall = Wall::from_nanos(1_780_272_000_000_000_000);

/// A directory of certificates and keys, made once.
static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    for (name, names, from, until) in [
        ("a", &["a.example"][..], (2026, 1, 1), (2027, 1, 1)),
        ("b", &["b.example"], (2026, 1, 1), (2027, 1, 1)),
        ("ab", &["b.example", "a.example"], (2026, 1, 1), (2027, 1, 1)),
        ("unnamed", &[], (2026, 1, 1), (2027, 1, 1)),
        ("old", &["old.example"], (2025, 1, 1), (2026, 5, 31)),
        ("new", &["new.example"], (2026, 6, 2), (2027, 1, 1)),
        ("ending", &["ending.example"], (2026, 1, 1), (2026, 6, 10)),
    ] {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        write(&format!("{name}.key"), &key.serialize_pem());
    }
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    write("encrypted.key", encrypted);
    directory
});

const ROUTE: &str = "\n[[route]]\nname = \"all\"\nrespond = {}\n";

/// The report on a file in the directory, whose name is left out.
fn report(text: &str, certificates: Certificates) -> String {
    let file = DIRECTORY.path().join("gateway.toml");
    let route = if text.contains("[[route]]") { "" } else { ROUTE };
    let report = match parse(&format!("{text}{route}"), &file, certificates) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    };
    format!("\n{}", report.replace(&format!("{}/", DIRECTORY.path().display()), ""))
}

#[test]
fn what_does_not_go_together_at_a_listener() {
    let text = r#"[[listener]]
address = "127.0.0.1:1"
protocol = "https"

[[listener]]
address = "127.0.0.1:2"
tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }] }
reject_unknown_sni = true

[[listener]]
address = "127.0.0.1:3"
protocol = "https"
tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }], client_ca = "ca.pem" }
redirect_to_https = true

[[listener]]
address = "127.0.0.1:4"
protocol = "https"
tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }], client_certificates = "required" }
"#;
    let expected = r#"
error: `protocol` = "https" lacks `tls`, its certificates
 --> gateway.toml:3:12
  |
3 | protocol = "https"
  |            ^^^^^^^
  |
  = help: add tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }] }

error: `tls` is for listeners with protocol = "https"
 --> gateway.toml:7:1
  |
7 | tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }] }
  | ^^^
  |
  = help: add protocol = "https", or remove `tls`

error: `reject_unknown_sni` is for listeners with protocol = "https"
 --> gateway.toml:8:1
  |
8 | reject_unknown_sni = true
  | ^^^^^^^^^^^^^^^^^^
  |
  = help: add protocol = "https", or remove `reject_unknown_sni`

error: `client_ca` has no effect: clients are not asked for certificates
  --> gateway.toml:13:66
   |
13 | tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }], client_ca = "ca.pem" }
   |                                                                  ^^^^^^^^^
   |
   = help: add client_certificates = "required" or "optional", or remove client_ca

error: `redirect_to_https` of a listener that speaks https already
  --> gateway.toml:14:1
   |
14 | redirect_to_https = true
   | ^^^^^^^^^^^^^^^^^
   |
   = help: remove it, or put it in the listener of plain HTTP

error: `client_certificates` = "required" lacks a `client_ca`
  --> gateway.toml:19:88
   |
19 | tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }], client_certificates = "required" }
   |                                                                                        ^^^^^^^^^^
   |
   = help: add client_ca = "ca.pem", the authority of the clients' certificates

gateway.toml: 6 errors"#;
    assert_eq!(report(text, Certificates::Unread), expected);
}

#[test]
fn what_tls_of_a_listener_must_not_say() {
    let text = r#"[[listener]]
address = "127.0.0.1:1"
protocol = "https"
tls = { certificates = [], min_version = "1.1", client_certificates = "yes" }

[[listener]]
address = "127.0.0.1:2"
protocol = "https"
tls = { certificate = [{ cert = "cert.pem", key = "key.pem" }] }

[[listener]]
address = "127.0.0.1:3"
protocol = "https"
tls = { certificates = [{ cert = "" }, { cert = 1, key = "key.pem" }, "cert.pem"] }

[[listener]]
address = "127.0.0.1:4"
protocol = "HTTPS"
tls = true
redirect_to_https = "443"
"#;
    let expected = r#"
error: `certificates` is empty
 --> gateway.toml:4:24
  |
4 | tls = { certificates = [], min_version = "1.1", client_certificates = "yes" }
  |                        ^^
  |
  = help: name at least one: certificates = [{ cert = "cert.pem", key = "key.pem" }]

error: `min_version` cannot be "1.1"
 --> gateway.toml:4:42
  |
4 | tls = { certificates = [], min_version = "1.1", client_certificates = "yes" }
  |                                          ^^^^^
  |
  = help: did you mean "1.2"?

error: `client_certificates` cannot be "yes"
 --> gateway.toml:4:71
  |
4 | tls = { certificates = [], min_version = "1.1", client_certificates = "yes" }
  |                                                                       ^^^^^
  |
  = help: use one of "off", "optional", "required"

error: unknown key `certificate` in `tls`
 --> gateway.toml:9:9
  |
9 | tls = { certificate = [{ cert = "cert.pem", key = "key.pem" }] }
  |         ^^^^^^^^^^^
  |
  = help: did you mean `certificates`?

error: a certificate has no `key`
  --> gateway.toml:14:25
   |
14 | tls = { certificates = [{ cert = "" }, { cert = 1, key = "key.pem" }, "cert.pem"] }
   |                         ^^^^^^^^^^^^^
   |
   = help: add key = "key.pem"

error: invalid file name ""
  --> gateway.toml:14:34
   |
14 | tls = { certificates = [{ cert = "" }, { cert = 1, key = "key.pem" }, "cert.pem"] }
   |                                  ^^
   |
   = help: name a PEM file, such as "cert.pem"

error: `cert` takes a path in quotes, not an integer
  --> gateway.toml:14:49
   |
14 | tls = { certificates = [{ cert = "" }, { cert = 1, key = "key.pem" }, "cert.pem"] }
   |                                                 ^
   |
   = help: write it as "cert.pem"

error: `certificates` takes a table, not a string
  --> gateway.toml:14:71
   |
14 | tls = { certificates = [{ cert = "" }, { cert = 1, key = "key.pem" }, "cert.pem"] }
   |                                                                       ^^^^^^^^^^
   |
   = help: write it as { cert = "cert.pem", key = "key.pem" }

error: `protocol` cannot be "HTTPS"
  --> gateway.toml:18:12
   |
18 | protocol = "HTTPS"
   |            ^^^^^^^
   |
   = help: did you mean "https"?

error: `tls` takes a table, not a boolean
  --> gateway.toml:19:7
   |
19 | tls = true
   |       ^^^^
   |
   = help: write it as { certificates = [{ cert = "cert.pem", key = "key.pem" }] }

error: `redirect_to_https` takes a boolean or a port, not a string
  --> gateway.toml:20:21
   |
20 | redirect_to_https = "443"
   |                     ^^^^^
   |
   = help: write it as true or 443

gateway.toml: 11 errors"#;
    assert_eq!(report(text, Certificates::Unread), expected);
}

#[test]
fn a_redirect_that_leads_nowhere() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"
redirect_to_https = true

[[listener]]
address = "127.0.0.1:81"
redirect_to_https = 0
"#;
    let expected = r#"
error: `redirect_to_https` = true, and no listener speaks https
 --> gateway.toml:3:21
  |
3 | redirect_to_https = true
  |                     ^^^^
  |
  = help: add a [[listener]] with protocol = "https", or name the port: redirect_to_https = 443

error: `redirect_to_https` is out of range: `0`
 --> gateway.toml:7:21
  |
7 | redirect_to_https = 0
  |                     ^
  |
  = help: it goes from 1 to 65535

gateway.toml: 2 errors"#;
    assert_eq!(report(text, Certificates::Unread), expected);
}

#[test]
fn a_redirect_that_may_lead_to_two_places() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"
redirect_to_https = true

[[listener]]
address = "127.0.0.1:443"
protocol = "https"
tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }] }

[[listener]]
address = "127.0.0.1:8443"
protocol = "https"
tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }] }
"#;
    let expected = r"
error: `redirect_to_https` = true, and several listeners speak https
 --> gateway.toml:3:21
  |
3 | redirect_to_https = true
  |                     ^^^^
  |
  = help: name the port that is meant: redirect_to_https = 443

gateway.toml: 1 error";
    assert_eq!(report(text, Certificates::Unread), expected);
}

#[test]
fn a_redirect_to_a_port_that_the_kernel_chooses() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"
redirect_to_https = true

[[listener]]
address = "127.0.0.1:0"
protocol = "https"
tls = { certificates = [{ cert = "cert.pem", key = "key.pem" }] }
"#;
    let expected = r"
error: `redirect_to_https` = true, and the port of the listener that speaks https is 0
 --> gateway.toml:3:21
  |
3 | redirect_to_https = true
  |                     ^^^^
  |
  = help: give that listener a port, or name the one that clients see: redirect_to_https = 443

gateway.toml: 1 error";
    assert_eq!(report(text, Certificates::Unread), expected);
}

#[test]
fn what_upstreams_must_not_say() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"

[[upstream]]
name = "echo"
servers = ["127.0.0.1:9001", "echo:a"]
protocol = "h2"
tls = true

[[upstream]]
name = "url"
servers = ["https://app.internal:8443/", "https://app.internal"]

[[upstream]]
name = "names"
servers = ["127.0.0.1:9001"]
tls = { server_name = "app.internal:443", verify = "no", sni = "x" }

[[upstream]]
name = "words"
servers = ["127.0.0.1:9001"]
protocol = "http2"
tls = "yes"
"#;
    let expected = r#"
error: `protocol` and the server echo:a, which speaks plain HTTP/1
 --> gateway.toml:7:1
  |
7 | protocol = "h2"
  | ^^^^^^^^
  |
  = help: remove `protocol`, or give the server an upstream of its own

error: `tls` and the server echo:a, which speaks plain HTTP/1
 --> gateway.toml:8:1
  |
8 | tls = true
  | ^^^
  |
  = help: remove `tls`, or give the server an upstream of its own

error: invalid server address "https://app.internal:8443/"
  --> gateway.toml:12:12
   |
12 | servers = ["https://app.internal:8443/", "https://app.internal"]
   |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
   |
   = help: write "app.internal:8443", and tls = true in its [[upstream]]

error: invalid server address "https://app.internal"
  --> gateway.toml:12:42
   |
12 | servers = ["https://app.internal:8443/", "https://app.internal"]
   |                                          ^^^^^^^^^^^^^^^^^^^^^^
   |
   = help: write "app.internal:443", and tls = true in its [[upstream]]

error: invalid certificate name "app.internal:443"
  --> gateway.toml:17:23
   |
17 | tls = { server_name = "app.internal:443", verify = "no", sni = "x" }
   |                       ^^^^^^^^^^^^^^^^^^
   |
   = help: write a DNS name or an IP address, without a port: server_name = "app.internal"

error: `verify` takes a boolean, not a string
  --> gateway.toml:17:52
   |
17 | tls = { server_name = "app.internal:443", verify = "no", sni = "x" }
   |                                                    ^^^^
   |
   = help: write it as true or false

error: unknown key `sni` in `tls`
  --> gateway.toml:17:58
   |
17 | tls = { server_name = "app.internal:443", verify = "no", sni = "x" }
   |                                                          ^^^
   |
   = help: keys of `tls`: ca, server_name, verify

error: `protocol` cannot be "http2"
  --> gateway.toml:22:12
   |
22 | protocol = "http2"
   |            ^^^^^^^
   |
   = help: HTTP/2, as gRPC needs it, is "h2"

error: `tls` takes a boolean or a table, not a string
  --> gateway.toml:23:7
   |
23 | tls = "yes"
   |       ^^^^^
   |
   = help: write it as true or { ca = "ca.pem", server_name = "app.internal" }

gateway.toml: 9 errors"#;
    assert_eq!(report(text, Certificates::Unread), expected);
}

#[test]
fn keys_of_certificates_that_are_none() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"

[[limit]]
name = "one"
rate = "1/s"
key = ["tls:subject", "tls:ja4"]
"#;
    let expected = r#"
error: unknown key source "tls:ja4"
 --> gateway.toml:7:23
  |
7 | key = ["tls:subject", "tls:ja4"]
  |                       ^^^^^^^^^
  |
  = help: of a client's certificate use "tls:subject" or "tls:fingerprint"

gateway.toml: 1 error"#;
    assert_eq!(report(text, Certificates::Unread), expected);
}

#[test]
fn keys_of_certificates_that_nobody_is_asked_for() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"

[[limit]]
name = "one"
rate = "1/s"
key = ["client-ip", "tls:subject"]

[[upstream]]
name = "app"
servers = ["127.0.0.1:9001"]
hash_key = "tls:fingerprint"

[[route]]
name = "all"
limits = ["one"]
upstream = "app"
"#;
    let expected = r#"
warning: `key` = client-ip + tls:subject never has a value: no listener asks clients for certificates
 --> gateway.toml:7:1
  |
7 | key = ["client-ip", "tls:subject"]
  | ^^^
  |
  = help: add client_certificates = "required" or "optional" to the `tls` of a [[listener]]

warning: `hash_key` = tls:fingerprint never has a value: no listener asks clients for certificates
  --> gateway.toml:12:1
   |
12 | hash_key = "tls:fingerprint"
   | ^^^^^^^^
   |
   = help: add client_certificates = "required" or "optional" to the `tls` of a [[listener]]

gateway.toml: 2 warnings"#;
    assert_eq!(report(text, Certificates::Strict(NOW)), expected);
}

#[test]
fn an_upstream_that_is_not_verified() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"

[[upstream]]
name = "app"
servers = ["127.0.0.1:9001"]
tls = { verify = false, ca = "a.pem" }

[[route]]
name = "all"
upstream = "app"
"#;
    let expected = r#"
warning: `verify` = false: anybody on the way may pretend to be a server of this upstream
 --> gateway.toml:7:9
  |
7 | tls = { verify = false, ca = "a.pem" }
  |         ^^^^^^
  |
  = help: name the authority of its certificates: tls = { ca = "ca.pem" }

warning: `ca` has no effect: nothing is verified
 --> gateway.toml:7:25
  |
7 | tls = { verify = false, ca = "a.pem" }
  |                         ^^
  |
  = help: remove it, or verify = false

gateway.toml: 2 warnings"#;
    assert_eq!(report(text, Certificates::Strict(NOW)), expected);
}

#[test]
fn files_that_are_no_certificates() {
    let text = r#"[[listener]]
address = "127.0.0.1:443"
protocol = "https"
tls = { certificates = [
  { cert = "none.pem", key = "none.key" },
  { cert = "b.key", key = "b.pem" },
  { cert = "a.pem", key = "b.key" },
  { cert = "a.pem", key = "encrypted.key" },
  { cert = "a.pem", key = "a.key" },
], client_certificates = "optional", client_ca = "a.key" }

[[upstream]]
name = "app"
servers = ["127.0.0.1:9001"]
tls = { ca = "sub/none.pem" }
"#;
    let expected = r#"
error: `cert` = "none.pem" cannot be used: there is no such file
 --> gateway.toml:5:12
  |
5 |   { cert = "none.pem", key = "none.key" },
  |            ^^^^^^^^^^
  |
  = help: nothing is at none.pem; relative paths start from the configuration's directory

error: `key` = "none.key" cannot be used: there is no such file
 --> gateway.toml:5:30
  |
5 |   { cert = "none.pem", key = "none.key" },
  |                              ^^^^^^^^^^
  |
  = help: nothing is at none.key; relative paths start from the configuration's directory

error: `cert` = "b.key" cannot be used: it holds a key, not a certificate
 --> gateway.toml:6:12
  |
6 |   { cert = "b.key", key = "b.pem" },
  |            ^^^^^^^
  |
  = help: name the file of the certificate here; the private key is `key`

error: `key` = "b.pem" cannot be used: it holds a certificate, not a key
 --> gateway.toml:6:27
  |
6 |   { cert = "b.key", key = "b.pem" },
  |                           ^^^^^^^
  |
  = help: name the file of the private key here; the certificate is `cert`

error: `key` = "b.key" cannot be used: it is not the key of the first certificate in a.pem
 --> gateway.toml:7:27
  |
7 |   { cert = "a.pem", key = "b.key" },
  |                           ^^^^^^^
  |
  = help: name the key that the certificate was made for: openssl pkey -in b.key -pubout and openssl x509 -in a.pem -noout -pubkey print the same

error: `key` = "encrypted.key" cannot be used: its key is encrypted, and nobody is there to give the passphrase
 --> gateway.toml:8:27
  |
8 |   { cert = "a.pem", key = "encrypted.key" },
  |                           ^^^^^^^^^^^^^^^
  |
  = help: write it without a passphrase: openssl pkey -in encrypted.key -out plain.pem

error: `client_ca` = "a.key" cannot be used: it holds a key, not a certificate
  --> gateway.toml:10:50
   |
10 | ], client_certificates = "optional", client_ca = "a.key" }
   |                                                  ^^^^^^^
   |
   = help: name the file of the certificate here; the private key is `key`

error: `ca` = "sub/none.pem" cannot be used: there is no such file
  --> gateway.toml:15:14
   |
15 | tls = { ca = "sub/none.pem" }
   |              ^^^^^^^^^^^^^^
   |
   = help: nothing is at sub/none.pem; relative paths start from the configuration's directory

gateway.toml: 8 errors"#;
    assert_eq!(report(text, Certificates::Strict(NOW)), expected);
}

#[test]
fn certificates_that_are_not_valid_now() {
    let text = r#"[[listener]]
address = "127.0.0.1:443"
protocol = "https"
tls = { certificates = [
  { cert = "old.pem", key = "old.key" },
  { cert = "new.pem", key = "new.key" },
  { cert = "a.pem", key = "a.key" },
] }
"#;
    let expected = r#"
error: the certificate "old.pem" has expired on 2026-05-31 00:00:00 UTC
 --> gateway.toml:5:12
  |
5 |   { cert = "old.pem", key = "old.key" },
  |            ^^^^^^^^^
  |
  = help: renew it: `sluicegate run` starts with it, and clients refuse it

error: the certificate "new.pem" is not valid before 2026-06-02 00:00:00 UTC
 --> gateway.toml:6:12
  |
6 |   { cert = "new.pem", key = "new.key" },
  |            ^^^^^^^^^
  |
  = help: until then clients refuse it; see whether the machine's clock is right (date -u)

gateway.toml: 2 errors"#;
    assert_eq!(report(text, Certificates::Strict(NOW)), expected);
}

#[test]
fn to_run_they_are_warnings() {
    let text = r#"[[listener]]
address = "127.0.0.1:443"
protocol = "https"
tls = { certificates = [
  { cert = "old.pem", key = "old.key" },
  { cert = "new.pem", key = "new.key" },
  { cert = "ending.pem", key = "ending.key" },
] }
"#;
    let expected = r#"
warning: the certificate "old.pem" has expired on 2026-05-31 00:00:00 UTC
 --> gateway.toml:5:12
  |
5 |   { cert = "old.pem", key = "old.key" },
  |            ^^^^^^^^^
  |
  = help: renew it: clients refuse it

warning: the certificate "new.pem" is not valid before 2026-06-02 00:00:00 UTC
 --> gateway.toml:6:12
  |
6 |   { cert = "new.pem", key = "new.key" },
  |            ^^^^^^^^^
  |
  = help: until then clients refuse it; see whether the machine's clock is right (date -u)

warning: the certificate "ending.pem" expires on 2026-06-10 00:00:00 UTC
 --> gateway.toml:7:12
  |
7 |   { cert = "ending.pem", key = "ending.key" },
  |            ^^^^^^^^^^^^
  |
  = help: renew it: in less than two weeks clients refuse it

gateway.toml: 3 warnings"#;
    assert_eq!(report(text, Certificates::Lenient(NOW)), expected);
}

#[test]
fn certificates_that_serve_nobody() {
    let text = r#"[[listener]]
address = "127.0.0.1:443"
protocol = "https"
tls = { certificates = [
  { cert = "a.pem", key = "a.key" },
  { cert = "ab.pem", key = "ab.key" },
  { cert = "unnamed.pem", key = "unnamed.key" },
] }
"#;
    let expected = r#"
warning: an earlier certificate is for "a.example" too, and serves it
 --> gateway.toml:6:12
  |
6 |   { cert = "ab.pem", key = "ab.key" },
  |            ^^^^^^^^
  |
  = note: the earlier one is at gateway.toml:5:12
  = help: remove one, or put the one that shall serve it first

warning: no client is ever shown this certificate: it is for no DNS name
 --> gateway.toml:7:12
  |
7 |   { cert = "unnamed.pem", key = "unnamed.key" },
  |            ^^^^^^^^^^^^^
  |
  = help: its names have to be in subjectAltName, or remove it

gateway.toml: 2 warnings"#;
    assert_eq!(report(text, Certificates::Strict(NOW)), expected);
}

fn model(text: &str, certificates: Certificates) -> Model {
    let text = format!("{text}{ROUTE}");
    parse(&text, &DIRECTORY.path().join("gateway.toml"), certificates).unwrap_or_else(|errors| panic!("{errors}")).model
}

const BASE: &str = r#"[[listener]]
address = "127.0.0.1:80"
[[listener]]
address = "127.0.0.1:443"
protocol = "https"
tls = { certificates = [{ cert = "a.pem", key = "a.key" }, { cert = "b.pem", key = "b.key" }] }
[[upstream]]
name = "app"
servers = ["127.0.0.1:9001"]
"#;

#[test]
fn a_plan_names_what_changes_in_tls() {
    let before = model(BASE, Certificates::Strict(NOW));
    let listener = "[[listener]]\naddress = \"127.0.0.1:443\"";
    for (from, to, line) in [
        ("[[upstream]]", "redirect_to_https = false\n[[upstream]]", ""),
        ("[[listener]]", "[server]\nmax_streams = 1\n[[listener]]", "[server]: changed: max_streams 128 -> 1"),
        ("[[listener]]", "[server]\nmax_handshakes = 1\n[[listener]]", "[server]: changed: max_handshakes 1024 -> 1"),
        (
            "[[listener]]",
            "[server]\nhandshake_timeout = \"1s\"\n[[listener]]",
            "[server]: changed: handshake_timeout 10s -> 1s",
        ),
        (
            listener,
            "redirect_to_https = true\n[[listener]]\naddress = \"127.0.0.1:443\"",
            "listener 127.0.0.1:80: changed: redirect_to_https off -> 443",
        ),
        (", { cert = \"b.pem\", key = \"b.key\" }", "", "listener 127.0.0.1:443: changed: certificates -DIR/b.pem"),
        (
            "a.pem\", key = \"a.key",
            "ab.pem\", key = \"ab.key",
            "listener 127.0.0.1:443: changed: certificates +DIR/ab.pem -DIR/a.pem",
        ),
        ("tls = {", "tls = { min_version = \"1.3\",", "listener 127.0.0.1:443: changed: min_version 1.2 -> 1.3"),
        (
            "tls = {",
            "tls = { client_certificates = \"optional\", client_ca = \"a.pem\",",
            "listener 127.0.0.1:443: changed: client_certificates off -> optional",
        ),
        (
            "tls = {",
            "reject_unknown_sni = true\ntls = {",
            "listener 127.0.0.1:443: changed: reject_unknown_sni false -> true",
        ),
        ("9001\"]", "9001\"]\nprotocol = \"h2\"", "upstream app: changed: protocol http1 -> h2"),
        ("9001\"]", "9001\"]\ntls = { ca = \"a.pem\" }", "upstream app: changed: tls off -> verified"),
        ("9001\"]", "9001\"]\ntls = { verify = false }", "upstream app: changed: tls off -> not verified"),
        ("9001\"]", "9001\"]\ntls = false", ""),
    ] {
        assert!(BASE.contains(from), "{from}");
        let after = model(&BASE.replacen(from, to, 1), Certificates::Strict(NOW));
        let plan = diff(&before, &after).to_string().replace(&DIRECTORY.path().display().to_string(), "DIR");
        let first = plan.lines().next().unwrap_or_default();
        assert_eq!(first, if line.is_empty() { "nothing changed" } else { line }, "{to}");
    }
    let https = BASE.replace("tls = { c", "tls = { client_certificates = \"required\", client_ca = \"a.pem\", c");
    let upstream = https.replace("9001\"]", "9001\"]\ntls = { ca = \"a.pem\" }");
    let (old, new) = (
        upstream.replace("a.pem\" }\n", "b.pem\", server_name = \"x\" }\n"),
        upstream.replace("ca = \"a.pem\", c", "ca = \"b.pem\", c"),
    );
    let plan = diff(&model(&old, Certificates::Strict(NOW)), &model(&new, Certificates::Strict(NOW))).to_string();
    assert!(plan.contains("listener 127.0.0.1:443: changed: client_ca has other certificates\n"), "{plan}");
    assert!(
        plan.contains("upstream app: changed: server_name x -> the server's, ca has other certificates\n"),
        "{plan}"
    );
}

#[test]
fn a_file_is_read_for_what_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.toml");
    std::fs::write(&path, format!("{BASE}{ROUTE}")).unwrap();
    let copy = |from: &str, to: &str| {
        std::fs::copy(DIRECTORY.path().join(from), directory.path().join(to)).unwrap();
    };
    for name in ["a.pem", "a.key", "b.pem", "b.key"] {
        copy(name, name);
    }
    let load = || load(&path, Certificates::Strict(NOW)).unwrap();
    let first = load();
    assert_eq!(first.files, ["a.key", "a.pem", "b.key", "b.pem"].map(|name| directory.path().join(name)));
    assert_eq!(load().digest, first.digest);
    copy("ab.pem", "a.pem");
    copy("ab.key", "a.key");
    let second = load();
    assert_ne!(second.digest, first.digest, "the text is the same, the certificate is not");
    let plan = diff(&first.model, &second.model).to_string();
    let line = "changed, valid until 2027-01-01 00:00:00 UTC\n";
    assert!(
        plan.starts_with(&format!(
            "listener 127.0.0.1:443: changed: certificate {}/a.pem {line}",
            directory.path().display()
        )),
        "{plan}"
    );
    std::fs::remove_file(directory.path().join("b.key")).unwrap();
    match super::load(&path, Certificates::Lenient(NOW)) {
        Err(LoadError::Invalid { errors, files }) => assert_eq!((errors.total(), files), (1, first.files)),
        other => panic!("{other:?}"),
    }
    let unread = super::load(&path, Certificates::Unread).unwrap();
    assert!(unread.model.listeners[1].tls.as_ref().unwrap().identities.is_empty());
}
