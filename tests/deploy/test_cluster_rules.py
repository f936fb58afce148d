"""Manifests held against what KServe, KEDA, LeaderWorkerSet and the Prometheus operator refuse."""

import copy

import pytest
import yaml
from cluster_rules import (
    keda_refusals,
    kserve_refusals,
    lws_refusals,
    monitor_refusals,
    pod_of_predictor,
    volume_refusals,
)
from msgspec import structs
from rendered import RENDER, SATURATION, served, tuned

from servetune.deploy.kubernetes import render_kubernetes
from servetune.deploy.launchers import deployable_engines
from servetune.deploy.pods import ClusterOptions
from servetune.engines import engine as engine_named
from servetune.errors import CannotRender, InputError
from servetune.hardware import instance


def inference_service(engine, **more):
    text = RENDER["kserve"](served(tuned(engine), **more)).text("inferenceservice.yaml")
    return next(yaml.safe_load_all(text))


@pytest.mark.parametrize("engine", deployable_engines())
def test_kserve_takes_the_inference_service(engine):
    assert kserve_refusals(inference_service(engine)) == []
    assert kserve_refusals(inference_service(engine, saturation=None)) == []


def test_kserve_would_refuse_what_was_written_before():
    """The old words: a threshold that its webhook does not look at, and a deprecated mode."""
    old = copy.deepcopy(inference_service("vllm"))
    target = old["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]["target"]
    assert target == {"type": "Value", "value": str(SATURATION.target)}
    target |= {"type": "AverageValue", "averageValue": target.pop("value")}
    assert "the target threshold value should not be empty" in kserve_refusals(old)
    old["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] = "RawDeployment"
    assert any("deprecated" in found for found in kserve_refusals(old))


# Deployments and groups, as someone who runs clusters reads them


def manifests(target, engine="vllm", *cluster, **more):
    """Objects by their kinds."""
    bundle = RENDER[target](served(tuned(engine), **more), *cluster)
    texts = [text for name, text in bundle.files if name.endswith(".yaml")]
    return {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}


def pod_templates(objects):
    if "LeaderWorkerSet" in objects:
        template = objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        return [template["leaderTemplate"], template["workerTemplate"]]
    return [objects["Deployment"]["spec"]["template"]]


SCALED = [name for name in deployable_engines() if engine_named(name).shipping.in_flight]


@pytest.mark.parametrize("engine", SCALED)
@pytest.mark.parametrize("target", ["kubernetes", "kubernetes-hpa"])
def test_nothing_stands_beside_an_autoscaler_and_it_sees_its_metrics(target, engine):
    objects = manifests(target, engine)
    assert "replicas" not in objects["Deployment"]["spec"]
    assert monitor_refusals(objects["PodMonitor"], pod_templates(objects)) == []
    assert objects["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    if target == "kubernetes":
        assert keda_refusals(objects["ScaledObject"], list(objects.values())) == []


def test_the_rules_find_what_was_written_before():
    objects = copy.deepcopy(manifests("kubernetes"))
    objects["Deployment"]["spec"]["replicas"] = 2
    found = keda_refusals(objects["ScaledObject"], list(objects.values()))
    assert found == ["replicas stand beside an autoscaler: each apply would undo its scaling"]
    (template,) = pod_templates(objects)
    template["metadata"]["annotations"] = {"prometheus.io/scrape": "true"}
    found = monitor_refusals(objects["PodMonitor"], [template])
    assert found == ["pods are scraped twice, so sums count each request twice"]


@pytest.mark.parametrize(
    ("device", "engine", "selector", "values"),
    [
        ("L4", "vllm", "nvidia.com/gpu.product", ["NVIDIA-L4"]),
        ("A100-80GB", "sglang", "nvidia.com/gpu.product", ["NVIDIA-A100-SXM4-80GB"]),
        ("GH200", "vllm", "nvidia.com/gpu.product", ["NVIDIA-GH200-480GB", "NVIDIA-GH200-120GB"]),
        ("MI300X", "vllm", "amd.com/gpu.device-id", ["74a1", "74b5"]),
        ("MI325X", "vllm", "amd.com/gpu.device-id", ["74a5"]),
    ],
)
def test_pods_run_on_the_device_that_was_measured(device, engine, selector, values):
    (template,) = pod_templates(manifests("kubernetes", engine, device=device))
    spec = template["spec"]
    if len(values) == 1:
        assert spec["nodeSelector"] == {selector: values[0]}
    else:
        affinity = spec["affinity"]["nodeAffinity"]
        needed = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        expression = {"key": selector, "operator": "In", "values": values}
        assert needed == [{"matchExpressions": [expression]}]
    (limit,) = spec["containers"][0]["resources"]["limits"]
    assert spec["tolerations"] == [{"key": limit, "operator": "Exists", "effect": "NoSchedule"}]


def test_neuron_pods_run_on_the_types_that_have_the_device():
    (template,) = pod_templates(manifests("kubernetes", "vllm-neuron"))
    needed = template["spec"]["affinity"]["nodeAffinity"]
    (term,) = needed["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert expression["key"] == "node.kubernetes.io/instance-type"
    assert "trn2.48xlarge" in expression["values"]
    assert all(instance(name).device.name == "Trainium2" for name in expression["values"])


def test_a_device_without_a_known_label_is_a_warning_and_one_is_taken():
    made = served(tuned("vllm"), device="B100")
    assert any("--node-selector" in text for text in RENDER["kubernetes"](made).warnings)
    cluster = ClusterOptions(node_selector=("nvidia.com/gpu.product=NVIDIA-B100",))
    bundle = RENDER["kubernetes"](made, cluster)
    assert not any("--node-selector" in text for text in bundle.warnings)
    assert 'nvidia.com/gpu.product: "NVIDIA-B100"' in bundle.text("deployment.yaml") or (
        "nvidia.com/gpu.product: NVIDIA-B100" in bundle.text("deployment.yaml")
    )
    with pytest.raises(InputError, match="names no label"):
        ClusterOptions(node_selector=("gpu",))


def test_pods_ask_for_cores_memory_and_disk_and_give_up_what_they_do_not_need():
    (template,) = pod_templates(manifests("kubernetes"))
    spec, (container,) = template["spec"], template["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "12Gi", "ephemeral-storage": "11Gi"},
        "limits": {"nvidia.com/gpu": 2},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["enableServiceLinks"] is spec["automountServiceAccountToken"] is False
    own = ClusterOptions(cpus=7.5, memory_gib=24)
    (template,) = pod_templates(manifests("kubernetes", "vllm", own))
    requests = template["spec"]["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == ("7.5", "24Gi")


def test_requests_leave_room_on_the_instance_that_was_measured():
    """A g6.xlarge has 4 vCPUs and 16 GiB: a pod that asks for all of them never starts."""
    made = served(tuned("vllm", tensor_parallel=1, replicas=1))
    made = structs.replace(made, node=instance("g6.xlarge"))
    (template,) = [
        yaml.safe_load(RENDER["kubernetes"](made).text("deployment.yaml"))["spec"]["template"]
    ]
    requests = template["spec"]["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == ("3", "8Gi")


@pytest.mark.parametrize(
    ("weights_bytes", "cluster", "least_s"),
    [
        (627 * 2**30, ClusterOptions(), 7200),  # two hours from a slow disk
        (627 * 2**30, ClusterOptions(disk_mb_per_s=1000), 1200),
        (8e9, ClusterOptions(), 680),
        (None, ClusterOptions(), 3600),
    ],
)
def test_a_pod_has_the_time_that_its_weights_take(weights_bytes, cluster, least_s):
    made = served(tuned("vllm"), weights_bytes=weights_bytes)
    text = RENDER["kubernetes"](made, cluster).text("deployment.yaml")
    spec = yaml.safe_load(text)["spec"]
    probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
    allowed_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert least_s <= allowed_s < 1.2 * least_s
    assert spec["progressDeadlineSeconds"] > allowed_s


def test_large_models_are_kept_in_a_volume_that_all_pods_read():
    large = {"weights_bytes": 140e9}
    objects = manifests("kubernetes", "vllm", ClusterOptions(storage_class="efs"), **large)
    claim = objects["PersistentVolumeClaim"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "160Gi"}},
        "storageClassName": "efs",
    }
    (template,) = pod_templates(objects)
    volume = template["spec"]["volumes"][0]
    assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    requests = template["spec"]["containers"][0]["resources"]["requests"]
    assert "ephemeral-storage" not in requests
    own = manifests("kubernetes", "vllm", ClusterOptions(claim="mine"), **large)
    assert "PersistentVolumeClaim" not in own


@pytest.mark.parametrize("storage_class", [None, "efs"])
@pytest.mark.parametrize(
    ("target", "engine", "fields", "count"),
    [
        ("kubernetes", "vllm", {}, 4),
        ("kubernetes", "vllm", {"tensor_parallel": 8, "pipeline_parallel": 2}, 8),
        ("kserve", "vllm", {}, 4),
        ("kserve", "transformers", {"replicas": 1}, 1),
    ],
)
def test_pods_of_every_node_get_their_weights(target, engine, fields, count, storage_class):
    """Shared where a class is named; else each pod has a disk that any class can be."""
    cluster = ClusterOptions(storage_class=storage_class)
    made = served(tuned(engine, **fields), device="H100", weights_bytes=140e9)
    bundle = RENDER[target](made, cluster)
    texts = [text for name, text in bundle.files if name.endswith(".yaml")]
    objects = {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}
    if target == "kserve":
        pods = [pod_of_predictor(objects["InferenceService"])]
    else:
        pods = [template["spec"] for template in pod_templates(objects)]
    assert volume_refusals(objects, pods, count=count) == []
    shared = bool(storage_class) or count == 1
    assert ("PersistentVolumeClaim" in objects) == shared
    volume = pods[0]["volumes"][0]
    assert ("ephemeral" in volume) == (not shared)
    assert "ephemeral-storage" not in pods[0]["containers"][0]["resources"]["requests"]
    readme = bundle.text("README.md")
    said = "ReadWriteOnce" if count == 1 else "EFS or FSx for Lustre on EKS"
    assert said in readme
    assert ("stay Pending" in readme) == (shared and count > 1)


def test_the_rule_finds_a_claim_that_most_clusters_leave_pending():
    objects = copy.deepcopy(
        manifests("kubernetes", "vllm", ClusterOptions(storage_class="efs"), weights_bytes=140e9)
    )
    pods = [template["spec"] for template in pod_templates(objects)]
    del objects["PersistentVolumeClaim"]["spec"]["storageClassName"]  # as it was before
    found = volume_refusals(objects, pods, count=4)
    assert found == ["the usual class has no ReadWriteMany volumes"]


def test_an_own_claim_of_several_pods_must_be_readable_by_all():
    own = RENDER["kubernetes"](served(tuned("vllm"), weights_bytes=140e9),
                               ClusterOptions(claim="mine"))  # fmt: skip
    assert "`mine` must be ReadWriteMany or ReadOnlyMany" in own.text("README.md")


def test_the_label_of_nodes_is_shown_with_the_command_that_lists_it():
    known = RENDER["kubernetes"](served(tuned("vllm")))
    look = "kubectl get nodes -L nvidia.com/gpu.product"
    for name in ("README.md", "deployment.yaml"):
        assert look in known.text(name)
    assert not any("seen on no node" in text for text in known.warnings)
    rule = RENDER["kserve"](served(tuned("vllm"), device="A30"))
    for name in ("README.md", "inferenceservice.yaml"):
        assert "NVIDIA-A30 of A30 follows from" in rule.text(name)
    assert any(look in text for text in rule.warnings)


def test_a_pod_ends_when_its_requests_have():
    made = served(tuned("vllm"))
    slow = structs.replace(made.evidence, results={"p99_e2e_latency_ms": 90_000.0})
    text = RENDER["kubernetes"](structs.replace(made, evidence=slow)).text("deployment.yaml")
    spec = yaml.safe_load(text)["spec"]["template"]["spec"]
    stop = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert stop == ["sleep", "100"]
    assert spec["terminationGracePeriodSeconds"] == 160


@pytest.mark.parametrize(
    ("engine", "words", "worker_words"),
    [
        (
            "vllm",
            ["--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)",
             "--master-addr=$(LWS_LEADER_ADDRESS)"],
            ["--headless"],
        ),
        (
            "sglang",
            ["--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)",
             "--dist-init-addr=$(LWS_LEADER_ADDRESS):20000"],
            [],
        ),
    ],
)  # fmt: skip
def test_a_copy_larger_than_a_node_spans_several(engine, words, worker_words):
    made = served(tuned(engine, tensor_parallel=8, pipeline_parallel=2), device="H100")
    bundle = RENDER["kubernetes"](made)
    group = yaml.safe_load(bundle.text("leaderworkerset.yaml"))
    assert lws_refusals(group) == []
    assert "deployment.yaml" not in bundle.names
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    leader, worker = (
        template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    for container in (leader, worker):
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert leader["args"][-len(words) :] == words
    assert worker["args"][-len([*words, *worker_words]) :] == [*words, *worker_words]
    assert "readinessProbe" in leader
    assert not {"readinessProbe", "ports"} & set(worker)
    assert worker["lifecycle"] == leader["lifecycle"], "a worker that ends first fails the drain"
    service = yaml.safe_load(bundle.text("service.yaml"))["spec"]
    labels = template["leaderTemplate"]["metadata"]["labels"].items()
    assert service["selector"].items() <= labels
    assert (
        not service["selector"].items() <= template["workerTemplate"]["metadata"]["labels"].items()
    )
    scaler = yaml.safe_load(bundle.text("keda.yaml"))
    assert keda_refusals(scaler, [group]) == []
    monitor = yaml.safe_load(bundle.text("monitor.yaml"))
    assert monitor_refusals(monitor, [template["leaderTemplate"]]) == []


@pytest.mark.parametrize(
    ("target", "engine", "fields", "message"),
    [
        ("kubernetes", "tgi", {"tensor_parallel": 16}, "does not span nodes"),
        ("kserve", "vllm", {"tensor_parallel": 16}, "has one node"),
        ("kubernetes", "vllm", {"tensor_parallel": 4, "data_parallel": 4}, "stay on one node"),
    ],
)
def test_no_pod_asks_for_more_devices_than_a_node_has(target, engine, fields, message):
    made = served(tuned(engine, **fields), device="H100")
    with pytest.raises(CannotRender, match=message) as caught:
        RENDER[target](made)
    assert caught.value.hint
    assert "16 devices and a node has 8" in caught.value.message
    assert RENDER[target](made, ClusterOptions(gpus_per_node=16)).files


def test_kserve_pods_are_placed_scraped_and_drained_alike():
    objects = manifests("kserve")
    pod = pod_of_predictor(objects["InferenceService"])
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert pod["containers"][0]["lifecycle"]
    labels = {"serving.kserve.io/inferenceservice": "qwen-qwen3-4b"}  # KServe's own
    template = {"metadata": {"labels": labels}, "spec": pod}
    assert monitor_refusals(objects["PodMonitor"], [template]) == []
    assert objects["PodDisruptionBudget"]["spec"]["selector"] == {"matchLabels": labels}


# Overlays


def test_an_overlay_merges_as_kubectl_patch_does():
    overlay = list(
        yaml.safe_load_all(
            """
kind: Deployment
metadata: {labels: {team: search}}
spec:
  template:
    spec:
      priorityClassName: serving
      containers:
      - name: server
        env:
        - {name: HF_HUB_OFFLINE, value: "1"}
        resources: {limits: {memory: 64Gi}}
        livenessProbe: null
      - {name: proxy, image: "registry.example/proxy:1"}
      tolerations:
      - {key: spot, operator: Exists}
      volumes:
      - {name: shm, $patch: delete}
---
kind: Service
spec:
  type: LoadBalancer
  ports:
  - {port: 8000, nodePort: 30080}
"""
        )
    )
    made = served(tuned("vllm"))
    bundle = render_kubernetes(made, overlay=overlay)
    deployment = yaml.safe_load(bundle.text("deployment.yaml"))
    assert deployment["metadata"]["labels"] == {
        "app.kubernetes.io/name": made.name, "app.kubernetes.io/managed-by": "servetune",
        "team": "search",
    }  # fmt: skip
    pod = deployment["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["server", "proxy"]
    server = pod["containers"][0]
    assert server["image"] == made.image  # what the overlay does not name stays
    assert [each["name"] for each in server["env"]] == ["HF_TOKEN", "HF_HUB_OFFLINE"]
    assert server["resources"]["limits"] == {"nvidia.com/gpu": 2, "memory": "64Gi"}
    assert "livenessProbe" not in server
    assert pod["tolerations"] == [{"key": "spot", "operator": "Exists"}]  # lists without identity
    assert [each["name"] for each in pod["volumes"]] == ["models"]
    service = yaml.safe_load(bundle.text("service.yaml"))["spec"]
    assert service["type"] == "LoadBalancer"
    assert service["ports"] == [
        {"name": "http", "port": 8000, "targetPort": "http", "nodePort": 30080}
    ]
    assert "give `--overlay` again" in bundle.text("README.md")


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ([{"kind": "Ingress", "spec": {}}], "changes Ingress, which is not rendered"),
        ([{"kind": "Service", "metadata": {"name": "x"}}], "changes Service x, which is not"),
        ([{"spec": {}}], "has no kind"),
    ],
)
def test_an_overlay_that_changes_nothing_is_refused(overlay, message):
    with pytest.raises(InputError, match=message):
        render_kubernetes(served(tuned("vllm")), overlay=overlay)
