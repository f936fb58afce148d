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
    "devices": 2,
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
        ({"split": (1, 2)}, "split of as many GPUs"),
        ({"devices": 4, "split": (4,)}, "number of GPUs"),
        ({"storage": "none"}, "storage of weights or cache"),
        ({"settings": "max_num_seqs"}, "other settings"),
        ({"engine": "sglang", "release": "0.5", "settings": "more"}, "engine"),
        ({"device": "H200"}, "device"),
        ({"device": "H200", "split": (4,), "devices": 4}, None),
        ({"settings": "max_num_seqs", "release": "0.29"}, None),
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


def pair(
    differences: ModuleType, predicted: float, measured: float, by: str = "lab", group: str = ""
) -> object:
    return differences.Pair(
        decision="engine",
        source=by,
        by=by,
        group=(by, group),
        predicted=predicted,
        measured=measured,
        sd=1.0,
    )


def test_one_in_ten_is_off_by_the_threshold_to_the_wrong_side(differences: ModuleType) -> None:
    errors = np.random.default_rng(1).normal(size=2000)
    pairs = [pair(differences, 0.5 + error, 0.5) for error in errors]
    threshold = differences.order_threshold_sds(pairs)
    assert threshold == pytest.approx(1.28, abs=0.05)
    assert np.mean(errors > threshold) == pytest.approx(0.1, abs=0.02)


def test_a_threshold_is_made_without_whom_it_judges(differences: ModuleType) -> None:
    """One laboratory is off by ten times as much as the others, which do not know it."""
    pairs = [
        pair(differences, 1.0, 1.0 + off * (-1) ** number, by=name)
        for name, off in (("a", 0.1), ("b", 0.1), ("c", 2.0))
        for number in range(10)
    ]
    apart = differences.are_told_apart(pairs)
    assert apart[20:].all()
    assert not apart[:20].any()


def test_pairs_measured_apart_alone_are_right_or_wrong(differences: ModuleType) -> None:
    right, wrong, equal, silent = (
        pair(differences, *logs, group=str(logs))
        for logs in ((0.5, 0.2), (-0.5, 0.2), (-0.5, 0.01), (0.0, 0.2))
    )
    assert differences._right([right, right, equal]) == "100% of 2"
    assert differences._right([wrong, equal]) == "0% of 1"
    assert differences._right([silent]) == "50% of 1"
    assert differences._right([equal]) == ""


def test_tables_have_a_line_for_each_kind_of_pair(differences: ModuleType) -> None:
    pairs = [pair(differences, 0.5, 0.4, by=by) for by in ("a", "b", "b", "c")]
    head, rule, engine, any_of_these = "\n".join(differences.table(pairs)).splitlines()
    assert head.count("|") == rule.count("|") == engine.count("|")
    assert engine.startswith("| engine, laboratories | 4 | 3 | 11% |")
    assert any_of_these.startswith("| any of these, laboratories | 4 | 3 |")
