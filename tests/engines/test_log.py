# ruff: noqa: E501 - lines of logs
"""What the engines' logs mean. Logs named `started` are of real starts on this project's machines;
lines given here stand in the engine's own source or in logs that its users published.

Published and shortened: `tgi-3.3-published.log`, a start of the image `latest` on 2025-07-04 on two
RTX A6000, out of a public repository's notes; `tgi-3.0-cloudwatch.log`, huggingface/
text-generation-inference issue 2915, 3.0.0 on SageMaker, whose log has the escape written out."""

from pathlib import Path

import pytest

from servetune.engines import engine, plan_from_settings
from servetune.engines.log import differences, python_values, setting_value
from servetune.plan import Plan

LOGS = Path(__file__).with_name("logs")

# sglang 0.5.23: engine.py prints the arguments as a dictionary, model_runner.py, memory_pool.py,
# cuda_graph_setup.py and scheduler.py the rest.
SGLANG = """
[2026-11-20 10:00:00] server_args={'model_path': 'm', 'tp_size': 2, 'page_size': 1, \
'mem_fraction_static': 0.83, 'kv_cache_dtype': 'auto', 'port': 30000, 'cuda_graph_config': {'a': 1}}
[2026-11-20 10:00:09 TP0] Load weight end. elapsed=4.21 s, type=Qwen3ForCausalLM, avail mem=70.10 GB, \
mem usage=7.60 GB.
[2026-11-20 10:00:09 TP1] Load weight end. elapsed=5.02 s, type=Qwen3ForCausalLM, avail mem=70.10 GB, \
mem usage=7.60 GB.
[2026-11-20 10:00:10 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 441250, K size: 30.30 GB, \
V size: 30.30 GB
[2026-11-20 10:00:22 TP0] Capture decode CUDA graph end. bs=[1, 2], elapsed=8.50 s, mem usage=1.00 GB, \
avail mem=8.00 GB.
[2026-11-20 10:00:25 TP0] Capture prefill CUDA graph end. elapsed=2.25 s, mem usage=0.10 GB, avail mem=8 GB.
[2026-11-20 10:00:26 TP0] max_total_num_tokens=441250, chunked_prefill_size=8192, \
max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, available_gpu_mem=8.00 GB
"""

# https://github.com/NVIDIA/TensorRT-LLM logs of 0.17 to 1.2, as users published them.
TENSORRT_LLM = """
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480).
[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len=131072, max_num_requests=2048, max_num_tokens=8192
"""

# Lines of launchers 1.0 and 2.2, as users published them.
TGI = """
2023-08-22T18:35:50.966384Z  INFO text_generation_launcher: Args { model_id: "m", revision: None, \
num_shard: Some(4), quantize: None, max_concurrent_requests: 128, max_total_tokens: 8192, \
max_batch_prefill_tokens: 4096, hostname: "831e9d857f4c", port: 80 }
2023-08-22T18:36:10.000000Z  INFO shard-manager: text_generation_launcher: Shard ready in 5.106104s rank=0
2024-05-07T12:39:22.141566Z  INFO text_generation_router: router/src/main.rs:354: Setting max batch \
total tokens to 801568
"""

# lmdeploy 0.18: async_engine.py's line, with the fields of PytorchEngineConfig.
LMDEPLOY = """
2026-11-20 10:00:00,000 - lmdeploy - INFO - async_engine.py:133 - input backend=pytorch, \
backend_config=PytorchEngineConfig(dtype='auto', tp=2, session_len=8192, max_batch_size=64, \
cache_max_entry_count=0.8, block_size=64, eager_mode=False, enable_prefix_caching=True)
"""


def test_a_real_start_of_vllm_is_read():
    reading = engine("vllm").read_log((LOGS / "vllm-0.32-started.log").read_text())
    assert reading.kv_cache_tokens == 524_288
    assert reading.max_concurrency == 256
    assert reading.load_s == 0.01
    assert reading.engine_s == 1.24
    assert reading.version == "0.32.0"
    taken = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1024,
        "max_model_len": 2048,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "tensor_parallel_size": 1,
        "dtype": "torch.bfloat16",
        "kv_cache_dtype": "auto",
    }
    assert {name: reading.taken[name] for name in taken} == taken
    assert "port" not in reading.taken


def test_the_parts_of_vllms_start_are_read_of_the_slowest_worker():
    reading = engine("vllm").read_log("""
(VllmWorker rank=0) INFO 11-20 default_loader.py:262] Loading weights took 12.50 seconds
(VllmWorker rank=1) INFO 11-20 default_loader.py:262] Loading weights took 14.25 seconds
(VllmWorker rank=1) INFO 11-20 default_loader.py:262] Loading weights took 13.25 seconds
INFO 11-20 monitor.py:34] torch.compile takes 33.10 s in total
INFO 11-20 gpu_model_runner.py:2180] Graph capturing finished in 21 secs, took 0.53 GiB
INFO 11-20 core.py:172] init engine (profile, create kv cache, warmup model) took 71.90 seconds
""")
    assert reading.load_s == 14.25
    assert reading.compile_s == 33.1
    assert reading.capture_s == 21.0
    assert reading.engine_s == 71.9


def test_what_vllm_took_otherwise_is_named():
    vllm = engine("vllm")
    taken = vllm.taken_settings((LOGS / "vllm-0.32-started.log").read_text())
    as_asked = {"max_num_seqs": 8, "dtype": "bfloat16", "enforce_eager": True, "seed": 0}
    assert vllm.differences(plan_from_settings("vllm", "m", as_asked), taken) == {}
    otherwise = {"max_num_seqs": 16, "dtype": "half", "enforce_eager": False, "max_model_len": 2048}
    assert vllm.differences(plan_from_settings("vllm", "m", otherwise), taken) == {
        "max_num_seqs": (16, 8),
        "dtype": ("half", "torch.bfloat16"),
        "enforce_eager": (False, True),
    }


def test_a_real_start_of_llama_cpp_is_read():
    llama = engine("llama.cpp")
    reading = llama.read_log((LOGS / "llama.cpp-0.5-started.log").read_text())
    assert reading.kv_cache_tokens == 2048
    assert reading.max_concurrency == 4
    assert reading.taken == {"parallel": 4, "kv_unified": False, "ctx_size": 2048}
    plan = plan_from_settings("llama.cpp", "m.gguf", {"parallel": 8, "ctx_size": 2048})
    assert llama.differences(plan, reading.taken) == {"parallel": (8, 4)}


def test_sglangs_lines_are_read():
    sglang = engine("sglang")
    reading = sglang.read_log(SGLANG)
    assert reading.kv_cache_tokens == 441_250
    assert reading.load_s == 5.02  # of the slowest rank
    assert reading.capture_s == 10.75  # both captures
    assert reading.weights_gib == 7.6
    plan = plan_from_settings(
        "sglang", "m", {"tp_size": 2, "max_running_requests": 4096, "mem_fraction_static": 0.83}
    )
    assert sglang.differences(plan, reading.taken) == {"max_running_requests": (4096, 2048)}


def test_tensorrt_llms_lines_are_read():
    reading = engine("tensorrt-llm").read_log(TENSORRT_LLM)
    assert reading.kv_cache_tokens == 220_480
    assert reading.taken == {"max_seq_len": 131_072, "max_batch_size": 2048, "max_num_tokens": 8192}


def test_tgis_lines_are_read():
    tgi = engine("tgi")
    reading = tgi.read_log(TGI)
    assert reading.kv_cache_tokens == 801_568
    assert reading.load_s == 5.106104
    assert reading.taken["num_shard"] == 4
    assert "hostname" not in reading.taken
    plan = plan_from_settings("tgi", "m", {"num_shard": 4, "max_total_tokens": 4096})
    assert tgi.differences(plan, reading.taken) == {"max_total_tokens": (4096, 8192)}


def test_tgi_3_prints_a_setting_a_line_and_settles_the_rest():
    tgi = engine("tgi")
    reading = tgi.read_log((LOGS / "tgi-3.3-published.log").read_text())
    assert (reading.kv_cache_tokens, reading.kv_cache_blocks) == (52_125, 52_719)
    assert reading.load_s == 48.385111561
    told = {
        "num_shard": 2,
        "max_batch_prefill_tokens": 8000,
        "max_input_tokens": 7999,
        "max_total_tokens": 8000,
        "max_batch_total_tokens": 52_125,
        "max_concurrent_requests": 128,
        "waiting_served_ratio": 0.3,
        "cuda_memory_fraction": 1.0,
        "cuda_graphs": "1,2,4,8,16,32",
        "usage_stats": "on",
        "graceful_termination_timeout": 90,
        "prefix_caching": False,
        "chunked_prefill": False,
    }
    assert {name: reading.taken[name] for name in told} == told
    assert not {"quantize", "max_batch_size", "hostname", "port", "model_id"} & set(reading.taken)
    asked = Plan(
        model="m", engine="tgi", tensor_parallel=2, max_model_len=16_384, prefix_caching=True,
        chunked_prefill=True, enforce_eager=False,
    )  # fmt: skip
    assert tgi.differences(asked, reading.taken) == {
        "max_total_tokens": (16_384, 8000),
        "prefix_caching": (True, False),
        "chunked_prefill": (True, False),
    }


def test_what_cloudwatch_holds_of_tgi_is_read():
    tgi = engine("tgi")
    log = (LOGS / "tgi-3.0-cloudwatch.log").read_text()
    taken = tgi.taken_settings(log)
    assert (taken["num_shard"], taken["quantize"], taken["max_total_tokens"]) == (1, "fp8", 241_374)
    later = log.replace("Fp8", "BitsandbytesNf4").replace("241374", "4096")
    assert tgi.taken_settings(log + later)["quantize"] == "bitsandbytes-nf4"  # the last start
    assert tgi.taken_settings(log + later)["max_total_tokens"] == 4096


def test_graphs_that_tgi_did_not_capture_are_named():
    tgi = engine("tgi")
    log = "INFO text_generation_launcher: Cuda Graphs are disabled (CUDA_GRAPHS=None).\n"
    taken = tgi.taken_settings(log)
    assert taken == {"cuda_graphs": "0"}
    asked = {"enforce_eager": False}
    plan = Plan(model="m", engine="tgi", **asked)
    assert tgi.differences(plan, taken) == {"enforce_eager": (False, True)}
    assert tgi.differences(Plan(model="m", engine="tgi", enforce_eager=True), taken) == {}
    printed = "Args { cuda_graphs: Some(\n [\n 4,\n 1,\n ],\n), dtype: Some(BFloat16) }"
    assert tgi.taken_settings(printed) == {"cuda_graphs": "1,4", "dtype": "bfloat16"}


def test_sglangs_arguments_are_read_as_a_call_as_well():
    sglang = engine("sglang")
    said = (
        "[2025-03-01 10:00:00] server_args=ServerArgs(model_path='m', tp_size=4, dp_size=1, "
        "chunked_prefill_size=-1, mem_fraction_static=0.88, disable_radix_cache=True, "
        "disable_cuda_graph=True, lora_paths=None, json_model_override_args='{}')\n"
    )
    taken = sglang.taken_settings(f"\x1b[32m{said}\x1b[0m")
    assert (taken["tp_size"], taken["mem_fraction_static"]) == (4, 0.88)
    plan = Plan(
        model="m", engine="sglang", tensor_parallel=4, prefix_caching=True, chunked_prefill=True,
        enforce_eager=False,
    )  # fmt: skip
    assert sglang.differences(plan, taken) == {
        "disable_radix_cache": (False, True),
        "disable_cuda_graph": (False, True),
        "chunked_prefill_size": (None, -1),
    }


def test_lmdeploys_line_is_read():
    lmdeploy = engine("lmdeploy")
    plan = plan_from_settings(
        "lmdeploy", "m", {"tp": 2, "max_batch_size": 128, "cache_block_seq_len": 64}
    )
    taken = lmdeploy.taken_settings(LMDEPLOY)
    assert lmdeploy.differences(plan, taken) == {"max_batch_size": (128, 64)}


@pytest.mark.parametrize(
    ("name", "line", "kind", "words"),
    [
        (
            "sglang",
            "ValueError: Not enough memory. Please try to increase --mem-fraction-static.",
            "out_of_memory",
            "no memory is left for the KV cache",
        ),
        (
            "sglang",
            "RuntimeError: Decode out of memory. Try to lower your batch size.",
            "out_of_memory",
            "during Decode",
        ),
        (
            "sglang",
            "sglang: error: unrecognized arguments: --tpx=2",
            "unknown_argument",
            "SGLang does not know --tpx=2",
        ),
        (
            "tensorrt-llm",
            "Error: No such option: --tpx Did you mean --tp_size?",
            "unknown_argument",
            "trtllm-serve does not know --tpx",
        ),
        (
            "tensorrt-llm",
            "ValueError: No GPU devices found on the node",
            "too_few_devices",
            "there is no GPU here",
        ),
        (
            "tgi",
            "error: unexpected argument '--tpx' found",
            "unknown_argument",
            "text-generation-launcher does not know --tpx",
        ),
        (
            "tgi",
            'Error: Warmup(Generation("Not enough memory to handle 4096 prefill tokens. You need',
            "out_of_memory",
            "a batch of 4096 tokens does not fit",
        ),
        (
            "llama.cpp",
            "error: invalid argument: --no-such",
            "unknown_argument",
            "llama-server does not know --no-such",
        ),
        (
            "llama.cpp",
            'error while handling argument "--ctx-size": stoi',
            "bad_argument",
            "llama-server refuses --ctx-size: stoi",
        ),
        (
            "llama.cpp",
            "llama_init_from_model: failed to initialize the context: n_seq_max must be <= 256",
            "too_many_sequences",
            "at most 256 sequences",
        ),
        (
            "llama.cpp",
            "E gguf_init_from_file: failed to open GGUF file '/no.gguf' (No such file)",
            "model_not_found",
            "the model file /no.gguf cannot be read",
        ),
        (
            "lmdeploy",
            "lmdeploy: error: argument --dtype: invalid choice: 'x'",
            "bad_argument",
            "LMDeploy refuses --dtype",
        ),
        (
            "transformers",
            "Error: No such option '--no-such-thing'.",
            "unknown_argument",
            "transformers serve does not know --no-such-thing",
        ),
        (
            "transformers",
            "ImportError: Missing dependencies for serving. Install with `pip",
            "not_installed",
            "without what it serves with",
        ),
        (
            "max",
            "Error: No such option: --max-batch",
            "unknown_argument",
            "max serve does not know --max-batch",
        ),
    ],
)
def test_why_an_engine_ended_is_reported(name, line, kind, words):
    cause = engine(name).explain(f"INFO start\n{line}\n", 1)
    assert cause.kind == kind
    assert words in cause.message
    assert cause.hint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("8,192", 8192),
        ("0.9", 0.9),
        ("1e-05", "1e-05"),
        ("True", True),
        ("false", False),
        ("None", None),
        ("Some(4)", 4),
        ('Some("gptq")', "gptq"),
        ("'half'", "half"),
    ],
)
def test_values_are_read_as_logs_write_them(text, value):
    assert setting_value(text) == value


def test_scalars_of_a_printed_object_are_read_and_the_rest_passed_over():
    assert python_values("Args(a=1, b='x y', c=[1, 2], d={'e': 2}, f=None)") == {
        "a": 1,
        "b": "x y",
        "e": 2,
        "f": None,
    }


def test_what_was_left_to_the_engine_is_not_judged():
    assert differences({"a": "auto", "b": None, "c": 1}, {"a": 5, "b": 6}) == {}
    assert differences({"share": 0.9}, {"share": 0.9000000001}) == {}
    assert differences({"dtype": "float"}, {"dtype": "torch.float32"}) == {}
    assert differences({"on": True}, {"on": 1}) == {"on": (True, 1)}
