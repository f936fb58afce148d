"""The live engine against the simulator in virtual time: the same steps, to the last digit."""

import msgspec
import numpy as np
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline.step import step_law
from servetune.perf.sim.disaggregation import CacheTransfer, PrefillPool
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.serving import EngineLayout, RequestOverhead
from servetune.perf.sim.simulation import ClientLoad, RunOptions, run_requests
from servetune.perf.sim.variants import InterruptingVariant, PrefillFirstVariant
from servetune.plan import Plan
from servetune.simserver.live_engine import LiveEngine, LiveRequest
from servetune.workload.request import Request

MODEL = "Qwen/Qwen3-4B"
RULES = SchedulerConfig(
    max_num_seqs=16,
    max_num_batched_tokens=512,
    block_tokens=16,
    capacity_blocks=4000,
    chunked_prefill=True,
)
CRAMPED = SchedulerConfig(
    max_num_seqs=16,
    max_num_batched_tokens=512,
    block_tokens=16,
    capacity_blocks=60,
    chunked_prefill=True,
)
CACHING = msgspec.structs.replace(CRAMPED, prefix_caching=True, capacity_blocks=80)
BY_PRIORITY = msgspec.structs.replace(CACHING, policy="priority")
DRAFTING = msgspec.structs.replace(
    CRAMPED, draft_tokens=3, draft_acceptance_fraction=0.7, lookahead_tokens=3
)
SGLANG = msgspec.structs.replace(CACHING, variant=PrefillFirstVariant(), capacity_blocks=90)
MIXED = msgspec.structs.replace(
    SGLANG, variant=PrefillFirstVariant(mixed_chunk=True, conservativeness=0.1)
)
TGI = msgspec.structs.replace(CRAMPED, variant=InterruptingVariant(), chunked_prefill=False)
AHEAD = msgspec.structs.replace(CACHING, async_scheduling=True)
SGLANG_AHEAD = msgspec.structs.replace(SGLANG, async_scheduling=True)
SLOW = CacheTransfer(latency_s=0.01, bytes_per_s=1e9, bytes_per_token=147_456.0)
OVERHEAD = RequestOverhead(request_s=0.003, prompt_token_s=1e-6)


@pytest.fixture(scope="module")
def law():
    return step_law(Plan(model=MODEL), load_shape(MODEL, catalogue_first=True), node(gpu="L4"))


def token_times_s(record):
    """One time for each token of every piece."""
    counts = record.chunk_tokens or [1] * len(record.chunk_times_s)
    return tuple(np.repeat(record.chunk_times_s, counts).tolist())


class Ear:
    """Keeps the engine's time of every token."""

    def __init__(self, clock):
        self.clock, self.times_s, self.is_over = clock, [], False

    def tokens(self, count):
        assert not self.is_over
        self.times_s += [self.clock[0]] * count

    def accepted(self):
        pass

    def ended(self):
        self.is_over = True


def play(engine, requests, aborts=()):
    """Send each request when it is due, in virtual time; the ears, by index."""
    clock, ears, jobs = [0.0], [], {}
    events = sorted(
        [(request.due_s, 0, request) for request in requests]
        + [(at_s, 1, index) for index, at_s in aborts],
        key=lambda event: event[:2],
    )
    while events or engine.due_s is not None:
        due_s = engine.due_s
        if events and (due_s is None or events[0][0] <= due_s):
            now_s, kind, what = events.pop(0)
            engine.advance(np.nextafter(now_s, 0))
            if kind == 0:
                ears.append(Ear(clock))
                jobs[what.index] = LiveRequest(
                    engine.next_number(),
                    what.input_tokens,
                    what.output_tokens,
                    listener=ears[-1],
                    prefix=what.prefix,
                    pieces=what.prefix,
                    priority=what.priority,
                )
                engine.submit(jobs[what.index], now_s)
            else:
                engine.abort(jobs[what], now_s)
        else:
            clock[0] = due_s
            engine.advance(due_s)
    return ears


def traffic(seed, count=120, rate_per_s=6.0):
    rng = np.random.default_rng(seed)
    due_s = rng.exponential(1 / rate_per_s, count).cumsum()
    inputs, outputs = rng.integers(1, 300, count), rng.integers(1, 120, count)
    return tuple(
        Request(
            index=i,
            input_tokens=int(inputs[i]) + 40 * (i % 3),
            output_tokens=int(outputs[i]),
            due_s=due,
            prefix=((i % 4, 40 * (i % 3)),) if i % 3 else (),
            priority=i % 2,
        )
        for i, due in enumerate(due_s.tolist())
    )


#: Further cases of a quick one.
SLOW_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4)]


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        *((RULES, 1), (CRAMPED, 1), (RULES, 2), (CACHING, 1), (BY_PRIORITY, 1), (AHEAD, 1)),
        *((DRAFTING, 1), (DRAFTING, 2), (SGLANG, 1), (MIXED, 1), (TGI, 1), (TGI, 2)),
        (SGLANG_AHEAD, 1),
    ],
)
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("seed", [1, *SLOW_SEEDS[:2]])
def test_tokens_come_at_the_times_of_the_simulator_to_the_last_digit(
    law, config, ranks, seed, batches
):
    requests, layout = traffic(seed), EngineLayout(ranks=ranks, batches=batches)
    truth = run_requests(requests, config, law, ClientLoad(overhead=OVERHEAD), layout)
    engine = LiveEngine(config, law, layout, overhead=OVERHEAD)
    ears = play(engine, requests)
    assert [tuple(ear.times_s) for ear in ears] == [token_times_s(r) for r in truth.records]
    assert all(ear.is_over for ear in ears)
    assert sum(a.preemptions for a in engine.rank_metrics) == truth.preemptions
    assert sum(a.steps for a in engine.rank_metrics) == truth.steps
    if batches == 1 or config.variant is None:  # variants' batches have a cache each
        assert (truth.preemptions > 0) == (config not in (RULES, TGI))


@pytest.mark.parametrize(
    ("config", "replicas", "ranks", "takers"),
    [
        (RULES, 1, 1, 1),
        (CRAMPED, 2, 1, 1),
        (CACHING, 1, 2, 2),
        (BY_PRIORITY, 2, 2, 1),
        (DRAFTING, 1, 1, 2),
        (RULES, 3, 2, None),
    ],
)
@pytest.mark.parametrize("seed", [1, *SLOW_SEEDS[:2]])
def test_copies_and_those_that_compute_prompts_keep_the_simulators_times(
    law, config, replicas, ranks, takers, seed
):
    requests = traffic(seed, rate_per_s=12.0)
    layout = EngineLayout(
        replicas=replicas,
        ranks=ranks,
        prefill_pool=PrefillPool(takers, SLOW) if takers else None,
    )
    truth = run_requests(requests, config, law, ClientLoad(overhead=OVERHEAD), layout)
    engine = LiveEngine(config, law, layout, overhead=OVERHEAD)
    ears = play(engine, requests)
    assert [tuple(ear.times_s) for ear in ears] == [token_times_s(r) for r in truth.records]
    rank_metrics = engine.rank_metrics
    assert len(rank_metrics) == ranks * (replicas + (takers or 0))
    assert sum(a.steps for a in rank_metrics) == truth.steps
    assert sum(a.preemptions for a in rank_metrics) == truth.preemptions
    answered = rank_metrics[: ranks * replicas]
    assert sum(a.finished["length"] for a in answered) == len(requests)
    assert sum(a.finished["length"] for a in rank_metrics) == len(requests)
    brought = sum(a.brought_tokens for a in rank_metrics)
    assert brought == (sum(r.input_tokens - 1 for r in requests) if takers else 0)
    assert all((a.running, a.waiting, a.kv_usage_fraction) == (0, 0, 0.0) for a in rank_metrics)


@pytest.mark.parametrize("config", [CRAMPED, DRAFTING])
def test_the_account_adds_up(law, config):
    requests = traffic(4)
    engine = LiveEngine(config, law, overhead=OVERHEAD)
    ears = play(engine, requests)
    (account,) = engine.rank_metrics
    tokens = sum(request.output_tokens for request in requests)
    assert account.generation_tokens == tokens == sum(len(ear.times_s) for ear in ears)
    assert account.prompt_tokens == sum(request.input_tokens for request in requests)
    assert account.finished == {
        "stop": 0,
        "length": len(requests),
        "abort": 0,
        "error": 0,
        "repetition": 0,
    }
    assert (account.running, account.waiting, account.kv_usage_fraction) == (0, 0, 0.0)
    told = account.histograms
    assert sum(told["time_to_first_token_seconds"].counts) == len(requests)
    first_s = [ear.times_s[0] - r.due_s for ear, r in zip(ears, requests, strict=True)]
    assert told["time_to_first_token_seconds"].sum == pytest.approx(sum(first_s))
    parts = [told[f"request_{part}_time_seconds"].sum for part in ("queue", "prefill", "decode")]
    way_in_s = sum(0.003 + 1e-6 * request.input_tokens for request in requests)
    assert sum(parts) + way_in_s == pytest.approx(told["e2e_request_latency_seconds"].sum)
    assert parts[0] > 0
    gaps = told["inter_token_latency_seconds"]
    # Tokens that came in one step are one gap; the rest of them were drafted.
    came = sum(len(set(ear.times_s)) - 1 for ear in ears)
    assert sum(gaps.counts) == came
    assert sum(account.accepted) == tokens - len(requests) - came
    if config is DRAFTING:
        assert account.drafts <= came <= account.drafts + account.preemptions
        assert account.drafts > account.accepted[0] > account.accepted[2] > 0
    assert gaps.sum == pytest.approx(sum(ear.times_s[-1] - ear.times_s[0] for ear in ears))


@pytest.mark.parametrize(
    "config", [RULES, CRAMPED, CACHING, AHEAD, DRAFTING, SGLANG, SGLANG_AHEAD, TGI]
)
@pytest.mark.parametrize("seed", [1, 2])
def test_clients_that_give_up_leave_a_server_as_they_leave_the_simulator(law, config, seed):
    requests = traffic(seed, rate_per_s=12.0)
    load = ClientLoad(overhead=OVERHEAD, options=RunOptions(timeout_s=4.0))
    truth = run_requests(requests, config, law, load)
    engine = LiveEngine(config, law, overhead=OVERHEAD)
    gone = [(r.index, r.end_s) for r in truth.records if r.outcome == "timeout"]
    ears = play(engine, requests, gone)
    assert [ear.is_over for ear in ears] == [r.outcome == "ok" for r in truth.records]
    assert gone
    for ear, record in zip(ears, truth.records, strict=True):
        heard_s = [time_s for time_s in ear.times_s if time_s <= record.end_s]
        assert tuple(heard_s) == token_times_s(record)
    (account,) = engine.rank_metrics
    assert account.steps == truth.steps
    assert account.finished["abort"] == len(gone)


@pytest.mark.parametrize(
    "config",
    [RULES, CRAMPED, CACHING, BY_PRIORITY, AHEAD, DRAFTING, SGLANG, SGLANG_AHEAD, MIXED, TGI],
)
@pytest.mark.parametrize("takers", [0, 1])
@pytest.mark.parametrize("seed", [0, *SLOW_SEEDS])
def test_an_abort_gives_everything_back_wherever_it_strikes(law, config, takers, seed):
    if takers and config.variant is not None:
        pytest.skip("prompts are computed apart by vLLM's scheduler alone")
    requests = traffic(seed, rate_per_s=20.0)
    rng = np.random.default_rng(seed)
    doomed = rng.choice(len(requests), 40, replace=False).tolist()
    # From before it has queued to while it decodes; none has ended by then.
    aborts = [(i, requests[i].due_s + float(rng.choice([0.001, 0.02, 0.05]))) for i in doomed]
    long = tuple(msgspec.structs.replace(request, output_tokens=200) for request in requests)
    prefill_pool = PrefillPool(takers, SLOW) if takers else None
    layout = EngineLayout(prefill_pool=prefill_pool)
    engine = LiveEngine(config, law, layout, overhead=OVERHEAD)
    ears = play(engine, long, aborts)
    for index, ear in enumerate(ears):
        assert ear.is_over == (index not in doomed)
        assert len(ear.times_s) < 200 if index in doomed else len(ear.times_s) == 200
    for account in engine.rank_metrics:
        assert (account.running, account.waiting, account.kv_usage_fraction) == (0, 0, 0.0)
    assert engine.rank_metrics[0].finished["length"] == len(requests) - 40


def test_an_abort_makes_room_for_who_waits(law):
    alone = SchedulerConfig(
        **{**{f: getattr(RULES, f) for f in RULES.__struct_fields__}, "max_num_seqs": 1}
    )
    requests = (
        Request(index=0, input_tokens=10, output_tokens=1000, due_s=0.0),
        Request(index=1, input_tokens=10, output_tokens=5, due_s=0.1),
    )
    engine = LiveEngine(alone, law)
    ears = play(engine, requests, [(0, 0.5)])
    assert 0.5 < ears[1].times_s[0] < 0.7
