"""Asks a Sluicegate gateway whether a request may go on. README.md says how to use it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Optional, Sequence, Union

_now = time.monotonic  # tests replace it

_FAILURES_IN_A_ROW = 3
_QUIET = 1.0  # seconds without a question after so many failures
_REMEMBERED = 1.0  # seconds that a refusal is remembered, at most
_KEPT = 32  # connections that wait for their next question
_MAX_QUESTION = 1024 * 1024  # the gateway takes no larger one
_MAX_ANSWER = 64 * 1024


@dataclass(frozen=True)
class Decision:
    allowed: bool
    limit: Optional[str]
    remaining: Optional[int]  # how many more of cost 1 would pass
    limit_value: Optional[int]  # the quota
    retry_after: Optional[float]  # seconds; 0 if allowed; None: never, or not known
    reset: Optional[float]  # seconds until `remaining` grows
    shadow: bool  # a limit in shadow mode would have refused
    source: str  # "gateway", "remembered" or "default"


class SluicegateError(Exception):
    """The question is wrong (400), there is no such limit (404), or this program may not ask (403)."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class _Unanswered(ConnectionError):
    """The connection ended before a byte of the answer."""


class _Undecided(Exception):
    """The gateway answers, and cannot decide: the store of the limit is away."""


class Sluicegate:
    """One for the whole program; any number of threads may use it."""

    def __init__(self, address: str, timeout: float = 0.02, on_failure: str = "allow", remember: int = 1024) -> None:
        if on_failure not in ("allow", "refuse"):
            raise ValueError('on_failure is "allow" or "refuse"')
        if timeout <= 0 or remember < 0:
            raise ValueError("timeout is above 0, and remember is 0 or more")
        self._timeout = timeout
        self._remember = remember
        self._default_allows = on_failure == "allow"
        self._targets: list[tuple[int, Any]]
        if address.startswith("unix:"):
            self._targets, host = [(socket.AF_UNIX, address[len("unix:") :])], "localhost"
        else:
            # A name is looked up here and not for each question, since a look-up has no deadline.
            name, _, port = address.rpartition(":")
            if not name or not port.isdigit():
                raise ValueError("address is HOST:PORT or unix:PATH")
            found = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)
            self._targets, host = [(entry[0], entry[4]) for entry in found], address
        self._head = f"POST /v1/check HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[socket.socket] = []
        self._refusals: OrderedDict[tuple, tuple[float, Decision]] = OrderedDict()
        self._in_row = 0
        self._quiet_until = 0.0
        self._counts = {"asked": 0, "asked_again": 0, "remembered": 0, "failures": 0, "skipped": 0}
        self.last_failure: Optional[str] = None
        self._pid = os.getpid()

    def allow_request(self, limit: str, key: Union[str, Sequence[str], None] = None, cost: int = 1) -> Decision:
        """Decides about one request. Raises SluicegateError for a mistake of the caller, never for a gateway that is away."""
        parts = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        if not isinstance(limit, str) or not all(isinstance(part, str) for part in parts):
            raise TypeError("limit is a string, and key is a string or a list of strings")
        if self._closed:
            raise RuntimeError("this client is closed")
        if self._pid != os.getpid():
            # After a fork parent and child must not read answers from one connection.
            for sock in self._kept:
                sock.close()
            self._begin()
        start = _now()
        question = (limit, parts, cost)
        refusal = self._recall(question, start)
        if refusal is not None:
            return refusal
        asked: dict[str, Any] = {"limit": limit, "cost": cost}
        if parts:
            asked["key"] = parts
        body = json.dumps(asked)
        if len(body) > _MAX_QUESTION:
            # Not sent: a client with a giant key must not bring about the default.
            raise SluicegateError(413, "the question is larger than 1 MiB")
        if not self._may_ask(start):
            return self._default(limit)
        request = f"{self._head}content-length: {len(body)}\r\n\r\n{body}".encode()
        try:
            answer = _read(*self._ask(request, start + self._timeout))
        except Exception as failure:  # any: an answer that makes no sense must not break the program
            with self._lock:
                self._counts["failures"] += 1
                # One limit whose store is away says nothing about the others.
                self._in_row = 0 if isinstance(failure, _Undecided) else self._in_row + 1
                self._quiet_until = _now() + _QUIET
                self.last_failure = f"{type(failure).__name__}: {failure}"
            return self._default(limit)
        with self._lock:
            self._in_row = 0
            if isinstance(answer, SluicegateError):
                raise answer
            if not answer.allowed:
                # From the start of the question, so that no refusal outlives its time.
                self._refusals[question] = (start, answer)
                self._refusals.move_to_end(question)
                while len(self._refusals) > self._remember:
                    self._refusals.popitem(last=False)
        return answer

    def stats(self) -> dict[str, int]:
        """Counts since the start, or since the fork of this process."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Closes the connections. A question that is under way ends as usual."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for sock in kept:
            sock.close()

    def __enter__(self) -> Sluicegate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _default(self, limit: str) -> Decision:
        allows = self._default_allows
        return Decision(allows, limit, None, None, 0.0 if allows else None, None, False, "default")

    def _recall(self, question: tuple, now: float) -> Optional[Decision]:
        with self._lock:
            since, decision = self._refusals.get(question, (0.0, None))
            if decision is None:
                return None
            passed = now - since
            if passed >= min(_REMEMBERED, _REMEMBERED if decision.retry_after is None else decision.retry_after):
                del self._refusals[question]
                return None
            self._refusals.move_to_end(question)
            self._counts["remembered"] += 1
        retry_after, reset = (None if s is None else max(0.0, s - passed) for s in (decision.retry_after, decision.reset))
        return replace(decision, retry_after=retry_after, reset=reset, source="remembered")

    def _may_ask(self, now: float) -> bool:
        with self._lock:
            if self._in_row >= _FAILURES_IN_A_ROW:
                if now < self._quiet_until:
                    self._counts["skipped"] += 1
                    return False
                # One thread tries. The others keep the default until it is done, also if that thread dies.
                self._quiet_until = now + self._timeout + _QUIET
            self._counts["asked"] += 1
            return True

    def _ask(self, request: bytes, deadline: float) -> tuple[int, bytes]:
        sock = self._take()
        if sock is not None:
            try:
                return self._exchange(sock, request, deadline)
            except _Unanswered:
                with self._lock:
                    self._counts["asked_again"] += 1
        return self._exchange(self._connect(deadline), request, deadline)

    def _take(self) -> Optional[socket.socket]:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                sock = self._kept.pop()
            try:
                sock.settimeout(0)
                sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return sock
            except OSError:
                pass
            sock.close()  # the gateway has closed it, or there are bytes that belong to no question

    def _connect(self, deadline: float) -> socket.socket:
        failure: Optional[OSError] = None
        for family, target in self._targets:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                _until(sock, deadline)
                sock.connect(target)
                if family != getattr(socket, "AF_UNIX", None):
                    # Else the last piece of a long question may wait longer than the timeout.
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as error:
                sock.close()
                failure = failure or error
        raise failure or OSError("no address")

    def _exchange(self, sock: socket.socket, request: bytes, deadline: float) -> tuple[int, bytes]:
        got = b""
        try:
            _until(sock, deadline)
            sock.sendall(request)
            whole = None
            while whole is None:
                _until(sock, deadline)
                piece = sock.recv(_MAX_ANSWER)
                if not piece:
                    raise ConnectionResetError("the connection ended before the answer did")
                got += piece
                whole = _parse(got)
        except BaseException as failure:
            sock.close()  # a late answer would be taken for that of the next question
            if isinstance(failure, ConnectionError) and not got:
                raise _Unanswered(str(failure)) from None
            raise
        status, body, may_keep = whole
        with self._lock:
            may_keep = may_keep and not self._closed and len(self._kept) < _KEPT
            if may_keep:
                self._kept.append(sock)
        if not may_keep:
            sock.close()
        return status, body


def _until(sock: socket.socket, deadline: float) -> None:
    left = deadline - _now()
    if left <= 0:
        raise socket.timeout("no answer in time")
    sock.settimeout(left)


def _parse(got: bytes) -> Optional[tuple[int, bytes, bool]]:
    """Status, body, and whether the connection may be kept; None: more is to come."""
    if len(got) > _MAX_ANSWER:
        raise ValueError("the answer is too long")
    head, gap, body = got.partition(b"\r\n\r\n")
    if not gap:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = fields.get("content-length", "")
    if not first.startswith("HTTP/1.1 ") or not length.isdigit() or "transfer-encoding" in fields:
        raise ValueError("the answer is not one of the gateway")
    if len(body) < int(length):
        return None
    may_keep = len(body) == int(length) and fields.get("connection", "").lower() != "close"
    return int(first[9:12]), body[: int(length)], may_keep


def _read(status: int, answer: bytes) -> Union[Decision, SluicegateError]:
    if status == 200:
        told = json.loads(answer)
        if not isinstance(told["allowed"], bool):
            raise ValueError("the answer is no decision")
        retry_after, reset = (None if ms is None else ms / 1000 for ms in (told["retry_after_ms"], told["reset_ms"]))
        numbers = (told["remaining"], told["limit_value"], retry_after, reset)
        return Decision(told["allowed"], told["limit"], *numbers, told["shadow"], "gateway")
    if 400 <= status < 500 and status not in (408, 429):
        try:
            detail = str(json.loads(answer)["detail"])
        except (ValueError, LookupError, TypeError):
            detail = answer[:200].decode("utf-8", "replace")
        return SluicegateError(status, detail)
    raise (_Undecided if status == 503 else ValueError)(f"status {status}: {answer[:200]!r}")
