"""Trials over the nodes of a Ray cluster: placed by GPU type and count, run there, kept here.

Each server configuration gets a placement group: its GPUs on one node, and a core for the load
on the same node or, where that has none left, on another. Records come back as trials end, to
the one journal that the starting process writes. A lost node costs its trial, which is run
again elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from servetune.cluster.nodes import ClusterNode, cluster_nodes, join_cluster
from servetune.cluster.placement import ResourceRequest, request_of
from servetune.cluster.senders import ClusterSenders
from servetune.cluster.worker import TaskLink, WorkerHandle, WorkerReport, poll
from servetune.json_value import JsonObject
from servetune.report import timeline_of
from servetune.store import Failure, TrialRecord, record_from_json
from servetune.trials.budget import Budget
from servetune.trials.launch import EngineProgram, Launch, free_path, written
from servetune.trials.measured import ServerGroup, TrialEvents
from servetune.trials.order import ordered
from servetune.trials.policy import ExecutionPolicy
from servetune.trials.record import Outcome, record_of
from servetune.trials.retry import LOAD_NODE_LOST, Attempts
from servetune.trials.server_context import ServerContext
from servetune.trials.sweep import engine_of, problem_of, shown_command
from servetune.trials.trial import StudyContext, Trial
from servetune.trials.trial_requests import TrialRequests
from servetune.trials.watch import RunWatch

MAX_LOSSES = 3
"""Lost nodes after which a trial is not run again: it may be the cause."""

MOST_WAITING = 4
"""Placements requested at once: enough for a small one to fill a gap."""

TURN_S = 0.1
SILENT_S = 30.0
NO_PLACE_S = 30.0
"""Time after which a plan is given up that no node can hold any more, as nodes were lost."""

STOP_S = 20.0
MOST_LOG_BYTES = 1 << 20
"""Bytes of each server's log that are copied: its end, which says why it stopped."""

_TASK = 0  # number of the only task of a worker


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that the cluster allocated to one server and its load.

    Attributes:
        node: Label of the server's node, for the record.
        address: IP address of that node.
        load_node: Ray's id of the node that sends, where it is another one.
    """

    node: str
    address: str
    load_node: str | None = None


# on a node


class TrialMessage(msgspec.Struct, frozen=True):
    """Event of a trial task: a line of progress, the record of a trial as JSON, or its timeline."""

    line: str = ""
    record: bytes = b""
    timeline: bytes = b""
    key: str = ""


class ClusterEvents(TrialEvents, frozen=True, kw_only=True):
    """Functions that take what comes back from the nodes while trials run.

    Attributes:
        timeline: Takes the key and the timeline of each trial that sent requests; `None` where
            nobody wants them, and none are sent.
    """

    timeline: Callable[[str, JsonObject], None] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TrialMessage).decode


class TrialResult(msgspec.Struct, frozen=True):
    """Result of a trial task.

    Attributes:
        attempts: Failures of the configuration, these included.
        logs: Ends of the servers' logs by name.
        broken: Reason why trials are left without a record; empty if none is.
    """

    attempts: Attempts
    logs: dict[str, bytes]
    broken: str = ""


class TrialTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a worker: the trials of one server configuration.

    Attributes:
        trials: Trials, all with equal server settings.
        study: Settings that all trials of the study have in common.
        launch: Options of starting the server.
        allocation: Nodes of the server and its load.
        log: Server's log file with its folder, as records shall name it.
        attempts: Earlier failures of the configuration, on any node.
        budget: Rest of the study's budget, as `Budget.rest` gives it.
        timelines: Whether timelines are wanted.
    """

    trials: list[Trial]
    study: StudyContext
    launch: Launch
    allocation: Allocation
    log: str
    attempts: Attempts
    budget: tuple[float, str] | None = None
    timelines: bool = False

    def run(self, link: TaskLink) -> TrialResult:
        """Measure all trials on servers of this node."""
        folder = Path(tempfile.mkdtemp(prefix="servetune-trials-"))
        launch, load_node = self.launch, self.allocation.load_node
        if load_node is not None:
            launch = msgspec.structs.replace(launch, host=self.allocation.address)
        program = EngineProgram(engine=engine_of(self.study))
        if launch.server_cmd is None:
            program = EngineProgram.installed(program.engine, launch.executable)
        senders = None
        if load_node is not None:
            senders = ClusterSenders(address="auto", node_ids=(load_node,))
        group = ServerGroup(
            self.trials,
            self.study,
            launch,
            program,
            log_path=folder / self.log,
            events=TrialEvents(
                ended=lambda record: link.emit(_encode(TrialMessage(record=self._placed(record)))),
                say=lambda line: link.emit(_encode(TrialMessage(line=line))),
                requests=(lambda requests: link.emit(_timeline_message(requests)))
                if self.timelines
                else None,
            ),
            context=ServerContext(
                halt=link.stopped,
                attempts=self.attempts,
                budget=Budget.of_rest(self.budget),
                senders=senders,
            ),
        )
        broken = ""
        try:
            group.measure()
        except KeyboardInterrupt:
            broken = "it was stopped"
        except Exception as error:  # the edge of a process: the logs say more than the error
            broken = f"{type(error).__name__}: {error}"
        logs = _log_ends(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return TrialResult(self.attempts, logs, broken)

    def _placed(self, record: TrialRecord) -> bytes:
        """A record as JSON, with its place in the cluster."""
        where: dict[str, Any] = {
            "node": self.allocation.node,
            "address": self.allocation.address,
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "load_node": self.allocation.load_node,
        }
        provenance = {**record.provenance, "cluster": where}
        return msgspec.structs.replace(record, provenance=provenance).to_json()


def _timeline_message(requests: TrialRequests) -> bytes:
    """Timeline of a trial, which is small, in place of its requests."""
    timeline = timeline_of(
        requests.records,
        requests.admitted_s,
        requests.kv_use,
        seen_by_client=requests.seen_by_client,
    )
    message = TrialMessage(key=requests.key, timeline=msgspec.json.encode(timeline))
    return _encode(message)


def _log_ends(folder: Path) -> dict[str, bytes]:
    """Ends of the servers' logs by name."""
    found = {}
    for path in sorted(folder.glob("*/*")):
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - MOST_LOG_BYTES))
            found[path.name] = log.read()
    return found


# on the machine of the study


def run_trials_on_cluster(
    groups: Sequence[list[Trial]],
    study: StudyContext,
    launch: Launch,
    *,
    address: str,
    logs: Path,
    events: ClusterEvents,
    policy: ExecutionPolicy | None = None,
    watch: RunWatch | None = None,
) -> None:
    """Run trials, as many servers at once as the cluster has room for.

    A plan that cannot run on its machine is recorded as such and not started.

    Args:
        groups: Trials by server configuration, as from `trials_of`; a group may be empty where
            its trials are done.
        study: Settings that all trials have in common.
        launch: Options of starting the servers.
        address: Cluster: `auto`, or the head's HOST:PORT.
        logs: Folder for the ends of the servers' logs, once their trials are over.
        events: Functions that take records, timelines and lines of progress, in this thread.
        policy: Order and budget; its other fields are about one machine.
        watch: Watch whose order to stop is obeyed.

    Raises:
        KeyboardInterrupt: The user stopped it; the servers are stopped by then.
    """
    scheduler = _Scheduler(study, launch, logs, events, policy or ExecutionPolicy(), address)
    scheduler.run(groups, watch or RunWatch())


class _Job:
    """Trials of one server configuration, waiting for a node or running on one."""

    def __init__(self, number: int, trials: list[Trial], request: ResourceRequest) -> None:
        self.number, self.trials, self.request = number, trials, request
        self.place_count = 0
        self.forget_place()

    def forget_place(self) -> None:
        """Have no node yet, or none any more."""
        self.group: Any = None
        self.worker: WorkerHandle | None = None
        self.waiting_since_s = time.monotonic()

    @property
    def where(self) -> str:
        return self.worker.node.label if self.worker is not None else ""

    def log_in(self, logs: Path) -> str:
        """Name that no log has there, nor one that was lost with a node."""
        again = f"-again-{self.place_count}" if self.place_count > 1 else ""
        return free_path(logs / f"server-{self.number:03d}{again}.log").name


class _Scheduler:
    """Jobs of a study, those that wait and those that have a node."""

    def __init__(
        self,
        study: StudyContext,
        launch: Launch,
        logs: Path,
        events: ClusterEvents,
        policy: ExecutionPolicy,
        address: str,
    ) -> None:
        self._ray = join_cluster(address)
        self._study, self._launch = study, launch
        self._logs, self._ended, self._say = logs, events.ended, events.say
        self._timeline = events.timeline
        self._engine = engine_of(study)
        self._waiting: deque[_Job] = deque()
        self._jobs: list[_Job] = []
        self._losses: Counter[str] = Counter()
        self._policy, self._budget = policy, policy.budget or Budget()
        self._attempts: dict[int, Attempts] = {}

    def run(self, groups: Sequence[list[Trial]], watch: RunWatch) -> None:
        """Run until every trial has a record."""
        nodes = cluster_nodes(self._ray)
        for place, trials in ordered(groups, self._policy.order, self._policy.seed):
            able = [trial for trial in trials if not self._does_not_fit(trial)]
            if able:
                request = request_of(able[0], self._study, nodes)
                self._waiting.append(_Job(place + 1, able, request))
        try:
            while self._waiting or self._jobs:
                watch.raise_if_halted()
                exceeded = self._budget.exceeded()
                if exceeded is not None:
                    self._put_off(exceeded)
                self._request_places()
                for job in [job for job in self._jobs if job.worker is None]:
                    self._place(job)
                self._poll()
        finally:
            self._clear()

    def _does_not_fit(self, trial: Trial) -> bool:
        problem = problem_of(trial, self._study)
        if problem is not None:
            self._fail(trial, Failure(kind="does_not_fit", reason=problem))
        return problem is not None

    def _put_off(self, reason: str) -> None:
        """Start nothing more; servers that run end by the budget that they were given."""
        for job in [job for job in self._jobs if job.worker is None]:
            self._leave(job)
            self._waiting.append(job)
        while self._waiting:
            for trial in self._waiting.popleft().trials:
                self._fail(trial, Failure(kind="budget", reason=reason))

    def _fail(self, trial: Trial, failure: Failure) -> None:
        cmd = written(shown_command(trial, self._launch, self._engine), self._launch)
        words = self._engine.server_cmd_args(trial.settings)
        self._ended(
            record_of(trial, self._study, Outcome(cmd=cmd, server_cmd_args=words, failure=failure))
        )

    # places

    def _request_places(self) -> None:
        from ray.util import placement_group

        while sum(job.worker is None for job in self._jobs) < MOST_WAITING:
            busy = {job.number for job in self._jobs}
            # Failures of a configuration are learnt from, so its jobs run one after another.
            job = next((job for job in self._waiting if job.number not in busy), None)
            if job is None:
                return
            self._waiting.remove(job)
            job.forget_place()
            job.group = placement_group(job.request.bundles, strategy="PACK")
            self._jobs.append(job)

    def _place(self, job: _Job) -> None:
        """Start a worker where the cluster has made room, if it has."""
        from ray.util import placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        table = placement_group_table(job.group)
        if table["state"] != "CREATED":
            self._give_up_without_place(job)
            return
        places = table["bundles_to_node_id"]
        nodes = {each.node_id: each for each in cluster_nodes(self._ray)}
        server, load = nodes.get(places[0]), nodes.get(places[1])
        if server is None or load is None:
            return  # lost at this moment; Ray places the group anew
        # Ray gives each of its processes one thread for arithmetic; the engine is not Ray's.
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}
        passed = {name: os.environ[name] for name in self._launch.passed}
        job.worker = WorkerHandle.create(
            self._ray,
            server,
            resources={"num_cpus": 1, "num_gpus": job.request.gpus},
            scheduling=PlacementGroupSchedulingStrategy(job.group, 0),
            environment={**threads, **passed},
        )
        self._begin(job, job.worker, load)

    def _begin(self, job: _Job, worker: WorkerHandle, load: ClusterNode) -> None:
        server = worker.node
        separate = load.node_id != server.node_id
        self._say(
            f"{len(job.trials)} trials go to {server.label}, {job.request.label}"
            + (f"; load from {load.label}" if separate else "")
        )
        job.place_count += 1
        task = TrialTask(
            trials=job.trials,
            study=self._study,
            launch=self._launch,
            allocation=Allocation(
                node=server.label,
                address=server.address,
                load_node=load.node_id if separate else None,
            ),
            log=f"{self._logs.name}/{job.log_in(self._logs)}",
            attempts=self._attempts.setdefault(job.number, Attempts(self._launch.retries)),
            budget=self._budget.rest(),
            timelines=self._timeline is not None,
        )
        worker.begin(_TASK, task)

    def _give_up_without_place(self, job: _Job) -> None:
        if any(job.request.fits(each) for each in cluster_nodes(self._ray)):
            job.waiting_since_s = time.monotonic()  # other jobs have it at the moment
        elif time.monotonic() - job.waiting_since_s > NO_PLACE_S:
            self._leave(job)
            reason = f"no node with {job.request.label} is left in the cluster"
            for trial in job.trials:
                self._fail(trial, Failure(kind="node_lost", reason=reason))

    def _leave(self, job: _Job) -> None:
        """Give the place back."""
        from ray.util import remove_placement_group

        self._jobs.remove(job)
        if job.worker is not None:
            job.worker.kill()
        remove_placement_group(job.group)

    # workers

    def _poll(self) -> None:
        running = {job.worker: job for job in self._jobs if job.worker is not None}
        begin_s = time.monotonic()
        reports = poll(self._ray, list(running), every_s=TURN_S, wait_s=TURN_S, silent_s=SILENT_S)
        for worker, report in reports:
            self._take(running[worker], report)
        for worker, job in running.items():
            if job in self._jobs and worker.broken:
                self._close(job, worker.broken)
            elif job in self._jobs and worker.lost:
                self._lose(job, worker.lost)
        time.sleep(max(0.0, begin_s + TURN_S - time.monotonic()))

    def _take(self, job: _Job, report: WorkerReport) -> None:
        for event in report.events:
            message = _decode(event)
            if message.line:
                self._say(f"{job.where}: {message.line}")
                continue
            if message.timeline:
                if self._timeline is not None:
                    self._timeline(message.key, msgspec.json.decode(message.timeline))
                continue
            record = record_from_json(msgspec.json.decode(message.record))
            if record.failure is not None and record.failure.kind == LOAD_NODE_LOST:
                self._lose(job, "the node that sent the load was lost")
                return
            job.trials = [trial for trial in job.trials if trial.key != record.key]
            self._ended(record)
        for state in report.states:
            if state.ended:
                self._close(job, state.broken)

    def _close(self, job: _Job, broken: str) -> None:
        """Keep what the worker learnt, and give its place back."""
        assert job.worker is not None
        try:
            for result in self._ray.get(job.worker.actor.results.remote(), timeout=SILENT_S):
                if isinstance(result, TrialResult):  # `None` where the task broke
                    broken = result.broken or broken
                    self._attempts[job.number] = result.attempts
                    self._logs.mkdir(parents=True, exist_ok=True)
                    for name, log in result.logs.items():
                        (self._logs / name).touch(0o600)
                        (self._logs / name).write_bytes(log)
        except self._ray.exceptions.RayError:
            self._say(f"{job.where}: the server's log was lost")
        self._leave(job)
        for trial in job.trials:  # none, unless the task itself broke
            self._fail(trial, Failure(kind="error", reason=f"{job.where}: {broken}"))

    def _lose(self, job: _Job, reason: str) -> None:
        """Run the remaining trials elsewhere; the first of them was under way."""
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
        """Stop every server; there is none where all went well."""
        running = [(job, job.worker) for job in self._jobs if job.worker is not None]
        stops = [worker.actor.stop.remote() for _, worker in running]
        deadline_s = time.monotonic() + STOP_S
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=STOP_S)
        for _, worker in running:
            while time.monotonic() < deadline_s:
                try:
                    report = self._ray.get(worker.actor.report.remote(), timeout=STOP_S)
                except self._ray.exceptions.RayError:
                    break
                if all(state.ended for state in report.states):
                    break
                time.sleep(TURN_S)
        for job in list(self._jobs):
            self._leave(job)
