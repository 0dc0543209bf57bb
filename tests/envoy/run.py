"""Real Envoy in front of listeners that decide: the configurations of docs/decide.md, each limited exactly. Called by
`make envoy`.

usage: tests/envoy/run.py GATEWAY ENVOY
"""

import http.client
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "decide.md"


def block(kind, text):
    """The first fenced block of the page of this kind that has this text."""
    for rest in PAGE.read_text().split(f"```{kind}\n")[1:]:
        found = rest.split("```")[0]
        if text in found:
            return found
    raise SystemExit(f"{PAGE} has no block of {kind} with {text!r}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path, method="GET", headers=None):
    """The status, the fields and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers or {})
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


def ext_authz(gateway, envoy, directory):
    asked, front, app = free_port(), free_port(), free_port()
    rules = block("toml", "deny_status").replace("9080", str(asked)).replace('"auth"', '"ext-authz"')
    rules = "\n".join(line for line in rules.splitlines() if not line.startswith(("described_by", "deny_status")))
    (directory / "gateway.toml").write_text(rules)
    # A machine that is busy: a question that is not answered in time admits.
    yaml = block("yaml", "ext_authz").replace("0.020s", "5s").replace("9080", str(asked))
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
        processes[0].send_signal(signal.SIGSTOP)
        check("stopped: the request goes on", ask(front, "/api")[0] == 200)
        processes[0].send_signal(signal.SIGCONT)
        wait("it decides again", lambda: ask(front, "/api")[0] == 429)
        processes[0].kill()
        check("killed: the request goes on", ask(front, "/api")[0] == 200)
    except BaseException:
        print((directory / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def main():
    gateway, envoy = (os.path.abspath(path) for path in sys.argv[1:])
    with tempfile.TemporaryDirectory() as directory:
        ext_authz(gateway, envoy, pathlib.Path(directory))


main()
