"""Placement of servers on a cluster's nodes: what a plan needs and what the nodes have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import ModuleType

import msgspec

from servetune import __version__
from servetune.cluster.nodes import ClusterNode, cluster_nodes, join_cluster
from servetune.errors import EngineError, InputError, ServetuneError, UnknownName
from servetune.hardware import Device, node
from servetune.trials.launch import Launch
from servetune.trials.sweep import engine_of, problem_of
from servetune.trials.trial import StudyContext, Trial

PROBE_TIMEOUT_S = 60.0
_MARKER = 0.001
"""Amount requested of a resource that only marks a node, such as its GPUs' type."""


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a server and its load take.

    Attributes:
        gpus: GPUs of the server, all on one node.
        gpu_type: Type in Ray's spelling; `None` where the cluster does not know its types.
    """

    gpus: int
    gpu_type: str | None = None

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Bundles of a placement group: the server's, then the load's."""
        server: dict[str, float] = {"CPU": 1}
        if self.gpus:
            server["GPU"] = self.gpus
            if self.gpu_type is not None:
                server[f"accelerator_type:{self.gpu_type}"] = _MARKER
        return [server, {"CPU": 1}]

    @property
    def label(self) -> str:
        """Words for a sentence, such as `4 H100 GPUs`."""
        if not self.gpus:
            return "a core"
        kind = f"{self.gpu_type} " if self.gpu_type else ""
        return f"{self.gpus} {kind}GPU{'s' if self.gpus > 1 else ''}"

    def fits(self, cluster_node: ClusterNode) -> bool:
        """Whether the server would have room on the node, were it empty."""
        of_type = self.gpu_type is None or not self.gpus or self.gpu_type in cluster_node.gpu_types
        return cluster_node.cpus >= 1 and cluster_node.gpus >= self.gpus and of_type


def request_of(trial: Trial, study: StudyContext, nodes: Sequence[ClusterNode]) -> ResourceRequest:
    """GPUs of a trial's plan, by the cluster's name for their type."""
    if study.node is None or study.node.device.architecture == "cpu":
        return ResourceRequest(gpus=0)
    gpu_type = _type_in(nodes, study.node.device)
    return ResourceRequest(gpus=trial.plan.device_count, gpu_type=gpu_type)


def gpus_of_cluster(nodes: Sequence[ClusterNode]) -> tuple[str, int] | None:
    """Type of the cluster's GPUs and the largest number on a node; `None` without any GPU.

    Raises:
        InputError: There are several types, or they are not known.
    """
    with_gpus = [each for each in nodes if each.gpus >= 1]
    types = {name for each in with_gpus for name in each.gpu_types}
    if not with_gpus:
        return None
    if len(types) != 1:
        kinds = f"types {', '.join(sorted(types))}" if types else "no known type"
        raise InputError(f"the cluster has GPUs of {kinds}", hint="choose one with --gpu")
    return types.pop(), int(max(each.gpus for each in with_gpus))


def most_gpus(nodes: Sequence[ClusterNode], gpu: str) -> int | None:
    """Largest number of GPUs of a type on one node; `None` where no node has any.

    Raises:
        UnknownName: The catalogue has no GPU of this name.
    """
    device = node(gpu=gpu, count=1).device
    name = _type_in(nodes, device)
    counts = [each.gpus for each in nodes if name is None or name in each.gpu_types]
    return int(max(counts, default=0)) or None


def _type_in(nodes: Sequence[ClusterNode], device: Device) -> str | None:
    types = {name for each in nodes if each.gpus >= 1 for name in each.gpu_types}
    for name in sorted(types, key=len, reverse=True):
        if is_type(name, device):
            return name
    # Without any label the count alone decides; with other types' labels this one is absent.
    return device.name if types else None


def is_type(name: str, device: Device) -> bool:
    """Whether Ray's name for a type of GPU may mean this device; `A100` means any A100."""
    if device.name == name or device.name.startswith(f"{name}-"):
        return True
    try:
        return node(gpu=name, count=1).device.name == device.name
    except UnknownName:
        return False


def require_capacity(
    groups: Sequence[list[Trial]], study: StudyContext, launch: Launch, address: str
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
    ray = join_cluster(address)
    nodes = cluster_nodes(ray)
    requests = {
        request_of(trial, study, nodes)
        for group in groups
        for trial in group[:1]
        if problem_of(trial, study) is None
    }
    for request in sorted(requests, key=lambda each: -each.gpus):
        if not any(request.fits(each) for each in nodes):
            raise InputError(
                f"a plan needs {request.label} on one node, and the cluster has "
                f"{_described(nodes) or 'no core to give'}",
                hint="sweep smaller plans, name another --gpu, or add nodes with ray start",
            )
    if sum(each.cpus for each in nodes) < 2:
        raise InputError(
            "the cluster has one core to give: a server needs one, and its load another",
            hint="ray start --num-cpus says how many a node has",
        )
    candidates = [each for each in nodes if any(request.fits(each) for request in requests)]
    _require_engine(ray, candidates, study, launch)


def _described(nodes: Sequence[ClusterNode]) -> str:
    kinds = Counter(
        f"{each.gpus:g} {' '.join(each.gpu_types)} GPUs".replace("  ", " ")
        for each in nodes
        if each.cpus >= 1
    )
    return ", ".join(f"{count} node{'s'[: count > 1]} with {kind}" for kind, count in kinds.items())


def _require_engine(
    ray: ModuleType, nodes: Sequence[ClusterNode], study: StudyContext, launch: Launch
) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(_probe)
    answers = {
        each.label: task.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(each.node_id, soft=False),
        ).remote(study, launch)
        for each in nodes
    }
    hint = f"pip install 'servetune[ray]=={__version__}' on every node"
    for label, answer in answers.items():
        try:
            version, problem = ray.get(answer, timeout=PROBE_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise EngineError(
                f"{label} cannot run servetune: {lines[-1].strip()}", hint=hint
            ) from None
        if version != __version__:
            raise EngineError(
                f"{label} has servetune {version}, and this is {__version__}", hint=hint
            )
        if problem:
            raise EngineError(
                f"{label}: {problem}", hint="install it there, or name another command"
            )


def _probe(study: StudyContext, launch: Launch) -> tuple[str, str]:
    """Release of servetune on a node, and the reason why the engine cannot be started there."""
    if launch.server_cmd is None:
        try:
            engine_of(study).find_executable(launch.executable)
        except ServetuneError as error:
            return __version__, error.message
    return __version__, ""
