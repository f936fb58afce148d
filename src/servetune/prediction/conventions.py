"""Conventions of measurement tables: server settings that a table's rows leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec


class RowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that one row of a measurement table states.

    Attributes:
        version: Release of the engine; empty where the table has none.
        architecture: Architecture of the GPU, such as `hopper`.
        storage: Storage of the weights, in the words of `rows.STORAGE`.
        copies: Copies of attention, each with its own users (data parallelism).
        spread_experts: Whether whole experts are divided over the devices (expert parallelism).
    """

    engine: str
    version: str
    model: str
    architecture: str
    storage: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    tensor_parallel: int
    copies: int
    spread_experts: bool

    @property
    def lengths(self) -> tuple[int, int]:
        return self.prompt_tokens, self.output_tokens


class UnstatedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Server settings of a run that its row leaves out; `None` is the engine's default.

    Attributes:
        draft_tokens: Tokens drafted per step (speculative decoding).
        draft_acceptance_fraction: Share of drafted tokens that is accepted.
        max_num_batched_tokens: Token budget of one step.
        max_num_seqs: Sequences that a copy decodes at a time at most; its users if `None`.
        enforce_eager: Whether steps run without captured graphs.
        prefix_caching: Whether beginnings of prompts are kept.
        kv_cache_dtype: Type of keys and values where the row states none.
        admission_delay_steps: Mean delay before a waiting prompt is admitted, in decode steps.
        divided_attention: Whether every device attends to its own users (data-parallel
            attention) although the row states one copy.
        equal_lengths: Whether all requests have the nominal lengths instead of a range.
        warmed: Whether requests were sent before the run.
        engine_version: Release where the row has none; empty for the present one.
    """

    draft_tokens: int | None = None
    draft_acceptance_fraction: float | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool | None = None
    gpu_memory_fraction: float | None = None
    prefix_caching: bool | None = None
    kv_cache_dtype: str | None = None
    admission_delay_steps: float = 0.0
    divided_attention: bool = False
    equal_lengths: bool = False
    warmed: bool = False
    engine_version: str = ""


Convention: TypeAlias = Callable[[RowFacts], UnstatedSettings]
