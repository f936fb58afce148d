"""The server with its log of truth, and a client that is watched from outside while it runs.

Server and watcher share one core, the client has the other. All clients are watched alike,
whatever they say of themselves: CPU time and memory of all their processes from /proc, the
beginning and end of their load from the server's log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compiled import program

CPU_EVERY_S = 0.1
MEMORY_EVERY_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HEAD_FIELDS = 4
POLITE = 10
"""Niceness of the thread that watches (a thread's alone, on Linux): the server goes first."""
PASSED_ON = ("PATH", "HOME", "PYTHONPATH", "TMPDIR", "LANG", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Truth:
    """What the server did, in order of arrival, in seconds of CLOCK_MONOTONIC.

    Attributes:
        arrived_s: When the kernel had each request's last byte, whenever the server read it.
        sent_s: When each token of each request was handed to the kernel.
    """

    arrived_s: np.ndarray
    sent_s: list[np.ndarray]

    @property
    def tokens(self) -> int:
        return sum(len(times_s) for times_s in self.sent_s)

    @property
    def last_sent_s(self) -> float:
        return max(float(times_s[-1]) for times_s in self.sent_s)

    @property
    def duration_s(self) -> float:
        return self.last_sent_s - float(self.arrived_s[0])

    @property
    def ttft_ms(self) -> np.ndarray:
        first_s = np.array([times_s[0] for times_s in self.sent_s])
        return 1e3 * (first_s - self.arrived_s)

    @property
    def itl_ms(self) -> np.ndarray:
        return 1e3 * np.concatenate([np.diff(times_s) for times_s in self.sent_s])

    def last(self, requests: int) -> Truth:
        """Without what came before the load, as a client's probe of the server."""
        return Truth(self.arrived_s[-requests:], self.sent_s[-requests:])


def read_truth(path: Path) -> Truth:
    numbers = np.fromfile(path, dtype=np.int64)
    arrived, sent, at = [], [], 0
    while at < len(numbers):
        start = at + HEAD_FIELDS
        at = start + int(numbers[at])
        arrived.append(numbers[start - 2] / 1e9)
        sent.append(numbers[start:at] / 1e9)
    order = np.argsort(arrived, kind="stable")
    return Truth(np.array(arrived)[order], [sent[place] for place in order])


class Server:
    """The compiled server as a process; it knows the truth once it has ended."""

    def __init__(self, process: subprocess.Popen[str], truth_path: Path) -> None:
        self._process = process
        self._truth_path = truth_path
        assert process.stdout is not None
        self.port = int(process.stdout.readline().split()[-1])

    def cpu_s(self) -> float:
        return _cpu_s(self._process.pid) or 0.0

    def stop(self) -> Truth:
        self._process.terminate()
        self._process.wait(timeout=30)
        return read_truth(self._truth_path)


@contextmanager
def serving(options: Sequence[str], core: int) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        truth_path = Path(folder) / "truth"
        command = [program("server"), *options, "--truth", truth_path]
        process = _start([str(word) for word in command], core, stdout=subprocess.PIPE)
        try:
            yield Server(process, truth_path)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@dataclass(frozen=True)
class Watched:
    """What was seen of a client from outside.

    Attributes:
        cpu: CPU seconds used so far by all its processes, by monotonic time.
        peak_mb: Most memory: of all its processes together where that was looked at, shared
            pages counted once, or of the largest alone, whichever is more.
    """

    exit_code: int | None
    output: str
    complaints: str
    started_s: float
    ended_s: float
    cpu: list[tuple[float, float]]
    peak_mb: float

    @property
    def last_line(self) -> str:
        text = f"{self.output}\n{self.complaints}"
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1][:200] if lines else "no output"

    def cpu_between_s(self, from_s: float, to_s: float) -> float:
        times_s, used_s = zip(*self.cpu, strict=True)
        return float(np.interp(to_s, times_s, used_s) - np.interp(from_s, times_s, used_s))


def watch(command: Sequence[str], core: int, *, cwd: Path, limit_s: float) -> Watched:
    """Run a client on one core until it ends, or until its time is up (exit code None)."""
    output_path, complaints = cwd / "client.out", cwd / "client.err"
    with output_path.open("w") as out, complaints.open("w") as err:
        started_s = time.monotonic()
        process = _start(command, core, cwd=cwd, env=_surroundings(), stdout=out, stderr=err)
        with ThreadPoolExecutor(1, initializer=os.nice, initargs=(POLITE,)) as aside:
            seen = aside.submit(_follow, process, started_s, limit_s).result()
    return Watched(
        output=output_path.read_text(errors="replace"),
        complaints=complaints.read_text(errors="replace"),
        started_s=started_s,
        **seen,
    )


def _surroundings() -> dict[str, str]:
    """The environment of clients: offline, and without the variables of whoever runs this."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**kept, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # fmt: skip


def _start(command: Sequence[str], core: int, **options: object) -> subprocess.Popen[str]:
    """A process that is on its core from its first instruction."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return subprocess.Popen(command, text=True, start_new_session=True, **options)
    finally:
        os.sched_setaffinity(0, own)


def _follow(process: subprocess.Popen[str], started_s: float, limit_s: float) -> dict[str, object]:
    cpu, peak_mb, memory_due_s = [(started_s, 0.0)], 0.0, started_s
    while True:
        exited, status, used = os.wait4(process.pid, os.WNOHANG)
        now_s = time.monotonic()
        if exited:
            process.returncode = os.waitstatus_to_exitcode(status)
            total_s = used.ru_utime + used.ru_stime
            cpu.append((now_s, max(total_s, cpu[-1][1])))
            return {
                "exit_code": process.returncode,
                "ended_s": now_s,
                "cpu": cpu,
                "peak_mb": peak_mb,  # ru_maxrss would begin with this process's own
            }
        family = _family(process.pid)
        cpu.append((now_s, max(sum(filter(None, map(_cpu_s, family))), cpu[-1][1])))
        peak_mb = max(peak_mb, *(_memory_mb(pid, "status", "VmHWM:") for pid in family))
        if now_s >= memory_due_s:
            memory_due_s = now_s + MEMORY_EVERY_S
            peak_mb = max(peak_mb, sum(_memory_mb(pid, "smaps_rollup", "Pss:") for pid in family))
        if now_s > started_s + limit_s:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"exit_code": None, "ended_s": now_s, "cpu": cpu, "peak_mb": peak_mb}
        time.sleep(CPU_EVERY_S)


def _family(pid: int) -> list[int]:
    """A process and all that came from it."""
    family = [pid]
    for parent in family:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                family += map(int, (task / "children").read_text().split())
    return family


def _cpu_s(pid: int) -> float | None:
    """CPU seconds of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def _memory_mb(pid: int, file: str, field: str) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return 0.0
