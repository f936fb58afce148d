"""Pairs of runs that differ in one decision, and which of them are told apart."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from benchmark_scripts import script
from servetune.perf import RunFeatures


@pytest.fixture(scope="module")
def differences() -> ModuleType:
    for imported in ("spread", "reports"):
        script(f"prediction/{imported}.py")
    return script("prediction/differences.py")


PLACE = RunFeatures(
    engine="vllm",
    storage="fp8",
    devices=2,
    concurrency=16,
    input_tokens=1024,
    output_tokens=512,
    tpot_doubts=(0.0,) * 8,
    ttft_doubts=(0.0,) * 8,
)
DECIDED = {
    "split": (2,),
    "storage": "fp8",
    "settings": "",
    "engine": "vllm",
    "release": "0.30",
    "device": "H100",
}


def run(
    differences: ModuleType, error: float, log: float, by: str = "somebody", **decided: object
) -> object:
    return differences.Compared(
        source="lab",
        by=by,
        load="the same",
        decided={**DECIDED, **decided},
        place=PLACE,
        errors=(error, float("nan")),
        logs=(log, float("nan")),
    )


@pytest.mark.parametrize(
    ("decided", "decision"),
    [
        ({"split": (4,)}, "split of the GPUs"),
        ({"storage": "none"}, "storage of weights or cache"),
        ({"settings": "max_num_seqs"}, "other settings"),
        ({"engine": "sglang", "release": "0.5", "settings": "more"}, "engine"),
        ({"device": "H200"}, "device"),
        ({"device": "H200", "split": (4,)}, None),
        ({"release": "0.29"}, None),
    ],
)
def test_a_pair_differs_in_one_decision(
    differences: ModuleType, decided: dict[str, object], decision: str | None
) -> None:
    found = differences.pairs_of(
        [run(differences, 0.1, 1.0), run(differences, -0.1, 1.5, **decided)], 0
    )
    assert [pair.decision for pair in found] == ([decision] if decision else [])
    for pair in found:
        assert pair.measured == pytest.approx(-0.5)
        assert pair.off == pytest.approx(0.2)


def test_runs_of_two_publishers_are_no_pair(differences: ModuleType) -> None:
    ours = run(differences, 0.1, 1.0)
    theirs = run(differences, 0.1, 1.0, by="somebody else", split=(4,))
    assert not differences.pairs_of([ours, theirs], 0)
    assert not differences.pairs_of([ours, ours], 0)
    assert not differences.pairs_of([ours, theirs], 1)


def test_one_in_ten_of_those_at_the_threshold_has_the_other_order(differences: ModuleType) -> None:
    """Errors of a difference are drawn evenly: the threshold leaves a tenth beyond it."""
    errors = np.random.default_rng(1).normal(size=2000)
    pairs = [
        differences.Pair(
            decision="engine",
            source="lab",
            by="lab",
            group="lab",
            predicted=0.5 + error,
            measured=0.5,
            sd=1.0,
        )
        for error in errors
    ]
    threshold = differences.told_apart(pairs)
    assert threshold == pytest.approx(1.28, abs=0.05)
    assert np.mean(errors > threshold) == pytest.approx(0.1, abs=0.02)
