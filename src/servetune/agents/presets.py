"""Workloads that come with servetune, by name."""

from __future__ import annotations

import tomllib
from typing import Annotated, ClassVar

from servetune.api import Request
from servetune.json_value import JsonObject
from servetune.option import argument
from servetune.workload.presets import preset, preset_names, preset_text


class ListPresets(Request, frozen=True, kw_only=True):
    """Workloads that come with servetune."""

    verb: ClassVar[str] = "workloads list"


class ShowPreset(Request, frozen=True, kw_only=True):
    """A workload that comes with servetune, as its file has it."""

    verb: ClassVar[str] = "workloads show"

    name: Annotated[str, argument("Name of the workload.", metavar="NAME")]


def list_presets(_request: ListPresets) -> JsonObject:
    """Name and description of each."""
    return {"workloads": [{"name": name, "about": preset(name).summary} for name in preset_names()]}


def show_preset(request: ShowPreset) -> JsonObject:
    """Settings of one.

    Raises:
        UnknownName: There is no such workload.
    """
    return {"name": request.name, "settings": tomllib.loads(preset_text(request.name))}
