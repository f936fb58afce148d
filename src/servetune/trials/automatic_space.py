"""Space of server settings chosen from model, machine and engine alone (`tune --space auto`).

Layouts are those of `perf.sweep`: every way to place the model on all devices that the engine has
settings for. Copies are data-parallel engines of one server, and beside them servers of their own
(`replicas`), each with a front end of its own; only the latter where engines of one server would
share their experts or there are none, only the former where one server can be started. Limits of a
batch are the engine's own and every other one that a sweep by formula compares. What the user gave
stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import msgspec

from servetune.engines import (
    Engine,
    Words,
    engine,
    engines_with_defaults,
    has_kernels,
    plan_from_settings,
    resolved,
)
from servetune.errors import InputError, PlanError
from servetune.hardware import Node
from servetune.models import (
    NetworkShape,
    has_draft_layers,
    has_experts,
    load_shape,
    quantized_versions,
)
from servetune.perf.sweep import BATCHED_TOKENS, SEQUENCES, layouts, quantizations_of
from servetune.plan.plan import Plan, Setting
from servetune.search import Axis, setting_text
from servetune.trials.launch import one_copy
from servetune.trials.trial import MODEL, NOT_OF_THE_ENGINE, REPLICAS

#: Fields of a plan that say how it is placed on devices.
_DEGREES = ("tensor_parallel", "pipeline_parallel", "data_parallel")
_LAYOUT = (*_DEGREES, "expert_parallel")

#: Drafting methods that need no further weights, to the numbers of drafted tokens that are tried: a
#: guess from the n-gram that came before, and layers of the checkpoint itself.
_DRAFTS: Mapping[str, tuple[int, ...]] = {"ngram": (4,), "mtp": (1, 3)}


class AutomaticSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Axes of server settings, and what was left out.

    Attributes:
        server: Axes that the user gave, then those chosen.
        copies_left_out: Number of layouts left out because no one server holds their copies, and
            there is to be one.
    """

    server: tuple[Axis, ...]
    copies_left_out: int = 0

    @property
    def settings_text(self) -> str:
        """The axes as `--server-args` takes them."""
        return ";".join(axis_text(axis) for axis in self.server)


def automatic_space(
    given: Sequence[Axis],
    *,
    model: str,
    served_by: Engine,
    shape: NetworkShape | None,
    node: Node,
    copies: bool = True,
) -> AutomaticSpace:
    """Space of server settings for a model on a machine.

    Args:
        given: Axes of the user, which stay as they are; layouts are those that agree with them.
        model: Hub id or local folder.
        served_by: Engine of the servers.
        shape: Dimensions of the model; `None` where they are not known.
        node: Machine.
        copies: Whether several servers may be started, each a copy.

    Raises:
        InputError: Nothing is known about the engine or the model, or no layout agrees with what
            was given.
    """
    if shape is None or not served_by.defaults:
        known = ", ".join(engines_with_defaults())
        raise InputError(
            "--space auto needs "
            + ("the model's dimensions" if shape is None else "an engine whose defaults are known"),
            hint=f"give --server-args instead; engines with known defaults are {known}",
        )
    plan = Plan(model=model, engine=served_by.name)
    return _Choice(given, plan, shape, node, copies=copies).space()


class _Choice:
    """Choice of the axes for one model and machine."""

    def __init__(
        self,
        given: Sequence[Axis],
        plan: Plan,
        shape: NetworkShape,
        node: Node,
        *,
        copies: bool,
    ) -> None:
        self._copies = copies
        self._shape, self._node, self._engine = shape, node, engine(plan.engine)
        self._given = tuple(_with_own_names(axis, self._engine.words) for axis in given)
        fixed = {
            name: value
            for axis in self._given
            if len(axis.rows) == 1 and not axis.conditions
            for name, value in zip(axis.names, axis.rows[0], strict=True)
            if self._engine.words.fields.get(name) not in _LAYOUT and name not in NOT_OF_THE_ENGINE
        }
        self._base = plan_from_settings(plan.engine, plan.model, fixed)
        self._default = resolved(
            self._base, shape, node.device, version=self._engine.assumed_version
        )

    def space(self) -> AutomaticSpace:
        plans, copies_left_out = self._layouts()
        layout, kept = self._layout_axis(plans)
        given = {name for axis in self._given for name in axis.names}
        chosen = [
            layout,
            self._weights_axis(),
            *(self._axis(variants) for variants in self._variants()),
        ]
        if self._engine.words.name_of("quantization") in given:
            given |= {MODEL}
        new = [axis for axis in chosen if axis is layout or self._is_new(axis, given)]
        return AutomaticSpace(
            server=(*kept, *new),
            copies_left_out=copies_left_out,
        )

    @staticmethod
    def _is_new(axis: Axis, given: Set[str]) -> bool:
        """Whether there is something to choose that the user has not given."""
        return len(axis.rows) > 1 and not given & set(axis.names)

    def _layouts(self) -> tuple[list[Plan], int]:
        """Layouts, each in every way that its copies can be served, and how many are left out."""
        laid_out = [self._served_by(plan) for plan in layouts(self._base, self._shape, self._node)]
        found = dict.fromkeys(plan for ways in laid_out for plan in ways)
        return list(found), sum(not ways for ways in laid_out)

    def _served_by(self, plan: Plan) -> list[Plan]:
        """The layout as one server of the engine, and as copies of one where these may be."""
        span_copies = self._engine.behaviour.experts_span_copies
        if plan.tensor_parallel == 1 and not span_copies:  # each device has all experts anyway
            plan = msgspec.structs.replace(plan, expert_parallel=False)
        if plan.replicas == 1:
            return [plan]
        folded = msgspec.structs.replace(
            plan, replicas=1, data_parallel=plan.replicas * plan.data_parallel
        )
        shared = has_experts(self._shape) and span_copies
        ways = [*(() if shared else (folded,)), *((plan,) if self._copies else ())]
        return [way for way in ways if self._has_settings(way)]

    def _layout_axis(self, plans: Sequence[Plan]) -> tuple[Axis, tuple[Axis, ...]]:
        """Axis of the layouts that agree with the user's settings, and the user's other axes.

        Raises:
            InputError: None agrees.
        """
        rows = self._spelled(plans)
        words, base = self._engine.words, self._engine.plan_settings(self._base)
        names = dict.fromkeys(
            name
            for row in rows
            for name in row
            if words.fields.get(name) in _LAYOUT or row[name] != base.get(name)
        )
        names |= dict.fromkeys(name for name, field in words.fields.items() if field in _LAYOUT)
        own = [axis for axis in self._given if names.keys() & set(axis.names)]
        for axis in own:
            if set(axis.names) - names.keys() or axis.conditions:
                raise InputError(
                    f"--space auto chooses layouts, and {axis.label} depends on another setting",
                    hint="give them apart, or leave --space out",
                )
        agreeing = [row for row in rows if all(self._agrees(row, axis) for axis in own)]
        if not agreeing:
            asked = ";".join(axis_text(axis) for axis in own) or "one server"
            raise InputError(
                f"no layout of {self._shape.name} over {self._node.label} has {asked}",
                hint="leave it out, or leave --space out; layouts are "
                + (", ".join(plan.label for plan in plans) or "none"),
            )
        asked_for = {name for axis in own for name in axis.names}
        columns = [
            name
            for name in names
            if name in asked_for or len({self._cell(row, name) for row in agreeing}) > 1
        ] or [str(words.name_of("tensor_parallel"))]
        kept = tuple(axis for axis in self._given if axis not in own)
        return _axis_of(
            columns, [{n: self._cell(row, n) for n in columns} for row in agreeing]
        ), kept

    def _agrees(self, row: Mapping[str, Setting], axis: Axis) -> bool:
        """Whether a layout has one of the user's values; `None` is what the engine does unasked."""
        own = tuple(self._cell(row, name) or None for name in axis.names)
        silent = tuple(self._cell({}, name) or None for name in axis.names)
        return any(
            own == tuple(value or unasked for value, unasked in zip(wanted, silent, strict=True))
            for wanted in axis.rows
        )

    def _variants(self) -> Iterator[list[Plan]]:
        """Plans that differ in one field, or in what belongs together."""
        device, default = self._node.device, self._default
        values: Mapping[str, Sequence[Any]] = {
            "max_num_seqs": _with_default(SEQUENCES[2::2], default.max_num_seqs),
            "max_num_batched_tokens": _with_default(
                BATCHED_TOKENS[1::2], default.max_num_batched_tokens
            ),
            "kv_cache_dtype": (default.kv_cache_dtype, *(("fp8",) if device.fp8_flops else ())),
            "prefix_caching": (default.prefix_caching, not default.prefix_caching),
        }
        for field, each in values.items():
            yield [msgspec.structs.replace(self._base, **{field: value}) for value in each]
        yield [self._base, *self._drafting()]

    def _weights_axis(self) -> Axis:
        """Checkpoints in fewer bits, and storage that the engine makes while loading.

        Of checkpoints that are stored alike one is taken, the publisher's own first; what one of
        them has is not made anew.
        """
        online = quantizations_of(self._base, self._shape, self._node.device)
        plain = self._shape.quantization == "none"
        stored: dict[str, str] = {}
        for name in quantized_versions(self._base.model) if plain else ():
            network = load_shape(name, catalogue_first=True)
            packed = msgspec.structs.replace(self._base, model=name)
            if has_kernels(packed, network, self._node.device):
                stored.setdefault(network.quantization, name)
        made = [each for each in online if not any(each and each in scheme for scheme in stored)]
        own = self._axis([msgspec.structs.replace(self._base, quantization=q) for q in made])
        if not stored:
            return own
        silent = (None,) * len(own.names)
        rows = own.rows if own.names else ((),)
        return Axis(
            names=(MODEL, *own.names),
            rows=(
                *((self._base.model, *row) for row in rows),
                *((name, *silent) for name in stored.values()),
            ),
        )

    def _drafting(self) -> Iterator[Plan]:
        for method, counts in _DRAFTS.items():
            if method == "mtp" and not has_draft_layers(self._base.model):
                continue
            for count in counts:
                yield msgspec.structs.replace(self._base, draft_method=method, draft_tokens=count)

    def _axis(self, plans: Sequence[Plan]) -> Axis:
        """Axis of the settings in which plans differ; without names where they do not."""
        rows = self._spelled([plan for plan in plans if self._has_settings(plan)])
        names = dict.fromkeys(name for row in rows for name in row)
        differing = [
            name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)
        ]
        return _axis_of(differing, rows)

    def _spelled(self, plans: Sequence[Plan]) -> list[dict[str, Setting]]:
        return [
            self._engine.plan_settings(one_copy(plan))
            | ({REPLICAS: plan.replicas} if plan.replicas > 1 else {})
            for plan in plans
        ]

    def _has_settings(self, plan: Plan) -> bool:
        """Whether the engine has words for the plan, each copy of it."""
        try:
            self._engine.plan_settings(one_copy(plan))
        except PlanError:
            return False
        return True

    def _cell(self, row: Mapping[str, Setting], name: str) -> Setting:
        """Value of a setting of the layout, written out where silence means one."""
        degree = name == REPLICAS or self._engine.words.fields.get(name) in _DEGREES
        return row.get(name, 1 if degree else None)


def _with_own_names(axis: Axis, words: Words) -> Axis:
    """The axis with the engine's usual names of its settings."""

    def own(name: str) -> str:
        return words.aliases.get(name, name)

    conditions = tuple(
        msgspec.structs.replace(each, name=own(each.name)) for each in axis.conditions
    )
    return msgspec.structs.replace(axis, names=tuple(map(own, axis.names)), conditions=conditions)


def _axis_of(names: Sequence[str], rows: Sequence[Mapping[str, Setting]]) -> Axis:
    cells = dict.fromkeys(tuple(row.get(name) for name in names) for row in rows)
    return Axis(names=tuple(names), rows=tuple(cells))


def _with_default(values: Sequence[int | None], default: int | None) -> tuple[int | None, ...]:
    """The values and the engine's own, in order; `None` where that is not known."""
    if default is None:
        return (None, *values)
    return tuple(sorted({default, *(value for value in values if value is not None)}))


def axis_text(axis: Axis) -> str:
    """The axis in the grammar of `search.parse_settings`."""
    rows = [row[0] if len(row) == 1 else row for row in axis.rows]
    text = setting_text(axis.names, rows if len(rows) > 1 else rows[0])
    tests = " and ".join(str(condition) for condition in axis.conditions)
    return f"{text} if {tests}" if tests else text
