"""Measured runs that resemble a plan: laboratories' and those that people published."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline import accuracy_like
from servetune.perf.roofline.accuracy import (
    QUANTILES,
    Accuracy,
    Kind,
    accuracy_of,
    cells,
    cells_csv,
    published_cells,
)
from servetune.plan import Plan

SHAPE = load_shape("Qwen/Qwen3-8B", catalogue_first=True)


def test_a_common_machine_has_runs_of_laboratories_and_of_others() -> None:
    found = accuracy_like(node(gpu="H100"), Plan(model="m", engine="vllm"), SHAPE)
    assert found.published is not None
    assert found.rows >= 12 <= found.published.rows
    assert found.published.sources > 5
    assert (found.median_percent or 0) < (found.published.median_percent or 0)
    laboratories, others = found.sentence.split(". ")
    assert laboratories.startswith(f"{found.rows} measured rows of {found.sources} source")
    assert others.startswith(f"{found.published.rows} published runs of {found.published.sources}")
    assert f"{found.published.median_percent:.0f}%" in others


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("TPU v6e", "no laboratory measured a run like this"),
        ("RTX 6000D", "measured rows of"),
    ],
)
def test_a_machine_that_nobody_measured_has_those_of_its_silicon_or_none(
    gpu: str, says: str
) -> None:
    found = accuracy_like(node(gpu=gpu), Plan(model="m", engine="vllm"), SHAPE)
    assert found.sentence.split(" (")[0].endswith("like this")
    assert says in found.sentence
    assert (found.rows == 0) == ("the interval is a judgement" in found.sentence)


def test_what_is_alike_is_said_once_where_it_is_the_same() -> None:
    others = Accuracy(rows=20, sources=3, median_percent=9, most_percent=30, alike="L4, vllm")
    found = msgspec.structs.replace(others, rows=40, sources=1, published=others)
    assert found.sentence.count("L4, vllm") == 1
    apart = msgspec.structs.replace(found, alike="ada GPUs, vllm")
    assert apart.sentence.count("vllm)") == 2
    nobody = msgspec.structs.replace(found, rows=0, sources=0)
    assert nobody.sentence == (
        "no laboratory measured a run like this (L4, vllm). "
        "20 published runs of 3 authors like this: median error 9%, nine in ten within 30%"
    )


def test_no_kind_counts_more_numbers_than_it_has_rows() -> None:
    for cell in (*cells(), *published_cells()):
        for logs in (cell.own, cell.ttft):
            assert len(logs) <= min(cell.rows, len(QUANTILES))
            assert list(logs) == sorted(logs)
        assert cell.own or cell.ttft


def test_published_runs_say_nothing_of_what_a_fit_had_measured() -> None:
    """Whether a device was measured under an engine is of laboratories alone."""
    kinds = {cell.kind for cell in published_cells()} - {cell.kind for cell in cells()}
    assert kinds
    assert any(not accuracy_of(kind).rows for kind in kinds)


def test_a_file_of_cells_has_all_numbers_of_few_rows_and_quantiles_of_many() -> None:
    kind = Kind(
        device="L4", architecture="ada", engine="vllm", release="present", network="dense", bits=16
    )
    few = (np.array([0.2, -0.1, np.nan]), np.full(3, np.nan))
    many = (np.linspace(-1, 1, 101), np.linspace(0, 1, 101))
    lines = cells_csv({("few", kind): few, ("many", kind): many}).splitlines()
    assert lines[1] == "few,L4,ada,vllm,present,dense,16,3,-0.100 0.200,"
    _, own, first = lines[2].rsplit(",", 2)
    assert [float(number) for number in own.split()] == pytest.approx(
        [-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9]
    )
    assert len(first.split()) == len(QUANTILES)
