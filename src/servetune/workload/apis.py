"""APIs that requests can be sent to: their routes, and the forms of requests and answers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

import msgspec

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
    return MappingProxyType(msgspec.convert(tomllib.loads(text), dict[str, Api]))


#: API by its name, as `--api` takes it.
APIS: Mapping[str, Api] = _read()
