"""Setting names: how an engine spells a Plan's fields, there and back.

A sweep, a journal and a command line use the engine's own names (`tensor_parallel_size`); a
Plan uses neutral ones. Each engine's folder has one `Words`, the only place where the two
meet, so that a value that was swept cannot be lost on its way to a server or to a deployment.
Settings that it does not list pass through as `Plan.extra`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from servetune.engines.tables import engine_table
from servetune.errors import PlanError
from servetune.json_value import JsonMembers, JsonObject
from servetune.plan.plan import Plan, Setting

Settings = dict[str, Setting]

_NONE: JsonMembers = MappingProxyType({})


class DraftWords(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which an engine is told of drafted tokens (speculative decoding).

    Attributes:
        names: The settings; without the first one nothing is drafted.
        settings: Settings of a plan that drafts. It raises `PlanError` for a method that the engine
            lacks, or that needs another checkpoint, which a plan does not name.
        read: `draft_tokens` and `draft_method` by all settings of a server; `None` where a step
            costs what a Plan cannot say, so that they pass through and no prediction knows of the
            drafts.
        besides: Settings that name another checkpoint that drafts.
    """

    names: tuple[str, ...]
    settings: Callable[[Plan], Settings]
    read: Callable[[Mapping[str, Setting]], JsonObject | None]
    besides: tuple[str, ...] = ()


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """Names and values with which an engine's settings say what a Plan says.

    Attributes:
        fields: Setting to the Plan's field that it says.
        aliases: Further spellings to the setting.
        values: Field to the values that the engine calls otherwise; `None` where silence says it.
        otherwise: Field that no setting says by itself, to the settings that say a Plan's value.
        instead: Field without words, to what a user may give in its place.
        drafts: Settings of drafted tokens; `None` where a Plan cannot say them.
        any_setting: Whether the engine's settings are not known, so that nothing is refused.
        read: Fields that settings say in another way than `fields`, as far as they are there.
    """

    fields: Mapping[str, str] = _NONE
    aliases: Mapping[str, str] = _NONE
    values: Mapping[str, Mapping[Setting, Setting]] = _NONE
    otherwise: Mapping[str, Callable[[Plan], Settings]] = _NONE
    instead: Mapping[str, str] = _NONE
    drafts: DraftWords | None = None
    any_setting: bool = False
    read: Callable[[Mapping[str, Setting]], Settings] = lambda _: {}

    def name_of(self, field: str) -> str | None:
        """Setting that says a Plan's field; `None` where none says it by itself."""
        return next((name for name, each in self.fields.items() if each == field), None)

    def plan(self, engine: str, model: str, settings: Mapping[str, Setting]) -> Plan:
        """The Plan that settings describe; see `translate.plan_from_settings`."""
        extra: Settings = {}
        without_graphs = self._without_graphs()
        own = {self._own_name(name): value for name, value in settings.items()}
        fields, beside = self._split_drafts(own)
        for name, value in beside.items():
            if name in self.fields:
                fields[self.fields[name]] = _checked(self.fields[name], name, value)
            elif (name, str(value)) == without_graphs:
                fields["enforce_eager"] = True
            else:
                extra[name] = value
        return Plan(model=model, engine=engine, extra=tuple(sorted(extra.items())), **fields)

    def _own_name(self, name: str) -> str:
        """The engine's usual name of a setting, in underscores."""
        name = name.replace("-", "_")
        return name if name in self.fields else self.aliases.get(name, name)

    def _split_drafts(self, settings: Settings) -> tuple[JsonObject, Settings]:
        """Fields that settings of drafted tokens say, and the settings beside those."""
        if self.drafts is None:
            return {}, settings
        names = self.drafts.names
        given = {k: v for k, v in settings.items() if k not in names or v is not None}
        fields = self.drafts.read(given) if names[0] in given else None
        if fields is None:
            return {}, given
        with contextlib.suppress(PlanError):
            self.drafts.settings(Plan(model="", **fields))
            return fields, {k: v for k, v in given.items() if k not in names}
        return fields, given  # what drafts is named by the settings alone

    def _without_graphs(self) -> tuple[str, str] | None:
        """Setting that turns graphs off, where it is no field's own: `cuda_graphs` 0 of TGI."""
        if "enforce_eager" not in self.otherwise:
            return None
        said = self.otherwise["enforce_eager"](Plan(model="", enforce_eager=True))
        return next((name, str(value)) for name, value in said.items())

    def settings(self, plan: Plan, engine: str) -> Settings:
        """Settings that say everything a Plan chose; see `translate.settings_of`."""
        if plan.prefill_replicas is not None:
            raise PlanError(
                "servers that only compute prompts are simulated, not started or deployed yet",
                hint="leave prefill_replicas out, or use servetune simulate",
            )
        settings: Settings = {}
        for name, field in self.fields.items():
            value = getattr(plan, field)
            if field == "tensor_parallel" or value not in (None, _SILENT.get(field)):
                settings[name] = self.values.get(field, {}).get(value, value)
        settings.update(self._otherwise(plan, engine))
        if plan.draft_tokens is not None:
            settings.update(self._draft_settings(plan, engine))
        settings.update(plan.extra)
        return settings

    def plan_fields(self, settings: JsonMembers) -> Settings:
        """Fields of a Plan that settings say; what cannot be one is left out."""
        found: Settings = {}
        for name, value in settings.items():
            field = self.fields.get(name.replace("-", "_"))
            if field is not None and value is not None:
                with contextlib.suppress(PlanError):
                    found[field] = _checked(field, name, value)
        return found | self.read(settings)

    def _otherwise(self, plan: Plan, engine: str) -> Settings:
        """Settings for the fields that no setting of the same meaning says."""
        settings: Settings = {}
        if self.any_setting:
            return settings
        plain = self.fields.values()
        for field in FIELD_TYPES:
            value = getattr(plan, field)
            if field in plain or value in (None, _SILENT.get(field)):
                continue
            if field in self.otherwise:
                settings.update(self.otherwise[field](plan))
            elif field != "tensor_parallel" or value != 1:
                raise PlanError(
                    f"{engine} has no setting for {field}",
                    hint=self.instead.get(field, "leave it out, or give the engine's own setting"),
                )
        return settings

    def _draft_settings(self, plan: Plan, engine: str) -> Settings:
        if self.drafts is None:
            raise PlanError(
                f"{engine} has no neutral setting for drafted tokens",
                hint="give its own settings for speculative decoding instead",
            )
        try:
            settings = self.drafts.settings(plan)
        except PlanError:
            if self._said_beside(plan):
                return {}
            raise
        for name, value in plan.extra:
            if settings.get(name, value) != value:
                raise PlanError(
                    f"{name}={value} contradicts draft_tokens {plan.draft_tokens}",
                    hint=f"leave {name} out, or draft_tokens",
                )
        return settings

    def drafts_beside(self, plan: Plan) -> frozenset[str]:
        """Settings beside a plan's fields that say its drafts."""
        if self.drafts is None or plan.draft_tokens is None:
            return frozenset()
        return frozenset((*self.drafts.names, *self.drafts.besides))

    def says_drafts(self, plan: Plan) -> bool:
        """Whether settings can say a plan's drafts, the checkpoint that drafts included."""
        if plan.draft_tokens is None:
            return True
        with contextlib.suppress(PlanError):
            self._draft_settings(plan, plan.engine)
            return True
        return False

    def _said_beside(self, plan: Plan) -> bool:
        """Whether settings beside a plan's fields say its drafts and what checkpoint drafts."""
        beside = dict(plan.extra)
        if self.drafts is None or self.drafts.names[0] not in beside:
            return False
        said = self.drafts.read(beside) or {}
        told = {"draft_tokens": plan.draft_tokens, "draft_method": plan.draft_method}
        return said == told


def words_of(
    engine: str,
    *,
    values: Mapping[str, Mapping[Setting, Setting]] | None = None,
    otherwise: Mapping[str, Callable[[Plan], Settings]] = _NONE,
    drafts: DraftWords | None = None,
    read: Callable[[Mapping[str, Setting]], Settings] = lambda _: {},
) -> Words:
    """Words of `words.toml` in an engine's folder, and those that no table can hold."""
    table = engine_table(engine, "words.toml")
    if values is not None:
        table = {**table, "values": values}
    return Words(otherwise=otherwise, drafts=drafts, read=read, **table)


def without_drafts(plan: Plan) -> Plan:
    """The plan, drafting nothing; settings beside its fields stay."""
    return msgspec.structs.replace(
        plan, draft_tokens=None, draft_method=None, draft_acceptance_fraction=None
    )


def drafts_itself(method: str | None) -> bool:
    """Whether layers of the model itself draft by this method."""
    return method is None or method == "mtp" or method.endswith("_mtp")


def expert_groups(name: str) -> Callable[[Plan], Settings]:
    """Setting for whole experts on each device: as many groups as devices split a matrix."""

    def settings(plan: Plan) -> Settings:
        return {name: plan.tensor_parallel}

    return settings


#: Values of fields that a command line does not say.
_SILENT: Mapping[str, Setting] = MappingProxyType(
    {"pipeline_parallel": 1, "data_parallel": 1, "expert_parallel": False}
)

#: Types of the Plan's fields that engines have settings for.
FIELD_TYPES: Mapping[str, type] = MappingProxyType(
    {
        "tensor_parallel": int,
        "pipeline_parallel": int,
        "data_parallel": int,
        "max_num_seqs": int,
        "max_num_batched_tokens": int,
        "max_model_len": int,
        "block_tokens": int,
        "gpu_memory_fraction": float,
        "expert_parallel": bool,
        "prefix_caching": bool,
        "chunked_prefill": bool,
        "enforce_eager": bool,
        "dtype": str,
        "quantization": str,
        "kv_cache_dtype": str,
    }
)


def _checked(field: str, name: str, value: Setting) -> Setting:
    kind = FIELD_TYPES[field]
    if kind is float and type(value) is int:
        return float(value)
    if value is not None and type(value) is not kind:
        raise PlanError(f"{name} must be {kind.__name__}, got {value!r}")
    return value
