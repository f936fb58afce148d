import shlex
from pathlib import Path

import pytest

from servetune.engines import engine
from servetune.plan import Plan
from servetune.servers.launchers import Container
from servetune.trials.launch import EngineProgram, Launch, server_command, version_of
from servetune.trials.startup import startup_of, taken_otherwise_in

ENGINE_LOGS = Path(__file__).parents[1] / "engines" / "logs"
PLAN = Plan(model="m", tensor_parallel=2, max_num_seqs=8)
SETTINGS = {"tensor_parallel_size": 2, "max_num_seqs": 8}


def command(**launch):
    words = server_command(
        EngineProgram(engine=engine("vllm")),
        PLAN,
        Launch(**launch),
        settings=SETTINGS,
        port=8123,
    )
    return shlex.join(words)


def test_the_engines_own_command_is_used():
    assert command() == (
        "vllm serve m --host 127.0.0.1 --port 8123 --tensor-parallel-size=2 --max-num-seqs=8"
    )


def test_it_is_in_the_words_of_the_version_that_is_started():
    def words(version):
        return server_command(
            EngineProgram(engine=engine("max"), version=version),
            Plan(model="m", engine="max"),
            Launch(),
            settings={},
            port=8123,
        )

    assert words("26.7.0")[-4:] == ("--host", "127.0.0.1", "--port", "8123")
    assert "--host" not in words("26.6.0"), "which does not know it"


def test_a_switch_is_turned_off_as_the_version_has_it():
    """A guess would stop the server, or, worse, silently measure another setting."""

    def last(version):
        plan = Plan(model="m.gguf", engine="llama.cpp", extra=(("mmap", False),))
        one = engine("llama.cpp")
        return one.command(plan, host="h", port=1, version=version)[-1]

    assert last("0.1.0") == "--no-mmap"
    assert "mmap" not in engine("llama.cpp").settings("0.5.0").settings


@pytest.mark.parametrize(
    ("image", "engine_name", "version"),
    [
        ("vllm/vllm-openai:v0.31.0", "vllm", "0.31.0"),
        ("vllm/vllm-openai:v0.31.0@sha256:" + 64 * "a", "vllm", "0.31.0"),
        ("registry:5000/vllm-openai:nightly", "vllm", None),
        ("lmsysorg/sglang:v0.5.21.post1-cu129", "sglang", "0.5.21.post1"),
        ("ghcr.io/huggingface/text-generation-inference:3.3.5", "tgi", "3.3.5"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.1.0rc5", "tensorrt-llm", "1.1.0rc5"),
        ("modular/max-nvidia-full:26.6.0", "max", "26.6.0"),
        ("me/translator:1.2.3", "vllm", None),
        ("vllm/vllm-openai", "vllm", None),
    ],
)
def test_an_engines_image_tells_its_version_by_its_tag(image, engine_name, version):
    launch = Launch(container=Container(image=image))
    assert version_of(engine(engine_name), launch, ()) == version


def test_settings_that_the_server_took_otherwise_are_reported():
    told = {"taken_otherwise": {"max_num_seqs": {"asked": 256, "taken": 128}}}
    assert taken_otherwise_in(told) == ["max_num_seqs=256 was asked, and the server took 128"]
    assert taken_otherwise_in({"load_s": 1.0}) == []


def test_what_tgi_settled_at_its_start_is_recorded_and_named():
    plan = Plan(model="m", engine="tgi", tensor_parallel=2, max_model_len=16_384)
    said = startup_of(engine("tgi"), plan, ENGINE_LOGS / "tgi-3.3-published.log")
    assert said["kv_cache_tokens"] == 52_125
    assert said["load_s"] == 48.385111561
    assert taken_otherwise_in(said) == [
        "max_total_tokens=16384 was asked, and the server took 8000"
    ]
    assert said["settled"] == {  # of what the plan left open
        "max_num_batched_tokens": 8000,
        "prefix_caching": False,
        "chunked_prefill": False,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("serve {model} --port {port}", "serve m --port 8123"),
        ("serve --port={port} --host {host}", "serve --port=8123 --host 127.0.0.1"),
        ("serve m", "serve m --host 127.0.0.1 --port 8123"),
        ("serve 'a b'", "serve 'a b' --host 127.0.0.1 --port 8123"),
    ],
)
def test_the_users_command_gets_what_it_leaves_out_and_the_settings(given, expected):
    tail = " --tensor-parallel-size=2 --max-num-seqs=8"
    assert command(server_cmd=given) == expected + tail
