"""The scheduler against a slow one that looks at every sequence in every step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from servetune.errors import PlanError, UnknownName
from servetune.perf.sim.event_queue import EventQueue
from servetune.perf.sim.kvcache import GrowingSequences, PagedCache
from servetune.perf.sim.router import Router
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.perf.sim.simulation import SimulatedRun, run_requests
from servetune.workload.request import Request


class LinearLaw:
    """Step times that tell every step apart, and that floats add up exactly."""

    def seconds(self, tokens, pairs, ended, sequences, context):  # type: ignore[no-untyped-def]
        return 0.25 + tokens / 64 + pairs / 4096 + ended / 256 + sequences / 128 + context / 8192

    def decode_run_s(self, sequences, context, steps):  # type: ignore[no-untyped-def]
        return np.array(
            [self.seconds(0, 0, 0, sequences, context + i * sequences) for i in range(steps)]
        )


def config(**fields: object) -> SchedulerConfig:
    usual = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "block_tokens": 4,
        "capacity_blocks": 1000,
        "chunked_prefill": True,
    }
    return SchedulerConfig(**(usual | fields))  # type: ignore[arg-type]


def requests_of(lengths: list[tuple[int, int]], due_s: list[float]) -> tuple[Request, ...]:
    return tuple(
        Request(index=i, due_s=due, input_tokens=tokens_in, output_tokens=tokens_out)
        for i, (due, (tokens_in, tokens_out)) in enumerate(zip(due_s, lengths, strict=True))
    )


def served(requests: tuple[Request, ...], of: SchedulerConfig) -> SimulatedRun:
    return run_requests(requests, of, LinearLaw())  # type: ignore[arg-type]


def slowly_served(  # noqa: PLR0912 - one plain loop, so that it can be checked by eye
    requests: tuple[Request, ...], of: SchedulerConfig
) -> tuple[list[list[float]], int, int]:
    """Token times of every request, preemptions and steps, one step at a time."""
    law, now_s, due = LinearLaw(), 0.0, sorted(requests, key=lambda r: r.due_s)
    times: list[list[float]] = [[] for _ in requests]
    waiting: list[dict[str, int]] = []
    running: list[dict[str, int]] = []
    preemptions = steps = 0

    def blocks(tokens: int) -> int:
        return of.state_blocks + -(-tokens // of.block_tokens)

    def used() -> int:
        return sum(seq["blocks"] for seq in running)

    while due or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, due[0].due_s)
        while due and due[0].due_s <= now_s:
            first = due.pop(0)
            waiting.append({"id": first.index, "total": first.input_tokens, "done": 0, "blocks": 0})
        budget, batch, preempted = of.max_num_batched_tokens, [], False
        position = 0
        while position < len(running):
            seq = running[position]
            tokens = min(seq["total"] - seq["done"], budget)
            wanted = blocks(seq["done"] + tokens)
            lost = False
            while wanted - seq["blocks"] > of.capacity_blocks - used():
                victim = running.pop()
                victim |= {"done": 0, "blocks": 0}
                batch = [part for part in batch if part[0] is not victim]
                waiting.insert(0, victim)
                preemptions += 1
                preempted = True
                if victim is seq:
                    lost = True
                    break
            if lost:
                break
            seq["blocks"] = wanted
            batch.append((seq, tokens))
            budget -= tokens
            position += 1
        while not preempted and waiting and budget > 0 and len(running) < of.max_num_seqs:
            seq = waiting[0]
            tokens = min(seq["total"], budget)
            if tokens < seq["total"] and not of.chunked_prefill:
                break
            if blocks(seq["total"]) > of.capacity_blocks - used():
                break
            running.append(waiting.pop(0))
            seq["blocks"] = blocks(tokens)
            batch.append((seq, tokens))
            budget -= tokens
        sums = [0, 0.0, 0, 0, 0]
        for seq, tokens in batch:
            request = requests[seq["id"]]
            fresh = seq["total"] == request.input_tokens + len(times[seq["id"]])
            if fresh and seq["done"] == seq["total"] - 1 and seq.get("decoding"):
                sums[3] += 1
                sums[4] += seq["total"]
            else:
                sums[0] += tokens
                sums[1] += tokens * seq["done"] + tokens * (tokens + 1) / 2
                sums[2] += seq["done"] + tokens == seq["total"]
        now_s += law.seconds(*sums)
        steps += 1
        for seq, tokens in batch:
            seq["done"] += tokens
            if seq["done"] == seq["total"]:
                times[seq["id"]].append(now_s)
                seq["total"] += 1
                seq["decoding"] = 1
                if len(times[seq["id"]]) == requests[seq["id"]].output_tokens:
                    running.remove(seq)
            else:
                seq["decoding"] = 0
        for seq in waiting:
            seq["decoding"] = 0
    return times, preemptions, steps


@pytest.mark.parametrize(
    ("capacity_blocks", "state_blocks"), [(14, 0), (18, 0), (30, 0), (1000, 0), (20, 3), (60, 17)]
)
@pytest.mark.parametrize("seed", range(12))
def test_stretches_of_steps_equal_single_steps_on_random_workloads(
    seed: int, capacity_blocks: int, state_blocks: int
) -> None:
    rng = np.random.default_rng(seed)
    count = 40
    lengths = list(
        zip(rng.integers(1, 40, count).tolist(), rng.integers(1, 16, count).tolist(), strict=True)
    )
    due_s = np.cumsum(rng.exponential(0.8, count)).tolist()
    of = config(
        capacity_blocks=capacity_blocks,
        state_blocks=state_blocks,
        max_num_seqs=int(rng.integers(1, 9)),
        max_num_batched_tokens=int(rng.integers(8, 64)),
    )
    requests = requests_of(lengths, due_s)
    simulation = served(requests, of)
    times, preemptions, steps = slowly_served(requests, of)
    assert simulation.preemptions == preemptions
    assert simulation.steps == steps
    for record in simulation.records:
        assert list(record.chunk_times_s) == pytest.approx(times[record.index], rel=1e-9)


def test_a_small_cache_does_preempt_in_those_workloads() -> None:
    lengths = [(10, 15)] * 6
    requests = requests_of(lengths, [0.0] * 6)
    assert served(requests, config(capacity_blocks=14)).preemptions > 0
    assert served(requests, config(capacity_blocks=1000)).preemptions == 0


def test_without_chunked_prefill_a_prompt_is_never_cut() -> None:
    requests = requests_of([(20, 3), (20, 3)], [0.0, 0.0])
    whole = served(requests, config(chunked_prefill=False))
    assert whole.records[1].chunk_times_s[0] > whole.records[0].chunk_times_s[0]
    times, _, steps = slowly_served(requests, config(chunked_prefill=False))
    assert whole.steps == steps
    assert list(whole.records[1].chunk_times_s) == pytest.approx(times[1])


def test_states_leave_room_for_fewer_sequences_and_none_after_the_last() -> None:
    requests = requests_of([(4, 4)] * 6, [0.0] * 6)
    plain = served(requests, config(capacity_blocks=12))
    states = served(requests, config(capacity_blocks=12, state_blocks=4))
    firsts = [record.chunk_times_s[0] for record in states.records]
    assert len({record.chunk_times_s[0] for record in plain.records}) == 1
    assert firsts[0] == firsts[1] < firsts[2] == firsts[3] < firsts[4]  # two at a time
    assert states.kv_peak_fraction == 1
    cache = PagedCache(capacity_blocks=12, block_tokens=4, state_blocks=4)
    assert [cache.blocks_for(tokens) for tokens in (0, 1, 4, 5)] == [0, 5, 5, 6]


def test_a_request_that_a_state_leaves_no_room_for_is_refused() -> None:
    requests = requests_of([(30, 3)], [0.0])
    assert served(requests, config(capacity_blocks=8)).steps == 3
    with pytest.raises(PlanError, match="whole KV cache of 28"):
        served(requests, config(capacity_blocks=8, state_blocks=1))


def test_the_cache_counts_growth_like_one_sequence_after_the_other() -> None:
    cache, growing = PagedCache(capacity_blocks=100, block_tokens=4), GrowingSequences(4)
    lengths = [3, 4, 5, 9, 16]
    for length in lengths:
        growing.add(length)
    for first, steps in itertools.product(range(7), range(12)):
        single = sum(
            cache.blocks_for(length + first + steps) - cache.blocks_for(length + first)
            for length in lengths
        )
        assert growing.blocks(first, steps) == single


def test_steps_that_fit_is_the_last_that_does_not_overflow() -> None:
    growing = GrowingSequences(4)
    for length in (4, 5, 6):
        growing.add(length)
    fitting = growing.steps_within(4, 0, 100)
    assert growing.blocks(0, fitting) <= 4 < growing.blocks(0, fitting + 1)
    assert growing.steps_within(4, 0, 2) == 2


def test_the_agenda_orders_by_time_then_priority_then_entry() -> None:
    agenda: EventQueue[str] = EventQueue()
    for time_s, priority, name in [(2, 0, "d"), (1, 1, "b"), (1, 0, "a"), (1, 1, "c")]:
        agenda.enter(time_s, priority, name)
    assert [agenda.next()[1] for _ in range(4)] == ["a", "b", "c", "d"]
    assert not agenda


def test_replicas_take_turns_and_ranks_balance_their_load() -> None:
    groups = [
        [Scheduler(config(), LinearLaw()) for _ in range(2)]
        for _ in range(2)  # type: ignore[arg-type]
    ]
    router = Router(groups)
    chosen = []
    for index in range(4):
        scheduler = router.choose()
        scheduler.enqueue(Sequence(index, 4, 4))
        chosen.append(scheduler)
    assert chosen == [groups[0][0], groups[1][0], groups[0][1], groups[1][1]]


def test_a_copy_is_chosen_by_chance_or_by_how_many_requests_it_has() -> None:
    copies = [[Scheduler(config(), LinearLaw())] for _ in range(4)]  # type: ignore[arg-type]

    def chosen(router: Router, count: int) -> list[int]:
        found = []
        for index in range(count):
            scheduler = router.choose()
            scheduler.enqueue(Sequence(index, 4, 4))
            found.append(next(n for n, (rank,) in enumerate(copies) if rank is scheduler))
        return found

    by_chance = chosen(Router(copies, among="random", seed=1), 400)
    assert all(70 < by_chance.count(copy) < 130 for copy in range(4))
    fullest = max(range(4), key=by_chance.count)
    behind = 4 * by_chance.count(fullest) - 400
    levelling = chosen(Router(copies, among="least-outstanding"), behind)
    assert fullest not in levelling
    assert {rank.waiting for (rank,) in copies} == {by_chance.count(fullest)}
    few = Router(copies, among="least-outstanding")
    few.serving = (1, 3)
    assert chosen(few, 4) == [1, 3, 1, 3]
    with pytest.raises(UnknownName, match="by-weight"):
        Router(copies, among="by-weight")  # type: ignore[arg-type]


def test_backwards_arrival_times_are_refused() -> None:
    with pytest.raises(PlanError, match="before the one above it"):
        served(requests_of([(4, 4), (4, 4)], [5.0, 1.0]), config())


def test_ranks_are_chosen_by_turns_by_length_by_who_waits_or_by_how_full_they_are() -> None:
    """Loads as (waiting, running, share of the cache): 2, 6, 0.9; 7, 0, 0.2; 0, 13, 0.5."""

    class Rank:
        def __init__(self, waiting: int, running: int, used_fraction: float) -> None:
            self.waiting, self.running = waiting, running
            self.cache = PagedCache(100, 4)
            self.cache.take(int(100 * used_fraction))

    ranks = [Rank(2, 6, 0.9), Rank(7, 0, 0.2), Rank(0, 13, 0.5)]

    def chosen(routing: str, count: int = 3) -> list[int]:
        router = Router([ranks], routing)  # type: ignore[arg-type, list-item]
        return [ranks.index(router.choose()) for _ in range(count)]  # type: ignore[arg-type]

    assert chosen("round_robin", 5) == [0, 1, 2, 0, 1]
    assert chosen("shortest_queue") == [1, 1, 1]  # 8, 7, 13
    assert chosen("waiting_first") == [2, 2, 2]  # 14, 28, 13
    assert chosen("cache_pressure") == [1, 1, 1]  # 8 + 2 * 6 * 0.4, 7, 13
    ranks = [Rank(0, 0, 0.0) for _ in range(3)]
    assert chosen("cache_pressure", 4) == [0, 1, 2, 0]
    assert chosen("waiting_first", 4) == [0, 0, 0, 0]
    with pytest.raises(UnknownName, match="best"):
        Router([ranks], "best")  # type: ignore[arg-type, list-item]
