//! `[admin]`: reports, and plans.

use std::path::Path;

use super::{Admin, Certificates, ListenAddress, Model, diff, parse};

const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn file(admin: &str) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1:8080\"\n[[route]]\nname = \"all\"\nrespond = {{}}\n[admin]\n{admin}\n")
}

fn told(admin: &str) -> String {
    match parse(&file(admin), Path::new("/etc/gateway.toml"), Certificates::Unread) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    }
}

fn model(admin: &str) -> Model {
    let parsed = parse(&file(admin), Path::new("/etc/gateway.toml"), Certificates::Unread);
    parsed.unwrap_or_else(|errors| panic!("{errors}")).model
}

fn section(admin: &str) -> Admin {
    model(admin).admin.unwrap()
}

fn token(name: &str, hash: &str, role: &str) -> String {
    format!("{{ name = \"{name}\", sha256 = \"{hash}\", role = \"{role}\" }}")
}

#[test]
fn whoever_may_is_read() {
    let tokens = format!("[{}]", token("ci", HASH, "operate"));
    let one = section(&format!("address = \"127.0.0.1:9900\"\ntokens = {tokens}"));
    assert_eq!(one.tokens[0].to_string(), "ci (operate)");
    assert_eq!(one.tokens[0].sha256[..2], [0x9f, 0x86]);
    let clients = "[{ name = \"ops\", subject = \"CN=ops\", role = \"rules\" }]";
    let tls = "{ certificates = [{ cert = \"c.pem\", key = \"k.pem\" }], client_certificates = \"required\", client_ca = \"ca.pem\" }";
    let two = section(&format!("address = \"0.0.0.0:9900\"\ntls = {tls}\nclients = {clients}"));
    assert_eq!(two.clients[0].to_string(), "ops (rules)");
    let unix = section("address = \"unix:run/admin.sock\"");
    assert_eq!(unix.address, ListenAddress::Unix("/etc/run/admin.sock".into()));
    assert_eq!(unix.address.to_string(), "unix:/etc/run/admin.sock");
    assert_eq!(told("address = \"[::1]:9900\""), "");
}

#[test]
fn a_door_without_a_lock_is_refused() {
    for address in ["0.0.0.0:9900", "[::]:9900", "192.0.2.1:9900"] {
        let told = told(&format!("address = \"{address}\""));
        assert!(told.contains(&format!("whoever reaches {address} may operate this gateway")), "{told}");
        assert!(told.contains("sluicegate token"), "{told}");
    }
    let tokens = format!("tokens = [{}]", token("ci", HASH, "read"));
    let told = told(&format!("address = \"192.0.2.1:9900\"\n{tokens}"));
    assert!(told.starts_with("warning: tokens come in the clear"), "{told}");
}

#[test]
fn what_cannot_be_is_refused_with_its_remedy() {
    let loopback = "address = \"127.0.0.1:9900\"";
    let other = HASH.replace('9', "8");
    let tokens = |all: &[String]| format!("{loopback}\ntokens = [{}]", all.join(", "));
    for (admin, message, help) in [
        ("address = \"unix:\"".to_owned(), "\"unix:\" is no Unix socket", "unix:/run/sluicegate/admin.sock"),
        (format!("address = \"unix:/{}\"", "a".repeat(90)), "too long for a Unix socket", "at most 90 bytes"),
        (
            "address = \"unix:/run/a\"\ntls = { certificates = [{ cert = \"c.pem\", key = \"k.pem\" }] }".to_owned(),
            "a Unix socket has no TLS",
            "remove `tls`",
        ),
        (tokens(&[token("ci", "abc", "read")]), "`sha256` is no SHA-256: 64 hex digits", "`sluicegate token` prints"),
        (
            tokens(&[token("ci", &format!("e3b0c442{}", &HASH[8..]), "read")]),
            "is the SHA-256 of an empty text",
            "hash the token",
        ),
        (tokens(&[token("ci", HASH, "admin")]), "`role` cannot be \"admin\"", "operate"),
        (tokens(&[token("c i", HASH, "read")]), "invalid name \"c i\"", "1 to 64"),
        (
            tokens(&[token("ci", HASH, "read"), token("ci", &other, "read")]),
            "two tokens have the name \"ci\"",
            "remove one",
        ),
        (tokens(&[token("ci", HASH, "read"), token("cd", HASH, "read")]), "the same token twice", "remove one"),
        (format!("{loopback}\ntokens = [{{ name = \"ci\" }}]"), "has no `sha256`", "add sha256"),
        (
            format!("{loopback}\nclients = [{{ name = \"ops\", role = \"read\" }}]"),
            "a client has either `subject` or `fingerprint`",
            "give one",
        ),
        (
            format!("{loopback}\nclients = [{{ name = \"ops\", fingerprint = \"00\", role = \"read\" }}]"),
            "is no SHA-256 of a certificate",
            "openssl x509",
        ),
        (
            format!("{loopback}\nclients = [{{ name = \"ops\", subject = \"CN=a\", role = \"read\" }}]"),
            "nobody is asked for a certificate",
            "client_ca",
        ),
    ] {
        let told = told(&admin);
        assert!(told.contains(message), "{admin}: {message}: {told}");
        assert!(told.contains(help), "{admin}: {help}: {told}");
    }
}

#[test]
fn a_plan_tells_who_comes_and_goes() {
    let with = |role: &str| model(&format!("address = \"127.0.0.1:9900\"\ntokens = [{}]", token("ci", HASH, role)));
    let plan = diff(&with("read"), &with("rules")).to_string();
    assert!(plan.contains("+ci (rules)") && plan.contains("-ci (read)"), "{plan}");
    let plan = diff(&with("read"), &model("address = \"unix:/run/a.sock\"")).to_string();
    assert!(plan.contains("address 127.0.0.1:9900 -> unix:/run/a.sock"), "{plan}");
}
