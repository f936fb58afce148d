"""The pod of one copy: container, resources, node, probes, volumes and its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from servetune.deploy.served import MODEL_MOUNT, Served
from servetune.deploy.startup import ENGINE_START_S
from servetune.errors import CannotRender, InputError
from servetune.json_value import JsonObject
from servetune.option import Count, Positive, option
from servetune.units import GB, GIB

SHARED_MEMORY = "16Gi"
"""Memory that tensor parallel ranks and torch's loaders share."""

UNKNOWN_START_S = 3600.0
"""Time until a pod of a model whose size is not known must be ready."""

LARGE_BYTES = 30 * GIB
"""Size of a model from which its weights are kept in a volume of their own: a node's root disk
has often 100 GB, with the images on it."""

PROCESS_BYTES = 4 * GIB
"""Host memory of one process of an engine: an interpreter with torch and the device's context."""

SHARE_OF_NODE = 0.8
"""Share of a node's cores and memory that pods may ask for; the rest is the system's and its
daemons'."""

LEAST_DRAIN_S, MOST_DRAIN_S = 15, 600


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Names and limits of the cluster that a service runs in."""

    group: ClassVar[str] = "Options"

    namespace: Annotated[str, option("Namespace of all objects.", metavar="NAME")] = "default"
    max_copies: Annotated[
        Count | None,
        option("Copies that an autoscaler may make.", metavar="COUNT", default="twice the trial's"),
    ] = None
    secret: Annotated[
        str,
        option("Kubernetes Secret whose key HF_TOKEN holds the hub's token.", metavar="NAME"),
    ] = "hf-token"  # noqa: S105 - the name of a secret, which holds it
    claim: Annotated[str | None, option("Volume claim that holds the weights.", metavar="NAME")] = (
        None
    )
    storage_class: Annotated[
        str | None,
        option(
            "Storage class for a large model, of volumes that all pods mount (ReadWriteMany).",
            metavar="NAME",
            default="a disk of its own for each pod, of the cluster's class",
        ),
    ] = None
    disk_mb_per_s: Annotated[
        Positive,
        option("Speed at which pods load weights, in MB/s, for the start-up probe.", metavar="MB"),
    ] = 100.0
    prometheus: Annotated[
        str, option("Address of Prometheus, for an autoscaler.", metavar="URL")
    ] = "http://prometheus-operated.monitoring:9090"
    node_selector: Annotated[
        tuple[str, ...],
        option("Label of nodes instead of the device's own; repeatable.", metavar="LABEL=VALUE"),
    ] = ()
    gpus_per_node: Annotated[
        Count | None,
        option(
            "Devices of one node; a copy with more spans several.",
            metavar="COUNT",
            default="those of the largest machine with the device",
        ),
    ] = None
    cpus: Annotated[
        Positive | None,
        option("CPU cores that one copy asks for.", metavar="CORES", default="2, and 1 a device"),
    ] = None
    memory_gib: Annotated[
        Positive | None,
        option(
            "Host memory that one copy asks for, in GiB.",
            metavar="GIB",
            default="4 a process of the engine",
        ),
    ] = None

    def __post_init__(self) -> None:
        for field in ("namespace", "secret", "claim", "storage_class"):
            name = getattr(self, field)
            if name and not all(c.isalnum() or c in "-." for c in name):
                word = field.replace("_", "-")
                raise InputError(f"--{word} {name!r} is not a name that Kubernetes takes")
        for text in self.node_selector:
            if not all(text.partition("=")):
                raise InputError(
                    f"--node-selector {text!r} names no label and value",
                    hint="write it like --node-selector nvidia.com/gpu.product=NVIDIA-L4",
                )

    def devices_per_node(self, served: Served) -> int:
        """Devices of one node: the option's, else the measured instance's, else a usual one's."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        rented = served.node.device_count if served.node.cpus is not None else 0
        return rented or served.family.most_per_node(served.device)


#: Options of a cluster with nothing chosen.
USUAL_CLUSTER = ClusterOptions()


def start_s(served: Served, cluster: ClusterOptions) -> int:
    """Seconds until a pod must be ready: the engine's start, and the weights at the disk's speed.

    627 GiB at 100 MB/s are two hours, which no constant would have allowed for.
    """
    if served.weights_bytes is None:
        return round(UNKNOWN_START_S)
    return math.ceil(ENGINE_START_S + served.weights_bytes / (cluster.disk_mb_per_s * GB / 1000))


def drain_s(served: Served) -> int:
    """Seconds between a pod's removal from its Service and the end of its server.

    Endpoints take some seconds to forget a pod, and requests that it has must end: p99 of the
    measured answers, and ten seconds more.
    """
    p99_ms = served.evidence.results.get("p99_e2e_latency_ms") if served.evidence else None
    longest_s = p99_ms / 1000 + 10 if isinstance(p99_ms, int | float) and p99_ms > 0 else 0.0
    return min(MOST_DRAIN_S, max(LEAST_DRAIN_S, math.ceil(longest_s)))


def is_large(served: Served, cluster: ClusterOptions) -> bool:
    """Whether the weights get a volume: those of a large model from the hub, without a claim."""
    large = served.weights_bytes is not None and served.weights_bytes > LARGE_BYTES
    return large and not served.folder and cluster.claim is None


def needs_claim(served: Served, cluster: ClusterOptions, *, pods: int) -> bool:
    """Whether a volume claim is made: for one pod, or where a class is named that pods share.

    The usual class of a cluster has disks that one node mounts at a time, so that a claim of
    several pods would keep those of other nodes from starting.
    """
    return is_large(served, cluster) and (pods == 1 or bool(cluster.storage_class))


def claim_of(
    served: Served, cluster: ClusterOptions, metadata: JsonObject, *, pods: int
) -> JsonObject:
    """The volume claim that keeps a large model, shared where several pods read it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**metadata, "name": _claim_name(served)},
        "spec": _volume_spec(served, cluster, shared=pods > 1),
    }


def _claim_name(served: Served) -> str:
    return f"{served.name}-models"


def _volume_spec(served: Served, cluster: ClusterOptions, *, shared: bool) -> JsonObject:
    """Size, class and access of a volume that holds the weights."""
    assert served.weights_bytes is not None
    gib = 10 * math.ceil(1.2 * served.weights_bytes / GIB / 10)
    spec: JsonObject = {
        "accessModes": ["ReadWriteMany" if shared else "ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{gib}Gi"}},
    }
    return {**spec, "storageClassName": cluster.storage_class} if cluster.storage_class else spec


def _weights_volume(served: Served, cluster: ClusterOptions, *, pods: int) -> JsonObject:
    """Where a pod has the weights: a claim, a disk of its own, or its node's disk."""
    if cluster.claim:
        return {"persistentVolumeClaim": {"claimName": cluster.claim}}
    if needs_claim(served, cluster, pods=pods):
        return {"persistentVolumeClaim": {"claimName": _claim_name(served)}}
    if is_large(served, cluster):
        spec = _volume_spec(served, cluster, shared=False)
        return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    return {"emptyDir": {}}


def storage_note(served: Served, cluster: ClusterOptions, *, pods: int) -> str:
    """What a cluster's storage must have, and what to do without; empty for nodes' own disks."""
    shared = (
        "Volumes that several nodes mount at once are those of shared file systems (EFS or FSx for "
        "Lustre on EKS, Filestore on GKE, Azure Files on AKS, CephFS, NFS); block disks (EBS, "
        "Persistent Disk, Azure Disk) are mounted by one node."
    )
    if cluster.claim and pods > 1:
        return f"The claim `{cluster.claim}` must be ReadWriteMany or ReadOnlyMany. {shared}"
    if not is_large(served, cluster):
        return ""
    if not needs_claim(served, cluster, pods=pods):
        return (
            "Each pod gets a disk of its own (ReadWriteOnce, any storage class), and loads the "
            "weights into it whenever it starts. To load them once, name a class of shared volumes "
            f"with `--storage-class`. {shared}"
        )
    if pods == 1:
        return "The claim in `volume.yaml` is ReadWriteOnce, which any storage class can be."
    return (
        f"The class `{cluster.storage_class}` must have ReadWriteMany volumes, else pods of "
        f"further nodes stay Pending. {shared} Without such a class leave `--storage-class` out: "
        "each pod then gets a disk of its own."
    )


def pod_of(
    served: Served,
    cluster: ClusterOptions,
    *,
    container_name: str = "server",
    pods: int,
    nodes: int = 1,
    words: Sequence[str] = (),
    answers: bool = True,
) -> JsonObject:
    """The pod's specification: one container, its node and its volumes.

    Args:
        served: The service.
        cluster: Names and limits.
        container_name: Name of the container.
        pods: Pods of all copies, at most.
        nodes: Pods that one copy spans.
        words: Further words of this pod's server.
        answers: Whether clients and probes reach its server.

    Raises:
        CannotRender: The folder of a model has no claim.
    """
    if served.folder and not cluster.claim:
        raise CannotRender(
            f"a pod cannot see the folder {served.folder}",
            hint="name the claim that holds it with --claim, or a hub id with --model-source",
        )
    volume = _weights_volume(served, cluster, pods=pods)
    drain = drain_s(served)
    return {
        # Variables of Services would be read as settings: a Service "vllm" makes VLLM_PORT.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": drain + 60,
        **_placement(served, cluster),
        "containers": [
            container_of(
                served,
                cluster,
                name=container_name,
                devices=served.devices // nodes,
                words=words,
                drain=drain,
                answers=answers,
                node_disk="emptyDir" in volume,
            )
        ],
        "volumes": [
            {"name": "models", **volume},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
        ],
    }


def _placement(served: Served, cluster: ClusterOptions) -> JsonObject:
    """Nodes that a pod may run on: those with the measured device, though they are tainted."""
    placed: JsonObject = {}
    values = served.family.labels(served.device)
    if cluster.node_selector:
        placed["nodeSelector"] = dict(text.split("=", 1) for text in cluster.node_selector)
    elif len(values) == 1:
        placed["nodeSelector"] = {served.family.label: values[0]}
    elif values:
        expression = {"key": served.family.label, "operator": "In", "values": list(values)}
        placed["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [expression]}]
                }
            }
        }
    if served.devices:
        key = served.family.resource
        placed["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]
    return placed


def container_of(
    served: Served,
    cluster: ClusterOptions,
    *,
    name: str,
    devices: int,
    words: Sequence[str] = (),
    drain: int,
    answers: bool,
    node_disk: bool,
) -> JsonObject:
    """The container with every setting written out; tokens by reference."""
    variables: list[JsonObject] = [
        {"name": key, "value": _literal(text)} for key, text in served.variables.items()
    ]
    variables.append(
        {
            "name": "HF_TOKEN",
            "valueFrom": {
                "secretKeyRef": {"name": cluster.secret, "key": "HF_TOKEN", "optional": True}
            },
        }
    )
    container: JsonObject = {"name": name, "image": served.image}
    if served.command:
        container |= {
            "command": [_literal(word) for word in served.command],
            "args": [*(_literal(word) for word in served.words), *words],
        }
    container["env"] = variables
    if answers:
        probe = {"httpGet": {"path": served.health, "port": "http"}, "timeoutSeconds": 5}
        tries = math.ceil(start_s(served, cluster) / 10)
        container |= {
            "ports": [{"name": "http", "containerPort": served.port}],
            "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": tries},
            "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 3},
            "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 6},
        }
    # The server keeps answering while the Service forgets the pod; then it gets SIGTERM. So do the
    # other processes of a copy that spans machines, without which it could not.
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(drain)]}}}
    return container | {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": _resources(served, cluster, devices, node_disk=node_disk),
        "volumeMounts": [
            {"name": "models", "mountPath": MODEL_MOUNT if served.folder else served.hub_cache},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the container's own
        ],
    }


def _resources(
    served: Served, cluster: ClusterOptions, devices: int, *, node_disk: bool
) -> JsonObject:
    """Requests of cores, memory and disk, and the devices; none is limited but the devices."""
    cpus, memory_bytes = _cpus(served, cluster, devices), _memory_bytes(served, cluster, devices)
    requests: JsonObject = {
        "cpu": f"{cpus:g}",
        "memory": f"{math.ceil(memory_bytes / GIB)}Gi",
    }
    weights = served.weights_bytes
    if weights is not None and node_disk:
        requests["ephemeral-storage"] = f"{math.ceil(1.2 * weights / GIB) + 2}Gi"
    limits = {"limits": {served.family.resource: devices}} if devices else {}
    return {"requests": requests, **limits}


def _cpus(served: Served, cluster: ClusterOptions, devices: int) -> float:
    """Cores of one pod: its processes, which are a server, a scheduler and one a device.

    vLLM's "CPU Resources for GPU Deployments" (docs/configuration/optimization.md, 2026) has
    these 2 + N as the least. Where the machine was measured it is at most its share of it.
    """
    if cluster.cpus is not None:
        return cluster.cpus
    share = _share_of_node(served, served.node.cpus, devices)
    if not devices:
        return share or 4
    return min(2 + devices, share or math.inf)


def _memory_bytes(served: Served, cluster: ClusterOptions, devices: int) -> float:
    """Host memory of one pod: its processes, and the model where it runs on cores."""
    if cluster.memory_gib is not None:
        return cluster.memory_gib * GIB
    share = _share_of_node(served, served.node.memory_bytes, devices)
    if not devices:
        return share or PROCESS_BYTES + 1.5 * (served.weights_bytes or 8 * GIB)
    return min((1 + devices) * PROCESS_BYTES, share or math.inf)


def _share_of_node(served: Served, amount: float | None, devices: int) -> int:
    """A pod's part of a node's cores or bytes, as its devices are of the node's; 0 if unknown."""
    if not amount:
        return 0
    return max(1, math.floor(SHARE_OF_NODE * amount * (devices or 1) / served.node.device_count))


def _literal(text: str) -> str:
    """Kubernetes reads $(NAME) in words and values as a variable; $$ stands for a dollar."""
    return text.replace("$(", "$$(")


def placement_note(served: Served, cluster: ClusterOptions) -> tuple[str, ...]:
    """A warning where pods may land on another device than the measured one, or on none."""
    if not served.devices or cluster.node_selector:
        return ()
    label, name = served.family.label, served.device.name
    look = f"kubectl get nodes -L {label} lists it, and --node-selector names another"
    values = served.family.labels(served.device)
    if not values:
        unknown = f"no value of the node label {label} is known for {name}"
        return (f"{unknown}: pods may land on another device; {look}",)
    if name in served.family.unverified:
        rule = f"the node label {label}={' or '.join(values)} of {name} follows from the driver's"
        return (f"{rule} names and was seen on no node: {look}",)
    return ()


def nodes_of_pods(served: Served, cluster: ClusterOptions) -> str:
    """Nodes that pods run on, by their label, and the command that lists it; may be empty."""
    values = () if cluster.node_selector else served.family.labels(served.device)
    if not values:
        return ""
    label = served.family.label
    return (
        f"Pods run on nodes whose {label} is {' or '.join(values)} (kubectl get nodes -L {label})."
    )
