//! Blocks in the kernel: the script of the package, with real `nft`, in network namespaces of this test's own.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{Gateway, Namespace, eventually, or_not_run};

const BINARY: &str = env!("CARGO_BIN_EXE_sluicegate");

/// One for the gateway and one for its client, with a cable between them. They end with this value.
struct Namespaces {
    gateway: Namespace,
    client: Namespace,
}

impl Namespaces {
    fn new() -> Option<Self> {
        let needs = "This test needs root, a kernel with network namespaces and nf_tables (a container needs CAP_SYS_ADMIN and \
                     CAP_NET_ADMIN), and `make setup-tests`; else: sudo apt-get install -y iproute2 nftables";
        or_not_run(Self::make(std::process::id()), "blocks in the kernel", needs)
    }

    fn make(pid: u32) -> Result<Self, String> {
        let [gateway, client] = [format!("sluicegate-g{pid}"), format!("sluicegate-c{pid}")].map(Namespace::new);
        let all = Self { gateway: gateway?, client: client? };
        let client = &all.client.name;
        all.gateway.ip(&format!("link add sgg{pid} type veth peer name sgc{pid} netns {client}"))?;
        let of_gateway =
            ["addr add 10.77.0.1/24", "addr add fd77:1::1/64 nodad", "link set up", "-6 route add fd77:2::/64"];
        let of_client =
            ["addr add 10.77.0.2/24", "addr add fd77:2::1/64 nodad", "link set up", "-6 route add fd77:1::/64"];
        let ends = [(&all.gateway, format!("sgg{pid}"), of_gateway), (&all.client, format!("sgc{pid}"), of_client)];
        for (namespace, device, lines) in ends {
            for line in lines {
                namespace.ip(&format!("{line} dev {device}"))?;
            }
        }
        all.gateway.finish("nft", &["list", "ruleset"])?;
        Ok(all)
    }

    /// The status of an answer; `None`: no connection.
    fn ask(namespace: &Namespace, host: &str, port: u16) -> Option<String> {
        let request = "printf 'GET / HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n' >&3; head -n 1 <&3";
        let script = format!("exec 3<>/dev/tcp/{host}/{port}; {request}");
        let answer = namespace.finish("timeout", &["1", "bash", "-c", &script]).ok()?;
        answer.split(' ').nth(1).map(str::to_owned)
    }
}

/// `packaging/sluicegate-nft`, which ends with this value.
struct Exporter(Child);

impl Exporter {
    fn start(namespaces: &Namespaces, gateway: &Gateway) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/sluicegate-nft");
        let path = format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), env::var("PATH").unwrap());
        let log = fs::File::create(gateway.directory.path().join("exporter.log")).unwrap();
        let mut command = namespaces.gateway.command(script);
        command.args(["--admin", &admin(gateway)]).env("PATH", path).stderr(log).process_group(0);
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
    let gateway = Gateway::start_by(
        namespaces.gateway.command(BINARY),
        "[[listener]]\naddress = \"0.0.0.0:0\"\n[[listener]]\naddress = \"[::]:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[limit]]\nname = \"a\"\nrate = \"1/h\"\npenalty = { after = 2, within = \"1h\", block = \"3s\" }\n\
         [[route]]\nname = \"all\"\nrespond = {}\nlimits = [\"a\"]\n",
    );
    let [four, six] = [0, 1].map(|place| gateway.addresses[place].port());
    let ask = || Namespaces::ask(&namespaces.client, "10.77.0.1", four);
    let ask_six = || Namespaces::ask(&namespaces.client, "fd77:1::1", six);
    let sets = || namespaces.gateway.finish("nft", &["list", "table", "inet", "sluicegate"]).unwrap_or_default();
    let keys = |arguments: &[&str]| {
        let admin = admin(&gateway);
        let arguments = [&["keys"], arguments, &["--admin", &admin]].concat();
        namespaces.gateway.finish(BINARY, &arguments).unwrap();
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
