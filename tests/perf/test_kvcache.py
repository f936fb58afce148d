"""What the simulated cache finds again (equal beginnings, answers), and what it loses."""

from __future__ import annotations

from typing import Any

import pytest

from one_second import OneSecond
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import simulate
from servetune.perf.sim.kvcache import BlockRun, block_keys
from servetune.perf.sim.scheduler import Scheduler
from servetune.perf.sim.sequence import SchedulerConfig, Sequence
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

SIZE = 16


def scheduler(**fields: Any) -> Scheduler:
    usual = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "block_tokens": SIZE,
        "capacity_blocks": 1000,
        "chunked_prefill": True,
        "prefix_caching": True,
    }
    return Scheduler(SchedulerConfig(**(usual | fields)), OneSecond())  # type: ignore[arg-type]


def serve(engine: Scheduler, *sequences: Sequence) -> list[dict[int, int]]:
    """Serve to the end; tokens by sequence of each step or stretch."""
    for sequence in sequences:
        engine.enqueue(sequence)
    steps = []
    while engine.plan(float(len(engine.ends_s))) is not None:
        steps.append(engine.planned_tokens())
        engine.commit()
    return steps


def prompt(index: int, tokens: int, *pieces: tuple[int, int], answer: int = 1) -> Sequence:
    return Sequence(index, tokens, answer, pieces=pieces)


def test_of_an_equal_beginning_only_full_blocks_are_found() -> None:
    engine = scheduler()
    serve(engine, prompt(0, 70, (7, 40)))
    again = prompt(1, 70, (7, 40))
    assert serve(engine, again) == [{1: 70 - 32}]
    assert again.cached_tokens == 32


def test_the_last_token_of_a_known_prompt_is_computed_again_with_its_block() -> None:
    engine = scheduler()
    serve(engine, prompt(0, 48, (7, 48)))
    assert serve(engine, prompt(1, 48, (7, 48))) == [{1: 16}]
    assert serve(engine, prompt(2, 49, (7, 48))) == [{2: 1}]


def test_two_prompts_of_one_step_share_what_the_first_of_them_computes() -> None:
    assert serve(scheduler(), prompt(0, 50, (7, 48)), prompt(1, 60, (7, 48))) == [{0: 50, 1: 12}]


def test_pieces_are_equal_only_after_equal_pieces() -> None:
    engine = scheduler()
    serve(engine, prompt(0, 64, (1, 32), (2, 32)))
    assert serve(engine, prompt(1, 64, (3, 32), (2, 32))) == [{1: 64}]
    assert serve(engine, prompt(2, 65, (1, 32), (2, 32))) == [{2: 1}]
    assert block_keys(((1, 32), (2, 32)), SIZE) == block_keys(((1, 32), (2, 40)), SIZE)
    assert len(block_keys(((1, 15),), SIZE)) == 0


def test_a_second_turn_finds_prompt_and_answer_of_the_first() -> None:
    engine = scheduler()
    serve(engine, Sequence(0, 40, 30, pieces=((1, 40), (2, 30))))
    # 40 + 29 tokens were computed: the answer's last one never is. Four full blocks.
    turn = prompt(1, 100, (1, 40), (2, 30), (3, 30))
    assert serve(engine, turn) == [{1: 100 - 64}]


def test_the_least_recently_used_blocks_are_lost_first_and_tails_before_heads() -> None:
    engine = scheduler(capacity_blocks=12)
    serve(engine, prompt(0, 64, (1, 64)))
    serve(engine, prompt(1, 64, (2, 64)))
    serve(engine, prompt(2, 96))  # 4 blank blocks, then two of the first prompt's four
    assert serve(engine, prompt(3, 65, (2, 64))) == [{3: 1}]  # and its last token's block a third
    assert serve(engine, prompt(4, 65, (1, 64))) == [{4: 65 - 16}]


def test_without_prefix_caching_nothing_is_found() -> None:
    engine = scheduler(prefix_caching=False)
    serve(engine, prompt(0, 70, (7, 64)))
    assert serve(engine, prompt(1, 70, (7, 64))) == [{1: 70}]
    assert engine.cached_prompt_tokens == 0


def test_prompts_that_share_nothing_leave_one_entry_however_many_blocks_they_had() -> None:
    engine = scheduler(capacity_blocks=100_000)
    serve(engine, *(Sequence(index, 300, 200) for index in range(500)))
    assert len(engine.cache._queue) == 1
    assert engine.cache._by_key == {}
    (rest,) = engine.cache._queue
    assert isinstance(rest, BlockRun)
    assert rest.blocks == 500 * (499 // SIZE)


def test_by_priority_the_smaller_number_goes_first() -> None:
    engine = scheduler(policy="priority", max_num_seqs=1)
    serve(engine, *(Sequence(index, 10, 1, priority=-index) for index in range(3)))
    late = [Sequence(3, 10, 5, priority=1), Sequence(4, 10, 1), Sequence(5, 10, 1)]
    assert [next(iter(step)) for step in serve(engine, *late)] == [4, 5, 3, 3]


def test_a_plan_decides_on_prefix_caching_and_policy() -> None:
    shape, machine = load_shape("Qwen/Qwen3-4B", catalogue_first=True), node(gpu="L4", count=1)
    workload = Workload.of(LengthLaws.fixed(100, 10), request_count=20, concurrency=4)
    results = [
        simulate(Plan(model="m", max_model_len=512, **fields), shape, machine, workload)  # type: ignore[arg-type]
        for fields in (
            {"prefix_caching": True},
            {"prefix_caching": False},
            {"extra": (("scheduling-policy", "priority"),)},
        )
    ]
    assert [result.cached_fraction for result in results] == [0, 0, 0]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("size", [4, 16, 128])
def test_keys_count_the_full_blocks_of_all_pieces_together(size: int) -> None:
    assert len(block_keys(((1, 100), (2, 1), (3, 99)), size)) == 200 // size
