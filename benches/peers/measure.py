"""What is read from the kernel: CPU time of processes and of cores, memory, and how fast the machine is just now."""
import contextlib, glob, hashlib, os, resource, statistics, time
from dataclasses import dataclass

TICK = 1 / os.sysconf("SC_CLK_TCK")


def stat_fields(pid):
    """The fields of /proc/PID/stat behind the name, which may have spaces and brackets. The first is the state."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def processes_of(session):
    """All processes of a session: those that a program has started, and itself."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(stat_fields(name)[3]) == session:
                found.append(int(name))
    return found


@dataclass
class Cpu:
    """CPU time in seconds. `total` is exact to the nanosecond, the kernel tells `user` and `system` in ticks."""

    total: float
    user: float
    system: float

    def __sub__(self, earlier):
        return Cpu(self.total - earlier.total, self.user - earlier.user, self.system - earlier.system)


def process_clock(pid):
    """The CPU time of all threads of a process, also of those that have ended: the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def cpu_of(session):
    """The CPU time of all processes of a session. A process that ends takes its time with it, and none of a proxy does."""
    sum_of = Cpu(0.0, 0.0, 0.0)
    for pid in processes_of(session):
        with contextlib.suppress(OSError):
            fields = stat_fields(pid)
            sum_of.total += process_clock(pid)
            sum_of.user += int(fields[11]) * TICK
            sum_of.system += int(fields[12]) * TICK
    return sum_of


def memory_of(session):
    """Resident memory in MiB of all processes of a session. Pages that processes share count once for each."""
    pages = 0
    for pid in processes_of(session):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
            pages += int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Core:
    """What a core has done since the machine's start, in seconds. Interrupts are busy; stolen is what the host took."""

    busy: float
    stolen: float

    def __sub__(self, earlier):
        return Core(self.busy - earlier.busy, self.stolen - earlier.stolen)


def parse_core(text, core):
    for line in text.splitlines():
        name, *numbers = line.split()
        if name == f"cpu{core}":
            user, nice, system, _, _, irq, softirq, stolen = map(int, numbers[:8])
            return Core((user + nice + system + irq + softirq) * TICK, stolen * TICK)
    raise ValueError(f"/proc/stat has no core {core}")


def core_times(cores):
    with open("/proc/stat") as file:
        text = file.read()
    return {core: parse_core(text, core) for core in cores}


def kernel_helpers(core):
    """The kernel's threads that do the network's work of a core if there is much. Their time is no foreign time."""
    found = []
    for path in glob.glob("/proc/[0-9]*/comm"):
        with contextlib.suppress(OSError), open(path) as file:
            if file.read().strip() == f"ksoftirqd/{core}":
                found.append(int(path.split("/")[2]))
    return found


def speed_probe(cores):
    """How long a fixed piece of work takes, in milliseconds: the slowest core, the median of five tries on it.

    A shared host can be slow without a word about it: neither steal nor load shows in the guest.
    """
    block, before, slowest = bytes(65536), os.sched_getaffinity(0), 0.0
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})
            tries = []
            for _ in range(5):
                begin = time.perf_counter()
                for _ in range(12):
                    hashlib.md5(block).digest()
                tries.append(time.perf_counter() - begin)
            slowest = max(slowest, statistics.median(tries) * 1e3)
    finally:
        os.sched_setaffinity(0, before)
    return slowest


class Watch:
    """Reads everything before a run and after it."""

    def __init__(self, proxy, upstream, proxy_cores, load_cores):
        self.proxy, self.upstream = proxy, upstream
        self.cores = sorted({*proxy_cores, *load_cores})
        self.proxy_cores, self.load_cores = proxy_cores, load_cores
        self.helpers = {core: kernel_helpers(core) for core in self.cores}

    def start(self):
        self.before = self.read()

    def read(self):
        helped = {core: sum(map(process_clock, pids)) for core, pids in self.helpers.items()}
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Ours: this program, and the load generators that have ended and were waited for.
        own = time.process_time() + children.ru_utime + children.ru_stime
        return time.monotonic(), cpu_of(self.proxy), cpu_of(self.upstream), own, helped, core_times(self.cores)

    def stop(self):
        """What the proxy took, and which part of each core's time others took from proxy and load."""
        seconds, proxy, upstream, own, helped, cores = (
            {core: after[core] - before[core] for core in after} if isinstance(after, dict) else after - before
            for before, after in zip(self.before, self.read()))
        stolen = max(one.stolen for one in cores.values()) / seconds
        if self.proxy_cores == self.load_cores:
            known = proxy.total + upstream.total + own + sum(helped.values())
            foreign = (sum(one.busy for one in cores.values()) - known) / len(cores)
            foreign = {"proxy": foreign / seconds, "load": foreign / seconds}
        else:
            foreign = {name: (sum(cores[core].busy - helped[core] for core in on) - known) / seconds
                       for name, on, known in (("proxy", self.proxy_cores, proxy.total),
                                               ("load", self.load_cores, upstream.total + own))}
        busy = sum(cores[core].busy for core in self.proxy_cores)
        return {"watched": seconds, "cpu": proxy.total, "user": proxy.user, "system": proxy.system, "core": busy,
                "foreign_proxy": max(0.0, foreign["proxy"]), "foreign_load": max(0.0, foreign["load"]), "stolen": stolen,
                "memory": memory_of(self.proxy)}
