#!/usr/bin/env python3
"""HTTP/2 connections that send DATA frames of one byte without pause: how long an honest client waits meanwhile.

`answered`: on a stream that was answered and reset before, after 500 others. `late-heads`: header blocks there. `live`: on
uploads that a server takes and never answers. `resets`: requests that are reset at once, over connections that are opened
anew when they are ended. The honest client asks over kept connections of HTTP/1.1 for an answer of the gateway's own, 100
times a second, first alone and then under attack. Printed are its p50 and p99 and how many frames were sent.

    python3 benches/attacks/h2_turns.py target/release/sluicegate answered

It starts the gateway, on ports of loopback that the kernel chooses, and ends it. Attackers, honest client and gateway share
the cores that there are: `taskset -c 0,1` makes them two.
"""
import argparse
import os
import select
import signal
import socket
import time

import h2_wire as wire

CONFIGURATION = """
[[upstream]]
name = "silent"
servers = ["127.0.0.1:%d"]
[[route]]
name = "local"
path = "/local"
respond = { status = 200, body = "local" }
[[route]]
name = "all"
upstream = "silent"
"""
WHOLE = wire.END_HEADERS | wire.END_STREAM


def answered(connection, kind):
    """Has uploads answered early, then sends on the last one of them what is late."""
    for first in range(0, 500, 100):
        numbers = range(first, first + 100)
        heads = (wire.frame(wire.HEADERS, wire.END_HEADERS, 2 * n + 1, wire.request(b"/local", b"POST")) for n in numbers)
        connection.sendall(b"".join(heads))
        wait_for_resets(connection, 100)
    if kind == "answered":
        return wire.frame(wire.DATA, 0, 999, b"x") * 10_000, 10_000
    return wire.frame(wire.HEADERS, WHOLE, 999, b"\x82" * 4_000) * 200, 200


def live(connection, _):
    """Opens uploads that nobody answers; frames for each in turn."""
    numbers = [2 * n + 1 for n in range(16)]
    heads = (wire.frame(wire.HEADERS, wire.END_HEADERS, n, wire.request(b"/up", b"POST")) for n in numbers)
    connection.sendall(b"".join(heads))
    return b"".join(wire.frame(wire.DATA, 0, n, b"x") for n in numbers) * 600, 9_600


def wait_for_resets(connection, count):
    """Reads until so many streams were reset."""
    connection.settimeout(10)
    come = b""
    while come.count(b"\0\0\x04\x03\0") < count:
        come += connection.recv(1 << 16) or exit("closed before the attack")


class Resets:
    """Requests that are reset at once, each on a number of its own."""

    def __init__(self):
        self.at = 0

    def block(self):
        """The next hundred."""
        block = request = b""
        for _ in range(100):
            request = wire.frame(wire.HEADERS, WHOLE, 2 * self.at + 1, wire.request(b"/slow"))
            block += request + wire.frame(wire.RESET, 0, 2 * self.at + 1, b"\0\0\0\x08")
            self.at += 1
        return block, 200


def attack(address, kind, count, seconds, tell):
    """Pours over `count` connections as fast as they take it; says how many frames and connections that were."""
    until = time.monotonic() + seconds
    frames = opened = 0
    pouring = {}
    while time.monotonic() < until:
        while len(pouring) < count and time.monotonic() < until:
            try:
                connection = wire.connect(address)
                source = Resets() if kind == "resets" else None
                block, size = source.block() if source else (live if kind == "live" else answered)(connection, kind)
            except OSError:
                continue
            opened += 1
            connection.setblocking(False)
            pouring[connection] = [block, size, 0, source]
        readable, writable, _ = select.select(list(pouring), list(pouring), [], 0.1)
        for connection in readable:
            try:
                gone = not connection.recv(1 << 16)
            except OSError:
                gone = True
            if gone:
                pouring.pop(connection, None)
                connection.close()
        for connection in writable:
            state = pouring.get(connection)
            if state is None:
                continue
            block, size, at, source = state
            try:
                sent = connection.send(memoryview(block)[at:])
            except BlockingIOError:
                continue
            except OSError:
                pouring.pop(connection, None)
                connection.close()
                continue
            frames += size * sent // len(block)
            state[2] = (at + sent) % len(block)
            if source and state[2] == 0:
                state[0], state[1] = source.block()
    os.write(tell, b"%d %d\n" % (frames, opened))


def ask(connection):
    """One request of the honest client; how many milliseconds it took."""
    begun = time.monotonic()
    connection.sendall(b"GET /local HTTP/1.1\r\nHost: honest.example\r\n\r\n")
    answer = b""
    while not answer.endswith(b"local"):
        answer += connection.recv(65536) or exit("the honest client was closed")
    return (time.monotonic() - begun) * 1000


def measure(address, seconds):
    """p50 and p99 of the honest client."""
    # An address of its own: that of the attackers is refused what they have had.
    connections = [socket.create_connection(address, source_address=("127.0.0.9", 0)) for _ in range(10)]
    took, begun = [], time.monotonic()
    while (at := time.monotonic()) < begun + seconds:
        took.append(ask(connections[len(took) % 10]))
        time.sleep(max(0, 0.01 - (time.monotonic() - at)))
    took.sort()
    return f"p50 {took[len(took) // 2]:.1f} ms, p99 {took[len(took) * 99 // 100]:.1f} ms, {len(took)} requests"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the gateway's binary")
    parser.add_argument("kind", choices=["answered", "late-heads", "live", "resets"])
    parser.add_argument("--connections", type=int, default=100, help="of all attackers")
    parser.add_argument("--attackers", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    with wire.SilentServer() as server, wire.Gateway(options.binary, CONFIGURATION % server.port) as gateway:
        print(f"alone:        {measure(gateway.address, 3)}")
        read, write = os.pipe()
        each = options.connections // options.attackers
        attackers = []
        for _ in range(options.attackers):
            attackers.append(os.fork())
            if attackers[-1] == 0:
                wire.may_open_many()
                try:
                    attack(gateway.address, options.kind, each, options.seconds + 6, write)
                finally:
                    os._exit(0)
        time.sleep(4)
        print(f"under attack: {measure(gateway.address, options.seconds)}", flush=True)
        metrics = gateway.metrics(r"sluicegate_http2|sluicegate_client_connections_total")
        for pid in attackers:
            os.waitpid(pid, 0)
        told = [line.split() for line in os.read(read, 4096).decode().splitlines()]
        frames, opened = (sum(int(line[at]) for line in told) for at in (0, 1))
        print(f"the attackers sent {frames} frames over {opened} connections")
        print("\n".join(metrics))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main()
