#!/usr/bin/env python3
"""Takes requests back as soon as they are sent, over connections that come and go, and measures another route meanwhile.

    cancel_storm.py HOST:PORT [--path /slow] [--local /local] [--clients 8] [--seconds 10]

The other route is asked from 127.0.0.9, so that its client is not the one that is refused for the storm. --path is of a route to a server that answers slowly, --local of one that the gateway answers itself. HTTP/2 by prior
knowledge; Python's standard library only. It prints requests that were taken back, p50 and p99 of the local route, and
how many sockets towards the server (--server HOST:PORT) are in TIME-WAIT at the end.
"""

import argparse
import multiprocessing
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAMS = 90


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def storm(address, path, until, count):
    block = b"\x82\x86" + literal(b":path", path.encode()) + literal(b":authority", b"h")
    while time.monotonic() < until:
        try:
            sock = socket.create_connection(address, timeout=2)
            out = [PREFACE, frame(4, 0, 0)]
            for number in range(STREAMS):
                stream = 2 * number + 1
                out.append(frame(1, 5, stream, block))
                out.append(frame(3, 0, stream, struct.pack(">I", 8)))
            # In a few pieces, so that requests are under way when they are taken back.
            for start in range(0, len(out), 20):
                sock.sendall(b"".join(out[start:start + 20]))
            with count.get_lock():
                count.value += STREAMS
            sock.close()
        except OSError:
            time.sleep(0.001)


def measure(address, path, until):
    took, sock = [], None
    request = f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            sock = sock or socket.create_connection(address, timeout=5, source_address=("127.0.0.9", 0))
            sock.sendall(request)
            if not sock.recv(4096):
                raise OSError
        except OSError:
            sock = None
        took.append(time.monotonic() - began)
        time.sleep(0.005)
    took.sort()
    return took


def waiting(server):
    """Sockets to this server in TIME-WAIT (state 6)."""
    host, _, port = server.rpartition(":")
    remote = struct.pack("<I", struct.unpack(">I", socket.inet_aton(host))[0]).hex().upper() + f":{int(port):04X}"
    with open("/proc/net/tcp", encoding="ascii") as lines:
        fields = [line.split() for line in lines]
    return sum(1 for field in fields if len(field) > 3 and field[3] == "06" and remote in (field[1], field[2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--path", default="/slow")
    parser.add_argument("--local", default="/local")
    parser.add_argument("--server")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    host, _, port = args.address.rpartition(":")
    if not host.startswith("127."):
        parser.error("loopback only")
    address, until = (host, int(port)), time.monotonic() + min(args.seconds, 60)
    count = multiprocessing.Value("q", 0)
    clients = [multiprocessing.Process(target=storm, args=(address, args.path, until, count)) for _ in range(args.clients)]
    for client in clients:
        client.start()
    took = measure(address, args.local, until)
    for client in clients:
        client.join(10)
    p50, p99 = (took[int(len(took) * share)] * 1000 for share in (0.5, 0.99))
    left = f"; {waiting(args.server)} sockets to the server in TIME-WAIT" if args.server else ""
    print(f"{count.value} requests taken back; local route: {len(took)} asked, p50 {p50:.1f} ms, p99 {p99:.1f} ms{left}")


if __name__ == "__main__":
    main()
