"""Frames of HTTP/2, a gateway to attack and a server that never answers: what the scripts of this directory share."""
import os
import re
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

DATA, HEADERS, RESET, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])


def frame(kind, flags, stream, payload=b""):
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(value, prefix):
    """An integer of HPACK behind a first byte whose `prefix` bits are free (RFC 7541, 5.1)."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([value])
    out, value = [most], value - most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + [value])


def text(value):
    """A string of HPACK that is not compressed."""
    return integer(len(value), 7) + value


def request(path, method=b"GET", authority=b"attack.example"):
    """The pseudo-header fields of a request, none of which goes into the table."""
    methods = {b"GET": b"\x82", b"POST": b"\x83"}
    return methods[method] + b"\x86" + b"\x04" + text(path) + b"\x01" + text(authority)


def may_open_many():
    """Raises this process's limit on open files as far as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connect(address, number=0):
    """A connection from one of 200 addresses of this machine that was opened with the preface."""
    connection = socket.socket()
    connection.bind((f"127.0.0.{2 + number % 200}" if number else "127.0.0.1", 0))
    connection.connect(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(OPENING)
    return connection


class Gateway:
    """A gateway on a configuration of its own."""

    def __init__(self, binary, configuration):
        may_open_many()
        self.directory = tempfile.TemporaryDirectory()
        path = os.path.join(self.directory.name, "gateway.toml")
        with open(path, "w", encoding="ascii") as file:
            file.write('[[listener]]\naddress = "127.0.0.1:0"\n[admin]\naddress = "127.0.0.1:0"\n[log]\nlevel = "warn"\n')
            file.write(configuration)
        self.process = subprocess.Popen([binary, "run", "-c", path], stdout=subprocess.PIPE, text=True)
        self.address = self.admin = None
        while not (self.address and self.admin):
            line = self.process.stdout.readline() or sys.exit("the gateway did not start")
            for found in re.finditer(r"(127\.0\.0\.1):(\d+)", line):
                at = (found[1], int(found[2]))
                self.admin = at if "admin" in line else self.admin
                self.address = self.address or (None if "admin" in line else at)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.directory.cleanup()

    def memory(self, what="VmRSS"):
        """Resident memory in MB; `VmHWM`: the most that it was."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(what + r":\s+(\d+)", status.read())[1]) * 1024 / 1e6

    def metrics(self, pattern):
        """Samples of the metrics whose names match and that are not zero."""
        with socket.create_connection(self.admin) as admin:
            admin.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while more := admin.recv(1 << 16):
                answer += more
        lines = answer.decode().splitlines()
        return [line for line in lines if re.match(pattern, line) and not line.endswith((" 0", " 0.0"))]


class SilentServer:
    """A server in a process of its own that reads and never answers."""

    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = listener.getsockname()[1]
        self.pid = os.fork()
        if self.pid == 0:
            may_open_many()
            serve(listener)
        listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def serve(listener):
    """Reads whatever comes, for at most five minutes."""
    listener.setblocking(False)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    until = time.monotonic() + 300
    while time.monotonic() < until:
        for key, _ in ready.select(1):
            try:
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connection.setblocking(False)
                    ready.register(connection, selectors.EVENT_READ)
                elif not key.fileobj.recv(1 << 16):
                    ready.unregister(key.fileobj)
                    key.fileobj.close()
            except BlockingIOError:
                pass
            except OSError:
                ready.unregister(key.fileobj)
                key.fileobj.close()
    os._exit(0)
