"""TensorRT-LLM: `trtllm-serve MODEL`, whose options keep their underscores."""

from __future__ import annotations

from servetune.engines.behaviour import behaviour_of
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.program import Program
from servetune.engines.tensorrt_llm.declarations import DECLARATIONS
from servetune.engines.tensorrt_llm.shipping import SHIPPING
from servetune.engines.words import expert_groups, words_of


class TensorrtLlm(CommandLineEngine):
    """TensorRT-LLM 1.0 and later, with its PyTorch backend.

    Its `/metrics` are statistics of single steps as JSON, not counters in Prometheus' form, so
    nothing is scraped. What its command line has no option for is set by a YAML file, which
    `extra_llm_api_options` names.
    """

    name = "tensorrt-llm"
    image_word = "tensorrt-llm"
    words = words_of("tensorrt-llm", otherwise={"expert_parallel": expert_groups("ep_size")})
    declarations = DECLARATIONS
    behaviour = behaviour_of("tensorrt-llm")
    shipping = SHIPPING
    program = Program(
        title="TensorRT-LLM",
        command="trtllm-serve",
        variable="SERVETUNE_TRTLLM",
        install="pip install tensorrt_llm",
        packages=("tensorrt_llm", "tensorrt-llm"),
    )
    metrics_path = None
    underscored = True
