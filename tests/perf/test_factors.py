"""Corrections found by the fit: bounded, scoped, and told with their uncertainty."""

from __future__ import annotations

import msgspec
import pytest

from servetune.hardware import device
from servetune.perf.roofline.coefficients import (
    COMPUTE_SHARES,
    PATHS,
    Coefficients,
    value_at,
)
from servetune.perf.roofline.factors import (
    KNOBS,
    Factor,
    coefficients_for,
    corrected,
    fit,
    scopes_of,
)
from servetune.perf.roofline.tables import COEFFICIENTS, table_for

HOPPER = COEFFICIENTS["hopper"]


def turned(*factors: tuple[str, str, float], architecture: str = "volta") -> Coefficients:
    return corrected(
        HOPPER,
        [Factor(knob=knob, scope=scope, value=value, sd=0.1) for knob, scope, value in factors],
        (f"architecture:{architecture}",),
        name="test",
    )


def test_every_factor_of_the_fit_turns_a_known_knob_within_five_prior_deviations() -> None:
    for factor in fit().factor:
        knob = KNOBS[factor.knob]
        prior_sd = knob.sd(factor.scope)
        assert abs(factor.value) < 5 * prior_sd, factor
        assert 0 < factor.sd <= prior_sd * 1.001, factor


def test_every_knob_turns_fields_that_coefficients_have() -> None:
    assert {path for knob in KNOBS.values() for path in knob.fields} <= set(PATHS)


@pytest.mark.parametrize("value", [-50.0, -1.0, 0.0, 1.0, 30.0])
def test_a_share_stays_a_share_whatever_the_fit_does(value: float) -> None:
    assert 0 < turned(("gemm_memory", "architecture:volta", value)).gemm.memory_fraction <= 1


def test_no_correction_changes_nothing() -> None:
    assert msgspec.structs.replace(turned(), name=HOPPER.name) == HOPPER


def test_silicon_that_was_not_measured_gets_what_is_assumed_of_it() -> None:
    factors = [("kernel", "architecture:volta", 0.5), ("kernel", "port:vllm/v0/cdna", 9.0)]
    ours, other = turned(*factors), turned(*factors, architecture="unheard")
    assert ours.gemm.kernel_s == pytest.approx(HOPPER.gemm.kernel_s * 1.649, rel=1e-3)
    assert other.gemm.kernel_s == HOPPER.gemm.kernel_s


@pytest.mark.parametrize("gpu", ["H100", "H200", "B200", "A100", "L4", "T4", "MI300X"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_fitted_coefficients_are_physical(gpu: str, engine: str) -> None:
    found = coefficients_for(device(gpu), engine)
    for field in msgspec.structs.fields(Coefficients):
        value = getattr(found, field.name)
        if "_fraction" in field.name:
            assert 0 < value < 1, field.name
        elif field.name.endswith("_s"):
            assert 0 <= value < 10, field.name
        if "memory_fraction" in field.name:
            assert value / found.device_factor < 1, field.name


def test_the_simulated_engine_is_vllm_and_a_cpu_keeps_its_table() -> None:
    assert coefficients_for(device("H100"), "simulated") == coefficients_for(device("H100"))
    assert coefficients_for(device("CPU")) == table_for(device("CPU"))


def test_a_board_of_little_power_multiplies_no_faster_than_it_allows() -> None:
    small, large = device("L4"), device("L40S")
    reached = small.bf16_flops * coefficients_for(small).gemm.compute_fraction
    assert reached == pytest.approx(0.56e12 * 72)
    share = coefficients_for(large).gemm.compute_fraction
    assert share > 1.5 * coefficients_for(small).gemm.compute_fraction


def test_a_board_with_slower_matrix_units_loses_less_than_they_do() -> None:
    """What else holds a kernel back is as on H100, whose units do as much in 0.23 of the time."""
    full, part = device("H100"), device("H20")
    for path in COMPUTE_SHARES:
        if "4bit" in path:
            continue
        of_full, of_part = (value_at(table_for(gpu), path) for gpu in (full, part))
        assert of_full < of_part < 1
        beside = (1 / of_full - 1) * part.matrix_share
        assert 1 / of_part == pytest.approx(1 + beside), path
        assert of_part * part.bf16_flops < of_full * full.bf16_flops
    alike = msgspec.structs.replace(part, matrix_share=1.0)
    assert table_for(alike) == table_for(full)


def test_a_processor_keeps_its_host_under_every_engine_and_release() -> None:
    own = COEFFICIENTS["cpu"]
    for engine, version in (("vllm", ""), ("vllm", "0.7.3"), ("tgi", ""), ("tensorrt-llm", "")):
        found = table_for(device("CPU"), engine, version)
        assert (found.host, found.experts.layer_s) == (own.host, own.experts.layer_s)


def test_silicon_with_operator_tables_has_no_factor() -> None:
    assert not scopes_of(device("A100"), "vllm", "0.5.1")
    assert scopes_of(device("T4"), "vllm", "0.5.1") == ("architecture:turing",)
    ports = ("port:vllm/v0/cdna", "port:vllm/v0/cdna3")
    assert scopes_of(device("MI300X"), "vllm", "0.6.4") == ("architecture:cdna3", *ports)
