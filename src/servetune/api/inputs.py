"""Conversion of the user's words to a model, a machine and constraints."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import cast

import msgspec

from servetune.api.notes import note
from servetune.api.run_names import journal_of
from servetune.engines import DEFAULT_ENGINE, engine
from servetune.errors import InputError, SchemaTooNew, StoreError
from servetune.hardware import (
    Node,
    Price,
    Service,
    cheapest_instance_with,
    instance,
    instances,
    node,
)
from servetune.hardware.detect import detect, detect_cpu
from servetune.search import Goal, fixed_settings, parse_objectives
from servetune.store import (
    BESIDE_JOURNAL,
    REQUESTS,
    TIMELINES,
    TrialRecord,
    is_report,
    journal_records,
    latest,
    read_json,
    read_report,
    require_regular,
    trial_key,
)
from servetune.store.inference_perf import CLIENT


def chosen_node(
    *,
    gpu: str | None,
    num_gpus: int | None,
    instance_name: str | None,
    price_per_hour_usd: float | None,
    or_cpu: bool = False,
    service: str | None = None,
) -> Node:
    """The machine that the options name, else the one that is here.

    A machine of one's own has no price until one is given. With a service (`sagemaker`, `ec2`,
    `all`) a GPU type is priced as its cheapest instance that holds as many, which the price's
    source names.

    Raises:
        UnknownName: No such GPU or instance.
        InputError: Nothing is named and nothing is here, or the options contradict.
    """
    if instance_name is not None:
        if gpu is not None:
            raise InputError(
                "--gpu and --instance both name the machine", hint="give one of the two"
            )
        only = cast("Service", service) if service in ("sagemaker", "ec2") else None
        named = instance(_not_empty(instance_name, "--instance ml.g6.12xlarge"), service=only)
        found = _with_count(named, num_gpus)
    elif gpu is not None:
        found = _of_gpu(_not_empty(gpu, "--gpu L4"), num_gpus, service)
    else:
        here = detect() or (detect_cpu() if or_cpu else None)
        if here is None:
            raise InputError(
                "no GPU was found on this machine",
                hint="name one with --gpu L4 --num-gpus 4, or --instance ml.g6.12xlarge",
            )
        found = _with_count(here, num_gpus)
    if price_per_hour_usd is not None:
        price = Price(
            usd_per_hour=price_per_hour_usd, region="", source="given by the user", date=""
        )
        return msgspec.structs.replace(found, price=price)
    return found


def note_unknown_limits(records: Sequence[TrialRecord]) -> None:
    """Note limits of the run that are not known here and so not applied."""
    if records and len(records[0].limits()) < len(records[0].constraints):
        note("note: some constraints of the run are not known here; give them with --constraints")


def recorded_goal(records: Sequence[TrialRecord]) -> Goal:
    """Objectives of the study that records are of, and whether its limits are a ladder."""
    if not records:
        return Goal()
    metadata = records[0].metadata
    try:
        objectives = parse_objectives(metadata.objective) if metadata.objective else ()
    except InputError:  # another tool's word
        objectives = ()
    return Goal(
        constraints=records[0].limits(), objectives=objectives, ladder=bool(metadata.ladder)
    )


def _as_it_is(record: TrialRecord) -> TrialRecord:
    return record


def read_records(
    path: Path, each: Callable[[TrialRecord], TrialRecord] = _as_it_is
) -> list[TrialRecord]:
    """Records of a journal (`.jsonl`), a summary or a single record (`.json`).

    Of a folder, those of all journals directly in it, in the order of their names; or, of a
    report of inference-perf, those of its stages.

    Args:
        path: File or folder, or a run's name.
        each: What is kept of each record.

    Raises:
        StoreError: It holds no trial record.
    """
    from servetune.report.summary import records_from_summary

    path = journal_of(path)
    if is_report(path):
        report = read_report(path)
        for text in report.notes:
            note(text)
        return latest(map(each, report.records))
    if path.is_dir():
        return records_of(journals_in(path), each)
    if path.suffix == ".html":
        raise StoreError(
            f"{path} is a page, not the data behind it", hint="give the .jsonl or .json of a run"
        )
    require_file(path)
    try:
        if path.suffix == ".json":
            records = latest(map(each, records_from_summary(read_json(path))))
        else:
            records = latest(map(each, journal_records(path)))
    except StoreError as error:
        raise with_journal_named(error, path) from None
    if not records:
        raise StoreError(f"{path} holds no trial", hint="run servetune tune first")
    return records


def records_of(
    paths: Sequence[Path], each: Callable[[TrialRecord], TrialRecord] = _as_it_is
) -> list[TrialRecord]:
    """Records of several sources; of a trial that is in several, the last."""
    return latest(record for path in paths for record in read_records(path, each))


def with_server_args(records: Sequence[TrialRecord], settings: Sequence[str]) -> list[TrialRecord]:
    """Records of load clients, which do not know how the server was started, with its settings.

    Args:
        records: Measured trials.
        settings: Settings in the words of `--server-args`, one value each; none for the defaults.

    Raises:
        InputError: The records have settings of their own, or a setting has several values.
    """
    unsaid = [r for r in records if not (r.plan or r.config.server_args or r.cmd)]
    if not settings:
        if unsaid and all(record.results.backend == CLIENT for record in unsaid):
            note(
                f"note: {CLIENT} does not record how the server was started, one device and the "
                "engine's defaults are assumed; give its settings with --server-args"
            )
        return list(records)
    if len(unsaid) < len(records):
        raise InputError(
            "the records say how their servers were started, --server-args cannot change it",
            hint="leave it out; it is for reports of load clients, which do not know",
        )
    return [_with_settings(record, settings) for record in records]


def _with_settings(record: TrialRecord, settings: Sequence[str]) -> TrialRecord:
    named = record.metadata.engine or DEFAULT_ENGINE
    server_args = fixed_settings(";".join(settings), types=engine(named).argument_types())
    key = trial_key(
        model="", engine=named, server_args=server_args, client_args={"trial": record.key}
    )
    config = msgspec.structs.replace(record.config, server_args=server_args)
    return msgspec.structs.replace(record, config=config, key=key)


def named_files(paths: Sequence[Path]) -> list[Path]:
    """Files and folders that are named, or that match a pattern such as `base-*/bench.jsonl`.

    Files beside journals, such as requests and timelines, are left out of a pattern's matches, and
    where their journal is named as well, as by a shell's pattern.

    Raises:
        StoreError: Nothing matches a pattern, or only files beside journals do.
    """
    found: list[Path] = []
    for path in paths:
        if any(mark in str(path) for mark in "*?[") and not path.exists():
            found += _matching(path)
        else:
            found.append(path)
    runs = {str(path.with_suffix("")) for path in found if path.suffix == ".jsonl"}
    return [
        path
        for path in dict.fromkeys(found)
        if not (ending := _ending_beside(path)) or str(path).removesuffix(ending) not in runs
    ]


#: Endings of files with trials; a pattern passes over others, such as logs, unless it names theirs.
_OF_RUNS = frozenset({".json", ".jsonl", ".parquet"})


def _matching(pattern: Path) -> list[Path]:
    """Files and folders of a pattern, by name, without files beside journals."""
    root = Path(pattern.anchor) if pattern.is_absolute() else Path()
    found = sorted(root.glob(str(pattern.relative_to(pattern.anchor))))
    if not found:
        raise StoreError(f"no file matches {pattern}", hint="name the journals (.jsonl) of runs")
    journals = {path.with_suffix("") for path in found if path.suffix == ".jsonl"}
    kept = [
        path
        for path in found
        if (ending := _ending_beside(path)) is None or pattern.name.endswith(ending)
        if path.suffix != ".json" or path.with_suffix("") not in journals
        if path.is_dir() or path.suffix in _OF_RUNS or pattern.suffix == path.suffix
    ]
    if not kept:
        raise StoreError(
            f"{pattern} matches no journal, but other files such as {found[0].name}",
            hint="name the journals (.jsonl) of runs",
        )
    return kept


def _ending_beside(path: Path) -> str | None:
    """Ending of a file beside a journal; `None` of others."""
    return next((ending for ending in BESIDE_JOURNAL if path.name.endswith(ending)), None)


def with_journal_named(error: StoreError, path: Path) -> StoreError:
    """The error; of a file beside a journal one that names the journal."""
    ending = _ending_beside(path)
    if ending is None or isinstance(error, SchemaTooNew):
        return error
    journal = path.with_name(path.name.removesuffix(ending) + ".jsonl")
    return StoreError(
        f"{path} has {BESIDE_JOURNAL[ending]} of a run, and no trials",
        hint=f"give its journal, {journal}",
    )


def journals_in(folder: Path) -> list[Path]:
    """Journals directly in a folder, by name; files of requests and timelines are none.

    Raises:
        StoreError: There is none.
    """
    found = _journals(folder, "*.jsonl")
    if not found:
        raise _no_journal(folder)
    return found


def journals_below(folder: Path) -> list[Path]:
    """Journals directly in a folder; without any, those of the folders in it, such as repeats.

    Raises:
        StoreError: There is none.
    """
    found = _journals(folder, "*.jsonl") or _journals(folder, "[!.]*/*.jsonl")
    if not found:
        raise _no_journal(folder)
    return found


def _journals(folder: Path, pattern: str) -> list[Path]:
    return sorted(
        path for path in folder.glob(pattern) if not path.name.endswith((REQUESTS, TIMELINES))
    )


def _no_journal(folder: Path) -> StoreError:
    return StoreError(
        f"{folder} holds no journal",
        hint="give the .jsonl or .json of a run, its folder, or a report of inference-perf",
    )


def require_file(path: Path) -> None:
    """Raise `StoreError` when there is no such file."""
    require_regular(path)
    if not path.is_file():
        raise StoreError(
            f"{path} is not there",
            hint="give the .jsonl or .json of a run, or its name in servetune runs list",
        )


def _with_count(found: Node, num_gpus: int | None) -> Node:
    if num_gpus is None or num_gpus == found.device_count:
        return found
    if num_gpus > found.device_count:
        raise InputError(
            f"{found.label} has {found.device_count} devices, not {num_gpus}",
            hint="name a larger machine, or leave --num-gpus out",
        )
    return msgspec.structs.replace(found, device_count=num_gpus)


def _of_gpu(name: str, num_gpus: int | None, service: str | None) -> Node:
    """So many of a GPU, also as `4x L4`, which is how servetune writes it; or an instance."""
    if name.strip().lower() in {**instances("sagemaker"), **instances("ec2")}:
        return _with_count(instance(name), num_gpus)
    counted = re.fullmatch(r"\s*([1-9]\d{0,3})\s*x\s*(\S.*)", name, re.IGNORECASE)
    if counted:
        if num_gpus not in (None, int(counted[1])):
            raise InputError(
                f"--gpu '{name}' and --num-gpus {num_gpus} contradict", hint="give one number"
            )
        name, num_gpus = counted[2], int(counted[1])
    bare = node(gpu=name, count=num_gpus or 1)
    return bare if service is None else _priced(bare, service)


def _priced(bare: Node, service: str) -> Node:
    places: tuple[Service, ...] = ("sagemaker", "ec2")
    offers = [
        (offer.price, offer.name)
        for place in places
        if service in (place, "all")
        and (offer := cheapest_instance_with(bare.device, bare.device_count, service=place))
        and offer.price is not None
    ]
    if not offers:
        return bare
    price, name = min(offers, key=lambda offer: offer[0].usd_per_hour)
    price = msgspec.structs.replace(price, source=f"{name}: {price.source}")
    return msgspec.structs.replace(bare, price=price)


def _not_empty(name: str, example: str) -> str:
    if not name.strip():
        raise InputError("the machine's name is empty", hint=f"name one, such as {example}")
    return name


def note_idle(names: Collection[str]) -> None:
    """Name the settings that change nothing in a simulation."""
    if names:
        note(f"note: without effect on the simulation: {', '.join(names)}")
