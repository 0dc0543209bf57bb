#!/usr/bin/env python3
"""A server with 8 places and 20 ms, and more load than it can take: what clients see behind Sluicegate, nginx and HAProxy.

    python3 benches/overload.py [--binary target/dist/sluicegate] [--seconds 10] [--warm 10] [--load 0.5 1 2 5] [PROXY ...]

The server does 400 requests a second at most, and works on 8 at once; more wait in it. 100 clients (127.0.1.1 to 127.0.1.100)
ask at random moments, at 0.5, 1, 2 and 5 times that rate together; one of them sends half of it. Each proxy limits a client to
100 requests a second and has its own means against overload. Goodput is answers 200 within 500 ms. After the last load the clients
ask at 0.5 times again, and it is timed until a second has no refusal and no answer above 200 ms. Needs nginx and haproxy;
loopback only; each run ends what it started.
"""
import argparse, asyncio, collections, random, subprocess, sys, tempfile, time

from outages import free_port, wait_for

PLACES, TIME, CLIENTS = 8, 0.02, 100
CAPACITY = PLACES / TIME
GOOD = 0.5

SERVER = f"""
import asyncio, sys
async def main():
    places = asyncio.Semaphore({PLACES})
    async def serve(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\\r\\n\\r\\n")
                async with places:
                    await asyncio.sleep({TIME})
                writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=1024) as server:
        await server.serve_forever()
asyncio.run(main())
"""


def sluicegate(directory, port, server, binary):
    with open(f"{directory}/gateway.toml", "w") as file:
        file.write(f"""[server]\nworkers = 1\n[[listener]]\naddress = "127.0.0.1:{port}"
[[limit]]\nname = "client"\nrate = "100/s"\nadaptive = true
[overload]\nresponse_time = {{ upstream = "app", above = "200ms" }}
[[upstream]]\nname = "app"\nservers = ["127.0.0.1:{server}"]\nmax_in_flight = "auto"\npending_timeout = "150ms"
[[route]]\nname = "all"\nupstream = "app"\nlimits = ["client"]\n""")
    return [binary, "run", "-c", f"{directory}/gateway.toml"]


def nginx(directory, port, server, _):
    """Of nginx's own means: a rate for each client, and a bound of requests for each and for all."""
    with open(f"{directory}/nginx.conf", "w") as file:
        file.write(f"""daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx.log crit;
events {{ worker_connections 8192; }}
http {{ access_log off; upstream app {{ server 127.0.0.1:{server}; keepalive 256; }}
limit_req_zone $binary_remote_addr zone=rate:10m rate=100r/s; limit_conn_zone $binary_remote_addr zone=client:10m;
limit_conn_zone $server_name zone=all:1m; limit_req_status 429; limit_conn_status 503; keepalive_requests 1000000;
server {{ listen 127.0.0.1:{port} backlog=4096; server_name app; location / {{ limit_req zone=rate burst=100 nodelay;
limit_conn client 16; limit_conn all 64; proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}
""")
    return ["nginx", "-p", directory, "-c", f"{directory}/nginx.conf"]


def haproxy(directory, port, server, _):
    """Of HAProxy's own means: a rate for each client, as many requests at the server as it has places, and a short queue."""
    with open(f"{directory}/haproxy.cfg", "w") as file:
        file.write(f"""global\n nbthread 1\n maxconn 8192\ndefaults\n mode http\n timeout connect 1s\n timeout client 60s
 timeout server 60s\n timeout queue 300ms
frontend f\n bind 127.0.0.1:{port}\n stick-table type ip size 1k expire 10s store http_req_rate(1s)\n http-request track-sc0 src
 http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 100 }}\n default_backend b
backend b\n server app 127.0.0.1:{server} maxconn {PLACES}\n""")
    return ["haproxy", "-f", f"{directory}/haproxy.cfg"]


class Client:
    """A client with connections that it keeps."""

    def __init__(self, number, port):
        self.source, self.port, self.idle = (f"127.0.1.{number + 1}", 0), port, []

    async def ask(self):
        """The status; 0: none."""
        try:
            reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port, local_addr=self.source)
        except OSError:
            return 0
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()
            return 0
        if b"connection: close" in head.lower():
            writer.close()
        else:
            self.idle.append((reader, writer))
        return int(head[9:12])


async def load(clients, times, seconds, seed=1):
    """(number of the client, asked at, took, status) of each request."""
    draw, results, tasks, began = random.Random(seed), [], set(), time.monotonic()

    async def one(number, at):
        status = await clients[number].ask()
        results.append((number, at, time.monotonic() - began - at, status))

    due = 0.0
    while due < seconds:
        due += draw.expovariate(times * CAPACITY)
        await asyncio.sleep(max(0, began + due - time.monotonic()))
        number = 0 if draw.random() < 0.5 else draw.randrange(1, CLIENTS)
        task = asyncio.create_task(one(number, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=30)
    return results


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def report(name, times, results, warm, seconds):
    counted = [own for own in results if own[1] >= warm]
    good = [own for own in counted if own[3] == 200 and own[2] <= GOOD]
    others = [own for own in counted if own[0] > 0]
    served = [own[2] for own in others if own[3] == 200]
    refused = collections.Counter(own[3] for own in counted if own[3] != 200)
    print(f"| {name} | {times} | {len(good) / seconds:.0f} | {quantile(served, 0.5) * 1000:.0f} | {quantile(served, 0.99) * 1000:.0f} | "
          f"{100 * len(served) / max(1, len(others)):.0f}% | {dict(sorted(refused.items()))} |", flush=True)


async def recovery(name, clients):
    """Seconds until a second is normal."""
    results, seconds = await load(clients, 0.5, 20, seed=2), 20
    for second in range(seconds):
        part = [own for own in results if second <= own[1] < second + 1 and own[0] > 0]
        if all(own[3] == 200 and own[2] < 0.2 for own in part):
            print(f"{name}: normal after {second} s", flush=True)
            return
    print(f"{name}: not normal within {seconds} s", flush=True)


async def measure(name, port, options):
    clients = [Client(number, port) for number in range(CLIENTS)]
    for times in options.load:
        results = await load(clients, times, options.warm + options.seconds)
        report(name, times, results, options.warm, options.seconds)
    await recovery(name, clients)


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--binary", default="target/release/sluicegate")
    flags.add_argument("--seconds", type=float, default=10)
    flags.add_argument("--warm", type=float, default=10)
    flags.add_argument("--load", type=float, nargs="+", default=[0.5, 1, 2, 5])
    flags.add_argument("proxies", nargs="*", metavar="PROXY", default=["sluicegate", "nginx", "haproxy"])
    options = flags.parse_args()
    print("| proxy | load | goodput/s | others' p50 ms | others' p99 ms | others' 200 | other statuses |\n|---|---|---|---|---|---|---|")
    for name in options.proxies:
        with tempfile.TemporaryDirectory() as directory:
            server, port = free_port(), free_port()
            running = [subprocess.Popen([sys.executable, "-c", SERVER, str(server)])]
            try:
                wait_for(server)
                command = {"sluicegate": sluicegate, "nginx": nginx, "haproxy": haproxy}[name](directory, port, server, options.binary)
                running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                wait_for(port)
                asyncio.run(measure(name, port, options))
            finally:
                for process in running:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    main()
