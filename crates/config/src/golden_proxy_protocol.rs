//! The PROXY protocol: warnings and plans.

use std::path::Path;

use super::{Certificates, diff, parse};

fn report(text: &str) -> String {
    let report = match parse(text, Path::new("gateway.toml"), Certificates::Unread) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    };
    format!("\n{report}")
}

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:8081\"\n";
const ROUTE: &str = "\n[[route]]\nname = \"all\"\nrespond = {}\n";

#[test]
fn who_is_believed_once_is_not_warned_of() {
    let lines = "proxy_protocol = \"required\"\nproxy_protocol_from = [\"10.0.0.0/8\", \"::/1\"]\n";
    let other = "[client]\ntrusted_proxies = [\"192.0.2.0/24\"]\nallow = [\"10.0.0.0/9\", \"198.51.100.0/24\"]\n";
    assert_eq!(report(&format!("{other}{LISTENER}{}{ROUTE}", lines.replace("::/1", "fd00::/8"))), "\n");
}

#[test]
fn a_reload_says_what_connections_begin_with_from_now_on() {
    let model = |listener: &str, upstream: &str| {
        let text = format!(
            "{LISTENER}{listener}\n[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:9001\"]\n{upstream}\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\n"
        );
        parse(&text, Path::new("gateway.toml"), Certificates::Unread).unwrap().model
    };
    let required = |from: &str| format!("proxy_protocol = \"required\"\nproxy_protocol_from = [{from}]");
    let off = model("", "");
    let one = model(&required("\"10.0.0.0/8\""), "proxy_protocol = \"v1\"");
    let two = model(&required("\"10.0.0.0/8\", \"192.0.2.7\""), "proxy_protocol = \"v2\"");
    let plan = diff(&off, &one).to_string();
    assert!(plan.contains("proxy_protocol off -> required") && plan.contains("proxy_protocol off -> v1"), "{plan}");
    let plan = diff(&one, &two).to_string();
    assert!(plan.contains("proxy_protocol_from +192.0.2.7/32"), "{plan}");
    assert!(plan.contains("proxy_protocol v1 -> v2"), "{plan}");
    assert!(diff(&two, &two.clone()).is_empty());
}
