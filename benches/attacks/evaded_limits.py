#!/usr/bin/env python3
"""Ways round a limit that have been tried: a path_regex beside a catch-all, keys in fields that `Connection` nominates,
second spellings of cookies and paths.

    cargo build --release
    python3 benches/attacks/evaded_limits.py --binary target/release/sluicegate [--port 21010]

It starts the gateway on 127.0.0.1 with an echo server of its own and sends some seventy requests. It prints, for each way, how many
were admitted and how many may be, and exits 1 if one was more. Python 3 alone is needed.
"""

import argparse
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

LIMITS = {
    "logins": ("client-ip", "1/h", "path_regex = '/login(;.*)?'"),
    "by-key": ("header:x-api-key", "3/h", 'path = "/keyed"'),
    "by-cookie": ("cookie:sid", "3/h", 'path = "/cookies"'),
    "by-path": ("path", "3/h", 'path = "/paths"'),
}
LIMITED = """
[[limit]]
name = "{name}"
key = "{key}"
rate = "{rate}"
[[route]]
name = "{name}"
{path}
limits = ["{name}"]
upstream = "app"
"""
ROUTES = """
[[listener]]
address = "127.0.0.1:{port}"
[[upstream]]
name = "app"
servers = ["echo:a"]
"""
REST = """
[[route]]
name = "rest"
upstream = "app"
"""


def ask(port, path, *fields):
    lines = [f"GET {path} HTTP/1.1", "Host: h", *fields, "", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        return int(connection.recv(65536).split()[1])


def spellings(text):
    """One text in double quotes, each time with other characters written as octal escapes, as http.cookies reads them."""
    for bits in range(1, 20):
        yield '"' + "".join(f"\\{ord(c):03o}" if bits >> at & 1 else c for at, c in enumerate(text)) + '"'


def ways(port):
    def get(path, *fields):
        return ask(port, path, *fields) == 200

    yield "path_regex beside a catch-all", 1, [get(f"/login;x={number}") for number in range(10)]
    yield "a key that Connection nominates", 3, [
        get("/keyed", f"X-Api-Key: r{number}", "Connection: x-api-key") for number in range(20)
    ]
    yield "escapes in a cookie", 3, [get("/cookies", f"Cookie: sid={text}") for text in spellings("session")]
    yield "escapes of ! in a path", 3, [get("/paths/a" + mark) for mark in ["!", "%21"] * 10]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the gateway")
    parser.add_argument("--port", type=int, default=21010, help="a free port of 127.0.0.1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        configuration = pathlib.Path(directory, "gateway.toml")
        limits = [
            LIMITED.format(name=name, key=key, rate=rate, path=path) for name, (key, rate, path) in LIMITS.items()
        ]
        configuration.write_text("".join([ROUTES.format(port=options.port), *limits, REST]))
        gateway = subprocess.Popen([options.binary, "run", "-c", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(100):
                try:
                    socket.create_connection(("127.0.0.1", options.port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            failed = False
            for name, allowed, admitted in ways(options.port):
                count = sum(admitted)
                failed |= count > allowed
                print(f"{name}: {count} of {len(admitted)} admitted, {allowed} may be")
        finally:
            gateway.terminate()
            gateway.wait()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
