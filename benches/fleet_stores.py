#!/usr/bin/env python3
"""Gateways whose store is a Redis Cluster, or is watched by Sentinels: whether a shared limit holds while parts of the store fail.

    python3 benches/fleet_stores.py [--binary target/dist/sluicegate] [--gateways 2] [--seconds 8] [SCENARIO ...]

Scenarios (without any, all of them; each takes at most about 45 s, and ends the processes that it started, by their own ids):

- cluster-kill: three masters without replicas. One is killed, and starts again later, empty, with its old slots.
- cluster-freeze: the same with SIGSTOP, and SIGCONT after 5 s.
- cluster-migrate: the slots in use of one master, 20 at least, move to a fourth one, under load.
- sentinel-failover: the primary is killed, and its replica takes over. The old one starts again. Then a failover by hand.
- sentinel-away: one Sentinel is killed. Then another gateway starts, and its list begins with that one.

The master that fails, or gives slots away, has the list of the fleet's members. Each key is asked 180 times a second over all
gateways, nine keys, three of each master (found by asking once: one master then has a new key). Beside them goes a route whose limit
is not shared. `--seconds` is the length of a phase: before a fault, and after it. The limit is 100/s with `bound = "strict"`,
`shared = "strict"`, `deadline = "10ms"` and `on_failure = "fair"`. The gateways say its bounds (`GET /api/v1/fleet`, see
docs/fleet.md): at most 100 in any W - T, T being the deadline; at least 100 in any W + D and a slot of demand. All is read from
the access logs. The instant of an admission is `ts` and `wait_ms` of its line. A stretch counts for the lower bound if the load
did not pause above 50 ms in it. No bound is promised for answers of the store that come after the deadline: such admissions
are left out of the upper bound, and a late answer in a stretch, or shortly before it, may be missing in the lower one. The
numbers as they are stand in brackets.

Each line is a fact: `ok` or `MISSED` if something was promised, else `seen`. Promised are

- both bounds: before a fault; all the time for keys of the other masters; for all keys from 3 s after the store is back (all nodes
  say `cluster_state:ok` and none says that another failed; the Sentinels name the new primary and the mode of all gateways is
  "shared"). While slots move the upper bound holds. There 90% of the admissions must have waited for the store: gateways that
  are alone keep bounds, too;
- `took_ms` of the shared route: 99.9% of each phase take no longer than the deadline and 5 ms;
- a key without its shard: about L, since each gateway admits L / N;
- a route that is not shared: no answer but 200. All requests of both: an answer.

A failover may lose counts. The number is the most above L in any W - T around the switch.
Needs redis-server (or Valkey's: --store) and redis-cli. Loopback only. Exit 1 if a promise was not kept.
"""
import argparse, asyncio, bisect, collections, contextlib, random, signal, socket, subprocess, sys, tempfile, time, urllib.request
from datetime import datetime
from functools import partial

from fleet import SLACK, Fleet, ask, at_percent, free_port, most_within

RATE, DEADLINE_MS, LATE_MS, SETTLES, OWN = 180, 10, 5, 3.0, "own"
MASTERS, KEYS_EACH, SLOTS, MOVED = 3, 3, 16384, 20
RUNNING = []


def launch(command, out, err, directory=None):
    with open(out, "ab") as out, open(err, "ab") as err:
        RUNNING.append(subprocess.Popen(command, stdout=out, stderr=err, cwd=directory))
    return RUNNING[-1]


def wait_until(is_so, seconds, text):
    begun = time.time()
    while not is_so():
        if time.time() - begun > seconds:
            raise RuntimeError(f"not within {seconds} s: {text}")
        time.sleep(0.05)


class Node:
    """A process of a store, or a Sentinel, in a directory of its own."""

    def __init__(self, binary, directory, *settings):
        # Below the ports of clients, so that nobody has it when its node comes back. That of the cluster's bus is 10000 above.
        self.port = None
        while self.port is None:
            port = random.randrange(20000, 22700)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 10000)):
                self.port = port
        self.directory = tempfile.mkdtemp(dir=directory)
        self.command = [binary, *settings] if "--sentinel" in settings else [
            binary, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", self.directory,
            "--repl-diskless-sync-delay", "0", *settings]

    def start(self):
        self.process = launch(self.command, f"{self.directory}/log", f"{self.directory}/log", self.directory)
        wait_until(lambda: self.ask("ping") == "PONG", 5, f"{self.command[0]} answers")

    def ask(self, *words, wanted=""):
        command = ["timeout", "2", "redis-cli", "-p", str(self.port), *map(str, words)]
        answer = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        if wanted and answer not in wanted.split():
            raise RuntimeError(f"{' '.join(map(str, words))}: {answer}")
        return answer

    def do(self, *words):
        return self.ask(*words, wanted="OK")

    def names(self, pattern="*"):
        return set(self.ask("keys", pattern).split())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)


class Cluster:
    """Masters without replicas, and perhaps a further one without slots."""

    def __init__(self, binary, directory, spare=0):
        settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]
        self.nodes = [Node(binary, directory, *settings) for _ in range(MASTERS + spare)]
        self.masters = self.nodes[:MASTERS]
        self.address = "redis-cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.masters)
        for index, node in enumerate(self.nodes):
            node.start()
            node.do("cluster", "set-config-epoch", index + 1)
        for index, node in enumerate(self.masters):
            first, last = SLOTS * index // MASTERS, SLOTS * (index + 1) // MASTERS - 1
            if node.ask("cluster", "addslotsrange", first, last) != "OK":
                node.do("cluster", "addslots", *range(first, last + 1))
        for node in self.nodes[1:]:
            self.nodes[0].do("cluster", "meet", "127.0.0.1", node.port)
        self.wait()

    def wait(self):
        wanted = ["cluster_state:ok", f"cluster_slots_ok:{SLOTS}", f"cluster_known_nodes:{len(self.nodes)}"]
        wait_until(lambda: all(set(wanted) <= set(node.ask("cluster", "info").split()) and "fail" not in node.ask("cluster", "nodes")
                               for node in self.nodes), 20, "the cluster is whole")

    def migrate(self, source, target, slots):
        """Slot by slot, slowly enough for questions to meet each state of it."""
        source_id, target_id, moved = source.ask("cluster", "myid"), target.ask("cluster", "myid"), 0
        for slot in slots:
            target.do("cluster", "setslot", slot, "importing", source_id)
            source.do("cluster", "setslot", slot, "migrating", target_id)
            time.sleep(0.03)
            while keys := source.ask("cluster", "getkeysinslot", slot, 100).split():
                moved += len(keys)
                source.ask("migrate", "127.0.0.1", target.port, "", 0, 1000, "keys", *keys, wanted="OK NOKEY")
            time.sleep(0.03)
            for node in [target, source, *(node for node in self.nodes if node not in (source, target))]:
                node.do("cluster", "setslot", slot, "node", target_id)
        return moved


class Sentinels:
    """A primary, a replica, and three Sentinels that watch them."""

    def __init__(self, binary, directory):
        first = Node(binary, directory)
        self.stores = [first, Node(binary, directory, "--replicaof", f"127.0.0.1 {first.port}")]
        self.sentinels = [Node(binary, directory, "sentinel.conf", "--sentinel") for _ in range(3)]
        self.address = "redis-sentinel://" + ",".join(f"127.0.0.1:{node.port}" for node in self.sentinels) + "/mymaster"
        for node in self.stores:
            node.start()
        wait_until(lambda: self.is_replica(self.stores[1]), 10, "the replica follows")
        for node in self.sentinels:
            with open(f"{node.directory}/sentinel.conf", "w") as file:
                file.write(f"port {node.port}\nbind 127.0.0.1\ndir {node.directory}\nsentinel monitor mymaster 127.0.0.1 {first.port} 2\n"
                           "sentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 5000\n"
                           "sentinel parallel-syncs mymaster 1\n")
            node.start()
        wait_until(lambda: all("num-slaves\n1\nnum-other-sentinels\n2\n" in node.ask("sentinel", "master", "mymaster")
                               for node in self.sentinels), 20, "the Sentinels know each other")

    @staticmethod
    def is_replica(node):
        return "master_link_status:up" in node.ask("info", "replication")

    def primary(self):
        """The one that all living Sentinels name, or None."""
        living = [node for node in self.sentinels if node.process.poll() is None]
        ports = {node.ask("sentinel", "get-master-addr-by-name", "mymaster").split("\n")[-1] for node in living}
        return next((node for node in self.stores if {str(node.port)} == ports), None)

    def failover(self):
        self.sentinels[0].do("sentinel", "failover", "mymaster")


class Drill(Fleet):
    """Gateways with a shared limit and one that is not, a load on them, and the facts that their access logs say of it."""
    is_kept = True

    def __init__(self, name, options, directory, address):
        self.name, self.binary, self.seconds, self.directory, self.address = name, options.binary, options.seconds, directory, address
        self.count, self.gateways, self.ports, self.admins, self.at, self.samples = 0, [], [], [], {}, []
        with open(f"{directory}/fleet.key", "w") as key:
            key.write("0123456789abcdef" * 4)
        for _ in range(options.gateways):
            self.add()
        self.asked = self.count
        wait_until(lambda: all(self.is_ready(index) for index in range(self.count)), 15, "the gateways share, and know each other")
        bound = self.status(0)["limits"][0]["bounds"][0]
        self.most, self.within, self.least, self.demand = bound["most"], bound["within_ms"] / 1000, bound["least"], bound["least_within_ms"] / 1000

    def add(self):
        index, port, admin = self.count, free_port(), free_port()
        path = f"{self.directory}/gw-{index}"
        with open(f"{path}.toml", "w") as file:
            file.write(
                f'[[listener]]\naddress = "127.0.0.1:{port}"\n[admin]\naddress = "127.0.0.1:{admin}"\n'
                f'[server]\nworkers = 1\n[log]\naccess = "json"\n[fleet]\nstore = "{self.address}"\nsecret_file = "fleet.key"\n'
                f'node = "gw-{index}"\ndeadline = "{DEADLINE_MS}ms"\non_failure = "fair"\n'
                f'[[limit]]\nname = "per-key"\nkey = "header:x-key"\nrate = "100/s"\nbound = "strict"\nshared = "strict"\n'
                f'[[limit]]\nname = "own"\nkey = "header:x-key"\nrate = "100000/s"\n'
                f'[[route]]\nname = "own"\npath = "/{OWN}"\nlimits = ["own"]\nrespond = {{ status = 200, body = "ok" }}\n'
                f'[[route]]\nname = "all"\nlimits = ["per-key"]\nrespond = {{ status = 200, body = "ok" }}\n')
        self.gateways.append(launch([self.binary, "run", "-c", f"{path}.toml"], f"{path}.out", f"{path}.log"))
        self.ports.append(port)
        self.admins.append(admin)
        self.count += 1

    def is_ready(self, index):
        if self.gateways[index].poll() is not None:
            with open(f"{self.directory}/gw-{index}.log") as log:
                raise RuntimeError(f"a gateway has ended: {' '.join(log.read().split())[:500]}")
        return self.is_known(index) and self.status(index)["mode"] == "shared"

    def place(self, cluster):
        """The keys of each master, the names that the store has for them, and the master that has the members, as far as that can be seen."""
        placed, names = [[] for _ in cluster.masters], {}
        for key in (f"k{number}" for number in range(100)):
            before = [node.names("*per-key*") for node in cluster.masters]
            request = urllib.request.Request(f"http://127.0.0.1:{self.ports[0]}/{key}", headers={"X-Key": key})
            urllib.request.urlopen(request, timeout=5).close()
            for keys, node, old in zip(placed, cluster.masters, before):
                if len(keys) < KEYS_EACH and (new := node.names("*per-key*") - old):
                    keys.append(key)
                    names[key] = new.pop()
            if all(len(keys) == KEYS_EACH for keys in placed):
                homes = [index for index, node in enumerate(cluster.masters) if any("member" in one for one in node.names())]
                return placed, names, homes[0] if homes else MASTERS - 1
        raise RuntimeError(f"keys are not spread over the masters: {placed}")

    def run(self, keys, act):
        """Asks for the keys until `act` has ended, then reads the logs."""
        self.keys, self.begin, self.took, self.own = keys, time.time(), [], []
        self.answers = asyncio.run(self.load(act))
        self.end = self.at["end"]
        self.stop()
        self.admitted, self.late, sent = (collections.defaultdict(list) for _ in range(3))
        for line in (line for index in range(self.count) for line in self.lines(index)):
            at, key = datetime.fromisoformat(line["ts"].replace("Z", "+00:00")).timestamp(), line["target"][1:]
            if key != OWN and at >= self.begin:
                self.took.append((at, line["took_ms"]))
                waited = line.get("wait_ms", 0)
                if line["status"] == 200:
                    self.admitted[key].append((at + waited / 1000, waited))
                if waited >= DEADLINE_MS:
                    self.late[key].append(at)
            elif key == OWN:
                self.own.append((at, line["took_ms"], line["status"]))
        for at, key, *_ in sorted(self.answers):
            sent[key].append(at)
        for key in keys:
            self.admitted[key].sort()
        self.pauses = {key: [(one, after) for one, after in zip(sent[key], sent[key][1:]) if after - one > 0.05] for key in keys}

    async def load(self, act):
        """At even distances, and no late request is left out."""
        targets, answers, acting = [*self.keys, *self.keys, OWN], [], asyncio.create_task(asyncio.to_thread(act))
        rate = RATE * len(self.keys) * len(targets) / (len(targets) - 1) / self.asked

        async def one(pool, port, target):
            connection, status = await pool.get(), 0
            sent = time.time()
            try:
                async with asyncio.timeout(5):
                    connection = connection or await asyncio.open_connection("127.0.0.1", port)
                    status = await ask(connection, target)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                connection = None
            answers.append((sent, target, status, (time.time() - sent) * 1000))
            pool.put_nowait(connection)

        async def drive(port):
            pool, number, begun = asyncio.LifoQueue(), 0, time.perf_counter()
            for _ in range(64):
                pool.put_nowait(None)
            async with asyncio.TaskGroup() as group:
                while not acting.done():
                    group.create_task(one(pool, port, targets[number % len(targets)]))
                    number += 1
                    await asyncio.sleep(max(0, begun + number / rate - time.perf_counter()))

        async def watch():
            while not acting.done():
                modes = [(await asyncio.to_thread(self.status, index))["mode"] for index in range(self.asked)]
                self.samples.append((time.time(), set(modes) == {"shared"}))
                await asyncio.sleep(0.05)
        await asyncio.gather(watch(), *(drive(port) for port in self.ports))
        await acting
        return answers

    def mark(self, word, seconds=0):
        time.sleep(seconds)
        self.at[word] = time.time()

    def alone(self, begin, end):
        """The looks at the gateways that found one that does not share."""
        return [at for at, are_shared in self.samples if begin <= at <= end and not are_shared]

    def say(self, text, is_kept=None):
        Drill.is_kept &= is_kept is not False
        print(f"{self.name:17} {'seen' if is_kept is None else 'ok' if is_kept else 'MISSED':6} {text}", flush=True)

    def worst(self, key, begin, end, with_late=True):
        found = [at for at, waited in self.admitted[key] if begin <= at <= end and (with_late or waited < DEADLINE_MS)]
        return most_within(found, self.within - SLACK)

    def fewest(self, key, begin, end):
        """The fewest in any stretch of demand with late answers, and as they are. Nothing if there is no such stretch."""
        found, instants, stretch = [], [at for at, _ in self.admitted[key]], self.demand + SLACK
        # The poorest stretches begin just after an admission.
        for start in [begin, *instants[bisect.bisect_left(instants, begin):bisect.bisect_right(instants, end - stretch)]]:
            if start + stretch <= end and not any(one < start + stretch and after > start for one, after in self.pauses[key]):
                passed = bisect.bisect_left(instants, start + stretch) - bisect.bisect_right(instants, start)
                found.append((passed + sum(start - stretch <= at <= start + stretch for at in self.late[key]), passed))
        return [tuple(map(min, zip(*found)))] if found else []

    def bounds(self, text, keys, begin, end, is_least_promised=True):
        waits = [waited for key in keys for at, waited in self.admitted[key] if begin <= at <= end]
        percent = 100 * sum(0 < waited < DEADLINE_MS for waited in waits) / max(1, len(waits))
        worst, plain = (max(self.worst(key, begin, end, with_late) for key in keys) for with_late in (False, True))
        self.say(f"upper bound, {text}, {end - begin:.1f} s: {worst} ({plain}) in the worst {self.within:.3f} s of {len(keys)} keys, "
                 f"{self.most} promised; {percent:.1f}% by the store", worst <= self.most and percent >= 90)
        found = [one for key in keys for one in self.fewest(key, begin, end)]
        fewest, plain = map(min, zip(*found)) if found else (0, 0)
        is_kept = len(found) == len(keys) and fewest >= self.least
        self.say(f"lower bound, {text}: {fewest} ({plain}) in the worst {self.demand:.3f} s of demand of {len(found)} keys, {self.least} "
                 f"{'promised' if is_least_promised else 'in quiet times'}", is_kept if is_least_promised else None)

    def above(self, text, keys, begin, end):
        above = [max(0, self.worst(key, begin, end) - self.most) for key in keys]
        self.say(f"{text}: {' '.join(map(str, above))} above {self.most} in the worst {self.within:.3f} s, by key")

    def waits(self, *phases):
        for text, begin, end in phases:
            took, own = (sorted(line[1] for line in lines if begin <= line[0] < end) for lines in (self.took, self.own))
            seen, late = max((one[3] for one in self.answers if begin <= one[0] < end), default=0), at_percent(took, 99.9)
            self.say(f"shared route, {text}: {len(took)} requests, p50 {at_percent(took, 50):.2f}, p99.9 {late:.1f}, at most "
                     f"{at_percent(took, 100):.1f} ms (any route, by clients: {seen:.1f})", bool(took) and late <= DEADLINE_MS + LATE_MS)
            self.say(f"own route, {text}: {len(own)} requests, p50 {at_percent(own, 50):.2f}, p99 {at_percent(own, 99):.2f} ms")
        other, lost = sum(line[2] != 200 for line in self.own), sum(one[2] == 0 for one in self.answers)
        self.say(f"own route: {other} of {len(self.own)} answers are not 200", bool(self.own) and other == 0)
        self.say(f"{lost} of {len(self.answers)} requests without an answer", lost == 0)
        self.say(f"the load paused {sum(b - a for one in self.pauses.values() for a, b in one) / len(self.keys):.2f} s a key")


def away(fail, mend, seconds, drill, cluster, master, _):
    """A master is away, and comes back."""
    fail(master)
    drill.mark("mended", seconds or drill.seconds + 2)
    mend(master)


def migrated(drill, cluster, master, names):
    """The slots of all that a master has, the keys of the load among them, and slots without keys."""
    slots = {int(master.ask("cluster", "keyslot", one)) for one in master.names() | names}
    others = (slot for slot in range(SLOTS * cluster.masters.index(master) // MASTERS, SLOTS) if slot not in slots)
    slots |= {next(others) for _ in range(MOVED - len(slots))}
    moved = cluster.migrate(master, cluster.nodes[MASTERS], sorted(slots))
    drill.at["moved"] = f"{moved} keys in {len(slots)} slots moved, {len(names & master.names())} of the load are left"


def cluster_drill(fault, name, options, directory):
    cluster = Cluster(options.store, directory, spare=fault is migrated)
    drill = Drill(name, options, directory, cluster.address)
    placed, names, home = drill.place(cluster)
    touched, keys, at = placed[home], sum(placed, []), drill.at

    def act():
        drill.mark("begun", options.seconds)
        fault(drill, cluster, cluster.masters[home], {names[key] for key in touched})
        cluster.wait()
        drill.mark("back")
        drill.mark("end", options.seconds + SETTLES)
    drill.run(keys, act)
    begun, back = at["begun"], at["back"]
    mended = at.get("mended", back)
    drill.say(f"master {home + 1}: {at.get('moved', 'away')}; {mended - begun:.1f} s, the cluster whole {back - mended:.1f} s after that; "
              f"{len(drill.alone(begun, back))} of {sum(begun <= one <= back for one, _ in drill.samples)} looks found a mode not shared")
    drill.bounds("before", keys, drill.begin, begun)
    drill.bounds("other masters, all the time", [key for key in keys if key not in touched], drill.begin, drill.end)
    if fault is migrated:
        drill.bounds("keys that move, all the time", touched, drill.begin, drill.end, False)
    else:
        drill.above("its keys, as it fails", touched, begun - 1, begun + 2)
        drill.above("its keys, as it returns", touched, mended - 1, back + SETTLES)
        rates = [sum(begun + 1 <= one <= mended for one, _ in drill.admitted[key]) / (mended - begun - 1) for key in touched]
        worst = max(drill.worst(key, begun + 2, mended) for key in touched)
        drill.say(f"its keys, meanwhile: {' '.join(f'{rate:.1f}' for rate in rates)}/s, {worst} in the worst {drill.within:.3f} s, "
                  f"about {drill.most} promised", min(rates) >= drill.most / 2 and worst <= drill.most + options.gateways)
    drill.bounds("all keys, from 3 s after", keys, back + SETTLES, drill.end)
    drill.waits(("before", drill.begin, begun), ("meanwhile", begun, back), ("after", back, drill.end))


def sentinel_failover(name, options, directory):
    stores = Sentinels(options.store, directory)
    drill = Drill(name, options, directory, stores.address)
    keys, at, (old, new) = [f"k{number}" for number in range(MASTERS * KEYS_EACH)], drill.at, stores.stores

    def switch(word, seconds, primary, act):
        """Until the Sentinels name another primary, and all gateways have shared for half a second."""
        drill.mark(word, seconds)
        act()
        wait_until(lambda: stores.primary() not in (None, primary), 15, "the Sentinels name a new primary")
        drill.mark(f"{word}-named")
        wait_until(lambda: not drill.alone(time.time() - 0.5, time.time()), 15, "the gateways share again")

    def act():
        switch("kill", options.seconds - 2, old, old.kill)
        drill.mark("restarted", options.seconds - 2)
        old.start()
        wait_until(lambda: stores.is_replica(old), 20, "the old primary is a replica")
        drill.mark("replica")
        switch("hand", 1, new, stores.failover)
        drill.mark("end", options.seconds + SETTLES)
    drill.run(keys, act)
    drill.bounds("before", keys, drill.begin, at["kill"])
    phases = [("before", drill.begin, at["kill"])]
    for word, end, latest in (("kill", at["hand"], at["restarted"]), ("hand", drill.end, drill.end)):
        begin, named = at[word], at[f"{word}-named"]
        alone = drill.alone(begin, latest)
        again = max([named, *alone])
        drill.say(f"failover by {word}: new primary named after {named - begin:.2f} s, shared again after {again - begin:.2f} s, "
                  f"not all shared for {alone[-1] - alone[0] if alone else 0:.2f} s")
        drill.above(f"failover by {word}, lost", keys, begin - 1, again + SETTLES)
        drill.bounds(f"from 3 s after the failover by {word}", keys, again + SETTLES, end)
        phases += [(f"failover by {word}", begin, again), (f"after the failover by {word}", again, end)]
    alone = len(drill.alone(at["restarted"], at["hand"]))
    drill.say(f"the old primary is a replica {at['replica'] - at['restarted']:.1f} s after its start; "
              f"{alone} looks found a mode not shared", alone == 0)
    drill.waits(*phases)


def sentinel_away(name, options, directory):
    stores = Sentinels(options.store, directory)
    drill = Drill(name, options, directory, stores.address)
    keys, at = [f"k{number}" for number in range(MASTERS * KEYS_EACH)], drill.at

    def act():
        drill.mark("killed", options.seconds)
        stores.sentinels[0].kill()
        drill.mark("added", options.seconds)
        drill.add()
        with contextlib.suppress(RuntimeError):
            wait_until(lambda: drill.is_ready(drill.count - 1), 12, "the new gateway shares")
            drill.mark("joined")
        drill.mark("end", 2)
    drill.run(keys, act)
    alone = len(drill.alone(drill.begin, drill.end))
    drill.say(f"one Sentinel killed: {alone} of {len(drill.samples)} looks found a mode not shared", alone == 0)
    joined = f"{at['joined'] - at['added']:.1f} s after its start" if "joined" in at else "never"
    drill.say(f"a new gateway, the dead one first in its list, shares and knows the others: {joined}", "joined" in at)
    drill.bounds("all the time", keys, drill.begin, drill.end)
    drill.waits(("before", drill.begin, at["killed"]), ("after", at["killed"], drill.end))


SCENARIOS = {
    "cluster-kill": partial(cluster_drill, partial(away, Node.kill, Node.start, None)),
    "cluster-freeze": partial(cluster_drill, partial(away, Node.pause, Node.resume, 5)),
    "cluster-migrate": partial(cluster_drill, migrated), "sentinel-failover": sentinel_failover, "sentinel-away": sentinel_away}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/dist/sluicegate")
    parser.add_argument("--store", default="redis-server")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], default=[])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in options.scenarios or SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="fleet-stores-") as directory:
            try:
                SCENARIOS[name](name, options, directory)
            except (RuntimeError, OSError) as error:
                Drill.is_kept = False
                print(f"{name:17} MISSED {error}", flush=True)
            finally:
                while RUNNING:
                    process = RUNNING.pop()
                    process.kill()
                    process.wait()
    sys.exit(not Drill.is_kept)


if __name__ == "__main__":
    main()
