"""Assumptions about a row: facts that it does not state, as an engine could run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servetune.engines import DEFAULT_ENGINE, WIDEST_FRACTION
from servetune.engines.engine import step_law_facts
from servetune.perf.roofline import PlannedRun
from servetune.perf.roofline.accuracy import cells
from servetune.plan import Setting
from servetune.prediction.stated_settings import (
    attention_ranks,
    idle_settings,
    is_later,
    is_release,
    stated_settings,
)

#: Words of tables for servers that both compute prompts and decode, `static` batches included.
_AGGREGATED = ("", "agg", "aggregated", "ifb", "static")
_DISAGGREGATED = ("disagg", "disaggregated", "pd")


def assumed(row: Mapping[str, str], run: PlannedRun, benchmark: str | None = None) -> str:
    """Differences between the run and the row's own words, for a reader; empty if none.

    Args:
        row: Column to text.
        run: Run that was read from it.
        benchmark: Name of the convention whose settings were applied.
    """
    return "; ".join(_assumptions(row, run, benchmark))


#: Names of benchmarks as they write themselves.
_TITLES = {"inferencemax": "InferenceMAX"}


def _assumptions(row: Mapping[str, str], run: PlannedRun, benchmark: str | None) -> Iterator[str]:
    plan, facts = run.plan, step_law_facts(run.engine or run.plan.engine)
    if benchmark is not None:
        source = f"as {_TITLES.get(benchmark, benchmark)} ran these settings"
    else:
        source = f"as {facts.name}'s own tables of highest throughput were measured"
    stated = _stated(row, run)
    if all(cell.kind.engine != facts.name for cell in cells()):
        yield (
            f"no run of {facts.name} was measured: its steps are taken to be those of "
            f"{DEFAULT_ENGINE}"
        )
    vendor = run.node.device.vendor
    if facts.vendor not in ("", vendor):
        yield f"{facts.name} does not run on devices of {vendor}: priced as if it did"
    version = row.get("engine_version", "").strip()
    if version and not (is_release(version) or facts.is_fork(version)):
        yield f"{version} is not read as a release: taken as if none were stated"
    elif version and is_later(version, facts.name):
        yield f"release {version} is not described yet: taken as the newest that is"
    yield from _unread(row, run)
    yield from _split(row, run, source)
    if plan.draft_tokens and plan.draft_acceptance_fraction is None:
        yield f"how many of {plan.draft_tokens} drafted tokens are accepted is assumed"
    elif plan.draft_tokens and "draft_tokens" not in stated:
        yield f"{plan.draft_tokens} tokens drafted ahead per step, {source}"
    if run.admission_delay_steps:
        yield f"waiting prompts held back for {run.admission_delay_steps:.3g} steps, {source}"
    share = plan.gpu_memory_fraction
    own = benchmark is None or share == WIDEST_FRACTION  # no share that the benchmark gave
    if share is not None and own and "gpu_memory_fraction" not in stated:
        yield f"engine's share of memory {share:.2g}: its default has room for few requests or none"
    mode = row.get("mode", "").strip().lower()
    if mode in _DISAGGREGATED:
        yield (
            f"mode {mode}: priced as one kind of server, as the row does not say which devices "
            "compute prompts; servetune simulate --prefill-replicas simulates them separately"
        )
    elif mode not in _AGGREGATED:
        yield f"mode {mode} is not known: priced as one kind of server"


def _stated(row: Mapping[str, str], run: PlannedRun) -> Mapping[str, Setting]:
    """Fields of a plan that the row's own settings fill."""
    told = row.get("server_args", "").strip()
    return stated_settings(run.engine or run.plan.engine, told, run.engine_version)


def _split(row: Mapping[str, str], run: PlannedRun, source: str) -> Iterator[str]:
    """Parts of the split over devices that the row does not state, or not so."""
    plan, columns = run.plan, {name: row.get(name, "").strip() for name in ("dp", "moe_ep")}
    engine = run.engine or plan.engine
    ranks = attention_ranks(engine, _stated(row, run))
    if ranks is not None:
        if plan.tensor_parallel > 1 and not plan.expert_parallel:
            yield f"{ranks.setting} is priced for networks of experts alone: taken as a plain split"
    elif plan.data_parallel > 1 and columns["dp"] in ("", "1", "1.0"):
        yield f"attention divided by users over {plan.data_parallel} devices, {source}"
    elif plan.expert_parallel and columns["moe_ep"] in ("", "1", "1.0"):
        yield (
            "experts whole on their devices (expert parallelism): split over "
            f"{plan.tensor_parallel * plan.data_parallel} they would not divide"
        )
    elif not plan.expert_parallel and columns["moe_ep"] not in ("", "0", "1", "1.0"):
        yield "no expert parallelism: the network has no experts"
    elif plan.expert_parallel:
        count, told = plan.tensor_parallel * plan.data_parallel, columns["moe_ep"]
        if count == 1:
            yield f"moe_ep {told} is not read: a copy has one device"
        elif float(told) != count:
            yield f"experts divided over all {count} devices of a copy, not {told}"


def _unread(row: Mapping[str, str], run: PlannedRun) -> Iterator[str]:
    """What a row says that is not read, or in another sense than vLLM's."""
    if idle := idle_settings(run.engine or run.plan.engine, run.plan):
        yield f"not priced: {', '.join(idle)}"
    ratio = row.get("range_ratio", "").strip()
    if ratio and float(ratio) == 0:
        yield "range_ratio 0: lengths from one token to the nominal ones; equal ones have 1"
    requests = row.get("requests", "").strip()
    if run.protocol == "open" and not requests:
        yield f"taken as a run of {run.request_count:,} requests"
    if run.protocol in ("static", "burst") and requests and float(requests) != run.request_count:
        yield (
            f"requests {requests} is not read: all {run.request_count} of a {run.protocol} "
            f"{'batch' if run.protocol == 'static' else 'run'} come at once"
        )
    usual = {"rate": "inf", "burstiness": "1", "max_concurrency": row.get("concurrency", "")}
    for column, word in usual.items():
        told = row.get(column, "").strip().removesuffix(".0")
        if run.protocol != "open" and told not in ("", word.strip()):
            yield f"{column} is not read: requests of a {run.protocol} run do not come at a rate"
    if run.dispersion != 1.0 and run.capped:
        yield "burstiness is not read: a client with max_concurrency holds bursts back"
    elif run.dispersion != 1.0 and run.coefficients.scheduling.admission_steps:
        yield "burstiness is not read: an engine that gathers prompts is computed as if by chance"
