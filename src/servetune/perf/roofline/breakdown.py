"""Breakdown of a step's time: each operation's work, time and share.

An operation's dot under the roof is its FLOPs over the bytes it moves, at the FLOP/s that the
law gives it. Norms, sampling, agreement between devices and the engine itself multiply
nothing, so they have a share of the time and no place under the roof.
"""

from __future__ import annotations

import msgspec

from servetune.hardware.device import Device
from servetune.perf.roofline.operations import AttentionOp, ExpertsOp, MatrixOp, Step
from servetune.perf.roofline.step import Part, StepLaw, product_dtype
from servetune.units import MS_PER_S

#: Kinds of work, in the order in which figures show them.
KINDS = ("attention", "matrices", "experts", "small kernels", "agreement", "engine")


class StepPart(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a step, all its layers together, on one device.

    Attributes:
        kind: One of `KINDS`.
        share_fraction: Share of the step's time.
        flops: Zero where nothing is multiplied.
        moved_bytes: Bytes moved to and from the device's memory.
        math_dtype: Number format of the products; empty where there are none.
        side: Side of the roof, `compute` or `memory` by FLOPs per byte, else `link` or `host`.
    """

    name: str
    kind: str
    time_ms: float
    share_fraction: float
    flops: float
    moved_bytes: float
    math_dtype: str
    side: str

    @property
    def flops_per_byte(self) -> float | None:
        return self.flops / self.moved_bytes if self.flops and self.moved_bytes else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / (self.time_ms / MS_PER_S) if self.flops and self.time_ms else None


class _Work(msgspec.Struct, kw_only=True):
    seconds: float = 0.0
    flops: float = 0.0
    moved_bytes: float = 0.0


def breakdown(law: StepLaw, step: Step, device: Device) -> tuple[StepPart, ...]:
    """The parts of a step, the longest first; their times sum to the law's."""
    total_s = law(step)
    sums: dict[tuple[str, str, str], _Work] = {}
    for part, seconds in law.device_parts_s(step):
        name, kind, math_dtype, flops, moved_bytes = _work(part, law, step, device)
        work = sums.setdefault((name, kind, math_dtype), _Work())
        work.seconds += seconds
        work.flops += flops
        work.moved_bytes += moved_bytes
    rest_s = total_s - sum(work.seconds for work in sums.values())
    sums["engine and launch", "engine", ""] = _Work(seconds=max(0.0, rest_s))
    parts = [
        StepPart(
            name=name,
            kind=kind,
            time_ms=work.seconds * MS_PER_S,
            share_fraction=work.seconds / total_s if total_s else 0.0,
            flops=work.flops,
            moved_bytes=work.moved_bytes,
            math_dtype=math_dtype,
            side=_side(kind, math_dtype, work, device),
        )
        for (name, kind, math_dtype), work in sums.items()
        if work.seconds > 0
    ]
    return tuple(sorted(parts, key=lambda part: -part.time_ms))


def _work(
    part: Part, law: StepLaw, step: Step, device: Device
) -> tuple[str, str, str, float, float]:
    """Name, kind, multiplying dtype, FLOPs and bytes."""
    ops = law.ops
    if isinstance(part, MatrixOp):
        rows = step.logit_rows if part.logits_only else step.tokens
        moved_bytes = part.moved_bytes(rows, ops.activation_bytes)
        flops = part.flops_per_row * rows
        dtype = product_dtype(part, device)
        return part.name, "matrices", dtype, part.count * flops, part.count * moved_bytes
    if isinstance(part, ExpertsOp):
        moved_bytes = part.moved_bytes(step.tokens, ops.activation_bytes)
        flops = part.flops_per_token * step.tokens
        dtype = product_dtype(part, device)
        return "experts", "experts", dtype, part.count * flops, part.count * moved_bytes
    if isinstance(part, AttentionOp):
        pairs = part.pairs(step.prefill_tokens, step.prefill_pairs)
        keys = part.keys(step.decode_sequences, step.decode_context_tokens)
        flops = part.prefill_flops_per_pair * pairs
        flops += part.decode_flops_per_key * keys * step.tokens_each
        moved_bytes = part.cache_bytes_per_key * (keys + step.prefill_tokens)
        name = "attention" if part.window is None else f"attention, last {part.window:,} keys"
        return name, "attention", "bf16", part.count * flops, part.count * moved_bytes
    per_logit = law.coefficients.small_kernels.sampling_bytes_per_logit
    sampled_bytes = ops.vocab * per_logit * step.logit_rows
    name, kind, moved_bytes = {
        "elementwise": (
            "norms and gates",
            "small kernels",
            ops.elementwise_bytes_per_token * step.tokens,
        ),
        "sampling": ("sampling", "small kernels", sampled_bytes),
        "drafting": ("drafting", "small kernels", 0.0),
        "agreement": ("agreement of devices", "agreement", 0.0),
    }[part]
    return name, kind, "", 0.0, moved_bytes


def _side(kind: str, math_dtype: str, work: _Work, device: Device) -> str:
    if kind in ("agreement", "engine"):
        return "link" if kind == "agreement" else "host"
    if not work.flops or not work.moved_bytes:
        return "memory"
    ridge = device.peak_flops(math_dtype) / device.memory_bytes_per_s
    return "compute" if work.flops / work.moved_bytes >= ridge else "memory"
