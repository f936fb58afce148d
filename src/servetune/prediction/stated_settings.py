"""Server settings that a row of a table states, in its engine's own words."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from servetune.engines import (
    ENGINES,
    fields_of,
    plan_from_settings,
    require_known_settings,
    step_law_facts,
)
from servetune.engines import engine as engine_named
from servetune.engines.behaviour import AttentionRanks
from servetune.errors import InputError
from servetune.plan import Setting
from servetune.search import fixed_settings

#: Fields of a plan that a row has columns for.
_COLUMNS = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "data_parallel": "dp",
    "expert_parallel": "moe_ep",
}


@functools.lru_cache(maxsize=1024)
def stated_settings(engine: str, text: str) -> Mapping[str, Setting]:
    """Fields of a plan that settings of a server fill.

    Args:
        engine: Engine by the name of its measured runs.
        text: Settings as in `--server-args`, one value each.

    Raises:
        InputError: A setting has several values, or one that has a column of its own.
        PlanError: The engine has no such setting, or a value cannot be that setting's.
    """
    if not text:
        return {}
    name = registered(engine)
    served_by = engine_named(name)
    settings = fixed_settings(text, types=served_by.settings().types())
    told = plan_from_settings(name, "", settings)
    require_known_settings(served_by, told, allow_unknown=False)
    found = {field: getattr(told, field) for field in fields_of(name, settings)}
    if told.extra:
        found["extra"] = told.extra
    for field, column in _COLUMNS.items():
        if field in found:
            raise InputError(
                f"{field} is not read from server_args", hint=f"give it in the column {column}"
            )
    return found


@functools.cache
def registered(engine: str) -> str:
    """Name in `ENGINES` of an engine that is given by the name of its measured runs."""
    return next(name for name in ENGINES if step_law_facts(name).name == engine)


def attention_ranks(engine: str, stated: Mapping[str, Setting]) -> AttentionRanks | None:
    """Data-parallel attention that stated settings turn on, if they do."""
    ranks = engine_named(registered(engine)).behaviour.attention_ranks
    extra = stated.get("extra", ())
    on = ranks is not None and (ranks.setting, True) in (extra if isinstance(extra, tuple) else ())
    return ranks if on else None
