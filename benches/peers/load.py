"""The load: how its programs are called for a scenario, and how their output is read."""
import json, os, re, statistics, sys

from processes import Process, StartError

HERE = os.path.dirname(os.path.abspath(__file__))
UNITS = {"us": 1, "ms": 1e3, "s": 1e6}


def command(scenario, port, seconds, log):
    """The command line that loads the port with the scenario for so many seconds."""
    url = f"{'https' if scenario.tls else 'http'}://127.0.0.1:{port}{scenario.path}"
    clients = [sys.executable, os.path.join(HERE, "clients.py")]
    return {
        "wrk": lambda: ["wrk", "-t1", f"-c{scenario.connections}", f"-d{seconds}s", "--latency",
                        "-s", os.path.join(HERE, "load.lua"), url, "--", scenario.mode],
        # Without TLS h2load speaks HTTP/2 by prior knowledge. Its log has each request's status and time.
        "h2load": lambda: ["h2load", "-t1", f"-c{scenario.connections}", f"-m{scenario.streams}", f"-D{seconds}",
                           "--warm-up-time=0", f"--log-file={log}", url],
        "handshakes": lambda: [*clients, "handshakes", str(port), str(seconds), str(scenario.connections)],
        "download": lambda: [*clients, "download", str(port), scenario.path, str(scenario.body)],
    }[scenario.load]()


def parse_wrk(text):
    line = re.search(r"^RESULT (requests=.*)$", text, re.MULTILINE)
    if not line:
        raise ValueError(f"wrk gave no result: {text[-300:]}")
    numbers = {name: int(number) for name, number in re.findall(r"(\w+)=(-?\d+)", line[1])}
    return {"requests": numbers["requests"], "seconds": numbers["microseconds"] / 1e6, "p50": numbers["p50"],
            "p99": numbers["p99"], "failed": numbers["broken"], "bad_status": numbers["bad_status"]}


def parse_h2load(text, log_lines):
    """The output of h2load, and its log: start, status and time of each request, in microseconds."""
    finished = re.search(r"finished in ([\d.]+)(us|ms|s)\b", text)
    counts = re.search(r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, "
                       r"(\d+) errored, (\d+) timeout", text)
    if not finished or not counts:
        raise ValueError(f"h2load gave no result: {text[-300:]}")
    done, succeeded, failed, errored, late = map(int, counts.groups())
    classes = [int(number) for number in re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text).groups()]
    took = [int(line.split("\t")[2]) for line in log_lines if line.count("\t") >= 2]
    cuts = statistics.quantiles(took, n=100) if len(took) > 1 else [0] * 99
    protocol = re.search(r"^Application protocol: (\S+)", text, re.MULTILINE)
    return {"requests": succeeded, "seconds": float(finished[1]) * UNITS[finished[2]] / 1e6, "p50": cuts[49], "p99": cuts[98],
            # A failed request is done too, and one that errored or was late has failed: the most of them, not the sum.
            "failed": max(failed, errored, late, done - succeeded), "bad_status": sum(classes[2:]),
            "protocol": protocol[1] if protocol else "?"}


def parse_client(text):
    line = re.search(r"^RESULT (\{.*\})$", text, re.MULTILINE)
    if not line:
        raise ValueError(f"the client gave no result: {text[-300:]}")
    return {"bad_status": 0, **json.loads(line[1])}


def program(command_line, cores, place, seconds=10):
    """Runs a program of the load to its end, and gives its output."""
    log = os.path.join(place.folder, "load.log")
    with Process(command_line, cores, log, env={"OPENSSL_CONF": place.client}) as process:
        return process.wait(seconds + 60)


def shake_hands(port, protocol, cores, place):
    """Version, cipher suite and protocol of a TLS connection as the load's programs make it."""
    return parse_client(program([sys.executable, os.path.join(HERE, "clients.py"), "shake", str(port), protocol], cores, place))


def run(scenario, port, seconds, cores, place):
    """Loads the port, and gives what the load's program has counted. Failed requests are in `failed`, whatever failed."""
    lines = os.path.join(place.folder, "requests.log")
    text = program(command(scenario, port, seconds, lines), cores, place, seconds)
    try:
        result = read(scenario, text, lines)
    except ValueError as error:
        raise StartError(str(error)) from None
    # In c refusals are wanted: they are counted apart, and do not fail.
    if "strict" in scenario.traits:
        result["refused"] = result["bad_status"]
    else:
        result["failed"] += result["bad_status"] if scenario.load == "wrk" else 0
    return result


def read(scenario, text, lines):
    if scenario.load == "wrk":
        return parse_wrk(text)
    if scenario.load != "h2load":
        return parse_client(text)
    with open(lines) as file:
        result = parse_h2load(text, file)
    # h2load opens the log anew each time, at its end.
    os.unlink(lines)
    wanted = "h2" if scenario.tls else "h2c"
    if result["protocol"] != wanted:
        raise ValueError(f"h2load speaks {result['protocol']} with the proxy, not {wanted}")
    return result
