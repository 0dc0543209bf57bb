#!/usr/bin/env python3
"""User instructions per request by callgrind: exact where times are noise.

    python3 benches/instructions.py [BINARY ...] [--scenarios abch] [--requests 10000] [--budget]

Needs valgrind. Each binary (by default target/dist/sluicegate) runs under callgrind twice for each scenario, with
1,000 requests and with 1,000 more than --requests; the difference is divided. The scenarios a, b and c are those of
benches/README.md, with one full dead letter a second in c, since under callgrind few requests fit into one; h is a over
HTTP/2 without TLS; s is b with the limit leased from a redis-server of its own, after the first seconds of the gateway.
All of the process counts, also its other threads. One kept
connection, loopback only; each run ends what it started. With --budget each figure is compared with the table of benches/README.md;
the exit status is 1 if one is more than 1% above it.
"""
import argparse, os, re, socket, subprocess, sys, tempfile, threading, time

CONFIG = {
    "a": 'name = "all"\nupstream = "app"\n',
    "h": 'name = "all"\nupstream = "app"\n',
    "b": 'name = "all"\nupstream = "app"\nlimits = ["per-key"]\n\n[[limit]]\nname = "per-key"\nkey = "header:x-api-key"\nrate = "100000/s"\n',
    "c": 'name = "all"\nupstream = "app"\nlimits = ["per-key"]\n\n[[limit]]\nname = "per-key"\nkey = "header:x-api-key"\nrate = "1/1h"\n\n'
         '[dead_letter]\ndirectory = "dead-letters"\nmax_record_rate = 1\n',
}
# No answer is late under callgrind.
CONFIG["s"] = CONFIG["b"] + 'shared = "lease"\n\n[fleet]\nstore = "unix://{folder}/store"\nsecret_file = "fleet.key"\ndeadline = "1s"\n'
ANSWER = b"HTTP/1.1 200 OK\r\nserver: x\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\n" + b"x" * 100


def serve(listener):
    """A server that answers each request with the same 100 bytes. Requests come one at a time on each connection."""
    def one(peer):
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.recv(65536):
                peer.sendall(ANSWER)
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=one, args=(peer,), daemon=True).start()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def request_h1(keys):
    for at in range(keys):
        yield f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: key-{(at * 7919) % 100000000:08d}\r\n\r\n".encode()


def drive_h1(port, count):
    # A hundred keys, so that in c all but the first hundred requests are refused.
    requests = list(request_h1(100))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(count):
            client.sendall(requests[at % len(requests)])
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += client.recv(65536)
            head, body = answer.split(b"\r\n\r\n", 1)
            length = int(re.search(rb"content-length: (\d+)", head, re.I).group(1))
            while len(body) < length:
                body += client.recv(65536)


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def drive_h2(port, count):
    # :method GET, :scheme http, :path /, and :authority, literal without indexing.
    head = bytes([0x82, 0x86, 0x84, 0x01, 9]) + b"127.0.0.1"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(8, 0, 0, (2**30).to_bytes(4, "big")))
        buffer = b""
        for at in range(count):
            stream = 2 * at + 1
            client.sendall(frame(1, 5, stream, head))
            ended = False
            while not ended:
                while len(buffer) < 9 or len(buffer) < 9 + int.from_bytes(buffer[:3], "big"):
                    more = client.recv(65536)
                    if not more:
                        sys.exit("the gateway closed the connection")
                    buffer += more
                length = int.from_bytes(buffer[:3], "big")
                kind, flags, of = buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big")
                ended = kind in (0, 1) and flags & 1 and of == stream
                buffer = buffer[9 + length:]


def instructions(binary, scenario, count, upstream):
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gateway.toml")
        with open(path, "w") as file:
            file.write(f'[server]\nworkers = 1\n\n[[listener]]\naddress = "127.0.0.1:{port}"\n\n[[upstream]]\nname = "app"\n'
                       f'servers = ["127.0.0.1:{upstream}"]\n\n[[route]]\n' + CONFIG[scenario].replace("{folder}", folder))
        with open(os.path.join(folder, "fleet.key"), "w") as key:
            key.write("0123456789abcdef" * 4)
        store = None
        if scenario == "s":
            store = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", f"{folder}/store", "--save", "", "--dir", folder],
                                     stdout=subprocess.DEVNULL)
        out = os.path.join(folder, "callgrind")
        gateway = subprocess.Popen(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", binary, "run", "-c", path],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = []
        reader = threading.Thread(target=lambda: said.extend(gateway.stderr), daemon=True)
        reader.start()
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        if store:
            time.sleep(6)
        (drive_h2 if scenario == "h" else drive_h1)(port, count)
        gateway.terminate()
        gateway.wait(60)
        reader.join()
        if store:
            store.terminate()
            store.wait()
        return int(re.search(r"Collected : (\d+)", "".join(said)).group(1))


def budget():
    """The table of benches/README.md, "Instructions": a scenario and its instructions a request."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "README.md")) as file:
        section = file.read().partition("### Instructions\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| ([a-z]) [^|]*\| ([\d,]+) \|", section, re.M)
    return {scenario: int(figure.replace(",", "")) for scenario, figure in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="*", default=["target/dist/sluicegate"])
    parser.add_argument("--scenarios", default="abch")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--budget", action="store_true")
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    upstream = listener.getsockname()[1]
    first = {}
    allowed = budget() if options.budget else {}
    is_kept = True
    for binary in options.binary:
        for scenario in options.scenarios:
            low, high = (instructions(binary, scenario, count, upstream) for count in (1000, 1000 + options.requests))
            each = (high - low) / options.requests
            against = f"  {each / first[scenario]:.3f} of the first" if scenario in first else ""
            first.setdefault(scenario, each)
            if scenario in allowed:
                against += f"  {each / allowed[scenario]:.3f} of the budget"
                is_kept &= each <= 1.01 * allowed[scenario]
            print(f"{scenario}  {each:10.0f} instructions a request{against}  {binary}", flush=True)
    if not is_kept:
        sys.exit("more than 1% above the budget: win it back, or change the table of benches/README.md and say what it buys")


if __name__ == "__main__":
    main()
