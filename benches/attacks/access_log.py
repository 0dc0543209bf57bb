#!/usr/bin/env python3
"""The access log against a path that is expensive to redact.

Starts a gateway with the access log on, measures an honest client (one GET at a time over HTTP/1.1), then again while
6,000 requests a second name a path of 3.9 KB, a query full of `=`, by an indexed HPACK field (93 KB/s in all), on loopback and for a few
seconds. Prints the honest client's p50 and p99 in milliseconds, what the attack got through, and the lines that the log lost.

    python3 benches/attacks/access_log.py --gateway target/release/sluicegate [--rate 6000] [--seconds 8] [--start /?] [--piece =]

To reach: an honest p50 under the attack of at most twice that without. Standard library only.
"""
import argparse, multiprocessing, os, socket, subprocess, tempfile, time, urllib.request

import raw_h2


def configuration(port, admin):
    return f"""
[log]
access = "json"
[[listener]]
address = "127.0.0.1:{port}"
[admin]
address = "127.0.0.1:{admin}"
[[route]]
name = "honest"
path = "/honest"
respond = {{ status = 200, body = "ok" }}
"""


def attack(port, rate, seconds, start, piece, results):
    path = (start + piece * 4000)[:3900].encode()
    connections, slices = [], 100
    per = rate // slices
    end, due = time.monotonic() + seconds, time.monotonic()
    sent = answered = lost = 0
    connection = None
    while time.monotonic() < end:
        if connection is None or connection.stream > 2**20:
            connection = raw_h2.Connection(port)
            first = raw_h2.GET + raw_h2.HTTP + raw_h2.remembered(b":path", path) + raw_h2.remembered(b":authority", b"a")
            connection.send(connection.request(first))
            block = raw_h2.GET + raw_h2.HTTP + raw_h2.indexed(63) + raw_h2.indexed(62)
        try:
            # No more than the gateway takes at once: 100 streams are open at most.
            open_streams = (connection.stream + 1) // 2 - connection.answered
            count = max(0, min(per, 100 - open_streams))
            if count:
                connection.send(b"".join(connection.request(block) for _ in range(count)))
                sent += count
            alive = connection.read()
        except OSError:
            alive = False
        if not alive:
            answered, lost, connection = answered + connection.answered, lost + 1, None
        due += 1 / slices
        time.sleep(max(0, due - time.monotonic()))
    results.put((sent, answered + (connection.answered if connection else 0), lost))


def honest(port, seconds):
    stream = socket.create_connection(("127.0.0.1", port), 5)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        stream.sendall(b"GET /honest HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = b""
        while not answer.endswith(b"ok"):
            answer += stream.recv(65536)
        took.append((time.perf_counter() - start) * 1e3)
        time.sleep(0.002)
    took.sort()
    return took[len(took) // 2], took[int(len(took) * 0.99)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gateway", required=True)
    arguments.add_argument("--rate", type=int, default=6000)
    arguments.add_argument("--seconds", type=float, default=8)
    arguments.add_argument("--piece", default="=", help="what the path is full of")
    arguments.add_argument("--start", default="/?", help="what it begins with")
    arguments.add_argument("--port", type=int, default=23100)
    options = arguments.parse_args()
    port, admin = options.port, options.port + 1
    with tempfile.TemporaryDirectory() as directory:
        file = os.path.join(directory, "gateway.toml")
        with open(file, "w") as out:
            out.write(configuration(port, admin))
        with open(os.path.join(directory, "access.log"), "wb") as log:
            gateway = subprocess.Popen([options.gateway, "run", "-c", file], stdout=log, stderr=subprocess.DEVNULL)
            try:
                for _ in range(100):
                    try:
                        socket.create_connection(("127.0.0.1", port), 0.1).close()
                        break
                    except OSError:
                        time.sleep(0.05)
                before = honest(port, min(options.seconds, 4))
                results = multiprocessing.Queue()
                attacker = multiprocessing.Process(target=attack, args=(port, options.rate, options.seconds, options.start, options.piece, results))
                attacker.start()
                time.sleep(0.5)
                under = honest(port, options.seconds - 1)
                attacker.join()
                sent, answered, lost = results.get()
                metrics = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode()
                dropped = [line for line in metrics.splitlines() if line.startswith("sluicegate_access_log_dropped_total")]
            finally:
                gateway.terminate()
                gateway.wait()
        print(f"honest client alone:         p50 {before[0]:.3f} ms, p99 {before[1]:.3f} ms")
        print(f"under the attack:            p50 {under[0]:.3f} ms, p99 {under[1]:.3f} ms ({under[0] / before[0]:.1f} times the p50)")
        print(f"the attack: {sent / options.seconds:.0f} requests/s sent, {answered / options.seconds:.0f}/s answered, {lost} connections ended")
        print(f"log: {os.path.getsize(os.path.join(directory, 'access.log')) / 1e6:.1f} MB; {dropped}")


if __name__ == "__main__":
    main()
