"""Outcomes for strategies: every objective larger is better, limits as shares."""

from __future__ import annotations

import math

import pytest

from servetune.metrics import parse_constraints
from servetune.search import outcome_of, parse_objectives

RESULTS = {
    "output_throughput": 200.0,
    "p99_ttft_ms": 500.0,
    "error_rate": 0.0,
    "request_throughput": 4.0,
}


def outcome(limits="", objectives="throughput", results=RESULTS, **options):
    return outcome_of(results, parse_constraints(limits), parse_objectives(objectives), **options)


def test_what_is_minimised_counts_as_its_reciprocal_so_that_larger_is_better():
    assert outcome(objectives="throughput,ttft:p99").objectives == (200.0, 1 / 500.0)
    faster = {**RESULTS, "p99_ttft_ms": 250.0}
    assert outcome(objectives="ttft:p99", results=faster).objectives == (1 / 250.0,)
    free = outcome(objectives="error_rate")
    assert free.counts
    assert (
        free.objectives[0]
        > outcome(objectives="error_rate", results={"error_rate": 1e-6}).objectives[0]
    )


def test_results_without_a_value_of_an_objective_are_a_failed_outcome():
    assert outcome(objectives="throughput,energy").failed
    assert outcome(results={}).failed
    assert outcome(results={"output_throughput": math.nan}).failed


@pytest.mark.parametrize(
    ("limit", "ratio"),
    [
        ("ttft:p99<=1s", 0.5),
        ("ttft:p99<=250ms", 2.0),
        ("ttft:p99<=500ms", 1.0),
        ("request_throughput>=5", 1.25),
        ("request_throughput>=2", 0.5),
        ("error_rate<=0", 0.5),
        ("error_rate<=0.1", 1e-6),
        ("request_throughput>=0", 1e-6),
        ("request_throughput==4", 0.5),
        ("request_throughput==5", 1.2),
        ("request_throughput!=4", 2.0),
        ("goodput>=1", 2.0),
    ],
)
def test_a_limit_ratio_is_at_most_one_exactly_where_the_limit_holds(limit, ratio):
    found = outcome(limit)
    assert found.limit_ratios == (pytest.approx(ratio),)
    assert found.counts
    [constraint] = parse_constraints(limit)
    assert found.holds is bool(constraint.holds(RESULTS))


def test_a_strict_limit_that_is_exactly_reached_is_missed():
    assert not outcome("ttft:p99<500ms").holds
    assert outcome("ttft:p99<=500ms").holds


def test_a_missed_limit_of_zero_is_missed_by_the_plain_amount():
    failing = {**RESULTS, "error_rate": 0.25}
    assert outcome("error_rate<=0", results=failing).limit_ratios == (1.25,)


def test_what_a_prediction_says_nothing_of_counts_as_held():
    limits = "goodput>=1;request_throughput==5;ttft:p99<=250ms"
    assert outcome(limits, predicted=True).limit_ratios == (0.5, 0.5, 2.0)
    assert outcome(limits).limit_ratios == (2.0, pytest.approx(1.2), 2.0)
