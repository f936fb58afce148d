"""The release of an engine that a prediction is for, and those that were measured."""

from __future__ import annotations

import pytest

from servetune.engines import priced_release
from servetune.errors import InputError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import performance_at
from servetune.perf.roofline import coefficients_for, interval_of
from servetune.perf.roofline.coefficients import value_at
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

MODEL = "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("engine", "version", "step_times", "outside"),
    [
        ("vllm", None, "releases from 0.18 on", False),
        ("vllm", "0.26.3", "releases from 0.18 on", False),
        ("vllm", "v0.27.0", "releases from 0.18 on", True),
        ("vllm", "0.10.2", "releases from 0.10.2 to before 0.14", False),
        ("vllm", "0.4.0", "releases before 0.6", False),
        ("vllm", "0.3.3", "releases before 0.6", True),
        ("sglang", "0.5.9.post1", "releases from 0.5.2 to before 0.5.11", False),
        ("sglang", "0.3.6", "releases before 0.4", True),
        ("sglang", "0.5.10", "releases from 0.5.2 to before 0.5.11", True),
        ("tgi", None, "releases before 2.0", False),
        ("tgi", "1.4", "releases before 2.0", False),
        ("tgi", "3.3.6", "releases from 2.0 on", True),
    ],
)
def test_a_release_has_the_step_times_of_its_era(
    engine: str, version: str | None, step_times: str, outside: bool
) -> None:
    found = priced_release(Plan(model=MODEL, engine=engine, engine_version=version))
    assert (found.step_times, found.outside) == (step_times, outside)
    assert ("outside of" in found.sentence) == outside
    assert (version or "none named") in found.sentence


def test_a_word_is_no_release() -> None:
    with pytest.raises(InputError, match="nightly is no release of vLLM") as refused:
        priced_release(Plan(model=MODEL, engine_version="nightly"))
    assert "0.26" in refused.value.hint


def test_an_old_release_is_slower_and_less_sure() -> None:
    shape, machine = load_shape(MODEL, catalogue_first=True), node(gpu="H100")
    load = Workload.of(LengthLaws.fixed(512, 128))
    now, then = (Plan(model=MODEL, engine_version=version) for version in (None, "0.7.3"))
    points = [performance_at(shape, machine, plan, load, 64) for plan in (now, then)]
    assert points[1].output_tokens_per_s < 0.9 * points[0].output_tokens_per_s
    factors = [interval_of(machine, plan, shape).high_factor for plan in (now, then)]
    assert factors[1] > 1.03 * factors[0]


def test_requests_wait_longer_for_the_queue_of_present_releases() -> None:
    """Of vLLM's alone: earlier eras say their own time, as each states all that differs."""
    found = [
        coefficients_for(node(gpu="H100").device, "vllm", version).host.request_s
        for version in ("0.5.0", "0.6.1", "0.7.3", "0.10.1", "0.13.0", "0.16.0", "0.30.0")
    ]
    assert found == [5e-3] * 5 + [8e-3] * 2


@pytest.mark.parametrize(
    ("engine", "path", "by_release"),
    [
        ("sglang", "host.step_s", {"0.3.6": 1e-3, "2024.06": 1e-3, "0.4.0": 4e-4, "0.5.9": 4e-4}),
        ("sglang", "experts.layer_s", {"0.3.6": 3e-5, "0.4.0": 3.8e-5, "0.5.9": 3.8e-5}),
        ("tensorrt-llm", "attention.read_once_group", {"0.6.1": 0, "0.7.1": 8, "0.9.0": 8}),
    ],
)
def test_what_a_release_brought_holds_from_it_on(
    engine: str, path: str, by_release: dict[str, float]
) -> None:
    for version, expected in by_release.items():
        found = value_at(coefficients_for(node(gpu="H100").device, engine, version), path)
        assert found == expected
