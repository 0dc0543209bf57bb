//! Peers whose connections are closed.

use std::io::Read;

use crate::connections::connect_from;
use crate::support::{Gateway, get, get_with};
use crate::wire::{Wire, wait_outcome};

fn denying(deny: &str) -> String {
    format!(
        "[client]\ntrusted_proxies = [\"127.0.0.1\"]\ndeny = [{deny}]\n\
         [[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n"
    )
}

fn denied(gateway: &Gateway, count: f64) {
    gateway.wait_metric("sluicegate_client_connections_denied_total", &[], count);
}

#[test]
fn a_denied_peer_is_cut_off_before_a_byte_is_read() {
    let gateway = Gateway::start(&denying("\"127.0.0.2\", \"127.1.0.0/16\""));
    for source in ["127.0.0.2", "127.1.0.0", "127.1.255.255"] {
        // It has sent nothing, and is not waited for.
        let ended = connect_from(source, gateway.address()).read(&mut [0; 1]);
        assert!(ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset), "{ended:?}");
    }
    denied(&gateway, 3.0);
    for source in ["127.0.0.1", "127.0.0.3", "127.2.0.0"] {
        let mut wire = Wire::noting(connect_from(source, gateway.address()), std::sync::Arc::default());
        assert_eq!(wire.get("/").status(), 200, "{source}");
    }
    denied(&gateway, 3.0);
    gateway.wait_metric("sluicegate_client_connections_total", &[], 3.0);
    wait_outcome(&gateway, "forwarded", 3);
}

#[test]
fn a_client_behind_a_trusted_proxy_is_no_peer() {
    let gateway = Gateway::start(&denying("\"198.51.100.0/24\""));
    assert_eq!(get_with(gateway.address(), "/", &[("X-Forwarded-For", "198.51.100.1")]).status, 200);
    denied(&gateway, 0.0);
}

#[test]
fn a_kept_connection_is_closed_at_its_next_request() {
    let gateway = Gateway::start(&denying(""));
    let open = || Wire::noting(connect_from("127.0.0.2", gateway.address()), std::sync::Arc::default());
    let (mut idle, mut busy) = (open(), open());
    assert_eq!(idle.get("/").status(), 200);
    // The request in flight from here on is the other one's.
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    busy.send(crate::wire::get("/?delay=500ms"));
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
    assert_eq!(gateway.reload(&denying("\"127.0.0.2\"")).status, 200);
    assert_eq!(busy.answer().status(), 200, "what is in flight finishes");
    for wire in [&mut idle, &mut busy] {
        assert!(wire.send(crate::wire::get("/")));
        wire.assert_ended();
    }
    denied(&gateway, 2.0);
    assert!(open().is_cut());
    denied(&gateway, 3.0);
    assert_eq!(get(gateway.address(), "/").status, 200);
    wait_outcome(&gateway, "forwarded", 3);
    assert_eq!(gateway.reload(&denying("\"127.0.0.3\"")).status, 200);
    assert_eq!(open().get("/").status(), 200);
}

#[test]
fn what_is_pipelined_is_not_read_once_the_peer_is_denied() {
    let gateway = Gateway::start(&denying(""));
    let mut wire = Wire::noting(connect_from("127.0.0.2", gateway.address()), std::sync::Arc::default());
    wire.send([crate::wire::get("/?delay=500ms"), crate::wire::get("/second")].concat());
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
    assert_eq!(gateway.reload(&denying("\"127.0.0.2\"")).status, 200);
    assert_eq!(wire.answer().status(), 200);
    wire.assert_ended();
    wait_outcome(&gateway, "forwarded", 1);
    denied(&gateway, 1.0);
}
