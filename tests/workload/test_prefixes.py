import numpy as np
import pytest

from servetune.errors import InputError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.workload import (
    Fixed,
    Poisson,
    SharedPrefixes,
    UniformRange,
    Workload,
    workload_from_client_args,
)

PREFIXES = SharedPrefixes(count=4, tokens=96)


def test_a_prompt_is_its_beginning_and_then_what_its_length_says() -> None:
    plain = Workload(lengths=UniformRange(200, 20, 0.5), request_count=100, arrivals=Poisson(5.0))
    shared = Workload(
        lengths=plain.lengths, request_count=100, arrivals=plain.arrivals, shared_prefixes=PREFIXES
    )
    for before, after in zip(plain.requests(), shared.requests(), strict=True):
        assert after.input_tokens == before.input_tokens + 96
        assert (after.output_tokens, after.due_s) == (before.output_tokens, before.due_s)
        assert after.prefix_tokens == 96
    assert shared.longest_tokens() == plain.longest_tokens() + 96
    assert shared.requests() == shared.requests()


def test_every_beginning_is_drawn_as_often_as_any_other() -> None:
    drawn = [pieces[0][0] for pieces in PREFIXES.drawn(20_000, seed=3)]
    counts = np.bincount(drawn, minlength=4)
    assert len(counts) == 4
    assert np.abs(counts - 5000).max() < 4 * np.sqrt(20_000 * 0.25 * 0.75)


def test_the_simulator_finds_what_the_law_says() -> None:
    """A cache that keeps everything, and requests so far apart that none waits for another."""
    load = Workload(
        lengths=Fixed(64, 4), request_count=200, arrivals=Poisson(0.5), shared_prefixes=PREFIXES
    )
    shape = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
    found = simulate(Plan(model="m"), shape, node(gpu="L4"), load)
    expected = PREFIXES.hit_fraction(own_tokens=64, requests=200, block_tokens=16)
    assert found.cached_fraction == pytest.approx(expected, abs=1e-9)
    cold = simulate(Plan(model="m", prefix_caching=False), shape, node(gpu="L4"), load)
    assert cold.cached_fraction == 0
    assert cold.records[-1].ttft_s > found.records[-1].ttft_s


def test_client_arguments_say_how_many_and_how_long() -> None:
    load = workload_from_client_args({"random_prefix_len": 96, "num_prefixes": 4})
    assert load.shared_prefixes == PREFIXES
    one = workload_from_client_args({"random_prefix_len": 96})
    assert one.shared_prefixes == SharedPrefixes(count=1, tokens=96)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"num_prefixes": 4}, "not how long"),
        ({"random_prefix_len": 5, "dataset_name": "sharegpt"}, "prompts of its own"),
        ({"random_prefix_len": 0}, "1 or more tokens"),
        ({"random_prefix_len": 5, "num_prefixes": 0}, "1 or more texts"),
    ],
)
def test_half_a_description_is_refused(args, said) -> None:
    with pytest.raises(InputError, match=said):
        workload_from_client_args(args)
