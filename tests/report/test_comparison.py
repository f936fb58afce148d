from __future__ import annotations

import msgspec
import pytest
import report_records as factory

from servetune.report import (
    PredictionPair,
    median_errors,
    pairs_between,
    pairs_within,
    quantity_errors,
)
from servetune.store.schema import TrialConfig, record_from_json


def changed(record, *, server=None, client=None, **metadata):
    config = TrialConfig(
        server_args=record.config.server_args if server is None else server,
        client_args=record.config.client_args if client is None else client,
    )
    return msgspec.structs.replace(record, config=config, metadata={**record.metadata, **metadata})


def test_a_measured_record_meets_the_prediction_of_its_own_configuration():
    measured = record_from_json(factory.foreign_json(64))
    pairs = pairs_between(factory.sweep(), [measured])
    assert [p.label for p in pairs] == ["TP4 · batched tokens 8192 · concurrency 64"]


def test_a_setting_that_both_name_and_that_differs_parts_them():
    measured = record_from_json(factory.foreign_json(64))
    other = changed(measured, client={**measured.config.client_args, "max_concurrency": 65})
    assert pairs_between(factory.sweep(), [other]) == []


def test_a_record_that_fits_several_predictions_is_judged_by_none():
    measured = record_from_json(factory.foreign_json(64))
    vague = changed(measured, server={"tensor_parallel_size": 4})
    assert pairs_between(factory.sweep(), [vague]) == []


@pytest.mark.parametrize(
    ("gpu", "same"), [("L4", True), ("nvidia l4", True), ("NVIDIA L40", False), ("unknown", True)]
)
def test_a_gpu_is_the_same_when_one_name_holds_the_words_of_the_other(gpu, same):
    measured = changed(record_from_json(factory.foreign_json(64)), gpu_type=gpu)
    assert bool(pairs_between(factory.sweep(), [measured])) is same


def test_another_model_is_never_compared():
    measured = changed(record_from_json(factory.foreign_json(64)), model_tag="Qwen/Qwen3-8B")
    assert pairs_between(factory.sweep(), [measured]) == []


def test_the_error_is_how_much_too_high_the_prediction_is():
    pair = pairs_within(factory.measured())[0]
    by_name = {(g.quantity, g.statistic): g for g in quantity_errors(pair)}
    assert by_name["output_throughput", "mean"].error_fraction == pytest.approx(0.08)
    assert len(by_name) == 9


def test_a_value_that_is_missing_on_one_side_has_no_error():
    record = factory.measured()[0]
    bare = msgspec.structs.replace(record, predicted={"output_throughput": 1000.0})
    gaps = {(g.quantity, g.statistic): g for g in quantity_errors(pairs_within([bare])[0])}
    assert gaps["output_throughput", "mean"].error_fraction is not None
    assert gaps["ttft", "mean"].error_fraction is None
    assert gaps["ttft", "mean"].measured is not None


def test_simulated_records_are_not_taken_for_measurements():
    assert pairs_within(factory.sweep()) == []


def test_median_errors_are_of_absolute_errors():
    def pair(rate):
        return PredictionPair(
            label="l",
            key="k",
            predicted={"output_throughput": rate},
            measured={"output_throughput": 100.0},
        )

    found = median_errors([pair(90.0), pair(105.0), pair(130.0)])
    assert found["output_throughput", "mean"] == pytest.approx(0.10)
    assert found["ttft", "mean"] is None
