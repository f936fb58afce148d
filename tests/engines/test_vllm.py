import textwrap
from pathlib import Path

import pytest

from servetune.engines import engine
from servetune.engines.translate import plan_from_settings
from servetune.errors import EngineError, PlanError
from servetune.plan.plan import Plan

LOGS = Path(__file__).with_name("logs")


@pytest.fixture
def vllm():
    return engine("vllm")


def executable_at(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho 9.8.7+fake\n")
    path.chmod(0o755)
    return path


def test_the_command_says_everything_the_plan_chose_and_nothing_else(vllm):
    plan = Plan(
        model="Qwen/Qwen3-4B",
        tensor_parallel=4,
        pipeline_parallel=2,
        data_parallel=2,
        expert_parallel=True,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=4096,
        gpu_memory_fraction=0.92,
        block_tokens=32,
        dtype="bfloat16",
        quantization="fp8",
        kv_cache_dtype="fp8",
        prefix_caching=False,
        chunked_prefill=True,
        enforce_eager=True,
        extra=(
            ("disable_log_stats", False),
            ("max_parallel_loading_workers", None),
            ("speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
        ),
    )
    assert vllm.command(plan, host="127.0.0.1", port=8000) == (
        "vllm",
        "serve",
        "Qwen/Qwen3-4B",
        "--host",
        "127.0.0.1",
        "--port",
        "8000",
        "--tensor-parallel-size=4",
        "--pipeline-parallel-size=2",
        "--data-parallel-size=2",
        "--enable-expert-parallel",
        "--max-num-seqs=256",
        "--max-num-batched-tokens=8192",
        "--max-model-len=4096",
        "--gpu-memory-utilization=0.92",
        "--block-size=32",
        "--dtype=bfloat16",
        "--quantization=fp8",
        "--kv-cache-dtype=fp8",
        "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
        "--enforce-eager",
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 3}',
    )


def test_the_smallest_plan_names_its_degree_of_parallelism(vllm):
    command = vllm.command(Plan(model="m"), host="::1", port=1, executable=("python", "-m", "v"))
    words = ("python", "-m", "v", "serve", "m", "--host", "::1", "--port", "1")
    assert command == (*words, "--tensor-parallel-size=1")


def test_server_arguments_are_spelt_as_in_the_records_of_llm_optimizer(vllm):
    settings = {"tensor_parallel_size": 4, "max_num_batched_tokens": 8192}
    assert vllm.server_cmd_args(settings) == [
        "--tensor-parallel-size=4",
        "--max-num-batched-tokens=8192",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("enable_prefix_caching", ["--no-enable-prefix-caching"]),
        ("async-scheduling", ["--no-async-scheduling"]),
        ("disable_log_stats", []),  # a switch without a negative form: False is its absence
        ("a_switch_of_next_year", ["--no-a-switch-of-next-year"]),
    ],
)
def test_false_is_the_negative_form_where_there_is_one(vllm, name, words):
    assert vllm.server_cmd_args({name: False}) == words


@pytest.mark.parametrize("name", ["port", "host", "model", "uds"])
def test_what_servetune_decides_cannot_be_set_a_second_time(vllm, name):
    plan = plan_from_settings("vllm", "m", {name: "x"})
    with pytest.raises(PlanError, match=f"{name} is decided by servetune"):
        vllm.command(plan, host="127.0.0.1", port=8000)


def test_the_table_of_arguments_types_the_values_of_a_sweep(vllm):
    types = vllm.argument_types()
    assert vllm.known_versions == ("0.33.0", "0.32.0", "0.31.0")
    assert types.keys() >= vllm.known_arguments
    assert len(types) > 300
    wanted = {
        "tensor_parallel_size": int,
        "max_num_batched_tokens": int,
        "max_lora_rank": int,
        "gpu_memory_utilization": float,
        "cpu_offload_gb": float,
        "enable_prefix_caching": bool,
        "disable_log_stats": bool,
        "kv_cache_dtype": str,
        "speculative_config": str,
        "compilation_config": str,
    }
    assert {name: types[name] for name in wanted} == wanted
    assert {"speculative_config", "compilation_config"} <= vllm.json_arguments
    assert "kv_cache_dtype" not in vllm.json_arguments


def test_every_name_of_the_dialect_is_an_argument_of_vllm(vllm):
    assert vllm.words.fields.keys() <= vllm.known_arguments


def test_the_executable_is_the_given_one_then_the_variables_then_the_paths(vllm, tmp_path):
    given, variable, on_path = (
        str(executable_at(tmp_path / folder / "vllm")) for folder in ("given", "variable", "path")
    )
    environ = {"PATH": str(tmp_path / "path"), "SERVETUNE_VLLM": variable}
    assert vllm.find_executable(given, environ=environ) == (given,)
    assert vllm.find_executable(environ=environ) == (variable,)
    del environ["SERVETUNE_VLLM"]
    assert vllm.find_executable(environ=environ) == (on_path,)


def test_without_vllm_the_error_says_how_to_get_it(vllm, tmp_path):
    with pytest.raises(EngineError, match="vLLM is not installed here") as caught:
        vllm.find_executable(environ={"PATH": str(tmp_path)})
    assert "pip install vllm" in caught.value.hint
    assert "SERVETUNE_VLLM" in caught.value.hint


def test_a_named_executable_that_is_none_is_not_replaced_by_another(vllm, tmp_path):
    executable_at(tmp_path / "vllm")
    environ = {"PATH": str(tmp_path), "SERVETUNE_VLLM": "/nowhere/vllm"}
    with pytest.raises(EngineError, match="SERVETUNE_VLLM names no executable: /nowhere/vllm"):
        vllm.find_executable(environ=environ)


@pytest.mark.parametrize(
    "shebang",
    [
        "#!{python}\nimport sys\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_the_version_is_read_beside_the_interpreter_that_the_script_names(vllm, tmp_path, shebang):
    metadata = tmp_path / "env/lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    script = executable_at(tmp_path / "elsewhere/bin/vllm")
    script.write_text(shebang.format(python=tmp_path / "env/bin/python3"))
    assert vllm.version((str(script),)) == "0.32.0+cpu"


def test_a_vllm_without_metadata_is_asked_for_its_version(vllm, tmp_path):
    assert vllm.version((str(executable_at(tmp_path / "bin/vllm")),)) == "9.8.7+fake"
    assert vllm.version(("/nowhere/vllm",)) is None


@pytest.mark.parametrize(
    ("log", "kind", "message"),
    [
        ("unknown_argument", "unknown_argument", "vLLM does not know --no-such-flag=1"),
        (
            "bad_argument",
            "bad_argument",
            "vLLM refuses --max-num-seqs: invalid int value: 'many'",
        ),
        (
            "model_folder_missing",
            "model_not_found",
            "the model folder /nonexistent/model does not exist",
        ),
        (
            "model_not_on_hub",
            "model_not_found",
            "the model cannot be loaded from the hub: Cannot find an appropriate cached",
        ),
        (
            "context_too_long",
            "context_too_long",
            "max_model_len 100000 is more than the 8192 tokens that the model was made for",
        ),
        (
            "budget_below_context",
            "budget_below_context",
            "without chunked prefill, max_num_batched_tokens (256) must reach max_model_len (2048)",
        ),
        (
            "heads_not_divisible",
            "heads_not_divisible",
            "8 attention heads cannot be split over tensor_parallel_size 3",
        ),
        (
            "block_size_16",
            "block_size_unsupported",
            "block_size 16 does not suit the attention backend (CPU_ATTN: [MultipleOf(32)])",
        ),
        ("no_cache_memory", "no_cache_memory", "no memory is left for the KV cache"),
        (
            "cache_larger_than_memory",
            "no_cache_memory",
            "the KV cache wants 100.0 GiB and 4.62 GiB of memory are free",
        ),
        (
            "illegal_instruction",
            "illegal_instruction",
            "its worker VllmWorker-0 died of an instruction",
        ),
        (
            "cpu_memory_busy",
            "out_of_memory",
            "only 19.82 of 23.54 GiB of memory are free at the start, and it wants 21.66",
        ),
        (
            "numa_bind_failed",
            "numa_bind_failed",
            "2 CPU workers need a NUMA node each, and the machine offers [0]",
        ),
        ("port_in_use", "port_in_use", "its port is already in use"),
    ],
)
def test_recorded_failures_of_vllm_are_explained(vllm, log, kind, message):
    cause = vllm.explain((LOGS / f"vllm-0.32-{log}.log").read_text(), 1)
    assert cause.kind == kind
    assert cause.message.startswith(message)
    assert cause.hint


# Wordings of vLLM's and PyTorch's sources, for failures that this project's machines
# without a GPU cannot provoke.
@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0",
            "out_of_memory",
            "the GPU is out of memory (Tried to allocate 2.32 GiB)",
        ),
        (
            "RuntimeError: CUDA error: out of memory",
            "out_of_memory",
            "the GPU is out of memory",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3.21/22.03 GiB) on startup is {gpu}",
            "out_of_memory",
            "only 3.21 of 22.03 GiB of device memory are free at the start",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (8), {kv}",
            "context_exceeds_cache",
            "one sequence of max_model_len 8 needs 36.00 GiB of KV cache and 9.75 GiB are left",
        ),
        (
            "ValueError: World size (8) is larger than the number of available GPUs (4)",
            "too_few_devices",
            "the plan needs 8 GPUs and 4 are visible",
        ),
        (
            "RuntimeError: [alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory: you",
            "out_of_memory",
            "the machine is out of memory",
        ),
    ],
)
def test_failures_of_gpus_are_explained(vllm, line, kind, message):
    line = line.format(
        gpu="less than desired GPU memory utilization (0.92, 20.27 GiB).",
        kv="(36.00 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(9.75 GiB).",
    )
    after = "RuntimeError: Engine core initialization failed. See root cause above."
    cause = vllm.explain(f"INFO loading\n(EngineCore pid=7) ERROR {line}\n{after}\n", 1)
    assert (cause.kind, cause.message) == (kind, message)


def test_an_unknown_failure_is_its_root_error_not_the_echo_of_it(vllm):
    log = textwrap.dedent("""
        (EngineCore pid=7) ERROR 11-20 [core.py:1510] KeyError: 'layers.3.widget'
        RuntimeError: Engine core initialization failed. See root cause above.
        \x1b[33mshutting down\x1b[0m
    """)
    cause = vllm.explain(log, 1)
    assert (cause.kind, cause.message) == ("unknown", "KeyError: 'layers.3.widget'")
