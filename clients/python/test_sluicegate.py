"""Tests of the client. SLUICEGATE is the path of the gateway's binary:

    SLUICEGATE=/usr/bin/sluicegate python3 -m unittest test_sluicegate

Where an answer must come, the timeout is long and the client's clock is one that the test moves: a busy machine
changes no result. Where none must come, the timeout is short.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import warnings

import sluicegate
from sluicegate import Sluicegate, SluicegateError

LONG = 30.0

CONFIG = """
[[listener]]
address = "127.0.0.1:{port}"
decides = "json"
[[listener]]
address = "unix:check.sock"
decides = "json"
[[limit]]
name = "per-key"
key = "header:x-api-key"
rate = "3/1h"
[[limit]]
name = "per-pair"
key = ["client-ip", "header:x-api-key"]
rate = "3/1h"
[[route]]
name = "api"
limits = ["per-key", "per-pair"]
"""


class Clock:
    """Stands still until it is moved. The steps are sums of powers of two, so that no sum is rounded."""

    def __init__(self, test):
        self.now = 1024.0
        test.addCleanup(setattr, sluicegate, "_now", sluicegate._now)
        sluicegate._now = lambda: self.now

    def advance(self, seconds):
        self.now += seconds


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Gateway:
    """The real one, in a directory of its own."""

    def __init__(self, test):
        self.binary = os.environ.get("SLUICEGATE", "")
        if not os.access(self.binary, os.X_OK):
            test.fail(f"SLUICEGATE must be the path of the gateway's binary; it is {self.binary!r}")
        self.binary = os.path.abspath(self.binary)
        directory = tempfile.TemporaryDirectory()
        test.addCleanup(directory.cleanup)
        test.addCleanup(self.kill)
        self.directory = directory.name
        self.process = None
        for _ in range(3):  # another program may take the port before the gateway does
            self.port = free_port()
            if self.start():
                return
        test.fail("the gateway does not start:\n" + self.log())

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def log(self):
        with open(os.path.join(self.directory, "log"), encoding="utf-8", errors="replace") as log:
            return log.read()

    def start(self):
        config = os.path.join(self.directory, "gateway.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(port=self.port))
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [self.binary, "run", "--config", config], cwd=self.directory, stdout=log, stderr=log
            )
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            if self.is_healthy():
                return self.process.poll() is None
            time.sleep(0.02)
        self.kill()
        return False

    def is_healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self):
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def http_answer(body, status="200 OK", more=""):
    text = body if isinstance(body, str) else json.dumps(body)
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}content-length: {len(text)}\r\n\r\n{text}".encode()


def decision(allowed, remaining, retry_after_ms, reset_ms):
    told = {"allowed": allowed, "limit": "l", "remaining": remaining, "limit_value": 5, "shadow": False}
    return http_answer({**told, "retry_after_ms": retry_after_ms, "reset_ms": reset_ms})


def allowed(retry_after_ms=0):
    return decision(True, 4, retry_after_ms, 1200)


def refused(retry_after_ms):
    return decision(False, 0, retry_after_ms, retry_after_ms)


class Stub:
    """Speaks the protocol as badly as a test wants: `behave(number, connection)` gives the bytes to answer, or None to close."""

    def __init__(self, test, behave, path=None):
        self.behave = behave
        self.connections = 0
        self.questions = []
        self.came = threading.Semaphore(0)  # a question came
        self.ended = threading.Semaphore(0)  # a connection ended
        self.open = []
        self.server = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.server.bind(path or ("127.0.0.1", 0))
        self.server.listen(128)
        self.address = f"unix:{path}" if path else "127.0.0.1:%d" % self.server.getsockname()[1]
        test.addCleanup(self.end)
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.connections += 1
            self.open.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            with connection, connection.makefile("rb") as reader:
                while self.serve_one(connection, reader):
                    pass
        except OSError:
            pass
        self.ended.release()

    def serve_one(self, connection, reader):
        first = reader.readline()
        if not first:
            return False
        assert first == b"POST /v1/check HTTP/1.1\r\n", first
        length = 0
        for line in iter(reader.readline, b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self.questions.append(json.loads(reader.read(length)))
        number = len(self.questions)
        self.came.release()
        answer = self.behave(number, connection)
        if answer is None:
            return False
        connection.sendall(answer)
        return True

    def end(self):
        # Without it accept() goes on to wait on Linux.
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(LONG)
        for connection in self.open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Case(unittest.TestCase):
    def client(self, address, **options):
        client = Sluicegate(address, **options)
        self.addCleanup(client.close)
        return client

    def in_threads(self, count, work):
        """What `work(number)` gave in each of so many threads that begin at once."""
        results = [None] * count
        barrier = threading.Barrier(count)

        def run(number):
            barrier.wait(LONG)
            results[number] = work(number)

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * LONG)
        return results


class RealGateway(Case):
    def test_three_pass_and_the_fourth_is_refused(self):
        clock = Clock(self)
        client = self.client(Gateway(self).address, timeout=LONG)
        passed = [client.allow_request("per-key", "a") for _ in range(3)]
        self.assertEqual([(d.allowed, d.remaining, d.source) for d in passed], [(True, left, "gateway") for left in (2, 1, 0)])
        self.assertEqual({(d.limit, d.limit_value, d.retry_after, d.shadow) for d in passed}, {("per-key", 3, 0.0, False)})
        refusal = client.allow_request("per-key", "a")
        self.assertEqual((refusal.allowed, refusal.source), (False, "gateway"))
        self.assertTrue(0 < refusal.retry_after <= 3600, refusal)
        clock.advance(0.5)
        again = client.allow_request("per-key", "a")
        self.assertEqual((again.allowed, again.source), (False, "remembered"))
        self.assertEqual(again.retry_after, refusal.retry_after - 0.5)
        clock.advance(0.5)
        self.assertEqual(client.allow_request("per-key", "a").source, "gateway")
        self.assertTrue(client.allow_request("per-key", "b").allowed)
        self.assertEqual(client.stats(), {"asked": 6, "asked_again": 0, "remembered": 1, "failures": 0, "skipped": 0})

    def test_a_key_of_several_parts(self):
        client = self.client(Gateway(self).address, timeout=LONG)
        pair = ["192.0.2.7", "a"]
        self.assertEqual([client.allow_request("per-pair", pair).allowed for _ in range(4)], [True] * 3 + [False])
        self.assertTrue(client.allow_request("per-pair", ("192.0.2.8", "a")).allowed)

    def test_a_cost(self):
        client = self.client(Gateway(self).address, timeout=LONG)
        self.assertEqual(client.allow_request("per-key", "a", cost=2).remaining, 1)
        self.assertFalse(client.allow_request("per-key", "a", cost=2).allowed)
        self.assertTrue(client.allow_request("per-key", "a").allowed, "a refusal of cost 2 says nothing of cost 1")
        never = client.allow_request("per-key", "b", cost=4)
        self.assertEqual((never.allowed, never.retry_after), (False, None))

    def test_mistakes_of_the_caller_are_errors_and_no_failures(self):
        client = self.client(Gateway(self).address, timeout=LONG)
        wrong = [
            (404, "no-such", "a", 1),
            (400, "per-pair", "a", 1),
            (400, "per-key", None, 1),
            (400, "per-key", "a", 0),
            (413, "per-key", "a" * 1024 * 1024, 1),
        ]
        for status, limit, key, cost in wrong:
            with self.subTest(status=status, limit=limit), self.assertRaises(SluicegateError) as raised:
                client.allow_request(limit, key, cost)
            self.assertEqual(raised.exception.status, status)
            self.assertTrue(raised.exception.detail)
        # The last one was not even asked.
        self.assertEqual(client.stats(), {"asked": 4, "asked_again": 0, "remembered": 0, "failures": 0, "skipped": 0})
        self.assertEqual(client.allow_request("per-key", "a").source, "gateway")

    def test_of_many_threads_three_pass(self):
        gateway = Gateway(self)
        for remember in (0, 1024):
            client = self.client(gateway.address, timeout=LONG, remember=remember)
            key = f"key of {remember}"
            decisions = self.in_threads(40, lambda _: [client.allow_request("per-key", key) for _ in range(5)])
            decisions = [decision for of_thread in decisions for decision in of_thread]
            self.assertEqual(sum(decision.allowed for decision in decisions), 3)
            stats = client.stats()
            self.assertEqual((stats["asked"] + stats["remembered"], stats["failures"], stats["skipped"]), (200, 0, 0))
            self.assertEqual(stats["remembered"] > 0, remember > 0)

    def test_threads_get_the_answers_of_their_own_questions(self):
        client = self.client(Gateway(self).address, timeout=LONG)
        left = self.in_threads(40, lambda n: [client.allow_request("per-key", f"key {n}").remaining for _ in range(3)])
        self.assertEqual(left, [[2, 1, 0]] * 40)

    def test_stopped_killed_and_back(self):
        clock = Clock(self)
        gateway = Gateway(self)
        client = self.client(gateway.address, timeout=LONG)
        refusing = self.client(gateway.address, timeout=LONG, on_failure="refuse")
        for one in (client, refusing):
            self.assertEqual(one.allow_request("per-key", "a").source, "gateway")
            one._timeout = 0.05
        gateway.stop()
        default = client.allow_request("per-key", "a")
        self.assertEqual((default.allowed, default.limit, default.retry_after, default.source), (True, "per-key", 0.0, "default"))
        default = refusing.allow_request("per-key", "a")
        self.assertEqual((default.allowed, default.retry_after, default.source), (False, None, "default"))
        gateway.kill()
        client.allow_request("per-key", "a")
        client.allow_request("per-key", "a")
        self.assertEqual(client.stats(), {"asked": 4, "asked_again": 0, "remembered": 0, "failures": 3, "skipped": 0})
        self.assertTrue(gateway.start(), gateway.log())
        client._timeout = LONG
        clock.advance(0.75)
        self.assertEqual(client.allow_request("per-key", "a").source, "default")
        self.assertEqual(client.stats()["skipped"], 1)
        clock.advance(0.25)
        self.assertEqual(client.allow_request("per-key", "a").source, "gateway")
        self.assertEqual(client.allow_request("per-key", "a").source, "gateway")

    def test_a_kept_connection_outlives_its_gateway(self):
        gateway = Gateway(self)
        client = self.client(gateway.address, timeout=LONG)
        client.allow_request("per-key", "a")
        gateway.kill()
        self.assertTrue(gateway.start(), gateway.log())
        self.assertEqual(client.allow_request("per-key", "a").source, "gateway")
        self.assertEqual(client.stats()["failures"], 0)

    def test_the_default_timeout_holds_with_the_real_clock(self):
        gateway = Gateway(self)
        gateway.stop()
        client = self.client(gateway.address)
        start = time.monotonic()
        decision = client.allow_request("per-key", "a")
        took = time.monotonic() - start
        self.assertEqual((decision.allowed, decision.source), (True, "default"))
        self.assertGreaterEqual(took, 0.02)
        self.assertLess(took, 5)  # 20 ms, and a very busy machine


class SlowAnswers(Case):
    def test_a_trickle_does_not_extend_the_deadline(self):
        def trickle(_, connection):
            # A right answer, if one waits for it.
            whole = http_answer({"allowed": False}, more=f"x: {'x' * 1000}\r\n")
            for place in range(len(whole)):
                connection.sendall(whole[place : place + 1])
                time.sleep(0.01)

        stub = Stub(self, trickle)
        client = self.client(stub.address, timeout=0.1)
        start = time.monotonic()
        decision = client.allow_request("l", "k")
        self.assertGreaterEqual(time.monotonic() - start, 0.1)
        self.assertEqual((decision.allowed, decision.source), (True, "default"))
        self.assertEqual(client.stats()["failures"], 1)
        self.assertIn("time", client.last_failure)

    def test_a_late_answer_is_not_that_of_the_next_question(self):
        late = threading.Event()

        def behave(number, _):
            if number == 2:
                late.wait(LONG)
                return refused(1000)
            return allowed()

        stub = Stub(self, behave)
        client = self.client(stub.address, timeout=LONG)
        client.allow_request("l", "k")
        client._timeout = 0.05
        self.assertEqual(client.allow_request("l", "k").source, "default")
        late.set()
        client._timeout = LONG
        decision = client.allow_request("l", "k")
        self.assertEqual((decision.allowed, decision.source), (True, "gateway"))
        self.assertEqual((stub.connections, len(stub.questions)), (2, 3), "a timeout is not asked again")


class Memory(Case):
    def setUp(self):
        self.clock = Clock(self)

    def test_a_refusal_is_remembered_until_it_ends(self):
        stub = Stub(self, lambda *_: refused(500))
        client = self.client(stub.address, timeout=LONG)
        first = client.allow_request("l", "k")
        self.assertEqual((first.source, first.retry_after, first.reset), ("gateway", 0.5, 0.5))
        self.clock.advance(0.375)
        for _ in range(10):
            again = client.allow_request("l", "k")
            self.assertEqual((again.allowed, again.source), (False, "remembered"))
            self.assertEqual((again.retry_after, again.reset, again.limit_value), (0.125, 0.125, 5))
        self.assertEqual(len(stub.questions), 1)
        self.clock.advance(0.125)
        self.assertEqual(client.allow_request("l", "k").source, "gateway")
        self.assertEqual(len(stub.questions), 2)

    def test_a_refusal_is_remembered_for_a_second_at_most(self):
        for told, left in ((60_000, 59.25), (None, None)):
            stub = Stub(self, lambda *_: refused(told))
            client = self.client(stub.address, timeout=LONG)
            client.allow_request("l", "k")
            self.clock.advance(0.75)
            again = client.allow_request("l", "k")
            self.assertEqual((again.source, again.retry_after), ("remembered", left))
            self.clock.advance(0.25)
            self.assertEqual(client.allow_request("l", "k").source, "gateway")
            self.assertEqual(len(stub.questions), 2)

    def test_only_the_same_question_is_answered_from_memory(self):
        stub = Stub(self, lambda *_: refused(60_000))
        client = self.client(stub.address, timeout=LONG)
        different = [("l", "k", 2), ("l", "k", 1), ("l", "K", 1), ("L", "k", 1), ("l", ["k", "k"], 1), ("l", None, 1)]
        for question in different:
            self.assertEqual(client.allow_request(*question).source, "gateway")
        for question in different + [("l", ["k"], 1)]:
            self.assertEqual(client.allow_request(*question).source, "remembered")
        self.assertEqual(len(stub.questions), len(different))
        self.assertEqual(stub.questions[0], {"limit": "l", "cost": 2, "key": ["k"]})
        self.assertEqual(stub.questions[-1], {"limit": "l", "cost": 1})

    def test_the_memory_is_bounded(self):
        stub = Stub(self, lambda *_: refused(60_000))
        client = self.client(stub.address, timeout=LONG, remember=2)
        sources = [client.allow_request("l", key).source for key in "abacab"]
        # "c" takes the place of "b", since "a" was used later.
        self.assertEqual(sources, ["gateway", "gateway", "remembered", "gateway", "remembered", "gateway"])
        forgetful = self.client(stub.address, timeout=LONG, remember=0)
        self.assertEqual([forgetful.allow_request("l", "k").source for _ in range(2)], ["gateway"] * 2)

    def test_permission_is_not_remembered(self):
        for answer in (allowed(), allowed(None)):
            client = self.client(Stub(self, lambda *_: answer).address, timeout=LONG)
            self.assertEqual([client.allow_request("l", "k").source for _ in range(3)], ["gateway"] * 3)


class Failures(Case):
    def setUp(self):
        self.clock = Clock(self)

    def test_after_three_in_a_row_no_question_for_a_second(self):
        stub = Stub(self, lambda *_: None)
        client = self.client(stub.address, timeout=LONG)
        for expected in (3, 4):  # after a second one question, and again none
            for _ in range(20):
                self.assertEqual(client.allow_request("l", "k").source, "default")
            self.assertEqual((stub.connections, len(stub.questions)), (expected, expected))
            self.clock.advance(1023 / 1024)
            client.allow_request("l", "k")
            self.assertEqual(stub.connections, expected)
            self.clock.advance(1 / 1024)
        self.assertEqual(client.stats(), {"asked": 4, "asked_again": 0, "remembered": 0, "failures": 4, "skipped": 38})

    def test_an_answer_between_them_ends_the_row(self):
        stub = Stub(self, lambda number, _: allowed() if number % 3 == 0 else http_answer("", "500 Internal"))
        client = self.client(stub.address, timeout=LONG)
        for _ in range(12):
            client.allow_request("l", "k")
        self.assertEqual(len(stub.questions), 12)
        self.assertEqual((client.stats()["failures"], stub.connections), (8, 1))

    def test_a_limit_that_cannot_be_asked_does_not_stop_the_questions(self):
        stub = Stub(self, lambda *_: http_answer("", "503 Service Unavailable"))
        client = self.client(stub.address, timeout=LONG)
        sources = {client.allow_request("l", "k").source for _ in range(9)}
        self.assertEqual((sources, len(stub.questions), client.stats()["failures"]), ({"default"}, 9, 9))

    def test_while_one_tries_the_others_get_the_default(self):
        go_on = threading.Event()

        def behave(number, _):
            if number <= 3:
                return None
            go_on.wait(LONG)
            return allowed()

        stub = Stub(self, behave)
        client = self.client(stub.address, timeout=LONG)
        for _ in range(3):
            client.allow_request("l", "k")
            stub.came.acquire(timeout=LONG)
        self.clock.advance(1)
        tried = []
        thread = threading.Thread(target=lambda: tried.append(client.allow_request("l", "k")))
        thread.start()
        self.assertTrue(stub.came.acquire(timeout=LONG))
        self.assertEqual(client.allow_request("l", "k").source, "default")
        go_on.set()
        thread.join(LONG)
        self.assertEqual(tried[0].source, "gateway")
        self.assertEqual(client.allow_request("l", "k").source, "gateway")
        self.assertEqual(client.stats()["skipped"], 1)

    def test_answers_that_are_none(self):
        wrong = [
            b"SSH-2.0-OpenSSH\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}",
            allowed().replace(b"content-type", b"transfer-encoding: chunked\r\ncontent-type"),
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b" " * 100_000,
            http_answer("no JSON"),
            http_answer([]),
            http_answer("[" * 50_000),
            http_answer({"allowed": 1}),
            http_answer({"allowed": False, "limit": "l"}),
            decision(True, 4, 0, "12"),
            allowed().replace(b"200 OK", b"301 OK"),
            http_answer({"detail": "away"}, "503 Service Unavailable"),
            http_answer("", "429 Too Many Requests"),
        ]
        for answer in wrong:
            with self.subTest(answer=answer[:80]):
                client = self.client(Stub(self, lambda *_: answer).address, timeout=LONG)
                self.assertEqual(client.allow_request("l", "k").source, "default")
                self.assertEqual(client.stats()["failures"], 1)
                self.assertNotIn("time", client.last_failure.lower())

    def test_an_error_without_a_detail(self):
        client = self.client(Stub(self, lambda *_: http_answer("<h1>", "404 Not Found")).address, timeout=LONG)
        with self.assertRaisesRegex(SluicegateError, "404: <h1>"):
            client.allow_request("l", "k")
        client = self.client(Stub(self, lambda *_: http_answer([], "403 Forbidden")).address, timeout=LONG)
        with self.assertRaisesRegex(SluicegateError, "403"):
            client.allow_request("l", "k")


class Connections(Case):
    def test_one_is_kept(self):
        stub = Stub(self, lambda *_: allowed())
        client = self.client(stub.address, timeout=LONG)
        for _ in range(20):
            client.allow_request("l", "k")
        self.assertEqual((stub.connections, len(stub.questions)), (1, 20))

    def test_one_that_ended_while_it_was_kept_gets_no_question(self):
        def behave(_, connection):
            connection.sendall(allowed())

        stub = Stub(self, behave)
        client = self.client(stub.address, timeout=LONG)
        for _ in range(3):
            self.assertEqual(client.allow_request("l", "k").source, "gateway")
            stub.ended.acquire(timeout=LONG)
        self.assertEqual((stub.connections, len(stub.questions)), (3, 3))
        self.assertEqual((client.stats()["failures"], client.stats()["asked_again"]), (0, 0))

    def test_one_that_ends_under_a_question_is_asked_again_over_a_new_one(self):
        stub = Stub(self, lambda number, _: None if number == 2 else allowed())
        client = self.client(stub.address, timeout=LONG)
        self.assertEqual([client.allow_request("l", "k").source for _ in range(2)], ["gateway"] * 2)
        self.assertEqual((stub.connections, len(stub.questions)), (2, 3))
        self.assertEqual((client.stats()["failures"], client.stats()["asked_again"]), (0, 1))

    def test_one_that_ends_within_an_answer_is_a_failure(self):
        def behave(number, connection):
            if number == 1:
                return allowed()
            connection.sendall(allowed()[:20])

        stub = Stub(self, behave)
        client = self.client(stub.address, timeout=LONG)
        self.assertEqual([client.allow_request("l", "k").source for _ in range(2)], ["gateway", "default"])
        self.assertEqual((stub.connections, len(stub.questions)), (1, 2))

    def test_one_is_not_kept_where_the_gateway_says_so_or_says_too_much(self):
        for answer in (http_answer("{}", "503 x", "Connection: close\r\n"), allowed() + b"more"):
            stub = Stub(self, lambda *_: answer)
            client = self.client(stub.address, timeout=LONG)
            client.allow_request("l", "k")
            client.allow_request("l", "k")
            self.assertEqual(stub.connections, 2)

    def test_a_unix_socket(self):
        with tempfile.TemporaryDirectory() as directory:
            stub = Stub(self, lambda *_: allowed(), os.path.join(directory, "s"))
            client = self.client(stub.address, timeout=LONG)
            self.assertEqual(client.allow_request("l", "k").source, "gateway")

    def test_a_unix_socket_of_the_gateway(self):
        gateway = Gateway(self)
        client = self.client(f"unix:{gateway.directory}/check.sock", timeout=LONG)
        left = [client.allow_request("per-key", "u").remaining for _ in range(3)]
        self.assertEqual(left, [2, 1, 0])
        self.assertFalse(client.allow_request("per-key", "u").allowed)

    def test_a_fork_shares_no_connection(self):
        stub = Stub(self, lambda *_: allowed())
        client = self.client(stub.address, timeout=LONG)
        client.allow_request("l", "k")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
            child = os.fork()
        if child == 0:
            is_right = False
            try:
                is_right = client.allow_request("l", "k").source == "gateway" and client.stats()["asked"] == 1
            finally:
                os._exit(0 if is_right else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        client.allow_request("l", "k")
        self.assertEqual((stub.connections, len(stub.questions)), (2, 3))

    def test_close(self):
        stub = Stub(self, lambda *_: allowed())
        with Sluicegate(stub.address, timeout=LONG) as client:
            client.allow_request("l", "k")
        self.assertTrue(stub.ended.acquire(timeout=LONG))
        with self.assertRaises(RuntimeError):
            client.allow_request("l", "k")

    def test_options_that_are_wrong(self):
        for wrong in ({"on_failure": "open"}, {"timeout": 0}, {"remember": -1}, {"address": "9080"}, {"address": "a:b"}):
            with self.subTest(wrong), self.assertRaises(ValueError):
                Sluicegate(**{"address": "127.0.0.1:9080", **wrong})
        client = self.client("127.0.0.1:9080")
        for key in (b"bytes", 17, ["a", 1]):
            with self.subTest(key), self.assertRaises(TypeError):
                client.allow_request("l", key)


if __name__ == "__main__":
    unittest.main()
