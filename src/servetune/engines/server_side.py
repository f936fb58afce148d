"""Arguments that an engine's server takes, and the places where it tells its settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.decoding import ready
from servetune.engines.tables import engine_table

#: Arguments of a server's command line that say nothing of the plan, and their types.
_SERVER_TYPES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("model", "host", "served_model_name", "tokenizer", "api_key"), "str"),
        **dict.fromkeys(("port", "seed"), "int"),
    }
)
_NONE: Mapping[str, str] = MappingProxyType({})


class CacheReset(msgspec.Struct, frozen=True, kw_only=True):
    """Way to empty the prefix cache of a running server.

    Attributes:
        route: Route that empties it when it is posted to.
        environment: Variables without which the server has no such route.
    """

    route: str
    environment: Mapping[str, str] = _NONE


class SettingsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Places where a running server tells its own settings.

    Attributes:
        route: Route of its settings as JSON, in the engine's names; empty where there is none.
        members: Members of that JSON, at least one of which is present.
        complete: Whether a setting that the route does not have was left to the default.
        metric: Metric whose labels have settings; empty where there is none.
        labels: Labels of that metric, to fields of a Plan.
        printed: Pattern of the line of its start-up log that has its settings.
        log_marks: Words in the lines of its log that have settings.
        line: Line that its log would print, with `{settings}`; see `member`.
        member: One setting of that line, with `{name}` and `{value}`, which is written as Python
            does, or as JSON where `json_values`.
        model_name: Name of the setting that names the model in that line.
    """

    route: str = ""
    members: tuple[str, ...] = ()
    complete: bool = False
    metric: str = ""
    labels: Mapping[str, str] = _NONE
    printed: str = r"(?!)"
    log_marks: tuple[str, ...] = ()
    line: str = ""
    member: str = ""
    json_values: bool = False
    model_name: str = ""


class ServerWords(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of an engine's server that the simulated server understands.

    Attributes:
        spellings: Further names of arguments.
        own: Settings of its scheduler that the simulation plays, and their kinds as in
            `SettingSpec`.
        ignored: Arguments that say nothing of the plan, and their kinds.
        closed: Whether the engine's table of settings has them all, so that others are refused.
    """

    spellings: Mapping[str, str] = _NONE
    own: Mapping[str, str] = _NONE
    ignored: Mapping[str, str] = _SERVER_TYPES
    closed: bool = False


class NativeRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """Routes of an engine besides OpenAI's that the simulated server answers.

    Attributes:
        forms: Route of requests to the form of its requests and answers (`simserver.native`).
        documents: Route of a document to its members, each the name of a fact or of a setting;
            `*` stands for all settings.
        any_model: Whether requests for a model of any name are answered.
    """

    forms: Mapping[str, str] = _NONE
    documents: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    any_model: bool = False


def native_routes_of(engine: str) -> NativeRoutes:
    """Routes of an engine besides OpenAI's, by `server.toml` in its folder."""
    return msgspec.convert(
        engine_table(engine, "server.toml").get("native", {}), ready(NativeRoutes)
    )


def settings_report_of(engine: str) -> SettingsReport:
    """Places where an engine's servers tell their settings, by `server.toml` in its folder."""
    return msgspec.convert(engine_table(engine, "server.toml")["report"], ready(SettingsReport))


def server_words_of(engine: str) -> ServerWords:
    """Arguments of an engine's servers, by `server.toml` in its folder."""
    return msgspec.convert(engine_table(engine, "server.toml")["words"], ready(ServerWords))
