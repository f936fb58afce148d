"""Plans that their engine refuses to start with, whatever the memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.engines.defaults import resolved
from servetune.engines.engine import engine
from servetune.engines.tables import engine_table
from servetune.errors import PlanError
from servetune.hardware.device import Device
from servetune.json_value import JsonObject
from servetune.models.quantization import effective_quantization, quantization_named
from servetune.models.shape import NetworkShape
from servetune.models.source import load_shape, quantized_versions, storage_method
from servetune.plan.plan import Plan

#: Least compute capability of each architecture, times ten (NVIDIA's list of CUDA devices).
_CAPABILITY: Mapping[str, int] = MappingProxyType(
    {"pascal": 60, "volta": 70, "turing": 75, "ampere": 80, "ada": 89, "hopper": 90}
    | {"blackwell": 100, "blackwell-thor": 110}
    | dict.fromkeys(("blackwell-rtx", "blackwell-gb10"), 120)
)


def check_starts(plan: Plan, shape: NetworkShape, device: Device) -> None:
    """Refuse settings that the plan's engine ends with at start.

    Raises:
        PlanError: In the engine's words.

    Example:
        >>> from servetune.hardware import device as named
        >>> from servetune.models import load_shape
        >>> plan = Plan(model="Qwen/Qwen3-4B", max_num_seqs=64, max_num_batched_tokens=32)
        >>> check_starts(plan, load_shape(plan.model, catalogue_first=True), named("L4"))
        Traceback (most recent call last):
        ...
        servetune.errors.PlanError: ...max_num_batched_tokens (32) must be \
greater than or equal to max_num_seqs (64)
    """
    found = engine(plan.engine)
    if found.defaults:
        found.check_starts(resolved(plan, shape, device), shape, device)


def check_weights(plan: Plan, shape: NetworkShape, device: Device | None = None) -> None:
    """Refuse a storage of weights that the engine can neither read nor make of the checkpoint.

    Nothing is refused of engines whose folder has no `quantization.toml`. With a device the hint
    names only what the engine has kernels for there.

    Raises:
        PlanError: With the known checkpoints of that storage.

    Example:
        >>> from servetune.models import load_shape
        >>> plan = Plan(model="Qwen/Qwen3-32B", quantization="awq")
        >>> check_weights(plan, load_shape(plan.model, catalogue_first=True))
        Traceback (most recent call last):
        ...
        servetune.errors.PlanError: vLLM cannot make awq weights of Qwen/Qwen3-32B while loading it
    """
    on_load = made_on_load(plan.engine)
    if plan.quantization is None or not on_load:
        return
    asked = plan.quantization.lower().replace("-", "_")
    title = engine(plan.engine).title
    if asked == "auto":
        return
    wanted = quantization_named(asked).scheme if asked not in _BY_CHECKPOINT else asked
    if shape.quantization != "none":
        if asked in on_load and _bits(wanted) not in shape.quantization:
            raise PlanError(
                f"{title} refuses quantization {asked}: the checkpoint {shape.name} is stored as "
                f"{shape.quantization}",
                hint="leave the quantisation out: the checkpoint says its own",
            )
        return
    if asked in on_load or wanted == "none":
        return
    hint = _other_weights(plan, shape, device, "" if asked in _BY_CHECKPOINT else asked)
    raise PlanError(
        f"{title} cannot make {asked} weights of {plan.model} while loading it", hint=hint
    )


def _other_weights(plan: Plan, shape: NetworkShape, device: Device | None, asked: str) -> str:
    """Checkpoints of a storage, or to make one, and what needs none."""
    made = [
        name
        for name in quantized_versions(plan.model, asked)
        if device is None
        or has_kernels(
            msgspec.structs.replace(plan, model=name, quantization=None),
            load_shape(name, catalogue_first=True),
            device,
        )
    ]
    hint = (
        f"take the quantised checkpoint {' or '.join(made[:3])} as the model"
        if made
        else "quantise the model first, and give the folder or hub id of that checkpoint"
    )
    usual = made_on_load(plan.engine)[0]
    narrowed = msgspec.structs.replace(plan, quantization=usual)
    if device is not None and not has_kernels(narrowed, shape, device):
        return hint
    return f"{hint}; {usual} needs no such checkpoint"


def check_silicon(plan: Plan, shape: NetworkShape, device: Device) -> None:
    """Refuse a device that the engine does not support, and weights it has no kernels for there.

    Raises:
        PlanError: With the compute capabilities needed and there.
    """
    title = engine(plan.engine).title
    there = _CAPABILITY.get(device.architecture)
    least = _weights_table(plan.engine).get("least_device", 0)
    if there is not None and there < least:
        raise PlanError(
            f"{title} does not run on {device.name}: it needs compute capability {least / 10}, "
            f"the device has {there / 10}",
            hint="take a newer device",
        )
    for scheme, needed, makers in _needs(
        plan.engine, shape.name, shape.quantization, plan.quantization
    ):
        if there is not None and there < needed:
            raise PlanError(
                f"{title} has no kernels for {scheme} weights on {device.name}: they need compute "
                f"capability {needed / 10}, it has {there / 10}",
                hint="take 16-bit weights, or a newer device",
            )
        if device.vendor in makers:
            raise PlanError(
                f"{title} has no kernels for {scheme} weights on {device.name}",
                hint=f"take other weights, or a device that is not {device.vendor}'s",
            )


def has_kernels(plan: Plan, shape: NetworkShape, device: Device) -> bool:
    """Whether the engine has kernels for a plan's weights there that do not only emulate them."""
    try:
        check_silicon(plan, shape, device)
    except PlanError:
        return False
    emulated = _weights_table(plan.engine).get("emulated", {})
    stored = effective_quantization(shape.quantization, plan.quantization)
    parts = (stored, *stored.others)
    return not any(device.vendor in emulated.get(part.scheme, ()) for part in parts)


@functools.lru_cache(maxsize=1024)
def _needs(
    engine_name: str, model: str, published: str, asked: str | None
) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
    """What each part of the weights needs of a device.

    Returns:
        Its scheme, the least compute capability, times ten, and the makers of devices without
        kernels for it.
    """
    table = _weights_table(engine_name)
    by_scheme, without = table.get("least_capability", {}), table.get("no_kernels", {})
    named = asked.lower().replace("-", "_") if asked is not None and published == "none" else ""
    by_method = table.get("least_capability_by_method", {}).get(storage_method(model), {})
    stored = effective_quantization(published, asked)
    return tuple(
        (
            part.scheme,
            max(
                by_scheme.get(named, by_scheme.get(part.scheme, 0)),
                by_method.get(part.scheme.partition("_g")[0], 0),
            ),
            tuple(without.get(part.scheme, ())),
        )
        for part in (stored, *stored.others)
    )


def made_on_load(engine_name: str) -> tuple[str, ...]:
    """Storage of weights that the engine makes of plain ones while loading, as its option says it.

    Empty where the engine's own list was not read.
    """
    return tuple(_weights_table(engine_name).get("on_load", ()))


def _weights_table(engine_name: str) -> JsonObject:
    named = engine(engine_name)
    return engine_table(named.ships_as or named.name, "quantization.toml")


def _bits(scheme: str) -> str:
    """Type and width of a scheme without its groups: `int4`, `fp8`, `nvfp4`."""
    found = re.match(r"[a-z]+\d+", scheme)
    return found[0] if found else scheme


#: Option values that a checkpoint's own table explains.
_BY_CHECKPOINT = ("compressed_tensors", "quark", "auto_round", "moe_wna16", "torchao")
