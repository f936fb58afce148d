"""Data of the page: typed structs, which `tools/page_types.py` writes as TypeScript.

The page draws these and computes nothing that the command line computes, except the picks under
limits that are changed on the page (`frontend/src/choice.ts`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

import servetune
from servetune.decoding import ready
from servetune.json_value import JsonObject
from servetune.metrics import Constraint
from servetune.report.comparison import (
    PredictionPair,
    QuantityError,
    pairs_between,
    pairs_within,
    quantity_errors,
)
from servetune.report.importance import MetricImportance, all_importances
from servetune.report.machines import MachineCost, machine_costs
from servetune.report.progress import Progress, progress_of
from servetune.report.quantities import QUANTITIES, STATISTICS
from servetune.report.ranking import (
    SweptSettings,
    devices_of,
    label_of,
    miscounted,
    pareto_of,
    pick_title,
    picks,
    runs_of_candidates,
    setting_text,
    short_name,
    varying,
)
from servetune.report.roofline import RooflineFigure
from servetune.report.run_differences import RunDifference, run_differences
from servetune.report.selection import MOST_BYTES, MOST_TRIALS, in_order_of_interest
from servetune.report.suggestions import LOAD_SETTINGS, Evidence, load_of
from servetune.report.summary import simulated_accuracy, simulated_share, simulated_speed
from servetune.report.timeline import Timeline
from servetune.search import (
    TOLERATED_ERROR_RATE,
    Objective,
    Recommendation,
    SearchSummary,
    failed_requests,
)
from servetune.store.schema import TrialRecord

#: Version of these structs; a page shows data of a newer one as that, not half of it.
PAGE_SCHEMA = 1
#: Significant digits of a figure; the journal has all of them.
_DIGITS = 6
#: Significant digits of what only a chart shows.
_CHART_DIGITS = 4
#: Longest text and list on the page; longer ones are cut, as the journal has them.
_LONGEST_TEXT = 6000
_LONGEST_LIST = 40
#: Most differences to another run, nine of each configuration.
_DIFFERENCES = 1800


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Facts common to all trials, for the top of the page; `None` where unknown."""

    model: str | None
    machine: str | None
    instance: str | None
    price: str | None
    price_source: str | None
    engine: str | None
    workload: str | None
    date: str | None
    simulated: bool | str
    simulated_speed: float | None
    accuracy: str | None
    simulated_count: int
    failed_count: int
    trial_count: int


class PageQuantity(msgspec.Struct, frozen=True, kw_only=True):
    """Quantity of a trial: names, unit and direction; see `quantities.Quantity`."""

    name: str
    title: str
    short: str
    unit: str
    maximize: bool
    has_statistics: bool


class PageConstraint(msgspec.Struct, frozen=True, kw_only=True):
    """Limit that is enabled when the page opens, in ms for latencies."""

    metric: str
    statistic: str
    op: str
    value: float
    label: str


class PageSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Setting that differs between trials; `side` is `server` or `client`."""

    name: str
    short: str
    side: str


class FailedRequestCount(msgspec.Struct, frozen=True, kw_only=True):
    """Failed requests as texts; `mark` where they are more than a pick tolerates."""

    fraction: str
    sentence: str
    mark: str | None


class TrialFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Reason for which a trial failed, and the end of its server's log."""

    kind: str
    reason: str
    log_tail: str


class PageTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Trial as the page shows it.

    Attributes:
        id: Place in the page's list.
        key: Key in the journal.
        label: Settings that differ between trials, as text.
        series: Server settings that differ, as text: one line of a load curve.
        server: Server settings.
        client: Settings of the load.
        status: `ok` or `failed`.
        devices: Number of devices in use.
        load: Value of the swept load setting.
        results: Results under the journal's field names.
        predicted: Prediction for the same trial.
        interval: Interval of that prediction.
        suggestions: Next steps that the trials suggest.
        miscounted: Reason why its tokens are not counted rightly, where they are not.
    """

    id: int
    key: str
    label: str
    series: str
    server: JsonObject
    client: JsonObject
    status: str
    simulated: bool
    devices: int | None
    load: float | None
    results: JsonObject
    failed_requests: FailedRequestCount | None
    predicted: JsonObject | None
    interval: JsonObject | None
    cmd: str
    metadata: JsonObject
    provenance: JsonObject
    server_log: str | None
    failure: TrialFailure | None
    suggestions: list[str]
    miscounted: str | None


class PageRepeat(msgspec.Struct, frozen=True, kw_only=True):
    """Trials that differ by their seed alone: one candidate of a pick, with the mean of their
    results.
    """

    label: str
    keys: list[str]
    results: JsonObject


class PageReference(msgspec.Struct, frozen=True, kw_only=True):
    """Record of another run, shown for comparison."""

    label: str
    results: JsonObject
    failed_requests: FailedRequestCount | None
    devices: int | None
    simulated: bool


class PageObjective(msgspec.Struct, frozen=True, kw_only=True):
    """Objective of a pick, the first of several; `objectives` has all where there are several."""

    name: str
    heading: str
    metric: str
    statistic: str
    maximize: bool
    title: str
    objectives: list[Objective] = []


class PagePick(msgspec.Struct, frozen=True, kw_only=True):
    """Pick of the command line under the limits of the run, with its reasons and ties."""

    key: str | None
    label: str | None
    feasible: bool
    reasons: list[str]
    ties: list[str]


class PageDoubt(msgspec.Struct, frozen=True, kw_only=True):
    """How sure the search's pick is, in the words of the command line."""

    key: str
    label: str
    objective: str
    settled: bool
    verdict: str
    open: list[str]


class PageSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What the search did, as lines, and the doubt about its pick."""

    lines: list[str]
    doubt: PageDoubt | None


class PagePair(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted and measured values of one configuration.

    `own` where the measured record itself holds the prediction.
    """

    own: bool
    label: str
    key: str
    gaps: list[QuantityError]


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a page that follows a run: server-sent events, and where to POST controls."""

    events: str
    control: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Data of further figures, each made by a module of its own; empty where there is nothing.

    Attributes:
        importance: Importance of the swept settings, by metric and statistic.
        progress: Progress of the run in each objective, by the name of its pick.
        machines: Cost on each machine, where there are several.
        differences: Differences to the run that is shown for comparison.
        roofline: Roofline, steps and curves of one plan on one machine.
    """

    importance: list[MetricImportance] = []
    progress: list[Progress] = []
    machines: list[MachineCost] = []
    differences: list[RunDifference] = []
    roofline: RooflineFigure | None = None


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of the whole page; `timelines` has those of a sweep's trials by their keys."""

    schema: int
    servetune: str
    title: str
    header: Header
    quantities: list[PageQuantity]
    statistics: list[str]
    objectives: list[PageObjective]
    ladder: bool
    constraints: list[PageConstraint]
    tolerated_error_rate: float
    settings: list[PageSetting]
    load: str | None
    trials: list[PageTrial]
    repeats: list[PageRepeat]
    picks: dict[str, PagePick]
    pareto: list[str]
    search: PageSearch | None
    pairs: list[PagePair]
    timeline: Timeline | None
    timelines: dict[str, Timeline]
    references: list[PageReference]
    figures: Figures
    live: Live | None = None


def page_data(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    *,
    title: str,
    comparison: Sequence[TrialRecord] | None = None,
    timeline: JsonObject | None = None,
    timelines: Mapping[str, JsonObject] | None = None,
    chosen: Mapping[str, Recommendation] | None = None,
    search: SearchSummary | None = None,
    live: Live | None = None,
) -> PageData:
    """Data of the whole page.

    Args:
        records: Trials of the run in order.
        constraints: Constraints that are enabled when the page opens.
        title: Page title where the records name no model.
        comparison: Measured records to compare with the run's.
        timeline: Request timeline of a single trial, from `timeline_of`.
        timelines: Request timelines of trials of a sweep, by their keys.
        chosen: Picks of the run, where they have been made.
        search: What the search of the run did, where there was one.
        live: Addresses of the server of a page that follows a run.
    """
    names = varying(records)
    load = load_setting_of(records)
    evidence = Evidence(records, constraints)
    findings = miscounted(records)
    chosen = picks(records, constraints) if chosen is None else chosen
    pareto = pareto_of(records, chosen)
    interest = in_order_of_interest(records, constraints, chosen, pareto)

    def trial(place: int) -> PageTrial:
        record = records[place]
        made = _trial(record, names, load)
        return msgspec.structs.replace(
            made,
            suggestions=list(evidence.suggestions(record)),
            miscounted=findings.get(record.key),
        )

    trials = _those_that_fit(trial, interest)
    on_page = [records[place] for place in trials]
    pairs = [_pair(pair, own=True) for pair in pairs_within(on_page)]
    simulated = [record for record in on_page if record.simulated]
    pairs += [_pair(pair, own=False) for pair in pairs_between(simulated, comparison or ())]
    return PageData(
        schema=PAGE_SCHEMA,
        servetune=servetune.__version__,
        title=title,
        header=header_of(records),
        quantities=[
            PageQuantity(**msgspec.structs.asdict(q), has_statistics=q.has_statistics)
            for q in QUANTITIES.values()
        ],
        statistics=list(STATISTICS),
        objectives=[_choice(pick) for pick in chosen.values()],
        ladder=any(pick.ladder for pick in chosen.values()),
        constraints=[
            PageConstraint(**msgspec.structs.asdict(c), label=c.label) for c in constraints
        ],
        tolerated_error_rate=TOLERATED_ERROR_RATE,
        settings=[
            PageSetting(name=name, short=short_name(name), side=side)
            for side, each in (("server", names.server), ("client", names.client))
            for name in each
        ],
        load=load,
        trials=list(trials.values()),
        repeats=[
            PageRepeat(
                label=candidate.label,
                keys=[each.key for each in runs],
                results=_slim(candidate.results),
            )
            for runs, candidate in runs_of_candidates(on_page)
            if len(runs) > 1
        ],
        picks={name: _pick(pick) for name, pick in chosen.items()},
        pareto=list(pareto),
        search=_search(search) if search else None,
        pairs=pairs,
        timeline=msgspec.convert(timeline, ready(Timeline)) if timeline else None,
        timelines=msgspec.convert(dict(timelines or {}), ready(dict[str, Timeline])),
        references=[_reference(record) for record in comparison or () if record.status == "ok"],
        figures=_figures(records, on_page, constraints, comparison or (), chosen, names),
        live=live,
    )


def _figures(
    records: Sequence[TrialRecord],
    on_page: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    comparison: Sequence[TrialRecord],
    chosen: Mapping[str, Recommendation],
    names: SweptSettings,
) -> Figures:
    """Figures of all trials, but the differences to another run, which are of those on the page."""
    objectives = {name: pick.objectives[0] for name, pick in chosen.items()}
    machines = machine_costs([*records, *comparison], constraints)
    return Figures(
        importance=[short(each) for each in all_importances(records, names)],
        progress=[short(each) for each in progress_of(records, constraints, objectives).values()],
        machines=[short(each) for each in machines] if len(machines) > 1 else [],
        differences=[short(each) for each in run_differences(on_page, comparison)[:_DIFFERENCES]],
    )


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def short(value: _Struct) -> _Struct:
    """The same with its numbers rounded to what a chart shows."""

    def rounded(part: Any) -> Any:
        if isinstance(part, float):
            return _rounded(part, _CHART_DIGITS)
        if isinstance(part, dict):
            return {name: rounded(each) for name, each in part.items()}
        return [rounded(each) for each in part] if isinstance(part, list | tuple) else part

    return msgspec.convert(rounded(msgspec.to_builtins(value)), ready(type(value)))


def _those_that_fit(
    trial: Callable[[int], PageTrial], interest: Iterable[int]
) -> dict[int, PageTrial]:
    """Trials by their index, in the order of the run, as many as a page has room for."""
    fitting: dict[int, PageTrial] = {}
    left_bytes = MOST_BYTES
    for place in itertools.islice(interest, MOST_TRIALS):
        made = trial(place)
        left_bytes -= len(msgspec.json.encode(made))
        if left_bytes < 0:
            break
        fitting[place] = made
    return {
        place: msgspec.structs.replace(made, id=index)
        for index, (place, made) in enumerate(sorted(fitting.items()))
    }


def header_of(records: Sequence[TrialRecord]) -> Header:
    """Facts common to all trials, for the top of the page; `None` where unknown."""

    def common(name: str) -> str | None:
        values = dict.fromkeys(
            str(record.metadata[name])
            for record in records
            if record.metadata.get(name) not in (None, "", "unknown", -1)
        )
        return ", ".join(values) if 0 < len(values) <= 3 else None

    engines = dict.fromkeys(name for record in records if (name := _engine(record)))
    return Header(
        model=common("model_tag"),
        machine=_machine(common("gpu_type"), common("gpu_count")),
        instance=common("instance_type"),
        price=common("price_per_hour_usd"),
        price_source=common("price_source"),
        engine=", ".join(engines) or None,
        workload=_workload(records),
        date=_date(records),
        simulated=simulated_share(records),
        simulated_speed=simulated_speed(records),
        accuracy=simulated_accuracy(records),
        simulated_count=sum(record.simulated for record in records),
        failed_count=sum(record.status == "failed" for record in records),
        trial_count=len(records),
    )


def load_setting_of(records: Sequence[TrialRecord]) -> str | None:
    """Swept client setting that determines the load; `None` without one."""
    for name in LOAD_SETTINGS:
        if len({load for record in records if (load := load_of(record, name))}) > 1:
            return name
    return None


def _machine(gpu: str | None, count: str | None) -> str | None:
    if gpu is None:
        return None
    return f"{count} × {gpu}" if count else gpu


def _workload(records: Sequence[TrialRecord]) -> str | None:
    """Workload, where equal in all trials: `1,000 requests of sharegpt, ...`."""
    clients = [record.config.client_args for record in records]

    def same(name: str) -> Any:
        values = {repr(each.get(name)) for each in clients}
        return clients[0].get(name) if clients and len(values) == 1 else None

    parts = []
    count, dataset = same("num_prompts"), same("dataset_name")
    if count is not None or dataset is not None:
        requests = f"{count:,} requests" if isinstance(count, int) else "requests"
        parts.append(f"{requests} of {dataset}" if dataset else requests)
    if any(record.metadata.dataset_imitated for record in records):
        parts.append("lengths imitated from published totals")
    lengths = {_mean_lengths(record) for record in records if record.status == "ok"}
    if len(lengths) == 1 and (pair := lengths.pop()) is not None:
        parts.append(f"on average {pair[0]:.0f} tokens in, {pair[1]:.0f} out")
    return ", ".join(parts) or None


def _engine(record: TrialRecord) -> str:
    name = record.metadata.engine or record.results.backend or ""
    version = record.provenance.get("engine_version") or record.metadata.get("engine_version")
    return f"{name} {version}" if name and version else str(name)


def _mean_lengths(record: TrialRecord) -> tuple[float, float] | None:
    """Mean input and output tokens of the answered requests."""
    completed = record.results.completed
    tokens_in = record.results.total_input_tokens
    tokens_out = record.results.total_output_tokens
    if not completed or tokens_in is None or tokens_out is None:
        return None
    return tokens_in / completed, tokens_out / completed


def _date(records: Sequence[TrialRecord]) -> str | None:
    """Date of the first trial, and of the last if it differs."""
    days = sorted(str(at)[:10] for record in records if (at := record.provenance.get("started_at")))
    if not days:
        return None
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def _trial(record: TrialRecord, names: SweptSettings, load: str | None) -> PageTrial:
    server = " · ".join(
        setting_text(name, record.config.server_args.get(name)) for name in names.server
    )
    failure = record.failure
    return PageTrial(
        id=0,
        key=record.key,
        label=label_of(record, names),
        series=server or "all trials",
        server=_slim(record.config.server_args),
        client=_slim(record.config.client_args),
        status=record.status,
        simulated=record.simulated,
        devices=devices_of(record),
        load=load_of(record, load) if load else None,
        results=_slim(record.results),
        failed_requests=_failed_requests(record),
        predicted=_slim(record.predicted) if record.predicted else None,
        interval=_slim(msgspec.to_builtins(record.interval)) if record.interval else None,
        cmd=record.cmd[:_LONGEST_TEXT],
        metadata=_slim(record.metadata),
        provenance=_slim(record.provenance),
        server_log=record.server_log,
        failure=TrialFailure(
            kind=failure.kind,
            reason=failure.reason,
            log_tail=failure.log_tail[-_LONGEST_TEXT:],
        )
        if failure
        else None,
        suggestions=[],
        miscounted=None,
    )


def _choice(pick: Recommendation) -> PageObjective:
    """Objective of a pick, the first of several, under the pick's name."""
    first = pick.objectives[0]
    return PageObjective(
        name=pick.objective,
        heading=pick_title(pick),
        metric=first.metric,
        statistic=first.statistic,
        maximize=first.maximize,
        title=first.title,
        objectives=list(pick.objectives) if len(pick.objectives) > 1 else [],
    )


def _search(search: SearchSummary) -> PageSearch:
    """Lines on the search, and the doubt about its pick in the words of the command line."""
    doubt = search.doubt
    return PageSearch(
        lines=list(search.lines()),
        doubt=PageDoubt(
            key=doubt.key,
            label=doubt.label,
            objective=doubt.objective,
            settled=doubt.settled,
            verdict=doubt.verdict,
            open=list(doubt.open_questions()),
        )
        if doubt and doubt.key
        else None,
    )


def _pick(pick: Recommendation) -> PagePick:
    return PagePick(
        key=pick.chosen.key if pick.chosen else None,
        label=pick.chosen.label if pick.chosen else None,
        feasible=pick.feasible,
        reasons=list(pick.reasons),
        ties=[each.key for each in pick.ties],
    )


def _pair(pair: PredictionPair, *, own: bool) -> PagePair:
    """Errors of a prediction; `own` where the measured record itself holds it."""
    return PagePair(
        own=own,
        label=pair.label,
        key=pair.key,
        gaps=[_rounded_error(error) for error in quantity_errors(pair)],
    )


def _rounded_error(error: QuantityError) -> QuantityError:
    return msgspec.convert(_slim(msgspec.structs.asdict(error)), ready(QuantityError))


def _reference(record: TrialRecord) -> PageReference:
    return PageReference(
        label=label_of(
            record, SweptSettings(server=("tensor_parallel_size",), client=("max_concurrency",))
        ),
        results=_slim(record.results),
        failed_requests=_failed_requests(record),
        devices=devices_of(record),
        simulated=record.simulated,
    )


def _failed_requests(record: TrialRecord) -> FailedRequestCount | None:
    """Failed requests as texts, so that page and command line use the same words."""
    failed = failed_requests(record.results)
    if failed is None:
        return None
    return FailedRequestCount(
        fraction=failed.fraction,
        sentence=failed.sentence,
        mark=f"{failed.share} failed" if failed.beyond_tolerance else None,
    )


def _slim(value: object) -> Any:
    """Value for the page: rounded, lists and texts cut, non-finite numbers null."""
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, Mapping):
        return {str(name): _slim(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > _LONGEST_LIST:
            return f"{len(value)} values, see the journal"
        return [_slim(each) for each in value]
    return value


def _rounded(value: float, digits: int = _DIGITS) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
