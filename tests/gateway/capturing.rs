//! `capture_body`: dead letters with the body of what was refused or failed.

use std::io::Write;

use crate::h2::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, Raw, block, frame, request};
use crate::support::{Client, Gateway, eventually, get, unused_address};

/// A route `/all` that refuses everybody, one `/dead` whose server is not there, and one that answers.
fn capturing() -> Gateway {
    let nobody = unused_address();
    let gateway = Gateway::start(&format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[upstream]]\nname = \"dead\"\nservers = [\"{nobody}\"]\n\
         [[limit]]\nname = \"none\"\nkey = \"path\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"all\"\npath = \"/all\"\nupstream = \"app\"\nlimits = [\"none\"]\ncapture_body = \"1KiB\"\n\
         [[route]]\nname = \"dead\"\npath = \"/dead\"\nupstream = \"dead\"\ncapture_body = \"1KiB\"\n\
         [[route]]\nname = \"other\"\nupstream = \"app\"\n\
         [dead_letter]\ndirectory = \"dead-letters\"\n"
    ));
    assert_eq!(get(gateway.address(), "/all").status, 200);
    gateway
}

/// The bodies in the log, once there are so many records.
fn bodies(gateway: &Gateway, count: usize) -> Vec<serde_json::Value> {
    assert!(eventually(|| gateway.dead_letters().len() == count), "{:?}", gateway.dead_letters());
    gateway.dead_letters().into_iter().map(|record| record["body"].clone()).collect()
}

#[test]
fn the_body_of_what_is_refused_or_fails_is_in_its_record() {
    let gateway = capturing();
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.request("POST", "/all", &[], b"{\"order\":7}").status, 429);
    assert_eq!(client.request("POST", "/dead", &[], b"\xff\x00").status, 502);
    assert_eq!(client.get("/all").status, 429);
    let bodies = bodies(&gateway, 3);
    assert_eq!(bodies[0]["data"], "{\"order\":7}");
    assert_eq!((&bodies[0]["encoding"], &bodies[0]["len"]), (&"utf-8".into(), &11.into()));
    assert_eq!(bodies[0]["truncated"], false);
    assert_eq!(bodies[0]["sha256"].as_str().unwrap().len(), 64);
    assert_eq!((&bodies[1]["encoding"], &bodies[1]["data"]), (&"base64".into(), &"/wA=".into()));
    assert!(bodies[2].is_null(), "it has none");
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_body_that_comes_after_the_answer_is_kept_up_to_the_bound() {
    let gateway = capturing();
    let mut client = Client::connect(gateway.address());
    let head = "POST /all HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\nab";
    client.stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(client.read_answer(false).unwrap().status, 429);
    assert!(gateway.dead_letters().is_empty(), "it waits for the body");
    client.stream.write_all(&[b'x'; 2998]).unwrap();
    let body = bodies(&gateway, 1).remove(0);
    assert_eq!((body["data"].as_str().unwrap().len(), &body["truncated"]), (1024, &true.into()));
    assert!(body["len"].as_u64().unwrap() > 1024);
    assert_eq!(client.get("/").status, 200, "the connection goes on");
    // In chunks.
    let head = "POST /all HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    client.stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(client.read_answer(false).unwrap().status, 429);
    client.stream.write_all(b"4;x=y\r\ndefg\r\n0\r\n\r\n").unwrap();
    let body = bodies(&gateway, 2).remove(1);
    assert_eq!((&body["data"], &body["truncated"], &body["len"]), (&"abcdefg".into(), &false.into(), &7.into()));
}

#[test]
fn a_client_that_sends_no_more_of_its_body_leaves_a_record_all_the_same() {
    let gateway = capturing();
    for expects in ["", "Expect: 100-continue\r\n"] {
        let mut client = Client::connect(gateway.address());
        let head = format!("POST /all HTTP/1.1\r\nHost: a\r\n{expects}Content-Length: 9\r\n\r\n");
        client.stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(client.read_answer(false).unwrap().status, 429);
        if expects.is_empty() {
            client.stream.write_all(b"abc").unwrap();
        }
        drop(client);
    }
    let mut bodies = bodies(&gateway, 2);
    bodies.sort_by_key(|body| body["len"].as_u64());
    assert_eq!((&bodies[0]["len"], &bodies[0]["truncated"]), (&0.into(), &true.into()));
    assert_eq!((&bodies[1]["data"], &bodies[1]["truncated"]), (&"abc".into(), &true.into()));
}

#[test]
fn a_body_of_http_2_is_kept() {
    let gateway = capturing();
    // In one write: so it is here with its head.
    let mut client = Raw::open(gateway.address());
    let id = client.stream_id();
    let head = frame(HEADERS, END_HEADERS, id, &block(&request("POST", "/all")));
    assert!(client.send_bytes(&[head, frame(DATA, END_STREAM, id, b"over h2")].concat()));
    client.ending(id);
    assert_eq!(client.status(id), 429);
    let body = bodies(&gateway, 1).remove(0);
    assert_eq!((&body["data"], &body["truncated"]), (&"over h2".into(), &false.into()));
}

#[test]
fn a_password_in_a_body_is_a_mark() {
    let gateway = capturing();
    let mut client = Client::connect(gateway.address());
    client.request("POST", "/all", &[], b"user=me&password=pl4nted");
    let body = bodies(&gateway, 1).remove(0);
    assert!(body["data"].as_str().unwrap().starts_with("user=me&password=[redacted:"), "{body}");
    assert!(body["sha256"].is_null());
}
