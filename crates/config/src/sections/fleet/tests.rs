//! The values that `[fleet]` takes and refuses. No message may show a secret.

use std::fs;
use std::path::Path;

use super::*;
use crate::certificates::Certificates;
use crate::{Model, diff, load, parse};
use sluicegate_time::Wall;

const REST: &str = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"r\"\nrespond = {}\n[fleet]\n";
const LEAST: &str = "store = \"redis://10.0.0.5:6379/0\"\nsecret_file = \"fleet.key\"\n";
const DIGITS: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F";

fn read(keys: &str) -> Result<Fleet, String> {
    let parsed = parse(&format!("{REST}{keys}"), Path::new("/g.toml"), Certificates::Unread);
    parsed.map(|parsed| parsed.model.fleet.unwrap()).map_err(|errors| errors.to_string())
}

/// With `files` beside the configuration.
fn load_with(keys: &str, files: &[(&str, &[u8])]) -> Result<Model, String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    let path = directory.path().join("gateway.toml");
    fs::write(&path, format!("{REST}{keys}")).unwrap();
    let now = Wall::from_nanos(0);
    load(&path, Certificates::Strict(now)).map(|loaded| loaded.model).map_err(|error| error.to_string())
}

#[test]
fn two_keys_are_required_and_the_others_have_defaults() {
    let fleet = read(LEAST).unwrap();
    assert_eq!(
        (fleet.store.as_deref().unwrap(), &*fleet.prefix, fleet.username.clone()),
        ("redis://10.0.0.5:6379/0", "sluicegate", None)
    );
    assert_eq!((fleet.deadline, fleet.on_failure), (Span::from_millis(10), OnFailure::Fair));
    assert_eq!(fleet.node, host_name());
    assert_eq!((fleet.secrets(), fleet.password(None)), (&[][..], None));
    let errors = read("").unwrap_err();
    assert!(errors.contains("[fleet] has no `store`") && errors.contains("[fleet] has no `secret_file`"), "{errors}");
    let all = "username = \"gw\"\npassword_file = \"p\"\nnode = \"gw-1\"\nprefix = \"a:b\"\ndeadline = \"1s\"\non_failure = \"open\"\n";
    let fleet = read(&format!("{LEAST}{all}")).unwrap();
    assert_eq!((fleet.username.as_deref(), &*fleet.node, &*fleet.prefix), (Some("gw"), "gw-1", "a:b"));
    assert_eq!((fleet.deadline, fleet.on_failure), (Span::from_secs(1), OnFailure::Open));
}

#[test]
fn a_store_is_a_server_or_what_sentinels_or_nodes_of_a_cluster_name() {
    for good in [
        "redis://h",
        "redis://[::1]:6379/15",
        "redis://[::1]",
        "redis://10.0.0.5/3",
        "unix:///run/redis.sock",
        "rediss://redis.internal:6380/1",
        "redis-sentinel://h1:26379,h2/mymaster",
        "rediss-sentinel://[::1]:1/a.b-c_d/3",
        "redis-cluster://h1,h2:7001,[::1]:7002",
        "rediss-cluster://h1",
    ] {
        let read = read(&format!("store = \"{good}\"\nsecret_file = \"k\"\n"));
        assert_eq!(read.map(|fleet| fleet.store.unwrap().to_string()).as_deref(), Ok(good));
    }
    for (bad, message) in [
        ("10.0.0.5:6379", "invalid store address \"10.0.0.5:6379\""),
        ("redis://", "invalid store address \"redis://\""),
        ("redis://h:0", "invalid store address"),
        ("redis://h:x", "invalid store address"),
        ("rediss://h:x", "invalid store address"),
        ("rediss://", "invalid store address \"rediss://\""),
        ("redis://h:65536", "invalid store address"),
        ("redis://h/x", "invalid store address"),
        ("redis://h/0/1", "invalid store address"),
        ("redis://[::x]", "invalid store address"),
        ("redis://h h", "invalid store address"),
        ("unix://run/redis.sock", "invalid store address"),
        ("http://h", "invalid store address"),
        ("redis-sentinel://h1:26379,h2:26379", "invalid store address"),
        ("redis-sentinel://h1:26379/", "invalid store address"),
        ("redis-sentinel://h1:26379/my master", "invalid store address"),
        ("redis-sentinel://h1:26379/mymaster/x", "invalid store address"),
        ("redis-sentinel://h1:26379,/mymaster", "invalid store address"),
        ("redis-cluster://", "invalid store address"),
        ("redis-cluster://h1,,h2", "invalid store address"),
        ("redis-cluster://h1/0", "invalid store address"),
        ("redis-cluster://h,h,h,h,h,h,h,h,h,h,h,h,h,h,h,h,h", "invalid store address"),
    ] {
        let errors = read(&format!("store = \"{bad}\"\nsecret_file = \"k\"\n")).unwrap_err();
        assert!(errors.contains(message) && errors.contains("1 error"), "{bad}: {errors}");
    }
}

#[test]
fn a_password_has_no_place_in_the_file_and_is_not_repeated() {
    for store in [
        "redis://:hunter2@h",
        "redis://me:hunter2@h:1/2",
        "redis://:hun/ter2@h",
        "redis-cluster://:hunter2@h",
        "rediss://h?password=hunter2",
        "unix:///run/redis.sock?pass=hunter2",
    ] {
        let errors = read(&format!("store = \"{store}\"\nsecret_file = \"k\"\n")).unwrap_err();
        assert!(errors.contains("put the password into password_file"), "{errors}");
        assert!(!errors.contains("ter2"), "{errors}");
    }
    let errors = read("store = \"redis://:hunter2@h\" x\nsecret_file = 5\n").unwrap_err();
    assert!(!errors.contains("hunter2"), "{errors}");
    let errors = read("stor = \"redis://:hunter2@h\"\nsecret_file = 5\n").unwrap_err();
    assert!(!errors.contains("hunter2"), "{errors}");
}

const TLS: &str = "store = \"rediss://redis.internal:6380/2\"\nsecret_file = \"fleet.key\"\n";

/// The certificate of an authority, in PEM.
fn authority(name: &str) -> Vec<u8> {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().into_bytes()
}

#[test]
fn a_store_over_tls_is_verified_by_its_own_authority_or_the_machines() {
    let fleet = load_with(
        &format!("{TLS}ca = \"ca.pem\"\nserver_name = \"Redis.Example\"\n"),
        &[("fleet.key", &[7; 32]), ("ca.pem", &authority("a"))],
    );
    let endpoint = fleet.unwrap().fleet.unwrap().endpoint(None).unwrap();
    assert_eq!(endpoint.address, Address::Tcp { host: "redis.internal".to_owned(), port: 6380 });
    assert_eq!(endpoint.database, 2);
    let UpstreamSettings { roots, server_name, alpn } = endpoint.tls.unwrap();
    assert_eq!((format!("{roots:?}").as_str(), server_name.as_deref()), ("Some(Roots(1))", Some("redis.example")));
    assert_eq!(alpn, Alpn::Nothing);

    let fleet = load_with(TLS, &[("fleet.key", &[7; 32])]).unwrap().fleet.unwrap();
    let tls = fleet.endpoint(None).unwrap().tls.unwrap();
    assert_eq!((tls.roots, tls.server_name), (Some(Roots::system().unwrap()), None));
    // Where no file is read nobody is trusted, and not anybody.
    for keys in ["", "ca = \"ca.pem\"\n"] {
        let tls = read(&format!("{TLS}{keys}")).unwrap().endpoint(None).unwrap().tls.unwrap();
        assert_eq!(tls.roots, Some(Roots::none()));
    }
    for clear in [LEAST, "store = \"unix:///run/redis.sock\"\nsecret_file = \"k\"\n"] {
        assert_eq!(read(clear).unwrap().endpoint(None).unwrap().tls, None);
    }
    let short = read("store = \"rediss://10.0.0.5\"\nsecret_file = \"k\"\n").unwrap().endpoint(None).unwrap();
    assert_eq!(short.address, Address::Tcp { host: "10.0.0.5".to_owned(), port: 6379 });
}

#[test]
fn sentinels_and_nodes_are_read_with_their_usual_ports() {
    let at = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
    let read = |store: &str| read(&format!("store = \"{store}\"\nsecret_file = \"k\"\n")).unwrap();
    let fleet = read("redis-sentinel://h1,[::1]:7/mymaster/3");
    let (endpoint, sentinels) = (fleet.endpoint(None).unwrap(), vec![at("h1", 26_379), at("::1", 7)]);
    assert_eq!((endpoint.address, endpoint.database, endpoint.tls.is_none()), (at("h1", 26_379), 3, true));
    assert_eq!(fleet.deployment().unwrap(), Deployment::Sentinel { sentinels, name: "mymaster".to_owned() });
    let fleet = read("rediss-cluster://h1,h2:7001");
    assert_eq!(fleet.deployment().unwrap(), Deployment::Cluster { seeds: vec![at("h1", 6_379), at("h2", 7_001)] });
    assert!(fleet.endpoint(None).unwrap().tls.is_some());
    assert_eq!(read("redis://h").deployment().unwrap(), Deployment::Single);
}

#[test]
fn keys_of_tls_are_refused_where_they_cannot_work() {
    for store in ["redis://h", "unix:///run/redis.sock"] {
        let keys = format!("store = \"{store}\"\nsecret_file = \"k\"\nca = \"ca.pem\"\nserver_name = \"h\"\n");
        let errors = read(&keys).unwrap_err();
        for key in ["ca", "server_name"] {
            let message = format!("`{key}` has no effect: the store is not spoken to over TLS");
            let help = format!("write store = \"rediss://10.0.0.5:6379/0\", or remove `{key}`");
            assert!(errors.contains(&message) && errors.contains(&help), "{errors}");
        }
        assert!(errors.contains("2 errors"), "{errors}");
    }
    let named = "store = \"rediss://redis..internal\"\nsecret_file = \"k\"\n";
    let errors = read(named).unwrap_err();
    assert!(errors.contains("no certificate can be for \"redis..internal\""), "{errors}");
    assert!(errors.contains("server_name = \"redis.internal\""), "{errors}");
    assert!(read(&format!("{named}server_name = \"a.example\"\n")).is_ok());
    let errors = read(&format!("{TLS}server_name = \"a b\"\n")).unwrap_err();
    assert!(errors.contains("invalid certificate name \"a b\"") && errors.contains("1 error"), "{errors}");
    let load = |ca: Option<&[u8]>| {
        let files = [("fleet.key", &[7; 32][..])].into_iter().chain(ca.map(|ca| ("ca.pem", ca)));
        load_with(&format!("{TLS}ca = \"ca.pem\"\n"), &files.collect::<Vec<_>>()).unwrap_err()
    };
    assert!(load(None).contains("`ca` = \"ca.pem\" cannot be used: there is no such file"));
    assert!(load(Some(b"x")).contains("`ca` = \"ca.pem\" cannot be used: it has no PEM section"));
}

/// The gateway watches the files that are located, and takes the file over when its digest is another.
#[test]
fn a_changed_authority_is_a_change() {
    let ca = [authority("a"), authority("b")];
    let keys = format!("{TLS}ca = \"ca.pem\"\n");
    let [old, new] = ca.each_ref().map(|ca| load_with(&keys, &[("fleet.key", &[7; 32]), ("ca.pem", ca)]).unwrap());
    assert_ne!(old.fleet.as_ref().unwrap().digest(), new.fleet.as_ref().unwrap().digest());
    assert_ne!(old.fleet.as_ref().unwrap().endpoint(None), new.fleet.as_ref().unwrap().endpoint(None));
    assert_eq!(diff(&old, &old).to_string(), diff(&new, &new).to_string());
    let said = diff(&old, &new).to_string();
    assert!(said.starts_with("[fleet]: changed: ca has other contents"), "{said}");
    let machines = load_with(TLS, &[("fleet.key", &[7; 32])]).unwrap();
    let said = diff(&machines, &new).to_string();
    assert!(said.starts_with("[fleet]: changed: ca the machine's -> set"), "{said}");
    let loaded = {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("fleet.key"), [7; 32]).unwrap();
        fs::write(directory.path().join("ca.pem"), &ca[0]).unwrap();
        let path = directory.path().join("gateway.toml");
        fs::write(&path, format!("{REST}{keys}")).unwrap();
        load(&path, Certificates::Strict(Wall::from_nanos(0))).unwrap()
    };
    let names: Vec<_> = loaded.files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["ca.pem", "fleet.key"]);
}

#[test]
fn a_secret_is_bytes_or_digits() {
    let secret: [u8; 32] = std::array::from_fn(|at| at as u8);
    let (line, windows) = (format!("{DIGITS}\n"), format!("{DIGITS}\r\n"));
    for bytes in [&secret[..], DIGITS.as_bytes(), line.as_bytes(), windows.as_bytes()] {
        let model = load_with(LEAST, &[("fleet.key", bytes)]).unwrap();
        assert_eq!(model.fleet.as_ref().unwrap().secrets(), [secret]);
        assert!(!format!("{model:?}").contains("30, 31"));
    }
    let other = DIGITS.replace("0a", "0b");
    for two in [format!("{other}\n{DIGITS}"), format!("{other}\r\n{DIGITS}\n")] {
        let model = load_with(LEAST, &[("fleet.key", two.as_bytes())]).unwrap();
        let secrets = model.fleet.as_ref().unwrap().secrets();
        assert_eq!((secrets.len(), secrets[0][10], secrets[1]), (2, 0x0b, secret), "the first one is used");
    }
    let spaced = DIGITS.replace("0a", "0g");
    for (bytes, message) in [
        (&b""[..], "has 0 bytes"),
        (&secret[1..], "has 31 bytes"),
        (&DIGITS.as_bytes()[1..], "has 63 bytes"),
        (spaced.as_bytes(), "has 64 bytes, not all of them digits"),
        (format!("{DIGITS}\n\n").as_bytes(), "has 66 bytes"),
        (format!("{DIGITS}\n{spaced}\n").as_bytes(), "has 130 bytes"),
        (format!("{DIGITS}\n{DIGITS}").as_bytes(), "has the same secret twice"),
    ] {
        let errors = load_with(LEAST, &[("fleet.key", bytes)]).unwrap_err();
        assert!(errors.contains(&format!("`secret_file` = \"fleet.key\" {message}\n")), "{errors}");
        assert!(errors.contains("sluicegate fleet key > fleet.key") && !errors.contains("0b0c"), "{errors}");
    }
    let errors = load_with(LEAST, &[]).unwrap_err();
    assert!(errors.contains("`secret_file` = \"fleet.key\" cannot be used: there is no such file"), "{errors}");
}

#[test]
fn a_password_is_one_line_and_the_environments_wins() {
    let keys = format!("{LEAST}password_file = \"pass\"\n");
    let load = |password: &[u8]| load_with(&keys, &[("fleet.key", DIGITS.as_bytes()), ("pass", password)]);
    for (bytes, password) in [(&b"hunter2"[..], "hunter2"), (b"hunter2\n", "hunter2"), (b"a b\r\n", "a b")] {
        let fleet = load(bytes).unwrap().fleet.unwrap();
        assert_eq!((fleet.password(None), fleet.password(Some("other"))), (Some(password), Some("other")));
        assert!(!format!("{fleet:?}").contains(password), "{fleet:?}");
    }
    assert!(load(&[b'x'; 512]).is_ok());
    for (bytes, message) in [
        (&b""[..], "is empty"),
        (b"\n", "is empty"),
        (b"hunter2\nhunter3", "has more than one line"),
        (b"hunter2\n\n", "has more than one line"),
        (b"hunter2\0", "has control characters"),
        (b"hunter2\xff", "is not UTF-8"),
        (&[b'x'; 513], "has 513 bytes"),
    ] {
        let errors = load(bytes).unwrap_err();
        assert!(errors.contains(&format!("`password_file` = \"pass\" {message}\n")), "{errors}");
        assert!(!errors.contains("hunter"), "{errors}");
    }
}

#[test]
fn names_are_safe_in_keys_and_logs() {
    for (key, good, bad) in [
        ("node", ["gw-1", "a.b_c", &"x".repeat(64)], ["", "a:b", "a b"]),
        ("prefix", ["a:b", "s", "a.b_c-1"], ["", "{a}", "a*"]),
    ] {
        for good in good {
            assert!(read(&format!("{LEAST}{key} = \"{good}\"\n")).is_ok(), "{key} {good}");
        }
        let long = "x".repeat(65);
        for bad in bad.into_iter().chain([&*long]) {
            let errors = read(&format!("{LEAST}{key} = \"{bad}\"\n")).unwrap_err();
            assert!(errors.contains(&format!("`{key}`: invalid name ")), "{errors}");
        }
    }
    for (host, node) in [("gw-1.example", "gw-1.example"), ("", "gateway"), ("my host:1", "my-host-1")] {
        assert_eq!(&*node_of_host(host), node);
    }
    assert_eq!(node_of_host(&"ä".repeat(100)).len(), 64);
    for keys in ["deadline = \"0ms\"", "deadline = \"1001ms\"", "on_failure = \"fail\"", "username = \"a b\""] {
        assert!(read(&format!("{LEAST}{keys}\n")).is_err(), "{keys}");
    }
}

#[test]
fn a_plan_tells_of_a_change_without_secrets() {
    let load = |keys: &str, secret: u8| {
        load_with(&format!("{LEAST}{keys}"), &[("fleet.key", &[secret; 32]), ("p", b"hunter2"), ("q", b"hunter3")])
    };
    let plan = |old: &Model, new: &Model| diff(old, new).to_string();
    let old = load("node = \"a\"\npassword_file = \"p\"\n", 1).unwrap();
    let new = load("node = \"b\"\npassword_file = \"q\"\n", 2).unwrap();
    assert!(diff(&old, &old).is_empty());
    let said = plan(&old, &new);
    let expected = "[fleet]: changed: password_file has other contents, secret_file has other contents, node a -> b";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn shared_limits_that_are_hardly_meant_are_warned_of() {
    let warnings = |fleet: &str, limit: &str| {
        let rest = REST.replace("respond = {}\n", "respond = {}\nlimits = [\"a\"]\n");
        let text = format!("{rest}{LEAST}{fleet}[[limit]]\nname = \"a\"\n{limit}");
        let parsed = parse(&text, Path::new("/g.toml"), Certificates::Unread);
        parsed.unwrap_or_else(|errors| panic!("{errors}")).warnings.to_string()
    };
    let day = "rate = \"9/24h\"\nalgorithm = \"fixed-window\"\nshared = \"lease\"\n";
    let again = warnings("", day);
    assert!(again.contains("on_failure = \"fair\" may admit 9/d again"), "{again}");
    assert!(again.contains("set on_failure = \"closed\" in [fleet]"), "{again}");
    assert_eq!(warnings("on_failure = \"closed\"\n", day), "");
    assert_eq!(warnings("", "rate = \"9/h\"\nshared = \"lease\"\n"), "");
    let short = warnings("", "rate = \"9/200ms\"\nshared = \"lease\"\n");
    assert!(short.contains("a grant is held for up to 100ms") && short.contains("use shared = \"strict\""), "{short}");
    assert_eq!(warnings("", "rate = \"9/202ms\"\nshared = \"lease\"\n"), "");
    assert_eq!(warnings("", "rate = \"9/200ms\"\nshared = \"strict\"\n"), "");
}

#[test]
fn a_shared_limit_of_another_window_counts_from_zero_in_the_store() {
    let model = |limit: &str| {
        let text = format!("{REST}{LEAST}[[limit]]\nname = \"a\"\nshared = \"lease\"\n{limit}");
        parse(&text, Path::new("/g.toml"), Certificates::Unread).unwrap_or_else(|errors| panic!("{errors}")).model
    };
    let (day, bucket) = ("rate = \"9/24h\"\n", "algorithm = \"token-bucket\"\nrate = \"9/24h\"\n");
    for (old, new, fate) in [
        (day, "rate = \"9/12h\"\n", "reset, it counts from zero: rate 9/d -> 9/12h"),
        (day, "rate = \"9/24h\"\nslots = 20\n", "reset, it counts from zero: slots "),
        (bucket, "algorithm = \"token-bucket\"\nrate = \"9/12h\"\n", "reset, it counts from zero: rate "),
        (day, "rate = \"7/24h\"\n", "changed: rate 9/d -> 7/d"),
        // Its numbers change here, and in the store they do not.
        (bucket, "algorithm = \"token-bucket\"\nrate = \"7/24h\"\n", "rescaled, its counts go on: rate "),
    ] {
        let plan = diff(&model(old), &model(new)).to_string();
        assert!(plan.contains(&format!("limit a: {fate}")), "{plan}");
    }
}

const PEERS: &str = "peers = [\"10.0.0.1:7946\"]\nlisten = \"10.0.0.2:7946\"\nsecret_file = \"fleet.key\"\n";

#[test]
fn a_fleet_without_a_store_has_places_to_find_others_and_one_to_be_found() {
    let all = "peers = [\"[fd00::3]:7946\", \"[fd00::1]:7946\", \"dns:gateways.internal:7946\"]\nlisten = \"[fd00::2]:7946\"\n\
        secret_file = \"fleet.key\"\nnode = \"gw-2\"\ntopology = \"full\"\ntransport = \"udp\"\ninterval = \"5ms\"\n";
    let fleet = read(all).unwrap();
    let settings = fleet.without_store().unwrap();
    assert_eq!((settings.listen, &*settings.node), ("[fd00::2]:7946".parse().unwrap(), "gw-2"));
    let name = PeerAddress::Dns { host: "gateways.internal".to_owned(), port: 7946 };
    assert_eq!(settings.peers[2], name);
    assert_eq!((settings.peers.len(), settings.interval), (3, Span::from_millis(5)));
    assert_eq!((fleet.endpoint(None), fleet.deployment()), (None, None));
    assert_eq!(read(PEERS).unwrap().interval, Span::from_millis(20));
    assert_eq!(read(LEAST).unwrap().without_store(), None);
    assert!(!format!("{:?}", read(PEERS).unwrap().without_store()).contains("secret"));
}

#[test]
fn what_is_no_place_and_what_does_not_stand_together_is_refused() {
    for (keys, message) in [
        ("listen = \"10.0.0.2:7946\"\nsecret_file = \"k\"\n", "[fleet] has no `store`"),
        ("peers = [\"10.0.0.1:1\"]\nsecret_file = \"k\"\n", "[fleet] has no `listen`"),
        ("peers = []\nlisten = \"10.0.0.2:7946\"\nsecret_file = \"k\"\n", "`peers` has 0 addresses"),
        (&format!("{PEERS}store = \"redis://h\"\n"), "`peers` beside `store`"),
        (&format!("{PEERS}deadline = \"10ms\"\n"), "`deadline` has no effect here"),
        (&format!("{PEERS}on_failure = \"fair\"\n"), "`on_failure` has no effect here"),
        (&format!("{PEERS}prefix = \"a\"\n"), "`prefix` has no effect here"),
        (&format!("{PEERS}username = \"a\"\n"), "`username` has no effect here"),
        (&format!("{LEAST}interval = \"20ms\"\n"), "`interval` has no effect here"),
        (&format!("{LEAST}listen = \"10.0.0.2:7946\"\n"), "`listen` has no effect here"),
        (&PEERS.replace("10.0.0.1:7946", "[fd00::1]:7946"), "of the other kind"),
        (&format!("{PEERS}topology = \"ring\"\n"), "full"),
        (&format!("{PEERS}interval = \"2s\"\n"), "2s"),
    ] {
        let errors = read(keys).unwrap_err();
        assert!(errors.contains(message), "{keys}: {errors}");
    }
    for listen in [
        "0.0.0.0:7946",
        "[::]:7946",
        "10.0.0.1",
        "10.0.0.1:0",
        "gw:7946",
        "224.0.0.1:7946",
        "255.255.255.255:1",
        "[fe80::1%2]:7946",
    ] {
        let errors = read(&PEERS.replace("10.0.0.2:7946", listen)).unwrap_err();
        assert!(errors.contains("10.0.0.1:7946") && errors.contains("1 error"), "{listen}: {errors}");
    }
    for peer in
        ["10.0.0.1", "gw:7946", "dns:gw", "dns:gw:0", "dns:[::1]:7946", "dns::7946", "0.0.0.0:1", "10.0.0.1:0", ""]
    {
        let errors = read(&PEERS.replace("10.0.0.1:7946", peer)).unwrap_err();
        assert!(errors.contains("invalid address of a gateway"), "{peer}: {errors}");
    }
}

#[test]
fn a_limit_is_shared_without_a_store_if_it_can_be_told() {
    let limit = |keys: &str| {
        let text = format!("{REST}{PEERS}[[limit]]\nname = \"l\"\nrate = \"5/s\"\n{keys}");
        let parsed = parse(&text, Path::new("/g.toml"), Certificates::Unread);
        parsed.map(|parsed| parsed.model.limits[0].spec.sharing).map_err(|errors| errors.to_string())
    };
    let told = Ok(Some(sluicegate_limiter::Sharing::Peers));
    assert_eq!(limit("algorithm = \"token-bucket\"\nshared = \"lease\"\n"), told);
    assert_eq!(limit("algorithm = \"gcra\"\nburst = 3\nshared = \"lease\"\n"), told);
    assert_eq!(limit("shared = \"off\"\n"), Ok(None));
    for (keys, message) in [
        ("shared = \"lease\"\n", "a limit of timer-wheel cannot be shared without a store"),
        ("algorithm = \"token-bucket\"\nrefill = \"interval\"\nshared = \"lease\"\n", "without a store"),
        ("algorithm = \"fixed-window\"\nshared = \"lease\"\n", "use algorithm = \"token-bucket\""),
        ("algorithm = \"gcra\"\nshared = \"strict\"\n", "shared = \"strict\" needs a store"),
        ("algorithm = \"gcra\"\nshared = \"lease\"\ncount_when = { status = [\"4xx\"] }\n", "takes back"),
    ] {
        let errors = limit(keys).unwrap_err();
        assert!(errors.contains(message), "{keys}: {errors}");
    }
}

/// Each file of the page about fleets without a store, and of its example, is taken without a warning.
#[test]
fn the_page_and_the_example_without_a_store_are_taken() {
    const PAGE: &str = include_str!("../../../../../docs/fleet-peers.md");
    const EXAMPLE: [&str; 3] = [
        include_str!("../../../../../examples/fleet/without-a-store/gw-1.toml"),
        include_str!("../../../../../examples/fleet/without-a-store/gw-2.toml"),
        include_str!("../../../../../examples/fleet/without-a-store/gw-3.toml"),
    ];
    let blocks: Vec<&str> = PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 2);
    for text in blocks.into_iter().chain(EXAMPLE) {
        let before = if text.contains("[[route]]") { "" } else { REST.trim_end_matches("[fleet]\n") };
        let parsed = parse(&format!("{before}{text}"), Path::new("/g.toml"), Certificates::Unread);
        let parsed = parsed.unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(parsed.warnings.to_string(), "", "{text}");
        assert!(parsed.model.fleet.unwrap().without_store().is_some(), "{text}");
    }
}
