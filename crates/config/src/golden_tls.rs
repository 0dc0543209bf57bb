//! Files of certificates and keys: plans that name what changes, and how the files are read.

use std::sync::LazyLock;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::{Certificates, LoadError, Model, diff, load, parse};
use sluicegate_time::Wall;

/// 2026-06-01, for certificates that are valid from some time to some other.
pub(super) const NOW: Wall = Wall::from_nanos(1_780_272_000_000_000_000);

/// A directory of certificates and keys, made once.
pub(super) static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
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
