"""Server settings that a row of a table states, in its engine's own words."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from servetune.engines import (
    ENGINES,
    fields_of,
    plan_from_settings,
    require_known_settings,
    require_own_words,
    step_law_facts,
)
from servetune.engines import engine as engine_named
from servetune.engines.behaviour import AttentionRanks, release_numbers
from servetune.engines.settings import with_underscores
from servetune.errors import InputError
from servetune.plan import Plan, Setting
from servetune.search import fixed_settings

#: Fields of a plan that a row has columns for.
_COLUMNS = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "data_parallel": "dp",
    "expert_parallel": "moe_ep",
}


@functools.lru_cache(maxsize=1024)
def stated_settings(engine: str, text: str, version: str = "") -> Mapping[str, Setting]:
    """Fields of a plan that settings of a server fill.

    Args:
        engine: Engine by the name of its measured runs.
        text: Settings as in `--server-args`, one value each.
        version: Release of the engine. One whose settings are not known here may have others.

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
    another = bool(version) and not served_by.settings(version).exact
    remedy = "leave it out, or state the engine_version that has it"
    require_own_words(served_by, told, served_by.settings(), "leave it out")
    require_known_settings(served_by, told, allow_unknown=another, remedy=remedy)
    found: dict[str, Any] = dict(fields_of(name, settings))
    if told.draft_tokens is not None:
        found |= {"draft_tokens": told.draft_tokens, "draft_method": told.draft_method}
    if told.extra:
        found["extra"] = told.extra
    for field, column in _COLUMNS.items():
        if field in found:
            raise InputError(
                f"{served_by.words.name_of(field) or field} is not read from server_args",
                hint=f"give it in the column {column}",
            )
    return found


def is_release(version: str) -> bool:
    """Whether a row's release is one: a number of two parts, a year, a build of llama.cpp, or a
    name with a number.
    """
    named = re.match(r"v?\d+\.\d|20\d\d(?!\d)|b\d+|[a-zA-Z]+[- ]?v?\d+\.\d", version)
    return named is not None


@functools.lru_cache(maxsize=1024)
def is_later(version: str, engine: str) -> bool:
    """Whether a release is later than any whose settings are known here.

    Args:
        version: Release as a row states it.
        engine: Engine by the name of its measured runs.
    """
    release = release_numbers(version)
    known = release_numbers(engine_named(registered(engine)).settings().version)
    return release is not None and known is not None and release > known


@functools.cache
def registered(engine: str) -> str:
    """Name in `ENGINES` of an engine that is given by the name of its measured runs."""
    return next(name for name in ENGINES if step_law_facts(name).name == engine)


def idle_settings(engine: str, plan: Plan) -> tuple[str, ...]:
    """Names of a row's settings that its prediction does not depend on, whatever they do.

    Args:
        engine: Engine by the name of its measured runs.
        plan: Plan of the row.
    """
    served_by = engine_named(registered(engine))
    behaviour, words = served_by.behaviour, served_by.words
    read = {*behaviour.priced_settings, *words.drafts_beside(plan)}
    if behaviour.attention_ranks is not None:
        read.add(behaviour.attention_ranks.setting)
    idle = [
        name
        for name, value in plan.extra
        if with_underscores(name) not in read and not words.plan_fields({name: value})
    ]
    table = served_by.settings()
    slips = {name: "" if table.named(name) else table.slip_of(name) for name in idle}
    return tuple(f"{name} (did you mean {slips[name]})" if slips[name] else name for name in idle)


def attention_ranks(engine: str, stated: Mapping[str, Setting]) -> AttentionRanks | None:
    """Data-parallel attention that stated settings turn on, if they do."""
    ranks = engine_named(registered(engine)).behaviour.attention_ranks
    return ranks if ranks is not None and _has(stated, ranks, True) else None


def refuses_attention_ranks(engine: str, stated: Mapping[str, Setting]) -> bool:
    """Whether stated settings turn data-parallel attention off."""
    ranks = engine_named(registered(engine)).behaviour.attention_ranks
    return ranks is not None and _has(stated, ranks, False)


def _has(stated: Mapping[str, Setting], ranks: AttentionRanks, value: bool) -> bool:
    extra = stated.get("extra", ())
    return isinstance(extra, tuple) and (ranks.setting, value) in extra
