"""Processes that are pinned to cores and end with us, and ports that nobody uses."""
import contextlib, os, random, signal, socket, subprocess, time


class StartError(Exception):
    """A program did not start. The text says which, and has the end of its output."""


class Process:
    """A program on given cores, in a session of its own.

    The session's id finds all that the program starts, and its process group ends them. Ctrl-C in a terminal does not
    reach it: whoever started it ends it, by `stop` or as a context manager, and `stop_all` at the end of all.
    """

    running = []

    def __init__(self, command, cores, log, env=None):
        self.command, self.log = command, log
        # A signal to us waits, so that no program is started and not noted.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

        def in_child():
            os.sched_setaffinity(0, cores)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        try:
            with open(log, "w") as output:
                self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                              start_new_session=True, env={**os.environ, **(env or {})},
                                              preexec_fn=in_child)
            self.running.append(self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def pid(self):
        return self.child.pid

    def runs(self):
        return self.child.poll() is None

    def output(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def wait_for(self, port, seconds=15):
        """Waits until the program listens on the port."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.runs():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
                return self
            time.sleep(0.05)
        raise StartError(f"{self.command[0]} does not listen on port {port}: {self.output()[-600:].strip()}")

    def wait(self, seconds):
        """Waits for the end of a program that ends by itself, and gives its output."""
        try:
            code = self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise StartError(f"{self.command[0]} did not end within {seconds:.0f} s") from None
        if code:
            raise StartError(f"{self.command[0]} ended with {code}: {self.output()[-600:].strip()}")
        return self.output()

    def stop(self):
        if self not in self.running:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            # The group outlives its leader where that was killed: ask for both.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(5)
                if not group_lives(self.pid):
                    break
        self.running.remove(self)

    @classmethod
    def stop_all(cls):
        """Ends what is left: a signal may have come in the middle of a `stop`."""
        for process in list(cls.running):
            process.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def group_lives(group):
    """Whether a process of the group is left, half a second later at the latest."""
    for _ in range(10):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def free_port():
    """A port of 127.0.0.1 that nobody uses, below those that the kernel gives to outgoing connections."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
