"""Container: a family of images that take a Plan in one way, and what all families share."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from servetune.deploy.images import Image
from servetune.engines import engine
from servetune.errors import CannotRender
from servetune.hardware.device import Device
from servetune.plan.plan import Plan, Setting

__all__ = ["Container", "Settings", "filled_as_vllm", "plain_settings"]

Settings = dict[str, Setting]

#: What a Plan leaves open and a container or version would decide by itself.
_SENSITIVE = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_fraction",
    "prefix_caching",
    "chunked_prefill",
)


def filled_as_vllm(
    plan: Plan, device: Device, concurrency: int, _version: str
) -> tuple[Plan, list[str]]:
    """The Plan with nothing open that a default could decide differently elsewhere.

    vLLM's own defaults for its HTTP server (`EngineArgs.get_batch_defaults`, 0.32.0):
    devices from 70 GiB, but not the A100, take 1,024 sequences and 8,192 tokens (16,384
    tokens from 160 GiB), all others 256 and 2,048. Inside LMI they would be others, for
    there vLLM does not run as its own server. 0.9 of memory is LMI's documented default
    and vLLM's until 0.19; later ones take 0.92.
    """
    gib = device.memory_bytes / 2**30
    large = gib >= 70 and "a100" not in device.name.lower()
    copies = plan.replicas * plan.data_parallel
    sequences = max(1024 if large else 256, math.ceil(concurrency / copies))
    tokens = (16384 if gib >= 160 else 8192) if large else 2048
    defaults: dict[str, Any] = {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(tokens, plan.max_num_seqs or sequences),
        "gpu_memory_fraction": 0.9,
        "prefix_caching": True,
        "chunked_prefill": True,
    }
    opened = {name: defaults[name] for name in _SENSITIVE if getattr(plan, name) is None}
    if not opened:
        return plan, []
    said = ", ".join(f"{name}={value}" for name, value in opened.items())
    return msgspec.structs.replace(plan, **opened), [
        f"the plan left these open, and vLLM's usual defaults are written for them: {said}"
    ]


def plain_settings(plan: Plan, version: str | None = None) -> Settings:
    """The engine's settings, with `no_x=true` said as `x=false`.

    Raises:
        CannotRender: A setting and its negative are both there and disagree.
    """
    settings: Settings = {}
    for name, value in engine(plan.engine).spoken(plan, version).items():
        plain, meant = name, value
        if name.startswith("no_") and isinstance(value, bool):
            plain, meant = name.removeprefix("no_"), not value
        if settings.get(plain, meant) != meant:
            raise CannotRender(f"the plan says both {plain}={settings[plain]} and {name}={value}")
        settings[plain] = meant
    return settings


def _nothing_further(_: Settings, __: Mapping[str, str]) -> dict[str, Setting]:
    return {}


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A family of images that take their settings in one way.

    Attributes:
        name: As a user says it.
        title: For a reader.
        repository: Of the images in the region's registry.
        dialect: Whose setting names it takes; a key of `engines.ENGINES`.
        prefix: Of an environment variable that holds a setting; empty where none has one.
        foreign: Beginnings of variables that are no settings, where `prefix` does not tell.
        model_key: Variable that says where the model is.
        renamed: Settings that are not spelt prefix and upper-case name.
        fixed: Variables that select the engine and its mode, written always.
        fill: The Plan with nothing open, and what to say about it; of a device, the requests in
            flight and the engine's version, which is empty where no table knows it.
        to_settings: The Plan's settings as this container wants them; raises CannotRender
            for what it cannot say.
        own: Variables beside the settings (copies, queue, time-out) of a Plan, its
            concurrency and the seconds that loading may take.
        read: The other way: fields of a Plan out of settings, from which it takes them, and of
            variables.
        copies: Replicas that an environment asks for.
        own_keys: Variables of `own` that bear the prefix and are no settings.
        off: How `false` is spelt: as a `value`, as a `negative` name, or not at all.
        in_log: How the engine's log shows a setting, with `{name}` and `{value}`.
        copies_told: How copies come to be, for a reader.
        shares_out: Whether one server shares requests out to its copies.
        knows_caches: Whether SageMaker learns from it which server has a prompt's prefix.
        python_words: Whether its log writes `True` and `False` as Python does.
        able: Whether an image can say all of a Plan, where another may.
    """

    name: str
    title: str
    repository: str
    dialect: str
    prefix: str
    model_key: str
    renamed: Mapping[str, str]
    fixed: Mapping[str, str]
    to_settings: Callable[[Plan, Image], Settings]
    own: Callable[[Plan, int, int], dict[str, str]]
    copies: Callable[[Mapping[str, str]], int]
    own_keys: frozenset[str]
    off: typing.Literal["value", "negative", "silence"]
    copies_told: str
    foreign: tuple[str, ...] = ()
    fill: Callable[[Plan, Device, int, str], tuple[Plan, list[str]]] = filled_as_vllm
    read: Callable[[Settings, Mapping[str, str]], dict[str, Setting]] = _nothing_further
    in_log: str = "{name}={value}"
    shares_out: bool = False
    knows_caches: bool = False
    python_words: bool = True
    able: Callable[[Plan, Image], bool] = lambda _plan, _image: True

    def key(self, setting: str) -> str:
        """The variable that holds an engine's setting."""
        return self.prefix + self.renamed.get(setting, setting.upper())

    def setting(self, key: str) -> str:
        """The engine's setting that a variable holds."""
        name = key.removeprefix(self.prefix)
        return {spelt: own for own, spelt in self.renamed.items()}.get(name, name.lower())

    def holds_setting(self, key: str) -> bool:
        """Whether a variable is a setting of the engine."""
        if key == self.model_key or key in self.fixed or key in self.own_keys:
            return False
        if key in {self.prefix + spelt for spelt in self.renamed.values()}:
            return True
        return key.startswith(self.prefix) and not key.startswith(self.foreign or ("\0",))
