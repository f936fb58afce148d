"""Deployment of an engine: its image, and the settings that a deployment writes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from servetune.engines.words import Settings
from servetune.plan.plan import Plan, Setting


def _as_it_is(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    return plan, []


def _nothing_further(_settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    return {}


class Shipping(msgspec.Struct, frozen=True, kw_only=True):
    """The image that an engine comes in, and its Plan as a deployment writes it.

    Attributes:
        image: Image of the engine's own project, without a tag; empty where it publishes none.
        tag: Tag of the image that has a given version.
        usual_version: Version whose defaults are described, for engines whose measured version is
            not known.
        hub_cache: Folder in which the image keeps what it downloads.
        in_flight: Prometheus query of the requests that one server has, in the batch or waiting;
            empty where it tells none.
        install: Requirement of the engine where no image is used; empty where there is none.
        name_setting: Setting of the model's name for clients; empty where any name is answered.
        fill: The Plan with nothing open that can be written, and notes on what cannot; of the
            requests in flight and the engine's version.
        read: Fields of a filled Plan that settings and variables say the other way round; it
            takes those settings away.
    """

    image: str
    usual_version: str
    tag: str = "v{version}"
    hub_cache: str = "/root/.cache/huggingface"
    in_flight: str = ""
    install: str = ""
    name_setting: str = "served_model_name"
    fill: Callable[[Plan, int, str], tuple[Plan, list[str]]] = _as_it_is
    read: Callable[[Settings, Mapping[str, str]], dict[str, Setting]] = _nothing_further

    def image_of(self, version: str | None) -> str:
        """The image that has a version of the engine; empty where none is published."""
        tag = self.tag.format(version=version or self.usual_version)
        return f"{self.image}:{tag}" if self.image else ""
