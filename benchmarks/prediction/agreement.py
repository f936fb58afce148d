"""Disagreement of `estimate` and `simulate` over engines, models, machines and loads.

    python benchmarks/prediction/agreement.py [--engines tgi] [--users 1,96] [--rows]

One plan has one answer: the steady state by formula (`performance_at`, what `estimate` prints) and
the engine in virtual time (`simulate`) should give the same throughput, time between tokens and
end-to-end latency. The simulated run is a closed loop; means are over requests that were sent after
each user had two answers and before the last round, in which fewer and fewer users are left.
`tests/perf/test_agreement.py` holds the two together on a part of this grid.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from servetune.errors import PlanError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import RunOptions, performance_at, simulate
from servetune.plan import Plan
from servetune.units import MS_PER_S
from servetune.workload import SHAREGPT, LengthLaws, Workload
from servetune.workload.laws import Table
from servetune.workload.lengths import Lengths

ENGINES = ("vllm", "sglang", "tgi")
#: Model, GPU, number of GPUs: dense, sliding windows, experts, experts with latent attention.
PLACES = (
    ("meta-llama/Llama-2-7b-hf", "A10G", 1),
    ("Qwen/Qwen3-4B", "L4", 4),
    ("meta-llama/Llama-3.1-8B-Instruct", "H100", 1),
    ("meta-llama/Llama-3.3-70B-Instruct", "H100", 8),
    ("google/gemma-3-27b-it", "H100", 2),
    ("Qwen/Qwen3-30B-A3B", "H100", 2),
    ("mistralai/Mixtral-8x7B-v0.1", "A100", 8),
    ("deepseek-ai/DeepSeek-V3", "H200", 8),
)
#: Conversations of people, without the few prompts that are longer than some models' context.
CHAT = LengthLaws(
    Table(
        points=(
            *((0, 4), (0.087, 10), (0.233, 20), (0.375, 50), (0.455, 100)),
            *((0.54, 200), (0.799, 500), (0.956, 1000), (1, 2500)),
        ),
        mean=290.0,
    ),
    SHAREGPT.output_tokens,
)
LOADS: Mapping[str, Lengths] = {
    "8 / 100": LengthLaws.fixed(8, 100),
    "128 / 512": LengthLaws.fixed(128, 512),
    "512 / 128": LengthLaws.fixed(512, 128),
    "1024 / 512": LengthLaws.fixed(1024, 512),
    "1600 / 32": LengthLaws.fixed(1600, 32),
    "to 512 / to 128": LengthLaws.ranged(512, 128, 0.0),
    "to 1024 / to 512": LengthLaws.ranged(1024, 512, 0.5),
    "chat": CHAT,
}
USERS = (1, 8, 32, 128, 256)
CONTEXT_TOKENS = 4096
#: Rounds and least requests of a simulated run; of equal lengths one round is like the next.
_ROUNDS, _LEAST_REQUESTS = 10, 600
_ROUNDS_EQUAL, _LEAST_REQUESTS_EQUAL = 6, 48


class Answer(msgspec.Struct, frozen=True):
    """Performance of one plan at one concurrency."""

    output_tokens_per_s: float
    tpot_ms: float
    e2e_ms: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One plan under one load, by formula and in virtual time.

    Attributes:
        queued: Whether more users came than have a place in the batch or the cache.
    """

    engine: str
    model: str
    load: str
    users: int
    queued: bool
    formula: Answer
    simulated: Answer

    def differences(self) -> dict[str, float]:
        """Formula over simulation, less one, for each quantity."""
        return {
            name: getattr(self.formula, name) / getattr(self.simulated, name) - 1
            for name in Answer.__struct_fields__
        }


def compared(engine: str, place: tuple[str, str, int], load: str, users: int) -> Compared:
    """Both answers for a plan.

    Raises:
        PlanError: The plan cannot run there.
    """
    model, gpu, count = place
    shape, machine = load_shape(model, catalogue_first=True), node(gpu=gpu, count=count)
    plan = Plan(model=model, engine=engine, tensor_parallel=count, max_model_len=CONTEXT_TOKENS)
    lengths = LOADS[load]
    if lengths.fixed_pair:
        requests = max(_LEAST_REQUESTS_EQUAL, _ROUNDS_EQUAL * users)
    else:
        requests = max(_LEAST_REQUESTS, _ROUNDS * users)
    workload = Workload.of(lengths, request_count=requests, concurrency=users)
    point = performance_at(shape, machine, plan, workload, users)
    run = simulate(plan, shape, machine, workload, options=RunOptions(each_token=False))
    records = sorted(run.records, key=lambda record: record.sent_s or 0.0)
    if users > 1:
        records = records[2 * users : -users]
    e2e_s = sum(record.e2e_s or 0.0 for record in records)
    first_s = sum(record.ttft_s or 0.0 for record in records)
    tokens = sum(record.output_tokens for record in records)
    return Compared(
        engine=engine,
        model=model,
        load=load,
        users=users,
        queued=point.queued,
        formula=Answer(point.output_tokens_per_s, point.itl_ms, point.e2e_ms),
        simulated=Answer(
            users * tokens / e2e_s,
            (e2e_s - first_s) / (tokens - len(records)) * MS_PER_S,
            e2e_s / len(records) * MS_PER_S,
        ),
    )


def grid(engines: Sequence[str], users: Sequence[int]) -> Iterator[Compared]:
    """All plans that can run."""
    for engine, place, load, count in itertools.product(engines, PLACES, LOADS, users):
        try:
            yield compared(engine, place, load, count)
        except PlanError as error:
            print(f"{engine}, {place[0]}, {load}: {error}", file=sys.stderr)


def tell(rows: Sequence[Compared]) -> None:
    """Median, 95th percentile and largest of absolute differences, by engine."""
    print("\n| engine | plans | throughput | time between tokens | end to end |")
    print("|---|--:|--:|--:|--:|")
    for engine in dict.fromkeys(row.engine for row in rows):
        mine = [row.differences() for row in rows if row.engine == engine]
        cells = [
            " / ".join(f"{100 * value:.1f}%" for value in _spread([each[name] for each in mine]))
            for name in Answer.__struct_fields__
        ]
        print(f"| {engine} | {len(mine)} | {' | '.join(cells)} |")


def _spread(differences: Sequence[float]) -> tuple[float, float, float]:
    sizes = np.abs(differences)
    return float(np.median(sizes)), float(np.percentile(sizes, 95)), float(sizes.max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--users", default=",".join(map(str, USERS)))
    parser.add_argument("--rows", action="store_true", help="print every plan")
    given = parser.parse_args()
    rows = []
    for row in grid(given.engines.split(","), [int(n) for n in given.users.split(",")]):
        rows.append(row)
        if given.rows:
            told = "  ".join(f"{100 * value:+6.1f}%" for value in row.differences().values())
            print(f"{row.engine:7} {row.model:34} {row.load:17} {row.users:4}  {told}", flush=True)
    tell(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
