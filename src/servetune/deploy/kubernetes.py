"""Kubernetes: a Deployment, its Service and an autoscaler at the measured saturation point.

KServe takes the same container as an InferenceService.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.deploy.bundle import Bundle, documents
from servetune.deploy.served import MODEL_MOUNT, Served, bundle_of
from servetune.errors import CannotRender, InputError
from servetune.json_value import JsonObject
from servetune.option import Count, option

Autoscaler = Literal["none", "hpa", "keda"]

SHARED_MEMORY = "16Gi"
"""Memory that tensor parallel ranks and torch's loaders share."""

LOAD_MINUTES = 60
"""Minutes after which the start-up probe gives up; weights may come from the hub."""


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
    prometheus: Annotated[
        str, option("Address of Prometheus, for an autoscaler.", metavar="URL")
    ] = "http://prometheus-operated.monitoring:9090"

    def __post_init__(self) -> None:
        for field in ("namespace", "secret", "claim"):
            name = getattr(self, field)
            if name and not all(c.isalnum() or c in "-." for c in name):
                raise InputError(f"--{field} {name!r} is not a name that Kubernetes takes")


#: Options of a cluster with nothing chosen.
USUAL_CLUSTER = ClusterOptions()


def render_kubernetes(
    served: Served,
    cluster: ClusterOptions = USUAL_CLUSTER,
    *,
    autoscaler: Autoscaler = "none",
) -> Bundle:
    """Manifests that `kubectl apply -f` takes.

    Args:
        served: The service.
        cluster: Names and limits.
        autoscaler: `hpa` needs the engine's metrics as custom metrics of pods; `keda` asks
            Prometheus itself.

    Raises:
        CannotRender: The folder of a model has no claim, or no saturation point was measured.
    """
    namespace = cluster.namespace
    labels = {"app.kubernetes.io/name": served.name, "app.kubernetes.io/managed-by": "servetune"}
    metadata = {"name": served.name, "namespace": namespace, "labels": labels}
    deployment, service = _deployment(served, cluster, metadata), _service(served, metadata)
    texts = {
        "deployment.yaml": documents(deployment, comment=_comment(served)),
        "service.yaml": documents(service),
    }
    if autoscaler != "none":
        scaler = _scaler(served, metadata, autoscaler, cluster)
        texts[f"{autoscaler}.yaml"] = documents(scaler, comment=_scaler_comment(served, autoscaler))
    applied = " ".join(f"-f {name}" for name in texts)
    steps = f"""
1. A gated model needs a token, by reference alone:
   `{token_command(cluster)}`
2. `kubectl apply {applied}`
3. `kubectl -n {namespace} rollout status deployment/{served.name}`
4. `kubectl -n {namespace} port-forward service/{served.name} {served.port}`
"""
    return bundle_of(served, "kubernetes", texts, steps=steps)


def _deployment(served: Served, cluster: ClusterOptions, metadata: JsonObject) -> JsonObject:
    """The Deployment, which replaces one pod at a time."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": served.copies,
            "selector": {"matchLabels": {"app.kubernetes.io/name": served.name}},
            # Accelerators are rarely free for one copy more.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "progressDeadlineSeconds": LOAD_MINUTES * 60 + 60,
            "template": {
                "metadata": {
                    "labels": metadata["labels"],
                    "annotations": {
                        "prometheus.io/scrape": "true",
                        "prometheus.io/path": "/metrics",
                        "prometheus.io/port": str(served.port),
                    },
                },
                "spec": pod_of(served, cluster),
            },
        },
    }


def _service(served: Served, metadata: JsonObject) -> JsonObject:
    """The Service in front of all pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            "selector": {"app.kubernetes.io/name": served.name},
            "ports": [{"name": "http", "port": served.port, "targetPort": "http"}],
        },
    }


def token_command(cluster: ClusterOptions) -> str:
    """Command that puts the hub's token into the cluster, where pods refer to it."""
    literal = '--from-literal=HF_TOKEN="$HF_TOKEN"'
    return f"kubectl -n {cluster.namespace} create secret generic {cluster.secret} {literal}"


def pod_of(
    served: Served, cluster: ClusterOptions, *, container_name: str = "server"
) -> JsonObject:
    """The pod's specification: one container and its volumes.

    Raises:
        CannotRender: The folder of a model has no claim.
    """
    claim = cluster.claim
    if served.folder and claim is None:
        raise CannotRender(
            f"a pod cannot see the folder {served.folder}",
            hint="name the claim that holds it with --claim, or a hub id with --model-source",
        )
    cache: JsonObject = {"name": "models"}
    cache |= {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    return {
        "terminationGracePeriodSeconds": 120,
        "containers": [container_of(served, cluster, name=container_name)],
        "volumes": [
            cache,
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
        ],
    }


def container_of(served: Served, cluster: ClusterOptions, *, name: str) -> JsonObject:
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
    probe = {"httpGet": {"path": served.health, "port": "http"}, "timeoutSeconds": 5}
    container: JsonObject = {"name": name, "image": served.image}
    if served.command:
        container |= {
            "command": [_literal(word) for word in served.command],
            "args": [_literal(word) for word in served.words],
        }
    container |= {
        "env": variables,
        "ports": [{"name": "http", "containerPort": served.port}],
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": LOAD_MINUTES * 6},
        "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "models", "mountPath": MODEL_MOUNT if served.folder else served.hub_cache},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the container's own
        ],
    }
    if served.devices:
        container["resources"] = {"limits": {served.family.resource: served.devices}}
    return container


def _literal(text: str) -> str:
    """Kubernetes reads $(NAME) in words and values as a variable; $$ stands for a dollar."""
    return text.replace("$(", "$$(")


def _scaler(
    served: Served,
    metadata: JsonObject,
    autoscaler: Autoscaler,
    cluster: ClusterOptions,
) -> JsonObject:
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
    if autoscaler == "hpa":
        return {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "name": served.name,
                },
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
            "scaleTargetRef": {"name": served.name},
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "cooldownPeriod": 300,
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": cluster.prometheus,
                        "query": in_flight_query(served, cluster.namespace),
                        "threshold": str(served.saturation.target),
                    },
                }
            ],
        },
    }


def in_flight_query(served: Served, namespace: str) -> str:
    """Requests in the batch or waiting, of all copies together."""
    of = f'{{namespace="{namespace}",pod=~"{served.name}-.*"}}'
    names = [name.strip() for name in served.in_flight.split("+")]
    return " + ".join(f"sum({name}{of})" for name in names)


def _comment(served: Served) -> str:
    return f"{served.plan.label}\nEvery setting that was tuned is written out; see README.md."


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


def render_kserve(served: Served, cluster: ClusterOptions = USUAL_CLUSTER) -> Bundle:
    """One InferenceService (serving.kserve.io/v1beta1) with a container of its own.

    It runs in the standard mode, as a plain Deployment, where KEDA scales it by Prometheus;
    without a saturation point it has a fixed number of copies. KServe's webhook looks for the
    threshold in `target.value` alone, and its controller hands it to KEDA without a metric type,
    which KEDA takes as the average over copies (kserve 0.18,
    `pkg/apis/serving/v1beta1/inference_service_validation.go` and `reconcilers/keda`).

    Raises:
        CannotRender: The folder of a model has no claim.
    """
    scales = served.saturation is not None and bool(served.in_flight)
    pod = pod_of(served, cluster, container_name="kserve-container")
    namespace = cluster.namespace
    usual = (2 if scales else 1) * served.copies
    predictor: JsonObject = {
        "minReplicas": served.copies,
        "maxReplicas": max(served.copies, cluster.max_copies or usual),
        **pod,
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
                            "query": in_flight_query(served, namespace),
                        },
                        "target": {"type": "Value", "value": str(served.saturation.target)},
                    },
                }
            ]
        }
    else:
        annotations["serving.kserve.io/autoscalerClass"] = "none"
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": served.name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "servetune"},
            "annotations": annotations,
        },
        "spec": {"predictor": predictor},
    }
    steps = f"""
1. A gated model needs a token, by reference alone:
   `{token_command(cluster)}`
2. `kubectl apply -f inferenceservice.yaml`
3. `kubectl -n {namespace} wait --for=condition=Ready --timeout=1h inferenceservice/{served.name}`
"""
    texts = {"inferenceservice.yaml": documents(service, comment=served.plan.label)}
    return bundle_of(served, "kserve", texts, steps=steps)
