//! Certificates at start, and when their files change. Handshakes are other tests' business.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use crate::support::{FRAME, Gateway, eventually, get, run};

/// A certificate that is valid until the first day of `year`, and its key, in PEM.
fn pair(year: i32) -> (String, String) {
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(year, 1, 1);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn write_pair(directory: &Path, year: i32) {
    let (cert, key) = pair(year);
    fs::write(directory.join("cert.pem"), cert).unwrap();
    fs::write(directory.join("key.pem"), key).unwrap();
}

/// An https listener with the pair in `directory`, and a route.
fn rules(directory: &Path, body: &str) -> String {
    let directory = directory.display();
    format!(
        "[[listener]]\naddress = \"127.0.0.2:0\"\nprotocol = \"https\"\n\
         tls = {{ certificates = [{{ cert = \"{directory}/cert.pem\", key = \"{directory}/key.pem\" }}] }}\n\
         [[route]]\nname = \"all\"\nrespond = {{ body = \"{body}\" }}\n"
    )
}

/// Waits until the log says that the certificate until that year was taken over.
fn taken_over(gateway: &Gateway, year: i32) -> bool {
    eventually(|| gateway.log().contains(&format!("cert.pem changed, valid until {year}-01-01")))
}

#[test]
fn certificates_are_watched_however_they_are_changed() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for name in ["live", "archive", "next"] {
        fs::create_dir(at(name)).unwrap();
    }
    // As certbot has it: links to numbered files in another directory.
    let archive = |number: usize, year| {
        let (cert, key) = pair(year);
        fs::write(at(&format!("archive/cert{number}.pem")), cert).unwrap();
        fs::write(at(&format!("archive/key{number}.pem")), key).unwrap();
    };
    let relink = |number: usize| {
        for name in ["cert", "key"] {
            symlink(format!("../archive/{name}{number}.pem"), at("live/link")).unwrap();
            fs::rename(at("live/link"), at(&format!("live/{name}.pem"))).unwrap();
        }
    };
    archive(1, 2041);
    relink(1);
    let gateway = Gateway::start(&rules(&at("live"), "x"));
    archive(2, 2042);
    relink(2);
    assert!(taken_over(&gateway, 2042));
    archive(2, 2043);
    assert!(taken_over(&gateway, 2043), "a write behind the link");
    write_pair(&at("next"), 2044);
    for name in ["key.pem", "cert.pem"] {
        fs::rename(at("next").join(name), at("live").join(name)).unwrap();
    }
    assert!(taken_over(&gateway, 2044), "a rename over it");
    write_pair(&at("live"), 2045);
    assert!(taken_over(&gateway, 2045), "a write in place");

    // As Kubernetes has it: a link to the file in a directory that is itself swapped.
    for (name, year) in [("one", 2046), ("two", 2047)] {
        fs::create_dir(at(name)).unwrap();
        write_pair(&at(name), year);
    }
    symlink("one", at("data")).unwrap();
    fs::create_dir(at("secret")).unwrap();
    for name in ["cert.pem", "key.pem"] {
        symlink(format!("../data/{name}"), at("secret").join(name)).unwrap();
    }
    assert_eq!(gateway.reload(&rules(&at("secret"), "x")).status, 200);
    symlink("two", at("data.next")).unwrap();
    fs::rename(at("data.next"), at("data")).unwrap();
    assert!(taken_over(&gateway, 2047), "a swap of the directory");
}

#[test]
fn a_certificate_that_breaks_changes_nothing_and_is_told_once() {
    let files = tempfile::tempdir().unwrap();
    write_pair(files.path(), 2041);
    let gateway = Gateway::start(&rules(files.path(), "1"));
    let good = fs::read(files.path().join("cert.pem")).unwrap();
    fs::write(files.path().join("cert.pem"), "junk").unwrap();
    let refused = || gateway.log().matches("reload rejected").count();
    assert!(eventually(|| refused() == 1), "{}", gateway.log());
    assert!(gateway.log().contains("cert.pem\\\" cannot be used: it has no PEM section"), "{}", gateway.log());
    let error = gateway.ask_admin("/api/config").json()["last_reload_error"].as_str().unwrap().to_owned();
    assert!(error.contains("gateway.toml:8:"), "{error}");
    assert_eq!(get(gateway.address(), "/").text(), "1");
    // Something else changes beside it: the watcher looks after 50 ms, sees what it saw, and says nothing.
    fs::write(files.path().join("unrelated"), "x").unwrap();
    let written = Instant::now();
    while written.elapsed() < Duration::from_millis(500) {
        assert_eq!(refused(), 1, "{}", gateway.log());
        thread::sleep(Duration::from_millis(20));
    }
    // As it was before: nothing is taken over, and nothing is wrong any more.
    fs::write(files.path().join("cert.pem"), good).unwrap();
    assert!(eventually(|| gateway.ask_admin("/api/config").json()["last_reload_error"].is_null()));
    assert_eq!(gateway.ask_admin("/api/config").json()["generation"], 1);
    assert_eq!(refused(), 1, "{}", gateway.log());
}

#[test]
fn a_pair_that_is_written_one_after_the_other_ends_well() {
    let files = tempfile::tempdir().unwrap();
    write_pair(files.path(), 2041);
    let gateway = Gateway::start(&rules(files.path(), "1"));
    let (cert, key) = pair(2042);
    fs::write(files.path().join("cert.pem"), cert).unwrap();
    assert!(eventually(|| gateway.log().contains("it is not the key of the first certificate")), "{}", gateway.log());
    fs::write(files.path().join("key.pem"), key).unwrap();
    assert!(taken_over(&gateway, 2042), "{}", gateway.log());
    assert_eq!(gateway.ask_admin("/api/config").json()["last_reload_error"], serde_json::Value::Null);
}

#[test]
fn a_file_that_a_refused_configuration_names_is_waited_for() {
    let files = tempfile::tempdir().unwrap();
    let gateway = Gateway::start("[[route]]\nname = \"all\"\nrespond = { body = \"1\" }\n");
    let answer = gateway.reload(&rules(files.path(), "2"));
    assert_eq!(answer.status, 422);
    assert!(answer.text().contains("there is no such file"), "{}", answer.text());
    assert_eq!(get(gateway.address(), "/").text(), "1");
    write_pair(files.path(), 2041);
    assert!(eventually(|| get(gateway.address(), "/").text() == "2"), "{}", gateway.log());
}

#[test]
fn an_expired_certificate_is_an_error_to_check_and_a_warning_to_run() {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), 2021);
    fs::write(directory.path().join("gateway.toml"), format!("{FRAME}{}", rules(directory.path(), "1"))).unwrap();
    let (status, _, errors) = run(&["check"], directory.path());
    assert_eq!(status.code(), Some(1));
    assert!(errors.contains("cert.pem\" has expired on 2021-01-01 00:00:00 UTC"), "{errors}");
    assert!(errors.starts_with("error: ") && errors.contains("gateway.toml:8:"), "{errors}");
    let gateway = Gateway::start(&rules(directory.path(), "1"));
    assert_eq!(get(gateway.address(), "/").text(), "1");
    assert!(gateway.log().contains("has expired on 2021-01-01"), "{}", gateway.log());
    assert_eq!(gateway.reload(&rules(directory.path(), "2")).status, 200);
    assert_eq!(get(gateway.address(), "/").text(), "2");
}

#[test]
fn whoever_serves_nobody_needs_no_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("{FRAME}{}[dead_letter]\n", rules(directory.path(), "1"));
    fs::write(directory.path().join("gateway.toml"), text).unwrap();
    let (status, _, errors) = run(&["check"], directory.path());
    assert_eq!((status.code(), errors.matches("there is no such file").count()), (Some(1), 2), "{errors}");
    let (_, _, errors) = run(&["check", "--health"], directory.path());
    assert!(!errors.contains("no such file"), "{errors}");
    let (_, _, errors) = run(&["dead-letters", "ls"], directory.path());
    assert!(!errors.contains("there is no such file"), "{errors}");
}
