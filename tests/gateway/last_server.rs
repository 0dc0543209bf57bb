//! Servers that an operator takes out of service, and puts back.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Backend, Gateway, eventually, get, run};

fn start(servers: &[SocketAddr], more: &str) -> Gateway {
    let servers: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    Gateway::start(&format!(
        "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nbalance = \"round-robin\"\nservers = [{}]\n{more}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n",
        servers.join(", ")
    ))
}

/// Runs `sluicegate upstreams app`: whether it went well, and all that it said.
fn set(gateway: &Gateway, server: SocketAddr, arguments: &[&str]) -> (bool, String) {
    let (admin, server) = (format!("http://{}", gateway.admin), server.to_string());
    let fixed = ["upstreams", "app", "--admin", &admin, "--server", &server];
    let (status, out, errors) = run(&[&fixed[..], arguments].concat(), gateway.directory.path());
    (status.success(), out + &errors)
}

fn state(gateway: &Gateway, server: SocketAddr) -> String {
    let shown = gateway.ask_admin("/api/v1/upstreams").json();
    let servers = shown["upstreams"][0]["servers"].as_array().unwrap().clone();
    let own = servers.into_iter().find(|own| own["server"] == server.to_string()).unwrap();
    own["state"].as_str().unwrap().to_owned()
}

#[test]
fn the_last_server_in_service_is_taken_out_by_force_alone() {
    let (one, other) = (Backend::fixed("one"), Backend::fixed("other"));
    let gateway = start(&[one.address, other.address], "");
    let asked = || get(gateway.address(), "/").status;
    assert!(set(&gateway, one.address, &["--state", "drain"]).0);
    for word in ["drain", "off"] {
        let (is_done, said) = set(&gateway, other.address, &["--state", word, "--weight", "5"]);
        assert!(!is_done && said.contains("the last server") && said.contains("--force"), "{said}");
        let target = format!("/api/v1/upstreams/app/servers/{}?state={word}", other.address);
        let answer = gateway.post_admin(&target);
        assert!(answer.status == 409 && answer.text().contains("force=true"), "{}", answer.text());
        assert_eq!(gateway.post_admin(&format!("{target}&force=false")).status, 409);
    }
    assert_eq!((state(&gateway, other.address), asked()), ("up".to_owned(), 200));
    let weight = gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["servers"][1]["weight"].clone();
    assert_eq!(weight, 1, "nothing of it is done");
    // One that is out already may be more so.
    assert!(set(&gateway, one.address, &["--state", "off"]).0);
    let (is_done, said) = set(&gateway, other.address, &["--state", "drain", "--force"]);
    assert!(is_done, "{said}");
    assert_eq!((state(&gateway, other.address), asked()), ("draining".to_owned(), 503));
    assert!(set(&gateway, other.address, &["--state", "up"]).0);
    let target = format!("/api/v1/upstreams/app/servers/{}?state=off&force=true", other.address);
    assert_eq!(gateway.post_admin(&target).status, 200);
    assert_eq!(asked(), 503);
}

/// A server that is ejected is none that the others could leave the requests to.
#[test]
fn the_last_that_is_not_ejected_stays_and_up_ends_the_ejection() {
    let backend = Backend::fixed("works");
    let is_ill = Arc::new(AtomicBool::new(true));
    let ill = Arc::clone(&is_ill);
    let other = Backend::start(move |_, stream| {
        let status = if ill.load(Ordering::SeqCst) { "503 Ill" } else { "201 Mended" };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).is_ok()
    });
    let gateway = start(&[backend.address, other.address], "eject = { failures = 1, for = \"5m\" }");
    assert!(eventually(|| {
        let _ = get(gateway.address(), "/");
        state(&gateway, other.address) == "ejected"
    }));
    let (is_done, said) = set(&gateway, backend.address, &["--state", "drain"]);
    assert!(!is_done && said.contains("the last server"), "{said}");
    is_ill.store(false, Ordering::SeqCst);
    let (is_done, said) = set(&gateway, other.address, &["--state", "up"]);
    assert!(is_done && !said.contains("ejected"), "{said}");
    assert_eq!(state(&gateway, other.address), "up");
    let statuses: Vec<u16> = (0..2).map(|_| get(gateway.address(), "/").status).collect();
    assert!(statuses.contains(&200) && statuses.contains(&201), "{statuses:?}");
    assert!(set(&gateway, backend.address, &["--state", "drain"]).0, "another one is in service now");
}
