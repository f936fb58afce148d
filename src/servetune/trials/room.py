"""A room on a node of a cluster: servers are started and loaded there as on one machine."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from servetune import __version__
from servetune.errors import ServetuneError
from servetune.store import TrialRecord
from servetune.trials.budget import Budget
from servetune.trials.launch import Launch
from servetune.trials.measured import ServerGroup
from servetune.trials.retry import Attempts
from servetune.trials.sweep import speaker_of
from servetune.trials.trial import StudyContext, Trial

__all__ = ["Allocation", "WorkerNode", "WorkerReport", "WorkerTask", "probe"]

MOST_LOG_BYTES = 1 << 20
"""Of each server's log that travels: its end, which says why it stopped."""


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster gave for one server and its load.

    Attributes:
        node: Of the server, for reading.
        address: Of that node.
        load_node: Ray's id of the node that sends, where it is another one.
    """

    node: str
    address: str
    load_node: str | None = None


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a room is to do.

    Attributes:
        trials: All of one server configuration.
        log: The server's log file with its folder, as records shall name it.
        attempts: Earlier failures of the configuration, wherever they were.
        budget: What is left of the run's, as `Budget.rest` says it.
    """

    trials: list[Trial]
    run: StudyContext
    launch: Launch
    allocation: Allocation
    log: str
    attempts: Attempts
    budget: tuple[float, str] | None = None


class WorkerReport(msgspec.Struct, frozen=True):
    """What happened in a room since it was last asked.

    Attributes:
        records: Trials that ended, as JSON.
        said: Lines of progress.
        broken: Why the room cannot go on.
        attempts: Failures of the configuration, these included; once it is over.
    """

    records: list[bytes]
    said: list[str]
    over: bool
    broken: str
    attempts: Attempts | None = None


def probe(run: StudyContext, launch: Launch) -> tuple[str, str]:
    """Servetune's version on a node, and why its engine cannot be started there."""
    if launch.server_cmd is None:
        try:
            speaker_of(run).find_executable(launch.executable)
        except ServetuneError as error:
            return __version__, error.message
    return __version__, ""


class WorkerNode:
    """An actor on the node that a server runs on."""

    def __init__(self, threads: str | None, handed: Mapping[str, str]) -> None:
        os.environ.update(handed)  # of this process alone, so secrets stand in no record
        # Ray gives each of its processes one thread for arithmetic; the engine is not Ray's.
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self._records: list[bytes] = []
        self._said: list[str] = []
        self._over = False
        self._broken = ""
        self._folder = Path(tempfile.mkdtemp(prefix="servetune-room-"))
        self._allocation: Allocation | None = None
        self._attempts: Attempts | None = None

    def begin(self, task: WorkerTask) -> None:
        """Run its trials, in a thread; `news` tells of them."""
        self._allocation, self._attempts = task.allocation, task.attempts
        budget = Budget.of_rest(task.budget)
        threading.Thread(target=self._measure, args=(task, budget), daemon=True).start()

    def news(self) -> WorkerReport:
        """What happened since the last call."""
        with self._lock:
            over = self._over  # before the rest: nothing follows it
            records, self._records = self._records, []
            said, self._said = self._said, []
        attempts = self._attempts if over else None
        return WorkerReport(records, said, over, self._broken, attempts)

    def logs(self) -> dict[str, bytes]:
        """The ends of the servers' logs, by name."""
        found = {}
        for path in sorted(self._folder.glob("*/*")):
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - MOST_LOG_BYTES))
                found[path.name] = log.read()
        shutil.rmtree(self._folder, ignore_errors=True)
        return found

    def stop(self) -> None:
        """End the server; `news` says when it is over."""
        self._halt.set()

    # in the room's own thread

    def _measure(self, task: WorkerTask, budget: Budget) -> None:
        run, launch, allocation = task.run, task.launch, task.allocation
        if allocation.load_node is not None:
            launch = msgspec.structs.replace(
                launch, host=allocation.address, load_node=allocation.load_node
            )
        try:
            spoken = speaker_of(run)
            executable: tuple[str, ...] = ()
            version: str | None = None
            if launch.server_cmd is None:
                executable = spoken.find_executable(launch.executable)
                version = spoken.version(executable)
            ServerGroup(
                task.trials,
                run,
                launch,
                engine=spoken,
                executable=executable,
                engine_version=version,
                log_path=self._folder / task.log,
                ended=self._ended,
                say=self._say,
                attempts=task.attempts,
                budget=budget,
                halt=self._halt,
            ).measure()
        except KeyboardInterrupt:
            self._broken = "it was stopped"
        except Exception as error:  # the edge of a process: told where somebody can read it
            self._broken = f"{type(error).__name__}: {error}"
        finally:
            self._over = True

    def _ended(self, record: TrialRecord) -> None:
        assert self._allocation is not None
        where: dict[str, Any] = {
            "node": self._allocation.node,
            "address": self._allocation.address,
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "load_node": self._allocation.load_node,
        }
        record = msgspec.structs.replace(record, provenance={**record.provenance, "cluster": where})
        with self._lock:
            self._records.append(record.to_json())

    def _say(self, line: str) -> None:
        with self._lock:
            self._said.append(line)
