"""vLLM on AWS Neuron: the same command, with what the plugin needs to be told."""

from __future__ import annotations

from typing import ClassVar

from servetune.engines.behaviour import Behaviour, ReleaseDefaults
from servetune.engines.program import Program
from servetune.engines.settings import SettingTable
from servetune.engines.vllm.engine import Vllm
from servetune.engines.vllm_neuron.shipping import SHIPPING
from servetune.errors import PlanError
from servetune.plan.plan import Plan, Setting


class VllmNeuron(Vllm):
    """The plugin vllm-neuron of Neuron 2.31 and later, over vLLM's own arguments.

    Sources: the plugin's features guide (2026-08). Blocks of the KV cache are counted by hand
    there (`num_gpu_blocks_override`, with `block_size`), weights are quantized by their
    checkpoint alone, and each bucket of lengths is compiled at the first start.
    """

    name = "vllm-neuron"
    simulated_as = ""
    server_words = None
    shipping = SHIPPING
    image_word = ""
    container_module = ""
    behaviour = Behaviour()
    defaults: ClassVar[tuple[ReleaseDefaults, ...]] = ()  # blocks are counted by hand there
    program = Program(
        title="vLLM on Neuron",
        command="vllm",
        variable="SERVETUNE_VLLM_NEURON",
        install="git clone https://github.com/vllm-project/vllm-neuron && "
        "pip install -e ./vllm-neuron",
        packages=("vllm-neuron", "vllm"),
    )

    @property
    def known_versions(self) -> tuple[str, ...]:
        """None: the tables are of vLLM, which the plugin brings along in a version of its own."""
        return ()

    def settings(
        self, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> SettingTable:
        """VLLM's own; the plugin's version is not vLLM's, and says nothing of them."""
        return super().settings(None, executable)

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        if plan.quantization is not None:
            raise PlanError(
                "vLLM on Neuron takes the quantization from the checkpoint",
                hint="leave quantization out, or give additional_config with neuron_config",
            )
        settings = self.words.settings(plan, self.name)
        if "num_gpu_blocks_override" in settings and "block_size" not in settings:
            raise PlanError(
                "vLLM on Neuron needs block_size where the blocks of the KV cache are counted",
                hint="give block_size=32 beside num_gpu_blocks_override",
            )
        return settings
