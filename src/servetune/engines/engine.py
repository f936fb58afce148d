"""The protocol of an inference engine, and engines by their names."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from servetune.engines.behaviour import Behaviour, ReleaseDefaults, StepLawFacts
from servetune.engines.cause import Cause
from servetune.engines.log import LogReading
from servetune.engines.registry import ENGINES
from servetune.engines.server_side import CacheReset, ServerWords, SettingsReport
from servetune.engines.settings import SettingTable
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


class Engine(Protocol):
    """An inference engine that runs as a server of its own.

    An engine is a set of pure functions about one program; `process.ServerProcess`
    runs what `command` says. `servetune.testing.engine_contract` holds one to all of this.
    """

    @property
    def name(self) -> str:
        """Key in `ENGINES`."""

    @property
    def title(self) -> str:
        """As its makers write it."""

    @property
    def words(self) -> Words:
        """Names of its settings for what a Plan says."""

    @property
    def shipping(self) -> Shipping | None:
        """Its deployment; `None` where servetune cannot deploy it."""

    @property
    def image_word(self) -> str:
        """Word in the name of an image that has it, whose tag then tells its version.

        Empty where tags tell something else, such as a number of a build.
        """

    @property
    def containers(self) -> tuple[Container, ...]:
        """Containers of SageMaker that run it, the usual one first."""

    @property
    def ships_as(self) -> str:
        """Engine that is deployed in its place; empty for itself."""

    @property
    def server_words(self) -> ServerWords | None:
        """Arguments that the simulated server understands in its place; `None` for none."""

    @property
    def settings_report(self) -> SettingsReport:
        """Places where its servers tell their settings."""

    @property
    def cache_reset(self) -> CacheReset | None:
        """Way to empty its prefix cache; `None` where it has none."""

    @property
    def variable_prefixes(self) -> tuple[str, ...]:
        """Beginnings of the environment variables that it reads itself."""

    @property
    def simulated_as(self) -> str:
        """Engine that simulates its searches in virtual time; empty where there is none."""

    @property
    def virtual_time(self) -> bool:
        """Whether trials start no server and run in virtual time."""

    @property
    def model_has_config(self) -> bool:
        """Whether a model that it serves has a config.json where servetune runs."""

    @property
    def needs_command(self) -> bool:
        """Whether the user gives the command that starts its servers."""

    @property
    def lora_settings(self) -> Mapping[str, Setting]:
        """Settings that let a server take LoRA adapters; empty where they are not known."""

    @property
    def behaviour(self) -> Behaviour:
        """Facts that predictions go by."""

    @property
    def defaults(self) -> tuple[ReleaseDefaults, ...]:
        """Defaults for what a Plan leaves open, newest release first; empty where not known."""

    @property
    def assumed_version(self) -> str | None:
        """Release that a started server is taken to be where its own version is not known."""

    def check_starts(self, plan: Plan, shape: NetworkShape, device: Device) -> None:
        """Refuse a resolved Plan that it ends with at start, whatever the memory.

        Raises:
            PlanError: In the engine's words.
        """

    @property
    def starts_servers(self) -> bool:
        """Whether `command` starts one; otherwise a server is there already."""

    @property
    def client_args(self) -> Mapping[str, str]:
        """Client arguments that its clients need where they say nothing else."""

    @property
    def ready_path(self) -> str:
        """Answers 200 once the server takes requests."""

    @property
    def metrics_path(self) -> str | None:
        """Route of its metrics in Prometheus' form; `None` where it has none."""

    @property
    def known_arguments(self) -> frozenset[str]:
        """Names of settings with underscores, of the newest version that is known."""

    @property
    def known_versions(self) -> tuple[str, ...]:
        """Versions whose settings are bundled, newest first."""

    def settings(
        self, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> SettingTable:
        """Its settings with their types and ranges.

        Those that the program itself declares where `executable` is given and can be read,
        else the bundled table of the version, else that of the nearest known version.
        """

    def check(
        self, plan: Plan, *, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Refuse, before anything starts, what this version would refuse.

        Returns:
            Notes for the user: which version's settings stand in for an unknown one's.

        Raises:
            PlanError: There is no such setting, or it cannot have that value.
        """

    def find_executable(
        self, given: str | None = None, *, environ: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """The program's first words on this machine.

        Raises:
            EngineError: It is not installed; the hint says what installs it.
        """

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

    def server_cmd_args(
        self, settings: Mapping[str, Setting], version: str | None = None
    ) -> list[str]:
        """Settings as arguments, in the spelling of llm-optimizer's records.

        One word each, `--tensor-parallel-size=4`, but where the engine wants two. `True` is a
        bare switch, `False` the engine's negative form where it has one, else nothing; `None`
        is not said. Text stays as it is, so JSON keeps its quotes. Which form a version has
        its own table tells; that of the newest where none is given.
        """

    def argument_types(self) -> Mapping[str, type]:
        """Types of the known arguments, for typing the values of a sweep.

        A JSON argument counts as `str`: a setting holds its text.
        """

    def spoken(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        """Its settings that say everything the Plan chose, for a version.

        The command that is measured, the one that is deployed and a container's variables all
        come from these.

        Raises:
            PlanError: The plan chose what the engine has no setting for.
        """

    def plan_variables(self, plan: Plan) -> dict[str, str]:
        """Environment variables that say what the Plan chose and no setting can."""

    def environment(self, plan: Plan) -> dict[str, str]:
        """Environment that the server should have where the user has set none."""

    def version(self, executable: tuple[str, ...]) -> str | None:
        """The installed version, or `None` where it cannot be told."""

    def first_completion(self, model: str) -> FirstCompletion:
        """The request that a server must answer before it counts as ready."""

    def served_name(self, plan: Plan) -> str | None:
        """The name to ask for; `None` where `/v1/models` tells it."""

    def explain(self, log_text: str, exit_code: int | None = None) -> Cause:
        """Cause of a server's end, from its log."""

    def read_log(self, log_text: str) -> LogReading:
        """Figures of its log: its cache, its times and the settings that it took."""

    def taken_settings(self, log_text: str) -> dict[str, Setting]:
        """The settings that the server really took, in the engine's words."""

    def printed_settings(self, log_text: str) -> dict[str, Setting] | None:
        """Settings of its start-up log, in its own names; `None` where no line tells them."""

    def differences(
        self, plan: Plan, taken: Mapping[str, Setting]
    ) -> dict[str, tuple[Setting, Setting]]:
        """Settings that the server took otherwise: name to (the plan's value, the taken one)."""


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


def step_law_facts(name: str) -> StepLawFacts:
    """Differences of an engine's step times, also by its name in measured runs.

    An engine that nobody described has none.
    """
    if name in ENGINES:
        facts = engine(name).behaviour.step_law
    else:
        facts = facts_by_table_name().get(name, StepLawFacts())
    return facts if facts.name else msgspec.structs.replace(facts, name=name)


@functools.cache
def facts_by_table_name() -> Mapping[str, StepLawFacts]:
    """Step-law facts of the engines that tables of measurements name, by each such name."""
    laws = (engine(name).behaviour.step_law for name in ENGINES)
    return {word: law for law in laws for word in law.table_names}
