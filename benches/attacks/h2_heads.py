#!/usr/bin/env python3
"""HTTP/2 heads that are sent as references to one large field: how much memory they make the gateway hold.

Each connection puts a field of 3,900 bytes into the table of HPACK and opens streams that reference it 15 times each: 40
bytes on the wire are a head of 58 KB. The streams wait, and after HOLD seconds all connections are closed. Printed are
the bytes sent, and how many MB the gateway's resident memory grew by at its most and four seconds after the end.

    python3 benches/attacks/h2_heads.py target/release/sluicegate
    python3 benches/attacks/h2_heads.py target/release/sluicegate --wait server --addresses 200

It starts the gateway, on ports of loopback that the kernel chooses, and ends it.
"""
import argparse
import selectors
import socket
import time

import h2_wire as wire

WAIT = {
    # Nearly all stay in the queue of the limit.
    "limit": """
[[limit]]
name = "slow"
rate = "8/s"
max_wait = "1h"
max_queue = 1000000
[[route]]
name = "all"
limits = ["slow"]
respond = { status = 200, body = "" }
""",
    "server": """
[[upstream]]
name = "silent"
servers = ["127.0.0.1:%d"]
[[route]]
name = "all"
upstream = "silent"
""",
}


def head(path, references, is_first):
    """A header block that references one field so often; the first one brings it."""
    field = b"\x40" + wire.text(b"x") + wire.text(b"v" * 3900) if is_first else b""
    return wire.request(path) + field + b"\xbe" * (references - is_first)


def opening(streams, references):
    """What one connection sends behind its preface."""
    whole = wire.END_STREAM | wire.END_HEADERS
    return b"".join(
        wire.frame(wire.HEADERS, whole, 2 * number + 1, head(b"/", references, number == 0)) for number in range(streams)
    )


def read_for(connections, seconds):
    """Reads what comes, so that nobody waits for it; how many bytes, resets and connections that were ended."""
    ready = selectors.DefaultSelector()
    for connection in connections:
        connection.setblocking(False)
        ready.register(connection, selectors.EVENT_READ)
    until, size, ended = time.monotonic() + seconds, 0, 0
    while (left := until - time.monotonic()) > 0 and ready.get_map():
        for key, _ in ready.select(left):
            try:
                more = len(key.fileobj.recv(1 << 16))
            except ConnectionError:
                more = 0
            size += more
            if not more:
                ended += 1
                ready.unregister(key.fileobj)
    return size, ended


def attack(gateway, options):
    """One run; the figures."""
    before = gateway.memory()
    streams = opening(options.streams, options.references)
    connections, sent = [], 0
    for number in range(options.connections):
        connection = wire.connect(gateway.address, number % options.addresses)
        try:
            connection.sendall(streams)
            sent += len(streams)
        except ConnectionError:
            pass
        connections.append(connection)
    came, ended = read_for(connections, options.hold)
    most, held = gateway.memory("VmHWM") - before, gateway.memory() - before
    metrics = gateway.metrics(r"sluicegate_(http2|requests_in_flight|client_connections\b)")
    for connection in connections:
        # A reset, as of a client that vanishes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    time.sleep(4)
    after = gateway.memory() - before
    left = gateway.metrics(r"sluicegate_(requests_in_flight|client_connections)\b")
    print(f"sent {sent / 1e6:.1f} MB over {len(connections)} connections, {came / 1e6:.2f} MB came back, {ended} were ended")
    print(f"resident memory grew by {most:.0f} MB at the most, {held:.0f} MB after {options.hold} s, "
          f"{after:.0f} MB four seconds after the end")
    print("\n".join(metrics))
    print("left at the end:", ", ".join(left) or "no request, no connection")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the gateway's binary")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--streams", type=int, default=128, help="requests that each opens")
    parser.add_argument("--references", type=int, default=15, help="to the field, in each request; 0: small heads")
    parser.add_argument("--addresses", type=int, default=1, help="of clients, up to 200")
    parser.add_argument("--wait", choices=WAIT, default="limit", help="for what the requests wait")
    parser.add_argument("--hold", type=int, default=4, help="seconds before the connections are closed")
    parser.add_argument("--rounds", type=int, default=1, help="how often, against one gateway")
    options = parser.parse_args()
    with wire.SilentServer() as server:
        configuration = WAIT[options.wait]
        with wire.Gateway(options.binary, configuration % server.port if "%d" in configuration else configuration) as gateway:
            for _ in range(options.rounds):
                attack(gateway, options)


if __name__ == "__main__":
    main()
