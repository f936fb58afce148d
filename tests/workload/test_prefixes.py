"""Prefixes that client arguments put before prompts, against what probability says of them."""

import numpy as np
import pytest

from servetune.errors import InputError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.workload import workload_from_client_args

COUNT, TOKENS = 4, 96
PLAIN = {"random_input_len": 200, "random_output_len": 20, "random_range_ratio": 0.5}
SHARED = {**PLAIN, "random_prefix_len": TOKENS, "num_prefixes": COUNT, "num_prompts": 400}


def test_a_prompt_is_its_prefix_and_then_what_its_length_says() -> None:
    shared = workload_from_client_args(SHARED)
    for request in shared.requests():
        assert 100 <= request.input_tokens - TOKENS <= 200
        assert request.prefix_tokens == TOKENS
    assert shared.requests() == workload_from_client_args(SHARED).requests()
    assert shared.longest_tokens() <= 200 + TOKENS + 20


def test_every_prefix_is_drawn_as_often_as_any_other() -> None:
    requests = workload_from_client_args({**SHARED, "num_prompts": 20_000}).requests()
    _, counts = np.unique([each.prefix[0][0] for each in requests], return_counts=True)
    assert len(counts) == COUNT
    assert np.abs(counts - 5000).max() < 4 * np.sqrt(20_000 * 0.25 * 0.75)


def test_the_simulator_finds_all_but_the_first_of_each_prefix() -> None:
    """A cache that keeps everything, and requests so far apart that none waits for another."""
    args = {"random_input_len": 64, "random_output_len": 4, "request_rate": 0.5}
    load = workload_from_client_args(
        {**args, "random_prefix_len": TOKENS, "num_prefixes": COUNT, "num_prompts": 200}
    )
    shape = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
    found = simulate(Plan(model="m"), shape, node(gpu="L4"), load)
    expected = (1 - COUNT / 200) * TOKENS / (TOKENS + 64)
    assert found.cached_fraction == pytest.approx(expected, abs=1e-9)
    cold = simulate(Plan(model="m", prefix_caching=False), shape, node(gpu="L4"), load)
    assert cold.cached_fraction == 0
    assert cold.records[-1].ttft_s > found.records[-1].ttft_s


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"num_prefixes": 4}, "not how long"),
        ({"random_prefix_len": 5, "dataset_name": "sharegpt"}, "prompts of its own"),
        ({"random_prefix_len": 0}, "at least 1 token|shared_prefix_tokens"),
        ({"random_prefix_len": 5, "num_prefixes": 0}, "prefixes"),
    ],
)
def test_half_a_description_is_refused(args, problem) -> None:
    with pytest.raises(InputError, match=problem):
        workload_from_client_args(args)
