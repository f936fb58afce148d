"""Plan that an estimate is asked about: its options, and settings in the engine's own words."""

from __future__ import annotations

import msgspec

from servetune.api.notes import note
from servetune.api.shared_options import Drafts, PlanOptions
from servetune.engines import engine, plan_from_settings, require_known_settings
from servetune.errors import InputError
from servetune.plan import Plan
from servetune.search import fixed_settings


def estimated_plan(
    model: str,
    name: str,
    version: str | None,
    options: PlanOptions,
    drafts: Drafts,
    server_args: tuple[str, ...],
    *,
    allow_unknown: bool,
    stages: bool = False,
) -> Plan:
    """The plan of an estimate; its split is chosen later, except for pipeline stages.

    Args:
        model: Hub id or local folder.
        name: Engine.
        version: Release of it; `None` for the newest that is known.
        options: Number formats and longest sequence.
        drafts: Drafted tokens.
        server_args: Further settings by the engine's names.
        allow_unknown: Whether settings that the engine's table lacks are passed on.
        stages: Whether the settings may divide the network into pipeline stages.

    Raises:
        InputError: A setting has several values, or is an option's or the split.
        PlanError: The engine has no such setting.
    """
    served_by = engine(name)
    settings = fixed_settings(
        ";".join(server_args),
        types=served_by.settings().types(),
        hint=f"sweep it with servetune tune --engine {name}",
    )
    told = plan_from_settings(name, model, settings)
    require_known_settings(served_by, told, allow_unknown=allow_unknown)
    read = served_by.behaviour.priced_settings | served_by.words.drafts_beside(told)
    idle = [each for each, _ in told.extra if each not in read]
    if idle:
        note(f"note: without effect on the estimate: {', '.join(idle)}")
    fields = {
        "engine_version": version,
        "quantization": options.quantization,
        "kv_cache_dtype": options.kv_cache_dtype,
        "max_model_len": options.max_model_len,
        "draft_tokens": drafts.draft_tokens,
        "draft_method": drafts.draft_method,
        "draft_acceptance_fraction": drafts.draft_acceptance_fraction,
    }
    chosen = {field: value for field, value in fields.items() if value is not None}
    alone = Plan(model=model)
    twice = [field for field in chosen if getattr(told, field) != getattr(alone, field)]
    if twice:
        raise InputError(
            f"{twice[0]} is given twice, in --server-args and by its own option",
            hint="leave one of them out",
        )
    if told.pipeline_parallel > 1 and not stages:
        raise InputError(
            "pipeline stages are priced for one machine, without --sweep",
            hint="leave them out of --server-args, or name one --gpu",
        )
    if told.devices_per_replica > told.pipeline_parallel or told.expert_parallel:
        raise InputError(
            "the split over GPUs is not read from --server-args", hint="give --tensor-parallel"
        )
    return msgspec.structs.replace(told, **chosen)
