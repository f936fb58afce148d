"""Alignment of two sides of runs: which of them are repeats, and which are of one configuration.

Runs are repeats of one another when they have the same model, machine, server settings and load,
seeds and addresses aside. What is the same throughout each side and differs between them is what
the comparison is about: it is listed, and the rest aligns the runs. So a study before and a study
after a new engine setting align configuration by configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from servetune.errors import InputError, ServetuneError
from servetune.json_value import JsonObject
from servetune.report.comparison import NOT_COMPARED
from servetune.report.quantities import DASH
from servetune.report.ranking import SweptSettings, label_of, varying
from servetune.store.schema import TrialRecord
from servetune.workload import CLIENT_ARGS, LoadOptions, load_options

#: Load settings that do not make another load.
_NOT_LOAD = NOT_COMPARED | {"seed", "warmup", "api", "until", "extra_body", "header"}
#: Parts of a run's identity that are not settings of its server.
_ABOUT = ("model", "engine", "gpu_type", "gpu_count", "gpus_used", "instance_type")
#: Settings of a server that do not make another configuration, or stand elsewhere.
_NOT_SETTINGS = NOT_COMPARED | {"engine", "engine_version"}
#: Facts that are listed where they differ, and align nothing.
_FACTS = ("engine_version", "servetune", "host")

Settings = Mapping[str, str]


class Aligned(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one configuration under one load on both sides.

    Attributes:
        label: Settings that tell it from the other configurations.
        base: Places of its runs among the base runs; where `paired`, in the order of their seeds.
        new: Places of its runs among the new runs.
        paired: Whether the runs in each place sent the same requests.
        differences: Settings and facts that differ, as `name: before → now`.
    """

    label: str
    base: tuple[int, ...]
    new: tuple[int, ...]
    paired: bool
    differences: tuple[str, ...] = ()


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """Alignment of two sides.

    Attributes:
        pairs: Configurations of both sides.
        only_base: Labels of configurations without a partner among the new runs.
        only_new: Labels of configurations without a partner among the base runs.
        load_differences: Differences of the loads that were ignored; a configuration's runs under
            all of its loads are then its repeats.
    """

    pairs: tuple[Aligned, ...]
    only_base: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()
    load_differences: tuple[str, ...] = ()


def align(
    base: Sequence[TrialRecord], new: Sequence[TrialRecord], *, ignore_workload: bool = False
) -> Alignment:
    """Align the runs of two sides.

    Args:
        base: Runs before; at least one.
        new: Runs now; at least one.
        ignore_workload: Whether runs of different loads are aligned, too.

    Raises:
        InputError: The loads differ, or no configuration is on both sides.
    """
    loads = [[load_of(record) for record in side] for side in (base, new)]
    settings = [[_configuration_of(record) for record in side] for side in (base, new)]
    other_loads = _disjoint(*loads)
    if other_loads and not ignore_workload:
        raise InputError(
            f"the loads differ: {'; '.join(_words(other_loads))}",
            hint="compare runs of one load, or give --ignore-workload",
        )
    changed = _constant_differences(*settings)
    groups = [
        _grouped(
            [
                _without(each, changed) | _without(load, other_loads, "load ")
                for each, load in zip(own, loads_of, strict=True)
            ]
        )
        for own, loads_of in zip(settings, loads, strict=True)
    ]
    names = telling_settings([*base, *new], changed)
    shared = [identity for identity in groups[0] if identity in groups[1]]
    if not shared:
        raise InputError(
            f"no configuration is on both sides: {_why_not(base, new, settings)}",
            hint="compare runs that share their load and all but the settings under test",
        )
    return Alignment(
        pairs=tuple(
            _aligned(base, groups[0][each], new, groups[1][each], changed, names) for each in shared
        ),
        only_base=tuple(
            label_of(base[places[0]], names)
            for each, places in groups[0].items()
            if each not in groups[1]
        ),
        only_new=tuple(
            label_of(new[places[0]], names)
            for each, places in groups[1].items()
            if each not in groups[0]
        ),
        load_differences=tuple(_words(other_loads)),
    )


def telling_settings(
    records: Sequence[TrialRecord], changed: Collection[str] = ()
) -> SweptSettings:
    """Names of the settings that tell configurations apart: no seeds, addresses or files.

    Args:
        records: Runs of both sides.
        changed: Settings that differ between the sides, and so tell nothing apart within one.
    """
    names = varying(records)
    return msgspec.structs.replace(
        names,
        client=tuple(name for name in names.client if name not in _NOT_LOAD),
        server=tuple(name for name in names.server if name not in changed),
    )


def load_of(record: TrialRecord) -> dict[str, str]:
    """Settings of a record's load by name, as text; seeds and addresses are not part of it.

    Client arguments that say the same in other words (`random_input_len`, `input_tokens`) are the
    same setting, so that a trial of `tune` and its repetition by `bench` have one load.
    """
    args = {name: value for name, value in record.config.client_args.items() if value is not None}
    found = {name: str(value) for name, value in _options(args).items() if name not in _NOT_LOAD}
    for name, value in (
        ("concurrency", record.results.max_concurrency),
        ("rate", record.results.request_rate),
    ):
        if value is not None:
            found.setdefault(name, f"{value:g}")
    return found


def _options(args: JsonObject) -> JsonObject:
    """Load options that client arguments stand for; the arguments where they cannot be read."""
    try:
        options = load_options({name: args[name] for name in args if name in CLIENT_ARGS})
    except ServetuneError:
        return args
    usual, named = LoadOptions(), args.get("dataset_name")
    found = {
        name: value
        for name in LoadOptions.__struct_fields__
        if (value := getattr(options, name)) != getattr(usual, name)
    }
    return found if named in (None, "random", "random-ids") else {**found, "dataset_name": named}


def seed_of(record: TrialRecord) -> int | None:
    """Seed of a record's requests; `None` where it has none."""
    seed = record.config.client_args.get("seed", record.metadata.seed)
    return seed if isinstance(seed, int) else None


def _configuration_of(record: TrialRecord) -> dict[str, str]:
    about = {name: getattr(record.metadata, name) for name in _ABOUT}
    plan = {} if record.plan is None else msgspec.structs.asdict(record.plan)
    settings = {
        name: value
        for name, value in {**plan, **record.config.server_args}.items()
        if name not in _NOT_SETTINGS and value not in (None, ())
    }
    return {name: str(value) for name, value in {**about, **settings}.items() if value is not None}


def _constant_differences(
    base: Sequence[Settings], new: Sequence[Settings]
) -> dict[str, tuple[str, str]]:
    """Settings that have one value throughout each side, and another on the other side."""
    names = {name: None for each in (*base, *new) for name in each}
    found = {}
    for name in names:
        was, now = ({each.get(name, DASH) for each in side} for side in (base, new))
        if len(was) == len(now) == 1 and was != now:
            found[name] = (was.pop(), now.pop())
    return found


def _disjoint(base: Sequence[Settings], new: Sequence[Settings]) -> dict[str, tuple[str, str]]:
    """Settings of which the two sides have no value in common, with their values."""
    found = {}
    for name in {name: None for each in (*base, *new) for name in each}:
        was, now = ({each.get(name, DASH): None for each in side} for side in (base, new))
        if not was.keys() & now.keys():
            found[name] = (_listed(list(was)), _listed(list(now)))
    return found


def _listed(values: Sequence[str], most: int = 4) -> str:
    left = len(values) - most
    return ", ".join(values[:most]) + (f" and {left} more" if left > 0 else "")


def _without(settings: Settings, names: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    return {f"{prefix}{name}": value for name, value in settings.items() if name not in names}


def _grouped(identities: Sequence[Settings]) -> dict[tuple[tuple[str, str], ...], list[int]]:
    """Places of the runs of each identity, in the order of the first."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for place, identity in enumerate(identities):
        groups.setdefault(tuple(sorted(identity.items())), []).append(place)
    return groups


def _aligned(
    base: Sequence[TrialRecord],
    base_places: Sequence[int],
    new: Sequence[TrialRecord],
    new_places: Sequence[int],
    changed: Mapping[str, tuple[str, str]],
    names: SweptSettings,
) -> Aligned:
    seeds = [
        {seed_of(side[place]): place for place in places}
        for side, places in ((base, base_places), (new, new_places))
    ]
    common = sorted(seed for seed in seeds[0] if seed is not None and seed in seeds[1])
    paired = len(common) == len(base_places) == len(new_places) and len(common) > 1
    if paired:
        base_places = [seeds[0][seed] for seed in common]
        new_places = [seeds[1][seed] for seed in common]
    facts = _constant_differences(
        [_facts(base[place]) for place in base_places], [_facts(new[place]) for place in new_places]
    )
    labels = [
        " / ".join(dict.fromkeys(label_of(side[place], names) for place in places))
        for side, places in ((base, base_places), (new, new_places))
    ]
    return Aligned(
        label=labels[0] if labels[0] == labels[1] else f"BASE: {labels[0]}, NEW: {labels[1]}",
        base=tuple(base_places),
        new=tuple(new_places),
        paired=paired,
        differences=tuple(_words({**changed, **facts})),
    )


def _facts(record: TrialRecord) -> dict[str, str]:
    found = {name: record.provenance.get(name) for name in _FACTS}
    return {name: str(value) for name, value in found.items() if value is not None}


def _words(differences: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for name, (was, now) in differences.items():
        yield f"{name}: {was} → {now}"


def _why_not(
    base: Sequence[TrialRecord],
    new: Sequence[TrialRecord],
    settings: Sequence[Sequence[Settings]],
) -> str:
    """Settings of which the two sides have no value in common."""
    reasons = [
        f"{name} is {was} in BASE and {now} in NEW"
        for name, (was, now) in _disjoint(*settings).items()
    ]
    return "; ".join(reasons[:4]) or (
        f"the {len(base)} runs of BASE and {len(new)} of NEW share values, but no whole set"
    )
