//! Large bodies both ways in every mix: every byte in its place, and a gateway that does not grow, whoever is slow.

use std::future::poll_fn;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::Response;

use super::peers::{Ask, Http, Mix, Origin, Told, in_every_mix, open_h2, request_of, runtime, serve_tcp};
use crate::large_bodies::{Count, growth_during, pattern, write_body};
use crate::support::{Backend, Gateway};
use crate::wire::{Wire, get, ok};

in_every_mix! {
    a_large_body_goes_up
    a_large_body_comes_down
    a_slow_reader_of_a_large_body_costs_no_memory
    a_slow_server_of_a_large_body_costs_no_memory
    a_body_without_a_length_goes_up_where_it_may_be_sent_again
}

const BLOCK: u64 = 256 << 10;
const ALLOWED_GROWTH: u64 = 8 << 20;
/// How long whoever is slow does nothing.
const PAUSE: Duration = Duration::from_millis(500);

fn size() -> u64 {
    if std::env::var_os("SLUICEGATE_LONG").is_some() { 1 << 30 } else { 256 << 20 }
}

/// A server that counts uploads and answers `/SIZE` with that much; it waits a while before it reads what goes to
/// `/slow`.
fn moving(http: Http) -> (SocketAddr, Option<Backend>) {
    if http == Http::One {
        let backend = Backend::scripted(|wire, _| {
            while let Ok(request) = wire.head() {
                let size: Option<u64> = request.target()[1..].parse().ok();
                let sent = if let Some(size) = size {
                    wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"))
                        && write_body(wire.stream(), size, false)
                } else {
                    if request.target() == "/slow" {
                        std::thread::sleep(PAUSE);
                    }
                    let mut count = Count::default();
                    let all = wire.pour_body(&request, |bytes| count.add(bytes)).is_ok();
                    all && wire.send(ok(&count.text()))
                };
                if !sent {
                    return;
                }
            }
        });
        return (backend.address, Some(backend));
    }
    let (address, _) = serve_tcp(|stream, _| async move {
        let Ok(mut accepting) = h2::server::handshake(stream).await else { return };
        while let Some(Ok((request, mut respond))) = accepting.accept().await {
            tokio::spawn(async move {
                let (head, mut recv) = request.into_parts();
                if let Ok(size) = head.uri.path()[1..].parse::<u64>() {
                    let response = Response::builder().header("content-length", size).body(()).unwrap();
                    let mut send = respond.send_response(response, false).unwrap();
                    drop(pour_pattern(&mut send, size).await);
                    return;
                }
                if head.uri.path() == "/slow" {
                    tokio::time::sleep(PAUSE).await;
                }
                let Ok(count) = count_body(&mut recv).await else { return };
                let mut send = respond.send_response(Response::new(()), false).unwrap();
                send.send_data(count.text().into(), true).unwrap();
            });
        }
    });
    (address, None)
}

/// Writes a body of the pattern as the window opens.
async fn pour_pattern(send: &mut SendStream<Bytes>, size: u64) -> Result<(), h2::Error> {
    let mut at = 0;
    while at < size {
        send.reserve_capacity(BLOCK.min(size - at) as usize);
        let Some(room) = poll_fn(|cx| send.poll_capacity(cx)).await else { break };
        let piece = (room? as u64).min(BLOCK).min(size - at);
        send.send_data(Bytes::copy_from_slice(pattern(at, piece as usize)), at + piece == size)?;
        at += piece;
    }
    Ok(())
}

async fn count_body(recv: &mut RecvStream) -> Result<Count, h2::Error> {
    let mut count = Count::default();
    while let Some(data) = recv.data().await {
        let data = data?;
        count.add(&data);
        recv.flow_control().release_capacity(data.len())?;
    }
    Ok(count)
}

/// The server's count of an upload.
fn upload(mix: Mix, gateway: &Gateway, target: &str, size: u64) -> String {
    match mix.client {
        Http::One => {
            let mut wire = Wire::open(gateway.address());
            let head = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n");
            wire.stream().write_all(head.as_bytes()).unwrap();
            assert!(write_body(wire.stream(), size, false), "the upload broke off");
            wire.answer().text()
        }
        Http::Two => runtime().block_on(async {
            let mut request = open_h2(gateway.address()).await.ready().await.unwrap();
            let (response, mut send) = request.send_request(request_of(&Ask::new("POST", target)), false).unwrap();
            pour_pattern(&mut send, size).await.unwrap();
            let mut recv = response.await.unwrap().into_body();
            let mut text = Vec::new();
            while let Some(data) = recv.data().await {
                text.extend_from_slice(&data.unwrap());
            }
            String::from_utf8(text).unwrap()
        }),
    }
}

/// The client's count of a download that it began to read after `pause`.
fn download(mix: Mix, gateway: &Gateway, size: u64, pause: Duration) -> String {
    let mut count = Count::default();
    match mix.client {
        Http::One => {
            let mut wire = Wire::with(gateway.address(), get(&format!("/{size}")));
            std::thread::sleep(pause);
            let answer = wire.response_into("GET", |bytes| count.add(bytes)).unwrap();
            assert_eq!(answer.status(), 200);
            count.text()
        }
        Http::Two => runtime().block_on(async {
            let mut request = open_h2(gateway.address()).await.ready().await.unwrap();
            let (response, _) = request.send_request(request_of(&Ask::get(&format!("/{size}"))), true).unwrap();
            let mut recv = response.await.unwrap().into_body();
            tokio::time::sleep(pause).await;
            count_body(&mut recv).await.unwrap().text()
        }),
    }
}

fn measured(mix: Mix, work: impl FnOnce(&Gateway)) {
    let (address, _backend) = moving(mix.server);
    let gateway = mix.gateway(address);
    assert_eq!(upload(mix, &gateway, "/warm", BLOCK), format!("{BLOCK} same"));
    let grown = growth_during(&gateway, || work(&gateway));
    assert!(grown < ALLOWED_GROWTH, "grew by {grown} bytes");
}

fn a_large_body_goes_up(mix: Mix) {
    measured(mix, |gateway| assert_eq!(upload(mix, gateway, "/up", size()), format!("{} same", size())));
}

fn a_large_body_comes_down(mix: Mix) {
    measured(mix, |gateway| assert_eq!(download(mix, gateway, size(), Duration::ZERO), format!("{} same", size())));
}

fn a_slow_reader_of_a_large_body_costs_no_memory(mix: Mix) {
    let size = 64 << 20;
    measured(mix, |gateway| assert_eq!(download(mix, gateway, size, PAUSE), format!("{size} same")));
}

fn a_slow_server_of_a_large_body_costs_no_memory(mix: Mix) {
    let size = 64 << 20;
    measured(mix, |gateway| assert_eq!(upload(mix, gateway, "/slow", size), format!("{size} same")));
}

/// It is kept for another try, beside its head, so that the buffer fills up to its last bytes.
fn a_body_without_a_length_goes_up_where_it_may_be_sent_again(mix: Mix) {
    let origin = Origin::start(mix.server, |request| Told::ok(request.body.clone()));
    let rules = mix.rules(origin.address, "", "");
    let gateway = Gateway::start(&rules.replacen("[[route]]", "retry = { on = [\"connect\"] }\n[[route]]", 1));
    let mut asker = mix.asker(&gateway);
    for size in (16_000..16_400).step_by(7).chain([40_000, 64_000, 70_000, 200_000]) {
        let body = vec![b'x'; size];
        let ask = Ask { has_no_length: true, method: "PUT", ..Ask::post("/", body.clone()) };
        assert!(asker.ask(&ask).body == body, "{size}");
    }
}
