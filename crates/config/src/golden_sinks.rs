//! `sinks` of `[dead_letter]`: mistakes and plans.

use std::path::Path;

use super::{Certificates, Model, Sink, diff, load, parse};
use sluicegate_time::{Span, Wall};

fn file(sinks: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[route]]\nname = \"all\"\nrespond = {{}}\n[dead_letter]\nsinks = {sinks}\n"
    )
}

/// The report about these sinks, right or wrong.
fn told(sinks: &str) -> String {
    match parse(&file(sinks), Path::new("gateway.toml"), Certificates::Unread) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    }
}

fn model(sinks: &str) -> Model {
    parse(&file(sinks), Path::new("gateway.toml"), Certificates::Unread)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .model
}

#[test]
fn a_whole_sink_is_taken() {
    let whole = "[{ http = \"https://H.example:8443/x?y=z\", batch = \"250ms\", name = \"siem\", secret_file = \"sink.key\" }, \
                 { http = \"http://H.example:8080/x?y=z\" }]";
    assert_eq!(told(whole), "");
    let sinks = model(whole).dead_letter.unwrap().sinks;
    let texts: Vec<String> = sinks.iter().map(Sink::to_string).collect();
    let signed = "[siem to https://H.example:8443, batch 250ms, signed]";
    assert_eq!(texts, [signed, "[to http://H.example:8080, batch 1s]"]);
    assert_eq!((sinks[0].called(), sinks[1].called()), ("siem".to_owned(), "h.example:8080".to_owned()));
    assert_eq!((sinks[0].batch, sinks[1].batch), (Span::from_millis(250), Span::from_secs(1)));
    assert!(!format!("{sinks:?}").contains("x?y"), "{sinks:?}");
}

#[test]
fn what_cannot_be_is_refused_with_its_remedy() {
    let long = format!("[{{ http = \"https://{}/\" }}]", "h".repeat(201));
    for (sinks, message, help) in [
        ("{ http = \"https://h\" }", "`sinks` takes an array, not a table", "write it as [{ http = \"https://siem"),
        ("[1]", "`sinks` takes a table, not an integer", "write it as { http = \"https://siem"),
        ("[{}]", "a sink has no `http`", "add http = \"https://siem.example.com\""),
        ("[{ syslog = \"tls://h\" }]", "a sink cannot be `syslog` in this version", "this version has http ="),
        ("[{ redis_stream = \"redis://h\" }]", "a sink cannot be `redis_stream` in this version", "this version has"),
        (
            "[{ http = \"https://h\", batch = \"99ms\" }]",
            "`batch` is out of range: \"99ms\"",
            "it goes from 100ms to 1m",
        ),
        ("[{ http = \"https://h\", batch = \"61s\" }]", "`batch` is out of range: \"61s\"", "it goes from 100ms to 1m"),
        ("[{ http = \"https://h\", bach = \"1s\" }]", "unknown key `bach` in a sink", "did you mean `batch`?"),
        ("[{ http = \"https://h\", name = \"a/b\" }]", "\"a/b\" cannot be a name", "a name is 1 to"),
        (
            "[{ http = \"https://h/1\" }, { http = \"https://H/2\" }]",
            "two sinks are called \"h\"",
            "give each its own: name = \"siem\"",
        ),
        (&long, "a sink whose host is too long to be its name", "add name = \"siem\""),
    ] {
        let told = told(sinks);
        assert!(told.contains(message) && told.contains(help), "{sinks}: {told}");
    }
    let many: Vec<_> = (0..9).map(|at| format!("{{ http = \"https://h{at}\" }}")).collect();
    let told_of = |count: usize| told(&format!("[{}]", many[..count].join(", ")));
    assert!(told_of(9).contains("`sinks` has 9 of them"), "{}", told_of(9));
    assert_eq!(told_of(8), "");
}

#[test]
fn no_report_shows_the_secret_of_a_sink() {
    for (address, message) in [
        ("ftp://h.example/SECRET", "`http` is no address of HTTP"),
        ("https://u:SECRET@h.example/", "`http` holds a user or a password"),
        ("https://h.example/SECRET x", "`http` is no address of HTTP"),
        ("SECRET", "`http` is no address of HTTP"),
    ] {
        let told = told(&format!("[{{ http = \"{address}\" }}]"));
        assert!(told.contains(message) && !told.contains("SECRET"), "{address}: {told}");
    }
    // Beside another mistake, of another kind, and misspelt.
    for sink in [
        "http = \"https://h.example/SECRET\", batch = \"0s\"",
        "htpp = \"https://h.example/SECRET\"",
        "redis_stream = \"redis://u:SECRET@h/\"",
    ] {
        let told = told(&format!("[{{ {sink} }}]"));
        assert!(told.contains("-->") && !told.contains("SECRET"), "{told}");
    }
}

#[test]
fn a_plan_tells_what_changes_and_no_secret() {
    let plan = |old: &str, new: &str| diff(&model(old), &model(new)).to_string();
    let one = "[{ http = \"https://h.example/SECRET\" }]";
    assert!(diff(&model(one), &model(one)).is_empty());
    let changed = plan("[]", one);
    assert!(changed.contains("sinks +[to https://h.example, batch 1s]"), "{changed}");
    let changed = plan(one, "[{ http = \"https://h.example/SECRET2\" }]");
    assert!(changed.contains("sinks has other contents") && !changed.contains("SECRET"), "{changed}");
}

#[test]
fn a_key_that_changes_is_a_change_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("gateway.toml"), file("[{ http = \"https://h.example/x\", secret_file = \"sink.key\" }]"))
        .unwrap();
    let load = |key: &str| {
        std::fs::write(at("sink.key"), key).unwrap();
        load(&at("gateway.toml"), Certificates::Lenient(Wall::EPOCH))
    };
    let (one, two) = (load(&"01".repeat(32)).unwrap(), load(&"02".repeat(32)).unwrap());
    assert_ne!(one.digest, two.digest);
    assert_eq!(one.files, [at("sink.key")]);
    let plan = diff(&one.model, &two.model).to_string();
    assert!(plan.contains("sinks has other contents"), "{plan}");
}
