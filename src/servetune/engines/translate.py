"""Plans to an engine's settings and back, for any engine by its name."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from servetune.engines.engine import Engine
from servetune.engines.engine import engine as engine_named
from servetune.engines.registry import ENGINES
from servetune.engines.settings import PASSED_ON, SettingTable, with_underscores
from servetune.engines.words import FIELD_TYPES, Settings
from servetune.errors import PlanError
from servetune.plan.plan import Plan, Setting


def plan_from_settings(engine: str, model: str, settings: Mapping[str, Setting]) -> Plan:
    """The Plan that an engine's settings describe.

    Args:
        engine: A key of `ENGINES`.
        model: Hub id or local folder.
        settings: The engine's names (dashes or underscores) to values.

    Raises:
        UnknownName: There is no such engine.
        PlanError: A value cannot be that field's.
    """
    named = engine_named(engine)
    return named.words.plan(engine, model, named.settings().affirmed(settings))


def plan_of_any_engine(settings: Mapping[str, Setting]) -> Plan:
    """Plan of settings whose engine is not recorded, read as the engine that knows most of them.

    Raises:
        PlanError: A value cannot be that field's.
    """
    return plan_from_settings(
        max(ENGINES, key=lambda name: len(fields_of(name, settings))), "", settings
    )


def settings_of(plan: Plan, engine: str | None = None) -> Settings:
    """The engine's settings that say everything the Plan chose.

    The degree of tensor parallelism is always written where the engine has a name for it, other
    fields where they are not `None`. The order is that of `Words.fields`, then `otherwise`, then
    `extra` by name, so that equal plans give equal commands.

    Raises:
        PlanError: The plan chose something that the engine has no setting for, or has servers
            of several kinds.
    """
    name = engine or plan.engine
    return engine_named(name).words.settings(plan, name)


def fields_of(engine: str, settings: Mapping[str, object]) -> Settings:
    """Fields of a Plan that an engine's settings say; what cannot be one is left out."""
    named = engine_named(engine)
    return named.words.plan_fields(named.settings().affirmed(settings))


def require_own_words(
    served_by: Engine, plan: Plan, table: SettingTable, remedy: str = PASSED_ON
) -> None:
    """Refuse another engine's name for what this engine calls otherwise.

    `tensor_parallel_size` would reach TGI's launcher beside its own `num_shard`.

    Args:
        served_by: Engine of the plan.
        plan: Plan whose settings were given in the engine's words.
        table: Settings of the engine.
        remedy: End of the hint.

    Raises:
        PlanError: A setting is another engine's; the hint has this engine's name for it.
    """
    words = served_by.words
    for name, _ in plan.extra:
        field = _fields_of_all().get(with_underscores(name))
        if field is None or table.named(name) is not None:
            continue
        own, title = words.name_of(field), served_by.title
        if own is None and not table.complete and field not in words.instead:
            continue
        other = words.instead.get(field, f"{title} has no setting for {field}")
        raise PlanError(
            f"{title} has no setting {with_underscores(name)}",
            hint=f"{f'{title} calls it {own}' if own else other}; {remedy}",
        )


@functools.cache
def _fields_of_all() -> Mapping[str, str]:
    """Names of all engines' settings and of a Plan's fields, to the field that they say."""
    fields = {name: name for name in FIELD_TYPES}
    for each in ENGINES:
        words = engine_named(each).words
        spelt = {alias: words.fields.get(name) for alias, name in words.aliases.items()}
        known = {name: field for name, field in spelt.items() if field is not None}
        fields = {**words.fields, **known, **fields}
    return fields


def require_known_settings(
    served_by: Engine, plan: Plan, *, allow_unknown: bool, remedy: str = PASSED_ON
) -> None:
    """Refuse settings with which the engine would not start.

    Args:
        served_by: Engine of the plan.
        plan: Plan whose settings were given in the engine's words.
        allow_unknown: Whether settings that its table lacks are passed on.
        remedy: End of the hint at a setting that is refused.

    Raises:
        PlanError: The newest version that is known has no such setting.
    """
    table = served_by.settings()
    if not allow_unknown:
        require_own_words(served_by, plan, table, remedy)
    if table.settings:
        exact = msgspec.structs.replace(table, exact=True)
        exact.check(served_by.title, dict(plan.extra), allow_unknown=allow_unknown, remedy=remedy)
