"""Deployment of an engine: its image, and the settings that a deployment writes out."""

from __future__ import annotations

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


class Accelerators(msgspec.Struct, frozen=True, kw_only=True):
    """Names by which a deployment asks for accelerators: those of GPUs if nothing else is said.

    Attributes:
        resource: Kubernetes resource; empty for that of the GPU's vendor.
        node: Path of a device file, with `{index}`, where a container is given files; empty where
            the container runtime hands GPUs over.
        variable: Environment variable that limits a process to some ranks by their numbers.
        ranks: Number of an engine's ranks that share one device.
    """

    resource: str = ""
    node: str = ""
    variable: str = "CUDA_VISIBLE_DEVICES"
    ranks: int = 1


class Shipping(msgspec.Struct, frozen=True, kw_only=True):
    """The image that an engine comes in, and its Plan as a deployment writes it.

    Attributes:
        image: Image of the engine's own project, without a tag; empty where it publishes none.
        tag: Tag of the image, as a function of the engine's version.
        program: Path of the program in the image, where its `PATH` does not have it.
        accelerators: Names by which accelerators are asked for.
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
        fill: The Plan with nothing open that can be written, and notes on what cannot; of the
            requests in flight and the engine's version.
        read: Fields of a filled Plan that settings and variables say the other way round; it
            takes those settings away.
    """

    image: str
    usual_version: str
    tag: Callable[[str], str] = "v{}".format
    program: str = ""
    ulimits: Mapping[str, int] = MappingProxyType({})
    accelerators: Accelerators = Accelerators()
    hub_cache: str = "/root/.cache/huggingface"
    in_flight: str = ""
    install: str = ""
    name_setting: str = "served_model_name"
    api_key_variable: str = ""
    api_key_word: str = ""
    fill: Callable[[Plan, int, str], tuple[Plan, list[str]]] = _as_it_is
    read: Callable[[Settings, Mapping[str, str]], dict[str, Setting]] = _nothing_further

    def image_of(self, version: str | None) -> str:
        """The image that has a version of the engine; empty where none is published."""
        return f"{self.image}:{self.tag(version or self.usual_version)}" if self.image else ""
