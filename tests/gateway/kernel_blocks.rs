//! Blocks in the kernel: the script of the package, with real `nft`, in network namespaces of this test's own.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process_group};

use crate::support::{Gateway, eventually};

const NOT_ROOT: &str = "this is not root";
const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

/// One for the gateway and one for its client, with a cable between them. They end with this value.
struct Namespaces {
    gateway: String,
    client: String,
}

/// Runs a program to its end; what it has printed, or why it has failed.
fn finish(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() { Ok(out) } else { Err(format!("{program} {arguments:?}: {error}")) }
}

impl Namespaces {
    /// `None`: whoever runs the tests may not make them, as on a developer's machine. The test says so and ends. Where it may and
    /// something else is missing, it fails.
    fn new() -> Option<Self> {
        let pid = std::process::id();
        let all = Self { gateway: format!("sluicegate-g{pid}"), client: format!("sluicegate-c{pid}") };
        let Err(error) = all.make(pid) else { return Some(all) };
        let needs = "This test needs root, a kernel with network namespaces and nf_tables (a container needs CAP_SYS_ADMIN and \
                     CAP_NET_ADMIN), and `make setup-tests`; else: sudo apt-get install -y iproute2 nftables";
        let may_not = [NOT_ROOT, "Operation not permitted", "Permission denied"];
        assert!(may_not.iter().any(|why| error.contains(why)), "{error}\n{needs}");
        eprintln!("NOT RUN: blocks in the kernel: {error}\n{needs}");
        None
    }

    fn make(&self, pid: u32) -> Result<(), String> {
        if !geteuid().is_root() {
            return Err(NOT_ROOT.to_owned());
        }
        let (g, c) = (&self.gateway, &self.client);
        let cable = format!("link add sgg{pid} netns {g} type veth peer name sgc{pid} netns {c}");
        let of_gateway =
            ["addr add 10.77.0.1/24", "addr add fd77:1::1/64 nodad", "link set up", "-6 route add fd77:2::/64"];
        let of_client =
            ["addr add 10.77.0.2/24", "addr add fd77:2::1/64 nodad", "link set up", "-6 route add fd77:1::/64"];
        for line in [format!("netns add {g}"), format!("netns add {c}"), cable, format!("-n {g} link set lo up")] {
            finish("ip", &line.split(' ').collect::<Vec<_>>())?;
        }
        for (name, device, lines) in [(g, format!("sgg{pid}"), of_gateway), (c, format!("sgc{pid}"), of_client)] {
            for line in lines {
                let line = format!("-n {name} {line} dev {device}");
                finish("ip", &line.split(' ').collect::<Vec<_>>())?;
            }
        }
        self.inside("nft", &["list", "ruleset"]).map(drop)
    }

    /// Runs a program beside the gateway.
    fn inside(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        finish("ip", &[&["netns", "exec", &self.gateway, program], arguments].concat())
    }

    /// The status of an answer; `None`: no connection.
    fn ask(namespace: &str, host: &str, port: u16) -> Option<String> {
        let request = "printf 'GET / HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n' >&3; head -n 1 <&3";
        let script = format!("exec 3<>/dev/tcp/{host}/{port}; {request}");
        let answer = finish("ip", &["netns", "exec", namespace, "timeout", "1", "bash", "-c", &script]).ok()?;
        answer.split(' ').nth(1).map(str::to_owned)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.gateway, &self.client] {
            drop(finish("ip", &["netns", "del", name]));
        }
    }
}

/// `packaging/sluicegate-nft`, which ends with this value.
struct Exporter(Child);

impl Exporter {
    fn start(namespaces: &Namespaces, gateway: &Gateway) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/sluicegate-nft");
        let path = format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), env::var("PATH").unwrap());
        let log = fs::File::create(gateway.directory.path().join("exporter.log")).unwrap();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespaces.gateway]).arg(script).args(["--admin", &admin(gateway)]);
        command.env("PATH", path).stdin(Stdio::null()).stderr(log).process_group(0);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        drop(self.0.wait());
    }
}

fn admin(gateway: &Gateway) -> String {
    format!("http://{}", gateway.admin)
}

#[test]
fn a_blocked_address_gets_no_connection_until_the_end_of_its_block() {
    let Some(namespaces) = Namespaces::new() else { return };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespaces.gateway, BINARY]).stdin(Stdio::null());
    let gateway = Gateway::start_by(
        command,
        "[[listener]]\naddress = \"0.0.0.0:0\"\n[[listener]]\naddress = \"[::]:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[limit]]\nname = \"a\"\nrate = \"1/h\"\npenalty = { after = 2, within = \"1h\", block = \"3s\" }\n\
         [[route]]\nname = \"all\"\nrespond = {}\nlimits = [\"a\"]\n",
    );
    let [four, six] = [0, 1].map(|place| gateway.addresses[place].port());
    let ask = || Namespaces::ask(&namespaces.client, "10.77.0.1", four);
    let ask_six = || Namespaces::ask(&namespaces.client, "fd77:1::1", six);
    let sets = || namespaces.inside("nft", &["list", "table", "inet", "sluicegate"]).unwrap_or_default();
    let keys = |arguments: &[&str]| {
        let admin = admin(&gateway);
        let arguments = [&["keys"], arguments, &["--admin", &admin]].concat();
        namespaces.inside(BINARY, &arguments).unwrap();
    };
    let exporter = Exporter::start(&namespaces, &gateway);
    assert!(eventually(|| sets().contains("ip6 saddr @blocked6 drop")), "{}", sets());

    // A penalty: the third request begins a block.
    assert_eq!([ask(), ask(), ask()], [Some("200"), Some("429"), Some("429")].map(|status| status.map(str::to_owned)));
    assert!(eventually(|| ask().is_none()), "{}", sets());
    assert!(Namespaces::ask(&namespaces.gateway, "10.77.0.1", four).is_some(), "another address");
    assert!(eventually(|| ask().is_some()), "it has ended: {}", sets());

    // A block by hand, of a network, that is taken back.
    keys(&["block", "a", "fd77:2::1"]);
    assert!(eventually(|| ask_six().is_none()), "{}", sets());
    assert!(sets().contains("fd77:2::/64"), "{}", sets());
    keys(&["unblock", "a", "fd77:2::1"]);
    assert!(eventually(|| ask_six().is_some()), "{}", sets());

    // The kernel ends a block although nobody is there to tell it.
    keys(&["block", "a", "10.77.0.2", "--until", "+8s"]);
    assert!(eventually(|| ask().is_none()), "{}", sets());
    drop(exporter);
    assert!(sets().contains("10.77.0.2 timeout"), "{}", sets());
    assert!(eventually(|| ask().is_some()), "{}", sets());

    // Another exporter begins with the list as it is.
    keys(&["block", "a", "10.77.0.99"]);
    let _exporter = Exporter::start(&namespaces, &gateway);
    assert!(eventually(|| sets().contains("10.77.0.99")), "{}", sets());
}
