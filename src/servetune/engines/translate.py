"""Plans to an engine's settings and back, for any engine by its name."""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.engine import engine as engine_named
from servetune.engines.registry import ENGINES
from servetune.engines.words import Settings
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
    return engine_named(engine).words.plan(engine, model, settings)


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
    return engine_named(engine).words.plan_fields(settings)
