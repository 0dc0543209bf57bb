"""Tests of the arithmetic, of what is read from the load's programs, and of the templates.

    python3 -m unittest discover -s benches/peers -p tests.py
"""
import contextlib, os, re, signal, subprocess, sys, tempfile, time, unittest

import load, measure, report, results
from peers import HERE, fill, known_peers
from processes import Process, StartError
from scenarios import ALL, BY_LETTER

PLAIN, DOWNLOAD = BY_LETTER["a"], BY_LETTER["k"]

WRK = """Running 1s test @ http://127.0.0.1:1/
  1 threads and 64 connections
  Latency Distribution
     50%  900.00us
  61234 requests in 1.00s, 15.04MB read
Requests/sec:  61001.20
RESULT requests=61234 microseconds=1003812 p50=900 p99=2100 broken=1 bad_status=7
"""
H2LOAD = """starting benchmark...
Application protocol: h2c
Main benchmark duration is over for thread #0. Stopping all clients.

finished in 1.02s, 14528.00 req/s, 1.79MB/s
requests: 14528 total, 14656 started, 14528 done, 14526 succeeded, 2 failed, 2 errored, 0 timeout
status codes: 14520 2xx, 0 3xx, 0 4xx, 6 5xx
time for request:      469us     18.50ms      5.03ms      3.02ms    68.64%
"""


def run(peer, at, cpu=1.0, requests=100_000, **rest):
    return {"peer": peer, "round": at, "cpu": cpu, "user": 0.25, "system": 0.75, "requests": requests, "seconds": 1.0, "watched": 1.0,
            "probe": 1.0, "stolen": 0.0, "foreign_proxy": 0.0, "foreign_load": 0.0, "p50": 900, "p99": 2000, "failed": 0,
            "memory": 10.0, "core": 0.9, **rest}


class Arithmetic(unittest.TestCase):
    def test_cost_is_of_a_request_or_of_a_gigabyte(self):
        self.assertAlmostEqual(results.cost(run("x", 0), PLAIN), 10)
        self.assertAlmostEqual(results.cost(run("x", 0, cpu=0.268435456, requests=1), DOWNLOAD), 1.0)
        self.assertEqual(results.cost(run("x", 0, requests=0), PLAIN), float("inf"))

    def test_ratios_are_of_one_round_and_not_of_the_medians(self):
        # The machine is twice as slow in the second round, for both: the ratio does not see it.
        runs = [run("nginx", 0, 1.0), run("sluicegate", 0, 0.8), run("nginx", 1, 2.0), run("sluicegate", 1, 1.6),
                run("nginx", 2, 1.0), run("sluicegate", 2, 0.9), run("sluicegate", 3, 9.0)]
        ratios = results.paired_ratios(runs, PLAIN, "sluicegate", "nginx")
        self.assertEqual([round(one, 6) for one in ratios], [0.8, 0.8, 0.9])
        row = results.summary(runs, PLAIN, ["nginx"])["sluicegate"]
        self.assertAlmostEqual(row["ratios"]["nginx"][1], 0.8)
        self.assertAlmostEqual(row["best"], 8)

    def test_runs_on_a_disturbed_machine_are_left_out(self):
        self.assertIsNone(results.disturbance(run("x", 0, probe=1.14), 1.0))
        self.assertEqual(results.disturbance(run("x", 0, probe=1.16), 1.0), "slow")
        self.assertEqual(results.disturbance(run("x", 0, stolen=0.06), 1.0), "stolen")
        self.assertEqual(results.disturbance(run("x", 0, foreign_proxy=0.11), 1.0), "foreign")
        self.assertEqual(results.disturbance(run("x", 0, refused=98_000), 1.0), "admitted")
        self.assertIsNone(results.disturbance(run("x", 0, refused=99_500), 1.0))
        runs = [run("a", 0), run("a", 1), run("a", 2, 5.0, foreign_load=0.5), run("b", 0), run("b", 1, probe=1.3), run("b", 2)]
        kept, left_out = results.counting(runs)
        self.assertEqual([(one["peer"], one["round"]) for one in kept], [("a", 0), ("a", 1), ("b", 0), ("b", 2)])
        self.assertEqual(left_out, {"a": 1, "b": 1})
        self.assertEqual(results.clean_rounds(runs), 1)
        self.assertEqual(results.paired_ratios(kept, PLAIN, "a", "b"), [1.0])

    def test_all_runs_count_where_nearly_all_are_disturbed(self):
        runs = [run("a", 0), *(run("a", at, foreign_proxy=0.5) for at in range(1, 5))]
        kept, left_out = results.counting(runs)
        self.assertEqual((len(kept), left_out), (5, {"a": None}))

    def test_the_parts_are_of_all_runs_together(self):
        runs = [run("a", 0, user=0.0, system=1.0), run("a", 1, user=0.4, system=0.6)]
        row = results.summary(runs, PLAIN, [])["a"]
        self.assertAlmostEqual(row["user"], 2)
        self.assertAlmostEqual(row["system"], 8)

    def test_one_number_is_its_own_quartiles(self):
        self.assertEqual(results.quartiles([0.9]), [0.9] * 3)
        self.assertEqual(results.quartiles([1, 2, 3]), [1.5, 2, 2.5])


class Reading(unittest.TestCase):
    def test_wrk(self):
        read = load.parse_wrk(WRK)
        self.assertEqual((read["requests"], read["p50"], read["p99"], read["failed"], read["bad_status"]), (61234, 900, 2100, 1, 7))
        self.assertAlmostEqual(read["seconds"], 1.003812)
        with self.assertRaises(ValueError):
            load.parse_wrk("unable to connect to 127.0.0.1:1 Connection refused")

    def test_h2load(self):
        read = load.parse_h2load(H2LOAD, [f"1795667667368250\t200\t{took}\n" for took in range(1, 200)])
        self.assertEqual((read["requests"], read["failed"], read["bad_status"], read["protocol"]), (14526, 2, 6, "h2c"))
        self.assertAlmostEqual(read["p50"], 100)
        self.assertAlmostEqual(read["p99"], 198)
        self.assertAlmostEqual(read["seconds"], 1.02)
        with self.assertRaises(ValueError):
            load.parse_h2load("usage", [])

    def test_our_own_clients(self):
        self.assertEqual(load.parse_client('RESULT {"requests": 1, "failed": 0}\n'), {"requests": 1, "failed": 0, "bad_status": 0})

    def test_a_core(self):
        core = measure.parse_core("cpu  9 9 9 9\ncpu0 100 10 50 700 5 2 8 3 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\n", 0)
        self.assertAlmostEqual(core.busy, 170 * measure.TICK)
        self.assertAlmostEqual(core.stolen, 3 * measure.TICK)

    def test_cpu_time_is_of_all_threads_of_a_session(self):
        before = time.process_time()
        while time.process_time() < before + 0.05:
            pass
        self.assertGreaterEqual(measure.process_clock(os.getpid()), 0.05)


class Templates(unittest.TestCase):
    def test_blocks_and_values(self):
        text = "a @port@\n  #: if tls\n  b\n  #: if not h2\n  c\n  #: end\n  #: end\n# if d\n"
        self.assertEqual(fill(text, {"tls"}, {"port": 1}), "a 1\n  b\n  c\n# if d\n")
        self.assertEqual(fill(text, {"tls", "h2"}, {"port": 1}), "a 1\n  b\n# if d\n")
        self.assertEqual(fill(text, set(), {"port": 1}), "a 1\n# if d\n")
        for wrong in ("#: if tls\n", "#: end\n"):
            with self.assertRaises(ValueError):
                fill(wrong, set(), {})
        with self.assertRaises(KeyError):
            fill("@nobody@", set(), {})

    def test_every_template_can_be_filled_in_for_every_scenario(self):
        values = dict.fromkeys(("port", "folder", "workers", "upstream", "certificate", "key", "both"), "1")
        for peer in known_peers("sluicegate", "other").values():
            with open(os.path.join(HERE, "conf", peer.template)) as file:
                text = file.read()
            for scenario in ALL:
                with self.subTest(peer=peer.name, scenario=scenario.letter):
                    self.assertNotIn("#:", re.sub(r"(?m)^# .*", "", fill(text, scenario.traits | {"fields"}, values)))


class Tables(unittest.TestCase):
    def results(self, **rest):
        about = {"rounds": 1, "seconds": 1, "machine": "2 cores", "date": "today", "versions": {"nginx": "1", "sluicegate": "2"}}
        runs = [run("nginx", 0, 1.0), run("sluicegate", 0, 0.8, **rest)]
        return {"about": about, "left_out": [], "runs": {"a": runs, "c": [{**one, "refused": 99_900} for one in runs]}}

    def test_markdown(self):
        text = report.markdown(self.results())
        self.assertIn("| scenario | nginx | Sluicegate | against nginx |\n|---|---|---|---|\n", text)
        self.assertIn("| a plain, 100 B | 10.0 (10.0) | 8.00 (8.00) | 0.80 |\n", text)
        self.assertIn("Failed requests: none.", text)
        self.assertIn("Refused in c: 99.9% (nginx), 99.9% (sluicegate).", text)

    def test_what_failed_is_said(self):
        self.assertIn("Failed requests: 3 in a sluicegate, 3 in c sluicegate.", report.markdown(self.results(failed=3)))

    def test_a_terminal_gets_a_line_of_each_peer(self):
        text = report.of_scenario("a", self.results()["runs"]["a"])
        self.assertEqual([line.split()[0] for line in text.splitlines()[2:]], ["nginx", "sluicegate"])


class Processes(unittest.TestCase):
    def test_what_a_program_has_started_ends_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            # A child that takes no SIGTERM.
            with Process(["sh", "-c", "(trap '' TERM; sleep 600) & echo $!; wait"], os.sched_getaffinity(0), log) as process:
                while not process.output():
                    time.sleep(0.01)
                child = int(process.output())
            self.assertFalse(Process.running)
            # Gone, or dead and not yet waited for by its new parent.
            with contextlib.suppress(OSError):
                self.assertEqual(measure.stat_fields(child)[0], "Z")

    def test_a_program_that_fails_says_why(self):
        with tempfile.TemporaryDirectory() as folder:
            with Process(["sh", "-c", "echo no such option; exit 3"], {*os.sched_getaffinity(0)}, os.path.join(folder, "log")) as process:
                with self.assertRaisesRegex(StartError, "sh ended with 3: no such option"):
                    process.wait(10)

    def test_a_signal_ends_the_run_and_all_that_it_started(self):
        script = ("import sys, tempfile, time\nfrom processes import Process\nimport signal\n"
                  "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
                  "try:\n  one = Process(['sleep', '600'], {0}, sys.argv[1])\n  print(one.pid, flush=True)\n  time.sleep(60)\n"
                  "finally:\n  Process.stop_all()\n")
        with tempfile.NamedTemporaryFile() as log:
            with subprocess.Popen([sys.executable, "-c", script, log.name], cwd=HERE, stdout=subprocess.PIPE, text=True) as ours:
                child = int(ours.stdout.readline())
                ours.send_signal(signal.SIGTERM)
                self.assertEqual(ours.wait(20), 143)
        with self.assertRaises(ProcessLookupError):
            os.kill(child, 0)


if __name__ == "__main__":
    unittest.main()
