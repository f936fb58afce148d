"""An inference engine, and engines by their names."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from servetune.engines.behaviour import Behaviour, ReleaseDefaults, StepLawFacts
from servetune.engines.cause import Cause, diagnose
from servetune.engines.log import LogReading
from servetune.engines.registry import ENGINES
from servetune.engines.server_side import (
    CacheReset,
    NativeRoutes,
    ServerWords,
    SettingsReport,
)
from servetune.engines.settings import SettingTable, with_underscores
from servetune.engines.shipping import Shipping
from servetune.engines.words import Words
from servetune.errors import UnknownName
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan, Setting

if TYPE_CHECKING:
    from servetune.engines.container import Container


class FirstCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest request that shows that a server really answers.

    Attributes:
        path: Path of the request.
        body: JSON body, without members that the engine refuses.
    """

    path: str = "/v1/completions"
    body: dict[str, Any]


def plain_arguments(settings: Mapping[str, Setting]) -> list[str]:
    """Settings as most programs take them: `--name=value`, a bare switch, or nothing."""
    words = []
    for name, value in settings.items():
        option = f"--{with_underscores(name).replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words


class Engine:
    """An inference engine that runs as a server of its own; a subclass states what differs.

    An engine is a set of pure functions about one program; `process.ServerProcess`
    runs what `command` says. `servetune.testing.engine_contract` holds one to all of this.
    Without a subclass's facts it is a server that speaks HTTP and of which nothing is known.

    Attributes:
        name: Key in `ENGINES`.
        words: Names of its settings for what a Plan says.
        shipping: Deployment of the engine; `None` where servetune cannot deploy it.
        image_word: Word in the name of an image that has it, whose tag then tells its version;
            empty where tags tell something else, such as a number of a build.
        container_module: Module with its `CONTAINERS` of SageMaker; empty where there are none.
        ships_as: Engine that is deployed in its place; empty for itself.
        server_words: Arguments that the simulated server understands in its place; `None` for
            none.
        native_routes: Routes besides OpenAI's that the simulated server answers in its place.
        settings_report: Places where its servers tell their settings.
        cache_reset: Way to empty its prefix cache; `None` where it has none.
        variable_prefixes: Beginnings of the environment variables that it reads itself.
        simulated_as: Name by which a study simulates it in virtual time; empty where none does.
        virtual_time: Whether trials start no server and run in virtual time.
        model_has_config: Whether a model that it serves has a config.json where servetune runs.
        needs_command: Whether the user gives the command that starts its servers.
        lora_settings: Settings that let a server take LoRA adapters; empty where they are not
            known.
        behaviour: Facts that predictions go by.
        defaults: Defaults for what a Plan leaves open, newest release first; empty where not
            known.
        assumed_version: Release that a started server is taken to be where its own version is
            not known.
        starts_servers: Whether `command` starts one; otherwise a server exists already.
        client_args: Client arguments that its clients need where they say nothing else.
        ready_path: Route that answers 200 once the server takes requests.
        metrics_path: Route of its metrics in Prometheus' form; `None` where it has none.
    """

    name: ClassVar[str]
    starts_servers: ClassVar[bool] = True
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    client_args: ClassVar[Mapping[str, str]] = MappingProxyType({})
    words: ClassVar[Words] = Words(any_setting=True)
    shipping: ClassVar[Shipping | None] = None
    image_word: ClassVar[str] = ""
    container_module: ClassVar[str] = ""
    ships_as: ClassVar[str] = ""
    server_words: ClassVar[ServerWords | None] = None
    native_routes: ClassVar[NativeRoutes] = NativeRoutes()
    settings_report: ClassVar[SettingsReport] = SettingsReport()
    cache_reset: ClassVar[CacheReset | None] = None
    variable_prefixes: ClassVar[tuple[str, ...]] = ()
    simulated_as: ClassVar[str] = ""
    virtual_time: ClassVar[bool] = False
    model_has_config: ClassVar[bool] = True
    needs_command: ClassVar[bool] = False
    lora_settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({})
    behaviour: ClassVar[Behaviour] = Behaviour()
    defaults: ClassVar[tuple[ReleaseDefaults, ...]] = ()
    assumed_version: ClassVar[str | None] = None

    @property
    def title(self) -> str:
        """Name as its makers write it."""
        return self.name

    @property
    def containers(self) -> tuple[Container, ...]:
        """Containers of SageMaker that run it, the usual one first."""
        if not self.container_module:
            return ()
        found: tuple[Container, ...] = importlib.import_module(self.container_module).CONTAINERS
        return found

    @property
    def known_arguments(self) -> frozenset[str]:
        """Names of settings with underscores, of the newest version that is known."""
        return frozenset()

    @property
    def known_versions(self) -> tuple[str, ...]:
        """Versions whose settings are bundled, newest first."""
        return ()

    def settings(
        self, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> SettingTable:
        """Settings of the engine with their types and ranges.

        Those that the program itself declares where `executable` is given and can be read,
        else the bundled table of the version, else that of the nearest known version.
        """
        return SettingTable(version="", source="none is known", settings={}, complete=False)

    def check(
        self,
        plan: Plan,
        *,
        version: str | None = None,
        executable: tuple[str, ...] | None = None,
        allow_unknown: bool = False,
    ) -> tuple[str, ...]:
        """Refuse, before anything starts, what this version would refuse.

        Args:
            plan: The plan.
            version: Version of the engine, if it is known.
            executable: Program that will run, if it is installed.
            allow_unknown: Whether settings that no table has are passed on.

        Returns:
            Notes for the user: which version's settings stand in for an unknown one's.

        Raises:
            PlanError: There is no such setting, or it cannot have that value.
        """
        return ()

    def check_starts(self, plan: Plan, shape: NetworkShape, device: Device) -> None:
        """Refuse a resolved Plan that it ends with at start, whatever the memory.

        Nothing is refused where the engine's own checks were not read.

        Raises:
            PlanError: In the engine's words.
        """

    def find_executable(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """The program's first words on this machine.

        Raises:
            EngineError: It is not installed; the hint says what installs it.
        """
        return (given,) if given else ()

    def command(
        self,
        plan: Plan,
        *,
        host: str,
        port: int,
        executable: tuple[str, ...] | None = None,
        version: str | None = None,
    ) -> tuple[str, ...]:
        """The exact words that start the server; equal plans give equal commands.

        Raises:
            PlanError: The plan sets what servetune itself decides, such as the port, or
                chose what the engine has no words for.
        """
        raise NotImplementedError

    def server_cmd_args(
        self, settings: Mapping[str, Setting], version: str | None = None
    ) -> list[str]:
        """Settings as arguments, in the spelling of llm-optimizer's records.

        One word each, `--tensor-parallel-size=4`, but where the engine wants two. `True` is a
        bare switch, `False` the engine's negative form where it has one, else nothing; `None`
        is not said. Text stays as it is, so JSON keeps its quotes. Which form a version has
        its own table tells; that of the newest where none is given.
        """
        return plain_arguments(settings)

    def argument_types(self) -> Mapping[str, type]:
        """Types of the known arguments, for typing the values of a sweep.

        A JSON argument counts as `str`: a setting holds its text.
        """
        return {}

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        """Settings of the engine that express the whole Plan, for a version.

        The command that is measured, the one that is deployed and a container's variables all
        come from these.

        Raises:
            PlanError: The plan chose what the engine has no setting for.
        """
        return self.words.settings(plan, plan.engine)

    def environment(self, plan: Plan) -> dict[str, str]:
        """Environment that the server should have where the user has set none."""
        return self.plan_variables(plan)

    def plan_variables(self, plan: Plan) -> dict[str, str]:
        """Environment variables that say what the Plan chose and no setting can."""
        return {}

    def version(self, executable: tuple[str, ...]) -> str | None:
        """The installed version, or `None` where it cannot be told."""
        return None

    def first_completion(self, model: str) -> FirstCompletion:
        """The request that a server must answer before it counts as ready."""
        return FirstCompletion(body={"model": model, "prompt": "Hello", "max_tokens": 2})

    def served_name(self, plan: Plan) -> str | None:
        """The name to ask for; `None` where `/v1/models` tells it."""
        return None

    def explain(self, log_text: str, exit_code: int | None = None) -> Cause:
        """Cause of a server's end, from its log."""
        return diagnose(log_text, exit_code)

    def read_log(self, log_text: str) -> LogReading:
        """Figures of its log: its cache, its times and the settings that it took."""
        return LogReading()

    def taken_settings(self, log_text: str) -> dict[str, Setting]:
        """The settings that the server really took, in the engine's words."""
        return self.read_log(log_text).taken

    def printed_settings(self, log_text: str) -> dict[str, Setting] | None:
        """Settings of its start-up log, in its own names; `None` where no line tells them."""
        if not re.search(self.settings_report.printed, log_text):
            return None
        return self.read_log(log_text).taken

    def differences(
        self, plan: Plan, taken: Mapping[str, Setting]
    ) -> dict[str, tuple[Setting, Setting]]:
        """Settings that the server took otherwise: name to (the plan's value, the taken one)."""
        return {}


@functools.cache
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


def behaviour_named(name: str) -> Behaviour:
    """Behaviour of an engine, also by its name in measured runs.

    That of an engine that nobody described has no peculiarities.
    """
    if name in ENGINES:
        return engine(name).behaviour
    return _behaviours_by_table_name().get(name, Behaviour())


def step_law_facts(name: str) -> StepLawFacts:
    """Differences of an engine's step times, also by its name in measured runs.

    An engine that nobody described has none.
    """
    facts = behaviour_named(name).step_law
    return facts if facts.name else msgspec.structs.replace(facts, name=name)


@functools.cache
def _behaviours_by_table_name() -> Mapping[str, Behaviour]:
    behaviours = (engine(name).behaviour for name in ENGINES)
    return {word: found for found in behaviours for word in found.step_law.table_names}


@functools.cache
def facts_by_table_name() -> Mapping[str, StepLawFacts]:
    """Step-law facts of the engines that tables of measurements name, by each such name."""
    return {word: found.step_law for word, found in _behaviours_by_table_name().items()}
