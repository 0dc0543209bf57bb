#!/usr/bin/env python3
"""One of three servers fails under a constant load: what clients see behind Sluicegate, nginx and HAProxy.

    python3 benches/outages.py [--binary target/dist/sluicegate] [--rate 1000] [--seconds 20] [SCENARIO ...]

Scenarios: refuse (nothing listens), hang (connections are taken and nothing is answered), error (503 at once), slow (each
answer takes 0.2 s). The server fails after 5 s and works again after 13 s. Requests have 300 sticky keys; those that take
longer than 10 s are given up, and have failed. Needs nginx and haproxy; loopback only; each run ends what it started.
"""
import argparse, asyncio, os, signal, socket, subprocess, sys, tempfile, time

KEYS, FAILS_AT, WORKS_AT = 300, 5, 13


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


SERVER = r"""
import asyncio, os, signal, sys
mode = "works"
def on(signum, _):
    global mode
    mode = {signal.SIGUSR1: sys.argv[2], signal.SIGUSR2: "works"}[signum]
signal.signal(signal.SIGUSR1, on); signal.signal(signal.SIGUSR2, on)
async def serve(reader, writer):
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            if mode == "hang":
                await asyncio.sleep(3600)
            if mode == "slow":
                await asyncio.sleep(0.2)
            status = b"503 Service Unavailable" if mode == "error" else b"200 OK"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
    except (asyncio.IncompleteReadError, OSError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=512)
    async with server:
        await server.serve_forever()
asyncio.run(main())
"""


class Server:
    def __init__(self, directory, scenario):
        self.port, self.scenario = free_port(), scenario
        self.script = f"{directory}/server.py"
        with open(self.script, "w") as file:
            file.write(SERVER)
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, self.script, str(self.port), self.scenario], stderr=subprocess.DEVNULL)
        wait_for(self.port)

    def fail(self):
        if self.scenario == "refuse":
            self.stop()
        else:
            self.process.send_signal(signal.SIGUSR1)

    def work(self):
        if self.scenario == "refuse":
            self.start()
        else:
            self.process.send_signal(signal.SIGUSR2)

    def stop(self):
        self.process.kill()
        self.process.wait()


def wait_for(port):
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on {port}")


def sluicegate(directory, port, servers, binary):
    names = ", ".join(f'"127.0.0.1:{server}"' for server in servers)
    with open(f"{directory}/gateway.toml", "w") as file:
        file.write(f"""[server]\nworkers = 1\n[[listener]]\naddress = "127.0.0.1:{port}"\n[[upstream]]\nname = "app"
servers = [{names}]\nhash_key = "header:x-user"\nconnect_timeout = "500ms"
health = {{ path = "/", interval = "500ms", timeout = "500ms", fall = 2 }}
retry = {{ per_try = "500ms" }}
[[route]]\nname = "all"\nupstream = "app"\n""")
    return [binary, "run", "-c", f"{directory}/gateway.toml"]


def nginx(directory, port, servers, _):
    names = " ".join(f"server 127.0.0.1:{server} max_fails=5 fail_timeout=5s;" for server in servers)
    with open(f"{directory}/nginx.conf", "w") as file:
        file.write(f"""daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx.log;
events {{ worker_connections 4096; }}
http {{ access_log off; upstream app {{ hash $http_x_user consistent; {names} keepalive 256; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://app; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_connect_timeout 500ms; proxy_next_upstream error timeout http_502 http_503 http_504; }} }} }}
""")
    return ["nginx", "-p", directory, "-c", f"{directory}/nginx.conf"]


def haproxy(directory, port, servers, _):
    names = "\n".join(f" server s{place} 127.0.0.1:{server} check inter 500ms fall 2 rise 2" for place, server in enumerate(servers))
    with open(f"{directory}/haproxy.cfg", "w") as file:
        file.write(f"""global\n nbthread 1\n maxconn 4096\ndefaults\n mode http\n timeout connect 500ms\n timeout client 60s
 timeout server 60s\n timeout check 500ms\n option httpchk GET /\n option redispatch\n retries 3
frontend f\n bind 127.0.0.1:{port}\n default_backend b\nbackend b\n balance hdr(x-user)\n hash-type consistent\n{names}\n""")
    return ["haproxy", "-f", f"{directory}/haproxy.cfg"]


async def load(port, rate, seconds, act):
    """(sent at, took, failed) of each request, sent at even distances."""
    results, idle = [], []

    async def one(number, begun):
        sent = time.perf_counter()
        connection = idle.pop() if idle else None
        is_ok = False
        try:
            async with asyncio.timeout(10):
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", port)
                reader, writer = connection
                writer.write(f"GET / HTTP/1.1\r\nHost: x\r\nX-User: u{number % KEYS}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().split(b"content-length: ")
                await reader.readexactly(int(length[1].split(b"\r\n")[0]) if len(length) > 1 else 0)
                is_ok = head[9:12] == b"200"
            if b"connection: close" in head.lower() or len(length) < 2:
                writer.close()
            else:
                idle.append(connection)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            if connection is not None:
                connection[1].close()
        results.append((sent - begun, time.perf_counter() - sent, not is_ok))
    tasks, begun = [], time.perf_counter()
    acting = asyncio.create_task(act())
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0, begun + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number, begun)))
    await asyncio.gather(*tasks)
    await acting
    return results


def run(scenario, name, make, options):
    with tempfile.TemporaryDirectory() as directory:
        servers = [Server(directory, scenario) for _ in range(3)]
        port = free_port()
        log = open(f"{directory}/log", "wb")
        proxy = subprocess.Popen(make(directory, port, [server.port for server in servers], options.binary), stdout=log, stderr=log)
        try:
            wait_for(port)
            time.sleep(1)

            async def act():
                await asyncio.sleep(FAILS_AT)
                servers[2].fail()
                await asyncio.sleep(WORKS_AT - FAILS_AT)
                await asyncio.to_thread(servers[2].work)
            results = asyncio.run(load(port, options.rate, options.seconds, act))
        finally:
            proxy.terminate()
            proxy.wait()
            for server in servers:
                server.stop()
        failed = [sent for sent, _, is_failed in results if is_failed]
        late = [sent for sent, took, is_failed in results if took > 1 and not is_failed]
        bad = [sent for sent in failed + late if sent < WORKS_AT]
        clean = f"{max(bad) - FAILS_AT:.1f} s" if bad else "0 s"
        took = sorted(took for _, took, _ in results)
        print(f"{scenario:7} {name:10} {len(results)} requests, {len(failed)} failed, {len(late)} slower than 1 s, the last of them "
              f"sent {clean} after the fault, p99 {took[int(len(took) * 0.99)] * 1000:.0f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=["refuse", "hang", "error", "slow"])
    parser.add_argument("--binary", default="target/dist/sluicegate")
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    for scenario in options.scenarios:
        for name, make in (("sluicegate", sluicegate), ("nginx", nginx), ("haproxy", haproxy)):
            run(scenario, name, make, options)


if __name__ == "__main__":
    main()
