"""What `tune` prints while it goes: the plan of a run, and a line for each trial."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from servetune.store import Artifacts, TrialRecord
from servetune.trials import Launch, StudyContext, Trial, commands_of
from servetune.units import format_seconds

__all__ = ["print_plan", "progress_line"]

#: A client later than this share of the median TTFT spoils what it measures.
TRUSTED_SHARE = 0.1
LAG_WORTH_SAYING_S = 0.005


def progress_line(record: TrialRecord, done: int, total: int) -> str:
    said = " ".join(
        f"{name}={value}"
        for name, value in {**record.config.server_args, **record.config.client_args}.items()
    )
    head = f"[{done}/{total}] {'simulated ' if record.simulated else ''}{said}"
    if record.failure:
        return f"{head}: FAILED ({record.failure.kind}) {record.failure.reason}"
    results = record.results
    latency_s = (results.get("p99_e2e_latency_ms") or 0) / 1000
    line = (
        f"{head}: {results.get('output_throughput') or 0:,.0f} output tokens/s, "
        f"p99 end-to-end {format_seconds(latency_s)}, "
        f"{results.get('completed')} ok, {results.get('failed')} failed"
    )
    return "\n  ! ".join([line, *_doubts(results)])


def _doubts(results: Mapping[str, Any]) -> Iterator[str]:
    """Why the figures may not be what was asked for."""
    lag_s = (results.get("instrument") or {}).get("loop_lag_p99_s") or 0.0
    smallest_s = (results.get("median_ttft_ms") or 0.0) / 1000
    if lag_s > max(LAG_WORTH_SAYING_S, TRUSTED_SHARE * smallest_s):
        yield (
            f"the load client itself came up to {format_seconds(lag_s)} late (p99): "
            "this machine is too busy for these latencies to be trusted"
        )
    wrong = results.get("wrong_length") or {}
    if wrong.get("count"):
        yield (
            f"{wrong['count']:,} answers have another length than asked, such as "
            f"{wrong['samples'][0]}"
        )


def print_plan(
    groups: list[list[Trial]], run: StudyContext, launch: Launch, artifacts: Artifacts
) -> int:
    """What would be started, and how often; stdout, so that it can be piped."""
    for number, (group, command) in enumerate(
        zip(groups, commands_of(groups, run, launch), strict=True), start=1
    ):
        print(f"# server {number} of {len(groups)}, {len(group)} trials")
        print(command)
        for trial in group:
            said = ";".join(f"{name}={value}" for name, value in trial.client_args.items())
            print(f"#   load: {said or 'defaults'}")
    trials = sum(len(group) for group in groups)
    verb = "simulated" if run.simulated else "started"
    print(f"# {trials} trials on {len(groups)} server configurations; nothing was {verb}")
    print(f"# results would go to {artifacts.summary}", file=sys.stderr)
    return 0
