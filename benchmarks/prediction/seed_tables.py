"""The published tables of text-generation-inference (2023), predicted and measured, row by row.

    python benchmarks/prediction/seed_tables.py [--data DIR] [--fit]

Reads `seed_measurements.csv` of the shared data: the JumpStart study (latency of one user,
highest throughput) and the multi-replica study, both of January 2024. `--fit` first finds the
four overheads of the engine (`TGI_FIT`) from the rows of `FITTED` and the throughput of the
multi-replica study, and prints them; the tables then use those. Every other row is unseen. Marked
rows say why they are not counted.
"""

from __future__ import annotations

import argparse
import collections
import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from servetune.engines import step_law_facts
from servetune.hardware import instances
from servetune.models import load_shape
from servetune.perf.roofline import OperatingPoint, performance_at
from servetune.perf.roofline.coefficients import Coefficients, changed
from servetune.perf.roofline.tables import table_for
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

ROOT = Path(__file__).parents[2]

MODELS = {
    "Llama 2 7B": "meta-llama/Llama-2-7b-hf",
    "Llama 2 13B": "meta-llama/Llama-2-13b-hf",
    "Llama 2 70B": "meta-llama/Llama-2-70b-hf",
    "Mistral 7B": "mistralai/Mistral-7B-v0.1",
    "Mixtral 8x7B": "mistralai/Mixtral-8x7B-v0.1",
    "Falcon 7B": "tiiuae/falcon-7b",
    "Falcon 40B": "tiiuae/falcon-40b",
    "Falcon 180B": "tiiuae/falcon-180B",
}
#: As the study served Llama 2: the model's context, and one step of prompts that holds it.
CONTEXT_TOKENS = PROMPT_TOKENS = 4096
#: Measured quantity -> its table, and what an operating point says of it.
#: Overheads of TGI that `--fit` fits, as its `behaviour.toml` has them.
TGI_FIT: Mapping[str, float] = {
    path: step_law_facts("tgi").coefficients[path]
    for path in ("host.step_s", "host.sequence_s", "launch.layer_s", "host.prompt_s")
}

METRICS: Mapping[str, tuple[str, Callable[[OperatingPoint, int], float]]] = {
    "min_latency_per_token_e2e": (
        "JumpStart, latency of one user",
        lambda point, osl: point.e2e_ms / osl,
    ),
    "max_output_throughput": (
        "JumpStart, highest throughput",
        lambda point, _: point.output_tokens_per_s,
    ),
    "output_throughput": (
        "JumpStart, in its text",
        lambda point, _: point.output_tokens_per_s,
    ),
    "request_throughput": (
        "multi-replica, throughput",
        lambda point, _: point.requests_per_s,
    ),
    "median_e2e_latency": (
        "multi-replica, median latency",
        lambda point, _: point.e2e_ms / 1e3,
    ),
}
#: Time in which users of the multi-replica study sent requests.
SENDING_S = 90.0
STUDIES = ("jumpstart_study_2024-01", "multi_replica_study_2024-01")
FITTED = "Llama 2 7B"
#: One network and one machine under two names: too like the fit to count as unseen.
TWIN = "Llama 2 7B Chat"


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one table."""

    model: str
    instance: str
    tensor_parallel: int
    replicas: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    metric: str
    value: float
    unit: str
    confidence: str

    @property
    def table(self) -> str:
        return METRICS[self.metric][0]

    @property
    def left_out(self) -> str:
        """Why it is not counted; empty where it is."""
        if self.confidence == "ambiguous":
            return "column unclear"
        if self.table in ("JumpStart, latency of one user", "JumpStart, highest throughput"):
            return {FITTED: "in the fit", TWIN: "twin of the fit"}.get(self.model, "")
        if self.table == "multi-replica, throughput":
            return "in the fit"
        again = self.metric == "output_throughput" and self.input_tokens == self.output_tokens
        if again or self.table == "multi-replica, median latency":
            return "twin of the fit"  # the latency of one user, and users over throughput
        seen = self.metric == "output_throughput" and self.concurrency > 1
        return "in view" if seen else ""  # when the time per prompt was chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--fit", action="store_true", help="find the overheads again first")
    given = parser.parse_args()
    rows = read(given.data)
    overheads = dict(TGI_FIT)
    if given.fit:
        overheads = fitted([row for row in rows if row.left_out == "in the fit"])
        print({name: float(f"{value:.3g}") for name, value in overheads.items()})
    print("| model | instance | TP x copies | in / out | users | measured | predicted | error | |")
    print("|---|---|--:|--:|--:|--:|--:|--:|---|")
    errors = {}
    for row in rows:
        predicted = prediction(row, overheads)
        errors[row] = 100 * (predicted / row.value - 1)
        print(
            f"| {row.model} | {row.instance} | {row.tensor_parallel} x {row.replicas} | "
            f"{row.input_tokens} / {row.output_tokens} | {row.concurrency} | "
            f"{row.value:.4g} {row.unit} | {predicted:.4g} | {errors[row]:+.1f}% | {row.left_out} |"
        )
    print_medians(errors)
    return 0


def read(data: Path) -> list[Published]:
    """The figures of both studies that a prediction can be held against.

    Success is not predicted. The multi-replica study divides all answers by the time until the last
    one. Its users sent for 90 s; what was then in flight came after, so that the rest is the rate
    of 90 s, which is the same within 2% from 200 users on.
    """
    with (data / "seed_measurements.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] in STUDIES]
    answered = {
        row["concurrency"]: float(row["value"])
        for row in rows
        if row["metric"] == "requests_completed"
    }
    for row in rows:
        if row["metric"] == "request_throughput":
            users = row["concurrency"]
            row["value"] = str((answered[users] - float(users)) / SENDING_S)
    return [
        Published(
            model=row["model"],
            instance=row["instance"],
            tensor_parallel=int(row["tp"]),
            replicas=int(row["replicas"]),
            input_tokens=int(row["isl"]),
            output_tokens=int(row["osl"]),
            concurrency=int(row["concurrency"]),
            metric=row["metric"],
            value=float(row["value"]),
            unit=row["unit"],
            confidence=row["confidence"],
        )
        for row in rows
        if row["metric"] in METRICS
    ]


def prediction(row: Published, overheads: Mapping[str, float]) -> float:
    """The row's figure, in its unit."""
    name = MODELS[row.model.removesuffix(" Chat").removesuffix(" Instruct")]
    shape = load_shape(name, catalogue_first=True)
    machine = instances()[row.instance]
    plan = Plan(
        model=name,
        engine="tgi",
        tensor_parallel=row.tensor_parallel,
        replicas=row.replicas,
        max_num_seqs=row.concurrency,
        max_num_batched_tokens=PROMPT_TOKENS,
        max_model_len=min(CONTEXT_TOKENS, shape.max_context_tokens),
        dtype="float16",
    )
    lengths = LengthLaws.fixed(row.input_tokens, row.output_tokens)
    table: Coefficients = table_for(machine.device, "tgi")
    point = performance_at(
        shape,
        machine,
        plan,
        Workload.of(lengths, request_count=1000),
        row.concurrency,
        coefficients=changed(table, overheads),
    )
    return METRICS[row.metric][1](point, row.output_tokens)


def fitted(rows: Sequence[Published]) -> dict[str, float]:
    """The overheads with the least sum of absolute log errors, by halving steps around them.

    Absolute errors, as one figure of eight may be off by more than noise. Rows of a study count
    as eight together, as the nine of one load say the same thing nine times.
    """
    counts = collections.Counter(row.metric == "request_throughput" for row in rows)

    def miss(logs: Sequence[float]) -> float:
        overheads = dict(zip(TGI_FIT, np.exp(logs), strict=True))
        return sum(
            abs(np.log(prediction(row, overheads) / row.value))
            / counts[row.metric == "request_throughput"]
            for row in rows
        )

    best = [float(np.log(value)) for value in TGI_FIT.values()]
    least, stride = miss(best), 0.4
    while stride > 0.01:
        turns = stride * np.concatenate([np.eye(len(best)), -np.eye(len(best))])
        tried = [[log + turn for log, turn in zip(best, each, strict=True)] for each in turns]
        misses = [miss(each) for each in tried]
        if min(misses) < least:
            best, least = tried[int(np.argmin(misses))], min(misses)
        else:
            stride /= 2
    return {name: float(np.exp(log)) for name, log in zip(TGI_FIT, best, strict=True)}


def print_medians(errors: Mapping[Published, float]) -> None:
    """Medians of absolute errors by table, unseen rows and fitted ones apart."""
    print("\n| table | unseen rows | median | mean | worst |\n|---|--:|--:|--:|--:|")
    for table in dict.fromkeys(row.table for row in errors):
        of = [abs(e) for row, e in errors.items() if row.table == table and not row.left_out]
        if not of:
            continue
        print(
            f"| {table} | {len(of)} | {np.median(of):.1f}% | {np.mean(of):.1f}% | {max(of):.0f}% |"
        )
    seen = [abs(error) for row, error in errors.items() if row.left_out == "in the fit"]
    print(
        f"| in the fit | {len(seen)} | {np.median(seen):.1f}% | {np.mean(seen):.1f}% | "
        f"{max(seen):.0f}% |"
    )


if __name__ == "__main__":
    sys.exit(main())
