"""Real Envoy in front of listeners that decide: the configurations of docs/envoy.md, each limited exactly. Called by
`make envoy`.

usage: tests/envoy/run.py GATEWAY ENVOY
"""

import contextlib
import http.client
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def block(page, kind, text):
    """The first fenced block of a page of this kind that has this text."""
    for rest in (DOCS / page).read_text().split(f"```{kind}\n")[1:]:
        found = rest.split("```")[0]
        if text in found:
            return found
    raise SystemExit(f"{page} has no block of {kind} with {text!r}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path, client=None, headers=None):
    """The status, the fields and the body of an answer. `client` has the address that asks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, **(client or {}))
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def wait(what, is_so):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if is_so():
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"in vain: {what}")


def check(what, is_so, seen=""):
    print(("ok    " if is_so else "FAILED ") + what, seen if not is_so else "")
    if not is_so:
        raise SystemExit(1)


@contextlib.contextmanager
def running(gateway, envoy, directory, rules, yaml):
    """The gateway, Envoy and an application, by the ports of the first two; and the gateway's process."""
    asked, front, app = free_port(), free_port(), free_port()
    (directory / "gateway.toml").write_text(rules.replace("9080", str(asked)))
    # A machine that is busy: a question that is not answered in time admits.
    yaml = yaml.replace("0.020s", "5s").replace("9080", str(asked))
    (directory / "envoy.yaml").write_text(yaml.replace("8080", str(front)).replace("9001", str(app)))
    log = open(directory / "log", "wb")
    processes = []
    try:
        web = [sys.executable, "-c", "import http.server as s\n"
               "class H(s.BaseHTTPRequestHandler):\n"
               " def do_GET(self): self.send_response(200); self.send_header('content-length', '3'); self.end_headers(); self.wfile.write(b'app')\n"
               f"s.ThreadingHTTPServer(('127.0.0.1', {app}), H).serve_forever()"]
        for command in [
            [gateway, "run", "--config", directory / "gateway.toml"],
            web,
            [envoy, "-c", directory / "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "-l", "error"],
        ]:
            processes.append(subprocess.Popen(command, cwd=directory, stdout=log, stderr=log))
        wait("the gateway is healthy", lambda: ask(asked, "/healthz")[0] == 200)
        yield asked, front, processes[0]
    except BaseException:
        print((directory / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def goes_on_without(process, front, path):
    process.send_signal(signal.SIGSTOP)
    check("stopped: the request goes on", ask(front, path)[0] == 200)
    process.send_signal(signal.SIGCONT)
    wait("it decides again", lambda: ask(front, path)[0] == 429)
    process.kill()
    check("killed: the request goes on", ask(front, path)[0] == 200)


def ext_authz(gateway, envoy, directory):
    rules = block("decide.md", "toml", "deny_status").replace('"auth"', '"ext-authz"')
    rules = "\n".join(line for line in rules.splitlines() if not line.startswith(("described_by", "deny_status")))
    with running(gateway, envoy, directory, rules, block("envoy.md", "yaml", "ext_authz")) as (_, front, process):
        wait("Envoy serves", lambda: ask(front, "/else")[2] == "app")
        statuses = [ask(front, f"/api/x?y={place}")[0] for place in range(8)]
        check("five pass, then refusals", statuses == [200] * 5 + [429] * 3, statuses)
        status, fields, body = ask(front, "/api")
        check("the refusal has its wait, and names its limit", 1 <= int(fields["retry-after"]) <= 60 and "per-client" in body, body)
        check("another route goes on", ask(front, "/else")[2] == "app")
        # A client cannot be another one, nor leave its route by what it writes.
        forged = {"X-Forwarded-For": "198.51.100.1", "X-Envoy-Original-Path": "/free", "X-Forwarded-Method": "GET"}
        check("forged fields change nothing", ask(front, "/api", headers=forged)[0] == 429)
        for path in ["/api/../api/x", "//api/..//api", "/%61pi", "/api%2fx", "/api#x", "/api?" + "a" * 20_000]:
            status = ask(front, path)[0]
            check(f"{path[:20]} does not pass", status in (400, 414, 429, 431), status)
        for count in (60, 99, 120):
            status = ask(front, "/api", headers={f"x-a{place}": "b" * 100 for place in range(count)})[0]
            check(f"{count} fields do not pass", status in (400, 429, 431), status)
        goes_on_without(process, front, "/api")


def envoy_rls(gateway, envoy, directory):
    """The page's configuration, with two more descriptors: by a header, and of hits that a stream has spent."""
    rules = block("envoy.md", "toml", "envoy-rls") + """
[[limit]]
name = "per-user"
key = "descriptor:user"
rate = "3/1m"

[[route]]
name = "user"
domain = "edge"
descriptors = { user = "*" }
limits = ["per-user"]

[[limit]]
name = "tokens"
key = "descriptor:payer"
rate = "100/1h"

[[route]]
name = "tokens"
domain = "edge"
descriptors = { payer = "*" }
limits = ["tokens"]
apply_on_stream_done = true
"""
    more = """
                  - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                  - actions: [{ request_headers: { header_name: x-payer, descriptor_key: payer } }]
                    hits_addend: { number: 0 }
                  - actions: [{ request_headers: { header_name: x-payer, descriptor_key: payer } }]
                    hits_addend: { format: "%REQ(x-used)%" }
                    apply_on_stream_done: true"""
    yaml = block("envoy.md", "yaml", "ratelimit")
    end = "- remote_address: {}"
    assert yaml.count(end) == 1
    yaml = yaml.replace(end, end + more)
    yaml = yaml.replace("domain: edge\n", "domain: edge\n              enable_x_ratelimit_headers: DRAFT_VERSION_03\n")
    # Each client is another address of loopback.
    client = lambda number: {"source_address": (f"127.0.1.{number}", 0)}
    with running(gateway, envoy, directory, rules, yaml) as (_, front, process):
        wait("Envoy serves", lambda: ask(front, "/", client(1))[2] == "app")
        answers = [ask(front, f"/{place}", client(2)) for place in range(8)]
        statuses = [status for status, _, _ in answers]
        check("five pass, then refusals", statuses == [200] * 5 + [429] * 3, statuses)
        fields = answers[-1][1]
        check("the refusal has its wait, and names its limit", 1 <= int(fields["retry-after"]) <= 60 and fields["x-sluicegate-limit"] == "per-client", fields)
        fields = answers[1][1]
        check("Envoy has the numbers", fields["x-ratelimit-limit"].startswith("5, 5;w=60") and fields["x-ratelimit-remaining"] == "3", fields)
        check("forged fields change nothing", ask(front, "/", client(2), {"X-Forwarded-For": "198.51.100.1"})[0] == 429)
        of_user = [ask(front, "/", client(number), {"X-User": "a\xff"})[0] for number in (3, 4, 5, 6)]
        check("a user is counted over addresses, whatever the bytes of the name", of_user == [200] * 3 + [429], of_user)
        check("another user is another", ask(front, "/", client(7), {"X-User": "a\xfe"})[0] == 200)
        status = ask(front, "/", client(7), {"X-User": "\xff" * 40_000})[0]
        check("a long value does not pass", status in (429, 431), status)
        used = [ask(front, "/", client(number), {"X-Payer": "p", "X-Used": "60"})[0] for number in (8, 9)]
        check("what is used is reported after the stream", used == [200] * 2, used)
        wait("the payer has used all", lambda: ask(front, "/", client(10), {"X-Payer": "p", "X-Used": "60"})[0] == 429)
        check("another payer has not", ask(front, "/", client(11), {"X-Payer": "q"})[0] == 200)
        goes_on_without(process, front, "/")


def main():
    gateway, envoy = (os.path.abspath(path) for path in sys.argv[1:])
    for drill in (ext_authz, envoy_rls):
        print(drill.__name__)
        with tempfile.TemporaryDirectory() as directory:
            drill(gateway, envoy, pathlib.Path(directory))


main()
