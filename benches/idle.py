#!/usr/bin/env python3
"""What an idle keep-alive connection costs: `python3 benches/idle.py PID PORT COUNT [tls | h2]`.

Opens COUNT connections to the gateway with that process id on 127.0.0.1:PORT, sends one request over each, waits, and
prints the growth of its resident memory per connection. With `tls` the listener speaks https, and so do the
connections; with `h2` they speak HTTP/2 over TLS, and send their settings in place of a request. The gateway keeps client connections up to half of its limit on
open files (`ulimit -n`); each client process needs COUNT of its own. The configuration's keep_alive_timeout has to be
longer than that takes.
"""
import re
import resource
import socket
import ssl
import sys
import time


def resident(pid):
    """Resident memory in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])


def get(connection):
    """One request and its answer, which has to come with a Content-Length."""
    connection.sendall(b"GET / HTTP/1.1\r\nHost: idle.example\r\n\r\n")
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536) or sys.exit("closed in the head of an answer")
    head, body = answer.split(b"\r\n\r\n", 1)
    left = int(re.search(rb"(?i)content-length: *(\d+)", head)[1]) - len(body)
    while left > 0:
        left -= len(connection.recv(65536)) or sys.exit("closed in the body of an answer")


def connect(port, protocol):
    """A connection after its handshake, if it has one."""
    connection = socket.create_connection(("127.0.0.1", port))
    if protocol == "http":
        return connection
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2" if protocol == "h2" else "http/1.1"])
    return context.wrap_socket(connection)


def settle(connection):
    """The preface, empty settings and the acknowledgement of the gateway's."""
    settings, acknowledged = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + acknowledged)
    connection.recv(65536) or sys.exit("closed in the settings")


def main():
    pid, port, count = (int(argument) for argument in sys.argv[1:4])
    protocol = sys.argv[4] if len(sys.argv) > 4 else "http"
    use = settle if protocol == "h2" else get
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    warm = [connect(port, protocol) for _ in range(100)]
    for connection in warm:
        use(connection)
    time.sleep(0.5)
    before = resident(pid)
    held = []
    for _ in range(count):
        connection = connect(port, protocol)
        use(connection)
        held.append(connection)
    time.sleep(1)
    grown = resident(pid) - before
    print(f"{count} idle connections: {grown} KiB more, {grown / count:.2f} KiB each")
    if protocol != "h2":
        for connection in held[:: max(1, count // 100)]:
            get(connection)
        print("a hundred of them still answer")


if __name__ == "__main__":
    main()
