"""Disagreement of `estimate` and `simulate` over engines, models, machines and loads.

    python benchmarks/prediction/agreement.py [--engines tgi] [--users 1,96] [--rows]
    python benchmarks/prediction/agreement.py --runs [--rows]   # 5 min, whole runs of `--batch`
    python benchmarks/prediction/agreement.py --runs --burstiness 0.4   # open loops in bursts
    python benchmarks/prediction/agreement.py --runs --others   # models and lengths not looked at

One plan has one answer: the steady state by formula (`performance_at`, what `estimate` prints) and
the engine in virtual time (`simulate`) should give the same throughput, time between tokens and
end-to-end latency. The simulated run is a closed loop; means are over requests that were sent after
each user had two answers and before the last round, in which fewer and fewer users are left.
`tests/perf/test_agreement.py` holds the two together on a part of this grid. With `--runs` the
formula is that of whole runs, their burst and their growing queue included (`RunFormulas`), over
closed loops, equal and short answers among them, and open loops below and beyond what is served.
Their formulas were made while looking at these; `--others` has open loops of other models, lengths
and numbers of requests.
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
from servetune.metrics import Record
from servetune.models import load_shape
from servetune.perf import RunOptions, performance_at, simulate
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.plan import Plan
from servetune.units import MS_PER_S
from servetune.workload import SHAREGPT, LengthLaws, Workload
from servetune.workload.arrivals import Gamma, Poisson
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


class RunGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Whole runs that are compared.

    Attributes:
        places: Machines and models, of `PLACES`.
        lengths: Prompt and answer tokens.
        ratios: Least length over the greatest.
        users: Users of closed loops.
        bursts: Requests that come at once.
        open_ratios: Ratios of open loops.
        rates: Rates of open loops over what closed loops of many users are served.
        requests: Requests of an open loop.
    """

    places: tuple[int, ...]
    lengths: tuple[tuple[int, int], ...]
    ratios: tuple[float, ...]
    users: tuple[int, ...]
    bursts: tuple[int, ...]
    open_ratios: tuple[float, ...]
    rates: tuple[float, ...]
    requests: tuple[int, ...]


LOOKED_AT = RunGrid(
    places=(1, 2, 5),
    lengths=((1024, 32), (1024, 8), (1024, 512), (128, 128), (4000, 32), (8000, 4)),
    ratios=(1.0, 0.8, 0.5),
    users=(2, 8, 32, 128),
    bursts=(16, 200),
    open_ratios=(0.8,),
    rates=(0.1, 0.5, 0.8, 0.95, 1.1, 1.5),
    requests=(600,),
)
OTHERS = RunGrid(
    places=(3, 4, 6),
    lengths=((256, 64), (2048, 200), (600, 16), (3000, 100)),
    ratios=(1.0, 0.5),
    users=(),
    bursts=(30, 1000),
    open_ratios=(1.0, 0.5),
    rates=(0.3, 0.6, 0.85, 0.95, 1.2),
    requests=(150, 1500),
)
#: Prompts that TGI takes in a step by default, as it never takes a part of one.
_MOST_PROMPT_TOKENS_OF_TGI = 4096
_RUN_CONTEXT, _MANY_USERS = 16384, 512
#: Simulated runs of an open loop: near saturation few long queues decide the mean.
_SEEDS = 12
#: The same of a burst, whose longest answers decide how long it takes.
_BURST_SEEDS = 4
#: Times of a request that are compared, by their means over requests.
_TIMES = ("e2e_s", "ttft_s", "tpot_s")


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
        PlanError: The plan cannot run there, or its engine refuses some of the users.
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
    if not all(record.output_tokens for record in run.records):
        raise PlanError(f"{engine} refuses some of {users} users")
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


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Formula over simulation, less one, of a whole run's means."""

    engine: str
    what: str
    load: str
    e2e: float
    ttft: float
    tpot: float
    rate: float


def compared_runs(engine: str, grid: RunGrid, burstiness: float) -> Iterator[ComparedRun]:
    """Whole runs of a grid, but for those that an engine refuses in part.

    With another burstiness than one, open loops alone: by the formula for it, and as if requests
    came by chance.
    """
    for model, gpu, count in (PLACES[number] for number in grid.places):
        shape, machine = load_shape(model, catalogue_first=True), node(gpu=gpu, count=count)
        plan = Plan(model=model, engine=engine, tensor_parallel=count, max_model_len=_RUN_CONTEXT)
        for (prompt, answer), ratio in itertools.product(grid.lengths, grid.ratios):
            if engine == "tgi" and prompt > _MOST_PROMPT_TOKENS_OF_TGI:
                continue
            lengths = LengthLaws.ranged(prompt, answer, ratio)
            planned = PlannedRun(
                shape=shape,
                node=machine,
                plan=plan,
                lengths=lengths,
                concurrency=1,
                request_count=1,
                warmed=True,
            )
            name = f"{model}, {prompt} / {answer} from {ratio:g}"
            for users in grid.users if burstiness == 1 else ():
                load = Workload.of(lengths, request_count=10 * users, concurrency=users)
                run = msgspec.structs.replace(planned, concurrency=users, request_count=10 * users)
                yield from _compared_run(run, [load], "closed", f"{name}, {users} users")
            for users in grid.bursts if burstiness == 1 else ():
                loads = [
                    Workload.of(lengths, request_count=users, concurrency=users, seed=seed)
                    for seed in range(_BURST_SEEDS)
                ]
                run = msgspec.structs.replace(
                    planned, protocol="burst", concurrency=users, request_count=users
                )
                yield from _compared_run(run, loads, "burst", f"{name}, {users} at once")
            if ratio in grid.open_ratios:
                for requests in grid.requests:
                    run = msgspec.structs.replace(planned, request_count=requests)
                    yield from _open_loops(run, grid.rates, burstiness, name)


def _open_loops(
    planned: PlannedRun, rates: Sequence[float], burstiness: float, name: str
) -> Iterator[ComparedRun]:
    """Open loops at rates over what closed loops of many users are served."""
    lengths, requests = planned.lengths, planned.request_count
    assert isinstance(lengths, LengthLaws)
    many = Workload.of(lengths, request_count=_MANY_USERS)
    point = performance_at(planned.shape, planned.node, planned.plan, many, _MANY_USERS)
    for share in rates:
        rate = share * point.requests_per_s
        arrivals = Poisson(rate) if burstiness == 1 else Gamma(rate, burstiness)
        loads = [
            Workload.of(lengths, request_count=requests, arrivals=arrivals, seed=seed)
            for seed in range(_SEEDS)
        ]
        run = msgspec.structs.replace(planned, protocol="open", rate_per_s=rate)
        what, name_at = f"open at {share:g}", f"{name}, {requests} at {rate:.3g}/s"
        if burstiness != 1:
            yield from _compared_run(run, loads, f"{what}, as if by chance", name_at)
            run = msgspec.structs.replace(run, dispersion=1 / burstiness)
        yield from _compared_run(run, loads, what, name_at)


def _compared_run(
    run: PlannedRun, loads: Sequence[Workload], what: str, name: str
) -> Iterator[ComparedRun]:
    point = predict_runs([run])[0].point
    quick = RunOptions(each_token=False)
    results = [simulate(run.plan, run.shape, run.node, load, options=quick) for load in loads]
    records = [record for result in results for record in result.records]
    if any(record.ttft_s is None for record in records):
        return
    rates = [_rate(result.records) for result in results]
    e2e_ms, ttft_ms, tpot_ms = (
        MS_PER_S * float(np.mean([time for time in times if time is not None]))
        for times in ([getattr(each, name) for each in records] for name in _TIMES)
    )
    yield ComparedRun(
        engine=run.plan.engine,
        what=what,
        load=name,
        e2e=point.e2e_ms / e2e_ms - 1,
        ttft=point.ttft_ms / ttft_ms - 1,
        tpot=point.tpot_ms / tpot_ms - 1,
        rate=point.output_tokens_per_s / float(np.mean(rates)) - 1,
    )


def _rate(records: Sequence[Record]) -> float:
    """Tokens per second from the first request to the end of the last answer."""
    begun = [record.sent_s or 0.0 for record in records]
    ended = max(sent + (record.e2e_s or 0.0) for sent, record in zip(begun, records, strict=True))
    return sum(record.output_tokens for record in records) / (ended - min(begun))


def tell_runs(rows: Sequence[ComparedRun]) -> None:
    """Median, 95th percentile and largest of absolute differences, by engine and kind."""
    print("\n| engine | run | runs | end to end | first token | time between tokens | tokens/s |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for engine, what in dict.fromkeys((row.engine, row.what) for row in rows):
        mine = [row for row in rows if (row.engine, row.what) == (engine, what)]
        cells = [
            " / ".join(
                f"{100 * value:.1f}%" for value in _spread([getattr(row, name) for row in mine])
            )
            for name in ("e2e", "ttft", "tpot", "rate")
        ]
        print(f"| {engine} | {what} | {len(mine)} | {' | '.join(cells)} |")


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
    parser.add_argument("--runs", action="store_true", help="whole runs of --batch")
    parser.add_argument("--others", action="store_true", help="whole runs that were not looked at")
    parser.add_argument("--burstiness", type=float, default=1.0, help="shape of open loops' gaps")
    given = parser.parse_args()
    if given.runs:
        runs = []
        for engine in given.engines.split(","):
            for each in compared_runs(
                engine, OTHERS if given.others else LOOKED_AT, given.burstiness
            ):
                runs.append(each)
                if given.rows:
                    found = (
                        f"{each.e2e:+7.1%} {each.ttft:+7.1%} {each.tpot:+7.1%} {each.rate:+7.1%}"
                    )
                    print(f"{each.engine:7} {each.what:12} {found}  {each.load}", flush=True)
        tell_runs(runs)
        return 0
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
