"""Options that run somebody's code, or that give out what this machine keeps to itself.

A person may use them freely. Who lets others fill in a request, such as an agent, asks first
whether it has one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from servetune.api.request import Request, given
from servetune.api.study_request import Study
from servetune.engines import engine, simulated_studies
from servetune.engines.program import asking_none
from servetune.engines.translate import fields_of
from servetune.errors import ServetuneError
from servetune.search import parse_settings
from servetune.workload import CLIENT_ARGS

__all__ = ["EXECUTING", "asking_none", "what_executes"]

#: Field of any request -> what it does.
EXECUTING: Mapping[str, str] = MappingProxyType(
    {
        "allow_unknown": "passes settings on that nothing is known of",
        "api_key_env": "sends the value of an environment variable",
        "cluster": "runs on other machines",
        "executable": "runs a program",
        "header": "may send the value of an environment variable",
        "dcgm_url": "asks another server",
        "image": "runs a container",
        "mlflow": "sends results to a server or writes them to a folder",
        "otel_endpoint": "sends results to a server",
        "server_cmd": "runs a command",
        "server_env": "sets and copies environment variables",
        "server_folder": "chooses the folder that servers run in",
    }
)
#: Settings of a study's servers that are servetune's own.
_OWN = frozenset({"model", "replicas"})
#: Load settings that may send the value of an environment variable.
_SENDING = ("header",)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def what_executes(request: Request) -> dict[str, str]:
    """Options of a request that run code or give something out -> what each does."""
    found = {each.name: EXECUTING[each.name] for each in given(request) if each.name in EXECUTING}
    if isinstance(request, Study):
        if request.servers.host not in _LOOPBACK:
            found["host"] = "lets other machines reach the servers"
        if any(name in _names_in(request.client_args, CLIENT_ARGS) for name in _SENDING):
            found["client_args"] = EXECUTING["header"]
        unknown = _passed_on(request)
        if unknown:
            found["server_args"] = f"passes {', '.join(unknown)} on to the engine unchecked"
    return found


def _passed_on(study: Study) -> list[str]:
    """Server settings of a real engine that no plan has a word for: plugins and the like."""
    if study.engine in simulated_studies():
        return []
    names = _names_in(study.server_args, engine(study.engine).argument_types())
    return sorted(
        name
        for name, value in names.items()
        if name.replace("-", "_") not in _OWN and not fields_of(study.engine, {name: value})
    )


def _names_in(settings: Sequence[str], types: Mapping[str, Any]) -> dict[str, object]:
    """Settings in the grammar of sweeps, each with one of its values."""
    try:
        axes = parse_settings(";".join(settings), types=types)
    except ServetuneError:  # the study itself will say what is wrong
        return {}
    return {
        name: value
        for axis in axes
        for row in axis.rows
        for name, value in zip(axis.names, row, strict=True)
    }
