"""Deployment of an engine: its image, and the settings that a deployment writes out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from servetune.engines.words import Settings
from servetune.plan.plan import Plan, Setting


def _as_it_is(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    return plan, []


def _nothing_further(_settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    return {}


def with_settings(plan: Plan, **usual: Setting) -> Plan:
    """The Plan with these further settings, where it does not say them itself."""
    further = tuple(sorted({**usual, **dict(plan.extra)}.items()))
    return msgspec.structs.replace(plan, extra=further)


def whole_experts(settings: Settings, groups: str, ways: Setting) -> dict[str, Setting]:
    """The field `expert_parallel` where experts have as many groups as matrices are split ways.

    It takes the setting of the groups away.
    """
    if settings.get(groups) is None or settings[groups] != ways:
        return {}
    del settings[groups]
    return {"expert_parallel": True}


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A build of an engine for one kind of device, and its image.

    Attributes:
        kind: Kind of device: `cuda`, `rocm`, `neuron`, `cpu`, `gaudi`, `xpu`, `tpu`, `ascend` or
            `musa`.
        repository: Image of the engine's own project, without a tag; empty where it publishes none.
        tag: Tag of the image, as a function of the engine's version.
        architectures: Architectures of devices that it runs on; empty for all of the kind.
    """

    kind: str
    repository: str = ""
    tag: Callable[[str], str] = "v{}".format
    architectures: tuple[str, ...] = ()

    def image(self, version: str) -> str:
        """The image that has a version of the engine; empty where none is published."""
        tag = self.tag(_with_patch(version))
        return f"{self.repository}:{tag}" if self.repository else ""


def _with_patch(version: str) -> str:
    """Release as tags have it: `0.32.0` for `0.32` and `v0.32`; other names as they are."""
    named = re.fullmatch(r"v?(\d+\.\d+)(\.\d.*)?", version)
    return f"{named[1]}{named[2] or '.0'}" if named else version


class Shipping(msgspec.Struct, frozen=True, kw_only=True):
    """The images that an engine comes in, and its Plan as a deployment writes it.

    Attributes:
        builds: Builds of the engine, the usual one first.
        program: Path of the program in the images, where their `PATH` does not have it.
        usual_version: Version whose defaults are described, for engines whose measured version is
            not known.
        ulimits: Limits of the container's processes that the project asks for, by Docker's names.
        hub_cache: Folder in which the image keeps what it downloads.
        in_flight: Prometheus query of the requests that one server has, in the batch or waiting;
            empty where it tells none.
        install: Requirement of the engine where no image is used; empty where there is none.
        name_setting: Setting of the model's name for clients; empty where any name is answered.
        api_key_variable: Environment variable of the key that clients must send; empty where there
            is none.
        api_key_word: Option of the command for that key, where there is no variable.
        node_words: Words of each process of a copy that spans machines, with `{count}` of them,
            `{rank}` and the `{leader}`'s address; empty for an engine that does not span machines.
        worker_words: Further words of all but the first, which alone answers clients.
        spans_since: Version from which it takes these words.
        adapter_variables: Environment variables with which a running server loads adapters.
        fill: The Plan with nothing open that can be written, and notes on what cannot; of the
            requests in flight and the engine's version.
        read: Fields of a filled Plan that settings and variables say the other way round; it
            takes those settings away.
    """

    builds: tuple[Build, ...]
    usual_version: str
    program: str = ""
    ulimits: Mapping[str, int] = MappingProxyType({})
    hub_cache: str = "/root/.cache/huggingface"
    in_flight: str = ""
    install: str = ""
    name_setting: str = "served_model_name"
    api_key_variable: str = ""
    api_key_word: str = ""
    node_words: tuple[str, ...] = ()
    worker_words: tuple[str, ...] = ()
    spans_since: str = ""
    adapter_variables: Mapping[str, str] = MappingProxyType({})
    fill: Callable[[Plan, int, str], tuple[Plan, list[str]]] = _as_it_is
    read: Callable[[Settings, Mapping[str, str]], dict[str, Setting]] = _nothing_further
