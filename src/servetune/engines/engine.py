"""What servetune asks of an inference engine: its command, its words, its log."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from servetune.engines.cause import Cause
from servetune.errors import UnknownName
from servetune.plan.plan import Plan, Setting

__all__ = ["ENGINES", "Engine", "engine"]


class Engine(Protocol):
    """An inference engine that runs as a server of its own.

    An engine is a set of pure functions about one program; `process.ServerProcess`
    runs what `command` says.
    """

    @property
    def name(self) -> str:
        """Key in `ENGINES`, and the dialect of its settings in `plan.dialects`."""

    @property
    def ready_path(self) -> str:
        """Answers 200 once the server takes requests."""

    @property
    def known_arguments(self) -> frozenset[str]:
        """Names with underscores; others pass through, and a caller may warn of them."""

    def find_executable(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """The program's first words on this machine.

        Raises:
            EngineError: It is not installed.
        """

    def command(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        executable: tuple[str, ...] | None = None,
    ) -> tuple[str, ...]:
        """The exact words that start the server; equal plans give equal commands.

        Raises:
            PlanError: The plan sets what servetune itself decides, such as the port.
        """

    def server_cmd_args(self, settings: Mapping[str, Setting]) -> list[str]:
        """Settings as arguments, in the spelling of llm-optimizer's records.

        One word each, `--tensor-parallel-size=4`. `True` is a bare switch, `False`
        the engine's negative form where it has one, else nothing; `None` is not said.
        Text stays as it is, so JSON keeps its quotes.
        """

    def argument_types(self) -> Mapping[str, type]:
        """What each known argument takes, for typing the values of a sweep.

        A JSON argument counts as `str`: a setting holds its text.
        """

    def environment(self, plan: Plan) -> dict[str, str]:
        """Environment that the server should have where the user has set none."""

    def version(self, executable: tuple[str, ...]) -> str | None:
        """The installed version, or `None` where it cannot be told."""

    def explain(self, log_text: str, exit_code: int | None = None) -> Cause:
        """Why a server ended, from its log."""


ENGINES: Mapping[str, str] = MappingProxyType({"vllm": "servetune.engines.vllm:Vllm"})


def engine(name: str) -> Engine:
    """The engine called `name`.

    Raises:
        UnknownName: None is called so.
    """
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    module_name, _, class_name = ENGINES[name].partition(":")
    found: Engine = getattr(importlib.import_module(module_name), class_name)()
    return found
