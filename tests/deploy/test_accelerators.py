"""Every target with every engine on every kind of device: what is written, and what is refused."""

import re

import pytest
import yaml
from msgspec import structs
from rendered import MODEL, RENDER, has_words, served, tuned

from servetune.deploy.accelerators import families, family_of
from servetune.deploy.containers import usual_container
from servetune.deploy.endpoint import EndpointOptions, endpoint_of
from servetune.deploy.launchers import deployable_engines
from servetune.deploy.targets import CONTAINER_TARGETS, TARGETS, refusal
from servetune.engines import engine as engine_named
from servetune.errors import CannotRender
from servetune.hardware import device, device_names, instance, instances
from servetune.plan.plan import Plan

#: The first device of every architecture of the catalogue.
DEVICES = list({device(name).architecture: name for name in reversed(device_names())}.values())


def on(engine, name, **more):
    """The engine's simplest plan on a device, in its own image."""
    return served(Plan(model=MODEL, engine=engine), device=name, **{"image": None, **more})


@pytest.mark.parametrize("engine", deployable_engines())
@pytest.mark.parametrize("target", [name for name in TARGETS if name != "sagemaker"])
def test_the_table_says_what_the_renderers_do(target, engine):
    """Walks every target, engine and architecture; the error is the table's sentence."""
    for name in DEVICES:
        why = refusal(target, engine, device(name))
        mounts = target in CONTAINER_TARGETS
        if why is None:
            assert RENDER[target](on(engine, name, mounts=mounts)).files
            continue
        with pytest.raises(CannotRender) as caught:
            RENDER[target](on(engine, name, mounts=mounts))
        assert (caught.value.message, caught.value.hint) == (why.message, why.hint)
        assert why.hint


@pytest.mark.parametrize("name", instances("sagemaker"))
def test_sagemaker_takes_its_containers_to_nvidia_gpus_alone(name):
    node = instance(name, service="sagemaker")
    why = refusal("sagemaker", "vllm", node.device)
    options = EndpointOptions(nodes=(node,))
    if node.device.vendor == "NVIDIA":
        assert why is None
        assert endpoint_of(Plan(model=MODEL), options)
    else:
        with pytest.raises(CannotRender, match=f"{node.name}.*{node.device.name}") as caught:
            endpoint_of(Plan(model=MODEL), options)
        assert "off SageMaker" in caught.value.hint
        assert "images for NVIDIA GPUs alone" in why.message


#: The cheapest-named instance of every kind of device that SageMaker has.
HOSTED = {
    instance(name, service="sagemaker").device.architecture: name
    for name in reversed(instances("sagemaker"))
}


@pytest.mark.parametrize("engine", deployable_engines())
def test_the_table_says_what_sagemaker_takes(engine):
    """Walks every engine and kind of device that SageMaker has, as the other table is walked."""
    usual = {"max_num_seqs": 8, "max_num_batched_tokens": 8192, "gpu_memory_fraction": 0.9}
    fields = {name: value for name, value in usual.items() if has_words(engine, name, value)}
    for name in HOSTED.values():
        node = instance(name, service="sagemaker")

        def made(node=node):
            container = usual_container(engine)
            plan = Plan(model=MODEL, engine=engine, **fields)
            return endpoint_of(plan, EndpointOptions(nodes=(node,), container=container))

        why = refusal("sagemaker", engine, node.device)
        if why is None:
            assert made().image_uri
            continue
        with pytest.raises(CannotRender) as caught:
            made()
        named = re.sub("^.* has images", "has images", caught.value.message)
        assert why.message.endswith(named)
        assert why.hint == caught.value.hint


def test_a_fallback_of_another_family_is_refused_too():
    nodes = tuple(
        instance(name, service="sagemaker") for name in ("ml.g5.12xlarge", "ml.trn1.32xlarge")
    )
    with pytest.raises(CannotRender, match=r"ml\.trn1\.32xlarge has images|on ml\.trn1"):
        endpoint_of(Plan(model=MODEL), EndpointOptions(nodes=nodes))


@pytest.mark.parametrize(
    ("engine", "name", "image"),
    [
        ("vllm", "MI300X", "vllm/vllm-openai-rocm:v0.26.0"),
        ("sglang", "MI325X", "lmsysorg/sglang:v0.5.16-rocm720-mi30x"),
        ("sglang", "MI355X", "lmsysorg/sglang:v0.5.16-rocm720-mi35x"),
        ("tgi", "MI300X", "ghcr.io/huggingface/text-generation-inference:3.3.5-rocm"),
        ("llama.cpp", "MI300X", "ghcr.io/ggml-org/llama.cpp:server-rocm-v0.5.0"),
        ("llama.cpp", "CPU", "ghcr.io/ggml-org/llama.cpp:server-v0.5.0"),
        ("vllm", "CPU", "vllm/vllm-openai-cpu:v0.26.0"),
        ("max", "MI300X", "modular/max-amd:26.7.0"),
    ],
)
def test_each_kind_of_device_gets_its_image(engine, name, image):
    assert on(engine, name).image == image


def test_amd_gpus_are_asked_for_by_their_names():
    made = served(tuned("vllm"), device="MI300X")
    pod = next(yaml.safe_load_all(RENDER["kubernetes"](made).text("deployment.yaml")))
    container = pod["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"amd.com/gpu": 2}
    services = yaml.safe_load(RENDER["compose"](made).text("compose.yaml"))["services"]
    second = list(services.values())[1]
    assert second["devices"] == ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"]
    assert second["group_add"] == ["video"]
    assert second["environment"]["HIP_VISIBLE_DEVICES"] == "2,3"
    assert "nvidia" not in str(services)
    unit = RENDER["systemd"](served(tuned("vllm"), device="MI300X", mounts=False))
    text = unit.text("qwen-qwen3-4b-2.service")
    assert '"HIP_VISIBLE_DEVICES=2,3"' in text
    assert "nvidia" not in text


def test_an_image_that_is_known_to_be_of_another_kind_is_refused():
    with pytest.raises(CannotRender, match="is for cuda, and AMD MI300X runs images for rocm"):
        on("vllm", "MI300X", image="vllm/vllm-openai:v0.26.0")
    assert on("vllm", "MI300X", image="registry.example/vllm:0.26.0").image


def test_every_device_of_the_catalogue_has_a_family_or_is_refused():
    assert all(family_of(device(name)) for name in device_names())
    other = structs.replace(device("L4"), vendor="Other", architecture="other")
    assert "do not know how" in refusal("compose", "vllm", other).message
    assert "(cmd)" in refusal("command", "vllm", other).hint
    products = {name for each in families() for name in each.products}
    assert products <= set(device_names())
    assert all(each.source and each.date for each in families())
    assert all(set(each.unverified) <= set(each.products) for each in families())


@pytest.mark.parametrize("name", ["Gaudi 3", "TPU v6e", "Intel Max 1550", "Ascend 910B2"])
def test_devices_of_other_vendors_are_served_by_a_process_of_the_machine(name):
    """Containers are refused with the targets that run it, also with an image of one's own."""
    made = on("vllm", name, mounts=False)
    script = RENDER["command"](made).text("serve.sh")
    assert "vllm serve" in script.replace("\\\n  ", "")
    assert "VISIBLE" not in script
    readme = RENDER["systemd"](made).text("README.md")
    assert f"its build for {family_of(device(name)).title}" in readme
    assert ", 1 copy." in readme  # and no image
    for more in ({}, {"image": "registry.example/vllm:0.26.0"}):
        with pytest.raises(CannotRender, match="how a container asks for") as caught:
            on("vllm", name, **more)
        assert "deploy systemd and command run vLLM" in caught.value.hint
    with pytest.raises(CannotRender, match="limited to some of several") as caught:
        on("vllm", name, mounts=False, copies=2)
    assert "--copies 1" in caught.value.hint
    with pytest.raises(CannotRender, match="TensorRT-LLM has no build for"):
        on("tensorrt-llm", name, mounts=False)


def test_an_engine_without_a_container_names_the_targets_that_deploy_it():
    why = refusal("sagemaker", "vllm-neuron", device("Trainium2"))
    assert why.hint == "servetune deploy kubernetes, kserve, compose, systemd, command run it"
    assert "bentoml run it" in refusal("sagemaker", "lmdeploy", device("L4")).hint
    for name in ("vllm-neuron", "tensorrt-llm", "llama.cpp", "lmdeploy"):
        known = "Trainium2" if name == "vllm-neuron" else "L4"
        assert not any(
            refusal(target, name, device(known)) for target in ("compose", "command", "kubernetes")
        )
        assert engine_named(name).shipping.builds[0].repository
