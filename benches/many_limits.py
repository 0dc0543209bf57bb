#!/usr/bin/env python3
"""What ten thousand limits cost: `python3 benches/many_limits.py BINARY [--limits 10000] [--plans N] [--hosts N]`.

Writes a configuration of so many `[[limit]]`s, each with a `[[route]]` of its own, starts the gateway on ports of
loopback that the kernel chooses, and prints: the time from the start of the process to the first answer, and the
resident memory then; a page of /metrics; a reload that changes one limit, asked for by POST /reload and seen by the watcher,
until an answer has the new number; resident memory after a request to each limit, and each from eight clients; and what
`check` takes for a file with one mistake. With `--plans` a further limit by a header has so many plans, each with numbers of its
own; with `--hosts` a further route has so many hosts, every other one a wildcard. It ends what it has started.
"""
import argparse
import http.client
import os
import re
import socket
import subprocess
import tempfile
import time


def free_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def written(limits, plans, hosts, port, admin):
    text = [
        f'[[listener]]\naddress = "127.0.0.1:{port}"\n[admin]\naddress = "127.0.0.1:{admin}"\n'
        '[server]\nworkers = 2\n[client]\ntrusted_proxies = ["127.0.0.1"]\n'
    ]
    for at in range(limits):
        text.append(
            f'[[limit]]\nname = "limit-{at}"\nrate = "100/s"\n'
            f'[[route]]\nname = "route-{at}"\npath = "/tenant-{at}"\nlimits = ["limit-{at}"]\n'
            'respond = { status = 200, body = "ok" }\n'
        )
    if plans:
        text.append('[[limit]]\nname = "by-key"\nkey = "header:x-api-key"\nrate = "100/s"\n')
        text.append('[[route]]\nname = "planned"\npath = "/planned"\nlimits = ["by-key"]\n'
                    'plans = { file = "plans.toml", key = "header:x-api-key" }\nrespond = { status = 200, body = "ok" }\n')
    if hosts:
        names = ", ".join(f'"{"*." if at % 2 else ""}tenant-{at}.example"' for at in range(hosts))
        text.append(f'[[route]]\nname = "hosts"\nhosts = [{names}]\nrespond = {{ status = 201, body = "ok" }}\n')
    return "".join(text)


def get(connection, path, headers=None):
    """One request, and its answer's status, fields and body."""
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def until(what, seconds=120):
    """Milliseconds until it is so; None if it is not within the time."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        try:
            if what():
                return (time.monotonic() - begun) * 1000
        except OSError:
            pass
        time.sleep(0.002)
    return None


def show(name, milliseconds, more=""):
    told = "not in time" if milliseconds is None else f"{milliseconds:8.0f} ms"
    print(f"{name:34} {told}{more}", flush=True)


class Gateway:
    def __init__(self, binary, path, port, admin):
        self.port, self.admin = port, admin
        self.log = open(os.path.join(os.path.dirname(path), "log"), "w")
        self.process = subprocess.Popen([binary, "-c", path], stdout=self.log, stderr=self.log)

    def connect(self, port):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, path, headers=None):
        connection = self.connect(self.port)
        try:
            return get(connection, path, headers)
        finally:
            connection.close()

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            text = status.read()
        kib = {key: int(number) for key, number in re.findall(r"(VmRSS|VmHWM):\s+(\d+)", text)}
        return f"resident {kib['VmRSS'] / 1024:.0f} MiB, at most {kib['VmHWM'] / 1024:.0f}"

    def quota(self, path):
        """The number of the limit in an answer's RateLimit-Policy."""
        fields = self.ask(path)[1]
        return int(re.search(r"q=(\d+)", fields["ratelimit-policy"])[1])

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def scrape(gateway):
    begun = time.monotonic()
    connection = gateway.connect(gateway.admin)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    first = answer.read(1)
    to_first = (time.monotonic() - begun) * 1000
    page = first + answer.read()
    took = (time.monotonic() - begun) * 1000
    connection.close()
    series = sum(1 for line in page.split(b"\n") if line and not line.startswith(b"#"))
    show("/metrics", took, f", first byte {to_first:.0f} ms, {len(page) / 1e6:.1f} MB, {series} lines; {gateway.memory()}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--limits", type=int, default=10_000)
    parser.add_argument("--plans", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "gateway.toml")
        port, admin = free_ports(2)
        text = written(options.limits, options.plans, options.hosts, port, admin)

        def write(content):
            with open(path + ".new", "w", encoding="ascii") as file:
                file.write(content)
            os.rename(path + ".new", path)

        if options.plans:
            with open(os.path.join(directory, "plans.toml"), "w", encoding="ascii") as file:
                file.write('default = "p0"\n')
                for at in range(options.plans):
                    file.write(f'[plan.p{at}]\nby-key = {{ rate = "{at + 1}/s" }}\n')
                file.write("[keys]\n" + "".join(f'"key-{at}" = "p{at}"\n' for at in range(options.plans)))
        write(text)
        last = options.limits - 1
        print(f"{options.limits} limits and routes, a file of {len(text) / 1e6:.1f} MB")
        begun = time.monotonic()
        checked = subprocess.run([options.binary, "check", "-c", path], capture_output=True, check=True, text=True)
        show("check", (time.monotonic() - begun) * 1000)
        for mistake in (f'rate = "100/x"', f'rates = "100/s"', f'rate = 100/s', f'rate = "100/s"\nkey = "header"'):
            at = text.index(f'name = "limit-{last // 2}"')
            wrong = text[:at] + text[at:].replace('rate = "100/s"', mistake, 1)
            write(wrong)
            begun = time.monotonic()
            checked = subprocess.run([options.binary, "check", "-c", path], capture_output=True, check=False, text=True)
            report = (checked.stdout + checked.stderr).strip().split("\n")
            show(f"check, {mistake!r}"[:34], (time.monotonic() - begun) * 1000, f", {len(report)} lines: {report[-1].split(': ')[-1]}")
        wrong = text.replace(f'limits = ["limit-{last // 2}"]', 'limits = ["limit-x"]')
        write(wrong)
        begun = time.monotonic()
        checked = subprocess.run([options.binary, "check", "-c", path], capture_output=True, check=False, text=True)
        report = (checked.stdout + checked.stderr).strip().split("\n")
        show("check, a name that nothing has", (time.monotonic() - begun) * 1000, f", {len(report)} lines: {report[-1].split(': ')[-1]}")
        write(text)
        gateway = Gateway(options.binary, path, port, admin)
        try:
            measure(options, gateway, text, write, last)
        finally:
            gateway.end()


def measure(options, gateway, text, write, last):
    show("start", until(lambda: gateway.ask(f"/tenant-{last}")[0] == 200), f"; {gateway.memory()}")
    scrape(gateway)
    scrape(gateway)

    def changed(number):
        at = text.index(f'name = "limit-{last}"')
        return text[:at] + text[at:].replace('"100/s"', f'"{number}/s"', 1)

    watched = changed(300)
    write(watched)
    show("reload seen by the watcher", until(lambda: gateway.quota(f"/tenant-{last}") == 300), f"; {gateway.memory()}")
    for number in (200, 201, 202):
        write(changed(number))
        begun = time.monotonic()
        connection = gateway.connect(gateway.admin)
        connection.request("POST", "/reload")
        connection.getresponse().read()
        connection.close()
        answered = (time.monotonic() - begun) * 1000
        until(lambda: gateway.quota(f"/tenant-{last}") == number)
        show("POST /reload", (time.monotonic() - begun) * 1000, f", answered in {answered:.0f} ms; {gateway.memory()}")
    connection = gateway.connect(gateway.port)
    for clients in (1, 8):
        begun = time.monotonic()
        for at in range(options.limits):
            for client in range(clients):
                get(connection, f"/tenant-{at}", {"X-Forwarded-For": f"192.0.2.{client}"})
        show(f"{clients} client(s) of each limit", (time.monotonic() - begun) * 1000, f"; {gateway.memory()}")
    for at in range(options.plans):
        get(connection, "/planned", {"X-Api-Key": f"key-{at}"})
    if options.plans:
        print(f"a request of each plan: {gateway.memory()}")
    for at in range(options.hosts):
        host = f"{'x.' if at % 2 else ''}tenant-{at}.example"
        assert get(connection, "/", {"Host": host})[0] == 201, host
    connection.close()
    scrape(gateway)


if __name__ == "__main__":
    main()
