"""Ranking of a run's trials: swept settings, constraint checks and picks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from servetune.engines import ENGINES, engine
from servetune.engines.translate import plan_of_any_engine
from servetune.errors import ServetuneError
from servetune.json_value import JsonObject
from servetune.metrics import Constraint, short_texts, value_of
from servetune.metrics.repeats import mean_results
from servetune.metrics.results import ResultFields
from servetune.plan.plan import Plan
from servetune.report.quantities import DASH, QUANTITIES, quantity_value, shown
from servetune.search import (
    OBJECTIVES,
    Candidate,
    Goal,
    Objective,
    Recommendation,
    exceeds_error_tolerance,
    failed_requests,
    pareto_keys,
    recommend,
)
from servetune.store.schema import TrialRecord

#: Short display names of settings.
_SHORT: Mapping[str, str] = {
    "tensor_parallel_size": "TP",
    "tp_size": "TP",
    "pipeline_parallel_size": "PP",
    "pp_size": "PP",
    "data_parallel_size": "DP",
    "dp_size": "DP",
    "max_num_batched_tokens": "batched tokens",
    "chunked_prefill_size": "prefill chunk",
    "max_num_seqs": "sequences",
    "max_running_requests": "sequences",
    "max_concurrency": "concurrency",
    "request_rate": "offered req/s",
    "gpu_memory_utilization": "memory share",
}


class SweptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the settings that differ between records: degrees of parallelism, sizes, load,
    then the others by name.
    """

    server: tuple[str, ...]
    client: tuple[str, ...]


class ConstraintCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Constraints that one trial meets and misses, and those without a measured value."""

    met: tuple[Constraint, ...] = ()
    missed: tuple[Constraint, ...] = ()
    unknown: tuple[Constraint, ...] = ()

    @property
    def meets_all(self) -> bool:
        return not self.missed and not self.unknown


def varying(records: Sequence[TrialRecord]) -> SweptSettings:
    """Settings that differ between records, including those that some records lack.

    Seeds count only where nothing else of the load differs: each level of a load test has its own.
    """
    client = _varying_names([record.config.client_args for record in records])
    return SweptSettings(
        server=_varying_names([record.config.server_args for record in records]),
        client=tuple(name for name in client if name != "seed") or client,
    )


def label_of(record: TrialRecord, names: SweptSettings) -> str:
    """Short name of a trial from its swept settings: `TP4 · concurrency 32`."""
    config = record.config
    parts = [setting_text(name, config.server_args.get(name)) for name in names.server]
    parts += [setting_text(name, config.client_args.get(name)) for name in names.client]
    if not parts:
        parts = [setting_text(name, value) for name, value in config.server_args.items()]
    framework = record.metadata.engine
    ours = framework not in ENGINES or engine(framework).starts_servers
    if not parts and not ours:  # only its load is known
        load = {name: config.client_args.get(name) for name in ("max_concurrency", "request_rate")}
        parts = [setting_text(name, value) for name, value in load.items() if value is not None]
    return " · ".join(parts) or "default settings"


def setting_text(name: str, value: object) -> str:
    """Display text of a setting: `TP4`, `concurrency 32`, `enforce_eager True`."""
    if isinstance(value, int | str):  # of which a sweep has few
        return _setting_text(name, value)
    return _setting_text.__wrapped__(name, value)


@lru_cache(4096, typed=True)
def _setting_text(name: str, value: object) -> str:
    short = short_name(name)
    text = DASH if value is None else str(value)
    return f"{short}{text}" if short in ("TP", "PP", "DP") else f"{short} {text}"


def short_name(name: str) -> str:
    return _SHORT.get(name, name)


def candidates_of(records: Sequence[TrialRecord]) -> list[Candidate]:
    """Successful trials as candidates for a recommendation.

    Trials of a study that are equal but for their seed are one candidate, with the mean of their
    results and the key of the first: the best of several runs would be best by chance.
    """
    return [candidate for _, candidate in runs_of_candidates(records)]


def runs_of_candidates(
    records: Sequence[TrialRecord],
) -> list[tuple[list[TrialRecord], Candidate]]:
    """Candidates for a recommendation, each behind the trials that it stands for."""
    names = varying(records)
    return [
        (
            runs,
            Candidate(
                key=runs[0].key,
                label=_label_of_runs(runs, names),
                results=results_of(runs[0])
                if len(runs) == 1
                else mean_results([*map(results_of, runs)]),
                simulated=runs[0].simulated,
            ),
        )
        for runs in _repeats([record for record in records if record.status == "ok"])
    ]


def _repeats(records: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Trials with those that differ from them by their seed alone, in the order of the first."""
    if len({record.config.client_args.get("seed") for record in records}) < 2:
        return [[record] for record in records]
    found: dict[object, list[TrialRecord]] = {}
    for record in records:
        found.setdefault(_apart_from_seed(record), []).append(record)
    return list(found.values())


def _apart_from_seed(record: TrialRecord) -> object:
    """Identity of a study's trial without its seed; a run of `bench` is not known well enough."""
    if record.plan is None:
        return record.key
    metadata, config = record.metadata, record.config
    load = {name: value for name, value in config.client_args.items() if name != "seed"}
    machine = (metadata.gpu_type, metadata.gpu_count, metadata.instance_type)
    about = (metadata.model, metadata.engine, metadata.server_cmd, record.simulated, *machine)
    settings = (sorted(config.server_args.items()), sorted(load.items()))
    return msgspec.json.encode((about, settings))


def _label_of_runs(runs: Sequence[TrialRecord], names: SweptSettings) -> str:
    if len(runs) == 1:
        return label_of(runs[0], names)
    client = tuple(name for name in names.client if name != "seed")
    label = label_of(runs[0], msgspec.structs.replace(names, client=client))
    return f"{label} (mean of {len(runs)} runs)"


def results_of(record: TrialRecord) -> ResultFields:
    """Results of a trial with the throughput per GPU, which other tools' journals do not have."""
    results = record.results
    if results.output_throughput is None or results.output_throughput_per_gpu is not None:
        return results
    devices = devices_of(record)
    if not devices:
        return results
    return results.with_fields(output_throughput_per_gpu=results.output_throughput / devices)


def miscounted(records: Sequence[TrialRecord]) -> dict[str, str]:
    """Findings on successful trials whose server counts tokens that did not arrive, by key."""
    ok = [record for record in records if record.status == "ok"]
    findings = short_texts([record.results for record in ok])
    return {record.key: finding for record, finding in zip(ok, findings, strict=True) if finding}


def any_failed(records: Sequence[TrialRecord]) -> bool:
    """Whether any successful trial has failed requests."""
    return any(record.status == "ok" and failed_requests(record.results) for record in records)


def failed_text(record: TrialRecord) -> str:
    """Failed requests of a trial as text: `0`, `1/300`, or `14/30, 47% failed`.

    The percentage appears beyond the tolerated error rate.
    """
    failed = failed_requests(record.results)
    if failed is None:
        return DASH if value_of(record.results, "error_rate") is None else "0"
    return failed.fraction + (f", {failed.share} failed" if failed.beyond_tolerance else "")


def picks(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    objectives: Sequence[Objective] = (),
    *,
    ladder: bool = False,
) -> dict[str, Recommendation]:
    """Recommendation for each objective by its name, of several first the knee of all.

    Args:
        records: Trials of the run.
        constraints: Limits; in order of importance where `ladder`.
        objectives: Objectives; throughput, latency and cost where empty.
        ladder: Whether earlier constraints go before later ones where not all can be met.
    """
    candidates = candidates_of(records)
    asked = [objectives] if len(objectives) > 1 else []
    asked += [(each,) for each in (objectives or OBJECTIVES.values())]
    found = [recommend(candidates, constraints, each, ladder=ladder) for each in asked]
    return {each.objective: each for each in found}


_PICK_TITLES: Mapping[str, str] = {
    "throughput": "Throughput pick",
    "latency": "Latency pick",
    "cost": "Cheapest per million tokens",
}


def pick_title(pick: Recommendation) -> str:
    """Heading of a recommendation: what it is best in."""
    if len(pick.objectives) > 1:
        return f"Knee of {', '.join(each.name for each in pick.objectives)}"
    [objective] = pick.objectives
    word = "Highest" if objective.maximize else "Lowest"
    return _PICK_TITLES.get(objective.name, f"{word} {objective.title}")


def goal_text(constraints: tuple[Constraint, ...], chosen: Mapping[str, Recommendation]) -> str:
    """Constraints of a run as text, as a ladder where they are in order of importance."""
    ladder = next((pick for pick in chosen.values() if pick.ladder), None)
    if ladder is None:
        return f"constraints: {'; '.join(c.label for c in constraints)}" if constraints else ""
    return f"SLA: {Goal(constraints=constraints, objectives=ladder.objectives, ladder=True).label}"


def pareto_of(records: Sequence[TrialRecord], chosen: Mapping[str, Recommendation]) -> list[str]:
    """Keys of the Pareto set of the objectives that were asked for, else of the usual ones."""
    several = next((pick for pick in chosen.values() if len(pick.objectives) > 1), None)
    if several is not None:
        return [member.key for member in several.pareto]
    return pareto_keys(candidates_of(records))


def check_constraints(record: TrialRecord, constraints: tuple[Constraint, ...]) -> ConstraintCheck:
    """Constraint check of a trial; a failed trial has values for none."""
    results = results_of(record)
    verdicts = [(c, c.holds(results)) for c in constraints]
    return ConstraintCheck(
        met=tuple(c for c, holds in verdicts if holds is True),
        missed=tuple(c for c, holds in verdicts if holds is False),
        unknown=tuple(c for c, holds in verdicts if holds is None),
    )


def constraint_lines(record: TrialRecord, constraints: tuple[Constraint, ...]) -> Iterator[str]:
    """One line per constraint: whether it holds, and the measured value."""
    check = check_constraints(record, constraints)
    for word, limits in (
        ("holds", check.met),
        ("MISSES", check.missed),
        ("not known:", check.unknown),
    ):
        for limit in limits:
            quantity = QUANTITIES[limit.metric]
            value = quantity_value(results_of(record), limit.metric, limit.statistic)
            yield f"{word} {limit.label}: {shown(value, quantity.unit)}"


def ranked(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...]
) -> list[TrialRecord]:
    """Successful trials, those that meet every constraint first, each by output throughput.

    Trials with too many failed requests come after the others that meet (or miss) the
    constraints, as in `recommend`; those with tokens that did not arrive come last. Equal trials
    keep their order.
    """
    findings = miscounted(records)

    def rank(record: TrialRecord) -> tuple[bool, bool, bool, float]:
        throughput = value_of(record.results, "output_throughput")
        return (
            record.key in findings,
            not check_constraints(record, constraints).meets_all,
            exceeds_error_tolerance(record.results, constraints),
            float("inf") if throughput is None else -throughput,
        )

    return sorted((record for record in records if record.status == "ok"), key=rank)


def plan_of(record: TrialRecord) -> Plan | None:
    """Plan of a trial: recorded, or read from its settings; `None` if they are invalid."""
    if record.plan is not None:
        return record.plan
    try:
        return plan_of_any_engine(record.config.server_args)
    except ServetuneError:  # a setting of another tool
        return None


def devices_of(record: TrialRecord) -> int | None:
    """Number of devices that the trial used, from its plan or its settings.

    The `gpu_count` of other tools' journals is the machine's, so it is used only where the
    parallel split is unknown.
    """
    if record.plan is not None:
        return record.plan.device_count
    used = record.metadata.gpus_used
    if isinstance(used, int) and used > 0:
        return used
    settings = record.config.server_args
    split = any(name.endswith(("tensor_parallel_size", "tp_size")) for name in settings)
    if split and (plan := plan_of(record)) is not None:
        return plan.device_count
    count = record.metadata.gpu_count
    return count if isinstance(count, int) and count > 0 else None


def _varying_names(settings: list[JsonObject]) -> tuple[str, ...]:
    # Records may list settings in any order, so the order is that of the table.
    order = {name: place for place, name in enumerate(_SHORT)}
    names = sorted(
        {name for each in settings for name in each},
        key=lambda name: (order.get(name, len(order)), name),
    )
    return tuple(name for name in names if _varies(name, settings))


def _varies(name: str, settings: list[JsonObject]) -> bool:
    first = settings[0].get(name)
    kind, text = type(first), repr(first)
    return any(
        type(value := each.get(name)) is not kind or (value != first and repr(value) != text)
        for each in settings
    )
