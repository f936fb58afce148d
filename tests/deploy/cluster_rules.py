"""What the controllers of a cluster refuse: rules of their webhooks and schemas, with sources.

Kubernetes' own kinds have schemas on the package index (`kubernetes_validate`). These kinds have
not, so the parts that servetune writes are stated here, from the projects' sources of 2026:

- kserve 0.18: `pkg/apis/serving/v1beta1/inference_service_validation.go`, `component.go`,
  `pkg/validation/env_policy.go`, `pkg/constants/constants.go`;
- keda 2.20: `apis/keda/v1alpha1/scaledobject_types.go`, `scaledobject_webhook.go`,
  `pkg/scalers/prometheus_scaler.go`;
- lws 0.9: `api/leaderworkerset/v1/leaderworkerset_types.go`,
  `pkg/webhooks/leaderworkerset_webhook.go`;
- prometheus-operator 0.85: `pkg/apis/monitoring/v1/podmonitor_types.go`.
"""

from __future__ import annotations

import re
from typing import Any

#: constants.go: `AutoscalerAllowedClassList`.
_CLASSES = {"hpa", "external", "keda", "none"}
#: constants.go: `RawDeployment` and `Serverless` are deprecated, and the validating webhook
#: compares with the new words alone: an old one falls through to Knative's rules.
_MODES = {"Standard", "Knative", "ModelMesh"}
_BLOCKED = {"PYTHONPATH"}
#: component.go and autoscaling types: fields of a predictor beside those of a pod.
_COMPONENT = {
    "minReplicas", "maxReplicas", "scaleTarget", "scaleMetric", "autoScaling", "labels",
    "annotations", "deploymentStrategy", "timeout", "containerConcurrency",
}  # fmt: skip


def pod_of_predictor(service: dict[str, Any]) -> dict[str, Any]:
    """The pod's specification inside an InferenceService."""
    predictor = service["spec"]["predictor"]
    return {name: value for name, value in predictor.items() if name not in _COMPONENT}


def kserve_refusals(service: dict[str, Any]) -> list[str]:
    """Sentences with which KServe's validating webhook refuses an InferenceService."""
    found = []
    predictor, annotations = service["spec"]["predictor"], service["metadata"]["annotations"]
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", service["metadata"]["name"]):
        found.append("an InferenceService name must consist of lower case characters or '-'")
    mode = annotations.get("serving.kserve.io/deploymentMode")
    scaler = annotations.get("serving.kserve.io/autoscalerClass")
    if mode not in _MODES:
        found.append(f"deploymentMode {mode} is deprecated or unknown")
    if scaler is not None and scaler not in _CLASSES:
        found.append(f"[{scaler}] is not a supported autoscaler class type")
    if [each["name"] for each in predictor["containers"]][:1] != ["kserve-container"]:
        found.append("exactly one of the implementations must be specified in PredictorSpec")
    for container in predictor["containers"]:
        blocked = {variable["name"] for variable in container.get("env", ())} & _BLOCKED
        found += [f"setting {name} is not allowed for security reasons" for name in blocked]
    least, most = predictor.get("minReplicas", 1), predictor.get("maxReplicas", 0)
    if least < 0 or most < 0 or (most and least > most):
        found.append("'MinReplicas' cannot be greater than MaxReplicas")
    if mode == "Standard" and scaler == "keda":
        found += _kserve_keda(predictor)
    elif mode != "Standard" and "deploymentStrategy" in predictor:
        found.append("customizing deploymentStrategy is only supported for raw deployment mode")
    return found


def _kserve_keda(predictor: dict[str, Any]) -> list[str]:
    """`validateScalingKedaCompExtension` and `validateScaleTarget`."""
    found = []
    if "scaleMetric" in predictor:
        found.append("ScaleMetric is not supported for KEDA")
    for metric in predictor.get("autoScaling", {}).get("metrics", ()):
        if metric["type"] not in ("Resource", "External", "PodMetric"):
            found.append(f"unknown KEDA metric type with value [{metric['type']}]")
        if metric["type"] != "External":
            continue
        external = metric.get("external")
        if external is None:
            found.append("metricSpec.External is not set for external metric source type")
            continue
        if not external["metric"].get("query"):
            found.append("the query should not be empty")
        if set(external["metric"]) - {"backend", "serverAddress", "query", "namespace"}:
            found.append("unknown field of an external metric")
        target = external["target"]
        if "value" not in target:
            found.append("the target threshold value should not be empty")
        needed = {
            "Utilization": "averageUtilization",
            "AverageValue": "averageValue",
            "Value": "value",
        }
        if target["type"] not in needed or needed[target["type"]] not in target:
            found.append(f"the {target['type']} type should be set")
    return found


def keda_refusals(scaled: dict[str, Any], manifests: list[dict[str, Any]]) -> list[str]:
    """Sentences with which KEDA, or an operator of it, refuses a ScaledObject."""
    found, spec = [], scaled["spec"]
    target = spec["scaleTargetRef"]
    kind = target.get("kind", "Deployment")
    scaled_kinds = [
        each
        for each in manifests
        if (each["kind"], each["metadata"]["name"]) == (kind, target["name"])
    ]
    if len(scaled_kinds) != 1:
        found.append(f"there is no {kind} {target['name']} to scale")
    elif "replicas" in scaled_kinds[0]["spec"]:
        found.append("replicas stand beside an autoscaler: each apply would undo its scaling")
    if kind != "Deployment" and "apiVersion" not in target:
        found.append("scaleTargetRef of another kind needs its apiVersion")
    if not 0 <= spec["minReplicaCount"] <= spec["maxReplicaCount"]:
        found.append("minReplicaCount must be at most maxReplicaCount")
    for trigger in spec["triggers"]:
        if trigger["type"] != "prometheus":
            continue
        if {"serverAddress", "query", "threshold"} - set(trigger["metadata"]):
            found.append("a prometheus trigger needs serverAddress, query and threshold")
        if not all(isinstance(value, str) for value in trigger["metadata"].values()):
            found.append("metadata of a trigger are strings")
        if trigger.get("metricType", "AverageValue") not in ("AverageValue", "Value"):
            found.append("metricType of prometheus is AverageValue or Value")
    return found


def volume_refusals(
    objects: dict[str, Any], pods: list[dict[str, Any]], *, count: int
) -> list[str]:
    """What keeps pods from their volumes: one disk for several nodes, or a class that has none.

    A ReadWriteOnce volume is mounted by one node, and the default class of EKS (EBS), GKE
    (Persistent Disk) and AKS (Azure Disk) has no other (Kubernetes, "Persistent Volumes", access
    modes; documentation of the CSI drivers, November 2026): a claim of ReadWriteMany that names no
    class stays Pending there.
    """
    found, claim = [], objects.get("PersistentVolumeClaim")
    claimed = set()
    for pod in pods:
        for volume in pod["volumes"]:
            claimed.add(volume.get("persistentVolumeClaim", {}).get("claimName"))
            template = volume.get("ephemeral", {}).get("volumeClaimTemplate", {}).get("spec", {})
            if template.get("accessModes", ["ReadWriteOnce"]) != ["ReadWriteOnce"]:
                found.append("a pod's own volume is of one node")
    if claim is None:
        return found
    if claim["metadata"]["name"] not in claimed:
        found.append("no pod mounts the claim")
    modes = claim["spec"]["accessModes"]
    if count > 1 and "ReadWriteMany" not in modes:
        found.append("pods of several nodes claim a volume of one")
    if "ReadWriteMany" in modes and "storageClassName" not in claim["spec"]:
        found.append("the usual class has no ReadWriteMany volumes")
    return found


def monitor_refusals(monitor: dict[str, Any], pods: list[dict[str, Any]]) -> list[str]:
    """What keeps a PodMonitor from finding pods: of another label, or without such a port."""
    found, spec = [], monitor["spec"]
    if monitor["apiVersion"] != "monitoring.coreos.com/v1":
        found.append("PodMonitor is of monitoring.coreos.com/v1")
    wanted = spec["selector"]["matchLabels"].items()
    chosen = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
    if not chosen:
        found.append("no pod has the labels of the PodMonitor")
    for endpoint in spec["podMetricsEndpoints"]:
        for pod in chosen:
            ports = {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
            if endpoint["port"] not in ports:
                found.append(f"no container of the pod has a port {endpoint['port']}")
    if any("prometheus.io/scrape" in pod["metadata"].get("annotations", {}) for pod in chosen):
        found.append("pods are scraped twice, so sums count each request twice")
    return found


def lws_refusals(group: dict[str, Any]) -> list[str]:
    """Sentences with which LeaderWorkerSet's webhook or schema refuses a set."""
    found, spec = [], group["spec"]
    template = spec["leaderWorkerTemplate"]
    if group["apiVersion"] != "leaderworkerset.x-k8s.io/v1":
        found.append("LeaderWorkerSet is of leaderworkerset.x-k8s.io/v1")
    if spec.get("replicas", 1) < 0:
        found.append("the Replicas is invalid")
    if template.get("size", 1) < 1:
        found.append("the Size is invalid")
    if template["restartPolicy"] not in ("RecreateGroupOnPodRestart", "None"):
        found.append("invalid value for leaderworkertemplate.restartpolicy")
    if "workerTemplate" not in template:
        found.append("workerTemplate is required")
    if set(spec) - {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy",
                    "networkConfig"}:  # fmt: skip
        found.append("unknown field of a LeaderWorkerSet")
    if set(template) - {"leaderTemplate", "workerTemplate", "size", "restartPolicy",
                        "subGroupPolicy", "volumeClaimTemplates"}:  # fmt: skip
        found.append("unknown field of a leaderWorkerTemplate")
    strategy = spec.get("rolloutStrategy", {})
    if strategy and strategy.get("type") != "RollingUpdate":
        found.append("rolloutStrategy.type is RollingUpdate")
    return found
