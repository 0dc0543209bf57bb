"""The arithmetic: which runs count, what a request costs, and ratios that are paired per round.

A run is a proxy's turn in a round: a dict with what load.py and measure.py have read, its `round`, and `probe`, the slower of
the two speed probes around it.
"""
import statistics

from scenarios import REFUSED_SHARE

# A run is left out if the machine was so much slower than at its best in this scenario, or if others took so much of a core.
SLOWER = 1.15
FOREIGN_PROXY, FOREIGN_LOAD, STOLEN = 0.10, 0.15, 0.05


def amount(run, scenario):
    """How many requests, or gigabytes, a run has carried."""
    return run["requests"] * scenario.body / 1e9 if scenario.unit == "gigabyte" else run["requests"]


def cost(run, scenario, part="cpu"):
    """CPU microseconds per request, or CPU seconds per gigabyte. Infinite where nothing was carried."""
    scale = 1 if scenario.unit == "gigabyte" else 1e6
    carried = amount(run, scenario)
    return run[part] * scale / carried if carried else float("inf")


def disturbance(run, best_probe):
    """Why a run is left out, in a word, or None.

    Admitted: in scenario c nginx, whose slowest rate is one a minute, admits each key again after a minute.
    """
    if run["probe"] > SLOWER * best_probe:
        return "slow"
    if run["stolen"] > STOLEN:
        return "stolen"
    if run.get("refused", run["requests"]) < REFUSED_SHARE * run["requests"]:
        return "admitted"
    if run["foreign_proxy"] > FOREIGN_PROXY or run["foreign_load"] > FOREIGN_LOAD:
        return "foreign"
    return None


def counting(runs):
    """The runs of a scenario, all peers, that count. Where a peer has less than a third left, all of its runs count.

    Gives the runs, and for each peer how many were left out; None says that its runs count although they were disturbed.
    """
    best = min((run["probe"] for run in runs), default=0)
    kept, left_out = [], {}
    for name in dict.fromkeys(run["peer"] for run in runs):
        of_peer = [run for run in runs if run["peer"] == name]
        clean = [run for run in of_peer if not disturbance(run, best)]
        enough = len(clean) * 3 >= len(of_peer)
        kept += clean if enough else of_peer
        left_out[name] = len(of_peer) - len(clean) if enough else None
    return kept, left_out


def clean_rounds(runs):
    """How many rounds there are in which no run was disturbed."""
    best = min((run["probe"] for run in runs), default=0)
    spoiled = {run["round"] for run in runs if disturbance(run, best)}
    return len({run["round"] for run in runs} - spoiled)


def paired_ratios(runs, scenario, name, reference):
    """The cost of one peer against another's in the same round, for each round in which both count."""
    costs = {(run["peer"], run["round"]): cost(run, scenario) for run in runs}
    return [costs[name, at] / costs[reference, at] for peer, at in costs if peer == name and (reference, at) in costs]


def quartiles(numbers):
    """Lower quartile, median, upper quartile. One number is all three."""
    return statistics.quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else list(numbers) * 3


def summary(runs, scenario, references):
    """For each peer the figures of the tables, of the runs that count."""
    kept, left_out = counting(runs)
    table = {}
    for name, missing in left_out.items():
        mine = [run for run in kept if run["peer"] == name]
        costs = [cost(run, scenario) for run in mine]
        ticks = sum(run["user"] + run["system"] for run in mine)
        # Ticks are coarse in one run, so that the parts are of all runs together.
        user = sum(run["user"] for run in mine) / ticks if ticks else 0.0
        middle = statistics.median(costs)
        ratios = {other: paired_ratios(kept, scenario, name, other) for other in references if other != name}
        every = [run for run in runs if run["peer"] == name]
        table[name] = {
            "runs": len(mine), "left_out": missing, "cpu": middle, "best": min(costs), "user": middle * user,
            "system": middle * (1 - user), "rate": statistics.median(amount(run, scenario) / run["seconds"] for run in mine),
            "p50": statistics.median(run["p50"] for run in mine), "p99": statistics.median(run["p99"] for run in mine),
            "memory": max(run["memory"] for run in every), "failed": sum(run["failed"] for run in every),
            "core": statistics.median(run["core"] / run["watched"] for run in mine),
            "refused": sum(run.get("refused", 0) for run in every) / max(1, sum(run["requests"] for run in every)),
            "ratios": {other: quartiles(found) for other, found in ratios.items() if found},
        }
    return table
