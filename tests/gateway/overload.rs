//! `[overload]`: adaptive limits, priorities, and how they are shown and set.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Backend, Gateway, eventually, get, write_ok};

fn limited(lines: &str) -> String {
    format!(
        "[overload]\ndead_letters = \"1000000/m\"\nfloor = \"20%\"\n[[limit]]\nname = \"per-client\"\nrate = \"10/1h\"\n{lines}\n\
         [[limit]]\nname = \"fixed\"\nrate = \"12/1h\"\n[[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"per-client\"]\n\
         [[route]]\nname = \"other\"\npath = \"/other\"\nrespond = {{}}\nlimits = [\"fixed\"]\n[dead_letter]\n"
    )
}

fn statuses(gateway: &Gateway, path: &str, requests: usize) -> usize {
    (0..requests).filter(|_| get(gateway.address(), path).status == 200).count()
}

fn put(gateway: &Gateway, body: &Value) -> (u16, Value) {
    let answer = gateway.tell_admin("PUT", "/api/v1/overload", &body.to_string());
    (answer.status, answer.json())
}

#[test]
fn an_operator_scales_adaptive_limits_by_hand_and_everything_says_so() {
    let gateway = Gateway::start(&limited("adaptive = true"));
    let report = gateway.ask_admin("/api/v1/overload").json();
    assert_eq!((&report["scale_percent"], &report["adaptive_limits"]), (&json!(100.0), &json!(1)), "{report}");
    assert_eq!(
        (&report["sensors"][0]["sensor"], &report["by_hand"]),
        (&json!("dead_letters"), &json!(false)),
        "{report}"
    );
    let (status, report) = put(&gateway, &json!({ "scale": "60%" }));
    assert_eq!((status, &report["scale_percent"], &report["by_hand"]), (200, &json!(60.0), &json!(true)), "{report}");
    assert_eq!((statuses(&gateway, "/", 15), statuses(&gateway, "/other", 15)), (6, 12));
    assert!((gateway.metric("sluicegate_overload_scale", &[]) - 60.0).abs() < 0.1);
    let refused = get(gateway.address(), "/");
    assert!(refused.header("ratelimit-policy").is_some_and(|policy| policy.contains("q=6")), "{refused:?}");
    assert!(eventually(|| !gateway.dead_letters().is_empty()));
    let letter = &gateway.dead_letters()[0];
    assert_eq!((&letter["scale"], &letter["quota"]["limit"]), (&json!(60), &json!(6)), "{letter}");
    assert!(letter["why"].as_str().unwrap().contains("0 of 6 in 1h left, scaled to 60%"), "{letter}");
    let asked = json!({ "method": "GET", "url": "http://x/" });
    let explained = gateway.tell_admin("POST", "/api/v1/explain", &asked.to_string()).json();
    assert_eq!(explained["limits"][0]["scale_percent"], 60, "{explained}");
    // A reload of other things keeps it.
    assert_eq!(gateway.reload(&limited("adaptive = true\nstatus = 503")).status, 200);
    assert_eq!(get(gateway.address(), "/").status, 503);
    let answer = gateway.tell_admin("DELETE", "/api/v1/overload", "").json();
    assert!(answer["by_hand"] == false && answer["scale_percent"].as_f64().unwrap() < 80.0, "{answer}");
    // Without the section all of it holds again.
    let without = limited("").replace("[overload]\ndead_letters = \"1000000/m\"\nfloor = \"20%\"\n", "");
    assert_eq!(gateway.reload(&without).status, 200);
    assert_eq!(statuses(&gateway, "/", 9), 4, "ten in all");
    assert_eq!(gateway.ask_admin("/api/v1/overload").status, 404);
}

#[test]
fn a_scale_by_hand_is_a_share_and_a_time() {
    let gateway = Gateway::start(&limited("adaptive = true"));
    for (body, told) in [
        (json!({ "scale": "0%" }), "from 1% to 100%"),
        (json!({ "scale": "101%" }), "from 1% to 100%"),
        (json!({ "scale": "60" }), "Write \"60%\""),
        (json!({ "scale": "60%", "for": "soon" }), "Write \"10m\""),
    ] {
        let (status, problem) = put(&gateway, &body);
        assert_eq!(status, 422, "{body}");
        assert!(problem["detail"].as_str().unwrap().contains(told), "{problem}");
    }
    let (status, _) = put(&gateway, &json!({ "scale": "50%", "for": "1s" }));
    assert_eq!(status, 200);
    assert!(eventually(|| gateway.ask_admin("/api/v1/overload").json()["by_hand"] == false));
}

/// Servers that take longer than they may, and three kinds of routes.
#[test]
fn under_pressure_that_no_limit_can_take_low_priority_goes_first_and_high_never() {
    let server = Backend::start(|_, stream| {
        std::thread::sleep(Duration::from_millis(60));
        write_ok(stream, b"a")
    });
    let route = |name: &str| {
        format!("[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nupstream = \"app\"\npriority = \"{name}\"\n")
    };
    let text = format!(
        "[overload]\nresponse_time = {{ upstream = \"app\", above = \"20ms\" }}\n[[upstream]]\nname = \"app\"\n\
         servers = [\"{}\"]\n{}{}{}[dead_letter]\n",
        server.address,
        route("low"),
        route("normal"),
        route("high")
    );
    let gateway = Gateway::start(&text);
    let ask = |path: &str| get(gateway.address(), path);
    let shed = || gateway.ask_admin("/api/v1/overload").json()["shed_percent"]["low"].as_f64().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while shed() < 5.0 && std::time::Instant::now() < deadline {
        for path in ["/low", "/low", "/low", "/normal", "/high"] {
            ask(path);
        }
    }
    assert!(shed() >= 5.0, "{}", gateway.ask_admin("/api/v1/overload").json());
    let refused = (0..200).map(|_| ask("/low")).find(|answer| answer.status == 503).expect("one of 200");
    assert_eq!(refused.header("retry-after"), Some("5"), "{refused:?}");
    assert!((0..20).all(|_| ask("/high").status == 200));
    assert!(eventually(|| gateway.dead_letters().iter().any(|letter| letter["reason"] == "shed")));
    let reasons: Vec<_> = gateway.dead_letters().iter().map(|letter| letter["reason"].clone()).collect();
    assert!(reasons.iter().all(|reason| reason == "shed"), "{reasons:?}");
    assert!(gateway.metric("sluicegate_requests_total", &["outcome=\"shed\""]) > 0.5);
}

#[test]
fn a_sensor_that_cannot_be_read_is_a_warning_and_off_and_a_file_may_name_no_other_upstream() {
    let gateway = Gateway::start(
        "[overload]\nmemory = \"99%\"\ncpu_pressure = \"99%\"\ndead_letters = \"5000/m\"\n[[route]]\nname = \"all\"\nrespond = {}\n",
    );
    let sensors = gateway.ask_admin("/api/v1/overload").json()["sensors"].clone();
    let names: Vec<_> = sensors.as_array().unwrap().iter().map(|own| own["sensor"].as_str().unwrap()).collect();
    assert_eq!(names, ["memory", "cpu_pressure", "dead_letters"]);
    let is_read_or_off = |own: &Value| own["value"].is_number() != own["fault"].is_string();
    assert!(eventually(|| {
        let report = gateway.ask_admin("/api/v1/overload").json();
        report["sensors"].as_array().unwrap().iter().all(is_read_or_off)
    }));
    assert_eq!(get(gateway.address(), "/").status, 200, "whatever this machine has");
    let wrong = gateway.reload(
        "[overload]\nresponse_time = { upstream = \"gone\", above = \"1s\" }\n[[route]]\nname = \"all\"\nrespond = {}\n",
    );
    assert_eq!(wrong.status, 422);
    let told = String::from_utf8_lossy(&wrong.body);
    assert!(told.contains("no [[upstream]] has the name \"gone\""), "{told}");
}
