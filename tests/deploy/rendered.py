"""What the tests of all targets share: plans, bundles, and readers of what was rendered."""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

import yaml

from servetune.deploy.bentoml import render_bentoml
from servetune.deploy.command import render_command, render_systemd
from servetune.deploy.compose import render_compose
from servetune.deploy.containers import parse_environment
from servetune.deploy.evidence import Evidence, SaturationPoint
from servetune.deploy.kubernetes import render_kserve, render_kubernetes
from servetune.deploy.launchers import launcher_of, plan_of_words, shipping_of
from servetune.deploy.served import Served, ServiceOptions, prepare
from servetune.engines import ENGINES
from servetune.engines import engine as engine_named
from servetune.errors import PlanError
from servetune.hardware import node
from servetune.plan.plan import Plan

MODEL = "Qwen/Qwen3-4B"
SATURATION = SaturationPoint(per_copy=64, rule="largest concurrency within the limits, 128")
VERSIONS = {
    "vllm": "0.26.0",
    "sglang": "0.5.16",
    "tgi": "3.3.5",
    "mlc-llm": "0.20.0",
    "tensorrt-llm": "1.2.0",
    "lmdeploy": "0.18.0",
    "llama.cpp": "0.5.0",
    "transformers": "5.23.0",
    "max": "26.7.0",
    "vllm-neuron": "0.29.0.1.2.0",
}

RENDER = {
    "kubernetes": lambda served, *cluster: render_kubernetes(
        served, *cluster, autoscaler="keda" if served.in_flight else "none"
    ),
    "kubernetes-hpa": lambda served, *cluster: render_kubernetes(
        served, *cluster, autoscaler="hpa"
    ),
    "kserve": render_kserve,
    "compose": render_compose,
    "systemd": render_systemd,
    "command": render_command,
    "bentoml": render_bentoml,
}


def tuned(engine: str, **fields: Any) -> Plan:
    """A plan in which every field that the engine knows was chosen."""
    usual: dict[str, Any] = {
        "tensor_parallel": 2,
        "replicas": 2,
        "max_num_seqs": 96,
        "max_num_batched_tokens": 8192,
        "max_model_len": 4096,
        "gpu_memory_fraction": 0.85,
        "dtype": "bfloat16",
        "kv_cache_dtype": "fp8_e5m2" if engine == "tgi" else "fp8",
        "quantization": "fp8",
        "prefix_caching": False,
        "enforce_eager": True,
    }
    if engine != "tgi":
        usual |= {"chunked_prefill": True, "block_tokens": 16}
    known = {name: value for name, value in usual.items() if has_words(engine, name, value)}
    return Plan(model=MODEL, engine=engine, **(known | fields))


def has_words(engine: str, field: str, value: Any) -> bool:
    """Whether an engine has a setting for a field; of one that is not known it is said so later."""
    try:
        engine not in ENGINES or plan_settings(Plan(model=MODEL, engine=engine, **{field: value}))
    except PlanError:
        return False
    return True


def plan_settings(plan: Plan) -> Any:
    return engine_named(plan.engine).plan_settings(plan)


def served(plan: Plan, **more: Any) -> Served:
    version = VERSIONS.get(plan.engine, "0.26.0")
    evidence = Evidence(engine=plan.engine, engine_version=version, source="tune.jsonl, trial abc")
    usual = "Trainium2" if plan.engine == "vllm-neuron" else "L4"
    more["node"] = node(gpu=more.pop("device", usual), count=more.pop("device_count", 8))
    more.setdefault("weights_bytes", 8.0e9)
    more.setdefault("copies", plan.replicas)
    if plan.engine in ENGINES and not shipping_of(launcher_of(plan)).builds[0].repository:
        more.setdefault("image", f"registry.example/engine:{version}")
    saturation = more.pop("saturation", SATURATION)
    return prepare(plan, ServiceOptions(**more), saturation=saturation, evidence=evidence)


def loaded(text: str) -> Any:
    """What one YAML document holds, read by libyaml, which is ten times as fast."""
    return yaml.load(text, yaml.CSafeLoader)


def container_words(container: dict[str, Any], engine: str) -> tuple[list[str], dict[str, str]]:
    """What Kubernetes hands to the process."""
    values = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    words = container.get("command", []) + container.get("args", [])
    back = {key: text.replace("$$(", "$(") for key, text in values.items()}
    return [word.replace("$$(", "$(") for word in words], back


def started(target: str, bundle: Any, engine: str) -> tuple[int, list[str], dict[str, str]]:
    """Copies, and command and variables of the first, as the target would start it."""
    if target.startswith("kubernetes"):
        spec = loaded(bundle.text("deployment.yaml"))["spec"]
        words, values = container_words(spec["template"]["spec"]["containers"][0], engine)
        return copies_of(spec, bundle), words, values
    if target == "kserve":
        spec = loaded(bundle.text("inferenceservice.yaml"))["spec"]["predictor"]
        words, values = container_words(spec["containers"][0], engine)
        return spec["minReplicas"], words, values
    if target == "compose":
        services = loaded(bundle.text("compose.yaml"))["services"]
        first = next(iter(services.values()))
        words = first.get("entrypoint", []) + first.get("command", [])
        values = {
            key: text.replace("$$", "$") for key, text in first.get("environment", {}).items()
        }
        return len(services), [word.replace("$$", "$") for word in words], values
    if target == "systemd":
        units = [name for name in bundle.names if name.endswith(".service")]
        return len(units), *_of_unit(bundle.text(units[0]))
    if target == "command":
        scripts = [name for name in bundle.names if name.endswith(".sh")]
        lines = bundle.text(scripts[0]).replace("\\\n", " ").splitlines()
        exports = [shlex.split(line)[1] for line in lines if line.startswith("export ")]
        values = dict(export.split("=", 1) for export in exports)
        return len(scripts), shlex.split(lines[-1])[1:], values
    return _of_service(bundle.text("service.py"))


def copies_of(spec: dict[str, Any], bundle: Any) -> int:
    """Copies of a Deployment: its own, or the least of its autoscaler."""
    for name, key in (("keda.yaml", "minReplicaCount"), ("hpa.yaml", "minReplicas")):
        if name in bundle.names:
            assert "replicas" not in spec
            return int(loaded(bundle.text(name))["spec"][key])
    return int(spec["replicas"])


def _of_unit(text: str) -> tuple[list[str], dict[str, str]]:
    joined = text.replace("\\\n", " ")
    start = re.search(r"^ExecStart=/usr/bin/env (.*)$", joined, re.MULTILINE)
    assert start is not None
    values = {}
    for quoted in re.findall(r'^Environment="(.*)"$', joined, re.MULTILINE):
        key, _, value = _unquoted(quoted).partition("=")
        values[key] = value
    command, *quoted_words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', start[1])
    words = [_unquoted(inside).replace("$$", "$") for inside, _ in quoted_words]
    return [command[1], *words], values


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text).replace("%%", "%")


def _of_service(text: str) -> tuple[int, list[str], dict[str, str]]:
    names = {}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            names[line.targets[0].id] = ast.literal_eval(line.value)
    return 0, names["COMMAND"] + names["WORDS"], {}


def read_back(target: str, bundle: Any, engine: str) -> Plan:
    """The Plan that a target would serve, from its files alone."""
    import msgspec

    copies, words, values = started(target, bundle, engine)
    if not words:
        plan = parse_environment("lmi", values)
    else:
        launcher = launcher_of(Plan(model="m", engine=engine))
        command = (launcher.program.command, *launcher.start)
        assert (words[0].rpartition("/")[2], *words[1 : len(command)]) == command
        plan = plan_of_words(launcher, words[len(command) :], values)
    return msgspec.structs.replace(plan, replicas=copies or 1)
