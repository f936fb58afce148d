"""All engines that are bundled: the one list of their names.

An engine is a folder beside this file and its row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Name of an engine to its class.
ENGINES: Mapping[str, str] = MappingProxyType(
    {
        "vllm": "servetune.engines.vllm.engine:Vllm",
        "sglang": "servetune.engines.sglang.engine:Sglang",
        "tensorrt-llm": "servetune.engines.tensorrt_llm.engine:TensorrtLlm",
        "tgi": "servetune.engines.tgi.engine:Tgi",
        "llama.cpp": "servetune.engines.llama_cpp.engine:LlamaCpp",
        "lmdeploy": "servetune.engines.lmdeploy.engine:Lmdeploy",
        "transformers": "servetune.engines.transformers.engine:TransformersServe",
        "max": "servetune.engines.max.engine:ModularMax",
        "mlc-llm": "servetune.engines.mlc_llm.engine:MlcLlm",
        "vllm-neuron": "servetune.engines.vllm_neuron.engine:VllmNeuron",
        "simulated": "servetune.engines.simulated.engine:Simulated",
        "external": "servetune.engines.external.engine:External",
        "command": "servetune.engines.command.engine:Command",
    }
)
