"""Tables of the results: one for each scenario while it runs, and Markdown of all for README.md and benches/README.md.

    python3 benches/peers/report.py RESULTS.json      prints the Markdown of a run again
"""
import json, sys

from peers import OURS, REFERENCES, known_peers
from results import summary
from scenarios import BY_LETTER

TITLES = {name: peer.title for name, peer in known_peers(OURS, "other").items()}


def number(value):
    """Three digits that count: 0.92, 14.1, 405."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def rate(row):
    return f"{row['rate']:,.0f}" if row["rate"] >= 100 else number(row["rate"])


def references(names):
    return [name for name in REFERENCES if name in names]


def of_scenario(letter, runs):
    """The table of one scenario, for a terminal."""
    scenario = BY_LETTER[letter]
    table = summary(runs, scenario, references({run["peer"] for run in runs}))
    beside = references(table)
    unit = "s/GB" if scenario.unit == "gigabyte" else "us/req"
    speed = "GB/s" if scenario.unit == "gigabyte" else "req/s"
    head = (f"{'':<12}{'runs':>6}{speed:>9}{'p50 us':>9}{'p99 us':>9}{'CPU ' + unit:>11}{'best':>8}{'user':>8}{'system':>8}"
            f"{'core %':>8}{'MiB':>7}{'failed':>7}" + "".join(f"{'/ ' + name:>20}" for name in beside))
    lines = [f"{letter}  {scenario.title}", head]
    for name, row in table.items():
        lost = "dist." if row["left_out"] is None else f"{row['runs']}/{row['runs'] + row['left_out']}"
        ratios = "".join(f"{ratio_with_quartiles(row['ratios'].get(other)):>20}" for other in beside)
        refused = f"  {row['refused']:.1%} refused" if "strict" in scenario.traits else ""
        lines.append(f"{name:<12}{lost:>6}{rate(row):>9}{row['p50']:>9.0f}{row['p99']:>9.0f}{number(row['cpu']):>11}"
                     f"{number(row['best']):>8}{number(row['user']):>8}{number(row['system']):>8}{row['core'] * 100:>8.0f}{row['memory']:>7.1f}{row['failed']:>7}"
                     f"{ratios}{refused}")
    return "\n".join(lines) + "\n"


def ratio_with_quartiles(found):
    return f"{found[1]:.2f} ({found[0]:.2f}-{found[2]:.2f})" if found else ""


def markdown_table(names, ratios, rows):
    head = ["scenario", *(TITLES[name] for name in names), *(f"against {TITLES[name]}" for name in ratios)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def markdown(results):
    """All tables of a run, and the sentences that belong to them."""
    tables = {letter: summary(runs, BY_LETTER[letter], REFERENCES) for letter, runs in results["runs"].items() if runs}
    measured = {name for table in tables.values() for name in table}
    names = [name for name in TITLES if name in measured]
    beside = references(names)

    def rows(cell, ratios=()):
        made = []
        for letter, table in tables.items():
            title = BY_LETTER[letter].title
            cells = [cell(table[name]) if name in table else "" for name in names]
            ours = table.get(OURS, {"ratios": {}})["ratios"]
            made.append([f"{letter} {title}", *cells, *(f"{ours[name][1]:.2f}" if name in ours else "" for name in ratios)])
        return made

    about = results["about"]
    versions = ", ".join(f"{TITLES[name]} {about['versions'][name]}" for name in names if name != "haproxy-tcp")
    ratios = beside if OURS in measured else []
    parts = [
        f"CPU microseconds per request, user and system, median (best round) of {about['rounds']} rounds of {about['seconds']} s; "
        f"the ratios are paired per round. In k CPU seconds per GB. {versions}. {about['machine']}, {about['date']}.",
        markdown_table(names, ratios, rows(lambda row: f"{number(row['cpu'])} ({number(row['best'])})", ratios)),
        "The parts of it, user + system:",
        markdown_table(names, (), rows(lambda row: f"{number(row['user'])} + {number(row['system'])}")),
        "Latency in microseconds, p50 / p99, under the load that the load generator's core can make:",
        markdown_table(names, (), rows(lambda row: f"{row['p50']:,.0f} / {row['p99']:,.0f}")),
        "Requests per second (k: GB); resident memory in MiB at the most:",
        markdown_table(names, (), rows(lambda row: f"{rate(row)}; {row['memory']:.0f}")),
        "\n".join(remarks(tables) + results["left_out"]),
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def remarks(tables):
    """What a reader must know of this run before he believes it."""
    failed = {f"{letter} {name}": row["failed"] for letter, table in tables.items() for name, row in table.items() if row["failed"]}
    lines = ["Failed requests: " + (", ".join(f"{count} in {where}" for where, count in failed.items()) or "none") + "."]
    for letter, table in tables.items():
        if "strict" in BY_LETTER[letter].traits:
            lines.append(f"Refused in {letter}: " + ", ".join(f"{row['refused']:.1%} ({name})" for name, row in table.items()) + ".")
    lost = sum(row["left_out"] or 0 for table in tables.values() for row in table.values())
    kept = sum(row["runs"] for table in tables.values() for row in table.values())
    lines.append(f"Left out because the machine was disturbed: {lost} of {kept + lost} runs.")
    spoiled = {letter: [name for name, row in table.items() if row["left_out"] is None] for letter, table in tables.items()}
    said = [letter if names == list(tables[letter]) else f"{letter} ({', '.join(names)})" for letter, names in spoiled.items() if names]
    if said:
        lines.append(f"Disturbed for the most part, so that all runs count: {', '.join(said)}. Run these again on a quiet machine.")
    return lines


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(markdown(json.load(file)), end="")
