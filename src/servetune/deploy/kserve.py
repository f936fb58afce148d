"""KServe: the same container as an InferenceService, scaled at the measured saturation point."""

from __future__ import annotations

from typing import Any

from servetune.deploy.bundle import Bundle
from servetune.deploy.kubernetes import (
    USUAL_CLUSTER,
    ClusterOptions,
    in_flight_query,
    pod_of,
    token_command,
)
from servetune.deploy.served import Served, bundle_of
from servetune.deploy.yamltext import documents


def render_kserve(served: Served, cluster: ClusterOptions = USUAL_CLUSTER) -> Bundle:
    """One InferenceService (serving.kserve.io/v1beta1) with a container of its own.

    It runs in the raw mode, as plain Deployments, where KEDA scales it by Prometheus; without
    a saturation point it has a fixed number of copies.

    Raises:
        CannotRender: The folder of a model has no claim.
    """
    scales = served.saturation is not None and bool(served.in_flight)
    pod = pod_of(served, cluster, container_name="kserve-container")
    namespace = cluster.namespace
    usual = (2 if scales else 1) * served.copies
    predictor: dict[str, Any] = {
        "minReplicas": served.copies,
        "maxReplicas": max(served.copies, cluster.max_copies or usual),
        **pod,
    }
    annotations = {"serving.kserve.io/deploymentMode": "RawDeployment"}
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
                        "target": {
                            "type": "AverageValue",
                            "averageValue": str(served.saturation.target),
                        },
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
