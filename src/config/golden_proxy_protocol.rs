//! Reports about the PROXY protocol, word for word.

use std::path::Path;

use super::{Certificates, diff, parse};

fn report(text: &str) -> String {
    let report = match parse(text, Path::new("gateway.toml"), Certificates::Unread) {
        Ok(parsed) => parsed.warnings.to_string(),
        Err(errors) => errors.to_string(),
    };
    format!("\n{report}")
}

#[test]
fn what_does_not_go_together_before_connections() {
    let text = r#"[[listener]]
address = "127.0.0.1:8081"
proxy_protocol = "required"

[[listener]]
address = "127.0.0.1:8082"
proxy_protocol_from = ["10.0.0.0/8"]

[[listener]]
address = "127.0.0.1:8083"
proxy_protocol = "required"
proxy_protocol_from = []

[[listener]]
address = "127.0.0.1:8084"
proxy_protocol = "required"
proxy_protocol_from = ["0.0.0.0/0"]

[[listener]]
address = "127.0.0.1:8085"
proxy_protocol = "optional"
proxy_protocol_from = ["10.0.0.1/8"]

[[upstream]]
name = "grpc"
servers = ["127.0.0.1:9001"]
protocol = "h2"
proxy_protocol = "v2"

[[upstream]]
name = "echo"
servers = ["echo:a"]
proxy_protocol = "v1"

[[upstream]]
name = "app"
servers = ["127.0.0.1:9002"]
proxy_protocol = "v3"

[[route]]
name = "all"
upstream = "grpc"

[[route]]
name = "echo"
upstream = "echo"

[[route]]
name = "app"
upstream = "app"
"#;
    let expected = r#"
error: `proxy_protocol` = "required" lacks `proxy_protocol_from`, who may send the header
 --> gateway.toml:3:18
  |
3 | proxy_protocol = "required"
  |                  ^^^^^^^^^^
  |
  = help: add proxy_protocol_from = ["10.0.0.0/8"], with the addresses of the balancer

error: `proxy_protocol_from` is for listeners with proxy_protocol = "required"
 --> gateway.toml:7:1
  |
7 | proxy_protocol_from = ["10.0.0.0/8"]
  | ^^^^^^^^^^^^^^^^^^^
  |
  = help: add proxy_protocol = "required", or remove proxy_protocol_from

error: `proxy_protocol_from` is empty, and so nobody could connect
  --> gateway.toml:12:23
   |
12 | proxy_protocol_from = []
   |                       ^^
   |
   = help: name the balancer's addresses: whoever sends the header can be any client

error: `proxy_protocol` cannot be "optional"
  --> gateway.toml:21:18
   |
21 | proxy_protocol = "optional"
   |                  ^^^^^^^^^^
   |
   = help: use one of "off", "required"

error: "10.0.0.1/8" has bits beyond its prefix
  --> gateway.toml:22:24
   |
22 | proxy_protocol_from = ["10.0.0.1/8"]
   |                        ^^^^^^^^^^^^
   |
   = help: write "10.0.0.0/8" for the network, or "10.0.0.1" for the one address

error: `proxy_protocol` with protocol = "h2", of which one connection is for many clients
  --> gateway.toml:28:18
   |
28 | proxy_protocol = "v2"
   |                  ^^^^
   |
   = help: remove it; the servers learn of clients by X-Forwarded-For, request by request

error: `proxy_protocol` and the server echo:a, which speaks plain HTTP/1
  --> gateway.toml:33:1
   |
33 | proxy_protocol = "v1"
   | ^^^^^^^^^^^^^^
   |
   = help: remove `proxy_protocol`, or give the server an upstream of its own

error: `proxy_protocol` cannot be "v3"
  --> gateway.toml:38:18
   |
38 | proxy_protocol = "v3"
   |                  ^^^^
   |
   = help: did you mean "v1"?

gateway.toml: 8 errors"#;
    assert_eq!(report(text), expected);
}

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:8081\"\n";
const ROUTE: &str = "\n[[route]]\nname = \"all\"\nrespond = {}\n";

#[test]
fn who_is_believed_twice_or_too_easily_is_warned_of() {
    let client = "[client]\ntrusted_proxies = [\"10.1.0.0/16\"]\nallow = [\"10.0.0.0/9\", \"10.200.0.1\"]\n";
    let lines = "proxy_protocol = \"required\"\nproxy_protocol_from = [\"10.0.0.0/8\", \"::/1\"]\n";
    let expected = r#"
warning: `proxy_protocol_from` lists half the world, which can then be any client
 --> gateway.toml:7:1
  |
7 | proxy_protocol_from = ["10.0.0.0/8", "::/1"]
  | ^^^^^^^^^^^^^^^^^^^
  |
  = help: name the balancer's addresses only, or see to it that nobody else reaches this port

warning: `proxy_protocol_from` and `trusted_proxies` name the same peers: where their header names no client, what the client writes into X-Forwarded-For is believed
 --> gateway.toml:7:1
  |
7 | proxy_protocol_from = ["10.0.0.0/8", "::/1"]
  | ^^^^^^^^^^^^^^^^^^^
  |
  = help: take them out of trusted_proxies: the header says who the client is

warning: `allow` of [client] names nobody but `proxy_protocol_from`: no client of the balancer is allowed
 --> gateway.toml:7:1
  |
7 | proxy_protocol_from = ["10.0.0.0/8", "::/1"]
  | ^^^^^^^^^^^^^^^^^^^
  |
  = help: remove allow: nobody else can send the header

gateway.toml: 3 warnings"#;
    assert_eq!(report(&format!("{client}{LISTENER}{lines}{ROUTE}")), expected);
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
