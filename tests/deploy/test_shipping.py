"""Images, programs and accelerators that the engines' folders declare, as targets write them."""

import pytest
import yaml
from rendered import MODEL, RENDER, served, started

from servetune.deploy.launchers import deployable_engines, shipping_of
from servetune.engines import engine
from servetune.errors import CannotRender
from servetune.plan import Plan

IMAGES = {
    ("vllm", "0.26.0"): "vllm/vllm-openai:v0.26.0",
    ("vllm", "0.32"): "vllm/vllm-openai:v0.32.0",
    ("vllm", "v0.11.2"): "vllm/vllm-openai:v0.11.2",
    ("sglang", "0.5.16"): "lmsysorg/sglang:v0.5.16",
    ("tgi", "3.3.5"): "ghcr.io/huggingface/text-generation-inference:3.3.5",
    ("tensorrt-llm", "1.2.1"): "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    ("lmdeploy", "0.16.0"): "openmmlab/lmdeploy:v0.16.0",
    ("llama.cpp", "0.4.1"): "ghcr.io/ggml-org/llama.cpp:server-cuda-v0.4.1",
    ("llama.cpp", "b9246"): "ghcr.io/ggml-org/llama.cpp:server-cuda-b9246",
    ("llama.cpp", "9246"): "ghcr.io/ggml-org/llama.cpp:server-cuda-b9246",
    ("max", "26.4.0"): "modular/max-nvidia-full:26.4.0",
    ("vllm-neuron", "0.24.0.1.1.0"): "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:"
    "0.24.0.1.1.0-neuronx-py313-sdk2.32.0-ubuntu24.04",
}
WITHOUT_IMAGE = {"mlc-llm", "transformers"}


@pytest.mark.parametrize(("name", "version"), IMAGES)
def test_a_version_is_in_the_image_that_its_project_tags_so(name, version):
    assert shipping_of(engine(name)).builds[0].image(version) == IMAGES[name, version]


def test_every_deployable_engine_has_an_image_or_none_is_published():
    assert {name for name, _ in IMAGES} | WITHOUT_IMAGE == set(deployable_engines())
    for name in WITHOUT_IMAGE:
        assert not any(build.image("1.0") for build in shipping_of(engine(name)).builds)


def test_a_measured_version_without_a_neuron_image_is_said():
    plan = Plan(model=MODEL, engine="vllm-neuron")
    assert not any("no image is known" in text for text in served(plan).warnings)
    unknown = served(plan, image="registry.example/neuron:0.1.2")
    assert any("no image is known with vllm-neuron 0.1.2" in text for text in unknown.warnings)


def test_a_program_off_the_path_is_started_by_its_place_in_containers_alone():
    plan = Plan(model=MODEL, engine="llama.cpp")
    for target in ("compose", "kubernetes", "kserve"):
        _, words, _ = started(target, RENDER[target](served(plan)), "llama.cpp")
        assert words[0] == "/app/llama-server"
    _, words, _ = started("command", RENDER["command"](served(plan, mounts=False)), "llama.cpp")
    assert words[0] == "llama-server"


def test_a_folder_is_read_as_a_file_by_llama_cpp():
    made = served(Plan(model=MODEL, engine="llama.cpp"), model_source="/data/qwen.gguf")
    assert made.words[:2] == ("--model", "/models/served")


def test_ranks_on_neuron_are_cores_of_which_a_chip_has_four():
    made = served(Plan(model=MODEL, engine="vllm-neuron", tensor_parallel=8, replicas=2))
    limits = yaml.safe_load(RENDER["kubernetes"](made).text("deployment.yaml"))["spec"]
    container = limits["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"aws.amazon.com/neuron": 2}
    services = yaml.safe_load(RENDER["compose"](made).text("compose.yaml"))["services"]
    second = list(services.values())[1]
    assert second["devices"] == ["/dev/neuron2:/dev/neuron2", "/dev/neuron3:/dev/neuron3"]
    assert "deploy" not in second
    script = RENDER["command"](made).text("serve-2.sh")
    assert "export NEURON_RT_VISIBLE_CORES=8,9,10,11,12,13,14,15" in script


def test_devices_of_gpus_are_reserved_by_number():
    made = served(Plan(model=MODEL, engine="lmdeploy", tensor_parallel=2, replicas=2))
    services = yaml.safe_load(RENDER["compose"](made).text("compose.yaml"))["services"]
    reserved = list(services.values())[1]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == [{"driver": "nvidia", "device_ids": ["2", "3"], "capabilities": ["gpu"]}]


def test_limits_of_processes_are_those_that_the_project_asks_for():
    made = served(Plan(model=MODEL, engine="tensorrt-llm"))
    (service,) = yaml.safe_load(RENDER["compose"](made).text("compose.yaml"))["services"].values()
    assert service["ulimits"] == {"memlock": -1, "stack": 67108864}
    usual = served(Plan(model=MODEL))
    (service,) = yaml.safe_load(RENDER["compose"](usual).text("compose.yaml"))["services"].values()
    assert "ulimits" not in service


def test_rows_and_layers_at_once_are_refused():
    plan = Plan(model=MODEL, engine="llama.cpp", tensor_parallel=2, pipeline_parallel=2)
    with pytest.raises(CannotRender, match="splits rows or layers"):
        served(plan)
