"""Engines that are started by a command line of their own.

An engine is one small class of facts; a subclass says its words, its log and its traps,
and changes a method only where the engine is peculiar.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from servetune.engines.cause import Cause, diagnose
from servetune.engines.engine import Engine
from servetune.engines.log import LogReading, differences, log_table, read_facts
from servetune.engines.program import Program, site_packages_of
from servetune.engines.settings import SettingTable, with_underscores
from servetune.engines.sources import Declarations, read_declarations
from servetune.engines.tables import known_versions, table_of
from servetune.engines.translate import require_own_words
from servetune.engines.words import Words
from servetune.errors import PlanError
from servetune.plan.plan import Plan, Setting


class CommandLineEngine(Engine):
    """An engine that is started as `PROGRAM serve MODEL --setting=value`.

    Attributes:
        program: Program of the engine and the places where it is looked for.
        start: Words between the program and the model.
        host_word: Option that takes the address.
        port_word: Option that takes the port.
        decided_here: Settings that servetune itself gives, by any spelling.
        declarations: Files of an installed package that declare its settings; `None` where none are
            read.
        underscored: Whether its options keep their underscores.
        table_name: Name of the engine whose tables of settings and of log lines are used.
    """

    program: ClassVar[Program]
    words: ClassVar[Words] = Words()
    start: ClassVar[tuple[str, ...]] = ()
    host_word: ClassVar[str] = "--host"
    port_word: ClassVar[str] = "--port"
    decided_here: ClassVar[frozenset[str]] = frozenset({"host", "port", "model"})
    declarations: ClassVar[Declarations | None] = None
    underscored: ClassVar[bool] = False

    @property
    def title(self) -> str:
        return self.program.title

    @property
    def table_name(self) -> str:
        return self.name

    @property
    def known_versions(self) -> tuple[str, ...]:
        return known_versions(self.table_name)

    @property
    def known_arguments(self) -> frozenset[str]:
        return frozenset(self.settings().settings)

    def argument_types(self) -> Mapping[str, type]:
        return self.settings().types()

    def settings(
        self, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> SettingTable:
        """Its settings: those that the installed package declares, else a bundled table's."""
        if executable:
            declared = self._declared(executable)
            if declared is not None:
                declared = msgspec.structs.replace(declared, version=version or declared.version)
                return declared.with_least(self.behaviour.front_end.least)
        table = table_of(self.table_name, version) or SettingTable(
            version=version or "", source="none is known", settings={}, complete=False
        )
        return table.with_least(self.behaviour.front_end.least)

    def _declared(self, executable: tuple[str, ...]) -> SettingTable | None:
        for folder in site_packages_of(Path(executable[0])):
            found = read_declarations(self.declarations, folder)
            if found:
                return SettingTable(
                    version="", source=f"the package in {folder}", settings=found, exact=True
                )
        return None

    def check(
        self,
        plan: Plan,
        *,
        version: str | None = None,
        executable: tuple[str, ...] | None = None,
        allow_unknown: bool = False,
    ) -> tuple[str, ...]:
        table = self.settings(version, executable)
        if not allow_unknown:
            require_own_words(self, plan, table)
        notes = table.check(
            self.title, self.plan_settings(plan, version), allow_unknown=allow_unknown
        )
        if table.exact or not table.settings:
            return notes
        version_text = f"version {version}" if version else "the version"
        stands_in = (
            f"{version_text} of {self.title} is not known here; {table.version} stands in for it"
        )
        return (stands_in, *notes)

    def find_executable(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        return self.program.find(given, environ=environ)

    def version(self, executable: tuple[str, ...]) -> str | None:
        return self.program.version(executable)

    def command(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        executable: tuple[str, ...] | None = None,
        version: str | None = None,
    ) -> tuple[str, ...]:
        settings = self.plan_settings(plan, version)
        self._refuse_decided(settings)
        program = executable or (self.program.command,)
        return (
            *program,
            *self.start,
            *self.model_words(plan.model),
            *self.address_words(host, port, version),
            *self.server_cmd_args(settings, version),
        )

    def model_words(self, model: str) -> tuple[str, ...]:
        return (model,)

    @property
    def model_options(self) -> tuple[str, ...]:
        """Options before the model in `model_words`; empty where it stands alone."""
        return self.model_words("")[:-1]

    def model_of_word(self, word: str) -> str:
        """The model that a word of `model_words` names."""
        return word

    def option_settings(self, name: str, text: str) -> dict[str, str]:
        """Settings that one option of the command line says, with underscores."""
        return {name: text}

    def address_words(self, host: str, port: int, version: str | None) -> tuple[str, ...]:
        return (self.host_word, host, self.port_word, str(port))

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        return self.words.settings(plan, self.name)

    def _refuse_decided(self, settings: Mapping[str, Setting]) -> None:
        for name in settings:
            if with_underscores(name) in self.decided_here | {"host", "port", "model"}:
                raise PlanError(
                    f"{name} is decided by servetune and cannot be a server argument",
                    hint="use --model, --host and --port",
                )

    def server_cmd_args(
        self, settings: Mapping[str, Setting], version: str | None = None
    ) -> list[str]:
        words: list[str] = []
        for name, value in settings.items():
            option = f"--{self.option_name(name)}"
            if value is True:
                words.append(option)
            elif value is False:
                words += self.false_words(name, version)
            elif value is not None:
                words.append(f"{option}={value}")
        return words

    def option_name(self, name: str) -> str:
        name = with_underscores(name)
        return name if self.underscored else name.replace("_", "-")

    def false_words(self, name: str, version: str | None = None) -> list[str]:
        """Words for `False`: `--no-NAME` where the setting has that form, else none."""
        spec = self.settings(version).named(name)
        return [f"--no-{self.option_name(name)}"] if spec is not None and spec.negatable else []

    def explain(self, log_text: str, exit_code: int | None = None) -> Cause:
        table = log_table(self.table_name)
        return diagnose(log_text, exit_code, symptoms=table.symptom, echoes=table.echo)

    def read_log(self, log_text: str) -> LogReading:
        return read_facts(log_text, log_table(self.table_name).fact)

    def differences(
        self, plan: Plan, taken: Mapping[str, Setting]
    ) -> dict[str, tuple[Setting, Setting]]:
        return differences(self.plan_settings(plan), taken)
