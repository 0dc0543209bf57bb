"""The proxies that are compared, the server behind them, and the templates of their configurations.

To add a proxy: a template in conf/, and an entry of `known_peers`.
"""
import os, re, shutil, subprocess
from dataclasses import dataclass, field

from processes import Process, free_port
from scenarios import DOWNLOAD

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = "sluicegate"
# CPU ratios are given against these, where they run.
REFERENCES = ("nginx", "haproxy", "other")


@dataclass(frozen=True)
class Peer:
    """A proxy: its program, the Debian package that brings it, its template, and which scenarios it can serve.

    `arguments` are those of its command line; `{conf}`, `{folder}` and `{workers}` are filled in.
    """

    name: str
    title: str
    program: str
    package: str
    template: str
    arguments: tuple
    version_flag: str
    lacks: frozenset = field(default_factory=frozenset)

    def serves(self, scenario):
        return not self.lacks & scenario.traits

    def path(self):
        """The program's place, or None. Debian has servers in /usr/sbin, which is not in every user's PATH."""
        return shutil.which(self.program, path=os.environ.get("PATH", "") + ":/usr/sbin")

    def version(self):
        shown = subprocess.run([self.path(), self.version_flag], capture_output=True, text=True, timeout=20)
        # Envoy begins with its own path.
        number = re.search(r"\d+\.\d+(\.\d+)?", (shown.stdout + shown.stderr).replace(self.path(), ""))
        return number[0] if number else "?"

    def start(self, scenario, place, cores, fields):
        """Starts it in front of the upstream's port, and gives the process and its port."""
        folder = os.path.join(place.folder, f"{scenario.letter}-{self.name}")
        os.makedirs(folder)
        port = free_port()
        words = scenario.traits | ({"fields"} if fields else set())
        values = {"port": port, "folder": folder, "workers": scenario.workers, "upstream": place.upstream,
                  "certificate": place.certificate, "key": place.key, "both": place.both}
        conf = render(self.template, folder, words, values)
        filled = [one.format(conf=conf, folder=folder, workers=scenario.workers) for one in self.arguments]
        process = Process([self.path(), *filled], cores, os.path.join(folder, "output"))
        try:
            process.wait_for(port)
        except BaseException:
            process.stop()
            raise
        return process, port


def known_peers(sluicegate, other=None):
    """All peers, in the order of the tables. `other` is the path of a second Sluicegate, or None."""
    run = ("run", "-c", "{conf}")
    peers = [
        Peer("nginx", "nginx", "nginx", "nginx", "nginx.conf", ("-p", "{folder}", "-c", "{conf}"), "-v",
             # HTTP/2 to servers came with 1.29.4 and is not set up here.
             lacks=frozenset({"h2c"})),
        Peer("haproxy", "HAProxy", "haproxy", "haproxy", "haproxy.cfg", ("-f", "{conf}"), "-v"),
        Peer("haproxy-tcp", "HAProxy as TCP relay", "haproxy", "haproxy", "haproxy-tcp.cfg", ("-f", "{conf}"), "-v",
             lacks=frozenset({"tls", "limit"})),
        Peer("envoy", "Envoy", os.environ.get("ENVOY") or "envoy", "none; Envoy's own site has packages, or set ENVOY=PATH",
             "envoy.yaml", ("-c", "{conf}", "--concurrency", "{workers}", "--disable-hot-restart", "-l", "error"), "--version"),
    ]
    if other:
        peers.append(Peer("other", "other Sluicegate", os.path.abspath(other), "none", "sluicegate.toml", run, "--version"))
    peers.append(Peer(OURS, "Sluicegate", os.path.abspath(sluicegate), "none; cargo build --profile dist", "sluicegate.toml", run,
                      "--version"))
    return {peer.name: peer for peer in peers}


def fill(text, words, values):
    """A template filled in: `@name@` by a value, and blocks `#: if WORD`, `#: if not WORD` to `#: end` kept or cut."""
    lines, holds = [], []
    for number, line in enumerate(text.splitlines(), 1):
        order = re.fullmatch(r"\s*#: (?:if (not )?(\w+)|(end))", line)
        if not order:
            if all(holds):
                lines.append(line)
        elif order[3]:
            if not holds:
                raise ValueError(f"line {number}: end without if")
            holds.pop()
        else:
            holds.append((order[2] in words) != bool(order[1]))
    if holds:
        raise ValueError("if without end")
    return re.sub(r"@(\w+)@", lambda name: str(values[name[1]]), "\n".join(lines) + "\n")


def render(template, folder, words, values):
    with open(os.path.join(HERE, "conf", template)) as file:
        text = fill(file.read(), words, values)
    path = os.path.join(folder, template)
    with open(path, "w") as file:
        file.write(text)
    return path


CLIENT_TLS = """openssl_conf = init
[init]
ssl_conf = ssl
[ssl]
system_default = clients
[clients]
MinProtocol = TLSv1.3
Ciphersuites = TLS_AES_128_GCM_SHA256
Groups = X25519
"""


@dataclass
class Place:
    """The run's temporary directory, with the certificate that was made for it, and the port of the upstream."""

    folder: str
    upstream: int = 0

    def __post_init__(self):
        self.certificate, self.key, self.both, self.files, self.client = (
            os.path.join(self.folder, name) for name in ("certificate.pem", "key.pem", "both.pem", "files", "client.cnf"))

    def prepare(self):
        """Makes a certificate, the files that the upstream serves, and the settings of TLS that the load's programs have.

        The clients offer one cipher suite and one curve: not every proxy can be told which to take.
        """
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", self.key,
             "-out", self.certificate], check=True, capture_output=True)
        with open(self.both, "w") as both:
            for path in (self.certificate, self.key):
                with open(path) as file:
                    both.write(file.read())
        with open(self.client, "w") as file:
            file.write(CLIENT_TLS)
        os.makedirs(self.files)
        with open(os.path.join(self.files, "index.html"), "w") as file:
            file.write("x" * 100)
        with open(os.path.join(self.files, "download"), "wb") as file:
            file.truncate(DOWNLOAD)

    def start_upstream(self, scenario, cores):
        """The server behind the proxies: nghttpd where they speak HTTP/2 to it, else nginx."""
        folder = os.path.join(self.folder, f"{scenario.letter}-upstream")
        os.makedirs(folder)
        port = free_port()
        if "h2c" in scenario.traits:
            # Windows and streams at their largest: what is behind the proxies should not be what limits.
            command = ["nghttpd", "--no-tls", "--address=127.0.0.1", "-m", "1000", "-w", "24", "-W", "24", "-d", self.files,
                       str(port)]
        else:
            values = {"port": port, "folder": folder, "files": self.files, "small": "x" * 100, "kilobyte": "y" * 1024}
            command = ["nginx", "-p", folder, "-c", render("upstream.conf", folder, set(), values)]
        program = shutil.which(command[0], path=os.environ.get("PATH", "") + ":/usr/sbin") or command[0]
        process = Process([program, *command[1:]], cores, os.path.join(folder, "output"))
        try:
            process.wait_for(port)
        except BaseException:
            process.stop()
            raise
        self.upstream = port
        return process
