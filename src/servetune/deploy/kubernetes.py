"""Kubernetes: a Deployment or LeaderWorkerSet, its Service and an autoscaler at the measured load.

A copy that needs more devices than a node has spans several in a LeaderWorkerSet. KServe takes the
same pod as an InferenceService.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from servetune.deploy.bundle import Bundle, documents
from servetune.deploy.images import version_key
from servetune.deploy.launchers import deployable_engines, launcher_of, shipping_of
from servetune.deploy.overlay import overlaid
from servetune.deploy.pods import (
    USUAL_CLUSTER,
    ClusterOptions,
    claim_of,
    needs_claim,
    nodes_of_pods,
    placement_note,
    pod_of,
    start_s,
    storage_note,
)
from servetune.deploy.served import Served, bundle_of
from servetune.engines import engine
from servetune.errors import CannotRender
from servetune.json_value import JsonObject

Autoscaler = Literal["none", "hpa", "keda"]

#: Names of manifests' files by their kind, in the order in which they are applied.
_FILES = {
    "PersistentVolumeClaim": "volume.yaml",
    "Deployment": "deployment.yaml",
    "LeaderWorkerSet": "leaderworkerset.yaml",
    "InferenceService": "inferenceservice.yaml",
    "Service": "service.yaml",
    "PodDisruptionBudget": "disruption.yaml",
    "PodMonitor": "monitor.yaml",
    "ScaledObject": "keda.yaml",
    "HorizontalPodAutoscaler": "hpa.yaml",
}

#: Rolling update without a further pod: accelerators are rarely free for one copy more.
_ONE_AT_A_TIME = {
    "type": "RollingUpdate",
    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
}

#: End of the names of a Deployment's pods: its revision, and five letters.
_POD = "[a-z0-9]+-[a-z0-9]{5}"

_GROUP_API = "leaderworkerset.x-k8s.io/v1"
_LEADER = {"app.kubernetes.io/component": "leader"}


def render_kubernetes(
    served: Served,
    cluster: ClusterOptions = USUAL_CLUSTER,
    *,
    autoscaler: Autoscaler = "none",
    overlay: Sequence[JsonObject] = (),
) -> Bundle:
    """Manifests that `kubectl apply -f` takes.

    Args:
        served: The service.
        cluster: Names and limits.
        autoscaler: `hpa` needs the engine's metrics as custom metrics of pods; `keda` asks
            Prometheus itself.
        overlay: Partial manifests that are merged into the rendered ones.

    Raises:
        CannotRender: The folder of a model has no claim, no saturation point was measured, or a
            copy needs more devices than a node has and its engine does not span nodes.
        InputError: The overlay changes what is not rendered.
    """
    namespace = cluster.namespace
    labels = _labels(served)
    metadata = {"name": served.name, "namespace": namespace, "labels": labels}
    nodes = nodes_of_copy(served, cluster)
    scaler = None if autoscaler == "none" else _scaler(served, metadata, autoscaler, cluster, nodes)
    chosen = {"app.kubernetes.io/name": served.name}
    answering = chosen if nodes == 1 else {**chosen, **_LEADER}
    workload = _deployment if nodes == 1 else _group
    pods = nodes * _most(served, cluster, scaled=scaler is not None)
    manifests = [
        *_claims(served, cluster, metadata, pods=pods),
        workload(served, cluster, metadata, nodes, pods=pods, scaled=scaler is not None),
        _service(served, metadata, answering),
        *_disruption(served, metadata, chosen, scaled=scaler is not None),
    ]
    if scaler is not None:
        manifests += [_monitor(metadata, answering), scaler]
    comments = {manifests[-1]["kind"]: _scaler_comment(served, autoscaler)} if scaler else {}
    kind = "deployment" if nodes == 1 else "leaderworkerset"
    comments["Deployment" if nodes == 1 else "LeaderWorkerSet"] = _comment(served, cluster)
    texts = _texts(overlaid(manifests, overlay), comments)
    ready = (
        f"kubectl -n {namespace} rollout status deployment/{served.name}"
        if nodes == 1
        else f"kubectl -n {namespace} wait --for=condition=Available --timeout="
        f"{start_s(served, cluster)}s {kind}/{served.name}"
    )
    steps = f"""
1. {_needs(served, cluster, nodes, pods=pods, monitored=scaler is not None)}
2. A gated model needs a token, by reference alone:
   `{token_command(cluster)}`
3. `kubectl apply {" ".join(f"-f {name}" for name in texts)}`
4. `{ready}`
5. `kubectl -n {namespace} port-forward service/{served.name} {served.port}`
{_overlay_step(overlay)}"""
    further, machines = placement_note(served, cluster), machines_of(served, cluster)
    return bundle_of(served, "kubernetes", texts, steps=steps, further=further, machines=machines)


def machines_of(served: Served, cluster: ClusterOptions) -> int:
    """Nodes that hold all copies: as few as have the devices, and one for each copy on cores."""
    each = cluster.devices_per_node(served) // served.devices if served.devices else 1
    return -(-served.copies * nodes_of_copy(served, cluster) // max(1, each))


def nodes_of_copy(served: Served, cluster: ClusterOptions) -> int:
    """Nodes that one copy spans: the fewest that share its devices evenly.

    Raises:
        CannotRender: It needs more than one, and its engine does not span nodes.
    """
    per_node = cluster.devices_per_node(served)
    if served.devices <= per_node:
        return 1
    count = -(-served.devices // per_node)
    while served.devices % count:
        count += 1
    needed = f"one copy takes {served.devices} devices and a node has {per_node}"
    launcher = launcher_of(served.plan)
    shipping = shipping_of(launcher)
    if not shipping.node_words or not served.command:
        spanning = [name for name in deployable_engines() if _spans(name)]
        raise CannotRender(
            f"{needed}: {served.title} does not span nodes here",
            hint=f"{' and '.join(spanning)} do; or tune with fewer devices a copy, or give "
            "--gpus-per-node of a larger machine",
        )
    if served.plan.data_parallel > 1:
        raise CannotRender(
            f"{needed}: data parallel ranks of one copy stay on one node here",
            hint="tune with replicas instead of data_parallel, each of which may span nodes",
        )
    if re.match(r"v?\d", served.version) and version_key(served.version) < version_key(
        shipping.spans_since
    ):
        raise CannotRender(
            f"{needed}: {served.title} spans nodes from {shipping.spans_since} on, and "
            f"{served.version} was measured",
            hint="measure a newer version, or name an image of one with --image",
        )
    return count


def _spans(name: str) -> bool:
    shipping = engine(name).shipping
    return shipping is not None and bool(shipping.node_words)


def _labels(served: Served) -> JsonObject:
    return {"app.kubernetes.io/name": served.name, "app.kubernetes.io/managed-by": "servetune"}


def _most(served: Served, cluster: ClusterOptions, *, scaled: bool) -> int:
    """Copies that there may be at a time."""
    return (cluster.max_copies or 2 * served.copies) if scaled else served.copies


def _texts(manifests: Sequence[JsonObject], comments: dict[str, str]) -> dict[str, str]:
    """Files by their names, in the order in which they are applied."""
    order = list(_FILES)
    return {
        _FILES[each["kind"]]: documents(each, comment=comments.get(each["kind"], ""))
        for each in sorted(manifests, key=lambda each: order.index(each["kind"]))
    }


def _needs(
    served: Served, cluster: ClusterOptions, nodes: int, *, pods: int, monitored: bool
) -> str:
    """What the cluster must have."""
    needs = []
    if served.devices:
        needs += [f"nodes with {served.device.name} and the {served.family.driver}"]
        needs += [served.family.device_plugin]
    if nodes > 1:
        needs += ["the LeaderWorkerSet controller, and a fast network between nodes"]
    if monitored:
        needs += ["the Prometheus operator, whose `podMonitorSelector` takes `monitor.yaml`"]
    sentences = (
        f"The cluster needs {'; '.join(needs or ['no accelerator'])}.",
        nodes_of_pods(served, cluster),
        storage_note(served, cluster, pods=pods),
    )
    return "\n   ".join(filter(None, sentences))


def _overlay_step(overlay: Sequence[JsonObject]) -> str:
    if not overlay:
        return ""
    changed = ", ".join(dict.fromkeys(str(each["kind"]) for each in overlay))
    return f"6. An overlay changed {changed}: give `--overlay` again when you render anew.\n"


def _claims(
    served: Served, cluster: ClusterOptions, metadata: JsonObject, *, pods: int
) -> list[JsonObject]:
    if not needs_claim(served, cluster, pods=pods):
        return []
    return [claim_of(served, cluster, metadata, pods=pods)]


def _template(served: Served, labels: JsonObject, pod: JsonObject, *, scraped: bool) -> JsonObject:
    """A pod's template; annotations for Prometheus where no PodMonitor has it scraped."""
    metadata: JsonObject = {"labels": labels}
    if scraped:
        metadata["annotations"] = {
            "prometheus.io/scrape": "true",
            "prometheus.io/path": "/metrics",
            "prometheus.io/port": str(served.port),
        }
    return {"metadata": metadata, "spec": pod}


def _deployment(
    served: Served,
    cluster: ClusterOptions,
    metadata: JsonObject,
    _nodes: int,
    *,
    pods: int,
    scaled: bool,
) -> JsonObject:
    """The Deployment, which replaces one pod at a time; an autoscaler decides its replicas."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            **({} if scaled else {"replicas": served.copies}),
            "selector": {"matchLabels": {"app.kubernetes.io/name": served.name}},
            "strategy": _ONE_AT_A_TIME,
            "progressDeadlineSeconds": start_s(served, cluster) + 300,
            "template": _template(
                served, metadata["labels"], pod_of(served, cluster, pods=pods), scraped=not scaled
            ),
        },
    }


def _group(
    served: Served,
    cluster: ClusterOptions,
    metadata: JsonObject,
    nodes: int,
    *,
    pods: int,
    scaled: bool,
) -> JsonObject:
    """The LeaderWorkerSet: a copy is a group of pods, one a node, that restart together."""
    shipping = shipping_of(launcher_of(served.plan))
    words = [
        word.format(
            count="$(LWS_GROUP_SIZE)", rank="$(LWS_WORKER_INDEX)", leader="$(LWS_LEADER_ADDRESS)"
        )
        for word in shipping.node_words
    ]
    leader = pod_of(served, cluster, pods=pods, nodes=nodes, words=words)
    worker = pod_of(
        served,
        cluster,
        pods=pods,
        nodes=nodes,
        words=[*words, *shipping.worker_words],
        answers=False,
    )
    labels = metadata["labels"]
    return {
        "apiVersion": _GROUP_API,
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            **({} if scaled else {"replicas": served.copies}),
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "leaderWorkerTemplate": {
                "size": nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _template(
                    served, {**labels, **_LEADER}, leader, scraped=not scaled
                ),
                "workerTemplate": _template(served, labels, worker, scraped=False),
            },
        },
    }


def _service(served: Served, metadata: JsonObject, chosen: JsonObject) -> JsonObject:
    """The Service in front of all pods that answer."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            "selector": chosen,
            "ports": [{"name": "http", "port": served.port, "targetPort": "http"}],
        },
    }


def _disruption(
    served: Served, metadata: JsonObject, chosen: JsonObject, *, scaled: bool
) -> list[JsonObject]:
    """The budget by which drains take one pod at a time; none for a single copy.

    A budget for one copy would either allow its eviction or block every drain of its node.
    """
    if served.copies < 2 and not scaled:
        return []
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": chosen}},
        }
    ]


def _monitor(metadata: JsonObject, chosen: JsonObject) -> JsonObject:
    """The PodMonitor by which Prometheus has what an autoscaler asks it for."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": chosen},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    }


def token_command(cluster: ClusterOptions) -> str:
    """Command that puts the hub's token into the cluster, where pods refer to it."""
    literal = '--from-literal=HF_TOKEN="$HF_TOKEN"'
    return f"kubectl -n {cluster.namespace} create secret generic {cluster.secret} {literal}"


def _scaler(
    served: Served,
    metadata: JsonObject,
    autoscaler: Autoscaler,
    cluster: ClusterOptions,
    nodes: int,
) -> JsonObject:
    """The autoscaler that holds each copy at the measured saturation point."""
    if served.saturation is None or not served.in_flight:
        raise CannotRender(
            f"no saturation point was measured at which {served.title} could be scaled"
            if served.in_flight
            else f"{served.title} tells no requests in flight that an autoscaler could read",
            hint="deploy without an autoscaler (--autoscaler none)",
        )
    least = served.copies
    most = cluster.max_copies or 2 * least
    if most < least:
        raise CannotRender(f"at most {most} copies are fewer than the plan's {least}")
    kind = (
        {"apiVersion": "apps/v1", "kind": "Deployment"}
        if nodes == 1
        else {"apiVersion": _GROUP_API, "kind": "LeaderWorkerSet"}
    )
    target = {**kind, "name": served.name}
    if autoscaler == "hpa":
        return {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": least,
                "maxReplicas": most,
                "metrics": [
                    {
                        "type": "Pods",
                        "pods": {
                            "metric": {"name": "llm_requests_in_flight"},
                            "target": {
                                "type": "AverageValue",
                                "averageValue": str(served.saturation.target),
                            },
                        },
                    }
                ],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
            },
        }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": target,
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "cooldownPeriod": 300,
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": cluster.prometheus,
                        "query": in_flight_query(
                            served, cluster.namespace, _POD if nodes == 1 else "[0-9]+"
                        ),
                        "threshold": str(served.saturation.target),
                    },
                }
            ],
        },
    }


def in_flight_query(served: Served, namespace: str, pods: str) -> str:
    """Requests in the batch or waiting, of all copies together.

    Args:
        served: The service.
        namespace: Namespace of its pods.
        pods: Pattern of the ends of their names: no more, or a service whose name begins with this
            one's would be counted.
    """
    of = f'{{namespace="{namespace}",pod=~"{served.name}-{pods}"}}'
    names = [name.strip() for name in served.in_flight.split("+")]
    return " + ".join(f"sum({name}{of})" for name in names)


def _comment(served: Served, cluster: ClusterOptions) -> str:
    lines = (
        served.plan.label,
        "Every setting that was tuned is written out; see README.md.",
        nodes_of_pods(served, cluster),
        *placement_note(served, cluster),
    )
    return "\n".join(filter(None, lines))


def _scaler_comment(served: Served, autoscaler: Autoscaler) -> str:
    assert served.saturation is not None
    text = (
        f"Each copy is held at {served.saturation.target} requests in flight: its saturation point "
        f"at {served.saturation.per_copy:.3g} ({served.saturation.rule}) less a fifth."
    )
    if autoscaler == "hpa":
        text += (
            "\nThe adapter of custom metrics must serve llm_requests_in_flight for each pod as\n"
            f"{served.in_flight}"
        )
    return text


def render_kserve(
    served: Served,
    cluster: ClusterOptions = USUAL_CLUSTER,
    *,
    overlay: Sequence[JsonObject] = (),
) -> Bundle:
    """One InferenceService (serving.kserve.io/v1beta1) with a container of its own.

    It runs in the standard mode, as a plain Deployment, where KEDA scales it by Prometheus;
    without a saturation point it has a fixed number of copies. KServe's webhook looks for the
    threshold in `target.value` alone, and its controller hands it to KEDA without a metric type,
    which KEDA takes as the average over copies (kserve 0.18,
    `pkg/apis/serving/v1beta1/inference_service_validation.go` and `reconcilers/keda`).

    Raises:
        CannotRender: The folder of a model has no claim, or a copy needs several nodes.
        InputError: The overlay changes what is not rendered.
    """
    if nodes_of_copy(served, cluster) > 1:
        raise CannotRender(
            f"one copy takes {served.devices} devices and a node has "
            f"{cluster.devices_per_node(served)}: a container of one's own in KServe has one node",
            hint="servetune deploy kubernetes makes a LeaderWorkerSet",
        )
    scales = served.saturation is not None and bool(served.in_flight)
    namespace = cluster.namespace
    usual = (2 if scales else 1) * served.copies
    pods = max(served.copies, cluster.max_copies or usual)
    predictor: JsonObject = {
        "minReplicas": served.copies,
        "maxReplicas": pods,
        "deploymentStrategy": _ONE_AT_A_TIME,
        **pod_of(served, cluster, container_name="kserve-container", pods=pods),
    }
    annotations = {"serving.kserve.io/deploymentMode": "Standard"}
    if served.saturation is not None and scales:
        annotations["serving.kserve.io/autoscalerClass"] = "keda"
        predictor["autoScaling"] = {
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {
                            "backend": "prometheus",
                            "serverAddress": cluster.prometheus,
                            "query": in_flight_query(served, namespace, f"predictor-{_POD}"),
                        },
                        "target": {"type": "Value", "value": str(served.saturation.target)},
                    },
                }
            ]
        }
    else:
        annotations["serving.kserve.io/autoscalerClass"] = "none"
    metadata: JsonObject = {
        "name": served.name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/managed-by": "servetune"},
    }
    chosen = {"serving.kserve.io/inferenceservice": served.name}  # a label of KServe's own pods
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"predictor": predictor},
    }
    manifests = [
        *_claims(served, cluster, metadata, pods=pods),
        service,
        *_disruption(served, metadata, chosen, scaled=scales),
        *([_monitor(metadata, chosen)] if scales else []),
    ]
    texts = _texts(overlaid(manifests, overlay), {"InferenceService": _comment(served, cluster)})
    ready = f"--for=condition=Ready --timeout={start_s(served, cluster)}s"
    steps = f"""
1. {_needs(served, cluster, 1, pods=pods, monitored=scales)}
2. A gated model needs a token, by reference alone:
   `{token_command(cluster)}`
3. `kubectl apply {" ".join(f"-f {name}" for name in texts)}`
4. `kubectl -n {namespace} wait {ready} inferenceservice/{served.name}`
{_overlay_step(overlay).replace("6.", "5.")}"""
    further, machines = placement_note(served, cluster), machines_of(served, cluster)
    return bundle_of(served, "kserve", texts, steps=steps, further=further, machines=machines)
