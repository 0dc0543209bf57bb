#!/usr/bin/env python3
"""Holds connections of one address open and counts how many other addresses are served meanwhile.

    connections.py idle  HOST:PORT [--held 11000] [--others 100]   after a request each, then silence
    connections.py mute  HOST:PORT ...                              not a byte
    connections.py hello HOST:PORT [--held 2300] [--others 200]     half a TLS hello each; the others shake hands

Python's standard library only. The holders are at 127.0.0.2, the others one by one at 127.0.1.1 and on. It is bounded by
its numbers and by --seconds. It prints how many others were served, how long the slowest took, and how many of the held
connections were still open at the end.
"""

import argparse
import multiprocessing
import resource
import select
import socket
import ssl
import time

EACH = 3000


def dial(source, address, patience=5):
    sock = socket.socket()
    sock.settimeout(patience)
    sock.bind((source, 0))
    sock.connect(address)
    return sock


def hello():
    """A ClientHello, by a client that talks to nobody."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = lax().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def lax():
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def raise_files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def hold(how, address, count, ready, leave, open_at_the_end):
    """Opens connections, tells that it has, and opens those again that were closed, a few a second, until told to leave."""
    raise_files()
    first = hello()[:40]

    def one():
        sock = dial("127.0.0.2", address)
        if how == "idle":
            sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            if not sock.recv(4096):
                raise OSError("closed")
        elif how == "hello":
            sock.sendall(first)
        sock.setblocking(False)
        return sock

    socks = []
    for _ in range(count):
        try:
            socks.append(one())
        except OSError:
            pass
    ready.release()
    while not leave.wait(0.05):
        dead = closed(socks)
        for sock in dead[:50]:
            socks.remove(sock)
            sock.close()
            try:
                socks.append(one())
            except OSError:
                pass
    open_at_the_end.value += len(socks) - len(closed(socks))


def closed(socks):
    poll = select.poll()
    by_fd = {sock.fileno(): sock for sock in socks}
    for fd in by_fd:
        poll.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
    gone = []
    for fd, _ in poll.poll(0):
        try:
            if not by_fd[fd].recv(4096):
                gone.append(by_fd[fd])
        except BlockingIOError:
            pass
        except OSError:
            gone.append(by_fd[fd])
    return gone


def ask(number, how, address):
    """Whether a client of its own address is served, and how long that took."""
    began = time.monotonic()
    try:
        sock = dial(f"127.0.{1 + number // 250}.{1 + number % 250}", address)
        if how == "hello":
            sock = lax().wrap_socket(sock, server_hostname="localhost")
        sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        served = sock.recv(4096).startswith(b"HTTP/1.1 ")
        sock.close()
    except OSError:
        served = False
    return served, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["idle", "mute", "hello"])
    parser.add_argument("address")
    parser.add_argument("--held", type=int)
    parser.add_argument("--others", type=int)
    parser.add_argument("--seconds", type=float, default=60, help="at most, for the others")
    args = parser.parse_args()
    host, _, port = args.address.rpartition(":")
    address = (host, int(port))
    if not host.startswith("127."):
        parser.error("loopback only")
    held = args.held or (2300 if args.how == "hello" else 11000)
    others = args.others or (200 if args.how == "hello" else 100)

    ready, leave = multiprocessing.Semaphore(0), multiprocessing.Event()
    open_at_the_end = multiprocessing.Value("i", 0)
    shares = [min(EACH, held - start) for start in range(0, held, EACH)]
    holders = [
        multiprocessing.Process(target=hold, args=(args.how, address, share, ready, leave, open_at_the_end))
        for share in shares
    ]
    for holder in holders:
        holder.start()
    for _ in holders:
        ready.acquire(timeout=120)
    results, began = [], time.monotonic()
    for number in range(others):
        if time.monotonic() - began > args.seconds:
            break
        results.append(ask(number, args.how, address))
    leave.set()
    for holder in holders:
        holder.join(30)
    served = [took for is_served, took in results if is_served]
    slowest = max(served, default=0) * 1000
    print(f"{args.how}: held {held} of one address; served {len(served)} of {len(results)} others, slowest {slowest:.0f} ms;"
          f" {open_at_the_end.value} of the held ones open at the end")


if __name__ == "__main__":
    main()
