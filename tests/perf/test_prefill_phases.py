"""Phases of prompts by formula, beside a simulated chain of steps."""

from __future__ import annotations

import numpy as np
import pytest

from servetune.perf.roofline.prefill_phases import Phases, phases

#: Steps of a simulated chain.
_STEPS = 300_000


def simulated(rate: float, fixed_s: float, prompt_s: float, decode_s: float) -> Phases:
    """Means over the requests of a chain: each step computes who came during the one before."""
    rng = np.random.default_rng(1)
    lengths, groups = np.empty(_STEPS), np.empty(_STEPS)
    group = 0
    for number in range(_STEPS):
        groups[number] = group
        lengths[number] = fixed_s + prompt_s * group if group else decode_s
        group = rng.poisson(rate * lengths[number])
    decodes = groups == 0
    phase = np.cumsum(decodes)
    computed_s = np.where(decodes, 0.0, lengths)
    prompts, seconds = (np.bincount(phase, weights=of) for of in (groups, computed_s))
    later_s = seconds[phase] - _so_far(computed_s, phase)
    later_prompts = prompts[phase] - _so_far(groups, phase)
    waited_s = (lengths[:-1] / 2 * groups[1:]).sum() / groups[1:].sum()
    own_s, own_prompts, later_prompts, rest_s = (
        float((groups * of).sum() / groups.sum())
        for of in (lengths, groups, later_prompts, later_s)
    )
    phase_s = computed_s.sum() / decodes.sum()
    found = (waited_s, own_s, own_prompts, later_prompts, rest_s, phase_s, lengths.mean())
    return Phases(*map(np.array, (*found, 1 - decodes.mean(), groups[~decodes].mean())))


def _so_far(values: np.ndarray, phase: np.ndarray) -> np.ndarray:
    """Sum of a phase's values up to each step, the step itself included."""
    summed = np.cumsum(values)
    before = np.concatenate([[0.0], summed])[np.searchsorted(phase, phase)]
    return np.asarray(summed - before)


def by_formula(
    rate: float, fixed_s: float, prompt_s: float, decode_s: float, varied: float = 0.0
) -> Phases:
    return phases(*(np.array([v]) for v in (rate, fixed_s, prompt_s, decode_s, varied)))


@pytest.mark.parametrize(
    ("rate", "fixed_s", "prompt_s", "decode_s"),
    [
        (5.0, 0.002, 0.020, 0.010),  # a tenth of the load
        (36.0, 0.0026, 0.0197, 0.010),  # dense, 0.7 of it
        (50.0, 0.025, 0.0122, 0.020),  # experts, whose steps have a long fixed part
        (10.0, 1e-9, 0.080, 0.010),  # no fixed part
        (20.0, 0.004, 0.046, 0.012),  # 0.92 of it
    ],
)
def test_phases_are_those_of_a_chain_of_steps(
    rate: float, fixed_s: float, prompt_s: float, decode_s: float
) -> None:
    found = by_formula(rate, fixed_s, prompt_s, decode_s)
    chain = simulated(rate, fixed_s, prompt_s, decode_s)
    for name, formula, so in zip(Phases._fields, found, chain, strict=True):
        assert float(formula[0]) == pytest.approx(float(so), rel=0.06), name


def test_a_lone_request_meets_nobody() -> None:
    found = by_formula(1e-6, 0.002, 0.020, 0.010)
    assert float(found.own_prompts[0]) == pytest.approx(1.0, rel=1e-4)
    assert float(found.own_s[0]) == pytest.approx(0.022, rel=1e-4)
    assert float(found.rest_s[0]) < 1e-6
    assert float(found.phase_s[0]) < 1e-6


def test_prompts_that_differ_are_met_in_longer_steps() -> None:
    even, varied = (by_formula(20.0, 0.004, 0.030, 0.012, varied) for varied in (0.0, 1.0))
    assert varied.waited_s[0] > even.waited_s[0]
    assert varied.own_prompts[0] > even.own_prompts[0]
