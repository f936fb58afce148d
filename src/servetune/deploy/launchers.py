"""Translation of a Plan to the engine's command that a deployment starts, and back.

SageMaker's containers take variables (`deploy.containers`); everywhere else an engine is
started by its command, which `Engine.command` makes, so that what is deployed is what was
measured. A Plan is first *filled* (`filled`): what the engine decides by itself and a measurement
depends on becomes part of the Plan, and what it has no setting for is refused or noted. A filled
Plan goes through `words_of` and `plan_of_words` without loss.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from servetune.engines import ENGINES, engine
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.shipping import Shipping
from servetune.engines.words import FIELD_TYPES, Settings
from servetune.errors import CannotRender, PlanError, UnknownName
from servetune.plan.plan import Plan, Setting
from servetune.secret import is_secret

_SETTING = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")


def deployable_engines() -> tuple[str, ...]:
    """Names of the engines whose command can be deployed."""
    return tuple(name for name in ENGINES if engine(name).shipping is not None)


def launcher_of(plan: Plan) -> CommandLineEngine:
    """The engine whose command serves a Plan: its own, or the one that it stands in for.

    Raises:
        UnknownName: The engine cannot be deployed.
    """
    known = engine(plan.engine) if plan.engine in ENGINES else None
    found = engine(known.ships_as) if known is not None and known.ships_as else known
    if found is None or found.shipping is None or not isinstance(found, CommandLineEngine):
        raise UnknownName("engine to deploy", plan.engine, deployable_engines())
    return found


def shipping_of(launcher: CommandLineEngine) -> Shipping:
    """Shipping of an engine that `launcher_of` found."""
    assert launcher.shipping is not None
    return launcher.shipping


def other_targets(engine_name: str) -> str:
    """Targets off SageMaker that deploy an engine, as a sentence."""
    if engine_name not in deployable_engines():
        return f"engines that are deployed: {', '.join(deployable_engines())}"
    shipping = engine(engine_name).shipping
    assert shipping is not None
    targets = ["systemd", "command"]
    if any(build.repository for build in shipping.builds):
        targets = ["kubernetes", "kserve", "compose", *targets]
    if shipping.install:
        targets.append("bentoml")
    named = "" if "compose" in targets else "; kubernetes, kserve and compose with --image"
    return f"servetune deploy {', '.join(targets)} run it{named}"


def filled(
    launcher: CommandLineEngine,
    plan: Plan,
    *,
    served_name: str,
    concurrency: int = 0,
    version: str = "",
) -> tuple[Plan, tuple[str, ...]]:
    """The Plan as the launcher will be told it, and what a reader must know of the difference.

    Args:
        launcher: Engine whose command is rendered.
        plan: Resolved: every field that a default could change is set.
        served_name: Name of the model for clients.
        concurrency: Requests in flight at one copy, for launchers that refuse beyond a limit.
        version: Version of the engine that will run; the usual one where empty.

    Raises:
        CannotRender: The Plan says something that the launcher has no word for, or a credential.
    """
    own = msgspec.structs.replace(plan, engine=launcher.name, draft_acceptance_fraction=None)
    extra = dict(_plainly(own.extra))
    shipping = shipping_of(launcher)
    occupied = launcher.decided_here | {"host", "port", "model", shipping.name_setting}
    for name, value in extra.items():
        if name in occupied:
            raise CannotRender(
                f"'{name}' is decided by the deployment",
                hint="leave it out; --port and --model-source say where and what",
            )
        if is_secret(name, value):
            raise CannotRender(
                f"setting '{name}' is a credential, and a command line can be read by everyone",
                hint="leave it out; every target takes tokens by reference (see its README)",
            )
        if not _SETTING.fullmatch(name):
            raise CannotRender(f"'{name}' is not the name of a setting")
    for field, value in {**msgspec.structs.asdict(own), **extra}.items():
        if isinstance(value, str) and not value.isprintable():
            raise CannotRender(
                f"setting '{field}' holds what a command line cannot",
                hint="put it into a file and name that file",
            )
    version = version or shipping.usual_version
    own_settings = {
        name: value
        for name, value in extra.items()
        if value is not False or launcher.false_words(name, version)
    }
    own, notes = shipping.fill(_with_extra(own, own_settings), concurrency, version)
    if shipping.name_setting:
        own = _with_extra(own, {shipping.name_setting: served_name, **dict(own.extra)})
    try:
        _refuse_contradictions(launcher, own)
    except PlanError as error:
        raise CannotRender(error.message, hint=error.hint) from None
    return own, tuple(notes)


def words_of(
    launcher: CommandLineEngine,
    plan: Plan,
    *,
    model: str,
    host: str,
    port: int,
    version: str | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """The command, the words behind it and the variables beside it.

    Args:
        launcher: Engine whose command is rendered.
        plan: A filled one.
        model: Model as the server finds it: hub id or a path that it sees.
        host: Address to listen on.
        port: Port to listen on.
        version: Version of the engine that will run.
    """
    served = msgspec.structs.replace(plan, model=model)
    command = (launcher.program.command, *launcher.start)
    words = launcher.command(served, host=host, port=port, version=version)
    return command, words[len(command) :], launcher.plan_variables(plan)


def plan_of_words(
    launcher: CommandLineEngine,
    words: Sequence[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """The filled Plan that the words behind a command, and variables, say; copies are the target's.

    Raises:
        CannotRender: The words name no model, or hold something that is no setting.
    """
    shipping = shipping_of(launcher)
    model_path, settings = "", Settings()
    address = {launcher.host_word, launcher.port_word}
    for option, text in _pairs(launcher, words):
        if option in address:
            continue
        if not option or option in launcher.model_options:
            model_path = launcher.model_of_word(text or "")
            continue
        name = option.removeprefix("--").replace("-", "_")
        if text is not None:
            for setting, value in launcher.option_settings(name, text).items():
                settings[setting] = _value(launcher.name, setting, value)
        elif name.startswith("no_"):
            settings[name.removeprefix("no_")] = False
        else:
            settings[name] = True
    if not model_path:
        raise CannotRender(f"the command line names no model: {shlex.join(words)[:200]}")
    fields = shipping.read(settings, variables)
    named = settings.get(shipping.name_setting)
    model = str(named) if named and model_path.startswith("/") else model_path
    try:
        plan = launcher.words.plan(launcher.name, model, settings)
        return msgspec.structs.replace(plan, **fields)
    except (PlanError, TypeError) as error:
        raise CannotRender(f"the command line has a wrong value: {error}") from None


def _pairs(launcher: CommandLineEngine, words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Options with their values, after `=` or in the next word; a model without one has ""."""
    switches = {name for name, kind in launcher.argument_types().items() if kind is bool}
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            yield "", word
            continue
        option, equals, text = word.partition("=")
        if equals:
            yield option, text
        elif (
            left
            and not left[0].startswith("--")
            and option.removeprefix("--").replace("-", "_") not in switches
        ):
            yield option, left.pop(0)
        else:
            yield option, None


def _refuse_contradictions(launcher: CommandLineEngine, plan: Plan) -> None:
    beside = launcher.words.drafts_beside(plan)  # which may name the checkpoint that drafts
    extra = tuple((name, value) for name, value in plan.extra if name in beside)
    settings = launcher.plan_settings(msgspec.structs.replace(plan, extra=extra))
    for name, value in plan.extra:
        if settings.get(name, value) != value:
            raise CannotRender(f"the plan says both {name}={settings[name]} and {name}={value}")


def _plainly(extra: Sequence[tuple[str, Setting]]) -> list[tuple[str, Setting]]:
    """Names with underscores, and `no_x=true` said as `x=false`."""
    plain: list[tuple[str, Setting]] = []
    for raw_name, value in extra:
        name = raw_name.lstrip("-").replace("-", "_")
        if name.startswith("no_") and isinstance(value, bool):
            plain.append((name.removeprefix("no_"), not value))
        elif value is not None:
            plain.append((name, value))
    return plain


def _with_extra(plan: Plan, extra: Mapping[str, Setting]) -> Plan:
    """The Plan with these further settings; those that have a field fill it."""
    names = engine(plan.engine).words.fields
    fields: dict[str, Setting] = {}
    rest: dict[str, Setting] = {}
    for name, value in extra.items():
        field = names.get(name)
        if field is None:
            rest[name] = value
        elif getattr(plan, field) not in (None, value):
            raise CannotRender(f"the plan says {field}={getattr(plan, field)} and {name}={value}")
        else:
            fields[field] = value
    try:
        return msgspec.structs.replace(plan, extra=tuple(sorted(rest.items())), **fields)
    except TypeError as error:
        raise CannotRender(f"the plan's settings contradict it: {error}") from None


def _value(dialect: str, name: str, text: str) -> Setting:
    """A word's text as the type that the Plan's field wants, else as it looks."""
    field = engine(dialect).words.fields.get(name)
    if (field and FIELD_TYPES[field] is str) or name == "served_model_name":
        return text
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?", text):
        return float(text)
    return text
