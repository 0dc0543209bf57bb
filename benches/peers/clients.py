"""Loads that wrk and h2load do not make. Run as a program of its own, on the load's core:

    clients.py handshakes PORT SECONDS CONNECTIONS    a connection and a full TLS handshake for each request
    clients.py download PORT PATH BYTES               one response, as fast as it comes
    clients.py shake PORT PROTOCOL                    which TLS a proxy speaks with us

wrk resumes TLS sessions where a server gives tickets, so it cannot compare full handshakes: this client never resumes.
"""
import json, random, selectors, socket, ssl, statistics, sys, time

REQUEST = "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


class Visit:
    """One connection: TCP, TLS, a request, its response to the end of the connection."""

    def __init__(self, context, port):
        self.begin = time.perf_counter()
        plain = socket.socket()
        # Many source addresses: closed connections keep ports of each for a minute. 24 is IP_BIND_ADDRESS_NO_PORT.
        plain.setsockopt(socket.IPPROTO_IP, 24, 1)
        plain.bind((f"127.0.{random.randrange(1, 250)}.1", 0))
        plain.connect(("127.0.0.1", port))
        plain.setblocking(False)
        self.tls = context.wrap_socket(plain, do_handshake_on_connect=False)
        self.shaken, self.answer = False, b""

    def step(self):
        """Goes as far as it can. True when the connection is at its end."""
        try:
            if not self.shaken:
                self.tls.do_handshake()
                if self.tls.session_reused:
                    raise ConnectionError("a session was resumed")
                self.shaken = True
                self.tls.send(REQUEST.format(path="/").encode())
            while piece := self.tls.recv(4096):
                self.answer += piece
            return True
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False

    def good(self):
        return self.answer.startswith(b"HTTP/1.1 200 ")


def client_context():
    """TLS 1.3 alone, X25519 alone, no check of the certificate's issuer (its signature is checked all the same)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve("X25519")
    return context


def handshakes(port, seconds, connections):
    context, poll = client_context(), selectors.DefaultSelector()
    begin = time.perf_counter()
    end, took, failed = begin + seconds, [], 0

    def visit():
        one = Visit(context, port)
        poll.register(one.tls, selectors.EVENT_READ, one)
        # The first flight of the handshake.
        one.step()

    for _ in range(connections):
        visit()
    while poll.get_map():
        for key, _ in poll.select(5) or sys.exit("no answer for 5 s"):
            one = key.data
            try:
                if not one.step():
                    continue
            except OSError:
                one.answer = b""
            took.append(time.perf_counter() - one.begin)
            failed += not one.good()
            poll.unregister(one.tls)
            one.tls.close()
            if time.perf_counter() < end:
                visit()
    cuts = statistics.quantiles(took, n=100)
    return {"requests": len(took) - failed, "seconds": time.perf_counter() - begin, "failed": failed,
            "p50": cuts[49] * 1e6, "p99": cuts[98] * 1e6}


def download(port, path, size):
    begin, buffer, got = time.perf_counter(), bytearray(1 << 20), b""
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        link.sendall(REQUEST.format(path=path).encode())
        while b"\r\n\r\n" not in got:
            piece = link.recv(65536)
            if not piece:
                sys.exit("the connection ended in the head")
            got += piece
        head, _, body = got.partition(b"\r\n\r\n")
        count = len(body)
        # MSG_TRUNC: the kernel counts bytes and copies none, so that the client is not what limits.
        while read := link.recv_into(buffer, len(buffer), socket.MSG_TRUNC):
            count += read
    took = time.perf_counter() - begin
    good = head.startswith(b"HTTP/1.1 200 ") and count == size
    return {"requests": int(good), "failed": int(not good), "seconds": took, "p50": took * 1e6, "p99": took * 1e6}


def shake(port, protocol):
    context = client_context()
    context.set_alpn_protocols([protocol])
    with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as tls:
        return {"version": tls.version(), "cipher": tls.cipher()[0], "protocol": tls.selected_alpn_protocol()}


def main(kind, port, *rest):
    if kind == "handshakes":
        result = handshakes(int(port), float(rest[0]), int(rest[1]))
    elif kind == "shake":
        result = shake(int(port), rest[0])
    else:
        result = download(int(port), rest[0], int(rest[1]))
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
