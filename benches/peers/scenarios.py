"""The scenarios: the load of each, and the facts about it that the configurations of the proxies depend on."""
from dataclasses import dataclass

# A response or request of 10 KB, and the download of scenario k.
BODY = 10 * 1024
DOWNLOAD = 256 * 1024 * 1024
# The keys of scenarios b and c, and the share of refusals that c must have to count.
KEYS = 10_000
REFUSED_SHARE = 0.99


@dataclass(frozen=True)
class Scenario:
    """One kind of load.

    `traits` are the words that templates ask for (`#: if tls`). `load` names the program that makes the load, see
    load.py. `unit` is `request`, or `gigabyte` where CPU time is given per gigabyte.
    """

    letter: str
    title: str
    load: str = "wrk"
    mode: str = "get"
    path: str = "/"
    traits: frozenset = frozenset()
    connections: int = 64
    streams: int = 1
    body: int = 100
    unit: str = "request"
    workers: int = 1

    @property
    def tls(self):
        return "tls" in self.traits

    @property
    def shares_cores(self):
        """Proxy, load and upstream run on both cores: the proxy has two workers."""
        return self.workers > 1


def scenario(letter, title, *traits, **rest):
    return Scenario(letter, title, traits=frozenset(traits), **rest)


ALL = [
    scenario("a", "plain, 100 B"),
    scenario("b", "limit per key, never trips", "limit", "generous", mode="keys"),
    scenario("c", "limit per key, nearly all refused", "limit", "strict", mode="keys"),
    scenario("d", "10 KB response", path="/big", body=BODY),
    scenario("p", "POST 10 KB", mode="post"),
    scenario("e", "TLS 1.3, kept connections, 100 B", "tls"),
    scenario("h", "TLS 1.3, a full handshake each", "tls", load="handshakes", connections=16),
    scenario("f", "HTTP/2 over TLS, 16 x 16", "tls", "h2", load="h2load", connections=16, streams=16),
    scenario("g", "HTTP/2 to HTTP/2, 8 x 16", "h2c", load="h2load", connections=8, streams=16),
    scenario("k", "download of 256 MB, per GB", "download", load="download", path="/download", connections=1,
             body=DOWNLOAD, unit="gigabyte"),
    scenario("l", "one connection", connections=1),
    scenario("r", "a with two workers", workers=2),
]
BY_LETTER = {one.letter: one for one in ALL}
