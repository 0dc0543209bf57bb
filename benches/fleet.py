#!/usr/bin/env python3
"""Three gateways (one in `promised`) and one Redis: what a shared limit admits, read from the access logs, and how long requests wait.

    python3 benches/fleet.py [--binary target/dist/sluicegate] [--store redis-server] [SCENARIO ...]

Scenarios: even, skewed, costs, cold, strict, flood, golden, promised, promised-3, and the drills frozen, killed, hole, paused, flushed, scripts, memory, gone.
Without any, all of them. Needs redis-server (or Valkey's: --store) and redis-cli; flood and promised need wrk; hole needs root for a network namespace.
The instant of an admission is `ts` and `wait_ms` of its line. Loopback only; each run ends what it started. Exit 1 if a
promise of docs/fleet.md, docs/fleet-bounds.md or docs/fleet-drills.md was not kept.
"""
import argparse, asyncio, collections, json, os, signal, socket, subprocess, sys, tempfile, time

SLACK = 0.002
GATEWAYS = 3


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Store:
    def __init__(self, binary, directory, namespace=None, host="127.0.0.1"):
        self.binary, self.directory, self.namespace, self.host = binary, directory, namespace, host
        self.port = free_port()
        self.start()

    def start(self):
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        self.process = subprocess.Popen(
            inside + [self.binary, "--bind", self.host, "--port", str(self.port), "--save", "", "--appendonly", "no",
                      "--protected-mode", "no", "--dir", self.directory],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            if self.ask("ping") == "PONG":
                return
            time.sleep(0.02)
        sys.exit("the store does not start")

    def ask(self, *words):
        command = ["redis-cli", "-h", self.host, "-p", str(self.port), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    def pid(self):
        # Inside a namespace it is the child of `ip`, which it has replaced.
        return self.process.pid

    def stop(self):
        os.kill(self.pid(), signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Fleet:
    """Gateways on one file each, in one directory."""

    def __init__(self, binary, store, limit, on_failure="fair", deadline="10ms", gateways=GATEWAYS, workers=1):
        self.directory, self.count = tempfile.mkdtemp(prefix="fleet-"), gateways
        with open(f"{self.directory}/fleet.key", "w") as key:
            key.write("0123456789abcdef" * 4)
        self.gateways, self.ports, self.admins = [], [], []
        for index in range(gateways):
            port, admin = free_port(), free_port()
            with open(f"{self.directory}/gw-{index}.toml", "w") as file:
                file.write(
                    f'[[listener]]\naddress = "127.0.0.1:{port}"\n[admin]\naddress = "127.0.0.1:{admin}"\n'
                    f'[server]\nworkers = {workers}\n[log]\naccess = "json"\n'
                    f'[fleet]\nstore = "redis://{store.host}:{store.port}"\nsecret_file = "fleet.key"\n'
                    f'node = "gw-{index}"\ndeadline = "{deadline}"\non_failure = "{on_failure}"\n'
                    f'[[limit]]\nname = "per-key"\nkey = "header:x-key"\n{limit}\n'
                    f'[[route]]\nname = "all"\nlimits = ["per-key"]\nrespond = {{ status = 200, body = "ok" }}\n')
            out = open(f"{self.directory}/gw-{index}.out", "wb")
            log = open(f"{self.directory}/gw-{index}.log", "wb")
            command = [binary, "run", "-c", f"{self.directory}/gw-{index}.toml"]
            self.gateways.append(subprocess.Popen(command, stdout=out, stderr=log))
            self.ports.append(port)
            self.admins.append(admin)
        # Until they know each other, and have credit.
        deadline = time.time() + 15
        while time.time() < deadline and not all(self.is_known(index) for index in range(gateways)):
            time.sleep(0.1)

    def status(self, index):
        import urllib.request
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admins[index]}/api/v1/fleet", timeout=5) as answer:
            return json.load(answer)

    def is_known(self, index):
        try:
            status = self.status(index)
            return status["gateways"] == self.count and not status["is_newcomer"]
        except OSError:
            return False

    def lines(self, index):
        with open(f"{self.directory}/gw-{index}.out") as file:
            for line in file:
                if line.startswith("{"):
                    yield json.loads(line)

    def admitted(self, index=None):
        """(instant, key) of each admission, in order."""
        from datetime import datetime
        all_of = range(self.count) if index is None else [index]
        found = []
        for one in all_of:
            for line in self.lines(one):
                if line["status"] == 200:
                    at = datetime.fromisoformat(line["ts"].replace("Z", "+00:00")).timestamp()
                    found.append((at + line.get("wait_ms", 0) / 1000, line["target"]))
        return sorted(found)

    def took(self):
        """Milliseconds of all requests, as the gateways logged them, sorted."""
        return sorted(line["took_ms"] for one in range(self.count) for line in self.lines(one))

    def stop(self):
        for gateway in self.gateways:
            if gateway.poll() is None:
                gateway.terminate()
        for gateway in self.gateways:
            gateway.wait()


async def ask(connection, key):
    reader, writer = connection
    writer.write(f"GET /{key} HTTP/1.1\r\nHost: g\r\nX-Key: {key}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head[9:12])


async def load(fleet, rates, seconds, key_of, connections=8):
    """Asks each gateway so many times a second, at even distances; a request that is late is not left out."""
    statuses = collections.Counter()
    waits = []

    async def drive(index, rate):
        pool = asyncio.Queue()
        for _ in range(connections):
            pool.put_nowait(await asyncio.open_connection("127.0.0.1", fleet.ports[index]))

        async def one(number):
            connection = await pool.get()
            begun = time.perf_counter()
            try:
                statuses[index, await ask(connection, key_of(number))] += 1
                waits.append((time.perf_counter() - begun) * 1000)
                pool.put_nowait(connection)
            except (OSError, asyncio.IncompleteReadError):
                statuses[index, 0] += 1
        tasks, begun = [], time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0, begun + number / rate - time.perf_counter()))
            if fleet.gateways[index].poll() is None:
                tasks.append(asyncio.create_task(one(number)))
        await asyncio.gather(*tasks)
    await asyncio.gather(*(drive(index, rate) for index, rate in enumerate(rates) if rate))
    return statuses, sorted(waits)


def most_within(instants, stretch):
    most, first = 0, 0
    for last, at in enumerate(instants):
        while at - instants[first] > stretch:
            first += 1
        most = max(most, last - first + 1)
    return most


def at_percent(values, percent):
    return values[min(len(values) - 1, int(len(values) * percent / 100))] if values else 0.0


class Report:
    is_kept = True

    def say(self, name, text, kept=True):
        Report.is_kept &= kept
        print(f"{name:8} {'kept' if kept else 'BROKEN'}: {text}", flush=True)


REPORT = Report()


def bound_of(fleet):
    bound = fleet.status(0)["limits"][0]["bounds"][0]
    return bound["most"], (bound["within_ms"] or 0) / 1000


def operations(store, before=0):
    figures = store.ask("info", "commandstats")
    calls = [line for line in figures.splitlines() if line.startswith("cmdstat_evalsha:")]
    return int(calls[0].split("calls=")[1].split(",")[0]) - before if calls else 0


def spread(name, binary, store, rates, limit='rate = "100/s"\nshared = "lease"'):
    fleet = Fleet(binary, store, limit)
    try:
        most, stretch = bound_of(fleet)
        before = operations(store)
        statuses, waits = asyncio.run(load(fleet, rates, 12, lambda _: "a"))
        calls = operations(store, before)
        time.sleep(0.3)
        worst = most_within([at for at, _ in fleet.admitted()], stretch - SLACK)
        own = [len(fleet.admitted(index)) / 12 for index in range(GATEWAYS)]
        share = 100 / GATEWAYS
        # Where each asks for more than its share.
        is_fair = any(rate < share for rate in rates) or all(one >= share / 4 for one in own)
        total = sum(statuses.values())
        REPORT.say(name, f"{worst} in the worst {stretch:.3f} s, {most} promised; {sum(own):.1f}/s of {sum(rates)}/s asked, "
                         f"by gateway {' '.join(f'{one:.1f}' for one in own)}; {calls / total:.2f} store operations a request; "
                         f"p99 {at_percent(waits, 99):.1f} ms", worst <= most and is_fair)
    finally:
        fleet.stop()


def moved(store):
    figures = dict(line.split(":") for line in store.ask("info", "stats").split() if line.startswith("total_net_"))
    return int(figures["total_net_input_bytes"]) + int(figures["total_net_output_bytes"])


def costs(name, binary, store):
    """Store operations and bytes a request, and latencies, by L and the number of gateways; and without sharing."""
    def cell(gateways, rate, asked, shared):
        fleet = Fleet(binary, store, f'rate = "{rate}/s"\nshared = "{shared}"', gateways=gateways)
        try:
            first = moved(store)
            before, own = operations(store), moved(store) - first
            begun = moved(store)
            statuses, waits = asyncio.run(load(fleet, [asked / gateways] * gateways, 6, lambda _: f"{shared}{rate}"))
            total, idle = sum(statuses.values()), 6 * gateways
            calls, sent = operations(store, before) - idle, moved(store) - begun - own
            took = fleet.took()
            REPORT.say(name, f"{gateways} gateways, {shared} {rate}/s, asked {asked}/s: {calls / total:.2f} operations and {sent / total:.0f} "
                             f"bytes a request; took p50 {at_percent(took, 50):.2f}, p99 {at_percent(took, 99):.2f} ms")
        finally:
            fleet.stop()
    for rate, loads in ((100, (50, 180)), (1000, (500, 1500))):
        for asked in loads:
            for gateways in (1, 3, 6):
                cell(gateways, rate, asked, "lease")
            cell(3, rate, asked, "strict")
            cell(3, rate, asked, "off")


def cold(name, binary, store):
    fleet = Fleet(binary, store, 'rate = "20/s"\nshared = "lease"')
    try:
        most, stretch = bound_of(fleet)
        # Each key is asked ten times by each gateway, within a second or so: 30 for 20.
        statuses, waits = asyncio.run(load(fleet, [500] * 3, 20, lambda number: f"k{number // 500 * 50 + number % 50}", 32))
        time.sleep(0.3)
        by_key = collections.defaultdict(list)
        for at, key in fleet.admitted():
            by_key[key].append(at)
        worst = max(most_within(instants, stretch - SLACK) for instants in by_key.values())
        REPORT.say(name, f"{len(by_key)} keys, {worst} in the worst {stretch:.3f} s of any, {most} promised; "
                         f"{sum(statuses.values())} requests, p99 {at_percent(waits, 99):.1f} ms",
                   worst <= most and len(by_key) == 1000)
    finally:
        fleet.stop()


def flood(name, binary, store):
    """Somebody makes up keys as fast as one gateway takes them, beside a key that is asked for more than its rate."""
    fleet = Fleet(binary, store, 'rate = "100/s"\nshared = "lease"')
    script = f"{fleet.directory}/keys.lua"
    with open(script, "w") as file:
        file.write("local n = 0\nfunction init(args) math.randomseed(tonumber(tostring({}):sub(8), 16)) end\n"
                   "function request()\n  n = n + 1\n"
                   "  local key = string.format('n%x-%d', math.random(0, 2147483647), n)\n"
                   "  return wrk.format('GET', '/' .. key, {['X-Key'] = key})\nend\n")

    async def run():
        target = f"http://127.0.0.1:{fleet.ports[0]}/"
        flood = await asyncio.create_subprocess_exec("wrk", "-t1", "-c16", "-d12s", "-s", script, target,
                                                     stdout=subprocess.PIPE)
        done = await load(fleet, [60] * 3, 12, lambda _: "a")
        return done, (await flood.communicate())[0].decode()
    try:
        most, stretch = bound_of(fleet)
        (statuses, waits), said = asyncio.run(run())
        time.sleep(0.5)
        worst = most_within([at for at, key in fleet.admitted() if key == "/a"], stretch - SLACK)
        lines = sum(1 for index in range(GATEWAYS) for line in fleet.lines(index) if line["target"] == "/a")
        unanswered = [fleet.status(index)["limits"][0]["unanswered"] for index in range(GATEWAYS)]
        rate = [line.split()[1] for line in said.splitlines() if line.startswith("Requests/sec")]
        REPORT.say(name, f"{rate[0]} new keys a second at one gateway; key a {worst} in the worst {stretch:.3f} s, {most} promised, "
                         f"p99 {at_percent(waits, 99):.1f} ms; {'/'.join(map(str, unanswered))} requests without an answer",
                   worst <= most and lines == sum(statuses.values()))
    finally:
        fleet.stop()


def golden(name, binary, store):
    fleet = Fleet(binary, store, 'algorithm = "token-bucket"\nrate = "4/s"\nburst = 4\nshared = "strict"', "full")

    async def drill():
        pool = [await asyncio.open_connection("127.0.0.1", port) for port in fleet.ports]
        first = [await ask(pool[index], "g") for index in (0, 2, 1, 1)]
        await asyncio.sleep(1.0)
        os.kill(store.pid(), signal.SIGSTOP)
        passed = 0
        for index in range(GATEWAYS):
            for _ in range(6):
                passed += await ask(pool[index], "g") == 200
        os.kill(store.pid(), signal.SIGCONT)
        healed = time.perf_counter()
        # Requests that pass before the store is found again count to the outage.
        late = []
        while time.perf_counter() - healed < 7:
            for index in range(GATEWAYS):
                if await ask(pool[index], "g") == 200:
                    late.append(time.perf_counter() - healed)
            await asyncio.sleep(0.02)
        before = [at for at in late if at < 0.6]
        after = [at for at in late if at >= 0.6]
        return first, passed + len(before), after[0] if after else 99.0
    try:
        first, passed, next_at = asyncio.run(drill())
        REPORT.say(name, f"{first.count(200)} of 4 at first, {passed} passed cut off (12 to 18), the next after {next_at:.2f} s "
                         f"(0.6 to 4)", first.count(200) == 4 and 12 <= passed <= 18 and 0.6 <= next_at <= 4)
    finally:
        fleet.stop()


def drill(name, binary, store, act, deadline_ms=10, limit='rate = "100/s"\nshared = "lease"'):
    """300 requests a second for 12 s with a key that is full and new keys; `act` happens after 3 s."""
    fleet = Fleet(binary, store, limit)

    async def run():
        async def later():
            await asyncio.sleep(3)
            await asyncio.to_thread(act, store, fleet)
        acting = asyncio.create_task(later())
        done = await load(fleet, [100] * 3, 12, lambda number: "a" if number % 2 else f"n{number}")
        await acting
        return done
    try:
        begun = time.time()
        statuses, waits = asyncio.run(run())
        time.sleep(0.3)
        took = fleet.took()
        admitted = [at - begun for at, key in fleet.admitted() if key == "/a"]
        seconds = [sum(1 for at in admitted if second <= at < second + 1) for second in range(12)]
        p999, worst = at_percent(took, 99.9), took[-1]
        # A second that lies in the outage as a whole: each gateway admits its part.
        alone = [seconds[second] for second in OUTAGES.get(name, [])]
        holds = all(0.9 * 99 <= second <= 105 for second in alone) and max(seconds) <= 200
        modes = [fleet.status(index)["mode"] for index in range(GATEWAYS) if fleet.gateways[index].poll() is None]
        kept = p999 < deadline_ms + 5 and worst < deadline_ms + 50 and set(modes) == {"shared"} and holds
        REPORT.say(name, f"key a by second {seconds}; {len(took)} requests took p50 {at_percent(took, 50):.2f}, "
                         f"p99.9 {p999:.1f}, at most {worst:.1f} ms; {sum(count for (_, status), count in statuses.items() if not status)} "
                         f"unanswered; then {'/'.join(modes)}", kept)
    finally:
        fleet.stop()


# What a limit of each kind promises in the few seconds of a burst.
PROMISED = [('rate = "100/h"', 100), ('rate = "60/m"', 60), ('rate = "1000/d"\nalgorithm = "fixed-window"\nalign = "calendar"\nzone = "UTC"', 1000),
            ('rate = "20/h"', 20), ('rate = "100/h"\nburst = 100\nalgorithm = "token-bucket"', 100)]


def promised(name, binary, store, gateways=1):
    """Eight connections at each gateway ask each of ten new keys in turn, as fast as they can, for two seconds."""
    def burst(fleet, key):
        asked = [subprocess.Popen(["wrk", "-t1", "-c8", "-d2s", "-H", f"X-Key: {key}", f"http://127.0.0.1:{port}/{key}"],
                                  stdout=subprocess.PIPE, text=True) for port in fleet.ports]
        passed = 0
        for one in asked:
            for line in one.communicate()[0].splitlines():
                if " requests in " in line:
                    passed += int(line.split()[0])
                elif "Non-2xx" in line:
                    passed -= int(line.split()[-1])
        return passed
    for index, (limit, least) in enumerate(PROMISED):
        for shared in ("lease", "strict"):
            # A store that is late is another promise.
            fleet = Fleet(binary, store, f'{limit}\nshared = "{shared}"', "closed", "200ms", gateways, workers=2)
            try:
                most = bound_of(fleet)[0]
                given = [burst(fleet, f"{index}-{shared}-{key}") for key in range(10)]
                # More comes back meanwhile to some.
                REPORT.say(name, f"{limit.splitlines()} {shared}: {least} to {most} promised, given {given}",
                           all(least <= one <= most + 5 for one in given))
            finally:
                fleet.stop()


def frozen(store, _):
    os.kill(store.pid(), signal.SIGSTOP)
    time.sleep(3)
    os.kill(store.pid(), signal.SIGCONT)


def killed(store, _):
    store.stop()
    time.sleep(2)
    store.start()


def hole(store, _):
    away = ["ip", "netns", "exec", store.namespace, "ip", "route"]
    subprocess.run(away + ["add", "blackhole", "10.211.0.1/32"], check=True)
    time.sleep(3)
    subprocess.run(away + ["del", "blackhole", "10.211.0.1/32"], check=True)


def paused(store, _):
    store.ask("client", "pause", "2000", "all")


def flushed(store, _):
    store.ask("flushall")


def scripts(store, _):
    store.ask("script", "flush")


def memory(store, _):
    store.ask("config", "set", "maxmemory", "1kb")
    time.sleep(3)
    store.ask("config", "set", "maxmemory", "0")


def gone(_, fleet):
    fleet.gateways[1].kill()


# While the store is away each of three gateways admits a third of 100/s.
OUTAGES = {"frozen": [4, 5], "hole": [4, 5], "memory": [4, 5], "killed": [4]}
DRILLS = {act.__name__: act for act in (frozen, killed, hole, paused, flushed, scripts, memory, gone)}
SCENARIOS = ["even", "skewed", "costs", "cold", "strict", "flood", "golden", "promised", "promised-3", *DRILLS]


def run(name, binary, server):
    with tempfile.TemporaryDirectory() as directory:
        namespace, host = None, "127.0.0.1"
        if name == "hole":
            namespace, host = f"sg-{os.getpid()}", "10.211.0.2"
            for line in (f"netns add {namespace}", f"link add sg0 type veth peer name sg1 netns {namespace}",
                         "addr add 10.211.0.1/24 dev sg0", "link set sg0 up",
                         f"-n {namespace} addr add 10.211.0.2/24 dev sg1", f"-n {namespace} link set sg1 up",
                         f"-n {namespace} link set lo up"):
                subprocess.run(["ip", *line.split()], check=True)
        store = Store(server, directory, namespace, host)
        try:
            if name == "even":
                spread(name, binary, store, [60, 60, 60])
            elif name == "costs":
                costs(name, binary, store)
            elif name == "skewed":
                spread(name, binary, store, [150, 10, 10])
            elif name == "strict":
                spread(name, binary, store, [60, 60, 60], 'rate = "100/s"\nshared = "strict"')
            elif name == "cold":
                cold(name, binary, store)
            elif name == "flood":
                flood(name, binary, store)
            elif name == "golden":
                golden(name, binary, store)
            elif name.startswith("promised"):
                promised(name, binary, store, GATEWAYS if name.endswith("3") else 1)
            else:
                drill(name, binary, store, DRILLS[name])
        finally:
            store.stop()
            if namespace:
                subprocess.run(["ip", "netns", "del", namespace])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/dist/sluicegate")
    parser.add_argument("--store", default="redis-server")
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], default=[])
    arguments = parser.parse_args()
    for name in arguments.scenarios or SCENARIOS:
        run(name, arguments.binary, arguments.store)
    sys.exit(not Report.is_kept)


if __name__ == "__main__":
    main()
