#!/usr/bin/env python3
"""Sluicegate beside other proxies on one machine: CPU time per request, latency, memory. `make peers` runs all of it.

    python3 benches/peers/run.py [--scenarios abc] [--peers nginx,sluicegate] [--rounds 12] [--secs 1]
        [--binary PATH] [--against PATH] [--json FILE] [--markdown FILE]

Needs Linux with two cores, wrk, h2load (and nghttpd for scenario g), nginx as the server behind the proxies, and openssl. The
proxy has a core of its own; load generator, upstream and this program share the other one. All peers of a scenario run at
once, idle but for the one whose turn it is; a round is one turn of each. benches/README.md says how to read the tables.
Loopback only; each run ends what it started, and removes its files.
"""
import argparse, contextlib, datetime, json, math, os, platform, shutil, signal, subprocess, sys, tempfile, time

import check, load, measure, report
from peers import OURS, Place, known_peers
from processes import Process, StartError
from results import clean_rounds
from scenarios import ALL, BY_LETTER, KEYS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Of a run: the load's start and end, the readings and the probe. Of a scenario: the proxies' starts and ends.
BESIDE_RUN, BESIDE_SCENARIO = 0.3, 4.0
# Disturbed rounds are run again, up to this part of the rounds.
AGAIN = 1 / 3
TOOLS = {"wrk": "wrk", "h2load": "nghttp2-client", "nghttpd": "nghttp2-server", "nginx": "nginx", "openssl": "openssl"}


def options():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", default="".join(BY_LETTER), help="letters, of " + ", ".join(
        f"{one.letter} ({one.title})" for one in ALL))
    parser.add_argument("--peers", default="", help="names, with commas; by default all that are there")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each peer in a scenario")
    parser.add_argument("--secs", type=int, default=1, help="seconds of a turn")
    parser.add_argument("--minutes", type=float, default=25, help="no disturbed round is run again beyond this time")
    parser.add_argument("--binary", default=os.path.join(target, "dist", "sluicegate"), help="Sluicegate's binary")
    parser.add_argument("--against", metavar="BINARY", help="another Sluicegate, to be compared beside it")
    parser.add_argument("--same-fields", action="store_true",
                        help="peers add X-Forwarded-* and X-Request-ID too, as Sluicegate always does")
    parser.add_argument("--proxy-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--json", help="a file for all that was read")
    parser.add_argument("--markdown", help="a file for the tables; they are printed too")
    return parser.parse_args()


def say(text):
    print(text, flush=True)


def present(asked, sluicegate, other):
    """The peers to be run. One that is missing is named, with what brings it."""
    known = known_peers(sluicegate, other)
    names = [name for name in asked.split(",") if name] or list(known)
    if unknown := set(names) - set(known):
        sys.exit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    found = []
    for name in names:
        if known[name].path():
            found.append(known[name])
        elif name == OURS:
            sys.exit(f"{known[name].program} is not there: cargo build --profile dist --locked, or --binary PATH")
        else:
            say(f"left out: {known[name].title}, its program is missing (Debian package: {known[name].package})")
    return sorted(found, key=lambda peer: list(known).index(peer.name))


def missing_tools(scenarios):
    """Scenarios need these programs. Exits where the first four are missing; without nghttpd g is left out."""
    lacking = {tool: package for tool, package in TOOLS.items()
               if not shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin")}
    if lacking.pop("nghttpd", None) and "g" in [one.letter for one in scenarios]:
        say("left out: scenario g, nghttpd is missing (Debian package: nghttp2-server)")
        scenarios = [one for one in scenarios if one.letter != "g"]
    if lacking:
        sys.exit("missing: " + ", ".join(f"{tool} (Debian package: {package})" for tool, package in lacking.items()))
    return scenarios


def estimate(scenarios, peers, rounds, secs):
    """Seconds that the run takes if no round is disturbed: warm-up and rounds of each peer that serves the scenario."""
    return sum(BESIDE_SCENARIO + sum(peer.serves(one) for peer in peers) * (rounds + 1) * (secs + BESIDE_RUN) for one in scenarios)


def about(arguments, peers):
    """The machine, the versions and the options, for whoever reads the figures later."""
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {
        "date": datetime.date.today().isoformat(), "machine": f"{os.cpu_count()} cores, {model}, Linux {platform.release().partition('-')[0]}",
        "versions": {peer.name: peer.version() for peer in peers}, "commit": commit.stdout.strip(), "rounds": arguments.rounds,
        "seconds": arguments.secs, "same_fields": arguments.same_fields,
    }


class Session:
    """One scenario: its upstream and its peers run, and take turns."""

    def __init__(self, scenario, arguments, place, stack):
        self.scenario, self.arguments, self.place, self.stack = scenario, arguments, place, stack
        self.proxy_cores, self.load_cores = {arguments.proxy_core}, {arguments.load_core}
        if scenario.shares_cores:
            self.proxy_cores = self.load_cores = self.proxy_cores | self.load_cores
        self.cores = sorted(self.proxy_cores | self.load_cores)
        self.upstream = stack.enter_context(place.start_upstream(scenario, self.load_cores))
        self.running, self.runs, self.left_out, self.probe = {}, [], [], 0.0

    def start(self, peers):
        """Starts the peers, checks each, and warms it up. One that does not do its work is named and left out."""
        for peer in filter(lambda one: one.serves(self.scenario), peers):
            try:
                process, port = peer.start(self.scenario, self.place, self.proxy_cores, self.arguments.same_fields)
                self.stack.enter_context(process)
                check.check_answer(self.scenario, port, self.load_cores, self.place)
                self.warm_up(port)
                self.running[peer.name] = process, port
            except (StartError, check.CheckError) as error:
                self.left_out.append(f"{peer.title} is left out of {self.scenario.letter}: {error}")
                say(self.left_out[-1])

    def warm_up(self, port):
        """A turn that does not count. In c it goes on until each key was there, so that from then on they are refused."""
        seconds, strict = self.arguments.secs, "strict" in self.scenario.traits
        # wrk begins with the first key each time.
        while load.run(self.scenario, port, seconds, self.load_cores, self.place)["requests"] < KEYS * strict and seconds < 30:
            seconds *= 2
        if strict:
            check.check_refusals(self.scenario, port)

    def round(self, number):
        """A turn of each peer. Each round begins with another one, so that none is always behind the same one."""
        names = list(self.running)
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            self.turn(name, number)

    def turn(self, name, number):
        process, port = self.running[name]
        before = self.probe or measure.speed_probe(self.cores)
        watch = measure.Watch(process.pid, self.upstream.pid, self.proxy_cores, self.load_cores)
        watch.start()
        result = load.run(self.scenario, port, self.arguments.secs, self.load_cores, self.place)
        seen = watch.stop()
        self.probe = measure.speed_probe(self.cores)
        if not process.runs():
            raise StartError(f"{name} ended by itself: {process.output()[-600:]}")
        self.runs.append({"peer": name, "round": number, "probe": max(before, self.probe), **result, **seen})

    def rounds(self, until):
        """The rounds, and disturbed ones again while there is time."""
        wanted = self.arguments.rounds
        for number in range(wanted + int(wanted * AGAIN)):
            if number >= wanted and (clean_rounds(self.runs) >= wanted or time.monotonic() > until):
                break
            self.round(number)


def measure_all(arguments, scenarios, peers, results):
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sluicegate-peers-") as folder:
        # nginx's workers, which give up root, go through it.
        os.chmod(folder, 0o755)
        place = Place(folder)
        place.prepare()
        for at, scenario in enumerate(scenarios, 1):
            with contextlib.ExitStack() as stack:
                session = Session(scenario, arguments, place, stack)
                session.start(peers)
                # Each scenario has its part of the time: what one does not need is left for the next ones.
                session.rounds(begin + arguments.minutes * 60 * at / len(scenarios))
            results["runs"][scenario.letter] = session.runs
            results["left_out"] += session.left_out
            if session.runs:
                say(report.of_scenario(scenario.letter, session.runs))
            if arguments.json:
                with open(arguments.json, "w") as file:
                    json.dump(results, file)


def announce(arguments, scenarios, peers):
    least = estimate(scenarios, peers, arguments.rounds, arguments.secs) / 60
    most = math.ceil(least * (1 + AGAIN))
    say(f"{', '.join(peer.title for peer in peers)}; scenarios {''.join(one.letter for one in scenarios)}, {arguments.rounds} rounds: "
        f"about {math.ceil(least)} minutes, {most} if the machine is disturbed.")
    if least > arguments.minutes:
        say(f"That is more than --minutes {arguments.minutes:g}: take fewer --rounds, --scenarios or --peers.")
    say("")


def main():
    # The kernel's way to end us should end what we started too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = options()
    if unknown := set(arguments.scenarios) - set(BY_LETTER):
        sys.exit(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(BY_LETTER)}")
    if not {arguments.proxy_core, arguments.load_core} <= os.sched_getaffinity(0) or arguments.proxy_core == arguments.load_core:
        sys.exit("two cores are needed: --proxy-core and --load-core")
    peers = present(arguments.peers, arguments.binary, arguments.against)
    scenarios = missing_tools([BY_LETTER[letter] for letter in dict.fromkeys(arguments.scenarios)])
    announce(arguments, scenarios, peers)
    results = {"about": about(arguments, peers), "runs": {}, "left_out": []}
    # Our own turns, short as they are, are the load's.
    os.sched_setaffinity(0, {arguments.load_core})
    try:
        measure_all(arguments, scenarios, peers, results)
    finally:
        Process.stop_all()
    text = report.markdown(results)
    say(text)
    if arguments.markdown:
        with open(arguments.markdown, "w") as file:
            file.write(text)
    lacking = [letter for letter, runs in results["runs"].items() if OURS not in {run["peer"] for run in runs}]
    if lacking and OURS in {peer.name for peer in peers}:
        sys.exit(f"Sluicegate was not measured in {', '.join(lacking)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except StartError as error:
        sys.exit(f"{error}")
