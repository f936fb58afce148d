"""Every target with every engine: what is written, what is read back, what is never written."""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml
from cluster_rules import pod_of_predictor
from hypothesis import given, settings
from hypothesis import strategies as st
from rendered import MODEL, RENDER, SATURATION, read_back, served, started, tuned
from test_launchers import plans

from servetune.deploy.bundle import documents, write, yaml_text
from servetune.deploy.compose import render_compose
from servetune.deploy.launchers import deployable_engines
from servetune.deploy.pods import ClusterOptions
from servetune.deploy.served import MODEL_MOUNT, service_name
from servetune.engines import engine as engine_named
from servetune.errors import DeployError
from servetune.plan.plan import Plan

GOLDEN = Path(__file__).parent / "golden"
TOKEN = "hf_" + "Ab3" * 12


def can_render(target, engine):
    """Whether an engine is a package for BentoML, and tells an autoscaler its requests."""
    ships = engine_named(engine).shipping
    needs = {"bentoml": ships.install, "kubernetes-hpa": ships.in_flight}
    return bool(needs.get(target, True))


#: LMI has no command and tells an autoscaler nothing.
ALL = [
    *(
        (target, engine)
        for target in RENDER
        for engine in deployable_engines()
        if can_render(target, engine)
    ),
    ("kserve", "lmi"),
    ("compose", "lmi"),
]


def bundle_of(target, engine):
    if engine == "lmi":
        plan = tuned("vllm")
        return RENDER[target](served(plan, container="lmi"))
    return RENDER[target](served(tuned(engine)))


#: Engines whose files are agreed for every target; others' for the usual three.
EVERYWHERE = {"vllm", "sglang", "tgi", "mlc-llm", "lmi"}
AGREED = [
    (target, engine)
    for target, engine in ALL
    if engine in EVERYWHERE or target in {"command", "compose", "kubernetes"}
]


@pytest.mark.parametrize(("target", "engine"), AGREED)
def test_what_is_written_is_what_was_agreed(target, engine):
    """Golden files; `SERVETUNE_WRITE_GOLDEN=1` renews them, for a reader to compare."""
    bundle = bundle_of(target, engine)
    text = "".join(
        f"=== {name}\n{bundle.text(name)}" for name in bundle.names if name != "plan.json"
    )
    golden = GOLDEN / f"{target}-{engine}.txt"
    if os.environ.get("SERVETUNE_WRITE_GOLDEN"):
        golden.write_text(text, "utf-8")
    assert text == golden.read_text("utf-8")


@pytest.mark.parametrize(("target", "engine"), ALL)
def test_the_files_alone_give_the_plan_back(target, engine):
    bundle = bundle_of(target, engine)
    told = msgspec.convert(bundle.json("plan.json")["plan"], Plan)
    if target == "bentoml":
        told = msgspec.structs.replace(told, replicas=1)  # BentoML's scaling makes the copies
    assert read_back(target, bundle, "vllm" if engine == "lmi" else engine) == told


@pytest.mark.parametrize("target", RENDER)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_any_plan_comes_back_out_of_any_target(target, data):
    engine = data.draw(st.sampled_from(["vllm", "sglang"] + ["tgi"] * (target != "bentoml")))
    plan = data.draw(plans(engine))
    made = served(plan)
    if target == "bentoml" and any("$" in word for word in made.words):
        with pytest.raises(DeployError, match=r"what follows a \$"):
            RENDER[target](made)
        return
    wide = (ClusterOptions(gpus_per_node=4096),) if target.startswith("k") else ()
    back = read_back(target, RENDER[target](made, *wide), engine)
    if target == "bentoml":
        back = msgspec.structs.replace(back, replicas=plan.replicas)
    assert back == made.plan


@pytest.mark.parametrize(("target", "engine"), ALL)
def test_tokens_come_by_reference_and_from_nowhere_else(target, engine, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    bundle = bundle_of(target, engine)
    assert not any(TOKEN in text for _, text in bundle.files)
    whole = "".join(text for _, text in bundle.files)
    assert "HF_TOKEN" in whole
    if target.startswith(("kubernetes", "kserve")):
        assert "secretKeyRef" in whole


def test_a_folder_is_mounted_and_keeps_its_name():
    plan = tuned("vllm", replicas=1)
    made = served(plan, model_source="/data/qwen3")
    spec = yaml.safe_load(RENDER["compose"](made).text("compose.yaml"))["services"]["qwen3"]
    assert spec["volumes"] == [f"/data/qwen3:{MODEL_MOUNT}:ro"]
    assert spec["command"][0] == MODEL_MOUNT
    assert "--served-model-name=qwen3" in spec["command"]
    plain = RENDER["command"](served(plan, model_source="/data/qwen3", mounts=False))
    assert "/data/qwen3" in plain.text("serve.sh")
    with pytest.raises(DeployError, match="cannot see the folder"):
        RENDER["kserve"](made)


def test_copies_have_ports_and_devices_of_their_own():
    made = served(tuned("vllm"))
    services = yaml.safe_load(RENDER["compose"](made).text("compose.yaml"))["services"]
    taken = [
        s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for s in services.values()
    ]
    assert taken == [["0", "1"], ["2", "3"]]
    assert [s["ports"] for s in services.values()] == [
        ["127.0.0.1:8000:8000"], ["127.0.0.1:8001:8000"]
    ]  # fmt: skip
    units = RENDER["systemd"](made)
    assert '"CUDA_VISIBLE_DEVICES=2,3"' in units.text("qwen-qwen3-4b-2.service")
    assert '"8001"' in units.text("qwen-qwen3-4b-2.service")
    assert "qwen-qwen3-4b.target" in units.names


@pytest.mark.parametrize(
    ("engine", "variable", "word"),
    [
        ("vllm", "VLLM_API_KEY", None),
        ("tgi", "API_KEY", None),
        ("llama.cpp", "LLAMA_API_KEY", None),
        ("sglang", None, "--api-key"),
        ("lmdeploy", None, "--api-keys"),
    ],
)
@pytest.mark.parametrize(("address", "shown"), [("0.0.0.0", "0.0.0.0"), ("::", "[::]")])
def test_ports_that_others_reach_need_a_key_of_the_environment(
    engine, variable, word, address, shown
):
    bundle = render_compose(served(tuned(engine)), publish=address)
    for service in yaml.safe_load(bundle.text("compose.yaml"))["services"].values():
        key = service["environment"][variable] if variable else service["command"][-1]
        assert key.startswith("${SERVER_API_KEY:?")  # Compose ends where it is not set
        assert word is None or service["command"][-2] == word
        assert service["ports"][0].startswith(f"{shown}:80")
    assert "--api-key-env SERVER_API_KEY" in bundle.text("README.md")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1"])
def test_ports_of_this_machine_need_no_key(address):
    bundle = render_compose(served(tuned("vllm")), publish=address)
    assert "API_KEY" not in "".join(text for _, text in bundle.files)


@pytest.mark.parametrize(
    ("engine", "address", "words"),
    [
        ("transformers", "0.0.0.0", "cannot ask clients for a key"),
        ("tensorrt-llm", "10.0.0.1", "cannot ask clients for a key"),
        ("vllm", "everywhere", "no address"),
        ("vllm", "0.0.0.0:80", "no address"),
    ],
)
def test_ports_are_not_published_where_that_cannot_be_safe(engine, address, words):
    with pytest.raises(DeployError, match=words):
        render_compose(served(tuned(engine)), publish=address)


def test_cores_ask_for_no_accelerator():
    made = served(tuned("vllm", replicas=1), device="CPU")
    assert "nvidia" not in RENDER["kubernetes"](made).text("deployment.yaml")
    assert "deploy" not in yaml.safe_load(RENDER["compose"](made).text("compose.yaml"))["services"]


def test_an_autoscaler_holds_each_copy_below_the_saturation_point():
    made = served(tuned("sglang"))
    keda = yaml.safe_load(RENDER["kubernetes"](made).text("keda.yaml"))["spec"]
    assert keda["triggers"][0]["metadata"]["threshold"] == str(SATURATION.target) == "51"
    assert "sglang:num_queue_reqs" in keda["triggers"][0]["metadata"]["query"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (2, 4)
    with pytest.raises(DeployError, match="no saturation point was measured"):
        RENDER["kubernetes"](served(tuned("vllm"), saturation=None))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"name": "Upper"}, "not a name that every target takes"),
        ({"name": "x" * 60}, "not a name that every target takes"),
        ({"port": 0}, "port 0 does not exist"),
        ({"model_source": "s3://bucket/x"}, "neither a hub id nor"),
        ({"model_source": "/data/a b"}, "characters that not every target"),
        ({"container": "docker"}, "unknown container"),
    ],
)
def test_bad_input_is_one_line(more, message):
    with pytest.raises(DeployError, match=message) as caught:
        served(tuned("vllm"), **more)
    assert "\n" not in caught.value.message


def test_what_a_target_cannot_run_is_refused():
    lmi = served(tuned("vllm"), container="lmi")
    for target in ("command", "systemd", "bentoml"):
        with pytest.raises(DeployError, match="has no command of its own"):
            RENDER[target](lmi)
    with pytest.raises(DeployError, match="is no Python package"):
        RENDER["bentoml"](served(tuned("tgi")))
    with pytest.raises(DeployError, match="port 8000, not 9000"):
        RENDER["bentoml"](served(tuned("vllm"), port=9000))
    with pytest.raises(DeployError, match="tells no requests in flight"):
        RENDER["kubernetes-hpa"](lmi)


def test_a_script_starts_what_it_says(tmp_path):
    """The script itself, with a command of that name that prints its arguments."""
    odd = {"chat_template": 'it\'s $HOME "x" `id`'}
    made = served(tuned("vllm", replicas=1, extra=tuple(odd.items())))
    write(RENDER["command"](made), tmp_path / "out")
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    fake.chmod(0o755)
    script = tmp_path / "out" / "serve.sh"
    assert script.stat().st_mode & stat.S_IXUSR
    ran = subprocess.run(
        [script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == ["serve", *made.words]


def test_service_names_are_dns_labels():
    assert service_name("Qwen/Qwen3-4B") == "qwen-qwen3-4b"
    assert service_name("01-ai/Yi") == "llm-01-ai-yi"
    assert len(service_name("x" * 200)) == 53


finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), finite, st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=values)
@settings(max_examples=120, deadline=None)
def test_yaml_reads_back_what_was_written(value):
    assert yaml.safe_load(yaml_text(value, comment="a\nb")) == value


def test_documents_are_apart():
    assert list(yaml.safe_load_all(documents({"a": 1}, {"b": "no"}))) == [{"a": 1}, {"b": "no"}]


# the targets' own validators, offline (requirements/validators.txt)


def test_compose_files_pass_the_compose_specification():
    check = pytest.importorskip("check_jsonschema", reason="pip install --group validators")
    import jsonschema

    schema = Path(check.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    rules = json.loads(schema.read_text("utf-8"))
    validator = jsonschema.validators.validator_for(rules)(rules)
    for target, engine in ALL:
        if target == "compose":
            value = yaml.safe_load(bundle_of(target, engine).text("compose.yaml"))
            assert [error.message for error in validator.iter_errors(value)] == []
            value["services"]["qwen-qwen3-4b-1"]["prots"] = []
            assert list(validator.iter_errors(value))


#: Files of kinds that are not Kubernetes' own; test_cluster_rules.py has their rules.
OWN_KINDS = {"keda.yaml", "monitor.yaml", "leaderworkerset.yaml"}


@pytest.mark.parametrize("version", [pytest.param("1.28", marks=pytest.mark.slow), "1.34"])
def test_manifests_pass_kubernetes_own_schemas(version):
    check = pytest.importorskip("kubernetes_validate", reason="pip install --group validators")
    for engine in deployable_engines():
        for target in ("kubernetes", "kubernetes-hpa"):
            if not can_render(target, engine):
                continue
            bundle = bundle_of(target, engine)
            for name in bundle.names:
                if name.endswith(".yaml") and name not in OWN_KINDS:
                    check.validate(yaml.safe_load(bundle.text(name)), version, strict=True)
    own_disk = RENDER["kubernetes"](served(tuned("vllm"), weights_bytes=140e9))
    deployment = yaml.safe_load(own_disk.text("deployment.yaml"))
    assert "ephemeral" in deployment["spec"]["template"]["spec"]["volumes"][0]
    check.validate(deployment, version, strict=True)
    wrong = yaml.safe_load(bundle_of("kubernetes", "vllm").text("deployment.yaml"))
    wrong["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(check.ValidationError):
        check.validate(wrong, version, strict=True)


def test_kserve_runs_a_pod_that_kubernetes_would_take():
    """The predictor is a pod with KServe's own fields beside it."""
    check = pytest.importorskip("kubernetes_validate", reason="pip install --group validators")
    for engine in (name for name in deployable_engines() if engine_named(name).shipping.in_flight):
        service = yaml.safe_load(bundle_of("kserve", engine).text("inferenceservice.yaml"))
        pod = pod_of_predictor(service)
        value = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
        check.validate(value, "1.34", strict=True)


def test_a_bento_has_a_command_that_reads_as_python():
    text = bundle_of("bentoml", "vllm").text("service.py")
    compile(text, "service.py", "exec")
    _, words, _ = started("bentoml", bundle_of("bentoml", "vllm"), "vllm")
    assert words[:3] == ["vllm", "serve", MODEL]


@pytest.mark.parametrize("engine", deployable_engines())
def test_units_pass_systemds_own_check(engine, tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not here")
    odd = (("chat_template", 'x$HOME 100% "q" \\n y'),)
    write(RENDER["systemd"](served(tuned(engine, extra=odd))), tmp_path / "out")
    units = sorted((tmp_path / "out").glob("*.service"))
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path / 'out'}:"}

    def verified():
        return subprocess.run(
            [tool, "verify", "--man=no", *units],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip

    good = verified()
    assert (good.returncode, good.stderr) == (0, "")
    units[0].write_text(units[0].read_text().replace("ExecStart=", "ExecStrat="))
    assert verified().returncode != 0
