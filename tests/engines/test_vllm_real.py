"""Real vLLM on a tiny random model: `make test-engine`, or

SERVETUNE_VLLM=.venv-vllm/bin/vllm SERVETUNE_TINY_MODEL=.cache/tiny-qwen3 pytest -m engine

That one starts, takes its settings and leaves nothing is in tests/contracts; one that runs is
asked in tests/e2e/test_real_bench.py, where others need it too.
"""

import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from servetune.engines import engine
from servetune.engines.translate import plan_from_settings
from servetune.errors import EngineDied
from servetune.servers import free_port, server_of

READY_S = 400.0
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

pytestmark = pytest.mark.engine


def required(variable):
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    return str(Path(value).absolute())


@pytest.fixture
def server(tmp_path):
    """Make the server of some settings; both variables are needed."""
    executable, model = (required(name) for name in ("SERVETUNE_VLLM", "SERVETUNE_TINY_MODEL"))

    def make(**settings):
        settings = {"enforce_eager": True, "max_model_len": 2048, "dtype": "float32", **settings}
        return server_of(
            engine("vllm"),
            plan_from_settings("vllm", model, settings),
            log_path=tmp_path / "vllm.log",
            port=free_port(),
            executable=(executable,),
            environment=ENVIRONMENT,
        )

    return make


def test_a_real_vllm_that_cannot_run_a_plan_is_explained(server):
    one = server(tensor_parallel_size=3)
    with one, pytest.raises(EngineDied, match="8 attention heads cannot be split") as caught:
        one.wait_ready(READY_S)
    assert caught.value.exit_code_of_server == 1
    assert "ValidationError" in caught.value.log_tail


def test_the_version_of_a_real_vllm_is_found(server):
    command = (required("SERVETUNE_VLLM"),)
    assert engine("vllm").version(command)


def test_the_golden_command_lines_go_through_the_real_parser():
    """Every golden of this version, read by vLLM itself; no server is started."""
    python = Path(required("SERVETUNE_VLLM")).with_name("python")
    golden = Path(__file__).parents[1] / "golden" / "argv" / "vllm.json"
    script = textwrap.dedent(f"""
        import importlib, json
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        for name in ("launchers", "common", "openai"):
            try:
                module = importlib.import_module(f"vllm.entrypoints.{{name}}.cli_args")
                make = module.make_arg_parser
                break
            except (ImportError, AttributeError):
                continue
        parser = make(FlexibleArgumentParser())
        read = 0
        for case in json.load(open({str(golden)!r}))["0.32.0"]["cases"].values():
            parsed = parser.parse_args(case["argv"][2:])
            for field, name in {{"max_num_seqs": "max_num_seqs", "tensor_parallel":
                    "tensor_parallel_size", "prefix_caching": "enable_prefix_caching",
                    "enforce_eager": "enforce_eager", "block_tokens": "block_size"}}.items():
                if field in case["plan"]:
                    assert getattr(parsed, name) == case["plan"][field], (name, case)
                    read += 1
        print("read", read)
    """)
    ran = subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=False, timeout=200
    )
    assert "read 8" in ran.stdout, ran.stderr[-2000:]
