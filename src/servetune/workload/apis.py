"""APIs that requests can be sent to: their routes, the forms of requests and answers.

Further members of a body are tool schemas and the form that an answer must have.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

import msgspec

from servetune.decoding import ready
from servetune.errors import InputError, UnknownName
from servetune.json_value import JsonObject
from servetune.workload.parts import Part

__all__ = ["APIS", "Api"]


class Api(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API of a server.

    Attributes:
        path: Route behind the server's prefix.
        whole_path: Route for an answer in one piece, where that is another one.
        body: Form of the request's body; the API's name where empty.
        answer: Form of the answer; the API's name where empty.
        takes_ids: Whether prompts may be token ids, which are exact without a tokenizer.
        model_route: Route that names the model; `/v1/models` where empty.
    """

    path: str
    whole_path: str = ""
    body: str = ""
    answer: str = ""
    takes_ids: bool = False
    model_route: str = ""


def _read() -> Mapping[str, Api]:
    text = resources.files("servetune.workload").joinpath("data/apis.toml").read_text("utf-8")
    return MappingProxyType(msgspec.convert(tomllib.loads(text), ready(dict[str, Api])))


#: API by its name, as `--api` takes it.
APIS: Mapping[str, Api] = _read()


def tool_names() -> tuple[str, ...]:
    """Built-in tools, in the order in which a number of them is taken."""
    return tuple(_tools())


def format_names() -> tuple[str, ...]:
    """Built-in JSON schemas for structured answers."""
    return tuple(_schema_text("formats.json"))


def tools_of(part: Part) -> tuple[JsonObject, ...]:
    """The schemas that a part's requests carry, as OpenAI's `tools`.

    Raises:
        UnknownName: A tool has no schema here.
        InputError: More are asked than there are.
    """
    known = _tools()
    if isinstance(part.tools, int):
        if not 0 <= part.tools <= len(known):
            raise InputError(
                f"part {part.name} asks for {part.tools} tools, there are {len(known)}",
                hint="by name: " + ", ".join(known),
            )
        return tuple(known.values())[: part.tools]
    for name in part.tools:
        if name not in known:
            raise UnknownName("tool", name, known)
    return tuple(known[name] for name in part.tools)


def members_of(part: Part) -> str:
    """Members of a part's requests besides the prompt, as JSON text; empty for none."""
    members: JsonObject = {}
    tools = tools_of(part)
    if tools:
        members["tools"], members["tool_choice"] = tools, part.tool_choice
    if part.response_format is not None:
        members["response_format"] = _format(part.response_format)
    return msgspec.json.encode(members).decode() if members else ""


def _format(name: str) -> JsonObject:
    if name.startswith("{"):
        return _named("answer", msgspec.json.decode(name, type=JsonObject))
    if name == "json_object":
        return {"type": "json_object"}
    known = _schema_text("formats.json")
    if name not in known:
        raise UnknownName("response format", name, ["json_object", *known])
    return _named(name, known[name])


def _named(name: str, schema: Mapping[str, object]) -> JsonObject:
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


def _tools() -> dict[str, JsonObject]:
    return {tool["function"]["name"]: tool for tool in _schema_text("tools.json")}


@functools.lru_cache(maxsize=4)
def _schema_text(name: str) -> Any:
    file = importlib.resources.files("servetune.workload") / "data" / name
    return msgspec.json.decode(file.read_bytes())
