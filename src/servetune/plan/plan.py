"""Plan: how a model is served, in engine-neutral words.

One frozen value is priced by the estimator, run by the simulator, launched by an
engine and rendered for a deployment, so what was measured is what ships. A field
that is `None` was not chosen: the engine's own default applies (`engines.defaults`
knows it, the estimator uses it, and a deployment writes it out).
"""

from __future__ import annotations

import msgspec

from servetune.errors import PlanError
from servetune.secret import redacted_text

#: Engine of a plan, and of a command, that names none.
DEFAULT_ENGINE = "vllm"

Setting = bool | int | float | str | None


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration with which one model is served.

    Attributes:
        model: Hub id or local folder, as the engine is given it.
        engine: Name of the engine whose defaults fill what is `None`.
        engine_version: Release of the engine whose step times predictions have; `None` for the
            present ones. No engine is told.
        tensor_parallel: Devices over which each matrix is split.
        pipeline_parallel: Stages over which the layers are split.
        data_parallel: Copies of the model behind one address, inside the engine.
        expert_parallel: Whether experts are placed whole on devices instead of split.
        replicas: Copies of all of this behind one load balancer.
        prefill_replicas: Further copies that compute prompts alone and hand their cache over to
            the `replicas`, which then only decode; `None` where every copy does both.
        routing: Rule that chooses the copy for a request in a simulation: `round-robin` if `None`,
            `random`, or `least-outstanding`. No engine is told.
        kv_link: Link over which those copies hand their cache on: `node` if `None`, or `network`.
            No engine is told.
        max_num_seqs: Sequences that may run in one step.
        max_num_batched_tokens: Tokens that one step may process.
        max_model_len: Longest sequence (prompt and answer) in tokens.
        gpu_memory_fraction: Share of device memory that the engine may fill.
        block_tokens: Tokens in one block of the paged KV cache.
        dtype: Number format of activations; `auto` for what the model says.
        quantization: Quantization applied on loading; `None` keeps what the checkpoint has.
        kv_cache_dtype: Number format of the KV cache: `auto` for the activation dtype, `fp8` for
            one byte.
        prefix_caching: Whether equal prompt beginnings are computed once.
        chunked_prefill: Whether a long prompt may be spread over steps.
        enforce_eager: Whether captured graphs are off.
        draft_tokens: Tokens drafted ahead of each step, which verifies them all; `None` for none.
        draft_method: Drafting method: `ngram` looks tokens up, `mtp` and `eagle` add a layer
            of their own, that of `eagle` from a checkpoint that `extra` names.
        draft_acceptance_fraction: Chance that a drafted token is right if those before it were.
            The text decides it, so it is for predictions and no engine is told.
        extra: Settings of the engine that have no neutral name, sorted by name, as
            the user spelt them.
    """

    model: str
    engine: str = DEFAULT_ENGINE
    engine_version: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    replicas: int = 1
    prefill_replicas: int | None = None
    routing: str | None = None
    kv_link: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_fraction: float | None = None
    block_tokens: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    enforce_eager: bool | None = None
    draft_tokens: int | None = None
    draft_method: str | None = None
    draft_acceptance_fraction: float | None = None
    extra: tuple[tuple[str, Setting], ...] = ()

    def __post_init__(self) -> None:
        for name in _DEGREES:
            if getattr(self, name) < 1:
                raise _out_of_range(name, getattr(self, name), "1 or more")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise _out_of_range(name, value, "1 or more")
        fraction = self.gpu_memory_fraction
        if fraction is not None and not 0 < fraction <= 1:
            raise _out_of_range("gpu_memory_fraction", fraction, "in (0, 1]")
        accepted = self.draft_acceptance_fraction
        if accepted is not None and not 0 <= accepted <= 1:
            raise _out_of_range("draft_acceptance_fraction", accepted, "in [0, 1]")
        if self.draft_tokens is None and (accepted is not None or self.draft_method is not None):
            raise PlanError(
                "a plan that drafts no tokens has no method or acceptance of drafts",
                hint="give their number with draft_tokens",
            )

    @property
    def devices_per_replica(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def device_count(self) -> int:
        """Devices that all copies occupy together."""
        return self.devices_per_replica * (self.replicas + (self.prefill_replicas or 0))

    @property
    def label(self) -> str:
        """Description of the fields that were set: `TP4 max_num_batched_tokens=8192`."""
        parts = [f"TP{self.tensor_parallel}"]
        for short, count in (
            ("PP", self.pipeline_parallel),
            ("DP", self.data_parallel),
            ("x", self.replicas),
            ("prefill x", self.prefill_replicas or 0),
        ):
            if count > (short != "prefill x"):
                parts.append(f"{short}{count}")
        if self.expert_parallel:
            parts.append("EP")
        for name in _LABELLED:
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={value}")
        parts += [redacted_text(f"{name}={value}") for name, value in self.extra]
        return " ".join(parts)

    def __repr__(self) -> str:
        return redacted_text(super().__repr__())


_DEGREES = ("tensor_parallel", "pipeline_parallel", "data_parallel", "replicas")
_COUNTS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_tokens",
    "draft_tokens",
    "prefill_replicas",
)

_LABELLED = (
    "engine_version",
    "routing",
    "kv_link",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_fraction",
    "block_tokens",
    "quantization",
    "kv_cache_dtype",
    "prefix_caching",
    "chunked_prefill",
    "enforce_eager",
    "draft_tokens",
    "draft_method",
    "draft_acceptance_fraction",
)


def _out_of_range(name: str, value: object, allowed: str) -> PlanError:
    return PlanError(f"{name} must be {allowed}, got {value}")
