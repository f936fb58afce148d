"""Figure data as plain JSON values: the dashboard, and the timeline of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

import servetune
from servetune.json_value import JsonObject
from servetune.metrics import Constraint, Record
from servetune.report.comparison import PredictionPair, pairs_between, pairs_within, quantity_errors
from servetune.report.quantities import QUANTITIES, STATISTICS
from servetune.report.ranking import (
    SweptSettings,
    devices_of,
    label_of,
    miscounted,
    pareto_of,
    pick_title,
    picks,
    setting_text,
    short_name,
    varying,
)
from servetune.report.selection import MOST_BYTES, MOST_TRIALS, in_order_of_interest
from servetune.report.suggestions import LOAD_SETTINGS, Evidence, load_of
from servetune.report.summary import simulated_accuracy, simulated_share, simulated_speed
from servetune.search import (
    TOLERATED_ERROR_RATE,
    Recommendation,
    SearchSummary,
    failed_requests,
)
from servetune.store.schema import TrialRecord

#: Significant digits of a figure; the journal has all of them.
_DIGITS = 6
#: Longest text and list on the page; longer ones are cut, as the journal has them.
_LONGEST_TEXT = 6000
_LONGEST_LIST = 40


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
    live: JsonObject | None = None,
) -> JsonObject:
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
        live: Addresses of a page that is served and follows its run: `events` and `control`.
    """
    names = varying(records)
    load = load_setting_of(records)
    evidence = Evidence(records, constraints)
    findings = miscounted(records)
    chosen = picks(records, constraints) if chosen is None else chosen
    pareto = pareto_of(records, chosen)
    interest = in_order_of_interest(records, constraints, chosen, pareto)

    def trial(place: int) -> JsonObject:
        record = records[place]
        return _trial(record, names, load) | {
            "suggestions": evidence.suggestions(record),
            "miscounted": findings.get(record.key),
        }

    trials = _those_that_fit(trial, interest)
    on_page = [records[place] for place in trials]
    pairs = [_pair(pair, own=True) for pair in pairs_within(on_page)]
    pairs += [_pair(pair, own=False) for pair in pairs_between(on_page, comparison or ())]
    return {
        "servetune": servetune.__version__,
        "title": title,
        "header": header_of(records),
        "quantities": [
            msgspec.to_builtins(q) | {"has_statistics": q.has_statistics}
            for q in QUANTITIES.values()
        ],
        "statistics": list(STATISTICS),
        "objectives": [_choice(pick) for pick in chosen.values()],
        "ladder": any(pick.ladder for pick in chosen.values()),
        "constraints": [msgspec.to_builtins(c) | {"label": c.label} for c in constraints],
        "tolerated_error_rate": TOLERATED_ERROR_RATE,
        "settings": [
            {"name": name, "short": short_name(name), "side": side}
            for side, each in (("server", names.server), ("client", names.client))
            for name in each
        ],
        "load": load,
        "trials": list(trials.values()),
        "picks": {name: _pick(pick) for name, pick in chosen.items()},
        "pareto": pareto,
        "search": _search(search) if search else None,
        "pairs": pairs,
        "timeline": timeline,
        "timelines": dict(timelines or {}),
        "references": [_reference(record) for record in comparison or () if record.status == "ok"],
    } | ({"live": live} if live else {})


def _those_that_fit(
    trial: Callable[[int], JsonObject], interest: Iterable[int]
) -> dict[int, JsonObject]:
    """Trials by their index, in the order of the run, as many as a page has room for."""
    fitting: dict[int, JsonObject] = {}
    left_bytes = MOST_BYTES
    for place in itertools.islice(interest, MOST_TRIALS):
        made = trial(place)
        left_bytes -= len(msgspec.json.encode(made))
        if left_bytes < 0:
            break
        fitting[place] = made
    ordered = dict(sorted(fitting.items()))
    for index, made in enumerate(ordered.values()):
        made["id"] = index
    return ordered


def header_of(records: Sequence[TrialRecord]) -> JsonObject:
    """Facts common to all trials, for the top of the page; `None` where unknown."""

    def common(name: str) -> str | None:
        values = dict.fromkeys(
            str(record.metadata[name])
            for record in records
            if record.metadata.get(name) not in (None, "", "unknown", -1)
        )
        return ", ".join(values) if 0 < len(values) <= 3 else None

    engines = dict.fromkeys(name for record in records if (name := _engine(record)))
    return {
        "model": common("model_tag"),
        "machine": _machine(common("gpu_type"), common("gpu_count")),
        "instance": common("instance_type"),
        "price": common("price_per_hour_usd"),
        "price_source": common("price_source"),
        "engine": ", ".join(engines) or None,
        "workload": _workload(records),
        "date": _date(records),
        "simulated": simulated_share(records),
        "simulated_speed": simulated_speed(records),
        "accuracy": simulated_accuracy(records),
        "simulated_count": sum(record.simulated for record in records),
        "failed_count": sum(record.status == "failed" for record in records),
        "trial_count": len(records),
    }


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


def _trial(record: TrialRecord, names: SweptSettings, load: str | None) -> JsonObject:
    server = " · ".join(
        setting_text(name, record.config.server_args.get(name)) for name in names.server
    )
    failure = record.failure
    return {
        "key": record.key,
        "label": label_of(record, names),
        "series": server or "all trials",
        "server": _slim(record.config.server_args),
        "client": _slim(record.config.client_args),
        "status": record.status,
        "simulated": record.simulated,
        "devices": devices_of(record),
        "load": load_of(record, load) if load else None,
        "results": _slim(record.results),
        "failed_requests": _failed_requests(record),
        "predicted": _slim(record.predicted) if record.predicted else None,
        "interval": _slim(msgspec.to_builtins(record.interval)) if record.interval else None,
        "cmd": record.cmd[:_LONGEST_TEXT],
        "metadata": _slim(record.metadata),
        "provenance": _slim(record.provenance),
        "server_log": record.server_log,
        "failure": {
            "kind": failure.kind,
            "reason": failure.reason,
            "log_tail": failure.log_tail[-_LONGEST_TEXT:],
        }
        if failure
        else None,
    }


def _choice(pick: Recommendation) -> JsonObject:
    """Objective of a pick, the first of several, under the pick's name."""
    choice: JsonObject = {
        **msgspec.to_builtins(pick.objectives[0]),
        "name": pick.objective,
        "heading": pick_title(pick),
    }
    if len(pick.objectives) > 1:
        choice["objectives"] = msgspec.to_builtins(pick.objectives)
    return choice


def _search(search: SearchSummary) -> JsonObject:
    """Lines on the search, and the doubt about its pick in the words of the command line."""
    doubt = search.doubt
    return {
        "lines": search.lines(),
        "doubt": {
            "key": doubt.key,
            "label": doubt.label,
            "objective": doubt.objective,
            "settled": doubt.settled,
            "verdict": doubt.verdict,
            "open": doubt.open_questions(),
        }
        if doubt and doubt.key
        else None,
    }


def _pick(pick: Recommendation) -> JsonObject:
    return {
        "key": pick.chosen.key if pick.chosen else None,
        "label": pick.chosen.label if pick.chosen else None,
        "feasible": pick.feasible,
        "reasons": list(pick.reasons),
    }


def _pair(pair: PredictionPair, *, own: bool) -> JsonObject:
    """Errors of a prediction; `own` where the measured record itself holds it."""
    return {
        "own": own,
        "label": pair.label,
        "key": pair.key,
        "gaps": [_slim(msgspec.to_builtins(error)) for error in quantity_errors(pair)],
    }


def _reference(record: TrialRecord) -> JsonObject:
    return {
        "label": label_of(
            record, SweptSettings(server=("tensor_parallel_size",), client=("max_concurrency",))
        ),
        "results": _slim(record.results),
        "failed_requests": _failed_requests(record),
        "devices": devices_of(record),
        "simulated": record.simulated,
    }


def _failed_requests(record: TrialRecord) -> JsonObject | None:
    """Failed requests as texts, so that page and command line use the same words."""
    failed = failed_requests(record.results)
    if failed is None:
        return None
    return {
        "fraction": failed.fraction,
        "sentence": failed.sentence,
        "mark": f"{failed.share} failed" if failed.beyond_tolerance else None,
    }


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


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


#: Largest number of request bars, so that drawing is instant and the page stays below half a
#: megabyte.
MOST_BARS = 2000
#: Points of a curve, about the columns of a screen.
_POINTS = 400
#: Decimals of times in seconds; a tenth of a millisecond is less than a pixel.
_DECIMALS = 4


def timeline_of(
    records: Sequence[Record],
    admitted_s: Sequence[float | None],
    kv_use: Sequence[tuple[float, float]],
    *,
    seen_by_client: bool = False,
) -> JsonObject:
    """Bars of single requests, and curves of the whole run.

    Of more than `MOST_BARS` requests an even sample is drawn; the curves are of all. A request
    is running from its first scheduling to its last token, and waiting from due until then. A
    preempted request still counts as running.

    Args:
        records: Records in order of index, at least one.
        admitted_s: Time of each request's first scheduling, if any.
        seen_by_client: Whether these are send times, as the client cannot see scheduling.
        kv_use: Pairs of seconds and used share of the KV cache.
    """
    end_s = max(record.end_s for record in records)
    chosen = _even(len(records), MOST_BARS)
    starts = [
        record.end_s if at is None else at for record, at in zip(records, admitted_s, strict=True)
    ]
    return {
        "duration_s": end_s,
        "total": len(records),
        "seen_by_client": seen_by_client,
        "bars": [_bar(records[i], admitted_s[i]) for i in chosen],
        "curves": _curves(records, starts, end_s),
        "kv": [
            [round(time_s, _DECIMALS), round(share, 5)]
            for time_s, share in (kv_use[i] for i in _even(len(kv_use), _POINTS))
        ],
    }


def _even(count: int, most: int) -> list[int]:
    """Indexes of at most `most` of `count` items, evenly spaced, both ends included."""
    if count <= most:
        return list(range(count))
    return [round(i) for i in np.linspace(0, count - 1, most)]


def _bar(record: Record, admitted_s: float | None) -> list[float | None]:
    """Index, due, admitted, first token, end, tokens in, tokens out, and whether the answer
    was complete; a missing time is `None`.
    """
    first_s = record.chunk_times_s[0] if record.chunk_times_s else None
    times_s = (record.due_s, admitted_s, first_s, record.end_s)
    return [
        record.index,
        *(None if at is None else round(at, _DECIMALS) for at in times_s),
        record.input_tokens,
        record.output_tokens,
        record.outcome == "ok",
    ]


def _curves(records: Sequence[Record], starts_s: Sequence[float], end_s: float) -> JsonObject:
    """Curves of means over time bins, so that no peak between two points is lost."""
    edges_s = np.linspace(0.0, end_s or 1.0, _POINTS + 1)
    due = _area(np.array([record.due_s for record in records]), edges_s)
    started = _area(np.array(starts_s), edges_s)
    ended = _area(np.array([record.end_s for record in records]), edges_s)
    width_s = edges_s[1] - edges_s[0]
    return {
        "width_s": float(width_s),
        "running": _means(started - ended, width_s),
        "waiting": _means(due - started, width_s),
    }


_Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _area(times_s: _Floats, edges_s: _Floats) -> _Floats:
    """Integral up to each edge of the number of past times: sum of (edge - time)."""
    ordered = np.sort(times_s)
    past = np.searchsorted(ordered, edges_s, side="right")
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    area: _Floats = edges_s * past - sums[past]
    return area


def _means(area: _Floats, width_s: float) -> list[float]:
    return [round(max(0.0, float(mean)), 3) for mean in np.diff(area) / width_s]
