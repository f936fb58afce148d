"""Trials over the nodes of a Ray cluster: placed by GPU type and count, run there, told here.

Each server configuration gets a placement group: its GPUs on one node, and a core for the load
on the same node or, where that has none left, on another. Records come back as trials end, to
the one journal that the starting process writes. A node that is lost costs its trial, which is
run again elsewhere.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from servetune import __version__
from servetune.engines import Engine
from servetune.errors import EngineError, InputError, UnknownName
from servetune.hardware import Device, node
from servetune.loadgen import Machine, join, machines
from servetune.store import Failure, TrialRecord, record_from_json
from servetune.trials.budget import Budget
from servetune.trials.launch import Launch, free_path, written
from servetune.trials.order import ordered
from servetune.trials.retry import LOAD_NODE_LOST, Attempts
from servetune.trials.room import Allocation, WorkerNode, WorkerReport, WorkerTask, probe
from servetune.trials.sweep import ExecutionPolicy, problem_of, shown_command, speaker_of
from servetune.trials.trial import StudyContext, Trial, record_of

__all__ = [
    "Need",
    "gpus_of_cluster",
    "most_gpus",
    "need_of",
    "require_capacity",
    "run_trials_on_cluster",
]

Ended = Callable[[TrialRecord], None]
Say = Callable[[str], None]

MAX_LOSSES = 3
"""A trial that lost this many nodes is not run again: it may be what fells them."""

MOST_WAITING = 4
"""Placements that are asked for at once: enough for a small one to fill a gap."""

TURN_S = 0.1
COME_UP_S = 60.0
SILENT_S = 30.0
NO_PLACE_S = 30.0
"""After which a plan that no node can hold any more, as they are lost, is given up."""

STOP_S = 20.0
_SCRAP = 0.001
"""Of a resource that only marks a node, such as its GPUs' type."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a server and its load take.

    Attributes:
        gpus: On one node.
        gpu_type: In Ray's words; `None` where the cluster does not know its types.
    """

    gpus: int
    gpu_type: str | None = None

    @property
    def bundles(self) -> list[dict[str, float]]:
        """For a placement group: the server's, then the load's."""
        server: dict[str, float] = {"CPU": 1}
        if self.gpus:
            server["GPU"] = self.gpus
            if self.gpu_type is not None:
                server[f"accelerator_type:{self.gpu_type}"] = _SCRAP
        return [server, {"CPU": 1}]

    @property
    def label(self) -> str:
        """In a sentence."""
        if not self.gpus:
            return "a core"
        return f"{self.gpus} {self.gpu_type or ''} GPU{'s' if self.gpus > 1 else ''}".replace(
            "  ", " "
        )

    def fits(self, machine: Machine) -> bool:
        """Whether the server would have room there, were it empty."""
        of_type = self.gpu_type is None or not self.gpus or self.gpu_type in machine.gpu_types
        return machine.cpus >= 1 and machine.gpus >= self.gpus and of_type


def need_of(trial: Trial, run: StudyContext, nodes: Sequence[Machine]) -> Need:
    """The GPUs of a plan, by the name that the cluster has for their type."""
    if run.node is None or run.node.device.architecture == "cpu":
        return Need(gpus=0)
    return Need(gpus=trial.plan.device_count, gpu_type=_type_in(nodes, run.node.device))


def gpus_of_cluster(nodes: Sequence[Machine]) -> tuple[str, int] | None:
    """The type of the cluster's GPUs and how many a node has; `None` where there are none.

    Raises:
        InputError: There are several types, or they are not known.
    """
    with_gpus = [each for each in nodes if each.gpus >= 1]
    types = {name for each in with_gpus for name in each.gpu_types}
    if not with_gpus:
        return None
    if len(types) != 1:
        said = f"GPUs of types {', '.join(sorted(types))}" if types else "GPUs of no known type"
        raise InputError(f"the cluster has {said}", hint="say which to use with --gpu")
    return types.pop(), int(max(each.gpus for each in with_gpus))


def most_gpus(nodes: Sequence[Machine], gpu: str) -> int | None:
    """Of a type as the user calls it, on one node; `None` where no node has any.

    Raises:
        UnknownName: No GPU is called so.
    """
    device = node(gpu=gpu, count=1).device
    name = _type_in(nodes, device)
    counts = [each.gpus for each in nodes if name is None or name in each.gpu_types]
    return int(max(counts, default=0)) or None


def _type_in(nodes: Sequence[Machine], device: Device) -> str | None:
    types = {name for each in nodes if each.gpus >= 1 for name in each.gpu_types}
    for name in sorted(types, key=len, reverse=True):
        if is_type(name, device):
            return name
    # Without any label the count alone decides; with others' labels this one is not there.
    return device.name if types else None


def is_type(name: str, device: Device) -> bool:
    """Whether Ray's name for a type of GPU may mean this device; `A100` means any."""
    if device.name == name or device.name.startswith(f"{name}-"):
        return True
    try:
        return node(gpu=name, count=1).device.name == device.name
    except UnknownName:
        return False


def require_capacity(
    groups: Sequence[list[Trial]], run: StudyContext, launch: Launch, address: str
) -> None:
    """Refuse, before a journal is begun, what the cluster could not run.

    Raises:
        InputError: Ray is not installed, a port was named, or no node holds one of the plans.
        LoadError: There is no cluster.
        EngineError: A node that may be needed lacks servetune or the engine.
    """
    if launch.port is not None:
        raise InputError(
            "--port names one port, and several servers may run on a node",
            hint="leave it out: each gets a free one",
        )
    ray = join(address)
    nodes = machines(ray)
    needs = {
        need_of(trial, run, nodes)
        for group in groups
        for trial in group[:1]
        if problem_of(trial, run) is None
    }
    for need in sorted(needs, key=lambda each: -each.gpus):
        if not any(need.fits(each) for each in nodes):
            raise InputError(
                f"a plan needs {need.label} on one node, and the cluster has "
                f"{_said_of(nodes) or 'no core to give'}",
                hint="sweep smaller plans, name another --gpu, or add nodes with ray start",
            )
    if sum(each.cpus for each in nodes) < 2:
        raise InputError(
            "the cluster has one core to give: a server needs one, and its load another",
            hint="ray start --num-cpus says how many a node has",
        )
    wanted = [each for each in nodes if any(need.fits(each) for need in needs)]
    _require_engine(ray, wanted, run, launch)


def _said_of(nodes: Sequence[Machine]) -> str:
    kinds = Counter(
        f"{each.gpus:g} {' '.join(each.gpu_types)} GPUs".replace("  ", " ")
        for each in nodes
        if each.cpus >= 1
    )
    return ", ".join(f"{count} node{'s'[: count > 1]} with {kind}" for kind, count in kinds.items())


def _require_engine(ray: Any, wanted: Sequence[Machine], run: StudyContext, launch: Launch) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(probe)
    asked = {
        each.label: task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(each.node_id, soft=False),
        ).remote(run, launch)
        for each in wanted
    }
    for label, answer in asked.items():
        try:
            version, problem = ray.get(answer, timeout=COME_UP_S)
        except ray.exceptions.RayError as error:
            said = [line for line in str(error).splitlines() if line.strip()]
            raise EngineError(
                f"{label} cannot run servetune: {said[-1].strip()}",
                hint=f"pip install 'servetune[ray]=={__version__}' on every node",
            ) from None
        if version != __version__:
            raise EngineError(
                f"{label} has servetune {version}, and this is {__version__}",
                hint=f"pip install 'servetune[ray]=={__version__}' on every node",
            )
        if problem:
            raise EngineError(
                f"{label}: {problem}", hint="install it there, or name another command"
            )


def run_trials_on_cluster(
    groups: Sequence[list[Trial]],
    run: StudyContext,
    launch: Launch,
    *,
    address: str,
    logs: Path,
    ended: Ended,
    say: Say,
    policy: ExecutionPolicy | None = None,
) -> None:
    """Run trials, as many servers at once as the cluster has room for.

    A plan that cannot run on its machine is recorded as such and not started.

    Args:
        groups: As from `trials_of`; a group may be empty where its trials are done.
        address: Of the cluster: `auto`, or the head's HOST:PORT.
        logs: Folder for the ends of the servers' logs, once their trials are over.
        ended: Gets each record as it comes, in this thread.
        say: Takes lines of progress.
        course: In which order and how long; what else it says is about one machine.

    Raises:
        KeyboardInterrupt: The user stopped it; the servers are stopped by then.
    """
    _Scheduler(join(address), run, launch, logs, ended, say, policy or ExecutionPolicy()).run(
        groups
    )


class _Job:
    """Trials of one server configuration, on their way through the cluster."""

    def __init__(self, number: int, trials: list[Trial], need: Need) -> None:
        self.number, self.trials, self.need = number, trials, need
        self.place_count = 0
        self.forget()

    def forget(self) -> None:
        """Have no place yet, or none any more."""
        self.group: Any = None
        self.actor: Any = None
        self.where = ""
        self.question: Any = None
        self.asked_s = self.asked_place_s = time.monotonic()

    def log_in(self, logs: Path) -> str:
        """A name that no log has there, nor one that was lost with a node."""
        again = f"-again-{self.place_count}" if self.place_count > 1 else ""
        return free_path(logs / f"server-{self.number:03d}{again}.log").name


class _Scheduler:
    """All jobs of a run, those that wait and those that have a room."""

    def __init__(
        self,
        ray: Any,
        run: StudyContext,
        launch: Launch,
        logs: Path,
        ended: Ended,
        say: Say,
        policy: ExecutionPolicy,
    ) -> None:
        self._ray, self._run, self._launch = ray, run, launch
        self._logs, self._ended, self._say = logs, ended, say
        self._spoken: Engine = speaker_of(run)
        self._waiting: deque[_Job] = deque()
        self._jobs: list[_Job] = []
        self._losses: Counter[str] = Counter()
        self._policy, self._budget = policy, policy.budget or Budget()
        self._attempts: dict[int, Attempts] = {}

    def run(self, groups: Sequence[list[Trial]]) -> None:
        """Until every trial has a record."""
        nodes = machines(self._ray)
        for place, trials in ordered(groups, self._policy.order, self._policy.order_seed):
            able = [trial for trial in trials if not self._does_not_fit(trial)]
            if able:
                self._waiting.append(_Job(place + 1, able, need_of(able[0], self._run, nodes)))
        try:
            while self._waiting or self._jobs:
                over = self._budget.over()
                if over is not None:
                    self._put_off(over)
                self._ask_for_places()
                for job in list(self._jobs):
                    if job.actor is None:
                        self._move_in(job)
                    else:
                        self._listen(job)
                time.sleep(TURN_S)
        finally:
            self._clear()

    def _does_not_fit(self, trial: Trial) -> bool:
        problem = problem_of(trial, self._run)
        if problem is not None:
            self._fail(trial, Failure(kind="does_not_fit", reason=problem))
        return problem is not None

    def _put_off(self, reason: str) -> None:
        """What has no place gets none any more; rooms see to theirs by themselves."""
        for job in [job for job in self._jobs if job.actor is None]:
            self._leave(job)
            self._waiting.append(job)
        while self._waiting:
            for trial in self._waiting.popleft().trials:
                self._fail(trial, Failure(kind="budget", reason=reason))

    def _fail(self, trial: Trial, failure: Failure) -> None:
        cmd = written(shown_command(trial, self._launch, self._spoken), self._launch)
        words = self._spoken.server_cmd_args(trial.server_args)
        self._ended(record_of(trial, self._run, cmd=cmd, server_cmd_args=words, failure=failure))

    # places

    def _ask_for_places(self) -> None:
        from ray.util import placement_group

        while sum(job.actor is None for job in self._jobs) < MOST_WAITING:
            busy = {job.number for job in self._jobs}
            # What is learnt of a configuration is learnt in turn.
            job = next((job for job in self._waiting if job.number not in busy), None)
            if job is None:
                return
            self._waiting.remove(job)
            job.forget()
            job.group = placement_group(job.need.bundles, strategy="PACK")
            self._jobs.append(job)

    def _move_in(self, job: _Job) -> None:
        """Open a room where the cluster has made a place."""
        from ray.util import placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        table = placement_group_table(job.group)
        if table["state"] != "CREATED":
            self._give_up_without_place(job)
            return
        places = table["bundles_to_node_id"]
        nodes = {each.node_id: each for each in machines(self._ray)}
        server, load = nodes.get(places[0]), nodes.get(places[1])
        if server is None or load is None:
            return  # gone in this moment; the group is placed anew
        job.where = server.label
        job.actor = (
            self._ray.remote(WorkerNode)
            .options(
                num_cpus=1,
                num_gpus=job.need.gpus,
                max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(job.group, 0),
            )
            .remote(
                os.environ.get("OMP_NUM_THREADS"),
                {name: os.environ[name] for name in self._launch.passed},
            )
        )
        allocation = Allocation(
            node=server.label,
            address=server.address,
            load_node=load.node_id if load.node_id != server.node_id else None,
        )
        self._say(
            f"{len(job.trials)} trials go to {server.label}, {job.need.label}"
            + ("" if allocation.load_node is None else f"; load from {load.label}")
        )
        job.place_count += 1
        task = WorkerTask(
            trials=job.trials,
            run=self._run,
            launch=self._launch,
            allocation=allocation,
            log=f"{self._logs.name}/{job.log_in(self._logs)}",
            attempts=self._attempts.setdefault(job.number, Attempts(self._launch.retries)),
            budget=self._budget.rest(),
        )
        job.question = job.actor.begin.remote(task)
        job.asked_s = time.monotonic() + COME_UP_S

    def _give_up_without_place(self, job: _Job) -> None:
        if any(job.need.fits(each) for each in machines(self._ray)):
            job.asked_place_s = time.monotonic()  # others have it at the moment
        elif time.monotonic() - job.asked_place_s > NO_PLACE_S:
            self._leave(job)
            reason = f"no node with {job.need.label} is left in the cluster"
            for trial in job.trials:
                self._fail(trial, Failure(kind="node_lost", reason=reason))

    def _leave(self, job: _Job) -> None:
        """Give the place back."""
        from ray.util import remove_placement_group

        self._jobs.remove(job)
        if job.actor is not None:
            self._ray.kill(job.actor)
        remove_placement_group(job.group)

    # rooms

    def _listen(self, job: _Job) -> None:
        ready, _ = self._ray.wait([job.question], timeout=0)
        if not ready:
            if time.monotonic() - job.asked_s > SILENT_S:
                self._lose(job, f"it was silent for {SILENT_S:g} s")
            return
        try:
            news: WorkerReport | None = self._ray.get(job.question)
        except self._ray.exceptions.RayTaskError as error:
            self._close(job, str(error.cause))
            return
        except self._ray.exceptions.RayError:
            self._lose(job, "its process or its machine is gone")
            return
        job.question, job.asked_s = job.actor.news.remote(), time.monotonic()
        if news is not None:  # which is the answer to the order to begin
            self._take(job, news)

    def _take(self, job: _Job, news: WorkerReport) -> None:
        for line in news.said:
            self._say(f"{job.where}: {line}")
        for packed in news.records:
            record = record_from_json(msgspec.json.decode(packed))
            if record.failure is not None and record.failure.kind == LOAD_NODE_LOST:
                self._lose(job, "the node that sent the load was lost")
                return
            job.trials = [trial for trial in job.trials if trial.key != record.key]
            self._ended(record)
        if news.attempts is not None:
            self._attempts[job.number] = news.attempts
        if news.over:
            self._close(job, news.broken)

    def _close(self, job: _Job, broken: str) -> None:
        try:
            for name, log in self._ray.get(job.actor.logs.remote(), timeout=SILENT_S).items():
                self._logs.mkdir(parents=True, exist_ok=True)
                (self._logs / name).write_bytes(log)
        except self._ray.exceptions.RayError:
            self._say(f"{job.where}: the server's log was lost")
        self._leave(job)
        for trial in job.trials:  # none, unless the room itself broke
            self._fail(trial, Failure(kind="error", reason=f"{job.where}: {broken}"))

    def _lose(self, job: _Job, reason: str) -> None:
        """Run what is left elsewhere; the first of it was under way."""
        self._leave(job)
        under_way, *others = job.trials
        self._losses[under_way.key] += 1
        if self._losses[under_way.key] >= MAX_LOSSES:
            failure = Failure(
                kind="node_lost",
                reason=f"{MAX_LOSSES} nodes were lost with it, the last was {job.where}: {reason}",
            )
            self._fail(under_way, failure)
            job.trials = others
        self._say(
            f"{job.where} was lost ({reason}); {len(job.trials)} of its trials will run elsewhere"
        )
        if job.trials:
            self._waiting.appendleft(job)

    def _clear(self) -> None:
        """Stop every server; nothing where all went well."""
        rooms = [job for job in self._jobs if job.actor is not None]
        stops = [job.actor.stop.remote() for job in rooms]
        deadline_s = time.monotonic() + STOP_S
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=STOP_S)
        for job in rooms:
            while time.monotonic() < deadline_s:
                try:
                    if self._ray.get(job.actor.news.remote(), timeout=STOP_S).over:
                        break
                except self._ray.exceptions.RayError:
                    break
                time.sleep(TURN_S)
        for job in list(self._jobs):
            self._leave(job)
