//! Access: every endpoint, without a token, with one of each role, from pages of others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::json;

use super::*;
use crate::admin::endpoint::{Endpoint, Verb};
use crate::admin::endpoints;
use crate::admin::role::Role;
use crate::config::{AdminRole, AdminToken};
use crate::words::Word as _;

/// A token of each role is the role's word.
fn tokens() -> Vec<AdminToken> {
    let token = |role: &AdminRole| AdminToken {
        name: format!("{}-token", role.word()).into(),
        sha256: sha2::Sha256::digest(role.word()).into(),
        role: *role,
    };
    AdminRole::ALL.iter().map(token).collect()
}

use sha2::Digest as _;

fn guarded() -> Server {
    let section = Admin { tokens: tokens(), ..section("127.0.0.1:0") };
    Server::start(LIMITS, Fake { door: AdminAccess::new(&section, None), ..fake() })
}

/// A path of an endpoint, with names.
fn path(endpoint: &Endpoint) -> String {
    let parts = endpoint.path.split('/').map(|part| if part.starts_with('{') { "a" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

fn ask(server: &Server, endpoint: &Endpoint, headers: &str) -> Reply {
    // A body would be answered by its own rules, which come later. A stream would not end.
    server.ask(&format!("{} {}", endpoint.method.word(), path(endpoint)), headers)
}

fn is_stream(endpoint: &Endpoint) -> bool {
    matches!(endpoint.handler, crate::admin::endpoint::Handler::DeadLetterStream)
}

#[test]
fn every_endpoint_but_health_needs_a_token_and_its_role() {
    let server = guarded();
    for endpoint in endpoints::all() {
        let id = endpoint.id;
        let without = ask(&server, endpoint, NOTHING);
        if endpoint.role == Role::Open {
            assert_eq!(without.status, 200, "{id}");
            continue;
        }
        assert_eq!((without.status, without.header("www-authenticate")), (401, Some("Bearer")), "{id}");
        assert_eq!(without.header("content-type"), Some("application/problem+json"), "{id}");
        for token in AdminRole::ALL {
            if is_stream(endpoint) {
                continue;
            }
            let reply = ask(&server, endpoint, &format!("authorization: Bearer {}\r\n", token.word()));
            let is_allowed = Role::from_word(token.word()).unwrap() >= endpoint.role;
            assert_eq!(
                reply.status != 403 && reply.status != 401,
                is_allowed,
                "{id} {}: {}",
                token.word(),
                reply.status
            );
            if !is_allowed {
                assert_eq!(reply.json()["role"], json!(endpoint.role.word()), "{id}");
            }
        }
    }
}

#[test]
fn who_may_nothing_learns_no_path_no_method_and_no_name() {
    let server = guarded();
    for request in ["GET /nothing", "DELETE /metrics", "GET /api/v1/limits/none/keys", "GET /api/v1/limits/a/keys/%zz"]
    {
        assert_eq!(server.ask(request, NOTHING).status, 401, "{request}");
    }
    let read = "authorization: Bearer read\r\n";
    assert_eq!(server.ask("GET /nothing", read).status, 404);
    assert_eq!(server.ask("DELETE /metrics", read).status, 405);
    // The role comes before the name and the parameters.
    assert_eq!(server.ask("POST /api/v1/upstreams/a/servers/%zz", read).status, 403);
    let operate = "authorization: Bearer operate\r\n";
    assert_eq!(server.ask("POST /api/v1/upstreams/a/servers/%zz", operate).status, 404);
    assert_eq!(server.ask("POST /api/v1/upstreams/a/servers/b", operate).status, 400);
    // And before the type of the body.
    let typed = "content-type: text/plain\r\n";
    assert_eq!(server.ask("POST /api/v1/explain", typed).status, 401);
    assert_eq!(server.ask("POST /api/v1/explain", &format!("{typed}{read}")).status, 415);
}

#[test]
fn a_foreign_host_or_page_gets_nothing_with_whatever_token() {
    let server = guarded();
    let token = "authorization: Bearer rules\r\n";
    for endpoint in endpoints::all() {
        let reply = ask(&server, endpoint, &format!("host: evil.example\r\n{token}"));
        assert_eq!(reply.status, 403, "{}", endpoint.id);
        if endpoint.method != Verb::Get || endpoint.tells_of_clients {
            let reply = ask(&server, endpoint, &format!("origin: http://evil.example\r\n{token}"));
            assert_eq!(reply.status, 403, "{}", endpoint.id);
        }
    }
}

#[test]
fn without_tokens_loopback_operates_and_edits_nothing() {
    let server = Server::start(LIMITS, fake());
    for endpoint in endpoints::all().filter(|own| !is_stream(own)) {
        let reply = ask(&server, endpoint, NOTHING);
        assert_eq!(reply.status == 403, endpoint.role == Role::Rules, "{}: {}", endpoint.id, reply.status);
        assert_ne!(reply.status, 401, "{}", endpoint.id);
    }
    // Whatever a client says of itself.
    assert_eq!(server.ask("GET /api/config", "authorization: Bearer x\r\n").status, 200);
}

#[test]
fn elsewhere_nobody_may_anything_without_a_token() {
    let door = AdminAccess::new(&section("192.0.2.1:9900"), None);
    let server = Server::start(LIMITS, Fake { door, ..fake() });
    assert_eq!(server.ask("GET /api/config", NOTHING).status, 401);
    assert_eq!(server.ask("GET /healthz", NOTHING).status, 200);
}

#[test]
fn too_many_wrong_tokens_of_an_address_are_not_looked_at_any_more() {
    let registry = Registry::new();
    let section = Admin { tokens: tokens(), ..section("127.0.0.1:0") };
    let commands = Fake { door: AdminAccess::new(&section, None), ..fake() };
    let server = Server::start_with(LIMITS, commands, registry);
    let wrong = "authorization: Bearer guess\r\n";
    let refused = (0..60).map(|_| server.ask("GET /api/config", wrong)).find(|reply| reply.status != 401).unwrap();
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // Whoever says nothing of itself guesses nothing, and is told so; health is open.
    assert_eq!(server.ask("GET /api/config", NOTHING).status, 401);
    assert_eq!(server.ask("GET /healthz", wrong).status, 200);
}

#[test]
fn denials_are_counted_by_their_reasons() {
    let server = guarded();
    server.ask("GET /api/config", NOTHING);
    server.ask("GET /api/config", "authorization: Bearer guess\r\n");
    server.ask("POST /reload", "authorization: Bearer read\r\n");
    let page = server.ask("GET /metrics", "authorization: Bearer read\r\n").body;
    for (reason, count) in [("no-token", 1), ("wrong-token", 1), ("role", 1), ("too-many", 0)] {
        let line = format!("\nsluicegate_admin_denied_total{{reason=\"{reason}\"}} {count}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
}

#[test]
fn a_unix_socket_may_do_everything() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let (socket, file) = Socket::bind_unix(&path, false).unwrap();
    file.publish().unwrap();
    let address = ListenAddress::Unix(path.clone());
    let section = Admin { address, ..section("127.0.0.1:0") };
    let commands: Arc<dyn Commands> = Arc::new(Fake { door: AdminAccess::new(&section, None), ..fake() });
    let (shutdown, told) = watch::channel(false);
    let thread = thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(tokio::runtime::LocalOptions::default()).unwrap();
        runtime.block_on(serve_within(LIMITS, socket, Registry::new(), commands, Clock::system(), told));
    });
    for endpoint in endpoints::all().filter(|own| !is_stream(own)) {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("{} {}", endpoint.method.word(), super::access::path(endpoint));
        write!(stream, "{request} HTTP/1.1\r\nhost: anything\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(!text.starts_with("HTTP/1.1 401") && !text.starts_with("HTTP/1.1 403"), "{}: {text}", endpoint.id);
    }
    drop(shutdown);
    thread.join().unwrap();
}

/// A client of admin is not to be locked out by the kernel.
#[test]
fn the_list_of_blocks_knows_who_uses_admin() {
    let reply = guarded().ask("GET /api/v1/blocks?max=5&cursor=7", "authorization: Bearer read\r\n");
    assert_eq!(
        serde_json::from_str::<Value>(&reply.body).unwrap(),
        json!({ "blocks": [], "next": null, "peers": ["127.0.0.1"], "from": 7, "max": 5 })
    );
}
