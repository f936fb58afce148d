"""TensorRT-LLM: `trtllm-serve MODEL`, whose options keep their underscores."""

from __future__ import annotations

from servetune.engines.cause import Symptom
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.log import Fact
from servetune.engines.program import Program
from servetune.engines.tensorrt_llm.behaviour import BEHAVIOUR
from servetune.engines.tensorrt_llm.declarations import DECLARATIONS
from servetune.engines.tensorrt_llm.words import WORDS


class TensorrtLlm(CommandLineEngine):
    """TensorRT-LLM 1.0 and later, with its PyTorch backend.

    Its `/metrics` are statistics of single steps as JSON, not counters in Prometheus' form, so
    nothing is scraped. What its command line has no option for is set by a YAML file, which
    `extra_llm_api_options` names.
    """

    name = "tensorrt-llm"
    image_word = "tensorrt-llm"
    words = WORDS
    declarations = DECLARATIONS
    behaviour = BEHAVIOUR
    program = Program(
        title="TensorRT-LLM",
        command="trtllm-serve",
        variable="SERVETUNE_TRTLLM",
        install="pip install tensorrt_llm",
        packages=("tensorrt_llm", "tensorrt-llm"),
    )
    metrics_path = None
    underscored = True
    symptoms = (
        Symptom(
            "unknown_argument",
            r"No such option:? '?(?P<words>-[\w-]+)",
            "trtllm-serve does not know {words}",
            "see `trtllm-serve serve --help` of the installed version",
        ),
        Symptom(
            "bad_argument",
            r"Error: Invalid value for (?P<words>[^\n]+)",
            "trtllm-serve refuses {words}",
            "see `trtllm-serve serve --help` of the installed version",
        ),
        Symptom(
            "too_few_devices",
            r"No GPU devices found on the node",
            "there is no GPU here",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES",
        ),
        Symptom(
            "out_of_memory",
            r"Executor worker returned error[^\n]*out of memory|cudaMalloc[^\n]*out of memory",
            "the GPU is out of memory",
            "lower kv_cache_free_gpu_memory_fraction, max_batch_size or max_num_tokens",
        ),
    )
    # Lines of logs that others published for 0.17 to 1.2; none could be made here.
    facts = (
        Fact("kv_cache_tokens", r"for max tokens in paged KV cache \((\d+)\)", "max"),
        Fact("taken.max_seq_len", r"max_seq_len=(\d+), max_num_requests="),
        Fact("taken.max_batch_size", r"max_seq_len=\d+, max_num_requests=(\d+)"),
        Fact("taken.max_num_tokens", r"max_num_requests=\d+, max_num_tokens=(\d+)"),
    )
