//! `alerts` of `[dead_letter]`: mistakes and plans.

use std::path::Path;

use super::{Alert, Certificates, Model, diff, load, parse};
use sluicegate_time::Wall;

fn file(alerts: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[route]]\nname = \"all\"\nrespond = {{}}\n[dead_letter]\nalerts = {alerts}\n"
    )
}

/// The report about these alerts, right or wrong.
fn told(alerts: &str) -> String {
    match parse(&file(alerts), Path::new("gateway.toml"), Certificates::Unread) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    }
}

fn model(alerts: &str) -> Model {
    parse(&file(alerts), Path::new("gateway.toml"), Certificates::Unread)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .model
}

#[test]
fn a_whole_alert_is_taken() {
    let whole = "[{ webhook = \"https://h.example:8443/x?y=z\", length = 1000, age = \"1h\", growth = \"100/m\", \
                 drops = 1, secret_file = \"hook.key\" }, { drops = 2 }]";
    assert_eq!(told(whole), "");
    let alerts = model(whole).dead_letter.unwrap().alerts;
    let texts: Vec<String> = alerts.iter().map(Alert::to_string).collect();
    assert_eq!(texts, ["[length 1000, age 1h, growth 100/m, drops 1, to https://h.example:8443, signed]", "[drops 2]"]);
    assert_eq!(alerts[0].webhook.as_ref().unwrap().uri(), "https://h.example:8443/x?y=z");
    assert!(!format!("{alerts:?}").contains("x?y"), "{alerts:?}");
}

#[test]
fn what_cannot_be_is_refused_with_its_remedy() {
    for (alerts, message, help) in [
        ("{ length = 1 }", "`alerts` takes an array, not a table", "write it as [{ length = 1000"),
        ("[1]", "`alerts` takes a table, not an integer", "write it as { length = 1000 }"),
        ("[{}]", "an alert that no figure sets off", "add one of length = 1000, age = \"1h\""),
        ("[{ webhook = \"http://h\" }]", "an alert that no figure sets off", "add one of length = 1000"),
        ("[{ length = 0 }]", "`length` is out of range: `0`", "it goes from 1 to 1000000000000"),
        ("[{ drops = 0 }]", "`drops` is out of range: `0`", "it goes from 1 to"),
        ("[{ age = \"999ms\" }]", "`age` is out of range: \"999ms\"", "it goes from 1s to 3650d"),
        ("[{ growth = \"1/2d\" }]", "invalid growth \"1/2d\"", "its time goes from 1s to 1d"),
        ("[{ growth = \"1/999ms\" }]", "invalid growth \"1/999ms\"", "its time goes from 1s to 1d"),
        ("[{ growth = \"fast\" }]", "invalid growth \"fast\"", ""),
        ("[{ lenght = 5 }]", "unknown key `lenght` in an alert", "did you mean `length`?"),
        (
            "[{ drops = 1, webhook = 5 }]",
            "`webhook` takes an address in quotes",
            "write it as \"https://hooks.example.com\"",
        ),
        ("[{ drops = 1, secret_file = \"k\" }]", "`secret_file` has no effect", "remove it, or set webhook"),
    ] {
        let told = told(alerts);
        assert!(told.contains(message) && told.contains(help), "{alerts}: {told}");
    }
    let many = format!("[{}]", "{ drops = 1 }, ".repeat(17));
    assert!(told(&many).contains("`alerts` has 17 of them"), "{}", told(&many));
    assert_eq!(told(&many.replacen("{ drops = 1 }, ", "", 1)), "");
}

#[test]
fn no_report_shows_the_secret_of_a_webhook() {
    for (webhook, message) in [
        ("ftp://h.example/SECRET", "`webhook` is no address of HTTP"),
        ("https://SECRET@h.example/", "`webhook` holds a user or a password"),
        ("https://h.example/SECRET x", "`webhook` is no address of HTTP"),
        ("https://h.example/#SECRET", "`webhook` is no address of HTTP"),
        ("/SECRET", "`webhook` is no address of HTTP"),
        ("https:///SECRET", "`webhook` is no address of HTTP"),
        ("https://h.example:99999/SECRET", "`webhook` is no address of HTTP"),
        ("SECRET", "`webhook` is no address of HTTP"),
    ] {
        let told = told(&format!("[{{ drops = 1, webhook = \"{webhook}\" }}]"));
        assert!(told.contains(message) && !told.contains("SECRET"), "{webhook}: {told}");
    }
    let long = told(&format!("[{{ drops = 1, webhook = \"https://h/{}\" }}]", "x".repeat(2_040)));
    assert!(long.contains("`webhook` has 2050 bytes, and may have 2048"), "{long}");
    // Beside another mistake.
    let told = told("[{ drops = 0, webhook = \"https://h.example/SECRET\" }]");
    assert!(told.contains("https://h.example") && !told.contains("SECRET"), "{told}");
}

#[test]
fn a_plan_tells_what_changes_and_no_secret() {
    let plan = |old: &str, new: &str| diff(&model(old), &model(new)).to_string();
    let one = "[{ length = 5, webhook = \"https://h.example/SECRET\" }]";
    assert!(diff(&model(one), &model(one)).is_empty());
    let changed = plan("[]", one);
    assert!(changed.contains("alerts +[length 5, to https://h.example]"), "{changed}");
    let changed = plan(one, "[{ length = 6, webhook = \"https://h.example/SECRET\" }]");
    assert!(
        changed.contains("alerts +[length 6, to https://h.example] -[length 5, to https://h.example]"),
        "{changed}"
    );
    let changed = plan(one, "[{ length = 5, webhook = \"https://h.example/SECRET2\" }]");
    assert!(changed.contains("alerts has other contents") && !changed.contains("SECRET"), "{changed}");
}

#[test]
fn a_key_that_changes_is_a_change_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let text = file("[{ drops = 1, webhook = \"https://h.example/x\", secret_file = \"hook.key\" }]");
    std::fs::write(at("gateway.toml"), text).unwrap();
    let load = |key: &str| {
        std::fs::write(at("hook.key"), key).unwrap();
        load(&at("gateway.toml"), Certificates::Lenient(Wall::EPOCH))
    };
    let (one, two) = (load(&"01".repeat(32)).unwrap(), load(&"02".repeat(32)).unwrap());
    assert_ne!(one.digest, two.digest);
    assert_eq!(one.files, [at("hook.key")]);
    let plan = diff(&one.model, &two.model).to_string();
    assert!(plan.contains("alerts has other contents"), "{plan}");
    let short = load("0102").unwrap_err().to_string();
    assert!(short.contains("has 4 bytes") && short.contains("dead-letters key > hook.key"), "{short}");
}
