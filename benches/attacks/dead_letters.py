#!/usr/bin/env python3
"""Dead letters against a flood of refusals with large heads under made-up keys.

One address (127.0.0.2) sends some 4,000 requests a second over HTTP/2, two under each made-up key of a limit of one an hour, each
with a field of 3.9 KB that HPACK references by one byte (15 times); some 110 KB/s in all. Another address (127.0.0.1) is refused
under keys of its own, 20 times a second. Before that, one request times out. The log may take 64 MiB in all. Prints how fast the
directory is written, how many of the honest refusals have a record of their own at the end, and whether the record of the timeout is still
there.

    python3 benches/attacks/dead_letters.py --gateway target/release/sluicegate [--seconds 12]

To reach: at most `max_byte_rate` (4 MiB/s) written; all honest refusals recorded; the timeout still there. Standard library only.
"""
import argparse, glob, json, multiprocessing, os, socket, subprocess, tempfile, time

import raw_h2


def configuration(port, silent):
    return f"""
[[listener]]
address = "127.0.0.1:{port}"
[[upstream]]
name = "silent"
servers = ["127.0.0.1:{silent}"]
[[limit]]
name = "per-key"
key = "header:x-api-key"
rate = "1/h"
[[route]]
name = "slow"
path = "/slow"
upstream = "silent"
timeout = "300ms"
[[route]]
name = "all"
limits = ["per-key"]
respond = {{ status = 200, body = "ok" }}
[dead_letter]
max_total_size = "64MiB"
rotate_size = "4MiB"
"""


def attack(port, seconds, results):
    end, due = time.monotonic() + seconds, time.monotonic()
    number, sent, refused, connection = 0, 0, 0, None
    while time.monotonic() < end:
        if connection is None or connection.stream > 2**20:
            connection = raw_h2.Connection(port, "127.0.0.2")
            big = raw_h2.remembered(b"x", b"\x22" * 3900)
            connection.send(connection.request(raw_h2.GET + raw_h2.HTTP + raw_h2.SLASH + raw_h2.forgotten(b":authority", b"a") + big))
        try:
            block = b""
            open_streams = (connection.stream + 1) // 2 - connection.answered
            for _ in range(max(0, min(20, (100 - open_streams) // 2))):
                number += 1
                head = raw_h2.GET + raw_h2.HTTP + raw_h2.SLASH + raw_h2.forgotten(b":authority", b"a")
                head += raw_h2.forgotten(b"x-api-key", b"%x" % number) + raw_h2.indexed(62) * 15
                block += connection.request(head) + connection.request(head)
            connection.send(block)
            sent += len(block)
            alive = connection.read()
        except OSError:
            alive = False
        if not alive:
            refused, connection = refused + connection.answered, None
        due += 0.01
        time.sleep(max(0, due - time.monotonic()))
    results.put((sent, refused + (connection.answered if connection else 0)))


def request(stream, path, key):
    stream.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nX-Api-Key: {key}\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += stream.recv(65536)
    head, body = answer.split(b"\r\n\r\n", 1)
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += stream.recv(65536)
    return int(head.split(b" ")[1])


def records(directory):
    for name in glob.glob(os.path.join(directory, "*.jsonl")):
        with open(name, errors="replace") as segment:
            for line in segment:
                if '"/honest"' in line or '"timeout"' in line:
                    yield json.loads(line)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gateway", required=True)
    arguments.add_argument("--seconds", type=float, default=12)
    arguments.add_argument("--port", type=int, default=23110)
    options = arguments.parse_args()
    port = options.port
    silent = socket.create_server(("127.0.0.1", 0))
    with tempfile.TemporaryDirectory() as directory:
        file = os.path.join(directory, "gateway.toml")
        with open(file, "w") as out:
            out.write(configuration(port, silent.getsockname()[1]))
        letters = os.path.join(directory, "dead-letters")
        gateway = subprocess.Popen([options.gateway, "run", "-c", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(100):
                try:
                    stream = socket.create_connection(("127.0.0.1", port), 5)
                    break
                except OSError:
                    time.sleep(0.05)
            print("the request that times out:", request(stream, "/slow", "t"))
            stream = socket.create_connection(("127.0.0.1", port), 5)
            results = multiprocessing.Queue()
            attacker = multiprocessing.Process(target=attack, args=(port, options.seconds, results))
            attacker.start()
            start, io = time.monotonic(), f"/proc/{gateway.pid}/io"
            written = lambda: int(next(line for line in open(io) if line.startswith("wchar:")).split()[1])
            before, honest, number = written(), 0, 0
            while time.monotonic() < start + options.seconds:
                number += 1
                statuses = [request(stream, "/honest", f"honest-{number}") for _ in range(2)]
                honest += statuses.count(429)
                time.sleep(max(0, start + number * 0.05 - time.monotonic()))
            took, grown = time.monotonic() - start, written() - before
            attacker.join()
            sent, refused = results.get()
            time.sleep(1.5)
        finally:
            gateway.terminate()
            gateway.wait()
        kept = list(records(letters))
        seen = {record["id"] for record in kept if record.get("path") == "/honest"}
        print(f"the attack: {sent / options.seconds / 1e3:.0f} KB/s sent, {refused / options.seconds:.0f} answers/s")
        print(f"written by the gateway: {grown / took / 2**20:.1f} MiB/s")
        print(f"honest refusals with a record: {len(seen)} of {honest}")
        print(f"the record of the timeout is still there: {any(record.get('reason') == 'timeout' and not record.get('aggregate') for record in kept)}")


if __name__ == "__main__":
    main()
