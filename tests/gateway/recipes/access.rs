//! Recipes about who may do how much.

use std::fs;
use std::io::{ErrorKind, Read, Write};

use crate::connections::connect_from;
use crate::support::{Backend, Gateway, eventually};
use crate::tls::peer::{Asking, Authority, Made};

use super::caller::{BOTH, Caller, INSIDE, OUTSIDE, Over, retry_after, violated};
use super::page::Recipe;

/// The values of a field that reached a server, in order.
fn seen(backend: &Backend, name: &str) -> Vec<Option<String>> {
    let seen = backend.seen.lock().unwrap();
    seen.iter().map(|message| message.header(name).map(str::to_owned)).collect()
}

#[test]
fn behind_a_cloud_load_balancer() {
    let recipe = Recipe::of("Behind a cloud load balancer");
    recipe.says("Each client gets 300 requests a minute, then 429 with `Retry-After`");
    for over in BOTH {
        let servers = [Backend::fixed("app"), Backend::fixed("app")];
        let gateway = recipe.start(&[("127.0.0.1:9001", servers[0].address), ("127.0.0.1:9002", servers[1].address)]);
        let mut balancer = Caller::open(over, INSIDE, gateway.address());
        let forwarded = |addresses| [("x-forwarded-for", addresses)];
        assert_eq!(balancer.admitted(310, 429, "/", &forwarded("198.51.100.7")), 300, "{over:?}");
        // What the client has written itself stands before what the balancer adds.
        let refused = balancer.get("/", &forwarded("1.2.3.4, 198.51.100.7"));
        assert_eq!((refused.status, violated(&refused)), (429, vec!["per-client".to_owned()]));
        assert!((1..=60).contains(&retry_after(&refused)), "{refused:?}");
        assert_eq!(balancer.get("/", &forwarded("198.51.100.7, 198.51.100.8")).status, 200);
        let check = balancer.get("/healthz", &forwarded("198.51.100.7"));
        assert_eq!((check.status, check.text().as_str(), check.header("ratelimit")), (200, "ok\n", None));
        assert_eq!(servers.iter().map(Backend::requests).sum::<usize>(), 301);
        // Another way in there is not.
        let ended = connect_from(OUTSIDE, gateway.address()).read(&mut [0; 1]);
        assert!(ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{ended:?}");
        gateway.wait_metric("sluicegate_client_connections_denied_total", &[], 1.0);
    }
    let server = recipe.model().server;
    assert_eq!(
        (server.keep_alive_timeout.to_string(), server.shutdown_grace.to_string()),
        ("620s".into(), "1m".into())
    );
}

#[test]
fn behind_a_cloud_load_balancer_that_passes_bytes_on() {
    let recipe = Recipe::of("Behind a cloud load balancer").variant("with the PROXY protocol");
    for over in BOTH {
        let servers = [Backend::fixed("app"), Backend::fixed("app")];
        let gateway = recipe.start(&[("127.0.0.1:9001", servers[0].address), ("127.0.0.1:9002", servers[1].address)]);
        let client = |address: &str| {
            let header = format!("PROXY TCP4 {address} 192.0.2.1 5000 80\r\n");
            Caller::open_behind(over, header.as_bytes(), gateway.address())
        };
        assert_eq!(client("198.51.100.7").admitted(301, 429, "/", &[]), 300, "{over:?}");
        // What the client writes itself says nothing.
        let forwarded = [("x-forwarded-for", "198.51.100.9")];
        assert_eq!(client("198.51.100.7").get("/", &forwarded).status, 429);
        assert_eq!(client("198.51.100.8").get("/", &forwarded).status, 200);
        let mut check = Caller::open_behind(over, b"PROXY UNKNOWN\r\n", gateway.address());
        assert_eq!(check.get("/healthz", &[]).text(), "ok\n");
        for from in [INSIDE, OUTSIDE] {
            let mut stream = connect_from(from, gateway.address());
            if from == INSIDE {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: test.example\r\n\r\n").unwrap();
            }
            let ended = stream.read(&mut [0; 1]);
            assert!(ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{ended:?}");
        }
        gateway.wait_metric("sluicegate_proxy_protocol_headers_total", &["result=\"malformed\""], 1.0);
        gateway.wait_metric("sluicegate_proxy_protocol_headers_total", &["result=\"unlisted\""], 1.0);
    }
}

#[test]
fn in_front_of_a_wordpress_login() {
    let recipe = Recipe::of("In front of a WordPress login");
    recipe.says("5 tries a minute, of the login form and of `xmlrpc.php` together");
    recipe.says("who is refused 10 times within 10 minutes is refused for an hour");
    for over in BOTH {
        let server = Backend::fixed("wordpress");
        let gateway = recipe.start(&[("127.0.0.1:9001", server.address)]);
        let mut guesser = Caller::open(over, OUTSIDE, gateway.address());
        let html = [("accept", "text/html")];
        // The same thing in other words is the same thing; to look at the form is none.
        let tries = ["/wp-login.php", "/xmlrpc.php", "//wp-login.php", "/a/../wp-login.php", "/wp-login.php/x"];
        for path in tries {
            assert_eq!(guesser.get("/wp-login.php", &[]).status, 200);
            assert_eq!(guesser.ask("POST", path, &[], b"log=admin").status, 200, "{path} {over:?}");
        }
        for refusal in 1..=11 {
            let answer = guesser.ask("POST", tries[refusal % 5], &html, b"log=admin");
            let wait = retry_after(&answer);
            let expected = if refusal < 10 { 1..=60 } else { 3590..=3600 };
            assert!(answer.status == 429 && expected.contains(&wait), "{refusal}: {answer:?}");
            let told =
                format!("<p>From your address {OUTSIDE} there were too many. Come back in {wait} seconds.</p>\n");
            assert!(answer.text().starts_with("<!doctype html>") && answer.text().ends_with(&told), "{answer:?}");
        }
        let json = guesser.ask("POST", "/wp-login.php", &[("accept", "application/json")], b"log=admin");
        assert_eq!((json.status, violated(&json)), (429, vec!["login".to_owned()]));
        let page = guesser.get("/wp-login.php", &html);
        assert_eq!(
            (page.status, page.header("ratelimit-policy")),
            (200, Some("\"site\";q=600;w=60")),
            "the rest goes on"
        );
        let mut other = Caller::open(over, INSIDE, gateway.address());
        assert_eq!(other.ask("POST", "/wp-login.php", &[], &vec![b'x'; 65_536]).status, 200);
        assert_eq!(server.requests(), 5 + 5 + 1 + 1);
        assert_eq!(other.ask("POST", "/wp-login.php", &[], &vec![b'x'; 65_537]).status, 413);
    }
}

#[test]
fn an_api_with_plans() {
    let recipe = Recipe::of("An API with plans");
    recipe.says("Anonymous callers have 60 calls a minute, and 120 for all the keys that one address makes up");
    recipe.says(
        "`pro` has 600 a minute from anywhere, `partner` 100 a second and a million a day, your own tools no limit",
    );
    for over in BOTH {
        let server = Backend::fixed("api");
        let gateway = recipe.start(&[("127.0.0.1:9001", server.address)]);
        let mut here = Caller::open(over, INSIDE, gateway.address());
        assert_eq!(here.admitted(65, 429, "/v1/things", &[]), 60, "{over:?}");
        for number in 0..60 {
            assert_eq!(here.get("/v1/things", &[("x-api-key", &format!("made-up-{number}"))]).status, 200, "{number}");
        }
        let refused = here.get("/v1/things", &[("x-api-key", "made-up-60")]);
        assert_eq!((refused.status, violated(&refused)), (429, vec!["per-address".to_owned()]), "{over:?}");
        // A key of a plan counts by itself, from wherever it is.
        let mut there = Caller::open(over, OUTSIDE, gateway.address());
        let pro = [("x-api-key", "k-3f9a27")];
        assert_eq!(here.admitted(300, 429, "/v1/things", &pro) + there.admitted(310, 429, "/v1/things", &pro), 600);
        let policy = |caller: &mut Caller, key| {
            let answer = caller.get("/v1/things", &[("x-api-key", key), ("x-plan", "own")]);
            assert_eq!(answer.status, 200, "{key}");
            answer.header("ratelimit-policy").unwrap_or_default().to_owned()
        };
        let partner = "\"per-key\";q=100;w=1, \"per-key-2\";q=1000000;w=86400";
        assert_eq!(policy(&mut here, "k-88c1d0"), partner);
        assert_eq!(policy(&mut here, "k-000001"), "", "no limit");
        let plans: Vec<Option<String>> = seen(&server, "x-plan");
        let named = |plan: &str| plans.iter().filter(|seen| seen.as_deref() == Some(plan)).count();
        assert_eq!(["anonymous", "pro", "partner", "own"].map(named), [120, 600, 1, 1], "whatever the client says");
        // A new file holds at once, and what was used stays so.
        let (next, file) = ("plans.new", "plans.toml");
        fs::write(gateway.directory.path().join(next), format!("{}k-new = \"pro\"\n", recipe.files[file])).unwrap();
        fs::rename(gateway.directory.path().join(next), gateway.directory.path().join(file)).unwrap();
        assert!(eventually(|| super::page::generation(&gateway) == 2), "{}", gateway.log());
        assert_eq!(policy(&mut here, "k-new"), "\"per-key\";q=600;w=60");
        assert_eq!(there.get("/v1/things", &pro).status, 429);
        assert_eq!(here.get("/v2", &[]).status, 404, "what has no route is not there");
    }
}

/// The gateway of "Inside and outside", and a certificate of its staff.
fn staffed(recipe: &Recipe, server: &Backend) -> (Gateway, Authority, Made) {
    let (public, staff) = (Authority::new("public"), Authority::new("our staff"));
    let files = |directory: &std::path::Path| {
        public.server(&["localhost"]).write(directory, "server");
        fs::write(directory.join("staff-ca.pem"), &staff.pem).unwrap();
    };
    let gateway = recipe.start_with(&[("127.0.0.1:9001", server.address)], files, |configuration| configuration);
    let anna = staff.client("anna");
    (gateway, public, anna)
}

#[test]
fn inside_and_outside() {
    let recipe = Recipe::of("Inside and outside");
    recipe.says("Outside each address has 120 requests a minute, inside 6000");
    recipe.says("a certificate of your own authority, 60 requests a minute for each; everybody else gets 403, and so does who asks for more");
    for over in BOTH {
        let server = Backend::fixed("app");
        let (gateway, public, anna) = staffed(&recipe, &server);
        let alpn = if over == Over::Http1 { ["http/1.1"] } else { ["h2"] };
        let open = |from, shows| {
            let asking = Asking { shows, ..Asking::of(&public).alpn(&alpn) };
            Caller::open_tls(over, from, gateway.address(), asking.build())
        };
        let (mut inside, mut outside) = (open(INSIDE, None), open(OUTSIDE, None));
        assert_eq!(outside.admitted(125, 429, "/", &[]), 120, "{over:?}");
        assert_eq!(inside.admitted(125, 429, "/", &[]), 125, "{over:?}");
        assert_eq!(inside.get("/", &[]).header("ratelimit-policy"), Some("\"everybody\";q=6000;w=60"));
        let closed = outside.get("/admin/users", &[]);
        assert_eq!((closed.status, violated(&closed)), (403, vec!["staff-only".to_owned()]));
        assert_eq!(outside.get("/x/..//admin", &[]).status, 403, "in any spelling");
        assert_eq!(inside.admitted(70, 403, "/admin/users", &[]), 70);
        let mut anna = open(OUTSIDE, Some(&anna));
        assert_eq!(anna.admitted(70, 403, "/admin/users", &[]), 60);
        assert_eq!(server.requests(), 120 + 125 + 1 + 70 + 60);
    }
}

#[test]
fn tenants() {
    let recipe = Recipe::of("Tenants");
    recipe.says("A tenant has 600 requests a minute, a large one 6000; in it each user has 60");
    recipe
        .says("meet 120 a minute for their address before they can use up a tenant. Names that are not listed get 404");
    for over in BOTH {
        let server = Backend::fixed("app");
        let gateway = recipe.start(&[("127.0.0.1:9001", server.address)]);
        let at =
            |host: &'static str, user: &str| [("host", host.to_owned()), ("authorization", format!("Bearer {user}"))];
        let ask = |caller: &mut Caller, fields: &[(&str, String)]| {
            caller.get("/", &fields.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
        };
        // Ten users of one tenant, two at an address; each asks a little too often.
        for number in 0..10 {
            let mut caller = Caller::open(over, &format!("127.0.1.{}", number / 2), gateway.address());
            let user = at("acme.example.com", &format!("user-{number}"));
            for request in 0..63 {
                let answer = ask(&mut caller, &user);
                assert_eq!(answer.status, if request < 60 { 200 } else { 429 }, "{number} {request} {over:?}");
            }
        }
        let mut other = Caller::open(over, "127.0.1.9", gateway.address());
        let refused = ask(&mut other, &at("ACME.example.com", "user-11"));
        assert_eq!((refused.status, violated(&refused)), (429, vec!["per-tenant".to_owned()]), "{over:?}");
        // Others are not concerned; the same user elsewhere is another one.
        let policy = |answer: &crate::support::Answer| {
            assert_eq!(answer.status, 200);
            answer.header("ratelimit-policy").unwrap().split(", ").next().unwrap().to_owned()
        };
        assert_eq!(policy(&ask(&mut other, &at("initech.example.com", "user-0"))), "\"per-tenant\";q=600;w=60");
        let mut maker = Caller::open(over, OUTSIDE, gateway.address());
        assert_eq!(policy(&ask(&mut maker, &at("globex.example.com", "user-0"))), "\"per-tenant\";q=6000;w=60");
        let made_up = (1..130).map(|number| ask(&mut maker, &at("globex.example.com", &format!("made-up-{number}"))));
        let (let_in, refused): (Vec<_>, Vec<_>) = made_up.partition(|answer| answer.status == 200);
        assert_eq!((let_in.len(), violated(&refused[0])), (119, vec!["per-address".to_owned()]));
        assert_eq!(other.get("/", &[("host", "nobody.example.com")]).status, 404);
        let tenants = seen(&server, "x-tenant");
        assert_eq!(tenants.len(), 600 + 1 + 120);
        assert!(tenants[..600].iter().all(|tenant| tenant.as_deref() == Some("acme.example.com")));
    }
}
