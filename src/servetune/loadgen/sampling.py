"""Sampling process: asks servers and this machine for metrics, while another process sends load.

It runs by its path on the standard library alone, so that it starts in a few milliseconds
and shares neither memory nor interpreter lock with the load loop. Every source has a thread:
one that hangs delays no other. Readings stay in memory until they are asked for.

    stdin    one line of JSON (see `Sampler`); then `now` to ask every source out of turn, and
             `stop`; end of file: the parent is gone
    stdout   `ready` once every source was asked, at first and after each `now`; at last one
             line of JSON

The key of a server never passes through here: its environment variable's name does.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from servetune.json_value import JsonMembers, JsonObject
from servetune.probe import MOST_WORDS, BoundedSocket, whole_body

_TICK_S = 0.5
_MOST_KEPT_BYTES = 1 << 19
"""Most bytes of one scrape's kept lines; hundreds of ranks have fewer."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class _Source(threading.Thread):
    """Thread of one source: asks at once, then at intervals and when woken, and once at the end."""

    def __init__(self, every_s: float, ask: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._every_s = every_s
        self._ask = ask
        self._woken = threading.Event()
        self._waking = threading.Lock()
        self._stopped = False
        self.answered = threading.Event()
        self.answers: list[Any] = []
        self.failed = 0
        self.problem = ""

    def run(self) -> None:
        due_s = time.monotonic()
        while True:
            self._once()
            with self._waking:
                if not self._woken.is_set():  # otherwise this answer began before the wake-up
                    self.answered.set()
            late_s = time.monotonic() - due_s
            if late_s >= 0:
                # Intervals that have passed are left out, not made up for in a burst.
                due_s += self._every_s * (late_s // self._every_s + 1)
            self._woken.wait(max(0.0, due_s - time.monotonic()))
            self._woken.clear()
            if self._stopped:
                break
        self._once()

    def wake(self) -> None:
        """Ask now; `answered` is set when the answer is there."""
        with self._waking:
            self.answered.clear()
            self._woken.set()

    def end(self) -> None:
        self._stopped = True
        self._woken.set()

    def _once(self) -> None:
        try:
            self.answers.append(self._ask())
        except Exception as error:  # a failing source is data, whatever the error
            self.failed += 1
            self.problem = f"{type(error).__name__}: {error}".rstrip(": ")[:MOST_WORDS]


class Scraper:
    """Scraper of a server's metrics: lines of the requested names, over a kept connection."""

    def __init__(self, spec: JsonMembers, timeout_s: float) -> None:
        self._spec = spec
        self._timeout_s = timeout_s
        self._names = frozenset(spec["names"])
        self._connection: http.client.HTTPConnection | None = None
        self._bounds: BoundedSocket | None = None
        self._headers = {"Accept": "text/plain", "User-Agent": "servetune"}

    def __call__(self) -> list[Any]:
        """`[time, duration, text]` of one scrape; the time is halfway."""
        kept_open = self._connection is not None
        began_s = time.monotonic()
        try:
            text = self._fetch()
        except ConnectionError:
            if not kept_open:
                raise
            # A server may close a connection that was idle; only a new one can tell.
            began_s = time.monotonic()
            text = self._fetch()
        took_s = time.monotonic() - began_s
        kept = "\n".join(line for line in text.splitlines() if self._is_kept(line))
        if len(kept) > _MOST_KEPT_BYTES:
            raise OSError(f"more than {_MOST_KEPT_BYTES >> 10} KiB of known metrics")
        return [began_s + took_s / 2, took_s, kept]

    def _fetch(self) -> str:
        if self._connection is None:
            if variable := self._spec.get("api_key_env"):
                key = os.environ.get(variable, "").strip()
                if not key:
                    raise PermissionError(f"{variable} holds no key")
                self._headers["Authorization"] = f"Bearer {key}"
            self._connection = self._open()
        try:
            began_s = time.monotonic()
            if self._bounds is None or self._connection.sock is None:
                self._connection.connect()
                assert self._connection.sock is not None
                self._connection.sock = self._bounds = BoundedSocket(self._connection.sock)
            self._bounds.begin(began_s, self._timeout_s)
            self._connection.request("GET", self._spec["path"], headers=self._headers)
            answer = self._connection.getresponse()
            body = whole_body(answer)
        except BaseException:
            self._connection.close()
            self._connection = None
            raise
        if answer.status != 200:
            raise LookupError(f"status {answer.status}")
        return body.decode("utf-8", "replace")

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._spec["host"], self._spec["port"]
        if self._spec["scheme"] == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _is_kept(self, line: str) -> bool:
        end = len(line)
        for mark in "{ \t":
            at = line.find(mark)
            end = at if 0 <= at < end else end
        return line[:end] in self._names


class Machine:
    """Readings of this machine: cards, processors, memory, and the use by some of its processes."""

    def __init__(self, processes: Mapping[str, int], cards: list[int] | None) -> None:
        self._processes = processes
        self._cards = _cards(cards)
        self._busy: tuple[float, float] | None = None
        self._used_s: dict[str, tuple[float, dict[int, float]]] = {}

    @property
    def names(self) -> list[str]:
        """Names of the cards, in the order of their readings."""
        return [name for name, _ in self._cards]

    def __call__(self) -> JsonObject:
        return {
            "at_s": time.monotonic(),
            "cpu": self._cpu_fraction(),
            "memory_bytes": _memory_used_bytes(),
            "gpus": [read() for _, read in self._cards],
            "processes": {name: self._process(name, pid) for name, pid in self._processes.items()},
        }

    def _cpu_fraction(self) -> float | None:
        """Share of all processors that was busy since the last reading."""
        try:
            with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123
                ticks = [float(word) for word in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        total, idle = sum(ticks), ticks[3] + ticks[4]  # idle and waiting for a disk
        before, self._busy = self._busy, (total, total - idle)
        if before is None or total <= before[0]:
            return None
        return (total - idle - before[1]) / (total - before[0])

    def _process(self, name: str, root: int) -> list[float | None]:
        """Processors that a process tree kept busy, and its memory."""
        others = {pid for other, pid in self._processes.items() if other != name}
        now_s, used_s, memory_bytes = time.monotonic(), {}, 0.0
        for pid in _tree(root, others | {os.getpid()}):
            row = _usage(pid)
            if row is not None:
                used_s[pid] = row[0]
                memory_bytes += row[1]
        before = self._used_s.get(name)
        self._used_s[name] = (now_s, used_s)
        if not used_s:
            return [None, None]
        if before is None or now_s <= before[0]:
            return [None, memory_bytes]
        spent_s = sum(s - before[1].get(pid, 0.0) for pid, s in used_s.items())
        return [max(0.0, spent_s) / (now_s - before[0]), memory_bytes]


_Card = tuple[str, Callable[[], list[float | None]]]


def _cards(chosen: list[int] | None) -> list[_Card]:
    """NVIDIA's cards by name, each with a function that reads it; none without a driver."""
    if chosen == []:
        return []
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        indices = range(count) if chosen is None else [i for i in chosen if i < count]
        return [_card(nvml, i) for i in indices]
    except Exception:  # no module, no driver, no permission: no cards
        return []


def _card(nvml: ModuleType, index: int) -> _Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    questions: tuple[Callable[[], float], ...] = (
        lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
        lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,  # from milliwatts
        lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,  # from millijoules
    )

    def read() -> list[float | None]:
        answers: list[float | None] = []
        for question in questions:
            answer = None
            with contextlib.suppress(nvml.NVMLError):  # not every card has every reading
                answer = question()
            answers.append(answer)
        return answers

    return (name.decode() if isinstance(name, bytes) else name), read


def _memory_used_bytes() -> float | None:
    """Memory in use that no other process could get without taking it away."""
    kibibytes = {}
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                name, _, rest = line.partition(":")
                if name in {"MemTotal", "MemAvailable"}:
                    kibibytes[name] = float(rest.split()[0])
        return (kibibytes["MemTotal"] - kibibytes["MemAvailable"]) * 1024
    except (OSError, ValueError, KeyError):
        return None


def _tree(root: int, others: set[int]) -> Iterator[int]:
    """Processes of a tree, except for the trees of others."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in others and pid != root:
            continue
        yield pid
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  light: no pathlib
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:  # noqa: PTH123
                    waiting += [int(word) for word in file.read().split()]


def _usage(pid: int) -> tuple[float, float] | None:
    """CPU time so far in seconds, and memory in bytes, of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # The command's name may hold blanks and brackets: count from its end.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    used_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return used_s, float(int(fields[21]) * _PAGE_BYTES)


def _next_word(parent: int) -> bytes:
    """Next word on standard input; empty when the parent is gone."""
    received = b""
    while not received.endswith(b"\n"):
        # A process forked from the parent may hold the pipe open: check the parent too.
        if os.getppid() != parent:
            return b""
        if select.select([0], [], [], _TICK_S)[0]:
            piece = os.read(0, 1)  # one byte at a time: the rest is the next word
            if not piece:
                return b""
            received += piece
    return received.strip()


def _read_spec() -> JsonMembers:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)  # nothing beyond the line: `_next_word` reads the rest
        if not piece:
            return {}
        line += piece
    spec: JsonMembers = json.loads(line)
    return spec


def _report_ready(sources: Sequence[_Source], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    for source in sources:
        source.answered.wait(max(0.0, deadline_s - time.monotonic()))
    os.write(1, b"ready\n")


def main() -> int:
    parent = os.getppid()
    spec = _read_spec()
    if not spec:
        return 0
    with contextlib.suppress(OSError):
        os.nice(10)  # the load goes first
    every_s, timeout_s = spec["every_s"], spec["timeout_s"]
    machine = Machine(spec["processes"], spec["cards"])
    scrapers = [_Source(every_s, Scraper(one, timeout_s)) for one in spec["scrapes"]]
    itself = _Source(every_s, machine)
    sources = (*scrapers, itself)
    for source in sources:
        source.start()
    _report_ready(sources, timeout_s)
    while (word := _next_word(parent)) != b"stop":
        if not word:
            return 0
        for source in sources:
            source.wake()
        _report_ready(sources, timeout_s)
    for source in sources:
        source.end()
    deadline_s = time.monotonic() + timeout_s
    for source in sources:
        source.join(max(0.0, deadline_s - time.monotonic()))
    result = {
        "scrapes": [
            {"rows": list(s.answers), "failed": s.failed, "problem": s.problem} for s in scrapers
        ],
        "machine": list(itself.answers),
        "cards": machine.names,
    }
    with open(1, "w", encoding="utf-8", closefd=False) as out:
        out.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    # Threads that hang in a connection must not keep the process.
    os._exit(main())
